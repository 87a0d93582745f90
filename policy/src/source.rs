//! Where the rules of a live policy come from: code, files, or a source of the caller's own.

#[cfg(any(feature = "toml", feature = "json"))]
pub(crate) mod file;

use core::fmt;

use crate::policy::Policy;
use crate::rule::RuleError;

/// A source of policies, such as a file or a configuration service, for
/// [`LivePolicy::refresh_at`](crate::LivePolicy::refresh_at).
///
/// Closures are sources: they take the tag that is known, and return a [`Sourced`] policy or
/// `None`. `FileSource` (with the feature `toml` or `json`) reads a file. Implement it for another
/// source.
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{LivePolicy, Policy, Rule, RuleError, RuleSource, Sourced};
///
/// /// Rows of a table, with the number of its last change.
/// struct Rows {
///     version: u32,
///     limits: Vec<(&'static str, &'static str)>,
/// }
///
/// impl RuleSource for Rows {
///     type Error = Vec<RuleError>;
///
///     fn load(&mut self, known: Option<&str>) -> Result<Option<Sourced>, Self::Error> {
///         let tag = self.version.to_string();
///         if known == Some(&tag) {
///             return Ok(None);
///         }
///         let rule = |&(name, limit): &(&str, &str)| {
///             Rule::new(name).limit(limit.parse().unwrap())
///         };
///         let policy = Policy::new(self.limits.iter().map(rule))?;
///         Ok(Some(Sourced::new(policy).tagged(&tag)))
///     }
/// }
///
/// let mut rows = Rows { version: 1, limits: vec![("api", "10/s")] };
/// let live = LivePolicy::from_source(&mut rows).unwrap();
/// rows.limits.push(("login", "5/m"));
/// rows.version = 2;
/// assert!(live.refresh_at(Timestamp::from_secs(1), &mut rows).unwrap().is_some());
/// assert_eq!(live.load().rules().len(), 2);
/// ```
pub trait RuleSource {
    /// Why there is no policy.
    type Error;

    /// Returns the present policy, or `None` if its content still has the tag `known`. `known` is
    /// `None` if the caller has no policy of the source.
    ///
    /// # Errors
    ///
    /// The content cannot be read or is not valid. The caller keeps the policy that it has.
    fn load(&mut self, known: Option<&str>) -> Result<Option<Sourced>, Self::Error>;
}

impl<F, E> RuleSource for F
where
    F: FnMut(Option<&str>) -> Result<Option<Sourced>, E>,
{
    type Error = E;

    fn load(&mut self, known: Option<&str>) -> Result<Option<Sourced>, E> {
        self(known)
    }
}

/// A policy, and the tag of its content: the result of [`RuleSource::load`].
///
/// ```
/// # use portcullis_policy::{Policy, Sourced};
/// let sourced = Sourced::new(Policy::new([]).unwrap()).tagged("v1");
/// # let _ = sourced;
/// ```
#[derive(Debug)]
#[must_use = "a policy is in force once it is in a LivePolicy"]
pub struct Sourced {
    pub(crate) policy: Policy,
    pub(crate) tag: Option<Box<str>>,
}

impl Sourced {
    /// A policy without a tag: it counts as changed each time.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Sourced};
    /// let _ = Sourced::new(Policy::new([]).unwrap());
    /// ```
    pub fn new(policy: Policy) -> Self {
        Self { policy, tag: None }
    }

    /// Sets the tag of the content (an `ETag`). Content with the same tag is the same.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Sourced};
    /// let _ = Sourced::new(Policy::new([]).unwrap()).tagged("v1");
    /// ```
    pub fn tagged(mut self, tag: &str) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Replaces the policy, and keeps the tag.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Sourced};
    /// let sourced = Sourced::new(Policy::new([]).unwrap());
    /// let _ = sourced.map(|policy| policy.without_limits_at_once());
    /// ```
    pub fn map(mut self, replace: impl FnOnce(Policy) -> Policy) -> Self {
        self.policy = replace(self.policy);
        self
    }
}

/// Why a policy was not replaced by what a source has. The policy before stays in force.
///
/// ```
/// # use portcullis_policy::{LivePolicy, RefreshError, Sourced};
/// let mut nothing = |_: Option<&str>| Ok::<Option<Sourced>, std::io::Error>(None);
/// let refused = LivePolicy::from_source(&mut nothing).unwrap_err();
/// assert!(matches!(refused, RefreshError::Nothing));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefreshError<E> {
    /// The source has an error.
    Source(E),
    /// The source has no policy, and there is none before.
    Nothing,
    /// Rules have [stores](crate::Stores) that neither their policy was given nor the policy before
    /// has, or a store cannot keep their limits.
    Stores(Vec<RuleError>),
}

impl<E: fmt::Display> fmt::Display for RefreshError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => error.fmt(f),
            Self::Nothing => f.write_str("the source has no policy"),
            Self::Stores(errors) => {
                let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
                f.write_str(&errors.join("; "))
            }
        }
    }
}

impl<E: core::error::Error> core::error::Error for RefreshError<E> {}
