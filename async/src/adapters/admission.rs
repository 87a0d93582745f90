use core::pin::Pin;
use core::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use portcullis_core::Lease;

use super::leases::nothing;
use crate::queues::acquire::{Acquire, Anchored};
use crate::queues::rejected::Rejected;

pin_project! {
    /// The permits that the next thing to pass waits for, for one who polls.
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

    /// Waits for `n` permits: as many as the first poll asks for, whatever later ones do until it
    /// is ready. What costs nothing does not wait.
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
            this.wait.set(Some(Acquire::new(this.queue.clone(), n, n)));
        }
        let wait = this
            .wait
            .as_mut()
            .as_pin_mut()
            .expect("has just been put there");
        let outcome = ready!(wait.poll(context));
        this.wait.set(None);
        Poll::Ready(outcome)
    }

    /// Takes `n` permits now, if nobody waits before.
    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn take_now(&self, n: u32) -> Option<Lease<P>> {
        let (queue, (permits, receipt)) = Acquire::new(self.queue.clone(), n, n).take_now()?;
        Some(Lease::from_grant(queue, permits, receipt))
    }

    /// Leaves the queue, if it waits there.
    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn cancel(self: Pin<&mut Self>) {
        self.project().wait.set(None);
    }
}
