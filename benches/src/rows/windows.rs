//! The windows, compared with pingora's rate estimator, which is the peer that counts in windows.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use crossbeam_utils::CachePadded;
use pingora_limits::rate::Rate as Estimator;
use portcullis_core::{AdjustableWindow, FixedWindow, LimiterExt, SlidingWindow, Timestamp};

use crate::measure::{Contest, Contestant, Expected};

const WINDOW: Duration = Duration::from_millis(80);
/// More permits than a run takes, so that all requests are granted.
const LIMIT: u64 = 1 << 31;

pub(crate) fn rows() -> Vec<Contest> {
    let mut rows = against_estimator();
    // The window with adjustable settings, compared with the plain window.
    rows.push(Contest {
        row: "adjustable_window.allow",
        threads: 1,
        expected: Expected::Granted,
        ours: ours(AdjustableWindow::new(LIMIT, WINDOW)),
        peers: vec![ours(FixedWindow::new(LIMIT, WINDOW)).named("fixed-window")],
    });
    rows
}

fn against_estimator() -> Vec<Contest> {
    let fixed = FixedWindow::new(LIMIT, WINDOW);
    let sliding = SlidingWindow::<8>::new(LIMIT, WINDOW, 8);
    let strict = SlidingWindow::<9>::builder(LIMIT, WINDOW, 8)
        .strict()
        .build()
        .expect("fits");
    [
        ("fixed_window.allow", ours(fixed)),
        ("sliding_window.allow", ours(sliding)),
        ("sliding_window.strict", ours(strict)),
    ]
    .into_iter()
    .map(|(row, ours)| Contest {
        row,
        threads: 1,
        expected: Expected::Granted,
        ours,
        peers: vec![estimator()],
    })
    .collect()
}

/// Grants at explicit times, which advance by 2 ns per operation.
fn ours(limiter: impl LimiterExt + Sync + 'static) -> Contestant {
    let limiter = CachePadded::new(limiter);
    let started = AtomicU64::new(1 << 40);
    Contestant::new("portcullis", move |_, operations| {
        let start = started.fetch_add(1 << 36, Relaxed);
        let mut granted = 0;
        for i in 0..operations {
            granted += u64::from(
                limiter
                    .try_acquire_at(Timestamp::from_nanos(start + 2 * i), 1)
                    .is_ok(),
            );
        }
        granted
    })
}

/// pingora counts first; the caller compares the count with a limit.
fn estimator() -> Contestant {
    let rate = Estimator::new(WINDOW);
    Contestant::new("pingora-limits", move |_, operations| {
        (0..operations)
            .filter(|_| rate.observe(&1, 1) < isize::MAX)
            .count() as u64
    })
}
