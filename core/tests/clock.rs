//! Clocks, and limiters that read one.

use core::time::Duration;
use std::thread;
use std::time::Instant;

#[cfg(feature = "tsc")]
use portcullis_core::TscClock;
use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
use portcullis_core::limiter::Idle;
use portcullis_core::{
    Clock, Clocked, CoarseClock, Concurrency, Keyed, ManualClock, MonotonicClock, Rate, Timeless,
    Timestamp, TokenBucket,
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_manual_clock_stands_still_until_it_is_advanced() {
    let clock = ManualClock::default();
    assert_eq!(clock.now(), Timestamp::ZERO);
    assert_eq!(clock.advance(SECOND), Timestamp::from_secs(1));
    assert_eq!(clock.advance(Duration::ZERO), Timestamp::from_secs(1));
    assert_eq!(
        clock.advance(Duration::from_nanos(1)).as_nanos(),
        1_000_000_001
    );
    clock.set(Timestamp::from_millis(3));
    assert_eq!(clock.now(), Timestamp::from_millis(3));
}

#[test]
fn a_pointer_to_a_clock_is_a_clock() {
    use std::sync::Arc;

    let shared = Arc::new(ManualClock::new());
    let boxed: Box<dyn Clock> = Box::new(Arc::clone(&shared));
    let limit = Clocked::new(TokenBucket::new(Rate::per_second(1), 1), boxed);
    assert!(limit.try_acquire(1).is_ok());
    assert!(limit.try_acquire(1).is_err());
    shared.advance(SECOND);
    assert!(limit.try_acquire(1).is_ok());
    let monotonic = MonotonicClock::new();
    assert_eq!(
        Arc::new(monotonic).interval().is_some(),
        monotonic.interval().is_some()
    );
}

#[test]
fn a_manual_clock_wraps_after_the_last_instant() {
    let clock = ManualClock::new();
    clock.set(Timestamp::MAX);
    assert_eq!(clock.advance(Duration::from_nanos(1)), Timestamp::ZERO);
    clock.set(Timestamp::ZERO);
    assert_eq!(clock.advance(Duration::MAX), Timestamp::MAX);
}

#[test]
fn the_steps_of_several_threads_add_up() {
    let clock = ManualClock::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    clock.advance(Duration::from_millis(1));
                }
            });
        }
    });
    assert_eq!(clock.now(), Timestamp::from_secs(4));
}

#[test]
fn no_clock_returns_the_first_instant() {
    assert_eq!(Timeless.now(), Timestamp::ZERO);
    thread::sleep(Duration::from_millis(1));
    assert_eq!(Timeless.now(), Timestamp::ZERO);
}

/// Returns how far a clock advanced while a thread slept, and how long that took in total.
fn passes(clock: &impl Clock) -> (Duration, Duration) {
    let begun = Instant::now();
    let earlier = clock.now();
    thread::sleep(Duration::from_millis(50));
    let passed = clock.now().saturating_since(earlier);
    (passed, begun.elapsed())
}

fn never_goes_back(clock: &impl Clock) {
    let mut earlier = clock.now();
    for _ in 0..10_000 {
        let now = clock.now();
        assert!(now >= earlier, "{now} after {earlier}");
        earlier = now;
    }
}

#[test]
fn a_monotonic_clock_runs_at_the_rate_of_time() {
    let clock = MonotonicClock::new();
    let (passed, at_most) = passes(&clock);
    assert!(passed >= Duration::from_millis(50) && passed <= at_most);
    never_goes_back(&clock);
    never_goes_back(&MonotonicClock::default());
}

/// Timestamps of different clocks, read in turn, are in the order of the readings.
#[test]
fn all_monotonic_clocks_have_the_same_origin() {
    static OLD: MonotonicClock = MonotonicClock::new();
    let mut earlier = OLD.now();
    thread::sleep(Duration::from_millis(5));
    // Each round starts a thread, which takes Miri long.
    let rounds = if cfg!(miri) { 50 } else { 1_000 };
    for _ in 0..rounds {
        let new = MonotonicClock::new().now();
        let old = OLD.now();
        assert!(earlier <= new && new <= old, "{earlier}, {new}, {old}");
        earlier = thread::spawn(|| MonotonicClock::default().now())
            .join()
            .unwrap();
        assert!(old <= earlier, "{old}, {earlier}");
    }
}

#[test]
fn a_coarse_clock_has_the_origin_of_the_monotonic_clock() {
    // Both clocks may be read late, so this compares with a bound that no delay reaches.
    const SOME: Duration = Duration::from_secs(1);
    static COARSE: CoarseClock = CoarseClock::new();
    let before = MonotonicClock::new().now();
    let coarse = COARSE.now();
    let after = MonotonicClock::new().now();
    assert!(before <= coarse + SOME, "{before}, {coarse}");
    assert!(coarse <= after, "{coarse}, {after}");
}

#[test]
fn a_clocked_limiter_in_a_static_is_shared_with_timestamps_of_any_monotonic_clock() {
    // One permit in 1,000 s: no permit returns while the test runs.
    static QUICK: TokenBucket = TokenBucket::new(Rate::per_second(1_000), 1);
    static LIMIT: Clocked<TokenBucket, MonotonicClock> = Clocked::new(
        TokenBucket::new(Rate::new(1, Duration::from_secs(1_000)), 20),
        MonotonicClock::new(),
    );
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(1));
        assert!(LIMIT.try_acquire(1).is_ok());
        let now = MonotonicClock::new().now();
        assert!(LIMIT.limiter().try_acquire_at(now, 1).is_ok());
    }
    assert!(LIMIT.try_acquire(1).is_err());
    // Of a bucket that refills at once, each new clock finds all that has returned.
    for _ in 0..10 {
        assert!(QUICK.try_acquire_at(MonotonicClock::new().now(), 1).is_ok());
        thread::sleep(Duration::from_millis(2));
    }
}

/// The kernel bounds one end of the interval. On a busy machine the time may be after the other.
#[cfg(target_os = "linux")]
#[test]
fn the_interval_of_a_monotonic_clock_contains_the_time() {
    let clock = MonotonicClock::new();
    let (mut within, mut read) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(200) {
        let before = clock.now();
        let interval = <&MonotonicClock>::interval(&&clock).expect("Linux has a coarse clock");
        let after = clock.now();
        assert!(interval.earliest() <= after, "{interval:?} after {after}");
        let length = interval.latest().saturating_since(interval.earliest());
        assert!(length >= Duration::from_millis(10) && length <= Duration::from_millis(28));
        // The process may have been stopped for longer than the interval since.
        within += u32::from(before <= interval.latest());
        read += 1;
    }
    assert!(within >= read - read / 10, "{within} of {read}");
}

#[test]
fn a_clock_has_no_interval_unless_it_says_so() {
    assert_eq!(Timeless.interval(), None);
    assert_eq!(ManualClock::new().interval(), None);
    assert_eq!(CoarseClock::new().interval(), None);
}

/// It lags by up to 10 ms, and so may count a tick more or less than the time that passed.
#[test]
fn a_coarse_clock_lags_by_at_most_its_resolution() {
    const RESOLUTION: Duration = Duration::from_millis(10);
    let clock = CoarseClock::new();
    let (passed, at_most) = passes(&clock);
    assert!(passed + RESOLUTION >= Duration::from_millis(50));
    assert!(passed <= at_most + RESOLUTION);
    never_goes_back(&clock);
}

/// It is calibrated once in a process, against the system's clock, to much better than 1 %. If the
/// process is paused in that time, the rate is wrong, so three processes may try.
#[cfg(feature = "tsc")]
#[test]
fn a_time_stamp_counter_runs_at_the_rate_of_time() {
    const INNER: &str = "PORTCULLIS_CALIBRATE";
    const NAME: &str = "a_time_stamp_counter_runs_at_the_rate_of_time";
    if std::env::var_os(INNER).is_some() {
        let (passed, at_most) = passes(&TscClock::new());
        assert!(passed >= Duration::from_millis(50) * 99 / 100);
        assert!(passed <= at_most * 101 / 100);
        return;
    }
    let program = std::env::current_exe().unwrap();
    let calibrates = |_| {
        let mut process = std::process::Command::new(&program);
        let output = process.args(["--exact", NAME]).env(INNER, "").output();
        output.unwrap().status.success()
    };
    assert!((0..3).any(calibrates));
}

#[cfg(feature = "tsc")]
#[test]
fn all_time_stamp_counters_have_one_origin() {
    let clock = TscClock::new();
    let mut earlier = clock.now();
    for other in [clock.clone(), TscClock::new(), clock] {
        for _ in 0..1_000 {
            let now = other.now();
            assert!(now >= earlier, "all have the same origin");
            earlier = now;
        }
    }
}

#[test]
fn a_limiter_uses_the_time_of_its_clock() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Rate::per_second(2), 4);
    let limit = Clocked::new(&bucket, &clock);
    assert_eq!(
        (limit.available(), limit.idle()),
        (4, Idle::Since(Timestamp::ZERO))
    );
    assert_eq!(limit.try_acquire(3).unwrap().permits(), 3);
    assert_eq!((limit.available(), limit.idle().is_idle()), (1, false));
    clock.advance(SECOND);
    assert_eq!(limit.available(), 3);
    assert_eq!(limit.limiter().available_at(Timestamp::ZERO), 1);
    clock.advance(SECOND);
    assert_eq!(limit.idle(), Idle::Since(Timestamp::from_millis(1_500)));
    assert_eq!(limit.clock().now(), Timestamp::from_secs(2));
}

#[test]
fn each_key_of_a_table_uses_the_time_of_the_tables_clock() {
    static CLOCK: ManualClock = ManualClock::new();
    static TABLE: Keyed<TokenBucketRules, [Line; 4]> = Keyed::new(
        TokenBucketRules::new(Rate::per_second(1), 2),
        [const { Line::new() }; 4],
        Seed::new(),
    );
    CLOCK.set(Timestamp::from_secs(9));
    let users = Clocked::new(&TABLE, &CLOCK);
    let alice = users.owned_key("alice");
    let lease = alice.try_acquire(2).unwrap();
    let denied = alice.try_acquire(1).unwrap_err();
    assert_eq!(
        denied.retry(alice.limiter()).wait_from(CLOCK.now()),
        Some(SECOND)
    );
    assert_eq!((alice.available(), alice.idle()), (0, Idle::InUse));
    assert_eq!(users.owned_key("bob").available(), 2);
    CLOCK.advance(SECOND);
    assert_eq!(users.owned_key("alice").available(), 1);
    thread::spawn(move || drop(lease)).join().unwrap();
    assert!(alice.try_acquire(1).is_ok());

    let owner = Clocked::new(
        Keyed::new(*TABLE.rules(), [const { Line::new() }; 4], Seed::new()),
        &CLOCK,
    );
    assert_eq!(owner.key("alice").available(), 2);
}

#[test]
fn a_limiter_without_time_needs_no_clock() {
    let limit = Clocked::new(Concurrency::new(1), Timeless);
    let lease = limit.try_acquire(1).unwrap();
    assert!(limit.try_acquire(1).is_err());
    drop(lease);
    assert!(limit.try_acquire(1).is_ok());
}

#[test]
fn with_a_clock_that_stands_still_only_the_burst_is_granted() {
    let limit = Clocked::new(TokenBucket::new(Rate::per_second(5), 3), ManualClock::new());
    let granted = (0..100).filter(|_| limit.try_acquire(1).is_ok()).count();
    assert_eq!(granted, 3);
}

#[test]
fn after_its_clock_goes_back_a_limiter_denies_until_it_has_caught_up() {
    let limit = Clocked::new(TokenBucket::new(Rate::per_second(1), 1), ManualClock::new());
    limit.clock().set(Timestamp::from_secs(100));
    assert!(limit.try_acquire(1).is_ok());
    for seconds in 98..=100 {
        limit.clock().set(Timestamp::from_secs(seconds));
        assert!(limit.try_acquire(1).is_err(), "at {seconds} s");
    }
    limit.clock().set(Timestamp::from_secs(101));
    assert!(limit.try_acquire(1).is_ok());
}

#[test]
fn what_a_fast_clock_granted_is_denied_when_the_clock_goes_back() {
    let limit = Clocked::new(
        TokenBucket::new(Rate::per_second(1), 10),
        ManualClock::new(),
    );
    assert!(limit.try_acquire(10).is_ok());
    limit.clock().set(Timestamp::from_secs(5));
    assert!(limit.try_acquire(5).is_ok());
    for seconds in 0..=5 {
        limit.clock().set(Timestamp::from_secs(seconds));
        assert!(limit.try_acquire(1).is_err(), "at {seconds} s");
    }
}
