//! Threads that wait.

use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use core::time::Duration;
use std::sync::mpsc;
use std::thread;

use portcullis_async::TokioTimer;
use portcullis_core::{Retry, Timestamp};
use portcullis_policy::{
    Algorithm, Limit, LivePolicy, LoadedPolicy, Outcome, Policy, QueueEnd, QueueOrder,
    QueuedDecision, Request, Rule,
};

use super::support::{Task, Time, run};
use super::{GET, SECOND, one_at_once, policy};

const HOUR: Duration = Duration::from_hours(1);

/// A policy for threads that outlive a test that fails.
fn leaked(policy: Policy) -> &'static Policy {
    Box::leak(Box::new(policy))
}

/// One permit per hour. In real time no thread gets the second one.
fn one_per_hour() -> Rule {
    let limit = Limit::per(1, HOUR).algorithm_of(Algorithm::FixedWindow);
    Rule::new("one").limit(limit.queue(10))
}

/// A thread that waits, and its decision.
struct Thread(mpsc::Receiver<QueuedDecision<'static>>);

impl Thread {
    /// Starts a thread that acquires a permit of the rule `one`, and returns once it waits behind
    /// all others.
    fn waiting(policy: &'static Policy, deadline: Timestamp) -> Self {
        let waiters = || policy.queue_counts("one").unwrap().waiters;
        let before = waiters();
        let thread = Self::start(policy, deadline);
        while waiters() == before {
            assert!(thread.0.try_recv().is_err(), "it does not wait");
            thread::yield_now();
        }
        thread
    }

    fn start(policy: &'static Policy, deadline: Timestamp) -> Self {
        let (say, hear) = mpsc::channel();
        thread::spawn(move || {
            let _ = say.send(policy.acquire(&GET).until(deadline).block());
        });
        Self(hear)
    }

    #[track_caller]
    fn decision(self) -> QueuedDecision<'static> {
        let decision = self.0.recv_timeout(60 * SECOND);
        decision.expect("it sleeps, or has panicked")
    }

    #[track_caller]
    fn end(self) -> Option<QueueEnd> {
        self.decision().end()
    }
}

#[test]
fn threads_and_tasks_are_granted_in_one_order() {
    let policy = leaked(policy(&Time::default(), [one_at_once()]));
    let held = policy.blocking_acquire(&GET);
    assert!(held.is_allowed() && held.end().is_none(), "decided at once");
    let (say, hear) = mpsc::channel();
    let mut tasks = Vec::new();
    for number in 0..8 {
        if number % 2 == 0 {
            let say = say.clone();
            thread::spawn(move || {
                let decision = policy.blocking_acquire(&GET);
                say.send((number, decision.is_allowed())).unwrap();
            });
        } else {
            let mut task = [Task::new(policy.acquire(&GET))];
            run(&mut task);
            tasks.push((number, task));
        }
        while policy.queue_counts("one").unwrap().waiters <= number {
            assert!(hear.try_recv().is_err(), "it does not wait");
            thread::yield_now();
        }
    }
    assert!(!policy.decide_at(policy.now(), &GET).is_allowed());
    drop(held);
    for (number, mut task) in tasks {
        // The thread before it in the queue is served first.
        let thread = hear.recv_timeout(60 * SECOND).expect("the thread sleeps");
        assert_eq!(thread, (number - 1, true));
        while task[0].output.is_none() {
            thread::yield_now();
            run(&mut task);
        }
        assert!(task[0].output.as_ref().unwrap().is_allowed());
        assert!(hear.try_recv().is_err(), "no other thread has the permit");
    }
    let counts = policy.queue_counts("one").unwrap();
    assert_eq!((counts.granted, counts.waiters, counts.permits), (8, 0, 0));
}

#[test]
fn a_thread_is_granted_at_its_instant_by_the_time_of_the_policy() {
    let time = Time::default();
    let policy = leaked(policy(&time, [one_per_hour()]));
    assert!(policy.blocking_acquire(&GET).is_allowed());
    let threads = [(); 2].map(|()| Thread::waiting(policy, Timestamp::MAX));
    for (hours, thread) in (1..).zip(threads) {
        time.advance(HOUR);
        let decision = thread.decision();
        assert_eq!(
            (decision.end(), decision.waited()),
            (Some(QueueEnd::Granted), hours * HOUR)
        );
    }
}

#[test]
fn a_deadline_of_a_thread_is_measured_by_the_time_of_the_policy() {
    let time = Time::default();
    let policy = leaked(policy(&time, [one_at_once()]));
    let held = policy.blocking_acquire(&GET);
    let [ends, granted] =
        [Timestamp::ZERO + HOUR, Timestamp::MAX].map(|at| Thread::waiting(policy, at));
    time.advance(HOUR);
    let late = ends.decision();
    assert!(!late.is_allowed());
    assert_eq!(
        (late.end(), late.waited(), late.retry()),
        (Some(QueueEnd::Late), HOUR, Some(Retry::OnRelease))
    );
    drop(held);
    assert_eq!(granted.end(), Some(QueueEnd::Granted));
    assert_eq!(policy.queue_counts("one").unwrap().late, 1);
}

#[test]
fn a_thread_whose_deadline_cannot_be_met_does_not_sleep() {
    let time = Time::default();
    let policy = policy(&time, [one_per_hour()]);
    assert!(
        policy
            .acquire(&GET)
            .within(Duration::ZERO)
            .block()
            .is_allowed()
    );
    for late in [
        policy
            .acquire(&GET)
            .within(HOUR.saturating_sub(Duration::from_nanos(1)))
            .block(),
        policy.acquire(&GET).until(time.now()).block(),
    ] {
        assert_eq!(
            (late.end(), late.waited()),
            (Some(QueueEnd::Late), Duration::ZERO)
        );
        let window_end = Timestamp::ZERO + HOUR;
        assert_eq!(late.retry(), Some(Retry::At(window_end)));
    }
}

#[test]
fn a_thread_that_finds_the_queue_full_is_denied_or_evicts_another() {
    let limit = Limit::at_once(1).queue(1);
    let time = Time::default();
    let policy_of = |order| {
        let rule = Rule::new("one").limit(limit.clone().queue_order(order));
        leaked(policy(&time, [rule]))
    };

    let policy = policy_of(QueueOrder::OldestFirst);
    let held = policy.blocking_acquire(&GET);
    let waits = Thread::waiting(policy, Timestamp::MAX);
    assert_eq!(policy.blocking_acquire(&GET).end(), Some(QueueEnd::Full));
    drop(held);
    assert_eq!(waits.end(), Some(QueueEnd::Granted));

    let policy = policy_of(QueueOrder::NewestFirst);
    let held = policy.blocking_acquire(&GET);
    let oldest = Thread::waiting(policy, Timestamp::MAX);
    let newest = Thread::start(policy, Timestamp::MAX);
    assert_eq!(oldest.end(), Some(QueueEnd::Evicted));
    drop(held);
    assert_eq!(newest.end(), Some(QueueEnd::Granted));
    let counts = policy.queue_counts("one").unwrap();
    assert_eq!((counts.waiters, counts.evicted, counts.granted), (0, 1, 1));
}

#[test]
fn a_limit_without_a_queue_ends_the_wait_of_a_thread() {
    let time = Time::default();
    let day = Limit::per(2, 24 * HOUR).algorithm_of(Algorithm::FixedWindow);
    let rule = one_per_hour().limit(day);
    let policy = leaked(policy(&time, [rule]));
    assert!(policy.blocking_acquire(&GET).is_allowed());
    let threads = [(); 2].map(|()| Thread::waiting(policy, Timestamp::MAX));
    time.advance(HOUR);
    time.advance(HOUR);
    let [second, third] = threads.map(Thread::decision);
    assert_eq!(second.end(), Some(QueueEnd::Granted));
    assert_eq!(third.end(), Some(QueueEnd::Denied));
    let by_day = |decision: &QueuedDecision<'_>| {
        matches!(decision.outcome(), Outcome::Denied { limit: Some(1), .. })
    };
    assert!(by_day(&third));
    let at_once = policy.blocking_acquire(&GET);
    assert!(
        at_once.end().is_none() && by_day(&at_once),
        "denied at once"
    );
}

#[test]
fn a_change_of_the_policy_grants_or_ends_the_waits_of_threads() {
    for (limit, end) in [
        (Limit::at_once(2).queue(10), QueueEnd::Granted),
        // Without a queue.
        (Limit::at_once(1), QueueEnd::Denied),
    ] {
        let time = Time::default();
        let live: &'static LivePolicy =
            Box::leak(Box::new(LivePolicy::new(policy(&time, [one_at_once()]))));
        let first: &'static LoadedPolicy = Box::leak(Box::new(live.load()));
        let held = first.blocking_acquire(&GET);
        let thread = Thread::waiting(first, Timestamp::MAX);
        let after = Policy::new([Rule::new("one").limit(limit)]).unwrap();
        live.replace_at(time.now(), after);
        let decision = thread.decision();
        assert_eq!(decision.end(), Some(end));
        drop((held, decision));
        let last = live.load();
        assert!(last.blocking_acquire(&GET).is_allowed(), "nothing is lost");
    }
}

/// The timer of the runtime cannot run while its only thread is blocked.
#[test]
fn a_blocked_thread_needs_no_timer_that_runs() {
    let (say, hear) = mpsc::channel();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().unwrap();
        let ends = runtime.block_on(async {
            let limit = Limit::per(1, Duration::from_millis(5));
            let rule = Rule::new("rate").limit(limit.queue(10));
            let policy = Policy::new([rule]).unwrap().with_timer(TokioTimer::new);
            let mut ends = (0..9).map(|_| policy.blocking_acquire(&GET).end());
            assert_eq!(ends.next(), Some(None));
            ends.filter(|end| *end == Some(QueueEnd::Granted)).count()
        });
        say.send(ends)
    });
    let waited = hear.recv_timeout(60 * SECOND).expect("it sleeps");
    assert!(waited > 0, "no request had to wait");
}

/// In real time, with the default timer: never more at once than allowed, none is forgotten.
#[test]
fn threads_and_tasks_never_exceed_a_limit_and_all_end() {
    const THREADS: usize = 8;
    static AT_ONCE: AtomicU32 = AtomicU32::new(0);
    let rule = Rule::new("one")
        .limit(Limit::at_once(3).queue(100))
        .limit(Limit::per(10_000, SECOND).burst(10).queue(100));
    let policy = leaked(Policy::new([rule]).unwrap());
    let begun = policy.now();
    // While a thread claims the slot of a new key, others find no room for the key.
    assert!(policy.blocking_acquire(&GET).is_allowed());
    let (say, hear) = mpsc::channel();
    for number in 0..THREADS {
        let say = say.clone();
        thread::spawn(move || {
            let mut granted = 0;
            for round in 0..200 {
                let request = GET.cost(1 + u32::from(round % 20 == 0));
                let decision = match (number + round) % 4 {
                    0 => futures_executor::block_on(policy.acquire(&request)),
                    // Granted or late.
                    1 => policy
                        .acquire(&request)
                        .within(Duration::from_micros(300))
                        .block(),
                    _ => policy.blocking_acquire(&request),
                };
                if !decision.is_allowed() {
                    assert_eq!(decision.end(), Some(QueueEnd::Late));
                    continue;
                }
                let cost = request.cost;
                assert!(AT_ONCE.fetch_add(cost, SeqCst) + cost <= 3);
                thread::yield_now();
                AT_ONCE.fetch_sub(cost, SeqCst);
                granted += cost;
            }
            say.send(granted)
        });
    }
    let ends = (0..THREADS).map(|_| hear.recv_timeout(60 * SECOND).expect("forgotten"));
    let granted: u32 = ends.sum();
    let took = policy.now().saturating_since(begun);
    assert!(granted as usize > THREADS * 150, "{granted}");
    let allowed = 10 + took.as_micros() * 10_000 / 1_000_000 + 1;
    assert!(u128::from(granted) <= allowed, "{granted} in {took:?}");
    let counts = policy.queue_counts("one").unwrap();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    let all = policy
        .acquire(&Request::new("GET", "/").cost(3))
        .within(60 * SECOND)
        .block();
    assert!(all.is_allowed(), "all permits are back");
}
