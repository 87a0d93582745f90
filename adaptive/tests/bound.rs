//! The bound of the concurrency limit, whatever controllers and threads do, and what a window
//! holds.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use portcullis_adaptive::{Adaptive, Controller, Decision, Outcome, Window};
use portcullis_core::Timestamp;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

const FLOOR: u32 = 2;
const CEILING: u32 = 7;

/// Returns wild limits, and panics in each third window. It tells each limit before it holds.
#[derive(Clone)]
struct Wild {
    state: u32,
    calls: Arc<AtomicU32>,
    limits: Arc<Mutex<Vec<u32>>>,
}

impl Controller for Wild {
    fn decide(&mut self, window: &Window<'_>) -> Decision {
        if self.calls.fetch_add(1, SeqCst) % 3 == 2 {
            resume_unwind(Box::new("wild"));
        }
        let state = self.state.wrapping_mul(1_664_525);
        self.state = state.wrapping_add(window.completed);
        let limit = self.state >> (self.state % 32);
        let mut limits = self.limits.lock().unwrap();
        limits.push(limit.clamp(FLOOR, CEILING));
        Decision::limit(limit).after(8, 0.0)
    }
}

#[test]
fn each_grant_keeps_the_limit_of_its_moment_whatever_controllers_and_holders_do() {
    let wild = Wild {
        state: 1,
        calls: Arc::default(),
        limits: Arc::new(Mutex::new(vec![3, 3])),
    };
    let builder = Adaptive::builder(3).floor(FLOOR).ceiling(CEILING);
    let limit = builder.controller(wild.clone()).build().unwrap();
    let (in_flight, clock) = (AtomicU32::new(0), AtomicU64::new(1_000_000_000));
    let work = || {
        let mut held = Vec::new();
        for turn in 0..20_000_u32 {
            let now = Timestamp::from_nanos(clock.fetch_add(100_000, SeqCst));
            // The last limit that was told may not hold yet: then the one before does.
            let from = wild.limits.lock().unwrap().len() - 2;
            if turn % 3 < 2
                && let Ok(lease) = limit.try_acquire_at(now, 1)
            {
                let holders = in_flight.fetch_add(1, SeqCst) + 1;
                let limits = wild.limits.lock().unwrap()[from..].to_vec();
                let most = limits.iter().max().unwrap();
                assert!(holders <= *most, "{holders} hold, with limits {limits:?}");
                held.push(lease);
            } else if let Some(lease) = held.pop() {
                in_flight.fetch_sub(1, SeqCst);
                let end = || {
                    if turn % 7 == 0 {
                        let _held = lease;
                        resume_unwind(Box::new("a holder panics"));
                    }
                    lease.end_at(now, Outcome::Succeeded);
                };
                let _panicked = catch_unwind(AssertUnwindSafe(end));
            }
            assert!((FLOOR..=CEILING).contains(&limit.limit()));
        }
        in_flight.fetch_sub(held.len() as u32, SeqCst);
    };
    thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(work));
        for thread in threads {
            thread.join().unwrap();
        }
    });
    assert!(wild.calls.load(SeqCst) > 100, "{:?}", wild.calls);
    assert_eq!(limit.limiter().in_use(), 0, "every permit returned");
}

/// Halves the limit.
#[derive(Clone)]
struct Halving;

impl Controller for Halving {
    fn decide(&mut self, window: &Window<'_>) -> Decision {
        Decision::limit(window.limit / 2).after(4, 0.0)
    }
}

fn serve<C: Controller>(limit: &Adaptive<C>, times: u32, outcome: Outcome) {
    for turn in 0..times {
        let since = Timestamp::from_millis(1_000 + u64::from(turn));
        let held = limit.try_acquire_at(since, 1).unwrap();
        held.end_at(since.saturating_add(Duration::from_millis(1)), outcome);
    }
}

#[test]
fn a_shadow_reports_the_limit_and_denies_only_above_the_ceiling() {
    let builder = Adaptive::builder(40).ceiling(50).controller(Halving);
    let limit = builder.shadow().build().unwrap();
    serve(&limit, 200, Outcome::Succeeded);
    assert_eq!(limit.limit(), 1);
    let now = Timestamp::from_secs(9);
    let held: Vec<_> = (0..60).map(|_| limit.try_acquire_at(now, 1)).collect();
    assert_eq!(held.iter().filter(|held| held.is_ok()).count(), 50);
}

#[test]
fn requests_that_are_ignored_close_no_window_and_return_their_permits() {
    let builder = Adaptive::builder(40).controller(Halving);
    let limit = builder.build().unwrap();
    serve(&limit, 200, Outcome::Ignored);
    assert_eq!((limit.limit(), limit.limiter().in_use()), (40, 0));
}

/// Halves a limit of 8, once. It tells the denials and the longest latency of each window.
#[derive(Clone, Default)]
struct Telling(Arc<Mutex<Vec<(u32, f64)>>>);

impl Controller for Telling {
    fn begin(&mut self, initial: u32) -> Decision {
        Decision::limit(initial).after(2, 0.0)
    }

    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let latencies = window.samples().map(|sample| sample.latency);
        let longest = latencies.fold(0.0, f64::max);
        self.0.lock().unwrap().push((window.denied, longest));
        Decision::limit(window.limit.min(4)).after(2, 0.0)
    }
}

#[test]
fn a_window_after_a_cut_holds_only_requests_that_saw_the_new_limit() {
    let telling = Telling::default();
    let builder = Adaptive::builder(8).controller(telling.clone());
    let limit = builder.build().unwrap();
    serve(&limit, 8, Outcome::Succeeded);
    let early = [(); 7].map(|()| limit.try_acquire_at(Timestamp::from_secs(1), 1).unwrap());
    serve(&limit, 2, Outcome::Succeeded);
    assert_eq!(limit.limit(), 4);
    for held in early {
        held.end_at(Timestamp::from_secs(5), Outcome::Succeeded);
    }
    serve(&limit, 2, Outcome::Succeeded);
    let told = telling.0.lock().unwrap();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].1 < 0.01, "{told:?}");
}

#[test]
fn a_shadow_tells_the_controller_what_it_would_have_denied() {
    let telling = Telling::default();
    let builder = Adaptive::builder(4).ceiling(50);
    let limit = builder.controller(telling.clone()).shadow().build();
    let limit = limit.unwrap();
    serve(&limit, 5, Outcome::Succeeded);
    let held = [(); 6].map(|()| limit.try_acquire_at(Timestamp::from_secs(1), 1).unwrap());
    drop(held);
    let last = limit.try_acquire_at(Timestamp::from_secs(2), 1).unwrap();
    last.end_at(Timestamp::from_secs(3), Outcome::Succeeded);
    assert_eq!(telling.0.lock().unwrap()[0].0, 2, "6 of 4");
}

/// Counts its windows, which is the limit, and panics in each second one.
#[derive(Clone)]
struct Counting(u32, Arc<AtomicU32>);

impl Controller for Counting {
    fn decide(&mut self, _: &Window<'_>) -> Decision {
        self.0 += 1;
        if self.1.fetch_add(1, SeqCst) % 2 == 1 {
            resume_unwind(Box::new("a controller panics"));
        }
        let mut decision = Decision::limit(self.0).after(2, 0.0);
        decision.settle = false;
        decision
    }
}

#[test]
fn a_controller_that_panics_stays_as_it_was_and_decides_again() {
    let calls = Arc::new(AtomicU32::new(0));
    let builder = Adaptive::builder(40).controller(Counting(0, calls.clone()));
    let limit = builder.build().unwrap();
    for turn in 0..400 {
        let since = Timestamp::from_millis(1_000 + turn);
        let held = limit.try_acquire_at(since, 1).unwrap();
        let end = || held.end_at(since, Outcome::Succeeded);
        let _panicked = catch_unwind(AssertUnwindSafe(end));
    }
    let calls = calls.load(SeqCst);
    assert!(calls > 100, "{calls}");
    assert_eq!(limit.limit(), calls.div_ceil(2), "each second one panicked");
    assert_eq!(limit.limiter().in_use(), 0);
}

/// Serves 400 requests, of 1 ms each, with a clock that adds `offset` of the request's number.
/// Returns the limit, which a [`Halving`] controller has brought from 40 to 1 if it decided 6
/// times.
fn limit_after(offset: impl Fn(u64) -> u64) -> u32 {
    let builder = Adaptive::builder(40).controller(Halving);
    let limit = builder.build().unwrap();
    for turn in 0..400 {
        let now = |at| Timestamp::from_millis(offset(turn) + 1_000 + at);
        let held = limit.try_acquire_at(now(turn), 1).unwrap();
        held.end_at(now(turn + 1), Outcome::Succeeded);
    }
    limit.limit()
}

const HOUR: u64 = 3_600_000;

#[test]
fn one_time_that_is_far_ahead_stops_no_adaptation() {
    for wrong in 0..60 {
        let limit = limit_after(|turn| if turn == wrong { HOUR } else { 0 });
        assert_eq!(limit, 1, "request {wrong} had a wrong time");
    }
}

#[test]
fn a_clock_that_is_set_stops_no_adaptation() {
    for at in 0..60 {
        let back = limit_after(|turn| if turn < at { HOUR } else { 0 });
        assert_eq!(back, 1, "back, at request {at}");
        let years = limit_after(|turn| if turn < at { 0 } else { 24 * 3_653 * HOUR });
        assert_eq!(years, 1, "ten years ahead, at request {at}");
    }
}

/// Notes the time of each window.
#[derive(Clone, Default)]
struct Timing(Arc<Mutex<Vec<f64>>>);

impl Controller for Timing {
    fn decide(&mut self, window: &Window<'_>) -> Decision {
        self.0.lock().unwrap().push(window.now);
        Decision::limit(window.limit).after(4, 0.0)
    }
}

#[test]
fn the_time_of_a_controller_goes_on_whatever_the_clock_does() {
    let timing = Timing::default();
    let builder = Adaptive::builder(40).controller(timing.clone());
    let limit = builder.build().unwrap();
    for turn in 0..1_000_u64 {
        let ahead = if turn % 10 < 5 { HOUR } else { 0 };
        let now = Timestamp::from_millis(ahead + turn);
        let held = limit.try_acquire_at(now, 1).unwrap();
        held.end_at(
            now.saturating_add(Duration::from_millis(1)),
            Outcome::Succeeded,
        );
    }
    let times = timing.0.lock().unwrap();
    assert!(times.len() > 50, "{}", times.len());
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn an_end_before_its_beginning_teaches_nothing() {
    let telling = Telling::default();
    let builder = Adaptive::builder(8).controller(telling.clone());
    let limit = builder.build().unwrap();
    for turn in 0..400 {
        let since = Timestamp::from_millis(100_000 + turn);
        let held = limit.try_acquire_at(since, 1).unwrap();
        held.end_at(Timestamp::from_millis(turn), Outcome::Succeeded);
    }
    assert!(telling.0.lock().unwrap().is_empty());
    assert_eq!(limit.limiter().in_use(), 0);
}

/// Notes how many requests were recorded, and how many there were, and how many each second.
#[derive(Clone, Default)]
struct Rating(Arc<Mutex<Vec<(u32, u32, f64)>>>);

impl Controller for Rating {
    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let seen = (window.recorded(), window.completed, window.throughput());
        self.0.lock().unwrap().push(seen);
        Decision::limit(window.limit)
    }
}

#[test]
fn of_very_many_requests_some_stand_for_all() {
    let rating = Rating::default();
    let builder = Adaptive::builder(40).controller(rating.clone());
    let limit = builder.build().unwrap();
    let mut nanos = 1_000_000_000;
    // 20 million each second, then 100,000.
    for (times, gap) in [(1_000_000, 50), (2_000, 10_000)] {
        for _ in 0..times {
            let now = Timestamp::from_nanos(nanos);
            limit
                .try_acquire_at(now, 1)
                .unwrap()
                .end_at(now, Outcome::Succeeded);
            nanos += gap;
        }
    }
    let seen = rating.0.lock().unwrap();
    for &(recorded, completed, throughput) in &seen[2..90] {
        assert!(
            (250..1_000).contains(&recorded),
            "{recorded} of {completed}"
        );
        assert!((throughput / 2e7 - 1.0).abs() < 0.01, "{throughput}");
    }
    let (recorded, completed, throughput) = *seen.last().unwrap();
    assert_eq!(recorded, completed, "few enough for all");
    assert!((throughput / 1e5 - 1.0).abs() < 0.01, "{throughput}");
}

#[test]
fn a_request_tells_once_and_may_keep_its_permits() {
    let telling = Telling::default();
    let builder = Adaptive::builder(1).controller(telling.clone());
    let limit = builder.build().unwrap();
    for turn in 0..5 {
        let since = Timestamp::from_secs(turn * 10);
        let mut held = limit.try_acquire_at(since, 1).unwrap();
        let second = since.saturating_add(Duration::from_secs(1));
        held.tell_at(second, Outcome::Succeeded);
        held.tell_at(second, Outcome::Succeeded);
        assert_eq!(limit.limiter().in_use(), 1);
        held.end_at(
            since.saturating_add(Duration::from_secs(9)),
            Outcome::Succeeded,
        );
        assert_eq!(limit.limiter().in_use(), 0);
    }
    assert_eq!(*telling.0.lock().unwrap(), [(0, 1.0); 2], "5 ends");
}
