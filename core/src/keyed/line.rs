//! Lines of slots for many keys, and how a key gets a slot.
//!
//! State: lines of eight words. The last word is the line's clock, each other one is a slot:
//!
//! ```text
//! bits 63           21   20   19           0
//! +------------------+-------+--------------+
//! |      state       | held  |     tag      |     all 0: vacant
//! +------------------+-------+--------------+     held 0, state 0: claimed, not yet held
//!                                                 held 0, state 1: closed
//!                                                 held 0, any other: frozen
//! ```
//!
//! (With 32-bit words the tag has 11 bits and the state 20.)
//!
//! The tag contains a part of the key's hash and the number of the limit that the slot is for. A
//! key can use two lines. The hash selects the first. The tag and the first line select the second:
//! modulo the number of lines, the sum of the two line numbers is a hash of the tag (as in a cuckoo
//! filter; Fan et al., 2014). So two keys that have the same tag and one line in common have both
//! lines in common, and share one slot, whichever line it is in. Tag and state are in one word, so
//! they change together.
//!
//! A key prefers the first or the last four slots of each line, which the lowest bit of its tag
//! selects. With seven slots, the two overlap. A claim looks there first. So nearly all keys are
//! found by comparing four words: 97 % in a half-full table, and 99.8 % in a table that
//! [`Line::for_keys`] sized. No correctness depends on it: every slot of both lines counts as the
//! key's, and a claim reads all of them again.
//!
//! Transitions: a thread *claims* a slot that is vacant, or whose limiter is indistinguishable from
//! a fresh one (`claimed`). It then reads both lines again, after a sequentially consistent fence.
//! If they contain another slot with the same tag, it *withdraws* (`vacant`); otherwise it *holds*
//! the slot (`held`). While a slot is only claimed, no other thread writes it. A held slot is used
//! by a compare-exchange of the whole word. A claim of a slot that another key holds is also such a
//! compare-exchange, so of a concurrent use and claim one fails. When keys [move](super::moving) to
//! another table, slots are *closed* or *frozen*.
//!
//! In memory that processes share, a thread may be stopped or killed while it claims. There claims
//! are *revocable*: others may vacate or close a slot that is only claimed, and the claim ends by
//! an exchange of its word, which then fails.
//!
//! Invariant: each key holds at most one slot. Of two concurrent claims, each writes before it
//! reads, so at least one sees the other. A claim for a key that already holds a slot sees that
//! slot.
//!
//! A table with several limits for each key needs several words for a key: see
//! [`keyed_list`](super::keyed_list). There an *entry* of 2, 4 or 8 adjacent words replaces the
//! slot, and 2, 4 or 8 adjacent lines replace the line, so that a key still chooses from seven
//! entries in each of two places, or from eight. The first word of an entry is its slot: all of the
//! above holds for it.
//!
//! # Clocks
//!
//! A state is a position in time that wraps in the word. After a long idle time, a limiter at rest
//! looks as if it were in use, or `now` stale. So the words of a line can be read only for a *span*
//! after they are *settled*. The [clock](super::line_clock) of a line says until when:
//!
//! ```text
//!     settled                      clock               now
//!   -----|--------- span ------------|------------------|------>
//!        | calls use the words        | the next call settles them, then moves the clock
//! ```
//!
//! The span is a constant of the table, computed from its rules: the smallest of all limits. It is
//! half of the circle, less what a state in use and two stalenesses cover. If the entries of a
//! table have spare words (3, 5, 6 or 7 limits), the last word of each line is the clock of its
//! words, and a group has eight entries. Otherwise the last word of a group of lines is the clock
//! of all words of the group, and no key holds the last entry. A group has seven entries for any
//! number of limits where keys can [move](super::keyed_list) to a table with another number.
//!
//! Transition: to *settle* is to replace the state of each limiter at rest by the newest state at
//! rest, and then to move the clock, by a compare-exchange. Whether a limiter is at rest is decided
//! by its state and the clock together. They locate the state in time without a wrap, since all
//! states of a line lie in one part of the circle. A limiter that moves or is copied to another
//! line arrives there as that line's settling would leave it.
//!
//! Invariant: *no word is written under a `now` that its clock does not reach.* A call reads the
//! clock before it reads the words that it may write. If the clock has run out, the call settles
//! the words first. So each state in a line lies between the state of a limiter that was just at
//! rest when the line was settled, and the newest one that a call before the clock can write.
//!
//! Why no state is taken for one at rest that is not: a state and a clock that is read after it
//! locate the state at its true time or later, because the clock that the writer of the state has
//! read is no later. So a limiter seems to be at rest later than it is, if anything.
//!
//! Why an exchange does not replace a newer state by chance, if it was written since, with the same
//! bits:
//!
//! - A state that also *looks* as if it were at rest is exchanged directly. No call writes such a
//!   state, unless its timestamp is older by more than the staleness.
//! - Any other is first exchanged for the form of a claimed slot. Then the clock is read again, and
//!   the state judged again. If it was written since, then under a moved clock, which the exchange
//!   makes visible; then the state does not seem to be at rest, and is put back.
//!
//! A thread that settles waits for words that are claimed, but not for ever. If it does not wait
//! long enough, the thread that has claimed one finds the clock moved and puts the state back: then
//! the key may have fewer permits, never more, for at most its staleness and the time to fill. In
//! memory that processes share, a process that is killed between the two exchanges leaves the slot
//! claimed, like a first grant; its limiter was at rest, or a call has written the same bits again
//! since a horizon before.
//!
//! Calls that only read judge a word as it would be after it was settled. A line without a clock
//! (all zeros) has no words yet. A table whose states do not wrap (concurrency limits alone) uses
//! no clock.

use core::hash::{Hash, Hasher};
use core::ops::ControlFlow;

use crate::newer::{cold_path, select_unpredictable};
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::word::{AtomicWord, NativeWord, STATE_AT};

/// How often a slot is read again while it is handed over. So a process that writes it all the time
/// delays no other.
const HAND_OVERS: usize = if cfg!(portcullis_loom) { 4 } else { 1_000 };
/// Slots in a line. Fewer under loom.
pub(crate) const PLACES: usize = if cfg!(portcullis_loom) { 2 } else { 8 };
const HALF: usize = PLACES / 2;

/// Bits of a tag: all bits below the state except the one for `held`.
const TAG_BITS: u32 = STATE_AT - 1;
const HELD: u64 = 1 << TAG_BITS;
const TAG: u64 = HELD - 1;
/// The word of a slot that no call can use, below it the tag of the key that has left it, if any.
const CLOSED: u64 = HELD << 1;

const fn is_closed(word: u64) -> bool {
    word & !TAG == CLOSED
}

const fn is_claimed(word: u64) -> bool {
    word != 0 && word & !TAG == 0
}

/// The last word of a slot whose key is handed over: its word without the bit for `held`, or
/// [`CLOSED`] if it was vacant or claimed. That of a frozen or closed slot is its word.
///
/// A held slot with the state 0 would look claimed: see [`frozen_at_zero`].
const fn frozen(word: u64) -> u64 {
    match Held::of(word) {
        Some(held) if held.state() == 0 => frozen_at_zero(held.tag()),
        Some(_) => word & !HELD,
        None if word >> STATE_AT == 0 => CLOSED,
        None => word,
    }
}

/// The last word of a slot that was held under `tag`, with the state 0: the tag in place of the
/// state. No key has the tag 0, and 1 more than it is not the state of [`CLOSED`].
const fn frozen_at_zero(tag: u64) -> u64 {
    (tag + 1) << STATE_AT
}

/// The word that a slot had before it was frozen, if a key held it.
const fn thawed(word: u64) -> Option<Held> {
    match (word & TAG, word >> STATE_AT) {
        (0, 0 | 1) => None,
        (0, zero) => Some(Held(HELD | (zero - 1) & TAG)),
        _ => Some(Held(word | HELD)),
    }
}

/// A line of a [`Keyed`](crate::Keyed) table: seven slots and a clock in 64 bytes, aligned as a
/// cache line (in 32 bytes on targets without 64-bit atomics). In a
/// [`KeyedArray`](crate::KeyedArray) it has eight slots.
///
/// ```
/// use portcullis_core::keyed::Line;
/// static LINES: [Line; 128] = [const { Line::new() }; 128];
/// assert_eq!(size_of_val(&LINES), 8_192);
/// ```
///
/// **Layout.** A line is an array of eight atomic [`NativeWord`]s and nothing else, so any bits are
/// valid, and all zeros are a line of vacant slots. Lines can therefore lie in memory that several
/// processes map. Damaged words cause wrong decisions, but no undefined behavior.
#[derive(Debug)]
#[cfg_attr(target_has_atomic = "64", repr(C, align(64)))]
#[cfg_attr(not(target_has_atomic = "64"), repr(C, align(32)))]
pub struct Line {
    words: [AtomicWord<NativeWord>; PLACES],
    /// Under loom a line has so few slots that its clock is a word of its own.
    #[cfg(portcullis_loom)]
    clock: AtomicWord<NativeWord>,
}

impl Line {
    const_unless_loom! {
        /// Creates a line of vacant slots.
        ///
        /// ```
        /// # use portcullis_core::keyed::Line;
        /// let lines: Vec<Line> = (0..128).map(|_| Line::new()).collect();
        /// # assert_eq!(lines.len(), 128);
        /// ```
        pub const fn new() -> Self {
            #[cfg(not(portcullis_loom))]
            let words = [const { AtomicWord::new(0) }; PLACES];
            #[cfg(portcullis_loom)]
            let words = core::array::from_fn(|_| AtomicWord::new(0));
            Self {
                words,
                #[cfg(portcullis_loom)]
                clock: AtomicWord::new(0),
            }
        }
    }

    const_unless_loom! {
        /// Creates a line of slots that no key can use, until keys
        /// [move](crate::Keyed::move_to) to its table.
        ///
        /// ```
        /// # use portcullis_core::{Denied, Keyed, Timestamp};
        /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
        /// let table = Keyed::new(ConcurrencyRules::new(3), [Line::closed()], Seed::new());
        /// let denied = table.key("alice").try_acquire_at(Timestamp::ZERO, 1).unwrap_err();
        /// assert!(matches!(denied, Denied::Crowded { .. }));
        /// ```
        #[must_use]
        pub const fn closed() -> Self {
            #[cfg(not(portcullis_loom))]
            let words = [const { AtomicWord::new(CLOSED) }; PLACES];
            #[cfg(portcullis_loom)]
            let words = core::array::from_fn(|_| AtomicWord::new(CLOSED));
            Self {
                words,
                #[cfg(portcullis_loom)]
                clock: AtomicWord::new(CLOSED),
            }
        }
    }

    /// Closes all slots, whatever they contain: see [`closed`](Self::closed). For lines that no
    /// call uses, and to which keys are [handed over](crate::Keyed::hand_over_to) next.
    ///
    /// ```
    /// # use portcullis_core::{Denied, Keyed, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let lines = [Line::new()];
    /// lines[0].close();
    /// let table = Keyed::new(ConcurrencyRules::new(3), lines, Seed::new());
    /// let denied = table.key("alice").try_acquire_at(Timestamp::ZERO, 1).unwrap_err();
    /// assert!(matches!(denied, Denied::Crowded { .. }));
    /// ```
    pub fn close(&self) {
        for word in self.words() {
            word.store(CLOSED, Relaxed);
        }
        #[cfg(portcullis_loom)]
        self.clock.store(CLOSED, Relaxed);
    }

    /// Creates the lines for a table in which `keys` keys are in use at once.
    ///
    /// While `keys` keys or fewer have a slot, a new key finds its 14 slots taken with a
    /// probability of at most 1 in 1,000,000. A key has a slot from its first grant until its
    /// limiter is idle again, plus the table's staleness. Needs the feature `std`.
    ///
    /// # Cost
    ///
    /// Memory: 43 bytes per key, and up to 6 KiB more (half of that on targets without 64-bit
    /// atomics). A denser table needs less: with 16 bytes per key, 1 in 70 new keys finds no slot,
    /// and half full, with 18 bytes, 1 in 210. Create such lines with [`Line::new`].
    ///
    /// ```
    /// # use portcullis_core::keyed::Line;
    /// let lines = Line::for_keys(1_000_000);
    /// assert_eq!(size_of_val(&*lines) / 1_000_000, 43);
    /// ```
    #[cfg(feature = "std")]
    #[must_use]
    pub fn for_keys(keys: usize) -> std::boxed::Box<[Self]> {
        groups_for(keys, Width::ONE)
    }

    /// Returns how many lines [`for_keys`](Self::for_keys) creates, for callers that put them
    /// elsewhere. Needs the feature `std`.
    ///
    /// ```
    /// # use portcullis_core::keyed::Line;
    /// assert_eq!(Line::count_for_keys(1_000), Line::for_keys(1_000).len());
    /// ```
    #[cfg(feature = "std")]
    #[must_use]
    pub fn count_for_keys(keys: usize) -> usize {
        lines_for(keys, Width::ONE)
    }

    /// Creates the lines of a [`KeyedList`](crate::KeyedList) table with `limits` limits, 1 to 8,
    /// in which `keys` keys are in use at once: see [`for_keys`](Self::for_keys). Needs the feature
    /// `std`.
    ///
    /// # Cost
    ///
    /// Memory: that of `for_keys` for 1 limit, 2 times that for 2, 4 times for 3 or 4, and 8 times
    /// for more. That is enough for all [lists](crate::keyed::RuleList) of so many limits; some
    /// need less.
    ///
    /// ```
    /// # use portcullis_core::keyed::Line;
    /// assert_eq!(Line::for_keys_of(1_000, 3).len(), 4 * Line::for_keys(1_000).len());
    /// ```
    #[cfg(feature = "std")]
    #[must_use]
    pub fn for_keys_of(keys: usize, limits: usize) -> std::boxed::Box<[Self]> {
        groups_for(keys, Width::at_least(limits.min(PLACES), true))
    }

    /// Finds the slot that is held under `tag`, in the line with index `line`. Nearly all keys hold
    /// one where they prefer it.
    #[inline]
    fn find(&self, width: Width, line: usize, tag: u64) -> Option<(Entry<'_>, Held)> {
        let preferred = width.preferred(tag);
        match self.find_from(preferred, line, tag) {
            None => {
                cold_path();
                self.find_from(width.entries - HALF - preferred, line, tag)
            }
            found => found,
        }
    }

    /// Finds the slot that is held under `tag`, of the slots of half a line, from `from` on.
    ///
    /// Compares all of them without a branch. The position of a key is unpredictable, and a
    /// mispredicted branch would discard the work that the processor has already begun on the next
    /// request, mainly its hash.
    #[inline(always)]
    fn find_from(&self, from: usize, line: usize, tag: u64) -> Option<(Entry<'_>, Held)> {
        let wanted = HELD | tag;
        let words = self.words.get(from..from + HALF)?;
        let mut place = 0;
        for (nth, word) in words.iter().enumerate().skip(1) {
            let is_wanted = word.load(Relaxed) & (HELD | TAG) == wanted;
            place = select_unpredictable(is_wanted, nth as u64, place);
        }
        let place = place as usize;
        let word = words.get(place)?;
        // Loading this word again is cheaper than selecting its value too.
        let held = Held(word.load(Relaxed));
        let entry = Entry {
            word,
            at: line * PLACES + from + place,
        };
        (held.0 & (HELD | TAG) == wanted).then_some((entry, held))
    }

    #[inline(always)]
    const fn words(&self) -> &[AtomicWord<NativeWord>] {
        &self.words
    }

    /// The clock, if the last word of the line is one.
    #[inline(always)]
    pub(crate) const fn clock(&self) -> &AtomicWord<NativeWord> {
        #[cfg(not(portcullis_loom))]
        let [.., clock] = &self.words;
        #[cfg(portcullis_loom)]
        let clock = &self.clock;
        clock
    }
}

/// The number of words in an entry: 2 to the power of `bits`. And where the clocks are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    bits: u32,
    clocks: Clocks,
    entries: usize,
}

/// The words of a group of lines that are clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clocks {
    None,
    /// The last word of each line.
    OfLines,
    /// The last word of the group.
    OfGroups,
}

/// The entries of a group whose last one has a clock.
const SLOTS: usize = if cfg!(portcullis_loom) {
    PLACES
} else {
    PLACES - 1
};

impl Width {
    /// An entry is a slot.
    pub(crate) const ONE: Self = Self {
        bits: 0,
        clocks: Clocks::OfLines,
        entries: SLOTS,
    };
    /// An entry is a slot, and the state in it does not depend on a clock.
    pub(crate) const WITHOUT_CLOCK: Self = Self {
        bits: 0,
        clocks: Clocks::None,
        entries: PLACES,
    };

    /// An entry is a slot of a line, whose last word is a clock if `has_clock`.
    #[inline(always)]
    const fn of_slots(has_clock: bool) -> Self {
        if has_clock {
            Self::ONE
        } else {
            Self::WITHOUT_CLOCK
        }
    }

    /// The width of entries of at least `words` words, 1 to 8. If keys can move to a table with
    /// another width, groups of all widths have the same entries.
    #[inline(always)]
    pub(crate) const fn at_least(words: usize, can_move: bool) -> Self {
        let bits = usize::BITS - words.saturating_sub(1).leading_zeros();
        // With a spare word, the last word of a line is that of an entry.
        let has_spare = words < 1 << bits;
        Self {
            bits,
            clocks: if has_spare || bits == 0 {
                Clocks::OfLines
            } else {
                Clocks::OfGroups
            },
            entries: if has_spare && !can_move {
                PLACES
            } else {
                SLOTS
            },
        }
    }

    /// How many entries of a group keys can hold.
    #[inline(always)]
    pub(crate) const fn entries(self) -> usize {
        self.entries
    }

    /// How many groups of lines `lines` lines have.
    #[inline(always)]
    pub(crate) const fn groups(self, lines: usize) -> usize {
        lines >> self.bits
    }

    /// How many lines `groups` groups have.
    #[cfg(feature = "std")]
    pub(crate) const fn lines(self, groups: usize) -> usize {
        groups << self.bits
    }

    /// The index of the first entry in the line with index `line`.
    pub(crate) const fn first_of(self, line: usize) -> usize {
        line.saturating_mul(PLACES) >> self.bits
    }

    /// The index of the line that has the entry with index `at`.
    #[inline(always)]
    pub(crate) const fn line_of(self, at: usize) -> usize {
        (at << self.bits) / PLACES
    }

    /// The index of the line with the clock for the entries of the line with index `line`.
    #[inline(always)]
    const fn clock_of(self, line: usize) -> usize {
        match self.clocks {
            Clocks::OfGroups => line | ((1 << self.bits) - 1),
            _ => line,
        }
    }

    /// The first of the lines whose entries have the clock of the line with index `line`.
    const fn first_with_clock_of(self, line: usize) -> usize {
        match self.clocks {
            Clocks::OfGroups => line >> self.bits << self.bits,
            _ => line,
        }
    }

    /// How many entries of a line keys can hold, but for the last line of a group.
    #[inline(always)]
    const fn in_line(self) -> usize {
        if self.bits == 0 {
            self.entries
        } else {
            PLACES >> self.bits
        }
    }

    /// How many entries of a group a key prefers. All of them are in one line: half of its slots if
    /// an entry has one word, otherwise all of its entries.
    #[inline(always)]
    const fn part(self) -> usize {
        if self.bits == 0 {
            HALF
        } else {
            PLACES >> self.bits
        }
    }

    /// The line of a group that keys with `tag` prefer. Each entry is the choice of as many keys,
    /// so a line with fewer entries is the choice of fewer.
    #[inline(always)]
    const fn preferred_line(self, tag: u64) -> usize {
        if self.bits == 0 {
            return 0;
        }
        let choice = ((tag & 0xff) as usize * self.entries) >> 8;
        // A quotient by `PLACES >> bits`, without a division, which could panic.
        choice >> (PLACES.trailing_zeros() - self.bits)
    }

    /// The first entry of a group that keys with `tag` prefer. Of slots, it prefers the first four
    /// or the last four, which overlap if there are seven: so each key has four to choose from.
    #[inline(always)]
    const fn preferred(self, tag: u64) -> usize {
        if self.bits == 0 {
            (tag & 1) as usize * (self.entries - HALF)
        } else {
            self.preferred_line(tag) * self.part()
        }
    }

    /// The entry of a line that a key with `tag` tries as number `nth`. Of slots, those come first
    /// that it prefers.
    #[inline(always)]
    const fn nth(self, nth: usize, tag: u64) -> usize {
        if self.bits == 0 {
            nth.abs_diff((tag & 1) as usize * (self.entries - 1))
        } else {
            nth
        }
    }
}

/// The entry with index `at`, and the words after its first one.
#[inline(always)]
pub(crate) fn entry(lines: &[Line], at: usize, width: Width) -> Option<Entry<'_>> {
    let word = at << width.bits;
    let word = lines.get(word / PLACES)?.words().get(word % PLACES)?;
    Some(Entry { word, at })
}

/// The clock for the entry with index `at`.
#[inline(always)]
pub(crate) fn clock(lines: &[Line], at: usize, width: Width) -> Option<&AtomicWord<NativeWord>> {
    lines
        .get(width.clock_of(width.line_of(at)))
        .map(Line::clock)
}

/// The entries with the clock of the entry with index `at`.
pub(crate) fn entries_with_clock_of(
    lines: &[Line],
    at: usize,
    width: Width,
) -> impl Iterator<Item = Entry<'_>> {
    let last = width.clock_of(width.line_of(at));
    let first = width.first_with_clock_of(last);
    entries_from(lines, width.first_of(first), width)
        .take_while(move |entry| width.line_of(entry.at) <= last)
}

/// All words of the entry with index `at`.
#[inline]
pub(crate) fn words(lines: &[Line], at: usize, width: Width) -> Words<'_> {
    let word = at << width.bits;
    let words = lines.get(word / PLACES).map_or(&[][..], Line::words);
    let words = words.get(word % PLACES..).unwrap_or(&[]);
    Words(words.get(..1 << width.bits).unwrap_or(&[]))
}

/// The lines of a table in which `keys` keys are in use at once, each with an entry of this width.
#[cfg(feature = "std")]
pub(crate) fn groups_for(keys: usize, width: Width) -> std::boxed::Box<[Line]> {
    (0..width.lines(lines_for(keys, width)))
        .map(|_| Line::new())
        .collect()
}

/// The number of groups of lines in which a new key finds no entry with a probability of at most 1
/// in 1,000,000, while `keys` keys have one.
///
/// Found by simulation. With seven entries, a key needs 43/64 of a group; with eight, 17/32. In a
/// small table more keys have two groups that are the same, so each of the first 256 keys needs
/// another three eighths or two eighths.
#[cfg(feature = "std")]
fn lines_for(keys: usize, width: Width) -> usize {
    if keys <= width.entries {
        // One group has room for all of them.
        return 1;
    }
    let (sixty_fourths, eighths) = if width.entries < PLACES {
        (11, 3)
    } else {
        (2, 2)
    };
    let more = keys / 64 * sixty_fourths + (keys % 64 * sixty_fourths).div_ceil(64);
    keys.div_ceil(2) + more + (keys.min(256) * eighths).div_ceil(8)
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

/// All entries with an index of at least `from`.
pub(crate) fn entries_from(
    lines: &[Line],
    from: usize,
    width: Width,
) -> impl Iterator<Item = Entry<'_>> {
    (from..width.groups(lines.len()) * PLACES)
        .filter(move |at| at % PLACES < width.entries())
        .filter_map(move |at| entry(lines, at, width))
}

/// The words of an entry. All of them have the tag of the key that holds the entry, or of one that
/// held it before.
#[derive(Clone, Copy)]
pub(crate) struct Words<'t>(&'t [AtomicWord<NativeWord>]);

impl<'t> Words<'t> {
    /// The word with index `nth`, as a slot of its own.
    #[inline(always)]
    pub(crate) fn get(self, nth: usize) -> Option<Entry<'t>> {
        self.0.get(nth).map(|word| Entry { word, at: nth })
    }
}

/// A slot, and its index in the table.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'t> {
    word: &'t AtomicWord<NativeWord>,
    pub(crate) at: usize,
}

/// The bits below the state in the word of a slot that is held under `tag`.
#[inline(always)]
pub(crate) const fn held_under(tag: u64) -> u64 {
    HELD | tag
}

/// The word of a held slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held(u64);

impl Held {
    pub(crate) const fn new(tag: u64, state: u64) -> Self {
        Self(state << STATE_AT | HELD | tag)
    }

    pub(crate) const fn state(self) -> u64 {
        self.0 >> STATE_AT
    }

    pub(crate) const fn tag(self) -> u64 {
        self.0 & TAG
    }

    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    const fn with(self, state: u64) -> u64 {
        state << STATE_AT | self.0 & (HELD | TAG)
    }

    const fn is_of(self, tag: u64) -> bool {
        self.0 & (HELD | TAG) == HELD | tag
    }

    const fn of(word: u64) -> Option<Self> {
        if word & HELD == 0 {
            None
        } else {
            Some(Self(word))
        }
    }
}

impl<'t> Entry<'t> {
    /// The word, if it is held under `tag`.
    #[inline(always)]
    pub(crate) fn held_as(self, tag: u64) -> Option<Held> {
        let held = Held(self.word.load(Relaxed));
        held.is_of(tag).then_some(held)
    }

    /// The word, and 0 if it is held under `tag`; otherwise any other number.
    #[inline(always)]
    pub(crate) fn word_as(self, tag: u64) -> (u64, u64) {
        let word = self.word.load(Relaxed);
        (word, (word ^ held_under(tag)) & (HELD | TAG))
    }

    /// Exchanges the word, if it is still `from`. As `change`, acquire and release.
    #[inline(always)]
    pub(crate) fn exchange(self, from: u64, to: u64) -> bool {
        self.word
            .compare_exchange_weak(from, to, AcqRel, Relaxed)
            .is_ok()
    }

    /// Gives the word to `tag`, with this state, if `is_free` says for the word's present state
    /// that it may. Returns whether it did.
    pub(crate) fn seize(
        self,
        tag: u64,
        state: u64,
        is_free: impl Fn(Option<Held>) -> bool,
    ) -> bool {
        let mut word = self.word.load(Acquire);
        // A claimed word is being settled: it may be in use.
        while !is_claimed(word) && is_free(Held::of(word)) {
            let seized = state << STATE_AT | HELD | tag;
            match self
                .word
                .compare_exchange_weak(word, seized, AcqRel, Acquire)
            {
                Ok(_) => return true,
                Err(newer) => word = newer,
            }
        }
        false
    }

    #[inline]
    pub(crate) fn held(self) -> Option<Held> {
        // Acquire: pairs with `add`. Earlier uses of the slot happen before its limiter is judged.
        Held::of(self.word.load(Acquire))
    }

    /// Whether the word, as [`held`](Self::held) returns it, satisfies `is`. False if a call has
    /// claimed the word, for example to settle it: it may be in use.
    #[inline]
    pub(crate) fn is_unclaimed_and(self, is: impl FnOnce(Option<Held>) -> bool) -> bool {
        let word = self.word.load(Acquire);
        !is_claimed(word) && is(Held::of(word))
    }

    /// Changes the state, if the word is still `from`. On failure returns the newer word, if the
    /// same key still holds the slot.
    ///
    /// Acquire and release: a thread that takes a permit sees what the permit's former holder wrote
    /// before it released the permit, and permits may also be returned by this method.
    #[inline(always)]
    pub(crate) fn change(self, from: Held, state: u64) -> Result<(), Option<Held>> {
        match self
            .word
            .compare_exchange_weak(from.0, from.with(state), AcqRel, Relaxed)
        {
            Ok(_) => Ok(()),
            Err(newer) => Err(Held::of(newer).filter(|held| held.tag() == from.tag())),
        }
    }

    /// Adds to the state, wrapping. The slot must be in use, so that the same key holds it until
    /// this call ends.
    pub(crate) fn add(self, state: u64) {
        // Release: pairs with `change`, and with the claim of a slot.
        self.word.fetch_add(state << STATE_AT, Release);
    }

    /// Gives the word to `tag`, with this state. Only for a word after a lead that the caller has
    /// claimed, and that no other call has used.
    pub(crate) fn hold_as(self, tag: u64, state: u64) {
        // Relaxed: holding the lead publishes it.
        self.word.store(state << STATE_AT | HELD | tag, Relaxed);
    }

    /// Closes a word after a lead that the caller has closed. Returns the word, if it was held. If
    /// the word stays claimed, by a call that is settling it, calls `lost`.
    pub(crate) fn close(self, lost: impl FnOnce() -> Option<Held>) -> Option<Held> {
        let mut word = self.word.load(Relaxed);
        let mut waits = 0;
        loop {
            if is_claimed(word) && waits < HAND_OVERS {
                waits += 1;
                core::hint::spin_loop();
                word = self.word.load(Relaxed);
                continue;
            }
            // Relaxed: the lead orders. All grants that the closed lead contains are in this word.
            match self
                .word
                .compare_exchange_weak(word, CLOSED, Relaxed, Relaxed)
            {
                Ok(_) if is_claimed(word) => return lost(),
                Ok(_) => return Held::of(word),
                Err(newer) => word = newer,
            }
        }
    }

    /// Moves the key of this slot to the closed slot `to` of another table, with the state that
    /// `convert` returns, and closes this slot: see [`moving`](super::moving). Returns `false` if a
    /// claim of this slot is under way, or if `is_busy`.
    pub(crate) fn move_to(
        self,
        to: Self,
        is_busy: impl Fn(Held) -> bool,
        convert: impl FnOnce(Held) -> u64,
    ) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            if is_closed(word) {
                return true;
            }
            let held = Held::of(word);
            if held.map_or(word != 0, &is_busy) {
                return false;
            }
            if let Some(held) = held {
                // Before the slot is closed: from then on, no other slot of this table may be
                // claimed for the key. Relaxed: the exchange below publishes it.
                to.word.store(held.tag(), Relaxed);
            }
            // Release: pairs with the fence in `confirm`. A claim for the key in the other table,
            // which a thread makes only if it has read the closed slot, sees the store above.
            // Acquire: pairs with `add`. `convert` sees what calls did to the slot's limiter.
            match self
                .word
                .compare_exchange_weak(word, word & TAG | CLOSED, AcqRel, Relaxed)
            {
                Ok(_) => break,
                Err(newer) => word = newer,
            }
        }
        match Held::of(word) {
            Some(held) => {
                let claimed = Claimed {
                    entry: to,
                    tag: held.tag(),
                    claims: Claims::Own,
                };
                let _its_own = claimed.hold(convert(held));
            }
            // Relaxed: a key that has moved reads nothing but this word.
            None => to.word.store(0, Relaxed),
        }
        true
    }

    /// Hands the key of this slot over to the closed slot `to` of a table that no call uses yet,
    /// with the state that `convert` returns, and freezes this slot: see [`moving`](super::moving).
    /// A claim that is under way is revoked. Returns `false` if the slot changed each time.
    pub(crate) fn hand_over(self, to: Self, convert: impl FnOnce(Held) -> u64) -> bool {
        // Acquire: pairs with the release of earlier uses.
        let mut word = self.word.load(Acquire);
        for _ in 0..HAND_OVERS {
            let last = frozen(word);
            let is_last = last == word
                || self
                    .word
                    .compare_exchange_weak(word, last, AcqRel, Acquire)
                    .inspect_err(|&newer| word = newer)
                    .is_ok();
            if is_last {
                let handed = thawed(last).map_or(0, |held| held.with(convert(held)));
                // Once: a later process, also after uses of the slot, finds it open. Relaxed: the
                // process that puts the other table in force publishes it.
                let _was_closed = to.word.replace(CLOSED, handed, Relaxed);
                return true;
            }
        }
        false
    }

    /// Settles the word: if its limiter is at rest, it gets the newest state at rest. Returns
    /// `false` if the word is claimed, so that another call may be settling it.
    ///
    /// `rested` returns that state. Given no time, it judges the state as it looks now; given the
    /// time of the line's clock, it judges by that. `clock` reads the clock; it returns `None` if
    /// the clock is ahead of this call.
    pub(crate) fn settle(
        self,
        claims: Claims,
        rested: impl Fn(Held, Option<Timestamp>) -> Option<u64>,
        clock: impl Fn() -> Option<Timestamp>,
    ) -> bool {
        let mut word = self.word.load(Acquire);
        loop {
            let Some(held) = Held::of(word) else {
                return !is_claimed(word);
            };
            let tag = held.tag();
            if let Some(state) = rested(held, None) {
                // No call can have written this word since the clock was read, unless its timestamp
                // is newer than `now` by more than a staleness.
                match self
                    .word
                    .compare_exchange_weak(word, held.with(state), AcqRel, Acquire)
                {
                    Ok(_) => return true,
                    Err(newer) => word = newer,
                }
                continue;
            }
            let rested_by = |clock: Option<Timestamp>| rested(held, Some(clock?));
            if rested_by(clock()).is_none() {
                return true;
            }
            // At rest, though it does not look so; or so it was when the clock was read. Acquire:
            // if a call has written the same word since, the clock that this call saw is visible.
            match self.word.compare_exchange_weak(word, tag, AcqRel, Acquire) {
                Ok(_) => {
                    let state = rested_by(clock()).unwrap_or(held.state());
                    let entry = self;
                    let _its_own = Claimed { entry, tag, claims }.hold(state);
                    return true;
                }
                Err(newer) => word = newer,
            }
        }
    }

    /// Whether the word is held or claimed for `tag`.
    pub(crate) fn is_for(self, tag: u64) -> bool {
        let word = self.word.load(Relaxed);
        word == tag || Held(word).is_of(tag)
    }

    /// Whether a call has claimed the word.
    pub(crate) fn is_claimed(self) -> bool {
        is_claimed(self.word.load(Relaxed))
    }

    /// Claims the slot for the key that holds it, so that it can be vacated, if `is_forgettable`
    /// says so for its word.
    pub(crate) fn claim_if(self, is_forgettable: impl Fn(Held) -> bool) -> Option<Swept<'t>> {
        let held = self.held()?;
        // Acquire: what is written under the claim comes after it.
        let claimed = is_forgettable(held)
            && self
                .word
                .compare_exchange_weak(held.0, held.tag(), Acquire, Relaxed)
                .is_ok();
        claimed.then_some(Swept(self))
    }

    /// As [`held`](Self::held), if it is held under `tag`, after a call has settled the word that
    /// is settling it.
    pub(crate) fn held_when_settled(self, tag: u64) -> Option<Held> {
        for _ in 0..HAND_OVERS {
            if !self.is_claimed() {
                break;
            }
            core::hint::spin_loop();
        }
        self.held().filter(|held| held.tag() == tag)
    }

    /// The word, if no key holds the slot and it is not vacant.
    pub(crate) fn unheld(self) -> Option<u64> {
        let word = self.word.load(Relaxed);
        (word != 0 && Held::of(word).is_none()).then_some(word)
    }

    /// Vacates the slot if its word is still `from`. Returns whether it did.
    pub(crate) fn vacate_from(self, from: u64) -> bool {
        // Relaxed: see `vacate_if`.
        let vacated = self.word.compare_exchange_weak(from, 0, Relaxed, Relaxed);
        vacated.is_ok()
    }

    /// Vacates the slot if it is held, and `is_forgettable` says so for its word.
    pub(crate) fn vacate_if(self, is_forgettable: impl Fn(Held) -> bool) -> bool {
        let vacate = |from: Held| {
            let exchanged = self.word.compare_exchange_weak(from.0, 0, Relaxed, Relaxed);
            exchanged.is_ok()
        };
        self.held()
            .is_some_and(|held| is_forgettable(held) && vacate(held))
    }
}

/// A slot that is claimed to be vacated.
#[must_use]
pub(crate) struct Swept<'t>(Entry<'t>);

impl Swept<'_> {
    /// Vacates the slot.
    pub(crate) fn vacate(self) {
        // Release: what was written under the claim comes before the next one.
        self.0.word.store(0, Release);
    }
}

/// The address of a key's limiter in its table: the lines that its slot can be in, and the tag that
/// identifies it. [`TableKey::address`](crate::keyed::TableKey::address) returns it.
///
/// An address contains neither the key nor the table. Two keys with equal addresses share a slot.
///
/// ```
/// use portcullis_core::{Keyed, Timestamp};
/// use portcullis_core::keyed::{ConcurrencyRules, TableKey, Line, Seed};
/// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
/// let alice = table.key("alice").address();
/// let _held = TableKey::at(&table, alice).try_acquire_at(Timestamp::ZERO, 1)?;
/// assert_eq!(alice, table.key("alice").address());
/// assert_ne!(alice, table.key("bob").address());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Address {
    first: usize,
    tag: u64,
    lines: usize,
}

/// The result of a search for a key's slot.
pub(crate) enum Found<'t> {
    Held(Entry<'t>, Held),
    /// Another thread is claiming a slot for the key at this moment.
    Claimed,
    Nothing,
}

/// The result of a claim.
pub(crate) enum Claim<'t> {
    /// A slot, and the former key's word in it.
    Made(Claimed<'t>, Option<Held>),
    /// Another thread has claimed a slot for the same key.
    Raced,
    /// All slots are in use.
    Full,
}

/// Whether others may end a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claims {
    /// None. Only the claiming thread writes the slot.
    Own,
    /// They may vacate or close the slot.
    Revocable,
}

/// A claimed slot. No other thread writes it, unless claims are revocable.
#[must_use]
pub(crate) struct Claimed<'t> {
    pub(crate) entry: Entry<'t>,
    tag: u64,
    claims: Claims,
}

impl Claimed<'_> {
    /// Holds the slot. Returns `false` if the claim was revoked.
    #[inline(always)]
    pub(crate) fn hold(self, state: u64) -> bool {
        let held = state << STATE_AT | HELD | self.tag;
        // Release: a thread that acquires this word also sees what the claim acquired from the
        // former holder.
        match self.claims {
            Claims::Own => {
                self.entry.word.store(held, Release);
                true
            }
            Claims::Revocable => self.end(held),
        }
    }

    pub(crate) fn withdraw(self) {
        // Relaxed: the fence in `confirm` precedes this store, and publishes what the claim
        // acquired.
        match self.claims {
            Claims::Own => self.entry.word.store(0, Relaxed),
            Claims::Revocable => _ = self.end(0),
        }
    }

    /// Ends a claim that others may have ended.
    #[inline(always)]
    fn end(&self, word: u64) -> bool {
        self.entry.word.replace(self.tag, word, Release)
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.tag == other.tag && (self.first == other.first || self.second() == other.first)
    }
}

impl Eq for Address {}

/// Addresses of one table can be keys of a set or a map.
impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.identity());
    }
}

impl Address {
    /// Returns the number of a group, less than `groups`, for callers that keep something for each
    /// key. Equal addresses have the same group.
    ///
    /// # Panics
    ///
    /// If `groups` is 0.
    ///
    /// ```
    /// # use portcullis_core::Keyed;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
    /// assert!(table.key("alice").address().group(32) < 32);
    /// ```
    pub const fn group(&self, groups: usize) -> usize {
        self.tag as usize % groups
    }

    /// The address for `hash` in a table of `lines` lines.
    #[inline]
    pub(crate) const fn new(hash: u64, lines: usize) -> Self {
        let fingerprint = hash & TAG;
        Self {
            first: pick(hash, lines),
            // No tag is 0.
            tag: if fingerprint == 0 { 1 } else { fingerprint },
            lines,
        }
    }

    /// The second line. Few keys need it, so it is computed on demand.
    const fn second(&self) -> usize {
        let sum = pick(self.tag.wrapping_mul(MIX), self.lines);
        if sum >= self.first {
            sum - self.first
        } else {
            sum + self.lines - self.first
        }
    }

    pub(crate) const fn tag(&self) -> u64 {
        self.tag
    }

    /// A number that is equal for two keys of a table if and only if their addresses are equal. Its
    /// highest bit is clear, because a table has fewer than 2^43 lines.
    pub(crate) const fn identity(&self) -> u64 {
        let second = self.second();
        let line = if self.first < second {
            self.first
        } else {
            second
        };
        self.tag | (line as u64) << TAG_BITS
    }

    /// Calls `visit` with the entries that the key can use, until it breaks. In each group of
    /// lines, those that the key prefers come first.
    #[inline(always)]
    fn visit<'t, B>(
        &self,
        lines: &'t [Line],
        width: Width,
        mut visit: impl FnMut(Entry<'t>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let second = self.second();
        let both = [self.first, second];
        let groups = if second == self.first {
            &both[..1]
        } else {
            &both[..]
        };
        for &group in groups {
            let lines = lines.get(group << width.bits..).unwrap_or(&[]);
            for nth in 0..1 << width.bits {
                let line = nth ^ width.preferred_line(self.tag);
                let words = lines.get(line).map_or(&[][..], Line::words);
                let first = line * (PLACES >> width.bits);
                let count = width.in_line().min(width.entries.saturating_sub(first));
                for nth in 0..count {
                    let place = width.nth(nth, self.tag);
                    if let Some(word) = words.get(place << width.bits) {
                        let at = group * PLACES + first + place;
                        visit(Entry { word, at })?;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// The index of an entry in the line where the key prefers its entry.
    #[inline(always)]
    pub(crate) const fn preferred(&self, width: Width) -> usize {
        self.first * PLACES + width.preferred(self.tag)
    }

    /// Finds the entry of the key and its first word, if it is where the key prefers it. See
    /// `Line::find_in`.
    #[inline(always)]
    pub(crate) fn find_preferred<'t>(
        &self,
        lines: &'t [Line],
        width: Width,
    ) -> Option<(Words<'t>, Held)> {
        let word = self.preferred(width) << width.bits;
        let line = lines.get(word / PLACES)?.words();
        let is_wanted = |nth: usize| {
            line.get(word % PLACES + (nth << width.bits))
                .is_some_and(|word| Held(word.load(Relaxed)).is_of(self.tag))
        };
        let mut place = 0;
        for nth in 1..width.part() {
            place = select_unpredictable(is_wanted(nth), nth as u64, place);
        }
        let from = word % PLACES + ((place as usize) << width.bits);
        let words = Words(line.get(from..)?.get(..1 << width.bits)?);
        Some((words, words.get(0)?.held_as(self.tag)?))
    }

    /// The line in which nearly all keys hold a slot.
    #[inline(always)]
    pub(crate) fn near<'t>(&self, lines: &'t [Line]) -> Option<&'t Line> {
        lines.get(self.first)
    }

    /// Finds the slot that the key holds in the line that is [near](Self::near).
    #[inline(always)]
    pub(crate) fn find_in<'t>(&self, line: &'t Line, width: Width) -> Option<(Entry<'t>, Held)> {
        line.find(width, self.first, self.tag)
    }

    /// Finds the slot of the key. Reads the second line only if the key holds no slot in the first.
    #[inline(always)]
    pub(crate) fn find<'t>(&self, lines: &'t [Line], width: Width) -> Found<'t> {
        match width.clocks {
            Clocks::None => self.find_slot::<false>(lines),
            _ => self.find_slot::<true>(lines),
        }
    }

    /// As [`find`](Self::find), for a width that the compiler knows: without a clock or with one.
    #[inline(always)]
    fn find_slot<'t, const HAS_CLOCK: bool>(&self, lines: &'t [Line]) -> Found<'t> {
        let width = Width::of_slots(HAS_CLOCK);
        match self.near(lines).and_then(|line| self.find_in(line, width)) {
            Some((entry, held)) => Found::Held(entry, held),
            None => self.find_far::<HAS_CLOCK>(lines),
        }
    }

    /// Finds the slot of the key if it is not in the line that is [near](Self::near).
    #[cold]
    fn find_far<'t, const HAS_CLOCK: bool>(&self, lines: &'t [Line]) -> Found<'t> {
        let width = Width::of_slots(HAS_CLOCK);
        let second = self.second();
        let far = lines.get(second);
        match far.and_then(|line| line.find(width, second, self.tag)) {
            Some((entry, held)) => Found::Held(entry, held),
            None => self.search_for(lines, width),
        }
    }

    /// Whether the key has moved to another table: see [`moving`](super::moving).
    pub(crate) fn has_moved(&self, lines: &[Line], width: Width) -> bool {
        let mut are_closed = true;
        let moved = self.visit(lines, width, |entry| {
            // Relaxed: the fence of a claim in the other table follows. See `Entry::move_to`.
            let word = entry.word.load(Relaxed);
            if word == self.tag | CLOSED {
                return ControlFlow::Break(());
            }
            are_closed &= is_closed(word);
            ControlFlow::Continue(())
        });
        moved.is_break() || are_closed
    }

    /// Searches everywhere for an entry that is held or claimed.
    #[cold]
    pub(crate) fn search<'t>(&self, lines: &'t [Line], width: Width) -> Found<'t> {
        self.search_for(lines, width)
    }

    /// Finds an entry that is held or claimed for the key, and that satisfies `is`.
    #[cold]
    pub(crate) fn find_if<'t>(
        &self,
        lines: &'t [Line],
        width: Width,
        is: impl Fn(Entry<'t>) -> bool,
    ) -> Option<Entry<'t>> {
        let found = self.visit(lines, width, |entry| {
            if entry.is_for(self.tag) && is(entry) {
                return ControlFlow::Break(entry);
            }
            ControlFlow::Continue(())
        });
        found.break_value()
    }

    #[inline(always)]
    fn search_for<'t>(&self, lines: &'t [Line], width: Width) -> Found<'t> {
        let mut found = Found::Nothing;
        let second = self.second();
        let both = [self.first, second];
        let groups = if second == self.first {
            &both[..1]
        } else {
            &both[..]
        };
        for &group in groups {
            let first = group << width.bits;
            let group = lines.get(first..first + (1 << width.bits)).unwrap_or(&[]);
            for (nth, line) in group.iter().enumerate() {
                // Not the clock, whose low bits could look like a tag.
                for place in 0..width.in_line() {
                    let place = place << width.bits;
                    let Some(word) = line.words().get(place) else {
                        break;
                    };
                    let seen = word.load(Relaxed);
                    if seen & TAG != self.tag {
                        continue;
                    }
                    let at = ((first + nth) * PLACES + place) >> width.bits;
                    match Held::of(seen) {
                        Some(held) => return Found::Held(Entry { word, at }, held),
                        // Keep searching: the claim may be about to be withdrawn, because the key
                        // holds another slot.
                        None => found = Found::Claimed,
                    }
                }
            }
        }
        found
    }

    /// Whether a claim would find a slot.
    #[inline(always)]
    pub(crate) fn has_room(
        &self,
        lines: &[Line],
        width: Width,
        is_free: impl Fn(usize, Option<Held>) -> bool,
    ) -> bool {
        let visited = self.visit(lines, width, |entry| {
            if may_be_claimed(entry.at, entry.word.load(Relaxed), &is_free) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        visited.is_break()
    }

    /// Claims a slot that is free (vacant or held), in the first line if possible, otherwise in the
    /// second. `settle` is called for each entry before `is_free` judges it. Inlined, so that a
    /// table with one word for each entry pays nothing for the width.
    #[inline(always)]
    pub(crate) fn claim<'t>(
        &self,
        lines: &'t [Line],
        (width, claims): (Width, Claims),
        settle: impl Fn(usize),
        is_free: impl Fn(usize, Option<Held>) -> bool,
    ) -> Claim<'t> {
        let claimed = self.visit(lines, width, |entry| {
            settle(entry.at);
            // Acquire: pairs with `add`. Earlier uses of the slot happen before it is judged.
            let mut word = entry.word.load(Acquire);
            while may_be_claimed(entry.at, word, &is_free) {
                // Relaxed: the fence in `confirm` follows.
                match entry
                    .word
                    .compare_exchange_weak(word, self.tag, Relaxed, Acquire)
                {
                    Ok(_) => return ControlFlow::Break((entry, Held::of(word))),
                    Err(newer) => word = newer,
                }
            }
            ControlFlow::Continue(())
        });
        match claimed {
            ControlFlow::Break((entry, replaced)) => {
                let tag = self.tag;
                let claimed = Claimed { entry, tag, claims };
                self.confirm(lines, width, claimed, replaced)
            }
            ControlFlow::Continue(()) => Claim::Full,
        }
    }

    #[inline(always)]
    fn confirm<'t>(
        &self,
        lines: &'t [Line],
        width: Width,
        claimed: Claimed<'t>,
        replaced: Option<Held>,
    ) -> Claim<'t> {
        // Of two concurrent claims, at least one reads what the other wrote before the fence.
        fence(SeqCst);
        let other = self.visit(lines, width, |entry| {
            if entry.at != claimed.entry.at && entry.word.load(Acquire) & TAG == self.tag {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        let is_raced = other.is_break()
            || claimed.claims == Claims::Revocable && self.is_frozen_at_zero(lines, width);
        if is_raced {
            claimed.withdraw();
            return Claim::Raced;
        }
        Claim::Made(claimed, replaced)
    }

    /// Whether the key was handed over with the state 0: its slot does not show the tag.
    #[inline(always)]
    fn is_frozen_at_zero(&self, lines: &[Line], width: Width) -> bool {
        let visited = self.visit(lines, width, |entry| {
            if entry.word.load(Relaxed) == frozen_at_zero(self.tag) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        visited.is_break()
    }
}

fn may_be_claimed(at: usize, word: u64, is_free: impl Fn(usize, Option<Held>) -> bool) -> bool {
    let held = Held::of(word);
    (word == 0 || held.is_some()) && is_free(at, held)
}

/// Moves the bits of a tag up: an odd number near 2^64 divided by the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Maps the upper half of a hash to one of `lines` lines. A multiplication maps to a range of any
/// size (Lemire, "Fast random integer generation in an interval", 2019).
const fn pick(hash: u64, lines: usize) -> usize {
    (((hash >> 32) * (lines as u64 & 0xffff_ffff)) >> 32) as usize
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;
    use crate::word::{KeyedWord, Word};

    /// Also holds for a table with more lines than would fit beside the tag in 32 bits.
    #[test]
    fn identities_are_equal_if_and_only_if_addresses_are_equal() {
        let lines = 1 << 20;
        let addresses: [Address; 600] = core::array::from_fn(|nth| {
            let nth = nth as u64;
            Address::new(nth.wrapping_mul(MIX) & !TAG | (1 + nth % 2), lines)
        });
        for (nth, one) in addresses.iter().enumerate() {
            for other in &addresses[nth..] {
                assert_eq!(
                    one == other,
                    one.identity() == other.identity(),
                    "{one:?} and {other:?}"
                );
            }
            let moved = Address {
                first: one.second(),
                ..*one
            };
            assert_eq!((moved == *one, moved.identity()), (true, one.identity()));
        }
        let ahead = |hash| Address::new(hash, lines).identity() >> TAG_BITS;
        let highest = (0..64).map(|nth: u64| ahead(nth << 58 | 1)).max();
        assert!(
            highest > Some(u64::from(u32::MAX >> TAG_BITS)),
            "the identities must need more bits than a 32-bit target has"
        );
    }

    #[test]
    fn a_frozen_slot_has_the_tag_and_the_state_of_a_held_one_and_stays_as_it_is() {
        let states = [0, 1, 2, 3, TAG, TAG + 1, u64::MAX >> STATE_AT];
        for tag in [1, 2, 3, TAG - 1, TAG] {
            for state in states.map(|state| state & KeyedWord::MASK) {
                let held = state << STATE_AT | held_under(tag);
                let last = frozen(held);
                assert_eq!(thawed(last), Held::of(held), "{held:x}");
                assert_eq!((frozen(last), Held::of(last)), (last, None));
                assert!(last != 0 && last != CLOSED && last >> STATE_AT != 0);
                assert!(last & TAG == tag || last == frozen_at_zero(tag));
            }
            assert_eq!(frozen(tag), CLOSED, "a claim is revoked");
        }
        assert_eq!((frozen(0), frozen(CLOSED)), (CLOSED, CLOSED));
        assert_eq!((thawed(0), thawed(CLOSED)), (None, None));
    }

    #[test]
    fn a_clock_is_not_taken_for_a_claim() {
        // The low bits of a 32-bit clock can be those of any tag.
        let (lines, address) = ([Line::new()], Address::new(5, 1));
        lines[0].clock().store(address.tag(), Relaxed);
        let found = |width| address.find(&lines, width);
        assert!(matches!(found(Width::ONE), Found::Nothing));
        assert!(matches!(found(Width::WITHOUT_CLOCK), Found::Claimed));
    }

    /// The shares that the documentation of `KeyedList` states.
    #[cfg(feature = "std")]
    #[test]
    fn most_keys_have_their_entry_where_they_prefer_it() {
        const GROUPS: usize = 20_000;
        let per_mille = |width: Width| {
            // Half of the entries.
            let keys = GROUPS * width.entries() / 2;
            let lines: std::vec::Vec<Line> =
                (0..GROUPS << width.bits).map(|_| Line::new()).collect();
            let mut hash = 1_u64;
            let addresses = core::iter::repeat_with(|| {
                hash = (hash ^ hash >> 29).wrapping_mul(MIX).wrapping_add(MIX);
                Address::new(hash ^ hash >> 32, GROUPS)
            });
            let addresses: std::vec::Vec<Address> = addresses.take(keys).collect();
            for address in &addresses {
                let is_vacant = |_: usize, held: Option<Held>| held.is_none();
                let claim = address.claim(&lines, (width, Claims::Own), |_| {}, is_vacant);
                if let Claim::Made(claimed, _) = claim {
                    assert!(claimed.hold(0));
                }
            }
            let preferred = addresses
                .iter()
                .filter(|address| address.find_preferred(&lines, width).is_some());
            preferred.count() * 1_000 / keys
        };
        for (words, stated) in [(1, 969), (2, 949), (3, 882), (4, 865), (5, 750), (8, 751)] {
            let per_mille = per_mille(Width::at_least(words, false));
            assert!(
                per_mille.abs_diff(stated) <= 5,
                "entries of {words} words: {per_mille} in 1,000"
            );
        }
    }
}
