//! An axum service under a real load on loopback, in an open loop. The decisions are recorded with
//! their times. Each algorithm decides as exact arithmetic does at these times, and no span of time
//! exceeds its bound. No check depends on the speed of the machine.

#[path = "support/load.rs"]
mod load;
#[path = "support/nginx.rs"]
mod nginx;

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};

use axum::Router;
use axum::routing::get;
use axum::serve::ListenerExt;
use portcullis_core::{Clock, ManualClock, MonotonicClock, Timestamp};
use portcullis_policy::{Algorithm, Limit, Policy, Rule};
use portcullis_tower::{ByPolicy, Decide, Denial, Question, RateLimitLayer};

use tokio::net::TcpListener;

use load::{Load, Reply, of_status};
use nginx::Nginx;

/// A decision, as it was recorded.
#[derive(Clone, Copy)]
struct Decided {
    /// In nanoseconds.
    at: u64,
    is_allowed: bool,
    /// The requests in progress before the decision.
    in_progress: u64,
}

/// What is recorded of a service.
#[derive(Clone, Default)]
struct Record {
    decisions: Arc<Mutex<Vec<Decided>>>,
    in_progress: Arc<AtomicU64>,
}

impl Record {
    fn decisions(&self) -> MutexGuard<'_, Vec<Decided>> {
        self.decisions.lock().expect("no panic")
    }
}

/// Judges as another one does, one request at a time, and records the decisions in their order.
struct Recorded<D> {
    judges: D,
    record: Record,
}

/// Permits, while which a request is in progress.
struct InProgress<P> {
    permits: Option<P>,
    /// `None` if another one counts the request.
    count: Option<Arc<AtomicU64>>,
}

impl<P> Drop for InProgress<P> {
    fn drop(&mut self) {
        self.permits = None;
        if let Some(count) = &self.count {
            count.fetch_sub(1, Relaxed);
        }
    }
}

impl<D: Decide> Decide for Recorded<D> {
    type Held = InProgress<D::Held>;
    type Permits = InProgress<D::Permits>;

    fn prepare(&mut self, settings: &portcullis_tower::DenialSettings) {
        self.judges.prepare(settings);
    }

    fn decide<C: Clock>(&self, question: Question<'_, C>) -> Result<Option<Self::Held>, Denial> {
        // No other request is judged between the time and the record. So the time is read again,
        // by the clock that the layer has.
        let mut decisions = self.record.decisions();
        let now = ManualClock::new();
        now.set(MonotonicClock::new().now());
        let in_progress = self.record.in_progress.load(Relaxed);
        let decision = self.judges.decide(question.by(&now));
        decisions.push(Decided {
            at: now.now().as_nanos(),
            is_allowed: decision.is_ok(),
            in_progress,
        });
        let permits = decision?;
        self.record.in_progress.fetch_add(1, Relaxed);
        let count = Some(Arc::clone(&self.record.in_progress));
        Ok(Some(InProgress { permits, count }))
    }

    fn undo_at(&self, _: Timestamp, _: Self::Held) {
        unreachable!("nothing else judges")
    }

    fn settle_at(&self, _: Timestamp, _: Self::Held, _: u32) -> Option<Self::Permits> {
        unreachable!("the layer does not settle")
    }

    fn keep(&self, mut held: Self::Held) -> Option<Self::Permits> {
        let permits = held.permits.take().and_then(|held| self.judges.keep(held));
        let count = held.count.take();
        Some(InProgress { permits, count })
    }
}

/// Starts an axum service with this limit on a thread of its own, as the example `ocelot` does. Its
/// handler takes some time.
fn start(limit: Limit, takes: Duration) -> (SocketAddr, Record) {
    let record = Record::default();
    let recorded = Recorded {
        judges: ByPolicy::new(Policy::new([Rule::new("all").limit(limit)]).expect("valid")),
        record: record.clone(),
    };
    let layer = RateLimitLayer::builder(recorded).for_axum().build();
    let answer = move || async move {
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        "served\n"
    };
    let router = Router::new().route("/", get(answer)).layer(layer);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
            let address = listener.local_addr().expect("an address");
            tell.send(address).expect("the test waits");
            // As nginx does. Otherwise a reply waits until the client has acknowledged the one
            // before, which it does with its next request.
            let listener = listener.tap_io(|stream| {
                stream.set_nodelay(true).expect("a socket of TCP");
            });
            axum::serve(listener, router).await.expect("it never ends");
        });
    });
    (told.recv().expect("the service starts"), record)
}

/// Sends a load to a service with this limit. Prints what became of it, and returns the decisions.
fn under(load: &Load, limit: Limit, takes: Duration) -> (Vec<Reply>, Vec<Decided>) {
    let (address, record) = start(limit, takes);
    let replies = load.run(address);
    let decisions = record.decisions().clone();
    assert_eq!(replies.len(), load.requests());
    assert_eq!(decisions.len(), load.requests());
    let allowed = admitted(&decisions);
    assert_eq!(of_status(&replies, 200).0, allowed);
    assert_eq!(of_status(&replies, 429).0, decisions.len() - allowed);
    assert!(decisions.is_sorted_by_key(|decided| decided.at));
    (replies, decisions)
}

fn admitted(decisions: &[Decided]) -> usize {
    decisions
        .iter()
        .filter(|decided| decided.is_allowed)
        .count()
}

const SECOND: i128 = 1_000_000_000;

/// The tick of a bucket in a policy, in nanoseconds: each time counts as the start of its tick. The
/// start of a window from the first request is rounded up to a whole tick.
const TICK: u64 = 1_000;

/// By how much the worst span of time exceeds `burst + rate * t`, in permits times 10^9. At most 0
/// if the bound holds in every span: the worst ones begin and end with an admission.
fn excess(decisions: &[Decided], burst: i128, rate: i128) -> i128 {
    let (mut least, mut most) = (i128::MAX, i128::MIN);
    let admissions = decisions.iter().filter(|decided| decided.is_allowed);
    for (n, decided) in (0..).zip(admissions) {
        // A span from the admission `i` to the admission `n` has `n - i + 1` of them.
        let ahead = n * SECOND - rate * i128::from(decided.at / TICK * TICK);
        least = least.min(ahead);
        most = most.max(ahead - least + SECOND - burst * SECOND);
    }
    most
}

/// A limiter in exact arithmetic, which is told the times in their order.
trait Exact {
    fn admits(&mut self, at: u64) -> bool;
}

/// A bucket that is filled continuously. Its level is in permits times 10^9, and so is what it has
/// lost while it was full.
struct Bucket {
    burst: i128,
    rate: i128,
    level: i128,
    lost: i128,
    at: u64,
}

impl Exact for Bucket {
    fn admits(&mut self, at: u64) -> bool {
        let at = at / TICK * TICK;
        self.level += self.rate * i128::from(at - self.at);
        let excess = (self.level - self.burst * SECOND).max(0);
        self.level -= excess;
        self.lost += excess;
        self.at = at;
        let admits = self.level >= SECOND;
        self.level -= if admits { SECOND } else { 0 };
        admits
    }
}

/// At most `limit` in `segments` consecutive segments of a grid. With one segment, a fixed window.
struct Segments {
    limit: usize,
    count: u64,
    /// The length of a segment.
    segment: u64,
    admitted: VecDeque<u64>,
}

impl Exact for Segments {
    fn admits(&mut self, at: u64) -> bool {
        let now = at / self.segment;
        let first = (now + 1).saturating_sub(self.count);
        while self.admitted.front().is_some_and(|at| *at < first) {
            self.admitted.pop_front();
        }
        let admits = self.admitted.len() < self.limit;
        if admits {
            self.admitted.push_back(now);
        }
        admits
    }
}

/// At most `limit` in each window, which begins with the first request after the one before.
struct FromRequest {
    limit: usize,
    window: u64,
    begin: Option<u64>,
    admitted: usize,
}

impl Exact for FromRequest {
    fn admits(&mut self, at: u64) -> bool {
        if self.begin.is_none_or(|begin| at >= begin + self.window) {
            (self.begin, self.admitted) = (Some(at.next_multiple_of(TICK)), 0);
        }
        self.admitted += 1;
        self.admitted <= self.limit
    }
}

/// How large a load is: the rate of the limit, per second; its burst; the requests per second; and
/// for how long.
#[derive(Clone, Copy)]
struct Size {
    rate: u32,
    burst: u32,
    demand: u32,
    length: Duration,
}

const SHORT: Size = Size {
    rate: 400,
    burst: 40,
    demand: 1_200,
    length: Duration::from_millis(1_500),
};

const LONG: Size = Size {
    rate: 1_000,
    burst: 100,
    demand: 4_000,
    length: Duration::from_secs(10),
};

/// What one thread can serve.
const HEAVY: Size = Size {
    rate: 4_000,
    burst: 400,
    demand: 16_000,
    length: Duration::from_secs(10),
};

const CONNECTIONS: usize = 32;

/// The service handles the requests of a connection one after another. So a handler that takes time
/// needs more connections, or requests would wait in them.
const SLOW_CONNECTIONS: usize = 128;

const HEAD: &str = "\
| limit | requests | served | denied | of the most | of exact | worst span | served, ms | denied, ms |
|---|---|---|---|---|---|---|---|---|";

impl Size {
    fn load(self, connections: usize) -> Load {
        Load::random(self.demand, self.length, connections)
    }

    /// The limit of windows that allow the burst in each.
    fn windows(self, algorithm: Algorithm) -> Limit {
        Limit::per(self.burst.into(), self.window()).algorithm_of(algorithm)
    }

    fn window(self) -> Duration {
        Duration::from_secs(1) * self.burst / self.rate
    }

    /// Checks that a limit decides as exact arithmetic does, and its bound. `bursts` is how many
    /// bursts there can be in no time, and `most` the most that the whole time allows, in permits
    /// times 10^9. Returns the decisions.
    fn check(
        self,
        name: &str,
        bursts: u32,
        most: impl Fn(u64, u64) -> i128,
        limit: Limit,
        exact: &mut impl Exact,
    ) -> Vec<Decided> {
        let (replies, decisions) = under(&self.load(CONNECTIONS), limit, Duration::ZERO);
        let excess = excess(&decisions, (bursts * self.burst).into(), self.rate.into());
        let most = most(decisions[0].at, decisions[decisions.len() - 1].at);
        let admits: Vec<_> = decisions.iter().map(|of| exact.admits(of.at)).collect();
        let possible = admits.iter().filter(|admits| **admits).count();
        let bounds = Bounds {
            most,
            possible,
            excess,
        };
        println!("{}", row(name, &replies, Some(bounds)));
        assert!(
            excess <= 0,
            "{name}: more than the bound by {excess} permits / 10^9"
        );
        for (n, (decided, admits)) in decisions.iter().zip(admits).enumerate() {
            assert_eq!(decided.is_allowed, admits, "{name}: decision {n}");
        }
        decisions
    }

    /// A bucket that is full.
    fn bucket(self) -> Bucket {
        let burst = i128::from(self.burst);
        Bucket {
            burst,
            rate: self.rate.into(),
            level: burst * SECOND,
            lost: 0,
            at: 0,
        }
    }

    /// `burst + rate * t` in the time from the first to the last decision, in permits times 10^9.
    fn of_bucket(self, first: u64, last: u64) -> i128 {
        i128::from(self.burst) * SECOND + i128::from(self.rate) * i128::from(last - first)
    }
}

/// What decisions are compared with.
struct Bounds {
    /// The most that the limit allows in the whole time, in permits times 10^9.
    most: i128,
    /// What exact arithmetic admits at the times of the decisions.
    possible: usize,
    /// See [`excess`].
    excess: i128,
}

/// A row of a table: the requests, and those that were served and denied; the part of the most, and
/// of what exact arithmetic admits; by how many requests the worst span exceeds its bound; and the
/// latencies that half of the requests and 99 % of them do not exceed, in milliseconds.
fn row(name: &str, replies: &[Reply], bounds: Option<Bounds>) -> String {
    let [(served, of_served), (denied, of_denied)] =
        [200, 429].map(|status| of_status(replies, status));
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let bounds = bounds.map(|bounds| {
        let of_most = 100.0 * (served as i128 * SECOND) as f64 / bounds.most as f64;
        let of_exact = 100.0 * served as f64 / bounds.possible as f64;
        let excess = bounds.excess as f64 / SECOND as f64;
        format!("{of_most:.2} % | {of_exact:.2} % | {excess:+.2}")
    });
    let bounds = bounds.unwrap_or_else(|| " | | ".to_owned());
    let [[served_50, served_99], [denied_50, denied_99]] = [of_served, of_denied]
        .map(|latencies| latencies.map(|latency| latency.as_secs_f64() * 1_000.0));
    format!(
        "| {name} | {} | {served} | {denied} | {bounds} | {served_50:.2}, {served_99:.2} | \
         {denied_50:.2}, {denied_99:.2} |",
        replies.len()
    )
}

fn token_bucket(size: Size) {
    let limit = Limit::per(size.rate.into(), Duration::from_secs(1)).burst(size.burst.into());
    let mut exact = size.bucket();
    let most = |first, last| size.of_bucket(first, last);
    let decisions = size.check("token bucket", 1, most, limit, &mut exact);
    // What the bucket lost while it was full, for lack of requests. It is full at the first one.
    let (first, last) = (decisions[0].at, decisions[decisions.len() - 1].at);
    let lost = exact.lost - exact.rate * i128::from(first / TICK * TICK);
    let possible = most(first, last) - lost;
    let admitted = admitted(&decisions) as i128 * SECOND;
    assert!(admitted * 100 >= possible * 99, "{admitted} of {possible}");
}

fn segments(size: Size, name: &str, algorithm: Algorithm, segments: u32) {
    let mut exact = Segments {
        limit: size.burst as usize,
        count: segments.into(),
        segment: (size.window() / segments).as_nanos() as u64,
        admitted: VecDeque::new(),
    };
    let (limit, length) = (i128::from(size.burst) * SECOND, exact.segment);
    // As many in the segments of each window.
    let most = |first: u64, last: u64| {
        let begun = last / length - first / length + 1;
        i128::from(begun.div_ceil(segments.into())) * limit
    };
    // Around an edge of the grid there can be two bursts.
    size.check(name, 2, most, size.windows(algorithm), &mut exact);
}

fn fixed_window(size: Size) {
    segments(size, "fixed window", Algorithm::FixedWindow, 1);
}

fn sliding_window(size: Size) {
    let algorithm = Algorithm::SlidingWindow { segments: 5 };
    segments(size, "sliding window", algorithm, 5);
}

fn window_from_request(size: Size) {
    let mut exact = FromRequest {
        limit: size.burst as usize,
        window: size.window().as_nanos() as u64,
        begin: None,
        admitted: 0,
    };
    let limit = size.windows(Algorithm::WindowFromRequest);
    let most = |first: u64, last: u64| {
        let begun = (last - first) / size.window().as_nanos() as u64 + 1;
        i128::from(size.burst) * i128::from(begun) * SECOND
    };
    size.check("window from request", 2, most, limit, &mut exact);
}

/// At most 8 requests at once, each of which takes 10 ms. A request is denied only if there are 8.
fn at_once(size: Size) {
    let load = size.load(SLOW_CONNECTIONS);
    let (replies, decisions) = under(&load, Limit::at_once(8), Duration::from_millis(10));
    println!("{}", row("8 at once", &replies, None));
    for decided in decisions {
        assert_eq!(decided.is_allowed, decided.in_progress < 8);
    }
}

#[test]
fn a_token_bucket_under_load() {
    token_bucket(SHORT);
}

#[test]
fn a_fixed_window_under_load() {
    fixed_window(SHORT);
}

#[test]
fn a_sliding_window_under_load() {
    sliding_window(SHORT);
}

#[test]
fn a_window_from_the_first_request_under_load() {
    window_from_request(SHORT);
}

#[test]
fn a_limit_of_requests_at_once_under_load() {
    at_once(SHORT);
}

#[test]
#[ignore = "takes minutes; cargo xtask soak runs it"]
fn soak() {
    println!("{HEAD}");
    for limit in [
        token_bucket,
        fixed_window,
        sliding_window,
        window_from_request,
        at_once,
    ] {
        limit(LONG);
    }
}

/// The same load on an axum service with a token bucket, and on nginx with `limit_req`. Prints what
/// each of them did. nginx states its times in whole milliseconds.
#[test]
#[ignore = "needs nginx; cargo xtask soak runs it"]
fn soak_beside_nginx() {
    let Some(program) = nginx::program() else {
        let missing = "nginx is missing (Debian's nginx, or its path in PORTCULLIS_NGINX)";
        assert!(std::env::var_os("CI").is_none(), "{missing}");
        println!("{missing}: there is no comparison");
        return;
    };
    println!("{HEAD}");
    // In turn, so that other load on the machine affects both.
    for size in [LONG, LONG, LONG, HEAVY, HEAVY, HEAVY] {
        token_bucket(size);
        beside(&program, size);
    }
}

fn beside(program: &OsStr, size: Size) {
    let load = size.load(CONNECTIONS);
    let nginx = Nginx::start(program, size.rate, size.burst);
    let replies = load.run(nginx.address());
    let decided = nginx.stop().into_iter().map(|(at, status)| Decided {
        at,
        is_allowed: status == 200,
        in_progress: 0,
    });
    let decisions: Vec<_> = decided.collect();
    assert_eq!(decisions.len(), load.requests());
    assert_eq!(of_status(&replies, 200).0, admitted(&decisions));
    let mut exact = size.bucket();
    let bounds = Bounds {
        most: size.of_bucket(decisions[0].at, decisions[decisions.len() - 1].at),
        possible: decisions.iter().filter(|of| exact.admits(of.at)).count(),
        excess: excess(&decisions, size.burst.into(), size.rate.into()),
    };
    println!("{}", row("nginx `limit_req`", &replies, Some(bounds)));
}
