//! What comes next in time: an intrusive pairing heap (Fredman, Sedgewick, Sleator, Tarjan, 1986)
//! of waits, each at the instant at which something is due for it.
//!
//! Invariant: no node is due before its parent. To enter is a few steps; to leave is a logarithm of
//! the number of nodes, amortised, and a single one of them up to that number.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use portcullis_core::Timestamp;

use crate::list::Node;

/// What is due for a node; in this order at one instant, in which a head may be granted, or make
/// way for who is behind it, before that one is too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// Its limiter is to be asked.
    Ask,
    /// Its deadline comes, and it is a head.
    HeadsDeadline,
    /// Its deadline comes.
    Deadline,
}

/// Where a node is on the agenda.
#[derive(Debug)]
pub(crate) struct Place<N> {
    /// [`Timestamp::MAX`] if it is not on it.
    due: Timestamp,
    what: Due,
    child: Option<NonNull<N>>,
    next: Option<NonNull<N>>,
    /// The neighbour before it, or of a first child the parent.
    before: Option<NonNull<N>>,
}

impl<N> Place<N> {
    pub(crate) const OUT: Self = Self {
        due: Timestamp::MAX,
        what: Due::Ask,
        child: None,
        next: None,
        before: None,
    };
}

/// Waits by the time when something is due for them. They are valid while they are on it, and
/// belong to whoever has it.
#[derive(Debug)]
pub(crate) struct Agenda<K> {
    first: Option<NonNull<Node<K>>>,
}

// SAFETY: nodes are handed from thread to thread with the agenda, under its lock.
unsafe impl<K: Send> Send for Agenda<K> {}

impl<K> Agenda<K> {
    pub(crate) const fn new() -> Self {
        Self { first: None }
    }

    /// The one that comes first, and when. (Of several at one instant, any.)
    pub(crate) fn first(&self) -> Option<(NonNull<Node<K>>, Timestamp)> {
        // SAFETY: on the agenda.
        self.first.map(|node| (node, unsafe { place(node).due }))
    }

    /// Puts a node on the agenda for what is `due` then, wherever it was on it; or takes it off,
    /// with [`Timestamp::MAX`].
    ///
    /// # Safety
    ///
    /// The node is on this agenda or on none, and is taken off before it goes.
    #[inline]
    pub(crate) unsafe fn set(&mut self, node: NonNull<Node<K>>, due: Timestamp, what: Due) {
        // SAFETY: as the caller says.
        unsafe {
            if place(node).due != due || place(node).what != what {
                self.change(node, due, what);
            }
        }
    }

    /// # Safety
    ///
    /// As of `set`.
    unsafe fn change(&mut self, node: NonNull<Node<K>>, due: Timestamp, what: Due) {
        // SAFETY: as the caller says.
        unsafe {
            if place(node).due != Timestamp::MAX {
                self.take_off(node);
            }
            *place(node) = Place {
                due,
                what,
                ..Place::OUT
            };
            if due != Timestamp::MAX {
                self.first = meld(self.first, Some(node));
            }
        }
    }

    /// # Safety
    ///
    /// The node is on the agenda.
    unsafe fn take_off(&mut self, node: NonNull<Node<K>>) {
        // SAFETY: it is on the agenda, and so are its relatives.
        unsafe {
            let children = merge(place(node).child.take());
            let (before, next) = (place(node).before, place(node).next);
            let Some(before) = before else {
                self.first = children;
                return;
            };
            if let Some(next) = next {
                place(next).before = Some(before);
            }
            if place(before).child == Some(node) {
                place(before).child = next;
            } else {
                place(before).next = next;
            }
            self.first = meld(self.first, children);
        }
    }
}

/// # Safety
///
/// The node is valid, and ours; nothing else of it is referred to meanwhile.
unsafe fn place<'n, K>(node: NonNull<Node<K>>) -> &'n mut Place<Node<K>> {
    // SAFETY: as the caller says.
    unsafe { &mut (*node.as_ptr()).place }
}

/// Two heaps as one: the later of the two first ones becomes the first child of the other.
///
/// # Safety
///
/// Both are first in their heaps.
unsafe fn meld<K>(
    a: Option<NonNull<Node<K>>>,
    b: Option<NonNull<Node<K>>>,
) -> Option<NonNull<Node<K>>> {
    let (Some(a), Some(b)) = (a, b) else {
        return a.or(b);
    };
    // SAFETY: two nodes, as the caller says.
    unsafe {
        let turn = |node| (place(node).due, place(node).what);
        let (first, later) = if turn(b) < turn(a) { (b, a) } else { (a, b) };
        let child = place(first).child.replace(later);
        if let Some(child) = child {
            place(child).before = Some(later);
        }
        (place(later).before, place(later).next) = (Some(first), child);
        Some(first)
    }
}

/// The children of one that goes as one heap: in pairs, and these from the last to the first.
///
/// # Safety
///
/// `child` is the first of them.
unsafe fn merge<K>(mut child: Option<NonNull<Node<K>>>) -> Option<NonNull<Node<K>>> {
    let mut pairs: Option<NonNull<Node<K>>> = None;
    // SAFETY: children are on the agenda; each is in one of the two lists.
    unsafe {
        let alone = |node: NonNull<Node<K>>| {
            place(node).before = None;
            place(node).next.take()
        };
        while let Some(a) = child {
            let b = alone(a);
            child = b.and_then(alone);
            let pair = meld(Some(a), b);
            if let Some(pair) = pair {
                place(pair).next = pairs;
            }
            pairs = pair;
        }
        let mut all = None;
        while let Some(pair) = pairs {
            pairs = place(pair).next.take();
            all = meld(all, Some(pair));
        }
        all
    }
}
