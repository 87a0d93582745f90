//! 10,000 waiting tasks, which at random are cancelled, have deadlines, are evicted, and release:
//! nothing is lost, and no wait allocates.

use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, OnceLock};
use std::task::Wake;

use portcullis_async::{Acquire, Order, Queue, ReentrantTimer, Rejected, Timer};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Clock, Concurrency, Rate, Timestamp, TokenBucket};

use crate::allocations::allocations;
use crate::random::Random;
use crate::runtime::{Pool, Runtime, Smol, Tokio};
use crate::{is_conserved, start, within};

const WAITERS: usize = 10_000;
const LIMIT: u32 = 64;
const RATE: u32 = 20_000;
const BURST: u32 = 100;

thread_local! {
    static NOT_OURS: Cell<u64> = const { Cell::new(0) };
}

/// The allocations in `f`, except those of a runtime's wakers and timers.
fn own_allocations(f: impl FnOnce()) -> u64 {
    let before = NOT_OURS.get();
    allocations(f) - (NOT_OURS.get() - before)
}

/// Excludes `f` from the count.
fn of_others(f: impl FnOnce()) -> u64 {
    let count = allocations(f);
    NOT_OURS.set(NOT_OURS.get() + count);
    count
}

/// A runtime's waker.
struct Foreign(Waker);

impl Wake for Foreign {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        of_others(|| self.0.wake_by_ref());
    }
}

/// A runtime's timer.
struct Watched<T> {
    timer: T,
    allocations: AtomicU64,
}

impl<T> Watched<T> {
    fn new(timer: T) -> Self {
        Self {
            timer,
            allocations: AtomicU64::new(0),
        }
    }
}

impl<T: Clock> Clock for Watched<T> {
    fn now(&self) -> Timestamp {
        self.timer.now()
    }
}

impl<T: ReentrantTimer> ReentrantTimer for Watched<T> {}

impl<T: Timer> Timer for Watched<T> {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        let mut outcome = Poll::Pending;
        let count = of_others(|| outcome = self.timer.wake_at(at, waker));
        self.allocations.fetch_add(count, Ordering::Relaxed);
        outcome
    }
}

/// Tells a task to cancel its wait.
#[derive(Default)]
struct Cancel {
    told: AtomicBool,
    waker: OnceLock<Waker>,
}

/// Counts of what the tasks of a queue observed.
#[derive(Default)]
struct Seen {
    /// Waits that were polled, and had to wait.
    waited: AtomicU64,
    /// Of those, by outcome.
    granted: AtomicU64,
    evicted: AtomicU64,
    late: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    /// Rejected at once because of a deadline.
    too_late: AtomicU64,
    /// Permits taken and not refunded.
    taken: AtomicU64,
    allocations: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

type Crowded<L, T> = Arc<Queue<L, Watched<T>>>;

/// Waits repeatedly until `over`.
async fn wait<R: Runtime, L: QueueLimiter>(
    runtime: R,
    queue: Crowded<L, R::Timer>,
    seen: Arc<Seen>,
    cancel: Arc<Vec<Cancel>>,
    number: usize,
    over: Arc<AtomicBool>,
) {
    let mut random = Random((number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let foreign = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let waker = Waker::from(Arc::new(Foreign(foreign)));
    let cancel = &cancel[number];
    assert!(cancel.waker.set(waker.clone()).is_ok());
    while !over.load(Ordering::Relaxed) {
        let n = 1 + random.below(3) as u32;
        let mut wait = Acquire::new(&*queue, n).up_to(n + random.below(2) as u32);
        if random.below(4) == 0 {
            let time = Duration::from_micros(random.below(50_000));
            wait = wait.until(queue.clock().now().saturating_add(time));
        }
        let mut own = 0;
        let mut waited = false;
        let outcome = {
            // Some waits are dropped in the middle.
            let mut wait = pin!(Some(wait));
            let outcome = poll_fn(|_| {
                // It may have been granted, and not polled since.
                if waited && cancel.told.swap(false, Ordering::Relaxed) {
                    return Poll::Ready(None);
                }
                let mut outcome = Poll::Pending;
                own += own_allocations(|| {
                    let wait = wait.as_mut().as_pin_mut().expect("it is not ready yet");
                    outcome = wait.poll(&mut Context::from_waker(&waker)).map(Some);
                });
                waited |= outcome.is_pending();
                if outcome.is_pending() && cancel.told.swap(false, Ordering::Relaxed) {
                    return Poll::Ready(None);
                }
                outcome
            })
            .await;
            own += own_allocations(|| wait.set(None));
            outcome
        };
        count(&seen.waited, waited.into());
        match outcome {
            None => count(&seen.dropped, 1),
            Some(Ok(mut lease)) => {
                count(&seen.granted, waited.into());
                if random.below(2) == 0 {
                    runtime.step().await;
                }
                let now = queue.clock().now();
                own += own_allocations(|| {
                    let back = if random.below(4) == 0 {
                        lease.refund_at(now, 1)
                    } else {
                        Ok(0)
                    };
                    count(&seen.taken, u64::from(lease.permits()));
                    drop((back, lease));
                });
            }
            Some(Err(Rejected::Evicted { .. })) => count(&seen.evicted, 1),
            Some(Err(Rejected::QueueFull { .. })) => count(&seen.refused, 1),
            Some(Err(Rejected::Deadline { .. })) if waited => count(&seen.late, 1),
            Some(Err(Rejected::Deadline { .. })) => count(&seen.too_late, 1),
            Some(Err(other)) => panic!("{other}"),
        }
        count(&seen.allocations, own);
        if !waited {
            runtime.step().await;
        }
    }
}

/// The invariants of each queue at the end.
fn nothing_is_lost<L: QueueLimiter, T: Timer>(queue: &Crowded<L, T>, seen: &Seen) {
    let counts = queue.counts();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    assert_eq!(counts.full, read(&seen.refused));
    // Each wait has one outcome in the counts. A dropped one was still waiting, or settled and not
    // polled since.
    let settled = counts.granted + counts.evicted + counts.cancelled + counts.late;
    assert_eq!(
        read(&seen.waited) + read(&seen.too_late),
        settled,
        "{counts:?}"
    );
    let told = [&seen.granted, &seen.evicted, &seen.late, &seen.dropped].map(read);
    assert_eq!(read(&seen.waited), told.iter().sum::<u64>());
    assert!(counts.granted >= told[0] && counts.evicted >= told[1] && counts.late >= told[2]);
    assert!(
        told[0] > 0 && counts.cancelled > 0 && counts.late > 0,
        "too few events: {counts:?}"
    );
    assert_eq!(read(&seen.allocations), 0, "no wait allocates");
}

fn crowd<R: Runtime>(runtime: R, time: Duration) {
    within(time + Duration::from_mins(2), move || {
        let new = |order, max_permits| {
            let timer = Watched::new(runtime.timer());
            let queue = Queue::new(Concurrency::new(LIMIT), timer, max_permits);
            let queue = Arc::new(queue.with_order(order));
            queue.attend_shared();
            queue
        };
        let oldest = new(Order::OldestFirst, 4_000);
        let newest = new(Order::NewestFirst, 3_000);
        let bucket = TokenBucket::new(Rate::per_second(RATE), BURST.into());
        let rated = Arc::new(Queue::new(bucket, Watched::new(runtime.timer()), u64::MAX));
        rated.attend_shared();
        let seen: [Arc<Seen>; 3] = Default::default();
        let are_full = || read(&seen[0].refused) > 0 && read(&seen[1].evicted) > 0;
        let cancel: Arc<Vec<Cancel>> = Arc::new((0..WAITERS).map(|_| Cancel::default()).collect());
        let begin = rated.clock().now();

        runtime.block_on(async {
            let over = Arc::new(AtomicBool::new(false));
            let canceller = start(&runtime, {
                let (cancel, over, runtime) =
                    (Arc::clone(&cancel), Arc::clone(&over), runtime.clone());
                async move {
                    let mut random = Random(1);
                    while !over.load(Ordering::Relaxed) {
                        for _ in 0..512 {
                            let one = &cancel[random.below(WAITERS as u64) as usize];
                            one.told.store(true, Ordering::Relaxed);
                            if let Some(waker) = one.waker.get() {
                                waker.wake_by_ref();
                            }
                        }
                        runtime.step().await;
                    }
                }
            });
            let mut tasks = Vec::new();
            for number in 0..WAITERS {
                let (seen, cancel, over) = (
                    Arc::clone(&seen[number % 3]),
                    Arc::clone(&cancel),
                    Arc::clone(&over),
                );
                let task: core::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match number % 3 {
                    0 => Box::pin(wait(
                        runtime.clone(),
                        Arc::clone(&oldest),
                        seen,
                        cancel,
                        number,
                        over,
                    )),
                    1 => Box::pin(wait(
                        runtime.clone(),
                        Arc::clone(&newest),
                        seen,
                        cancel,
                        number,
                        over,
                    )),
                    _ => Box::pin(wait(
                        runtime.clone(),
                        Arc::clone(&rated),
                        seen,
                        cancel,
                        number,
                        over,
                    )),
                };
                tasks.push(start(&runtime, task));
            }
            let pass = async |time| {
                let never = core::future::pending::<()>();
                assert!(runtime.timeout(time, never).await.is_none());
            };
            pass(time).await;
            // A busy machine takes longer to fill them.
            for _ in 0..60 {
                if are_full() {
                    break;
                }
                pass(Duration::from_secs(1)).await;
            }
            over.store(true, Ordering::Relaxed);
            canceller.await;
            for task in tasks {
                task.await;
            }
        });

        for (queue, seen) in [(&oldest, &seen[0]), (&newest, &seen[1])] {
            nothing_is_lost(queue, seen);
            is_conserved(queue, LIMIT.into());
            drop(
                queue
                    .try_acquire(LIMIT)
                    .expect("all permits are back, and there is no waiter"),
            );
        }
        assert!(are_full(), "both were full");
        nothing_is_lost(&rated, &seen[2]);
        let passed = rated.clock().now().saturating_since(begin);
        let most = u128::from(BURST) + u128::from(RATE) * passed.as_nanos() / 1_000_000_000;
        let taken = read(&seen[2].taken);
        assert!(u128::from(taken) <= most, "{taken} of {most}");
        for (name, queue) in [
            ("oldest", oldest.counts()),
            ("newest", newest.counts()),
            ("rated", rated.counts()),
        ] {
            println!("{name}: {queue:?}");
        }
        println!("{taken} of {most} permits by time");
        if !R::TIMER_ALLOCATES {
            for timer in [oldest.clock(), newest.clock(), rated.clock()] {
                // The timer's thread or task, once.
                assert!(
                    read(&timer.allocations) < 100,
                    "the timer allocates: {:?}",
                    timer.allocations
                );
            }
        }
    });
}

/// One second of it, on each runtime.
const SHORT: Duration = Duration::from_secs(1);

#[test]
fn ten_thousand_lose_nothing_on_tokio_in_one_thread() {
    crowd(Tokio::current_thread(), SHORT);
}

#[test]
fn ten_thousand_lose_nothing_on_tokio() {
    crowd(Tokio::multi_thread(), SHORT);
}

#[test]
fn ten_thousand_lose_nothing_on_smol() {
    crowd(Smol, SHORT);
}

#[test]
fn ten_thousand_lose_nothing_on_a_thread_pool() {
    crowd(Pool::new(), SHORT);
}

#[test]
#[ignore = "takes most of a minute; cargo xtask soak runs it"]
fn soak() {
    const LONG: Duration = Duration::from_secs(10);
    crowd(Tokio::current_thread(), LONG);
    crowd(Tokio::multi_thread(), LONG);
    crowd(Smol, LONG);
    crowd(Pool::new(), LONG);
}
