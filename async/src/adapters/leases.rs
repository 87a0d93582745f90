use portcullis_core::{Clock, Lease, Receipt};

use crate::queues::acquire::{Anchored, Queued};

/// Permits for what has not passed yet: dropped, what was not spent is refunded, as far as the
/// limiter can take it back.
pub(crate) struct Unspent<P: Anchored> {
    /// Until it is dropped, or taken out.
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

    /// Up to `n` of them have been used.
    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn spend(&mut self, n: u32) {
        self.spent += n.min(self.left());
    }

    /// What they are for passes.
    #[cfg(any(feature = "channel", feature = "stream"))]
    pub(crate) fn into_lease(mut self) -> Lease<P> {
        self.lease.take().expect("is there until now")
    }
}

impl<P: Anchored> Drop for Unspent<P> {
    fn drop(&mut self) {
        let left = self.left();
        if let Some(mut lease) = self.lease.take()
            && left > 0
        {
            lease.release(self.spent).expect("holds as many");
            let now = lease.limiter().wait_queue().clock.now();
            lease.refund_at(now, left).expect("holds as many");
        }
    }
}

/// The permits of what weighs nothing.
pub(crate) fn nothing<P: Anchored>(queue: P) -> Lease<P> {
    Lease::from_grant(queue, 0, Receipt::NONE)
}

/// The item alone: dropped, if a waker panics as its lease is released.
#[cfg(any(feature = "channel", feature = "stream"))]
pub(crate) fn item<T, P: Anchored>((item, lease): (T, Lease<P>)) -> T {
    drop(lease);
    item
}
