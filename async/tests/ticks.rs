//! Rates whose interval is no whole number of milliseconds, with the timers of tokio, which wake at
//! whole milliseconds: what a rate loses without a burst and without slack. In virtual time.
#![cfg(feature = "tokio")]

use core::time::Duration;

use portcullis_async::{Queue, TokioTimer};
use portcullis_core::{Rate, TokenBucket};
use tokio::time::Instant;

/// How many permits a request after the other gets per second, over 20 s.
async fn per_second(rate: Rate, burst: u64, slack: Duration) -> f64 {
    let bucket = TokenBucket::new(rate, burst);
    let queue = Queue::new(bucket, TokioTimer::new(), 9);
    let queue = queue.with_slack(slack).shared();
    let (start, mut granted) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(20) {
        let _ = queue.acquire(1).await.unwrap();
        granted += 1;
    }
    f64::from(granted) / start.elapsed().as_secs_f64()
}

/// With a burst of 2 or with slack, the rate is `n / (1 s + 50 ms)`.
#[tokio::test(start_paused = true)]
async fn without_slack_and_burst_each_permit_loses_up_to_a_millisecond() {
    for (n, alone) in [(20, 18.9), (60, 55.6), (200, 166.7)] {
        let rate = || Rate::new(n, Duration::from_millis(1_050));
        let exact = f64::from(n) / 1.05;
        let slack = Duration::from_millis(10);
        for (burst, slack, expected) in [
            (1, Duration::ZERO, alone),
            (2, Duration::ZERO, exact),
            (1, slack, exact),
        ] {
            let seen = per_second(rate(), burst, slack).await;
            let context = format!("{n} with a burst of {burst} and {slack:?}: {seen:.1}");
            assert!((seen / expected - 1.0).abs() < 0.01, "{context}");
        }
    }
}
