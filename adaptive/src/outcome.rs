/// How a request ended: what a lease tells its [`Adaptive`](crate::Adaptive) limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It was served.
    #[default]
    Succeeded,
    /// It failed for a reason that is no overload, such as an error of the client. It held its
    /// permits and tells how long, as a success does.
    Failed,
    /// The service pushed back: it is overloaded, by its own account (503, 429, a time-out).
    PushedBack,
    /// It tells nothing: it was cancelled, or never reached the service. Its permits return, and
    /// no window counts it.
    Ignored,
}

impl Outcome {
    pub(crate) const fn bits(self) -> u32 {
        self as u32
    }

    pub(crate) const fn of_bits(bits: u32) -> Self {
        match bits {
            0 => Self::Succeeded,
            1 => Self::Failed,
            2 => Self::PushedBack,
            _ => Self::Ignored,
        }
    }
}
