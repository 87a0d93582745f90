//! The example `story` shows what its head says, by the counts of the service.
//!
//! How long a machine stalls is not known here. So a run that was too slow is repeated.

#[path = "../examples/story.rs"]
#[allow(dead_code, reason = "its `main`")]
mod example;

use core::time::Duration;
use std::thread;

use example::{BATCH, Counts, Service, ideal, naive, paced};

const ATTEMPTS: usize = 8;

/// Runs until the counts are as they should be.
fn shows(run: impl Fn() -> Counts, expected: impl Fn(&Counts) -> bool) {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let counts = run();
        assert_eq!(
            counts.written.len(),
            10_000,
            "no record is lost, and none is written twice"
        );
        assert_eq!(counts.sends, 10_000 + counts.errors);
        if expected(&counts) {
            return;
        }
        seen.push((counts.sends, counts.errors, counts.time()));
    }
    panic!("{seen:?}");
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap()
}

#[test]
fn naive_senders_send_three_times_as_much_as_is_written() {
    let run = || {
        let (service, address) = Service::start().unwrap();
        thread::sleep(service.next_window());
        // Fewer senders, with more records each, so that a wave is over within its window.
        runtime().block_on(naive(address, 10 * BATCH)).unwrap();
        service.counts()
    };
    shows(run, |counts| {
        counts.sends == 30_000 && counts.errors == 20_000
    });
}

#[test]
fn paced_jobs_send_hardly_more_than_is_written_in_the_ideal_time() {
    assert_eq!(ideal(), Duration::from_secs(5));
    let run = || {
        let (service, address) = Service::start().unwrap();
        runtime().block_on(paced(address, |_| {})).unwrap();
        service.counts()
    };
    shows(run, |counts| {
        let difference = counts.time().abs_diff(ideal());
        counts.sends <= 10_100 && difference <= ideal() / 20
    });
}
