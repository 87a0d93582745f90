//! The counters of `Tally`: one word each, every access `Relaxed`.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use portcullis_core::counts::Tally;
use portcullis_core::{Concurrency, Counted};
use portcullis_loom::{at, explore, join, spawn, turn};

type Limit = Counted<Concurrency>;

fn visit(limit: &Limit) -> bool {
    limit.try_acquire_at(at(0), 2).is_ok()
}

#[test]
fn every_decision_is_counted_once_and_held_permits_return_to_zero() {
    explore(|| {
        let limit = Arc::new(Limit::new(Concurrency::new(2)));
        let a = spawn(&limit, visit);
        let b = spawn(&limit, visit);
        turn();
        let c = visit(&limit);
        let granted = [join(a), join(b), c]
            .into_iter()
            .filter(|&granted| granted)
            .count() as u64;
        let counts = limit.counts();
        let (counted, denied) = (counts.granted, counts.denied);
        assert_eq!((counted.requests, counted.permits), (granted, 2 * granted));
        assert_eq!(denied.requests, 3 - granted);
        assert_eq!(denied.permits, 2 * (3 - granted));
        assert_eq!(counts.held, 0);
    });
}

#[test]
fn limiters_that_share_a_tally_lose_no_count() {
    explore(|| {
        let tally = Arc::new(Tally::new());
        let try_one = |tally: &Arc<Tally>, permits| {
            let limit = Counted::with_tally(Concurrency::new(2), tally.as_ref());
            let _ = limit.try_acquire_at(at(0), permits).map(drop);
        };
        let a = spawn(&tally, move |tally| {
            let limit = Counted::with_tally(Concurrency::new(2), tally);
            let _ = limit.try_acquire_at(at(0), 1).map(drop);
            let _ = limit.try_acquire_at(at(0), 3).map(drop);
        });
        try_one(&tally, 2);
        try_one(&tally, 5);
        join(a);
        let counts = tally.counts();
        assert_eq!((counts.granted.requests, counts.granted.permits), (2, 3));
        assert_eq!((counts.refused.requests, counts.refused.permits), (2, 8));
        assert_eq!(counts.held, 0);
    });
}

#[test]
fn held_permits_never_exceed_the_limit() {
    explore(|| {
        let limit = Arc::new(Limit::new(Concurrency::new(2)));
        let a = spawn(&limit, visit);
        let b = spawn(&limit, visit);
        turn();
        let held = limit.counts().held;
        assert!(held <= 2, "{held} held");
        join(a);
        join(b);
    });
}
