//! Serving the keys that wait for the limit of all keys: see `round.rs` for the order and its
//! bound.
//!
//! A thread that serves the queue calls `serve` first, for each head whose answer may have changed.
//! If the own limit of its key grants, the key joins the round. Then the thread calls
//! `serve_round`, and nothing else takes permits for these keys. It asks for both limits at once,
//! so a grant takes from both or from none.
//!
//! The front key has the timer of the total, if the total says when it grants. The other keys of
//! the round have only the timers of their deadlines.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_core::limiter::Retry;
use portcullis_core::queue::Blocked;

use super::admit::Asked;
use super::serve::RetryOnUnwind;
use super::{Lists, ROUND, WaitQueue};
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::next_try::NextTry;
use crate::waiting::options::Oversized;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wait_list::{Request, Waiter};
use crate::waiting::wake_batch::WakeBatch;

/// How many keys may pass their turn in one critical section.
const PASSES: u32 = 256;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Judges a new request that has not been granted: whether it waits for the total, or when to
    /// ask its own limit again.
    pub(super) fn judge_newcomer(&self, asked: &mut Asked, key: Key<Q>, n: u32) {
        let now = asked.now;
        (asked.is_ready, asked.next_try) = match self.source.blocked_by(key, now, n) {
            Blocked::OwnLimit(_, retry) => (false, Self::next_try(retry, now, now)),
            Blocked::Total(denied, retry) if self.is_oversized(key, denied, n) => {
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
            let is_ready = waits.is_ready(waiter);
            if is_ready && waits.is_front(waiter) {
                // A smaller request than the head before may fit where that did not.
                self.pending.add(ROUND);
            }
            let joins = !is_ready && asked.is_ready && waits.get(waiter).is_head();
            if !(is_ready || joins) {
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
                if waits.turn(waiter).is_some() {
                    // It resumes a turn, before the front key.
                    self.pending.add(ROUND);
                }
                waits.make_ready(waiter, asked.now);
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

    /// Judges a list from its head on, first as of `at`: if the own limit of the key grants, the
    /// key joins the round. Otherwise sets the timer of the head.
    pub(super) fn judge_list(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        head: NonNull<Waiter<Key<Q>>>,
        mut at: Timestamp,
        now: Timestamp,
    ) {
        // SAFETY: the head is linked, so it is filled and its request does not change.
        let (key, _) = unsafe { Waiter::asks(head) };
        let mut unserved = RetryOnUnwind {
            pending: &self.pending,
            bit: Self::bit(key),
            lists,
            head,
            now,
        };
        loop {
            let (lists, head) = (&mut *unserved.lists, unserved.head);
            // SAFETY: `unserved.head` is linked: it is the head that was passed in, or the next
            // head that `settle` returned.
            let (_, Request { deadline, .. }) = unsafe { Waiter::asks(head) };
            let judged = if batch.is_full() || deadline < at {
                // The rest is judged when the batch has run; a deadline is left to its timer.
                Judged::Later(NextTry { at, exact: true })
            } else {
                // SAFETY: as before, and `lists` proves that the lock is held.
                unsafe { self.judge(lists, head, at, now) }
            };
            match judged {
                Judged::Ready => break,
                Judged::Exceeds => match self.settle_oversized(lists, batch, head, now) {
                    Some(next) => unserved.head = next,
                    None => break,
                },
                Judged::Later(next_try) => {
                    if next_try.exact && next_try.at <= now && next_try.at > at {
                        at = next_try.at.max(self.earliest_as_of(now));
                        continue;
                    }
                    self.set_next_try(lists, head, next_try, now);
                    break;
                }
            }
        }
        mem::forget(unserved);
    }

    /// Judges the head of a list as of `at`.
    ///
    /// # Safety
    ///
    /// The waiter is the head of a list.
    unsafe fn judge(
        &self,
        lists: &mut Lists<Q::Source>,
        head: NonNull<Waiter<Key<Q>>>,
        at: Timestamp,
        now: Timestamp,
    ) -> Judged {
        // SAFETY: the head is linked, as the caller guarantees; `lists` proves that the lock is
        // held.
        unsafe {
            let (key, Request { min, .. }) = Waiter::asks(head);
            let is_ready = lists.waits.is_ready(head);
            match self.source.blocked_by(key, at, min) {
                Blocked::OwnLimit(denied, retry) | Blocked::Total(denied, retry)
                    if self.is_oversized(key, denied, min) =>
                {
                    Self::leave_round(lists, head);
                    if self.options.oversized == Oversized::Reject {
                        Judged::Exceeds
                    } else {
                        Judged::Later(Self::next_try(retry, at, now))
                    }
                }
                Blocked::OwnLimit(_, retry) if !is_ready => {
                    Judged::Later(Self::next_try(retry, at, now))
                }
                _ => {
                    if !is_ready {
                        lists.waits.make_ready(head, at);
                        lists.occupied |= ROUND;
                        self.raise(ROUND);
                    }
                    // It is served in its turn. Only the front key has the timer of the total.
                    if !is_ready || !lists.waits.is_front(head) {
                        lists.wait_for_turn(head);
                    }
                    Judged::Ready
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
        let mut as_of = round.asks_as_of(now).max(self.earliest_as_of(now));
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
                    at: as_of,
                    exact: true,
                };
                self.pending.add(ROUND);
                break;
            }
            // SAFETY: the front is the head of a list, and `lists` proves that the lock is held.
            match unsafe { self.serve_front(lists, batch, front, as_of, now) } {
                Served::Passed => passes += 1,
                Served::AsOf(later) => as_of = later,
                Served::Blocked => break,
            }
        }
        mem::forget(unserved);
    }

    /// Serves the front key of the round: grants the request of its head, ends its turn, or removes
    /// it from the round. The total is asked as of `as_of`, or of the instant since which the key
    /// is ready if that is later.
    ///
    /// # Safety
    ///
    /// The waiter is the head of the front key.
    unsafe fn serve_front(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        front: NonNull<Waiter<Key<Q>>>,
        as_of: Timestamp,
        now: Timestamp,
    ) -> Served {
        // SAFETY: the caller guarantees that the waiter is the head of the front key, and `lists`
        // proves that the lock is held.
        let (key, request, credit, since) = unsafe {
            let (key, request) = Waiter::asks(front);
            let credit = lists.waits.begin_turn(front, || self.source.weight(key));
            let since = lists.waits.turn(front).map_or(now, |turn| turn.since);
            (key, request, credit, since)
        };
        if credit < request.room() {
            // SAFETY: as before.
            unsafe {
                lists.waits.pass_turn(front, request.room());
                lists.wait_for_turn(front);
            }
            return Served::Passed;
        }
        let at = since.max(as_of);
        if request.deadline < at {
            self.settle_late(lists, batch, front, now);
            return Served::AsOf(as_of);
        }
        match self.take_for(lists, front, Some(credit), at) {
            Ok(grant) => {
                // SAFETY: as before.
                unsafe { lists.waits.pay(front, grant.0) };
                self.settle_granted(lists, batch, front, grant, now);
                Served::AsOf(at)
            }
            Err(denied) if self.rejects(key, denied, request.min) => {
                self.settle_oversized(lists, batch, front, now);
                Served::AsOf(as_of)
            }
            Err(_) => self.deny_front(lists, batch, front, at, as_of, now),
        }
    }

    /// Finds out which limit has denied the request of the front key as of `at`. If it is the key's
    /// own, the turn is cut; if it is the total, the round waits. A key whose request exceeds the
    /// total leaves.
    fn deny_front(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        front: NonNull<Waiter<Key<Q>>>,
        at: Timestamp,
        as_of: Timestamp,
        now: Timestamp,
    ) -> Served {
        let earliest = self.earliest_as_of(now);
        // SAFETY: the front is linked, so it is filled and its request does not change.
        let (key, request) = unsafe { Waiter::asks(front) };
        let blocked = self.source.blocked_by(key, at, request.min);
        let is_own = matches!(blocked, Blocked::OwnLimit(..));
        let next_try = match blocked {
            Blocked::Total(denied, retry) if !self.is_oversized(key, denied, request.min) => {
                Self::next_try(retry, at, now)
            }
            Blocked::No => Self::next_try(Retry::At(at), at, now),
            Blocked::OwnLimit(_, retry) | Blocked::Total(_, retry) => {
                if is_own {
                    // SAFETY: the front is the head of the front key, and `lists` proves that the
                    // lock is held.
                    unsafe { lists.waits.cut_turn(front) };
                    lists.note_round();
                } else {
                    Self::leave_round(lists, front);
                }
                let next_try = Self::next_try(retry, at, now);
                self.set_next_try(lists, front, next_try, now);
                if next_try.exact && next_try.at <= now {
                    // That instant has passed.
                    self.serve(lists, batch, front, next_try.at.max(earliest), now);
                }
                return Served::AsOf(as_of);
            }
        };
        if next_try.exact && next_try.at <= now {
            return Served::AsOf(next_try.at.max(earliest));
        }
        if let Some((round, _)) = lists.waits.round() {
            round.next = next_try;
        }
        self.set_next_try(lists, front, next_try, now);
        Served::Blocked
    }

    /// Notes that a waiter ends without a grant: if it is the front of the round, what it could not
    /// take may suffice for another key.
    pub(super) fn front_makes_way(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
    ) {
        if Q::Source::HAS_TOTAL && lists.waits.is_front(waiter) {
            self.pending.add(ROUND);
        }
    }

    /// Bounds the credit of a key of which a request has left without a grant, by what the head of
    /// its list may have saved.
    pub(super) fn bound_credit(
        lists: &mut Lists<Q::Source>,
        head: Option<NonNull<Waiter<Key<Q>>>>,
    ) {
        if let Some(head) = head.filter(|_| Q::Source::HAS_TOTAL) {
            // SAFETY: the callers pass the head of a list, and `lists` proves that the lock is
            // held.
            unsafe { lists.waits.bound_credit(head) };
        }
    }

    /// Removes a key from the round, if it is in it.
    fn leave_round(lists: &mut Lists<Q::Source>, head: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: the callers pass the head of a list, and `lists` proves that the lock is held.
        unsafe { lists.waits.leave_round(head) };
        lists.note_round();
    }
}

/// What the judgement of a head has found.
enum Judged {
    /// The key is in the round.
    Ready,
    /// The request is larger than a limit can hold, and is to be rejected.
    Exceeds,
    /// The key's own limit denies until then.
    Later(NextTry),
}

/// What has become of the front key.
enum Served {
    /// Its turn has ended.
    Passed,
    /// A request has ended or the key has left. The round goes on, with the total asked as of this
    /// instant.
    AsOf(Timestamp),
    /// The total denies. The front key has the timer.
    Blocked,
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
