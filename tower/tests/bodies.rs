//! Bodies limited in bytes per second: byte for byte in a simulated time, and in an axum service on
//! loopback.

#[path = "bodies/loopback.rs"]
mod loopback;
#[path = "support/server.rs"]
mod server;
#[path = "../../policy/tests/queues/support.rs"]
mod time;

use core::cell::RefCell;
use core::convert::Infallible;
use core::error::Error;
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use portcullis_async::{KeyedQueue, Queue, Rejected};
use portcullis_core::state::Carry;
use portcullis_core::{AdjustableBucket, Concurrency, Keyed, Rate, Timestamp, TokenBucket};
use portcullis_policy::{
    Conditions, Key, Kind, Limit, LivePolicy, OnMissing, Policy, QueueOrder, Rule,
};
use portcullis_tower::bodies::{
    BodyLimitError, BodyLimitLayer, BytesByKey, Flow, LimitBytes, PacedBody, QueueFlow,
};
use portcullis_tower::{
    ByLivePolicy, ByPolicy, DenialSettings, ForwardedFor, NotLimited, PeerAddress, RequestHead,
};
use proptest::prelude::*;
use tower_layer::Layer;
use tower_service::Service;

use time::{Task, Time, run};

const SECOND: Duration = Duration::from_secs(1);

type BoxError = Box<dyn Error + Send + Sync>;
/// The bytes and the trailers of a body.
type Whole = Result<(Vec<u8>, Option<HeaderMap>), BoxError>;

/// A body of given frames. It counts how often it is polled.
#[derive(Default)]
struct Frames {
    frames: VecDeque<Result<Frame<Bytes>, io::Error>>,
    polls: Rc<RefCell<usize>>,
}

impl Frames {
    fn data(texts: impl IntoIterator<Item = impl Into<Bytes>>) -> Self {
        let frames = texts.into_iter().map(|text| Ok(Frame::data(text.into())));
        Self {
            frames: frames.collect(),
            polls: Rc::default(),
        }
    }

    /// Frames of these lengths, of which each byte has another value than its neighbours.
    fn of(lengths: &[usize]) -> Self {
        let all = text(lengths.iter().sum());
        let mut start = 0;
        Self::data(lengths.iter().map(|length| {
            start += length;
            all.slice(start - length..start)
        }))
    }
}

fn text(length: usize) -> Bytes {
    (0..length).map(|index| (index % 251) as u8).collect()
}

impl Body for Frames {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        *self.polls.borrow_mut() += 1;
        Poll::Ready(self.frames.pop_front())
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let length = |frame: &Result<Frame<Bytes>, _>| {
            let data = frame.as_ref().ok().and_then(Frame::data_ref);
            data.map_or(0, Bytes::len) as u64
        };
        SizeHint::with_exact(self.frames.iter().map(length).sum())
    }
}

/// What passed, and when.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<(Timestamp, usize)>>>);

impl Log {
    /// In every span of time, at most `burst + rate × span` bytes pass.
    fn assert_bound(&self, rate: u64, burst: u64) {
        let log = self.0.borrow();
        for (first, &(from, _)) in log.iter().enumerate() {
            let mut sum = 0;
            for &(to, bytes) in &log[first..] {
                sum += bytes as u128;
                let span = to.saturating_since(from).as_nanos();
                let most = u128::from(burst) * 1_000_000_000 + u128::from(rate) * span;
                assert!(sum * 1_000_000_000 <= most, "{sum} bytes in {span} ns");
            }
        }
    }

    fn sum(&self) -> usize {
        self.0.borrow().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Reads a whole body.
async fn read<F: Flow>(time: Time, log: Log, body: PacedBody<Frames, F>) -> Whole {
    let mut body = pin!(body);
    let (mut all, mut trailers) = (Vec::new(), None);
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        match frame?.into_data() {
            Ok(data) => {
                log.0.borrow_mut().push((time.now(), data.len()));
                all.extend_from_slice(&data);
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    Ok((all, trailers))
}

/// Runs tasks, and advances the time to each alarm, until all have ended.
fn finish<T>(time: &Time, tasks: &mut [Task<'_, T>]) {
    run(tasks);
    while tasks.iter().any(Task::is_pending) {
        let next = time.next_alarm().expect("a task waits for time");
        time.advance(next.saturating_since(time.now()));
        run(tasks);
    }
}

fn queue(time: &Time, rate: u64, burst: u64) -> Arc<Queue<TokenBucket, time::Simulated>> {
    Queue::new(bucket(rate, burst), time.timer(), u64::MAX).shared()
}

fn bucket(rate: u64, burst: u64) -> TokenBucket {
    let rate = Rate::per_second(u32::try_from(rate).unwrap());
    TokenBucket::builder(rate, burst).build().unwrap()
}

fn per_second(rate: u64, burst: u64) -> Limit {
    Limit::per(rate, SECOND).burst(burst)
}

fn of(name: &str, kind: Kind) -> Rule {
    Rule::new(name).when(Conditions::new().kind(kind))
}

fn policy(time: &Time, rules: impl IntoIterator<Item = Rule>) -> Policy {
    let time = time.clone();
    Policy::new(rules).unwrap().with_timer(move || time.timer())
}

/// What limits the body of the reply to a `GET`.
fn egress<L: LimitBytes>(limit: &L) -> Option<L::Flow> {
    let request = Request::get("/").body(()).unwrap();
    limit
        .limit(Kind::Egress, &RequestHead::new(&request))
        .unwrap()
}

/// Bodies of these frames pass whole, in order, within the bound, and at 99 % of the rate.
fn assert_paced<F: Flow>(
    time: &Time,
    (rate, burst): (u64, u64),
    bodies: &[Vec<usize>],
    flow: impl Fn() -> Option<F>,
) {
    let log = Log::default();
    let begin = time.now();
    let mut tasks: Vec<_> = bodies
        .iter()
        .map(|lengths| {
            let body = PacedBody::new(Frames::of(lengths), flow());
            assert_eq!(body.size_hint().exact(), Some(sum(lengths) as u64));
            Task::new(read(time.clone(), log.clone(), body))
        })
        .collect();
    finish(time, &mut tasks);
    for (task, lengths) in tasks.iter().zip(bodies) {
        let (bytes, _) = task.output.as_ref().unwrap().as_ref().unwrap();
        assert_eq!(*bytes, text(sum(lengths)));
    }
    log.assert_bound(rate, burst);
    let all: usize = bodies.iter().map(|lengths| sum(lengths)).sum();
    assert_eq!(log.sum(), all);
    if burst < rate / 100 {
        // A table counts time in ticks. A bucket that is full before the next one loses permits.
        // Of other buckets, the last permits may be a tick late.
        return;
    }
    let span = time.now().saturating_since(begin).as_nanos();
    let least = (all as u64).saturating_sub(burst) * 1_000_000_000 / rate;
    let most = u128::from(least) * 100 / 99 + 2_000_000;
    assert!(span <= most, "{span} ns for {all} bytes, not {least} ns");
}

fn sum(lengths: &[usize]) -> usize {
    lengths.iter().sum()
}

fn bodies() -> impl Strategy<Value = ((u64, u64), Vec<Vec<usize>>)> {
    let frames = prop::collection::vec(prop_oneof![0_usize..40, 1_usize..40_000], 0..8);
    let limit = (
        100_u64..1_000_000,
        prop_oneof![1_u64..100, 100_u64..100_000],
    );
    (limit, prop::collection::vec(frames, 1..6))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn bodies_pass_whole_in_order_and_at_the_rate((limit, bodies) in bodies(), by in 0..3) {
        // Small bursts make many pieces.
        let bodies: Vec<Vec<usize>> = bodies
            .into_iter()
            .map(|all| all.into_iter().map(|n| n.min(limit.1 as usize * 20)).collect())
            .collect();
        let time = Time::default();
        let (rate, burst) = limit;
        match by {
            0 => {
                let queue = queue(&time, rate, burst);
                assert_paced(&time, limit, &bodies, || egress(&queue));
            }
            1 => {
                let table = Keyed::for_keys(bucket(rate, burst), 10);
                let queue = KeyedQueue::new(table, time.timer(), u64::MAX).shared();
                let by_key = BytesByKey::new(queue, |head| Some(head.method.clone()));
                assert_paced(&time, limit, &bodies, || egress(&by_key));
            }
            _ => {
                let rule = of("down", Kind::Egress).limit(per_second(rate, burst));
                let rules = ByPolicy::new(policy(&time, [rule]));
                assert_paced(&time, limit, &bodies, || egress(&rules));
            }
        }
    }
}

#[test]
fn bodies_that_wait_get_equal_shares() {
    let time = Time::default();
    let rule = of("down", Kind::Egress).limit(per_second(100_000, 10_000));
    let rules = ByPolicy::new(policy(&time, [rule]));
    let logs: [Log; 4] = Default::default();
    let mut tasks: Vec<_> = logs
        .iter()
        .map(|log| {
            let body = PacedBody::new(Frames::of(&[1_000_000]), egress(&rules));
            Task::new(read(time.clone(), log.clone(), body))
        })
        .collect();
    run(&mut tasks);
    while time.now() < Timestamp::from_secs(5) {
        let next = time.next_alarm().unwrap();
        time.advance(next.saturating_since(time.now()));
        run(&mut tasks);
    }
    for log in &logs {
        // A quarter of 500,000, but for a piece of 5,000. The first one took the burst, 10,000.
        assert!((120_000..=140_000).contains(&log.sum()), "{}", log.sum());
    }
}

#[test]
fn each_key_has_a_limit_of_its_own() {
    let time = Time::default();
    let rule = of("down", Kind::Egress).key(Key::header("X-Key"));
    let rules = ByPolicy::new(policy(&time, [rule.limit(per_second(100, 100))]));
    let table = Keyed::for_keys(bucket(100, 100), 10);
    let queue = KeyedQueue::new(table, time.timer(), u64::MAX).shared();
    let key = |head: &RequestHead<'_>| head.headers.get("X-Key").cloned();
    let by_key = BytesByKey::new(queue, key);
    let head = |key: &str| Request::get("/").header("X-Key", key).body(()).unwrap();
    for (passed, key) in [(100, "a"), (100, "b"), (0, "a")] {
        let request = head(key);
        let head = RequestHead::new(&request);
        let log = Log::default();
        let body = PacedBody::new(
            Frames::of(&[200]),
            rules.limit(Kind::Egress, &head).unwrap(),
        );
        run(&mut [Task::new(read(time.clone(), log.clone(), body))]);
        assert_eq!(log.sum(), passed, "a policy, {key}");
        let log = Log::default();
        let body = PacedBody::new(
            Frames::of(&[200]),
            by_key.limit(Kind::Egress, &head).unwrap(),
        );
        run(&mut [Task::new(read(time.clone(), log.clone(), body))]);
        assert_eq!(log.sum(), passed, "a table, {key}");
    }
}

#[test]
fn a_body_asks_for_the_next_frame_when_the_last_has_passed() {
    let time = Time::default();
    let queue = queue(&time, 10, 20);
    let frames = Frames::of(&[20, 20]);
    let polls = Rc::clone(&frames.polls);
    let log = Log::default();
    let body = PacedBody::new(frames, egress(&queue));
    let mut tasks = [Task::new(read(time.clone(), log.clone(), body))];
    run(&mut tasks);
    // A piece is half of the burst.
    assert_eq!((*polls.borrow(), log.sum()), (2, 20));
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!((*polls.borrow(), log.sum()), (2, 30));
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!((*polls.borrow(), log.sum()), (3, 40));
    assert!(!tasks[0].is_pending());
}

#[test]
fn the_length_of_a_body_that_has_passed_in_part_is_what_is_left() {
    let time = Time::default();
    let queue = queue(&time, 10, 20);
    let mut body = pin!(PacedBody::new(Frames::of(&[25, 5]), egress(&queue)));
    let mut context = Context::from_waker(core::task::Waker::noop());
    assert_eq!(body.size_hint().exact(), Some(30));
    for left in [20, 10] {
        let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) else {
            panic!("a frame");
        };
        assert_eq!(frame.into_data().unwrap().len(), 10);
        assert_eq!(body.size_hint().exact(), Some(left));
    }
    assert!(body.as_mut().poll_frame(&mut context).is_pending());
    assert!(!body.is_end_stream());
    // The inner body is at its end, and the last bytes wait.
    time.advance(Duration::from_millis(500));
    assert!(body.as_mut().poll_frame(&mut context).is_ready());
    time.advance(Duration::from_millis(400));
    assert!(body.as_mut().poll_frame(&mut context).is_pending());
    assert!(body.get_ref().is_end_stream() && !body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(5));
    time.advance(Duration::from_millis(100));
    assert!(body.as_mut().poll_frame(&mut context).is_ready());
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
}

#[test]
fn trailers_empty_frames_and_errors_pass_without_permits() {
    let time = Time::default();
    let queue = queue(&time, 10, 2);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    let mut frames = Frames::data(["a", "", "b", ""]);
    frames
        .frames
        .push_back(Ok(Frame::trailers(trailers.clone())));
    let body = PacedBody::new(frames, egress(&queue));
    let log = Log::default();
    let mut tasks = [Task::new(read(time.clone(), log.clone(), body))];
    run(&mut tasks);
    let (bytes, found) = tasks[0].output.take().unwrap().unwrap();
    assert_eq!((bytes.as_slice(), found), (&b"ab"[..], Some(trailers)));
    assert_eq!(log.0.borrow().len(), 4, "also the empty frames");

    // The bucket is empty: the error does not wait. It has its own type.
    let mut frames = Frames::default();
    frames.frames.push_back(Err(io::Error::other("lost")));
    let body = PacedBody::new(frames, egress(&queue));
    let mut tasks = [Task::new(read(time.clone(), log, body))];
    run(&mut tasks);
    let error = tasks[0].output.take().unwrap().unwrap_err();
    assert_eq!(error.downcast::<io::Error>().unwrap().to_string(), "lost");

    // An error after data comes after the data.
    let mut frames = Frames::data(["cd"]);
    frames.frames.push_back(Err(io::Error::other("lost")));
    let log = Log::default();
    let body = PacedBody::new(frames, egress(&queue));
    let mut tasks = [Task::new(read(time.clone(), log.clone(), body))];
    run(&mut tasks);
    assert!(tasks[0].is_pending());
    finish(&time, &mut tasks);
    assert_eq!((log.sum(), time.now()), (2, Timestamp::from_millis(200)));
    assert!(tasks[0].output.take().unwrap().is_err());
}

#[test]
fn a_body_without_a_limit_passes_as_it_is() {
    let time = Time::default();
    let rule = of("up", Kind::Ingress).limit(per_second(1, 1));
    let rules = ByPolicy::new(policy(&time, [rule, Rule::new("requests")]));
    let log = Log::default();
    let body = PacedBody::new(Frames::of(&[100_000, 7]), egress(&rules));
    let mut tasks = [Task::new(read(time.clone(), log.clone(), body))];
    run(&mut tasks);
    assert!(tasks[0].output.is_some());
    let lengths: Vec<usize> = log.0.borrow().iter().map(|&(_, bytes)| bytes).collect();
    assert_eq!(lengths, [100_000, 7], "not in pieces");
}

#[test]
fn a_body_that_is_dropped_leaves_its_place_and_its_permits_to_the_next() {
    let time = Time::default();
    let queue = queue(&time, 10, 20);
    let log = Log::default();
    let read = |log: &Log| {
        let body = PacedBody::new(Frames::of(&[40]), egress(&queue));
        Task::new(read(time.clone(), log.clone(), body))
    };
    let mut first = [read(&log)];
    run(&mut first);
    assert_eq!(log.sum(), 20, "the burst");
    let rest = Log::default();
    let mut second = [read(&rest)];
    run(&mut second);
    assert_eq!(queue.counts().waiters, 2);
    // The piece of the first body is granted, and the body is dropped before it is polled.
    time.advance(SECOND);
    first[0].cancel();
    run(&mut second);
    assert_eq!(rest.sum(), 10);
    finish(&time, &mut second);
    assert_eq!((rest.sum(), time.now()), (40, Timestamp::from_secs(4)));
    assert_eq!((queue.counts().waiters, queue.available()), (0, 0));
    time.advance(2 * SECOND);
    assert_eq!(queue.available(), 20, "nothing is held");
}

#[test]
fn a_body_of_a_policy_that_is_dropped_leaves_nothing_behind() {
    let time = Time::default();
    let rule = of("down", Kind::Egress).limit(per_second(10, 20));
    let policy = Arc::new(policy(&time, [rule]));
    let rules = ByPolicy::new(Arc::clone(&policy));
    let mut tasks = [(); 3].map(|()| {
        let body = PacedBody::new(Frames::of(&[40]), egress(&rules));
        Task::new(read(time.clone(), Log::default(), body))
    });
    run(&mut tasks);
    assert_eq!(policy.queue_counts("down").unwrap().waiters, 3);
    tasks.iter_mut().for_each(Task::cancel);
    let counts = policy.queue_counts("down").unwrap();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    drop((tasks, rules));
    assert_eq!(Arc::strong_count(&policy), 1);
}

/// What a queue cannot take, a body asks for again.
#[test]
fn a_full_queue_of_a_policy_delays_bodies_and_fails_none() {
    for order in [QueueOrder::OldestFirst, QueueOrder::NewestFirst] {
        let time = Time::default();
        let limit = per_second(1_000, 100).queue(60).queue_order(order);
        let rules = ByPolicy::new(policy(&time, [of("down", Kind::Egress).limit(limit)]));
        let log = Log::default();
        let mut tasks: Vec<_> = (0..6)
            .map(|_| {
                let body = PacedBody::new(Frames::of(&[500]), egress(&rules));
                Task::new(read(time.clone(), log.clone(), body))
            })
            .collect();
        finish(&time, &mut tasks);
        assert!(
            tasks
                .iter()
                .all(|task| task.output.as_ref().unwrap().is_ok())
        );
        assert_eq!(log.sum(), 3_000);
        log.assert_bound(1_000, 100);
        assert!(
            time.now() < Timestamp::from_millis(3_300),
            "{:?}",
            time.now()
        );
    }
}

#[test]
fn a_penalty_delays_bodies_and_fails_none() {
    let time = Time::default();
    let day = Limit::per(150, SECOND).algorithm_of(portcullis_policy::Algorithm::FixedWindow);
    // The window has no queue, so a piece over it is denied, and starts the penalty.
    let rule = of("down", Kind::Egress)
        .limit(per_second(1_000, 100).queue(1_000))
        .limit(day)
        .penalty(3 * SECOND);
    let rules = ByPolicy::new(policy(&time, [rule]));
    let log = Log::default();
    let body = PacedBody::new(Frames::of(&[300]), egress(&rules));
    let mut tasks = [Task::new(read(time.clone(), log.clone(), body))];
    run(&mut tasks);
    for _ in 0..20 {
        time.advance(Duration::from_millis(10));
        run(&mut tasks);
    }
    assert_eq!(log.sum(), 150);
    assert!(
        egress(&rules).is_some(),
        "a body that begins now is not denied"
    );
    finish(&time, &mut tasks);
    assert!(tasks[0].output.as_ref().unwrap().is_ok());
    assert_eq!(log.sum(), 300);
    // 150 bytes within the first 50 ms, then the penalty.
    assert!(
        (Timestamp::from_secs(3)..Timestamp::from_millis(3_300)).contains(&time.now()),
        "{:?}",
        time.now()
    );
}

#[test]
fn a_change_of_a_policy_applies_to_bodies_that_are_under_way() {
    let time = Time::default();
    let rule = |limit| of("down", Kind::Egress).limit(limit);
    let live = LivePolicy::new(policy(&time, [rule(per_second(10, 200))]));
    let rules = ByLivePolicy::new(live.clone());
    let log = Log::default();
    let body = PacedBody::new(Frames::of(&[10_000]), egress(&rules));
    let mut tasks = [Task::new(read(time.clone(), log.clone(), body))];
    run(&mut tasks);
    assert_eq!(log.sum(), 200);
    live.replace_at(time.now(), policy(&time, [rule(per_second(1_000, 200))]));
    while time.now() < Timestamp::from_secs(2) {
        let next = time.next_alarm().unwrap();
        time.advance(next.saturating_since(time.now()));
        run(&mut tasks);
    }
    assert!((2_000..=2_300).contains(&log.sum()), "{}", log.sum());
    // A burst that is shorter than the piece.
    live.replace_at(time.now(), policy(&time, [rule(per_second(1_000, 7))]));
    while time.now() < Timestamp::from_secs(4) {
        let next = time.next_alarm().unwrap();
        time.advance(next.saturating_since(time.now()));
        run(&mut tasks);
    }
    assert!((3_900..=4_300).contains(&log.sum()), "{}", log.sum());
    assert!(log.0.borrow().last().unwrap().1 <= 7);
    // Without the rule, the rest passes.
    live.replace_at(time.now(), policy(&time, []));
    finish(&time, &mut tasks);
    assert!(tasks[0].output.as_ref().unwrap().is_ok());
    assert_eq!(log.sum(), 10_000);
}

fn error(tasks: &mut [Task<'_, Whole>; 1]) -> BodyLimitError {
    let error = tasks[0].output.take().unwrap().unwrap_err();
    *error.downcast().unwrap()
}

#[test]
fn a_change_after_which_no_byte_can_pass_ends_a_body_with_an_error() {
    let time = Time::default();
    let rule = of("down", Kind::Egress).limit(per_second(10, 20));
    let live = LivePolicy::new(policy(&time, [rule.clone()]));
    let rules = ByLivePolicy::new(live.clone());
    let log = Log::default();
    let body = PacedBody::new(Frames::of(&[100]), egress(&rules));
    let mut tasks = [Task::new(read(time.clone(), log.clone(), body))];
    run(&mut tasks);
    let keyed = rule.key(Key::header("X-Key")).on_missing(OnMissing::Deny);
    live.replace_at(time.now(), policy(&time, [keyed]));
    finish(&time, &mut tasks);
    let error = error(&mut tasks);
    assert_eq!(error, BodyLimitError::Never(Some("down".into())));
    assert_eq!(
        error.to_string(),
        "rule `down` can grant no byte of the body"
    );
    assert_eq!(log.sum(), 20);
}

#[test]
fn a_queue_that_is_closed_or_full_ends_a_body_with_an_error() {
    let time = Time::default();
    let closed = queue(&time, 10, 20);
    let body = || PacedBody::new(Frames::of(&[100]), egress(&closed));
    let mut tasks = [Task::new(read(time.clone(), Log::default(), body()))];
    run(&mut tasks);
    closed.close();
    run(&mut tasks);
    let rejected = Rejected::Closed { permits: 10 };
    assert_eq!(error(&mut tasks), BodyLimitError::Rejected(rejected));

    let full = Queue::new(bucket(10, 20), time.timer(), 15).shared();
    let body = || PacedBody::new(Frames::of(&[100]), egress(&full));
    let mut first = [Task::new(read(time.clone(), Log::default(), body()))];
    run(&mut first);
    let mut tasks = [Task::new(read(time.clone(), Log::default(), body()))];
    run(&mut tasks);
    let full = error(&mut tasks);
    assert!(matches!(
        full,
        BodyLimitError::Rejected(Rejected::QueueFull { permits: 10, .. })
    ));
    assert!(
        full.to_string()
            .ends_with("queue full (permits requested: 10)")
    );
    finish(&time, &mut first);
}

#[test]
fn a_limit_in_code_that_is_lowered_makes_the_pieces_shorter() {
    let time = Time::default();
    let bucket = AdjustableBucket::new(Rate::per_second(10), 100);
    let queue = Queue::new(bucket, time.timer(), u64::MAX).shared();
    let log = Log::default();
    let body = PacedBody::new(Frames::of(&[200]), Some(QueueFlow::new(Arc::clone(&queue))));
    let mut tasks = [Task::new(read(time.clone(), log.clone(), body))];
    run(&mut tasks);
    assert_eq!(log.sum(), 100);
    queue.change(|bucket| {
        bucket
            .adjust_at(time.now(), Rate::per_second(10), 4, Carry::Keep)
            .unwrap();
    });
    finish(&time, &mut tasks);
    assert_eq!(log.sum(), 200);
    assert!(log.0.borrow()[2..].iter().all(|&(_, bytes)| bytes <= 4));
}

/// A service that reads the whole body of a request at the next poll of its future, and replies
/// with as many bytes.
#[derive(Clone)]
struct Echo;

impl<B> Service<Request<B>> for Echo
where
    B: Body<Data = Bytes, Error: core::fmt::Debug> + 'static,
{
    type Response = Response<Frames>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Frames>, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(async {
            let mut body = Box::pin(request.into_body());
            let mut length = 0;
            while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
                length += frame.unwrap().into_data().unwrap().len();
            }
            Ok(Response::new(Frames::of(&[length])))
        })
    }
}

fn put(path: &str, length: usize) -> Request<Frames> {
    Request::put(path).body(Frames::of(&[length])).unwrap()
}

/// How long a request takes, and the number of bytes of its reply.
fn take<S, B>(time: &Time, service: &mut S, request: Request<Frames>) -> (u16, Duration, usize)
where
    S: Service<Request<Frames>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes, Error = BoxError>,
{
    let begin = time.now();
    let future = service.call(request);
    let mut task = [Task::new(async {
        let response = future.await.unwrap();
        let status = response.status().as_u16();
        let mut body = Box::pin(response.into_body());
        let mut length = 0;
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            length += frame.unwrap().into_data().unwrap().len();
        }
        (status, length)
    })];
    finish(time, &mut task);
    let (status, length) = task[0].output.take().unwrap();
    (status, time.now().saturating_since(begin), length)
}

#[test]
fn requests_and_responses_have_the_limits_of_their_rules() {
    let time = Time::default();
    let rules = Arc::new(policy(
        &time,
        [
            of("up", Kind::Ingress).limit(per_second(100, 100)),
            of("down", Kind::Egress).limit(per_second(1_000, 100)),
        ],
    ));
    let layer = BodyLimitLayer::builder()
        .ingress(ByPolicy::new(Arc::clone(&rules)))
        .egress(ByPolicy::new(rules))
        .build();
    let mut service = layer.layer(Echo);
    // The request takes 3 s, and then the reply 0.3 s.
    let request = put("/", 400);
    assert_eq!(
        take(&time, &mut service, request),
        (200, Duration::from_millis(3_300), 400)
    );
    let mut request = put("/", 400);
    request.extensions_mut().insert(NotLimited);
    assert_eq!(
        take(&time, &mut service.clone(), request),
        (200, Duration::ZERO, 400)
    );
    // Services of a layer share the limits.
    let request = put("/", 400);
    assert_eq!(
        take(&time, &mut layer.layer(Echo), request).1,
        4 * SECOND,
        "3.7 s, because 0.3 s have passed since the first request, and 0.3 s"
    );
}

#[test]
fn a_request_whose_body_can_never_pass_is_denied() {
    let time = Time::default();
    let keyed = of("keyed", Kind::Egress)
        .key(Key::header("X-Key"))
        .on_missing(OnMissing::Deny)
        .limit(per_second(10, 10));
    let rules = || ByPolicy::new(policy(&time, [keyed.clone()]));
    let status = http::StatusCode::FORBIDDEN;
    let builder =
        || BodyLimitLayer::builder().denials(DenialSettings::new().unidentified(status, "who?"));
    let mut service = builder().egress(rules()).build().layer(Echo);
    let denied = |(status, span, length)| {
        assert_eq!(span, Duration::ZERO);
        (status, length)
    };
    assert_eq!(denied(take(&time, &mut service, put("/", 9))), (403, 4));
    let long = "/a".repeat(5_000);
    let mut service = builder()
        .ingress(rules())
        .egress(rules())
        .build()
        .layer(Echo);
    assert_eq!(denied(take(&time, &mut service, put(&long, 9))).0, 414);
    let mut request = put("/", 9);
    request
        .headers_mut()
        .insert("X-Key", HeaderValue::from_static("a"));
    assert_eq!(denied(take(&time, &mut service, request)), (200, 9));
    let up = keyed.clone().when(Conditions::new().kind(Kind::Ingress));
    let rules = ByPolicy::new(policy(&time, [up]));
    let mut service = builder().ingress(rules).build().layer(Echo);
    assert_eq!(denied(take(&time, &mut service, put("/", 9))), (403, 4));
    let live = ByLivePolicy::new(LivePolicy::new(policy(&time, [keyed.clone()])));
    let mut service = builder().egress(live).build().layer(Echo);
    assert_eq!(denied(take(&time, &mut service, put("/", 9))), (403, 4));

    let none = Queue::new(Concurrency::new(1), time.timer(), u64::MAX).shared();
    none.change(|limit| limit.set_limit(0).unwrap());
    let mut service = builder().ingress(none).build().layer(Echo);
    let status = http::StatusCode::TOO_MANY_REQUESTS;
    let reason = status.canonical_reason().unwrap().len();
    assert_eq!(
        denied(take(&time, &mut service, put("/", 9))),
        (429, reason)
    );
}

#[test]
fn the_address_is_that_of_the_connection_or_of_a_trusted_proxy() {
    let time = Time::default();
    let rule = of("up", Kind::Ingress)
        .key(Key::address())
        .limit(per_second(100, 100));
    let service = |forwarded: Option<ForwardedFor>| {
        let rules = ByPolicy::new(policy(&time, [rule.clone()]));
        let builder = BodyLimitLayer::builder().ingress(rules);
        let builder = match forwarded {
            Some(forwarded) => builder.forwarded(forwarded),
            None => builder,
        };
        builder.build().layer(Echo)
    };
    let request = |client: &'static str| {
        let mut request = put("/", 100);
        let peer = PeerAddress("192.0.2.1".parse().unwrap());
        request.extensions_mut().insert(peer);
        let headers = request.headers_mut();
        headers.insert("X-Forwarded-For", HeaderValue::from_static(client));
        request
    };
    let (mut peer, mut trusted) = (
        service(None),
        service(Some(ForwardedFor::x_forwarded_for().hops(1))),
    );
    for (client, waits) in [("203.0.113.1", [0, 0]), ("203.0.113.2", [0, 1])] {
        let spans = [
            take(&time, &mut trusted, request(client)).1,
            take(&time, &mut peer, request(client)).1,
        ];
        assert_eq!(spans, waits.map(|wait| wait * SECOND));
    }
}
