//! The retry times of a composition, compared with the earliest instant at which a request is
//! granted.
//!
//! All limits count in whole milliseconds, so that the test can try each of them.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::time::Duration;

use draws::Draws;
use portcullis_core::keyed::WithTotal;
use portcullis_core::queue::Keys;
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Concurrency, Denied, FixedWindow, Keyed, KeyedArray, KeyedList, Limiter, Rate, Retry,
    SlidingWindow, Timestamp, TokenBucket, Unlimited,
};

const MILLI: Duration = Duration::from_millis(1);

fn limiter<W: Word>(draws: &mut Draws<'_>) -> (Box<dyn Limiter>, String) {
    let limit = draws.within(1, 6);
    let period = draws.within(1, 30);
    let time = Duration::from_millis(period);
    let permits = draws.within(1, 4) as u32;
    match draws.below(4) {
        0 => (
            Box::new(
                TokenBucket::builder(Rate::new(permits, time), limit)
                    .tick(MILLI)
                    .build_on::<W>()
                    .unwrap(),
            ),
            format!("bucket {permits}/{period} ms, {limit}"),
        ),
        1 => (
            Box::new(FixedWindow::builder(limit, time).build_on::<W>().unwrap()),
            format!("window {limit}/{period} ms"),
        ),
        2 => (
            Box::new(
                FixedWindow::builder(limit, time)
                    .started_by_first_request()
                    .tick(MILLI)
                    .build_on::<W>()
                    .unwrap(),
            ),
            format!("started window {limit}/{period} ms"),
        ),
        _ => {
            let segments = draws.within(1, 4);
            let time = Duration::from_millis(period * segments);
            (
                Box::new(
                    SlidingWindow::<4>::builder(limit, time, segments as u32)
                        .build_on::<W>()
                        .unwrap(),
                ),
                format!("sliding window {limit}/{segments} x {period} ms"),
            )
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    alone: u64,
    behind: u64,
    beyond: u64,
    early: u64,
}

fn trace<W: Word>(seed: u64, parts: u64, tally: &mut Tally) {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 0,
    };
    let make = || -> Vec<(Box<dyn Limiter>, String)> {
        let mut draws = Draws::Seeded {
            state: seed ^ 0x5555,
            steps: 0,
        };
        (0..parts).map(|_| limiter::<W>(&mut draws)).collect()
    };
    let parts = make();
    let described: Vec<_> = parts.iter().map(|part| &part.1).collect();
    let limits: Vec<&dyn Limiter> = parts.iter().map(|part| &*part.0).collect();
    let all = AllOf::new((&Unlimited as &dyn Limiter, AllOf::new(&limits[..])));
    let mut taken: Vec<(usize, u64, u32)> = Vec::new();
    let mut now = draws.below(50);
    let ms = Timestamp::from_millis;
    for _ in 0..12 {
        now += draws.magnitude(40);
        // Taken from one limit alone, or from all.
        let (of, k) = (
            draws.below(limits.len() as u64 + 2) as usize,
            draws.within(1, 3) as u32,
        );
        let granted = match limits.get(of) {
            Some(limit) => limit.take_at(ms(now), k),
            None => Limiter::take_at(&all, ms(now), k),
        };
        if granted.is_ok() {
            taken.push((of, now, k));
        }
        let capacity = all.capacity();
        let n = draws.within(1, capacity + 6) as u32;
        let about = || format!("seed {seed}: {n} at {now} ms of {described:?} after {taken:?}");
        if u64::from(n) <= capacity {
            let earliest = (now..now + 10_000)
                .find(|&at| Limiter::peek_at(&all, ms(at), n).is_ok())
                .expect("granted at some time");
            match Limiter::peek_at(&all, ms(now), n) {
                Ok(()) => assert_eq!(earliest, now),
                Err(denied) => {
                    assert_eq!(
                        Limiter::retry(&all, denied),
                        Retry::At(ms(earliest)),
                        "{}",
                        about()
                    );
                    let by = all.try_acquire_at(ms(now), n).unwrap_err();
                    assert_eq!(all.retry(by), Retry::At(ms(earliest)), "{}", about());
                    tally.alone += 1;
                }
            }
        }
        // The permits are taken one by one, as soon as each is available.
        let twins = make();
        let twin: Vec<&dyn Limiter> = twins.iter().map(|part| &*part.0).collect();
        for &(of, at, k) in &taken {
            match twin.get(of) {
                Some(limit) => limit.take_at(ms(at), k).map(drop),
                None => AllOf::new(&twin[..])
                    .try_acquire_at(ms(at), k)
                    .map(drop)
                    .map_err(|by| by.denied),
            }
            .expect("granted above");
        }
        let (mut left, mut at) = (n, now);
        loop {
            while left > 0 && AllOf::new(&twin[..]).try_acquire_at(ms(at), 1).is_ok() {
                left -= 1;
            }
            if left == 0 {
                break;
            }
            at += 1;
        }
        let Retry::At(said) = Limiter::retry(
            &all,
            Denied::Exhausted {
                now: ms(now),
                permits: n,
            },
        ) else {
            panic!("{}", about())
        };
        if u64::from(n) <= capacity {
            assert_eq!(said, ms(at), "{}", about());
            tally.behind += 1;
        } else {
            tally.beyond += 1;
            tally.early += u64::from(said < ms(at));
            assert!(
                said <= ms(at),
                "{}: retry at {said}, granted at {at} ms",
                about()
            );
        }
    }
}

/// For more than the capacity, the retry may be too early, never too late; for one limit alone it
/// is exact.
#[test]
fn a_retry_is_the_earliest_instant_and_never_later_behind_others() {
    for parts in 1..=3 {
        let mut tally = Tally::default();
        for seed in 0..if cfg!(debug_assertions) { 300 } else { 3_000 } {
            trace::<u64>(seed, parts, &mut tally);
            trace::<u32>(seed, parts, &mut tally);
        }
        println!("{parts} parts: {tally:?}");
        assert!(tally.alone > 500 && tally.behind > 1_000 && tally.beyond > 1_000);
        assert!(if parts == 1 {
            tally.early == 0
        } else {
            5 * tally.early < tally.beyond
        });
    }
}

/// A limit that has the permits is not asked any more.
#[test]
fn permits_that_return_by_release_delay_only_limits_that_lack_them() {
    let all = AllOf::new((
        Concurrency::new(9),
        TokenBucket::new(Rate::per_second(1), 2),
    ));
    let now = Timestamp::ZERO;
    let retry = |permits| Limiter::retry(&all, Denied::Exhausted { now, permits });
    assert_eq!(retry(9), Retry::At(Timestamp::from_secs(7)));
    let from = Retry::OnReleaseFrom;
    assert_eq!(retry(10), from(Timestamp::from_secs(8)));
    let _lease = all.limits().0.try_acquire(8).unwrap();
    assert_eq!(retry(1), Retry::At(now));
    assert_eq!(retry(2), Retry::OnRelease);
    assert_eq!(retry(3), from(Timestamp::from_secs(1)));
}

/// Fills a table with a total until a key finds no slot. Returns what the key alone says then, and
/// what it says with limits that never lack a slot.
fn retries_without_a_slot(table: impl Keys) -> [Retry; 3] {
    let now = Timestamp::ZERO;
    let table = WithTotal::new(table, Concurrency::new(1_000));
    let mut leases = Vec::new();
    for key in 0_u64.. {
        match table.key(&key).try_acquire_at(now, 1) {
            Ok(lease) => leases.push(lease),
            Err(denied) => {
                assert!(matches!(denied, Denied::Crowded { .. }), "{denied}");
                let address = table.key(&key).address();
                let own = table.table().limiter_at(&address);
                let alone = own.retry(denied);
                let bucket = TokenBucket::new(Rate::per_second(1), 1);
                let last = AllOf::new((&bucket, table.total(), &own));
                return [
                    alone,
                    table.key(&key).retry(denied),
                    Limiter::retry(&last, denied),
                ];
            }
        }
    }
    unreachable!()
}

#[test]
fn a_key_without_a_slot_is_retried_alike_with_limits_that_have_none() {
    let one = || Concurrency::new(1);
    let rates = (TokenBucket::new(Rate::per_second(2), 1), one());
    for retries in [
        retries_without_a_slot(Keyed::for_keys(one(), 4)),
        retries_without_a_slot(KeyedList::for_keys(rates, 4)),
        retries_without_a_slot(KeyedArray::for_keys(one, 4)),
    ] {
        assert!(matches!(retries[0], Retry::After(_)), "{retries:?}");
        assert_eq!(retries, [retries[0]; 3]);
    }
}
