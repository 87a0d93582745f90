use crate::window::Window;

/// Finds the limit: a window in, a limit out. Implement it for a controller of your own.
///
/// An [`Adaptive`](crate::Adaptive) limit clones its controller before each decision. If a decision
/// panics, the limit and the controller stay as they are.
///
/// ```
/// use portcullis_adaptive::{Adaptive, Controller, Decision, Window};
/// use portcullis_core::Concurrency;
///
/// /// Adds one while nothing is slower than 0.1 s, and halves otherwise.
/// #[derive(Clone)]
/// struct Halving;
///
/// impl Controller for Halving {
///     fn decide(&mut self, window: &Window<'_>) -> Decision {
///         let slow = window.latency() > 0.1;
///         Decision::limit(if slow { window.limit / 2 } else { window.limit + 1 })
///     }
/// }
///
/// let limit = Adaptive::builder(20).controller(Halving).build()?;
/// assert_eq!(limit.limit(), 20);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub trait Controller: Clone {
    /// Returns the limit that follows from `window`, and what the next window must have.
    fn decide(&mut self, window: &Window<'_>) -> Decision;

    /// Returns the limit to begin with, and what the first window must have. The default begins
    /// with `initial` and 30 samples.
    fn begin(&mut self, initial: u32) -> Decision {
        Decision::limit(initial)
    }
}

/// What a [`Controller`] decided, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// The limit from now on. An [`Adaptive`](crate::Adaptive) limit keeps it between its floor and
    /// its ceiling.
    pub limit: u32,
    /// How many requests must be recorded before the next window closes; at least 2.
    pub samples: u32,
    /// How many seconds the next window must last; at least 0.0005, at most 4,294. A window of
    /// 4,194,304 requests is closed before.
    pub seconds: f64,
    /// Whether the window stays open, until it has `samples` and `seconds` in all.
    pub wait: bool,
    /// Whether requests that saw the former limit are left out of the next window.
    pub settle: bool,
    /// Which step of the controller this is.
    pub phase: Phase,
    /// The throughput at which the service is saturated, as far as the controller knows it:
    /// requests each second, else 0.
    pub capacity: f64,
    /// The latency without a queue in seconds, as far as the controller knows it, else 0.
    pub base: f64,
}

impl Decision {
    /// Decides on a limit. The next window closes after 30 samples.
    #[must_use]
    pub const fn limit(limit: u32) -> Self {
        Self {
            limit,
            samples: 30,
            seconds: 0.0,
            wait: false,
            settle: true,
            phase: Phase::Measuring,
            capacity: 0.0,
            base: 0.0,
        }
    }

    /// Changes what the next window must have.
    #[must_use]
    pub const fn after(self, samples: u32, seconds: f64) -> Self {
        Self {
            samples,
            seconds,
            ..self
        }
    }

    /// Keeps the window open.
    #[must_use]
    pub const fn waiting(self) -> Self {
        Self { wait: true, ..self }
    }

    /// Names the step of the controller.
    #[must_use]
    pub const fn in_phase(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    /// Tells the estimates: requests each second, and seconds.
    #[must_use]
    pub const fn estimating(self, capacity: f64, base: f64) -> Self {
        Self {
            capacity,
            base,
            ..self
        }
    }
}

/// The step that a controller is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Nothing is known yet.
    #[default]
    Starting,
    /// The limit is above what is in use: nothing is denied.
    Free,
    /// Requests are denied. The throughput is measured.
    Measuring,
    /// The limit is just below the knee, for a moment. The latency without a queue is measured.
    Lowered,
    /// The limit was cut. Whether the latency or the throughput follows says what the limit was.
    Comparing,
}
