//! A counted limiter in a queue counts each request once, however calls interleave.
#![cfg(portcullis_loom)]

use portcullis_core::{Concurrency, Counted, Timestamp};
use portcullis_loom::queue::{Task, around, beside, beside_of, ends_well, hold};
use portcullis_loom::{explore, explore_briefly, join};

#[test]
fn a_request_that_is_granted_while_it_is_cancelled_is_counted_once() {
    explore(|| {
        let queue = around(Counted::new(Concurrency::new(1)));
        let held = hold(&queue, 1);
        let wait = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        wait.leave();
        join(release);
        let counts = queue.limiter().counts();
        assert_eq!(counts.granted.requests + counts.cancelled.requests, 2);
        assert_eq!(counts.cancelled.requests, queue.counts().cancelled);
        assert_eq!((counts.all().requests, counts.held), (2, 0));
        ends_well(&queue, 1, []);
    });
}

#[test]
fn attempts_beside_a_release_are_no_denials() {
    explore_briefly(1, 2, || {
        let queue = around(Counted::new(Concurrency::new(1)));
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let other = beside_of(&queue, |queue| queue.try_acquire(1).map(drop).is_ok());
        let mut wait = Task::polled(&queue, 1);
        let tried = join(other);
        join(release);
        assert!(wait.is_served());
        let counts = queue.limiter().counts();
        assert_eq!(counts.granted.requests, 2 + u64::from(tried));
        assert_eq!(counts.denied.requests, u64::from(!tried));
        assert_eq!((counts.all().requests, counts.held), (3, 1));
        ends_well(&queue, 1, [&mut wait]);
        assert_eq!(queue.limiter().available_at(Timestamp::ZERO), 1);
    });
}
