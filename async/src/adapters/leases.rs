//! Permits of an item or of bytes that have not passed yet. They are refunded unless they are
//! spent.

use portcullis_core::limiter::Receipt;
use portcullis_core::{Clock, Lease};

use crate::queues::acquire::Anchored;
use crate::waiting::wait_queue::HasWaitQueue;

/// Permits for an item or for bytes that have not passed yet. Dropping it refunds the unspent
/// permits, as far as the limiter accepts a refund.
pub(crate) struct Unspent<P: Anchored> {
    /// `None` after `into_lease`.
    lease: Option<Lease<P>>,
    spent: u32,
}

impl<P: Anchored> Unspent<P> {
    pub(crate) const fn new(lease: Lease<P>) -> Self {
        Self {
            lease: Some(lease),
            spent: 0,
        }
    }

    pub(crate) fn left(&self) -> u32 {
        self.lease.as_ref().map_or(0, Lease::permits) - self.spent
    }

    /// Marks up to `n` permits as spent.
    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn spend(&mut self, n: u32) {
        self.spent += n.min(self.left());
    }

    /// Returns the lease; its item passes, so nothing is refunded.
    #[cfg(any(feature = "channel", feature = "stream"))]
    pub(crate) fn into_lease(mut self) -> Lease<P> {
        self.lease
            .take()
            .expect("the lease is taken only here and in `drop`")
    }
}

impl<P: Anchored> Drop for Unspent<P> {
    fn drop(&mut self) {
        let left = self.left();
        let Some(mut lease) = self.lease.take() else {
            return;
        };
        if left > 0 {
            lease
                .release(self.spent)
                .expect("`spent` is at most the lease's permits");
            let now = lease.limiter().wait_queue().clock.now();
            lease
                .refund_at(now, left)
                .expect("the lease holds the permits that are left");
        }
    }
}

/// Returns a lease of no permits, for an item that weighs nothing.
pub(crate) fn nothing<P: Anchored>(queue: P) -> Lease<P> {
    Lease::from_grant(queue, 0, Receipt::NONE)
}

/// Drops the lease and returns the item. If a waker panics as the lease is released, the item is
/// dropped.
#[cfg(any(feature = "channel", feature = "stream"))]
pub(crate) fn item<T, P: Anchored>((item, lease): (T, Lease<P>)) -> T {
    drop(lease);
    item
}
