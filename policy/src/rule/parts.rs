//! What a rule consists of, for programs that write it in another format.

use core::time::Duration;

use super::{OnMissing, Rule};
use crate::key::KeyPart;

/// What a [`Rule`] consists of, besides what it has a method for. A program reads it to write the
/// rule in another format.
///
/// ```
/// use portcullis_policy::{Conditions, Key, KeyPart, Rule};
/// let conditions = Conditions::new().methods(["POST"]).paths(["/login"]);
/// let rule = Rule::new("login").when(conditions).key(Key::header("X-Api-Key"));
/// let parts = rule.parts();
/// assert_eq!(parts.methods, ["POST"]);
/// assert_eq!(parts.paths, ["/login"]);
/// let [KeyPart::Header(names)] = &parts.key[..] else { panic!() };
/// assert_eq!(&*names[0], "X-Api-Key");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleParts<'r> {
    /// The methods. Empty for any, as are the next ones.
    pub methods: &'r [String],
    /// The patterns of paths.
    pub paths: &'r [String],
    /// The names of hosts, and the networks of clients.
    pub hosts: &'r [String],
    /// The service tiers.
    pub tiers: &'r [String],
    /// The names of properties, and the values of which a request must have one.
    pub properties: &'r [(String, Vec<String>)],
    /// The parts of the key. Empty if all requests share the limits.
    pub key: Vec<KeyPart<'r>>,
    /// What happens to requests that lack a part of the key.
    pub on_missing: OnMissing,
    /// How many keys can be in use at once.
    pub keys: usize,
    /// What exempts a client, and its values, in the order of the texts.
    pub exempt: Vec<(KeyPart<'r>, Vec<&'r str>)>,
    /// The networks whose clients are exempt.
    pub exempt_networks: &'r [String],
    /// For how long all requests of a key are denied after a denial.
    pub penalty: Option<Duration>,
    /// For how long a request holds an estimate of its cost.
    pub hold: Option<Duration>,
    /// Whether some keys have other limits.
    pub has_overrides: bool,
}

impl Rule {
    /// Returns what the rule consists of, besides what there is a method for.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").keys(7).parts().keys, 7);
    /// ```
    pub fn parts(&self) -> RuleParts<'_> {
        // Whole, so that a new setting does not compile until it is a part here, or is named under
        // the settings that have a method.
        let Self {
            conditions,
            overrides,
            key,
            on_missing,
            keys,
            exempt,
            exempt_networks,
            penalty,
            hold,
            // Have a method.
            name: _,
            limits: _,
            thresholds: _,
            is_shadow: _,
            is_enabled: _,
            is_continuing: _,
            message: _,
            status: _,
            has_headers: _,
            etag: _,
            store: _,
            is_synced: _,
            // The rules of a policy are in this order.
            priority: _,
            // Are no settings.
            adds_up: _,
            left_out: _,
        } = self;
        let exempt = exempt.iter().map(|(text, values)| {
            let mut values: Vec<&str> = values.iter().map(|value| &**value).collect();
            values.sort_unstable();
            (text.part(), values)
        });
        let [methods, paths, hosts, tiers] = conditions.lists();
        RuleParts {
            methods,
            paths,
            hosts,
            tiers,
            properties: &conditions.properties,
            key: key.parts().collect(),
            on_missing: *on_missing,
            keys: *keys,
            exempt: exempt.collect(),
            exempt_networks,
            penalty: *penalty,
            hold: *hold,
            has_overrides: !overrides.is_empty(),
        }
    }
}
