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
/// One line is enough: `impl QueueLimiter for Mine {}`. It asserts that all
/// [released](Limiter::release) permits of this limiter are released through the queue that owns
/// it. If other code takes from the limiter without going through the queue, because it shares its
/// state, set [`SHARED`](Self::SHARED) to `true`.
///
/// ```
/// use portcullis_core::{
///     Concurrency, Denied, Limiter, QueueLimiter, Receipt, Retry, Timestamp,
/// };
///
/// /// A concurrency limit that logs each denial.
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
    note = "for a limiter of your own whose permits are released through the queue: `impl QueueLimiter for Mine {{}}`"
)]
pub trait QueueLimiter: Limiter {
    /// Whether other callers may take from the limiter without going through the queue. If `true`,
    /// the queue never grants as of a past instant: the other callers take at the present, so the
    /// queue must not pass timestamps that are older than necessary.
    const SHARED: bool = false;

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
    /// release, the release must return [`Waiting::Yes`]. The default does nothing.
    fn watch(&self, waits: bool) {
        let _ = waits;
    }

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

    /// Whether a grant needs more than one [`Receipt`]. If `true`, the queue calls
    /// [`take_noted_at`](Self::take_noted_at) and [`refund_noted_at`](Self::refund_noted_at).
    const NOTES: bool = false;

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
        notes.clear();
        self.take_at(now, n)
    }

    /// Refunds permits as [`refund_at`](Limiter::refund_at) does, for a grant with these notes.
    /// Returns how many permits count as never taken.
    fn refund_noted_at(&self, now: Timestamp, n: u32, receipt: Receipt, notes: Receipts) -> u32 {
        let _ = notes;
        self.refund_at(now, n, receipt).permits
    }

    /// Returns the number of permits that are in use and return only by
    /// [`release`](Limiter::release). The default is 0, as for a limiter whose permits return by
    /// time.
    fn held(&self) -> u64 {
        0
    }
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
            #[inline]
            fn release_watched(&self, _: u32) -> $crate::Waiting {
                $crate::Waiting::No
            }
        }
    };
}
pub(crate) use replenishing;

/// Implements the same for a pointer to a limiter that other callers may share.
macro_rules! shared {
    ($([$($generics:tt)*] $pointer:ty),*) => {$(
        impl<$($generics)*> Replenishing for $pointer {}

        impl<$($generics)*> QueueLimiter for $pointer {
            const SHARED: bool = true;

            #[inline]
            fn release_watched(&self, n: u32) -> Waiting {
                self.release(n);
                Waiting::No
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
