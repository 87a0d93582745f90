//! Rules from `ocelot.json`, the configuration of the gateway Ocelot.
//!
//! 1. The file is read: options, routes, and rules for groups of routes. Each value is checked
//!    once.
//! 2. The routes are put in the order in which Ocelot asks them. Each becomes a rule, also one
//!    without a limit: it decides its requests, so that no later rule limits them.
//! 3. The options of a route and the global ones are merged, setting by setting.
//!
//! Ocelot turns the upstream template of a route into a regular expression. The placeholder that no
//! `/` follows takes the rest of the path, and any other placeholder takes one component. A pattern
//! here has whole components only. So it matches more than the template if a placeholder is a part
//! of a component: that is a warning.

mod options;
mod templates;
mod values;

use std::collections::{HashMap, HashSet};

use self::options::{Level, Merged, Options, Set};
use self::templates::{GroupPattern, literal, split_template, upstream_pattern};
use super::Imported;
use crate::conditions::Conditions;
use crate::document::{Names, Node, Reader, RuleNumber, Span, Table, Value, shown, words};
use crate::nearest::nearest;
use crate::path::PathRules;
use crate::problem::FileError;
use crate::rule::Rule;

/// The header that names the client, if the file does not say which.
const CLIENT_HEADER: &str = "Oc-Client";

/// The same, before Ocelot 24.1.
const OLD_CLIENT_HEADER: &str = "ClientId";

/// The most pairs of a route and a rule of `GlobalRateLimitRules`, or one of its methods.
const MAX_COMPARED: usize = 1 << 20;

/// The most rules of `GlobalRateLimitRules` for one route. Each becomes a rule here.
const MAX_GROUPS: usize = 64;

/// The file whose `GlobalConfiguration` counts, if there are several.
const GLOBAL_FILE: &str = "ocelot.global.json";

/// The file to which Ocelot writes what it has merged.
const MERGED_FILE: &str = "ocelot.json";

/// The settings of one place in the file.
struct Settings {
    /// What the place is, for messages.
    of: &'static str,
    known: &'static str,
    /// Those that say which limit a request meets. A name that resembles one of them is an error:
    /// if it were ignored, a limit would be lost. Any other unknown name is ignored, as in Ocelot.
    limiting: &'static str,
    /// Names before Ocelot 16, when a route was a `ReRoute`.
    old: &'static str,
}

/// The settings at the top of the file.
const FILE_SETTINGS: Settings = Settings {
    of: "ocelot.json",
    known: FILE,
    limiting: "DynamicRoutes GlobalConfiguration GlobalRateLimitRules Routes",
    old: "ReRoutes",
};

/// The settings of `GlobalConfiguration`.
const GLOBAL_SETTINGS: Settings = Settings {
    of: "GlobalConfiguration",
    known: GLOBAL,
    limiting: "RateLimitOptions ServiceDiscoveryProvider",
    old: "",
};

/// The settings of a route.
const fn route_settings(of: &'static str) -> Settings {
    Settings {
        of,
        known: ROUTE,
        limiting: "DownstreamPathTemplate Key Priority RateLimitOptions RateLimitRule \
                   RateLimiting ServiceName ServiceNamespace UpstreamHost UpstreamHttpMethod \
                   UpstreamPathTemplate",
        old: "ReRouteIsCaseSensitive ReRouteKeys ReRouteKeysConfig",
    }
}

/// The settings at the top of the file.
const FILE: &str = "\
    $schema Aggregates DynamicRoutes GlobalConfiguration GlobalRateLimitRules Routes";

/// The settings of a route, static, dynamic or aggregated.
const ROUTE: &str = "\
    AddClaimsToRequest AddHeadersToRequest AddQueriesToRequest Aggregator AuthenticationOptions \
    CacheOptions ChangeDownstreamPathTemplate DangerousAcceptAnyServerCertificateValidator \
    DelegatingHandlers DownstreamHeaderTransform DownstreamHostAndPorts DownstreamHttpMethod \
    DownstreamHttpVersion DownstreamHttpVersionPolicy DownstreamPathTemplate DownstreamScheme \
    FileCacheOptions HttpHandlerOptions Key LoadBalancerOptions Metadata Priority QoSOptions \
    RateLimitOptions RateLimitRule RateLimiting RequestIdKey RouteClaimsRequirement \
    RouteIsCaseSensitive RouteKeys RouteKeysConfig SecurityOptions ServiceName ServiceNamespace \
    Timeout UpstreamHeaderTemplates UpstreamHeaderTransform UpstreamHost UpstreamHttpMethod \
    UpstreamPathTemplate";

/// The settings of `GlobalConfiguration`.
const GLOBAL: &str = "\
    AuthenticationOptions BaseUrl CacheOptions DownstreamHeaderTransform DownstreamHttpVersion \
    DownstreamHttpVersionPolicy DownstreamScheme HttpHandlerOptions LoadBalancerOptions Metadata \
    MetadataOptions QoSOptions RateLimitOptions RequestIdKey SecurityOptions \
    ServiceDiscoveryProvider Timeout UpstreamHeaderTransform";

impl Imported {
    /// Reads `ocelot.json`, the configuration of the gateway Ocelot, as its version 25 does, with
    /// comments and with the option names of older versions.
    ///
    /// Each route becomes a rule. Its name is the `Key` of the route, or else its methods, its host
    /// and its template; a `KeyPrefix` comes before it. Requests have the header that names the
    /// client, or are denied as [`Outcome::Unidentified`](crate::Outcome::Unidentified).
    ///
    /// | Ocelot | here |
    /// |---|---|
    /// | `Limit`, `Period`, `Wait` | a [`Limit`](crate::Limit) with [`Algorithm::WindowFromRequest`](crate::Algorithm) and its `wait` |
    /// | `ClientIdHeader`, `ClientWhitelist` | [`Rule::key`], [`Rule::exempt_header`] |
    /// | `StatusCode`, `QuotaMessage` | [`Rule::with_status`], [`Rule::with_message`] |
    /// | `EnableHeaders` | [`Rule::without_headers`] |
    /// | `GlobalConfiguration.RateLimitOptions`, `RouteKeys` | merged with the options of each route |
    /// | `GlobalRateLimitRules` | options of the routes without any whose downstream template matches |
    /// | `Priority`, `UpstreamHost` | [`Rule::priority`], [`Conditions::hosts`] |
    ///
    /// `docs/coming-from/ocelot.md` lists all settings and all differences.
    ///
    /// # Errors
    ///
    /// All errors of the file, in their order: text that is not JSON, options that are unknown or
    /// set twice, and values that are not valid.
    ///
    /// ```
    /// use portcullis_policy::Imported;
    ///
    /// let errors = Imported::from_ocelot(r#"{ "Routes": [{
    ///     "UpstreamPathTemplate": "/posts/{postId}",
    ///     "RateLimitOptions": { "Limit": 0, "Periods": "1s", "Period": "1 week" },
    /// }] }"#).unwrap_err();
    /// assert_eq!(
    ///     errors.iter().map(|error| error.in_file("ocelot.json").to_string()).collect::<Vec<_>>(),
    ///     [
    ///         "ocelot.json:3:36: Limit: `0` is not a number of requests from 1 to \
    ///          9223372036854775807",
    ///         "ocelot.json:3:39: Periods is not a setting of RateLimitOptions: did you mean \
    ///          Period?",
    ///         "ocelot.json:3:66: Period: `1 week` has the unknown unit ` week`: expected a \
    ///          number and ms, s, m, h or d",
    ///     ]
    /// );
    /// ```
    pub fn from_ocelot(text: &str) -> Result<Self, Vec<FileError>> {
        let (reader, file) = Reader::json(text, Names::AnyCase);
        let Some(table) = file else {
            return Err(reader.into_errors());
        };
        let file = File {
            table,
            has_global: true,
            is_merged: false,
        };
        Self::from_ocelot_tables(reader, vec![file])
    }

    /// Reads several `ocelot.*.json` as one, each with its name, as Ocelot merges the files of a
    /// folder.
    ///
    /// The routes, aggregates and dynamic routes of all files count, in the order of the files. Of
    /// `ocelot.global.json`, `GlobalConfiguration` counts too. That of another file has no effect,
    /// which is a warning, unless the file is the only one. An `ocelot.json` among others is left
    /// out, with a warning: Ocelot writes the merged file under that name. Of a path, its last part
    /// is the name.
    ///
    /// Ocelot leaves out the file of its own environment, such as `ocelot.Development.json`: leave
    /// it out too.
    ///
    /// # Errors
    ///
    /// As [`from_ocelot`](Self::from_ocelot). Each error and each warning has the
    /// [name](FileError::file) of its file, also if there is one file only.
    ///
    /// ```
    /// use portcullis_policy::Imported;
    ///
    /// let imported = Imported::from_ocelot_files(&[
    ///     ("conf/ocelot.global.json", r#"{ "GlobalConfiguration": {
    ///         "RateLimitOptions": { "ClientIdHeader": "X-Key", "StatusCode": 418 } } }"#),
    ///     ("conf/ocelot.posts.json", r#"{ "Routes": [{ "UpstreamPathTemplate": "/posts/{id}",
    ///         "RateLimitOptions": { "Limit": 1, "Period": "1m", "Wait": "-5s" } }] }"#),
    /// ]).unwrap();
    /// assert_eq!(imported.rules[0].status(), 418);
    /// let warning = imported.warnings[0].to_string();
    /// assert!(warning.starts_with("conf/ocelot.posts.json:2:67: Wait is negative"), "{warning}");
    /// ```
    pub fn from_ocelot_files(files: &[(&str, &str)]) -> Result<Self, Vec<FileError>> {
        let texts: Vec<&str> = files.iter().map(|(_, text)| *text).collect();
        let text = texts.join("\n");
        let (reader, tables) = Reader::json_files(&text, files, Names::AnyCase);
        let is_only = files.len() == 1;
        let tables: Option<Vec<_>> = files
            .iter()
            .zip(tables)
            .map(|((name, _), table)| {
                let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
                Some(File {
                    table: table?,
                    has_global: is_only || name.eq_ignore_ascii_case(GLOBAL_FILE),
                    is_merged: !is_only && name.eq_ignore_ascii_case(MERGED_FILE),
                })
            })
            .collect();
        match tables {
            Some(files) => Self::from_ocelot_tables(reader, files),
            None => Err(reader.into_errors()),
        }
    }

    fn from_ocelot_tables(
        reader: Reader<'_>,
        files: Vec<File<'_>>,
    ) -> Result<Self, Vec<FileError>> {
        let mut reader = OcelotReader {
            reader,
            warnings: Vec::new(),
            old_name: None,
            has_new_name: false,
            has_warned_of_headers: false,
            names: HashMap::new(),
            limited: HashSet::new(),
            rules: Vec::new(),
        };
        let path_rules = reader.files(files);
        let OcelotReader {
            reader,
            rules,
            warnings,
            ..
        } = reader;
        let warnings = reader.checked(&rules, path_rules, warnings)?;
        Ok(Self {
            rules,
            path_rules,
            warnings,
        })
    }
}

struct File<'t> {
    table: Table<'t>,
    /// Whether its `GlobalConfiguration` counts.
    has_global: bool,
    /// Whether Ocelot has written it, from the others.
    is_merged: bool,
}

/// A rule of `GlobalRateLimitRules`.
struct Group {
    span: Span,
    pattern: GroupPattern,
    /// Sorted.
    methods: Vec<String>,
    options: Options,
    is_used: bool,
}

struct Route {
    span: Span,
    key: String,
    name: String,
    /// Sorted.
    methods: Vec<String>,
    host: Option<Set<String>>,
    patterns: Vec<Set<String>>,
    priority: i64,
    is_case_sensitive: bool,
    downstream: Option<String>,
    options: Option<Options>,
    /// Of an aggregate: the keys of its routes.
    aggregated: Option<Vec<String>>,
}

struct OcelotReader<'t> {
    reader: Reader<'t>,
    warnings: Vec<(Span, String)>,
    /// Where the first option is that has an old name.
    old_name: Option<Span>,
    has_new_name: bool,
    has_warned_of_headers: bool,
    /// The names of the rules, and the last number that was tried after each of them.
    names: HashMap<String, usize>,
    /// The keys of the routes with a limit.
    limited: HashSet<String>,
    rules: Vec<Rule>,
}

/// The value, unless it is `null`, which .NET reads as not set.
fn get<'v, 't>(table: &'v Table<'t>, name: &str) -> Option<&'v Value<'t>> {
    table
        .get(name)
        .filter(|value| !matches!(value.node, Node::Null))
}

/// Returns whether a name is one of the words of `names`, in any case.
fn is_in(name: &str, names: &str) -> bool {
    words(names).any(|each| each.eq_ignore_ascii_case(name))
}

impl<'t> OcelotReader<'t> {
    fn warn(&mut self, span: Span, message: impl Into<String>) {
        self.warnings.push((span, message.into()));
    }

    fn files(&mut self, mut files: Vec<File<'t>>) -> PathRules {
        files.retain(|file| {
            if let (true, Some((first, _))) = (file.is_merged, file.table.iter().next()) {
                let message = "the file is left out: Ocelot writes to it what it has merged from \
                               the others";
                self.warn(first.span, message);
            }
            !file.is_merged
        });
        let files = &*files;
        let (global, has_discovery) = self.global(files);
        let mut groups = Vec::new();
        for value in self.tables(files, "GlobalRateLimitRules") {
            groups.extend(self.group(value));
        }
        let mut routes = Vec::new();
        for name in ["Routes", "ReRoutes"] {
            for value in self.tables(files, name) {
                routes.extend(self.route(value, false));
            }
        }
        let has_routes = !routes.is_empty();
        for value in self.tables(files, "Aggregates") {
            routes.extend(self.route(value, true));
        }
        let dynamic = self.tables(files, "DynamicRoutes");
        let is_dynamic = !has_routes && (has_discovery || !dynamic.is_empty());
        if let (true, Some(first)) = (has_routes, dynamic.first()) {
            let message = "DynamicRoutes have no effect beside Routes, as in Ocelot";
            self.warn(first.span, message);
        } else {
            for value in dynamic {
                routes.extend(self.dynamic_route(value));
            }
        }
        // The order in which Ocelot asks the routes: those for a host first, whatever the priority.
        routes.sort_by_key(|route| (route.host.is_none(), -route.priority));
        let mut all = files.iter();
        if let Some(value) = all.find_map(|file| get(&file.table, "GlobalRateLimitRules"))
            && !self.can_compare(value, &routes, &groups)
        {
            groups.clear();
        }
        for route in &routes {
            self.rules_of(route, global.as_ref(), &mut groups);
        }
        if is_dynamic {
            self.other_services(global.as_ref());
        }
        self.warn_of_aggregates(&routes);
        self.warn_of_older_versions(&routes);
        for group in groups.iter().filter(|group| !group.is_used) {
            let message = "Pattern matches the DownstreamPathTemplate of no route that has no \
                           RateLimitOptions: the rule has no effect";
            self.warn(group.span, message);
        }
        self.path_rules(&routes)
    }

    /// Reads `GlobalConfiguration`: the options for all routes, and whether it names a provider of
    /// services.
    fn global(&mut self, files: &[File<'t>]) -> (Option<Options>, bool) {
        let (mut global, mut has_discovery) = (None, false);
        for file in files {
            self.known_or_ignored(&file.table, &FILE_SETTINGS);
            let Some(value) = get(&file.table, "GlobalConfiguration") else {
                continue;
            };
            if !file.has_global {
                let message = format!(
                    "GlobalConfiguration has no effect here: of several files, Ocelot reads that \
                     of {GLOBAL_FILE}"
                );
                self.warn(value.span, message);
            } else if let Some(table) = self.reader.table(value, "GlobalConfiguration") {
                self.known_or_ignored(table, &GLOBAL_SETTINGS);
                has_discovery = get(table, "ServiceDiscoveryProvider").is_some();
                global = get(table, "RateLimitOptions")
                    .and_then(|value| self.options(value, Level::Global));
            }
        }
        (global, has_discovery)
    }

    /// Whether the groups can be compared with all routes in a short time. Otherwise notes an
    /// error.
    fn can_compare(&mut self, value: &Value<'t>, routes: &[Route], groups: &[Group]) -> bool {
        let routes = routes.iter().filter(|route| route.takes_groups()).count();
        let values: usize = groups.iter().map(|group| 1 + group.methods.len()).sum();
        let can_compare = routes.saturating_mul(values) <= MAX_COMPARED;
        if !can_compare {
            let message = format!(
                "GlobalRateLimitRules: {} rules with {} methods are too many beside {routes} \
                 routes without RateLimitOptions: at most {MAX_COMPARED} pairs of a rule or a \
                 method and a route are compared",
                groups.len(),
                values - groups.len(),
            );
            self.reader.refuse(value.span, message);
        }
        can_compare
    }

    /// The values of an array, of all files.
    fn tables<'v>(&mut self, files: &'v [File<'t>], name: &str) -> Vec<&'v Value<'t>> {
        let arrays = files.iter().filter_map(|file| get(&file.table, name));
        let values = arrays.flat_map(|value| self.reader.array(value, name, "an array of objects"));
        values.collect()
    }

    /// Case counts only if it does for all routes: a spelling must not evade a limit.
    fn path_rules(&mut self, routes: &[Route]) -> PathRules {
        let has_letters = |route: &Route| {
            let mut patterns = route.patterns.iter();
            patterns.any(|pattern| pattern.value.contains(|c: char| c.is_ascii_alphabetic()))
        };
        let ignoring = |route: &&Route| has_letters(route) && !route.is_case_sensitive;
        if !routes.iter().any(|route| ignoring(&route)) {
            return PathRules::new();
        }
        for route in routes.iter().filter(|route| route.is_case_sensitive) {
            let message = "RouteIsCaseSensitive has no effect beside routes that ignore case: all \
                           routes ignore it";
            self.warn(route.span, message);
        }
        PathRules::new().ignoring_case()
    }

    fn known_or_ignored(&mut self, table: &Table<'_>, settings: &Settings) {
        for (name, _) in table.iter() {
            if is_in(&name.text, settings.old) {
                self.old_name.get_or_insert(name.span);
                continue;
            }
            if is_in(&name.text, settings.known) {
                continue;
            }
            let unknown = format!("{} is not a setting of {}", shown(&name.text), settings.of);
            match nearest(&name.text, words(settings.known)) {
                Some(nearest) if words(settings.limiting).any(|name| name == nearest) => {
                    let message = format!("{unknown}: did you mean {nearest}?");
                    self.reader.refuse(name.span, message);
                }
                Some(nearest) => {
                    let message = format!("{unknown}: it is ignored (did you mean {nearest}?)");
                    self.warn(name.span, message);
                }
                None => self.warn(name.span, format!("{unknown}: it is ignored")),
            }
        }
    }

    // Values. .NET reads a number or a boolean from a string too.

    fn scalar<'v>(&mut self, value: &'v Value<'t>, name: &str, expected: &str) -> Option<&'v str>
    where
        't: 'v,
    {
        match &value.node {
            Node::Text(text) => Some(text),
            Node::Integer(_) | Node::Float | Node::Boolean(_) => {
                Some(self.reader.source(value.span))
            }
            _ => {
                self.reader.expected(value, name, expected);
                None
            }
        }
    }

    /// Text that is not blank: Ocelot treats blank text as none.
    fn text(&mut self, table: &Table<'t>, name: &str) -> Option<Set<String>> {
        let value = get(table, name)?;
        let text = self.scalar(value, name, "a string")?;
        (!text.trim().is_empty()).then(|| Set {
            value: text.to_owned(),
            span: value.span,
        })
    }

    fn texts(&mut self, table: &Table<'t>, name: &str) -> Vec<String> {
        let Some(value) = get(table, name) else {
            return Vec::new();
        };
        let values = self.reader.array(value, name, "an array of strings");
        let text = |value| Some(self.scalar(value, name, "a string")?.to_owned());
        values.iter().filter_map(text).collect()
    }

    fn boolean(&mut self, table: &Table<'t>, name: &str) -> Option<bool> {
        let value = get(table, name)?;
        let text = self.scalar(value, name, "true or false")?;
        let boolean = text.trim().to_ascii_lowercase().parse().ok();
        if boolean.is_none() {
            self.reader
                .invalid(value, name, "is neither true nor false");
        }
        boolean
    }

    fn group(&mut self, value: &Value<'t>) -> Option<Group> {
        let options = self.options(value, Level::Group)?;
        let table = value.as_table()?;
        let methods = upper(self.texts(table, "Methods"));
        if options.is_enabled == Some(false) {
            return None;
        }
        for (name, is_set) in [
            ("Pattern", get(table, "Pattern").is_some()),
            ("Limit", options.limit.is_some()),
            ("Period", options.period.is_some()),
        ] {
            if !is_set {
                let message = format!("{name} is missing in this rule of GlobalRateLimitRules");
                self.reader.refuse(value.span, message);
            }
        }
        let pattern = self.text(table, "Pattern")?;
        if let Err(problem) = split_template(&pattern.value) {
            let value = get(table, "Pattern")?;
            self.reader.invalid(value, "Pattern", problem);
            return None;
        }
        Some(Group {
            span: pattern.span,
            pattern: GroupPattern::new(&pattern.value),
            methods,
            options,
            is_used: false,
        })
    }

    fn route(&mut self, value: &Value<'t>, is_aggregate: bool) -> Option<Route> {
        let of = if is_aggregate {
            "an aggregate"
        } else {
            "a route"
        };
        let table = self.reader.table(value, of)?;
        self.known_or_ignored(table, &route_settings(of));
        let options = self.route_options(table, "RateLimitOptions");
        let key = self.text(table, "Key").map(|key| key.value);
        let mut methods = upper(self.texts(table, "UpstreamHttpMethod"));
        if is_aggregate && methods.is_empty() {
            methods.push("GET".to_owned());
        }
        let host = self.text(table, "UpstreamHost");
        let is_case_sensitive = ["RouteIsCaseSensitive", "ReRouteIsCaseSensitive"]
            .into_iter()
            .any(|name| self.boolean(table, name) == Some(true));
        let downstream = self.text(table, "DownstreamPathTemplate");
        let aggregated = is_aggregate.then(|| {
            let mut keys = self.texts(table, "RouteKeys");
            keys.extend(self.texts(table, "ReRouteKeys"));
            keys
        });
        self.warn_of_headers(table);
        let Some(template) = self.text(table, "UpstreamPathTemplate") else {
            let message = format!("UpstreamPathTemplate is missing in {of}");
            self.reader.refuse(value.span, message);
            return None;
        };
        let upstream = self.upstream(table, &template)?;
        let priority = self.priority(table)?;
        let name = key.clone().unwrap_or_else(|| {
            let host = host.as_ref().map_or("", |host| &host.value);
            let space = if methods.is_empty() { "" } else { " " };
            format!("{}{space}{host}{}", methods.join(","), template.value)
        });
        Some(Route {
            span: value.span,
            key: key.unwrap_or_default(),
            name,
            methods,
            host,
            patterns: vec![Set {
                value: with_slash(upstream.pattern),
                span: template.span,
            }],
            priority: if upstream.is_catch_all {
                0
            } else {
                priority.into()
            },
            is_case_sensitive,
            downstream: downstream.map(|downstream| downstream.value),
            options,
            aggregated,
        })
    }

    /// Warns of conditions on headers, which rules do not have.
    fn warn_of_headers(&mut self, table: &Table<'t>) {
        if let Some(headers) = get(table, "UpstreamHeaderTemplates")
            && headers
                .as_table()
                .is_none_or(|headers| headers.iter().next().is_some())
        {
            let message = "UpstreamHeaderTemplates have no counterpart: the rule is for requests \
                           with any headers";
            self.warn(headers.span, message);
        }
    }

    /// The pattern of a route's path.
    fn upstream(
        &mut self,
        table: &Table<'t>,
        template: &Set<String>,
    ) -> Option<templates::Upstream> {
        let template_value = get(table, "UpstreamPathTemplate")?;
        let upstream = match upstream_pattern(&template.value) {
            Ok(upstream) => upstream,
            Err(problem) => {
                self.reader
                    .invalid(template_value, "UpstreamPathTemplate", problem);
                return None;
            }
        };
        for warning in &upstream.warnings {
            let message = format!("UpstreamPathTemplate: {warning}");
            self.warn(template.span, message);
        }
        Some(upstream)
    }

    /// The priority of a route: 1 if the file states none.
    fn priority(&mut self, table: &Table<'t>) -> Option<i32> {
        let Some(value) = get(table, "Priority") else {
            return Some(1);
        };
        let text = self.scalar(value, "Priority", "a whole number")?;
        let priority = text.trim().parse::<i32>();
        if priority.is_err() {
            self.reader
                .invalid(value, "Priority", "is not a whole number");
        }
        Some(priority.unwrap_or(1))
    }

    fn route_options(&mut self, table: &Table<'t>, name: &str) -> Option<Options> {
        if let Some(value) = get(table, "RateLimiting") {
            let message = "RateLimiting has no effect, as in Ocelot 25";
            self.warn(value.span, message);
        }
        self.options(get(table, name)?, Level::Route)
    }

    /// A route of a service, which is found by the first component of the path.
    fn dynamic_route(&mut self, value: &Value<'t>) -> Option<Route> {
        let table = self.reader.table(value, "a dynamic route")?;
        self.known_or_ignored(table, &route_settings("a dynamic route"));
        let old = self.route_options(table, "RateLimitRule");
        let options = self.route_options(table, "RateLimitOptions");
        let Some(service) = self.text(table, "ServiceName") else {
            self.reader
                .refuse(value.span, "ServiceName is missing in a dynamic route");
            return None;
        };
        let namespace = self.text(table, "ServiceNamespace");
        let namespace = namespace.as_ref().map(|namespace| namespace.value.as_str());
        let full_name = namespace.map(|namespace| format!("{namespace}.{}", service.value));
        let key = self.text(table, "Key").map(|key| key.value);
        let names = [Some(service.value.clone()), full_name.clone()];
        let pattern = |name: String| Set {
            value: format!("/{}/**", literal(&name)),
            span: service.span,
        };
        Some(Route {
            span: value.span,
            key: key.clone().unwrap_or_default(),
            name: key.or(full_name).unwrap_or(service.value),
            methods: Vec::new(),
            host: None,
            patterns: names.into_iter().flatten().map(pattern).collect(),
            priority: 1,
            is_case_sensitive: true,
            downstream: None,
            options: old.or(options),
            aggregated: None,
        })
    }

    /// The rules of a route: one for each group of `GlobalRateLimitRules` for some of its methods,
    /// and one for the rest.
    fn rules_of(&mut self, route: &Route, global: Option<&Options>, groups: &mut [Group]) {
        if route.takes_groups() {
            let matching = groups.iter_mut().filter(|group| group.is_for(route));
            for (nth, group) in matching.enumerate() {
                if nth == MAX_GROUPS {
                    let message = format!(
                        "more than {MAX_GROUPS} rules of GlobalRateLimitRules are for this route"
                    );
                    self.reader.refuse(route.span, message);
                    return;
                }
                group.is_used = true;
                let limit = Merged::new(self, &route.key, Some(&group.options), global);
                let is_for = |method: &&String| {
                    route.methods.is_empty() || route.methods.binary_search(method).is_ok()
                };
                let methods: Vec<String> = group.methods.iter().filter(is_for).cloned().collect();
                if group.methods.is_empty() {
                    self.add(route, &route.name, &route.methods, limit);
                    return;
                }
                if !methods.is_empty() {
                    let name = format!("{} for {}", route.name, methods.join(","));
                    self.add(route, &name, &methods, limit);
                }
            }
        }
        let limit = match route.aggregated {
            Some(_) => None,
            None => Merged::new(self, &route.key, route.options.as_ref(), global),
        };
        self.add(route, &route.name, &route.methods, limit);
    }

    fn add(&mut self, route: &Route, name: &str, methods: &[String], merged: Option<Merged<'_>>) {
        if merged.is_some() {
            self.limited.insert(route.key.clone());
        }
        let hosts = route.host.iter();
        let conditions = Conditions::new()
            .methods(methods)
            .paths(route.patterns.iter().map(|pattern| pattern.value.as_str()))
            .hosts(hosts.clone().map(|host| host.value.as_str()));
        let number = self.add_rule(name, route.span, conditions, merged);
        for pattern in &route.patterns {
            self.reader
                .note(number, "paths", Some(&pattern.value), pattern.span);
        }
        for host in hosts {
            self.reader
                .note(number, "hosts", Some(&host.value), host.span);
        }
    }

    /// Adds a rule. Returns its number.
    fn add_rule(
        &mut self,
        name: &str,
        span: Span,
        conditions: Conditions,
        merged: Option<Merged<'_>>,
    ) -> RuleNumber {
        let name = match merged.as_ref().and_then(|merged| merged.prefix) {
            Some(prefix) => format!("{prefix}:{name}"),
            None => name.to_owned(),
        };
        let name = self.free_name(name);
        let mut rule = Rule::new(&name)
            .priority(u32::try_from(self.rules.len()).unwrap_or(u32::MAX))
            .when(conditions);
        let number = self.reader.rule(&name);
        self.reader.note(number, "name", None, span);
        if let Some(merged) = merged {
            self.reader
                .note(number, "limits[0]", None, merged.limit.span);
            rule = merged.apply(rule, &self.client_headers(&merged));
        }
        self.rules.push(rule);
        number
    }

    /// The name, or the name and a number if another rule has it.
    fn free_name(&mut self, name: String) -> String {
        let mut number = self.names.get(&name).copied().unwrap_or(0);
        loop {
            number += 1;
            let free = match number {
                1 => name.clone(),
                number => format!("{name} ({number})"),
            };
            if !self.names.contains_key(&free) {
                self.names.insert(free.clone(), 1);
                self.names.insert(name, number);
                return free;
            }
        }
    }

    /// The headers that name the client. A file with the old names only may be older than the new
    /// default.
    fn client_headers<'o>(&mut self, merged: &Merged<'o>) -> Vec<&'o str> {
        match (merged.header, self.old_name) {
            (Some(header), _) => vec![header],
            (None, Some(old)) if !self.has_new_name => {
                if !self.has_warned_of_headers {
                    self.has_warned_of_headers = true;
                    let message = "ClientIdHeader is not set, and this name is from before Ocelot \
                                   24.1: `Oc-Client` or the older `ClientId` names the client";
                    self.warn(old, message);
                }
                vec![CLIENT_HEADER, OLD_CLIENT_HEADER]
            }
            (None, _) => vec![CLIENT_HEADER],
        }
    }

    /// The services that have no dynamic route.
    fn other_services(&mut self, global: Option<&Options>) {
        // `RouteKeys` does not count here.
        let Some(global) = global.filter(|global| global.is_enabled != Some(false)) else {
            return;
        };
        let all = Options {
            route_keys: HashSet::new(),
            ..global.clone()
        };
        if let Some(merged) = Merged::new(self, "", None, Some(&all)) {
            let message = "services without a dynamic route share one limit for each client: \
                           in Ocelot, each service has its own";
            self.warn(global.span, message);
            self.add_rule(
                "other services",
                global.span,
                Conditions::new(),
                Some(merged),
            );
        }
    }

    fn warn_of_aggregates(&mut self, routes: &[Route]) {
        for aggregate in routes {
            let mut keys = aggregate.aggregated.iter().flatten();
            if keys.any(|key| self.limited.contains(key)) {
                let message = "an aggregate has no limit: in Ocelot, each of its requests counts \
                               in the limits of its routes";
                self.warn(aggregate.span, message);
            }
        }
    }

    fn warn_of_older_versions(&mut self, routes: &[Route]) {
        if self.old_name.is_none() || self.has_new_name {
            return;
        }
        for options in routes.iter().filter_map(|route| route.options.as_ref()) {
            if options.is_enabled.is_none() {
                let message = "EnableRateLimiting is not set: the route is limited, as since \
                               Ocelot 24.1, and not before";
                self.warn(options.span, message);
            }
        }
    }
}

impl Route {
    /// Whether the route takes the options of `GlobalRateLimitRules`.
    fn takes_groups(&self) -> bool {
        self.aggregated.is_none() && self.options.is_none()
    }
}

impl Group {
    /// Whether the rule is for this route, at least with some of its methods.
    fn is_for(&self, route: &Route) -> bool {
        let keys = &self.options.route_keys;
        let is_of_route = |method: &String| route.methods.binary_search(method).is_ok();
        let shares_a_method = self.methods.is_empty()
            || route.methods.is_empty()
            || self.methods.iter().any(is_of_route);
        let downstream = route.downstream.as_deref();
        shares_a_method
            && (keys.is_empty() || keys.contains(&route.key))
            && downstream
                .is_some_and(|downstream| self.pattern.matches(downstream, route.is_case_sensitive))
    }
}

/// A pattern of the paths with and without a slash at the end, which are equal to Ocelot.
fn with_slash(mut pattern: String) -> String {
    if !pattern.ends_with("**") && !pattern.ends_with('/') {
        pattern.push('/');
    }
    pattern
}

fn upper(mut methods: Vec<String>) -> Vec<String> {
    for method in &mut methods {
        method.make_ascii_uppercase();
    }
    methods.sort();
    methods.dedup();
    methods
}
