//! An axum service behind a proxy, with limits in a file: for all clients together, for each
//! client, and for one route, whose limit all instances share by Redis. The file is read again when
//! it changes. `/metrics` has the counts of requests for Prometheus.
//!
//! ```sh
//! redis-server --save '' &
//! cargo run -p portcullis-tower --features axum,fields,metrics,queue --example axum -- \
//!     tower/examples/limits.toml &
//!
//! # The proxy on this host says who the client is. The third report is denied, with `Retry-After`.
//! for i in 1 2 3; do curl -i -H 'X-Forwarded-For: 192.0.2.7' http://127.0.0.1:3002/reports/1; done
//! # Another client has reports of its own, and the route of the first one has other limits.
//! curl -i -H 'X-Forwarded-For: 192.0.2.8' http://127.0.0.1:3002/reports/1
//! curl -i -H 'X-Forwarded-For: 192.0.2.7' http://127.0.0.1:3002/hello
//! ```

use core::error::Error;
use core::net::SocketAddr;
use core::time::Duration;
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, thread};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use metrics::gauge;
use metrics_exporter_prometheus::PrometheusBuilder;
use portcullis_core::MonotonicClock;
use portcullis_counters::{
    GuardSettings, GuardedStore, OnFailure, RedisCounters, RedisSettings, StoreEvent,
};
use portcullis_policy::{FileSource, LivePolicy, Stores};
use portcullis_tower::fields::Generation;
use portcullis_tower::{ByLivePolicy, ForwardedFor, RateLimitLayer};
use tokio::time::sleep;

/// The store that the rules name, on a Redis server. While the server is away, this instance grants
/// half of each limit, because there are two instances. Needs the runtime of tokio.
fn stores(url: &str) -> Result<Stores, Box<dyn Error>> {
    let redis = RedisCounters::new(&RedisSettings::new(url))?;
    let settings = GuardSettings::new(OnFailure::Share { part: 1, whole: 2 });
    let guarded = GuardedStore::new(redis, MonotonicClock::new(), settings);
    let is_up = gauge!("portcullis_store_up", "store" => "shared");
    is_up.set(1.0);
    let guarded = Arc::new(guarded.observed(move |event| {
        match event {
            // From now on the guard decides.
            StoreEvent::Down { .. } => is_up.set(0.0),
            StoreEvent::Up { .. } => is_up.set(1.0),
            _ => {}
        }
        eprintln!("shared: {event}");
    }));
    let probed = Arc::clone(&guarded);
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            probed.probe().await;
        }
    });
    Ok(Stores::new().with("shared", guarded))
}

/// The service with the limits of a policy.
pub(crate) fn service(policy: &LivePolicy) -> Result<Router, Box<dyn Error>> {
    // Only the proxy on this host says who the client is.
    let proxy = ForwardedFor::x_forwarded_for().trust("127.0.0.1/32".parse()?);
    // A request takes from the limits of all rules that it meets, or from none of them.
    let layer = RateLimitLayer::builder(ByLivePolicy::new(policy.clone()))
        .forwarded(proxy)
        // `RateLimit` and `RateLimit-Policy`, as in the draft of the IETF.
        .fields(Generation::Draft11)
        .measured()
        .for_axum()
        // Asks the stores.
        .build_waiting();
    let report = |Path(id): Path<u32>| async move { format!("Report {id}.\n") };
    Ok(Router::new()
        .route("/hello", get(|| async { "Hello.\n" }))
        .route("/reports/{id}", get(report))
        .layer(layer))
}

/// Reads the file again once a second, in a thread of its own. What is not valid is reported, and
/// changes nothing.
pub(crate) fn reload(policy: &LivePolicy, mut file: FileSource) {
    loop {
        thread::sleep(Duration::from_secs(1));
        // The time of the requests that are being decided.
        let now = policy.load().now();
        match policy.refresh_at(now, &mut file) {
            Ok(None) => {}
            Ok(Some(change)) => println!("generation {}", change.generation()),
            Err(error) => eprintln!("{error}"),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = serve().await else {
        return ExitCode::SUCCESS;
    };
    // `Display` has the lines of the file that are wrong.
    eprintln!("{error}");
    ExitCode::FAILURE
}

async fn serve() -> Result<(), Box<dyn Error>> {
    // Histograms: the quantiles of several instances cannot be added.
    let seconds = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];
    let metrics = PrometheusBuilder::new().set_buckets(&seconds)?;
    let metrics = metrics.install_recorder()?;
    let path = env::args().nth(1).ok_or("name the file of the limits")?;
    let redis = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let mut file = FileSource::new(path).with_stores(stores(&redis)?);
    let policy = LivePolicy::from_source(&mut file)?;
    // A route that is added after the layer is not limited. Here everybody can read this one: let
    // the proxy refuse it, or serve it on a port of its own.
    let upkeep = metrics.clone();
    let router = service(&policy)?.route("/metrics", get(async move || metrics.render()));
    thread::spawn(move || reload(&policy, file));
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3002").await?;
    println!("http://{}", listener.local_addr()?);
    // Without this, the layer does not know who sent a request.
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use axum::http::Request;
    use portcullis_async::TokioTimer;
    use portcullis_counters::MemoryCounters;
    use portcullis_policy::Policy;
    use tower::ServiceExt as _;

    use super::*;

    /// The rules of the file, with a store in memory. Both tell the time of tokio.
    fn policy() -> LivePolicy {
        // Up to 10,000 clients at once.
        let store = Arc::new(MemoryCounters::new(10_000, TokioTimer::new()));
        let stores = Stores::new().with("shared", store);
        let policy = Policy::from_toml(include_str!("limits.toml")).unwrap();
        let policy = policy.with_stores(stores).unwrap();
        LivePolicy::new(policy.with_timer(TokioTimer::new))
    }

    /// The status of a request that the proxy passes on for a client.
    async fn status(service: &Router, path: &str, client: &str) -> u16 {
        let request = Request::get(path).header("X-Forwarded-For", client);
        let mut request = request.body(Body::empty()).unwrap();
        let proxy = SocketAddr::from(([127, 0, 0, 1], 40_000));
        request.extensions_mut().insert(ConnectInfo(proxy));
        let response = service.clone().oneshot(request).await.unwrap();
        response.status().as_u16()
    }

    #[tokio::test(start_paused = true)]
    async fn each_client_has_two_reports_a_minute() {
        let service = service(&policy()).unwrap();
        for expected in [200, 200, 429] {
            assert_eq!(status(&service, "/reports/1", "192.0.2.7").await, expected);
        }
        assert_eq!(status(&service, "/reports/1", "192.0.2.8").await, 200);
        assert_eq!(status(&service, "/hello", "192.0.2.7").await, 200);
        tokio::time::advance(Duration::from_secs(30)).await;
        for expected in [200, 429] {
            assert_eq!(status(&service, "/reports/1", "192.0.2.7").await, expected);
        }
    }
}
