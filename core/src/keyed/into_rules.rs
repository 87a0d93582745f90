//! How a limiter becomes the rules of a table.

use crate::{
    AnyRules, ConcurrencyRules, FixedWindowRules, KeyedRules, RuleList, RulesAtRunTime,
    SettingsError, TokenBucketRules,
};

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
/// A type of your own that contains such a limiter can implement it. The rules are those above.
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

own_rules!(
    TokenBucketRules,
    FixedWindowRules,
    ConcurrencyRules,
    AnyRules
);

/// Limiters whose settings a [`KeyedList`](crate::KeyedList) table can use for the limits of all
/// its keys: tuples and arrays of 1 to 8 limiters or rules ([`IntoRules`]), and [`RulesAtRunTime`].
///
/// [`KeyedList::for_keys`](crate::KeyedList::for_keys) takes such a list. To store the table's
/// lines elsewhere, convert the list and pass it to [`KeyedList::new`](crate::KeyedList::new).
///
/// A type of your own that contains such limiters can implement it.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{FixedWindow, IntoRuleList, KeyedList, Line, Rate, Seed, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(10), 2);
/// let window = FixedWindow::new(100, Duration::from_secs(60));
/// let rules = (bucket, window).into_rule_list()?;
/// let users = KeyedList::new(rules, [const { Line::new() }; 64], Seed::new());
/// assert_eq!(users.rules().0.burst(), 2);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot give a `KeyedList` table its settings",
    label = "expected a tuple or an array of 1 to 8 limiters, or a `RulesAtRunTime`",
    note = "the limiters can be `TokenBucket`, `FixedWindow` and `Concurrency`, and their rules",
    note = "for limiters of any other type, use a `KeyedArray` of `AllOf`"
)]
pub trait IntoRuleList {
    /// The list of the rules of all limiters.
    type Rules: RuleList;

    /// Converts the settings of the limiters to rules: see [`IntoRules::into_rules`].
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the settings of a limiter do not fit the table.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, IntoRuleList};
    /// let rules = [Concurrency::new(3), Concurrency::new(5)].into_rule_list()?;
    /// assert_eq!(rules.map(|rules| rules.limit()), [3, 5]);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    fn into_rule_list(self) -> Result<Self::Rules, SettingsError>;
}

impl IntoRuleList for RulesAtRunTime {
    type Rules = Self;

    fn into_rule_list(self) -> Result<Self, SettingsError> {
        Ok(self)
    }
}

impl<L: IntoRules, const N: usize> IntoRuleList for [L; N] {
    type Rules = [L::Rules; N];

    fn into_rule_list(self) -> Result<Self::Rules, SettingsError> {
        let mut list = [const { None }; N];
        for (rules, limiter) in list.iter_mut().zip(self) {
            *rules = Some(limiter.into_rules()?);
        }
        Ok(list.map(|rules| rules.expect("the lists have the same length")))
    }
}

macro_rules! tuple {
    ($($limiter:ident)+) => {
        impl<$($limiter: IntoRules),+> IntoRuleList for ($($limiter,)+) {
            type Rules = ($($limiter::Rules,)+);

            #[allow(non_snake_case, reason = "named like their types")]
            fn into_rule_list(self) -> Result<Self::Rules, SettingsError> {
                let ($($limiter,)+) = self;
                Ok(($($limiter.into_rules()?,)+))
            }
        }
    };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);
tuple!(A B C D E F G);
tuple!(A B C D E F G H);
