//! Lines of entries for many keys, and how a key comes by an entry of its own.
//!
//! State: lines of eight words, each an entry:
//!
//! ```text
//! bits 63           21   20   19           0
//! +------------------+-------+--------------+
//! |      state       | held  |     tag      |     all 0: vacant
//! +------------------+-------+--------------+     held 0: claimed, not yet held
//! ```
//!
//! (Of a word of 32 bits the tag has 11, and the state 20.)
//!
//! The tag is a part of the key's hash, and says which limit the entry is for; the hash names a
//! line that the entry may lie in, and line and tag name the other: the two lines' numbers add up
//! to what the tag stands for (as in a cuckoo filter; Fan et al., 2014). So two keys that have a
//! tag and a line in common have both lines in common, and share an entry wherever it lies. Tag and
//! state change together, in one word.
//!
//! Transitions: *claim* an entry that is vacant or that nobody can tell from a vacant one
//! (`claimed`); read both lines again, behind a sequentially consistent fence; *withdraw* if they
//! show another entry with the same tag (`vacant`), else *hold* (`held`). While it is only claimed,
//! nobody else writes an entry. An entry that is held is used by compare-exchange of the whole
//! word, and so is one that is claimed from its former holder: of the two, one fails.
//!
//! Invariant: of the entries of a key at most one is held. Two that claim at once each write before
//! they read, so at least one sees the other; one that claims when another holds sees it.

use core::iter;

use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, NativeWord, STATE_AT};

/// Entries in a line. Under loom, fewer.
pub(crate) const PLACES: usize = if cfg!(loom) { 2 } else { 8 };

/// Bits of a tag: those below the state but one.
const TAG_BITS: u32 = STATE_AT - 1;
const HELD: u64 = 1 << TAG_BITS;
const TAG: u64 = HELD - 1;

/// A line of a [`Keyed`](crate::Keyed) table: room for eight keys, in 64 bytes, aligned as a cache
/// line; in 32 on targets without 64-bit atomics.
///
/// ```
/// use portcullis_core::Line;
/// static LINES: [Line; 128] = [const { Line::new() }; 128];
/// assert_eq!(size_of_val(&LINES), 8_192);
/// ```
#[derive(Debug)]
#[cfg_attr(target_has_atomic = "64", repr(align(64)))]
#[cfg_attr(not(target_has_atomic = "64"), repr(align(32)))]
pub struct Line {
    entries: [AtomicWord<NativeWord>; PLACES],
}

impl Line {
    const_unless_loom! {
        /// A line without a key.
        ///
        /// ```
        /// # use portcullis_core::Line;
        /// let lines: Vec<Line> = (0..128).map(|_| Line::new()).collect();
        /// # assert_eq!(lines.len(), 128);
        /// ```
        pub const fn new() -> Self {
            #[cfg(not(loom))]
            let entries = [const { AtomicWord::new(0) }; PLACES];
            #[cfg(loom)]
            let entries = core::array::from_fn(|_| AtomicWord::new(0));
            Self { entries }
        }
    }

    /// Lines for so many keys in use at once, half full then: 16 bytes a key (8 on targets without
    /// 64-bit atomics). At that, more than 99.9 % of keys find an entry.
    ///
    /// ```
    /// # use portcullis_core::Line;
    /// let lines = Line::for_keys(1_000_000);
    /// assert_eq!(size_of_val(&*lines), 16_000_000);
    /// ```
    #[cfg(feature = "std")]
    #[must_use]
    pub fn for_keys(keys: usize) -> std::boxed::Box<[Self]> {
        (0..keys.div_ceil(PLACES / 2).max(1))
            .map(|_| Self::new())
            .collect()
    }

    /// The entry that is held under `tag`, in the line number `line`.
    ///
    /// Looks at all places without a branch. Where a key lies no processor can foresee, and one
    /// that goes astray there loses what it has done of the next request meanwhile, most of all its
    /// hash.
    #[inline]
    fn find(&self, line: usize, tag: u64) -> Option<(Entry<'_>, Held)> {
        let wanted = HELD | tag;
        let mut places = 0_u32;
        for (place, word) in self.entries.iter().enumerate() {
            places |= u32::from(word.load(Relaxed) & (HELD | TAG) == wanted) << place;
        }
        let place = places.trailing_zeros() as usize;
        let word = self.entries.get(place)?;
        // Once more, rather than to keep all eight.
        let held = Held(word.load(Relaxed));
        let entry = Entry {
            word,
            at: line * PLACES + place,
        };
        (held.0 & (HELD | TAG) == wanted).then_some((entry, held))
    }

    /// The entries of the line number `line`.
    #[inline]
    pub(crate) fn entries(&self, line: usize) -> impl Iterator<Item = Entry<'_>> {
        self.entries
            .iter()
            .enumerate()
            .map(move |(place, word)| Entry {
                word,
                at: line * PLACES + place,
            })
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

/// The entries of all `lines`.
pub(crate) fn entries(lines: &[Line]) -> impl Iterator<Item = Entry<'_>> {
    lines
        .iter()
        .enumerate()
        .flat_map(|(at, line)| line.entries(at))
}

/// One entry, and where in the table it lies.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'t> {
    word: &'t AtomicWord<NativeWord>,
    pub(crate) at: usize,
}

/// A word of an entry that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held(u64);

impl Held {
    pub(crate) const fn state(self) -> u64 {
        self.0 >> STATE_AT
    }

    pub(crate) const fn tag(self) -> u64 {
        self.0 & TAG
    }

    const fn with(self, state: u64) -> u64 {
        state << STATE_AT | self.0 & (HELD | TAG)
    }

    const fn of(word: u64) -> Option<Self> {
        if word & HELD == 0 {
            None
        } else {
            Some(Self(word))
        }
    }
}

impl Entry<'_> {
    #[inline]
    pub(crate) fn held(self) -> Option<Held> {
        // Acquire: pairs with `add`; what was done in the use of an entry comes before its limiter
        // is judged.
        Held::of(self.word.load(Acquire))
    }

    /// Changes the state from what was read.
    ///
    /// Acquire: who takes a permit sees what its former holder wrote before `release`, or before
    /// this, by which permits may be given back as well.
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

    /// Adds to the state, wrapping, of an entry that is in use, and so held by the same key for as
    /// long.
    pub(crate) fn add(self, state: u64) {
        // Release: pairs with `change`, and with the claim of an entry.
        self.word.fetch_add(state << STATE_AT, Release);
    }

    /// Makes an entry vacant that is as it was read.
    pub(crate) fn vacate(self, from: Held) -> bool {
        self.word
            .compare_exchange_weak(from.0, 0, Relaxed, Relaxed)
            .is_ok()
    }
}

/// Where a key's entry may lie, and what it is known by: of a table, from
/// [`Key::address`](crate::Key::address). It keeps neither the key nor the table; two that are
/// equal share an entry.
///
/// ```
/// use portcullis_core::{ConcurrencyRules, Key, Keyed, Line, Seed, Timestamp};
/// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
/// let alice = table.key("alice").address();
/// let _held = Key::at(&table, alice).try_acquire_at(Timestamp::ZERO, 1)?;
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

/// What is there for a key.
pub(crate) enum Found<'t> {
    Held(Entry<'t>, Held),
    /// Somebody claims an entry for it at this moment.
    Claimed,
    Nothing,
}

/// What came of a claim.
pub(crate) enum Claim<'t> {
    /// An entry, and what another key had there.
    Made(Claimed<'t>, Option<Held>),
    /// Somebody else has claimed one for the same key.
    Raced,
    /// All entries are in use.
    Full,
}

/// An entry that is claimed, and written by nobody else.
#[must_use]
pub(crate) struct Claimed<'t> {
    pub(crate) entry: Entry<'t>,
    tag: u64,
}

impl Claimed<'_> {
    pub(crate) fn hold(self, state: u64) {
        // Release: what the claim has read of the former holder's permits comes before.
        self.entry
            .word
            .store(state << STATE_AT | HELD | self.tag, Release);
    }

    pub(crate) fn withdraw(self) {
        // Relaxed: the fence in `confirm` comes before, and passes on what the claim has read.
        self.entry.word.store(0, Relaxed);
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.tag == other.tag && (self.first == other.first || self.second() == other.first)
    }
}

impl Eq for Address {}

impl Address {
    /// The number of a group, of `groups`, for those who keep something for each key: equal
    /// addresses are in the same one.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
    /// assert!(table.key("alice").address().group(32) < 32);
    /// ```
    pub const fn group(&self, groups: usize) -> usize {
        self.tag as usize % groups
    }

    /// The two of `lines` lines that `hash` names, and its tag under the limit `limit` of those
    /// that `limit_bits` tell apart.
    #[inline]
    pub(crate) const fn new(hash: u64, lines: usize, limit: usize, limit_bits: u32) -> Self {
        let fingerprint = hash & TAG >> limit_bits;
        // No tag is 0.
        let fingerprint = if fingerprint == 0 { 1 } else { fingerprint };
        let tag = (limit as u64) << (TAG_BITS - limit_bits) | fingerprint;
        Self {
            first: pick(hash, lines),
            tag,
            lines,
        }
    }

    /// The other line. Few keys need it, so it is computed for those.
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

    /// The limit that a tag is for.
    pub(crate) const fn limit(tag: u64, limit_bits: u32) -> usize {
        (tag >> (TAG_BITS - limit_bits)) as usize
    }

    /// What tells two keys of a table apart that do not share an entry. A table has fewer than 2^43
    /// lines.
    pub(crate) const fn identity(&self) -> u64 {
        let second = self.second();
        let line = if self.first < second {
            self.first
        } else {
            second
        };
        self.tag | (line as u64) << TAG_BITS
    }

    #[inline]
    fn entries<'t>(&self, lines: &'t [Line]) -> impl Iterator<Item = Entry<'t>> {
        let second = Some(self.second()).filter(|second| *second != self.first);
        let both = iter::once(self.first).chain(second);
        both.filter_map(|at| Some((at, lines.get(at)?)))
            .flat_map(|(at, line)| line.entries(at))
    }

    /// The entry that the key holds in the first line, as nearly all keys do.
    #[inline]
    pub(crate) fn find_near<'t>(&self, lines: &'t [Line]) -> Option<(Entry<'t>, Held)> {
        lines.get(self.first)?.find(self.first, self.tag)
    }

    /// What is there. Reads the second line only if the key does not hold an entry in the first.
    #[inline]
    pub(crate) fn find<'t>(&self, lines: &'t [Line]) -> Found<'t> {
        match self.find_near(lines) {
            Some((entry, held)) => Found::Held(entry, held),
            None => self.search(lines),
        }
    }

    /// What is there, in the first line or the second.
    fn search<'t>(&self, lines: &'t [Line]) -> Found<'t> {
        let mut found = Found::Nothing;
        for entry in self.entries(lines) {
            let word = entry.word.load(Relaxed);
            if word & TAG == self.tag {
                match Held::of(word) {
                    Some(held) => return Found::Held(entry, held),
                    // By one who has not seen yet, maybe, that the key holds another.
                    None => found = Found::Claimed,
                }
            }
        }
        found
    }

    /// Whether a claim would find an entry.
    pub(crate) fn has_room(
        &self,
        lines: &[Line],
        is_free: impl Fn(usize, Option<Held>) -> bool,
    ) -> bool {
        self.entries(lines)
            .any(|entry| may_be_claimed(entry.at, entry.word.load(Relaxed), &is_free))
    }

    /// Claims an entry that is free, vacant or held, in the first line before the second.
    pub(crate) fn claim<'t>(
        &self,
        lines: &'t [Line],
        is_free: impl Fn(usize, Option<Held>) -> bool,
    ) -> Claim<'t> {
        for entry in self.entries(lines) {
            // Acquire: pairs with `add`; what was done in the entry's use comes before it is
            // judged.
            let mut word = entry.word.load(Acquire);
            while may_be_claimed(entry.at, word, &is_free) {
                // Relaxed: the fence in `confirm` follows.
                match entry
                    .word
                    .compare_exchange_weak(word, self.tag, Relaxed, Acquire)
                {
                    Ok(_) => return self.confirm(lines, entry, Held::of(word)),
                    Err(newer) => word = newer,
                }
            }
        }
        Claim::Full
    }

    fn confirm<'t>(&self, lines: &'t [Line], mine: Entry<'t>, replaced: Option<Held>) -> Claim<'t> {
        let claimed = Claimed {
            entry: mine,
            tag: self.tag,
        };
        // Of two that claim at once, at least one reads what the other wrote before.
        fence(SeqCst);
        let is_same =
            |entry: Entry<'_>| entry.at != mine.at && entry.word.load(Acquire) & TAG == self.tag;
        if self.entries(lines).any(is_same) {
            claimed.withdraw();
            return Claim::Raced;
        }
        Claim::Made(claimed, replaced)
    }
}

fn may_be_claimed(at: usize, word: u64, is_free: impl Fn(usize, Option<Held>) -> bool) -> bool {
    let held = Held::of(word);
    (word == 0 || held.is_some()) && is_free(at, held)
}

/// Moves a tag's bits up: an odd number near 2^64 divided by the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// One of `lines` lines, from the upper half of a hash: a range of any size, by a multiplication
/// (Lemire, "Fast random integer generation in an interval", 2019).
const fn pick(hash: u64, lines: usize) -> usize {
    (((hash >> 32) * (lines as u64 & 0xffff_ffff)) >> 32) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Also in a table of more lines than a 32-bit target has room for beside the tag.
    #[test]
    fn keys_have_one_identity_if_and_only_if_they_have_one_address() {
        let lines = 1 << 20;
        let addresses: [Address; 600] = core::array::from_fn(|nth| {
            let nth = nth as u64;
            Address::new(nth.wrapping_mul(MIX) & !TAG | (1 + nth % 2), lines, 0, 0)
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
        let ahead = |hash| Address::new(hash, lines, 0, 0).identity() >> TAG_BITS;
        let highest = (0..64).map(|nth: u64| ahead(nth << 58 | 1)).max();
        assert!(
            highest > Some(u64::from(u32::MAX >> TAG_BITS)),
            "as on a target of 32 bits they would not fit"
        );
    }
}
