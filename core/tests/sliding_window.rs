//! A sliding window decides as an index that never wraps, and distinguishes a long idle time from a
//! stale timestamp.

mod support;

use core::time::Duration;

use portcullis_core::state::Word;
use portcullis_core::{Limiter, SlidingWindow, Timestamp};

use support::oracle::agrees;

#[test]
fn a_sliding_window_decides_as_an_index_that_never_wraps_does() {
    for subject in ["sliding window, 64 bits", "sliding window, 32 bits"] {
        let tally = agrees(subject);
        assert!(tally.retried > 1_000 && tally.late > 1_000 && tally.void > 0);
        assert_eq!(
            tally.late_and_less, 0,
            "a stale timestamp counts in the newest segment"
        );
    }
}

/// The number of segments after which the stamps of the count wrap.
const TURN: u64 = 1 << 10;
const STALENESS: u64 = 60;

/// A window of `segments` segments of a second each, whose count leaves ten bits for the segment.
fn window<W: Word>(segments: u32, strict: bool) -> SlidingWindow<5, W> {
    let limit = 1 << (W::BITS - 11);
    let settings = SlidingWindow::builder(limit, Duration::from_secs(segments.into()), segments)
        .staleness(Duration::from_secs(STALENESS));
    let settings = if strict { settings.strict() } else { settings };
    let window = settings.build_on().unwrap();
    assert_eq!(window.timing().horizon, Duration::from_secs(TURN - 1));
    window
}

/// After any idle time a sliding window has all of its permits, or none until it can distinguish
/// again. It has a part of them only if the time may look stale.
#[test]
fn an_idle_sliding_window_has_all_permits_or_none() {
    fn check<W: Word>(segments: u32, strict: bool) {
        let mut denied = 0;
        let ring = u64::from(segments) + u64::from(strict);
        for idle in (ring..ring + 20).chain(TURN - 2 * STALENESS - 40..TURN + 2 * STALENESS) {
            let window = window::<W>(segments, strict);
            let all = window.limit();
            let at = |second: u64| Timestamp::from_secs(second);
            // In each segment of the ring.
            for second in 0..ring {
                window.take_at(at(second), 7 + second as u32).unwrap();
            }
            let now = ring - 1 + idle;
            let available = window.available_at(at(now));
            let may_be_late = (TURN - STALENESS - 2 * ring - 2..TURN + ring).contains(&idle);
            assert!(
                available == all || may_be_late || available == 0,
                "{available} of {all} after {idle} s, {segments} segments"
            );
            denied += u64::from(available == 0);
            if available < all {
                continue;
            }
            // From then on it counts like a new one.
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for second in now..now + 4 * ring {
                let n = 5 + second % 3;
                window.take_at(at(second), n as u32).unwrap();
                taken.push((second, n));
                for later in second..=second + ring {
                    let counted = taken
                        .iter()
                        .filter(|(at, _)| at + ring > later)
                        .map(|(_, n)| n);
                    assert_eq!(
                        window.available_at(at(later)),
                        all - counted.sum::<u64>(),
                        "at {later} s, idle for {idle} s, {segments} segments"
                    );
                }
            }
        }
        assert!(denied > STALENESS / 2, "the ambiguous zone was reached");
    }
    for segments in 1..=4 {
        for strict in [false, true] {
            check::<u32>(segments, strict);
        }
    }
}
