//! The tests that can share a process. Those that cannot are programs of their own in `Cargo.toml`.
#![allow(
    clippy::duplicate_mod,
    reason = "the files of `support/` are modules of each file that uses them"
)]

#[path = "agreement.rs"]
mod agreement;

#[cfg(feature = "json")]
#[path = "ats.rs"]
mod ats;

#[cfg(all(feature = "json", feature = "live"))]
#[path = "cases.rs"]
mod cases;

#[cfg(feature = "live")]
#[path = "changes.rs"]
mod changes;

#[cfg(feature = "tracing")]
#[path = "decision_log.rs"]
mod decision_log;

#[path = "decisions.rs"]
mod decisions;

#[cfg(all(feature = "toml", feature = "json"))]
#[path = "examples.rs"]
mod examples;

#[path = "explained.rs"]
mod explained;

#[cfg(all(feature = "toml", feature = "json"))]
#[path = "files.rs"]
mod files;

#[path = "holds.rs"]
mod holds;

#[path = "hostile.rs"]
mod hostile;

#[cfg(all(feature = "live", feature = "toml"))]
#[path = "initial.rs"]
mod initial;

#[cfg(feature = "json")]
#[path = "large_imports.rs"]
mod large_imports;

#[cfg(all(feature = "toml", feature = "json", feature = "wait"))]
#[path = "live.rs"]
mod live;

#[path = "matching.rs"]
mod matching;

#[cfg(feature = "metrics")]
#[path = "metrics.rs"]
mod metrics;

#[cfg(feature = "json")]
#[path = "ocelot.rs"]
mod ocelot;

#[path = "overrides.rs"]
mod overrides;

#[cfg(all(feature = "queue", feature = "toml"))]
#[path = "queues.rs"]
mod queues;

#[path = "several_limits.rs"]
mod several_limits;

#[path = "stored.rs"]
mod stored;
