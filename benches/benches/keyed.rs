//! A token bucket of one key, in a table of a thousand keys, under each kind of load.

mod support;

use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use portcullis_core::keyed::{Line, RandomSeed, TokenBucketRules};
use portcullis_core::{Keyed, Rate, Timestamp, TokenBucket};

use crate::support::{Pressure, bench, group};

type Table = Keyed<TokenBucketRules, Box<[Line]>, RandomSeed>;

fn table(rate: Rate, burst: u64, keys: usize) -> Table {
    let limit = TokenBucket::builder(rate, burst)
        .rules()
        .expect("settings that fit");
    // Half full.
    let lines = (0..keys.div_ceil(4)).map(|_| Line::new()).collect();
    Keyed::new(limit, lines, RandomSeed::new())
}

fn keyed(criterion: &mut Criterion) {
    let mut group = group(criterion, "Keyed");
    let mut press = |pressure, rate, burst| {
        let table = table(rate, burst, 1_000);
        if matches!(pressure, Pressure::DenialStorm) {
            table
                .key("alice")
                .try_acquire_at(Timestamp::ZERO, 1)
                .expect("the only permit")
                .forget();
        }
        bench(&mut group, pressure, |now| {
            table.key("alice").try_acquire_at(now, 1).is_ok()
        });
    };
    press(
        Pressure::Uncontended,
        Rate::per_second(1_000_000_000),
        1 << 30,
    );
    press(
        Pressure::Contended,
        Rate::per_second(1_000_000_000),
        1 << 30,
    );
    press(Pressure::DenialStorm, Rate::ZERO, 1);
    // A tick of 1 µs has 500 requests, and 125 permits.
    press(
        Pressure::Mixed,
        Rate::new(1, Duration::from_nanos(8)),
        1_000,
    );
    group.finish();
}

criterion_group!(benches, keyed);
criterion_main!(benches);
