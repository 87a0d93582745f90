//! Refunds and charges of a table's buckets after other takes have followed. The bound counts each
//! permit that was taken and not refunded, at the later of its own `now` and the newest one.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::time::Duration;
use std::hash::RandomState;
use std::sync::Barrier;

use draws::Draws;
use portcullis_core::keyed::{Line, RefundTime, Refunds, RefundsBefore, TokenBucketRules};
use portcullis_core::limiter::Receipt;
use portcullis_core::{Denied, Keyed, Limiter, ManualClock, Rate, Retry, Timestamp, TokenBucket};

type Table = Keyed<TokenBucketRules, Box<[Line]>, RandomState>;

const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// Buckets with 1 permit per second.
fn table(burst: u64, debt: u64) -> Table {
    let rules = TokenBucket::builder(Rate::per_second(1), burst)
        .debt(debt)
        .rules()
        .unwrap();
    Keyed::new(rules, Line::for_keys(20), RandomState::new())
}

/// A table, and the refunds of the only key that the test uses.
struct Bucket {
    table: Table,
    refunds: Refunds,
}

/// A grant that can be refunded.
struct Taken {
    permits: u32,
    receipt: Receipt,
    before: RefundsBefore,
}

impl Bucket {
    fn new(burst: u64, debt: u64) -> Self {
        Self {
            table: table(burst, debt),
            refunds: Refunds::new(),
        }
    }

    fn take(&self, now: Timestamp, permits: u32) -> Result<Taken, Denied> {
        let before = self.refunds.before_take();
        let receipt = self.table.key("key").take_at(now, permits)?;
        Ok(Taken {
            permits,
            receipt,
            before,
        })
    }

    fn refund(&self, time: impl RefundTime, n: u32, taken: Taken) -> u32 {
        let address = self.table.key("key").address();
        let Taken {
            receipt, before, ..
        } = taken;
        let refund = self
            .table
            .refund_counted_at(address, time, n, receipt, &self.refunds, before);
        refund.permits
    }

    fn charge(&self, now: Timestamp, n: u32) -> u32 {
        let address = self.table.key("key").address();
        self.table.charge_at(address, now, n, u64::MAX)
    }

    fn available(&self, now: Timestamp) -> u64 {
        self.table.key("key").available_at(now)
    }
}

#[test]
fn grants_are_refunded_in_any_order_if_the_bucket_has_not_been_full_without_them() {
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let bucket = Bucket::new(100, 0);
        bucket.take(at(1), 20).unwrap();
        let mut taken: Vec<_> = (0..3).map(|_| bucket.take(at(1), 20).ok()).collect();
        for (nth, grant) in order.into_iter().enumerate() {
            assert_eq!(bucket.refund(at(2), 8, taken[grant].take().unwrap()), 8);
            assert_eq!(bucket.available(at(2)), 21 + 8 * (nth as u64 + 1));
        }
    }
}

#[test]
fn a_refund_is_worth_what_the_bucket_has_lacked_all_the_time() {
    // 10 of 40 are left. 4 s bring 4, and the staleness of 1 s counts as one more.
    let bucket = Bucket::new(40, 0);
    let (first, second) = (
        bucket.take(at(1), 20).unwrap(),
        bucket.take(at(1), 10).unwrap(),
    );
    bucket.take(at(4), 13).unwrap();
    assert_eq!(bucket.available(at(5)), 1);
    assert_eq!(
        bucket.refund(at(5), 20, first),
        15,
        "of the 20 that the bucket lacked"
    );
    assert_eq!(
        bucket.refund(at(5), 10, second),
        10,
        "of 30, less 5 and the 15"
    );
    assert_eq!(bucket.available(at(5)), 26);

    let bucket = Bucket::new(40, 0);
    let first = bucket.take(at(1), 20).unwrap();
    bucket.take(at(21), 40).unwrap();
    assert_eq!(
        bucket.refund(at(21), 20, first),
        0,
        "the bucket has been full"
    );
    assert_eq!(bucket.available(at(21)), 0);
}

#[test]
fn a_grant_that_nothing_has_followed_is_refunded_as_if_it_had_not_been() {
    let bucket = Bucket::new(10, 0);
    let taken = bucket.take(at(1), 10).unwrap();
    assert_eq!(bucket.refund(at(4), 6, taken), 6);
    assert_eq!(bucket.available(at(4)), 9);
    let taken = bucket.take(at(4), 9).unwrap();
    assert_eq!(bucket.refund(at(40), 9, taken), 9, "it is full anyway");
    assert_eq!(bucket.available(at(40)), 10);
}

#[test]
fn a_refund_for_a_key_that_was_forgotten_is_worth_nothing() {
    let bucket = Bucket::new(4, 0);
    let taken = bucket.take(at(1), 4).unwrap();
    assert_eq!(bucket.table.sweep_at(at(60), ..), 1);
    bucket.take(at(60), 4).unwrap();
    assert_eq!(bucket.refund(at(60), 4, taken), 0);
    assert_eq!(bucket.available(at(60)), 0);
}

#[test]
fn a_charge_owes_what_the_debt_allows_and_is_repaid_before_the_next_grant() {
    let bucket = Bucket::new(10, 5);
    assert_eq!(bucket.charge(at(1), 0), 0);
    assert_eq!(bucket.charge(at(1), 12), 12, "the key had no slot");
    assert_eq!(bucket.charge(at(1), 12), 3);
    assert_eq!(bucket.charge(at(1), 12), 0);
    let key = bucket.table.key("key");
    let denied = key.take_at(at(1), 1).unwrap_err();
    assert_eq!(key.retry(denied), Retry::At(at(7)));
    assert_eq!(bucket.charge(at(3), 12), 2);
    assert_eq!(bucket.available(at(9)), 1);
    assert_eq!(bucket.available(at(90)), 10);
    let without = Bucket::new(10, 0);
    assert_eq!(without.charge(at(1), 12), 10);
    assert_eq!(without.charge(at(0), 12), 0, "a stale time");
}

#[test]
fn a_charge_for_a_key_without_a_slot_is_not_counted() {
    let rules = TokenBucket::builder(Rate::per_second(1), 10)
        .rules()
        .unwrap();
    let table = Keyed::new(rules, vec![Line::new()], RandomState::new());
    let crowd = |nth: u32| table.key(&nth).take_at(at(1), 1);
    assert!((0..1_000).any(|nth| crowd(nth).is_err()));
    let address = table.key("key").address();
    assert_eq!(table.charge_at(address, at(1), 5, u64::MAX), 0);
}

#[test]
fn an_unlimited_bucket_refunds_and_charges_everything() {
    let table = Keyed::for_keys(TokenBucket::new(Rate::UNLIMITED, 1), 10);
    let (key, refunds) = (table.key("key"), Refunds::new());
    let before = refunds.before_take();
    let receipt = key.take_at(at(1), 7).unwrap();
    assert_eq!(table.charge_at(key.address(), at(1), 9, u64::MAX), 9);
    let refund = table.refund_counted_at(key.address(), at(1), 7, receipt, &refunds, before);
    assert_eq!(refund.permits, 7);
}

fn seeded(state: u64) -> Draws<'static> {
    Draws::Seeded {
        state,
        steps: u32::MAX,
    }
}

/// Permits of takes and charges that were not refunded: when, in milliseconds, and how many.
type Log = Vec<(u64, i64)>;

/// Checks every span of a trace.
fn check(log: &Log, burst: u64, trace: u64) {
    for (from, &(start, _)) in log.iter().enumerate() {
        let mut admitted = 0;
        for &(end, permits) in &log[from..] {
            admitted += permits;
            let bound = (burst * 1_000 + end - start).cast_signed();
            assert!(
                admitted * 1_000 <= bound,
                "trace {trace}: {admitted} from {start} to {end} ms of {log:?}"
            );
        }
    }
}

#[test]
fn by_one_clock_a_refund_counts_only_the_time_that_has_passed() {
    let bucket = Bucket::new(40, 0);
    let clock = ManualClock::new();
    let first = bucket.take(at(1), 20).unwrap();
    let second = bucket.take(at(1), 10).unwrap();
    bucket.take(at(4), 13).unwrap();
    clock.set(at(5));
    assert_eq!(
        bucket.refund(&clock, 20, first),
        16,
        "of 20, less the 4 of 4 s"
    );
    assert_eq!(
        bucket.refund(&clock, 10, second),
        10,
        "of 30, less 4 and the 16"
    );
    assert_eq!(bucket.available(at(5)), 27);
}

/// Takes, refunds in any order, and charges, at times that are up to one staleness old. In every
/// other trace, refunds are made at the time of the clock.
#[test]
fn no_refund_and_no_charge_lets_more_pass_than_burst_debt_and_rate() {
    let mut refunded = [0, 0];
    for trace in 0..20_000 {
        let mut draws = seeded(trace);
        let (is_by_clock, manual) = (trace % 2 == 1, ManualClock::new());
        let (burst, debt) = (1 + draws.below(12), draws.below(2) * draws.below(6));
        let bucket = Bucket::new(burst, debt);
        let (mut clock, mut log, mut open) = (100_000, Log::new(), Vec::new());
        // The newest time of a grant.
        let mut newest = 0;
        for _ in 0..40 {
            let past = draws.below(3) * draws.below(501);
            clock += draws.below(4) * draws.below(700);
            manual.set(Timestamp::from_millis(clock));
            let millis = clock - past;
            let now = Timestamp::from_millis(millis);
            match draws.below(8) {
                0..4 => {
                    let n = 1 + draws.below(burst) as u32;
                    if let Ok(taken) = bucket.take(now, n) {
                        newest = newest.max(millis);
                        open.push((log.len(), taken));
                        log.push((newest, i64::from(n)));
                    }
                }
                4..7 if !open.is_empty() => {
                    let (at, taken) = open.swap_remove(draws.below(open.len() as u64) as usize);
                    let n = 1 + draws.below(taken.permits.into()) as u32;
                    let permits = if is_by_clock {
                        bucket.refund(&manual, n, taken)
                    } else {
                        bucket.refund(now, n, taken)
                    };
                    assert!(permits <= n);
                    log[at].1 -= i64::from(permits);
                    refunded[usize::from(permits == n)] += 1;
                }
                _ => {
                    let n = bucket.charge(now, draws.below(burst + 2) as u32);
                    if n > 0 {
                        newest = newest.max(millis);
                        log.push((newest, n.into()));
                    }
                }
            }
        }
        check(&log, burst + debt, trace);
    }
    assert!(refunded.iter().all(|&count| count > 1_000), "{refunded:?}");
}

/// At one instant nothing comes back by time, so every permit is either available or used.
#[test]
fn threads_that_take_and_refund_lose_no_permit_and_gain_none() {
    const THREADS: u64 = 4;
    const BURST: u64 = 100_000;
    let bucket = Bucket::new(BURST, 0);
    let start = Barrier::new(THREADS as usize);
    let used: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (bucket, start) = (&bucket, &start);
                scope.spawn(move || {
                    let (mut draws, mut used) = (seeded(thread), 0);
                    let mut open = Vec::new();
                    start.wait();
                    for _ in 0..5_000 {
                        let n = 1 + draws.below(5) as u32;
                        if draws.below(3) > 0 {
                            let Ok(taken) = bucket.take(at(1), n) else {
                                continue;
                            };
                            used += u64::from(n);
                            open.push(taken);
                        } else if !open.is_empty() {
                            let taken = open.swap_remove(draws.below(open.len() as u64) as usize);
                            let n = n.min(taken.permits);
                            used -= u64::from(bucket.refund(at(1), n, taken));
                        } else {
                            used += u64::from(bucket.charge(at(1), n));
                        }
                    }
                    used
                })
            })
            .collect();
        let used = threads.into_iter().map(|thread| thread.join().unwrap());
        used.sum()
    });
    assert_eq!(bucket.available(at(1)), BURST - used);
    let later = at(1) + Duration::from_secs(used);
    assert_eq!(bucket.available(later), BURST);
}
