//! Random traces over counted limiters, tables and compositions. An account of what the callers see
//! must equal the counts after each operation.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::ops::Deref;
use core::time::Duration;

use draws::Draws;
use portcullis_core::counts::{Counts, Tally};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed, TableKey, TokenBucketRules};
use portcullis_core::{
    AllOf, Clocked, Concurrency, Counted, Denied, FixedWindow, Keyed, KeyedArray, Lease, Limiter,
    ManualClock, Penalty, Rate, Timestamp, TokenBucket,
};

const TRACES: u64 = 60;
const STEPS: u64 = 400;

/// What the callers have seen.
#[derive(Debug, Default)]
struct Account(Counts);

impl Account {
    fn granted(&mut self, n: u32) {
        self.0.granted.requests += 1;
        self.0.granted.permits += u64::from(n);
        self.0.held += u64::from(n);
    }

    /// By the words of `NotGranted`, written out once more.
    fn denied(&mut self, denied: Denied) {
        let total = match denied {
            Denied::Exhausted { .. } | Denied::Crowded { .. } => &mut self.0.denied,
            Denied::ExceedsCapacity { .. } | Denied::Penalized { .. } => &mut self.0.refused,
            other => panic!("not in these traces: {other:?}"),
        };
        total.requests += 1;
        total.permits += u64::from(denied.permits());
    }

    fn returned(&mut self, n: u32) {
        self.0.held -= u64::from(n);
    }
}

fn draws(trace: u64) -> Draws<'static> {
    Draws::Seeded {
        state: 0xC0_47ED ^ (trace << 8),
        steps: u32::MAX,
    }
}

/// Does something with one of the leases, and returns how many permits are no longer held.
fn use_lease<P: Deref<Target: Limiter> + Clone>(
    draws: &mut Draws<'_>,
    leases: &mut Vec<Lease<P>>,
    now: Timestamp,
) -> u32 {
    if leases.is_empty() {
        return 0;
    }
    let mut lease = leases.swap_remove(draws.below(leases.len() as u64) as usize);
    let part = draws.below(u64::from(lease.permits()) + 1) as u32;
    match draws.below(6) {
        0 => {
            lease.release(part).unwrap();
            leases.push(lease);
            part
        }
        1 => {
            let _ = lease.refund_at(now, part).unwrap();
            leases.push(lease);
            part
        }
        2 => {
            leases.push(lease.split(part).unwrap());
            leases.push(lease);
            0
        }
        3 if leases.last().is_some() => {
            // Of another key, perhaps: then the lease returns.
            let last = leases.last_mut().expect("present");
            if let Err(lease) = last.merge(lease) {
                leases.push(lease);
            }
            0
        }
        _ => lease.permits(),
    }
}

/// Runs a trace of requests and of uses of leases. `pick` returns the limiter of a request.
fn trace<P: Deref<Target: Limiter> + Clone>(
    draws: &mut Draws<'_>,
    counts: impl Fn() -> Counts,
    mut pick: impl FnMut(&mut Draws<'_>) -> P,
) -> Counts {
    let (mut account, mut leases, mut now) = (Account::default(), Vec::new(), 1_000_000_000);
    for step in 0..STEPS {
        now += [0, 0, 1, 50_000_000, 3_000_000_000][draws.below(5) as usize];
        let at = Timestamp::from_nanos(now);
        if draws.below(3) > 0 {
            let n = draws.below(8) as u32;
            let taken = match draws.below(2) {
                0 => Lease::try_acquire_explained_at(pick(draws), at, n).0,
                _ => Lease::try_acquire_at(pick(draws), at, n),
            };
            match taken {
                Ok(lease) => {
                    account.granted(n);
                    leases.push(lease);
                }
                Err(denied) => account.denied(denied),
            }
        } else {
            let returned = use_lease(draws, &mut leases, at);
            account.returned(returned);
        }
        assert_eq!(counts(), account.0, "after step {step}");
    }
    leases.clear();
    account.0.held = 0;
    assert_eq!(counts(), account.0, "after all leases");
    account.0
}

/// The kinds of outcomes that the traces have seen.
#[derive(Default)]
struct Seen(Counts);

impl Seen {
    fn add(&mut self, counts: Counts) {
        self.0.granted.requests += counts.granted.requests;
        self.0.denied.requests += counts.denied.requests;
        self.0.refused.requests += counts.refused.requests;
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let Counts {
                granted,
                denied,
                refused,
                ..
            } = self.0;
            let least = granted.requests.min(denied.requests).min(refused.requests);
            assert!(least > 50, "the traces show too little: {:?}", self.0);
        }
    }
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Rate::per_second(20), 6)
}

#[test]
fn counts_of_a_limiter_are_what_its_callers_see() {
    let mut seen = Seen::default();
    for at in 0..TRACES {
        let mut draws = draws(at);
        let limit = Counted::new(Concurrency::new(6));
        seen.add(trace(&mut draws, || limit.counts(), |_| &limit));
        let limit = Counted::new(bucket());
        seen.add(trace(&mut draws, || limit.counts(), |_| &limit));
        let limit = Counted::new(FixedWindow::new(6, Duration::from_secs(1)));
        seen.add(trace(&mut draws, || limit.counts(), |_| &limit));
        let limit = Counted::new(Penalty::new(bucket(), Duration::from_secs(1)));
        seen.add(trace(&mut draws, || limit.counts(), |_| &limit));
        let limit = Counted::new(AllOf::new((bucket(), Concurrency::new(5))));
        seen.add(trace(&mut draws, || limit.counts(), |_| &limit));
    }
}

#[test]
fn a_tally_counts_for_all_limiters_that_share_it() {
    let mut seen = Seen::default();
    for at in 0..TRACES {
        let tally = Tally::new();
        let limits = [2, 4, 6].map(|limit| Counted::with_tally(Concurrency::new(limit), &tally));
        seen.add(trace(
            &mut draws(at),
            || tally.counts(),
            |draws| &limits[draws.below(3) as usize],
        ));
    }
}

/// The keys of the traces: more than the small table has slots for.
fn key(draws: &mut Draws<'_>) -> u64 {
    draws.below(60)
}

fn seed(at: u64) -> Seed {
    let seed = Seed::new();
    seed.set([at, 7]).unwrap();
    seed
}

#[test]
fn counts_of_a_table_are_those_of_all_its_keys() {
    let mut seen = Seen::default();
    for at in 0..TRACES {
        let mut draws = draws(at);
        let lines = || [const { Line::new() }; 2];
        let rules = TokenBucketRules::new(Rate::per_second(20), 6);
        let table = Counted::new(Keyed::new(rules, lines(), seed(at)));
        let count = || table.counts();
        seen.add(trace(&mut draws, count, |draws| table.key(&key(draws))));

        let table = Counted::new(Keyed::new(ConcurrencyRules::new(5), lines(), seed(at)));
        let count = || table.counts();
        seen.add(trace(&mut draws, count, |draws| table.key(&key(draws))));

        let limiters: Vec<_> = (0..16).map(|_| Concurrency::new(6)).collect();
        let table = KeyedArray::new(Concurrency::new(6), limiters, lines(), seed(at));
        let table = Counted::new(table);
        let count = || table.counts();
        seen.add(trace(&mut draws, count, |draws| table.key(&key(draws))));
    }
}

#[test]
fn a_clock_and_a_pointer_change_no_count() {
    let tally = Tally::new();
    let table = Keyed::new(
        ConcurrencyRules::new(2),
        [const { Line::new() }; 4],
        seed(0),
    );
    let table = Counted::with_tally(table, &tally);
    let clocked = Clocked::new(&table, ManualClock::new());
    let lease = clocked.owned_key("alice").try_acquire(2);
    assert!(clocked.owned_key("alice").try_acquire(1).is_err());
    assert!(
        TableKey::new(&table, "bob")
            .try_acquire_at(Timestamp::ZERO, 3)
            .is_err()
    );
    let counts = tally.counts();
    assert_eq!((counts.granted.requests, counts.granted.permits), (1, 2));
    assert_eq!((counts.denied.requests, counts.denied.permits), (1, 1));
    assert_eq!((counts.refused.requests, counts.refused.permits), (1, 3));
    assert_eq!(counts.held, 2);
    drop(lease);
    assert_eq!(tally.counts().held, 0);
}

#[test]
fn one_key_can_be_counted_alone() {
    let table = Keyed::new(
        ConcurrencyRules::new(2),
        [const { Line::new() }; 4],
        seed(0),
    );
    let all = Tally::new();
    let table = Counted::with_tally(table, &all);
    let writes = Counted::new(table.key("writes"));
    let leases = [
        writes.try_acquire_at(Timestamp::ZERO, 1),
        writes.try_acquire_at(Timestamp::ZERO, 1),
        writes.try_acquire_at(Timestamp::ZERO, 1),
    ];
    assert!(
        table
            .key("reads")
            .try_acquire_at(Timestamp::ZERO, 1)
            .is_ok()
    );
    let (one, all) = (writes.counts(), all.counts());
    assert_eq!((one.granted.requests, one.denied.requests), (2, 1));
    assert_eq!((all.granted.requests, all.denied.requests), (3, 1));
    drop(leases);
    assert_eq!(writes.counts().held, 0);
}

#[test]
fn each_limit_of_a_composition_counts_the_grants_and_its_own_denials() {
    let mut seen = Seen::default();
    for at in 0..TRACES {
        let mut draws = draws(at);
        let limits = (
            Counted::new(Concurrency::new(6)),
            Counted::new(bucket()),
            Counted::new(Penalty::new(
                TokenBucket::new(Rate::per_second(40), 5),
                Duration::from_millis(200),
            )),
        );
        let all = AllOf::new((&limits.0, &limits.1, &limits.2));
        let mut accounts = [Account::default(), Account::default(), Account::default()];
        let (mut leases, mut now) = (Vec::new(), 1_000_000_000);
        for step in 0..STEPS {
            now += [0, 1, 50_000_000, 400_000_000][draws.below(4) as usize];
            let at = Timestamp::from_nanos(now);
            if draws.below(3) > 0 {
                // A composition looks for a probe, and counts none.
                let n = 1 + draws.below(7) as u32;
                let taken = match draws.below(2) {
                    0 => all.try_acquire_explained_at(at, n).0,
                    _ => all.try_acquire_at(at, n),
                };
                match taken {
                    Ok(lease) => {
                        for account in &mut accounts {
                            account.granted(n);
                        }
                        leases.push(lease);
                    }
                    Err(by) => accounts[by.index].denied(by.denied),
                }
            } else if let Some(lease) = leases.pop() {
                let n = lease.permits();
                for account in &mut accounts {
                    account.returned(n);
                }
            }
            let counts = [limits.0.counts(), limits.1.counts(), limits.2.counts()];
            let expected = accounts.each_ref().map(|account| account.0);
            assert_eq!(counts, expected, "after step {step}");
        }
        for account in accounts {
            seen.add(account.0);
        }
    }
}

#[test]
fn counts_around_a_limiter_and_within_it_are_the_same() {
    let mut draws = draws(9);
    let limit = Counted::new(Counted::new(Concurrency::new(6)));
    trace(&mut draws, || limit.counts(), |_| &limit);
    assert_eq!(limit.counts(), limit.limiter().counts());
}
