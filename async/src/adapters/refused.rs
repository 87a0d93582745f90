//! An item that a queue of permits rejected.

use core::fmt;

use crate::waiting::rejected::Rejected;

/// An item that was rejected by a queue of permits, and the reason.
///
/// ```
/// use portcullis_async::{Refused, Rejected};
/// let refused = Refused {
///     item: "late",
///     rejected: Rejected::Closed { permits: 1 },
/// };
/// assert_eq!(refused.to_string(), "item rejected: queue closed");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "the item, and why")]
pub struct Refused<T> {
    /// The item.
    pub item: T,
    /// Why the queue rejected it.
    pub rejected: Rejected,
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "item rejected: {}", self.rejected)
    }
}

/// Omits the item, so that it need not implement [`Debug`](fmt::Debug).
impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("rejected", &self.rejected)
            .finish_non_exhaustive()
    }
}

impl<T> core::error::Error for Refused<T> {}
