//! The worker of `docs/worker.md` in virtual time, with a partner that counts.

#[allow(dead_code, reason = "its `main`")]
#[path = "../examples/worker.rs"]
mod example;

use core::future::{pending, poll_fn};
use core::task::Poll;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use example::{Error, Job, Limits, OF_TENANT, OfTenant, Outcome, PATIENCE, Partner, Turns, serve};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use portcullis_async::{KeyedQueue, QueueKey, Rejected, TokioTimer};
use portcullis_core::keyed::{Address, Line, RandomSeed, WithTotal};
use portcullis_core::{
    AllOf, Clock, Concurrency, Denied, KeyedArray, KeyedList, Lease, Limiter, Penalty, Rate,
    SettingsError, TokenBucket,
};
use portcullis_tower::client::ServerLimits;
use portcullis_tower::fields::{ReadOptions, Stated};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until};

const SECOND: Duration = Duration::from_secs(1);

fn job(tenant: &str) -> Job {
    Job {
        tenant: tenant.to_owned(),
        created: Instant::now(),
    }
}

/// Counts a job. Call it in the function that `serve` tells what became of each.
fn count(job: &Job, outcome: &Outcome) {
    let name = match outcome {
        Outcome::Answered(_) => "answered",
        Outcome::Failed(_) => "failed",
        Outcome::TenantFull => "tenant_full",
        Outcome::Stale => "stale",
        Outcome::Panicked => "panicked",
        Outcome::Cancelled => "cancelled",
        Outcome::GivenBack(Rejected::Shed { .. }) => "shed",
        Outcome::GivenBack(Rejected::Deadline { .. }) => "late",
        Outcome::GivenBack(Rejected::Closed { .. }) => "closed",
        Outcome::GivenBack(_) => "other",
    };
    metrics::counter!("jobs", "outcome" => name).increment(1);
    let seconds = job.created.elapsed().as_secs_f64();
    metrics::histogram!("job_seconds", "outcome" => name).record(seconds);
}

/// Shows the queue. Call it every few seconds.
fn gauge(turns: &Turns) {
    let counts = turns.counts();
    metrics::gauge!("jobs_waiting").set(counts.waiters);
    // It counts up from the start, as a counter does.
    metrics::counter!("jobs_shed").absolute(counts.shed);
}

/// Finds the weight of the tenant at an address of the table.
type Weights = Box<dyn Fn(&Address) -> u32 + Send + Sync>;
type Table = KeyedList<OfTenant, Box<[Line]>, RandomSeed>;

fn weighted(
    table: Table,
    total: TokenBucket,
    weights: &[(&str, u32)],
) -> WithTotal<Table, TokenBucket, Weights> {
    let address = |name: &str| table.key(name).address();
    let weights = weights
        .iter()
        .map(|&(name, weight)| (address(name), weight));
    let weights: HashMap<Address, u32> = weights.collect();
    // All others have the weight 1.
    let weights: Weights = Box::new(move |tenant| weights.get(tenant).copied().unwrap_or(1));
    WithTotal::new(table, total).with_weights(weights)
}

/// Tells why the jobs of a tenant wait.
fn why(turns: &Turns, tenant: &str) -> &'static str {
    let now = turns.clock().now();
    let own = turns.change(|limits| {
        let tenant = limits.table().key(tenant);
        // The limits of a tenant in their order.
        let mut each = tenant.explain_each_at(now, 1);
        each.position(|limit| !limit.is_allowed())
    });
    match own {
        Some(0) => "its rate",
        Some(_) => "its number at once",
        None if turns.total().peek_at(now, 1).is_err() => "the total",
        None => "nothing",
    }
}

/// The longest time for which the partner works at a call.
const LONGEST: Duration = Duration::from_secs(5);

struct Turn(Option<Lease<QueueKey<Arc<Turns>>>>);

impl Turn {
    fn replied(mut self) {
        self.0 = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // No reply: a time-out, a panic, or the task was aborted.
        if let Some(lease) = self.0.take() {
            tokio::spawn(async move {
                sleep(LONGEST).await;
                drop(lease);
            });
        }
    }
}

/// The limits of a tenant, and its pause.
type PausedTenant = Penalty<AllOf<(TokenBucket, Concurrency)>>;
type PausedTenants = KeyedArray<PausedTenant, Box<[PausedTenant]>, Box<[Line]>, RandomSeed>;
type PausedTurns = KeyedQueue<WithTotal<PausedTenants, Penalty<TokenBucket>>, TokioTimer>;

fn paused_turns() -> Result<PausedTurns, SettingsError> {
    // The longest pause is a day.
    let pause = Penalty::builder(Duration::from_hours(24));
    let pause = pause.started_by_hand().build()?;
    let tenant = || {
        let rate = TokenBucket::new(Rate::per_second(5), 1);
        pause.around(AllOf::new((rate, Concurrency::new(4))))
    };
    let total = TokenBucket::new(Rate::new(59, Duration::from_millis(1_050)), 2);
    let turns = WithTotal::new(KeyedArray::for_keys(tenant, 1_000), pause.around(total));
    let turns = KeyedQueue::new(turns, TokioTimer::new(), OF_TENANT.into());
    Ok(turns.with_slack(Duration::ZERO))
}

/// Pauses the tenant of a call, or all tenants, if the reply asks for it. Returns whether it does.
fn pause(turns: &PausedTurns, tenant: &str, status: StatusCode, headers: &HeaderMap) -> bool {
    if status != StatusCode::TOO_MANY_REQUESTS {
        return false;
    }
    // Without the field, a second.
    let asks = Stated::read(headers, &ReadOptions::new()).retry_after;
    let now = turns.clock().now();
    let until = now.saturating_add(asks.unwrap_or(Duration::from_secs(1)));
    turns.change(|limits| {
        // Each partner says in its own way whom it means.
        if headers.get("x-limit").is_some_and(|of| of == "tenant") {
            let pause = |tenant: &PausedTenant| tenant.penalize_at(now, until);
            // Denied only if the table is full. Then no turn of the tenant comes either.
            let _ = limits.table().change_key_at(now, tenant, pause);
        } else {
            limits.total().penalize_at(now, until);
        }
    });
    true
}

/// What the partner has seen.
#[derive(Debug, Default)]
struct Seen {
    calls: Vec<(Instant, String)>,
    /// The calls of each tenant that are on their way, and the most at once.
    at_once: BTreeMap<String, (u32, u32)>,
    /// No call may begin before this instant.
    closed: Option<Instant>,
    early: u32,
    denials: u32,
}

/// Takes `takes` for each call. Denies each call whose number `denies` divides, for `asks`.
#[derive(Clone)]
struct Counting {
    seen: Arc<Mutex<Seen>>,
    takes: Duration,
    denies: usize,
    asks: Duration,
}

impl Counting {
    fn new(takes: u64) -> Self {
        Self {
            seen: Arc::default(),
            takes: Duration::from_millis(takes),
            denies: usize::MAX,
            asks: SECOND,
        }
    }

    fn denying(self, denies: usize, asks: Duration) -> Self {
        Self {
            denies,
            asks,
            ..self
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

impl Partner for Counting {
    async fn call(&self, job: &Job) -> Result<(StatusCode, HeaderMap), Error> {
        let (now, mut headers) = (Instant::now(), HeaderMap::new());
        let is_denied = {
            let mut seen = self.seen();
            seen.calls.push((now, job.tenant.clone()));
            let at_once = seen.at_once.entry(job.tenant.clone()).or_default();
            at_once.0 += 1;
            at_once.1 = at_once.1.max(at_once.0);
            seen.early += u32::from(seen.closed.is_some_and(|closed| now < closed));
            seen.calls.len().is_multiple_of(self.denies)
        };
        if !is_denied {
            sleep(self.takes).await;
        }
        let mut seen = self.seen();
        seen.at_once.get_mut(&job.tenant).unwrap().0 -= 1;
        if !is_denied {
            return Ok((StatusCode::OK, headers));
        }
        seen.denials += 1;
        seen.closed = Some(now + self.asks);
        headers.insert(RETRY_AFTER, self.asks.as_secs().into());
        Ok((StatusCode::TOO_MANY_REQUESTS, headers))
    }
}

/// The most calls in any second.
fn most_in_a_second<'t>(calls: impl Iterator<Item = &'t (Instant, String)>) -> usize {
    let times: Vec<_> = calls.map(|(at, _)| *at).collect();
    let within = |from: &Instant| {
        times
            .iter()
            .filter(|at| (*from..*from + SECOND).contains(at))
            .count()
    };
    times.iter().map(within).max().unwrap_or_default()
}

/// Sends jobs of a tenant at equal times, for `seconds`. Returns how many.
fn sends(
    jobs: &mpsc::Sender<Job>,
    tenant: &str,
    per_second: u32,
    seconds: u64,
) -> JoinHandle<usize> {
    let (jobs, tenant) = (jobs.clone(), tenant.to_owned());
    tokio::spawn(async move {
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < SECOND * u32::try_from(seconds).unwrap() {
            jobs.send(job(&tenant)).await.unwrap();
            sent += 1;
            sleep_until(start + SECOND * u32::try_from(sent).unwrap() / per_second).await;
        }
        sent
    })
}

/// What became of a job, its tenant, and how long after its creation.
type Ended = (String, Outcome, Duration);

async fn ended_of(
    jobs: &mut mpsc::Receiver<Job>,
    limits: &Limits,
    partner: &Counting,
) -> Vec<Ended> {
    let mut all = Vec::new();
    serve(jobs, limits, partner, pending::<()>(), |job, outcome| {
        all.push((job.tenant, outcome, job.created.elapsed()));
    })
    .await;
    all
}

/// A tenant that floods is refused at once, and the others get their turns. No call comes while the
/// partner is closed, and a job that waits for it is given back after 2 s at most.
#[tokio::test(start_paused = true)]
async fn a_flood_and_denials_at_once() {
    const SECONDS: u64 = 20;
    for (denies, asks) in [(usize::MAX, 1), (50, 1), (50, 5)] {
        let (sender, mut receiver) = mpsc::channel(100);
        let few = (0..10).map(|n| sends(&sender, &format!("few {n}"), 2, SECONDS));
        let mut senders: Vec<_> = few.collect();
        senders.push(sends(&sender, "flood", 500, SECONDS));
        drop(sender);
        let (limits, start) = (Limits::new(), Instant::now());
        let partner = Counting::new(50).denying(denies, SECOND * asks);
        let all = ended_of(&mut receiver, &limits, &partner).await;
        let took = start.elapsed();
        let mut sent = 0;
        for sender in senders {
            sent += sender.await.unwrap();
        }
        assert_eq!(all.len(), sent, "each job ends once");
        let seen = partner.seen();
        assert_eq!(seen.early, 0);
        assert!(most_in_a_second(seen.calls.iter()) <= 60);
        for (tenant, (_, most)) in &seen.at_once {
            assert!(*most <= 4, "{tenant}: {most}");
            let of_tenant = seen.calls.iter().filter(|(_, of)| of == tenant);
            assert!(most_in_a_second(of_tenant) <= 5, "{tenant}");
        }
        for (tenant, outcome, after) in &all {
            match outcome {
                Outcome::TenantFull => {
                    assert_eq!((&**tenant, *after), ("flood", Duration::ZERO));
                }
                Outcome::Stale | Outcome::Panicked | Outcome::Cancelled => {
                    panic!("no job waits for a task, and none is aborted");
                }
                Outcome::GivenBack(_) => assert!(*after <= PATIENCE, "{after:?}"),
                Outcome::Answered(_) => assert!(*after <= PATIENCE + partner.takes, "{after:?}"),
                Outcome::Failed(error) => panic!("{error}"),
            }
        }
        if seen.denials == 0 {
            let few = all.iter().filter(|(tenant, ..)| tenant != "flood");
            let mut few = few.map(|(_, outcome, _)| outcome);
            assert!(few.all(|outcome| matches!(outcome, Outcome::Answered(_))));
        } else {
            assert!(seen.denials >= 2 && took <= SECOND * 23, "{took:?}");
        }
    }
}

/// A turn that the partner then denies is for nothing. That costs its permits, which are lost while
/// the partner is closed in any case.
#[tokio::test(start_paused = true)]
async fn turns_for_nothing_cost_none_of_the_time_in_which_the_partner_is_open() {
    let (sender, mut receiver) = mpsc::channel(100);
    for n in 0..30 {
        drop(sends(&sender, &format!("{n}"), 4, 30));
    }
    drop(sender);
    let (limits, start) = (Limits::new(), Instant::now());
    let partner = Counting::new(50).denying(50, SECOND);
    ended_of(&mut receiver, &limits, &partner).await;
    let seen = partner.seen();
    let granted = limits.turns.counts().granted;
    let calls = u32::try_from(seen.calls.len()).unwrap();
    // After each denial one call tries first, for 50 ms, and the others wait for its reply.
    let shut = (SECOND + partner.takes) * seen.denials;
    let open = start.elapsed().checked_sub(shut).unwrap();
    let possible = open.as_secs_f64() * 59.0 / 1.05;
    println!("{granted} granted, {calls} calls of {possible:.0}");
    assert!(granted > u64::from(calls) * 3 / 2);
    assert!(f64::from(calls) > 0.95 * possible);
}

/// A lease of a queue with a total returns its permits by release, and those of rates by time.
#[tokio::test(start_paused = true)]
async fn a_turn_for_nothing_is_not_refunded() {
    let limits = Limits::new();
    let mut turn = limits.turns.acquire("a", 1).await.unwrap();
    let now = limits.turns.clock().now();
    assert_eq!(turn.refund_at(now, 1), Ok(0));
    let start = Instant::now();
    let _next = limits.turns.acquire("a", 1).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(200));
}

/// The flood is refused although no call is on its way, and the retry is known to the others.
#[tokio::test(start_paused = true)]
async fn while_the_partner_is_closed_for_long_jobs_are_given_back_at_once() {
    let (sender, mut receiver) = mpsc::channel(100);
    let partner = Counting::new(50).denying(1, SECOND * 30);
    let sends = [
        sends(&sender, "flood", 1_000, 2),
        sends(&sender, "few", 2, 2),
    ];
    drop(sender);
    let all = ended_of(&mut receiver, &Limits::new(), &partner).await;
    for sends in sends {
        sends.await.unwrap();
    }
    assert_eq!(partner.seen().calls.len(), 1);
    let is_late =
        |outcome: &Outcome| matches!(outcome, Outcome::GivenBack(Rejected::Deadline { .. }));
    assert!(
        all.iter()
            .all(|(_, outcome, after)| is_late(outcome) && *after <= SECOND / 5)
    );
}

/// The cap counts the tasks, so it holds although the jobs wait for the partner and in no queue.
#[tokio::test(start_paused = true)]
async fn a_flood_is_refused_while_its_first_jobs_wait_for_the_partner() {
    let limits = Limits::new();
    let partner = Counting::new(50).denying(1, SECOND);
    let first = job("other");
    let denied = limits.clone();
    let by = partner.clone();
    let denied = tokio::spawn(async move { denied.run(&by, &first).await });
    sleep(Duration::from_millis(1)).await;
    let (sender, mut receiver) = mpsc::channel(100);
    for _ in 0..100 {
        sender.send(job("flood")).await.unwrap();
    }
    drop(sender);
    let all = ended_of(&mut receiver, &limits, &partner).await;
    let full = all
        .iter()
        .filter(|(_, outcome, after)| matches!(outcome, Outcome::TenantFull) && after.is_zero());
    assert_eq!(full.count(), 100 - OF_TENANT as usize);
    assert!(matches!(denied.await.unwrap(), Outcome::GivenBack(_)));
}

/// The channel is never empty, so a branch other than the end is ready in every turn.
#[tokio::test(start_paused = true)]
async fn the_end_is_noticed_while_jobs_come_all_the_time() {
    let (sender, mut receiver) = mpsc::channel(100);
    let sends = tokio::spawn(async move {
        let mut sent = 0;
        while sender.send(job("a")).await.is_ok() {
            sent += 1;
        }
        sent
    });
    // Ready at one poll only, as a signal is for a future that began to wait before it.
    let mut polls = 0;
    let end = poll_fn(move |_| {
        polls += 1;
        if polls == 50 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    let (limits, partner) = (Limits::new(), Counting::new(50));
    let (mut answered, mut others) = (0, 0);
    serve(
        &mut receiver,
        &limits,
        &partner,
        end,
        |_, outcome| match outcome {
            Outcome::Answered(_) => answered += 1,
            _ => others += 1,
        },
    )
    .await;
    assert_eq!(answered, partner.seen().calls.len());
    assert!(answered <= 1, "{answered}");
    assert_eq!(answered + others, sends.await.unwrap(), "none is lost");
}

/// No job can come any more, but some still wait for their turns.
#[tokio::test(start_paused = true)]
async fn the_end_is_noticed_when_the_channel_has_ended() {
    let (sender, mut receiver) = mpsc::channel(100);
    for _ in 0..8 {
        sender.send(job("a")).await.unwrap();
    }
    drop(sender);
    let (limits, partner, start) = (Limits::new(), Counting::new(50), Instant::now());
    let mut outcomes = Vec::new();
    let end = sleep(Duration::from_millis(300));
    serve(&mut receiver, &limits, &partner, end, |_, outcome| {
        outcomes.push(outcome);
    })
    .await;
    let closed =
        |outcome: &&Outcome| matches!(outcome, Outcome::GivenBack(Rejected::Closed { .. }));
    assert_eq!(outcomes.iter().filter(closed).count(), 6, "{outcomes:?}");
    assert_eq!((outcomes.len(), partner.seen().calls.len()), (8, 2));
    assert!(start.elapsed() < Duration::from_millis(310));
}

/// Panics in each call of the tenant `bad`.
#[derive(Clone)]
struct Panicking(Counting);

impl Partner for Panicking {
    async fn call(&self, job: &Job) -> Result<(StatusCode, HeaderMap), Error> {
        assert!(job.tenant != "bad", "as the test wants it");
        self.0.call(job).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_panics_has_an_outcome_too() {
    let (sender, mut receiver) = mpsc::channel(100);
    for tenant in ["good", "bad", "good"] {
        sender.send(job(tenant)).await.unwrap();
    }
    drop(sender);
    let (limits, partner) = (Limits::new(), Panicking(Counting::new(50)));
    let mut outcomes = Vec::new();
    let end = pending::<()>();
    serve(&mut receiver, &limits, &partner, end, |job, outcome| {
        outcomes.push((job.tenant, matches!(outcome, Outcome::Panicked)));
    })
    .await;
    outcomes.sort();
    let expected = [("bad", true), ("good", false), ("good", false)];
    assert_eq!(
        outcomes,
        expected.map(|(tenant, is)| (tenant.to_owned(), is))
    );
}

#[tokio::test]
async fn a_job_whose_task_is_aborted_is_cancelled() {
    let task = tokio::spawn(pending::<()>());
    task.abort();
    let outcome = Outcome::of(&task.await.unwrap_err());
    assert!(matches!(outcome, Outcome::Cancelled), "{outcome:?}");
}

/// All permits are there, but it is too late.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_too_old_makes_no_call() {
    let (limits, partner) = (Limits::new(), Counting::new(50));
    let old = job("a");
    sleep(PATIENCE + Duration::from_millis(1)).await;
    let outcome = limits.run(&partner, &old).await;
    assert!(matches!(outcome, Outcome::Stale), "{outcome:?}");
    assert!(partner.seen().calls.is_empty());
}

/// The bound of the wait is for the jobs of one tenant, too.
#[tokio::test(start_paused = true)]
async fn a_burst_of_one_tenant_has_as_many_turns_as_fit_into_the_interval() {
    let (sender, mut receiver) = mpsc::channel(100);
    for _ in 0..12 {
        sender.send(job("a")).await.unwrap();
    }
    drop(sender);
    let (limits, partner) = (Limits::new(), Counting::new(50));
    let all = ended_of(&mut receiver, &limits, &partner).await;
    let answered = all
        .iter()
        .filter(|(_, outcome, _)| matches!(outcome, Outcome::Answered(_)));
    assert_eq!(answered.count(), 8, "{all:?}");
}

/// The 2 s begin when a job is created, also if it was long in the channel.
#[tokio::test(start_paused = true)]
async fn the_time_in_the_channel_counts() {
    let (limits, partner) = (Limits::new(), Counting::new(50));
    let (old, older) = (job("a"), job("a"));
    sleep(Duration::from_millis(1_900)).await;
    assert!(matches!(
        limits.run(&partner, &old).await,
        Outcome::Answered(_)
    ));
    // The tenant has its next turn 200 ms after the last one, which is later than the 2 s.
    let start = Instant::now();
    let outcome = limits.run(&partner, &older).await;
    assert!(
        matches!(outcome, Outcome::GivenBack(Rejected::Deadline { .. })),
        "{outcome:?}"
    );
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_is_measured_is_what_happened() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let limits = Limits::new();
    for outcome in [
        Outcome::Answered(StatusCode::OK),
        Outcome::Answered(StatusCode::NOT_FOUND),
        Outcome::TenantFull,
        Outcome::GivenBack(Rejected::Closed { permits: 1 }),
    ] {
        count(&job("a"), &outcome);
    }
    let _running = limits.turns.acquire("a", 1).await.unwrap();
    let waiting = limits.clone();
    let waits = tokio::spawn(async move { waiting.turns.acquire("a", 1).await.map(drop) });
    yield_now().await;
    gauge(&limits.turns);
    waits.abort();
    let text = handle.render();
    for line in [
        "jobs{outcome=\"answered\"} 2",
        "jobs{outcome=\"tenant_full\"} 1",
        "jobs{outcome=\"closed\"} 1",
        "jobs_waiting 1",
        "jobs_shed 0",
    ] {
        assert!(text.lines().any(|text| text == line), "{line}: {text}");
    }
    assert!(text.contains("job_seconds"));
}

#[tokio::test(start_paused = true)]
async fn a_turn_without_a_reply_stays_taken_while_the_partner_may_work() {
    let (limits, begun) = (Limits::new(), Instant::now());
    let turn = || async { Turn(limits.turns.owned_key("a").acquire(1).await.ok()) };
    for _ in 0..4 {
        drop(turn().await);
    }
    // Each 0.2 s one was taken. All four places of the tenant are taken for 5 s.
    assert!(turn().await.0.is_none(), "shed");
    sleep_until(begun + LONGEST + 2 * SECOND).await;
    for _ in 0..6 {
        let turn = turn().await;
        assert!(turn.0.is_some(), "a reply ends it at once");
        turn.replied();
    }
}

/// Denies each 10th call, and means its tenant, for 1 s. Counts calls that come too early.
#[derive(Default)]
struct Pausing {
    calls: u32,
    early: u32,
    closed: BTreeMap<String, Instant>,
}

impl Pausing {
    fn call(&mut self, tenant: &str) -> (StatusCode, HeaderMap) {
        let (now, mut headers) = (Instant::now(), HeaderMap::new());
        self.calls += 1;
        let until = self.closed.get(tenant);
        self.early += u32::from(until.is_some_and(|until| now < *until));
        if !self.calls.is_multiple_of(10) {
            return (StatusCode::OK, headers);
        }
        self.closed.insert(tenant.to_owned(), now + SECOND);
        headers.insert("x-limit", HeaderValue::from_static("tenant"));
        headers.insert(RETRY_AFTER, 1.into());
        (StatusCode::TOO_MANY_REQUESTS, headers)
    }
}

/// Lets 30 tenants send 4 jobs per second each, for 30 s. A job returns how many turns it had.
/// Returns how many turns all had, and how many calls per second the partner has seen.
async fn turns_and_calls<F>(
    partner: &Mutex<Pausing>,
    run: impl Fn(String, Instant) -> F,
) -> (u32, f64)
where
    F: Future<Output = u32> + Send + 'static,
{
    let (mut jobs, start) = (JoinSet::new(), Instant::now());
    for _ in 0..120 {
        for tenant in 0..30 {
            jobs.spawn(run(tenant.to_string(), Instant::now() + PATIENCE));
        }
        sleep(SECOND / 4).await;
    }
    let turns = jobs.join_all().await.into_iter().sum();
    let partner = partner.lock().unwrap();
    assert_eq!(partner.early, 0);
    (
        turns,
        f64::from(partner.calls) / start.elapsed().as_secs_f64(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_is_paused_in_the_queue_takes_no_turn() {
    let turns = Arc::new(paused_turns().unwrap());
    let partner = Arc::new(Mutex::new(Pausing::default()));
    let run = |tenant: String, deadline: Instant| {
        let (turns, partner) = (Arc::clone(&turns), Arc::clone(&partner));
        async move {
            let left = deadline.duration_since(Instant::now());
            let deadline = turns.clock().now() + left;
            let mut had = 0;
            while let Ok(_turn) = turns.acquire(&*tenant, 1).until(deadline).await {
                had += 1;
                let (status, headers) = partner.lock().unwrap().call(&tenant);
                if !pause(&turns, &tenant, status, &headers) {
                    break;
                }
            }
            had
        }
    };
    let (had, per_second) = turns_and_calls(&partner, run).await;
    let calls = partner.lock().unwrap().calls;
    println!("in the queue: {had} turns, {calls} calls, {per_second:.1} per second");
    assert_eq!(had, calls);
    assert!(per_second > 0.99 * 59.0 / 1.05);
}

/// The other way, with a name for the partner and one for each tenant.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_is_paused_beside_the_queue_takes_turns_for_nothing() {
    let (limits, servers) = (Limits::new(), ServerLimits::new());
    let partner = Arc::new(Mutex::new(Pausing::default()));
    let run = |tenant: String, deadline: Instant| {
        let (limits, servers, partner) = (limits.clone(), servers.clone(), Arc::clone(&partner));
        async move {
            let left = deadline.duration_since(Instant::now());
            let deadline = limits.turns.clock().now() + left;
            let mut had = 0;
            loop {
                if servers.ready(&tenant).until(deadline).await.is_err() {
                    return had;
                }
                let turn = limits.turns.acquire(&*tenant, 1).until(deadline).await;
                if turn.is_err() {
                    return had;
                }
                had += 1;
                let Ok(sending) = servers.acquire(&tenant).within(Duration::ZERO).await else {
                    continue;
                };
                let (status, headers) = partner.lock().unwrap().call(&tenant);
                if !sending.replied(status, &headers) {
                    return had;
                }
            }
        }
    };
    let (had, per_second) = turns_and_calls(&partner, run).await;
    let calls = partner.lock().unwrap().calls;
    println!("beside the queue: {had} turns, {calls} calls, {per_second:.1} per second");
    assert!(had > calls + calls / 20);
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_the_waits_that_it_makes_too_long() {
    let turns = Arc::new(paused_turns().unwrap());
    let of = |tenant: &str| turns.key(tenant).queued();
    let mut jobs = JoinSet::new();
    let mut waits = |tenant: &'static str| {
        let turns = Arc::clone(&turns);
        jobs.spawn(async move { turns.acquire(tenant, 1).within(PATIENCE).await.map(drop) });
    };
    for tenant in ["a", "a", "b", "b", "b"] {
        waits(tenant);
    }
    yield_now().await;
    assert_eq!((of("a"), of("b")), (1, 2));
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, 30.into());
    assert!(!pause(&turns, "a", StatusCode::OK, &headers));
    headers.insert("x-limit", HeaderValue::from_static("tenant"));
    assert!(pause(&turns, "a", StatusCode::TOO_MANY_REQUESTS, &headers));
    assert_eq!((of("a"), of("b")), (0, 2));
    let is_paused = |denied| matches!(denied, Err(Denied::Penalized { .. }));
    let now = turns.clock().now();
    let own = |name: &str| turns.change(|limits| limits.table().key(name).peek_at(now, 1));
    let paused = [own("a"), own("b"), turns.total().peek_at(now, 1)].map(is_paused);
    assert_eq!(paused, [true, false, false]);
    headers.remove("x-limit");
    assert!(pause(&turns, "a", StatusCode::TOO_MANY_REQUESTS, &headers));
    assert!(is_paused(turns.total().peek_at(now, 1)));
    assert_eq!((of("a"), of("b")), (0, 0));
    let denied = turns.acquire("c", 1).within(PATIENCE).await;
    assert!(matches!(denied, Err(Rejected::Deadline { .. })));
    sleep(30 * SECOND).await;
    assert!(turns.try_acquire("a", 1).is_ok());
}

/// The estimate of the guide: how long a new job waits, by the jobs that wait now.
#[tokio::test(start_paused = true)]
async fn a_job_waits_about_as_long_as_the_jobs_that_wait_say() {
    const HEAVY: [(&str, u32); 2] = [("0", 2), ("1", 2)];
    let rate = TokenBucket::new(Rate::per_second(5), 1);
    let table = KeyedList::for_keys((rate, Concurrency::new(4)), 1_000);
    let total = TokenBucket::new(Rate::new(59, Duration::from_millis(1_050)), 2);
    let limits = weighted(table, total, &HEAVY);
    let turns = KeyedQueue::new(limits, TokioTimer::new(), 100);
    let turns = turns.with_slack(Duration::ZERO).shared();
    let weight = |name: &str| HEAVY.iter().find(|of| of.0 == name).map_or(1, |of| of.1);
    let (start, mut jobs) = (Instant::now(), JoinSet::new());
    for tenant in 0..30 {
        // From 1 to 5 jobs wait.
        for _ in 0..=tenant % 5 {
            let turns = Arc::clone(&turns);
            jobs.spawn(async move {
                let (tenant, mut waits) = (tenant.to_string(), Vec::new());
                while start.elapsed() < 60 * SECOND {
                    let names = (0..30).map(|name: u32| name.to_string());
                    let busy = names.filter(|name| *name == tenant || turns.key(name).queued() > 0);
                    let busy: u32 = busy.map(|name| weight(&name)).sum();
                    let ahead = u32::try_from(turns.key(&*tenant).queued()).unwrap();
                    let all = f64::from((ahead + 1).div_ceil(weight(&tenant)) * busy);
                    let begun = Instant::now();
                    drop(turns.acquire(&*tenant, 1).await.unwrap());
                    let waited = begun.elapsed().as_secs_f64();
                    if begun > start + 10 * SECOND {
                        waits.push((tenant.clone(), waited, all / (59.0 / 1.05)));
                    }
                }
                waits
            });
        }
    }
    let waits: Vec<_> = jobs.join_all().await.into_iter().flatten().collect();
    let off = |(_, waited, about): &(_, f64, f64)| waited / about;
    let least = waits.iter().map(off).fold(f64::MAX, f64::min);
    let most = waits.iter().map(off).fold(0.0, f64::max);
    println!(
        "{} waits of {least:.2} to {most:.2} times the estimate",
        waits.len()
    );
    assert!(waits.len() > 1_000 && least > 0.5 && most < 1.35);
    // In proportion to the weights. Both have jobs that wait all the time.
    let of = |name: &str| waits.iter().filter(|of| of.0 == name).count();
    assert_eq!(of("1"), 2 * of("2"));
}

#[tokio::test(start_paused = true)]
async fn it_is_known_why_a_tenant_waits() {
    let limits = Limits::new();
    let turns = &limits.turns;
    assert_eq!(why(turns, "a"), "nothing");
    let first = turns.acquire("a", 1).await.unwrap();
    assert_eq!(why(turns, "a"), "its rate");
    let _second = turns.acquire("b", 1).await.unwrap();
    assert_eq!(
        (why(turns, "a"), why(turns, "c")),
        ("its rate", "the total")
    );
    let mut held = vec![first];
    for _ in 0..3 {
        held.push(turns.acquire("a", 1).await.unwrap());
    }
    sleep(SECOND).await;
    assert_eq!(why(turns, "a"), "its number at once");
}
