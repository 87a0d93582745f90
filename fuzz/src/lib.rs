//! Fuzz targets for every reader of foreign text or bytes.
//!
//! A target takes any bytes. It panics if the reader breaks a promise: it must not panic, must
//! return what it accepts unchanged, and must point into the text that it refuses.
//!
//! `corpus/` has a folder of inputs for each target. `cargo test -p portcullis-fuzz` replays them,
//! and a fixed number of mutations of each: see [`mutations`]. `cargo xtask fuzz` runs libFuzzer,
//! which needs a nightly toolchain. `cargo run -p portcullis-fuzz --bin TARGET FILE...` repeats a
//! finding with any toolchain.

pub mod mutations;
#[expect(
    dead_code,
    reason = "parts of the program `portcullis`, which has no library"
)]
#[path = "../../cli/src/replay"]
mod replay {
    pub(crate) mod format;
    pub(crate) mod key;
    pub(crate) mod time;
}
#[expect(
    dead_code,
    reason = "parts of the program `portcullis-serve`, which has no library"
)]
#[path = "../../serve/src"]
mod serve {
    pub(crate) mod check;
    pub(crate) mod counts;
    pub(crate) mod described;
    pub(crate) mod envoy;
    pub(crate) mod original;
    pub(crate) mod seldom;
    pub(crate) mod settings;
}
pub mod targets;

// Where the parts look for each other.
use serve::{check, counts, described, original, seldom, settings};

#[cfg(fuzzing)]
pub use libfuzzer_sys;

/// Defines the program of a target: libFuzzer's under `cfg(fuzzing)`, otherwise one that replays
/// files.
#[macro_export]
macro_rules! program {
    ($target:ident) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::targets::$target(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            for file in std::env::args_os().skip(1) {
                $crate::targets::$target(&std::fs::read(file)?);
            }
            Ok(())
        }
    };
}
