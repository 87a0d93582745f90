//! Runs of jobs with random settings, costs, times and outcomes, in virtual time: nothing is
//! released beyond the bound, no more is held than allowed, and each operation is settled once.

#[path = "support/virtual_time.rs"]
mod virtual_time;

use core::cell::{Cell, RefCell};
use core::future::ready;
use core::time::Duration;
use std::collections::BTreeMap;

use futures_util::future::join;
use futures_util::{StreamExt as _, stream};
use portcullis_async::Queue;
use portcullis_core::Rate;
use portcullis_jobs::{Jobs, Operation, Pace, RunEnd, SlowDown, WriteOutcome, Written};
use virtual_time::{Log, World};

/// Pseudo-random numbers: `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.below(below))
    }
}

/// An operation: its number and its cost.
type Job = (usize, u32);

/// What the service does with one operation.
fn outcome(random: &mut Random, failures: u64) -> WriteOutcome {
    if random.below(100) >= failures {
        return WriteOutcome::Done;
    }
    match random.below(4) {
        0 => WriteOutcome::Refused,
        1 => {
            let retry_after = (random.below(2) == 0).then(|| random.millis(800));
            WriteOutcome::Overloaded { retry_after }
        }
        _ => WriteOutcome::Retry,
    }
}

/// Counts a write as long as it exists, also if it is dropped.
struct Counts<'c>(&'c Cell<usize>);

impl Drop for Counts<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn run(seed: u64) {
    let world = World::default();
    let random = RefCell::new(Random(seed));
    let mut draw = random.borrow_mut();
    let rate = draw.one_of(&[1, 5, 33, 100, 997, 20_000]);
    let interval = Duration::from_millis(draw.one_of(&[0, 10, 20, 100, 330]));
    let pace = Pace::new(Rate::per_second(rate), interval).catch_up(draw.millis(100));
    let largest = draw.one_of(&[1, 3, 10, 150_u32]);
    // Up to some minutes.
    let most = (200 * u64::from(rate) / u64::from(largest)).clamp(3, 150);
    let operations = usize::try_from(1 + draw.below(most)).unwrap();
    let batch = draw.one_of(&[1, 2, 10, 100]);
    let concurrency = draw.one_of(&[1, 2, 7, 50]);
    let buffer = draw.one_of(&[1, 5, 1_000]);
    let look_ahead = draw.one_of(&[0, 3, 2_000]);
    let attempts = draw.one_of(&[1, 3, u32::MAX]);
    let timeout = Duration::from_millis(draw.one_of(&[30, 60_000]));
    let failures = draw.one_of(&[0, 5, 40]);
    let pauses = draw.below(3);
    let costs: Vec<u32> = (0..operations)
        .map(|_| u32::try_from(draw.below(u64::from(largest) + 1)).unwrap())
        .collect();
    let slow_down = SlowDown::new()
        .pause(draw.millis(500))
        .percent(draw.one_of(&[1, 50, 90, 100]))
        .recovery(draw.millis(3_000));
    drop(draw);

    let queue = Queue::new(pace.bucket().unwrap(), world.timer(), 1_000_000);
    let jobs = Jobs::new(&queue, world.timer())
        .cost(|(_, cost): &Job| *cost)
        .interval(interval)
        .batch(batch)
        .concurrency(concurrency)
        .buffer(buffer)
        .look_ahead(look_ahead)
        .attempts(attempts)
        .timeout(timeout)
        .back_off(Duration::from_millis(10), Duration::from_secs(1))
        .slow_down(slow_down);
    let handle = jobs.handle();

    let taken = Cell::new(0);
    let settled = RefCell::new(BTreeMap::<usize, u32>::new());
    let (running, released) = (Cell::new(0), Log::default());
    let dues = RefCell::new(vec![false; operations]);
    // The source is slow at times.
    let source = stream::iter(costs.iter().copied().enumerate()).then(async |job: Job| {
        let wait = random.borrow_mut().below(10) == 0;
        if wait {
            let time = random.borrow_mut().millis(50);
            world.sleep(time).await;
        }
        taken.set(taken.get() + 1);
        job
    });
    let write = |jobs: Vec<Operation<Job>>| {
        assert!(jobs.len() <= batch);
        running.set(running.get() + 1);
        assert!(running.get() <= concurrency);
        let cost: u64 = jobs.iter().map(|job| u64::from(job.cost())).sum();
        released.add(world.now(), cost);
        let held = taken.get() - settled.borrow().len();
        assert!(held <= buffer + 1 + concurrency * batch, "{held} are held");
        assert!(jobs.iter().all(|job| job.attempt() <= attempts));
        let (time, outcomes): (Duration, Vec<_>) = {
            let mut draw = random.borrow_mut();
            let outcomes = jobs.iter().map(|_| outcome(&mut draw, failures)).collect();
            (draw.millis(60), outcomes)
        };
        let (counts, world, dues) = (Counts(&running), &world, &dues);
        async move {
            world.sleep(time).await;
            for (job, outcome) in jobs.iter().zip(&outcomes) {
                dues.borrow_mut()[job.0] |= *outcome == WriteOutcome::Done;
            }
            drop(counts);
            Written::each(outcomes)
        }
    };
    let settle = |over: portcullis_jobs::SettledBatch<Job>| {
        for job in &over.written {
            assert!(
                dues.borrow()[job.0],
                "it is acknowledged, and was not written"
            );
        }
        for job in over.written.iter().chain(&over.given_up) {
            *settled.borrow_mut().entry(job.0).or_default() += 1;
        }
        ready(Ok::<(), ()>(()))
    };
    let pauses = async {
        for _ in 0..pauses {
            let time = random.borrow_mut().millis(700);
            world.sleep(time).await;
            handle.pause_for(time);
        }
    };
    let run = jobs.run_acknowledged(source, write, settle);
    let (report, ()) = world.run(join(run, pauses));

    assert_eq!(report.ended, RunEnd::Finished);
    let progress = report.progress;
    assert_eq!(progress.written + progress.given_up, operations as u64);
    assert_eq!(
        (progress.needs, progress.waiting, progress.in_flight),
        (0, 0, 0)
    );
    assert!(settled.borrow().len() == operations && settled.borrow().values().all(|&n| n == 1));

    // No span admits more than the bound: burst, rate, and one operation that was paid in pieces.
    let released = released.all();
    let sent: u64 = released.iter().map(|(_, cost)| cost).sum();
    assert!(progress.permits >= sent);
    for (from, (since, _)) in released.iter().enumerate() {
        let mut sum = 0;
        for (at, cost) in &released[from..] {
            sum += cost;
            let nanos = at.saturating_since(*since).as_nanos();
            let gained = (u128::from(rate) * nanos).div_ceil(1_000_000_000);
            let most = u128::from(pace.burst()) + gained + u128::from(largest);
            assert!(u128::from(sum) <= most, "{sum} from {since:?} to {at:?}");
        }
    }
}

#[test]
fn random_runs_keep_the_bounds_and_settle_each_operation_once() {
    for seed in 0..400 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = outcome {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
