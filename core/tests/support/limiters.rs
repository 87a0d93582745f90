//! The limiters of the registry, for suites that test all of them alike.
#![allow(dead_code, reason = "each suite uses some of it")]

#[macro_use]
#[path = "registry.rs"]
mod registry;
#[path = "own.rs"]
pub(crate) mod own;

use core::fmt::Debug;
use core::time::Duration;

use portcullis_core::state::Word;
use portcullis_core::{Limiter, SettingsError};

use own::Own;

/// A limiter of any kind, whose state can be printed.
pub(crate) trait Subject: Limiter + Debug + Send + Sync + 'static {}
impl<L: Limiter + Debug + Send + Sync + 'static> Subject for L {}

/// How permits return. The head of `registry.rs` explains each.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(non_camel_case_types, reason = "as in the registry")]
pub(crate) enum Back {
    by_time,
    by_release,
    always,
}

/// The effect of a denial. The head of `registry.rs` explains each.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(non_camel_case_types, reason = "as in the registry")]
pub(crate) enum Denial {
    writes_nothing,
    learns,
    acts,
}

/// A row of the registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) back: Back,
    pub(crate) denial: Denial,
}

/// An action for limiters of every type.
pub(crate) trait ForEach {
    fn each<L: Subject>(&mut self, kind: Kind, new: impl Fn() -> L);
}

macro_rules! constructors {
    ($($name:ident: $type:ty {
        on: $_on:tt,
        new: (|$limit:ident, $time:ident| $new:expr),
        on_board: $_board:tt,
        back: $back:ident,
        denial: $denial:ident,
        $($_rest:tt)*
    })*) => {
        /// Typical limiters of each type.
        pub(crate) mod new {
            use super::{Duration, SettingsError, Word};

            $(
                #[allow(clippy::extra_unused_type_parameters, reason = "one has no word")]
                pub(crate) const fn $name<W: Word>(
                    $limit: u64,
                    $time: Duration,
                ) -> Result<$type, SettingsError> {
                    $new
                }
            )*
        }

        /// Runs `work` on limiters of each type, and on each in a wrapper of a user's own, on words
        /// of `W`: of `limit` permits, which are replenished within `time`, if by time at all.
        pub(crate) fn for_each<W: Word>(limit: u64, time: Duration, work: &mut impl ForEach) {
            $(
                let kind = Kind {
                    name: stringify!($name),
                    back: Back::$back,
                    denial: Denial::$denial,
                };
                let new = || new::$name::<W>(limit, time).expect("settings that fit");
                work.each(kind, new);
                let name = concat!(stringify!($name), " in a wrapper");
                work.each(Kind { name, ..kind }, || Own(new()));
            )*
        }
    };
}

for_each_limiter!(constructors);

struct Boxed(Vec<(Kind, Box<dyn Subject>)>);

impl ForEach for Boxed {
    fn each<L: Subject>(&mut self, kind: Kind, new: impl Fn() -> L) {
        self.0.push((kind, Box::new(new())));
    }
}

/// One limiter of each type.
pub(crate) fn all<W: Word>(limit: u64, time: Duration) -> Vec<(Kind, Box<dyn Subject>)> {
    let mut all = Boxed(Vec::new());
    for_each::<W>(limit, time, &mut all);
    all.0
}

/// Those that have a limited number of permits.
pub(crate) fn limited<W: Word>(limit: u64, time: Duration) -> Vec<(Kind, Box<dyn Subject>)> {
    let mut limited = all::<W>(limit, time);
    limited.retain(|(kind, _)| kind.back != Back::always);
    limited
}
