//! Slices: shares of a token bucket or a concurrency limit from which a thread takes on its own,
//! within the bound of the limit, whatever they hold and however long they are idle.

#[path = "support/account.rs"]
mod account;

#[path = "support/allocations.rs"]
mod allocations;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use account::Account;
use allocations::allocations;
use draws::Draws;
use portcullis_core::builder::Setting;
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::parts::{Slice, Sliceable};
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, Limiter, LimiterExt, Rate, Retry, SettingsError,
    SlicedBucket, Timestamp, TokenBucket,
};

const SECOND: Duration = Duration::from_secs(1);

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const fn ns(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Ten permits per second and a burst of twenty, `initial` of which are available at first.
fn bucket<W: Word>(initial: u64) -> SlicedBucket<W> {
    SlicedBucket::builder(Rate::per_second(10), 20)
        .initial(initial)
        .build_on()
        .unwrap()
}

/// Runs `$check` on both words.
macro_rules! on_both {
    ($check:ident) => {
        $check::<u64>();
        $check::<u32>();
    };
}

fn take<L: Limiter + ?Sized>(limiter: &L, now: Timestamp, n: u32) -> u32 {
    limiter.take_at(now, n).map_or(0, |_| n)
}

// The bound.

/// A take that may be refunded: where it counts, and the newest `now` before it.
struct Taken {
    n: u32,
    receipt: Receipt,
    instant: u64,
    newest: u64,
}

/// A random trace on one bucket and its slices, in which every grant is accounted for.
struct Trace<'a, W: Word> {
    bucket: &'a SlicedBucket<W>,
    slices: Vec<(Slice<&'a SlicedBucket<W>>, Option<Taken>)>,
    last: Option<Taken>,
    account: Account,
    /// The newest `now` written to the word, and the newest of all calls.
    written: u64,
    seen: u64,
    clock: u64,
    /// Recent times of calls.
    recent: [u64; 3],
    story: Vec<String>,
}

impl<W: Word> Trace<'_, W> {
    fn word(&self) -> String {
        format!("{:?}", self.bucket)
    }

    /// Records a call at `now` that took `n`; `before` is the word before it.
    fn granted(&mut self, before: &str, now: u64, n: u32, receipt: Receipt) -> Taken {
        let newest = self.written;
        let instant = now.max(newest);
        if self.word() != before {
            self.written = instant;
        }
        self.account.add(instant, n.into());
        Taken {
            n,
            receipt,
            instant,
            newest,
        }
    }

    /// Draws the time of a call, current or stale.
    fn now(&mut self, draws: &mut Draws<'_>) -> u64 {
        let (full, per_permit, stale, horizon) =
            times(self.bucket, self.account.period / self.account.permits);
        self.clock += match draws.below(12) {
            0 => draws.magnitude(2 * full),
            1 if draws.once_in(3) => draws.within(1, 2) * horizon - draws.magnitude(horizon / 64),
            1 if draws.once_in(3) => draws.magnitude(horizon / 2),
            // Up to the last instant at which a slice may take, or the next one.
            2 | 3 => nanos(self.bucket.hold()) + self.account.tick - draws.below(2),
            4 => draws.magnitude(4 * per_permit),
            _ => 0,
        };
        let late = match draws.below(8) {
            0 => draws.magnitude(stale),
            1 => draws.magnitude(stale.min(full)),
            // The time of a recent call.
            2 | 3 => {
                self.clock
                    - draws
                        .one_of(&self.recent)
                        .clamp(self.clock.saturating_sub(stale), self.clock)
            }
            _ => 0,
        };
        let now = self
            .clock
            .saturating_sub(late)
            .max(self.seen.saturating_sub(stale));
        self.recent[draws.below(3) as usize] = now;
        self.seen = self.seen.max(now);
        now
    }

    fn take(&mut self, now: u64, n: u32) {
        self.story.push(format!("take {n} at {now}"));
        let before = self.word();
        let peeked = self.bucket.peek_at(ns(now), n);
        let taken = self.bucket.take_at(ns(now), n);
        assert_eq!(
            peeked,
            taken.as_ref().map(|_| ()).map_err(|denied| *denied),
            "{:#?}",
            self.story
        );
        match taken {
            Ok(receipt) => self.last = Some(self.granted(&before, now, n, receipt)),
            Err(denied) => self.denied(self.bucket, &before, denied),
        }
    }

    /// Takes through a slice. A later refund is of the last take, or of an older one.
    fn take_by_slice(&mut self, index: usize, now: u64, n: u32, keep: bool) {
        let before = self.word();
        let (slice, last) = self.slices.remove(index);
        self.story
            .push(format!("slice {index} takes {n} of {slice:?} at {now}"));
        let (peeked, available) = (slice.peek_at(ns(now), n), slice.available_at(ns(now)));
        let taken = slice.take_at(ns(now), n);
        assert_eq!(
            peeked,
            taken.as_ref().map(|_| ()).map_err(|denied| *denied),
            "{:#?}",
            self.story
        );
        assert_eq!(taken.is_ok(), available >= n.into(), "{:#?}", self.story);
        assert!(slice.held() <= slice.size(), "{:#?}", self.story);
        let last = match taken {
            Ok(receipt) => {
                let newer = self.granted(&before, now, n, receipt);
                Some(last.filter(|_| keep).unwrap_or(newer))
            }
            Err(denied) => {
                self.denied(&slice, &before, denied);
                last
            }
        };
        self.slices.insert(index, (slice, last));
    }

    /// Takes all that a slice holds, at about the last instant that it may be taken, and then all
    /// that is available once the slice is dropped.
    fn empty(&mut self, draws: &mut Draws<'_>) {
        let index = draws.below(self.slices.len() as u64) as usize;
        self.clock += nanos(self.bucket.hold()) + draws.below(self.account.tick);
        self.seen = self.seen.max(self.clock);
        self.take_by_slice(index, self.clock, self.slices[index].0.held().max(1), false);
        self.story.push(format!("drop slice {index}"));
        drop(self.slices.remove(index));
        let rest = self.bucket.available_at(ns(self.clock)).max(1);
        self.take(self.clock, rest as u32);
    }

    fn step(&mut self, draws: &mut Draws<'_>) {
        let now = self.now(draws);
        let before = self.word();
        let burst = self.bucket.burst();
        match draws.below(9) {
            8 if !self.slices.is_empty() => self.empty(draws),
            0 | 1 => {
                let greedy = self.bucket.available_at(ns(now)).clamp(1, burst);
                let n = if draws.once_in(2) {
                    greedy
                } else {
                    draws.within(1, burst)
                };
                self.take(now, n as u32);
            }
            2 if self.slices.len() < 4 => {
                let k = draws.within(0, self.bucket.max_sliced()) as u32;
                self.story.push(format!("cut {k} at {now}"));
                match self.bucket.slice_at(ns(now), k) {
                    Ok(slice) => {
                        self.slices.push((slice, None));
                        if self.word() != before {
                            self.written = self.written.max(now);
                        }
                    }
                    Err(denied) => self.denied(self.bucket, &before, denied),
                }
            }
            3 if !self.slices.is_empty() => {
                let index = draws.below(self.slices.len() as u64) as usize;
                self.story.push(format!("drop slice {index}"));
                drop(self.slices.remove(index));
            }
            4 => {
                // The refundable part of the last take of the rest.
                let Some(taken) = self.last.take() else {
                    return;
                };
                let back = self
                    .bucket
                    .refund_at(ns(now), taken.n, taken.receipt)
                    .permits;
                self.story
                    .push(format!("refund {back} of {} at {now}", taken.n));
                self.account.add(taken.instant, -i128::from(back));
                if back > 0 {
                    self.written = taken.newest;
                }
            }
            5 if !self.slices.is_empty() => {
                let index = draws.below(self.slices.len() as u64) as usize;
                let (slice, last) = &mut self.slices[index];
                let Some(taken) = last.take() else { return };
                let back = slice.refund_at(ns(now), taken.n, taken.receipt).permits;
                self.story
                    .push(format!("refund {back} of {} to slice {index}", taken.n));
                self.account.add(taken.instant, -i128::from(back));
            }
            _ if !self.slices.is_empty() => {
                let index = draws.below(self.slices.len() as u64) as usize;
                let slice = &self.slices[index].0;
                let n = match draws.below(4) {
                    0 => draws.within(1, burst) as u32,
                    1 => 1,
                    2 => draws.within(1, u64::from(slice.size()).max(1)) as u32,
                    _ => slice.held().max(1),
                };
                self.take_by_slice(index, now, n, draws.once_in(3));
            }
            _ => {}
        }
    }

    /// Checks that a denial has changed nothing, and that its retry is exact to the nanosecond.
    fn denied<L: Limiter>(&self, limiter: &L, before: &str, denied: Denied) {
        assert_eq!(self.word(), before, "{:#?}", self.story);
        if let (Denied::Exhausted { permits, .. }, Retry::At(then)) =
            (denied, limiter.retry(denied))
        {
            let earlier = ns(then.as_nanos() - 1);
            assert!(
                limiter.peek_at(then, permits).is_ok(),
                "at {then}: {:#?}",
                self.story
            );
            assert!(
                limiter.peek_at(earlier, permits).is_err(),
                "before {then}: {:#?}",
                self.story
            );
        }
    }

    /// No permit is lost: without slices, the bucket is full after the time in which it fills and
    /// in which a wrapped word counts as stale.
    fn end(mut self) -> i128 {
        self.slices.clear();
        let (full, _, stale, _) = times(self.bucket, self.account.period / self.account.permits);
        let tick = nanos(self.bucket.timing().tick);
        let later = self.clock.max(self.seen) + full + 2 * tick;
        let full_at = |now: u64| self.bucket.available_at(ns(now)) == self.bucket.burst();
        assert!(
            full_at(later) || full_at(later + stale + full + tick),
            "{:#?}",
            self.story
        );
        assert_eq!(self.bucket.sliced(), 0);
        self.account.check(&|| format!("{:#?}", self.story))
    }
}

/// The nanoseconds in which a bucket fills and in which a permit comes in, at least; its staleness;
/// its horizon.
fn times<W: Word>(bucket: &SlicedBucket<W>, per_permit: i128) -> (u64, u64, u64, u64) {
    let per_permit = u64::try_from(per_permit).unwrap() + 1;
    // Beyond some years, no clock can run fast enough.
    let years = 20 * 365 * 86_400 * 1_000_000_000;
    let bounded = |duration| nanos(duration).min(years);
    (
        bucket.burst() * per_permit,
        per_permit,
        bounded(bucket.timing().staleness),
        bounded(bucket.timing().horizon),
    )
}

fn traces<W: Word>(rate: Rate, burst: u64, count: u64) {
    let mut fullest = i128::MIN;
    let mut period = 1;
    for seed in 0..count {
        let Ok(bucket) = SlicedBucket::builder(rate, burst).build_on::<W>() else {
            return;
        };
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let mut trace = Trace {
            bucket: &bucket,
            slices: Vec::new(),
            last: None,
            account: Account::new(rate, bucket.burst(), bucket.timing().tick),
            written: 0,
            seen: 0,
            clock: 0,
            recent: [0; 3],
            story: Vec::new(),
        };
        period = trace.account.period;
        // A clock ends after 584 years.
        for _ in 0..60 {
            if trace.clock < u64::MAX / 4 {
                trace.step(&mut draws);
            }
        }
        fullest = fullest.max(trace.end());
    }
    println!(
        "{rate:?}, burst {burst}, {} bits: fullest window {} over the rate",
        W::BITS,
        fullest / period
    );
    assert!(
        2 * fullest > i128::from(burst) * period,
        "too few requests for a meaningful result"
    );
}

#[test]
fn no_window_holds_more_than_the_burst_and_the_rate_whatever_slices_do() {
    let count = if cfg!(debug_assertions) { 100 } else { 1_500 };
    let day = Duration::from_hours(24);
    for (permits, period) in [
        (999_999_937, SECOND),
        (3, Duration::from_nanos(7)),
        (1, day),
        (1_000, SECOND),
        (7, Duration::from_micros(10)),
        (5, Duration::from_mins(1)),
    ] {
        for burst in [1, 2, 3, 4, 7, 20, 300] {
            let rate = Rate::new(permits, period);
            traces::<u64>(rate, burst, count);
            traces::<u32>(rate, burst, count);
        }
    }
}

#[test]
fn an_idle_slice_returns_no_more_than_there_was_room_for() {
    fn check<W: Word>() {
        // The slice's permits are taken at the last instant that they may be, after the slice was
        // created or after it settled again.
        for again in [false, true] {
            let builder = SlicedBucket::builder(Rate::per_second(100), 200);
            let bucket = builder.build_on::<W>().unwrap();
            let slice = bucket.slice_at(at(1_000), 100).unwrap();
            let start = if again { 9_000 } else { 1_000 };
            assert_eq!(take(&slice, at(start), 1), 1);
            let then = at(start).saturating_add(bucket.hold());
            assert_eq!(take(&slice, then, 99), 99);
            drop(slice);
            let rest = bucket.available_at(then) as u32;
            assert_eq!(take(&bucket, then, rest), rest);
            assert!(
                (90..=101).contains(&rest),
                "{rest} and 99 in an instant, settled again: {again}"
            );
        }
    }
    on_both!(check);
}

#[test]
fn a_slice_takes_at_no_instant_that_is_not_settled() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(20);
        let slice = bucket.slice_at(at(0), 10).unwrap();
        // The rest fills up in the meantime, and what comes in after that has no room.
        assert_eq!(take(&slice, at(60_000), 10), 10);
        drop(slice);
        assert!(bucket.available_at(at(60_000)) <= 10);
    }
    on_both!(check);
}

/// In steps of a second, in which half of the burst comes in.
#[test]
fn a_slice_that_settles_for_a_tick_asks_again_in_the_first_instant_of_the_next_one() {
    fn check<W: Word>() {
        for then in [1_999_999_999, 2_000_000_000] {
            let builder = SlicedBucket::builder(Rate::per_second(5), 10).stepwise();
            let bucket = builder.build_on::<W>().unwrap();
            let slice = bucket.slice_at(at(1_000), 5).unwrap();
            assert_eq!(
                (bucket.hold(), take(&slice, ns(then), 5)),
                (Duration::ZERO, 5)
            );
            drop(slice);
            assert_eq!(bucket.available_at(ns(then)), 5, "ten at once, at {then}");
        }
    }
    on_both!(check);
}

#[test]
fn a_slice_idle_for_horizons_gains_nothing_and_loses_no_permit_permanently() {
    fn check<W: Word>() {
        for (laps, part) in (0..3).flat_map(|laps| (1..64).map(move |part| (laps, part))) {
            for used in [false, true] {
                let builder = SlicedBucket::builder(Rate::per_second(1_000), 100);
                let bucket = builder.build_on::<W>().unwrap();
                let horizon = nanos(bucket.timing().horizon).min(u64::MAX / 8);
                let slice = bucket.slice_at(at(1), 40).unwrap();
                assert_eq!(take(&slice, at(1), 15), 15);
                let now = 1_000_000 + laps * horizon + horizon / 64 * part;
                let mut granted = if used { take(&slice, ns(now), 25) } else { 0 };
                drop(slice);
                while take(&bucket, ns(now), 1) == 1 {
                    granted += 1;
                }
                assert!(granted <= 100, "{granted}: {laps} {part} {used}");
                // The bucket is full, except for what has come in since a slice began to be used,
                // and during the staleness before each multiple of the horizon.
                assert!(
                    granted >= 75 || part == 63,
                    "{granted}: {laps} {part} {used}"
                );
                let stale = nanos(bucket.timing().staleness).min(horizon / 16);
                assert_eq!(
                    bucket.available_at(ns(now + 2 * stale + 200_000_000)),
                    100,
                    "{laps} {part}"
                );
            }
        }
    }
    on_both!(check);
}

/// The word looks stale to a slice that last read it a horizon ago. If the slice took its permits,
/// a stale timestamp after it would find the bucket full.
#[test]
fn a_slice_that_cannot_tell_idle_from_late_is_denied_its_permits_with_a_retry() {
    fn check<W: Word>() {
        let bucket = SlicedBucket::builder(Rate::per_second(10_000), 4)
            .build_on::<W>()
            .unwrap();
        let tick = nanos(bucket.timing().tick);
        assert_eq!(take(&bucket, at(1_000), 1), 1);
        let slice = bucket.slice_at(at(1_000), 2).unwrap();
        // The first tick at which the word looks stale.
        let horizon = nanos(bucket.timing().horizon);
        let (mut idle, mut late) = (
            horizon / 2 / tick,
            (horizon - nanos(bucket.timing().staleness) / 2) / tick,
        );
        while late - idle > 1 {
            let middle = idle.midpoint(late);
            if bucket.available_at(ns(middle * tick)) > 0 {
                idle = middle;
            } else {
                late = middle;
            }
        }
        let (before, now) = (ns(idle * tick), ns(late * tick));
        assert!(
            slice.peek_at(before, 2).is_ok(),
            "the word is known to be idle"
        );
        let mut taken = 0;
        match slice.take_at(now, 2) {
            Ok(_) => taken += 2,
            Err(denied) => {
                let Retry::At(then) = denied.retry(&slice) else {
                    panic!("{denied}")
                };
                assert!(slice.peek_at(then, 2).is_ok());
                assert!(slice.peek_at(ns(then.as_nanos() - 1), 2).is_err());
                assert_eq!(
                    (slice.available_at(now), slice.available_at(then) >= 2),
                    (0, true)
                );
            }
        }
        drop(slice);
        taken += take(&bucket, before, 4);
        assert!(taken <= 4, "{taken} at once");
    }
    check::<u32>();
}

#[test]
fn a_late_slice_takes_what_it_holds_beside_an_exhausted_rest() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(20);
        let slice = bucket.slice_at(at(0), 5).unwrap();
        while take(&bucket, at(60_000), 1) == 1 {}
        // Late, and no longer settled: the word is ahead of it.
        assert_eq!(take(&slice, at(59_900), 5), 5);
        assert_eq!(take(&slice, at(59_900), 1), 0);
        assert_eq!(take(&slice, at(60_100), 1), 1);
    }
    on_both!(check);
}

// Errors, and retry times.

#[test]
fn slices_hold_at_most_half_of_the_burst_together() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(20);
        assert_eq!(bucket.max_sliced(), 10);
        let refused = |k, capacity| {
            let denied = bucket.slice_at(at(0), k).unwrap_err();
            assert_eq!(
                denied,
                Denied::ExceedsCapacity {
                    permits: k,
                    capacity
                }
            );
        };
        refused(11, 10);
        refused(u32::MAX, 10);
        let six = bucket.slice_at(at(0), 6).unwrap();
        refused(5, 4);
        let four = bucket.slice_at(at(0), 4).unwrap();
        refused(1, 0);
        drop(six);
        refused(7, 6);
        assert_eq!((bucket.sliced(), four.size()), (4, 4));
        drop(four);
        let one = SlicedBucket::builder(Rate::per_second(1), 1)
            .build_on::<W>()
            .unwrap();
        assert!(matches!(
            one.slice_at(at(0), 1),
            Err(Denied::ExceedsCapacity { capacity: 0, .. })
        ));
        assert_eq!(
            (
                take(&one, at(0), 1),
                take(&one, at(999), 1),
                take(&one, at(1_000), 1)
            ),
            (1, 0, 1)
        );
    }
    on_both!(check);
}

#[test]
fn a_slice_is_denied_exactly_until_its_permits_are_available() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(3);
        let denied = bucket.slice_at(at(0), 5).unwrap_err();
        assert_eq!(
            denied,
            Denied::Exhausted {
                now: at(0),
                permits: 5
            }
        );
        assert_eq!(denied.retry(&bucket), Retry::At(at(200)));
        assert!(bucket.slice_at(ns(199_999_999), 5).is_err());
        assert_eq!(bucket.slice_at(at(200), 5).unwrap().held(), 5);
    }
    on_both!(check);
}

#[test]
fn a_slice_of_size_zero_asks_the_rest_each_time() {
    let bucket = bucket::<u64>(20);
    let slice = bucket.slice_at(at(0), 0).unwrap();
    assert_eq!(
        (
            slice.size(),
            take(&slice, at(0), 20),
            take(&slice, at(0), 1)
        ),
        (0, 20, 0)
    );
    assert_eq!(
        slice.take_at(at(0), 1).unwrap_err().retry(&slice),
        Retry::At(at(100))
    );
    let limit = Concurrency::new(2);
    let slice = limit.slice(0).unwrap();
    let lease = slice.try_acquire(2).unwrap();
    assert!(slice.try_acquire(0).is_err());
    drop(lease);
    assert_eq!(limit.available(), 2);
}

#[test]
fn more_than_fits_beside_the_slices_is_granted_after_a_slice_is_dropped() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(20);
        let slice = bucket.slice_at(at(0), 8).unwrap();
        let denied = bucket.take_at(at(60_000), 13).unwrap_err();
        assert_eq!(
            denied,
            Denied::ExceedsCapacity {
                permits: 13,
                capacity: 12
            }
        );
        assert_eq!(
            (denied.retry(&bucket), Limiter::capacity(&bucket)),
            (Retry::OnRelease, 12)
        );
        assert_eq!(bucket.peek_at(at(60_000), 13), Err(denied));
        let denied = bucket.take_at(at(60_000), 21).unwrap_err();
        assert_eq!(denied.retry(&bucket), Retry::Never);
        // Through the slice, the permits it holds come in addition.
        let denied = slice.take_at(at(60_000), 21).unwrap_err();
        assert_eq!(
            denied,
            Denied::ExceedsCapacity {
                permits: 21,
                capacity: 20
            }
        );
        assert_eq!(
            (slice.peek_at(at(60_000), 21), slice.capacity()),
            (Err(denied), 20)
        );
        assert_eq!(
            (slice.take_at(at(60_000), 20).is_ok(), slice.capacity()),
            (true, 12)
        );
        let denied = slice.take_at(at(60_000), 13).unwrap_err();
        assert_eq!(
            (denied, denied.retry(&slice)),
            (
                Denied::ExceedsCapacity {
                    permits: 13,
                    capacity: 12
                },
                Retry::OnRelease
            )
        );
        // Exhausted at that time, and too many since then.
        let denied = bucket.take_at(at(60_000), 12).unwrap_err();
        let more = bucket.slice_at(at(61_200), 2).unwrap();
        assert_eq!(denied.retry(&bucket), Retry::OnRelease);
        drop(more);
        assert!(matches!(denied.retry(&bucket), Retry::At(_)));
    }
    on_both!(check);
}

#[test]
fn a_slice_says_to_the_nanosecond_when_its_missing_permits_come_in() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(10);
        let slice = bucket.slice_at(at(0), 4).unwrap();
        assert_eq!(take(&bucket, at(0), 6), 6);
        let denied = slice.take_at(at(0), 6).unwrap_err();
        assert_eq!(
            (slice.held(), denied.retry(&slice)),
            (4, Retry::At(at(200)))
        );
        assert!(slice.take_at(ns(199_999_999), 6).is_err());
        assert!(slice.take_at(at(200), 6).is_ok());
        assert_eq!((slice.held(), bucket.available_at(at(200))), (0, 0));
    }
    on_both!(check);
}

#[test]
fn a_probe_takes_nothing_and_is_answered_like_a_request_for_one_permit() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(3);
        let slice = bucket.slice_at(at(0), 2).unwrap();
        let state = || (format!("{bucket:?}"), slice.held());
        let before = state();
        assert!(slice.take_at(at(0), 0).is_ok() && bucket.take_at(at(0), 0).is_ok());
        assert!(slice.take_at(at(90_000), 0).is_ok());
        assert_eq!(state(), before);
        assert_eq!(take(&slice, at(0), 3), 3);
        let before = state();
        assert_eq!(
            slice.take_at(at(0), 0),
            Err(Denied::Exhausted {
                now: at(0),
                permits: 0
            })
        );
        assert_eq!(
            bucket.take_at(at(0), 0),
            Err(Denied::Exhausted {
                now: at(0),
                permits: 0
            })
        );
        assert!(slice.take_at(at(100), 0).is_ok());
        assert_eq!(state(), before);
    }
    on_both!(check);
}

#[test]
fn settings_that_do_not_fit_are_refused_with_a_bound_that_fits() {
    fn check<W: Word>(rate: Rate) {
        let build = |burst| SlicedBucket::builder(rate, burst).build_on::<W>();
        let Err(SettingsError::TooLarge {
            setting: Setting::Burst,
            max,
        }) = build(u64::MAX)
        else {
            panic!("{:?}", build(u64::MAX).err());
        };
        let bucket = build(max).unwrap();
        assert_eq!(bucket.burst(), max);
        for more in [
            max + 1,
            max + 2,
            max.next_power_of_two() + 1,
            max.saturating_mul(3),
        ] {
            assert_eq!(
                build(more).err(),
                Some(SettingsError::TooLarge {
                    setting: Setting::Burst,
                    max
                })
            );
        }
        let k = u32::try_from(bucket.max_sliced()).unwrap_or(u32::MAX);
        let slice = bucket.slice_at(at(0), k).unwrap();
        assert_eq!(take(&slice, at(0), k), k);
        drop(slice);
        assert_eq!(bucket.sliced(), 0);
    }
    for rate in [
        Rate::per_second(1),
        Rate::per_second(999_999_937),
        Rate::per_day(1),
    ] {
        check::<u64>(rate);
    }
    for rate in [
        Rate::per_second(1),
        Rate::per_second(1_000),
        Rate::per_day(1),
    ] {
        check::<u32>(rate);
    }
    let builder = SlicedBucket::builder(Rate::per_second(1), 4);
    assert_eq!(
        builder.initial(5).build().unwrap_err(),
        SettingsError::TooLarge {
            setting: Setting::Initial,
            max: 4
        }
    );
    assert!(
        SlicedBucket::builder(Rate::per_second(1), 0)
            .build()
            .is_err()
    );
    // If no burst would fit, the error names the rate.
    let fast =
        SlicedBucket::builder(Rate::new(u32::MAX, Duration::from_nanos(1)), 4).build_on::<u32>();
    assert!(
        matches!(
            fast,
            Err(SettingsError::TooLarge {
                setting: Setting::Rate,
                ..
            })
        ),
        "{fast:?}"
    );
}

// Without slices, and at odd rates.

#[test]
fn without_slices_it_decides_as_a_token_bucket_does() {
    fn check<W: Word>(rate: Rate, burst: u64) {
        let sliced = SlicedBucket::builder(rate, burst).build_on::<W>().unwrap();
        let tick = sliced.timing().tick;
        let plain = TokenBucket::builder(rate, burst)
            .tick(tick)
            .build_on::<W>()
            .unwrap();
        let mut draws = Draws::Seeded {
            state: burst,
            steps: 0,
        };
        let mut clock = 0;
        for _ in 0..5_000 {
            clock += draws.magnitude(3_000_000_000);
            let now = ns(clock - draws.magnitude(clock.min(1_000_000_000)));
            let n = draws.within(0, burst + 1) as u32;
            assert_eq!(sliced.peek_at(now, n), plain.peek_at(now, n));
            let (one, other) = (sliced.take_at(now, n), plain.take_at(now, n));
            assert_eq!(one.as_ref().err(), other.as_ref().err());
            match (one, other) {
                (Ok(one), Ok(other)) if draws.once_in(3) && n > 0 => {
                    assert_eq!(
                        sliced.refund_at(now, n, one).permits,
                        plain.refund_at(now, n, other).permits
                    );
                }
                (Err(denied), _) => assert_eq!(denied.retry(&sliced), denied.retry(&plain)),
                _ => {}
            }
            assert_eq!(sliced.available_at(now), plain.available_at(now));
            assert_eq!(sliced.idle_at(now), plain.idle_at(now));
        }
    }
    for (rate, burst) in [
        (Rate::per_second(10), 20),
        (Rate::per_minute(7), 3),
        (Rate::per_second(997), 50),
        (Rate::ZERO, 4),
    ] {
        check::<u64>(rate, burst);
        check::<u32>(rate, burst);
    }
}

#[test]
fn a_slice_of_a_bucket_without_refill_gets_its_share_and_no_more() {
    fn check<W: Word>() {
        let bucket = SlicedBucket::builder(Rate::ZERO, 10)
            .build_on::<W>()
            .unwrap();
        let slice = bucket.slice_at(at(0), 5).unwrap();
        assert_eq!(take(&slice, Timestamp::MAX, 4), 4);
        assert_eq!(take(&bucket, at(0), 5), 5);
        assert_eq!(
            slice.take_at(at(9), 2).unwrap_err().retry(&slice),
            Retry::Never
        );
        drop(slice);
        assert_eq!(
            (take(&bucket, at(7), 1), take(&bucket, Timestamp::MAX, 1)),
            (1, 0)
        );
    }
    on_both!(check);
}

#[test]
fn a_slice_of_an_unlimited_bucket_is_never_denied_what_fits_the_word() {
    fn check<W: Word>() {
        let bucket = SlicedBucket::builder(Rate::UNLIMITED, 10)
            .build_on::<W>()
            .unwrap();
        let slice = bucket.slice_at(at(0), 5).unwrap();
        for n in [0, 1, 5, 6, 1_000, 1_000_000] {
            assert!(slice.take_at(at(0), n).is_ok() && bucket.take_at(at(0), n).is_ok());
        }
        assert_eq!((slice.available_at(at(0)), bucket.sliced()), (u64::MAX, 5));
        drop(slice);
        assert_eq!((bucket.sliced(), bucket.idle_at(at(0))), (0, Idle::Now));
    }
    on_both!(check);
}

#[test]
fn a_slice_of_a_stepwise_bucket_keeps_the_steps() {
    let bucket = SlicedBucket::builder(Rate::per_second(5), 10)
        .stepwise()
        .initial(0)
        .build()
        .unwrap();
    assert!(bucket.slice_at(at(999), 1).is_err());
    let slice = bucket.slice_at(at(1_000), 5).unwrap();
    assert_eq!(
        (take(&slice, at(1_999), 5), take(&slice, at(1_999), 1)),
        (5, 0)
    );
    assert_eq!(
        (take(&slice, at(2_000), 5), take(&slice, at(2_000), 1)),
        (5, 0)
    );
}

#[test]
fn time_may_end_while_a_slice_exists() {
    for near in [0, 1, 999, 1_000, 1_001, 50_000_000] {
        let bucket = bucket::<u64>(20);
        let end = ns(u64::MAX - near);
        let slice = bucket.slice_at(end, 5).unwrap();
        let mut taken = 0;
        while take(&slice, Timestamp::MAX, 1) == 1 {
            taken += 1;
        }
        assert!((18..=20).contains(&taken), "{taken}");
    }
}

// The rate.

/// What `demand` is granted in 200 s at 1,000 permits per second, from an empty bucket of 100, with
/// a request each `step`.
fn saturated<W: Word>(
    sizes: &[u32],
    step: Duration,
    mut demand: impl FnMut(usize, &[Slice<&SlicedBucket<W>>], Timestamp) -> u64,
) {
    let bucket = SlicedBucket::builder(Rate::per_second(1_000), 100)
        .build_on::<W>()
        .unwrap();
    let slices: Vec<_> = sizes
        .iter()
        .map(|&size| bucket.slice_at(at(0), size).unwrap())
        .collect();
    let (mut now, mut turn, mut granted) = (0, 0, 0);
    while now < 200_000_000_000 {
        granted += demand(turn, &slices, ns(now));
        turn += 1;
        now += nanos(step);
    }
    assert!(
        granted >= 198_000,
        "{granted} of 200,000, {sizes:?} each {step:?}"
    );
    assert!(granted <= 200_100, "{granted}");
}

fn all_of(slice: &impl Limiter, now: Timestamp, n: u32) -> u64 {
    let mut granted = 0;
    while take(slice, now, n) == n {
        granted += u64::from(n);
    }
    granted
}

#[test]
fn saturated_demand_gets_the_rate_through_one_slice_or_several_in_turn() {
    fn check<W: Word>() {
        for step in
            [100, 999, 1_000, 3_000, 6_250, 7_001, 20_000, 43_000].map(Duration::from_micros)
        {
            saturated::<W>(&[50], step, |_, slices, now| all_of(&slices[0], now, 1));
            saturated::<W>(&[10; 5], step, |turn, slices, now| {
                all_of(&slices[turn % 5], now, 1)
            });
            saturated::<W>(&[10; 5], step, |turn, slices, now| {
                all_of(&slices[turn % 5], now, 3) + all_of(&slices[turn % 5], now, 1)
            });
            // One of two slices is idle, and keeps its half of the sliced half.
            saturated::<W>(&[25, 25], step, |_, slices, now| all_of(&slices[0], now, 1));
            // The rest, beside idle slices.
            saturated::<W>(&[50], step, |_, slices, now| {
                all_of(slices[0].limiter(), now, 1)
            });
        }
    }
    on_both!(check);
}

// Refunds.

#[test]
fn a_refund_of_a_slices_last_take_is_exact_and_takes_are_undone_in_reverse() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(15);
        let slice = bucket.slice_at(at(0), 8).unwrap();
        let mut one = slice.try_acquire_at(at(0), 3).unwrap();
        let mut other = slice.try_acquire_at(at(0), 2).unwrap();
        assert_eq!(one.refund_at(at(0), 1), Ok(0), "another take came after it");
        assert_eq!(
            (other.refund_at(at(0), 1), other.refund_at(at(0), 1)),
            (Ok(1), Ok(1))
        );
        assert_eq!(
            (one.refund_at(at(0), 2), slice.held()),
            (Ok(2), 7),
            "one permit was released"
        );
        assert_eq!(bucket.available_at(at(0)), 7);
    }
    on_both!(check);
}

#[test]
fn what_was_taken_before_a_draw_is_worth_nothing_after_it() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(20);
        let slice = bucket.slice_at(at(0), 8).unwrap();
        let mut old = slice.try_acquire_at(at(0), 8).unwrap();
        let rest = bucket.available_at(at(0)) as u32;
        // Draws all that is left, so that the slice holds nothing, as after the first take.
        let mut new = slice.try_acquire_at(at(0), rest).unwrap();
        assert_eq!(
            (slice.held(), old.refund_at(at(0), 8), slice.held()),
            (0, Ok(0), 0)
        );
        assert_eq!(take(&slice, at(0), 1), 0);
        assert_eq!((new.refund_at(at(0), 8), slice.held()), (Ok(8), 8));
    }
    on_both!(check);
}

#[test]
fn a_slice_accepts_no_refund_beyond_its_size() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(16);
        let slice = bucket.slice_at(at(0), 4).unwrap();
        let mut lease = slice.try_acquire_at(at(0), 16).unwrap();
        assert_eq!((lease.refund_at(at(0), 16), slice.held()), (Ok(4), 4));
        drop(lease);
        drop(slice);
        assert_eq!(bucket.available_at(at(0)), 4);
    }
    on_both!(check);
}

#[test]
fn the_rest_accepts_no_refund_beside_slices_that_may_have_built_on_the_take() {
    fn check<W: Word>() {
        let bucket = bucket::<W>(20);
        let slice = bucket.slice_at(at(0), 10).unwrap();
        let rest = bucket.available_at(at(0)) as u32;
        let mut lease = bucket.try_acquire_at(at(0), rest).unwrap();
        // The slice finds itself settled, as far as the word is, and writes nothing.
        let before = format!("{bucket:?}");
        assert_eq!(
            (take(&slice, at(800), 10), format!("{bucket:?}")),
            (10, before)
        );
        assert_eq!(lease.refund_at(at(0), rest), Ok(0));
        drop(slice);
        assert!(
            bucket.available_at(at(800)) <= 10,
            "at most 20 in an instant"
        );
        let mut lease = bucket.try_acquire_at(at(9_000), 5).unwrap();
        assert_eq!(
            (
                lease.refund_at(at(9_000), 5),
                bucket.available_at(at(9_000))
            ),
            (Ok(5), 20)
        );
    }
    on_both!(check);
}

/// Agrees in the look, and denies in the take.
struct Fickle;

impl Limiter for Fickle {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, permits) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.granted(Receipt::NONE);
        }
        Answer::Denied(Denied::Refused { now, permits })
    }

    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: u64::MAX,
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::After(SECOND)
    }
}

#[test]
fn a_composition_rolls_a_slice_back_exactly() {
    fn check<W: Word>() {
        let (bucket, limit) = (
            bucket::<W>(15),
            Concurrency::builder(9).build_on::<W>().unwrap(),
        );
        let slices = (
            bucket.slice_at(at(0), 6).unwrap(),
            Slice::cut_at(&limit, at(0), 6).unwrap(),
        );
        assert_eq!(take(&slices.0, at(0), 1), 1);
        let state = || {
            (
                slices.0.held(),
                slices.1.held(),
                format!("{bucket:?}"),
                limit.available(),
            )
        };
        let before = state();
        for n in [1, 3, 5] {
            let denied = AllOf::new((&slices.0, &slices.1, Fickle))
                .try_acquire_at(at(0), n)
                .unwrap_err();
            assert_eq!((denied.index, state()), (2, before.clone()));
        }
        // More than the slices hold is drawn, and stays with them as far as they have room.
        assert!(
            AllOf::new((&slices.0, &slices.1, Fickle))
                .try_acquire_at(at(0), 7)
                .is_err()
        );
        assert_eq!(
            (slices.0.held(), slices.1.held(), limit.available()),
            (6, 6, 3)
        );
        // The same slice twice is asked once, for both.
        let twice = AllOf::new((&slices.0, &slices.0));
        let lease = twice.try_acquire_at(at(0), 3).unwrap();
        assert_eq!((lease.permits(), slices.0.held()), (3, 0));
    }
    on_both!(check);
}

#[test]
fn a_wrapper_accepts_a_slice_like_any_limiter() {
    let bucket = bucket::<u64>(20);
    let counted = Counted::new(bucket.slice_at(at(0), 4).unwrap());
    assert_eq!(
        (take(&counted, at(0), 3), take(&counted, at(0), 17)),
        (3, 0)
    );
    assert_eq!(
        (
            counted.counts().granted.requests,
            counted.counts().denied.requests
        ),
        (1, 1)
    );
    let detail = counted.explain_at(at(0), 2);
    assert!(detail.is_allowed() && detail.available > 10);
}

// Threads, and allocation.

#[test]
fn a_slice_can_be_sent_to_another_thread_with_the_pointer_to_its_limiter() {
    fn sliced<L: Sliceable + Send + Sync + 'static>(limiter: &Arc<L>) {
        let slice = Slice::cut_at(Arc::clone(limiter), at(0), 4).unwrap();
        let slice = std::thread::spawn(move || (take(&slice, at(0), 3), slice))
            .join()
            .unwrap();
        assert_eq!((slice.0, slice.1.held()), (3, 1));
    }
    sliced(&Arc::new(bucket::<u64>(20)));
    sliced(&Arc::new(Concurrency::new(20)));
}

/// Permits by the first and the last tick in which they may count.
type Spans = BTreeMap<(u64, u64), u64>;

/// The work of one thread: it creates slices, takes from them and from the rest, and drops them.
fn work<W: Word>(
    bucket: &SlicedBucket<W>,
    clock: &AtomicU64,
    begun: &AtomicU64,
    seed: u64,
    until: u64,
) -> Spans {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 0,
    };
    let mut spans = Spans::new();
    let mut slice: Option<Slice<&_>> = None;
    let mut calls = 0;
    loop {
        calls += 1;
        let tick = if calls % 16 == 0 {
            clock.fetch_add(1, SeqCst)
        } else {
            clock.load(SeqCst)
        };
        if tick > until {
            return spans;
        }
        let now = Timestamp::from_micros(tick);
        begun.fetch_max(tick, SeqCst);
        if slice.is_none() || draws.once_in(64) {
            drop(slice.take());
            slice = bucket.slice_at(now, draws.within(1, 16) as u32).ok();
        }
        let n = draws.within(1, 3) as u32;
        let taken = match &slice {
            Some(slice) if !draws.once_in(4) => take(slice, now, n),
            _ => take(bucket, now, n),
        };
        if taken > 0 {
            *spans.entry((tick, begun.load(SeqCst))).or_default() += u64::from(taken);
        }
        if draws.once_in(512) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn two_threads_with_slices_and_the_rest_stay_within_the_bound_over_every_window() {
    fn check<W: Word>() {
        const BURST: u64 = 64;
        const UNTIL: u64 = 3_000;
        for seed in 0..if cfg!(debug_assertions) { 4 } else { 12 } {
            // One and a half per microsecond.
            let rate = Rate::new(3, Duration::from_micros(2));
            let builder = SlicedBucket::builder(rate, BURST).tick(Duration::from_micros(1));
            let bucket = builder.build_on::<W>().unwrap();
            let (clock, begun) = (AtomicU64::new(0), AtomicU64::new(0));
            let mut spans = Spans::new();
            std::thread::scope(|scope| {
                let (bucket, clock, begun) = (&bucket, &clock, &begun);
                let others = scope.spawn(move || work(bucket, clock, begun, 2 * seed, UNTIL));
                for (span, n) in work(bucket, clock, begun, 2 * seed + 1, UNTIL)
                    .into_iter()
                    .chain(others.join().unwrap())
                {
                    *spans.entry(span).or_default() += n;
                }
            });
            // Each window certainly holds what begins and ends in it.
            let mut by_end: Vec<_> = spans.into_iter().collect();
            by_end.sort_unstable_by_key(|&((_, last), _)| last);
            let mut fullest = 0;
            for from in 0..=UNTIL {
                let mut sum = 0;
                for &((first, last), n) in &by_end {
                    if first >= from {
                        sum += n;
                        let over = (2 * sum).saturating_sub(3 * (last - from));
                        fullest = fullest.max(over);
                        assert!(
                            over <= 2 * BURST,
                            "{sum} from {from} to {last}, seed {seed}"
                        );
                    }
                }
            }
            let total: u64 = by_end.iter().map(|&(_, n)| n).sum();
            println!(
                "{} bits: {total} admitted; fullest window {} over the rate, of {BURST}",
                W::BITS,
                fullest / 2
            );
            assert!(
                fullest > BURST && total > UNTIL,
                "too few requests for a meaningful result"
            );
            assert_eq!(
                (
                    bucket.sliced(),
                    bucket.available_at(Timestamp::from_micros(UNTIL + 100))
                ),
                (0, BURST)
            );
        }
    }
    on_both!(check);
}

#[test]
fn slices_do_not_allocate() {
    fn slices<W: Word>() {
        let bucket = bucket::<W>(20);
        let limit = Concurrency::builder(9).build_on::<W>().unwrap();
        for now in [0, 5_000, 90_000].map(at) {
            let slice = bucket.slice_at(now, 8).unwrap();
            let share = Slice::cut_at(&limit, now, 4).unwrap();
            assert!(bucket.slice_at(now, 8).is_err() && limit.slice(8).is_err());
            for n in [0, 1, 3, 7, 9, 30] {
                for limiter in [&slice as &dyn Limiter, &share, &bucket] {
                    let _ = limiter.explain_at(now, n);
                    if let Ok(mut lease) = limiter.try_acquire_at(now, n) {
                        let _ = lease.refund_at(now, n / 2);
                    }
                    let _ = (limiter.capacity(), limiter.idle_at(now), limiter.id());
                }
            }
        }
    }
    assert_eq!(
        allocations(|| drop(core::hint::black_box(Box::new(1)))),
        1,
        "the counter works"
    );
    let allocated = allocations(|| {
        on_both!(slices);
    });
    assert_eq!(allocated, 0);
}

#[test]
fn a_rollback_beside_a_slice_costs_the_rest_those_permits_until_they_have_come_in() {
    let (bucket, twin) = (
        SlicedBucket::new(Rate::per_second(10), 20),
        SlicedBucket::new(Rate::per_second(10), 20),
    );
    let slices = (
        bucket.slice_at(at(0), 8).unwrap(),
        twin.slice_at(at(0), 8).unwrap(),
    );
    assert!(
        AllOf::new((&bucket, Fickle))
            .try_acquire_at(at(1_000), 4)
            .is_err()
    );
    for (now, lost) in [(1_000, 4), (1_100, 3), (1_300, 1), (1_400, 0), (9_000, 0)] {
        assert_eq!(
            bucket.available_at(at(now)) + lost,
            twin.available_at(at(now)),
            "at {now}"
        );
    }
    drop(slices);
    let (before, now) = (bucket.available_at(at(9_000)), at(9_000));
    assert!(
        AllOf::new((&bucket, Fickle))
            .try_acquire_at(now, 4)
            .is_err()
    );
    assert_eq!(
        bucket.available_at(now),
        before,
        "without slices the refund is exact"
    );
}
