//! A simulated time, and an executor by hand.

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::task::Wake;

use portcullis_async::{ReentrantTimer, Timer};
use portcullis_core::{Clock, ManualClock, Timestamp};

/// A time that is advanced by hand, and the alarms of all timers of it.
#[derive(Clone, Default)]
pub(crate) struct Time(Arc<(ManualClock, Mutex<Vec<Alarm>>)>);

type Alarm = Arc<Mutex<Option<(Timestamp, Waker)>>>;

/// One timer of the time.
pub(crate) struct Simulated {
    time: Time,
    alarm: Alarm,
}

impl Time {
    pub(crate) fn now(&self) -> Timestamp {
        self.0.0.now()
    }

    /// A new timer of this time.
    pub(crate) fn timer(&self) -> Simulated {
        let alarm = Alarm::default();
        self.0.1.lock().unwrap().push(Arc::clone(&alarm));
        Simulated {
            time: self.clone(),
            alarm,
        }
    }

    /// When the next alarm is due.
    #[allow(dead_code, reason = "the tests of the middleware use it")]
    pub(crate) fn next_alarm(&self) -> Option<Timestamp> {
        let alarms = self.0.1.lock().unwrap();
        let due = |alarm: &Alarm| Some(alarm.lock().unwrap().as_ref()?.0);
        alarms.iter().filter_map(due).min()
    }

    /// Advances the time and wakes whose alarm is due.
    pub(crate) fn advance(&self, by: Duration) {
        let now = self.0.0.advance(by);
        let alarms: Vec<Alarm> = self.0.1.lock().unwrap().clone();
        for alarm in alarms {
            let due = alarm.lock().unwrap().take_if(|(at, _)| *at <= now);
            if let Some((_, waker)) = due {
                waker.wake();
            }
        }
    }
}

impl Clock for Simulated {
    fn now(&self) -> Timestamp {
        self.time.now()
    }
}

impl Timer for Simulated {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        let mut alarm = self.alarm.lock().unwrap();
        // Read under the lock: otherwise another thread may advance the time before the alarm is
        // set, and never see it.
        if at <= self.now() {
            return Poll::Ready(());
        }
        *alarm = Some((at, waker.clone()));
        Poll::Pending
    }
}

impl ReentrantTimer for Simulated {}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// A future that is polled when it was woken, and what it returned.
pub(crate) struct Task<'t, T> {
    future: Option<Pin<Box<dyn Future<Output = T> + 't>>>,
    woken: Arc<Flag>,
    pub(crate) output: Option<T>,
}

impl<'t, T> Task<'t, T> {
    pub(crate) fn new(future: impl Future<Output = T> + 't) -> Self {
        Self {
            future: Some(Box::pin(future)),
            woken: Arc::new(Flag(AtomicBool::new(true))),
            output: None,
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.future.is_some()
    }

    /// Drops the future.
    pub(crate) fn cancel(&mut self) {
        self.future = None;
    }

    /// Polls the future if it was woken. Returns whether it was.
    pub(crate) fn run(&mut self) -> bool {
        let Some(future) = &mut self.future else {
            return false;
        };
        if !self.woken.0.swap(false, SeqCst) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.output = Some(output);
            self.future = None;
        }
        true
    }
}

/// Polls tasks until none is woken.
pub(crate) fn run<T>(tasks: &mut [Task<'_, T>]) {
    while tasks.iter_mut().fold(false, |any, task| task.run() | any) {}
}
