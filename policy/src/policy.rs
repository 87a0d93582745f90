//! Rules in force: from a request to a decision.
//!
//! [`Policy::decide`] is the one question. What users call asks it in one form each: `decide_at`,
//! `decide_watched_at`, `decide_explained_at`, `decide_stored`, `hold_at`, `acquire`.
//!
//! ```text
//! Request ---> Reading of its path ---> Matcher ---> each rule that matches, by priority
//!                                                         |
//!      Decision <--- the first that is no shadow <--- Active::judge ---> Verdict
//!               <--- if that is continuing, it and the next ones: see `several`
//! ```

pub(crate) mod active;
pub(crate) mod activity;
pub(crate) mod answer;
pub(crate) mod consider;
pub(crate) mod outcome;
pub(crate) mod owned;
pub(crate) mod plan;
pub(crate) mod several;
pub(crate) mod stored;

use core::mem;
use core::ops::ControlFlow;
use std::sync::Arc;

use portcullis_core::keyed::Address;
use portcullis_core::{Clock, Denied, Retry, Timestamp};

use self::active::{Active, Unasked, Verdict};
use self::answer::RuleAnswer;
use self::outcome::{Outcome, Status, compare_shares};
use self::plan::{State, check, fit};
use self::several::Part;
use self::stored::DeniedInStore;
use crate::key::{KeyOf, KeyValues, Text};
use crate::limit::Limit;
use crate::matcher::Matcher;
use crate::overrides::Place;
use crate::path::{PathError, PathRules, Reading};
#[cfg(any(feature = "toml", feature = "json"))]
use crate::problem::{FileError, OfFile};
use crate::request::{Kind, Request};
use crate::rule::{OnMissing, Rule, RuleError};
use crate::settings::PolicySettings;
use crate::store::{How, Store, StoreDenied};
use crate::stored::Stores;
use crate::thresholds::Activity;
#[cfg(feature = "queue")]
use crate::timers::{QueueTimer, Timers};

/// The number of shadow rules from which one decision can hold permits at once. Those of further
/// shadow rules return immediately.
pub const MAX_SHADOWS: usize = 3;

/// Rules in force, and the state of their limits.
///
/// The first rule that matches a request, and is not a shadow, decides it, together with the next
/// ones if it is [continuing](Rule::continuing): see [`decide_at`](Self::decide_at). All methods
/// take `&self`, so threads share a policy by reference.
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Conditions, Key, Policy, Request, Rule};
///
/// let policy = Policy::new([
///     Rule::new("login")
///         .when(Conditions::new().methods(["POST"]).paths(["/login"]))
///         .limit("2/m".parse()?)
///         .key(Key::address()),
///     Rule::new("api").priority(1).limit("100/s".parse()?),
/// ])
/// .unwrap();
///
/// let now = Timestamp::from_secs(1);
/// let login = Request::new("POST", "/login").address("192.0.2.7".parse().unwrap());
/// assert!(policy.decide_at(now, &login).is_allowed());
/// assert!(policy.decide_at(now, &login).is_allowed());
/// let denied = policy.decide_at(now, &login);
/// assert_eq!(denied.rule().unwrap().name(), "login");
/// assert_eq!(denied.retry().unwrap().wait_from(now).unwrap().as_secs(), 30);
/// assert!(policy.decide_at(now, &Request::new("GET", "/items")).is_allowed());
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
pub struct Policy {
    pub(crate) path_rules: PathRules,
    /// In the order in which they are asked.
    pub(crate) rules: Box<[Active]>,
    matcher: Matcher,
    /// The index of the rule of each of the matcher's conditions.
    matched: Box<[u32]>,
    /// The memory of all tables.
    table_bytes: usize,
    pub(crate) stores: Stores,
    #[cfg(any(feature = "toml", feature = "json"))]
    pub(crate) of_file: OfFile,
    #[cfg(feature = "queue")]
    pub(crate) timers: Timers,
    /// Tells the time of requests that can wait.
    #[cfg(feature = "queue")]
    pub(crate) clock: QueueTimer,
}

impl Policy {
    /// Puts rules in force, with the default [`PathRules`]. Their state is that of new limiters.
    ///
    /// # Errors
    ///
    /// All settings of all rules that are not valid.
    ///
    /// # Cost
    ///
    /// Allocates the tables of all rules: see [`Rule::keys`] and [`Matcher`]. A decision does not
    /// allocate.
    ///
    /// ```
    /// # use portcullis_policy::{Limit, Policy, Rule};
    /// let twice = [Rule::new("a").limit(Limit::at_once(3).burst(5)), Rule::new("a")];
    /// let errors = Policy::new(twice).unwrap_err();
    /// assert_eq!(
    ///     errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
    ///     [
    ///         "rule `a`: name: another rule has the same name",
    ///         "rule `a`: limits[0]: burst has no effect on this kind of limit: leave it out",
    ///     ]
    /// );
    /// ```
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, Vec<RuleError>> {
        Self::with_path_rules(rules, PathRules::new())
    }

    /// As [`new`](Self::new), with other rules for paths.
    ///
    /// # Errors
    ///
    /// All settings of all rules that are not valid.
    ///
    /// ```
    /// # use portcullis_policy::{PathRules, Policy, Rule};
    /// let policy = Policy::with_path_rules([Rule::new("all")], PathRules::new().ignoring_case());
    /// assert!(policy.is_ok());
    /// ```
    pub fn with_path_rules(
        rules: impl IntoIterator<Item = Rule>,
        path_rules: PathRules,
    ) -> Result<Self, Vec<RuleError>> {
        Self::with_settings(rules, PolicySettings::new().path_rules(path_rules))
    }

    /// As [`new`](Self::new), with settings of the whole policy.
    ///
    /// # Errors
    ///
    /// All settings of all rules that are not valid. If all are, the first rule whose tables do not
    /// fit [`PolicySettings::table_bytes`].
    ///
    /// ```
    /// # use portcullis_policy::{Policy, PolicySettings, Rule};
    /// let policy = Policy::with_settings([Rule::new("all")], PolicySettings::new());
    /// assert!(policy.is_ok());
    /// ```
    pub fn with_settings(
        rules: impl IntoIterator<Item = Rule>,
        settings: PolicySettings,
    ) -> Result<Self, Vec<RuleError>> {
        let PolicySettings {
            path_rules,
            table_bytes,
        } = settings;
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        rules.sort_by_key(|rule| rule.priority);
        note_sums(&mut rules);
        let (plans, matcher) = check(&rules, path_rules)?;
        fit(&plans, table_bytes).map_err(|error| vec![error])?;
        let bytes = plans.iter().map(|plan| plan.bytes).sum();
        let states: Vec<State> = plans
            .into_iter()
            .map(|plan| plan.state(path_rules))
            .collect();
        let matched: Box<[u32]> = (0..)
            .zip(&rules)
            .filter(|(_, rule)| rule.is_enabled)
            .map(|(index, _)| index)
            .collect();
        let matcher = if matched.len() == rules.len() {
            matcher
        } else {
            let enabled = rules.iter().filter(|rule| rule.is_enabled);
            let enabled: Vec<_> = enabled.map(|rule| rule.conditions.clone()).collect();
            let matcher = Matcher::new(&enabled, path_rules);
            matcher.expect("the same conditions were valid before")
        };
        #[cfg_attr(not(feature = "queue"), expect(unused_mut, reason = "no queues"))]
        let mut policy = Self {
            path_rules,
            matcher,
            rules: rules
                .into_iter()
                .zip(states)
                .map(|(rule, state)| state.of(rule))
                .collect(),
            table_bytes: bytes,
            stores: Stores::new(),
            #[cfg(any(feature = "toml", feature = "json"))]
            of_file: OfFile::default(),
            matched,
            #[cfg(feature = "queue")]
            timers: Timers::DEFAULT,
            #[cfg(feature = "queue")]
            clock: Timers::DEFAULT.create(),
        };
        #[cfg(feature = "queue")]
        policy.create_queues();
        Ok(policy)
    }

    /// What is wrong with rules that are not to be put in force. Creates no tables.
    #[cfg(any(feature = "toml", feature = "json"))]
    pub(crate) fn refused(mut rules: Vec<Rule>, settings: PolicySettings) -> Vec<RuleError> {
        rules.sort_by_key(|rule| rule.priority);
        note_sums(&mut rules);
        match check(&rules, settings.path_rules) {
            Ok((plans, _)) => fit(&plans, settings.table_bytes)
                .err()
                .into_iter()
                .collect(),
            Err(errors) => errors,
        }
    }

    /// Decides a request at `now`, and takes its permits if it is allowed.
    ///
    /// 1. If the path is too long to be matched, the request is denied. So it is if services read
    ///    the path in different ways, and different rules limit it then: see [`PathReading`].
    ///
    ///    [`PathReading`]: crate::PathReading
    /// 2. The rules that the request matches are asked in the order of their priority, until one
    ///    decides that is not [continuing](Rule::continuing). A [shadow](Rule::shadow) rule takes
    ///    its permits, or notes that it would deny, and the next rule is asked.
    /// 3. An exempt client takes nothing from the rule.
    /// 4. The request takes [`cost`](Request::cost) permits from each limit of these rules, or from
    ///    none. The first rule that denies decides.
    /// 5. If no rule decides, the request is allowed.
    ///
    /// Permits of limits at once return when the decision is dropped.
    ///
    /// # Cost
    ///
    /// A match, one hash of the key, and the cost of the limits: of one in a
    /// [`Keyed`](portcullis_core::Keyed) table; of several token buckets and windows in a
    /// [`KeyedList`](portcullis_core::KeyedList), which is one search for all of them. Permits at
    /// once, sliding windows and windows with a [`wait`](Limit::wait) have a table for each limit.
    /// Lock-free. Does not allocate. What a decision says beyond allowed or denied is computed when
    /// it is asked for.
    ///
    /// After a continuing rule, the request is matched once more, and looks at the limits of each
    /// rule before it takes. Such a decision allocates: about half a kilobyte for each rule.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("all").limit(Limit::at_once(1))]).unwrap();
    /// let now = Timestamp::from_secs(1);
    /// let request = Request::new("GET", "/");
    /// let first = policy.decide_at(now, &request);
    /// assert!(first.is_allowed() && !policy.decide_at(now, &request).is_allowed());
    /// drop(first);
    /// assert!(policy.decide_at(now, &request).is_allowed());
    /// ```
    #[inline]
    pub fn decide_at(&self, now: Timestamp, request: &Request<'_>) -> Decision<'_> {
        self.decide(now, request, How::Take, None, |_| {})
    }

    /// As [`decide_at`](Self::decide_at), and calls `watch` with the answer of each rule that was
    /// asked: of the shadow rules, and of the rules that decide. After a denial, of them only the
    /// one that denied answers. Rules that the request does not match, or that
    /// [skip](OnMissing::Skip) it, are not asked.
    ///
    /// # Cost
    ///
    /// That of [`decide_at`](Self::decide_at) and of the calls.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Outcome, Policy, Request, Rule};
    /// let new = Rule::new("new").shadow().limit("10/s".parse()?);
    /// let policy = Policy::new([new, Rule::new("old").limit("5/s".parse()?)]).unwrap();
    /// let mut asked = Vec::new();
    /// let request = Request::new("GET", "/");
    /// let decision = policy.decide_watched_at(Timestamp::from_secs(1), &request, |answer| {
    ///     asked.push((answer.rule.name(), answer.outcome));
    /// });
    /// assert!(decision.is_allowed());
    /// assert_eq!(asked, [("new", Outcome::Allowed), ("old", Outcome::Allowed)]);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[inline]
    pub fn decide_watched_at<'p>(
        &'p self,
        now: Timestamp,
        request: &Request<'_>,
        watch: impl FnMut(RuleAnswer<'p>),
    ) -> Decision<'p> {
        self.decide(now, request, How::Take, None, watch)
    }

    /// Decides a request: the one question, of which all others are forms. The rule that decides
    /// takes as `how` says. Shadow rules only take. Notes in `asks` the rules whose stores are to
    /// be asked. `watch` is called with the answer of each rule that was asked.
    #[inline(always)]
    pub(crate) fn decide<'p>(
        &'p self,
        now: Timestamp,
        request: &Request<'_>,
        mut how: How<'_>,
        mut asks: Option<&mut Vec<usize>>,
        mut watch: impl FnMut(RuleAnswer<'p>),
    ) -> Decision<'p> {
        let mut decision = Decision::undecided(self, now, request.cost);
        let reading = match self.reading(request) {
            Ok(reading) => reading,
            Err(error) => return decision.refused(error),
        };
        // Whether rules are asked together, or later.
        let mut goes_on = false;
        let visited = self.matcher.visit_as(reading, request, |index| {
            let rule = self.matched[index];
            let active = &self.rules[rule as usize];
            if active.rule.is_continuing {
                goes_on = true;
                return if active.rule.is_shadow {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                };
            }
            let mut only_take = How::Take;
            let how = if active.rule.is_shadow {
                &mut only_take
            } else {
                &mut how
            };
            let verdict = active.judge(request, now, self.path_rules, how);
            let Some(outcome) = verdict.outcome() else {
                return ControlFlow::Continue(());
            };
            if let (Outcome::Stored, Some(asks)) = (outcome, &mut asks) {
                asks.push(rule as usize);
            }
            // Before `watch` is called, so that the permits return if it panics.
            let flow = if active.rule.is_shadow {
                decision.ask_shadow(rule, &verdict);
                ControlFlow::Continue(())
            } else {
                let parts = &mut decision.parts;
                parts.decided_by(rule, outcome, verdict.place());
                ControlFlow::Break(())
            };
            watch(RuleAnswer::of(active, rule, outcome, verdict.place()));
            flow
        });
        if let Err(error) = visited {
            return decision.refused(error);
        }
        if goes_on {
            let of = (reading, request);
            self.decide_further(of, &mut how, asks, &mut watch, &mut decision);
        }
        decision
    }

    /// The reading of a request's path by which it is decided.
    #[inline]
    fn reading(&self, request: &Request<'_>) -> Result<Reading, PathError> {
        match self.path_rules.plain(request.path) {
            Some(plain) => Ok(plain),
            None => self.agreed(request),
        }
    }

    /// The reading by which most rules limit the request. The service may read the path by any of
    /// them. What one leaves free, the limits of another may take; rules with limits that are not
    /// all asked by one reading are for two resources, of which the request may be for either.
    #[cold]
    #[inline(never)]
    fn agreed(&self, request: &Request<'_>) -> Result<Reading, PathError> {
        let readings = self.path_rules.readings(request.path)?;
        let mut agreed = readings.first();
        if !readings.are_several() {
            return Ok(agreed);
        }
        for reading in readings.iter() {
            if self.limits_as(agreed, reading, request)? {
                continue;
            }
            if !self.limits_as(reading, agreed, request)? {
                // Whichever is asked, the service may do what the other one limits.
                return Err(PathError::Ambiguous);
            }
            agreed = reading;
        }
        Ok(agreed)
    }

    /// Whether all rules that limit a request by the reading `less` do so by the reading `more`.
    fn limits_as(
        &self,
        more: Reading,
        less: Reading,
        request: &Request<'_>,
    ) -> Result<bool, PathError> {
        let mut has_all = Ok(true);
        self.visit_limiting(less, request, |rule| {
            let mut has = false;
            let visited = self.visit_limiting(more, request, |other| {
                has |= other == rule;
                other < rule
            });
            has_all = visited.map(|()| has);
            has_all == Ok(true)
        })?;
        has_all
    }

    /// Calls `limits` with the index of each rule that decides a request by a reading of its path
    /// and can deny, in order, until it returns `false`.
    fn visit_limiting(
        &self,
        reading: Reading,
        request: &Request<'_>,
        mut limits: impl FnMut(u32) -> bool,
    ) -> Result<(), PathError> {
        self.matcher.visit_as(reading, request, |index| {
            let rule = self.matched[index];
            let active = &self.rules[rule as usize];
            if active.rule.is_shadow {
                return ControlFlow::Continue(());
            }
            let goes_on = match active.locate_any(request, self.path_rules) {
                Err(Unasked::Skipped) => return ControlFlow::Continue(()),
                Err(Unasked::Exempt | Unasked::NoLimits) => true,
                Ok(_) | Err(Unasked::Unidentified | Unasked::NoAddress) => limits(rule),
            };
            if goes_on && active.rule.is_continuing {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    }

    /// Returns all rules, in the order in which they are asked. Disabled ones are included.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Rule};
    /// let policy = Policy::new([Rule::new("b").priority(2), Rule::new("a").priority(1)]).unwrap();
    /// assert!(policy.rules().map(Rule::name).eq(["a", "b"]));
    /// ```
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter().map(|active| &active.rule)
    }

    /// Calls `visit` with each rule with thresholds that counts a request, their state and the
    /// place of the request's key in it. `None` if the request lacks the address, and the rule
    /// needs it.
    pub(crate) fn visit_activity<'p>(
        &'p self,
        request: &Request<'_>,
        mut visit: impl FnMut(&'p Rule, &'p Activity, Option<Address>),
    ) -> Result<(), PathError> {
        let readings = self.path_rules.readings(request.path)?;
        // Which rules an earlier reading has found, if there are several readings.
        let conditions = if readings.are_several() {
            self.matched.len()
        } else {
            0
        };
        let mut known = vec![false; conditions];
        for reading in readings.iter() {
            self.matcher.visit_as(reading, request, |index| {
                if let Some(known) = known.get_mut(index)
                    && mem::replace(known, true)
                {
                    return ControlFlow::Continue(());
                }
                let active = &self.rules[self.matched[index] as usize];
                if let Some(activity) = &active.activity
                    && !active.exempts(request)
                {
                    let key = KeyOf::new(&active.rule.key, request, self.path_rules);
                    let Some(at) = activity.locate(&key) else {
                        return ControlFlow::Continue(());
                    };
                    match active.rule.on_missing {
                        OnMissing::NeedAddress if key.lacks_address() => {
                            visit(&active.rule, activity, None);
                        }
                        OnMissing::Deny | OnMissing::Skip if !key.is_complete() => {}
                        _ => visit(&active.rule, activity, Some(at)),
                    }
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(())
    }

    /// Returns what the author of the file with the rules may have meant otherwise, in the order of
    /// the file: a rule that is never asked, because another one decides all its requests; a key
    /// without a limit; a limit that all clients without a credential share; a kind that programs
    /// have to ask for. Empty if the rules are from no file.
    ///
    /// ```
    /// # use portcullis_policy::Policy;
    /// let policy = Policy::from_toml("
    ///     [[rules]]
    ///     name = 'service'
    ///     limits = ['100/s']
    ///     [[rules]]
    ///     name = 'login'
    ///     paths = ['/login']
    ///     limits = ['5/m']
    /// ").unwrap();
    /// let warning = &policy.warnings()[0];
    /// assert_eq!(warning.line, 6);
    /// assert!(warning.message.contains("because `service` (line 3) matches every request"));
    /// ```
    #[cfg(any(feature = "toml", feature = "json"))]
    pub fn warnings(&self) -> &[FileError] {
        &self.of_file.warnings
    }

    /// Returns a message at the rule with this name in the file that the rules are from. `None`
    /// without such a rule, and if the rules are from no file of our own format.
    ///
    /// ```
    /// # use portcullis_policy::Policy;
    /// let policy = Policy::from_toml("rules = [\n  { name = 'all' },\n]").unwrap();
    /// let message = policy.message_at("all", "has no limit").unwrap();
    /// assert_eq!(message.in_file("policy.toml").to_string(), "policy.toml:2:12: has no limit");
    /// ```
    #[cfg(any(feature = "toml", feature = "json"))]
    pub fn message_at(&self, rule: &str, message: &str) -> Option<FileError> {
        let place = self
            .of_file
            .places
            .iter()
            .find(|place| place.message == rule)?;
        let mut place = place.clone();
        message.clone_into(&mut place.message);
        Some(place)
    }

    /// Returns the same rules with the state of new limiters, and without their limits [at
    /// once](Limit::at_once): for a program that does not see when a request ends. There, such a
    /// limit would deny requests by how long their decisions take. None at once still denies
    /// always.
    ///
    /// The other settings of a rule that has no limit then still hold, such as
    /// [`on_missing`](Rule::on_missing) and the limits of single keys.
    ///
    /// # Panics
    ///
    /// Never: rules that were valid are valid without these limits.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// let rule = Rule::new("all").limit("2/m".parse()?).limit(Limit::at_once(1));
    /// let policy = Policy::new([rule]).unwrap().without_limits_at_once();
    /// let decide = || policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", "/"));
    /// let (first, second) = (decide(), decide());
    /// assert!(first.is_allowed() && second.is_allowed() && !decide().is_allowed());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn without_limits_at_once(&self) -> Self {
        let without = |rule: &Rule| {
            let mut rule = rule.clone();
            for of_key in &mut rule.overrides {
                of_key.limits.retain(|limit| !limit.is_held());
            }
            if rule.limits.iter().any(Limit::is_held) {
                rule.limits.retain(|limit| !limit.is_held());
                rule.left_out.push("limits");
            }
            rule
        };
        let rules: Vec<Rule> = self.rules().map(without).collect();
        let settings = PolicySettings::new().path_rules(self.path_rules);
        let policy = Self::with_settings(rules, settings.table_bytes(usize::MAX));
        Self {
            stores: self.stores.clone(),
            #[cfg(any(feature = "toml", feature = "json"))]
            of_file: self.of_file.clone(),
            ..policy.expect("they were valid before")
        }
    }

    /// Returns how paths are normalized.
    ///
    /// ```
    /// # use portcullis_policy::{PathRules, Policy};
    /// assert_eq!(Policy::new([]).unwrap().path_rules(), PathRules::new());
    /// ```
    pub fn path_rules(&self) -> PathRules {
        self.path_rules
    }

    /// Returns how much memory the tables of all rules take, in bytes: those of limits, overrides,
    /// penalties and thresholds. See [`PolicySettings::table_bytes`].
    ///
    /// Besides its tables, a policy has its rules, and a [`Matcher`] of up to 256 MiB. While it is
    /// created, one table after another is copied, so the largest one takes its memory twice.
    ///
    /// ```
    /// # use portcullis_policy::{Key, Policy, Rule};
    /// let rule = Rule::new("all").key(Key::address()).keys(10_000).limit("5/s".parse()?);
    /// assert_eq!(Policy::new([rule]).unwrap().table_bytes(), 436_160);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn table_bytes(&self) -> usize {
        self.table_bytes
    }

    /// Returns the key of a request for `rule`, one of the rules of this policy, in a form that
    /// people can read.
    ///
    /// ```
    /// # use portcullis_policy::{Key, Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("a").key(Key::host())]).unwrap();
    /// let request = Request::new("GET", "/").host("API.example.com:443");
    /// let key = policy.key_values(policy.rule("a").unwrap(), &request);
    /// assert_eq!(key.to_string(), "api.example.com");
    /// ```
    pub fn key_values<'k>(&self, rule: &'k Rule, request: &'k Request<'k>) -> KeyValues<'k> {
        KeyValues::new(&rule.key, request, self.path_rules)
    }

    /// Returns the names of the headers that the rules read, in the order of the alphabet and each
    /// once, without those that only functions read. Upper and lower case do not matter.
    ///
    /// ```
    /// # use portcullis_policy::{Key, Policy, Rule};
    /// let key = Key::first_header(["X-Key", "X-Old-Key"]);
    /// let rule = Rule::new("a").key(key).exempt_header("Oc-Client", ["admin"]);
    /// assert_eq!(
    ///     Policy::new([rule]).unwrap().header_names(),
    ///     ["Oc-Client", "X-Key", "X-Old-Key"]
    /// );
    /// ```
    pub fn header_names(&self) -> Vec<&str> {
        let of_texts = self.texts().flat_map(|text| match text {
            Text::Header(name) => core::slice::from_ref(name),
            Text::FirstHeader(names) => names,
            _ => &[],
        });
        names(of_texts.map(|name| &**name))
    }

    /// Returns the names of the properties that the rules read, in the order of the alphabet and
    /// each once, without those that only functions read. Upper and lower case do not matter.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Key, Policy, Rule};
    /// let rule = Rule::new("a")
    ///     .when(Conditions::new().property("region", ["eu"]))
    ///     .key(Key::property("tenant"));
    /// assert_eq!(Policy::new([rule]).unwrap().property_names(), ["region", "tenant"]);
    /// ```
    pub fn property_names(&self) -> Vec<&str> {
        let of_texts = self.texts().filter_map(|text| match text {
            Text::Property(name) => Some(&**name),
            _ => None,
        });
        let of_conditions = self.enabled().flat_map(|rule| &rule.conditions.properties);
        names(of_texts.chain(of_conditions.map(|(name, _)| &**name)))
    }

    fn enabled(&self) -> impl Iterator<Item = &Rule> {
        self.rules().filter(|rule| rule.is_enabled)
    }

    /// What the rules read as text, for keys and exempt clients.
    fn texts(&self) -> impl Iterator<Item = &Text> {
        self.enabled().flat_map(|rule| {
            let exempt = rule.exempt.iter().map(|(text, _)| text);
            rule.key.texts().chain(exempt)
        })
    }

    /// Returns the rule with this name.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Rule};
    /// let policy = Policy::new([Rule::new("a")]).unwrap();
    /// assert!(policy.rule("a").is_some() && policy.rule("b").is_none());
    /// ```
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules().find(|rule| rule.name() == name)
    }

    /// Calls `found` with each rule that a request matches, in the order in which they are asked.
    pub(crate) fn visit_matches<'p>(
        &'p self,
        request: &Request<'_>,
        mut found: impl FnMut(&'p Rule) -> ControlFlow<()>,
    ) -> Result<(), PathError> {
        let rule = |index: usize| &self.rules[self.matched[index] as usize].rule;
        let reading = self.reading(request)?;
        self.matcher
            .visit_as(reading, request, |index| found(rule(index)))
    }
}

/// Notes which rules can limit a request together with others: those that are continuing, and the
/// rules of the same kind after one of them. The rules are in the order of their priority.
pub(crate) fn note_sums(rules: &mut [Rule]) {
    let mut is_summed = [false; Kind::ALL.len()];
    for rule in rules
        .iter_mut()
        .filter(|rule| rule.is_enabled && !rule.is_shadow)
    {
        let is_summed = &mut is_summed[rule.kind() as usize];
        *is_summed |= rule.is_continuing;
        rule.adds_up = *is_summed;
    }
}

/// Sorts names, and drops those that differ only in case.
fn names<'n>(names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let mut names: Vec<_> = names.collect();
    names.sort_by_key(|name| name.to_ascii_lowercase());
    names.dedup_by(|a, b| a.eq_ignore_ascii_case(b));
    names
}

shows!([] Policy, "Policy",
    self: "rules" => self.rules().map(Rule::name).collect::<Vec<_>>(), "matcher" => self.matcher);

/// The answer of a [`Policy`] to a request. It holds the permits of each
/// [`Limit::at_once`](crate::Limit::at_once) until it is dropped.
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Outcome, Policy, Request, Rule};
///
/// let policy = Policy::new([Rule::new("all").limit("10/s".parse()?)]).unwrap();
/// let decision = policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", "/").cost(4));
/// assert_eq!(decision.outcome(), Outcome::Allowed);
/// let status = decision.status().unwrap();
/// assert_eq!((status.remaining, status.limit.count()), (6, 10));
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct Decision<'p> {
    pub(crate) policy: &'p Policy,
    parts: Parts,
}

/// All of a decision but its policy.
#[derive(Clone)]
struct Parts {
    now: Timestamp,
    cost: u32,
    outcome: Outcome,
    own: Option<Own>,
    /// Where the state of the request's key is, if the rule has any.
    place: Option<Place>,
    /// Shadow rules whose `at_once` permits are held, if there are any.
    shadows: Option<[Option<(u32, Place)>; MAX_SHADOWS]>,
    shadow_denied: Option<ShadowDenial>,
    /// The other rules that the request is limited by, in order.
    others: Option<Arc<Vec<Part>>>,
}

/// The rule that decides, and in the highest bit whether a limit of an override, in a store, has
/// denied. So a decision is as large as without this bit.
#[derive(Clone, Copy)]
struct Own(u32);

impl Own {
    const OVERRIDDEN_IN_STORE: u32 = 1 << 31;

    #[inline(always)]
    const fn of(rule: u32) -> Self {
        Self(rule)
    }

    #[inline(always)]
    const fn rule(self) -> u32 {
        self.0 & !Self::OVERRIDDEN_IN_STORE
    }

    /// Returns the index of a rule that has decided in this process, so that no store has denied.
    #[inline(always)]
    const fn in_process(self) -> usize {
        self.0 as usize
    }

    const fn is_overridden_in_store(self) -> bool {
        self.0 & Self::OVERRIDDEN_IN_STORE != 0
    }
}

/// A shadow rule that would have denied a request, and by which limit.
#[derive(Clone, Copy)]
pub(crate) struct ShadowDenial {
    rule: u32,
    /// The override whose limits were asked.
    instead: Option<u32>,
    /// `None` if no limit was reached.
    limit: Option<u8>,
}

impl ShadowDenial {
    pub(crate) fn new(rule: u32, instead: Option<u32>, limit: Option<usize>) -> Self {
        Self {
            rule,
            instead,
            // A rule has few limits.
            limit: limit.and_then(|limit| limit.try_into().ok()),
        }
    }
}

impl Parts {
    /// Notes which rule decides, and how.
    #[inline(always)]
    const fn decided_by(&mut self, rule: u32, outcome: Outcome, place: Option<Place>) {
        self.outcome = outcome;
        self.place = place;
        self.own = Some(Own::of(rule));
    }

    /// The rule that decides.
    #[inline(always)]
    const fn rule(&self) -> Option<u32> {
        match self.own {
            Some(own) => Some(own.rule()),
            None => None,
        }
    }

    /// Before any rule was asked.
    #[inline(always)]
    const fn new(now: Timestamp, cost: u32) -> Self {
        Self {
            now,
            cost,
            outcome: Outcome::NoRule,
            own: None,
            place: None,
            shadows: None,
            shadow_denied: None,
            others: None,
        }
    }
}

impl<'p> Decision<'p> {
    /// Before any rule was asked.
    #[inline(always)]
    const fn undecided(policy: &'p Policy, now: Timestamp, cost: u32) -> Self {
        let parts = Parts::new(now, cost);
        Self { policy, parts }
    }

    /// The path cannot be matched.
    fn refused(mut self, error: PathError) -> Self {
        self.parts.outcome = Outcome::Path(error);
        self
    }

    /// Asks a shadow rule. It may deny as often as it likes.
    #[cold]
    fn ask_shadow(&mut self, rule: u32, verdict: &Verdict) {
        match *verdict {
            Verdict::Granted(Some(place)) => {
                let store = self.policy.rules[rule as usize].store_at(place);
                if !store.releases() {
                    return;
                }
                let shadows = self.parts.shadows.get_or_insert([None; MAX_SHADOWS]);
                match shadows.iter_mut().find(|shadow| shadow.is_none()) {
                    Some(shadow) => *shadow = Some((rule, place)),
                    None => store.release(place.at, self.parts.cost),
                }
            }
            Verdict::Denied(place, StoreDenied { limit, denied }) => {
                let limit = limit.filter(|_| !matches!(denied, Denied::Crowded { .. }));
                self.note_shadow(ShadowDenial::new(rule, place.instead, limit));
            }
            Verdict::NoAddress | Verdict::Unidentified => {
                self.note_shadow(ShadowDenial::new(rule, None, None));
            }
            // A store is asked later, by `decide_stored`.
            Verdict::Stored | Verdict::Granted(None) | Verdict::Exempt | Verdict::Skipped => {}
        }
    }

    /// Returns whether the request is allowed.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request};
    /// let policy = Policy::new([]).unwrap();
    /// assert!(policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/")).is_allowed());
    /// ```
    pub fn is_allowed(&self) -> bool {
        matches!(
            self.parts.outcome,
            Outcome::NoRule | Outcome::Exempt | Outcome::Allowed
        )
    }

    /// Returns what was decided, and why.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Key, OnMissing, Outcome, Policy, Request, Rule};
    /// let rule = Rule::new("clients").key(Key::header("X-Key")).on_missing(OnMissing::Deny);
    /// let policy = Policy::new([rule.limit("1/s".parse()?)]).unwrap();
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert_eq!(decision.outcome(), Outcome::Unidentified);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn outcome(&self) -> Outcome {
        self.parts.outcome
    }

    /// Returns the rule that decided: the one that denied, or of an allowed request, the last one
    /// that it took from.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("all")]).unwrap();
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert_eq!(decision.rule().map(Rule::name), Some("all"));
    /// ```
    pub fn rule(&self) -> Option<&'p Rule> {
        Some(&self.active()?.rule)
    }

    /// Returns all rules that limit the request, in their order. There are several if a rule is
    /// [continuing](Rule::continuing): an allowed request took from the limits of each, and a
    /// denied one from none. No shadow rules.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// let each = Rule::new("each").limit("10/s".parse()?).continuing();
    /// let policy = Policy::new([each, Rule::new("all").limit(Limit::at_once(1))]).unwrap();
    /// let decide = || policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// let allowed = decide();
    /// assert!(allowed.rules().map(Rule::name).eq(["each", "all"]));
    /// let denied = decide();
    /// assert_eq!(denied.rule().unwrap().name(), "all");
    /// assert!(denied.statuses().map(|limit| limit.remaining).eq([9, 0]));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn rules(&self) -> impl Iterator<Item = &'p Rule> {
        let rules = &self.policy.rules;
        self.asked().map(|(rule, _)| &rules[rule as usize].rule)
    }

    /// The answers of the rules, to be counted: of all that an allowed request took from, or of the
    /// one that denied.
    pub(crate) fn answers(&self) -> impl Iterator<Item = RuleAnswer<'p>> {
        let (policy, is_taken) = (self.policy, self.is_taken());
        let (own, outcome) = (self.parts.own, self.parts.outcome);
        let of = move |(rule, place): (u32, _)| {
            let own = own.filter(|own| own.rule() == rule);
            let is_own = own.is_some();
            let outcome = if is_own { outcome } else { Outcome::Allowed };
            let answer = policy.answer(rule, outcome, place);
            (is_own || is_taken)
                .then(|| answer.in_store(own.is_some_and(Own::is_overridden_in_store)))
        };
        self.asked().filter_map(of)
    }

    /// Returns the first shadow rule that would have denied the request.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("new").shadow().limit("1/s".parse()?)]).unwrap();
    /// let decide = || policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", "/"));
    /// assert!(decide().shadow_denied().is_none());
    /// let second = decide();
    /// assert!(second.is_allowed());
    /// assert_eq!(second.shadow_denied().map(Rule::name), Some("new"));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn shadow_denied(&self) -> Option<&'p Rule> {
        self.shadow_denial().map(|(_, rule)| rule)
    }

    /// As [`shadow_denied`](Self::shadow_denied), with the index of the rule.
    pub(crate) fn shadow_denial(&self) -> Option<(usize, &'p Rule)> {
        let index = self.parts.shadow_denied?.rule as usize;
        Some((index, &self.policy.rules[index].rule))
    }

    /// Returns the limit by which [`shadow_denied`](Self::shadow_denied) would have denied the
    /// request: one of the rule, or of the override for the request's key. `None` if no shadow rule
    /// would have denied it, or if no limit was reached: the request lacks a part of the key, a
    /// table has no room for the key, or a penalty is in force.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let rule = Rule::new("new").shadow().limit("9/s".parse()?).limit("1/m".parse()?);
    /// let policy = Policy::new([rule]).unwrap();
    /// let decide = || policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", "/"));
    /// assert!(decide().shadow_denied_by().is_none());
    /// assert_eq!(decide().shadow_denied_by().unwrap().to_string(), "1/m");
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn shadow_denied_by(&self) -> Option<&'p Limit> {
        let denial = self.parts.shadow_denied?;
        let active = &self.policy.rules[denial.rule as usize];
        active
            .limits_of(denial.instead)
            .get(usize::from(denial.limit?))
    }

    /// Returns what is left of the limit that decided: of the one that denied, or of an allowed
    /// request, of the one with the smallest share of its permits left. `None` if no limit was
    /// asked.
    ///
    /// The state is that of the moment of this call, at the time of the decision: other requests
    /// may have taken permits since.
    ///
    /// # Cost
    ///
    /// Looks at each limit of the rules, and may divide.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let rule = Rule::new("all").limit("10/s".parse()?).limit("12/m".parse()?);
    /// let policy = Policy::new([rule]).unwrap();
    /// let request = Request::new("GET", "/").cost(10);
    /// let decision = policy.decide_at(Timestamp::from_secs(1), &request);
    /// assert_eq!(decision.status().unwrap().remaining, 0);
    /// let decision = policy.decide_at(Timestamp::from_secs(9), &request.cost(2));
    /// assert_eq!(decision.status().unwrap().limit.count(), 12);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn status(&self) -> Option<Status<'p>> {
        if let Outcome::Denied {
            limit: Some(limit), ..
        } = self.parts.outcome
        {
            return self.status_of((self.parts.rule()?, self.parts.place?), limit);
        }
        self.statuses().min_by(|a, b| {
            let left = |status: &Status<'_>| (status.remaining, status.limit.capacity());
            compare_shares(left(a), left(b))
        })
    }

    /// Returns what is left of each limit that was asked, in the order of the rules and of their
    /// limits. The state is that of the moment of this call, as that of [`status`](Self::status).
    ///
    /// # Cost
    ///
    /// Looks at each limit of the rule. Divides.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let rule = Rule::new("all").limit("10/s".parse()?).limit("12/m".parse()?);
    /// let policy = Policy::new([rule]).unwrap();
    /// let decision = policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", "/"));
    /// assert!(decision.statuses().map(|status| status.remaining).eq([9, 11]));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn statuses(&self) -> impl Iterator<Item = Status<'p>> {
        let policy = self.policy;
        let states = self
            .asked()
            .filter_map(|(rule, place)| Some((rule, place?)));
        states.flat_map(move |(rule, place)| {
            let limits = policy.rules[rule as usize].limits_at(place).len();
            (0..limits).filter_map(move |limit| self.status_of((rule, place), limit))
        })
    }

    /// The index of each rule that limits the request, the rule, and its limits in this process for
    /// the request's key.
    pub(crate) fn asked_limits(&self) -> impl Iterator<Item = (usize, &'p Rule, &'p [Limit])> {
        let rules = &self.policy.rules;
        self.asked().map(|(rule, place)| {
            let active = &rules[rule as usize];
            let limits = place.map_or(&[][..], |place| active.limits_at(place));
            (rule as usize, &active.rule, limits)
        })
    }

    fn status_of(&self, (rule, place): (u32, Place), index: usize) -> Option<Status<'p>> {
        let active = &self.policy.rules[rule as usize];
        let store = active.store_at(place);
        Some(Status {
            rule: &active.rule,
            limit: active.limits_at(place).get(index)?,
            index,
            remaining: remaining(store, place, index, self.parts.now),
            reset: store.full_at(place.at, index, self.parts.now),
        })
    }

    /// Returns when to retry, after a denial by a limit or a penalty. `None` if the request was
    /// allowed, or was denied for another reason.
    ///
    /// # Cost
    ///
    /// Looks at each limit of the rule, and divides.
    ///
    /// ```
    /// # use portcullis_core::{Retry, Timestamp};
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("all").limit("1/s".parse()?)]).unwrap();
    /// let decide = || policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", "/"));
    /// assert_eq!(decide().retry(), None);
    /// assert_eq!(decide().retry(), Some(Retry::At(Timestamp::from_secs(2))));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn retry(&self) -> Option<Retry> {
        let Outcome::Denied { limit, denied } = self.parts.outcome else {
            return None;
        };
        let by = StoreDenied { limit, denied };
        let own = self.state().map(|(store, at)| store.retry(at, by));
        self.retry_after(own)
    }

    /// When to retry after a denial: the latest of `own`, and of when each other rule in this
    /// process has the permits.
    pub(crate) fn retry_after(&self, own: Option<Retry>) -> Option<Retry> {
        let (now, n) = (self.parts.now, self.parts.cost);
        let others = self.others().iter();
        let others = others.filter_map(|part| part.state(self.policy));
        let others = others.map(|(store, place)| store.retry_for(place.at, now, n));
        own.into_iter()
            .chain(others)
            .reduce(|all, one| all.longer(one, now))
    }

    /// Returns the limits that the request was judged by: those of the rule, or of the
    /// [override](Rule::override_key) for the request's key. Empty if no limit was asked.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Key, Policy, Request, Rule};
    /// let rule = Rule::new("methods").key(Key::method()).limit("1/s".parse()?);
    /// let policy = Policy::new([rule.override_key(["GET"], ["5/s".parse()?])]).unwrap();
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert_eq!((decision.limits()[0].count(), decision.is_overridden()), (5, true));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn limits(&self) -> &'p [Limit] {
        match (self.active(), self.parts.place) {
            (Some(active), Some(place)) => active.limits_at(place),
            _ => &[],
        }
    }

    /// Returns whether the limits are those of an [override](Rule::override_key) for the request's
    /// key; if the rule that decided has a store, whether one of these denied the request.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("all").limit("1/s".parse()?)]).unwrap();
    /// assert!(!policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/")).is_overridden());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn is_overridden(&self) -> bool {
        let active = self.active();
        let is_overridden = active.is_some_and(|active| active.is_overridden(self.parts.place));
        is_overridden || self.parts.own.is_some_and(Own::is_overridden_in_store)
    }

    /// Returns the index of the rule that decided, in [`Policy::rules`].
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Conditions, Policy, Request, Rule};
    /// let rules = [Rule::new("a").when(Conditions::new().paths(["/a"])), Rule::new("all")];
    /// let policy = Policy::new(rules).unwrap();
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert_eq!(decision.rule_index(), Some(1));
    /// ```
    pub fn rule_index(&self) -> Option<usize> {
        Some(self.parts.rule()? as usize)
    }

    /// Notes what a store decided: the rule and its limit that denied, if one did. Then what was
    /// taken of other rules is given back.
    pub(crate) fn conclude(&mut self, clock: &dyn Clock, denied_by: Option<DeniedInStore>) {
        let (now, permits) = (self.parts.now, self.parts.cost);
        let Some(DeniedInStore {
            rule,
            instead,
            limit,
        }) = denied_by
        else {
            self.parts.outcome = Outcome::Allowed;
            return;
        };
        self.give_back_others(clock);
        self.decide_by(rule);
        let overridden = instead.map_or(0, |_| Own::OVERRIDDEN_IN_STORE);
        self.parts.own = Some(Own(rule | overridden));
        self.parts.outcome = Outcome::Denied {
            limit: Some(limit),
            denied: Denied::Exhausted { now, permits },
        };
    }

    /// Notes that a shadow rule would have denied the request.
    pub(crate) fn note_shadow(&mut self, denial: ShadowDenial) {
        // The first by priority, in whatever order they were asked and the stores answered.
        let first = self.parts.shadow_denied;
        if first.is_none_or(|first| denial.rule < first.rule) {
            self.parts.shadow_denied = Some(denial);
        }
    }

    /// The time of the decision.
    #[cfg(feature = "metrics")]
    pub(crate) fn decided_at(&self) -> Timestamp {
        self.parts.now
    }

    /// The limit that denied.
    #[cfg(feature = "tracing")]
    pub(crate) fn denied_by(&self) -> Option<&'p Limit> {
        match self.parts.outcome {
            Outcome::Denied {
                limit: Some(limit), ..
            } => self.active()?.limits_at(self.parts.place?).get(limit),
            _ => None,
        }
    }

    /// The state of the request's key, and where in it.
    pub(crate) fn state(&self) -> Option<(&'p Store, Address)> {
        let (place, rule) = (self.parts.place?, self.parts.own?);
        Some((
            self.policy.rules[rule.in_process()].store_at(place),
            place.at,
        ))
    }

    /// Notes that the rule that denied has granted the permits at `now`, after a wait, and takes
    /// from the others. Returns whether all of them are granted. If not, sets whether the request
    /// can wait for the rule that denies now.
    #[cfg(feature = "queue")]
    pub(crate) fn grant_at(&mut self, now: Timestamp, can_wait: &mut bool) -> bool {
        if self.parts.others.is_some() {
            self.take_from_all(now, &mut How::OrWait(can_wait), self.parts.rule());
            return self.is_taken();
        }
        self.parts.now = now;
        self.parts.outcome = Outcome::Allowed;
        true
    }

    /// Takes the permits at `now`, after a wait that ended without a grant. Returns whether they
    /// were granted.
    #[cfg(feature = "queue")]
    pub(crate) fn take_after_wait(&mut self, now: Timestamp) -> bool {
        if self.parts.others.is_some() {
            self.take_from_all(now, &mut How::Take, None);
            return self.is_taken();
        }
        let Some((store, at)) = self.state() else {
            return false;
        };
        self.parts.now = now;
        self.parts.outcome = match store.take_after_wait(at, now, self.parts.cost) {
            Ok(()) => Outcome::Allowed,
            Err(StoreDenied { limit, denied }) => Outcome::Denied { limit, denied },
        };
        self.is_allowed()
    }

    /// Notes that the request is denied at `now`, after a wait or because it cannot wait.
    #[cfg(feature = "queue")]
    pub(crate) fn deny_after_wait(&mut self, now: Timestamp) {
        if let Some((store, at)) = self.state() {
            store.penalize(at, now);
        }
        self.parts.now = now;
        if let Outcome::Denied { denied, .. } = &mut self.parts.outcome {
            let permits = self.parts.cost;
            *denied = Denied::Exhausted { now, permits };
        }
    }

    /// The permits that each limit was asked for.
    pub(crate) fn cost(&self) -> u32 {
        self.parts.cost
    }

    pub(crate) fn active(&self) -> Option<&'p Active> {
        Some(&self.policy.rules[self.parts.rule()? as usize])
    }
}

/// The permits that a limit has left. The one place that asks for them.
fn remaining(store: &Store, place: Place, limit: usize, now: Timestamp) -> u64 {
    store.detail(place.at, limit, now, 0).available
}

impl Parts {
    /// Returns the permits of limits at once.
    #[inline]
    fn release(&self, policy: &Policy) {
        if let (Outcome::Allowed, Some(place), Some(rule)) = (self.outcome, self.place, self.own) {
            let store = policy.rules[rule.in_process()].store_at(place);
            store.release(place.at, self.cost);
        }
        if self.shadows.is_some() || self.others.is_some() {
            self.release_others(policy);
        }
    }

    /// Whether permits return by release.
    #[inline]
    fn holds_permits(&self, policy: &Policy) -> bool {
        let of_rule = || match (self.outcome, self.place, self.own) {
            (Outcome::Allowed, Some(place), Some(rule)) => {
                policy.rules[rule.in_process()].store_at(place).releases()
            }
            _ => false,
        };
        let of_others = || self.others.is_some() && self.others_hold_permits(policy);
        self.shadows.is_some() || of_rule() || of_others()
    }
}

impl Drop for Decision<'_> {
    #[inline]
    fn drop(&mut self) {
        self.parts.release(self.policy);
    }
}

shows!(['a] Decision<'a>, "Decision", self:
    "outcome" => self.parts.outcome,
    "rule" => self.rule().map(Rule::name),
    "shadow_denied" => self.shadow_denied().map(Rule::name)
);
