//! One concurrency limit in stripes, compared with tokio's semaphore and with a limit for each
//! thread: acquire and release.

use core::array;

use portcullis_core::StripedConcurrency;

use crate::measure::{Contest, Contestant, Expected};
use crate::rows::concurrency;

const LIMIT: u32 = 1 << 16;

pub(crate) fn rows() -> Vec<Contest> {
    vec![cycle(1), cycle(2)]
}

fn cycle(threads: usize) -> Contest {
    let tokio = concurrency::tokio();
    Contest {
        row: "striped_concurrency.cycle",
        threads,
        expected: Expected::Granted,
        ours: cycling("portcullis", [0, 0]),
        peers: match threads {
            1 => vec![tokio],
            _ => vec![tokio, cycling("a-limit-each", [0, 1])],
        },
    }
}

/// Each thread takes from one of two limits.
fn cycling(name: &'static str, from: [usize; 2]) -> Contestant {
    let limits: [StripedConcurrency; 2] = array::from_fn(|_| StripedConcurrency::new(LIMIT));
    Contestant::new(name, move |thread, operations| {
        let limit = &limits[from[thread]];
        (0..operations)
            .filter(|_| limit.try_acquire(1).is_ok())
            .count() as u64
    })
}
