/// What a limiter notes of a grant, to be able to take it back: from [`Limiter::take_at`](crate::Limiter::take_at) to
/// [`Limiter::refund_at`](crate::Limiter::refund_at) of the same limiter.
///
/// What it means is the limiter's own affair: the word that a token bucket was left with, or the window that was counted in.
///
/// ```
/// use portcullis_core::{Limiter, Rate, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(1), 5);
/// let now = Timestamp::from_secs(9);
/// let mut receipt = bucket.take_at(now, 3).unwrap();
/// assert_eq!(bucket.refund_at(now, 2, &mut receipt), 2);
/// assert_eq!(bucket.available_at(now), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(u64);

impl Receipt {
    /// For a limiter that needs no note.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter, Receipt, Timestamp};
    /// assert_eq!(Concurrency::new(1).take_at(Timestamp::ZERO, 1), Ok(Receipt::NONE));
    /// ```
    pub const NONE: Self = Self(0);

    /// A note for a limiter of your own.
    ///
    /// ```
    /// # use portcullis_core::Receipt;
    /// assert_eq!(Receipt::new(7).note(), 7);
    /// ```
    #[inline]
    pub const fn new(note: u64) -> Self {
        Self(note)
    }

    /// The note.
    ///
    /// ```
    /// # use portcullis_core::Receipt;
    /// assert_eq!(Receipt::NONE.note(), 0);
    /// ```
    #[inline]
    pub const fn note(self) -> u64 {
        self.0
    }
}
