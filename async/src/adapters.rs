//! Limits on data in motion: the items of channels, streams and sinks, and the bytes of readers and
//! writers.

#[cfg(any(feature = "stream", feature = "futures-io", feature = "tokio"))]
mod admission;
#[cfg(feature = "channel")]
pub mod channel;
#[cfg(feature = "stream")]
mod extensions;
#[cfg(any(feature = "futures-io", feature = "tokio"))]
mod io;
#[cfg(any(
    feature = "channel",
    feature = "stream",
    feature = "futures-io",
    feature = "tokio"
))]
mod leases;
#[cfg(any(feature = "channel", feature = "stream"))]
mod refused;
#[cfg(feature = "stream")]
mod sink;
#[cfg(feature = "stream")]
mod stream;
#[cfg(any(feature = "channel", feature = "stream"))]
mod weight;

#[cfg(feature = "stream")]
pub use extensions::{LimitSinkExt, LimitStreamExt};
#[cfg(any(feature = "futures-io", feature = "tokio"))]
pub use io::{LimitedRead, LimitedWrite};
#[cfg(any(feature = "channel", feature = "stream"))]
pub use refused::Refused;
#[cfg(feature = "stream")]
pub use sink::{LimitedSink, SinkError};
#[cfg(feature = "stream")]
pub use stream::{LeasedStream, LimitedStream};
#[cfg(any(feature = "channel", feature = "stream"))]
pub use weight::{PerItem, Weight};
