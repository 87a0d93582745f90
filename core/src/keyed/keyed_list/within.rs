//! Takes at a time that lies in an interval: see
//! [`LimiterExt::take_within`](crate::LimiterExt::take_within).
//!
//! Transition: a take, as in [`keyed_list`](super). If each limit decides alike at every instant of
//! the interval, up to the first that denies, and each next state is the same, then so are the
//! decision of the list and its states.

use core::hash::BuildHasher;

use super::{KeyedList, Progress};
use crate::all_of::DeniedBy;
use crate::keyed::line::{self, Address, Line, Words};
use crate::keyed::rule_list::RuleList;
use crate::limiter::receipt::Receipt;
use crate::time::interval::Interval;
use crate::word::STATE_AT;

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> KeyedList<L, M, S> {
    /// Takes `n` permits of each limit at a time that lies in `interval`, if it does not matter
    /// where.
    ///
    /// A key that has no entry in its preferred place depends on the time: so does a claim.
    #[inline(always)]
    pub(super) fn take_each_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<Receipt, DeniedBy>> {
        let (words, slots, decision) = self.decide_within(address, interval, n)?;
        let left = match decision {
            Ok(left) => left,
            Err(by) => return Some(Err(by)),
        };
        let (tag, now) = (address.tag(), interval.earliest());
        let count = if n > 0 { self.rules.count() } else { 0 };
        // The lead, which is the first, comes last.
        for taken in 0..count {
            let nth = count - 1 - taken;
            let exchange = (slots.as_ref().get(nth), left.as_ref().get(nth));
            if let (Some(word), (Some(&before), Some(&after))) = (words.get(nth), exchange) {
                if !word.exchange(before, after << STATE_AT | line::held_under(tag)) {
                    // Another call has changed the word, so the time decides.
                    if taken > 0 {
                        self.undo(&Progress { words, taken, left }, tag, now, n);
                    }
                    return None;
                }
            }
        }
        Some(Ok(self.receipt(left, now, n)))
    }

    /// Returns what [`take_each_within`](Self::take_each_within) would decide. Writes nothing.
    pub(super) fn look_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<(), DeniedBy>> {
        let (_, _, decision) = self.decide_within(address, interval, n)?;
        Some(decision.map(|_| ()))
    }

    /// The key's entry, its slots, and the states that a grant leaves, or the denial.
    #[inline(always)]
    #[expect(clippy::type_complexity, reason = "a type for two callers")]
    fn decide_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<(Words<'_>, L::States, Result<L::States, DeniedBy>)> {
        let (words, lead) = self.find_preferred(address, interval.latest())?;
        let slots = self.slots_after(lead, words, address.tag())?;
        let states = Self::states_of(slots);
        let decision = self.rules.judge_within(states, interval, n)?;
        Some((words, slots, decision))
    }
}
