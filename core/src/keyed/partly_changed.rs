//! The error of a change that some limiters of a table took and others refused.

use core::fmt;

/// The error of [`KeyedArray::change_all`](crate::KeyedArray::change_all): not all limiters of the
/// table could be changed. `E` is the error of one change.
///
/// ```
/// use portcullis_core::{Concurrency, KeyedArray, SettingsError};
///
/// let downloads = KeyedArray::for_keys(|| Concurrency::new(2), 100);
/// let refused = downloads.change_all(|limit| limit.set_limit(u32::MAX)).unwrap_err();
/// assert!(matches!(refused.first, SettingsError::TooLarge { .. }));
/// assert_eq!(refused.changed, 0, "settings that fit no limiter change none");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct PartlyChanged<E> {
    /// The error of the first limiter that could not be changed.
    pub first: E,
    /// The number of limiters that were changed.
    pub changed: usize,
    /// The number of limiters that keep their settings.
    pub unchanged: usize,
}

impl<E: fmt::Display> fmt::Display for PartlyChanged<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.changed.saturating_add(self.unchanged);
        write!(
            f,
            "{} of {all} limiters were not changed, the first because: {}",
            self.unchanged, self.first
        )
    }
}

/// Its text contains that of the first error, which therefore is no source.
impl<E: core::error::Error> core::error::Error for PartlyChanged<E> {}
