//! One token bucket in stripes, compared with governor's limiter and with a bucket for each thread.

use core::array;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;
use portcullis_core::{Rate, StripedBucket, Timestamp};

use crate::measure::{Contest, Contestant, Expected};
use crate::rows::token_bucket;

/// Permits per second: the highest whole rate of a clock in nanoseconds.
const PLENTY: u32 = 1_000_000_000;
const START: u64 = 1 << 40;

pub(crate) fn rows() -> Vec<Contest> {
    vec![allow(1), allow(2)]
}

/// Grants at explicit times, which advance by 4 ns per operation.
fn allow(threads: usize) -> Contest {
    let governor = token_bucket::governor(Expected::Granted);
    Contest {
        row: "striped_bucket.allow",
        threads,
        expected: Expected::Granted,
        ours: ours(),
        peers: match threads {
            1 => vec![governor],
            _ => vec![governor, taking("a-bucket-each", [0, 1])],
        },
    }
}

/// All threads take from one bucket.
pub(crate) fn ours() -> Contestant {
    taking("portcullis", [0, 0])
}

/// Each thread takes from one of two buckets.
fn taking(name: &'static str, from: [usize; 2]) -> Contestant {
    // A burst that lets one thread fall behind the other by a tenth of a second.
    let settings = StripedBucket::builder(Rate::per_second(PLENTY), 1 << 27)
        .origin(Timestamp::from_nanos(START));
    let buckets: [StripedBucket; 2] =
        array::from_fn(|_| settings.build().expect("settings that fit"));
    let clocks: [_; 2] = array::from_fn(|_| CachePadded::new(AtomicU64::new(START)));
    Contestant::new(name, move |thread, operations| {
        let bucket = &buckets[from[thread]];
        let start = clocks[thread].fetch_add(4 * operations, Relaxed);
        let mut granted = 0;
        for i in 0..operations {
            granted += u64::from(
                bucket
                    .try_acquire_at(Timestamp::from_nanos(start + 4 * i), 1)
                    .is_ok(),
            );
        }
        granted
    })
}
