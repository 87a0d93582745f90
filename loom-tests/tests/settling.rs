//! Refunds of a table's buckets that other takes have followed, and charges. A refund announces
//! itself before it exchanges the word, so that another refund that finds its word counts it.
#![cfg(portcullis_loom)]

use core::hash::BuildHasherDefault;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
use portcullis_core::keyed::{Line, RefundTime, Refunds, RefundsBefore, TokenBucketRules};
use portcullis_core::limiter::Receipt;
use portcullis_core::{Clock, Keyed, Limiter, Rate, Timestamp, TokenBucket};
use portcullis_loom::{Itself, at, explore, explore_briefly, join, spawn, take, turn};

const A: u64 = 1;

/// A table with one line, and the refunds of its keys.
struct Buckets {
    table: Keyed<TokenBucketRules, Vec<Line>, BuildHasherDefault<Itself>>,
    refunds: Refunds,
}

type Taken = (Receipt, RefundsBefore);

/// A clock that never goes back, whichever thread reads it: a read-modify-write acts on the last
/// value.
struct Seconds(AtomicU64);

impl Clock for Seconds {
    fn now(&self) -> Timestamp {
        at(self.0.fetch_add(0, SeqCst))
    }
}

impl Buckets {
    /// Buckets with 1 permit in 100 seconds, so that the staleness is less than a permit.
    fn new(burst: u64, debt: u64) -> Arc<Self> {
        let rules = TokenBucket::builder(Rate::per_hour(36), burst).debt(debt);
        Arc::new(Self {
            table: Keyed::new(
                rules.rules().unwrap(),
                vec![Line::new()],
                BuildHasherDefault::default(),
            ),
            refunds: Refunds::new(),
        })
    }

    fn hold(&self, now: Timestamp, n: u32) -> Option<Taken> {
        turn();
        let before = self.refunds.before_take();
        let receipt = self.table.key(&A).take_at(now, n).ok()?;
        Some((receipt, before))
    }

    fn take(&self, now: Timestamp, n: u32) -> u64 {
        take(&*self.table.key(&A), now, n)
    }

    fn refund(&self, time: impl RefundTime, n: u32, (receipt, before): Taken) -> u64 {
        turn();
        let address = self.table.key(&A).address();
        let refund = self
            .table
            .refund_counted_at(address, time, n, receipt, &self.refunds, before);
        refund.permits.into()
    }

    fn charge(&self, now: Timestamp, n: u32) -> u64 {
        turn();
        let address = self.table.key(&A).address();
        self.table.charge_at(address, now, n, u64::MAX).into()
    }

    fn available(&self, now: Timestamp) -> u64 {
        self.table.key(&A).available_at(now)
    }
}

/// The first refund fills the bucket 500 s later. A full bucket is then taken, and the second grant
/// is refunded: as the bucket has been full, the refund is worth nothing. (If the first refund
/// comes last, its time is too old for the bound. The model then shows nothing.)
#[test]
fn a_refund_counts_the_refunds_whose_word_it_finds() {
    explore(|| {
        let buckets = Buckets::new(7, 0);
        assert_eq!(buckets.take(at(0), 3), 3);
        let first = buckets.hold(at(0), 2).unwrap();
        let second = buckets.hold(at(0), 2).unwrap();
        let refunded = spawn(&buckets, move |buckets| {
            let refunded = buckets.refund(at(0), 2, first);
            (refunded, buckets.available(at(0)))
        });
        let taken = spawn(&buckets, |buckets| buckets.take(at(500), 7));
        let also = buckets.refund(at(500), 2, second);
        let (refunded, taken) = (join(refunded), join(taken));
        if taken == 7 && refunded == (2, 2) {
            assert_eq!(also, 0, "the bucket was full");
            assert_eq!(buckets.available(at(500)), 0);
        }
    });
}

/// All permits that are held and not refunded are taken, and no others.
#[test]
fn concurrent_refunds_and_takes_lose_no_permit_and_gain_none() {
    explore(|| {
        let buckets = Buckets::new(6, 0);
        assert_eq!(buckets.take(at(0), 2), 2);
        let first = buckets.hold(at(0), 1).unwrap();
        let second = buckets.hold(at(0), 1).unwrap();
        let other = spawn(&buckets, move |buckets| buckets.refund(at(0), 1, first));
        let taker = spawn(&buckets, |buckets| buckets.take(at(0), 2));
        let own = buckets.refund(at(0), 1, second);
        let (other, taken) = (join(other), join(taker));
        assert_eq!((own, other, taken), (1, 1, 2));
        assert_eq!(buckets.available(at(0)), 2);
    });
}

/// A refund that was counted before a take is in the word that the take found.
#[test]
fn a_take_during_a_refund_is_refunded_for_no_more_than_the_bucket_lacked() {
    explore_briefly(2, 3, || {
        let buckets = Buckets::new(5, 0);
        assert_eq!(buckets.take(at(0), 1), 1);
        let first = buckets.hold(at(0), 2).unwrap();
        let refunded = spawn(&buckets, move |buckets| buckets.refund(at(0), 2, first));
        let taker = spawn(&buckets, |buckets| {
            let second = buckets.hold(at(0), 2).unwrap();
            let taken = buckets.take(at(300), 5);
            (taken, buckets.refund(at(300), 2, second))
        });
        let (refunded, (taken, also)) = (join(refunded), join(taker));
        if taken == 5 {
            assert_eq!((refunded, also), (2, 0));
            assert_eq!(buckets.available(at(300)), 0);
        }
    });
}

/// A take fills the bucket and empties it, at a time that the clock of the refund may not have said
/// yet when the refund began.
#[test]
fn a_refund_by_a_clock_knows_the_time_of_every_take_before_it() {
    explore(|| {
        let buckets = Buckets::new(7, 0);
        let clock = Arc::new(Seconds(AtomicU64::new(0)));
        assert_eq!(buckets.take(at(0), 3), 3);
        let held = buckets.hold(at(0), 2).unwrap();
        let clock_of_refund = Arc::clone(&clock);
        let refunded = spawn(&buckets, move |buckets| {
            buckets.refund(&*clock_of_refund, 2, held)
        });
        clock.0.fetch_add(500, SeqCst);
        let taken = buckets.take(clock.now(), 7);
        let refunded = join(refunded);
        assert!(taken < 7 || buckets.available(at(500)) == 0, "{refunded}");
    });
}

#[test]
fn two_first_charges_share_one_slot_and_owe_no_more_than_the_debt() {
    explore_briefly(2, 3, || {
        let buckets = Buckets::new(2, 1);
        let other = spawn(&buckets, |buckets| buckets.charge(at(0), 2));
        let own = buckets.charge(at(0), 2);
        let charged = own + join(other);
        // Of two calls that claim a slot, one may find none.
        assert!((2..=3).contains(&charged), "{charged}");
        assert_eq!(buckets.available(at(100)), u64::from(charged < 3));
    });
}
