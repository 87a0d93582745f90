//! Clients that obey what servers state, in virtual time.

use core::convert::Infallible;
use core::num::NonZero;
use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http::{Request, Response, StatusCode};
use portcullis_async::{Rejected, TokioTimer};
use portcullis_core::{Clock, Rate};
use portcullis_tower::client::{
    ClientError, ClientLayer, Pacing, ServerLimits, ServerLimitsBuilder,
};
use portcullis_tower::fields::{Generation, Quota, ResetForm};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::service_fn;
use tower::{BoxError, ServiceBuilder, ServiceExt};

/// A server with a fixed window, which states its limit in one of the generations.
struct Server {
    quota: u64,
    window: Duration,
    states: Generation,
    /// How long a request takes to arrive, and its reply to return.
    latency: Duration,
    window_state: Mutex<(Instant, u64)>,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    granted: u64,
    denied: u64,
    most_at_once: u64,
    at_once: u64,
}

impl Server {
    fn new(quota: u64, window: Duration, states: Generation) -> Arc<Self> {
        Arc::new(Self {
            quota,
            window,
            states,
            latency: Duration::from_millis(20),
            window_state: Mutex::new((Instant::now(), 0)),
            counts: Mutex::default(),
        })
    }

    fn counts(&self) -> Counts {
        *self.counts.lock().expect("no panic")
    }

    async fn serve(self: Arc<Self>, _: Request<()>) -> Result<Response<()>, Infallible> {
        {
            let mut counts = self.counts.lock().expect("no panic");
            counts.at_once += 1;
            counts.most_at_once = counts.most_at_once.max(counts.at_once);
        }
        sleep(self.latency).await;
        let response = self.decide();
        sleep(self.latency).await;
        self.counts.lock().expect("no panic").at_once -= 1;
        Ok(response)
    }

    fn decide(&self) -> Response<()> {
        let now = Instant::now();
        let mut state = self.window_state.lock().expect("no panic");
        if now >= state.0 + self.window {
            *state = (now, 0);
        }
        let granted = state.1 < self.quota;
        state.1 += u64::from(granted);
        let reset = state.0 + self.window - now;
        let quota = Quota::new(self.quota).named("window").window(self.window);
        let quota = quota.available(self.quota - state.1).reset(reset);
        let mut response = Response::new(());
        self.states
            .write(&[quota], SystemTime::now(), response.headers_mut());
        let mut counts = self.counts.lock().expect("no panic");
        if granted {
            counts.granted += 1;
        } else {
            counts.denied += 1;
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            let seconds = reset.as_secs() + u64::from(reset.subsec_nanos() > 0);
            response.headers_mut().insert("retry-after", seconds.into());
        }
        response
    }
}

fn request() -> Request<()> {
    let request = Request::get("http://user:word@example.com:81/path");
    request.body(()).expect("a valid request")
}

/// Sends requests from several tasks, and returns the time that all took.
async fn send(server: &Arc<Server>, limits: &ServerLimits, tasks: usize, each: usize) -> Duration {
    let start = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let server = Arc::clone(server);
        let service = service_fn(move |request| Arc::clone(&server).serve(request));
        let service = ServiceBuilder::new()
            .layer(ClientLayer::new(limits.clone()))
            .service(service);
        running.spawn(async move {
            for _ in 0..each {
                let response = service.clone().oneshot(request()).await;
                response.expect("the wait has no limit");
            }
        });
    }
    while let Some(result) = running.join_next().await {
        result.expect("no panic");
    }
    start.elapsed()
}

const GENERATIONS: [Generation; 6] = [
    Generation::X(ResetForm::Seconds),
    Generation::X(ResetForm::Epoch),
    Generation::Draft6,
    Generation::Draft7,
    Generation::Draft11,
    Generation::Next,
];

#[tokio::test(start_paused = true)]
async fn once_a_reply_has_stated_the_limit_no_request_is_denied() {
    for states in GENERATIONS {
        let server = Server::new(20, Duration::from_secs(10), states);
        let limits = ServerLimits::new();
        // Nothing is known before the first reply.
        send(&server, &limits, 1, 1).await;
        let took = send(&server, &limits, 5, 20).await;
        let counts = server.counts();
        assert_eq!((counts.granted, counts.denied), (101, 0), "{states:?}");
        // 101 requests need six windows, so five have to end. Resets are rounded up to seconds.
        assert!(took >= Duration::from_secs(49), "{states:?}: {took:?}");
        assert!(took <= Duration::from_secs(62), "{states:?}: {took:?}");
    }
}

/// The timer is up to 1 ms late: 333 1/3 ms become 334.
#[tokio::test(start_paused = true)]
async fn without_slack_no_two_requests_are_closer_than_the_rate_says() {
    let shortest = async |builder: ServerLimitsBuilder<TokioTimer>| {
        let limits = builder.rate(Rate::per_second(3), 1).build();
        let mut times = vec![];
        for _ in 0..20 {
            drop(limits.acquire("shop.example").await.expect("it waits"));
            times.push(Instant::now());
        }
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.min().expect("several requests")
    };
    let exact = Duration::from_millis(334);
    assert!(shortest(ServerLimits::builder()).await < exact);
    assert!(shortest(ServerLimits::builder().slack(Duration::ZERO)).await >= exact);
}

#[tokio::test(start_paused = true)]
async fn without_knowledge_a_burst_is_denied_once_and_all_tasks_wait() {
    let server = Server::new(20, Duration::from_secs(10), Generation::Off);
    let limits = ServerLimits::new();
    send(&server, &limits, 50, 1).await;
    let first = server.counts();
    assert_eq!((first.granted, first.denied), (20, 30));
    // All tasks share what the denials said. One request tries first.
    let took = send(&server, &limits, 20, 1).await;
    assert_eq!(server.counts().denied, 30);
    assert!(took >= Duration::from_millis(9_900), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_client_slows_down_before_the_limit() {
    let gaps = |times: &[Instant]| -> Vec<u128> {
        times
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_millis())
            .collect()
    };
    for (pacing, most) in [
        (Pacing::Off, 20_100),
        (Pacing::BelowHalf, 6_000),
        (Pacing::Always, 6_000),
    ] {
        let server = Server::new(10, Duration::from_secs(20), Generation::Draft11);
        let limits = ServerLimits::builder().pacing(pacing).build();
        let mut times = vec![];
        for _ in 0..25 {
            send(&server, &limits, 1, 1).await;
            times.push(Instant::now());
        }
        assert_eq!(server.counts().denied, 0);
        let longest = gaps(&times).into_iter().max().expect("several requests");
        assert!(
            longest <= most && longest > most / 3,
            "{pacing:?}: {:?}",
            gaps(&times)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn own_limits_hold() {
    let server = Server::new(1000, Duration::from_secs(1000), Generation::Off);
    let limits = ServerLimits::builder()
        .rate(Rate::per_second(10), 5)
        .concurrency(NonZero::new(3).expect("not 0"))
        .build();
    let took = send(&server, &limits, 20, 5).await;
    assert_eq!(server.counts().most_at_once, 3);
    assert!(took >= Duration::from_millis(9_500), "{took:?}");
    assert!(took <= Duration::from_millis(9_700), "{took:?}");
    assert_eq!(
        limits
            .counts("example.com:81")
            .expect("it was used")
            .waiters,
        0
    );
    assert_eq!(limits.counts("example.com"), None);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_too_long_is_not_sent() {
    let server = Server::new(1, Duration::from_mins(1), Generation::Draft11);
    let limits = ServerLimits::builder()
        .timeout(Duration::from_secs(5))
        .waiting(1)
        .build();
    send(&server, &limits, 1, 1).await;
    let inner =
        service_fn(|_: Request<()>| async { Err::<Response<()>, BoxError>("not sent".into()) });
    let service = ServiceBuilder::new()
        .layer(ClientLayer::new(limits))
        .service(inner);
    let error = service
        .oneshot(request())
        .await
        .expect_err("it would wait for a minute");
    assert!(
        matches!(error, ClientError::Rejected(Rejected::Deadline { .. })),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_dropped_leave_nothing_behind() {
    let server = Server::new(1000, Duration::from_secs(1000), Generation::Off);
    let limits = ServerLimits::builder()
        .concurrency(NonZero::new(1).expect("not 0"))
        .build();
    // One on its way, and one that waits.
    for _ in 0..3 {
        let both =
            async { tokio::join!(send(&server, &limits, 1, 1), send(&server, &limits, 1, 1)) };
        let ended = tokio::time::timeout(Duration::from_millis(10), both).await;
        assert!(ended.is_err());
        // The tasks of a `JoinSet` end with it, when they are next scheduled.
        tokio::task::yield_now().await;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(
            limits
                .counts("example.com:81")
                .expect("it was used")
                .waiters,
            0
        );
    }
    server.counts.lock().expect("no panic").at_once = 0;
    send(&server, &limits, 3, 1).await;
    assert_eq!(server.counts().granted, 3);
}

#[tokio::test(start_paused = true)]
async fn servers_are_known_apart_and_the_oldest_is_forgotten() {
    let limits = ServerLimits::builder().servers(2).build();
    for server in ["a", "b", "a", "c"] {
        drop(limits.acquire(server).await.expect("nothing is known"));
    }
    assert!(limits.counts("a").is_some());
    assert!(limits.counts("b").is_none());
    // Servers with requests on their way stay.
    let held = [
        limits.acquire("d").await,
        limits.acquire("e").await,
        limits.acquire("f").await,
    ];
    assert!(
        ["d", "e", "f"]
            .iter()
            .all(|server| limits.counts(server).is_some())
    );
    drop(held);
}

/// What a hostile or broken server states makes the client wait for an hour at most.
#[tokio::test(start_paused = true)]
async fn a_server_that_states_absurd_times_is_believed_for_the_longest_time_only() {
    let forever = "99999999999999999999999999";
    for headers in [
        vec![("retry-after", "18446744073709551615".to_owned())],
        vec![("retry-after", "999999999999999".to_owned())],
        vec![("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT".to_owned())],
        vec![("ratelimit", r#""a";r=0;t=999999999999999"#.to_owned())],
        // A window without a reset.
        vec![
            ("ratelimit-policy", r#""a";q=1;w=1000000"#.to_owned()),
            ("ratelimit", r#""a";r=0"#.to_owned()),
        ],
        vec![
            ("x-ratelimit-remaining", "0".to_owned()),
            ("x-ratelimit-reset", "18446744073709551615".to_owned()),
        ],
        // These are no times.
        vec![("retry-after", forever.to_owned())],
        vec![("retry-after", "-5".to_owned())],
        vec![("retry-after", "0x10".to_owned())],
    ] {
        let limits = ServerLimits::new();
        let mut map = http::HeaderMap::new();
        for (name, value) in &headers {
            map.insert(*name, value.parse().expect("a value"));
        }
        let sending = limits.acquire("a").await.expect("nothing is known");
        sending.replied(StatusCode::TOO_MANY_REQUESTS, &map);
        let start = Instant::now();
        drop(limits.acquire("a").await.expect("the wait has no limit"));
        let waited = start.elapsed();
        let range = Duration::from_secs(1)..=Duration::from_secs(3_601);
        assert!(range.contains(&waited), "{headers:?}: {waited:?}");
    }
}

/// GitLab states the reset of `RateLimit-Reset` as a time since 1970, and Docker Hub a window.
#[tokio::test(start_paused = true)]
async fn a_client_waits_no_longer_than_a_server_that_deviates_from_the_drafts_means() {
    let since_1970 = SystemTime::now() + Duration::from_secs(5);
    let since_1970 = since_1970
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    let (seconds, millis) = (since_1970.as_secs(), since_1970.as_millis());
    for (remaining, reset, expected) in [
        ("900", seconds.to_string(), 0..=1),
        ("0", seconds.to_string(), 4..=5),
        ("0", millis.to_string(), 4..=5),
        ("0", "5".to_owned(), 5..=5),
        ("0.0", "5".to_owned(), 5..=5),
        ("0;w=5", "none".to_owned(), 5..=5),
    ] {
        let limits = ServerLimits::new();
        let mut headers = http::HeaderMap::new();
        for (name, value) in [
            ("ratelimit-limit", "2000"),
            ("ratelimit-remaining", remaining),
            ("ratelimit-reset", &*reset),
        ] {
            headers.insert(name, value.parse().expect("a value"));
        }
        let sending = limits.acquire("gitlab.example").await;
        sending
            .expect("nothing is known")
            .replied(StatusCode::OK, &headers);
        let start = Instant::now();
        for _ in 0..6 {
            let sending = limits.acquire("gitlab.example").await;
            let sending = sending.expect("the wait has no limit");
            sending.replied(StatusCode::OK, &http::HeaderMap::new());
        }
        let waited = start.elapsed().as_secs();
        assert!(
            expected.contains(&waited),
            "{remaining}, {reset}: {waited} s"
        );
    }
}

/// One request at a time.
fn one_at_a_time() -> ServerLimits {
    let limits = ServerLimits::builder().concurrency(NonZero::<u32>::MIN);
    limits.build()
}

#[tokio::test(start_paused = true)]
async fn closed_limits_reject_what_waits_and_what_comes_and_drain_what_is_on_its_way() {
    let limits = one_at_a_time();
    let (one, other) = (limits.acquire("a").await, limits.acquire("b").await);
    let waits = tokio::spawn(limits.acquire("a"));
    tokio::task::yield_now().await;
    assert_eq!(limits.counts("a").unwrap().waiters, 1);
    limits.close();
    assert_eq!(
        waits.await.unwrap().unwrap_err(),
        Rejected::Closed { permits: 1 }
    );
    // A server that is not known yet, too.
    for server in ["a", "c"] {
        let rejected = limits.clone().acquire(server).await.unwrap_err();
        assert_eq!(rejected, Rejected::Closed { permits: 1 });
    }
    let drained = limits.clone();
    let mut drained = tokio::spawn(async move { drained.drained().await });
    for sending in [one.unwrap(), other.unwrap()] {
        let early = tokio::time::timeout(Duration::from_secs(1), &mut drained);
        assert!(early.await.is_err());
        sending.replied(StatusCode::OK, &http::HeaderMap::new());
    }
    drained.await.unwrap();
    // What is closed and empty is drained.
    limits.drained().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_may_wait_for_another_time_than_the_settings_say() {
    let seconds = Duration::from_secs;
    let settings = ServerLimits::builder().concurrency(NonZero::<u32>::MIN);
    let limits = settings.timeout(seconds(60)).build();
    let _sending = limits.acquire("a").await.unwrap();
    let start = Instant::now();
    let rejected = limits.acquire("a").within(seconds(2)).await.unwrap_err();
    assert!(
        matches!(rejected, Rejected::Deadline { .. }),
        "{rejected:?}"
    );
    assert_eq!(start.elapsed(), seconds(2));
    // A server that asks for more patience is not waited for.
    let limits = ServerLimits::new();
    let sending = limits.acquire("a").await.unwrap();
    let mut headers = http::HeaderMap::new();
    headers.insert("retry-after", 9.into());
    sending.replied(StatusCode::TOO_MANY_REQUESTS, &headers);
    let start = Instant::now();
    let rejected = limits.acquire("a").within(seconds(2)).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let wait = rejected.retry().wait_from(TokioTimer::new().now());
    assert_eq!(wait, Some(seconds(9)));
}

/// One deadline for both waits: a wait for a server that asks for more time ends at once.
#[tokio::test(start_paused = true)]
async fn a_wait_that_takes_nothing_has_a_time_and_a_deadline() {
    let seconds = Duration::from_secs;
    let limits = ServerLimits::new();
    let sending = limits.acquire("a").await.unwrap();
    let mut headers = http::HeaderMap::new();
    headers.insert("retry-after", 9.into());
    sending.replied(StatusCode::TOO_MANY_REQUESTS, &headers);
    let (start, clock) = (Instant::now(), TokioTimer::new());
    let early = clock.now() + seconds(2);
    for rejected in [
        limits.ready("a").within(seconds(2)).await.unwrap_err(),
        limits.ready("a").until(early).await.unwrap_err(),
        limits
            .acquire("a")
            .until(early)
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert!(matches!(rejected, Rejected::Deadline { .. }));
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(rejected.retry().wait_from(clock.now()), Some(seconds(9)));
    }
    limits.ready("a").until(early + seconds(7)).await.unwrap();
    assert_eq!(start.elapsed(), seconds(9));
    // One request tries first, and no one knows until when.
    let first = limits.acquire("a").await.unwrap();
    let late = limits.ready("a").within(seconds(1)).await.unwrap_err();
    assert!(matches!(late, Rejected::Deadline { .. }), "{late:?}");
    assert_eq!(start.elapsed(), seconds(10));
    // The time of the wait replaces that of the settings.
    first.replied(StatusCode::OK, &http::HeaderMap::new());
    let settings = ServerLimits::builder().concurrency(NonZero::<u32>::MIN);
    let limits = settings.timeout(seconds(60)).build();
    let sending = limits.acquire("a").await.unwrap();
    let start = Instant::now();
    assert!(limits.ready("a").within(seconds(3)).await.is_err());
    assert_eq!(start.elapsed(), seconds(3));
    drop(sending);
    assert!(limits.ready("a").within(seconds(3)).await.is_ok());
}
