//! The hash of a key. It fixes the line and the tag of the key in every table with the same hasher,
//! and nothing else of the key is kept.

use core::hash::{BuildHasher, Hash, Hasher};

/// The hash of a key, computed once for several tables.
///
/// A table finds a key by its hash alone. So tables that have the same hasher, for example copies
/// of one `RandomSeed`, can share the hash of a request's key: pass it to
/// [`Keyed::key_hashed`](crate::Keyed::key_hashed) of each.
///
/// **Bound.** A key has a limiter for each hash under which it is asked for. So ask a table for a
/// key by the hash of the table's own hasher only.
///
/// ```
/// use portcullis_core::{Concurrency, Keyed, Rate, Timestamp, TokenBucket};
/// use portcullis_core::keyed::{KeyHash, Seed};
///
/// static SEED: Seed = Seed::new();
/// let requests = TokenBucket::new(Rate::per_second(10), 2);
/// let requests = Keyed::for_keys_with_hasher(requests, 1_000, &SEED);
/// let uploads = Keyed::for_keys_with_hasher(Concurrency::new(1), 1_000, &SEED);
///
/// let alice = KeyHash::new(&SEED, "alice");
/// let now = Timestamp::from_secs(9);
/// let request = requests.key_hashed(alice).try_acquire_at(now, 1)?;
/// let upload = uploads.key_hashed(alice).try_acquire_at(now, 1)?;
/// assert!(uploads.key("alice").try_acquire_at(now, 1).is_err());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Returns the hash of `key`. Equal keys, also borrowed ones, have equal hashes.
    ///
    /// ```
    /// use portcullis_core::keyed::{KeyHash, Seed};
    /// let seed = Seed::new();
    /// assert_eq!(KeyHash::new(&seed, "alice"), KeyHash::new(&seed, &String::from("alice")));
    /// ```
    #[expect(clippy::manual_hash_one, reason = "it is not always inlined")]
    #[inline]
    pub fn new<K: Hash + ?Sized>(hasher: &impl BuildHasher, key: &K) -> Self {
        let mut hasher = hasher.build_hasher();
        key.hash(&mut hasher);
        Self(hasher.finish())
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}
