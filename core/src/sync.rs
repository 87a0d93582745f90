//! The only module that names atomics, except for a constant of the machine that
//! `clock/monotonic.rs` keeps in a static. Every algorithm therefore also runs under [loom]
//! (`--cfg portcullis_loom`), under the explorer (`--cfg portcullis_explore`), which pre-empts it
//! at every access, and on targets without compare-exchange. A user who sets `--cfg loom` for code
//! of his own gets the plain atomics.
//!
//! [loom]: https://docs.rs/loom

#[cfg(not(any(portcullis_loom, target_has_atomic = "32", feature = "portable-atomic")))]
compile_error!(
    "this target has no compare-exchange: enable the feature `portable-atomic` of portcullis-core, and in the program one of the features \
     `critical-section` and `unsafe-assume-single-core` of portable-atomic"
);

#[cfg(portcullis_explore)]
pub(crate) use crate::explore::atomic;
#[cfg(all(
    not(any(portcullis_loom, portcullis_explore)),
    any(target_has_atomic = "32", not(feature = "portable-atomic"))
))]
pub(crate) use core::sync::atomic;
#[cfg(portcullis_loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(any(
    portcullis_loom,
    portcullis_explore,
    target_has_atomic = "32",
    not(feature = "portable-atomic")
)))]
pub(crate) use portable_atomic as atomic;

/// Declares a function that is `const`, except under loom, whose atomics have no `const`
/// constructor.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis const fn $($rest:tt)*) => {
        #[cfg(not(portcullis_loom))]
        $(#[$meta])* $vis const fn $($rest)*
        #[cfg(portcullis_loom)]
        $(#[$meta])* $vis fn $($rest)*
    };
}
pub(crate) use const_unless_loom;
