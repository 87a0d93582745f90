//! Checks the settings of rules, and creates their state.
//!
//! All rules are checked before the first table is made, so that a policy that is refused costs no
//! memory, and its user sees all errors at once. A [`Plan`] has what a rule's state is created
//! from.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ipnet::IpNet;
use portcullis_core::keyed::FixedWindowRules;

use super::active::Active;
use crate::conditions::{Conditions, is_token, parse_network};
use crate::key::Text;
use crate::limit::{
    Compiled, Limit, all_bytes, all_bytes_per_key, bytes_per_key, compile_all, table_bytes,
};
use crate::matcher::Matcher;
use crate::overrides::Overrides;
use crate::path::PathRules;
use crate::problem::Problem;
use crate::request::Kind;
use crate::rule::{MAX_TABLE_BYTES, Rule, RuleError};
use crate::store::{Store, hold_rules};
use crate::stored::{self, StoredLimits};
use crate::thresholds::{self, Activity};

/// Checks rules in the order of their priority, and creates no tables. Returns what is needed to
/// create them, and a matcher of all rules, also of those that are disabled.
pub(crate) fn check(
    rules: &[Rule],
    path_rules: PathRules,
) -> Result<(Vec<Plan<'_>>, Matcher), Vec<RuleError>> {
    let mut errors = Vec::new();
    let mut names = HashSet::new();
    for rule in rules {
        if !names.insert(&rule.name) {
            errors.push(RuleError {
                rule: rule.name.clone(),
                setting: "name".into(),
                value: None,
                problem: "another rule has the same name".into(),
            });
        }
    }
    let conditions: Vec<Conditions> = rules.iter().map(|rule| rule.conditions.clone()).collect();
    let matcher = Matcher::new(&conditions, path_rules).map_err(|refused| {
        errors.extend(refused.into_iter().map(|error| RuleError {
            rule: rules[error.index].name.clone(),
            setting: error.setting.into(),
            value: Some(error.value),
            problem: error.problem.to_string(),
        }));
    });
    let plans = rules.iter().map(|rule| plan(rule, path_rules, &mut errors));
    let plans = plans.collect();
    check_sums(rules, &mut errors);
    match matcher {
        Ok(matcher) if errors.is_empty() => Ok((plans, matcher)),
        _ => Err(errors),
    }
}

/// Refuses rules that cannot limit a request together.
fn check_sums(rules: &[Rule], errors: &mut Vec<RuleError>) {
    let mut stores: HashMap<_, &Rule> = HashMap::new();
    for rule in rules.iter().filter(|rule| rule.adds_up) {
        let mut refuse = |setting: &str, problem: String| {
            let errors = &mut *errors;
            Refusals { rule, errors }.refuse(setting, problem);
        };
        if matches!(rule.kind(), Kind::Ingress | Kind::Egress) {
            let problem = "not for rules of this kind: bytes pass by the limits of one rule";
            refuse("continue", problem.into());
        }
        if rule.store.is_some() {
            let first = *stores.entry(rule.kind() as usize).or_insert(rule);
            if first.store != rule.store {
                let problem = format!(
                    "one store decides a request, and `{}` before this rule continues with another \
                     one: name the same store",
                    first.name()
                );
                refuse("store", problem);
            }
        }
    }
}

/// A rule, and what its state is created from. If the rule has errors, some of it is missing.
pub(crate) struct Plan<'r> {
    rule: &'r Rule,
    limits: Vec<Compiled>,
    penalty: Option<FixedWindowRules>,
    thresholds: thresholds::Compiled<'r>,
    exempt_networks: Vec<IpNet>,
    /// The memory of all tables.
    pub(super) bytes: usize,
}

/// The state of a rule: see [`Active`].
pub(super) struct State {
    pub(super) exempt_networks: Vec<IpNet>,
    pub(super) store: Store,
    pub(super) stored: Option<Box<StoredLimits>>,
    pub(super) overrides: Option<Box<Overrides>>,
    pub(super) activity: Option<Arc<Activity>>,
}

impl State {
    /// Returns `rule` with this state, without a queue.
    pub(super) fn of(self, rule: Rule) -> Active {
        let mut active = Active {
            rule,
            is_plain: false,
            stored: self.stored,
            exempt_networks: self.exempt_networks,
            store: self.store,
            overrides: self.overrides,
            activity: self.activity,
        };
        active.note_whether_plain();
        active
    }
}

/// What is wrong with one rule.
struct Refusals<'e> {
    rule: &'e Rule,
    errors: &'e mut Vec<RuleError>,
}

impl Refusals<'_> {
    fn refuse(&mut self, setting: impl Into<String>, problem: impl Into<String>) {
        self.refuse_value(setting, None, problem);
    }

    fn refuse_value(
        &mut self,
        setting: impl Into<String>,
        value: Option<String>,
        problem: impl Into<String>,
    ) {
        self.errors.push(RuleError {
            rule: self.rule.name.clone(),
            setting: setting.into(),
            value,
            problem: problem.into(),
        });
    }
}

/// Checks the settings of a rule other than its conditions, in the order in which a file has them.
/// All of them are checked, so that a user sees all errors at once.
fn plan<'r>(rule: &'r Rule, path_rules: PathRules, errors: &mut Vec<RuleError>) -> Plan<'r> {
    let refusals = &mut Refusals { rule, errors };
    check_itself(rule, refusals);
    let limits = plan_limits(rule, refusals);
    let penalty = plan_penalty(rule, refusals);
    if !rule.overrides.is_empty() && rule.lacks_limits() {
        let problem = "have no effect without a limit: leave them out, or add a limit";
        refusals.refuse("overrides", problem);
    }
    stored::check(rule, &mut |setting, problem| {
        refusals.refuse(setting, problem);
    });
    let thresholds = plan_thresholds(rule, refusals);
    check_hold(rule, refusals);
    check_initial(rule, refusals);
    let is_held = rule.counts_refunds();
    let of_penalty = |bytes| if penalty.is_some() { bytes } else { 0 };
    let bytes_of_key = all_bytes_per_key(&limits, is_held)
        + of_penalty(bytes_per_key(0))
        + thresholds.bytes_per_key();
    check_keys(rule, bytes_of_key, refusals);
    check_headers(rule, refusals);
    let exempt_networks = plan_exempt_networks(rule, refusals);
    let keys = rule.table_keys();
    let bytes = all_bytes(&limits, keys, is_held)
        .saturating_add(of_penalty(table_bytes(keys, 0)))
        .saturating_add(thresholds.table_bytes(keys));
    let of_overrides = check_overrides(rule, penalty.is_some(), path_rules, refusals);
    Plan {
        rule,
        limits,
        penalty,
        thresholds,
        exempt_networks,
        bytes: bytes.saturating_add(of_overrides),
    }
}

/// Checks the name, the status of a denial, and that there is room for a key.
fn check_itself(rule: &Rule, refusals: &mut Refusals<'_>) {
    if rule.name.is_empty() {
        refusals.refuse("name", "must not be empty");
    }
    if !(400..600).contains(&rule.status()) {
        let problem = format!("must be from 400 to 599, not {}", rule.status());
        refusals.refuse("status", problem);
    }
    if rule.keys == 0 {
        refusals.refuse("keys", "must be at least 1");
    }
}

/// Compiles the limits whose state is in this process.
fn plan_limits(rule: &Rule, refusals: &mut Refusals<'_>) -> Vec<Compiled> {
    let limits = compile_all(&rule.limits, |limit, problem| {
        let setting = match limit {
            Some(index) => format!("limits[{index}]"),
            None => "limits".into(),
        };
        refusals.refuse(setting, problem);
    });
    // The state of a rule with a store is in that: there are no tables. Its limits are compiled
    // all the same, so that they are checked.
    if rule.store.is_some() {
        return Vec::new();
    }
    limits
}

/// Compiles the penalty.
fn plan_penalty(rule: &Rule, refusals: &mut Refusals<'_>) -> Option<FixedWindowRules> {
    let rules = rule.penalty.map(hold_rules).transpose();
    let penalty = rules.unwrap_or_else(|error| {
        refusals.refuse("penalty", error.to_string());
        None
    });
    if rule.penalty.is_some() && rule.lacks_limits() {
        let problem = "has no effect without a limit: leave it out, or add a limit";
        refusals.refuse("penalty", problem);
    }
    penalty
}

/// Compiles the thresholds.
fn plan_thresholds<'r>(rule: &'r Rule, refusals: &mut Refusals<'_>) -> thresholds::Compiled<'r> {
    thresholds::Compiled::new(&rule.thresholds, |threshold, problem| {
        let setting = match threshold {
            Some(index) => format!("thresholds[{index}]"),
            None => "thresholds".into(),
        };
        refusals.refuse(setting, problem);
    })
}

/// Checks that a hold has an end and an effect, and that debts have a hold.
fn check_hold(rule: &Rule, refusals: &mut Refusals<'_>) {
    if rule.hold.is_some_and(|hold| hold.is_zero()) {
        refusals.refuse("hold", "must be longer than 0");
    }
    if rule.hold.is_some() && rule.lacks_limits() {
        let problem = "has no effect without a limit: leave it out, or add a limit";
        refusals.refuse("hold", problem);
    }
    let all = rule.overrides.iter().flat_map(|this| &this.limits);
    let lacks_hold = rule.hold.is_none() && !rule.has_left_out("hold");
    if lacks_hold && rule.limits.iter().chain(all).any(Limit::has_debt) {
        let problem = "must be set if a limit has a debt, which only settlements use";
        refusals.refuse("hold", problem);
    }
}

/// Checks that the tables for the keys, each of which takes this memory, are not too large.
fn check_keys(rule: &Rule, bytes_of_key: usize, refusals: &mut Refusals<'_>) {
    let most = MAX_TABLE_BYTES / bytes_of_key.max(1);
    if !rule.key.is_shared() && rule.keys > most {
        let what = match &*rule.thresholds {
            [] => "limits",
            _ => "limits and thresholds",
        };
        let keys = rule.keys;
        let problem = format!("must be at most {most} with these {what}, not {keys}");
        refusals.refuse("keys", problem);
    }
}

/// Refuses names of header fields that no request can have.
fn check_headers(rule: &Rule, refusals: &mut Refusals<'_>) {
    let mut refuse = |setting: &str, text: &Text| {
        let names: &[Box<str>] = match text {
            Text::Header(name) => core::slice::from_ref(name),
            Text::FirstHeader(names) => names,
            _ => &[],
        };
        for name in names.iter().filter(|name| !is_token(name)) {
            let problem = "is not the name of a header field, such as `X-Api-Key`: write letters, \
                           digits and hyphens, without blanks and colons";
            refusals.refuse_value(setting, Some(name.to_string()), problem);
        }
    };
    for text in rule.key.texts() {
        refuse("key", text);
    }
    for (text, _) in &rule.exempt {
        refuse("exempt_headers", text);
    }
}

/// Refuses initial permits of limits whose keys can be forgotten. Those of limits in a store are
/// refused elsewhere.
fn check_initial(rule: &Rule, refusals: &mut Refusals<'_>) {
    if rule.key.is_shared() || rule.store.is_some() {
        return;
    }
    let limits = rule.limits.iter().enumerate();
    for (index, _) in limits.filter(|(_, limit)| limit.has_initial()) {
        let problem = "a rule with a key forgets a key when all its permits have returned, so it \
                       would lose permits when it comes back: leave initial out, and set burst to \
                       the most that a new client may use at once";
        refusals.refuse(format!("limits[{index}].initial"), problem);
    }
}

/// Parses the networks of exempt clients.
fn plan_exempt_networks(rule: &Rule, refusals: &mut Refusals<'_>) -> Vec<IpNet> {
    let mut networks = Vec::new();
    for text in &rule.exempt_networks {
        match parse_network(text) {
            Some(network) => networks.push(network),
            None => refusals.refuse_value(
                "exempt_networks",
                Some(text.clone()),
                Problem::Network.to_string(),
            ),
        }
    }
    networks
}

/// Checks the overrides. Returns the memory of their tables, in bytes.
fn check_overrides(
    rule: &Rule,
    has_penalty: bool,
    path_rules: PathRules,
    refusals: &mut Refusals<'_>,
) -> usize {
    let with = (has_penalty, rule.counts_refunds());
    let (bytes, refused) = Overrides::check(&rule.overrides, &rule.key, with, path_rules);
    // The values of an override are those of the parts of the key.
    let is_known = |limit: Option<usize>| limit.is_some() || !rule.has_left_out("key");
    for (index, limit, problem) in refused.into_iter().filter(|(_, limit, _)| is_known(*limit)) {
        let setting = match limit {
            Some(limit) => format!("overrides[{index}].limits[{limit}]"),
            None => format!("overrides[{index}]"),
        };
        refusals.refuse(setting, problem);
    }
    bytes
}

/// Whether the tables of all rules fit. Otherwise returns the first rule with which they do not.
pub(crate) fn fit(plans: &[Plan<'_>], table_bytes: usize) -> Result<(), RuleError> {
    let mut all = 0_usize;
    for plan in plans {
        all = all.saturating_add(plan.bytes);
        if all > table_bytes {
            return Err(RuleError {
                rule: plan.rule.name.clone(),
                setting: "keys".into(),
                value: None,
                problem: format!(
                    "the tables of all rules up to this one take {all} bytes, of which this \
                     rule's take {}: at most {table_bytes} are allowed (table_bytes)",
                    plan.bytes
                ),
            });
        }
    }
    Ok(())
}

impl Plan<'_> {
    /// Creates the state of a rule without errors.
    pub(super) fn state(self, path_rules: PathRules) -> State {
        let Self { rule, penalty, .. } = self;
        let (keys, is_held) = (rule.table_keys(), rule.counts_refunds());
        // The limits of a rule with a counter store are not in this one.
        let limits = match rule.store {
            None => &*rule.limits,
            Some(_) => &[],
        };
        let store = Store::new((self.limits, limits), penalty, keys, is_held);
        State {
            stored: StoredLimits::new(rule),
            activity: self.thresholds.activity(keys),
            overrides: Overrides::new(
                &rule.overrides,
                &rule.key,
                &store,
                (penalty, is_held),
                path_rules,
            ),
            exempt_networks: self.exempt_networks,
            store,
        }
    }
}
