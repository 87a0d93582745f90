//! The types that a wait queue is made of, as one parameter.

use portcullis_core::Clock;

use crate::lock::RawLock;
use crate::queues::hook::Hook;
use crate::waiting::limiter_source::LimiterSource;

/// The types of a wait queue's parts, whatever they can do: enough to build and to hold one.
pub trait QueueTypes {
    type Source: LimiterSource;
    type Clock;
    type Lock;
    type Hook;
}

/// The types of a wait queue that works.
pub trait QueueConfig: QueueTypes<Clock: Clock, Lock: RawLock, Hook: Hook> {}

impl<Q: QueueTypes<Clock: Clock, Lock: RawLock, Hook: Hook>> QueueConfig for Q {}

/// These types in this order. No such tuple is ever made.
impl<S: LimiterSource, C, R, H> QueueTypes for (S, C, R, H) {
    type Source = S;
    type Clock = C;
    type Lock = R;
    type Hook = H;
}

/// What tells the limiters of a wait queue apart.
pub(crate) type Key<Q> = <<Q as QueueTypes>::Source as LimiterSource>::Key;
