//! The concurrency limit and three semaphores, without waiters: acquire and release.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;
use portcullis_adaptive::{Adaptive, Outcome};
use portcullis_core::{Concurrency, Timestamp};

use crate::measure::{Contest, Contestant, Expected};

const LIMIT: u32 = 10;

pub(crate) fn rows() -> Vec<Contest> {
    let plain = Contest {
        row: "concurrency.cycle",
        threads: 1,
        expected: Expected::Granted,
        ours: ours(),
        peers: vec![tokio(), async_lock(), maitake_sync()],
    };
    // The one that finds itself, with a request every 20 ns.
    let adaptive = Contest {
        row: "adaptive.cycle",
        threads: 1,
        expected: Expected::Granted,
        ours: adaptive(),
        peers: vec![ours().named("concurrency.cycle"), tokio()],
    };
    vec![plain, adaptive]
}

pub(crate) fn ours() -> Contestant {
    let limit = CachePadded::new(Concurrency::new(LIMIT));
    Contestant::new("portcullis", move |_, operations| {
        (0..operations)
            .filter(|_| limit.try_acquire(1).is_ok())
            .count() as u64
    })
}

fn adaptive() -> Contestant {
    let limit = Adaptive::builder(LIMIT).build().expect("a limit that fits");
    let limit = CachePadded::new(limit);
    let clock = AtomicU64::new(1 << 40);
    Contestant::new("portcullis", move |_, operations| {
        let start = clock.fetch_add(20 * operations, Relaxed);
        let mut granted = 0;
        for i in 0..operations {
            let now = Timestamp::from_nanos(start + 20 * i);
            if let Ok(held) = limit.try_acquire_at(now, 1) {
                held.end_at(now, Outcome::Succeeded);
                granted += 1;
            }
        }
        granted
    })
}

pub(crate) fn tokio() -> Contestant {
    let semaphore = CachePadded::new(tokio::sync::Semaphore::new(LIMIT as usize));
    Contestant::new("tokio", move |_, operations| {
        (0..operations)
            .filter(|_| semaphore.try_acquire().is_ok())
            .count() as u64
    })
}

fn async_lock() -> Contestant {
    let semaphore = CachePadded::new(async_lock::Semaphore::new(LIMIT as usize));
    Contestant::new("async-lock", move |_, operations| {
        (0..operations)
            .filter(|_| semaphore.try_acquire().is_some())
            .count() as u64
    })
}

fn maitake_sync() -> Contestant {
    let semaphore = CachePadded::new(maitake_sync::Semaphore::new(LIMIT as usize));
    Contestant::new("maitake-sync", move |_, operations| {
        (0..operations)
            .filter(|_| semaphore.try_acquire(1).is_ok())
            .count() as u64
    })
}
