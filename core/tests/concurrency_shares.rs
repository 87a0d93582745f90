//! The shares of a concurrency limit count as plain counters do, and lend as a list of the periods
//! of their newest grants says.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::sync::atomic::{AtomicI64, Ordering::SeqCst};
use core::time::Duration;

use draws::Draws;
use portcullis_core::{
    AllOf, ConcurrencyShare, ConcurrencyShares, Denied, Lease, Limiter, Rate, Retry, Setting,
    SettingsError, Timestamp, TokenBucket, Word,
};

const SECOND: u64 = 1_000_000_000;

const fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

/// Shares in plain counters.
#[derive(Debug)]
struct Model<const K: usize> {
    limit: u64,
    guarantees: [u32; K],
    /// The length of a period, if shares lend.
    period: Option<u64>,
    counts: [u64; K],
    /// The period of the newest grant, and that of each share.
    newest: u64,
    granted: [Option<u64>; K],
}

impl<const K: usize> Model<K> {
    fn period_of(&self, now: u64) -> u64 {
        self.period
            .map_or(0, |period| (now / period).max(self.newest))
    }

    fn lends(&self, share: usize, now: u64) -> bool {
        let is_unused = match self.granted[share] {
            Some(granted) => self.period_of(now) >= granted + 2,
            None => true,
        };
        self.period.is_some() && self.counts[share] == 0 && is_unused
    }

    /// Tries one number after the other.
    fn available(&self, share: usize, now: u64) -> u64 {
        let fits = |n: u64| {
            let in_use: u64 = self.counts.iter().sum();
            let own = self.counts[share] + n;
            let needs = (0..K).map(|other| {
                let guarantee = u64::from(self.guarantees[other]);
                match other {
                    _ if other == share => own.max(guarantee),
                    _ if self.lends(other, now) => 0,
                    _ => self.counts[other].max(guarantee),
                }
            });
            in_use + n <= self.limit
                && (own <= self.guarantees[share].into() || needs.sum::<u64>() <= self.limit)
        };
        (1..=self.limit).take_while(|&n| fits(n)).count() as u64
    }

    fn used(&mut self, share: usize, now: u64) {
        self.newest = self.period_of(now);
        self.granted[share] = Some(self.newest);
    }

    fn capacity(&self, share: usize) -> u64 {
        if self.period.is_some() {
            return self.limit;
        }
        let others = (0..K).filter(|&other| other != share);
        self.limit
            - others
                .map(|other| u64::from(self.guarantees[other]))
                .sum::<u64>()
    }
}

#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    denied: u64,
    borrowed: u64,
    lent: u64,
    retried: u64,
}

fn random<const K: usize, W: Word>(draws: &mut Draws<'_>) -> (ConcurrencyShares<K, W>, Model<K>) {
    let most = u64::from(ConcurrencyShares::<K, W>::max_limit()).min(12);
    let limit = draws.within(1, most);
    let mut left = limit;
    let guarantees = [(); K].map(|()| {
        let guarantee = draws.within(0, left);
        left -= guarantee;
        guarantee as u32
    });
    let period = draws
        .once_in(2)
        .then(|| draws.within(SECOND / 10, 3 * SECOND));
    let mut builder = ConcurrencyShares::builder(limit as u32, guarantees);
    if let Some(period) = period {
        builder = builder.lend_after(Duration::from_nanos(period));
    }
    let model = Model {
        limit,
        guarantees,
        period,
        counts: [0; K],
        newest: 0,
        granted: [None; K],
    };
    (builder.build_on().unwrap(), model)
}

/// Random requests, releases and recalls, each compared with the model.
fn agrees<const K: usize, W: Word>(tally: &mut Tally) {
    for seed in 0..400 {
        let draws = &mut Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let (shares, mut model) = random::<K, W>(draws);
        let period = model.period.unwrap_or(SECOND);
        let handles = core::array::from_fn::<_, K, _>(|index| shares.share(index));
        let mut leases: Vec<(usize, Lease<&ConcurrencyShare<'_, K, W>>)> = Vec::new();
        // From the first period on: periods have not wrapped.
        let mut now = draws.below(period);
        for _ in 0..200 {
            now = match draws.below(6) {
                // Less far back than the documented second, and than periods wrap.
                0 => now.saturating_sub(draws.magnitude(SECOND / 2)),
                1 => now + draws.magnitude(15 * period),
                2 => now + draws.magnitude(period),
                _ => now,
            };
            let share = draws.below(K as u64) as usize;
            let (handle, available) = (&handles[share], model.available(share, now));
            assert_eq!(
                handle.available_at(at(now)),
                available,
                "{model:?} {shares:?}"
            );
            assert_eq!(handle.capacity(), model.capacity(share));
            match draws.below(8) {
                0..=3 => {
                    let n = draws.within(0, model.limit + 1) as u32;
                    let lent = (0..K).any(|other| other != share && model.lends(other, now));
                    let before = format!("{shares:?}");
                    match handle.try_acquire_at(at(now), n) {
                        Ok(lease) if n > 0 => {
                            assert!(u64::from(n) <= available);
                            model.counts[share] += u64::from(n);
                            model.used(share, now);
                            leases.push((share, lease));
                            tally.granted += 1;
                            let own = model.counts[share];
                            tally.borrowed += u64::from(own > model.guarantees[share].into());
                            tally.lent += u64::from(lent);
                        }
                        Ok(_) => assert!(available > 0),
                        Err(denied) => {
                            assert!(u64::from(n.max(1)) > available);
                            assert_eq!(format!("{shares:?}"), before, "a denial wrote");
                            let wanted = u64::from(n.max(1));
                            if wanted > model.capacity(share) {
                                assert!(matches!(denied, Denied::ExceedsCapacity { .. }));
                                assert_eq!(denied.retry(handle), Retry::Never);
                            } else {
                                match denied.retry(handle) {
                                    Retry::At(at) => {
                                        let at = at.as_nanos();
                                        assert!(model.available(share, at) >= wanted);
                                        assert!(model.available(share, at - 1) < wanted);
                                        tally.retried += 1;
                                    }
                                    Retry::OnRelease => {
                                        let later = now + 20 * period;
                                        assert!(model.available(share, later) < wanted);
                                    }
                                    other => panic!("{other:?}"),
                                }
                            }
                            tally.denied += 1;
                        }
                    }
                }
                4 => {
                    handle.recall_at(at(now));
                    if model.period.is_some() {
                        model.used(share, now);
                    }
                }
                _ if leases.is_empty() => {}
                5 => {
                    let pick = draws.below(leases.len() as u64) as usize;
                    let (share, lease) = &mut leases[pick];
                    let n = draws.within(0, lease.permits().into()) as u32;
                    lease.release(n).unwrap();
                    model.counts[*share] -= u64::from(n);
                }
                _ => {
                    let pick = draws.below(leases.len() as u64) as usize;
                    let (share, lease) = leases.swap_remove(pick);
                    model.counts[share] -= u64::from(lease.permits());
                }
            }
            assert_eq!(u64::from(shares.in_use()), model.counts.iter().sum::<u64>());
            assert!(u64::from(shares.in_use()) <= model.limit);
            for (handle, &count) in handles.iter().zip(&model.counts) {
                assert_eq!(u64::from(handle.in_use()), count);
            }
        }
        drop(leases);
        assert_eq!(shares.in_use(), 0, "permits were lost");
    }
}

#[test]
fn shares_count_and_lend_as_plain_counters_do() {
    let mut tally = Tally::default();
    agrees::<1, u64>(&mut tally);
    agrees::<2, u64>(&mut tally);
    agrees::<3, u64>(&mut tally);
    agrees::<5, u64>(&mut tally);
    agrees::<2, u32>(&mut tally);
    agrees::<4, u32>(&mut tally);
    println!("{tally:?}");
    assert!(tally.granted > 10_000 && tally.denied > 10_000, "{tally:?}");
    assert!(
        tally.borrowed > 1_000 && tally.lent > 1_000 && tally.retried > 500,
        "{tally:?}"
    );
}

/// Where periods wrap, never more than the limit is in use, and never more is available than
/// without wrapping.
#[test]
fn shares_lend_no_more_where_periods_wrap() {
    fn check<W: Word>() {
        let mut less = 0;
        for seed in 0..2_000 {
            let draws = &mut Draws::Seeded {
                state: seed,
                steps: 0,
            };
            let (shares, mut model) = random::<3, W>(draws);
            let Some(period) = model.period else { continue };
            let handles = core::array::from_fn::<_, 3, _>(|index| shares.share(index));
            let mut leases = Vec::new();
            let mut now = 0;
            for _ in 0..100 {
                now += match draws.below(4) {
                    0 | 1 => draws.magnitude(1_000) * period,
                    _ => draws.magnitude(period),
                };
                let share = draws.below(3) as usize;
                let (told, most) = (
                    handles[share].available_at(at(now)),
                    model.available(share, now),
                );
                assert!(told <= most, "{told} of {most} at {now}, {model:?}");
                less += u64::from(told < most);
                let n = draws.within(1, model.limit) as u32;
                if let Ok(lease) = handles[share].try_acquire_at(at(now), n) {
                    model.counts[share] += u64::from(n);
                    model.used(share, now);
                    leases.push((share, lease));
                }
                if draws.once_in(2) && !leases.is_empty() {
                    let (share, lease) = leases.swap_remove(0);
                    model.counts[share] -= u64::from(lease.permits());
                }
                assert!(u64::from(shares.in_use()) <= model.limit);
            }
        }
        assert!(less > 0, "periods did not wrap");
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_guarantee_is_there_at_once_if_it_is_never_lent() {
    let shares = ConcurrencyShares::new(10, [4, 3, 0]);
    let [one, two, none] = [0, 1, 2].map(|index| shares.share(index));
    // Whoever comes first gets what is not guaranteed, and no more.
    let borrowed = none.try_acquire_at(secs(0), 3).unwrap();
    assert!(none.try_acquire_at(secs(0), 1).is_err());
    let mut first = one.try_acquire_at(secs(0), 4).unwrap();
    let second = two.try_acquire_at(secs(0), 3).unwrap();
    assert_eq!(shares.in_use(), 10);
    // A permit that is returned within a guarantee stays reserved for its share.
    first.release(1).unwrap();
    assert_eq!(
        [one, two, none].map(|share| share.available_at(secs(0))),
        [1, 0, 0]
    );
    // One that was borrowed goes to anyone.
    drop(borrowed);
    assert_eq!(
        [one, two, none].map(|share| share.available_at(secs(0))),
        [4, 3, 3]
    );
    drop((first, second));
}

#[test]
fn a_recalled_guarantee_comes_back_as_borrowed_permits_are_released() {
    let shares = ConcurrencyShares::builder(10, [4, 3])
        .lend_after(Duration::from_secs(5))
        .build()
        .unwrap();
    let (one, other) = (shares.share(0), shares.share(1));
    let mut borrowed = other.try_acquire_at(secs(0), 10).unwrap();
    assert!(one.try_acquire_at(secs(1), 1).is_err());
    borrowed.release(2).unwrap();
    // Not recalled: whoever asks first.
    assert_eq!(
        [one, other].map(|share| share.available_at(secs(1))),
        [2, 2]
    );
    one.recall_at(secs(1));
    assert_eq!(
        [one, other].map(|share| share.available_at(secs(1))),
        [2, 0]
    );
    borrowed.release(2).unwrap();
    assert_eq!(
        [one, other].map(|share| share.available_at(secs(1))),
        [4, 0]
    );
    borrowed.release(1).unwrap();
    assert_eq!(
        [one, other].map(|share| share.available_at(secs(1))),
        [5, 1]
    );
    // Unused again for a whole period.
    assert_eq!(other.available_at(secs(9)), 1);
    assert_eq!(other.available_at(secs(10)), 5);
}

#[test]
fn a_share_can_be_a_part_of_a_composition() {
    let shares = ConcurrencyShares::new(3, [1, 1]);
    let rate = TokenBucket::new(Rate::per_second(1), 1);
    let batch = AllOf::new((shares.share(1), &rate));
    let lease = batch.try_acquire_at(secs(0), 1).unwrap();
    // The rate denies: the permit of the share is back.
    assert!(batch.try_acquire_at(secs(0), 1).is_err());
    assert_eq!(shares.in_use(), 1);
    drop(lease);
    assert_eq!(shares.in_use(), 0);
}

#[test]
fn a_composition_asks_a_share_that_it_names_twice_for_the_sum() {
    let shares = ConcurrencyShares::new(10, [4, 3]);
    let twice = AllOf::new((shares.share(0), shares.share(0)));
    assert_eq!(twice.available_at(secs(0)), 3);
    assert!(twice.peek_at(secs(0), 4).is_err());
    let lease = twice.try_acquire_at(secs(0), 3).unwrap();
    assert_eq!(shares.in_use(), 6);
    let denied = twice.try_acquire_at(secs(0), 1).unwrap_err();
    assert_eq!(twice.retry(denied), Retry::OnRelease);
    drop(lease);
    assert_eq!(shares.in_use(), 0);

    let both = AllOf::new((shares.share(0), shares.share(1)));
    let lease = both.try_acquire_at(secs(0), 3).unwrap();
    assert_eq!([0, 1].map(|index| shares.share(index).in_use()), [3, 3]);
    drop(lease);
}

#[test]
fn settings_that_do_not_fit_are_named() {
    let refused = |limit, guarantees: [u32; 2]| {
        ConcurrencyShares::builder(limit, guarantees)
            .build_on::<u32>()
            .err()
    };
    let setting = Setting::Limit;
    assert_eq!(refused(0, [0, 0]), Some(SettingsError::Zero { setting }));
    assert_eq!(
        refused(2_048, [0, 0]),
        Some(SettingsError::TooLarge {
            setting,
            max: 2_047
        })
    );
    assert_eq!(refused(2_047, [2_047, 0]), None);
    assert_eq!(
        refused(10, [u32::MAX, u32::MAX]),
        Some(SettingsError::TooSmall {
            setting,
            min: 8_589_934_590
        })
    );
    let idle = Duration::from_millis(99);
    let refused = ConcurrencyShares::builder(10, [1]).lend_after(idle).build();
    let setting = Setting::Wait;
    assert_eq!(
        refused.err(),
        Some(SettingsError::TooSmall {
            setting,
            min: 100_000_000
        })
    );
}

#[test]
fn threads_never_exceed_the_limit_and_get_their_guarantees() {
    static SHARES: ConcurrencyShares<3> = ConcurrencyShares::new(7, [3, 2, 0]);
    static IN_USE: AtomicI64 = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for index in 0..3 {
            scope.spawn(move || {
                let share = SHARES.share(index);
                let draws = &mut Draws::Seeded {
                    state: index as u64,
                    steps: 0,
                };
                for _ in 0..50_000 {
                    let n = draws.within(1, 4) as u32;
                    match share.try_acquire_at(secs(0), n) {
                        Ok(lease) => {
                            assert!(IN_USE.fetch_add(n.into(), SeqCst) + i64::from(n) <= 7);
                            IN_USE.fetch_sub(n.into(), SeqCst);
                            drop(lease);
                        }
                        Err(denied) => assert!(n > share.guarantee(), "{denied:?}"),
                    }
                }
            });
        }
    });
    assert_eq!(SHARES.in_use(), 0);
}
