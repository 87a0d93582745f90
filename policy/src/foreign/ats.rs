//! Rules from the policies of the Azure Throttling Solution (ATS).
//!
//! A policy of ATS counts the activity that is reported for a category, and puts decisions in force
//! at thresholds. So each policy becomes a rule with thresholds and without limits.

use core::time::Duration;

use super::Imported;
use crate::conditions::Conditions;
use crate::document::{Names, Node, Reader, Table, Value};
use crate::key::Key;
use crate::path::PathRules;
use crate::problem::FileError;
use crate::rule::Rule;
use crate::thresholds::Threshold;

impl Imported {
    /// Reads the policies of a file of the Azure Throttling Solution (ATS), with comments.
    ///
    /// ```json
    /// {
    ///     "policies": [{
    ///         "category": "contoso.getstatus",
    ///         "windowDuration": "00:00:10",
    ///         "thresholds": [
    ///             { "value": 100, "decisionType": "Slow", "minDecisionDuration": "00:00:05" },
    ///             { "value": 200, "decisionType": "Stop", "minDecisionDuration": "00:01:00" },
    ///         ],
    ///     }],
    /// }
    /// ```
    ///
    /// Each policy becomes a rule of the name of its category, with a [`Threshold`] for each of its
    /// thresholds. The rule is for requests whose property `category` is the category. Activity is
    /// counted for each value of the property `id`, and for all requests without one together.
    ///
    /// | ATS | here |
    /// |---|---|
    /// | `ReportActivity(category, value, id)` | `Policy::report_at`, with `value` |
    /// | `GetDecision(category)` | `Policy::in_force_at` |
    /// | `windowDuration`, `value` | [`Threshold::new`] |
    /// | `decisionType`, `minDecisionDuration` | [`Threshold::decision`], [`Threshold::hold`] |
    ///
    /// A time is `hh:mm:ss`, with days before it (`7.00:00:00`) or a fraction after it.
    ///
    /// # Errors
    ///
    /// All errors of the file, in their order: text that is not JSON, settings that are unknown,
    /// set twice or missing, and values that are not valid.
    ///
    /// ```
    /// use portcullis_core::Timestamp;
    /// use portcullis_policy::{Imported, Request};
    ///
    /// let policy = Imported::from_ats(r#"{ "policies": [{
    ///     "category": "contoso.getstatus",
    ///     "windowDuration": "00:00:10",
    ///     "thresholds": [{ "value": 100, "decisionType": "Slow" }],
    /// }] }"#).unwrap().into_policy().unwrap();
    ///
    /// let alice = [("category", "contoso.getstatus"), ("id", "alice")];
    /// let request = Request::new("", "").properties(&alice);
    /// let now = Timestamp::from_secs(1);
    /// policy.report_at(now, &request, 100);
    /// assert!(policy.is_in_force_at(now, &request, "Slow").unwrap());
    /// ```
    pub fn from_ats(text: &str) -> Result<Self, Vec<FileError>> {
        let (mut reader, file) = Reader::json(text, Names::AnyCase);
        let Some(file) = file else {
            return Err(reader.into_errors());
        };
        reader.known(&file, "a file of ATS", "policies");
        let mut rules = Vec::new();
        match file.get("policies") {
            Some(value) => {
                for value in reader.array(value, "policies", "an array of objects") {
                    rules.extend(rule(&mut reader, value));
                }
            }
            None => reader.refuse((0..0).into(), "policies is missing in this file"),
        }
        let path_rules = PathRules::new();
        let warnings = reader.checked(&rules, path_rules, Vec::new())?;
        Ok(Self {
            rules,
            path_rules,
            warnings,
        })
    }
}

fn rule<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<Rule> {
    let table = reader.table(value, "policies")?;
    reader.known(table, "a policy", "category windowDuration thresholds");
    let needed = ["category", "windowDuration", "thresholds"];
    let [category, window, thresholds] = required(reader, value, table, "policy", needed)?;
    let name = reader.text(category, "category")?;
    let window = time(reader, window, "windowDuration");
    let number = reader.rule(name);
    reader.note(number, "name", None, category.span);
    let mut rule = Rule::new(name)
        .when(Conditions::new().property("category", [name]))
        .key(Key::property("id"));
    for (index, value) in reader
        .array(thresholds, "thresholds", "an array of objects")
        .iter()
        .enumerate()
    {
        reader.note(number, &format!("thresholds[{index}]"), None, value.span);
        // A wrong window is reported once.
        let window = window.unwrap_or(Duration::from_secs(1));
        // An invalid threshold keeps its place, so that others keep theirs.
        let threshold = threshold(reader, value, window);
        rule = rule.threshold(threshold.unwrap_or_else(|| Threshold::new(1, window, "invalid")));
    }
    if thresholds.as_array().is_some_and(<[_]>::is_empty) {
        reader.refuse(thresholds.span, "thresholds: a policy needs at least one");
    }
    Some(rule)
}

fn threshold<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    window: Duration,
) -> Option<Threshold> {
    let table = reader.table(value, "thresholds")?;
    reader.known(
        table,
        "a threshold",
        "value decisionType minDecisionDuration",
    );
    let [count, decision] = required(reader, value, table, "threshold", ["value", "decisionType"])?;
    let hold = match table.get("minDecisionDuration") {
        Some(value) => time(reader, value, "minDecisionDuration"),
        None => None,
    };
    let count = match count.node {
        Node::Integer(Some(0)) => {
            reader.invalid(count, "value", "must be at least 1");
            return None;
        }
        _ => reader.number(count, "value", u32::MAX.into())?,
    };
    let decision = reader.text(decision, "decisionType")?;
    let threshold = Threshold::new(count as u32, window, decision);
    Some(threshold.holding_for(hold.unwrap_or_default()))
}

/// The values of settings that must be there.
fn required<'v, 't, const N: usize>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    table: &'v Table<'t>,
    of: &str,
    names: [&str; N],
) -> Option<[&'v Value<'t>; N]> {
    for name in names {
        if table.get(name).is_none() {
            reader.refuse(value.span, format!("{name} is missing in this {of}"));
        }
    }
    let values: Vec<_> = names.iter().filter_map(|name| table.get(name)).collect();
    values.try_into().ok()
}

fn time<'t>(reader: &mut Reader<'t>, value: &Value<'t>, setting: &str) -> Option<Duration> {
    let text = reader.text(value, setting)?;
    let time = time_span(text);
    if time.is_none() {
        let problem = "is not a length of time: expected hh:mm:ss, such as 00:00:10, or \
                       d.hh:mm:ss";
        reader.invalid(value, setting, problem);
    }
    time
}

/// Parses `[d.]hh:mm:ss[.fffffff]`, as .NET writes it.
fn time_span(text: &str) -> Option<Duration> {
    let number = |digits: &str, most: u64| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|&number: &u64| number <= most);
        number.filter(|_| is_number)
    };
    let mut parts = text.split(':');
    let (first, minutes, last) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let (days, hours) = first.split_once('.').unwrap_or(("0", first));
    let (seconds, fraction) = last.split_once('.').unwrap_or((last, "0"));
    // The largest number of days that .NET knows.
    let hours = number(days, 10_675_199)? * 24 + number(hours, 23)?;
    let seconds = (hours * 60 + number(minutes, 59)?) * 60 + number(seconds, 59)?;
    let nanos = number(fraction, 9_999_999).filter(|_| fraction.len() <= 7)?;
    let nanos = nanos * 10_u64.pow(9 - fraction.len() as u32);
    Some(Duration::new(seconds, nanos as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_dotnet_writes_it() {
        for (text, expected) in [
            ("00:00:10", Some((10, 0))),
            ("1:02:03", Some((3_723, 0))),
            ("7.00:00:00", Some((604_800, 0))),
            ("00:00:00.5", Some((0, 500_000_000))),
            ("00:00:00.0000001", Some((0, 100))),
            ("00:00:00.00000001", None),
            ("24:00:00", None),
            ("00:60:00", None),
            ("00:00", None),
            ("10", None),
            ("", None),
            ("-00:00:10", None),
            ("00:00:10:00", None),
            ("+1:00:00", None),
            ("10675200.00:00:00", None),
        ] {
            let expected = expected.map(|(seconds, nanos)| Duration::new(seconds, nanos));
            assert_eq!(time_span(text), expected, "{text}");
        }
    }
}
