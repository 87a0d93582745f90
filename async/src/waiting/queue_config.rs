//! The types of a wait queue's parts, as one type parameter.

use crate::lock::RawLock;
use crate::waiting::hook::Hook;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::queue_clock::QueueClock;

/// The types of a wait queue's parts, without bounds: enough to build and to hold a queue.
pub trait QueueTypes {
    type Source: LimiterSource;
    type Clock;
    type Lock;
    type Hook;
}

/// The types of a wait queue's parts, with the bounds that its operations need.
pub trait QueueConfig: QueueTypes<Clock: QueueClock, Lock: RawLock, Hook: Hook> {}

impl<Q: QueueTypes<Clock: QueueClock, Lock: RawLock, Hook: Hook>> QueueConfig for Q {}

/// The four types in this order. The tuple only names types; it is never constructed.
impl<S: LimiterSource, C, R, H> QueueTypes for (S, C, R, H) {
    type Source = S;
    type Clock = C;
    type Lock = R;
    type Hook = H;
}

/// Identifies a limiter of the wait queue.
pub(crate) type Key<Q> = <<Q as QueueTypes>::Source as LimiterSource>::Key;
