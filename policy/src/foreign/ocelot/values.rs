//! Values that Ocelot writes as text: messages and lengths of time.

use core::time::Duration;

use crate::document::shown;

/// A piece of a message.
#[derive(Clone)]
pub(super) enum Piece {
    Text(String),
    Limit,
    Period,
}

/// The pieces of a message, and whether one of its numbers has a format.
pub(super) fn pieces(message: &str) -> Result<(Vec<Piece>, bool), String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut has_format = false;
    let mut rest = message;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        let expected = "expected {0} for the limit, {1} for the period, and {{ or }} for a brace";
        let Some((item, after)) = rest.split_once('}').filter(|_| brace == "{") else {
            return Err(format!("has a single `{brace}`: {expected}"));
        };
        let index = item.split([',', ':']).next().unwrap_or_default();
        has_format |= index != item;
        pieces.push(Piece::Text(core::mem::take(&mut text)));
        pieces.push(match index.trim_end() {
            "0" => Piece::Limit,
            "1" => Piece::Period,
            _ => return Err(format!("has an unknown `{{{}}}`: {expected}", shown(item))),
        });
        rest = after;
    }
    text.push_str(rest);
    pieces.push(Piece::Text(text));
    Ok((pieces, has_format))
}

/// A length of time as Ocelot writes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TimeSpan {
    pub(super) length: Duration,
    pub(super) has_unit: bool,
    pub(super) is_negative: bool,
}

/// Parses a number, with or without a fraction, and a unit in upper or lower case. Without a unit,
/// the number is one of milliseconds. A sign is dropped.
pub(super) fn time_span(text: &str) -> Result<TimeSpan, String> {
    const EXPECTED: &str = "expected a number and ms, s, m, h or d";
    let text = text.trim();
    if text.is_empty() {
        return Ok(TimeSpan {
            length: Duration::ZERO,
            has_unit: false,
            is_negative: false,
        });
    }
    let unit =
        text.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+'));
    let number = &text[..text.len() - unit.len()];
    if !number.contains(|c: char| c.is_ascii_digit()) {
        return Err(format!("has no number: {EXPECTED}"));
    }
    let nanos: u128 = match &*unit.to_ascii_lowercase() {
        "ms" | "" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => {
            return Err(format!(
                "has the unknown unit `{}`: {EXPECTED}",
                shown(unit)
            ));
        }
    };
    let digits = number.strip_prefix(['-', '+']).unwrap_or(number);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if !(whole.bytes().chain(fraction.bytes())).all(|byte| byte.is_ascii_digit()) {
        return Err(format!("has no valid number: {EXPECTED}"));
    }
    // Of a nanosecond, the rest is dropped.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = fraction.parse::<u128>().unwrap_or(0) * nanos / 10_u128.pow(fraction.len() as u32);
    let whole = if whole.is_empty() {
        Some(0)
    } else {
        whole.parse::<u128>().ok()
    };
    let length = whole
        .and_then(|whole| whole.checked_mul(nanos)?.checked_add(part))
        .and_then(|nanos| u64::try_from(nanos).ok())
        .ok_or("is longer than 584 years")?;
    Ok(TimeSpan {
        length: Duration::from_nanos(length),
        has_unit: !unit.is_empty(),
        is_negative: number.starts_with('-'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ocelot 25.0, `unit/RateLimiting/RateLimitRuleTests.cs`.
    #[test]
    fn a_time_span_is_read_as_ocelot_reads_it() {
        let nanos = |text| time_span(text).map(|span| span.length.as_nanos());
        for (text, expected) in [
            ("", 0),
            ("  ", 0),
            ("5", 5_000_000),
            ("2.ms", 2_000_000),
            (".4ms", 400_000),
            ("123.456ms", 123_456_000),
            ("1s", 1_000_000_000),
            (" 1.5M ", 90_000_000_000),
            ("2h", 7_200_000_000_000),
            ("1D", 86_400_000_000_000),
            ("-3s", 3_000_000_000),
            ("0.0000000001s", 0),
            (
                "1.00000000000000000000000000000000000000001s",
                1_000_000_000,
            ),
        ] {
            assert_eq!(nanos(text), Ok(expected), "{text}");
        }
        for (text, problem) in [
            ("1x", "has the unknown unit `x`"),
            ("1 s", "has the unknown unit ` s`"),
            ("1e3s", "has the unknown unit `e3s`"),
            ("ms", "has no number"),
            (".", "has no number"),
            ("1-2s", "has no valid number"),
            ("1.2.3s", "has no valid number"),
            ("99999999d", "is longer than 584 years"),
            (
                "99999999999999999999999999999999999999999s",
                "is longer than 584 years",
            ),
        ] {
            assert!(
                nanos(text).unwrap_err().starts_with(problem),
                "{text}: {:?}",
                nanos(text)
            );
        }
    }
}
