//! Measures by how much the start of a `MonotonicClock`'s interval is behind the time, and how
//! often the time is later than the interval, with all cores fully loaded.
//!
//! ```sh
//! cargo run --release -p portcullis-bench --bin clock_lag -- 10
//! ```
//!
//! The number is the duration in seconds.

use core::fmt;
use core::time::Duration;
use std::thread;

use portcullis_core::{Clock, MonotonicClock};

fn main() {
    let seconds = std::env::args()
        .nth(1)
        .map_or(Ok(10), |seconds| seconds.parse());
    let duration = Duration::from_secs(seconds.expect("the duration in whole seconds"));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores)
            .map(|_| scope.spawn(|| Lag::measure(duration)))
            .collect();
        for (nth, thread) in threads.into_iter().enumerate() {
            match thread.join().expect("the measurement does not panic") {
                Some(lag) => print!("thread {nth}: {lag}"),
                None => println!("thread {nth}: the clock has no interval"),
            }
        }
    });
}

/// What one thread has seen.
#[derive(Default)]
struct Lag {
    readings: u64,
    /// Readings at which the time was later than the interval.
    later: u64,
    longest: Duration,
    /// Readings by their lag in whole milliseconds; the last one has all longer lags.
    millis: [u64; 32],
}

impl Lag {
    /// Reads the clock for `duration`. Returns `None` if it has no interval.
    fn measure(duration: Duration) -> Option<Self> {
        let clock = MonotonicClock::new();
        let begun = clock.now();
        let mut lag = Self::default();
        loop {
            // The time is read first: if the thread is paused in between, that is not a lag.
            let now = clock.now();
            let interval = clock.interval()?;
            let behind = now.saturating_since(interval.earliest());
            lag.readings += 1;
            lag.later += u64::from(now > interval.latest());
            lag.longest = lag.longest.max(behind);
            let last = lag.millis.len() - 1;
            lag.millis[(behind.as_millis() as usize).min(last)] += 1;
            if now.saturating_since(begun) >= duration {
                return Some(lag);
            }
        }
    }
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            readings,
            later,
            longest,
            millis,
        } = self;
        writeln!(
            f,
            "{readings} readings, at most {longest:?} behind, {later} later than the interval"
        )?;
        for (from, count) in millis.iter().enumerate().filter(|(_, count)| **count > 0) {
            let more = if from + 1 == millis.len() {
                " or more"
            } else {
                ""
            };
            writeln!(f, "  {from:2} ms{more}: {count}")?;
        }
        Ok(())
    }
}
