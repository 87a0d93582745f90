//! Processes that fork, that change their user, and that have namespaces of their own.
#![allow(dead_code, reason = "each test uses a part")]

use core::ffi::c_int;
use core::panic::AssertUnwindSafe;
use std::io;
use std::panic::catch_unwind;

/// A process that this process has forked.
pub(crate) struct Forked(c_int);

/// Forks a process that does `work` and ends: without an error, if `work` does not panic.
pub(crate) fn fork<W: FnOnce()>(work: W) -> Forked {
    // SAFETY: the other threads of this process wait for its test, and hold no lock that `work`
    // needs.
    match unsafe { libc::fork() } {
        0 => end_after(work),
        -1 => panic!("{}", io::Error::last_os_error()),
        process => Forked(process),
    }
}

/// As [`fork`], by the system call: no handler of the program notices it.
pub(crate) fn fork_without_handlers<W: FnOnce()>(work: W) -> Forked {
    // SAFETY: as above. The child has a copy of the memory, as after a fork.
    let process = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    match process {
        0 => end_after(work),
        -1 => panic!("{}", io::Error::last_os_error()),
        process => Forked(process as c_int),
    }
}

fn end_after(work: impl FnOnce()) -> ! {
    let is_done = catch_unwind(AssertUnwindSafe(work)).is_ok();
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(c_int::from(!is_done)) }
}

impl Forked {
    /// Waits for the end of the process, which must not have panicked.
    pub(crate) fn finish(self) {
        let mut status = 0;
        // SAFETY: the process is a child, for which nothing else waits. Its status is written.
        let process = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!((process, status), (self.0, 0), "of a forked process");
    }
}

/// Gives the processes that this one forks namespaces of their own: `CLONE_NEWPID`,
/// `CLONE_NEWTIME`. Returns `false`, and says so, if the machine does not allow it; in CI it must.
pub(crate) fn unshare(namespaces: c_int) -> bool {
    // SAFETY: changes nothing in the memory of this process.
    if unsafe { libc::unshare(namespaces) } == 0 {
        return true;
    }
    let error = io::Error::last_os_error();
    assert!(std::env::var_os("CI").is_none(), "no namespaces: {error}");
    eprintln!("skipped: this machine does not allow namespaces: {error}");
    false
}

/// Lets the monotonic clock of the processes that this one forks be ahead.
pub(crate) fn set_clock_ahead(seconds: u64) {
    std::fs::write(
        "/proc/self/timens_offsets",
        format!("monotonic {seconds} 0\n"),
    )
    .unwrap();
}

/// Makes this process one of a user without privileges. Returns `false`, and says so, if it has no
/// privileges.
pub(crate) fn drop_privileges() -> bool {
    // SAFETY: changes nothing in the memory of this process.
    let (group, user) = unsafe { (libc::setgid(65_534), libc::setuid(65_534)) };
    if (group, user) != (0, 0) {
        assert!(std::env::var_os("CI").is_none(), "not run by root");
        eprintln!("skipped: only root can become another user");
        return false;
    }
    true
}
