//! Concurrency limits that find themselves.
//!
//! How many requests may a service hold at once? Too few waste it; too many queue. An
//! [`Adaptive`] limit finds out, from how long requests take, and follows the service.
//!
//! # Items by use
//!
//! | to | use |
//! |---|---|
//! | limit what is in flight before a service | [`Adaptive`], [`AdaptiveBuilder`] |
//! | hold permits, and tell how the request ended | [`Held`], [`Outcome`] |
//! | choose a controller | [`Knee`], the default |
//! | choose one of a paper or another system | [`EnvoyGradient`], [`Gradient2`], [`Vegas`], [`Aimd`] |
//! | write a controller of your own | [`Controller`], [`Window`], [`Sample`], [`Decision`] |
//! | see what was decided, and why | [`Explanation`], [`Phase`] |
//! | send a service of others less of what it refuses | [`Throttle`], [`Sent`] |
//! | try controllers on a service that you describe | `simulate`, with the feature of this name |
//!
//! # What it holds
//!
//! - **The bound of a concurrency limit**, always: what a controller does wrong makes a limit too
//!   low or too high, between its floor and its ceiling, and never admits beyond it.
//! - **No lock.** A window is closed by the request that ends last in it. Others do not wait.
//! - **Per key**: one [`Adaptive`] limit for each service, route or partition. They share nothing:
//!   if one service fails, requests to the others are not slowed down.
//!
//! # Several limiters before one service
//!
//! Each takes the queue of the others for the latency of the service. [`Knee::rise`] bounds what
//! comes of it: at twice the capacity, two limiters were measured to reach 2.9 times the latency
//! without a queue, four 5.8 times, and eight 7.3 times. Better is one limiter for one service: at
//! the service itself.
#![cfg_attr(not(any(test, feature = "simulate")), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]
#![deny(unsafe_code)]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "limits and numbers of samples are small and positive; a cast of a number saturates"
)]

mod adaptive;
mod controller;
mod controllers;
mod math;
mod outcome;
mod recorder;
#[cfg(feature = "simulate")]
pub mod simulate;
mod sync;
mod throttle;
mod turn;
mod window;

pub use adaptive::{Adaptive, AdaptiveBuilder, Explanation, Held};
pub use controller::{Controller, Decision, Phase};
pub use controllers::aimd::Aimd;
pub use controllers::envoy::EnvoyGradient;
pub use controllers::gradient2::Gradient2;
pub use controllers::knee::Knee;
pub use controllers::vegas::Vegas;
pub use outcome::Outcome;
pub use recorder::Sample;
pub use throttle::{Sent, Throttle, ThrottleBuilder, Throttled};
#[cfg(portcullis_loom)]
#[doc(hidden)]
pub use turn::{Turn, Turns};
pub use window::Window;
