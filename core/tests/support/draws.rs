/// The source of a random trace's choices: a seed, for bulk, or a list, which proptest shrinks.
///
/// Smaller choices make smaller numbers, and missing choices are zero, so that a shorter list of
/// smaller choices is a simpler trace.
#[derive(Debug)]
pub(crate) enum Draws<'a> {
    /// A `SplitMix64` generator, for `steps` steps.
    Seeded {
        /// The generator's state.
        state: u64,
        /// The number of steps left.
        steps: u32,
    },
    /// These choices, and then zeros.
    Given(&'a [u64]),
}

impl Draws<'_> {
    /// Whether the trace continues.
    pub(crate) fn another_step(&mut self) -> bool {
        match self {
            Self::Seeded { steps, .. } => {
                *steps = steps.saturating_sub(1);
                *steps > 0
            }
            Self::Given(choices) => !choices.is_empty(),
        }
    }

    /// Whether the trace is short enough for every expensive check.
    pub(crate) fn is_small(&self) -> bool {
        matches!(self, Self::Given(_))
    }

    /// Draws any number.
    pub(crate) fn any(&mut self) -> u64 {
        match self {
            Self::Seeded { state, .. } => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            }
            Self::Given(choices) => match choices.split_first() {
                Some((&first, rest)) => {
                    *choices = rest;
                    first
                }
                None => 0,
            },
        }
    }

    /// Draws from 0 to `n - 1`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(n)) >> 64) as u64
    }

    /// Draws from `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high - low) + 1;
        low + ((u128::from(self.any()) * span) >> 64) as u64
    }

    /// Returns true once in `n` times.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }

    /// Draws from 0 to `max`; every magnitude is about equally likely.
    pub(crate) fn magnitude(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(u64::BITS - max.leading_zeros()) + 1) as u32;
        if bits == 0 {
            return 0;
        }
        let low = 1 << (bits - 1);
        self.within(low, (low - 1 + low).min(max))
    }

    /// Draws one of `choices`.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
