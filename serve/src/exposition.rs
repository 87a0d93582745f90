//! The counts as text for Prometheus: its exposition format 0.0.4.

use core::fmt::{self, Display, Write as _};
use std::time::UNIX_EPOCH;

use crate::counts::{Counts, MICROS};
use crate::original::askers;
use crate::stores::StoreState;

/// The header `Content-Type` of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text of metrics, which grows.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Begins a metric.
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", Escaped(value));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }
}

/// The value of a label, as the format has it.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Microseconds as seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if micros == 0 {
            return write!(f, "{seconds}");
        }
        let text = format!("{micros:06}");
        write!(f, "{seconds}.{}", text.trim_end_matches('0'))
    }
}

/// What is wrong with the policy file, if anything.
fn of_file(text: &mut Text, counts: &Counts) {
    for (name, help, is) in [
        (
            "portcullis_policy_file_refused",
            "Whether the policy file is refused, so that the policy before is in force.",
            counts.refused_file().is_some(),
        ),
        (
            "portcullis_restart_needed",
            "Whether the table serve of the file has changed since the start.",
            counts.is_restart_lacking(),
        ),
    ] {
        text.metric(name, "gauge", help);
        text.sample(name, &[], u8::from(is));
    }
}

/// All metrics.
pub(crate) fn text(counts: &Counts, stores: &[StoreState]) -> String {
    let mut text = Text::default();
    decisions(&mut text, counts);
    answers(&mut text, counts);
    of_program(&mut text, counts, stores);
    text.0
}

fn decisions(text: &mut Text, counts: &Counts) {
    let name = "portcullis_decisions_total";
    text.metric(name, "counter", "Decisions, by the rule that decided.");
    let decisions = counts.decisions();
    for ((rule, answer, limit), count) in &decisions {
        if *answer != "shadow_denied" {
            let labels = [("rule", &**rule), ("answer", answer), ("limit", limit)];
            text.sample(name, &labels, count);
        }
    }
    let name = "portcullis_shadow_denials_total";
    text.metric(
        name,
        "counter",
        "Requests that a shadow rule would have denied, by the rule and its limit.",
    );
    for ((rule, answer, limit), count) in &decisions {
        if *answer == "shadow_denied" {
            text.sample(name, &[("rule", rule), ("limit", limit)], count);
        }
    }
}

fn answers(text: &mut Text, counts: &Counts) {
    let name = "portcullis_checks_total";
    text.metric(
        name,
        "counter",
        "Checks, by the proxy and the status of the decision. In the mode shadow all pass.",
    );
    let mode = if counts.is_shadow() {
        "shadow"
    } else {
        "enforcing"
    };
    for (index, proxy) in askers().enumerate() {
        for (status, count) in counts.statuses(index) {
            let status = status.to_string();
            let labels = [("proxy", proxy), ("status", &status), ("mode", mode)];
            text.sample(name, &labels, count);
        }
    }
    let name = "portcullis_check_duration_seconds";
    text.metric(name, "histogram", "The time from a check to its answer.");
    for (index, proxy) in askers().enumerate() {
        let times = counts.times(index);
        let total: u64 = times.by_time.iter().sum();
        if total == 0 {
            continue;
        }
        let mut below = 0;
        for (bound, count) in MICROS.iter().zip(times.by_time) {
            below += count;
            let labels = [("proxy", proxy), ("le", &Seconds(*bound).to_string())];
            text.sample(&format!("{name}_bucket"), &labels, below);
        }
        let labels = [("proxy", proxy), ("le", "+Inf")];
        text.sample(&format!("{name}_bucket"), &labels, total);
        let labels = &labels[..1];
        text.sample(&format!("{name}_sum"), labels, Seconds(times.micros));
        text.sample(&format!("{name}_count"), labels, total);
    }
}

fn of_program(text: &mut Text, counts: &Counts, stores: &[StoreState]) {
    let (malformed, untrusted) = counts.refused();
    let name = "portcullis_malformed_checks_total";
    text.metric(name, "counter", "Checks that were about no request.");
    text.sample(name, &[], malformed);
    let name = "portcullis_untrusted_connections_total";
    text.metric(
        name,
        "counter",
        "Connections of peers that are no trusted proxies.",
    );
    text.sample(name, &[], untrusted);
    let name = "portcullis_connections";
    text.metric(name, "gauge", "Open connections of proxies.");
    text.sample(name, &[], counts.connections());
    let name = "process_start_time_seconds";
    let started = counts.started().duration_since(UNIX_EPOCH);
    let help = "When the program started, in seconds of Unix time: then its limits were full.";
    text.metric(name, "gauge", help);
    let micros = started.unwrap_or_default().as_micros();
    text.sample(
        name,
        &[],
        Seconds(u64::try_from(micros).unwrap_or(u64::MAX)),
    );
    let name = "portcullis_policy_reloads_total";
    text.metric(
        name,
        "counter",
        "Changes of the policy file, by their result.",
    );
    for (result, count) in ["refused", "in_force"].into_iter().zip(counts.reloads()) {
        text.sample(name, &[("result", result)], count);
    }
    of_file(text, counts);
    let name = "portcullis_policy_table_bytes";
    text.metric(name, "gauge", "The memory of the tables of all rules.");
    text.sample(name, &[], counts.live().load().table_bytes());
    let name = "portcullis_store_up";
    text.metric(
        name,
        "gauge",
        "Whether a counter store has answered its last call.",
    );
    for store in stores {
        let is_up = u8::from(store.is_up());
        text.sample(name, &[("store", &store.name)], is_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Text::default();
        text.sample("a", &[("b", "\"\\\n}"), ("c", "")], 1);
        text.sample("d", &[], 2);
        assert_eq!(text.0, "a{b=\"\\\"\\\\\\n}\",c=\"\"} 1\nd 2\n");
    }

    #[test]
    fn times_are_in_seconds() {
        for (micros, seconds) in [
            (0, "0"),
            (50, "0.00005"),
            (200_000, "0.2"),
            (5_000_000, "5"),
            (1_000_001, "1.000001"),
        ] {
            assert_eq!(Seconds(micros).to_string(), seconds);
        }
    }
}
