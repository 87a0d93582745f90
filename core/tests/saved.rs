//! States that are kept while memory is lost.

use core::time::Duration;

use portcullis_core::{CooldownWindow, FixedWindow, Limiter, Rate, Timestamp, TokenBucket, Word};
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// A limiter that can be saved, as often as it is wanted.
trait Saves: Limiter + Sized {
    fn new() -> Self;
    fn state(&self) -> u64;
    fn with_state(self, state: u64) -> Self;
}

macro_rules! saves {
    ($limiter:ident, $new:expr) => {
        impl<W: Word> Saves for $limiter<W> {
            fn new() -> Self {
                $new.build_on::<W>().unwrap()
            }

            fn state(&self) -> u64 {
                self.state()
            }

            fn with_state(self, state: u64) -> Self {
                self.with_state(state)
            }
        }
    };
}

saves!(
    TokenBucket,
    TokenBucket::builder(Rate::per_second(3), 7)
        .debt(5)
        .tick(Duration::from_millis(1))
);
saves!(
    FixedWindow,
    FixedWindow::builder(5, SECOND).started_by_first_request()
);
saves!(
    CooldownWindow,
    CooldownWindow::builder(5, 3 * SECOND).wait(SECOND)
);

/// One that goes on, and one that is saved and made anew before each step, decide alike.
fn goes_on_as_before<L: Saves>(steps: &[(u64, u32)]) -> Result<(), TestCaseError> {
    let (stays, mut sleeps) = (L::new(), L::new());
    let mut now = Timestamp::from_secs(1_000);
    for &(millis, n) in steps {
        now = now.saturating_add(Duration::from_millis(millis));
        sleeps = L::new().with_state(sleeps.state());
        prop_assert_eq!(
            sleeps.take_at(now, n).is_ok(),
            stays.take_at(now, n).is_ok()
        );
        prop_assert_eq!(sleeps.available_at(now), stays.available_at(now));
        prop_assert_eq!(sleeps.state(), stays.state());
    }
    Ok(())
}

/// Whatever the number, what is then taken at one instant is no more than a new one holds, and
/// nothing overflows.
fn grants_no_more_than_a_new_one<L: Saves>(state: u64, nanos: u64) -> Result<(), TestCaseError> {
    let now = Timestamp::from_nanos(nanos);
    // Of all bits, or of the lower ones of a state of this time.
    let used = L::new();
    let _ = used.take_at(now, 1);
    let state = if state & 1 == 0 {
        state
    } else {
        used.state() ^ (state >> 1 & 0x3f)
    };
    let limit = L::new().with_state(state);
    prop_assert!(limit.available_at(now) <= limit.capacity());
    for _ in 0..2 {
        let _ = limit.peek_at(now, 3).map_err(|denied| limit.retry(denied));
        let _ = limit.idle_at(now);
    }
    let granted = (0..20)
        .filter(|_| {
            limit
                .take_at(now, 1)
                .map_err(|denied| limit.retry(denied))
                .is_ok()
        })
        .count();
    prop_assert!(granted as u64 <= limit.capacity(), "{granted}");
    Ok(())
}

proptest! {
    #[test]
    fn a_limiter_that_is_saved_and_made_anew_goes_on_as_before(
        steps in proptest::collection::vec((0_u64..2_000, 0_u32..4), 1..60)
    ) {
        goes_on_as_before::<TokenBucket<u64>>(&steps)?;
        goes_on_as_before::<TokenBucket<u32>>(&steps)?;
        goes_on_as_before::<FixedWindow<u64>>(&steps)?;
        goes_on_as_before::<FixedWindow<u32>>(&steps)?;
        goes_on_as_before::<CooldownWindow<u64>>(&steps)?;
        goes_on_as_before::<CooldownWindow<u32>>(&steps)?;
    }

    #[test]
    fn a_state_that_is_damaged_grants_no_more_than_a_new_limiter(state in any::<u64>(), nanos in any::<u64>()) {
        for nanos in [nanos, nanos >> 20, nanos >> 40] {
            grants_no_more_than_a_new_one::<TokenBucket<u64>>(state, nanos)?;
            grants_no_more_than_a_new_one::<TokenBucket<u32>>(state, nanos)?;
            grants_no_more_than_a_new_one::<FixedWindow<u64>>(state, nanos)?;
            grants_no_more_than_a_new_one::<FixedWindow<u32>>(state, nanos)?;
            grants_no_more_than_a_new_one::<CooldownWindow<u64>>(state, nanos)?;
            grants_no_more_than_a_new_one::<CooldownWindow<u32>>(state, nanos)?;
        }
    }
}

#[test]
fn a_debt_is_kept_too() {
    let build = || {
        TokenBucket::builder(Rate::per_second(1), 2)
            .debt(9)
            .build()
            .unwrap()
    };
    let bucket = build();
    bucket.force_at(Timestamp::from_secs(10), 5).unwrap();
    let awake = build().with_state(bucket.state());
    assert!(
        awake
            .try_acquire_at(Timestamp::from_millis(13_999), 1)
            .is_err()
    );
    assert!(awake.try_acquire_at(Timestamp::from_secs(14), 1).is_ok());
}
