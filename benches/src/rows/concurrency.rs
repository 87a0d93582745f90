//! The concurrency limit and three semaphores, without waiters: acquire and release.

use crossbeam_utils::CachePadded;
use portcullis_core::Concurrency;

use crate::measure::{Contest, Contestant, Expected};

const LIMIT: u32 = 10;

pub(crate) fn rows() -> Vec<Contest> {
    vec![Contest {
        row: "concurrency.cycle",
        threads: 1,
        expected: Expected::Granted,
        ours: ours(),
        peers: vec![tokio(), async_lock(), maitake_sync()],
    }]
}

pub(crate) fn ours() -> Contestant {
    let limit = CachePadded::new(Concurrency::new(LIMIT));
    Contestant::new("portcullis", move |_, operations| {
        (0..operations)
            .filter(|_| limit.try_acquire(1).is_ok())
            .count() as u64
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
