//! Granting: what is due by time, and what was returned.
//!
//! Called by all who hold the lock and may have to grant: after a return of permits, by a driver at
//! an instant at which something is due, by `advance`, and after a change of limits. Each waiter
//! that is granted or has ended is removed from its list and settled, and its waker joins the
//! batch, which runs after the unlock.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;

use portcullis_core::composition::Receipts;
use portcullis_core::{Clock, Denied, Limiter, Retry, Timestamp};

use super::ask::When;
use super::{DRAINED, Grant, Lists, TIME, WaitQueue};
use crate::sync::atomic::Ordering::{Acquire, Relaxed};
use crate::sync::atomic::fence;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::next_try::NextTry;
use crate::waiting::options::Order;
use crate::waiting::pending_releases::PendingReleases;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wait_list::{Event, Removed, Request, Shard, State, Waiter};
use crate::waiting::wake_batch::WakeBatch;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Settles all waiters that can be settled. The order is: timers that are due, by their
    /// instants; then the wait list of `key`; then the wait lists of the shards with pending
    /// releases.
    pub(super) fn grant_due(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        key: Option<Key<Q>>,
    ) {
        // The bits are taken before the limiters are asked, so that a later release sets its bit
        // again.
        let mut pending = self.pending.take();
        if pending.bits & TIME != 0 {
            lists.timed.open();
        }
        if lists.occupied == 0 {
            pending.bits = 0;
            return;
        }
        // The round is served in each call, and again if it was not.
        pending.bits |= lists.occupied & Self::ROUND_BIT;
        let now = self.clock.now();
        lists.now = now;
        if lists.closed && !self.end_waits(lists, batch, now) {
            pending.bits |= 1;
            return;
        }
        // Released permits are granted before deadlines of the same instant expire.
        if !self.run_timers(lists, batch, now, |due| due < now) {
            pending.bits |= key.map_or(1, Self::bit);
            return;
        }
        if let Some(head) = key.and_then(|key| lists.head(key)) {
            self.serve(lists, batch, head, now, now);
        }
        while pending.bits != 0 {
            let heads = lists
                .waits
                .shards
                .as_ref()
                .get(pending.bits.trailing_zeros() as usize)
                .map(Shard::heads);
            for head in heads.into_iter().flatten() {
                if batch.is_full() {
                    return;
                }
                self.serve(lists, batch, head, now, now);
            }
            pending.bits &= pending.bits - 1;
        }
        self.serve_round(lists, batch, now);
        let is_done = self.run_timers(lists, batch, now, |due| due <= now)
            && self.end_drainers(lists, batch, now);
        if !is_done {
            pending.bits |= 1;
        }
    }

    /// Ends all waits of a closed queue. Returns `false` if the batch of wakers is full before all
    /// of them have ended.
    fn end_waits(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        now: Timestamp,
    ) -> bool {
        for shard in 0..Self::SHARDS {
            while let Some(head) = lists.waits.shards.as_ref()[shard].heads().next() {
                if batch.is_full() {
                    return false;
                }
                self.settle(lists, batch, head, State::Closed, None, now);
                lists.counts.closed = lists.counts.closed.wrapping_add(1);
            }
        }
        true
    }

    /// Ends the futures of `drained`, if no permit is held. Returns `false` if the batch of wakers
    /// is full before all of them have ended.
    fn end_drainers(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        now: Timestamp,
    ) -> bool {
        if lists.waits.drainers.is_empty() || !self.is_drained(lists) {
            return true;
        }
        while let Some(head) = lists.waits.drainers.heads().next() {
            if batch.is_full() {
                return false;
            }
            Self::settle_drainer(lists, batch, head, now);
        }
        true
    }

    /// Runs the timers that are due, in the order of their instants. Returns `false` if the batch
    /// fills up before all timers have run.
    pub(super) fn run_timers(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        now: Timestamp,
        is_due: impl Fn(Timestamp) -> bool,
    ) -> bool {
        while let Some((waiter, (due, event))) = lists.timers.first() {
            if !is_due(due) {
                break;
            }
            if batch.is_full() {
                return false;
            }
            let earliest = self.earliest_as_of(now);
            if event == Event::Retry {
                // SAFETY: a waiter in the heap is in a wait list, so it is linked; `lists` proves
                // that the lock is held.
                let next_try = unsafe { lists.waits.get(waiter).next_try() };
                let as_of = match next_try {
                    Some(next_try) if next_try.exact => next_try.at.max(earliest),
                    _ => now,
                };
                self.serve(lists, batch, waiter, as_of, now);
            } else {
                let as_of = due.max(earliest);
                if let Some(next) = self.settle_late(lists, batch, waiter, now) {
                    self.serve(lists, batch, next, as_of, now);
                }
            }
            self.serve_round(lists, batch, now);
        }
        true
    }

    /// Returns the earliest instant as of which a late timer's grant is made: `now` minus the
    /// slack. The slack is zero where new requests, or callers outside the queue, can take before
    /// the waiters. They may have taken since that instant, and the limiter would not account for
    /// it in a grant as of an earlier time. In all other queues the limiter's state is still the
    /// same as at that instant.
    pub(super) fn earliest_as_of(&self, now: Timestamp) -> Timestamp {
        let slack = if Q::Source::SHARED || self.options.order != Order::OldestFirst {
            0
        } else {
            u64::try_from(self.options.slack.as_nanos()).unwrap_or(u64::MAX)
        };
        Timestamp::from_nanos(now.as_nanos().saturating_sub(slack))
    }

    /// Grants a wait list from its head on: first as of `at`, and then as of each instant up to
    /// `now` that the limiter returns. A grant that was due earlier is made as if the timer had
    /// been on time, so a late timer loses no permits. Finally sets the timer of a head that still
    /// has to wait.
    ///
    /// If there is a limit for all keys, it grants nothing: see `judge_list`.
    pub(super) fn serve(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        head: NonNull<Waiter<Key<Q>>>,
        mut at: Timestamp,
        now: Timestamp,
    ) {
        if Q::Source::HAS_TOTAL {
            return self.judge_list(lists, batch, head, at, now);
        }
        // SAFETY: the head is linked, so it is filled and its request does not change.
        let (key, _) = unsafe { Waiter::asks(head) };
        let limiter = self.source.at(key);
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
            let (_, Request { min, deadline, .. }) = unsafe { Waiter::asks(head) };
            let taken = if batch.is_full() || deadline < at {
                None
            } else {
                Some(self.take_for(lists, head, None, at))
            };
            let settled = match taken {
                Some(Ok(grant)) => self.settle_granted(lists, batch, head, grant, now),
                Some(Err(denied)) if self.rejects(key, denied, min) => {
                    self.settle_oversized(lists, batch, head, now)
                }
                denied => {
                    let next_try = match denied {
                        Some(Err(denied)) => Self::next_try(limiter.retry(denied), at, now),
                        // The batch is full, so the rest is granted when it has run; or the
                        // deadline has passed, and is left to its timer.
                        _ => NextTry { at, exact: true },
                    };
                    if next_try.exact && next_try.at <= now && next_try.at > at {
                        at = next_try.at.max(self.earliest_as_of(now));
                        continue;
                    }
                    self.set_next_try(lists, head, next_try, now);
                    break;
                }
            };
            match settled {
                Some(next) => unserved.head = next,
                None => break,
            }
        }
        mem::forget(unserved);
    }

    /// Sets when to ask again for the head of a list, and its timer.
    pub(super) fn set_next_try(
        &self,
        lists: &mut Lists<Q::Source>,
        head: NonNull<Waiter<Key<Q>>>,
        next_try: NextTry,
        now: Timestamp,
    ) {
        let delay = self.jitter(lists, now);
        // SAFETY: the callers pass the head of a list, and `lists` proves that the lock is held.
        unsafe {
            lists.waits.get(head).set_next_try(next_try);
            lists.schedule(head, delay);
        }
    }

    /// Takes on behalf of the head of a list, as of `at`. Takes at most `credit` permits, if that
    /// is given: at least what the request needs.
    pub(super) fn take_for(
        &self,
        lists: &mut Lists<Q::Source>,
        head: NonNull<Waiter<Key<Q>>>,
        credit: Option<u64>,
        at: Timestamp,
    ) -> Result<Grant, Denied> {
        // SAFETY: the head is linked, so it is filled and its request does not change.
        let (key, mut request) = unsafe { Waiter::asks(head) };
        if let Some(credit) = credit {
            request.max = request.max.min(u32::try_from(credit).unwrap_or(u32::MAX));
        }
        let mut notes = self.source.has_notes().then_some(Receipts::NONE);
        let grant = self.attempt(key, request, When::At(at), notes.as_mut())?;
        if let Some(notes) = notes.filter(|_| grant.0 > 0) {
            lists.noted = (head.addr().get(), notes);
        }
        Ok(grant)
    }

    /// Returns when to ask a limiter again that denied as of `at` and answers `retry`. The result
    /// is later than `at`.
    #[inline(always)]
    pub(super) fn next_try(retry: Retry, at: Timestamp, now: Timestamp) -> NextTry {
        match retry {
            Retry::At(later) if later > at => NextTry {
                at: later,
                exact: true,
            },
            // The limiter's state has changed in the meantime, or its answers are inconsistent.
            Retry::At(_) if at < now => NextTry {
                at: now,
                exact: true,
            },
            Retry::At(_) => NextTry {
                at: now.saturating_add(AGAIN),
                exact: false,
            },
            Retry::After(wait) => {
                let wait = if wait.is_zero() { AGAIN } else { wait };
                NextTry {
                    at: now.saturating_add(wait),
                    exact: false,
                }
            }
            _ => NextTry::ON_RELEASE,
        }
    }

    /// Returns how long to delay the next try of a head: a random part of the queue's jitter.
    pub(super) fn jitter(&self, lists: &mut Lists<Q::Source>, now: Timestamp) -> Duration {
        if self.options.jitter.is_zero() {
            return Duration::ZERO;
        }
        lists.random(self.options.jitter, now)
    }

    /// Settles a head with a grant. Returns the new head.
    #[inline(always)]
    pub(super) fn settle_granted(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        head: NonNull<Waiter<Key<Q>>>,
        grant: Grant,
        now: Timestamp,
    ) -> Option<NonNull<Waiter<Key<Q>>>> {
        lists.counts.granted = lists.counts.granted.wrapping_add(1);
        self.settle(lists, batch, head, State::Granted, Some(grant), now)
    }

    /// Settles a waiter whose deadline has passed. Returns the new head if the waiter was the head.
    pub(super) fn settle_late(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        waiter: NonNull<Waiter<Key<Q>>>,
        now: Timestamp,
    ) -> Option<NonNull<Waiter<Key<Q>>>> {
        // SAFETY: the waiter is linked, and `lists` proves that the lock is held.
        let sheds = unsafe { lists.waits.get(waiter).sheds() };
        let next = self.settle(lists, batch, waiter, State::Late, None, now);
        lists.count_late(sheds);
        next
    }

    /// Settles a head that requests more than its limiter can hold. Returns the new head.
    pub(super) fn settle_oversized(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        head: NonNull<Waiter<Key<Q>>>,
        now: Timestamp,
    ) -> Option<NonNull<Waiter<Key<Q>>>> {
        let next = self.settle(lists, batch, head, State::Exceeds, None, now);
        lists.counts.oversized = lists.counts.oversized.wrapping_add(1);
        next
    }

    /// Removes a waiter from its list and settles it. Returns the new head if the waiter was the
    /// head.
    pub(super) fn settle(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        waiter: NonNull<Waiter<Key<Q>>>,
        outcome: State,
        grant: Option<Grant>,
        now: Timestamp,
    ) -> Option<NonNull<Waiter<Key<Q>>>> {
        if let Some(why) = outcome.not_granted() {
            // SAFETY: the waiter is linked, so it is filled and its request does not change.
            let (key, Request { min, .. }) = unsafe { Waiter::asks(waiter) };
            // If the limiter panics, the waiter stays in its list. The callers count what has ended
            // after this call.
            self.not_granted(key, now, min, why);
            self.front_makes_way(lists, waiter);
        }
        let (waker, next) = if outcome.not_granted().is_some() {
            self.remove_ungranted(lists, waiter)
        } else {
            self.remove(lists, waiter)
        };
        batch.push(waker);
        // SAFETY: `remove` has just unlinked the waiter, and it is not settled yet.
        unsafe { lists.waits.settle(waiter, outcome, grant, Some(now)) };
        next
    }

    /// Removes a waiter from its list, and updates the queue's counts. See [`Shard::remove`].
    #[inline(always)]
    pub(super) fn remove(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
    ) -> Removed<Key<Q>> {
        // SAFETY: the waiter is linked, and `lists` proves that the lock is held.
        let head = unsafe { lists.head_of(waiter) };
        self.remove_from(lists, waiter, head)
    }

    /// Removes a waiter as `remove` does, that ends without a grant. What its key has saved for it
    /// is lost, also if it was the head once and another request has gone before it.
    #[inline(always)]
    pub(super) fn remove_ungranted(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
    ) -> Removed<Key<Q>> {
        if !Q::Source::HAS_TOTAL {
            return self.remove(lists, waiter);
        }
        // SAFETY: the waiter is linked, and `lists` proves that the lock is held.
        let head = unsafe { lists.head_of(waiter) };
        let removed = self.remove_from(lists, waiter, head);
        let left = if waiter == head {
            removed.1
        } else {
            Some(head)
        };
        Self::bound_credit(lists, left);
        removed
    }

    /// Removes a waiter as `remove` does, for a waiter whose list has the head `head`, which may be
    /// the waiter itself.
    #[inline(always)]
    pub(super) fn remove_from(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
        head: NonNull<Waiter<Key<Q>>>,
    ) -> Removed<Key<Q>> {
        // SAFETY: the waiter is linked and `head` is the head of its list; `lists` proves that the
        // lock is held.
        unsafe {
            let (key, request) = Waiter::asks(waiter);
            lists.set_timer(waiter, None);
            lists.counts.waiters -= 1;
            if lists.counts.waiters == 0 {
                self.has_waiters.store(false, Relaxed);
            }
            lists.counts.permits -= u64::from(request.min);
            self.publish_queued(lists);
            let shard = lists.shard(key);
            let taken = shard.remove(waiter, head);
            if shard.is_empty() {
                lists.occupied &= !(1 << Q::Source::shard(key));
            }
            if Q::Source::HAS_TOTAL {
                match taken.1 {
                    Some(next) => lists.waits.hand_turn(waiter, next),
                    None => lists.waits.leave_round(waiter),
                }
                lists.note_round();
            }
            taken
        }
    }

    #[inline(always)]
    pub(super) fn publish_queued(&self, lists: &Lists<Q::Source>) {
        self.queued.store(
            u32::try_from(lists.counts.permits).unwrap_or(u32::MAX),
            Relaxed,
        );
    }

    pub(super) fn settle_drainer(
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        waiter: NonNull<Waiter<Key<Q>>>,
        now: Timestamp,
    ) {
        batch.push(Self::remove_drainer(lists, waiter));
        // SAFETY: `remove_drainer` has just unlinked the waiter, and it is not settled yet.
        unsafe { lists.waits.settle(waiter, State::Granted, None, Some(now)) };
    }

    pub(super) fn remove_drainer(
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
    ) -> Option<Waker> {
        // SAFETY: the waiter is linked in `drainers`, which has only one list; `lists` proves that
        // the lock is held.
        let waker = unsafe {
            let head = lists.waits.drainers.heads().next().unwrap_or(waiter);
            lists.waits.drainers.remove(waiter, head).0
        };
        if lists.waits.drainers.is_empty() {
            lists.occupied &= !DRAINED;
        }
        waker
    }

    /// Returns whether no permit is held. If so, everything that was done before the permits were
    /// released is visible.
    pub(super) fn is_drained(&self, lists: &mut Lists<Q::Source>) -> bool {
        let drained = self.source.is_drained(&mut lists.cursor);
        fence(Acquire);
        drained
    }
}

/// A wait list whose limiter may panic before the head's timer is set. If it panics, the limiter is
/// asked again after the lock is unlocked, and once more after `AFTER_PANIC`.
pub(super) struct RetryOnUnwind<'s, S: LimiterSource> {
    pub(super) pending: &'s PendingReleases,
    pub(super) bit: usize,
    pub(super) lists: &'s mut Lists<S>,
    pub(super) head: NonNull<Waiter<S::Key>>,
    pub(super) now: Timestamp,
}

impl<S: LimiterSource> Drop for RetryOnUnwind<'_, S> {
    fn drop(&mut self) {
        self.pending.add(self.bit);
        // SAFETY: `head` is linked, because `serve` updates it after each removal; `lists` proves
        // that the lock is held.
        unsafe {
            self.lists.waits.get(self.head).set_next_try(NextTry {
                at: self.now.saturating_add(AFTER_PANIC),
                exact: false,
            });
            self.lists.schedule(self.head, Duration::ZERO);
        }
    }
}

impl<S: LimiterSource> Lists<S> {
    /// Counts a request whose deadline has passed or cannot be met; if `sheds`, the deadline is the
    /// bound of the queue's shedding.
    pub(super) const fn count_late(&mut self, sheds: bool) {
        let count = match sheds {
            #[cfg(feature = "shedding")]
            true => &mut self.counts.shed,
            _ => &mut self.counts.late,
        };
        *count = count.wrapping_add(1);
    }

    /// Returns a random time from 0 to `most`, by xorshift (Marsaglia, 2003) seeded with the time
    /// and the queue's address. The quality suffices to spread requests out.
    pub(super) fn random(&mut self, most: Duration, now: Timestamp) -> Duration {
        let place = core::ptr::from_ref(self).addr();
        let mut random = self.random.wrapping_add(now.as_nanos() as u32) ^ place as u32 | 1;
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        self.random = random;
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(((u128::from(most) * u128::from(random)) >> 32) as u64)
    }
}

/// When to ask a limiter again that does not say when.
const AGAIN: Duration = Duration::from_millis(1);

/// When to ask a limiter again after it panicked.
const AFTER_PANIC: Duration = Duration::from_millis(100);
