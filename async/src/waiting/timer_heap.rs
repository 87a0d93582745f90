//! An intrusive heap of timers: a pairing heap (Fredman, Sedgewick, Sleator, Tarjan, 1986).
//!
//! Invariant: no node has a lower priority than its parent. To insert a node takes a few steps. To
//! remove one takes a logarithm of the number of nodes, amortised; a single removal may take as
//! many steps as there are nodes.
#![allow(unsafe_code)]

use core::ptr::NonNull;

/// A node that can be in a heap.
///
/// # Safety
///
/// `links` returns the same place within the node each time.
pub(crate) unsafe trait HeapNode: Sized {
    /// The node with the lowest priority comes first.
    type Priority: Copy + Ord;

    /// The node's links. Only the heap reads or writes them.
    fn links(node: NonNull<Self>) -> NonNull<HeapLinks<Self>>;
}

/// A node's place in a heap.
#[derive(Debug)]
pub(crate) struct HeapLinks<N: HeapNode> {
    /// `None` if the node is in no heap.
    priority: Option<N::Priority>,
    child: Option<NonNull<N>>,
    next: Option<NonNull<N>>,
    /// The sibling before it; the parent, if it is a first child.
    before: Option<NonNull<N>>,
}

impl<N: HeapNode> HeapLinks<N> {
    /// In no heap.
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

/// Nodes by their priority. While a node is in the heap, it is valid, and its links belong to the
/// heap.
#[derive(Debug)]
pub(crate) struct TimerHeap<N> {
    first: Option<NonNull<N>>,
}

// SAFETY: the nodes go from thread to thread with the heap.
unsafe impl<N: Send> Send for TimerHeap<N> {}

impl<N: HeapNode> TimerHeap<N> {
    pub(crate) const fn new() -> Self {
        Self { first: None }
    }

    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The node that comes first, and its priority. Of several with one priority, any of them.
    pub(crate) fn first(&self) -> Option<(NonNull<N>, N::Priority)> {
        let first = self.first?;
        // SAFETY: in the heap.
        let priority = unsafe { links(first).priority }?;
        Some((first, priority))
    }

    /// Gives a node this priority, and inserts it if need be; with `None`, removes it.
    ///
    /// # Safety
    ///
    /// The node is in this heap or in none. It is removed before it is moved or dropped.
    #[inline(always)]
    pub(crate) unsafe fn set(&mut self, node: NonNull<N>, priority: Option<N::Priority>) {
        // SAFETY: as the caller says.
        unsafe {
            if links(node).priority != priority {
                self.change(node, priority);
            }
        }
    }

    /// # Safety
    ///
    /// As of `set`.
    #[inline(never)]
    unsafe fn change(&mut self, node: NonNull<N>, priority: Option<N::Priority>) {
        // SAFETY: as the caller says.
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

    /// # Safety
    ///
    /// The node is in the heap.
    unsafe fn remove(&mut self, node: NonNull<N>) {
        // SAFETY: it is in the heap, and so are its relatives.
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

/// # Safety
///
/// The node is valid, its links are the heap's, and no other reference to them is in use.
unsafe fn links<'n, N: HeapNode + 'n>(node: NonNull<N>) -> &'n mut HeapLinks<N> {
    // SAFETY: as the caller says.
    unsafe { N::links(node).as_mut() }
}

/// Makes one heap of two: the root with the higher priority becomes the first child of the other.
///
/// # Safety
///
/// Both are roots, and two nodes.
unsafe fn meld<N: HeapNode>(a: Option<NonNull<N>>, b: Option<NonNull<N>>) -> Option<NonNull<N>> {
    let (Some(a), Some(b)) = (a, b) else {
        return a.or(b);
    };
    // SAFETY: as the caller says.
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

/// Makes one heap of siblings: in pairs from the first one on, and these from the last to the
/// first.
///
/// # Safety
///
/// `first` is the first child of a node that is being removed.
unsafe fn merge<N: HeapNode>(first: Option<NonNull<N>>) -> Option<NonNull<N>> {
    let mut rest = first;
    let mut pairs: Option<NonNull<N>> = None;
    // SAFETY: siblings are in the heap. Each is in one of the two lists.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use std::boxed::Box;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    struct Node {
        links: UnsafeCell<HeapLinks<Node>>,
    }

    // SAFETY: a field of the node.
    unsafe impl HeapNode for Node {
        type Priority = u32;

        fn links(node: NonNull<Self>) -> NonNull<HeapLinks<Self>> {
            // SAFETY: nodes of these tests are valid.
            NonNull::from(unsafe { &node.as_ref().links }).cast()
        }
    }

    /// Nodes that live as long as a test, by their numbers.
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
    fn what_comes_first_is_what_a_sorted_map_says() {
        for many in [1, 2, 3, 10, 100] {
            let nodes = nodes(many);
            let mut heap = TimerHeap::new();
            let mut model = BTreeMap::new();
            let mut numbers = Numbers(many as u64);
            for _ in 0..20_000 {
                let number = numbers.below(many);
                let priority = (numbers.below(3) > 0).then(|| numbers.below(50) as u32);
                // SAFETY: nodes live on, and are in this heap alone.
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
            // SAFETY: nodes live on, and are in this heap alone.
            unsafe { heap.set(*node, Some(numbers.below(500) as u32)) };
        }
        let mut before = 0;
        for _ in &nodes {
            let (node, priority) = heap.first().unwrap();
            assert!(before <= priority);
            before = priority;
            // SAFETY: the same.
            unsafe { heap.set(node, None) };
        }
        assert!(heap.first().is_none());
    }
}
