//! The wait of an adapter: the permits of its next item or piece, polled from its own `poll`.
//!
//! State: no wait, or one future that waits. A wait that is pending goes on whatever the next call
//! requests, so an adapter is not asked twice for one item.

use core::pin::Pin;
use core::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use portcullis_core::Lease;

use super::leases::nothing;
use crate::queues::acquire::{Acquire, Anchored};
use crate::waiting::rejected::Rejected;

pin_project! {
    /// A wait for the permits of the next item or piece, polled from within another future.
    pub(crate) struct Admission<P: Anchored> {
        pub(crate) queue: P,
        #[pin]
        wait: Option<Acquire<P>>,
    }
}

impl<P: Anchored + Clone> Admission<P> {
    pub(crate) const fn new(queue: P) -> Self {
        Self { queue, wait: None }
    }

    /// Waits for `n` permits. While a wait is pending, later calls continue it and ignore their
    /// `n`. With 0 permits it is ready immediately.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        n: u32,
    ) -> Poll<Result<Lease<P>, Rejected>> {
        let mut this = self.project();
        if n == 0 {
            return Poll::Ready(Ok(nothing(this.queue.clone())));
        }
        if this
            .wait
            .as_ref()
            .as_pin_ref()
            .is_none_or(|wait| wait.is_over())
        {
            this.wait.set(Some(Acquire::new(this.queue.clone(), n)));
        }
        let wait = this
            .wait
            .as_mut()
            .as_pin_mut()
            .expect("`wait` is set above");
        let outcome = ready!(wait.poll(context));
        this.wait.set(None);
        Poll::Ready(outcome)
    }

    /// Takes `n` permits immediately, if no other request waits.
    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn take_now(&self, n: u32) -> Option<Lease<P>> {
        let (queue, (permits, receipt)) = Acquire::new(self.queue.clone(), n).take_now()?;
        Some(Lease::from_grant(queue, permits, receipt))
    }

    /// Cancels a pending wait.
    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn cancel(self: Pin<&mut Self>) {
        self.project().wait.set(None);
    }
}
