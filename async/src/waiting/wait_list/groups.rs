//! The groups of a wait list, by which its waiters are in the order of their priorities.
//!
//! A list is in the order of priority. The waiters of one priority are a *group*, one after the
//! other, in the order of the queue.
//!
//! State: while a list has several groups, it is *mixed*, and the first waiter of each group stores
//! the group: its last waiter, and what its waiters request. While it has one group, no waiter
//! stores any: the head stores the permits of the list, and the ring knows its last waiter.
//!
//! ```text
//!              a waiter of another priority enters
//!   one group ------------------------------------> mixed
//!             <------------------------------------
//!              the waiters of all other groups leave
//! ```
//!
//! Invariant: in a mixed list the head is the first waiter of a group, and behind the last waiter
//! of a group comes the first of another one, with a lower priority.
//!
//! So the place of a new waiter, and what comes before it, is found in as many steps as there are
//! priorities. A list of one group pays one comparison.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use super::{At, Line, Shard, Waiter, turns};
use crate::waiting::list_key::ListKey;
use crate::waiting::priority::{HAS_PRIORITIES, Place, Priority};
use crate::waiting::shedding::Stored;

/// The waiters of one priority in a mixed list: stored in the first of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<K: ListKey> {
    pub(crate) last: NonNull<Waiter<K>>,
    pub(crate) line: Line,
}

/// Returns whether a new request has a higher priority than the head of its list, and so than all.
#[inline(always)]
pub(crate) fn is_outranking<K: ListKey>(
    head: Option<NonNull<Waiter<K>>>,
    priority: Priority,
) -> bool {
    // SAFETY: heads are linked, so they are valid, and their priority does not change.
    HAS_PRIORITIES && head.is_some_and(|head| unsafe { Waiter::priority(head) } < priority)
}

impl<K: ListKey> Shard<K> {
    /// Returns whether a new request that does not go first comes after all others of its list.
    #[inline(always)]
    pub(crate) fn is_last(&self, head: Option<NonNull<Waiter<K>>>, priority: Priority) -> bool {
        // SAFETY: as below.
        !HAS_PRIORITIES
            || head.is_none_or(|head| unsafe { Waiter::priority(self.last(head)) } >= priority)
    }

    /// Returns the group of the first waiter of one; `None` if the list is not mixed.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the lock is held"
    )]
    #[inline(always)]
    pub(super) fn group(&self, first: NonNull<Waiter<K>>) -> Option<Group<K>> {
        // SAFETY: the callers pass a linked waiter, so it is valid, and its locked fields belong to
        // the holder of the lock (invariants **Linked** and **Locked**).
        unsafe { Waiter::locked(first) }.group.or(None)
    }

    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the lock is held"
    )]
    fn set_group(&mut self, first: NonNull<Waiter<K>>, group: Option<Group<K>>) {
        // SAFETY: as above, or the waiter is idle and belongs to the caller.
        unsafe { Waiter::locked(first) }.group = Stored::new(group);
    }

    /// Returns the first waiter of each group of a list, and the group.
    fn groups(
        &self,
        head: Option<NonNull<Waiter<K>>>,
    ) -> impl Iterator<Item = (NonNull<Waiter<K>>, Group<K>)> {
        let mut next = head;
        core::iter::from_fn(move || {
            let (first, head) = (next?, head?);
            let last = self.last(head);
            let group = self.group(first).unwrap_or(Group {
                last,
                line: self.line(Some(head)),
            });
            // SAFETY: the last waiter of a group is in the list.
            let after = unsafe { turns(Some(head)).after(group.last) };
            next = Some(after).filter(|_| group.last != last);
            Some((first, group))
        })
    }

    /// Returns what the waiters request that come before a new one.
    pub(crate) fn before(&self, head: Option<NonNull<Waiter<K>>>, place: Place) -> Line {
        self.groups(head)
            // SAFETY: the waiter is linked, so it is valid, and its priority does not change.
            .filter(|(first, _)| place.is_behind(unsafe { Waiter::priority(*first) }))
            .fold(Line::EMPTY, |all, (_, group)| all.with(group.line))
    }

    /// Returns where a new waiter enters a list.
    #[inline]
    pub(crate) fn place(&self, head: Option<NonNull<Waiter<K>>>, place: Place) -> At<K> {
        if !place.goes_first && self.is_last(head, place.priority) {
            return At::Tail;
        }
        let mut at = At::Head;
        for (first, group) in self.groups(head).filter(|_| HAS_PRIORITIES) {
            // SAFETY: as above.
            if !place.is_behind(unsafe { Waiter::priority(first) }) {
                break;
            }
            at = At::After(group.last);
        }
        at
    }

    /// Returns whether a list is mixed, or will be with a new waiter.
    ///
    /// # Safety
    ///
    /// Both waiters are filled, and `head` is the head of a list.
    #[inline(always)]
    pub(super) unsafe fn has_groups(
        &self,
        head: NonNull<Waiter<K>>,
        waiter: NonNull<Waiter<K>>,
    ) -> bool {
        // SAFETY: both are filled, as the caller guarantees.
        let differs = || unsafe { Waiter::priority(waiter) != Waiter::priority(head) };
        HAS_PRIORITIES && (self.group(head).is_some() || differs())
    }

    /// Adds a waiter to its group, or begins one, before it enters its list there.
    ///
    /// # Safety
    ///
    /// The waiter is idle and belongs to the caller, and `head` is the head of its list.
    #[cold]
    pub(super) unsafe fn join_group(
        &mut self,
        waiter: NonNull<Waiter<K>>,
        head: NonNull<Waiter<K>>,
        at: &At<K>,
    ) {
        // SAFETY: the waiter is filled, as the caller guarantees, and the others are linked.
        let (request, priority) = unsafe { (Waiter::asks(waiter).1, Waiter::priority(waiter)) };
        let last = self.last(head);
        if self.group(head).is_none() {
            let line = self.line(Some(head));
            self.set_group(head, Some(Group { last, line }));
        }
        // SAFETY: as before.
        let is_own = |first| unsafe { Waiter::priority(first) } == priority;
        let found = self.groups(Some(head)).find(|&(first, _)| is_own(first));
        let (first, mut group) = found.unwrap_or((
            waiter,
            Group {
                last: waiter,
                line: Line::EMPTY,
            },
        ));
        group.line.add(request);
        let is_behind = match *at {
            At::Head => false,
            At::After(before) => before == group.last,
            At::Tail => last == group.last,
        };
        if is_behind {
            group.last = waiter;
            self.set_group(first, Some(group));
        } else {
            self.set_group(first, None);
            self.set_group(waiter, Some(group));
        }
    }

    /// Removes a waiter of a mixed list from its group, before it leaves the list.
    ///
    /// # Safety
    ///
    /// The waiter is in the list of `head`.
    #[cold]
    pub(super) unsafe fn leave_group(
        &mut self,
        waiter: NonNull<Waiter<K>>,
        head: NonNull<Waiter<K>>,
    ) {
        // SAFETY: the waiter is linked, as the caller guarantees, and so are the others.
        let (request, priority) = unsafe { (Waiter::asks(waiter).1, Waiter::priority(waiter)) };
        // SAFETY: as before.
        let is_own = |first| unsafe { Waiter::priority(first) } == priority;
        let found = self.groups(Some(head)).find(|&(first, _)| is_own(first));
        let Some((first, mut group)) = found else {
            return;
        };
        group.line.subtract(request);
        let list = turns(Some(head));
        // SAFETY: the waiter is in the list.
        let (before, after) = unsafe { (list.before(waiter), list.after(waiter)) };
        if group.last == first {
            self.set_group(waiter, None);
        } else if waiter == first {
            self.set_group(waiter, None);
            self.set_group(after, Some(group));
        } else {
            if group.last == waiter {
                group.last = before;
            }
            self.set_group(first, Some(group));
        }
    }

    /// Forgets the group of a list that has only one. A waiter that has left alone has none.
    pub(super) fn forget_single_group(&mut self, head: NonNull<Waiter<K>>) {
        // SAFETY: the waiter is the head of a list, or has left one and is not settled.
        let is_head = unsafe { Waiter::locked(head) }.is_head();
        if is_head && self.groups(Some(head)).count() == 1 {
            self.set_group(head, None);
        }
    }
}
