//! State: one word, [`until`](crate::word::hold), in addition to the state of the limiter. With a
//! threshold, a second word counts denials: it holds the end and the count of a [fixed
//! window](crate::limiters::fixed_window) that the first denial starts.
//!
//! ```text
//!   limiter:   granted  granted  denied |                            | granted
//!   until:                              |-------- Penalized ---------|
//!                                       written once, by the denial  |
//! ```
//!
//! A penalty by hand writes the same word, and only moves it forward. So penalties of both kinds
//! end at the later of their ends.
//!
//! A request reads `until` first, and takes from the limiter only if the penalty is over. So the
//! limiter's own bound holds under every race.

use core::cell::Cell;
use core::time::Duration;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::metadata::{self, Used};
use crate::limiter::not_granted::NotGranted;
use crate::limiter::queue_limiter::{QueueLimiter, Replenishing};
use crate::limiter::receipt::Receipt;
use crate::limiter::{
    Answer, Ask, Back, Hints, How, Idle, Limiter, LimiterExt, LimiterId, Read, Reading, Returned,
};
use crate::limiters::unlimited::Unlimited;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::hold::{Hold, NEVER};
use crate::word::settings::{Setting, SettingsError};
use crate::word::stamped::Started;
use crate::word::{AtomicWord, NativeWord, Word, settings};

/// A limiter that keeps denying for a time after a denial.
///
/// A penalty starts when the inner limiter denies a request, unless the request exceeds the
/// capacity. For at least `wait`, every request is then denied as [`Denied::Penalized`]. With a
/// [threshold](PenaltyBuilder::after), several denials start it. The denial that starts the penalty
/// is returned unchanged. A probe (`n = 0`) and a [`peek_at`](Limiter::peek_at) never start a
/// penalty.
///
/// A program can also start one [by hand](Self::penalize_at), for example until the end of a
/// `Retry-After`. If [only it does](PenaltyBuilder::started_by_hand), this wrapper is a pause: it
/// stops a limiter, or the queue of one, until an instant.
///
/// In an [`AllOf`](crate::AllOf), only a denial by the inner limiter starts a penalty. A denial by
/// another part, which rolls the grant back, does not. A denial by the inner limiter counts in two
/// more cases, because the request was denied:
///
/// - Another part of the same composition refers to the same limiter in another way, and has taken
///   the permits.
/// - A composition that is about to be rolled back has taken the permits.
///
/// In a queue of `portcullis-async`, the attempts of the queue start no penalty. A request that
/// waited starts one if its deadline passes before enough permits come ([`NotGranted::Denied`]). A
/// request that a full or closed queue rejects, or that is cancelled, starts none. During a
/// penalty, requests wait for its end.
///
/// **Bound.** That of the inner limiter, always. In addition, no request that begins after the
/// start of the penalty is admitted until `wait` has passed since the `now` of the denial that
/// started it. A request that began before the penalty may still be granted during it: if it found
/// no penalty, and paused before it took from the inner limiter.
///
/// **Writes.** A penalty writes once, when it starts. Denials during the penalty write nothing and
/// do not prolong it. Once the penalty has been over for the [`staleness`](Self::timing), the
/// next grant clears the word.
///
/// **Cost.** A grant costs one more load and one more comparison than without a penalty. Lock-free
/// if the inner limiter is. All accesses are `Relaxed`, because everything depends on one word.
///
/// **Horizon.** The word wraps. The penalty holds for every `now` that is at most
/// [`staleness`](Self::timing) older than the newest one. If a limiter grants nothing for
/// roughly a whole number of [horizons](Self::timing) after a penalty, the penalty may come back
/// once, for at most the wait plus that staleness. Then requests are denied needlessly. None is
/// admitted wrongly.
///
/// Source: `ThrottlingInSeconds` of `OneAccess`, the `minDecisionDuration` of ATS, and the `Wait`
/// of Ocelot. In Ocelot's own rule the count starts again after the wait: see
/// [`CooldownWindow`](crate::CooldownWindow).
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Denied, Penalty, Rate, Retry, Timestamp, TokenBucket};
///
/// static LIMIT: Penalty<TokenBucket> = Penalty::new(
///     TokenBucket::new(Rate::per_second(10), 2),
///     Duration::from_secs(30),
/// );
///
/// let now = Timestamp::from_secs(60);
/// assert!(LIMIT.try_acquire_at(now, 2).is_ok());
/// assert!(matches!(
///     LIMIT.try_acquire_at(now, 1),
///     Err(Denied::Exhausted { .. })
/// ));
///
/// // The bucket is full again, but the penalty is still on.
/// let later = Timestamp::from_secs(61);
/// let denied = LIMIT.try_acquire_at(later, 1).unwrap_err();
/// assert_eq!(
///     denied,
///     Denied::Penalized {
///         now: later,
///         permits: 1
///     }
/// );
/// assert_eq!(denied.retry(&LIMIT), Retry::At(Timestamp::from_secs(90)));
/// assert!(LIMIT.try_acquire_at(Timestamp::from_secs(90), 1).is_ok());
/// ```
#[derive(Debug)]
pub struct Penalty<L, W: Word = NativeWord> {
    until: AtomicWord<W>,
    /// Not used without a threshold.
    denials: AtomicWord<W>,
    hold: Hold<W>,
    spared: Spared<W>,
    limiter: L,
}

impl Penalty<Unlimited> {
    /// Returns a builder for penalties of at least `wait`, 1 ns to 292 years, which can be put
    /// [around](PenaltySettings::around) a limiter.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Penalty};
    /// let limit = Penalty::builder(Duration::from_secs(5))
    ///     .build()?
    ///     .around(Concurrency::new(2));
    /// assert_eq!(limit.limiter().limit(), 2);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(wait: Duration) -> PenaltyBuilder {
        let starts = Starts::Denial;
        Builder::new(PenaltyTerms { wait, starts })
    }
}

impl<L> Penalty<L> {
    const_unless_loom! {
        /// Wraps `limiter`: each denial starts a penalty of at least `wait`, 1 ns to 292 years.
        ///
        /// # Panics
        ///
        /// If [`PenaltyBuilder::build`] would return an error. In a constant or a static, that is a
        /// compile error.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Concurrency, Penalty};
        /// static LIMIT: Penalty<Concurrency> =
        ///     Penalty::new(Concurrency::new(2), Duration::from_secs(5));
        /// ```
        pub const fn new(limiter: L, wait: Duration) -> Self {
            match Penalty::builder(wait).build() {
                Ok(settings) => settings.around(limiter),
                Err(error) => error.refuse(),
            }
        }
    }
}

impl<L, W: Word> Penalty<L, W> {
    /// Ends the penalty, if one is in force. Counted denials stay counted.
    ///
    /// # Cost
    ///
    /// A load, and a compare-exchange if there has been a penalty.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Penalty, Timestamp};
    /// let limit = Penalty::new(Concurrency::new(1), Duration::from_secs(5));
    /// let now = Timestamp::ZERO;
    /// let held = limit.try_acquire_at(now, 1)?;
    /// assert!(limit.try_acquire_at(now, 1).is_err());
    /// drop(held);
    /// assert!(limit.try_acquire_at(now, 1).is_err(), "a penalty is in force");
    /// limit.pardon();
    /// assert!(limit.try_acquire_at(now, 1).is_ok());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn pardon(&self) {
        Hold::stop(&self.until);
    }

    /// Starts a penalty at `now` that lasts until `until`, or makes the present one last until
    /// then: a pause, by hand. It ends at most the [wait](Self::wait) after `now`. A penalty that
    /// lasts longer stays as it is, so the order of such calls does not matter.
    ///
    /// Returns until when requests are denied: at least until the earlier of `until` and the end of
    /// the wait, both rounded up to whole [ticks](Self::timing). If no penalty is in force and
    /// `until` is not after `now`, changes nothing, and returns `now`. Instants before the
    /// [origin](Timing::origin) count as the origin.
    ///
    /// For a queue, call it in `change`. The requests that wait stay in the queue until the penalty
    /// is over. A request whose deadline comes before that fails at once. For one key of a table,
    /// call it in [`KeyedArray::change_key_at`](crate::KeyedArray::change_key_at).
    ///
    /// # Cost
    ///
    /// A load, and a compare-exchange if the end moves. Lock-free.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Limiter, Penalty, Timestamp};
    /// // A `Retry-After` of more than an hour counts as one of an hour.
    /// let calls = Penalty::builder(Duration::from_secs(3_600))
    ///     .started_by_hand()
    ///     .build()?
    ///     .around(Concurrency::new(4));
    ///
    /// // A reply at 10 s: 429 with `Retry-After: 30`. One that was slower: `Retry-After: 5`.
    /// let now = Timestamp::from_secs(10);
    /// let until = now.saturating_add(Duration::from_secs(30));
    /// assert_eq!(calls.penalize_at(now, until), until);
    /// assert_eq!(calls.penalize_at(now, now.saturating_add(Duration::from_secs(5))), until);
    ///
    /// assert_eq!(calls.available_at(Timestamp::from_secs(39)), 0);
    /// assert_eq!(calls.available_at(Timestamp::from_secs(40)), 4);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn penalize_at(&self, now: Timestamp, until: Timestamp) -> Timestamp {
        self.hold.extend(&self.until, now, until)
    }

    /// Returns whether a penalty is in force at `now`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Penalty, Timestamp};
    /// let limit = Penalty::new(Concurrency::new(1), Duration::from_secs(5));
    /// let _held = limit.try_acquire_at(Timestamp::ZERO, 1)?;
    /// assert!(limit.try_acquire_at(Timestamp::ZERO, 1).is_err());
    /// assert!(limit.is_on_at(Timestamp::from_secs(4)));
    /// assert!(!limit.is_on_at(Timestamp::from_secs(5)));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn is_on_at(&self, now: Timestamp) -> bool {
        self.hold.is_on(self.until.load(Relaxed), now)
    }

    /// Returns how long a penalty lasts at least: the wait, rounded up to whole
    /// [ticks](Self::timing).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Penalty, Unlimited};
    /// let wait = Duration::from_secs(5);
    /// assert_eq!(Penalty::new(Unlimited, wait).wait(), wait);
    /// ```
    pub fn wait(&self) -> Duration {
        self.hold.wait()
    }

    /// Returns the number of denials that start a penalty: see [`after`](PenaltyBuilder::after).
    /// `u64::MAX` if [none does](PenaltyBuilder::started_by_hand).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Penalty, Unlimited};
    /// assert_eq!(Penalty::new(Unlimited, Duration::from_secs(5)).threshold(), 1);
    /// ```
    pub fn threshold(&self) -> u64 {
        match self.spared {
            Spared::None => 1,
            Spared::Counted(counted) => counted.started.layout.limit().saturating_add(1),
            Spared::All => u64::MAX,
        }
    }

    /// Returns the length of the window in which the denials of the
    /// [threshold](Self::threshold) are counted, rounded up to whole ticks of its own. `None` if
    /// the first denial starts a penalty, or none does.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Penalty, Unlimited};
    /// let window = Duration::from_secs(10);
    /// let limit = Penalty::builder(Duration::from_secs(60))
    ///     .after(3, window)
    ///     .build()?
    ///     .around(Unlimited);
    /// assert_eq!((limit.threshold(), limit.within()), (3, Some(window)));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn within(&self) -> Option<Duration> {
        let Spared::Counted(Counted { started, within }) = self.spared else {
            return None;
        };
        let ticks = started.layout.positions(within.into());
        Some(saturating_duration(
            u128::from(ticks) * u128::from(started.grid.step()),
        ))
    }

    /// Returns how the penalty counts its wait: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Penalty};
    /// let limit = Penalty::new(Concurrency::new(1), Duration::from_secs(60));
    /// assert!(limit.timing().staleness >= Duration::from_secs(1));
    /// assert!(limit.timing().horizon > Duration::from_secs(365 * 86_400));
    /// ```
    pub fn timing(&self) -> Timing {
        self.hold.timing()
    }

    /// Returns the inner limiter.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Penalty};
    /// let limit = Penalty::new(Concurrency::new(2), Duration::from_secs(5));
    /// assert_eq!(limit.limiter().limit(), 2);
    /// ```
    pub const fn limiter(&self) -> &L {
        &self.limiter
    }
}

impl<L: Limiter, W: Word> Penalty<L, W> {
    /// Takes `n` permits at `now`, unless a penalty is in force. With `n = 0`, takes nothing, and
    /// answers as for a request for 1.
    ///
    /// # Errors
    ///
    /// Returns [`Denied::Penalized`] while a penalty is in force. Otherwise as the inner limiter; a
    /// penalty may have started then.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Denied, Penalty, Timestamp};
    /// let limit = Penalty::new(Concurrency::new(1), Duration::from_secs(5));
    /// let now = Timestamp::ZERO;
    /// let _held = limit.try_acquire_at(now, 1)?;
    /// assert_eq!(
    ///     limit.try_acquire_at(now, 1).unwrap_err(),
    ///     Denied::Exhausted { now, permits: 1 }
    /// );
    /// assert_eq!(
    ///     limit.try_acquire_at(now, 1).unwrap_err(),
    ///     Denied::Penalized { now, permits: 1 }
    /// );
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Tells what goes with a denial, with the end of the penalty.
    #[cold]
    fn tell(&self, seen: &Cell<Option<Detail>>, denied: Denied) {
        if let Some(inner) = seen.get() {
            let detail = self.penalized(self.until.load(Relaxed), inner);
            seen.set(Some(Detail {
                decision: Err(denied),
                ..detail
            }));
        }
    }

    /// Returns what goes with a denial, or a look, of which the inner limiter says `inner`, and the
    /// word of the penalty `until`.
    fn penalized(&self, until: u64, inner: Detail) -> Detail {
        let now = inner.now;
        if !self.hold.is_on(until, now) {
            return inner;
        }
        Detail {
            available: 0,
            full_again: self.hold.retry(until, now, inner.full_again),
            retry: self.hold.retry(until, now, inner.retry),
            ..inner
        }
    }

    #[cold]
    fn punish(&self, now: Timestamp, denied: Denied) {
        if matches!(denied, Denied::ExceedsCapacity { .. }) {
            return;
        }
        let is_spared = match self.spared {
            Spared::None => false,
            Spared::Counted(counted) => counted.count(&self.denials, now),
            Spared::All => true,
        };
        if !is_spared {
            self.hold.start(&self.until, now);
        }
    }
}

impl<L: QueueLimiter, W: Word> QueueLimiter for Penalty<L, W> {
    const SHARED: bool = L::SHARED;
}

impl<L: Replenishing, W: Word> Replenishing for Penalty<L, W> {}

impl<L: Limiter, W: Word> Limiter for Penalty<L, W> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, permits, how, seen) = (ask.now(), ask.permits(), ask.how(), ask.detail());
        let until = self.until.load(Relaxed);
        if self.hold.is_on(until, now) {
            let denied = Denied::Penalized { now, permits };
            if let Some(seen) = seen {
                seen.set(Some(self.limiter.explain_at(now, permits)));
                self.tell(seen, denied);
            }
            return Answer::Denied(denied);
        }
        // Each answer is returned where it is made: the answers are not merged, and then told
        // apart again.
        match self.limiter.decide(ask) {
            Answer::Granted(receipt) => {
                if permits > 0 {
                    self.hold.clear(&self.until, until, now);
                }
                Answer::Granted(receipt)
            }
            Answer::Denied(denied) => {
                // The caller says whether the denial of an attempt is final.
                if permits > 0 && how == How::Take {
                    self.punish(now, denied);
                }
                if let Some(seen) = seen {
                    self.tell(seen, denied);
                }
                Answer::Denied(denied)
            }
            Answer::Undone if permits > 0 => {
                self.hold.clear(&self.until, until, now);
                Answer::Undone
            }
            other => other,
        }
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        let ended = match back {
            Back::NotGranted {
                now,
                permits: permits @ 1..,
                why: NotGranted::Denied,
            } => Some(Denied::Exhausted { now, permits }),
            _ => None,
        };
        let returned = self.limiter.give_back(back);
        if let Some(denied @ Denied::Exhausted { now, .. }) = ended {
            if !self.is_on_at(now) {
                self.punish(now, denied);
            }
        }
        returned
    }

    /// No permits are available while a penalty is in force.
    ///
    /// In use while a penalty is in force or denials count. Otherwise as the inner limiter, but
    /// idle no earlier than the end of both.
    fn read(&self, mut read: Read<'_>) -> Reading {
        let now = read.now();
        if let Some(denied) = read.denied() {
            read.offer(metadata::RETRY_AFTER, || self.retry(denied));
            read.offer(metadata::REASON_PHRASE, || denied.reason());
        }
        let until = self.until.load(Relaxed);
        let is_on = self.hold.is_on(until, now);
        if is_on {
            read.offer(metadata::PENALIZED_UNTIL, || self.hold.until(until, now));
        }
        let inner = self.limiter.read(read.by_ref());
        // A penalty uses no permits.
        read.offer(metadata::USED_SHARE, || Used::from(inner));
        let idle = match &self.spared {
            Spared::Counted(counted) => counted.idle(self.denials.load(Relaxed), now, inner.idle),
            Spared::None | Spared::All => inner.idle,
        };
        Reading {
            available: if is_on { 0 } else { inner.available },
            idle: self.hold.idle(until, now, idle),
            ..inner
        }
    }

    /// Returns the later of the penalty's end and the inner limiter's answer.
    fn retry(&self, denied: Denied) -> Retry {
        let (now, inner) = match denied {
            Denied::ExceedsCapacity { .. } | Denied::Closed { .. } => return Retry::Never,
            Denied::Exhausted { now, .. }
            | Denied::Crowded { now, .. }
            | Denied::Refused { now, .. } => (now, self.limiter.retry(denied)),
            // The inner limiter has not been asked, and need not know of penalties.
            Denied::Penalized { now, permits } => match self.limiter.peek_at(now, permits) {
                Ok(()) => (now, Retry::At(now)),
                Err(denied) => (now, self.limiter.retry(denied)),
            },
        };
        self.hold.retry(self.until.load(Relaxed), now, inner)
    }

    fn id(&self) -> Option<LimiterId> {
        // Around a stateless limiter, no id: a composition need not ask for all its permits at
        // once.
        self.limiter.id().and(LimiterId::of(self))
    }

    /// As [`decide`](Limiter::decide), whose answer would be converted: a denial during a penalty
    /// costs so little that the conversion would be a fifth of it.
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let until = self.until.load(Relaxed);
        if self.hold.is_on(until, now) {
            return Err(Denied::Penalized { now, permits: n });
        }
        match self.limiter.take_at(now, n) {
            Ok(receipt) => {
                if n > 0 {
                    self.hold.clear(&self.until, until, now);
                }
                Ok(receipt)
            }
            Err(denied) => {
                if n > 0 {
                    self.punish(now, denied);
                }
                Err(denied)
            }
        }
    }

    /// The end of a penalty depends on the time, so it never decides within an interval.
    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints {
            decides_within: false,
            ..self.limiter.hints()
        }
    }
}

/// The denials that do not start a penalty.
#[derive(Clone, Copy, Debug)]
enum Spared<W: Word> {
    None,
    Counted(Counted<W>),
    All,
}

/// The number of denials in a window that do not start a penalty.
#[derive(Clone, Copy, Debug)]
struct Counted<W: Word> {
    started: Started<W>,
    /// The length of the window, as a stamp.
    within: W,
}

impl<W: Word> Counted<W> {
    /// Whether a limiter is idle at `now` whose inner limiter answers `inner`: not while denials
    /// count, and not since before they stopped counting.
    fn idle(&self, state: u64, now: Timestamp, inner: Idle) -> Idle {
        let (layout, grid) = (&self.started.layout, &self.started.grid);
        let position = grid.index(now);
        let (stamp, (_, end)) = (layout.stamp(position), layout.split(state));
        if layout.ahead(stamp, end).is_none() {
            return Idle::InUse;
        }
        match inner {
            Idle::Since(since) => {
                let ended =
                    grid.start(position.saturating_add_signed(-layout.distance(stamp, end)));
                Idle::Since(since.max(ended.unwrap_or(Timestamp::MAX)))
            }
            inner => inner,
        }
    }

    /// Counts a denial that does not start a penalty. Returns whether it is one.
    fn count(&self, word: &AtomicWord<W>, now: Timestamp) -> bool {
        let layout = &self.started.layout;
        let mut state = word.load(Relaxed);
        loop {
            let (count, end) = layout.split(state);
            let from = match layout.ahead(self.started.stamp(now), end) {
                Some(_) => self.started.end(now, self.within.into()),
                None if count == layout.limit() => return false,
                None => state,
            };
            match word.compare_exchange_weak(state, from + 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(newer) => state = newer,
            }
        }
    }
}

/// Builds the settings of a [`Penalty`]. Created by [`Penalty::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Concurrency, Penalty};
/// use portcullis_core::builder::PenaltySettings;
///
/// // Checked at compile time.
/// const STRICT: PenaltySettings = match Penalty::builder(Duration::from_secs(60))
///     .after(3, Duration::from_secs(10))
///     .build()
/// {
///     Ok(settings) => settings,
///     Err(_) => panic!("the settings do not fit"),
/// };
/// static LIMIT: Penalty<Concurrency> = STRICT.around(Concurrency::new(100));
/// ```
pub type PenaltyBuilder = Builder<PenaltySettings>;

/// What [`PenaltySettings`] are built from, beside their timing.
#[derive(Clone, Copy, Debug)]
pub struct PenaltyTerms {
    wait: Duration,
    starts: Starts,
}

/// What starts a penalty.
#[derive(Clone, Copy, Debug)]
enum Starts {
    /// Each denial.
    Denial,
    /// As many denials, in a window of this length.
    Denials(u64, Duration),
    /// Only [`Penalty::penalize_at`].
    Hand,
}

impl Sealed for PenaltySettings {
    type Settings = PenaltyTerms;
}

impl Ticks for PenaltySettings {}

impl Builder<PenaltySettings> {
    /// Sets how many denials start a penalty: denial number `denials`, at least 1, in a window of
    /// length `within` that the first of them starts. While that window lasts, each further denial
    /// starts another penalty. Default: the first denial starts one.
    ///
    /// Neither probes nor denials during a penalty are counted.
    ///
    /// Counting takes a second word, which only denials read. Its horizon is that of a
    /// [`FixedWindow`](crate::FixedWindow) for `denials - 1` permits. A limiter that has been idle
    /// for whole multiples of it may count denials that are long past.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Penalty, Timestamp};
    /// let settings = Penalty::builder(Duration::from_secs(60))
    ///     .after(2, Duration::from_secs(10))
    ///     .build()?;
    /// let limit = settings.around(Concurrency::new(1));
    /// let held = limit.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// assert!(limit.try_acquire_at(Timestamp::ZERO, 1).is_err());
    /// assert!(!limit.is_on_at(Timestamp::ZERO));
    /// assert!(limit.try_acquire_at(Timestamp::from_secs(9), 1).is_err());
    /// assert!(limit.is_on_at(Timestamp::from_secs(68)));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn after(mut self, denials: u64, within: Duration) -> Self {
        self.settings.starts = match denials {
            1 => Starts::Denial,
            _ => Starts::Denials(denials, within),
        };
        self
    }

    /// Makes denials start no penalty: only [`penalize_at`](Penalty::penalize_at) does.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Penalty, Timestamp};
    /// let pause = Penalty::builder(Duration::from_secs(60)).started_by_hand().build()?;
    /// let limit = pause.around(Concurrency::new(1));
    /// let held = limit.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// assert!(limit.try_acquire_at(Timestamp::ZERO, 1).is_err());
    /// assert!(!limit.is_on_at(Timestamp::ZERO));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn started_by_hand(mut self) -> Self {
        self.settings.starts = Starts::Hand;
        self
    }

    const_unless_loom! {
        /// Checks the settings, for the target's native word.
        ///
        /// # Errors
        ///
        /// Returns a [`SettingsError`], which names the setting and its bound, if:
        ///
        /// - a wait, window or tick is not in 1 ns to 292 years, or does not fit the tick;
        /// - the tick is so short that the word counts less than four seconds of it;
        /// - `denials` is 0, or more than the word can count;
        /// - the staleness is under 1 s, or too long.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Penalty, SettingsError};
        /// # use portcullis_core::builder::Setting;
        /// let refused = Penalty::builder(Duration::ZERO).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::Zero { setting: Setting::Wait });
        /// ```
        pub const fn build(self) -> Result<PenaltySettings, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Checks the settings, for a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Concurrency, Penalty};
        /// # use portcullis_core::builder::PenaltySettings;
        /// let settings: PenaltySettings<u32> =
        ///     Penalty::builder(Duration::from_secs(60)).build_on()?;
        /// let limit = settings.around(Concurrency::new(1));
        /// assert!(limit.timing().horizon > Duration::from_secs(3_600));
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<PenaltySettings<W>, SettingsError> {
            let hold = match Hold::new(self.settings.wait, Setting::Wait, &self.timing) {
                Ok(hold) => hold,
                Err(error) => return Err(error),
            };
            let (spared, denials) = match self.settings.starts {
                Starts::Denial => (Spared::None, 0),
                Starts::Denials(denials, within) => match self.counted(denials, within) {
                    Ok(counted) => {
                        let none = counted.started.nothing_since(self.timing.origin);
                        (Spared::Counted(counted), none)
                    }
                    Err(error) => return Err(error),
                },
                Starts::Hand => (Spared::All, 0),
            };
            Ok(PenaltySettings { hold, spared, denials })
        }
    }

    const fn counted<W: Word>(
        self,
        denials: u64,
        within: Duration,
    ) -> Result<Counted<W>, SettingsError> {
        if denials == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Threshold,
            });
        }
        let within = match settings::nanos(within, Setting::Within) {
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
        match Started::new(
            denials - 1,
            within,
            within,
            tick,
            staleness,
            self.timing.origin,
        ) {
            Ok(started) => Ok(Counted {
                started,
                within: started.span(within),
            }),
            Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max,
            }) => Err(SettingsError::TooLarge {
                setting: Setting::Threshold,
                max: max.saturating_add(1),
            }),
            Err(error) => Err(error),
        }
    }
}

/// The settings of a [`Penalty`] that fit a word. Put them [around](Self::around) any number of
/// limiters. Created by [`PenaltyBuilder::build`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Concurrency, Penalty, Rate, TokenBucket};
///
/// let settings = Penalty::builder(Duration::from_secs(60)).build()?;
/// let uploads = settings.around(Concurrency::new(4));
/// let logins = settings.around(TokenBucket::new(Rate::per_minute(5), 5));
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "settings do nothing until they are put around a limiter"]
pub struct PenaltySettings<W: Word = NativeWord> {
    hold: Hold<W>,
    spared: Spared<W>,
    /// The word of a limiter that has denied nothing yet.
    denials: u64,
}

impl<W: Word> PenaltySettings<W> {
    const_unless_loom! {
        /// Wraps `limiter` with these penalties.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Concurrency, Penalty};
        /// let limit =
        ///     Penalty::builder(Duration::from_secs(60)).build()?.around(Concurrency::new(4));
        /// assert_eq!(limit.limiter().limit(), 4);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn around<L>(self, limiter: L) -> Penalty<L, W> {
            Penalty {
                until: AtomicWord::new(NEVER),
                denials: AtomicWord::new(self.denials),
                hold: self.hold,
                spared: self.spared,
                limiter,
            }
        }
    }
}
