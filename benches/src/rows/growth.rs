//! Costs that grow with threads, segments, permits or limits. Measured for charts only.

use core::time::Duration;
use std::thread;

use crossbeam_utils::CachePadded;
use portcullis_core::{
    Concurrency, FixedWindow, LimiterExt, Rate, SlidingWindow, Timestamp, TokenBucket,
};

use crate::measure::{Contest, Contestant, Expected, Plan};
use crate::rows::{all_of, concurrency, token_bucket};

/// A line in a chart: nanoseconds per operation over the growing quantity.
pub(crate) struct Line {
    pub(crate) grows: &'static str,
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Line {
    fn measure(
        plan: &Plan,
        grows: &'static str,
        name: &'static str,
        sizes: &[u32],
        contestant: &dyn Fn(u32) -> Contestant,
    ) -> Self {
        let point = |&size: &u32| {
            let threads = if grows == THREADS { size as usize } else { 1 };
            let contest = Contest {
                row: name,
                threads,
                expected: Expected::Granted,
                ours: contestant(size),
                peers: vec![],
            };
            let nanos = contest.hold(plan).first().map_or(0.0, |row| row.ours_ns);
            println!("{name:<26} {size:>7} {nanos:>9.2}   by {grows}");
            (f64::from(size), nanos)
        };
        Self {
            grows,
            name,
            points: sizes.iter().map(point).collect(),
        }
    }
}

const THREADS: &str = "threads";

/// Measures all lines, chart by chart.
pub(crate) fn lines(plan: &Plan) -> Vec<Line> {
    [
        by_threads(plan),
        by_segments(plan),
        by_permits(plan),
        by_limits(plan),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// All threads on one limiter. More threads than cores would measure the scheduler.
fn by_threads(plan: &Plan) -> Vec<Line> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let sizes: Vec<u32> = (0..32)
        .map(|power| 1 << power)
        .take_while(|size| *size as usize <= cores)
        .collect();
    let line = |name, contestant: &dyn Fn(u32) -> Contestant| {
        Line::measure(plan, THREADS, name, &sizes, contestant)
    };
    vec![
        line("floor", &|_| Contestant::floor()),
        line("token bucket", &|_| granting(bucket(), 4, 1)),
        line("fixed window", &|_| {
            granting(FixedWindow::new(LIMIT, WINDOW), 2, 1)
        }),
        line("sliding window", &|_| granting(sliding(8), 2, 1)),
        line("concurrency", &|_| granting(Concurrency::new(10_000), 1, 1)),
        line("governor, fake clock", &|_| {
            token_bucket::governor_fake_clock()
        }),
        line("tokio semaphore", &|_| concurrency::tokio()),
    ]
}

/// A grant in the same segment as the previous one, and a grant that always finds a new segment.
fn by_segments(plan: &Plan) -> Vec<Line> {
    let sizes = [1, 2, 4, 8, 16, 32, 64];
    let line = |name, contestant: &dyn Fn(u32) -> Contestant| {
        Line::measure(plan, "segments", name, &sizes, contestant)
    };
    vec![
        line("grant", &|segments| granting(sliding(segments), 2, 1)),
        line("grant and roll", &|segments| {
            granting(
                sliding(segments),
                WINDOW.as_nanos() as u64 / u64::from(segments),
                1,
            )
        }),
    ]
}

/// One request, for a growing number of permits.
fn by_permits(plan: &Plan) -> Vec<Line> {
    let sizes = [1, 4, 16, 64, 256, 1_024];
    let line = |name, contestant: &dyn Fn(u32) -> Contestant| {
        Line::measure(plan, "permits", name, &sizes, contestant)
    };
    vec![
        line("token bucket", &|permits| {
            granting(bucket(), 4 * u64::from(permits), permits)
        }),
        line("fixed window", &|permits| {
            granting(FixedWindow::new(LIMIT, WINDOW), 2, permits)
        }),
        line("sliding window", &|permits| {
            granting(sliding(8), 2, permits)
        }),
        line("concurrency", &|permits| {
            granting(Concurrency::new(10_000), 1, permits)
        }),
    ]
}

/// Compositions of token buckets.
fn by_limits(plan: &Plan) -> Vec<Line> {
    vec![Line::measure(
        plan,
        "limits",
        "all of",
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &all_of::array_of,
    )]
}

const WINDOW: Duration = Duration::from_millis(80);
/// More permits than any run takes in a window.
const LIMIT: u64 = 1 << 40;

fn bucket() -> TokenBucket {
    TokenBucket::new(Rate::per_second(999_999_937), 1 << 30)
}

fn sliding(segments: u32) -> SlidingWindow<64> {
    SlidingWindow::new(LIMIT, WINDOW, segments)
}

/// Grants `permits` at times that advance by `step` nanoseconds, on each thread.
fn granting(limiter: impl LimiterExt + Sync + 'static, step: u64, permits: u32) -> Contestant {
    let limiter = CachePadded::new(limiter);
    let clock = token_bucket::clocks();
    Contestant::new("portcullis", move |thread, operations| {
        let start = clock(thread, step * operations);
        let mut granted = 0;
        for i in 0..operations {
            let now = Timestamp::from_nanos(start + step * i);
            granted += u64::from(limiter.try_acquire_at(now, permits).is_ok());
        }
        granted
    })
}
