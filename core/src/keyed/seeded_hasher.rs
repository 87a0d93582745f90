//! SipHash-1-3 for the keys of tables.
//!
//! State: four words that a round mixes, and the last bytes of the key that are fewer than eight.
//!
//! Transitions: eight bytes are mixed in by one round. At the end, the remaining bytes and the
//! length are mixed in by one round, and three more rounds follow.
//!
//! The hash equals that of the standard library's `DefaultHasher` with the same key, on machines
//! whose integers begin with the lowest byte. Here each integer is mixed in as a whole, and all of
//! it is inlined: for an integer, the compiler computes the lengths, and keeps the state in
//! registers.

use core::hash::Hasher;

/// The hasher of a [`Seed`](crate::keyed::Seed): SipHash-1-3.
///
/// Source: Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", 2012.
///
/// ```
/// use core::hash::{BuildHasher, Hash, Hasher};
/// let seed = portcullis_core::keyed::Seed::new();
/// let mut hasher = seed.build_hasher();
/// "key".hash(&mut hasher);
/// assert_eq!(hasher.finish(), seed.hash_one("key"));
/// ```
#[derive(Clone, Debug)]
pub struct SeededHasher {
    words: [u64; 4],
    /// The last `length % 8` bytes, from the lowest byte up. The other bytes are 0.
    rest: u64,
    /// The number of bytes so far, wrapping.
    length: u64,
}

impl SeededHasher {
    /// The words at the start of each hash with `key`.
    #[inline]
    pub(crate) const fn start(key: [u64; 2]) -> [u64; 4] {
        // "somepseudorandomlygeneratedbytes", in ASCII.
        [
            key[0] ^ 0x736f_6d65_7073_6575,
            key[1] ^ 0x646f_7261_6e64_6f6d,
            key[0] ^ 0x6c79_6765_6e65_7261,
            key[1] ^ 0x7465_6462_7974_6573,
        ]
    }

    #[inline]
    pub(crate) const fn new(start: [u64; 4]) -> Self {
        Self {
            words: start,
            rest: 0,
            length: 0,
        }
    }

    /// Appends the `count` (1 to 8) lowest bytes of `bytes`. The other bytes are 0.
    #[inline(always)]
    fn append(&mut self, bytes: u64, count: u32) {
        let filled = self.filled();
        self.length = self.length.wrapping_add(count.into());
        if filled + 8 * count >= u64::BITS {
            self.append_eight(bytes, filled);
        } else {
            self.rest |= bytes << filled;
        }
    }

    /// Mixes in eight bytes, after the `filled` bits of `rest`. Does not count them.
    #[inline(always)]
    fn append_eight(&mut self, bytes: u64, filled: u32) {
        mix_in(&mut self.words, self.rest | bytes << filled);
        self.rest = bytes.checked_shr(u64::BITS - filled).unwrap_or(0);
    }

    /// The number of bits in `rest`.
    #[inline(always)]
    const fn filled(&self) -> u32 {
        8 * (self.length as u32 % 8)
    }
}

/// Up to seven bytes as a number, from the lowest byte up.
#[inline]
fn few(bytes: &[u8]) -> u64 {
    let (mut number, mut filled, mut rest) = (0, 0, bytes);
    if let Some((four, after)) = rest.split_first_chunk() {
        number = u64::from(u32::from_le_bytes(*four));
        (filled, rest) = (32, after);
    }
    if let Some((two, after)) = rest.split_first_chunk() {
        number |= u64::from(u16::from_le_bytes(*two)) << filled;
        (filled, rest) = (filled + 16, after);
    }
    rest.first()
        .map_or(number, |one| number | u64::from(*one) << filled)
}

#[inline(always)]
const fn mix_in(words: &mut [u64; 4], eight: u64) {
    words[3] ^= eight;
    round(words);
    words[0] ^= eight;
}

#[inline(always)]
const fn round(words: &mut [u64; 4]) {
    let [a, b, c, d] = *words;
    let (a, c) = (a.wrapping_add(b), c.wrapping_add(d));
    let (b, d) = (b.rotate_left(13) ^ a, d.rotate_left(16) ^ c);
    let (a, c) = (a.rotate_left(32).wrapping_add(d), c.wrapping_add(b));
    let (b, d) = (b.rotate_left(17) ^ c, d.rotate_left(21) ^ a);
    *words = [a, b, c.rotate_left(32), d];
}

impl Hasher for SeededHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (filled, mut rest) = (self.filled(), bytes);
        while let Some((eight, after)) = rest.split_first_chunk() {
            self.append_eight(u64::from_le_bytes(*eight), filled);
            rest = after;
        }
        let whole = bytes.len() - rest.len();
        self.length = self.length.wrapping_add(whole as u64);
        let count = rest.len() as u32;
        if count > 0 {
            let value = match bytes.last_chunk() {
                Some(last) => u64::from_le_bytes(*last) >> (u64::BITS - 8 * count),
                None => few(rest),
            };
            self.append(value, count);
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.append(value.into(), 1);
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.append(value.into(), 2);
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.append(value.into(), 4);
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.append(value, 8);
    }

    #[inline]
    fn write_u128(&mut self, value: u128) {
        self.append(value as u64, 8);
        self.append((value >> 64) as u64, 8);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.append(value as u64, usize::BITS / 8);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut words = self.words;
        mix_in(&mut words, self.rest | self.length << 56);
        words[2] ^= 0xff;
        for _ in 0..3 {
            round(&mut words);
        }
        words.into_iter().fold(0, |hash, word| hash ^ word)
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use core::hash::Hash;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::hash::DefaultHasher;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    fn hasher(key: [u64; 2]) -> SeededHasher {
        SeededHasher::new(SeededHasher::start(key))
    }

    /// `DefaultHasher` is SipHash-1-3 with the key 0.
    #[cfg(target_endian = "little")]
    fn has_the_hash_of_the_standard_library(key: impl Hash + core::fmt::Debug) {
        let (mut ours, mut theirs) = (hasher([0, 0]), DefaultHasher::new());
        key.hash(&mut ours);
        key.hash(&mut theirs);
        assert_eq!(ours.finish(), theirs.finish(), "{key:?}");
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn keys_of_all_types_have_the_hash_of_the_standard_library() {
        let number = 0x0123_4567_89ab_cdef_u64;
        has_the_hash_of_the_standard_library(number);
        has_the_hash_of_the_standard_library((1_u8, 2_u16, 3_u32, number, 5_usize, u128::MAX - 6));
        has_the_hash_of_the_standard_library((-1_i8, -2_i16, -3_i32, -4_i64, -5_isize, -6_i128));
        has_the_hash_of_the_standard_library((true, 'x', [number; 3], Some(number), ()));
        has_the_hash_of_the_standard_library(Ipv4Addr::new(192, 0, 2, 1));
        has_the_hash_of_the_standard_library(Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6));
        has_the_hash_of_the_standard_library((443_u16, IpAddr::V4(Ipv4Addr::LOCALHOST)));
        for length in 0..70 {
            let text: String = ('!'..).take(length).collect();
            has_the_hash_of_the_standard_library(text.as_str());
            has_the_hash_of_the_standard_library((length as u8, text.as_bytes(), text.as_str()));
        }
    }

    #[test]
    fn a_key_has_one_hash_however_its_bytes_are_divided() {
        let bytes: Vec<u8> = (1..40).collect();
        for length in 0..=bytes.len() {
            let mut whole = hasher([7, 8]);
            whole.write(&bytes[..length]);
            for first in 0..=length {
                let mut parts = hasher([7, 8]);
                parts.write(&bytes[..first]);
                parts.write(&bytes[first..length]);
                assert_eq!(parts.finish(), whole.finish(), "{first} of {length} bytes");
            }
        }
    }

    /// The standard library has no keyed SipHash-1-3, but a keyed SipHash-2-4, which differs only
    /// in the number of rounds.
    #[test]
    #[expect(deprecated, reason = "no replacement takes a key")]
    fn the_seed_is_the_key_of_sip_hash() {
        for key in [
            [0, 0],
            [7, 8],
            [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908],
        ] {
            let mut words = SeededHasher::start(key);
            // The hash of no bytes: the last block, which has the length, is 0.
            round(&mut words);
            round(&mut words);
            words[2] ^= 0xff;
            for _ in 0..4 {
                round(&mut words);
            }
            let hash = words.into_iter().fold(0, |hash, word| hash ^ word);
            let theirs = core::hash::SipHasher::new_with_keys(key[0], key[1]);
            assert_eq!(hash, theirs.finish());
        }
    }
}
