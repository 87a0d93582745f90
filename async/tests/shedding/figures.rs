//! A service under overload, in virtual time: what shedding and orders do to waits and goodput.
//!
//! The service has ten workers and takes 10 ms for a request: 1,000 requests per second. Requests
//! come at random, at twice that rate, for ten seconds.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use portcullis_async::{Acquire, Next, Order, Queue, Shedding};
use portcullis_core::{Clock, Concurrency, Lease, ManualClock, Timestamp};

use super::support::random::Random;
use super::support::{Task, waker};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

const WORKERS: u32 = 10;
const TAKES: u64 = 10 * MILLI;

type Shared = Arc<Queue<Concurrency, ManualClock>>;

/// A request that was granted.
#[derive(Clone, Copy, Debug)]
struct Served {
    at: u64,
    waited: u64,
    /// Since when the queue had waiters then.
    since: u64,
}

struct Service {
    queue: Shared,
    /// The requests that wait, by their numbers.
    waits: BTreeMap<usize, (u64, Task<Acquire<Shared>>)>,
    woken: Arc<Mutex<Vec<usize>>>,
    /// The requests in work, by the time of their end.
    works: Vec<(u64, Lease<Shared>)>,
    served: Vec<Served>,
    rejected: u64,
    since: u64,
}

impl Service {
    fn new(order: Order, shedding: Option<Shedding>) -> Self {
        let queue = Queue::new(Concurrency::new(WORKERS), ManualClock::new(), u64::MAX);
        let queue = queue.with_order(order);
        let queue = match shedding {
            Some(shedding) => queue.with_shedding(shedding),
            None => queue,
        };
        Self {
            queue: Arc::new(queue),
            waits: BTreeMap::new(),
            woken: Arc::default(),
            works: Vec::new(),
            served: Vec::new(),
            rejected: 0,
            since: 0,
        }
    }

    fn now(&self) -> u64 {
        self.queue.clock().now().as_nanos()
    }

    /// Starts a request.
    fn come(&mut self, number: usize) {
        if self.waits.is_empty() {
            self.since = self.now();
        }
        let task = Task::new(Acquire::new(Arc::clone(&self.queue), 1));
        self.waits.insert(number, (self.now(), task));
        self.poll(number);
    }

    fn poll(&mut self, number: usize) {
        let (now, woken) = (self.now(), Arc::clone(&self.woken));
        let Some((came, task)) = self.waits.get_mut(&number) else {
            return;
        };
        let core::task::Poll::Ready(outcome) =
            task.poll_with(&waker(move || woken.lock().unwrap().push(number)))
        else {
            return;
        };
        let waited = now - *came;
        self.waits.remove(&number);
        match outcome {
            Ok(lease) => {
                let since = self.since;
                self.served.push(Served {
                    at: now,
                    waited,
                    since,
                });
                self.works.push((now + TAKES, lease));
            }
            Err(_) => self.rejected += 1,
        }
    }

    /// Does all that happens until `to`.
    fn run_to(&mut self, to: u64) {
        loop {
            let woken = core::mem::take(&mut *self.woken.lock().unwrap());
            for number in woken {
                self.poll(number);
            }
            let end = self.works.iter().map(|(end, _)| *end).min();
            let due = match self.queue.advance() {
                Next::At(at) => Some(at.as_nanos()),
                _ => None,
            };
            if !self.woken.lock().unwrap().is_empty() {
                continue;
            }
            let Some(next) = end.into_iter().chain(due).min().filter(|next| *next <= to) else {
                break;
            };
            self.queue.clock().set(Timestamp::from_nanos(next));
            let done = self.works.iter().position(|(end, _)| *end == next);
            if let Some(done) = done {
                drop(self.works.swap_remove(done));
            }
        }
        self.queue.clock().set(Timestamp::from_nanos(to));
    }

    /// Serves requests that come at random with a mean distance of `gap`, until `to`.
    fn serve(&mut self, gap: u64, to: u64) {
        let mut random = Random::new(7);
        let mut number = 0;
        loop {
            let at = self.now() + random.below(2 * gap);
            if at >= to {
                break;
            }
            self.run_to(at);
            self.come(number);
            number += 1;
        }
        self.run_to(to);
    }

    /// The median wait of the requests granted after `from`, in microseconds.
    fn median(&self, from: u64) -> u64 {
        let served = self.served.iter().filter(|served| served.at >= from);
        let mut waits: Vec<_> = served.map(|served| served.waited).collect();
        waits.sort_unstable();
        waits[waits.len() / 2] / MICRO
    }

    /// The requests per second whose permits came within `patience` of their arrival, between two
    /// instants.
    fn goodput(&self, from: u64, to: u64, patience: u64) -> u64 {
        let good = self
            .served
            .iter()
            .filter(|served| (from..to).contains(&served.at) && served.waited <= patience);
        good.count() as u64 * SECOND / (to - from)
    }
}

/// Twice the capacity for ten seconds.
fn overload(order: Order, shedding: Option<Shedding>) -> Service {
    let mut service = Service::new(order, shedding);
    service.serve(500 * MICRO, 10 * SECOND);
    let (median, goodput) = (
        service.median(SECOND),
        service.goodput(SECOND, 10 * SECOND, PATIENCE),
    );
    println!("{order:?}, {shedding:?}: median {median} µs, {goodput} per second in time");
    service
}

/// What a caller waits for a permit before it gives up.
const PATIENCE: u64 = 100 * MILLI;

#[test]
fn with_shedding_the_requests_that_are_served_are_fresh_and_the_service_is_busy() {
    let service = overload(Order::OldestFirst, Some(Shedding::default()));
    let (target, interval) = (5 * MILLI, 100 * MILLI);
    for served in &service.served {
        assert!(served.waited <= interval, "{served:?}");
        let is_late = served.waited > 0 && served.at > served.since + 2 * interval;
        assert!(!is_late || served.waited <= target, "{served:?}");
    }
    // Near the target, and not far below it: of those that wait the oldest is served.
    let median = service.median(SECOND);
    assert!((3_000..=5_000).contains(&median), "{median} µs");
    let goodput = service.goodput(SECOND, 10 * SECOND, PATIENCE);
    assert!(goodput >= 990, "{goodput} per second");
    let counts = service.queue.counts();
    assert_eq!(counts.shed, service.rejected);
    assert!(counts.shed > 9_000, "{counts:?}");
}

#[test]
fn without_shedding_a_queue_that_serves_the_oldest_first_serves_stale_requests_only() {
    let service = overload(Order::OldestFirst, None);
    let goodput = service.goodput(SECOND, 10 * SECOND, PATIENCE);
    assert_eq!(goodput, 0, "per second");
    let all = service.goodput(SECOND, 10 * SECOND, u64::MAX);
    assert!(all >= 990, "{all} per second");
    let median = service.median(9 * SECOND);
    assert!(median > 4_000_000, "{median} µs");
}

#[test]
fn a_burst_that_is_served_within_the_interval_is_absorbed() {
    let rule = Shedding::controlled_delay(Duration::from_millis(5), Duration::from_millis(95));
    let burst = |requests| {
        let mut service = Service::new(Order::OldestFirst, Some(rule));
        for number in 0..requests {
            service.come(number);
        }
        service.run_to(SECOND);
        (service.served.len(), service.rejected)
    };
    // Ten are served at once, and ten more each 10 ms: the last ones after 90 ms.
    assert_eq!(burst(100), (100, 0));
    assert_eq!(burst(130), (100, 30));
}

#[test]
fn after_an_overload_a_burst_is_absorbed_again() {
    let mut service = overload(Order::OldestFirst, Some(Shedding::default()));
    service.run_to(11 * SECOND);
    assert_eq!(service.queue.counts().waiters, 0);
    let (served, rejected) = (service.served.len(), service.rejected);
    for number in 1_000_000..1_000_100 {
        service.come(number);
    }
    service.run_to(12 * SECOND);
    assert_eq!(
        (service.served.len() - served, service.rejected - rejected),
        (100, 0)
    );
}

#[test]
fn with_the_newest_first_while_overloaded_most_requests_that_are_served_have_hardly_waited() {
    let fifo = overload(Order::OldestFirst, Some(Shedding::default()));
    let adaptive = overload(Order::NewestWhileOverloaded, Some(Shedding::default()));
    let (oldest, newest) = (fifo.median(SECOND), adaptive.median(SECOND));
    assert!(newest < oldest / 4, "{newest} µs and {oldest} µs");
    let goodput = adaptive.goodput(SECOND, 10 * SECOND, PATIENCE);
    assert!(goodput >= 990, "{goodput} per second");
}

#[test]
fn a_short_burst_is_served_in_its_order() {
    let mut service = Service::new(Order::NewestWhileOverloaded, Some(Shedding::default()));
    for number in 0..100 {
        service.come(number);
    }
    service.run_to(SECOND);
    assert!(service.served.is_sorted_by_key(|served| served.waited));
    assert_eq!((service.served.len(), service.rejected), (100, 0));
}
