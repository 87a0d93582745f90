//! A worker: jobs of several tenants from a channel, at most 8 at once and 50 units of cost per
//! second. While all places are in use, the tenants take turns.
//!
//! ```sh
//! cargo run -p portcullis-async --features tokio --example worker
//! ```

use core::pin::pin;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_async::{KeyedQueue, Queue, Rejected, TokioTimer};
use portcullis_core::keyed::{ConcurrencyRules, Line, RandomSeed, WithTotal};
use portcullis_core::{Clock, Concurrency, Keyed, Rate, TokenBucket};
use tokio::signal::ctrl_c;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The most jobs that have a task: those that run, and those that wait for their turn.
const TASKS: usize = 1_000;

/// The most jobs of one tenant that wait. A tenant that sends too many takes no tasks from the
/// others.
const WAITING: u64 = 100;

/// How long a job may wait in its task, for its place and the rate together. After that it is given
/// back.
const PATIENCE: Duration = Duration::from_secs(2);

/// A job of a tenant.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) tenant: String,
    /// What it counts in the rate, at most 5.
    pub(crate) cost: u32,
}

/// A limit for each tenant.
pub(crate) type Tenants = Keyed<ConcurrencyRules, Box<[Line]>, RandomSeed>;

/// The limits of all jobs.
#[derive(Clone)]
pub(crate) struct Limits {
    /// The places: 8 in total, of which a tenant may have all while no other waits.
    places: Arc<KeyedQueue<WithTotal<Tenants, Concurrency>, TokioTimer>>,
    /// The costs per second.
    rate: Arc<Queue<TokenBucket, TokioTimer>>,
}

impl Limits {
    pub(crate) fn new() -> Self {
        // 1,000 tenants can be in use at once.
        let tenants = Keyed::for_keys(Concurrency::new(8), 1_000);
        let places = WithTotal::new(tenants, Concurrency::new(8));
        // Room for the largest job. So up to 55 in the first second, and 50 in each one after it.
        let rate = TokenBucket::new(Rate::per_second(50), 5);
        Self {
            places: KeyedQueue::new(places, TokioTimer::new(), WAITING).shared(),
            // Who waits here has a place.
            rate: Queue::new(rate, TokioTimer::new(), 8 * 5).shared(),
        }
    }

    /// Runs a job when it is its turn. A job that is rejected has not begun.
    pub(crate) async fn run(&self, job: &Job) -> Result<(), Rejected> {
        let deadline = self.places.clock().now() + PATIENCE;
        // A place, until the job has ended or its future is dropped.
        let place = self.places.acquire(&*job.tenant, 1);
        let _place = place.until(deadline).await?;
        // The rate last: its permits count from when they are granted.
        let _ = self.rate.acquire(job.cost).until(deadline).await?;
        work(job).await;
        Ok(())
    }

    /// Rejects all jobs that wait, and those that come.
    pub(crate) fn close(&self) {
        self.places.close();
        self.rate.close();
    }

    /// The places that are free, for a gauge.
    pub(crate) fn free(&self) -> u64 {
        self.places.total().available_at(self.places.clock().now())
    }
}

/// Stands for the job.
async fn work(_: &Job) {
    sleep(Duration::from_millis(20)).await;
}

/// Runs the jobs of a channel until it ends, or until `end`.
pub(crate) async fn serve(
    jobs: &mut mpsc::Receiver<Job>,
    limits: &Limits,
    end: impl Future,
) -> Served {
    // One future for the whole loop. A new `ctrl_c()` in each turn would miss a signal that comes
    // in a turn in which another branch is chosen.
    let mut end = pin!(end);
    let mut tasks = JoinSet::new();
    let mut served = Served::default();
    loop {
        tokio::select! {
            // A task that waits has taken its job out of the channel. With this bound, the rest
            // stays there, and a full channel makes the senders wait.
            job = jobs.recv(), if tasks.len() < TASKS => {
                let Some(job) = job else { break };
                let limits = limits.clone();
                tasks.spawn(async move { (limits.run(&job).await, job) });
            }
            Some(ended) = tasks.join_next() => served.add(ended),
            _ = &mut end => {
                jobs.close();
                limits.close();
                break;
            }
        }
    }
    // The jobs that run end. After `close`, those that wait end at once.
    while let Some(ended) = tasks.join_next().await {
        served.add(ended);
    }
    // What was still in the channel.
    while let Some(job) = jobs.recv().await {
        served.left.push(job);
    }
    served
}

/// What became of the jobs.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// How many jobs of each tenant have run.
    pub(crate) done: BTreeMap<String, u32>,
    /// The jobs that have not run.
    pub(crate) left: Vec<Job>,
}

impl Served {
    fn add(&mut self, ended: Result<(Result<(), Rejected>, Job), tokio::task::JoinError>) {
        match ended {
            Ok((Ok(()), job)) => *self.done.entry(job.tenant).or_default() += 1,
            // `Deadline`, `QueueFull` or `Closed`: another worker may run it, or this one later.
            Ok((Err(_), job)) => self.left.push(job),
            Err(error) => eprintln!("a job has panicked: {error}"),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (sender, mut receiver) = mpsc::channel(100);
    tokio::spawn(async move {
        for index in 0..60 {
            // The tenant `many` sends four jobs of six.
            let tenant = ["many", "many", "a", "many", "many", "b"][index % 6].to_owned();
            let job = Job { tenant, cost: 1 };
            if sender.send(job).await.is_err() {
                return;
            }
        }
    });
    let limits = Limits::new();
    let served = serve(&mut receiver, &limits, ctrl_c()).await;
    println!("done: {:?}, left: {}", served.done, served.left.len());
    println!("free places: {}", limits.free());
}
