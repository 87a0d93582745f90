//! State: one word, [`until`](crate::word::hold), per threshold, in addition to the state of the
//! limiter.
//!
//! ```text
//!   used   80 % - - - - - - - - - - - - __- - - - - - - - - - -
//!          50 % - - - - __------------__  -___- - - - - - - - -
//!                 ___---                      ---___
//!   slow                                |-- hold --|
//!   warn               |------ hold ------|---------- hold ----|  started again: still reached
//! ```
//!
//! A threshold is reached while at least that many permits are in use. Its decision holds while the
//! threshold is reached or its word is on. The words never deny a request.

use core::time::Duration;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::not_granted::NotGranted;
use crate::limiter::queue_limiter::{QueueLimiter, Replenishing};
use crate::limiter::{Answer, Ask, Back, How, Limiter, LimiterId, Read, Reading, Returned};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::time::timing::Timing;
use crate::word::builder::AskedTiming;
use crate::word::hold::{Hold, NEVER};
use crate::word::settings::{Setting, SettingsError};
use crate::word::{AtomicWord, NativeWord, Word};

/// A limiter with thresholds below its limit. Each threshold has a decision: for example, warn at
/// half and slow down at 80 %, while the limit itself denies.
///
/// After each grant, the permits in use are compared with each threshold. (For a limiter whose
/// permits return by time, the use is the capacity minus the available permits.)
///
/// - When a threshold is reached, its decision is in force for at least its `hold`, even if the use
///   falls. If the threshold is reached again after that, the hold starts again.
/// - A denial counts as if all permits were in use, unless the request exceeds the capacity.
/// - A probe (`n = 0`), and the methods that only read, start no hold.
///
/// In an [`AllOf`](crate::AllOf), a grant starts holds once all limits have granted, so a grant
/// that is rolled back starts none. A denial by the inner limiter starts holds there as well. It
/// does so even if another part of the same composition, which refers to the same limiter in
/// another way, has taken the permits.
///
/// In a queue of `portcullis-async`, a denied attempt of the queue starts no hold. A request that
/// waited counts as a denial if its deadline passes before enough permits come
/// ([`NotGranted::Denied`]). A grant that the queue takes back leaves its holds in force.
///
/// **Bound.** That of the inner limiter. A decision is advice: the caller decides what to do. Of
/// concurrent takes, the last one observes the permits of all. Permits that are released before any
/// take has compared may go unobserved.
///
/// **Cost.** A grant reads the available permits, and pays a load and two comparisons per
/// threshold; in a composition, also a call through a pointer. It writes only to start a hold, and
/// to clear a word that has been over for the [`staleness`](Self::timing). The same applies to a
/// denial. Lock-free if the inner limiter is; all accesses are `Relaxed`.
///
/// **Horizon.** The words wrap. A hold is in force for every `now` that is at most
/// [`staleness`](Self::timing) older than the newest one. If no grant follows a hold for roughly
/// a whole number of [horizons](Self::timing), its decision may come back once, for at most the
/// hold plus that staleness, or may end early once.
///
/// Source: the thresholds of ATS, each with a decision type and a `minDecisionDuration`.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Concurrency, Escalation, Timestamp};
/// use portcullis_core::builder::EscalationThreshold;
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
///         EscalationThreshold {
///             used: 5,
///             hold: HOLD,
///             decision: Advice::Warn,
///         },
///         EscalationThreshold {
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
///     "the hold lasts 5 s"
/// );
/// assert_eq!(LIMIT.decision_at(at(8)), None);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct Escalation<L, D, const N: usize, W: Word = NativeWord> {
    until: [AtomicWord<W>; N],
    /// `None` for a decision that holds only while its threshold is reached.
    holds: [Option<Hold<W>>; N],
    thresholds: [EscalationThreshold<D>; N],
    limiter: L,
}

/// A threshold of an [`Escalation`], with its decision.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::builder::EscalationThreshold;
/// let warn = EscalationThreshold {
///     used: 80,
///     hold: Duration::from_secs(5),
///     decision: "warn",
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[expect(
    clippy::exhaustive_structs,
    reason = "a program states all of them, in a static"
)]
pub struct EscalationThreshold<D> {
    /// The permits in use that reach the threshold: at least 1, and more than those of the previous
    /// threshold. A threshold above the limiter's capacity is never reached.
    pub used: u64,
    /// The shortest time for which the decision holds: up to 292 years. If it is zero, the decision
    /// holds only while the threshold is reached.
    pub hold: Duration,
    /// The decision.
    pub decision: D,
}

impl<L, D, const N: usize> Escalation<L, D, N> {
    const_unless_loom! {
        /// Wraps `limiter`, with `thresholds` in rising order.
        ///
        /// # Panics
        ///
        /// If [`EscalationBuilder::build`] would return an error. In a constant or a static, that
        /// is a compile error.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Concurrency, Escalation};
        /// # use portcullis_core::builder::EscalationThreshold;
        /// static LIMIT: Escalation<Concurrency, &str, 1> = Escalation::new(
        ///     Concurrency::new(10),
        ///     [EscalationThreshold { used: 8, hold: Duration::from_secs(5), decision: "warn" }],
        /// );
        /// ```
        pub const fn new(limiter: L, thresholds: [EscalationThreshold<D>; N]) -> Self {
            match holds(&thresholds) {
                Ok(holds) => Self::with(limiter, thresholds, holds),
                Err(error) => error.refuse(),
            }
        }
    }

    /// Returns a builder for a wrapper of `limiter`, with `thresholds` in rising order.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation};
    /// # use portcullis_core::builder::EscalationThreshold;
    /// let warn = EscalationThreshold { used: 8, hold: Duration::from_secs(5), decision: "warn" };
    /// let limit = Escalation::builder(Concurrency::new(10), [warn]).build()?;
    /// assert_eq!(limit.thresholds(), &[warn]);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(
        limiter: L,
        thresholds: [EscalationThreshold<D>; N],
    ) -> EscalationBuilder<L, D, N> {
        EscalationBuilder {
            limiter,
            thresholds,
        }
    }
}

impl<L, D, const N: usize, W: Word> Escalation<L, D, N, W> {
    const_unless_loom! {
        const fn with(limiter: L, thresholds: [EscalationThreshold<D>; N], holds: [Option<Hold<W>>; N]) -> Self {
            Self {
                #[cfg(not(portcullis_loom))]
                until: [const { AtomicWord::new(NEVER) }; N],
                #[cfg(portcullis_loom)]
                until: core::array::from_fn(|_| AtomicWord::new(NEVER)),
                holds,
                thresholds,
                limiter,
            }
        }
    }

    /// Returns the thresholds.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation};
    /// # use portcullis_core::builder::EscalationThreshold;
    /// let warn = EscalationThreshold {
    ///     used: 8,
    ///     hold: Duration::from_secs(5),
    ///     decision: "warn",
    /// };
    /// assert_eq!(
    ///     Escalation::new(Concurrency::new(10), [warn]).thresholds(),
    ///     &[warn]
    /// );
    /// ```
    pub const fn thresholds(&self) -> &[EscalationThreshold<D>; N] {
        &self.thresholds
    }

    /// Returns how the holds count time: see [`Timing`]. Of several holds it is the coarsest tick,
    /// the shortest staleness and the shortest horizon. Without holds, all are [`Duration::MAX`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation};
    /// # use portcullis_core::builder::EscalationThreshold;
    /// let warn = EscalationThreshold {
    ///     used: 8,
    ///     hold: Duration::from_secs(5),
    ///     decision: "warn",
    /// };
    /// let timing = Escalation::new(Concurrency::new(10), [warn]).timing();
    /// assert!(timing.staleness >= Duration::from_secs(1));
    /// assert!(timing.horizon > Duration::from_secs(3_600));
    /// ```
    pub fn timing(&self) -> Timing {
        self.holds
            .iter()
            .flatten()
            .map(Hold::timing)
            .reduce(Timing::and)
            .unwrap_or(Timing::NONE)
    }

    /// Returns the inner limiter.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Escalation};
    /// # use portcullis_core::builder::EscalationThreshold;
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
    /// Takes `n` permits at `now`, and starts the holds of the thresholds that are reached. With `n
    /// = 0`, takes nothing, and answers as for a request for 1.
    ///
    /// # Errors
    ///
    /// As the inner limiter.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Timestamp};
    /// # use portcullis_core::builder::EscalationThreshold;
    /// let warn = EscalationThreshold {
    ///     used: 8,
    ///     hold: Duration::from_secs(5),
    ///     decision: "warn",
    /// };
    /// let limit = Escalation::new(Concurrency::new(10), [warn]);
    /// assert!(limit.try_acquire_at(Timestamp::ZERO, 8).is_ok());
    /// assert_eq!(
    ///     limit.decision_at(Timestamp::from_secs(4)),
    ///     Some(&"warn"),
    ///     "the hold outlasts the lease"
    /// );
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the decision of the highest threshold that is reached at `now` or whose hold is in
    /// force; `None` if there is none.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Timestamp};
    /// # use portcullis_core::builder::EscalationThreshold;
    /// let warn = EscalationThreshold {
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

    /// Returns, for each threshold, whether its decision holds at `now`: whether the threshold is
    /// reached, or its hold is in force.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, Timestamp};
    /// # use portcullis_core::builder::EscalationThreshold;
    /// let warn = EscalationThreshold {
    ///     used: 5,
    ///     hold: Duration::ZERO,
    ///     decision: "warn",
    /// };
    /// let slow = EscalationThreshold {
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
        let Reading {
            available,
            capacity,
            ..
        } = self.limiter.read(Read::at(now));
        capacity.saturating_sub(available)
    }

    /// Starts the holds that follow from the inner limiter's `decision`.
    #[inline]
    fn note(&self, now: Timestamp, n: u32, decision: Result<(), Denied>) {
        let used = match decision {
            _ if n == 0 => return,
            Ok(()) => self.used_at(now),
            Err(Denied::ExceedsCapacity { .. }) => return,
            Err(_) => self.limiter.capacity(),
        };
        for (threshold, (hold, word)) in self.thresholds.iter().zip(self.words()) {
            match hold {
                Some(hold) if used >= threshold.used => hold.start(word, now),
                Some(hold) => hold.clear(word, word.load(Relaxed), now),
                None => {}
            }
        }
    }
}

impl<L: QueueLimiter, D, const N: usize, W: Word> QueueLimiter for Escalation<L, D, N, W> {
    const SHARED: bool = L::SHARED;
}

impl<L: Replenishing, D, const N: usize, W: Word> Replenishing for Escalation<L, D, N, W> {}

impl<L: Limiter, D, const N: usize, W: Word> Limiter for Escalation<L, D, N, W> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n, how) = (ask.now(), ask.permits(), ask.how());
        // A grant that another limit of a composition undoes is none.
        let answer = ask.put_to(&self.limiter);
        match (&answer, how) {
            (_, How::Look) => {}
            (Answer::Granted(_), _) => self.note(now, n, Ok(())),
            (Answer::Denied(denied), How::Take) => self.note(now, n, Err(*denied)),
            _ => {}
        }
        answer
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        let ended = match back {
            Back::NotGranted {
                now,
                permits,
                why: NotGranted::Denied,
            } => Some((now, permits)),
            _ => None,
        };
        let returned = self.limiter.give_back(back);
        if let Some((now, permits)) = ended {
            self.note(now, permits, Err(Denied::Exhausted { now, permits }));
        }
        returned
    }

    fn read(&self, read: Read<'_>) -> Reading {
        let now = read.now();
        let inner = self.limiter.read(read);
        let idle = self
            .words()
            .fold(inner.idle, |idle, (hold, word)| match hold {
                Some(hold) => hold.idle(word.load(Relaxed), now, idle),
                None => idle,
            });
        Reading { idle, ..inner }
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }

    fn id(&self) -> Option<LimiterId> {
        // Around a stateless limiter, no id: a composition need not ask for all its permits at
        // once.
        self.limiter.id().and(LimiterId::of(self))
    }
}

/// Builds an [`Escalation`]. Created by [`Escalation::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Concurrency, Escalation};
/// use portcullis_core::builder::EscalationThreshold;
///
/// let at = |used| EscalationThreshold { used, hold: Duration::from_secs(5), decision: () };
/// let refused = Escalation::builder(Concurrency::new(10), [at(8), at(5)]).build().unwrap_err();
/// assert_eq!(refused.to_string(), "threshold must be at least 9");
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct EscalationBuilder<L, D, const N: usize> {
    limiter: L,
    thresholds: [EscalationThreshold<D>; N],
}

impl<L, D, const N: usize> EscalationBuilder<L, D, N> {
    /// Builds the wrapper on the target's native words.
    ///
    /// # Errors
    ///
    /// Returns [`SettingsError`] if a threshold is zero or not above the previous one, or if a hold
    /// is longer than 292 years.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation, SettingsError};
    /// # use portcullis_core::builder::{Setting, EscalationThreshold};
    /// let at = |used| EscalationThreshold { used, hold: Duration::from_secs(5), decision: () };
    /// let unsorted = [at(5), at(5)];
    /// let refused = Escalation::builder(Concurrency::new(10), unsorted).build().unwrap_err();
    /// assert_eq!(refused, SettingsError::TooSmall { setting: Setting::Threshold, min: 6 });
    /// ```
    pub fn build(self) -> Result<Escalation<L, D, N>, SettingsError> {
        self.build_on()
    }

    /// Builds the wrapper on words of a chosen width.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Escalation};
    /// # use portcullis_core::builder::EscalationThreshold;
    /// let warn = EscalationThreshold { used: 8, hold: Duration::from_secs(5), decision: "warn" };
    /// let limit = Escalation::builder(Concurrency::new(10), [warn]).build_on::<u32>()?;
    /// assert!(limit.timing().staleness >= Duration::from_secs(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn build_on<W: Word>(self) -> Result<Escalation<L, D, N, W>, SettingsError> {
        let holds = holds(&self.thresholds)?;
        Ok(Escalation::with(self.limiter, self.thresholds, holds))
    }
}

/// Returns the holds of `thresholds`, if they fit.
const fn holds<D, W: Word, const N: usize>(
    thresholds: &[EscalationThreshold<D>; N],
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
            holds[index] = match Hold::new(threshold.hold, Setting::Hold, &AskedTiming::DEFAULT) {
                Ok(hold) => Some(hold),
                Err(error) => return Err(error),
            };
        }
        index += 1;
    }
    Ok(holds)
}
