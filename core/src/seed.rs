//! The seed of a keyed hash.
//!
//! State: two words, each 0 until it is fixed, once and for all, by whoever comes first: [`Seed::set`] with a part of the seed, or the
//! first hash with a constant. Whoever hashes has fixed both before it reads them, so that all hashes are under the same seed.

use core::hash::{BuildHasher, Hasher};

use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::word::AtomicWord;

/// The seed of the keyed hash of a [`Keyed`](crate::Keyed) table: SipHash-2-4, for any key that is [`Hash`](core::hash::Hash).
///
/// Give it random numbers before the table's first use, at start-up: from the operating system, or a hardware random number
/// generator. **Without them the seed is a constant, and who can choose keys can flood**: find many keys that fall into
/// the same line of the table, so that they deny each other. No key is ever granted more by that.
///
/// With `std`, `std::hash::RandomState` does the same with a faster hash; any other [`BuildHasher`] will do that always hashes alike, and spreads keys over all
/// 64 bits: the upper 32 choose a line, the lower 20 tell keys apart.
///
/// Source: Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", 2012.
///
/// ```
/// use portcullis_core::Seed;
///
/// static SEED: Seed = Seed::new();
/// // Say, from the random number generator, when the program starts.
/// assert!(SEED.set([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]).is_ok());
/// assert!(SEED.set([1, 2]).is_err(), "once");
/// ```
#[derive(Debug)]
pub struct Seed {
    parts: [AtomicWord<u64>; 2],
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
pub struct SeedFixed;

impl core::fmt::Display for SeedFixed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the seed has been set or used before: set it once, before the first use")
    }
}

impl core::error::Error for SeedFixed {}

/// The fractional digits of pi, which nobody has chosen.
const CONSTANT: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

impl Seed {
    const_unless_loom! {
        /// A seed that has not been set.
        ///
        /// ```
        /// # use portcullis_core::Seed;
        /// static SEED: Seed = Seed::new();
        /// ```
        pub const fn new() -> Self {
            Self { parts: [AtomicWord::new(0), AtomicWord::new(0)] }
        }
    }

    /// Sets the seed, once, before its first use. A number that is 0 counts as a constant.
    ///
    /// # Errors
    ///
    /// [`SeedFixed`] if it was set or used before. It may then be mixed from both, if they came at the same time; it stays what it is.
    ///
    /// ```
    /// # use portcullis_core::Seed;
    /// assert!(Seed::new().set([1, 2]).is_ok());
    /// ```
    pub fn set(&self, seed: [u64; 2]) -> Result<(), SeedFixed> {
        let mut mine = true;
        for (at, part) in seed.into_iter().enumerate() {
            mine &= self.fix(at, part).1;
        }
        if mine { Ok(()) } else { Err(SeedFixed) }
    }

    /// The part at `at`, which from now on is what it is, and whether that is what `part` made it.
    fn fix(&self, at: usize, part: u64) -> (u64, bool) {
        let part = if part == 0 { CONSTANT[at] } else { part };
        // Relaxed: each word is written once, and all that is read is the word.
        while self.parts[at].load(Relaxed) == 0 {
            if self.parts[at].compare_exchange_weak(0, part, Relaxed, Relaxed).is_ok() {
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
        #[expect(deprecated, reason = "for lack of a random seed in `core`, not for the hash")]
        SeededHasher(core::hash::SipHasher::new_with_keys(self.fix(0, 0).0, self.fix(1, 0).0))
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
#[expect(deprecated, reason = "for lack of a random seed in `core`, not for the hash")]
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
