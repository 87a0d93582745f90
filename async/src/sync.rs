//! The one place that names atomics and cells, so that the queue can also run under [loom], and
//! without compare-exchange.
//!
//! [loom]: https://docs.rs/loom

#[cfg(not(any(loom, target_has_atomic = "32", feature = "portable-atomic")))]
compile_error!(
    "this target has no compare-exchange: enable the feature `portable-atomic` of portcullis-async, and in the program one of the features \
     `critical-section` and `unsafe-assume-single-core` of portable-atomic"
);

#[cfg(all(
    not(loom),
    any(target_has_atomic = "32", not(feature = "portable-atomic"))
))]
pub(crate) use core::sync::atomic;
#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(any(loom, target_has_atomic = "32", not(feature = "portable-atomic"))))]
pub(crate) use portable_atomic as atomic;

pub(crate) mod cell {
    #[cfg(loom)]
    pub(crate) use loom::cell::UnsafeCell;

    /// A cell, with loom's way to reach what is in it.
    #[cfg(not(loom))]
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    #[cfg(not(loom))]
    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(data: T) -> Self {
            Self(core::cell::UnsafeCell::new(data))
        }

        #[inline(always)]
        pub(crate) fn with_mut<U>(&self, work: impl FnOnce(*mut T) -> U) -> U {
            work(self.0.get())
        }
    }
}

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
