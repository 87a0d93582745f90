//! Limiters that are saved and restored, as through a deep sleep, compared with limiters that keep
//! running.

use core::time::Duration;

use portcullis_core::{Limiter, Timestamp};

use crate::draws::Draws;
use crate::tally::Group;

/// What survives the sleep: a word.
static KEPT: critical_section::Mutex<core::cell::Cell<u32>> =
    critical_section::Mutex::new(core::cell::Cell::new(0));

fn keep(state: u64) {
    critical_section::with(|section| KEPT.borrow(section).set(state as u32));
}

fn kept() -> u64 {
    critical_section::with(|section| KEPT.borrow(section).get()).into()
}

/// Saves one of two after each step, and restores it before the next one.
macro_rules! goes_on {
    ($group:expr, $name:expr, $builder:expr) => {{
        let build = || $builder.build_on::<u32>();
        let (Ok(stays), Ok(new)) = (build(), build()) else {
            return $group.check(false, format_args!("{} does not fit", $name));
        };
        // At a time that uses all bits of the word.
        let from = (stays.timing().horizon.as_nanos() * 3 / 4) as u64;
        let (mut draws, mut now) = (Draws(11), Timestamp::from_nanos(from));
        keep(new.state());
        let (mut granted, mut denied) = (0, 0);
        for step in 0..400 {
            now = now.saturating_add(Duration::from_micros(draws.below(700_000)));
            let Ok(awake) = build() else { continue };
            let awake = awake.with_state(kept());
            let n = draws.below(4) as u32;
            let (taken, expected) = (awake.take_at(now, n), stays.take_at(now, n));
            let fits = match (&taken, &expected) {
                (Ok(_), Ok(_)) => true,
                (Err(denied), Err(other)) => {
                    denied == other && awake.retry(*denied) == stays.retry(*other)
                }
                _ => false,
            };
            $group.check(
                fits,
                format_args!("{}, {step}: {taken:?}, not {expected:?}", $name),
            );
            let (state, expected) = (awake.state(), stays.state());
            let fits = state == expected && awake.available_at(now) == stays.available_at(now);
            $group.check(
                fits,
                format_args!("{}, {step}: {state:#x}, not {expected:#x}", $name),
            );
            granted += u32::from(taken.is_ok());
            denied += u32::from(taken.is_err());
            keep(state);
        }
        $group.check(
            granted > 50 && denied > 50,
            format_args!("{}: {granted} granted, {denied} denied", $name),
        );
    }};
}

macro_rules! all_go_on {
    ($($name:ident: $_type:ty {
        on: $_on:tt,
        new: $_new:tt,
        on_board: $_board:tt,
        back: $_back:ident,
        denial: $_denial:ident,
        refunds: $_refunds:tt,
        saves: [$($builder:expr),* $(,)?],
        $($_rest:tt)*
    })*) => {
        pub(crate) fn check(group: &mut Group<'_>) {
            $($(goes_on!(group, stringify!($name), $builder);)*)*
        }
    };
}

for_each_limiter!(all_go_on);
