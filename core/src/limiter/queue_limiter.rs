//! The limiters that a queue may own. Their permits return by time, or are released through the
//! queue, which then wakes a waiter.

use crate::limiter::Limiter;

/// A limiter that a queue can own, with what only its queue asks.
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
/// released through the queue that owns it. It has no required items: the defaults are right for
/// every limiter, and only slower.
///
/// ```
/// use portcullis_core::{Denied, Limiter, Retry};
/// use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
/// use portcullis_core::queue::QueueLimiter;
///
/// /// A limiter that logs each denial.
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
/// impl<L: QueueLimiter> QueueLimiter for Logged<L> {
///     /// Faster than the default.
///     const SHARED: bool = L::SHARED;
/// }
/// ```
///
/// A pointer to a concurrency limit does not implement this trait, and neither does a composition
/// that contains one. A release through one queue would not wake the waiters of another queue.
///
/// ```compile_fail,E0277
/// # use portcullis_core::Concurrency;
/// # use portcullis_core::queue::QueueLimiter;
/// fn waits(_: impl QueueLimiter) {}
/// waits(&Concurrency::new(1));
/// ```
///
/// ```compile_fail,E0277
/// # use portcullis_core::{AllOf, Concurrency};
/// # use portcullis_core::queue::QueueLimiter;
/// fn waits(_: impl QueueLimiter) {}
/// let all = Concurrency::new(9);
/// waits(AllOf::new((Concurrency::new(1), &all)));
/// ```
///
/// ```
/// # use portcullis_core::{AllOf, Concurrency, Rate, TokenBucket};
/// # use portcullis_core::queue::QueueLimiter;
/// # fn waits(_: impl QueueLimiter) {}
/// let all = TokenBucket::new(Rate::per_second(9), 9);
/// waits(AllOf::new((Concurrency::new(1), &all)));
/// waits(&all);
/// ```
#[diagnostic::on_unimplemented(
    message = "a queue cannot own `{Self}`",
    label = "a permit that is released directly to the limiter wakes no waiter of the queue",
    note = "pass the limiter by value; a pointer is allowed only if all permits return by time (`Replenishing`)",
    note = "to limit each key and all keys together, pass `WithTotal::new(table, total)` to a `KeyedQueue`",
    note = "for a limiter of your own whose permits are released through the queue, implement `QueueLimiter`"
)]
pub trait QueueLimiter: Limiter {
    /// Whether other callers may take from the limiter without going through the queue. If `true`,
    /// the queue never grants as of a past instant: the other callers take at the present, so the
    /// queue must not pass timestamps that are older than necessary. The default is `true`.
    const SHARED: bool = true;

    /// Hands `n` held permits over to another holder, without returning them to the limiter in
    /// between. The queue calls this instead of a [release](Limiter::release), to pass the permits
    /// to a waiter. Returns whether other permits are free.
    ///
    /// With [`PassedOn::No`] the caller must release the permits and take them again. That is the
    /// default. It is also the result while more permits are in use than the limit allows.
    ///
    /// Implement this method only for limiters that ignore time and whose permits are
    /// interchangeable. The new holder's request is not put to [`decide`](Limiter::decide). So a
    /// wrapper that has a say in each grant keeps the default.
    fn pass_on(&self, n: u32) -> PassedOn {
        let _ = n;
        PassedOn::No
    }
}

/// Whether permits were handed over from one holder to another: the result of
/// [`QueueLimiter::pass_on`].
///
/// ```
/// # use portcullis_core::{Concurrency, Limiter, Timestamp};
/// # use portcullis_core::queue::{PassedOn, QueueLimiter};
/// let limit = Concurrency::new(3);
/// limit.take_at(Timestamp::ZERO, 2)?;
/// assert_eq!(limit.pass_on(2), PassedOn::OthersAreFree);
/// limit.set_limit(1)?;
/// assert_eq!(limit.pass_on(2), PassedOn::No, "more are in use than the limit allows");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a queue must act on each")]
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
/// Implement it for a limiter of your own that is one.
///
/// A [refund](Limiter::refund_at) or a change of settings that does not go through a queue wakes
/// none of its waiters. They get the permits at the time that the queue has already computed, or at
/// the next call to the queue.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_core::queue::{QueueLimiter, Replenishing};
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
/// use portcullis_core::{Rate, SlidingWindow, TokenBucket};
/// use portcullis_core::queue::{Replenishing, QueueLimiter};
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
/// # use portcullis_core::Concurrency;
/// # use portcullis_core::queue::Replenishing;
/// let _: &dyn Replenishing = &Concurrency::new(1);
/// ```
#[diagnostic::on_unimplemented(
    message = "permits of `{Self}` do not return by time alone",
    label = "its permits must be held: they are free again once their lease is dropped",
    note = "keep the lease during the work: `let Ok(_lease) = limit.try_acquire(1) else {{ ... }};`",
    note = "a queue cannot own a pointer to it: a permit that is released directly to the limiter wakes no waiter of the queue; pass the limiter by value; to limit each key and all keys together, pass `WithTotal::new(table, total)` to a `KeyedQueue`"
)]
pub trait Replenishing: Limiter {}

/// Implements what a queue needs for limiters whose permits return by time alone.
macro_rules! replenishing {
    ([$($generics:tt)*] $limiter:ty) => {
        impl<$($generics)*> $crate::queue::Replenishing for $limiter {}

        impl<$($generics)*> $crate::queue::QueueLimiter for $limiter {
            const SHARED: bool = false;
        }
    };
}
pub(crate) use replenishing;

// Other callers may have a pointer to the same limiter. So may those of a trait object, even in a
// `Box`: it may be an `Arc` of a limiter.
impl<L: Replenishing + ?Sized> QueueLimiter for &L {}
#[cfg(feature = "std")]
impl<L: Replenishing + ?Sized> QueueLimiter for std::sync::Arc<L> {}
impl QueueLimiter for dyn Replenishing + '_ {}
impl QueueLimiter for dyn Replenishing + Send + '_ {}
impl QueueLimiter for dyn Replenishing + Sync + '_ {}
impl QueueLimiter for dyn Replenishing + Send + Sync + '_ {}

impl<L: Replenishing + ?Sized> Replenishing for &L {}
#[cfg(feature = "std")]
impl<L: Replenishing + ?Sized> Replenishing for std::sync::Arc<L> {}
#[cfg(feature = "std")]
impl<L: Replenishing + ?Sized> Replenishing for std::boxed::Box<L> {}

#[cfg(feature = "std")]
impl<L: QueueLimiter + ?Sized> QueueLimiter for std::boxed::Box<L> {
    const SHARED: bool = L::SHARED;

    #[inline]
    fn pass_on(&self, n: u32) -> PassedOn {
        (**self).pass_on(n)
    }
}
