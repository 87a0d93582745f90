//! The permits of a concurrency limit in a plain counter.

use portcullis_core::limiter::Idle;
use portcullis_core::state::Word;
use portcullis_core::{Concurrency, Denied, Lease, Limiter, LimiterExt, Retry, Timestamp};

use super::draws::Draws;
use super::trace::Tally;

/// Takes, releases and resizes at random, and compares every answer with two counters.
pub(crate) fn trace<W: Word>(draws: &mut Draws<'_>, tally: &mut Tally) {
    let max = Concurrency::<W>::max_limit();
    let mut limit = draws.magnitude(max.into()).max(1) as u32;
    let limiter = Concurrency::builder(limit)
        .build_on::<W>()
        .expect("within the bound");
    let mut leases: Vec<Lease<&Concurrency<W>>> = Vec::new();
    let mut in_use = 0u64;
    while draws.another_step() {
        tally.operations += 1;
        let pick = draws.below(leases.len().max(1) as u64) as usize;
        match draws.below(10) {
            0..=3 => {
                let left = u64::from(limit).saturating_sub(in_use);
                let some = draws.magnitude(u64::from(limit) + 2);
                let n = draws.one_of(&[some, some, left, left + 1, 0, u32::MAX.into()]) as u32;
                let before = format!("{limiter:?}");
                let fits = in_use + u64::from(n.max(1)) <= limit.into();
                let taken = if draws.once_in(2) {
                    let (taken, detail) = limiter.try_acquire_explained_at(Timestamp::ZERO, n);
                    let taken_now = taken.as_ref().map_or(0, |_| u64::from(n));
                    let left = left - taken_now;
                    assert_eq!(detail.decision.is_ok(), taken.is_ok());
                    assert_eq!((detail.available, detail.capacity), (left, limit.into()));
                    let full_again = if in_use + taken_now == 0 {
                        Retry::At(Timestamp::ZERO)
                    } else {
                        Retry::OnRelease
                    };
                    assert_eq!(detail.full_again, full_again);
                    taken
                } else {
                    limiter.try_acquire(n)
                };
                match taken {
                    Ok(lease) => {
                        assert!(fits, "granted {n} of {limit} with {in_use} in use");
                        assert_eq!(lease.permits(), n);
                        in_use += u64::from(n);
                        leases.push(lease);
                        tally.granted += 1;
                    }
                    Err(denied) => {
                        assert!(!fits, "denied {n} of {limit} with {in_use} in use");
                        let (expected, retry) = if n.max(1) > limit {
                            (
                                Denied::ExceedsCapacity {
                                    permits: n,
                                    capacity: limit,
                                },
                                Retry::Never,
                            )
                        } else {
                            (
                                Denied::Exhausted {
                                    now: Timestamp::ZERO,
                                    permits: n,
                                },
                                Retry::OnRelease,
                            )
                        };
                        assert_eq!((denied, denied.retry(&limiter)), (expected, retry));
                        assert_eq!(format!("{limiter:?}"), before, "a denial wrote");
                        tally.denied += 1;
                    }
                }
            }
            4 => {
                limit = draws.magnitude(max.into()) as u32;
                assert!(limiter.set_limit(limit).is_ok());
                assert!(limiter.set_limit(max + 1).is_err());
            }
            5..=7 if !leases.is_empty() => in_use -= u64::from(leases.swap_remove(pick).permits()),
            8 if !leases.is_empty() => {
                let lease = &mut leases[pick];
                let n = draws.magnitude(u64::from(lease.permits()) + 1) as u32;
                match lease.release(n) {
                    Ok(()) => in_use -= u64::from(n),
                    Err(error) => assert_eq!(error.held, n - 1),
                }
            }
            9 if !leases.is_empty() => {
                let n = draws.within(0, leases[pick].permits().into()) as u32;
                let split = leases[pick].split(n).expect("no more than it holds");
                assert_eq!(split.permits(), n);
                match draws.below(3) {
                    0 => leases.push(split),
                    1 => assert!(leases[0].merge(split).is_ok()),
                    _ => {
                        let n = split.forget();
                        limiter.release(n);
                        in_use -= u64::from(n);
                    }
                }
            }
            _ => {}
        }
        assert_eq!(
            (u64::from(limiter.in_use()), limiter.limit()),
            (in_use, limit)
        );
        assert_eq!(
            u64::from(limiter.available()),
            u64::from(limit).saturating_sub(in_use)
        );
        assert_eq!(
            limiter.idle_at(Timestamp::MAX),
            if in_use == 0 { Idle::Now } else { Idle::InUse }
        );
        assert_eq!(
            leases
                .iter()
                .map(|lease| u64::from(lease.permits()))
                .sum::<u64>(),
            in_use
        );
        if leases.len() > 64 {
            leases
                .drain(..32)
                .for_each(|lease| in_use -= u64::from(lease.permits()));
        }
    }
    drop(leases);
    assert_eq!(limiter.in_use(), 0, "permits were lost");
}
