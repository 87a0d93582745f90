//! Serving the keys that wait for the limit of all keys: see `round.rs` for the order and its
//! bound.
//!
//! Called by those who grant, after `serve` has judged the heads for which something has changed: a
//! key whose own limit grants joins the round, and only `serve_round` takes for it. It asks the
//! limiter of the key for both limits at once, so a grant is of both or of none.
//!
//! The front key has the timer of the total, if the total says when it grants. The other keys of
//! the round have only the timers of their deadlines.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_core::limiter::{Denied, Retry};
use portcullis_core::queue::Blocked;

use super::admit::Asked;
use super::serve::RetryOnUnwind;
use super::{Lists, ROUND, WaitQueue};
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::options::Oversized;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wait_list::{NextTry, Request, State, Waiter};
use crate::waiting::wake_batch::WakeBatch;

/// How many keys may pass their turn in one critical section.
const PASSES: u32 = 256;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Judges a new request that has not been granted: whether it waits for the total, or when to
    /// ask its own limit again.
    pub(super) fn judge_newcomer(&self, asked: &mut Asked, key: Key<Q>, n: u32) {
        let now = asked.now;
        (asked.is_ready, asked.next_try) = match self.source.blocked_by(key, now, n) {
            Blocked::OwnLimit(_, retry) | Blocked::Total(Denied::ExceedsCapacity { .. }, retry) => {
                (false, Self::next_try(retry, now, now))
            }
            Blocked::Total(_, retry) => (true, Self::next_try(retry, now, now)),
            // Permits were returned since it was asked. If their release does not find the waiter
            // bit, the timer does.
            Blocked::No => (true, Self::next_try(Retry::At(now), now, now)),
        };
    }

    /// Puts the key of a new request into the round if it is to be. The request has just entered
    /// its list. Returns when to ask again, for the head of the list.
    ///
    /// # Safety
    ///
    /// The waiter is in a list.
    pub(super) unsafe fn enter_round(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
        asked: Asked,
    ) -> NextTry {
        // SAFETY: the waiter is linked, as the caller guarantees; `lists` proves that the lock is
        // held. It joins the round only as the head of its list.
        unsafe {
            let waits = &mut lists.waits;
            let has_turn = waits.turn(waiter).is_some();
            if has_turn && waits.is_front(waiter) {
                // A smaller request than the head before may fit where that did not.
                self.pending.add(ROUND);
            }
            let joins = !has_turn && asked.is_ready && waits.get(waiter).is_head();
            if !(has_turn || joins) {
                return asked.next_try;
            }
            if joins {
                let begins = waits.is_round_empty();
                if waits
                    .lone_front()
                    .is_some_and(|(front, credit)| credit < Waiter::asks(front).1.room())
                {
                    // A key that was alone needed no credit. Now it passes its turn.
                    self.pending.add(ROUND);
                }
                waits.join(waiter, asked.now);
                if let Some((round, _)) = waits.round().filter(|_| begins) {
                    round.next = asked.next_try;
                }
                lists.occupied |= ROUND;
            }
            match waits.round() {
                Some((round, front)) if front == waiter && round.next.at > asked.now => round.next,
                _ => NextTry::ON_RELEASE,
            }
        }
    }

    /// Judges the head of a list: if the key's own limit grants as of `at`, the key joins the round.
    /// Returns why the head cannot be granted, and when to ask again, if that is for another reason
    /// than the total.
    ///
    /// # Safety
    ///
    /// The waiter is the head of a list.
    pub(super) unsafe fn judge(
        &self,
        lists: &mut Lists<Q::Source>,
        head: NonNull<Waiter<Key<Q>>>,
        at: Timestamp,
    ) -> Option<(Denied, Retry)> {
        // SAFETY: the head is linked, as the caller guarantees; `lists` proves that the lock is
        // held.
        unsafe {
            let (key, Request { min, .. }) = Waiter::asks(head);
            let blocked = self.source.blocked_by(key, at, min);
            let is_ready = lists.waits.turn(head).is_some();
            match blocked {
                Blocked::OwnLimit(denied @ Denied::ExceedsCapacity { .. }, retry)
                | Blocked::Total(denied @ Denied::ExceedsCapacity { .. }, retry) => {
                    Self::leave_round(lists, head);
                    Some((denied, retry))
                }
                _ if is_ready => {
                    // It is judged in its turn. Only the front key has the timer of the total.
                    if !lists.waits.is_front(head) {
                        lists.wait_for_turn(head);
                    }
                    None
                }
                Blocked::OwnLimit(denied, retry) => Some((denied, retry)),
                Blocked::No | Blocked::Total(..) => {
                    lists.waits.join(head, at);
                    lists.occupied |= ROUND;
                    self.raise(ROUND);
                    lists.wait_for_turn(head);
                    None
                }
            }
        }
    }

    /// Grants to the keys of the round, in turn, until the total denies. If it cannot do all, it
    /// sets the pending bit of the round.
    pub(super) fn serve_round(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        now: Timestamp,
    ) {
        if !Q::Source::HAS_TOTAL {
            return;
        }
        let Some((round, front)) = lists.waits.round() else {
            return;
        };
        let earliest = self.earliest_as_of(now);
        let mut asks_at = round.asks_as_of(now).max(earliest);
        let mut unserved = RetryOnUnwind {
            pending: &self.pending,
            bit: ROUND,
            lists,
            head: front,
            now,
        };
        let mut passes = 0;
        loop {
            let lists = &mut *unserved.lists;
            let Some((round, front)) = lists.waits.round() else {
                break;
            };
            unserved.head = front;
            if batch.is_full() || passes == PASSES {
                round.next = NextTry {
                    at: asks_at,
                    exact: true,
                };
                self.pending.add(ROUND);
                break;
            }
            // SAFETY: the front is the head of a list, and `lists` proves that the lock is held.
            let (key, request, credit, since) = unsafe {
                let (key, request) = Waiter::asks(front);
                let weight = || self.source.weight(key);
                let credit = lists.waits.begin_turn(front, weight);
                let since = lists.waits.turn(front).map_or(now, |turn| turn.since);
                (key, request, credit, since)
            };
            if credit < request.room() {
                passes += 1;
                lists.waits.pass_turn();
                // SAFETY: as before.
                unsafe { lists.wait_for_turn(front) };
                continue;
            }
            let at = since.max(asks_at);
            if request.deadline < at {
                lists.counts.late = lists.counts.late.wrapping_add(1);
                self.settle(lists, batch, front, State::Late, None, now);
                continue;
            }
            let denied = match self.take_for(lists, front, Some(credit), at) {
                Ok(grant) => {
                    // SAFETY: as before.
                    unsafe { lists.waits.pay(front, grant.0) };
                    lists.counts.granted = lists.counts.granted.wrapping_add(1);
                    self.settle(lists, batch, front, State::Granted, Some(grant), now);
                    asks_at = at;
                    continue;
                }
                Err(denied) => denied,
            };
            if matches!(denied, Denied::ExceedsCapacity { .. })
                && self.options.oversized == Oversized::Reject
            {
                lists.counts.oversized = lists.counts.oversized.wrapping_add(1);
                self.settle(lists, batch, front, State::Exceeds, None, now);
                continue;
            }
            let next_try = match self.source.blocked_by(key, at, request.min) {
                Blocked::OwnLimit(_, retry)
                | Blocked::Total(Denied::ExceedsCapacity { .. }, retry) => {
                    Self::leave_round(lists, front);
                    // Judged again if that instant has passed.
                    let next_try = Self::next_try(retry, at, now);
                    let delay = self.jitter(lists, now);
                    // SAFETY: as before.
                    unsafe {
                        lists.waits.get(front).set_next_try(next_try);
                        lists.schedule(front, delay);
                    }
                    if next_try.exact && next_try.at <= now {
                        self.serve(lists, batch, front, next_try.at.max(earliest), now);
                    }
                    continue;
                }
                Blocked::Total(_, retry) => Self::next_try(retry, at, now),
                Blocked::No => Self::next_try(Retry::At(at), at, now),
            };
            if next_try.exact && next_try.at <= now {
                asks_at = next_try.at.max(earliest);
                continue;
            }
            let delay = self.jitter(lists, now);
            if let Some((round, _)) = lists.waits.round() {
                round.next = next_try;
            }
            // SAFETY: as before.
            unsafe {
                lists.waits.get(front).set_next_try(next_try);
                lists.schedule(front, delay);
            }
            break;
        }
        mem::forget(unserved);
    }

    /// Removes a key from the round, if it is in it.
    fn leave_round(lists: &mut Lists<Q::Source>, head: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: the callers pass the head of a list, and `lists` proves that the lock is held.
        unsafe { lists.waits.leave_round(head) };
        lists.note_round();
    }
}

impl<S: LimiterSource> Lists<S> {
    /// Clears the bit of a round that is over.
    #[inline(always)]
    pub(super) fn note_round(&mut self) {
        if self.waits.is_round_empty() {
            self.occupied &= !ROUND;
        }
    }

    /// Removes the timer of a head that waits for its turn, except that of its deadline.
    ///
    /// # Safety
    ///
    /// The waiter is the head of a list.
    unsafe fn wait_for_turn(&mut self, head: NonNull<Waiter<S::Key>>) {
        // SAFETY: the head is linked, as the caller guarantees.
        unsafe {
            self.waits.get(head).set_next_try(NextTry::ON_RELEASE);
            self.schedule(head, Duration::ZERO);
        }
    }
}
