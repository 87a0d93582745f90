//! A seed from the operating system, and SipHash-1-3 with it, so that no client chooses the slots
//! of its keys.

use core::hash::{BuildHasher, Hasher};
use std::hash::RandomState;

use crate::keyed::seeded_hasher::SeededHasher;

/// A random seed of a keyed hash: the default of tables that are created at run time. The hash is
/// SipHash-1-3, for any key that is [`Hash`](core::hash::Hash). Needs the feature `std`.
///
/// A copy has the same seed. For a table in a static, use a [`Seed`](crate::keyed::Seed), which a
/// program sets at start-up.
///
/// **Not on `wasm32-unknown-unknown`.** The standard library has no random numbers there: its
/// `RandomState` is a constant, and an attacker who knows it can flood a table. So this type and
/// the constructors that use it (`for_keys`) are absent. Pass random numbers from the host
/// (`crypto.getRandomValues()`) to a `Seed`, and the table to `for_keys_with_hasher`.
///
/// It serves the same purpose as the standard library's `RandomState`, which has the same hash. But
/// all of this one can be inlined: the hash of an integer takes about 80 instructions instead of
/// 125.
///
/// ```
/// use portcullis_core::{Concurrency, Keyed};
/// use portcullis_core::keyed::RandomSeed;
///
/// let seed = RandomSeed::new();
/// let uploads = Keyed::for_keys_with_hasher(Concurrency::new(1), 1_000, seed);
/// let downloads = Keyed::for_keys_with_hasher(Concurrency::new(5), 1_000, seed);
/// ```
#[derive(Clone, Copy)]
pub struct RandomSeed {
    start: [u64; 4],
}

impl RandomSeed {
    /// Creates a seed from random numbers of the operating system.
    ///
    /// # Cost
    ///
    /// The first `RandomState` of a thread asks the operating system. All others are derived from
    /// it.
    ///
    /// ```
    /// use core::hash::BuildHasher;
    /// use portcullis_core::keyed::RandomSeed;
    /// assert_ne!(RandomSeed::new().hash_one("key"), RandomSeed::new().hash_one("key"));
    /// ```
    #[must_use]
    pub fn new() -> Self {
        let random = RandomState::new();
        let number = |nth: u8| {
            let mut hasher = random.build_hasher();
            hasher.write_u8(nth);
            hasher.finish()
        };
        Self {
            start: SeededHasher::start([number(0), number(1)]),
        }
    }
}

impl Default for RandomSeed {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for RandomSeed {
    type Hasher = SeededHasher;

    #[inline]
    fn build_hasher(&self) -> SeededHasher {
        SeededHasher::new(self.start)
    }
}

/// Does not show the seed.
impl core::fmt::Debug for RandomSeed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RandomSeed").finish_non_exhaustive()
    }
}
