//! Streams and sinks whose items wait for permits, and the methods that limit any stream or sink.

pub use crate::adapters::extensions::{LimitSinkExt, LimitStreamExt};
pub use crate::adapters::sink::{LimitedSink, SinkError};
pub use crate::adapters::stream::{LeasedStream, LimitedStream};
