//! The interface of every limiter: one question, and what follows from its answer.
//!
//! A caller asks a limiter for permits with one value, an [`Ask`]: when, how many, whether to look
//! or to take, and what the caller wants to be told. The limiter answers with one value, an
//! [`Answer`]. What becomes of the permits is one value too, a [`Back`], and so is the question for
//! the limiter's numbers, a [`Read`]. So the interface has four functions, and a wrapper that
//! passes each value on to the limiter in it has passed on everything:
//!
//! ```text
//!   decide(Ask) -> Answer        looks and takes, at an instant or within an interval, final or
//!                                not, for a lease, a composition or a queue
//!   give_back(Back) -> Returned  releases, refunds; requests that end without a grant; whether
//!                                requests wait
//!   read(Read) -> Reading        permits available and held, capacity, idle; metadata
//!   retry(Denied) -> Retry       when to ask again
//! ```
//!
//! Callers use the methods with names, such as [`take_at`](Limiter::take_at). They are provided,
//! and each is one question with constants in it. `decide` is inlined into them, so a take is
//! compiled as if the limiter had no other question to answer.
//!
//! What a caller may know to be faster, and what no caller relies on, are [`Hints`]: a limiter that
//! gives none is asked in the way that is right for all limiters.
//!
//! How the callers use the values:
//!
//! - A composition looks at all its limits, and then takes from each by the plan of its look
//!   ([`Ask::as_planned`]). It takes from the next limit inside the take of the one before
//!   ([`Tell::Grant`]), unless one receipt undoes that take ([`Hints::one_receipt`]).
//! - A queue attempts ([`How::Attempt`]) until a request is granted or ends
//!   ([`Back::NotGranted`], [`Back::Cancelled`]). It keeps the receipts of all limits
//!   ([`Tell::Receipts`]) until the grant is claimed.
//! - A clock that knows the time only as an interval asks within the interval first
//!   ([`When::Within`]), and at an instant if the time matters ([`Answer::TimeMatters`]).

pub(crate) mod ask;
pub(crate) mod back;
pub(crate) mod denied;
pub(crate) mod detail;
pub mod metadata;
pub(crate) mod not_granted;
pub(crate) mod queue_limiter;
pub(crate) mod reading;
pub(crate) mod receipt;
pub(crate) mod to_limiter;
pub(crate) mod undo;

pub use self::ask::{Answer, Ask, How, Tell, When};
pub use self::back::{Back, Returned, Waiting};
pub use self::denied::{Denied, Retry};
pub use self::detail::Detail;
pub use self::not_granted::NotGranted;
pub use self::reading::{Read, Reading};
pub use self::receipt::{Plan, Receipt, Refund};
pub use self::to_limiter::ToLimiter;

use core::cell::Cell;
use core::ops::Deref;

use self::undo::UndoOnDrop;
use crate::leases::lease::Lease;
use crate::limiter::metadata::{Metadata, Used};
use crate::limiter::queue_limiter::Replenishing;
use crate::time::interval::Interval;
use crate::time::timestamp::Timestamp;

/// The interface of every limiter. Implement it for a limiter of your own.
///
/// The trait is dyn-compatible (`&dyn Limiter`). Callers take permits with
/// [`LimiterExt::try_acquire_at`], which wraps [`take_at`](Self::take_at) in a [`Lease`].
///
/// # Implementing
///
/// Four functions are required: [`decide`](Self::decide), [`give_back`](Self::give_back),
/// [`read`](Self::read) and [`retry`](Self::retry). A limiter that wraps another one passes their
/// arguments on to it, and acts on the answers. It then works alone, in an
/// [`AllOf`](crate::AllOf), in a table ([`KeyedArray`](crate::KeyedArray)), in a policy and in a
/// queue, with refunds, waits and metadata. For a queue, also implement
/// [`QueueLimiter`](crate::queue::QueueLimiter), which has no required items.
///
/// Two functions have defaults that are right for every limiter. Implement [`id`](Self::id) for a
/// limiter with state of its own, and [`hints`](Self::hints) for one that callers can ask in a
/// faster way. Leave all others as they are: they are questions to the four functions. (The
/// limiters of this crate also implement `take_at` where single instructions count.)
///
/// Every limiter must obey these rules. The limiters of Portcullis do, and their wrappers,
/// compositions and queues rely on them for any limiter:
///
/// - A limiter never admits more than it promises, whatever calls run concurrently. A request whose
///   `now` is stale (older than that of an earlier request, by at most the limiter's staleness) is
///   granted no more than it would be at the newest `now`.
/// - A denial takes no permit. It leaves the limiter unchanged, unless the limiter records denials,
///   as a [`Penalty`](crate::Penalty) does.
/// - A look changes nothing.
/// - A request for `n = 0` is a probe: it takes nothing, and is granted exactly if a request for 1
///   would be.
/// - No method panics, blocks or allocates. (With debug assertions, [`release`](Self::release)
///   panics if the caller breaks its rule.)
///
/// A limiter of its own:
///
/// ```
/// use core::sync::atomic::{AtomicBool, Ordering};
/// use core::time::Duration;
/// use portcullis_core::{Denied, Limiter, LimiterExt, Retry, Timestamp};
/// use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
///
/// /// Grants every request until it is switched off.
/// struct Gate(AtomicBool);
///
/// impl Limiter for Gate {
///     fn decide(&self, ask: Ask<'_>) -> Answer {
///         if self.0.load(Ordering::Relaxed) {
///             ask.granted(Receipt::NONE)
///         } else {
///             Answer::Denied(Denied::Refused { now: ask.now(), permits: ask.permits() })
///         }
///     }
///     /// It counts nothing, so there is nothing to return.
///     fn give_back(&self, _: Back<'_>) -> Returned {
///         Returned::NOTHING
///     }
///     fn read(&self, _: Read<'_>) -> Reading {
///         let available = if self.0.load(Ordering::Relaxed) { u64::MAX } else { 0 };
///         Reading { available, capacity: u64::MAX, idle: Idle::InUse, held: 0 }
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
///
/// A wrapper:
///
/// ```
/// use portcullis_core::{Denied, Limiter, Retry};
/// use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
/// use portcullis_core::queue::QueueLimiter;
///
/// /// Logs each denial.
/// struct Logged<L>(L);
///
/// impl<L: Limiter> Limiter for Logged<L> {
///     fn decide(&self, ask: Ask<'_>) -> Answer {
///         let answer = self.0.decide(ask);
///         if let Answer::Denied(denied) = &answer {
///             println!("{denied}");
///         }
///         answer
///     }
///     fn give_back(&self, back: Back<'_>) -> Returned {
///         self.0.give_back(back)
///     }
///     fn read(&self, read: Read<'_>) -> Reading {
///         self.0.read(read)
///     }
///     fn retry(&self, denied: Denied) -> Retry {
///         self.0.retry(denied)
///     }
/// }
///
/// impl<L: QueueLimiter> QueueLimiter for Logged<L> {}
/// ```
///
/// None of the four can be forgotten:
///
/// ```compile_fail,E0046
/// # use portcullis_core::{Concurrency, Denied, Limiter, Retry};
/// # use portcullis_core::limiter::{Answer, Ask, Read, Reading};
/// struct Logged(Concurrency);
///
/// impl Limiter for Logged {
///     fn decide(&self, ask: Ask<'_>) -> Answer {
///         self.0.decide(ask)
///     }
///     fn read(&self, read: Read<'_>) -> Reading {
///         self.0.read(read)
///     }
///     fn retry(&self, denied: Denied) -> Retry {
///         self.0.retry(denied)
///     }
///     // `give_back` is missing: it calls `self.0.give_back(back)`.
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    note = "if it is a `Clocked` limiter, or a `ClockedKey` (a key of a `Clocked` table), pass the limiter in it: call `.limiter()`",
    note = "if it is a table, pass the limiter of one key: call `.key(&key)`",
    note = "if it is the rules of a table, such as `TokenBucketRules`, pass a limiter: `TokenBucket`"
)]
pub trait Limiter {
    /// Decides on a request: grants or denies it, or says what would be decided.
    ///
    /// A wrapper passes `ask` on to its limiter, as it is, and may act on the answer. One that acts
    /// on grants asks with [`Ask::put_to`]. One that records denials records only those of
    /// requests that are [final](Ask::is_final), and learns of the others by
    /// [`Back::NotGranted`].
    fn decide(&self, ask: Ask<'_>) -> Answer;

    /// Takes permits back, or takes notice of what becomes of a request: see [`Back`].
    ///
    /// A wrapper passes `back` on to its limiter, as it is.
    ///
    /// A limiter whose permits return by [release](Back::Release) must act on a release and on a
    /// [refund](Back::Refund): one that cannot refund releases the permits, and counts none as
    /// never taken. All others may return [`Returned::NOTHING`].
    fn give_back(&self, back: Back<'_>) -> Returned;

    /// Returns the numbers of the limiter: see [`Reading`]. Changes nothing.
    ///
    /// A limiter with metadata of its own offers it to `read` first: see [`Read::offer`]. A wrapper
    /// passes `read` on to its limiter, as it is.
    fn read(&self, read: Read<'_>) -> Reading;

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

    /// Returns the identity of this limiter. A composition that contains one limiter twice uses it
    /// to ask the limiter once, for the sum. The default is `None`: the identity is unknown, and
    /// the composition asks twice.
    ///
    /// A limiter with state of its own returns [`LimiterId::of`] itself, even if it wraps another
    /// limiter. A wrapper without state keeps the default, because it cannot be distinguished from
    /// the limiter that it wraps.
    #[inline]
    fn id(&self) -> Option<LimiterId> {
        None
    }

    /// Returns what a caller may rely on to ask in a faster way: see [`Hints`]. The default is
    /// [`Hints::NONE`], which is right for every limiter.
    ///
    /// A wrapper returns what holds for it as well. For example, a wrapper that acts on a grant
    /// must not say [`one_receipt`](Hints::one_receipt), unless its `give_back` undoes what it has
    /// done.
    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::NONE
    }

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
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.decide(Ask::take(now, n)).taken(now, n)
    }

    /// Returns whether [`take_at`](Self::take_at) would grant, without any effect. Effects of a
    /// denial, such as the start of a [`Penalty`](crate::Penalty), do not happen either.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request would be denied.
    #[inline]
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.decide(Ask::look(now, n)).planned(now, n).map(|_| ())
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
    #[inline]
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let back = Back::Refund {
            now,
            permits: n,
            receipt,
            receipts: None,
        };
        self.give_back(back).refund
    }

    /// Releases `n` permits that were taken from this limiter and not returned since.
    ///
    /// A [`Lease`] and a [`LeasePool`](crate::LeasePool) call this method, and never for more
    /// permits than they hold. The caller must not release permits that were not taken: the limiter
    /// would then admit that many permits too many. With debug assertions such a release panics.
    #[inline]
    fn release(&self, n: u32) {
        let _ = self.give_back(Back::Release { permits: n });
    }

    /// Returns the permits available at `now`.
    #[inline]
    fn available_at(&self, now: Timestamp) -> u64 {
        self.read(Read::at(now)).available
    }

    /// Returns the largest number of permits that can ever be available at once.
    #[inline]
    fn capacity(&self) -> u64 {
        self.read(Read::at(Timestamp::ZERO)).capacity
    }
}

/// What a caller may rely on to ask a limiter in a faster way: the result of [`Limiter::hints`].
///
/// ```
/// # use portcullis_core::{AllOf, Concurrency, Limiter};
/// # use portcullis_core::limiter::Hints;
/// assert!(Concurrency::new(1).hints().one_receipt);
/// assert!(!AllOf::new((Concurrency::new(1), Concurrency::new(2))).hints().one_receipt);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Hints {
    /// Whether the limiter often decides within an interval: whether it is worth the caller's while
    /// to read one, and to ask within it ([`When::Within`]). If not, the limiter is never asked so.
    pub decides_within: bool,
    /// Whether the receipt of a grant is all that is needed to undo it, because the limiter takes
    /// from one limit only. If not, a composition takes from its other limits inside the take of
    /// this one ([`Tell::Grant`]), and a queue asks for the receipts of all limits
    /// ([`Tell::Receipts`]).
    pub one_receipt: bool,
}

impl Hints {
    /// A caller may rely on nothing.
    pub const NONE: Self = Self {
        decides_within: false,
        one_receipt: false,
    };

    /// The limiter takes from one limit, by the receipt.
    pub const ONE_RECEIPT: Self = Self {
        one_receipt: true,
        ..Self::NONE
    };

    /// Returns the hints of a limiter that also decides within intervals.
    ///
    /// ```
    /// # use portcullis_core::limiter::Hints;
    /// assert!(Hints::ONE_RECEIPT.within_intervals().decides_within);
    /// ```
    #[inline(always)]
    #[must_use]
    pub const fn within_intervals(self) -> Self {
        Self {
            decides_within: true,
            ..self
        }
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

/// More questions to any limiter, and methods that take permits as a [`Lease`]. Implemented for
/// every limiter. Import the trait with `use portcullis_core::LimiterExt`.
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

    /// Takes `n` permits that return by time, and returns whether it got them. For a limiter whose
    /// permits need no lease: a rate or a window.
    ///
    /// `try_acquire_at(now, n).is_ok()` drops the lease at once. For permits that return by time,
    /// that is what this method does. Other permits are released by it before the work begins, so
    /// such a limiter limits nothing. This method does not compile for it.
    ///
    /// ```
    /// # use portcullis_core::{LimiterExt, Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(1), 1);
    /// let now = Timestamp::from_secs(7);
    /// assert!(bucket.allow_at(now, 1));
    /// assert!(!bucket.allow_at(now, 1));
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # use portcullis_core::{Concurrency, LimiterExt, Timestamp};
    /// let workers = Concurrency::new(4);
    /// if workers.allow_at(Timestamp::ZERO, 1) {
    ///     // At most 4 at once? No: the permit would be free again here.
    /// }
    /// ```
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// let workers = Concurrency::new(4);
    /// if let Ok(_lease) = workers.try_acquire(1) {
    ///     // At most 4 at once.
    /// }
    /// ```
    #[inline]
    #[must_use = "the permits are taken"]
    fn allow_at(&self, now: Timestamp, n: u32) -> bool
    where
        Self: Replenishing,
    {
        self.try_acquire_at(now, n).is_ok()
    }

    /// Takes permits as [`try_acquire_at`](Self::try_acquire_at) does, and returns what the
    /// decision saw: how many permits are left, of how many, and when to retry. The numbers are
    /// those of this decision, whatever other callers take at the same time: see
    /// [`take_explained_at`](Self::take_explained_at).
    ///
    /// # Errors
    ///
    /// The first result is [`Denied`] if the request is denied. Then no permit has been taken.
    ///
    /// # Cost
    ///
    /// That of [`take_explained_at`](Self::take_explained_at).
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

    /// Takes permits as [`take_at`](Limiter::take_at) does, and returns the numbers of the
    /// decision, such as the permits that are left: see [`Detail`]. For example, for the header
    /// fields of a response.
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
    ///   request for a key that a keyed table has no slot for, a [`Slice`](crate::parts::Slice), a
    ///   limiter in stripes ([`Striped`](crate::parts::Striped)), and a limiter of your own that
    ///   does not tell them ([`Tell::Detail`]).
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
    /// # use portcullis_core::{Concurrency, Limiter, LimiterExt, Retry, Timestamp};
    /// let limit = Concurrency::new(5);
    /// let (taken, detail) = limit.take_explained_at(Timestamp::ZERO, 2);
    /// assert!(taken.is_ok());
    /// assert_eq!((detail.available, detail.capacity), (3, 5));
    /// assert_eq!(detail.full_again, Retry::OnRelease);
    /// ```
    fn take_explained_at(&self, now: Timestamp, n: u32) -> (Result<Receipt, Denied>, Detail) {
        let seen = Cell::new(None);
        let ask = Ask::take(now, n).telling(Tell::Detail(&seen));
        // Refunded if the limiter panics when it is asked again.
        let taken = self.decide(ask).taken(now, n);
        let taken = taken.map(|receipt| UndoOnDrop::new(self, now, n, receipt));
        let look = |n| self.explain_at(now, n);
        let retry = |denied| self.retry(denied);
        let detail = detail::told((now, n), detail::outcome(&taken), seen.get(), look, retry);
        (taken.map(UndoOnDrop::into_receipt), detail)
    }

    /// Returns what would happen to a request for `n` permits at `now`: whether it would be
    /// granted, how many permits are available, and when to retry. Writes nothing.
    ///
    /// The result is that of [`take_explained_at`](Self::take_explained_at), except that nothing is
    /// taken: `available` are the permits before the request.
    ///
    /// A limiter that does not [tell](Tell::Detail) is asked several times: each question reads the
    /// state again.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter, LimiterExt, Retry, Timestamp};
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
        let seen = Cell::new(None);
        let ask = Ask::look(now, n).telling(Tell::Detail(&seen));
        let looked = self.decide(ask).planned(now, n).map(|_| ());
        match seen.get() {
            Some(detail) if detail.decision == looked => detail,
            _ => Detail::of(self, now, looked),
        }
    }

    /// Takes `n` permits at some instant in `interval`, if it does not matter which one: if
    /// [`take_at`](Limiter::take_at) would decide alike, and leave the limiter in the same state,
    /// at every instant of the interval. If it matters, returns `None`, and nothing has changed.
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
    /// A limiter that does not [decide within intervals](Hints::decides_within) returns `None`.
    ///
    /// The denial or the receipt contains the earliest instant of the interval as its time. For
    /// such a denial, [`retry`](Limiter::retry) returns the same time as for a denial at the exact
    /// instant.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Denied, Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
    /// # use portcullis_core::clock::Interval;
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
        if !self.hints().decides_within {
            return None;
        }
        match self.decide(Ask::take(interval, n)) {
            Answer::TimeMatters => None,
            answer => Some(answer.taken(interval.earliest(), n)),
        }
    }

    /// Returns what [`take_within`](Self::take_within) would return, without any effect.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Limiter, LimiterExt, Timestamp};
    /// # use portcullis_core::clock::Interval;
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
        if !self.hints().decides_within {
            return None;
        }
        match self.decide(Ask::look(interval, n)) {
            Answer::TimeMatters => None,
            answer => Some(answer.planned(interval.earliest(), n).map(|_| ())),
        }
    }

    /// Returns whether the limiter is idle at `now`, that is, indistinguishable from a fresh one.
    /// [`Idle::InUse`] is also the answer if the state is unknown.
    #[inline]
    fn idle_at(&self, now: Timestamp) -> Idle {
        self.read(Read::at(now)).idle
    }

    /// Returns the number of permits that are in use and return only by
    /// [`release`](Limiter::release); 0 for a limiter whose permits return by time.
    #[inline]
    fn held(&self) -> u64 {
        self.read(Read::at(Timestamp::ZERO)).held
    }

    /// Offers metadata about a request: values that a caller can read by their names, such as the
    /// reason of a denial. See [`metadata`](mod@metadata). The request was granted at `now` if
    /// `denied` is `None`, and otherwise denied.
    ///
    /// The limiter offers its own values first ([`Read::offer`]). Then follow those that every
    /// limiter has: [`USED_SHARE`](metadata::USED_SHARE), and for a denial
    /// [`RETRY_AFTER`](metadata::RETRY_AFTER) and [`REASON_PHRASE`](metadata::REASON_PHRASE).
    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        let _ = self.read(Read {
            now,
            denied,
            offers: Some(offers.by_ref()),
        });
        offer(self, now, denied, offers);
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
        Ask::take(now, n).put_then(self, rest)
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
    /// # use portcullis_core::{Concurrency, Unlimited};
    /// # use portcullis_core::limiter::LimiterId;
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
/// use portcullis_core::{FixedWindow, Timestamp};
/// use portcullis_core::limiter::Idle;
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
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_core::limiter::Idle;
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
            #[inline(always)]
            fn decide(&self, ask: crate::limiter::Ask<'_>) -> crate::limiter::Answer {
                self.deref().decide(ask)
            }
            #[inline(always)]
            fn give_back(&self, back: crate::limiter::Back<'_>) -> crate::limiter::Returned {
                self.deref().give_back(back)
            }
            #[inline(always)]
            fn read(&self, read: crate::limiter::Read<'_>) -> crate::limiter::Reading {
                self.deref().read(read)
            }
            #[inline]
            fn retry(&self, denied: Denied) -> Retry {
                self.deref().retry(denied)
            }
            #[inline]
            fn id(&self) -> Option<LimiterId> {
                self.deref().id()
            }
            #[inline(always)]
            fn hints(&self) -> crate::limiter::Hints {
                self.deref().hints()
            }
        }
    )*};
}
pub(crate) use forward;

forward!([L: Limiter + ?Sized] &L);
#[cfg(feature = "std")]
forward!([L: Limiter + ?Sized] std::boxed::Box<L>, [L: Limiter + ?Sized] std::sync::Arc<L>);
