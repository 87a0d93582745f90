//! Rate limiting middleware for axum, hyper, tonic and other users of [tower].
//!
//! ```
//! use portcullis_policy::{Conditions, Key, Policy, Rule};
//! use portcullis_tower::{ByPolicy, RateLimitLayer};
//!
//! // Per address: 5 logins per minute, and 100 requests per second.
//! let login = Conditions::new().methods(["POST"]).paths(["/login"]);
//! let policy = Policy::new([
//!     Rule::new("login").when(login).key(Key::address()).limit("5/m".parse()?),
//!     Rule::new("all").key(Key::address()).limit("100/s".parse()?),
//! ])
//! .unwrap();
//! // For `Router::layer` of axum, `ServiceBuilder` of tower, or `Server::layer` of tonic.
//! let layer = RateLimitLayer::new(ByPolicy::new(policy));
//! # let _ = layer;
//! # Ok::<(), portcullis_policy::PeriodError>(())
//! ```
//!
//! [tower]: https://docs.rs/tower
#![forbid(unsafe_code)]

mod body;
#[cfg(feature = "client")]
pub mod client;
mod decide;
mod denial;
#[cfg(feature = "fields")]
pub mod fields;
mod forwarded;
mod future;
mod head;
mod layer;
mod service;

#[cfg(feature = "axum")]
pub use body::AxumBody;
pub use body::{AnyBody, LimitedBody, ResponseBody};
#[cfg(feature = "live")]
pub use decide::ByLivePolicy;
pub use decide::{And, ByLimiter, ByPolicy, Decide};
pub use denial::{Denial, DenialBody, DenialSettings, Reply};
pub use forwarded::ForwardedFor;
pub use future::ResponseFuture;
pub use head::{PeerAddress, RequestHead, ResponseCost, ResponseHead};
pub use layer::{NotLimited, RateLimitLayer, RateLimitLayerBuilder};
pub use service::RateLimit;
