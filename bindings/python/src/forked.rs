//! What a forked process must not use of its parent, and makes again.
//!
//! A child of `fork` has a copy of its parent's memory, and of its threads only one. So in the
//! child the wait list of a queue may have requests of tasks that never run there, and its lock may
//! be held by a thread that does not exist. The child therefore makes a queue of its own at the
//! first use. The parent's is not touched again in the child, and not freed: its requests may point
//! to it.
//!
//! For the same reason, a request or a lease of the parent does nothing in the child: it stays with
//! the parent, and its copy is not freed ([`OfProcess`]).
//!
//! State: a list with one value for each process of the lineage that has used it.
//!
//! ```text
//!   made in process 0 --fork, first use--> made in process 1 --fork, first use--> ...
//! ```
//!
//! Invariant: a process uses the value that it has made. It is found in as many steps as there were
//! forks with a use, so at once in a process that was not forked, and in one step in a worker.

use core::mem;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::OnceLock;

use pyo3::prelude::*;

/// How many forks lie between this process and the one that imported the module.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called by the interpreter in a child, before any other code of it runs.
#[pyfunction]
fn after_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// Has forks counted from now on.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let arguments = pyo3::types::PyDict::new(py);
    arguments.set_item("after_in_child", wrap_pyfunction!(after_fork, module)?)?;
    let os = py.import("os")?;
    // Some systems cannot fork.
    if os.hasattr("register_at_fork")? {
        os.call_method("register_at_fork", (), Some(&arguments))?;
    }
    Ok(())
}

/// A value that belongs to the process which made it. A process that was forked since has a copy,
/// which is not touched and not freed.
pub(crate) struct OfProcess<T> {
    forks: u32,
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            forks: FORKS.load(Relaxed),
            value: Some(value),
        }
    }

    /// Whether this process has made the value.
    #[inline]
    fn is_own(&self) -> bool {
        self.forks == FORKS.load(Relaxed)
    }

    /// Returns the value, if this process has made it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.is_own())
    }

    /// Returns the value, if this process has made it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        let is_own = self.is_own();
        self.value.as_mut().filter(|_| is_own)
    }

    /// Takes the value out, if this process has made it.
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.is_own() {
            self.value.take()
        } else {
            None
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_own() {
            mem::forget(self.value.take());
        }
    }
}

/// A value that each process makes at its first use.
pub(crate) struct PerProcess<T> {
    first: Next<T>,
}

struct Made<T> {
    value: OfProcess<T>,
    /// That of a process which was forked from this one, or from one of its children.
    next: Next<T>,
}

type Next<T> = OnceLock<Box<Made<T>>>;

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self {
            first: OnceLock::new(),
        }
    }

    /// Returns the value of this process. `make` makes it at the first use; if it fails, the next
    /// use tries again.
    #[inline]
    pub(crate) fn get(&self, make: impl Fn() -> PyResult<T>) -> PyResult<&T> {
        match self.first.get().and_then(|made| made.value.get()) {
            Some(value) => Ok(value),
            None => self.find(make),
        }
    }

    #[cold]
    fn find(&self, make: impl Fn() -> PyResult<T>) -> PyResult<&T> {
        let mut place = &self.first;
        loop {
            let made = if let Some(made) = place.get() {
                made
            } else {
                let value = OfProcess::new(make()?);
                let next = OnceLock::new();
                // Of several threads, the first one's counts.
                place.get_or_init(|| Box::new(Made { value, next }))
            };
            if let Some(value) = made.value.get() {
                return Ok(value);
            }
            place = &made.next;
        }
    }
}
