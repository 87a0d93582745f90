//! Builds limiters from the settings of the command line.

use core::time::Duration;

use portcullis_core::{
    FixedWindow, Limiter, Rate, SettingsError, SlidingWindow, Timestamp, TokenBucket,
};

use super::args::{Cost, ReplayArgs};
use super::time::timestamp;
use crate::failure::Failure;
use crate::limit::{Algorithm, Limit};

/// The largest number of segments. The smaller rings below it save memory.
const SEGMENTS: usize = 1024;

/// The settings of a limit; each key has its own limiter.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// N permits per PERIOD.
    pub(crate) limit: Limit,
    /// The algorithm.
    pub(crate) kept: Kept,
}

/// The algorithm of a limit, with the setting that is specific to it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    /// A bucket that holds at most `burst` permits.
    TokenBucket { rate: Rate, burst: u64 },
    /// A fixed window.
    FixedWindow,
    /// A sliding window of `segments` segments.
    SlidingWindow { segments: u32 },
}

/// Returns the limits that `args` specify.
///
/// # Errors
///
/// [`Failure::Refused`] if settings do not match their algorithm, or if a limiter's builder rejects
/// them.
pub(crate) fn all(args: &ReplayArgs) -> Result<Vec<Settings>, Failure> {
    let limits = match &*args.limits {
        [] => vec![default_limit(args.cost)],
        limits => limits.to_vec(),
    };
    let algorithm = |limit: &Limit| limit.algorithm.unwrap_or(args.algorithm);
    // A setting for all limits must apply to at least one of them.
    for (option, given, use_) in [
        ("--burst", args.burst.is_some(), Algorithm::TokenBucket),
        (
            "--segments",
            args.segments.is_some(),
            Algorithm::SlidingWindow,
        ),
    ] {
        if given && !limits.iter().any(|limit| algorithm(limit) == use_) {
            let other = algorithm(&limits[0]);
            let reason = format!("{option} is for {use_}, not for {other}");
            return Err(Failure::Refused(reason));
        }
    }
    limits
        .into_iter()
        .map(|limit| {
            let algorithm = algorithm(&limit);
            Settings::new(limit, algorithm, args)
        })
        .collect()
}

/// The limiter of one key. The small ones lie in the list of keys, because with many keys each
/// access to other memory takes longer than the decision.
pub(crate) enum OfKey {
    Bucket(TokenBucket),
    Window(FixedWindow),
    Sliding(Box<dyn Limiter>),
}

impl OfKey {
    pub(crate) fn limiter(&self) -> &dyn Limiter {
        match self {
            Self::Bucket(bucket) => bucket,
            Self::Window(window) => window,
            Self::Sliding(window) => &**window,
        }
    }
}

impl Settings {
    fn new(limit: Limit, algorithm: Algorithm, args: &ReplayArgs) -> Result<Self, Failure> {
        let refused =
            |reason: String| Failure::Refused(format!("--limit {}: {reason}", limit.text));
        for (setting, value) in [
            ("permits", Some(limit.permits)),
            ("milliseconds", Some(limit.period.as_millis() as u64)),
            ("burst", limit.burst.or(args.burst)),
            ("segments", limit.segments.or(args.segments).map(u64::from)),
        ] {
            if value == Some(0) {
                return Err(refused(match setting {
                    "permits" => "0 permits would deny every request: give at least 1".into(),
                    "milliseconds" => "the period is 0: give at least 1ms".into(),
                    setting => format!("{setting} is 0: give at least 1"),
                }));
            }
        }
        for (setting, given, use_) in [
            ("burst", limit.burst.is_some(), Algorithm::TokenBucket),
            (
                "segments",
                limit.segments.is_some(),
                Algorithm::SlidingWindow,
            ),
        ] {
            if given && algorithm != use_ {
                return Err(refused(format!(
                    "{setting} is for {use_}, not for {algorithm}"
                )));
            }
        }
        let kept = match algorithm {
            Algorithm::TokenBucket => Kept::TokenBucket {
                rate: rate(&limit)?,
                burst: limit.burst.or(args.burst).unwrap_or(limit.permits),
            },
            Algorithm::FixedWindow => Kept::FixedWindow,
            Algorithm::SlidingWindow => Kept::SlidingWindow {
                segments: limit.segments.or(args.segments).unwrap_or(8),
            },
        };
        let settings = Self { limit, kept };
        match settings.limiter(0) {
            Ok(_) => Ok(settings),
            Err(error) => Err(Failure::Refused(format!(
                "--limit {}, {algorithm}: {error}",
                settings.limit.text
            ))),
        }
    }

    /// Builds a limiter for a key that is first seen at `first`, in milliseconds since the Unix
    /// epoch.
    ///
    /// The limiter's origin is near `first` rather than at the epoch, so that the limiter has never
    /// idled beyond its horizon.
    ///
    /// # Errors
    ///
    /// Returns the error of the limiter's builder.
    pub(crate) fn limiter(&self, first: u64) -> Result<OfKey, SettingsError> {
        let Limit {
            permits, period, ..
        } = self.limit;
        Ok(match self.kept {
            Kept::TokenBucket { rate, burst } => {
                let bucket = TokenBucket::builder(rate, burst).origin(timestamp(first));
                // A finer tick than the log's resolution would only lower the maximum burst.
                OfKey::Bucket(bucket.tick(Duration::from_millis(1)).build()?)
            }
            Kept::FixedWindow => OfKey::Window(
                FixedWindow::builder(permits, period)
                    .origin(on_grid(first, period))
                    .build()?,
            ),
            Kept::SlidingWindow { segments: n @ ..=8 } => self.sliding::<8>(n, first)?,
            Kept::SlidingWindow {
                segments: n @ ..=64,
            } => self.sliding::<64>(n, first)?,
            Kept::SlidingWindow { segments: n } => self.sliding::<SEGMENTS>(n, first)?,
        })
    }

    fn sliding<const MAX: usize>(&self, segments: u32, first: u64) -> Result<OfKey, SettingsError> {
        let Limit {
            permits, period, ..
        } = self.limit;
        let window = SlidingWindow::<MAX>::builder(permits, period, segments);
        let window = window.origin(on_grid(first, period)).build()?;
        Ok(OfKey::Sliding(Box::new(window)))
    }

    /// Returns the algorithm.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.kept {
            Kept::TokenBucket { .. } => Algorithm::TokenBucket,
            Kept::FixedWindow => Algorithm::FixedWindow,
            Kept::SlidingWindow { .. } => Algorithm::SlidingWindow,
        }
    }

    /// Returns the burst of a token bucket.
    pub(crate) fn burst(&self) -> Option<u64> {
        match self.kept {
            Kept::TokenBucket { burst, .. } => Some(burst),
            Kept::FixedWindow | Kept::SlidingWindow { .. } => None,
        }
    }

    /// Returns the segments of a sliding window.
    pub(crate) fn segments(&self) -> Option<u32> {
        match self.kept {
            Kept::SlidingWindow { segments } => Some(segments),
            Kept::TokenBucket { .. } | Kept::FixedWindow => None,
        }
    }
}

fn default_limit(cost: Cost) -> Limit {
    let (permits, text) = match cost {
        Cost::One => (60, "60/m"),
        Cost::Bytes => (10_000_000, "10000000/m"),
    };
    Limit {
        permits,
        period: Duration::from_mins(1),
        algorithm: None,
        burst: None,
        segments: None,
        text: text.into(),
    }
}

/// Returns the last edge, on the Unix epoch's grid of `period`, that is not after `first`. (The
/// builder rejects a period of zero.)
fn on_grid(first: u64, period: Duration) -> Timestamp {
    let first = timestamp(first).as_nanos();
    let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    Timestamp::from_nanos(first - first % period)
}

/// Converts the limit to a rate, which counts permits in a `u32`. A larger number of permits is
/// reduced together with the period, if they have a common divisor.
fn rate(limit: &Limit) -> Result<Rate, Failure> {
    let period = u64::try_from(limit.period.as_nanos()).unwrap_or(u64::MAX);
    let divisor = if limit.permits > u32::MAX.into() {
        gcd(limit.permits, period)
    } else {
        1
    };
    match u32::try_from(limit.permits / divisor) {
        Ok(permits) => Ok(Rate::new(permits, Duration::from_nanos(period / divisor))),
        Err(_) => Err(Failure::Refused(format!(
            "--limit {}: a token bucket's rate counts at most {} in a period, and this one does not come down to that; take fewer, or a round number",
            limit.text,
            u32::MAX,
        ))),
    }
}

/// Returns the greatest common divisor; that of `a` and 0 is `a`.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_rate_with_a_common_divisor_is_exact() {
        let ten_gigabytes_a_day = rate(&"10000000000/d".parse().unwrap()).unwrap();
        assert_eq!(
            ten_gigabytes_a_day,
            Rate::new(1, Duration::from_nanos(8_640))
        );
        assert!(matches!(
            rate(&"10000000019/d".parse().unwrap()),
            Err(Failure::Refused(_))
        ));
    }

    #[test]
    fn a_limiter_starts_on_the_grid_of_the_unix_epoch() {
        assert_eq!(
            on_grid(1_431_857_103_000, Duration::from_mins(1)),
            Timestamp::from_secs(1_431_857_100)
        );
        assert_eq!(
            on_grid(1_431_857_103_000, Duration::from_millis(500)),
            Timestamp::from_secs(1_431_857_103)
        );
    }
}
