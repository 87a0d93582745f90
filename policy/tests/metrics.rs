//! The instruments measure decisions, leases and waits.

#[path = "support/recorder.rs"]
mod recorder;

use core::time::Duration;

use metrics::with_local_recorder;
use portcullis_core::{Denied, Timestamp};
use portcullis_policy::{
    Conditions, Key, Limit, MeasuredLease, Metrics, Outcome, Policy, QueueResult, Request, Rule,
};

use recorder::Kept;

#[test]
fn requests_leases_and_waits_are_measured_for_each_rule() {
    let policy = Policy::new([
        Rule::new("writes")
            .when(Conditions::new().methods(["PUT"]))
            .limit(Limit::at_once(2)),
        Rule::new("reads")
            .when(Conditions::new().methods(["GET"]))
            .limit("1/s".parse().unwrap()),
    ])
    .unwrap();
    let recorder = Kept::default();
    let metrics = with_local_recorder(&recorder, || Metrics::new(&policy));
    assert_eq!(
        *recorder.described.lock().unwrap(),
        [
            "portcullis.requests Count",
            "portcullis.active_request_leases Count",
            "portcullis.request_lease.duration Seconds",
            "portcullis.queued_requests Count",
            "portcullis.request.time_in_queue Seconds",
            "portcullis.full_tables Count",
        ]
    );
    assert_eq!(recorder.seen(), [""; 0]);
    let decide =
        |method, at| policy.decide_at(Timestamp::from_millis(at), &Request::new(method, "/"));
    let at = Timestamp::from_millis;

    let (first, second) = (decide("PUT", 100), decide("PUT", 200));
    let first_lease = metrics.decided(&first);
    let second_lease: MeasuredLease = metrics.decided(&second);
    let denied = decide("PUT", 300);
    let wait = metrics.queued(&denied);
    let other_wait = metrics.queued(&denied);
    assert_eq!(
        recorder.seen(),
        [
            "portcullis.requests policy=writes result=acquired: 2",
            "portcullis.active_request_leases policy=writes: 2",
            "portcullis.queued_requests policy=writes: 2",
        ]
    );
    first_lease.end_at(at(350));
    drop((first, second_lease, second));
    wait.end(Duration::from_millis(50), QueueResult::Acquired);
    metrics.decided(&decide("PUT", 350)).end_at(at(340));
    other_wait.end(Duration::from_secs(2), QueueResult::Canceled);
    drop(metrics.queued(&denied));
    drop(metrics.decided(&decide("GET", 400)));
    drop(metrics.decided(&decide("GET", 400)));
    drop(metrics.decided(&decide("PATCH", 400)));
    assert_eq!(
        recorder.seen(),
        [
            "portcullis.requests policy=reads result=acquired: 1",
            "portcullis.requests policy=reads result=denied: 1",
            "portcullis.requests policy=writes result=acquired: 3",
            "portcullis.requests policy=writes result=request_canceled: 1",
            "portcullis.requests result=acquired: 1",
            "portcullis.request.time_in_queue policy=writes result=acquired: [0.05]",
            "portcullis.request.time_in_queue policy=writes result=request_canceled: [2.0]",
            "portcullis.request_lease.duration policy=writes: [0.25, 0.0]",
        ]
    );
}

#[cfg(feature = "queue")]
#[test]
fn a_wait_in_the_queue_of_a_rule_is_measured_whatever_its_end() {
    use core::future::Future;
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

    let policy = Policy::new([Rule::new("all").limit(Limit::at_once(1).queue(2))]).unwrap();
    let recorder = Kept::default();
    let metrics = with_local_recorder(&recorder, || Metrics::new(&policy));
    let mut context = Context::from_waker(Waker::noop());
    let request = Request::new("GET", "/");
    let acquire = || metrics.acquire(policy.acquire(&request));
    let (first, first_lease) = futures_executor::block_on(acquire());
    let mut cancelled = Box::pin(acquire());
    assert!(cancelled.as_mut().poll(&mut context).is_pending());
    let mut second = pin!(acquire());
    for _ in 0..2 {
        assert!(second.as_mut().poll(&mut context).is_pending());
    }
    drop(futures_executor::block_on(acquire()));
    assert_eq!(
        recorder.seen(),
        [
            "portcullis.requests policy=all result=acquired: 1",
            "portcullis.requests policy=all result=denied: 1",
            "portcullis.active_request_leases policy=all: 1",
            "portcullis.queued_requests policy=all: 2",
        ]
    );
    drop((cancelled, first_lease, first));
    let Poll::Ready((decision, lease)) = second.poll(&mut context) else {
        panic!("granted");
    };
    assert!(decision.is_allowed());
    drop(lease);
    let late = policy.acquire(&request).within(Duration::from_millis(1));
    let (late, _) = futures_executor::block_on(metrics.acquire(late));
    assert!(!late.is_allowed());
    let seen: Vec<_> = recorder.seen();
    let is_time = |line: &&String| line.contains("time_in_queue");
    let times: Vec<_> = seen.iter().filter(is_time).collect();
    assert_eq!(times.len(), 3, "{times:?}");
    assert!(times.iter().all(|line| !line.contains(',')), "{times:?}");
    assert_eq!(
        seen[..3],
        [
            "portcullis.requests policy=all result=acquired: 2",
            "portcullis.requests policy=all result=denied: 2",
            "portcullis.requests policy=all result=request_canceled: 1",
        ]
    );
    assert!(!seen.iter().any(|line| line.contains("queued_requests")));
}

#[test]
fn denials_of_full_tables_are_measured_apart() {
    let rule = Rule::new("login").key(Key::path()).keys(8);
    let policy = Policy::new([rule.limit("1/m".parse().unwrap())]).unwrap();
    let recorder = Kept::default();
    let metrics = with_local_recorder(&recorder, || Metrics::new(&policy));
    let mut full = 0;
    for nth in 0..200 {
        let path = format!("/{nth}");
        let decision = policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", &path));
        // A key that collides with one in the table shares its limit.
        let is_full = matches!(
            decision.outcome(),
            Outcome::Denied {
                denied: Denied::Crowded { .. },
                ..
            }
        );
        full += u32::from(is_full);
        drop(metrics.decided(&decision));
    }
    assert!(full > 100);
    let expected = format!("portcullis.full_tables policy=login: {full}");
    assert!(recorder.seen().contains(&expected), "{expected}");
}
