//! The round of the keys that wait for the limit of all keys together, the *total*: which key takes
//! from it next.
//!
//! A key is *ready* if the head of its list is denied by the total alone: its own limit grants. The
//! ready keys take turns in a ring: deficit round robin (Shreedhar and Varghese, 1995), with
//! permits in place of bytes.
//!
//! A turn is *cut* if the key's own limit denies in the midst of it. The key passes, and keeps its
//! credit. When its own limit grants again, before its next turn, it takes the rest of the turn at
//! once, before the front of the ring. So a key gets permits in proportion to its weight as long as
//! its own limit allows as many in a whole round, and not only if it allows as many at once.
//!
//! State: the ring of the keys, by the heads of their lists; for each of them its *credit* in
//! permits, its phase, since when its own limit grants, and the turns that it has begun since it
//! was granted a request; the ring of those that resume a turn; whether the first of the ring has
//! begun its turn; when to ask the total again; how many rounds were skipped. The *front* is the
//! first that resumes, or else the first of the ring.
//!
//! ```text
//!   own limit grants: join, at the back of the ring, credit 0
//!     |        +----- own limit denies, in the turn -----> cut
//!     v        |                                            |
//!   ready <----+---- next turn: the old credit is lost -----+
//!     ^                                                     |
//!     +-- credit used -- resumes <---- own limit grants ----+
//!
//!   the front key:   begin   credit += weight, once for each turn
//!                    grant   if the credit covers the request: credit -= permits granted;
//!                            the turn goes on with the next request of the key
//!                    pass    if it does not: to the back, and the next key begins. A key that
//!                            resumes stays in its place of the ring
//!                    cut     if its own limit denies: pass, and keep the credit. A key that is
//!                            alone leaves instead, and so does one without a grant since the
//!                            turn before
//!                    leave   if no request is left: the credit is lost
//!                    block   the total denies: everything stays as it is until it is asked again
//! ```
//!
//! Invariants:
//!
//! - Each node of the ring is the head of a list, and no list has two nodes in it. The requests of
//!   a list replace each other as heads, and hand on the turn and its places.
//! - The keys that resume are in both rings, and no other key is in the second.
//! - While no thread holds the lock, the front key can take no permits: the total denies its
//!   request. If it might take some, the pending bit of the round is set, and a thread serves the
//!   round again. The front key has the credit for its request, or it is alone.
//! - If the total denies the front key, the other keys wait too. So a request for many permits is
//!   granted in the end, although others ask for few.
//! - A key that is not in a turn has less credit than one of its requests needs: the largest that
//!   has been its head. In a turn, it may have its weight besides. If a head leaves without a
//!   grant, what the key has saved for it is lost, but for what the next one may have saved too.
//! - No key waits for a key whose own limit denies. A key whose turn was cut has a timer of its
//!   own, or it waits for a release of its own permits. It is in the ring for one more turn at
//!   most: if its own limit does not grant before, it leaves.
//!
//! **Fairness.** Let `w` be the weight of a key, `G` what it is granted in any span of time in
//! which it is ready throughout and none of its requests leaves without a grant, and `N` the most
//! permits that one of its requests in the span asks for. Let `L` be the credit at the begin of the
//! span of a key that resumes a turn, less than `w + N`, and 0 for other keys. For any two keys `i`
//! and `j` that are ready throughout the span:
//!
//! ```text
//!   G(i) / w(i) - G(j) / w(j)  <=  1 + (L(i) + N(i) - 1) / w(i) + (N(j) - 1) / w(j)
//! ```
//!
//! Proof. At the end of a turn, the credit is less than the next request: at most `N - 1`. So in
//! `r` turns, the first and last of which may be cut off by the span, a key is granted at most
//! `L + r w + N - 1`, and in `r` whole turns at least `r w - (N - 1)`. Between two turns of `i`
//! there is a whole turn of `j`, because both stay in the ring. So if `i` has `r` turns in the
//! span, `j` has at least `r - 1` whole ones. Divide by the weights, and subtract.
//!
//! A key that joins is granted its first request, of `n` permits, before any other key has begun
//! more than `ceil(n / w)` turns. With weights of 1 and requests for one permit: each other key is
//! granted at most one permit before it, and one more of a turn that was cut. A key cannot save
//! credit: it loses it when it leaves, and what a cut has left when its next turn begins. Nor does
//! it gain by leaving, because it comes back with no credit, at the back.
//!
//! **Skipped rounds.** If all keys have passed one after the other, and nothing else has changed
//! the ring, the next rounds are the same, until one key has the credit for its request. They are
//! skipped: the round counts them. When a key begins its next turn, it adds the credit of those
//! that it has missed, by the weight of its last turn. Because no round is skipped in which a key
//! could take permits, the bound above holds as if each round had passed.
//!
//! **Cost.** Each step of the round moves one node, whatever the number of keys. A grant of `n`
//! permits takes at most `n / w + 1` steps of its key, and at most two of each key. A turn is cut
//! once, or once more for each grant.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use portcullis_core::Timestamp;

use crate::waiting::list_key::{ListKey, Passes, Phase, Round, Slot, Turn};
use crate::waiting::next_try::NextTry;
use crate::waiting::ring::{Ring, RingLinks};
use crate::waiting::wait_list::{Shards, WaitLists, Waiter};

impl<K: ListKey> Round<Waiter<K>> {
    /// No key. The total has not denied any, so it is asked as of the time since which a key is
    /// ready.
    const EMPTY: Self = Self {
        ring: Ring::EMPTY,
        resuming: Ring::EMPTY,
        is_open: false,
        next: NextTry {
            at: Timestamp::ZERO,
            exact: true,
        },
        keys: 0,
        skipped: 0,
        passes: Passes::NONE,
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

    /// Counts that the front key has passed its turn, and has the credit for its request after
    /// `turns` more. If all keys have passed, skips the rounds in which all of them would pass.
    fn count_pass(&mut self, turns: u64) {
        let Passes {
            count,
            turns: fewest,
        } = &mut self.passes;
        *count += 1;
        *fewest = u32::try_from(turns).unwrap_or(u32::MAX).min(*fewest);
        if *count >= self.keys {
            self.skipped = self.skipped.wrapping_add(fewest.saturating_sub(1));
            self.passes = Passes::NONE;
        }
    }
}

impl<W> Turn<W> {
    /// Returns the credit of the rounds that were skipped since the key's last turn, now that
    /// `skipped` is their count, and forgets them.
    fn miss(&mut self, skipped: u32) -> u64 {
        let missed = skipped.wrapping_sub(core::mem::replace(&mut self.skipped, skipped));
        u64::from(missed) * u64::from(self.weight)
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

    /// Returns the round, and the head of its front key: the first that resumes a turn, or else the
    /// first of the ring.
    pub(crate) fn round(&mut self) -> Option<WithFront<'_, K>> {
        let round = self.round.get()?;
        let front = round.resuming.first().or(round.ring.first())?;
        Some((round, front))
    }

    /// Returns whether a waiter is the head of the front key.
    pub(crate) fn is_front(&mut self, waiter: NonNull<Waiter<K>>) -> bool {
        self.round().is_some_and(|(_, front)| front == waiter)
    }

    /// Returns whether a single key is in the round.
    fn is_alone(&mut self) -> bool {
        let is_alone = |round: &mut Round<_>| round.ring.first() == round.ring.last();
        self.round.get().is_some_and(is_alone)
    }

    /// Returns the head of the front key and its credit, if it is alone in the round.
    pub(crate) fn lone_front(&mut self) -> Option<(NonNull<Waiter<K>>, u64)> {
        let (_, front) = self.round()?;
        let is_alone = self.is_alone();
        // SAFETY: the front is linked, so it is valid.
        let credit = unsafe { self.turn(front) }?.credit;
        is_alone.then_some((front, credit))
    }

    /// Returns the turn of a waiter's key, if the waiter is the head of a key of the round.
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

    /// Returns whether a waiter is the head of a key that waits for the total alone.
    ///
    /// # Safety
    ///
    /// The contract is that of `get`.
    pub(crate) unsafe fn is_ready(&mut self, waiter: NonNull<Waiter<K>>) -> bool {
        // SAFETY: the caller guarantees the contract of `get`.
        unsafe { self.turn(waiter) }.is_some_and(|turn| turn.phase != Phase::Cut)
    }

    /// Makes a key ready, whose own limit grants the request of its head since the given instant.
    /// If its turn was cut, it resumes it; otherwise it joins at the back, without credit.
    ///
    /// # Safety
    ///
    /// The waiter is the head of a list, and not ready.
    pub(crate) unsafe fn make_ready(&mut self, head: NonNull<Waiter<K>>, since: Timestamp) {
        // SAFETY: the head is linked, as the caller guarantees, so it is valid and its locked
        // fields belong to the holder of the lock. A turn that was cut is in the ring, and in no
        // ring of those that resume.
        unsafe {
            let Some(turn) = self.turn(head) else {
                return self.join(head, since);
            };
            (turn.since, turn.phase) = (since, Phase::Resumes);
            if let Some(round) = self.round.get() {
                round.resuming.push_back(head);
            }
        }
    }

    /// Puts a key at the back of the round.
    ///
    /// # Safety
    ///
    /// The waiter is the head of a list, and not in the round.
    unsafe fn join(&mut self, head: NonNull<Waiter<K>>, since: Timestamp) {
        // SAFETY: the head is linked, as the caller guarantees, so it is valid and its locked
        // fields belong to the holder of the lock. Its turn is set before it enters the ring.
        unsafe {
            if self.round.get().is_none() {
                self.round.set(Some(Round::EMPTY));
            }
            let Some(round) = self.round.get() else {
                return;
            };
            (round.keys, round.passes) = (round.keys + 1, Passes::NONE);
            let skipped = round.skipped;
            self.get(head).round.set(Some(Turn {
                links: RingLinks::UNLINKED,
                resuming: RingLinks::UNLINKED,
                credit: 0,
                since,
                phase: Phase::Ready,
                fruitless: 1,
                weight: 0,
                skipped,
            }));
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
        // exactly if it is in the ring, and its phase tells whether it is among those that resume.
        unsafe {
            let Some(&mut Turn { phase, .. }) = self.turn(head) else {
                return;
            };
            if let Some(round) = self.round.get() {
                round.is_open &= round.ring.first() != Some(head);
                (round.keys, round.passes) = (round.keys - 1, Passes::NONE);
                round.ring.remove(head);
                if phase == Phase::Resumes {
                    round.resuming.remove(head);
                }
                if round.ring.is_empty() {
                    self.round.set(None);
                }
            }
            self.get(head).round.set(None);
        }
    }

    /// Makes `head` the head of a key of the round in place of `old`, if that was one. It takes
    /// over the turn.
    ///
    /// # Safety
    ///
    /// `old` is, or was until now, the head of a list, and is not settled. `head` is the head of
    /// that list now.
    pub(crate) unsafe fn hand_turn(&mut self, old: NonNull<Waiter<K>>, head: NonNull<Waiter<K>>) {
        // SAFETY: both are linked or not yet settled, as the caller guarantees. A waiter has a turn
        // exactly if it is in the ring; that of `head` is set before it enters.
        unsafe {
            let Some(turn) = self.turn(old) else {
                return;
            };
            let turn = Turn {
                links: RingLinks::UNLINKED,
                resuming: RingLinks::UNLINKED,
                ..*turn
            };
            let resumes = turn.phase == Phase::Resumes;
            self.get(head).round.set(Some(turn));
            if let Some(round) = self.round.get() {
                round.passes = Passes::NONE;
                round.ring.replace(old, head);
                if resumes {
                    round.resuming.replace(old, head);
                }
            }
            self.get(old).round.set(None);
        }
    }

    /// Takes from a key what it has saved for a request that has left its list without a grant, but
    /// for what its head may have saved itself.
    ///
    /// # Safety
    ///
    /// `head` is the head of a list.
    pub(crate) unsafe fn bound_credit(&mut self, head: NonNull<Waiter<K>>) {
        let Some(round) = self.round.get() else {
            return;
        };
        let (skipped, is_open) = (round.skipped, round.is_open);
        let is_open = is_open && round.ring.first() == Some(head);
        // SAFETY: the head is linked, as the caller guarantees, so it is filled and its request
        // does not change.
        unsafe {
            let needed = Waiter::asks(head).1.room();
            if let Some(turn) = self.turn(head) {
                let is_in_turn = is_open || turn.phase != Phase::Ready;
                let of_turn = if is_in_turn { turn.weight.into() } else { 0 };
                let saved = turn.credit.saturating_add(turn.miss(skipped));
                turn.credit = saved.min((needed - 1).saturating_add(of_turn));
            }
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
        let is_alone = self.is_alone();
        let Some(round) = self.round.get() else {
            return u64::MAX;
        };
        let begins = round.resuming.is_empty() && !round.is_open;
        let skipped = round.skipped;
        // If it panics, the turn has not begun.
        let weight = if begins { weight().max(1) } else { 0 };
        round.is_open |= begins;
        // SAFETY: the front is linked, as the caller guarantees.
        let Some(turn) = (unsafe { self.turn(front) }) else {
            return u64::MAX;
        };
        if begins {
            // What is left of a turn that was cut is lost.
            let saved = match core::mem::replace(&mut turn.phase, Phase::Ready) {
                Phase::Cut => 0,
                Phase::Ready | Phase::Resumes => turn.credit,
            };
            let missed = turn.miss(skipped);
            turn.credit = saved.saturating_add(missed + u64::from(weight));
            turn.weight = weight;
            turn.fruitless = if missed > 0 {
                2
            } else {
                2.min(turn.fruitless + 1)
            };
        }
        if is_alone { u64::MAX } else { turn.credit }
    }

    /// Charges what a key was granted to its credit, at least 1.
    ///
    /// # Safety
    ///
    /// The waiter is the head of a key of the round.
    pub(crate) unsafe fn pay(&mut self, head: NonNull<Waiter<K>>, granted: u32) {
        // SAFETY: the head is linked, as the caller guarantees.
        if let Some(turn) = unsafe { self.turn(head) } {
            turn.credit = turn.credit.saturating_sub(granted.max(1).into());
            turn.fruitless = 0;
        }
    }

    /// Cuts the turn of the front key, whose own limit denies: the key keeps its credit, and its
    /// next turn. If it is alone, or had no grant since the turn before, it leaves the round
    /// instead.
    ///
    /// # Safety
    ///
    /// `front` is the head of the front key.
    pub(crate) unsafe fn cut_turn(&mut self, front: NonNull<Waiter<K>>) {
        let is_alone = self.is_alone();
        // SAFETY: the front is linked, as the caller guarantees.
        unsafe {
            match self.turn(front) {
                Some(turn) if !is_alone && turn.fruitless < 2 => {
                    self.end_turn(front);
                    if let Some(turn) = self.turn(front) {
                        turn.phase = Phase::Cut;
                    }
                    if let Some(round) = self.round.get() {
                        round.passes = Passes::NONE;
                    }
                }
                _ => self.leave_round(front),
            }
        }
    }

    /// Passes the turn of the front key, whose credit is less than the `needed` one.
    ///
    /// # Safety
    ///
    /// `front` is the head of the front key.
    pub(crate) unsafe fn pass_turn(&mut self, front: NonNull<Waiter<K>>, needed: u64) {
        // SAFETY: the caller guarantees that the front is linked, and the contract of `end_turn`.
        let (passed, turn) = unsafe { (self.end_turn(front), self.turn(front)) };
        let turns = turn.map_or(1, |turn| {
            let lacks = needed.saturating_sub(turn.credit);
            lacks.div_ceil(turn.weight.max(1).into())
        });
        if let Some(round) = self.round.get().filter(|_| passed) {
            round.count_pass(turns);
        }
    }

    /// Ends the turn of the front key. Moves the key to the back, and returns `true`; if it has
    /// resumed a turn, it stays where it is in the ring.
    ///
    /// # Safety
    ///
    /// `front` is the head of the front key.
    unsafe fn end_turn(&mut self, front: NonNull<Waiter<K>>) -> bool {
        // SAFETY: the front is linked, as the caller guarantees. Its phase tells whether it is
        // among those that resume.
        unsafe {
            let Some(turn) = self.turn(front) else {
                return false;
            };
            let resumes = core::mem::replace(&mut turn.phase, Phase::Ready) == Phase::Resumes;
            let Some(round) = self.round.get() else {
                return false;
            };
            if resumes {
                round.resuming.remove(front);
            } else {
                round.is_open = false;
                round.ring.rotate();
            }
            !resumes
        }
    }
}
