//! Letting a newcomer in, or not.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::{Clock, Denied, Limiter, Retry, Timestamp};

use super::serve::take;
use super::waits::Taken;
use super::{Grant, Hall, Inner};
use crate::Rejected;
use crate::hook::Hook;
use crate::list::{Ask, Bin, End, Node, State, Wish};
use crate::lock::RawLock;
use crate::options::{Options, Order};
use crate::source::Source;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::fence;
use crate::wakes::Wakes;

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Hall<S, C, R, H, B> {
    /// Puts a newcomer into its line, if it is plain that it has to wait, and that there is room
    /// for it; takes its waker then.
    ///
    /// # Safety
    ///
    /// As of `Waits::enqueue`.
    #[inline(always)]
    pub(super) unsafe fn enter_behind(
        &self,
        inner: &mut Inner<S::Key, B>,
        node: NonNull<Node<S::Key>>,
        waker: &mut Option<Waker>,
    ) -> bool
    where
        H: Hook,
    {
        // SAFETY: the node is ours, as the caller says.
        let Node { key, wish, .. } = unsafe { &*node.as_ptr() };
        let bin = S::bin(*key, B);
        let head = inner.bins[bin].head(*key);
        let Options {
            order,
            max_permits,
            max_waiters,
            ..
        } = self.options;
        let is_plain = order == Order::OldestFirst
            && head.is_some()
            && !inner.closed
            // Whether there can be more is asked.
            && wish.min <= 1
            && wish.deadline == Timestamp::MAX
            && inner.counts.waiters < max_waiters
            && Bin::room(head) + wish.room() <= max_permits;
        if is_plain {
            // SAFETY: the same.
            unsafe { self.enter(inner, node, head, waker) };
        }
        is_plain
    }

    /// Takes for a newcomer, or puts it into its line, or refuses it.
    ///
    /// # Safety
    ///
    /// As of `Waits::enqueue`.
    #[cold]
    pub(super) unsafe fn decide(
        &self,
        node: NonNull<Node<S::Key>>,
        waker: Waker,
    ) -> Option<Result<Grant, Rejected>>
    where
        H: Hook,
    {
        // SAFETY: the node is ours, as the caller says.
        let (key, wish) = unsafe { ((*node.as_ptr()).key, (*node.as_ptr()).wish) };
        let mut waker = Some(waker);
        loop {
            let step = self.with(|inner, wakes| {
                let mut ask = Ask::ON_RELEASE;
                let step = self.admit(inner, wakes, key, wish, &mut ask);
                if let Step::Wait = step {
                    let head = inner.bins[S::bin(key, B)].head(key);
                    // SAFETY: the same.
                    unsafe {
                        self.enter(inner, node, head, &mut waker);
                        (*node.as_ptr()).ask = ask;
                        inner.schedule(node);
                        if let Some(head) = head {
                            inner.schedule(head);
                        }
                    }
                }
                step
            });
            match step {
                Step::Settled(outcome) => {
                    // Its drop may panic: what was taken is given back then.
                    drop(waker.take());
                    return Some(outcome.map(Taken::keep));
                }
                Step::Wait => return None,
                Step::Again => {}
            }
        }
    }

    /// Decides on a newcomer, under the lock.
    #[cold]
    fn admit(
        &self,
        inner: &mut Inner<S::Key, B>,
        wakes: &mut Wakes,
        key: S::Key,
        wish: Wish,
        ask: &mut Ask,
    ) -> Step<Result<Taken<'_, S, C, R, H, B>, Rejected>> {
        self.raise(Self::bit(key));
        let now = self.clock.now();
        let Wish {
            min, max, deadline, ..
        } = wish;
        if inner.closed {
            return Step::Settled(Err(Rejected::Closed { permits: min }));
        }
        let limiter = self.source.at(key);
        let bin = S::bin(key, B);
        let head = inner.bins[bin].head(key);
        let mut is_refused = false;
        if self.options.order == Order::NewestFirst || head.is_none() {
            // Left if the limiter panics: it may have taken, and given back.
            let mut mark = self.marks.unless_forgotten(Self::bit(key));
            let taken = take(
                min,
                max,
                || limiter.available_at(now),
                |n| limiter.take_at(now, n),
            );
            mark.bits = 0;
            match taken {
                // To be given back if a waker panics before it is anybody's.
                Ok(grant) => {
                    return Step::Settled(Ok(Taken {
                        hall: self,
                        key,
                        grant: Some(grant),
                        at: now,
                        node: 0,
                    }));
                }
                Err(Denied::ExceedsCapacity { permits, capacity }) => {
                    return Step::Settled(Err(Rejected::ExceedsCapacity { permits, capacity }));
                }
                Err(denied) => {
                    is_refused = matches!(denied, Denied::Refused { .. });
                    *ask = self.ask(inner, &limiter, denied, now, now);
                }
            }
        }
        if u64::from(min) > limiter.capacity() {
            return Step::Settled(Err(exceeds(&limiter, min)));
        }
        let retry = |ahead| earliest(&limiter, now, ahead, min);
        if deadline < Timestamp::MAX {
            let retry = retry(self.ahead(inner, key));
            let too_late = match retry {
                Retry::At(at) => at > deadline,
                Retry::Never => true,
                _ => false,
            };
            if too_late || deadline <= now {
                inner.counts.late = inner.counts.late.wrapping_add(1);
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
        let fits = |inner: &Inner<S::Key, B>| {
            let line = Bin::room(inner.bins[bin].head(key));
            inner.counts.waiters < max_waiters && line + wish.room() <= max_permits
        };
        let could_fit = max_waiters > 0 && wish.room() <= max_permits;
        while could_fit && order == Order::NewestFirst && !fits(inner) {
            let Some(head) = inner.bins[bin].head(key) else {
                break;
            };
            if wakes.is_full() {
                return Step::Again;
            }
            inner.counts.evicted = inner.counts.evicted.wrapping_add(1);
            self.settle(inner, wakes, Bin::last(head), State::Evicted, None, now);
        }
        if could_fit && fits(inner) {
            return Step::Wait;
        }
        inner.counts.refused = inner.counts.refused.wrapping_add(1);
        let retry = retry(self.ahead(inner, key));
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

    /// Raises the gate, before the limiter is asked whether one has to wait: as `grant` gives back
    /// before it looks. If it is raised already, all that was given back before somebody looked at
    /// it is seen: it was raised under the lock.
    pub(super) fn raise(&self, bit: usize) {
        if self.gate.load(Relaxed) & bit == 0 {
            self.gate.fetch_or(bit, Relaxed);
            fence(SeqCst);
            self.source.watch(true);
        }
    }

    /// The permits that stand before a newcomer.
    pub(super) fn ahead(&self, inner: &Inner<S::Key, B>, key: S::Key) -> u64 {
        match self.options.order {
            Order::OldestFirst => Bin::permits(inner.bins[S::bin(key, B)].head(key)),
            Order::NewestFirst => 0,
        }
    }

    /// Puts a node into the line of `head`, and takes its waker. If the clock panics, the waker
    /// stays where it is, to be dropped outside of the lock.
    ///
    /// # Safety
    ///
    /// As of `Waits::enqueue`; it is the line of its key.
    #[inline(always)]
    pub(super) unsafe fn enter(
        &self,
        inner: &mut Inner<S::Key, B>,
        node: NonNull<Node<S::Key>>,
        head: Option<NonNull<Node<S::Key>>>,
        waker: &mut Option<Waker>,
    ) where
        H: Hook,
    {
        // SAFETY: the node is ours, as the caller says, and its neighbours are linked.
        unsafe {
            let Node { key, wish, .. } = &*node.as_ptr();
            let (bin, min) = (S::bin(*key, B), wish.min);
            let end = if self.options.order == Order::OldestFirst {
                End::Tail
            } else {
                End::Head
            };
            if H::TIMES {
                (*node.as_ptr()).since = self.clock.now();
            }
            let Some(waker) = waker.take() else { return };
            inner.bins[bin].enter(node, head, end, waker);
            inner.occupied |= 1 << bin;
            inner.counts.waiters += 1;
            inner.counts.permits += u64::from(min);
            self.mirror(inner);
        }
    }
}

/// What comes of a request that queues.
enum Step<T> {
    Settled(T),
    Wait,
    /// Some have been evicted, and are woken first.
    Again,
}

/// When a request can be granted that has `ahead` permits before it, at the earliest.
pub(crate) fn earliest<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    ahead: u64,
    permits: u32,
) -> Retry {
    match limiter.peek_at(now, permits) {
        Ok(_) | Err(Denied::Exhausted { .. }) => {}
        // Whoever is before it is told the same.
        Err(denied) => return limiter.retry(denied),
    }
    if ahead > 0 {
        let all = ahead.saturating_add(permits.max(1).into());
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let retry = limiter.retry(Denied::Exhausted { now, permits: all });
        // A limiter that does not look further than its capacity.
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
