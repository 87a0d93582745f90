use core::fmt;
use core::time::Duration;

use crate::time::timestamp::saturating_nanos;

/// A setting of a limiter, as a [`SettingsError`] names it.
///
/// ```
/// use portcullis_core::{Rate, Setting, SettingsError, TokenBucket};
/// let refused = TokenBucket::builder(Rate::per_second(1), 0)
///     .build()
///     .unwrap_err();
/// assert_eq!(
///     refused,
///     SettingsError::Zero {
///         setting: Setting::Burst
///     }
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Setting {
    /// A token bucket's burst: the permits that it can hold.
    Burst,
    /// The permits that a token bucket starts with.
    Initial,
    /// The permits that a token bucket may owe.
    Debt,
    /// The permits that a window, or all holders together, may take.
    Limit,
    /// The permits of a rate, for each of its periods.
    Rate,
    /// The period of a rate.
    Period,
    /// The length of a window.
    Window,
    /// The number of segments in a window.
    Segments,
    /// The grain in which time is counted.
    Tick,
    /// How old a `now` may be.
    Staleness,
    /// How long a penalty is on, or a decision holds.
    Wait,
    /// What something begins at: the use of a decision, the number of denials of a penalty.
    Threshold,
}

impl Setting {
    const fn name(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Initial => "initial",
            Self::Debt => "debt",
            Self::Limit => "limit",
            Self::Rate => "rate",
            Self::Period => "period",
            Self::Window => "window",
            Self::Segments => "segments",
            Self::Tick => "tick",
            Self::Staleness => "staleness",
            Self::Wait => "wait",
            Self::Threshold => "threshold",
        }
    }
}

/// Why a builder refuses its settings: which one, and its bound. 16 bytes.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// let refused = TokenBucket::builder(Rate::per_day(1), u64::MAX)
///     .build()
///     .unwrap_err();
/// assert_eq!(refused.to_string(), "burst is too large: at most 53375");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum SettingsError {
    /// The setting must be at least 1 (or 1 ns).
    Zero {
        /// The setting that is zero.
        setting: Setting,
    },
    /// The setting is larger than what the limiter, with its other settings, can carry in its word.
    TooLarge {
        /// The setting that is too large.
        setting: Setting,
        /// The largest value that the other settings leave room for: permits, segments, or
        /// nanoseconds.
        max: u64,
    },
    /// The setting is smaller than what the limiter can keep its promises with.
    TooSmall {
        /// The setting that is too small.
        setting: Setting,
        /// The smallest value: nanoseconds, or permits.
        min: u64,
    },
}

impl SettingsError {
    /// Of two refusals of one choice of settings at different ticks: whether this one is met by
    /// changing less. A rate or a staleness that is refused at a tick that is too fine or too
    /// coarse may well fit at another one, a burst only at a coarser one.
    pub(crate) const fn asks_less_than(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::TooLarge {
                    setting: Setting::Burst,
                    ..
                },
                _,
            ) => true,
            (
                _,
                Self::TooLarge {
                    setting: Setting::Burst,
                    ..
                },
            ) => false,
            (Self::TooLarge { max, .. }, Self::TooLarge { max: others, .. }) => *max > *others,
            _ => false,
        }
    }

    /// Stops a constant's evaluation, or panics, with a message that names the setting.
    pub(crate) const fn refuse(self) -> ! {
        match self {
            Self::Zero { setting } => match setting {
                Setting::Burst => panic!("portcullis: burst must be at least 1"),
                Setting::Limit => panic!("portcullis: limit must be at least 1"),
                Setting::Period => panic!("portcullis: the rate's period must be at least 1 ns"),
                Setting::Window => panic!("portcullis: window must be at least 1 ns"),
                Setting::Segments => panic!("portcullis: segments must be at least 1"),
                _ => panic!("portcullis: a setting must not be zero"),
            },
            Self::TooLarge { setting, .. } => match setting {
                Setting::Burst => {
                    panic!("portcullis: burst is too large for the word, at this rate")
                }
                Setting::Initial => panic!("portcullis: initial permits are more than the burst"),
                Setting::Debt => panic!("portcullis: debt is too large for the word, at this rate"),
                Setting::Limit => panic!("portcullis: limit is too large for the word"),
                Setting::Rate => panic!("portcullis: the rate is too high for the word"),
                Setting::Period => panic!("portcullis: the rate's period is longer than 292 years"),
                Setting::Window => panic!("portcullis: window is too long"),
                Setting::Segments => panic!("portcullis: more segments than the ring holds"),
                _ => panic!("portcullis: a setting is too large"),
            },
            Self::TooSmall { .. } => panic!("portcullis: a setting is too small"),
        }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Zero { setting } => write!(f, "{} is zero: give at least 1", setting.name()),
            Self::TooLarge { setting, max } => {
                write!(f, "{} is too large: at most {max}", setting.name())
            }
            Self::TooSmall { setting, min } => {
                write!(f, "{} is too small: at least {min}", setting.name())
            }
        }
    }
}

impl core::error::Error for SettingsError {}

/// The least that a `now` may be late without harm, whatever the settings: one second.
pub(crate) const MIN_STALENESS: u64 = 1_000_000_000;

/// A duration setting in nanoseconds: 1 ns to 292 years, so that twice its length still fits a
/// `u64`.
pub(crate) const fn nanos(duration: Duration, setting: Setting) -> Result<u64, SettingsError> {
    match saturating_nanos(duration) {
        0 => Err(SettingsError::Zero { setting }),
        n if n > u64::MAX / 2 => Err(SettingsError::TooLarge {
            setting,
            max: u64::MAX / 2,
        }),
        n => Ok(n),
    }
}

/// How a word's range is divided, for positions that wrap around in it.
///
/// Seen from the state, `reach` positions are in use (a bucket's fill, a window's length) and the
/// `staleness` positions behind them are taken for a `now` that is late; everything else means that
/// the limiter has been idle. Both must be at most a quarter of the range, so that idleness has at
/// least half of it.
///
/// The staleness is what was asked for. Otherwise it is a sixteenth of a range that reaches 292
/// years. In a nearer range a limiter that happens to have been idle for a multiple of it is denied
/// for as long as the staleness, which is then but a 256th, and at most an hour. It is at least a
/// second. `longest`, in nanoseconds, bounds what was not asked for.
///
/// Returns the staleness in positions, or what is too large.
pub(crate) const fn staleness(
    range: u128,
    reach: u128,
    asked: Option<u64>,
    longest: Option<u64>,
    scale: Scale,
) -> Result<u128, Misfit> {
    let quarter = range / 4;
    let second = scale.positions(MIN_STALENESS);
    let longest_by_itself = match longest {
        Some(nanos) => scale.positions(nanos),
        None => scale.positions(3_600 * MIN_STALENESS),
    };
    let staleness = match asked {
        Some(asked) if scale.gain > 0 => scale.positions(asked),
        // Where positions stand still, any number of them.
        _ if scale.gain == 0 => range / 16,
        _ if longest.is_none() && range >= scale.positions(1 << 63) && range / 16 > second => {
            range / 16
        }
        _ if range / 256 > longest_by_itself => longest_by_itself,
        _ if range / 256 > second => range / 256,
        _ => second,
    };
    if staleness > quarter {
        Err(if asked.is_some() {
            Misfit::Staleness
        } else {
            Misfit::Second
        })
    } else if reach > quarter {
        Err(Misfit::Reach)
    } else {
        Ok(staleness)
    }
}

/// How positions advance: by `gain` each `step` nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) step: u64,
    pub(crate) gain: u128,
}

impl Scale {
    /// The positions in `nanos`, rounded up to whole steps.
    pub(crate) const fn positions(self, nanos: u64) -> u128 {
        nanos.div_ceil(self.step) as u128 * self.gain
    }
}

/// What needs more than a quarter of a word's range.
#[derive(Clone, Copy)]
pub(crate) enum Misfit {
    /// The staleness that was asked for.
    Staleness,
    /// A single second.
    Second,
    /// What the limiter has in use.
    Reach,
}

/// A staleness setting in nanoseconds: at least one second.
pub(crate) const fn staleness_nanos(asked: Option<Duration>) -> Result<Option<u64>, SettingsError> {
    match asked {
        None => Ok(None),
        Some(asked) => match nanos(asked, Setting::Staleness) {
            Ok(nanos) if nanos < MIN_STALENESS => Err(SettingsError::TooSmall {
                setting: Setting::Staleness,
                min: MIN_STALENESS,
            }),
            Ok(nanos) => Ok(Some(nanos)),
            Err(error) => Err(error),
        },
    }
}

/// The greatest common divisor; that of 0 and `b` is `b`.
pub(crate) const fn gcd(a: u128, b: u128) -> u128 {
    if a == 0 { b } else { gcd(b % a, a) }
}

/// The horizon that a tick chosen by the builder should reach, in nanoseconds: one hour.
pub(crate) const FAR_ENOUGH: u128 = 3_600_000_000_000;
