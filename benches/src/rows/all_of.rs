//! Several token buckets judged as one.

use core::array;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;
use portcullis_core::{AllOf, Limits, Rate, Timestamp, TokenBucket};

use crate::measure::{Contest, Contestant, Expected};

pub(crate) fn rows() -> Vec<Contest> {
    vec![Contest {
        row: "all_of_3.allow",
        threads: 1,
        expected: Expected::Granted,
        ours: granting(AllOf::new((bucket(), bucket(), bucket()))),
        peers: vec![],
    }]
}

/// An array of `N` buckets.
#[allow(dead_code)]
pub(super) fn array_of<const N: usize>() -> Contestant {
    granting(AllOf::new(array::from_fn::<_, N, _>(|_| bucket())))
}

/// On a line of its own, as limits of different scope are.
fn bucket() -> &'static TokenBucket {
    Box::leak(Box::new(CachePadded::new(TokenBucket::new(Rate::per_second(999_999_937), 1 << 30))))
}

fn granting(limits: AllOf<impl Limits + Sync + 'static>) -> Contestant {
    let clock = AtomicU64::new(1 << 40);
    Contestant::new("portcullis", move |_, operations| {
        let start = clock.fetch_add(4 * operations, Relaxed);
        let mut granted = 0;
        for i in 0..operations {
            granted += u64::from(limits.try_acquire_at(Timestamp::from_nanos(start + 4 * i), 1).is_ok());
        }
        granted
    })
}
