//! Calls of keys with several limits, pre-empted at every atomic access by other calls: a call that
//! claims the entry of a key, and one that settles a line after a long idle time.
#![cfg(portcullis_explore)]

use core::cell::{Cell, RefCell};
use core::time::Duration;

use portcullis_core::builder::TokenBucketBuilder;
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed, TokenBucketRules};
use portcullis_core::{Keyed, KeyedList, Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
use portcullis_explore::{Plan, run};

const SECOND: Duration = Duration::from_secs(1);

/// Pre-empts a claim of an entry at each access. The bucket of the entry is full from `full` on,
/// after a take at `begun`. The claim comes `late` after the staleness. Returns how often it
/// succeeds.
fn explore(bucket: TokenBucketBuilder, begun: Timestamp, full: Timestamp, late: Duration) -> u64 {
    let rules = bucket.rules().unwrap();
    let burst = u32::try_from(rules.burst()).unwrap();
    let (mut claims, mut first) = (0, 0);
    loop {
        let lines: Vec<Line> = (0..2).map(|_| Line::new()).collect();
        let table = KeyedList::new((rules, ConcurrencyRules::new(1)), lines, Seed::new());
        let alice = table.key("alice");
        assert!(alice.take_at(begun, 1).is_ok());
        alice.release(1);
        // The entries of other keys are in use.
        let (stale, now) = (full + late, full + late + table.staleness());
        for other in 0..6 {
            let key = table.key(&other);
            let since = now - SECOND / 2;
            assert!((0..burst).all(|_| key.take_at(since, 1).map(|_| key.release(1)).is_ok()));
        }
        let (is_out, is_claimed) = (Cell::new(false), Cell::new(false));
        let claim = || is_claimed.set(table.key("bob").take_at(now, 1).is_ok());
        let plan = Plan {
            at: [first, u64::MAX],
            failing: 0,
        };
        let accesses = run(plan, claim, &|other| {
            // The request has failed, so the rate is refunded. It is still in progress.
            if other == 0
                && let Ok((lease, [rate, ..])) = alice.try_acquire_each_noted_at(stale, 1)
            {
                is_out.set(lease.forget() == 1);
                let address = alice.address();
                assert_eq!(table.refund_limit_at(address, 0, stale, 1, rate), 1);
            }
        });
        claims += u64::from(is_claimed.get());
        let is_forgotten = is_out.get() && alice.idle_at(now).is_idle();
        assert!(!is_forgotten, "pre-empted at {first}");
        if first > accesses {
            return claims;
        }
        first += 1;
    }
}

#[test]
fn a_key_whose_rate_is_refunded_keeps_its_entry_while_a_permit_is_in_use() {
    let at = Timestamp::from_secs;
    let once = TokenBucket::builder(Rate::ZERO, 1);
    assert_eq!(explore(once, at(1), at(1), Duration::ZERO), 0);
    let tick = Duration::from_micros(1);
    let fine = TokenBucket::builder(Rate::per_second(1), 1).tick(tick);
    // As long as the staleness, and longer.
    let [second, minute] = [1, 60].map(|seconds| {
        let rate = Rate::new(1, seconds * SECOND);
        TokenBucket::builder(rate, 5).stepwise()
    });
    for (bucket, begun, full, tick) in [
        (fine, at(1), at(2), tick),
        (second, at(1), at(2), SECOND),
        (minute, at(59), at(60), 60 * SECOND),
    ] {
        // Not yet free, and free.
        assert_eq!(explore(bucket, begun, full, Duration::ZERO), 0);
        assert!(explore(bucket, begun, full, tick) > 0);
    }
}

/// The limits of a key that rests: a bucket whose word repeats after 2.4 hours, one that is full
/// again only after days, and permits at once.
type Rested = (TokenBucketRules, TokenBucketRules, ConcurrencyRules);
type RestedTable = KeyedList<Rested, Vec<Line>, Seed>;

const BURST: u32 = 2;
const AT_ONCE: u32 = 3;

fn short() -> TokenBucketRules {
    let nanosecond = Duration::from_nanos(1);
    let short = TokenBucket::builder(Rate::per_second(1), BURST.into());
    let short = short.tick(nanosecond).staleness(SECOND);
    short.rules().unwrap()
}

fn rested() -> RestedTable {
    let long = TokenBucket::builder(Rate::per_day(1), 9);
    let rules = (
        short(),
        long.rules().unwrap(),
        ConcurrencyRules::new(AT_ONCE),
    );
    let lines = (0..4).map(|_| Line::new()).collect();
    KeyedList::new(rules, lines, Seed::new())
}

/// Calls that pre-empt each other, after a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    All,
    OneLate,
    Refunded,
    Neighbor,
    Stranger,
    Sweep,
    Release,
    Copy,
}

const CALLS: [Call; 8] = [
    Call::All,
    Call::OneLate,
    Call::Refunded,
    Call::Neighbor,
    Call::Stranger,
    Call::Sweep,
    Call::Release,
    Call::Copy,
];

/// A run of three calls, of which the others pre-empt the first.
struct Trial {
    table: RestedTable,
    /// The first limit alone.
    one: Keyed<TokenBucketRules, Vec<Line>, Seed>,
    now: Timestamp,
    /// The permits that alice was granted after the rest by each table, less those that were
    /// refunded.
    granted: [Cell<u32>; 2],
    released: Cell<bool>,
    /// What the two buckets of each copy had.
    copies: RefCell<Vec<[u64; 2]>>,
}

impl Trial {
    /// Alice has one permit at once in use, and rests for `rest`.
    fn new(rest: Duration) -> Self {
        let (table, start) = (rested(), Timestamp::from_secs(100));
        assert!(table.key("bob").take_at(start, 1).is_ok());
        let alice = table.key("alice");
        assert!((0..BURST).all(|_| alice.take_at(start, 1).is_ok()));
        alice.release(BURST - 1);
        let one = Keyed::new(short(), vec![Line::new()], Seed::new());
        assert!(one.key("bob").take_at(start, 1).is_ok());
        assert!(one.key("alice").take_at(start, BURST).is_ok());
        Self {
            table,
            one,
            now: start + rest,
            granted: [Cell::new(0), Cell::new(0)],
            released: Cell::new(false),
            copies: RefCell::default(),
        }
    }

    fn take(&self, at: Timestamp, n: u32) {
        let alice = self.table.key("alice");
        let [granted, granted_by_one] = &self.granted;
        if alice.take_at(at, n).is_ok() {
            alice.release(n);
            granted.set(granted.get() + n);
        }
        if self.one.key("alice").take_at(at, n).is_ok() {
            granted_by_one.set(granted_by_one.get() + n);
        }
    }

    /// Another key takes a permit.
    fn take_by(&self, other: &str) {
        let key = self.table.key(other);
        if key.take_at(self.now, 1).is_ok() {
            key.release(1);
        }
        let _ = self.one.key(other).take_at(self.now, 1);
    }

    fn call(&self, call: Call) {
        let (table, now, alice) = (&self.table, self.now, self.table.key("alice"));
        match call {
            Call::All => self.take(now, BURST),
            Call::OneLate => self.take(now.saturating_sub(SECOND / 2), 1),
            Call::Refunded => {
                let one = self.one.key("alice");
                let [granted, granted_by_one] = &self.granted;
                if let Ok(receipt) = alice.take_at(now, 1) {
                    let refund = alice.refund_at(now, 1, receipt);
                    granted.set(granted.get() + 1 - refund.permits);
                }
                if let Ok(receipt) = one.take_at(now, 1) {
                    let refund = one.refund_at(now, 1, receipt);
                    granted_by_one.set(granted_by_one.get() + 1 - refund.permits);
                }
            }
            Call::Neighbor => self.take_by("bob"),
            Call::Stranger => self.take_by("eve"),
            Call::Sweep => {
                table.sweep_at(now, ..);
                self.one.sweep_at(now, ..);
            }
            Call::Release => {
                if !self.released.replace(true) {
                    alice.release(1);
                }
            }
            Call::Copy => {
                let copy = rested();
                let to = copy.key("alice");
                if table.copy_key_to(alice.address(), &copy, to.address(), now) {
                    let mut left = to.explain_each_at(now, 1).map(|detail| detail.available);
                    let left = [left.next().unwrap(), left.next().unwrap()];
                    self.copies.borrow_mut().push(left);
                }
            }
        }
    }

    /// Checks what was granted, and that all permits come back.
    fn end(&self, rest: Duration) -> Result<(), String> {
        let passed = |per: u64, burst: u64| (rest.as_secs() / per).min(burst);
        let most = [
            passed(1, BURST.into()),
            9 - u64::from(BURST) + passed(86_400, 2),
        ];
        for granted in &self.granted {
            if u64::from(granted.get()) > most[0] {
                return Err(format!("{} of {} granted", granted.get(), most[0]));
            }
        }
        if let Some(copy) = self
            .copies
            .borrow()
            .iter()
            .find(|copy| copy[0] > most[0] || copy[1] > most[1])
        {
            return Err(format!("{copy:?} of {most:?} copied"));
        }
        self.call(Call::Release);
        // Also if a call has found the words claimed: after the staleness and the time to fill.
        let later = self.now + 4 * SECOND + Duration::from_secs(9 * 86_400);
        let alice = self.table.key("alice");
        let details = alice.explain_each_at(later, 1);
        let left: Vec<u64> = details.map(|detail| detail.available).collect();
        if left != [BURST.into(), 9, AT_ONCE.into()] {
            return Err(format!("{left:?} left in the end"));
        }
        let left = self.one.key("alice").available_at(later);
        if left != u64::from(BURST) {
            return Err(format!("{left} left in the end"));
        }
        Ok(())
    }
}

/// Rests around those after which the word of the first bucket repeats.
fn rests() -> Vec<Duration> {
    let repeats = Duration::from_nanos(1 << 43);
    let mut rests: Vec<Duration> = [500, 1_500, 2_500].map(Duration::from_millis).into();
    for times in [1, 2, 7, 35_877] {
        let around = [-1_500, -500, 0, 500, 1_500, 2_500].map(|millis: i64| {
            let by = Duration::from_millis(millis.unsigned_abs());
            let whole = times * repeats;
            if millis < 0 { whole - by } else { whole + by }
        });
        rests.extend(around);
    }
    rests
}

fn settle_pre_empted(rest: Duration, calls: [Call; 3], (step, failing): (u64, u64)) {
    let [first, second, third] = calls;
    let mut at = [0, 0];
    loop {
        let trial = Trial::new(rest);
        let plan = Plan { at, failing };
        let accesses = run(plan, || trial.call(first), &|other| {
            trial.call([second, third][other]);
        });
        if let Err(error) = trial.end(rest) {
            panic!("{error}: {calls:?} after {rest:?}, pre-empted at {at:?}, {failing:b} fail");
        }
        if at[1] <= accesses {
            at[1] += step;
        } else if at[0] <= accesses {
            at = [at[0] + 1, at[0] + 1];
        } else {
            break;
        }
    }
}

/// A call that settles a line is pre-empted once at every access.
#[test]
fn a_call_that_settles_a_line_grants_no_permit_twice_and_loses_none() {
    for rest in rests() {
        for first in CALLS {
            for second in CALLS {
                settle_pre_empted(rest, [first, second, Call::All], (u64::MAX / 2, 0));
            }
        }
    }
}

/// The second call is pre-empted too, or a third one comes after it.
#[test]
fn two_calls_that_settle_a_line_grant_no_permit_twice_and_lose_none() {
    let repeats = Duration::from_nanos(1 << 43);
    for rest in [repeats, repeats + SECOND / 2] {
        for [first, second] in [
            [Call::All, Call::All],
            [Call::Neighbor, Call::All],
            [Call::Release, Call::Neighbor],
            [Call::Sweep, Call::Refunded],
        ] {
            settle_pre_empted(rest, [first, second, Call::All], (3, 0));
            settle_pre_empted(rest, [first, second, Call::All], (u64::MAX / 2, 0b101));
        }
    }
}
