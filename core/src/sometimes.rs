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
use crate::time::timestamp::{Timestamp, saturating_duration};
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
/// [tick](Self::tick) is longer than 1 ns, an interval lasts up to two ticks longer.
///
/// **Cost.** A call is one load, one multiplication and one compare-exchange. A call that neither
/// counts nor is due writes nothing: without `every`, that is each such call after the first `n`.
/// Never divides, locks, allocates or panics. Lock-free: a compare-exchange fails only because
/// another call was counted. All accesses are `Relaxed`. Interrupt-safe.
///
/// **Horizon.** Only with an interval. Its end wraps in the bits that the count leaves. The bound
/// holds for every `now` that is at most [`staleness`](Self::staleness) older than the newest one.
/// After a multiple of the [`horizon`](Self::horizon) without a due call, calls may not be due by
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
        SometimesBuilder {
            first: None,
            every: None,
            interval: None,
            origin: Timestamp::ZERO,
            tick: None,
            staleness: None,
        }
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

    /// Returns how much older than the newest `now` a timestamp may be for the bound to hold: at
    /// least one second; [`Duration::MAX`] without an interval.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Sometimes;
    /// let sometimes = Sometimes::builder().interval(Duration::from_secs(1)).build()?;
    /// assert!(sometimes.staleness() >= Duration::from_secs(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn staleness(&self) -> Duration {
        self.span(|started| started.layout.staleness())
    }

    /// Returns the time without a due call after which the state word repeats; [`Duration::MAX`]
    /// without an interval. See **Horizon** in the type's documentation.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Sometimes;
    /// let sometimes = Sometimes::builder().interval(Duration::from_secs(1)).build()?;
    /// assert!(sometimes.horizon() > Duration::from_secs(100 * 365 * 86_400));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn horizon(&self) -> Duration {
        self.span(|started| started.layout.range())
    }

    /// Returns the tick to which the start of an interval and its length are rounded up;
    /// [`Duration::MAX`] without an interval.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Sometimes;
    /// let sometimes = Sometimes::builder().interval(Duration::from_secs(1)).build()?;
    /// assert_eq!(sometimes.tick(), Duration::from_nanos(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn tick(&self) -> Duration {
        self.span(|_| 1)
    }

    /// The time of some positions.
    fn span(&self, positions: impl FnOnce(&Started<W>) -> u64) -> Duration {
        self.interval
            .as_ref()
            .map_or(Duration::MAX, |Interval { started, .. }| {
                let step = u128::from(started.grid.step());
                saturating_duration(u128::from(positions(started)) * step)
            })
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
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct SometimesBuilder {
    first: Option<u32>,
    every: Option<u32>,
    interval: Option<Duration>,
    origin: Timestamp,
    tick: Option<Duration>,
    staleness: Option<Duration>,
}

impl SometimesBuilder {
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
        self.first = Some(n);
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
        self.every = Some(n);
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
        self.interval = Some(interval);
        self
    }

    /// Sets the instant from which ticks and the word are counted. Default: [`Timestamp::ZERO`].
    ///
    /// A call before this instant, by up to the staleness, is not due by the interval. If the tick
    /// is longer than 1 ns, an earlier `now` counts as this instant. Without an interval, it has no
    /// effect.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Sometimes, Timestamp};
    /// let boot = Timestamp::from_secs(1_700_000_000);
    /// let sometimes = Sometimes::builder()
    ///     .interval(Duration::from_secs(1))
    ///     .origin(boot)
    ///     .build_on::<u32>()?;
    /// assert!(sometimes.is_due_at(boot));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn origin(mut self, origin: Timestamp) -> Self {
        self.origin = origin;
        self
    }

    /// Sets the tick, 1 ns to 292 years: the start of an interval and its length are rounded up to
    /// whole ticks. Without an interval, it has no effect.
    ///
    /// Default: the finest of 1 ns, 10 ns, 100 ns, ... with which a call is due after up to ten
    /// years without one, at most a hundredth of the interval. If the horizon is then shorter than
    /// an hour, coarser, up to the interval. With a 32-bit word, the choice starts at about a
    /// 1,000th of the interval, and ends where at most one in 100,000 of all calls after a rest is
    /// not due.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Sometimes;
    /// let sometimes = Sometimes::builder()
    ///     .interval(Duration::from_secs(1))
    ///     .tick(Duration::from_millis(10))
    ///     .build()?;
    /// assert_eq!(sometimes.tick(), Duration::from_millis(10));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// Sets how much older than the newest `now` a timestamp may be for the bound to hold: at least
    /// one second. Without an interval, it has no effect.
    ///
    /// Default: a sixteenth of the horizon if that is longer than 292 years. Otherwise a 256th of
    /// the horizon (with a 32-bit word, a 524,288th), at least a second and at most an hour.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Sometimes;
    /// let sometimes = Sometimes::builder()
    ///     .interval(Duration::from_secs(1))
    ///     .staleness(Duration::from_secs(60))
    ///     .build()?;
    /// assert_eq!(sometimes.staleness(), Duration::from_secs(60));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn staleness(mut self, staleness: Duration) -> Self {
        self.staleness = Some(staleness);
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
        /// assert_eq!(sometimes.tick(), Duration::from_millis(10));
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<Sometimes<W>, SettingsError> {
            if let Some(0) = self.first {
                return Err(SettingsError::Zero { setting: Setting::First });
            }
            if let Some(0) = self.every {
                return Err(SettingsError::Zero { setting: Setting::Every });
            }
            let first = match self.first {
                Some(n) => n as u64,
                None => 1,
            };
            let (round, last) = match self.every {
                // The first call is due in any case.
                Some(every) if first == 1 => (0, every as u64 - 1),
                Some(every) => {
                    let round = first.next_multiple_of(every as u64);
                    (round, round + every as u64 - 1)
                }
                None => (first, first),
            };
            let interval = match self.interval {
                None if last > W::MASK => return Err(self.beyond(W::MASK)),
                None => None,
                Some(interval) => match self.interval_on(interval, last) {
                    Ok(interval) => Some(interval),
                    Err(error) => return Err(error),
                },
            };
            let state = match &interval {
                Some(interval) => interval.started.nothing_since(self.origin),
                None => 0,
            };
            Ok(Sometimes {
                state: AtomicWord::new(state),
                first: narrow(first),
                round: narrow(round),
                last: narrow(last),
                has_rounds: self.every.is_some(),
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
        let tick = match self.tick {
            None => None,
            Some(tick) => match settings::nanos(tick, Setting::Tick) {
                Ok(nanos) => Some(nanos),
                Err(error) => return Err(error),
            },
        };
        let staleness = match settings::staleness_nanos(self.staleness) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let counts = if last == 0 { 1 } else { last };
        match Started::new(counts, nanos, nanos, tick, staleness, self.origin) {
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
        let every = match self.every {
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
