use crate::{Denied, Limiter, Receipt, Receipts, Timestamp};

/// A limiter that a queue can own, with the methods that only its queue calls.
///
/// A queue notices a release only if the release goes through the queue. A permit that is released
/// directly to the limiter wakes no waiter. So this trait is implemented for limiters that the
/// queue owns. A pointer to a limiter implements it only if all permits return by time
/// ([`Replenishing`]). Then the queue grants at the right time even if other callers take from the
/// same limiter.
///
/// # Implementing
///
/// An implementation asserts that all [released](Limiter::release) permits of this limiter are
/// released through the queue that owns it.
///
/// Whatever would be lost if it was forgotten is required:
///
/// | item | a limiter that wraps none | a wrapper | if it is wrong |
/// |---|---|---|---|
/// | [`SHARED`](Self::SHARED) | whether other code takes from it | that of its limiter | the bound is exceeded |
/// | [`NOTES`](Self::NOTES) | `false` | that of its limiter | a cancelled grant is lost |
/// | [`held`](Self::held) | the permits in use that return by release | that of its limiter | `drained` is ready too early |
/// | [`watch`](Self::watch) | does nothing, unless `release_watched` relies on it | forwards | a waiter is not woken |
///
/// A wrapper of a limiter whose `NOTES` may be `true` also forwards
/// [`take_noted_at`](Self::take_noted_at) and [`refund_noted_at`](Self::refund_noted_at). Otherwise
/// its queue does not compile. The defaults of [`release_watched`](Self::release_watched) and
/// [`pass_on`](Self::pass_on) lose nothing; they only take longer.
///
/// ```
/// use portcullis_core::{
///     Denied, Limiter, QueueLimiter, Receipt, Receipts, Refund, Retry, Timestamp,
/// };
///
/// /// A limiter that logs each denial.
/// struct Logged<L>(L);
///
/// impl<L: Limiter> Limiter for Logged<L> {
///     fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
///         self.0
///             .take_at(now, n)
///             .inspect_err(|denied| println!("{denied}"))
///     }
///     fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> portcullis_core::Refund {
///         self.0.refund_at(now, n, receipt)
///     }
///     fn release(&self, n: u32) {
///         self.0.release(n);
///     }
///     fn available_at(&self, now: Timestamp) -> u64 {
///         self.0.available_at(now)
///     }
///     fn retry(&self, denied: Denied) -> Retry {
///         self.0.retry(denied)
///     }
/// }
///
/// impl<L: QueueLimiter> QueueLimiter for Logged<L> {
///     const SHARED: bool = L::SHARED;
///     const NOTES: bool = L::NOTES;
///     fn held(&self) -> u64 {
///         self.0.held()
///     }
///     fn watch(&self, waits: bool) {
///         self.0.watch(waits);
///     }
///     fn take_noted_at(
///         &self,
///         now: Timestamp,
///         n: u32,
///         notes: &mut Receipts,
///     ) -> Result<Receipt, Denied> {
///         self.0
///             .take_noted_at(now, n, notes)
///             .inspect_err(|denied| println!("{denied}"))
///     }
///     fn refund_noted_at(
///         &self,
///         now: Timestamp,
///         n: u32,
///         receipt: Receipt,
///         notes: Receipts,
///     ) -> u32 {
///         self.0.refund_noted_at(now, n, receipt, notes)
///     }
/// }
/// ```
///
/// A pointer to a concurrency limit does not implement this trait, and neither does a composition
/// that contains one. A release through one queue would not wake the waiters of another queue.
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
    label = "a permit that is released directly to the limiter wakes no waiter of the queue",
    note = "pass the limiter by value; a pointer is allowed only if all permits return by time (`Replenishing`)",
    note = "to limit both a part and the whole, give the whole a queue of its own, and acquire from both queues, one after the other",
    note = "for a limiter of your own whose permits are released through the queue, implement `QueueLimiter`; if it wraps another limiter, forward each item to that limiter, with both methods whose names contain `noted`"
)]
pub trait QueueLimiter: Limiter {
    /// Whether other callers may take from the limiter without going through the queue. If `true`,
    /// the queue never grants as of a past instant: the other callers take at the present, so the
    /// queue must not pass timestamps that are older than necessary.
    const SHARED: bool;

    /// Releases `n` permits, as [`release`](Limiter::release) does. Returns whether a request waits
    /// for them.
    ///
    /// The default returns [`Waiting::Unknown`], and the queue then checks its wait lists. A
    /// limiter can store what [`watch`](Self::watch) passes in the word that a release changes. The
    /// release then reads the answer from that word, and the queue need not check.
    #[inline]
    fn release_watched(&self, n: u32) -> Waiting {
        self.release(n);
        Waiting::Unknown
    }

    /// Informs the limiter whether its queue has waiters.
    ///
    /// Consider a [`release_watched`](Self::release_watched) between `watch(true)` and
    /// `watch(false)`, and a take that starts after `watch(true)`. If the take does not observe the
    /// release, the release must return [`Waiting::Yes`]. A limiter with the default of
    /// `release_watched` does nothing. There is no default, because a wrapper that forwards
    /// `release_watched` alone would leave its waiters asleep.
    fn watch(&self, waits: bool);

    /// Hands `n` held permits over to another holder, without returning them to the limiter in
    /// between. The queue calls this instead of a [release](Limiter::release), to pass the permits
    /// to a waiter. Returns whether other permits are free.
    ///
    /// With [`PassedOn::No`] the caller must release the permits and take them again. That is the
    /// default. It is also the result while more permits are in use than the limit allows.
    ///
    /// Implement this method only for limiters that ignore time and whose permits are
    /// interchangeable.
    fn pass_on(&self, n: u32) -> PassedOn {
        let _ = n;
        PassedOn::No
    }

    /// Whether a grant needs more than one [`Receipt`], as that of an [`AllOf`](crate::AllOf) does.
    /// If `true`, the queue calls [`take_noted_at`](Self::take_noted_at) and
    /// [`refund_noted_at`](Self::refund_noted_at), and both must be implemented.
    ///
    /// ```compile_fail,E0080
    /// # use portcullis_core::{
    /// #     AllOf, Concurrency, Denied, Limiter, QueueLimiter, Receipt, Receipts, Refund, Retry,
    /// #     Timestamp,
    /// # };
    /// # struct Mine<L>(L);
    /// # impl<L: Limiter> Limiter for Mine<L> {
    /// #     fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
    /// #         self.0.take_at(now, n)
    /// #     }
    /// #     fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
    /// #         self.0.refund_at(now, n, receipt)
    /// #     }
    /// #     fn release(&self, n: u32) {
    /// #         self.0.release(n);
    /// #     }
    /// #     fn available_at(&self, now: Timestamp) -> u64 {
    /// #         self.0.available_at(now)
    /// #     }
    /// #     fn retry(&self, denied: Denied) -> Retry {
    /// #         self.0.retry(denied)
    /// #     }
    /// # }
    /// impl<L: QueueLimiter> QueueLimiter for Mine<L> {
    ///     const SHARED: bool = L::SHARED;
    ///     const NOTES: bool = L::NOTES;
    ///     fn held(&self) -> u64 {
    ///         self.0.held()
    ///     }
    ///     fn watch(&self, waits: bool) {
    ///         self.0.watch(waits);
    ///     }
    ///     // `take_noted_at` and `refund_noted_at` are missing.
    /// }
    ///
    /// // What a queue does.
    /// let both = Mine(AllOf::new((Concurrency::new(1), Concurrency::new(2))));
    /// let granted = both.take_noted_at(Timestamp::ZERO, 1, &mut Receipts::NONE);
    /// ```
    const NOTES: bool;

    /// Takes permits as [`take_at`](Limiter::take_at) does, and stores the receipts of all limits
    /// that the permits come from in `notes`. With them a grant that is not claimed can be refunded
    /// to each limit.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then nothing has changed.
    fn take_noted_at(
        &self,
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied> {
        const {
            assert!(
                !Self::NOTES,
                "a limiter with `NOTES` implements `take_noted_at`"
            );
        };
        notes.clear();
        self.take_at(now, n)
    }

    /// Refunds permits as [`refund_at`](Limiter::refund_at) does, for a grant with these notes.
    /// Returns how many permits count as never taken.
    fn refund_noted_at(&self, now: Timestamp, n: u32, receipt: Receipt, notes: Receipts) -> u32 {
        const {
            assert!(
                !Self::NOTES,
                "a limiter with `NOTES` implements `refund_noted_at`"
            );
        };
        let _ = notes;
        self.refund_at(now, n, receipt).permits
    }

    /// Returns the number of permits that are in use and return only by
    /// [`release`](Limiter::release); 0 for a limiter whose permits return by time.
    fn held(&self) -> u64;
}

/// Whether a request waits for permits that were released: the result of
/// [`QueueLimiter::release_watched`].
///
/// ```
/// # use portcullis_core::{Concurrency, Limiter, QueueLimiter, Timestamp, Waiting};
/// let limit = Concurrency::new(1);
/// limit.take_at(Timestamp::ZERO, 1)?;
/// limit.watch(true);
/// assert_eq!(limit.release_watched(1), Waiting::Yes);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// A request is waiting.
    Yes,
    /// No request is waiting, or no permits became free.
    No,
    /// The limiter does not know: the queue checks its wait lists.
    Unknown,
}

/// Whether permits were handed over from one holder to another: the result of
/// [`QueueLimiter::pass_on`].
///
/// ```
/// # use portcullis_core::{Concurrency, Limiter, PassedOn, QueueLimiter, Timestamp};
/// let limit = Concurrency::new(3);
/// limit.take_at(Timestamp::ZERO, 2)?;
/// assert_eq!(limit.pass_on(2), PassedOn::OthersAreFree);
/// limit.set_limit(1)?;
/// assert_eq!(limit.pass_on(2), PassedOn::No, "more are in use than the limit allows");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassedOn {
    /// The permits were not handed over. The caller must release them and take them again.
    No,
    /// The permits belong to the new holder, and no other permits are free.
    NoneAreFree,
    /// The permits belong to the new holder, and other permits are free.
    OthersAreFree,
}

/// A limiter whose permits all return by time alone: its [`release`](Limiter::release) makes
/// none available. So several queues at once can own pointers to it.
///
/// A [refund](Limiter::refund_at) or a change of settings that does not go through a queue wakes
/// none of its waiters. They get the permits at the time that the queue has already computed, or at
/// the next call to the queue.
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
/// A limiter whose type is chosen at run time can be owned as a trait object in a `Box`. The queue
/// does not see whether other callers have the limiter, so it treats it as
/// [shared](QueueLimiter::SHARED):
///
/// ```
/// use portcullis_core::{Replenishing, QueueLimiter, Rate, SlidingWindow, TokenBucket};
/// use core::time::Duration;
/// fn waits(_: impl QueueLimiter) {}
/// let smooth = false;
/// let limit: Box<dyn Replenishing + Send + Sync> = if smooth {
///     Box::new(TokenBucket::new(Rate::per_second(9), 9))
/// } else {
///     Box::new(SlidingWindow::<8>::new(9, Duration::from_secs(1), 8))
/// };
/// waits(limit);
/// ```
///
/// ```compile_fail,E0277
/// # use portcullis_core::{Concurrency, Replenishing};
/// let _: &dyn Replenishing = &Concurrency::new(1);
/// ```
#[diagnostic::on_unimplemented(
    message = "permits of `{Self}` do not return by time alone",
    label = "a queue cannot own a pointer to it: a permit that is released directly to the limiter wakes no waiter of the queue",
    note = "pass the limiter by value; to limit both a part and the whole, give the whole a queue of its own, and acquire from both queues, one after the other"
)]
pub trait Replenishing: Limiter {}

/// Implements what a queue needs for limiters whose permits return by time alone. Dropping a
/// lease then never needs to look for waiters.
macro_rules! replenishing {
    ([$($generics:tt)*] $limiter:ty) => {
        impl<$($generics)*> $crate::Replenishing for $limiter {}

        impl<$($generics)*> $crate::QueueLimiter for $limiter {
            const SHARED: bool = false;

            const NOTES: bool = false;

            #[inline]
            fn release_watched(&self, _: u32) -> $crate::Waiting {
                $crate::Waiting::No
            }

            fn watch(&self, _: bool) {}

            fn held(&self) -> u64 {
                0
            }
        }
    };
}
pub(crate) use replenishing;

/// Implements the same for a limiter that other callers may share.
macro_rules! shared {
    ($([$($generics:tt)*] $limiter:ty),* $(,)?) => {$(
        impl<$($generics)*> QueueLimiter for $limiter {
            const SHARED: bool = true;

            /// A composition in it returns no receipts. What a cancelled grant has
            /// taken from its rates comes back by time.
            const NOTES: bool = false;

            #[inline]
            fn release_watched(&self, n: u32) -> Waiting {
                self.release(n);
                Waiting::No
            }

            fn watch(&self, _: bool) {}

            fn held(&self) -> u64 {
                0
            }
        }
    )*};
}

shared!([L: Replenishing + ?Sized] &L);
#[cfg(feature = "std")]
shared!([L: Replenishing + ?Sized] std::sync::Arc<L>);
// Even in a `Box`: a trait object may be an `Arc` of a limiter that others have.
shared! {
    [] dyn Replenishing + '_,
    [] dyn Replenishing + Send + '_,
    [] dyn Replenishing + Sync + '_,
    [] dyn Replenishing + Send + Sync + '_,
}

impl<L: Replenishing + ?Sized> Replenishing for &L {}
#[cfg(feature = "std")]
impl<L: Replenishing + ?Sized> Replenishing for std::sync::Arc<L> {}
#[cfg(feature = "std")]
impl<L: Replenishing + ?Sized> Replenishing for std::boxed::Box<L> {}

#[cfg(feature = "std")]
impl<L: QueueLimiter + ?Sized> QueueLimiter for std::boxed::Box<L> {
    const SHARED: bool = L::SHARED;
    const NOTES: bool = L::NOTES;

    fn take_noted_at(
        &self,
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied> {
        (**self).take_noted_at(now, n, notes)
    }

    fn refund_noted_at(&self, now: Timestamp, n: u32, receipt: Receipt, notes: Receipts) -> u32 {
        (**self).refund_noted_at(now, n, receipt, notes)
    }

    #[inline]
    fn release_watched(&self, n: u32) -> Waiting {
        (**self).release_watched(n)
    }

    fn watch(&self, waits: bool) {
        (**self).watch(waits);
    }

    #[inline]
    fn pass_on(&self, n: u32) -> PassedOn {
        (**self).pass_on(n)
    }

    fn held(&self) -> u64 {
        (**self).held()
    }
}
