//! State: a fixed window's word (see [`fixed_window`](super::fixed_window)) in fewer bits, so that
//! it also names the settings in force (see [`live`](crate::word::live)).
//!
//! ```text
//! era | set | - | end | count    the tick at which the window ends, and the permits counted in it
//! ```
//!
//! The end is an instant and not a window's index, so that it means the same under any settings.
//! How far ahead of a tick it lies, wrapped in its bits, says what it is to a `now` in that tick;
//! the zones are cut for the longest window that may be set, and never move:
//!
//! ```text
//! 0   1 ....................... near | near+1 ...... near + staleness | ..... 2^bits-1
//! over         on, or `now` is late  |  too late: denied              |           over
//! ```
//!
//! - *take* while the window is on: adds to the count. No settings but the limit are looked at.
//! - *take* when it is over: a new window, with an end and a count of its own.
//! - *take* where the first request starts a window, and nothing is counted in the one that is on:
//!   starts it anew, if it then ends later.
//! - *adjust*: the other set, a new era, the end that the window has under the new settings, and a
//!   count that leaves what is carried over.
//! - *give back*: subtracts from the count, in the same window of the same era.
//!
//! Who gives back all never moves the end: between an earlier end and the next window, who comes
//! late would find room for a whole limit more.
//!
//! Invariant: what is granted in a window of an era is never more than the limit less the count
//! that the era began it with. The count may be more than the limit, where that was lowered, but
//! never more than the largest that may be set.

use core::hint::cold_path;
use core::time::Duration;

use crate::limiter::queue_limiter::replenishing;
use crate::sync::const_unless_loom;
use crate::time::grid::{self, Grid};
use crate::time::timestamp::saturating_duration;
use crate::word::live::{LONGEST_STALENESS, Live, When};
use crate::word::settings::{self, MIN_STALENESS, Scale};
use crate::word::{NativeWord, Word, narrow};
use crate::{
    Carry, ChangeError, Denied, Idle, Lease, Limiter, LimiterId, Receipt, Refund, Retry, Setting,
    SettingsError, Timestamp,
};

/// A fixed window whose limit and length can be changed while others take from it.
///
/// It decides as a [`FixedWindow`](crate::FixedWindow) does, on the settings of the moment. Windows
/// lie side by side on a grid that starts at an origin, one grid for each length, or, [started by
/// the first request](AdjustableWindowBuilder::started_by_first_request), each begins with the
/// first request after the last one's end; if all that was taken in it is given back, the next
/// request starts it anew.
///
/// **Bound.** At most `limit` permits in each window, and so at most twice the limit in any span of
/// one window's length. At a [change](Self::adjust_at) the window that is on becomes one of the new
/// length. What was granted before keeps to the old bound; what is granted in this window from then
/// on is at most what the [`Carry`] leaves of the new limit, and all windows after it keep to the
/// new bound. With [`Carry::Keep`] there is never more left than before. With [`Carry::Additive`]
/// and [`Carry::Proportional`] what was granted in the window and what is left in it are together
/// at most the largest limit that was in force in it since the last
/// [`Carry::Reset`]: however often the settings are changed at one instant, nothing is gained.
///
/// An admission counts at the later of its own `now` and the newest one granted, and so does a
/// change.
///
/// **Exact.** Retry times are exact to the nanosecond, as long as nobody changes the settings.
/// Lengths are rounded up to whole [ticks](Self::tick).
///
/// **Cost.** About that of a fixed window, as long as a window is on; its first grant costs two
/// more multiplications. A grant is one compare-exchange, and in each new [tick](Self::tick) a
/// second one, which notes the newest time. A denial writes nothing and reads the word twice.
///
/// **Changing and giving back** are lock-free and never wait. One call at a time does either: a
/// change that finds another call at it answers [`ChangeError::Busy`], and a refund gives nothing
/// back then. The word tells 64 changes apart, 4 with 32 bits. Where more than three quarters of
/// that come within twice the [`staleness`](Self::staleness), each decision costs two more atomic
/// writes for that long, and a change is refused with `Busy` while a call is in the middle of a
/// decision since about as many changes ago: so no call decides by old settings. For frequent
/// changes, build the window with a short staleness.
///
/// **Horizon.** End and count share 52 bits of a 64-bit word, 26 of a 32-bit one: the count takes
/// the bits of the largest limit that may be set, and the end wraps in the others. The bound holds
/// for every `now` up to [`staleness`](Self::staleness) older than the newest; a window that has
/// been idle for whole multiples of [`horizon`](Self::horizon) may be told less than full for at
/// most twice that staleness and the longest window that may be set, and on a grid until the window
/// ends in which that is over.
///
/// Source: the fixed window limiter of the .NET rate limiting proposal, Ocelot's window that the
/// first request starts, and bucket4j's replacement of a configuration.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableWindow, Carry, Timestamp};
///
/// static LIMIT: AdjustableWindow =
///     match AdjustableWindow::builder(2, Duration::from_secs(60))
///         .max_limit(1_000)
///         .build()
///     {
///         Ok(limit) => limit,
///         Err(_) => panic!("does not fit"),
///     };
///
/// let at = Timestamp::from_secs;
/// LIMIT.try_acquire_at(at(10), 2)?;
/// assert!(LIMIT.try_acquire_at(at(20), 1).is_err());
/// // Three in each ten seconds, of which two have been used.
/// LIMIT
///     .adjust_at(at(21), 3, Duration::from_secs(10), Carry::Additive)
///     .unwrap();
/// assert!(LIMIT.try_acquire_at(at(22), 1).is_ok());
/// assert!(LIMIT.try_acquire_at(at(29), 1).is_err());
/// assert!(LIMIT.try_acquire_at(at(30), 3).is_ok());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct AdjustableWindow<W: Word = NativeWord> {
    live: Live<SETTINGS, W>,
    origin: Timestamp,
    /// Of the time since the origin.
    ticks: Grid,
    started: bool,
    count_bits: u32,
    /// The farthest that the end lies ahead of a `now`, in its place in the word.
    near: W,
    /// In ticks.
    staleness: u64,
    /// The ticks after which a receipt is worth nothing: an end may then have come around.
    outlived: u64,
    max_limit: u64,
    /// In ticks.
    max_window: u64,
}

const LIMIT: usize = 0;
const WINDOW: usize = 1;
/// The window's reciprocal, in two halves that fit any word.
const LOW: usize = 2;
const HIGH: usize = 3;
/// Of the window in which these settings began: its end, as a tick that never comes around, in two
/// halves; what was granted in it beyond its count then; and the largest limit that was in force in
/// it.
const BEGAN: usize = 4;
const BEGAN_HIGH: usize = 5;
const BEYOND: usize = 6;
const LARGEST: usize = 7;
const SETTINGS: usize = 8;

/// A limit, and a window's length in ticks.
#[derive(Clone, Copy)]
struct Settings {
    limit: u64,
    window: u64,
}

impl Settings {
    const fn to_words(self, began: u64, beyond: u64, largest: u64) -> [u64; SETTINGS] {
        let reciprocal = grid::reciprocal(self.window);
        let mut words = [0; SETTINGS];
        words[LIMIT] = self.limit;
        words[WINDOW] = self.window;
        words[LOW] = reciprocal & u32::MAX as u64;
        words[HIGH] = reciprocal >> 32;
        words[BEGAN] = began & u32::MAX as u64;
        words[BEGAN_HIGH] = began >> 32;
        words[BEYOND] = beyond;
        words[LARGEST] = largest;
        words
    }
}

/// A window whose settings have just begun.
struct Carried {
    end: u64,
    count: u64,
    beyond: u64,
    largest: u64,
}

/// A window that is on for some `now`.
#[derive(Clone, Copy)]
struct On {
    /// The permits that count for it: all, if it is too late.
    count: u64,
    /// The ticks until its end.
    ahead: u64,
}

impl AdjustableWindow {
    const_unless_loom! {
        /// At most `limit` permits (at least 1) in each `window`, 1 ns to 292 years, on a grid from
        /// [`Timestamp::ZERO`]. Neither can be raised later on: see [`builder`](Self::builder).
        ///
        /// # Panics
        ///
        /// Where [`AdjustableWindowBuilder::build`] would return an error; in a constant or a
        /// static, that is a compile error.
        ///
        /// ```
        /// # use portcullis_core::AdjustableWindow;
        /// # use core::time::Duration;
        /// static LIMIT: AdjustableWindow = AdjustableWindow::new(100, Duration::from_secs(60));
        /// ```
        pub const fn new(limit: u64, window: Duration) -> Self {
            match Self::builder(limit, window).build() {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Settings for at most `limit` permits (at least 1) in each `window`, 1 ns to 292 years.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// let limit = AdjustableWindow::builder(5, Duration::from_secs(1))
    ///     .max_limit(50)
    ///     .build()?;
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u64, window: Duration) -> AdjustableWindowBuilder {
        AdjustableWindowBuilder {
            limit,
            window,
            max_limit: limit,
            max_window: window,
            origin: Timestamp::ZERO,
            started: false,
            tick: None,
            staleness: None,
        }
    }
}

impl<W: Word> AdjustableWindow<W> {
    const STATE: u64 = Live::<SETTINGS, W>::STATE;

    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is answered as a request for
    /// 1 would be.
    ///
    /// The lease does nothing when dropped: permits come back with the next window.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], or [`Denied::ExceedsCapacity`] if `n` is more than the limit.
    ///
    /// # Cost
    ///
    /// A load of the word and one of the limit, two multiplications, and on success one
    /// compare-exchange. Never divides, blocks or panics.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = AdjustableWindow::new(3, Duration::from_secs(1));
    /// assert_eq!(
    ///     limit.try_acquire_at(Timestamp::ZERO, 2).unwrap().permits(),
    ///     2
    /// );
    /// let denied = limit.try_acquire_at(Timestamp::ZERO, 2).unwrap_err();
    /// assert_eq!(
    ///     denied.retry(&limit).wait_from(Timestamp::ZERO),
    ///     Some(Duration::from_secs(1))
    /// );
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Changes limit and window from `now` on, or from the newest time at which anything was
    /// granted, if that is later; `carry` says what becomes of the permits in the window that is
    /// on.
    ///
    /// On a grid, the window that is on then ends where that one of the new grid ends which `now`
    /// lies in. Where windows are started by the first request, it ends the new length after its
    /// start, if that is not over yet, else within a tick; where no window is on, one begins with
    /// the change, and so it does with [`Carry::Reset`] and where nothing counts as used; while
    /// that is so, the next request starts it anew. A `now` before the window that is on counts as
    /// its start.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Busy`] if another call is changing settings or giving back, or changes come
    /// too often; [`ChangeError::Settings`] if a setting is zero or more than the
    /// [most](AdjustableWindowBuilder::max_limit) that the builder was told; [`ChangeError::Owes`]
    /// if `now` is more than the [`staleness`](Self::staleness) older than the window that is on.
    /// Nothing has changed then.
    ///
    /// # Cost
    ///
    /// Some divisions, and a compare-exchange for each decision that comes between. Lock-free;
    /// never makes anyone wait.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Carry, Timestamp};
    /// let limit = AdjustableWindow::new(10, Duration::from_secs(60));
    /// let at = Timestamp::from_secs;
    /// limit.try_acquire_at(at(0), 8).unwrap();
    /// // Two are left, until ten seconds are over.
    /// limit
    ///     .adjust_at(at(3), 5, Duration::from_secs(10), Carry::Keep)
    ///     .unwrap();
    /// assert_eq!(limit.available_at(at(9)), 2);
    /// assert_eq!(limit.available_at(at(10)), 5);
    /// ```
    pub fn adjust_at(
        &self,
        now: Timestamp,
        limit: u64,
        window: Duration,
        carry: Carry,
    ) -> Result<(), ChangeError> {
        let new = self
            .settings(limit, window)
            .map_err(ChangeError::Settings)?;
        let (tick, into) = self.split(now);
        let turn = |word, When { earliest, latest }| {
            if latest - tick > self.staleness {
                return Err(ChangeError::Owes);
            }
            // What was granted in a window was granted before its end.
            let newest = match self.on(word, self.stamp(earliest), u64::MAX) {
                Some(on) => latest.min(earliest.saturating_add(on.ahead - 1)),
                None => earliest,
            };
            let newest = if earliest == latest { latest } else { newest };
            // Somewhere in that tick.
            let into = if newest == tick { into } else { 1 };
            let Carried {
                end,
                count,
                beyond,
                largest,
            } = self.carried(word, (newest, into), new, carry)?;
            Ok((
                new.to_words(end, beyond, largest),
                self.stamp(end) | count,
                (),
            ))
        };
        self.live.change(tick, self.staleness, turn, |()| {})
    }

    /// The permits left in the window that `now` lies in.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// # use core::time::Duration;
    /// assert_eq!(
    ///     AdjustableWindow::new(3, Duration::from_secs(1)).available_at(Timestamp::ZERO),
    ///     3
    /// );
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.read(|word, Settings { limit, .. }| {
            limit.saturating_sub(self.counted(word, now, limit).map_or(0, |on| on.count))
        })
    }

    /// Whether all permits are available at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableWindow, Idle, Timestamp};
    /// # use core::time::Duration;
    /// let limit = AdjustableWindow::new(3, Duration::from_secs(1));
    /// assert_eq!(
    ///     limit.idle_at(Timestamp::from_secs(9)),
    ///     Idle::Since(Timestamp::ZERO)
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        let tick = self.split(now).0;
        let stamp = self.stamp(tick);
        self.read(
            |word, Settings { limit, .. }| match self.counted(word, now, limit) {
                Some(On { count: 0, .. }) => Idle::Now,
                Some(_) => Idle::InUse,
                None => {
                    let passed =
                        self.ahead(word, stamp).wrapping_neg() & (Self::STATE >> self.count_bits);
                    Idle::Since(
                        self.start(tick.saturating_sub(passed))
                            .unwrap_or(Timestamp::MAX),
                    )
                }
            },
        )
    }

    /// The permits in each window, as it is set now.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// assert_eq!(AdjustableWindow::new(3, Duration::from_secs(1)).limit(), 3);
    /// ```
    pub fn limit(&self) -> u64 {
        self.read(|_, settings| settings.limit)
    }

    /// The length of a window, as it is set now: whole ticks.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(AdjustableWindow::new(3, second).window(), second);
    /// ```
    pub fn window(&self) -> Duration {
        self.span(self.read(|_, settings| settings.window))
    }

    /// The grain in which time is counted: windows' lengths are rounded up to it, and the start of
    /// one that the first request starts.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// assert_eq!(
    ///     AdjustableWindow::new(3, Duration::from_secs(1)).tick(),
    ///     Duration::from_micros(1)
    /// );
    /// ```
    pub fn tick(&self) -> Duration {
        self.span(1)
    }

    /// How much older than the newest `now` another one may be for the bound to hold: at least one
    /// second. No change changes it.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// assert!(
    ///     AdjustableWindow::new(3, Duration::from_secs(1)).staleness()
    ///         >= Duration::from_secs(1)
    /// );
    /// ```
    pub fn staleness(&self) -> Duration {
        self.span(self.staleness)
    }

    /// After how much idle time the word repeats: see the type's documentation. No change changes
    /// it.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// assert!(
    ///     AdjustableWindow::new(3, Duration::from_secs(1)).horizon()
    ///         > Duration::from_secs(3_600)
    /// );
    /// ```
    pub fn horizon(&self) -> Duration {
        self.span(Self::STATE >> self.count_bits)
    }

    fn span(&self, ticks: u64) -> Duration {
        saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()))
    }

    /// The tick that `now` lies in, and how far into it `now` is. An instant before the origin
    /// counts as the origin.
    #[inline(always)]
    fn split(&self, now: Timestamp) -> (u64, u64) {
        self.ticks
            .divide(now.as_nanos().saturating_sub(self.origin.as_nanos()))
    }

    /// The first instant of a tick, if there is such an instant.
    fn start(&self, tick: u64) -> Option<Timestamp> {
        let since = self.ticks.start(tick)?.as_nanos();
        since
            .checked_add(self.origin.as_nanos())
            .map(Timestamp::from_nanos)
    }

    /// A tick in its place in the word.
    #[inline(always)]
    fn stamp(&self, tick: u64) -> u64 {
        (tick << self.count_bits) & Self::STATE
    }

    /// The bits of the count.
    #[inline(always)]
    fn counts(&self) -> u64 {
        !(u64::MAX << self.count_bits)
    }

    /// Whether the window of `word` is on at `stamp`, has been started, and its count leaves room
    /// for `wanted`.
    #[inline(always)]
    fn fits(&self, word: u64, stamp: u64, limit: u64, wanted: u64) -> bool {
        // The stamp's count is zero, so that the word's is left as it is.
        let ahead = word.wrapping_sub(stamp) & Self::STATE;
        let count = word & self.counts();
        ahead.wrapping_sub(1 << self.count_bits) < self.near.into()
            && count + wanted <= limit
            && count >= self.started.into()
    }

    /// The ticks from `stamp` to the end in `word`.
    #[inline(always)]
    fn ahead(&self, word: u64, stamp: u64) -> u64 {
        (word.wrapping_sub(stamp) & Self::STATE) >> self.count_bits
    }

    /// The window that is on at `stamp`, if it is not over.
    #[inline(always)]
    fn on(&self, word: u64, stamp: u64, limit: u64) -> Option<On> {
        let ahead = self.ahead(word, stamp);
        let near = self.near.into() >> self.count_bits;
        if ahead == 0 || ahead > near + self.staleness {
            None
        } else {
            Some(On {
                count: if ahead > near {
                    limit
                } else {
                    word & self.counts()
                },
                ahead,
            })
        }
    }

    /// Whether windows lie on a grid, and the end in `word` lies inside of the window of it that is
    /// on at `stamp` and ends `rest` ticks later: where the word has come around after a long idle
    /// time. The count goes on then until the end of that window, as some of it may have been
    /// granted in it.
    #[inline(always)]
    fn goes_on(&self, word: u64, stamp: u64, rest: u64) -> bool {
        let passed = self.ahead(word, stamp).wrapping_neg() & (Self::STATE >> self.count_bits);
        !self.started && passed < self.live.setting(word, WINDOW).wrapping_sub(rest)
    }

    /// The window that a request at `now` is counted in, if one is on: with an end on the grid. Of
    /// no meaning if the word has changed meanwhile.
    fn counted(&self, word: u64, now: Timestamp, limit: u64) -> Option<On> {
        let (tick, into) = self.split(now);
        let stamp = self.stamp(tick);
        let on = self.on(word, stamp, limit);
        match on {
            _ if self.started => on,
            None => {
                let rest = self.end(word, tick, into).wrapping_sub(tick);
                let count = word & self.counts();
                self.goes_on(word, stamp, rest)
                    .then_some(On { count, ahead: rest })
            }
            Some(On { count, ahead }) => {
                // The last tick of the window, rather than its end, which may be the start of
                // another one.
                let end = tick
                    .checked_add(ahead - 1)
                    .map(|last| self.end(word, last, 0));
                Some(On {
                    count,
                    ahead: end.map_or(ahead, |end| end.wrapping_sub(tick)),
                })
            }
        }
    }

    /// The tick that ends a window which begins `into` the tick `tick`, or that one of the grid in
    /// which it lies, by the settings that `word` names. Of no meaning if the word has changed
    /// meanwhile.
    #[inline(always)]
    fn end(&self, word: u64, tick: u64, into: u64) -> u64 {
        let window = self.live.setting(word, WINDOW);
        if self.started {
            return tick.wrapping_add(u64::from(into != 0)).wrapping_add(window);
        }
        // Halves may not belong together while they are being written.
        let reciprocal = self.live.setting(word, HIGH) << 32 | self.live.setting(word, LOW);
        let (_, rest) = grid::divide(tick, window, reciprocal);
        tick.wrapping_sub(rest).wrapping_add(window)
    }

    /// What `tell` says of a word and of settings that belong to it.
    fn read<T>(&self, tell: impl Fn(u64, Settings) -> T) -> T {
        self.live.read(|word| tell(word, self.in_force(word)))
    }

    /// The settings that `word` names. Of no meaning if the word has changed meanwhile.
    fn in_force(&self, word: u64) -> Settings {
        Settings {
            limit: self.live.setting(word, LIMIT),
            window: self.live.setting(word, WINDOW),
        }
    }

    /// The tick that ends the window in which the settings began that `word` names.
    fn began(&self, word: u64) -> u64 {
        self.live.setting(word, BEGAN_HIGH) << 32 | self.live.setting(word, BEGAN)
    }

    /// Whether windows are started by requests, and nothing was taken in that of `word` that was
    /// not given back.
    fn is_unstarted(&self, word: u64) -> bool {
        let is_empty = self.started && word & self.counts() == 0;
        // Where the word has come around, it may seem to be the window in which the settings began:
        // that is on the safe side.
        let has_begun = || self.stamp(self.began(word)) == word & Self::STATE & !self.counts();
        is_empty && !(has_begun() && self.live.setting(word, BEYOND) > 0)
    }

    /// Checked settings, the window in ticks.
    fn settings(&self, limit: u64, window: Duration) -> Result<Settings, SettingsError> {
        if limit == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Limit,
            });
        }
        if limit > self.max_limit {
            return Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max: self.max_limit,
            });
        }
        let window = settings::nanos(window, Setting::Window)?.div_ceil(self.ticks.step());
        if window > self.max_window {
            let max = self.max_window.saturating_mul(self.ticks.step());
            return Err(SettingsError::TooLarge {
                setting: Setting::Window,
                max,
            });
        }
        Ok(Settings { limit, window })
    }

    /// The window under new settings, for a change in a tick and so far into it.
    fn carried(
        &self,
        word: u64,
        (tick, into): (u64, u64),
        new: Settings,
        carry: Carry,
    ) -> Result<Carried, ChangeError> {
        let old = self.in_force(word);
        let (stamp, rest) = (
            self.stamp(tick),
            self.end(word, tick, into).wrapping_sub(tick),
        );
        let most = old.window + u64::from(self.started);
        let on = match self.on(word, stamp, old.limit) {
            // Either the change is later than a call may be, or the word has come around.
            Some(on) if on.ahead > most + self.staleness => return Err(ChangeError::Owes),
            // The change is no older than any grant. So if the window seems to begin later, the
            // word has come around: what is counted may have been granted in the window that is on,
            // which ends no later than one that begins now.
            Some(on) if on.ahead > most => Some(On {
                ahead: if self.started { most } else { rest },
                ..on
            }),
            None if self.goes_on(word, stamp, rest) => Some(On {
                count: word & self.counts(),
                ahead: rest,
            }),
            on => on,
        };
        let at = i128::from(tick);
        let anew = at + i128::from(self.started && into != 0);
        // A window that is over has begun again; so has one that no request has started.
        let begun = on.map_or(anew, |on| {
            let begun = at + i128::from(on.ahead) - i128::from(old.window);
            if self.is_unstarted(word) {
                begun.max(anew)
            } else {
                begun
            }
        });
        let window = i128::from(new.window);
        let end = match carry {
            _ if !self.started => (begun.max(at) / window + 1) * window,
            Carry::Reset => begun.max(anew) + window,
            _ => (begun + window).max(at + 1),
        };
        let count = on.map_or(0, |on| on.count);
        let left = old.limit.saturating_sub(count);
        // What was granted in this window: counted, or forgotten by a change that left as many.
        let is_same = on.is_some_and(|on| tick.wrapping_add(on.ahead) == self.began(word));
        let beyond = if is_same {
            self.live.setting(word, BEYOND)
        } else {
            0
        };
        let largest = if is_same {
            self.live.setting(word, LARGEST)
        } else {
            old.limit
        }
        .max(new.limit);
        let granted = count.saturating_add(beyond);
        // So that nothing is gained by changing often: with what was granted, no more than the
        // largest limit.
        let rest = largest.saturating_sub(granted);
        let (left, granted) = match carry {
            Carry::Keep => (left.min(new.limit), granted),
            Carry::Proportional => {
                let share = u128::from(left) * u128::from(new.limit) / u128::from(old.limit);
                ((share as u64).min(rest), granted)
            }
            Carry::Additive => (new.limit.saturating_sub(count).min(rest), granted),
            Carry::Reset => (new.limit, 0),
        };
        // Of a limit that was lowered the count may be more, and is not forgotten if the limit is
        // raised.
        let count = match carry {
            Carry::Additive if left == 0 => count.max(new.limit),
            _ => new.limit - left,
        };
        // Past the end of time it wraps, as in the word.
        let end = end.cast_unsigned() as u64;
        let largest = if carry == Carry::Reset {
            new.limit
        } else {
            largest
        };
        Ok(Carried {
            end,
            count,
            beyond: granted.saturating_sub(count),
            largest,
        })
    }

    /// Takes where settings change often.
    #[cold]
    #[inline(never)]
    fn take_slowly(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let inside = self.live.count_in();
        let taken = self.take::<true>(now, n);
        drop(inside);
        self.live.calm(self.split(now).0);
        taken
    }

    /// Takes, by a caller that has counted itself in or need not.
    #[inline(always)]
    fn take<const INSIDE: bool>(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let wanted = u64::from(n.max(1));
        let (tick, into) = self.split(now);
        let stamp = self.stamp(tick);
        let mut word = self.live.load();
        loop {
            let limit = self.live.setting(word, LIMIT);
            let from = if self.fits(word, stamp, limit, wanted) {
                Ok(word)
            } else {
                cold_path();
                if wanted > limit {
                    // The limit is less than `n`, so it fits.
                    Err(Denied::ExceedsCapacity {
                        permits: n,
                        capacity: limit as u32,
                    })
                } else {
                    match self.on(word, stamp, limit) {
                        Some(On { count, .. }) if count + wanted > limit => {
                            Err(Denied::Exhausted { now, permits: n })
                        }
                        on => {
                            let end = self.end(word, tick, into);
                            let goes_on =
                                on.is_none() && self.goes_on(word, stamp, end.wrapping_sub(tick));
                            let end = self.stamp(end);
                            // A window that no request has started begins again. Its end never
                            // moves back: a late request finds it as it is.
                            let later = on.is_none_or(|on| {
                                self.is_unstarted(word) && on.ahead < self.ahead(end, stamp)
                            });
                            match word & self.counts() {
                                count if goes_on && count + wanted > limit => {
                                    Err(Denied::Exhausted { now, permits: n })
                                }
                                count if goes_on => Ok(word & !Self::STATE | end | count),
                                _ if later => Ok(word & !Self::STATE | end),
                                _ => Ok(word),
                            }
                        }
                    }
                }
            };
            let outcome = match from {
                Ok(_) if !INSIDE && n > 0 && word & Live::<SETTINGS, W>::SLOW != 0 => {
                    return self.take_slowly(now, n);
                }
                Ok(from) if n > 0 => {
                    let newest = self.live.note(tick);
                    let receipt = Receipt::dated(from & !self.counts(), newest);
                    self.live.exchange(word, from + wanted).map(|()| {
                        self.live.confirm_newest(tick, newest);
                        Ok(receipt)
                    })
                }
                Ok(_) => self.live.confirm(word).map(|()| Ok(Receipt::NONE)),
                Err(denied) => self.live.confirm(word).map(|()| Err(denied)),
            };
            match outcome {
                Ok(decision) => return decision,
                Err(newer) => word = newer,
            }
        }
    }

    /// When to come back behind others. Apart, so that who asks alone pays nothing for it.
    #[cold]
    #[inline(never)]
    fn retry_behind(&self, word: u64, limit: u64, now: Timestamp, wanted: u64) -> Retry {
        self.come_in(word, limit, now, wanted)
            .map_or(Retry::Never, Retry::At)
    }

    /// When there will have been room for `wanted`, more than the limit: what is left of the window
    /// that is on, or of one that begins now, and then one window after the other, as they are set.
    /// Of no meaning if the word has changed meanwhile.
    fn come_in(&self, word: u64, limit: u64, now: Timestamp, wanted: u64) -> Option<Timestamp> {
        let (tick, into) = self.split(now);
        let begun = self.end(word, tick, into).wrapping_sub(tick);
        let (left, ahead) = match (self.counted(word, now, limit), word & self.counts()) {
            (None, _) => (limit, begun),
            (Some(on), _) if self.is_unstarted(word) => (limit, begun.max(on.ahead)),
            (Some(on), count) => (limit.saturating_sub(count), on.ahead),
        };
        let mut start = tick.checked_add(ahead)?;
        let windows = wanted
            .saturating_sub(left)
            .saturating_sub(1)
            .checked_div(limit)?;
        if let Some(more) = windows.checked_sub(1) {
            // The first of them brings those after it back onto the grid, where the word has come
            // around.
            let first = self.end(word, start, 0).wrapping_sub(start);
            let more = more.checked_mul(self.live.setting(word, WINDOW))?;
            start = start.checked_add(first)?.checked_add(more)?;
        }
        self.start(start)
    }

    /// Notes the time `now` as a take does that is denied in the end.
    #[cfg(any(explore, notes))]
    #[doc(hidden)]
    pub fn note_at(&self, now: Timestamp) {
        self.live.note(self.split(now).0);
    }

    /// Counts `n` permits back, if the window that they were counted in is still the newest one,
    /// and of the same era.
    fn undo(&self, now: Timestamp, n: u32, receipt: &Receipt) -> u32 {
        let Some(claim) = self.live.claim() else {
            return 0;
        };
        let noted = Live::<SETTINGS, W>::noted_in_full(receipt);
        let tick = self.split(now).0;
        loop {
            let word = self.live.load();
            let newest = self.live.no_older_than_newest(tick);
            let window = word & !self.counts() & !Live::<SETTINGS, W>::SLOW;
            let is_counted = window == noted.word && word & self.counts() >= n.into();
            if !is_counted || !claim.wrote(noted, newest) || newest - noted.newest >= self.outlived
            {
                return 0;
            }
            if self.live.exchange(word, word - u64::from(n)).is_ok() {
                return n;
            }
        }
    }
}

impl<W: Word> Limiter for AdjustableWindow<W> {
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take::<false>(now, n)
    }

    /// All of them, while no permit has been granted in a newer window, and no settings have been
    /// changed; else none. None either if another call is changing settings or giving back at this
    /// moment, if settings were changed in the [tick](Self::tick) of the grant more often than 14
    /// times with 32 bits (1,022 with 64), or if the receipt is older than about half the
    /// [`horizon`](Self::horizon). A window that the first of them has started is then as if no
    /// request had, unless a change has made it one that some permits were used of.
    #[inline]
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let refunded = self.undo(now, n, &receipt);
        receipt.refunded(refunded)
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.limit()
    }

    fn idle_at(&self, now: Timestamp) -> Idle {
        self.idle_at(now)
    }

    fn retry(&self, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        let wanted = u64::from(permits.max(1));
        let tick = self.split(now).0;
        let stamp = self.stamp(tick);
        self.read(|word, Settings { limit, .. }| {
            if wanted > limit {
                return self.retry_behind(word, limit, now, wanted);
            }
            let Some(On { count, ahead }) = self.counted(word, now, limit) else {
                return Retry::At(now);
            };
            if count + wanted <= limit {
                return Retry::At(now);
            }
            // Who is too late need not wait for the end, if there is room in the window.
            let room = (word & self.counts()) + wanted <= limit;
            let near = self.near.into() >> self.count_bits;
            let wait = if room {
                self.ahead(word, stamp) - near
            } else {
                ahead
            };
            tick.checked_add(wait)
                .and_then(|tick| self.start(tick))
                .map_or(Retry::Never, Retry::At)
        })
    }
}

replenishing!([W: Word] AdjustableWindow<W>);

/// Settings of an [`AdjustableWindow`]; from [`AdjustableWindow::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableWindow, Carry, Timestamp};
///
/// let second = Duration::from_secs(1);
/// let limit = AdjustableWindow::builder(1, second)
///     .max_limit(100)
///     .max_window(60 * second)
///     .build()?;
/// assert!(
///     limit
///         .adjust_at(Timestamp::ZERO, 100, 60 * second, Carry::Keep)
///         .is_ok()
/// );
/// assert!(
///     limit
///         .adjust_at(Timestamp::ZERO, 101, 60 * second, Carry::Keep)
///         .is_err()
/// );
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct AdjustableWindowBuilder {
    limit: u64,
    window: Duration,
    max_limit: u64,
    max_window: Duration,
    origin: Timestamp,
    started: bool,
    tick: Option<Duration>,
    staleness: Option<Duration>,
}

impl AdjustableWindowBuilder {
    /// The largest limit that may be set later on. Default: the limit that it is built with.
    ///
    /// It takes bits that the horizon, and the tick, could have.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Carry, Timestamp};
    /// let limit = AdjustableWindow::builder(5, Duration::from_secs(1))
    ///     .max_limit(50)
    ///     .build()?;
    /// limit
    ///     .adjust_at(Timestamp::ZERO, 50, Duration::from_secs(1), Carry::Additive)
    ///     .unwrap();
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 50);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn max_limit(mut self, max_limit: u64) -> Self {
        self.max_limit = max_limit;
        self
    }

    /// The longest window that may be set later on, 1 ns to 292 years. Default: the window that it
    /// is built with.
    ///
    /// It takes of the horizon, at least four times as long.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Carry, Timestamp};
    /// let minute = Duration::from_secs(60);
    /// let limit = AdjustableWindow::builder(5, Duration::from_secs(1))
    ///     .max_window(minute)
    ///     .build()?;
    /// limit
    ///     .adjust_at(Timestamp::ZERO, 5, minute, Carry::Keep)
    ///     .unwrap();
    /// assert_eq!(limit.window(), minute);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn max_window(mut self, max_window: Duration) -> Self {
        self.max_window = max_window;
        self
    }

    /// The instant that the grids start at; an earlier `now` counts as this one. Default:
    /// [`Timestamp::ZERO`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// let limit = AdjustableWindow::builder(1, Duration::from_secs(1))
    ///     .origin(Timestamp::from_millis(300))
    ///     .build()?;
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(1_299), 1)
    ///         .is_ok()
    /// );
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(1_300), 1)
    ///         .is_ok(),
    ///     "the next window"
    /// );
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn origin(mut self, origin: Timestamp) -> Self {
        self.origin = origin;
        self
    }

    /// A window begins with the first request that is granted after the end of the last one, or
    /// with a change. Default: on a grid.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// let limit = AdjustableWindow::builder(1, Duration::from_secs(1))
    ///     .started_by_first_request()
    ///     .build()?;
    /// assert!(limit.try_acquire_at(Timestamp::from_millis(700), 1).is_ok());
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(1_699), 1)
    ///         .is_err()
    /// );
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(1_700), 1)
    ///         .is_ok()
    /// );
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn started_by_first_request(mut self) -> Self {
        self.started = true;
        self
    }

    /// The grain in which time is counted, 1 ns to 292 years: lengths are rounded up to whole
    /// ticks, and so is the start of a window that the first request starts. Default: the finest of
    /// 1 ns, 10 ns, 100 ns, ... whose horizon is an hour or more, or else the coarsest up to the
    /// window; with a 64-bit word and a window of 10 µs or more, from 1 µs up.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::AdjustableWindow;
    /// let limit = AdjustableWindow::builder(1, Duration::from_millis(25))
    ///     .tick(Duration::from_millis(10))
    ///     .build()?;
    /// assert_eq!(limit.window(), Duration::from_millis(30));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// How old a `now` may be, against the newest, for the bound to hold: at least one second.
    /// Default: a 256th of the horizon, at least a second and at most an hour.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::AdjustableWindow;
    /// let limit = AdjustableWindow::builder(1, Duration::from_secs(1))
    ///     .staleness(Duration::from_secs(60))
    ///     .build()?;
    /// assert_eq!(limit.staleness(), Duration::from_secs(60));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn staleness(mut self, staleness: Duration) -> Self {
        self.staleness = Some(staleness);
        self
    }

    const_unless_loom! {
        /// The limiter, on the target's own word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound: a limit of zero, more than the
        /// largest one that may be set, or one of these so large that it leaves too few bits for
        /// the window's end; a window or tick outside of 1 ns to 292 years, or longer than the
        /// longest that may be set; a staleness under 1 s or too long.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{AdjustableWindow, Setting, SettingsError};
        /// let builder = AdjustableWindow::builder(9, Duration::from_secs(1));
        /// let refused = builder.max_limit(8).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Limit, max: 8 });
        /// ```
        pub const fn build(self) -> Result<AdjustableWindow, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// The limiter on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::AdjustableWindow;
        /// # use core::time::Duration;
        /// let limit: AdjustableWindow<u32> =
        ///     AdjustableWindow::builder(1_000, Duration::from_secs(1)).build_on()?;
        /// assert_eq!(limit.tick(), Duration::from_millis(100), "16 bits of it: 109 minutes");
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<AdjustableWindow<W>, SettingsError> {
            if self.limit == 0 {
                return Err(SettingsError::Zero { setting: Setting::Limit });
            }
            if self.limit > self.max_limit {
                return Err(SettingsError::TooLarge { setting: Setting::Limit, max: self.max_limit });
            }
            let (window, max_window) = match (
                settings::nanos(self.window, Setting::Window),
                settings::nanos(self.max_window, Setting::Window),
            ) {
                (Ok(window), Ok(max_window)) => (window, max_window),
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            if window > max_window {
                return Err(SettingsError::TooLarge { setting: Setting::Window, max: max_window });
            }
            let (mut tick, automatic) = match self.tick {
                // In each tick, the newest time is noted anew: not finer than need be.
                None => (if W::BITS == 64 && window >= 10_000 { 1_000 } else { 1 }, true),
                Some(tick) => match settings::nanos(tick, Setting::Tick) {
                    Ok(nanos) => (nanos, false),
                    Err(error) => return Err(error),
                },
            };
            let bits = Live::<SETTINGS, W>::STATE_BITS;
            let layout = loop {
                let coarser = automatic && tick <= window / 10;
                match self.layout(bits, max_window, tick) {
                    Ok(layout) if !coarser || layout.reaches(settings::FAR_ENOUGH, tick) => {
                        break layout;
                    }
                    Ok(_) => tick *= 10,
                    Err(_) if coarser => tick *= 10,
                    Err(error) => return Err(error),
                }
            };
            let settings = Settings { limit: self.limit, window: window.div_ceil(tick) };
            Ok(AdjustableWindow {
                // No window is on: the last one ended with the origin.
                live: Live::new(settings.to_words(0, 0, self.limit), 0, 0, layout.staleness),
                origin: self.origin,
                ticks: Grid::new(Timestamp::ZERO, tick),
                started: self.started,
                count_bits: layout.count_bits,
                near: narrow((layout.reach + layout.staleness) << layout.count_bits),
                staleness: layout.staleness,
                outlived: (layout.range - 1) as u64 - layout.reach - 2 * layout.staleness,
                max_limit: self.max_limit,
                max_window: max_window.div_ceil(tick),
            })
        }
    }

    /// How end and count share so many bits.
    const fn layout(&self, bits: u32, max_window: u64, tick: u64) -> Result<Layout, SettingsError> {
        let asked = match settings::staleness_nanos(self.staleness) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let count_bits = u64::BITS - self.max_limit.leading_zeros();
        // One more for the tick that a start is rounded up to.
        let reach = max_window.div_ceil(tick) + self.started as u64;
        let scale = Scale {
            step: tick,
            gain: 1,
        };
        let needed = 4 * (scale.positions(MIN_STALENESS) + reach as u128 + 1);
        let range = 1u128 << bits.saturating_sub(count_bits);
        if range < needed {
            let needed_bits = needed.next_power_of_two().trailing_zeros();
            let max = (1 << bits.saturating_sub(needed_bits)) - 1;
            return Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max,
            });
        }
        let longest = Some(LONGEST_STALENESS);
        let Ok(staleness) = settings::staleness(range, reach as u128 + 1, asked, longest, scale)
        else {
            // All else fits, by what is needed.
            let max = ((range / 4) as u64).saturating_mul(tick);
            return Err(SettingsError::TooLarge {
                setting: Setting::Staleness,
                max,
            });
        };
        Ok(Layout {
            range,
            count_bits,
            reach,
            staleness: staleness as u64,
        })
    }
}

/// How end and count share the bits of a state: of the end, in ticks.
#[derive(Clone, Copy)]
struct Layout {
    range: u128,
    count_bits: u32,
    /// How far the end may lie ahead of the tick that sets it.
    reach: u64,
    staleness: u64,
}

impl Layout {
    /// Whether ticks of `tick` nanoseconds come around only after `horizon` nanoseconds.
    const fn reaches(&self, horizon: u128, tick: u64) -> bool {
        self.range * tick as u128 >= horizon
    }
}
