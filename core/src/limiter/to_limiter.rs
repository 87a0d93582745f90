//! What a denial asks for its retry time, however the caller holds the limiter.

use core::ops::Deref;

use crate::clock::Clocked;
use crate::keyed::clocked_key::ClockedKey;
use crate::keyed::key::{Keys, TableKey};
use crate::limiter::Limiter;

/// A limiter, or a limiter that is joined with a clock: what can say when to retry a denied
/// request.
///
/// Implemented for every [`Limiter`], for a limiter in [`Clocked`], and for a [`ClockedKey`], so
/// that [`Denied::retry`](crate::Denied::retry) accepts whatever denied the request. Sealed.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Clock, Clocked, Keyed, ManualClock, Rate, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(10), 1);
/// let limiter = Clocked::new(bucket, ManualClock::new());
/// assert!(limiter.try_acquire(1).is_ok());
/// let retry = limiter.try_acquire(1).unwrap_err().retry(&limiter);
/// assert_eq!(retry.wait_from(limiter.clock().now()), Some(Duration::from_millis(100)));
///
/// let table = Keyed::for_keys(TokenBucket::new(Rate::per_second(10), 1), 100);
/// let table = Clocked::new(table, ManualClock::new());
/// let alice = table.key("alice");
/// assert!(alice.try_acquire(1).is_ok());
/// let retry = alice.try_acquire(1).unwrap_err().retry(&alice);
/// assert_eq!(retry.wait_from(table.clock().now()), Some(Duration::from_millis(100)));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter, so it cannot say when to retry",
    label = "expected the limiter that denied the request",
    note = "if it is a table, pass the limiter of the key: call `.key(&key)`"
)]
pub trait ToLimiter {
    /// The type of the limiter.
    type Limiter: Limiter + ?Sized;

    /// Returns the limiter.
    fn to_limiter(&self) -> &Self::Limiter;
}

impl<L: Limiter + ?Sized> ToLimiter for L {
    type Limiter = L;

    #[inline]
    fn to_limiter(&self) -> &L {
        self
    }
}

impl<L: Limiter, C> ToLimiter for Clocked<L, C> {
    type Limiter = L;

    #[inline]
    fn to_limiter(&self) -> &L {
        self.limiter()
    }
}

impl<P: Deref<Target: Keys>, C> ToLimiter for ClockedKey<P, C> {
    type Limiter = <TableKey<P> as Deref>::Target;

    #[inline]
    fn to_limiter(&self) -> &Self::Limiter {
        self.limiter()
    }
}
