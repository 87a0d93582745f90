//! Policies from files of our own format, with errors that point into the file.
//!
//! TOML and JSON are read as one tree: see [`document`](crate::document). So the same settings give
//! the same policy and the same errors in both.

use core::time::Duration;

use crate::conditions::Conditions;
#[cfg(feature = "json")]
use crate::document::Names;
use crate::document::{Reader, RuleNumber, Span, Table, Text, Value, words};
use crate::key::Key;
use crate::limit::{Algorithm, Limit, QueueOrder};
use crate::path::{PathReading, PathRules};
use crate::period::{parse_count, parse_period};
use crate::policy::Policy;
use crate::problem::FileError;
use crate::request::Kind;
use crate::rule::{OnMissing, Rule};
use crate::settings::PolicySettings;
use crate::thresholds::Threshold;

/// The settings of a file. Editors read the first one.
const FILE: &str = "$schema paths table_bytes stores serve rules";

/// The settings of `paths`.
const PATHS: &str = "ignore_case decode_slashes reading";

/// The settings of a rule.
const RULE: &str = "\
    name priority kind methods paths hosts tiers properties key on_missing keys limits overrides \
    thresholds penalty hold exempt shadow continue enabled message status headers etag store sync";

/// The settings of a limit.
const LIMIT: &str = "\
    rate at_once algorithm burst initial refill segments strict wait debt queue queue_order name";

/// What is wrong with a limit that has both of these settings, or neither.
const RATE_OR_AT_ONCE: &str = "limits: a limit has either `rate` or `at_once`";

/// The settings of an override.
const OVERRIDE: &str = "key limits";

/// The settings of a threshold.
const THRESHOLD: &str = "at decision hold segments";

/// The settings of `exempt`.
const EXEMPT: &str = "headers properties networks";

const KINDS: [(&str, Kind); 5] = [
    ("request", Kind::Request),
    ("ingress", Kind::Ingress),
    ("egress", Kind::Egress),
    ("burst", Kind::Burst),
    ("concurrency", Kind::Concurrency),
];

const ON_MISSING: [(&str, OnMissing); 4] = [
    ("need-address", OnMissing::NeedAddress),
    ("share", OnMissing::Share),
    ("deny", OnMissing::Deny),
    ("skip", OnMissing::Skip),
];

const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("token-bucket", Algorithm::TokenBucket),
    ("fixed-window", Algorithm::FixedWindow),
    ("window-from-request", Algorithm::WindowFromRequest),
    ("sliding-window", Algorithm::SlidingWindow { segments: 8 }),
];

/// How the permits of a token bucket come in: whether by steps.
const REFILLS: [(&str, bool); 2] = [("continuous", false), ("stepwise", true)];

const READINGS: [(&str, PathReading); 3] = [
    ("either", PathReading::Either),
    ("literal", PathReading::Literal),
    ("resolved", PathReading::Resolved),
];

const QUEUE_ORDERS: [(&str, QueueOrder); 2] = [
    ("oldest-first", QueueOrder::OldestFirst),
    ("newest-first", QueueOrder::NewestFirst),
];

impl Policy {
    /// Puts the rules of a file in TOML in force.
    ///
    /// ```toml
    /// # How much memory the tables of all rules may take. This is the default.
    /// table_bytes = 1073741824
    ///
    /// # The counter stores that the program has, for rules with a `store`.
    /// stores = ["shared"]
    ///
    /// # The settings of the program `portcullis-serve`, which alone reads them.
    /// [serve]
    ///
    /// # How the service reads paths. These are the defaults.
    /// [paths]
    /// reading = "either"            # or literal, resolved
    /// ignore_case = false
    /// decode_slashes = false
    ///
    /// [[rules]]
    /// name = "login"
    /// # All of these may be left out.
    /// priority = 10                 # the lowest number decides; default 0
    /// kind = "request"              # or ingress, egress, burst, concurrency
    /// methods = ["POST"]
    /// paths = ["/login", "/v1/*/session/**"]
    /// hosts = ["*.example.com", "10.0.0.0/8"]
    /// tiers = ["free"]
    /// properties = { region = ["eu", "us"] }
    /// key = ["address/32/64", "header:X-Tenant"]
    /// on_missing = "need-address"   # or share, deny, skip
    /// keys = 1000                   # that can be in use at once
    /// limits = [
    ///     "5/m",
    ///     { rate = "100/d", algorithm = "sliding-window", segments = 24, name = "a day" },
    ///     { at_once = 3 },
    /// ]
    /// overrides = [                 # other limits for given keys
    ///     { key = ["192.0.2.9", "gold"], limits = ["100/m"] },
    /// ]
    /// thresholds = [{ at = "100/10s", decision = "captcha", hold = "1m", segments = 10 }]
    /// penalty = "10m"
    /// hold = "30s"                  # how long a request may hold an estimate of its cost
    /// exempt = { headers = { Oc-Client = ["admin"] }, networks = ["192.0.2.7"] }
    /// shadow = false
    /// continue = false              # true: the next rule that matches limits the request as well
    /// enabled = true
    /// message = "Slow down."
    /// status = 429
    /// headers = true                # responses state the limits
    /// etag = "v7"
    ///
    /// [[rules]]
    /// name = "clients"
    /// priority = 20
    /// paths = ["/items/**"]
    /// key = ["header:X-Api-Key"]
    /// limits = ["1000/h"]
    /// store = "shared"              # the state of the limits is in this counter store
    /// sync = true                   # tells other instances of denials; default false
    /// ```
    ///
    /// - A part of a key is `address`, `address/V4/V6` with the lengths of prefixes, `path`,
    ///   `host`, `method`, `tier`, `header:NAME`, `header:A|B` for the first of several headers
    ///   that a request has, or `property:NAME`.
    /// - A limit is a rate, or a table with `rate` or `at_once`. An algorithm is `token-bucket`
    ///   (the default), `fixed-window`, `window-from-request` or `sliding-window`. A token bucket
    ///   can have a `burst`, a `debt` and a `refill`, `continuous` (the default) or `stepwise`: see
    ///   [`Limit::stepwise`]. In a rule without a `key`, and in an override, it can have `initial`
    ///   permits: see [`Limit::initial`]. A sliding window has `segments` (default 8), and can be
    ///   `strict`: see [`Limit::strict`]. A window from a request can have a `wait`.
    /// - With the feature `queue`, a limit can have a `queue`, the number of permits that requests
    ///   with one key can wait for, and a `queue_order`, `oldest-first` (the default) or
    ///   `newest-first`: see [`Limit::queue`].
    /// - An override has a `key`, with a value for each part of the rule's key, and `limits`: see
    ///   [`Rule::override_key`].
    /// - A threshold has a sum of activity and a window, a decision and how long it holds at least.
    ///   The window has 1 to 16 segments (default 10): see [`Threshold`].
    /// - A client is exempt by its `headers`, its `properties` or its `networks`.
    /// - A rule with a `store` is decided by [`Policy::decide_stored`]. The program gives the
    ///   policy its [`Stores`](crate::Stores), of which the file lists the names.
    /// - A period is a unit, or a whole number and a unit: see [`parse_period`].
    ///
    /// # Errors
    ///
    /// All errors of the file, in their order: text that is not TOML, settings that are unknown or
    /// set twice, and values that are not valid.
    ///
    /// ```
    /// use portcullis_policy::Policy;
    ///
    /// let policy = Policy::from_toml(r#"
    ///     [[rules]]
    ///     name = "login"
    ///     paths = ["/login"]
    ///     key = ["address"]
    ///     limits = ["5/m", "20/h"]
    /// "#).unwrap();
    /// assert_eq!(policy.rule("login").unwrap().limits().len(), 2);
    ///
    /// let errors = Policy::from_toml("[[rules]]\nname = 'a'\nlimit = ['5/m']\n").unwrap_err();
    /// assert_eq!(
    ///     errors[0].in_file("policy.toml").to_string(),
    ///     "policy.toml:3:1: limit is not a setting of a rule: did you mean limits?"
    /// );
    /// ```
    #[cfg(feature = "toml")]
    pub fn from_toml(text: &str) -> Result<Self, Vec<FileError>> {
        let (reader, file) = Reader::toml(text);
        policy(reader, file)
    }

    /// Puts the rules of a file in JSON in force. Comments and trailing commas are allowed.
    ///
    /// ```json
    /// {
    ///     "$schema": "portcullis-policy.schema.json",
    ///     "paths": { "ignore_case": false },
    ///     "table_bytes": 1073741824,
    ///     "rules": [
    ///         {
    ///             "name": "login",
    ///             "paths": ["/login"],
    ///             "key": ["address"],
    ///             // Both at once.
    ///             "limits": ["5/m", { "rate": "20/h", "name": "an hour" }],
    ///         },
    ///     ],
    /// }
    /// ```
    ///
    /// The settings are those of [`from_toml`](Self::from_toml).
    ///
    /// # Errors
    ///
    /// All errors of the file, in their order: text that is not JSON, settings that are unknown or
    /// set twice, and values that are not valid. Of text that is not JSON, only the first error may
    /// be reported.
    ///
    /// ```
    /// use portcullis_policy::Policy;
    ///
    /// let policy = Policy::from_json(r#"{ "rules": [{ "name": "all", "limits": ["5/m"] }] }"#);
    /// assert_eq!(policy.unwrap().rule("all").unwrap().limits().len(), 1);
    ///
    /// let errors = Policy::from_json(r#"{ "rules": [{ "name": "all", "limit": [] }] }"#);
    /// assert_eq!(
    ///     errors.unwrap_err()[0].in_file("policy.json").to_string(),
    ///     "policy.json:1:30: limit is not a setting of a rule: did you mean limits?"
    /// );
    /// ```
    #[cfg(feature = "json")]
    pub fn from_json(text: &str) -> Result<Self, Vec<FileError>> {
        let (reader, file) = Reader::json(text, Names::Exact);
        policy(reader, file)
    }
}

fn policy<'t>(reader: Reader<'t>, file: Option<Table<'t>>) -> Result<Policy, Vec<FileError>> {
    let Some(file) = file else {
        return Err(reader.into_errors());
    };
    let mut reader = FileReader {
        reader,
        stores: Some(Vec::new()),
    };
    let (rules, settings) = reader.file(&file);
    reader.reader.into_policy(rules, settings)
}

struct FileReader<'t> {
    reader: Reader<'t>,
    /// The names of the counter stores that the file lists. `None` if they could not be read.
    stores: Option<Vec<Box<str>>>,
}

/// The settings of a rule, which are read by name.
struct Settings<'v, 't> {
    table: &'v Table<'t>,
    /// `None` for the settings of a limit or a threshold.
    rule: Option<RuleNumber>,
}

impl<'v, 't> Settings<'v, 't> {
    fn get(&self, name: &str) -> Option<&'v Value<'t>> {
        self.table.get(name)
    }
}

/// Returns `of` as `set` makes it of a value, if there is one.
fn set<T, V>(of: T, value: Option<V>, set: impl FnOnce(T, V) -> T) -> T {
    match value {
        Some(value) => set(of, value),
        None => of,
    }
}

/// The settings of a limit besides its permits.
struct LimitParts<'v> {
    algorithm: Option<Algorithm>,
    segments: Option<u32>,
    is_strict: bool,
    burst: Option<u64>,
    initial: Option<u64>,
    refill: Option<bool>,
    wait: Option<Duration>,
    debt: Option<u64>,
    queue: Option<u64>,
    queue_order: Option<QueueOrder>,
    name: Option<&'v str>,
}

impl LimitParts<'_> {
    /// Sets what a limit does beyond its rate: its wait, its debt, its queue; and its name.
    fn beyond_rate(self, limit: Limit) -> Limit {
        let limit = set(limit, self.wait, Limit::wait);
        let limit = set(limit, self.debt, Limit::debt);
        let limit = set(limit, self.queue, Limit::queue);
        let limit = set(limit, self.queue_order, Limit::queue_order);
        set(limit, self.name, Limit::named)
    }
}

impl<'t> FileReader<'t> {
    fn file(&mut self, file: &Table<'t>) -> (Vec<Rule>, PolicySettings) {
        let since = self.reader.noted();
        self.reader.known(file, "a policy", FILE);
        let all = Settings {
            table: file,
            rule: None,
        };
        self.text(&all, "$schema");
        if let Some(of_program) = file.get("serve") {
            // The program reads them.
            self.reader.table(of_program, "serve");
        }
        let path_rules = self.path_rules(&all);
        let settings = PolicySettings::new().path_rules(path_rules);
        let bytes = self.number(&all, "table_bytes", i64::MAX as u64);
        let settings = set(settings, bytes, |settings, bytes| {
            settings.table_bytes(usize::try_from(bytes).unwrap_or(usize::MAX))
        });
        let stores = self.texts(&all, "stores");
        let unread = self.reader.unread(file, FILE, since);
        let are_read = !unread.contains(&"stores");
        self.stores = are_read.then(|| stores.into_iter().map(Into::into).collect());
        let mut rules = Vec::new();
        if file.get("rules").is_none() && !unread.contains(&"rules") {
            // A file that was cut off, or is not yet written, must not lift all limits.
            self.reader.refuse(
                Span { start: 0, end: 0 },
                "rules is missing; a policy without rules has an empty array",
            );
        }
        for value in self.tables(file.get("rules"), "rules") {
            rules.extend(self.rule(value));
        }
        (rules, settings)
    }

    fn path_rules(&mut self, of_file: &Settings<'_, 't>) -> PathRules {
        let rules = PathRules::new();
        let Some(table) = self.table(of_file.get("paths"), "paths", PATHS) else {
            return rules;
        };
        let settings = Settings { table, rule: None };
        let reading = self.choice(&settings, "reading", &READINGS);
        let mut rules = set(rules, reading, PathRules::reading);
        if self.is(&settings, "ignore_case", true) {
            rules = rules.ignoring_case();
        }
        if self.is(&settings, "decode_slashes", true) {
            rules = rules.decoding_slashes();
        }
        rules
    }

    fn rule(&mut self, value: &Value<'t>) -> Option<Rule> {
        let table = self.reader.table(value, "rules")?;
        let since = self.reader.noted();
        let of_file = |name: &str| {
            let is_known = words(FILE).any(|known| known == name);
            is_known.then_some("it is one of the file: in TOML, put it above the first [[rules]]")
        };
        self.reader.known_or(table, "a rule", RULE, of_file);
        let Some(name) = table.get("name") else {
            if !self.reader.unread(table, RULE, since).contains(&"name") {
                let message = "name is missing in this rule";
                self.reader.refuse(value.span, message);
            }
            return None;
        };
        let name = self.reader.text(name, "name")?;
        let number = self.reader.rule(name);
        for (setting, value) in table.iter() {
            self.reader.note(number, &setting.text, None, value.span);
        }
        let settings = Settings {
            table,
            rule: Some(number),
        };
        let mut rule = Rule::new(name).when(self.conditions(&settings));
        rule = self.numbers(&settings, rule);
        rule = self.key_of(&settings, number, rule);
        if let Some(value) = settings.get("limits") {
            let limits = self.limits(number, "limits", value);
            rule = limits.into_iter().fold(rule, Rule::limit);
        }
        rule = self.overrides(&settings, number, rule);
        rule = self.thresholds(&settings, number, rule);
        rule = self.consequences(&settings, rule);
        rule = self.flags(&settings, rule);
        rule = self.exempt(&settings, rule);
        rule.left_out = self.reader.unread(table, RULE, since);
        Some(rule)
    }

    /// Sets the numbers of a rule.
    fn numbers(&mut self, settings: &Settings<'_, 't>, rule: Rule) -> Rule {
        let rule = set(rule, self.small(settings, "priority"), Rule::priority);
        let keys = self.small(settings, "keys");
        let rule = set(rule, keys, |rule, keys| rule.keys(keys as usize));
        let status = self.number(settings, "status", u16::MAX.into());
        set(rule, status, |rule, status| rule.with_status(status as u16))
    }

    /// Sets the key of a rule.
    fn key_of(&mut self, settings: &Settings<'_, 't>, number: RuleNumber, mut rule: Rule) -> Rule {
        if let Some(value) = settings.get("key") {
            for part in value.as_array().unwrap_or_default() {
                let names = part.as_text().and_then(|text| text.strip_prefix("header:"));
                for name in names.iter().flat_map(|names| names.split('|')) {
                    self.reader.note(number, "key", Some(name), part.span);
                }
            }
            rule = rule.key(self.key(value));
        }
        let on_missing = self.choice(settings, "on_missing", &ON_MISSING);
        set(rule, on_missing, Rule::on_missing)
    }

    /// Adds the thresholds of a rule.
    fn thresholds(
        &mut self,
        settings: &Settings<'_, 't>,
        number: RuleNumber,
        mut rule: Rule,
    ) -> Rule {
        for value in self.tables(settings.get("thresholds"), "thresholds") {
            let setting = format!("thresholds[{}]", rule.thresholds.len());
            self.reader.note(number, &setting, None, value.span);
            rule = set(rule, self.threshold(value), Rule::threshold);
        }
        rule
    }

    /// Sets what follows from a denial, for how long a request may hold permits, and where the
    /// state is.
    fn consequences(&mut self, settings: &Settings<'_, 't>, rule: Rule) -> Rule {
        let rule = set(rule, self.period(settings, "penalty"), Rule::penalty);
        let rule = set(rule, self.period(settings, "hold"), Rule::hold);
        let rule = set(rule, self.text(settings, "message"), Rule::with_message);
        let rule = set(rule, self.text(settings, "etag"), Rule::with_etag);
        match settings.get("store") {
            Some(value) => self.store(value, rule),
            None => rule,
        }
    }

    /// Sets what a rule has or has not.
    fn flags(&mut self, settings: &Settings<'_, 't>, rule: Rule) -> Rule {
        let mut flag = |rule, name, value, change: fn(Rule) -> Rule| {
            if self.is(settings, name, value) {
                change(rule)
            } else {
                rule
            }
        };
        let rule = flag(rule, "shadow", true, Rule::shadow);
        let rule = flag(rule, "continue", true, Rule::continuing);
        let rule = flag(rule, "headers", false, Rule::without_headers);
        let rule = flag(rule, "enabled", false, Rule::disabled);
        flag(rule, "sync", true, Rule::synced)
    }

    fn conditions(&mut self, settings: &Settings<'_, 't>) -> Conditions {
        let kind = self.choice(settings, "kind", &KINDS);
        let mut conditions = set(Conditions::new(), kind, Conditions::kind)
            .methods(self.texts(settings, "methods"))
            .paths(self.texts(settings, "paths"))
            .hosts(self.texts(settings, "hosts"))
            .tiers(self.texts(settings, "tiers"));
        for (name, values) in self.named_texts(settings.get("properties"), "properties") {
            self.note(settings, "properties", &name.text, name.span);
            conditions = conditions.property(&*name.text, values);
        }
        conditions
    }

    /// Sets the store of a rule, which must be one of those that the file lists.
    fn store(&mut self, value: &Value<'t>, rule: Rule) -> Rule {
        let Some(stores) = &self.stores else {
            // Whether the file lists it is unknown.
            return set(rule, self.reader.text(value, "store"), Rule::stored_in);
        };
        if stores.is_empty() {
            let problem = "is not known: list the stores that the program has in `stores`";
            self.reader.invalid(value, "store", problem);
            return rule;
        }
        let stores: Vec<(&str, &str)> = stores.iter().map(|name| (&**name, &**name)).collect();
        let store = self.reader.choice(value, "store", &stores);
        set(rule, store, Rule::stored_in)
    }

    fn key(&mut self, value: &Value<'t>) -> Key {
        let mut key = Key::shared();
        for value in self.reader.array(value, "key", "an array of strings") {
            let Some(text) = self.reader.text(value, "key") else {
                continue;
            };
            match key_part(text) {
                Some(part) => key = key.and(part),
                None => self.reader.invalid(
                    value,
                    "key",
                    "is not a part of a key: expected address, address/V4/V6, path, host, method, \
                     tier, header:NAME, header:A|B or property:NAME",
                ),
            }
        }
        key
    }

    fn exempt(&mut self, settings: &Settings<'_, 't>, mut rule: Rule) -> Rule {
        let Some(table) = self.table(settings.get("exempt"), "exempt", EXEMPT) else {
            return rule;
        };
        for (name, values) in self.named_texts(table.get("headers"), "headers") {
            self.note(settings, "exempt_headers", &name.text, name.span);
            rule = rule.exempt_header(&name.text, values);
        }
        for (name, values) in self.named_texts(table.get("properties"), "properties") {
            rule = rule.exempt_property(&name.text, values);
        }
        if let Some(value) = table.get("networks") {
            for (network, span) in self.reader.texts(value, "networks") {
                self.note(settings, "exempt_networks", network, span);
                rule = rule.exempt_networks([network]);
            }
        }
        rule
    }

    /// The limits of a rule or of an override, whose places are noted. `setting` is the name that
    /// a policy has for them.
    fn limits(&mut self, rule: RuleNumber, setting: &str, value: &Value<'t>) -> Vec<Limit> {
        let limits = self.reader.array(value, "limits", "an array");
        let limit = |(index, value): (usize, &Value<'t>)| {
            let setting = format!("{setting}[{index}]");
            self.reader.note(rule, &setting, None, value.span);
            let initial = value.as_table().and_then(|table| table.get("initial"));
            if let Some(initial) = initial {
                let setting = format!("{setting}.initial");
                self.reader.note(rule, &setting, None, initial.span);
            }
            // An invalid limit keeps its place, so that others keep theirs. A rate is valid in
            // every rule, so what stands there is not refused a second time.
            let in_its_place = || Limit::per(1, Duration::from_secs(1));
            self.limit(value).unwrap_or_else(in_its_place)
        };
        limits.iter().enumerate().map(limit).collect()
    }

    /// Adds the overrides of a rule, whose places are noted.
    fn overrides(
        &mut self,
        settings: &Settings<'_, 't>,
        number: RuleNumber,
        mut rule: Rule,
    ) -> Rule {
        for value in self.tables(settings.get("overrides"), "overrides") {
            let Some(table) = self.reader.table(value, "overrides") else {
                continue;
            };
            let since = self.reader.noted();
            self.reader.known(table, "an override", OVERRIDE);
            // An override that is refused here has no index.
            let setting = format!("overrides[{}]", rule.overrides.len());
            self.reader.note(number, &setting, None, value.span);
            let (Some(key), Some(limits)) = (table.get("key"), table.get("limits")) else {
                let message = "overrides: an override has a `key` and `limits`";
                let names = ["key", "limits"];
                self.missing(table, (OVERRIDE, since), &names, value.span, message);
                continue;
            };
            let limits = self.limits(number, &format!("{setting}.limits"), limits);
            let values = key.as_array().map(<[_]>::len);
            let key = self.reader.texts(key, "key");
            if values == Some(key.len()) {
                rule = rule.override_key(key.into_iter().map(|(text, _)| text), limits);
            }
        }
        rule
    }

    fn limit(&mut self, value: &Value<'t>) -> Option<Limit> {
        if value.as_text().is_some() {
            return self.rate(value);
        }
        let Some(table) = value.as_table() else {
            let expected = format!("a rate such as \"10/s\", or {}", self.reader.words.a_table);
            self.reader.expected(value, "limits", &expected);
            return None;
        };
        let since = self.reader.noted();
        self.reader.known(table, "a limit", LIMIT);
        let settings = Settings { table, rule: None };
        let limit = match (settings.get("rate"), settings.get("at_once")) {
            (Some(rate), None) => self.rate(rate),
            (None, Some(_)) => self.small(&settings, "at_once").map(Limit::at_once),
            (Some(_), Some(_)) => {
                self.reader.refuse(value.span, RATE_OR_AT_ONCE);
                None
            }
            (None, None) => {
                let either = ["rate", "at_once"];
                self.missing(table, (LIMIT, since), &either, value.span, RATE_OR_AT_ONCE);
                None
            }
        };
        let parts = self.parts_of_limit(&settings);
        // What the settings say together is judged once each could be read.
        let limit = limit.filter(|_| self.reader.noted() == since)?;
        let limit = self.algorithm(&settings, &parts, limit);
        let limit = self.bucket(&settings, &parts, limit);
        Some(parts.beyond_rate(limit))
    }

    /// Reads the settings of a limit besides its permits.
    fn parts_of_limit<'v>(&mut self, settings: &Settings<'v, 't>) -> LimitParts<'v> {
        LimitParts {
            algorithm: self.choice(settings, "algorithm", &ALGORITHMS),
            segments: self.small(settings, "segments"),
            is_strict: self.is(settings, "strict", true),
            burst: self.large(settings, "burst"),
            initial: self.large(settings, "initial"),
            refill: self.choice(settings, "refill", &REFILLS),
            wait: self.period(settings, "wait"),
            debt: self.large(settings, "debt"),
            queue: self.large(settings, "queue"),
            queue_order: self.choice(settings, "queue_order", &QUEUE_ORDERS),
            name: self.text(settings, "name"),
        }
    }

    /// Sets the algorithm of a limit, the segments of its window, and whether it is strict.
    fn algorithm(
        &mut self,
        settings: &Settings<'_, 't>,
        parts: &LimitParts<'_>,
        limit: Limit,
    ) -> Limit {
        let mut limit = limit.algorithm_of(parts.algorithm.unwrap_or_default());
        let is_sliding = matches!(limit.algorithm(), Algorithm::SlidingWindow { .. });
        if let Some(segments) = parts.segments {
            if is_sliding {
                limit = limit.algorithm_of(Algorithm::SlidingWindow { segments });
            } else {
                let problem = "has no effect: only a sliding-window has segments";
                self.invalid(settings, "segments", problem);
            }
        }
        if settings.get("strict").is_some() && (!is_sliding || limit.period().is_none()) {
            let problem = "has no effect: only a sliding-window can be strict";
            self.invalid(settings, "strict", problem);
        } else if parts.is_strict {
            limit = limit.strict();
        }
        limit
    }

    /// Sets the burst, the initial permits and the refill of a token bucket. Those of another limit
    /// are refused when the rules are.
    fn bucket(
        &mut self,
        settings: &Settings<'_, 't>,
        parts: &LimitParts<'_>,
        limit: Limit,
    ) -> Limit {
        let limit = set(limit, parts.burst, Limit::burst);
        let mut limit = set(limit, parts.initial, Limit::initial);
        if let Some(is_stepwise) = parts.refill {
            if limit.algorithm() != Algorithm::TokenBucket || limit.period().is_none() {
                let problem = "has no effect: only a token-bucket is refilled";
                self.invalid(settings, "refill", problem);
            } else if is_stepwise {
                limit = limit.stepwise();
            }
        }
        limit
    }

    fn rate(&mut self, value: &Value<'_>) -> Option<Limit> {
        let limit = self.reader.text(value, "rate")?.parse();
        if limit.is_err() {
            let problem = "is not a rate: expected N/PERIOD, such as 60/m, 100/10s or 5/500ms \
                           (units: ms, s, m, h, d; whole numbers)";
            self.reader.invalid(value, "limits", problem);
        }
        limit.ok()
    }

    fn threshold(&mut self, value: &Value<'t>) -> Option<Threshold> {
        let table = self.reader.table(value, "thresholds")?;
        let since = self.reader.noted();
        self.reader.known(table, "a threshold", THRESHOLD);
        let settings = Settings { table, rule: None };
        let (Some(at), Some(decision)) = (settings.get("at"), settings.get("decision")) else {
            let message = "thresholds: a threshold has `at` and a `decision`";
            let names = ["at", "decision"];
            self.missing(table, (THRESHOLD, since), &names, value.span, message);
            return None;
        };
        let rate: Result<Limit, _> = self.reader.text(at, "at")?.parse();
        let parts = rate.ok().and_then(|rate| {
            let sum = u32::try_from(rate.count()).ok()?;
            Some((sum, rate.period()?))
        });
        let Some((sum, window)) = parts else {
            let problem = "is not N/PERIOD, such as 100/10s (N up to 4294967295; units: ms, s, m, h, d; \
                           whole numbers)";
            self.reader.invalid(at, "at", problem);
            return None;
        };
        let decision = self.reader.text(decision, "decision")?;
        let mut threshold = Threshold::new(sum, window, decision);
        if let Some(value) = settings.get("hold") {
            let hold = self.period(&settings, "hold")?;
            if hold.is_zero() {
                let problem = "has no effect: leave it out, or hold for longer than 0";
                self.reader.invalid(value, "hold", problem);
            }
            threshold = threshold.holding_for(hold);
        }
        let segments = self.small(&settings, "segments");
        Some(set(threshold, segments, Threshold::in_segments))
    }

    /// Notes that settings are missing, unless a name in the table, whose settings are `known`, is
    /// one of them misspelt, which was noted `since`.
    fn missing(
        &mut self,
        table: &Table<'t>,
        (known, since): (&str, usize),
        names: &[&str],
        span: Span,
        message: &str,
    ) {
        let unread = self.reader.unread(table, known, since);
        if !unread.iter().any(|name| names.contains(name)) {
            self.reader.refuse(span, message);
        }
    }

    /// Notes that a setting of a limit is not valid.
    fn invalid(&mut self, settings: &Settings<'_, 't>, name: &str, problem: &str) {
        if let Some(value) = settings.get(name) {
            self.reader.invalid(value, name, problem);
        }
    }

    /// Returns the table of a setting, whose own settings are `known`.
    fn table<'v>(
        &mut self,
        value: Option<&'v Value<'t>>,
        name: &str,
        known: &str,
    ) -> Option<&'v Table<'t>> {
        let table = self.reader.table(value?, name)?;
        self.reader.known(table, name, known);
        Some(table)
    }

    /// Returns the tables in the array of a setting.
    fn tables<'v>(&mut self, value: Option<&'v Value<'t>>, name: &str) -> &'v [Value<'t>] {
        let expected = format!("an array of {}", self.reader.words.tables);
        value.map_or(&[], |value| self.reader.array(value, name, &expected))
    }

    fn text<'v>(&mut self, settings: &Settings<'v, 't>, name: &str) -> Option<&'v str> {
        self.reader.text(settings.get(name)?, name)
    }

    /// Returns whether a setting is there and is `value`.
    fn is(&mut self, settings: &Settings<'_, 't>, name: &str, value: bool) -> bool {
        let set = settings.get(name);
        set.and_then(|set| self.reader.boolean(set, name)) == Some(value)
    }

    fn choice<T: Copy>(
        &mut self,
        settings: &Settings<'_, 't>,
        name: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        self.reader.choice(settings.get(name)?, name, choices)
    }

    fn number(&mut self, settings: &Settings<'_, 't>, name: &str, max: u64) -> Option<u64> {
        self.reader.number(settings.get(name)?, name, max)
    }

    /// Returns a number of 32 bits.
    fn small(&mut self, settings: &Settings<'_, 't>, name: &str) -> Option<u32> {
        let number = self.number(settings, name, u32::MAX.into());
        number.map(|number| number as u32)
    }

    /// Returns a number of 64 bits.
    fn large(&mut self, settings: &Settings<'_, 't>, name: &str) -> Option<u64> {
        self.number(settings, name, u64::MAX)
    }

    fn period(&mut self, settings: &Settings<'_, 't>, name: &str) -> Option<Duration> {
        let value = settings.get(name)?;
        let period = parse_period(self.reader.text(value, name)?);
        if let Err(error) = &period {
            let problem = format_args!("is not a period: {error}");
            self.reader.invalid(value, name, problem);
        }
        period.ok()
    }

    /// Notes where a value of a setting is.
    fn note(&mut self, settings: &Settings<'_, 't>, setting: &str, value: &str, span: Span) {
        if let Some(rule) = settings.rule {
            self.reader.note(rule, setting, Some(value), span);
        }
    }

    /// The strings of a setting of a rule, whose places are noted.
    fn texts<'v>(&mut self, settings: &Settings<'v, 't>, name: &str) -> Vec<&'v str> {
        let Some(value) = settings.get(name) else {
            return Vec::new();
        };
        let texts = self.reader.texts(value, name);
        for (text, span) in &texts {
            self.note(settings, name, text, *span);
        }
        texts.into_iter().map(|(text, _)| text).collect()
    }

    /// The arrays of strings in a table, without those that could not be read.
    fn named_texts<'v>(
        &mut self,
        value: Option<&'v Value<'t>>,
        setting: &str,
    ) -> Vec<(&'v Text<'t>, Vec<&'v str>)> {
        let Some(table) = value.and_then(|value| self.reader.table(value, setting)) else {
            return Vec::new();
        };
        let texts = |(name, value): (&'v Text<'t>, &'v Value<'t>)| {
            let since = self.reader.noted();
            let texts = self.reader.texts(value, &name.text);
            let is_read = self.reader.noted() == since;
            is_read.then(|| (name, texts.into_iter().map(|(text, _)| text).collect()))
        };
        table.iter().filter_map(texts).collect()
    }
}

fn key_part(text: &str) -> Option<Key> {
    Some(match text {
        "address" => Key::address(),
        "path" => Key::path(),
        "host" => Key::host(),
        "method" => Key::method(),
        "tier" => Key::tier(),
        _ => {
            let named = |prefix| {
                text.strip_prefix(prefix)
                    .filter(|name: &&str| !name.is_empty())
            };
            if let Some(names) = named("header:") {
                let all: Vec<&str> = names.split('|').collect();
                match &all[..] {
                    all if all.contains(&"") => return None,
                    [name] => Key::header(name),
                    all => Key::first_header(all.iter().copied()),
                }
            } else if let Some(name) = named("property:") {
                Key::property(name)
            } else {
                let (v4, v6) = text.strip_prefix("address/")?.split_once('/')?;
                let length = |text, max| {
                    let length = parse_count(text).ok()?;
                    (length <= max).then_some(length as u8)
                };
                Key::address_prefix(length(v4, 32)?, length(v6, 128)?)
            }
        }
    })
}

#[cfg(all(test, feature = "toml", feature = "json"))]
mod tests;
