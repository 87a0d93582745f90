//! What becomes of permits and requests, as one value.

use crate::all_of::Receipts;
use crate::limiter::not_granted::NotGranted;
use crate::limiter::receipt::{Receipt, Refund};
use crate::time::timestamp::Timestamp;

/// What becomes of permits that a limiter granted, or of a request: the argument of
/// [`Limiter::give_back`](crate::Limiter::give_back).
///
/// A limiter that wraps another one passes each of them on. What a limiter of its own does:
///
/// | value | its permits return by release | they return by time, or it counts none |
/// |---|---|---|
/// | [`Release`](Self::Release) | puts them back | nothing |
/// | [`Refund`](Self::Refund) | puts them back; its refund counts 0 permits | undoes the take as far as its receipt allows |
/// | [`NotGranted`](Self::NotGranted) | nothing, unless it records denials | the same |
/// | [`Cancelled`](Self::Cancelled) | nothing, unless it counts requests | the same |
/// | [`Watch`](Self::Watch) | nothing, or remembers it to answer releases by it | nothing |
///
/// For "nothing" it answers [`Returned::NOTHING`]. So does a limiter for a value that it does not
/// know: more may be added.
#[derive(Debug)]
#[non_exhaustive]
pub enum Back<'a> {
    /// Permits are no longer used. They return at once, unless they return by time.
    Release {
        /// The number of permits.
        permits: u32,
    },
    /// Permits of one grant are to count as never taken, as far as that cannot break the limiter's
    /// bound. The others are released. See [`Limiter::refund_at`](crate::Limiter::refund_at).
    Refund {
        /// The time of the refund.
        now: Timestamp,
        /// The number of permits.
        permits: u32,
        /// The receipt of the grant, or what has remained of it after an earlier refund.
        receipt: Receipt,
        /// The receipts of all limits that the permits come from, if the request asked for them:
        /// see [`Tell::Receipts`](crate::limiter::Tell::Receipts). They are used up.
        receipts: Option<&'a mut Receipts>,
    },
    /// A request has ended without a grant, after any number of
    /// [attempts](crate::limiter::How::Attempt). A queue says this, because the denial of an
    /// attempt is not [final](crate::limiter::Ask::is_final): `Penalty` starts its wait, and
    /// `Counted` counts.
    NotGranted {
        /// The time at which it ended.
        now: Timestamp,
        /// The number of permits that it was for.
        permits: u32,
        /// Why.
        why: NotGranted,
    },
    /// A request was cancelled while it waited: neither a grant nor a denial. `Counted` counts it.
    Cancelled {
        /// The number of permits that it was for.
        permits: u32,
    },
    /// Requests wait now, or none waits any longer, in the queue that owns the limiter.
    ///
    /// A limiter that remembers it can answer a release by whether a request waits: see
    /// [`Waiting`].
    Watch(bool),
}

impl Back<'_> {
    /// The answer of a limiter whose permits all return by time: it refunds by `refund`, and does
    /// nothing else.
    ///
    /// ```
    /// # use portcullis_core::limiter::{Back, Waiting};
    /// let answer = Back::Release { permits: 1 }.by_time(|_, _, receipt| receipt.refunded(0));
    /// assert_eq!(answer.waiting, Waiting::No);
    /// ```
    #[inline(always)]
    pub fn by_time(self, refund: impl FnOnce(Timestamp, u32, Receipt) -> Refund) -> Returned {
        match self {
            Self::Refund {
                now,
                permits,
                receipt,
                ..
            } => refund(now, permits, receipt).into(),
            _ => Waiting::No.into(),
        }
    }
}

/// The answer to [`Back`].
///
/// A limiter makes it from a [`Refund`], from a [`Waiting`], or from [`Returned::NOTHING`].
///
/// ```
/// use portcullis_core::limiter::{Receipt, Returned, Waiting};
///
/// assert_eq!(Returned::from(Receipt::NONE.refunded(3)).refund.permits, 3);
/// assert_eq!(Returned::from(Waiting::No).waiting, Waiting::No);
/// ```
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Returned {
    /// What was refunded.
    pub refund: Refund,
    /// Whether a request waits for the permits.
    pub waiting: Waiting,
}

impl Returned {
    /// Nothing was refunded, and it is not known whether a request waits.
    pub const NOTHING: Self = Self {
        refund: Receipt::NONE.refunded(0),
        waiting: Waiting::Unknown,
    };
}

impl From<Refund> for Returned {
    #[inline(always)]
    fn from(refund: Refund) -> Self {
        Self {
            refund,
            ..Self::NOTHING
        }
    }
}

impl From<Waiting> for Returned {
    #[inline(always)]
    fn from(waiting: Waiting) -> Self {
        Self {
            waiting,
            ..Self::NOTHING
        }
    }
}

/// Whether a request waits for permits that were released.
///
/// A limiter answers [`Yes`](Self::Yes) or [`No`](Self::No) only if it knows:
///
/// - Consider a release between `Back::Watch(true)` and `Back::Watch(false)`, and a take that
///   starts after `Back::Watch(true)`. If the take does not observe the release, the release must
///   answer `Yes`.
/// - A limiter whose permits return by time alone answers `No`: a release makes none available.
///
/// ```
/// # use portcullis_core::{Concurrency, Limiter, Timestamp};
/// # use portcullis_core::limiter::{Back, Waiting};
/// let limit = Concurrency::new(1);
/// limit.take_at(Timestamp::ZERO, 1)?;
/// limit.give_back(Back::Watch(true));
/// assert_eq!(limit.give_back(Back::Release { permits: 1 }).waiting, Waiting::Yes);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a limiter knows it or does not")]
pub enum Waiting {
    /// A request is waiting.
    Yes,
    /// No request is waiting, or no permits became free.
    No,
    /// The limiter does not know: the queue checks its wait lists.
    Unknown,
}

impl Waiting {
    /// The answer of a limiter that knows whether a request waits.
    #[inline(always)]
    pub(crate) const fn known(waits: bool) -> Self {
        if waits { Self::Yes } else { Self::No }
    }
}
