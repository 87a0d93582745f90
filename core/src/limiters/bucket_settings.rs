//! Settings that the builders of all buckets share.

use crate::limiters::lattice::{Lattice, Terms};
use crate::time::grid::Grid;
use crate::time::rate::Rate;
use crate::time::timestamp::Timestamp;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Built};
use crate::word::settings::{Setting, SettingsError};

/// A bucket's terms, and its initial state.
#[derive(Clone, Copy, Debug)]
pub struct BucketSettings {
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

/// Settings of all buckets but a [`WarmingBucket`](crate::WarmingBucket).
impl<L: Built + Sealed<Settings = BucketSettings>> Builder<L> {
    /// Sets the permits in the bucket at its [`origin`](Self::origin), at most the burst. Default:
    /// the burst.
    ///
    /// Buckets in a [`Keyed`](crate::Keyed) table always start full, for the reason given there.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .initial(4)
    ///     .build()?;
    /// assert_eq!(bucket.available_at(Timestamp::ZERO), 4);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn initial(mut self, permits: u64) -> Self {
        self.settings.initial = permits;
        self
    }

    /// Refills in steps: all permits of the rate arrive at the end of each of its periods. Default:
    /// continuous refill.
    ///
    /// Periods are counted from the [`origin`](Self::origin). A later change of the rate of an
    /// [`AdjustableBucket`](crate::AdjustableBucket) does not change the length of a step.
    ///
    /// **Bound** of a stepwise bucket: any span of time admits at most `burst + permits * k`
    /// permits, where `permits` is the rate's permits per period and `k` is the number of periods
    /// that end in the span.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .initial(0)
    ///     .stepwise()
    ///     .build()?;
    /// assert_eq!(bucket.available_at(Timestamp::from_millis(999)), 0);
    /// assert_eq!(bucket.available_at(Timestamp::from_millis(1_000)), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn stepwise(mut self) -> Self {
        self.settings.terms.stepwise = true;
        self
    }

    /// The settings of the bucket and of its timing.
    pub(crate) const fn bucket(&self) -> BucketSettings {
        let mut settings = self.settings;
        settings.origin = self.timing.origin;
        settings.terms.tick = self.timing.tick;
        settings.terms.staleness = self.timing.staleness;
        settings
    }
}
