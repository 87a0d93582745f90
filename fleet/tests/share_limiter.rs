//! The limiter that follows a share: it never admits more than the share has, in no order of
//! events.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;

use portcullis_async::{NoTimer, Queue, Rejected, ThreadTimer};
use portcullis_core::{
    Clock, Denied, Limiter, ManualClock, MonotonicClock, Rate, Retry, Timestamp,
};
use portcullis_fleet::{Fallback, MemberShare, Pool, ShareLimiter};
use std::sync::Arc;

fn pool() -> Pool {
    // 20 partitions of 25 permits a second.
    let pool = Pool::builder("writes", Rate::per_second(500));
    pool.partitions(20).burst(5).build().unwrap()
}

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn share(partitions: u32, until: u64) -> MemberShare {
    MemberShare {
        partitions,
        until: at(until),
    }
}

fn limiter(pool: &Pool) -> ShareLimiter {
    ShareLimiter::new(pool, at(0)).unwrap()
}

fn taken(limiter: &ShareLimiter, now: u64) -> u64 {
    let mut taken = 0;
    while limiter.try_acquire_at(at(now), 1).is_ok() {
        taken += 1;
    }
    taken
}

#[test]
fn without_leases_only_the_reserved_capacity_is_admitted() {
    let none = limiter(&pool());
    assert_eq!(taken(&none, 100_000), 0);
    let reserved = limiter(&pool().to_builder().reserved(20).build().unwrap());
    assert_eq!(taken(&reserved, 0), 0);
    assert_eq!(taken(&reserved, 50), 1);
    assert_eq!(taken(&reserved, 100_000), 2, "a tenth of a second");
}

#[test]
fn a_lease_brings_no_permits_when_it_begins() {
    let limiter = limiter(&pool());
    limiter.follow_at(at(100_000), share(20, 110_000));
    assert_eq!(taken(&limiter, 100_000), 0);
    assert_eq!(taken(&limiter, 100_010), 5);
    limiter.follow_at(at(105_000), MemberShare::NONE);
    limiter.follow_at(at(106_000), share(20, 110_000));
    assert_eq!(
        taken(&limiter, 106_000),
        0,
        "what was saved up has gone with the leases, and nothing was gained since"
    );
    assert_eq!(taken(&limiter, 106_100), 50);
}

#[test]
fn a_lease_takes_its_burst_along_when_it_ends() {
    let limiter = limiter(&pool());
    limiter.follow_at(at(0), share(4, 10_000));
    assert_eq!(limiter.available_at(at(5_000)), 20);
    limiter.follow_at(at(5_000), share(3, 10_000));
    assert_eq!(limiter.available_at(at(5_000)), 15);
    limiter.follow_at(at(5_000), share(20, 10_000));
    assert_eq!(limiter.available_at(at(5_000)), 15);
    assert_eq!(taken(&limiter, 5_000), 15);
}

#[test]
fn from_its_end_on_a_share_admits_nothing() {
    for reserved in [0, 50] {
        let pool = pool().to_builder().reserved(reserved).build().unwrap();
        let limiter = limiter(&pool);
        limiter.follow_at(at(0), share(4, 1_000));
        let last = Timestamp::from_nanos(at(1_000).as_nanos() - 1);
        assert!(limiter.try_acquire_at(last, 1).is_ok());
        for late in [1_000, 1_001, 99_000] {
            let denied = limiter.try_acquire_at(at(late), 1).unwrap_err();
            assert_eq!(
                denied,
                Denied::Exhausted {
                    now: at(late),
                    permits: 1
                }
            );
            assert_eq!(limiter.available_at(at(late)), 0);
            assert_eq!(
                limiter.retry(denied),
                Retry::After(Duration::from_millis(50))
            );
        }
    }
}

/// A process was stopped beyond the end of its leases. What the bucket gained since then belongs to
/// the next holder.
#[test]
fn what_a_share_gains_after_its_end_is_not_admitted_later() {
    let limiter = limiter(&pool());
    limiter.follow_at(at(0), share(4, 1_000));
    assert_eq!(taken(&limiter, 999), 20);
    limiter.follow_at(at(61_000), share(4, 70_000));
    assert_eq!(taken(&limiter, 61_000), 0);
    assert_eq!(taken(&limiter, 61_100), 10);
    // The same for the reserved capacity alone: that of an end that was missed does not count.
    let reserved = pool().to_builder().reserved(20).build().unwrap();
    let limiter = ShareLimiter::new(&reserved, at(0)).unwrap();
    limiter.follow_at(at(0), share(4, 1_000));
    limiter.follow_at(at(61_000), MemberShare::NONE);
    assert_eq!(taken(&limiter, 61_000), 0);
}

#[test]
fn a_renewal_keeps_what_was_saved_up() {
    let limiter = limiter(&pool());
    limiter.follow_at(at(0), share(4, 1_000));
    limiter.follow_at(at(500), share(4, 1_500));
    assert_eq!(taken(&limiter, 500), 20);
    assert_eq!(taken(&limiter, 1_400), 20);
}

/// A thread that has read the clock is stopped, and takes after the share has shrunk.
#[test]
fn a_stale_timestamp_takes_no_more_than_the_present_share() {
    let limiter = limiter(&pool());
    limiter.follow_at(at(0), share(4, 10_000));
    limiter.follow_at(at(5_000), share(1, 10_000));
    let stale = taken(&limiter, 4_999);
    assert!((1..=5).contains(&stale), "{stale}");
    limiter.follow_at(at(6_000), MemberShare::NONE);
    assert_eq!(taken(&limiter, 5_999), 0);
    // The bucket is empty as well, for a decision that has already seen the end.
    limiter.follow_at(at(6_000), share(1, 10_000));
    assert_eq!(taken(&limiter, 5_999), 0);
}

/// The process was stopped for minutes in the middle of a decision, and its other threads go first.
#[test]
fn a_timestamp_from_before_a_long_stop_takes_nothing_that_was_not_there() {
    let limiter = limiter(&pool());
    limiter.follow_at(at(0), share(4, 900_000));
    assert_eq!(taken(&limiter, 1_000), 20);
    limiter.follow_at(at(301_000), MemberShare::NONE);
    limiter.follow_at(at(301_000), share(4, 900_000));
    assert_eq!(taken(&limiter, 2_000), 0);
    assert_eq!(taken(&limiter, 301_000), 0);
}

#[test]
fn fallbacks_admit_what_they_say() {
    let pool = pool().to_builder().reserved(20).build().unwrap();
    let cases = [
        (Fallback::Reserved, 20),
        (Fallback::Block, 0),
        (Fallback::Safe(30), 50),
    ];
    for (fallback, per_second) in cases {
        let limiter = limiter(&pool);
        limiter.follow_at(at(0), share(4, 1_000));
        limiter.fall_back_at(at(1_000), fallback);
        taken(&limiter, 1_000);
        let admitted: u64 = (1..=100)
            .map(|tick| taken(&limiter, 1_000 + 10 * tick))
            .sum();
        assert_eq!(admitted, per_second, "{fallback:?}");
        limiter.follow_at(at(2_000), share(4, 9_000));
        let burst = taken(&limiter, 2_000);
        assert!(burst <= 5, "{fallback:?} {burst}");
        assert_eq!(taken(&limiter, 2_100), 12);
    }
}

#[test]
fn a_request_waits_for_a_share_that_is_large_enough() {
    let limiter = limiter(&pool());
    limiter.follow_at(at(0), share(1, 60_000));
    // More than the burst of one partition, less than that of all.
    let denied = limiter.try_acquire_at(at(5_000), 6).unwrap_err();
    assert_eq!(
        limiter.retry(denied),
        Retry::After(Duration::from_millis(50))
    );
    let denied = limiter.try_acquire_at(at(5_000), 101).unwrap_err();
    assert_eq!(
        denied,
        Denied::ExceedsCapacity {
            permits: 101,
            capacity: 100
        }
    );
    assert_eq!(limiter.retry(denied), Retry::Never);
    assert_eq!(taken(&limiter, 5_000), 5);
    let denied = limiter.try_acquire_at(at(5_000), 1).unwrap_err();
    assert_eq!(limiter.retry(denied), Retry::At(at(5_040)));
    // The lease ends before.
    limiter.follow_at(at(5_000), share(1, 5_030));
    assert_eq!(
        limiter.retry(denied),
        Retry::After(Duration::from_millis(50))
    );
}

#[test]
fn a_queue_follows_the_share() {
    let (clock, limiter) = (ManualClock::new(), Arc::new(limiter(&pool())));
    let queue = Queue::new(Arc::clone(&limiter), NoTimer(&clock), 100);
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| futures_executor::block_on(queue.acquire(6)).is_ok());
        while queue.counts().waiters == 0 {
            std::thread::yield_now();
        }
        limiter.follow_at(at(0), share(1, 60_000));
        clock.advance(Duration::from_secs(10));
        queue.advance();
        assert_eq!(queue.counts().waiters, 1, "one partition has a burst of 5");
        limiter.follow_at(clock.now(), share(2, 60_000));
        for _ in 0..10 {
            clock.advance(Duration::from_millis(50));
            queue.advance();
        }
        waits.join().unwrap()
    });
    assert!(waits);
    let refused = futures_executor::block_on(queue.acquire(101)).map(|_| ());
    assert!(
        matches!(refused, Err(Rejected::ExceedsCapacity { .. })),
        "{refused:?}"
    );
}

/// The queue has only its timer: no call tells it of the change.
#[test]
fn a_wait_notices_a_larger_share_by_itself() {
    let clock = MonotonicClock::new();
    let limiter = Arc::new(ShareLimiter::new(&pool(), clock.now()).unwrap());
    let queue = Queue::new(Arc::clone(&limiter), ThreadTimer::new(), 100).shared();
    let waits =
        std::thread::spawn(move || futures_executor::block_on(queue.acquire_owned(1)).is_ok());
    std::thread::sleep(Duration::from_millis(20));
    let until = clock.now().saturating_add(Duration::from_mins(1));
    limiter.follow_at(
        clock.now(),
        MemberShare {
            partitions: 20,
            until,
        },
    );
    assert!(waits.join().unwrap());
}

#[test]
fn other_settings_of_the_pool_count_from_the_change_on() {
    let limiter = limiter(&pool());
    limiter.follow_at(at(0), share(4, 60_000));
    let larger = pool()
        .to_builder()
        .shared(Rate::per_second(1_000))
        .build()
        .unwrap();
    limiter
        .change_at(at(1_000), &larger, share(4, 60_000))
        .unwrap();
    taken(&limiter, 1_000);
    assert_eq!(taken(&limiter, 1_050), 10);
}

/// Rates that do not divide, and periods from a millisecond to a day.
#[test]
fn all_numbers_of_partitions_have_their_exact_rate() {
    let (short, hour) = (Duration::from_millis(50), Duration::from_hours(1));
    for (rate, step, steps) in [
        (Rate::per_second(1_000_003), short, 140),
        (Rate::per_second(7), short, 140),
        (Rate::new(999, Duration::from_millis(1)), short, 140),
        (Rate::per_day(11), hour, 7 * 24),
    ] {
        let pool = Pool::builder("odd", rate).partitions(7).burst(20_000);
        let pool = pool.build().unwrap();
        let limiter = ShareLimiter::new(&pool, at(0)).unwrap();
        let mut now = at(0);
        for partitions in 1..=7 {
            limiter.follow_at(now, MemberShare::NONE);
            let until = Timestamp::from_nanos(u64::MAX / 2);
            limiter.follow_at(now, MemberShare { partitions, until });
            let mut admitted = 0;
            for _ in 0..steps {
                now = now.saturating_add(step);
                let n = limiter.available_at(now) as u32;
                if n > 0 {
                    let _ = limiter.try_acquire_at(now, n).unwrap();
                    admitted += u64::from(n);
                }
            }
            // Seven periods, or as many as there are in seven seconds.
            let periods = (step * steps).as_nanos() / rate.period().as_nanos();
            let all = u128::from(rate.permits()) * periods * u128::from(partitions) / 7;
            assert_eq!(u128::from(admitted), all, "{rate:?} {partitions}");
        }
    }
}

/// A share that was in force from one instant to another.
struct Spell {
    from: u64,
    to: u64,
    partitions: u32,
}

/// Returns what the shares gain from `from` to `to`, in billionths of a permit.
fn gained(spells: &[Spell], from: u64, to: u64) -> u64 {
    let gained = spells.iter().map(|spell| {
        let overlap = spell.to.min(to).saturating_sub(spell.from.max(from));
        overlap * u64::from(spell.partitions) * 25_000
    });
    gained.sum()
}

/// Threads take while the share changes all the time, and sometimes ends before it is changed.
#[test]
fn threads_are_never_admitted_more_than_the_share_has() {
    const THREADS: usize = 3;
    let (clock, faster) = (MonotonicClock::new(), Rate::per_second(500_000));
    let pool = pool().to_builder().shared(faster).build().unwrap();
    let limiter = ShareLimiter::new(&pool, clock.now()).unwrap();
    let is_over = AtomicBool::new(false);
    let take = || {
        let mut admitted = Vec::new();
        while !is_over.load(Relaxed) {
            let now = clock.now();
            if limiter.try_acquire_at(now, 1).is_ok() {
                admitted.push(now.as_nanos());
            } else {
                std::thread::yield_now();
            }
        }
        admitted
    };
    let (mut spells, mut draws) = (Vec::new(), 7_u64);
    let mut admitted = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
        let begun = clock.now();
        let mut current = Spell {
            from: 0,
            to: 0,
            partitions: 0,
        };
        let mut draw = |below: u64| {
            draws = draws
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (draws >> 33) % below
        };
        while clock.now().saturating_since(begun) < Duration::from_secs(2) {
            let partitions = draw(21) as u32;
            let from = clock.now();
            let until = from.saturating_add(Duration::from_millis(2 + draw(10)));
            limiter.follow_at(from, MemberShare { partitions, until });
            let mut spell = Spell {
                from: from.as_nanos(),
                to: until.as_nanos(),
                partitions,
            };
            // The share of before was in force until that call returned.
            core::mem::swap(&mut spell, &mut current);
            spell.to = spell.to.min(clock.now().as_nanos());
            spells.push(spell);
            std::thread::sleep(Duration::from_millis(draw(12)));
        }
        spells.push(current);
        is_over.store(true, Relaxed);
        let admitted = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        admitted.collect::<Vec<_>>()
    });
    admitted.sort_unstable();
    assert!(admitted.len() > 100, "{}", admitted.len());
    let (mut above, mut last) = (0_u64, 0);
    for &time in &admitted {
        above = above.saturating_sub(gained(&spells, last, time)) + 1_000_000_000;
        last = time;
        // A thread may be paused between the clock and the decision, which then counts later.
        let bound = (pool.burst_of(20) + THREADS as u64) * 1_000_000_000;
        assert!(above <= bound, "{above} billionths above the rate");
    }
}

/// As a clock does that stands still, or a coarse tick of a slow rate.
#[test]
fn any_number_of_changes_at_one_instant_end() {
    for rate in [Rate::per_second(500), Rate::per_day(11)] {
        let pool = Pool::builder("slow", rate).build().unwrap();
        let limiter = limiter(&pool);
        for round in 0..1_000 {
            limiter.follow_at(at(5_000), share(1 + round % 20, 60_000));
            if round % 3 == 0 {
                limiter.follow_at(at(5_000), MemberShare::NONE);
            }
            if round % 7 == 0 {
                limiter.fall_back_at(at(5_000), Fallback::Safe(3));
            }
            assert_eq!(limiter.available_at(at(5_000)), 0);
        }
    }
}
