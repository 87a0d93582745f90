use core::ops::Deref;

use crate::all_of::{Composed, between};
use crate::metadata::{self, Metadata, Used};
use crate::word::Word;
use crate::{
    AdjustableBucket, AdjustableWindow, CooldownWindow, Denied, Detail, FixedWindow, Lease, Plan,
    Receipt, Receipts, Retry, SlicedBucket, SlidingWindow, Timestamp, TokenBucket, Unlimited,
};

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
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        match u64::from(n.max(1)) {
            wanted if wanted <= self.available_at(now) => Ok(Plan::NONE),
            wanted if wanted <= self.capacity() => Err(Denied::Exhausted { now, permits: n }),
            // The capacity is less than `n`, or it is 0.
            _ => Err(Denied::ExceedsCapacity {
                permits: n,
                capacity: self.capacity() as u32,
            }),
        }
    }

    /// Takes `n` permits at `now`, as [`take_at`](Self::take_at) does; `plan` is what
    /// [`peek_at`](Self::peek_at) said to the same request before. A limiter that finds itself as
    /// it was then need not judge the request again.
    ///
    /// By default the plan is ignored.
    ///
    /// # Errors
    ///
    /// [`Denied`], and then nothing has changed.
    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        let _ = plan;
        self.take_at(now, n)
    }

    /// Takes a grant back, as far as no bound could be passed by it: gives `n` of the permits back
    /// that `receipt` is for, and returns how many of them count as never taken. The others come
    /// back as they would have done anyway.
    ///
    /// `now` is when they are given back. The receipt is changed so that it stands for the permits
    /// that are left of the grant. To give back more than it is for, also by a copy of it, is an
    /// error of the caller's, which lets as much too much through; so is a refund after the
    /// limiter's horizon, less the time in which all permits come back. A [`Lease`] sees to the
    /// first.
    ///
    /// By default it [releases](Self::release) them, and returns 0: how many that has made room for
    /// is not known.
    fn refund_at(&self, now: Timestamp, n: u32, receipt: &mut Receipt) -> u32 {
        let _ = (now, receipt);
        self.release(n);
        0
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

    /// The composition that this limiter is, or that a wrapper adds nothing to: by default none.
    ///
    /// A composition around it then takes from this one instead, and can give back what each part
    /// gave by a receipt of its own, for which one receipt has no room. A wrapper that only
    /// forwards forwards this, too.
    #[inline]
    fn composed(&self) -> Option<&dyn Composed> {
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

/// A limiter that a queue can own, and what it does for that queue alone.
///
/// A queue grants what a release makes free to those who wait, as far as the release goes through
/// the queue. A permit that is released past it would wake none of them. So this is implemented for
/// limiters that are owned; and for pointers, and limiters that are named in several places, only
/// where permits come back by time alone ([`Replenishing`]): a waiter is then granted when the time
/// has come, whoever else takes.
///
/// # Implementing
///
/// One line: `impl QueueLimiter for Mine {}`. It says that permits of this limiter, where they come
/// back by [`release`](Limiter::release), come back through the queue that owns it. If other code
/// takes from it past the queue, because it shares its state, [`SHARED`](Self::SHARED) is `true`.
///
/// ```
/// use portcullis_core::{
///     Concurrency, Denied, Limiter, QueueLimiter, Receipt, Retry, Timestamp,
/// };
///
/// /// A limit that logs.
/// struct Logged(Concurrency);
///
/// impl Limiter for Logged {
///     fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
///         self.0
///             .take_at(now, n)
///             .inspect_err(|denied| println!("{denied}"))
///     }
///     fn release(&self, n: u32) {
///         Limiter::release(&self.0, n);
///     }
///     fn available_at(&self, now: Timestamp) -> u64 {
///         self.0.available_at(now)
///     }
///     fn retry(&self, denied: Denied) -> Retry {
///         Limiter::retry(&self.0, denied)
///     }
/// }
///
/// impl QueueLimiter for Logged {
///     fn held(&self) -> u64 {
///         self.0.held()
///     }
/// }
/// ```
///
/// A pointer to a concurrency limit is none, nor is a composition with one: a release through one
/// queue would leave the waiters of another one asleep.
///
/// ```compile_fail,E0277
/// # use portcullis_core::{Concurrency, QueueLimiter};
/// fn waits(_: impl QueueLimiter) {}
/// waits(&Concurrency::new(1));
/// ```
///
/// ```compile_fail,E0277
/// # use portcullis_core::{AllOf, Concurrency, QueueLimiter};
/// fn waits(_: impl QueueLimiter) {}
/// let all = Concurrency::new(9);
/// waits(AllOf::new((Concurrency::new(1), &all)));
/// ```
///
/// ```
/// # use portcullis_core::{AllOf, Concurrency, QueueLimiter, Rate, TokenBucket};
/// # fn waits(_: impl QueueLimiter) {}
/// let all = TokenBucket::new(Rate::per_second(9), 9);
/// waits(AllOf::new((Concurrency::new(1), &all)));
/// waits(&all);
/// ```
#[diagnostic::on_unimplemented(
    message = "a queue cannot own `{Self}`",
    label = "permits may be released past the queue, which would wake none of those who wait",
    note = "give the queue the limiter itself; a pointer to one is possible where all permits come back by time (`Replenishing`)",
    note = "to limit a part and the whole, put the whole into a queue of its own, and wait in both, one after the other",
    note = "for a limiter of your own whose permits come back through the queue: `impl QueueLimiter for Mine {{}}`"
)]
pub trait QueueLimiter: Limiter {
    /// Whether others may take from it past the queue. Then the queue grants nothing as of an
    /// instant that has passed: a limiter that others take from at the present must not be told
    /// times that are older than they need be.
    const SHARED: bool = false;

    /// As [`release`](Limiter::release), and says whether somebody waits for what has become free.
    ///
    /// By default it does not know: `None`. A limiter that is told by [`watch`](Self::watch), in
    /// the word that a release changes anyway, spares its releases the search for those who wait.
    #[inline]
    fn release_watched(&self, n: u32) -> Option<bool> {
        self.release(n);
        None
    }

    /// Tells the limiter that somebody waits for its permits, or nobody any more.
    ///
    /// From `watch(true)` to `watch(false)` every [`release_watched`](Self::release_watched)
    /// returns `Some(true)` that a take after the former does not see. By default this does
    /// nothing.
    fn watch(&self, waits: bool) {
        let _ = waits;
    }

    /// Lets `n` permits that somebody has, and is about to [release](Limiter::release), go to
    /// somebody else as they are, without having been free in between; and says whether others are
    /// free. `None` if they have to be released and taken anew: by default, and where they are more
    /// than there should be out.
    ///
    /// Only of a limiter that does not look at the time, and whose permits are all alike.
    fn pass_on(&self, n: u32) -> Option<bool> {
        let _ = n;
        None
    }

    /// Whether a grant has more to note than a [`Receipt`], so that the queue asks
    /// [`take_noted_at`](Self::take_noted_at) and [`refund_noted_at`](Self::refund_noted_at).
    const NOTES: bool = false;

    /// As [`take_at`](Limiter::take_at), and notes the receipts of all limits that the permits are
    /// of: so that a grant that goes unclaimed can be taken back of each of them.
    ///
    /// # Errors
    ///
    /// [`Denied`], and then nothing has changed.
    fn take_noted_at(
        &self,
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied> {
        notes.clear();
        self.take_at(now, n)
    }

    /// As [`refund_at`](Limiter::refund_at), of a grant with these notes.
    fn refund_noted_at(
        &self,
        now: Timestamp,
        n: u32,
        receipt: &mut Receipt,
        notes: &Receipts,
    ) -> u32 {
        let _ = notes;
        self.refund_at(now, n, receipt)
    }

    /// The permits that are out and come back by [`release`](Limiter::release) alone. By default
    /// none, as of a limiter that gets its permits back by time.
    fn held(&self) -> u64 {
        0
    }
}

/// A limiter all of whose permits come back by time alone: its [`release`](Limiter::release) makes
/// none available. So pointers to it can be in several queues at once.
///
/// What is given back by a [refund](Limiter::refund_at), or comes by new settings, past a queue is
/// found by those who wait there when the time comes that they have been told, or with the next
/// call.
///
/// ```
/// use portcullis_core::{QueueLimiter, Rate, Replenishing, TokenBucket};
/// use std::sync::Arc;
/// fn waits(_: impl QueueLimiter) {}
/// let all: Arc<dyn Replenishing + Send + Sync> =
///     Arc::new(TokenBucket::new(Rate::per_second(9), 9));
/// waits(Arc::clone(&all));
/// waits(all);
/// ```
///
/// ```compile_fail,E0277
/// # use portcullis_core::{Concurrency, Replenishing};
/// let _: &dyn Replenishing = &Concurrency::new(1);
/// ```
#[diagnostic::on_unimplemented(
    message = "permits of `{Self}` do not come back by time alone",
    label = "a pointer to it cannot be owned by a queue: what another one releases would wake none of those who wait",
    note = "give the queue the limiter itself; to limit a part and the whole, put the whole into a queue of its own, and wait in both, one after the other"
)]
pub trait Replenishing: Limiter {}

/// Of limiters whose permits come back by time alone: nobody has to look for those who wait when a
/// lease goes.
macro_rules! replenishing {
    ($([$($generics:tt)*] $limiter:ty),* $(,)?) => {$(
        impl<$($generics)*> Replenishing for $limiter {}

        impl<$($generics)*> QueueLimiter for $limiter {
            #[inline]
            fn release_watched(&self, _: u32) -> Option<bool> {
                Some(false)
            }
        }
    )*};
}

replenishing!(
    [W: Word] TokenBucket<W>,
    [W: Word] FixedWindow<W>,
    [const MAX_SEGMENTS: usize, W: Word] SlidingWindow<MAX_SEGMENTS, W>,
    [W: Word] AdjustableBucket<W>,
    [W: Word] AdjustableWindow<W>,
    [W: Word] CooldownWindow<W>,
    [W: Word] SlicedBucket<W>,
    [] Unlimited,
);

/// Implements it for a pointer that others may have as well.
macro_rules! shared {
    ($([$($generics:tt)*] $pointer:ty),*) => {$(
        impl<$($generics)*> Replenishing for $pointer {}

        impl<$($generics)*> QueueLimiter for $pointer {
            const SHARED: bool = true;

            #[inline]
            fn release_watched(&self, n: u32) -> Option<bool> {
                self.release(n);
                Some(false)
            }
        }
    )*};
}

shared!([L: Replenishing + ?Sized] &L);
#[cfg(feature = "std")]
shared!([L: Replenishing + ?Sized] std::sync::Arc<L>);

#[cfg(feature = "std")]
impl<L: Replenishing + ?Sized> Replenishing for std::boxed::Box<L> {}

#[cfg(feature = "std")]
impl<L: QueueLimiter> QueueLimiter for std::boxed::Box<L> {
    const SHARED: bool = L::SHARED;

    #[inline]
    fn release_watched(&self, n: u32) -> Option<bool> {
        (**self).release_watched(n)
    }

    fn watch(&self, waits: bool) {
        (**self).watch(waits);
    }

    #[inline]
    fn pass_on(&self, n: u32) -> Option<bool> {
        (**self).pass_on(n)
    }

    fn held(&self) -> u64 {
        (**self).held()
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
            fn peek_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
                self.deref().peek_at(now, n)
            }
            #[inline]
            fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
                self.deref().take_as_planned_at(now, n, plan)
            }
            #[inline]
            fn refund_at(&self, now: Timestamp, n: u32, receipt: &mut Receipt) -> u32 {
                self.deref().refund_at(now, n, receipt)
            }
            #[inline]
            fn id(&self) -> Option<LimiterId> {
                self.deref().id()
            }
            #[inline]
            fn composed(&self) -> Option<&dyn crate::Composed> {
                self.deref().composed()
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
