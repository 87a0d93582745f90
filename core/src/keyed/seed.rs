//! The seed of a keyed hash.
//!
//! State: two words (four of 32 bits), each 0 until it is fixed. The first call to write a word
//! fixes it permanently: [`Seed::set`] with a part of the seed, or a hash with a constant. A hash
//! reads each word only after that word is fixed, so all hashes use the same seed.

use core::hash::BuildHasher;

use crate::SeededHasher;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, NativeWord, Word};

/// The seed of the keyed hash of a [`Keyed`](crate::Keyed) table. The hash is SipHash-1-3, for any
/// key that is [`Hash`](core::hash::Hash).
///
/// Set the seed to random numbers at start-up, before the first use of the table. Take them from
/// the operating system or a hardware random number generator. **Without them the seed is a
/// constant, and an attacker who can choose keys can flood the table**: by finding many keys that
/// fall into the same line, so that they deny each other. Even then no key is granted more than its
/// limit.
///
/// With `std`, except on `wasm32-unknown-unknown`, a `RandomSeed` is random from the start, and
/// needs fewer instructions. Any other [`BuildHasher`] also works if it always returns the same
/// hash for a key and spreads keys over all 64 bits. The upper 32 bits select a line, and the lower
/// 20 (or 11) identify the key. For which attacker each hash stands against, see the guide to
/// tuning.
///
/// Source: Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", 2012.
///
/// ```
/// use portcullis_core::Seed;
///
/// static SEED: Seed = Seed::new();
/// // At start-up. Use random numbers here.
/// assert!(
///     SEED.set([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210])
///         .is_ok()
/// );
/// assert!(SEED.set([1, 2]).is_err(), "a seed is set once");
/// ```
#[derive(Debug)]
pub struct Seed {
    parts: [AtomicWord<NativeWord>; 2 * HALVES],
}

/// The error of [`Seed::set`]: the seed was already fixed, by another `set` or by the first hash.
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
#[expect(clippy::exhaustive_structs, reason = "an error with one cause")]
pub struct SeedFixed;

impl core::fmt::Display for SeedFixed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the seed was already set or used: set it once, before its first use")
    }
}

impl core::error::Error for SeedFixed {}

/// The first fractional digits of pi: a constant that was not chosen for a purpose.
const CONSTANT: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

/// Words per number.
const HALVES: usize = (64 / NativeWord::BITS) as usize;

/// The part of `seed` that is stored in the word with index `at`.
const fn part(seed: [u64; 2], at: usize) -> u64 {
    seed[at / HALVES] >> ((at & (HALVES - 1)) as u32 * NativeWord::BITS) & NativeWord::MASK
}

impl Seed {
    const_unless_loom! {
        /// Creates a seed that is not set.
        ///
        /// ```
        /// # use portcullis_core::Seed;
        /// static SEED: Seed = Seed::new();
        /// ```
        pub const fn new() -> Self {
            #[cfg(not(portcullis_loom))]
            let parts = [const { AtomicWord::new(0) }; 2 * HALVES];
            #[cfg(portcullis_loom)]
            let parts = core::array::from_fn(|_| AtomicWord::new(0));
            Self { parts }
        }
    }

    /// Sets the seed. Call it once, before the first use of the seed.
    ///
    /// A number that is 0 is replaced by a constant. On targets without 64-bit atomics, so is a
    /// half of a number that is 0.
    ///
    /// # Errors
    ///
    /// [`SeedFixed`] if the seed was set or used before. If both happened concurrently, the seed
    /// may be a mix of both; it does not change any more.
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

    /// Returns a number of the seed. Fixes its words if they are not fixed yet.
    #[inline]
    fn number(&self, at: usize) -> u64 {
        let parts = (0..HALVES).map(|half| {
            let at = at * HALVES + half;
            // Relaxed: each word is written once, and only the word itself is read.
            let part = match self.parts[at].load(Relaxed) {
                0 => self.fix(at, 0).0,
                part => part,
            };
            part << (half as u32 * NativeWord::BITS)
        });
        parts.fold(0, |number, part| number | part)
    }

    /// Fixes the word with index `at` to `part`, unless it is fixed already. Returns the word, and
    /// whether this call fixed it.
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
        SeededHasher::new(SeededHasher::start([self.number(0), self.number(1)]))
    }
}

/// A static seed serves any number of tables.
impl BuildHasher for &Seed {
    type Hasher = SeededHasher;

    #[inline]
    fn build_hasher(&self) -> SeededHasher {
        (**self).build_hasher()
    }
}
