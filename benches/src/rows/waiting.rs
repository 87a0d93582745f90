//! Waits for a permit on one thread: immediate grants, hand-offs from task to task, and
//! cancellations.

mod executor;

use core::future::Future;
use core::mem;
use core::pin::pin;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use portcullis_async::{NoTimer, Queue, QueueCounts};
use portcullis_core::{Clock, CoarseClock, Concurrency, MonotonicClock, Timeless};

use crate::measure::{Contest, Contestant, Expected, Ready};
use crate::rows::token_bucket::Load;
use executor::{Executor, yield_once};

pub(crate) fn rows() -> Vec<Contest> {
    vec![
        ready(),
        ready_rate(
            "async.ready_rate",
            Load::FULL,
            CoarseClock::new(),
            &[true, false],
        ),
        ready_rate(
            "async.ready_rate_std",
            Load::IN_USE,
            MonotonicClock::new(),
            &[true],
        ),
        ready_rate(
            "async.ready_rate_std_full",
            Load::FULL,
            MonotonicClock::new(),
            &[true],
        ),
        hand_off("async.handoff_2", 2),
        hand_off("async.handoff_64", 64),
        hand_off("async.handoff_1k", 1_000),
        hand_off("async.handoff_10k", 10_000),
        cancel("async.cancel_10", 10),
        cancel("async.cancel_10k", 10_000),
    ]
}

/// The implementations to wait with.
trait Semaphore: Send + Sync + 'static {
    const NAME: &'static str;
    /// Whether waiters are granted in order, before new requests.
    const IN_ORDER: bool = true;

    fn new(permits: u32) -> Self;

    fn acquire(&self) -> impl Future<Output: Outcome> + Send;

    /// Returns the counts of our own queue, to check that a row does what its name says.
    fn counts(&self) -> Option<QueueCounts> {
        None
    }
}

/// The result of a wait.
trait Outcome: Send {
    fn is_granted(&self) -> bool;
}

impl<T: Send, E: Send> Outcome for Result<T, E> {
    fn is_granted(&self) -> bool {
        self.is_ok()
    }
}

impl Outcome for async_lock::SemaphoreGuard<'_> {
    fn is_granted(&self) -> bool {
        true
    }
}

impl Semaphore for Queue<Concurrency, Timeless> {
    const NAME: &'static str = "portcullis";

    fn new(permits: u32) -> Self {
        Queue::new(Concurrency::new(permits), Timeless, u64::MAX)
    }

    fn acquire(&self) -> impl Future<Output: Outcome> + Send {
        self.acquire(1)
    }

    fn counts(&self) -> Option<QueueCounts> {
        Some(self.counts())
    }
}

impl Semaphore for tokio::sync::Semaphore {
    const NAME: &'static str = "tokio";

    fn new(permits: u32) -> Self {
        Self::new(permits as usize)
    }

    fn acquire(&self) -> impl Future<Output: Outcome> + Send {
        self.acquire()
    }
}

impl Semaphore for async_lock::Semaphore {
    const NAME: &'static str = "async-lock";
    const IN_ORDER: bool = false;

    fn new(permits: u32) -> Self {
        Self::new(permits as usize)
    }

    fn acquire(&self) -> impl Future<Output: Outcome> + Send {
        self.acquire()
    }
}

impl Semaphore for maitake_sync::Semaphore {
    const NAME: &'static str = "maitake-sync";

    fn new(permits: u32) -> Self {
        Self::new(permits as usize)
    }

    fn acquire(&self) -> impl Future<Output: Outcome> + Send {
        self.acquire(1)
    }
}

/// A row for ours and the same peers.
macro_rules! contest {
    ($row:expr, $contestant:ident $(, $argument:expr)*) => {
        Contest {
            row: $row,
            threads: 1,
            expected: Expected::Granted,
            ours: $contestant::<Queue<Concurrency, Timeless>>($($argument),*),
            peers: vec![
                $contestant::<tokio::sync::Semaphore>($($argument),*),
                $contestant::<async_lock::Semaphore>($($argument),*),
                $contestant::<maitake_sync::Semaphore>($($argument),*),
            ],
        }
    };
}

/// An immediate grant, and its release.
fn ready() -> Contest {
    contest!("async.ready", ready_with)
}

fn ready_with<S: Semaphore>() -> Contestant {
    let semaphore = CachePadded::new(S::new(10));
    Contestant::new(S::NAME, move |_, operations| {
        at_once(async {
            let mut granted = 0;
            for _ in 0..operations {
                granted += u64::from(semaphore.acquire().await.is_granted());
            }
            granted
        })
    })
}

/// Returns the result of a future that does not wait.
fn at_once(work: impl Future<Output = u64>) -> u64 {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("a permit was free"),
    }
}

/// The same for a token bucket whose permits are always available, including the clock reading.
fn ready_rate<C>(row: &'static str, load: Load, clock: C, fair: &[bool]) -> Contest
where
    C: Clock + Send + Sync + 'static,
{
    let ours = Contestant::prepared("portcullis", move || {
        let bucket = load.bucket(clock.now());
        let queue = CachePadded::new(Queue::new(bucket, NoTimer(clock), u64::MAX));
        Ready::new(move |_, operations| {
            at_once(async {
                let mut granted = 0;
                for _ in 0..operations {
                    granted += u64::from(queue.acquire(1).await.is_ok());
                }
                granted
            })
        })
    });
    let peers = fair.iter().map(|&fair| leaky_bucket(load, fair)).collect();
    Contest {
        row,
        threads: 1,
        expected: Expected::Granted,
        ours,
        peers,
    }
}

/// By default leaky-bucket is fair: it decides inside a lock and reads the standard library's
/// clock. Otherwise it subtracts from a counter.
fn leaky_bucket(load: Load, fair: bool) -> Contestant {
    let limiter = load.leaky_bucket(fair);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    Contestant::new(
        if fair {
            "leaky-bucket"
        } else {
            "leaky-bucket-unfair"
        },
        move |_, operations| {
            let _runtime = runtime.enter();
            at_once(async {
                for _ in 0..operations {
                    limiter.acquire_one().await;
                }
                operations
            })
        },
    )
}

/// One permit, which passes among tasks that all want it repeatedly.
fn hand_off(row: &'static str, tasks: usize) -> Contest {
    contest!(row, hand_off_with, tasks)
}

fn hand_off_with<S: Semaphore>(tasks: usize) -> Contestant {
    Contestant::prepared(S::NAME, move || {
        let semaphore = Arc::new(S::new(1));
        let turns = Arc::new(Turns::default());
        let executor = Executor::new(
            (1..=tasks).map(|task| take_turns(task, Arc::clone(&semaphore), Arc::clone(&turns))),
        );
        let executor = Mutex::new(executor);
        Ready::new(move |_, operations| {
            let (taken, handed) = turns.so_far();
            executor
                .lock()
                .run_until(|| turns.so_far().0 == taken + operations);
            assert!(
                semaphore
                    .counts()
                    .is_none_or(|counts| counts.waiters as usize == tasks - 1)
            );
            if S::IN_ORDER {
                turns.so_far().1 - handed
            } else {
                operations
            }
        })
    })
}

/// Takes the permit, and holds it until all other tasks have had a chance to request it.
async fn take_turns<S: Semaphore>(task: usize, semaphore: Arc<S>, turns: Arc<Turns>) {
    loop {
        let permit = semaphore.acquire().await;
        assert!(permit.is_granted());
        turns.count(task);
        yield_once().await;
    }
}

/// A counter for one thread at a time, without the cost of a read-modify-write.
#[derive(Default)]
struct Turns {
    taken: AtomicU64,
    /// The number of turns that went to another task than the previous turn.
    handed: AtomicU64,
    last: AtomicUsize,
}

impl Turns {
    fn count(&self, task: usize) {
        let (taken, handed) = self.so_far();
        self.taken.store(taken + 1, Relaxed);
        self.handed
            .store(handed + u64::from(self.last.load(Relaxed) != task), Relaxed);
        self.last.store(task, Relaxed);
    }

    fn so_far(&self) -> (u64, u64) {
        (self.taken.load(Relaxed), self.handed.load(Relaxed))
    }
}

/// One of many waiters cancels, and a new one arrives.
fn cancel(row: &'static str, waiters: usize) -> Contest {
    contest!(row, cancel_with, waiters)
}

fn cancel_with<S: Semaphore>(waiters: usize) -> Contestant {
    Contestant::prepared(S::NAME, move || {
        // Leaked: waits that are stored beside it borrow it, and its permit is never released.
        let semaphore: &'static S = Box::leak(Box::new(S::new(1)));
        let mut context = Context::from_waker(Waker::noop());
        let mut wait = || {
            let mut wait = Box::pin(semaphore.acquire());
            let polled = wait.as_mut().poll(&mut context);
            (wait, polled)
        };
        let (_, Poll::Ready(permit)) = wait() else {
            panic!("the permit was free")
        };
        mem::forget(permit);
        let waits: Vec<_> = (0..waiters).map(|_| wait().0).collect();
        let middle = waiters / 2;
        let waits = Mutex::new((waits, middle));
        Ready::new(move |_, operations| {
            let mut context = Context::from_waker(Waker::noop());
            let (waits, next) = &mut *waits.lock();
            let before = semaphore.counts();
            let mut waiting = 0;
            for _ in 0..operations {
                // Cancels the waiter in the middle of the queue. The waiters behind it move up by
                // one, and the new one is the last.
                let wait = &mut waits[*next];
                wait.set(semaphore.acquire());
                waiting += u64::from(wait.as_mut().poll(&mut context).is_pending());
                *next = if *next + 1 == waiters {
                    middle
                } else {
                    *next + 1
                };
            }
            assert!(
                semaphore
                    .counts()
                    .is_none_or(|counts| counts.waiters as usize == waiters)
            );
            // Each of them has cancelled, and each of them waits.
            match (before, semaphore.counts()) {
                (Some(before), Some(after)) => waiting.min(after.cancelled - before.cancelled),
                _ => waiting,
            }
        })
    })
}
