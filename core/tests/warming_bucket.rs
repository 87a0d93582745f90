//! A bucket that warms up decides as unbounded arithmetic, keeps to the line of its warm-up, and
//! agrees with Guava's `SmoothWarmingUp`.

mod support;

use core::time::Duration;

use portcullis_core::builder::{Setting, WarmingBucketBuilder};
use portcullis_core::limiter::Idle;
use portcullis_core::state::{KeyedWord, Word};
use portcullis_core::{Limiter, Rate, Retry, SettingsError, Timestamp, WarmingBucket};

use support::draws::Draws;
use support::oracle::agrees;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn ms(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

#[test]
fn a_warming_bucket_decides_as_unbounded_arithmetic_does() {
    for width in ["64", "43", "32"] {
        let tally = agrees(&format!("warming bucket, {width} bits"));
        assert!(tally.retried > 1_000 && tally.late > 1_000, "{tally}");
        assert!(tally.wrapped > 0 && tally.void > 0, "{tally}");
    }
}

/// The instants at which a bucket grants, from `now` on, `count` permits, each as soon as it is
/// available.
fn greedy(limit: &dyn Limiter, mut now: Timestamp, count: usize) -> Vec<Timestamp> {
    let mut grants = Vec::new();
    while grants.len() < count {
        match limit.take_at(now, 1) {
            Ok(_) => grants.push(now),
            Err(denied) => match denied.retry(limit) {
                Retry::At(at) => now = at,
                other => panic!("{other:?}"),
            },
        }
    }
    grants
}

/// The waits between successive grants, in milliseconds, rounded to a hundredth of a second.
fn waits(grants: &[Timestamp]) -> Vec<u64> {
    let between = |pair: &[Timestamp]| {
        let wait = pair[1].saturating_since(pair[0]).as_nanos();
        ((wait + 5_000_000) / 10_000_000 * 10) as u64
    };
    grants.windows(2).map(between).collect()
}

/// Guava's `testWarmUpWithColdFactor`: 5 permits per second, a warm-up of 4 s, a cold factor of 10.
#[test]
fn a_bucket_with_a_burst_of_one_is_paced_as_guavas_limiter() {
    let builder = WarmingBucket::builder(Rate::per_second(5), 1, secs(4)).cold_factor(10);
    let limit = builder.build().unwrap();
    let grants = greedy(&limit, ms(0), 8);
    assert_eq!(waits(&grants), [1750, 1260, 760, 300, 200, 200, 200]);
    // A second later, as warm as before.
    let later = grants[7].saturating_add(Duration::from_millis(1_200));
    assert_eq!(waits(&greedy(&limit, later, 8)), [200; 7]);
    // After the warm-up time, as cold as at first.
    let later = grants[7].saturating_add(secs(100));
    assert_eq!(
        waits(&greedy(&limit, later, 8)),
        [1750, 1260, 760, 300, 200, 200, 200]
    );
    // A cold factor of 1 is no warm-up.
    let even = builder.cold_factor(1).build().unwrap();
    assert_eq!(waits(&greedy(&even, ms(0), 8)), [200; 7]);
}

/// Guava's `testWarmUpArea`: however the permits of a warm-up are taken, they need the same time in
/// all.
#[test]
fn the_permits_of_a_warm_up_need_the_same_time_in_any_portions() {
    for cold_factor in [2, 3, 10] {
        for (permits, period) in [
            (4, secs(1)),
            (2, secs(1)),
            (1, secs(1)),
            (1, secs(2)),
            (1, secs(10)),
        ] {
            let rate = Rate::new(permits, period);
            let interval = period.as_nanos() / u128::from(permits);
            // 10 permits return in the warm-up.
            let warm_up = u64::try_from((1 + u128::from(cold_factor)) * 10 * interval / 2).unwrap();
            let builder = WarmingBucket::builder(rate, 5, Duration::from_nanos(warm_up))
                .cold_factor(cold_factor);
            for seed in 0..50 {
                let limit = builder.build().unwrap();
                let mut draws = Draws::Seeded {
                    state: seed,
                    steps: 0,
                };
                let (mut now, mut left) = (ms(0), 10);
                while left > 0 {
                    let n = draws.within(1, left.min(5)) as u32;
                    match limit.take_at(now, n) {
                        Ok(_) => left -= u64::from(n),
                        Err(denied) => match denied.retry(&limit) {
                            Retry::At(at) => now = at,
                            other => panic!("{other:?}"),
                        },
                    }
                }
                let denied = limit.take_at(now, 5).unwrap_err();
                let Retry::At(full) = denied.retry(&limit) else {
                    panic!("{denied:?}");
                };
                let took = full.as_nanos();
                assert!(
                    took.abs_diff(warm_up) <= 200,
                    "{took} for {warm_up}, {builder:?}"
                );
            }
        }
    }
}

/// Compares a cold bucket that is always drained with the documented line, in integers: the first
/// `m` permits beyond the burst never come sooner, and hardly later.
#[test]
fn a_cold_bucket_keeps_to_the_line_of_its_warm_up() {
    fn check<W: Word>() {
        let mut checked = 0;
        for seed in 0..400 {
            let draws = &mut Draws::Seeded {
                state: seed,
                steps: 0,
            };
            let permits = draws.magnitude(2_000).max(1);
            let burst = draws.magnitude(20).max(1);
            let cold = draws.one_of(&[2u64, 3, 3, 7, 30]);
            let period = 1_000_000_000;
            let warm_up = (2 * burst * period).div_ceil(permits) * draws.within(4, 30);
            let builder = WarmingBucket::builder(
                Rate::per_second(permits as u32),
                burst,
                Duration::from_nanos(warm_up),
            )
            .cold_factor(cold as u32);
            let origin = Timestamp::from_nanos(draws.magnitude(1 << 50));
            let builder = builder.origin(origin);
            let Ok(limit) = builder.build_on::<W>() else {
                continue;
            };
            let tick = limit.timing().tick.as_nanos();
            let (permits, cold) = (u128::from(permits), u128::from(cold));
            let (period, warm_up) = (u128::from(period), u128::from(warm_up));
            // M, times (1 + c) * period.
            let ramp = 2 * warm_up * permits;
            let count = (2 * ramp / ((1 + cold) * period)).min(3_000);
            // Used at random, and then unused until it is cold again.
            let (mut now, mut start) = (origin, origin);
            for _ in 0..draws.below(60) {
                let wait = draws.magnitude(4 * period as u64 / permits as u64 + 1);
                now = now.saturating_add(Duration::from_nanos(wait));
                if limit.take_at(now, draws.within(1, burst) as u32).is_ok() {
                    let full = u128::from(burst) * cold * period / permits;
                    let idle = Duration::from_nanos((full + warm_up + 2 * tick) as u64);
                    start = now.saturating_add(idle);
                }
            }
            // At the start of a tick.
            let since = start.saturating_since(origin).as_nanos();
            let start = origin.saturating_add(Duration::from_nanos((since / tick * tick) as u64));
            limit.take_at(start, burst as u32).unwrap();
            let grants = greedy(&limit, start, count as usize);
            for (m, at) in (1..).zip(&grants) {
                let took = at.saturating_since(start).as_nanos();
                // Whether m is at most M.
                let is_rising = m * (1 + cold) * period <= ramp;
                // (c * m - (c - 1) * m^2 / (2 * M)) / rate, in nanoseconds.
                let least = if is_rising {
                    let falls = (cold - 1) * m * m * (1 + cold) * period;
                    (cold * m * period).saturating_sub((falls * period).div_ceil(2 * ramp))
                        / permits
                } else {
                    let beyond = m - ramp / ((1 + cold) * period);
                    warm_up + (beyond - 1) * period / permits
                };
                assert!(took >= least, "{m}: {took} < {least}, {builder:?}");
                if burst > 1 && W::BITS > 32 {
                    let most = least
                        + least / 100
                        + (cold * period / permits) / 8
                        + 4 * tick
                        + period / permits;
                    assert!(took <= most, "{m}: {took} > {most}, {limit:?}, {builder:?}");
                }
            }
            checked += 1;
        }
        assert!(checked > 100, "{checked}");
    }
    check::<u64>();
    check::<KeyedWord>();
    check::<u32>();
}

#[test]
fn no_span_admits_more_than_the_burst_and_the_stable_rate() {
    fn check<W: Word>(seed: u64) {
        let draws = &mut Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let (permits, burst) = (draws.within(1, 40), draws.within(1, 6));
        let warm_up = Duration::from_millis(2_000 * burst / permits + draws.within(1, 5_000));
        let rate = Rate::per_second(permits as u32);
        let limit = WarmingBucket::builder(rate, burst, warm_up)
            .tick(Duration::from_millis(1))
            .build_on::<W>()
            .unwrap();
        let (mut now, mut newest) = (0, 0);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for _ in 0..300 {
            now = match draws.below(4) {
                0 => now,
                1 => newest - draws.magnitude(1_000).min(newest),
                2 => now + draws.magnitude(300),
                _ => now + draws.magnitude(3_000),
            };
            let n = draws.within(1, burst);
            if limit.take_at(ms(now), n as u32).is_ok() {
                // Counts at its own `now`, or at the newest written if that is later.
                newest = now.max(newest);
                admitted.push((newest, n));
            }
        }
        for (first, &(from, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for &(to, n) in &admitted[first..] {
                sum += n;
                let most = burst + permits * (to - from) / 1_000;
                assert!(sum <= most, "{sum} of {most} from {from} to {to}, {seed}");
            }
        }
    }
    for seed in 0..500 {
        check::<u64>(seed);
        check::<u32>(seed);
    }
}

#[test]
fn a_bucket_cools_down_only_while_it_is_full() {
    let limit = WarmingBucket::new(Rate::per_second(10), 2, secs(4));
    // Warm after 60 permits, taken as they come.
    let grants = greedy(&limit, ms(0), 60);
    let now = grants[59];
    let wait = |nanos: u128| Duration::from_nanos(nanos as u64);
    assert_eq!(limit.interval_at(now), Duration::from_millis(100));
    // Not full for 200 ms; in the 2 s after that, a permit still needs 100 ms.
    let later = now.saturating_add(Duration::from_millis(2_150));
    assert_eq!(limit.interval_at(later), Duration::from_millis(100));
    let later = now.saturating_add(Duration::from_millis(3_200));
    let half = limit.interval_at(later);
    assert!(
        half > wait(190_000_000) && half < wait(201_000_000),
        "{half:?}"
    );
    assert_eq!(limit.idle_at(later), Idle::InUse);
    let later = now.saturating_add(Duration::from_millis(4_200));
    let cold = limit.interval_at(later);
    assert!(
        cold > wait(290_000_000) && cold < wait(300_000_000),
        "{cold:?}"
    );
    assert!(limit.idle_at(later).is_idle());
}

#[test]
fn a_bucket_in_use_below_its_rate_stays_cold() {
    // A permit every 250 ms: less than the 10 per second of a warm bucket, more than the 3.3 of a
    // cold one. After 60 s of it the bucket is warm.
    let limit = WarmingBucket::new(Rate::per_second(10), 2, secs(4));
    let every = |limit: &WarmingBucket, step: u64| {
        (0..60_000 / step)
            .filter(|i| limit.take_at(ms(i * step), 1).is_ok())
            .count()
    };
    assert!(every(&limit, 250) > 220);
    // A permit every 500 ms: the bucket is full again before the next one.
    let limit = WarmingBucket::new(Rate::per_second(10), 2, secs(4));
    assert_eq!(every(&limit, 500), 120);
    assert!(limit.interval_at(ms(60_000)) > Duration::from_millis(280));
}

#[test]
fn a_refund_leaves_the_bucket_as_if_the_permits_had_not_been_taken() {
    fn check<W: Word>() {
        let mut exact = 0;
        for seed in 0..2_000 {
            let draws = &mut Draws::Seeded {
                state: seed,
                steps: 0,
            };
            let burst = draws.within(1, 9);
            let builder = WarmingBucket::builder(Rate::per_second(10), burst, secs(4));
            let (one, other) = (
                builder.build_on::<W>().unwrap(),
                builder.build_on::<W>().unwrap(),
            );
            let mut now = 0;
            for _ in 0..draws.below(60) {
                now += draws.magnitude(1_000);
                let n = draws.within(1, burst) as u32;
                assert_eq!(
                    one.take_at(ms(now), n).is_ok(),
                    other.take_at(ms(now), n).is_ok()
                );
            }
            now += draws.magnitude(3_000);
            let available = one.available_at(ms(now));
            if available == 0 {
                continue;
            }
            let n = draws.within(1, available) as u32;
            let kept = draws.within(0, u64::from(n)) as u32;
            let before = other.interval_at(ms(now));
            let receipt = one.take_at(ms(now), n).unwrap();
            if kept > 0 {
                other.take_at(ms(now), kept).unwrap();
            }
            let refund = one.refund_at(ms(now), n - kept, receipt);
            assert_eq!(refund.permits, n - kept);
            assert_eq!(
                one.available_at(ms(now)),
                other.available_at(ms(now)),
                "{seed}"
            );
            let (has, had) = (one.interval_at(ms(now)), other.interval_at(ms(now)));
            assert!(has >= had, "warmer by a refund: {has:?}, {had:?}");
            if before > Duration::from_millis(200) {
                assert_eq!(has, had);
                exact += 1;
                // The refund has rounded the coldness up, so later it may be a step more.
                for step in 0..20 {
                    let at = ms(now + 100 * step);
                    assert_eq!(one.available_at(at), other.available_at(at), "{seed}");
                    let (has, had) = (one.interval_at(at), other.interval_at(at));
                    assert!(has >= had && has < had + Duration::from_millis(3), "{seed}");
                }
            }
        }
        assert!(exact > 200, "{exact}");
    }
    check::<u64>();
    check::<u32>();
}

/// A refund records its time: a stale timestamp after it does not find what had room only later.
#[test]
fn a_late_request_after_a_refund_finds_no_more_than_the_newest_time_leaves() {
    let limit = WarmingBucket::new(Rate::per_second(10), 10, secs(4));
    let receipt = limit.take_at(ms(1_000), 10).unwrap();
    assert_eq!(limit.refund_at(ms(4_500), 10, receipt).permits, 10);
    assert_eq!(limit.available_at(ms(4_500)), 10);
    assert_eq!(limit.available_at(ms(4_400)), 9);
}

#[test]
fn the_default_tick_gives_the_documented_horizon() {
    let day = 86_400;
    for (per_second, warm_up) in [(10_000, 10), (1, 100_000), (1_000, 1), (5, 4)] {
        let limit = WarmingBucket::new(Rate::per_second(per_second), 1, secs(warm_up));
        assert!(limit.timing().horizon >= secs(30 * day), "{limit:?}");
    }
    for (per_second, minutes) in [(9_973, 14), (1_000_000, 45)] {
        let limit = WarmingBucket::new(Rate::per_second(per_second), 1, secs(10));
        assert_eq!(limit.timing().horizon.as_secs() / 60, minutes, "{limit:?}");
    }
}

#[test]
fn refunds_in_a_row_do_not_warm_a_bucket() {
    let limit = WarmingBucket::new(Rate::per_second(10), 20, secs(4));
    let cold = limit.interval_at(ms(0));
    for _ in 0..1_000 {
        let receipt = limit.take_at(ms(0), 20).unwrap();
        assert_eq!(limit.refund_at(ms(0), 20, receipt).permits, 20);
    }
    assert_eq!(limit.interval_at(ms(0)), cold);
    assert_eq!(limit.available_at(ms(0)), 20);
}

fn builder(burst: u64, warm_up: Duration) -> WarmingBucketBuilder {
    WarmingBucket::builder(Rate::per_second(1_000), burst, warm_up)
}

#[test]
fn settings_that_do_not_fit_are_named() {
    let zero = |setting| Err(SettingsError::Zero { setting });
    let refused = |builder: WarmingBucketBuilder| builder.build().map(|_| ());
    assert_eq!(refused(builder(0, secs(1))), zero(Setting::Burst));
    assert_eq!(refused(builder(1, secs(0))), zero(Setting::WarmUp));
    assert_eq!(
        refused(builder(1, secs(1)).cold_factor(0)),
        zero(Setting::ColdFactor)
    );
    let none = WarmingBucket::builder(Rate::ZERO, 1, secs(1));
    assert_eq!(refused(none), zero(Setting::Rate));
    let unlimited = WarmingBucket::builder(Rate::UNLIMITED, 1, secs(1));
    assert!(matches!(
        refused(unlimited),
        Err(SettingsError::TooLarge {
            setting: Setting::Rate,
            ..
        })
    ));
    let short = Err(SettingsError::TooSmall {
        setting: Setting::WarmUp,
        min: 200_000_000,
    });
    assert_eq!(
        refused(builder(100, Duration::from_nanos(199_999_999))),
        short
    );
    assert_eq!(refused(builder(100, Duration::from_millis(200))), Ok(()));
    assert_eq!(
        refused(builder(1, secs(1)).staleness(Duration::from_millis(1))),
        Err(SettingsError::TooSmall {
            setting: Setting::Staleness,
            min: 1_000_000_000
        })
    );
}

#[test]
fn a_bound_that_the_builder_names_fits() {
    fn follows<W: Word>() {
        let (mut built, mut followed) = (0, 0);
        for seed in 0..3_000 {
            let draws = &mut Draws::Seeded {
                state: seed,
                steps: 0,
            };
            let usual = draws.once_in(2);
            let any = draws.magnitude(u64::MAX / 2).max(1);
            let period = if usual { 1_000_000_000 } else { any };
            let mut permits = draws.magnitude(period.min(u32::MAX.into())).max(1);
            if usual {
                permits = permits.min(10_000);
            }
            let most = if usual { 1_000 } else { u64::MAX };
            let mut burst = draws.magnitude(most).max(1);
            let longest = if usual { 100_000_000_000 } else { u64::MAX / 2 };
            let mut warm_up = draws.magnitude(longest).max(1);
            let long = draws.magnitude(u64::MAX / 2);
            let mut staleness = draws.one_of(&[1, 1, long]).max(1_000_000_000);
            let tick = draws.magnitude(u64::MAX / 2);
            let cold_factor = draws.magnitude(most.min(u32::MAX.into())).max(1) as u32;
            for round in 0..6 {
                let rate = Rate::new(permits as u32, Duration::from_nanos(period));
                let mut builder =
                    WarmingBucket::builder(rate, burst, Duration::from_nanos(warm_up))
                        .staleness(Duration::from_nanos(staleness))
                        .cold_factor(cold_factor);
                if seed % 2 == 0 && tick > 0 {
                    builder = builder.tick(Duration::from_nanos(tick));
                }
                match builder.build_on::<W>() {
                    Ok(limit) => {
                        assert!(
                            limit.timing().staleness >= Duration::from_secs(1),
                            "{limit:?}"
                        );
                        assert!(
                            limit.timing().horizon >= 4 * limit.timing().staleness,
                            "{limit:?}"
                        );
                        for _ in 0..4 {
                            let now = Timestamp::from_nanos(draws.any());
                            assert!(limit.available_at(now) <= burst);
                            for n in [0, 1, draws.magnitude(u32::MAX.into()) as u32] {
                                let _ = limit.take_at(now, n).map_err(|it| it.retry(&limit));
                                let _ = limit
                                    .retry(portcullis_core::Denied::Exhausted { now, permits: n });
                            }
                            let _ = (limit.idle_at(now), limit.interval_at(now));
                        }
                        built += 1;
                        followed += u32::from(round > 0);
                        break;
                    }
                    Err(SettingsError::TooLarge { setting, max }) => {
                        let field = match setting {
                            Setting::Burst => &mut burst,
                            Setting::WarmUp => &mut warm_up,
                            Setting::Rate => &mut permits,
                            Setting::Staleness => &mut staleness,
                            other => panic!("{other:?}"),
                        };
                        assert!(*field > max, "{setting:?} of {field}: {max}, {builder:?}");
                        *field = max;
                        if max == 0 {
                            break;
                        }
                    }
                    Err(SettingsError::TooSmall {
                        setting: Setting::WarmUp,
                        min,
                    }) => {
                        assert!(warm_up < min, "{min}, {builder:?}");
                        warm_up = min;
                    }
                    // The longest that fits is shorter than that.
                    Err(SettingsError::TooSmall {
                        setting: Setting::Staleness,
                        ..
                    }) => break,
                    Err(other) => panic!("{other:?}, {builder:?}"),
                }
            }
        }
        println!("{built} built, {followed} of them after a refusal");
        assert!(built > 200 && followed > 100, "{built}, {followed}");
    }
    follows::<u64>();
    follows::<KeyedWord>();
    follows::<u32>();
}
