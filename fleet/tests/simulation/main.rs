//! A fleet in virtual time: the protocol of the library, the real limiter, and everything that can
//! go wrong.
//!
//! `PORTCULLIS_SEED=n` runs one of the random runs again and shows its plan. `PORTCULLIS_SEED=n..m`
//! does only the random runs from `n` to `m - 1`.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    reason = "times and counts of a run are small"
)]

mod checks;
mod clock;
mod exhaustive;
mod plan;
mod random;
mod world;

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Mutex;
use std::thread;

use plan::{MILLI, Plan, Restart, SECOND, Scripted};
use portcullis_core::Rate;
use portcullis_fleet::{Pool, PoolBuilder};
use random::Random;
use world::{Outcome, World};

/// In every run: at each instant, at most one process uses a partition, and none after the end of
/// its lease; all admissions conform to the bound; no partition is free for more than an interval
/// while a process that can ask lacks it; 95 % of what is demanded and available is used; and
/// Jain's index of fair shares is at least 0.95.
fn random_runs(seeds: Range<u64>) {
    runs(seeds, Plan::random);
}

fn runs(mut seeds: Range<u64>, plan_of: fn(u64) -> Plan) {
    if let Ok(seed) = std::env::var("PORTCULLIS_SEED") {
        let number = |text: &str| {
            text.parse()
                .expect("a number, or two with `..` between them")
        };
        if let Some((first, end)) = seed.split_once("..") {
            seeds = number(first)..number(end);
        } else {
            let plan = plan_of(number(&seed));
            println!("{plan:#?}");
            println!("{:#?}", World::new(plan).run().unwrap());
            return;
        }
    }
    let next = AtomicU64::new(seeds.start);
    let outcomes = Mutex::new(Vec::new());
    let failures = Mutex::new(Vec::new());
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            // A few failures say enough.
            if seed >= seeds.end || failures.lock().unwrap().len() >= 10 {
                return;
            }
            match World::new(plan_of(seed)).run() {
                Ok(outcome) => outcomes.lock().unwrap().push(outcome),
                Err(wrong) => failures.lock().unwrap().push((seed, wrong)),
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(run);
        }
    });
    let failures = failures.into_inner().unwrap();
    report(&outcomes.into_inner().unwrap());
    for (seed, wrong) in &failures {
        println!("PORTCULLIS_SEED={seed}: {wrong}");
    }
    assert!(failures.is_empty(), "{} runs are wrong", failures.len());
}

fn report(outcomes: &[Outcome]) {
    let mean = |of: fn(&Outcome) -> f64| {
        let sum: f64 = outcomes.iter().map(of).sum();
        sum / outcomes.len() as f64
    };
    let lowest = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).fold(f64::MAX, f64::min);
    let longest = outcomes.iter().map(|outcome| outcome.longest_idle).max();
    println!(
        "used {:.4} (lowest {:.4}), in the calm {:.4} ({:.4}); Jain {:.4} ({:.4}); {:.2} exchanges \
         of a process in a second; {:.0} permits; {:.0} measured; a partition free for {} ms",
        mean(|run| run.use_with_faults),
        lowest(|run| run.use_with_faults),
        mean(|run| run.use_in_calm),
        lowest(|run| run.use_in_calm),
        mean(|run| run.jain),
        lowest(|run| run.jain),
        mean(|run| run.exchanges),
        mean(|run| run.admitted as f64),
        mean(|run| run.demanded as f64),
        longest.unwrap_or(0) / MILLI,
    );
}

#[test]
fn two_thousand_random_runs() {
    random_runs(0..2_000);
}

/// Of two servers that keep running, the one that the members come back to does not know what the
/// other one has leased.
#[test]
fn a_server_that_members_leave_and_come_back_to_leases_nothing_twice() {
    runs(0..1_000, Plan::there_and_back);
}

#[test]
#[ignore = "takes an hour"]
fn a_hundred_thousand_random_runs() {
    random_runs(0..100_000);
}

fn pool() -> PoolBuilder {
    Pool::builder("simulated", Rate::per_second(500)).partitions(20)
}

fn run(plan: Plan) -> Outcome {
    let seed = plan.seed;
    let outcome = World::new(plan).run();
    outcome.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"))
}

/// What a process that crashes had is in use again after one lease and one interval, and after two
/// leases and one interval if the store restarts too. Intervals vary by a quarter.
#[test]
fn the_capacity_of_a_crashed_process_is_in_use_again() {
    for is_fair in [false, true] {
        recovers_from_a_crash(&pool().fair(is_fair).build().unwrap());
    }
}

fn recovers_from_a_crash(pool: &Pool) {
    let lease = pool.lease().as_nanos() as u64;
    let interval = pool.interval().as_nanos() as u64 * 5 / 4;
    let kinds = [None, Some(Restart::TimeToLive), Some(Restart::Everything)];
    for restart in kinds {
        let mut longest = 0;
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let crash = random.within(10 * SECOND..20 * SECOND);
            // The first one has all partitions, and the other two want as much.
            let script = vec![
                (SECOND, Scripted::Wants(0, 20)),
                (2 * SECOND, Scripted::Wants(1, 8)),
                (2 * SECOND, Scripted::Wants(2, 12)),
                (crash, Scripted::Crashes(0)),
            ];
            let mut plan = Plan::scripted(seed, 3, pool.clone(), 90, script);
            if let Some(restart) = restart {
                // At worst, just before the lease would have ended.
                let at = crash + random.pick(&[lease / 2, lease * 2 / 3 - MILLI]);
                plan.restarts.push((at, 0, restart));
            }
            let held = run(plan).held;
            assert_eq!((held[1].0, held[2].0), (8, 12), "seed {seed}");
            longest = longest.max(held[1].1.max(held[2].1) - crash);
        }
        let leases = if restart.is_some() { 2 } else { 1 };
        // And the way to the store and back.
        let bound = leases * lease + interval + 4 * MILLI;
        println!(
            "fair {}, {restart:?}: {} ms of {} ms",
            pool.is_fair(),
            longest / MILLI,
            bound / MILLI
        );
        assert!(longest <= bound, "{restart:?}");
        assert!(
            longest > (leases - 1) * lease,
            "{restart:?}: it must matter"
        );
    }
}

/// From a demand to all 20 partitions: if they are free; if the demand of the process that has
/// them falls at that moment; and, in a fair pool, to half of them if the other goes on.
#[test]
fn a_demand_has_its_full_share_in_less_than_a_second() {
    let demand = 20 * SECOND;
    let longest = |is_fair: bool, before: u32, after: u32, share: usize| {
        let times = (0..200).map(|seed| {
            let pool = pool().fair(is_fair).build().unwrap();
            let at = demand + Random::new(seed).within(0..SECOND);
            let script = vec![
                (SECOND, Scripted::Wants(0, before)),
                (at, Scripted::Wants(0, after)),
                (at, Scripted::Wants(1, 20)),
            ];
            let held = run(Plan::scripted(seed, 2, pool, 25, script)).held;
            assert_eq!(held[1].0, share, "seed {seed}");
            held[1].1 - at
        });
        times.max().unwrap()
    };
    let free = longest(false, 0, 0, 20);
    let released = longest(false, 20, 0, 20);
    let shared = longest(true, 20, 20, 10);
    println!(
        "free {} ms, released {} ms, shared {} ms",
        free / MILLI,
        released / MILLI,
        shared / MILLI
    );
    assert!(free < 10 * MILLI && released < SECOND && shared < SECOND);
}

/// Exchanges with the store for each process in a second.
#[test]
fn the_load_of_a_store_is_bounded() {
    let exchanges = |pool: PoolBuilder, wanted: u32| {
        let pool = pool.build().unwrap();
        let script = (0..10).map(|process| (1, Scripted::Wants(process, wanted)));
        run(Plan::scripted(1, 10, pool, 120, script.collect())).exchanges
    };
    let satisfied = exchanges(pool(), 2);
    let short = exchanges(pool(), 20);
    let fair = exchanges(pool().fair(true), 20);
    println!("satisfied {satisfied:.2}, short {short:.2}, fair {fair:.2} exchanges/s");
    // Once in a third of 15 s, or a little more often.
    assert!(satisfied < 0.3);
    // Once in about 300 ms, and once more for what is given back.
    assert!(short < 3.6 && fair < 4.0);
    let slower = exchanges(pool().interval(Duration::from_secs(1)), 20);
    assert!(slower < 1.1);
}
