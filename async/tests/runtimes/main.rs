//! Queues on well-known runtimes, in real time, and on one with a simulated time: the same
//! bodies on all of them.
//!
//! | module | what is in it |
//! |---|---|
//! | [`runtime`] | the runtimes |
//! | [`everyday`] | waits, hand-over, cancelling, deadlines, eviction, closing, a rate |
//! | [`crowd`] | 10,000 waiters and random cancellations |
//! | [`rate`] | rates in real time |
#![cfg(all(feature = "tokio", feature = "async-io"))]

#[path = "../../../core/tests/support/allocations.rs"]
mod allocations;
mod crowd;
mod everyday;
#[path = "../support/machine.rs"]
mod machine;
#[path = "../support/random.rs"]
mod random;
mod rate;
mod runtime;

use core::future::{Future, poll_fn};
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use portcullis_async::{Queue, Timer};
use portcullis_core::LimiterExt;
use portcullis_core::queue::QueueLimiter;
use runtime::{Pool, Runtime, Simulation, Smol, Tokio};
use tokio::sync::oneshot;

type Shared<L, T> = Arc<Queue<L, T>>;

/// A queue driven by the runtime's timer.
fn attended<R: Runtime, L>(runtime: &R, limiter: L, max_permits: u64) -> Shared<L, R::Timer>
where
    L: QueueLimiter + Send + Sync + 'static,
{
    let queue = Arc::new(Queue::new(limiter, runtime.timer(), max_permits));
    queue.attend_shared();
    queue
}

/// Runs a task, and waits for its outcome.
fn start<R: Runtime, F>(runtime: &R, task: F) -> impl Future<Output = F::Output> + Send + use<R, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    let (tell, outcome) = oneshot::channel();
    runtime.spawn(async move { _ = tell.send(task.await) });
    async { outcome.await.expect("the task must not panic") }
}

/// Polls repeatedly until the condition holds: for the main task only.
async fn until(mut is_so: impl FnMut() -> bool) {
    poll_fn(|context| {
        if is_so() {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Fails if it takes longer than that: then a waiter was not woken.
fn within(time: Duration, work: impl FnOnce() + Send + 'static) {
    let (tell, over) = mpsc::channel();
    let thread = thread::spawn(move || {
        work();
        _ = tell.send(());
    });
    assert_ne!(
        over.recv_timeout(time),
        Err(mpsc::RecvTimeoutError::Timeout),
        "a waiter sleeps permanently"
    );
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The lateness of the machine, measured by a thread that only sleeps.
struct Noise {
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<Duration>>,
}

impl Noise {
    fn listen() -> Self {
        const NAP: Duration = Duration::from_millis(1);
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut late = Vec::new();
            while !told.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::sleep(NAP);
                late.push(before.elapsed().saturating_sub(NAP));
            }
            late
        });
        Self { over, thread }
    }

    /// The lateness at each time.
    fn end(self) -> Vec<Duration> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread must not panic")
    }
}

/// Checks that there is no waiter, and that nothing is held.
fn is_conserved<L: QueueLimiter, T: Timer>(queue: &Queue<L, T>, available: u64) {
    let counts = queue.counts();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    assert_eq!(
        (queue.held(), queue.available()),
        (0, available),
        "all permits are back"
    );
}

/// Makes a test of each body on each runtime.
macro_rules! on_each {
    ($($runtime:ident: $new:expr;)*) => { $(
        mod $runtime {
            use super::*;

            on_each!(@ $new,
                everyday::a_permit_is_handed_on_in_the_order_of_the_waits,
                everyday::no_more_permits_are_held_than_the_limit,
                everyday::a_dropped_wait_leaves_its_place_and_its_grant_to_the_next,
                everyday::a_runtimes_timeout_cancels_and_one_on_a_reference_keeps_the_place,
                everyday::a_deadline_is_measured_by_the_queues_clock,
                everyday::the_newest_evicts_the_oldest,
                everyday::a_closed_queue_is_drained_when_the_last_lease_is_released,
                everyday::a_burst_is_served_at_the_rate_by_an_attended_queue,
                everyday::a_burst_is_served_at_the_rate_by_a_task_that_drives,
            );
        }
    )* };
    (@ $new:expr, $($module:ident::$body:ident,)*) => { $(
        #[test]
        fn $body() {
            within(Duration::from_mins(1), || {
                let runtime = $new;
                runtime.block_on($module::$body(&runtime));
            });
        }
    )* };
}

on_each! {
    tokio_current_thread: Tokio::current_thread();
    tokio_multi_thread: Tokio::multi_thread();
    smol: Smol;
    thread_pool: Pool::new();
    simulation: Simulation::default();
}
