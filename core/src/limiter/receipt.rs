/// What a limiter notes of a grant, to be able to take it back: from
/// [`Limiter::take_at`](crate::Limiter::take_at) to
/// [`Limiter::refund_at`](crate::Limiter::refund_at) of the same limiter.
///
/// It holds a note, whose meaning is the limiter's own affair (the word that a token bucket was
/// left with, or the window that was counted in), and the time of the grant in full width. A state
/// word wraps and so would accept a receipt again one horizon later; by the time, a limiter tells
/// how old a receipt is, and gives nothing back for one that is too old.
///
/// A receipt is not copied: to give a grant back twice does not compile.
///
/// ```
/// use portcullis_core::{Limiter, Rate, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(1), 5);
/// let now = Timestamp::from_secs(9);
/// let receipt = bucket.take_at(now, 3).unwrap();
/// let refund = bucket.refund_at(now, 2, receipt);
/// assert_eq!((refund.permits, bucket.available_at(now)), (2, 4));
/// let refund = bucket.refund_at(now, 1, refund.rest);
/// assert_eq!((refund.permits, bucket.available_at(now)), (1, 5));
/// ```
///
/// ```compile_fail,E0382
/// # use portcullis_core::{Limiter, Rate, Timestamp, TokenBucket};
/// # let bucket = TokenBucket::new(Rate::per_second(1), 5);
/// # let now = Timestamp::from_secs(9);
/// let receipt = bucket.take_at(now, 3).unwrap();
/// bucket.refund_at(now, 3, receipt);
/// bucket.refund_at(now, 3, receipt);
/// ```
#[derive(Debug, PartialEq, Eq, Hash)]
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
    pub const fn note(&self) -> u64 {
        self.note
    }

    /// The answer of a limiter that counts so many permits as never taken, where this stands for
    /// those that are left of the grant.
    ///
    /// ```
    /// # use portcullis_core::{Receipt, Refund};
    /// let refund = Receipt::NONE.refunded(3);
    /// assert_eq!(refund, Refund { permits: 3, rest: Receipt::NONE });
    /// ```
    #[inline]
    pub const fn refunded(self, permits: u32) -> Refund {
        Refund {
            permits,
            rest: self,
        }
    }

    /// The time of the grant, in the limiter's unit; 0 for a note [without a time](Self::new).
    ///
    /// ```
    /// # use portcullis_core::Receipt;
    /// assert_eq!(Receipt::NONE.time(), 0);
    /// ```
    #[inline]
    pub const fn time(&self) -> u64 {
        self.time
    }
}

/// What came of permits that were given back: from
/// [`Limiter::refund_at`](crate::Limiter::refund_at).
///
/// ```
/// use portcullis_core::{Concurrency, Limiter, Receipt, Refund, Timestamp};
///
/// let limit = Concurrency::new(5);
/// let receipt = limit.take_at(Timestamp::ZERO, 3)?;
/// let refund = limit.refund_at(Timestamp::ZERO, 2, receipt);
/// assert_eq!(refund, Refund { permits: 2, rest: Receipt::NONE });
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Refund {
    /// Of the permits that were given back, how many count as never taken. The others come back as
    /// they would have done anyway.
    pub permits: u32,
    /// Stands for the permits that are left of the grant.
    pub rest: Receipt,
}

/// What a limiter has seen when it was asked what it would say: from
/// [`Composable::plan_at`](crate::Composable::plan_at) to
/// [`Composable::take_as_planned_at`](crate::Composable::take_as_planned_at) of the same limiter,
/// for those who look at many before they take from any.
///
/// ```
/// use portcullis_core::{Composable, Rate, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(1), 5);
/// let now = Timestamp::from_secs(9);
/// let plan = bucket.plan_at(now, 3).unwrap();
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
    /// # use portcullis_core::{AllOf, Composable, Concurrency, Plan, Timestamp};
    /// let limits = AllOf::new((Concurrency::new(1),));
    /// assert_eq!(limits.plan_at(Timestamp::ZERO, 1), Ok(Plan::NONE));
    /// ```
    pub const NONE: Self = Self { seen: 0, left: 0 };
}
