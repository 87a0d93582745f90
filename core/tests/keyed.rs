//! A table decides for each key as a plain limiter of that key. In a table that is much too small,
//! a key may be denied because the table is full, but is never granted more.
//!
//! Random traces go to a table and to one plain limiter per key, and each decision is compared. A
//! separate count checks what each key was granted against its bound, over every window of time.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::cell::{Cell, RefCell};
use core::fmt::{self, Debug, Display};
use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::collections::HashMap;
use std::hash::RandomState;
use std::panic::catch_unwind;
use std::rc::Rc;
#[cfg(feature = "std")]
use std::sync::Arc;

use draws::Draws;
use portcullis_core::builder::{FixedWindowBuilder, TokenBucketBuilder};
use portcullis_core::keyed::{
    ConcurrencyRules, FixedWindowRules, KeyHash, KeyedRules, KeyedStatistics, Line, RandomSeed,
    Seed, SeedFixed, TableKey, TokenBucketRules,
};
use portcullis_core::limiter::Idle;
use portcullis_core::{
    AllOf, Concurrency, Denied, FixedWindow, Keyed, Lease, Limiter, LimiterExt, Rate, Retry,
    Timestamp, TokenBucket,
};

/// How stale a `now` may be: the staleness of every table here.
const STALENESS: u64 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

const fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

fn lines(n: usize) -> Vec<Line> {
    (0..n).map(|_| Line::new()).collect()
}

fn seed(n: u64) -> Seed {
    let seed = Seed::new();
    seed.set([n + 1, !n]).expect("not used before");
    seed
}

// A limiter on the table's word, the plain limiter that decides alike, and the bound of both.

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
    /// At most `limit` in each window of the grid.
    Grid { limit: u64, window: u64 },
    /// At most `limit` from a window's start, rounded up to a tick, to its end.
    Started { limit: u64, window: u64, tick: u64 },
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
    fn check(self, admitted: &[Admission], were_refunded: bool, context: &dyn Fn() -> String) {
        match self {
            Self::Bucket {
                burst,
                permits,
                period,
                tick,
            } => {
                let spans = |first: usize, held: u64, last: &Admission| {
                    let time =
                        u128::from(last.time / tick * tick - admitted[first].time / tick * tick);
                    let most = u128::from(burst) * u128::from(period) + u128::from(permits) * time;
                    assert!(
                        u128::from(held) * u128::from(period) <= most,
                        "{held} in {time} ns; {}",
                        context()
                    );
                };
                for_each_span(admitted, spans);
            }
            Self::Grid { limit, window } => {
                let mut counts = HashMap::new();
                for admission in admitted {
                    let count = counts.entry(admission.time / window).or_insert(0);
                    *count += admission.permits;
                    assert!(*count <= limit, "{count} in one window; {}", context());
                }
            }
            Self::Started {
                limit,
                window,
                tick,
            } => {
                for_each_span(admitted, |first, held, last| {
                    let is_within = last.time - admitted[first].time < window;
                    assert!(
                        !is_within || held <= 2 * limit,
                        "{held} in the length of a window; {}",
                        context()
                    );
                });
                // Refunded permits may have started a window.
                if !were_refunded {
                    let (mut end, mut count) = (0, 0);
                    for admission in admitted {
                        if admission.time >= end {
                            end = (admission.time.div_ceil(tick) + window.div_ceil(tick)) * tick;
                            count = 0;
                        }
                        count += admission.permits;
                        assert!(count <= limit, "{count} up to {end}; {}", context());
                    }
                }
            }
            Self::Out { .. } => {}
        }
    }
}

/// Calls `check` with each first admission, the permits from it up to another one, and that one.
fn for_each_span(admitted: &[Admission], check: impl Fn(usize, u64, &Admission)) {
    for first in 0..admitted.len() {
        let mut held = 0;
        for last in &admitted[first..] {
            held += last.permits;
            check(first, held, last);
        }
    }
}

/// How to make a limiter for a table, and a plain limiter that decides alike.
struct Case<L, P> {
    name: String,
    keyed: Box<dyn Fn() -> L>,
    plain: Box<dyn Fn() -> P>,
    bound: Bound,
    /// The time up to which the table's word is far from a wrap.
    span: u64,
}

fn half(horizon: Duration) -> u64 {
    u64::try_from(horizon.as_nanos() / 2).unwrap_or(u64::MAX / 2)
}

fn bucket(rate: Rate, builder: TokenBucketBuilder) -> Case<TokenBucketRules, TokenBucket> {
    let keyed = move || builder.rules().unwrap();
    let tick = keyed().timing().tick;
    // The tick of a stepwise bucket is its period in any case.
    let plain = move || builder.tick(tick).build().unwrap();
    assert_eq!(plain().timing().tick, tick);
    let bound = Bound::Bucket {
        burst: keyed().burst(),
        permits: rate.permits(),
        period: rate.period().as_nanos() as u64,
        tick: tick.as_nanos() as u64,
    };
    let (name, span) = (format!("{builder:?}"), half(keyed().timing().horizon));
    Case {
        name,
        keyed: Box::new(keyed),
        plain: Box::new(plain),
        bound,
        span,
    }
}

fn buckets() -> Vec<Case<TokenBucketRules, TokenBucket>> {
    let of = |rate, burst| bucket(rate, TokenBucket::builder(rate, burst));
    let quick = Rate::new(7, Duration::from_millis(10));
    let coarse = TokenBucket::builder(quick, 3).tick(Duration::from_millis(1));
    let steps = Rate::per_second(2);
    vec![
        of(Rate::per_second(5), 10),
        of(Rate::per_second(1), 1),
        of(quick, 3),
        of(Rate::per_hour(3), 2),
        of(Rate::ZERO, 2),
        bucket(quick, coarse),
        bucket(steps, TokenBucket::builder(steps, 5).stepwise()),
    ]
}

fn window(builder: FixedWindowBuilder, bound: Bound) -> Case<FixedWindowRules, FixedWindow> {
    let keyed = move || builder.rules().unwrap();
    let (name, span) = (format!("{builder:?}"), half(keyed().timing().horizon));
    Case {
        name,
        keyed: Box::new(keyed),
        plain: Box::new(move || builder.build().unwrap()),
        bound,
        span,
    }
}

fn windows() -> Vec<Case<FixedWindowRules, FixedWindow>> {
    let grid = |limit, millis| {
        let builder = FixedWindow::builder(limit, Duration::from_millis(millis));
        window(
            builder,
            Bound::Grid {
                limit,
                window: millis * 1_000_000,
            },
        )
    };
    let started = |limit, millis, tick| {
        let builder = FixedWindow::builder(limit, Duration::from_millis(millis));
        let builder = builder
            .started_by_first_request()
            .tick(Duration::from_nanos(tick));
        window(
            builder,
            Bound::Started {
                limit,
                window: millis * 1_000_000,
                tick,
            },
        )
    };
    let patient = FixedWindow::builder(3, SECOND).staleness(SECOND);
    vec![
        grid(3, 1_000),
        grid(20, 700),
        grid(1, 60_000),
        window(
            patient,
            Bound::Grid {
                limit: 3,
                window: 1_000_000_000,
            },
        ),
        started(3, 1_000, 1),
        started(5, 700, 1_000),
        started(1, 10_000, 1_000_000),
    ]
}

fn concurrency(limit: u32) -> Case<ConcurrencyRules, Concurrency> {
    Case {
        name: format!("{limit} at once"),
        keyed: Box::new(move || ConcurrencyRules::new(limit)),
        plain: Box::new(move || Concurrency::new(limit)),
        bound: Bound::Out {
            limit: limit.into(),
        },
        span: u64::MAX / 2,
    }
}

// Random traces.

/// Counts of what happened in the traces.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    granted: u64,
    exhausted: u64,
    beyond: u64,
    crowded: u64,
    late: u64,
    retried: u64,
    refunded: u64,
    replaced: u64,
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            granted,
            exhausted,
            beyond,
            crowded,
            late,
            retried,
            refunded,
            replaced,
        } = self;
        write!(
            f,
            "{granted} granted, {exhausted} exhausted, {beyond} beyond the capacity, {crowded} crowded; "
        )?;
        write!(
            f,
            "{late} late, {retried} retried, {refunded} refunded, {replaced} replaced"
        )
    }
}

type Table<L, S> = Keyed<L, Vec<Line>, S>;

/// A key: its plain limiter, and what it was granted.
struct User<P> {
    plain: Rc<P>,
    /// The newest `now` written for the key.
    newest: u64,
    admitted: Vec<Admission>,
    out: u64,
    has_been_granted: bool,
    were_refunded: bool,
}

/// A grant that may still be refunded.
struct Grant<'t, L: KeyedRules, P: Limiter, S: BuildHasher> {
    key: u64,
    keyed: Lease<TableKey<&'t Table<L, S>>>,
    /// The lease of the plain limiter, if keys do not share slots.
    plain: Option<Lease<Rc<P>>>,
    /// The index of the admission among those of the key.
    index: usize,
    /// The key's newest `now` before the grant.
    before: u64,
}

/// Runs a random trace of `keys` keys on `table`. It is `exact` if no two keys share a slot: then
/// each decision is that of the key's plain limiter, unless the table is full.
struct Trace<'t, L: KeyedRules, P: Limiter, S: BuildHasher> {
    case: &'t Case<L, P>,
    table: &'t Table<L, S>,
    is_exact: bool,
    users: HashMap<u64, User<P>>,
    grants: Vec<Grant<'t, L, P, S>>,
    /// The newest `now` that the table got.
    newest: u64,
    tally: Tally,
}

impl<'t, L: KeyedRules, P: Limiter, S: BuildHasher> Trace<'t, L, P, S> {
    fn new(case: &'t Case<L, P>, table: &'t Table<L, S>, is_exact: bool) -> Self {
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
        while draws.another_step() && self.newest < self.case.span {
            // Some keys are used more often than others.
            let key = draws.below(keys).min(draws.below(keys));
            let now = self.next_time(draws);
            self.tally.late += u64::from(now < self.newest);
            self.newest = self.newest.max(now);
            match draws.below(8) {
                0 => self.read(key, now, draws.below(4) as u32),
                1 if !self.grants.is_empty() => self.refund(now, draws),
                2 | 3 if self.grants.len() > draws.below(40) as usize => {
                    let pick = draws.below(self.grants.len() as u64) as usize;
                    self.end(pick);
                }
                _ => self.take(key, now, draws),
            }
        }
        let statistics = self.table.statistics_at(at(self.newest));
        assert!(
            !self.is_exact || statistics.live == self.live(),
            "{}",
            self.case.name
        );
        self.tally.crowded = statistics.overflowed;
        self.tally.replaced = statistics.replaced;
        for (key, user) in &mut self.users {
            user.admitted.retain(|admission| admission.permits > 0);
            let context = || format!("key {key} of {}: {:?}", self.case.name, user.admitted);
            self.case
                .bound
                .check(&user.admitted, user.were_refunded, &context);
        }
        self.tally
    }

    fn next_time(&self, draws: &mut Draws<'_>) -> u64 {
        let far = self.case.span / 50;
        match draws.below(16) {
            0..=2 => self.newest,
            3..=6 => self.newest + draws.magnitude(1_000_000),
            7..=9 => self.newest + draws.magnitude(300_000_000),
            10 => self.newest + draws.magnitude(3_000_000_000),
            11 if draws.once_in(4) => self.newest + draws.magnitude(far),
            12 => self.newest.saturating_sub(STALENESS - draws.below(2)),
            13 => self.newest.saturating_sub(draws.within(0, STALENESS)),
            _ => self.newest.saturating_sub(draws.magnitude(STALENESS)),
        }
    }

    fn user(&mut self, key: u64) -> &mut User<P> {
        self.users.entry(key).or_insert_with(|| User {
            plain: Rc::new((self.case.plain)()),
            newest: 0,
            admitted: Vec::new(),
            out: 0,
            has_been_granted: false,
            were_refunded: false,
        })
    }

    /// Whether the table may have given the key's slot to another key, or never had one for it.
    fn may_be_forgotten(&mut self, key: u64) -> bool {
        let newest = self.newest;
        let user = self.user(key);
        match user.plain.idle_at(at(newest)) {
            _ if !user.has_been_granted => true,
            Idle::Since(since) => since.as_nanos() <= newest.saturating_sub(STALENESS),
            // A concurrency limit, or an empty window.
            idle => idle == Idle::Now,
        }
    }

    /// Whether an answer is the plain limiter's; or that the table is full, where it may be.
    fn check_answer<T, U>(
        &mut self,
        key: u64,
        now: u64,
        n: u32,
        keyed: &Result<T, Denied>,
        plain: &Result<U, Denied>,
    ) {
        let may_be_forgotten = self.may_be_forgotten(key);
        let name = &self.case.name;
        match (keyed.as_ref().err(), plain.as_ref().err()) {
            (Some(&denied @ Denied::Crowded { .. }), None) => {
                assert_eq!(
                    denied,
                    Denied::Crowded {
                        now: at(now),
                        permits: n
                    }
                );
                assert_eq!(denied.retry(&*self.table.key(&key)), Retry::After(SECOND));
                assert!(
                    may_be_forgotten,
                    "{name}: key {key} was forgotten while in use, at {now}"
                );
            }
            (keyed, plain) => assert_eq!(keyed, plain, "{name}: key {key}, {n} at {now}"),
        }
    }

    fn read(&mut self, key: u64, now: u64, n: u32) {
        let limiter = *self.table.key(&key);
        let held = self.table.statistics_at(at(now)).held;
        let looked = limiter.peek_at(at(now), n);
        let (available, idle) = (limiter.available_at(at(now)), limiter.idle_at(at(now)));
        if self.is_exact {
            let plain = self.user(key).plain.clone();
            self.check_answer(key, now, n, &looked, &plain.peek_at(at(now), n));
            let is_crowded = matches!(limiter.peek_at(at(now), 0), Err(Denied::Crowded { .. }));
            assert_eq!(
                available,
                if is_crowded {
                    0
                } else {
                    plain.available_at(at(now))
                },
                "{}: key {key} at {now}",
                self.case.name
            );
            assert_eq!(limiter.capacity(), plain.capacity());
            match (idle, plain.idle_at(at(now))) {
                // A key without a slot counts as idle since the query.
                (Idle::Since(_), Idle::Since(_)) if self.may_be_forgotten(key) => {}
                (keyed, plain) => {
                    assert_eq!(keyed, plain, "{}: key {key} at {now}", self.case.name);
                }
            }
        }
        assert_eq!(
            self.table.statistics_at(at(now)).held,
            held,
            "a query created a slot"
        );
    }

    fn take(&mut self, key: u64, now: u64, draws: &mut Draws<'_>) {
        let most = self.table.key(&key).available_at(at(now)).min(1_000_000);
        let some = draws.within(0, most);
        let n = draws.one_of(&[1, 1, 1, some, most, most + 1, 0, u32::MAX.into()]) as u32;
        let Some(denied) = self.try_take(key, now, n) else {
            return;
        };
        let limiter = *self.table.key(&key);
        let retry = limiter.retry(denied);
        if let (true, Denied::Exhausted { .. }) = (self.is_exact, denied) {
            assert_eq!(
                retry,
                self.user(key).plain.retry(denied),
                "{}: key {key}",
                self.case.name
            );
            if let Retry::At(then) = retry
                && then.as_nanos() < self.case.span
                && draws.once_in(2)
            {
                let then = then.as_nanos();
                assert!(
                    self.try_take(key, then - 1, n).is_some(),
                    "{}: granted too early",
                    self.case.name
                );
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
        let entries = self.table.statistics_at(at(now));
        let looked = self.table.key(&key).peek_at(at(now), n);
        let taken = Lease::try_acquire_at(self.table.key(&key), at(now), n);
        assert_eq!(
            taken.as_ref().map(|_| ()).map_err(|&denied| denied),
            looked,
            "not as the look before it"
        );
        let may_be_forgotten = self.may_be_forgotten(key);
        let plain = self.user(key).plain.clone();
        let mut twin = None;
        if self.is_exact {
            let by_plain = plain.peek_at(at(now), n);
            self.check_answer(key, now, n, &taken, &by_plain);
            if taken.is_ok() {
                twin = Some(Lease::try_acquire_at(plain, at(now), n).unwrap());
            }
        }
        self.check_counts(key, n, &taken, entries, may_be_forgotten);
        let keyed = match taken {
            Ok(lease) if n > 0 => lease,
            other => {
                let denied = other.err()?;
                match denied {
                    Denied::Exhausted { .. } => self.tally.exhausted += 1,
                    Denied::Crowded { .. } => {}
                    _ => self.tally.beyond += 1,
                }
                return Some(denied);
            }
        };
        self.tally.granted += 1;
        let bound = self.case.bound;
        let user = self.user(key);
        let before = user.newest;
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
        let index = user.admitted.len() - 1;
        self.grants.push(Grant {
            key,
            keyed,
            plain: twin,
            index,
            before,
        });
        None
    }

    /// Checks the effect of a request for `n` on the table's counts.
    fn check_counts<T>(
        &mut self,
        key: u64,
        n: u32,
        taken: &Result<T, Denied>,
        before: KeyedStatistics,
        may_be_forgotten: bool,
    ) {
        let after = self.table.statistics_at(at(self.newest));
        let is_crowded = n > 0 && matches!(taken, Err(Denied::Crowded { .. }));
        assert_eq!(after.overflowed - before.overflowed, u64::from(is_crowded));
        let ever_claimed = |counts: KeyedStatistics| counts.held as u64 + counts.replaced;
        let claimed = ever_claimed(after) - ever_claimed(before);
        if n == 0 || taken.is_err() {
            assert_eq!(claimed, 0, "nothing granted, but a slot claimed");
        } else if self.is_exact && !self.user(key).has_been_granted {
            assert_eq!(claimed, 1, "the first grant of {key}");
        } else if self.is_exact && !may_be_forgotten {
            assert_eq!(claimed, 0, "{key} has a slot");
        } else {
            assert!(claimed <= 1);
        }
        assert!(after.live <= after.held && after.held <= after.slots);
    }

    /// The number of keys in use, by their plain limiters.
    fn live(&self) -> usize {
        self.users
            .values()
            .filter(|user| !user.plain.idle_at(at(self.newest)).is_idle())
            .count()
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
        let (key, index, before) = (grant.key, grant.index, grant.before);
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
        let bound = self.case.bound;
        let user = self.user(key);
        user.were_refunded |= refunded > 0;
        user.out -= u64::from(n);
        let admission = &mut user.admitted[index];
        admission.permits -= u64::from(refunded);
        // A refund of a whole take from a bucket is as if the take had not been made, also for the
        // newest `now`.
        if let Bound::Bucket { .. } = bound
            && refunded > 0
            && admission.permits == 0
        {
            user.newest = before;
        }
    }

    /// Ends a grant: permits that return by release do so.
    fn end(&mut self, pick: usize) {
        let grant = self.grants.swap_remove(pick);
        let permits = grant.keyed.permits();
        self.user(grant.key).out -= u64::from(permits);
    }
}

/// Runs traces of `keys` keys on tables of `lines` lines.
fn traces<L: KeyedRules, P: Limiter>(
    cases: &[Case<L, P>],
    sizes: &[usize],
    keys: u64,
    steps: u32,
) -> Tally {
    let mut tally = Tally::default();
    for case in cases {
        for (&size, nth) in sizes.iter().zip(0..) {
            let table = Keyed::new((case.keyed)(), lines(size), seed(nth));
            let mut draws = Draws::Seeded { state: nth, steps };
            tally.add(Trace::new(case, &table, true).run(keys, &mut draws));
        }
    }
    tally
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.exhausted += other.exhausted;
        self.beyond += other.beyond;
        self.crowded += other.crowded;
        self.late += other.late;
        self.retried += other.retried;
        self.refunded += other.refunded;
        self.replaced += other.replaced;
    }
}

const STEPS: u32 = if cfg!(debug_assertions) {
    2_500
} else {
    40_000
};

#[test]
fn each_key_decides_as_its_own_limiter_while_the_table_has_room() {
    fn check<L: KeyedRules, P: Limiter>(what: &str, cases: &[Case<L, P>]) -> Tally {
        let tally = traces(cases, &[41, 64, 101], 40, STEPS);
        println!("{what}: {tally}");
        assert_eq!(tally.crowded, 0);
        assert!(
            tally
                .granted
                .min(tally.exhausted)
                .min(tally.late)
                .min(tally.refunded)
                > 1_000
        );
        assert!(tally.replaced > 20, "no slot was ever forgotten");
        tally
    }
    assert!(check("token buckets", &buckets()).retried > 1_000);
    assert!(check("fixed windows", &windows()).retried > 1_000);
    check("concurrency", &[1, 2, 7, 1_000].map(concurrency));
}

#[test]
fn a_full_table_denies_but_never_grants_more() {
    fn check<L: KeyedRules, P: Limiter>(what: &str, cases: &[Case<L, P>], keys: u64) {
        let tally = traces(cases, &[1, 2, 3, 1, 2, 3], keys, STEPS);
        println!("{what}: {tally}");
        assert!(tally.crowded.min(tally.replaced).min(tally.late) > 1_000);
        assert!(tally.granted.min(tally.refunded) > 1_000);
    }
    check("token buckets", &buckets(), 100);
    check("fixed windows", &windows(), 100);
    check("concurrency", &[1, 2, 7, 1_000].map(concurrency), 100);
}

/// Hashes keys to few tags; the rest of the hash selects the line.
#[derive(Clone, Copy)]
struct FewTags(u64);

impl BuildHasher for FewTags {
    type Hasher = Few;

    fn build_hasher(&self) -> Few {
        Few {
            tags: self.0,
            key: 0,
        }
    }
}

struct Few {
    tags: u64,
    key: u64,
}

impl Hasher for Few {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.key = self.key << 8 | u64::from(byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.key = key;
    }

    fn finish(&self) -> u64 {
        let line = self.key.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xffff_ffff_0000_0000;
        line | ((1 + self.key % self.tags) * 7_919)
    }
}

#[test]
fn keys_with_one_tag_share_one_limit_or_have_separate_limits() {
    // In small tables, so that slots of one tag are in lines of other keys with that tag, and those
    // keys find them.
    fn check<L: KeyedRules, P: Limiter>(what: &str, cases: &[Case<L, P>]) {
        let mut tally = Tally::default();
        for case in cases {
            for (size, tags) in [(2, 1), (3, 1), (3, 2), (5, 3), (8, 12), (8, 40)] {
                let table = Keyed::new((case.keyed)(), lines(size), FewTags(tags));
                let mut draws = Draws::Seeded {
                    state: tags,
                    steps: STEPS,
                };
                tally.add(Trace::new(case, &table, false).run(150, &mut draws));
            }
        }
        println!("{what}: {tally}");
        assert!(tally.granted.min(tally.exhausted) > 1_000);
    }
    check("token buckets", &buckets());
    check("concurrency", &[1, 2, 7].map(concurrency));
}

#[test]
fn keys_have_one_id_if_and_only_if_they_share_a_limit() {
    let mut shared = 0;
    for one in 0..60u64 {
        let table = Keyed::new(ConcurrencyRules::new(1), lines(5), FewTags(3));
        assert!(table.key(&one).take_at(secs(0), 1).is_ok());
        for other in 0..60u64 {
            let is_shared = table.key(&other).available_at(secs(0)) == 0;
            assert_eq!(
                table.key(&one).id() == table.key(&other).id(),
                is_shared,
                "{one} and {other}"
            );
            let both = AllOf::new([*table.key(&one), *table.key(&other)]);
            table.rules().set_limit(2).unwrap();
            assert_eq!(
                both.try_acquire_at(secs(0), 1).is_err(),
                is_shared,
                "one is left for both"
            );
            table.rules().set_limit(1).unwrap();
            shared += u32::from(is_shared);
        }
    }
    assert!((100..1_000).contains(&shared), "{shared} of 3,600 pairs");
}

// Compositions.

#[test]
fn limits_by_user_and_tenant_and_for_all_take_all_or_none() {
    let small = |rate, burst| TokenBucket::builder(rate, burst).rules().unwrap();
    let mut granted = 0;
    let mut denied_by = [0; 3];
    let mut crowded = 0;
    for state in 0..20 {
        let (user_rate, tenant_rate, all_rate) = (
            Rate::per_second(2),
            Rate::per_second(5),
            Rate::per_second(20),
        );
        let users = Keyed::new(small(user_rate, 3), lines(2), seed(state));
        let tenants = Keyed::new(small(tenant_rate, 10), lines(1), seed(state));
        let all = TokenBucket::builder(all_rate, 30)
            .tick(Duration::from_micros(1))
            .build()
            .unwrap();
        let draws = &mut Draws::Seeded {
            state,
            steps: 3_000,
        };
        let mut admitted: HashMap<(usize, u64), (u64, Vec<Admission>)> = HashMap::new();
        let mut newest = 2_000_000_000;
        while draws.another_step() {
            let now = match draws.below(4) {
                0 => newest - draws.magnitude(STALENESS),
                1 => newest + draws.magnitude(2_000_000_000),
                _ => newest + draws.magnitude(30_000_000),
            };
            newest = newest.max(now);
            let keys = [draws.below(40), draws.below(9), 0];
            let n = draws.within(1, 3) as u32;
            let (user, tenant) = (*users.key(&keys[0]), *tenants.key(&keys[1]));
            let limits: [&dyn Limiter; 3] = [&user, &tenant, &all];
            let available = || limits.map(|limit| limit.available_at(at(now)));
            let before = available();
            match AllOf::new(limits).try_acquire_at(at(now), n) {
                Ok(lease) => {
                    assert_eq!(available(), before.map(|left| left - u64::from(n)));
                    assert_eq!(lease.forget(), n);
                    granted += 1;
                    for (index, key) in keys.into_iter().enumerate() {
                        let (newest, admitted) = admitted.entry((index, key)).or_default();
                        *newest = now.max(*newest);
                        admitted.push(Admission {
                            time: *newest,
                            permits: n.into(),
                        });
                    }
                }
                Err(denied) => {
                    assert_eq!(available(), before, "{denied}: something was taken");
                    denied_by[denied.index] += 1;
                    crowded += u64::from(matches!(denied.denied, Denied::Crowded { .. }));
                }
            }
        }
        for ((index, key), (_, admitted)) in admitted {
            let bound = |rate: Rate, burst| Bound::Bucket {
                burst,
                permits: rate.permits(),
                period: 1_000_000_000,
                tick: 1_000,
            };
            let bound = [
                bound(user_rate, 3),
                bound(tenant_rate, 10),
                bound(all_rate, 30),
            ][index];
            bound.check(&admitted, false, &|| {
                format!("limit {index}, key {key}, state {state}")
            });
        }
    }
    println!(
        "{granted} granted; denied by user, tenant, all: {denied_by:?}; {crowded} of them crowded"
    );
    assert!(granted > 1_000 && denied_by.into_iter().min() > Some(100) && crowded > 100);
}

#[test]
fn two_keys_that_need_the_last_slot_both_get_nothing() {
    // Six of seven slots are in use. A look finds a slot for each of the two keys, but the second
    // take does not.
    let table = Keyed::new(ConcurrencyRules::new(2), lines(1), seed(0));
    let limiters: Vec<_> = (0..8u64).map(|key| *table.key(&key)).collect();
    let _held: Vec<_> = limiters[..6]
        .iter()
        .map(|key| key.try_acquire_at(secs(0), 1).unwrap())
        .collect();
    let both = AllOf::new([limiters[6], limiters[7]]);
    assert!(both.peek_at(secs(0), 1).is_ok());
    let denied = both.try_acquire_at(secs(0), 1).unwrap_err();
    assert_eq!(
        (denied.index, denied.denied),
        (
            1,
            Denied::Crowded {
                now: secs(0),
                permits: 1
            }
        )
    );
    assert_eq!(
        limiters
            .iter()
            .map(|key| key.available_at(secs(0)))
            .sum::<u64>(),
        6 + 4
    );
    assert!(
        limiters[7].try_acquire_at(secs(0), 2).is_ok(),
        "the slot is free"
    );
}

#[test]
fn a_key_that_is_named_twice_is_asked_for_both() {
    let table = Keyed::new(ConcurrencyRules::new(3), lines(8), seed(0));
    let (alice, again, bob) = (*table.key("alice"), *table.key("alice"), *table.key("bob"));
    assert_eq!(alice.id(), again.id());
    assert_ne!(alice.id(), bob.id());
    let twice = AllOf::new([alice, bob, again]);
    assert_eq!(twice.available_at(secs(0)), 1);
    assert!(twice.try_acquire_at(secs(0), 2).is_err(), "four of three");
    let lease = twice.try_acquire_at(secs(0), 1).unwrap();
    assert_eq!(
        (alice.available_at(secs(0)), bob.available_at(secs(0))),
        (1, 2)
    );
    drop(lease);
    assert_eq!(
        (alice.available_at(secs(0)), bob.available_at(secs(0))),
        (3, 3)
    );
    let other = Keyed::new(ConcurrencyRules::new(3), lines(8), seed(0));
    assert_ne!(alice.id(), other.key("alice").id(), "another table");
}

// Slots.

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

#[test]
fn a_line_fills_up_and_is_forgotten_and_every_count_is_exact() {
    let limit = TokenBucket::builder(Rate::per_second(1), 2)
        .rules()
        .unwrap();
    let table = Keyed::new(limit, lines(1), seed(0));
    let take = |key: u64, now, n| {
        table
            .key(&key)
            .try_acquire_at(now, n)
            .map(|lease| lease.permits())
    };
    let after = |now| counts(table.statistics_at(now));
    assert_eq!(after(secs(10)), [7, 0, 0, 0, 0]);
    for key in 0..7 {
        assert_eq!(take(key, secs(10), 1), Ok(1));
    }
    assert_eq!(after(secs(10)), [7, 7, 7, 0, 0]);
    let crowded = |n| {
        Err(Denied::Crowded {
            now: secs(11),
            permits: n,
        })
    };
    assert_eq!(
        (take(8, secs(11), 1), take(9, secs(11), 2)),
        (crowded(1), crowded(2)),
        "full, but not for a whole second"
    );
    assert_eq!(after(secs(11)), [7, 7, 0, 0, 2]);
    assert_eq!(table.key(&8_u64).available_at(secs(11)), 0, "no slot");
    assert_eq!(table.key(&6_u64).available_at(secs(11)), 2);
    assert_eq!(table.key(&8_u64).available_at(secs(12)), 2);
    assert_eq!(
        take(9, secs(11), 3),
        Err(Denied::ExceedsCapacity {
            permits: 3,
            capacity: 2
        })
    );
    assert_eq!(after(secs(11)), [7, 7, 0, 0, 2], "no lack of slots");
    assert_eq!(take(6, secs(11), 2), Ok(2));
    // Now full for a second.
    assert_eq!(take(8, secs(12), 2), Ok(2));
    assert_eq!(after(secs(12)), [7, 7, 2, 1, 2]);
    assert_eq!(
        take(8, secs(12), 1),
        Err(Denied::Exhausted {
            now: secs(12),
            permits: 1
        })
    );
    // The five other slots become vacant; 6 and 8 are in use, or were until just now.
    assert_eq!(
        (
            table.sweep_at(at(11_999_999_999), ..),
            table.sweep_at(secs(12), ..)
        ),
        (0, 5)
    );
    assert_eq!(after(secs(12)), [7, 2, 2, 1, 2]);
    assert_eq!(
        (table.sweep_at(secs(13), ..), table.sweep_at(secs(14), ..)),
        (0, 1),
        "6 at 14, 8 at 15"
    );
    assert_eq!(
        (table.sweep_at(secs(15), ..), table.sweep_at(secs(99), ..)),
        (1, 0)
    );
    assert_eq!(after(secs(15)), [7, 0, 0, 1, 2]);
    assert_eq!(take(9, secs(15), 1), Ok(1));
    assert_eq!(
        after(secs(15)),
        [7, 1, 1, 1, 2],
        "taking a vacant slot replaces no key"
    );
}

#[test]
fn a_longer_staleness_keeps_slots_longer() {
    let limit = FixedWindow::builder(1, SECOND).rules().unwrap();
    let table = Keyed::new(limit, lines(1), seed(0)).with_staleness(Duration::from_mins(1));
    assert!(
        table
            .key("alice")
            .try_acquire_at(at(500_000_000), 1)
            .is_ok()
    );
    assert_eq!(
        table.sweep_at(at(60_999_999_999), ..),
        0,
        "within the staleness of the window's end"
    );
    assert_eq!(table.sweep_at(secs(61), ..), 1);
    for key in 0..7u64 {
        assert!(table.key(&key).try_acquire_at(secs(70), 1).is_ok());
    }
    let denied = table.key("alice").try_acquire_at(secs(70), 1).unwrap_err();
    assert_eq!(
        denied.retry(&*table.key("alice")),
        Retry::After(Duration::from_mins(1))
    );
}

#[test]
fn a_sweep_of_some_lines_leaves_the_others() {
    let limit = FixedWindow::builder(1, SECOND).rules().unwrap();
    let fill = || {
        let table = Keyed::new(limit, lines(10), seed(0));
        for key in 0..40u64 {
            assert!(table.key(&key).try_acquire_at(secs(1), 1).is_ok());
        }
        assert_eq!(table.statistics_at(secs(1)).held, 40);
        table
    };
    let now = secs(9);
    let table = fill();
    let each: Vec<usize> = (0..10)
        .map(|line| table.sweep_at(now, line..=line))
        .collect();
    assert_eq!(each.iter().sum::<usize>(), 40);
    assert_eq!(table.statistics_at(now).held, 0);
    let sum = |range: core::ops::Range<usize>| each[range].iter().sum::<usize>();
    assert_eq!(fill().sweep_at(now, ..), 40);
    assert_eq!(fill().sweep_at(now, 3..), sum(3..10));
    assert_eq!(fill().sweep_at(now, ..7), sum(0..7));
    assert_eq!(fill().sweep_at(now, ..=7), sum(0..8));
    assert_eq!(fill().sweep_at(now, 2..5), sum(2..5));
    assert_eq!(
        fill().sweep_at(
            now,
            (core::ops::Bound::Excluded(2), core::ops::Bound::Unbounded)
        ),
        sum(3..10)
    );
    for nothing in [10..20, 5..5, usize::MAX..usize::MAX] {
        assert_eq!(fill().sweep_at(now, nothing), 0);
    }
}

#[test]
fn a_query_or_a_denial_creates_no_slot() {
    let limit = TokenBucket::builder(Rate::per_second(1), 2)
        .rules()
        .unwrap();
    let table = Keyed::new(limit, lines(1), seed(0));
    for key in 0..100u64 {
        let limiter = table.key(&key);
        assert_eq!((limiter.available_at(secs(1)), limiter.capacity()), (2, 2));
        assert!(limiter.idle_at(secs(1)).is_idle() && limiter.explain_at(secs(1), 2).is_allowed());
        assert!(limiter.peek_at(secs(1), 1).is_ok() && limiter.take_at(secs(1), 0).is_ok());
        assert!(limiter.try_acquire_at(secs(1), 3).is_err());
    }
    assert_eq!(counts(table.statistics_at(secs(1))), [7, 0, 0, 0, 0]);
}

#[test]
fn a_table_without_a_line_denies_every_request() {
    let table = Keyed::new(ConcurrencyRules::new(1), lines(0), seed(0));
    let alice = *table.key("alice");
    assert_eq!(
        alice.try_acquire_at(secs(1), 1).unwrap_err(),
        Denied::Crowded {
            now: secs(1),
            permits: 1
        }
    );
    assert_eq!(table.sweep_at(secs(1), ..), 0);
    assert_eq!(counts(table.statistics_at(secs(1))), [0, 0, 0, 0, 1]);
}

/// Returns permits that were not taken; with debug assertions, that panics.
fn release_in_error(limiter: &dyn Limiter, n: u32) {
    let released = catch_unwind(AssertUnwindSafe(|| limiter.release(n)));
    assert_eq!(released.is_err(), cfg!(debug_assertions));
}

#[test]
fn a_release_of_a_key_without_a_slot_creates_none_and_affects_no_key() {
    let table = Keyed::new(ConcurrencyRules::new(2), lines(1), seed(0));
    release_in_error(&*table.key("stranger"), 1);
    assert_eq!(counts(table.statistics_at(secs(0))), [7, 0, 0, 0, 0]);
    let limiters: Vec<_> = (0..7u64).map(|key| *table.key(&key)).collect();
    let leases: Vec<_> = limiters
        .iter()
        .map(|key| key.try_acquire_at(secs(0), 1).unwrap())
        .collect();
    release_in_error(&*table.key("stranger"), 1);
    assert!(limiters.iter().all(|key| key.available_at(secs(0)) == 1));
    drop(leases);
    assert_eq!(counts(table.statistics_at(secs(0))), [7, 7, 0, 0, 0]);
    // Permits that return by time are not released.
    let bucket = TokenBucket::builder(Rate::per_hour(1), 2).rules().unwrap();
    let table = Keyed::new(bucket, lines(1), seed(0));
    table.key("alice").release(1);
    table.key("alice").take_at(secs(0), 2).unwrap();
    table.key("alice").release(2);
    assert_eq!(table.key("alice").available_at(secs(0)), 0);
}

#[test]
fn a_release_of_more_than_was_taken_does_not_lock_the_key_out() {
    let table = Keyed::new(ConcurrencyRules::new(3), lines(1), seed(0));
    let alice = *table.key("alice");
    alice.take_at(secs(0), 1).unwrap();
    release_in_error(&alice, 2);
    assert!(alice.available_at(secs(0)) >= 2);
    assert!(alice.try_acquire_at(secs(0), 2).is_ok());
}

#[test]
fn a_probe_in_a_full_line_is_answered_like_a_request_for_one_permit() {
    let table = Keyed::new(ConcurrencyRules::new(1), lines(1), seed(0));
    let limiters: Vec<_> = (0..8u64).map(|key| *table.key(&key)).collect();
    let held: Vec<_> = limiters[..7]
        .iter()
        .map(|key| key.try_acquire_at(secs(0), 1).unwrap())
        .collect();
    for n in [0, 1] {
        let crowded = Denied::Crowded {
            now: secs(0),
            permits: n,
        };
        assert_eq!(limiters[7].peek_at(secs(0), n), Err(crowded));
        assert_eq!(limiters[7].take_at(secs(0), n), Err(crowded));
        assert_eq!(limiters[7].explain_at(secs(0), n).decision, Err(crowded));
    }
    drop(held);
    for n in [0, 1] {
        assert!(limiters[7].peek_at(secs(0), n).is_ok());
    }
    assert!(limiters[7].take_at(secs(0), 0).is_ok());
    assert_eq!(table.statistics_at(secs(0)).live, 0);
}

// Stale timestamps.

#[test]
fn a_stale_request_and_a_stale_sweep_forget_no_key_in_use() {
    // Half a second stale, and another second beyond that: more than a limiter of this staleness
    // can recognize.
    fn check<L: KeyedRules>(limit: impl Fn() -> L, all: u32) {
        let now = secs(100);
        for late in [0, 1, 500_000_000, 999_999_999, 1_000_000_000] {
            let before = at(now.as_nanos() - late);
            let table = Keyed::new(limit(), lines(1), seed(0));
            assert!(table.key("alice").try_acquire_at(now, all).is_ok());
            assert_eq!(table.sweep_at(before, ..), 0, "{late} ns late");
            assert!(table.key("stranger").try_acquire_at(before, 1).is_ok());
            assert!(
                table.key("alice").try_acquire_at(now, all).is_err(),
                "the whole limit twice, {late} ns late"
            );
        }
    }
    let second = || {
        TokenBucket::builder(Rate::per_hour(1), 1)
            .staleness(SECOND)
            .rules()
            .unwrap()
    };
    assert_eq!(second().timing().staleness, SECOND);
    check(second, 1);
    // At this rate and tick, the word leaves only a second of staleness.
    let high =
        TokenBucket::builder(Rate::per_second(100_003), 200_000).tick(Duration::from_micros(1));
    assert!(high.rules().unwrap().timing().staleness < 2 * SECOND);
    check(|| high.rules().unwrap(), 200_000);
    let hour = Duration::from_hours(1);
    check(
        || {
            FixedWindow::builder(1, hour)
                .staleness(SECOND)
                .rules()
                .unwrap()
        },
        1,
    );
    let started = FixedWindow::builder(1, hour)
        .started_by_first_request()
        .staleness(SECOND);
    check(|| started.rules().unwrap(), 1);
}

#[test]
fn a_stale_request_of_a_forgotten_key_gets_no_more_than_the_key_had_left() {
    // One permit per second. Alice took hers at 10 and is forgotten at 12, not earlier, so that a
    // request of hers may still come with a timestamp of 11.
    let limit = TokenBucket::builder(Rate::per_second(1), 1)
        .rules()
        .unwrap();
    let table = Keyed::new(limit, lines(1), seed(0));
    let take = |key: u64, now| table.key(&key).try_acquire_at(at(now), 1).is_ok();
    assert!((0..7).all(|key| take(key, 10_000_000_000)));
    assert!(
        !take(8, 11_999_999_999),
        "a request of alice's may still come, for 10.999999999"
    );
    assert!(!take(0, 10_999_999_000));
    assert!(take(8, 12_000_000_000));
    // One of the seven keys is forgotten, and finds no slot; each other key has what has returned,
    // once.
    for granted in [6, 0] {
        assert_eq!(
            (0..7).filter(|&key| take(key, 11_000_000_000)).count(),
            granted
        );
    }
}

// Interrupts.

/// Lines like any others, except that an interrupt occurs at one look.
struct Interrupted {
    lines: Vec<Line>,
    interrupt: Rc<Interrupt>,
}

#[derive(Default)]
struct Interrupt {
    /// The number of looks until the interrupt, from 1; 0 if there is none.
    looks: Cell<u32>,
    work: RefCell<Option<Box<dyn Fn()>>>,
}

impl AsRef<[Line]> for Interrupted {
    fn as_ref(&self) -> &[Line] {
        let looks = self.interrupt.looks.get();
        self.interrupt.looks.set(looks.saturating_sub(1));
        if looks == 1 {
            self.interrupt.work.borrow().as_ref().expect("set before")();
        }
        &self.lines
    }
}

#[test]
fn an_interrupt_of_a_take_of_the_same_key_shares_its_limit_and_leaves_no_slot_behind() {
    fn check<L: KeyedRules + 'static>(limit: impl Fn() -> L) {
        let mut denied_outside = 0;
        for look in 1..=5 {
            let interrupt = Rc::new(Interrupt::default());
            let lines = Interrupted {
                lines: lines(1),
                interrupt: interrupt.clone(),
            };
            let table = Rc::new(Keyed::new(limit(), lines, seed(0)));
            let inside = Rc::new(Cell::new(0));
            let (of, granted) = (Rc::downgrade(&table), inside.clone());
            *interrupt.work.borrow_mut() = Some(Box::new(move || {
                let table = of.upgrade().expect("in use");
                granted
                    .set(granted.get() + u32::from(table.key("alice").take_at(secs(5), 2).is_ok()));
            }));
            let alice = *table.key("alice");
            interrupt.looks.set(look);
            let outside = alice.take_at(secs(5), 2);
            interrupt.looks.set(0);
            denied_outside += u32::from(outside.is_err());
            assert_eq!(
                inside.get() + u32::from(outside.is_ok()),
                1,
                "exceeds one burst, at look {look}"
            );
            assert_eq!(
                (
                    alice.available_at(secs(5)),
                    table.statistics_at(secs(5)).held
                ),
                (0, 1)
            );
            for key in 0..6u64 {
                assert!(
                    table.key(&key).take_at(secs(5), 1).is_ok(),
                    "not enough slots: look {look}"
                );
            }
        }
        assert!(
            denied_outside >= 2,
            "the interrupt came before or after the look that matters"
        );
    }
    check(|| TokenBucket::builder(Rate::per_hour(1), 2).rules().unwrap());
    check(|| FixedWindow::builder(2, SECOND).rules().unwrap());
    check(|| ConcurrencyRules::new(2));
}

// Leases.

#[test]
fn a_lease_of_a_key_can_be_split_and_merged() {
    let table = Keyed::new(ConcurrencyRules::new(3), lines(8), seed(0));
    let (alice, bob) = (table.key("alice"), table.key("bob"));
    let mut lease = Lease::try_acquire_at(alice, secs(0), 3).unwrap();
    let part = lease.split(1).unwrap();
    assert!(lease.merge(part).is_ok());
    assert_eq!((lease.permits(), alice.available_at(secs(0))), (3, 0));
    let other = Lease::try_acquire_at(bob, secs(0), 1).unwrap();
    let other = lease.merge(other).unwrap_err();
    assert_eq!(
        (lease.permits(), other.permits()),
        (3, 1),
        "a lease of another key"
    );
    drop((lease, other));
    assert_eq!(table.statistics_at(secs(0)).live, 0);
}

// Limits, seeds and keys.

#[test]
fn a_changed_limit_applies_to_every_key() {
    let table = Keyed::new(ConcurrencyRules::new(3), lines(8), seed(0));
    let alice = *table.key("alice");
    let _held = alice.try_acquire_at(secs(0), 2).unwrap();
    table.rules().set_limit(1).unwrap();
    assert_eq!((alice.available_at(secs(0)), alice.capacity()), (0, 1));
    assert!(alice.try_acquire_at(secs(0), 1).is_err());
    assert!(table.key("bob").try_acquire_at(secs(0), 2).is_err());
    table.rules().set_limit(4).unwrap();
    assert_eq!(
        (
            alice.available_at(secs(0)),
            table.key("bob").available_at(secs(0))
        ),
        (2, 4)
    );
}

#[test]
fn a_seed_is_set_once_and_before_its_use() {
    let seed = Seed::new();
    assert_eq!(
        (seed.set([1, 2]), seed.set([1, 2]), seed.set([3, 4])),
        (Ok(()), Err(SeedFixed), Err(SeedFixed))
    );
    let same = Seed::new();
    same.set([1, 2]).unwrap();
    assert_eq!(seed.hash_one("alice"), same.hash_one("alice"));

    let used = Keyed::new(ConcurrencyRules::new(1), lines(1), Seed::new());
    let before = used.key("alice").id();
    assert_eq!(used.seed().set([1, 2]), Err(SeedFixed));
    assert_eq!(used.key("alice").id(), before, "unchanged");
    assert_eq!(
        used.seed().hash_one(7),
        Seed::default().hash_one(7),
        "a constant"
    );
}

#[test]
fn a_seed_hashes_as_sip_hash_1_3_does() {
    // The key and the message of the paper's example: bytes 0, 1, 2, ... The hash is that of a
    // program of its own, which gives the paper's result for SipHash-2-4.
    let seed = Seed::new();
    seed.set([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908])
        .unwrap();
    let mut hasher = seed.build_hasher();
    hasher.write(&(0..15).collect::<Vec<u8>>());
    assert_eq!(hasher.finish(), 0xd320_d86d_2a51_9956);
}

#[test]
fn a_copy_of_a_random_seed_hashes_alike_and_another_one_does_not() {
    let seed = RandomSeed::new();
    let copy = seed;
    let (one, two) = (seed.hash_one("alice"), copy.hash_one("alice"));
    assert_eq!(one, two);
    assert_ne!(one, RandomSeed::default().hash_one("alice"));
    assert_eq!(format!("{seed:?}"), "RandomSeed { .. }", "no secret");
}

#[test]
fn a_hash_that_is_computed_once_finds_the_key_in_every_table() {
    let seed = RandomSeed::new();
    let [one, other] = [7, 64].map(|n| Keyed::new(ConcurrencyRules::new(1), lines(n), seed));
    for key in 0..1_000 {
        let hash = KeyHash::new(&seed, &key);
        assert_eq!(one.key_hashed(hash).id(), one.key(&key).id());
        assert_eq!(other.key_hashed(hash).id(), other.key(&key).id());
    }
}

#[test]
fn another_seed_spreads_keys_differently() {
    // If the table is small, some keys find no slot. Under another seed, these are other keys.
    let denied = |n: u64| -> Vec<u64> {
        let table = Keyed::new(ConcurrencyRules::new(1), lines(4), seed(n));
        let is_denied = |key: &u64| table.key(key).take_at(secs(0), 1).is_err();
        let denied = (0..40).filter(is_denied).collect();
        assert!(table.statistics_at(secs(0)).overflowed >= 8);
        denied
    };
    assert_eq!(denied(1), denied(1));
    assert_ne!(denied(1), denied(2));
}

#[test]
fn any_hasher_and_any_key_type_work() {
    fn check<S: BuildHasher>(hasher: S) {
        let table = Keyed::new(ConcurrencyRules::new(1), lines(64), hasher);
        let (v4, v6) = (
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        );
        let mut leases = Vec::new();
        let mut take = |key: TableKey<&_>| {
            let limiter: portcullis_core::keyed::KeyLimiter<
                &Keyed<ConcurrencyRules, Vec<Line>, S>,
            > = *key;
            leases.push(limiter.take_at(secs(0), 1));
            assert!(limiter.take_at(secs(0), 1).is_err());
        };
        take(table.key("alice"));
        take(table.key(&7u64));
        take(table.key(&(7u32, [10u8, 0, 0, 1])));
        take(table.key(&(7u32, [10u8, 0, 0, 2])));
        take(table.key(&v4));
        take(table.key(&v6));
        take(table.key(&String::from("bob")));
        assert!(leases.iter().all(Result::is_ok), "all are different keys");
        assert!(
            table.key("bob").take_at(secs(0), 1).is_err(),
            "a string is the same key, owned or not"
        );
        assert!(
            table.key(&&"alice").take_at(secs(0), 1).is_err(),
            "and with any borrow"
        );
        assert_eq!(table.statistics_at(secs(0)).live, 7);
    }
    check(seed(0));
    check(Seed::new());
    check(RandomSeed::new());
    check(RandomState::new());
    check(core::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default());
}

#[test]
fn a_table_can_own_or_borrow_its_lines() {
    static LINES: [Line; 4] = [const { Line::new() }; 4];
    static BORROWED: Keyed<ConcurrencyRules, &[Line]> =
        Keyed::new(ConcurrencyRules::new(1), &LINES, Seed::new());
    let array = Keyed::new(
        ConcurrencyRules::new(1),
        [Line::new(), Line::new()],
        Seed::new(),
    );
    let boxed = Keyed::new(
        ConcurrencyRules::new(1),
        lines(3).into_boxed_slice(),
        Seed::new(),
    );
    assert_eq!(array.statistics_at(secs(0)).slots, 14);
    assert_eq!(boxed.statistics_at(secs(0)).slots, 21);
    assert!(boxed.key("alice").try_acquire_at(secs(0), 1).is_ok());
    assert!(array.key("alice").try_acquire_at(secs(0), 1).is_ok());
    let lease = Lease::try_acquire_at(BORROWED.key("alice"), secs(0), 1).unwrap();
    // A lease of a table in a static can be sent to another thread.
    std::thread::spawn(move || drop(lease)).join().unwrap();
    assert!(BORROWED.key("alice").try_acquire_at(secs(0), 1).is_ok());
}

#[cfg(feature = "std")]
#[test]
fn a_lease_of_an_owned_key_is_released_in_a_thread_that_outlives_the_caller() {
    fn movable(_: &(impl Send + Sync + 'static)) {}

    let table = Arc::new(Keyed::new(ConcurrencyRules::new(2), lines(1), seed(0)));
    let array = Arc::new(portcullis_core::KeyedArray::new(
        Concurrency::new(2),
        (0..8).map(|_| Concurrency::new(2)).collect::<Vec<_>>(),
        lines(1),
        seed(0),
    ));
    let mut lease = table.owned_key("alice").try_acquire_at(secs(0), 2).unwrap();
    let other = array.owned_key("alice").try_acquire_at(secs(0), 1).unwrap();
    movable(&lease);
    movable(&other);
    assert!(table.key("alice").try_acquire_at(secs(0), 1).is_err());
    assert_eq!(table.owned_key("alice").id(), table.key("alice").id());

    // A part that is split off shares the table, too.
    let part = lease.split(1).unwrap();
    let (release, released) = std::sync::mpsc::channel();
    let (weak, weak_array) = (Arc::downgrade(&table), Arc::downgrade(&array));
    let thread = std::thread::spawn(move || {
        drop(lease);
        release.send(()).unwrap();
        std::thread::park();
        drop((part, other));
    });
    released.recv().unwrap();
    assert_eq!(table.key("alice").available_at(secs(0)), 1);
    drop((table, array));
    assert!(weak.upgrade().is_some() && weak_array.upgrade().is_some());
    thread.thread().unpark();
    thread.join().unwrap();
    assert!(weak.upgrade().is_none() && weak_array.upgrade().is_none());
}

#[test]
fn a_table_and_its_keys_can_be_printed() {
    let table = Keyed::new(ConcurrencyRules::new(1), lines(1), seed(0));
    let shows = |printed: &dyn Debug, name: &str| assert!(format!("{printed:?}").contains(name));
    shows(&table, "Keyed");
    shows(&table.key("alice"), "KeyLimiter");
}

/// Also if the table's staleness exceeds what the limiter's word can express.
#[test]
fn a_slot_is_forgotten_some_day_for_any_staleness() {
    let bucket = TokenBucket::builder(Rate::per_second(1_000), 10)
        .tick(Duration::from_nanos(1))
        .rules()
        .unwrap();
    let horizon = bucket.timing().horizon;
    let table = Keyed::new(bucket, [Line::new()], seed(0)).with_staleness(horizon);
    for key in 0..7u64 {
        table.key(&key).take_at(secs(1), 1).unwrap();
    }
    // A hundred years of looks.
    let free = (0..10_000u64).any(|n| {
        table
            .key("new")
            .take_at(secs(20_000 + n * 315_000), 0)
            .is_ok()
    });
    assert!(
        free,
        "horizon and staleness {horizon:?}: no new key is ever admitted"
    );
}

/// The same for windows.
#[test]
fn a_windows_slot_is_forgotten_some_day_for_any_staleness() {
    let window = FixedWindow::builder(1_000_000_000, Duration::from_secs(1))
        .rules()
        .unwrap();
    let horizon = window.timing().horizon;
    let table = Keyed::new(window, [Line::new()], seed(0)).with_staleness(horizon);
    for key in 0..7u64 {
        table.key(&key).take_at(secs(1), 1).unwrap();
    }
    let free = (0..10_000u64).any(|n| table.key("new").take_at(secs(20_000 + n * 31), 0).is_ok());
    assert!(
        free,
        "horizon and staleness {horizon:?}: no new key is ever admitted"
    );
}

#[test]
fn each_key_starts_full_whatever_the_initial_setting_of_a_bucket() {
    for initial in [0, 1, 5] {
        let limit = TokenBucket::builder(Rate::per_second(1), 5)
            .initial(initial)
            .rules()
            .unwrap();
        let users = Keyed::new(limit, Line::for_keys(8), RandomState::new());
        for key in 0..4 {
            let user = users.key(&key);
            assert_eq!(user.available_at(at(0)), 5);
            assert!(
                user.try_acquire_at(at(0), 5).is_ok() && user.try_acquire_at(at(0), 1).is_err()
            );
        }
    }
}
