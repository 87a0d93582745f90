//! An id of a pool names one lease until that lease ends, and nothing afterwards.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashSet;
use std::panic::catch_unwind;

use portcullis_core::leases::{ClaimError, LeaseId, LeaseSlot, StaleId};
use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::{
    Concurrency, Denied, LeasePool, Limiter, Rate, Retry, Timestamp, TokenBucket, Unlimited,
};

const NOW: Timestamp = Timestamp::ZERO;

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

#[test]
fn an_id_releases_the_permits_of_its_lease_once() {
    let pool: LeasePool<_, 4> = LeasePool::new(Concurrency::new(9));
    let (two, three) = (
        pool.claim_at(NOW, 2, None).unwrap(),
        pool.claim_at(NOW, 3, None).unwrap(),
    );
    assert_eq!((pool.leases(), pool.limiter().in_use()), (2, 5));
    assert_eq!(pool.release(two), Ok(2));
    assert_eq!(pool.release(two), Err(StaleId));
    assert_eq!((pool.leases(), pool.limiter().in_use()), (1, 3));
    assert_eq!(pool.release(three), Ok(3));
    assert_eq!((pool.leases(), pool.limiter().in_use()), (0, 0));
}

#[test]
fn an_id_is_stale_after_its_slot_was_reused() {
    let pool: LeasePool<_, 1> = LeasePool::new(Concurrency::new(1));
    let mut old = HashSet::new();
    for _ in 0..1_000 {
        let id = pool.claim_at(NOW, 1, None).unwrap();
        for &stale in &old {
            assert_eq!(pool.release(stale), Err(StaleId));
        }
        assert_eq!(pool.limiter().in_use(), 1);
        assert_eq!(pool.release(id), Ok(1));
        assert!(old.insert(id), "each id is new");
    }
}

#[test]
fn leases_held_at_the_same_time_have_slots_of_their_own_that_index_an_array() {
    let pool: LeasePool<_, 4> = LeasePool::new(Concurrency::new(4));
    let mut holders: [Option<LeaseId>; 4] = [None; 4];
    for round in 0..100 {
        while let Ok(id) = pool.claim_at(NOW, 1, None) {
            assert_eq!(holders[id.slot()].replace(id), None, "round {round}");
            assert_eq!(LeaseId::from_bits(id.to_bits()).slot(), id.slot());
        }
        assert!(holders.iter().all(Option::is_some), "round {round}");
        for slot in [round % 4, (round / 4 + 1) % 4] {
            let released = holders[slot].take().map(|id| pool.release(id));
            assert!(matches!(released, None | Some(Ok(1))), "{released:?}");
        }
    }
}

#[test]
fn a_full_pool_says_so_and_takes_no_permits() {
    let pool: LeasePool<_, 3> = LeasePool::new(Concurrency::new(9));
    let ids: Vec<_> = (0..3)
        .map(|_| pool.claim_at(NOW, 1, None).unwrap())
        .collect();
    assert_eq!(
        pool.claim_at(NOW, 1, None),
        Err(ClaimError::PoolFull { slots: 3 })
    );
    assert_eq!(
        pool.claim_at(NOW, 0, None),
        Err(ClaimError::PoolFull { slots: 3 })
    );
    assert_eq!(pool.limiter().in_use(), 3);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 3);
}

#[test]
fn a_denied_claim_says_why_and_uses_no_slot() {
    let pool: LeasePool<_, 2> = LeasePool::new(Concurrency::new(2));
    let held = pool.claim_at(NOW, 2, None).unwrap();
    for _ in 0..10 {
        let denied = pool.claim_at(NOW, 1, None);
        assert_eq!(
            denied,
            Err(ClaimError::Denied(Denied::Exhausted {
                now: NOW,
                permits: 1
            }))
        );
        let never = pool.claim_at(NOW, 3, None);
        assert_eq!(
            never,
            Err(ClaimError::Denied(Denied::ExceedsCapacity {
                permits: 3,
                capacity: 2
            }))
        );
    }
    assert_eq!(pool.leases(), 1);
    assert_eq!(pool.release(held), Ok(2));
}

/// Wherever it is, and whichever slot was used last.
#[test]
fn a_claim_finds_the_only_free_slot() {
    const N: usize = 7;
    let pool: LeasePool<_, N> = LeasePool::new(Unlimited);
    let mut ids: Vec<_> = (0..N)
        .map(|_| pool.claim_at(NOW, 1, None).unwrap())
        .collect();
    for first in 0..N {
        for second in 0..N {
            // The slot that was freed last is taken at once, so that the pool's hint of a free slot
            // is wrong from here on.
            pool.release(ids[first]).unwrap();
            ids[first] = pool.claim_at(NOW, 1, None).unwrap();
            pool.release(ids[second]).unwrap();
            ids[second] = pool.claim_at(NOW, 1, None).unwrap();
            assert!(pool.claim_at(NOW, 1, None).is_err());
            // Two slots are free, and the one that was freed first is found second.
            pool.release(ids[first]).unwrap();
            let freed = if first == second {
                1
            } else {
                pool.release(ids[second]).map(|_| 2).unwrap()
            };
            assert_eq!(pool.leases(), N - freed);
            ids[second] = pool.claim_at(NOW, 1, None).unwrap();
            if freed == 2 {
                ids[first] = pool.claim_at(NOW, 1, None).unwrap();
            }
        }
    }
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), N);
}

#[test]
fn a_sweep_releases_expired_leases_and_no_others() {
    let pool: LeasePool<_, 8> = LeasePool::new(Concurrency::new(100));
    let early = pool.claim_at(NOW, 1, Some(secs(10))).unwrap();
    let late = pool.claim_at(NOW, 20, Some(secs(20))).unwrap();
    let forever = pool.claim_at(NOW, 30, None).unwrap();
    assert_eq!(pool.sweep(Timestamp::from_nanos(10_000_000_000 - 1)), 0);
    assert_eq!(pool.sweep(secs(10)), 1, "exactly at its deadline");
    assert_eq!(pool.sweep(secs(10)), 0);
    assert_eq!(pool.release(early), Err(StaleId), "its holder is late");
    assert_eq!(pool.limiter().in_use(), 50);
    assert_eq!(pool.release(late), Ok(20), "in time");
    assert_eq!(
        pool.sweep(Timestamp::MAX),
        0,
        "a lease without a deadline stays"
    );
    assert_eq!(pool.release(forever), Ok(30));
}

/// Also beyond 32 bits, the width in which the deadline is stored.
#[test]
fn deadlines_reach_as_far_as_timestamps() {
    let pool: LeasePool<_, 1> = LeasePool::new(Concurrency::new(1));
    for deadline in [
        0,
        1,
        (1 << 32) - 1,
        1 << 32,
        (1 << 32) + 1,
        (1 << 63) + 7,
        u64::MAX,
    ] {
        let id = pool
            .claim_at(NOW, 1, Some(Timestamp::from_nanos(deadline)))
            .unwrap();
        if let Some(before) = deadline.checked_sub(1) {
            assert_eq!(pool.sweep(Timestamp::from_nanos(before)), 0, "{deadline}");
        }
        assert_eq!(pool.sweep(Timestamp::from_nanos(deadline)), 1, "{deadline}");
        assert_eq!(pool.release(id), Err(StaleId));
    }
}

#[test]
fn a_late_holder_does_not_release_the_lease_of_the_next_one() {
    let pool: LeasePool<_, 1> = LeasePool::new(Concurrency::new(1));
    let lost = pool.claim_at(NOW, 1, Some(secs(1))).unwrap();
    assert_eq!(pool.sweep(secs(1)), 1);
    let next = pool.claim_at(secs(1), 1, Some(secs(2))).unwrap();
    assert_eq!(pool.release(lost), Err(StaleId));
    assert_eq!((pool.leases(), pool.limiter().in_use()), (1, 1));
    assert_eq!(pool.release(next), Ok(1));
}

#[test]
fn an_id_of_another_pool_or_a_made_up_id_changes_nothing() {
    let pool: LeasePool<_, 2> = LeasePool::new(Concurrency::new(2));
    let larger: LeasePool<_, 64> = LeasePool::new(Concurrency::new(64));
    let _mine = pool.claim_at(NOW, 1, None).unwrap();
    // Slots beyond the pool, or generations that it has not reached.
    let others: Vec<_> = (0..64)
        .map(|_| larger.claim_at(NOW, 1, None).unwrap())
        .collect();
    for &id in &others[2..] {
        assert_eq!(pool.release(id), Err(StaleId));
    }
    for bits in [
        u64::MAX,
        1 << 63,
        2,
        1,
        1 << 32,
        2 << 32,
        3 << 32,
        4 << 32,
        (4 << 32) | 1,
        0xffff_ffff,
    ] {
        assert_eq!(
            pool.release(LeaseId::from_bits(bits)),
            Err(StaleId),
            "{bits:#x}"
        );
    }
    assert_eq!((pool.leases(), pool.limiter().in_use()), (1, 1));
}

#[test]
fn an_id_survives_conversion_to_a_number_and_back() {
    let pool: LeasePool<_, 4> = LeasePool::new(Unlimited);
    for _ in 0..100 {
        let id = pool.claim_at(NOW, 1, None).unwrap();
        let back = LeaseId::from_bits(id.to_bits());
        assert_eq!(back, id);
        assert_eq!(pool.release(back), Ok(1));
    }
}

#[test]
fn a_probe_holds_a_slot_and_no_permits() {
    let pool: LeasePool<_, 1> = LeasePool::new(Concurrency::new(1));
    let id = pool.claim_at(NOW, 0, Some(secs(1))).unwrap();
    assert_eq!((pool.leases(), pool.limiter().in_use()), (1, 0));
    assert_eq!(
        pool.sweep(secs(1)),
        0,
        "no permits return, but the slot does"
    );
    assert_eq!((pool.leases(), pool.release(id)), (0, Err(StaleId)));
}

#[test]
fn a_pool_over_a_token_bucket_frees_slots_but_no_tokens() {
    let pool: LeasePool<_, 2> = LeasePool::new(TokenBucket::new(Rate::per_second(1), 2));
    let id = pool.claim_at(NOW, 2, None).unwrap();
    assert_eq!(pool.release(id), Ok(2));
    assert!(matches!(
        pool.claim_at(NOW, 1, None),
        Err(ClaimError::Denied(Denied::Exhausted { .. }))
    ));
    assert!(pool.claim_at(secs(1), 1, None).is_ok());
}

#[test]
fn pools_may_share_a_limiter() {
    let limit = Concurrency::new(3);
    let (a, b): (LeasePool<_, 4>, LeasePool<&dyn Limiter, 4>) =
        (LeasePool::new(&limit), LeasePool::new(&limit));
    let held = limit.try_acquire(1).unwrap();
    let (one, two) = (
        a.claim_at(NOW, 1, None).unwrap(),
        b.claim_at(NOW, 1, None).unwrap(),
    );
    assert!(a.claim_at(NOW, 1, None).is_err() && b.claim_at(NOW, 1, None).is_err());
    assert_eq!((a.release(one), b.release(two)), (Ok(1), Ok(1)));
    drop(held);
    assert_eq!(limit.available(), 3);
}

/// A user's limiter that panics on request.
struct Faulty {
    limit: Concurrency,
    panics: AtomicBool,
}

impl Faulty {
    fn new(limit: u32) -> Self {
        Self {
            limit: Concurrency::new(limit),
            panics: AtomicBool::new(false),
        }
    }

    fn check(&self) {
        assert!(!self.panics.load(Ordering::Relaxed), "the limiter fails");
    }
}

impl Limiter for Faulty {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        self.check();
        self.limit.take_at(now, n).into()
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits: n } => {
                self.limit.release(n);
                self.check();
                Returned::NOTHING
            }
            Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            _ => Returned::NOTHING,
        }
    }
    fn read(&self, read: Read<'_>) -> Reading {
        self.limit.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.limit.retry(denied)
    }
}

#[test]
fn a_limiter_that_panics_while_it_takes_leaves_the_pool_usable() {
    let pool: LeasePool<_, 2> = LeasePool::new(Faulty::new(2));
    let held = pool.claim_at(NOW, 1, None).unwrap();
    pool.limiter().panics.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        assert!(catch_unwind(AssertUnwindSafe(|| pool.claim_at(NOW, 1, None))).is_err());
        assert_eq!(pool.leases(), 1);
    }
    pool.limiter().panics.store(false, Ordering::Relaxed);
    let next = pool.claim_at(NOW, 1, None).unwrap();
    assert_eq!((pool.release(held), pool.release(next)), (Ok(1), Ok(1)));
    assert_eq!(pool.limiter().limit.in_use(), 0);
}

#[test]
fn a_limiter_that_panics_while_it_releases_does_not_release_twice() {
    let pool: LeasePool<_, 1> = LeasePool::new(Faulty::new(2));
    let id = pool.claim_at(NOW, 2, None).unwrap();
    pool.limiter().panics.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| pool.release(id))).is_err());
    assert_eq!(pool.release(id), Err(StaleId));
    pool.limiter().panics.store(false, Ordering::Relaxed);
    assert_eq!((pool.limiter().limit.in_use(), pool.leases()), (0, 0));
    assert!(pool.claim_at(NOW, 2, None).is_ok());
}

#[test]
fn an_id_of_another_pool_is_recognized_by_slot_and_generation_only() {
    let (pool, other): (LeasePool<_, 2>, LeasePool<_, 2>) = (
        LeasePool::new(Concurrency::new(9)),
        LeasePool::new(Concurrency::new(9)),
    );
    let foreign = other.claim_at(NOW, 3, None).unwrap();
    assert_eq!(
        pool.release(foreign),
        Err(StaleId),
        "the slot holds no lease"
    );
    // With the same slot and generation it releases this pool's own lease, once, as documented.
    let own = pool.claim_at(NOW, 2, None).unwrap();
    assert_eq!(
        (pool.release(foreign), pool.release(own)),
        (Ok(2), Err(StaleId))
    );
    assert_eq!(
        (pool.limiter().in_use(), other.limiter().in_use()),
        (0, 3),
        "no permit is lost or created"
    );
    // An id of the next generation is recognized.
    let own = pool.claim_at(NOW, 2, None).unwrap();
    assert_eq!(pool.release(foreign), Err(StaleId));
    assert_eq!((pool.release(own), other.release(foreign)), (Ok(2), Ok(3)));
}

#[test]
fn a_pool_has_as_many_slots_as_it_is_given() {
    for slots in [0, 1, 3, 70_000] {
        let memory: Vec<_> = (0..slots).map(|_| LeaseSlot::new()).collect();
        let pool = LeasePool::within(Unlimited, &*memory);
        let most = slots.min(1 << 16);
        assert_eq!(pool.slots(), most);
        let ids: Vec<_> = (0..most)
            .map(|_| pool.claim_at(NOW, 1, None).unwrap())
            .collect();
        let full = ClaimError::PoolFull { slots: most as u32 };
        assert_eq!(pool.claim_at(NOW, 1, None), Err(full));
        assert_eq!(pool.leases(), most);
        let places: HashSet<_> = ids.iter().map(|id| id.slot()).collect();
        assert!(places.len() == most && places.iter().all(|&place| place < most));
        for id in ids {
            assert_eq!(pool.release(id), Ok(1));
        }
    }
}
