//! A store in memory that a test lets wait or fail.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;

use portcullis_core::{Clock, Timestamp};
use portcullis_counters::{
    Charge, Counter, CounterStore, MemoryCounters, QuotaRead, QuotaWrite, StoreDecision,
    StoreError, StoreFuture,
};

/// A store whose calls wait until they are let through, and fail if they are to.
pub(crate) struct Gate<C> {
    pub(crate) store: MemoryCounters<C>,
    pub(crate) is_open: AtomicBool,
    pub(crate) fails: AtomicBool,
    pub(crate) calls: AtomicU64,
}

impl<C: Clock> Gate<C> {
    pub(crate) fn new(clock: C) -> Arc<Self> {
        Arc::new(Self {
            store: MemoryCounters::new(1_000, clock),
            is_open: AtomicBool::new(true),
            fails: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        })
    }
}

impl<C: Clock + Send + Sync> CounterStore for Gate<C> {
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
        self.store.read_quotas(ids)
    }
    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        self.store.write_quotas(read_at, writes)
    }
    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        Box::pin(async move {
            self.calls.fetch_add(1, SeqCst);
            core::future::poll_fn(|_| {
                if self.is_open.load(SeqCst) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            if self.fails.load(SeqCst) {
                return Err(StoreError::Unavailable("refused".into()));
            }
            self.store.take(charges).await
        })
    }
}
