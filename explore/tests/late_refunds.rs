//! Random traces of takes, changes, rollbacks, and refunds and cancellations of grants that were
//! kept for up to three horizons. The clocks may be stale or stand still for long. The permits that
//! were granted and not refunded must stay within the bound, in exact arithmetic, over every
//! window.

mod support;

use core::time::Duration;

use portcullis_core::keyed::{FixedWindowRules, TokenBucketRules};
use portcullis_core::state::{Carry, Word};
use portcullis_core::{AllOf, CooldownWindow, Limiter, Rate, Timestamp, TokenBucket};

use support::draws::Draws;
use support::judge;
use support::op::{Op, Verb};
use support::scenario::{CHANCES, Clock, KEPT, PASSING, Scenario, op};
use support::subjects::{
    Adjustable, Bucket, BucketTerms, Changing, Cooldown, Fixed, Sliced, Sliding, Table,
    for_each_subject, is_limited,
};
use support::tests_of_all;
use support::world::{Facts, Slot, Subject, World};

/// An event of a trace that the bound depends on.
#[derive(Clone, Debug)]
struct Event {
    /// The time of the request, and the instant from which its permits may be used.
    now: u64,
    due: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// Permits that were granted and not refunded, and whether they may be owed.
    Granted {
        n: u64,
        forced: bool,
    },
    Changed {
        to: usize,
        carry: Carry,
    },
    /// A newer time was written.
    Noted,
    /// A request was denied although it asked for no more than the capacity.
    Refused,
}

/// A subject with a check of all that was granted in a trace.
trait Bound: Subject {
    /// Whether a refund counts at its own time: until a refund at an earlier time, a stale
    /// timestamp finds no more permits than at the time of the refund. (Not for limiters whose
    /// changes count at the newest time of a grant.)
    const NOTES_REFUNDS: bool = false;

    /// The number of changes in one tick after which receipts of that tick are still valid.
    const CHANGES_IN_TICK: usize = usize::MAX;

    /// Returns whether a rollback that no other call observed has no effect.
    fn is_rolled_back(&self) -> bool {
        true
    }

    fn check(&self, events: &[Event]) -> Result<(), String>;
}

/// Returns the events with the instants at which they count: no earlier than the newest event
/// before. With `forgets`, a grant that was fully refunded does not count as an event, except that
/// a later change still counts after it.
fn counted(events: &[Event], forgets: bool) -> Vec<(u64, &Event)> {
    let (mut newest, mut noted) = (0, 0);
    let counted = events.iter().map(|event| {
        let is_there = match event.what {
            What::Refused => false,
            What::Granted { n: 0, .. } => !forgets,
            _ => true,
        };
        if !matches!(event.what, What::Refused) {
            noted = noted.max(event.now);
        }
        if matches!(event.what, What::Changed { .. }) {
            newest = noted;
        }
        let at = event.due.max(newest);
        if is_there {
            newest = newest.max(event.now);
        }
        (at.max(event.due), event)
    });
    let mut counted: Vec<_> = counted.collect();
    counted.sort_by_key(|(at, _)| *at);
    counted
}

/// A bucket in exact arithmetic, which has at least the permits of the real one.
struct Ideal {
    /// The number of parts in one permit.
    parts: i128,
    level: i128,
    newest: u64,
    rate: Rate,
    burst: i128,
}

impl Ideal {
    fn pass(&mut self, at: u64) {
        let passed = i128::from(at.saturating_sub(self.newest));
        self.newest = self.newest.max(at);
        if is_limited(self.rate) {
            let period = self.rate.period().as_nanos().cast_signed();
            let gained = passed
                .saturating_mul(i128::from(self.rate.permits()))
                .saturating_mul(self.parts / period);
            self.level = self.level.saturating_add(gained);
        }
        self.level = self.level.min(self.full());
    }

    fn full(&self) -> i128 {
        if self.rate.is_unlimited() {
            i128::MAX / 4
        } else {
            self.burst * self.parts
        }
    }
}

/// A bucket with several sets of settings.
struct Settings<'a> {
    sets: &'a [(Rate, u64)],
    terms: &'a BucketTerms,
    tick: u64,
}

fn check_bucket(settings: &Settings<'_>, events: &[Event]) -> Result<(), String> {
    let &Settings { sets, terms, tick } = settings;
    // A common multiple of all periods that can be drawn.
    let parts = 420_000_000_000 * 1_000_003;
    let rounded = |at: u64| {
        if tick == 1 {
            at
        } else {
            terms.origin + at.saturating_sub(terms.origin) / tick * tick
        }
    };
    let (rate, burst) = sets[0];
    let mut ideal = Ideal {
        parts,
        level: 0,
        newest: terms.origin,
        rate,
        burst: burst.into(),
    };
    ideal.level = if rate.is_unlimited() {
        ideal.full()
    } else {
        i128::from(terms.initial.min(burst)) * parts
    };
    let mut floor = 0;
    // The largest burst since the last reset, and the permits granted in this tick since its first
    // change.
    let (mut largest, mut since_change, mut tick_of_change) = (i128::from(burst), 0, None);
    for (at, event) in counted(events, true) {
        ideal.pass(rounded(at).max(terms.origin));
        if tick_of_change.is_some_and(|tick| tick < ideal.newest) {
            (since_change, tick_of_change) = (0, None);
        }
        match event.what {
            What::Granted { n, forced } => {
                if tick_of_change.is_some() {
                    since_change += i128::from(n) * parts;
                }
                if forced {
                    floor = -i128::from(terms.debt) * parts;
                }
                if !ideal.rate.is_unlimited() {
                    ideal.level -= i128::from(n) * parts;
                }
                if ideal.level < floor {
                    let missing = (floor - ideal.level) * 1_000 / parts;
                    return Err(format!(
                        "{missing} thousandths of a permit too many at {at}"
                    ));
                }
            }
            What::Noted | What::Refused => {}
            What::Changed { to, carry } => {
                let (rate, burst) = sets[to];
                let (old, old_burst) = (ideal.rate, ideal.burst);
                (ideal.rate, ideal.burst) = (rate, burst.into());
                let full = ideal.full();
                if old.is_unlimited() || carry == Carry::Reset || rate.is_unlimited() {
                    (largest, since_change, tick_of_change) = (ideal.burst, 0, None);
                    ideal.level = full;
                    continue;
                }
                largest = largest.max(ideal.burst);
                tick_of_change = Some(ideal.newest);
                // Changing the settings any number of times at one instant gains nothing.
                let most = (largest * parts - since_change).max(ideal.level);
                ideal.level = match carry {
                    Carry::Reset => full,
                    // Rounded up.
                    Carry::Proportional if ideal.level > 0 => {
                        (ideal.level * ideal.burst).div_euclid(old_burst) + 1
                    }
                    Carry::Additive => {
                        let grown = ideal.level + (ideal.burst - old_burst) * parts;
                        grown.max(ideal.level.min(0))
                    }
                    Carry::Keep | Carry::Proportional => ideal.level,
                    _ => unreachable!("the model has no {carry:?}"),
                }
                .min(full)
                .min(most);
            }
        }
    }
    Ok(())
}

impl<W: Word> Bound for Bucket<W> {
    const NOTES_REFUNDS: bool = true;

    fn check(&self, events: &[Event]) -> Result<(), String> {
        let rate = Rate::new(self.terms.permits, Duration::from_nanos(self.terms.period));
        let tick = self.bucket.timing().tick.as_nanos() as u64;
        check_bucket(
            &Settings {
                sets: &[(rate, self.terms.burst)],
                terms: &self.terms,
                tick,
            },
            events,
        )
    }
}

/// Limiters count eras with four bits of a 32-bit word, or ten bits of a 64-bit word.
const fn changes_in_tick<W: Word>() -> usize {
    if W::BITS == 32 { 14 } else { 1_022 }
}

impl<W: Word> Bound for Adjustable<W> {
    const CHANGES_IN_TICK: usize = changes_in_tick::<W>();

    fn check(&self, events: &[Event]) -> Result<(), String> {
        let tick = self.bucket.timing().tick.as_nanos() as u64;
        check_bucket(
            &Settings {
                sets: &self.sets,
                terms: &self.terms,
                tick,
            },
            events,
        )
    }
}

impl Bound for Table<TokenBucketRules> {
    const NOTES_REFUNDS: bool = true;

    fn check(&self, events: &[Event]) -> Result<(), String> {
        let terms = self.bucket_terms();
        let rate = Rate::new(terms.permits, Duration::from_nanos(terms.period));
        // A slot begins with its first use.
        let mut terms = terms;
        terms.origin = if self.tick == 1 { 0 } else { terms.origin };
        check_bucket(
            &Settings {
                sets: &[(rate, terms.burst)],
                terms: &terms,
                tick: self.tick,
            },
            events,
        )
    }
}

impl<W: Word> Bound for Sliced<W> {
    const NOTES_REFUNDS: bool = true;

    fn is_rolled_back(&self) -> bool {
        self.bucket.sliced() == 0
    }

    fn check(&self, events: &[Event]) -> Result<(), String> {
        let rate = Rate::new(self.terms.permits, Duration::from_nanos(self.terms.period));
        let tick = self.bucket.timing().tick.as_nanos() as u64;
        check_bucket(
            &Settings {
                sets: &[(rate, self.terms.burst)],
                terms: &self.terms,
                tick,
            },
            events,
        )
    }
}

/// Checks that at most `limit` permits are granted in each span that begins with an event at `from`
/// and ends before `until(from)`.
fn check_spans(events: &[Event], limit: u64, until: impl Fn(u64) -> u64) -> Result<(), String> {
    let counted = counted(events, false);
    for (first, &(from, _)) in counted.iter().enumerate() {
        let end = until(from);
        let mut sum = 0;
        for (at, event) in &counted[first..] {
            if *at >= end {
                break;
            }
            if let What::Granted { n, .. } = event.what {
                sum += n;
            }
            if sum > limit {
                return Err(format!(
                    "{sum} of {limit} from {from} to {at}, before {end}"
                ));
            }
        }
    }
    Ok(())
}

fn check_fixed(
    limit: u64,
    window: u64,
    started: bool,
    origin: u64,
    events: &[Event],
) -> Result<(), String> {
    if started {
        return check_spans(events, 2 * limit, |from| from.saturating_add(window));
    }
    let index = |at: u64| at.saturating_sub(origin) / window;
    check_spans(events, limit, |from| {
        origin.saturating_add((index(from) + 1).saturating_mul(window))
    })
}

impl<W: Word> Bound for Fixed<W> {
    fn check(&self, events: &[Event]) -> Result<(), String> {
        let terms = &self.terms;
        check_fixed(
            terms.limit,
            terms.window,
            terms.started,
            terms.origin,
            events,
        )
    }
}

impl Bound for Table<FixedWindowRules> {
    fn check(&self, events: &[Event]) -> Result<(), String> {
        let terms = self.window_terms();
        check_fixed(
            terms.limit,
            terms.window,
            terms.started,
            terms.origin,
            events,
        )
    }
}

impl<W: Word> Bound for Sliding<W> {
    fn check(&self, events: &[Event]) -> Result<(), String> {
        let terms = &self.terms;
        if self.strict {
            return check_spans(events, terms.limit, |from| {
                from.saturating_add(terms.window)
            });
        }
        let (segments, window) = (u128::from(self.segments), u128::from(terms.window));
        let segment = |at: u64| u128::from(at.saturating_sub(terms.origin)) * segments / window;
        check_spans(events, terms.limit, |from| {
            let end =
                ((segment(from) + segments) * window).div_ceil(segments) + u128::from(terms.origin);
            u64::try_from(end).unwrap_or(u64::MAX)
        })
    }
}

impl<W: Word> Bound for Cooldown<W> {
    fn check(&self, events: &[Event]) -> Result<(), String> {
        let apart = self
            .wait
            .unwrap_or(self.terms.window)
            .min(self.terms.window);
        check_spans(events, 2 * self.terms.limit, |from| {
            from.saturating_add(apart)
        })?;
        let (Some(wait), horizon) = (self.wait, self.window.timing().horizon.as_nanos()) else {
            return Ok(());
        };
        let (mut newest, mut until) = (self.terms.origin, None);
        for event in events {
            // If the word has wrapped, a denial need not start a wait.
            if u128::from(event.now.saturating_sub(newest)) > horizon / 4 {
                return Ok(());
            }
            match event.what {
                // The first denial after a grant starts the wait.
                What::Refused if until.is_none() => until = Some(event.now.saturating_add(wait)),
                What::Granted { .. } => {
                    newest = newest.max(event.now);
                    if let Some(until) = until.take()
                        && newest < until
                    {
                        return Err(format!("granted at {newest}, in a wait until {until}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl<W: Word> Bound for Changing<W> {
    const CHANGES_IN_TICK: usize = changes_in_tick::<W>();

    fn check(&self, events: &[Event]) -> Result<(), String> {
        let tick = self.window.timing().tick.as_nanos() as u64;
        let origin = self.terms.origin;
        if self.terms.started {
            return self.check_started(events);
        }
        let ticks = |at: u64| at.saturating_sub(origin) / tick;
        let (limit, window) = self.sets[0];
        let (mut limit, mut window) = (limit, window.div_ceil(tick));
        // The end of the current window; the permits granted in it; the permits that count; and the
        // largest limit in force, for as long as `Carry` guarantees it.
        let (mut end, mut granted, mut count, mut most) = (0, 0, 0, Some(limit));
        for (at, event) in counted(events, false) {
            let now = ticks(at);
            if now >= end {
                (end, granted, count, most) = ((now / window + 1) * window, 0, 0, Some(limit));
            }
            match event.what {
                What::Granted { n, .. } => {
                    granted += n;
                    count += n;
                    if count > limit {
                        return Err(format!("{count} count of {limit} at {at}"));
                    }
                }
                What::Noted | What::Refused => {}
                What::Changed { to, carry } => {
                    let (new_limit, new_window) = self.sets[to];
                    let left = limit.saturating_sub(count);
                    let begun = end - window;
                    window = new_window.div_ceil(tick);
                    end = (begun.max(now) / window + 1) * window;
                    most = most.map(|most: u64| most.max(new_limit));
                    count = match carry {
                        Carry::Keep => new_limit - left.min(new_limit),
                        Carry::Proportional => {
                            most = None;
                            new_limit - left * new_limit / limit
                        }
                        Carry::Additive => match most {
                            // All permits granted in the window are at most the largest limit that
                            // was in force.
                            Some(most) => count.max((granted + new_limit).saturating_sub(most)),
                            None => count,
                        },
                        Carry::Reset => {
                            most = None;
                            0
                        }
                        _ => unreachable!("the model has no {carry:?}"),
                    };
                    limit = new_limit;
                }
            }
        }
        Ok(())
    }
}

trait Started {
    fn check_started(&self, events: &[Event]) -> Result<(), String>;
}

impl<W: Word> Started for Changing<W> {
    /// Checks windows that are started by requests, if no setting was changed.
    fn check_started(&self, events: &[Event]) -> Result<(), String> {
        if events
            .iter()
            .any(|event| matches!(event.what, What::Changed { .. }))
        {
            return Ok(());
        }
        check_fixed(
            self.terms.limit,
            self.terms.window,
            true,
            self.terms.origin,
            events,
        )
    }
}

/// Returns the calls that a trace may contain.
fn verbs<S: Subject>() -> Vec<Verb> {
    S::VERBS
        .iter()
        .copied()
        .filter(|verb| !matches!(verb, Verb::SetLimit | Verb::Look))
        .collect()
}

struct Trace {
    ops: Vec<Op>,
    fault: Option<String>,
}

#[derive(Debug, Default)]
struct Tally {
    traces: u64,
    steps: u64,
    granted: u64,
    back: u64,
    rolled_back: u64,
}

fn build<S: Bound>(seed: u64) -> Option<(S, Facts, Draws<'static>)> {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 0,
    };
    let (subject, facts) = S::random(&mut draws)?;
    Some((subject, facts, draws))
}

/// Returns random calls, with a grant that is kept for long.
fn choose<S: Bound>(draws: &mut Draws<'_>, facts: &Facts) -> Vec<Op> {
    let mut clock = Clock {
        facts: *facts,
        now: facts.origin,
        newest: facts.origin,
    };
    if draws.once_in(4) {
        clock.now = facts
            .origin
            .saturating_add(draws.magnitude(4 * facts.reach));
    }
    let verbs = verbs::<S>();
    let mut ops = Vec::new();
    let mut changed = false;
    let is_kept = draws.once_in(3) && verbs.contains(&Verb::Refund);
    let steps = if is_kept {
        draws.within(0, 6)
    } else {
        draws.within(3, 40)
    };
    for _ in 0..steps {
        clock.step(draws, true);
        let verb = draws.one_of(&verbs);
        let slot = draws.within(0, u64::from(PASSING) - 1) as u8;
        let mut next = op(draws, verb, &clock, slot);
        if let Op::Adjust { now, .. } = &mut next {
            if !changed && draws.once_in(2) {
                *now = clock
                    .newest
                    .saturating_sub(draws.magnitude(facts.late_change));
            }
            changed = true;
        }
        ops.push(next);
        if draws.once_in(4) {
            // Takes all permits, and more.
            for _ in 0..3 {
                let n = draws.within(1, facts.burst) as u32;
                ops.push(Op::Take {
                    now: clock.now,
                    n,
                    slot: draws.within(0, KEPT.into()) as u8,
                });
            }
        }
    }
    if is_kept {
        keep::<S>(draws, &clock, &mut ops);
    } else if verbs.contains(&Verb::Reserve) && draws.once_in(8) {
        settle_debt(draws, &clock, &mut ops);
    } else if verbs.contains(&Verb::Adjust) && draws.once_in(8) {
        change_often(draws, &clock, &mut ops);
    } else if verbs.contains(&Verb::Cut) && draws.once_in(8) {
        slice_for_long(draws, &clock, &mut ops);
    } else if S::NOTES_REFUNDS && draws.once_in(8) {
        refund_before_late(draws, &clock, &mut ops);
    }
    ops
}

/// Adds a slice that takes its permits as late as it can without asking the bucket, and is dropped.
/// Then the rest is taken.
fn slice_for_long(draws: &mut Draws<'_>, clock: &Clock, ops: &mut Vec<Op>) {
    let Facts {
        grain,
        burst,
        reach,
        ..
    } = clock.facts;
    // All permits are replenished.
    let now = clock.newest.saturating_add(draws.one_of(&[0, reach]));
    let k = draws
        .one_of(&[burst / 2, burst / 4, 1])
        .clamp(1, u32::MAX.into()) as u32;
    ops.push(Op::Cut { now, n: k, slot: 0 });
    // About the hold, which is at least an eighth of the rest.
    let later = now.saturating_add(draws.below(burst / 16 + 1).saturating_mul(grain));
    ops.push(Op::Draw {
        now: later,
        n: k,
        slot: 0,
    });
    ops.push(Op::Uncut { slot: 0 });
    for n in [
        burst,
        burst / 2,
        burst / 4,
        burst / 8,
        burst / 16,
        1,
        1,
        1,
        1,
    ] {
        ops.push(Op::Take {
            now: later,
            n: n.min(u32::MAX.into()) as u32,
            slot: 1,
        });
    }
}

/// Adds a take from a full limiter that is fully refunded some time later. Then a stale timestamp
/// takes all permits, and the newest one takes those that were replenished since.
fn refund_before_late(draws: &mut Draws<'_>, clock: &Clock, ops: &mut Vec<Op>) {
    let Facts {
        grain,
        burst,
        reach,
        staleness,
        ..
    } = clock.facts;
    let now = clock.newest.saturating_add(reach);
    let n = draws.within(1, burst.min(3)) as u32;
    ops.push(Op::Take { now, n, slot: 0 });
    let later = now.saturating_add(draws.within(1, 8).saturating_mul(grain).min(staleness));
    ops.push(Op::Refund {
        now: later,
        n,
        slot: 0,
    });
    for now in [now, later] {
        for n in [burst, burst / 2, burst / 4, 1, 1, 1] {
            ops.push(Op::Take {
                now,
                n: n.min(u32::MAX.into()) as u32,
                slot: 1,
            });
        }
    }
}

/// Adds repeated changes between two sets of settings, with takes of all permits, at one instant.
fn change_often(draws: &mut Draws<'_>, clock: &Clock, ops: &mut Vec<Op>) {
    let (now, burst) = (clock.newest, clock.facts.burst);
    let carry =
        |draws: &mut Draws<'_>| draws.one_of(&[Carry::Keep, Carry::Additive, Carry::Proportional]);
    let changes = [0, 1].map(|_| (draws.below(4) as u8, carry(draws)));
    for _ in 0..draws.within(2, 6) {
        for (to, carry) in changes {
            ops.push(Op::Adjust { now, to, carry });
            for n in [burst, burst / 2, burst / 4, 1, 1, 1] {
                if n > 0 && draws.once_in(2) {
                    ops.push(Op::Take {
                        now,
                        n: n.min(u32::MAX.into()) as u32,
                        slot: 0,
                    });
                }
            }
        }
    }
}

/// Adds a debt that has been paid by time, a reservation, and a rollback of the take that would end
/// the debt's era.
fn settle_debt(draws: &mut Draws<'_>, clock: &Clock, ops: &mut Vec<Op>) {
    let Facts { grain, burst, .. } = clock.facts;
    let now = clock.newest;
    for n in [burst, burst / 2, 1, 1] {
        ops.push(Op::Take {
            now,
            n: n.min(u32::MAX.into()) as u32,
            slot: 0,
        });
    }
    let (owed, reserved) = (draws.within(1, 3), draws.within(1, 3));
    ops.push(Op::Force {
        now,
        n: owed as u32,
    });
    let now = now.saturating_add((owed + reserved + draws.within(1, 3)).saturating_mul(grain));
    ops.push(Op::Reserve {
        now,
        n: reserved as u32,
        wait: 0,
        slot: 1,
    });
    ops.push(Op::Rollback { now, n: 1 });
    ops.push(Op::Cancel { now, slot: 1 });
    ops.push(Op::Take {
        now,
        n: burst.min(3) as u32,
        slot: 2,
    });
}

/// Adds a grant that is kept until the word has wrapped: by time, or by refunds and changes in the
/// meantime.
fn keep<S: Subject>(draws: &mut Draws<'_>, clock: &Clock, ops: &mut Vec<Op>) {
    let Facts {
        grain,
        reach,
        horizon,
        burst,
        tick,
        ..
    } = clock.facts;
    let kept = PASSING - 1;
    let most = burst.min(u32::MAX.into()) as u32;
    let n = draws.one_of(&[most, 1, most / 2 + 1]);
    let mut now = clock.newest;
    ops.push(Op::Take { now, n, slot: kept });
    let turns = match draws.below(16) {
        0..=7 if horizon < 1 << 59 => {
            // The horizon is stated in whole ticks or whole windows.
            let turns = draws.within(1, 3);
            let some = draws.magnitude(reach);
            let grains = draws.below(burst + 1).saturating_mul(grain);
            let around = draws.one_of(&[0, tick, reach, some, grains, grains]);
            let whole = turns * (horizon + draws.one_of(&[0, tick]));
            now = now.saturating_add(whole);
            now = if draws.once_in(2) {
                now.saturating_add(around)
            } else {
                now.saturating_sub(around).max(clock.newest)
            };
            0
        }
        8..=12 => draws.one_of(&[15, 16, 17, 32]),
        13 => draws.one_of(&[1_023, 1_024, 1_025]),
        _ => draws.below(3),
    };
    let step = draws.one_of(&[0, 0, tick, grain]);
    let changes = draws.once_in(2) && S::VERBS.contains(&Verb::Adjust);
    for _ in 0..turns {
        if changes {
            ops.push(Op::Adjust {
                now,
                to: 0,
                carry: Carry::Keep,
            });
        } else {
            // Refunds out of order.
            ops.push(Op::Take { now, n: 1, slot: 0 });
            ops.push(Op::Take { now, n: 1, slot: 1 });
            ops.push(Op::Refund { now, n: 1, slot: 0 });
        }
        now = now.saturating_add(step);
    }
    // Takes some permits, before and after the refund.
    let drain = |draws: &mut Draws<'_>, ops: &mut Vec<Op>, now: u64| {
        for n in [most, most / 2, most / 4, most / 8, 1, 1, 1] {
            if n > 0 && draws.once_in(2) {
                ops.push(Op::Take { now, n, slot: 2 });
            }
        }
    };
    drain(draws, ops, now);
    now = now.saturating_add(draws.one_of(&[0, 0, tick, grain]));
    ops.push(Op::Refund { now, n, slot: kept });
    drain(draws, ops, now);
    for n in [most, most / 2, most / 4, most / 8, 1, 1, 1] {
        ops.push(Op::Take { now, n, slot: 2 });
    }
}

/// Makes the calls and checks all that was granted. Returns the fault, if any.
fn play<S: Bound>(seed: u64, ops: &[Op], tally: &mut Tally) -> Option<String> {
    let (subject, facts, _) = build::<S>(seed)?;
    let world = World::new(subject);
    let mut events: Vec<Event> = Vec::new();
    let mut of_slot = [usize::MAX; PASSING as usize];
    let mut refunds: Vec<usize> = Vec::new();
    let mut newest = facts.origin;
    for op in ops {
        tally.steps += 1;
        let now = op.now().unwrap_or(0);
        newest = newest.max(now);
        if let Op::Rollback { now, n } = *op {
            // If the word has wrapped, the limiter may report fewer permits before a rollback than
            // after it.
            let is_out =
                |event: &&Event| !matches!(event.what, What::Granted { n: 0, .. } | What::Refused);
            let (mut last, mut idle) = (facts.origin, 0);
            for granted in events
                .iter()
                .filter(is_out)
                .map(|event| event.now)
                .chain([newest])
            {
                idle = idle.max(granted.saturating_sub(last));
                last = last.max(granted);
            }
            if idle.saturating_add(facts.reach.saturating_mul(2)) < facts.horizon / 4
                && changes_at_once(&events, facts.tick) <= S::CHANGES_IN_TICK
                && let Some(fault) = rolls_back(&world, &facts, newest, now, n, tally)
            {
                return Some(fault);
            }
            let looked = world
                .subject
                .with(|limiter| limiter.peek_at(Timestamp::from_nanos(now), n));
            if n > 0 && looked.is_ok() {
                events.push(Event {
                    now,
                    due: now,
                    what: What::Granted {
                        n: 0,
                        forced: false,
                    },
                });
            }
        }
        let is_refused = is_refused(&world, op);
        let outcome = world.perform(op);
        if is_refused {
            events.push(Event {
                now,
                due: now,
                what: What::Refused,
            });
        }
        tally.granted += outcome.granted;
        tally.back += outcome.back;
        let n = outcome.granted;
        let mut granted = |slot: Option<u8>, due: u64, forced: bool| {
            if n > 0 {
                if let Some(slot) = slot {
                    of_slot[usize::from(slot)] = events.len();
                }
                events.push(Event {
                    now,
                    due,
                    what: What::Granted { n, forced },
                });
            }
        };
        match *op {
            Op::Take { slot, .. } | Op::Planned { slot, .. } => granted(Some(slot), now, false),
            Op::Draw { .. } => granted(None, now, false),
            Op::Cut { n: 1.., .. } if outcome.acted => {
                events.push(Event {
                    now,
                    due: now,
                    what: What::Noted,
                });
            }
            Op::Force { .. } => granted(None, now, true),
            Op::Reserve { slot, .. } => granted(Some(slot), u64::MAX - outcome.told, false),
            Op::Refund { slot, .. } | Op::Cancel { slot, .. } if outcome.back > 0 => {
                let event = &mut events[of_slot[usize::from(slot)]];
                // A reservation that is past its due may have been used. A caller that cancels it
                // at its due has not used it.
                let is_used = matches!(op, Op::Cancel { .. }) && now > event.due;
                if let What::Granted { n, .. } = &mut event.what
                    && !is_used
                {
                    *n = n.saturating_sub(outcome.back);
                }
                if S::NOTES_REFUNDS && matches!(op, Op::Refund { .. }) {
                    for &index in &refunds {
                        let event = &mut events[index];
                        event.now = event.now.min(now);
                        event.due = event.now;
                    }
                    refunds.push(events.len());
                    events.push(Event {
                        now,
                        due: now,
                        what: What::Noted,
                    });
                }
            }
            Op::Adjust { to, carry, .. } if outcome.acted => {
                // Reservations that are not due keep their instants. They exceed the bound by as
                // many permits, as documented.
                let is_noted = |event: &&Event| !matches!(event.what, What::Refused);
                let noted = events.iter().filter(is_noted).map(|event| event.now).max();
                let at = noted.unwrap_or(0).max(now);
                for event in &mut events {
                    if let What::Granted { n, .. } = &mut event.what
                        && event.due > at
                    {
                        *n = 0;
                    }
                }
                events.push(Event {
                    now,
                    due: now,
                    what: What::Changed {
                        to: to.into(),
                        carry,
                    },
                });
            }
            _ => {}
        }
    }
    let fault = world.subject.check(&events).err()?;
    Some(fault)
}

/// Returns the largest number of changes that count within less than a tick.
fn changes_at_once(events: &[Event], tick: u64) -> usize {
    let mut newest = 0;
    let changes: Vec<_> = events
        .iter()
        .filter_map(|event| {
            if !matches!(event.what, What::Refused) {
                newest = newest.max(event.now);
            }
            matches!(event.what, What::Changed { .. }).then_some(newest)
        })
        .collect();
    let until = |from: u64| changes.partition_point(|&at| at < from.saturating_add(tick));
    let at_once = |(index, &from): (usize, &u64)| until(from) - index;
    changes.iter().enumerate().map(at_once).max().unwrap_or(0)
}

/// Returns whether a request will be denied although it asks for no more than the capacity.
fn is_refused<S: Subject>(world: &World<S>, op: &Op) -> bool {
    let (Op::Take {
        now, n: n @ 1.., ..
    }
    | Op::Rollback { now, n: n @ 1.. }) = *op
    else {
        return false;
    };
    world.subject.with(|limiter| {
        u64::from(n) <= limiter.capacity()
            && limiter.peek_at(Timestamp::from_nanos(now), n).is_err()
    })
}

/// Checks that a composition which is denied after it took from this limit leaves the limit as it
/// was, if no other call runs concurrently.
fn rolls_back<S: Bound>(
    world: &World<S>,
    facts: &Facts,
    newest: u64,
    now: u64,
    n: u32,
    tally: &mut Tally,
) -> Option<String> {
    if n == 0
        || !world.subject.is_rolled_back()
        || world
            .subject
            .with(|limiter| limiter.peek_at(Timestamp::from_nanos(now), n))
            .is_err()
    {
        return None;
    }
    tally.rolled_back += 1;
    let after = |by: u64| newest.saturating_add(by);
    let (grain, reach) = (facts.grain, facts.reach);
    let scenario = Scenario {
        history: Vec::new(),
        calls: Vec::new(),
        probes: [
            newest,
            after(grain),
            after(reach / 3),
            after(reach),
            after(2 * reach),
        ],
        late: newest,
        full: [0; CHANCES],
        ends: false,
    };
    let sights =
        |world: &World<S>| judge::survey(&world.fork(), &scenario, Default::default()).sights[0];
    let after = world.fork();
    after.perform(&Op::Rollback { now, n });
    let (before, left) = (sights(world), sights(&after));
    if before != left {
        return Some(format!(
            "a lone rollback of {n} at {now} leaves {left:?} instead of {before:?}"
        ));
    }
    // The receipts of other grants keep their value.
    for slot in 0..PASSING {
        let (one, other) = (world.fork(), after.fork());
        let content = one.take(slot);
        let back = match content {
            Slot::Empty => continue,
            Slot::Taken { n, .. } => Op::Refund {
                now: newest,
                n,
                slot,
            },
            Slot::Extra(_) => Op::Cancel { now: newest, slot },
        };
        one.put(slot, content);
        if S::VERBS.contains(&Verb::Cut) {
            continue;
        }
        one.perform(&back);
        other.perform(&back);
        let (before, left) = (sights(&one), sights(&other));
        if before != left {
            return Some(format!(
                "after a lone rollback of {n} at {now}, a refund of slot {slot} leaves {left:?}, not {before:?}"
            ));
        }
    }
    None
}

/// Reduces the calls while the fault remains.
fn shrink<S: Bound>(seed: u64, mut ops: Vec<Op>) -> Trace {
    let mut tally = Tally::default();
    loop {
        let without = |index: usize| {
            let mut less = ops.clone();
            less.remove(index);
            less
        };
        let smaller = (0..ops.len())
            .map(without)
            .find(|less| play::<S>(seed, less, &mut tally).is_some());
        match smaller {
            Some(less) => ops = less,
            None => break,
        }
    }
    let fault = play::<S>(seed, &ops, &mut tally);
    Trace { ops, fault }
}

fn check<S: Bound>(share: u64, times: u64) {
    let goal = 20_000 * share * times;
    let mut tally = Tally::default();
    let mut seed = std::env::var("PORTCULLIS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0);
    while tally.traces < goal {
        seed += 1;
        let Some((subject, facts, mut draws)) = build::<S>(seed) else {
            continue;
        };
        let world = World::new(subject);
        let ops = choose::<S>(&mut draws, &facts);
        tally.traces += 1;
        if play::<S>(seed, &ops, &mut tally).is_some() {
            let trace = shrink::<S>(seed, ops);
            let runs = trace.ops.chunk_by(|one, next| one == next);
            let calls: Vec<_> = runs
                .map(|run| format!("  {:?} x {}\n", run[0], run.len()))
                .collect();
            panic!(
                "{}, seed {seed}, after {tally:?}: {}\n{facts:?}\n{}\n{}",
                S::NAME,
                trace.fault.unwrap_or_default(),
                world.subject.describe(),
                calls.concat()
            );
        }
    }
    println!("{}: {tally:?}", S::NAME);
}

macro_rules! tests {
    ($(
        $test:ident: $subject:ty, $_accesses:literal, [$($share:literal)?], $_instructions:tt;
    )*) => {
        tests_of_all! {
            $($($test: $subject, $share;)?)*
        }
    };
}

for_each_subject!(tests);

#[test]
fn a_limiter_in_any_state_grants_no_more_than_a_new_one() {
    let mut draws = Draws::Seeded {
        state: 16,
        steps: 0,
    };
    for _ in 0..20_000 {
        let Some((fresh, facts)) = Bucket::<u32>::random(&mut draws) else {
            continue;
        };
        let state = draws.any();
        let mut terms = fresh.terms;
        terms.initial = terms.burst;
        let fresh = Bucket {
            bucket: terms.builder().build_on::<u32>().unwrap(),
            terms,
        };
        let restored = terms.builder().build_on::<u32>().unwrap().with_state(state);
        let now = Timestamp::from_nanos(facts.origin);
        let (most, has) = (fresh.bucket.available_at(now), restored.available_at(now));
        assert!(
            has <= most,
            "{has} with state {state:#x}, {most} in a new limiter: {}",
            fresh.describe()
        );
    }
    for state in [0, 1, 7, u64::MAX] {
        let open = TokenBucket::new(Rate::UNLIMITED, 1).with_state(state);
        let now = Timestamp::from_secs(5);
        assert!(open.take_at(now, 3).is_ok());
        assert!(
            AllOf::new((&open,)).try_acquire_at(now, 3).is_ok(),
            "an unlimited bucket denies with state {state}"
        );
    }
    let window = CooldownWindow::new(3, Duration::from_secs(1), None);
    assert!(window.with_state(u64::MAX).available_at(Timestamp::ZERO) <= 3);
}
