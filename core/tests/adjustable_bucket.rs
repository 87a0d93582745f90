//! A bucket whose settings change. Without changes it decides exactly as a token bucket; with
//! changes, as a bucket in rational arithmetic. Forced debt is compared with the same model, for
//! both kinds of bucket.

mod support;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;
use std::thread;

use portcullis_core::builder::{AdjustableBucketBuilder, Setting};
use portcullis_core::limiter::Idle;
use portcullis_core::state::{Carry, ChangeError, Word};
use portcullis_core::{
    AdjustableBucket, Denied, Limiter, Rate, Retry, SettingsError, Timestamp, TokenBucket,
};

use support::bucket::random_adjustable;
use support::draws::Draws;
use support::model::Model;
use support::trace::{Tally, trace};

const SECOND: u64 = 1_000_000_000;
const YEAR: u64 = 365 * 24 * 3_600 * SECOND;

const fn nanos(n: u64) -> Timestamp {
    Timestamp::from_nanos(n)
}

const fn millis(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

// Without changes.

#[test]
fn without_changes_it_decides_as_rational_arithmetic_does() {
    fn check<W: Word>() {
        let operations = if cfg!(debug_assertions) {
            200_000
        } else {
            1_000_000
        };
        let (mut tally, mut seed) = (Tally::default(), 0);
        while tally.operations < operations {
            seed += 1;
            let mut draws = Draws::Seeded {
                state: seed,
                steps: 200,
            };
            if let Some((bucket, _, mut model)) = random_adjustable::<W>(&mut draws) {
                trace(&bucket, &mut model, &mut draws, &mut tally);
            }
        }
        println!("{} bits: {tally}", W::BITS);
        assert!(
            tally.granted > operations / 20 && tally.denied > operations / 20,
            "one-sided: {tally}"
        );
        assert!(
            tally.retried > 1_000 && tally.late > 1_000 && tally.wrapped > 1_000 && tally.void > 0
        );
    }
    check::<u64>();
    check::<u32>();
}

/// The times stay within the horizon; a token bucket's horizon is farther away.
#[test]
fn without_changes_it_answers_as_a_token_bucket_with_the_same_tick_does() {
    fn check<W: Word>() {
        let operations = if cfg!(debug_assertions) {
            200_000
        } else {
            1_000_000
        };
        let (mut done, mut granted, mut late, mut seed) = (0, 0, 0, 0);
        while done < operations {
            seed += 1;
            let mut draws = Draws::Seeded {
                state: seed,
                steps: 200,
            };
            let Some((bucket, twin, model)) = random_adjustable::<W>(&mut draws) else {
                continue;
            };
            let marks = model.landmarks();
            let staleness = bucket.timing().staleness.min(twin.timing().staleness);
            let staleness = staleness.as_nanos().min(marks.first.into()) as u64;
            let far = marks.horizon / 4;
            let (mut newest, mut now) = (marks.first, marks.first);
            while draws.another_step() {
                let at = nanos(now);
                let available = twin.available_at(at);
                assert_eq!(bucket.available_at(at), available, "{bucket:?} {twin:?}");
                assert_eq!(bucket.idle_at(at), twin.idle_at(at), "{bucket:?} {twin:?}");
                let most = available.min(u32::MAX.into());
                let some = draws.magnitude(most.saturating_add(1));
                let n = draws
                    .one_of(&[some, some, most, most + 1, 1, 0])
                    .min(u32::MAX.into()) as u32;
                let (mine, its) = (bucket.take_at(at, n), twin.take_at(at, n));
                assert_eq!(
                    mine.as_ref().err(),
                    its.as_ref().err(),
                    "{n} at {now}: {bucket:?} {twin:?}"
                );
                if let Err(denied) = its {
                    assert_eq!(
                        bucket.retry(denied),
                        twin.retry(denied),
                        "{n} at {now}: {bucket:?} {twin:?}"
                    );
                } else if n > 0 {
                    granted += 1;
                    newest = newest.max(now);
                }
                done += 1;
                now = match draws.below(6) {
                    0 => now,
                    1..=3 => newest
                        .saturating_add(draws.magnitude(marks.grain.saturating_mul(4)).min(far)),
                    4 => newest
                        .saturating_add(draws.magnitude(marks.reach.saturating_mul(2)).min(far)),
                    _ => newest - draws.magnitude(staleness),
                };
                late += u64::from(now < newest);
            }
        }
        println!(
            "{} bits: {done} operations, {granted} granted, {late} late",
            W::BITS
        );
        assert!(granted > operations / 20 && late > operations / 20);
    }
    check::<u64>();
    check::<u32>();
}

// With changes.

/// A rate and a burst.
#[derive(Clone, Copy, Debug)]
struct Limit {
    permits: u32,
    /// 0 means no limit.
    period: u64,
    burst: u64,
}

impl Limit {
    fn rate(&self) -> Rate {
        match self.period {
            0 => Rate::UNLIMITED,
            period => Rate::new(self.permits, Duration::from_nanos(period)),
        }
    }

    fn random(draws: &mut Draws<'_>) -> Self {
        const NAMED: [(u32, u64); 12] = [
            (1, YEAR),
            (1, 1),
            (999_999_937, SECOND),
            (7, 10),
            (1, 24 * 3_600 * SECOND),
            (3, SECOND),
            (10, SECOND),
            (1_000, SECOND),
            (1, 3_600 * SECOND),
            (10, 1),
            (0, SECOND),
            (0, 0),
        ];
        let (permits, period) = if draws.once_in(3) {
            draws.one_of(&NAMED)
        } else {
            (
                draws.magnitude(10_000).max(1) as u32,
                draws.magnitude(100 * SECOND).max(1),
            )
        };
        let burst = if draws.once_in(4) {
            draws.magnitude(1 << 40)
        } else {
            draws.within(1, 20)
        };
        Self {
            permits,
            period,
            burst: burst.max(1),
        }
    }
}

/// The settings that do not change: tick, debt and staleness.
#[derive(Clone, Copy, Debug)]
struct Frame {
    tick: u64,
    debt: u64,
    staleness: u64,
    /// The bits of the lattice.
    bits: u32,
}

impl Frame {
    fn random<W: Word>(draws: &mut Draws<'_>) -> Self {
        let ticks = [
            1,
            1,
            100,
            1_000,
            1_000_000,
            7_000_003,
            100_000_000,
            SECOND,
            3_600 * SECOND,
        ];
        let first = if W::BITS == 64 { 0 } else { 3 };
        let seconds = draws.one_of(&[1, 1, 2, 60, 10_000]);
        Self {
            tick: draws.one_of(&ticks[first..]),
            debt: draws.one_of(&[0, 0, 1, 10, 1_000]),
            staleness: seconds * SECOND,
            bits: if W::BITS == 64 { 52 } else { 26 },
        }
    }

    fn instant(&self, tick: i128) -> Timestamp {
        nanos(u64::try_from(tick * i128::from(self.tick)).unwrap())
    }

    fn builder(&self, limit: Limit) -> AdjustableBucketBuilder {
        AdjustableBucket::builder(limit.rate(), limit.burst)
            .debt(self.debt)
            .tick(Duration::from_nanos(self.tick))
            .staleness(Duration::from_nanos(self.staleness))
    }
}

/// Draws a number from 0 to `most`; every magnitude is about equally likely.
fn draw(draws: &mut Draws<'_>, most: i128) -> i128 {
    draws.magnitude(u64::try_from(most).unwrap()).into()
}

fn gcd(a: u128, b: u128) -> u128 {
    if a == 0 { b } else { gcd(b % a, a) }
}

/// A bucket in rational arithmetic. Its level may be negative. It counts parts of a permit: a
/// permit costs `cost` parts and a tick brings `gain`, in lowest terms. Only a change rounds: down
/// to a whole part.
#[derive(Clone, Copy, Debug)]
struct Ideal {
    frame: Frame,
    limit: Limit,
    gain: i128,
    cost: i128,
    /// The newest tick of a grant or change.
    newest: i128,
    level: i128,
    /// What the changes have forgotten of the granted permits, at the tick of the last change, and
    /// the largest burst since.
    beyond: i128,
    changed: i128,
    largest: u64,
}

impl Ideal {
    fn new(frame: Frame, limit: Limit, tick: i128) -> Self {
        let gain = u128::from(limit.permits) * u128::from(frame.tick);
        let divisor = gcd(gain, limit.period.max(1).into());
        let cost = (u128::from(limit.period) / divisor).cast_signed();
        let level = i128::from(limit.burst) * cost;
        let gain = (gain / divisor).cast_signed();
        let (beyond, changed, largest) = (0, tick, limit.burst);
        Self {
            frame,
            limit,
            gain,
            cost,
            newest: tick,
            level,
            beyond,
            changed,
            largest,
        }
    }

    fn is_unlimited(&self) -> bool {
        self.limit.period == 0
    }

    fn full(&self) -> i128 {
        i128::from(self.limit.burst) * self.cost
    }

    fn owes_at_most(&self) -> i128 {
        i128::from(self.frame.debt) * self.cost
    }

    fn at(&self, tick: i128) -> i128 {
        (self.level + (tick - self.newest) * self.gain).min(self.full())
    }

    fn available(&self, tick: i128) -> u64 {
        if self.is_unlimited() {
            return u64::MAX;
        }
        u64::try_from(self.at(tick).max(0) / self.cost).unwrap()
    }

    fn take(&mut self, tick: i128, n: u32) {
        self.level = self.at(tick.max(self.newest)) - i128::from(n) * self.cost;
        self.newest = self.newest.max(tick);
    }

    /// Changes the level at `tick` or at the newest time, whichever is later, to what `after`
    /// returns; at most a full bucket. Returns whether that changes anything.
    fn refill(&mut self, tick: i128, after: impl Fn(i128) -> i128) -> bool {
        let tick = tick.max(self.newest);
        let then = after(self.at(tick)).min(self.full());
        let changes = !self.is_unlimited() && (self.at(tick), then) != (self.full(), self.full());
        if changes {
            (self.level, self.newest) = (then, tick);
        }
        changes
    }

    /// Returns the first tick from `tick` on at which `n` permits are available.
    fn suffices(&self, tick: i128, n: u32) -> Option<i128> {
        let missing = i128::from(n) * self.cost - self.at(tick);
        match (missing, self.gain) {
            (..=0, _) => Some(tick),
            (_, 0) => None,
            (_, gain) => Some(tick + (missing + gain - 1) / gain),
        }
    }

    /// Returns the bucket after a change of settings at `tick` or at the newest time, whichever is
    /// later.
    fn adjusted(&self, tick: i128, limit: Limit, carry: Option<Carry>) -> Self {
        let tick = tick.max(self.newest);
        let mut new = Self::new(self.frame, limit, tick);
        if self.is_unlimited() || new.is_unlimited() || carry == Some(Carry::Reset) {
            if carry.is_none() && !new.is_unlimited() {
                new.level = 0;
            }
            return new;
        }
        let level = self.at(tick);
        // Rounds down, also where permits are owed.
        let kept = (level * new.cost).div_euclid(self.cost);
        // What was granted and has not been replenished, and how much of it the largest burst
        // allows.
        let beyond = (self.beyond - (tick - self.changed) * self.gain).max(0);
        let out = self.full() + beyond - level;
        let part = -(-(out % self.cost) * new.cost).div_euclid(self.cost);
        let granted = out / self.cost * new.cost + part;
        new.largest = if beyond > 0 {
            self.largest.max(limit.burst)
        } else {
            limit.burst.max(self.limit.burst)
        };
        let most = i128::from(new.largest) * new.cost - granted;
        new.level = match carry {
            Some(Carry::Proportional) if level > 0 => (level * new.full() / self.full()).min(most),
            Some(Carry::Additive) => {
                let grown = (i128::from(limit.burst) - i128::from(self.limit.burst)) * new.cost;
                (kept + grown).max(kept.min(0)).min(most)
            }
            None => kept.min(0),
            _ => kept,
        }
        .min(new.full());
        new.beyond = (granted + new.level - new.full()).max(0);
        new
    }
}

/// Counts of what happened in the traces.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    operations: u64,
    granted: u64,
    denied: u64,
    forced: u64,
    forced_into_debt: u64,
    retried: u64,
    late: u64,
    /// One count for each of `CARRIES`.
    changed: [u64; 5],
    changed_late: u64,
    changed_in_debt: u64,
    added: u64,
    reset: u64,
    refilled_in_debt: u64,
    busy: u64,
    unlimited: u64,
    frozen: u64,
    misfits: u64,
}

/// What a change keeps; `None` empties the bucket.
const CARRIES: [Option<Carry>; 5] = [
    Some(Carry::Keep),
    Some(Carry::Proportional),
    Some(Carry::Additive),
    Some(Carry::Reset),
    None,
];

fn change<W: Word>(
    bucket: &AdjustableBucket<W>,
    now: Timestamp,
    rate: Rate,
    burst: u64,
    carry: Option<Carry>,
) -> Result<(), ChangeError> {
    match carry {
        Some(carry) => bucket.adjust_at(now, rate, burst, carry),
        None => bucket.empty_at(now, rate, burst),
    }
}

/// How many numbers of eras and sets have begun at the newest time.
#[derive(Default)]
struct Eras {
    newest: i128,
    begun: u64,
    /// Whether the next take begins an era.
    owed: bool,
}

impl Eras {
    /// Numbers in an era, and in all.
    const fn of<W: Word>() -> (u64, u64) {
        if W::BITS == 64 { (64, 1_024) } else { (4, 16) }
    }

    fn begin(&mut self, newest: i128, numbers: u64) {
        if self.newest != newest {
            (self.newest, self.begun) = (newest, 0);
        }
        self.begun += numbers;
        self.owed = false;
    }
}

/// A bucket, and the model it is compared with.
struct Course<'a, W: Word> {
    bucket: AdjustableBucket<W>,
    model: Ideal,
    tally: &'a mut Changes,
    eras: Eras,
}

impl<W: Word> Course<'_, W> {
    fn looks_right(&self, at: Timestamp, tick: i128) {
        let Self { bucket, model, .. } = self;
        assert_eq!(
            bucket.available_at(at),
            model.available(tick),
            "at {at}: {bucket:?}\n{model:?}"
        );
        if !model.is_unlimited() {
            assert_eq!(bucket.burst(), model.limit.burst);
            let is_full = model.at(tick) == model.full();
            assert_eq!(
                bucket.idle_at(at) != Idle::InUse,
                is_full,
                "at {at}: {bucket:?}\n{model:?}"
            );
        }
    }

    fn take(&mut self, at: Timestamp, tick: i128, n: u32) {
        let Self {
            bucket,
            model,
            tally,
            ..
        } = self;
        let enough = u64::from(n.max(1)) <= model.available(tick);
        let answer = bucket.take_at(at, n);
        assert_eq!(answer.is_ok(), enough, "{n} at {at}: {bucket:?}\n{model:?}");
        match answer {
            Ok(_) => {
                tally.granted += 1;
                if n > 0 {
                    model.take(tick, n);
                }
                if n > 0 && self.eras.owed {
                    self.eras.begin(model.newest, Eras::of::<W>().0);
                }
            }
            Err(denied) if u64::from(n) > model.limit.burst => {
                tally.denied += 1;
                let capacity = model.limit.burst as u32;
                assert_eq!(
                    denied,
                    Denied::ExceedsCapacity {
                        permits: n,
                        capacity
                    }
                );
            }
            Err(denied) => {
                tally.denied += 1;
                assert_eq!(
                    denied,
                    Denied::Exhausted {
                        now: at,
                        permits: n
                    }
                );
                let ideal = model
                    .suffices(tick, n.max(1))
                    .map(|tick| tick * i128::from(model.frame.tick));
                let ideal = ideal.and_then(|at| u64::try_from(at).ok());
                let expected = ideal.map_or(Retry::Never, |at| Retry::At(nanos(at)));
                assert_eq!(
                    bucket.retry(denied),
                    expected,
                    "{n} at {at}: {bucket:?}\n{model:?}"
                );
                tally.retried += u64::from(ideal.is_some());
            }
        }
    }

    fn force(&mut self, at: Timestamp, tick: i128, n: u32) {
        let Self {
            bucket,
            model,
            tally,
            ..
        } = self;
        let owed = i128::from(n) * model.cost - model.at(tick);
        let fits = n == 0 || owed <= model.owes_at_most();
        let before = format!("{bucket:?}");
        let forced = bucket.force_at(at, n);
        assert_eq!(
            forced.is_ok(),
            fits,
            "{n} at {at}: {forced:?} {bucket:?}\n{model:?}"
        );
        if let Err(denied) = forced {
            assert_eq!(format!("{bucket:?}"), before);
            let exceeds = u64::from(n) > model.limit.burst + model.frame.debt;
            assert_eq!(matches!(denied, Denied::ExceedsCapacity { .. }), exceeds);
        } else if n > 0 {
            tally.forced += 1;
            tally.forced_into_debt += u64::from(owed > 0);
            model.take(tick, n);
            self.eras.owed |= owed > 0;
        }
    }

    fn adjust(&mut self, at: Timestamp, tick: i128, next: Limit, by: usize) {
        let Self {
            bucket,
            model,
            tally,
            ..
        } = self;
        let state = || {
            (
                bucket.burst(),
                bucket.available_at(at),
                bucket.timing().staleness,
            )
        };
        let before = state();
        let changed = change(bucket, at, next.rate(), next.burst, CARRIES[by]);
        match model.frame.builder(next).build_on::<W>() {
            Ok(_) => {
                assert_eq!(changed, Ok(()), "{next:?} at {at}: {bucket:?}\n{model:?}");
                tally.changed[by] += 1;
                tally.changed_late += u64::from(tick < model.newest);
                tally.changed_in_debt += u64::from(model.level < 0);
                *model = model.adjusted(tick, next, CARRIES[by]);
                self.eras.begin(model.newest, 1);
            }
            Err(misfit) => {
                assert_eq!(
                    changed,
                    Err(ChangeError::Settings(misfit)),
                    "{next:?} at {at}: {bucket:?}"
                );
                assert_eq!(state(), before, "{next:?} at {at}: {bucket:?}\n{model:?}");
                tally.misfits += 1;
            }
        }
    }
}

impl<W: Word> Course<'_, W> {
    /// Adds `n` permits, or resets the bucket to `n`.
    fn refill(&mut self, at: Timestamp, tick: i128, n: u64, adds: bool) {
        let Self {
            bucket,
            model,
            tally,
            ..
        } = self;
        let (before, in_debt) = (format!("{bucket:?}"), model.level < 0);
        let units = i128::from(n) * model.cost;
        let refilled = if adds {
            bucket.add_at(at, n)
        } else {
            bucket.reset_at(at, n)
        };
        if refilled == Err(ChangeError::Busy) {
            let (numbers, all) = Eras::of::<W>();
            assert_eq!(self.eras.newest, model.newest);
            assert!(self.eras.begun + numbers >= all, "{bucket:?}");
            tally.busy += 1;
            return;
        }
        assert_eq!(refilled, Ok(()));
        let changes = n > 0 || !adds;
        if changes && model.refill(tick, |level| if adds { level + units } else { units }) {
            self.eras.begin(model.newest, Eras::of::<W>().0);
            tally.added += u64::from(adds);
            tally.reset += u64::from(!adds);
            tally.refilled_in_debt += u64::from(in_debt);
        } else {
            assert_eq!(format!("{bucket:?}"), before);
        }
    }
}

/// Runs a trace of takes, forced takes, changes, additions and resets.
fn with_changes<W: Word>(draws: &mut Draws<'_>, tally: &mut Changes) {
    let frame = Frame::random::<W>(draws);
    let limit = Limit::random(draws);
    let start = i128::from(draws.magnitude(1 << 60) / frame.tick);
    let settings = frame.builder(limit).origin(frame.instant(start));
    let Ok(bucket) = settings.build_on::<W>() else {
        return;
    };
    let mut newest = start;
    let mut course = Course {
        bucket,
        model: Ideal::new(frame, limit, newest),
        tally,
        eras: Eras::default(),
    };
    let late_at_most = i128::from(frame.staleness / frame.tick);
    let mut late = 0;
    while draws.another_step() {
        let tick = newest - late;
        let Ok(now) = u64::try_from(tick * i128::from(frame.tick)) else {
            return;
        };
        let Some(now) = now.checked_add(draws.below(frame.tick)) else {
            return;
        };
        let at = nanos(now);
        course.looks_right(at, tick);
        let model = &course.model;
        course.tally.operations += 1;
        course.tally.late += u64::from(late > 0);
        course.tally.unlimited += u64::from(model.is_unlimited());
        course.tally.frozen += u64::from(model.gain == 0 && !model.is_unlimited());
        let most = model.available(tick).min(1 << 20);
        let some = draws.magnitude(most + 1);
        let n = draws.one_of(&[some, most, most + 1, 1, 0]) as u32;
        match draws.below(10) {
            0..=3 => course.take(at, tick, n),
            4 => course.force(at, tick, n + draws.below(4) as u32),
            5 | 6 => {
                let burst = model.limit.burst;
                let n = draws.one_of(&[0, 1, some, burst / 2, burst, burst + 1, u64::MAX]);
                course.refill(at, tick, n, draws.once_in(2));
            }
            _ => {
                let next = Limit::random(draws);
                let (rate, burst) = (
                    Limit {
                        burst: model.limit.burst,
                        ..next
                    },
                    Limit {
                        burst: next.burst,
                        ..model.limit
                    },
                );
                let next = draws.one_of(&[next, next, rate, burst]);
                course.adjust(at, tick, next, draws.below(5) as usize);
            }
        }
        // At most a fifth of the range, so that an idle state is not mistaken for a stale one, nor
        // the reverse.
        let model = &course.model;
        let gain = model.gain.max(1);
        let far = ((1i128 << frame.bits) / 5 / gain).min(1 << 58);
        let step = match draws.below(6) {
            0 | 1 => 0,
            2 | 3 => draw(draws, (model.cost * 3 / gain + 2).min(far)),
            4 => draw(draws, (model.full() * 2 / gain + 2).min(far)),
            _ => draw(draws, far),
        };
        newest = newest.max(model.newest);
        if newest - model.newest + step <= far {
            newest += step;
        }
        late = if draws.once_in(3) {
            draw(draws, late_at_most).min(newest - start)
        } else {
            0
        };
    }
}

#[test]
fn changes_settle_what_was_earned_at_the_old_rate_as_rational_arithmetic_does() {
    fn check<W: Word>() {
        let operations = if cfg!(debug_assertions) {
            200_000
        } else {
            2_000_000
        };
        let (mut tally, mut seed) = (Changes::default(), 0);
        while tally.operations < operations {
            seed += 1;
            let mut draws = Draws::Seeded {
                state: seed,
                steps: 60,
            };
            with_changes::<W>(&mut draws, &mut tally);
        }
        println!("{} bits: {tally:?}", W::BITS);
        let Changes {
            granted,
            denied,
            forced,
            forced_into_debt,
            retried,
            late,
            changed,
            ..
        } = tally;
        let Changes {
            changed_late,
            changed_in_debt,
            unlimited,
            frozen,
            misfits,
            ..
        } = tally;
        let counts = [granted, denied, forced, forced_into_debt, retried, late];
        let others = [changed_late, changed_in_debt, unlimited, frozen, misfits];
        let Changes {
            added,
            reset,
            refilled_in_debt,
            ..
        } = tally;
        assert!(added.min(reset).min(refilled_in_debt) > 50, "{tally:?}");
        assert!(
            counts
                .iter()
                .chain(&changed)
                .chain(&others)
                .all(|&count| count > 50),
            "{tally:?}"
        );
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_token_bucket_owes_what_is_forced_as_rational_arithmetic_does() {
    fn check<W: Word>() {
        let operations = if cfg!(debug_assertions) {
            200_000
        } else {
            1_000_000
        };
        let (mut done, mut forced, mut refused, mut late, mut seed) = (0, 0, 0, 0, 0);
        while done < operations {
            seed += 1;
            let mut draws = Draws::Seeded {
                state: seed,
                steps: 60,
            };
            let draws = &mut draws;
            let (frame, limit) = (Frame::random::<W>(draws), Limit::random(draws));
            let settings = TokenBucket::builder(limit.rate(), limit.burst)
                .debt(frame.debt)
                .tick(Duration::from_nanos(frame.tick))
                .staleness(Duration::from_nanos(frame.staleness));
            let Ok(bucket) = settings.build_on::<W>() else {
                continue;
            };
            let start = i128::from(frame.staleness.div_ceil(frame.tick));
            let (mut tick, mut newest) = (start, start);
            let mut model = Ideal::new(frame, limit, start);
            // Until then the bucket is idle.
            model.take(start, 0);
            if model.is_unlimited() || bucket.take_at(frame.instant(start), 1).is_err() {
                continue;
            }
            model.take(start, 1);
            while draws.another_step() {
                let at = frame.instant(tick);
                let available = model.available(tick);
                assert_eq!(bucket.available_at(at), available, "{bucket:?} {model:?}");
                let most = available.min(1 << 20) as u32;
                let n = draws.one_of(&[1, most, most + 1, most.saturating_add(frame.debt as u32)]);
                if draws.once_in(2) {
                    let level = model.at(tick) - i128::from(n) * model.cost;
                    let fits = -level <= model.owes_at_most();
                    let before = format!("{bucket:?}");
                    let answer = bucket.force_at(at, n);
                    assert_eq!(
                        answer.is_ok(),
                        fits || n == 0,
                        "{n} {answer:?}: {bucket:?} {model:?}"
                    );
                    if let Err(denied) = answer {
                        refused += 1;
                        assert_eq!(format!("{bucket:?}"), before);
                        let exceeds = u64::from(n) > limit.burst + frame.debt;
                        assert_eq!(matches!(denied, Denied::ExceedsCapacity { .. }), exceeds);
                    } else if n > 0 {
                        forced += u64::from(level < 0);
                        model.take(tick, n);
                    }
                } else {
                    match bucket.take_at(at, n) {
                        Ok(_) => {
                            assert!(u64::from(n) <= available);
                            model.take(tick, n);
                        }
                        Err(denied) => {
                            assert!(u64::from(n.max(1)) > available);
                            let ideal = model
                                .suffices(tick, n.max(1))
                                .filter(|_| u64::from(n) <= limit.burst);
                            let ideal = ideal
                                .and_then(|tick| u64::try_from(tick * i128::from(frame.tick)).ok());
                            let expected = ideal.map_or(Retry::Never, |at| Retry::At(nanos(at)));
                            assert_eq!(bucket.retry(denied), expected);
                        }
                    }
                }
                done += 1;
                let gain = model.gain.max(1);
                let far = ((1i128 << (W::BITS - 3)) / gain).min(1 << 40);
                let step = (model.cost * 3 / gain + 2).clamp(0, far);
                if newest - model.newest < far {
                    newest += draw(draws, step);
                }
                let most = i128::from(frame.staleness / frame.tick);
                tick = newest
                    - if draws.once_in(3) {
                        draw(draws, most)
                    } else {
                        0
                    };
                tick = tick.max(0);
                late += u64::from(tick < newest);
            }
        }
        println!(
            "{} bits: {done} operations, {forced} forced, {refused} refused, {late} late",
            W::BITS
        );
        assert!(forced > operations / 100 && refused > operations / 100 && late > operations / 100);
    }
    check::<u64>();
    check::<u32>();
}

fn spent<W: Word>(rate: Rate, burst: u32, left: u32, now: Timestamp) -> AdjustableBucket<W> {
    let bucket = AdjustableBucket::builder(rate, burst.into()).tick(Duration::from_millis(1));
    let bucket = bucket.debt(8).build_on::<W>().unwrap();
    bucket.take_at(now, burst - left).unwrap();
    bucket
}

#[test]
fn parts_of_a_permit_survive_any_number_of_changes() {
    fn check<W: Word>() {
        let bucket = spent::<W>(Rate::per_second(1), 5, 0, millis(0));
        for (now, rate) in [(100, 2), (200, 4), (300, 1)] {
            bucket
                .adjust_at(millis(now), Rate::per_second(rate), 5, Carry::Keep)
                .unwrap();
            assert_eq!(bucket.available_at(millis(now)), 0);
        }
        // 0.1, 0.2 and 0.4 permits have come in; the rest needs 300 ms more.
        assert_eq!(bucket.available_at(millis(599)), 0);
        assert_eq!(bucket.available_at(millis(600)), 1);
    }
    check::<u64>();
    check::<u32>();
}

/// What remains of ten permits in a bucket of twenty, five and one, after a take of 4, of 10, or of
/// 12, which leaves a debt of 2.
#[test]
fn each_carry_keeps_what_it_says() {
    fn check<W: Word>(left: i32, carry: Option<Carry>, expected: [i32; 3]) {
        let now = millis(1_000);
        for (burst, expected) in [20, 5, 1].into_iter().zip(expected) {
            let bucket = spent::<W>(Rate::per_second(1), 10, left.max(0).unsigned_abs(), now);
            bucket.force_at(now, left.min(0).unsigned_abs()).unwrap();
            change(&bucket, now, Rate::per_second(1), burst, carry).unwrap();
            // The first permit is 1 s away if none is owed, and one second later for each that is
            // owed.
            let at = millis(1_000 + 1_000 * u64::from((1 - expected).max(0).unsigned_abs()));
            let denied = Denied::Exhausted { now, permits: 1 };
            let (available, retry) = (bucket.available_at(now), bucket.retry(denied));
            assert_eq!(
                available,
                expected.max(0).unsigned_abs().into(),
                "{carry:?} of {left}, burst {burst}"
            );
            // 0.6 of a permit is there, so the next one is nearer.
            let early = left == 6 && carry == Some(Carry::Proportional) && burst == 1;
            assert!(
                early || retry == Retry::At(at),
                "{carry:?} of {left}, burst {burst}: {retry:?}"
            );
        }
    }
    let cases = [
        (6, Carry::Keep, [6, 5, 1]),
        (6, Carry::Proportional, [12, 3, 0]),
        (6, Carry::Additive, [16, 1, 0]),
        (6, Carry::Reset, [20, 5, 1]),
        (0, Carry::Keep, [0, 0, 0]),
        (0, Carry::Proportional, [0, 0, 0]),
        (0, Carry::Additive, [10, 0, 0]),
        (-2, Carry::Keep, [-2, -2, -2]),
        (-2, Carry::Proportional, [-2, -2, -2]),
        (-2, Carry::Additive, [8, -2, -2]),
        (-2, Carry::Reset, [20, 5, 1]),
    ];
    let cases = cases.map(|(left, carry, expected)| (left, Some(carry), expected));
    let emptied = [(6, None, [0; 3]), (-2, None, [-2; 3])];
    for (left, carry, expected) in cases.into_iter().chain(emptied) {
        check::<u64>(left, carry, expected);
        check::<u32>(left, carry, expected);
    }
}

#[test]
fn a_rate_may_become_zero_or_unlimited_and_an_ordinary_one_again() {
    fn check<W: Word>() {
        let bucket = spent::<W>(Rate::per_second(1), 5, 2, millis(0));
        bucket
            .adjust_at(millis(500), Rate::ZERO, 5, Carry::Keep)
            .unwrap();
        assert_eq!(bucket.available_at(millis(500)), 2);
        assert_eq!(bucket.available_at(millis(100_000)), 2);
        let denied = bucket.take_at(millis(1_000), 3).unwrap_err();
        assert_eq!(bucket.retry(denied), Retry::Never);
        bucket
            .adjust_at(millis(100_000), Rate::per_second(1), 5, Carry::Keep)
            .unwrap();
        assert_eq!(
            bucket.available_at(millis(100_999)),
            2,
            "the half is lost: a frozen bucket has whole permits only"
        );
        assert_eq!(bucket.available_at(millis(101_000)), 3);

        bucket
            .adjust_at(millis(101_000), Rate::UNLIMITED, 1, Carry::Keep)
            .unwrap();
        assert_eq!(
            (bucket.available_at(millis(0)), bucket.idle_at(millis(0))),
            (u64::MAX, Idle::Now)
        );
        assert!((0..1_000).all(|_| bucket.take_at(millis(101_000), 1_000_000).is_ok()));
        for carry in CARRIES {
            let now = millis(102_000);
            change(&bucket, now, Rate::UNLIMITED, 1, carry).unwrap();
            change(&bucket, now, Rate::per_second(1), 7, carry).unwrap();
            let expected = carry.map_or(0, |_| 7);
            assert_eq!(
                bucket.available_at(millis(102_000)),
                expected,
                "{carry:?}: full, as it was while unlimited"
            );
        }
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_bucket_built_without_a_rate_or_a_limit_accepts_an_ordinary_rate_later() {
    fn check<W: Word>(rate: Rate) {
        let bucket: AdjustableBucket<W> = AdjustableBucket::builder(rate, 20).build_on().unwrap();
        assert_eq!(bucket.timing().tick, Duration::from_micros(1));
        let second = Duration::from_secs(1);
        assert!(
            bucket.timing().staleness >= second,
            "{:?}",
            bucket.timing().staleness
        );
        assert!(
            bucket.timing().horizon >= 3_600 * second,
            "{:?}",
            bucket.timing().horizon
        );
        bucket
            .adjust_at(millis(500), Rate::per_second(10), 20, Carry::Reset)
            .unwrap();
        assert_eq!(bucket.available_at(millis(500)), 20);
        assert!(
            bucket.timing().staleness >= second,
            "{:?}",
            bucket.timing().staleness
        );
    }
    for rate in [Rate::ZERO, Rate::UNLIMITED] {
        check::<u64>(rate);
        check::<u32>(rate);
    }
}

#[test]
fn a_staleness_that_does_not_fit_the_word_is_shortened_to_what_fits() {
    let bucket: AdjustableBucket<u32> = AdjustableBucket::builder(Rate::ZERO, 100)
        .tick(Duration::from_nanos(1))
        .build_on()
        .unwrap();
    assert_eq!(
        bucket.timing().staleness,
        Duration::from_nanos((1 << 30) - 1)
    );
}

#[test]
fn a_change_gains_nothing_by_a_newest_time_that_lies_a_turn_of_the_word_behind() {
    let settings = AdjustableBucket::builder(Rate::per_second(2_000), 8);
    let bucket: AdjustableBucket<u32> = settings.tick(Duration::from_micros(1)).build_on().unwrap();
    // The staleness is long, so that a time 4,000 s in the past seems to be in the future.
    for (rate, burst) in [(Rate::ZERO, 100), (Rate::per_second(2_000), 8)] {
        bucket
            .adjust_at(millis(1_000_000), rate, burst, Carry::Additive)
            .unwrap();
    }
    let now = millis(5_000_000);
    bucket.take_at(now, 7).unwrap();
    bucket.adjust_at(now, Rate::ZERO, 100, Carry::Keep).unwrap();
    assert_eq!(bucket.available_at(now), 1);
}

#[test]
fn at_a_rate_of_zero_a_late_rollback_after_a_pause_keeps_the_worth_of_older_receipts() {
    fn check<W: Word>() {
        let bucket: AdjustableBucket<W> = AdjustableBucket::builder(Rate::ZERO, 100)
            .build_on()
            .unwrap();
        let now = Timestamp::from_nanos(240_003_850_108);
        let late = Timestamp::from_nanos(239_003_850_108);
        let first = bucket.take_at(now, 3).unwrap();
        let second = bucket.take_at(late, 4).unwrap();
        assert_eq!(bucket.refund_at(late, 4, second).permits, 4);
        assert_eq!(bucket.refund_at(now, 3, first).permits, 3);
        assert_eq!(bucket.available_at(now), 100);
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn settings_that_do_not_fit_change_nothing() {
    let settings = AdjustableBucket::builder(Rate::per_second(10), 5).tick(Duration::from_nanos(1));
    let bucket = settings.build().unwrap();
    let now = millis(40);
    bucket.take_at(now, 3).unwrap();
    let before = format!("{bucket:?}");
    let refused = |rate, burst| {
        bucket
            .adjust_at(now, rate, burst, Carry::Reset)
            .unwrap_err()
    };
    let zero = SettingsError::Zero {
        setting: Setting::Burst,
    };
    assert_eq!(
        refused(Rate::per_second(10), 0),
        ChangeError::Settings(zero)
    );
    let ChangeError::Settings(SettingsError::TooLarge {
        setting: Setting::Burst,
        max,
    }) = refused(Rate::per_second(10), u64::MAX)
    else {
        panic!("a burst that is too large must be refused")
    };
    assert!(matches!(
        refused(Rate::per_second(10), max + 1),
        ChangeError::Settings(_)
    ));
    assert!(matches!(
        refused(Rate::new(1, Duration::ZERO), 1),
        ChangeError::Settings(_)
    ));
    assert!(
        matches!(
            refused(Rate::per_second(999_999_937), 1),
            ChangeError::Settings(_)
        ),
        "at a tick of 1 ns"
    );
    assert_eq!(format!("{bucket:?}"), before);
    bucket
        .adjust_at(now, Rate::per_second(10), max, Carry::Keep)
        .unwrap();
    assert_eq!((bucket.burst(), bucket.available_at(now)), (max, 2));
}

/// Counted from the old time, the faster rate would fill the bucket again.
#[test]
fn a_late_change_counts_from_the_newest_time_that_was_granted() {
    fn check<W: Word>() {
        let rates = [
            (1_000, 2_000, [4, 5]),
            (2_000, 1_000, [4, 5]),
            (1_000, 0, [4, 4]),
        ];
        for (old, new, available) in rates {
            let bucket = spent::<W>(Rate::per_second(old), 5, 4, millis(10));
            bucket
                .adjust_at(millis(7), Rate::per_second(new), 5, Carry::Keep)
                .unwrap();
            let found = [10, 11].map(|now| bucket.available_at(millis(now)));
            assert_eq!(found, available, "{old} a second, and then {new}");
            assert_eq!(bucket.take_at(millis(10), 5).is_ok(), available[0] >= 5);
        }
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_late_change_counts_from_the_time_of_a_newer_change_before_it() {
    fn check<W: Word>() {
        let bucket = spent::<W>(Rate::per_second(1_000), 9, 0, millis(0));
        bucket
            .adjust_at(millis(3), Rate::ZERO, 9, Carry::Keep)
            .unwrap();
        bucket
            .adjust_at(millis(1), Rate::per_second(1_000), 9, Carry::Keep)
            .unwrap();
        let found = [2, 3, 4].map(|now| bucket.available_at(millis(now)));
        assert_eq!(found, [2, 3, 4], "three permits have come in, not five");
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_change_after_a_newer_denial_counts_at_its_own_time() {
    fn check<W: Word>() {
        let bucket = spent::<W>(Rate::per_second(1_000), 5, 1, millis(10));
        assert!(bucket.take_at(millis(13), 5).is_err());
        assert_eq!(bucket.take_at(millis(13), 0).map(|_| ()), Ok(()));
        assert!(bucket.force_at(millis(13), 20).is_err());
        bucket
            .adjust_at(millis(11), Rate::per_second(2_000), 9, Carry::Keep)
            .unwrap();
        assert_eq!(
            bucket.available_at(millis(13)),
            6,
            "two by 11 ms, and two in each further millisecond"
        );
    }
    check::<u64>();
    check::<u32>();
}

/// The first rate is so high that its staleness is shorter than the one the next rate allows.
#[test]
fn a_change_may_be_as_late_as_the_current_settings_allow() {
    fn check<W: Word>(permits: u32, period: Duration, tick: Duration) {
        let settings = AdjustableBucket::builder(Rate::new(permits, period), 1_000).tick(tick);
        let bucket = settings.build_on::<W>().unwrap();
        let (first, seconds) = (bucket.timing().staleness, |n| Timestamp::from_secs(n));
        bucket
            .adjust_at(seconds(0), Rate::per_second(1), 1_000, Carry::Keep)
            .unwrap();
        let late = Duration::from_secs(100);
        assert!(first < late && late < bucket.timing().staleness);
        bucket.take_at(seconds(1_000), 500).unwrap();
        bucket
            .adjust_at(seconds(900), Rate::per_second(1), 1_000, Carry::Keep)
            .unwrap();
        assert_eq!(bucket.available_at(seconds(1_000)), 500);
    }
    check::<u64>(1_000, Duration::from_nanos(1), Duration::from_micros(1));
    check::<u32>(7_000, Duration::from_secs(1), Duration::from_secs(1));
}

/// The next rate is so high that its staleness is shorter than the change is late.
#[test]
fn on_32_bits_a_change_that_is_too_stale_for_its_own_settings_is_refused() {
    let settings =
        AdjustableBucket::builder(Rate::per_second(1), 1_000).tick(Duration::from_secs(1));
    let bucket = settings.build_on::<u32>().unwrap();
    assert!(bucket.timing().staleness > Duration::from_secs(100));
    bucket.take_at(millis(1_000_000), 500).unwrap();
    let before = format!("{bucket:?}");
    let change = |now| bucket.adjust_at(millis(now), Rate::per_second(7_000), 1_000, Carry::Keep);
    assert_eq!(change(900_000), Err(ChangeError::Stale));
    assert_eq!(format!("{bucket:?}"), before);
    assert_eq!(change(999_000), Ok(()));
    assert!(bucket.timing().staleness < Duration::from_secs(100));
}

/// Changes a bucket at a time.
type Change = fn(&AdjustableBucket<u32>, Timestamp) -> Result<(), ChangeError>;

/// A time that is older than the staleness by more looks like one that is a wrap of the word later,
/// at which the bucket is full. The newest time is known in full.
#[test]
fn on_32_bits_a_change_an_addition_and_a_reset_that_are_too_stale_are_refused() {
    let rate = Rate::per_second(1);
    let settings = AdjustableBucket::builder(rate, 10)
        .tick(Duration::from_micros(100))
        .staleness(Duration::from_secs(2));
    let bucket = settings.build_on::<u32>().unwrap();
    let wrap = bucket.timing().horizon.as_secs();
    let secs = |n| Timestamp::from_secs(n);
    let changes: [Change; 3] = [
        |bucket, now| bucket.adjust_at(now, Rate::per_second(1), 10, Carry::Keep),
        |bucket, now| bucket.add_at(now, 5),
        |bucket, now| bucket.reset_at(now, 5),
    ];
    // After the recorded newest time has wrapped, too: every 429,496 s at this tick.
    let mut now = 1_000_000;
    for change in changes {
        bucket.take_at(secs(now), 10).unwrap();
        let before = format!("{bucket:?}");
        for late in [3, 10, 1_000, wrap - 3, wrap, wrap + 1, 430_000, 900_000] {
            let outcome = change(&bucket, secs(now - late));
            assert_eq!(outcome, Err(ChangeError::Stale), "{late} s");
            assert_eq!(format!("{bucket:?}"), before, "{late} s");
        }
        assert_eq!(change(&bucket, secs(now - 2)), Ok(()));
        assert!(bucket.available_at(secs(now)) <= 5);
        // Idle for some wraps.
        now += 10 * wrap + 5;
        assert_eq!(change(&bucket, secs(now)), Ok(()));
        now += 1_000;
    }
}

/// Counted from the old time, the change would owe 55 permits, for 55 s at the new rate.
#[test]
fn a_late_change_never_owes_permits_that_were_not_owed() {
    fn check<W: Word>(tick: Duration) {
        let settings = AdjustableBucket::builder(Rate::per_second(1_000), 5).tick(tick);
        let bucket = settings
            .staleness(Duration::from_mins(1))
            .build_on::<W>()
            .unwrap();
        let now = 100_000;
        bucket.take_at(millis(now), 5).unwrap();
        bucket
            .adjust_at(millis(now - 55), Rate::per_second(1), 5, Carry::Keep)
            .unwrap();
        assert!(bucket.timing().staleness >= Duration::from_mins(1));
        assert!(bucket.take_at(millis(now), 1).is_err());
        let late = bucket.take_at(millis(now - 10_000), 1);
        assert!(late.is_err(), "10 s late, of 60 s, does not look idle");
        assert_eq!(
            [now + 999, now + 1_000].map(|at| bucket.available_at(millis(at))),
            [0, 1]
        );
    }
    check::<u64>(Duration::from_micros(1));
    check::<u32>(Duration::from_millis(1));
}

/// The debt is 1.2 permits, because a tick brings 0.3 of one and the reservation is due at a whole
/// tick. Only one permit may be owed.
#[test]
fn a_debt_rounded_up_to_a_tick_may_exceed_the_new_bound_for_a_tick() {
    fn check<W: Word>() {
        let settings = AdjustableBucket::builder(Rate::per_second(3), 1).debt(1);
        let settings = settings.tick(Duration::from_millis(100));
        let bucket = settings.build_on::<W>().unwrap();
        bucket.take_at(millis(0), 1).unwrap();
        let reserved = bucket.reserve_at(millis(0), 1, Duration::MAX).unwrap();
        assert_eq!(reserved.due(), millis(400));
        let before = format!("{bucket:?}");
        let change = |now, carry| {
            bucket.adjust_at(millis(now), Rate::new(3, Duration::from_secs(2)), 1, carry)
        };
        for carry in [Carry::Keep, Carry::Proportional, Carry::Additive] {
            assert_eq!(change(0, carry), Err(ChangeError::Owes));
        }
        assert_eq!(format!("{bucket:?}"), before);
        assert_eq!(change(100, Carry::Keep), Ok(()));
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_bucket_that_refills_in_steps_keeps_them_for_every_period_of_its_rate() {
    fn check<W: Word>() {
        let settings = AdjustableBucket::builder(Rate::per_second(5), 10)
            .stepwise()
            .initial(0);
        let bucket = settings.build_on::<W>().unwrap();
        bucket
            .adjust_at(millis(0), Rate::per_minute(30), 10, Carry::Keep)
            .unwrap();
        assert_eq!(bucket.timing().tick, Duration::from_secs(1));
        let found = [999, 1_999, 2_000, 3_999, 4_000].map(|now| bucket.available_at(millis(now)));
        assert_eq!(found, [0, 0, 1, 1, 2], "half a permit per second");
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_proportional_carry_keeps_fractions_of_a_permit() {
    let settings = AdjustableBucket::builder(Rate::per_day(1), 1).initial(0);
    let bucket = settings.build().unwrap();
    let noon = Timestamp::from_secs(43_200);
    bucket
        .adjust_at(
            noon,
            Rate::per_second(1_000_000),
            1_000_000,
            Carry::Proportional,
        )
        .unwrap();
    assert_eq!(bucket.available_at(noon), 500_000);
}

#[test]
fn forced_permits_are_granted_though_they_never_come_in() {
    fn check<W: Word>() {
        let settings = AdjustableBucket::builder(Rate::ZERO, 1).debt(5);
        let bucket = settings.build_on::<W>().unwrap();
        let plain = settings.build_on::<W>().unwrap();
        for (n, is_ok) in [(3, true), (3, true), (1, false)] {
            assert_eq!(bucket.force_at(millis(0), n).is_ok(), is_ok);
            assert_eq!(plain.force_at(millis(0), n).is_ok(), is_ok);
        }
        let reserved = bucket
            .reserve_at(millis(0), 1, Duration::MAX)
            .map(|reserved| reserved.due());
        assert_eq!(
            reserved,
            Err(Denied::Exhausted {
                now: millis(0),
                permits: 1
            }),
            "a reservation must come in"
        );
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn zero_permits_are_forced_and_reserved_at_any_time() {
    fn check<W: Word>() {
        let bucket = spent::<W>(Rate::per_second(10), 1, 0, millis(1_000));
        let _ = bucket.reserve_at(millis(1_000), 1, Duration::MAX).unwrap();
        let before = format!("{bucket:?}");
        for now in [0, 1_000, 2_000] {
            assert_eq!(bucket.force_at(millis(now), 0), Ok(()));
            let none = bucket.reserve_at(millis(now), 0, Duration::ZERO).unwrap();
            assert_eq!(
                (none.due(), none.permits(), none.cancel_at(millis(now))),
                (millis(now), 0, 0)
            );
        }
        assert_eq!(format!("{bucket:?}"), before);
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn without_a_limit_any_number_of_permits_is_granted() {
    fn check<W: Word>() {
        let bucket = AdjustableBucket::builder(Rate::UNLIMITED, 1)
            .build_on::<W>()
            .unwrap();
        assert!(bucket.take_at(millis(0), u32::MAX).is_ok());
        assert_eq!(bucket.force_at(millis(0), u32::MAX), Ok(()));
        assert!(
            bucket
                .reserve_at(millis(0), u32::MAX, Duration::ZERO)
                .is_ok()
        );
    }
    check::<u64>();
    check::<u32>();
}

/// The tick is part of the bucket's state. A token bucket's 64 bits have room for nanoseconds,
/// which cost it nothing.
#[test]
fn on_64_bits_the_tick_is_a_microsecond_unless_more_is_needed() {
    let (rate, burst) = (Rate::per_second(10), 5);
    assert_eq!(
        AdjustableBucket::new(rate, burst).timing().tick,
        Duration::from_micros(1)
    );
    assert_eq!(
        TokenBucket::new(rate, burst).timing().tick,
        Duration::from_nanos(1)
    );
}

/// The bound of every span: the largest burst plus what came in, for rates of N permits in each 100
/// ms. A stale timestamp counts at the newest time of a grant or a change.
#[test]
fn no_span_with_changes_in_it_holds_more_than_the_largest_burst_and_what_came_in() {
    const GRAIN: u64 = 1_000_000;
    const PERIOD: u64 = 100;
    #[derive(Default)]
    struct Tally {
        grants: u64,
        late_grants: u64,
        late_changes: u64,
    }
    fn check<W: Word>(seed: u64, tally: &mut Tally) {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 60,
        };
        let per_period = |permits| Rate::new(permits, Duration::from_millis(PERIOD));
        let mut rate = draws.below(30) as u32;
        let mut largest = draws.within(1, 6);
        let bucket =
            AdjustableBucket::builder(per_period(rate), largest).tick(Duration::from_millis(1));
        let bucket = bucket
            .staleness(Duration::from_secs(1))
            .build_on::<W>()
            .unwrap();
        // What had come in by each grant, in hundredths of a permit, and what was granted.
        let mut grants = Vec::<(u64, u64)>::new();
        // The last change, and what had come in by then.
        let (mut changed, mut before) = (0, 0);
        let (mut now, mut newest) = (5_000, 0);
        while draws.another_step() {
            let own = now
                - if draws.once_in(3) {
                    draws.magnitude(1_000)
                } else {
                    0
                };
            let (at, counts) = (nanos(own * GRAIN), own.max(newest));
            let come_in = before + (counts - changed) * u64::from(rate);
            let n = draws.within(1, 6) as u32;
            if draws.once_in(3) {
                let (next, burst) = (draws.below(30) as u32, draws.within(1, 6));
                bucket
                    .adjust_at(at, per_period(next), burst, Carry::Keep)
                    .unwrap();
                tally.late_changes += u64::from(own < newest);
                (rate, changed, before) = (next, counts, come_in);
                (largest, newest) = (largest.max(burst), counts);
            } else if bucket.take_at(at, n).is_ok() {
                tally.grants += 1;
                tally.late_grants += u64::from(own < newest);
                newest = counts;
                grants.push((come_in, n.into()));
                let mut sum = 0;
                for &(then, n) in grants.iter().rev() {
                    sum += n * PERIOD;
                    assert!(
                        sum <= largest * PERIOD + (come_in - then),
                        "{grants:?} {bucket:?}"
                    );
                }
            }
            now += draws.below(8);
        }
    }
    let mut tally = Tally::default();
    for seed in 0..4_000 {
        check::<u64>(seed, &mut tally);
        check::<u32>(seed, &mut tally);
    }
    let Tally {
        grants,
        late_grants,
        late_changes,
    } = tally;
    println!("{grants} grants, {late_grants} of them late, {late_changes} late changes");
    assert!(grants > 40_000 && late_grants > 1_000 && late_changes > 1_000);
}

// Real threads.

/// A clock that two threads read, and one sets. It waits for a thread that is stopped with a time
/// that it has read: a decision with a time older than the staleness is outside the contract.
struct SharedClock {
    now: AtomicU64,
    /// The times with which the threads decide; `u64::MAX` if they do not.
    in_use: [AtomicU64; 2],
}

impl SharedClock {
    const MOST_LATE: u64 = SECOND / 2;

    fn new(now: u64) -> Self {
        Self {
            now: AtomicU64::new(now),
            in_use: [const { AtomicU64::new(u64::MAX) }; 2],
        }
    }

    fn now(&self) -> u64 {
        self.now.load(SeqCst)
    }

    fn set(&self, now: u64) {
        self.now.store(now, SeqCst);
        let is_far_behind = |time: &AtomicU64| time.load(SeqCst) < now - Self::MOST_LATE;
        while self.in_use.iter().any(is_far_behind) {
            thread::yield_now();
        }
    }

    /// Runs a decision of the thread `who` with the present time.
    fn decide<T>(&self, who: usize, decision: impl FnOnce(u64) -> T) -> T {
        let mut now = self.now();
        loop {
            self.in_use[who].store(now, SeqCst);
            // If the clock is set from here on, the thread that sets it sees this time.
            let again = self.now();
            if again == now {
                break;
            }
            now = again;
        }
        let decided = decision(now);
        self.in_use[who].store(u64::MAX, SeqCst);
        decided
    }
}

/// Runs two threads that take until `done`, beside `work`. Then takes all that is left at the
/// time of the clock. Returns the sum of the permits taken.
fn drained(bucket: &AdjustableBucket<impl Word>, clock: &SharedClock, work: impl FnOnce()) -> u64 {
    let done = AtomicBool::new(false);
    let take = |n: u32| {
        let take = |now| bucket.take_at(nanos(now), n).map_or(0, |_| u64::from(n));
        clock.decide(n as usize - 1, take)
    };
    let taken: u64 = thread::scope(|scope| {
        let takers = [1, 2].map(|n| {
            let (take, done) = (&take, &done);
            scope.spawn(move || {
                let mut taken = 0;
                while !done.load(Relaxed) {
                    let some = take(n);
                    taken += some;
                    if some == 0 {
                        thread::yield_now();
                    }
                }
                taken
            })
        });
        work();
        done.store(true, Relaxed);
        takers.into_iter().map(|taker| taker.join().unwrap()).sum()
    });
    let mut rest = 0;
    while take(1) == 1 {
        rest += 1;
    }
    taken + rest
}

const CHANGES: u64 = if cfg!(debug_assertions) {
    20_000
} else {
    200_000
};

/// Returns a bucket with a tick of 1 ms and a clock that stands still at one second.
fn fast<W: Word>(burst: u64) -> (AdjustableBucket<W>, SharedClock) {
    let bucket =
        AdjustableBucket::builder(Rate::per_second(1_000), burst).tick(Duration::from_millis(1));
    let bucket = bucket.build_on::<W>().unwrap();
    // The staleness allowed is about the bucket's age, so the bucket has to have one.
    let_in(|| bucket.adjust_at(millis(1_000), Rate::per_second(1_000), burst, Carry::Reset));
    (bucket, SharedClock::new(SECOND))
}

/// Tries a change again if it is refused because a take is in the middle of a decision.
fn let_in(change: impl Fn() -> Result<(), ChangeError>) {
    while let Err(error) = change() {
        assert_eq!(error, ChangeError::Busy);
        thread::yield_now();
    }
}

#[test]
fn at_one_instant_no_number_of_changes_admits_more_than_the_first_burst() {
    fn check<W: Word>() {
        let (bucket, clock) = fast::<W>(50_000);
        let taken = drained(&bucket, &clock, || {
            for change in 0..CHANGES {
                let (rate, burst) = (1_000 * (1 + change % 7) as u32, 50_000 + change % 1_000);
                let_in(|| {
                    bucket.adjust_at(millis(1_000), Rate::per_second(rate), burst, Carry::Keep)
                });
            }
        });
        assert_eq!(taken, 50_000, "no permit is lost");

        // A smaller burst drops the permits that do not fit.
        let (bucket, clock) = fast::<W>(50_000);
        let taken = drained(&bucket, &clock, || {
            for change in 0..CHANGES {
                let carry = if change % 3 == 0 {
                    Carry::Keep
                } else {
                    Carry::Proportional
                };
                let burst = 50_000 - change % 40_000;
                let carry = if change % 40_000 == 0 {
                    Carry::Keep
                } else {
                    carry
                };
                let_in(|| bucket.adjust_at(millis(1_000), Rate::per_second(1_000), burst, carry));
            }
        });
        assert!(taken <= 50_000, "{taken}");
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn at_one_instant_exactly_what_was_added_to_the_burst_is_admitted() {
    fn check<W: Word>() {
        let (bucket, clock) = fast::<W>(1_000);
        let taken = drained(&bucket, &clock, || {
            for change in 1..=CHANGES {
                let rate = Rate::per_second(1_000 * (1 + change % 3) as u32);
                let_in(|| bucket.adjust_at(millis(1_000), rate, 1_000 + change, Carry::Additive));
            }
        });
        assert_eq!(taken, 1_000 + CHANGES);
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn under_changes_at_all_times_exactly_what_came_in_is_admitted() {
    fn check<W: Word>() {
        // The bucket is never full again, so that nothing that comes in is lost.
        let (bucket, clock) = fast::<W>(1_000_000);
        let mut come_in = 1_000_000;
        let mut rate = 1;
        let taken = drained(&bucket, &clock, || {
            for change in 0..CHANGES {
                let step = change % 3;
                let now = clock.now() + step * 1_000_000;
                clock.set(now);
                come_in += step * u64::from(rate);
                rate = 1 + (change % 5) as u32;
                let burst = 1_000_000 + change % 100;
                if bucket.available_at(nanos(now)) > 900_000 {
                    bucket.take_at(nanos(now), 200_000).unwrap();
                    come_in -= 200_000;
                }
                let_in(|| {
                    bucket.adjust_at(
                        nanos(now),
                        Rate::per_second(1_000 * rate),
                        burst,
                        Carry::Keep,
                    )
                });
            }
        });
        assert_eq!(taken, come_in);
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn of_two_concurrent_changes_one_is_busy_and_settings_are_never_mixed() {
    let (bucket, _) = fast::<u64>(10);
    let change =
        |rate, burst| bucket.adjust_at(millis(1_000), Rate::per_second(rate), burst, Carry::Reset);
    thread::scope(|scope| {
        for (rate, burst) in [(1_000, 10), (2_000, 20)] {
            scope.spawn(move || {
                for _ in 0..CHANGES {
                    let changed = change(rate, burst);
                    assert!(changed == Ok(()) || changed == Err(ChangeError::Busy));
                }
            });
        }
        for _ in 0..CHANGES {
            let burst = bucket.burst();
            assert!(burst == 10 || burst == 20);
        }
    });
    assert_eq!(
        change(3_000, 30),
        Ok(()),
        "a finished change admits the next one"
    );
    bucket.take_at(millis(1_000), 30).unwrap();
    assert_eq!(bucket.available_at(millis(1_009)), 27);
}
