//! Settings that the builders of all buckets share.

use crate::limiters::lattice::{Lattice, Terms};
use crate::time::grid::Grid;
use crate::time::rate::Rate;
use crate::time::timestamp::Timestamp;
use crate::word::settings::{Setting, SettingsError};

/// A bucket's terms, and its initial state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketSettings {
    pub(crate) terms: Terms,
    pub(crate) initial: u64,
    pub(crate) origin: Timestamp,
}

impl BucketSettings {
    pub(crate) const fn new(rate: Rate, burst: u64) -> Self {
        Self {
            terms: Terms {
                rate,
                burst,
                debt: 0,
                tick: None,
                stepwise: false,
                staleness: None,
                adjustable: None,
            },
            initial: burst,
            origin: Timestamp::ZERO,
        }
    }

    /// Returns the lattice that fits `bits` bits, its grid of ticks, and `used` at the origin.
    pub(crate) const fn start(&self, bits: u32) -> Result<(Lattice, Grid, u64), SettingsError> {
        if self.initial > self.terms.burst && self.terms.burst > 0 {
            return Err(SettingsError::TooLarge {
                setting: Setting::Initial,
                max: self.terms.burst,
            });
        }
        match self.terms.lattice(bits) {
            Ok((lattice, tick)) => {
                let ticks = Grid::new(self.origin, tick);
                let initial = self.initial.wrapping_mul(lattice.cost);
                let used = ticks
                    .index(self.origin)
                    .wrapping_mul(lattice.gain)
                    .wrapping_sub(initial);
                Ok((lattice, ticks, used & lattice.mask))
            }
            Err(error) => Err(error),
        }
    }
}
