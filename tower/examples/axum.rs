//! An axum service behind a proxy, with limits in a file: for all clients together, for each
//! client, and for one route. The file is read again when it changes, and requests are counted for
//! a recorder of the crate `metrics`.
//!
//! ```sh
//! cargo run -p portcullis-tower --features axum,fields,live,metrics --example axum &
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

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use portcullis_core::{Clock, MonotonicClock};
use portcullis_policy::{FileSource, Kind, LivePolicy};
use portcullis_tower::fields::Generation;
use portcullis_tower::{ByLivePolicy, Decide, ForwardedFor, RateLimitLayer};

/// The service with the limits of a policy.
pub(crate) fn service(policy: &LivePolicy) -> Result<Router, Box<dyn Error>> {
    // Only the proxy on this host says who the client is.
    let proxy = ForwardedFor::x_forwarded_for().trust("127.0.0.1/32".parse()?);
    // One decision by two rules: a request takes from the limits of both, or of neither.
    let everything = ByLivePolicy::new(policy.clone()).kind(Kind::Burst);
    let layer = RateLimitLayer::builder(everything.and(ByLivePolicy::new(policy.clone())))
        .forwarded(proxy)
        // `RateLimit` and `RateLimit-Policy`, as in the draft of the IETF.
        .fields(Generation::Draft11)
        .measured()
        .for_axum()
        .build();
    let report = |Path(id): Path<u32>| async move { format!("Report {id}.\n") };
    Ok(Router::new()
        .route("/hello", get(|| async { "Hello.\n" }))
        .route("/reports/{id}", get(report))
        .layer(layer))
}

/// Reads the file again once a second. What is not valid is reported, and changes nothing.
pub(crate) async fn reload(policy: LivePolicy, mut file: FileSource) {
    let clock = MonotonicClock::new();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        match policy.refresh_at(clock.now(), &mut file) {
            Ok(None) => {}
            Ok(Some(change)) => println!("generation {}", change.generation()),
            Err(error) => eprintln!("{error}"),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Install a recorder here, such as that of `metrics-exporter-prometheus`.
    let mut file = FileSource::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/axum.toml"));
    let policy = LivePolicy::from_source(&mut file)?;
    let router = service(&policy)?;
    tokio::spawn(reload(policy, file));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3002").await?;
    println!("http://{}", listener.local_addr()?);
    // Without this, the layer does not know who sent a request.
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
