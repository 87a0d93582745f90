//! Seeded random numbers.

use core::ops::Range;

/// Random numbers that only depend on the seed: `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed ^ 0x5eed_5eed_5eed_5eed);
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        let product = u128::from(self.next()) * u128::from(range.end - range.start);
        range.start + (product >> 64) as u64
    }

    /// True once in `n` times; never if `n` is 0.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        n > 0 && self.within(0..n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(0..from.len() as u64) as usize]
    }
}
