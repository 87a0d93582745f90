//! What the user of a runner gives it: the cost of an item, the function that writes a batch, and
//! the function that acknowledges what is over.
//!
//! The loop sees them as one [`Work`], so that it has one type parameter for three functions, the
//! two futures that they return, and an error.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use futures_util::future::Abortable;
use pin_project_lite::pin_project;
use portcullis_async::Weight;

use crate::operation::{Operation, SettledBatch, Written};

/// What to do with items of type `T`.
pub(crate) trait Work<T> {
    /// The write of one batch.
    type Write: Future<Output: Into<Written>>;
    /// The acknowledgement of one batch.
    type Acknowledge: Future<Output = Result<(), Self::Error>>;
    /// Why an acknowledgement has failed. The runner only counts that it has.
    type Error;

    /// Returns the cost of an item, in permits.
    fn cost(&self, item: &T) -> u32;
    /// Begins to write a batch.
    fn write(&mut self, batch: Vec<Operation<T>>) -> Self::Write;
    /// Begins to acknowledge operations that are over.
    fn acknowledge(&mut self, settled: SettledBatch<T>) -> Self::Acknowledge;
}

/// The functions of [`Jobs::run_acknowledged`](crate::Jobs::run_acknowledged).
pub(crate) struct Functions<W, O, D> {
    pub(crate) weight: W,
    pub(crate) write: O,
    pub(crate) acknowledge: D,
}

impl<T, W, O, F, D, A, E> Work<T> for Functions<W, O, D>
where
    W: Weight<T>,
    O: FnMut(Vec<Operation<T>>) -> F,
    F: Future<Output: Into<Written>>,
    D: FnMut(SettledBatch<T>) -> A,
    A: Future<Output = Result<(), E>>,
{
    type Write = F;
    type Acknowledge = A;
    type Error = E;

    fn cost(&self, item: &T) -> u32 {
        self.weight.permits(item)
    }

    fn write(&mut self, batch: Vec<Operation<T>>) -> F {
        (self.write)(batch)
    }

    fn acknowledge(&mut self, settled: SettledBatch<T>) -> A {
        (self.acknowledge)(settled)
    }
}

pin_project! {
    /// The future that runs in a slot. A write that takes too long is aborted: it is dropped at its
    /// next poll, and the operations of its batch stay with the runner.
    #[project = TaskProjection]
    pub(crate) enum Task<F, A> {
        Write { slot: u64, #[pin] write: Abortable<F> },
        Acknowledge { slot: u64, #[pin] acknowledge: Abortable<A> },
    }
}

/// How the task of a slot has ended.
pub(crate) enum Done {
    /// A write is over; without a result if it took too long.
    Written(u64, Option<Written>),
    /// An acknowledgement is over: whether it has succeeded, in time.
    Acknowledged(u64, bool),
}

impl<F, A, E> Future for Task<F, A>
where
    F: Future<Output: Into<Written>>,
    A: Future<Output = Result<(), E>>,
{
    type Output = Done;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done> {
        Poll::Ready(match self.project() {
            TaskProjection::Write { slot, write } => {
                let written = ready!(write.poll(context));
                Done::Written(*slot, written.ok().map(Into::into))
            }
            TaskProjection::Acknowledge { slot, acknowledge } => {
                let acknowledged = ready!(acknowledge.poll(context));
                Done::Acknowledged(*slot, matches!(acknowledged, Ok(Ok(()))))
            }
        })
    }
}
