//! `RateLimitOptions`: as the file has them, and merged for a route.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Arc;

use super::values::{Piece, pieces, time_span};
use super::{OcelotReader, get, is_in};
use crate::document::{Span, Table, Value};
use crate::key::Key;
use crate::limit::{Algorithm, Limit};
use crate::rule::Values;
use crate::rule::{OnMissing, Rule};

/// The longest name of a header, and the longest prefix of keys, in bytes. Each rule has a copy of
/// those that are global.
const MAX_NAME: usize = 256;

/// The longest message, in bytes, and the most placeholders in it.
const MAX_MESSAGE: usize = 4_096;
const MAX_PLACEHOLDERS: usize = 16;

/// The longest text of a period, in bytes. Messages repeat it.
const MAX_PERIOD: usize = 64;

/// The period of global options that have a limit only.
const DEFAULT_PERIOD: &str = "1s";

/// The status of a denial, if the file sets none that HTTP has.
const DEFAULT_STATUS: u16 = 429;

/// The settings of `RateLimitOptions`.
const OPTIONS: &str = "\
    ClientIdHeader ClientWhitelist EnableRateLimiting EnableHeaders DisableRateLimitHeaders \
    Limit Period Wait PeriodTimespan StatusCode HttpStatusCode QuotaMessage QuotaExceededMessage \
    KeyPrefix RateLimitCounterPrefix RouteKeys";

/// The settings of a rule of `GlobalRateLimitRules` that are no options.
const GLOBAL_RULE: &str = "Name Pattern Methods";

/// The options that Ocelot has renamed, and those that are newer than the old names.
const OLD_NAMES: &str = "\
    DisableRateLimitHeaders PeriodTimespan HttpStatusCode QuotaExceededMessage \
    RateLimitCounterPrefix";
const NEW_NAMES: &str = "EnableHeaders Wait StatusCode QuotaMessage KeyPrefix RouteKeys";

/// The option that disables headers, and the one that enables them.
const HEADERS: [&str; 2] = ["DisableRateLimitHeaders", "EnableHeaders"];

/// A value, and where it is in the file.
#[derive(Clone)]
pub(super) struct Set<T> {
    pub(super) value: T,
    pub(super) span: Span,
}

/// An option with an old and a new name.
#[derive(Clone)]
pub(super) struct Renamed<T> {
    pub(super) old: Option<Set<T>>,
    pub(super) new: Option<Set<T>>,
}

/// A length of time, and how the file writes it.
#[derive(Clone)]
pub(super) struct Period {
    pub(super) text: String,
    pub(super) length: Duration,
}

/// `RateLimitOptions`, of a route or of `GlobalConfiguration`.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) span: Span,
    pub(super) is_enabled: Option<bool>,
    pub(super) header: Option<String>,
    /// `None` if the list is empty.
    pub(super) exempt: Option<Arc<Values>>,
    pub(super) limit: Option<Set<u64>>,
    pub(super) period: Option<Set<Period>>,
    pub(super) wait: Renamed<Duration>,
    pub(super) status: Renamed<u16>,
    pub(super) message: Renamed<Vec<Piece>>,
    /// Whether headers are enabled: of the old name the opposite.
    pub(super) headers: Renamed<bool>,
    pub(super) prefix: Renamed<String>,
    pub(super) route_keys: HashSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Global,
    Route,
    /// A rule of `GlobalRateLimitRules`.
    Group,
}

impl<'t> OcelotReader<'t> {
    pub(super) fn options(&mut self, value: &Value<'t>, level: Level) -> Option<Options> {
        let of = match level {
            Level::Group => "GlobalRateLimitRules",
            Level::Global | Level::Route => "RateLimitOptions",
        };
        let table = self.reader.table(value, of)?;
        match level {
            Level::Group => {
                let known = format!("{OPTIONS} {GLOBAL_RULE}");
                self.reader.known(table, of, &known);
            }
            Level::Global | Level::Route => self.reader.known(table, of, OPTIONS),
        }
        self.note_names(table);
        let is_enabled = self.boolean(table, "EnableRateLimiting");
        let mut options = Options {
            span: value.span,
            is_enabled,
            header: None,
            exempt: None,
            limit: None,
            period: None,
            wait: Renamed::NONE,
            status: Renamed::NONE,
            message: Renamed::NONE,
            headers: Renamed::NONE,
            prefix: Renamed::NONE,
            route_keys: self.texts(table, "RouteKeys").into_iter().collect(),
        };
        if is_enabled == Some(false) {
            // Ocelot does not check them either.
            return Some(options);
        }
        options.header = self
            .short_text(table, "ClientIdHeader")
            .map(|header| header.value);
        options.exempt = self.exempt(table);
        options.limit = self.limit(table);
        options.period = self.period(table, level);
        if let (Level::Global, Some(limit), None) = (level, &options.limit, &options.period) {
            let message = format!("Period is missing beside Limit: it is {DEFAULT_PERIOD}");
            self.warn(limit.span, message);
        }
        options.wait = Renamed {
            old: self.seconds(table, level),
            new: self.wait(table),
        };
        options.status = self.renamed(table, ["HttpStatusCode", "StatusCode"], Self::status);
        let messages = ["QuotaExceededMessage", "QuotaMessage"];
        options.message = self.renamed(table, messages, Self::message);
        options.headers = self.renamed(table, HEADERS, |reader, table, name| {
            let (value, span) = (reader.boolean(table, name)?, get(table, name)?.span);
            let value = value != (name == HEADERS[0]);
            Some(Set { value, span })
        });
        let prefixes = ["RateLimitCounterPrefix", "KeyPrefix"];
        options.prefix = self.renamed(table, prefixes, Self::short_text);
        Some(options)
    }

    /// Notes whether options have names from before a version of Ocelot, or from after it.
    fn note_names(&mut self, table: &Table<'t>) {
        for (name, _) in table.iter() {
            if is_in(&name.text, OLD_NAMES) {
                self.old_name.get_or_insert(name.span);
            }
            self.has_new_name |= is_in(&name.text, NEW_NAMES);
        }
    }

    fn exempt(&mut self, table: &Table<'t>) -> Option<Arc<Values>> {
        let clients = self.texts(table, "ClientWhitelist");
        let mut values: Values = clients.into_iter().map(Into::into).collect();
        if values.remove("")
            && let Some(list) = get(table, "ClientWhitelist")
        {
            let message =
                "ClientWhitelist: \"\" has no effect: a request without a client is denied";
            self.warn(list.span, message);
        }
        (!values.is_empty()).then(|| Arc::new(values))
    }

    /// Text of which each rule has a copy.
    fn short_text(&mut self, table: &Table<'t>, name: &str) -> Option<Set<String>> {
        let text = self.text(table, name)?;
        if text.value.len() > MAX_NAME {
            let value = get(table, name)?;
            let problem = format_args!("is longer than {MAX_NAME} bytes");
            self.reader.invalid(value, name, problem);
            return None;
        }
        Some(text)
    }

    fn renamed<T>(
        &mut self,
        table: &Table<'t>,
        [old, new]: [&str; 2],
        read: fn(&mut Self, &Table<'t>, &str) -> Option<Set<T>>,
    ) -> Renamed<T> {
        Renamed {
            old: read(self, table, old),
            new: read(self, table, new),
        }
    }

    fn limit(&mut self, table: &Table<'t>) -> Option<Set<u64>> {
        let value = get(table, "Limit")?;
        let text = self.scalar(value, "Limit", "a whole number")?;
        let limit = text.trim().parse().ok();
        let limit = limit.filter(|&limit: &u64| limit > 0 && i64::try_from(limit).is_ok());
        if limit.is_none() {
            let problem = format_args!("is not a number of requests from 1 to {}", i64::MAX);
            self.reader.invalid(value, "Limit", problem);
        }
        // A wrong value is not missing too.
        Some(Set {
            value: limit.unwrap_or(1),
            span: value.span,
        })
    }

    fn period(&mut self, table: &Table<'t>, level: Level) -> Option<Set<Period>> {
        let value = get(table, "Period")?;
        let text = self
            .scalar(value, "Period", "a number and a unit")?
            .to_owned();
        if text.trim().is_empty() {
            return None;
        }
        let length = match time_span(&text) {
            _ if text.trim().len() > MAX_PERIOD => {
                Err(format!("is longer than {MAX_PERIOD} bytes"))
            }
            Ok(span) if !span.has_unit && level != Level::Global => {
                Err("has no unit: expected a number and ms, s, m, h or d".to_owned())
            }
            Ok(span) if span.is_negative => Err("is negative".to_owned()),
            Ok(span) if span.length.is_zero() => Err("is not longer than 0".to_owned()),
            Ok(span) => Ok(span.length),
            Err(problem) => Err(problem),
        };
        if let Err(problem) = &length {
            self.reader.invalid(value, "Period", problem);
        }
        Some(Set {
            value: Period {
                text: text.trim().to_owned(),
                length: length.unwrap_or(Duration::from_secs(1)),
            },
            span: value.span,
        })
    }

    fn wait(&mut self, table: &Table<'t>) -> Option<Set<Duration>> {
        let text = self.text(table, "Wait")?;
        match time_span(&text.value) {
            Ok(wait) => {
                if wait.is_negative {
                    self.warn(
                        text.span,
                        "Wait is negative: the sign is ignored, as in Ocelot",
                    );
                }
                Some(Set {
                    value: wait.length,
                    span: text.span,
                })
            }
            Err(problem) => {
                let value = get(table, "Wait")?;
                self.reader.invalid(value, "Wait", problem);
                None
            }
        }
    }

    /// `PeriodTimespan`: the old name of `Wait`, in seconds. In a rule of `GlobalRateLimitRules` it
    /// is the number in `Period`, and no wait.
    fn seconds(&mut self, table: &Table<'t>, level: Level) -> Option<Set<Duration>> {
        const NAME: &str = "PeriodTimespan";
        let value = get(table, NAME)?;
        let text = self.scalar(value, NAME, "a number of seconds")?;
        let seconds = text.trim().parse::<f64>().ok();
        let length = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.abs()).ok());
        let (Some(seconds), Some(length)) = (seconds, length) else {
            self.reader
                .invalid(value, NAME, "is not a number of seconds");
            return None;
        };
        if level == Level::Group {
            let period = get(table, "Period")
                .and_then(Value::as_text)
                .unwrap_or_default();
            let number = period.trim_end_matches(|c: char| !c.is_ascii_digit());
            if number.trim().parse() != Ok(seconds) {
                let message = format!("PeriodTimespan has no effect: the period is `{period}`");
                self.warn(value.span, message);
            }
            return None;
        }
        if seconds < 0.0 {
            let message = "PeriodTimespan is negative: the sign is ignored, as in Ocelot";
            self.warn(value.span, message);
        }
        Some(Set {
            value: length,
            span: value.span,
        })
    }

    /// A status of an error. Ocelot also sends one beyond HTTP, such as the 999 of its older
    /// documentation.
    fn status(&mut self, table: &Table<'t>, name: &str) -> Option<Set<u16>> {
        let value = get(table, name)?;
        let text = self.scalar(value, name, "a whole number")?;
        let status = match text.trim().parse() {
            Ok(status @ 400..=599) => status,
            Ok(status @ 600..=999) => {
                let message = format!(
                    "{name}: {status} is not a status of HTTP, which end at 599: {DEFAULT_STATUS} \
                     is used"
                );
                self.warn(value.span, message);
                DEFAULT_STATUS
            }
            _ => {
                self.reader.invalid(value, name, "is not from 400 to 599");
                return None;
            }
        };
        Some(Set {
            value: status,
            span: value.span,
        })
    }

    fn message(&mut self, table: &Table<'t>, name: &str) -> Option<Set<Vec<Piece>>> {
        let text = self.text(table, name)?;
        let pieces = match pieces(&text.value) {
            _ if text.value.len() > MAX_MESSAGE => {
                Err(format!("is longer than {MAX_MESSAGE} bytes"))
            }
            // Text comes before, between and after placeholders.
            Ok((pieces, _)) if pieces.len() > 2 * MAX_PLACEHOLDERS + 1 => {
                Err(format!("has more than {MAX_PLACEHOLDERS} placeholders"))
            }
            pieces => pieces,
        };
        match pieces {
            Ok((pieces, has_format)) => {
                if has_format {
                    let message = format!("{name}: the format of a number is ignored");
                    self.warn(text.span, message);
                }
                Some(Set {
                    value: pieces,
                    span: text.span,
                })
            }
            Err(problem) => {
                let value = get(table, name)?;
                self.reader.invalid(value, name, problem);
                None
            }
        }
    }
}

impl<T> Renamed<T> {
    const NONE: Self = Self {
        old: None,
        new: None,
    };
}

/// The option of the first of these options that has it.
fn first<'o, T>(
    all: [Option<&'o Options>; 2],
    option: impl Fn(&'o Options) -> Option<T>,
) -> Option<T> {
    all.into_iter().flatten().find_map(option)
}

/// The options that are in force for a route.
pub(super) struct Merged<'o> {
    pub(super) limit: &'o Set<u64>,
    pub(super) period: (&'o str, Duration),
    pub(super) wait: Duration,
    pub(super) header: Option<&'o str>,
    pub(super) exempt: Option<&'o Arc<Values>>,
    pub(super) status: Option<u16>,
    pub(super) message: Option<&'o [Piece]>,
    pub(super) headers: bool,
    pub(super) prefix: Option<&'o str>,
}

impl<'o> Merged<'o> {
    /// Merges the options of a route with the global ones. `None` if the route has no limit.
    pub(super) fn new(
        reader: &mut OcelotReader<'_>,
        key: &str,
        route: Option<&'o Options>,
        global: Option<&'o Options>,
    ) -> Option<Self> {
        let global =
            global.filter(|global| global.route_keys.is_empty() || global.route_keys.contains(key));
        let both = [route, global];
        let mut all = both.into_iter().flatten();
        if all.any(|options| options.is_enabled == Some(false)) {
            return None;
        }
        let limit = first(both, |options| options.limit.as_ref());
        let period = first(both, |options| options.period.as_ref());
        if let Some(route) = route {
            for (name, is_set) in [("Limit", limit.is_some()), ("Period", period.is_some())] {
                if !is_set {
                    let message = format!(
                        "{name} is missing in these RateLimitOptions, and in the global ones"
                    );
                    reader.reader.refuse(route.span, message);
                }
            }
        }
        let mut renamed = Renaming {
            reader,
            route,
            global,
        };
        let wait = renamed.option(["PeriodTimespan", "Wait"], |options| &options.wait);
        let status = renamed.option(["HttpStatusCode", "StatusCode"], |options| &options.status);
        let message = renamed.option(["QuotaExceededMessage", "QuotaMessage"], |options| {
            &options.message
        });
        let headers = renamed.option(HEADERS, |options| &options.headers);
        let prefix = renamed.option(["RateLimitCounterPrefix", "KeyPrefix"], |options| {
            &options.prefix
        });
        Some(Self {
            // Global options without a limit are only defaults for the options of routes.
            limit: limit?,
            period: match period {
                Some(period) => (&period.value.text, period.value.length),
                None => (DEFAULT_PERIOD, Duration::from_secs(1)),
            },
            wait: wait.copied().unwrap_or_default(),
            header: first(both, |options| options.header.as_deref()),
            exempt: first(both, |options| options.exempt.as_ref()),
            status: status.copied(),
            message: message.map(Vec::as_slice),
            headers: headers.copied().unwrap_or(true),
            prefix: prefix.map(String::as_str),
        })
    }

    pub(super) fn apply(&self, rule: Rule, headers: &[&str]) -> Rule {
        let (period_text, period) = self.period;
        let count = self.limit.value;
        let mut limit = Limit::per(count, period).algorithm_of(Algorithm::WindowFromRequest);
        if !self.wait.is_zero() {
            limit = limit.wait(self.wait);
        }
        let message = match self.message {
            Some(pieces) => pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => text.clone(),
                    Piece::Limit => count.to_string(),
                    Piece::Period => period_text.to_owned(),
                })
                .collect(),
            None => {
                format!("API calls quota exceeded! Maximum admitted {count} per {period_text}.")
            }
        };
        let key = match headers {
            [header] => Key::header(header),
            headers => Key::first_header(headers.iter().copied()),
        };
        let mut rule = rule
            .key(key)
            .on_missing(OnMissing::Deny)
            .limit(limit)
            .with_message(&message);
        if let Some(status) = self.status {
            rule = rule.with_status(status);
        }
        if !self.headers {
            rule = rule.without_headers();
        }
        for header in headers {
            if let Some(exempt) = self.exempt {
                rule = rule.exempt_values(header, Arc::clone(exempt));
            }
        }
        rule
    }
}

/// Merges the options that have an old and a new name.
struct Renaming<'r, 'o, 't> {
    reader: &'r mut OcelotReader<'t>,
    pub(super) route: Option<&'o Options>,
    pub(super) global: Option<&'o Options>,
}

impl<'o> Renaming<'_, 'o, '_> {
    /// The old names of both levels come before the new names, as in Ocelot.
    fn option<T>(
        &mut self,
        [old_name, new_name]: [&str; 2],
        of: fn(&Options) -> &Renamed<T>,
    ) -> Option<&'o T> {
        let (route, global) = (self.route.map(of), self.global.map(of));
        let either = |name: fn(&Renamed<T>) -> Option<&Set<T>>| {
            route.and_then(name).or_else(|| global.and_then(name))
        };
        let old = either(|option| option.old.as_ref());
        let new = either(|option| option.new.as_ref());
        if let (Some(_), Some(unused)) = (old, route.and_then(|route| route.new.as_ref())) {
            let message = format!("{new_name} has no effect beside {old_name}, as in Ocelot");
            self.reader.warn(unused.span, message);
        }
        old.or(new).map(|set| &set.value)
    }
}
