//! Compositions of many limits: all or nothing, whatever the limits are, however they are named,
//! and whichever of them denies, panics or races.
//!
//! Random compositions are compared, request by request, with the answers of each limit alone.
//! Scripted limits of the test deny, or panic, after they have agreed.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/limiters.rs"]
mod limiters;
#[path = "support/permits.rs"]
mod permits;

use core::fmt::Debug;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Barrier, Mutex};

use draws::Draws;
use limiters::{Back, Denial, ForEach, Kind, Subject};
use permits::permits;
use portcullis_core::composition::{AllLease, DeniedBy, Limits};
use portcullis_core::limiter::{
    Answer, Ask, Detail, Idle, LimiterId, Read, Reading, Receipt, Returned,
};
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, FixedWindow, Limiter, LimiterExt, Penalty, Rate, Retry,
    SlidingWindow, Timestamp, TokenBucket, Unlimited,
};

const NOW: Timestamp = Timestamp::from_secs(5);

/// The limit that denied, the permits requested, and its answer.
type By = (usize, u32, Denied);

fn by(denied: DeniedBy) -> By {
    (denied.index, denied.permits, denied.denied)
}

fn answers(detail: Detail) -> (Result<(), Denied>, u64, Retry) {
    (detail.decision, detail.available, detail.retry)
}

/// The requests granted and not granted, and the permits held.
fn counts(limit: &Counted<impl Limiter>) -> (u64, u64, u64) {
    let counts = limit.counts();
    let not_granted = counts.denied.requests + counts.refused.requests;
    (counts.granted.requests, not_granted, counts.held)
}

// Random compositions.

/// Longer than a request is older than one before it that was rolled back.
const LATE: Duration = Duration::from_secs(10);

/// A random limiter, and whether it has an identity. A limiter without state has none.
fn subject<W: Word>(draws: &mut Draws<'_>) -> (Box<dyn Subject>, bool) {
    let limit = draws.within(1, 20);
    let period = Duration::from_millis(draws.one_of(&[100, 1_000, 7_000]));
    let limiter: Box<dyn Subject> = match draws.below(12) {
        0..=3 => {
            let mut builder =
                TokenBucket::builder(Rate::new(draws.within(1, 10) as u32, period), limit)
                    .staleness(LATE);
            if draws.once_in(3) {
                builder = builder.stepwise();
            }
            if draws.once_in(3) {
                builder = builder.initial(draws.within(0, limit));
            }
            Box::new(builder.build_on::<W>().unwrap())
        }
        4 | 5 => {
            let builder = FixedWindow::builder(limit, period).staleness(LATE);
            let builder = if draws.once_in(2) {
                builder.started_by_first_request()
            } else {
                builder
            };
            Box::new(builder.build_on::<W>().unwrap())
        }
        6 | 7 => {
            let builder = SlidingWindow::<5>::builder(limit, period, draws.within(1, 4) as u32);
            let builder = if draws.once_in(2) {
                builder.strict()
            } else {
                builder
            };
            Box::new(builder.build_on::<W>().unwrap())
        }
        8 | 9 => Box::new(Concurrency::builder(limit as u32).build_on::<W>().unwrap()),
        10 => return (Box::new(Unlimited), false),
        _ => Box::new(
            TokenBucket::builder(Rate::UNLIMITED, 1)
                .build_on::<W>()
                .unwrap(),
        ),
    };
    (limiter, true)
}

/// Counts of what happened in the traces.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    operations: u64,
    granted: u64,
    denied: u64,
    /// Denied by another limit than the first.
    denied_later: u64,
    retried: u64,
    on_release: u64,
    released_from: u64,
    never: u64,
    in_part: u64,
    /// Requests of a limit that is named more than once.
    repeated: u64,
    /// Probes among them.
    probed: u64,
    /// Requests that each path to a limit allows alone and all of its paths together deny.
    denied_in_the_take: u64,
    /// Requests granted of a limit that is named by several paths.
    by_several_paths: u64,
}

/// What a place of a composition names: a limit, and the path to it: directly (0), or through one
/// or two wrappers. If limits have no identity, each place has a path of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    subject: usize,
    path: usize,
}

/// A limit by one of its paths. It is asked once for all places that name it by that path.
#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    /// The first place that names it.
    index: usize,
    times: u64,
}

impl Entry {
    /// The permits asked of the entry; for a probe, one for each place that names it.
    fn wanted(&self, n: u32) -> u64 {
        u64::from(n.max(1)) * self.times
    }

    /// The permits that the entry takes.
    fn taken(&self, n: u32) -> u64 {
        u64::from(n) * self.times
    }
}

/// Limits, and how the places of a composition name them.
struct Composition<'a> {
    subjects: &'a [&'a dyn Subject],
    places: &'a [Place],
    entries: Vec<Entry>,
}

impl<'a> Composition<'a> {
    fn new(subjects: &'a [&'a dyn Subject], places: &'a [Place]) -> Self {
        let times = |place| places.iter().filter(|&named| *named == place).count() as u64;
        let first = |(index, place): &(usize, &Place)| !places[..*index].contains(place);
        let entries = places.iter().enumerate().filter(first);
        let entries = entries
            .map(|(index, &place)| Entry {
                place,
                index,
                times: times(place),
            })
            .collect();
        Self {
            subjects,
            places,
            entries,
        }
    }

    fn subject(&self, entry: &Entry) -> &'a dyn Subject {
        self.subjects[entry.place.subject]
    }

    fn entry(&self, place: Place) -> &Entry {
        self.entries
            .iter()
            .find(|entry| entry.place == place)
            .expect("each place has one")
    }

    /// Whether an entry is named more than once.
    fn repeats(&self) -> bool {
        self.entries.len() < self.places.len()
    }

    /// Whether a limit that can run out is named by several paths.
    fn is_entangled(&self) -> bool {
        self.entries.iter().enumerate().any(|(at, entry)| {
            let is_same = |before: &Entry| before.place.subject == entry.place.subject;
            self.entries[..at].iter().any(is_same) && self.subject(entry).capacity() < u64::MAX
        })
    }

    /// The permits that all entries of a limit take from it.
    fn taken(&self, subject: usize, n: u32) -> u64 {
        let entries = self
            .entries
            .iter()
            .filter(|entry| entry.place.subject == subject);
        entries.map(|entry| entry.taken(n)).sum()
    }

    /// What an entry alone answers.
    fn alone(&self, entry: &Entry, now: Timestamp, n: u32) -> Result<(), Denied> {
        match u32::try_from(entry.wanted(n)) {
            Ok(1) => self.subject(entry).peek_at(now, n),
            Ok(wanted) => self.subject(entry).peek_at(now, wanted),
            Err(_) => {
                let capacity = u32::try_from(self.subject(entry).capacity()).unwrap_or(u32::MAX);
                Err(Denied::ExceedsCapacity {
                    permits: u32::MAX,
                    capacity,
                })
            }
        }
    }

    /// When an entry alone says to retry a request that it denied with `denied`.
    fn retry_alone(&self, entry: &Entry, now: Timestamp, alone: Result<(), Denied>) -> Retry {
        alone.map_or_else(
            |denied| self.subject(entry).retry(denied),
            |()| Retry::At(now),
        )
    }

    fn snapshot(&self) -> String {
        format!("{:?}", self.subjects)
    }

    fn available(&self, now: Timestamp) -> Vec<u64> {
        self.subjects
            .iter()
            .map(|subject| subject.available_at(now))
            .collect()
    }

    /// What the limits answer from `now` on.
    fn forecast(&self, now: Timestamp) -> Vec<Vec<u64>> {
        let steps = [
            0,
            1,
            1_000_000,
            40_000_000,
            300_000_000,
            1_000_000_000,
            5_000_000_000,
            30_000_000_000,
        ];
        steps
            .map(|step| self.available(now.saturating_add(Duration::from_nanos(step))))
            .to_vec()
    }

    /// What a look at each entry must answer.
    fn expected_look(&self, now: Timestamp, n: u32) -> Result<(), By> {
        self.entries.iter().try_for_each(|entry| {
            self.alone(entry, now, n)
                .map_err(|denied| (entry.index, n, denied))
        })
    }

    /// What the composition must answer. What one path to a limit has seen may have gone to another
    /// path.
    fn expected(&self, now: Timestamp, n: u32) -> Result<(), By> {
        self.expected_look(now, n)?;
        let mut left = self.available(now);
        for entry in &self.entries {
            let (left, taken) = (&mut left[entry.place.subject], entry.taken(n));
            if taken > *left {
                let denied = Denied::Exhausted {
                    now,
                    permits: taken as u32,
                };
                return Err((entry.index, n, denied));
            }
            // A limit without an end loses nothing.
            *left -= if *left == u64::MAX { 0 } else { taken };
        }
        Ok(())
    }

    /// When the composition must say to retry a denied request.
    fn expected_retry(&self, now: Timestamp, n: u32) -> Retry {
        self.entries.iter().fold(Retry::At(now), |longest, entry| {
            longest.longer(self.retry_alone(entry, now, self.alone(entry, now, n)), now)
        })
    }
}

/// Sends random requests. Each is answered as the limits together would answer it, and a denied
/// request leaves no trace.
///
/// Starts at `first`, and returns a time at which all limits are idle again.
fn trace<T: Limits>(
    all: &AllOf<T>,
    limits: &Composition<'_>,
    first: Timestamp,
    draws: &mut Draws<'_>,
    tally: &mut Tally,
) -> Timestamp {
    let last = first.saturating_add(Duration::from_mins(10));
    let (mut newest, mut now) = (first, first);
    let mut leases: Vec<AllLease<&T>> = Vec::new();
    while draws.another_step() && now < last {
        let available = all.available_at(now);
        let shares = limits
            .entries
            .iter()
            .map(|entry| limits.subject(entry).available_at(now) / entry.times);
        assert_eq!(available, shares.min().unwrap_or(u64::MAX));

        let some = available.min(30) as u32;
        let n = draws.one_of(&[0, 1, 1, 2, some, some, some + 1, 21, u32::MAX]);
        match request(all, limits, now, n, tally) {
            Ok(lease) => {
                newest = newest.max(now);
                leases.push(lease);
            }
            // Each path knows only of its own permits, so it can promise only that a look succeeds.
            Err(denied) if limits.is_entangled() => {
                if let Retry::At(at) = all.retry(denied) {
                    assert_eq!(all.peek_at(at, n), Ok(()), "denied at the retry at {at}");
                }
            }
            Err(denied) => match all.retry(denied) {
                Retry::At(at) => {
                    assert!(at > now, "{n} at {now}: again at {at}");
                    let early = Timestamp::from_nanos(at.as_nanos() - 1);
                    assert!(
                        all.peek_at(early, n).is_err(),
                        "granted 1 ns before the retry at {at}"
                    );
                    assert_eq!(all.peek_at(at, n), Ok(()), "denied at the retry at {at}");
                    if draws.once_in(2) && at < last {
                        now = early;
                        assert!(request(all, limits, now, n, tally).is_err());
                        now = at;
                        leases
                            .push(request(all, limits, now, n, tally).expect("the retry is exact"));
                        newest = newest.max(now);
                        tally.retried += 1;
                    }
                }
                Retry::OnRelease => tally.on_release += 1,
                // The limit that grants last by time, beside one that grants on a release.
                Retry::OnReleaseFrom(at) => {
                    let mut alone = limits
                        .entries
                        .iter()
                        .map(|entry| limits.retry_alone(entry, now, limits.alone(entry, now, n)));
                    assert!(at > now && alone.any(|retry| retry == Retry::At(at)));
                    tally.released_from += 1;
                }
                Retry::Never => tally.never += 1,
                other => panic!("no limit answers {other:?}"),
            },
        }
        tally.repeated += u64::from(limits.repeats());
        tally.probed += u64::from(limits.repeats() && n == 0);
        let pick = draws.below(leases.len().max(1) as u64) as usize;
        match draws.below(6) {
            0 if !leases.is_empty() => drop(leases.swap_remove(pick)),
            1 if !leases.is_empty() => {
                let n = leases.swap_remove(pick).forget();
                let before = limits.available(now);
                (0..all.limits().len())
                    .filter_map(|at| all.limits().get(at))
                    .for_each(|limit| limit.release(n));
                let after = limits.available(now);
                assert!(
                    before
                        .iter()
                        .zip(&after)
                        .all(|(before, after)| before <= after),
                    "still held"
                );
            }
            2 => in_part(all, limits, now, draws, tally, &mut leases),
            _ => {}
        }
        now = match draws.below(8) {
            0..=2 => now,
            3..=6 => newest.saturating_add(Duration::from_nanos(draws.magnitude(2_000_000_000))),
            _ => Timestamp::from_nanos(
                newest
                    .as_nanos()
                    .saturating_sub(draws.magnitude(500_000_000)),
            ),
        };
    }
    drop(leases);
    // Longer than the slowest of them takes to fill.
    let later = newest.saturating_add(Duration::from_secs(200));
    for subject in limits.subjects {
        assert_eq!(
            subject.available_at(later).min(u32::MAX.into()),
            subject.capacity().min(u32::MAX.into())
        );
    }
    later
}

/// Sends one request, after every question that can be asked before it.
fn request<'a, T: Limits>(
    all: &'a AllOf<T>,
    limits: &Composition<'_>,
    now: Timestamp,
    n: u32,
    tally: &mut Tally,
) -> Result<AllLease<&'a T>, DeniedBy> {
    let (snapshot, available) = (limits.snapshot(), limits.available(now));
    let forecast = limits.forecast(now);
    let context = || format!("{n} at {now} of places {:?}\n{snapshot}", limits.places);
    let (look, expected) = (limits.expected_look(now, n), limits.expected(now, n));

    assert_eq!(all.peek_at(now, n).map_err(by), look, "{}", context());
    let details: Vec<Detail> = all.explain_at(now, n).collect();
    assert_eq!(details.len(), limits.places.len());
    for (detail, &place) in details.iter().zip(limits.places) {
        let entry = limits.entry(place);
        let decision = limits.alone(entry, now, n);
        let retry = limits.retry_alone(entry, now, decision);
        let expected = (decision, available[place.subject], retry);
        assert_eq!(answers(*detail), expected, "{}", context());
    }
    assert_eq!(limits.snapshot(), snapshot, "a query wrote");

    tally.operations += 1;
    let answer = all.try_acquire_at(now, n);
    match &answer {
        Ok(lease) => {
            assert_eq!((Ok(()), lease.permits()), (expected, n), "{}", context());
            for (subject, (before, after)) in
                available.iter().zip(limits.available(now)).enumerate()
            {
                let taken = if *before == u64::MAX {
                    0
                } else {
                    limits.taken(subject, n)
                };
                assert_eq!(after, before - taken, "of limit {subject}: {}", context());
            }
            if n == 0 {
                assert_eq!(limits.snapshot(), snapshot, "a probe wrote");
            }
            tally.granted += 1;
            tally.by_several_paths += u64::from(limits.is_entangled() && n > 0);
        }
        Err(denied) => {
            assert_eq!(Err(by(*denied)), expected, "{}", context());
            if look.is_err() {
                assert_eq!(limits.snapshot(), snapshot, "a denial wrote: {}", context());
            }
            // A window that was rolled for permits that were refunded answers as before.
            assert_eq!(
                limits.forecast(now),
                forecast,
                "a rollback left a trace: {}",
                context()
            );
            assert_eq!(
                all.retry(*denied),
                limits.expected_retry(now, n),
                "{}",
                context()
            );
            tally.denied += 1;
            tally.denied_later += u64::from(denied.index > 0);
            tally.denied_in_the_take += u64::from(look.is_ok());
        }
    }
    answer
}

/// Takes as many permits as are available, between two numbers.
fn in_part<'a, T: Limits>(
    all: &'a AllOf<T>,
    limits: &Composition<'_>,
    now: Timestamp,
    draws: &mut Draws<'_>,
    tally: &mut Tally,
    leases: &mut Vec<AllLease<&'a T>>,
) {
    let (min, max) = (draws.below(6) as u32, draws.below(40) as u32);
    let (snapshot, available) = (limits.snapshot(), all.available_at(now));
    let least = min.max(1);
    let possible = limits.expected(now, least);
    let most = available.min(max.into()).max(least.into());
    let all_of_them = u32::try_from(most).is_ok_and(|most| limits.expected(now, most).is_ok());
    match all.try_acquire_between_at(now, min, max) {
        Ok(lease) => {
            let permits = u64::from(lease.permits());
            assert!(
                possible.is_ok() && (u64::from(least)..=most).contains(&permits),
                "{permits} of {most}"
            );
            if all_of_them {
                assert_eq!(permits, most, "{min} to {max} of {available}");
            }
            leases.push(lease);
            tally.in_part += 1;
        }
        Err(denied) => {
            assert_eq!(Err(by(denied)), possible, "{min} to {max} of {available}");
            if !limits.is_entangled() {
                assert!(
                    available < u64::from(least) && limits.snapshot() == snapshot,
                    "a denial wrote"
                );
            }
        }
    }
}

/// Runs `$run` on a composition of the first N of `$places`: as a tuple or as an array.
macro_rules! shaped {
    ($places:ident, $run:ident: $($count:literal: $($index:literal),+;)+) => {
        match $places.len() {
            $($count => {
                $run!(AllOf::new(($($places[$index],)+)));
                $run!(AllOf::new([$($places[$index]),+]));
            })+
            _ => {}
        }
    };
}

/// Tests random limits on one word, in every shape of a composition.
fn compositions<W: Word>(seed: u64, tally: &mut Tally) {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 0,
    };
    let limiters: Vec<(Box<dyn Subject>, bool)> = (0..draws.within(1, 8))
        .map(|_| subject::<W>(&mut draws))
        .collect();
    let subjects: Vec<&dyn Subject> = limiters.iter().map(|(limiter, _)| &**limiter).collect();
    let count = if draws.once_in(4) {
        draws.within(9, 40)
    } else {
        draws.within(1, 8)
    } as usize;
    // Directly, behind references, and through one or two wrappers. A limit is always named by one
    // path, or by several.
    let (several_paths, some_path) = (draws.once_in(3), draws.below(3));
    let named: Vec<Place> = (0..count)
        .map(|_| {
            let subject = draws.below(subjects.len() as u64) as usize;
            let path = if several_paths {
                draws.below(3)
            } else {
                (some_path + subject as u64) % 3
            };
            Place {
                subject,
                path: path as usize,
            }
        })
        .collect();
    let counted: Vec<Counted<&dyn Subject>> = subjects
        .iter()
        .map(|&subject| Counted::new(subject))
        .collect();
    let twice: Vec<Counted<&Counted<&dyn Subject>>> = counted.iter().map(Counted::new).collect();
    let handles: Vec<&&dyn Subject> = named.iter().map(|place| &subjects[place.subject]).collect();
    let places: Vec<&(dyn Limiter + Sync)> = (0..count)
        .map(|at| match named[at] {
            Place { subject, path: 0 } if draws.once_in(2) => {
                subjects[subject] as &(dyn Limiter + Sync)
            }
            Place { path: 0, .. } => &handles[at] as &(dyn Limiter + Sync),
            Place { subject, path: 1 } => &counted[subject] as &(dyn Limiter + Sync),
            Place { subject, .. } => &twice[subject] as &(dyn Limiter + Sync),
        })
        .collect();
    let told_apart = |(at, place): (usize, &Place)| {
        if limiters[place.subject].1 {
            *place
        } else {
            Place {
                path: 3 + at,
                ..*place
            }
        }
    };
    let told_apart: Vec<Place> = named.iter().enumerate().map(told_apart).collect();
    let limits = Composition::new(&subjects, &told_apart);

    let first = Timestamp::from_millis(draws.below(3_000));
    let mut now = first;
    let mut state = draws.any();
    macro_rules! run {
        ($all:expr) => {{
            state = state.wrapping_add(1);
            now = trace(
                &$all,
                &limits,
                now,
                &mut Draws::Seeded { state, steps: 40 },
                tally,
            );
        }};
    }
    match seed % 3 {
        #[cfg(feature = "std")]
        1 => {
            let owned: Vec<Box<dyn Limiter + '_>> = places
                .iter()
                .enumerate()
                .map(|(place, &limiter)| match place % 2 {
                    0 => Box::new(std::sync::Arc::new(limiter)) as Box<dyn Limiter + '_>,
                    _ => Box::new(limiter) as Box<dyn Limiter + '_>,
                })
                .collect();
            run!(AllOf::new(&owned[..]));
        }
        2 if count <= 8 => shaped! { places, run:
            1: 0;
            2: 0, 1;
            3: 0, 1, 2;
            4: 0, 1, 2, 3;
            5: 0, 1, 2, 3, 4;
            6: 0, 1, 2, 3, 4, 5;
            7: 0, 1, 2, 3, 4, 5, 6;
            8: 0, 1, 2, 3, 4, 5, 6, 7;
        },
        _ => run!(AllOf::new(&places[..])),
    }
    assert!(now > first, "a trace has run");
    assert!(
        counted.iter().all(|counted| counted.counts().held == 0),
        "all permits are refunded"
    );
    assert!(
        twice.iter().all(|counted| counted.counts().held == 0),
        "all permits are refunded"
    );
}

#[test]
fn random_compositions_answer_as_their_limits_do_together() {
    let mut tally = Tally::default();
    let seeds = if cfg!(debug_assertions) { 300 } else { 2_000 };
    for seed in 0..seeds {
        compositions::<u64>(2 * seed, &mut tally);
        compositions::<u32>(2 * seed + 1, &mut tally);
    }
    println!("{tally:?}");
    assert!(
        tally.granted > tally.operations / 20 && tally.denied > tally.operations / 20,
        "{tally:?}"
    );
    let Tally {
        denied_later,
        retried,
        on_release,
        released_from,
        never,
        in_part,
        repeated,
        ..
    } = tally;
    let Tally {
        probed,
        denied_in_the_take,
        by_several_paths,
        ..
    } = tally;
    let rare = [
        denied_later,
        retried,
        on_release,
        released_from,
        never,
        in_part,
        repeated,
        probed,
    ];
    let rare = [&rare[..], &[denied_in_the_take, by_several_paths]].concat();
    assert!(rare.iter().all(|&count| count > 200), "{tally:?}");
}

#[test]
fn a_tuple_of_different_types_is_judged_like_any_other() {
    fn check<W: Word>(seed: u64, tally: &mut Tally) {
        let period = Duration::from_secs(1);
        let all = AllOf::new((
            TokenBucket::builder(Rate::per_second(3), 7)
                .build_on::<W>()
                .unwrap(),
            FixedWindow::builder(6, period).build_on::<W>().unwrap(),
            SlidingWindow::<5>::builder(8, period, 4)
                .build_on::<W>()
                .unwrap(),
            Concurrency::builder(9).build_on::<W>().unwrap(),
            Counted::new(
                SlidingWindow::<3>::builder(9, period, 2)
                    .strict()
                    .build_on::<W>()
                    .unwrap(),
            ),
            TokenBucket::builder(Rate::per_minute(60), 10)
                .stepwise()
                .build_on::<W>()
                .unwrap(),
        ));
        let (a, b, c, d, e, f) = all.limits();
        let subjects: [&dyn Subject; 6] = [a, b, c, d, e.limiter(), f];
        let places: [Place; 6] = core::array::from_fn(|subject| Place { subject, path: 0 });
        let limits = Composition::new(&subjects, &places);
        trace(
            &all,
            &limits,
            NOW,
            &mut Draws::Seeded {
                state: seed,
                steps: 60,
            },
            tally,
        );
        assert_eq!(e.counts().held, 0);
    }
    let mut tally = Tally::default();
    for seed in 0..50 {
        check::<u64>(seed, &mut tally);
        check::<u32>(seed, &mut tally);
    }
    assert!(
        tally.granted > 200 && tally.denied_later > 200 && tally.retried > 100,
        "{tally:?}"
    );
}

// Corner cases.

#[test]
fn no_limits_grant_everything() {
    fn check<T: Limits>(all: &AllOf<T>) {
        for n in [0, 1, u32::MAX] {
            assert_eq!(all.peek_at(NOW, n), Ok(()));
            assert_eq!(all.try_acquire_at(NOW, n).unwrap().permits(), n);
        }
        assert_eq!((all.limits().len(), all.available_at(NOW)), (0, u64::MAX));
        assert_eq!(all.explain_at(NOW, 1).len(), 0);
        assert_eq!(
            all.try_acquire_between_at(NOW, 0, u32::MAX)
                .unwrap()
                .permits(),
            u32::MAX
        );
    }
    check(&AllOf::new([] as [Concurrency; 0]));
    check(&AllOf::new(&[] as &[&dyn Limiter]));
}

#[test]
fn a_probe_takes_nothing_and_is_answered_as_a_request_for_one_permit() {
    let (a, b) = (
        Concurrency::new(1),
        TokenBucket::new(Rate::per_second(1), 1),
    );
    let all = AllOf::new((&a, &b));
    let before = format!("{all:?}");
    let probe = all.try_acquire_at(NOW, 0).unwrap();
    assert_eq!((probe.permits(), format!("{all:?}")), (0, before.clone()));
    drop(probe);
    assert_eq!(format!("{all:?}"), before);
    let _held = all.try_acquire_at(NOW, 1).unwrap();
    let denied = all.try_acquire_at(NOW, 0).unwrap_err();
    assert_eq!(
        (denied.index, denied.permits, denied.denied),
        (
            0,
            0,
            Denied::Exhausted {
                now: NOW,
                permits: 0
            }
        )
    );
}

#[test]
fn a_probe_of_a_limit_that_is_named_twice_asks_for_two() {
    let limit = Concurrency::new(2);
    let all = AllOf::new((&limit, &limit));
    assert!(all.try_acquire_at(NOW, 0).is_ok());
    let _one = limit.try_acquire(1).unwrap();
    assert!(
        all.try_acquire_at(NOW, 0).is_err(),
        "as a request for one of each"
    );
    assert!(all.try_acquire_at(NOW, 1).is_err());

    // Every query about it gets the same answer.
    let bucket = TokenBucket::builder(Rate::per_second(1), 2)
        .initial(1)
        .build()
        .unwrap();
    let all = AllOf::new((&bucket, &bucket));
    let denied = all.try_acquire_at(Timestamp::ZERO, 0).unwrap_err();
    let expected = Denied::Exhausted {
        now: Timestamp::ZERO,
        permits: 2,
    };
    assert_eq!(
        (denied.index, denied.permits, denied.denied),
        (0, 0, expected)
    );
    assert_eq!(all.peek_at(Timestamp::ZERO, 0), Err(denied));
    let retry = Retry::At(Timestamp::from_secs(1));
    assert_eq!(all.retry(denied), retry);
    for detail in all.explain_at(Timestamp::ZERO, 0) {
        assert_eq!(answers(detail), (Err(expected), 1, retry));
    }
    assert!(
        all.try_acquire_at(Timestamp::from_nanos(999_999_999), 0)
            .is_err()
    );
    assert!(all.try_acquire_at(Timestamp::from_secs(1), 0).is_ok());
    assert_eq!(bucket.available_at(Timestamp::from_secs(1)), 2);
}

#[test]
fn more_than_a_limit_holds_is_never_granted_and_takes_nothing() {
    let (large, small) = (Concurrency::new(9), Concurrency::new(3));
    let all = AllOf::new((&large, &small));
    for n in [4, 10, u32::MAX] {
        let denied = all.try_acquire_at(NOW, n).unwrap_err();
        assert!(matches!(denied.denied, Denied::ExceedsCapacity { permits, .. } if permits == n));
        assert_eq!(
            (all.retry(denied), large.in_use(), small.in_use()),
            (Retry::Never, 0, 0)
        );
    }
    assert_eq!(all.try_acquire_at(NOW, 4).unwrap_err().index, 1);
    assert_eq!(all.try_acquire_at(NOW, 10).unwrap_err().index, 0);
}

#[test]
fn a_sum_beyond_u32_is_asked_of_no_limit() {
    let limit = Concurrency::new(3);
    let two = AllOf::new((&limit, &limit));
    let three = AllOf::new([&limit, &limit, &limit]);
    // Wrapped in 32 bits, these would be 0, 2 and 1 permits of the limit.
    for (denied, n) in [
        (two.try_acquire_at(NOW, 1 << 31).unwrap_err(), 1 << 31),
        (
            two.try_acquire_at(NOW, (1 << 31) + 1).unwrap_err(),
            (1 << 31) + 1,
        ),
        (
            three.try_acquire_at(NOW, 0x5555_5556).unwrap_err(),
            0x5555_5556,
        ),
    ] {
        assert_eq!((denied.index, denied.permits), (0, n));
        assert_eq!(
            denied.denied,
            Denied::ExceedsCapacity {
                permits: u32::MAX,
                capacity: 3
            }
        );
        assert_eq!(two.retry(denied), Retry::Never);
    }
    assert_eq!(limit.in_use(), 0);
    // A bucket that never denies has an identity like any other, and the sum of its permits must
    // fit its type.
    let unlimited = TokenBucket::new(Rate::UNLIMITED, 1);
    assert!(
        AllOf::new((&unlimited, &unlimited))
            .try_acquire_at(NOW, u32::MAX)
            .is_err()
    );
    assert!(
        AllOf::new((&unlimited,))
            .try_acquire_at(NOW, u32::MAX)
            .is_ok()
    );
}

#[test]
fn a_sum_beyond_u32_is_explained_as_it_is_answered() {
    let bucket = TokenBucket::new(Rate::new(1, Duration::from_nanos(1)), 1 << 40);
    let all = AllOf::new((&bucket, &bucket));
    for n in [1 << 31, u32::MAX] {
        let denied = all.try_acquire_at(NOW, n).unwrap_err();
        assert_eq!(
            denied.denied,
            Denied::ExceedsCapacity {
                permits: u32::MAX,
                capacity: u32::MAX
            }
        );
        assert_eq!(
            (all.peek_at(NOW, n), all.retry(denied)),
            (Err(denied), Retry::Never)
        );
        for detail in all.explain_at(NOW, n) {
            let expected = (Err(denied.denied), 1 << 40, Retry::Never);
            assert_eq!(answers(detail), expected);
        }
    }
    assert!(
        all.explain_at(NOW, u32::MAX / 2)
            .all(|detail| detail.is_allowed())
    );
    assert_eq!(
        all.try_acquire_at(NOW, u32::MAX / 2).unwrap().permits(),
        u32::MAX / 2
    );
}

/// Runs `work` in a thread of its own, so that the test fails if it never ends.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (ended, end) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || {
        work();
        ended.send(())
    });
    let end = end.recv_timeout(Duration::from_mins(1));
    assert!(end != Err(RecvTimeoutError::Timeout), "it never ends");
    running
        .join()
        .expect("it does not panic")
        .expect("the receiver waits");
}

#[test]
fn a_partial_grant_of_a_large_limit_that_is_named_twice_fits_u32() {
    ends(|| {
        let bucket = TokenBucket::new(Rate::new(1, Duration::from_nanos(1)), 1 << 40);
        let all = AllOf::new((&bucket, &bucket));
        assert_eq!(
            all.try_acquire_between_at(NOW, 1, u32::MAX)
                .unwrap()
                .permits(),
            u32::MAX / 2
        );
        assert_eq!(
            bucket.available_at(NOW),
            (1 << 40) - 2 * u64::from(u32::MAX / 2)
        );
        assert!(all.try_acquire_between_at(NOW, 1 << 31, u32::MAX).is_err());
    });
}

#[test]
fn a_partial_grant_of_a_limiter_that_denies_what_it_reports_ends() {
    /// Grants up to this many at once, whatever it reports.
    struct Boasts(u32);
    impl Limiter for Boasts {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.granted(Receipt::NONE);
            }
            Answer::from(if n <= self.0 {
                Ok(Receipt::NONE)
            } else {
                Err(Denied::Refused { now, permits: n })
            })
        }

        fn give_back(&self, _: portcullis_core::limiter::Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, _: Read<'_>) -> Reading {
            Reading {
                available: u64::MAX,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::Never
        }
    }
    ends(|| {
        assert!(Boasts(0).drain_at(NOW).is_none());
        assert!(Boasts(4).try_acquire_between_at(NOW, 5, 1_000).is_err());
        for granted in [1, 2, 3, 1_000, u32::MAX] {
            let permits = Boasts(granted).drain_at(NOW).unwrap().permits();
            assert!(
                permits <= granted && permits >= granted / 2,
                "{permits} of {granted}"
            );
            let all = AllOf::new([Boasts(granted), Boasts(u32::MAX)]);
            assert_eq!(
                all.try_acquire_between_at(NOW, 1, u32::MAX)
                    .unwrap()
                    .permits(),
                permits
            );
        }
    });
}

// Identities of limiters.

#[test]
fn a_limiter_with_state_is_recognized_behind_every_handle_and_differs_from_all_others() {
    fn check<W: Word>() {
        let second = Duration::from_secs(1);
        let mut all = limiters::limited::<W>(5, second);
        // A wrapper without state is not told from its limiter.
        all.retain(|(_, limiter)| limiter.id().is_some());
        assert_eq!(2 * all.len(), limiters::limited::<W>(5, second).len());
        let bucket = TokenBucket::builder(Rate::per_second(1), 5)
            .build_on::<W>()
            .unwrap();
        let around_bucket = Counted::new(&bucket);
        let around_both = Counted::new(&around_bucket);
        let owns = Counted::new(Counted::new(
            Concurrency::builder(5).build_on::<W>().unwrap(),
        ));
        let penalty = Penalty::builder(second)
            .build_on::<W>()
            .unwrap()
            .around(&bucket);
        let mut limiters: Vec<&dyn Limiter> = all.iter().map(|(_, one)| &**one as _).collect();
        limiters.extend([
            &bucket as &dyn Limiter,
            &around_bucket,
            &around_both,
            &owns,
            owns.limiter(),
            owns.limiter().limiter(),
            &penalty,
        ]);
        for (place, limiter) in limiters.iter().enumerate() {
            assert!(limiter.id().is_some(), "number {place}");
            assert_eq!(limiter.id(), (&&limiter).id());
            for other in &limiters[..place] {
                assert_ne!(limiter.id(), other.id(), "number {place}");
            }
            let handle = &limiter;
            let all = AllOf::new((limiter, &handle));
            assert_eq!(all.available_at(NOW), 2, "number {place} has 5");
            assert_eq!(all.try_acquire_at(NOW, 3).unwrap_err().denied.permits(), 6);
        }
    }
    check::<u64>();
    check::<u32>();
}

#[cfg(feature = "std")]
#[test]
fn a_shared_limiter_is_one_limit() {
    let limit = std::sync::Arc::new(Concurrency::new(5));
    let all = [Box::new(std::sync::Arc::clone(&limit)), Box::new(limit)];
    assert_eq!(AllOf::new(&all[..]).available_at(NOW), 2);
    let lease = AllOf::new(&all[..]).into_lease_at(NOW, 2).unwrap();
    assert_eq!(all[0].in_use(), 4);
    drop(lease);
    assert_eq!(all[1].in_use(), 0);
}

/// A value without a size may have the address of another limiter.
#[test]
fn a_limiter_without_state_hides_none_of_its_neighbours() {
    let unlimited = Unlimited;
    let limits = (
        Unlimited,
        Concurrency::new(1),
        Unlimited,
        Counted::new(Unlimited),
    );
    for limiter in [&unlimited as &dyn Limiter, &limits.0, &limits.2, &limits.3] {
        assert_eq!(limiter.id(), None);
    }
    assert_eq!(
        LimiterId::of(&unlimited),
        None,
        "even if it reports an address"
    );
    let all = AllOf::new(limits);
    assert_eq!(all.try_acquire_at(NOW, 2).unwrap_err().index, 1);
    assert_eq!(all.available_at(NOW), 1);
    let lease = all.try_acquire_at(NOW, 1).unwrap();
    let (_, limit, _, counted) = all.limits();
    assert_eq!((limit.in_use(), counted.counts().held), (1, 1));
    drop(lease);
    assert_eq!((limit.in_use(), counted.counts().held), (0, 0));

    let twice = AllOf::new((&unlimited, &all.limits().3, &unlimited, &all.limits().3));
    assert_eq!(
        twice.try_acquire_at(NOW, u32::MAX).unwrap().permits(),
        u32::MAX,
        "no sum to add up"
    );
    assert_eq!(counted.counts().held, 0);
}

/// It has the address of its first field, but is another limiter.
#[test]
fn a_limiter_written_by_hand_is_not_mistaken_for_its_first_field_and_is_asked_each_time() {
    struct Both(Concurrency, Concurrency);
    impl Limiter for Both {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.take(now, n).into()
        }
        fn give_back(&self, back: portcullis_core::limiter::Back<'_>) -> Returned {
            match back {
                portcullis_core::limiter::Back::Release { permits: n } => {
                    self.1.release(n);
                    self.0.release(n);
                    Returned::NOTHING
                }
                portcullis_core::limiter::Back::Refund {
                    permits, receipt, ..
                } => {
                    self.release(permits);
                    receipt.refunded(0).into()
                }
                _ => Returned::NOTHING,
            }
        }
        fn read(&self, read: Read<'_>) -> Reading {
            let now = read.now();
            Reading {
                available: self.0.available_at(now).min(self.1.available_at(now)),
                capacity: self.0.capacity(),
                idle: Idle::InUse,
                held: 0,
            }
        }
        fn retry(&self, denied: Denied) -> Retry {
            self.0.retry(denied)
        }
    }

    impl Both {
        fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
            let receipt = self.0.take_at(now, n)?;
            self.1.take_at(now, n).inspect_err(|_| self.0.release(n))?;
            Ok(receipt)
        }
    }
    let both = Both(Concurrency::new(5), Concurrency::new(1));
    let in_use = || (both.0.in_use(), both.1.in_use());
    let field_first: [&dyn Limiter; 2] = [&both.0, &both];
    assert_eq!(
        AllOf::new(field_first)
            .try_acquire_at(NOW, 2)
            .unwrap_err()
            .index,
        1
    );
    let lease = AllOf::new(field_first).into_lease_at(NOW, 1).unwrap();
    assert_eq!(in_use(), (2, 1));
    drop(lease);
    // Named twice, it is asked twice, and only the second call sees the first take.
    assert!(AllOf::new([&both, &both]).peek_at(NOW, 1).is_ok());
    assert_eq!(
        AllOf::new([&both, &both])
            .into_lease_at(NOW, 1)
            .unwrap_err()
            .index,
        1
    );
    assert_eq!(in_use(), (0, 0));
}

// A limit that is named by several paths.

#[test]
fn each_path_to_a_limit_is_asked_for_its_own_permits_and_all_are_taken_or_none() {
    let limit = Concurrency::new(7);
    let counted = Counted::new(&limit);
    let twice = Counted::new(&counted);
    let places: [&dyn Limiter; 4] = [&limit, &&&limit, &counted, &twice];
    let all = AllOf::new(&places[..]);
    assert_eq!(
        all.available_at(NOW),
        3,
        "two for each of the three that the first path can take"
    );

    let lease = all.try_acquire_at(NOW, 1).unwrap();
    assert_eq!(limit.in_use(), 4);
    assert_eq!((counts(&counted), counts(&twice)), ((2, 0, 2), (1, 0, 1)));

    // Three are left: enough for each path alone, but not for all together.
    assert_eq!(all.peek_at(NOW, 1), Ok(()));
    assert!(
        all.explain_at(NOW, 1)
            .all(|detail| detail.is_allowed() && detail.available == 3)
    );
    let denied = all.try_acquire_at(NOW, 1).unwrap_err();
    let expected = Denied::Exhausted {
        now: NOW,
        permits: 1,
    };
    assert_eq!(by(denied), (3, 1, expected));
    assert_eq!(
        all.retry(denied),
        Retry::At(NOW),
        "as far as each path sees"
    );
    assert_eq!(limit.in_use(), 4, "no permit leaked");
    assert_eq!((counts(&counted), counts(&twice)), ((3, 1, 2), (1, 1, 1)));

    drop(lease);
    assert_eq!(limit.in_use(), 0);
    assert_eq!((counted.counts().held, twice.counts().held), (0, 0));
}

#[test]
fn a_wrapper_that_is_named_twice_is_asked_once_for_both() {
    let limit = Concurrency::new(7);
    let counted = Counted::new(&limit);
    let all = AllOf::new((&counted, &limit, &counted));
    assert_eq!(all.available_at(NOW), 3);
    let lease = all.try_acquire_at(NOW, 2).unwrap();
    assert_eq!((limit.in_use(), counts(&counted)), (6, (1, 0, 4)));
    assert_eq!(
        all.try_acquire_at(NOW, 1).unwrap_err().denied,
        Denied::Exhausted {
            now: NOW,
            permits: 2
        }
    );
    drop(lease);
    assert_eq!((limit.in_use(), counted.counts().held), (0, 0));
}

/// Whichever of the two comes first.
#[test]
fn the_counts_of_a_limit_that_is_named_bare_and_wrapped_are_refunded() {
    let limit = Concurrency::new(7);
    let counted = Counted::new(&limit);
    let orders: [[&dyn Limiter; 2]; 2] = [[&limit, &counted], [&counted, &limit]];
    for (turn, places) in orders.into_iter().enumerate() {
        let lease = AllOf::new(places).into_lease_at(NOW, 3).unwrap();
        assert_eq!((limit.in_use(), counted.counts().held), (6, 3));
        drop(lease);
        assert_eq!((limit.in_use(), counted.counts().held), (0, 0));
        assert_eq!(counted.counts().granted.requests, 1 + turn as u64);
        assert_eq!(
            AllOf::new(places).into_lease_at(NOW, 4).unwrap_err().index,
            1
        );
        assert_eq!((limit.in_use(), counted.counts().held), (0, 0));
    }
    // It denied once by itself. Once it granted before the other path denied, and was refunded.
    assert_eq!(counts(&counted), (3, 1, 0));
}

/// When the second path finds too few permits, no bit of what the first path took is left.
#[test]
fn a_path_that_finds_too_few_permits_leaves_every_kind_of_limit_as_it_was() {
    fn check<W: Word>() {
        let period = Duration::from_secs(1);
        let bucket = TokenBucket::builder(Rate::per_second(3), 7)
            .build_on::<W>()
            .unwrap();
        let steps = TokenBucket::builder(Rate::per_second(3), 7)
            .stepwise()
            .build_on::<W>()
            .unwrap();
        let fixed = FixedWindow::builder(7, period).build_on::<W>().unwrap();
        let started = FixedWindow::builder(7, period)
            .started_by_first_request()
            .build_on::<W>()
            .unwrap();
        let sliding = SlidingWindow::<5>::builder(7, period, 4)
            .build_on::<W>()
            .unwrap();
        let strict = SlidingWindow::<5>::builder(7, period, 4)
            .strict()
            .build_on::<W>()
            .unwrap();
        let limit = Concurrency::builder(7).build_on::<W>().unwrap();
        let subjects: [&dyn Subject; 7] =
            [&bucket, &steps, &fixed, &started, &sliding, &strict, &limit];
        for subject in subjects {
            subject.take_at(NOW, 2).unwrap();
            let state = format!("{subject:?}");
            let counted = Counted::new(subject);
            let twice = Counted::new(&counted);
            let orders: [[&dyn Limiter; 3]; 3] = [
                [&subject, &counted, &twice],
                [&counted, &twice, &subject],
                [&twice, &subject, &counted],
            ];
            for places in orders {
                for (n, index) in [(2, 2), (3, 1), (4, 1), (5, 1)] {
                    let denied = AllOf::new(places).into_lease_at(NOW, n).unwrap_err();
                    let expected = Denied::Exhausted {
                        now: NOW,
                        permits: n,
                    };
                    assert_eq!(by(denied), (index, n, expected));
                    assert_eq!(format!("{subject:?}"), state);
                    assert_eq!((counted.counts().held, twice.counts().held), (0, 0));
                }
            }
            // Five are left: one for each of the three paths leaves two.
            let lease = AllOf::new(orders[0]).into_lease_at(NOW, 1).unwrap();
            assert_eq!(subject.available_at(NOW), 2, "{subject:?}");
            assert_eq!((counted.counts().held, twice.counts().held), (2, 1));
            drop(lease);
            assert_eq!((counted.counts().held, twice.counts().held), (0, 0));
        }
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_path_through_a_penalty_is_penalized_for_its_own_denials_only() {
    let limit = Concurrency::new(3);
    let penalty = Penalty::new(&limit, Duration::from_secs(1));
    assert_eq!(
        AllOf::new((&penalty, &limit))
            .try_acquire_at(NOW, 2)
            .unwrap_err()
            .index,
        1
    );
    assert!(!penalty.is_on_at(NOW), "the other path denied");
    assert_eq!(
        AllOf::new((&limit, &penalty))
            .try_acquire_at(NOW, 2)
            .unwrap_err()
            .index,
        1
    );
    assert!(penalty.is_on_at(NOW));
    assert_eq!(limit.in_use(), 0);
    assert!(
        AllOf::new((&limit, &limit)).try_acquire_at(NOW, 1).is_ok(),
        "the limit alone is free"
    );
}

// Limits that deny, or panic, after they have agreed.

/// What a scripted limit does when it is asked for permits, after it reported any number of them as
/// available.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Script {
    Grants,
    Denies,
    PanicsInTake,
    PanicsInRefund,
    PanicsInRelease,
    PanicsInLook,
}

/// What a scripted limit was asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Take(usize, u32),
    Refund(usize, u32),
    Release(usize, u32),
}

/// A limit that follows a script, and records the order of its calls among those of other limits.
#[derive(Debug)]
struct Scripted<'a> {
    place: usize,
    script: Script,
    calls: &'a Mutex<Vec<Call>>,
}

impl Scripted<'_> {
    fn called(&self, call: Call) {
        self.calls.lock().expect("not poisoned").push(call);
    }
}

impl Limiter for Scripted<'_> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        self.called(Call::Take(self.place, n));
        Answer::from(match self.script {
            Script::Denies => Err(Denied::Refused { now, permits: n }),
            Script::PanicsInTake => panic!("scripted"),
            _ => Ok(Receipt::new(1_000 + self.place as u64)),
        })
    }
    fn give_back(&self, back: portcullis_core::limiter::Back<'_>) -> Returned {
        match back {
            portcullis_core::limiter::Back::Release { permits: n } => {
                self.called(Call::Release(self.place, n));
                assert!(self.script != Script::PanicsInRelease, "scripted");
                Returned::NOTHING
            }
            portcullis_core::limiter::Back::Refund {
                now,
                permits: n,
                receipt,
                ..
            } => {
                assert_eq!(
                    (now, receipt.note()),
                    (NOW, 1_000 + self.place as u64),
                    "the receipt of another limit"
                );
                self.called(Call::Refund(self.place, n));
                assert!(self.script != Script::PanicsInRefund, "scripted");
                receipt.refunded(n).into()
            }
            _ => Returned::NOTHING,
        }
    }
    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: {
                assert!(self.script != Script::PanicsInLook, "scripted");
                u64::MAX
            },
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }
    fn retry(&self, _: Denied) -> Retry {
        Retry::After(Duration::from_secs(1))
    }
}

/// Creates `count` scripted limits, some of which follow a script of their own.
fn scripted<'a>(
    count: usize,
    scripts: &[(usize, Script)],
    calls: &'a Mutex<Vec<Call>>,
) -> Vec<Scripted<'a>> {
    let script = |place| {
        scripts
            .iter()
            .find(|(at, _)| *at == place)
            .map_or(Script::Grants, |(_, script)| *script)
    };
    (0..count)
        .map(|place| Scripted {
            place,
            script: script(place),
            calls,
        })
        .collect()
}

/// Runs `$check` on `$limits` as a slice, and, for at most eight limits, as a tuple and an array of
/// references.
macro_rules! in_every_shape {
    ($limits:ident, $check:expr) => {{
        let places: Vec<_> = $limits.iter().collect();
        let objects: Vec<&dyn Limiter> =
            $limits.iter().map(|limit| limit as &dyn Limiter).collect();
        let check = $check;
        check(&|| AllOf::new(&$limits[..]).try_acquire_at(NOW, 3).map(drop));
        check(&|| AllOf::new(&objects[..]).into_lease_at(NOW, 3).map(drop));
        macro_rules! run {
            ($all:expr) => {
                check(&|| $all.into_lease_at(NOW, 3).map(drop))
            };
        }
        shaped! { places, run:
            1: 0;
            2: 0, 1;
            3: 0, 1, 2;
            4: 0, 1, 2, 3;
            5: 0, 1, 2, 3, 4;
            6: 0, 1, 2, 3, 4, 5;
            7: 0, 1, 2, 3, 4, 5, 6;
            8: 0, 1, 2, 3, 4, 5, 6, 7;
        }
    }};
}

type Try<'a> = &'a dyn Fn() -> Result<(), DeniedBy>;

const COUNTS: [usize; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40];

#[test]
fn a_denial_in_the_take_refunds_the_earlier_takes_in_reverse() {
    for count in COUNTS {
        for place in 0..count {
            let calls = Mutex::new(Vec::new());
            let limits = scripted(count, &[(place, Script::Denies)], &calls);
            let taken = (0..=place).map(|at| Call::Take(at, 3));
            let expected: Vec<Call> = taken
                .chain((0..place).rev().map(|at| Call::Refund(at, 3)))
                .collect();
            in_every_shape!(limits, |attempt: Try<'_>| {
                let denied = Denied::Refused {
                    now: NOW,
                    permits: 3,
                };
                assert_eq!(attempt().map_err(by), Err((place, 3, denied)));
                assert_eq!(
                    core::mem::take(&mut *calls.lock().unwrap()),
                    expected,
                    "{place} of {count}"
                );
            });
        }
    }
}

#[test]
fn a_panic_in_the_take_refunds_the_earlier_takes_in_reverse() {
    for count in COUNTS {
        for place in 0..count {
            let calls = Mutex::new(Vec::new());
            let limits = scripted(count, &[(place, Script::PanicsInTake)], &calls);
            let taken = (0..=place).map(|at| Call::Take(at, 3));
            let expected: Vec<Call> = taken
                .chain((0..place).rev().map(|at| Call::Refund(at, 3)))
                .collect();
            in_every_shape!(limits, |attempt: Try<'_>| {
                assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
                assert_eq!(
                    core::mem::take(&mut *calls.lock().unwrap()),
                    expected,
                    "{place} of {count}"
                );
            });
        }
    }
}

#[test]
fn a_panic_in_the_look_comes_before_any_take() {
    for count in COUNTS {
        let calls = Mutex::new(Vec::new());
        let limits = scripted(count, &[(count - 1, Script::PanicsInLook)], &calls);
        in_every_shape!(limits, |attempt: Try<'_>| {
            assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
            assert!(calls.lock().unwrap().is_empty());
        });
    }
}

#[test]
fn a_panic_in_a_refund_does_not_stop_the_other_refunds() {
    for count in COUNTS {
        for place in 0..count - 1 {
            let calls = Mutex::new(Vec::new());
            let limits = scripted(
                count,
                &[(place, Script::PanicsInRefund), (count - 1, Script::Denies)],
                &calls,
            );
            let taken = (0..count).map(|at| Call::Take(at, 3));
            let expected: Vec<Call> = taken
                .chain((0..count - 1).rev().map(|at| Call::Refund(at, 3)))
                .collect();
            in_every_shape!(limits, |attempt: Try<'_>| {
                assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
                assert_eq!(
                    core::mem::take(&mut *calls.lock().unwrap()),
                    expected,
                    "{place} of {count}"
                );
            });
        }
    }
}

#[test]
fn a_lease_releases_in_reverse_even_if_a_release_panics() {
    for count in COUNTS {
        let taken = (0..count).map(|at| Call::Take(at, 3));
        let expected: Vec<Call> = taken
            .chain((0..count).rev().map(|at| Call::Release(at, 3)))
            .collect();
        for place in 0..=count {
            let calls = Mutex::new(Vec::new());
            // The last place does not exist, so that no limit panics.
            let limits = scripted(count, &[(place, Script::PanicsInRelease)], &calls);
            in_every_shape!(limits, |attempt: Try<'_>| {
                let ended = catch_unwind(AssertUnwindSafe(attempt));
                assert_eq!(ended.is_err(), place < count);
                assert_eq!(
                    core::mem::take(&mut *calls.lock().unwrap()),
                    expected,
                    "{place} of {count}"
                );
            });
        }
    }
}

#[test]
fn a_limit_that_denies_in_the_look_is_asked_once_alone() {
    /// Denies every request.
    struct Closed<'a>(&'a AtomicU32);
    impl Limiter for Closed<'_> {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.0.fetch_add(1, SeqCst);
            Answer::Denied(Denied::Exhausted { now, permits: n })
        }

        fn give_back(&self, _: portcullis_core::limiter::Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, _: Read<'_>) -> Reading {
            Reading {
                available: 0,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::OnRelease
        }
    }
    let (asked, calls) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    let limits = scripted(2, &[], &calls);
    let all = AllOf::new((&limits[0], Closed(&asked), &limits[1]));
    assert_eq!(all.try_acquire_at(NOW, 2).unwrap_err().index, 1);
    assert_eq!(
        (asked.load(SeqCst), calls.lock().unwrap().len()),
        (1, 0),
        "and no other limit is asked"
    );
    assert_eq!(all.try_acquire_at(NOW, 0).unwrap_err().index, 1);
    assert_eq!(asked.load(SeqCst), 1, "a probe is not counted as a denial");
}

/// Limits of every kind, and one that fails among them. Afterwards, each answers as before.
#[test]
fn a_rollback_leaves_every_kind_of_limit_as_it_was() {
    fn check<W: Word>(script: Script, place: usize, used: u32) {
        let period = Duration::from_secs(1);
        let bucket = TokenBucket::builder(Rate::per_second(3), 7)
            .build_on::<W>()
            .unwrap();
        let steps = TokenBucket::builder(Rate::per_second(3), 7)
            .stepwise()
            .build_on::<W>()
            .unwrap();
        let fixed = FixedWindow::builder(7, period).build_on::<W>().unwrap();
        let sliding = SlidingWindow::<5>::builder(7, period, 4)
            .build_on::<W>()
            .unwrap();
        let strict = SlidingWindow::<5>::builder(7, period, 4)
            .strict()
            .build_on::<W>()
            .unwrap();
        let limit = Concurrency::builder(7).build_on::<W>().unwrap();
        let subjects: [&dyn Subject; 6] = [&bucket, &steps, &fixed, &sliding, &strict, &limit];
        for subject in subjects {
            // First at an earlier time, so that the windows have to roll; then at the current one,
            // if at all.
            subject.take_at(Timestamp::from_millis(4_100), 2).unwrap();
            subject.take_at(NOW, used).unwrap();
        }
        let later: Vec<Timestamp> = (0..40)
            .map(|at| Timestamp::from_millis(5_000 + 50 * at))
            .collect();
        let says = || -> Vec<Vec<u64>> {
            subjects
                .iter()
                .map(|subject| later.iter().map(|&at| subject.available_at(at)).collect())
                .collect()
        };
        let (before, state) = (says(), format!("{subjects:?}"));

        let calls = Mutex::new(Vec::new());
        let failing = Scripted {
            place: 0,
            script,
            calls: &calls,
        };
        let mut places: Vec<&dyn Limiter> = subjects
            .iter()
            .map(|subject| *subject as &dyn Limiter)
            .collect();
        // The same limit once more.
        places.push(&fixed);
        places.insert(place, &failing);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            AllOf::new(&places[..]).try_acquire_at(NOW, 1).map(drop)
        }));
        assert_eq!(ended.is_err(), script == Script::PanicsInTake);
        assert!(!matches!(ended, Ok(Ok(()))));
        assert_eq!(calls.lock().unwrap().len(), 1, "it was asked");
        assert_eq!(says(), before);
        if used > 0 {
            // No window had to roll, so that not a bit has changed.
            assert_eq!(format!("{subjects:?}"), state);
        }
    }
    for script in [Script::Denies, Script::PanicsInTake] {
        for place in 0..=7 {
            for used in [0, 1, 2] {
                check::<u64>(script, place, used);
                check::<u32>(script, place, used);
            }
        }
    }
}

/// A window that was started by a request denied in the take is started again by the next request,
/// at that request's `now`.
#[test]
fn a_window_started_by_a_denied_request_is_started_again_by_the_next_request() {
    fn check<W: Word>(tick: Option<Duration>, script: Script) {
        let new = || {
            let settings =
                FixedWindow::builder(7, Duration::from_secs(1)).started_by_first_request();
            let settings = if let Some(tick) = tick {
                settings.tick(tick)
            } else {
                settings
            };
            settings.build_on::<W>().unwrap()
        };
        for begun in [None, Some(Timestamp::from_millis(4_900))] {
            for micros in [0, 1, 599, 600, 1_000, 99_999, 100_000, 899_000, 2_000_000] {
                // `window` is asked for 3 first, and `twin` is not.
                let (window, twin) = (new(), new());
                for window in [&window, &twin] {
                    window.take_at(Timestamp::from_millis(3_100), 7).unwrap();
                    if let Some(begun) = begun {
                        window.take_at(begun, 1).unwrap();
                    }
                }
                let calls = Mutex::new(Vec::new());
                let failing = Scripted {
                    place: 0,
                    script,
                    calls: &calls,
                };
                let places: [&dyn Limiter; 3] = [&window, &failing, &window];
                let now = Timestamp::from_micros(5_000_400);
                let attempt = || AllOf::new(places).into_lease_at(now, 2).map(drop);
                assert!(!matches!(
                    catch_unwind(AssertUnwindSafe(attempt)),
                    Ok(Ok(()))
                ));
                assert_eq!(
                    calls.into_inner().unwrap(),
                    [Call::Take(0, 2)],
                    "it was asked"
                );

                let next = now.saturating_add(Duration::from_micros(micros));
                let left = twin.available_at(next);
                assert_eq!(window.available_at(next), left);
                let ends = [&window, &twin].map(|window| {
                    window.take_at(next, left as u32).unwrap();
                    window.retry(window.take_at(next, 1).unwrap_err())
                });
                let [Retry::At(end), Retry::At(expected)] = ends else {
                    panic!("a window ends")
                };
                // If the start is rounded up, the window may end as the one that was not started
                // would have: a tick earlier.
                let early = end.saturating_add(window.timing().tick) == expected
                    && window.timing().tick > Duration::from_nanos(1);
                assert!(
                    end == expected || early,
                    "begun at {begun:?}, next at {next}, tick {tick:?}"
                );
                assert!(
                    window
                        .take_at(Timestamp::from_nanos(end.as_nanos() - 1), 1)
                        .is_err()
                );
                assert!(window.take_at(end, 7).is_ok());
            }
        }
    }
    for script in [Script::Denies, Script::PanicsInTake] {
        for tick in [
            None,
            Some(Duration::from_millis(1)),
            Some(Duration::from_millis(100)),
        ] {
            check::<u64>(tick, script);
            check::<u32>(tick, script);
        }
    }
}

#[test]
fn a_forgotten_lease_leaves_its_permits_to_later_releases() {
    let (a, b) = (Concurrency::new(3), Concurrency::new(5));
    let all = AllOf::new((&a, &b, &a));
    let lease = all.try_acquire_at(NOW, 1).unwrap();
    assert_eq!((a.in_use(), b.in_use()), (2, 1));
    assert_eq!(lease.forget(), 1);
    assert_eq!((a.in_use(), b.in_use()), (2, 1));
    (0..3)
        .filter_map(|at| all.limits().get(at))
        .for_each(|limit| limit.release(1));
    assert_eq!((a.in_use(), b.in_use()), (0, 0));
}

#[test]
fn a_lease_that_is_dropped_in_a_panic_returns_its_permits() {
    let limits = [Concurrency::new(3), Concurrency::new(5)];
    let all = AllOf::new(&limits);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let _lease = all.try_acquire_at(NOW, 3).unwrap();
        assert_eq!(limits[0].available(), 0);
        panic!("scripted");
    }));
    assert!(ended.is_err());
    assert!(limits.iter().all(|limit| limit.in_use() == 0));
}

// Partial grants of one limit.

/// A request for `min` to `max` permits takes what is available, up to `max`.
#[test]
fn a_partial_grant_takes_what_is_available() {
    fn check<L: Limiter + Debug>(new: impl Fn() -> L) {
        for used in 0..=5u32 {
            for min in 0..=7u32 {
                for max in [0, 1, 2, 4, 5, 6, 7, u32::MAX] {
                    let limit = new();
                    let held = limit.try_acquire_at(NOW, used).unwrap();
                    let (left, before) = (5 - used, permits(&limit));
                    let least = min.max(1);
                    match limit.try_acquire_between_at(NOW, min, max) {
                        Ok(lease) => {
                            assert!(least <= left);
                            assert_eq!(lease.permits(), left.min(max).max(least));
                            assert_eq!(limit.available_at(NOW), u64::from(left - lease.permits()));
                        }
                        Err(denied) => {
                            assert!(least > left, "{min} to {max} of {left}: {denied}");
                            assert_eq!((denied.permits(), permits(&limit)), (least, before));
                        }
                    }
                    drop(held);
                }
            }
        }
    }
    struct Checks;
    impl ForEach for Checks {
        fn each<L: Subject>(&mut self, kind: Kind, new: impl Fn() -> L) {
            if kind.back != Back::always && kind.denial != Denial::acts {
                check(new);
            }
        }
    }
    fn on<W: Word>() {
        limiters::for_each::<W>(5, Duration::from_secs(5), &mut Checks);
    }
    on::<u64>();
    on::<u32>();
}

#[test]
fn a_drain_takes_all_that_is_available_and_then_nothing() {
    for (kind, limit) in limiters::limited::<u64>(5, Duration::from_secs(5)) {
        let one = limit.try_acquire_at(NOW, 1).unwrap();
        let all = limit.drain_at(NOW).unwrap();
        assert_eq!((all.permits(), limit.available_at(NOW)), (4, 0), "{kind:?}");
        assert!(limit.drain_at(NOW).is_none());
        drop((one, all));
        if kind.back == Back::by_release {
            assert_eq!(limit.drain_at(NOW).unwrap().permits(), 5);
        }
    }
    let unlimited = TokenBucket::new(Rate::UNLIMITED, 1);
    assert_eq!(unlimited.drain_at(NOW).unwrap().permits(), u32::MAX);
}

#[test]
fn a_late_drain_takes_no_more_than_one_at_the_newest_time() {
    let bucket = TokenBucket::new(Rate::per_second(1), 5);
    bucket.take_at(NOW, 3).unwrap();
    assert_eq!(
        bucket.drain_at(Timestamp::from_secs(4)).unwrap().permits(),
        1
    );
    assert_eq!(bucket.available_at(NOW), 1);
}

/// Several threads at once: never fewer than `min`, and together never more than are available.
#[test]
fn partial_grants_share_what_is_available() {
    let (limit, bucket) = (
        Concurrency::new(100),
        TokenBucket::new(Rate::per_second(1), 1_000_000),
    );
    let most = AtomicU32::new(0);
    let tokens: u32 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u32)
            .map(|thread| {
                let (limit, bucket, most) = (&limit, &bucket, &most);
                scope.spawn(move || {
                    let mut tokens = 0;
                    for turn in 0..20_000 {
                        let (min, max) = (1 + thread, 5 + 10 * (turn % 5));
                        if let Ok(lease) = limit.try_acquire_between_at(NOW, min, max) {
                            assert!((min..=max).contains(&lease.permits()));
                            let held = most.fetch_add(lease.permits(), SeqCst) + lease.permits();
                            assert!(held <= 100, "{held} of 100");
                            most.fetch_sub(lease.permits(), SeqCst);
                        }
                        tokens += bucket
                            .try_acquire_between_at(NOW, min, max)
                            .map_or(0, |lease| lease.permits());
                    }
                    tokens
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(limit.in_use(), 0);
    assert_eq!(u64::from(tokens) + bucket.available_at(NOW), 1_000_000);
}

/// An explanation says what then happens, and changes nothing.
#[test]
fn an_explanation_says_what_happens_next() {
    let at = Timestamp::from_millis;
    let bucket = TokenBucket::new(Rate::per_second(10), 5);
    for (now, n) in [
        (0, 3),
        (0, 3),
        (99, 3),
        (100, 3),
        (100, 0),
        (100, 6),
        (50, 1),
        (400, 0),
        (900, 5),
    ] {
        let (now, before) = (at(now), format!("{bucket:?}"));
        let detail = bucket.explain_at(now, n);
        assert_eq!(
            (detail.available, format!("{bucket:?}")),
            (bucket.available_at(now), before)
        );
        let retry = bucket
            .try_acquire_at(now, n)
            .map_or_else(|denied| denied.retry(&bucket), |_| Retry::At(now));
        assert_eq!(detail.retry, retry, "{n} at {now}");
        assert_eq!(detail.is_allowed(), detail.retry == Retry::At(now));
    }
}

// Real threads.

/// Runs `work` on several threads at once. Each call gets the number of its thread. Returns the
/// results.
fn together<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let ready = Barrier::new(threads);
    let work = |thread| {
        ready.wait();
        work(thread)
    };
    let work = &work;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn opposite_orders_neither_block_each_other_nor_leak() {
    let turns = if cfg!(debug_assertions) {
        50_000
    } else {
        300_000
    };
    for (limit_of_a, limit_of_b) in [(1, 1), (2, 1), (2, 3)] {
        let (a, b) = (Concurrency::new(limit_of_a), Concurrency::new(limit_of_b));
        let held = AtomicU32::new(0);
        let granted = together(4, |thread| {
            let mut granted = 0;
            for turn in 0..turns {
                let all = match (thread + turn) % 3 {
                    0 => AllOf::new([&a, &b]),
                    _ => AllOf::new([&b, &a]),
                };
                if let Ok(_lease) = all.try_acquire_at(NOW, 1) {
                    granted += 1;
                    assert!(
                        held.fetch_add(1, SeqCst) < limit_of_a.min(limit_of_b),
                        "both are granted at once"
                    );
                    held.fetch_sub(1, SeqCst);
                }
                // The first limit alone, and twice in one composition.
                drop(a.try_acquire(1));
                drop(AllOf::new((&b, &a, &b)).try_acquire_at(NOW, 1));
            }
            granted
        });
        assert!(granted.iter().sum::<u32>() > 0);
        assert_eq!((a.in_use(), b.in_use()), (0, 0), "leaked");
        assert!(AllOf::new((&a, &b)).try_acquire_at(NOW, 1).is_ok());
    }
}

#[test]
fn opposite_orders_of_windows_and_buckets_exceed_no_bound_and_lose_nothing_permanently() {
    fn check<W: Word>() {
        let second = Duration::from_secs(1);
        let rounds = if cfg!(debug_assertions) { 200 } else { 1_000 };
        let a = TokenBucket::builder(Rate::per_second(2), 2)
            .build_on::<W>()
            .unwrap();
        let b = FixedWindow::builder(3, second).build_on::<W>().unwrap();
        let c = SlidingWindow::<3>::builder(4, second, 2)
            .build_on::<W>()
            .unwrap();
        let d = TokenBucket::builder(Rate::per_minute(3), 3)
            .build_on::<W>()
            .unwrap();
        for round in 1..=rounds {
            // Each limit is full again, whatever it lost in the round before.
            let now = Timestamp::from_secs(100 * round);
            let granted = together(3, |thread| {
                let mut places: [&dyn Limiter; 4] = [&a, &b, &c, &d];
                places.rotate_left(thread);
                let all = AllOf::new(places);
                (0..5)
                    .filter(|_| all.try_acquire_at(now, 1).is_ok())
                    .count() as u64
            });
            let granted: u64 = granted.iter().sum();
            assert!(granted <= 2, "{granted} of 2");
            let left = [
                a.available_at(now),
                b.available_at(now),
                c.available_at(now),
                d.available_at(now),
            ];
            for (left, limit) in left.iter().zip([2, 3, 4, 3]) {
                assert!(
                    left + granted <= limit,
                    "{left} left of {limit} after {granted}"
                );
            }
            // Windows always accept a refund within the same window.
            assert_eq!((left[1], left[2]), (3 - granted, 4 - granted));
        }
        let later = Timestamp::from_secs(100 * rounds + 100);
        assert_eq!(AllOf::new((&a, &b, &c, &d)).available_at(later), 2);
    }
    check::<u64>();
    check::<u32>();
}

/// Two per second and three per minute, for three keys: exactly as many grants as both limits
/// allow, with any number of threads.
#[test]
fn many_threads_are_granted_exactly_what_both_limits_allow() {
    let rounds = if cfg!(debug_assertions) { 50 } else { 300 };
    for _ in 0..rounds {
        let keys = [(); 3].map(|()| {
            AllOf::new((
                TokenBucket::new(Rate::per_second(2), 2),
                TokenBucket::new(Rate::per_minute(3), 3),
            ))
        });
        for (now, expected) in [(5_000, 2), (6_000, 1), (6_000, 0), (25_000, 1)] {
            let now = Timestamp::from_millis(now);
            let granted = together(4, |_| {
                let tries = |all: &AllOf<_>| {
                    (0..4)
                        .filter(|_| all.try_acquire_at(now, 1).is_ok())
                        .count()
                };
                keys.each_ref().map(tries)
            });
            for (key, all) in keys.iter().enumerate() {
                let granted: usize = granted.iter().map(|granted| granted[key]).sum();
                // If one request was denied while another was being refunded, one permit is left
                // for a request now.
                let left = (0..4)
                    .filter(|_| all.try_acquire_at(now, 1).is_ok())
                    .count();
                assert_eq!(granted + left, expected, "of key {key} at {now}");
            }
        }
    }
}

/// A composition can be used wherever a limiter can.
#[test]
fn a_composition_is_a_limiter() {
    let (rate, at_once) = (
        TokenBucket::new(Rate::per_second(5), 5),
        Concurrency::new(2),
    );
    let limits = AllOf::new((&rate, &at_once));
    let limiter: &dyn Limiter = &limits;
    let at = Timestamp::from_millis;
    assert_eq!((limiter.capacity(), limiter.available_at(at(0))), (2, 2));
    assert!(limiter.idle_at(at(0)).is_idle());
    let lease = limiter.try_acquire_at(at(0), 2).unwrap();
    assert_eq!((rate.available_at(at(0)), at_once.available()), (3, 0));
    assert!(!limiter.idle_at(at(0)).is_idle());
    let denied = limiter.take_at(at(0), 1).unwrap_err();
    assert_eq!(
        denied,
        Denied::Exhausted {
            now: at(0),
            permits: 1
        }
    );
    assert_eq!(limiter.retry(denied), Retry::OnRelease);
    drop(lease);
    drop(limiter.try_acquire_at(at(0), 2).unwrap());
    drop(limiter.try_acquire_at(at(0), 1).unwrap());
    let denied = limiter.take_at(at(0), 2).unwrap_err();
    assert_eq!(limiter.peek_at(at(0), 2).unwrap_err(), denied);
    assert_eq!(limiter.retry(denied), Retry::At(at(400)));
    let never = limiter.take_at(at(0), 3).unwrap_err();
    assert_eq!(
        never,
        Denied::ExceedsCapacity {
            permits: 3,
            capacity: 2
        }
    );
    assert_eq!(limiter.retry(never), Retry::Never);
    let twice = AllOf::new((&at_once, &at_once));
    assert_eq!(
        (
            Limiter::capacity(&twice),
            Limiter::take_at(&twice, at(0), 1).map(drop)
        ),
        (1, Ok(()))
    );
    assert_eq!(at_once.available(), 0);
    Limiter::release(&twice, 1);
    assert_eq!(at_once.available(), 2);
}

/// A queue waits until all permits that have to be released are back.
#[test]
fn the_permits_held_of_a_composition_are_the_most_held_of_one_limit() {
    let both = AllOf::new([Concurrency::new(2), Concurrency::new(3)]);
    assert_eq!(both.held(), 0);
    let _held = both.limits()[1].try_acquire(1).unwrap();
    assert_eq!(both.held(), 1);
    let _lease = both.try_acquire_at(Timestamp::ZERO, 2).unwrap();
    assert_eq!(both.held(), 3);
    let with_a_rate = AllOf::new((
        TokenBucket::new(Rate::per_second(5), 5),
        Concurrency::new(2),
    ));
    let _lease = with_a_rate.try_acquire_at(Timestamp::ZERO, 2).unwrap();
    assert_eq!(with_a_rate.held(), 2);
}
