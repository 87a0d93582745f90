//! A driver of the queue: grants what is due, and sets a timer for the next instant at which
//! something is due.
//!
//! Drivers are the queue itself, woken by its timer, and tasks that drive the queue. Each call of
//! `advance` grants as well. A blocked thread drives even if there is another driver: it sleeps
//! until the next instant at which something is due. So it does not depend on a timer, which may be
//! unable to run while the thread sleeps. `drivers.rs` chooses the driver in charge.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::Timestamp;

use super::waits::abort_on_unwind;
use super::{CLOSED, DUE, Lists, TIME, WaitQueue};
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::waiting::drivers::{Driver, Member};
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::list_key::ListKey;
use crate::waiting::panics::{quietly, unless_unwinding};
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wait_list::{State, Waiter};
use crate::waiting::wake_batch::WakeBatch;

/// When to call a queue again. See [`Queue::advance`](crate::Queue::advance).
///
/// ```
/// # use portcullis_async::{Next, Queue};
/// # use portcullis_core::{Concurrency, ManualClock};
/// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 100);
/// assert_eq!(queue.advance(), Next::Idle);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a driver must act on each")]
pub enum Next {
    /// No request waits.
    Idle,
    /// Call again at this instant. A release before then grants on its own.
    At(Timestamp),
    /// Only a release or a change of settings lets a waiter proceed. Either grants on its own.
    OnRelease,
}

/// The caller of [`WaitQueue::next`].
#[derive(Clone, Copy)]
pub(crate) enum Caller<'w, K: ListKey> {
    /// A caller that may not call again.
    OneShot,
    /// The queue itself, woken by its timer.
    SelfDriven,
    /// A task that drives the queue.
    Driver(NonNull<Driver>, &'w Waker),
    /// The future of a waiter that is, or was, in a wait list.
    Waiter(NonNull<Waiter<K>>, &'w Waker),
    /// A thread that blocks in the queue.
    #[cfg(all(feature = "std", not(portcullis_loom)))]
    Thread(NonNull<Driver>, &'w Waker),
}

/// A driver and its group.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Timed(NonNull<Driver>),
    #[cfg(all(feature = "std", not(portcullis_loom)))]
    Thread(NonNull<Driver>),
}

/// The result of [`WaitQueue::next`].
pub(crate) struct Look {
    /// When to call again.
    pub(crate) next: Next,
    /// Whether the caller is in charge, and so calls again at that instant.
    pub(crate) drives: bool,
    /// The number of times that drivers which set the timer have called so far, wrapping.
    pub(crate) turn: u32,
}

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Grants what can be granted, and returns when to call again. Keeps the panics of wakers in
    /// `batch`. Returns `None` only to the queue itself, if the lock is held: the holder of the
    /// lock wakes it again.
    ///
    /// # Safety
    ///
    /// The node of a driver is valid, is in no other group, and is neither moved nor dropped before
    /// it has left. A waiter is valid.
    pub(crate) unsafe fn next(
        &self,
        caller: Caller<'_, Key<Q>>,
        batch: &mut WakeBatch,
    ) -> Option<Look> {
        if matches!(caller, Caller::OneShot) && self.gate.load(Relaxed) & !CLOSED == 0 {
            return Some(Look {
                next: Next::Idle,
                drives: false,
                turn: 0,
            });
        }
        loop {
            let mut waker = caller.waker().cloned();
            let look = |lists: &mut Lists<Q::Source>, batch: &mut WakeBatch| {
                // SAFETY: the caller guarantees that the node is valid and is not moved or dropped
                // before it has left.
                let drives = unsafe { lists.come(caller, &mut waker) };
                self.grant_due(lists, batch, None);
                let drives = drives && lists.still_drives(caller);
                if drives && lists.take_charge(caller) {
                    self.turns.fetch_add(1, SeqCst);
                }
                let next = match lists.due() {
                    Timestamp::MAX if lists.occupied == 0 => Next::Idle,
                    Timestamp::MAX => Next::OnRelease,
                    due => Next::At(due),
                };
                // If the batch is full, its wakers run outside the lock before the rest is granted.
                (!batch.is_full()).then(|| Look {
                    next,
                    drives,
                    turn: self.turns.load(Relaxed),
                })
            };
            let look = match caller {
                // A waker may run inside a release, which must not wait for the lock.
                Caller::SelfDriven => self.try_with_batch(batch, look)?,
                _ => self.with_batch(batch, look),
            };
            // Drops the driver's previous waker outside the lock.
            drop(waker);
            if look.is_some() {
                return look;
            }
        }
    }

    /// Grants what can be granted, as `next` does, for a caller that is not a driver.
    pub(crate) fn pass_by(&self) -> Next {
        let mut batch = WakeBatch::new();
        // SAFETY: `OneShot` has no node.
        let look = unsafe { self.next(Caller::OneShot, &mut batch) };
        batch.resume();
        look.map_or(Next::Idle, |look| look.next)
    }

    /// Returns the number of times that drivers which set the timer have called. A driver that has
    /// set the timer observes at least the calls of all drivers that set it before.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.load(SeqCst)
    }

    /// Makes the queue drive itself: `waker` is woken when the next timer gets earlier.
    pub(crate) fn attend(&self, waker: Waker) {
        let old = self.with(|lists, _| lists.timed.attend(waker));
        drop(old);
    }

    /// Wakes a driver so that it sets its timer again.
    pub(crate) fn rearm(&self, batch: &mut WakeBatch) {
        self.pending.add(TIME);
        self.wake_and_grant(batch);
    }

    /// Wakes another driver in the place of `caller`, which could not set its timer. If there is no
    /// other driver, the next call wakes the same driver again.
    pub(crate) fn disarm(&self, caller: Caller<'_, Key<Q>>) {
        let member = match caller {
            Caller::Driver(member, _) => Some(member),
            _ => None,
        };
        let mut batch = WakeBatch::new();
        let told = self.lists.try_lock(|lists| lists.timed.pass_on(member));
        match told {
            Some(Some(waker)) => batch.tell_driver(waker),
            Some(None) => {}
            None => self.pending.add(TIME),
        }
        quietly(|| self.wake_and_grant(&mut batch));
    }

    /// Unregisters a driver. If it was in charge, wakes another one.
    ///
    /// # Safety
    ///
    /// The node is valid, and is in the group of its `place` or in none.
    pub(crate) unsafe fn leave(&self, place: Place) {
        unless_unwinding(|| {
            let stays = abort_on_unwind();
            let waker = self.with(move |lists, _| {
                let waker = match place {
                    Place::Timed(member) => {
                        // SAFETY: the caller guarantees that the node is valid and in no other
                        // group. `lists` proves that the lock is held.
                        let (waker, was_in_charge) = unsafe { lists.timed.leave(member) };
                        if was_in_charge {
                            // `DUE` makes this call grant what is due after it unlocks, so that
                            // nothing due waits for the driver that leaves.
                            self.pending.add(DUE);
                        }
                        waker
                    }
                    #[cfg(all(feature = "std", not(portcullis_loom)))]
                    Place::Thread(member) => {
                        // SAFETY: the caller guarantees that the node is valid and in no other
                        // group. `lists` proves that the lock is held.
                        let (waker, _) = unsafe { lists.threads.leave(member) };
                        waker
                    }
                };
                mem::forget(stays);
                waker
            });
            drop(waker);
        });
    }
}

impl<K: ListKey> Caller<'_, K> {
    fn waker(&self) -> Option<&Waker> {
        match self {
            Self::OneShot | Self::SelfDriven => None,
            Self::Driver(_, waker) | Self::Waiter(_, waker) => Some(waker),
            #[cfg(all(feature = "std", not(portcullis_loom)))]
            Self::Thread(_, waker) => Some(waker),
        }
    }
}

impl<S: LimiterSource> Lists<S> {
    /// Registers the caller. Returns whether it takes charge.
    ///
    /// # Safety
    ///
    /// The contract is that of `Drivers::come`. A waiter is valid.
    unsafe fn come(&mut self, caller: Caller<'_, S::Key>, waker: &mut Option<Waker>) -> bool {
        match caller {
            Caller::OneShot => false,
            Caller::SelfDriven => true,
            // SAFETY: the caller guarantees the contract of `come`.
            Caller::Driver(member, _) => unsafe {
                self.timed.come(member, waker);
                // While the queue drives itself, a task takes charge only if the queue could not
                // set its timer.
                !self.timed.is_attended() || self.timed.is_in_charge(Member::Driver(member))
            },
            // SAFETY: the waiter is valid, as the caller guarantees. In the state `Waiting` it is
            // in a list, as this call holds the lock.
            Caller::Waiter(waiter, _) => unsafe {
                let waits = Waiter::state(waiter) == State::Waiting;
                if waits {
                    *waker = self.waits.get(waiter).rewake(waker.take());
                }
                waits
            },
            #[cfg(all(feature = "std", not(portcullis_loom)))]
            // SAFETY: the caller guarantees the contract of `come`.
            Caller::Thread(member, _) => unsafe {
                self.threads.come(member, waker);
                self.threads.is_open_to(member)
            },
        }
    }

    /// Returns whether a caller that was to take charge still is, now that what was due is granted.
    /// A request drives only as long as it is in charge, which ends with its timer, or when it is
    /// settled.
    fn still_drives(&self, caller: Caller<'_, S::Key>) -> bool {
        match caller {
            Caller::Waiter(waiter, _) => self.is_driven_by(waiter),
            _ => true,
        }
    }

    /// Returns whether the future of this request is in charge.
    pub(super) fn is_driven_by(&self, waiter: NonNull<Waiter<S::Key>>) -> bool {
        self.timed.is_in_charge(Member::Waiter(waiter.addr().get()))
    }

    /// Puts the caller in charge. Returns whether it sets the timer.
    fn take_charge(&mut self, caller: Caller<'_, S::Key>) -> bool {
        let due = self.due();
        let member = match caller {
            Caller::OneShot => return false,
            Caller::SelfDriven => Member::Queue,
            Caller::Driver(member, _) => Member::Driver(member),
            Caller::Waiter(waiter, _) => Member::Waiter(waiter.addr().get()),
            #[cfg(all(feature = "std", not(portcullis_loom)))]
            Caller::Thread(member, _) => {
                self.threads.take_charge(Member::Driver(member), due);
                return false;
            }
        };
        self.timed.take_charge(member, due);
        true
    }
}
