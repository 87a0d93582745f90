//! Bodies of requests and responses that are limited in bytes per second. Needs the feature
//! `bodies`.
//!
//! ```
//! use std::sync::Arc;
//! use portcullis_policy::Policy;
//! use portcullis_tower::ByPolicy;
//! use portcullis_tower::bodies::BodyLimitLayer;
//!
//! // Each address uploads 1 MB per second, and all clients together download 20 MB per second.
//! let policy = Policy::from_json(
//!     r#"{ "rules": [
//!         { "name": "up", "kind": "ingress", "key": ["address"],
//!           "limits": [{ "rate": "1000000/s", "burst": 100000 }] },
//!         { "name": "down", "kind": "egress",
//!           "limits": [{ "rate": "20000000/s", "burst": 400000 }] }
//!     ] }"#,
//! )?;
//! // For `Router::layer` of axum, `ServiceBuilder` of tower, or `Server::layer` of tonic.
//! let policy = Arc::new(policy);
//! let layer = BodyLimitLayer::builder()
//!     .ingress(ByPolicy::new(Arc::clone(&policy)))
//!     .egress(ByPolicy::new(policy))
//!     .build();
//! # let _ = layer;
//! # Ok::<(), Vec<portcullis_policy::FileError>>(())
//! ```
//!
//! Without a policy, the limit is a [`Queue`](portcullis_async::Queue) of any limiter, or a
//! [`BytesByKey`] with a limiter for each key:
//!
//! ```
//! use portcullis_async::{Queue, ThreadTimer};
//! use portcullis_core::{Rate, TokenBucket};
//! use portcullis_tower::bodies::BodyLimitLayer;
//!
//! let rate = TokenBucket::new(Rate::per_second(20_000_000), 400_000);
//! let down = Queue::new(rate, ThreadTimer::new(), u64::MAX).shared();
//! let layer = BodyLimitLayer::builder().egress(down).build();
//! # let _ = layer;
//! ```
//!
//! # What happens to a body
//!
//! ```text
//! inner body ---> a frame of data ---> a piece of it ---> waits for a permit per byte ---> out
//!            |                    ^                                                   |
//!            |                    +------------- while bytes of the frame are left ---+
//!            +--> trailers, the end, an error: at once
//! ```
//!
//! - **Bound.** That of the limit, by its own clock: for a token bucket, at most `burst + rate × t`
//!   bytes in any span of time `t`, for all bodies with one key together. In real time, up to one
//!   piece more for each of these bodies: a task that is polled late hands out a piece that was
//!   granted earlier.
//! - **Pieces.** A piece has at most 16 KiB, and at most half of the limit's capacity (at least one
//!   byte). A longer frame is split, without a copy. So a frame may be longer than the burst.
//! - **Back pressure.** The body holds at most one frame of the inner body, and asks it for the
//!   next one when all bytes of that frame have passed.
//! - **Shares.** Bodies that wait are served in turn. So each gets a share in proportion to its
//!   frames, as far as these are shorter than a piece.
//! - **Cancellation.** A body that is dropped leaves the queue. Bytes that have passed stay
//!   charged. A piece that was granted and has not passed goes to the next body that waits.
//! - **Cost.** By a policy, a body with a limit copies the headers of its request. Each piece is a
//!   decision, and a piece that has to wait allocates. By a queue in code, nothing is allocated. A
//!   body without a limit passes as it is.
//! - **Errors of the inner body** pass through, in a box: `downcast` returns the inner type.
//!
//! # When no wait helps
//!
//! - When a request arrives, the layer asks the limits of both bodies without taking. If a limit
//!   can never grant a byte, or the request lacks a part of a key that the rule needs, the request
//!   is answered as [`DenialSettings`] say. The inner service does not see it.
//! - If that comes about later, because the limit changes or its queue is closed, the body fails
//!   with a [`BodyLimitError`].
//!
//! A request with the extension [`NotLimited`](crate::NotLimited) keeps its bodies as they are.
//!
//! Put a [`RateLimitLayer`](crate::RateLimitLayer) around this layer, not inside: its permits at
//! once are then held until the last byte has passed.

mod body;
mod layer;
mod policy;
mod queue;

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};

use portcullis_async::Rejected;
use portcullis_policy::Kind;

pub use self::body::PacedBody;
pub use self::layer::{BodyLimit, BodyLimitFuture, BodyLimitLayer, BodyLimitLayerBuilder};
pub use self::policy::PolicyFlow;
pub use self::queue::{BytesByKey, QueueFlow, Waits};
use crate::denial::{Denial, DenialSettings};
use crate::head::RequestHead;

/// The largest number of bytes for which a body takes permits at once. As of `LimitedRead` of
/// `portcullis-async`.
const PIECE: u32 = 16 * 1024;

/// Returns the piece for a limit of this capacity: at most half of it, so that permits which are
/// replenished while a piece is in use are not lost.
fn piece(capacity: u64) -> u32 {
    u32::try_from(capacity / 2).map_or(PIECE, |half| half.clamp(1, PIECE))
}

/// Limits the bytes of bodies.
///
/// Implemented for [`ByPolicy`](crate::ByPolicy), [`ByLivePolicy`](crate::ByLivePolicy), an `Arc`
/// of a [`Queue`](portcullis_async::Queue), and [`BytesByKey`]. Implement it to limit bodies in a
/// way of your own.
pub trait LimitBytes: Send + Sync + 'static {
    /// What limits one body.
    type Flow: Flow + Send + 'static;

    /// Makes the replies to denied requests, before the first request.
    fn prepare(&mut self, settings: &DenialSettings);

    /// Returns what limits the body of a request ([`Kind::Ingress`]) or of its response
    /// ([`Kind::Egress`]). `None` if it is not limited. Takes no permits.
    ///
    /// # Errors
    ///
    /// [`Denial`] if the limit can never grant a byte of the body.
    fn limit(&self, kind: Kind, head: &RequestHead<'_>) -> Result<Option<Self::Flow>, Denial>;
}

/// The permits for the bytes of one body. Implement it together with [`LimitBytes`].
pub trait Flow {
    /// Takes permits for at least 1 and at most `most` bytes, and returns for how many. `most` is
    /// at least 1. While a wait is pending, `most` must not get smaller.
    ///
    /// # Errors
    ///
    /// [`BodyLimitError`] if no wait helps.
    fn poll_permits(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        most: u32,
    ) -> Poll<Result<u32, BodyLimitError>>;
}

/// No limit: the default of a [`BodyLimitLayerBuilder`].
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct NoLimit;

/// What limits no body: there is none.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value")]
pub enum NoFlow {}

impl LimitBytes for NoLimit {
    type Flow = NoFlow;

    fn prepare(&mut self, _: &DenialSettings) {}

    fn limit(&self, _: Kind, _: &RequestHead<'_>) -> Result<Option<NoFlow>, Denial> {
        Ok(None)
    }
}

impl Flow for NoFlow {
    fn poll_permits(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: u32,
    ) -> Poll<Result<u32, BodyLimitError>> {
        match *self {}
    }
}

/// Why a limit of bytes ends a body. It is in the box that is the error of a [`PacedBody`].
///
/// ```
/// use portcullis_async::Rejected;
/// use portcullis_tower::bodies::BodyLimitError;
/// let error = BodyLimitError::Rejected(Rejected::Closed { permits: 1 });
/// assert_eq!(error.to_string(), "the limit of the body's bytes: queue closed");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyLimitError {
    /// A queue in code rejected the bytes: it is full or closed, or its limit has fallen to 0.
    Rejected(Rejected),
    /// The rule of this name can never grant a byte of this body, since the policy has changed.
    /// Without a name, the path of the request is too long for the policy, or unclear.
    Never(Option<Box<str>>),
}

impl fmt::Display for BodyLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => write!(f, "the limit of the body's bytes: {rejected}"),
            Self::Never(Some(rule)) => write!(f, "rule `{rule}` can grant no byte of the body"),
            Self::Never(None) => f.write_str("the policy can grant no byte of the body"),
        }
    }
}

impl core::error::Error for BodyLimitError {}
