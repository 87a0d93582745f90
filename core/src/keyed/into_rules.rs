//! How a limiter becomes the rules of a table.

use crate::{ConcurrencyRules, FixedWindowRules, KeyedRules, SettingsError, TokenBucketRules};

/// A limiter whose settings a [`Keyed`](crate::Keyed) table can use for all its keys:
/// [`TokenBucket`](crate::TokenBucket), [`FixedWindow`](crate::FixedWindow) or
/// [`Concurrency`](crate::Concurrency). Rules are their own rules.
///
/// [`Keyed::for_keys`](crate::Keyed::for_keys) takes such a limiter. To store the table's lines
/// elsewhere, convert the limiter with [`into_rules`](Self::into_rules) and pass the rules to
/// [`Keyed::new`](crate::Keyed::new). In a constant or a static, where no method of a trait can be
/// called, write [`TokenBucketRules::new`], [`FixedWindowRules::new`] or [`ConcurrencyRules::new`].
///
/// **State.** Only the settings are converted. The permits that were taken from the limiter do not
/// count for any key: each key of the table starts with a fresh limiter.
///
/// ```
/// use portcullis_core::{IntoRules, Keyed, Line, Rate, Seed, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(10), 2);
/// let lines = [const { Line::new() }; 64];
/// let users = Keyed::new(bucket.into_rules()?, lines, Seed::new());
/// assert!(users.key("alice").try_acquire_at(Timestamp::ZERO, 2).is_ok());
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot give a `Keyed` table its settings",
    label = "expected a `TokenBucket`, a `FixedWindow` or a `Concurrency`",
    note = "a `Keyed` table stores one word per key, so it supports only these limiters and their rules",
    note = "for limiters of any other type, write `KeyedArray::for_keys(|| limiter, keys)`"
)]
pub trait IntoRules {
    /// The rules of the limiter.
    type Rules: KeyedRules;

    /// Converts the limiter's settings to rules. Its state is lost.
    ///
    /// A setting that was left at its default gets the default of a table's slot, as with the
    /// limiter's builder and its method `rules`.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the settings do not fit the 43 bits that a table's slot has for a state
    /// (20 on targets without 64-bit atomics).
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, IntoRules};
    /// assert_eq!(Concurrency::new(3).into_rules()?.limit(), 3);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    fn into_rules(self) -> Result<Self::Rules, SettingsError>;
}

macro_rules! own_rules {
    ($($rules:ty),*) => {$(
        impl IntoRules for $rules {
            type Rules = Self;

            fn into_rules(self) -> Result<Self, SettingsError> {
                Ok(self)
            }
        }
    )*};
}

own_rules!(TokenBucketRules, FixedWindowRules, ConcurrencyRules);
