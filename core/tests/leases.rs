//! A lease returns exactly the permits that it holds, once, however it ends and whatever pointer it
//! has to its limiter.

use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::Arc;

use portcullis_core::leases::TooFewHeld;
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Returned};
use portcullis_core::queue::Replenishing;
use portcullis_core::{
    AllOf, Clocked, Concurrency, Counted, Denied, FixedWindow, Keyed, KeyedArray, Lease, Limiter,
    LimiterExt, ManualClock, Rate, Retry, Timestamp, TokenBucket, Unlimited,
};

const NOW: Timestamp = Timestamp::ZERO;

#[test]
fn dropping_a_lease_releases_its_permits() {
    let limit = Concurrency::new(5);
    let lease = limit.try_acquire(3).unwrap();
    assert_eq!((lease.permits(), lease.limiter().available()), (3, 2));
    drop(lease);
    assert_eq!(limit.available(), 5);
}

#[test]
fn dropping_a_lease_of_a_limiter_that_refills_by_time_returns_nothing() {
    let bucket = TokenBucket::new(Rate::per_second(1), 5);
    drop(bucket.try_acquire_at(NOW, 3).unwrap());
    assert_eq!(bucket.available_at(NOW), 2);
    let mut lease = bucket.try_acquire_at(NOW, 2).unwrap();
    lease.release(1).unwrap();
    assert_eq!((lease.permits(), bucket.available_at(NOW)), (1, 0));
}

#[test]
fn permits_that_return_by_time_need_no_lease() {
    let both = (
        TokenBucket::new(Rate::per_second(1), 5),
        FixedWindow::new(3, Duration::from_secs(9)),
    );
    let both = AllOf::new(both);
    assert!(both.allow_at(NOW, 2));
    assert!(!both.allow_at(NOW, 2), "the window has one more");
    assert_eq!(both.limits().0.available_at(NOW), 3);
    let of_any_type: &dyn Replenishing = &both;
    assert!(of_any_type.allow_at(NOW, 1) && !of_any_type.allow_at(NOW, 1));

    // Nothing counts as held afterwards.
    let counted = Counted::new(TokenBucket::new(Rate::per_second(1), 5));
    assert!(counted.allow_at(NOW, 4) && !counted.allow_at(NOW, 2));
    let counts = counted.counts();
    assert_eq!(
        (counts.held, counts.granted.permits, counts.denied.requests),
        (0, 4, 1)
    );
}

#[test]
fn a_key_of_a_table_of_rates_needs_no_lease() {
    let bucket = || TokenBucket::new(Rate::per_second(1), 2);
    let table = Counted::new(Keyed::for_keys(bucket(), 10));
    assert!(table.key("alice").allow_at(NOW, 2) && !table.key("alice").allow_at(NOW, 1));
    let counts = table.counts();
    assert_eq!((counts.held, counts.granted.permits), (0, 2));
    let clocked = Clocked::new(table, ManualClock::new());
    assert!(clocked.key("bob").allow(2) && !clocked.key("bob").allow(1));
    assert!(!clocked.key("alice").allow(1));
    clocked.clock().advance(Duration::from_secs(1));
    assert!(clocked.key("alice").allow(1) && !clocked.key("alice").allow(1));

    // Of limiters of any type.
    let array = KeyedArray::for_keys(bucket, 10);
    let array = Clocked::new(Arc::new(array), ManualClock::new());
    assert!(array.owned_key("alice").allow(2) && !array.owned_key("alice").allow(1));
}

#[test]
fn a_partial_release_keeps_the_rest() {
    let limit = Concurrency::new(5);
    let mut lease = limit.try_acquire(5).unwrap();
    assert_eq!(lease.release(2), Ok(()));
    assert_eq!((lease.permits(), limit.available()), (3, 2));
    assert_eq!(lease.release(4), Err(TooFewHeld { held: 3 }));
    assert_eq!(
        (lease.permits(), limit.available()),
        (3, 2),
        "nothing has changed"
    );
    assert_eq!(lease.release(0), Ok(()));
    assert_eq!(lease.release(3), Ok(()));
    assert_eq!((lease.permits(), limit.available()), (0, 5));
    drop(lease);
    assert_eq!(limit.available(), 5);
}

#[test]
fn a_split_moves_permits_and_a_merge_moves_them_back() {
    let limit = Concurrency::new(5);
    let mut lease = limit.try_acquire(5).unwrap();
    let two = lease.split(2).unwrap();
    assert_eq!(
        (lease.permits(), two.permits(), limit.available()),
        (3, 2, 0)
    );
    assert_eq!(lease.split(4).unwrap_err(), TooFewHeld { held: 3 });
    let none = lease.split(0).unwrap();
    assert_eq!((lease.permits(), none.permits()), (3, 0));
    lease.merge(none).unwrap();
    lease.merge(two).unwrap();
    assert_eq!((lease.permits(), limit.available()), (5, 0));
    let all = lease.split(5).unwrap();
    drop(lease);
    assert_eq!(limit.available(), 0, "nothing was left in it");
    drop(all);
    assert_eq!(limit.available(), 5);
}

#[test]
fn leases_of_different_limiters_do_not_merge() {
    let (a, b) = (Concurrency::new(5), Concurrency::new(5));
    let mut lease = a.try_acquire(2).unwrap();
    let other = b.try_acquire(3).unwrap();
    let returned = lease.merge(other).unwrap_err();
    assert_eq!((lease.permits(), returned.permits()), (2, 3));
    drop(returned);
    assert_eq!((a.available(), b.available()), (3, 5));
}

#[test]
fn leases_whose_sum_exceeds_u32_do_not_merge() {
    let mut lease = Unlimited.try_acquire_at(NOW, u32::MAX).unwrap();
    let one = Unlimited.try_acquire_at(NOW, 1).unwrap();
    let returned = lease.merge(one).unwrap_err();
    assert_eq!((lease.permits(), returned.permits()), (u32::MAX, 1));
}

/// Counts each permit of its inner limiter twice. It has the same address as the inner limiter.
#[repr(transparent)]
struct Twofold(Concurrency);

impl Limiter for Twofold {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            back => self.0.give_back(back),
        }
    }
    fn read(&self, read: Read<'_>) -> Reading {
        let now = read.now();
        Reading {
            available: self.0.available_at(now) / 2,
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}

#[test]
fn a_lease_of_a_wrapper_does_not_merge_with_one_of_its_inner_limiter() {
    let twofold = Twofold(Concurrency::new(10));
    let (outer, inner): (&dyn Limiter, &dyn Limiter) = (&twofold, &twofold.0);
    let _held = inner.try_acquire_at(NOW, 7).unwrap();
    let mut two = Lease::try_acquire_at(outer, NOW, 1).unwrap();
    let one = Lease::try_acquire_at(inner, NOW, 1).unwrap();
    assert_eq!(two.merge(one).unwrap_err().permits(), 1);
    drop(two);
    assert_eq!(twofold.0.in_use(), 7);
}

#[test]
fn a_forgotten_lease_leaves_its_permits_to_a_later_release() {
    let limit = Arc::new(Concurrency::new(5));
    let lease = Lease::try_acquire_at(&*limit, NOW, 3).unwrap();
    assert_eq!(lease.forget(), 3);
    assert_eq!(limit.available(), 2);
    limit.release(3);
    assert_eq!(limit.available(), 5);
}

#[test]
fn a_lease_may_own_its_limiter() {
    let limit = Arc::new(Concurrency::new(1));
    let mut lease = Lease::try_acquire_at(Arc::clone(&limit), NOW, 1).unwrap();
    assert!(Lease::try_acquire_at(Arc::clone(&limit), NOW, 1).is_err());
    assert_eq!(Arc::strong_count(&limit), 2, "a denial drops the pointer");

    let empty = lease.split(0).unwrap();
    assert_eq!(Arc::strong_count(&limit), 3);
    lease.merge(empty).unwrap();
    std::thread::spawn(move || drop(lease)).join().unwrap();
    assert_eq!(
        (limit.available(), Arc::strong_count(&limit)),
        (1, 1),
        "no pointer is left behind"
    );

    let forgotten = Lease::try_acquire_at(Arc::clone(&limit), NOW, 1).unwrap();
    assert_eq!(forgotten.forget(), 1);
    limit.release(1);
    assert_eq!(
        (limit.available(), Arc::strong_count(&limit)),
        (1, 1),
        "no pointer is left behind"
    );
}

#[test]
fn a_lease_can_refer_to_a_static() {
    static LIMIT: Concurrency = Concurrency::new(1);
    let lease: Lease<&'static Concurrency> = LIMIT.try_acquire(1).unwrap();
    std::thread::spawn(move || drop(lease)).join().unwrap();
    assert_eq!(LIMIT.available(), 1);
}

#[test]
fn a_lease_can_refer_to_a_limiter_object() {
    let limits: [Box<dyn Limiter>; 2] = [
        Box::new(Concurrency::new(2)),
        Box::new(Counted::new(Concurrency::new(2))),
    ];
    for limit in limits {
        let mut lease: Lease<&dyn Limiter> = limit.as_ref().try_acquire_at(NOW, 2).unwrap();
        let half = lease.split(1).unwrap();
        drop(half);
        assert_eq!((lease.permits(), limit.available_at(NOW)), (1, 1));
        drop(lease);
        assert_eq!(limit.available_at(NOW), 2);
    }
}

#[test]
fn a_probe_holds_nothing() {
    let limit = Counted::new(Concurrency::new(1));
    let probe = limit.try_acquire_at(NOW, 0).unwrap();
    assert_eq!(
        (
            probe.permits(),
            limit.available_at(NOW),
            limit.counts().held
        ),
        (0, 1, 0)
    );
    let held = limit.try_acquire_at(NOW, 1).unwrap();
    drop(probe);
    assert_eq!(limit.available_at(NOW), 0, "the probe returned nothing");
    drop(held);
}

#[test]
fn a_panic_releases_the_held_permits() {
    let limit = Concurrency::new(3);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut lease = limit.try_acquire(3).unwrap();
        let _part = lease.split(1).unwrap();
        assert_eq!(limit.available(), 0);
        panic!("the work fails");
    }));
    assert!(outcome.is_err());
    assert_eq!(limit.available(), 3);
}

#[test]
fn a_denied_request_leaves_nothing_to_release() {
    let (limit, window) = (
        Concurrency::new(3),
        FixedWindow::new(3, core::time::Duration::from_secs(1)),
    );
    let limiters: [&dyn Limiter; 2] = [&limit, &window];
    for limiter in limiters {
        let held = limiter.try_acquire_at(NOW, 2).unwrap();
        assert!(limiter.try_acquire_at(NOW, 2).is_err());
        assert!(limiter.try_acquire_at(NOW, 4).is_err());
        assert_eq!(limiter.available_at(NOW), 1);
        drop(held);
    }
    assert_eq!(limit.available(), 3);
}
