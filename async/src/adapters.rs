//! Limits on data in motion: the items of channels, streams and sinks, and the bytes of readers and
//! writers.

#[cfg(any(feature = "stream", feature = "futures-io", feature = "tokio"))]
pub(crate) mod admission;
#[cfg(feature = "channel")]
pub mod channel;
#[cfg(feature = "stream")]
pub(crate) mod extensions;
#[cfg(any(feature = "futures-io", feature = "tokio"))]
pub(crate) mod io;
#[cfg(any(
    feature = "channel",
    feature = "stream",
    feature = "futures-io",
    feature = "tokio"
))]
pub(crate) mod leases;
#[cfg(any(feature = "channel", feature = "stream"))]
pub(crate) mod refused;
#[cfg(feature = "stream")]
pub(crate) mod sink;
#[cfg(feature = "stream")]
pub(crate) mod stream;
#[cfg(any(feature = "channel", feature = "stream"))]
pub(crate) mod weight;
