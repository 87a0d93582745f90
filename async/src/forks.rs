//! How many forks lie between this process and its ancestor that was the first to count them.
//!
//! A forked process has the memory of its parent, and of its threads only the one that called
//! `fork`. So what the memory says of other threads and of alarms is wrong in the child: the thread
//! of the timers does not run, and no alarm is set. Code that relies on either compares the number
//! of forks with the number at which it was told so: if they differ, the parent was told.
//!
//! A child counts on from its parent, so each process of a lineage has a number of its own. A
//! handler of the C library counts. It does not see a process that a program makes by a system call
//! of its own.
#![allow(unsafe_code)]

#[cfg(all(feature = "std", not(portcullis_loom)))]
pub(crate) use self::counted::{count, watch};

#[cfg(all(feature = "std", not(portcullis_loom)))]
mod counted {
    #[cfg(all(unix, not(miri)))]
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::Relaxed;

    /// Changes only in a child, before any other code of the child runs.
    static FORKS: AtomicU32 = AtomicU32::new(0);

    /// Returns the number of forks.
    #[inline]
    pub(crate) fn count() -> u32 {
        FORKS.load(Relaxed)
    }

    /// Has forks counted from now on. To be called before anything relies on a thread.
    #[cfg(all(unix, not(miri)))]
    pub(crate) fn watch() {
        static IS_WATCHED: AtomicBool = AtomicBool::new(false);

        extern "C" fn in_child() {
            FORKS.fetch_add(1, Relaxed);
        }

        if IS_WATCHED.load(Relaxed) {
            return;
        }
        // Two threads may both register the handler. Then a fork counts as two, which does no harm.
        // SAFETY: the handler exists for as long as the process. It only changes an atomic, which
        // is allowed in the child of a process with threads.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // Fails only if there is no memory. Then the next call tries again.
        IS_WATCHED.store(failed == 0, Relaxed);
    }

    /// Has forks counted from now on: there are none.
    #[cfg(not(all(unix, not(miri))))]
    pub(crate) const fn watch() {}
}

/// The process in which something was noted. Without `std` it takes no memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    #[cfg(all(feature = "std", not(portcullis_loom)))]
    forks: u32,
}

impl Noted {
    pub(crate) const NEW: Self = Self {
        #[cfg(all(feature = "std", not(portcullis_loom)))]
        forks: 0,
    };

    /// Notes this process. Returns whether it is another one than before: a child of it.
    #[inline]
    #[cfg_attr(
        not(all(feature = "std", not(portcullis_loom))),
        allow(clippy::unused_self, reason = "no process is noted")
    )]
    pub(crate) fn is_forked(&mut self) -> bool {
        #[cfg(all(feature = "std", not(portcullis_loom)))]
        {
            let forks = count();
            core::mem::replace(&mut self.forks, forks) != forks
        }
        #[cfg(not(all(feature = "std", not(portcullis_loom))))]
        false
    }
}
