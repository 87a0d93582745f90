//! A request that waits, for permits of a limit or for the decision of a policy: as an awaitable,
//! as a context manager of either kind, or by blocking.
//!
//! ```text
//!   new --await, with or block--> granted at once: done
//!                             --> waiting --granted or rejected--> done
//!                                    | cancelled, or the thread was interrupted
//!                                    v
//!                                 done: the place in the queue, or the permits, went to the next
//! ```
//!
//! Invariant: no code of Python runs while the state is locked.

use core::ffi::CStr;
use core::mem;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread::{self, Thread};

use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::decision::Decision;
use crate::errors;
use crate::event_loop::{EventLoop, Running, Ticket, waking};
use crate::forked::OfProcess;
use crate::lease::{Lease, warn};
use crate::outcome::{Outcome, Wait};

/// How often a thread that is blocked looks for signals, such as that of Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// A request for permits, which `acquire()` returns. It does nothing until it is awaited, entered
/// or blocked on, which can be done once.
#[pyclass(frozen, module = "portcullis")]
pub(crate) struct Acquire {
    state: Mutex<State>,
    /// The line in which it waits: that of a limiter, or of a key.
    line: u64,
    asked: Asked,
}

/// An outcome, as Python has it.
#[derive(IntoPyObject)]
pub(crate) enum Given {
    Lease(Py<Lease>),
    Decision(Py<Decision>),
}

/// What is asked.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    /// `is_held`: the permits return by release.
    Permits {
        is_held: bool,
    },
    Decision,
}

impl Asked {
    const fn never_done(self) -> &'static CStr {
        match self {
            Self::Permits { .. } => {
                c"acquire() was never awaited, entered or blocked on: it has taken nothing"
            }
            Self::Decision => c"judge() was never awaited: nothing was decided",
        }
    }

    const fn would_block(self) -> &'static str {
        match self {
            Self::Permits { .. } => "this would block the event loop: use 'async with' or 'await'",
            Self::Decision => "this would block the event loop: use 'await policy.judge(...)'",
        }
    }
}

enum State {
    New(OfProcess<Wait>),
    Waiting(OfProcess<Wait>),
    /// What a `with` holds.
    Entered(Option<Py<Lease>>),
    Done,
}

/// Wakes a thread.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Acquire {
    pub(crate) fn new(wait: Wait, line: u64, asked: Asked) -> Self {
        Self {
            state: Mutex::new(State::New(OfProcess::new(wait))),
            line,
            asked,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the caller the one that waits. There is one for a request.
    fn begin(&self) -> PyResult<()> {
        let mut state = self.state();
        match mem::replace(&mut *state, State::Done) {
            State::New(wait) => {
                *state = State::Waiting(wait);
                Ok(())
            }
            other => {
                *state = other;
                Err(used())
            }
        }
    }

    /// Called by the one that waits.
    fn poll(&self, waker: &Waker) -> PyResult<Poll<Outcome>> {
        let mut state = self.state();
        let State::Waiting(wait) = &mut *state else {
            return Err(used());
        };
        let wait = wait.get_mut().ok_or_else(used)?;
        let polled = wait.as_mut().poll(&mut Context::from_waker(waker));
        if polled.is_ready() {
            *state = State::Done;
        }
        Ok(polled)
    }

    /// Gives up the place in the queue, or the permits.
    fn cancel(&self) {
        let before = mem::replace(&mut *self.state(), State::Done);
        drop(before);
    }

    fn finish(&self, py: Python<'_>, done: Outcome) -> PyResult<Given> {
        let is_held = matches!(self.asked, Asked::Permits { is_held: true });
        match done {
            Outcome::Permits(Ok(held)) => Ok(Given::Lease(Py::new(py, Lease::new(held, is_held))?)),
            Outcome::Permits(Err(rejected)) => Err(errors::of_rejection(py, rejected)),
            Outcome::Judged(judged) => Ok(Given::Decision(Py::new(py, Decision::new(*judged))?)),
        }
    }

    /// Blocks this thread, without the interpreter, until the request is granted or rejected. That
    /// of a policy may be made in an event loop, if it need not wait.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<Given> {
        let waker = Waker::from(Arc::new(Sleeper(thread::current())));
        self.begin()?;
        loop {
            if let Poll::Ready(done) = self.poll(&waker)? {
                return self.finish(py, done);
            }
            self.check_not_in_loop(py).inspect_err(|_| self.cancel())?;
            py.detach(|| thread::park_timeout(LOOK));
            if let Err(interrupted) = py.check_signals() {
                self.cancel();
                return Err(interrupted);
            }
        }
    }

    fn enter(&self, py: Python<'_>, given: &Given) {
        if let Given::Lease(lease) = given {
            *self.state() = State::Entered(Some(lease.clone_ref(py)));
        }
    }

    /// Releases what was entered.
    fn leave(&self) {
        let before = mem::replace(&mut *self.state(), State::Done);
        if let State::Entered(Some(lease)) = before {
            lease.get().end();
        }
    }

    /// Returns an error if an event loop runs in this thread: it would be blocked.
    fn check_not_in_loop(&self, py: Python<'_>) -> PyResult<()> {
        let modules = py.import("sys")?.getattr("modules")?;
        let Ok(asyncio) = modules.get_item("asyncio") else {
            return Ok(());
        };
        if asyncio.call_method0("_get_running_loop")?.is_none() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(self.asked.would_block()))
    }
}

fn used() -> PyErr {
    PyRuntimeError::new_err(
        "this acquire() is awaited, entered or blocked on already, or was: call acquire() again",
    )
}

#[pymethods]
impl Acquire {
    /// Blocks this thread until the permits are granted, and returns the lease.
    fn block(&self, py: Python<'_>) -> PyResult<Given> {
        if let Err(error) = self.check_not_in_loop(py) {
            // It was used, in a wrong way: no second warning.
            if self.begin().is_ok() {
                self.cancel();
            }
            return Err(error);
        }
        self.wait(py)
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Given> {
        let given = self.block(py)?;
        self.enter(py, &given);
        Ok(given)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) {
        waking(exception.py(), || self.leave());
    }

    fn __await__(slf: Py<Self>) -> Awaiting {
        Awaiting::new(slf, false)
    }

    fn __aenter__(slf: Py<Self>) -> Awaiting {
        Awaiting::new(slf, true)
    }

    #[pyo3(signature = (*exception))]
    fn __aexit__(&self, exception: &Bound<'_, PyTuple>) -> Finished {
        waking(exception.py(), || self.leave());
        Finished
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let is_new = matches!(*self.state(), State::New(_));
        self.leave();
        if is_new {
            warn::<PyRuntimeWarning>(self.asked.never_done());
        }
    }
}

/// A request that is awaited: what the event loop steps.
#[pyclass(frozen)]
pub(crate) struct Awaiting {
    acquire: Py<Acquire>,
    /// Whether an `async with` is to hold the lease.
    enters: bool,
    step: Mutex<Step>,
}

/// Where an awaited request is.
enum Step {
    First,
    /// It waits, or was woken, under its ticket.
    Waits(Py<EventLoop>, Ticket),
    /// It was granted at once, and lets tasks of its line run first.
    Granted(Py<EventLoop>, Ticket, OfProcess<Outcome>),
    Done,
}

impl Awaiting {
    pub(crate) fn new(acquire: Py<Acquire>, enters: bool) -> Self {
        Self {
            acquire,
            enters,
            step: Mutex::new(Step::First),
        }
    }

    /// Takes the last step, and replaces it.
    fn replace(&self, step: Step) -> Step {
        let mut last = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *last, step)
    }

    /// Takes the future back from the event loop.
    fn leave(&self) -> Step {
        let last = self.replace(Step::Done);
        if let Step::Waits(event_loop, ticket) | Step::Granted(event_loop, ticket, _) = &last {
            event_loop.get().leave(*ticket);
        }
        last
    }

    /// Cancels the request, if this is what waits for it.
    fn end(&self) {
        match self.leave() {
            Step::Waits(..) | Step::Granted(..) => self.acquire.get().cancel(),
            Step::First | Step::Done => {}
        }
    }

    fn done(&self, py: Python<'_>, done: Outcome) -> PyErr {
        self.leave();
        let acquire = self.acquire.get();
        match acquire.finish(py, done) {
            Ok(given) => {
                if self.enters {
                    acquire.enter(py, &given);
                }
                PyStopIteration::new_err((given,))
            }
            Err(error) => error,
        }
    }

    /// Waits in the event loop: returns the future for the task to wait for. A request that is
    /// `granted` lets the tasks before it run first.
    fn wait(
        &self,
        py: Python<'_>,
        (event_loop, running): Running<'_>,
        ticket: Ticket,
        granted: Option<Outcome>,
    ) -> PyResult<Py<PyAny>> {
        let future = running.call_method0("create_future")?;
        // What `yield from` sets for a future: the task waits for it.
        future.setattr("_asyncio_future_blocking", true)?;
        let waker = event_loop.get().store(ticket, future.clone().unbind());
        let polled = if let Some(done) = granted {
            Poll::Ready(done)
        } else {
            let polled = self.acquire.get().poll(&waker);
            polled.inspect_err(|_| event_loop.get().leave(ticket))?
        };
        let is_first = !event_loop.get().has_tasks_before(ticket);
        let step = match polled {
            Poll::Pending => Step::Waits(event_loop, ticket),
            Poll::Ready(done) if is_first => {
                event_loop.get().leave(ticket);
                return Err(self.done(py, done));
            }
            Poll::Ready(done) => {
                waker.wake();
                Step::Granted(event_loop, ticket, OfProcess::new(done))
            }
        };
        self.replace(step);
        Ok(future.unbind())
    }
}

#[pymethods]
impl Awaiting {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Takes a step: returns a future of the event loop to wait for, or ends with the lease.
    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let acquire = self.acquire.get();
        match self.leave() {
            Step::Granted(_, _, mut done) => {
                if let Some(done) = done.take() {
                    return Err(self.done(py, done));
                }
            }
            Step::Waits(_, ticket) => {
                // The tasks before it have run.
                if let Poll::Ready(done) = acquire.poll(Waker::noop())? {
                    return Err(self.done(py, done));
                }
                return self.wait(py, EventLoop::running(py)?, ticket, None);
            }
            Step::First => acquire.begin()?,
            Step::Done => return Err(used()),
        }
        // Most requests are granted at once, and need nothing of the event loop.
        let granted = match acquire.poll(Waker::noop())? {
            Poll::Ready(done) if !EventLoop::has_tasks() => return Err(self.done(py, done)),
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        };
        let running = EventLoop::running(py).inspect_err(|_| acquire.cancel())?;
        let ticket = running.0.get().ticket(acquire.line);
        self.wait(py, running, ticket, granted)
    }

    fn send(&self, py: Python<'_>, _value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.__next__(py)
    }

    /// Cancels the request. Called by the event loop when the task is cancelled.
    #[pyo3(signature = (kind, value=None, _traceback=None))]
    fn throw(
        &self,
        kind: &Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        waking(kind.py(), || self.end());
        let error = match value {
            Some(value) if !value.is_none() => value,
            _ if kind.is_callable() => kind.call0()?,
            _ => kind.clone(),
        };
        Err(PyErr::from_value(error))
    }

    /// Cancels the request, if this is what waits for it.
    fn close(&self, py: Python<'_>) {
        waking(py, || self.end());
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.acquire)?;
        if let Ok(step) = self.step.try_lock()
            && let Step::Waits(event_loop, _) | Step::Granted(event_loop, _, _) = &*step
        {
            visit.call(event_loop)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.end();
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.end();
    }
}

/// An awaitable that is done.
#[pyclass(frozen)]
pub(crate) struct Finished;

#[pymethods]
impl Finished {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[expect(clippy::unused_self, reason = "the interpreter passes it")]
    fn __next__(&self) -> Option<()> {
        None
    }
}
