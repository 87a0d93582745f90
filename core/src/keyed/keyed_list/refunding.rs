//! Refunds of a grant by its receipt.
//!
//! State: a receipt has one note for all limits: the sum of the notes of each. That of a token
//! bucket is the state that the take left, that of a window its end, and that of a concurrency
//! limit is 0.
//!
//! Transition: if the sum for the present states is that of the receipt, each limit refunds as it
//! does alone, the lead last. Otherwise only the concurrency limits do. If another call takes in
//! between, some limits refund and others do not. Then the permits count as refunded, and the
//! others have fewer until theirs come back by time.
//!
//! Invariant: while a receipt is valid, no note is less than the take left it. A bucket moves only
//! forward, except by an undo or a refund of a later take, which ends no further back than that
//! take began. The end of a window never moves back. So the sums are equal only if all notes are.
//!
//! Notes wrap in the word. They are compared as distances from the notes of limits that were fresh
//! at the time of the grant. If the distances add up to less than the range of the word, so do
//! those of the notes that the take left, and equal sums mean equal notes. Otherwise nothing is
//! refunded.

use core::hash::BuildHasher;

use super::KeyedList;
use crate::keyed::line::{Address, Line, Words};
use crate::keyed::rule_list::RuleList;
use crate::keyed::rule_list::sealed::Rules;
use crate::limiter::receipt::{Receipt, Refund};
use crate::time::timestamp::Timestamp;
use crate::word::{KeyedWord, Word};

/// A note that is no sum of notes.
const USED: u64 = u64::MAX;

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> KeyedList<L, M, S> {
    /// The receipt of a grant of `n` permits at `now` that left these states.
    #[inline(always)]
    pub(super) fn receipt(&self, left: L::States, now: Timestamp, n: u32) -> Receipt {
        if n > 0 {
            self.rules.receipt(left, now)
        } else {
            Receipt::NONE
        }
    }

    /// Refunds `n` permits to each limit.
    pub(super) fn refund_each(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        receipt: Receipt,
    ) -> Refund {
        let tag = address.tag();
        let found = self.find_to_change(address, now);
        // Without its lead, an entry that another call settles: permits are released all the same.
        let Some(words) = found.or_else(|| self.search(address)) else {
            return receipt.refunded(0);
        };
        let states = self.slots_in(words, tag).map(Self::states_of);
        let is_whole = states.is_some_and(|states| self.is_as_left(states, now, n, &receipt));
        let states = states.unwrap_or(L::NO_STATES);
        let (mut note, mut is_any, mut are_all) = (0, false, true);
        for limit in self.order() {
            let (Some(rules), Some(&state)) = (self.rules.get(limit), states.as_ref().get(limit))
            else {
                continue;
            };
            if is_whole || rules.releases() {
                let own = Receipt::dated(rules.note(state), receipt.time());
                match self.refund_one(words, limit, rules, tag, (now, n, &own)) {
                    Some(state) => {
                        note += rules.note(state);
                        is_any |= is_whole;
                    }
                    None => are_all = false,
                }
            }
        }
        match (is_any, are_all) {
            (false, _) => receipt.refunded(0),
            (true, true) => Receipt::dated(note, receipt.time()).refunded(n),
            // Another call took from the other limits, which stay lower. The sum would not show
            // that, so the rest of the grant is not refunded.
            (true, false) => Receipt::dated(USED, receipt.time()).refunded(n),
        }
    }

    /// Whether all limits are as the grant left them, so that each can refund `n` permits.
    fn is_as_left(&self, states: L::States, now: Timestamp, n: u32, receipt: &Receipt) -> bool {
        let taken_at = Timestamp::from_nanos(receipt.time());
        let (mut sum, mut ahead) = (0, 0);
        let can_refund = self
            .limits()
            .zip(states.as_ref())
            .all(|((_, rules), &state)| {
                let note = rules.note(state);
                sum += note;
                if !rules.releases() {
                    ahead += note.wrapping_sub(rules.fresh(taken_at)) & KeyedWord::MASK;
                }
                let own = Receipt::dated(note, receipt.time());
                rules.refund(state, now, n, &own).is_some()
            });
        can_refund && sum == receipt.note() && ahead <= KeyedWord::MASK
    }

    /// Refunds to one limit. Returns the state that it leaves.
    fn refund_one(
        &self,
        words: Words<'_>,
        limit: usize,
        rules: &dyn Rules,
        tag: u64,
        (now, n, receipt): (Timestamp, u32, &Receipt),
    ) -> Option<u64> {
        let word = self.word(words, limit)?;
        loop {
            let held = word.held_as(tag)?;
            let restored = rules.refund(held.state(), now, n, receipt)?;
            if word.change(held, restored).is_ok() {
                return Some(restored);
            }
        }
    }
}
