//! State: one word, `end | count` (see [`stamped`](crate::word::stamped)): when the interval since
//! the last call that was due ends, and a count of the calls. Without an interval, the count alone.
//!
//! ```text
//! count:   0 ... first-1 | first ... round-1 | round ......... last
//!          due           | not due           | due, then not due    after `last` comes `round`
//! ```
//!
//! `round` is `first`, rounded up to a multiple of `every`, and `last - round + 1` is `every`. So
//! the count says which multiple comes next without a division, and never runs out of bits. Without
//! `every`, the count stops at `first`.
//!
//! A call also is due if its `now` is at or after `end`. A due call moves `end`, but never back.

use core::time::Duration;

use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::settings::{Setting, SettingsError};
use crate::word::stamped::Started;
use crate::word::{AtomicWord, NativeWord, Word, narrow, settings};

/// Says for some calls that they are due: the first ones, every nth one, and one in each interval.
///
/// For example, to log or sample only some of many events. A call is due if one of these applies:
///
/// - it is the first call;
/// - it is one of the [`first`](SometimesBuilder::first) `n` calls;
/// - the number of calls before it is a multiple of [`every`](SometimesBuilder::every);
/// - at least an [`interval`](SometimesBuilder::interval) has passed since the last call that was
///   due, for whatever reason.
///
/// Without settings, only the first call is due. `Sometimes` counts calls, not permits, and what is
/// due next depends on calls to come. So it is no [`Limiter`](crate::Limiter): it has no retry
/// time, no refund, and no place in a composition or a queue. To bound a rate, use a
/// [`TokenBucket`](crate::TokenBucket).
///
/// Programs that come from `golang.org/x/time/rate` find there what that package has beside its
/// limiter. No other part of this crate uses it, and no first choice of a limiter leads here.
///
/// **Bound.** Of any `c` consecutive calls, in a span `t` of `now`, at most `ceil(c / every)` are
/// due by `every`, and at most `t / interval + 1` by `interval`, besides the `first` ones. A call
/// counts at its own `now` or at the newest `now` of a due call, whichever is later: a stale `now`
/// is never due by `interval` when that newest one would not be.
///
/// **Exact.** Racing calls are counted as if they came one after the other, each once. If the
/// [tick](Self::timing) is longer than 1 ns, an interval lasts up to two ticks longer.
///
/// **Cost.** A call is one load, one multiplication and one compare-exchange. A call that neither
/// counts nor is due writes nothing: without `every`, that is each such call after the first `n`.
/// Never divides, locks, allocates or panics. Lock-free: a compare-exchange fails only because
/// another call was counted. All accesses are `Relaxed`. Interrupt-safe.
///
/// **Horizon.** Only with an interval. Its end wraps in the bits that the count leaves. The bound
/// holds for every `now` that is at most [`staleness`](Self::timing) older than the newest one.
/// After a multiple of the [`horizon`](Self::timing) without a due call, calls may not be due by
/// the interval, for at most twice the staleness plus one interval; and if a call is due by its
/// count at such a time, the interval after it may be shorter, once.
///
/// Source: `rate.Sometimes` of golang.org/x/time.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Sometimes, Timestamp};
/// use portcullis_core::builder::SometimesBuilder;
///
/// const SAMPLED: SometimesBuilder = Sometimes::builder()
///     .first(2)
///     .interval(Duration::from_secs(10));
/// static LOGGED: Sometimes = match SAMPLED.build() {
///     Ok(sometimes) => sometimes,
///     Err(_) => panic!("does not fit"),
/// };
///
/// let due = [0, 1, 2, 10, 11, 20, 21].map(|s| LOGGED.is_due_at(Timestamp::from_secs(s)));
/// // The first two; and then one at 11 s, 10 s after the last one, and one at 21 s.
/// assert_eq!(due, [true, true, false, false, true, false, true]);
/// ```
#[derive(Debug)]
pub struct Sometimes<W: Word = NativeWord> {
    state: AtomicWord<W>,
    /// Calls with a lower count are due: at least 1.
    first: W,
    /// The count that follows `last`. If `has_rounds`, calls with this count are due.
    round: W,
    last: W,
    has_rounds: bool,
    interval: Option<Interval<W>>,
}

#[derive(Clone, Copy, Debug)]
struct Interval<W: Word> {
    started: Started<W>,
    /// Its length as a stamp.
    length: W,
}

impl Sometimes {
    /// Returns a builder. Without settings, only the first call is due.
    ///
    /// ```
    /// # use portcullis_core::{Sometimes, Timestamp};
    /// let once = Sometimes::builder().build()?;
    /// assert!(once.is_due_at(Timestamp::ZERO));
    /// assert!(!once.is_due_at(Timestamp::MAX));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder() -> SometimesBuilder {
        Builder::new(SometimesSettings {
            first: None,
            every: None,
            interval: None,
        })
    }
}

impl<W: Word> Sometimes<W> {
    /// Counts a call at `now`, and returns whether it is due.
    ///
    /// Without an interval, `now` has no effect.
    ///
    /// # Cost
    ///
    /// A load, a multiplication, and a compare-exchange if the call is counted or due. Lock-free.
    ///
    /// ```
    /// # use portcullis_core::{Sometimes, Timestamp};
    /// let sampled = Sometimes::builder().every(3).build()?;
    /// let due = [(); 7].map(|()| sampled.is_due_at(Timestamp::ZERO));
    /// assert_eq!(due, [true, false, false, true, false, false, true]);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    #[inline]
    #[must_use = "the call counts, whether it is due or not"]
    pub fn is_due_at(&self, now: Timestamp) -> bool {
        let mut state = self.state.load(Relaxed);
        loop {
            let (next, is_due) = self.counted(state, now);
            // A call that is due by `first` or `interval` changes the state, so it is due alone.
            if next == state {
                return is_due;
            }
            match self
                .state
                .compare_exchange_weak(state, next, Relaxed, Relaxed)
            {
                Ok(_) => return is_due,
                Err(newer) => state = newer,
            }
        }
    }

    /// Returns the state after a call at `now`, and whether the call is due.
    #[inline(always)]
    fn counted(&self, state: u64, now: Timestamp) -> (u64, bool) {
        let (count, end) = match &self.interval {
            Some(interval) => interval.started.layout.split(state),
            None => (state, 0),
        };
        let round: u64 = self.round.into();
        let next = if count == self.last.into() {
            round
        } else {
            count + 1
        };
        let is_due = count < self.first.into() || self.has_rounds && count == round;
        let Some(Interval { started, length }) = &self.interval else {
            return (next, is_due);
        };
        let is_over = started.layout.ahead(started.stamp(now), end).is_some();
        if !(is_due || is_over) {
            return (end | next, false);
        }
        let until = started.end(now, (*length).into());
        if is_over || started.layout.ahead(until, end).is_some() {
            (until | next, true)
        } else {
            // A stale `now`: the interval of the newest due call ends later.
            (end | next, true)
        }
    }

    /// Returns how time is counted: see [`Timing`]. Without an interval, all durations are
    /// [`Duration::MAX`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Sometimes;
    /// let log = Sometimes::builder().interval(Duration::from_secs(1)).build()?;
    /// assert!(log.timing().staleness >= Duration::from_secs(1));
    ///
    /// let sampled = Sometimes::builder().every(100).build()?;
    /// assert_eq!(sampled.timing().horizon, Duration::MAX, "it counts no time");
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn timing(&self) -> Timing {
        self.interval
            .as_ref()
            .map_or(Timing::NONE, |interval| interval.started.timing())
    }
}

/// Builds a [`Sometimes`]. Created by [`Sometimes::builder`].
///
/// ```
/// use portcullis_core::{Sometimes, Timestamp};
///
/// let sampled = Sometimes::builder().first(2).every(4).build()?;
/// let due = [(); 9].map(|()| sampled.is_due_at(Timestamp::ZERO));
/// // Calls 0 and 1; and then 4 and 8.
/// assert_eq!(due, [true, true, false, false, true, false, false, false, true]);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type SometimesBuilder = Builder<Sometimes>;

/// The settings of a [`Sometimes`] beside its timing.
#[derive(Clone, Copy, Debug)]
pub struct SometimesSettings {
    first: Option<u32>,
    every: Option<u32>,
    interval: Option<Duration>,
}

impl Sealed for Sometimes {
    type Settings = SometimesSettings;
}

impl Ticks for Sometimes {}

impl Builder<Sometimes> {
    /// Makes the first `n` calls due, at least 1. Default: 1.
    ///
    /// ```
    /// # use portcullis_core::{Sometimes, Timestamp};
    /// let sampled = Sometimes::builder().first(2).build()?;
    /// let due = [(); 4].map(|()| sampled.is_due_at(Timestamp::ZERO));
    /// assert_eq!(due, [true, true, false, false]);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn first(mut self, n: u32) -> Self {
        self.settings.first = Some(n);
        self
    }

    /// Makes every `n`th call due, beginning with the first call; `n` is at least 1. Default: none
    /// but the first.
    ///
    /// ```
    /// # use portcullis_core::{Sometimes, Timestamp};
    /// let sampled = Sometimes::builder().every(2).build()?;
    /// let due = [(); 4].map(|()| sampled.is_due_at(Timestamp::ZERO));
    /// assert_eq!(due, [true, false, true, false]);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn every(mut self, n: u32) -> Self {
        self.settings.every = Some(n);
        self
    }

    /// Makes a call due if `interval` has passed since the last call that was due, 1 ns to 292
    /// years. Default: no call is due by time.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Sometimes, Timestamp};
    /// let hourly = Sometimes::builder().interval(Duration::from_secs(3_600)).build()?;
    /// assert!(hourly.is_due_at(Timestamp::from_secs(60)));
    /// assert!(!hourly.is_due_at(Timestamp::from_secs(3_659)));
    /// assert!(hourly.is_due_at(Timestamp::from_secs(3_660)));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.settings.interval = Some(interval);
        self
    }

    const_unless_loom! {
        /// Builds it on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound:
        ///
        /// - `first` or `every` is zero, or leaves too few bits for the end of the interval;
        /// - the interval or the tick is outside of 1 ns to 292 years;
        /// - the staleness is shorter than 1 s, or too long for the word.
        ///
        /// ```
        /// # use portcullis_core::{SettingsError, Sometimes};
        /// # use portcullis_core::builder::Setting;
        /// let refused = Sometimes::builder().every(0).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::Zero { setting: Setting::Every });
        /// ```
        pub const fn build(self) -> Result<Sometimes, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds it on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::Sometimes;
        /// let sometimes: Sometimes<u32> = Sometimes::builder()
        ///     .every(1_000)
        ///     .interval(Duration::from_secs(1))
        ///     .build_on()?;
        /// assert_eq!(sometimes.timing().tick, Duration::from_millis(10));
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<Sometimes<W>, SettingsError> {
            if let Some(0) = self.settings.first {
                return Err(SettingsError::Zero { setting: Setting::First });
            }
            if let Some(0) = self.settings.every {
                return Err(SettingsError::Zero { setting: Setting::Every });
            }
            let first = match self.settings.first {
                Some(n) => n as u64,
                None => 1,
            };
            let (round, last) = match self.settings.every {
                // The first call is due in any case.
                Some(every) if first == 1 => (0, every as u64 - 1),
                Some(every) => {
                    let round = first.next_multiple_of(every as u64);
                    (round, round + every as u64 - 1)
                }
                None => (first, first),
            };
            let interval = match self.settings.interval {
                None if last > W::MASK => return Err(self.beyond(W::MASK)),
                None => None,
                Some(interval) => match self.interval_on(interval, last) {
                    Ok(interval) => Some(interval),
                    Err(error) => return Err(error),
                },
            };
            let state = match &interval {
                Some(interval) => interval.started.nothing_since(self.timing.origin),
                None => 0,
            };
            Ok(Sometimes {
                state: AtomicWord::new(state),
                first: narrow(first),
                round: narrow(round),
                last: narrow(last),
                has_rounds: self.settings.every.is_some(),
                interval,
            })
        }
    }

    /// The interval in a word beside counts up to `last`.
    const fn interval_on<W: Word>(
        &self,
        interval: Duration,
        last: u64,
    ) -> Result<Interval<W>, SettingsError> {
        let nanos = match settings::nanos(interval, Setting::Interval) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let tick = match self.timing.tick_nanos() {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let staleness = match self.timing.staleness_nanos() {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let counts = if last == 0 { 1 } else { last };
        match Started::new(counts, nanos, nanos, tick, staleness, self.timing.origin) {
            Ok(started) => Ok(Interval {
                length: started.span(nanos),
                started,
            }),
            Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max,
            }) => Err(self.beyond(max)),
            Err(error) => Err(error),
        }
    }

    /// The error if the count needs more than `max`.
    const fn beyond(&self, max: u64) -> SettingsError {
        let every = match self.settings.every {
            Some(every) => every as u64,
            None => {
                return SettingsError::TooLarge {
                    setting: Setting::First,
                    max,
                };
            }
        };
        // The most that `first` can be, rounded up to a multiple of `every`.
        match (max + 1).checked_sub(every) {
            Some(room) => SettingsError::TooLarge {
                setting: Setting::First,
                max: if room < every {
                    1
                } else {
                    room / every * every
                },
            },
            None => SettingsError::TooLarge {
                setting: Setting::Every,
                max: max + 1,
            },
        }
    }
}
