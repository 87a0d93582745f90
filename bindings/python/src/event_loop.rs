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
//! A call from Python in the thread of the loop, such as a release, needs no socket: it takes the
//! tickets itself when it has woken ([`waking`]).
//!
//! Invariant: while tickets lie in the mailbox, a byte lies in the socket, or the thread of the
//! loop is about to take the tickets.
//!
//! **Order.** Two threads that grant at once may put their tickets into the mailbox in another
//! order than they have granted. A request is granted only after those that wait before it in its
//! line, so the loop completes their futures first. A task that was not granted waits again under
//! its ticket. For the same reason, a request that is granted at once steps behind the tasks of its
//! line that have not run yet.

use core::cell::RefCell;
use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::task::Waker;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;

/// The place of a task: the line in which it waits, that of a limiter or of a key, and its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    line: u64,
    number: u64,
}

/// How many tasks all loops have.
static TASKS: AtomicUsize = AtomicUsize::new(0);

/// Where wakers put tickets.
struct Mailbox {
    tickets: Mutex<Vec<Ticket>>,
    bell: UnixStream,
}

impl Mailbox {
    fn tickets(&self) -> MutexGuard<'_, Vec<Ticket>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(self: &Arc<Self>, ticket: Ticket) {
        let is_taken = OWN.try_with(|own| {
            let own = own.borrow();
            own.as_ref().is_some_and(|own| Arc::ptr_eq(own, self))
        });
        let mut tickets = self.tickets();
        tickets.push(ticket);
        if tickets.len() == 1 && !is_taken.unwrap_or(false) {
            self.ring();
        }
    }

    fn ring(&self) {
        // If the loop was closed, the write fails, and there is no task to wake.
        _ = (&self.bell).write(&[0]);
    }

    fn take(&self) -> Vec<Ticket> {
        mem::take(&mut *self.tickets())
    }
}

thread_local! {
    /// The mailbox from which this thread is about to take the tickets.
    static OWN: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
}

/// A thread that is about to take the tickets of a mailbox. At the end it was taken, or it rings.
struct Taking {
    mailbox: Arc<Mailbox>,
    before: Option<Arc<Mailbox>>,
}

impl Taking {
    fn from(mailbox: Arc<Mailbox>) -> Self {
        let before = OWN.replace(Some(Arc::clone(&mailbox)));
        Self { mailbox, before }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        OWN.set(self.before.take());
        if !self.mailbox.tickets().is_empty() {
            self.mailbox.ring();
        }
    }
}

/// Calls what may wake tasks. Those of the loop that runs in this thread are woken at once.
pub(crate) fn waking<T>(py: Python<'_>, wakes: impl FnOnce() -> T) -> T {
    let event_loop = EventLoop::has_tasks().then(|| EventLoop::known(py));
    let Some(Ok(Some(event_loop))) = event_loop else {
        return wakes();
    };
    let event_loop = event_loop.get();
    let taking = Taking::from(Arc::clone(&event_loop.mailbox));
    let done = wakes();
    let is_woken = !taking.mailbox.tickets().is_empty();
    if is_woken && let Err(error) = event_loop.complete(py) {
        error.write_unraisable(py, None);
    }
    done
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

/// The tasks that have stored a future, and have not left.
#[derive(Default)]
struct Tasks {
    /// The futures that are not done.
    futures: BTreeMap<Ticket, Py<PyAny>>,
    /// How many tasks of each line have a future that is done, and have not run since.
    woken: HashMap<u64, usize>,
}

/// What belongs to one event loop, which calls `deliver`.
#[pyclass(frozen, weakref)]
pub(crate) struct EventLoop {
    mailbox: Arc<Mailbox>,
    door: UnixStream,
    tasks: Mutex<Tasks>,
    next: AtomicU64,
}

#[pymethods]
impl EventLoop {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // What another thread changes now is not garbage.
        if let Ok(tasks) = self.tasks.try_lock() {
            for future in tasks.futures.values() {
                visit.call(future)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let futures = mem::take(&mut self.tasks().futures);
        drop(futures);
    }

    /// Reads the socket, and completes the futures whose tickets lie in the mailbox.
    fn deliver(&self, py: Python<'_>) -> PyResult<()> {
        let mut bytes = [0; 64];
        while (&self.door)
            .read(&mut bytes)
            .is_ok_and(|read| read == bytes.len())
        {}
        self.complete(py)
    }
}

impl EventLoop {
    /// Completes the futures whose tickets lie in the mailbox.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        for ticket in self.mailbox.take() {
            // A task that was cancelled has left.
            while let Some(future) = self.wake_first_until(ticket) {
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
pub(crate) type Running<'py> = (Py<EventLoop>, Bound<'py, PyAny>);

impl EventLoop {
    /// Returns that of the loop which runs in this thread. The loop owns it, because it reads the
    /// socket. It may own tasks of the loop, so the table of all has weak references alone.
    pub(crate) fn running(py: Python<'_>) -> PyResult<Running<'_>> {
        let running = py.import("asyncio")?.call_method0("get_running_loop")?;
        let all = Self::all(py)?;
        if let Some(known) = Self::of(&all, &running)? {
            return Ok((known, running));
        }
        let new = Py::new(py, Self::new()?)?;
        let door = new.get().door.as_raw_fd();
        running.call_method1("add_reader", (door, new.getattr(py, "deliver")?))?;
        let weak = PyWeakrefReference::new(new.bind(py))?;
        all.set_item(&running, weak)?;
        Ok((new, running))
    }

    /// Returns that of the loop which runs in this thread, if tasks of it have waited.
    fn known(py: Python<'_>) -> PyResult<Option<Py<Self>>> {
        let running = py.import("asyncio")?.call_method0("_get_running_loop")?;
        if running.is_none() {
            return Ok(None);
        }
        Self::of(&Self::all(py)?, &running)
    }

    /// One table for each interpreter of the process.
    fn all(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        py.import("portcullis._event_loops")?.getattr("ALL")
    }

    fn of(all: &Bound<'_, PyAny>, running: &Bound<'_, PyAny>) -> PyResult<Option<Py<Self>>> {
        let known = all.call_method1("get", (running,))?;
        if known.is_none() {
            return Ok(None);
        }
        Ok(known.call0()?.cast_into::<Self>().ok().map(Bound::unbind))
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
            tasks: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ticket of a task that comes to wait.
    pub(crate) fn ticket(&self, line: u64) -> Ticket {
        let number = self.next.fetch_add(1, Relaxed);
        Ticket { line, number }
    }

    /// Stores a future, and returns the waker that completes it. The task leaves when it runs next.
    pub(crate) fn store(&self, ticket: Ticket, future: Py<PyAny>) -> Waker {
        TASKS.fetch_add(1, Relaxed);
        self.tasks().futures.insert(ticket, future);
        let mailbox = Arc::clone(&self.mailbox);
        Waker::from(Arc::new(Bell { mailbox, ticket }))
    }

    /// Ends what `store` began.
    pub(crate) fn leave(&self, ticket: Ticket) {
        TASKS.fetch_sub(1, Relaxed);
        let mut tasks = self.tasks();
        let future = tasks.futures.remove(&ticket);
        if future.is_none()
            && let Entry::Occupied(mut woken) = tasks.woken.entry(ticket.line)
        {
            *woken.get_mut() -= 1;
            if *woken.get() == 0 {
                woken.remove();
            }
        }
        // A future may run code of Python when it is dropped.
        drop(tasks);
        drop(future);
    }

    /// Takes the first future of the line of `ticket`, up to that of `ticket`.
    fn wake_first_until(&self, ticket: Ticket) -> Option<Py<PyAny>> {
        let mut tasks = self.tasks();
        let first = tasks.futures.range(ticket.first()..=ticket).next();
        let first = first.map(|(first, _)| *first)?;
        *tasks.woken.entry(ticket.line).or_default() += 1;
        tasks.futures.remove(&first)
    }

    /// Whether tasks of this loop wait before `ticket` in its line, or were woken and have not run.
    pub(crate) fn has_tasks_before(&self, ticket: Ticket) -> bool {
        let tasks = self.tasks();
        let mut before = tasks.futures.range(ticket.first()..ticket);
        before.next().is_some() || tasks.woken.contains_key(&ticket.line)
    }

    /// Whether any loop has tasks.
    pub(crate) fn has_tasks() -> bool {
        TASKS.load(Relaxed) > 0
    }
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
