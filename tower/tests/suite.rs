//! The tests that can share a process. Those that cannot are programs of their own in `Cargo.toml`.
#![allow(
    clippy::duplicate_mod,
    reason = "the files of `support/` are modules of each file that uses them"
)]

#[cfg(all(feature = "adaptive", feature = "axum"))]
#[path = "adaptive.rs"]
mod adaptive;

#[cfg(all(feature = "adaptive", feature = "client"))]
#[path = "adaptive_queue.rs"]
mod adaptive_queue;

#[path = "addresses.rs"]
mod addresses;

#[cfg(feature = "axum")]
#[path = "axum.rs"]
mod axum;

#[cfg(all(feature = "axum", feature = "bodies"))]
#[path = "bodies.rs"]
mod bodies;

#[cfg(feature = "client")]
#[path = "client.rs"]
mod client;

#[cfg(feature = "axum")]
#[path = "clocks.rs"]
mod clocks;

#[cfg(feature = "axum")]
#[path = "dotnet.rs"]
mod dotnet;

#[cfg(all(feature = "axum", feature = "live"))]
#[path = "endings.rs"]
mod endings;

#[cfg(all(
    feature = "axum",
    feature = "fields",
    feature = "live",
    feature = "metrics",
    feature = "reqwest",
    feature = "tonic"
))]
#[path = "examples.rs"]
mod examples;

#[cfg(feature = "fields")]
#[path = "fields.rs"]
mod fields;

#[cfg(all(feature = "axum", feature = "fields"))]
#[path = "ietf.rs"]
mod ietf;

#[cfg(feature = "axum")]
#[path = "leases.rs"]
mod leases;

#[cfg(feature = "live")]
#[path = "live.rs"]
mod live;

#[cfg(all(
    feature = "axum",
    feature = "fields",
    feature = "metrics",
    feature = "queue"
))]
#[path = "metrics.rs"]
mod metrics;

#[cfg(all(feature = "axum", feature = "fields"))]
#[path = "ocelot.rs"]
mod ocelot;

#[cfg(all(feature = "axum", feature = "queue"))]
#[path = "queues.rs"]
mod queues;

#[path = "settings.rs"]
mod settings;

#[cfg(all(feature = "axum", feature = "fields", feature = "queue"))]
#[path = "stored.rs"]
mod stored;

#[cfg(all(feature = "axum", feature = "queue"))]
#[path = "waiting.rs"]
mod waiting;

#[cfg(feature = "client")]
#[path = "worker.rs"]
mod worker;
