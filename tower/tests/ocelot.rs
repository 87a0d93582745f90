//! A service with an `ocelot.json` behaves as Ocelot 25 does, on loopback. Each test names the test
//! of Ocelot that it follows; where its expectation is a defect, the test says so.

#[path = "support/server.rs"]
mod server;

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::sync::Arc;

use axum::Router;
use portcullis_core::ManualClock;
use portcullis_policy::Imported;
use portcullis_tower::fields::{Generation, ResetForm};
use portcullis_tower::{AxumBody, ByPolicy, DenialSettings, RateLimitLayer, RateLimitLayerBuilder};

use server::{Client, Received, serve};

/// The service behind the limits of a file with one route, its clock, and how many requests it has
/// served.
struct Ocelot {
    clock: &'static ManualClock,
    served: Arc<AtomicU32>,
    client: Client,
}

type Builder = RateLimitLayerBuilder<ByPolicy, &'static ManualClock, AxumBody>;

impl Ocelot {
    async fn new(options: &str) -> Self {
        Self::with(options, "").await
    }

    async fn with(options: &str, global: &str) -> Self {
        Self::built(options, global, |layer| layer).await
    }

    async fn built(options: &str, global: &str, build: impl FnOnce(Builder) -> Builder) -> Self {
        let file = format!(
            r#"{{ "Routes": [{{
                "Key": "route", "UpstreamPathTemplate": "/api/ClientRateLimit",
                "RateLimitOptions": {{ {options} }},
            }}], {global} }}"#
        );
        let imported = Imported::from_ocelot(&file).unwrap();
        let clock: &ManualClock = Box::leak(Box::default());
        clock.advance(Duration::from_secs(1_000));
        let layer = RateLimitLayer::builder(ByPolicy::new(imported.into_policy().unwrap()))
            .denials(DenialSettings::ocelot())
            .clock(clock)
            .for_axum();
        let layer = build(layer).build();
        let served = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&served);
        let router = Router::new().fallback(move || async move {
            count.fetch_add(1, Relaxed);
            "served"
        });
        let address = serve(router.layer(layer)).await;
        Self {
            clock,
            served,
            client: Client::connect(address).await,
        }
    }

    /// A request of the client `test`, after a time.
    async fn after(&mut self, millis: u64) -> Received {
        self.clock.advance(Duration::from_millis(millis));
        let path = "/api/ClientRateLimit";
        self.client.get(path, &["Oc-Client: test"]).await
    }

    async fn statuses(&mut self, n: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..n {
            statuses.push(self.after(0).await.status);
        }
        statuses
    }
}

/// Ocelot, `ClientHeaderRateLimitingTests` (world O, 287).
#[tokio::test]
async fn a_client_over_the_limit_waits_for_the_wait_and_not_longer() {
    let mut ocelot = Ocelot::new(r#""Limit": 3, "Period": "1s", "Wait": "1s""#).await;
    for millis in [0, 50, 50] {
        assert_eq!(ocelot.after(millis).await.status, 200);
    }
    // At 150 ms and at 650 ms: denied. The wait of 1 s began at 150 ms.
    let denied = ocelot.after(50).await;
    assert_eq!(
        (denied.status, denied.header("retry-after")),
        (429, Some("1"))
    );
    assert_eq!(ocelot.after(500).await.status, 429);
    assert_eq!(ocelot.after(505).await.status, 200);
    assert_eq!(ocelot.served.load(Relaxed), 4);
}

/// Ocelot, issue 1590 (world O, 289).
#[tokio::test]
async fn a_hundred_requests_pass_and_the_next_one_waits() {
    let mut ocelot = Ocelot::new(r#""Limit": 100, "Period": "1s", "Wait": "3s""#).await;
    assert_eq!(ocelot.statuses(100).await, [200; 100]);
    assert_eq!(ocelot.statuses(1).await, [429]);
    assert_eq!(ocelot.after(3_000).await.status, 200);
    assert_eq!(ocelot.served.load(Relaxed), 101);
}

/// Ocelot with its headers disabled (world O, 291): no reply has any of them.
#[tokio::test]
async fn headers_can_be_disabled() {
    let limit = r#""Limit": 1, "Period": "1s", "Wait": "1s""#;
    let names = [
        "retry-after",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ];
    let without = |layer: Builder| {
        layer
            .denials(DenialSettings::ocelot().without_retry_after())
            .fields(Generation::Off)
    };
    let mut ocelot = Ocelot::built(limit, "", without).await;
    for status in [200, 429] {
        let reply = ocelot.after(0).await;
        assert_eq!(reply.status, status);
        assert_eq!(names.map(|name| reply.header(name)), [None; 4]);
    }
    // With them.
    let with = |layer: Builder| layer.fields(Generation::X(ResetForm::Iso));
    let mut ocelot = Ocelot::built(limit, "", with).await;
    let reply = ocelot.after(0).await;
    assert_eq!(reply.header("x-ratelimit-limit"), Some("1"));
    assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"));
    // Ocelot, `RateLimitingHeaders` (world O, 307): the reset has seven digits after the point.
    let reset = reply.header("x-ratelimit-reset").unwrap();
    assert_eq!((reset.len(), &reset[19..20], &reset[27..]), (28, ".", "Z"));
    assert_eq!(ocelot.after(0).await.header("retry-after"), Some("1"));
}

/// Ocelot, `EnableHeaders` of a route, of the global options, and under its old name (world O, 291
/// and 303). The replies of other routes have the headers.
#[tokio::test]
async fn headers_are_disabled_for_each_route() {
    let limit = r#""Limit": 1, "Period": "1s""#;
    let off = format!(r#"{limit}, "EnableHeaders": false"#);
    let old = format!(r#"{limit}, "DisableRateLimitHeaders": true"#);
    let on = format!(r#"{limit}, "EnableHeaders": true"#);
    let global = r#""GlobalConfiguration": { "RateLimitOptions": { "EnableHeaders": false } }"#;
    let names = [
        "retry-after",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ];
    for (options, global, has_headers) in [
        (limit, "", true),
        (&*off, "", false),
        (&*old, "", false),
        (limit, global, false),
        (&*on, global, true),
    ] {
        let with = |layer: Builder| layer.fields(Generation::X(ResetForm::Iso));
        let mut ocelot = Ocelot::built(options, global, with).await;
        assert_eq!(ocelot.statuses(1).await, [200]);
        let denied = ocelot.after(0).await;
        assert_eq!(denied.status, 429);
        let present = names.map(|name| denied.header(name).is_some());
        assert_eq!(present, [has_headers; 4], "{options} {global}");
    }
}

/// Ocelot, `RateLimitingTests.ProcessRequest` (world O, 297): the request that exceeds the limit
/// counts, and the first one after the wait starts from 1 again.
#[tokio::test]
async fn the_count_starts_again_after_the_wait() {
    let mut ocelot = Ocelot::new(r#""Limit": 2, "Period": "3s", "Wait": "2s""#).await;
    assert_eq!(ocelot.statuses(2).await, [200, 200]);
    assert_eq!(ocelot.after(2_900).await.status, 429);
    assert_eq!(ocelot.after(1_999).await.status, 429);
    assert_eq!(ocelot.after(1).await.status, 200);
    assert_eq!(ocelot.statuses(2).await, [200, 429]);
}

/// Ocelot, a sustained load below the limit (world O, 299): no request is denied.
#[tokio::test]
async fn a_sustained_load_below_the_limit_is_served() {
    let mut ocelot = Ocelot::new(r#""Limit": 100, "Period": "1s", "Wait": "30s""#).await;
    for _ in 0..20 * 60 {
        assert_eq!(ocelot.after(50).await.status, 200);
    }
}

/// Ocelot, the options of `GlobalConfiguration` (world O, 293). Ocelot's `Retry-After` is a
/// fraction there, such as `0.2493`, which is not valid in HTTP.
#[tokio::test]
async fn the_global_options_give_the_message() {
    let global = r#""GlobalConfiguration": { "RateLimitOptions": {
        "Limit": 3, "Period": "1s", "Wait": "500ms", "QuotaMessage": "Exceeding!" } }"#;
    let mut ocelot = Ocelot::with("", global).await;
    assert_eq!(ocelot.statuses(4).await, [200, 200, 200, 429]);
    let denied = ocelot.after(250).await;
    assert_eq!((denied.status, denied.body.as_str()), (429, "Exceeding!"));
    assert_eq!(denied.header("retry-after"), Some("1"));
    assert_eq!(ocelot.after(250).await.status, 200);
}

/// Ocelot without a wait (world O, 295), and its default message (305).
#[tokio::test]
async fn without_a_wait_the_next_window_admits() {
    let mut ocelot = Ocelot::new(r#""Limit": 3, "Period": "1s""#).await;
    assert_eq!(ocelot.statuses(3).await, [200; 3]);
    let denied = ocelot.after(100).await;
    assert_eq!(
        (denied.status, denied.header("retry-after")),
        (429, Some("1"))
    );
    assert_eq!(
        denied.body,
        "API calls quota exceeded! Maximum admitted 3 per 1s."
    );
    assert_eq!(ocelot.after(900).await.status, 200);
}

/// Ocelot's places in a message, and its status.
#[tokio::test]
async fn a_message_names_the_limit_and_the_period() {
    let options = r#""Limit": 1, "Period": "1m", "StatusCode": 418,
        "QuotaMessage": "At most {0} in {1}, {{not more}}.""#;
    let mut ocelot = Ocelot::new(options).await;
    assert_eq!(ocelot.after(0).await.status, 200);
    let denied = ocelot.after(0).await;
    assert_eq!(denied.status, 418);
    assert_eq!(denied.body, "At most 1 in 1m, {not more}.");
}

/// Ocelot: a request without the header of the client gets 503. There, its `Retry-After` is `-1`,
/// which is not valid in HTTP: here it has none.
#[tokio::test]
async fn a_request_without_a_client_gets_503() {
    for (wait, rule) in [
        ("", "3/1s/w0ms"),
        (r#", "Wait": "1s""#, "3/1s/w1s"),
        (
            r#", "PeriodTimespan": 90, "ClientIdHeader": "C""#,
            "3/1s/w90s",
        ),
    ] {
        let mut ocelot = Ocelot::new(&format!(r#""Limit": 3, "Period": "1s"{wait}"#)).await;
        let denied = ocelot.client.get("/api/ClientRateLimit", &[]).await;
        assert_eq!((denied.status, denied.header("retry-after")), (503, None));
        assert_eq!(
            denied.body,
            format!(
                "Rate limiting client could not be identified for the route 'route' due to a \
                 missing or unknown client ID header required by rule '{rule}'!"
            )
        );
        assert_eq!(ocelot.served.load(Relaxed), 0);
    }
}

/// Ocelot: `ClientWhitelist`, and routes that are not limited.
#[tokio::test]
async fn exempt_clients_and_other_routes_pass() {
    let options = r#""Limit": 1, "Period": "1h", "ClientWhitelist": ["admin"]"#;
    let mut ocelot = Ocelot::new(options).await;
    assert_eq!(ocelot.statuses(2).await, [200, 429]);
    for _ in 0..3 {
        let admin = ["Oc-Client: admin"];
        let path = "/api/ClientRateLimit";
        assert_eq!(ocelot.client.get(path, &admin).await.status, 200);
        assert_eq!(ocelot.client.get("/api/other", &[]).await.status, 200);
    }
}
