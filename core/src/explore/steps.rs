//! A process that is run one access at a time, and may be left at any of them.
//!
//! A process is a function whose result depends only on what its accesses return. So it is not
//! suspended: it runs again from its beginning, and the accesses that it has made return what they
//! did. The next one is made. Before the one after that, the process is unwound. So its state is
//! the list of what its accesses have returned, which can be copied and compared.

use core::any::Any;
use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use core::ptr;
use std::boxed::Box;
use std::panic::{catch_unwind, resume_unwind};
use std::thread_local;
use std::vec::Vec;

/// What an access returned: a value, and whether an exchange was made.
pub type Made = (u64, bool);

/// What the accesses of a process have returned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Steps(Vec<Made>);

/// A process under way on this thread.
struct Process<'a> {
    made: Vec<Made>,
    /// How many of them the process has been told again.
    told: usize,
    /// Whether the next access is made.
    goes_on: bool,
    /// Called before the process is unwound.
    leaves: &'a mut dyn FnMut(),
    is_left: bool,
}

/// Thrown to unwind a process.
struct Left;

thread_local! {
    static PROCESS: Cell<*mut Process<'static>> = const { Cell::new(ptr::null_mut()) };
}

impl Steps {
    /// Makes the next access of the process, which must be the same function at each call. Then
    /// calls `leaves`, and unwinds the process: what its destructors do does not count. Returns the
    /// result if the process is over instead.
    pub fn step<T>(&mut self, leaves: &mut dyn FnMut(), process: impl FnOnce() -> T) -> Option<T> {
        let mut run = Process {
            made: core::mem::take(&mut self.0),
            told: 0,
            goes_on: true,
            leaves,
            is_left: false,
        };
        let before = PROCESS.replace(ptr::from_mut(&mut run).cast());
        let ended = catch_unwind(AssertUnwindSafe(process));
        PROCESS.set(before);
        self.0 = run.made;
        match ended {
            Ok(result) => Some(result),
            Err(thrown) if is_left(&*thrown) => None,
            Err(thrown) => resume_unwind(thrown),
        }
    }
}

fn is_left(thrown: &(dyn Any + Send)) -> bool {
    thrown.is::<Left>()
}

/// Makes an access of the process on this thread. Returns `None` if there is none.
#[inline]
pub(super) fn made(access: impl FnOnce() -> Made) -> Result<Made, impl FnOnce() -> Made> {
    let process = PROCESS.get();
    if process.is_null() {
        return Err(access);
    }
    // SAFETY: `step` sets the pointer while its process runs, which is on this thread, and no
    // reference to it lasts from one access to the next: `leaves` makes no access of a process.
    let process = unsafe { &mut *process };
    if process.is_left {
        return Ok(access());
    }
    if let Some(&made) = process.made.get(process.told) {
        process.told += 1;
        return Ok(made);
    }
    if process.goes_on {
        process.goes_on = false;
        let made = access();
        process.made.push(made);
        process.told += 1;
        return Ok(made);
    }
    process.is_left = true;
    (process.leaves)();
    resume_unwind(Box::new(Left));
}
