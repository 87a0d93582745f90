//! Shared parts of the explorers: limiters with random settings, calls on them, and the judge of
//! the results.
#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "each test uses a part of the module"
)]

/// Defines a test for each subject, which calls `check` with the subject's share of all runs; and
/// in `soak` a test with a hundred times as many runs.
macro_rules! tests_of_all {
    ($($test:ident: $subject:ty, $share:literal;)*) => {
        $(
            #[test]
            fn $test() {
                check::<$subject>($share, 1);
            }
        )*

        mod soak {
            use super::*;

            $(
                #[test]
                #[ignore = "takes minutes"]
                fn $test() {
                    check::<$subject>($share, 100);
                }
            )*
        }
    };
}
pub(crate) use tests_of_all;

#[path = "../../../core/tests/support/draws.rs"]
pub(crate) mod draws;
pub(crate) mod judge;
pub(crate) mod op;
pub(crate) mod scenario;
pub(crate) mod subjects;
pub(crate) mod world;
