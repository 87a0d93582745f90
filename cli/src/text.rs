//! Formatting of numbers for people.

use core::fmt::{self, Write};
use core::time::Duration;

use clap::ValueEnum;

/// Formats `n` with a comma after every three digits.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Shows bytes as they are, except those that can control a terminal or change the direction of the
/// text: they are escaped.
pub(crate) fn visible(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' => {
                    text.extend(c.escape_unicode());
                }
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        let _ = write!(text, "{}", chunk.invalid().escape_ascii());
    }
    text
}

/// Shows a choice as the command line spells it.
pub(crate) fn spelled(choice: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let value = choice.to_possible_value();
    value.map_or(Ok(()), |value| f.write_str(value.get_name()))
}

/// Formats `n` with a noun, in the singular or the plural.
pub(crate) fn counted(n: u64, (one, several): (&str, &str)) -> String {
    let noun = if n == 1 { one } else { several };
    format!("{} {noun}", grouped(n))
}

/// Returns the number of events per second.
#[expect(
    clippy::cast_precision_loss,
    reason = "a measured speed has few digits that mean anything"
)]
pub(crate) fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.max(Duration::from_nanos(1)).as_secs_f64()
}

/// Formats a speed with three significant digits: `12.3 M`, `456 k`, `78`.
pub(crate) fn speed(per_second: f64) -> String {
    let (value, unit) = match per_second {
        v if v >= 1e9 => (v / 1e9, " G"),
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e3 => (v / 1e3, " k"),
        v => (v, ""),
    };
    let decimals = match value {
        v if v >= 100.0 || unit.is_empty() => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}{unit}")
}

/// Returns `part` of `whole` in percent; 0 if `whole` is 0.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share is shown with one decimal"
)]
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// Formats `part` of `whole` in percent, with a decimal if it is not 0: `40 %`, `1.5 %`.
pub(crate) fn share(part: u64, whole: u64) -> String {
    let share = format!("{:.1}", percent(part, whole));
    format!("{} %", share.strip_suffix(".0").unwrap_or(&share))
}

/// Formats a second since the Unix epoch for people, in UTC.
pub(crate) fn moment(seconds: u64) -> String {
    let timestamp = i64::try_from(seconds)
        .ok()
        .and_then(|s| jiff::Timestamp::from_second(s).ok());
    timestamp.map_or_else(
        || format!("{seconds} s"),
        |t| t.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// Formats a length of time in its largest whole unit.
pub(crate) fn length(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let (unit, name) = units
        .into_iter()
        .find(|(unit, _)| seconds.is_multiple_of(*unit))
        .unwrap_or((1, "s"));
    format!("{} {name}", grouped(seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(
            ["0", "999", "1,000", "12,345,678"],
            [0, 999, 1_000, 12_345_678].map(grouped).as_slice()
        );
    }

    #[test]
    fn bytes_are_shown_as_they_are_unless_they_control_the_terminal() {
        let line = "a \"é\" \\x [1]";
        assert_eq!(visible(line.as_bytes()), line);
        assert_eq!(visible(b"\x1b[2J\t\xff\x7f"), r"\u{1b}[2J\t\xff\u{7f}");
        assert_eq!(visible("a\u{202e}b".as_bytes()), r"a\u{202e}b");
    }

    #[test]
    fn a_count_of_one_is_singular() {
        let addresses = |n| counted(n, ("address", "addresses"));
        assert_eq!(
            [0, 1, 2, 1_000].map(addresses),
            ["0 addresses", "1 address", "2 addresses", "1,000 addresses"]
        );
    }

    #[test]
    fn speeds_show_three_digits() {
        let speeds = [0.0, 78.4, 456_000.0, 1_230_000.0, 12_340_000.0].map(speed);
        assert_eq!(speeds, ["0", "78", "456 k", "1.23 M", "12.3 M"]);
    }

    #[test]
    fn zero_time_and_zero_requests_do_not_divide_by_zero() {
        assert!(per_second(5, Duration::ZERO).is_finite());
        assert!(percent(0, 0).abs() < f64::EPSILON);
    }

    #[test]
    fn moments_and_lengths_are_formatted_for_people() {
        assert_eq!(moment(1_431_857_103), "2015-05-17 10:05:03");
        assert_eq!(
            ["30 s", "5 min", "3 h", "2 d"],
            [30, 300, 10_800, 172_800].map(length).as_slice()
        );
    }
}
