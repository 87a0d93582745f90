//! Seeing to it that what is due is granted in time.
//!
//! The queue itself sees to it, woken by its timer; or a task that drives it; or any call of
//! `advance`. A thread that waits does so as well, whether or not another driver is there: it
//! sleeps until the next instant at which something is due, so that it needs no timer that cannot
//! run while the thread sleeps. `crew.rs` chooses the driver in charge; this file is what a driver
//! does.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::{Clock, Timestamp};

use super::waits::Stays;
use super::{CLOSED, DUE, Hall, Inner, TIME};
use crate::crew::Driver;
use crate::lock::RawLock;
use crate::panics::{quietly, unless_unwinding};
use crate::source::Source;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::wakes::Wakes;

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

/// Who asks when the agenda goes on.
#[derive(Clone, Copy)]
pub(crate) enum Caller<'w> {
    /// A caller that does not come again.
    Passer,
    /// The queue itself.
    Attendant,
    /// A task that does nothing else.
    Driver(NonNull<Driver>, &'w Waker),
    /// A thread that waits.
    #[cfg(all(feature = "std", not(loom)))]
    Sleeper(NonNull<Driver>, &'w Waker),
}

/// A driver of one of the crews.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Timed(NonNull<Driver>),
    #[cfg(all(feature = "std", not(loom)))]
    Thread(NonNull<Driver>),
}

/// What a caller has found.
pub(crate) struct Look {
    /// When the agenda goes on.
    pub(crate) next: Next,
    /// Whether the caller is in charge, and so comes again at that instant.
    pub(crate) drives: bool,
    /// How many of those who arm the timer have come to that by now.
    pub(crate) turn: u32,
}

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Hall<S, C, R, H, B> {
    /// Grants what can be granted, and says when the agenda goes on. The panics of wakers are kept
    /// in `wakes`. Returns `None` to the queue itself if the lock is held: its holder wakes it
    /// again.
    ///
    /// # Safety
    ///
    /// A driver's node is neither moved nor dropped before it has left.
    pub(crate) unsafe fn next(&self, caller: Caller<'_>, wakes: &mut Wakes) -> Option<Look> {
        if matches!(caller, Caller::Passer) && self.gate.load(Relaxed) & !CLOSED == 0 {
            return Some(Look {
                next: Next::Idle,
                drives: false,
                turn: 0,
            });
        }
        loop {
            let mut waker = caller.waker().cloned();
            let look = |inner: &mut Inner<S::Key, B>, wakes: &mut Wakes| {
                // SAFETY: as the caller says.
                let drives = unsafe { inner.come(caller, &mut waker) };
                self.drain(inner, wakes, None);
                if drives && inner.take_charge(caller) {
                    self.turns.fetch_add(1, SeqCst);
                }
                let next = match inner.due() {
                    Timestamp::MAX if inner.occupied == 0 => Next::Idle,
                    Timestamp::MAX => Next::OnRelease,
                    due => Next::At(due),
                };
                // The rest is granted without the lock.
                (!wakes.is_full()).then(|| Look {
                    next,
                    drives,
                    turn: self.turns.load(Relaxed),
                })
            };
            let look = match caller {
                // It may be told in a release.
                Caller::Attendant => self.with_wakes_or_mark(wakes, look)?,
                _ => self.with_wakes(wakes, look),
            };
            // The one before, which is dropped outside of the lock.
            drop(waker);
            if look.is_some() {
                return look;
            }
        }
    }

    /// As `next`, of one who only passes.
    pub(crate) fn pass_by(&self) -> Next {
        let mut wakes = Wakes::new();
        // SAFETY: it is no member.
        let look = unsafe { self.next(Caller::Passer, &mut wakes) };
        wakes.resume();
        look.map_or(Next::Idle, |look| look.next)
    }

    /// How many of those have come who arm the timer: after one has armed it, it sees at least
    /// those that have armed it before.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.load(SeqCst)
    }

    /// Has the queue told by this waker when the agenda changes.
    pub(crate) fn attend(&self, waker: Waker) {
        let old = self.with(|inner, _| inner.timed.attend(waker));
        drop(old);
    }

    /// Has the driver in charge set its timer anew.
    pub(crate) fn rearm(&self, wakes: &mut Wakes) {
        self.marks.leave(TIME);
        self.wake_and_grant(wakes);
    }

    /// Wakes another driver in the place of one that could not set its timer. If there is none, the
    /// next call wakes that one again.
    pub(crate) fn disarm(&self, caller: Caller<'_>) {
        let member = match caller {
            Caller::Driver(member, _) => Some(member),
            _ => None,
        };
        let mut wakes = Wakes::new();
        let told = self.lock.try_lock(|| {
            // SAFETY: under the lock.
            let inner = unsafe { &mut *self.inner.get() };
            inner.timed.pass_on(member)
        });
        match told {
            Some(Some(waker)) => wakes.tell_driver(waker),
            Some(None) => {}
            None => self.marks.leave(TIME),
        }
        quietly(|| self.wake_and_grant(&mut wakes));
    }

    /// Removes a driver, and wakes another one if it was in charge.
    ///
    /// # Safety
    ///
    /// The node is in no other crew than the one of its place.
    pub(crate) unsafe fn leave(&self, place: Place) {
        unless_unwinding(|| {
            let stays = Stays;
            let waker = self.with(move |inner, _| {
                let waker = match place {
                    Place::Timed(member) => {
                        // SAFETY: as the caller says.
                        let (waker, was_in_charge) = unsafe { inner.timed.leave(member) };
                        if was_in_charge {
                            // What was due for it is granted before it goes.
                            self.marks.leave(DUE);
                        }
                        waker
                    }
                    #[cfg(all(feature = "std", not(loom)))]
                    Place::Thread(member) => {
                        // SAFETY: as the caller says.
                        let (waker, _) = unsafe { inner.threads.leave(member) };
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
            Self::Passer | Self::Attendant => None,
            Self::Driver(_, waker) => Some(waker),
            #[cfg(all(feature = "std", not(loom)))]
            Self::Sleeper(_, waker) => Some(waker),
        }
    }
}

impl<K: Copy + PartialEq, const B: usize> Inner<K, B> {
    /// Registers the caller. Returns whether it takes charge.
    ///
    /// # Safety
    ///
    /// As of `Crew::come`.
    unsafe fn come(&mut self, caller: Caller<'_>, waker: &mut Option<Waker>) -> bool {
        match caller {
            Caller::Passer => false,
            Caller::Attendant => true,
            // SAFETY: as the caller says.
            Caller::Driver(member, _) => unsafe {
                self.timed.come(member, waker);
                // Beside the queue itself only if that could not set its timer.
                !self.timed.is_attended() || self.timed.is_in_charge(member)
            },
            #[cfg(all(feature = "std", not(loom)))]
            // SAFETY: as the caller says.
            Caller::Sleeper(member, _) => unsafe {
                self.threads.come(member, waker);
                self.threads.is_open_to(member)
            },
        }
    }

    /// Puts the caller in charge. Returns whether it sets the timer.
    fn take_charge(&mut self, caller: Caller<'_>) -> bool {
        let due = self.due();
        match caller {
            Caller::Passer => return false,
            Caller::Attendant => self.timed.take_charge(None, due),
            Caller::Driver(member, _) => self.timed.take_charge(Some(member), due),
            #[cfg(all(feature = "std", not(loom)))]
            Caller::Sleeper(member, _) => {
                self.threads.take_charge(Some(member), due);
                return false;
            }
        }
        true
    }
}
