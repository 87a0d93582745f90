//! Counters of requests and permits. No decision reads them, and each is exact by itself, so every
//! access is `Relaxed`.
//!
//! ```text
//! line 1   granted                      requests, permits     a grant adds to both
//! line 2   denied, refused, cancelled   requests, permits     a request that is not granted does
//! line 3   held                                               a grant adds, a release subtracts
//! ```
//!
//! Invariants: a request is counted once, in one of the four groups, when its outcome is final. The
//! permits of a grant are added to `held` after they were taken, and subtracted before they are
//! released. So `held` is never more than the permits in use.

use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;

use crate::limiter::not_granted::NotGranted;
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, NativeWord};

/// Counters of the requests and permits of one or several limiters, for [`Counted`].
///
/// Many limiters can share a tally: give each of them a reference or an `Arc` of it.
///
/// **Cost.** Three cache lines, about 400 bytes on x86-64. See [`Counted`] for the cost of a
/// decision.
///
/// ```
/// use portcullis_core::{Counted, Rate, Timestamp, TokenBucket};
/// use portcullis_core::counts::Tally;
///
/// static CLIENTS: Tally = Tally::new();
///
/// // Each connection has a bucket of its own; the counts are those of all connections.
/// let bucket = || {
///     let bucket = TokenBucket::new(Rate::per_second(10), 3);
///     Counted::with_tally(bucket, &CLIENTS)
/// };
/// let (one, other) = (bucket(), bucket());
/// let now = Timestamp::ZERO;
/// let leases = (one.try_acquire_at(now, 2), other.try_acquire_at(now, 3));
/// assert!(one.try_acquire_at(now, 2).is_err());
///
/// let counts = CLIENTS.counts();
/// assert_eq!((counts.granted.requests, counts.granted.permits), (2, 5));
/// assert_eq!((counts.denied.requests, counts.denied.permits), (1, 2));
/// # drop(leases);
/// ```
///
/// [`Counted`]: crate::Counted
#[derive(Debug)]
pub struct Tally {
    granted: CachePadded<Sum>,
    not_granted: CachePadded<[Sum; 3]>,
    held: CachePadded<AtomicWord<NativeWord>>,
}

/// The counts of a [`Tally`].
///
/// Each request is counted once, when its outcome is final: as granted, denied, refused or
/// cancelled. [`NotGranted`] says which reasons count as denied, and which as refused. Its permits
/// are the number that was granted, or the number that was requested and not granted (the minimum,
/// if the request left the number open). A probe, a request for 0 permits, counts as a request.
///
/// ```
/// # use portcullis_core::{Counted, Unlimited};
/// # use portcullis_core::counts::Counts;
/// assert_eq!(Counted::new(Unlimited).counts(), Counts::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Counts {
    /// What was granted: immediately, or after a wait in a queue.
    pub granted: Total,
    /// What was not granted because there were too few permits: see [`NotGranted::Denied`].
    pub denied: Total,
    /// What was not granted for any other reason: see [`NotGranted::Refused`].
    pub refused: Total,
    /// What was cancelled while it waited in a queue.
    pub cancelled: Total,
    /// The permits in leases that have not been dropped yet, including those of a limiter whose
    /// permits return by time.
    pub held: u64,
}

impl Counts {
    /// Returns the sum of all requests whose outcome is final, and of their permits.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Timestamp};
    /// let limit = Counted::new(Concurrency::new(2));
    /// for n in [1, 2, 3] {
    ///     drop(limit.try_acquire_at(Timestamp::ZERO, n));
    /// }
    /// let all = limit.counts().all();
    /// assert_eq!((all.requests, all.permits), (3, 6));
    /// ```
    #[must_use]
    pub const fn all(&self) -> Total {
        let [a, b, c, d] = [self.granted, self.denied, self.refused, self.cancelled];
        a.plus(b).plus(c).plus(d)
    }
}

/// A number of requests, and of the permits that they asked for.
///
/// Both wrap in the target's [`NativeWord`]: 64 bits, or 32 where there are no 64-bit atomics.
///
/// ```
/// # use portcullis_core::{Concurrency, Counted, Timestamp};
/// let limit = Counted::new(Concurrency::new(7));
/// let lease = limit.try_acquire_at(Timestamp::ZERO, 5)?;
/// let granted = limit.counts().granted;
/// assert_eq!((granted.requests, granted.permits), (1, 5));
/// # drop(lease);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Total {
    /// The number of requests.
    pub requests: u64,
    /// The number of their permits.
    pub permits: u64,
}

impl Total {
    const fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.wrapping_add(other.requests),
            permits: self.permits.wrapping_add(other.permits),
        }
    }
}

impl Tally {
    const_unless_loom! {
        /// Creates a tally in which all counts are 0.
        ///
        /// ```
        /// # use portcullis_core::counts::{Counts, Tally};
        /// static ALL: Tally = Tally::new();
        /// assert_eq!(ALL.counts(), Counts::default());
        /// ```
        #[must_use]
        pub const fn new() -> Self {
            Self {
                granted: CachePadded::new(Sum::new()),
                not_granted: CachePadded::new([Sum::new(), Sum::new(), Sum::new()]),
                held: CachePadded::new(AtomicWord::new(0)),
            }
        }
    }

    /// Returns the current counts.
    ///
    /// Each count is exact, but together they are no snapshot: other calls may write between the
    /// reads.
    ///
    /// # Cost
    ///
    /// Nine loads.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Timestamp};
    /// # use portcullis_core::counts::Tally;
    /// let tally = Tally::new();
    /// let limit = Counted::with_tally(Concurrency::new(2), &tally);
    /// let _denied = limit.try_acquire_at(Timestamp::ZERO, 3);
    /// assert_eq!(tally.counts().refused.requests, 1);
    /// ```
    #[must_use]
    pub fn counts(&self) -> Counts {
        let [denied, refused, cancelled] = &*self.not_granted;
        Counts {
            granted: self.granted.total(),
            denied: denied.total(),
            refused: refused.total(),
            cancelled: cancelled.total(),
            held: self.held.load(Relaxed),
        }
    }

    /// Counts a grant, and its permits as held.
    #[inline]
    pub(crate) fn granted(&self, n: u32) {
        self.granted.add(n);
        self.held.fetch_add(n.into(), Relaxed);
    }

    /// Counts a grant of permits that are counted as held already.
    #[inline]
    pub(crate) fn passed_on(&self, n: u32) {
        self.granted.add(n);
    }

    #[inline]
    pub(crate) fn not_granted(&self, n: u32, why: NotGranted) {
        let [denied, refused, _] = &*self.not_granted;
        let sum = match why {
            NotGranted::Denied => denied,
            NotGranted::Refused => refused,
        };
        sum.add(n);
    }

    pub(crate) fn cancelled(&self, n: u32) {
        let [.., cancelled] = &*self.not_granted;
        cancelled.add(n);
    }

    /// Counts permits as no longer held. Called before they are released.
    #[inline]
    pub(crate) fn returned(&self, n: u32) {
        self.held.fetch_sub(n.into(), Relaxed);
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

/// Two counters that a request adds to.
#[derive(Debug)]
struct Sum {
    requests: AtomicWord<NativeWord>,
    permits: AtomicWord<NativeWord>,
}

impl Sum {
    const_unless_loom! {
        const fn new() -> Self {
            Self { requests: AtomicWord::new(0), permits: AtomicWord::new(0) }
        }
    }

    #[inline]
    fn add(&self, n: u32) {
        self.requests.fetch_add(1, Relaxed);
        self.permits.fetch_add(n.into(), Relaxed);
    }

    fn total(&self) -> Total {
        Total {
            requests: self.requests.load(Relaxed),
            permits: self.permits.load(Relaxed),
        }
    }
}
