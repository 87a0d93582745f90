//! What keys need: how many permits each asks for in one minute and in one second, at most.
//!
//! **State.** For each key the permits of each second of its last minute, and the two maxima.
//!
//! **Abuse.** A client that guesses passwords needs far more than any other. A limit that allows
//! its requests is too high to stop it. So keys look like abuse if a gap separates them from all
//! others: see [`apart`]. A steady decline has no gap, however long it is.

use std::collections::VecDeque;

use super::timeline::{Tally, Timeline};

/// The length of the longer span, in seconds.
const MINUTE: u64 = 60;

/// What one key asked of one rule.
#[derive(Default)]
pub(crate) struct Client {
    pub(crate) tally: Tally,
    pub(crate) need: Need,
    pub(crate) timeline: Timeline,
}

impl Client {
    /// Counts a request for `permits` at a time in seconds.
    pub(crate) fn count(&mut self, second: u64, permits: u64, is_allowed: bool) {
        self.tally.count(is_allowed);
        self.need.add(second, permits);
        self.timeline.add(second, is_allowed);
    }
}

/// The most permits that a key has asked for in any 60 consecutive seconds, and in any second of
/// the clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Need {
    pub(crate) minute: u64,
    pub(crate) second: u64,
    /// The seconds of the last minute, each with its permits, and their sum.
    recent: VecDeque<(u64, u64)>,
    sum: u64,
}

impl Need {
    /// Adds a request for `permits` at a time in seconds. Times never go back.
    pub(crate) fn add(&mut self, second: u64, permits: u64) {
        while let Some(&(first, gone)) = self.recent.front()
            && first + MINUTE <= second
        {
            self.recent.pop_front();
            self.sum -= gone;
        }
        // A sum that does not fit would be above every limit anyway.
        let permits = permits.min(u64::MAX - self.sum);
        self.sum += permits;
        match self.recent.back_mut() {
            Some((last, count)) if *last == second => *count += permits,
            _ => self.recent.push_back((second, permits)),
        }
        let in_second = self.recent.back().map_or(0, |&(_, count)| count);
        self.second = self.second.max(in_second);
        self.minute = self.minute.max(self.sum);
    }
}

/// The number of keys from which abuse can be told from use.
const FEWEST_KEYS: usize = 10;

/// At most one key in this number looks like abuse.
const ONE_IN: usize = 20;

/// How many times as much a key needs in a minute as every other key, if it looks like abuse.
const TIMES: u64 = 3;

/// The need in a minute below which no key looks like abuse.
const LEAST: u64 = 10;

/// Returns how many of the first of `needs` look like abuse. `needs` are the needs of all keys in a
/// minute, the largest first.
///
/// These are keys that need at least 10 in a minute and at least [`TIMES`] times as many as every
/// other key, if they are at most one key in 20, or one. With fewer than 10 keys none does.
pub(crate) fn apart(needs: &[u64]) -> usize {
    if needs.len() < FEWEST_KEYS {
        return 0;
    }
    let most = (needs.len() / ONE_IN).max(1);
    let is_gap = |&count: &usize| needs[count - 1] >= LEAST.max(needs[count].saturating_mul(TIMES));
    (1..=most).rev().find(is_gap).unwrap_or(0)
}

/// The percentages of [`percentiles`].
pub(crate) const PERCENTAGES: [usize; 5] = [50, 90, 95, 99, 100];

/// Returns, for each of [`PERCENTAGES`], the [`percentile`].
pub(crate) fn percentiles(needs: &[u64]) -> [u64; 5] {
    PERCENTAGES.map(|percent| percentile(needs, percent))
}

/// Returns the smallest need that covers so many percent of the keys. `needs` are sorted, the
/// smallest first; without any, the result is 0.
pub(crate) fn percentile(needs: &[u64], percent: usize) -> u64 {
    let covered = (needs.len() * percent).div_ceil(100);
    covered.checked_sub(1).map_or(0, |last| needs[last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_need_in_a_minute_is_that_of_any_sixty_seconds() {
        let mut need = Need::default();
        for (second, permits) in [
            (0, 1),
            (59, 2),
            (60, 4),
            (60, 1),
            (118, 1),
            (119, 1),
            (200, 3),
        ] {
            need.add(second, permits);
        }
        // From 59 to 118: 2 + 5 + 1.
        assert_eq!((need.minute, need.second), (8, 5));
        need.add(200, u64::MAX);
        need.add(201, u64::MAX);
        assert_eq!((need.minute, need.second), (u64::MAX, u64::MAX));
    }

    #[test]
    fn keys_look_like_abuse_if_a_gap_separates_them_from_all_others() {
        let with = |largest: &[u64], others: usize| {
            let others = (0..others).map(|at| 4 - at as u64 % 4);
            let mut needs: Vec<_> = largest.iter().copied().chain(others).collect();
            needs.sort_unstable_by(|a, b| b.cmp(a));
            apart(&needs)
        };
        assert_eq!(with(&[40], 59), 1);
        assert_eq!(with(&[400, 40], 58), 2, "the lowest gap counts");
        assert_eq!(with(&[12], 59), 1);
        assert_eq!(with(&[11], 59), 0, "less than three times the others");
        assert_eq!(with(&[40; 4], 59), 0, "more than one in 20");
        assert_eq!(with(&[40], 8), 0, "too few keys to tell");
        assert_eq!(with(&[40, 20, 10, 8], 80), 0, "a decline without a gap");
        let seldom: Vec<_> = [9].into_iter().chain([1; 59]).collect();
        assert_eq!(apart(&seldom), 0, "less than 10 in a minute");
    }

    #[test]
    fn a_percentile_is_the_smallest_need_that_covers_the_keys() {
        assert_eq!(percentiles(&[]), [0; 5]);
        assert_eq!(percentiles(&[7]), [7; 5]);
        let hundred: Vec<_> = (1..=100).collect();
        assert_eq!(percentiles(&hundred), [50, 90, 95, 99, 100]);
        assert_eq!(percentiles(&[1, 2, 9]), [2, 9, 9, 9, 9]);
    }
}
