//! Admission of a new request: it is granted, queued or rejected.
//!
//! Called by `waits.rs` for a future that was polled for the first time and found the permits taken
//! or other requests ahead. The caller holds the lock. Written here: the waiter bit of the shard,
//! the limiter if it grants, and otherwise the wait list, the counts and the timers.
//!
//! A request that goes before others by its priority is granted at once only while nothing is due.
//! So for those that wait, however late the timer is, the limiter is asked as of the instants at
//! which their permits came.
//!
//! A request that may be rejected, or evict others, is judged once everything is done that is due.
//! So a waiter that a late driver would grant or end is not ahead of it, and takes no room.
//!
//! The terms on which a request may wait, which are its place in the list and its deadline, are set
//! once, when it enters: see `shedding.rs`.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::time::Duration;

use portcullis_core::{Clock, Denied, Limiter, Retry, Timestamp};

use super::ask::{When, earliest, exceeds, is_too_late};
use super::taken::Taken;
use super::{Lists, WaitQueue};
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::fence;
use crate::waiting::hook::Hook;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::next_try::NextTry;
use crate::waiting::options::{Order, Oversized, Terms};
use crate::waiting::priority::{Place, Priority};
use crate::waiting::queue_clock::Wakes;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::rejected::Rejected;
use crate::waiting::wait_list::{At, Request, State, Waiter, is_outranking};
use crate::waiting::wake_batch::WakeBatch;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Whether the queue can shed: the crate has the feature, and time passes by the clock.
    pub(crate) const SHEDS: bool = cfg!(feature = "shedding") && Q::Clock::PASSES;

    /// Admits a new request: takes for it, puts it into its wait list, or rejects it.
    ///
    /// This function handles the plain case itself: a request for at most one permit, without a
    /// deadline, in an oldest-first queue with room and without shedding. If the list has other
    /// waiters, queueing it changes nothing for them or for the timers. If the list is empty, it
    /// does not change the timers either, provided the limiter says that only a release helps. All
    /// other requests go to `admit_asked`; what is due is done before them if `is_first`, in the
    /// first admission of a call.
    ///
    /// # Safety
    ///
    /// The contract is that of `enqueue`.
    #[inline(always)]
    pub(super) unsafe fn admit(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut Option<WakeBatch>,
        waiter: NonNull<Waiter<Key<Q>>>,
        is_first: bool,
        drives: &mut bool,
    ) -> Step<'_, Q> {
        // SAFETY: the waiter is filled and not shared, as the caller guarantees.
        let ((key, request), priority) =
            unsafe { (Waiter::asks(waiter), Waiter::priority(waiter)) };
        let (min, head) = (request.min, lists.head(key));
        let is_plain = self.is_plain(lists, key, head, request, priority);
        if is_plain && head.is_some() {
            // SAFETY: the caller guarantees that the waiter is idle and not shared; `head` is the
            // head of its key's list.
            unsafe { self.enter(lists, waiter, head, At::Tail) };
            return Step::Wait;
        }
        let now = self.clock.now();
        self.raise(Self::bit(key));
        // Set if the limiter or a clock panics: the limiter may have taken permits and refunded
        // them.
        let mut mark = self.pending.restore_on_drop(Self::bit(key));
        let step = if lists.closed {
            lists.counts.closed = lists.counts.closed.wrapping_add(1);
            Ok(self.reject(key, now, Rejected::Closed { permits: min }))
        } else if self.comes_next(lists, key, head, priority, now) {
            match self.attempt(key, request, When::At(now), None) {
                // Returned if a waker panics before the grant is handed out.
                Ok(grant) => Ok(Step::Settled(Ok(Taken {
                    wait_queue: self,
                    key,
                    grant: Some(grant),
                    at: now,
                    waiter: 0,
                }))),
                Err(Denied::ExceedsCapacity { permits, capacity })
                    if self.options.oversized == Oversized::Reject =>
                {
                    lists.counts.oversized = lists.counts.oversized.wrapping_add(1);
                    let rejected = Rejected::ExceedsCapacity { permits, capacity };
                    Ok(self.reject(key, now, rejected))
                }
                Err(denied) => {
                    let limiter = self.source.at(key);
                    let next_try = Self::next_try(limiter.retry(denied), now, now);
                    if is_plain
                        && !Q::Source::HAS_TOTAL
                        && next_try.at == Timestamp::MAX
                        && u64::from(min) <= limiter.capacity()
                    {
                        // SAFETY: the caller guarantees that the waiter is idle and not shared;
                        // `head` is the head of its key's list.
                        unsafe { self.enter(lists, waiter, head, At::Tail) };
                        mark.bits = 0;
                        return Step::Wait;
                    }
                    Err(Asked::denied(now, denied, next_try))
                }
            }
        } else {
            Err(Asked::not_yet(now, is_outranking(head, priority)))
        };
        mark.bits = 0;
        match step {
            Ok(step) => {
                self.leave_lists(lists, || batch.insert(WakeBatch::new()));
                step
            }
            // SAFETY: the caller guarantees the contract of `enqueue`.
            Err(asked) => unsafe {
                self.admit_asked(lists, batch, waiter, asked, is_first, drives)
            },
        }
    }

    /// Returns whether a new request only waits, or is granted, in the order of arrival.
    #[inline(always)]
    fn is_plain(
        &self,
        lists: &mut Lists<Q::Source>,
        key: Key<Q>,
        head: Option<NonNull<Waiter<Key<Q>>>>,
        request: Request,
        priority: Priority,
    ) -> bool {
        self.has_plain_options()
            && lists.shard(key).is_last(head, priority)
            && !lists.closed
            // A request for more needs the limiter's capacity, to learn whether it can ever be
            // granted.
            && request.min <= 1
            && request.deadline == Timestamp::MAX
            && lists.counts.waiters < self.options.max_waiters
            && lists.shard(key).line(head).room() + request.room() <= lists.max_permits
    }

    /// Returns whether the options leave a request as it is: the oldest comes first, and may wait
    /// until its own deadline.
    #[inline(always)]
    fn has_plain_options(&self) -> bool {
        let sheds = Self::SHEDS && self.options.shedding.or(None).is_some();
        self.options.order == Order::OldestFirst && !sheds
    }

    /// Puts a new request into its wait list or rejects it, given what its limiter answered. If
    /// something is due in the first admission of a call, does that instead, and lets the request
    /// be admitted again.
    ///
    /// # Safety
    ///
    /// The contract is that of `enqueue`.
    #[cold]
    unsafe fn admit_asked(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut Option<WakeBatch>,
        waiter: NonNull<Waiter<Key<Q>>>,
        mut asked: Asked,
        is_first: bool,
        drives: &mut bool,
    ) -> Step<'_, Q> {
        if is_first && lists.due() <= asked.now {
            let batch = batch.insert(WakeBatch::new());
            let work = |lists: &mut _, batch: &mut _| self.grant_due(lists, batch, None);
            self.critical_section(lists, batch, work);
            return Step::Again;
        }
        if Q::Source::HAS_TOTAL {
            // SAFETY: the waiter is filled and not shared, as the caller guarantees.
            let (key, request) = unsafe { Waiter::asks(waiter) };
            self.judge_newcomer(&mut asked, key, request.min);
        }
        let batch = batch.insert(WakeBatch::new());
        // SAFETY: the caller guarantees the contract of `enqueue`.
        let step = self.critical_section(lists, batch, |lists, batch| unsafe {
            self.wait_or_refuse(lists, batch, waiter, asked)
        });
        // A waiter that is chosen to drive while it enters drives at once.
        if Q::Clock::WAKES && matches!(step, Step::Wait) && lists.is_driven_by(waiter) {
            *drives = true;
            // SAFETY: the waiter has entered a list, and this call holds the lock.
            unsafe { lists.waits.get(waiter).rewake(batch.untell_driver()) };
        }
        step
    }

    /// Does the work of `admit_asked`, in a critical section.
    ///
    /// # Safety
    ///
    /// The contract is that of `enqueue`.
    #[inline(always)]
    unsafe fn wait_or_refuse(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        waiter: NonNull<Waiter<Key<Q>>>,
        asked: Asked,
    ) -> Step<'_, Q> {
        let Asked {
            now, is_refused, ..
        } = asked;
        // SAFETY: the waiter is filled and not shared, as the caller guarantees.
        let (key, request) = unsafe { Waiter::asks(waiter) };
        let Request { min, .. } = request;
        let limiter = self.source.at(key);
        // A request for no permits is judged as one for 1 permit.
        let is_oversized = u64::from(min.max(1)) > limiter.capacity();
        if is_oversized && self.options.oversized == Oversized::Reject {
            lists.counts.oversized = lists.counts.oversized.wrapping_add(1);
            return self.reject(key, now, exceeds(&*limiter, min));
        }
        let terms = self.terms(lists, key, now, request.deadline);
        let place = Place {
            // SAFETY: the waiter is filled, as the caller guarantees.
            priority: unsafe { Waiter::priority(waiter) },
            goes_first: terms.goes_first,
        };
        let retry = |lists: &Lists<Q::Source>| {
            let ahead = lists.before(key, place).permits();
            earliest(&*limiter, now, ahead, min)
        };
        let deadline = terms.deadline;
        if deadline < Timestamp::MAX {
            let retry = retry(lists);
            if deadline <= now || is_too_late(&*limiter, now, retry, deadline, is_oversized) {
                return self.reject_late(lists, key, &terms, now, min, retry);
            }
        }
        match self.make_room(lists, batch, (key, place), request, now) {
            Room::Found => {
                // SAFETY: the caller guarantees the contract of `enqueue`.
                unsafe { self.enter_timed(lists, waiter, asked, &terms, place) };
                return Step::Wait;
            }
            Room::LaterInThisCall => return Step::Again,
            Room::None => {}
        }
        lists.counts.full = lists.counts.full.wrapping_add(1);
        let retry = retry(lists);
        let permits = min;
        let rejected = if is_refused {
            Rejected::Refused { permits, retry }
        } else {
            Rejected::QueueFull { permits, retry }
        };
        self.reject(key, now, rejected)
    }

    /// Returns the terms of a new request with the deadline `own`.
    #[inline(always)]
    fn terms(
        &self,
        lists: &Lists<Q::Source>,
        key: Key<Q>,
        now: Timestamp,
        own: Timestamp,
    ) -> Terms {
        if Self::SHEDS {
            let since = lists.since(key).unwrap_or(now);
            return self.options.terms(since, now, own);
        }
        Terms {
            since: now,
            goes_first: self.options.order == Order::NewestFirst,
            deadline: own,
            sheds: false,
        }
    }

    /// Rejects a new request whose deadline cannot be met.
    fn reject_late(
        &self,
        lists: &mut Lists<Q::Source>,
        key: Key<Q>,
        terms: &Terms,
        now: Timestamp,
        permits: u32,
        retry: Retry,
    ) -> Step<'_, Q> {
        lists.count_late(terms.sheds);
        let rejected = if terms.sheds {
            Rejected::Shed { permits, retry }
        } else {
            Rejected::Deadline { permits, retry }
        };
        self.reject(key, now, rejected)
    }

    /// Finds room for a new request. Evicts the waiters that would be served last, if they are
    /// behind it, until it fits.
    #[inline(always)]
    fn make_room(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        (key, place): (Key<Q>, Place),
        request: Request,
        now: Timestamp,
    ) -> Room {
        let (options, max_permits) = (self.options, lists.max_permits);
        let fits = |lists: &Lists<Q::Source>| {
            let line = lists.line(key).room();
            lists.counts.waiters < options.max_waiters && line + request.room() <= max_permits
        };
        // None is evicted if the request does not fit after all.
        let least = lists.before(key, place).room() + request.room();
        if options.max_waiters == 0 || least > max_permits {
            return Room::None;
        }
        while !fits(lists) {
            let Some(head) = lists.head(key) else {
                break;
            };
            let last = lists.shard(key).last(head);
            // SAFETY: the waiter is linked, so it is filled.
            if place.is_behind(unsafe { Waiter::priority(last) }) {
                break;
            }
            if batch.is_full() {
                return Room::LaterInThisCall;
            }
            self.settle(lists, batch, last, State::Evicted, None, now);
            lists.counts.evicted = lists.counts.evicted.wrapping_add(1);
        }
        if fits(lists) { Room::Found } else { Room::None }
    }

    /// Puts a waiter into the wait list of its key on its terms, and sets the timers of the list.
    ///
    /// # Safety
    ///
    /// The contract is that of `enqueue`.
    #[inline(always)]
    unsafe fn enter_timed(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
        asked: Asked,
        terms: &Terms,
        place: Place,
    ) {
        // SAFETY: the caller guarantees that the waiter is idle and not shared. `enter` links it;
        // `head` is linked as well. So `get` and `schedule` are called with waiters that are in a
        // list.
        unsafe {
            let (key, _) = Waiter::asks(waiter);
            let head = lists.head(key);
            let at = lists.shard(key).place(head, place);
            if Self::SHEDS {
                Waiter::set_terms(waiter, terms);
            }
            self.enter(lists, waiter, head, at);
            let next_try = if Q::Source::HAS_TOTAL {
                self.enter_round(lists, waiter, asked)
            } else {
                asked.next_try
            };
            if asked.passes {
                // It may fit where the head before did not.
                self.pending.add(Self::bit(key));
            }
            lists.waits.get(waiter).set_next_try(next_try);
            let delay = self.jitter(lists, asked.now);
            lists.schedule(waiter, delay);
            if let Some(head) = head.filter(|&head| !lists.waits.get(head).is_head()) {
                lists.schedule(head, Duration::ZERO);
            }
        }
    }

    /// Rejects a new request, and informs its limiter.
    #[inline(always)]
    fn reject(&self, key: Key<Q>, now: Timestamp, rejected: Rejected) -> Step<'_, Q> {
        self.not_granted(key, now, rejected.permits(), rejected.into());
        Step::Settled(Err(rejected))
    }

    /// Sets the waiter bit before the limiter is asked; `give_back` returns permits before
    /// `grant_returned` reads the bit. The fences on both sides ensure that at least one observes
    /// the other. If all bits are already set, no fence is needed: it was set inside the lock, so
    /// permits that were returned before a release read the bit are visible here.
    pub(super) fn raise(&self, bit: usize) {
        if self.gate.load(Relaxed) & bit != bit {
            self.gate.fetch_or(bit, Relaxed);
            fence(SeqCst);
            self.source.watch(true);
        }
    }

    /// Returns the number of permits queued before a new request.
    pub(super) fn ahead(
        &self,
        lists: &Lists<Q::Source>,
        (key, priority): (Key<Q>, Priority),
        now: Timestamp,
    ) -> u64 {
        let place = Place {
            priority,
            goes_first: self.terms(lists, key, now, Timestamp::MAX).goes_first,
        };
        lists.before(key, place).permits()
    }

    /// Returns whether no request is ahead of a new one that may wait, whose list has the head
    /// `head`: it comes first as a try does, or by its priority, or its list is overloaded.
    #[inline(always)]
    fn comes_next(
        &self,
        lists: &mut Lists<Q::Source>,
        key: Key<Q>,
        head: Option<NonNull<Waiter<Key<Q>>>>,
        priority: Priority,
        now: Timestamp,
    ) -> bool {
        self.comes_first(lists, head)
            || (!Q::Source::HAS_TOTAL || lists.waits.is_round_empty())
                && (Self::passes(lists, head, priority, now)
                    || Self::SHEDS
                        && self.options.order.depends_on_load()
                        && self.terms(lists, key, now, Timestamp::MAX).goes_first)
    }

    /// Returns whether a new request goes before all of its list by its priority, and the limiter
    /// may be asked for it: nothing is due, so none of those that wait is asked as of an earlier
    /// instant any more.
    #[inline(always)]
    fn passes(
        lists: &Lists<Q::Source>,
        head: Option<NonNull<Waiter<Key<Q>>>>,
        priority: Priority,
        now: Timestamp,
    ) -> bool {
        is_outranking(head, priority) && lists.due() > now
    }

    /// Puts a waiter into the wait list of `head`. If the clock panics, the waker stays in the
    /// waiter, and is dropped outside the lock.
    ///
    /// # Safety
    ///
    /// The contract is that of `enqueue`. `head` is the head of the list of the waiter's key.
    #[inline(always)]
    pub(super) unsafe fn enter(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
        head: Option<NonNull<Waiter<Key<Q>>>>,
        at: At<Key<Q>>,
    ) {
        // SAFETY: the waiter is idle and not shared, as the caller guarantees, so its locked fields
        // belong to this call until it is linked.
        unsafe {
            let (key, Request { min, .. }) = Waiter::asks(waiter);
            if Q::Hook::TIMES {
                Waiter::own(waiter).since = self.clock.now();
            }
            let is_head = matches!(at, At::Head);
            lists.shard(key).enter(waiter, head, at);
            if let (true, true, Some(old)) = (Q::Source::HAS_TOTAL, is_head, head) {
                lists.waits.hand_turn(old, waiter);
            }
            if head.is_none() {
                lists.occupied |= 1 << Q::Source::shard(key);
            }
            if lists.counts.waiters == 0 {
                self.has_waiters.store(true, Relaxed);
            }
            lists.counts.waiters += 1;
            lists.counts.permits += u64::from(min);
            self.publish_queued(lists);
        }
    }
}

/// Whether a list has room for a new request.
enum Room {
    Found,
    None,
    /// The batch of evicted waiters is full.
    LaterInThisCall,
}

/// The answer of the limiter to a new request, and the time of the answer.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) now: Timestamp,
    pub(super) next_try: NextTry,
    /// Whether the limiter was not asked, although the request goes before all others of its list
    /// by its priority: something is due, or keys wait for the limit of all keys.
    passes: bool,
    /// Whether the limiter denies the request however many permits are free.
    is_refused: bool,
    /// Whether only the limit of all keys denies the request.
    pub(super) is_ready: bool,
}

impl Asked {
    /// The limiter was not asked, because other requests come first, or have to be served first.
    #[inline(always)]
    const fn not_yet(now: Timestamp, passes: bool) -> Self {
        Self {
            now,
            next_try: NextTry::ON_RELEASE,
            passes,
            is_refused: false,
            is_ready: false,
        }
    }

    /// The limiter answered `denied`, and is to be asked again at `next_try`.
    #[inline(always)]
    const fn denied(now: Timestamp, denied: Denied, next_try: NextTry) -> Self {
        Self {
            next_try,
            is_refused: matches!(denied, Denied::Refused { .. }),
            ..Self::not_yet(now, false)
        }
    }
}

/// The outcome of an attempt to admit a request.
pub(super) enum Step<'q, Q: QueueConfig> {
    Settled(Result<Taken<'q, Q>, Rejected>),
    Wait,
    /// Waiters have ended: something was due, or the batch of evicted waiters is full. Their wakers
    /// run first; then the request is admitted again.
    Again,
}
