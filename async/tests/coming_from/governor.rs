use core::hash::BuildHasher;
use core::time::Duration;
use std::sync::Arc;

use futures_util::{Sink, Stream};
use portcullis_async::stream::{LimitSinkExt, LimitStreamExt};
use portcullis_async::{
    AsyncIoTimer, EmbassyTimer, KeyedQueue, PerItem, Queue, Rejected, ThreadTimer, TokioTimer,
};
use portcullis_core::keyed::{Line, RandomSeed, TokenBucketRules};
use portcullis_core::limiter::{Answer, Ask, Back, Detail, Read, Reading, Returned};
use portcullis_core::state::Carry;
use portcullis_core::{
    AdjustableBucket, Clocked, Counted, Denied, FixedWindow, Keyed, KeyedArray, KeyedList, Limiter,
    LimiterExt, ManualClock, MonotonicClock, Rate, Retry, StripedBucket, Timestamp, TokenBucket,
};

fn rates(n: u32, d: Duration, max_burst: u32, replenish_all_per: Duration) -> [Rate; 6] {
    [
        Rate::per_second(n),
        Rate::per_minute(n),
        Rate::per_hour(n),
        Rate::per_day(n),
        Rate::new(1, d),
        Rate::new(max_burst, replenish_all_per),
    ]
}

fn settings(rate: Rate, b: u64) -> (Rate, u64, Option<Duration>) {
    let bucket = TokenBucket::new(rate, b);
    (bucket.rate(), bucket.burst(), bucket.time_to_fill())
}

fn clocked(rate: Rate, burst: u64, n: u32) -> Result<(), Denied> {
    let limiter = Clocked::new(TokenBucket::new(rate, burst), MonotonicClock::new());
    let _ = limiter.try_acquire(n)?;
    let bucket = TokenBucket::new(rate, burst);
    let _manual = Clocked::new(bucket, ManualClock::new());
    // Or `TscClock`, with the feature `tsc` of the core, which this package does not enable.
    let clock = MonotonicClock::new();
    let _striped = Clocked::new(<StripedBucket>::new(rate, burst), clock);
    Ok(())
}

fn direct(limiter: Clocked<TokenBucket, MonotonicClock>, now: Timestamp, n: u32) {
    let bucket = limiter.limiter();
    let _ = bucket.try_acquire_at(now, n);
    match limiter.try_acquire(n) {
        Err(denied @ Denied::Exhausted { .. }) => {
            let _ = denied.retry(&limiter).wait_from(now);
            let _ = match denied.retry(&limiter) {
                Retry::At(time) => Some(time),
                _ => None,
            };
            // As a pattern or a value.
            let time = now;
            let _ = Retry::At(time);
        }
        _ => {}
    }
    let (_, detail) = limiter.try_acquire_explained(n);
    let _: [u64; 2] = [detail.available, detail.capacity];
    let _: [Retry; 2] = [detail.full_again, detail.retry];
    let _: Option<Duration> = detail.time_to_fill;
    let Detail { capacity: _, .. } = detail;
    let (_, _) = bucket.try_acquire_explained_at(now, n);
}

fn saved(bucket: &TokenBucket, rate: Rate) {
    let word = bucket.state();
    let _ = TokenBucket::builder(rate, 1)
        .build()
        .map(|bucket| bucket.with_state(word));
}

fn adjusted(bucket: &AdjustableBucket, now: Timestamp, rate: Rate) {
    let _ = bucket.adjust_at(now, rate, 5, Carry::Proportional);
}

fn timers() -> (ThreadTimer, TokioTimer, AsyncIoTimer, EmbassyTimer) {
    (
        ThreadTimer::new(),
        TokioTimer::new(),
        AsyncIoTimer::new(),
        EmbassyTimer,
    )
}

async fn waits(
    queue: Queue<TokenBucket, ThreadTimer>,
    n: u32,
    timeout: Duration,
    deadline: Timestamp,
) -> Result<(), Rejected> {
    let _ = queue.try_acquire(n).is_ok();
    let _ = queue.acquire(n).await?;
    let _ = queue.acquire(n).within(timeout).await?;
    let _ = queue.acquire(n).until(deadline).await?;
    let _ = queue.blocking_acquire(n)?;
    let _ = queue.acquire(n).within(timeout).block()?;
    let _ = queue.with_jitter(timeout);
    Ok(())
}

fn paced(
    queue: Arc<Queue<TokenBucket, ThreadTimer>>,
    stream: impl Stream<Item = u8>,
    sink: impl Sink<u8>,
) {
    let _ = stream.limited(Arc::clone(&queue), PerItem);
    let _ = sink.limited_sink(queue, PerItem);
}

fn tables(rate: Rate, burst: u64, n: usize, hasher: impl BuildHasher) {
    let table = Keyed::for_keys(TokenBucket::new(rate, burst), n);
    let _ = Counted::new(table);
    let _ = Keyed::for_keys_with_hasher(TokenBucket::new(rate, burst), n, hasher);
    let bucket = TokenBucket::new(rate, burst);
    let window = FixedWindow::new(9, Duration::from_secs(60));
    let table = KeyedList::for_keys((bucket, window), n);
    let table = Clocked::new(table, MonotonicClock::new());
    let _ = table.key("alice").try_acquire_each(1);
    let _ = KeyedArray::for_keys(|| AdjustableBucket::new(rate, burst), n);
}

type Table = Keyed<TokenBucketRules, Box<[Line]>, RandomSeed>;

fn keys(table: Table, key: &str, now: Timestamp, n: u32) {
    let _: Rate = table.rules().rate();
    let _ = table.key(&key).try_acquire_at(now, n);
    let statistics = table.statistics_at(now);
    let _ = (statistics.held, statistics.live);
    let _ = table.sweep_at(now, ..);
    if let Err(Denied::Crowded { .. }) = table.key(key).try_acquire_at(now, n) {}
    let clock = MonotonicClock::new();
    let table = Clocked::new(table, clock);
    let _ = table.key(&key).try_acquire(n);
}

fn owned(table: Arc<Table>, key: String) {
    let _ = table.owned_key(&key);
}

fn each(
    table: &KeyedList<(TokenBucketRules, TokenBucketRules), Box<[Line]>, RandomSeed>,
    now: Timestamp,
    n: u32,
) {
    let _ = table.key("alice").try_acquire_each_at(now, n);
}

fn changed(
    table: &KeyedArray<AdjustableBucket, Box<[AdjustableBucket]>, Box<[Line]>, RandomSeed>,
    now: Timestamp,
    rate: Rate,
) {
    let _ = table.change_all(|bucket| bucket.adjust_at(now, rate, 5, Carry::Proportional));
}

async fn keyed_waits(
    queue: KeyedQueue<Table, ThreadTimer>,
    key: String,
    n: u32,
) -> Result<(), Rejected> {
    let _ = queue.acquire(&key, n).await?;
    let _ = queue.with_jitter(Duration::ZERO);
    Ok(())
}

/// A limiter around another one.
struct Around<L>(L);

impl<L: Limiter> Limiter for Around<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }
    fn read(&self, read: Read<'_>) -> Reading {
        self.0.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}
