//! Refunds and charges of keys with several limits, after other takes have followed.

use core::time::Duration;
use std::sync::Barrier;

use portcullis_core::keyed::{
    ConcurrencyRules, FixedWindowRules, Line, Refunds, RefundsBefore, RuleList, Seed,
    TokenBucketRules,
};
use portcullis_core::limiter::Receipt;
use portcullis_core::{KeyedList, Limiter, Rate, Timestamp, TokenBucket};

const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A bucket with 1 permit per second.
fn bucket(burst: u64, debt: u64) -> TokenBucketRules {
    let bucket = TokenBucket::builder(Rate::per_second(1), burst).debt(debt);
    bucket.rules().unwrap()
}

fn window(limit: u64, seconds: u64) -> FixedWindowRules {
    FixedWindowRules::new(limit, Duration::from_secs(seconds))
}

/// A table, and the refunds of each limit of the only key that a test uses.
struct Limits<L> {
    table: KeyedList<L, Vec<Line>>,
    refunds: [Refunds; 3],
}

/// A grant that can be refunded.
struct Taken {
    receipts: [Receipt; 8],
    before: [RefundsBefore; 3],
}

impl<L: RuleList> Limits<L> {
    fn new(rules: L) -> Self {
        let lines = (0..64).map(|_| Line::new()).collect();
        Self {
            table: KeyedList::new(rules, lines, Seed::new()),
            refunds: [const { Refunds::new() }; 3],
        }
    }

    fn take(&self, now: Timestamp, n: u32) -> Taken {
        let before = self.refunds.each_ref().map(Refunds::before_take);
        let (lease, receipts) = self
            .table
            .key("key")
            .try_acquire_each_noted_at(now, n)
            .expect("the limits have permits");
        lease.forget();
        Taken { receipts, before }
    }

    /// Refunds to the first limits. Returns how many permits each of them refunded.
    fn refund<const N: usize>(&self, now: Timestamp, n: u32, taken: Taken) -> [u32; N] {
        let address = self.table.key("key").address();
        let mut receipts = taken
            .receipts
            .into_iter()
            .zip(taken.before)
            .zip(&self.refunds);
        core::array::from_fn(|limit| {
            let ((receipt, before), refunds) = receipts.next().unwrap();
            self.table
                .refund_counted_at(address, limit, now, n, receipt, refunds, before)
        })
    }

    fn charge<const N: usize>(&self, now: Timestamp, n: u32) -> [u32; N] {
        let charged = self
            .table
            .charge_each_at(self.table.key("key").address(), now, n, &[]);
        core::array::from_fn(|limit| charged[limit])
    }

    fn left(&self, now: Timestamp) -> Vec<u64> {
        let key = self.table.key("key");
        let details = key.explain_each_at(now, 1);
        details.map(|detail| detail.available).collect()
    }
}

#[test]
fn grants_are_refunded_to_each_limit_in_any_order() {
    let limits = Limits::new((bucket(100, 0), window(100, 60), bucket(200, 0)));
    limits.take(at(1), 40);
    let [first, second, third] = [1, 2, 3].map(|now| limits.take(at(now), 10));
    assert_eq!(limits.left(at(3)), [32, 30, 132]);
    assert_eq!(limits.refund(at(4), 7, second), [7; 3]);
    assert_eq!(limits.refund(at(5), 10, first), [10; 3]);
    assert_eq!(limits.refund(at(5), 1, third), [1; 3]);
    assert_eq!(limits.left(at(5)), [52, 48, 152]);
}

#[test]
fn each_limit_refunds_what_it_can() {
    let limits = Limits::new((window(10, 5), bucket(10, 0)));
    let taken = limits.take(at(4), 10);
    limits.take(at(14), 10);
    // The window of the first grant is over. The bucket was full.
    assert_eq!(limits.refund(at(15), 5, taken), [0, 0]);
    assert_eq!(limits.left(at(15)), [10, 1]);
}

#[test]
fn a_refund_for_a_key_that_was_forgotten_is_worth_nothing() {
    let limits = Limits::new([bucket(5, 0); 2]);
    let taken = limits.take(at(1), 3);
    assert_eq!(limits.table.sweep_at(at(60), ..), 1);
    assert_eq!(limits.refund(at(1), 3, taken), [0; 2]);
    assert_eq!(limits.left(at(60)), [5; 2]);
}

#[test]
fn permits_at_once_are_neither_refunded_nor_charged() {
    let limits = Limits::new((ConcurrencyRules::new(5), bucket(10, 4)));
    let taken = limits.take(at(1), 3);
    assert_eq!(limits.refund(at(1), 2, taken), [0, 2]);
    assert_eq!(limits.left(at(1)), [2, 9]);
    assert_eq!(limits.charge(at(1), 20), [20, 13]);
    limits.table.key("key").release(3);
    assert_eq!(limits.left(at(1)), [5, 0]);
}

#[test]
fn a_charge_takes_from_each_limit_what_it_has_and_owes_what_the_debt_allows() {
    let limits = Limits::new((bucket(10, 5), window(20, 60), bucket(30, 0)));
    assert_eq!(limits.charge(at(1), 0), [0; 3]);
    assert_eq!(limits.table.statistics_at(at(1)).held, 0);
    // The key has no entry yet.
    assert_eq!(limits.charge(at(1), 12), [12; 3]);
    assert_eq!(limits.left(at(1)), [0, 8, 18]);
    assert_eq!(limits.charge(at(1), 12), [3, 8, 12]);
    assert_eq!(limits.charge(at(1), 12), [0, 0, 6]);
    assert_eq!(limits.left(at(7)), [1, 0, 6]);
}

#[test]
fn limits_without_a_limit_are_charged_in_full_and_take_no_entry() {
    let unlimited = TokenBucketRules::new(Rate::UNLIMITED, 9);
    let limits = Limits::new([unlimited; 2]);
    for n in [1, 7] {
        assert_eq!(limits.charge(at(1), n), [n, n, 0, 0, 0, 0, 0, 0]);
    }
    assert_eq!(limits.table.statistics_at(at(1)).held, 0);

    let limits = Limits::new((unlimited, bucket(5, 0)));
    assert_eq!(limits.charge(at(1), 7), [7, 5, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_charge_for_a_key_without_an_entry_is_not_counted() {
    let table = KeyedList::new(
        [bucket(9, 0); 2],
        vec![Line::new(), Line::new()],
        Seed::new(),
    );
    for key in 0..200 {
        let _ = table.key(&key).take_at(at(1), 9);
    }
    let address = table.key("key").address();
    assert_eq!(table.charge_each_at(address, at(1), 3, &[]), [0; 8]);
}

#[test]
fn details_are_those_of_the_decision_for_each_limit() {
    let limits = Limits::new((bucket(5, 0), window(3, 60)));
    let key = || limits.table.key("key");
    let (lease, details) = key().try_acquire_each_detailed_at(at(1), 2);
    assert!(lease.is_ok() && details[2].is_none());
    assert!(
        details
            .iter()
            .flatten()
            .map(|detail| detail.available)
            .eq([3, 1])
    );
    let (lease, details) = key().try_acquire_each_detailed_at(at(1), 2);
    assert_eq!(lease.unwrap_err().index, 1);
    let decided = details
        .iter()
        .flatten()
        .map(portcullis_core::limiter::Detail::is_allowed);
    assert!(decided.eq([true, false]));
    assert!(key().explain_limit_at(1, at(1), 1).unwrap().is_allowed());
    assert_eq!(key().explain_limit_at(2, at(1), 1), None);
}

/// At one instant nothing returns by time, so what is left is what no one has used.
#[test]
fn threads_that_take_refund_and_charge_lose_no_permit_and_gain_none() {
    const THREADS: u32 = 4;
    const EACH: u32 = 5_000;
    let most = 100 * u64::from(THREADS * EACH);
    let day = TokenBucketRules::new(Rate::per_day(1), most);
    let limits = Limits::new((window(most, 86_400), day, ConcurrencyRules::new(1 << 20)));
    let start = Barrier::new(THREADS as usize);
    // The key has its slot from here on. A take is denied while another thread claims the slot and
    // is stopped amid that.
    let _first = limits.take(at(1), 10);
    let (used, kept): (u64, u64) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (limits, start) = (&limits, &start);
                scope.spawn(move || {
                    let (mut used, mut kept, mut open) = (0, 0, Vec::new());
                    start.wait();
                    for step in 0..EACH {
                        open.push(limits.take(at(1), 10));
                        used += 10;
                        if step % 3 > 0 {
                            let taken = open.swap_remove((step as usize * 7) % open.len());
                            let n = (step + thread) % 10 + 1;
                            let [window, bucket] = limits.refund(at(1), n, taken);
                            assert_eq!(window, n);
                            used -= u64::from(n);
                            kept += u64::from(n - bucket);
                            limits.table.key("key").release(10);
                        } else {
                            assert_eq!(limits.charge(at(1), 5), [5; 3]);
                            used += 5;
                        }
                    }
                    (used, kept)
                })
            })
            .collect();
        let all = threads.into_iter().map(|thread| thread.join().unwrap());
        all.fold((10, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    });
    let left = limits.left(at(1));
    assert_eq!(left[0], most - used);
    assert_eq!(left[1], most - used - kept);
}
