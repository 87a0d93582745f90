//! The seed of a keyed hash.
//!
//! State: two words (four of 32 bits), each 0 until it is fixed, once and for all, by whoever comes
//! first: [`Seed::set`] with a part of the seed, or the first hash with a constant. Whoever hashes
//! has fixed all before it reads them, so that all hashes are under the same seed.

use core::hash::{BuildHasher, Hasher};

use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, NativeWord, Word};

/// The seed of the keyed hash of a [`Keyed`](crate::Keyed) table: SipHash-2-4, for any key that is
/// [`Hash`](core::hash::Hash).
///
/// Give it random numbers before the table's first use, at start-up: from the operating system, or
/// a hardware random number generator. **Without them the seed is a constant, and who can choose
/// keys can flood**: find many keys that fall into the same line of the table, so that they deny
/// each other. No key is ever granted more by that.
///
/// With `std`, `std::hash::RandomState` does the same with a faster hash; any other [`BuildHasher`]
/// will do that always hashes alike, and spreads keys over all 64 bits: the upper 32 choose a line,
/// the lower 20 (or 11) tell keys apart.
///
/// Source: Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", 2012.
///
/// ```
/// use portcullis_core::Seed;
///
/// static SEED: Seed = Seed::new();
/// // Say, from the random number generator, when the program starts.
/// assert!(
///     SEED.set([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210])
///         .is_ok()
/// );
/// assert!(SEED.set([1, 2]).is_err(), "once");
/// ```
#[derive(Debug)]
pub struct Seed {
    parts: [AtomicWord<NativeWord>; 2 * HALVES],
}

/// The seed was fixed before: by another [`set`](Seed::set), or by the first hash.
///
/// ```
/// # use portcullis_core::{Seed, SeedFixed};
/// use core::hash::BuildHasher;
/// let seed = Seed::new();
/// seed.hash_one("key");
/// assert_eq!(seed.set([1, 2]), Err(SeedFixed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SeedFixed;

impl core::fmt::Display for SeedFixed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the seed has been set or used before: set it once, before the first use")
    }
}

impl core::error::Error for SeedFixed {}

/// The fractional digits of pi, which nobody has chosen.
const CONSTANT: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

/// Words for a number.
const HALVES: usize = (64 / NativeWord::BITS) as usize;

/// What stands in the word at `at` of a seed.
const fn part(seed: [u64; 2], at: usize) -> u64 {
    seed[at / HALVES] >> ((at & (HALVES - 1)) as u32 * NativeWord::BITS) & NativeWord::MASK
}

impl Seed {
    const_unless_loom! {
        /// A seed that has not been set.
        ///
        /// ```
        /// # use portcullis_core::Seed;
        /// static SEED: Seed = Seed::new();
        /// ```
        pub const fn new() -> Self {
            #[cfg(not(loom))]
            let parts = [const { AtomicWord::new(0) }; 2 * HALVES];
            #[cfg(loom)]
            let parts = core::array::from_fn(|_| AtomicWord::new(0));
            Self { parts }
        }
    }

    /// Sets the seed, once, before its first use. A number that is 0 counts as a constant (and half
    /// of one, on targets without 64-bit atomics).
    ///
    /// # Errors
    ///
    /// [`SeedFixed`] if it was set or used before. It may then be mixed from both, if they came at
    /// the same time; it stays what it is.
    ///
    /// ```
    /// # use portcullis_core::Seed;
    /// assert!(Seed::new().set([1, 2]).is_ok());
    /// ```
    pub fn set(&self, seed: [u64; 2]) -> Result<(), SeedFixed> {
        let mut mine = true;
        for at in 0..self.parts.len() {
            mine &= self.fix(at, part(seed, at)).1;
        }
        if mine { Ok(()) } else { Err(SeedFixed) }
    }

    /// A number of the seed, which from now on is what it is.
    #[inline]
    fn number(&self, at: usize) -> u64 {
        let parts = (0..HALVES).map(|half| {
            let at = at * HALVES + half;
            // Relaxed: each word is written once, and all that is read is the word.
            let part = match self.parts[at].load(Relaxed) {
                0 => self.fix(at, 0).0,
                part => part,
            };
            part << (half as u32 * NativeWord::BITS)
        });
        parts.fold(0, |number, part| number | part)
    }

    /// The part at `at`, which from now on is what it is, and whether that is what `part` made it.
    #[cold]
    fn fix(&self, at: usize, part: u64) -> (u64, bool) {
        let part = if part == 0 {
            self::part(CONSTANT, at)
        } else {
            part
        };
        while self.parts[at].load(Relaxed) == 0 {
            if self.parts[at]
                .compare_exchange_weak(0, part, Relaxed, Relaxed)
                .is_ok()
            {
                return (part, true);
            }
        }
        (self.parts[at].load(Relaxed), false)
    }
}

impl Default for Seed {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for Seed {
    type Hasher = SeededHasher;

    #[inline]
    fn build_hasher(&self) -> SeededHasher {
        #[expect(
            deprecated,
            reason = "for lack of a random seed in `core`, not for the hash"
        )]
        SeededHasher(core::hash::SipHasher::new_with_keys(
            self.number(0),
            self.number(1),
        ))
    }
}

/// The hasher of a [`Seed`].
///
/// ```
/// use core::hash::{BuildHasher, Hash, Hasher};
/// let seed = portcullis_core::Seed::new();
/// let mut hasher = seed.build_hasher();
/// "key".hash(&mut hasher);
/// assert_eq!(hasher.finish(), seed.hash_one("key"));
/// ```
#[derive(Clone, Debug)]
#[expect(
    deprecated,
    reason = "for lack of a random seed in `core`, not for the hash"
)]
pub struct SeededHasher(core::hash::SipHasher);

impl Hasher for SeededHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0.finish()
    }
}
