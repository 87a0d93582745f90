use crate::controller::{Controller, Decision};
use crate::math::{ceil, ln};
use crate::window::Window;

/// TCP Vegas: holds the queue, estimated from the lowest latency seen, between 3 and 6 times the
/// decimal logarithm of the limit.
///
/// Source: Brakmo and Peterson 1995; `VegasLimit` of Netflix's concurrency-limits, with its
/// defaults, behind its `WindowedLimit`: windows of at least 10 samples and 1 s. It forgets its
/// lowest latency after about 30 times as many windows as the limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vegas {
    limit: f64,
    least: f64,
    probes: f64,
}

impl Vegas {
    /// Creates the controller with its default settings.
    pub const fn new() -> Self {
        Self {
            limit: 0.0,
            least: 0.0,
            probes: 0.0,
        }
    }

    fn step(&mut self, window: &Window<'_>, latency: f64) {
        // At least 1, as the table of logarithms in the source.
        let log = (ln(self.limit) / core::f64::consts::LN_10).max(1.0);
        let queue = ceil(self.limit * (1.0 - self.least / latency));
        if window.pushed_back() > 0.0 {
            self.limit -= log;
        } else if f64::from(window.most_in_flight()) * 2.0 < self.limit {
            return;
        } else if queue <= log {
            self.limit += 6.0 * log;
        } else if queue < 3.0 * log {
            self.limit += log;
        } else if queue > 6.0 * log {
            self.limit -= log;
        }
        self.limit = self.limit.clamp(1.0, 1_000.0);
    }
}

impl Controller for Vegas {
    fn begin(&mut self, initial: u32) -> Decision {
        self.limit = initial.into();
        Decision::limit(initial).after(10, 1.0)
    }

    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let latency = window.latency();
        self.probes += 1.0;
        // The source draws the factor from 0.5 to 1; its mean is as good here.
        if self.probes >= 0.75 * 30.0 * self.limit || self.least == 0.0 || latency < self.least {
            self.least = latency;
            self.probes = 0.0;
        } else {
            self.step(window, latency);
        }
        Decision {
            settle: false,
            ..Decision::limit(self.limit as u32).after(10, 1.0)
        }
        .estimating(0.0, self.least)
    }
}
