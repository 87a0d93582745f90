//! Permits that were taken on behalf of a request, and are returned unless they are handed out.

use core::cell::Cell;
use core::mem;

use portcullis_core::composition::Receipts;
use portcullis_core::limiter::{Back, Receipt, Waiting};
use portcullis_core::{Clock, Limiter, Timestamp};

use super::{Grant, WaitQueue};
use crate::finally::Finally;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::panics::unless_unwinding;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wake_batch::WakeBatch;

/// Permits that were taken. They are returned if a waker or a hook panics before they are handed
/// out.
pub(super) struct Taken<'q, Q: QueueConfig> {
    pub(super) wait_queue: &'q WaitQueue<Q>,
    pub(super) key: Key<Q>,
    pub(super) grant: Option<Grant>,
    /// When the permits were taken, or later.
    pub(super) at: Timestamp,
    /// The address of the waiter for which the permits were taken; 0 if the request was not queued.
    pub(super) waiter: usize,
}

impl<Q: QueueConfig> Taken<'_, Q> {
    pub(super) fn keep(mut self) -> Grant {
        self.grant.take().unwrap_or((0, Receipt::NONE))
    }
}

impl<Q: QueueConfig> Drop for Taken<'_, Q> {
    fn drop(&mut self) {
        if self.grant.as_ref().is_some_and(|(permits, _)| *permits > 0) {
            unless_unwinding(|| self.give_back());
        }
    }
}

impl<Q: QueueConfig> Taken<'_, Q> {
    /// Refunds the permits, even if a clock panics, and grants them to other requests.
    fn give_back(&mut self) {
        let Self {
            wait_queue,
            key,
            ref mut grant,
            at,
            waiter,
        } = *self;
        // If the clock panics, the refund is as of the time of the take.
        let (at, notes) = (Cell::new(at), Cell::new(Receipts::NONE));
        let _refund = Finally(|| {
            if let Some((permits, receipt)) = grant.take() {
                let (at, notes) = (at.get(), notes.replace(Receipts::NONE));
                unless_unwinding(|| wait_queue.refund(key, at, permits, receipt, notes));
            }
        });
        if wait_queue.source.has_notes() && waiter != 0 {
            // The receipts are taken inside the lock without granting anything. A grant before the
            // refund would make the receipts worthless.
            notes.set(wait_queue.lists.lock(|lists| {
                if lists.noted.0 == waiter {
                    mem::replace(&mut lists.noted.1, Receipts::NONE)
                } else {
                    Receipts::NONE
                }
            }));
        }
        at.set(wait_queue.clock.now());
    }
}

impl<Q: QueueConfig> WaitQueue<Q> {
    fn refund(
        &self,
        key: Key<Q>,
        at: Timestamp,
        permits: u32,
        receipt: Receipt,
        mut notes: Receipts,
    ) {
        self.give_back(key, |source| {
            let receipts = source.has_notes().then_some(&mut notes);
            let _ = source.at(key).give_back(Back::Refund {
                now: at,
                permits,
                receipt,
                receipts,
            });
            ((), Waiting::Unknown)
        });
        if self.source.has_notes() && self.pending.is_any::<Q::Lock>() {
            self.grant_pending(&mut WakeBatch::new());
        }
    }
}
