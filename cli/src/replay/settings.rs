//! From what the command line asks for to a limiter.

use core::time::Duration;

use portcullis_core::{
    FixedWindow, Limiter, Rate, SettingsError, SlidingWindow, Timestamp, TokenBucket,
};

use crate::args::{Algorithm, Cost, KeyBy, ReplayArgs};
use crate::failure::Failure;
use crate::limit::Limit;

/// The largest number of segments; the smaller rings below it are for the memory's sake.
const SEGMENTS: usize = 1024;

/// A limit, as one key has it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// So many permits each so long.
    pub(crate) limit: Limit,
    /// How it is kept.
    pub(crate) kept: Kept,
    /// Who shares it.
    pub(crate) key: KeyBy,
    /// What a request costs.
    pub(crate) cost: Cost,
}

/// How a limit is kept, with the setting that only this way has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    /// By a bucket that holds `burst` at most.
    TokenBucket { rate: Rate, burst: u64 },
    /// By windows.
    FixedWindow,
    /// By windows of so many segments.
    SlidingWindow { segments: u32 },
}

impl Settings {
    /// The settings that `args` ask for.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if they do not belong together, or if the limiter's builder refuses
    /// them.
    pub(crate) fn new(args: &ReplayArgs) -> Result<Self, Failure> {
        let refuse = |option: &str, algorithm: &str| {
            let reason = format!("{option} is for {algorithm}, not for {}", args.algorithm);
            Err(Failure::Refused(reason))
        };
        if args.burst.is_some() && args.algorithm != Algorithm::TokenBucket {
            return refuse("--burst", "token-bucket");
        }
        if args.segments.is_some() && args.algorithm != Algorithm::SlidingWindow {
            return refuse("--segments", "sliding-window");
        }
        let limit = args
            .limit
            .clone()
            .unwrap_or_else(|| default_limit(args.cost));
        let kept = match args.algorithm {
            Algorithm::TokenBucket => Kept::TokenBucket {
                rate: rate(&limit)?,
                burst: args.burst.unwrap_or(limit.permits),
            },
            Algorithm::FixedWindow => Kept::FixedWindow,
            Algorithm::SlidingWindow => Kept::SlidingWindow {
                segments: args.segments.unwrap_or(8),
            },
        };
        let settings = Self {
            limit,
            kept,
            key: args.key,
            cost: args.cost,
        };
        match settings.limiter(0) {
            Ok(_) => Ok(settings),
            Err(error) => Err(Failure::Refused(format!(
                "no {} can be built so: {error}",
                args.algorithm
            ))),
        }
    }

    /// A limiter for a key that is first seen at `first`, in seconds since the Unix epoch.
    ///
    /// It starts there, rather than at the epoch, so that it cannot have been idle for longer than
    /// its word can tell.
    ///
    /// # Errors
    ///
    /// As the limiter's builder.
    pub(crate) fn limiter(&self, first: u64) -> Result<Box<dyn Limiter>, SettingsError> {
        let Limit {
            permits, period, ..
        } = self.limit;
        Ok(match self.kept {
            Kept::TokenBucket { rate, burst } => {
                let bucket = TokenBucket::builder(rate, burst).origin(Timestamp::from_secs(first));
                // Logs tell seconds: a finer grain would only bring the bound of the burst nearer.
                Box::new(bucket.tick(Duration::from_secs(1)).build()?)
            }
            Kept::FixedWindow => Box::new(
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

    fn sliding<const MAX: usize>(
        &self,
        segments: u32,
        first: u64,
    ) -> Result<Box<dyn Limiter>, SettingsError> {
        let Limit {
            permits, period, ..
        } = self.limit;
        let window = SlidingWindow::<MAX>::builder(permits, period, segments);
        Ok(Box::new(window.origin(on_grid(first, period)).build()?))
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
        text: text.into(),
    }
}

/// The last edge, on the Unix epoch's grid of `period`, that is not after `first`. (A period of
/// zero is the builder's to refuse.)
fn on_grid(first: u64, period: Duration) -> Timestamp {
    let first = Timestamp::from_secs(first).as_nanos();
    let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    Timestamp::from_nanos(first - first % period)
}

/// The limit as a rate. One that is above the `u32` that a rate counts in is the same in a shorter
/// period, if that comes out even.
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

/// The greatest common divisor; that of `a` and 0 is `a`.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_rate_that_comes_out_even_is_kept_exactly() {
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
            on_grid(1_431_857_103, Duration::from_mins(1)),
            Timestamp::from_secs(1_431_857_100)
        );
        assert_eq!(
            on_grid(1_431_857_103, Duration::from_millis(500)),
            Timestamp::from_secs(1_431_857_103)
        );
    }
}
