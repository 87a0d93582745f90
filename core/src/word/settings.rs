//! The settings of limiters by name, and what a builder says about one that does not fit. A new
//! setting is a variant of [`Setting`]; no limiter has errors of its own.

mod message;
mod wide;

use core::fmt;
use core::time::Duration;

use self::message::Message;
pub(crate) use self::wide::{gcd, product, quotient};
use crate::time::timestamp::saturating_nanos;
use crate::word::{KeyedWord, Word};

/// Names a setting of a limiter in a [`SettingsError`].
///
/// ```
/// use portcullis_core::{Rate, SettingsError, TokenBucket};
/// use portcullis_core::builder::Setting;
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
    /// The burst of a token bucket: the permits that it can hold.
    Burst,
    /// The permits that a token bucket starts with.
    Initial,
    /// The permits that a token bucket may owe.
    Debt,
    /// The permits that requests in a window, or all holders together, may take.
    Limit,
    /// The largest limit that may be set later.
    MaxLimit,
    /// The permits per period of a rate.
    Rate,
    /// The period of a rate, or of a [`CooldownWindow`](crate::CooldownWindow).
    Period,
    /// The length of a window.
    Window,
    /// The longest window that may be set later.
    MaxWindow,
    /// The number of segments in a window.
    Segments,
    /// The tick: the unit in which time is counted.
    Tick,
    /// How stale a timestamp may be.
    Staleness,
    /// How long a penalty or the wait of a [`CooldownWindow`](crate::CooldownWindow) lasts.
    Wait,
    /// How long a decision of an [`Escalation`](crate::Escalation) holds.
    Hold,
    /// The use at which a decision of an [`Escalation`](crate::Escalation) is reached, or the
    /// number of denials that start a [`Penalty`](crate::Penalty).
    Threshold,
    /// The window in which the denials are counted that start a [`Penalty`](crate::Penalty).
    Within,
    /// How many of the first calls of a [`Sometimes`](crate::Sometimes) are due.
    First,
    /// Of how many calls of a [`Sometimes`](crate::Sometimes) one is due.
    Every,
    /// The time after which a call of a [`Sometimes`](crate::Sometimes) is due again.
    Interval,
    /// The time in which a [`WarmingBucket`](crate::WarmingBucket) warms up.
    WarmUp,
    /// How many times as long as at the stable rate a permit needs to return from the coldest
    /// [`WarmingBucket`](crate::WarmingBucket).
    ColdFactor,
    /// The number of limits that each key of a [`KeyedList`](crate::KeyedList) has.
    Limits,
}

impl Setting {
    const fn name(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Initial => "initial",
            Self::Debt => "debt",
            Self::Limit => "limit",
            Self::MaxLimit => "max_limit",
            Self::Rate => "rate",
            Self::Period => "period",
            Self::Window => "window",
            Self::MaxWindow => "max_window",
            Self::Segments => "segments",
            Self::Tick => "tick",
            Self::Staleness => "staleness",
            Self::Wait => "wait",
            Self::Hold => "hold",
            Self::Threshold => "threshold",
            Self::Within => "within",
            Self::First => "first",
            Self::Every => "every",
            Self::Interval => "interval",
            Self::WarmUp => "warm_up",
            Self::ColdFactor => "cold_factor",
            Self::Limits => "limits",
        }
    }

    const fn is_duration(self) -> bool {
        match self {
            Self::Period
            | Self::Window
            | Self::MaxWindow
            | Self::Tick
            | Self::Staleness
            | Self::Wait
            | Self::Hold
            | Self::Within
            | Self::Interval
            | Self::WarmUp => true,
            Self::Burst
            | Self::Initial
            | Self::Debt
            | Self::Limit
            | Self::MaxLimit
            | Self::Rate
            | Self::Segments
            | Self::Threshold
            | Self::First
            | Self::Every
            | Self::ColdFactor
            | Self::Limits => false,
        }
    }
}

/// The error of a builder whose settings do not fit: names the setting and its bound. 16 bytes.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// let refused = TokenBucket::builder(Rate::per_day(1), u64::MAX)
///     .build()
///     .unwrap_err();
/// assert_eq!(refused.to_string(), "burst must be at most 53375");
///
/// let refused = TokenBucket::builder(Rate::per_day(1), 5)
///     .staleness(core::time::Duration::from_millis(20))
///     .build()
///     .unwrap_err();
/// assert_eq!(refused.to_string(), "staleness must be at least 1 s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum SettingsError {
    /// The setting must be at least 1 (a duration: 1 ns).
    Zero {
        /// The setting that is zero.
        setting: Setting,
    },
    /// The setting is larger than the limiter's word can hold, given the other settings.
    TooLarge {
        /// The setting that is too large.
        setting: Setting,
        /// The largest value that the other settings allow: permits (of a rate, per period),
        /// segments, denials, limits, or nanoseconds. If it is 0, no value fits: change another
        /// setting.
        max: u64,
    },
    /// The setting is smaller than the limiter's guarantees need.
    TooSmall {
        /// The setting that is too small.
        setting: Setting,
        /// The smallest value: nanoseconds, or permits.
        min: u64,
    },
}

impl SettingsError {
    /// Compares two errors for the same settings at different ticks: whether this one is resolved
    /// by a smaller change. A rate or a staleness that does not fit at one tick may fit at another
    /// one; a burst or a period may fit only at a coarser tick.
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
            (
                Self::TooLarge { setting, max },
                Self::TooLarge {
                    setting: other,
                    max: others,
                },
            ) => match (setting, other) {
                (Setting::Period, Setting::Period) => *max > *others,
                (Setting::Period, _) => true,
                (_, Setting::Period) => false,
                _ => *max > *others,
            },
            _ => false,
        }
    }

    /// Panics, or stops the evaluation of a constant, with the message of the error.
    pub(crate) const fn refuse(self) -> ! {
        let message = self.write_to(Message::new().text("portcullis: "));
        panic!("{}", message.as_str())
    }

    const fn write_to(self, message: Message) -> Message {
        let (setting, bound, number) = match self {
            Self::Zero { setting } => (setting, " must be at least ", 1),
            Self::TooSmall { setting, min } => (setting, " must be at least ", min),
            Self::TooLarge { setting, max } => (setting, " must be at most ", max),
        };
        let message = message.text(setting.name()).text(bound);
        let message = if setting.is_duration() {
            message.nanos(number)
        } else {
            message.number(number)
        };
        match setting {
            _ if number == 0 => message.text(": change another setting"),
            Setting::Rate => message.text(" per period"),
            _ => message,
        }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.write_to(Message::new()).as_str())
    }
}

impl core::error::Error for SettingsError {}

/// The smallest staleness of any limiter: one second.
pub(crate) const MIN_STALENESS: u64 = 1_000_000_000;

/// Converts a duration setting to nanoseconds: 1 ns to 292 years, so that twice its length fits a
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

/// Divides the range of a word for positions that wrap in it.
///
/// Seen from the state, `reach` positions are in use (a bucket's fill, a window's length). A `now`
/// in the `staleness` positions behind them counts as stale. Every other position means that the
/// limiter has been idle. Reach and staleness are each at most a quarter of the range, so that at
/// least half of the range means idle.
///
/// If `asked` is given, it is the staleness. The default depends on the range:
///
/// - If the range covers 292 years and `longest` is `None`, the staleness is a sixteenth of the
///   range.
/// - In a shorter range, a limiter that was idle for a multiple of the range is denied for as long
///   as the staleness. The default is then only the [part](Room::part) of the range that suits the
///   word, and at most an hour.
/// - The default is at least a second. `longest`, in nanoseconds, replaces the hour as its maximum.
///
/// Returns the staleness in positions, or what is too large.
pub(crate) const fn staleness(
    room: Room,
    range: u128,
    reach: u128,
    asked: Option<u64>,
    longest: Option<u64>,
    scale: Scale,
) -> Result<u128, Misfit> {
    let part = range >> room.part();
    let quarter = range / 4;
    let second = scale.positions(MIN_STALENESS);
    let longest_by_itself = match longest {
        Some(nanos) => scale.positions(nanos),
        None => scale.positions(3_600 * MIN_STALENESS),
    };
    let staleness = match asked {
        Some(asked) if scale.gain > 0 => scale.positions(asked),
        // Positions stand still (the rate is 0), so any number of them works.
        _ if scale.gain == 0 => range / 16,
        _ if longest.is_none() && range >= scale.positions(1 << 63) && range / 16 > second => {
            range / 16
        }
        _ if part > longest_by_itself => longest_by_itself,
        _ if part > second => part,
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

/// How positions advance: by `gain` every `step` nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) step: u64,
    pub(crate) gain: u64,
}

impl Scale {
    pub(crate) const fn new(step: u64, gain: u64) -> Self {
        Self { step, gain }
    }

    /// Returns the positions in `nanos`, rounded up to whole steps.
    pub(crate) const fn positions(self, nanos: u64) -> u128 {
        product(nanos.div_ceil(self.step), self.gain)
    }
}

/// What kind of word a limiter has: which defaults suit it.
///
/// Positions wrap in a word. A limiter at rest is denied while its distance looks like that of a
/// stale timestamp, or of a limiter in use. A tick that the builder chooses makes this rare:
///
/// - [`Wide`](Self::Wide): never within [`TEN_YEARS`] of rest.
/// - [`Narrow`](Self::Narrow): the same, or for at most one in [`RARE`] of all times. A wide word's
///   staleness would take more than that, so its default is shorter.
/// - [`Slot`](Self::Slot): the horizon is [`FAR_ENOUGH`].
#[derive(Clone, Copy)]
pub(crate) enum Room {
    /// A word of 32 bits, or a part of one.
    Narrow,
    /// A word of 64 bits, or a part of one.
    Wide,
    /// The state in a slot of a table.
    Slot,
}

impl Room {
    /// Returns the kind of a state that has `bits` bits.
    pub(crate) const fn of(bits: u32) -> Self {
        if bits == KeyedWord::BITS {
            Self::Slot
        } else if bits <= u32::BITS {
            Self::Narrow
        } else {
            Self::Wide
        }
    }

    /// Returns the logarithm of how many parts of the range the default staleness is one of.
    const fn part(self) -> u32 {
        match self {
            // The staleness counts twice in a window that was used: see `Stamped`.
            Self::Narrow => 19,
            Self::Wide | Self::Slot => 8,
        }
    }

    /// Returns whether positions wrap so late that no coarser tick is necessary. At `denied` of the
    /// `range` positions, a limiter at rest may be denied.
    pub(crate) const fn is_enough(self, range: u128, denied: u128, scale: Scale) -> bool {
        if scale.gain == 0 {
            return true;
        }
        let step = scale.step as u128;
        match self {
            Self::Slot => quotient(range, scale.gain as u128) * step >= FAR_ENOUGH,
            Self::Narrow if denied * RARE <= range => true,
            Self::Narrow | Self::Wide => {
                quotient(range.saturating_sub(denied), scale.gain as u128) * step >= TEN_YEARS
            }
        }
    }

    /// Returns the finest default tick for a limiter whose shortest span is `span`, both in
    /// nanoseconds: a power of ten. A finer tick than a 1,000th of the span would only make the
    /// horizon of a narrow word shorter.
    pub(crate) const fn finest_tick(self, span: u64) -> u64 {
        let mut tick = 1;
        while matches!(self, Self::Narrow) && tick < MAX_AUTOMATIC_TICK && tick * 10 <= span / 1_000
        {
            tick *= 10;
        }
        tick
    }
}

/// What needs more than a quarter of a word's range.
#[derive(Clone, Copy)]
pub(crate) enum Misfit {
    /// The staleness that the caller asked for.
    Staleness,
    /// A staleness of one second.
    Second,
    /// The positions that the limiter has in use.
    Reach,
}

/// Converts a staleness setting to nanoseconds: at least one second.
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

/// The horizon that any tick chosen by the builder should reach, in nanoseconds: one hour.
pub(crate) const FAR_ENOUGH: u128 = 3_600_000_000_000;
/// The time of rest after which the chosen tick should not lead to a denial, in nanoseconds.
const TEN_YEARS: u128 = 315_576_000_000_000_000;
/// One in how many times may be denied at rest, if a narrow word cannot last ten years.
const RARE: u128 = 100_000;
/// The coarsest default tick, in nanoseconds: ten seconds.
pub(crate) const MAX_AUTOMATIC_TICK: u64 = 10_000_000_000;
