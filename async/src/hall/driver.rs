//! Seeing to it that what is due is granted in time.
//!
//! One of three does: the queue itself, woken by its timer; a task; a thread that waits. Invariant: where `armed` is not [`Timestamp::MAX`], one of them has been told of that instant, or was about to ask,
//! and has not left since.
#![allow(unsafe_code)]

use core::mem;
use core::task::Waker;

use portcullis_core::{Clock, Timestamp};

use super::{CLOSED, Hall, Inner};
use crate::list::{Bin, Node};
use crate::lock::RawLock;
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
pub(crate) enum Caller<'w> {
    /// Somebody who will not be told when that changes.
    Passer,
    /// The queue itself.
    Attendant,
    /// A task that does nothing else.
    Driver(&'w Waker),
    /// A thread that waits, if there is nobody else.
    #[cfg(all(feature = "std", not(loom)))]
    Sleeper(&'w Waker),
}

impl Caller<'_> {
    fn waker(&self) -> Option<&Waker> {
        match self {
            Self::Passer | Self::Attendant => None,
            Self::Driver(waker) => Some(waker),
            #[cfg(all(feature = "std", not(loom)))]
            Self::Sleeper(waker) => Some(waker),
        }
    }
}

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Hall<S, C, R, H, B> {
    /// Grants what can be granted, and says when the agenda goes on, with a number that says how many of those who arm the timer have come to that by now. `None` to a sleeper if
    /// somebody else drives.
    pub(crate) fn next(&self, caller: &Caller<'_>) -> Option<(Next, u32)> {
        if matches!(caller, Caller::Passer) && self.gate.load(Relaxed) & !CLOSED == 0 {
            return Some((Next::Idle, 0));
        }
        loop {
            let mut waker = caller.waker().cloned();
            let next = self.with(|inner, wakes| {
                let drives = match caller {
                    Caller::Passer => false,
                    Caller::Attendant => true,
                    #[cfg(all(feature = "std", not(loom)))]
                    Caller::Sleeper(waker)
                        if inner.attendant.is_some()
                            || inner.driver.as_ref().is_some_and(|other| !other.will_wake(waker)) =>
                    {
                        return Some(None);
                    }
                    _ => {
                        mem::swap(&mut inner.driver, &mut waker);
                        true
                    }
                };
                self.drain(inner, wakes, None);
                if drives {
                    inner.armed = inner.due();
                    self.turns.fetch_add(1, SeqCst);
                }
                let next = match inner.due() {
                    Timestamp::MAX if inner.occupied == 0 => Next::Idle,
                    Timestamp::MAX => Next::OnRelease,
                    due => Next::At(due),
                };
                // The rest is granted without the lock.
                if wakes.is_full() { None } else { Some(Some((next, self.turns.load(Relaxed)))) }
            });
            // Ours, or that of one who drove before. (He need not know: he is not asked any more.)
            drop(waker);
            if let Some(next) = next {
                return next;
            }
        }
    }

    /// How many of those calls there have been: after one has armed the timer, it sees at least those that have armed it before.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.load(SeqCst)
    }

    /// Has the agenda asked for anew, if it begins earlier than somebody is armed for: by whoever drives.
    pub(super) fn tell(inner: &mut Inner<S::Key, B>, wakes: &mut Wakes) {
        let due = inner.due();
        if due >= inner.armed {
            return;
        }
        let told = inner.attendant.clone().or_else(|| inner.driver.take()).or_else(|| inner.sleeper());
        if told.is_some() {
            inner.armed = due;
            wakes.push(told);
        }
    }

    /// Has the queue told by this waker when the agenda changes.
    pub(crate) fn attend(&self, waker: Waker) {
        let old = self.with(|inner, _| {
            inner.armed = Timestamp::MAX;
            inner.attendant.replace(waker)
        });
        drop(old);
    }

    /// Nobody drives any more, or not this one; maybe another one does.
    pub(crate) fn undrive(&self, one: Option<&Waker>) {
        self.with(|inner, wakes| {
            // One who has been told, and leaves without having asked, is not there any more.
            let leaves =
                one.is_none_or(|one| inner.driver.as_ref().is_none_or(|driver| driver.will_wake(one)));
            if leaves {
                wakes.push(inner.driver.take());
                inner.armed = Timestamp::MAX;
            }
        });
    }
}

impl<K: Copy + PartialEq, const B: usize> Inner<K, B> {
    /// Somebody who waits in a thread, and is to be woken to drive.
    fn sleeper(&self) -> Option<Waker> {
        if self.sleepers == 0 {
            return None;
        }
        for head in self.bins.iter().flat_map(Bin::heads) {
            let mut node = Some(head);
            while let Some(waits) = node {
                // SAFETY: linked, and we have the lines. Its waker is set again when it is polled.
                unsafe {
                    if (*waits.as_ptr()).wish.sleeps
                        && let Some(waker) = Node::rewake(waits, None)
                    {
                        return Some(waker);
                    }
                }
                node = Bin::next(waits);
            }
        }
        None
    }
}
