//! A token bucket for many cores, in a file that processes share. [`stripes`](crate::stripes)
//! describes the state.

use core::cell::Cell;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use portcullis_core::keyed::TokenBucketRules;
use portcullis_core::limiter::{Answer, Ask, Back, Hints, LimiterId, Read, Reading, Returned};
use portcullis_core::queue::Replenishing;
use portcullis_core::state::{Attached, Detach};
use portcullis_core::{
    Clock, Denied, Lease, Limiter, LimiterExt, MonotonicClock, Rate, Retry, Timestamp, TokenBucket,
};

use crate::error::OpenError;
use crate::header::FileKind;
use crate::mapping::{MappedRest, STRIPES};
use crate::shared_file::{Contents, SharedFile};
use crate::stripes::{self, Striped};

impl SharedFile {
    /// Opens the striped token bucket in the file, or creates the file with a full one: it gains
    /// permits at `rate` and holds at most `burst` permits (at least 1).
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherSettings`] if the file has other settings, also of another kind.
    /// [`OpenError::Settings`] if the settings do not fit a [`TokenBucket`]. See [`OpenError`] for
    /// the others.
    ///
    /// # Cost
    ///
    /// The file takes 8 KiB.
    ///
    /// ```
    /// use portcullis_core::Rate;
    /// use portcullis_shm::SharedFile;
    ///
    /// let file = SharedFile::named("doc-striped")?;
    /// // In each process.
    /// let bucket = file.striped(Rate::per_second(1_000_000), 100_000)?;
    /// assert!(bucket.try_acquire(1).is_ok());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), portcullis_shm::OpenError>(())
    /// ```
    pub fn striped(&self, rate: Rate, burst: u64) -> Result<SharedStripes, OpenError> {
        let room = if rate.is_unlimited() {
            0
        } else {
            stripes::room(burst, STRIPES)
        };
        let rest = TokenBucket::builder(rate, burst - room * STRIPES as u64).build()?;
        let (rules, word) = rest.detach();
        let (permits, period) = (rate.permits(), rate.period());
        let settings = format!(
            "striped token bucket, {permits} permits per {period:?}, burst {burst}, {STRIPES} \
             stripes of {room} permits"
        );
        let contents = Contents {
            kind: FileKind::Stripes,
            identity: format!("{settings} {rules:?}"),
            settings,
            first: vec![word.get()],
            bytes: MappedRest::BYTES,
        };
        let (mapping, _) = self.open(&contents)?;
        Ok(SharedStripes {
            rest: Attached::new(rules, MappedRest::new(mapping)),
            room,
            burst,
        })
    }
}

/// A token bucket for many cores in a file: one limit for all processes that open it, whose permits
/// lie in a rest and in 8 stripes, each on a cache line of its own.
///
/// Created by [`SharedFile::striped`]. A thread uses the same stripe for all its calls. While many
/// permits are available, a take writes only the line of its stripe: threads and processes that use
/// different stripes do not slow each other down. While few are available, it decides as a
/// [`SharedLimiter`](crate::SharedLimiter) of a token bucket.
///
/// **Bound.** Any span of time `t` admits at most `burst + rate * t` permits, by all processes
/// together. A stripe holds up to 4,096 permits, and all of them together at most a 128th of the
/// burst. A bucket with a burst of less than 8,192 permits has no stripes.
///
/// **Denials.** A request for one permit is denied only if neither the rest nor a stripe has one. A
/// request for more is granted by the rest or by one stripe: it may be denied while stripes hold
/// parts of what it needs. An empty stripe gains nothing by time, so after a pause a 128th of the
/// burst may be missing.
///
/// **A process that dies** changes nothing: what it had drawn from the rest, up to 4,096 permits,
/// counts as taken, and returns by the rate.
///
/// **Settings** do not change: [`changing`](SharedFile::changing) has no effect.
///
/// **A file that is truncated** while it is used: the bucket is lost for this process, and denies
/// all requests with [`Denied::Closed`] from then on.
///
/// **Cost.** A grant from a stripe is a load, a compare-exchange, and a load of a flag. A stripe
/// that is empty draws, which exchanges two words. A denial reads all stripes. Lock-free.
///
/// ```
/// use portcullis_core::Rate;
/// use portcullis_shm::SharedFile;
///
/// let file = SharedFile::named("doc-shared-stripes")?;
/// let open = || file.striped(Rate::ZERO, 10_000);
/// // As two processes would.
/// let (one, other) = (open()?, open()?);
/// let granted = (0..20_000).filter(|nth| {
///     let bucket = if nth % 2 == 0 { &one } else { &other };
///     bucket.try_acquire(1).is_ok()
/// });
/// assert!(granted.count() <= 10_000);
/// # drop((one, other));
/// # file.remove()?;
/// # Ok::<(), portcullis_shm::OpenError>(())
/// ```
pub struct SharedStripes {
    rest: Attached<TokenBucketRules<u64>, MappedRest>,
    room: u64,
    burst: u64,
}

impl SharedStripes {
    /// Takes `n` permits now. With `n = 0` it takes nothing, and is granted or denied as a request
    /// for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return by time alone.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], [`Denied::ExceedsCapacity`] if `n` is more than the rest can hold,
    /// and [`Denied::Closed`] if the file was truncated.
    ///
    /// # Cost
    ///
    /// A reading of a [`MonotonicClock`], and that of [`try_acquire_at`](Self::try_acquire_at).
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-stripes-take")?;
    /// let bucket = file.striped(Rate::per_second(100), 20)?;
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
    /// See the type's documentation.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock, Rate};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-stripes-take-at")?;
    /// let bucket = file.striped(Rate::per_second(100), 20)?;
    /// assert!(bucket.try_acquire_at(MonotonicClock::new().now(), 20).is_ok());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the permits that each stripe has room for; 0 if the burst is too small for stripes.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-stripes-room")?;
    /// assert_eq!(file.striped(Rate::ZERO, 100_000)?.room(), 64);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Returns whether this process has found the file truncated. All requests are denied then.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-stripes-lost")?;
    /// assert!(!file.striped(Rate::ZERO, 20)?.is_lost());
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.rest.place().is_lost()
    }

    #[inline(always)]
    fn striped(&self) -> Striped<'_, Attached<TokenBucketRules<u64>, MappedRest>> {
        Striped {
            rest: &self.rest,
            stripes: self.rest.place().stripes(),
            room: self.room,
        }
    }

    #[inline(always)]
    fn if_shared<T>(&self, n: u32, outcome: Result<T, Denied>) -> Result<T, Denied> {
        if self.is_lost() {
            return Err(Denied::Closed { permits: n });
        }
        outcome
    }
}

/// The stripe of this thread. Threads are numbered in the order of their first calls, from a number
/// that is another one in each process.
#[inline(always)]
fn of_this_thread() -> usize {
    std::thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.get();
    if number < STRIPES {
        return number;
    }
    let first = std::process::id() as usize;
    let number = first.wrapping_add(NEXT.fetch_add(1, Relaxed)) % STRIPES;
    NUMBER.set(number);
    number
}

impl SharedStripes {
    fn look(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        let looked = self.rest.peek_at(now, n).or_else(|denied| {
            if u64::from(n.max(1)) <= self.striped().most() {
                return Ok(());
            }
            Err(denied)
        });
        self.if_shared(n, looked)
    }

    /// The permits of the rest, of which `rest` are available, and of all stripes.
    fn available(&self, rest: u64) -> u64 {
        let all = rest + self.striped().have();
        if self.is_lost() { 0 } else { all }
    }
}

impl Limiter for SharedStripes {
    #[inline]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if !ask.is_look() {
            let taken = self.striped().take(of_this_thread(), now, n);
            return self.if_shared(n, taken).into();
        }
        let looked = self.look(now, n);
        if let Some(seen) = ask.detail() {
            let mut detail = self.rest.explain_at(now, n);
            detail.available = self.available(detail.available);
            detail.capacity = self.burst;
            detail.decision = looked;
            // Not that of the rest, which may deny what a stripe grants.
            detail.retry = looked.map_or_else(|denied| self.retry(denied), |()| Retry::At(now));
            seen.set(Some(detail));
        }
        looked.into()
    }

    /// Refunds to a stripe all permits, if no call has used it since, and otherwise none; to the
    /// rest, as a [`TokenBucket`] does.
    fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|now, n, receipt| self.striped().refund(now, n, receipt))
    }

    /// The capacity is the most permits of one request: those of the rest.
    fn read(&self, read: Read<'_>) -> Reading {
        let rest = self.rest.read(read);
        Reading {
            available: self.available(rest.available),
            ..rest
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Closed { .. } => Retry::Never,
            _ => self.rest.retry(denied),
        }
    }

    #[inline]
    fn id(&self) -> Option<LimiterId> {
        self.rest.id()
    }

    #[inline]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

impl Replenishing for SharedStripes {}

impl fmt::Debug for SharedStripes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStripes")
            .field("burst", &self.burst)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}
