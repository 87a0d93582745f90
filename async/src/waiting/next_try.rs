//! When to ask a limiter again that has denied.

use portcullis_core::Timestamp;

/// When to ask the limiter again for the head of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextTry {
    /// [`Timestamp::MAX`] if only a release or a change of settings helps.
    pub(crate) at: Timestamp,
    /// Whether the limiter will grant as of `at`, whenever it is asked. If not, the limiter is
    /// asked as of the time of the call.
    pub(crate) exact: bool,
}

impl NextTry {
    pub(crate) const ON_RELEASE: Self = Self {
        at: Timestamp::MAX,
        exact: false,
    };
}
