//! Limiters with default ticks, after rests of any length, around each wrap of their words. Each is
//! compared with a reference that never wraps and that takes what the limiter grants. The limiter
//! never grants more, and until it may have wrapped it denies no more.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/soak.rs"]
mod soak;

use core::time::Duration;

use draws::Draws;
use portcullis_core::clock::Interval;
use portcullis_core::limiter::Receipt;
use portcullis_core::state::{Carry, Word};
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, FixedWindow, Limiter, LimiterExt, Rate, SlicedBucket,
    SlidingWindow, StripedBucket, Timestamp, TokenBucket, WarmingBucket,
};

const CARRIES: [Carry; 4] = [
    Carry::Keep,
    Carry::Proportional,
    Carry::Additive,
    Carry::Reset,
];

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The last time at which a reference can still be read.
const END: u64 = 1 << 60;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn at(now: u64) -> Timestamp {
    Timestamp::from_nanos(now)
}

/// What a limiter may grant, from the newest time on at which it granted.
trait Reference {
    fn available(&self, now: u64) -> u64;
    fn take(&mut self, now: u64, n: u32);
    /// Returns permits of the last take. Returns whether the limiter records the time of a refund.
    fn give_back(&mut self, now: u64, n: u32) -> bool;
}

/// A bucket on a line that does not wrap. A permit costs its period, in nanoseconds, and a
/// nanosecond brings as many units as there are permits in the period.
#[derive(Debug)]
struct Bucket {
    gain: i128,
    cost: i128,
    full: i128,
    tick: u64,
    used: i128,
    /// Whether a refund records its time. That to a stripe does not.
    records_refunds: bool,
}

impl Bucket {
    fn new(permits: u32, period: u64, burst: u64, tick: Duration) -> Self {
        let cost = i128::from(period);
        Self {
            gain: permits.into(),
            cost,
            full: i128::from(burst) * cost,
            tick: nanos(tick),
            used: i128::MIN / 2,
            records_refunds: true,
        }
    }

    fn position(&self, now: u64) -> i128 {
        i128::from(now / self.tick * self.tick) * self.gain
    }
}

impl Reference for Bucket {
    fn available(&self, now: u64) -> u64 {
        let units = (self.position(now) - self.used).clamp(0, self.full);
        u64::try_from(units / self.cost).unwrap()
    }

    fn take(&mut self, now: u64, n: u32) {
        self.used = self.used.max(self.position(now) - self.full) + i128::from(n) * self.cost;
    }

    fn give_back(&mut self, now: u64, n: u32) -> bool {
        self.used -= i128::from(n) * self.cost;
        if self.records_refunds {
            self.used = self.used.max(self.position(now) - self.full);
        }
        self.records_refunds
    }
}

/// A limiter of the same kind, with a wider word.
struct Wide<L> {
    limiter: L,
    taken: Option<Receipt>,
}

impl<L: Limiter> Wide<L> {
    fn new(limiter: L, horizon: Duration) -> Self {
        assert!(nanos(horizon) > END, "{horizon:?}");
        let taken = None;
        Self { limiter, taken }
    }
}

impl<L: Limiter> Reference for Wide<L> {
    fn available(&self, now: u64) -> u64 {
        self.limiter.available_at(at(now))
    }

    fn take(&mut self, now: u64, n: u32) {
        self.taken = Some(self.limiter.take_at(at(now), n).unwrap());
    }

    fn give_back(&mut self, now: u64, n: u32) -> bool {
        let taken = self.taken.take().expect("permits of the last take");
        let back = self.limiter.refund_at(at(now), n, taken);
        assert_eq!(back.permits, n, "the reference refunds as many");
        false
    }
}

/// At most two whole windows in any span of a window's length: the bound of windows that requests
/// start. After a wrap, a request may count in the rest of an old window. So a limiter that never
/// wraps has other windows.
struct TwoWindows {
    limit: u64,
    length: u64,
    granted: Vec<(u64, u32)>,
}

impl Reference for TwoWindows {
    fn available(&self, now: u64) -> u64 {
        let recent = self.granted.iter().rev();
        let recent = recent.take_while(|(then, _)| now - then < self.length);
        2 * self.limit - recent.map(|(_, n)| u64::from(*n)).sum::<u64>()
    }

    fn take(&mut self, now: u64, n: u32) {
        self.granted.push((now, n));
    }

    fn give_back(&mut self, _: u64, n: u32) -> bool {
        let (_, last) = self.granted.last_mut().expect("permits of the last take");
        *last -= n;
        false
    }
}

/// A limiter, and what a trace needs to know about it.
struct Subject<'a> {
    name: String,
    limiter: &'a dyn Limiter,
    burst: u32,
    staleness: u64,
    horizon: u64,
    /// After this time it is as new.
    full_after: u64,
    /// Whether each denial must be one of the reference, too, until the word may have wrapped.
    is_exact: bool,
}

/// What came of a trace.
#[derive(Default, Debug)]
struct Counts {
    granted: u64,
    granted_late: u64,
    refunded: u64,
    needlessly: u64,
}

impl Subject<'_> {
    /// Returns a rest: often about a whole number of horizons.
    fn rest(&self, draws: &mut Draws<'_>) -> u64 {
        let near = self.near();
        match draws.below(8) {
            0 => draws.magnitude(20 * 365 * DAY),
            1 | 2 if self.horizon < END / 8 => {
                let wraps = (1 + draws.below(3)).saturating_mul(self.horizon);
                let before = draws.magnitude(near);
                wraps
                    .saturating_add(draws.magnitude(near))
                    .saturating_sub(before)
            }
            3 => draws.magnitude(self.full_after.saturating_mul(2)),
            4 => 0,
            _ => draws.magnitude(self.full_after / 4 + 2),
        }
    }

    /// How long around a wrap the word may look like that of another time.
    fn near(&self) -> u64 {
        let around = self.staleness.saturating_add(self.full_after);
        around.saturating_mul(3)
    }

    /// Whether the word may have wrapped at `now` that was last written at `since`.
    fn may_have_wrapped(&self, since: u64, now: u64) -> bool {
        now - since >= self.horizon.saturating_sub(self.near())
    }

    fn trace(
        &self,
        reference: &mut impl Reference,
        draws: &mut Draws<'_>,
        mut change: impl FnMut(u64, &mut Draws<'_>) -> bool,
    ) -> Counts {
        let mut counts = Counts::default();
        // The newest time of a grant, and when its word is as if it had never wrapped before.
        let (mut newest, mut settled) = (0, 0);
        let mut now = self.rest(draws).min(END);
        let mut last: Option<(u32, Receipt)> = None;
        while draws.another_step() {
            now = now.saturating_add(self.rest(draws));
            if now >= END {
                break;
            }
            let time = if draws.once_in(3) {
                now - draws.magnitude(self.staleness.min(now)).min(now)
            } else {
                now
            };
            let counted = time.max(newest);
            let has = reference.available(counted);
            let told = self.limiter.available_at(at(time));
            let name = &self.name;
            assert!(
                told <= has,
                "{name}: {told} of {has} at {time}, newest {newest}"
            );
            let n = match draws.below(4) {
                0 => self.burst,
                1 => has.clamp(1, self.burst.into()) as u32,
                _ => 1 + draws.below(self.burst.into()) as u32,
            };
            match draws.below(16) {
                0 => {
                    if let Some((n, receipt)) = last.take() {
                        let n = 1 + draws.below(n.into()) as u32;
                        let back = self.limiter.refund_at(at(time), n, receipt).permits;
                        assert!(back <= n, "{name}");
                        if back > 0 {
                            let is_recorded = reference.give_back(counted, back);
                            if is_recorded && self.may_have_wrapped(newest, counted) {
                                settled = counted.saturating_add(self.near());
                            }
                            if is_recorded {
                                newest = counted;
                            }
                            counts.refunded += u64::from(back);
                        }
                    }
                    continue;
                }
                1 => {
                    if change(counted, draws) {
                        last = None;
                        newest = counted;
                    }
                    continue;
                }
                _ => {}
            }
            // An interval may be long, and over since long.
            let (taken, from) = if draws.once_in(4) {
                let from = time - draws.magnitude(self.staleness.min(time)).min(time);
                let Some(within) = Interval::new(at(from), at(time)) else {
                    continue;
                };
                match self.limiter.take_within(within, n) {
                    Some(taken) => (taken, from),
                    None => continue,
                }
            } else {
                (self.limiter.take_at(at(time), n), time)
            };
            let counted = from.max(newest);
            let has = reference.available(counted);
            if let Ok(receipt) = taken {
                assert!(
                    u64::from(n) <= has,
                    "{name}: {n} of {has} granted at {from}, newest {newest}"
                );
                reference.take(counted, n);
                counts.granted += 1;
                counts.granted_late += u64::from(from < newest);
                // The word may keep a stamp from before the wrap.
                if self.may_have_wrapped(newest, counted) {
                    settled = counted.saturating_add(self.near());
                }
                (newest, last) = (counted, Some((n, receipt)));
            } else if from == time && time >= newest && u64::from(n) <= has {
                assert!(
                    !self.is_exact || time < settled || self.may_have_wrapped(newest, time),
                    "{name}: {n} of {has} denied at {time}, newest {newest}"
                );
                counts.needlessly += 1;
            }
        }
        counts
    }
}

/// Rates and windows of all sizes, as permits and a period in nanoseconds.
const LIMITS: [(u32, u64); 24] = [
    (1, DAY),
    (5, DAY),
    (1_000, DAY),
    (1, HOUR),
    (7, HOUR),
    (100, HOUR),
    (1, MINUTE),
    (7, MINUTE),
    (30, MINUTE),
    (61, MINUTE),
    (1, SECOND),
    (3, SECOND),
    (5, SECOND),
    (7, SECOND),
    (10, SECOND),
    (61, SECOND),
    (100, SECOND),
    (333, SECOND),
    (999, SECOND),
    (1_000, SECOND),
    (2_443, SECOND),
    (10_000, SECOND),
    (100_000, SECOND),
    (1_000_000, SECOND),
];

fn no_change(_: u64, _: &mut Draws<'_>) -> bool {
    false
}

/// A trace of one bucket of each kind that has no live settings.
fn buckets<W: Word>((permits, period): (u32, u64), burst: u64, draws: &mut Draws<'_>) -> Counts {
    let rate = Rate::new(permits, Duration::from_nanos(period));
    let full_after = |tick: Duration| {
        nanos(rate_of_burst(permits, period, burst)).saturating_add(2 * nanos(tick))
    };
    let name = |kind: &str, tick: Duration| {
        format!(
            "{kind}, {} bits, {permits} in {period}, burst {burst}, by {tick:?}",
            W::BITS
        )
    };
    macro_rules! trace {
        ($kind:literal, $limiter:expr, $is_one_word:expr) => {{
            let Ok(limiter) = $limiter else {
                return Counts::default();
            };
            let tick = limiter.timing().tick;
            let mut reference = Bucket::new(permits, period, burst, tick);
            reference.records_refunds = $is_one_word;
            Subject {
                name: name($kind, tick),
                burst: burst as u32,
                staleness: nanos(limiter.timing().staleness),
                horizon: nanos(limiter.timing().horizon),
                full_after: full_after(tick),
                limiter: &limiter,
                is_exact: $is_one_word,
            }
            .trace(&mut reference, draws, no_change)
        }};
    }
    match draws.below(3) {
        0 => trace!(
            "token bucket",
            TokenBucket::builder(rate, burst).build_on::<W>(),
            true
        ),
        1 => trace!(
            "sliced bucket",
            SlicedBucket::builder(rate, burst).build_on::<W>(),
            true
        ),
        _ => trace!(
            "striped bucket",
            StripedBucket::builder(rate, burst).build_on::<4, W>(),
            false
        ),
    }
}

/// The time in which a burst returns.
fn rate_of_burst(permits: u32, period: u64, burst: u64) -> Duration {
    let nanos = u128::from(burst) * u128::from(period) / u128::from(permits) + 1;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn windows<W: Word>((limit, period): (u32, u64), draws: &mut Draws<'_>) -> Counts {
    let length = Duration::from_nanos(period);
    macro_rules! trace {
        ($kind:literal, $limiter:expr, $spans:expr, $reference:expr) => {{
            let Ok(limiter) = $limiter else {
                return Counts::default();
            };
            let (mut reference, is_exact) = $reference(&limiter);
            Subject {
                name: format!("{} of {limit} in {length:?}, {} bits", $kind, W::BITS),
                burst: limit,
                staleness: nanos(limiter.timing().staleness),
                horizon: nanos(limiter.timing().horizon),
                full_after: $spans * period,
                limiter: &limiter,
                is_exact,
            }
            .trace(&mut reference, draws, no_change)
        }};
    }
    macro_rules! wide {
        ($builder:expr) => {
            |_: &_| {
                let limiter = $builder.build_on::<u64>().unwrap();
                let horizon = limiter.timing().horizon;
                (Wide::new(limiter, horizon), true)
            }
        };
    }
    let two_windows = |length: Duration| TwoWindows {
        limit: limit.into(),
        length: nanos(length),
        granted: Vec::new(),
    };
    let of = u64::from(limit);
    let grid = FixedWindow::builder(of, length);
    let started = grid.started_by_first_request();
    let sliding = SlidingWindow::<8>::builder(of, length, 8);
    let strict = SlidingWindow::<8>::builder(of, length, 7).strict();
    let adjustable = AdjustableWindow::builder(of, length).started_by_first_request();
    match draws.below(5) {
        0 => trace!("window", grid.build_on::<W>(), 1, wide!(grid)),
        1 => trace!(
            "started window",
            started.build_on::<W>(),
            2,
            |one: &FixedWindow<W>| (two_windows(one.window()), false)
        ),
        2 => trace!("sliding window", sliding.build_on::<W>(), 2, wide!(sliding)),
        3 => trace!("strict window", strict.build_on::<W>(), 2, wide!(strict)),
        _ => trace!(
            "adjustable started window",
            adjustable.build_on::<W>(),
            2,
            |one: &AdjustableWindow<W>| (two_windows(one.window()), false)
        ),
    }
}

/// A bucket that changes live, often after a rest.
fn adjustable_bucket((permits, period): (u32, u64), burst: u64, draws: &mut Draws<'_>) -> Counts {
    let rate = |n| Rate::new(n, Duration::from_nanos(period));
    let builder = AdjustableBucket::builder(rate(permits), burst);
    let Ok(limiter) = builder.build_on::<u32>() else {
        return Counts::default();
    };
    let wide = builder
        .tick(limiter.timing().tick)
        .staleness(limiter.timing().staleness.min(Duration::from_nanos(DAY)))
        .build_on::<u64>()
        .unwrap();
    if nanos(wide.timing().horizon) <= END {
        return Counts::default();
    }
    let horizon = wide.timing().horizon;
    let mut reference = Wide::new(&wide, horizon);
    let change = |now: u64, draws: &mut Draws<'_>| {
        let carry = draws.one_of(&CARRIES);
        let next = (
            draws.one_of(&[permits, permits.div_ceil(2)]),
            1 + draws.below(burst),
        );
        let one = limiter.adjust_at(at(now), rate(next.0), next.1, carry);
        let is_made = one.is_ok();
        if is_made {
            wide.adjust_at(at(now), rate(next.0), next.1, carry)
                .unwrap();
        }
        is_made
    };
    Subject {
        name: format!("adjustable bucket, {permits} in {period}, burst {burst}"),
        burst: burst as u32,
        // The least that any settings may have.
        staleness: SECOND,
        horizon: nanos(limiter.timing().horizon) / 2,
        full_after: nanos(rate_of_burst(permits.div_ceil(2), period, burst))
            + 2 * nanos(limiter.timing().tick),
        limiter: &limiter,
        is_exact: false,
    }
    .trace(&mut reference, draws, change)
}

fn adjustable_window((limit, period): (u32, u64), draws: &mut Draws<'_>) -> Counts {
    let length = Duration::from_nanos(period);
    let builder = AdjustableWindow::builder(limit.into(), length);
    let Ok(limiter) = builder.build_on::<u32>() else {
        return Counts::default();
    };
    let wide = builder
        .tick(limiter.timing().tick)
        .staleness(limiter.timing().staleness.min(Duration::from_nanos(DAY)))
        .build_on::<u64>()
        .unwrap();
    if nanos(wide.timing().horizon) <= END {
        return Counts::default();
    }
    let horizon = wide.timing().horizon;
    let change = |now: u64, draws: &mut Draws<'_>| {
        let carry = draws.one_of(&CARRIES);
        let next = (
            1 + draws.below(limit.into()),
            draws.one_of(&[length, length / 2]),
        );
        let is_made = limiter.adjust_at(at(now), next.0, next.1, carry).is_ok();
        if is_made {
            wide.adjust_at(at(now), next.0, next.1, carry).unwrap();
        }
        is_made
    };
    Subject {
        name: format!("adjustable window of {limit} in {length:?}"),
        burst: limit,
        staleness: nanos(limiter.timing().staleness),
        horizon: nanos(limiter.timing().horizon) / 2,
        full_after: 2 * period,
        limiter: &limiter,
        is_exact: false,
    }
    .trace(&mut Wide::new(&wide, horizon), draws, change)
}

/// After a wrap, a bucket may count as warm. It never grants more than at its stable rate.
fn warming((permits, period): (u32, u64), burst: u64, draws: &mut Draws<'_>) -> Counts {
    let warm_up = Duration::from_nanos(period.saturating_mul(3));
    let rate = Rate::new(permits, Duration::from_nanos(period));
    let builder = WarmingBucket::builder(rate, burst, warm_up);
    let Ok(limiter) = builder.build_on::<u32>() else {
        return Counts::default();
    };
    let mut reference = Bucket::new(permits, period, burst, limiter.timing().tick);
    Subject {
        name: format!("warming bucket, {permits} in {period}, burst {burst}"),
        burst: burst as u32,
        staleness: nanos(limiter.timing().staleness),
        horizon: nanos(limiter.timing().horizon),
        full_after: nanos(warm_up) * 3 + nanos(rate_of_burst(permits, period, burst)) * 3,
        limiter: &limiter,
        is_exact: false,
    }
    .trace(&mut reference, draws, no_change)
}

fn round(seed: u64, steps: u32) -> [Counts; 7] {
    let mut draws = Draws::Seeded { state: seed, steps };
    let limit = draws.one_of(&LIMITS);
    let burst = draws.one_of(&[1, 2, 3, 10, u64::from(limit.0).min(20_000)]);
    let draws = || Draws::Seeded {
        state: !seed,
        steps,
    };
    [
        buckets::<u32>(limit, burst, &mut draws()),
        buckets::<u64>(limit, burst, &mut draws()),
        windows::<u32>(limit, &mut draws()),
        windows::<u64>(limit, &mut draws()),
        adjustable_bucket(limit, burst, &mut draws()),
        adjustable_window(limit, &mut draws()),
        warming(limit, burst, &mut draws()),
    ]
}

fn check(rounds: impl Iterator<Item = u64>) {
    let mut sum: [Counts; 7] = Default::default();
    for seed in rounds {
        for (sum, counts) in sum.iter_mut().zip(round(seed, 400)) {
            sum.granted += counts.granted;
            sum.granted_late += counts.granted_late;
            sum.refunded += counts.refunded;
            sum.needlessly += counts.needlessly;
        }
    }
    println!("{sum:#?}");
    let is_varied = |sum: &Counts| sum.granted > 1_000 && sum.refunded > 100 && sum.needlessly > 0;
    assert!(sum.iter().all(is_varied), "{sum:#?}");
}

#[test]
fn no_limiter_grants_more_after_any_rest_than_one_that_never_wraps() {
    check(0..if cfg!(debug_assertions) { 300 } else { 3_000 });
}

#[test]
#[ignore = "takes two minutes"]
fn no_limiter_grants_more_after_any_rest_in_a_long_run() {
    check(soak::rounds("after any rest"));
}
