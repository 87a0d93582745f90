//! A denial changes nothing, and a grant takes what each name asks for, however the limiters are
//! named: directly, through handles, through wrappers with and without state, as keys of a table,
//! and through nested compositions.
//!
//! The compositions are random, of up to five names of up to three limiters. The answers of each
//! limiter, now and later, are compared before and after each denial. A grant is compared with a
//! twin, from which each name takes by itself.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/limiters.rs"]
mod limiters;

use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use draws::Draws;
use limiters::{Denial, Subject};
use portcullis_core::builder::EscalationThreshold;
use portcullis_core::composition::AllLease;
use portcullis_core::keyed::{
    ConcurrencyRules, FixedWindowRules, KeyedRules, Line, Seed, TableKey, TokenBucketRules,
};
use portcullis_core::limiter::{
    Answer, Ask, Back, Hints, Idle, LimiterId, Read, Reading, Returned,
};
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, Escalation, FixedWindow, Keyed, KeyedArray, Limiter,
    LimiterExt, Penalty, Rate, Retry, SlidingWindow, Timestamp, TokenBucket,
};

/// The limiter behind a name: a plain limiter, or a key of a table.
enum Base<W: Word> {
    Itself(Box<dyn Limiter>),
    Buckets(Keyed<TokenBucketRules, Vec<Line>>),
    Windows(Keyed<FixedWindowRules, Vec<Line>>),
    Permits(Keyed<ConcurrencyRules, Vec<Line>>),
    Array(KeyedArray<SlidingWindow<5, W>, Vec<SlidingWindow<5, W>>, Vec<Line>>),
    ArrayOfPermits(KeyedArray<Concurrency<W>, Vec<Concurrency<W>>, Vec<Line>>),
    ArrayOfPairs(KeyedArray<Pair<W>, Vec<Pair<W>>, Vec<Line>>),
}

type Pair<W> = AllOf<(TokenBucket<W>, FixedWindow<W>)>;

fn seed() -> Seed {
    let seed = Seed::new();
    seed.set([3, 4]).expect("not used before");
    seed
}

fn lines() -> Vec<Line> {
    (0..2).map(|_| Line::new()).collect()
}

fn keyed<L: KeyedRules>(limit: L) -> Keyed<L, Vec<Line>> {
    Keyed::new(limit, lines(), seed())
}

fn array<L>(make: impl Fn() -> L) -> KeyedArray<L, Vec<L>, Vec<Line>> {
    KeyedArray::new(make(), (0..16).map(|_| make()).collect(), lines(), seed())
}

/// Returns one limiter of each type, except the types whose denials change their state.
fn typicals<W: Word>(limit: u64, period: Duration) -> Vec<(&'static str, Box<dyn Subject>)> {
    limiters::all::<W>(limit, period)
        .into_iter()
        .filter(|(kind, _)| kind.denial != Denial::acts)
        .map(|(kind, limiter)| (kind.name, limiter))
        .collect()
}

/// The number of kinds besides the typical limiters.
const OTHERS: usize = 10;

/// The number of all kinds of limiters.
fn kinds() -> Vec<usize> {
    (0..OTHERS + typicals::<u64>(1, Duration::from_secs(1)).len()).collect()
}

impl<W: Word> Base<W> {
    /// Returns equal limiters for equal choices.
    fn new(kind: usize, limit: u64, period: Duration, choice: u64) -> (Self, &'static str) {
        let rate = Rate::new(1 + (choice % 9) as u32, period);
        let sliding = || SlidingWindow::<5>::builder(limit, period, 1 + (choice % 4) as u32);
        let bucket = || TokenBucket::builder(rate, limit);
        let window = || FixedWindow::builder(limit, period);
        let permits = || Concurrency::builder(limit as u32).build_on::<W>().unwrap();
        let pair = || AllOf::new((bucket().build_on().unwrap(), window().build_on().unwrap()));
        let Some(typical) = kind.checked_sub(OTHERS) else {
            return match kind {
                0 => {
                    let bucket = bucket().stepwise().initial(choice % limit).build_on::<W>();
                    (Self::itself(bucket.unwrap()), "stepwise bucket")
                }
                1 => {
                    let window = window().started_by_first_request().build_on::<W>();
                    (Self::itself(window.unwrap()), "started window")
                }
                2 => {
                    let window = sliding().strict().build_on::<W>();
                    (Self::itself(window.unwrap()), "strict sliding window")
                }
                3 => {
                    let unlimited = TokenBucket::builder(Rate::UNLIMITED, 1).build_on::<W>();
                    (Self::itself(unlimited.unwrap()), "bucket without a limit")
                }
                4 => (
                    Self::Buckets(keyed(bucket().rules().unwrap())),
                    "keyed bucket",
                ),
                5 => (
                    Self::Windows(keyed(window().rules().unwrap())),
                    "keyed window",
                ),
                6 => (
                    Self::Permits(keyed(ConcurrencyRules::new(limit as u32))),
                    "keyed concurrency",
                ),
                7 => (
                    Self::Array(array(|| sliding().build_on().unwrap())),
                    "array of sliding windows",
                ),
                8 => (Self::ArrayOfPermits(array(permits)), "array of concurrency"),
                _ => (Self::ArrayOfPairs(array(pair)), "array of compositions"),
            };
        };
        let period = period * (1 + (choice % 3) as u32);
        let (name, limiter) = typicals::<W>(limit, period).swap_remove(typical);
        (Self::Itself(limiter), name)
    }

    fn itself(limiter: impl Limiter + 'static) -> Self {
        Self::Itself(Box::new(limiter))
    }

    /// Returns one more name of the limiter, as a value of its own.
    fn name(&self) -> Box<dyn Limiter + '_> {
        match self {
            Self::Itself(limiter) => Box::new(&**limiter),
            Self::Buckets(table) => Box::new(table.key("alice")),
            Self::Windows(table) => Box::new(*table.key("alice")),
            Self::Permits(table) => Box::new(TableKey::at(table, table.key("alice").address())),
            Self::Array(table) => Box::new(table.key("alice")),
            Self::ArrayOfPermits(table) => Box::new(table.key("alice")),
            Self::ArrayOfPairs(table) => Box::new(table.key("alice")),
        }
    }
}

/// A handle that owns what it points to, like `Box` with the standard library.
struct Owned<'a>(Box<dyn Limiter + 'a>);

impl Limiter for Owned<'_> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }
    fn read(&self, read: Read<'_>) -> Reading {
        self.0.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
    fn id(&self) -> Option<LimiterId> {
        self.0.id()
    }
    fn hints(&self) -> Hints {
        self.0.hints()
    }
}

/// A user's wrapper, without an id.
struct Anonymous<L>(L);

impl<L: Limiter> Limiter for Anonymous<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }
    fn read(&self, read: Read<'_>) -> Reading {
        self.0.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
    fn hints(&self) -> Hints {
        self.0.hints()
    }
}

/// A name, and the permits that it takes of its limiter for each permit asked of it.
fn wrapped<'a>(
    inner: Owned<'a>,
    path: u64,
    twin: Owned<'a>,
    paths: &[u64],
) -> (Box<dyn Limiter + 'a>, u64, &'static str) {
    let wait = Duration::from_nanos(1);
    match paths[(path % paths.len() as u64) as usize] {
        0 => (Box::new(inner), 1, "itself"),
        1 => (Box::new(Owned(Box::new(inner))), 1, "Owned twice"),
        2 => (Box::new(Counted::new(inner)), 1, "Counted"),
        3 => (
            Box::new(Penalty::builder(wait).build().unwrap().around(inner)),
            1,
            "Penalty",
        ),
        4 => {
            let warn = EscalationThreshold {
                used: 1,
                hold: wait,
                decision: (),
            };
            (
                Box::new(
                    Escalation::builder(inner, [warn])
                        .build_on::<u64>()
                        .unwrap(),
                ),
                1,
                "Escalation",
            )
        }
        5 => (Box::new(Anonymous(inner)), 1, "Anonymous"),
        6 => (
            Box::new(Anonymous(Counted::new(Anonymous(inner)))),
            1,
            "Anonymous Counted Anonymous",
        ),
        7 => (Box::new(AllOf::new((inner,))), 1, "AllOf of one"),
        8 => (
            Box::new(AllOf::new((inner, twin))),
            2,
            "AllOf of itself twice",
        ),
        _ => (
            Box::new(Counted::new(AllOf::new([
                Anonymous(inner),
                Anonymous(twin),
            ]))),
            2,
            "Counted AllOf of Anonymous twice",
        ),
    }
}

/// The answers of a limiter, now and later.
fn says(limiter: &dyn Limiter, now: Timestamp) -> Vec<(u64, bool, Vec<Retry>)> {
    let later = [
        0,
        1,
        1_000,
        1_000_000,
        37_000_000,
        100_000_000,
        333_333_333,
        999_999_999,
        1_000_000_000,
        7_000_000_000,
    ];
    later
        .into_iter()
        .map(|nanos| {
            let at = now.saturating_add(Duration::from_nanos(nanos));
            let most = limiter.capacity().min(25) as u32;
            let retries = (0..=most + 2)
                .map(|permits| limiter.retry(Denied::Exhausted { now: at, permits }))
                .collect();
            (
                limiter.available_at(at),
                limiter.idle_at(at).is_idle(),
                retries,
            )
        })
        .collect()
}

#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    denied: u64,
    denied_in_take: u64,
}

fn composition<W: Word>(seed: u64, kinds: &[usize], paths: &[u64], tally: &mut Tally) {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 0,
    };
    let draws = &mut draws;
    let limit = draws.within(1, 20);
    let period = Duration::from_millis(draws.one_of(&[100, 1_000, 7_000]));
    let count = draws.within(1, 3) as usize;
    let choices: Vec<(usize, u64)> = (0..count)
        .map(|_| (draws.one_of(kinds), draws.any() >> 8))
        .collect();
    let make = || -> Vec<(Base<W>, &'static str)> {
        choices
            .iter()
            .map(|(kind, choice)| Base::<W>::new(*kind, limit, period, *choice))
            .collect()
    };
    let (bases, twins) = (make(), make());
    let alone: Vec<_> = bases.iter().map(|(base, _)| base.name()).collect();
    let single: Vec<_> = twins.iter().map(|(base, _)| base.name()).collect();
    let names = draws.within(1, 5) as usize;
    let mut described = Vec::new();
    let places: Vec<(usize, u64, Box<dyn Limiter + '_>)> = (0..names)
        .map(|_| {
            let base = draws.below(count as u64) as usize;
            let (name, times, path) = wrapped(
                Owned(bases[base].0.name()),
                draws.any() >> 8,
                Owned(bases[base].0.name()),
                paths,
            );
            described.push(format!("{path} of {} {base}", bases[base].1));
            (base, times, name)
        })
        .collect();
    let limits: Vec<&dyn Limiter> = places.iter().map(|place| &*place.2).collect();
    let slice = &limits[..];
    let mut now = draws.within(0, 10_000_000_000);
    let mut held: Vec<(usize, u32)> = Vec::new();
    // With stale timestamps there is no twin: a denied request may have recorded its time, so a
    // stale one after it may find more or less.
    let comes_late = draws.once_in(2);
    for _ in 0..30 {
        now += draws.magnitude(2_000_000_000);
        let late = if comes_late {
            draws.magnitude(900_000_000)
        } else {
            0
        };
        let (at, newest) = (
            Timestamp::from_nanos(now.saturating_sub(late)),
            Timestamp::from_nanos(now),
        );
        // Now and then, another request reaches a limiter.
        let other = draws.below(count as u64) as usize;
        let k = draws.within(1, limit) as u32;
        let granted = alone[other].take_at(newest, k).is_ok();
        if !comes_late {
            assert_eq!(single[other].take_at(newest, k).is_ok(), granted);
        }
        if granted {
            held.push((other, k));
        }
        if draws.once_in(2) && !held.is_empty() {
            let (other, k) = held.swap_remove(draws.below(held.len() as u64) as usize);
            alone[other].release(k);
            if !comes_late {
                single[other].release(k);
            }
        }
        let before: Vec<_> = alone
            .iter()
            .map(|limiter| says(&**limiter, newest))
            .collect();
        let n = draws.one_of(&[0, 1, 1, 2, 3, limit as u32]);
        let looked = AllOf::new(slice).peek_at(at, n);
        let granted = match (draws.once_in(2), slice) {
            (true, &[a, b]) => AllOf::new((a, b))
                .into_lease_at(at, n)
                .map(AllLease::forget),
            (true, &[a, b, c]) => AllOf::new((a, b, c))
                .into_lease_at(at, n)
                .map(AllLease::forget),
            (true, &[a, b, c, d]) => AllOf::new([a, b, c, d])
                .into_lease_at(at, n)
                .map(AllLease::forget),
            _ => AllOf::new(slice).into_lease_at(at, n).map(AllLease::forget),
        };
        let about =
            || format!("seed {seed}: {n} at {at} of {described:?}, limit {limit} in {period:?}");
        if granted.is_err() {
            tally.denied += 1;
            tally.denied_in_take += u64::from(looked.is_ok());
            for (index, (limiter, before)) in alone.iter().zip(&before).enumerate() {
                assert_eq!(
                    before,
                    &says(&**limiter, newest),
                    "{}, limiter {index}",
                    about()
                );
            }
            continue;
        }
        tally.granted += 1;
        let named = places
            .iter()
            .flat_map(|(base, times, _)| (0..*times).map(|_| *base));
        held.extend(named.clone().filter(|_| n > 0).map(|base| (base, n)));
        if !comes_late {
            for base in named {
                let twin = single[base].take_at(at, n);
                assert!(twin.is_ok(), "{}: {twin:?} by each name", about());
            }
            for (index, (limiter, twin)) in alone.iter().zip(&single).enumerate() {
                let (limiter, twin) = (says(&**limiter, at), says(&**twin, at));
                assert_eq!(limiter, twin, "{}, limiter {index}", about());
            }
        }
    }
}

const PATHS: [u64; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

#[test]
fn a_denial_changes_nothing_and_a_grant_takes_what_each_name_asks_for() {
    let mut tally = Tally::default();
    for seed in 0..if cfg!(debug_assertions) { 100 } else { 2_000 } {
        composition::<u64>(seed, &kinds(), &PATHS, &mut tally);
        composition::<u32>(seed, &kinds(), &PATHS, &mut tally);
    }
    println!("{tally:?}");
    assert!(tally.granted > 1_000 && tally.denied > 3_000 && tally.denied_in_take > 300);
}

/// Each kind under each kind of name, beside a second name of the same kind.
#[test]
fn every_kind_is_unchanged_under_every_kind_of_name() {
    for kind in kinds() {
        let mut tally = Tally::default();
        for path in PATHS {
            for seed in 0..if cfg!(debug_assertions) { 4 } else { 40 } {
                composition::<u64>(seed, &[kind], &[0, path], &mut tally);
                composition::<u32>(seed, &[kind], &[0, path], &mut tally);
            }
        }
        assert!(tally.granted > 100, "kind {kind}");
    }
}

const NOW: Timestamp = Timestamp::from_secs(5);

/// Each composition sees that its own bucket has enough; the second one finds too little.
#[test]
fn compositions_that_share_a_bucket_refund_what_they_took_of_it() {
    let bucket = TokenBucket::new(Rate::per_second(1), 7);
    let window = FixedWindow::new(20, Duration::from_mins(1));
    let one = AllOf::new((&bucket, &window));
    let two = AllOf::new([&bucket]);
    let (counted, nested) = (Counted::new(&one), AllOf::new((&one,)));
    let pairs: [[&dyn Limiter; 2]; 6] = [
        [&one, &one],
        [&one, &bucket],
        [&bucket, &two],
        [&two, &one],
        [&counted, &two],
        [&nested, &counted],
    ];
    for pair in pairs {
        for _ in 0..10 {
            let all = AllOf::new(pair);
            assert_eq!(all.peek_at(NOW, 4), Ok(()), "each has 7");
            assert_eq!(all.try_acquire_at(NOW, 4).unwrap_err().index, 1);
            assert_eq!(
                (bucket.available_at(NOW), window.available_at(NOW)),
                (7, 20)
            );
        }
    }
    assert_eq!(counted.counts().held, 0);
    let _ = AllOf::new(pairs[0]).into_lease_at(NOW, 3).unwrap().forget();
    assert_eq!(
        (bucket.available_at(NOW), window.available_at(NOW)),
        (1, 14)
    );
}

#[cfg(feature = "std")]
#[test]
fn compositions_behind_handles_refund_what_they_took() {
    use portcullis_core::Unlimited;
    use std::sync::Arc;
    let bucket = Arc::new(TokenBucket::new(Rate::per_second(1), 7));
    let composed = || AllOf::new((Arc::clone(&bucket), Unlimited));
    let shared = Arc::new(composed());
    let names: [Box<dyn Limiter + '_>; 4] = [
        Box::new(Arc::clone(&shared)),
        Box::new(&shared),
        Box::new(composed()),
        Box::new(Arc::clone(&bucket)),
    ];
    for pair in names.windows(2) {
        assert_eq!(
            AllOf::new(pair).try_acquire_at(NOW, 4).unwrap_err().index,
            1
        );
        assert_eq!(bucket.available_at(NOW), 7);
    }
}

/// Held permits are counted until they are released; a panic releases them as well.
#[test]
fn a_panic_behind_a_composition_refunds_what_it_took() {
    struct Panics;
    impl Limiter for Panics {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            if ask.is_look() {
                return ask.looked(self.available_at(ask.now()), || u64::MAX);
            }
            panic!("on purpose")
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, _: Read<'_>) -> Reading {
            Reading {
                available: 1,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::Never
        }
    }
    let bucket = TokenBucket::new(Rate::per_second(1), 7);
    let warn = EscalationThreshold {
        used: 1,
        hold: Duration::from_secs(1),
        decision: (),
    };
    let penalty = Penalty::new(
        AllOf::new((&bucket, Concurrency::new(3))),
        Duration::from_secs(1),
    );
    let counted = Counted::new(Escalation::<_, _, 1>::new(penalty, [warn]));
    let attempt = || {
        AllOf::new((&counted, Panics))
            .into_lease_at(NOW, 1)
            .map(drop)
    };
    assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
    assert_eq!((bucket.available_at(NOW), counted.counts().held), (7, 0));
    assert_eq!(counted.limiter().limiter().limiter().limits().1.in_use(), 0);
    assert_eq!(
        counted.limiter().decision_at(NOW),
        None,
        "a rolled-back grant reaches no threshold"
    );
    assert!(
        !counted.limiter().limiter().is_on_at(NOW),
        "nothing was denied"
    );
}

/// A stateful wrapper around a composition records its own denials only.
#[test]
fn wrappers_around_compositions_record_their_own_decisions() {
    let (small, large) = (Concurrency::new(3), Concurrency::new(9));
    let counted = Counted::new(AllOf::new((&small, &large)));
    let penalty = Penalty::new(AllOf::new((&small, &large)), Duration::from_secs(1));
    // The look succeeds, and then the penalty's own composition has too little.
    assert_eq!(
        AllOf::new((&counted, &penalty))
            .into_lease_at(NOW, 2)
            .unwrap_err()
            .index,
        1
    );
    assert!(penalty.is_on_at(NOW));
    let counts = counted.counts();
    assert_eq!(
        (counts.granted.requests, counts.denied.requests, counts.held),
        (1, 0, 0)
    );
    assert_eq!((small.in_use(), large.in_use()), (0, 0));
    let lease = AllOf::new((&counted, &small))
        .into_lease_at(NOW, 1)
        .unwrap();
    assert_eq!(
        (counted.counts().held, small.in_use(), large.in_use()),
        (1, 2, 1)
    );
    drop(lease);
    assert_eq!(
        (counted.counts().held, small.in_use(), large.in_use()),
        (0, 0, 0)
    );
    assert_eq!(
        AllOf::new((&small, &counted))
            .into_lease_at(NOW, 2)
            .unwrap_err()
            .index,
        1
    );
    assert_eq!(counted.counts().denied.requests, 1);
}
