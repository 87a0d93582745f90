//! A word of state, and settings that are exchanged while others decide by them.
//!
//! ```text
//! word      era | mark | set | state       one atomic word; the last field is the limiter's own
//! sets      two sets of settings           `set` says which one is in force; the other one may be being written
//! writing   0 or 1                         whether somebody is writing it
//! newest    a tick, wrapped                at least the newest time at which a decision in the word was made
//! ```
//!
//! Who decides reads the word, the set in force, and then exchanges the word: it has changed if the set has. Who denies reads the word again
//! instead. Who changes the settings claims `writing`, fills the other set, and exchanges the word for one with that set, a new era and
//! the state turned into the new settings' terms; if somebody has decided meanwhile, it does so again.
//!
//! Invariant: while the word stays the same, so does the set that it names. Hence what was computed from a set that was being overwritten is
//! never written and never told. Nobody waits: a second writer is told that the first one is busy.
//!
//! Whoever decides notes its time before it exchanges the word, so that a change comes after all that was granted, not only by the word but by the
//! clock: settled at an older time, what has been earned until then would count twice.
//!
//! The era also tells receipts of one era from those of another; it repeats after 1,024 eras, or 16 in a word of 32 bits.

use core::fmt;
use core::hint::cold_path;
use core::mem;

use crate::SettingsError;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::atomic::fence;
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, Word};

/// A state and two sets of `N` settings.
#[derive(Debug)]
pub(crate) struct Live<const N: usize, W: Word> {
    word: AtomicWord<W>,
    writing: AtomicWord<W>,
    sets: [[AtomicWord<W>; N]; 2],
    newest: AtomicWord<W>,
    /// By how many ticks a time may be late, under any settings that there were.
    late: AtomicWord<W>,
}

impl<const N: usize, W: Word> Live<N, W> {
    /// Bits of the state.
    pub(crate) const STATE_BITS: u32 = if W::BITS == 64 { 52 } else { 26 };
    /// The bits of the state.
    pub(crate) const STATE: u64 = u64::MAX >> (64 - Self::STATE_BITS);
    const SET: u64 = 1 << Self::STATE_BITS;
    /// A bit for the limiter's own use, above the state.
    pub(crate) const MARK: u64 = Self::SET << 1;
    /// One era.
    pub(crate) const ERA: u64 = Self::SET << 2;

    const_unless_loom! {
        pub(crate) const fn new(settings: [u64; N], state: u64, tick: u64, late: u64) -> Self {
            #[cfg(not(loom))]
            let mut sets = [const { [const { AtomicWord::new(0) }; N] }; 2];
            #[cfg(loom)]
            let mut sets: [[_; N]; 2] = core::array::from_fn(|_| core::array::from_fn(|_| AtomicWord::new(0)));
            let mut at = 0;
            while at < N {
                // An assignment would drop what was there, which a constant cannot.
                mem::forget(mem::replace(&mut sets[0][at], AtomicWord::new(settings[at])));
                at += 1;
            }
            Self {
                word: AtomicWord::new(state & Self::STATE),
                writing: AtomicWord::new(0),
                sets,
                newest: AtomicWord::new(tick & W::MASK),
                late: AtomicWord::new(if late > W::MASK / 2 { W::MASK / 2 } else { late }),
            }
        }
    }

    /// The word, to decide by.
    #[inline(always)]
    pub(crate) fn load(&self) -> u64 {
        // Acquire: pairs with the release in `change`; the set that the word names has been written.
        self.word.load(Acquire)
    }

    /// Setting `at` of the set that `word` names. Of no meaning if the word has changed meanwhile.
    #[inline(always)]
    pub(crate) fn setting(&self, word: u64, at: usize) -> u64 {
        self.set(word)[at].load(Relaxed)
    }

    #[inline(always)]
    fn set(&self, word: u64) -> &[AtomicWord<W>; N] {
        let [even, odd] = &self.sets;
        if word & Self::SET == 0 {
            even
        } else {
            // Not colder than the other: so that the compiler branches, and the loads need not wait for the word.
            cold_path();
            odd
        }
    }

    /// Replaces `word` by `next`, if nobody has changed it since; else says what it is now.
    #[inline(always)]
    pub(crate) fn exchange(&self, word: u64, next: u64) -> Result<(), u64> {
        // Release: who reads this word also sees what was noted before, and a change comes after all that was decided by the set that it is about
        // to overwrite. Acquire on failure: as `load`.
        self.word.compare_exchange_weak(word, next & W::MASK, Release, Acquire).map(|_| ())
    }

    /// Whether the word is still `word`, so that what was computed from its settings holds; else says what it is now.
    #[inline]
    pub(crate) fn confirm(&self, word: u64) -> Result<(), u64> {
        // Pairs with the release of the settings in `change`: whoever has read one that was being written sees that the word has changed.
        fence(Acquire);
        match self.word.load(Relaxed) {
            same if same == word => Ok(()),
            _ => Err(self.load()),
        }
    }

    /// Makes `tick` the newest, unless a newer one has been noted: before a decision at it is written.
    #[inline(always)]
    pub(crate) fn note(&self, tick: u64) {
        // Relaxed, here and below: released with the word.
        if self.newest.load(Relaxed) != tick & W::MASK {
            self.note_newer(tick);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_newer(&self, tick: u64) {
        let mut newest = self.newest.load(Relaxed);
        while self.ahead(newest, tick).is_none() {
            match self.newest.compare_exchange_weak(newest, tick & W::MASK, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(newer) => newest = newer,
            }
        }
    }

    /// Lets times be late by so many ticks, from a change on: before it is written.
    pub(crate) fn allow_late(&self, ticks: u64) {
        let ticks = ticks.min(W::MASK / 2);
        let mut late = self.late.load(Relaxed);
        while late < ticks {
            match self.late.compare_exchange_weak(late, ticks, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(newer) => late = newer,
            }
        }
    }

    /// By how many ticks `newest` is ahead of `tick`. By more than anyone may be late: then it lies a whole turn behind.
    #[inline(always)]
    fn ahead(&self, newest: u64, tick: u64) -> Option<u64> {
        let ahead = newest.wrapping_sub(tick) & W::MASK;
        if ahead <= self.late.load(Relaxed) { Some(ahead) } else { None }
    }

    /// The later of `tick` and the newest tick of the decisions in the word, which the caller has loaded.
    pub(crate) fn no_older_than_newest(&self, tick: u64) -> u64 {
        tick.saturating_add(self.ahead(self.newest.load(Relaxed), tick).unwrap_or(0))
    }

    /// Changes settings and state together: `turn` makes new ones from the word.
    ///
    /// Lock-free: tried again for each decision that comes between.
    pub(crate) fn change(
        &self,
        turn: impl Fn(u64) -> Result<([u64; N], u64), ChangeError>,
    ) -> Result<(), ChangeError> {
        // Acquire and release: one writer's stores to a set come after those of the one before.
        while let Err(held) = self.writing.compare_exchange_weak(0, 1, Acquire, Relaxed) {
            if held == 1 {
                return Err(ChangeError::Busy);
            }
        }
        let _done = Writing(&self.writing);
        let mut word = self.load();
        loop {
            let (settings, state) = turn(word)?;
            // Of the old word, the mark and the era.
            let upper = (word ^ Self::SET) & !Self::STATE & W::MASK;
            for (cell, setting) in self.set(upper).iter().zip(settings) {
                // Release: pairs with the fence in `confirm`. Who reads this also sees that the word has left the set.
                cell.store(setting, Release);
            }
            let next = upper.wrapping_add(Self::ERA) & W::MASK | state & Self::STATE;
            // Release: pairs with the acquire in `load`. Acquire: pairs with the release of the last decision by the old set, which the next
            // change overwrites. On failure too: what was noted before the newer word is seen.
            match self.word.compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(newer) => word = newer,
            }
        }
    }
}

/// A claim on the set that is not in force.
struct Writing<'a, W: Word>(&'a AtomicWord<W>);

impl<W: Word> Drop for Writing<'_, W> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// Why a limiter's settings have not been changed.
///
/// ```
/// use portcullis_core::{AdjustableBucket, Carry, ChangeError, Rate, Setting, SettingsError, Timestamp};
///
/// let bucket = AdjustableBucket::new(Rate::per_second(1), 5);
/// let refused = bucket.adjust_at(Timestamp::ZERO, Rate::per_second(1), 0, Carry::Keep);
/// assert_eq!(refused, Err(ChangeError::Settings(SettingsError::Zero { setting: Setting::Burst })));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ChangeError {
    /// Another thread, or one that this call has interrupted, is changing them. Nothing has changed; try again later.
    Busy,
    /// More is owed than the new settings can express. Nothing has changed; try again later.
    Owes,
    /// The settings do not fit.
    Settings(SettingsError),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the settings are being changed by somebody else: try again"),
            Self::Owes => f.write_str("more is owed than the settings can express: try again later"),
            Self::Settings(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ChangeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Busy | Self::Owes => None,
            Self::Settings(error) => Some(error),
        }
    }
}

/// What becomes of the permits in a limiter whose settings change.
///
/// ```
/// use portcullis_core::{AdjustableBucket, Carry, Rate, Timestamp};
///
/// let carried = |carry| {
///     let bucket = AdjustableBucket::new(Rate::per_second(1), 10);
///     bucket.try_acquire_at(Timestamp::ZERO, 4).unwrap();
///     bucket.adjust_at(Timestamp::ZERO, Rate::per_second(1), 20, carry).unwrap();
///     bucket.available_at(Timestamp::ZERO)
/// };
/// assert_eq!(carried(Carry::Keep), 6);
/// assert_eq!(carried(Carry::Proportional), 12);
/// assert_eq!(carried(Carry::Additive), 16);
/// assert_eq!(carried(Carry::Reset), 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carry {
    /// As many are available as before, at most the new capacity.
    Keep,
    /// The same share of the capacity is available, to the fraction of a permit. What is owed stays owed.
    Proportional,
    /// As many are in use as before: what the capacity grows by is available at once, or pays what is owed; what it shrinks by is taken away, down to
    /// nothing available.
    Additive,
    /// All of the new capacity is available, and nothing is owed.
    Reset,
}

const _: () = assert!(size_of::<ChangeError>() <= 16);
