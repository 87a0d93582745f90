//! Panics of wakers, clocks, limiters and timers. With `std`, this code catches a panic where a
//! second panic would abort the process, or where the panic would leave work undone.

#[cfg(feature = "std")]
mod caught {
    use core::any::Any;
    use core::mem;
    use core::panic::AssertUnwindSafe;
    use std::boxed::Box;
    use std::panic::{catch_unwind, resume_unwind};
    use std::thread;

    type Payload = Box<dyn Any + Send>;

    /// Keeps the first of several panics until it can resume.
    pub(crate) struct Panic(Option<Payload>);

    impl Panic {
        pub(crate) const NONE: Self = Self(None);

        /// Runs `work` and keeps its panic. Returns `None` if `work` panicked.
        pub(crate) fn keep<T>(&mut self, work: impl FnOnce() -> T) -> Option<T> {
            match catch_unwind(AssertUnwindSafe(work)) {
                Ok(outcome) => Some(outcome),
                Err(payload) => {
                    if self.0.is_some() {
                        bury(payload);
                    } else {
                        self.0 = Some(payload);
                    }
                    None
                }
            }
        }

        /// Resumes the panic that was kept, unless the thread is already unwinding.
        pub(crate) fn resume(&mut self) {
            if let Some(payload) = self.0.take() {
                if is_unwinding() {
                    bury(payload);
                } else {
                    resume_unwind(payload);
                }
            }
        }
    }

    impl Drop for Panic {
        #[inline]
        fn drop(&mut self) {
            if let Some(payload) = self.0.take() {
                bury(payload);
            }
        }
    }

    /// Returns whether the thread is unwinding. Always `false` under loom, which runs all of a
    /// model's threads on one system thread.
    #[inline]
    fn is_unwinding() -> bool {
        !cfg!(portcullis_loom) && thread::panicking()
    }

    /// Drops a payload. That drop may panic too; its payload is leaked.
    #[cold]
    fn bury(payload: Payload) {
        if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(worse);
        }
    }

    /// Runs `work` and drops its panic. Returns `None` if `work` panicked.
    pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
        let mut panic = Panic::NONE;
        panic.keep(work)
    }

    /// Runs `work`. Its panic propagates, unless the thread is already unwinding.
    #[inline]
    pub(crate) fn unless_unwinding(work: impl FnOnce()) {
        if is_unwinding() {
            quietly(work);
        } else {
            work();
        }
    }
}
#[cfg(feature = "std")]
pub(crate) use caught::{Panic, quietly, unless_unwinding};

#[cfg(not(feature = "std"))]
#[expect(
    clippy::unused_self,
    clippy::unnecessary_wraps,
    reason = "the same signatures as where panics are caught"
)]
mod uncaught {
    /// Without `std` no panic is caught: a second panic during unwinding aborts the program.
    pub(crate) struct Panic;

    impl Panic {
        pub(crate) const NONE: Self = Self;

        pub(crate) fn keep<T>(&mut self, work: impl FnOnce() -> T) -> Option<T> {
            Some(work())
        }

        pub(crate) fn resume(&mut self) {}
    }

    pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
        Some(work())
    }

    pub(crate) fn unless_unwinding(work: impl FnOnce()) {
        work();
    }
}
#[cfg(not(feature = "std"))]
pub(crate) use uncaught::{Panic, quietly, unless_unwinding};
