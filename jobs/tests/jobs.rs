//! What a runner of jobs releases, when, and what becomes of it. In virtual time.

#[path = "support/virtual_time.rs"]
mod virtual_time;

use core::cell::{Cell, RefCell};
use core::future::{pending, ready};
use core::num::NonZero;
use core::pin::pin;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Context, Waker};
use core::time::Duration;
use std::collections::BTreeSet;

use futures_util::future::join;
use futures_util::{Stream, StreamExt, stream};
use portcullis_async::channel::channel;
use portcullis_async::{PerItem, Queue, ThreadTimer};
use portcullis_core::{Concurrency, Rate, SlidingWindow, Timestamp, TokenBucket, Unlimited};
use portcullis_fleet::{MemberShare, Pool, ShareLimiter};
use portcullis_jobs::{
    Event, Jobs, Operation, Pace, Permits, Progress, RunEnd, SlowDown, WriteOutcome, Written,
};
use virtual_time::{Log, VirtualTimer, World};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn paced(world: &World, pace: Pace) -> Queue<TokenBucket, VirtualTimer> {
    Queue::new(pace.bucket().unwrap(), world.timer(), pace.burst())
}

/// Runs operations of these costs, whose writes take `time`, and returns when each was written.
fn releases<P: Permits>(
    world: &World,
    jobs: Jobs<'_, P, VirtualTimer>,
    costs: impl IntoIterator<Item = u32>,
    time: Duration,
) -> (Vec<(Timestamp, usize)>, Progress) {
    let log = Log::default();
    let jobs = jobs.cost(|cost: &u32| *cost);
    let report = world.run(jobs.run(stream::iter(costs), |batch| {
        log.add(world.now(), batch.len());
        async {
            world.sleep(time).await;
            WriteOutcome::Done
        }
    }));
    assert_eq!(report.ended, RunEnd::Finished);
    (log.all(), report.progress)
}

/// The operations that are released at each time.
fn by_time(releases: &[(Timestamp, usize)]) -> Vec<(u64, usize)> {
    let mut sums: Vec<(u64, usize)> = Vec::new();
    for (at, operations) in releases {
        let at = at.as_nanos() / 1_000_000;
        match sums.last_mut() {
            Some((last, sum)) if *last == at => *sum += operations,
            _ => sums.push((at, *operations)),
        }
    }
    sums
}

#[test]
fn a_hundred_a_second_go_as_20_every_200_ms() {
    let world = World::default();
    let pace = Pace::new(Rate::per_second(100), ms(200));
    let queue = paced(&world, pace);
    let jobs = Jobs::new(&queue, world.timer())
        .interval(ms(200))
        .concurrency(100);
    let (log, _) = releases(&world, jobs, [1; 100], ms(1));
    let expected: Vec<_> = (0..5).map(|tick| (tick * 200, 20)).collect();
    assert_eq!(by_time(&log), expected);
}

#[test]
fn a_rate_below_one_in_an_interval_does_not_starve() {
    let world = World::default();
    let pace = Pace::new(Rate::per_second(5), ms(100));
    let queue = paced(&world, pace);
    let jobs = Jobs::new(&queue, world.timer()).interval(ms(100));
    let (log, _) = releases(&world, jobs, [1; 10], ms(1));
    let expected: Vec<_> = (0..10).map(|n| (n * 200, 1)).collect();
    assert_eq!(by_time(&log), expected);
}

#[test]
fn rates_that_do_not_fit_the_interval_lose_nothing() {
    // 33.3 permits in each interval, and a prime rate.
    for (rate, interval) in [(333, 100), (7, 100), (997, 20), (3, 10)] {
        let world = World::default();
        let pace = Pace::new(Rate::per_second(rate), ms(interval));
        let queue = paced(&world, pace);
        let jobs = Jobs::new(&queue, world.timer())
            .interval(ms(interval))
            .concurrency(1_000);
        let seconds = 20;
        let operations = u64::from(rate) * seconds + pace.burst();
        let (log, _) = releases(&world, jobs, (0..operations).map(|_| 1), Duration::ZERO);
        let last = log.last().unwrap().0;
        let late = last.saturating_since(Timestamp::from_secs(seconds));
        assert!(last >= Timestamp::from_secs(seconds), "{rate}: {last:?}");
        assert!(late <= ms(interval), "{rate}: {last:?}");
        // Never more than the bound, in any span that begins and ends with a release.
        let sums = by_time(&log);
        for (index, (from, _)) in sums.iter().enumerate() {
            let mut sum = 0;
            for (to, operations) in &sums[index..] {
                sum += *operations as u64;
                // Times are rounded down to milliseconds.
                let most = pace.burst() + (to - from + 1) * u64::from(rate) / 1_000;
                assert!(sum <= most + 1, "{rate}: {sum} from {from} to {to} ms");
            }
        }
    }
}

#[test]
fn a_small_burst_is_used_more_often_than_the_interval() {
    let world = World::default();
    let queue = Queue::new(TokenBucket::new(Rate::per_second(100), 1), world.timer(), 9);
    let jobs = Jobs::new(&queue, world.timer())
        .interval(ms(500))
        .concurrency(100);
    let (log, _) = releases(&world, jobs, [1; 51], ms(1));
    assert_eq!(log.last().unwrap().0, at(500));
}

#[test]
fn an_operation_that_costs_more_than_the_burst_pays_in_pieces() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(100), ms(100)));
    let jobs = Jobs::new(&queue, world.timer());
    let (log, progress) = releases(&world, jobs, [5, 1_000, 250, 5], ms(1));
    // The bucket starts with 10 permits.
    let times: Vec<_> = by_time(&log).iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [0, 9_950, 12_450, 12_500]);
    assert_eq!(progress.permits, 1_260);
}

#[test]
fn pieces_follow_a_share_that_becomes_smaller() {
    let world = World::default();
    // 100 permits per second, and a burst of 10, in 10 partitions.
    let pool = Pool::builder("writes", Rate::per_second(100))
        .partitions(10)
        .burst(1);
    let limiter = ShareLimiter::new(&pool.build().unwrap(), at(0)).unwrap();
    let queue = Queue::new(&limiter, world.timer(), 100);
    let share = |partitions, until| MemberShare {
        partitions,
        until: at(until),
    };
    limiter.follow_at(at(0), share(10, 1_000_000));
    let jobs = Jobs::new(&queue, world.timer()).cost(|_: &u32| 50);
    let handle = jobs.handle();
    let run = async {
        let report = jobs
            .run(stream::iter(0..3), |_| ready(WriteOutcome::Done))
            .await;
        (report.ended, world.now())
    };
    let lower = async {
        world.sleep(ms(750)).await;
        limiter.follow_at(world.now(), share(2, 1_000_000));
        world.sleep(ms(60_000)).await;
        handle.stop();
    };
    let ((ended, end), ()) = world.run(join(run, lower));
    assert_eq!(ended, RunEnd::Finished);
    // 75 of the 150 permits, and then 20 per second.
    let late = end.saturating_since(at(750 + 3_750));
    assert!(late < ms(400), "{late:?}");
}

#[test]
fn batches_are_as_large_as_allowed_paid_for_and_there() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let jobs = Jobs::new(&queue, world.timer()).batch(8);
    let (log, _) = releases(&world, jobs, [10; 25], ms(1));
    let sizes: Vec<_> = log.iter().map(|(_, size)| *size).collect();
    assert_eq!(sizes, [8, 2, 8, 2, 5]);

    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let jobs = Jobs::new(&queue, world.timer()).batch(8);
    let (log, _) = releases(&world, jobs, [60, 60, 40, 60], ms(1));
    let sizes: Vec<_> = log.iter().map(|(_, size)| *size).collect();
    assert_eq!(sizes, [1, 1, 1, 1], "two of them cost more than is there");
}

#[test]
fn no_more_writes_run_at_once_than_allowed() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let (running, most) = (Cell::new(0), Cell::new(0));
    let jobs = Jobs::new(&queue, world.timer())
        .concurrency(3)
        .interval(Duration::ZERO);
    let run = jobs.run(stream::iter(0..30), |_| {
        running.set(running.get() + 1);
        most.set(most.get().max(running.get()));
        async {
            world.sleep(ms(50)).await;
            running.set(running.get() - 1);
            WriteOutcome::Done
        }
    });
    let report = world.run(run);
    assert_eq!((most.get(), report.progress.written), (3, 30));
    assert_eq!(world.now(), at(500), "a slot is used again at once");
}

/// A source that counts what is taken from it.
fn counted(taken: &Cell<usize>) -> impl Stream<Item = u32> {
    stream::iter(0..).inspect(|_| taken.set(taken.get() + 1))
}

#[test]
fn operations_are_taken_only_when_there_is_capacity() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(10), ms(1_000)));
    let taken = Cell::new(0);
    let jobs = Jobs::new(&queue, world.timer()).batch(100).concurrency(100);
    let handle = jobs.handle();
    let run = jobs.run(counted(&taken), |_| async { WriteOutcome::Done });
    world.run(join(run, async {
        world.sleep(ms(1)).await;
        assert_eq!(taken.get(), 10);
        world.sleep(ms(3_000)).await;
        assert_eq!((taken.get(), handle.progress().waiting), (40, 0));
        handle.stop();
    }));
}

#[test]
fn the_look_ahead_and_the_buffer_bound_what_is_held() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1), ms(1_000)));
    let taken = Cell::new(0);
    let jobs = Jobs::new(&queue, world.timer())
        .look_ahead(20)
        .buffer(7)
        .concurrency(2);
    let handle = jobs.handle();
    // Every operation fails, and waits for long.
    let jobs = jobs.back_off(ms(1_000_000), ms(1_000_000));
    let run = jobs.run(counted(&taken), |_| async { WriteOutcome::Retry });
    world.run(join(run, async {
        world.sleep(ms(1)).await;
        // One has failed. Another one was taken as soon as it was released.
        assert_eq!(taken.get(), 8);
        world.sleep(ms(100_000)).await;
        assert_eq!((taken.get(), handle.progress().waiting), (8, 8));
        handle.stop();
    }));
}

#[test]
fn a_source_that_is_empty_for_a_time_costs_no_permits() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(100), ms(100)));
    let source = stream::iter(0..3).then(|item| {
        let world = world.clone();
        async move {
            world.sleep(ms(1_000)).await;
            item
        }
    });
    let log = Log::default();
    let jobs = Jobs::new(&queue, world.timer());
    let report = world.run(jobs.run(source, |_| {
        log.add(world.now(), ());
        ready(WriteOutcome::Done)
    }));
    assert_eq!(
        log.all(),
        [(at(1_000), ()), (at(2_000), ()), (at(3_000), ())]
    );
    assert_eq!(report.progress.permits, 3);
}

#[test]
fn failures_are_tried_again_with_growing_delays_up_to_the_limit() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let log = Log::default();
    let settled = RefCell::new(Vec::new());
    let jobs = Jobs::new(&queue, world.timer())
        .interval(Duration::ZERO)
        .attempts(5)
        .back_off(ms(100), ms(300));
    let run = jobs.run_acknowledged(
        stream::iter(["fails", "is refused", "passes"]),
        |batch| {
            let operation = batch[0].clone();
            log.add(world.now(), (*operation, operation.attempt()));
            ready(match *operation {
                "fails" => WriteOutcome::Retry,
                "is refused" => WriteOutcome::Refused,
                _ => WriteOutcome::Done,
            })
        },
        |over| {
            for (operations, is_written) in [(over.written, true), (over.given_up, false)] {
                settled
                    .borrow_mut()
                    .extend(operations.iter().map(|one| (**one, is_written)));
            }
            ready(Ok::<(), ()>(()))
        },
    );
    let progress = world.run(run).progress;
    let fails: Vec<_> = log
        .all()
        .into_iter()
        .filter(|(_, (item, _))| *item == "fails")
        .collect();
    let times = [0, 100, 300, 600, 900];
    let expected: Vec<_> = times
        .into_iter()
        .zip(1..)
        .map(|(t, n)| (at(t), ("fails", n)))
        .collect();
    assert_eq!(fails, expected);
    let expected = [("is refused", false), ("passes", true), ("fails", false)];
    assert_eq!(settled.into_inner(), expected);
    assert_eq!((progress.written, progress.given_up), (1, 2));
    assert_eq!(
        (progress.sends, progress.retries, progress.needs),
        (7, 4, 0)
    );
}

#[test]
fn only_the_operations_of_a_batch_that_failed_are_tried_again() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let writes = RefCell::new(Vec::new());
    let acknowledged = RefCell::new(Vec::new());
    let jobs = Jobs::new(&queue, world.timer())
        .batch(4)
        .interval(Duration::ZERO);
    let run = jobs.run_acknowledged(
        stream::iter(0..4),
        |batch: Vec<Operation<i32>>| {
            writes
                .borrow_mut()
                .push(batch.iter().map(|one| **one).collect::<Vec<_>>());
            let outcome = |one: &Operation<i32>| match (**one, one.attempt()) {
                (1, 1) => WriteOutcome::Overloaded {
                    retry_after: Some(ms(10)),
                },
                (3, 1 | 2) => WriteOutcome::Retry,
                _ => WriteOutcome::Done,
            };
            ready(Written::each(batch.iter().map(outcome)))
        },
        |over| {
            acknowledged
                .borrow_mut()
                .extend(over.written.iter().map(|one| **one));
            ready(Ok::<(), ()>(()))
        },
    );
    world.run(run);
    assert_eq!(
        writes.into_inner(),
        [vec![0, 1, 2, 3], vec![1], vec![3], vec![3]]
    );
    assert_eq!(acknowledged.into_inner(), [0, 2, 1, 3]);
}

#[test]
fn an_operation_is_acknowledged_only_after_its_write() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let log = Log::default();
    let jobs = Jobs::new(&queue, world.timer()).concurrency(1);
    let run = jobs.run_acknowledged(
        stream::iter(0..2),
        |_| async {
            world.sleep(ms(30)).await;
            log.add(world.now(), "written");
            WriteOutcome::Done
        },
        |_| async {
            world.sleep(ms(5)).await;
            log.add(world.now(), "acknowledged");
            Err::<(), ()>(())
        },
    );
    let progress = world.run(run).progress;
    let expected = [
        (at(30), "written"),
        (at(35), "acknowledged"),
        (at(65), "written"),
        (at(70), "acknowledged"),
    ];
    assert_eq!(
        log.all(),
        expected,
        "the slot is in use until the acknowledgement is over"
    );
    assert_eq!((progress.written, progress.unacknowledged), (2, 2));
}

#[test]
fn a_run_that_is_dropped_or_stopped_acknowledges_nothing_that_is_not_written() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let (written, acknowledged) = (RefCell::new(BTreeSet::new()), RefCell::new(BTreeSet::new()));
    for stop_after in 0..40 {
        written.borrow_mut().clear();
        acknowledged.borrow_mut().clear();
        let jobs = Jobs::new(&queue, world.timer())
            .concurrency(3)
            .look_ahead(5)
            .batch(2);
        let handle = jobs.handle();
        let run = jobs.run_acknowledged(
            stream::iter(0..100),
            async |batch| {
                world.sleep(ms(7)).await;
                written.borrow_mut().extend(batch.iter().map(|one| **one));
                WriteOutcome::Done
            },
            |over| {
                acknowledged
                    .borrow_mut()
                    .extend(over.written.iter().map(|one| **one));
                ready(Ok::<(), ()>(()))
            },
        );
        if stop_after % 2 == 0 {
            let end = async {
                world.sleep(ms(stop_after)).await;
                handle.stop();
            };
            let (report, ()) = world.run(join(run, end));
            assert_eq!(report.ended, RunEnd::Stopped);
            assert_eq!(
                *acknowledged.borrow(),
                *written.borrow(),
                "what is in flight is settled"
            );
            let progress = report.progress;
            assert_eq!(progress.in_flight, 0);
            assert_eq!(progress.needs, progress.waiting, "each costs 1");
        } else {
            let mut run = Box::pin(run);
            let end = async {
                world.sleep(ms(stop_after)).await;
                drop(pending::<()>());
            };
            world.run(async {
                let end = pin!(end);
                futures_util::future::select(end, run.as_mut()).await;
            });
            drop(run);
            assert!(acknowledged.borrow().is_subset(&written.borrow()));
        }
    }
}

#[test]
fn a_pause_holds_everything_back_and_its_permits_are_not_saved_up() {
    let world = World::default();
    let pace = Pace::new(Rate::per_second(100), ms(100));
    let queue = paced(&world, pace);
    let log = Log::default();
    let events = std::sync::Mutex::new(Vec::new());
    let jobs = Jobs::new(&queue, world.timer())
        .concurrency(100)
        .cost(|_: &u32| 4)
        .slow_down(SlowDown::new().percent(100))
        .on_event(|event| {
            if matches!(event, Event::Paused { .. } | Event::Resumed) {
                events.lock().unwrap().push(*event);
            }
        });
    let run = jobs.run(stream::iter(0..10), |batch| {
        log.add(world.now(), batch.len());
        ready(match *batch[0] {
            3 if batch[0].attempt() == 1 => WriteOutcome::Overloaded {
                retry_after: Some(ms(1_000)),
            },
            _ => WriteOutcome::Done,
        })
    });
    world.run(run);
    // The first of the second interval is rejected. After the pause there is a burst of 10 permits,
    // no more.
    let before = [(0, 2), (20, 1), (100, 1)];
    let after = [(1_100, 2), (1_120, 1), (1_200, 2), (1_300, 2)];
    let expected: Vec<_> = before.into_iter().chain(after).collect();
    assert_eq!(by_time(&log.all()), expected);
    let paused = Event::Paused { time: ms(1_000) };
    assert_eq!(*events.lock().unwrap(), [paused, Event::Resumed]);
}

#[test]
fn operations_that_wait_are_put_back_in_a_pause() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(100), ms(100)));
    let jobs = Jobs::new(&queue, world.timer()).cost(|_: &u32| 100);
    let handle = jobs.handle();
    let run = jobs.run(stream::iter(0..2), |_| ready(WriteOutcome::Done));
    let pause = async {
        // The first operation has paid for a half.
        world.sleep(ms(500)).await;
        handle.pause();
    };
    let (report, ()) = world.run(join(run, pause));
    assert_eq!(report.progress.written, 2);
    // What it had paid is lost. The bucket is full again.
    assert_eq!(world.now(), at(500 + 500 + 900 + 1_000));
}

#[test]
fn overload_lowers_the_speed_and_it_comes_back() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(100), ms(10)));
    let log = Log::default();
    let jobs = Jobs::new(&queue, world.timer())
        .interval(Duration::ZERO)
        .slow_down(
            SlowDown::new()
                .pause(ms(1_000))
                .percent(50)
                .recovery(ms(10_000)),
        );
    let handle = jobs.handle();
    let run = jobs.run(stream::repeat(()), |batch| {
        log.add(world.now(), ());
        let overloaded = WriteOutcome::Overloaded { retry_after: None };
        let first = log.all().len() == 1;
        drop(batch);
        ready(if first {
            overloaded
        } else {
            WriteOutcome::Done
        })
    });
    world.run(join(run, async {
        world.sleep(ms(500)).await;
        assert!(handle.progress().paused);
        world.sleep(ms(10_500)).await;
        assert!((handle.progress().speed - 1.0).abs() < 1e-3);
        world.sleep(ms(2_000)).await;
        handle.stop();
    }));
    let in_second = |second: u64| {
        let within = second * 1_000..(second + 1) * 1_000;
        let all = log.all();
        all.iter()
            .filter(|(time, ())| within.contains(&(time.as_nanos() / 1_000_000)))
            .count()
    };
    assert_eq!(in_second(0), 1);
    // From half the rate at 1 s to the whole rate at 11 s.
    for (second, expected) in [(1, 52), (5, 72), (9, 92), (12, 100)] {
        assert!(
            in_second(second).abs_diff(expected) <= 2,
            "{second}: {}",
            in_second(second)
        );
    }
}

#[test]
fn at_a_lower_speed_fractions_of_permits_are_carried() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(10)));
    let slow_down = SlowDown::new().percent(75).recovery(Duration::MAX);
    let jobs = Jobs::new(&queue, world.timer()).slow_down(slow_down);
    let run = jobs.run(stream::iter(0..3_000), |batch| {
        ready(match (*batch[0], batch[0].attempt()) {
            (0, 1) => WriteOutcome::Overloaded { retry_after: None },
            _ => WriteOutcome::Done,
        })
    });
    // One at full speed. Then four permits for each three.
    assert_eq!(world.run(run).progress.permits, 1 + 4_000);
}

#[test]
fn many_replies_to_one_overload_slow_down_once() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let pauses = AtomicU32::new(0);
    let jobs = Jobs::new(&queue, world.timer())
        .concurrency(50)
        .slow_down(SlowDown::new().recovery(Duration::MAX))
        .on_event(|event| {
            if matches!(event, Event::Paused { .. }) {
                pauses.fetch_add(1, Ordering::Relaxed);
            }
        });
    let handle = jobs.handle();
    let run = jobs.run(stream::iter(0..50_u64), async |batch| {
        // The replies come one after the other, some of them after the pause.
        world.sleep(ms(20 + 20 * *batch[0])).await;
        match batch[0].attempt() {
            1 => WriteOutcome::Overloaded { retry_after: None },
            _ => WriteOutcome::Done,
        }
    });
    world.run(run);
    assert_eq!(pauses.load(Ordering::Relaxed), 1);
    assert!(
        (handle.progress().speed - 0.5).abs() < 1e-3,
        "{}",
        handle.progress().speed
    );
}

#[test]
fn what_the_service_charges_beyond_the_cost_is_paid_with_the_next_batch() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(100), ms(100)));
    let log = Log::default();
    let jobs = Jobs::new(&queue, world.timer()).cost(|_: &u32| 10);
    let run = jobs.run(stream::iter(0..3), |_| {
        log.add(world.now(), ());
        ready(Written::from(WriteOutcome::Done).charged(30))
    });
    let progress = world.run(run).progress;
    assert_eq!(log.all(), [(at(0), ()), (at(300), ()), (at(600), ())]);
    assert_eq!(progress.permits, 70, "the debt of the last one is not paid");
}

#[test]
fn no_charge_is_too_large() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(100), ms(100)));
    let jobs = Jobs::new(&queue, world.timer()).concurrency(2);
    let run = jobs.run(stream::iter(0..2), async |_| {
        world.sleep(ms(50)).await;
        Written::from(WriteOutcome::Done).charged(u64::MAX)
    });
    assert_eq!(world.run(run).progress.written, 2);
}

#[test]
fn a_write_that_takes_too_long_is_dropped_and_tried_again() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(1_000), ms(100)));
    let jobs = Jobs::new(&queue, world.timer())
        .timeout(ms(50))
        .back_off(ms(10), ms(10))
        .interval(Duration::ZERO);
    let run = jobs.run(stream::iter([()]), |batch| {
        let attempt = batch[0].attempt();
        async move {
            if attempt < 3 {
                pending::<()>().await;
            }
            WriteOutcome::Done
        }
    });
    let progress = world.run(run).progress;
    assert_eq!((progress.timeouts, progress.written), (2, 1));
    assert_eq!(world.now(), at(120));
}

#[test]
fn the_estimate_is_the_cost_left_at_the_mean_rate() {
    let world = World::default();
    let queue = paced(&world, Pace::new(Rate::per_second(100), ms(10)));
    let run = |jobs: Jobs<'_, _, VirtualTimer>, known: bool| {
        let handle = jobs.handle();
        let source = stream::iter(0..1_000);
        let source = if known {
            source.boxed_local()
        } else {
            source.filter(|_| ready(true)).boxed_local()
        };
        let run = jobs.run(source, |_| ready(WriteOutcome::Done));
        let watch = async {
            world.sleep(ms(5_005)).await;
            handle.progress()
        };
        world.run(join(run, watch)).1
    };
    let jobs = || Jobs::new(&queue, world.timer());
    for progress in [run(jobs(), true), run(jobs().total_cost(1_000), false)] {
        let left = progress.time_left.unwrap();
        assert!(left.abs_diff(ms(5_000)) < ms(50), "{left:?}");
    }
    assert_eq!(run(jobs(), false).time_left, None);
}

#[test]
fn a_limit_on_concurrency_bounds_the_cost_in_flight() {
    let world = World::default();
    let queue = Queue::new(Concurrency::new(5), world.timer(), 10);
    let (running, most) = (Cell::new(0), Cell::new(0));
    let jobs = Jobs::new(&queue, world.timer()).cost(|cost: &u32| *cost);
    let run = jobs.run(stream::iter([2, 2, 2, 8, 3, 2]), |batch| {
        let cost = batch[0].cost();
        running.set(running.get() + cost);
        most.set(most.get().max(running.get()));
        let (world, running) = (&world, &running);
        async move {
            world.sleep(ms(10)).await;
            running.set(running.get() - cost);
            WriteOutcome::Done
        }
    });
    let progress = world.run(run).progress;
    assert!(most.get() <= 5, "{}", most.get());
    assert_eq!(
        (progress.written, progress.given_up),
        (5, 1),
        "8 can never be in flight"
    );
}

#[test]
fn a_window_keeps_its_limit() {
    let world = World::default();
    let window: SlidingWindow<4> = SlidingWindow::new(30, ms(1_000), 4);
    let queue = Queue::new(window, world.timer(), 30);
    let jobs = Jobs::new(&queue, world.timer()).concurrency(100);
    let (log, _) = releases(&world, jobs, [1; 100], ms(1));
    let last = log.last().unwrap().0;
    assert!(last >= at(3_000), "{last:?}");
}

#[test]
fn runners_share_a_queue_and_its_end() {
    let world = World::default();
    let queue = Queue::new(TokenBucket::new(Rate::per_second(100), 1), world.timer(), 9);
    let one =
        Jobs::new(&queue, world.timer()).run(stream::repeat(()), |_| ready(WriteOutcome::Done));
    let other =
        Jobs::new(&queue, world.timer()).run(stream::repeat(()), |_| ready(WriteOutcome::Done));
    let end = async {
        world.sleep(ms(10_000)).await;
        queue.close();
    };
    let ((one, other), ()) = world.run(join(join(one, other), end));
    assert_eq!((one.ended, other.ended), (RunEnd::Closed, RunEnd::Closed));
    let (one, other) = (one.progress.written, other.progress.written);
    assert!(
        one + other <= 1_001 && one + other >= 999,
        "{one} and {other}"
    );
    // Neither starves. One that finds no permits asks twice: before it takes an operation, and for
    // its cost.
    assert!(one.min(other) > 300, "{one} and {other}");
}

#[test]
fn a_queue_without_room_is_asked_again() {
    let world = World::default();
    let queue = Queue::new(TokenBucket::new(Rate::per_second(10), 1), world.timer(), 0);
    let jobs = Jobs::new(&queue, world.timer()).interval(ms(30));
    let (log, _) = releases(&world, jobs, [1; 5], ms(1));
    assert_eq!(log.len(), 5);
}

#[test]
fn a_runner_runs_as_a_task_of_any_executor() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let queue = Queue::new(
        TokenBucket::new(Rate::per_second(10_000), 10),
        ThreadTimer::new(),
        10,
    );
    let jobs = Jobs::new(&queue, ThreadTimer::new()).interval(ms(1));
    // A channel of the library is a source.
    let unlimited = Queue::new(Unlimited, ThreadTimer::new(), 0);
    let (sender, receiver) = channel(&unlimited, NonZero::new(10).unwrap(), PerItem);
    sender.try_send(7).unwrap();
    drop(sender);
    let run = is_send(jobs.run(receiver, |_| async { WriteOutcome::Done }));
    assert_eq!(futures_executor::block_on(run).progress.written, 1);
}

#[test]
fn many_writes_that_are_ready_do_not_keep_the_executor() {
    let world = World::default();
    let queue = Queue::new(Unlimited, world.timer(), 1);
    let jobs = Jobs::new(&queue, world.timer());
    let mut run = pin!(jobs.run(stream::iter(0..10_000), |_| ready(WriteOutcome::Done)));
    let mut polls = 0;
    let mut context = Context::from_waker(Waker::noop());
    while run.as_mut().poll(&mut context).is_pending() {
        polls += 1;
    }
    assert!(polls > 10, "{polls}");
}
