//! The round of the keys that wait for the limit of all keys together, the *total*: which key takes
//! from it next.
//!
//! A key is *ready* if the head of its list is denied by the total alone: its own limit grants. The
//! ready keys take turns in a ring: deficit round robin (Shreedhar and Varghese, 1995), with
//! permits in place of bytes.
//!
//! State: the ring of the heads of the ready keys; for each of them its *credit* in permits, and
//! since when it is ready; whether the front key has begun its turn, and been granted a request in
//! it; when to ask the total again.
//!
//! ```text
//!                    own limit grants: join, at the back, credit 0
//!   own limit denies ------------------------------------------------> ready
//!     ^                                                                  |
//!     +--- own limit denies at the begin of a turn, or no request is ----+
//!          left: leave, credit lost
//!
//!   the front key:   begin   credit += weight, once for each turn
//!                    grant   if the credit covers the request: credit -= permits granted;
//!                            the turn goes on with the next request of the key
//!                    pass    if it does not: to the back, and the next key begins
//!                    cut     if its own limit denies after a grant: credit = 0, so it passes
//!                    block   the total denies: everything stays as it is until it is asked again
//! ```
//!
//! Invariants:
//!
//! - Each node of the ring is the head of a list, and no list has two nodes in it. The requests of
//!   a list replace each other as heads, and hand on the credit and the place in the ring.
//! - While no thread holds the lock, the front key can take no permits: the total denies its
//!   request. If it might take some, the pending bit of the round is set, and a thread serves the
//!   round again. The front key has the credit for its request, or it is alone.
//! - If the total denies the front key, the other keys wait too. So a request for many permits is
//!   granted in the end, although others ask for few.
//! - No key waits for a key whose own limit denies. That key leaves the ring when it is asked at
//!   the begin of its turn. Then it has a timer of its own, or it waits for a release of its own
//!   permits. Until then it keeps its place: so a key whose own limit has a burst of less than its
//!   weight has a shorter turn than its weight allows, and as many turns as the others.
//!
//! **Fairness.** Let `N` be the most permits that one request of a key is granted, `w` its weight,
//! and `G` what it is granted in any span of time in which it is ready throughout. For any two keys
//! `i` and `j` that are ready throughout the span:
//!
//! ```text
//!   G(i) / w(i) - G(j) / w(j)  <=  1 + (N(i) - 1) / w(i) + (N(j) - 1) / w(j)
//! ```
//!
//! Proof. At the end of a turn, the credit is less than the next request: at most `N - 1`. So in
//! `r` turns, the first and last of which may be cut by the span, a key is granted at most
//! `r w + N - 1`, and in `r` whole turns at least `r w - (N - 1)`. Between two turns of `i` there
//! is a whole turn of `j`, because both stay in the ring. So if `i` has `r` turns in the span, `j`
//! has at least `r - 1` whole ones. Divide by the weights, and subtract.
//!
//! A key that joins is granted its first request, of `n` permits, before any other key has begun
//! more than `ceil(n / w)` turns. With weights of 1 and requests for one permit: each other key is
//! granted at most one permit before it. A key cannot save credit, because it loses it when it
//! leaves; nor does it gain by leaving, because it comes back with no credit, at the back.
//!
//! **Cost.** Each step of the round moves one node, whatever the number of keys. A grant of `n`
//! permits takes at most `n / w + 1` steps of its key.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use portcullis_core::Timestamp;

use crate::waiting::list_key::{ListKey, Round, Slot, Turn};
use crate::waiting::next_try::NextTry;
use crate::waiting::ring::{Ring, RingLinks};
use crate::waiting::wait_list::{Shards, WaitLists, Waiter};

impl<W> Round<W> {
    /// When to ask a total that has not denied any key of the round: as of the time since which the
    /// key is ready.
    const NOT_ASKED: NextTry = NextTry {
        at: Timestamp::ZERO,
        exact: true,
    };

    /// Returns the instant as of which the total is to be asked at `now`. If the total has said
    /// when it grants, and that has passed, it is that instant.
    pub(crate) fn asks_as_of(&self, now: Timestamp) -> Timestamp {
        if self.next.exact && self.next.at <= now {
            self.next.at
        } else {
            now
        }
    }
}

/// A round, and the head of its front key.
pub(crate) type WithFront<'l, K> = (&'l mut Round<Waiter<K>>, NonNull<Waiter<K>>);

impl<K: ListKey, H: Shards<K>> WaitLists<K, H> {
    /// Returns whether no key waits for the total.
    #[inline(always)]
    pub(crate) fn is_round_empty(&mut self) -> bool {
        self.round.get().is_none()
    }

    /// Returns the round, and the head of its front key.
    pub(crate) fn round(&mut self) -> Option<WithFront<'_, K>> {
        let round = self.round.get()?;
        let front = round.ring.iter().next()?;
        Some((round, front))
    }

    /// Returns whether a waiter is the head of the front key.
    pub(crate) fn is_front(&mut self, waiter: NonNull<Waiter<K>>) -> bool {
        self.round().is_some_and(|(_, front)| front == waiter)
    }

    /// Returns the head of the front key and its credit, if it is alone in the round.
    pub(crate) fn lone_front(&mut self) -> Option<(NonNull<Waiter<K>>, u64)> {
        let (round, front) = self.round()?;
        let is_alone = round.ring.last() == Some(front);
        // SAFETY: the front is linked, so it is valid.
        let credit = unsafe { self.turn(front) }?.credit;
        is_alone.then_some((front, credit))
    }

    /// Returns the turn of a waiter's key, if the waiter is the head of a ready key.
    ///
    /// # Safety
    ///
    /// The contract is that of `get`.
    pub(crate) unsafe fn turn(
        &mut self,
        waiter: NonNull<Waiter<K>>,
    ) -> Option<&mut Turn<Waiter<K>>> {
        // SAFETY: the caller guarantees the contract of `get`.
        unsafe { self.get(waiter).round.get() }
    }

    /// Puts a key at the back of the round, without credit. Its own limit grants the request of its
    /// head since the given instant.
    ///
    /// # Safety
    ///
    /// The waiter is the head of a list, and not in the round.
    pub(crate) unsafe fn join(&mut self, head: NonNull<Waiter<K>>, since: Timestamp) {
        // SAFETY: the head is linked, as the caller guarantees, so it is valid and its locked
        // fields belong to the holder of the lock. Its turn is set before it enters the ring.
        unsafe {
            self.get(head).round.set(Some(Turn {
                links: RingLinks::UNLINKED,
                credit: 0,
                since,
            }));
            if self.round.get().is_none() {
                self.round.set(Some(Round {
                    ring: Ring::EMPTY,
                    is_open: false,
                    is_served: false,
                    next: Round::<Waiter<K>>::NOT_ASKED,
                }));
            }
            if let Some(round) = self.round.get() {
                round.ring.push_back(head);
            }
        }
    }

    /// Removes a key from the round, if it is in it. Its credit is lost.
    ///
    /// # Safety
    ///
    /// The waiter is, or was until now, the head of a list, and is not settled.
    pub(crate) unsafe fn leave_round(&mut self, head: NonNull<Waiter<K>>) {
        // SAFETY: the waiter is linked or not yet settled, as the caller guarantees. It has a turn
        // exactly if it is in the ring.
        unsafe {
            if self.turn(head).is_none() {
                return;
            }
            let is_front = self.is_front(head);
            if let Some(round) = self.round.get() {
                round.is_open &= !is_front;
                round.ring.remove(head);
                if round.ring.is_empty() {
                    self.round.set(None);
                }
            }
            self.get(head).round.set(None);
        }
    }

    /// Makes `head` the head of a ready key in place of `old`, if that was one. It takes over the
    /// place and the credit.
    ///
    /// # Safety
    ///
    /// `old` is, or was until now, the head of a list, and is not settled. `head` is the head of
    /// that list now.
    pub(crate) unsafe fn hand_turn(&mut self, old: NonNull<Waiter<K>>, head: NonNull<Waiter<K>>) {
        // SAFETY: both are linked or not yet settled, as the caller guarantees. A waiter has a turn
        // exactly if it is in the ring; that of `head` is set before it enters.
        unsafe {
            let Some(&mut Turn { credit, since, .. }) = self.turn(old) else {
                return;
            };
            self.get(head).round.set(Some(Turn {
                links: RingLinks::UNLINKED,
                credit,
                since,
            }));
            if let Some(round) = self.round.get() {
                round.ring.replace(old, head);
            }
            self.get(old).round.set(None);
        }
    }

    /// Begins the turn of the front key, unless it has begun. Returns what the key may take: at
    /// most `u64::MAX` if it is alone.
    ///
    /// # Safety
    ///
    /// `front` is the head of the front key.
    pub(crate) unsafe fn begin_turn(
        &mut self,
        front: NonNull<Waiter<K>>,
        weight: impl FnOnce() -> u32,
    ) -> u64 {
        let Some(round) = self.round.get() else {
            return u64::MAX;
        };
        let is_alone = round.ring.last() == Some(front);
        let begins = !core::mem::replace(&mut round.is_open, true);
        round.is_served &= !begins;
        // SAFETY: the front is linked, as the caller guarantees.
        let Some(turn) = (unsafe { self.turn(front) }) else {
            return u64::MAX;
        };
        if begins {
            turn.credit = turn.credit.saturating_add(weight().max(1).into());
        }
        if is_alone { u64::MAX } else { turn.credit }
    }

    /// Charges what the front key was granted to its credit, at least 1.
    ///
    /// # Safety
    ///
    /// `front` is the head of the front key.
    pub(crate) unsafe fn pay(&mut self, front: NonNull<Waiter<K>>, granted: u32) {
        // SAFETY: the front is linked, as the caller guarantees.
        if let Some(turn) = unsafe { self.turn(front) } {
            turn.credit = turn.credit.saturating_sub(granted.max(1).into());
        }
        if let Some(round) = self.round.get() {
            round.is_served = true;
        }
    }

    /// Takes the rest of its turn from the front key, whose own limit denies: so it passes. Returns
    /// false, and changes nothing, if the key is alone or was granted nothing in this turn.
    ///
    /// # Safety
    ///
    /// `front` is the head of the front key.
    pub(crate) unsafe fn cut_turn(&mut self, front: NonNull<Waiter<K>>) -> bool {
        let is_cut = |round: &mut Round<_>| round.is_served && round.ring.last() != Some(front);
        if !self.round.get().is_some_and(is_cut) {
            return false;
        }
        // SAFETY: the front is linked, as the caller guarantees.
        if let Some(turn) = unsafe { self.turn(front) } {
            turn.credit = 0;
        }
        true
    }

    /// Ends the turn of the front key, and moves the key to the back.
    pub(crate) fn pass_turn(&mut self) {
        if let Some(round) = self.round.get() {
            round.is_open = false;
            round.ring.rotate();
        }
    }
}
