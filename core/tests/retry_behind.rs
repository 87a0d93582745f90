//! When a request that waits behind others should retry: `retry` for more permits than the limiter
//! can hold at once.
//!
//! The answer is compared with queues, step by step. Each request asks when to retry, comes at
//! exactly that instant, and takes what is available, permit by permit or by requests of several,
//! until as many have been granted as were asked for.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/limiters.rs"]
mod limiters;

use core::fmt::Debug;
use core::time::Duration;

use draws::Draws;
use limiters::{Back, Denial, ForEach, Kind, Subject};
use portcullis_core::builder::EscalationThreshold;
use portcullis_core::keyed::{Line, Seed};
use portcullis_core::state::{Carry, Word};
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, Concurrency, CooldownWindow, Counted, Denied, Escalation,
    FixedWindow, Keyed, KeyedArray, Limiter, Penalty, Rate, Retry, SlicedBucket, SlidingWindow,
    Timestamp, TokenBucket, Unlimited,
};

const SECOND: Duration = Duration::from_secs(1);
const CASES: u64 = if cfg!(debug_assertions) {
    3_000
} else {
    30_000
};

const fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

const fn nanos(n: u64) -> Duration {
    Duration::from_nanos(n)
}

/// The retry for a waiter at `now`, for the sum of all permits queued before it and its own
/// request.
fn behind<L: Limiter + ?Sized>(limiter: &L, now: Timestamp, permits: u32) -> Retry {
    limiter.retry(Denied::Exhausted { now, permits })
}

// A queue, step by step.

/// Returns when each of these requests is granted, in this order, from `now` on: the first request
/// in the queue comes when the limiter said. Stops at the end of time. `looks` says whether a
/// request first looks whether there is enough, before it takes.
fn grants(
    limiter: &dyn Limiter,
    now: Timestamp,
    requests: impl IntoIterator<Item = u32>,
    mut looks: impl FnMut() -> bool,
) -> Vec<Timestamp> {
    let (mut now, mut granted) = (now, Vec::new());
    for n in requests {
        for tries in 0.. {
            let decision = if looks() {
                limiter.peek_at(now, n)
            } else {
                Ok(())
            };
            match decision.and_then(|()| limiter.take_at(now, n).map(|_| ())) {
                Ok(()) => break,
                Err(denied) => match denied.retry(limiter) {
                    Retry::At(at) if at > now && tries < 2 => now = at,
                    Retry::Never => return granted,
                    other => panic!("{n} denied at {now}, with {other:?}"),
                },
            }
        }
        granted.push(now);
    }
    granted
}

/// A request before the query: when, how many permits, and a choice.
type Step = (Timestamp, u32, u64);

/// The times at which a limiter is used before the query.
struct Times {
    /// About the unit in which the limiter counts.
    scale: u64,
    /// The farthest that time jumps ahead.
    jump: u64,
    /// The farthest that it falls back.
    late: u64,
}

impl Times {
    const fn any(scale: u64) -> Self {
        Self {
            scale,
            jump: u64::MAX,
            late: u64::MAX,
        }
    }

    fn draw(&self, draws: &mut Draws<'_>) -> (Vec<Step>, Timestamp) {
        let mut now = match draws.below(8) {
            0 => 0,
            // Shortly before the end of time.
            1 => u64::MAX - draws.below(self.scale.saturating_mul(30)),
            _ => draws.magnitude(1 << 62),
        };
        let mut newest = now;
        let mut steps = Vec::new();
        for _ in 0..draws.below(12) {
            steps.push((at(now), draws.below(6) as u32, draws.any()));
            now = match draws.below(12) {
                0 => newest.saturating_add(draws.magnitude(self.jump)),
                1 | 2 => newest.saturating_sub(draws.magnitude(self.late)),
                3 => newest,
                4..=7 => now.saturating_add(draws.below(self.scale)),
                _ => newest.saturating_add(draws.below(self.scale / 4 + 2)),
            };
            newest = newest.max(now);
        }
        (steps, at(now))
    }
}

#[derive(Debug, Default)]
struct Tally {
    /// The number of limiters that the settings allowed.
    built: u64,
    /// Answers beyond the capacity that were an instant.
    behind: u64,
    /// Those of requests for more than 1.
    larger: u64,
    /// Exact answers among them.
    larger_exact: u64,
    never: u64,
    on_release: u64,
    /// Limiters that lose a part of what a tick brings.
    lossy: u64,
}

/// Compares the answers of a limiter with the grants of its queues. `touch` does something with the
/// limiter first.
fn agrees<L: Limiter + Debug>(
    make: impl Fn() -> L,
    touch: impl Fn(&L, Step),
    times: &Times,
    draws: &mut Draws<'_>,
    tally: &mut Tally,
) {
    let (steps, now) = times.draw(draws);
    let ready = || {
        let limiter = make();
        for &step in &steps {
            touch(&limiter, step);
        }
        limiter
    };
    let limiter = ready();
    let capacity = u32::try_from(limiter.capacity()).unwrap();
    let most = 3 * capacity + 3;
    let answers: Vec<_> = (1..=most).map(|n| behind(&limiter, now, n)).collect();
    let describe = format!("{limiter:?} at {now}");
    let granted = grants(&limiter, now, (0..most).map(|_| 1), || false);
    for (index, &answer) in answers.iter().enumerate() {
        let expected = granted.get(index).map_or(Retry::Never, |&at| Retry::At(at));
        if answer == Retry::OnRelease {
            assert!(index as u32 >= capacity, "{describe}");
            tally.on_release += 1;
            continue;
        }
        assert_eq!(answer, expected, "{} permits of {describe}", index + 1);
        tally.behind += u64::from(index as u32 >= capacity && answer != Retry::Never);
        tally.never += u64::from(answer == Retry::Never);
    }
    let (mut sum, mut requests) = (0, Vec::new());
    loop {
        let n = draws.within(1, capacity.into()) as u32;
        sum += n;
        if sum > most {
            break;
        }
        requests.push(n);
    }
    let granted = grants(&ready(), now, requests.iter().copied(), || false);
    let mut sum = 0;
    for (n, granted) in requests.into_iter().zip(granted) {
        sum += n;
        match answers[sum as usize - 1] {
            Retry::OnRelease => {}
            Retry::At(told) => {
                assert!(
                    told <= granted,
                    "{sum} permits: {told}, {granted} by {n}, {describe}"
                );
                tally.larger += 1;
                tally.larger_exact += u64::from(told == granted);
            }
            other => panic!("{sum} permits: {other:?}, {granted} by {n}, {describe}"),
        }
    }
}

/// Takes, at the step's time.
fn take<L: Limiter>(limiter: &L, (now, n, _): Step) {
    let _ = limiter.take_at(now, n);
}

fn each_case(what: &str, mut case: impl FnMut(&mut Draws<'_>, &mut Tally)) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..CASES {
        case(
            &mut Draws::Seeded {
                state: seed,
                steps: 0,
            },
            &mut tally,
        );
    }
    println!("{what}: {tally:?}");
    assert!(
        tally.built > CASES / 4 && tally.behind > 4 * CASES && tally.never > CASES / 10,
        "{tally:?}"
    );
    assert!(
        tally.larger > CASES && tally.larger_exact > CASES / 2,
        "{tally:?}"
    );
    assert!(
        tally.larger_exact < tally.larger,
        "no request waited longer for being large: {tally:?}"
    );
    tally
}

const PERIODS: [u64; 8] = [
    1,
    7,
    10,
    1_000,
    13_000,
    1_000_000_000,
    60_000_000_000,
    86_400_000_000_000,
];

/// The settings of a bucket of any kind.
#[derive(Clone, Copy)]
struct Chosen {
    rate: Rate,
    burst: u64,
    initial: u64,
    stepwise: bool,
    tick: Option<u64>,
    origin: Option<u64>,
}

/// A builder of a bucket of that kind.
macro_rules! chosen {
    ($bucket:ident, $chosen:expr) => {{
        let chosen: Chosen = $chosen;
        let mut builder = $bucket::builder(chosen.rate, chosen.burst).initial(chosen.initial);
        if chosen.stepwise {
            builder = builder.stepwise();
        }
        if let Some(tick) = chosen.tick {
            builder = builder.tick(nanos(tick));
        }
        if let Some(origin) = chosen.origin {
            builder = builder.origin(at(origin));
        }
        builder
    }};
}

/// A bucket, and roughly how long a permit takes.
fn a_bucket(draws: &mut Draws<'_>, tally: &mut Tally) -> (Chosen, u64) {
    let (permits, period) = (draws.below(12), draws.one_of(&PERIODS));
    let burst = draws.within(1, 7);
    let rate = Rate::new(permits as u32, nanos(period));
    let mut chosen = Chosen {
        rate,
        burst,
        initial: draws.within(0, burst),
        stepwise: false,
        tick: None,
        origin: None,
    };
    let mut tick = 1;
    match draws.below(4) {
        0 => {
            chosen.stepwise = true;
            tick = period;
        }
        1 => {
            tick = draws.one_of(&[
                1,
                3,
                10,
                1_000,
                1_000_000,
                period / 3 + 1,
                period,
                3 * period,
            ]);
            chosen.tick = Some(tick);
        }
        _ => {}
    }
    if draws.once_in(4) {
        chosen.origin = Some(draws.magnitude(1 << 40));
    }
    tally.lossy += u64::from(permits * tick > (burst - 1) * period);
    (chosen, (period / permits.max(1)).max(tick))
}

fn token_bucket<W: Word>() {
    let tally = each_case("token bucket", |draws, tally| {
        let (chosen, scale) = a_bucket(draws, tally);
        let mut builder = chosen!(TokenBucket, chosen);
        if draws.once_in(2) {
            builder = builder.debt(draws.within(1, 9));
        }
        let Ok(_) = builder.build_on::<W>() else {
            return;
        };
        tally.built += 1;
        let touch = |bucket: &TokenBucket<W>, (now, n, choice): Step| {
            if choice % 3 == 0 {
                let _ = bucket.force_at(now, n);
            } else {
                take(bucket, (now, n, choice));
            }
        };
        agrees(
            || builder.build_on::<W>().unwrap(),
            touch,
            &Times::any(scale),
            draws,
            tally,
        );
    });
    assert!(tally.lossy > CASES / 10, "{tally:?}");
}

#[test]
fn a_token_bucket_says_when_the_sum_will_have_come_in() {
    token_bucket::<u64>();
    token_bucket::<u32>();
}

fn adjustable_bucket<W: Word>() {
    let tally = each_case("adjustable bucket", |draws, tally| {
        let (chosen, scale) = a_bucket(draws, tally);
        let mut builder = chosen!(AdjustableBucket, chosen);
        if draws.once_in(2) {
            builder = builder.debt(draws.within(1, 9));
        }
        let Ok(_) = builder.build_on::<W>() else {
            return;
        };
        tally.built += 1;
        let touch = |bucket: &AdjustableBucket<W>, (now, n, choice): Step| match choice % 8 {
            0 => {
                let _ = bucket.force_at(now, n);
            }
            1 => {
                let _ = bucket.reserve_at(now, n, nanos(choice >> 8));
            }
            2 => {
                let rate = Rate::new(
                    (choice >> 8) as u32 % 12,
                    nanos(PERIODS[(choice >> 40) as usize % 8]),
                );
                let _ = bucket.adjust_at(now, rate, 1 + u64::from(n), Carry::Keep);
            }
            _ => take(bucket, (now, n, choice)),
        };
        agrees(
            || builder.build_on::<W>().unwrap(),
            touch,
            &Times::any(scale),
            draws,
            tally,
        );
    });
    assert!(tally.lossy > CASES / 10, "{tally:?}");
}

#[test]
fn an_adjustable_bucket_says_when_the_sum_will_have_come_in() {
    adjustable_bucket::<u64>();
    adjustable_bucket::<u32>();
}

fn sliced_bucket<W: Word>() {
    let tally = each_case("sliced bucket", |draws, tally| {
        let (chosen, scale) = a_bucket(draws, tally);
        let builder = chosen!(SlicedBucket, chosen);
        let Ok(_) = builder.build_on::<W>() else {
            return;
        };
        tally.built += 1;
        let touch = |bucket: &SlicedBucket<W>, (now, n, choice): Step| {
            if choice % 4 == 0 {
                // The slice is never dropped, so the bucket stays divided.
                core::mem::forget(bucket.slice_at(now, 1 + n / 2));
            } else {
                take(bucket, (now, n, choice));
            }
        };
        agrees(
            || builder.build_on::<W>().unwrap(),
            touch,
            &Times::any(scale),
            draws,
            tally,
        );
    });
    assert!(
        tally.lossy > CASES / 10 && tally.on_release > CASES / 10,
        "{tally:?}"
    );
}

#[test]
fn the_rest_of_a_sliced_bucket_says_when_the_sum_will_have_come_in() {
    sliced_bucket::<u64>();
    sliced_bucket::<u32>();
}

fn fixed_window<W: Word>() {
    each_case("fixed window", |draws, tally| {
        let window = draws.one_of(&PERIODS);
        let mut builder = FixedWindow::builder(draws.within(1, 7), nanos(window));
        if draws.once_in(4) {
            builder = builder.origin(at(draws.magnitude(1 << 40)));
        }
        if draws.once_in(2) {
            builder = builder.started_by_first_request();
            if draws.once_in(2) {
                builder = builder.tick(nanos(draws.one_of(&[
                    1,
                    10,
                    window / 3 + 1,
                    window,
                    2 * window,
                ])));
            }
        }
        let Ok(_) = builder.build_on::<W>() else {
            return;
        };
        tally.built += 1;
        let make = || builder.build_on::<W>().unwrap();
        agrees(make, take_or_return, &Times::any(window), draws, tally);
    });
}

/// Takes, and in one of four cases refunds.
fn take_or_return<L: Limiter>(limiter: &L, (now, n, choice): Step) {
    if let Ok(receipt) = limiter.take_at(now, n)
        && choice % 4 == 0
    {
        limiter.refund_at(now, n, receipt);
    }
}

#[test]
fn a_fixed_window_says_in_which_window_a_waiters_turn_comes() {
    fixed_window::<u64>();
    fixed_window::<u32>();
}

fn adjustable_window<W: Word>() {
    each_case("adjustable window", |draws, tally| {
        let window = draws.one_of(&PERIODS);
        let mut builder = AdjustableWindow::builder(draws.within(1, 7), nanos(window))
            .max_limit(9)
            .max_window(nanos(4 * window));
        if draws.once_in(4) {
            builder = builder.origin(at(draws.magnitude(1 << 40)));
        }
        if draws.once_in(2) {
            builder = builder.started_by_first_request();
        }
        if draws.once_in(2) {
            builder = builder.tick(nanos(draws.one_of(&[
                1,
                10,
                window / 3 + 1,
                window,
                2 * window,
            ])));
        }
        let Ok(_) = builder.build_on::<W>() else {
            return;
        };
        tally.built += 1;
        let touch = |limiter: &AdjustableWindow<W>, (now, n, choice): Step| {
            if choice % 5 == 0 {
                let carry = [
                    Carry::Keep,
                    Carry::Proportional,
                    Carry::Additive,
                    Carry::Reset,
                ];
                let carry = carry[(choice >> 8) as usize % 4];
                let window = nanos(1 + (choice >> 16) % (4 * window));
                let _ = limiter.adjust_at(now, 1 + u64::from(n), window, carry);
            } else {
                take_or_return(limiter, (now, n, choice));
            }
        };
        agrees(
            || builder.build_on::<W>().unwrap(),
            touch,
            &Times::any(window),
            draws,
            tally,
        );
    });
}

#[test]
fn an_adjustable_window_says_in_which_window_a_waiters_turn_comes() {
    adjustable_window::<u64>();
    adjustable_window::<u32>();
}

fn sliding_window<W: Word>() {
    each_case("sliding window", |draws, tally| {
        let (window, segments) = (draws.one_of(&PERIODS), draws.within(1, 5) as u32);
        let mut builder =
            SlidingWindow::<6>::builder(draws.within(1, 7), nanos(window), segments).max_limit(9);
        if draws.once_in(4) {
            builder = builder.origin(at(draws.magnitude(1 << 40)));
        }
        if draws.once_in(2) {
            builder = builder.strict();
        }
        let Ok(sliding) = builder.build_on::<W>() else {
            return;
        };
        tally.built += 1;
        // A timestamp that is too stale may get a later retry than necessary.
        let nanos_of = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let late = nanos_of(sliding.timing().staleness) / 2;
        let times = Times {
            scale: window,
            jump: nanos_of(sliding.timing().horizon) / 64,
            late,
        };
        let touch = |limiter: &SlidingWindow<6, W>, (now, n, choice): Step| {
            if choice % 8 == 1 {
                limiter.set_limit(1 + u64::from(n)).unwrap();
            }
            take_or_return(limiter, (now, n, choice));
        };
        agrees(
            || builder.build_on::<W>().unwrap(),
            touch,
            &times,
            draws,
            tally,
        );
    });
}

#[test]
fn a_sliding_window_says_in_which_segment_a_waiters_turn_comes() {
    sliding_window::<u64>();
    sliding_window::<u32>();
}

/// Compares the answer behind others with the grants to queues whose requests try at once, or look
/// first, at random.
fn cooldown_window<W: Word>() {
    let (mut behind_others, mut exact, mut never) = (0u64, 0u64, 0u64);
    for seed in 0..CASES {
        let draws = &mut Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let (period, wait) = (draws.one_of(&PERIODS), draws.one_of(&PERIODS));
        let waits = draws.once_in(3);
        let mut builder = CooldownWindow::builder(draws.within(1, 5), nanos(period));
        if waits {
            builder = builder.wait(nanos(wait));
        }
        if draws.once_in(4) {
            builder = builder.tick(nanos(draws.one_of(&[1, 10, period / 3 + 1, period])));
        }
        let Ok(limiter) = builder.build_on::<W>() else {
            continue;
        };
        let limit = limiter.limit() as u32;
        let (steps, now) = Times::any(period).draw(draws);
        let ready = || {
            let limiter = builder.build_on::<W>().unwrap();
            for &step in &steps {
                take_or_return(&limiter, step);
            }
            limiter
        };
        let limiter = ready();
        let answers: Vec<_> = (1..=4 * limit).map(|n| behind(&limiter, now, n)).collect();
        for style in 0..3 {
            let looks = || style == 1 || style == 2 && draws.once_in(2);
            let granted = grants(&ready(), now, (0..4 * limit).map(|_| 1), looks);
            for (index, &answer) in answers.iter().enumerate().skip(limit as usize) {
                let granted = granted.get(index).map_or(Retry::Never, |&at| Retry::At(at));
                let describe = || format!("{} at {now}, style {style}, {limiter:?}", index + 1);
                behind_others += 1;
                exact += u64::from(answer == granted);
                never += u64::from(answer == Retry::Never);
                if waits {
                    let told = answer.wait_from(now).unwrap_or(Duration::MAX);
                    assert!(
                        told <= granted.wait_from(now).unwrap_or(Duration::MAX),
                        "{}",
                        describe()
                    );
                } else {
                    assert_eq!(answer, granted, "{}", describe());
                }
            }
        }
    }
    println!("cooldown window: {behind_others} behind others, {exact} exact, {never} never");
    assert!(
        behind_others > 10 * CASES && exact > behind_others / 2 && exact < behind_others,
        "{exact}"
    );
    assert!(never > CASES / 10, "{never}");
}

#[test]
fn a_cooldown_window_never_reports_a_later_start_than_possible() {
    cooldown_window::<u64>();
    cooldown_window::<u32>();
}

/// Checks one limiter of each type, except the types whose denials delay other requests.
#[test]
fn every_limiter_says_when_a_waiters_turn_comes() {
    struct Agrees<'a> {
        time: Duration,
        draws: &'a mut Draws<'static>,
        tally: &'a mut Tally,
    }
    impl ForEach for Agrees<'_> {
        fn each<L: Subject>(&mut self, kind: Kind, new: impl Fn() -> L) {
            if kind.back == Back::by_time && kind.denial != Denial::acts {
                let scale = self.time.as_nanos() as u64;
                let times = Times {
                    scale,
                    jump: 4 * scale,
                    late: scale / 2,
                };
                agrees(new, take_or_return, &times, self.draws, self.tally);
            }
        }
    }
    let mut tally = Tally::default();
    for seed in 0..CASES / 10 {
        let draws = &mut Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let limit = draws.within(1, 7);
        let time = nanos(draws.one_of(&[1_000_000, 1_000_000_000, 7_000_000_000]));
        let mut agrees = Agrees {
            time,
            draws,
            tally: &mut tally,
        };
        limiters::for_each::<u64>(limit, time, &mut agrees);
        limiters::for_each::<u32>(limit, time, &mut agrees);
    }
    println!("{tally:?}");
    assert!(
        tally.behind > 10 * CASES && tally.larger_exact > CASES,
        "{tally:?}"
    );
}

// By hand.

/// The retry for `n` permits from time zero on, in seconds.
fn told<L: Limiter>(limiter: &L, permits: &[u32]) -> Vec<u64> {
    let told = |&n| match behind(limiter, Timestamp::ZERO, n) {
        Retry::At(at) => at.as_nanos() / 1_000_000_000,
        other => panic!("{n}: {other:?}"),
    };
    permits.iter().map(told).collect()
}

#[test]
fn a_full_window_of_two_admits_the_third_with_the_window_after_the_next() {
    let on_grid = FixedWindow::builder(2, 20 * SECOND);
    for builder in [on_grid, on_grid.started_by_first_request()] {
        let limit = builder.build().unwrap();
        limit.take_at(Timestamp::ZERO, 2).unwrap();
        assert_eq!(
            told(&limit, &[1, 2, 3, 4, 5, 6, 7]),
            [20, 20, 40, 40, 60, 60, 80]
        );
        let limit = builder.build_on::<u32>().unwrap();
        limit.take_at(Timestamp::ZERO, 1).unwrap();
        assert_eq!(
            told(&limit, &[1, 2, 3, 4, 5, 6, 7]),
            [0, 20, 20, 40, 40, 60, 60]
        );
        assert_eq!(
            told(&builder.build().unwrap(), &[1, 2, 3, 4, 5, 6, 7]),
            [0, 0, 20, 20, 40, 40, 60]
        );
    }
    let limit = AdjustableWindow::new(2, 20 * SECOND);
    limit.take_at(Timestamp::ZERO, 2).unwrap();
    assert_eq!(told(&limit, &[1, 2, 3, 4, 5]), [20, 20, 40, 40, 60]);
}

#[test]
fn on_a_grid_the_next_window_begins_where_the_current_one_ends() {
    let now = secs(15);
    let asks = |limit: &dyn Limiter| [2, 3, 5].map(|n| behind(limit, now, n));
    let at = |s| Retry::At(secs(s));
    let builder = FixedWindow::builder(2, 20 * SECOND);
    assert_eq!(asks(&builder.build().unwrap()), [at(15), at(20), at(40)]);
    assert_eq!(
        asks(&builder.started_by_first_request().build().unwrap()),
        [at(15), at(35), at(55)]
    );
}

#[test]
fn a_bucket_brings_what_comes_in_however_small_its_burst() {
    let bucket = TokenBucket::builder(Rate::per_second(2), 3)
        .initial(0)
        .build()
        .unwrap();
    assert_eq!(
        told(&bucket, &[2, 3, 4, 8, 4_000_000_000]),
        [1, 1, 2, 4, 2_000_000_000]
    );
    let full = TokenBucket::new(Rate::per_second(2), 3);
    assert_eq!(told(&full, &[3, 5, 13]), [0, 1, 5]);
}

#[test]
fn a_step_larger_than_the_burst_brings_the_burst() {
    let steps = |rate, burst| {
        TokenBucket::builder(Rate::per_second(rate), burst)
            .initial(0)
            .stepwise()
            .build()
            .unwrap()
    };
    assert_eq!(told(&steps(5, 2), &[1, 2, 3, 4, 5, 6]), [1, 1, 2, 2, 3, 3]);
    assert_eq!(
        told(&steps(2, 5), &[1, 2, 3, 4, 5, 6, 7]),
        [1, 1, 2, 2, 3, 3, 4]
    );
}

#[test]
fn what_a_tick_brings_beyond_the_burst_is_lost() {
    // A permit and two thirds per second: one, then two of the three and a third that had come in,
    // then the same again.
    let bucket = |burst| {
        let rate = Rate::new(5, 3 * SECOND);
        TokenBucket::builder(rate, burst)
            .initial(0)
            .tick(SECOND)
            .build()
            .unwrap()
    };
    assert_eq!(
        told(&bucket(2), &[1, 2, 3, 4, 5, 6, 7]),
        [1, 2, 2, 3, 4, 4, 5]
    );
    assert_eq!(told(&bucket(1), &[1, 2, 3]), [1, 2, 3]);
    assert_eq!(told(&bucket(9), &[1, 3, 5, 10, 15]), [1, 2, 3, 6, 9]);
    // A third of a second is a fraction of a nanosecond more than 333,333,333. With room for one
    // permit, that fraction is lost each time.
    let one = TokenBucket::builder(Rate::per_second(3), 1)
        .initial(0)
        .build()
        .unwrap();
    assert_eq!(
        behind(&one, Timestamp::ZERO, 300),
        Retry::At(at(300 * 333_333_334))
    );
    let two = TokenBucket::builder(Rate::per_second(3), 2)
        .initial(0)
        .build()
        .unwrap();
    assert_eq!(behind(&two, Timestamp::ZERO, 300), Retry::At(secs(100)));
}

#[test]
fn a_sliding_window_returns_each_segment_a_window_later() {
    let limit = SlidingWindow::<4>::new(3, 4 * SECOND, 4);
    limit.take_at(Timestamp::ZERO, 1).unwrap();
    limit.take_at(secs(2), 1).unwrap();
    let asks = [1, 2, 3, 4, 5, 6, 7].map(|n| behind(&limit, secs(3), n));
    assert_eq!(asks, [3, 4, 6, 7, 8, 10, 11].map(|s| Retry::At(secs(s))));
}

#[test]
fn behind_a_cooldown_starts_are_the_shorter_of_period_and_wait_apart() {
    let drained = |wait| {
        let limit = CooldownWindow::new(2, 10 * SECOND, wait);
        limit.take_at(Timestamp::ZERO, 2).unwrap();
        limit
    };
    assert_eq!(told(&drained(None), &[1, 2, 3, 4, 5]), [10, 10, 20, 20, 30]);
    // A request that tries too early makes all wait. That may bring the grants sooner than windows
    // alone, never later.
    let short = drained(Some(3 * SECOND));
    assert_eq!(told(&short, &[3, 4, 5]), [6, 6, 9]);
    assert!(short.take_at(Timestamp::ZERO, 1).is_err());
    assert_eq!(told(&short, &[1, 2, 3, 4, 5]), [3, 3, 6, 6, 9]);
    let long = drained(Some(30 * SECOND));
    assert_eq!(told(&long, &[1, 2, 3, 4, 5]), [10, 10, 20, 20, 30]);
    assert!(long.take_at(Timestamp::ZERO, 1).is_err());
    assert_eq!(told(&long, &[1, 2, 3, 4, 5]), [30, 30, 40, 40, 50]);
}

#[test]
fn where_nothing_comes_in_no_request_gets_an_instant() {
    let none = TokenBucket::new(Rate::per_second(0), 3);
    assert_eq!(
        [3, 4, u32::MAX].map(|n| behind(&none, secs(5), n)),
        [Retry::At(secs(5)), Retry::Never, Retry::Never]
    );
    let held = Concurrency::new(2);
    assert_eq!(
        [2, 3, u32::MAX].map(|n| behind(&held, secs(5), n)),
        [Retry::OnRelease; 3]
    );
}

#[test]
fn a_single_request_for_more_than_the_capacity_gets_never() {
    fn check(limiter: &dyn Limiter) {
        let capacity = limiter.capacity() as u32;
        let denied = limiter.take_at(secs(5), capacity + 1).unwrap_err();
        assert_eq!(
            denied,
            Denied::ExceedsCapacity {
                permits: capacity + 1,
                capacity
            }
        );
        assert_eq!(denied.retry(limiter), Retry::Never);
        assert!(matches!(
            behind(limiter, secs(5), capacity + 1),
            Retry::At(_)
        ));
    }
    for (kind, limiter) in limiters::limited::<u64>(3, SECOND) {
        if kind.back == Back::by_time {
            check(&*limiter);
        }
    }
    check(&CooldownWindow::new(3, SECOND, None));
}

#[test]
fn without_a_limit_no_request_waits() {
    let unlimited = TokenBucket::new(Rate::UNLIMITED, 3);
    let sliced = SlicedBucket::new(Rate::UNLIMITED, 3);
    let limits: [&dyn Limiter; 3] = [&unlimited, &sliced, &Unlimited];
    for limit in limits {
        assert_eq!(behind(limit, secs(5), u32::MAX), Retry::At(secs(5)));
    }
}

#[test]
fn wrappers_and_tables_pass_the_retry_on() {
    fn check<L: Limiter>(what: &str, limiter: &L) {
        limiter.take_at(secs(1), 2).unwrap();
        let told = [1, 2, 3, 4, 5].map(|n| behind(limiter, secs(1), n));
        assert_eq!(told, [2, 2, 3, 3, 4].map(|s| Retry::At(secs(s))), "{what}");
    }
    let window = || FixedWindow::new(2, SECOND);
    check("itself", &window());
    check("a reference", &&window());
    check("statistics", &Counted::new(window()));
    check("a penalty", &Penalty::<_>::new(window(), SECOND / 2));
    let threshold = EscalationThreshold {
        used: 1,
        hold: SECOND,
        decision: (),
    };
    check(
        "an escalation",
        &Escalation::<_, _, 1>::new(window(), [threshold]),
    );
    let seed = |n| {
        let seed = Seed::new();
        seed.set([n, !n]).unwrap();
        seed
    };
    let of_a_key = FixedWindow::builder(2, SECOND).rules().unwrap();
    let keyed = Keyed::new(of_a_key, [const { Line::new() }; 4], seed(1));
    check("a table", &keyed.key("key"));
    let limiters: Vec<_> = (0..32).map(|_| window()).collect();
    let array = KeyedArray::new(window(), limiters, [const { Line::new() }; 4], seed(2));
    check("an array", &array.key("key"));
}

#[test]
fn an_active_penalty_admits_no_request_before_its_end() {
    let limit: Penalty<_> = Penalty::new(FixedWindow::new(2, SECOND), 3 * SECOND);
    limit.take_at(Timestamp::ZERO, 2).unwrap();
    assert!(limit.take_at(Timestamp::ZERO, 1).is_err());
    assert_eq!(told(&limit, &[1, 3, 5, 7, 9]), [3, 3, 3, 4, 5]);
}

#[test]
fn a_slice_counts_what_it_holds_and_asks_the_rest_for_more() {
    let bucket = SlicedBucket::new(Rate::per_second(1), 8);
    let slice = bucket.slice_at(Timestamp::ZERO, 2).unwrap();
    let left = bucket.available_at(Timestamp::ZERO) as u32;
    bucket.take_at(Timestamp::ZERO, left).unwrap();
    for n in [9, 10, 40, u32::MAX - 2] {
        assert_eq!(
            behind(&slice, Timestamp::ZERO, n + 2),
            behind(&bucket, Timestamp::ZERO, n),
            "{n}"
        );
    }
    assert_eq!(
        [6, 7, 8].map(|n| matches!(behind(&bucket, Timestamp::ZERO, n), Retry::At(_))),
        [true, false, false]
    );
    assert_eq!(
        [7, 8].map(|n| behind(&bucket, Timestamp::ZERO, n)),
        [Retry::OnRelease; 2]
    );
}

// Arbitrary settings.

/// A request for more permits is never told to retry sooner, or in the past. Nothing panics, at any
/// time.
fn never_sooner(limiter: &dyn Limiter, draws: &mut Draws<'_>, least: u32) -> u64 {
    let mut beyond = 0;
    for _ in 0..8 {
        let now = match draws.below(4) {
            0 => at(u64::MAX - draws.magnitude(u64::MAX)),
            _ => at(draws.magnitude(u64::MAX)),
        };
        let _ = limiter.take_at(now, draws.magnitude(u32::MAX.into()) as u32);
        let _ = limiter.take_at(now, 1);
        let capacity = u32::try_from(limiter.capacity()).unwrap_or(u32::MAX);
        let around = [
            0,
            capacity - 1,
            capacity,
            capacity.saturating_add(1),
            u32::MAX - 1,
            u32::MAX,
        ];
        let mut asks = around.map(|n| n.max(least)).to_vec();
        asks.extend((0..4).map(|_| (draws.magnitude(u32::MAX.into()) as u32).max(least)));
        asks.sort_unstable();
        let mut before = now;
        for n in asks {
            before = match behind(limiter, now, n) {
                Retry::At(told) => {
                    assert!(
                        told >= before,
                        "{n} at {now}: {told}, and fewer at {before}"
                    );
                    beyond += u64::from(n > capacity);
                    told
                }
                Retry::Never => Timestamp::MAX,
                // Slices may be dropped.
                Retry::OnRelease => before,
                other => panic!("{n} at {now}: {other:?}"),
            }
        }
    }
    beyond
}

fn any_settings<W: Word>() {
    let (mut built, mut beyond) = ([0u64; 7], [0u64; 7]);
    for seed in 0..10 * CASES {
        let draws = &mut Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let (a, b) = (draws.magnitude(1 << 40).max(1), draws.magnitude(u64::MAX));
        let (span, wait) = (nanos(b.max(1)), nanos(draws.magnitude(u64::MAX).max(1)));
        let tick = nanos(draws.magnitude(u64::MAX).max(1));
        let origin = at(draws.magnitude(u64::MAX));
        let permits = draws.magnitude(u32::MAX.into()) as u32;
        let rate = Rate::new(permits, span);
        let mut bucket = TokenBucket::builder(rate, a).origin(origin);
        let mut live = AdjustableBucket::builder(rate, a).origin(origin);
        let mut sliced = SlicedBucket::builder(rate, a).origin(origin);
        let mut fixed = FixedWindow::builder(a, span).origin(origin);
        let mut adjustable = AdjustableWindow::builder(a, span).origin(origin);
        let mut cooldown = CooldownWindow::builder(a, span).origin(origin);
        let mut sliding =
            SlidingWindow::<5>::builder(a, span, draws.within(1, 4) as u32).origin(origin);
        if draws.once_in(2) {
            fixed = fixed.started_by_first_request();
            adjustable = adjustable.started_by_first_request();
            cooldown = cooldown.wait(wait);
            sliding = sliding.strict();
        }
        match draws.below(3) {
            0 => {
                bucket = bucket.stepwise();
                live = live.stepwise();
                sliced = sliced.stepwise();
            }
            1 => {
                bucket = bucket.tick(tick);
                live = live.tick(tick);
                sliced = sliced.tick(tick);
                fixed = fixed.tick(tick);
                adjustable = adjustable.tick(tick);
                cooldown = cooldown.tick(tick);
            }
            _ => {}
        }
        let (mut at, limit) = (0, a.min(u32::MAX.into()) as u32);
        let mut ask = |limiter: Option<&dyn Limiter>, least| {
            if let Some(limiter) = limiter {
                built[at] += 1;
                beyond[at] += never_sooner(limiter, draws, least);
            }
            at += 1;
        };
        ask(
            bucket
                .build_on::<W>()
                .ok()
                .as_ref()
                .map(|limiter| limiter as _),
            0,
        );
        ask(
            live.build_on::<W>()
                .ok()
                .as_ref()
                .map(|limiter| limiter as _),
            0,
        );
        ask(
            sliced
                .build_on::<W>()
                .ok()
                .as_ref()
                .map(|limiter| limiter as _),
            0,
        );
        ask(
            fixed
                .build_on::<W>()
                .ok()
                .as_ref()
                .map(|limiter| limiter as _),
            0,
        );
        ask(
            adjustable
                .build_on::<W>()
                .ok()
                .as_ref()
                .map(|limiter| limiter as _),
            0,
        );
        ask(
            sliding
                .build_on::<W>()
                .ok()
                .as_ref()
                .map(|limiter| limiter as _),
            0,
        );
        // For a single request, the answer is the end of a window, which requests behind others may
        // end sooner.
        let least = limit.saturating_add(1);
        ask(
            cooldown
                .build_on::<W>()
                .ok()
                .as_ref()
                .map(|limiter| limiter as _),
            least,
        );
    }
    println!("{built:?} built, {beyond:?} beyond the capacity");
    assert!(
        built.iter().all(|&n| n > CASES / 2) && beyond.iter().all(|&n| n > CASES),
        "{built:?}, {beyond:?}"
    );
}

#[test]
fn for_any_settings_a_larger_request_is_never_told_to_retry_sooner() {
    any_settings::<u64>();
    any_settings::<u32>();
}
