//! A wrapper that passes the four required functions on decides as the limiter in it: the limiters
//! that implement a provided function as well give the same answers by both ways.

use core::fmt::Debug;
use core::time::Duration;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/limiters.rs"]
mod limiters;

use draws::Draws;
use limiters::own::Own;
use limiters::{ForEach, Kind, Subject, for_each};
use portcullis_core::limiter::Receipt;
use portcullis_core::state::Word;
use portcullis_core::{
    Concurrency, Counted, Limiter, LimiterExt, Penalty, Rate, Timestamp, TokenBucket,
};

const TIME: Duration = Duration::from_secs(1);
/// In nanoseconds: a thousandth of the time in which all permits return.
const STEP: u64 = 1_000_000;

/// Asks `limiter` by its own functions, and an equal one by the four that are required.
fn compare<L: Limiter + Debug>(name: &str, seed: u64, new: impl Fn() -> L) {
    let (limiter, own) = (new(), Own(new()));
    let draws = &mut Draws::Seeded {
        state: seed,
        steps: 2_000,
    };
    let mut now = 0;
    let mut held: Vec<(u32, Receipt, Receipt)> = Vec::new();
    while draws.another_step() {
        now += draws.magnitude(3_000) * STEP;
        let at = Timestamp::from_nanos(now.saturating_sub(draws.magnitude(3)));
        let n = draws.below(8) as u32;
        match draws.below(8) {
            0..=3 => match (limiter.take_at(at, n), own.take_at(at, n)) {
                (Ok(receipt), Ok(same)) => {
                    assert_eq!(same, receipt, "{name}: {n} at {at:?}");
                    held.push((n, receipt, same));
                }
                (Err(denied), Err(same)) => {
                    assert_eq!(same, denied, "{name}: {n} at {at:?}");
                    assert_eq!(own.retry(denied), limiter.retry(denied), "{name}: {denied}");
                }
                (one, other) => panic!("{name}: {n} at {at:?}: {one:?}, but {other:?}"),
            },
            4 => {
                let looked = limiter.peek_at(at, n);
                assert_eq!(
                    own.peek_at(at, n),
                    looked,
                    "{name}: a look for {n} at {at:?}"
                );
            }
            5 | 6 if !held.is_empty() => {
                let one = draws.below(held.len() as u64) as usize;
                let (permits, receipt, same) = held.swap_remove(one);
                if draws.below(2) == 0 {
                    limiter.release(permits);
                    own.release(permits);
                } else {
                    let refund = limiter.refund_at(at, permits, receipt);
                    assert_eq!(own.refund_at(at, permits, same), refund, "{name}");
                }
            }
            _ => {
                assert_eq!(own.available_at(at), limiter.available_at(at), "{name}");
                assert_eq!(own.explain_at(at, n), limiter.explain_at(at, n), "{name}");
            }
        }
        assert_eq!(format!("{:?}", own.0), format!("{limiter:?}"), "{name}");
    }
}

struct Compare(u64);

impl ForEach for Compare {
    fn each<L: Subject>(&mut self, kind: Kind, new: impl Fn() -> L) {
        self.0 += 1;
        compare(kind.name, self.0, new);
    }
}

#[test]
fn a_limiter_decides_alike_by_its_own_functions_and_by_the_four_required_ones() {
    for_each::<u64>(6, TIME, &mut Compare(1));
    for_each::<u32>(6, TIME, &mut Compare(1_000));
}

#[test]
fn a_counted_limiter_decides_alike_by_its_own_functions_and_by_the_four_required_ones() {
    compare("counted bucket", 4_000, || {
        Counted::new(TokenBucket::new(Rate::new(7, TIME), 6))
    });
    compare("counted permits", 4_001, || {
        Counted::new(Concurrency::new(9))
    });
}

#[test]
fn a_penalty_decides_alike_by_its_own_functions_and_by_the_four_required_ones() {
    fn check<W: Word>(seed: u64) {
        let bucket = || TokenBucket::new(Rate::new(7, TIME), 6);
        compare("penalty", seed, || {
            Penalty::builder(TIME)
                .build_on::<W>()
                .unwrap()
                .around(bucket())
        });
        compare("penalty of some denials", seed + 1, || {
            Penalty::builder(TIME)
                .after(2, TIME * 5)
                .build_on::<W>()
                .unwrap()
                .around(bucket())
        });
    }
    check::<u64>(2_000);
    check::<u32>(3_000);
}
