//! Priorities: a reference model of every outcome, and what they do to waits during an overload.
#![cfg(feature = "shedding")]

mod support;

use core::task::Poll;
use std::sync::Arc;

use portcullis_async::{Acquire, KeyedQueue, Next, Order, Priority, Queue, Rejected, Shedding};
use portcullis_core::keyed::WithTotal;
use portcullis_core::{Concurrency, Keyed, Lease, ManualClock, Rate, Timestamp, TokenBucket};

use support::random::Random;
use support::{Task, now, run_to, undriven, waker};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

/// Fewer in Miri, which takes longer for each.
const RUNS: usize = if cfg!(miri) { 1 } else { 40 };
const STEPS: usize = if cfg!(miri) { 60 } else { 250 };

type Shared = Arc<Queue<Concurrency, ManualClock>>;

const PERMITS: u32 = 3;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: usize,
    priority: Priority,
    n: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Waits,
    Granted,
    Evicted,
    Full,
}

/// The rule, once more: a list in the order of priority.
struct Model {
    order: Order,
    max_permits: u64,
    max_waiters: usize,
    free: u32,
    list: Vec<Waiting>,
    outcomes: Vec<Outcome>,
}

fn room(of: &[Waiting]) -> u64 {
    of.iter().map(|one| u64::from(one.n.max(1))).sum()
}

impl Model {
    fn enter(&mut self, priority: Priority, n: u32) {
        let id = self.outcomes.len();
        self.outcomes.push(Outcome::Waits);
        let is_newest = self.order == Order::NewestFirst;
        let is_behind =
            |other: &Waiting| other.priority > priority || other.priority == priority && !is_newest;
        let at = self
            .list
            .iter()
            .take_while(|other| is_behind(other))
            .count();
        let asks = is_newest || at == 0;
        // A request for none is judged as one for 1 permit.
        if asks && n.max(1) <= self.free {
            self.free -= n;
            self.outcomes[id] = Outcome::Granted;
            return;
        }
        let new = Waiting { id, priority, n };
        let least = room(&self.list[..at]) + room(&[new]);
        let is_crowded = at == self.list.len() && at >= self.max_waiters;
        if self.max_waiters == 0 || least > self.max_permits || is_crowded {
            self.outcomes[id] = Outcome::Full;
            return;
        }
        while room(&self.list) + room(&[new]) > self.max_permits
            || self.list.len() >= self.max_waiters
        {
            let last = self.list.pop().unwrap();
            self.outcomes[last.id] = Outcome::Evicted;
        }
        self.list.insert(at, new);
        self.serve();
    }

    fn serve(&mut self) {
        while let Some(head) = self.list.first().filter(|head| head.n.max(1) <= self.free) {
            self.free -= head.n;
            self.outcomes[head.id] = Outcome::Granted;
            self.list.remove(0);
        }
    }

    fn release(&mut self, n: u32) {
        self.free += n;
        self.serve();
    }

    fn cancel(&mut self, id: usize) {
        self.list.retain(|one| one.id != id);
        self.serve();
    }
}

/// A queue and its model.
struct Both {
    queue: Shared,
    model: Model,
    tasks: Vec<Option<Task<Acquire<Shared>>>>,
    leases: Vec<Lease<Shared>>,
}

impl Both {
    fn new(order: Order, max_permits: u64, max_waiters: u32) -> Self {
        let queue = undriven(Concurrency::new(PERMITS), max_permits)
            .with_order(order)
            .with_max_waiters(max_waiters);
        Self {
            queue: Arc::new(queue),
            model: Model {
                order,
                max_permits,
                max_waiters: max_waiters as usize,
                free: PERMITS,
                list: Vec::new(),
                outcomes: Vec::new(),
            },
            tasks: Vec::new(),
            leases: Vec::new(),
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(8) {
            0..4 => {
                let (priority, n) = (ALL[random.index(3)], random.permits(PERMITS));
                let request = Acquire::new(Arc::clone(&self.queue), n).priority(priority);
                self.tasks.push(Some(Task::new(request)));
                self.model.enter(priority, n);
            }
            4..7 if !self.leases.is_empty() => {
                let lease = self.leases.swap_remove(random.index(self.leases.len()));
                let n = lease.permits();
                drop(lease);
                self.model.release(n);
            }
            7 if !self.model.list.is_empty() => {
                let id = self.model.list[random.index(self.model.list.len())].id;
                self.tasks[id] = None;
                self.model.cancel(id);
            }
            _ => {}
        }
        self.compare();
    }

    fn compare(&mut self) {
        // The new one first: it may evict others.
        for (id, slot) in self.tasks.iter_mut().enumerate().rev() {
            let Some(task) = slot else { continue };
            let outcome = match task.poll() {
                Poll::Pending => Outcome::Waits,
                Poll::Ready(Ok(lease)) => {
                    self.leases.push(lease);
                    Outcome::Granted
                }
                Poll::Ready(Err(Rejected::Evicted { .. })) => Outcome::Evicted,
                Poll::Ready(Err(Rejected::QueueFull { .. })) => Outcome::Full,
                Poll::Ready(Err(rejected)) => panic!("{rejected}"),
            };
            assert_eq!(
                outcome, self.model.outcomes[id],
                "{id}, {:?}, free {} {:?}",
                self.model.list, self.model.free, self.model.order
            );
            if outcome != Outcome::Waits {
                *slot = None;
            }
        }
        let counts = self.queue.counts();
        let permits: u32 = self.model.list.iter().map(|one| one.n).sum();
        let waiters = self.model.list.len() as u32;
        assert_eq!((counts.waiters, counts.permits), (waiters, permits.into()));
    }
}

#[test]
fn every_request_is_granted_evicted_or_rejected_as_the_model_says() {
    for order in [Order::OldestFirst, Order::NewestFirst] {
        for (seed, max_permits, max_waiters) in [
            (1, u64::MAX, u32::MAX),
            (2, 12, u32::MAX),
            (3, 30, 5),
            (4, 6, 3),
            (5, 9, 0),
        ] {
            let mut random = Random::new(seed);
            for _ in 0..RUNS {
                let mut both = Both::new(order, max_permits, max_waiters);
                for _ in 0..STEPS {
                    both.step(&mut random);
                }
            }
        }
    }
}

#[test]
fn a_request_that_goes_before_others_takes_at_once_what_is_free() {
    let queue = undriven(Concurrency::new(3), 9);
    let _held = now(queue.acquire(2)).unwrap();
    let large = Task::waiting(queue.acquire(2));
    let small = now(queue.acquire(1).priority(Priority::High));
    assert_eq!(small.unwrap().permits(), 1);
    assert!(!large.future().is_settled());
}

/// One permit each second, and three are waited for.
#[test]
fn a_deadline_is_judged_by_what_comes_before_the_request() {
    let queue = undriven(TokenBucket::new(Rate::per_second(1), 1), 9);
    now(queue.acquire(1)).unwrap().forget();
    let _waits = ALL.map(|priority| Task::waiting(queue.acquire(1).priority(priority)));
    let limits = [
        (Priority::Low, 4),
        (Priority::Normal, 3),
        (Priority::High, 2),
    ];
    for (priority, second) in limits {
        let until = |millis| queue.acquire(1).priority(priority).until(ms(millis));
        let late = now(until(second * 1_000 - 1)).unwrap_err();
        let Rejected::Deadline { retry, .. } = late else {
            panic!("{late}");
        };
        assert_eq!(retry, portcullis_core::Retry::At(ms(second * 1_000)));
        drop(Task::waiting(until(second * 1_000)));
    }
    // A try comes after all that wait.
    assert!(queue.try_acquire(1).is_err());
    assert_eq!(queue.advance(), Next::At(ms(1_000)));
}

/// The timer is 5 ms late, so the request was due before the other one came.
#[test]
fn a_request_that_was_due_before_gets_its_permits_first() {
    let queue = undriven(TokenBucket::new(Rate::per_second(1), 1), 9);
    now(queue.acquire(1)).unwrap().forget();
    let low = Task::waiting(queue.acquire(1).priority(Priority::Low));
    queue.clock().set(ms(1_005));
    let high = Task::waiting(queue.acquire(1).priority(Priority::High));
    assert!(low.future().is_settled());
    assert_eq!(queue.advance(), Next::At(ms(2_000)));
    drop((low, high));
}

/// The first one is late, and its waker runs until the second one is due.
#[test]
fn a_request_that_enters_while_another_is_due_does_not_sleep_on_free_permits() {
    let queue = Arc::new(undriven(TokenBucket::new(Rate::per_second(1), 1), 9));
    now(queue.acquire(1)).unwrap().forget();
    let mut first = Task::new(queue.acquire(1).priority(Priority::Low));
    let clock = Arc::clone(&queue);
    let later = waker(move || clock.clock().set(ms(2_000)));
    assert!(first.poll_with(&later).is_pending());
    let second = Task::waiting(queue.acquire(1).priority(Priority::Low));
    queue.clock().set(ms(1_005));
    let high = Task::waiting(queue.acquire(1).priority(Priority::High));
    assert!(first.future().is_settled() && high.future().is_settled());
    assert!(!second.future().is_settled());
    assert_eq!(queue.advance(), Next::At(ms(3_000)));
}

#[test]
fn with_shedding_the_requests_of_a_low_priority_are_shed() {
    let queue = undriven(Concurrency::new(1), 9).with_shedding(Shedding::default());
    let held = now(queue.acquire(1)).unwrap();
    let low = Task::waiting(queue.acquire(1).priority(Priority::Low));
    run_to(&queue, ms(60));
    let high = Task::waiting(queue.acquire(1).priority(Priority::High));
    run_to(&queue, ms(100));
    assert!(matches!(low.outcome(), Err(Rejected::Shed { .. })));
    drop(held);
    assert!(high.outcome().is_ok());
    assert_eq!((queue.counts().shed, queue.counts().evicted), (1, 0));
}

#[test]
fn priorities_order_the_requests_of_a_key_and_not_its_turns() {
    let table = Keyed::for_keys(Concurrency::new(9), 100);
    let total = WithTotal::new(table, Concurrency::new(1));
    let queue = KeyedQueue::new(total, ManualClock::new(), 9);
    let mut held = Some(now(queue.acquire("a", 1)).unwrap());
    let request = |key, priority| queue.acquire(key, 1).priority(priority);
    let mut tasks = Vec::new();
    for (name, key, priority) in [
        ("b low", "b", Priority::Low),
        ("c low", "c", Priority::Low),
        ("b high", "b", Priority::High),
        ("b normal", "b", Priority::Normal),
    ] {
        tasks.push((name, Task::waiting(request(key, priority))));
    }
    let mut granted = Vec::new();
    while !tasks.is_empty() {
        drop(held.take());
        let at = tasks
            .iter()
            .position(|(_, task)| task.future().is_settled());
        let (name, task) = tasks.remove(at.expect("one is granted"));
        held = Some(task.outcome().unwrap());
        granted.push(name);
    }
    assert_eq!(granted, ["b high", "c low", "b normal", "b low"]);
}

/// The queue has room for two permits, and the new request needs none of it.
#[test]
fn a_request_that_is_granted_at_once_evicts_none_and_has_not_waited() {
    let queue = undriven(Concurrency::new(3), 2);
    let _held = now(queue.acquire(2)).unwrap();
    let low = Task::waiting(queue.acquire(2).priority(Priority::Low));
    let high = |deadline| {
        queue
            .acquire(1)
            .priority(Priority::High)
            .until(ms(deadline))
    };
    queue.clock().set(ms(10));
    // Free permits are granted, also after the deadline.
    for deadline in [5, 10, 15] {
        drop(now(high(deadline)).unwrap());
    }
    assert!(!low.future().is_settled());
    let counts = queue.counts();
    assert_eq!((counts.granted, counts.evicted), (0, 0));
}

/// As new requests of any priority do in newest-first order.
#[test]
fn with_the_newest_first_new_requests_take_what_is_free_whatever_their_priority() {
    let queue = undriven(Concurrency::new(3), 9).with_order(Order::NewestFirst);
    let _held = now(queue.acquire(2)).unwrap();
    let high = Task::waiting(queue.acquire(3).priority(Priority::High));
    let low = now(queue.acquire(1).priority(Priority::Low)).unwrap();
    assert!(queue.try_acquire(1).is_err());
    drop(low);
    assert!(queue.try_acquire(1).is_ok());
    assert!(!high.future().is_settled());
}

#[cfg(feature = "tokio")]
mod heavy_users {
    //! One user sends four fifths of the requests. The figures of `docs/overload.md`.

    use core::time::Duration;
    use std::sync::Arc;

    use portcullis_async::{Priority, Queue, Shedding, TokioTimer};
    use portcullis_core::{Clock, Keyed, Lease, Rate, TokenBucket};
    use tokio::task::JoinSet;
    use tokio::time::{Instant, sleep_until};

    use super::support::random::Random;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const COME: Duration = Duration::from_secs(30);
    const FROM: Duration = Duration::from_secs(5);
    const LIGHT: u64 = 10;

    /// Of the light users and of the heavy one: the share of requests that is granted in per cent,
    /// and the median and the longest wait of these in milliseconds.
    async fn run(demotes: bool) -> [(u64, u128, u128); 2] {
        // 100 per second, and 250 come: 200 of one user, and 5 of each of ten others.
        let limit = TokenBucket::new(Rate::per_second(100), 1);
        let queue = Queue::new(limit, TokioTimer::new(), 10_000)
            .with_shedding(Shedding::controlled_delay(millis(100), millis(500)))
            .shared();
        let share = TokenBucket::new(Rate::per_second(10), 10);
        let share = Arc::new(Keyed::for_keys(share, 1_000));
        let (start, mut tasks, mut random) = (Instant::now(), JoinSet::new(), Random::new(7));
        for index in 0..250 * COME.as_secs() {
            let user = if index % 5 == 0 {
                random.below(LIGHT)
            } else {
                LIGHT
            };
            let at = start + Duration::from_nanos(random.below(COME.as_nanos() as u64));
            let (queue, share) = (Arc::clone(&queue), Arc::clone(&share));
            tasks.spawn(async move {
                sleep_until(at).await;
                let mark = Lease::try_acquire_at(share.key(&user), queue.clock().now(), 1);
                let priority = match mark {
                    Err(_) if demotes => Priority::Low,
                    _ => Priority::Normal,
                };
                let granted = queue.acquire(1).priority(priority).await.is_ok();
                (
                    user == LIGHT,
                    at - start,
                    granted.then(|| at.elapsed().as_millis()),
                )
            });
        }
        let mut ended = [Vec::new(), Vec::new()];
        while let Some(task) = tasks.join_next().await {
            let (is_heavy, at, waited) = task.unwrap();
            if at >= FROM {
                ended[usize::from(is_heavy)].push(waited);
            }
        }
        ended.map(|all| {
            let mut waits: Vec<u128> = all.iter().copied().flatten().collect();
            waits.sort_unstable();
            let share = 100 * waits.len() as u64 / all.len() as u64;
            (share, waits[waits.len() / 2], waits[waits.len() - 1])
        })
    }

    #[tokio::test(start_paused = true)]
    async fn the_light_users_are_served_if_a_limit_demotes_the_heavy_one() {
        let alike = run(false).await;
        let demoted = run(true).await;
        println!("alike: {alike:?}, demoted: {demoted:?}");
        let [(light, ..), (heavy, ..)] = alike;
        assert!(
            (37..=43).contains(&light) && (37..=43).contains(&heavy),
            "{alike:?}"
        );
        let [(light, median, longest), (heavy, ..)] = demoted;
        assert!(light == 100 && median <= 12 && longest <= 70, "{demoted:?}");
        // It gets what they leave.
        assert!((23..=27).contains(&heavy), "{demoted:?}");
    }
}
