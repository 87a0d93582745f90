//! The lease pool: a claim, and a release by the id. No peer has an equivalent.

use core::hint::black_box;

use portcullis_core::{Concurrency, LeasePool, Timestamp};

use crate::measure::{Contest, Contestant, Expected};

pub(crate) fn rows() -> Vec<Contest> {
    let pool: LeasePool<Concurrency, 16> = LeasePool::new(Concurrency::new(10));
    let ours = Contestant::new("portcullis", move |_, operations| {
        let mut released = 0;
        for _ in 0..operations {
            let id = pool
                .claim_at(Timestamp::ZERO, 1, None)
                .expect("a free slot and a permit");
            released += u64::from(pool.release(black_box(id)) == Ok(1));
        }
        released
    });
    vec![Contest {
        row: "lease_pool.cycle",
        threads: 1,
        expected: Expected::Granted,
        ours,
        peers: vec![],
    }]
}
