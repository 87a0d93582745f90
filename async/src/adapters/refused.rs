use core::fmt;

use crate::queues::rejected::Rejected;

/// An item that did not get its permits, and why not.
///
/// ```
/// use portcullis_async::{Refused, Rejected};
/// let refused = Refused {
///     item: "late",
///     rejected: Rejected::Closed { permits: 1 },
/// };
/// assert_eq!(refused.to_string(), "an item is refused: closed");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Refused<T> {
    /// What was to pass.
    pub item: T,
    /// Why it did not get its permits.
    pub rejected: Rejected,
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an item is refused: {}", self.rejected)
    }
}

/// Without the item, which may be anything.
impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("rejected", &self.rejected)
            .finish_non_exhaustive()
    }
}

impl<T> core::error::Error for Refused<T> {}
