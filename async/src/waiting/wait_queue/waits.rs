//! The calls that futures make on the wait queue.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::{Clock, Limiter, Receipt};

use super::admit::{Step, earliest, exceeds};
use super::serve::take;
use super::taken::Taken;
use super::{DRAINED, Grant, WaitQueue};
use crate::Rejected;
use crate::finally::Finally;
use crate::queues::hook::{Hook, Outcome, Waited};
use crate::queues::options::Order;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::panics::unless_unwinding;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wait_list::{End, Locked, Request, State, Waiter};
use crate::waiting::wake_batch::WakeBatch;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Takes at once, if no other request comes first. If it does not, `enqueue` says why.
    #[inline]
    pub(crate) fn try_now(&self, key: Key<Q>, request: Request) -> Option<Grant> {
        if self.is_closed() || self.options.order == Order::OldestFirst && self.is_waited_for(key) {
            return None;
        }
        let (limiter, now) = (self.source.at(key), self.clock.now());
        let available = || limiter.available_at(now);
        take(request.min, request.max, available, |n| {
            self.take(key, || limiter.take_at(now, n))
        })
        .ok()
    }

    /// Takes, or puts an idle waiter into its wait list; then it returns `None`.
    ///
    /// # Safety
    ///
    /// The waiter is idle and has its waker. No other code refers to it. It does not move until it
    /// is settled or `cancel` has returned.
    #[inline(always)]
    pub(crate) unsafe fn enqueue(
        &self,
        waiter: NonNull<Waiter<Key<Q>>>,
    ) -> Option<Result<Grant, Rejected>> {
        // SAFETY: as the caller says.
        let newcomer = unsafe { Waiter::newcomer(waiter) };
        loop {
            let mut batch = None;
            let panicking = self.grant_on_unwind(0);
            let step = self.lists.lock(|lists| {
                // SAFETY: as the caller says.
                unsafe { self.admit(lists, &mut batch, waiter) }
            });
            mem::forget(panicking);
            self.wake_and_grant_some(&mut batch);
            match step {
                Step::Wait => {
                    mem::forget(newcomer);
                    return None;
                }
                Step::Settled(outcome) => {
                    // Its drop may panic. Then what was taken is given back.
                    drop(newcomer);
                    return Some(outcome.map(Taken::keep));
                }
                Step::Again => {}
            }
        }
    }

    /// What has become of a waiter that was put into a list; `None` if it waits, to be woken by
    /// `waker`.
    ///
    /// # Safety
    ///
    /// The waiter was put into a list here, and its outcome has not been asked for since it was
    /// settled.
    pub(crate) unsafe fn outcome(
        &self,
        waiter: NonNull<Waiter<Key<Q>>>,
        waker: &Waker,
    ) -> Option<Result<Grant, Rejected>> {
        // SAFETY: valid, as the caller says.
        if unsafe { Waiter::state(waiter) } == State::Waiting {
            let mut waker = Some(waker.clone());
            let waits = self.with_lists(|lists| {
                // SAFETY: waiting, and so in a list, now that we hold the lock.
                unsafe {
                    let waits = Waiter::state(waiter) == State::Waiting;
                    if waits {
                        waker = lists.waits.get(waiter).rewake(waker.take());
                    }
                    waits
                }
            });
            drop(waker);
            if waits {
                return None;
            }
        }
        // SAFETY: settled, and so ours.
        let (state, (key, request)) = unsafe { (Waiter::state(waiter), Waiter::asks(waiter)) };
        let (permits, limiter) = (request.min, self.source.at(key));
        let retry = || {
            let ahead = self.with_lists(|lists| self.ahead(lists, key));
            earliest(&limiter, self.clock.now(), ahead, permits)
        };
        Some(match state {
            State::Granted => {
                // SAFETY: the same.
                let grant = unsafe { Waiter::own(waiter).grant.take() };
                Ok(grant.unwrap_or((0, Receipt::NONE)))
            }
            State::Evicted => Err(Rejected::Evicted {
                permits,
                retry: retry(),
            }),
            State::Exceeds => Err(exceeds(&limiter, permits)),
            State::Late => Err(Rejected::Deadline {
                permits,
                retry: retry(),
            }),
            _ => Err(Rejected::Closed { permits }),
        })
    }

    /// Tells the hook that a wait is over, if it was one.
    ///
    /// # Safety
    ///
    /// The waiter is filled, and `outcome` or `enqueue` has returned what became of it.
    pub(crate) unsafe fn left(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: as the caller says.
        let (state, (_, request)) = unsafe { (Waiter::state(waiter), Waiter::asks(waiter)) };
        let outcome = match state {
            State::Idle | State::Waiting => return,
            State::Granted => Outcome::Granted,
            State::Evicted => Outcome::Evicted,
            State::Exceeds => Outcome::ExceedsCapacity,
            State::Late => Outcome::Deadline,
            State::Closed => Outcome::Closed,
            State::Cancelled => Outcome::Cancelled,
        };
        // SAFETY: settled, and so ours.
        let Locked { since, until, .. } = unsafe { Waiter::own(waiter) };
        self.hook.left(&Waited {
            permits: request.min,
            time: until.saturating_since(*since),
            outcome,
        });
    }

    /// Gives up a waiter that was put into a list, and what it has been granted.
    ///
    /// # Safety
    ///
    /// As of `outcome`.
    #[inline(always)]
    pub(crate) unsafe fn cancel(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: as the caller says.
        unless_unwinding(|| unsafe { self.give_up(waiter) });
    }

    /// Has an idle waiter wait until nothing is held, and says whether it has to.
    ///
    /// # Safety
    ///
    /// As of `enqueue`; `cancel_drained` takes the place of `cancel`.
    pub(crate) unsafe fn enqueue_drained(&self, waiter: NonNull<Waiter<Key<Q>>>) -> bool {
        // SAFETY: as the caller says.
        let _newcomer = unsafe { Waiter::newcomer(waiter) };
        self.with(|lists, _| {
            self.raise(DRAINED);
            if self.is_drained() {
                return false;
            }
            let drainers = &mut lists.waits.drainers;
            let head = drainers.heads().next();
            // SAFETY: as the caller says.
            unsafe { drainers.enter(waiter, head, End::Tail) };
            lists.occupied |= DRAINED;
            true
        })
    }

    /// Gives up a waiter that waits until nothing is held.
    ///
    /// # Safety
    ///
    /// It was put there by `enqueue_drained`.
    pub(crate) unsafe fn cancel_drained(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: valid, as the caller says.
        if unsafe { Waiter::state(waiter) } == State::Waiting {
            // SAFETY: as the caller says.
            unless_unwinding(|| unsafe { self.give_up_drained(waiter) });
        }
    }
}

impl<Q: QueueConfig> WaitQueue<Q> {
    /// As `cancel`.
    ///
    /// # Safety
    ///
    /// The same.
    unsafe fn give_up(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: valid, as the caller says.
        if unsafe { Waiter::state(waiter) } != State::Waiting {
            // SAFETY: settled, and so ours.
            return unsafe { self.disclaim(waiter, false) };
        }
        let mut batch = None;
        let stays = abort_on_unwind();
        let left = self.lists.lock(|lists| {
            // SAFETY: waiting, and so in a list, now that we hold the lock.
            unsafe {
                if Waiter::state(waiter) != State::Waiting {
                    return None;
                }
                lists.counts.cancelled = lists.counts.cancelled.wrapping_add(1);
                let (waker, next) = self.remove(lists, waiter);
                if next.is_some() {
                    // Requests behind it may fit where it did not.
                    self.pending.add(Self::bit(Waiter::asks(waiter).0));
                }
                let until = Q::Hook::TIMES.then_some(lists.waits.get(waiter).since);
                lists.waits.settle(waiter, State::Cancelled, None, until);
                self.leave_lists(lists, || batch.insert(WakeBatch::new()));
                Some(waker)
            }
        });
        mem::forget(stays);
        let Some(waker) = left else {
            // SAFETY: settled meanwhile, and so ours.
            return unsafe { self.disclaim(waiter, true) };
        };
        self.wake_and_grant_some(&mut batch);
        drop(waker);
        // SAFETY: no longer in a list, and so ours.
        unsafe {
            if Q::Hook::TIMES {
                Waiter::own(waiter).until = self.clock.now();
            }
            self.left(waiter);
        }
    }

    /// Gives back what a settled waiter was granted, if it was. `unlocked`: the lock was held by
    /// this call.
    ///
    /// # Safety
    ///
    /// The waiter was put into a list, is settled, and its outcome has not been asked for.
    #[cold]
    unsafe fn disclaim(&self, waiter: NonNull<Waiter<Key<Q>>>, unlocked: bool) {
        // Also if a waker or the hook panics.
        let _unclaimed = Finally(|| {
            // SAFETY: no longer in a list, and so ours.
            let (own, (key, _)) = unsafe { (Waiter::own(waiter), Waiter::asks(waiter)) };
            if let Some(grant) = own.grant.take() {
                drop(Taken {
                    wait_queue: self,
                    key,
                    grant: Some(grant),
                    at: own.until,
                    waiter: waiter.addr().get(),
                });
            }
        });
        if unlocked {
            self.wake_and_grant_some(&mut None);
        }
        // SAFETY: settled, and so ours.
        unsafe { self.left(waiter) };
    }

    /// As `cancel_drained`.
    ///
    /// # Safety
    ///
    /// The same.
    unsafe fn give_up_drained(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        let stays = abort_on_unwind();
        let waker = self.with(move |lists, _| {
            // SAFETY: waiting, and so among the drainers, now that we hold the lock.
            let waker = unsafe {
                (Waiter::state(waiter) == State::Waiting).then(|| {
                    let waker = Self::remove_drainer(lists, waiter);
                    lists.waits.settle(waiter, State::Cancelled, None, None);
                    waker
                })
            };
            mem::forget(stays);
            waker
        });
        drop(waker);
    }
}

/// A waiter that is dropped while it is in a wait list. If it cannot be removed, there is no way
/// on: a second panic ends the program.
pub(super) fn abort_on_unwind() -> Finally<impl FnMut()> {
    Finally(|| panic!("a wait cannot leave its queue: a clock, a limiter or a lock has panicked"))
}
