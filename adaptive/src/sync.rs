//! Re-exports atomics and cells for the whole crate, so that it also runs under loom.

#[cfg(not(portcullis_loom))]
pub(crate) use core::sync::atomic;
#[cfg(portcullis_loom)]
pub(crate) use loom::sync::atomic;

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
