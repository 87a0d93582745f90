//! An axum service with the limits of an `ocelot.json`.
//!
//! ```sh
//! cargo run -p portcullis-tower --features axum,fields --example ocelot &
//!
//! # The first three are served. The fourth gets 429, and the field `retry-after: 5`.
//! for i in 1 2 3 4; do curl -i -H 'Oc-Client: me' http://127.0.0.1:3000/quotes/7; done
//! # Another client, and one that is exempt, are served.
//! curl -i -H 'Oc-Client: you' http://127.0.0.1:3000/quotes/7
//! curl -i -H 'Oc-Client: admin' http://127.0.0.1:3000/quotes/7
//! # Nobody: 503.
//! curl -i http://127.0.0.1:3000/quotes/7
//! # A preflight of a browser is not limited.
//! curl -i -X OPTIONS -H 'Origin: https://example.com' \
//!     -H 'Access-Control-Request-Method: GET' http://127.0.0.1:3000/quotes/7
//! ```

use core::error::Error;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use http::{HeaderName, HeaderValue};
use portcullis_policy::Imported;
use portcullis_tower::fields::{Generation, ResetForm};
use portcullis_tower::{ByPolicy, DenialSettings, RateLimitLayer};

/// The service with the limits of a file.
pub(crate) fn service(limits: &str) -> Result<Router, String> {
    let imported = Imported::from_ocelot(limits).map_err(|errors| {
        let lines = errors
            .iter()
            .map(|error| error.in_file("ocelot.json").to_string());
        lines.collect::<Vec<_>>().join("\n")
    })?;
    for warning in &imported.warnings {
        eprintln!("{}", warning.in_file("ocelot.json"));
    }
    let policy = imported
        .into_policy()
        .map_err(|errors| format!("{errors:?}"))?;
    // A page of another origin can read the reply to a denied request.
    let denials = DenialSettings::ocelot().header(
        HeaderName::from_static("access-control-allow-origin"),
        HeaderValue::from_static("*"),
    );
    let layer = RateLimitLayer::builder(ByPolicy::new(policy))
        .denials(denials)
        // The fields of Ocelot: `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
        .fields(Generation::X(ResetForm::Iso))
        .passing_preflights()
        .for_axum()
        .build();
    let quote = |Path(id): Path<u32>| async move { format!("Quote {id}.\n") };
    Ok(Router::new()
        .route("/quotes/{id}", get(quote).options(|| async {}))
        .layer(layer))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let router = service(include_str!("ocelot.json"))?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}
