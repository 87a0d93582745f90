//! What a request takes with it besides its permits: header fields for its response, and what
//! measures it.

use http::HeaderMap;
#[cfg(feature = "metrics")]
use portcullis_core::{Clock, MonotonicClock, Timestamp};
#[cfg(feature = "metrics")]
use portcullis_policy::{MeasuredLease, RuleMetrics};
#[cfg(all(feature = "metrics", feature = "queue"))]
use portcullis_policy::{MeasuredWait, QueueResult};

/// What the response to a request gets, besides the permits.
pub(crate) type Extras = Option<Box<Extra>>;

/// What the response to a request gets. It is in memory of its own, so that requests without it are
/// smaller.
#[derive(Default)]
pub(crate) struct Extra {
    /// The header fields to add.
    pub(crate) fields: HeaderMap,
    /// What the body keeps until it ends. `None` if the request is not measured, or denied.
    pub(crate) measured: Option<Measured>,
}

/// A request that counts as one with an active lease, until this is dropped.
///
/// Durations are by the clock of the machine, also with another clock of the layer.
#[cfg(feature = "metrics")]
pub(crate) struct Measured(Vec<MeasuredLease>);

/// Without the feature `metrics` there is none.
#[cfg(not(feature = "metrics"))]
pub(crate) enum Measured {}

#[cfg(feature = "metrics")]
fn now() -> Timestamp {
    MonotonicClock::new().now()
}

#[cfg(feature = "metrics")]
impl Measured {
    /// Counts a request that was decided, with each of the instruments. `None` if it was denied.
    pub(crate) fn decided(instruments: &[RuleMetrics], is_allowed: bool) -> Option<Self> {
        let now = now();
        let each = instruments.iter();
        let leases = each
            .map(|instruments| instruments.decided_at(now, is_allowed))
            .collect();
        is_allowed.then_some(Self(leases))
    }
}

#[cfg(feature = "metrics")]
impl Drop for Measured {
    fn drop(&mut self) {
        let now = now();
        for lease in self.0.drain(..) {
            lease.end_at(now);
        }
    }
}

/// A request that counts as one that waits. Dropping it counts it as cancelled.
#[cfg(all(feature = "metrics", feature = "queue"))]
pub(crate) struct InQueue {
    /// `None` after the end.
    wait: Option<MeasuredWait>,
    since: Timestamp,
}

/// Without the feature `metrics` there is none.
#[cfg(all(not(feature = "metrics"), feature = "queue"))]
pub(crate) enum InQueue {}

#[cfg(all(not(feature = "metrics"), feature = "queue"))]
impl InQueue {
    pub(crate) fn end(self, _: bool) {
        match self {}
    }
}

#[cfg(all(feature = "metrics", feature = "queue"))]
impl InQueue {
    pub(crate) fn new(instruments: &RuleMetrics) -> Self {
        Self {
            wait: Some(instruments.queued()),
            since: now(),
        }
    }

    pub(crate) fn end(mut self, is_allowed: bool) {
        self.end_with(if is_allowed {
            QueueResult::Acquired
        } else {
            QueueResult::Denied
        });
    }

    fn end_with(&mut self, result: QueueResult) {
        if let Some(wait) = self.wait.take() {
            wait.end(now().saturating_since(self.since), result);
        }
    }
}

#[cfg(all(feature = "metrics", feature = "queue"))]
impl Drop for InQueue {
    fn drop(&mut self) {
        self.end_with(QueueResult::Canceled);
    }
}
