//! Processes that are killed or stopped at every instruction of an operation.
//!
//! The operation runs in a fork, one instruction after another, as a debugger does it. At an
//! instruction it is killed; or it is stopped, other processes go on, and it goes on after them.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::panic::AssertUnwindSafe;
use core::ptr;
use std::panic::catch_unwind;

/// The exit status of a process that must not be traced.
const FORBIDDEN: c_int = 99;

/// What becomes of a process at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Killed,
    Stopped,
}

/// A fork of this process, which has prepared an operation, or is in the middle of it.
pub(crate) struct Stepped {
    pid: libc::pid_t,
    has_ended: bool,
}

fn wait(pid: libc::pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: the kernel writes one number.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "no such process");
    status
}

fn stop_here() {
    // SAFETY: sends a signal to this thread.
    unsafe { libc::raise(libc::SIGSTOP) };
}

impl Stepped {
    /// Starts a process that calls `prepare`, and waits until it has. Returns `None` if the system
    /// forbids to trace it.
    pub(crate) fn start<T>(
        prepare: impl FnOnce() -> T,
        run: impl FnOnce(&mut T) -> u8,
    ) -> Option<Self> {
        // SAFETY: this process has one thread that does more than wait.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no fork");
        if pid == 0 {
            let told = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: a request without arguments.
                let asked = unsafe {
                    libc::ptrace(
                        libc::PTRACE_TRACEME,
                        0,
                        ptr::null_mut::<u8>(),
                        ptr::null_mut::<u8>(),
                    )
                };
                if asked != 0 {
                    return FORBIDDEN;
                }
                let mut prepared = prepare();
                stop_here();
                let told = run(&mut prepared);
                stop_here();
                core::mem::forget(prepared);
                told.into()
            }));
            // SAFETY: ends the process. What it has in memory is a copy.
            unsafe { libc::_exit(told.unwrap_or(101)) };
        }
        let status = wait(pid);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), FORBIDDEN, "it could not prepare");
            return None;
        }
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGSTOP);
        Some(Self {
            pid,
            has_ended: false,
        })
    }

    /// The requests are of another type on some systems.
    fn resume(&self, request: i64) -> c_int {
        // SAFETY: the process is stopped, and traced by this thread. No signal is passed on.
        let resumed = unsafe {
            libc::ptrace(
                request.try_into().unwrap(),
                self.pid,
                ptr::null_mut::<u8>(),
                ptr::null_mut::<u8>(),
            )
        };
        assert_eq!(resumed, 0, "it cannot go on");
        wait(self.pid)
    }

    /// Runs so many instructions of the operation. Returns how many it had.
    pub(crate) fn step(&mut self, most: usize) -> usize {
        for step in 0..most {
            let status = self.resume(libc::PTRACE_SINGLESTEP.into());
            assert!(libc::WIFSTOPPED(status), "it has died: {status}");
            if libc::WSTOPSIG(status) != libc::SIGTRAP {
                assert_eq!(libc::WSTOPSIG(status), libc::SIGSTOP);
                self.has_ended = true;
                return step;
            }
        }
        most
    }

    /// Lets the process go on to its end. Returns what its operation said.
    pub(crate) fn finish(mut self) -> u8 {
        if !self.has_ended {
            let status = self.resume(libc::PTRACE_CONT.into());
            assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGSTOP);
        }
        let status = self.resume(libc::PTRACE_CONT.into());
        assert!(libc::WIFEXITED(status), "{status}");
        self.pid = 0;
        libc::WEXITSTATUS(status).cast_unsigned() as u8
    }

    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        if self.pid != 0 {
            // SAFETY: it is a child of this process.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            let status = wait(self.pid);
            assert!(libc::WIFSIGNALED(status), "{status}");
        }
    }
}
