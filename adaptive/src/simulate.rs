//! Scenarios: a service and its load, in virtual time, and what a limit before it must reach.
//!
//! ```
//! use portcullis_adaptive::Knee;
//! use portcullis_adaptive::simulate::Scenario;
//!
//! let scenario = Scenario::parse(
//!     r#"
//!     name = "twice the capacity"
//!     seconds = 30
//!
//!     [[span]]
//!     load = 800             # requests each second
//!     workers = 20
//!     service.erlang = 0.05  # seconds: the capacity is 400 requests each second
//!
//!     [[check]]
//!     from = 10
//!     to = 30
//!     goodput = 0.95         # at least, of the capacity
//!     latency = 1.5          # at most, times the latency without a queue
//!     "#,
//! )?;
//! let run = scenario.run(&Knee::new(), 1);
//! assert!(run.checks[0].misses().is_empty());
//! # Ok::<(), portcullis_adaptive::simulate::ScenarioError>(())
//! ```
//!
//! A [`Log`] has requests that were served already, and tells which limit a controller would have
//! found in them.
//!
//! Each span has its own load and service. `limiters` puts several limits before the one service.
//! `phase` shifts all spans but the first, and the checks, by a random time of up to so many
//! seconds, so that a change of the service meets the controller in any of its phases.

mod log;
mod random;
mod scenario;
mod service;

pub use self::log::{Found, Log, LoggedRequest};
pub use self::scenario::{Check, Scenario, ScenarioError, Service, Span};
pub use self::service::{Measured, Run, Second};
