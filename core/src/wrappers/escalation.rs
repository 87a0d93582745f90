//! State: for each threshold one word, [`until`](crate::word::hold), beside that of the limiter.
//!
//! ```text
//!   used   80 % - - - - - - - - - - - - __- - - - - - - - - - -
//!          50 % - - - - __------------__  -___- - - - - - - - -
//!                 ___---                      ---___
//!   slow                                |-- hold --|
//!   warn               |------ hold ------|---------- hold ----|  started again: still reached
//! ```
//!
//! A threshold is reached while as much is used, and its decision holds while it is reached or its
//! word is on. The words say nothing to the limiter: they never deny.

use core::time::Duration;

use crate::limiter::composable::{plan, take_as_planned};
use crate::limiter::metadata::Metadata;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::word::hold::{Hold, NEVER};
use crate::word::{AtomicWord, NativeWord, Word};
use crate::{
    Composable, Denied, Idle, Lease, Limiter, LimiterExt, LimiterId, Plan, QueueLimiter, Receipt,
    Refund, Replenishing, Retry, Setting, SettingsError, Timestamp, Waiting,
};

/// A limiter with thresholds below its limit, each with a decision of its own: warn at half, slow
/// down at 80 %, and deny by the limit itself.
///
/// After each grant the permits in use (or counted, by a limiter whose permits come back by time:
/// capacity less available) are compared with each threshold. One that is reached holds its
/// decision, from then on, for at least the threshold's `hold`, also if the use falls meanwhile;
/// reached after that, it holds anew. A denial counts as if all permits were in use, unless more
/// was asked for than there can ever be. A probe (`n = 0`) and the questions below start no hold.
///
/// In an [`AllOf`](crate::AllOf) a grant starts holds once all limits have granted, so one that is
/// rolled back starts none. A denial by the limiter inside starts holds also there, even if another
/// part of the same composition, which names that limiter in another way, has the permits. Where a
/// composition waits in a queue, a grant that the queue takes back leaves its holds.
///
/// **Bound.** That of the limiter inside. A decision is advice: what follows from it is up to the
/// caller. Of those who take at once, the last one sees the use of all; what is released before
/// anybody has looked may go unseen.
///
/// **Cost.** A grant pays a look at what is available, and for each threshold a load and two
/// comparisons; in a composition, a call through a pointer more. It writes only where a hold
/// starts, and to clear a word that has been over for the [`staleness`](Self::staleness); so does a
/// denial. Lock-free where the limiter inside is; all accesses are `Relaxed`.
///
/// **Horizon.** The words wrap. A hold is seen by every `now` up to [`staleness`](Self::staleness)
/// older than the newest one. After a hold and then whole multiples of [`horizon`](Self::horizon)
/// without a grant, a decision may stand once more for at most the hold and that staleness, or end
/// early once.
///
/// Source: the thresholds of ATS, each with a decision type and a `minDecisionDuration`.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Concurrency, Escalation, Threshold, Timestamp};
///
/// #[derive(Debug, PartialEq)]
/// enum Advice {
///     Warn,
///     SlowDown,
/// }
///
/// const HOLD: Duration = Duration::from_secs(5);
/// static LIMIT: Escalation<Concurrency, Advice, 2> = Escalation::new(
///     Concurrency::new(10),
///     [
///         Threshold {
///             used: 5,
///             hold: HOLD,
///             decision: Advice::Warn,
///         },
///         Threshold {
///             used: 8,
///             hold: HOLD,
///             decision: Advice::SlowDown,
///         },
///     ],
/// );
///
/// let at = Timestamp::from_secs;
/// let half = LIMIT.try_acquire_at(at(0), 5)?;
/// assert_eq!(LIMIT.decision_at(at(0)), Some(&Advice::Warn));
/// let more = LIMIT.try_acquire_at(at(3), 4)?;
/// assert_eq!(LIMIT.decision_at(at(3)), Some(&Advice::SlowDown));
/// drop((half, more));
/// assert_eq!(
///     LIMIT.decision_at(at(7)),
///     Some(&Advice::SlowDown),
///     "it holds for 5 s"
/// );
/// assert_eq!(LIMIT.decision_at(at(8)), None);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct Escalation<L, D, const N: usize, W: Word = NativeWord> {
    until: [AtomicWord<W>; N],
    /// `None` for a decision that holds only as long as its threshold is reached.
    holds: [Option<Hold<W>>; N],
    thresholds: [Threshold<D>; N],
    limiter: L,
}

/// A threshold of an [`Escalation`], and what follows from reaching it.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Threshold;
/// let warn = Threshold {
///     used: 80,
///     hold: Duration::from_secs(5),
///     decision: "warn",
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Threshold<D> {
    /// The permits in use, or counted, that reach it: at least 1, and more than those of the
    /// threshold before it. More than the limiter's capacity are never reached.
    pub used: u64,
    /// How long the decision holds at least: up to 292 years; with zero, only as long as the
    /// threshold is reached.
    pub hold: Duration,
    /// What is decided.
    pub decision: D,
}

impl<L, D, const N: usize> Escalation<L, D, N> {
    const_unless_loom! {
        /// `limiter` with `thresholds`, in rising order.
        ///
        /// # Panics
        ///
        /// Where [`try_new`](Self::try_new) would return an error; in a constant or a static, that
        /// is a compile error.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Concurrency, Escalation, Threshold};
        /// static LIMIT: Escalation<Concurrency, &str, 1> = Escalation::new(
        ///     Concurrency::new(10),
        ///     [Threshold { used: 8, hold: Duration::from_secs(5), decision: "warn" }],
        /// );
        /// ```
        pub const fn new(limiter: L, thresholds: [Threshold<D>; N]) -> Self {
            match holds(&thresholds) {
                Ok(holds) => Self::with(limiter, thresholds, holds),
                Err(error) => error.refuse(),
            }
        }
    }
}

impl<L, D, const N: usize, W: Word> Escalation<L, D, N, W> {
    /// `limiter` with `thresholds`, in rising order, on words of a chosen width.
    ///
    /// # Errors
    ///
    /// [`SettingsError`], if a threshold is zero or not above the one before it, or a hold is
    /// longer than 292 years.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, SettingsError, Setting, Threshold};
    /// let at = |used| Threshold { used, hold: Duration::from_secs(5), decision: () };
    /// assert!(Escalation::<_, _, 2, u32>::try_new(Concurrency::new(10), [at(5), at(8)]).is_ok());
    /// let refused =
    ///     Escalation::<_, _, 2, u32>::try_new(Concurrency::new(10), [at(5), at(5)]).unwrap_err();
    /// assert_eq!(refused, SettingsError::TooSmall { setting: Setting::Threshold, min: 6 });
    /// ```
    pub fn try_new(limiter: L, thresholds: [Threshold<D>; N]) -> Result<Self, SettingsError> {
        let holds = holds(&thresholds)?;
        Ok(Self::with(limiter, thresholds, holds))
    }

    const_unless_loom! {
        const fn with(limiter: L, thresholds: [Threshold<D>; N], holds: [Option<Hold<W>>; N]) -> Self {
            Self {
                #[cfg(not(loom))]
                until: [const { AtomicWord::new(NEVER) }; N],
                #[cfg(loom)]
                until: core::array::from_fn(|_| AtomicWord::new(NEVER)),
                holds,
                thresholds,
                limiter,
            }
        }
    }

    /// The thresholds.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Threshold};
    /// let warn = Threshold {
    ///     used: 8,
    ///     hold: Duration::from_secs(5),
    ///     decision: "warn",
    /// };
    /// assert_eq!(
    ///     Escalation::new(Concurrency::new(10), [warn]).thresholds(),
    ///     &[warn]
    /// );
    /// ```
    pub const fn thresholds(&self) -> &[Threshold<D>; N] {
        &self.thresholds
    }

    /// How much older than the newest `now` another one may be to find the holds that that one has
    /// started: at least one second. Without holds, any age.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Threshold};
    /// let warn = Threshold {
    ///     used: 8,
    ///     hold: Duration::from_secs(5),
    ///     decision: "warn",
    /// };
    /// assert!(
    ///     Escalation::new(Concurrency::new(10), [warn]).staleness()
    ///         >= Duration::from_secs(1)
    /// );
    /// ```
    pub fn staleness(&self) -> Duration {
        self.holds
            .iter()
            .flatten()
            .map(Hold::staleness)
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// After how long the first word repeats: see the type's documentation. Without holds, never.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Threshold};
    /// let warn = Threshold {
    ///     used: 8,
    ///     hold: Duration::from_secs(5),
    ///     decision: "warn",
    /// };
    /// assert!(
    ///     Escalation::new(Concurrency::new(10), [warn]).horizon()
    ///         > Duration::from_secs(3_600)
    /// );
    /// ```
    pub fn horizon(&self) -> Duration {
        self.holds
            .iter()
            .flatten()
            .map(Hold::horizon)
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// The limiter inside.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Escalation, Threshold};
    /// let limit: Escalation<Concurrency, (), 0> = Escalation::new(Concurrency::new(10), []);
    /// assert_eq!(limit.limiter().limit(), 10);
    /// ```
    pub const fn limiter(&self) -> &L {
        &self.limiter
    }

    /// Each threshold's hold, with its word.
    #[inline(always)]
    fn words(&self) -> impl Iterator<Item = (Option<&Hold<W>>, &AtomicWord<W>)> {
        self.holds.iter().map(Option::as_ref).zip(&self.until)
    }
}

impl<L: Limiter, D, const N: usize, W: Word> Escalation<L, D, N, W> {
    /// Takes `n` permits at `now`, and starts the holds of the thresholds that are reached by that.
    /// With `n = 0` it takes nothing, and is answered as a request for 1 would be.
    ///
    /// # Errors
    ///
    /// As the limiter inside.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Threshold, Timestamp};
    /// let warn = Threshold {
    ///     used: 8,
    ///     hold: Duration::from_secs(5),
    ///     decision: "warn",
    /// };
    /// let limit = Escalation::new(Concurrency::new(10), [warn]);
    /// assert!(limit.try_acquire_at(Timestamp::ZERO, 8).is_ok());
    /// assert_eq!(
    ///     limit.decision_at(Timestamp::from_secs(4)),
    ///     Some(&"warn"),
    ///     "though it was released at once"
    /// );
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// The decision of the highest threshold that is reached at `now`, or whose hold is on; `None`
    /// if there is none.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Threshold, Timestamp};
    /// let warn = Threshold {
    ///     used: 8,
    ///     hold: Duration::ZERO,
    ///     decision: "warn",
    /// };
    /// let limit = Escalation::new(Concurrency::new(10), [warn]);
    /// let lease = limit.try_acquire_at(Timestamp::ZERO, 8)?;
    /// assert_eq!(limit.decision_at(Timestamp::ZERO), Some(&"warn"));
    /// drop(lease);
    /// assert_eq!(limit.decision_at(Timestamp::ZERO), None);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn decision_at(&self, now: Timestamp) -> Option<&D> {
        let highest = self.decisions_at(now).iter().rposition(|&holds| holds)?;
        self.thresholds
            .get(highest)
            .map(|threshold| &threshold.decision)
    }

    /// Whether the decision of each threshold holds at `now`: it is reached, or its hold is on.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Threshold, Timestamp};
    /// let warn = Threshold {
    ///     used: 5,
    ///     hold: Duration::ZERO,
    ///     decision: "warn",
    /// };
    /// let slow = Threshold {
    ///     used: 8,
    ///     hold: Duration::from_secs(5),
    ///     decision: "slow down",
    /// };
    /// let limit = Escalation::new(Concurrency::new(10), [warn, slow]);
    /// drop(limit.try_acquire_at(Timestamp::ZERO, 8)?);
    /// assert_eq!(limit.decisions_at(Timestamp::ZERO), [false, true]);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn decisions_at(&self, now: Timestamp) -> [bool; N] {
        let used = self.used_at(now);
        let mut decisions = [false; N];
        for ((decision, threshold), (hold, word)) in
            decisions.iter_mut().zip(&self.thresholds).zip(self.words())
        {
            *decision = used >= threshold.used
                || hold.is_some_and(|hold| hold.is_on(word.load(Relaxed), now));
        }
        decisions
    }

    fn used_at(&self, now: Timestamp) -> u64 {
        self.limiter
            .capacity()
            .saturating_sub(self.limiter.available_at(now))
    }

    /// Starts the holds that follow from what `limiter` has decided.
    #[inline(always)]
    fn note(
        &self,
        now: Timestamp,
        n: u32,
        decision: Result<Receipt, Denied>,
    ) -> Result<Receipt, Denied> {
        let used = match decision {
            _ if n == 0 => return decision,
            Ok(_) => self.used_at(now),
            Err(Denied::ExceedsCapacity { .. }) => return decision,
            Err(_) => self.limiter.capacity(),
        };
        for (threshold, (hold, word)) in self.thresholds.iter().zip(self.words()) {
            match hold {
                Some(hold) if used >= threshold.used => hold.start(word, now),
                Some(hold) => hold.clear(word, word.load(Relaxed), now),
                None => {}
            }
        }
        decision
    }
}

impl<L: QueueLimiter, D, const N: usize, W: Word> QueueLimiter for Escalation<L, D, N, W> {
    const SHARED: bool = L::SHARED;

    #[inline]
    fn release_watched(&self, n: u32) -> Waiting {
        self.limiter.release_watched(n)
    }

    fn watch(&self, waits: bool) {
        self.limiter.watch(waits);
    }

    fn held(&self) -> u64 {
        self.limiter.held()
    }
}

impl<L: Replenishing, D, const N: usize, W: Word> Replenishing for Escalation<L, D, N, W> {}

impl<L: Limiter, D, const N: usize, W: Word> Limiter for Escalation<L, D, N, W> {
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.note(now, n, self.limiter.take_at(now, n))
    }

    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.limiter.peek_at(now, n)
    }

    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.limiter.refund_at(now, n, receipt)
    }

    fn id(&self) -> Option<LimiterId> {
        // Around one without a state there is nothing to be asked for all at once.
        self.limiter.id().and(LimiterId::of(self))
    }

    #[inline]
    fn as_composable(&self) -> Option<&dyn Composable> {
        Some(self)
    }

    #[inline]
    fn release(&self, n: u32) {
        self.limiter.release(n);
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter.available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.limiter.capacity()
    }

    /// In use while a hold is on; else as the limiter inside, but not since before the end of the
    /// last hold.
    fn idle_at(&self, now: Timestamp) -> Idle {
        let inner = self.limiter.idle_at(now);
        self.words().fold(inner, |idle, (hold, word)| match hold {
            Some(hold) => hold.idle(word.load(Relaxed), now, idle),
            None => idle,
        })
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }

    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        self.limiter.metadata(now, denied, offers);
    }
}

impl<L: Limiter, D, const N: usize, W: Word> Composable for Escalation<L, D, N, W> {
    #[inline]
    fn plan_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        plan(&self.limiter, now, n)
    }

    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        self.note(now, n, take_as_planned(&self.limiter, now, n, plan))
    }

    /// A grant starts holds only once all others have granted.
    fn is_composed(&self) -> bool {
        true
    }

    fn take_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        let granted = self.limiter.take_at_then(now, n, rest);
        let _ = match granted {
            Ok(true) => self.note(now, n, Ok(Receipt::NONE)),
            // Rolled back, as if it had not been granted.
            Ok(false) => Ok(Receipt::NONE),
            Err(denied) => self.note(now, n, Err(denied)),
        };
        granted
    }
}

/// The holds of `thresholds`, if these fit.
const fn holds<D, W: Word, const N: usize>(
    thresholds: &[Threshold<D>; N],
) -> Result<[Option<Hold<W>>; N], SettingsError> {
    let mut holds = [None; N];
    let mut index = 0;
    while index < N {
        let threshold = &thresholds[index];
        if threshold.used == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Threshold,
            });
        }
        if index > 0 && threshold.used <= thresholds[index - 1].used {
            let min = thresholds[index - 1].used.saturating_add(1);
            return Err(SettingsError::TooSmall {
                setting: Setting::Threshold,
                min,
            });
        }
        if !threshold.hold.is_zero() {
            holds[index] = match Hold::new(threshold.hold, None, None) {
                Ok(hold) => Some(hold),
                Err(error) => return Err(error),
            };
        }
        index += 1;
    }
    Ok(holds)
}
