//! Slices of one token bucket, one per thread, compared with governor's limiter, which all threads
//! share.

use core::array;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;
use portcullis_core::{Rate, SlicedBucket, Timestamp};

use crate::measure::{Contest, Contestant, Expected};
use crate::rows::token_bucket;

/// Permits per second: the highest whole rate of a clock in nanoseconds.
const PLENTY: u32 = 1_000_000_000;
/// The number of permits in a slice, which is also the size of a draw.
pub(crate) const SIZE: u32 = 1_024;
const START: u64 = 1 << 40;

pub(crate) fn rows() -> Vec<Contest> {
    vec![allow(1), allow(2)]
}

/// Grants at explicit times, which advance by 4 ns per operation.
fn allow(threads: usize) -> Contest {
    Contest {
        row: "slice.allow",
        threads,
        expected: Expected::Granted,
        ours: ours(),
        peers: vec![token_bucket::governor(Expected::Granted)],
    }
}

pub(crate) fn ours() -> Contestant {
    // A burst that lets one thread fall behind the other by a tenth of a second, and that leaves
    // bits for the positions.
    let settings = SlicedBucket::builder(Rate::per_second(PLENTY), 1 << 27)
        .origin(Timestamp::from_nanos(START));
    let bucket = CachePadded::new(settings.build().expect("settings that fit"));
    let clocks: [_; 2] = array::from_fn(|_| CachePadded::new(AtomicU64::new(START)));
    Contestant::new("portcullis", move |thread, operations| {
        let start = clocks[thread].fetch_add(4 * operations, Relaxed);
        let slice = bucket
            .slice_at(Timestamp::from_nanos(start), SIZE)
            .expect("a small part of the burst");
        let mut granted = 0;
        for i in 0..operations {
            granted += u64::from(
                slice
                    .try_acquire_at(Timestamp::from_nanos(start + 4 * i), 1)
                    .is_ok(),
            );
        }
        granted
    })
}
