//! What became of a request that waited.

use core::pin::Pin;

use portcullis_async::Rejected;

use crate::judge::Judged;

/// A request that waits.
pub(crate) type Wait = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What became of a request.
pub(crate) enum Outcome {
    Permits(Result<Box<dyn Held>, Rejected>),
    Judged(Box<Judged>),
}

/// Permits that were granted. Dropping them releases them.
pub(crate) trait Held: Send {
    fn permits(&self) -> u32;

    /// Gives back those that are not needed, as far as that cannot break the limit. Returns how
    /// many count as never taken.
    fn refund(&mut self) -> u32;
}
