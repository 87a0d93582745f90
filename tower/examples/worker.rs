//! A worker: jobs of several tenants from a channel, which call the API of one partner. Of each
//! tenant 5 per second and 4 at once, of all of them 60 per second, in turns. It leaves the partner
//! alone for as long as its `Retry-After` asks.
//!
//! ```sh
//! cargo run -p portcullis-tower --features client --example worker
//! ```

use core::pin::pin;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use portcullis_async::{KeyedQueue, QueueKey, Rejected, Shedding, TokioTimer};
use portcullis_core::keyed::{
    ConcurrencyRules, Line, RandomSeed, TableKey, TokenBucketRules, WithTotal,
};
use portcullis_core::{
    Clock, Concurrency, Denied, Keyed, KeyedList, Lease, Rate, Timestamp, TokenBucket,
};
use portcullis_tower::client::{Sending, ServerLimits};
use tokio::signal::ctrl_c;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep};

/// The most jobs that have a task: those that run, and those that wait.
const TASKS: usize = 1_000;

/// The most jobs of one tenant that have a task: 8 get their turn within 1.5 s, and 4 run.
pub(crate) const OF_TENANT: u32 = 12;

/// How long after its creation a job may begin.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The server whose replies count.
const PARTNER: &str = "api.example.com";

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) tenant: String,
    pub(crate) created: Instant,
}

pub(crate) type Error = Box<dyn core::error::Error + Send + Sync>;

/// The head of the partner's reply.
type Reply = (StatusCode, HeaderMap);

/// Sends the request of a job.
pub(crate) trait Partner: Clone + Send + Sync + 'static {
    fn call(&self, job: &Job) -> impl Future<Output = Result<Reply, Error>> + Send;
}

/// What became of a job.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The partner has answered, and not with a denial.
    Answered(StatusCode),
    /// The call has failed. The partner may have done the job or not.
    Failed(Error),
    /// It has not been done: the partner has seen no call, or has denied it.
    GivenBack(Rejected),
    /// It was too old when it came. It has not been done.
    Stale,
    /// Its task has panicked. The partner may have done the job or not.
    Panicked,
    /// Its task has been aborted. The partner may have done the job or not.
    Cancelled,
    /// Too many jobs of its tenant have a task. It has not been done.
    TenantFull,
}

impl Outcome {
    /// What became of a job whose task has returned nothing.
    pub(crate) fn of(error: &JoinError) -> Self {
        if error.is_cancelled() {
            Self::Cancelled
        } else {
            Self::Panicked
        }
    }
}

/// The limits of each tenant, and the rate of all tenants.
pub(crate) type OfTenant = (TokenBucketRules, ConcurrencyRules);
type Tenants = WithTotal<KeyedList<OfTenant, Box<[Line]>, RandomSeed>, TokenBucket>;
pub(crate) type Turns = KeyedQueue<Tenants, TokioTimer>;

/// A number of tasks for each tenant.
type Tasks = Keyed<ConcurrencyRules, Box<[Line]>, RandomSeed>;

/// Clones share their limits.
#[derive(Clone)]
pub(crate) struct Limits {
    /// The tasks of each tenant.
    tasks: Arc<Tasks>,
    /// The limits of this worker.
    pub(crate) turns: Arc<Turns>,
    /// What the partner says in its replies.
    partner: ServerLimits,
}

impl Limits {
    pub(crate) fn new() -> Self {
        let millis = Duration::from_millis;
        // 1,000 tenants can be in use at once.
        let tasks = Keyed::for_keys(Concurrency::new(OF_TENANT), 1_000);
        let rate = TokenBucket::new(Rate::per_second(5), 1);
        let tenants = KeyedList::for_keys((rate, Concurrency::new(4)), 1_000);
        // 2 at once, and 59 in each 1.05 s after that: at most 60 arrive in any second, if they
        // arrive up to 50 ms less evenly than they are sent.
        let total = TokenBucket::new(Rate::new(59, millis(1_050)), 2);
        let turns = WithTotal::new(tenants, total);
        let turns = KeyedQueue::new(turns, TokioTimer::new(), OF_TENANT.into())
            // A job waits for its turn for 1.5 s at most.
            .with_shedding(Shedding::controlled_delay(millis(1_000), millis(1_500)))
            // The partner counts too.
            .with_slack(Duration::ZERO);
        let partner = ServerLimits::builder();
        Self {
            tasks: Arc::new(tasks),
            turns: turns.shared(),
            // A longer `Retry-After` than that of a day counts as one of a day.
            partner: partner.longest(Duration::from_hours(24)).build(),
        }
    }

    /// Takes a task of the tenant, or does not: no job waits for that.
    fn task(&self, tenant: &str) -> Result<Lease<TableKey<Arc<Tasks>>>, Denied> {
        let now = self.turns.clock().now();
        self.tasks.owned_key(tenant).try_acquire_at(now, 1)
    }

    /// Waits until the job may call the partner.
    async fn admit(
        &self,
        job: &Job,
        deadline: Timestamp,
    ) -> Result<(Lease<QueueKey<&Turns>>, Sending), Rejected> {
        loop {
            // Waits for the end of a `Retry-After`, and takes nothing.
            self.partner.ready(PARTNER).until(deadline).await?;
            // Waits for all limits of this worker, decided at once.
            let turn = self.turns.acquire(&*job.tenant, 1).until(deadline).await?;
            // The partner may have denied another call meanwhile. A job with a turn does not wait.
            match self.partner.acquire(PARTNER).within(Duration::ZERO).await {
                Ok(sending) => return Ok((turn, sending)),
                // The job waits with the others again.
                Err(Rejected::Deadline { .. }) => {}
                Err(rejected) => return Err(rejected),
            }
        }
    }

    /// Runs a job when it is its turn.
    pub(crate) async fn run(&self, partner: &impl Partner, job: &Job) -> Outcome {
        // A deadline of now would let it begin at once, if permits are there.
        let Some(left) = PATIENCE.checked_sub(job.created.elapsed()) else {
            return Outcome::Stale;
        };
        // One deadline for all waits, also those after a denial.
        let deadline = self.turns.clock().now() + left;
        loop {
            let (_turn, sending) = match self.admit(job, deadline).await {
                Ok(admitted) => admitted,
                Err(rejected) => return Outcome::GivenBack(rejected),
            };
            match partner.call(job).await {
                // All jobs wait from now on. This one does too, if there is time.
                Ok((status, headers)) if sending.replied(status, &headers) => {}
                Ok((status, _)) => return Outcome::Answered(status),
                Err(error) => return Outcome::Failed(error),
            }
        }
    }

    /// Ends all waits, and rejects all jobs that come. The calls that are on their way go on.
    pub(crate) fn close(&self) {
        self.turns.close();
        self.partner.close();
    }
}

/// Runs the jobs of a channel until it ends, or until `end`. Tells what became of each.
pub(crate) async fn serve(
    jobs: &mut mpsc::Receiver<Job>,
    limits: &Limits,
    partner: &impl Partner,
    end: impl Future,
    mut ended: impl FnMut(Job, Outcome),
) {
    // One future for the whole loop. A new `ctrl_c()` in each turn would miss a signal that comes
    // in a turn in which another branch is chosen.
    let mut end = pin!(end);
    let mut tasks = JoinSet::new();
    // Their jobs: a task that panics does not return its own.
    let mut running = HashMap::new();
    // Whether jobs may come, and whether calls may begin.
    let (mut come, mut begin) = (true, true);
    while come || !tasks.is_empty() {
        tokio::select! {
            // A task that waits has taken its job out of the channel. With this bound, the rest
            // stays there, and a full channel makes the senders wait.
            job = jobs.recv(), if come && tasks.len() < TASKS => {
                let Some(job) = job else {
                    come = false;
                    continue;
                };
                if !begin {
                    // It was in the channel at the end.
                    ended(job, Outcome::GivenBack(Rejected::Closed { permits: 1 }));
                    continue;
                }
                // Before all waits: so it is refused at once, also while the partner is left alone.
                let Ok(task) = limits.task(&job.tenant) else {
                    ended(job, Outcome::TenantFull);
                    continue;
                };
                let (limits, partner) = (limits.clone(), partner.clone());
                let job = Arc::new(job);
                let of_task = Arc::clone(&job);
                let task = tasks.spawn(async move {
                    let _task = task;
                    limits.run(&partner, &of_task).await
                });
                running.insert(task.id(), job);
            }
            Some(task) = tasks.join_next_with_id() => {
                let (id, outcome) = match task {
                    Ok(done) => done,
                    Err(error) => (error.id(), Outcome::of(&error)),
                };
                // The task has ended and dropped its reference, so this is the last one.
                if let Some(job) = running.remove(&id).and_then(Arc::into_inner) {
                    ended(job, outcome);
                }
            }
            // Also when the channel has ended: its last jobs may still wait.
            _ = &mut end, if begin => {
                jobs.close();
                // Jobs that wait end at once, and calls that are on their way go on.
                limits.close();
                begin = false;
            }
        }
    }
}

/// Stands for the API of the partner. It denies the first call of the tenant `c`.
#[derive(Clone)]
struct Example;

impl Partner for Example {
    async fn call(&self, job: &Job) -> Result<Reply, Error> {
        static HAS_DENIED: AtomicBool = AtomicBool::new(false);
        sleep(Duration::from_millis(20)).await;
        let mut headers = HeaderMap::new();
        if job.tenant != "c" || HAS_DENIED.swap(true, Relaxed) {
            return Ok((StatusCode::OK, headers));
        }
        headers.insert(RETRY_AFTER, 1.into());
        Ok((StatusCode::TOO_MANY_REQUESTS, headers))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (sender, mut receiver) = mpsc::channel(100);
    tokio::spawn(async move {
        // The tenant `many` sends most of the jobs.
        let tenants = ["many", "many", "a", "many", "b"];
        for tenant in tenants.into_iter().cycle().take(40).chain(["c"]) {
            let (tenant, created) = (tenant.to_owned(), Instant::now());
            let job = Job { tenant, created };
            // After the end, the channel returns the job.
            if let Err(returned) = sender.send(job).await {
                println!("{}: not sent", returned.0.tenant);
            }
        }
    });
    let limits = Limits::new();
    let tell = |job: Job, outcome| match outcome {
        Outcome::Answered(status) => println!("{}: {status}", job.tenant),
        Outcome::Failed(error) => println!("{}: {error}", job.tenant),
        Outcome::GivenBack(rejected) => println!("{}: given back: {rejected}", job.tenant),
        Outcome::TenantFull => println!("{}: too many jobs", job.tenant),
        Outcome::Stale => println!("{}: too old", job.tenant),
        Outcome::Panicked => println!("{}: panicked", job.tenant),
        Outcome::Cancelled => println!("{}: cancelled", job.tenant),
    };
    serve(&mut receiver, &limits, &Example, stopped(), tell).await;
}

/// Waits for Ctrl-C, or for SIGTERM, by which containers are stopped.
async fn stopped() {
    #[cfg(unix)]
    {
        let mut term = signal(SignalKind::terminate()).expect("a signal that can be handled");
        tokio::select! {
            _ = ctrl_c() => {}
            _ = term.recv() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = ctrl_c().await;
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;

    /// Answers after a second, and counts the calls that are on their way.
    #[derive(Clone, Default)]
    struct Slow {
        calls: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Partner for Slow {
        async fn call(&self, _: &Job) -> Result<Reply, Error> {
            let calls = self.calls.fetch_add(1, Relaxed) + 1;
            self.most.fetch_max(calls, Relaxed);
            sleep(Duration::from_secs(1)).await;
            self.calls.fetch_sub(1, Relaxed);
            Ok((StatusCode::OK, HeaderMap::new()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_has_four_at_once_and_the_rest_of_a_burst_is_shed() {
        let (sender, mut jobs) = mpsc::channel(12);
        for _ in 0..12 {
            let (tenant, created) = ("a".to_owned(), Instant::now());
            sender.send(Job { tenant, created }).await.unwrap();
        }
        drop(sender);
        let (limits, partner) = (Limits::new(), Slow::default());
        let (mut answered, mut shed) = (0, 0);
        let end = core::future::pending::<()>();
        let ended = |_, outcome: Outcome| match outcome {
            Outcome::Answered(_) => answered += 1,
            Outcome::GivenBack(Rejected::Shed { .. }) => shed += 1,
            other => panic!("{other:?}"),
        };
        serve(&mut jobs, &limits, &partner, end, ended).await;
        // Four begin in the first second, and three more until the others have waited for 1.5 s.
        assert_eq!((answered, shed), (7, 5));
        assert_eq!(partner.most.load(Relaxed), 4);
    }
}
