//! A limiter whose state word lies in a file that processes share.

use core::fmt::{self, Debug};

use portcullis_core::{
    Attached, Clock, Composable, Denied, Detach, Detail, FixedWindow, Idle, Interval, Lease,
    Limiter, LimiterId, MonotonicClock, NativeWord, Plan, QueueLimiter, Receipt, Refund,
    Replenishing, Retry, Timestamp, TokenBucket, Waiting,
};

use crate::error::OpenError;
use crate::header::Kind;
use crate::mapping::MappedWord;
use crate::shared_file::{Contents, SharedFile};

/// A limiter that processes can share: [`TokenBucket`] and [`FixedWindow`]. Sealed.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::FixedWindow;
/// use portcullis_shm::SharedFile;
///
/// let file = SharedFile::named("doc-shareable")?;
/// let window = file.limiter(FixedWindow::new(5, Duration::from_secs(1)))?;
/// assert_eq!(window.rules().limit(), 5);
/// # drop(window);
/// file.remove()?;
/// # Ok::<(), portcullis_shm::OpenError>(())
/// ```
pub trait Shareable: Detach<Word = NativeWord, Rules: Debug> + sealed::Described {}

pub(crate) mod sealed {
    /// Settings as text, for people.
    pub trait Described {
        fn described(&self) -> String;
    }
}

impl Shareable for TokenBucket {}

impl sealed::Described for TokenBucket {
    fn described(&self) -> String {
        let (permits, period) = (self.rate().permits(), self.rate().period());
        format!(
            "token bucket, {permits} permits per {period:?}, burst {}, debt {}, tick {:?}, \
             staleness {:?}",
            self.burst(),
            self.debt(),
            self.tick(),
            self.staleness()
        )
    }
}

impl Shareable for FixedWindow {}

impl sealed::Described for FixedWindow {
    fn described(&self) -> String {
        let start = if self.is_started_by_first_request() {
            "started by the first request"
        } else {
            "on a grid"
        };
        format!(
            "fixed window, limit {}, window {:?} {start}, tick {:?}, staleness {:?}",
            self.limit(),
            self.window(),
            self.tick(),
            self.staleness()
        )
    }
}

impl SharedFile {
    /// Opens the limiter in the file, or creates the file with this limiter.
    ///
    /// The process that creates the file sets the state to that of `limiter`. In all others the
    /// state of `limiter` does not count.
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherSettings`] if the file has other settings, also of another kind. See
    /// [`OpenError`] for the others.
    ///
    /// # Cost
    ///
    /// About ten system calls. The file takes 8 KiB.
    ///
    /// ```
    /// use portcullis_core::{Rate, TokenBucket};
    /// use portcullis_shm::SharedFile;
    ///
    /// let file = SharedFile::named("doc-limiter")?;
    /// // In each process.
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert!(bucket.try_acquire(20).is_ok());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), portcullis_shm::OpenError>(())
    /// ```
    pub fn limiter<L: Shareable>(&self, limiter: L) -> Result<SharedLimiter<L>, OpenError> {
        let settings = limiter.described();
        let (rules, word) = limiter.detach();
        let contents = Contents {
            kind: Kind::Limiter,
            settings,
            exact: format!("{rules:?}"),
            first: vec![word.get()],
            // A page: the word has a line of its own.
            bytes: 4096,
        };
        let (mapping, _) = self.open(&contents)?;
        Ok(SharedLimiter {
            attached: Attached::new(rules, MappedWord::new(mapping)),
        })
    }
}

/// A limiter whose state word lies in a file: one limiter for all processes that open it.
///
/// Created by [`SharedFile::limiter`]. It is a [`Limiter`]: a part of an
/// [`AllOf`](portcullis_core::AllOf), inside a wrapper, or in a queue.
///
/// **Bound.** That of `L`, for all processes together. [`try_acquire`](Self::try_acquire) reads
/// the clock. A caller that passes a time must take it from a [`MonotonicClock`] or a
/// [`CoarseClock`](portcullis_core::CoarseClock), in all processes.
///
/// **A process that dies** changes nothing: permits that it took return by time, as all others.
///
/// **A hostile process** that writes the file may change the state. Other processes may then grant
/// less, or more: up to what an unused limiter grants, at each change.
///
/// **A file that is truncated** while it is used: the limiter is lost for this process, and denies
/// all requests with [`Denied::Closed`] from then on: see [`is_lost`](Self::is_lost).
///
/// **Cost.** That of `L`, and one load of a flag that is written only if the file is truncated. No
/// system call, and nothing that a process that dies could leave locked.
///
/// ```
/// use portcullis_core::{Denied, Rate, TokenBucket};
/// use portcullis_shm::SharedFile;
///
/// let file = SharedFile::named("doc-shared-limiter")?;
/// let open = || file.limiter(TokenBucket::new(Rate::per_minute(1), 3));
/// // As two processes would.
/// let (one, other) = (open()?, open()?);
/// assert!(one.try_acquire(3).is_ok());
/// assert!(matches!(other.try_acquire(1), Err(Denied::Exhausted { .. })));
/// # drop((one, other));
/// # file.remove()?;
/// # Ok::<(), portcullis_shm::OpenError>(())
/// ```
pub struct SharedLimiter<L: Shareable> {
    attached: Attached<L::Rules, MappedWord>,
}

impl<L: Shareable> SharedLimiter<L> {
    /// Takes `n` permits now. With `n = 0` it takes nothing, and is granted or denied as a request
    /// for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return by time alone.
    ///
    /// # Errors
    ///
    /// As `L`, and [`Denied::Closed`] if the file was [lost](Self::is_lost).
    ///
    /// # Cost
    ///
    /// A reading of a [`MonotonicClock`], and that of [`try_acquire_at`](Self::try_acquire_at).
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-try-acquire")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert!(bucket.try_acquire(20).is_ok());
    /// assert!(bucket.try_acquire(20).is_err());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<Lease<&Self>, Denied> {
        self.try_acquire_at(MonotonicClock::new().now(), n)
    }

    /// Takes `n` permits at `now`, which must be from a [`MonotonicClock`] or a
    /// [`CoarseClock`](portcullis_core::CoarseClock).
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Cost
    ///
    /// As that of `L`, and one load.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-try-acquire-at")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// let now = MonotonicClock::new().now();
    /// assert!(bucket.try_acquire_at(now, 20).is_ok());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the settings.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-rules")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert_eq!(bucket.rules().burst(), 20);
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn rules(&self) -> &L::Rules {
        self.attached.rules()
    }

    /// Returns whether this process has found the file truncated. The limiter denies all requests
    /// then. Open it again: the damaged file is refused, until it is removed.
    ///
    /// Requests that were under way in this process at that moment may have been granted as by an
    /// unused limiter.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-is-lost")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert!(!bucket.is_lost());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.attached.place().mapping().is_lost()
    }

    /// The outcome of a decision, or a denial if it was made on pages that are not the file's.
    #[inline(always)]
    fn if_shared<T>(&self, n: u32, outcome: Result<T, Denied>) -> Result<T, Denied> {
        if self.is_lost() {
            return Err(Denied::Closed { permits: n });
        }
        outcome
    }
}

impl<L: Shareable> Debug for SharedLimiter<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimiter")
            .field("rules", self.rules())
            .finish_non_exhaustive()
    }
}

impl<L: Shareable> Limiter for SharedLimiter<L> {
    #[inline]
    fn id(&self) -> Option<LimiterId> {
        self.attached.id()
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.if_shared(n, self.attached.take_at(now, n))
    }

    fn take_explained_at(&self, now: Timestamp, n: u32) -> (Result<Receipt, Denied>, Detail) {
        let (taken, mut detail) = self.attached.take_explained_at(now, n);
        let taken = self.if_shared(n, taken);
        detail.decision = taken.as_ref().map(|_| ()).map_err(|&denied| denied);
        (taken, detail)
    }

    fn explain_at(&self, now: Timestamp, n: u32) -> Detail {
        let mut detail = self.attached.explain_at(now, n);
        detail.decision = self.if_shared(n, detail.decision);
        detail
    }

    #[inline]
    fn take_within(&self, interval: Interval, n: u32) -> Option<Result<Receipt, Denied>> {
        let taken = self.attached.take_within(interval, n)?;
        Some(self.if_shared(n, taken))
    }

    #[inline]
    fn peek_within(&self, interval: Interval, n: u32) -> Option<Result<(), Denied>> {
        let peeked = self.attached.peek_within(interval, n)?;
        Some(self.if_shared(n, peeked))
    }

    #[inline]
    fn decides_within(&self) -> bool {
        true
    }

    #[inline]
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.if_shared(n, self.attached.peek_at(now, n))
    }

    #[inline]
    fn as_composable(&self) -> Option<&dyn Composable> {
        Some(self)
    }

    #[inline]
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.attached.refund_at(now, n, receipt)
    }

    #[inline]
    fn release(&self, n: u32) {
        self.attached.release(n);
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        let available = self.attached.available_at(now);
        if self.is_lost() { 0 } else { available }
    }

    fn capacity(&self) -> u64 {
        self.attached.capacity()
    }

    fn idle_at(&self, now: Timestamp) -> Idle {
        self.attached.idle_at(now)
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Closed { .. } => Retry::Never,
            _ => self.attached.retry(denied),
        }
    }
}

impl<L: Shareable> Composable for SharedLimiter<L> {
    #[inline]
    fn plan_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.if_shared(n, self.attached.plan_at(now, n))
    }

    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        self.if_shared(n, self.attached.take_as_planned_at(now, n, plan))
    }

    #[inline]
    fn plan_within(&self, interval: Interval, n: u32) -> Option<Result<Plan, Denied>> {
        let planned = self.attached.plan_within(interval, n)?;
        Some(self.if_shared(n, planned))
    }

    #[inline]
    fn take_as_planned_within(
        &self,
        interval: Interval,
        n: u32,
        plan: Plan,
    ) -> Option<Result<Receipt, Denied>> {
        let taken = self.attached.take_as_planned_within(interval, n, plan)?;
        Some(self.if_shared(n, taken))
    }
}

impl<L: Shareable> Replenishing for SharedLimiter<L> {}

impl<L: Shareable> QueueLimiter for SharedLimiter<L> {
    /// Other processes take from it, besides the queue.
    const SHARED: bool = true;

    #[inline]
    fn release_watched(&self, _: u32) -> Waiting {
        Waiting::No
    }
}
