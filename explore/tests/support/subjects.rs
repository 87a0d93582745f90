//! Every limiter of the core, with random settings.

use core::cell::Cell;
use core::hash::{BuildHasherDefault, Hasher};
use core::time::Duration;

use portcullis_core::builder::{
    EscalationThreshold, FixedWindowBuilder, SlicedBucketBuilder, Timing, TokenBucketBuilder,
};
use portcullis_core::clock::Interval;
use portcullis_core::composition::AllLease;
use portcullis_core::keyed::{
    ConcurrencyRules, FixedWindowRules, IntoRules, Line, TokenBucketRules,
};
use portcullis_core::leases::LeaseId;
use portcullis_core::limiter::{
    Answer, Ask, Back, Hints, Idle, LimiterId, Read, Reading, Returned,
};
use portcullis_core::parts::{Reservation, Slice};
use portcullis_core::state::Word;
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, AllOf, Concurrency, ConcurrencyShares, CooldownWindow,
    Counted, Denied, Escalation, FixedWindow, Keyed, KeyedArray, KeyedList, LeasePool, Limiter,
    Penalty, Rate, Retry, SlicedBucket, SlidingWindow, Timestamp, TokenBucket, WarmingBucket,
};

use super::draws::Draws;
use super::op::Verb::{
    Adjust, Cancel, Claim, Cut, Draw, End, Force, Look, Other, Planned, Refund, Release, Reserve,
    Rollback, SetLimit, Sweep, Take, Uncut,
};
use super::op::{Op, Outcome, Verb, at};
use super::world::{Current, Facts, SLOTS, Subject, World};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn span(draws: &mut Draws<'_>) -> u64 {
    draws.one_of(&[
        MILLI,
        10 * MILLI,
        100 * MILLI,
        SECOND,
        7 * SECOND,
        60 * SECOND,
    ])
}

fn staleness(draws: &mut Draws<'_>) -> Option<Duration> {
    draws
        .one_of(&[None, None, Some(1), Some(2), Some(60)])
        .map(Duration::from_secs)
}

fn origin(draws: &mut Draws<'_>) -> u64 {
    match draws.below(4) {
        0 | 1 => 0,
        2 => draws.magnitude(1 << 62),
        _ => 1_700_000_000 * SECOND,
    }
}

/// Returns a small number of permits.
fn few(draws: &mut Draws<'_>) -> u64 {
    draws.one_of(&[1, 2, 3, 5, 8, 10, 10, 100])
}

/// The settings of a bucket, and its times to fill and to pay a debt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketTerms {
    pub(crate) permits: u32,
    pub(crate) period: u64,
    pub(crate) burst: u64,
    pub(crate) debt: u64,
    pub(crate) initial: u64,
    tick: Option<u64>,
    stepwise: bool,
    staleness: Option<Duration>,
    pub(crate) origin: u64,
}

/// Applies all these settings to the builder of any bucket.
macro_rules! with_terms {
    ($terms:expr, $builder:expr) => {{
        let mut builder = $builder.initial($terms.initial).origin(at($terms.origin));
        if let Some(tick) = $terms.tick {
            builder = builder.tick(Duration::from_nanos(tick));
        }
        if $terms.stepwise {
            builder = builder.stepwise();
        }
        if let Some(staleness) = $terms.staleness {
            builder = builder.staleness(staleness);
        }
        builder
    }};
}

impl BucketTerms {
    pub(crate) fn random(draws: &mut Draws<'_>) -> Self {
        let period = span(draws);
        let burst = few(draws);
        Self {
            permits: draws.one_of(&[1, 2, 3, 7, 10, 10, 1_000, 1_000_003]),
            period,
            burst,
            debt: draws.one_of(&[0, 0, 3, 10]),
            initial: if draws.once_in(4) {
                draws.within(0, burst)
            } else {
                burst
            },
            tick: draws.one_of(&[None, None, Some(1), Some(1_000), Some(MILLI), Some(period)]),
            stepwise: draws.once_in(4),
            staleness: staleness(draws),
            origin: origin(draws),
        }
    }

    fn rate(&self) -> Rate {
        Rate::new(self.permits, Duration::from_nanos(self.period))
    }

    pub(crate) fn builder(&self) -> TokenBucketBuilder {
        with_terms!(
            self,
            TokenBucket::builder(self.rate(), self.burst).debt(self.debt)
        )
    }

    /// Returns a builder with the same settings, without a debt.
    fn sliced(&self) -> SlicedBucketBuilder {
        with_terms!(self, SlicedBucket::builder(self.rate(), self.burst))
    }

    fn facts(&self, timing: Timing) -> Facts {
        let tick = nanos(timing.tick);
        let grain = (self.period / u64::from(self.permits)).max(tick);
        Facts {
            grain,
            reach: reach(self.permits, self.period, self.burst + self.debt, tick),
            staleness: nanos(timing.staleness),
            late_change: nanos(timing.staleness),
            horizon: nanos(timing.horizon),
            longest_horizon: nanos(timing.horizon),
            burst: self.burst,
            tick,
            origin: self.origin,
        }
    }
}

fn reach(permits: u32, period: u64, units: u64, tick: u64) -> u64 {
    (u128::from(units) * u128::from(period) / u128::from(permits)) as u64 + 2 * tick
}

#[derive(Debug)]
pub(crate) struct Bucket<W: Word> {
    pub(crate) bucket: TokenBucket<W>,
    pub(crate) terms: BucketTerms,
}

impl<W: Word> Subject for Bucket<W> {
    type Extra = ();
    const NAME: &'static str = "token bucket";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Planned, Look, Refund, Refund, Refund, Rollback, Rollback, Force,
    ];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let terms = BucketTerms::random(draws);
        let bucket: TokenBucket<W> = terms.builder().build_on().ok()?;
        let facts = terms.facts(bucket.timing());
        Some((Self { bucket, terms }, facts))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.bucket)
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        match *op {
            Op::Force { now, n } => match world.subject.bucket.force_at(at(now), n) {
                Ok(()) => Outcome::granted(n),
                Err(_) => Outcome::NOTHING,
            },
            _ => Outcome::NOTHING,
        }
    }

    fn describe(&self) -> String {
        format!("{} bits, {:?}", W::BITS, self.terms)
    }
}

/// A bucket that warms up, and its settings.
#[derive(Debug)]
pub(crate) struct Warming<W: Word> {
    bucket: WarmingBucket<W>,
    terms: BucketTerms,
    warm_up: u64,
    cold_factor: u32,
}

impl<W: Word> Subject for Warming<W> {
    type Extra = ();
    const NAME: &'static str = "warming bucket";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Planned, Look, Refund, Refund, Rollback, Rollback,
    ];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let mut terms = BucketTerms::random(draws);
        (terms.debt, terms.initial, terms.stepwise) = (0, terms.burst, false);
        let cold_factor = draws.one_of(&[1, 2, 3, 3, 10]);
        let least = reach(terms.permits, terms.period, 2 * terms.burst, 1);
        let warm_up = least * draws.one_of(&[1, 2, 20]);
        let span = Duration::from_nanos(warm_up);
        let mut builder = WarmingBucket::builder(terms.rate(), terms.burst, span)
            .cold_factor(cold_factor)
            .origin(at(terms.origin));
        if let Some(tick) = terms.tick {
            builder = builder.tick(Duration::from_nanos(tick));
        }
        if let Some(staleness) = terms.staleness {
            builder = builder.staleness(staleness);
        }
        let bucket: WarmingBucket<W> = builder.build_on().ok()?;
        let mut facts = terms.facts(bucket.timing());
        facts.reach = facts.reach * u64::from(cold_factor) + warm_up + 2 * facts.tick;
        let subject = Self {
            bucket,
            terms,
            warm_up,
            cold_factor,
        };
        Some((subject, facts))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.bucket)
    }

    fn describe(&self) -> String {
        format!(
            "{} bits, {:?}, warm-up {} by {}",
            W::BITS,
            self.terms,
            self.warm_up,
            self.cold_factor
        )
    }
}

/// The limits and lengths of windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowTerms {
    pub(crate) limit: u64,
    pub(crate) window: u64,
    pub(crate) started: bool,
    tick: Option<u64>,
    staleness: Option<Duration>,
    pub(crate) origin: u64,
}

impl WindowTerms {
    pub(crate) fn random(draws: &mut Draws<'_>) -> Self {
        let window = span(draws);
        Self {
            limit: few(draws),
            window,
            started: draws.once_in(2),
            tick: draws.one_of(&[None, None, Some(1), Some(1_000), Some(window / 10)]),
            staleness: staleness(draws),
            origin: origin(draws),
        }
    }

    fn facts(&self, timing: Timing) -> Facts {
        let tick = nanos(timing.tick);
        Facts {
            grain: self.window / 4,
            reach: self.window + 2 * tick,
            staleness: nanos(timing.staleness),
            late_change: nanos(timing.staleness),
            horizon: nanos(timing.horizon),
            longest_horizon: nanos(timing.horizon),
            burst: self.limit,
            tick,
            origin: self.origin,
        }
    }

    fn fixed(&self) -> FixedWindowBuilder {
        let mut builder = FixedWindow::builder(self.limit, Duration::from_nanos(self.window))
            .origin(at(self.origin));
        if self.started {
            builder = builder.started_by_first_request();
        }
        if let Some(tick) = self.tick {
            builder = builder.tick(Duration::from_nanos(tick));
        }
        if let Some(staleness) = self.staleness {
            builder = builder.staleness(staleness);
        }
        builder
    }
}

#[derive(Debug)]
pub(crate) struct Fixed<W: Word> {
    pub(crate) window: FixedWindow<W>,
    pub(crate) terms: WindowTerms,
}

impl<W: Word> Subject for Fixed<W> {
    type Extra = ();
    const NAME: &'static str = "fixed window";
    const VERBS: &'static [Verb] = &[Take, Take, Take, Planned, Look, Refund, Refund, Rollback];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let terms = WindowTerms::random(draws);
        let window: FixedWindow<W> = terms.fixed().build_on().ok()?;
        let facts = terms.facts(window.timing());
        Some((Self { window, terms }, facts))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.window)
    }

    fn describe(&self) -> String {
        format!("{} bits, {:?}", W::BITS, self.terms)
    }
}

#[derive(Debug)]
pub(crate) struct Sliding<W: Word> {
    pub(crate) window: SlidingWindow<4, W>,
    pub(crate) terms: WindowTerms,
    pub(crate) segments: u32,
    pub(crate) strict: bool,
    limits: [u64; 4],
}

impl<W: Word> Subject for Sliding<W> {
    type Extra = ();
    const NAME: &'static str = "sliding window";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Take, Planned, Look, Refund, Refund, Rollback, SetLimit,
    ];
    const ROLLS: bool = true;

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let terms = WindowTerms::random(draws);
        let strict = draws.once_in(2);
        let segments = draws.within(1, if strict { 3 } else { 4 }) as u32;
        let mut builder =
            SlidingWindow::<4>::builder(terms.limit, Duration::from_nanos(terms.window), segments)
                .max_limit(2 * terms.limit)
                .origin(at(terms.origin));
        if strict {
            builder = builder.strict();
        }
        if let Some(staleness) = terms.staleness {
            builder = builder.staleness(staleness);
        }
        let window: SlidingWindow<4, W> = builder.build_on().ok()?;
        let mut facts = terms.facts(window.timing());
        facts.tick = 1;
        facts.grain = terms.window / u64::from(segments);
        facts.reach = 2 * terms.window + 4;
        let limits = [terms.limit, 1, terms.limit / 2 + 1, 2 * terms.limit];
        Some((
            Self {
                window,
                terms,
                segments,
                strict,
                limits,
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.window)
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        let Op::SetLimit { to } = *op else {
            return Outcome::NOTHING;
        };
        let subject = &world.subject;
        let set = subject
            .window
            .set_limit(subject.limits[usize::from(to)])
            .is_ok();
        Outcome {
            acted: set,
            ..Outcome::NOTHING
        }
    }

    fn describe(&self) -> String {
        format!(
            "{} bits, {} segments, strict {}, limits {:?}, {:?}",
            W::BITS,
            self.segments,
            self.strict,
            self.limits,
            self.terms
        )
    }
}

#[derive(Debug)]
pub(crate) struct Cooldown<W: Word> {
    pub(crate) window: CooldownWindow<W>,
    pub(crate) terms: WindowTerms,
    pub(crate) wait: Option<u64>,
}

impl<W: Word> Subject for Cooldown<W> {
    type Extra = ();
    const NAME: &'static str = "cooldown window";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Look, Refund, Refund, Rollback, Rollback,
    ];
    const DENIALS_ACT: bool = true;

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let terms = WindowTerms::random(draws);
        let wait = draws.one_of(&[
            None,
            Some(terms.window),
            Some(terms.window / 10),
            Some(3 * terms.window),
            Some(MILLI),
        ]);
        let mut builder = CooldownWindow::builder(terms.limit, Duration::from_nanos(terms.window))
            .origin(at(terms.origin));
        if let Some(wait) = wait {
            builder = builder.wait(Duration::from_nanos(wait));
        }
        if let Some(tick) = terms.tick {
            builder = builder.tick(Duration::from_nanos(tick));
        }
        if let Some(staleness) = terms.staleness {
            builder = builder.staleness(staleness);
        }
        let window: CooldownWindow<W> = builder.build_on().ok()?;
        let mut facts = terms.facts(window.timing());
        facts.reach += wait.unwrap_or(0) + 2 * facts.tick;
        Some((
            Self {
                window,
                terms,
                wait,
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.window)
    }

    fn describe(&self) -> String {
        format!("{} bits, wait {:?}, {:?}", W::BITS, self.wait, self.terms)
    }
}

/// A slice, and the number of permits taken through it.
pub(crate) struct Cutting<L: portcullis_core::parts::Sliceable> {
    slice: Slice<Current<L>>,
    out: u32,
}

#[derive(Debug)]
pub(crate) struct Permits<W: Word> {
    limiter: Concurrency<W>,
    limits: [u32; 4],
}

impl<W: Word> Subject for Permits<W> {
    type Extra = Cutting<Concurrency<W>>;
    const NAME: &'static str = "concurrency";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Look, Refund, Release, Release, Rollback, SetLimit, Cut, Draw,
        Uncut,
    ];
    const HOLDS: bool = true;

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let limit = few(draws) as u32;
        let limiter = Concurrency::builder(limit).build_on().ok()?;
        Some((
            Self {
                limiter,
                limits: [limit, 0, limit / 2, 2 * limit],
            },
            timeless(limit),
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.limiter)
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        let subject = &world.subject;
        Current::set(&subject.limiter);
        match *op {
            Op::SetLimit { to } => {
                let set = subject
                    .limiter
                    .set_limit(subject.limits[usize::from(to)])
                    .is_ok();
                Outcome {
                    acted: set,
                    ..Outcome::NOTHING
                }
            }
            Op::Cut { now, n, slot } => match Slice::cut_at(Current::new(), at(now), n) {
                Ok(slice) => {
                    world.put_extra(slot, Cutting { slice, out: 0 });
                    Outcome {
                        acted: true,
                        ..Outcome::NOTHING
                    }
                }
                Err(_) => Outcome::NOTHING,
            },
            Op::Draw { now, n, slot } => {
                let Some(mut cutting) = world.extra(slot) else {
                    return Outcome::NOTHING;
                };
                let granted = cutting.slice.take_at(at(now), n).is_ok();
                cutting.out += if granted { n } else { 0 };
                world.put_extra(slot, cutting);
                if granted {
                    Outcome::granted(n)
                } else {
                    Outcome::NOTHING
                }
            }
            Op::Uncut { slot } => match world.extra(slot) {
                Some(cutting) => Outcome {
                    acted: true,
                    ..Outcome::back(end(cutting))
                },
                None => Outcome::NOTHING,
            },
            _ => Outcome::NOTHING,
        }
    }

    fn kept(cutting: &Self::Extra) -> u64 {
        cutting.slice.held().into()
    }

    fn finish(world: &World<Self>, cutting: Self::Extra) {
        Current::set(&world.subject.limiter);
        end(cutting);
    }

    fn describe(&self) -> String {
        format!("{} bits, limits {:?}", W::BITS, self.limits)
    }
}

/// Releases all permits and drops the slice.
fn end<W: Word>(Cutting { slice, out }: Cutting<Concurrency<W>>) -> u64 {
    slice.release(out);
    drop(slice);
    out.into()
}

fn timeless(limit: u32) -> Facts {
    Facts {
        grain: 10,
        reach: 100,
        staleness: SECOND,
        late_change: SECOND,
        horizon: u64::MAX,
        longest_horizon: u64::MAX,
        burst: limit.into(),
        tick: 1,
        origin: 0,
    }
}

/// One of two shares of a concurrency limit; the other is guaranteed a part, and lends it.
#[derive(Debug)]
pub(crate) struct Shared<W: Word> {
    shares: ConcurrencyShares<2, W>,
}

impl<W: Word> Subject for Shared<W> {
    type Extra = ();
    const NAME: &'static str = "concurrency share";
    const VERBS: &'static [Verb] = &[Take, Take, Take, Look, Refund, Release, Release, Rollback];
    const HOLDS: bool = true;

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let limit = few(draws) as u32;
        let other = draws.within(0, u64::from(limit) - 1) as u32;
        let builder = ConcurrencyShares::builder(limit, [(limit - other) / 2, other]);
        let lends = draws.once_in(2);
        let shares = if lends {
            builder.lend_after(Duration::from_secs(1)).build_on().ok()?
        } else {
            builder.build_on().ok()?
        };
        let facts = timeless(if lends { limit } else { limit - other });
        Some((Self { shares }, facts))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.shares.share(0))
    }

    fn describe(&self) -> String {
        format!("{} bits, {:?}", W::BITS, self.shares)
    }
}

#[derive(Debug)]
pub(crate) struct Sliced<W: Word> {
    pub(crate) bucket: SlicedBucket<W>,
    pub(crate) terms: BucketTerms,
}

impl<W: Word> Subject for Sliced<W> {
    type Extra = Cutting<SlicedBucket<W>>;
    const NAME: &'static str = "sliced bucket";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Look, Refund, Refund, Rollback, Cut, Cut, Draw, Draw, Draw,
        Uncut,
    ];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let mut terms = BucketTerms::random(draws);
        terms.debt = 0;
        let bucket: SlicedBucket<W> = terms.sliced().build_on().ok()?;
        let mut facts = terms.facts(bucket.timing());
        facts.reach += nanos(bucket.hold());
        Some((Self { bucket, terms }, facts))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.bucket)
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        Current::set(&world.subject.bucket);
        match *op {
            Op::Cut { now, n, slot } => match Slice::cut_at(Current::new(), at(now), n) {
                Ok(slice) => {
                    world.put_extra(slot, Cutting { slice, out: 0 });
                    Outcome {
                        acted: true,
                        ..Outcome::NOTHING
                    }
                }
                Err(_) => Outcome::NOTHING,
            },
            Op::Draw { now, n, slot } => {
                let Some(cutting) = world.extra(slot) else {
                    return Outcome::NOTHING;
                };
                let granted = cutting.slice.take_at(at(now), n).is_ok();
                world.put_extra(slot, cutting);
                if granted {
                    Outcome::granted(n)
                } else {
                    Outcome::NOTHING
                }
            }
            Op::Uncut { slot } => match world.extra(slot) {
                Some(cutting) => {
                    drop(cutting);
                    Outcome {
                        acted: true,
                        ..Outcome::NOTHING
                    }
                }
                None => Outcome::NOTHING,
            },
            _ => Outcome::NOTHING,
        }
    }

    fn kept(cutting: &Self::Extra) -> u64 {
        cutting.slice.held().into()
    }

    fn finish(world: &World<Self>, cutting: Self::Extra) {
        Current::set(&world.subject.bucket);
        drop(cutting);
    }

    fn describe(&self) -> String {
        format!("{} bits, {:?}", W::BITS, self.terms)
    }
}

/// A bucket, and the rates and bursts that it is changed to.
#[derive(Debug)]
pub(crate) struct Adjustable<W: Word> {
    pub(crate) bucket: AdjustableBucket<W>,
    pub(crate) terms: BucketTerms,
    /// The first set is the one it is built with.
    pub(crate) sets: [(Rate, u64); 4],
}

impl<W: Word> Subject for Adjustable<W> {
    type Extra = Reservation<Current<AdjustableBucket<W>>>;
    const NAME: &'static str = "adjustable bucket";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Look, Refund, Refund, Refund, Rollback, Force, Reserve, Reserve,
        Cancel, Cancel, Adjust, Adjust, Adjust,
    ];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let mut terms = BucketTerms::random(draws);
        terms.stepwise = false;
        if draws.once_in(16) {
            (terms.burst, terms.initial) = (10_000, 10_000);
        }
        let other = |draws: &mut Draws<'_>| {
            let permits = draws.one_of(&[1, 2, 3, 10, 1_000]);
            let rate = match draws.below(8) {
                0 => Rate::ZERO,
                1 => Rate::UNLIMITED,
                _ => Rate::new(permits, Duration::from_nanos(span(draws))),
            };
            (rate, few(draws))
        };
        let mut first = (terms.rate(), terms.burst);
        if draws.once_in(8) {
            first.0 = draws.one_of(&[Rate::ZERO, Rate::UNLIMITED]);
        }
        let sets = [first, other(draws), other(draws), (first.0, few(draws))];
        let build = |(rate, burst): (Rate, u64), tick: Option<Duration>| {
            let mut builder = AdjustableBucket::builder(rate, burst)
                .debt(terms.debt)
                .origin(at(terms.origin));
            if let Some(tick) = tick.or(terms.tick.map(Duration::from_nanos)) {
                builder = builder.tick(tick);
            }
            if let Some(staleness) = terms.staleness {
                builder = builder.staleness(staleness);
            }
            builder
                .initial(terms.initial.min(burst))
                .build_on::<W>()
                .ok()
        };
        let bucket = build(sets[0], None)?;
        let tick = nanos(bucket.timing().tick);
        let built = sets.map(|set| build(set, Some(bucket.timing().tick)));
        let limited = || {
            built
                .iter()
                .zip(sets)
                .filter(|(_, (rate, _))| is_limited(*rate))
        };
        let stale = limited()
            .filter_map(|(built, _)| Some(nanos(built.as_ref()?.timing().staleness)))
            .min();
        let stale = stale.unwrap_or(SECOND);
        let horizon =
            |built: &Option<AdjustableBucket<W>>| Some(nanos(built.as_ref()?.timing().horizon));
        let longest = sets
            .iter()
            .filter(|(rate, _)| is_limited(*rate))
            .map(|(rate, burst)| {
                reach(
                    rate.permits() as u32,
                    nanos(rate.period()),
                    *burst + terms.debt,
                    tick,
                )
            });
        let grain = if is_limited(first.0) {
            nanos(first.0.period()) / first.0.permits()
        } else {
            MILLI
        };
        let facts = Facts {
            grain: grain.max(tick),
            reach: longest.max().unwrap_or(SECOND),
            staleness: stale,
            late_change: nanos(bucket.timing().staleness).min(stale.saturating_mul(8)),
            horizon: built.iter().filter_map(horizon).min().unwrap_or(u64::MAX),
            longest_horizon: limited()
                .filter_map(|(built, _)| horizon(built))
                .max()
                .unwrap_or(u64::MAX),
            burst: first.1,
            tick,
            origin: terms.origin,
        };
        Some((
            Self {
                bucket,
                terms,
                sets,
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.bucket)
    }

    fn may_stand_still(&self) -> bool {
        self.sets.iter().any(|(rate, _)| *rate == Rate::ZERO)
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        let subject = &world.subject;
        Current::set(&subject.bucket);
        match *op {
            Op::Force { now, n } => match subject.bucket.force_at(at(now), n) {
                Ok(()) => Outcome::granted(n),
                Err(_) => Outcome::NOTHING,
            },
            Op::Reserve { now, n, wait, slot } => {
                let wait = Duration::from_nanos(wait);
                match Reservation::reserve_at(Current::new(), at(now), n, wait) {
                    Ok(reserved) => {
                        // An earlier instant is better for the caller.
                        let told = u64::MAX - reserved.due().as_nanos();
                        world.put_extra(slot, reserved);
                        Outcome {
                            told,
                            ..Outcome::granted(n)
                        }
                    }
                    Err(_) => Outcome::NOTHING,
                }
            }
            Op::Cancel { now, slot } => match world.extra(slot) {
                Some(reserved) => Outcome::back(reserved.cancel_at(at(now)).into()),
                None => Outcome::NOTHING,
            },
            #[cfg(any(portcullis_explore, portcullis_notes))]
            Op::Note { now } => {
                subject.bucket.note_at(at(now));
                Outcome::NOTHING
            }
            Op::Adjust { now, to, carry } => {
                let (rate, burst) = subject.sets[usize::from(to)];
                let changed = subject
                    .bucket
                    .adjust_at(at(now), rate, burst, carry)
                    .is_ok();
                Outcome {
                    acted: changed,
                    ..Outcome::NOTHING
                }
            }
            _ => Outcome::NOTHING,
        }
    }

    fn describe(&self) -> String {
        format!("{} bits, sets {:?}, {:?}", W::BITS, self.sets, self.terms)
    }
}

pub(crate) fn is_limited(rate: Rate) -> bool {
    rate.permits() > 0 && !rate.is_unlimited()
}

#[derive(Debug)]
pub(crate) struct Changing<W: Word> {
    pub(crate) window: AdjustableWindow<W>,
    pub(crate) terms: WindowTerms,
    pub(crate) sets: [(u64, u64); 4],
}

impl<W: Word> Subject for Changing<W> {
    type Extra = ();
    const NAME: &'static str = "adjustable window";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Look, Refund, Refund, Rollback, Adjust, Adjust, Adjust,
    ];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let terms = WindowTerms::random(draws);
        let first = (terms.limit, terms.window);
        let other = |draws: &mut Draws<'_>| {
            (
                few(draws),
                draws.one_of(&[terms.window, terms.window / 3, 4 * terms.window]),
            )
        };
        let sets = [
            first,
            other(draws),
            other(draws),
            (few(draws), terms.window),
        ];
        let most = sets.map(|(limit, _)| limit).into_iter().max()?;
        let longest = sets.map(|(_, window)| window).into_iter().max()?;
        let mut builder = AdjustableWindow::builder(first.0, Duration::from_nanos(first.1))
            .max_limit(most)
            .max_window(Duration::from_nanos(longest))
            .origin(at(terms.origin));
        if terms.started {
            builder = builder.started_by_first_request();
        }
        if let Some(tick) = terms.tick {
            builder = builder.tick(Duration::from_nanos(tick));
        }
        if let Some(staleness) = terms.staleness {
            builder = builder.staleness(staleness);
        }
        let window: AdjustableWindow<W> = builder.build_on().ok()?;
        let mut facts = terms.facts(window.timing());
        facts.reach = longest + 2 * facts.tick;
        Some((
            Self {
                window,
                terms,
                sets,
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.window)
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        let subject = &world.subject;
        #[cfg(any(portcullis_explore, portcullis_notes))]
        if let Op::Note { now } = *op {
            subject.window.note_at(at(now));
        }
        let Op::Adjust { now, to, carry } = *op else {
            return Outcome::NOTHING;
        };
        let (limit, window) = subject.sets[usize::from(to)];
        let changed = subject
            .window
            .adjust_at(at(now), limit, Duration::from_nanos(window), carry)
            .is_ok();
        Outcome {
            acted: changed,
            ..Outcome::NOTHING
        }
    }

    fn describe(&self) -> String {
        format!("{} bits, sets {:?}, {:?}", W::BITS, self.sets, self.terms)
    }
}

/// A fast hash.
#[derive(Debug, Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn finish(&self) -> u64 {
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

type Hash = BuildHasherDefault<Mix>;

/// One key of a table, and other keys that may take over its slot.
pub(crate) struct Table<L> {
    keyed: Keyed<L, [Line; 1], Hash>,
    terms: Terms,
    pub(crate) tick: u64,
}

/// The settings of a table's limits.
#[derive(Clone, Copy, Debug)]
enum Terms {
    Bucket(BucketTerms),
    Window(WindowTerms),
    Permits(u32),
}

impl<L> Table<L> {
    pub(crate) fn bucket_terms(&self) -> BucketTerms {
        match self.terms {
            Terms::Bucket(terms) => terms,
            _ => panic!("the settings are not those of a bucket"),
        }
    }

    pub(crate) fn window_terms(&self) -> WindowTerms {
        match self.terms {
            Terms::Window(terms) => terms,
            _ => panic!("the settings are not those of a window"),
        }
    }
}

/// Implements `Subject` for a table.
macro_rules! table {
    ($name:literal, $limit:ty, $holds:literal, $verbs:expr, $random:expr) => {
        impl Subject for Table<$limit> {
            type Extra = ();
            const NAME: &'static str = $name;
            const VERBS: &'static [Verb] = $verbs;
            const HOLDS: bool = $holds;

            fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
                let staleness = Duration::from_secs(draws.one_of(&[1, 1, 60]));
                let random: fn(&mut Draws<'_>) -> Option<($limit, Facts, Terms)> = $random;
                let (limit, mut facts, terms) = random(draws)?;
                let keyed =
                    Keyed::new(limit, [Line::new()], Hash::default()).with_staleness(staleness);
                facts.staleness = facts.staleness.min(nanos(staleness));
                facts.late_change = facts.staleness;
                Some((
                    Self {
                        keyed,
                        terms,
                        tick: facts.tick,
                    },
                    facts,
                ))
            }

            fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
                work(&self.keyed.key(&0_u8))
            }

            fn special(world: &World<Self>, op: &Op) -> Outcome {
                match *op {
                    Op::Other { now, n, key } => {
                        let _ = world.subject.keyed.key(&key).take_at(at(now), n);
                    }
                    Op::Sweep { now } => {
                        let _ = world.subject.keyed.sweep_at(at(now), ..);
                    }
                    _ => return Outcome::NOTHING,
                }
                // An idle slot may have been reset.
                Outcome {
                    rolled_back: true,
                    ..Outcome::NOTHING
                }
            }

            fn describe(&self) -> String {
                format!("{:?}, table of {:?}", self.terms, self.keyed.staleness())
            }
        }
    };
}

table!(
    "keyed bucket",
    TokenBucketRules,
    false,
    &[
        Take, Take, Take, Planned, Look, Refund, Refund, Rollback, Other, Other, Sweep
    ],
    |draws| {
        let mut terms = BucketTerms::random(draws);
        (terms.debt, terms.initial) = (0, terms.burst);
        let bucket = terms.builder().rules().ok()?;
        let facts = terms.facts(bucket.timing());
        Some((bucket, facts, Terms::Bucket(terms)))
    }
);
table!(
    "keyed window",
    FixedWindowRules,
    false,
    &[
        Take, Take, Take, Planned, Look, Refund, Refund, Rollback, Other, Other, Sweep
    ],
    |draws| {
        let terms = WindowTerms::random(draws);
        let window = terms.fixed().rules().ok()?;
        let facts = terms.facts(window.timing());
        Some((window, facts, Terms::Window(terms)))
    }
);
table!(
    "keyed concurrency",
    ConcurrencyRules,
    true,
    &[
        Take, Take, Take, Planned, Look, Refund, Release, Rollback, Other, Other, Sweep
    ],
    |draws| {
        let limit = few(draws) as u32;
        Some((
            Concurrency::builder(limit)
                .build()
                .ok()?
                .into_rules()
                .ok()?,
            timeless(limit),
            Terms::Permits(limit),
        ))
    }
);

/// A limiter that decides within an interval wherever it can: one that is as long as nothing.
struct Within<'a>(&'a dyn Limiter);

impl Limiter for Within<'_> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        let interval = Interval::new(now, now).filter(|_| self.0.hints().decides_within);
        if let Some(interval) = interval {
            let answer = self.0.decide(Ask::new(interval, n, ask.how()));
            if answer != Answer::TimeMatters {
                return answer;
            }
        }
        self.0.decide(ask)
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }

    fn read(&self, read: Read<'_>) -> Reading {
        self.0.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }

    fn id(&self) -> Option<LimiterId> {
        self.0.id()
    }

    fn hints(&self) -> Hints {
        if self.0.hints().one_receipt {
            Hints::ONE_RECEIPT
        } else {
            Hints::NONE
        }
    }
}

/// One key of a table with several limits for each key, and other keys that may take its entry.
pub(crate) struct Several<L, T> {
    list: KeyedList<L, [Line; 2], Hash>,
    terms: T,
    within: bool,
}

/// Implements `Subject` for a table with several limits for each key.
macro_rules! list {
    ($name:literal, $rules:ty, $terms:ty, $holds:literal, $verbs:expr, $random:expr) => {
        impl Subject for Several<$rules, $terms> {
            type Extra = ();
            const NAME: &'static str = $name;
            const VERBS: &'static [Verb] = $verbs;
            const HOLDS: bool = $holds;
            const ROLLS: bool = true;

            fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
                let (within, staleness) = (draws.once_in(2), draws.one_of(&[1, 1, 60]));
                let staleness = Duration::from_secs(staleness);
                let random: fn(&mut Draws<'_>) -> Option<($rules, Facts, $terms)> = $random;
                let (rules, mut facts, terms) = random(draws)?;
                let lines = [const { Line::new() }; 2];
                let list = KeyedList::new(rules, lines, Hash::default());
                let list = list.with_staleness(staleness);
                facts.staleness = facts.staleness.min(nanos(staleness));
                facts.late_change = facts.staleness;
                let list = Self {
                    list,
                    terms,
                    within,
                };
                Some((list, facts))
            }

            fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
                let key = self.list.key(&0_u8);
                if self.within {
                    work(&Within(&key))
                } else {
                    work(&key)
                }
            }

            fn special(world: &World<Self>, op: &Op) -> Outcome {
                match *op {
                    Op::Other { now, n, key } => {
                        let _ = world.subject.list.key(&key).take_at(at(now), n);
                    }
                    Op::Sweep { now } => {
                        let _ = world.subject.list.sweep_at(at(now), ..);
                    }
                    _ => return Outcome::NOTHING,
                }
                // An idle entry may have been reset.
                Outcome {
                    rolled_back: true,
                    ..Outcome::NOTHING
                }
            }

            fn describe(&self) -> String {
                let Self {
                    list,
                    terms,
                    within,
                } = self;
                format!("{terms:?}, list of {:?}, within {within}", list.staleness())
            }
        }
    };
}

/// Returns two numbers of which one may be larger by a few: an order of calls that explains the
/// tighter limit then explains both, although each limit has an order of its own.
fn tighter_and_looser(least: u64, draws: &mut Draws<'_>) -> [u64; 2] {
    let looser = least + few(draws);
    draws.one_of(&[[least, least], [least, looser], [looser, least]])
}

list!(
    "keyed list of buckets",
    [TokenBucketRules; 2],
    (BucketTerms, [u64; 2]),
    false,
    &[
        Take, Take, Take, Planned, Look, Refund, Refund, Rollback, Other, Other, Sweep
    ],
    |draws| {
        let mut terms = BucketTerms::random(draws);
        (terms.debt, terms.initial) = (0, terms.burst);
        let bursts = tighter_and_looser(terms.burst, draws);
        let largest = BucketTerms {
            burst: bursts[0].max(bursts[1]),
            ..terms
        };
        // The tick of both.
        terms.tick = Some(nanos(largest.builder().rules().ok()?.timing().tick));
        let of = |burst| BucketTerms { burst, ..terms }.builder().rules().ok();
        let rules = [of(bursts[0])?, of(bursts[1])?];
        let facts = largest.facts(rules[0].timing().and(rules[1].timing()));
        let burst = terms.burst;
        Some((rules, Facts { burst, ..facts }, (terms, bursts)))
    }
);
list!(
    "keyed list of windows",
    [FixedWindowRules; 2],
    (WindowTerms, [u64; 2]),
    false,
    &[
        Take, Take, Take, Planned, Look, Refund, Refund, Rollback, Other, Other, Sweep
    ],
    |draws| {
        let mut terms = WindowTerms::random(draws);
        let limits = tighter_and_looser(terms.limit, draws);
        let most = limits[0].max(limits[1]);
        let largest = WindowTerms {
            limit: most,
            ..terms
        };
        if terms.started {
            terms.tick = Some(nanos(largest.fixed().rules().ok()?.timing().tick));
        }
        let of = |limit| WindowTerms { limit, ..terms }.fixed().rules().ok();
        let rules = [of(limits[0])?, of(limits[1])?];
        let facts = terms.facts(rules[0].timing().and(rules[1].timing()));
        Some((rules, facts, (terms, limits)))
    }
);
list!(
    "keyed list of concurrency limits",
    [ConcurrencyRules; 2],
    [u32; 2],
    true,
    &[
        Take, Take, Take, Planned, Look, Refund, Release, Rollback, Other, Other, Sweep
    ],
    |draws| {
        let limits = [few(draws) as u32, few(draws) as u32];
        let facts = timeless(limits[0].min(limits[1]));
        Some((limits.map(ConcurrencyRules::new), facts, limits))
    }
);

pub(crate) type ListOfBuckets = Several<[TokenBucketRules; 2], (BucketTerms, [u64; 2])>;
pub(crate) type ListOfWindows = Several<[FixedWindowRules; 2], (WindowTerms, [u64; 2])>;
pub(crate) type ListOfPermits = Several<[ConcurrencyRules; 2], [u32; 2]>;

/// A table of limiters of any type.
pub(crate) struct Array {
    table: KeyedArray<TokenBucket, [TokenBucket; 8], [Line; 1], Hash>,
    terms: BucketTerms,
}

impl Subject for Array {
    type Extra = ();
    const NAME: &'static str = "keyed array";
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Look, Refund, Refund, Rollback, Other, Other, Sweep,
    ];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let mut terms = BucketTerms::random(draws);
        (terms.debt, terms.initial) = (0, terms.burst);
        let build = || terms.builder().build();
        let bucket = build().ok()?;
        let mut facts = terms.facts(bucket.timing());
        let staleness = Duration::from_secs(draws.one_of(&[1, 1, 60]));
        facts.staleness = facts.staleness.min(nanos(staleness));
        let limiters =
            core::array::from_fn(|_| build().expect("the same settings were built before"));
        let table = KeyedArray::new(bucket, limiters, [Line::new()], Hash::default())
            .with_staleness(staleness);
        Some((Self { table, terms }, facts))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.table.key(&0_u8))
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        match *op {
            Op::Other { now, n, key } => {
                let _ = world.subject.table.key(&key).take_at(at(now), n);
            }
            Op::Sweep { now } => {
                let _ = world.subject.table.sweep_at(at(now), ..);
            }
            _ => return Outcome::NOTHING,
        }
        Outcome {
            rolled_back: true,
            ..Outcome::NOTHING
        }
    }

    fn describe(&self) -> String {
        format!("{:?}, table of {:?}", self.terms, self.table.staleness())
    }
}

/// A bucket in a penalty.
pub(crate) struct Penalised<W: Word> {
    limiter: Penalty<TokenBucket<W>, W>,
    terms: BucketTerms,
    wait: u64,
    after: u64,
}

impl<W: Word> Subject for Penalised<W> {
    type Extra = ();
    const NAME: &'static str = "penalty";
    const VERBS: &'static [Verb] = &[Take, Take, Take, Planned, Look, Refund, Refund, Rollback];
    const DENIALS_ACT: bool = true;

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let mut terms = BucketTerms::random(draws);
        terms.debt = 0;
        let (wait, after) = (span(draws), draws.one_of(&[1, 1, 3]));
        let within = span(draws);
        let bucket: TokenBucket<W> = terms.builder().build_on().ok()?;
        let mut facts = terms.facts(bucket.timing());
        let limiter = Penalty::builder(Duration::from_nanos(wait))
            .after(after, Duration::from_nanos(within))
            .build_on()
            .ok()?
            .around(bucket);
        facts.staleness = facts.staleness.min(nanos(limiter.timing().staleness));
        facts.horizon = facts.horizon.min(nanos(limiter.timing().horizon));
        facts.reach = facts.reach.max(within) + wait + 2 * nanos(limiter.timing().tick);
        Some((
            Self {
                limiter,
                terms,
                wait,
                after,
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.limiter)
    }

    fn describe(&self) -> String {
        format!(
            "{} bits, wait {} after {}, {:?}",
            W::BITS,
            self.wait,
            self.after,
            self.terms
        )
    }
}

/// A window with thresholds.
pub(crate) struct Escalating<W: Word> {
    limiter: Escalation<FixedWindow<W>, u8, 2, W>,
    terms: WindowTerms,
}

impl<W: Word> Subject for Escalating<W> {
    type Extra = ();
    const NAME: &'static str = "escalation";
    const VERBS: &'static [Verb] = &[Take, Take, Take, Planned, Look, Refund, Refund, Rollback];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let mut terms = WindowTerms::random(draws);
        terms.limit += 1;
        let window: FixedWindow<W> = terms.fixed().build_on().ok()?;
        let facts = terms.facts(window.timing());
        let hold = Duration::from_nanos(span(draws));
        let thresholds = [
            EscalationThreshold {
                used: 1,
                hold,
                decision: 1,
            },
            EscalationThreshold {
                used: terms.limit,
                hold,
                decision: 2,
            },
        ];
        Some((
            Self {
                limiter: Escalation::builder(window, thresholds).build_on().ok()?,
                terms,
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.limiter)
    }

    fn describe(&self) -> String {
        format!("{} bits, {:?}", W::BITS, self.terms)
    }
}

/// A sliding window with counters.
pub(crate) struct Counting {
    limiter: Counted<Sliding<u64>>,
}

impl Limiter for Sliding<u64> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.window.decide(ask)
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        self.window.give_back(back)
    }

    fn read(&self, read: Read<'_>) -> Reading {
        self.window.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.window.retry(denied)
    }
}

impl Subject for Counting {
    type Extra = ();
    const NAME: &'static str = "counted window";
    const ROLLS: bool = true;
    const VERBS: &'static [Verb] = &[Take, Take, Take, Planned, Look, Refund, Refund, Rollback];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let (window, facts) = Sliding::random(draws)?;
        Some((
            Self {
                limiter: Counted::new(window),
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.limiter)
    }

    fn describe(&self) -> String {
        self.limiter.limiter().describe()
    }
}

/// A composition of three limits.
pub(crate) struct Three<W: Word> {
    /// The limit that is judged alone.
    only: Cell<Option<usize>>,
    limits: AllOf<(TokenBucket<W>, FixedWindow<W>, SlidingWindow<4, W>)>,
    bucket: BucketTerms,
    window: WindowTerms,
    within: bool,
}

impl<W: Word> Subject for Three<W> {
    type Extra = ();
    const NAME: &'static str = "three limits as one";
    const ROLLS: bool = true;
    const PARTS: usize = 3;
    const VERBS: &'static [Verb] = &[
        Take, Take, Take, Planned, Look, Refund, Rollback, Other, Other,
    ];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let mut terms = BucketTerms::random(draws);
        terms.debt = 0;
        let mut window = WindowTerms::random(draws);
        window.origin = terms.origin;
        let bucket: TokenBucket<W> = terms.builder().build_on().ok()?;
        let fixed: FixedWindow<W> = window.fixed().build_on().ok()?;
        let sliding =
            SlidingWindow::<4>::builder(window.limit + 1, Duration::from_nanos(window.window), 3)
                .origin(at(window.origin))
                .build_on::<W>()
                .ok()?;
        let mut facts = terms.facts(bucket.timing());
        facts.staleness = facts
            .staleness
            .min(nanos(fixed.timing().staleness))
            .min(nanos(sliding.timing().staleness));
        facts.horizon = facts
            .horizon
            .min(nanos(fixed.timing().horizon))
            .min(nanos(sliding.timing().horizon));
        facts.reach = facts
            .reach
            .max(2 * window.window + nanos(fixed.timing().tick));
        facts.burst = facts.burst.min(window.limit);
        let limits = AllOf::new((bucket, fixed, sliding));
        Some((
            Self {
                only: Cell::new(None),
                limits,
                bucket: terms,
                window,
                within: draws.once_in(2),
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        let (bucket, fixed, sliding) = self.limits.limits();
        match self.only.get() {
            None if self.within => work(&Within(&self.limits)),
            None => work(&self.limits),
            Some(0) => work(bucket),
            Some(1) => work(fixed),
            Some(_) => work(sliding),
        }
    }

    fn only(&self, part: usize) {
        self.only.set(Some(part));
    }

    fn parts(&self, work: &mut dyn FnMut(&dyn Limiter)) {
        let (bucket, fixed, sliding) = self.limits.limits();
        work(bucket);
        work(fixed);
        work(sliding);
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        let Op::Other { now, n, .. } = *op else {
            return Outcome::NOTHING;
        };
        if world.subject.only.get().is_some() {
            return world.perform(&Op::Take {
                now,
                n,
                slot: SLOTS as u8 - 1,
            });
        }
        // Takes in the opposite order.
        let (bucket, fixed, sliding) = world.subject.limits.limits();
        match AllOf::new((sliding, fixed, bucket)).try_acquire_at(at(now), n) {
            Ok(lease) => Outcome::granted(lease.forget()),
            Err(_) => Outcome::NOTHING,
        }
    }

    fn describe(&self) -> String {
        let Self {
            bucket,
            window,
            within,
            ..
        } = self;
        format!("{} bits, {bucket:?}, {window:?}, within {within}", W::BITS)
    }
}

/// A composition that names the same limit twice, by references or through wrappers.
pub(crate) struct Twice {
    bucket: TokenBucket,
    terms: BucketTerms,
    wrapped: bool,
}

struct Bare<'a>(&'a TokenBucket);

impl Limiter for Bare<'_> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }

    fn read(&self, read: Read<'_>) -> Reading {
        let now = read.now();
        Reading {
            available: self.0.available_at(now),
            capacity: self.0.burst(),
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}

impl Subject for Twice {
    type Extra = ();
    const NAME: &'static str = "a limit named twice";
    const VERBS: &'static [Verb] = &[Take, Take, Other, Other, Look, Rollback];

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let mut terms = BucketTerms::random(draws);
        terms.debt = 0;
        let bucket = terms.builder().build().ok()?;
        let facts = terms.facts(bucket.timing());
        Some((
            Self {
                bucket,
                terms,
                wrapped: draws.once_in(2),
            },
            facts,
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(&self.bucket)
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        let Op::Other { now, n, .. } = *op else {
            return Outcome::NOTHING;
        };
        let bucket = &world.subject.bucket;
        let granted = if world.subject.wrapped {
            AllOf::new((bucket, Bare(bucket)))
                .try_acquire_at(at(now), n)
                .map(AllLease::forget)
        } else {
            AllOf::new((bucket, &bucket))
                .try_acquire_at(at(now), n)
                .map(AllLease::forget)
        };
        match granted {
            Ok(n) => Outcome::granted(2 * n),
            Err(_) => Outcome::NOTHING,
        }
    }

    fn takes_twice(&self) -> bool {
        self.wrapped
    }

    fn describe(&self) -> String {
        format!("wrapped {}, {:?}", self.wrapped, self.terms)
    }
}

/// Leases with ids.
pub(crate) struct Pool {
    pool: LeasePool<Concurrency, 3>,
    limit: u32,
}

impl Subject for Pool {
    type Extra = LeaseId;
    const NAME: &'static str = "lease pool";
    const VERBS: &'static [Verb] = &[Claim, Claim, Claim, End, End, End, Sweep, Sweep, Look];
    const HOLDS: bool = true;

    fn random(draws: &mut Draws<'_>) -> Option<(Self, Facts)> {
        let limit = draws.within(1, 10) as u32;
        Some((
            Self {
                pool: LeasePool::new(Concurrency::new(limit)),
                limit,
            },
            timeless(limit),
        ))
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T {
        work(self.pool.limiter())
    }

    fn special(world: &World<Self>, op: &Op) -> Outcome {
        let pool = &world.subject.pool;
        match *op {
            Op::Claim { now, n, wait, slot } => {
                let deadline = (wait > 0).then(|| at(now.saturating_add(wait)));
                match pool.claim_at(at(now), n, deadline) {
                    Ok(id) => {
                        world.put_extra(slot, id);
                        Outcome {
                            acted: true,
                            ..Outcome::granted(n)
                        }
                    }
                    Err(_) => Outcome::NOTHING,
                }
            }
            Op::End { slot } => match world.extra(slot) {
                Some(id) => Outcome {
                    acted: true,
                    ..Outcome::back(pool.release(id).unwrap_or(0).into())
                },
                None => Outcome::NOTHING,
            },
            Op::Sweep { now } => Outcome {
                acted: true,
                ..Outcome::back(pool.sweep(at(now)))
            },
            _ => Outcome::NOTHING,
        }
    }

    fn finish(world: &World<Self>, id: LeaseId) {
        let _ = world.subject.pool.release(id);
    }

    fn describe(&self) -> String {
        format!("limit {}", self.limit)
    }
}

pub(crate) type KeyedBuckets = Table<TokenBucketRules>;
pub(crate) type KeyedWindows = Table<FixedWindowRules>;
pub(crate) type KeyedPermits = Table<ConcurrencyRules>;

/// Passes all subjects to `$callback!`: their names and types, and their shares of the runs of
/// `every_access`, `late_refunds` and `every_instruction`, if any.
macro_rules! for_each_subject {
    ($callback:ident) => {
        $callback! {
            token_bucket_64: $crate::support::subjects::Bucket<u64>, 2, [2], [1];
            token_bucket_32: $crate::support::subjects::Bucket<u32>, 2, [2], [1];
            token_bucket_43: $crate::support::subjects::Bucket<portcullis_core::state::KeyedWord>, 2, [2], [];
            warming_bucket_64: $crate::support::subjects::Warming<u64>, 2, [], [1];
            warming_bucket_32: $crate::support::subjects::Warming<u32>, 2, [], [1];
            fixed_window_64: $crate::support::subjects::Fixed<u64>, 2, [2], [1];
            fixed_window_32: $crate::support::subjects::Fixed<u32>, 2, [2], [1];
            fixed_window_43: $crate::support::subjects::Fixed<portcullis_core::state::KeyedWord>, 2, [2], [];
            sliding_window_64: $crate::support::subjects::Sliding<u64>, 2, [2], [1];
            sliding_window_32: $crate::support::subjects::Sliding<u32>, 2, [2], [1];
            cooldown_window_64: $crate::support::subjects::Cooldown<u64>, 2, [2], [1];
            cooldown_window_32: $crate::support::subjects::Cooldown<u32>, 2, [2], [1];
            concurrency_64: $crate::support::subjects::Permits<u64>, 2, [], [1];
            concurrency_32: $crate::support::subjects::Permits<u32>, 2, [], [];
            concurrency_share_64: $crate::support::subjects::Shared<u64>, 1, [], [1];
            concurrency_share_32: $crate::support::subjects::Shared<u32>, 1, [], [];
            adjustable_bucket_64: $crate::support::subjects::Adjustable<u64>, 4, [5], [1];
            adjustable_bucket_32: $crate::support::subjects::Adjustable<u32>, 4, [5], [1];
            adjustable_window_64: $crate::support::subjects::Changing<u64>, 3, [5], [1];
            adjustable_window_32: $crate::support::subjects::Changing<u32>, 3, [5], [1];
            sliced_bucket_64: $crate::support::subjects::Sliced<u64>, 2, [2], [1];
            sliced_bucket_32: $crate::support::subjects::Sliced<u32>, 2, [2], [];
            keyed_bucket: $crate::support::subjects::KeyedBuckets, 1, [2], [1];
            keyed_window: $crate::support::subjects::KeyedWindows, 1, [2], [1];
            keyed_concurrency: $crate::support::subjects::KeyedPermits, 1, [], [1];
            keyed_array: $crate::support::subjects::Array, 1, [], [1];
            keyed_list_of_buckets: $crate::support::subjects::ListOfBuckets, 1, [], [1];
            keyed_list_of_windows: $crate::support::subjects::ListOfWindows, 1, [], [1];
            keyed_list_of_permits: $crate::support::subjects::ListOfPermits, 1, [], [1];
            penalty_64: $crate::support::subjects::Penalised<u64>, 1, [], [1];
            penalty_32: $crate::support::subjects::Penalised<u32>, 1, [], [];
            escalation_64: $crate::support::subjects::Escalating<u64>, 1, [], [1];
            escalation_32: $crate::support::subjects::Escalating<u32>, 1, [], [];
            counted: $crate::support::subjects::Counting, 1, [], [];
            three_limits_64: $crate::support::subjects::Three<u64>, 1, [], [1];
            three_limits_32: $crate::support::subjects::Three<u32>, 1, [], [];
            a_limit_named_twice: $crate::support::subjects::Twice, 1, [], [];
            lease_pool: $crate::support::subjects::Pool, 2, [], [1];
        }
    };
}
pub(crate) use for_each_subject;
