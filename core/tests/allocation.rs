//! No path of the crate allocates. A counting allocator watches every path.

#[path = "support/allocations.rs"]
mod allocations;
#[path = "support/limiters.rs"]
mod limiters;

use core::time::Duration;

use allocations::allocations;
use limiters::{ForEach, Kind, Subject};
use portcullis_core::leases::{ClaimError, StaleId};
use portcullis_core::metadata::{self, REASON_PHRASE, RETRY_AFTER, USED_SHARE};
use portcullis_core::state::{Carry, Word};
use portcullis_core::{
    AdjustableBucket, AllOf, Clocked, Concurrency, Counted, FixedWindow, LeasePool, Limiter,
    LimiterExt, ManualClock, Rate, SlidingWindow, Timestamp, TokenBucket,
};

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// Calls every method of the trait, for grants, probes and each kind of denial.
fn ask_everything(limiter: &dyn Limiter) {
    for millis in [0, 1, 500, 1_000, 1_001, 60_000, 59_000, 3_600_000, u64::MAX] {
        let now = at(millis);
        for n in [0, 1, 2, 3, 3, 3, u32::MAX] {
            match limiter.try_acquire_at(now, n) {
                Ok(lease) => {
                    assert_eq!(lease.permits(), n);
                    let _ = RETRY_AFTER.of_granted(limiter, now);
                    let _ = metadata::names(limiter, now, None).count();
                }
                Err(denied) => {
                    let _ = denied.retry(limiter).wait_from(now);
                    let _ = (denied.reason(), denied.permits());
                    let _ = RETRY_AFTER.of_denied(limiter, now, denied);
                    let _ = REASON_PHRASE.of_denied(limiter, now, denied);
                    let _ = USED_SHARE.of_denied(limiter, now, denied);
                    let _ = metadata::names(limiter, now, Some(denied)).count();
                }
            }
            let _ = (
                limiter.available_at(now),
                limiter.capacity(),
                limiter.idle_at(now),
            );
            let _ = (
                limiter.explain_at(now, n).is_allowed(),
                limiter.peek_at(now, n),
                limiter.id(),
            );
            if let Ok(mut lease) = limiter.try_acquire_between_at(now, 1, n.min(9)) {
                let _ = lease.refund_at(now, 1);
            }
        }
    }
}

/// Calls every method of a limiter.
struct AskEverything;

impl ForEach for AskEverything {
    fn each<L: Subject>(&mut self, _: Kind, new: impl Fn() -> L) {
        ask_everything(&new());
    }
}

/// One limiter of each type, and those with special settings.
fn ask_all<W: Word>() {
    let second = Duration::from_secs(1);
    let rate = Rate::per_second(2);
    limiters::for_each::<W>(3, 3 * second / 2, &mut AskEverything);
    ask_everything(
        &TokenBucket::builder(rate, 3)
            .stepwise()
            .initial(0)
            .build_on::<W>()
            .unwrap(),
    );
    ask_everything(&TokenBucket::builder(Rate::ZERO, 3).build_on::<W>().unwrap());
    ask_everything(
        &TokenBucket::builder(Rate::UNLIMITED, 3)
            .build_on::<W>()
            .unwrap(),
    );
    ask_everything(
        &FixedWindow::builder(3, second)
            .started_by_first_request()
            .build_on::<W>()
            .unwrap(),
    );
    ask_everything(
        &SlidingWindow::<8>::builder(3, second, 7)
            .strict()
            .build_on::<W>()
            .unwrap(),
    );
    let adjustable = || {
        AdjustableBucket::builder(rate, 3)
            .debt(3)
            .build_on::<W>()
            .unwrap()
    };
    ask_everything(&adjustable());
    let adjustable = adjustable();
    adjustable
        .adjust_at(at(1), rate, 4, Carry::Additive)
        .unwrap();
    assert!(adjustable.adjust_at(at(1), rate, 0, Carry::Keep).is_err());
    if let Ok(reserved) = adjustable.reserve_at(at(1), 1, second) {
        let _ = reserved.cancel_at(at(1));
    }
}

#[test]
fn compositions_do_not_allocate() {
    let count = allocations(|| {
        let (bucket, limit) = (
            TokenBucket::new(Rate::per_second(1), 2),
            Concurrency::new(2),
        );
        let limits = AllOf::new((&bucket, &limit, &limit));
        let lease = limits.try_acquire_at(at(0), 1).unwrap();
        let denied = limits.try_acquire_at(at(0), 1).unwrap_err();
        let _ = (
            limits.retry(denied),
            limits.available_at(at(0)),
            limits.peek_at(at(0), 1),
        );
        assert_eq!(
            limits
                .explain_at(at(0), 1)
                .filter(portcullis_core::limiter::Detail::is_allowed)
                .count(),
            1
        );
        drop(lease);
        let many = [const { Concurrency::new(3) }; 20];
        assert_eq!(
            AllOf::new(&many[..])
                .try_acquire_between_at(at(0), 1, 9)
                .unwrap()
                .permits(),
            3
        );
        let _ = limit.drain_at(at(0));
    });
    assert_eq!(count, 0);
}

#[test]
fn the_counter_counts_a_box() {
    assert_eq!(allocations(|| drop(core::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn limiters_do_not_allocate() {
    assert_eq!(allocations(ask_all::<u64>), 0, "64 bits");
    assert_eq!(allocations(ask_all::<u32>), 0, "32 bits");
    let refused = || {
        assert!(
            TokenBucket::builder(Rate::per_second(1), u64::MAX)
                .build()
                .is_err()
        );
    };
    assert_eq!(allocations(refused), 0, "a refusal");
}

#[test]
fn leases_do_not_allocate() {
    let count = allocations(|| {
        let limit = Concurrency::new(9);
        let mut lease = limit.try_acquire(9).unwrap();
        assert!(limit.try_acquire(1).is_err());
        lease.release(2).unwrap();
        assert!(lease.release(8).is_err());
        let split = lease.split(3).unwrap();
        assert!(lease.split(8).is_err());
        lease.merge(split).unwrap();
        let other = Concurrency::new(1);
        assert!(lease.merge(other.try_acquire(1).unwrap()).is_err());
        limit.set_limit(3).unwrap();
        assert!(limit.set_limit(u32::MAX).is_err());
        limit.release(lease.forget());
        assert_eq!(limit.in_use(), 0);
    });
    assert_eq!(count, 0);
}

#[test]
fn lease_pools_do_not_allocate() {
    let count = allocations(|| {
        let pool: LeasePool<Concurrency, 4> = LeasePool::new(Concurrency::new(5));
        let first = pool.claim_at(at(0), 2, Some(at(10))).unwrap();
        assert!(matches!(
            pool.claim_at(at(0), 4, None),
            Err(ClaimError::Denied(_))
        ));
        let _probe = pool.claim_at(at(0), 0, None).unwrap();
        let _rest = [
            pool.claim_at(at(0), 1, None).unwrap(),
            pool.claim_at(at(0), 1, None).unwrap(),
        ];
        assert_eq!(
            pool.claim_at(at(0), 1, None),
            Err(ClaimError::PoolFull { slots: 4 })
        );
        assert_eq!(
            (pool.leases(), pool.sweep(at(9)), pool.sweep(at(10))),
            (4, 0, 2)
        );
        assert_eq!(pool.release(first), Err(StaleId));
    });
    assert_eq!(count, 0);
}

#[test]
fn wrappers_do_not_allocate() {
    let count = allocations(|| {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(Rate::per_second(1), 1);
        let limit = Clocked::new(Counted::new(bucket), &clock);
        assert!(limit.try_acquire(1).is_ok());
        assert!(limit.try_acquire(1).is_err());
        clock.advance(Duration::from_secs(1));
        assert_eq!(limit.available(), 1);
        assert!(limit.idle().is_idle());
        clock.set(at(0));
        ask_everything(limit.limiter());
        assert!(limit.limiter().counts().granted.requests > 0);
        ask_everything(&&Counted::new(Concurrency::new(3)));
    });
    assert_eq!(count, 0);
}
