pub(crate) mod composable;
pub(crate) mod denied;
pub(crate) mod detail;
pub mod metadata;
pub(crate) mod queue_limiter;
pub(crate) mod receipt;

pub use self::composable::Composable;
pub use self::queue_limiter::{PassedOn, QueueLimiter, Replenishing, Waiting};

use core::ops::Deref;

use self::composable::take_or_undo;
use crate::limiter::metadata::{Metadata, Used};
use crate::{Denied, Detail, Lease, Receipt, Refund, Retry, Timestamp};

/// What every limiter answers, and what a limiter of your own implements.
///
/// The trait can be made into an object (`&dyn Limiter`). Callers take permits with
/// [`LimiterExt::try_acquire_at`], which wraps [`take_at`](Self::take_at) in a [`Lease`].
///
/// # Implementing
///
/// `take_at`, `available_at` and `retry` are enough. A limiter that wraps another forwards all
/// methods to it. One that gets permits back (that is, not by the passing of time alone) implements
/// `release`. One whose permits come back by time, but that can take a grant back while nobody has
/// built on it, implements `refund_at`. The laws that Portcullis' own limiters keep, and that code
/// which takes any limiter relies on:
///
/// - it never admits more than it promises, whatever races; an older `now` is told no more than a
///   newer one was;
/// - a denial leaves the limiter as it was;
/// - `n = 0` takes nothing, and is answered as a request for 1 would be;
/// - nothing panics, blocks or allocates.
///
/// ```
/// use core::sync::atomic::{AtomicBool, Ordering};
/// use core::time::Duration;
/// use portcullis_core::{Denied, Limiter, LimiterExt, Receipt, Retry, Timestamp};
///
/// /// Lets everything through until a switch is thrown.
/// struct Gate(AtomicBool);
///
/// impl Limiter for Gate {
///     fn take_at(&self, now: Timestamp, permits: u32) -> Result<Receipt, Denied> {
///         match self.0.load(Ordering::Relaxed) {
///             true => Ok(Receipt::NONE),
///             false => Err(Denied::Refused { now, permits }),
///         }
///     }
///     fn available_at(&self, _: Timestamp) -> u64 {
///         if self.0.load(Ordering::Relaxed) {
///             u64::MAX
///         } else {
///             0
///         }
///     }
///     fn retry(&self, _: Denied) -> Retry {
///         Retry::After(Duration::from_secs(1))
///     }
/// }
///
/// let gate = Gate(AtomicBool::new(true));
/// assert!(gate.try_acquire_at(Timestamp::ZERO, 1).is_ok());
/// gate.0.store(false, Ordering::Relaxed);
/// let denied = gate.try_acquire_at(Timestamp::ZERO, 1).unwrap_err();
/// assert_eq!(denied.retry(&gate), Retry::After(Duration::from_secs(1)));
/// ```
pub trait Limiter {
    /// Takes `n` permits at `now`, or says why not; with `n = 0`, whether 1 would be granted.
    ///
    /// Whoever calls this gives the permits back with [`release`](Self::release), in time;
    /// [`LimiterExt::try_acquire_at`] does both.
    ///
    /// # Errors
    ///
    /// [`Denied`], and then nothing has changed.
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied>;

    /// What [`take_at`](Self::take_at) would say, without any effect: not even where a denial has
    /// one, as in a [`Penalty`](crate::Penalty).
    ///
    /// By default judged by [`available_at`](Self::available_at) and [`capacity`](Self::capacity).
    ///
    /// # Errors
    ///
    /// [`Denied`], if the request would be denied.
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        match u64::from(n.max(1)) {
            wanted if wanted <= self.available_at(now) => Ok(()),
            wanted if wanted <= self.capacity() => Err(Denied::Exhausted { now, permits: n }),
            // The capacity is less than `n`, or it is 0.
            _ => Err(Denied::ExceedsCapacity {
                permits: n,
                capacity: self.capacity() as u32,
            }),
        }
    }

    /// Takes a grant back, as far as no bound could be passed by it: gives `n` of the permits back
    /// that `receipt` is for.
    ///
    /// `now` is when they are given back. What is [returned](Refund) says how many of them count as
    /// never taken (the others come back as they would have done anyway), and has a receipt for the
    /// permits that are left of the grant. To give back more than a receipt is for is an error of
    /// the caller's, which lets as much too much through; so is a refund after the limiter's
    /// horizon, less the time in which all permits come back. A [`Lease`] sees to the first.
    ///
    /// By default it [releases](Self::release) them, and none counts as never taken: how many that
    /// has made room for is not known.
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let _ = now;
        self.release(n);
        Refund {
            permits: 0,
            rest: receipt,
        }
    }

    /// Gives `n` permits back that were taken from this limiter and have not been given back yet.
    ///
    /// A [`Lease`] and a [`LeasePool`](crate::LeasePool) call this, and never for more than they
    /// hold. To give back what was not taken is an error of the caller's, which lets as much too
    /// much through; with debug assertions it panics.
    ///
    /// A self-replenishing limiter, which gets its permits back by time, has nothing to do: that is
    /// the default.
    fn release(&self, n: u32) {
        let _ = n;
    }

    /// The permits that could be taken at `now`.
    fn available_at(&self, now: Timestamp) -> u64;

    /// The most permits that could ever be available at once. By default, any number.
    fn capacity(&self) -> u64 {
        u64::MAX
    }

    /// Which limiter this is, so that one that is named twice can be asked for all at once. By
    /// default unknown, and then it is asked twice.
    ///
    /// A limiter with a state of its own, also around another limiter, returns [`LimiterId::of`]
    /// itself. A wrapper without one leaves this as it is: it cannot be told from what it wraps.
    fn id(&self) -> Option<LimiterId> {
        None
    }

    /// What a composition can use beyond the methods above: see [`Composable`]. By default nothing,
    /// and then it asks and takes by these.
    ///
    /// A limiter that is [`Composable`] returns itself. A handle to a limiter, which only forwards,
    /// forwards this, too.
    #[inline]
    fn as_composable(&self) -> Option<&dyn Composable> {
        None
    }

    /// Whether the limiter is as good as new at `now`. By default unknown, which counts as in use.
    fn idle_at(&self, now: Timestamp) -> Idle {
        let _ = now;
        Idle::InUse
    }

    /// When the request that was denied as `denied` should come back, judged by the limiter's state
    /// now.
    ///
    /// Exact while nobody else takes permits: a try at [`Retry::At`] succeeds, a try 1 ns earlier
    /// fails.
    ///
    /// Whoever waits behind others asks with [`Denied::Exhausted`] for the sum of what they want
    /// and their own request. That may be more than the [capacity](Self::capacity): then the answer
    /// is the earliest instant at which so many permits will have come in, if they are taken as
    /// soon as they come, by requests none of which is for more than the capacity. Exact if each is
    /// for 1 permit; one for more may be granted later, never earlier. [`Retry::Never`] where
    /// nothing comes in, or it lies beyond [`Timestamp::MAX`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Denied, FixedWindow, Limiter, Retry, Timestamp};
    /// let limit = FixedWindow::new(2, Duration::from_secs(20));
    /// let now = Timestamp::ZERO;
    /// limit.try_acquire_at(now, 2)?;
    /// let retry = |permits| limit.retry(Denied::Exhausted { now, permits });
    /// assert_eq!(retry(2), Retry::At(Timestamp::from_secs(20)));
    /// assert_eq!(
    ///     retry(3),
    ///     Retry::At(Timestamp::from_secs(40)),
    ///     "behind two others"
    /// );
    /// # Ok::<(), Denied>(())
    /// ```
    fn retry(&self, denied: Denied) -> Retry;

    /// Offers what is known about a request that was granted at `now` (`denied` is `None`), or
    /// refused.
    ///
    /// A limiter offers what it has by name, and then lets the limiters that it wraps offer theirs:
    /// the first offer of a name wins. By default: [`RETRY_AFTER`](metadata::RETRY_AFTER) and
    /// [`REASON_PHRASE`](metadata::REASON_PHRASE) for a denial, and
    /// [`USED_SHARE`](metadata::USED_SHARE).
    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        offer(self, now, denied, offers);
    }
}

/// Offers what every limiter can say.
pub(crate) fn offer<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    denied: Option<Denied>,
    offers: &mut Metadata<'_>,
) {
    if let Some(denied) = denied {
        offers.offer(metadata::RETRY_AFTER, || limiter.retry(denied));
        offers.offer(metadata::REASON_PHRASE, || denied.reason());
    }
    offers.offer(metadata::USED_SHARE, || Used::of(limiter, now));
}

/// Taking permits as a [`Lease`], from any limiter. In scope with `use
/// portcullis_core::LimiterExt`.
///
/// ```
/// # use portcullis_core::{Concurrency, LimiterExt, Timestamp};
/// let lease = Concurrency::new(1)
///     .try_acquire_at(Timestamp::ZERO, 1)
///     .map(|lease| lease.permits());
/// assert_eq!(lease, Ok(1));
/// ```
pub trait LimiterExt: Limiter {
    /// Takes `n` permits at `now`, and gives them back when the lease is dropped, where they come
    /// back at all.
    ///
    /// With `n = 0` it takes nothing, and is answered as a request for 1 would be.
    ///
    /// # Errors
    ///
    /// [`Denied`], and then nothing has changed.
    ///
    /// ```
    /// use portcullis_core::{
    ///     Concurrency, Limiter, LimiterExt, Rate, Timestamp, TokenBucket,
    /// };
    ///
    /// let limiters: [&dyn Limiter; 2] = [
    ///     &Concurrency::new(1),
    ///     &TokenBucket::new(Rate::per_second(1), 1),
    /// ];
    /// for limiter in limiters {
    ///     let lease = limiter.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    ///     assert_eq!(lease.permits(), 1);
    ///     assert_eq!(limiter.available_at(Timestamp::ZERO), 0);
    /// }
    /// assert_eq!(limiters[0].available_at(Timestamp::ZERO), 1, "released");
    /// assert_eq!(
    ///     limiters[1].available_at(Timestamp::ZERO),
    ///     0,
    ///     "comes back by time"
    /// );
    /// ```
    #[inline]
    fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Takes as many permits as are available at `now`, at least `min` and at most `max`: a grant
    /// in part. Where `max` is less than `min`, it counts as `min`; with `min = 0`, nothing
    /// available is a denial all the same.
    ///
    /// # Errors
    ///
    /// [`Denied`] if fewer than `min` are available, and then nothing has changed.
    ///
    /// # Cost
    ///
    /// What [`available_at`](Limiter::available_at) and a take cost. Lock-free: it tries again for
    /// fewer when others were faster.
    ///
    /// ```
    /// # use portcullis_core::{LimiterExt, Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(1), 7);
    /// let now = Timestamp::ZERO;
    /// assert_eq!(bucket.try_acquire_between_at(now, 2, 5)?.permits(), 5);
    /// assert_eq!(bucket.try_acquire_between_at(now, 2, 5)?.permits(), 2);
    /// assert!(bucket.try_acquire_between_at(now, 2, 5).is_err());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    fn try_acquire_between_at(
        &self,
        now: Timestamp,
        min: u32,
        max: u32,
    ) -> Result<Lease<&Self>, Denied> {
        between(
            min,
            max,
            || self.available_at(now),
            |n| self.try_acquire_at(now, n),
        )
    }

    /// Takes all that is available at `now`, up to `u32::MAX` permits: none if nothing is.
    ///
    /// ```
    /// # use portcullis_core::{LimiterExt, Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(1), 7);
    /// assert_eq!(
    ///     bucket.drain_at(Timestamp::ZERO).map(|all| all.permits()),
    ///     Some(7)
    /// );
    /// assert!(bucket.drain_at(Timestamp::ZERO).is_none());
    /// ```
    fn drain_at(&self, now: Timestamp) -> Option<Lease<&Self>> {
        if self.available_at(now) == 0 {
            return None;
        }
        self.try_acquire_between_at(now, 1, u32::MAX).ok()
    }

    /// Takes `n` permits at `now`, and then does the `rest`. If that says no, or panics, the
    /// permits are given back as never taken, as far as the limiter can take them back. Returns
    /// what the rest said.
    ///
    /// # Errors
    ///
    /// [`Denied`], and then nothing has changed and the rest has not been done.
    ///
    /// ```
    /// # use portcullis_core::{LimiterExt, Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(1), 7);
    /// let now = Timestamp::ZERO;
    /// let sent = bucket.take_at_then(now, 5, &mut || false)?;
    /// assert_eq!((sent, bucket.available_at(now)), (false, 7));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    fn take_at_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        match self.as_composable() {
            Some(composable) => composable.take_then(now, n, rest),
            None => take_or_undo(self, now, n, rest),
        }
    }

    /// What would happen to a request for `n` at `now`: whether it would be granted, what is
    /// available, and when to come back. Nothing is written.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, LimiterExt, Retry, Timestamp};
    /// let limit = Concurrency::new(3);
    /// let _held = limit.try_acquire(2)?;
    /// let detail = limit.explain_at(Timestamp::ZERO, 2);
    /// assert_eq!(
    ///     (detail.is_allowed(), detail.available, detail.retry),
    ///     (false, 1, Retry::OnRelease)
    /// );
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    fn explain_at(&self, now: Timestamp, n: u32) -> Detail {
        Detail::of(self, now, n)
    }
}

impl<L: Limiter + ?Sized> LimiterExt for L {}

/// As many permits as there are, from `min` to `max`.
pub(crate) fn between<G, E>(
    min: u32,
    max: u32,
    available: impl Fn() -> u64,
    take: impl Fn(u32) -> Result<G, E>,
) -> Result<G, E> {
    let mut most = max;
    loop {
        let n = u32::try_from(available()).unwrap_or(u32::MAX).min(most);
        if n <= min.max(1) {
            return take(min.max(1));
        }
        if let Ok(granted) = take(n) {
            return Ok(granted);
        }
        // Others were faster; or the limiter has reasons of its own, which fewer permits may meet.
        most = if available() < n.into() { n - 1 } else { n / 2 };
    }
}

/// Which limiter: see [`Limiter::id`].
///
/// ```
/// use portcullis_core::{Concurrency, Counted, Limiter};
/// let limit = Counted::new(Concurrency::new(1));
/// assert_eq!(limit.id(), (&&limit).id());
/// assert_ne!(
///     limit.id(),
///     limit.limiter().id(),
///     "who asks through the wrapper is counted"
/// );
/// assert_ne!(limit.id(), Concurrency::new(1).id());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimiterId {
    address: usize,
    /// Where a limiter lies, its first field lies as well. 64 bits on every target: of a table's
    /// limiters, this numbers more than a narrow target can address.
    size: u64,
}

impl LimiterId {
    /// A limiter by its address and its size; of a type that has no size, none: it may lie where
    /// another one lies.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, LimiterId, Unlimited};
    /// struct Logged(Concurrency, u64);
    /// let logged = Logged(Concurrency::new(1), 7);
    /// assert_eq!(LimiterId::of(&logged), LimiterId::of(&logged));
    /// assert_ne!(LimiterId::of(&logged), LimiterId::of(&logged.0));
    /// assert_eq!(LimiterId::of(&Unlimited), None);
    /// ```
    #[inline]
    pub fn of<L>(limiter: &L) -> Option<Self> {
        let (address, size) = (core::ptr::from_ref(limiter).addr(), size_of::<L>());
        if size == 0 {
            None
        } else {
            Some(Self {
                address,
                size: size as u64,
            })
        }
    }

    /// One of many limiters of a table, by a number of which the upper bit is free: no type is so
    /// large.
    pub(crate) fn within<T>(table: &T, number: u64) -> Self {
        Self {
            address: core::ptr::from_ref(table).addr(),
            size: number | 1 << (u64::BITS - 1),
        }
    }
}

/// Whether a limiter is as good as new: nothing taken that has not come back.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{FixedWindow, Idle, Timestamp};
///
/// let window = FixedWindow::new(3, Duration::from_secs(1));
/// window
///     .try_acquire_at(Timestamp::from_millis(500), 1)
///     .unwrap();
/// assert_eq!(window.idle_at(Timestamp::from_millis(900)), Idle::InUse);
/// assert_eq!(
///     window.idle_at(Timestamp::from_millis(2_900)),
///     Idle::Since(Timestamp::from_secs(1))
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Idle {
    /// Permits are out.
    InUse,
    /// As good as new, and has been since this instant, or for longer than the limiter's word can
    /// tell.
    Since(Timestamp),
    /// As good as new; since when is not known.
    Now,
}

impl Idle {
    /// Whether the limiter is as good as new.
    ///
    /// ```
    /// # use portcullis_core::{Idle, Timestamp};
    /// assert!(Idle::Since(Timestamp::ZERO).is_idle());
    /// assert!(!Idle::InUse.is_idle());
    /// ```
    pub const fn is_idle(self) -> bool {
        !matches!(self, Self::InUse)
    }
}

/// Implements [`Limiter`] for a handle to a limiter.
macro_rules! forward {
    ($([$($generics:tt)*] $handle:ty),*) => {$(
        impl<$($generics)*> Limiter for $handle {
            #[inline]
            fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
                self.deref().take_at(now, n)
            }
            #[inline]
            fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
                self.deref().peek_at(now, n)
            }
            #[inline]
            fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> crate::Refund {
                self.deref().refund_at(now, n, receipt)
            }
            #[inline]
            fn id(&self) -> Option<LimiterId> {
                self.deref().id()
            }
            #[inline]
            fn as_composable(&self) -> Option<&dyn crate::Composable> {
                self.deref().as_composable()
            }
            #[inline]
            fn release(&self, n: u32) {
                self.deref().release(n);
            }
            #[inline]
            fn available_at(&self, now: Timestamp) -> u64 {
                self.deref().available_at(now)
            }
            #[inline]
            fn capacity(&self) -> u64 {
                self.deref().capacity()
            }
            #[inline]
            fn idle_at(&self, now: Timestamp) -> Idle {
                self.deref().idle_at(now)
            }
            #[inline]
            fn retry(&self, denied: Denied) -> Retry {
                self.deref().retry(denied)
            }
            fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
                self.deref().metadata(now, denied, offers);
            }
        }
    )*};
}
pub(crate) use forward;

forward!([L: Limiter + ?Sized] &L);
#[cfg(feature = "std")]
forward!([L: Limiter + ?Sized] std::boxed::Box<L>, [L: Limiter + ?Sized] std::sync::Arc<L>);
