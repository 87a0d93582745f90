//! Checks records against a bound.

use core::time::Duration;

use crate::text::{per_second, speed};

/// A grant or a lease, between two instants in nanoseconds on the trial's clock. For a grant, they
/// enclose the instant at which it counts. For a lease, they delimit a time for which it was
/// certainly held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The earliest instant.
    pub(crate) from: u64,
    /// The latest instant.
    pub(crate) to: u64,
    /// The number of permits.
    pub(crate) permits: u32,
}

/// The result of checking a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The bound held. The text says how close to the bound the records came.
    Held(String),
    /// The bound was broken. The text says what was observed.
    Broken(String),
}

impl Verdict {
    /// Returns whether the bound held.
    pub(crate) fn held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    /// Returns `other` if the bound held here and not there; otherwise returns `self`.
    pub(crate) fn or(self, other: Self) -> Self {
        if self.held() && !other.held() {
            other
        } else {
            self
        }
    }

    /// Returns `Broken(otherwise)` if the bound held and `also` is false; otherwise returns `self`.
    pub(crate) fn and(self, also: bool, otherwise: &str) -> Self {
        if self.held() && !also {
            Self::Broken(otherwise.into())
        } else {
            self
        }
    }
}

/// Checks every span of time that begins with one grant and ends with another, both included.
/// `allowed` returns the bound for a span, given its first and its last instant.
pub(crate) fn spans(mut records: Vec<Record>, allowed: impl Fn(u64, u64) -> u64) -> Verdict {
    records.sort_unstable_by_key(|record| record.to);
    let mut starts: Vec<u64> = records.iter().map(|record| record.from).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut nearest = (0, 1, 0);
    for start in starts {
        let after = records.partition_point(|record| record.to < start);
        let mut count = 0;
        for record in records[after..]
            .iter()
            .filter(|record| record.from >= start)
        {
            count += u64::from(record.permits);
            let (most, length) = (allowed(start, record.to), record.to - start);
            let (nearest_count, nearest_most, nearest_length) = nearest;
            let ratio = u128::from(count) * u128::from(nearest_most);
            // Of equal ratios, the longest span is the most informative.
            if (ratio, length) > (u128::from(nearest_count) * u128::from(most), nearest_length) {
                nearest = (count, most, length);
            }
        }
        let (count, most, length) = nearest;
        // The spans from one grant on are enough to show a broken bound.
        if count > most {
            return Verdict::Broken(span(count, most, length));
        }
    }
    let (count, most, length) = nearest;
    Verdict::Held(span(count, most, length))
}

fn span(count: u64, most: u64, length: u64) -> String {
    let (number, unit) = match length {
        0..10_000 => (length, "ns"),
        10_000..10_000_000 => (length / 1_000, "µs"),
        _ => (length / 1_000_000, "ms"),
    };
    let count = match count {
        0..100_000 => count.to_string(),
        _ => speed(per_second(count, Duration::from_secs(1))).replace(' ', ""),
    };
    format!("{count} of {most} in {number}{unit}")
}

/// Checks that no more than `limit` permits were held at once.
pub(crate) fn held_at_once(records: &[Record], limit: u64) -> Verdict {
    let mut changes: Vec<(u64, i64)> = records
        .iter()
        .filter(|record| record.from < record.to)
        .flat_map(|record| {
            let permits = i64::from(record.permits);
            [(record.from, permits), (record.to, -permits)]
        })
        .collect();
    // At equal instants, releases come before takes.
    changes.sort_unstable();
    let mut held = 0;
    let most = changes.iter().fold(0, |most, (_, change)| {
        held += change;
        most.max(held)
    });
    let most = most.unsigned_abs();
    let text = format!("{most} of {limit} at once");
    if most > limit {
        Verdict::Broken(text)
    } else {
        Verdict::Held(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(instants: &[u64]) -> Vec<Record> {
        instants
            .iter()
            .map(|&at| Record {
                from: at,
                to: at,
                permits: 1,
            })
            .collect()
    }

    /// A burst of 2, and one permit per 10 ns.
    fn bucket(from: u64, to: u64) -> u64 {
        2 + (to - from) / 10
    }

    #[test]
    fn one_grant_too_many_breaks_a_bound_at_any_position() {
        assert!(spans(at(&[10, 0, 20, 0, 30]), bucket).held());
        assert!(!spans(at(&[0, 0, 0]), bucket).held());
        assert!(!spans(at(&[0, 0, 9]), bucket).held());
        assert!(!spans(at(&[0, 50, 50, 60, 60, 69, 100]), bucket).held());
    }

    #[test]
    fn a_broken_bound_is_shown_by_the_span_that_exceeds_it_most() {
        assert_eq!(
            spans(at(&[0, 1, 2, 3, 4, 5, 100]), bucket),
            Verdict::Broken("6 of 2 in 5ns".into())
        );
        assert_eq!(span(1_234_567, 8, 1), "1.23M of 8 in 1ns");
    }

    #[test]
    fn a_span_is_bounded_by_the_windows_that_it_touches() {
        let windows = |from: u64, to: u64| 2 * (to / 100 - from / 100 + 1);
        assert!(spans(at(&[98, 99, 100, 101]), windows).held());
        assert!(!spans(at(&[98, 99, 100, 101, 199]), windows).held());
    }

    #[test]
    fn an_uncertain_grant_breaks_no_bound() {
        let mut records = at(&[0, 0]);
        records.push(Record {
            from: 0,
            to: 10,
            permits: 1,
        });
        assert!(spans(records.clone(), bucket).held());
        records.push(Record {
            from: 0,
            to: 9,
            permits: 1,
        });
        assert!(!spans(records, bucket).held());
    }

    #[test]
    fn the_span_closest_to_the_bound_is_shown_and_the_longest_of_equals() {
        assert_eq!(
            spans(at(&[0, 0, 50]), bucket),
            Verdict::Held("2 of 2 in 0ns".into())
        );
        assert_eq!(
            spans(at(&[0, 0, 10, 25]), bucket),
            Verdict::Held("4 of 4 in 25ns".into())
        );
        assert_eq!(span(7, 8, 99_900_000), "7 of 8 in 99ms");
        assert_eq!(
            spans(Vec::new(), bucket),
            Verdict::Held("0 of 1 in 0ns".into())
        );
    }

    #[test]
    fn overlapping_leases_add_up_and_adjacent_leases_do_not() {
        let lease = |from, to, permits| Record { from, to, permits };
        let leases = [lease(0, 10, 2), lease(10, 20, 3), lease(15, 16, 1)];
        assert_eq!(
            held_at_once(&leases, 4),
            Verdict::Held("4 of 4 at once".into())
        );
        assert_eq!(
            held_at_once(&leases, 3),
            Verdict::Broken("4 of 3 at once".into())
        );
        assert_eq!(
            held_at_once(&[lease(7, 7, 9), lease(9, 7, 9)], 1),
            Verdict::Held("0 of 1 at once".into())
        );
    }

    #[test]
    fn a_verdict_breaks_if_another_check_fails() {
        let held = Verdict::Held("fine".into());
        assert!(held.clone().and(true, "lost").held());
        let broken = held.clone().and(false, "lost");
        assert_eq!(broken, Verdict::Broken("lost".into()));
        assert_eq!(held.clone().or(broken.clone()), broken);
        assert_eq!(broken.clone().or(held), broken);
    }
}
