//! What keys need: how many permits each asks for in a second, a minute, an hour and a day, at
//! most.
//!
//! **State.** For each key the permits of each second of its last minute, those of this hour and
//! of this day, and the four maxima.
//!
//! **Abuse.** A client that guesses passwords needs far more than any other. A limit that allows
//! its requests is too high to stop it. So keys look like abuse if a gap separates them from all
//! others in one of these spans, or if one has a large share of all requests: see [`apart`]. A
//! steady decline has no gap, however long it is.

use core::cmp::Reverse;
use std::collections::VecDeque;

use portcullis_policy::Limit;

use super::timeline::{Tally, Timeline};
use crate::text::{grouped, share};

/// The lengths of spans, in seconds.
const MINUTE: u64 = 60;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

/// What one key asked of one rule.
#[derive(Default)]
pub(crate) struct Client {
    pub(crate) tally: Tally,
    pub(crate) need: Need,
    pub(crate) timeline: Timeline,
    /// The limits that the key has in place of those of the rule.
    pub(crate) own_limits: Option<Box<[Limit]>>,
}

impl Client {
    /// Counts a request for `permits` at a time in seconds.
    pub(crate) fn count(&mut self, second: u64, permits: u64, is_allowed: bool) {
        self.tally.count(is_allowed);
        self.need.add(second, permits);
        self.timeline.add(second, is_allowed);
    }
}

/// The most permits that a key has asked for in any 60 consecutive seconds, and in a second, an
/// hour and a day of the clock, in UTC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Need {
    pub(crate) minute: u64,
    pub(crate) second: u64,
    pub(crate) hour: u64,
    pub(crate) day: u64,
    /// The seconds of the last minute, each with its permits, and their sum.
    recent: VecDeque<(u64, u64)>,
    sum: u64,
    this_hour: Current,
    this_day: Current,
}

/// The permits of the span of the clock that is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Current {
    number: u64,
    sum: u64,
}

impl Current {
    /// Adds permits to the span with this number. Returns its sum.
    fn add(&mut self, number: u64, permits: u64) -> u64 {
        if self.number != number {
            *self = Self { number, sum: 0 };
        }
        self.sum = self.sum.saturating_add(permits);
        self.sum
    }
}

impl Need {
    /// Adds a request for `permits` at a time in seconds. Times never go back.
    pub(crate) fn add(&mut self, second: u64, permits: u64) {
        self.hour = self.hour.max(self.this_hour.add(second / HOUR, permits));
        self.day = self.day.max(self.this_day.add(second / DAY, permits));
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

/// How many times as much a key needs in a span as every other key, if it looks like abuse.
const TIMES: u64 = 3;

/// A key with a large share looks like abuse with one in this number of all requests, ...
const SHARE: u64 = 4;

/// ... and with so many times as many as the average of the others.
const TIMES_AVERAGE: u64 = 10;

/// By what a key looks like abuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Minute,
    Hour,
    Day,
    Share,
}

impl Sign {
    /// All signs, in the order in which they are looked for.
    const ALL: [Self; 4] = [Self::Minute, Self::Hour, Self::Day, Self::Share];

    /// Returns the name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Share => "share",
        }
    }

    /// Returns what `client` asked for, of which there are `total` requests of all keys.
    pub(crate) fn text(self, client: &Client, total: u64) -> String {
        match self {
            Self::Minute => format!("up to {} in a minute", grouped(client.need.minute)),
            Self::Hour => format!("up to {} in an hour", grouped(client.need.hour)),
            Self::Day => format!("up to {} in a day", grouped(client.need.day)),
            Self::Share => format!("{} of all", share(client.tally.sum(), total)),
        }
    }

    /// What of a key this sign compares.
    fn need(self, client: &Client) -> u64 {
        match self {
            Self::Minute => client.need.minute,
            Self::Hour => client.need.hour,
            Self::Day => client.need.day,
            Self::Share => client.tally.sum(),
        }
    }

    /// The need below which no key looks like abuse.
    fn least(self) -> u64 {
        match self {
            Self::Minute => 10,
            Self::Hour => 30,
            Self::Day | Self::Share => 100,
        }
    }

    /// Returns how many of the first of `needs`, at most `most`, have this sign. `needs` are
    /// sorted, the largest first. `total` is the number of requests of all keys.
    fn count(self, needs: &[u64], most: usize, total: u64) -> usize {
        let least = self.least();
        if self == Self::Share {
            let is_large = |&at: &usize| {
                let others: u128 = needs[at + 1..].iter().map(|&need| u128::from(need)).sum();
                let count = (needs.len() - at - 1) as u128;
                needs[at] >= least.max(total.div_ceil(SHARE))
                    && u128::from(needs[at]) * count >= others * u128::from(TIMES_AVERAGE)
            };
            return (0..most).take_while(is_large).count();
        }
        let is_gap =
            |&count: &usize| needs[count - 1] >= least.max(needs[count].saturating_mul(TIMES));
        (1..=most).rev().find(is_gap).unwrap_or(0)
    }
}

/// Returns the places of the keys that look like abuse, the greediest first, and by what.
///
/// These are keys that need, in a minute, an hour or a day, at least [`TIMES`] times as much as
/// every other key, and at least 10, 30 or 100. And it is a key with a quarter of all requests, at
/// least 100, that has at least 10 times as many as the average of the others. All together they
/// are at most one key in 20, or one. With fewer than 10 keys none does.
pub(crate) fn apart(clients: &[(&str, &Client)]) -> Vec<(usize, Sign)> {
    let mut found = Vec::new();
    if clients.len() < FEWEST_KEYS {
        return found;
    }
    let most = (clients.len() / ONE_IN).max(1);
    let total = total(clients);
    let mut rest: Vec<_> = (0..clients.len()).collect();
    for sign in Sign::ALL {
        let need = |at: &usize| sign.need(clients[*at].1);
        rest.sort_unstable_by_key(|at| (Reverse(need(at)), clients[*at].0));
        let needs: Vec<_> = rest.iter().map(need).collect();
        let count = sign.count(&needs, most - found.len(), total);
        found.extend(rest.drain(..count).map(|at| (at, sign)));
    }
    found
}

/// Returns the number of requests of all keys.
pub(crate) fn total(clients: &[(&str, &Client)]) -> u64 {
    clients.iter().map(|(_, client)| client.tally.sum()).sum()
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
        need.add(3_601, 4);
        assert_eq!((need.hour, need.day), (13, 17));
        need.add(3_601, u64::MAX);
        need.add(3_602, u64::MAX);
        assert_eq!((need.minute, need.second), (u64::MAX, u64::MAX));
    }

    /// Returns the needs that look like abuse, and by what.
    fn found(clients: &[Client]) -> Vec<(usize, Sign)> {
        apart(
            &clients
                .iter()
                .map(|client| ("", client))
                .collect::<Vec<_>>(),
        )
    }

    /// Keys that need so much in a minute.
    fn needing(needs: impl IntoIterator<Item = u64>) -> Vec<Client> {
        let clients = needs.into_iter().map(|minute| {
            let mut client = Client::default();
            client.need.minute = minute;
            client
        });
        clients.collect()
    }

    #[test]
    fn keys_look_like_abuse_if_a_gap_separates_them_from_all_others() {
        let with = |largest: &[u64], others: usize| {
            let others = (0..others).map(|at| 4 - at as u64 % 4);
            let found = found(&needing(largest.iter().copied().chain(others)));
            assert!(found.iter().all(|(_, sign)| *sign == Sign::Minute));
            found.len()
        };
        assert_eq!(with(&[40], 59), 1);
        assert_eq!(with(&[400, 40], 58), 2, "the lowest gap counts");
        assert_eq!(with(&[12], 59), 1);
        assert_eq!(with(&[11], 59), 0, "less than three times the others");
        assert_eq!(with(&[40; 4], 59), 0, "more than one in 20");
        assert_eq!(with(&[40], 8), 0, "too few keys to tell");
        assert_eq!(with(&[40, 20, 10, 8], 80), 0, "a decline without a gap");
        let seldom = needing([9].into_iter().chain([1; 59]));
        assert_eq!(found(&seldom), [], "less than 10 in a minute");
    }

    /// Keys with so many requests, spread over the time at this interval in seconds.
    fn spread(requests: &[u64], every: u64) -> Vec<Client> {
        let clients = requests.iter().map(|&requests| {
            let mut client = Client::default();
            (0..requests).for_each(|at| client.count(at * every, 1, true));
            client
        });
        clients.collect()
    }

    #[test]
    fn a_key_that_is_slow_looks_like_abuse_by_its_hour_its_day_or_its_share() {
        let with = |first: &[u64], others: u64, every: u64| {
            let requests = first.iter().copied().chain(vec![others; 59]);
            found(&spread(&requests.collect::<Vec<_>>(), every))
        };
        assert_eq!(with(&[100], 3, 60), [(0, Sign::Hour)], "60 in an hour");
        assert_eq!(with(&[29], 3, 60), [], "less than 30 in an hour");
        assert_eq!(with(&[100], 3, 800), [(0, Sign::Day)], "5 in an hour");
        assert_eq!(with(&[99], 3, 800), [], "less than 100 in a day");
        assert_eq!(with(&[400, 140], 3, 9_000), [(0, Sign::Share)]);
        assert_eq!(with(&[120, 400], 3, 9_000), [(1, Sign::Share)]);
        assert_eq!(
            with(&[400, 390], 3, 9_000),
            [(0, Sign::Share), (1, Sign::Share)]
        );
        assert_eq!(with(&[190], 10, 9_000), [], "less than a quarter");
        assert_eq!(found(&spread(&[400; 10], 9_000)), []);
        let few: Vec<_> = [330].into_iter().chain([90; 11]).collect();
        assert_eq!(
            found(&spread(&few, 9_000)),
            [],
            "less than 10 times the average"
        );
    }

    #[test]
    fn all_signs_together_take_at_most_one_key_in_twenty() {
        let mut clients = spread(&[3; 40], 60);
        for (at, needs) in [(0, [40, 40]), (1, [4, 90]), (2, [4, 90])] {
            [clients[at].need.minute, clients[at].need.hour] = needs;
        }
        assert_eq!(found(&clients), [(0, Sign::Minute)]);
        clients[2].need.hour = 3;
        assert_eq!(found(&clients), [(0, Sign::Minute), (1, Sign::Hour)]);
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
