//! What a driver of the queue's time does: it grants what is due, and sets a timer for what comes
//! next.
//!
//! Drivers are the queue itself, woken by its timer, and tasks that drive it. Each call of
//! `advance` grants as well. A thread that waits drives, whether or not another driver is there: it
//! sleeps until the next instant at which something is due, so that it needs no timer, which may be
//! unable to run while the thread sleeps. `drivers.rs` chooses the driver in charge.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::Timestamp;

use super::waits::abort_on_unwind;
use super::{CLOSED, DUE, Lists, TIME, WaitQueue};
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::waiting::drivers::Driver;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::panics::{quietly, unless_unwinding};
use crate::waiting::queue_config::QueueConfig;
use crate::waiting::wake_batch::WakeBatch;

/// When a queue wants to be called again: from [`Queue::advance`](crate::Queue::advance).
///
/// ```
/// # use portcullis_async::{Next, Queue};
/// # use portcullis_core::{Concurrency, ManualClock};
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 100);
/// assert_eq!(queue.advance(), Next::Idle);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nobody waits.
    Idle,
    /// At this instant, if nothing is released before.
    At(Timestamp),
    /// Not before something is released, which grants by itself; or the limit is changed.
    OnRelease,
}

/// Who asks when the next timer is due.
#[derive(Clone, Copy)]
pub(crate) enum Caller<'w> {
    /// A caller that does not come again.
    OneShot,
    /// The queue itself.
    SelfDriven,
    /// A task that drives the queue.
    Driver(NonNull<Driver>, &'w Waker),
    /// A thread that waits.
    #[cfg(all(feature = "std", not(loom)))]
    Thread(NonNull<Driver>, &'w Waker),
}

/// A driver, and its group.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Timed(NonNull<Driver>),
    #[cfg(all(feature = "std", not(loom)))]
    Thread(NonNull<Driver>),
}

/// What a driver has found.
pub(crate) struct Look {
    /// When the next timer is due.
    pub(crate) next: Next,
    /// Whether the caller is in charge, and so comes again at that instant.
    pub(crate) drives: bool,
    /// How often drivers have asked by now that set the timer.
    pub(crate) turn: u32,
}

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Grants what can be granted, and says when the next timer is due. The panics of wakers are
    /// kept in `batch`. Returns `None` to the queue itself if the lock is held: its holder wakes it
    /// again.
    ///
    /// # Safety
    ///
    /// A driver's node is neither moved nor dropped before it has left.
    pub(crate) unsafe fn next(&self, caller: Caller<'_>, batch: &mut WakeBatch) -> Option<Look> {
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
                // SAFETY: as the caller says.
                let drives = unsafe { lists.come(caller, &mut waker) };
                self.drain(lists, batch, None);
                if drives && lists.take_charge(caller) {
                    self.turns.fetch_add(1, SeqCst);
                }
                let next = match lists.due() {
                    Timestamp::MAX if lists.occupied == 0 => Next::Idle,
                    Timestamp::MAX => Next::OnRelease,
                    due => Next::At(due),
                };
                // The rest is granted without the lock.
                (!batch.is_full()).then(|| Look {
                    next,
                    drives,
                    turn: self.turns.load(Relaxed),
                })
            };
            let look = match caller {
                // It may be woken in a release.
                Caller::SelfDriven => self.try_with_batch(batch, look)?,
                _ => self.with_batch(batch, look),
            };
            // The one before, which is dropped outside of the lock.
            drop(waker);
            if look.is_some() {
                return look;
            }
        }
    }

    /// As `next`, for a caller that is no driver.
    pub(crate) fn pass_by(&self) -> Next {
        let mut batch = WakeBatch::new();
        // SAFETY: it is no member.
        let look = unsafe { self.next(Caller::OneShot, &mut batch) };
        batch.resume();
        look.map_or(Next::Idle, |look| look.next)
    }

    /// How often drivers have asked that set the timer. A driver that has set it sees at least
    /// those that set it before.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.load(SeqCst)
    }

    /// Has the queue told by this waker when the next timer changes.
    pub(crate) fn attend(&self, waker: Waker) {
        let old = self.with(|lists, _| lists.timed.attend(waker));
        drop(old);
    }

    /// Has the driver in charge set its timer anew.
    pub(crate) fn rearm(&self, batch: &mut WakeBatch) {
        self.pending.add(TIME);
        self.wake_and_grant(batch);
    }

    /// Wakes another driver in the place of one that could not set its timer. If there is none, the
    /// next call wakes that one again.
    pub(crate) fn disarm(&self, caller: Caller<'_>) {
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

    /// Removes a driver, and wakes another one if it was in charge.
    ///
    /// # Safety
    ///
    /// The node is in no other group than that of its place.
    pub(crate) unsafe fn leave(&self, place: Place) {
        unless_unwinding(|| {
            let stays = abort_on_unwind();
            let waker = self.with(move |lists, _| {
                let waker = match place {
                    Place::Timed(member) => {
                        // SAFETY: as the caller says.
                        let (waker, was_in_charge) = unsafe { lists.timed.leave(member) };
                        if was_in_charge {
                            // What was due for it is granted before it goes.
                            self.pending.add(DUE);
                        }
                        waker
                    }
                    #[cfg(all(feature = "std", not(loom)))]
                    Place::Thread(member) => {
                        // SAFETY: as the caller says.
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

impl Caller<'_> {
    fn waker(&self) -> Option<&Waker> {
        match self {
            Self::OneShot | Self::SelfDriven => None,
            Self::Driver(_, waker) => Some(waker),
            #[cfg(all(feature = "std", not(loom)))]
            Self::Thread(_, waker) => Some(waker),
        }
    }
}

impl<S: LimiterSource> Lists<S> {
    /// Registers the caller. Returns whether it takes charge.
    ///
    /// # Safety
    ///
    /// As of `Drivers::come`.
    unsafe fn come(&mut self, caller: Caller<'_>, waker: &mut Option<Waker>) -> bool {
        match caller {
            Caller::OneShot => false,
            Caller::SelfDriven => true,
            // SAFETY: as the caller says.
            Caller::Driver(member, _) => unsafe {
                self.timed.come(member, waker);
                // Beside the queue itself only if that could not set its timer.
                !self.timed.is_attended() || self.timed.is_in_charge(member)
            },
            #[cfg(all(feature = "std", not(loom)))]
            // SAFETY: as the caller says.
            Caller::Thread(member, _) => unsafe {
                self.threads.come(member, waker);
                self.threads.is_open_to(member)
            },
        }
    }

    /// Puts the caller in charge. Returns whether it sets the timer.
    fn take_charge(&mut self, caller: Caller<'_>) -> bool {
        let due = self.due();
        match caller {
            Caller::OneShot => return false,
            Caller::SelfDriven => self.timed.take_charge(None, due),
            Caller::Driver(member, _) => self.timed.take_charge(Some(member), due),
            #[cfg(all(feature = "std", not(loom)))]
            Caller::Thread(member, _) => {
                self.threads.take_charge(Some(member), due);
                return false;
            }
        }
        true
    }
}
