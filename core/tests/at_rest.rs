//! A limiter at rest grants a request, however long it has rested. A narrow word wraps too soon for
//! that. There, at most one in 100,000 of all times is denied.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::time::Duration;

use draws::Draws;
use portcullis_core::state::Word;
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, Concurrency, CooldownWindow, FixedWindow, Limiter,
    LimiterExt, Penalty, Rate, SlicedBucket, SlidingWindow, StripedBucket, Timestamp, TokenBucket,
    WarmingBucket,
};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const TEN_YEARS: u64 = 3_652 * DAY;

/// The numbers of permits in limits as people state them, for each period.
const NUMBERS: [u32; 21] = [
    1, 2, 3, 5, 6, 10, 12, 15, 20, 25, 30, 50, 60, 75, 100, 120, 150, 200, 250, 500, 1_000,
];
/// Numbers that leave a word of 64 bits less room, and large ones.
const MORE: [u32; 20] = [
    7, 11, 61, 99, 333, 300, 600, 750, 999, 1_200, 1_500, 2_443, 2_500, 5_000, 10_000, 15_000,
    50_000, 100_000, 250_000, 500_000,
];

fn limits(numbers: &[u32]) -> impl Iterator<Item = (u32, u64)> {
    let periods = |n| [SECOND, MINUTE, HOUR, DAY].map(|period| (n, period));
    numbers.iter().copied().flat_map(periods)
}

/// A limiter, and what a sweep needs to know about it.
struct Subject {
    name: String,
    limiter: Box<dyn Limiter>,
    horizon: u64,
    /// How long before and after a whole horizon it may be denied.
    around: u64,
}

impl Subject {
    fn new(
        name: &str,
        limiter: impl Limiter + 'static,
        [staleness, horizon]: [Duration; 2],
        span: u64,
    ) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            name: format!("{name}: staleness {staleness:?}, horizon {horizon:?}"),
            limiter: Box::new(limiter),
            horizon: nanos(horizon),
            around: nanos(staleness).min(TEN_YEARS).saturating_add(span) * 3,
        }
    }

    fn denies(&self, now: u64) -> bool {
        self.limiter.available_at(Timestamp::from_nanos(now)) == 0
    }

    /// Takes all permits at `now`.
    fn use_up(&self, now: u64) {
        let now = Timestamp::from_nanos(now);
        let _ = self.limiter.drain_at(now).expect("all permits are free");
    }

    /// Returns for how long around the next whole horizon the limiter is denied, which was last
    /// used at `since`.
    fn denied_after(&self, since: u64) -> u64 {
        const PROBES: u64 = 3_000;
        let from = since.saturating_add(self.horizon - self.around.min(self.horizon / 2));
        let to = since
            .saturating_add(self.horizon)
            .saturating_add(self.around);
        let step = (to - from).div_ceil(PROBES).max(1);
        let denied = (0..=PROBES).filter(|at| self.denies(from.saturating_add(at * step)));
        denied.count() as u64 * step
    }

    /// Whether the limiter, last used at `since`, is denied at most at one in 100,000 of all times,
    /// or at none for ten years.
    fn is_seldom_denied(&self, since: u64) -> bool {
        let last = self.horizon.saturating_sub(self.around) > TEN_YEARS;
        last || self.denied_after(since) <= self.horizon / 100_000
    }

    /// Whether the limiter, last used at `since`, is denied at no time from `rest` later on, for
    /// ten years.
    fn is_not_denied(&self, since: u64, rest: u64, draws: &mut Draws<'_>) -> bool {
        let rests = (0..500).all(|_| {
            let order = draws.below(48);
            !self.denies(since + rest + draws.below(TEN_YEARS >> order))
        });
        rests
            && (self.horizon.saturating_sub(self.around) > TEN_YEARS
                || self.denied_after(since) == 0)
    }
}

fn bucket<W: Word>(permits: u32, period: u64, burst: u64) -> Subject {
    let rate = Rate::new(permits, Duration::from_nanos(period));
    let bucket = TokenBucket::builder(rate, burst).build_on::<W>().unwrap();
    let name = format!(
        "bucket of {permits} in {period} ns, burst {burst}, by {:?}",
        bucket.timing().tick
    );
    let times = [bucket.timing().staleness, bucket.timing().horizon];
    Subject::new(&name, bucket, times, period.div_ceil(permits.into()))
}

fn windows<W: Word>(limit: u32, period: u64) -> Vec<Subject> {
    let length = Duration::from_nanos(period);
    let name = |kind: &str| format!("{kind} of {limit} in {length:?}");
    let window = FixedWindow::builder(limit.into(), length)
        .build_on::<W>()
        .unwrap();
    let sliding = SlidingWindow::<8>::builder(limit.into(), length, 8);
    let sliding = sliding.build_on::<W>().unwrap();
    let times = |at: &SlidingWindow<8, W>| [at.timing().staleness, at.timing().horizon];
    let of_window = [window.timing().staleness, window.timing().horizon];
    let of_sliding = times(&sliding);
    vec![
        Subject::new(&name("window"), window, of_window, period),
        Subject::new(&name("sliding window"), sliding, of_sliding, 2 * period),
    ]
}

/// Windows that a request starts.
fn started<W: Word>(limit: u32, period: u64) -> Vec<Subject> {
    let length = Duration::from_nanos(period);
    let name = |kind: &str| format!("{kind} of {limit} in {length:?}");
    let window = FixedWindow::builder(limit.into(), length).started_by_first_request();
    let window = window.build_on::<W>().unwrap();
    let cooldown = CooldownWindow::builder(limit.into(), length);
    let cooldown = cooldown.build_on::<W>().unwrap();
    let of_window = [window.timing().staleness, window.timing().horizon];
    let of_cooldown = [cooldown.timing().staleness, cooldown.timing().horizon];
    vec![
        Subject::new(&name("started window"), window, of_window, period),
        Subject::new(&name("cooldown window"), cooldown, of_cooldown, period),
    ]
}

/// A penalty that denies for `wait` after the denial that comes with being used up.
fn penalty<W: Word>(wait: u64) -> Subject {
    let settings = Penalty::builder(Duration::from_nanos(wait))
        .build_on::<W>()
        .unwrap();
    let penalty = settings.around(Concurrency::new(1));
    let times = [penalty.timing().staleness, penalty.timing().horizon];
    Subject::new(&format!("penalty of {wait} ns"), penalty, times, wait)
}

/// The state of a penalty outlives the permits that started it.
fn punish(penalty: &Subject, now: u64) {
    let now = Timestamp::from_nanos(now);
    let _receipt = penalty.limiter.take_at(now, 1).unwrap();
    penalty.limiter.take_at(now, 1).unwrap_err();
    penalty.limiter.release(1);
}

/// At odd numbers above about 50 per second, a tick that brings less than a permit cannot reach
/// such a horizon, and with a burst of 1 a longer tick would cost a part of the rate.
#[test]
fn a_narrow_word_denies_at_rest_at_most_at_one_in_100_000_of_all_times() {
    let mut failed = Vec::new();
    let mut check = |subject: Subject, start: &dyn Fn(&Subject, u64)| {
        let is_seldom = subject.is_seldom_denied(0);
        start(&subject, 7 * DAY);
        if !is_seldom || !subject.is_seldom_denied(7 * DAY) {
            failed.push(subject.name);
        }
    };
    for (permits, period) in limits(&NUMBERS) {
        let one = permits == 1_000 || period > SECOND || !SECOND.is_multiple_of(permits.into());
        let bursts = if one && permits % 3 == 0 && period == SECOND {
            2
        } else {
            1
        };
        for burst in [bursts, 10, u64::from(permits).max(2)] {
            check(bucket::<u32>(permits, period, burst), &Subject::use_up);
        }
        for window in windows::<u32>(permits, period) {
            check(window, &Subject::use_up);
        }
        if permits <= 30 {
            for window in started::<u32>(permits, period) {
                check(window, &Subject::use_up);
            }
        }
    }
    for wait in [
        SECOND / 10,
        SECOND,
        5 * SECOND,
        MINUTE,
        10 * MINUTE,
        HOUR,
        DAY,
    ] {
        check(penalty::<u32>(wait), &punish);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The words of these have fewer bits for the time.
#[test]
fn a_part_of_a_narrow_word_denies_at_first_at_most_at_one_in_1_000_of_all_times() {
    let mut failed = Vec::new();
    for (permits, period) in limits(&NUMBERS[..15]) {
        let (rate, length) = (
            Rate::new(permits, Duration::from_nanos(period)),
            Duration::from_nanos(period),
        );
        let burst = u64::from(permits).max(4);
        let interval = period.div_ceil(permits.into());
        let mut check = |kind: &str, limiter: Box<dyn Limiter>, times: [Duration; 2], span| {
            let subject = Subject::new(
                &format!("{kind} of {permits} in {length:?}"),
                limiter,
                times,
                span,
            );
            let last = subject.horizon.saturating_sub(subject.around) > TEN_YEARS;
            if !last && subject.denied_after(0) > subject.horizon / 1_000 {
                failed.push(subject.name);
            }
        };
        let bucket = AdjustableBucket::builder(rate, burst)
            .build_on::<u32>()
            .unwrap();
        let times = [bucket.timing().staleness, bucket.timing().horizon];
        check("adjustable bucket", Box::new(bucket), times, interval);
        let bucket = SlicedBucket::builder(rate, burst)
            .build_on::<u32>()
            .unwrap();
        let times = [bucket.timing().staleness, bucket.timing().horizon];
        check("sliced bucket", Box::new(bucket), times, interval);
        let bucket = StripedBucket::builder(rate, burst)
            .build_on::<4, u32>()
            .unwrap();
        let times = [bucket.timing().staleness, bucket.timing().horizon];
        check("striped bucket", Box::new(bucket), times, interval);
        let window = AdjustableWindow::builder(burst, length)
            .build_on::<u32>()
            .unwrap();
        let times = [window.timing().staleness, window.timing().horizon];
        check("adjustable window", Box::new(window), times, period);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_wide_word_never_denies_within_ten_years_of_rest() {
    let mut draws = Draws::Seeded {
        state: 7,
        steps: u32::MAX,
    };
    let mut failed = Vec::new();
    let mut count = 0;
    let mut check = |subject: Subject, rest: u64, start: &dyn Fn(&Subject, u64)| {
        let is_granted = subject.is_not_denied(0, 0, &mut draws);
        start(&subject, 7 * DAY);
        if !is_granted || !subject.is_not_denied(7 * DAY, rest, &mut draws) {
            failed.push(subject.name);
        }
    };
    let per_second = |permits: u32, period: u64| u64::from(permits) * SECOND / period;
    for (permits, period) in limits(&NUMBERS).chain(limits(&MORE)) {
        for burst in [1, 10, u64::from(permits)] {
            // And a tick.
            let interval = period.div_ceil(permits.into()) + 1_000;
            // No room for a 256th of the interval in a tick, nor for ten years in the word.
            if !SECOND.is_multiple_of(permits.into()) && per_second(permits, period) > 10_000 {
                continue;
            }
            check(
                bucket::<u64>(permits, period, burst),
                interval,
                &Subject::use_up,
            );
        }
        for window in windows::<u64>(permits, period)
            .into_iter()
            .chain(started::<u64>(permits, period))
        {
            check(window, 2 * period, &Subject::use_up);
        }
        count += 1;
    }
    for wait in [
        SECOND / 10,
        SECOND,
        5 * SECOND,
        MINUTE,
        10 * MINUTE,
        HOUR,
        DAY,
    ] {
        check(penalty::<u64>(wait), wait, &punish);
    }
    assert!(count > 150, "{count}");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The tick of a bucket of `permits` per `period`, in nanoseconds.
fn tick<W: Word>(permits: u32, period: u64) -> u128 {
    let rate = Rate::new(permits, Duration::from_nanos(period));
    let bucket = TokenBucket::builder(rate, 10).build_on::<W>().unwrap();
    bucket.timing().tick.as_nanos()
}

#[test]
fn a_tick_is_a_nanosecond_where_that_lasts_ten_years_and_else_a_small_part_of_the_interval() {
    assert_eq!(tick::<u64>(5, SECOND), 1);
    assert_eq!(tick::<u64>(7, SECOND), 1, "83 years");
    assert_eq!(tick::<u64>(61, MINUTE), 10, "9.5 years by nanoseconds");
    assert_eq!(tick::<u64>(2_443, SECOND), 100, "87 days by nanoseconds");
    assert_eq!(
        tick::<u64>(999_999_937, SECOND),
        1,
        "a permit takes but a nanosecond"
    );
    for (permits, period) in limits(&NUMBERS).chain(limits(&MORE)) {
        let rate = Rate::new(permits, Duration::from_nanos(period));
        let by_nanoseconds = TokenBucket::builder(rate, 10).tick(Duration::from_nanos(1));
        let by_nanoseconds = by_nanoseconds.build().unwrap();
        let rest = by_nanoseconds
            .timing()
            .horizon
            .saturating_sub(2 * by_nanoseconds.timing().staleness);
        let (tick, interval) = (
            tick::<u64>(permits, period),
            u128::from(period / u64::from(permits)),
        );
        if rest > Duration::from_nanos(TEN_YEARS) {
            assert_eq!(tick, 1, "{permits} in {period}");
        }
        assert!(
            tick == 1 || tick <= interval / 256,
            "{permits} in {period}: {tick}"
        );
    }
}

#[test]
fn a_tick_of_a_narrow_word_is_a_small_part_of_the_interval() {
    for (permits, period, expected) in [
        (1, DAY, 10 * SECOND),
        (1, MINUTE, 10_000_000),
        (5, SECOND, 100_000),
        (100, SECOND, 100_000),
        (1_000, SECOND, 100_000),
    ] {
        assert_eq!(
            tick::<u32>(permits, period),
            u128::from(expected),
            "{permits} in {period}"
        );
    }
}

/// Returns the horizon in seconds, and how many of 1,000,000 times deny a rested limiter a permit.
fn of_a_million([staleness, horizon]: [Duration; 2], per_second: u32) -> (u64, u64) {
    let denied = staleness.as_nanos() + u128::from(SECOND / u64::from(per_second));
    let share = denied * 1_000_000 / horizon.as_nanos();
    (horizon.as_secs(), u64::try_from(share).unwrap())
}

/// The rows of `docs/tuning.md`, and the shares in `docs/embedded.md`.
#[test]
fn limits_that_may_deny_within_ten_years_of_rest_are_those_in_the_guides() {
    macro_rules! of {
        ($per_second:literal, $limiter:expr) => {{
            let limiter = $limiter.unwrap();
            of_a_million(
                [limiter.timing().staleness, limiter.timing().horizon],
                $per_second,
            )
        }};
    }
    let per_second = Rate::per_second;
    let day = DAY / SECOND;
    let (horizon, share) = of!(9_973, TokenBucket::builder(per_second(9_973), 10).build());
    assert_eq!((horizon / day, share), (2_140, 19));
    let (horizon, share) = of!(99_991, TokenBucket::builder(per_second(99_991), 10).build());
    assert_eq!((horizon / day, share), (21, 1_951));
    let (horizon, share) = of!(997, AdjustableBucket::builder(per_second(997), 10).build());
    assert_eq!((horizon / day, share), (52, 796));
    let (horizon, share) = of!(997, SlicedBucket::builder(per_second(997), 997).build());
    assert_eq!((horizon / day, share), (418, 99));
    let striped = StripedBucket::builder(per_second(99_991), 10).build::<8>();
    let (horizon, share) = of!(99_991, striped);
    assert_eq!((horizon / day, share), (21, 1_951));
    let warm_up = Duration::from_millis(100);
    let warming = WarmingBucket::builder(per_second(997), 10, warm_up).build();
    let (horizon, share) = of!(997, warming);
    assert_eq!((horizon / day, share), (16, 2_550));
    let all = (1..=5_845).map(|permits| (permits, SECOND));
    let of_longer = [MINUTE, HOUR, DAY].map(|period| (1..=10_000).map(move |n| (n, period)));
    for (permits, period) in all.chain(of_longer.into_iter().flatten()) {
        let rate = Rate::new(permits, Duration::from_nanos(period));
        let bucket = TokenBucket::builder(rate, 1).build().unwrap();
        let rest = bucket
            .timing()
            .horizon
            .saturating_sub(bucket.timing().staleness.min(bucket.timing().horizon / 8));
        assert!(
            rest > Duration::from_nanos(TEN_YEARS),
            "{permits} in {period}: {rest:?}"
        );
    }

    let narrow = |n, burst| TokenBucket::builder(per_second(n), burst).build_on::<u32>();
    assert_eq!(of!(61, narrow(61, 1)).1, 144);
    assert_eq!(of!(999, narrow(999, 10)).1, 232);
    let narrow = AdjustableBucket::builder(per_second(1_000_000), 10).build_on::<u32>();
    assert_eq!(of!(1_000_000, narrow).1, 14_901);
    let narrow = StripedBucket::builder(per_second(100_000), 100_000).build_on::<8, u32>();
    assert_eq!(of!(100_000, narrow).1, 190_841);
    let second = Duration::from_secs(1);
    let warming = |n, burst| WarmingBucket::builder(per_second(n), burst, 10 * second);
    assert_eq!(of!(1, warming(1, 1).build_on::<u32>()).1, 47);
    assert_eq!(of!(10, warming(10, 10).build_on::<u32>()).1, 262);
    assert_eq!(of!(100, warming(100, 10).build_on::<u32>()).1, 9_632);
}

/// A thread may be delayed between its clock and the limiter. With a longer horizon, there is room
/// for longer delays.
#[test]
fn the_staleness_of_a_narrow_word_is_a_small_part_of_its_horizon_but_at_least_a_second() {
    for (permits, period) in limits(&NUMBERS) {
        let rate = Rate::new(permits, Duration::from_nanos(period));
        let bucket = TokenBucket::builder(rate, 10).build_on::<u32>().unwrap();
        let (late, horizon) = (bucket.timing().staleness, bucket.timing().horizon);
        assert!(late >= Duration::from_secs(1), "{late:?}");
        let years = Duration::from_nanos(TEN_YEARS);
        if horizon < years {
            assert!(
                late <= (horizon / 500_000).max(Duration::from_secs(1)),
                "{late:?}"
            );
        }
    }
}

/// What a tick brings beyond a full bucket is lost, so a tick brings little.
#[test]
fn a_burst_of_one_loses_at_most_a_64th_of_a_narrow_words_rate_by_its_tick() {
    for permits in [3, 7, 30, 60, 61, 75, 300, 600] {
        let bucket = TokenBucket::builder(Rate::per_second(permits), 1);
        let bucket = bucket.build_on::<u32>().unwrap();
        let tick = u64::try_from(bucket.timing().tick.as_nanos()).unwrap();
        let ticks = 10 * SECOND / tick;
        let granted = (1..=ticks)
            .filter(|at| {
                bucket
                    .try_acquire_at(Timestamp::from_nanos(at * tick), 1)
                    .is_ok()
            })
            .count();
        let all = 10 * usize::try_from(permits).unwrap();
        assert!(granted >= all - all / 64 - 1, "{granted} of {all}");
    }
}
