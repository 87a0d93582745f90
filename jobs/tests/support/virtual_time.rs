//! Virtual time: timers and sleeps that share a clock, and an executor that moves the clock on when
//! nothing else is to do.

use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Wake;

use portcullis_async::{ReentrantTimer, Timer};
use portcullis_core::{Clock, Timestamp};

/// The time of a test, and the alarms that are set.
#[derive(Clone, Default)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    now: Timestamp,
    alarms: BTreeMap<usize, (Timestamp, Waker)>,
    timers: usize,
}

impl World {
    pub(crate) fn now(&self) -> Timestamp {
        self.state.lock().unwrap().now
    }

    /// Creates a timer.
    pub(crate) fn timer(&self) -> VirtualTimer {
        let mut state = self.state.lock().unwrap();
        state.timers += 1;
        VirtualTimer {
            world: self.clone(),
            id: state.timers,
        }
    }

    /// Waits for a time.
    pub(crate) async fn sleep(&self, time: Duration) {
        let timer = self.timer();
        let at = self.now() + time;
        poll_fn(|context| timer.wake_at(at, context.waker())).await;
    }

    /// Runs a future to its end. Panics if it waits and no alarm is set.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&flag));
        let mut context = Context::from_waker(&waker);
        loop {
            while flag.0.swap(false, Ordering::Relaxed) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
            }
            assert!(self.advance(), "the future waits for nothing");
        }
    }

    /// Moves the clock to the next alarm, and wakes what waits for it.
    fn advance(&self) -> bool {
        let due = {
            let mut state = self.state.lock().unwrap();
            let Some(next) = state.alarms.values().map(|(at, _)| *at).min() else {
                return false;
            };
            state.now = state.now.max(next);
            let due = state.alarms.extract_if(.., |_, (at, _)| *at <= next);
            due.map(|(_, (_, waker))| waker).collect::<Vec<_>>()
        };
        due.into_iter().for_each(Waker::wake);
        true
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A timer of a [`World`].
pub(crate) struct VirtualTimer {
    world: World,
    id: usize,
}

impl Clock for VirtualTimer {
    fn now(&self) -> Timestamp {
        self.world.now()
    }
}

impl Timer for VirtualTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        let mut state = self.world.state.lock().unwrap();
        if at <= state.now {
            return Poll::Ready(());
        }
        state.alarms.insert(self.id, (at, waker.clone()));
        Poll::Pending
    }
}

impl ReentrantTimer for VirtualTimer {}

impl Drop for VirtualTimer {
    fn drop(&mut self) {
        let alarm = self.world.state.lock().unwrap().alarms.remove(&self.id);
        drop(alarm);
    }
}

/// What happened, and when.
#[derive(Clone, Default)]
pub(crate) struct Log<T>(Rc<RefCell<Vec<(Timestamp, T)>>>);

impl<T: Clone> Log<T> {
    pub(crate) fn add(&self, at: Timestamp, what: T) {
        self.0.borrow_mut().push((at, what));
    }

    pub(crate) fn all(&self) -> Vec<(Timestamp, T)> {
        self.0.borrow().clone()
    }
}
