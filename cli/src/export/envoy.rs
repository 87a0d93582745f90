//! The configuration of Envoy: the local rate limit filter, in JSON.
//!
//! A limit is an element of `rate_limits`, which makes a descriptor of a request: the number of the
//! rule and of the limit, that its conditions hold, that those of the rules before do not, and the
//! key. The filter has a token bucket for each descriptor. An entry without a value is for all
//! values: each has a bucket of its own.

use serde_json::{Value, json};

use portcullis_policy::{KeyPart, Limit, OnMissing, RuleParts};

use super::plan::{
    Plan, Planned, Says, Unsaid, any_of, headers_of, host, hosts_of, is_continuous, literal,
    methods_of, not_continuous, path, required_headers,
};

pub(crate) struct Envoy;

/// In milliseconds, of which each other interval is a multiple.
const INTERVAL: u64 = 50;

impl Says for Envoy {
    fn conditions(&self, parts: &RuleParts<'_>) -> Option<String> {
        let (_, networks) = hosts_of(parts);
        let network = networks.first()?;
        Some(format!("no header field tells the network {network}"))
    }

    fn key(&self, parts: &RuleParts<'_>) -> Option<String> {
        if !parts.exempt_networks.is_empty() {
            return Some("no header field tells a network that is exempt".into());
        }
        let spelled = [KeyPart::Path, KeyPart::Host, KeyPart::Method];
        if spelled.iter().any(|part| parts.key.contains(part)) {
            return Some("it has several spellings there, which are several keys".into());
        }
        let needs = !headers_of(parts).is_empty() && parts.on_missing != OnMissing::Skip;
        needs.then(|| "a request without a part of the key has no limit there".into())
    }

    fn limit(&self, limit: &Limit) -> Option<String> {
        if limit.count() == 0 {
            return Some("a limit of 0 cannot be said: reply from a route".into());
        }
        if !is_continuous(limit) {
            return Some(not_continuous(limit, bucket(limit).is_some()));
        }
        match bucket(limit) {
            Some(_) => None,
            None => Some("it is too large there, or not of whole milliseconds".into()),
        }
    }

    fn only_status(&self, _: u16) -> Option<u16> {
        Some(429)
    }
}

/// A token bucket as Envoy writes it, with the interval as a multiple of [`INTERVAL`].
fn bucket(limit: &Limit) -> Option<Value> {
    let period = limit.period()?;
    let millis = u64::try_from(period.as_millis()).ok()?;
    if millis == 0 || period.subsec_nanos() % 1_000_000 != 0 {
        return None;
    }
    let times = (1..=INTERVAL).find(|times| (millis * times).is_multiple_of(INTERVAL))?;
    let count = u32::try_from(limit.count().checked_mul(times)?).ok()?;
    let burst = u32::try_from(limit.capacity()).ok()?;
    let millis = millis.checked_mul(times)?;
    Some(json!({
        "max_tokens": burst,
        "tokens_per_fill": count,
        "fill_interval": format!("{}.{:03}s", millis / 1_000, millis % 1_000),
    }))
}

fn matcher(name: &str, regex: &str) -> Value {
    json!({ "name": name, "string_match": { "safe_regex": { "regex": regex } } })
}

/// The header fields that a request of a rule has.
fn headers(rule: &Planned<'_>, plan: &Plan<'_>) -> Vec<Value> {
    let parts = &rule.parts;
    let mut headers = Vec::new();
    let methods = methods_of(parts);
    if !methods.is_empty() {
        let methods = any_of(methods.into_iter().map(|name| literal(name.as_bytes())));
        headers.push(matcher(":method", &methods));
    }
    if !parts.paths.is_empty() {
        let paths = any_of(parts.paths.iter().map(|text| path(text, plan.literal)));
        let case = if plan.ignore_case { "(?i)" } else { "" };
        headers.push(matcher(":path", &format!("{case}{paths}([?#].*)?")));
    }
    let (names, _) = hosts_of(parts);
    if !names.is_empty() {
        let hosts = any_of(names.into_iter().map(host));
        headers.push(matcher(":authority", &format!("(?i){hosts}(:[0-9]*)?")));
    }
    let required = required_headers(parts).into_iter();
    headers.extend(required.map(|name| matcher(name, ".+")));
    headers
}

/// An action, and the entry of the descriptor that it makes.
type Action = (Value, Value);

fn generic(key: &str, value: &str) -> Action {
    (
        json!({ "generic_key": { "descriptor_key": key, "descriptor_value": value } }),
        json!({ "key": key, "value": value }),
    )
}

fn headers_match(key: &str, value: &str, is_expected: bool, headers: &[Value]) -> Action {
    let action = json!({ "header_value_match": {
        "descriptor_key": key,
        "descriptor_value": value,
        "expect_match": is_expected,
        "headers": headers,
    } });
    (action, json!({ "key": key, "value": value }))
}

/// The actions for the key of a rule, and what exempts from it.
fn key_of(parts: &RuleParts<'_>) -> Vec<Action> {
    let exempt = parts.exempt.iter().filter_map(|(by, values)| match by {
        KeyPart::Header([name]) => {
            let values = any_of(values.iter().map(|value| literal(value.as_bytes())));
            let header = matcher(name, &values);
            Some(headers_match("not exempt", name, false, &[header]))
        }
        _ => None,
    });
    let key = parts.key.iter().filter_map(|part| match part {
        KeyPart::Address { v4, v6 } => {
            let masks = json!({ "v4_prefix_mask_len": v4, "v6_prefix_mask_len": v6 });
            let action = json!({ "masked_remote_address": masks });
            Some((action, json!({ "key": "masked_remote_address" })))
        }
        KeyPart::Header([name]) => Some(header(name)),
        _ => None,
    });
    exempt.chain(key).collect()
}

/// The value of a header field as a part of the key.
fn header(name: &str) -> Action {
    let action = json!({ "request_headers": { "header_name": name, "descriptor_key": name } });
    (action, json!({ "key": name }))
}

/// Writes the rules of a plan, and returns what cannot be said.
pub(crate) fn write(plan: Plan<'_>) -> (String, Vec<Unsaid<'_>>) {
    let (mut rate_limits, mut descriptors) = (Vec::new(), Vec::new());
    let mut before: Vec<(String, Vec<Value>)> = Vec::new();
    let mut keys = 1;
    for rule in &plan.rules {
        let own = headers(rule, &plan);
        let number = rule.number.to_string();
        for (index, limit) in rule.limits.iter().enumerate() {
            let mut all = vec![generic("portcullis", &format!("{number}.{}", index + 1))];
            if !own.is_empty() {
                all.push(headers_match("rule", &number, true, &own));
            }
            let earlier = before.iter();
            all.extend(earlier.map(|(number, own)| headers_match("not", number, false, own)));
            all.extend(key_of(&rule.parts));
            let (actions, entries): (Vec<Value>, Vec<Value>) = all.into_iter().unzip();
            rate_limits.push(json!({ "actions": actions }));
            descriptors.push(json!({ "entries": entries, "token_bucket": bucket(limit) }));
            if !rule.parts.key.is_empty() {
                keys = keys.max(rule.parts.keys);
            }
        }
        if rule.ends {
            if own.is_empty() {
                // No request reaches the rules after it.
                break;
            }
            before.push((number, own));
        }
    }
    let always = json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" } });
    let config =
        "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
    let unlimited = json!({
        "max_tokens": u32::MAX,
        "tokens_per_fill": u32::MAX,
        "fill_interval": format!("0.{INTERVAL:03}s"),
    });
    let filter = json!({
        "name": "envoy.filters.http.local_ratelimit",
        "typed_config": {
            "@type": config,
            "stat_prefix": "portcullis",
            "token_bucket": unlimited,
            "always_consume_default_token_bucket": false,
            "filter_enabled": always,
            "filter_enforced": always,
            "max_dynamic_descriptors": u32::try_from(keys).unwrap_or(u32::MAX),
            "descriptors": descriptors,
            "rate_limits": rate_limits,
        },
    });
    (format!("{filter:#}\n"), plan.unsaid)
}
