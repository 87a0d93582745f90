use crate::{Denied, Limiter, Receipt, Receipts, Timestamp};

/// A limiter that a queue can own, and what it does for that queue alone.
///
/// A queue learns of a release only if the release goes through the queue. A permit that is
/// released past the queue wakes no waiter. So this trait is implemented for limiters that the
/// queue owns. Pointers to limiters implement it only where permits come back by time alone
/// ([`Replenishing`]): the queue then grants at the right time, also if others take from the same
/// limiter.
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
    label = "a permit that is released past the queue wakes no waiter",
    note = "give the queue the limiter itself; a pointer to one is possible where all permits come back by time (`Replenishing`)",
    note = "to limit a part and the whole, put the whole into a queue of its own, and wait in both, one after the other",
    note = "for a limiter of your own whose permits come back through the queue: `impl QueueLimiter for Mine {{}}`"
)]
pub trait QueueLimiter: Limiter {
    /// Whether others may take from it past the queue. Then the queue grants nothing as of an
    /// instant that has passed: a limiter that others take from at the present must not be told
    /// times that are older than they need be.
    const SHARED: bool = false;

    /// Releases `n` permits, as [`release`](Limiter::release) does. Returns whether a request waits
    /// for them.
    ///
    /// By default [`Waiting::Unknown`]: the queue then looks for itself. A limiter can keep what
    /// [`watch`](Self::watch) tells it in the word that a release changes. Then a release reads the
    /// answer from that word, and the queue need not look.
    #[inline]
    fn release_watched(&self, n: u32) -> Waiting {
        self.release(n);
        Waiting::Unknown
    }

    /// Tells the limiter that somebody waits for its permits, or nobody any more.
    ///
    /// From `watch(true)` to `watch(false)` every [`release_watched`](Self::release_watched)
    /// returns [`Waiting::Yes`] that a take after the former does not see. By default this does
    /// nothing.
    fn watch(&self, waits: bool) {
        let _ = waits;
    }

    /// Lets `n` permits that somebody has, and is about to [release](Limiter::release), go to
    /// somebody else as they are, without having been free in between; and says whether others are
    /// free. They have to be released and taken anew by default, and where they are more than there
    /// should be out.
    ///
    /// Only of a limiter that does not look at the time, and whose permits are all alike.
    fn pass_on(&self, n: u32) -> PassedOn {
        let _ = n;
        PassedOn::No
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
    fn refund_noted_at(&self, now: Timestamp, n: u32, receipt: Receipt, notes: Receipts) -> u32 {
        let _ = notes;
        self.refund_at(now, n, receipt).permits
    }

    /// The permits that are out and come back by [`release`](Limiter::release) alone. By default
    /// none, as of a limiter that gets its permits back by time.
    fn held(&self) -> u64 {
        0
    }
}

/// Whether somebody waits for permits that were released: from
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
    /// Somebody waits.
    Yes,
    /// Nobody waits, or nothing became free.
    No,
    /// The limiter does not know: the queue looks.
    Unknown,
}

/// Whether permits went from one holder to another: from [`QueueLimiter::pass_on`].
///
/// ```
/// # use portcullis_core::{Concurrency, Limiter, PassedOn, QueueLimiter, Timestamp};
/// let limit = Concurrency::new(3);
/// limit.take_at(Timestamp::ZERO, 2)?;
/// assert_eq!(limit.pass_on(2), PassedOn::OthersAreFree);
/// limit.set_limit(1)?;
/// assert_eq!(limit.pass_on(2), PassedOn::No, "more are out than the limit allows");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassedOn {
    /// They have to be released and taken anew.
    No,
    /// They belong to the other holder, and no permits are free.
    NoneAreFree,
    /// They belong to the other holder, and other permits are free.
    OthersAreFree,
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
    label = "a queue cannot own a pointer to it: a permit that is released past the queue wakes no waiter",
    note = "give the queue the limiter itself; to limit a part and the whole, put the whole into a queue of its own, and wait in both, one after the other"
)]
pub trait Replenishing: Limiter {}

/// Implements what a queue needs for limiters whose permits come back by time alone: nobody has to
/// look for those who wait when a lease is dropped.
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

/// Implements it for a pointer that others may have as well.
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
