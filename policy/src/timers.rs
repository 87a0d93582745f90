//! The timers by which the queues of rules drive themselves, and which limits have a queue.
//!
//! A policy creates its timers before its rules have queues, and a queue needs its timer before a
//! request can wait: so this is below both.

use core::task::{Poll, Waker};
use std::borrow::Cow;
use std::sync::Arc;

use portcullis_async::{ReentrantTimer, ThreadTimer, Timer};
use portcullis_core::{Clock, Timestamp};

use crate::limit::Limit;
use crate::request::Kind;
#[cfg(doc)]
use crate::rule::Rule;

/// The number of requests that can wait in one queue, for all keys together. A rule has a queue for
/// its limits, and each of its [overrides](Rule::override_key) has another one.
pub const MAX_WAITING: u32 = 4_096;

/// A timer of any type by which a queue can drive itself.
pub(crate) struct QueueTimer(Box<dyn AnyTimer>);

impl QueueTimer {
    pub(crate) fn new<T: ReentrantTimer + Send + Sync + 'static>(timer: T) -> Self {
        Self(Box::new(timer))
    }
}

/// What a queue needs of a timer, without constants.
trait AnyTimer: Send + Sync {
    fn time(&self) -> Timestamp;
    fn alarm(&self, at: Timestamp, waker: &Waker) -> Poll<()>;
}

impl<T: ReentrantTimer + Send + Sync> AnyTimer for T {
    fn time(&self) -> Timestamp {
        self.now()
    }
    fn alarm(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        self.wake_at(at, waker)
    }
}

impl Clock for QueueTimer {
    fn now(&self) -> Timestamp {
        self.0.time()
    }
}

impl Timer for QueueTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        self.0.alarm(at, waker)
    }
}

impl ReentrantTimer for QueueTimer {}

/// How a policy creates the timers of its queues.
#[derive(Clone)]
pub(crate) struct Timers {
    /// `None` for a [`ThreadTimer`].
    pub(crate) create: Option<Arc<dyn Fn() -> QueueTimer + Send + Sync>>,
}

impl Timers {
    pub(crate) const DEFAULT: Self = Self { create: None };

    pub(crate) fn create(&self) -> QueueTimer {
        match &self.create {
            Some(create) => create(),
            None => QueueTimer(Box::new(ThreadTimer::new())),
        }
    }

    pub(crate) fn is_default(&self) -> bool {
        self.create.is_none()
    }
}

/// The limits of a rule with their queues; none for a shadow rule, which has no kind here. Bytes
/// wait if none of their limits has a queue: a part of a body cannot be denied.
pub(crate) fn queued(kind: Option<Kind>, limits: &[Limit]) -> Cow<'_, [Limit]> {
    let has_queue = || limits.iter().any(|limit| limit.queue_limit() > 0);
    match kind {
        None => Cow::Borrowed(&[]),
        Some(Kind::Ingress | Kind::Egress) if !has_queue() => {
            let all = limits.iter().map(|limit| limit.clone().queue(u64::MAX));
            Cow::Owned(all.collect())
        }
        Some(_) => Cow::Borrowed(limits),
    }
}
