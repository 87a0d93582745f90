//! Rules from the files of other systems.

mod ats;
mod ocelot;

use crate::path::PathRules;
use crate::policy::Policy;
use crate::problem::FileError;
use crate::rule::{Rule, RuleError};

/// Rules that were read from a file of another system, before they are in force.
///
/// The rules are checked. Adjust them where the other system has no such setting, for example
/// [`Rule::keys`], and put them in force with [`into_policy`](Self::into_policy).
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Imported, Request};
///
/// let mut imported = Imported::from_ocelot(r#"{
///     "Routes": [{
///         "UpstreamPathTemplate": "/posts/{postId}",
///         "UpstreamHttpMethod": ["Get"],
///         "RateLimitOptions": { "Limit": 1, "Period": "1s", "Wait": "-2s" },
///     }],
/// }"#).unwrap();
/// assert!(imported.warnings[0].to_string().starts_with("5:67: Wait is negative"));
/// for rule in &mut imported.rules {
///     *rule = rule.clone().keys(50_000);
/// }
/// let policy = imported.into_policy().unwrap();
///
/// let request = Request::new("GET", "/Posts/7").headers(&[("Oc-Client", "alice")]);
/// assert!(policy.decide_at(Timestamp::from_secs(1), &request).is_allowed());
/// assert!(!policy.decide_at(Timestamp::from_secs(1), &request).is_allowed());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The rules, with the priorities that keep the order of the other system.
    pub rules: Vec<Rule>,
    /// How the other system reads paths.
    pub path_rules: PathRules,
    /// What the file says that the rules do not do, or do in another way, in the order of the file.
    pub warnings: Vec<FileError>,
}

impl Imported {
    /// Puts the rules in force.
    ///
    /// # Errors
    ///
    /// All settings that are not valid. There are none if the rules are as they were read, unless
    /// their tables take more than [`DEFAULT_TABLE_BYTES`](crate::DEFAULT_TABLE_BYTES). Then there
    /// is a warning too: allow fewer [`keys`](Rule::keys), or use [`Policy::with_settings`].
    ///
    /// # Cost
    ///
    /// As [`Policy::new`].
    ///
    /// ```
    /// # use portcullis_policy::Imported;
    /// assert!(Imported::from_ocelot("{}").unwrap().into_policy().is_ok());
    /// ```
    pub fn into_policy(self) -> Result<Policy, Vec<RuleError>> {
        Policy::with_path_rules(self.rules, self.path_rules)
    }
}
