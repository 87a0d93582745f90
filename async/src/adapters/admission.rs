use core::pin::Pin;
use core::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use portcullis_core::{Lease, Receipt};

use crate::acquire::{Acquire, Anchored};
use crate::rejected::Rejected;

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

    /// Waits for `n` permits, the same `n` until it is ready. What costs nothing does not wait.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        n: u32,
    ) -> Poll<Result<Lease<P>, Rejected>> {
        let mut this = self.project();
        if n == 0 {
            return Poll::Ready(Ok(Lease::from_grant(this.queue.clone(), 0, Receipt::NONE)));
        }
        if this.wait.is_none() {
            this.wait.set(Some(Acquire::new(this.queue.clone(), n, n)));
        }
        let wait = this.wait.as_mut().as_pin_mut().expect("has just been put there");
        let outcome = ready!(wait.poll(context));
        this.wait.set(None);
        Poll::Ready(outcome)
    }
}
