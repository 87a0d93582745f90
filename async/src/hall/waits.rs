//! What futures ask of the hall that they wait in.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::{Clock, Limiter, Receipt, Receipts, Timestamp};

use super::admit::{earliest, exceeds};
use super::serve::take;
use super::{DRAINED, Grant, GrantAll, Hall};
use crate::Rejected;
use crate::hook::{Hook, Outcome, Waited};
use crate::list::{End, Node, State, Wish};
use crate::lock::RawLock;
use crate::options::Order;
use crate::panics::unless_unwinding;
use crate::source::Source;
use crate::sync::atomic::Ordering::Relaxed;

/// What a wait asks of where it waits.
pub trait Waits {
    type Key: Copy;

    /// The time of its clock.
    fn now(&self) -> Timestamp;

    /// Takes at once, if nobody has to be waited for; why not, `enqueue` says.
    fn try_now(&self, key: Self::Key, wish: Wish) -> Option<Grant>;

    /// Takes, or puts an idle node into its line to wait, and says so by `None`.
    ///
    /// # Safety
    ///
    /// The node is idle, nobody else refers to it, and it stays where it is until it is settled or
    /// `cancel` has returned.
    unsafe fn enqueue(
        &self,
        node: NonNull<Node<Self::Key>>,
        waker: &Waker,
    ) -> Option<Result<Grant, Rejected>>;

    /// What a node was granted, if it was, and is over then.
    ///
    /// # Safety
    ///
    /// As of `outcome`.
    unsafe fn claim(&self, node: NonNull<Node<Self::Key>>) -> Option<Grant>;

    /// What has become of a node that was put into a line; `None` if it waits, to be woken by
    /// `waker`.
    ///
    /// # Safety
    ///
    /// The node was put into a line here, and its outcome has not been asked for since it was
    /// settled.
    unsafe fn outcome(
        &self,
        node: NonNull<Node<Self::Key>>,
        waker: &Waker,
    ) -> Option<Result<Grant, Rejected>>;

    /// Tells the hook that a wait is over, if it was one.
    ///
    /// # Safety
    ///
    /// The node is filled, and `outcome` or `enqueue` has returned what became of it.
    unsafe fn left(&self, node: NonNull<Node<Self::Key>>);

    /// Gives up a node that was put into a line, and what it has been granted.
    ///
    /// # Safety
    ///
    /// As of `outcome`.
    unsafe fn cancel(&self, node: NonNull<Node<Self::Key>>);

    /// Has an idle node wait until nothing is held, and says whether it has to.
    ///
    /// # Safety
    ///
    /// As of `enqueue`; `cancel_drained` takes the place of `cancel`.
    unsafe fn enqueue_drained(&self, node: NonNull<Node<Self::Key>>, waker: &Waker) -> bool;

    /// Gives up a node that waits until nothing is held.
    ///
    /// # Safety
    ///
    /// It was put there by `enqueue_drained`.
    unsafe fn cancel_drained(&self, node: NonNull<Node<Self::Key>>);
}

impl<S: Source, C: Clock, R: RawLock, H: Hook, const B: usize> Waits for Hall<S, C, R, H, B> {
    type Key = S::Key;

    #[inline]
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    #[inline]
    fn try_now(&self, key: S::Key, wish: Wish) -> Option<Grant> {
        if self.is_closed() || self.options.order == Order::OldestFirst && self.is_waited_for(key) {
            return None;
        }
        let (limiter, now) = (self.source.at(key), self.clock.now());
        let available = || limiter.available_at(now);
        take(wish.min, wish.max, available, |n| {
            self.take(key, || limiter.take_at(now, n))
        })
        .ok()
    }

    unsafe fn enqueue(
        &self,
        node: NonNull<Node<S::Key>>,
        waker: &Waker,
    ) -> Option<Result<Grant, Rejected>> {
        // SAFETY: idle, and ours.
        let bit = Self::bit(unsafe { (*node.as_ptr()).key });
        // Neither cloned nor dropped under the lock: it is somebody else's code.
        let mut waker = Some(waker.clone());
        if self.gate.load(Relaxed) & bit != 0 {
            let panicking = GrantAll(self);
            let enters = self.lock.lock(|| {
                // SAFETY: under the lock.
                let inner = unsafe { &mut *self.inner.get() };
                // SAFETY: as the caller says. Nothing changes for those who wait already, nor for
                // the agenda.
                unsafe { self.enter_behind(inner, node, &mut waker) }
            });
            mem::forget(panicking);
            if enters {
                if self.marks.are_left::<R>() {
                    self.grant_marked();
                }
                return None;
            }
        }
        // SAFETY: as the caller says.
        unsafe { self.decide(node, waker?) }
    }

    unsafe fn outcome(
        &self,
        node: NonNull<Node<S::Key>>,
        waker: &Waker,
    ) -> Option<Result<Grant, Rejected>> {
        // SAFETY: valid, as the caller says.
        if unsafe { Node::state(node) } == State::Waiting {
            let mut waker = Some(waker.clone());
            let waits = self.with(|_, _| {
                // SAFETY: waiting, and so in a line, now that we have the lines.
                unsafe {
                    let waits = Node::state(node) == State::Waiting;
                    if waits {
                        waker = Node::rewake(node, waker.take());
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
        let (
            state,
            Node {
                key, wish, grant, ..
            },
        ) = unsafe { (Node::state(node), &mut *node.as_ptr()) };
        let (permits, limiter) = (wish.min, self.source.at(*key));
        let retry = || {
            let ahead = self.with(|inner, _| self.ahead(inner, *key));
            earliest(&limiter, self.clock.now(), ahead, permits)
        };
        Some(match state {
            State::Granted => Ok(grant.take().unwrap_or((0, Receipt::NONE))),
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

    #[inline(always)]
    unsafe fn claim(&self, node: NonNull<Node<S::Key>>) -> Option<Grant> {
        // SAFETY: valid, as the caller says; and, settled, ours.
        unsafe {
            if Node::state(node) == State::Granted {
                (*node.as_ptr()).grant.take()
            } else {
                None
            }
        }
    }

    unsafe fn left(&self, node: NonNull<Node<S::Key>>) {
        // SAFETY: as the caller says.
        let (
            state,
            Node {
                wish, since, until, ..
            },
        ) = unsafe { (Node::state(node), &*node.as_ptr()) };
        let outcome = match state {
            State::Idle | State::Waiting => return,
            State::Granted => Outcome::Granted,
            State::Evicted => Outcome::Evicted,
            State::Exceeds => Outcome::ExceedsCapacity,
            State::Late => Outcome::Deadline,
            State::Closed => Outcome::Closed,
            State::Cancelled => Outcome::Cancelled,
        };
        self.hook.left(&Waited {
            permits: wish.min,
            time: until.saturating_since(*since),
            outcome,
        });
    }

    unsafe fn cancel(&self, node: NonNull<Node<S::Key>>) {
        // SAFETY: as the caller says.
        unless_unwinding(|| unsafe { self.give_up(node) });
    }

    unsafe fn enqueue_drained(&self, node: NonNull<Node<S::Key>>, waker: &Waker) -> bool {
        let mut waker = Some(waker.clone());
        self.with(|inner, _| {
            self.raise(DRAINED);
            if self.is_drained() {
                return false;
            }
            let head = inner.drainers.heads().next();
            if let Some(waker) = waker.take() {
                // SAFETY: as the caller says.
                unsafe { inner.drainers.enter(node, head, End::Tail, waker) };
                inner.occupied |= DRAINED;
            }
            true
        })
    }

    unsafe fn cancel_drained(&self, node: NonNull<Node<S::Key>>) {
        // SAFETY: valid, as the caller says.
        if unsafe { Node::state(node) } == State::Waiting {
            // SAFETY: as the caller says.
            unless_unwinding(|| unsafe { self.give_up_drained(node) });
        }
    }
}

impl<S: Source, C: Clock, R: RawLock, H: Hook, const B: usize> Hall<S, C, R, H, B> {
    /// As `cancel`.
    ///
    /// # Safety
    ///
    /// The same.
    unsafe fn give_up(&self, node: NonNull<Node<S::Key>>) {
        let _unclaimed = Unclaimed { hall: self, node };
        // SAFETY: valid, as the caller says.
        if unsafe { Node::state(node) } == State::Waiting {
            let stays = Stays;
            let waker = self.with(move |inner, _| {
                // SAFETY: waiting, and so in a line, now that we have the lines.
                unsafe {
                    if Node::state(node) != State::Waiting {
                        mem::forget(stays);
                        return None;
                    }
                    inner.counts.cancelled = inner.counts.cancelled.wrapping_add(1);
                    let (waker, next) = self.take_out(inner, node);
                    (*node.as_ptr()).until = (*node.as_ptr()).since;
                    Node::settle(node, State::Cancelled);
                    mem::forget(stays);
                    if next.is_some() {
                        // Those behind it may fit where it did not.
                        self.marks.leave(Self::bit((*node.as_ptr()).key));
                    }
                    waker
                }
            });
            drop(waker);
        }
        // SAFETY: no longer in a line, and so ours.
        unsafe {
            if H::TIMES && Node::state(node) == State::Cancelled {
                (*node.as_ptr()).until = self.clock.now();
            }
            self.left(node);
        }
    }

    /// As `cancel_drained`.
    ///
    /// # Safety
    ///
    /// The same.
    unsafe fn give_up_drained(&self, node: NonNull<Node<S::Key>>) {
        let stays = Stays;
        let waker = self.with(move |inner, _| {
            // SAFETY: waiting, and so among the drainers, now that we have the lines.
            let waker = unsafe {
                (Node::state(node) == State::Waiting).then(|| {
                    let waker = Self::take_drainer_out(inner, node);
                    Node::settle(node, State::Cancelled);
                    waker
                })
            };
            mem::forget(stays);
            waker
        });
        drop(waker);
    }
}

/// A node that goes, and is in a line still. There is no way on if it cannot be taken out: a panic
/// while another one unwinds ends the program.
pub(super) struct Stays;

impl Drop for Stays {
    fn drop(&mut self) {
        panic!("a wait cannot leave its queue: a clock, a limiter or a lock has panicked");
    }
}

/// A node that nobody waits for any more, be it that a waker or the hook panics: what it was
/// granted is given back.
struct Unclaimed<'h, S: Source, C: Clock, R: RawLock, H, const B: usize> {
    hall: &'h Hall<S, C, R, H, B>,
    node: NonNull<Node<S::Key>>,
}

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Drop for Unclaimed<'_, S, C, R, H, B> {
    fn drop(&mut self) {
        // SAFETY: no longer in a line, and so ours.
        let Node {
            key, grant, until, ..
        } = unsafe { &mut *self.node.as_ptr() };
        let node = self.node.addr().get();
        drop(Taken {
            hall: self.hall,
            key: *key,
            grant: grant.take(),
            at: *until,
            node,
        });
    }
}

/// What was taken, to be given back if a waker or a hook panics before it is anybody's.
pub(super) struct Taken<'h, S: Source, C: Clock, R: RawLock, H, const B: usize> {
    pub(super) hall: &'h Hall<S, C, R, H, B>,
    pub(super) key: S::Key,
    pub(super) grant: Option<Grant>,
    /// When it was taken, or later.
    pub(super) at: Timestamp,
    /// The place of the node that it was taken for after a wait; else 0.
    pub(super) node: usize,
}

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Taken<'_, S, C, R, H, B> {
    pub(super) fn keep(mut self) -> Grant {
        self.grant.take().unwrap_or((0, Receipt::NONE))
    }
}

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Drop for Taken<'_, S, C, R, H, B> {
    fn drop(&mut self) {
        if self.grant.as_ref().is_some_and(|(permits, _)| *permits > 0) {
            unless_unwinding(|| self.give_back());
        }
    }
}

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Taken<'_, S, C, R, H, B> {
    /// Gives back what is not wanted any more.
    fn give_back(&mut self) {
        let mut refund = Refund {
            taken: self,
            notes: Receipts::NONE,
        };
        let Taken { hall, node, .. } = *refund.taken;
        if S::NOTES && node != 0 {
            // Nothing is granted before the refund: that would change what the notes are of.
            refund.notes = hall.lock.lock(|| {
                // SAFETY: under the lock.
                let (noted, notes) = unsafe { (*hall.inner.get()).noted };
                if noted == node { notes } else { Receipts::NONE }
            });
        }
        // If the clock panics, as of when it was taken.
        let now = hall.clock.now();
        refund.taken.at = now;
    }
}

/// Refunds what was taken, also if a clock panics, and has it granted to others.
struct Refund<'t, 'h, S: Source, C: Clock, R: RawLock, H, const B: usize> {
    taken: &'t mut Taken<'h, S, C, R, H, B>,
    notes: Receipts,
}

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Drop for Refund<'_, '_, S, C, R, H, B> {
    fn drop(&mut self) {
        let notes = self.notes;
        let Taken {
            hall,
            key,
            grant,
            at,
            ..
        } = &mut *self.taken;
        if let Some((permits, mut receipt)) = grant.take() {
            unless_unwinding(|| {
                hall.give_back(*key, |source| {
                    if S::NOTES {
                        source.refund_noted(*key, *at, permits, &mut receipt, &notes);
                    } else {
                        source.at(*key).refund_at(*at, permits, &mut receipt);
                    }
                    ((), None)
                });
                if S::NOTES && hall.marks.are_left::<R>() {
                    hall.grant_marked();
                }
            });
        }
    }
}
