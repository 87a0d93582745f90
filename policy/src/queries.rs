//! Queries for the rules of a policy, without a decision: by kind, by name, by request.
//!
//! They have the answers of the policy rule store and the policy rule service of Azure Container
//! Registry (the `Throttling APIs` proposal for .NET):
//!
//! | there | here |
//! |---|---|
//! | `GetAllPolicyRulesAsync(type)` | [`Policy::rules_of`] |
//! | `GetPolicyRuleAsync(type, name)` | [`Policy::rule_of`] |
//! | `GetPoliciesForRule(name)` | [`Policy::limits_of`] |
//! | `FindMatchingPolices(id, method, path, tier)` | [`Policy::first_match`], then [`Rule::limits`] |
//! | `PolicyRuleCount` | [`Policy::rules`]`().len()` |

use core::ops::ControlFlow;

use crate::key::KeyOf;
use crate::limit::Limit;
use crate::path::PathError;
use crate::policy::Policy;
use crate::request::{Kind, Request};
use crate::rule::Rule;

impl Policy {
    /// Returns all rules of a kind, in the order in which they are asked. Disabled ones are
    /// included. Azure Container Registry calls this `GetAllPolicyRulesAsync(type)`.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Kind, Policy, Rule};
    /// let egress = Rule::new("bytes").when(Conditions::new().kind(Kind::Egress));
    /// let policy = Policy::new([Rule::new("login"), egress]).unwrap();
    /// assert!(policy.rules_of(Kind::Egress).map(Rule::name).eq(["bytes"]));
    /// ```
    pub fn rules_of(&self, kind: Kind) -> impl Iterator<Item = &Rule> {
        self.rules().filter(move |rule| rule.kind() == kind)
    }

    /// Returns the rule with this kind and name. Azure Container Registry calls this
    /// `GetPolicyRuleAsync(type, name)`. Names are unique in a policy, so that the kind only
    /// confirms what the caller expects.
    ///
    /// ```
    /// # use portcullis_policy::{Kind, Policy, Rule};
    /// let policy = Policy::new([Rule::new("login")]).unwrap();
    /// assert!(policy.rule_of(Kind::Request, "login").is_some());
    /// assert!(policy.rule_of(Kind::Egress, "login").is_none());
    /// ```
    pub fn rule_of(&self, kind: Kind, name: &str) -> Option<&Rule> {
        self.rule(name).filter(|rule| rule.kind() == kind)
    }

    /// Returns the limits that the key of a request has in place of those of `rule`, one of the
    /// rules of this policy. `None` if no [override](Rule::override_key) is for the key.
    ///
    /// ```
    /// # use portcullis_policy::{Key, Policy, Request, Rule};
    /// let rule = Rule::new("methods").key(Key::method()).limit("1/s".parse()?);
    /// let policy = Policy::new([rule.override_key(["GET"], ["5/s".parse()?])]).unwrap();
    /// let rule = policy.rule("methods").unwrap();
    /// let of = |method| policy.own_limits(rule, &Request::new(method, "/"));
    /// assert_eq!(of("GET").map(|limits| limits[0].count()), Some(5));
    /// assert!(of("POST").is_none());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn own_limits(&self, rule: &Rule, request: &Request<'_>) -> Option<&[Limit]> {
        let active = self.rules.iter().find(|of| of.rule.name() == rule.name())?;
        let overrides = active.overrides.as_deref()?;
        let key = KeyOf::new(&active.rule.key, request, self.path_rules);
        let own = overrides.get(overrides.find(&active.store, &key)?)?;
        (!own.is_former).then_some(&*own.limits)
    }

    /// Returns the limits of the rule with this name, or `None` if there is no such rule. Azure
    /// Container Registry calls limits policies, and this `GetPoliciesForRule(name)`.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Rule};
    /// let policy = Policy::new([Rule::new("login").limit("5/m".parse()?)]).unwrap();
    /// assert_eq!(policy.limits_of("login").unwrap()[0].count(), 5);
    /// assert!(policy.limits_of("logout").is_none());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn limits_of(&self, name: &str) -> Option<&[Limit]> {
        Some(self.rule(name)?.limits())
    }

    /// Returns the first rule that a request matches, shadow rules and exempt clients included, or
    /// `None` if it matches no rule. Takes nothing.
    ///
    /// Azure Container Registry calls this `FindMatchingPolices(id, method, path, tier)`, and
    /// returns the rule's [limits](Rule::limits). A request's id there is a name of a host or an
    /// address: here [`Request::host`] and [`Request::address`].
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path cannot be matched: it is too long, or unclear.
    ///
    /// # Cost
    ///
    /// That of a [match](crate::Matcher). Does not allocate.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Policy, Request, Rule};
    /// let pull = Conditions::new()
    ///     .hosts(["myregistry.example"])
    ///     .methods(["GET", "HEAD"])
    ///     .paths(["/v2/**/manifests/*"])
    ///     .tiers(["basic"]);
    /// let pull = Rule::new("pull").when(pull).limit("1000/m".parse()?);
    /// let policy = Policy::new([pull, Rule::new("rest").priority(9)]).unwrap();
    ///
    /// let request = Request::new("GET", "/v2/a/b/manifests/latest").tier("basic");
    /// let found = |request| policy.first_match(&request).unwrap().map(Rule::name);
    /// assert_eq!(found(request.host("myregistry.example")), Some("pull"));
    /// assert_eq!(found(request.host("other.example")), Some("rest"));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn first_match(&self, request: &Request<'_>) -> Result<Option<&Rule>, PathError> {
        let mut first = None;
        self.visit_matches(request, |rule| {
            first = Some(rule);
            ControlFlow::Break(())
        })?;
        Ok(first)
    }

    /// Returns all rules that a request matches, in the order in which they are asked. Takes
    /// nothing. [`explain_at`](Self::explain_at) also tells why others do not match.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path cannot be matched: it is too long, or unclear.
    ///
    /// # Cost
    ///
    /// That of a [match](crate::Matcher). Allocates the result.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Policy, Request, Rule};
    /// let put = Rule::new("put").when(Conditions::new().methods(["PUT"]));
    /// let policy = Policy::new([put, Rule::new("all"), Rule::new("off").disabled()]).unwrap();
    /// let matches = policy.matches(&Request::new("PUT", "/")).unwrap();
    /// assert!(matches.into_iter().map(Rule::name).eq(["put", "all"]));
    /// ```
    pub fn matches(&self, request: &Request<'_>) -> Result<Vec<&Rule>, PathError> {
        let mut all = Vec::new();
        self.visit_matches(request, |rule| {
            all.push(rule);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }
}
