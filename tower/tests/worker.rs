//! The worker of `docs/worker.md` in virtual time, with a partner that counts.

#[allow(dead_code, reason = "its `main`")]
#[path = "../examples/worker.rs"]
mod example;

use core::future::{pending, poll_fn};
use core::task::Poll;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use example::{Error, Job, Limits, OF_TENANT, Outcome, PATIENCE, Partner, Turns, serve};
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use portcullis_async::{QueueKey, Rejected};
use portcullis_core::{Clock, Lease};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, yield_now};
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
                Outcome::Stale | Outcome::Panicked => panic!("no job waits for a task"),
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
