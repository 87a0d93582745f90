//! Parsing of `--limit N/PERIOD`, and of periods.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use clap::ValueEnum;
use portcullis_policy::{Kind, PeriodError, parse_count, parse_period};

use crate::text::spelled;

/// The algorithm of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// A bucket of permits that is refilled continuously.
    #[default]
    TokenBucket,
    /// A number of permits per window.
    FixedWindow,
    /// A number of permits per window, which is counted in consecutive segments.
    SlidingWindow,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spelled(self, f)
    }
}

/// N permits per PERIOD, and the limit's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// N.
    pub(super) permits: u64,
    /// PERIOD.
    pub(super) period: Duration,
    /// The settings after the colon.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) burst: Option<u64>,
    pub(super) segments: Option<u32>,
    /// The text before the colon.
    pub(super) text: String,
}

const EXPECTED: &str = "expected N/PERIOD, for example 60/m, 100/10s or 5/500ms (units: ms, s, m, h, d; whole numbers)";

const EXPECTED_SETTINGS: &str = "expected N/PERIOD:SETTING=VALUE,... with the settings algorithm, burst and segments, for example 10/s:burst=50";

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, settings) = match text.split_once(':') {
            Some((text, settings)) => (text, Some(settings)),
            None => (text, None),
        };
        let (permits, period) = text.split_once('/').ok_or(EXPECTED)?;
        let mut limit = Self {
            permits: whole(permits).map_err(|error| error.unwrap_or(EXPECTED.into()))?,
            period: length(period).map_err(|error| error.unwrap_or(EXPECTED.into()))?,
            algorithm: None,
            burst: None,
            segments: None,
            text: text.into(),
        };
        for setting in settings
            .into_iter()
            .flat_map(|settings| settings.split(','))
        {
            limit.set(setting)?;
        }
        Ok(limit)
    }
}

impl Limit {
    fn set(&mut self, setting: &str) -> Result<(), String> {
        let number = |text| whole(text).map_err(|error| error.unwrap_or(EXPECTED_SETTINGS.into()));
        match setting.split_once('=') {
            Some(("algorithm", name)) if self.algorithm.is_none() => {
                let algorithm = Algorithm::from_str(name, false).map_err(|_| {
                    format!(
                        "unknown algorithm '{name}': token-bucket, fixed-window or sliding-window"
                    )
                })?;
                self.algorithm = Some(algorithm);
            }
            Some(("burst", count)) if self.burst.is_none() => self.burst = Some(number(count)?),
            Some(("segments", count)) if self.segments.is_none() => {
                let count = u32::try_from(number(count)?).unwrap_or(u32::MAX);
                self.segments = Some(count);
            }
            _ => return Err(EXPECTED_SETTINGS.into()),
        }
        Ok(())
    }
}

/// Returns the name of a kind, as a file of rules spells it.
pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Ingress => "ingress",
        Kind::Egress => "egress",
        Kind::Burst => "burst",
        Kind::Concurrency => "concurrency",
        _ => "request",
    }
}

/// Parses a period: a unit, or a number and a unit.
///
/// # Errors
///
/// Returns the expected form.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected a unit, or a number and a unit, for example 60s or 5m \
                            (units: ms, s, m, h, d; whole numbers)";
    length(text).map_err(|error| error.unwrap_or(EXPECTED.into()))
}

/// Parses a period. Returns `Err(None)` if the text does not have the form of a period, and
/// `Err(Some(_))` if its value is invalid.
fn length(text: &str) -> Result<Duration, Option<String>> {
    parse_period(text).map_err(|error| reason(error, text))
}

/// Parses a number of digits only. Errors are as for [`length`].
fn whole(digits: &str) -> Result<u64, Option<String>> {
    parse_count(digits).map_err(|error| reason(error, digits))
}

fn reason(error: PeriodError, text: &str) -> Option<String> {
    match error {
        PeriodError::Form => None,
        PeriodError::TooLarge => Some(format!("{text} is too large a number")),
        error => Some(error.to_string()),
    }
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
        assert_eq!(period("90s"), Ok(Duration::from_secs(90)));
    }

    #[test]
    fn a_limit_can_have_its_own_settings() {
        let limit: Limit = "10/s:burst=50,algorithm=token-bucket".parse().unwrap();
        assert_eq!(
            (limit.burst, limit.algorithm, &*limit.text),
            (Some(50), Some(Algorithm::TokenBucket), "10/s")
        );
        let limit: Limit = "10/s:segments=4,algorithm=sliding-window".parse().unwrap();
        assert_eq!(limit.segments, Some(4));
        for text in [
            "10/s:",
            "10/s:50",
            "10/s:bursts=5",
            "10/s:burst=",
            "10/s:burst=-1",
            "10/s:burst=1,burst=1",
            "10/s:burst=1,",
            "10/s:burst=5:segments=6",
        ] {
            assert_eq!(
                text.parse::<Limit>().unwrap_err(),
                EXPECTED_SETTINGS,
                "{text:?}"
            );
        }
        let unknown = "10/s:algorithm=leaky".parse::<Limit>().unwrap_err();
        assert!(unknown.contains("'leaky'"), "{unknown}");
    }

    #[test]
    fn other_text_is_rejected_with_the_expected_form() {
        for text in [
            "", "60", "/m", "60/", "60/10", "60/w", "60/ms10", "-1/s", "+1/s", "1.5/s", "6 /s",
            "60/m/s", "٣/s",
        ] {
            assert_eq!(text.parse::<Limit>().unwrap_err(), EXPECTED, "{text:?}");
        }
        for text in ["", "60", "-1s", "s1"] {
            assert!(
                period(text).unwrap_err().starts_with("expected a unit"),
                "{text:?}"
            );
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
