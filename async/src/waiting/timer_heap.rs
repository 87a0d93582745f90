//! An intrusive heap of timers: a pairing heap (Fredman, Sedgewick, Sleator, Tarjan, 1986).
//!
//! Invariants:
//!
//! - No node has a lower priority value than its parent.
//! - While a node is in the heap, it is valid and does not move, and only the heap accesses its
//!   links.
//!
//! Inserting a node takes a constant number of steps. Removing a node takes O(log n) amortised
//! steps for n nodes, and O(n) steps in the worst case.
#![allow(unsafe_code)]

use core::ptr::NonNull;

/// A node that can be in a heap.
///
/// # Safety
///
/// `links` returns the same valid place within the node each time.
pub(crate) unsafe trait HeapNode: Sized {
    /// The node with the lowest priority value comes first.
    type Priority: Copy + Ord;

    /// Returns the node's links. Only the heap accesses them.
    fn links(node: NonNull<Self>) -> NonNull<HeapLinks<Self>>;
}

/// A node's place in a heap.
#[derive(Debug)]
pub(crate) struct HeapLinks<N: HeapNode> {
    /// `None` if the node is in no heap.
    priority: Option<N::Priority>,
    child: Option<NonNull<N>>,
    next: Option<NonNull<N>>,
    /// The sibling before the node; for a first child, the parent.
    before: Option<NonNull<N>>,
}

impl<N: HeapNode> HeapLinks<N> {
    /// The links of a node that is in no heap.
    pub(crate) const UNLINKED: Self = Self::with(None);

    const fn with(priority: Option<N::Priority>) -> Self {
        Self {
            priority,
            child: None,
            next: None,
            before: None,
        }
    }
}

/// Nodes ordered by priority. While a node is in the heap, it is valid, and only the heap accesses
/// its links.
#[derive(Debug)]
pub(crate) struct TimerHeap<N> {
    first: Option<NonNull<N>>,
}

// SAFETY: the heap has exclusive access to the links of its nodes, so they move to another thread
// together with it; `N` is `Send`.
unsafe impl<N: Send> Send for TimerHeap<N> {}

impl<N: HeapNode> TimerHeap<N> {
    pub(crate) const fn new() -> Self {
        Self { first: None }
    }

    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the first node and its priority. Among nodes of equal priority it returns any one.
    pub(crate) fn first(&self) -> Option<(NonNull<N>, N::Priority)> {
        let first = self.first?;
        // SAFETY: `first` is in the heap, so it is valid and its links belong to the heap.
        let priority = unsafe { links(first).priority }?;
        Some((first, priority))
    }

    /// Returns whether a node is in this heap.
    ///
    /// # Safety
    ///
    /// The node is valid and in no other heap.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the lock is held"
    )]
    pub(crate) unsafe fn contains(&self, node: NonNull<N>) -> bool {
        // SAFETY: the caller guarantees that the node is valid and in no other heap.
        unsafe { links(node).priority.is_some() }
    }

    /// Sets the priority of a node, and inserts the node if it is not in the heap. `None` removes
    /// the node. Returns whether it has removed the node.
    ///
    /// # Safety
    ///
    /// The node is valid and is in this heap or in none. It is removed before it is moved or
    /// dropped.
    #[inline(always)]
    pub(crate) unsafe fn set(&mut self, node: NonNull<N>, priority: Option<N::Priority>) -> bool {
        // SAFETY: the caller guarantees that the node is valid and in no other heap.
        unsafe {
            if links(node).priority == priority {
                return false;
            }
            self.change(node, priority);
        }
        priority.is_none()
    }

    /// Changes the priority of a node, as `set` does.
    ///
    /// # Safety
    ///
    /// The contract is that of `set`.
    #[inline(never)]
    unsafe fn change(&mut self, node: NonNull<N>, priority: Option<N::Priority>) {
        // SAFETY: the caller guarantees that the node is valid and in no other heap. A node that
        // has a priority is in this heap.
        unsafe {
            if links(node).priority.is_some() {
                self.remove(node);
            }
            *links(node) = HeapLinks::with(priority);
            if priority.is_some() {
                self.first = meld(self.first, Some(node));
            }
        }
    }

    /// Removes a node.
    ///
    /// # Safety
    ///
    /// The node is in the heap.
    unsafe fn remove(&mut self, node: NonNull<N>) {
        // SAFETY: the node is in the heap, as the caller guarantees, and so are its parent,
        // siblings and children. So all of them are valid and their links belong to the heap.
        unsafe {
            let children = merge(links(node).child.take());
            let (before, next) = (links(node).before, links(node).next);
            let Some(before) = before else {
                self.first = children;
                return;
            };
            if let Some(next) = next {
                links(next).before = Some(before);
            }
            if links(before).child == Some(node) {
                links(before).child = next;
            } else {
                links(before).next = next;
            }
            self.first = meld(self.first, children);
        }
    }
}

/// Returns a node's links.
///
/// # Safety
///
/// The node is valid, its links belong to the heap, and no other reference to them is in use.
unsafe fn links<'n, N: HeapNode + 'n>(node: NonNull<N>) -> &'n mut HeapLinks<N> {
    // SAFETY: the caller guarantees that the node is valid and that no other reference to its links
    // is in use.
    unsafe { N::links(node).as_mut() }
}

/// Merges two heaps: the root with the higher priority value becomes the first child of the other.
///
/// # Safety
///
/// Both nodes are roots, and they are two different nodes. Their links belong to the heap.
unsafe fn meld<N: HeapNode>(a: Option<NonNull<N>>, b: Option<NonNull<N>>) -> Option<NonNull<N>> {
    let (Some(a), Some(b)) = (a, b) else {
        return a.or(b);
    };
    // SAFETY: both roots are valid and distinct, as the caller guarantees. The children of a root
    // are in the heap, so they are valid too.
    unsafe {
        let (parent, child) = if links(b).priority < links(a).priority {
            (b, a)
        } else {
            (a, b)
        };
        let next = links(parent).child.replace(child);
        if let Some(next) = next {
            links(next).before = Some(child);
        }
        (links(child).before, links(child).next) = (Some(parent), next);
        Some(parent)
    }
}

/// Merges siblings into one heap: pairs of neighbours first, from the first to the last, and then
/// the pairs, from the last to the first.
///
/// # Safety
///
/// `first` is the first child of a node that is being removed.
unsafe fn merge<N: HeapNode>(first: Option<NonNull<N>>) -> Option<NonNull<N>> {
    let mut rest = first;
    let mut pairs: Option<NonNull<N>> = None;
    // SAFETY: all siblings are in the heap, so they are valid. Each node is in only one of the two
    // lists, `rest` or `pairs`, so no node is melded with itself.
    unsafe {
        let detach = |node: NonNull<N>| {
            links(node).before = None;
            links(node).next.take()
        };
        while let Some(a) = rest {
            let b = detach(a);
            rest = b.and_then(detach);
            let pair = meld(Some(a), b);
            if let Some(pair) = pair {
                links(pair).next = pairs;
            }
            pairs = pair;
        }
        let mut all = None;
        while let Some(pair) = pairs {
            pairs = links(pair).next.take();
            all = meld(all, Some(pair));
        }
        all
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use std::boxed::Box;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    struct Node {
        links: UnsafeCell<HeapLinks<Node>>,
    }

    // SAFETY: `links` is a field of the node, so it is at the same place each time.
    unsafe impl HeapNode for Node {
        type Priority = u32;

        fn links(node: NonNull<Self>) -> NonNull<HeapLinks<Self>> {
            // SAFETY: the nodes of these tests are leaked, so they stay valid.
            NonNull::from(unsafe { &node.as_ref().links }).cast()
        }
    }

    /// Returns `many` leaked nodes; a node's index is its number.
    fn nodes(many: usize) -> Vec<NonNull<Node>> {
        let node = |_| {
            Box::leak(Box::new(Node {
                links: UnsafeCell::new(HeapLinks::UNLINKED),
            }))
            .into()
        };
        (0..many).map(node).collect()
    }

    /// Numbers from a linear congruential generator.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, most: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % most
        }
    }

    #[test]
    fn the_first_node_is_the_same_as_in_a_sorted_map() {
        for many in [1, 2, 3, 10, 100] {
            let nodes = nodes(many);
            let mut heap = TimerHeap::new();
            let mut model = BTreeMap::new();
            let mut numbers = Numbers(many as u64);
            for _ in 0..20_000 {
                let number = numbers.below(many);
                let priority = (numbers.below(3) > 0).then(|| numbers.below(50) as u32);
                // SAFETY: the nodes are leaked, so they are valid, and they are in no other heap.
                unsafe { heap.set(nodes[number], priority) };
                match priority {
                    Some(priority) => _ = model.insert(number, priority),
                    None => _ = model.remove(&number),
                }
                let first = heap.first();
                assert_eq!(
                    first.map(|(_, priority)| priority),
                    model.values().min().copied()
                );
                if let Some((node, priority)) = first {
                    let number = nodes.iter().position(|other| *other == node).unwrap();
                    assert_eq!(model.get(&number), Some(&priority));
                }
            }
        }
    }

    #[test]
    fn nodes_come_out_in_the_order_of_their_priorities() {
        let nodes = nodes(1_000);
        let mut heap = TimerHeap::new();
        let mut numbers = Numbers(7);
        for node in &nodes {
            // SAFETY: the nodes are leaked, so they are valid, and they are in no other heap.
            unsafe { heap.set(*node, Some(numbers.below(500) as u32)) };
        }
        let mut before = 0;
        for _ in &nodes {
            let (node, priority) = heap.first().unwrap();
            assert!(before <= priority);
            before = priority;
            // SAFETY: the node is leaked, so it is valid, and it is in this heap.
            unsafe { heap.set(node, None) };
        }
        assert!(heap.first().is_none());
    }
}
