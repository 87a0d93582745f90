//! What runs tasks: well-known runtimes, and one whose time is simulated.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::Wake;

use futures_executor::ThreadPool;
use portcullis_async::{AsyncIoTimer, ReentrantTimer, ThreadTimer, Timer, TokioTimer};
use portcullis_core::{Clock, ManualClock, Timestamp};
use tokio::runtime;

use crate::start;

/// Runs tasks, and has a timer for queues.
pub(crate) trait Runtime: Clone + Send + Sync + 'static {
    type Timer: ReentrantTimer + Send + Sync + 'static;

    /// Whether only waiting for time takes time.
    const EXACT: bool = false;
    /// Whether the timer allocates when it is armed.
    const TIMER_ALLOCATES: bool = false;

    fn timer(&self) -> Self::Timer;

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    fn block_on<T>(&self, main: impl Future<Output = T>) -> T;

    /// Lets other tasks run.
    fn step(&self) -> impl Future<Output = ()> + Send {
        // Not by waking itself, after which some runtimes poll it again at once.
        start(self, async {})
    }

    /// The runtime's own timeout: `None` if `time` is over first.
    fn timeout<F: Future + Send>(
        &self,
        time: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send;
}

/// Leaked, because a runtime that is dropped by one of its own tasks panics.
#[derive(Clone, Copy)]
pub(crate) struct Tokio(&'static runtime::Runtime);

impl Tokio {
    pub(crate) fn current_thread() -> Self {
        Self::build(&mut runtime::Builder::new_current_thread())
    }

    pub(crate) fn multi_thread() -> Self {
        Self::build(runtime::Builder::new_multi_thread().worker_threads(2))
    }

    fn build(builder: &mut runtime::Builder) -> Self {
        Self(Box::leak(Box::new(
            builder
                .enable_time()
                .build()
                .expect("the runtime can be built"),
        )))
    }
}

impl Runtime for Tokio {
    type Timer = TokioTimer;

    fn timer(&self) -> TokioTimer {
        let _inside = self.0.enter();
        TokioTimer::new()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.spawn(task));
    }

    fn block_on<T>(&self, main: impl Future<Output = T>) -> T {
        self.0.block_on(main)
    }

    fn step(&self) -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }

    async fn timeout<F: Future + Send>(&self, time: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            outcome = future => Some(outcome),
            () = tokio::time::sleep(time) => None,
        }
    }
}

/// Its global executor.
#[derive(Clone, Copy)]
pub(crate) struct Smol;

impl Runtime for Smol {
    type Timer = AsyncIoTimer;

    const TIMER_ALLOCATES: bool = true;

    fn timer(&self) -> AsyncIoTimer {
        AsyncIoTimer::new()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        smol::spawn(task).detach();
    }

    fn block_on<T>(&self, main: impl Future<Output = T>) -> T {
        smol::block_on(main)
    }

    fn step(&self) -> impl Future<Output = ()> + Send {
        smol::future::yield_now()
    }

    async fn timeout<F: Future + Send>(&self, time: Duration, future: F) -> Option<F::Output> {
        let over = async {
            smol::Timer::after(time).await;
            None
        };
        smol::future::or(async { Some(future.await) }, over).await
    }
}

/// The thread pool of `futures`, which has no timer.
#[derive(Clone)]
pub(crate) struct Pool(ThreadPool);

impl Pool {
    pub(crate) fn new() -> Self {
        Self(
            ThreadPool::builder()
                .pool_size(2)
                .create()
                .expect("threads can be started"),
        )
    }
}

impl Runtime for Pool {
    type Timer = ThreadTimer;

    fn timer(&self) -> ThreadTimer {
        ThreadTimer::new()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn_ok(task);
    }

    fn block_on<T>(&self, main: impl Future<Output = T>) -> T {
        futures_executor::block_on(main)
    }

    fn timeout<F: Future + Send>(
        &self,
        time: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send {
        before(future, ThreadTimer::new(), time)
    }
}

/// The outcome, if it is there before `timer` has advanced by `time`.
async fn before<F: Future, T: Timer>(future: F, timer: T, time: Duration) -> Option<F::Output> {
    let until = timer.now().saturating_add(time);
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => timer.wake_at(until, context.waker()).map(|()| None),
    })
    .await
}

/// Tasks in one thread, and a clock that advances to the next alarm when no task is ready.
#[derive(Clone, Default)]
pub(crate) struct Simulation(Arc<World>);

#[derive(Default)]
struct World {
    clock: ManualClock,
    alarms: Mutex<HashMap<u64, (Timestamp, Waker)>>,
    timers: AtomicU64,
    spawned: Mutex<Vec<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

/// One of its timers.
pub(crate) struct Alarm {
    world: Arc<World>,
    number: u64,
}

impl Clock for Alarm {
    fn now(&self) -> Timestamp {
        self.world.clock.now()
    }
}

impl ReentrantTimer for Alarm {}

impl Timer for Alarm {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        if at <= self.now() {
            return Poll::Ready(());
        }
        let old = self
            .world
            .alarms
            .lock()
            .unwrap()
            .insert(self.number, (at, waker.clone()));
        drop(old);
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let old = self.world.alarms.lock().unwrap().remove(&self.number);
        drop(old);
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Woken {
    /// Polls a task if it was woken since; returns whether it was, and its outcome.
    fn poll<F: Future + ?Sized>(self: &Arc<Self>, task: Pin<&mut F>) -> (bool, Poll<F::Output>) {
        if !self.0.swap(false, Ordering::Relaxed) {
            return (false, Poll::Pending);
        }
        let waker = Waker::from(Arc::clone(self));
        (true, task.poll(&mut Context::from_waker(&waker)))
    }
}

fn woken() -> Arc<Woken> {
    Arc::new(Woken(AtomicBool::new(true)))
}

impl World {
    fn go_on(&self) {
        let next = self
            .alarms
            .lock()
            .unwrap()
            .values()
            .map(|(at, _)| *at)
            .min();
        let now = next.expect("a task runs, or waits for a time");
        self.clock.set(now);
        let mut due: Vec<_> = self
            .alarms
            .lock()
            .unwrap()
            .extract_if(|_, (at, _)| *at <= now)
            .collect();
        due.sort_by_key(|(number, _)| *number);
        for (_, (_, waker)) in due {
            waker.wake();
        }
    }
}

impl Runtime for Simulation {
    type Timer = Alarm;

    const EXACT: bool = true;

    fn timer(&self) -> Alarm {
        Alarm {
            world: Arc::clone(&self.0),
            number: self.0.timers.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawned.lock().unwrap().push(Box::pin(task));
    }

    fn block_on<T>(&self, main: impl Future<Output = T>) -> T {
        let mut main = (pin!(main), woken());
        let mut tasks = Vec::new();
        loop {
            let spawned = core::mem::take(&mut *self.0.spawned.lock().unwrap());
            tasks.extend(spawned.into_iter().map(|task| (task, woken())));
            let (mut any, outcome) = main.1.poll(main.0.as_mut());
            if let Poll::Ready(outcome) = outcome {
                return outcome;
            }
            tasks.retain_mut(|(task, woken)| {
                let (ran, outcome) = woken.poll(task.as_mut());
                any |= ran;
                outcome.is_pending()
            });
            if !any {
                self.0.go_on();
            }
        }
    }

    fn timeout<F: Future + Send>(
        &self,
        time: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send {
        before(future, self.timer(), time)
    }
}
