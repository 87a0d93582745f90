//! Settings of a policy as a whole.

use crate::path::PathRules;

/// The default of [`PolicySettings::table_bytes`]: 1 GiB.
pub const DEFAULT_TABLE_BYTES: usize = 1 << 30;

/// Settings of a [`Policy`](crate::Policy) as a whole, for
/// [`Policy::with_settings`](crate::Policy::with_settings).
///
/// ```
/// use portcullis_policy::{Key, PathRules, Policy, PolicySettings, Rule};
///
/// let settings = PolicySettings::new()
///     .path_rules(PathRules::new().ignoring_case())
///     .table_bytes(1 << 20);
/// let rule = |keys| Rule::new("all").key(Key::address()).keys(keys).limit("5/s".parse().unwrap());
/// assert!(Policy::with_settings([rule(10_000)], settings).is_ok());
/// let errors = Policy::with_settings([rule(100_000)], settings).unwrap_err();
/// assert_eq!(
///     errors[0].to_string(),
///     "rule `all`: keys: the tables of all rules up to this one take 4306176 bytes, of which \
///      this rule's take 4306176: at most 1048576 are allowed (table_bytes)"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    pub(crate) path_rules: PathRules,
    pub(crate) table_bytes: usize,
}

impl PolicySettings {
    /// The default settings.
    ///
    /// ```
    /// # use portcullis_policy::PolicySettings;
    /// assert_eq!(PolicySettings::new(), PolicySettings::default());
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            path_rules: PathRules::new(),
            table_bytes: DEFAULT_TABLE_BYTES,
        }
    }

    /// Sets how paths are normalized. Default [`PathRules::new`].
    ///
    /// ```
    /// # use portcullis_policy::{PathRules, PolicySettings};
    /// let _ = PolicySettings::new().path_rules(PathRules::new().decoding_slashes());
    /// ```
    #[must_use]
    pub const fn path_rules(mut self, path_rules: PathRules) -> Self {
        self.path_rules = path_rules;
        self
    }

    /// Sets how much memory the tables of all rules together may take, in bytes. If they need more,
    /// the policy is refused before any table is created, and the error names the first rule that
    /// does not fit. Default [`DEFAULT_TABLE_BYTES`]. The tables of one rule may take
    /// [`MAX_TABLE_BYTES`](crate::MAX_TABLE_BYTES), whatever this bound is.
    ///
    /// ```
    /// # use portcullis_policy::PolicySettings;
    /// let _ = PolicySettings::new().table_bytes(4 << 30);
    /// ```
    #[must_use]
    pub const fn table_bytes(mut self, bytes: usize) -> Self {
        self.table_bytes = bytes;
        self
    }
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self::new()
    }
}
