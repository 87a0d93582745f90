//! Policies from files in TOML, with errors that point into the file.
//!
//! A reader walks the parsed file and builds rules. It notes where each setting stands, so that
//! errors that a [`Policy`] finds later point to their setting too. No error ends the walk: all
//! of them are reported.

use core::fmt;
use core::ops::Range;
use core::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{
    Algorithm, Conditions, Key, Kind, Limit, OnMissing, PathRules, Policy, Rule, RuleError,
    parse_count, parse_period,
};

type Value<'t> = Spanned<DeValue<'t>>;

impl Policy {
    /// Puts the rules of a file in force.
    ///
    /// ```toml
    /// # How paths are normalized. Both are off by default.
    /// [paths]
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
    /// on_missing = "share"          # or deny, skip
    /// keys = 1000                   # that can be in use at once
    /// limits = [
    ///     "5/m",
    ///     { rate = "100/d", algorithm = "sliding-window", segments = 24, name = "a day" },
    ///     { at_once = 3 },
    /// ]
    /// penalty = "10m"
    /// exempt = { headers = { Oc-Client = ["admin"] }, networks = ["192.0.2.7"] }
    /// shadow = false
    /// enabled = true
    /// message = "Slow down."
    /// status = 429
    /// etag = "v7"
    /// ```
    ///
    /// - A part of a key is `address`, `address/V4/V6` with the lengths of prefixes, `path`,
    ///   `host`, `method`, `tier`, `header:NAME` or `property:NAME`.
    /// - A limit is a rate, or a table with `rate` or `at_once`. An algorithm is `token-bucket`
    ///   (the default), `fixed-window`, `window-from-request` or `sliding-window`. A token bucket
    ///   can have a `burst`, a sliding window has `segments` (default 8), and a window from a
    ///   request can have a `wait`.
    /// - A client is exempt by its `headers`, its `properties` or its `networks`.
    /// - A period is a unit, or a whole number and a unit: see [`parse_period`].
    ///
    /// # Errors
    ///
    /// All errors of the file, in their order: text that is not TOML, settings that are unknown,
    /// and values that are not valid.
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
    pub fn from_toml(text: &str) -> Result<Self, Vec<FileError>> {
        let mut reader = Reader {
            text,
            errors: Vec::new(),
            places: Vec::new(),
        };
        let (file, syntax) = DeTable::parse_recoverable(text);
        for error in syntax {
            let at = error.span().unwrap_or(0..0);
            reader.errors.push((at.start, error.message().to_owned()));
        }
        // After an error of syntax the rest of the file may be misread.
        let (rules, path_rules) = if reader.errors.is_empty() {
            reader.file(file.get_ref())
        } else {
            (Vec::new(), PathRules::new())
        };
        match Self::with_path_rules(rules, path_rules) {
            Ok(policy) if reader.errors.is_empty() => return Ok(policy),
            Ok(_) => {}
            Err(errors) => {
                for error in errors {
                    let at = reader.place_of(&error);
                    let message = match &error.value {
                        Some(value) => format!("{}: `{value}` {}", error.setting, error.problem),
                        None => format!("{}: {}", error.setting, error.problem),
                    };
                    reader.errors.push((at, message));
                }
            }
        }
        reader.errors.sort();
        let errors = reader.errors.into_iter().map(|(at, message)| {
            let before = &text[..text.floor_char_boundary(at)];
            let line = before.rfind('\n').map_or(0, |newline| newline + 1);
            FileError {
                line: 1 + before.matches('\n').count(),
                column: 1 + before[line..].chars().count(),
                message,
            }
        });
        Err(errors.collect())
    }
}

/// An error in a file.
///
/// ```
/// use portcullis_policy::Policy;
/// let errors = Policy::from_toml("[[rules]]\nname = 'a'\nlimits = ['5/m', '5/year']\n");
/// let error = &errors.unwrap_err()[0];
/// assert_eq!((error.line, error.column), (3, 18));
/// assert!(error.message.starts_with("limits: `5/year` is not a rate: "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The setting, its value, and what is allowed.
    pub message: String,
}

impl FileError {
    /// Displays the error with the name of its file, in the form that editors understand.
    ///
    /// ```
    /// # use portcullis_policy::Policy;
    /// let errors = Policy::from_toml("rules = 1").unwrap_err();
    /// let text = errors[0].in_file("policy.toml").to_string();
    /// assert_eq!(text, "policy.toml:1:9: rules: expected an array of tables, not an integer");
    /// ```
    pub fn in_file(&self, name: &str) -> impl fmt::Display {
        format!("{name}:{self}")
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl core::error::Error for FileError {}

struct Reader<'t> {
    text: &'t str,
    /// Where in the text, and what.
    errors: Vec<(usize, String)>,
    places: Vec<Place>,
}

/// Where a setting, or one of its values, stands.
struct Place {
    rule: String,
    setting: String,
    value: Option<String>,
    at: usize,
}

/// A table whose settings are read by name.
struct Settings<'v, 't> {
    table: &'v DeTable<'t>,
    /// The rule that contains the table.
    rule: String,
}

impl<'v, 't> Settings<'v, 't> {
    fn get(&self, name: &str) -> Option<&'v Value<'t>> {
        self.table.get(name)
    }
}

impl Reader<'_> {
    fn refuse(&mut self, at: &Range<usize>, message: String) {
        self.errors.push((at.start, message));
    }

    fn expected(&mut self, value: &Value<'_>, setting: &str, expected: &str) {
        let is = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        let message = format!("{setting}: expected {expected}, not {is}");
        self.refuse(&value.span(), message);
    }

    /// Refuses the text of a value.
    fn invalid(&mut self, value: &Value<'_>, setting: &str, problem: impl fmt::Display) {
        let source = self.text.get(value.span()).unwrap_or_default();
        let source = value.get_ref().as_str().unwrap_or(source);
        let message = format!("{setting}: `{source}` {problem}");
        self.refuse(&value.span(), message);
    }

    /// Refuses settings that are not known.
    fn known(&mut self, table: &DeTable<'_>, of: &str, known: &[&str]) {
        for name in table.keys() {
            if !known.contains(&&**name.get_ref()) {
                let hint = match nearest(name.get_ref(), known.iter().copied()) {
                    Some(nearest) => format!("did you mean {nearest}?"),
                    None => format!("expected one of {}", known.join(", ")),
                };
                let message = format!("{} is not a setting of {of}: {hint}", name.get_ref());
                self.refuse(&name.span(), message);
            }
        }
    }

    fn file(&mut self, file: &DeTable<'_>) -> (Vec<Rule>, PathRules) {
        self.known(file, "a policy", &["paths", "rules"]);
        let mut path_rules = PathRules::new();
        if let Some(value) = file.get("paths")
            && let Some(paths) = self.table(value, "paths")
        {
            let known = ["ignore_case", "decode_slashes"];
            self.known(paths, "paths", &known);
            let [ignore_case, decode_slashes] =
                known.map(|name| paths.get(name).and_then(|value| self.boolean(value, name)));
            if ignore_case == Some(true) {
                path_rules = path_rules.ignoring_case();
            }
            if decode_slashes == Some(true) {
                path_rules = path_rules.decoding_slashes();
            }
        }
        let mut rules = Vec::new();
        if let Some(value) = file.get("rules") {
            match value.get_ref().as_array() {
                Some(all) => {
                    for value in all {
                        rules.extend(self.rule(value));
                    }
                }
                None => self.expected(value, "rules", "an array of tables"),
            }
        }
        (rules, path_rules)
    }

    fn rule(&mut self, value: &Value<'_>) -> Option<Rule> {
        const KNOWN: [&str; 19] = [
            "name",
            "priority",
            "kind",
            "methods",
            "paths",
            "hosts",
            "tiers",
            "properties",
            "key",
            "on_missing",
            "keys",
            "limits",
            "penalty",
            "exempt",
            "shadow",
            "enabled",
            "message",
            "status",
            "etag",
        ];
        const KINDS: [(&str, Kind); 5] = [
            ("request", Kind::Request),
            ("ingress", Kind::Ingress),
            ("egress", Kind::Egress),
            ("burst", Kind::Burst),
            ("concurrency", Kind::Concurrency),
        ];
        const ON_MISSING: [(&str, OnMissing); 3] = [
            ("share", OnMissing::Share),
            ("deny", OnMissing::Deny),
            ("skip", OnMissing::Skip),
        ];
        let table = self.table(value, "rules")?;
        self.known(table, "a rule", &KNOWN);
        let Some(name) = table.get("name") else {
            self.refuse(&value.span(), "name is missing in this rule".into());
            return None;
        };
        let name = self.string(name, "name")?;
        for setting in table.keys() {
            self.note(&name, setting.get_ref(), None, &setting.span());
        }
        let settings = Settings { table, rule: name };
        let mut rule = Rule::new(&settings.rule).when(self.conditions(&settings, &KINDS));
        if let Some(priority) = self.number(&settings, "priority", u32::MAX.into()) {
            rule = rule.priority(priority as u32);
        }
        if let Some(keys) = self.number(&settings, "keys", u32::MAX.into()) {
            rule = rule.keys(keys as usize);
        }
        if let Some(status) = self.number(&settings, "status", u16::MAX.into()) {
            rule = rule.with_status(status as u16);
        }
        for part in self.strings_of(&settings, "key") {
            match key_part(part.get_ref()) {
                Some(key) => rule.key = rule.key.and(key),
                None => self.refuse(
                    &part.span(),
                    format!(
                        "key: `{}` is not a part of a key: expected address, address/V4/V6, path, \
                         host, method, tier, header:NAME or property:NAME",
                        part.get_ref()
                    ),
                ),
            }
        }
        if let Some(value) = settings.get("on_missing")
            && let Some(on_missing) = self.choice(value, "on_missing", &ON_MISSING)
        {
            rule = rule.on_missing(on_missing);
        }
        if let Some(value) = settings.get("limits") {
            match value.get_ref().as_array() {
                Some(limits) => {
                    for (index, value) in limits.iter().enumerate() {
                        self.note(
                            &settings.rule,
                            &format!("limits[{index}]"),
                            None,
                            &value.span(),
                        );
                        // An invalid limit keeps its place, so that others keep theirs.
                        let limit = self.limit(value);
                        rule = rule.limit(limit.unwrap_or_else(|| Limit::at_once(1)));
                    }
                }
                None => self.expected(value, "limits", "an array"),
            }
        }
        if let Some(value) = settings.get("penalty")
            && let Some(penalty) = self.period(value, "penalty")
        {
            rule = rule.penalty(penalty);
        }
        let mut text = |name| {
            let value = settings.get(name)?;
            self.string(value, name)
        };
        if let Some(message) = text("message") {
            rule = rule.with_message(&message);
        }
        if let Some(etag) = text("etag") {
            rule = rule.with_etag(&etag);
        }
        let mut flag = |name| {
            let value = settings.get(name)?;
            self.boolean(value, name)
        };
        if flag("shadow") == Some(true) {
            rule = rule.shadow();
        }
        if flag("enabled") == Some(false) {
            rule = rule.disabled();
        }
        Some(self.exempt(&settings, rule))
    }

    fn conditions(&mut self, settings: &Settings<'_, '_>, kinds: &[(&str, Kind)]) -> Conditions {
        let mut conditions = Conditions::new();
        if let Some(value) = settings.get("kind")
            && let Some(kind) = self.choice(value, "kind", kinds)
        {
            conditions = conditions.kind(kind);
        }
        let mut all = |name| {
            let values = self.strings_of(settings, name);
            values.into_iter().map(Spanned::into_inner)
        };
        conditions = conditions.methods(all("methods"));
        conditions = conditions.paths(all("paths"));
        conditions = conditions.hosts(all("hosts"));
        conditions = conditions.tiers(all("tiers"));
        for (name, values) in self.named_strings(settings.get("properties"), "properties") {
            self.note(
                &settings.rule,
                "properties",
                Some(name.get_ref().clone()),
                &name.span(),
            );
            conditions = conditions.property(name.into_inner(), values);
        }
        conditions
    }

    fn exempt(&mut self, settings: &Settings<'_, '_>, mut rule: Rule) -> Rule {
        let Some(value) = settings.get("exempt") else {
            return rule;
        };
        let Some(table) = self.table(value, "exempt") else {
            return rule;
        };
        self.known(table, "exempt", &["headers", "properties", "networks"]);
        for (name, values) in self.named_strings(table.get("headers"), "headers") {
            rule = rule.exempt_header(name.get_ref(), values);
        }
        for (name, values) in self.named_strings(table.get("properties"), "properties") {
            rule = rule.exempt_property(name.get_ref(), values);
        }
        if let Some(value) = table.get("networks") {
            for network in self.strings(value, "networks") {
                let text = network.get_ref().clone();
                let (at, setting) = (network.span(), "exempt_networks");
                self.note(&settings.rule, setting, Some(text.clone()), &at);
                rule = rule.exempt_networks([text]);
            }
        }
        rule
    }

    fn limit(&mut self, value: &Value<'_>) -> Option<Limit> {
        const KNOWN: [&str; 7] = [
            "rate",
            "at_once",
            "algorithm",
            "burst",
            "segments",
            "wait",
            "name",
        ];
        const ALGORITHMS: [(&str, Algorithm); 4] = [
            ("token-bucket", Algorithm::TokenBucket),
            ("fixed-window", Algorithm::FixedWindow),
            ("window-from-request", Algorithm::WindowFromRequest),
            ("sliding-window", Algorithm::SlidingWindow { segments: 8 }),
        ];
        if value.get_ref().is_str() {
            return self.rate(value);
        }
        let Some(table) = value.get_ref().as_table() else {
            self.expected(value, "limits", "a rate such as \"10/s\", or a table");
            return None;
        };
        self.known(table, "a limit", &KNOWN);
        let settings = Settings {
            table,
            rule: String::new(),
        };
        let mut limit = match (settings.get("rate"), settings.get("at_once")) {
            (Some(rate), None) => self.rate(rate)?,
            (None, Some(_)) => {
                let at_once = self.number(&settings, "at_once", u32::MAX.into())?;
                Limit::at_once(at_once as u32)
            }
            _ => {
                let message = "limits: a limit has either `rate` or `at_once`";
                self.refuse(&value.span(), message.into());
                return None;
            }
        };
        let algorithm = settings
            .get("algorithm")
            .and_then(|value| self.choice(value, "algorithm", &ALGORITHMS));
        limit = limit.algorithm_of(algorithm.unwrap_or_default());
        if let Some(value) = settings.get("segments") {
            let segments = self.number(&settings, "segments", u32::MAX.into())?;
            if let Algorithm::SlidingWindow { .. } = limit.algorithm() {
                let segments = segments as u32;
                limit = limit.algorithm_of(Algorithm::SlidingWindow { segments });
            } else {
                let problem = "has no effect: only a sliding-window has segments";
                self.invalid(value, "segments", problem);
            }
        }
        if let Some(burst) = self.number(&settings, "burst", u64::MAX) {
            limit = limit.burst(burst);
        }
        if let Some(value) = settings.get("wait")
            && let Some(wait) = self.period(value, "wait")
        {
            limit = limit.wait(wait);
        }
        if let Some(value) = settings.get("name")
            && let Some(name) = self.string(value, "name")
        {
            limit = limit.named(&name);
        }
        Some(limit)
    }

    fn rate(&mut self, value: &Value<'_>) -> Option<Limit> {
        let text = self.string(value, "rate")?;
        let limit = text.parse();
        if limit.is_err() {
            let problem = "is not a rate: expected N/PERIOD, such as 60/m, 100/10s or 5/500ms \
                           (units: ms, s, m, h, d; whole numbers)";
            self.invalid(value, "limits", problem);
        }
        limit.ok()
    }

    fn table<'v, 't>(&mut self, value: &'v Value<'t>, setting: &str) -> Option<&'v DeTable<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.expected(value, setting, "a table");
        }
        table
    }

    fn boolean(&mut self, value: &Value<'_>, setting: &str) -> Option<bool> {
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.expected(value, setting, "true or false");
        }
        boolean
    }

    fn string(&mut self, value: &Value<'_>, setting: &str) -> Option<String> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.expected(value, setting, "a string");
        }
        text.map(str::to_owned)
    }

    fn number(&mut self, settings: &Settings<'_, '_>, name: &str, max: u64) -> Option<u64> {
        let value = settings.get(name)?;
        let Some(integer) = value.get_ref().as_integer() else {
            self.expected(value, name, "a whole number");
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|&number| number <= max);
        if number.is_none() {
            self.invalid(value, name, format_args!("is not from 0 to {max}"));
        }
        number
    }

    fn period(&mut self, value: &Value<'_>, setting: &str) -> Option<Duration> {
        let text = self.string(value, setting)?;
        match parse_period(&text) {
            Ok(period) => Some(period),
            Err(error) => {
                self.invalid(value, setting, format_args!("is not a period: {error}"));
                None
            }
        }
    }

    fn choice<T: Copy>(
        &mut self,
        value: &Value<'_>,
        setting: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let text = self.string(value, setting)?;
        let chosen = choices.iter().find(|(name, _)| *name == text);
        if chosen.is_none() {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            let problem = match nearest(&text, names.iter().copied()) {
                Some(nearest) => format!("is not known: did you mean `{nearest}`?"),
                None => format!("is not known: expected one of {}", names.join(", ")),
            };
            self.invalid(value, setting, problem);
        }
        chosen.map(|(_, choice)| *choice)
    }

    fn strings(&mut self, value: &Value<'_>, setting: &str) -> Vec<Spanned<String>> {
        let Some(values) = value.get_ref().as_array() else {
            self.expected(value, setting, "an array of strings");
            return Vec::new();
        };
        let mut strings = Vec::new();
        for value in values {
            let text = self.string(value, setting);
            strings.extend(text.map(|text| Spanned::new(value.span(), text)));
        }
        strings
    }

    /// The strings of a setting of a rule, whose places are noted.
    fn strings_of(&mut self, settings: &Settings<'_, '_>, name: &str) -> Vec<Spanned<String>> {
        let Some(value) = settings.get(name) else {
            return Vec::new();
        };
        let strings = self.strings(value, name);
        for text in &strings {
            self.note(
                &settings.rule,
                name,
                Some(text.get_ref().clone()),
                &text.span(),
            );
        }
        strings
    }

    /// The arrays of strings in a table.
    fn named_strings(
        &mut self,
        value: Option<&Value<'_>>,
        setting: &str,
    ) -> Vec<(Spanned<String>, Vec<String>)> {
        let Some(table) = value.and_then(|value| self.table(value, setting)) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for (name, value) in table {
            let strings = self.strings(value, name.get_ref());
            let name = Spanned::new(name.span(), name.get_ref().to_string());
            all.push((name, strings.into_iter().map(Spanned::into_inner).collect()));
        }
        all
    }

    fn note(&mut self, rule: &str, setting: &str, value: Option<String>, at: &Range<usize>) {
        self.places.push(Place {
            rule: rule.to_owned(),
            setting: setting.to_owned(),
            value,
            at: at.start,
        });
    }

    /// Where the setting stands that an error is about: the value, else the setting, else the last
    /// rule of this name.
    fn place_of(&self, error: &RuleError) -> usize {
        let of_rule = || {
            self.places
                .iter()
                .filter(|place| *place.rule == *error.rule)
        };
        let of_setting = || of_rule().filter(|place| place.setting == error.setting);
        let value = of_setting().find(|place| place.value.is_some() && place.value == error.value);
        let setting = || of_setting().rfind(|place| place.value.is_none());
        let name = || of_rule().rfind(|place| place.setting == "name");
        value
            .or_else(setting)
            .or_else(name)
            .map_or(0, |place| place.at)
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
            if let Some(name) = named("header:") {
                Key::header(name)
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

/// The known name that a misspelled one probably means.
fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    known
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .filter(|&(distance, known)| distance <= 1 + known.len() / 4)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, known)| known)
}
