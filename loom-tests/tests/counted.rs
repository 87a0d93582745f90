//! The counters of `Counted`: one word each, every access `Relaxed`.
#![cfg(loom)]

use loom::sync::Arc;
use portcullis_core::{Concurrency, Counted};
use portcullis_loom::{at, explore, join, spawn, turn};

type Limit = Counted<Concurrency>;

fn visit(limit: &Limit) -> bool {
    limit.try_acquire_at(at(0), 1).is_ok()
}

#[test]
fn every_decision_is_counted_once_and_held_permits_return_to_zero() {
    explore(|| {
        let limit = Arc::new(Limit::new(Concurrency::new(1)));
        let a = spawn(&limit, visit);
        let b = spawn(&limit, visit);
        turn();
        let c = visit(&limit);
        let granted = [join(a), join(b), c]
            .into_iter()
            .filter(|&granted| granted)
            .count() as u64;
        let counts = limit.counts();
        assert_eq!(
            (counts.granted, counts.denied, counts.held),
            (granted, 3 - granted, 0)
        );
    });
}

#[test]
fn held_permits_never_exceed_the_limit() {
    explore(|| {
        let limit = Arc::new(Limit::new(Concurrency::new(1)));
        let a = spawn(&limit, visit);
        let b = spawn(&limit, visit);
        turn();
        let held = limit.counts().held;
        assert!(held <= 1, "{held} held");
        join(a);
        join(b);
    });
}
