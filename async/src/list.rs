//! An intrusive list of waits.
//!
//! A node lies in the future that waits, which is pinned, and is unlinked before it goes. All its fields but `state` belong to whoever has the
//! list, while it is linked; once it is settled, which the last write to it says, they belong to the future.
//!
//! ```text
//!   Idle --link--> Waiting --settle--> Granted, Evicted, Exceeds, Closed
//!                     |
//!                     +----unlink----> Idle
//! ```
#![allow(unsafe_code)]

use core::marker::PhantomPinned;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::Receipt;

use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Where a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Not in a list, and has never been, or not since it was unlinked.
    Idle,
    Waiting,
    Granted,
    Evicted,
    /// It asks for more than the limiter can hold by now.
    Exceeds,
    Closed,
}

impl State {
    const ALL: [Self; 6] =
        [Self::Idle, Self::Waiting, Self::Granted, Self::Evicted, Self::Exceeds, Self::Closed];
}

/// One wait.
#[derive(Debug)]
pub struct Node {
    state: AtomicU8,
    before: Option<NonNull<Self>>,
    after: Option<NonNull<Self>>,
    waker: Option<Waker>,
    /// The fewest permits that it takes, for which it has a place in the queue.
    pub(crate) min: u32,
    /// The most that it takes.
    pub(crate) max: u32,
    /// Whether it is a thread's, which sleeps until the time that it was told.
    pub(crate) sleeps: bool,
    /// What it was granted.
    pub(crate) grant: Option<(u32, Receipt)>,
    _pinned: PhantomPinned,
}

impl Node {
    pub(crate) fn new(min: u32, max: u32) -> Self {
        Self {
            state: AtomicU8::new(State::Idle as u8),
            before: None,
            after: None,
            waker: None,
            min,
            max,
            sleeps: false,
            grant: None,
            _pinned: PhantomPinned,
        }
    }

    /// Where a node is. Settled, all that whoever settled it did comes before.
    ///
    /// # Safety
    ///
    /// The node is valid. Others may be at its other fields.
    pub(crate) unsafe fn state(node: NonNull<Self>) -> State {
        // SAFETY: as the caller says; no reference to the whole node is made. Acquire: pairs with `settle`.
        State::ALL[usize::from(unsafe { (*node.as_ptr()).state.load(Acquire) })]
    }
}

/// Nodes in the order in which they came.
#[derive(Debug)]
pub(crate) struct List {
    first: Option<NonNull<Node>>,
    last: Option<NonNull<Node>>,
}

/// Which end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    First,
    Last,
}

// SAFETY: nodes are handed from thread to thread with the list, under its lock; wakers can be sent.
unsafe impl Send for List {}

impl List {
    pub(crate) const fn new() -> Self {
        Self { first: None, last: None }
    }

    pub(crate) fn end(&self, end: End) -> Option<NonNull<Node>> {
        match end {
            End::First => self.first,
            End::Last => self.last,
        }
    }

    /// Appends a node, to be woken by `waker`.
    ///
    /// # Safety
    ///
    /// The node is idle, nobody else refers to it, and it stays where it is until it is unlinked or settled.
    pub(crate) unsafe fn link(&mut self, node: NonNull<Node>, waker: Waker) {
        // SAFETY: it is ours alone, by the caller; its neighbour is linked.
        unsafe {
            let new = &mut *node.as_ptr();
            new.before = self.last;
            new.after = None;
            new.waker = Some(waker);
            new.state.store(State::Waiting as u8, Relaxed);
            match self.last {
                Some(last) => (*last.as_ptr()).after = Some(node),
                None => self.first = Some(node),
            }
        }
        self.last = Some(node);
    }

    /// Takes a node out, and returns its waker.
    ///
    /// # Safety
    ///
    /// The node is linked in this list.
    unsafe fn take_out(&mut self, node: NonNull<Node>) -> Option<Waker> {
        // SAFETY: linked nodes are valid, and belong to whoever has the list.
        unsafe {
            let (before, after) = ((*node.as_ptr()).before, (*node.as_ptr()).after);
            match before {
                Some(before) => (*before.as_ptr()).after = after,
                None => self.first = after,
            }
            match after {
                Some(after) => (*after.as_ptr()).before = before,
                None => self.last = before,
            }
            (*node.as_ptr()).waker.take()
        }
    }

    /// Takes a node out that gives up, and returns its waker.
    ///
    /// # Safety
    ///
    /// The node is linked in this list.
    pub(crate) unsafe fn unlink(&mut self, node: NonNull<Node>) -> Option<Waker> {
        // SAFETY: as the caller says.
        unsafe {
            let waker = self.take_out(node);
            (*node.as_ptr()).state.store(State::Idle as u8, Relaxed);
            waker
        }
    }

    /// Takes a node out with an outcome, and returns the waker of the future that has it now.
    ///
    /// # Safety
    ///
    /// The node is linked in this list. Afterwards it may be gone at any moment.
    pub(crate) unsafe fn settle(
        &mut self,
        node: NonNull<Node>,
        outcome: State,
        grant: Option<(u32, Receipt)>,
    ) -> Option<Waker> {
        // SAFETY: as the caller says. Release: pairs with `Node::state`; nothing of the node is touched after it.
        unsafe {
            let waker = self.take_out(node);
            (*node.as_ptr()).grant = grant;
            (*node.as_ptr()).state.store(outcome as u8, Release);
            waker
        }
    }

    /// Has a node woken by another waker, and returns the one before.
    ///
    /// # Safety
    ///
    /// The node is linked in a list, and that is ours.
    pub(crate) unsafe fn rewake(node: NonNull<Node>, waker: Waker) -> Option<Waker> {
        // SAFETY: as the caller says.
        unsafe { (*node.as_ptr()).waker.replace(waker) }
    }

    /// Takes a node's waker, to have it polled.
    ///
    /// # Safety
    ///
    /// The node is linked in a list, and that is ours.
    pub(crate) unsafe fn unwake(node: NonNull<Node>) -> Option<Waker> {
        // SAFETY: as the caller says.
        unsafe { (*node.as_ptr()).waker.take() }
    }
}
