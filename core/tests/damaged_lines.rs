//! Tables whose lines have any bits, as memory that processes share may have.

use core::time::Duration;

use portcullis_core::keyed::{IntoRules, KeyedRules, Line, PendingClaim, Seed};
use portcullis_core::{FixedWindow, Keyed, Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
use proptest::prelude::*;

/// A line with these words.
fn line(words: [u64; 8]) -> Line {
    // SAFETY: a line is an array of eight atomic words, and any bits are valid.
    unsafe { core::mem::transmute(words) }
}

/// Words with any bits, of which many have a tag that keys of the test have.
fn words(tags: Vec<u64>) -> impl Strategy<Value = [u64; 8]> {
    let word = prop_oneof![
        any::<u64>(),
        (any::<u64>(), prop::sample::select(tags), any::<bool>())
            .prop_map(|(state, tag, is_held)| state << 21 | u64::from(is_held) << 20 | tag),
        0..9_u64,
    ];
    prop::array::uniform8(word)
}

const LINES: usize = 4;
const KEYS: u32 = 12;

/// The words of the lines after each key was granted a permit.
fn tags_in_use() -> Vec<u64> {
    let rules = TokenBucket::new(Rate::per_second(5), 10)
        .into_rules()
        .unwrap();
    let table = Keyed::new(rules, [const { Line::new() }; LINES], Seed::new());
    for key in 0..KEYS {
        let _ = table.key(&key).try_acquire_at(Timestamp::ZERO, 1).unwrap();
    }
    // SAFETY: as in `line`.
    let words: [[u64; 8]; LINES] = unsafe { core::mem::transmute_copy(table.lines()) };
    let words = words.into_iter().flatten();
    words
        .map(|word| word & 0xf_ffff)
        // Neither a vacant slot nor a clock.
        .filter(|&tag| tag != 0)
        .collect()
}

/// Calls every method, for every key.
fn use_all(table: &Keyed<impl KeyedRules, [Line; LINES], Seed>, now: Timestamp, n: u32) {
    for key in 0..KEYS {
        let key = table.key(&key);
        let _ = key.peek_at(now, n);
        key.explain_at(now, n);
        key.available_at(now);
        key.idle_at(now);
        match key.take_at(now, n) {
            Ok(receipt) => drop(key.refund_at(now, n / 2, receipt)),
            Err(denied) => drop(key.retry(denied)),
        }
        let _ = key.take_explained_at(now, n);
    }
    table.statistics_at(now);
    table.sweep_at(now, ..);
}

proptest! {
    #[test]
    fn any_words_are_decided_without_a_panic(
        lines in prop::array::uniform4(words(tags_in_use())),
        now in any::<u64>(),
        n in prop_oneof![0..9_u32, any::<u32>()],
    ) {
        let now = Timestamp::from_nanos(now);
        let bucket = TokenBucket::new(Rate::per_second(5), 10).into_rules().unwrap();
        use_all(&Keyed::new(bucket, lines.map(line), Seed::new()), now, n);
        let second = Duration::from_secs(1);
        let window = FixedWindow::new(5, second).into_rules().unwrap();
        use_all(&Keyed::new(window, lines.map(line), Seed::new()), now, n);
        let started = FixedWindow::builder(5, second).started_by_first_request().build();
        let started = started.unwrap().into_rules().unwrap();
        use_all(&Keyed::new(started, lines.map(line), Seed::new()), now, n);
    }
}

#[test]
fn a_claim_that_is_abandoned_makes_room_for_its_key() {
    let rules = TokenBucket::new(Rate::per_second(5), 10)
        .into_rules()
        .unwrap();
    let now = Timestamp::from_secs(9);
    let full = || {
        let words = tags_in_use();
        // Each slot claimed: its process was killed.
        [const { Line::new() }; LINES].map(|_| line(core::array::from_fn(|nth| words[nth])))
    };
    let table = Keyed::new(rules, full(), Seed::new());
    assert!(table.key(&1).try_acquire_at(now, 1).is_err(), "no slot");
    let claims: Vec<_> = PendingClaim::all(table.lines()).collect();
    assert_eq!(claims.len(), 7 * LINES);
    for claim in &claims {
        assert!(claim.is_pending(table.lines()));
        while claim.is_pending(table.lines()) {
            claim.abandon(table.lines());
        }
    }
    let _ = table.key(&1).try_acquire_at(now, 1).unwrap();
    // The key may have the slot of one of these claims now.
    assert!(claims.iter().all(|claim| !claim.abandon(table.lines())));
    assert_eq!(table.key(&1).available_at(now), 9);
    assert_eq!(PendingClaim::all(table.lines()).count(), 0);
}
