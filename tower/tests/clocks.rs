//! Which readings of its clock a layer makes, and what a reply says whichever it makes. A key that
//! has rested, for whatever time, has all its permits.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "../../core/tests/support/draws.rs"]
mod draws;
#[path = "../../core/tests/support/everyday.rs"]
mod everyday;

use core::convert::Infallible;
use core::future::{Ready, ready};
use core::pin::pin;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

use draws::Draws;
use everyday::{Everyday, YEAR, everyday_limits};
use http::{Request, Response};
use portcullis_core::clock::Interval;
use portcullis_core::keyed::{AnyRules, IntoRules};
use portcullis_core::{Clock, Rate, Timestamp, TokenBucket};
use portcullis_tower::{
    AnyBody, ByKey, ByLimiter, Decide, DenialSettings, RateLimit, RateLimitLayer, RulesByTime,
};
use tower_layer::Layer;
use tower_service::Service;

/// A clock whose interval costs less than its time. It counts the readings of both.
#[derive(Clone, Debug, Default)]
struct Ticks(Arc<Readings>);

#[derive(Debug, Default)]
struct Readings {
    nanos: AtomicU64,
    times: AtomicU64,
    intervals: AtomicU64,
}

const TICK: Duration = Duration::from_millis(10);

impl Ticks {
    fn at(&self, nanos: u64) {
        self.0.nanos.store(nanos, Relaxed);
    }

    /// The readings since the last call: of the interval, and of the time.
    fn readings(&self) -> (u64, u64) {
        let taken = |count: &AtomicU64| count.swap(0, Relaxed);
        (taken(&self.0.intervals), taken(&self.0.times))
    }
}

impl Clock for Ticks {
    fn now(&self) -> Timestamp {
        self.0.times.fetch_add(1, Relaxed);
        Timestamp::from_nanos(self.0.nanos.load(Relaxed))
    }

    fn interval(&self) -> Option<Interval> {
        self.0.intervals.fetch_add(1, Relaxed);
        let tick = u64::try_from(TICK.as_nanos()).unwrap();
        let earliest = Timestamp::from_nanos(self.0.nanos.load(Relaxed) / tick * tick);
        Interval::new(earliest, earliest + TICK)
    }
}

#[derive(Clone, Debug)]
struct Answers;

impl Service<Request<()>> for Answers {
    type Response = Response<axum::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

type Limited<D> = RateLimit<Answers, D, Ticks, AnyBody>;

fn limited<D: Decide>(judges: D, denials: DenialSettings) -> (Limited<D>, Ticks) {
    let ticks = Ticks::default();
    let layer = RateLimitLayer::builder(judges).denials(denials);
    let layer = layer.peer_without_address(core::net::Ipv4Addr::LOCALHOST);
    (layer.clock(ticks.clone()).build().layer(Answers), ticks)
}

/// The `Retry-After` of a denial, or `None` for a grant.
fn ask<D: Decide>(service: &mut Limited<D>) -> Option<u64> {
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(response)) = pin!(service.call(Request::new(()))).poll(&mut context) else {
        panic!("a response without waiting");
    };
    let value = response.headers().get("retry-after")?;
    Some(value.to_str().unwrap().parse().unwrap())
}

/// 2 permits, and one more each second.
fn bucket() -> TokenBucket {
    TokenBucket::new(Rate::per_second(1), 2)
}

fn reads_the_time_where_it_matters<D: Decide>(judges: D) {
    let (mut service, ticks) = limited(judges, DenialSettings::new());
    let mut ask = |nanos| {
        ticks.at(nanos);
        (ask(&mut service), ticks.readings())
    };
    let millis = 1_000_000;
    // The bucket is full: the next permit comes a second after this instant.
    assert_eq!(ask(10_003 * millis), (None, (1, 1)));
    assert_eq!(ask(10_020 * millis), (None, (1, 0)));
    // The next one comes after the interval.
    assert_eq!(ask(10_025 * millis), (Some(1), (1, 0)));
    // The interval begins before the first grant, more than a second before the permit comes.
    assert_eq!(ask(10_005 * millis), (Some(1), (1, 1)));
    // It comes within this one.
    assert_eq!(ask(11_002 * millis), (Some(1), (1, 1)));
    assert_eq!(ask(11_003 * millis), (None, (1, 1)));
    assert_eq!(ask(11_010 * millis), (Some(1), (1, 0)));
}

#[test]
fn a_limiter_decides_within_the_interval_where_all_of_it_gives_the_same_reply() {
    reads_the_time_where_it_matters(ByLimiter::new(bucket()).keeping_nothing());
    reads_the_time_where_it_matters(ByKey::address(bucket(), 10));
}

/// A function that answers sees the time of the decision, and jitter is drawn from it: clients that
/// are denied in one tick get different ones.
#[test]
fn jitter_and_a_function_get_the_time_itself() {
    let jitter = DenialSettings::new().jitter(1_000_000);
    let (mut service, ticks) = limited(ByKey::address(bucket(), 10), jitter);
    let mut drawn = Vec::new();
    for nanos in 0..7 {
        ticks.at(5_000_000_000 + nanos);
        drawn.extend(ask(&mut service));
    }
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 5, "{drawn:?}");

    let seen = Arc::new(AtomicU64::new(0));
    let sees = Arc::clone(&seen);
    let denials = DenialSettings::new().responding(move |denial, response| {
        sees.store(denial.now.as_nanos(), Relaxed);
        response
    });
    let (mut service, ticks) = limited(ByKey::address(bucket(), 10), denials);
    for nanos in 0..3 {
        ticks.at(5_000_000_000 + nanos);
        ask(&mut service);
    }
    assert_eq!(seen.load(Relaxed), 5_000_000_002);
}

#[test]
fn the_largest_jitter_is_no_fault() {
    let jitter = DenialSettings::new().jitter(u64::MAX);
    let (mut service, ticks) = limited(ByKey::address(bucket(), 10), jitter);
    ticks.at(5_000_000_000);
    let replies: Vec<_> = (0..3).map(|_| ask(&mut service)).collect();
    assert!(
        replies[2].is_some_and(|seconds| seconds >= 1),
        "{replies:?}"
    );
}

/// A future keeps only what follows after the response: nothing that its layer does not use.
#[test]
fn a_future_is_hardly_larger_than_that_of_the_service() {
    type Inner = [u64; 40];
    type By<D> = portcullis_tower::ResponseFuture<
        core::future::Ready<Inner>,
        axum::body::Body,
        D,
        Ticks,
        AnyBody,
    >;
    fn added<D: Decide>(_: &D) -> usize {
        size_of::<By<D>>() - size_of::<core::future::Ready<Inner>>()
    }
    assert!(added(&ByKey::address(bucket(), 10)) <= 16);
    // A lease.
    assert!(added(&ByLimiter::new(bucket())) <= 64);
}

/// Takes the whole burst, rests, and takes the whole burst again.
fn rests<R: RulesByTime>(
    limit: &Everyday,
    rules: impl IntoRules<Rules = R> + Copy,
    draws: &mut Draws<'_>,
) -> usize {
    let mut checked = 0;
    for idle in limit.idle_times(draws).into_iter().step_by(5) {
        let (ticks, burst) = (Ticks::default(), limit.burst);
        let cost = Arc::new(AtomicU32::new(burst));
        let asked = Arc::clone(&cost);
        let mut service = RateLimitLayer::builder(ByKey::address(rules, 10).by_cost())
            .cost(move |_| asked.load(Relaxed))
            .peer_without_address(core::net::Ipv4Addr::LOCALHOST)
            .clock(ticks.clone())
            .build()
            .layer(Answers);
        let start = draws.below(3 * YEAR);
        ticks.at(start);
        assert_eq!(ask(&mut service), None, "{limit:?}");
        ticks.at(start + idle);
        let rest = Duration::from_nanos(idle);
        assert_eq!(ask(&mut service), None, "{rest:?}: {limit:?}");
        cost.store(1, Relaxed);
        assert_ne!(ask(&mut service), None, "one more, {rest:?}: {limit:?}");
        checked += 1;
    }
    checked
}

#[test]
fn a_key_that_rested_for_any_time_up_to_ten_years_has_its_whole_burst() {
    let mut draws = Draws::Seeded {
        state: 11,
        steps: u32::MAX,
    };
    let limits = everyday_limits();
    let checked = limits.iter().map(|limit| match limit.rules {
        AnyRules::TokenBucket(rules) => rests(limit, rules, &mut draws),
        AnyRules::FixedWindow(rules) => rests(limit, rules, &mut draws),
        ref other => unreachable!("{other:?}"),
    });
    let checked = checked.sum::<usize>();
    assert!(checked > 5_000, "{checked}");
}
