//! A token bucket decides as rational arithmetic, and the bounds that its builder names fit.

mod support;

use portcullis_core::state::Word;
use portcullis_core::{AllOf, Concurrency, Rate, Timestamp, TokenBucket};

use support::bucket::BucketSettings;
use support::draws::Draws;
use support::oracle::agrees;

#[test]
fn a_token_bucket_decides_as_rational_arithmetic_does() {
    let tally = agrees("token bucket, 64 bits");
    assert!(tally.retried > 1_000 && tally.late > 1_000 && tally.wrapped > 0 && tally.void > 0);
    let tally = agrees("token bucket, 32 bits");
    assert!(tally.retried > 1_000 && tally.late > 1_000 && tally.wrapped > 1_000 && tally.void > 0);
}

#[test]
fn the_burst_that_the_builder_names_fits_and_one_more_does_not() {
    fn check<W: Word>() {
        let mut named = 0;
        for seed in 0..20_000 {
            let settings = BucketSettings::random(&mut Draws::Seeded {
                state: seed,
                steps: 0,
            });
            let Some(largest) = settings.largest_burst::<W>() else {
                continue;
            };
            if largest > 0 {
                let fits = settings.build::<W>(largest, largest);
                assert!(
                    fits.is_ok(),
                    "{settings:?}: {largest} does not fit, {fits:?}"
                );
                named += 1;
            }
            let refused = settings.build::<W>(largest + 1, 0);
            assert!(refused.is_err(), "{settings:?}: {largest} + 1 fits");
        }
        assert!(named > 1_000, "{named}");
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn an_unlimited_bucket_is_restored_from_any_number() {
    let bucket = TokenBucket::new(Rate::UNLIMITED, 1).with_state(1);
    let limits = AllOf::new((&bucket, Concurrency::new(1)));
    assert!(limits.try_acquire_at(Timestamp::ZERO, 1).is_ok());
}
