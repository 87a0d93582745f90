//! Decisions over time, in a fixed number of rows that grow coarser as the log goes on.

use core::ops::Add;

/// The number of allowed and denied requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Allowed.
    pub(crate) allowed: u64,
    /// Denied.
    pub(crate) denied: u64,
}

impl Tally {
    /// Counts one decision.
    pub(crate) fn count(&mut self, allowed: bool) {
        if allowed {
            self.allowed += 1;
        } else {
            self.denied += 1;
        }
    }

    /// Returns the sum of all decisions.
    pub(crate) fn sum(self) -> u64 {
        self.allowed + self.denied
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
        }
    }
}

/// The largest number of rows.
const ROWS: usize = 32;

/// The possible widths of a row, in seconds; each divides the next. Beyond them, the width doubles.
const WIDTHS: [u64; 13] = [
    1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400,
];

/// Decisions over time, on the grid of the Unix epoch.
#[derive(Debug)]
pub(crate) struct Timeline {
    width: u64,
    /// The number of the first row: its start time divided by the width.
    first: u64,
    rows: Vec<Tally>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            width: WIDTHS[0],
            first: 0,
            rows: Vec::new(),
        }
    }
}

impl Timeline {
    /// Counts a decision at `time`, in seconds since the Unix epoch. Times never go back.
    pub(crate) fn add(&mut self, time: u64, allowed: bool) {
        if self.rows.is_empty() {
            self.first = time / self.width;
        }
        while time / self.width - self.first >= ROWS as u64 {
            self.coarsen();
        }
        let row = (time / self.width - self.first) as usize;
        if row >= self.rows.len() {
            self.rows.resize(row + 1, Tally::default());
        }
        self.rows[row].count(allowed);
    }

    fn coarsen(&mut self) {
        let width = WIDTHS
            .into_iter()
            .find(|&width| width > self.width)
            .unwrap_or(self.width * 2);
        let factor = width / self.width;
        let first = self.first / factor;
        let mut rows = Vec::with_capacity(ROWS);
        for (row, &tally) in (self.first..).zip(&self.rows) {
            let place = (row / factor - first) as usize;
            rows.resize(place + 1, Tally::default());
            rows[place] = rows[place] + tally;
        }
        *self = Self { width, first, rows };
    }

    /// Returns the number of seconds in a row.
    pub(crate) fn width(&self) -> u64 {
        self.width
    }

    /// Returns the decisions in each row of `whole`, which has all decisions of `self`. So its rows
    /// are at least as wide.
    pub(crate) fn sums_on(&self, whole: &Self) -> Vec<u64> {
        let mut sums = vec![0; whole.rows.len()];
        for (start, tally) in self.rows() {
            let place = (start / whole.width).checked_sub(whole.first);
            if let Some(sum) = place.and_then(|place| sums.get_mut(place as usize)) {
                *sum += tally.sum();
            }
        }
        sums
    }

    /// Returns the rows, each with its start time in seconds since the Unix epoch.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u64, Tally)> {
        (self.first..)
            .map(|row| row * self.width)
            .zip(self.rows.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a timeline of `times` in which every third request is denied.
    fn timeline(times: &[u64]) -> Timeline {
        let mut timeline = Timeline::default();
        for (index, &time) in times.iter().enumerate() {
            timeline.add(time, index % 3 != 0);
        }
        timeline
    }

    #[test]
    fn every_width_divides_the_next() {
        assert!(
            WIDTHS
                .windows(2)
                .all(|pair| pair[1] > pair[0] && pair[1] % pair[0] == 0)
        );
    }

    #[test]
    fn rows_are_bounded_and_contain_each_decision_at_its_time() {
        for step in [0, 1, 7, 61, 3_599, 100_003, 400_000_000] {
            let times: Vec<u64> = (0..40).map(|index| 1_431_857_103 + index * step).collect();
            let timeline = timeline(&times);
            let rows: Vec<_> = timeline.rows().collect();
            assert!(rows.len() <= ROWS, "{} rows", rows.len());
            for &(start, tally) in &rows {
                assert_eq!(start % timeline.width(), 0);
                let within =
                    |(_, time): &(usize, &u64)| (start..start + timeline.width()).contains(*time);
                let expected = times.iter().enumerate().filter(within).fold(
                    Tally::default(),
                    |mut sum, (index, _)| {
                        sum.count(index % 3 != 0);
                        sum
                    },
                );
                assert_eq!(tally, expected, "step {step}, row at {start}");
            }
            assert_eq!(rows.iter().map(|(_, tally)| tally.sum()).sum::<u64>(), 40);
        }
    }

    #[test]
    fn a_part_of_the_decisions_lies_in_the_rows_of_the_whole() {
        let times: Vec<u64> = (0..400).map(|index| 1_431_857_103 + index * 97).collect();
        let (whole, part) = (timeline(&times), timeline(&times[100..140]));
        assert!(part.width() < whole.width());
        let sums = part.sums_on(&whole);
        for ((start, _), sum) in whole.rows().zip(&sums) {
            let within = |time: &&u64| (start..start + whole.width()).contains(*time);
            assert_eq!(times[100..140].iter().filter(within).count() as u64, *sum);
        }
        assert_eq!(sums.iter().sum::<u64>(), 40);
    }

    #[test]
    fn one_request_in_the_far_future_does_not_need_more_rows() {
        let timeline = timeline(&[0, 1, 2, 18_446_744_073]);
        assert!(timeline.rows().count() <= ROWS);
        assert_eq!(
            timeline.rows().next(),
            Some((
                0,
                Tally {
                    allowed: 2,
                    denied: 1
                }
            ))
        );
    }
}
