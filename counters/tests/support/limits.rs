//! A plain simulation of limits, and a store that decides by reading and writing.

use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_counters::{
    Counter, CounterLimit, CounterStore, QuotaRead, QuotaWrite, StoreFuture,
};

/// A store whose decisions are made by reading and writing quotas.
pub(crate) struct ByWrites<S> {
    pub(crate) store: S,
    /// What happens after each read.
    after_read: Box<dyn Fn(&S) + Send + Sync>,
    pub(crate) reads: AtomicU32,
}

impl<S> ByWrites<S> {
    pub(crate) fn new(store: S, after_read: impl Fn(&S) + Send + Sync + 'static) -> Self {
        Self {
            store,
            after_read: Box::new(after_read),
            reads: AtomicU32::new(0),
        }
    }
}

impl<S: CounterStore> CounterStore for ByWrites<S> {
    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>> {
        self.store.get_many(ids)
    }
    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter> {
        self.store.increment_and_get(id, expiry, delta)
    }
    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead> {
        Box::pin(async move {
            self.reads.fetch_add(1, SeqCst);
            let read = self.store.read_quotas(ids).await;
            (self.after_read)(&self.store);
            read
        })
    }
    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        self.store.write_quotas(read_at, writes)
    }
}

pub(crate) fn bucket(count: u64, period: Duration, burst: u64) -> CounterLimit {
    CounterLimit::token_bucket(count, period, burst).unwrap()
}

pub(crate) fn windows(count: u64, period: Duration, segments: u32) -> CounterLimit {
    CounterLimit::windows(count, period, segments).unwrap()
}

/// A limit as its documentation describes it. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plain {
    Bucket {
        count: u64,
        period: u64,
        burst: u64,
    },
    Windows {
        count: u64,
        length: u64,
        segments: u64,
    },
}

/// All grants of a limit: when, and how many permits.
pub(crate) type Grants = Vec<(u64, u64)>;

impl Plain {
    pub(crate) fn limit(self) -> CounterLimit {
        match self {
            Self::Bucket {
                count,
                period,
                burst,
            } => bucket(count, Duration::from_micros(period), burst),
            Self::Windows {
                count,
                length,
                segments,
            } => {
                let period = Duration::from_micros(length * segments);
                windows(count, period, segments as u32)
            }
        }
    }

    /// The same limit with all times longer.
    #[allow(dead_code, reason = "tests that include this module use a part of it")]
    pub(crate) fn slower(mut self, factor: u64) -> Self {
        match &mut self {
            Self::Bucket { period: time, .. } | Self::Windows { length: time, .. } => {
                *time *= factor;
            }
        }
        self
    }

    /// Computed from all grants, without a state.
    pub(crate) fn available(self, grants: &Grants, now: u64) -> u64 {
        match self {
            Self::Bucket {
                count,
                period,
                burst,
            } => {
                // In units of which a permit has `period`.
                let full = u128::from(burst) * u128::from(period);
                let (mut level, mut at) = (full, 0);
                for &(time, n) in grants.iter().chain([&(now, 0)]) {
                    level = full.min(level + u128::from(time - at) * u128::from(count));
                    level -= u128::from(n) * u128::from(period);
                    at = time;
                }
                (level / u128::from(period)) as u64
            }
            Self::Windows {
                count,
                length,
                segments,
            } => {
                let counts = |time: u64| time / length + segments > now / length;
                let used = grants.iter().filter(|(time, _)| counts(*time));
                count - used.map(|(_, n)| n).sum::<u64>()
            }
        }
    }
}
