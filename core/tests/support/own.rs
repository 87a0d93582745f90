//! A wrapper of a user's own.

use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Denied, Limiter, Retry};

/// Wraps a limiter, with the four functions that are required and nothing else. It is held to all
/// that its limiter is held to.
#[derive(Debug)]
pub(crate) struct Own<L>(pub(crate) L);

impl<L: Limiter> Limiter for Own<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }
    fn read(&self, read: Read<'_>) -> Reading {
        self.0.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}

impl<L: QueueLimiter> QueueLimiter for Own<L> {}
