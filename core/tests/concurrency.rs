//! A concurrency limit counts as two counters do, also while its limit changes and slices have a
//! share of it.

mod support;

use std::collections::BTreeMap;
use std::rc::Rc;

use portcullis_core::parts::Slice;
use portcullis_core::state::Word;
use portcullis_core::{Concurrency, Denied, Lease, Limiter, Retry, Timestamp};

use support::draws::Draws;
use support::oracle::agrees;

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// Runs `$check` on both words.
macro_rules! on_both {
    ($check:ident) => {
        $check::<u64>();
        $check::<u32>();
    };
}

#[test]
fn concurrency_counts_as_two_counters_do() {
    agrees("concurrency, 64 bits");
    agrees("concurrency, 32 bits");
}

#[test]
fn a_lowered_limit_grants_only_below_itself() {
    let limit = Concurrency::new(10);
    let mut leases: Vec<_> = (0..10).map(|_| limit.try_acquire(1).unwrap()).collect();
    assert_eq!(limit.set_limit(4), Ok(10));
    while leases.len() > 4 {
        assert!(limit.try_acquire(1).is_err());
        leases.pop();
    }
    assert!(limit.try_acquire(1).is_err());
    leases.pop();
    leases.push(limit.try_acquire(1).unwrap());
    assert_eq!((limit.in_use(), limit.available()), (4, 0));
    assert_eq!(limit.set_limit(6), Ok(4));
    assert_eq!(limit.available(), 2);
}

#[test]
fn permits_are_added_and_removed_beside_those_in_use() {
    let limit = Concurrency::new(5);
    let lease = limit.try_acquire(4).unwrap();
    assert_eq!(limit.add_permits(3), Ok(8));
    assert_eq!((limit.limit(), limit.available()), (8, 4));
    assert_eq!(limit.remove_permits(6), 6);
    assert_eq!(
        (limit.limit(), limit.available(), limit.in_use()),
        (2, 0, 4)
    );
    drop(lease);
    assert_eq!(limit.available(), 2);
    assert_eq!((limit.remove_permits(9), limit.limit()), (2, 0));
    assert_eq!((limit.remove_permits(1), limit.add_permits(0)), (0, Ok(0)));
}

#[test]
fn no_more_permits_are_added_than_the_word_holds() {
    let limit = Concurrency::builder(16_000).build_on::<u32>().unwrap();
    let too_large = limit.add_permits(384).unwrap_err();
    assert_eq!(too_large.to_string(), "limit must be at most 16383");
    assert_eq!(limit.add_permits(383), Ok(16_383));
    assert!(limit.add_permits(u32::MAX).is_err());
    assert_eq!(limit.limit(), 16_383);
}

/// With a limit of 0, which may be raised again, a probe gets the same answer as a request for 1.
#[test]
fn with_a_limit_of_zero_a_probe_is_answered_like_a_request() {
    let limit = Concurrency::new(1);
    limit.set_limit(0).unwrap();
    let (probe, one) = (
        limit.try_acquire(0).unwrap_err(),
        limit.try_acquire(1).unwrap_err(),
    );
    assert_eq!(
        one,
        Denied::ExceedsCapacity {
            permits: 1,
            capacity: 0
        }
    );
    assert_eq!(
        probe,
        Denied::ExceedsCapacity {
            permits: 0,
            capacity: 0
        }
    );
    assert_eq!(probe.retry(&limit), one.retry(&limit));
}

// Slices.

#[test]
fn the_permits_of_a_concurrency_limit_are_conserved_with_slices() {
    fn check<W: Word>() {
        for seed in 0..400 {
            let mut draws = Draws::Seeded {
                state: seed,
                steps: 0,
            };
            let limit = Concurrency::builder(draws.within(2, 12) as u32)
                .build_on::<W>()
                .unwrap();
            let limit = Rc::new(limit);
            let mut slices: Vec<Rc<Slice<Rc<Concurrency<W>>>>> = Vec::new();
            let (mut leases, mut direct) = (Vec::new(), Vec::new());
            for _ in 0..200 {
                match draws.below(7) {
                    0 if slices.len() < 3 => {
                        let k = draws.within(0, 7) as u32;
                        let (had, cut) = (
                            limit.available(),
                            Slice::cut_at(Rc::clone(&limit), at(0), k),
                        );
                        assert_eq!(cut.is_ok(), k == 0 || had > k);
                        slices.extend(cut.map(Rc::new));
                    }
                    // Its leases keep the slice alive.
                    1 if !slices.is_empty() => {
                        drop(slices.swap_remove(draws.below(slices.len() as u64) as usize));
                    }
                    2 => direct.extend(Lease::try_acquire_at(
                        Rc::clone(&limit),
                        at(0),
                        draws.within(1, 4) as u32,
                    )),
                    3 if !direct.is_empty() => {
                        drop(direct.swap_remove(draws.below(direct.len() as u64) as usize));
                    }
                    4 if !leases.is_empty() => {
                        let index = draws.below(leases.len() as u64) as usize;
                        let lease: &mut Lease<Rc<Slice<Rc<Concurrency<W>>>>> = &mut leases[index];
                        let n = draws.within(0, lease.permits().into()) as u32;
                        if draws.once_in(2) {
                            assert_eq!(lease.refund_at(at(0), n), Ok(n));
                        } else {
                            lease.release(n).unwrap();
                        }
                        if draws.once_in(2) {
                            drop(leases.swap_remove(index));
                        }
                    }
                    _ if !slices.is_empty() => {
                        let slice = &slices[draws.below(slices.len() as u64) as usize];
                        let (had, n) = (slice.available_at(at(0)), draws.within(1, 9));
                        assert_eq!(slice.peek_at(at(0), n as u32).is_ok(), n <= had);
                        let lease = Lease::try_acquire_at(Rc::clone(slice), at(0), n as u32);
                        assert_eq!(lease.is_ok(), n <= had);
                        leases.extend(lease);
                    }
                    _ => {}
                }
                let out: u32 = leases.iter().map(Lease::permits).sum::<u32>()
                    + direct.iter().map(Lease::permits).sum::<u32>();
                // Slices that only leases keep alive are counted through these leases.
                let mut held = BTreeMap::new();
                for slice in slices
                    .iter()
                    .map(|slice| &**slice)
                    .chain(leases.iter().map(Lease::limiter))
                {
                    held.insert(core::ptr::from_ref(slice), slice.held());
                    assert!(slice.held() <= slice.size());
                }
                assert_eq!(limit.in_use(), out + held.values().sum::<u32>());
                assert!(limit.in_use() <= limit.limit());
            }
            leases.clear();
            assert_eq!(
                slices.iter().map(|slice| slice.size()).sum::<u32>()
                    + direct.iter().map(Lease::permits).sum::<u32>(),
                limit.in_use()
            );
            slices.clear();
            direct.clear();
            assert_eq!(limit.in_use(), 0);
        }
    }
    on_both!(check);
}

#[test]
fn a_slice_leaves_the_last_permit_to_all() {
    let limit = Concurrency::new(5);
    assert_eq!(
        limit.slice(5).unwrap_err(),
        Denied::ExceedsCapacity {
            permits: 5,
            capacity: 4
        }
    );
    assert_eq!(
        limit.slice(u32::MAX).unwrap_err(),
        Denied::ExceedsCapacity {
            permits: u32::MAX,
            capacity: 4
        }
    );
    let slice = limit.slice(3).unwrap();
    let denied = limit.slice(2).unwrap_err();
    assert_eq!(
        (denied, denied.retry(&limit)),
        (
            Denied::Exhausted {
                now: Timestamp::ZERO,
                permits: 2
            },
            Retry::OnRelease
        )
    );
    let other = limit.slice(1).unwrap();
    assert_eq!((limit.available(), slice.held(), other.held()), (1, 3, 1));
}

#[test]
fn what_a_slice_holds_beyond_its_size_returns_to_the_limit() {
    fn check<W: Word>() {
        let limit = Concurrency::builder(10).build_on::<W>().unwrap();
        let slice = limit.slice(4).unwrap();
        let one = slice.try_acquire(3).unwrap();
        let other = slice.try_acquire(5).unwrap();
        assert_eq!((slice.held(), limit.available()), (0, 2));
        let denied = slice.try_acquire(3).unwrap_err();
        assert_eq!(
            (denied, denied.retry(&slice)),
            (
                Denied::Exhausted {
                    now: at(0),
                    permits: 3
                },
                Retry::OnRelease
            )
        );
        assert!(matches!(
            slice.try_acquire(11),
            Err(Denied::ExceedsCapacity {
                permits: 11,
                capacity: 10
            })
        ));
        drop(other);
        assert_eq!((slice.held(), limit.available()), (4, 3));
        drop(one);
        assert_eq!((slice.held(), limit.available()), (4, 6));
    }
    on_both!(check);
}

#[test]
fn a_limit_lowered_beside_a_slice_grants_nothing_until_enough_is_released() {
    let limit = Concurrency::new(10);
    let slice = limit.slice(6).unwrap();
    limit.set_limit(4).unwrap();
    let lease = slice.try_acquire(6).unwrap();
    assert!(slice.try_acquire(1).is_err() && limit.try_acquire(1).is_err());
    drop(lease);
    drop(slice);
    assert_eq!((limit.in_use(), limit.available()), (0, 4));
}
