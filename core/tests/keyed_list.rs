//! Several limits for each key: decisions are those of plain limiters, of which a request takes all
//! or none.

mod support;

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;
use core::{fmt, mem};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use portcullis_core::builder::Setting;
use portcullis_core::keyed::{
    AnyRules, ConcurrencyRules, FixedWindowRules, IntoRuleList, Line, RandomSeed, RuleList,
    RulesAtRunTime, Seed, TableKey, TokenBucketRules,
};
use portcullis_core::limiter::{Detail, Receipt};
use portcullis_core::queue::QueueKeys;
use portcullis_core::state::{KeyedWord, Word};
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, FixedWindow, Keyed, KeyedList, Lease, Limiter, LimiterExt,
    Rate, Retry, SettingsError, Timestamp, TokenBucket,
};
use support::draws::Draws;
use support::soak::rounds;

const SECOND: Duration = Duration::from_secs(1);

/// Choices for a trace of any length.
const fn seeded(seed: u64) -> Draws<'static> {
    Draws::Seeded {
        state: seed,
        steps: u32::MAX,
    }
}

fn secs(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn millis(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn bucket(per_second: u32, burst: u64) -> TokenBucketRules {
    let bucket = TokenBucket::builder(Rate::per_second(per_second), burst);
    bucket.tick(Duration::from_micros(1)).rules().unwrap()
}

fn minute(limit: u64) -> FixedWindowRules {
    FixedWindowRules::new(limit, Duration::from_secs(60))
}

/// The settings of a limit.
#[derive(Clone, Copy, Debug)]
enum Settings {
    Bucket(u32, u64),
    Window(u64, u64),
    AtOnce(u32),
    Unlimited,
}

impl Settings {
    fn draw(draws: &mut Draws<'_>) -> Self {
        match draws.below(7) {
            0..=2 => Self::Bucket(1 + draws.below(9) as u32, 1 + draws.below(9)),
            3 | 4 => Self::Window(1 + draws.below(9), 1 + draws.below(5)),
            5 => Self::AtOnce(1 + draws.below(9) as u32),
            _ => Self::Unlimited,
        }
    }

    fn rules(self) -> AnyRules {
        match self {
            Self::Bucket(rate, burst) => bucket(rate, burst).into(),
            Self::Window(limit, length) => {
                FixedWindowRules::new(limit, Duration::from_secs(length)).into()
            }
            Self::AtOnce(limit) => ConcurrencyRules::new(limit).into(),
            Self::Unlimited => TokenBucketRules::new(Rate::UNLIMITED, 9).into(),
        }
    }

    fn plain(self) -> Box<dyn Subject> {
        match self {
            Self::Bucket(rate, burst) => {
                // The tick of these settings in a word of a table.
                let bucket = TokenBucket::builder(Rate::per_second(rate), burst);
                Box::new(bucket.tick(Duration::from_micros(1)).build().unwrap())
            }
            Self::Window(limit, length) => {
                Box::new(FixedWindow::new(limit, Duration::from_secs(length)))
            }
            Self::AtOnce(limit) => Box::new(Concurrency::new(limit)),
            Self::Unlimited => Box::new(TokenBucket::new(Rate::UNLIMITED, 9)),
        }
    }
}

/// The plain limiters of each key, and the grants that are out.
struct Oracle<G> {
    settings: Vec<Settings>,
    keys: HashMap<u64, (Plain, Vec<Grant<G>>)>,
}

trait Subject: Limiter + fmt::Debug {}

impl<L: Limiter + fmt::Debug> Subject for L {}

type Plain = Vec<Box<dyn Subject>>;

/// A grant of a key, by its plain limiters and by the table.
struct Grant<G> {
    /// What each limiter needs for a refund, its state after the grant, and the millisecond at
    /// which the grant counts.
    plain: Vec<(Receipt, String, u64)>,
    lease: G,
}

impl<G> Grant<G> {
    /// Whether each of the limiters can still refund, given the time of the newest grant in
    /// milliseconds.
    fn is_refundable(&self, settings: &[Settings], limits: &Plain, newest: u64) -> bool {
        let mut limits = settings.iter().zip(limits).zip(&self.plain);
        limits.all(|((settings, limit), (_, left, at))| match settings {
            Settings::Bucket(..) => format!("{limit:?}") == *left,
            Settings::Window(_, length) => at / (length * 1_000) == newest / (length * 1_000),
            _ => true,
        })
    }
}

impl<G> Oracle<G> {
    fn key(&mut self, key: u64) -> &mut (Plain, Vec<Grant<G>>) {
        let settings = &self.settings;
        self.keys
            .entry(key)
            .or_insert_with(|| (settings.iter().map(|one| one.plain()).collect(), vec![]))
    }
}

/// Compares decision for decision, with times that stand still, move ahead, or are stale.
fn decides_as_plain_limiters(
    settings: &[Settings],
    list: impl IntoRuleList,
    draws: &mut Draws<'_>,
) -> [u32; 2] {
    let mut refunds_made = [0; 2];
    let mut newest_grants = HashMap::new();
    let table = KeyedList::for_keys(list, 16);
    let mut oracle: Oracle<Lease<_>> = Oracle {
        settings: settings.to_vec(),
        keys: HashMap::new(),
    };
    let mut newest = 1_000_000;
    for _ in 0..400 {
        newest += match draws.below(8) {
            0..=2 => 0,
            3..=5 => draws.below(300),
            6 => draws.below(3_000),
            _ => draws.below(30_000),
        };
        let stale = if draws.below(5) == 0 {
            draws.below(900)
        } else {
            0
        };
        let now = millis(newest - stale);
        let (key, n) = (draws.below(6), draws.below(6) as u32);
        let (plain, out) = oracle.key(key);
        let limits = &*plain;
        let all = AllOf::new(&limits[..]);
        let alice = table.key(&key);
        let context = format!("{settings:?}, key {key} at {now:?}, {n} permits");
        assert_eq!(alice.available_at(now), all.available_at(now), "{context}");
        assert_eq!(
            alice.idle_at(now).is_idle(),
            all.idle_at(now).is_idle(),
            "{context}"
        );
        assert_eq!(
            alice.peek_at(now, n),
            Limiter::peek_at(&all, now, n),
            "{context}"
        );
        let each: Vec<_> = alice.explain_each_at(now, n).collect();
        assert_eq!(each.len(), settings.len());
        for (one, other) in each.iter().zip(all.explain_at(now, n)) {
            // The capacity of an unlimited bucket is as large as its word can count.
            let told = |detail: &Detail| {
                let Detail {
                    decision,
                    available,
                    retry,
                    full_again,
                    ..
                } = *detail;
                (
                    decision,
                    available,
                    detail.capacity.min(1 << 40),
                    retry,
                    full_again,
                )
            };
            assert_eq!(told(one), told(&other), "{context}");
        }
        if draws.below(4) == 0 && !out.is_empty() {
            let mut grant = out.swap_remove(draws.below(out.len() as u64) as usize);
            let permits = grant.lease.permits();
            // Another key may have taken the entry.
            let is_forgettable = all.idle_at(millis(newest - 1_000)).is_idle();
            if permits == 0 || is_forgettable || draws.below(3) == 0 {
                all.release(permits);
                continue;
            }
            let n = draws.within(1, permits.into()) as u32;
            let refunds = grant.is_refundable(settings, limits, newest_grants[&key]);
            for ((limit, settings), (receipt, left, _)) in
                limits.iter().zip(settings).zip(&mut grant.plain)
            {
                if refunds || matches!(settings, Settings::AtOnce(_)) {
                    let receipt_now = mem::replace(receipt, Receipt::NONE);
                    let refund = limit.refund_at(now, n, receipt_now);
                    assert_eq!(refund.permits, n, "{context}: {settings:?}");
                    (*receipt, *left) = (refund.rest, format!("{limit:?}"));
                }
            }
            // Where no limit is a limit, the key has no entry.
            let has_entry = settings
                .iter()
                .any(|one| !matches!(one, Settings::Unlimited));
            let expected = if refunds && has_entry { n } else { 0 };
            let refunded = grant.lease.refund_at(now, n);
            assert_eq!(refunded, Ok(expected), "{context}: refund of {n}");
            refunds_made[usize::from(refunds)] += 1;
            out.push(grant);
            continue;
        }
        let expected = all.peek_at(now, n).map(|()| {
            let taken = limits.iter().map(|limit| limit.take_at(now, n).unwrap());
            taken.collect::<Vec<_>>()
        });
        let (taken, told) = match draws.below(3) {
            0 => (alice.try_acquire_each_at(now, n), None),
            1 => {
                let (taken, told) = alice.try_acquire_each_explained_at(now, n);
                (taken, Some(told))
            }
            _ => match (alice.try_acquire_at(now, n), &expected) {
                (Ok(lease), _) => (Ok(lease), None),
                (Err(_), Err(by)) => (Err(*by), None),
                (Err(denied), Ok(_)) => panic!("{denied}: {context}"),
            },
        };
        match (expected, taken) {
            (Ok(receipts), Ok(lease)) => {
                assert_eq!(lease.permits(), n);
                let counts_at = newest_grants.entry(key).or_default();
                if n > 0 {
                    *counts_at = (*counts_at).max(newest - stale);
                }
                let states = limits.iter().map(|limit| format!("{limit:?}"));
                let receipts = receipts.into_iter().zip(states);
                let plain = receipts.map(|(receipt, left)| (receipt, left, *counts_at));
                let plain = plain.collect();
                out.push(Grant { plain, lease });
                if let Some(told) = told {
                    let least = (0..settings.len())
                        .map(|limit| (limits[limit].available_at(now), limit))
                        .min();
                    assert_eq!(
                        Some((told.detail.available, told.index)),
                        least,
                        "{context}"
                    );
                }
            }
            (Err(expected), Err(by)) => {
                assert_eq!(by, expected, "{context}");
                assert_eq!(alice.retry_each(by), all.retry(expected), "{context}");
                if let Some(told) = told {
                    assert_eq!(told.index, by.index);
                    assert_eq!(told.detail.decision, Err(by.denied));
                }
            }
            (expected, taken) => panic!("{:?}, not {:?}: {context}", taken.err(), expected.err()),
        }
    }
    refunds_made
}

fn a_random_list_decides_as_plain_limiters(count: u64, draws: &mut Draws<'_>) -> [u32; 2] {
    let settings: Vec<_> = (0..count).map(|_| Settings::draw(draws)).collect();
    let rules = RulesAtRunTime::new(settings.iter().map(|one| one.rules())).unwrap();
    decides_as_plain_limiters(&settings, rules, draws)
}

#[test]
#[ignore = "takes minutes; cargo xtask soak runs it"]
fn soak() {
    for round in rounds("random lists of limits, 8 each") {
        for count in 1..=8 {
            a_random_list_decides_as_plain_limiters(count, &mut seeded(round << 3 | count));
        }
    }
    for round in rounds("threads on lists of limits") {
        race_for_permits(round);
        race_and_refund(round);
    }
}

#[test]
fn limiters_give_a_table_their_settings_or_an_error() {
    let bucket = |burst| TokenBucket::new(Rate::per_second(1), burst);
    let table = KeyedList::for_keys((bucket(5), Concurrency::new(2)), 10);
    assert_eq!((table.rules().0.burst(), table.rules().1.limit()), (5, 2));
    let table = KeyedList::for_keys([bucket(5), bucket(7)], 10);
    assert_eq!(
        table.rules().each_ref().map(TokenBucketRules::burst),
        [5, 7]
    );
    let large = || FixedWindow::new(1 << 42, SECOND);
    assert!((bucket(5), large()).into_rule_list().is_err());
    assert!([large(), large()].into_rule_list().is_err());
}

#[test]
fn lists_that_are_built_at_run_time_decide_as_plain_limiters() {
    let mut draws = seeded(1);
    let mut refunds = [0; 2];
    for count in (1..=8).cycle().take(400) {
        let [refused, made] = a_random_list_decides_as_plain_limiters(count, &mut draws);
        refunds = [refunds[0] + refused, refunds[1] + made];
    }
    assert!(refunds.into_iter().min() > Some(1_000), "{refunds:?}");
}

#[test]
fn tuples_and_arrays_decide_as_plain_limiters() {
    use Settings::{AtOnce, Bucket, Window};
    let mut draws = seeded(2);
    for _ in 0..40 {
        let (a, b, c) = (
            1 + draws.below(9) as u32,
            1 + draws.below(9),
            1 + draws.below(9),
        );
        let window = FixedWindowRules::new(c, 2 * SECOND);
        let at_once = || ConcurrencyRules::new(b as u32);
        decides_as_plain_limiters(&[Bucket(a, b)], (bucket(a, b),), &mut draws);
        decides_as_plain_limiters(
            &[Bucket(a, b), AtOnce(b as u32)],
            (bucket(a, b), at_once()),
            &mut draws,
        );
        decides_as_plain_limiters(
            &[AtOnce(b as u32), Window(c, 2), Bucket(a, b)],
            (
                at_once(),
                FixedWindowRules::new(c, 2 * SECOND),
                bucket(a, b),
            ),
            &mut draws,
        );
        decides_as_plain_limiters(
            &[Bucket(a, b), Bucket(a, c), Bucket(1, b)],
            [bucket(a, b), bucket(a, c), bucket(1, b)],
            &mut draws,
        );
        decides_as_plain_limiters(
            &[
                Window(c, 2),
                Bucket(a, b),
                AtOnce(b as u32),
                Bucket(1, 9),
                AtOnce(9),
            ],
            (
                window,
                bucket(a, b),
                at_once(),
                bucket(1, 9),
                ConcurrencyRules::new(9),
            ),
            &mut draws,
        );
    }
}

#[test]
fn a_denial_names_the_first_limit_that_denies_and_takes_from_none() {
    let table = KeyedList::for_keys((bucket(1, 5), minute(3), ConcurrencyRules::new(2)), 100);
    let now = secs(60);
    let available = |table: &KeyedList<_, _, _>| -> Vec<u64> {
        let alice = table.key("alice");
        alice
            .explain_each_at(now, 1)
            .map(|detail| detail.available)
            .collect()
    };
    let denied = |n| table.key("alice").try_acquire_each_at(now, n).unwrap_err();
    assert_eq!((denied(3).index, denied(3).permits), (2, 3));
    assert_eq!((denied(4).index, denied(6).index), (1, 0));
    assert_eq!(table.statistics_at(now).held, 0, "a denial takes no entry");

    let lease = table.key("alice").try_acquire_each_at(now, 2).unwrap();
    assert_eq!(available(&table), [3, 1, 0]);
    assert_eq!(denied(1).index, 2);
    assert_eq!(table.key("alice").retry_each(denied(1)), Retry::OnRelease);
    drop(lease);
    assert_eq!(available(&table), [3, 1, 2]);
    assert_eq!(denied(2).index, 1);
    assert_eq!(
        table.key("alice").retry_each(denied(2)),
        Retry::At(secs(120))
    );
    assert_eq!(available(&table), [3, 1, 2], "no denial has taken");
    assert!(matches!(
        table.key("alice").try_acquire_at(now, 3),
        Err(Denied::ExceedsCapacity {
            permits: 3,
            capacity: 2
        })
    ));
}

#[test]
fn an_entry_is_forgotten_only_when_all_limits_are_idle() {
    let table = KeyedList::new(
        (bucket(10, 5), minute(3), ConcurrencyRules::new(2)),
        [const { Line::new() }; 4],
        Seed::new(),
    );
    let lease = table.key("alice").try_acquire_at(secs(60), 1).unwrap();
    assert_eq!(table.sweep_at(secs(100), ..), 0, "the window is on");
    assert_eq!(table.sweep_at(secs(500), ..), 0, "a permit is out");
    drop(lease);
    assert_eq!(table.sweep_at(secs(100), ..), 0, "the window is on");
    assert_eq!(table.statistics_at(secs(100)).live, 1);
    assert_eq!(table.sweep_at(secs(122), 4..), 0, "other lines");
    assert_eq!(table.sweep_at(secs(122), ..), 1);
    assert_eq!(table.statistics_at(secs(122)).held, 0);
}

#[test]
fn a_flood_of_keys_resets_no_limit() {
    let table = KeyedList::new(
        (bucket(10, 5), minute(3)),
        [const { Line::new() }; 4],
        Seed::new(),
    );
    let granted = |key: u64, now| u32::from(table.key(&key).try_acquire_at(now, 1).is_ok());
    let mut taken = 0;
    // The bucket refills between two takes; the window does not.
    for second in 60..120 {
        taken += granted(0, secs(second));
        for stranger in 1..100 {
            granted(stranger * 1_000 + second, secs(second));
        }
    }
    assert_eq!(taken, 3);
    let statistics = table.statistics_at(secs(119));
    assert_eq!((statistics.slots, statistics.live), (14, 14));
    assert!(statistics.overflowed > 0);
    let crowded = (0..).find_map(|key| {
        table
            .key(&(key + 7_777))
            .try_acquire_each_at(secs(119), 1)
            .err()
    });
    let by = crowded.unwrap();
    assert_eq!(
        (by.index, by.denied),
        (
            0,
            Denied::Crowded {
                now: secs(119),
                permits: 1
            }
        )
    );
}

#[test]
fn in_a_half_full_table_nearly_all_keys_find_an_entry() {
    fn lost<L: RuleList>(rules: L, lines: usize) -> usize {
        let lines: Box<[Line]> = (0..lines).map(|_| Line::new()).collect();
        let table = KeyedList::new(rules, lines, Seed::new());
        (0..20_000_u64)
            .filter(|key| table.key(key).try_acquire_at(secs(9), 1).is_err())
            .count()
    }
    let bucket = || bucket(1, 1);
    assert!(lost([bucket(), bucket()], 10_000) < 200);
    assert!(lost([bucket(), bucket(), bucket()], 20_000) < 200);
    assert!(
        lost(
            [const { TokenBucketRules::new(Rate::per_second(1), 1) }; 5],
            40_000
        ) < 200
    );
}

#[test]
fn a_list_has_1_to_8_rules() {
    let rules = |count| RulesAtRunTime::new((0..count).map(|_| bucket(1, 1).into()));
    assert_eq!(rules(8).unwrap().iter().count(), 8);
    let setting = Setting::Limits;
    assert_eq!(rules(0).unwrap_err(), SettingsError::Zero { setting });
    let too_many = rules(9).unwrap_err();
    assert_eq!(too_many, SettingsError::TooLarge { setting, max: 8 });
    assert_eq!(too_many.to_string(), "limits must be at most 8");
}

#[test]
fn limits_without_a_limit_take_no_entry() {
    let table = KeyedList::for_keys([const { TokenBucketRules::new(Rate::UNLIMITED, 5) }; 2], 10);
    assert!(table.key("alice").try_acquire_at(secs(9), 5).is_ok());
    assert_eq!(table.statistics_at(secs(9)).held, 0);
    assert!(table.key("alice").idle_at(secs(9)).is_idle());
}

#[test]
fn a_composition_with_a_list_takes_from_all_or_from_none() {
    let table = KeyedList::for_keys((bucket(1, 5), ConcurrencyRules::new(5)), 10);
    let all = Concurrency::new(3);
    let alice = table.key("alice");
    let limits = AllOf::new((&*alice, &all));
    let lease = limits.try_acquire_at(secs(9), 2).unwrap();
    assert_eq!(limits.try_acquire_at(secs(9), 2).unwrap_err().index, 1);
    assert_eq!(alice.available_at(secs(9)), 3, "nothing is taken");
    drop(lease);
    assert_eq!(
        alice.explain_each_at(secs(9), 1).last().unwrap().available,
        5
    );
    // The rest of the composition is not granted after the take of the list.
    assert_eq!(alice.take_at_then(secs(9), 3, &mut || false), Ok(false));
    assert_eq!(alice.available_at(secs(9)), 3);
    assert_eq!(alice.take_at_then(secs(9), 3, &mut || true), Ok(true));
    assert_eq!(alice.available_at(secs(9)), 0);
}

#[test]
fn wrappers_and_queues_can_use_a_list() {
    let table = KeyedList::for_keys((bucket(1, 5), ConcurrencyRules::new(2)), 10);
    assert_eq!(table.next_held(0), None);
    let counted = Counted::new(table);
    let lease = counted.key("alice").try_acquire_at(secs(9), 2).unwrap();
    assert!(counted.key("alice").try_acquire_at(secs(9), 1).is_err());
    assert_eq!(counted.counts().granted.permits, 2);
    let held = counted.next_held(0).unwrap();
    assert_eq!(counted.next_held(held + 1), None);
    drop(lease);
    assert_eq!(counted.next_held(0), None);
}

#[test]
fn rules_of_any_kind_work_in_a_table_with_one_limit() {
    let now = secs(9);
    let users = |rules: AnyRules| Keyed::new(rules, Line::for_keys(10), RandomSeed::new());
    for (rules, capacity) in [
        (AnyRules::from(bucket(1, 5)), 5),
        (minute(4).into(), 4),
        (ConcurrencyRules::new(3).into(), 3),
    ] {
        let is_released = matches!(rules, AnyRules::Concurrency(_));
        let table = users(rules);
        let alice = table.key("alice");
        assert!(alice.try_acquire_at(now, capacity + 1).is_err());
        let lease = alice.try_acquire_at(now, capacity).unwrap();
        assert_eq!(alice.available_at(now), 0);
        assert_eq!(table.next_held(0).is_some(), is_released);
        drop(lease);
        let back = if is_released { capacity.into() } else { 0 };
        assert_eq!(alice.available_at(now), back);
        let receipt = alice.take_at(now, 1);
        if let Ok(receipt) = receipt {
            assert_eq!(alice.refund_at(now, 1, receipt).permits, 1);
        }
    }
}

/// Races many threads for few permits of few keys: the grants of each key are at most those of its
/// tightest limit, and what is out comes back.
#[test]
fn threads_that_race_never_take_too_many() {
    (0..20).for_each(race_for_permits);
}

fn race_for_permits(round: u64) {
    let rules = (minute(50), ConcurrencyRules::new(3), bucket(1, 60));
    let lines: Box<[Line]> = (0..4).map(|_| Line::new()).collect();
    let table = Arc::new(KeyedList::new(rules, lines, Seed::new()));
    let most = Arc::new(Mutex::new(HashMap::<u64, u64>::new()));
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (table, most) = (Arc::clone(&table), Arc::clone(&most));
            thread::spawn(move || {
                let mut draws = seeded(round * 4 + thread);
                for _ in 0..300 {
                    let key = draws.below(3);
                    let n = 1 + draws.below(2) as u32;
                    if let Ok(lease) = table.key(&key).try_acquire_at(secs(61), n) {
                        *most.lock().unwrap().entry(key).or_default() += u64::from(n);
                        drop(lease);
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for (key, granted) in most.lock().unwrap().iter() {
        assert!(*granted <= 50, "{granted} of 50");
        let each: Vec<_> = table.key(key).explain_each_at(secs(61), 1).collect();
        assert_eq!(each[1].available, 3, "no permit is lost");
        assert!(each[0].available <= 50 - granted);
        assert!(each[2].available <= 60 - granted);
    }
}

/// A grant at some instant from `earliest` to `latest`: the request's own `now`, and the newest one
/// of any thread.
struct Admission {
    earliest: u64,
    latest: u64,
}

/// Two threads and more use keys that take over the entries of each other: two per second, one at
/// once, and one in use.
#[test]
fn threads_that_share_few_entries_keep_every_limit_of_each_key() {
    const MILLI: u64 = 1_000_000;
    let at = Timestamp::from_nanos;
    // The clock runs fast: a thread that is paused for a moment comes days late.
    let rate = TokenBucket::builder(Rate::per_second(2), 1).tick(Duration::from_micros(1));
    let rate = rate.staleness(Duration::from_hours(240)).rules().unwrap();
    for groups in [1, 2] {
        let rules = (rate, ConcurrencyRules::new(1));
        let lines: Box<[Line]> = (0..2 * groups).map(|_| Line::new()).collect();
        let table = KeyedList::new(rules, lines, Seed::new());
        let (clock, newest) = (AtomicU64::new(3_000 * MILLI), AtomicU64::new(0));
        let in_use: Vec<_> = (0..1 << 22).map(|_| AtomicU32::new(0)).collect();
        let all = Mutex::new(HashMap::<u64, Vec<Admission>>::new());
        let begun = Instant::now();
        let work = |thread| {
            let (mut draws, mut mine, mut leases) = (seeded(thread), Vec::new(), Vec::new());
            let is_enough = |granted| {
                granted > 25 && table.statistics_at(at(newest.load(SeqCst))).replaced > 50
            };
            while begun.elapsed() < Duration::from_millis(300)
                || begun.elapsed() < Duration::from_secs(60) && !is_enough(mine.len())
            {
                let now = clock.fetch_add(25 * MILLI, SeqCst);
                let group = now / (100 * MILLI) * 3;
                let key = match draws.below(4) {
                    0 => group.saturating_sub(draws.below(60)),
                    _ => group,
                };
                let now = if draws.once_in(4) {
                    now - draws.magnitude(900 * MILLI)
                } else {
                    now
                };
                newest.fetch_max(now, SeqCst);
                let users = &in_use[key as usize % in_use.len()];
                let entry = table.key(&key);
                if let Ok((lease, [receipt, ..])) = entry.try_acquire_each_noted_at(at(now), 1) {
                    assert_eq!(
                        users.fetch_add(1, SeqCst),
                        0,
                        "two permits of one, key {key}"
                    );
                    let latest = newest.load(SeqCst);
                    let refunds = draws.once_in(4);
                    let address = entry.address();
                    if !refunds || table.refund_limit_at(address, 0, at(now), 1, receipt) == 0 {
                        mine.push((
                            key,
                            Admission {
                                earliest: now,
                                latest,
                            },
                        ));
                    }
                    leases.push((users, lease));
                }
                while leases.len() as u64 > draws.below(4) {
                    let (users, lease) =
                        leases.swap_remove(draws.below(leases.len() as u64) as usize);
                    users.fetch_sub(1, SeqCst);
                    drop(lease);
                }
                if draws.once_in(50) {
                    table.sweep_at(at(now), ..);
                }
            }
            for (users, lease) in leases {
                users.fetch_sub(1, SeqCst);
                drop(lease);
            }
            let mut all = all.lock().unwrap();
            for (key, admission) in mine {
                all.entry(key).or_default().push(admission);
            }
        };
        thread::scope(|scope| {
            for thread in 0..4 {
                let work = &work;
                scope.spawn(move || work(thread));
            }
        });
        let mut admitted = 0;
        for (key, mut admissions) in all.into_inner().unwrap() {
            admitted += admissions.len();
            admissions.sort_unstable_by_key(|admission| admission.latest);
            for first in &admissions {
                let later = admissions
                    .iter()
                    .filter(|last| last.earliest >= first.earliest);
                for (before, last) in later.enumerate() {
                    // In whole ticks of a microsecond.
                    let time = last.latest / 1_000 * 1_000 - first.earliest / 1_000 * 1_000;
                    let most = 1_000 * MILLI + 2 * time;
                    assert!((before as u64 + 1) * 1_000 * MILLI <= most, "key {key}");
                }
            }
        }
        let statistics = table.statistics_at(at(newest.load(SeqCst)));
        println!("{groups} groups of lines: {admitted} admitted, {statistics:?}");
        assert!(admitted > 100 && statistics.replaced > 50);
        let later = at(newest.load(SeqCst)) + Duration::from_secs(9);
        assert_eq!(table.sweep_at(later, ..), statistics.held);
        assert_eq!(table.statistics_at(later).held, 0, "no entry is lost");
    }
}

#[test]
fn a_refund_returns_the_permits_of_all_limits_or_only_those_that_are_released() {
    let available = |alice: &TableKey<&_>| -> Vec<_> {
        let each = alice.explain_each_at(secs(9), 1);
        each.map(|detail| detail.available).collect()
    };
    let rules = (bucket(1, 9), minute(8), ConcurrencyRules::new(7));
    let table: KeyedList<_, _, _> = KeyedList::for_keys(rules, 10);
    let alice = table.key("alice");
    let mut lease = alice.try_acquire_at(secs(9), 5).unwrap();
    assert_eq!(lease.refund_at(secs(9), 2), Ok(2));
    assert_eq!(available(&alice), [6, 5, 4]);
    let second = alice.try_acquire_at(secs(9), 1).unwrap();
    assert_eq!(lease.refund_at(secs(9), 1), Ok(0), "another grant follows");
    assert_eq!(available(&alice), [5, 4, 4]);
    drop(second);
    assert_eq!(lease.refund_at(secs(9), 1), Ok(0));
    assert_eq!(available(&alice), [5, 4, 6]);
    let mut third = alice.try_acquire_at(secs(9), 3).unwrap();
    assert_eq!(third.refund_at(secs(9), 3), Ok(3));
    assert_eq!(available(&alice), [5, 4, 6]);
    // In the next minute, the window of the grant is over.
    let mut last = alice.try_acquire_at(secs(59), 1).unwrap();
    let at_next = alice.explain_each_at(secs(60), 1).nth(1).unwrap();
    assert_eq!((at_next.available, last.refund_at(secs(60), 1)), (8, Ok(1)));
    drop(lease);
}

#[test]
fn windows_refund_in_any_order() {
    let table = KeyedList::for_keys((minute(9), minute(9)), 10);
    let (alice, bob) = (table.key("alice"), table.key("bob"));
    let receipt = alice.take_at(secs(9), 3).unwrap();
    assert_eq!(
        bob.refund_at(secs(9), 3, receipt).permits,
        0,
        "bob has no entry"
    );
    let (first, second) = (alice.take_at(secs(9), 3), alice.take_at(secs(9), 2));
    assert_eq!(alice.refund_at(secs(9), 3, first.unwrap()).permits, 3);
    assert_eq!(alice.refund_at(secs(9), 2, second.unwrap()).permits, 2);
    assert_eq!(alice.available_at(secs(9)), 6);
}

/// The state of each bucket moves on by half of its range, and one of them wraps. So the sum of the
/// two is the same.
#[test]
#[cfg(target_has_atomic = "64")]
fn states_that_wrap_do_not_validate_a_receipt() {
    const RANGE: u64 = 1 << KeyedWord::BITS;
    let micros = |micros| Timestamp::from_nanos(micros * 1_000);
    let first = micros(RANGE - RANGE / 4);
    let rules = [Timestamp::ZERO, first].map(|origin| {
        let bucket = TokenBucket::builder(Rate::per_second(1), 5).origin(origin);
        bucket.tick(Duration::from_micros(1)).rules().unwrap()
    });
    let table = KeyedList::for_keys(rules, 10);
    let alice = table.key("alice");
    let receipt = alice.take_at(first, 5).unwrap();
    let later = micros(RANGE - RANGE / 4 + RANGE / 2);
    let newer = alice.take_at(later, 5).unwrap();
    assert_eq!(receipt.note(), newer.note(), "the sums are equal");
    assert_eq!(alice.refund_at(later, 5, receipt).permits, 0);
    assert_eq!(alice.available_at(later), 0);
    assert_eq!(alice.refund_at(later, 5, newer).permits, 5);
}

/// While the time stands still, no more than the tightest limit is out at any time.
#[test]
fn threads_that_race_refund_no_more_than_they_took() {
    let (mut made, mut refused) = (0, 0);
    for round in 0..300 {
        let [kept, given_back] = race_and_refund(round);
        (refused, made) = (refused + kept, made + given_back);
    }
    println!("{made} refunds made, {refused} refused");
    assert!(made > 1_000);
}

fn race_and_refund(round: u64) -> [u32; 2] {
    const LIMIT: u32 = 6;
    let mut sum = [0; 2];
    let rules = (
        minute(LIMIT.into()),
        bucket(1, LIMIT.into()),
        ConcurrencyRules::new(5),
    );
    let table = KeyedList::for_keys(rules, 10);
    let out = AtomicU32::new(0);
    let refunds = thread::scope(|scope| {
        let threads = [0, 1, 2].map(|thread| {
            let (table, out) = (&table, &out);
            scope.spawn(move || {
                let mut draws = seeded(3 * round + thread);
                let mut refunds = [0; 2];
                for _ in 0..100 {
                    let n = draws.within(1, 3) as u32;
                    let alice = table.key("alice");
                    let Ok(mut lease) = alice.try_acquire_at(secs(61), n) else {
                        continue;
                    };
                    let before = out.fetch_add(n, SeqCst);
                    assert!(before + n <= LIMIT, "{before} and {n} of {LIMIT}");
                    out.fetch_sub(n, SeqCst);
                    let refunded = lease.refund_at(secs(61), n).unwrap();
                    assert!(refunded == n || refunded == 0);
                    refunds[usize::from(refunded == n)] += 1;
                }
                refunds
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    for [kept, given_back] in refunds {
        sum = [sum[0] + kept, sum[1] + given_back];
    }
    let each: Vec<_> = table.key("alice").explain_each_at(secs(61), 1).collect();
    assert!(each[0].available <= LIMIT.into() && each[1].available <= LIMIT.into());
    assert_eq!(each[2].available, 5, "no permit is lost");
    sum
}
