//! Judging the waiters again, after a change of the limiters: a request whose permits now come
//! after its deadline ends at once, and not at its deadline.
//!
//! The rule is that of a new request (`admit.rs`), without the requests ahead of it: those may
//! leave before they take anything. So a request ends only if it would be too late by itself.
//!
//! State: a mark in the waiter. Its deadline then counts as passed, so its timer is due, and
//! `run_timers` settles it, in batches. Nothing removes the mark.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::time::Duration;

use portcullis_core::{Clock, Limiter, Timestamp};

use super::ask::{earliest, is_too_late};
use super::{Lists, WaitQueue};
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wait_list::{Request, Waiter};
use crate::waiting::wake_batch::WakeBatch;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Ends the requests whose permits come after their deadlines.
    pub(super) fn end_hopeless(&self, lists: &mut Lists<Q::Source>, batch: &mut WakeBatch) {
        if lists.timers.is_empty() {
            return;
        }
        let now = self.clock.now();
        lists.now = now;
        for shard in 0..Self::SHARDS {
            for head in lists.waits.shards.as_ref()[shard].heads() {
                for waiter in lists.waits.shards.as_ref()[shard].list(head) {
                    // SAFETY: the waiter is in a list.
                    unsafe { self.judge_again(lists, waiter, now) };
                }
            }
        }
        if !self.run_timers(lists, batch, now, |due| due <= now) {
            // The batch is full. Once its wakers have run, the rest is settled.
            self.pending.add(1);
        }
    }

    /// Marks a waiter whose permits come after its deadline. Asks its limiter if it has one.
    ///
    /// # Safety
    ///
    /// The waiter is in a list.
    unsafe fn judge_again(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
        now: Timestamp,
    ) {
        // SAFETY: the waiter is linked, as the caller guarantees, so it is filled and its request
        // does not change; `lists` proves that the lock is held.
        unsafe {
            let (key, Request { min, deadline, .. }) = Waiter::asks(waiter);
            if deadline == Timestamp::MAX {
                return;
            }
            let limiter = self.source.at(key);
            let is_oversized = u64::from(min.max(1)) > limiter.capacity();
            let retry = earliest(&*limiter, now, 0, min);
            if is_too_late(&*limiter, now, retry, deadline, is_oversized) {
                lists.waits.get(waiter).is_hopeless = true;
                lists.schedule(waiter, Duration::ZERO);
            }
        }
    }
}
