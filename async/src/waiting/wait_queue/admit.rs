//! Admission of a new request: it takes at once, waits, or is refused.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use portcullis_core::{Clock, Denied, Limiter, Retry, Timestamp};

use super::serve::take;
use super::taken::Taken;
use super::{Lists, WaitQueue};
use crate::Rejected;
use crate::queues::hook::Hook;
use crate::queues::options::{Options, Order};
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::fence;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wait_list::{End, NextTry, Request, State, Waiter};
use crate::waiting::wake_batch::WakeBatch;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Takes for a new request, or puts it into its wait list, or refuses it.
    ///
    /// What is plain is seen to here: a request for one permit without a deadline, for which there
    /// is room. Behind others it changes nothing for them, nor for the timers; first in its list,
    /// neither, if its limiter says that time does not help.
    ///
    /// # Safety
    ///
    /// As of `enqueue`.
    #[inline(always)]
    pub(super) unsafe fn admit(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut Option<WakeBatch>,
        waiter: NonNull<Waiter<Key<Q>>>,
    ) -> Step<'_, Q> {
        // SAFETY: the waiter is ours, as the caller says.
        let (key, request) = unsafe { Waiter::asks(waiter) };
        let Request {
            min, max, deadline, ..
        } = request;
        let head = lists.head(key);
        let Options {
            order,
            max_permits,
            max_waiters,
            ..
        } = self.options;
        let is_plain = order == Order::OldestFirst
            && !lists.closed
            // For more, the limiter is asked whether they can ever be granted.
            && min <= 1
            && deadline == Timestamp::MAX
            && lists.counts.waiters < max_waiters
            && lists.shard(key).room(head) + request.room() <= max_permits;
        if is_plain && head.is_some() {
            // SAFETY: the waiter is ours, as the caller says.
            unsafe { self.enter(lists, waiter, head) };
            return Step::Wait;
        }
        let now = self.clock.now();
        self.raise(Self::bit(key));
        // Noted if the limiter or a clock panics: the limiter may have taken and given back.
        let mut mark = self.pending.restore_on_drop(Self::bit(key));
        let mut asked = Asked {
            now,
            next_try: NextTry::ON_RELEASE,
            is_refused: false,
        };
        let step = if lists.closed {
            Some(Step::Settled(Err(Rejected::Closed { permits: min })))
        } else if self.options.order == Order::NewestFirst || head.is_none() {
            let limiter = self.source.at(key);
            let taken = take(
                min,
                max,
                || limiter.available_at(now),
                |n| limiter.take_at(now, n),
            );
            match taken {
                // To be given back if a waker panics before it is handed out.
                Ok(grant) => Some(Step::Settled(Ok(Taken {
                    wait_queue: self,
                    key,
                    grant: Some(grant),
                    at: now,
                    waiter: 0,
                }))),
                Err(Denied::ExceedsCapacity { permits, capacity }) => {
                    Some(Step::Settled(Err(Rejected::ExceedsCapacity {
                        permits,
                        capacity,
                    })))
                }
                Err(denied) => {
                    asked.is_refused = matches!(denied, Denied::Refused { .. });
                    asked.next_try = self.next_try(lists, &limiter, denied, now, now);
                    if is_plain
                        && asked.next_try.at == Timestamp::MAX
                        && u64::from(min) <= limiter.capacity()
                    {
                        // SAFETY: the waiter is ours, as the caller says.
                        unsafe { self.enter(lists, waiter, head) };
                        mark.bits = 0;
                        return Step::Wait;
                    }
                    None
                }
            }
        } else {
            None
        };
        mark.bits = 0;
        if let Some(step) = step {
            self.leave_lists(lists, || batch.insert(WakeBatch::new()));
            return step;
        }
        // SAFETY: as the caller says.
        unsafe { self.admit_asked(lists, batch, waiter, asked) }
    }

    /// Puts a new request into its wait list, or refuses it, by what its limiter has said.
    ///
    /// # Safety
    ///
    /// As of `enqueue`.
    #[cold]
    unsafe fn admit_asked(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut Option<WakeBatch>,
        waiter: NonNull<Waiter<Key<Q>>>,
        asked: Asked,
    ) -> Step<'_, Q> {
        let batch = batch.insert(WakeBatch::new());
        // SAFETY: as the caller says.
        self.critical_section(lists, batch, |lists, batch| unsafe {
            self.wait_or_refuse(lists, batch, waiter, asked)
        })
    }

    /// As `admit_asked`, in a critical section.
    ///
    /// # Safety
    ///
    /// As of `enqueue`.
    #[inline(always)]
    unsafe fn wait_or_refuse(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        waiter: NonNull<Waiter<Key<Q>>>,
        asked: Asked,
    ) -> Step<'_, Q> {
        let Asked {
            now,
            next_try,
            is_refused,
        } = asked;
        // SAFETY: the waiter is ours, as the caller says.
        let (key, request) = unsafe { Waiter::asks(waiter) };
        let Request { min, deadline, .. } = request;
        let limiter = self.source.at(key);
        if u64::from(min) > limiter.capacity() {
            return Step::Settled(Err(exceeds(&limiter, min)));
        }
        let retry = |ahead| earliest(&limiter, now, ahead, min);
        if deadline < Timestamp::MAX {
            let retry = retry(self.ahead(lists, key));
            let too_late = match retry {
                Retry::At(at) => at > deadline,
                Retry::Never => true,
                _ => false,
            };
            if too_late || deadline <= now {
                lists.counts.late = lists.counts.late.wrapping_add(1);
                return Step::Settled(Err(Rejected::Deadline {
                    permits: min,
                    retry,
                }));
            }
        }
        let Options {
            order,
            max_permits,
            max_waiters,
            ..
        } = self.options;
        let fits = |lists: &Lists<Q::Source>| {
            let line = lists.room(key);
            lists.counts.waiters < max_waiters && line + request.room() <= max_permits
        };
        let could_fit = max_waiters > 0 && request.room() <= max_permits;
        while could_fit && order == Order::NewestFirst && !fits(lists) {
            let Some(head) = lists.head(key) else {
                break;
            };
            if batch.is_full() {
                return Step::Again;
            }
            lists.counts.evicted = lists.counts.evicted.wrapping_add(1);
            let last = lists.shard(key).last(head);
            self.settle(lists, batch, last, State::Evicted, None, now);
        }
        if could_fit && fits(lists) {
            let head = lists.head(key);
            // SAFETY: the waiter is ours, as the caller says, and in a list then, as the head is.
            unsafe {
                self.enter(lists, waiter, head);
                lists.waits.get(waiter).set_next_try(next_try);
                lists.schedule(waiter);
                if let Some(head) = head {
                    lists.schedule(head);
                }
            }
            return Step::Wait;
        }
        lists.counts.refused = lists.counts.refused.wrapping_add(1);
        let retry = retry(self.ahead(lists, key));
        Step::Settled(Err(if is_refused {
            Rejected::Refused {
                permits: min,
                retry,
            }
        } else {
            Rejected::QueueFull {
                permits: min,
                retry,
            }
        }))
    }

    /// Raises the gate before the limiter is asked, as `grant` gives back before it reads the gate.
    /// If the gate is raised already, what was given back before it was read is seen: it was raised
    /// under the lock.
    pub(super) fn raise(&self, bit: usize) {
        if self.gate.load(Relaxed) & bit == 0 {
            self.gate.fetch_or(bit, Relaxed);
            fence(SeqCst);
            self.source.watch(true);
        }
    }

    /// The permits that wait before a new request.
    pub(super) fn ahead(&self, lists: &Lists<Q::Source>, key: Key<Q>) -> u64 {
        match self.options.order {
            Order::OldestFirst => lists.permits(key),
            Order::NewestFirst => 0,
        }
    }

    /// Puts a waiter into the wait list of `head`. If the clock panics, the waker stays in the
    /// waiter, to be dropped without the lock.
    ///
    /// # Safety
    ///
    /// As of `enqueue`; it is the list of its key.
    #[inline(always)]
    pub(super) unsafe fn enter(
        &self,
        lists: &mut Lists<Q::Source>,
        waiter: NonNull<Waiter<Key<Q>>>,
        head: Option<NonNull<Waiter<Key<Q>>>>,
    ) {
        // SAFETY: the waiter is ours, as the caller says, and its neighbours are linked.
        unsafe {
            let (key, Request { min, .. }) = Waiter::asks(waiter);
            let end = if self.options.order == Order::OldestFirst {
                End::Tail
            } else {
                End::Head
            };
            if Q::Hook::TIMES {
                Waiter::own(waiter).since = self.clock.now();
            }
            lists.shard(key).enter(waiter, head, end);
            if head.is_none() {
                lists.occupied |= Self::bit(key);
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

/// When a new request came, and what its limiter has said.
#[derive(Clone, Copy)]
struct Asked {
    now: Timestamp,
    next_try: NextTry,
    /// Whether it is denied whatever is free.
    is_refused: bool,
}

/// What becomes of a new request.
pub(super) enum Step<'q, Q: QueueConfig> {
    Settled(Result<Taken<'q, Q>, Rejected>),
    Wait,
    /// Others have been evicted, and are woken first.
    Again,
}

/// The earliest instant at which a request can be granted that has `ahead` permits before it.
pub(crate) fn earliest<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    ahead: u64,
    permits: u32,
) -> Retry {
    match limiter.peek_at(now, permits) {
        Ok(()) | Err(Denied::Exhausted { .. }) => {}
        // The requests before it get the same answer.
        Err(denied) => return limiter.retry(denied),
    }
    if ahead > 0 {
        let all = ahead.saturating_add(permits.max(1).into());
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let retry = limiter.retry(Denied::Exhausted { now, permits: all });
        // This limiter answers for no more than its capacity.
        if retry != Retry::Never {
            return retry;
        }
    }
    limiter.retry(Denied::Exhausted { now, permits })
}

pub(super) fn exceeds<L: Limiter>(limiter: &L, permits: u32) -> Rejected {
    let capacity = u32::try_from(limiter.capacity()).unwrap_or(u32::MAX);
    Rejected::ExceedsCapacity { permits, capacity }
}
