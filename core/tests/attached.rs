//! Limiters whose word lies elsewhere: they decide as the limiter does which was detached, and
//! decide about any bits in the word.

use core::time::Duration;

use portcullis_core::clock::Interval;
use portcullis_core::state::{Attached, Detach, StateWord, Word};
use portcullis_core::{AllOf, FixedWindow, Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
use proptest::prelude::*;

/// Calls every method of a limiter with these arguments, and returns how much was granted.
fn use_all(limiter: &impl Limiter, now: Timestamp, later: u64, n: u32) -> u64 {
    let end = Timestamp::from_nanos(now.as_nanos().saturating_add(later));
    let interval = Interval::new(now, end).expect("an end that is not before the start");
    let peeked = limiter.peek_at(now, n).is_ok();
    limiter.explain_at(now, n);
    limiter.peek_within(interval, n);
    limiter.available_at(now);
    limiter.idle_at(now);
    let mut granted = 0;
    let taken = limiter.take_at(now, n);
    assert_eq!(taken.is_ok(), peeked, "nothing else uses the limiter");
    match taken {
        Ok(receipt) => {
            granted += u64::from(n);
            limiter.refund_at(now, n / 2, receipt);
        }
        Err(denied) => drop(limiter.retry(denied)),
    }
    if let Some(Ok(_)) = limiter.take_within(interval, n) {
        granted += u64::from(n);
    }
    granted += u64::from(limiter.take_explained_at(now, n).0.map_or(0, |_| n));
    granted
}

/// A time that is often near `at`.
fn near(at: u64) -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        any::<u64>(),
        (0..20_000_000_000_u64)
            .prop_map(move |by| at.wrapping_add(by).wrapping_sub(10_000_000_000)),
    ]
    .prop_map(Timestamp::from_nanos)
}

fn buckets<W: Word>() -> Vec<TokenBucket<W>> {
    let rates = [
        Rate::per_second(10),
        Rate::new(999_999_937, Duration::from_secs(1)),
        Rate::new(3, Duration::from_secs(86_400)),
        Rate::ZERO,
        Rate::UNLIMITED,
    ];
    let plain = rates.map(|rate| TokenBucket::builder(rate, 7));
    let owing = rates.map(|rate| TokenBucket::builder(rate, 3).debt(5));
    plain
        .into_iter()
        .chain(owing)
        .filter_map(|builder| builder.build_on().ok())
        .collect()
}

fn windows<W: Word>() -> Vec<FixedWindow<W>> {
    let second = Duration::from_secs(1);
    let builders = [
        FixedWindow::builder(1, second),
        FixedWindow::builder(5, Duration::from_nanos(7)),
        FixedWindow::builder(5, second).max_limit(1_000),
        FixedWindow::builder(5, second).started_by_first_request(),
        FixedWindow::builder(5, Duration::from_secs(86_400)).started_by_first_request(),
    ];
    builders
        .into_iter()
        .filter_map(|builder| builder.build_on().ok())
        .collect()
}

/// The capacity of a bucket with an unlimited rate is what its word can count.
const UNLIMITED: u64 = u32::MAX as u64;

/// Uses a limiter on a word with these bits. Whatever they are, no more is granted than the limiter
/// can hold, as long as time stands still.
fn any_word_is_decided<L: Detach>(limiter: L, word: u64, now: Timestamp, later: u64, n: u32) {
    let (rules, _) = limiter.detach();
    let place = StateWord::new(word);
    let attached = Attached::new(rules, &place);
    let granted = use_all(&attached, now, 0, n);
    let most = attached.capacity();
    assert!(
        granted <= most.saturating_mul(2) || most >= UNLIMITED,
        "{granted} of {most} with a refund of half, on {word:#x}"
    );
    use_all(&attached, now, later, n);
}

proptest! {
    #[test]
    fn any_word_is_decided_without_a_panic(
        word in any::<u64>(),
        now in near(1 << 40),
        later in 0..40_000_000_u64,
        n in prop_oneof![0..9_u32, any::<u32>()],
    ) {
        for bucket in buckets::<u64>() {
            any_word_is_decided(bucket, word, now, later, n);
        }
        for bucket in buckets::<u32>() {
            any_word_is_decided(bucket, word, now, later, n);
        }
        for window in windows::<u64>() {
            any_word_is_decided(window, word, now, later, n);
        }
        for window in windows::<u32>() {
            any_word_is_decided(window, word, now, later, n);
        }
    }

    #[test]
    fn an_attached_bucket_decides_as_the_bucket(
        requests in prop::collection::vec((near(1 << 40), 0..9_u32), 1..60),
    ) {
        let builder = TokenBucket::builder(Rate::per_second(3), 7);
        let bucket = builder.build().unwrap();
        let (rules, word) = builder.build().unwrap().detach();
        let attached = Attached::new(rules, &word);
        for (now, n) in requests {
            let (one, other) = (bucket.take_explained_at(now, n), attached.take_explained_at(now, n));
            prop_assert_eq!(one, other);
            prop_assert_eq!(bucket.state(), word.get());
        }
    }
}

/// Moves a state of any bits to other rules. The other limiter grants no more than it can hold.
fn any_word_is_moved<L: Detach>(from: L, to: L, word: u64, now: Timestamp, n: u32) {
    let ((from, _), (to, place)) = (from.detach(), to.detach());
    let word = StateWord::new(word);
    let (from, to) = (Attached::new(from, &word), Attached::new(to, &place));
    assert!(from.move_to_at(now, &to, to.place().get()));
    let most = to.capacity();
    let granted = use_all(&to, now, 0, n);
    assert!(
        granted <= most.saturating_mul(2) || most >= UNLIMITED,
        "{granted} of {most} with a refund of half, moved from {word:?}"
    );
}

proptest! {
    #[test]
    fn any_word_is_moved_without_a_panic(
        word in any::<u64>(),
        now in near(1 << 40),
        n in prop_oneof![0..9_u32, any::<u32>()],
        by in 1..9_usize,
    ) {
        for (from, to) in buckets::<u64>().into_iter().zip(buckets::<u64>().into_iter().skip(by)) {
            any_word_is_moved(from, to, word, now, n);
        }
        for (to, from) in buckets::<u64>().into_iter().zip(buckets::<u64>().into_iter().skip(by)) {
            any_word_is_moved(from, to, word, now, n);
        }
        for (from, to) in windows::<u64>().into_iter().zip(windows::<u64>().into_iter().skip(by % 4)) {
            any_word_is_moved(from, to, word, now, n);
        }
    }
}

#[test]
fn what_is_in_use_stays_in_use_when_the_state_moves() {
    let bucket = |rate, burst| TokenBucket::builder(rate, burst).debt(20).build().unwrap();
    let (second, minute) = (Rate::per_second(1), Rate::per_minute(1));
    let (few, word) = bucket(second, 10).detach();
    let (many, other) = bucket(minute, 20).detach();
    let (few, many) = (Attached::new(few, &word), Attached::new(many, &other));
    let at = Timestamp::from_secs;
    assert!(few.try_acquire_at(at(100), 10).is_ok());
    let unused = other.get();
    assert!(few.move_to_at(at(104), &many, unused));
    assert_eq!(
        many.available_at(at(104)),
        14,
        "4 of 10 returned at the rate of before"
    );
    assert_eq!(
        (many.available_at(at(163)), many.available_at(at(164))),
        (14, 15)
    );
    assert!(many.try_acquire_at(at(164), 15).is_ok());
    assert!(!few.move_to_at(at(164), &many, unused), "it was used");
    assert!(many.move_to_at(at(164), &few, word.get()));
    assert_eq!(few.available_at(at(174)), 0, "it owed 10");
    assert_eq!(few.available_at(at(175)), 1);
}

#[test]
fn a_composition_that_names_two_limiters_on_one_word_knows_that_they_are_one() {
    let (rules, word) = TokenBucket::new(Rate::per_second(1), 3).detach();
    let (one, other) = (Attached::new(rules, &word), Attached::new(rules, &word));
    assert_eq!(one.id(), other.id());
    let both = AllOf::new((&one, &other));
    assert!(both.try_acquire_at(Timestamp::ZERO, 2).is_err(), "4 of 3");
    assert!(both.try_acquire_at(Timestamp::ZERO, 1).is_ok());
    assert_eq!(other.available_at(Timestamp::ZERO), 1);
}
