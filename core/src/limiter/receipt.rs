//! Receipts. A limiter writes into the receipt of a grant what it needs to refund that grant: the
//! time, and a note. Only the same limiter reads it.
//!
//! Invariant: a receipt is spent once. It cannot be copied, and a refund returns what is left of
//! it.

/// What a limiter needs to refund a grant. [`Limiter::take_at`](crate::Limiter::take_at) returns
/// it, and [`Limiter::refund_at`](crate::Limiter::refund_at) of the same limiter takes it.
///
/// A receipt contains the time of the grant in full width and a note, whose meaning is private to
/// the limiter. For a token bucket the note is the state word after the take; for a window it
/// identifies the window. A state word wraps, so by the note alone a receipt would become valid
/// again one horizon later. From the time the limiter computes the age of a receipt, and it refunds
/// nothing for one that is too old.
///
/// A receipt is not `Copy`: refunding a grant twice does not compile.
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
    /// The receipt of a limiter that needs no note. It does not mean that nothing can be refunded:
    /// a limiter that needs notes may take it for the receipt of a grant at the origin of time.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter, Timestamp};
    /// # use portcullis_core::limiter::Receipt;
    /// assert_eq!(
    ///     Concurrency::new(1).take_at(Timestamp::ZERO, 1),
    ///     Ok(Receipt::NONE)
    /// );
    /// ```
    pub const NONE: Self = Self::new(0);

    /// Creates a receipt with a note and without a time, for a limiter of your own whose notes keep
    /// their meaning permanently.
    ///
    /// ```
    /// # use portcullis_core::limiter::Receipt;
    /// assert_eq!((Receipt::new(7).note(), Receipt::new(7).time()), (7, 0));
    /// ```
    #[inline]
    pub const fn new(note: u64) -> Self {
        Self::dated(note, 0)
    }

    /// Creates a receipt with a note and the time of the grant. The unit of `time` is that of the
    /// limiter, for example nanoseconds.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_core::limiter::Receipt;
    /// let receipt = Receipt::dated(7, Timestamp::from_secs(2).as_nanos());
    /// assert_eq!((receipt.note(), receipt.time()), (7, 2_000_000_000));
    /// ```
    #[inline]
    pub const fn dated(note: u64, time: u64) -> Self {
        Self { note, time }
    }

    /// Returns the note.
    ///
    /// ```
    /// # use portcullis_core::limiter::Receipt;
    /// assert_eq!(Receipt::NONE.note(), 0);
    /// ```
    #[inline]
    pub const fn note(&self) -> u64 {
        self.note
    }

    /// Returns a refund in which `permits` permits count as never taken and `self` covers the rest
    /// of the grant.
    ///
    /// ```
    /// # use portcullis_core::limiter::{Receipt, Refund};
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

    /// Returns the time of the grant in the limiter's unit; 0 for a note [without a
    /// time](Self::new).
    ///
    /// ```
    /// # use portcullis_core::limiter::Receipt;
    /// assert_eq!(Receipt::NONE.time(), 0);
    /// ```
    #[inline]
    pub const fn time(&self) -> u64 {
        self.time
    }
}

/// The result of a refund: see [`Limiter::refund_at`](crate::Limiter::refund_at).
///
/// ```
/// use portcullis_core::{Concurrency, Limiter, Timestamp};
/// use portcullis_core::limiter::{Receipt, Refund};
///
/// let limit = Concurrency::new(5);
/// let receipt = limit.take_at(Timestamp::ZERO, 3)?;
/// let refund = limit.refund_at(Timestamp::ZERO, 2, receipt);
/// assert_eq!(refund, Refund { permits: 2, rest: Receipt::NONE });
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "what was refunded, and the rest")]
pub struct Refund {
    /// The number of refunded permits that count as never taken. The others return as they would
    /// have without the refund.
    pub permits: u32,
    /// The receipt for the permits that remain of the grant.
    pub rest: Receipt,
}

/// The state of a limiter when it was asked about a request. A look returns it
/// ([`Answer::Possible`](crate::limiter::Answer::Possible)), and a take from the same limiter is
/// told of it ([`Ask::as_planned`](crate::limiter::Ask::as_planned)). A composition uses plans to
/// ask all its limiters before it takes from any.
///
/// ```
/// use portcullis_core::{Limiter, Rate, Timestamp, TokenBucket};
/// use portcullis_core::limiter::{Answer, Ask};
///
/// let bucket = TokenBucket::new(Rate::per_second(1), 5);
/// let now = Timestamp::from_secs(9);
/// let Answer::Possible(plan) = bucket.decide(Ask::look(now, 3)) else {
///     panic!("it is full");
/// };
/// assert_eq!(bucket.available_at(now), 5, "a look takes nothing");
/// let _ = bucket.decide(Ask::take(now, 3).as_planned(plan));
/// assert_eq!(bucket.available_at(now), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Plan {
    pub(crate) seen: u64,
    pub(crate) left: u64,
}

impl Plan {
    /// The plan of a limiter that does not support plans.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter, Timestamp};
    /// # use portcullis_core::limiter::{Answer, Ask, Plan};
    /// let answer = Concurrency::new(1).decide(Ask::look(Timestamp::ZERO, 1));
    /// assert_eq!(answer, Answer::Possible(Plan::NONE));
    /// ```
    pub const NONE: Self = Self { seen: 0, left: 0 };
}
