//! A word of state, and settings that can change while other calls decide by them.
//!
//! ```text
//! word      era | set | slow | mark | state  one word; `state` and `mark` are the limiter's own
//! sets      two sets of settings             the lowest bit of `set` names the one in force
//! newest    a tick, wrapped                  no grant in the word has a newer time
//! granted   a tick, wrapped                  `newest`, if a grant in the word has that time
//! turn      how often `newest` has wrapped   when it was last written
//! claim     0 or 1                           1 while a call changes settings or gives back
//! inside    one count per quarter of `set`   the calls that decide while `slow` is set
//! ```
//!
//! There are three operations:
//!
//! - *decide* (take, reserve): reads the word and the set that it names, records its time in
//!   `newest`, exchanges the word, and records its time in `granted`. A denial reads the word again
//!   instead.
//! - *give back* (refund, cancel): holds the claim. Exchanges the word for one in which less is
//!   taken.
//! - *change*: holds the claim. Fills the set that is not in force, and exchanges the word for one
//!   that names this set, with the state converted to the new settings.
//!
//! No call waits. If another call holds the claim, a refund gives nothing back, and a change
//! returns [`ChangeError::Busy`].
//!
//! Invariants:
//!
//! 1. *While a call holds the claim and the word does not change, no permit is granted.* Decisions
//!    only ever add to what is taken, and every operation that subtracts holds the claim. So the
//!    result that the holder computed from the word and from `newest` is still valid when its
//!    exchange succeeds.
//! 2. *While the word does not change, neither does the set that it names.* `set` counts changes,
//!    and wraps. If a wrap takes longer than twice the longest staleness that was ever in force,
//!    the algorithm assumes that no call is paused for that long. If changes come faster, the word
//!    is marked as *slow*. While it is slow, each call that grants counts itself in and then reads
//!    the word again. No change enters a quarter of the range of `set` while a call is inside that
//!    counted itself in there, one wrap earlier. A slow word never equals one that is not slow, and
//!    the bit is cleared after twice the staleness.
//! 3. *A receipt is valid only in its own era.* An era ends with each change, and whenever
//!    something other than the last take is given back. A receipt carries the number of its era
//!    (`era` and `set`), and the value that `newest` had when the receipt was written. No later era
//!    began before that time. At one instant of `newest` no more eras begin than their numbers can
//!    distinguish, so a later era of the same number began after it. (If settings change more often
//!    than that at one instant, no receipt of that instant is valid.) If a take began an era and is
//!    rolled back, the era before it resumes: no receipt of the ended era exists then.
//!
//! `newest` is recorded before the word is exchanged, and the call may still be denied, so `newest`
//! is an upper bound. If `granted` does not confirm it, a change leaves no more than it would at
//! any time up to `newest`. A refund treats it as the newest time, and gives back less.

use core::fmt;
use core::mem;

use crate::limiter::receipt::Receipt;
use crate::newer::{cold_path, unbounded_shr};
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::const_unless_loom;
use crate::word::settings::SettingsError;
use crate::word::{AtomicWord, Word};

/// A state and two sets of `N` settings.
#[derive(Debug)]
pub(crate) struct Live<const N: usize, W: Word> {
    word: AtomicWord<W>,
    sets: [[AtomicWord<W>; N]; 2],
    newest: AtomicWord<W>,
    granted: AtomicWord<W>,
    /// The upper bits of `newest` for which a narrow word has no room, at the time of its last
    /// write. Between the writes of the two, no time counts as confirmed.
    turn: AtomicWord<W>,
    claim: AtomicWord<W>,
    inside: [AtomicWord<W>; QUARTERS],
    /// The longest staleness of all settings so far, in ticks. Written under the claim.
    late: AtomicWord<W>,
    // The fields below are read and written under the claim.
    /// `newest` when the era began, and by how much the number of era and set has grown at that
    /// time. If the number has wrapped, the next tick: no receipt of such an era exists yet.
    era_began: AtomicWord<W>,
    begun: AtomicWord<W>,
    /// If a take began the era: the word before that take, marked, with the state from which the
    /// take counts.
    before: AtomicWord<W>,
    /// The values of `era_began` and `begun` before that take.
    before_began: AtomicWord<W>,
    before_begun: AtomicWord<W>,
    /// The times when `set` last entered each quarter of its range, and when the word was marked as
    /// slow.
    entered: [AtomicWord<W>; QUARTERS],
    slow_since: AtomicWord<W>,
}

const QUARTERS: usize = 4;

/// The value of `before` if no take began the era: a word that is not marked.
const NOTHING_BEFORE: u64 = 0;

/// The longest default staleness, in nanoseconds: an hour.
pub(crate) const LONGEST_STALENESS: u64 = 3_600_000_000_000;

impl<const N: usize, W: Word> Live<N, W> {
    /// The number of bits of the state.
    pub(crate) const STATE_BITS: u32 = if W::BITS == 64 { 52 } else { 26 };
    /// The mask of the state.
    pub(crate) const STATE: u64 = u64::MAX >> (64 - Self::STATE_BITS);
    /// A bit for the limiter's own use, above the state.
    pub(crate) const MARK: u64 = 1 << Self::STATE_BITS;
    /// Set if a call must [count itself in](Self::enter) before it decides.
    pub(crate) const SLOW: u64 = Self::MARK << 1;
    const SET: u64 = Self::SLOW << 1;
    const SET_BITS: u32 = if W::BITS == 64 { 6 } else { 2 };
    const ERA: u64 = Self::SET << Self::SET_BITS;
    /// The mask of the bits that name the set.
    const SETS: u64 = Self::ERA - Self::SET;
    /// The number of sets in a quarter of their range.
    const QUARTER: u64 = (1 << Self::SET_BITS) / QUARTERS as u64;
    const SETS_IN_ERA: u64 = Self::ERA / Self::SET;
    /// How many numbers of era and set together can be distinguished.
    const NUMBERS: u64 = W::MASK / Self::SET + 1;
    /// The largest staleness, in ticks.
    pub(crate) const MOST_LATE: u64 = W::MASK / 4;

    const_unless_loom! {
        /// Creates a state with settings under which a time may be `late` ticks stale, at most
        /// [`MOST_LATE`](Self::MOST_LATE), starting at `tick`.
        pub(crate) const fn new(settings: [u64; N], state: u64, tick: u64, late: u64) -> Self {
            debug_assert!(late <= Self::MOST_LATE);
            #[cfg(not(portcullis_loom))]
            let mut sets = [const { [const { AtomicWord::new(0) }; N] }; 2];
            #[cfg(portcullis_loom)]
            let mut sets: [[_; N]; 2] = core::array::from_fn(|_| core::array::from_fn(|_| AtomicWord::new(0)));
            let mut at = 0;
            while at < N {
                // An assignment would drop the old value, which is not possible in a `const fn`.
                mem::forget(mem::replace(&mut sets[0][at], AtomicWord::new(settings[at])));
                at += 1;
            }
            let (tick, turn) = (tick & W::MASK, unbounded_shr(tick, W::BITS));
            // As if entered long ago.
            let before = tick.wrapping_sub(W::MASK / 2) & W::MASK;
            Self {
                word: AtomicWord::new(state & Self::STATE),
                sets,
                newest: AtomicWord::new(tick),
                granted: AtomicWord::new(tick),
                turn: AtomicWord::new(turn),
                claim: AtomicWord::new(0),
                inside: [AtomicWord::new(0), AtomicWord::new(0), AtomicWord::new(0), AtomicWord::new(0)],
                late: AtomicWord::new(late),
                era_began: AtomicWord::new(tick),
                begun: AtomicWord::new(0),
                before: AtomicWord::new(NOTHING_BEFORE),
                before_began: AtomicWord::new(tick),
                before_begun: AtomicWord::new(0),
                entered: [
                    AtomicWord::new(before),
                    AtomicWord::new(before),
                    AtomicWord::new(before),
                    AtomicWord::new(before),
                ],
                slow_since: AtomicWord::new(before),
            }
        }
    }

    /// Loads the word to decide by.
    #[inline(always)]
    pub(crate) fn load(&self) -> u64 {
        // Acquire: pairs with the release in `change`. The set that the word names has been
        // written.
        self.word.load(Acquire)
    }

    /// Returns setting `at` of the set that `word` names. The value is meaningless if the word has
    /// changed in the meantime.
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
            // Not because this set is used less often: the hint makes the compiler branch, so that
            // the loads need not wait for the word.
            cold_path();
            odd
        }
    }

    /// Replaces `word` by `next`, if it is unchanged. Otherwise returns the current word.
    #[inline(always)]
    pub(crate) fn exchange(&self, word: u64, next: u64) -> Result<(), u64> {
        // Release: a call that reads this word also sees what was recorded before it, and a change
        // comes after every decision by the set that it is about to overwrite. Acquire on failure:
        // as in `load`.
        self.word
            .compare_exchange_weak(word, next & W::MASK, Release, Acquire)
            .map(|_| ())
    }

    /// Checks that the word is still `word`, so that what was computed from its settings is valid.
    /// Otherwise returns the current word.
    #[inline]
    pub(crate) fn confirm(&self, word: u64) -> Result<(), u64> {
        // Pairs with the release of the settings in `change`: a call that has read a setting which
        // was being written sees that the word has changed.
        fence(Acquire);
        match self.word.load(Relaxed) {
            same if same == word => Ok(()),
            _ => Err(self.load()),
        }
    }

    /// Counts the caller in, if the word is slow, and returns the word to decide by. Called before
    /// each read of settings.
    #[inline]
    pub(crate) fn enter<'a>(&'a self, word: u64, inside: &mut Option<Inside<'a, W>>) -> u64 {
        if word & Self::SLOW == 0 || inside.is_some() {
            return word;
        }
        *inside = Some(self.count_in());
        self.load()
    }

    /// Counts the caller in until the returned guard is dropped.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_in(&self) -> Inside<'_, W> {
        let quarter = &self.inside[Self::quarter(self.word.load(Relaxed))];
        quarter.fetch_add(1, Relaxed);
        // Pairs with the fence in `next_set`: either a change that enters this quarter later sees
        // this call, or this call sees the word of that change.
        fence(SeqCst);
        Inside(quarter)
    }

    /// Clears the slow bit, if no call can have been paused since before it was set.
    pub(crate) fn calm(&self, tick: u64) {
        let is_over = || {
            let passed = tick.wrapping_sub(self.slow_since.load(Relaxed)) & W::MASK;
            let late = self.late.load(Relaxed);
            // A stale tick may be older: the difference then wraps.
            passed > 2 * late && passed < W::MASK - late
        };
        if !is_over() {
            return;
        }
        let Some(_claim) = self.claim() else {
            return;
        };
        if is_over() {
            let word = self.load();
            // If a call decides concurrently, the bit stays set until a later attempt.
            let _ = self.exchange(word, word & !Self::SLOW);
        }
    }

    /// Returns the quarter of the range of sets that contains the set of `word`.
    fn quarter(word: u64) -> usize {
        ((word & Self::SETS) / Self::SET / Self::QUARTER) as usize
    }

    /// Returns the result of `tell` for a word and the settings that it names.
    pub(crate) fn read<T>(&self, tell: impl Fn(u64) -> T) -> T {
        let (mut word, mut inside) = (self.load(), None);
        loop {
            word = self.enter(word, &mut inside);
            let told = tell(word);
            match self.confirm(word) {
                Ok(()) => return told,
                Err(newer) => word = newer,
            }
        }
    }

    /// Makes `tick` the newest time, unless a newer one is recorded. Called before a decision at
    /// `tick` is written. Returns the newest time.
    #[inline(always)]
    pub(crate) fn note(&self, tick: u64) -> u64 {
        // Relaxed, here and below: the word's release publishes it.
        if self.newest.load(Relaxed) == tick & W::MASK {
            tick
        } else {
            self.note_newer(tick)
        }
    }

    #[cold]
    #[inline(never)]
    fn note_newer(&self, tick: u64) -> u64 {
        let mut newest = self.newest.load(Relaxed);
        loop {
            if let Some(ahead) = self.ahead(newest, tick) {
                return tick.saturating_add(ahead);
            }
            match self
                .newest
                .compare_exchange_weak(newest, tick & W::MASK, Relaxed, Relaxed)
            {
                Ok(_) => {
                    // A grant one wrap of the word ago confirms nothing.
                    self.granted.store(!tick & W::MASK, Relaxed);
                    if W::BITS < 64 {
                        self.turn.store(unbounded_shr(tick, W::BITS), Relaxed);
                    }
                    return tick;
                }
                Err(newer) => newest = newer,
            }
        }
    }

    /// Records that a decision at `tick` was written, given the `newest` that [`note`](Self::note)
    /// returned before it.
    #[inline(always)]
    pub(crate) fn confirm_newest(&self, tick: u64, newest: u64) {
        if tick == newest {
            self.granted.store(tick & W::MASK, Relaxed);
        }
    }

    /// Whether a grant in the word has the time `newest`, and not the equal one a wrap ago.
    fn is_confirmed(&self, newest: u64) -> bool {
        self.granted.load(Relaxed) == newest & W::MASK
            && (W::BITS == 64 || self.turn.load(Relaxed) == unbounded_shr(newest, W::BITS))
    }

    /// Returns by how many ticks `newest` is ahead of `tick`, or `None` if it is not. A narrow word
    /// wraps: if `newest` seems to be ahead by more than the staleness, it is a wrap behind.
    #[inline(always)]
    fn ahead(&self, newest: u64, tick: u64) -> Option<u64> {
        let ahead = newest.wrapping_sub(tick) & W::MASK;
        let most = if W::BITS == 64 {
            Self::MOST_LATE
        } else {
            self.late.load(Relaxed)
        };
        if ahead <= most { Some(ahead) } else { None }
    }

    /// Returns the later of `tick` and the newest time of the decisions in the word. The caller
    /// must have loaded the word before.
    pub(crate) fn no_older_than_newest(&self, tick: u64) -> u64 {
        tick.saturating_add(self.ahead(self.newest.load(Relaxed), tick).unwrap_or(0))
    }

    /// As [`no_older_than_newest`](Self::no_older_than_newest), for a change under settings whose
    /// staleness is `late`.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Stale`] if a narrow word does not tell whether `tick` is older than the
    /// newest time, or newer by a wrap, and `turn` does not tell that it is newer.
    pub(crate) fn newest_for_change(&self, tick: u64, late: u64) -> Result<u64, ChangeError> {
        let newest = self.no_older_than_newest(tick);
        if W::BITS == 64 {
            return Ok(newest);
        }
        // Read one after the other, they may belong to different times. Like a `newest` that is a
        // wrap behind, that passes with time.
        let turn = self.turn.load(Relaxed);
        let told = turn << W::BITS.min(63) | self.newest.load(Relaxed);
        if newest - tick > late || told.saturating_sub(tick) > late {
            return Err(ChangeError::Stale);
        }
        Ok(newest)
    }

    /// Claims the word, so that no other call gives back or changes settings. Returns `None` if
    /// another call holds the claim.
    pub(crate) fn claim(&self) -> Option<Claim<'_, N, W>> {
        // Acquire: pairs with the release of the last claim, whose writes are then visible.
        while let Err(held) = self.claim.compare_exchange_weak(0, 1, Acquire, Relaxed) {
            if held == 1 {
                return None;
            }
        }
        Some(Claim(self))
    }
}

/// The tick of a change. The two ticks are equal, unless a call that may have been denied recorded
/// the latest.
#[derive(Clone, Copy)]
pub(crate) struct When {
    pub(crate) earliest: u64,
    pub(crate) latest: u64,
}

/// What a receipt of a decision contains: see [`Live::receipt`].
#[derive(Clone, Copy)]
pub(crate) struct Noted {
    /// The word after the decision, without the slow bit.
    pub(crate) word: u64,
    /// The tick of the decision; with a 64-bit word, the newest tick at that time.
    pub(crate) tick: u64,
    /// The newest tick at the time of the decision.
    pub(crate) newest: u64,
}

impl<const N: usize, W: Word> Live<N, W> {
    /// Creates the receipt of a decision at `tick` that leaves `word`, given the `newest` that
    /// [`note`](Self::note) returned.
    ///
    /// With a narrow word, the receipt has room for how stale the decision was. Its tick is
    /// therefore known even if `newest` is a wrap of the word behind and seems to be ahead.
    #[inline(always)]
    pub(crate) fn receipt(word: u64, tick: u64, newest: u64) -> Receipt {
        let late = newest.wrapping_sub(tick);
        match u64::BITS - W::BITS {
            0 => Receipt::dated(word, newest),
            spare if late >> spare == 0 => Receipt::dated(word | late << W::BITS, newest),
            // No later time is reached from `u64::MAX`, so this receipt is worth nothing.
            _ => Receipt::dated(word, u64::MAX),
        }
    }

    /// Reads a receipt that contains only a word and the newest time.
    pub(crate) const fn noted_in_full(receipt: &Receipt) -> Noted {
        Noted {
            word: receipt.note() & !Self::SLOW,
            tick: receipt.time(),
            newest: receipt.time(),
        }
    }

    /// Reads a receipt that [`receipt`](Self::receipt) created.
    pub(crate) const fn noted(receipt: &Receipt) -> Noted {
        let late = unbounded_shr(receipt.note(), W::BITS);
        let (word, newest) = (receipt.note() & W::MASK & !Self::SLOW, receipt.time());
        Noted {
            word,
            tick: newest.wrapping_sub(late),
            newest,
        }
    }

    /// Changes settings and state together, at the later of `tick` and the newest time of a grant.
    ///
    /// `turn` computes the new settings and state from the word and the [time of the change](When).
    /// Under the new settings a time may be `late` ticks stale. The third value of `turn` is passed
    /// to `keep` once the settings are in force, still under the claim.
    ///
    /// Lock-free: retried for each decision that intervenes.
    pub(crate) fn change<T>(
        &self,
        tick: u64,
        late: u64,
        turn: impl Fn(u64, When) -> Result<([u64; N], u64, T), ChangeError>,
        keep: impl FnOnce(T),
    ) -> Result<(), ChangeError> {
        let claim = self.claim().ok_or(ChangeError::Busy)?;
        let longest = late.max(self.late.load(Relaxed));
        loop {
            let word = self.load();
            let newest = self.newest_for_change(tick, late)?;
            // If the loaded word lacks a grant of that time, the word has changed since, and the
            // exchange fails.
            let is_certain = newest == tick || self.is_confirmed(newest);
            let earliest = if is_certain { newest } else { tick };
            let (settings, state, kept) = turn(
                word,
                When {
                    earliest,
                    latest: newest,
                },
            )?;
            let next = claim
                .next_set(word, newest, longest)
                .ok_or(ChangeError::Busy)?
                | state & Self::STATE;
            self.note(newest);
            // Must come before the word, so that no call under the new settings takes `newest` for
            // a time a wrap behind.
            self.late.store(longest, Relaxed);
            for (cell, setting) in self.set(next).iter().zip(settings) {
                // Release: pairs with the fence in `confirm`. A call that reads this setting also
                // sees that the word no longer names the set.
                cell.store(setting, Release);
            }
            // Release: pairs with the acquire in `load`. Acquire: pairs with the release of the
            // last decision by the old set, which the next change overwrites.
            if self
                .word
                .compare_exchange_weak(word, next, AcqRel, Relaxed)
                .is_ok()
            {
                claim.has_begun_set(word, next, newest);
                // Otherwise the next change must not rely on a time whose call may yet be denied.
                if is_certain {
                    self.confirm_newest(newest, newest);
                }
                keep(kept);
                return Ok(());
            }
        }
    }
}

/// The right to change settings and to give back. Released on drop.
pub(crate) struct Claim<'a, const N: usize, W: Word>(&'a Live<N, W>);

impl<const N: usize, W: Word> Claim<'_, N, W> {
    /// Whether a receipt with the word's era number was written in that era, and not in an earlier
    /// one of the same number. `newest` is the newest time now.
    pub(crate) fn wrote(&self, receipt: Noted, newest: u64) -> bool {
        let era = newest.wrapping_sub(self.0.era_began.load(Relaxed)) & W::MASK;
        let is_to_come = era == W::MASK;
        !is_to_come
            && newest
                .checked_sub(receipt.newest)
                .is_some_and(|age| age <= era)
    }

    /// Replaces `word` by one of a new era with the state `state` and no mark. Returns `None`, and
    /// does nothing, if no era may begin now.
    pub(crate) fn begin_era(&self, word: u64, state: u64) -> Option<Result<(), u64>> {
        // Read after the word, so it is not older than any decision in the word.
        let newest = self.0.newest.load(Relaxed);
        let next = self.next_era(word, newest)? | state & Live::<N, W>::STATE;
        let replaced = self.0.exchange(word, next);
        if replaced.is_ok() {
            self.has_begun(newest, Live::<N, W>::SETS_IN_ERA);
        }
        Some(replaced)
    }

    /// Takes from the state `from`, so that `left` is left, and begins a new era without a mark.
    /// Returns the new word, or `None` if nothing is done.
    ///
    /// Records the era that ends. A rollback [resumes](Self::resume_era) it, so that the receipts
    /// of that era keep their worth.
    ///
    /// No other operation may subtract from the state of a marked word.
    pub(crate) fn take_and_begin_era(&self, word: u64, from: u64, left: u64) -> Option<u64> {
        let live = self.0;
        let newest = live.newest.load(Relaxed);
        let (began, begun) = (live.era_began.load(Relaxed), live.begun.load(Relaxed));
        if self.begun_at(newest) + Live::<N, W>::SETS_IN_ERA + 1 >= Live::<N, W>::NUMBERS {
            // All numbers would be in use, and the receipt of this take would be worth nothing.
            return None;
        }
        let next = self.next_era(word, newest)? | left & Live::<N, W>::STATE;
        live.exchange(word, next).ok()?;
        self.has_begun(newest, Live::<N, W>::SETS_IN_ERA);
        live.before.store(
            word & !Live::<N, W>::STATE | from & Live::<N, W>::STATE,
            Relaxed,
        );
        live.before_began.store(began, Relaxed);
        live.before_begun.store(begun, Relaxed);
        Some(next)
    }

    /// Gives back the whole last take, that of `receipt`, which left `word` and took from the state
    /// `from`. If that take began the era of `word`, the era before it resumes, with the state
    /// `state`.
    ///
    /// Returns the new word, or the current one if it is no longer `word`. Returns `None` if
    /// another call began the era.
    ///
    /// No receipt of the ended era exists: each take after the one that began it was given back, or
    /// the word would differ. So the number of the era may be used again.
    pub(crate) fn resume_era(
        &self,
        word: u64,
        receipt: Noted,
        from: u64,
        state: u64,
    ) -> Option<Result<u64, u64>> {
        let live = self.0;
        let before = live.before.load(Relaxed);
        let is_first = before & Live::<N, W>::MARK != 0
            && before & Live::<N, W>::STATE == from
            && word & Live::<N, W>::MARK == 0
            && live.era_began.load(Relaxed) == receipt.newest & W::MASK;
        if !is_first {
            return None;
        }
        let kept = Live::<N, W>::STATE | Live::<N, W>::SLOW;
        let next = before & !kept | word & Live::<N, W>::SLOW | state & Live::<N, W>::STATE;
        let replaced = live.exchange(word, next);
        if replaced.is_ok() {
            live.before.store(NOTHING_BEFORE, Relaxed);
            live.era_began
                .store(live.before_began.load(Relaxed), Relaxed);
            live.begun.store(live.before_begun.load(Relaxed), Relaxed);
        }
        Some(replaced.map(|()| next))
    }

    /// Returns the era and set of `word` in the next era, or `None` if as many eras have begun at
    /// this time as can be distinguished.
    fn next_era(&self, word: u64, newest: u64) -> Option<u64> {
        let may = self.begun_at(newest) + Live::<N, W>::SETS_IN_ERA < Live::<N, W>::NUMBERS;
        let upper = word & !(Live::<N, W>::STATE | Live::<N, W>::MARK);
        may.then(|| upper.wrapping_add(Live::<N, W>::ERA) & W::MASK)
    }

    /// Returns by how much the number of era and set has grown at the time `newest`, or the number
    /// of all of them if that many or more.
    fn begun_at(&self, newest: u64) -> u64 {
        match self.0.era_began.load(Relaxed) {
            at_once if at_once == newest & W::MASK => self.0.begun.load(Relaxed),
            to_come if to_come == newest.wrapping_add(1) & W::MASK => Live::<N, W>::NUMBERS,
            _ => 0,
        }
    }

    /// Records that the number of era and set has grown by `numbers` at the time `newest`.
    fn has_begun(&self, newest: u64, numbers: u64) {
        let begun = self.begun_at(newest) + numbers;
        // If all numbers were in use at this time, none of its receipts identifies its era. At the
        // next tick none has begun.
        let is_all = begun + 1 >= Live::<N, W>::NUMBERS;
        self.0.begun.store(if is_all { 0 } else { begun }, Relaxed);
        self.0.before.store(NOTHING_BEFORE, Relaxed);
        self.0
            .era_began
            .store(newest.wrapping_add(is_all.into()) & W::MASK, Relaxed);
    }

    /// Returns the era and set of `word` with the next set in force. Returns `None` if a call may
    /// have been paused since that set was last in force: it would decide by the old settings.
    fn next_set(&self, word: u64, newest: u64, late: u64) -> Option<u64> {
        let live = self.0;
        let upper = word & !(Live::<N, W>::STATE | Live::<N, W>::MARK);
        // After the last set, the next era begins with the first set.
        let next = upper.wrapping_add(Live::<N, W>::SET) & W::MASK;
        let is_over =
            |since: &AtomicWord<W>| newest.wrapping_sub(since.load(Relaxed)) & W::MASK > 2 * late;
        if word & Live::<N, W>::SLOW != 0 && is_over(&live.slow_since) {
            // No longer slow: no call has been paused since the word was last not slow.
            return Some(next & !Live::<N, W>::SLOW);
        }
        let Some(quarter) = Self::entered(next) else {
            return Some(next);
        };
        let are_out = |quarters: &[AtomicWord<W>]| {
            // Pairs with the fence in `count_in`.
            fence(SeqCst);
            // Acquire: pairs with the release of a call that leaves, whose exchange came before.
            quarters.iter().all(|inside| inside.load(Acquire) == 0)
        };
        if word & Live::<N, W>::SLOW != 0 {
            are_out(&live.inside[quarter..=quarter]).then_some(next)
        } else if is_over(&live.entered[(quarter + 1) % QUARTERS]) {
            Some(next)
        } else {
            are_out(&live.inside).then_some(next | Live::<N, W>::SLOW)
        }
    }

    fn has_begun_set(&self, word: u64, next: u64, newest: u64) {
        self.0.before.store(NOTHING_BEFORE, Relaxed);
        if self.0.era_began.load(Relaxed) != newest.wrapping_add(1) & W::MASK {
            self.has_begun(newest, 1);
        }
        let newest = newest & W::MASK;
        if let Some(quarter) = Self::entered(next) {
            self.0.entered[quarter].store(newest, Relaxed);
        }
        if next & !word & Live::<N, W>::SLOW != 0 {
            self.0.slow_since.store(newest, Relaxed);
        }
    }

    /// Returns the quarter of the range of sets that begins with the set of `word`, if one does.
    fn entered(word: u64) -> Option<usize> {
        let set = (word & Live::<N, W>::SETS) / Live::<N, W>::SET;
        (set % Live::<N, W>::QUARTER == 0).then(|| Live::<N, W>::quarter(word))
    }
}

/// A call that has counted itself in. Dropping it counts the call out.
pub(crate) struct Inside<'a, W: Word>(&'a AtomicWord<W>);

impl<W: Word> Drop for Inside<'_, W> {
    fn drop(&mut self) {
        // Release: pairs with the acquire of a change that enters this quarter.
        self.0.fetch_sub(1, Release);
    }
}

impl<const N: usize, W: Word> Drop for Claim<'_, N, W> {
    fn drop(&mut self) {
        // Release: pairs with the acquire of the next claim.
        self.0.claim.store(0, Release);
    }
}

/// The error of a change of settings. Nothing has changed.
///
/// ```
/// use portcullis_core::{AdjustableBucket, Rate, SettingsError, Timestamp};
/// use portcullis_core::builder::Setting;
/// use portcullis_core::state::{Carry, ChangeError};
///
/// let bucket = AdjustableBucket::new(Rate::per_second(1), 5);
/// let refused = bucket.adjust_at(Timestamp::ZERO, Rate::per_second(1), 0, Carry::Keep);
/// assert_eq!(
///     refused,
///     Err(ChangeError::Settings(SettingsError::Zero {
///         setting: Setting::Burst
///     }))
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ChangeError {
    /// Another call is changing settings, adding permits, resetting or refunding, on another thread
    /// or pre-empted by this one. Or so many such calls were made recently that one more could not
    /// be distinguished. Try again later.
    Busy,
    /// More permits are owed than the new settings can express. Try again later.
    Owes,
    /// The timestamp of the change is older than the newest one by more than the staleness. Try
    /// again with a newer one.
    Stale,
    /// The settings do not fit.
    Settings(SettingsError),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str(
                "the limiter is being changed, or was changed too often recently: try again later",
            ),
            Self::Owes => f.write_str("the debt exceeds what the settings allow: try again later"),
            Self::Stale => f.write_str(
                "the timestamp is older than the staleness allows: try again with a newer one",
            ),
            Self::Settings(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ChangeError {}

/// What happens to a limiter's permits when its settings change.
///
/// ```
/// use portcullis_core::{AdjustableBucket, Rate, Timestamp};
/// use portcullis_core::state::Carry;
///
/// let carried = |carry| {
///     let bucket = AdjustableBucket::new(Rate::per_second(1), 10);
///     bucket.try_acquire_at(Timestamp::ZERO, 4).unwrap();
///     bucket
///         .adjust_at(Timestamp::ZERO, Rate::per_second(1), 20, carry)
///         .unwrap();
///     bucket.available_at(Timestamp::ZERO)
/// };
/// assert_eq!(carried(Carry::Keep), 6);
/// assert_eq!(carried(Carry::Proportional), 12);
/// assert_eq!(carried(Carry::Additive), 16);
/// assert_eq!(carried(Carry::Reset), 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carry {
    /// The number of available permits stays the same, up to the new capacity.
    Keep,
    /// The available share of the capacity stays the same, to the fraction of a permit. Owed
    /// permits stay owed.
    Proportional,
    /// The number of permits in use stays the same. Growth of the capacity is available at once, or
    /// pays off owed permits. A decrease of the capacity reduces the available permits, down to 0.
    /// If a recent change left more than that in use, less is added: see each limiter's bound.
    Additive,
    /// The whole new capacity is available, and nothing is owed.
    Reset,
}

const _: () = assert!(size_of::<ChangeError>() <= 16);

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stale_time_does_not_end_slow_decisions() {
        fn check<W: Word>() {
            const LATE: u64 = 10;
            let live = Live::<1, W>::new([1], 0, 1_000, LATE);
            let is_slow = || live.load() & Live::<1, W>::SLOW != 0;
            while !is_slow() {
                let same = |word, _| Ok(([1], word & Live::<1, W>::STATE, ()));
                live.change(1_000, LATE, same, |()| {}).unwrap();
            }
            for (tick, is_still) in [(990, true), (1_020, true), (1_021, false)] {
                live.calm(tick);
                assert_eq!(is_slow(), is_still, "{tick}");
            }
        }
        check::<u32>();
        #[cfg(target_has_atomic = "64")]
        check::<u64>();
    }
}
