//! The smallest executor that can run tasks that wait for each other, so that a row measures the
//! waits.
//!
//! Tasks are polled and woken on one thread, in the order in which they were woken. So a wake
//! appends a number to a thread-local list, without a read-modify-write. Nothing parks: if no task
//! is ready, a task was not woken, which is a panic.

use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Wake;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks that never end, polled for as long as requested.
pub(super) struct Executor {
    tasks: Box<[(Work, Arc<Task>, Waker)]>,
    /// Used between two runs, which may be on different threads.
    ready: VecDeque<usize>,
}

struct Task {
    number: usize,
    /// Whether the task is in the list of ready tasks, which contains it at most once.
    is_ready: AtomicBool,
}

std::thread_local! {
    /// The numbers of the ready tasks of the executor on this thread.
    static READY: RefCell<VecDeque<usize>> = const { RefCell::new(VecDeque::new()) };
}

impl Executor {
    /// Creates tasks that are ready for their first poll.
    pub(super) fn new<F: Future<Output = ()> + Send + 'static>(
        tasks: impl Iterator<Item = F>,
    ) -> Self {
        let tasks: Box<[_]> = tasks
            .enumerate()
            .map(|(number, work)| {
                let task = Arc::new(Task {
                    number,
                    is_ready: AtomicBool::new(true),
                });
                (Box::pin(work) as Work, Arc::clone(&task), Waker::from(task))
            })
            .collect();
        Self {
            ready: (0..tasks.len()).collect(),
            tasks,
        }
    }

    /// Polls tasks, one after another, until `enough` returns true.
    pub(super) fn run_until(&mut self, enough: impl Fn() -> bool) {
        READY.set(core::mem::take(&mut self.ready));
        while !enough() {
            let number = READY
                .with_borrow_mut(VecDeque::pop_front)
                .expect("a waiting task is woken");
            let (work, task, waker) = &mut self.tasks[number];
            // Cleared before the poll, so that the task can be woken during the poll.
            task.is_ready.store(false, Relaxed);
            let polled = work.as_mut().poll(&mut Context::from_waker(waker));
            assert!(polled.is_pending(), "tasks never end");
        }
        self.ready = READY.take();
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_ready.load(Relaxed) {
            self.is_ready.store(true, Relaxed);
            READY.with_borrow_mut(|ready| ready.push_back(self.number));
        }
    }
}

/// Lets all other ready tasks run first.
pub(super) async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
