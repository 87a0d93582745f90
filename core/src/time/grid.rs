//! Time divided into equal steps from an origin. Computes the index of the step that contains an
//! instant, without a division.
//!
//! Dividing by a fixed divisor is multiplying by its reciprocal (Granlund and Montgomery, "Division
//! by Invariant Integers using Multiplication", 1994). With `reciprocal = floor((2^64 - 1) /
//! step)`, the high half of the product is the quotient or one less, for every `u64`. One
//! comparison corrects it.

use crate::time::timestamp::Timestamp;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    origin: u64,
    step: u64,
    reciprocal: u64,
}

impl Grid {
    /// Creates a grid of steps of `step` nanoseconds, 1 to 2^63, from `origin`.
    pub(crate) const fn new(origin: Timestamp, step: u64) -> Self {
        debug_assert!(step >= 1 && step <= 1 << 63);
        let origin = if step == 1 { 0 } else { origin.as_nanos() };
        Self {
            origin,
            step,
            reciprocal: reciprocal(step),
        }
    }

    pub(crate) const fn step(&self) -> u64 {
        self.step
    }

    pub(crate) const fn origin(&self) -> Timestamp {
        Timestamp::from_nanos(self.origin)
    }

    /// Returns the index of the step that contains `now`. If steps are longer than 1 ns, an instant
    /// before the origin counts as the origin.
    #[inline(always)]
    pub(crate) const fn index(&self, now: Timestamp) -> u64 {
        self.split(now).0
    }

    /// Returns the index of the step that contains `now`, and the offset of `now` into it.
    ///
    /// Steps of 1 ns are counted from time zero, whatever the origin: the origin is at the position
    /// that [`index`](Self::index) returns for it.
    #[inline(always)]
    pub(crate) const fn split(&self, now: Timestamp) -> (u64, u64) {
        if self.step == 1 {
            (now.as_nanos(), 0)
        } else {
            self.divide(now.as_nanos().saturating_sub(self.origin))
        }
    }

    /// Returns `value / step` and `value % step`.
    #[inline(always)]
    pub(crate) const fn divide(&self, value: u64) -> (u64, u64) {
        divide(value, self.step, self.reciprocal)
    }

    /// Returns the first instant of step `index`, or `None` if it is after [`Timestamp::MAX`].
    pub(crate) const fn start(&self, index: u64) -> Option<Timestamp> {
        match index.checked_mul(self.step) {
            Some(since) => match since.checked_add(self.origin) {
                Some(nanos) => Some(Timestamp::from_nanos(nanos)),
                None => None,
            },
            None => None,
        }
    }
}

/// Returns the reciprocal of a step, 1 to 2^63.
pub(crate) const fn reciprocal(step: u64) -> u64 {
    u64::MAX / step
}

/// Returns `value / step` and `value % step`, given the step's [`reciprocal`]. With any other
/// reciprocal the result is meaningless, but there is no panic.
#[inline(always)]
pub(crate) const fn divide(value: u64, step: u64, reciprocal: u64) -> (u64, u64) {
    let quotient = ((value as u128 * reciprocal as u128) >> 64) as u64;
    let rest = value.wrapping_sub(quotient.wrapping_mul(step));
    if rest >= step {
        (quotient.wrapping_add(1), rest.wrapping_sub(step))
    } else {
        (quotient, rest)
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn division_is_exact_at_the_edges_of_every_size() {
        let interesting = |bits: u32| {
            let power = 1u64 << bits;
            [
                power - 1,
                power,
                power + 1,
                power | (power >> 1),
                power / 3 + 1,
                power / 7 + 2,
            ]
        };
        let mut checked = 0u64;
        for step in (0..63)
            .flat_map(interesting)
            .chain([1 << 63, 999_999_937, 86_400_000_000_000])
        {
            if step == 0 || step > 1 << 63 {
                continue;
            }
            let grid = Grid::new(Timestamp::ZERO, step);
            let multiples = (0..64).map(|bits| (u64::MAX >> bits) / step * step);
            for value in (0..63).flat_map(interesting).chain(multiples) {
                for value in [value.wrapping_sub(1), value, value.wrapping_add(1)] {
                    assert_eq!(
                        grid.divide(value),
                        (value / step, value % step),
                        "{value} by {step}"
                    );
                    checked += 1;
                }
            }
        }
        assert!(checked > 400_000, "{checked}");
    }

    #[test]
    fn an_instant_before_the_origin_counts_as_the_origin() {
        let grid = Grid::new(Timestamp::from_nanos(1_000), 10);
        assert_eq!(grid.index(Timestamp::ZERO), 0);
        assert_eq!(grid.index(Timestamp::from_nanos(1_009)), 0);
        assert_eq!(grid.index(Timestamp::from_nanos(1_010)), 1);
        assert_eq!(grid.start(1), Some(Timestamp::from_nanos(1_010)));
        assert_eq!(grid.start(u64::MAX / 10), None);
    }
}
