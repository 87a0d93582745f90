//! The lease pool: a word for each slot, whose exchanges decide which thread owns the slot and
//! which thread ends its lease.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use portcullis_core::leases::{ClaimError, LeaseId, StaleId};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::{Concurrency, Denied, LeasePool, Limiter, Retry};
use portcullis_loom::{Witness, at, explore, join, spawn, turn};

fn pool<const N: usize>(limit: u32) -> Arc<LeasePool<Concurrency, N>> {
    Arc::new(LeasePool::new(Concurrency::new(limit)))
}

/// Checks that no permit is lost or doubled: `leases` leases hold `held` permits.
fn holds<const N: usize>(pool: &LeasePool<Concurrency, N>, leases: usize, held: u32) {
    assert_eq!((pool.leases(), pool.limiter().in_use()), (leases, held));
}

#[test]
fn two_claims_on_the_last_slot_make_one_lease() {
    explore(|| {
        let pool = pool::<1>(5);
        let a = spawn(&pool, |pool| pool.claim_at(at(0), 2, None));
        turn();
        let b = pool.claim_at(at(0), 2, None);
        let outcomes = [join(a), b];
        assert!(
            outcomes.contains(&Err(ClaimError::PoolFull { slots: 1 })),
            "{outcomes:?}"
        );
        holds(&pool, 1, 2);
        let id = outcomes.iter().find_map(|outcome| outcome.ok()).unwrap();
        assert_eq!(pool.release(id), Ok(2));
        holds(&pool, 0, 0);
    });
}

#[test]
fn claims_share_the_limit_and_a_denied_claim_leaves_its_slot_free() {
    explore(|| {
        let pool = pool::<2>(3);
        let a = spawn(&pool, |pool| pool.claim_at(at(0), 2, None));
        turn();
        let b = pool.claim_at(at(0), 2, None);
        let granted = [join(a), b].into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(granted.len(), 1);
        holds(&pool, 1, 2);
        let other = pool.claim_at(at(0), 1, None).unwrap();
        assert_eq!(
            (pool.release(granted[0]), pool.release(other)),
            (Ok(2), Ok(1))
        );
        holds(&pool, 0, 0);
    });
}

#[test]
fn two_releases_of_one_id_return_permits_once() {
    explore(|| {
        let pool = pool::<1>(5);
        let id = pool.claim_at(at(0), 2, None).unwrap();
        let a = spawn(&pool, move |pool| pool.release(id));
        turn();
        let b = pool.release(id);
        let outcomes = [join(a), b];
        assert!(
            outcomes.contains(&Ok(2)) && outcomes.contains(&Err(StaleId)),
            "{outcomes:?}"
        );
        holds(&pool, 0, 0);
    });
}

#[test]
fn a_release_and_a_sweep_return_permits_once() {
    explore(|| {
        let pool = pool::<1>(5);
        let id = pool.claim_at(at(0), 2, Some(at(5))).unwrap();
        let sweep = spawn(&pool, |pool| pool.sweep(at(5)));
        turn();
        let released = pool.release(id);
        match (released, join(sweep)) {
            (Ok(2), 0) | (Err(StaleId), 2) => holds(&pool, 0, 0),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn two_sweeps_return_permits_once() {
    explore(|| {
        let pool = pool::<2>(5);
        pool.claim_at(at(0), 2, Some(at(5))).unwrap();
        pool.claim_at(at(0), 1, Some(at(5))).unwrap();
        let a = spawn(&pool, |pool| pool.sweep(at(5)));
        turn();
        let b = pool.sweep(at(5));
        assert_eq!(join(a) + b, 3);
        holds(&pool, 0, 0);
    });
}

#[test]
fn a_stale_id_never_ends_the_current_lease_of_its_slot() {
    explore(|| {
        let pool = pool::<1>(5);
        let old = pool.claim_at(at(0), 1, None).unwrap();
        let reuse = spawn(&pool, move |pool| {
            assert_eq!(pool.release(old), Ok(1));
            turn();
            pool.claim_at(at(0), 2, None).unwrap()
        });
        // The id is stale once the slot has another lease, or none.
        let again = spawn(&pool, move |pool| {
            let gone = pool.limiter().in_use() != 1;
            turn();
            gone && pool.release(old).is_ok()
        });
        let new = join(reuse);
        assert!(!join(again));
        assert_eq!(pool.release(old), Err(StaleId));
        holds(&pool, 1, 2);
        assert_eq!(pool.release(new), Ok(2));
        holds(&pool, 0, 0);
    });
}

#[test]
fn a_claim_during_a_release_of_the_last_slot_gets_that_slot_or_none() {
    explore(|| {
        let pool = pool::<1>(3);
        let old = pool.claim_at(at(0), 2, None).unwrap();
        let claim = spawn(&pool, |pool| pool.claim_at(at(0), 2, None));
        turn();
        assert_eq!(pool.release(old), Ok(2));
        match join(claim) {
            Ok(new) => {
                assert_ne!(new, old);
                holds(&pool, 1, 2);
                assert_eq!(pool.release(new), Ok(2));
            }
            // Denied before the slot was free, or before the permits were returned.
            Err(ClaimError::PoolFull { .. } | ClaimError::Denied(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
        holds(&pool, 0, 0);
    });
}

#[test]
fn a_new_lease_is_not_swept_by_the_deadline_of_an_old_one() {
    explore(|| {
        let pool = pool::<1>(5);
        let old = pool.claim_at(at(0), 1, Some(at(5))).unwrap();
        let sweep = spawn(&pool, |pool| pool.sweep(at(5)));
        turn();
        let released = pool.release(old);
        turn();
        let new = pool.claim_at(at(0), 2, Some(at(9)));
        let swept = join(sweep);
        match released {
            Ok(1) => assert_eq!(swept, 0),
            Err(StaleId) => assert_eq!(swept, 1),
            Ok(other) => panic!("{other} released"),
        }
        holds(&pool, 1, 2);
        assert_eq!(pool.release(new.unwrap()), Ok(2));
        holds(&pool, 0, 0);
    });
}

#[test]
fn a_new_lease_without_a_deadline_is_not_swept_by_the_deadline_of_an_old_one() {
    explore(|| {
        let pool = pool::<1>(5);
        let old = pool.claim_at(at(0), 1, Some(at(5))).unwrap();
        assert_eq!(pool.release(old), Ok(1));
        let sweep = spawn(&pool, |pool| pool.sweep(at(5)));
        turn();
        let new = pool.claim_at(at(0), 2, None).unwrap();
        assert_eq!(join(sweep), 0);
        assert_eq!(pool.release(new), Ok(2));
        holds(&pool, 0, 0);
    });
}

#[test]
fn a_sweep_sees_the_deadline_and_permits_of_the_lease_it_sees() {
    explore(|| {
        let pool = pool::<1>(5);
        // A deadline and permits that a sweep must not confuse with those of the next lease.
        let old = pool.claim_at(at(0), 1, Some(at(1))).unwrap();
        assert_eq!(pool.release(old), Ok(1));
        let claim = spawn(&pool, |pool| pool.claim_at(at(0), 2, Some(at(5))).unwrap());
        turn();
        assert_eq!(pool.sweep(at(4)), 0, "too early for the new lease");
        turn();
        let swept = pool.sweep(at(5));
        assert!(swept == 0 || swept == 2, "{swept} swept");
        let id = join(claim);
        assert_eq!(pool.release(id).is_ok(), swept == 0);
        holds(&pool, 0, 0);
    });
}

#[test]
fn a_release_returns_the_claimed_permits_even_if_the_id_was_sent_without_ordering() {
    explore(|| {
        // A lease is several words. Its id is sent to the other thread without any memory order.
        let shared = Arc::new((
            LeasePool::<_, 1>::new(Concurrency::new(5)),
            AtomicU64::new(u64::MAX),
        ));
        let claim = spawn(&shared, |(pool, hand)| {
            let id = pool.claim_at(at(0), 2, None).unwrap();
            hand.store(id.to_bits(), Relaxed);
            id
        });
        let (pool, hand) = &*shared;
        // The slot's state may not be visible yet. Then the id is unknown.
        turn();
        let released = pool.release(LeaseId::from_bits(hand.load(Relaxed)));
        assert!(
            released == Ok(2) || released == Err(StaleId),
            "{released:?}"
        );
        let id = join(claim);
        assert_eq!(pool.release(id).is_ok(), released.is_err());
        holds(pool, 0, 0);
    });
}

/// Grants every request except those for two permits, and orders no memory.
struct NotTwo;

impl Limiter for NotTwo {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, permits) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        Answer::from(if permits == 2 {
            Err(Denied::Refused { now, permits })
        } else {
            Ok(Receipt::NONE)
        })
    }

    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: 1,
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::Never
    }
}

/// A pool with one slot, which a lease occupies, and data that only the user of the slot may write.
fn watched() -> (Arc<(LeasePool<NotTwo, 1>, Witness)>, LeaseId) {
    let pool = LeasePool::new(NotTwo);
    let id = pool.claim_at(at(0), 1, Some(at(5))).unwrap();
    (Arc::new((pool, Witness::new())), id)
}

fn writes_if_it_claims((pool, data): &(LeasePool<NotTwo, 1>, Witness)) {
    if pool.claim_at(at(0), 1, None).is_ok() {
        data.write();
    }
}

#[test]
fn the_next_user_of_a_slot_sees_all_writes_of_the_last_one() {
    explore(|| {
        let (watched, id) = watched();
        let next = spawn(&watched, writes_if_it_claims);
        let (pool, data) = &*watched;
        data.write();
        turn();
        assert_eq!(pool.release(id), Ok(1));
        join(next);
    });
}

#[test]
fn the_next_user_of_a_slot_sees_the_last_user_despite_a_denied_claim_between() {
    explore(|| {
        let (watched, id) = watched();
        let next = spawn(&watched, writes_if_it_claims);
        let denied = spawn(&watched, |(pool, _)| pool.claim_at(at(0), 2, None).is_err());
        let (pool, data) = &*watched;
        data.write();
        turn();
        assert_eq!(pool.release(id), Ok(1));
        join(next);
        assert!(join(denied));
    });
}
