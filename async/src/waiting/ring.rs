//! An intrusive ring: a circular doubly linked list of nodes that lie elsewhere.
//!
//! Invariant: `after` leads from each node of a ring to the next one, and from the last one to the
//! first; `before` leads back. One that is alone leads to itself. No step walks over nodes.
#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A node that can be in a ring of this kind.
///
/// # Safety
///
/// `links` returns the same place within the node each time, while it is in a ring.
pub(crate) unsafe trait RingNode<Kind>: Sized {
    /// The node's links. Only rings of this kind read or write them.
    fn links(node: NonNull<Self>) -> NonNull<RingLinks<Self>>;
}

/// A node's neighbours in a ring.
#[derive(Debug)]
pub(crate) struct RingLinks<N> {
    before: NonNull<N>,
    after: NonNull<N>,
}

impl<N> RingLinks<N> {
    /// In no ring.
    pub(crate) const UNLINKED: Self = Self {
        before: NonNull::dangling(),
        after: NonNull::dangling(),
    };
}

/// Nodes in their order. While a node is in the ring, it is valid, and its links belong to the
/// ring.
pub(crate) struct Ring<N, Kind> {
    first: Option<NonNull<N>>,
    kind: PhantomData<Kind>,
}

impl<N, Kind> fmt::Debug for Ring<N, Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("first", &self.first).finish()
    }
}

// SAFETY: the nodes go from thread to thread with the ring.
unsafe impl<N: Send, Kind> Send for Ring<N, Kind> {}

impl<N: RingNode<Kind>, Kind> Ring<N, Kind> {
    pub(crate) const EMPTY: Self = Self::from(None);

    /// The ring whose first node this is.
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
    pub(crate) fn last(&self) -> Option<NonNull<N>> {
        // SAFETY: in the ring.
        self.first.map(|first| unsafe { links(first).before })
    }

    /// The nodes in their order. The one that was returned last may be removed meanwhile, or
    /// replaced.
    pub(crate) fn iter(&self) -> Iter<N, Kind> {
        Iter {
            next: self.first,
            last: self.last(),
            kind: PhantomData,
        }
    }

    /// Puts a node behind the last one.
    ///
    /// # Safety
    ///
    /// The node is in no ring of this kind. It is removed before it is moved or dropped.
    #[inline(always)]
    pub(crate) unsafe fn push_back(&mut self, node: NonNull<N>) {
        // SAFETY: as the caller says; the others are in the ring.
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

    /// Puts a node before the first one.
    ///
    /// # Safety
    ///
    /// As of `push_back`.
    #[inline(always)]
    pub(crate) unsafe fn push_front(&mut self, node: NonNull<N>) {
        // SAFETY: as the caller says.
        unsafe { self.push_back(node) };
        self.first = Some(node);
    }

    /// Takes a node out. Returns the one behind it, if another one is left.
    ///
    /// # Safety
    ///
    /// The node is in this ring.
    #[inline(always)]
    pub(crate) unsafe fn remove(&mut self, node: NonNull<N>) -> Option<NonNull<N>> {
        // SAFETY: it is in the ring, and so are its neighbours.
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

    /// Puts a node in the place of another one, which is taken out.
    ///
    /// # Safety
    ///
    /// The old one is in this ring, the new one in none of its kind. That is removed before it is
    /// moved or dropped.
    #[inline(always)]
    pub(crate) unsafe fn replace(&mut self, old: NonNull<N>, new: NonNull<N>) {
        // SAFETY: it is in the ring, and so are its neighbours.
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

/// # Safety
///
/// The node is valid, its links are the ring's, and no other reference to them is in use.
#[inline(always)]
unsafe fn links<'n, N: RingNode<Kind> + 'n, Kind>(node: NonNull<N>) -> &'n mut RingLinks<N> {
    // SAFETY: as the caller says.
    unsafe { N::links(node).as_mut() }
}

/// The nodes of a ring: from [`Ring::iter`].
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
            // SAFETY: in the ring.
            Some(unsafe { links(node).after })
        };
        Some(node)
    }
}

#[cfg(all(test, not(loom)))]
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

    // SAFETY: a field of the node.
    unsafe impl RingNode<Numbers> for Node {
        fn links(node: NonNull<Self>) -> NonNull<RingLinks<Self>> {
            // SAFETY: nodes of these tests are valid.
            NonNull::from(unsafe { &node.as_ref().links }).cast()
        }
    }

    /// Nodes that live as long as a test.
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
        // Back from each node.
        for (at, node) in model.iter().enumerate() {
            let before = model[(at + model.len() - 1) % model.len()];
            // SAFETY: nodes live on, and are in this ring.
            assert_eq!(unsafe { links::<_, Numbers>(*node).before }, before);
        }
    }

    #[test]
    fn its_order_is_that_of_a_deque() {
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
                // SAFETY: nodes live on, and are in this ring alone.
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
                        (Some(_), _) => {}
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
    fn the_node_that_was_returned_last_may_go_or_be_replaced() {
        let nodes = nodes(6);
        let (these, others) = nodes.split_at(3);
        let mut ring = Ring::<Node, Numbers>::EMPTY;
        // SAFETY: nodes live on, and are in this ring alone.
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
