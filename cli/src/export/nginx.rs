//! The configuration of nginx: `limit_req` and `limit_conn` with keys of `map`.
//!
//! ```text
//! geo, map          1 for each network or header field that a rule asks for: the flags
//! $portcullis_rule  the number of the rule that ends the search: the first line that matches
//! $portcullis_key_N the key of rule N if it limits the request, else empty
//! limit_req         counts the requests whose key is not empty
//! ```
//!
//! A rate of N in a period and a burst B is `rate=N burst=B-1 nodelay`: nginx lets one request
//! pass besides its burst. nginx keeps all `limit_req` of a request all or none.

use core::fmt::Write as _;
use core::time::Duration;

use portcullis_policy::{KeyPart, Limit, OnMissing, RuleParts};

use super::ALSO;
use super::plan::{
    Plan, Planned, Says, Unsaid, any_of, headers_of, host, hosts_of, is_continuous, literal,
    methods_of, not_continuous, path, required_headers,
};
use crate::text::visible;

pub(crate) struct Nginx;

/// The largest number that is written, so that nginx has room for thousandths of it.
const MAX: u64 = 1_000_000_000;

impl Says for Nginx {
    fn conditions(&self, parts: &RuleParts<'_>) -> Option<String> {
        nameless(&required_headers(parts))
    }

    fn key(&self, parts: &RuleParts<'_>) -> Option<String> {
        let mut headers = headers_of(parts);
        if parts.on_missing == OnMissing::Deny && !headers.is_empty() {
            return Some("no rule there denies a request that lacks a part of the key".into());
        }
        headers.extend(exempting(parts).map(|(name, _)| name));
        let wide = parts.key.iter().find_map(|part| match part {
            KeyPart::Address { v4, v6 } if v4 % 8 != 0 || v6 % 16 != 0 || *v6 == 112 => Some(format!(
                "networks there have whole parts, and not the first {v4} or {v6} bits of an address"
            )),
            _ => None,
        });
        wide.or_else(|| nameless(&headers))
    }

    fn limit(&self, limit: &Limit) -> Option<String> {
        if limit.count() == 0 {
            return Some("a limit of 0 cannot be said: return a status in a location".into());
        }
        let Some(period) = limit.period() else {
            let is_large = limit.count() > 65_535;
            return is_large.then(|| "at most 65535 at once can be said".into());
        };
        if !is_continuous(limit) {
            let has_bucket = rate(limit.count(), period).is_some() && limit.capacity() <= MAX;
            return Some(not_continuous(limit, has_bucket));
        }
        match rate(limit.count(), period) {
            Some(_) if limit.capacity() > MAX => Some("its burst is too large".into()),
            Some(_) => None,
            None => Some("a rate there is a whole number a second or a minute".into()),
        }
    }

    fn only_status(&self, first: u16) -> Option<u16> {
        Some(first)
    }
}

/// A rate as nginx writes it, if it can.
fn rate(count: u64, period: Duration) -> Option<String> {
    let millis = u64::try_from(period.as_millis()).ok()?;
    let whole = |length: u64, unit: &str| {
        let permits = count.checked_mul(length)?;
        let is_whole = millis > 0 && permits.is_multiple_of(millis);
        let rate = permits.checked_div(millis)?;
        (is_whole && (1..=MAX).contains(&rate)).then(|| format!("{rate}{unit}"))
    };
    whole(1_000, "r/s").or_else(|| whole(60_000, "r/m"))
}

/// Why a header field has no variable.
fn nameless(names: &[&str]) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let name = names.iter().find(|name| !name.chars().all(is_plain))?;
    Some(format!(
        "the header field {} has no variable there",
        name.escape_debug()
    ))
}

/// The header fields that exempt a client, with their values.
fn exempting<'r>(
    parts: &'r RuleParts<'_>,
) -> impl Iterator<Item = (&'r str, &'r [&'r str])> + use<'r> {
    parts.exempt.iter().filter_map(|(by, values)| match by {
        KeyPart::Header([name]) => Some((&**name, &values[..])),
        _ => None,
    })
}

/// The variable with a header field.
fn variable(name: &str) -> String {
    format!("$http_{}", name.to_ascii_lowercase().replace('-', "_"))
}

/// What lines of a `map` ask for besides the method, the host and the path: variables that are 0
/// or 1.
#[derive(Default)]
struct Flags {
    /// The definition of each. Equal ones are one.
    all: Vec<String>,
}

impl Flags {
    fn flag(&mut self, definition: String) -> usize {
        let known = self.all.iter().position(|known| *known == definition);
        known.unwrap_or_else(|| {
            self.all.push(definition);
            self.all.len() - 1
        })
    }

    /// A flag for clients in networks.
    fn networks<'n>(&mut self, networks: impl IntoIterator<Item = &'n str>) -> usize {
        let lines = networks
            .into_iter()
            .map(|network| format!("    {network} 1;\n"));
        self.flag(format!(
            "geo $portcullis_if_N {{\n    default 0;\n{}}}\n",
            lines.collect::<String>()
        ))
    }

    /// A flag for requests whose header field has one of these values, or any.
    fn header(&mut self, name: &str, values: Option<&[&str]>) -> usize {
        let value = match values {
            Some(values) => any_of(values.iter().map(|value| literal(value.as_bytes()))),
            None => "[\\s\\S]+".into(),
        };
        let variable = variable(name);
        self.flag(format!(
            "map {variable} $portcullis_if_N {{\n    default 0;\n    \"~^{value}\\z\" 1;\n}}\n"
        ))
    }

    /// A regular expression for the flags of a request of which these are 1.
    fn regex(&self, ones: &[usize]) -> String {
        let flag = |at: usize| if ones.contains(&at) { '1' } else { '.' };
        (0..self.all.len()).map(flag).collect()
    }
}

/// What a rule asks for: alternatives, each with its flags and an expression for the host.
struct Asked {
    alternatives: Vec<(Vec<usize>, String)>,
    methods: String,
    /// Empty for any path.
    paths: String,
    /// Alternatives for clients that are exempt.
    exempt: Vec<usize>,
}

impl Asked {
    fn new(rule: &Planned<'_>, plan: &Plan<'_>, flags: &mut Flags) -> Self {
        let parts = &rule.parts;
        let required = required_headers(parts);
        let required = required.into_iter().map(|name| flags.header(name, None));
        let required: Vec<usize> = required.collect();
        let (names, networks) = hosts_of(parts);
        let any = "[^ ]*".to_owned();
        let mut alternatives = Vec::new();
        if names.is_empty() && networks.is_empty() {
            alternatives.push((required.clone(), any.clone()));
        }
        if !names.is_empty() {
            let hosts = any_of(names.into_iter().map(host));
            alternatives.push((required.clone(), hosts));
        }
        if !networks.is_empty() {
            let mut ones = required;
            ones.push(flags.networks(networks));
            alternatives.push((ones, any.clone()));
        }
        let methods = methods_of(parts);
        let methods = if methods.is_empty() {
            any
        } else {
            any_of(methods.into_iter().map(|name| literal(name.as_bytes())))
        };
        let paths = parts.paths.iter().map(|pattern| path(pattern, false));
        let paths = match parts.paths.is_empty() {
            true => String::new(),
            false if plan.ignore_case => format!("(?i){}\\z", any_of(paths)),
            false => format!("{}\\z", any_of(paths)),
        };
        let mut exempt = Vec::new();
        if !rule.limits.is_empty() {
            exempt.extend(exempting(parts).map(|(name, values)| flags.header(name, Some(values))));
            let networks = parts.exempt_networks;
            if !networks.is_empty() {
                exempt.push(flags.networks(networks.iter().map(|network| &**network)));
            }
        }
        Self {
            alternatives,
            methods,
            paths,
            exempt,
        }
    }

    /// Writes the lines of a `map` for the requests of the rule, and for those of exempt clients.
    fn lines(&self, text: &mut String, flags: &Flags, start: &str, value: &str, exempt: &str) {
        let mut line = |extra: Option<usize>, value: &str| {
            for (ones, host) in &self.alternatives {
                let ones = [&ones[..], extra.as_slice()].concat();
                let (flags, methods, paths) = (flags.regex(&ones), &self.methods, &self.paths);
                let _ = writeln!(
                    text,
                    "    \"~^{start}{flags} {methods} {host} {paths}\" {value};"
                );
            }
        };
        for flag in &self.exempt {
            line(Some(*flag), exempt);
        }
        line(None, value);
    }
}

/// The key of a rule as a value of a `map`. Never empty, and a line break, which no part has,
/// separates the parts.
fn key_of(parts: &RuleParts<'_>) -> String {
    let part = |part: &KeyPart<'_>| match part {
        KeyPart::Address { v4, v6 } => format!("$portcullis_address_{v4}_{v6}"),
        KeyPart::Path => "$portcullis_path".into(),
        KeyPart::Host => "$host".into(),
        KeyPart::Method => "$portcullis_method".into(),
        KeyPart::Header([name]) => variable(name),
        _ => String::new(),
    };
    let parts: Vec<String> = parts.key.iter().map(part).collect();
    format!("\"k{}\"", parts.join("\\n"))
}

/// A `map` of the address of a client to its first bits. nginx writes an IPv6 address with `::` for
/// its longest run of zeros, so the groups before and after it are counted.
fn address(v4: u8, v6: u8) -> String {
    let mut text = format!("map $remote_addr $portcullis_address_{v4}_{v6} {{\n");
    let bytes = usize::from(v4 / 8);
    let kept = "(?<kept>".to_owned() + &vec!["\\d+"; bytes].join("\\.") + ")";
    let rest = "\\.\\d+".repeat(4 - bytes.max(1));
    for mapped in ["", "::ffff:"] {
        let _ = match bytes {
            0 => writeln!(text, "    \"~^{mapped}\\d+\\.\\d+\\.\\d+\\.\\d+\\z\" v4;"),
            1.. => writeln!(text, "    \"~^{mapped}{kept}{rest}\\z\" $kept;"),
        };
    }
    let groups = usize::from(v6 / 16);
    if groups == 8 {
        text += "    default $remote_addr;\n}\n";
        return text;
    }
    if groups > 0 {
        // The last groups after twelve zero bytes are written as an IPv4 address.
        let _ = writeln!(
            text,
            "    \"~^::\\d+\\.\\d+\\.\\d+\\.\\d+\\z\" \"{}\";",
            "0:".repeat(groups)
        );
        let _ = writeln!(text, "    \"~^(?<kept>([0-9a-f]+:){{{groups}}})\" $kept;");
        for before in 0..groups {
            let start = "[0-9a-f]+:".repeat(before);
            let start = match before {
                0 => "^(?<kept>):".to_owned(),
                _ => format!("^(?<kept>{start})"),
            };
            // The zeros reach over all groups that are kept.
            let zeros = "0:".repeat(groups - before);
            let most = 8 - groups;
            let _ = writeln!(
                text,
                "    \"~{start}:([0-9a-f]+(:[0-9a-f]+){{0,{}}})?\\z\" \"${{kept}}{zeros}\";",
                most - 1
            );
            // Or only over some of them.
            for after in most + 1..8 - before {
                let run = 8 - before - after;
                let (zeros, more) = ("0:".repeat(run), groups - before - run);
                let _ = writeln!(
                    text,
                    "    \"~{start}:(?<more>([0-9a-f]+:){{{more}}})[0-9a-f]+(:[0-9a-f]+){{{}}}\\z\" \"${{kept}}{zeros}${{more}}\";",
                    after - more - 1
                );
            }
        }
        text += "    default $remote_addr;\n}\n";
    } else {
        text += "    default v6;\n}\n";
    }
    text
}

/// Takes away the limits whose key is a path, if its case makes no difference.
fn without_paths(plan: &mut Plan<'_>) {
    let has_path = |rule: &&mut Planned<'_>| rule.parts.key.contains(&KeyPart::Path);
    let unsaid = plan.rules.iter_mut().filter(has_path).filter_map(|rule| {
        let limits = core::mem::take(&mut rule.limits);
        (!limits.is_empty()).then(|| Unsaid {
            rule: rule.rule.name(),
            reason: "a key there tells upper and lower case apart: its requests pass without \
                     a limit"
                .into(),
        })
    });
    let unsaid: Vec<_> = unsaid.collect();
    plan.unsaid.extend(unsaid);
}

/// The variables that keys have.
fn variables(plan: &Plan<'_>) -> Vec<String> {
    let mut maps: Vec<String> = Vec::new();
    let parts = plan.rules.iter().filter(|rule| !rule.limits.is_empty());
    for part in parts.flat_map(|rule| &rule.parts.key) {
        let map = match part {
            KeyPart::Address { v4, v6 } => address(*v4, *v6),
            KeyPart::Method => "map $request_method $portcullis_method {\n    HEAD GET;\n    \
                                default $request_method;\n}\n"
                .into(),
            KeyPart::Path => "map $uri $portcullis_path {\n    \
                              \"~^(?<kept>/[\\s\\S]*[^/])/*\\z\" $kept;\n    default /;\n}\n"
                .into(),
            _ => continue,
        };
        if !maps.contains(&map) {
            maps.push(map);
        }
    }
    maps
}

/// Writes the `map` of the key of a rule. The rules in `ended` keep their requests from it.
fn key_map(
    text: &mut String,
    (rule, asked): (&Planned<'_>, &Asked),
    flags: &Flags,
    request: &str,
    ended: &[String],
) {
    let (number, key) = (rule.number, key_of(&rule.parts));
    if rule.ends {
        let _ = writeln!(
            text,
            "map $portcullis_rule $portcullis_key_{number} {{\n    {number} {key};"
        );
    } else {
        let _ = writeln!(
            text,
            "map \"$portcullis_rule {request}\" $portcullis_key_{number} {{"
        );
        if !ended.is_empty() {
            // An earlier rule has decided.
            let earlier = any_of(ended.iter().cloned());
            let _ = writeln!(text, "    \"~^{earlier}e? \" \"\";");
        }
        asked.lines(text, flags, "\\d+e? ", &key, "\"\"");
    }
    *text += "    default \"\";\n}\n";
}

/// Writes the rules of a plan, and returns what cannot be said.
pub(crate) fn write(mut plan: Plan<'_>) -> (String, Vec<Unsaid<'_>>) {
    if plan.ignore_case {
        without_paths(&mut plan);
    }
    let mut flags = Flags::default();
    let asked: Vec<Asked> = plan
        .rules
        .iter()
        .map(|rule| Asked::new(rule, &plan, &mut flags))
        .collect();
    let mut text = String::from(
        "# Include this file in the block `http`. The limits then hold in all servers.\n\n",
    );
    for (index, definition) in flags.all.iter().enumerate() {
        text += &definition.replacen("_N ", &format!("_{index} "), 1);
        text.push('\n');
    }
    for map in variables(&plan) {
        text += &map;
        text.push('\n');
    }
    let bits = (0..flags.all.len()).map(|index| format!("${{portcullis_if_{index}}}"));
    let request = bits.collect::<String>() + " $request_method $host $uri";
    text += "# The rule that decides a request.\n";
    let _ = writeln!(text, "map \"{request}\" $portcullis_rule {{");
    for (rule, asked) in plan.rules.iter().zip(&asked).filter(|(rule, _)| rule.ends) {
        let number = rule.number.to_string();
        asked.lines(&mut text, &flags, "", &number, &format!("{number}e"));
    }
    text += "    default 0;\n}\n";
    let mut ended: Vec<String> = Vec::new();
    let mut limits = String::new();
    for (rule, asked) in plan.rules.iter().zip(&asked) {
        if !rule.limits.is_empty() {
            let name = visible(rule.rule.name().as_bytes());
            let _ = writeln!(text, "\n# {name}");
            key_map(&mut text, (rule, asked), &flags, &request, &ended);
            for (index, limit) in rule.limits.iter().enumerate() {
                zone(&mut text, &mut limits, rule, index, limit);
            }
        }
        if rule.ends {
            ended.push(rule.number.to_string());
        }
    }
    if let Some(rule) = plan.rules.iter().find(|rule| !rule.limits.is_empty()) {
        let status = rule.rule.status();
        let _ = write!(
            text,
            "\n{limits}limit_req_status {status};\nlimit_conn_status {status};\n"
        );
    }
    (text, plan.unsaid)
}

/// Writes the zone of a limit, and the limit.
fn zone(text: &mut String, limits: &mut String, rule: &Planned<'_>, index: usize, limit: &Limit) {
    let number = rule.number;
    let name = format!("portcullis_{number}_{}", index + 1);
    let (keys, bytes) = match &rule.parts.key[..] {
        [] => (1, 128),
        [KeyPart::Address { .. }] => (rule.parts.keys, 128),
        _ => (rule.parts.keys, 256),
    };
    let kilobytes = keys.saturating_mul(bytes) / 1_024 + 64;
    let zone = format!("$portcullis_key_{number} zone={name}:{kilobytes}k");
    let rate = limit
        .period()
        .and_then(|period| rate(limit.count(), period));
    if let Some(rate) = rate {
        let _ = writeln!(text, "limit_req_zone {zone} rate={rate};");
        // nginx refuses `burst=0`, which is its default.
        let burst = match limit.capacity() {
            1 => String::new(),
            burst => format!(" burst={}", burst - 1),
        };
        let _ = writeln!(limits, "limit_req zone={name}{burst} nodelay;{ALSO}");
    } else {
        let _ = writeln!(text, "limit_conn_zone {zone};");
        let _ = writeln!(limits, "limit_conn {name} {};", limit.count());
    }
}
