//! Panics of wakers, clocks, limiters and timers. With `std` they are caught where a second one
//! would end the process, or where work would be left undone.

#[cfg(feature = "std")]
mod caught {
    use core::any::Any;
    use core::mem;
    use core::panic::AssertUnwindSafe;
    use std::boxed::Box;
    use std::panic::{catch_unwind, resume_unwind};
    use std::thread;

    type Payload = Box<dyn Any + Send>;

    /// The first panic of several, until it can go on.
    pub(crate) struct Panic(Option<Payload>);

    impl Panic {
        pub(crate) const NONE: Self = Self(None);

        /// Runs `work`, and keeps its panic. `None` if it has panicked.
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

        /// Lets the panic go on that was kept, unless the thread unwinds already.
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

    /// Whether the thread unwinds. (Loom's threads are one to the system.)
    #[inline]
    fn is_unwinding() -> bool {
        !cfg!(loom) && thread::panicking()
    }

    /// Drops a payload, which may panic in turn.
    #[cold]
    fn bury(payload: Payload) {
        if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(worse);
        }
    }

    /// Runs `work`; `None` if it has panicked.
    pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
        let mut panic = Panic::NONE;
        panic.keep(work)
    }

    /// Runs `work`, whose panic goes on, unless the thread unwinds already.
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
    reason = "as where panics are caught"
)]
mod uncaught {
    /// Nothing is caught: a second panic, while the first one unwinds, ends the program.
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
