//! Re-exports atomics and cells for the whole crate, so that the queue also runs under [loom] and
//! on targets without compare-exchange.
//!
//! [loom]: https://docs.rs/loom

#[cfg(not(any(portcullis_loom, target_has_atomic = "32", feature = "portable-atomic")))]
compile_error!(
    "this target has no compare-exchange: enable the feature `portable-atomic` of \
     portcullis-async, and in the program one of the features \
     `critical-section` and `unsafe-assume-single-core` of portable-atomic"
);

#[cfg(all(
    not(portcullis_loom),
    any(target_has_atomic = "32", not(feature = "portable-atomic"))
))]
pub(crate) use core::sync::atomic;
#[cfg(portcullis_loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(any(
    portcullis_loom,
    target_has_atomic = "32",
    not(feature = "portable-atomic")
)))]
pub(crate) use portable_atomic as atomic;

pub(crate) mod cell {
    #[cfg(portcullis_loom)]
    pub(crate) use loom::cell::UnsafeCell;

    /// A cell with the interface of loom's `UnsafeCell`.
    #[cfg(not(portcullis_loom))]
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    #[cfg(not(portcullis_loom))]
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

/// Declares a constructor that is `const`, except under loom, whose atomics have no `const`
/// constructors.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis const fn $($rest:tt)*) => {
        #[cfg(not(portcullis_loom))]
        $(#[$meta])*
        $vis const fn $($rest)*
        #[cfg(portcullis_loom)]
        $(#[$meta])*
        $vis fn $($rest)*
    };
}
pub(crate) use const_unless_loom;
