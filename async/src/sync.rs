//! The one place that names atomics, so that the queue can also run under [loom].
//!
//! [loom]: https://docs.rs/loom

#[cfg(not(loom))]
pub(crate) use core::sync::atomic;
#[cfg(loom)]
pub(crate) use loom::sync::atomic;

/// A constructor, `const` unless loom takes the place of the atomics.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis const fn $($rest:tt)*) => {
        #[cfg(not(loom))]
        $(#[$meta])*
        $vis const fn $($rest)*
        #[cfg(loom)]
        $(#[$meta])*
        $vis fn $($rest)*
    };
}
pub(crate) use const_unless_loom;
