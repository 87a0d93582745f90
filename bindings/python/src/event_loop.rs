//! Wake-ups of tasks in an event loop of asyncio, from any thread, without the interpreter.
//!
//! A waker puts a ticket into the mailbox of its loop, and writes a byte to a socket that the loop
//! reads. It takes no lock of the interpreter and runs no code of Python, so a thread that wakes
//! never waits for one that runs Python, and may outlive the interpreter.
//!
//! ```text
//!   task waits: a future of the loop is stored under a ticket
//!       --wake, on any thread--> the ticket lies in the mailbox; a byte lies in the socket
//!       --the loop reads------> the future is done; the loop runs the task
//! ```
//!
//! Invariant: while tickets lie in the mailbox, a byte lies in the socket, or the loop is about to
//! take the tickets.
//!
//! **Order.** Two threads that grant at once may put their tickets into the mailbox in another
//! order than they have granted. A request is granted only after those that wait before it in its
//! line, so the loop completes their futures first. A task that was not granted waits again under
//! its ticket. For the same reason, a request that is granted at once steps behind the tasks of its
//! line that have not run yet.

use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::task::Waker;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The place of a task: the line in which it waits, that of a limiter or of a key, and its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    line: u64,
    number: u64,
}

/// How many tasks wait in all loops.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Where wakers put tickets.
struct Mailbox {
    tickets: Mutex<Vec<Ticket>>,
    bell: UnixStream,
}

impl Mailbox {
    fn post(&self, ticket: Ticket) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.push(ticket);
        if tickets.len() == 1 {
            // Fails if the loop is gone. Then nobody waits.
            _ = (&self.bell).write(&[0]);
        }
    }

    fn take(&self) -> Vec<Ticket> {
        mem::take(&mut *self.tickets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Wakes one task once.
struct Bell {
    mailbox: Arc<Mailbox>,
    ticket: Ticket,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.mailbox.post(self.ticket);
    }
}

/// What belongs to one event loop, which calls `deliver`.
#[pyclass(frozen)]
pub(crate) struct EventLoop {
    mailbox: Arc<Mailbox>,
    door: UnixStream,
    /// The futures of tasks that wait, by their tickets.
    futures: Mutex<BTreeMap<Ticket, Py<PyAny>>>,
    next: AtomicU64,
}

#[pymethods]
impl EventLoop {
    /// Completes the futures whose tickets lie in the mailbox.
    fn deliver(&self, py: Python<'_>) -> PyResult<()> {
        let mut bytes = [0; 64];
        while (&self.door)
            .read(&mut bytes)
            .is_ok_and(|read| read == bytes.len())
        {}
        for ticket in self.mailbox.take() {
            // A task that was cancelled has taken its future back.
            while let Some(future) = self.first_until(ticket) {
                let future = future.bind(py);
                if !future.call_method0("done")?.is_truthy()? {
                    future.call_method1("set_result", (py.None(),))?;
                }
            }
        }
        Ok(())
    }
}

/// What belongs to the loop that runs in a thread, and the loop.
type Running<'py> = (Py<EventLoop>, Bound<'py, PyAny>);

impl EventLoop {
    /// Returns that of the loop which runs in this thread.
    pub(crate) fn running(py: Python<'_>) -> PyResult<Running<'_>> {
        static ALL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let running = py.import("asyncio")?.call_method0("get_running_loop")?;
        let all = ALL.get_or_try_init(py, || {
            let dictionary = py.import("weakref")?.call_method0("WeakKeyDictionary")?;
            Ok::<_, PyErr>(dictionary.unbind())
        })?;
        let all = all.bind(py);
        let known = all.call_method1("get", (&running,))?;
        if let Ok(known) = known.cast::<Self>() {
            return Ok((known.clone().unbind(), running));
        }
        let new = Py::new(py, Self::new()?)?;
        let door = new.get().door.as_raw_fd();
        running.call_method1("add_reader", (door, new.getattr(py, "deliver")?))?;
        all.set_item(&running, &new)?;
        Ok((new, running))
    }

    fn new() -> PyResult<Self> {
        let (bell, door) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        door.set_nonblocking(true)?;
        Ok(Self {
            mailbox: Arc::new(Mailbox {
                tickets: Mutex::default(),
                bell,
            }),
            door,
            futures: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    fn futures(&self) -> MutexGuard<'_, BTreeMap<Ticket, Py<PyAny>>> {
        self.futures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ticket of a task that comes to wait.
    pub(crate) fn ticket(&self, line: u64) -> Ticket {
        let number = self.next.fetch_add(1, Relaxed);
        Ticket { line, number }
    }

    /// Stores a future, and returns the waker that completes it.
    pub(crate) fn store(&self, ticket: Ticket, future: Py<PyAny>) -> Waker {
        let before = self.futures().insert(ticket, future);
        if before.is_none() {
            WAITING.fetch_add(1, Relaxed);
        }
        let mailbox = Arc::clone(&self.mailbox);
        Waker::from(Arc::new(Bell { mailbox, ticket }))
    }

    /// Takes the future of a ticket back.
    pub(crate) fn take(&self, ticket: Ticket) -> Option<Py<PyAny>> {
        counted(self.futures().remove(&ticket))
    }

    /// Takes the first future of the line of `ticket`, up to that of `ticket`.
    fn first_until(&self, ticket: Ticket) -> Option<Py<PyAny>> {
        let mut futures = self.futures();
        let first = futures.range(ticket.first()..=ticket).next();
        let first = first.map(|(first, _)| *first)?;
        counted(futures.remove(&first))
    }

    /// Whether tasks of this loop are in the line.
    fn has_tasks_in(&self, line: u64) -> bool {
        let last = Ticket {
            line,
            number: u64::MAX,
        };
        self.futures().range(last.first()..=last).next().is_some()
    }

    /// Returns the running loop if tasks of it wait in the line, or were granted and have not run.
    pub(crate) fn with_tasks_in(py: Python<'_>, line: u64) -> PyResult<Option<Running<'_>>> {
        if WAITING.load(Relaxed) == 0 {
            return Ok(None);
        }
        let running = Self::running(py)?;
        Ok(running.0.get().has_tasks_in(line).then_some(running))
    }
}

/// Counts a future that was taken.
fn counted(future: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
    if future.is_some() {
        WAITING.fetch_sub(1, Relaxed);
    }
    future
}

impl Ticket {
    /// The first ticket of its line.
    const fn first(self) -> Self {
        Self {
            line: self.line,
            number: 0,
        }
    }
}
