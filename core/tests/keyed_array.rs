//! A table with a limiter of any type for each key. It decides as a plain limiter of each key, also
//! when slots pass from one key to another. It keeps a slot for its key while the limiter is in
//! use, while a call uses the slot, and while a stale timestamp may still come.
//!
//! Random traces go to a table and to one plain limiter per key, and each decision is compared. A
//! separate count checks what each key was granted against its bound, over every window of time.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/own.rs"]
mod own;

use core::cell::{Cell, RefCell};
use core::fmt::{self, Debug, Display};
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::{Barrier, Mutex};

use draws::Draws;
use own::Own;
use portcullis_core::builder::EscalationThreshold;
use portcullis_core::keyed::{KeyedStatistics, Line, Seed, TableKey};
use portcullis_core::limiter::{
    Answer, Ask, Back, Idle, NotGranted, Read, Reading, Returned, Waiting,
};
use portcullis_core::state::Carry;
use portcullis_core::{
    AdjustableBucket, AllOf, Concurrency, CooldownWindow, Counted, Denied, Escalation, FixedWindow,
    Keyed, KeyedArray, Lease, Limiter, LimiterExt, Penalty, Rate, Retry, SlidingWindow, Timestamp,
    TokenBucket, metadata,
};

/// How stale a `now` may be: the staleness of every table here, unless a test sets another one.
const STALENESS: u64 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

type Table<L> = KeyedArray<L, Vec<L>, Vec<Line>>;

const fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

const fn ms(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

fn seed(n: u64) -> Seed {
    let seed = Seed::new();
    seed.set([n + 1, !n]).expect("not used before");
    seed
}

fn lines(n: usize) -> Vec<Line> {
    (0..n).map(|_| Line::new()).collect()
}

fn table_of<L>(make: impl Fn() -> L, n: usize, nth: u64) -> Table<L> {
    KeyedArray::new(
        make(),
        (0..8 * n).map(|_| make()).collect(),
        lines(n),
        seed(nth),
    )
}

/// One line: slots for eight keys.
fn table<L>(make: impl Fn() -> L) -> Table<L> {
    table_of(make, 1, 0)
}

// Limiters, and their bounds.

/// The bound of one key's grants.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// At most `burst + permits * t / period`, with t in whole ticks.
    Bucket {
        burst: u64,
        permits: u64,
        period: u64,
        tick: u64,
    },
    /// At most `limit` in as many segments of the grid as a window has.
    Segments {
        limit: u64,
        segment: u64,
        segments: u64,
    },
    /// At most `limit` from a window's start to its end.
    Started { limit: u64, window: u64 },
    /// At most `limit` held at once.
    Out { limit: u64 },
}

/// Permits that count as granted at an instant.
#[derive(Clone, Copy, Debug)]
struct Admission {
    time: u64,
    permits: u64,
}

impl Bound {
    /// Checks every window of time; `admitted` is in order.
    fn check(self, admitted: &[Admission], context: &dyn Fn() -> String) {
        match self {
            Self::Bucket {
                burst,
                permits,
                period,
                tick,
            } => for_each_span(admitted, |first, held, last| {
                let time = u128::from(last / tick * tick - first / tick * tick);
                let most = u128::from(burst) * u128::from(period) + u128::from(permits) * time;
                assert!(
                    u128::from(held) * u128::from(period) <= most,
                    "{held} in {time} ns; {}",
                    context()
                );
            }),
            Self::Segments {
                limit,
                segment,
                segments,
            } => for_each_span(admitted, |first, held, last| {
                let is_within = last / segment - first / segment < segments;
                assert!(
                    !is_within || held <= limit,
                    "{held} in one window; {}",
                    context()
                );
            }),
            Self::Started { limit, window } => {
                let (mut end, mut count) = (0, 0);
                for admission in admitted {
                    if admission.time >= end {
                        (end, count) = (admission.time + window, 0);
                    }
                    count += admission.permits;
                    assert!(count <= limit, "{count} up to {end}; {}", context());
                }
            }
            Self::Out { .. } => {}
        }
    }
}

/// Calls `check` with the time of each first admission, the permits from it up to another one, and
/// the time of the latter.
fn for_each_span(admitted: &[Admission], check: impl Fn(u64, u64, u64)) {
    for first in 0..admitted.len() {
        let mut held = 0;
        for last in &admitted[first..] {
            held += last.permits;
            check(admitted[first].time, held, last.time);
        }
    }
}

/// How to make a limiter, and its bound.
struct Case<L> {
    name: &'static str,
    make: Box<dyn Fn() -> L>,
    bound: Bound,
    /// How long a denial locks a key out, in nanoseconds.
    penalty: u64,
}

fn case<L>(name: &'static str, bound: Bound, make: impl Fn() -> L + 'static) -> Case<L> {
    Case {
        name,
        make: Box::new(make),
        bound,
        penalty: 0,
    }
}

/// An action for limiters of every type.
trait ForEach {
    fn each<L: Limiter + 'static>(&mut self, case: Case<L>);
}

const RATE: Rate = Rate::per_second(2);
const BURST: u64 = 3;
const BUCKET: Bound = Bound::Bucket {
    burst: BURST,
    permits: 2,
    period: STALENESS,
    tick: 1,
};
const WAIT: u64 = 3;

fn for_each_limiter(what: &mut impl ForEach) {
    let bucket = || TokenBucket::new(RATE, BURST);
    let adjustable = || AdjustableBucket::new(RATE, BURST);
    let wait = Duration::from_secs(WAIT);
    let second = |segments| Bound::Segments {
        limit: 4,
        segment: 1_000_000_000,
        segments,
    };
    what.each(case("token bucket", BUCKET, bucket));
    what.each(case("counted token bucket", BUCKET, move || {
        Counted::new(bucket())
    }));
    what.each(case("token bucket in a wrapper", BUCKET, move || {
        Own(bucket())
    }));
    let tick = adjustable().timing().tick.as_nanos() as u64;
    let coarse = Bound::Bucket {
        burst: BURST,
        permits: 2,
        period: STALENESS,
        tick,
    };
    what.each(case("adjustable bucket", coarse, adjustable));
    what.each(case("sliding window", second(8), || {
        SlidingWindow::<8>::new(4, 8 * SECOND, 8)
    }));
    what.each(case("fixed window", second(1), || {
        FixedWindow::new(4, SECOND)
    }));
    let cooldown = Bound::Started {
        limit: 4,
        window: 2_000_000_000,
    };
    what.each(case("cooldown window", cooldown, || {
        CooldownWindow::new(4, 2 * SECOND, Some(3 * SECOND))
    }));
    what.each(case("escalation", BUCKET, move || {
        Escalation::new(
            bucket(),
            [EscalationThreshold {
                used: 2,
                hold: SECOND,
                decision: "slow down",
            }],
        )
    }));
    for limit in [1, 3] {
        let out = Bound::Out {
            limit: limit.into(),
        };
        what.each(case("concurrency", out, move || Concurrency::new(limit)));
    }
    let penalty = case("penalty, token bucket", BUCKET, move || {
        Penalty::new(bucket(), wait)
    });
    what.each(Case {
        penalty: WAIT * 1_000_000_000,
        ..penalty
    });
    let out = Bound::Out { limit: 2 };
    let penalty = case("penalty, concurrency", out, move || {
        Penalty::new(Concurrency::new(2), wait)
    });
    what.each(Case {
        penalty: WAIT * 1_000_000_000,
        ..penalty
    });
}

// Random traces.

/// Counts of what happened in the traces.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    granted: u64,
    denied: u64,
    crowded: u64,
    late: u64,
    far: u64,
    retried: u64,
    refunded: u64,
    replaced: u64,
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            granted,
            denied,
            crowded,
            late,
            far,
            retried,
            refunded,
            replaced,
        } = self;
        write!(
            f,
            "{granted} granted, {denied} denied, {crowded} crowded; {late} late, {far} far ahead, "
        )?;
        write!(
            f,
            "{retried} retried, {refunded} refunded, {replaced} replaced"
        )
    }
}

/// A key: its plain limiter, and what it was granted.
struct User<L> {
    plain: Rc<L>,
    /// The newest `now` written for the key.
    newest: u64,
    /// The end of its penalty.
    shut_out_until: u64,
    admitted: Vec<Admission>,
    out: u64,
    has_been_granted: bool,
}

/// A grant that may still be refunded.
struct Grant<'t, L: Limiter> {
    key: u64,
    keyed: Lease<TableKey<&'t Table<L>>>,
    /// The lease of the plain limiter, if every key has a slot.
    plain: Option<Lease<Rc<L>>>,
}

/// Runs a random trace on `table`. It is `exact` if there are slots for all keys: then each
/// decision is that of the key's plain limiter.
struct Trace<'t, L: Limiter> {
    case: &'t Case<L>,
    table: &'t Table<L>,
    is_exact: bool,
    users: HashMap<u64, User<L>>,
    grants: Vec<Grant<'t, L>>,
    /// The newest `now` that the table got.
    newest: u64,
    tally: Tally,
}

impl<'t, L: Limiter> Trace<'t, L> {
    fn new(case: &'t Case<L>, table: &'t Table<L>, is_exact: bool) -> Self {
        let (users, grants) = (HashMap::new(), Vec::new());
        Self {
            case,
            table,
            is_exact,
            users,
            grants,
            newest: 0,
            tally: Tally::default(),
        }
    }

    fn run(mut self, keys: u64, draws: &mut Draws<'_>) -> Tally {
        self.newest = draws.magnitude(5_000_000_000);
        while draws.another_step() {
            // Some keys are used more often than others.
            let key = draws.below(keys).min(draws.below(keys));
            let now = self.next_time(draws);
            self.tally.late += u64::from(now < self.newest);
            self.tally.far += u64::from(now > self.newest + 500 * STALENESS);
            self.newest = self.newest.max(now);
            match draws.below(8) {
                0 => self.read(key, now, draws.below(4) as u32),
                1 if self.is_exact && !self.grants.is_empty() => self.refund(now, draws),
                2 | 3 if self.grants.len() > draws.below(40) as usize => {
                    let pick = draws.below(self.grants.len() as u64) as usize;
                    let grant = self.grants.swap_remove(pick);
                    self.user(grant.key).out -= u64::from(grant.keyed.permits());
                }
                _ => self.take(key, now, draws),
            }
        }
        let statistics = self.table.statistics_at(at(self.newest));
        self.tally.crowded = statistics.overflowed;
        self.tally.replaced = statistics.replaced;
        if !self.is_exact {
            for (key, user) in &self.users {
                let context = || format!("key {key} of {}: {:?}", self.case.name, user.admitted);
                self.case.bound.check(&user.admitted, &context);
            }
        }
        self.tally
    }

    fn next_time(&self, draws: &mut Draws<'_>) -> u64 {
        match draws.below(16) {
            0..=2 => self.newest,
            3..=6 => self.newest + draws.magnitude(1_000_000),
            7..=9 => self.newest + draws.magnitude(300_000_000),
            10 => self.newest + draws.magnitude(3_000_000_000),
            // Beyond what a slot's time can distinguish, up to where it wraps.
            11 if draws.once_in(16) => self.newest + draws.within(505, 1_030) * STALENESS,
            11 if draws.once_in(4) => self.newest + draws.magnitude(600 * STALENESS),
            12 => self.newest.saturating_sub(STALENESS - draws.below(2)),
            13 => self.newest.saturating_sub(draws.within(0, STALENESS)),
            _ => self.newest.saturating_sub(draws.magnitude(STALENESS)),
        }
    }

    fn user(&mut self, key: u64) -> &mut User<L> {
        self.users.entry(key).or_insert_with(|| User {
            plain: Rc::new((self.case.make)()),
            newest: 0,
            shut_out_until: 0,
            admitted: Vec::new(),
            out: 0,
            has_been_granted: false,
        })
    }

    /// Whether the table may have given the key's slot to another key, or never had one for it.
    fn may_be_forgotten(&mut self, key: u64) -> bool {
        let newest = self.newest;
        let user = self.user(key);
        match user.plain.idle_at(at(newest)) {
            _ if !user.has_been_granted => true,
            Idle::Since(since) => since.as_nanos() <= newest.saturating_sub(STALENESS),
            idle => idle == Idle::Now,
        }
    }

    fn read(&mut self, key: u64, now: u64, n: u32) {
        let limiter = *self.table.key(&key);
        let held = self.table.statistics_at(at(now)).held;
        let looked = limiter.peek_at(at(now), n);
        let (available, idle) = (limiter.available_at(at(now)), limiter.idle_at(at(now)));
        if self.is_exact {
            let plain = self.user(key).plain.clone();
            let name = self.case.name;
            assert_eq!(
                looked,
                plain.peek_at(at(now), n),
                "{name}: key {key}, {n} at {now}"
            );
            assert_eq!(
                available,
                plain.available_at(at(now)),
                "{name}: key {key} at {now}"
            );
            assert_eq!(limiter.capacity(), plain.capacity());
            // The start of idleness differs for a key that was forgotten.
            assert_eq!(
                idle.is_idle(),
                plain.idle_at(at(now)).is_idle(),
                "{name}: key {key} at {now}"
            );
        }
        assert_eq!(
            self.table.statistics_at(at(now)).held,
            held,
            "a query created a slot"
        );
    }

    fn take(&mut self, key: u64, now: u64, draws: &mut Draws<'_>) {
        let most = self.table.key(&key).available_at(at(now));
        let some = draws.within(0, most);
        let n = draws.one_of(&[1, 1, 1, some, most, most + 1, 0, u32::MAX.into()]) as u32;
        let Some(denied) = self.try_take(key, now, n) else {
            return;
        };
        if let (true, false) = (self.is_exact, matches!(denied, Denied::Crowded { .. })) {
            let retry = self.table.key(&key).retry(denied);
            assert_eq!(
                retry,
                self.user(key).plain.retry(denied),
                "{}: key {key}",
                self.case.name
            );
            // A request denied before its retry may have longer to wait, if denials are counted.
            if let Retry::At(then) = retry
                && draws.once_in(2)
            {
                let then = then.as_nanos();
                self.newest = self.newest.max(then);
                assert!(
                    self.try_take(key, then, n).is_none(),
                    "{}: not granted at the retry",
                    self.case.name
                );
                self.tally.retried += 1;
            }
        }
    }

    /// Takes from the table and from the plain limiter; returns the denial.
    fn try_take(&mut self, key: u64, now: u64, n: u32) -> Option<Denied> {
        let held = self.table.statistics_at(at(now)).held;
        let looked = self.table.key(&key).peek_at(at(now), n);
        let taken = Lease::try_acquire_at(self.table.key(&key), at(now), n);
        assert_eq!(
            taken.as_ref().map(|_| ()).map_err(|&denied| denied),
            looked,
            "not as the look before it"
        );
        let plain = self.user(key).plain.clone();
        let (name, penalty) = (self.case.name, self.case.penalty);
        let mut twin = None;
        if self.is_exact {
            match (
                taken.as_ref().err(),
                Lease::try_acquire_at(plain, at(now), n),
            ) {
                (None, Ok(lease)) => twin = Some(lease),
                (keyed, plain) => {
                    assert_eq!(
                        keyed,
                        plain.as_ref().err(),
                        "{name}: key {key}, {n} at {now}"
                    );
                }
            }
        }
        let keyed = match taken {
            Ok(lease) if n > 0 => lease,
            other => {
                let denied = other.err();
                assert_eq!(
                    self.table.statistics_at(at(now)).held,
                    held,
                    "nothing granted, but a slot claimed"
                );
                self.tally.denied += u64::from(!matches!(denied, Some(Denied::Crowded { .. })));
                if let (1.., Some(Denied::Exhausted { .. })) = (n, denied) {
                    self.user(key).shut_out_until = now + penalty;
                }
                return denied;
            }
        };
        self.tally.granted += 1;
        let bound = self.case.bound;
        let user = self.user(key);
        assert!(
            now >= user.shut_out_until || penalty == 0,
            "{name}: key {key} must be locked out at {now}"
        );
        user.has_been_granted = true;
        user.newest = user.newest.max(now);
        user.out += u64::from(n);
        if let Bound::Out { limit } = bound {
            assert!(user.out <= limit, "key {key}: {} held of {limit}", user.out);
        }
        user.admitted.push(Admission {
            time: user.newest,
            permits: n.into(),
        });
        self.grants.push(Grant {
            key,
            keyed,
            plain: twin,
        });
        None
    }

    /// Refunds some of a random grant.
    fn refund(&mut self, now: u64, draws: &mut Draws<'_>) {
        // Mostly of a recent grant: older ones have been replenished by time.
        let back = draws.magnitude(self.grants.len() as u64 - 1) as usize;
        let pick = self.grants.len() - 1 - back;
        let n = draws.within(0, self.grants[pick].keyed.permits().into()) as u32;
        // A forgotten slot accepts no refund.
        if self.may_be_forgotten(self.grants[pick].key) {
            return;
        }
        let grant = &mut self.grants[pick];
        let key = grant.key;
        let refunded = grant.keyed.refund_at(at(now), n).unwrap();
        if let Some(plain) = &mut grant.plain {
            assert_eq!(
                plain.refund_at(at(now), n),
                Ok(refunded),
                "{}: key {key}",
                self.case.name
            );
        }
        self.tally.refunded += u64::from(refunded);
        self.user(key).out -= u64::from(n);
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.denied += other.denied;
        self.crowded += other.crowded;
        self.late += other.late;
        self.far += other.far;
        self.retried += other.retried;
        self.refunded += other.refunded;
        self.replaced += other.replaced;
    }
}

/// Runs traces of forty keys on tables of `lines` lines.
fn traces<L: Limiter>(case: &Case<L>, sizes: &[usize], is_exact: bool) -> Tally {
    let mut tally = Tally::default();
    for (&size, nth) in sizes.iter().zip(0..) {
        let table = table_of(&case.make, size, nth);
        let draws = &mut Draws::Seeded {
            state: nth,
            steps: STEPS,
        };
        tally.add(Trace::new(case, &table, is_exact).run(40, draws));
    }
    println!("{}: {tally}", case.name);
    tally
}

const STEPS: u32 = if cfg!(debug_assertions) {
    4_000
} else {
    40_000
};

#[test]
fn each_key_decides_as_its_own_limiter_while_the_table_has_room() {
    struct Exact(u64);
    impl ForEach for Exact {
        fn each<L: Limiter + 'static>(&mut self, case: Case<L>) {
            let tally = traces(&case, &[9, 16, 9, 41], true);
            assert_eq!(tally.crowded, 0);
            assert!(
                tally.granted.min(tally.denied).min(tally.late) > 500,
                "{}",
                case.name
            );
            assert!(
                tally.far.min(tally.replaced) > 20,
                "no slot was ever forgotten"
            );
            self.0 += tally.retried;
        }
    }
    let mut exact = Exact(0);
    for_each_limiter(&mut exact);
    assert!(exact.0 > 1_000, "{} retried", exact.0);
}

#[test]
fn a_full_table_denies_but_never_grants_more() {
    struct Crowded;
    impl ForEach for Crowded {
        fn each<L: Limiter + 'static>(&mut self, case: Case<L>) {
            let tally = traces(&case, &[1, 2, 1, 2], false);
            assert!(tally.crowded.min(tally.replaced) > 200, "{}", case.name);
            assert!(tally.granted.min(tally.late) > 500, "{}", case.name);
        }
    }
    for_each_limiter(&mut Crowded);
}

// How long a slot stays with its key.

/// The answer to another key that finds no slot.
fn crowded<T>(now: Timestamp, permits: u32) -> Result<T, Denied> {
    Err(Denied::Crowded { now, permits })
}

fn counts(statistics: KeyedStatistics) -> [u64; 5] {
    let KeyedStatistics {
        slots,
        held,
        live,
        replaced,
        overflowed,
        ..
    } = statistics;
    [slots as u64, held as u64, live as u64, replaced, overflowed]
}

/// The eight keys of a table of one line use it as `use_it` does. After that, another key finds no
/// slot up to `until`, and then finds one.
fn is_kept_until<L: Limiter>(
    make: impl Fn() -> L,
    use_it: impl Fn(&dyn Limiter),
    until: Timestamp,
    befores: impl IntoIterator<Item = Timestamp>,
) {
    let table = table(make);
    for key in 0..8u64 {
        use_it(&*table.key(&key));
    }
    let take = |now| table.key("stranger").take_at(now, 1).map(|_| ());
    assert_eq!(table.statistics_at(until).held, 8);
    for now in befores {
        assert_eq!(take(now), crowded(now, 1));
        assert_eq!(table.key("stranger").available_at(now), 0, "no slot");
        assert_eq!(table.sweep_at(now, ..), 0, "at {now:?}");
    }
    assert_eq!(take(until), Ok(()));
    assert_eq!(table.sweep_at(until, ..), 7);
}

#[test]
fn a_slot_is_kept_while_its_window_is_open_and_one_staleness_more() {
    let use_it = |key: &dyn Limiter| assert!(key.take_at(secs(9), 1).is_ok());
    let minute = || FixedWindow::new(1, Duration::from_mins(1));
    is_kept_until(
        minute,
        use_it,
        secs(61),
        [secs(9), secs(12), secs(59), secs(60), at(60_999_999_999)],
    );
    let second = || TokenBucket::new(Rate::per_minute(1), 1);
    is_kept_until(
        second,
        use_it,
        secs(70),
        [secs(9), secs(12), secs(69), at(69_999_999_999)],
    );
    let sliding = || SlidingWindow::<8>::new(1, 8 * SECOND, 8);
    is_kept_until(
        sliding,
        use_it,
        secs(18),
        [secs(9), secs(12), secs(17), at(17_999_999_999)],
    );
}

#[test]
fn a_slot_is_kept_while_a_penalty_is_active_and_one_staleness_more() {
    let quick = || {
        Penalty::new(
            TokenBucket::new(Rate::per_second(100), 1),
            Duration::from_mins(1),
        )
    };
    let use_it = |key: &dyn Limiter| {
        key.take_at(secs(9), 1).unwrap();
        key.take_at(secs(9), 1).unwrap_err();
    };
    is_kept_until(
        quick,
        use_it,
        secs(70),
        [secs(9), secs(12), secs(69), at(69_999_999_999)],
    );
}

#[test]
fn a_slot_is_kept_for_a_staleness_after_its_last_use_and_not_for_two() {
    // For a limiter that itself reports no time.
    for last in [5_000, 5_001, 5_500, 5_999] {
        let use_it = |key: &dyn Limiter| drop(key.try_acquire_at(ms(last), 1).unwrap());
        let befores = [last - 1_000, last, last + 500, last + 1_000].map(ms);
        is_kept_until(|| Concurrency::new(1), use_it, secs(7), befores);
    }
    // The same after a use that is denied, and after one whose permits are returned later.
    let table = table(|| Concurrency::new(1));
    let alice = *table.key("alice");
    let lease = alice.try_acquire_at(secs(5), 1).unwrap();
    assert!(alice.take_at(secs(9), 1).is_err());
    drop(lease);
    assert_eq!(
        (table.sweep_at(ms(10_999), ..), table.sweep_at(secs(11), ..)),
        (0, 1)
    );
}

#[test]
fn a_stale_use_does_not_make_a_slot_older() {
    let table = table(|| Concurrency::new(1));
    let alice = *table.key("alice");
    for now in [secs(9), ms(8_500), secs(8)] {
        drop(alice.try_acquire_at(now, 1).unwrap());
    }
    assert_eq!(
        (table.sweep_at(ms(10_999), ..), table.sweep_at(secs(11), ..)),
        (0, 1)
    );
}

#[test]
fn a_held_permit_keeps_its_slot_permanently() {
    let table = table(|| Concurrency::new(2));
    let leases: Vec<_> = (0..8u64)
        .map(|key| Lease::try_acquire_at(table.key(&key), secs(3), 1).unwrap())
        .collect();
    // The time in a slot wraps after 512 stalenesses.
    for now in (0..1_100).map(|n| secs(3 + n)) {
        assert_eq!(table.key("stranger").take_at(now, 1), crowded(now, 1));
        assert_eq!(table.sweep_at(now, ..), 0, "{now:?}");
    }
    drop(leases);
    // Released without a `now`: the slot's recorded time counts.
    assert!(table.key("stranger").try_acquire_at(secs(1_100), 1).is_ok());
    assert_eq!(table.sweep_at(secs(1_102), ..), 8);
}

#[test]
fn an_idle_slot_is_kept_for_four_of_512_stalenesses_and_no_longer() {
    for now in 0..2_000 {
        let table = table(|| Concurrency::new(1));
        drop(table.key("alice").try_acquire_at(secs(7), 1).unwrap());
        let is_near = matches!(now % 512, 510 | 511 | 0 | 1);
        assert_eq!(
            table.sweep_at(secs(7 + now), ..),
            usize::from(!is_near),
            "after {now} s"
        );
    }
}

#[test]
fn a_longer_staleness_keeps_slots_longer() {
    let minute = Duration::from_mins(1);
    let table = table(|| FixedWindow::new(1, SECOND)).with_staleness(minute);
    assert_eq!(table.staleness(), minute);
    let take = |key: u64, now| table.key(&key).take_at(now, 1).map(|_| ());
    for key in 0..8 {
        assert_eq!(take(key, secs(59)), Ok(()));
    }
    let now = ms(119_999);
    assert_eq!(
        (take(8, now), table.sweep_at(now, ..)),
        (crowded(now, 1), 0)
    );
    let denied = Denied::Crowded { now, permits: 1 };
    assert_eq!(denied.retry(&*table.key(&8)), Retry::After(minute));
    assert_eq!(table.sweep_at(secs(120), ..), 8);
}

#[test]
#[should_panic(expected = "staleness must be at least 1 s")]
fn a_staleness_of_less_than_a_second_is_refused() {
    let _ = table(|| Concurrency::new(1)).with_staleness(Duration::from_millis(999));
}

// Stale timestamps after the slot was forgotten.

#[test]
fn a_penalty_is_active_for_a_timestamp_that_is_stale_after_its_end() {
    let table = table(|| Penalty::new(Concurrency::new(1), Duration::from_secs(10)));
    let alice = *table.key("alice");
    let lease = alice.try_acquire_at(secs(10), 1).unwrap();
    assert!(alice.take_at(secs(10), 1).is_err(), "until 20");
    drop(lease);
    assert_eq!(table.sweep_at(ms(20_999), ..), 0);
    let late = ms(19_999);
    assert_eq!(
        alice.take_at(late, 1),
        Err(Denied::Penalized {
            now: late,
            permits: 1
        })
    );
    assert_eq!(table.sweep_at(secs(22), ..), 1);
}

#[test]
fn a_grant_counts_for_a_stale_timestamp_though_a_newer_grant_was_refunded() {
    let table = table(|| SlidingWindow::<8>::new(2, 8 * SECOND, 8));
    let alice = *table.key("alice");
    alice.take_at(secs(10), 1).unwrap();
    assert_eq!(
        alice
            .try_acquire_at(secs(15), 1)
            .unwrap()
            .refund_at(secs(15), 1),
        Ok(1)
    );
    assert_eq!(
        table.sweep_at(ms(18_999), ..),
        0,
        "the first one counts before 18"
    );
    assert_eq!(alice.available_at(ms(17_999)), 1);
    assert_eq!(table.sweep_at(secs(19), ..), 1);
}

#[test]
fn a_table_has_slots_from_the_origin_of_its_limiters_on() {
    fn check<L: Limiter>(make: impl Fn() -> L) {
        for now in [secs(100), ms(100_500), secs(101)] {
            let table = table(&make);
            assert_eq!(
                (0..9u64)
                    .filter(|key| table.key(key).take_at(now, 1).is_ok())
                    .count(),
                8
            );
        }
    }
    let origin = secs(100);
    check(|| {
        FixedWindow::builder(3, 10 * SECOND)
            .origin(origin)
            .build()
            .unwrap()
    });
    check(|| {
        CooldownWindow::builder(3, 10 * SECOND)
            .origin(origin)
            .build()
            .unwrap()
    });
    check(|| {
        TokenBucket::builder(Rate::per_second(1), 3)
            .origin(origin)
            .build()
            .unwrap()
    });
    check(|| {
        SlidingWindow::<8>::builder(3, 8 * SECOND, 8)
            .origin(origin)
            .build()
            .unwrap()
    });
}

// Calls under way, and calls from within calls.

type Hook = Box<dyn Fn()>;

thread_local! {
    static IN_TAKE: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static IN_IDLE: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static IN_PEEK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// A concurrency limit whose calls can be interrupted by other work.
#[derive(Debug)]
struct Interrupted(Concurrency);

impl Limiter for Interrupted {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            let said = self.0.peek_at(now, n);
            if let Some(hook) = IN_PEEK.take() {
                hook();
            }
            return Answer::from(said);
        }
        let taken = self.0.take_at(now, n);
        let hook = IN_TAKE.with_borrow(Clone::clone);
        if let Some(hook) = hook {
            hook();
        }
        taken.into()
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }

    fn read(&self, read: Read<'_>) -> Reading {
        let now = read.now();
        Reading {
            available: self.0.available_at(now),
            capacity: self.0.capacity(),
            idle: {
                let idle = self.0.idle_at(now);
                if let Some(hook) = IN_IDLE.take() {
                    hook();
                }
                if idle.is_idle() {
                    Idle::Since(Timestamp::ZERO)
                } else {
                    idle
                }
            },
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}

/// A table for one test, which calls in the middle of others can use.
fn interrupted(limit: u32) -> &'static Table<Interrupted> {
    Box::leak(Box::new(table(|| Interrupted(Concurrency::new(limit)))))
}

/// Runs `work` in the middle of each take of a limiter.
fn interrupt_takes(work: impl Fn() + 'static) {
    IN_TAKE.set(Some(Rc::new(work)));
}

#[test]
fn a_slot_with_a_call_under_way_goes_to_no_other_key() {
    let table = interrupted(1);
    let hits = Rc::new(Cell::new(0));
    let counted = Rc::clone(&hits);
    interrupt_takes(move || {
        IN_TAKE.set(None);
        // No permit is held, so only the call keeps the slot, however long the call takes.
        for now in (5..1_100).map(secs) {
            assert_eq!(table.sweep_at(now, ..), 0);
            assert_eq!(table.statistics_at(now).held, 1);
        }
        let strangers: Vec<_> = (0..8u64)
            .map(|key| table.key(&key).try_acquire_at(secs(99), 1).is_ok())
            .collect();
        assert_eq!(strangers.iter().filter(|&&granted| granted).count(), 7);
        counted.set(counted.get() + 1);
    });
    // A probe of an existing slot takes nothing.
    let alice = *table.key("alice");
    let hook = IN_TAKE.take();
    drop(alice.try_acquire_at(secs(5), 1).unwrap());
    IN_TAKE.set(hook);
    assert!(alice.take_at(secs(5), 0).is_ok());
    assert_eq!(hits.get(), 1);
    assert_eq!(table.sweep_at(secs(101), ..), 8, "the call is over");
}

#[test]
fn a_keys_first_call_keeps_its_slot_as_well() {
    let table = interrupted(3);
    interrupt_takes(move || {
        IN_TAKE.set(None);
        let statistics = table.statistics_at(secs(5));
        assert_eq!((statistics.held, statistics.live), (1, 1));
        drop(table.key("alice").try_acquire_at(secs(5), 1).unwrap());
        assert_eq!(table.statistics_at(secs(5)).held, 1, "the same slot");
    });
    assert!(table.key("alice").take_at(secs(5), 2).is_ok());
    assert_eq!(table.key("alice").available_at(secs(5)), 1);
}

/// Alice's slot is idle at 9 s and the other seven are in use. Bob finds her slot idle at `claim`;
/// before he claims it, she uses it again at `back`.
fn a_use_beats_a_claim(back: Timestamp, claim: Timestamp) {
    let table = interrupted(1);
    let (alice, bob) = (table.key("alice"), table.key("bob"));
    drop(alice.try_acquire_at(secs(9), 1).unwrap());
    // At a time at which her slot is too fresh to be taken.
    let _others: Vec<_> = (0..7u64)
        .map(|key| Lease::try_acquire_at(table.key(&key), secs(9), 1).unwrap())
        .collect();
    let hers = Rc::new(RefCell::new(None));
    let taken = Rc::clone(&hers);
    let came = move || *taken.borrow_mut() = Lease::try_acquire_at(alice, back, 1).ok();
    IN_IDLE.set(Some(Box::new(came)));
    assert_eq!(bob.take_at(claim, 1), crowded(claim, 1));
    assert!(hers.borrow().is_some(), "she took in the middle");
    assert!(
        alice.try_acquire_at(claim, 1).is_err(),
        "nor has she got another one"
    );
    assert_eq!(counts(table.statistics_at(claim)), [8, 8, 8, 0, 1]);
    hers.borrow_mut().take();
    assert!(alice.try_acquire_at(back, 1).is_ok());
}

#[test]
fn a_use_while_a_claim_looks_at_the_slot_keeps_it() {
    a_use_beats_a_claim(secs(20), secs(20));
    a_use_beats_a_claim(ms(19_000), secs(20));
}

#[test]
fn a_use_keeps_its_slot_even_if_the_recorded_time_does_not_change() {
    // At the very end of what a slot's time can distinguish, 510 stalenesses after the last use,
    // the recorded time does not move.
    a_use_beats_a_claim(secs(9 + 510), at(secs(9 + 510).as_nanos() - 1));
    // Nor does it for a timestamp that is stale by the recorded time.
    a_use_beats_a_claim(secs(9), secs(11));
}

#[test]
fn a_use_while_a_sweep_looks_at_the_slot_keeps_it() {
    let table = interrupted(1);
    let alice = table.key("alice");
    drop(alice.try_acquire_at(secs(9), 1).unwrap());
    let hers = Rc::new(RefCell::new(None));
    let taken = Rc::clone(&hers);
    IN_IDLE.set(Some(Box::new(move || {
        *taken.borrow_mut() = Lease::try_acquire_at(alice, secs(20), 1).ok();
    })));
    assert_eq!(table.sweep_at(secs(20), ..), 0);
    assert!(hers.borrow().is_some());
    assert!(alice.try_acquire_at(secs(20), 1).is_err());
}

#[test]
fn two_claims_of_a_key_one_within_the_other_share_a_slot() {
    let table = interrupted(1);
    let alice = table.key("alice");
    let hers = Rc::new(RefCell::new(None));
    let taken = Rc::clone(&hers);
    IN_PEEK.set(Some(Box::new(move || {
        *taken.borrow_mut() = Lease::try_acquire_at(alice, secs(5), 1).ok();
    })));
    assert!(
        alice.try_acquire_at(secs(5), 1).is_err(),
        "the one in the middle has it"
    );
    assert!(hers.borrow().is_some());
    assert_eq!(table.statistics_at(secs(5)).held, 1);
    hers.borrow_mut().take();
    assert!(alice.try_acquire_at(secs(5), 1).is_ok());
}

#[test]
fn the_128th_concurrent_call_is_denied_and_changes_nothing() {
    let table = interrupted(1_000);
    let alice = table.key("alice");
    let held = RefCell::new(Lease::try_acquire_at(alice, secs(5), 10).ok());
    let (depth, reached) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (deep, seen) = (Rc::clone(&depth), Rc::clone(&reached));
    interrupt_takes(move || {
        deep.set(deep.get() + 1);
        if deep.get() < 127 {
            assert!(alice.take_at(secs(5), 1).is_ok(), "call {}", deep.get() + 1);
            return;
        }
        assert_eq!(deep.get(), 127, "one call too many is under way");
        seen.set(true);
        for n in [0, 1, 5] {
            assert_eq!(alice.take_at(secs(5), n), crowded(secs(5), n));
        }
        let denied = Denied::Crowded {
            now: secs(5),
            permits: 1,
        };
        assert_eq!(denied.retry(&*alice), Retry::After(SECOND));
        assert_eq!(
            alice.available_at(secs(5)),
            1_000 - 10 - 127,
            "answers nevertheless"
        );
        // Permits are returned nevertheless, by a refund and by a release.
        let mut lease = held.take().unwrap();
        lease.refund_at(secs(5), 4).unwrap();
        assert_eq!(alice.available_at(secs(5)), 1_000 - 6 - 127);
        drop(lease);
        assert_eq!(alice.available_at(secs(5)), 1_000 - 127);
        assert!(
            table.key("bob").take_at(secs(5), 0).is_ok(),
            "another key is not affected"
        );
    });
    assert!(alice.take_at(secs(5), 1).is_ok());
    assert!(reached.get());
    IN_TAKE.set(None);
    assert_eq!(depth.get(), 127);
    assert_eq!(alice.available_at(secs(5)), 1_000 - 127);
    assert!(alice.take_at(secs(5), 1).is_ok());
    assert_eq!(table.sweep_at(secs(99), ..), 0, "permits are held");
    alice.release(128);
    assert_eq!(
        table.sweep_at(secs(99), ..),
        1,
        "no call is counted any longer"
    );
    assert_eq!(
        table.statistics_at(secs(99)).overflowed,
        0,
        "a full table is another error"
    );
}

#[test]
fn a_limiter_that_panics_leaves_no_call_counted() {
    fn panics(key: TableKey<&Table<Interrupted>>, n: u32) {
        interrupt_takes(|| panic!("on purpose"));
        let caught = catch_unwind(AssertUnwindSafe(|| key.take_at(secs(5), n)));
        IN_TAKE.set(None);
        assert!(caught.is_err());
    }
    let table = interrupted(1_000);
    let (alice, bob) = (table.key("alice"), table.key("bob"));
    drop(alice.try_acquire_at(secs(5), 1).unwrap());
    // One call finds a slot, and one claims a slot; many times, so that a count left behind would
    // show.
    for _ in 0..300 {
        panics(alice, 0);
    }
    panics(bob, 1);
    // The limiter took before it panicked: those permits are its own concern, and are released by
    // hand here.
    bob.release(1);
    assert_eq!(counts(table.statistics_at(secs(5)))[..3], [8, 2, 0]);
    assert!(alice.take_at(secs(5), 0).is_ok() && bob.take_at(secs(5), 0).is_ok());
    for key in 0..6u64 {
        assert!(table.key(&key).take_at(secs(5), 1).is_ok());
    }
    for key in 6..8u64 {
        assert!(
            table.key(&key).take_at(secs(9), 1).is_ok(),
            "in the slots of the two"
        );
    }
    assert_eq!(counts(table.statistics_at(secs(9))), [8, 8, 8, 2, 0]);
}

// Slots.

#[test]
fn a_slot_without_a_limiter_is_not_used() {
    for (limiters, all) in [(5, 5), (0, 0), (8, 8), (11, 8)] {
        let limiters = (0..limiters)
            .map(|_| Concurrency::new(1))
            .collect::<Vec<_>>();
        let table = KeyedArray::new(Concurrency::new(1), limiters, lines(1), seed(0));
        let granted = (0..9u64)
            .filter(|key| table.key(key).take_at(secs(5), 1).is_ok())
            .count();
        assert_eq!(granted, all);
        assert_eq!(
            counts(table.statistics_at(secs(5))),
            [8, all as u64, all as u64, 0, 9 - all as u64]
        );
        for n in [0, 1] {
            assert_eq!(
                table.key("stranger").peek_at(secs(5), n),
                crowded(secs(5), n)
            );
            assert_eq!(
                table.key("stranger").take_at(secs(5), n).map(|_| ()),
                crowded(secs(5), n)
            );
        }
        for key in 0..all as u64 {
            table.key(&key).release(1);
        }
        assert_eq!(table.sweep_at(secs(7), ..), all);
    }
    let none = KeyedArray::new(
        Concurrency::new(1),
        [Concurrency::new(1)],
        lines(0),
        seed(0),
    );
    assert_eq!(none.key("alice").take_at(secs(5), 1), crowded(secs(5), 1));
}

#[test]
fn a_line_fills_up_and_is_forgotten_and_every_count_is_exact() {
    let table = table(|| TokenBucket::new(Rate::per_second(1), 2));
    let take = |key: u64, now, n| {
        table
            .key(&key)
            .try_acquire_at(now, n)
            .map(|lease| lease.permits())
    };
    let after = |now| counts(table.statistics_at(now));
    for key in 0..8 {
        assert_eq!(take(key, secs(10), 1), Ok(1));
    }
    assert_eq!(after(secs(10)), [8, 8, 8, 0, 0]);
    assert_eq!(
        (take(8, secs(11), 1), take(9, secs(11), 2)),
        (crowded(secs(11), 1), crowded(secs(11), 2))
    );
    assert_eq!(after(secs(11)), [8, 8, 0, 0, 2]);
    assert_eq!(
        take(9, secs(11), 3),
        Err(Denied::ExceedsCapacity {
            permits: 3,
            capacity: 2
        })
    );
    assert_eq!(after(secs(11)), [8, 8, 0, 0, 2], "no lack of slots");
    assert_eq!(take(7, secs(11), 2), Ok(2));
    assert_eq!(take(8, secs(12), 2), Ok(2));
    assert_eq!(after(secs(12)), [8, 8, 2, 1, 2]);
    // The six other slots become vacant; 7 and 8 are in use, or were until just now.
    assert_eq!(
        (
            table.sweep_at(at(11_999_999_999), ..),
            table.sweep_at(secs(12), ..)
        ),
        (0, 6)
    );
    assert_eq!(after(secs(12)), [8, 2, 2, 1, 2]);
    assert_eq!(
        (table.sweep_at(secs(13), ..), table.sweep_at(secs(14), ..)),
        (0, 1),
        "7 at 14, 8 at 15"
    );
    assert_eq!(
        (table.sweep_at(secs(15), ..), table.sweep_at(secs(99), ..)),
        (1, 0)
    );
    assert_eq!(take(9, secs(15), 1), Ok(1));
    assert_eq!(
        after(secs(15)),
        [8, 1, 1, 1, 2],
        "taking a vacant slot replaces no key"
    );
}

#[test]
fn a_sweep_of_some_lines_leaves_the_others() {
    let fill = || {
        let table = table_of(|| Concurrency::new(1), 10, 0);
        for key in 0..40u64 {
            drop(table.key(&key).try_acquire_at(secs(1), 1).unwrap());
        }
        table
    };
    let table = fill();
    let each: Vec<usize> = (0..10)
        .map(|line| table.sweep_at(secs(9), line..=line))
        .collect();
    assert_eq!(
        (
            each.iter().sum::<usize>(),
            table.statistics_at(secs(9)).held
        ),
        (40, 0)
    );
    assert_eq!(fill().sweep_at(secs(9), 3..7), each[3..7].iter().sum());
    assert_eq!(fill().sweep_at(secs(9), 20..), 0);
}

#[test]
fn a_query_or_a_denial_creates_no_slot() {
    let table = table(|| Penalty::new(TokenBucket::new(Rate::per_second(1), 2), SECOND));
    for key in 0..100u64 {
        let limiter = *table.key(&key);
        assert_eq!((limiter.available_at(secs(1)), limiter.capacity()), (2, 2));
        assert!(limiter.idle_at(secs(1)).is_idle() && limiter.explain_at(secs(1), 2).is_allowed());
        assert!(limiter.peek_at(secs(1), 1).is_ok() && limiter.take_at(secs(1), 0).is_ok());
        let denied = Denied::ExceedsCapacity {
            permits: 3,
            capacity: 2,
        };
        assert_eq!(limiter.take_at(secs(1), 3), Err(denied));
        assert_eq!(denied.retry(&limiter), Retry::Never);
        limiter.release(1);
    }
    assert_eq!(counts(table.statistics_at(secs(1))), [8, 0, 0, 0, 0]);
}

// Compositions.

/// A queue tells the limiter that a request ended without a grant. A key without a slot has no
/// limiter of its own, and the other keys without one must not pay for it.
#[test]
fn a_request_of_a_key_without_a_slot_that_ends_changes_nothing_for_other_keys() {
    fn check<L: Limiter>(make: impl Fn() -> L) {
        let table = table(make);
        let now = secs(60);
        for back in [
            Back::NotGranted {
                now,
                permits: 1,
                why: NotGranted::Denied,
            },
            Back::Cancelled { permits: 1 },
        ] {
            let _ = table.key(&0).give_back(back);
        }
        assert_eq!(table.statistics_at(now).held, 0);
        for key in 0..3 {
            assert!(table.key(&key).take_at(now, 1).is_ok(), "key {key}");
        }
    }
    let bucket = || TokenBucket::new(Rate::per_second(1), 1);
    let wait = Duration::from_secs(30);
    check(|| Penalty::new(bucket(), wait));
    check(|| Counted::new(bucket()));
    check(|| Escalation::<_, (), 0>::new(Penalty::new(bucket(), wait), []));
}

/// A queue that owns the table knows who waits. The limiter of a key is not watched, so a queue
/// that believed it would let its waiters starve.
#[test]
fn the_limiter_of_a_key_does_not_say_whether_requests_wait() {
    let table = table(|| Concurrency::new(1));
    let alice = table.key(&0);
    alice.take_at(secs(1), 1).unwrap();
    let returned = alice.give_back(Back::Release { permits: 1 });
    assert_eq!(returned.waiting, Waiting::Unknown);
    let _ = alice.give_back(Back::Watch(true));
    alice.take_at(secs(1), 1).unwrap();
}

#[test]
fn a_take_of_nothing_calls_what_follows_also_for_a_key_without_a_slot() {
    let table = table(|| Concurrency::new(1));
    for key in [0, 1] {
        let mut calls = 0;
        let done = table.key(&key).take_at_then(secs(1), 0, &mut || {
            calls += 1;
            false
        });
        assert_eq!((done, calls), (Ok(false), 1), "key {key}");
        let _ = table.key(&1).take_at(secs(1), 1);
        table.key(&1).release(1);
    }
}

#[test]
fn limits_by_user_and_by_tenant_take_all_or_none() {
    let mut tally = [0; 4];
    for state in 0..10 {
        let bucket = TokenBucket::builder(Rate::per_second(2), 3)
            .rules()
            .unwrap();
        let users = Keyed::new(bucket, lines(2), seed(state));
        let tenants = table_of(|| SlidingWindow::<8>::new(8, 4 * SECOND, 8), 1, state);
        let downloads = table_of(|| Concurrency::new(4), 1, state);
        let draws = &mut Draws::Seeded {
            state,
            steps: 3_000,
        };
        let (mut newest, mut held) = (2_000_000_000, Vec::new());
        while draws.another_step() {
            let now = match draws.below(4) {
                0 => newest - draws.magnitude(STALENESS),
                1 => newest + draws.magnitude(2_000_000_000),
                _ => newest + draws.magnitude(100_000_000),
            };
            newest = newest.max(now);
            if held.len() as u64 > draws.below(12) {
                let (download, n): (u64, u32) =
                    held.swap_remove(draws.below(held.len() as u64) as usize);
                downloads.key(&download).release(n);
            }
            let keys = [draws.below(40), draws.below(12), draws.below(10)];
            let n = draws.within(1, 3) as u32;
            let limiters = (
                *users.key(&keys[0]),
                *tenants.key(&keys[1]),
                *downloads.key(&keys[2]),
            );
            let all: [&dyn Limiter; 3] = [&limiters.0, &limiters.1, &limiters.2];
            let available = || all.map(|limiter| limiter.available_at(at(now)));
            let before = available();
            match AllOf::new(all).try_acquire_at(at(now), n) {
                Ok(lease) => {
                    assert_eq!(available(), before.map(|left| left - u64::from(n)));
                    held.push((keys[2], lease.forget()));
                    tally[3] += 1;
                }
                Err(denied) => {
                    assert_eq!(available(), before, "{denied}: something was taken");
                    tally[denied.index] += 1;
                }
            }
        }
        for (download, n) in held {
            downloads.key(&download).release(n);
        }
        assert_eq!(
            downloads.statistics_at(at(newest)).live,
            0,
            "all are released"
        );
    }
    println!("denied by user, tenant, downloads; granted: {tally:?}");
    assert!(tally.into_iter().min() > Some(300), "{tally:?}");
}

#[test]
fn a_key_that_is_named_twice_is_asked_for_both() {
    let first = table(|| Penalty::new(Concurrency::new(3), SECOND));
    let other = table(|| Penalty::new(Concurrency::new(3), SECOND));
    let (alice, again, bob) = (*first.key("alice"), *first.key("alice"), *first.key("bob"));
    let elsewhere = *other.key("alice");
    assert_eq!(alice.id(), again.id());
    assert!(alice.id() != bob.id() && alice.id() != elsewhere.id());
    let limits = [alice, elsewhere, again, bob];
    let all = AllOf::new(limits);
    assert_eq!(all.available_at(secs(5)), 1);
    assert!(all.peek_at(secs(5), 2).is_err(), "four of three");
    let lease = all.try_acquire_at(secs(5), 1).unwrap();
    assert_eq!(
        limits.map(|limiter| limiter.available_at(secs(5))),
        [1, 2, 1, 2]
    );
    drop(lease);
    assert_eq!(limits.map(|limiter| limiter.available_at(secs(5))), [3; 4]);
}

#[test]
fn a_lease_of_a_key_can_be_split_and_merged_and_refunded() {
    let table = table(|| SlidingWindow::<8>::new(5, 8 * SECOND, 8));
    let (alice, bob) = (table.key("alice"), table.key("bob"));
    let mut lease = Lease::try_acquire_at(alice, secs(5), 3).unwrap();
    let part = lease.split(1).unwrap();
    assert!(lease.merge(part).is_ok());
    let other = Lease::try_acquire_at(bob, secs(5), 1).unwrap();
    assert!(lease.merge(other).is_err(), "a lease of another key");
    assert_eq!(lease.refund_at(secs(5), 2), Ok(2));
    assert_eq!((lease.permits(), alice.available_at(secs(5))), (1, 4));
    drop(lease);
    assert_eq!(
        (alice.available_at(secs(5)), bob.available_at(secs(5))),
        (4, 4),
        "these are replenished by time"
    );
}

// Threads.

const THREADS: u64 = 4;

/// Several threads take from `table` in rounds, each round at one `now`, so that no timestamp is
/// staler than the staleness. Returns what each key was granted.
///
/// Which keys find a slot, and how often slots change keys, depends on how the threads are
/// scheduled. So after `rounds` rounds they go on until [`is_varied`], for up to 50 times as many.
fn hammer<L: Limiter + Sync>(
    table: &Table<L>,
    keys: u64,
    rounds: u64,
) -> HashMap<u64, Vec<Admission>> {
    let draws = &mut Draws::Seeded { state: 1, steps: 0 };
    let mut newest = 5_000_000_000;
    let mut admitted: HashMap<u64, Vec<Admission>> = HashMap::new();
    for part in 0..50 {
        let nows: Vec<u64> = (0..rounds)
            .map(|_| {
                if draws.once_in(3) {
                    return newest - draws.magnitude(STALENESS);
                }
                newest += draws.magnitude(2_000_000_000) + draws.below(2) * STALENESS;
                newest
            })
            .collect();
        let (barrier, all) = (Barrier::new(THREADS as usize), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (nows, barrier, all) = (&nows, &barrier, &all);
                scope.spawn(move || {
                    let mut draws = Draws::Seeded {
                        state: THREADS * part + thread,
                        steps: 0,
                    };
                    let mut mine = Vec::new();
                    for (round, &now) in (rounds * part..).zip(nows) {
                        barrier.wait();
                        for _ in 0..12 {
                            // Not always the same keys, so that some are forgotten.
                            let key = (round / 16 * 7 + draws.below(10)) % keys;
                            let n = draws.within(1, 2);
                            if table.key(&key).take_at(at(now), n as u32).is_ok() {
                                mine.push((round, key, now, n));
                            }
                            if draws.once_in(20) {
                                table.sweep_at(at(now), ..);
                            }
                        }
                    }
                    all.lock().expect("no thread panicked").append(&mut mine);
                });
            }
        });
        let mut all = all.into_inner().expect("no thread panicked");
        all.sort_unstable();
        for (_, key, now, permits) in all {
            let admitted = admitted.entry(key).or_default();
            let newest = admitted.last().map_or(0, |last| last.time);
            admitted.push(Admission {
                time: now.max(newest),
                permits,
            });
        }
        if admitted.len() as u64 == keys && is_varied(table.statistics_at(at(newest))) {
            break;
        }
    }
    admitted
}

/// Whether slots have changed keys, and keys have found no slot, often enough for a meaningful
/// result.
fn is_varied(statistics: KeyedStatistics) -> bool {
    statistics.replaced.min(statistics.overflowed) > 30
}

#[test]
fn no_key_is_granted_more_than_its_bound_by_several_threads() {
    let rounds = if cfg!(debug_assertions) { 500 } else { 5_000 };
    let buckets = table(|| TokenBucket::new(RATE, BURST));
    let windows = table(|| SlidingWindow::<8>::new(4, 8 * SECOND, 8));
    let window = Bound::Segments {
        limit: 4,
        segment: 1_000_000_000,
        segments: 8,
    };
    let granted = [
        (BUCKET, hammer(&buckets, 20, rounds)),
        (window, hammer(&windows, 20, rounds)),
    ];
    for (bound, admitted) in granted {
        assert_eq!(admitted.len(), 20);
        for (key, admitted) in admitted {
            bound.check(&admitted, &|| format!("key {key}"));
        }
    }
    for statistics in [
        buckets.statistics_at(secs(5)),
        windows.statistics_at(secs(5)),
    ] {
        println!("{statistics:?}");
        assert!(is_varied(statistics));
    }
}

#[test]
fn permits_of_every_key_are_conserved_by_several_threads() {
    const LIMIT: u32 = 3;
    let table = table(|| Concurrency::new(LIMIT));
    let out: Vec<AtomicU32> = (0..20).map(|_| AtomicU32::new(0)).collect();
    let rounds = if cfg!(debug_assertions) { 500 } else { 5_000 };
    let (barrier, last) = (Barrier::new(THREADS as usize), AtomicU64::new(u64::MAX));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, out, barrier, last) = (&table, &out, &barrier, &last);
            scope.spawn(move || {
                let mut draws = Draws::Seeded {
                    state: thread,
                    steps: 0,
                };
                let mut held = Vec::new();
                for round in 0.. {
                    let now = ms(5_000 + 700 * round);
                    if barrier.wait().is_leader() && round >= rounds {
                        // How often slots change keys depends on how the threads are scheduled.
                        let seen = table.statistics_at(now);
                        if seen.replaced.min(seen.overflowed) > 100 || round > 50 * rounds {
                            last.store(round, SeqCst);
                        }
                    }
                    barrier.wait();
                    if last.load(SeqCst) == round {
                        break;
                    }
                    for _ in 0..12 {
                        let (key, n) = (draws.below(20), draws.within(1, 2) as u32);
                        if let Ok(lease) = Lease::try_acquire_at(table.key(&key), now, n) {
                            let before = out[key as usize].fetch_add(n, SeqCst);
                            assert!(before + n <= LIMIT, "{} of key {key} are held", before + n);
                            held.push((key, lease));
                        }
                        if held.len() as u64 > draws.below(4) {
                            let (key, lease) =
                                held.swap_remove(draws.below(held.len() as u64) as usize);
                            out[key as usize].fetch_sub(lease.permits(), SeqCst);
                            drop(lease);
                        }
                        if draws.once_in(20) {
                            table.sweep_at(now, ..);
                        }
                    }
                }
                for (key, lease) in held {
                    out[key as usize].fetch_sub(lease.permits(), SeqCst);
                }
            });
        }
    });
    let end = ms(5_000 + 700 * last.into_inner() + 2_000);
    let statistics = table.statistics_at(end);
    println!("{statistics:?}");
    assert_eq!(statistics.live, 0, "all are released");
    assert!(statistics.replaced.min(statistics.overflowed) > 100);
    assert_eq!(table.sweep_at(end, ..), statistics.held);
    assert!(
        (0..8u64).all(|key| table.key(&key).take_at(end, LIMIT).is_ok()),
        "and no slot is lost"
    );
}

/// A use 510 stalenesses after the one before is recorded: a stale sweep or a stale request of
/// another key does not take the slot.
#[test]
fn a_use_after_510_stalenesses_is_not_forgotten_by_a_stale_request() {
    let table = table(|| FixedWindow::new(1, Duration::from_millis(250)));
    let plain = FixedWindow::new(1, Duration::from_millis(250));
    let alice = *table.key("alice");
    let story = |limiter: &dyn Limiter, sweep: &dyn Fn()| {
        limiter.take_at(ms(7_000), 1).unwrap();
        let first = limiter.take_at(ms(517_100), 1).is_ok();
        let mut lease = limiter.try_acquire_at(ms(517_300), 1).unwrap();
        assert_eq!(lease.refund_at(ms(517_300), 1), Ok(1));
        sweep();
        let late = limiter.take_at(ms(517_100), 1).is_ok();
        let last = limiter.take_at(ms(517_400), 1).is_ok();
        [first, late, last]
            .into_iter()
            .filter(|&granted| granted)
            .count()
    };
    let own = story(&plain, &|| ());
    // All within a second of the newest `now`.
    let keyed = story(&alice, &|| {
        let _ = table.sweep_at(ms(516_900), ..);
        let _ = table.key("bob").take_at(ms(517_300), 1);
    });
    assert!(
        keyed <= own,
        "a key is granted {keyed}, a limiter of its own {own}"
    );
}

/// A slot with counted denials is in use.
#[test]
fn denials_that_count_towards_a_penalty_are_not_forgotten() {
    let make = || {
        let quick = TokenBucket::new(Rate::per_second(100), 1);
        Penalty::builder(Duration::from_mins(1))
            .after(2, Duration::from_secs(30))
            .build()
            .unwrap()
            .around(quick)
    };
    let deny = |key: &dyn Limiter, now| {
        key.take_at(now, 1).unwrap();
        key.take_at(now, 1).unwrap_err();
    };
    let (plain, table) = (make(), table(make));
    let alice = *table.key("alice");
    deny(&plain, secs(1));
    deny(&alice, secs(1));
    let _ = table.sweep_at(secs(5), ..);
    let _ = table.key("bob").take_at(secs(5), 1);
    deny(&plain, secs(6));
    deny(&alice, secs(6));
    assert!(plain.take_at(secs(7), 1).is_err(), "its penalty is active");
    assert!(
        alice.take_at(secs(7), 1).is_err(),
        "two denials in 30 s, and no penalty"
    );
}

/// A key whose limiter is fully replenished is still in use while it counts denials, or is
/// penalized, also for a stale timestamp.
#[test]
fn denials_and_penalties_are_not_forgotten_while_no_permit_is_out() {
    let make = || {
        let settings = Penalty::builder(Duration::from_mins(1)).after(2, Duration::from_secs(30));
        settings.build().unwrap().around(Concurrency::new(1))
    };
    let table = table(make);
    let (plain, alice) = (make(), *table.key("alice"));
    let both: [&dyn Limiter; 2] = [&plain, &alice];
    let deny = |now| {
        for limiter in both {
            let lease = limiter.try_acquire_at(now, 1).unwrap();
            limiter.take_at(now, 1).unwrap_err();
            drop(lease);
        }
    };
    // Any number of new keys may get all other slots of the line.
    let strangers = |now| {
        let leases =
            (0..20u64).filter_map(|key| Lease::try_acquire_at(table.key(&key), now, 1).ok());
        assert_eq!(leases.collect::<Vec<_>>().len(), 7, "at {now}");
    };
    let is_on =
        |now| both.map(|limiter| matches!(limiter.peek_at(now, 1), Err(Denied::Penalized { .. })));

    deny(ms(1_000));
    strangers(ms(5_000));
    strangers(ms(30_900));
    assert_eq!(is_on(ms(30_900)), [false; 2]);
    deny(ms(30_950));
    assert_eq!(is_on(ms(31_000)), [true; 2], "two denials in 30 s");
    strangers(ms(40_000));
    strangers(ms(90_900));
    // Over, but not for a stale timestamp.
    strangers(ms(91_500));
    assert_eq!(
        (is_on(ms(91_500)), is_on(ms(90_700))),
        ([false; 2], [true; 2])
    );
    assert_eq!(table.sweep_at(ms(94_000), ..), 8);
    assert_eq!(is_on(ms(94_000)), [false; 2]);
}

/// Counted denials alone keep the slot until their window has been over for the staleness.
#[test]
fn counted_denials_are_forgotten_when_they_count_for_no_stale_request() {
    let settings = Penalty::builder(Duration::from_mins(1))
        .after(3, Duration::from_secs(30))
        .build()
        .unwrap();
    let table = table(|| settings.around(Concurrency::new(1)));
    let alice = *table.key("alice");
    let lease = alice.try_acquire_at(ms(1_000), 1).unwrap();
    alice.take_at(ms(1_000), 1).unwrap_err();
    drop(lease);
    for millis in [1_000, 3_100, 20_000, 30_999, 31_000, 31_900, 31_999] {
        assert_eq!(table.sweep_at(ms(millis), ..), 0, "at {millis} ms");
    }
    assert_eq!(table.sweep_at(ms(32_001), ..), 1);
}

/// The hold of an escalation is not forgotten either.
#[test]
fn a_hold_is_not_forgotten_while_no_permit_is_held() {
    let warn = EscalationThreshold {
        used: 2,
        hold: Duration::from_secs(30),
        decision: "warn",
    };
    let table = table(|| Escalation::<_, _, 1>::new(Concurrency::new(2), [warn]));
    let alice = *table.key("alice");
    drop(alice.try_acquire_at(ms(1_000), 2).unwrap());
    for millis in [3_100, 20_000, 30_999, 31_900] {
        assert_eq!(table.sweep_at(ms(millis), ..), 0, "at {millis} ms");
    }
    assert_eq!(table.sweep_at(ms(32_001), ..), 1);
}

// The memory of a table.

#[test]
fn a_table_can_own_or_borrow_its_lines_and_limiters() {
    static LIMITERS: [Concurrency; 8] = [const { Concurrency::new(1) }; 8];
    static LINES: [Line; 1] = [Line::new()];
    static TABLE: KeyedArray<Concurrency, &[Concurrency], &[Line]> =
        KeyedArray::new(Concurrency::new(1), &LIMITERS, &LINES, Seed::new());
    assert!(TABLE.seed().set([1, 2]).is_ok());
    let lease = Lease::try_acquire_at(TABLE.key("alice"), secs(5), 1).unwrap();
    assert_eq!(LIMITERS.iter().map(Concurrency::in_use).sum::<u32>(), 1);
    std::thread::spawn(move || drop(lease)).join().unwrap();
    assert_eq!(LIMITERS.iter().map(Concurrency::in_use).sum::<u32>(), 0);
    let shows = |printed: &dyn Debug, name: &str| assert!(format!("{printed:?}").contains(name));
    shows(&TABLE, "KeyedArray");
}

/// Compares each key with a bucket of its own, to which the same changes are made. What the table
/// grants, the bucket of the key must grant, too.
#[test]
fn after_a_change_of_all_limiters_a_key_is_granted_no_more_than_by_a_bucket_of_its_own() {
    let (mut granted, mut denied, mut crowded, mut missed) = (0, 0, 0, 0);
    for nth in 0..if cfg!(debug_assertions) { 60 } else { 600 } {
        let mut draws = Draws::Seeded {
            state: nth,
            steps: 1_000,
        };
        let make = || AdjustableBucket::new(Rate::per_second(2), 4);
        let table = table_of(make, 2, nth);
        let twins: Vec<_> = (0..40).map(|_| make()).collect();
        let mut now = 5_000_000_000;
        while draws.another_step() {
            now += draws.below(60_000_000);
            // Some keys rest for long, so their slots go to others.
            let key = (draws.below(12) + now / 8_000_000_000 * 5) % 40;
            if draws.below(40) == 0 {
                let rate = Rate::per_second([0, 1, 3, 20][draws.below(4) as usize]);
                let burst = [1, 2, 5, 30][draws.below(4) as usize];
                let carry =
                    [Carry::Keep, Carry::Proportional, Carry::Additive][draws.below(3) as usize];
                let adjust =
                    |bucket: &AdjustableBucket| bucket.adjust_at(at(now), rate, burst, carry);
                let outcome = table.change_all(adjust);
                assert_eq!(outcome, Ok(()), "{nth} at {now}");
                for twin in &twins {
                    adjust(twin).unwrap();
                }
                let capacities = table.limiters().iter().chain([table.fresh()]);
                assert!(capacities.map(Limiter::capacity).all(|all| all == burst));
            }
            let n = 1 + draws.below(3) as u32;
            let twin = &twins[key as usize];
            match table.key(&key).take_at(at(now), n) {
                Ok(_) => {
                    granted += 1;
                    assert!(
                        twin.take_at(at(now), n).is_ok(),
                        "{nth}: key {key} was granted {n} at {now}"
                    );
                }
                Err(Denied::Crowded { .. }) => crowded += 1,
                Err(_) => {
                    denied += 1;
                    missed += u32::from(twin.peek_at(at(now), n).is_ok());
                }
            }
        }
    }
    println!("{granted} granted, {denied} denied, {missed} needlessly, {crowded} without a slot");
    assert!(granted > 1_000 && denied > 1_000 && crowded > 100);
    assert!(missed * 20 < denied, "{missed} of {denied} needlessly");
}

#[test]
fn a_change_of_one_key_gives_it_a_slot_and_changes_no_other_key() {
    let pause = Penalty::builder(Duration::from_hours(1)).started_by_hand();
    let pause = pause.build().unwrap();
    let table = table_of(|| pause.around(Concurrency::new(2)), 8, 0);
    let until = secs(60);
    let hold =
        |key: &str| table.change_key_at(secs(9), key, |limit| limit.penalize_at(secs(9), until));
    assert_eq!(hold("alice"), Ok(until));
    assert_eq!(table.statistics_at(secs(9)).live, 1, "it has a slot");
    let available = |key: &str, now| table.key(key).available_at(now);
    assert_eq!(
        [available("alice", secs(9)), available("bob", secs(9))],
        [0, 2]
    );
    assert_eq!(table.sweep_at(secs(59), ..), 0, "the slot is kept");
    assert_eq!(
        [available("alice", secs(59)), available("alice", until)],
        [0, 2]
    );

    // As many keys as there are slots, and no more.
    let held = (0..100)
        .filter(|n| hold(&format!("key {n}")).is_ok())
        .count();
    assert_eq!(table.statistics_at(secs(9)).live, 1 + held);
    let full: Vec<_> = (0..100)
        .map(|n| format!("key {n}"))
        .filter(|key| hold(key).is_err())
        .collect();
    assert!(!full.is_empty());
    for key in full {
        assert_eq!(hold(&key), crowded(secs(9), 1));
        assert_eq!(
            metadata::PENALIZED_UNTIL.of_granted(&*table.key(&*key), secs(9)),
            None
        );
    }
    // A penalty of the limiter for keys without a slot does not keep a key from being changed.
    let table = table_of(|| pause.around(Concurrency::new(2)), 8, 0);
    table
        .change_all(|limit| Ok::<_, ()>(limit.penalize_at(secs(9), secs(10))))
        .unwrap();
    let longer = table.change_key_at(secs(9), "alice", |limit| limit.penalize_at(secs(9), until));
    assert_eq!(longer, Ok(until));
    let second = [table.key("alice"), table.key("bob")].map(|key| key.available_at(secs(10)));
    assert_eq!(second, [0, 2]);
}

#[test]
fn a_change_that_the_first_limiter_refuses_changes_none() {
    let table = table(|| Concurrency::new(3));
    let mut asked = 0;
    let refused = table.change_all(|limit| {
        asked += 1;
        limit.set_limit(u32::MAX)
    });
    let refused = refused.unwrap_err();
    assert_eq!((asked, refused.changed, refused.unchanged), (1, 0, 9));
    let text = refused.to_string();
    assert!(
        text.starts_with("9 of 9 limiters were not changed"),
        "{text}"
    );
    assert!(table.limiters().iter().all(|limit| limit.limit() == 3));
}

#[test]
fn a_limiter_that_refuses_a_change_does_not_keep_the_others_from_theirs() {
    let table = table(|| Concurrency::new(3));
    let mut asked = 0;
    let refused = table.change_all(|limit| {
        asked += 1;
        if asked == 4 || asked == 6 {
            return Err(asked);
        }
        limit.set_limit(5).map_err(|_| 0)
    });
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.first, refused.changed, refused.unchanged),
        (4, 7, 2)
    );
    let changed = |limit: &&Concurrency| limit.limit() == 5;
    assert_eq!(table.limiters().iter().filter(changed).count(), 6);
    // The second call changes the rest.
    assert!(table.change_all(|limit| limit.set_limit(5)).is_ok());
    assert_eq!(table.limiters().iter().filter(changed).count(), 8);
    assert_eq!(table.fresh().limit(), 5);
}

#[cfg(feature = "std")]
#[test]
fn a_table_for_n_keys_has_slots_for_them() {
    // With a random seed, two of the keys might collide.
    let limit = || Concurrency::new(1);
    let table = KeyedArray::for_keys_with_hasher(limit, 1_000, Seed::new());
    let granted = (0..1_000u64)
        .filter(|key| table.key(key).take_at(secs(5), 1).is_ok())
        .count();
    let statistics = table.statistics_at(secs(5));
    assert_eq!(statistics.slots, table.limiters().len());
    assert_eq!((statistics.live, granted), (1_000, 1_000));
}
