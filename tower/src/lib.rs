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
//! # Items by use
//!
//! | to | items |
//! |---|---|
//! | judge by rules | [`ByPolicy`]; `ByLivePolicy` for a policy that changes |
//! | judge by a limiter of each client | [`ByKey`]; with a queue of each client, `ByKeyedQueue` |
//! | judge by one limiter for all requests | [`ByLimiter`] |
//! | judge by several rules together | [`Rule::continuing`](portcullis_policy::Rule::continuing) |
//! | judge by a policy and a limiter, in order | [`Decide::and`] |
//! | let requests wait, or ask counter stores | `WaitingLayer`, by `RateLimitLayerBuilder::build_waiting` |
//! | limit a service | [`RateLimitLayer`], [`RateLimitLayerBuilder`] |
//! | answer denied requests | [`DenialSettings`], [`DenialBody`], [`Denial`], [`Reason`], [`Reply`] |
//! | find the client | [`RequestHead`], [`PeerAddress`], [`ForwardedFor`] |
//! | find the path | [`Target`], [`PathReading`](portcullis_policy::PathReading) |
//! | find what else rules ask of it | [`ByPolicy::properties`], [`ByPolicy::tier`] |
//! | choose rules by the route | [`ByPolicy::endpoint`] |
//! | let requests pass | [`NotLimited`], [`RateLimitLayerBuilder::passing`] |
//! | obey the limits of other servers | `client::ClientLayer`, `client::ServerLimits` |
//! | read and write the header fields of limits | the module `fields` |
//! | hold as many requests as the service can | the module `adaptive` |
//! | limit bodies in bytes per second | `bodies::BodyLimitLayer` |
//! | measure requests | `RateLimitLayerBuilder::measured` |
//! | count and log decisions | [`ByPolicy::watched`], [`Watched`] |
//! | settle a cost | [`RateLimitLayerBuilder::settling`], [`ResponseHead`], [`ResponseCost`] |
//!
//! # What happens to a request
//!
//! ```text
//! request ---> call ---> denied: a response that was prepared, without the inner service
//!                |
//!                +-----> allowed ---> inner service ---> response ---> end of its body
//!                          |                               |               |
//!                          takes permits            settles the cost   permits at once return
//! ```
//!
//! - **Permits are taken in `call`**, never in `poll_ready`. A server asks for readiness before
//!   there is a request, so an idle connection would hold a permit.
//! - **One decision.** Of several limits, a request takes from all or from none. The first one that
//!   denies makes the reply.
//! - **Nothing leaks.** Permits at once are in the future of the response, and then in its body.
//!   They return when it ends, fails or is dropped: when the client goes away, or a handler panics.
//! - **An upgraded connection**, such as a WebSocket or a tunnel, is no part of its request:
//!   permits return with the response. To limit such connections, take a permit in the handler, and
//!   keep it with the connection.
//! - **Several layers are several decisions.** If an inner layer denies, the outer one has taken
//!   its permits already, and keeps those that return by time. For one decision, use one layer,
//!   with rules that are [continuing](portcullis_policy::Rule::continuing) or [`Decide::and`]. Or
//!   let the outer layer return them: [`counting`](RateLimitLayerBuilder::counting) only the
//!   responses that are no denials.
//! - **An inner service that reserves**, as a `ConcurrencyLimit` of tower does in `poll_ready`,
//!   keeps the reservation of a denied request until this service is called again or dropped. The
//!   servers of axum, hyper and tonic drop it at once, because they clone a service for each
//!   request. Where a service is kept, put the limit outside of this layer, or among its limits,
//!   for example as a [`Concurrency`](portcullis_core::Concurrency). Or use a `WaitingLayer`, which
//!   lets go of the inner service.
//! - **Shared.** All services of a layer and all their clones have the same limits.
//! - **The error type of the inner service stays**, because a denial is a response.
//! - **No allocation** in the layer, whether a request is allowed or denied, with these exceptions:
//!   several rules that limit a request, the header fields of `fields`, a request that is measured,
//!   a cost that is settled, a `Retry-After` of 10,000 s and more, more headers on a denial than
//!   its request had, and a body of axum that holds permits.
//!
//! In axum, put the layer around the router (`layer.layer(router)`), or on its routes
//! (`Router::layer`), where axum allocates for each layer. Inside `Router::nest` and
//! `nest_service`, axum removes the prefix of the path. With the feature `axum`, rules and keys see
//! the whole path there too: see [`Target`].
//!
//! # Forged keys
//!
//! A client may be able to choose its key: with a header that is not checked, or with the many
//! addresses of its networks. It can then send each request with a new key. The tables of
//! [`ByKey`] and of policies have a fixed size, so:
//!
//! - **The memory** stays as configured, whatever the number of keys.
//! - **A client whose key has a slot** in the table gets what its limit allows, as without the
//!   forged keys. It has the slot from its first grant until its permits have returned, and for 1 s
//!   more.
//! - **A client whose key has no slot** competes with the forged keys for the slots that become
//!   free. If it finds none, it is denied, with `Retry-After: 1`.
//!
//! A table for 10,000 keys has 43,000 slots. With a limit of 10 per second, a forged key has a slot
//! for 1.1 s. So with 100,000 forged keys per second, 39 % of all requests with a new key find one.
//! Clients with a slot are served in full. To serve all others too, make the table larger: for as
//! many keys as arrive while a slot is in use. Or judge by keys that are hard to forge: the
//! address, of which the first 64 bits count in IPv6, and [`ForwardedFor`] from trusted proxies
//! only.
//!
//! # Features
//!
//! - `adaptive`: the module `adaptive`.
//! - `live`: `ByLivePolicy`.
//! - `queue`: `WaitingLayer`. Enables `live`.
//! - `axum`: `AxumBody`, `ConnectInfo` and `OriginalUri`.
//! - `bodies`: the module `bodies`.
//! - `tonic`: `NamedService` and `TcpConnectInfo`.
//! - `fields`: the module `fields`, and `RateLimitLayerBuilder::fields`.
//! - `client`: the module `client`. Enables `fields`.
//! - `reqwest`: `client` as a middleware of `reqwest-middleware`.
//! - `metrics`: `RateLimitLayerBuilder::measured`, with the crate `metrics`.
//!
//! [tower]: https://docs.rs/tower
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

#[macro_use]
mod shows;

#[cfg(feature = "adaptive")]
pub mod adaptive;
#[cfg(feature = "bodies")]
pub mod bodies;
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
mod measured;
mod service;
mod settings;
mod shared;
#[cfg(feature = "queue")]
mod waiting;

#[cfg(feature = "axum")]
pub use body::AxumBody;
pub use body::{AnyBody, LimitedBody, ResponseBody};
#[cfg(feature = "queue")]
pub use decide::ByKeyedQueue;
#[cfg(feature = "live")]
pub use decide::ByLivePolicy;
pub use decide::{
    AddressKey, And, ByKey, ByLimiter, ByPolicy, Decide, HeldByKey, HeldByPolicy, IntoHandle,
    KeyTable, Notes, Nothing, PolicyHandle, Question, RulesByTime, Taking, UnknownEndpoint,
    Watched,
};
pub use denial::{Denial, DenialBody, DenialSettings, Reason, Reply};
pub use forwarded::ForwardedFor;
pub use future::ResponseFuture;
pub use head::{PeerAddress, RequestHead, ResponseCost, ResponseHead, Target};
pub use layer::{RateLimitLayer, RateLimitLayerBuilder};
pub use service::RateLimit;
pub use settings::NotLimited;
#[cfg(feature = "queue")]
pub use waiting::{DecideOrWait, Turned, WaitingFuture, WaitingLayer, WaitingRateLimit};
