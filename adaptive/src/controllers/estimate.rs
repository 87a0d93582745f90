//! A mean with a bounded memory, which tells a step of the world from noise.
//!
//! One window moves it by at most two standard errors. A second surprise in a row, in the same
//! direction, replaces it: a pause of the service is one window, a new deployment is many.

use crate::math::{exp, ln, sqrt};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    /// The mean; 0 while there is none.
    pub(crate) value: f64,
    /// For how many samples it stands.
    pub(crate) weight: f64,
    surprise: Option<Surprise>,
}

#[derive(Clone, Copy, Debug)]
struct Surprise {
    up: bool,
    value: f64,
    weight: f64,
}

/// A mean of one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) samples: f64,
    /// The standard error, relative to the value.
    pub(crate) error: f64,
}

/// Fewer samples than this replace nothing.
const EVIDENCE: f64 = 40.0;
const SIGMAS: f64 = 2.0;

impl Estimate {
    pub(crate) const NONE: Self = Self {
        value: 0.0,
        weight: 0.0,
        surprise: None,
    };

    pub(crate) fn known(self) -> bool {
        self.value > 0.0
    }

    pub(crate) fn surprised(self) -> bool {
        self.surprise.is_some()
    }

    pub(crate) fn set(&mut self, value: f64, weight: f64) {
        *self = Self {
            value,
            weight,
            surprise: None,
        };
    }

    /// Adds `measured` to a mean over at most `memory` samples. Returns whether it replaced the
    /// mean. It replaces a smaller one only if `may_rise`.
    pub(crate) fn add(&mut self, measured: Measured, memory: f64, may_rise: bool) -> bool {
        let Measured { value, samples, .. } = measured;
        if !self.known() {
            self.set(value, samples);
            return false;
        }
        let step = ln(value / self.value);
        // The mean has an error of its own, while it stands for few samples.
        let young = (samples / self.weight.max(1.0)).min(4.0);
        let bound = SIGMAS * measured.error * sqrt(1.0 + young);
        if self.is_replaced(measured, step, bound, may_rise) {
            return true;
        }
        self.weight = (self.weight + samples).min(memory.max(samples));
        let clipped = self.value * exp(step.clamp(-bound, bound));
        self.value += samples / self.weight * (clipped - self.value);
        false
    }

    fn is_replaced(&mut self, new: Measured, step: f64, bound: f64, may_rise: bool) -> bool {
        if step.abs() <= bound {
            self.surprise = None;
            return false;
        }
        let up = step > 0.0;
        let Some(former) = self.surprise.filter(|former| former.up == up) else {
            self.surprise = Some(Surprise {
                up,
                value: new.value,
                weight: new.samples,
            });
            return false;
        };
        let weight = former.weight + new.samples;
        let value = (former.value * former.weight + new.value * new.samples) / weight;
        if weight < EVIDENCE {
            self.surprise = Some(Surprise { up, value, weight });
        } else if !up || may_rise {
            self.set(value, weight);
            return true;
        }
        false
    }

    /// Lets two measurements in a row that are both far below the mean replace it. Others change
    /// nothing, so it never walks down slowly.
    pub(crate) fn fall_to(&mut self, measured: Measured) {
        let step = ln(measured.value / self.value);
        if step >= -(SIGMAS + 1.0) * measured.error {
            self.surprise = None;
        } else {
            let evidence = Measured {
                samples: measured.samples.max(EVIDENCE / 2.0),
                ..measured
            };
            self.is_replaced(evidence, step, 0.0, false);
        }
    }
}
