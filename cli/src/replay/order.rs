//! Sorts lines by their times.
//!
//! A server writes a line when a request ends, and some servers write the time at which it began.
//! So lines are out of order. [`Order`] holds lines for a horizon. It passes a line on when the
//! newest time read is more than the horizon ahead of it. A line that is later than the horizon
//! passes at once.
//!
//! The horizon is divided into slots of equal length, in a ring. A line is appended to the slot of
//! its time, which takes the same time for busy and quiet logs. A slot is sorted, if necessary,
//! when it is passed on. Memory is bounded by the lines of one horizon and one slot.

use core::mem;
use std::collections::VecDeque;

/// A line that waits to be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Milliseconds since the Unix epoch.
    pub(crate) time: u64,
    /// The cost of the request if bytes are charged.
    pub(crate) bytes: u64,
    /// The number of the key.
    pub(crate) key: u32,
    /// The number of the log. Lines with equal times come in the order of these numbers, and within
    /// a log in its order.
    pub(crate) log: u32,
}

/// The number of slots in a horizon, unless they would be shorter than [`SHORTEST`].
const SLOTS: u64 = 128;

/// The shortest slot, in milliseconds: most logs have no finer resolution.
const SHORTEST: u64 = 1_000;

/// Sorts lines by their times.
#[derive(Debug)]
pub(crate) struct Order {
    /// The horizon in milliseconds. `None` keeps lines in the order of arrival.
    horizon: Option<u64>,
    /// The length of a slot in milliseconds.
    width: u64,
    /// The number of the first slot: its start time divided by the width.
    first: u64,
    slots: VecDeque<Slot>,
    /// Emptied slots, whose memory is reused.
    spare: Vec<Vec<Record>>,
    /// The newest time read.
    newest: u64,
    /// How far a line was behind the newest time, at most, in milliseconds.
    behind: u64,
    held: usize,
    most_held: usize,
}

#[derive(Debug, Default)]
struct Slot {
    records: Vec<Record>,
    /// Whether a line arrived before a line that precedes it in time.
    unordered: bool,
}

impl Order {
    /// Creates a sorter that holds lines for `horizon` milliseconds, or not at all.
    pub(crate) fn new(horizon: Option<u64>) -> Self {
        Self {
            horizon,
            width: horizon.unwrap_or(0).div_ceil(SLOTS).max(SHORTEST),
            first: 0,
            slots: VecDeque::new(),
            spare: Vec::new(),
            newest: 0,
            behind: 0,
            held: 0,
            most_held: 0,
        }
    }

    /// Takes the next line of the log, and passes to `judge` the lines that are due.
    ///
    /// # Errors
    ///
    /// Returns the first error of `judge`.
    pub(crate) fn push<E>(
        &mut self,
        record: Record,
        mut judge: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(horizon) = self.horizon else {
            self.newest = self.newest.max(record.time);
            self.behind = self.behind.max(self.newest - record.time);
            return judge(record);
        };
        let slot = record.time / self.width;
        if record.time > self.newest {
            self.newest = record.time;
            let first = self.newest.saturating_sub(horizon) / self.width;
            while self.first < first {
                let Some(slot) = self.slots.pop_front() else {
                    self.first = first;
                    break;
                };
                self.first += 1;
                self.go(slot, &mut judge)?;
            }
        } else {
            self.behind = self.behind.max(self.newest - record.time);
            if slot < self.first {
                return judge(record);
            }
        }
        let place = (slot - self.first) as usize;
        while self.slots.len() <= place {
            self.slots.push_back(Slot {
                records: self.spare.pop().unwrap_or_default(),
                unordered: false,
            });
        }
        let slot = &mut self.slots[place];
        if let Some(last) = slot.records.last() {
            slot.unordered |= (record.time, record.log) < (last.time, last.log);
        }
        slot.records.push(record);
        self.held += 1;
        self.most_held = self.most_held.max(self.held);
        Ok(())
    }

    /// Passes all remaining lines to `judge`.
    ///
    /// # Errors
    ///
    /// Returns the first error of `judge`.
    pub(crate) fn finish<E>(
        &mut self,
        mut judge: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        for slot in mem::take(&mut self.slots) {
            self.go(slot, &mut judge)?;
        }
        Ok(())
    }

    fn go<E>(
        &mut self,
        mut slot: Slot,
        judge: &mut impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        if slot.unordered {
            slot.records.sort_by_key(|record| (record.time, record.log));
        }
        self.held -= slot.records.len();
        for record in slot.records.drain(..) {
            judge(record)?;
        }
        if slot.records.capacity() > 0 {
            self.spare.push(slot.records);
        }
        Ok(())
    }

    /// Returns how far a line was behind the newest time before it, at most, in milliseconds.
    pub(crate) fn behind(&self) -> u64 {
        self.behind
    }

    /// Returns how many lines were held at once, at most.
    pub(crate) fn most_held(&self) -> usize {
        self.most_held
    }
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;

    use super::*;

    fn sorted(horizon: Option<u64>, records: &[Record]) -> (Vec<Record>, Order) {
        let mut order = Order::new(horizon);
        let mut out = Vec::new();
        let mut judge = |record| {
            out.push(record);
            Ok::<_, Infallible>(())
        };
        for &record in records {
            order.push(record, &mut judge).unwrap();
        }
        order.finish(&mut judge).unwrap();
        (out, order)
    }

    /// Generates lines whose times advance by up to `step` milliseconds and are late by up to
    /// `late`, from `logs` logs.
    fn records(count: u32, step: u64, late: u64, logs: u32) -> Vec<Record> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut time = 1_431_857_103_000;
        (0..count)
            .map(|key| {
                time += random(step + 1);
                Record {
                    time: time - random(late + 1),
                    bytes: 0,
                    key,
                    log: random(logs.into()) as u32,
                }
            })
            .collect()
    }

    #[test]
    fn lines_within_the_horizon_are_sorted_by_time_log_and_line() {
        for horizon in [1, 999, 1_000, 59_001, 60_000, 3_600_000] {
            for (step, logs) in [(0, 1), (7, 3), (2_500, 2), (40_000, 1)] {
                let records = records(5_000, step, horizon, logs);
                let mut expected = records.clone();
                expected.sort_by_key(|record| (record.time, record.log));
                let (out, order) = sorted(Some(horizon), &records);
                assert_eq!(out, expected, "horizon {horizon}, step {step}");
                assert!(order.behind() <= horizon);
            }
        }
    }

    #[test]
    fn a_line_later_than_the_horizon_is_kept_and_delays_no_other() {
        const HORIZON: u64 = 60_000;
        let records = records(5_000, 100, 300_000, 1);
        let mut newest = 0;
        let mut in_time = vec![false; records.len()];
        for record in &records {
            newest = newest.max(record.time);
            in_time[record.key as usize] = newest - record.time <= HORIZON;
        }
        assert!(in_time.contains(&true) && in_time.contains(&false));
        let (mut out, order) = sorted(Some(HORIZON), &records);
        assert!(order.behind() > HORIZON);
        let ordered = out.iter().filter(|record| in_time[record.key as usize]);
        assert!(ordered.is_sorted_by_key(|record| record.time));
        out.sort_by_key(|record| record.key);
        assert_eq!(out, records);
    }

    #[test]
    fn without_a_horizon_lines_stay_in_the_order_of_the_log() {
        let records = records(1_000, 100, 300_000, 1);
        let (out, order) = sorted(None, &records);
        assert_eq!(out, records);
        assert_eq!(order.most_held(), 0);
    }

    #[test]
    fn memory_is_bounded_by_the_lines_of_one_horizon_and_one_slot() {
        for (horizon, slot) in [(60_000, 1_000), (3_600_000, 28_125)] {
            let records = records(300_000, 200, 50_000, 1);
            let (_, order) = sorted(Some(horizon), &records);
            let mut times: Vec<u64> = records.iter().map(|record| record.time).collect();
            times.sort_unstable();
            let within = |&start: &u64| {
                let before = |end: u64| times.partition_point(|&time| time < end);
                before(start + horizon + slot + 1) - before(start)
            };
            let most = times.iter().map(within).max().unwrap();
            assert!(order.most_held() > 100);
            assert!(order.most_held() <= most, "{} > {most}", order.most_held());
            assert!(most < records.len() / 2, "the test is not significant");
            // Emptied slots are reused.
            let spare: usize = order.spare.iter().map(Vec::capacity).sum();
            assert!(spare <= 8 * most, "{spare} places for {most} lines");
        }
    }

    #[test]
    fn a_gap_of_years_takes_no_slots() {
        let at = |time| Record {
            time,
            bytes: 0,
            key: 0,
            log: 0,
        };
        let records = [at(0), at(18_446_744_073_709), at(5), at(18_446_744_000_000)];
        let (out, order) = sorted(Some(100_000), &records);
        assert_eq!(out, [records[0], records[2], records[3], records[1]]);
        assert!(order.spare.len() <= 130);
    }
}
