//! The operations of the futures on the wait queue: to enter, to look, to change the waker, to
//! leave.
//!
//! Called by `Acquire`, by `Drained` and by blocked threads, without the lock. Each operation takes
//! it, unless the waiter is settled: a settled waiter belongs to its future, which reads it without
//! the lock.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;

use portcullis_core::limiter::Receipt;
use portcullis_core::{Clock, Retry};

use super::admit::Step;
use super::ask::{earliest, exceeds};
use super::taken::Taken;
use super::{DRAINED, Grant, WaitQueue};
use crate::finally::Finally;
use crate::waiting::hook::{Hook, WaitEnd, Waited};
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::panics::unless_unwinding;
use crate::waiting::queue_clock::Wakes;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::rejected::Rejected;
use crate::waiting::wait_list::{At, Locked, Request, State, Waiter};
use crate::waiting::wake_batch::WakeBatch;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Takes, or puts an idle waiter into its wait list. Returns `None` if the waiter is queued,
    /// and sets `drives` if its future is to drive the queue.
    ///
    /// # Safety
    ///
    /// The waiter is idle and has its waker. No other code refers to it. It does not move until it
    /// is settled or `cancel` has returned.
    #[inline(always)]
    pub(crate) unsafe fn enqueue(
        &self,
        waiter: NonNull<Waiter<Key<Q>>>,
        drives: &mut bool,
    ) -> Option<Result<Grant, Rejected>> {
        // SAFETY: the waiter is valid and idle, as the caller guarantees. It stays valid while this
        // call runs.
        let newcomer = unsafe { Waiter::newcomer(waiter) };
        let mut is_first = true;
        loop {
            let mut batch = None;
            let panicking = self.grant_on_unwind(0);
            let step = self.lists.lock(|lists| {
                // SAFETY: the caller guarantees the contract of `enqueue`.
                unsafe { self.admit(lists, &mut batch, waiter, is_first, drives) }
            });
            mem::forget(panicking);
            self.wake_and_grant_some(&mut batch);
            match step {
                Step::Wait => {
                    mem::forget(newcomer);
                    return None;
                }
                Step::Settled(outcome) => {
                    // The drop of the waker may panic. Then the drop of `outcome` returns the
                    // permits.
                    drop(newcomer);
                    return Some(outcome.map(Taken::keep));
                }
                Step::Again => is_first = false,
            }
        }
    }

    /// Returns the outcome of a waiter that was put into a list. Returns `None` if it still waits,
    /// and sets `drives` if its future is to drive the queue; `waker` is then woken when the waiter
    /// is settled, or when it is chosen to drive.
    ///
    /// # Safety
    ///
    /// The waiter was put into a list of this queue, and its outcome has not been taken since it
    /// was settled.
    pub(crate) unsafe fn outcome(
        &self,
        waiter: NonNull<Waiter<Key<Q>>>,
        waker: &Waker,
        drives: &mut bool,
    ) -> Option<Result<Grant, Rejected>> {
        // SAFETY: the waiter was put into a list, so its future keeps it valid.
        if unsafe { Waiter::state(waiter) } == State::Waiting {
            let mut waker = Some(waker.clone());
            let waits = self.with_lists(|lists| {
                // SAFETY: the waiter is valid. States change to settled only inside the lock, which
                // is held here. So a waiter in the state `Waiting` is linked.
                unsafe {
                    let waits = Waiter::state(waiter) == State::Waiting;
                    if waits {
                        waker = lists.waits.get(waiter).rewake(waker.take());
                        if Q::Clock::WAKES {
                            *drives = lists.is_driven_by(waiter);
                        }
                    }
                    waits
                }
            });
            drop(waker);
            if waits {
                return None;
            }
        }
        // SAFETY: the waiter is valid and settled, so it belongs to the caller.
        let (state, (key, request)) = unsafe { (Waiter::state(waiter), Waiter::asks(waiter)) };
        let (permits, limiter) = (request.min, self.source.at(key));
        // SAFETY: as before.
        let retry = || unsafe { self.retry_again(waiter) };
        Some(match state {
            State::Granted => {
                // SAFETY: the waiter is settled, so it belongs to the caller. No other reference to
                // its locked fields is in use.
                let grant = unsafe { Waiter::own(waiter).grant.take() };
                Ok(grant.unwrap_or((0, Receipt::NONE)))
            }
            State::Evicted => Err(Rejected::Evicted {
                permits,
                retry: retry(),
            }),
            State::Exceeds => Err(exceeds(&*limiter, permits)),
            // SAFETY: the waiter is settled, so it belongs to the caller.
            State::Late if unsafe { Waiter::own(waiter) }.sheds() => Err(Rejected::Shed {
                permits,
                retry: retry(),
            }),
            State::Late => Err(Rejected::Deadline {
                permits,
                retry: retry(),
            }),
            _ => Err(Rejected::Closed { permits }),
        })
    }

    /// Returns when to retry a request that has ended without a grant.
    ///
    /// # Safety
    ///
    /// The waiter is settled, and belongs to the caller.
    unsafe fn retry_again(&self, waiter: NonNull<Waiter<Key<Q>>>) -> Retry {
        // SAFETY: the waiter is settled, as the caller guarantees, so it is filled.
        let ((key, request), priority) =
            unsafe { (Waiter::asks(waiter), Waiter::priority(waiter)) };
        let now = self.clock.now();
        let ahead = self.with_lists(|lists| self.ahead(lists, (key, priority), now));
        earliest(&*self.source.at(key), now, ahead, request.min)
    }

    /// Reports the end of a wait to the hook, if the request was queued.
    ///
    /// # Safety
    ///
    /// The waiter is filled, and `outcome` or `enqueue` has returned its outcome.
    pub(crate) unsafe fn left(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: the waiter is filled, as the caller guarantees, so it is valid.
        let (state, (_, request)) = unsafe { (Waiter::state(waiter), Waiter::asks(waiter)) };
        let outcome = match state {
            State::Idle | State::Waiting => return,
            State::Granted => WaitEnd::Granted,
            State::Evicted => WaitEnd::Evicted,
            State::Exceeds => WaitEnd::ExceedsCapacity,
            // SAFETY: as below.
            State::Late if unsafe { Waiter::own(waiter) }.sheds() => WaitEnd::Shed,
            State::Late => WaitEnd::Deadline,
            State::Closed => WaitEnd::Closed,
            State::Cancelled => WaitEnd::Cancelled,
        };
        // SAFETY: the waiter is settled, so it belongs to the caller. No other reference to its
        // locked fields is in use.
        let Locked { since, until, .. } = unsafe { Waiter::own(waiter) };
        self.hook.left(&Waited {
            permits: request.min,
            time: until.saturating_since(*since),
            outcome,
        });
    }

    /// Cancels a waiter that was put into a list, and returns its grant if it has one.
    ///
    /// # Safety
    ///
    /// The contract is that of `outcome`.
    #[inline(always)]
    pub(crate) unsafe fn cancel(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: the caller guarantees the contract of `give_up`.
        unless_unwinding(|| unsafe { self.give_up(waiter) });
    }

    /// Queues an idle waiter until no permit is held. Returns whether it has to wait.
    ///
    /// # Safety
    ///
    /// The contract is that of `enqueue`, with `cancel_drained` instead of `cancel`.
    pub(crate) unsafe fn enqueue_drained(&self, waiter: NonNull<Waiter<Key<Q>>>) -> bool {
        // SAFETY: the waiter is valid and idle, as the caller guarantees. It stays valid while this
        // call runs.
        let _newcomer = unsafe { Waiter::newcomer(waiter) };
        self.with(|lists, _| {
            self.raise(DRAINED);
            if self.is_drained(lists) {
                return false;
            }
            let drainers = &mut lists.waits.drainers;
            let head = drainers.heads().next();
            // SAFETY: the waiter is idle and not shared, as the caller guarantees; `head` is the
            // head of the only list of `drainers`.
            unsafe { drainers.enter(waiter, head, At::Tail) };
            lists.occupied |= DRAINED;
            true
        })
    }

    /// Cancels a waiter that waits until no permit is held.
    ///
    /// # Safety
    ///
    /// The waiter was queued by `enqueue_drained`.
    pub(crate) unsafe fn cancel_drained(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: the waiter was queued, so its future keeps it valid.
        if unsafe { Waiter::state(waiter) } == State::Waiting {
            // SAFETY: the caller guarantees the contract of `give_up_drained`.
            unless_unwinding(|| unsafe { self.give_up_drained(waiter) });
        }
    }
}

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Does the work of `cancel`.
    ///
    /// # Safety
    ///
    /// The contract is that of `cancel`.
    unsafe fn give_up(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        // SAFETY: the waiter was put into a list, so its future keeps it valid.
        if unsafe { Waiter::state(waiter) } != State::Waiting {
            // SAFETY: the waiter is settled, and the caller guarantees that its outcome has not
            // been taken.
            return unsafe { self.disclaim(waiter, false) };
        }
        let mut batch = None;
        let stays = abort_on_unwind();
        let left = self.lists.lock(|lists| {
            // SAFETY: the waiter is valid. States change to settled only inside the lock, which is
            // held here. So a waiter in the state `Waiting` is linked, and after `remove` it is
            // unlinked and not settled.
            unsafe {
                if Waiter::state(waiter) != State::Waiting {
                    return None;
                }
                lists.counts.cancelled = lists.counts.cancelled.wrapping_add(1);
                self.front_makes_way(lists, waiter);
                let (waker, next) = self.remove_ungranted(lists, waiter);
                if let Some(next) = next {
                    if !lists.timers.is_empty() {
                        // If the timer of the old head is late, the new one is asked as of its
                        // instant, before its own deadline expires.
                        lists.schedule(next, Duration::ZERO);
                    }
                    // The waiters behind it may fit where it did not.
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
            // SAFETY: the waiter was settled in the meantime, and its outcome has not been taken.
            return unsafe { self.disclaim(waiter, true) };
        };
        self.wake_and_grant_some(&mut batch);
        drop(waker);
        // SAFETY: the waiter is filled, so it is valid and its request does not change.
        let (key, Request { min, .. }) = unsafe { Waiter::asks(waiter) };
        self.cancelled(key, min);
        // SAFETY: this call settled the waiter, so it belongs to the caller.
        unsafe {
            if Q::Hook::TIMES {
                Waiter::own(waiter).until = self.clock.now();
            }
            self.left(waiter);
        }
    }

    /// Returns the grant of a settled waiter, if it has one. `unlocked`: this call has held the
    /// lock.
    ///
    /// # Safety
    ///
    /// The waiter was put into a list, is settled, and its outcome has not been taken.
    #[cold]
    unsafe fn disclaim(&self, waiter: NonNull<Waiter<Key<Q>>>, unlocked: bool) {
        // The permits are returned even if a waker or the hook panics.
        let _unclaimed = Finally(|| {
            // SAFETY: the waiter is settled, so it belongs to the caller. No other reference to its
            // locked fields is in use.
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
        // SAFETY: the waiter is settled and filled, as the caller guarantees.
        unsafe { self.left(waiter) };
    }

    /// Does the work of `cancel_drained`.
    ///
    /// # Safety
    ///
    /// The contract is that of `cancel_drained`.
    unsafe fn give_up_drained(&self, waiter: NonNull<Waiter<Key<Q>>>) {
        let stays = abort_on_unwind();
        let waker = self.with(move |lists, _| {
            // SAFETY: the waiter is valid. States change to settled only inside the lock, which is
            // held here. So a waiter in the state `Waiting` is linked in `drainers`, and after
            // `remove_drainer` it is unlinked and not settled.
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

/// Returns a guard for unlinking a waiter or a driver. If unlinking unwinds, its future would be
/// dropped while it is linked, which is unsound. So the guard panics a second time, which aborts
/// the program.
pub(super) fn abort_on_unwind() -> Finally<impl FnMut()> {
    Finally(|| panic!("cannot unlink a waiter: its clock, limiter or lock panicked"))
}
