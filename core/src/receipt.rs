/// What a limiter notes of a grant, to be able to take it back: from
/// [`Limiter::take_at`](crate::Limiter::take_at) to
/// [`Limiter::refund_at`](crate::Limiter::refund_at) of the same limiter.
///
/// It holds a note, whose meaning is the limiter's own affair (the word that a token bucket was
/// left with, or the window that was counted in), and the time of the grant in full width. A state
/// word wraps and so would accept a receipt again one horizon later; by the time, a limiter tells
/// how old a receipt is, and gives nothing back for one that is too old.
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
pub struct Receipt {
    note: u64,
    time: u64,
}

impl Receipt {
    /// For a limiter that needs no note.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter, Receipt, Timestamp};
    /// assert_eq!(
    ///     Concurrency::new(1).take_at(Timestamp::ZERO, 1),
    ///     Ok(Receipt::NONE)
    /// );
    /// ```
    pub const NONE: Self = Self::new(0);

    /// A note without a time, for a limiter of your own whose notes never mean something else
    /// later.
    ///
    /// ```
    /// # use portcullis_core::Receipt;
    /// assert_eq!((Receipt::new(7).note(), Receipt::new(7).time()), (7, 0));
    /// ```
    #[inline]
    pub const fn new(note: u64) -> Self {
        Self::dated(note, 0)
    }

    /// A note and the time of the grant, in the unit in which the limiter counts (nanoseconds,
    /// say).
    ///
    /// ```
    /// # use portcullis_core::{Receipt, Timestamp};
    /// let receipt = Receipt::dated(7, Timestamp::from_secs(2).as_nanos());
    /// assert_eq!((receipt.note(), receipt.time()), (7, 2_000_000_000));
    /// ```
    #[inline]
    pub const fn dated(note: u64, time: u64) -> Self {
        Self { note, time }
    }

    /// The note.
    ///
    /// ```
    /// # use portcullis_core::Receipt;
    /// assert_eq!(Receipt::NONE.note(), 0);
    /// ```
    #[inline]
    pub const fn note(self) -> u64 {
        self.note
    }

    /// The time of the grant, in the limiter's unit; 0 for a note [without a time](Self::new).
    ///
    /// ```
    /// # use portcullis_core::Receipt;
    /// assert_eq!(Receipt::NONE.time(), 0);
    /// ```
    #[inline]
    pub const fn time(self) -> u64 {
        self.time
    }
}

/// What a limiter has seen when it was asked what it would say: from
/// [`Limiter::peek_at`](crate::Limiter::peek_at) to
/// [`Limiter::take_as_planned_at`](crate::Limiter::take_as_planned_at) of the same limiter, for
/// those who look at many before they take from any.
///
/// ```
/// use portcullis_core::{Limiter, Rate, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(1), 5);
/// let now = Timestamp::from_secs(9);
/// let plan = bucket.peek_at(now, 3).unwrap();
/// assert_eq!(bucket.available_at(now), 5, "nothing has happened");
/// assert!(bucket.take_as_planned_at(now, 3, plan).is_ok());
/// assert_eq!(bucket.available_at(now), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Plan {
    pub(crate) seen: u64,
    pub(crate) left: u64,
}

impl Plan {
    /// For a limiter that plans nothing.
    ///
    /// ```
    /// # use portcullis_core::{Limiter, Plan, Timestamp, Unlimited};
    /// assert_eq!(Unlimited.peek_at(Timestamp::ZERO, 1), Ok(Plan::NONE));
    /// ```
    pub const NONE: Self = Self { seen: 0, left: 0 };
}
