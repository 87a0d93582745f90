//! Why a store has no answer, and whose fault that is.

use core::fmt;

/// Why a store has no answer. [`fault`](Self::fault) says which requests an error concerns.
///
/// ```
/// use portcullis_counters::StoreError;
/// assert_eq!(StoreError::Full.to_string(), "the counter store has no room for another id");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, does not answer in time, or serves no caller now. The text says
    /// why.
    Unavailable(String),
    /// The store answers, and does not do what it was asked: the limits, the ids or the permissions
    /// of the request do not allow it. The text says why.
    Refused(String),
    /// The store has no room for another id. Retry when ids have expired.
    Full,
    /// Other callers changed the quotas, or the scripts of the server, at each attempt.
    Contended,
    /// The sum of a counter does not fit 64 bits.
    Overflow,
    /// Two charges of a request have the same id and different limits.
    MixedLimits,
    /// What the store returned is not a counter or a quota.
    Damaged,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable(why) => return write!(f, "the counter store is unavailable: {why}"),
            Self::Refused(why) => return write!(f, "the counter store refuses the request: {why}"),
            Self::Full => "the counter store has no room for another id",
            Self::Contended => "other callers changed the quotas at each attempt: try again",
            Self::Overflow => "the sum of the counter does not fit 64 bits",
            Self::MixedLimits => "two charges have the same id and different limits",
            Self::Damaged => "the counter store returned what is not a counter or a quota",
        })
    }
}

impl core::error::Error for StoreError {}

/// What an error of a store is about: the result of [`StoreError::fault`].
///
/// ```
/// use portcullis_counters::{Fault, StoreError};
/// assert_eq!(StoreError::Unavailable("refused".into()).fault(), Fault::Store);
/// assert_eq!(StoreError::MixedLimits.fault(), Fault::Rule);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The store: it answers no caller. Other requests fail too.
    Store,
    /// This request: another attempt may succeed.
    Request,
    /// The settings: each request with these limits and ids fails, until the settings of the rule
    /// or of the store change. It says nothing about requests of other rules, nor about whether
    /// the store answers them.
    Rule,
    /// What the store has under one of the ids, or that it has no room for one.
    Id,
}

impl StoreError {
    /// Returns what the error is about.
    ///
    /// ```
    /// # use portcullis_counters::{Fault, StoreError};
    /// assert_eq!(StoreError::Damaged.fault(), Fault::Id);
    /// ```
    #[must_use]
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Unavailable(_) => Fault::Store,
            Self::Contended => Fault::Request,
            Self::Refused(_) | Self::MixedLimits => Fault::Rule,
            Self::Full | Self::Overflow | Self::Damaged => Fault::Id,
        }
    }
}
