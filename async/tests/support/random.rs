//! Random numbers.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

/// A xorshift64* generator, with a state that is not 0.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// A generator for each seed; close seeds give unrelated numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Draws from 0 to `bound - 1`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws an index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Draws 0 to `most` permits.
    pub fn permits(&mut self, most: u32) -> u32 {
        self.below(u64::from(most) + 1) as u32
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
