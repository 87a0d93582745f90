//! The shares of a concurrency limit count as plain counters do, and lend as a list of the periods
//! of their newest grants says.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::sync::atomic::{AtomicI64, Ordering::SeqCst};
use core::time::Duration;

use draws::Draws;
use portcullis_core::builder::Setting;
use portcullis_core::limiter::Idle;
use portcullis_core::parts::ConcurrencyShare;
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, ConcurrencyShares, Denied, Lease, Limiter, LimiterExt, Rate, Retry, SettingsError,
    Timestamp, TokenBucket,
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
    /// Whether a share ended its lending while its guarantee did not fit. Its newest grant then
    /// counts as made when the newest one of all was.
    returned: [bool; K],
    /// Whether a part of its guarantee may be in the hands of others. Unlike all above, this does
    /// not follow what a limiter does: only the promise of the guarantee depends on it.
    lent: [bool; K],
}

impl<const K: usize> Model<K> {
    fn period_of(&self, now: u64) -> u64 {
        self.period
            .map_or(0, |period| (now / period).max(self.newest))
    }

    fn lends(&self, share: usize, now: u64) -> bool {
        let is_unused = match self.granted[share] {
            Some(_) if self.returned[share] => self.period_of(now) >= self.newest + 2,
            Some(granted) => self.period_of(now) >= granted + 2,
            None => true,
        };
        self.period.is_some() && self.counts[share] == 0 && is_unused
    }

    fn others(share: usize) -> impl Iterator<Item = usize> {
        (0..K).filter(move |&other| other != share)
    }

    fn need(&self, share: usize) -> u64 {
        self.counts[share].max(self.guarantees[share].into())
    }

    fn needs_of_others(&self, share: usize, now: u64) -> u64 {
        let need = |other| match other {
            _ if self.lends(other, now) => 0,
            _ => self.need(other),
        };
        Self::others(share).map(need).sum()
    }

    /// The permits that a share takes only if it is one of those others.
    fn kept_for_others(&self, share: usize, now: u64) -> u64 {
        let kept = |other| match other {
            _ if self.lends(other, now) => 0,
            _ if self.returned[other] => self.counts[other],
            _ => self.need(other),
        };
        Self::others(share).map(kept).sum()
    }

    /// Tries one number after the other.
    fn available(&self, share: usize, now: u64) -> u64 {
        let fits = |n: u64| {
            let own = self.counts[share] + n;
            let others = if own <= self.guarantees[share].into() {
                self.kept_for_others(share, now)
            } else {
                self.needs_of_others(share, now)
            };
            own + others <= self.limit
        };
        (1..=self.limit).take_while(|&n| fits(n)).count() as u64
    }

    /// The least that a share is promised, whatever else has happened.
    fn promised(&self, share: usize, now: u64) -> u64 {
        if self.lent[share] || self.lends(share, now) {
            return 0;
        }
        self.need(share) - self.counts[share]
    }

    /// Notes a grant or a recall. The counts are those after it.
    fn used(&mut self, share: usize, now: u64) {
        let need = self.need(share);
        let all_fit = need + self.needs_of_others(share, now) <= self.limit;
        let own_fits = need + self.kept_for_others(share, now) <= self.limit;
        let lending = core::array::from_fn::<_, K, _>(|other| self.lends(other, now));
        for other in Self::others(share) {
            if self.returned[other] && (all_fit || lending[other]) {
                self.returned[other] = false;
                self.granted[other] = Some(self.newest);
            }
            self.lent[other] |= lending[other];
        }
        self.newest = self.period_of(now);
        self.granted[share] = Some(self.newest);
        self.returned[share] = K > 2 && !own_fits;
        self.settle();
    }

    /// If there is room for all guarantees, none of their permits is in the hands of others.
    fn settle(&mut self) {
        if (0..K).map(|share| self.need(share)).sum::<u64>() <= self.limit {
            self.lent = [false; K];
        }
    }

    fn release(&mut self, share: usize, n: u64) {
        self.counts[share] -= n;
        self.settle();
    }

    fn capacity(&self, share: usize) -> u64 {
        if self.period.is_some() {
            return self.limit;
        }
        let guarantee = |other: usize| u64::from(self.guarantees[other]);
        self.limit - Self::others(share).map(guarantee).sum::<u64>()
    }
}

#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    denied: u64,
    borrowed: u64,
    lent: u64,
    retried: u64,
    returned: u64,
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
        returned: [false; K],
        lent: [false; K],
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
            let promised = model.promised(share, now);
            assert!(promised <= available, "{promised}, {model:?} {shares:?}");
            assert_eq!(handle.capacity(), model.capacity(share));
            let is_idle = model.counts[share] == 0;
            assert_eq!(handle.idle_at(at(now)).is_idle(), is_idle);
            tally.returned += u64::from(model.returned.contains(&true));
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
                    model.release(*share, n.into());
                }
                _ => {
                    let pick = draws.below(leases.len() as u64) as usize;
                    let (share, lease) = leases.swap_remove(pick);
                    model.release(share, lease.permits().into());
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
    assert!(tally.borrowed > 1_000 && tally.lent > 1_000, "{tally:?}");
    assert!(tally.retried > 500 && tally.returned > 1_000, "{tally:?}");
}

/// Where periods wrap, never more than the limit is in use, a share has its guarantee unless it is
/// lent, and never more is available beyond that than without wrapping.
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
                // A share that does not begin to lend does not have to wait when it returns.
                let guarantee = model.need(share) - model.counts[share];
                assert!(
                    told <= most.max(guarantee),
                    "{told} of {most} at {now}, {model:?}"
                );
                assert!(told >= model.promised(share, now), "{told}, {model:?}");
                less += u64::from(told < most);
                let n = draws.within(1, model.limit) as u32;
                if let Ok(lease) = handles[share].try_acquire_at(at(now), n) {
                    model.counts[share] += u64::from(n);
                    model.used(share, now);
                    leases.push((share, lease));
                }
                if draws.once_in(2) && !leases.is_empty() {
                    let (share, lease) = leases.swap_remove(0);
                    model.release(share, lease.permits().into());
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
    // The first request gets what is not guaranteed, and no more.
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
    // Not recalled: the first request gets it.
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

/// A limit of 10 of which three shares are guaranteed 4, 0 and 3. The first has lent 4 of the 7
/// permits that the second has in use.
fn lent_to_the_second() -> ConcurrencyShares<3> {
    let shares = ConcurrencyShares::builder(10, [4, 0, 3])
        .lend_after(Duration::from_secs(5))
        .build()
        .unwrap();
    drop(shares.share(2).try_acquire_at(secs(60), 1).unwrap());
    core::mem::forget(shares.share(1).try_acquire_at(secs(60), 7).unwrap());
    shares
}

#[test]
fn a_share_that_lent_nothing_has_its_guarantee_when_another_returns() {
    let shares = lent_to_the_second();
    let [first, second, third] = [0, 1, 2].map(|index| shares.share(index));
    let available = || [first, second, third].map(|share| share.available_at(secs(60)));
    assert_eq!(available(), [0, 0, 3]);
    assert!(first.try_acquire_at(secs(60), 1).is_err());
    first.recall_at(secs(60));
    assert_eq!(available(), [0, 0, 3]);
    let mut third_lease = third.try_acquire_at(secs(60), 3).unwrap();
    // What is lent returns to the share that has returned, whichever share asks before.
    second.release(1);
    assert_eq!(available(), [1, 0, 0]);
    let first_lease = first.try_acquire_at(secs(60), 1).unwrap();
    third_lease.release(3).unwrap();
    assert_eq!(available(), [0, 0, 3]);
    second.release(3);
    assert_eq!(available(), [3, 0, 3]);
    second.release(1);
    assert_eq!(available(), [4, 1, 4]);
    drop(first_lease);
}

#[test]
fn what_is_released_goes_to_the_first_to_ask_of_two_that_return() {
    let shares = ConcurrencyShares::builder(10, [4, 0, 3])
        .lend_after(Duration::from_secs(5))
        .build()
        .unwrap();
    let [first, second, third] = [0, 1, 2].map(|index| shares.share(index));
    let available = || [first, second, third].map(|share| share.available_at(secs(60)));
    core::mem::forget(second.try_acquire_at(secs(60), 10).unwrap());
    first.recall_at(secs(60));
    third.recall_at(secs(60));
    second.release(4);
    assert_eq!(available(), [4, 0, 3]);
    // Its whole guarantee fits now, and is its own from here on.
    core::mem::forget(third.try_acquire_at(secs(60), 1).unwrap());
    assert_eq!(available(), [1, 0, 2]);
    core::mem::forget(first.try_acquire_at(secs(60), 1).unwrap());
    assert_eq!(available(), [0, 0, 2]);
    second.release(3);
    assert_eq!(available(), [3, 0, 2]);
}

#[test]
fn a_share_that_has_returned_lends_again() {
    // No grant and no recall of any share for a whole period.
    let shares = lent_to_the_second();
    let [first, second, third] = [0, 1, 2].map(|index| shares.share(index));
    first.recall_at(secs(60));
    second.release(2);
    let available = |now| third.available_at(secs(now));
    assert_eq!((available(60), available(69), available(70)), (3, 3, 5));

    // Another share is granted permits in each period: until there is room for all guarantees, the
    // time is counted from its grants on.
    let shares = lent_to_the_second();
    let [first, second, third] = [0, 1, 2].map(|index| shares.share(index));
    first.recall_at(secs(60));
    for now in [65, 70, 75] {
        drop(third.try_acquire_at(secs(now), 1).unwrap());
    }
    second.release(3);
    let available = |now| third.available_at(secs(now));
    assert_eq!((available(75), available(84), available(85)), (3, 3, 6));
    // Once there is room, no later grant delays it.
    second.release(1);
    for now in [75, 80, 84] {
        drop(third.try_acquire_at(secs(now), 1).unwrap());
    }
    assert_eq!((available(84), available(85)), (3, 7));
}

#[test]
fn a_share_is_idle_while_none_of_its_permits_is_in_use() {
    let shares = ConcurrencyShares::new(10, [4, 3]);
    let (one, other) = (shares.share(0), shares.share(1));
    let idle = || [one, other].map(|share| share.idle_at(secs(0)));
    assert_eq!(idle(), [Idle::Now, Idle::Now]);
    let lease = one.try_acquire_at(secs(0), 1).unwrap();
    assert_eq!(idle(), [Idle::InUse, Idle::Now]);
    drop(lease);
    assert_eq!(idle(), [Idle::Now, Idle::Now]);
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
