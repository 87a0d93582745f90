//! The bound of the concurrency limit, whatever controllers and threads do.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use portcullis_adaptive::{Adaptive, Controller, Decision, Outcome, Window};
use portcullis_core::Timestamp;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::thread;

/// Returns wild limits, and panics in each third window.
#[derive(Clone)]
struct Wild(u32, Arc<AtomicU32>);

impl Controller for Wild {
    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let calls = self.1.fetch_add(1, SeqCst);
        assert!(calls % 3 != 2, "wild");
        self.0 = self
            .0
            .wrapping_mul(1_664_525)
            .wrapping_add(window.completed);
        Decision::limit(self.0 >> (self.0 % 32)).after(2, 0.0)
    }
}

#[test]
fn no_more_than_the_ceiling_are_in_flight_whatever_a_controller_returns_or_panics() {
    const CEILING: u32 = 7;
    let calls = Arc::new(AtomicU32::new(0));
    let builder = Adaptive::builder(3).floor(2).ceiling(CEILING);
    let limit = builder.controller(Wild(1, calls.clone())).build().unwrap();
    let (in_flight, clock) = (AtomicU32::new(0), AtomicU64::new(1_000_000_000));
    let work = || {
        let mut held = Vec::new();
        for turn in 0..20_000_u32 {
            let now = Timestamp::from_nanos(clock.fetch_add(1_000, SeqCst));
            if turn % 3 < 2
                && let Ok(lease) = limit.try_acquire_at(now, 1)
            {
                assert!(in_flight.fetch_add(1, SeqCst) < CEILING);
                held.push(lease);
            } else if let Some(lease) = held.pop() {
                in_flight.fetch_sub(1, SeqCst);
                let end = || lease.end_at(now, Outcome::Succeeded);
                let _panicked = catch_unwind(AssertUnwindSafe(end));
            }
            assert!((2..=CEILING).contains(&limit.limit()));
        }
        in_flight.fetch_sub(held.len() as u32, SeqCst);
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(work));
        let results = threads.map(thread::ScopedJoinHandle::join);
        std::panic::set_hook(hook);
        assert!(results.iter().all(Result::is_ok));
    });
    assert!(calls.load(SeqCst) > 100, "{calls:?}");
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

fn serve(limit: &Adaptive<Halving>, times: u32, outcome: Outcome) {
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
