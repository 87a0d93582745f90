//! Compositions of several token buckets.

use core::array;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;
use portcullis_core::composition::Limits;
use portcullis_core::{AllOf, Rate, Timestamp, TokenBucket};

use crate::measure::{Contest, Contestant, Expected};

pub(crate) fn rows() -> Vec<Contest> {
    (1..)
        .zip(ROWS)
        .map(|(n, row)| match n {
            3 => (row, granting(AllOf::new((bucket(), bucket(), bucket())))),
            _ => (row, array_of(n)),
        })
        .map(|(row, ours)| Contest {
            row,
            threads: 1,
            expected: Expected::Granted,
            ours,
            peers: vec![],
        })
        .collect()
}

const ROWS: [&str; 8] = [
    "all_of_1.allow",
    "all_of_2.allow",
    "all_of_3.allow",
    "all_of_4.allow",
    "all_of_5.allow",
    "all_of_6.allow",
    "all_of_7.allow",
    "all_of_8.allow",
];

/// An array of `n` buckets, 1 to 8.
pub(super) fn array_of(n: u32) -> Contestant {
    fn array<const N: usize>() -> Contestant {
        granting(AllOf::new(array::from_fn::<_, N, _>(|_| bucket())))
    }
    match n {
        1 => array::<1>(),
        2 => array::<2>(),
        3 => array::<3>(),
        4 => array::<4>(),
        5 => array::<5>(),
        6 => array::<6>(),
        7 => array::<7>(),
        _ => array::<8>(),
    }
}

/// Each on its own cache line, as limits of different scopes usually are.
fn bucket() -> &'static TokenBucket {
    Box::leak(Box::new(CachePadded::new(TokenBucket::new(
        Rate::per_second(999_999_937),
        1 << 30,
    ))))
}

fn granting(limits: AllOf<impl Limits + Sync + 'static>) -> Contestant {
    let clock = AtomicU64::new(1 << 40);
    Contestant::new("portcullis", move |_, operations| {
        let start = clock.fetch_add(4 * operations, Relaxed);
        let mut granted = 0;
        for i in 0..operations {
            granted += u64::from(
                limits
                    .try_acquire_at(Timestamp::from_nanos(start + 4 * i), 1)
                    .is_ok(),
            );
        }
        granted
    })
}
