pub(crate) mod composable;
pub(crate) mod denied;
pub(crate) mod detail;
pub mod metadata;
pub(crate) mod not_granted;
pub(crate) mod queue_limiter;
pub(crate) mod receipt;
pub(crate) mod to_limiter;

pub use self::composable::Composable;
pub use self::queue_limiter::{PassedOn, QueueLimiter, Replenishing, Waiting};

use core::ops::Deref;

use self::composable::take_or_undo;
use self::detail::explained;
use crate::limiter::metadata::{Metadata, Used};
use crate::{Denied, Detail, Interval, Lease, Receipt, Refund, Retry, Timestamp};

/// The interface of every limiter. Implement it for a limiter of your own.
///
/// The trait is dyn-compatible (`&dyn Limiter`). Callers take permits with
/// [`LimiterExt::try_acquire_at`], which wraps [`take_at`](Self::take_at) in a [`Lease`].
///
/// # Implementing
///
/// `take_at`, `refund_at`, `release`, `available_at` and `retry` are required. Some limiters
/// implement more:
///
/// - A limiter that wraps another one forwards all methods to it, except [`id`](Self::id) and
///   [`as_composable`](Self::as_composable), which say what to return. Without `release`, the
///   permits of a concurrency limit in it never return; without `refund_at`, those of a request
///   that another limit of a composition denied. Without `idle_at`, a key of a
///   [`KeyedArray`](crate::KeyedArray) keeps its slot forever, and new keys are denied. The
///   defaults of the other methods know no capacity.
/// - A limiter whose decisions often do not depend on the exact time implements `take_within`,
///   `peek_within` and `decides_within`.
/// - A limiter whose permits return by time, but that can refund a grant as long as no later
///   grant depends on it, implements `refund_at`.
///
/// Every limiter must obey these rules. The limiters of Portcullis do, and their wrappers,
/// compositions and queues rely on them for any limiter:
///
/// - A limiter never admits more than it promises, whatever calls run concurrently. A request whose
///   `now` is stale (older than that of an earlier request, by at most the limiter's staleness) is
///   granted no more than it would be at the newest `now`.
/// - A denial takes no permit. It leaves the limiter unchanged, unless the limiter records denials,
///   as a [`Penalty`](crate::Penalty) does.
/// - A request for `n = 0` is a probe: it takes nothing, and is granted exactly if a request for 1
///   would be.
/// - No method panics, blocks or allocates. (With debug assertions, [`release`](Self::release)
///   panics if the caller breaks its rule.)
///
/// ```
/// use core::sync::atomic::{AtomicBool, Ordering};
/// use core::time::Duration;
/// use portcullis_core::{Denied, Limiter, LimiterExt, Receipt, Refund, Retry, Timestamp};
///
/// /// Grants every request until it is switched off.
/// struct Gate(AtomicBool);
///
/// impl Limiter for Gate {
///     fn take_at(&self, now: Timestamp, permits: u32) -> Result<Receipt, Denied> {
///         match self.0.load(Ordering::Relaxed) {
///             true => Ok(Receipt::NONE),
///             false => Err(Denied::Refused { now, permits }),
///         }
///     }
///     /// It counts nothing, so there is nothing to return.
///     fn refund_at(&self, _: Timestamp, _: u32, rest: Receipt) -> Refund {
///         Refund { permits: 0, rest }
///     }
///     fn release(&self, _: u32) {}
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    note = "if it is a `Clocked` limiter, or a `ClockedKey` (a key of a `Clocked` table), pass the limiter in it: call `.limiter()`",
    note = "if it is a table, pass the limiter of one key: call `.key(&key)`",
    note = "if it is the rules of a table, such as `TokenBucketRules`, pass a limiter: `TokenBucket`"
)]
pub trait Limiter {
    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is granted or denied as a
    /// request for 1 permit would be.
    ///
    /// The [`Receipt`] identifies the grant for [`refund_at`](Self::refund_at). The caller must
    /// return the permits with [`release`](Self::release) once it no longer uses them. A [`Lease`],
    /// which [`LimiterExt::try_acquire_at`] returns, does so when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then no permit has been taken. [`Denied`] lists the
    /// reasons. [`Denied::retry`] says when to retry, or [`Retry::Never`] if a retry cannot
    /// succeed: for example, if the request exceeds the capacity. Then request fewer permits.
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied>;

    /// Takes permits as [`take_at`](Self::take_at) does, and returns the numbers of the decision,
    /// such as the permits that are left: see [`Detail`]. For example, for the header fields of a
    /// response.
    ///
    /// The [decision](Detail::decision) and the first result are the same.
    ///
    /// If the state of the limiter is one word, the other fields are computed from the word that
    /// the decision wrote or read. No two concurrent grants then report the same
    /// [`available`](Detail::available) permits, unless permits returned in between. These
    /// limiters and requests differ:
    ///
    /// - A [`SlidingWindow`](crate::SlidingWindow) computes `available` in this way. It computes
    ///   the times from its segments after the decision, so they include later grants.
    /// - An [`AllOf`](crate::AllOf) reports one of its limits: the one that denied, or for a grant
    ///   the one with the fewest permits left. See
    ///   [`AllOf::try_acquire_explained_at`](crate::AllOf::try_acquire_explained_at).
    /// - A [`Penalty`](crate::Penalty) reports what its limiter reports. For a denial, it reads the
    ///   end of the penalty after the decision.
    /// - In these cases, [`explain_at`](Self::explain_at) looks at the limiter after the decision,
    ///   and requests of other callers may come in between: a request for more than the capacity, a
    ///   request for a key that a keyed table has no slot for, a [`Slice`](crate::Slice), a limiter
    ///   in stripes ([`Striped`](crate::Striped)), and a limiter of your own that does not
    ///   implement this method.
    ///
    /// A wrapper forwards this method as it forwards `take_at`.
    ///
    /// # Errors
    ///
    /// The first result is [`Denied`] if the request is denied. Then no permit has been taken.
    ///
    /// # Cost
    ///
    /// The cost of a take, and some divisions: tens of nanoseconds. If the settings of the limiter
    /// can change, it divides before its compare-exchange, which then fails more often under
    /// contention. This method adds no cost to `take_at`.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter, Retry, Timestamp};
    /// let limit = Concurrency::new(5);
    /// let (taken, detail) = limit.take_explained_at(Timestamp::ZERO, 2);
    /// assert!(taken.is_ok());
    /// assert_eq!((detail.available, detail.capacity), (3, 5));
    /// assert_eq!(detail.full_again, Retry::OnRelease);
    /// ```
    fn take_explained_at(&self, now: Timestamp, n: u32) -> (Result<Receipt, Denied>, Detail) {
        explained(self, now, n, |_| self.take_at(now, n))
    }

    /// Returns what would happen to a request for `n` permits at `now`: whether it would be
    /// granted, how many permits are available, and when to retry. Writes nothing.
    ///
    /// The result is that of [`take_explained_at`](Self::take_explained_at), except that nothing is
    /// taken: `available` are the permits before the request.
    ///
    /// The default asks [`peek_at`](Self::peek_at), [`available_at`](Self::available_at),
    /// [`capacity`](Self::capacity) and [`retry`](Self::retry). Each of them reads the state again.
    /// A wrapper forwards this method.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter, Retry, Timestamp};
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
        Detail::of(self, now, self.peek_at(now, n))
    }

    /// Takes `n` permits at some instant in `interval`, if it does not matter which one: if
    /// [`take_at`](Self::take_at) would decide alike, and leave the limiter in the same state, at
    /// every instant of the interval. If it matters, returns `None`, and nothing has changed.
    ///
    /// The instant does not matter:
    ///
    /// - for a token bucket, while the bucket is in use and not full;
    /// - for a window, if none of its edges is in the interval;
    /// - for both, if the request would still be denied at the end of the interval;
    /// - for a concurrency limit, always;
    /// - for a composition, if it matters to none of its limits, up to the first that denies. If
    ///   another thread changes one of these limits during the call, so that the instant matters,
    ///   the composition may take permits from the other limits and refund them before it returns
    ///   `None`.
    ///
    /// The default returns `None`.
    ///
    /// The denial or the receipt contains the earliest instant of the interval as its time. For
    /// such a denial, [`retry`](Self::retry) returns the same time as for a denial at the exact
    /// instant.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Denied, Interval, Limiter, Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(10), 3);
    /// let now = Timestamp::from_secs(7);
    /// let interval = Interval::new(now, now + Duration::from_millis(50)).unwrap();
    /// assert!(bucket.take_within(interval, 1).is_none(), "full: it matters when the take was");
    /// bucket.take_at(now, 2)?;
    /// assert!(matches!(bucket.take_within(interval, 1), Some(Ok(_))));
    /// assert!(matches!(bucket.take_within(interval, 1), Some(Err(_))), "empty until 7.1 s");
    /// # Ok::<(), Denied>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied at every instant of the interval. Then no permit has
    /// been taken.
    #[inline]
    fn take_within(&self, interval: Interval, n: u32) -> Option<Result<Receipt, Denied>> {
        let _ = (interval, n);
        None
    }

    /// Returns whether [`take_within`](Self::take_within) ever decides. If not, the caller need not
    /// read an interval. The default is `false`.
    #[inline]
    fn decides_within(&self) -> bool {
        false
    }

    /// Returns what [`take_within`](Self::take_within) would return, without any effect. A
    /// composition asks this before it takes, because it takes only if all its limits would grant.
    /// The default returns `None`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Interval, Limiter, Timestamp};
    /// let window = FixedWindow::new(10, Duration::from_secs(1));
    /// let within = |from, to| {
    ///     let [from, to] = [from, to].map(Timestamp::from_millis);
    ///     Interval::new(from, to).unwrap()
    /// };
    /// window.take_at(Timestamp::from_millis(850), 1)?;
    /// assert_eq!(window.peek_within(within(900, 990), 9), Some(Ok(())));
    /// assert_eq!(window.peek_within(within(900, 1_010), 9), None, "it matters in which window");
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request would be denied at every instant of the interval.
    #[inline]
    fn peek_within(&self, interval: Interval, n: u32) -> Option<Result<(), Denied>> {
        let _ = (interval, n);
        None
    }

    /// Returns whether [`take_at`](Self::take_at) would grant, without any effect. Effects of a
    /// denial, such as the start of a [`Penalty`](crate::Penalty), do not happen either.
    ///
    /// The default compares `n` with [`available_at`](Self::available_at) and
    /// [`capacity`](Self::capacity).
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request would be denied.
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        if u64::from(n.max(1)) <= self.available_at(now) {
            Ok(())
        } else {
            Err(detail::denied(now, n, self.capacity()))
        }
    }

    /// Refunds `n` permits of the grant that `receipt` covers, as far as that cannot break the
    /// limiter's bound.
    ///
    /// `now` is the time of the refund. The returned [`Refund`] contains:
    ///
    /// - the number of permits that count as never taken; the others return as they would have
    ///   without the refund;
    /// - a receipt for the permits that remain of the grant.
    ///
    /// The caller must not refund more permits than the receipt covers. It must also refund in
    /// time: the grant must be younger than the limiter's horizon (the time after which its state
    /// word repeats) minus the time in which all permits return. Otherwise the limiter may admit
    /// too many permits, at most the number refunded. A [`Lease`] enforces the first rule. A
    /// limiter can enforce the second one if its receipts contain the time of the grant: see
    /// [`Receipt`].
    ///
    /// # Implementing
    ///
    /// A limiter that wraps another one forwards the call. There is no default, so that no wrapper
    /// loses refunds without notice. A limiter that cannot refund [releases](Self::release) the
    /// permits, counts none as never taken, and returns the receipt as it is.
    ///
    /// ```compile_fail,E0046
    /// # use portcullis_core::{Denied, Limiter, Rate, Receipt, Retry, Timestamp, TokenBucket};
    /// /// Logs each grant.
    /// struct Logged(TokenBucket);
    ///
    /// impl Limiter for Logged {
    ///     fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
    ///         self.0.take_at(now, n).inspect(|_| println!("{n} granted"))
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
    ///     // `refund_at` is missing: it calls `self.0.refund_at(now, n, receipt)`.
    /// }
    /// ```
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund;

    /// Releases `n` permits that were taken from this limiter and not returned since.
    ///
    /// A [`Lease`] and a [`LeasePool`](crate::LeasePool) call this method, and never for more
    /// permits than they hold. The caller must not release permits that were not taken: the limiter
    /// would then admit that many permits too many. With debug assertions such a release panics.
    ///
    /// A limiter whose permits return by time does nothing. A limiter that wraps another one
    /// forwards the call. There is no default, so that no wrapper loses permits without notice.
    ///
    /// ```compile_fail,E0046
    /// # use portcullis_core::{
    /// #     Concurrency, Denied, Limiter, Receipt, Refund, Retry, Timestamp,
    /// # };
    /// /// Logs each grant.
    /// struct Logged(Concurrency);
    ///
    /// impl Limiter for Logged {
    ///     fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
    ///         self.0.take_at(now, n).inspect(|_| println!("{n} granted"))
    ///     }
    ///     fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
    ///         self.0.refund_at(now, n, receipt)
    ///     }
    ///     fn available_at(&self, now: Timestamp) -> u64 {
    ///         self.0.available_at(now)
    ///     }
    ///     fn retry(&self, denied: Denied) -> Retry {
    ///         Limiter::retry(&self.0, denied)
    ///     }
    ///     // `release` is missing: `fn release(&self, n: u32) { Limiter::release(&self.0, n) }`
    /// }
    /// ```
    fn release(&self, n: u32);

    /// Returns the permits available at `now`.
    fn available_at(&self, now: Timestamp) -> u64;

    /// Returns the largest number of permits that can ever be available at once. The default is
    /// `u64::MAX`.
    fn capacity(&self) -> u64 {
        u64::MAX
    }

    /// Returns the identity of this limiter. A composition that contains one limiter twice uses it
    /// to ask the limiter once, for the sum. The default is `None`: the identity is unknown, and
    /// the composition asks twice.
    ///
    /// A limiter with state of its own returns [`LimiterId::of`] itself, even if it wraps another
    /// limiter. A wrapper without state keeps the default, because it cannot be distinguished from
    /// the limiter that it wraps.
    fn id(&self) -> Option<LimiterId> {
        None
    }

    /// Returns what a composition can use beyond the methods above: see [`Composable`]. The default
    /// is `None`: the composition then uses the methods of this trait.
    ///
    /// A limiter that is [`Composable`] returns itself. A handle that only forwards to a limiter
    /// forwards this method too.
    #[inline]
    fn as_composable(&self) -> Option<&dyn Composable> {
        None
    }

    /// Returns whether the limiter is idle at `now`, that is, indistinguishable from a fresh one.
    /// The default is [`Idle::InUse`], which is also the answer if the state is unknown.
    fn idle_at(&self, now: Timestamp) -> Idle {
        let _ = now;
        Idle::InUse
    }

    /// Returns when to retry the request that was denied as `denied`, given the current state of
    /// the limiter.
    ///
    /// A [`Retry::At`] is exact if no other caller takes permits in the meantime: a request at that
    /// instant is granted, and a request 1 ns earlier is denied.
    ///
    /// For a request that waits in a queue, pass [`Denied::Exhausted`] with the permits requested
    /// ahead of it plus its own. The sum may exceed the [capacity](Self::capacity). Then the result
    /// is the earliest instant by which that many permits have become available, if each is taken
    /// as soon as it becomes available. No single request may exceed the capacity. The result is
    /// exact if each request is for 1 permit. Otherwise it is a lower bound. It is [`Retry::Never`]
    /// if the permits never become available, or not before [`Timestamp::MAX`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Denied, FixedWindow, Limiter, Retry, Timestamp};
    /// let limit = FixedWindow::new(2, Duration::from_secs(20));
    /// let now = Timestamp::ZERO;
    /// let _ = limit.try_acquire_at(now, 2)?;
    /// let retry = |permits| limit.retry(Denied::Exhausted { now, permits });
    /// assert_eq!(retry(2), Retry::At(Timestamp::from_secs(20)));
    /// assert_eq!(
    ///     retry(3),
    ///     Retry::At(Timestamp::from_secs(40)),
    ///     "behind a request for 2"
    /// );
    /// # Ok::<(), Denied>(())
    /// ```
    fn retry(&self, denied: Denied) -> Retry;

    /// Offers metadata about a request: values that a caller can read by their names, such as the
    /// reason of a denial. See [`metadata`](mod@metadata). The request was granted at `now` if
    /// `denied` is `None`, and otherwise denied.
    ///
    /// A limiter first offers its own values to `offers`, each under a name. Then it calls this
    /// method of the limiters that it wraps. If a name is offered twice, the caller gets the first
    /// value. The default offers [`USED_SHARE`](metadata::USED_SHARE), and for a denial
    /// [`RETRY_AFTER`](metadata::RETRY_AFTER) and [`REASON_PHRASE`](metadata::REASON_PHRASE).
    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        offer(self, now, denied, offers);
    }
}

/// Offers the metadata that every limiter has.
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

/// Methods that take permits as a [`Lease`], for every limiter. Import the trait with `use
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
    /// Takes `n` permits at `now`. The lease [releases](Limiter::release) them when it is dropped,
    /// also by an early return or a panic. For permits that return by time alone, that does
    /// nothing.
    ///
    /// With `n = 0` it takes nothing, and succeeds exactly if a request for 1 would.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then no permit has been taken.
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
    ///     "replenished by time only"
    /// );
    /// ```
    #[inline]
    fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Takes permits as [`try_acquire_at`](Self::try_acquire_at) does, and returns what the
    /// decision saw: how many permits are left, of how many, and when to retry. The numbers are
    /// those of this decision, whatever other callers take at the same time: see
    /// [`Limiter::take_explained_at`].
    ///
    /// # Errors
    ///
    /// The first result is [`Denied`] if the request is denied. Then no permit has been taken.
    ///
    /// # Cost
    ///
    /// That of [`Limiter::take_explained_at`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, LimiterExt, Retry, Timestamp};
    /// let limit = FixedWindow::new(100, Duration::from_secs(60));
    /// let now = Timestamp::from_secs(130);
    /// let (lease, detail) = limit.try_acquire_explained_at(now, 40);
    /// assert_eq!(lease.map(|lease| lease.permits()), Ok(40));
    /// assert_eq!((detail.available, detail.capacity), (60, 100));
    /// assert_eq!(detail.time_to_fill, Some(Duration::from_secs(60)));
    /// assert_eq!(detail.full_again, Retry::At(Timestamp::from_secs(180)));
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    fn try_acquire_explained_at(
        &self,
        now: Timestamp,
        n: u32,
    ) -> (Result<Lease<&Self>, Denied>, Detail) {
        Lease::try_acquire_explained_at(self, now, n)
    }

    /// Takes as many permits as are available at `now`, from `min` to `max`: a partial grant.
    ///
    /// A `min` of 0 counts as 1. A `max` that is less than `min` counts as `min`.
    ///
    /// # Errors
    ///
    /// [`Denied`] if fewer than `min` permits are available. Then no permit has been taken.
    ///
    /// # Cost
    ///
    /// The cost of [`available_at`](Limiter::available_at) plus that of a take. Lock-free: if other
    /// callers take permits concurrently, it retries with fewer.
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

    /// Takes all permits that are available at `now`, up to `u32::MAX`. Returns `None` if there are
    /// none.
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

    /// Takes `n` permits at `now` and then calls `rest`. If `rest` returns `false` or panics, the
    /// permits are refunded, as far as the limiter can refund them. If it returns `true`, the
    /// permits stay taken, without a lease: the caller [releases](Limiter::release) them. Returns
    /// what `rest` returned.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then no permit has been taken, and `rest` has not been
    /// called.
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
}

impl<L: Limiter + ?Sized> LimiterExt for L {}

/// Takes as many permits as are available, from `min` to `max`.
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
        // Another caller took permits in the meantime, or the limiter has a reason of its own that
        // a smaller request may satisfy.
        most = if available() < n.into() { n - 1 } else { n / 2 };
    }
}

/// The identity of a limiter: see [`Limiter::id`].
///
/// ```
/// use portcullis_core::{Concurrency, Counted, Limiter};
/// let limit = Counted::new(Concurrency::new(1));
/// assert_eq!(limit.id(), (&&limit).id());
/// assert_ne!(
///     limit.id(),
///     limit.limiter().id(),
///     "the wrapper has state of its own"
/// );
/// assert_ne!(limit.id(), Concurrency::new(1).id());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimiterId {
    address: usize,
    /// Distinguishes a limiter from its first field, which has the same address. For a limiter in a
    /// table it holds a number instead. It has 64 bits on every target, because a table may have
    /// more such numbers than a 32-bit target has addresses.
    size: u64,
}

impl LimiterId {
    /// Returns the identity of a limiter, made of its address and its size. Returns `None` for a
    /// type of size 0, because another limiter may have the same address.
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

    /// Returns the identity of one limiter of a table. The highest bit of `number` must be clear;
    /// it is set in the identity. No type is that large, so no other limiter has the same identity.
    pub(crate) fn within<T>(table: &T, number: u64) -> Self {
        Self {
            address: core::ptr::from_ref(table).addr(),
            size: number | 1 << (u64::BITS - 1),
        }
    }
}

/// Whether a limiter is idle: all permits that were taken have returned, and the limiter is
/// indistinguishable from a fresh one.
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
    /// The limiter is not idle, or its state is unknown.
    InUse,
    /// The limiter is idle, and has been since this instant or for longer than its word can tell.
    Since(Timestamp),
    /// The limiter is idle; since when is unknown.
    Now,
}

impl Idle {
    /// Returns whether the limiter is idle.
    ///
    /// ```
    /// # use portcullis_core::{Idle, Timestamp};
    /// assert!(Idle::Since(Timestamp::ZERO).is_idle());
    /// assert!(!Idle::InUse.is_idle());
    /// ```
    pub const fn is_idle(self) -> bool {
        !matches!(self, Self::InUse)
    }

    /// In use if one of two limiters is in use. Otherwise idle since the last of them became idle.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::InUse, _) | (_, Self::InUse) => Self::InUse,
            (Self::Since(a), Self::Since(b)) => Self::Since(a.max(b)),
            _ => Self::Now,
        }
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
            fn take_explained_at(
                &self,
                now: Timestamp,
                n: u32,
            ) -> (Result<Receipt, Denied>, crate::Detail) {
                self.deref().take_explained_at(now, n)
            }
            fn explain_at(&self, now: Timestamp, n: u32) -> crate::Detail {
                self.deref().explain_at(now, n)
            }
            #[inline]
            fn take_within(
                &self,
                interval: crate::Interval,
                n: u32,
            ) -> Option<Result<Receipt, Denied>> {
                self.deref().take_within(interval, n)
            }
            #[inline]
            fn peek_within(
                &self,
                interval: crate::Interval,
                n: u32,
            ) -> Option<Result<(), Denied>> {
                self.deref().peek_within(interval, n)
            }
            #[inline]
            fn decides_within(&self) -> bool {
                self.deref().decides_within()
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
