//! An intrusive ring: a circular doubly linked list whose nodes are stored elsewhere.
//!
//! Invariants:
//!
//! - `after` points from each node of a ring to the next node, and from the last node to the first;
//!   `before` points back. A single node points to itself.
//! - While a node is in a ring, it is valid and does not move, and only the ring accesses its
//!   links.
//!
//! No operation walks the ring, except iteration.
#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A node that can be in a ring of kind `Kind`.
///
/// # Safety
///
/// While the node is in a ring, `links` returns the same valid place within it each time.
pub(crate) unsafe trait RingNode<Kind>: Sized {
    /// Returns the node's links. Only rings of this kind access them.
    fn links(node: NonNull<Self>) -> NonNull<RingLinks<Self>>;
}

/// A node's neighbours in a ring.
#[derive(Debug)]
pub(crate) struct RingLinks<N> {
    before: NonNull<N>,
    after: NonNull<N>,
}

impl<N> RingLinks<N> {
    /// The links of a node that is in no ring.
    pub(crate) const UNLINKED: Self = Self {
        before: NonNull::dangling(),
        after: NonNull::dangling(),
    };
}

/// Nodes in order. While a node is in the ring, it is valid, and only the ring accesses its links.
pub(crate) struct Ring<N, Kind> {
    first: Option<NonNull<N>>,
    kind: PhantomData<Kind>,
}

impl<N, Kind> fmt::Debug for Ring<N, Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("first", &self.first).finish()
    }
}

// SAFETY: the ring has exclusive access to the links of its nodes, so they move to another thread
// together with it; `N` is `Send`.
unsafe impl<N: Send, Kind> Send for Ring<N, Kind> {}

impl<N: RingNode<Kind>, Kind> Ring<N, Kind> {
    pub(crate) const EMPTY: Self = Self::from(None);

    /// Returns the ring whose first node is `first`.
    #[inline(always)]
    pub(crate) const fn from(first: Option<NonNull<N>>) -> Self {
        Self {
            first,
            kind: PhantomData,
        }
    }

    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline(always)]
    pub(crate) const fn first(&self) -> Option<NonNull<N>> {
        self.first
    }

    #[inline(always)]
    pub(crate) fn last(&self) -> Option<NonNull<N>> {
        // SAFETY: `first` is in the ring, so it is valid and its links belong to the ring.
        self.first.map(|first| unsafe { links(first).before })
    }

    /// Returns the nodes in order. The caller may remove or replace the node that was returned last
    /// during the iteration.
    pub(crate) fn iter(&self) -> Iter<N, Kind> {
        Iter {
            next: self.first,
            last: self.last(),
            kind: PhantomData,
        }
    }

    /// Appends a node after the last one.
    ///
    /// # Safety
    ///
    /// The node is valid and in no ring of this kind. It is removed before it is moved or dropped.
    #[inline(always)]
    pub(crate) unsafe fn push_back(&mut self, node: NonNull<N>) {
        // SAFETY: the node is valid and in no ring, as the caller guarantees. Its neighbours are in
        // the ring, so they are valid and their links belong to the ring.
        unsafe {
            let (before, after) = match self.first {
                Some(first) => (links(first).before, first),
                None => (node, node),
            };
            *links(node) = RingLinks { before, after };
            links(before).after = node;
            links(after).before = node;
            self.first = self.first.or(Some(node));
        }
    }

    /// Inserts a node after `before`, which may be the last one.
    ///
    /// # Safety
    ///
    /// The contract is that of `push_back`. `before` is in this ring.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the links belong to it"
    )]
    pub(crate) unsafe fn insert_after(&mut self, node: NonNull<N>, before: NonNull<N>) {
        // SAFETY: `before` is in the ring, as the caller guarantees, so it is valid and its links
        // belong to the ring. In the ring that begins behind it, it is the last one.
        unsafe { Self::from(Some(links(before).after)).push_back(node) };
    }

    /// Returns the node before another one; before the first that is the last one.
    ///
    /// # Safety
    ///
    /// The node is in this ring.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the links belong to it"
    )]
    pub(crate) unsafe fn before(&self, node: NonNull<N>) -> NonNull<N> {
        // SAFETY: the node is in the ring, as the caller guarantees, so it is valid and its links
        // belong to the ring.
        unsafe { links(node).before }
    }

    /// Returns the node after another one; after the last that is the first one.
    ///
    /// # Safety
    ///
    /// The node is in this ring.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the links belong to it"
    )]
    pub(crate) unsafe fn after(&self, node: NonNull<N>) -> NonNull<N> {
        // SAFETY: as above.
        unsafe { links(node).after }
    }

    /// Makes the second node the first one, and the first the last.
    pub(crate) fn rotate(&mut self) {
        // SAFETY: `first` is in the ring, so it is valid and its links belong to the ring.
        self.first = self.first.map(|first| unsafe { links(first).after });
    }

    /// Inserts a node before the first one.
    ///
    /// # Safety
    ///
    /// The contract is that of `push_back`.
    #[inline(always)]
    pub(crate) unsafe fn push_front(&mut self, node: NonNull<N>) {
        // SAFETY: the caller guarantees the contract of `push_back`.
        unsafe { self.push_back(node) };
        self.first = Some(node);
    }

    /// Removes a node. Returns the node after it, if any other node is left.
    ///
    /// # Safety
    ///
    /// The node is in this ring.
    #[inline(always)]
    pub(crate) unsafe fn remove(&mut self, node: NonNull<N>) -> Option<NonNull<N>> {
        // SAFETY: the node is in the ring, as the caller guarantees, and so are its neighbours. So
        // all three are valid and their links belong to the ring.
        unsafe {
            let RingLinks { before, after } = *links(node);
            links(before).after = after;
            links(after).before = before;
            let next = (after != node).then_some(after);
            if self.first == Some(node) {
                self.first = next;
            }
            next
        }
    }

    /// Puts `new` in the place of `old`, which is removed.
    ///
    /// # Safety
    ///
    /// `old` is in this ring. `new` is valid and in no ring of this kind. `new` is removed before
    /// it is moved or dropped.
    #[inline(always)]
    pub(crate) unsafe fn replace(&mut self, old: NonNull<N>, new: NonNull<N>) {
        // SAFETY: `old` and its neighbours are in the ring, so they are valid and their links
        // belong to the ring. `new` is valid and in no ring, as the caller guarantees.
        unsafe {
            let RingLinks { before, after } = *links(old);
            if before == old {
                *links(new) = RingLinks {
                    before: new,
                    after: new,
                };
            } else {
                *links(new) = RingLinks { before, after };
                links(before).after = new;
                links(after).before = new;
            }
            if self.first == Some(old) {
                self.first = Some(new);
            }
        }
    }
}

/// Returns a node's links.
///
/// # Safety
///
/// The node is valid, its links belong to the ring, and no other reference to them is in use.
#[inline(always)]
unsafe fn links<'n, N: RingNode<Kind> + 'n, Kind>(node: NonNull<N>) -> &'n mut RingLinks<N> {
    // SAFETY: the caller guarantees that the node is valid and that no other reference to its links
    // is in use.
    unsafe { N::links(node).as_mut() }
}

/// The nodes of a ring. See [`Ring::iter`].
pub(crate) struct Iter<N, Kind> {
    next: Option<NonNull<N>>,
    last: Option<NonNull<N>>,
    kind: PhantomData<Kind>,
}

impl<N: RingNode<Kind>, Kind> Iterator for Iter<N, Kind> {
    type Item = NonNull<N>;

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.next?;
        self.next = if self.last == Some(node) {
            None
        } else {
            // SAFETY: `node` is in the ring: it is its first or the successor of a node in it, and
            // only the node that was returned before may have been removed.
            Some(unsafe { links(node).after })
        };
        Some(node)
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use std::boxed::Box;
    use std::collections::VecDeque;
    use std::vec::Vec;

    struct Node {
        links: UnsafeCell<RingLinks<Node>>,
    }

    struct Numbers;

    // SAFETY: `links` is a field of the node, so it is at the same place each time.
    unsafe impl RingNode<Numbers> for Node {
        fn links(node: NonNull<Self>) -> NonNull<RingLinks<Self>> {
            // SAFETY: the nodes of these tests are leaked, so they stay valid.
            NonNull::from(unsafe { &node.as_ref().links }).cast()
        }
    }

    /// Returns `many` leaked nodes.
    fn nodes(many: usize) -> Vec<NonNull<Node>> {
        let node = |_| {
            Box::leak(Box::new(Node {
                links: UnsafeCell::new(RingLinks::UNLINKED),
            }))
            .into()
        };
        (0..many).map(node).collect()
    }

    fn assert_same(ring: &Ring<Node, Numbers>, model: &VecDeque<NonNull<Node>>) {
        assert!(ring.iter().eq(model.iter().copied()));
        assert_eq!(ring.first, model.front().copied());
        assert_eq!(ring.last(), model.back().copied());
        assert_eq!(ring.is_empty(), model.is_empty());
        // Each node points back to its predecessor.
        for (at, node) in model.iter().enumerate() {
            let before = model[(at + model.len() - 1) % model.len()];
            // SAFETY: the node is leaked, so it is valid, and it is in this ring.
            unsafe {
                assert_eq!((ring.before(*node), ring.after(before)), (before, *node));
            }
        }
    }

    #[test]
    fn nodes_have_the_same_order_as_in_a_deque() {
        for many in [1, 2, 3, 4, 20] {
            let nodes = nodes(many);
            let mut ring = Ring::<Node, Numbers>::EMPTY;
            let mut model = VecDeque::new();
            let mut random = 1_u64;
            let mut below = |most: usize| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 33) as usize % most
            };
            for _ in 0..5_000 {
                let node = nodes[below(many)];
                let at = model.iter().position(|other| *other == node);
                let other = nodes[below(many)];
                // SAFETY: the nodes are leaked, so they are valid. `model` tells which of them are
                // in the ring, and they are in no other one.
                unsafe {
                    match (at, below(4)) {
                        (Some(at), 0) if !model.contains(&other) => {
                            ring.replace(node, other);
                            model[at] = other;
                        }
                        (Some(at), 1 | 2) => {
                            let next = model[(at + 1) % model.len()];
                            let next = Some(next).filter(|next| *next != node);
                            assert_eq!(ring.remove(node), next);
                            model.remove(at);
                        }
                        (Some(_), _) => {
                            ring.rotate();
                            model.rotate_left(1);
                        }
                        (None, 3) if !model.is_empty() => {
                            let place = below(model.len());
                            ring.insert_after(node, model[place]);
                            model.insert(place + 1, node);
                        }
                        (None, 0) => {
                            ring.push_front(node);
                            model.push_front(node);
                        }
                        (None, _) => {
                            ring.push_back(node);
                            model.push_back(node);
                        }
                    }
                }
                assert_same(&ring, &model);
            }
        }
    }

    #[test]
    fn the_node_returned_last_can_be_removed_or_replaced_during_iteration() {
        let nodes = nodes(6);
        let (these, others) = nodes.split_at(3);
        let mut ring = Ring::<Node, Numbers>::EMPTY;
        // SAFETY: the nodes are leaked, so they are valid. `these` enter the ring first, and each
        // of `others` enters once in the place of another node.
        unsafe {
            for node in these {
                ring.push_back(*node);
            }
            let mut seen = Vec::new();
            for (node, other) in ring.iter().zip(others) {
                seen.push(node);
                ring.replace(node, *other);
            }
            assert_eq!(seen, these);
            seen.clear();
            for node in ring.iter() {
                seen.push(node);
                ring.remove(node);
            }
            assert_eq!(seen, others);
        }
        assert!(ring.is_empty());
    }
}
