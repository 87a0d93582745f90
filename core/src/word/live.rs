//! A word of state, and settings that are exchanged while others decide by them.
//!
//! ```text
//! word      era | set | slow | mark | state  one word; `state` and `mark` are the limiter's own
//! sets      two sets of settings             the lowest bit of `set` names the one in force
//! newest    a tick, wrapped                  no grant in the word has a newer time
//! granted   a tick, wrapped                  `newest`, if a grant in the word has that time
//! turn      how often that has wrapped       as of when `newest` was written
//! claim     0 or 1                           whether a call is changing settings or giving back
//! inside    a count for each quarter of `set` the calls that decide while `slow` is set
//! ```
//!
//! - *decide* (take, reserve): reads the word and the set that it names, notes its time in
//!   `newest`, exchanges the word, and notes its time in `granted`. A denial reads the word again
//!   instead.
//! - *give back*: under the claim. Exchanges the word for one in which less is taken.
//! - *change*: under the claim. Fills the set that is not in force, and exchanges the word for one
//!   that names it, with the state turned into the new settings' terms.
//!
//! A call that finds the claim held gives nothing back, or answers [`ChangeError::Busy`]: no call
//! waits.
//!
//! Invariants:
//!
//! 1. *While a call holds the claim and the word stays the same, no permit is granted.* Decisions
//!    only ever add to what is taken, and everything that subtracts holds the claim. So what the
//!    holder has computed from the word and from `newest` still holds when its exchange succeeds.
//! 2. *While the word stays the same, so does the set that it names.* `set` counts changes, and
//!    comes round. Where that takes longer than twice the longest staleness that was ever in force,
//!    no call is paused for so long. Where changes come faster, the word is marked as *slow*: then
//!    each call that grants counts itself in, and decides again, and no change enters a quarter of
//!    the range of `set` while a call is in that counted itself in there a round ago. A word that
//!    is not marked equals none that is; the mark goes after twice the staleness.
//! 3. *A receipt is good in its own era only.* An era ends with each change, and whenever something
//!    is given back that is not the last take. A receipt bears the number of its era (`era` and
//!    `set`), and the time that `newest` had when it was written. No later era began before that;
//!    and as no more eras begin at one instant of `newest` than can be told apart, one of the same
//!    number began after it. (Where settings are changed more often than that at one instant, no
//!    receipt of that instant is good.) An era that a take began ends without a trace if that take
//!    is rolled back: none of its receipts is out then, and the era before it goes on.
//!
//! `newest` is noted before the word is exchanged, so a call that is denied in the end may have
//! noted its time: `newest` is an upper bound. Where `granted` does not confirm it, a change leaves
//! as little as it would at any time up to `newest`; a refund takes it for the newest, which gives
//! back less.

use core::fmt;
use core::hint::cold_path;
use core::mem;

use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, Word};
use crate::{Receipt, SettingsError};

/// A state and two sets of `N` settings.
#[derive(Debug)]
pub(crate) struct Live<const N: usize, W: Word> {
    word: AtomicWord<W>,
    sets: [[AtomicWord<W>; N]; 2],
    newest: AtomicWord<W>,
    granted: AtomicWord<W>,
    /// The bits of `newest` that a narrow word has no room for, as of when it was written. Between
    /// the two writes, nothing is confirmed.
    turn: AtomicWord<W>,
    claim: AtomicWord<W>,
    inside: [AtomicWord<W>; QUARTERS],
    /// The longest staleness of all settings that there were, in ticks. Changes under the claim.
    late: AtomicWord<W>,
    // The rest is read and written under the claim.
    /// `newest` when the era began, and by how much the number of era and set has grown at that
    /// time. If it has come round, the next tick: of such an era no receipt has been written yet.
    era_began: AtomicWord<W>,
    begun: AtomicWord<W>,
    /// Where a take began the era: the word before it, marked, as far as the take counts from
    /// there.
    before: AtomicWord<W>,
    /// `era_began` and `begun` before that take.
    before_began: AtomicWord<W>,
    before_begun: AtomicWord<W>,
    /// When `set` last entered each quarter of its range, and when the word was marked as slow.
    entered: [AtomicWord<W>; QUARTERS],
    slow_since: AtomicWord<W>,
}

const QUARTERS: usize = 4;

/// No take began the era: a word that is not marked.
const NOTHING_BEFORE: u64 = 0;

/// The longest staleness that is chosen by itself, in nanoseconds: an hour.
pub(crate) const LONGEST_STALENESS: u64 = 3_600_000_000_000;

impl<const N: usize, W: Word> Live<N, W> {
    /// Bits of the state.
    pub(crate) const STATE_BITS: u32 = if W::BITS == 64 { 52 } else { 26 };
    /// The bits of the state.
    pub(crate) const STATE: u64 = u64::MAX >> (64 - Self::STATE_BITS);
    /// A bit for the limiter's own use, above the state.
    pub(crate) const MARK: u64 = 1 << Self::STATE_BITS;
    /// Whether a call has to [count itself in](Self::enter) before it decides.
    pub(crate) const SLOW: u64 = Self::MARK << 1;
    const SET: u64 = Self::SLOW << 1;
    const SET_BITS: u32 = if W::BITS == 64 { 6 } else { 2 };
    const ERA: u64 = Self::SET << Self::SET_BITS;
    /// The bits that name the set.
    const SETS: u64 = Self::ERA - Self::SET;
    /// The sets in a quarter of their range.
    const QUARTER: u64 = (1 << Self::SET_BITS) / QUARTERS as u64;
    const SETS_IN_ERA: u64 = Self::ERA / Self::SET;
    /// How many numbers of era and set together can be told apart.
    const NUMBERS: u64 = W::MASK / Self::SET + 1;
    /// The most ticks by which a time may be late.
    pub(crate) const MOST_LATE: u64 = W::MASK / 4;

    const_unless_loom! {
        /// With settings under which a time may be `late` ticks old, at most
        /// [`MOST_LATE`](Self::MOST_LATE), from `tick` on.
        pub(crate) const fn new(settings: [u64; N], state: u64, tick: u64, late: u64) -> Self {
            debug_assert!(late <= Self::MOST_LATE);
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
            let (tick, turn) = (tick & W::MASK, tick.unbounded_shr(W::BITS));
            // Entered long ago.
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

    /// The word, to decide by.
    #[inline(always)]
    pub(crate) fn load(&self) -> u64 {
        // Acquire: pairs with the release in `change`; the set that the word names has been
        // written.
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
            // Not colder than the other: so that the compiler branches, and the loads need not wait
            // for the word.
            cold_path();
            odd
        }
    }

    /// Replaces `word` by `next`, if it is unchanged; else says what it is now.
    #[inline(always)]
    pub(crate) fn exchange(&self, word: u64, next: u64) -> Result<(), u64> {
        // Release: a call that reads this word also sees what was noted before, and a change comes
        // after all that was decided by the set that it is about to overwrite. Acquire on failure:
        // as `load`.
        self.word
            .compare_exchange_weak(word, next & W::MASK, Release, Acquire)
            .map(|_| ())
    }

    /// Whether the word is still `word`, so that what was computed from its settings holds; else
    /// says what it is now.
    #[inline]
    pub(crate) fn confirm(&self, word: u64) -> Result<(), u64> {
        // Pairs with the release of the settings in `change`: a call that has read one that was
        // being written sees that the word has changed.
        fence(Acquire);
        match self.word.load(Relaxed) {
            same if same == word => Ok(()),
            _ => Err(self.load()),
        }
    }

    /// Counts the caller in, if it has to be: a word to decide by. Before each look at settings.
    #[inline]
    pub(crate) fn enter<'a>(&'a self, word: u64, inside: &mut Option<Inside<'a, W>>) -> u64 {
        if word & Self::SLOW == 0 || inside.is_some() {
            return word;
        }
        *inside = Some(self.count_in());
        self.load()
    }

    /// Counts the caller in, until what this returns is dropped.
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

    /// Takes the mark off that makes calls count themselves in, if no call can be paused since
    /// before it.
    pub(crate) fn calm(&self, tick: u64) {
        let is_over = || {
            let passed = tick.wrapping_sub(self.slow_since.load(Relaxed)) & W::MASK;
            passed > 2 * self.late.load(Relaxed)
        };
        if is_over()
            && let Some(_claim) = self.claim()
            && is_over()
        {
            let word = self.load();
            // It stays for now if a call decides meanwhile.
            let _ = self.exchange(word, word & !Self::SLOW);
        }
    }

    /// The quarter of the range of sets that a word's set lies in.
    fn quarter(word: u64) -> usize {
        ((word & Self::SETS) / Self::SET / Self::QUARTER) as usize
    }

    /// What `tell` says of a word and of the settings that it names.
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

    /// Makes `tick` the newest, unless a newer one has been noted: before a decision at it is
    /// written. Returns the newest.
    #[inline(always)]
    pub(crate) fn note(&self, tick: u64) -> u64 {
        // Relaxed, here and below: released with the word.
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
                    // What was granted a turn of the word ago confirms nothing.
                    self.granted.store(!tick & W::MASK, Relaxed);
                    if W::BITS < 64 {
                        self.turn.store(tick.unbounded_shr(W::BITS), Relaxed);
                    }
                    return tick;
                }
                Err(newer) => newest = newer,
            }
        }
    }

    /// Notes that a decision at `tick` has been written, where [`note`](Self::note) said `newest`
    /// before it.
    #[inline(always)]
    pub(crate) fn confirm_newest(&self, tick: u64, newest: u64) {
        if tick == newest {
            self.granted.store(tick & W::MASK, Relaxed);
        }
    }

    /// Whether a grant in the word has the time `newest`, and not the same one a turn ago.
    fn is_confirmed(&self, newest: u64) -> bool {
        self.granted.load(Relaxed) == newest & W::MASK
            && (W::BITS == 64 || self.turn.load(Relaxed) == newest.unbounded_shr(W::BITS))
    }

    /// By how many ticks `newest` is ahead of `tick`, if it is. A narrow word comes round: by more
    /// than a time may be late, `newest` lies a turn behind.
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

    /// The later of `tick` and the newest tick of the decisions in the word, which the caller has
    /// loaded.
    pub(crate) fn no_older_than_newest(&self, tick: u64) -> u64 {
        tick.saturating_add(self.ahead(self.newest.load(Relaxed), tick).unwrap_or(0))
    }

    /// Claims the word, so that no other call gives back or changes settings; `None` if one does.
    pub(crate) fn claim(&self) -> Option<Claim<'_, N, W>> {
        // Acquire: pairs with the release of the last claim; what was written under it is seen.
        while let Err(held) = self.claim.compare_exchange_weak(0, 1, Acquire, Relaxed) {
            if held == 1 {
                return None;
            }
        }
        Some(Claim(self))
    }
}

/// The tick of a change: both are the same, unless a call that may have been denied has noted the
/// latest.
#[derive(Clone, Copy)]
pub(crate) struct When {
    pub(crate) earliest: u64,
    pub(crate) latest: u64,
}

/// What a receipt of a decision tells: see [`Live::receipt`].
#[derive(Clone, Copy)]
pub(crate) struct Noted {
    /// The word that the decision left, whether slow or not.
    pub(crate) word: u64,
    /// The tick of the decision; with a 64-bit word, the newest one at that time.
    pub(crate) tick: u64,
    /// The newest tick when the decision was made.
    pub(crate) newest: u64,
}

impl<const N: usize, W: Word> Live<N, W> {
    /// The receipt of a decision at `tick` that leaves `word`; `newest` is what
    /// [`note`](Self::note) said.
    ///
    /// A narrow word leaves room for the time by which the decision was late, so that its tick is
    /// known also where `newest` lies a turn of the word behind and seems to be ahead.
    #[inline(always)]
    pub(crate) fn receipt(word: u64, tick: u64, newest: u64) -> Receipt {
        let late = newest.wrapping_sub(tick);
        match u64::BITS - W::BITS {
            0 => Receipt::dated(word, newest),
            spare if late >> spare == 0 => Receipt::dated(word | late << W::BITS, newest),
            // Of a time that no later one is reached from: worth nothing.
            _ => Receipt::dated(word, u64::MAX),
        }
    }

    /// What a receipt tells that bears a word and the newest time alone.
    pub(crate) const fn noted_in_full(receipt: &Receipt) -> Noted {
        Noted {
            word: receipt.note() & !Self::SLOW,
            tick: receipt.time(),
            newest: receipt.time(),
        }
    }

    /// What a receipt tells that [`receipt`](Self::receipt) has written.
    pub(crate) const fn noted(receipt: &Receipt) -> Noted {
        let late = receipt.note().unbounded_shr(W::BITS);
        let (word, newest) = (receipt.note() & W::MASK & !Self::SLOW, receipt.time());
        Noted {
            word,
            tick: newest.wrapping_sub(late),
            newest,
        }
    }

    /// Changes settings and state together, at `tick` or at the newest time of a grant if that is
    /// later: `turn` makes new ones from the word and [`When`] that is. Under the new settings a
    /// time may be `late` ticks old. What `turn` makes beside them is passed to `keep` when they
    /// are in force, under the claim still.
    ///
    /// Lock-free: tried again for each decision that comes between.
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
            let newest = self.no_older_than_newest(tick);
            // If a grant of that time is not in the word, the word has changed, and the exchange
            // fails.
            let is_certain = newest == tick || self.is_confirmed(newest);
            let earliest = if is_certain { newest } else { tick };
            if W::BITS < 64 && newest - tick > late {
                // Either the change is later than a call may be under its settings, or `newest`
                // lies a turn behind. Both pass.
                return Err(ChangeError::Busy);
            }
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
            // Before the word, so that no call under the new settings takes `newest` for a turn
            // behind.
            self.late.store(longest, Relaxed);
            for (cell, setting) in self.set(next).iter().zip(settings) {
                // Release: pairs with the fence in `confirm`. A call that reads this also sees that
                // the word has left the set.
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
                // Else the next change must not take for granted what may yet be denied.
                if is_certain {
                    self.confirm_newest(newest, newest);
                }
                keep(kept);
                return Ok(());
            }
        }
    }
}

/// The right to change settings and to give back.
pub(crate) struct Claim<'a, const N: usize, W: Word>(&'a Live<N, W>);

impl<const N: usize, W: Word> Claim<'_, N, W> {
    /// Whether a receipt of the word's era was written in that very era, and not in an earlier one
    /// of the same number. `newest` is the newest time now.
    pub(crate) fn wrote(&self, receipt: Noted, newest: u64) -> bool {
        let era = newest.wrapping_sub(self.0.era_began.load(Relaxed)) & W::MASK;
        let is_to_come = era == W::MASK;
        !is_to_come
            && newest
                .checked_sub(receipt.newest)
                .is_some_and(|age| age <= era)
    }

    /// Replaces `word` by one of a new era with the state `state`, in which nothing is marked. If
    /// no era may begin now, `None`: nothing is done.
    pub(crate) fn begin_era(&self, word: u64, state: u64) -> Option<Result<(), u64>> {
        // After the word: it is no older than any decision in it.
        let newest = self.0.newest.load(Relaxed);
        let next = self.next_era(word, newest)? | state & Live::<N, W>::STATE;
        let replaced = self.0.exchange(word, next);
        if replaced.is_ok() {
            self.has_begun(newest, Live::<N, W>::SETS_IN_ERA);
        }
        Some(replaced)
    }

    /// Takes from the state `from`, so that `left` is left, and begins a new era with that, in
    /// which nothing is marked. Notes the era that ends: a rollback [resumes](Self::resume_era) it,
    /// so that the receipts of that era are worth what they were. Returns what the word is now;
    /// `None` if nothing is done.
    ///
    /// Nothing else may subtract from the state of a marked word.
    pub(crate) fn take_and_begin_era(&self, word: u64, from: u64, left: u64) -> Option<u64> {
        let live = self.0;
        let newest = live.newest.load(Relaxed);
        let (began, begun) = (live.era_began.load(Relaxed), live.begun.load(Relaxed));
        if self.begun_at(newest) + Live::<N, W>::SETS_IN_ERA + 1 >= Live::<N, W>::NUMBERS {
            // All numbers would be in use, and the take's own receipt worth nothing.
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

    /// Gives back in whole the last take, that of `receipt`, which has left `word` and took from
    /// the state `from`: if that take began the era of `word`, the era before it goes on, with the
    /// state `state`. Returns what the word is then, if it was `word`; `None` if another call began
    /// the era.
    ///
    /// No receipt of the era that ends so is out: each take after the one that began it has been
    /// given back, or the word would be another one. So its number may be used again.
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

    /// Era and set of `word`, in the next era; `None` if as many have begun at this time as can be
    /// told apart.
    fn next_era(&self, word: u64, newest: u64) -> Option<u64> {
        let may = self.begun_at(newest) + Live::<N, W>::SETS_IN_ERA < Live::<N, W>::NUMBERS;
        let upper = word & !(Live::<N, W>::STATE | Live::<N, W>::MARK);
        may.then(|| upper.wrapping_add(Live::<N, W>::ERA) & W::MASK)
    }

    /// By how much the number of era and set has grown at the time `newest`.
    fn begun_at(&self, newest: u64) -> u64 {
        let is_at_once = self.0.era_began.load(Relaxed) == newest & W::MASK;
        if is_at_once {
            self.0.begun.load(Relaxed)
        } else {
            0
        }
    }

    /// Notes that the number of era and set has grown by so much at the time `newest`.
    fn has_begun(&self, newest: u64, numbers: u64) {
        let begun = self.begun_at(newest) + numbers;
        self.0.begun.store(begun, Relaxed);
        self.0.before.store(NOTHING_BEFORE, Relaxed);
        // If all numbers were in use at this time, none of its receipts tells which era it is of.
        let is_all = begun + 1 >= Live::<N, W>::NUMBERS;
        self.0
            .era_began
            .store(newest.wrapping_add(is_all.into()) & W::MASK, Relaxed);
    }

    /// Era and set of `word`, with the next set in force; `None` if a call may be paused since that
    /// set was last in force, and would decide by what it was then.
    fn next_set(&self, word: u64, newest: u64, late: u64) -> Option<u64> {
        let live = self.0;
        let upper = word & !(Live::<N, W>::STATE | Live::<N, W>::MARK);
        // The next era begins with the first set.
        let next = upper.wrapping_add(Live::<N, W>::SET) & W::MASK;
        let is_over =
            |since: &AtomicWord<W>| newest.wrapping_sub(since.load(Relaxed)) & W::MASK > 2 * late;
        if word & Live::<N, W>::SLOW != 0 && is_over(&live.slow_since) {
            // Fast again: no call is paused since the word was last so.
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

    /// Which quarter of the range of sets begins with that of a word, if one does.
    fn entered(word: u64) -> Option<usize> {
        let set = (word & Live::<N, W>::SETS) / Live::<N, W>::SET;
        set.is_multiple_of(Live::<N, W>::QUARTER)
            .then(|| Live::<N, W>::quarter(word))
    }
}

/// A call that has counted itself in.
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

/// Why a limiter's settings have not been changed.
///
/// ```
/// use portcullis_core::{
///     AdjustableBucket, Carry, ChangeError, Rate, Setting, SettingsError, Timestamp,
/// };
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
    /// Another call is changing them or giving back, on another thread or interrupted by this one;
    /// or a call is in the middle of a decision since so many changes ago that one more could not
    /// be told apart. Nothing has changed; try again later.
    Busy,
    /// More is owed than the new settings can express. Nothing has changed; try again later.
    Owes,
    /// The settings do not fit.
    Settings(SettingsError),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str(
                "the settings are being changed, or were changed too often of late: try again later",
            ),
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
pub enum Carry {
    /// As many are available as before, at most the new capacity.
    Keep,
    /// The same share of the capacity is available, to the fraction of a permit. What is owed stays
    /// owed.
    Proportional,
    /// As many are in use as before: what the capacity grows by is available at once, or pays what
    /// is owed; what it shrinks by is taken away, down to nothing available. Less is added where a
    /// change shortly before has left more than that in use: see each limiter's bound.
    Additive,
    /// All of the new capacity is available, and nothing is owed.
    Reset,
}

const _: () = assert!(size_of::<ChangeError>() <= 16);
