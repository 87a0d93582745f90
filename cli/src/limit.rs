//! `--limit N/PERIOD`.

use core::str::FromStr;
use core::time::Duration;

/// So many permits each so long, and how it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// N.
    pub(super) permits: u64,
    /// PERIOD.
    pub(super) period: Duration,
    /// The text that was parsed.
    pub(super) text: String,
}

const EXPECTED: &str = "expected N/PERIOD, for example 60/m, 100/10s or 5/500ms (units: ms, s, m, h, d; whole numbers)";

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (permits, period) = text.split_once('/').ok_or(EXPECTED)?;
        let unit = period.trim_start_matches(|c: char| c.is_ascii_digit());
        let count = match &period[..period.len() - unit.len()] {
            "" => 1,
            digits => whole(digits)?,
        };
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(EXPECTED.into()),
        };
        let period = count
            .checked_mul(millis)
            .map(Duration::from_millis)
            .ok_or("the period is too long")?;
        Ok(Self {
            permits: whole(permits)?,
            period,
            text: text.into(),
        })
    }
}

/// A number in digits alone.
fn whole(digits: &str) -> Result<u64, String> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(EXPECTED.into());
    }
    digits
        .parse()
        .map_err(|_| format!("{digits} is too large a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_unit_or_a_number_and_a_unit() {
        let limit = |text: &str| {
            text.parse::<Limit>()
                .map(|limit| (limit.permits, limit.period.as_millis()))
        };
        assert_eq!(limit("60/m"), Ok((60, 60_000)));
        assert_eq!(limit("3/s"), Ok((3, 1_000)));
        assert_eq!(limit("100/10s"), Ok((100, 10_000)));
        assert_eq!(limit("5/500ms"), Ok((5, 500)));
        assert_eq!(limit("1/1h"), Ok((1, 3_600_000)));
        assert_eq!(limit("7/2d"), Ok((7, 172_800_000)));
    }

    #[test]
    fn anything_else_is_refused_with_a_word_on_what_is_expected() {
        for text in [
            "", "60", "/m", "60/", "60/10", "60/w", "60/ms10", "-1/s", "+1/s", "1.5/s", "6 /s",
            "60/m/s", "٣/s",
        ] {
            assert_eq!(text.parse::<Limit>().unwrap_err(), EXPECTED, "{text:?}");
        }
        assert!(
            "99999999999999999999/s"
                .parse::<Limit>()
                .unwrap_err()
                .contains("too large")
        );
        assert!(
            "1/999999999999999999d"
                .parse::<Limit>()
                .unwrap_err()
                .contains("too long")
        );
    }
}
