//! `Sometimes`: one word, replaced by compare-exchange, every access `Relaxed`.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::builder::SometimesBuilder;
use portcullis_core::state::Word;
use portcullis_core::{Sometimes, Timestamp};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, turn};

on_both_widths!(
    of_racing_calls_every_second_one_is_due,
    of_racing_calls_the_first_two_are_due,
    of_racing_calls_after_the_interval_one_is_due,
    a_stale_call_during_a_newer_one_does_not_move_the_end_back,
);

fn built<W: Word>(builder: SometimesBuilder) -> Arc<Sometimes<W>> {
    Arc::new(builder.build_on().unwrap())
}

/// Returns 1 if a call at `now` is due, or else 0.
fn due<W: Word>(sometimes: &Sometimes<W>, now: Timestamp) -> u32 {
    turn();
    sometimes.is_due_at(now).into()
}

fn of_racing_calls_every_second_one_is_due<W: Word>() {
    explore(|| {
        let sometimes = built::<W>(Sometimes::builder().every(2));
        let a = spawn(&sometimes, |sometimes| due(sometimes, at(5)));
        let b = spawn(&sometimes, |sometimes| due(sometimes, at(5)));
        let c = due(&sometimes, at(5));
        assert_eq!(join(a) + join(b) + c, 2);
        let next = [(); 3].map(|()| due(&sometimes, at(5)));
        assert_eq!(next, [0, 1, 0]);
    });
}

fn of_racing_calls_the_first_two_are_due<W: Word>() {
    explore(|| {
        let sometimes = built::<W>(Sometimes::builder().first(2));
        let a = spawn(&sometimes, |sometimes| due(sometimes, at(5)));
        let b = spawn(&sometimes, |sometimes| due(sometimes, at(5)));
        let c = due(&sometimes, at(5));
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!(due(&sometimes, at(5)), 0);
    });
}

fn of_racing_calls_after_the_interval_one_is_due<W: Word>() {
    explore(|| {
        let interval = Duration::from_secs(2);
        let sometimes = built::<W>(Sometimes::builder().interval(interval));
        assert_eq!(due(&sometimes, at(5)), 1);
        let a = spawn(&sometimes, |sometimes| due(sometimes, at(7)));
        let b = spawn(&sometimes, |sometimes| due(sometimes, at(8)));
        let early = due(&sometimes, at(6));
        let (a, b) = (join(a), join(b));
        assert_eq!((a + b, early), (1, 0));
        // Two seconds after the one that was due.
        let next = if a == 1 { 9 } else { 10 };
        assert_eq!(due(&sometimes, at(next - 1)), 0);
        assert_eq!(due(&sometimes, at(next)), 1);
    });
}

fn a_stale_call_during_a_newer_one_does_not_move_the_end_back<W: Word>() {
    explore(|| {
        let interval = Duration::from_secs(2);
        let sometimes = built::<W>(Sometimes::builder().first(2).interval(interval));
        let newer = spawn(&sometimes, |sometimes| due(sometimes, at(6)));
        let older = due(&sometimes, at(5));
        assert_eq!((join(newer), older), (1, 1));
        assert_eq!(due(&sometimes, at(7)), 0);
        assert_eq!(due(&sometimes, at(8)), 1);
    });
}
