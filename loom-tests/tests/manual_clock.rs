//! The manual clock: one word, every access `Relaxed`.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::{Clock, ManualClock};
use portcullis_loom::{at, explore, join, spawn, turn};

#[test]
fn steps_of_several_threads_add_up_and_time_never_goes_back() {
    explore(|| {
        let clock = Arc::new(ManualClock::new());
        let a = spawn(&clock, |clock| clock.advance(Duration::from_secs(1)));
        let b = spawn(&clock, |clock| clock.advance(Duration::from_secs(2)));
        turn();
        let first = clock.now();
        turn();
        let second = clock.now();
        assert!(first <= second);
        let mut reached = [join(a), join(b)];
        reached.sort();
        assert!(reached == [at(1), at(3)] || reached == [at(2), at(3)]);
        assert_eq!(clock.now(), at(3));
    });
}
