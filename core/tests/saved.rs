//! States that are saved while memory is lost.

#[macro_use]
#[path = "support/registry.rs"]
mod registry;

use core::time::Duration;

use portcullis_core::{Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
use proptest::prelude::*;

/// How to make a limiter that can be saved, how to save it, and how to restore it.
struct Saves<L> {
    new: fn() -> L,
    state: fn(&L) -> u64,
    with_state: fn(L, u64) -> L,
}

/// Checks each limiter that can be saved, on both words.
macro_rules! each_that_saves {
    ($($_name:ident: $type:ty {
        on: $_on:tt,
        new: $_new:tt,
        on_board: $_board:tt,
        back: $_back:ident,
        denial: $_denial:ident,
        refunds: $_refunds:tt,
        saves: [$($builder:expr),* $(,)?],
        $($_rest:tt)*
    })*) => {
        fn for_each_that_saves(check: &impl Check) -> Result<(), TestCaseError> {
            $($(
                {
                    type W = u64;
                    check.check::<$type>(saves!($builder))?;
                }
                {
                    type W = u32;
                    check.check::<$type>(saves!($builder))?;
                }
            )*)*
            Ok(())
        }
    };
}

macro_rules! saves {
    ($builder:expr) => {
        Saves {
            new: || $builder.build_on::<W>().unwrap(),
            state: |limiter| limiter.state(),
            with_state: |limiter, state| limiter.with_state(state),
        }
    };
}

for_each_limiter!(each_that_saves);

trait Check {
    fn check<L: Limiter>(&self, saves: Saves<L>) -> Result<(), TestCaseError>;
}

/// A limiter that keeps running and one that is saved and restored before each step decide alike.
struct GoesOn<'a>(&'a [(u64, u32)]);

impl Check for GoesOn<'_> {
    fn check<L: Limiter>(&self, saves: Saves<L>) -> Result<(), TestCaseError> {
        let (new, state) = (saves.new, saves.state);
        let (stays, mut sleeps) = (new(), new());
        let mut now = Timestamp::from_secs(1_000);
        for &(millis, n) in self.0 {
            now = now.saturating_add(Duration::from_millis(millis));
            sleeps = (saves.with_state)(new(), state(&sleeps));
            prop_assert_eq!(
                sleeps.take_at(now, n).is_ok(),
                stays.take_at(now, n).is_ok()
            );
            prop_assert_eq!(sleeps.available_at(now), stays.available_at(now));
            prop_assert_eq!(state(&sleeps), state(&stays));
        }
        Ok(())
    }
}

/// From any saved number: what is then taken at one instant is no more than a new limiter holds,
/// and nothing overflows.
struct GrantsNoMoreThanNew {
    state: u64,
    nanos: u64,
}

impl Check for GrantsNoMoreThanNew {
    fn check<L: Limiter>(&self, saves: Saves<L>) -> Result<(), TestCaseError> {
        let now = Timestamp::from_nanos(self.nanos);
        // Random bits, all of them or only the lower ones of a current state.
        let used = (saves.new)();
        let _ = used.take_at(now, 1);
        let state = if self.state & 1 == 0 {
            self.state
        } else {
            (saves.state)(&used) ^ (self.state >> 1 & 0x3f)
        };
        let limit = (saves.with_state)((saves.new)(), state);
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
}

proptest! {
    #[test]
    fn a_limiter_that_is_saved_and_restored_goes_on_as_before(
        steps in proptest::collection::vec((0_u64..2_000, 0_u32..4), 1..60)
    ) {
        for_each_that_saves(&GoesOn(&steps))?;
    }

    #[test]
    fn a_damaged_state_grants_no_more_than_a_new_limiter(state in any::<u64>(), nanos in any::<u64>()) {
        for nanos in [nanos, nanos >> 20, nanos >> 40] {
            for_each_that_saves(&GrantsNoMoreThanNew { state, nanos })?;
        }
    }
}

#[test]
fn a_debt_is_saved_too() {
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
