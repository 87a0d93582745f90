use crate::controller::{Controller, Decision, Phase};
use crate::math::sqrt;
use crate::window::Window;

/// Envoy's gradient: the ratio of the latency without load, measured from time to time at a limit
/// of 3, to the median now.
///
/// Source: Envoy's adaptive concurrency filter, with its defaults: a median of 50 requests at a
/// limit of 3, every 60 s and after five windows at the lowest limit; a buffer of 25 %; windows of
/// 0.1 s. Its probes deny requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnvoyGradient {
    limit: f64,
    base: f64,
    probes: bool,
    probed_at: f64,
    low: u32,
}

const PROBE: u32 = 3;

impl EnvoyGradient {
    /// Creates the controller with its default settings.
    pub const fn new() -> Self {
        Self {
            limit: 0.0,
            base: 0.0,
            probes: true,
            probed_at: 0.0,
            low: 0,
        }
    }

    fn probe(&mut self) -> Decision {
        self.probes = true;
        Decision::limit(PROBE)
            .after(50, 0.0)
            .in_phase(Phase::Lowered)
            .estimating(0.0, self.base)
    }
}

impl Controller for EnvoyGradient {
    fn begin(&mut self, initial: u32) -> Decision {
        self.limit = initial.into();
        self.probe()
    }

    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let median = window.percentile(0.5);
        if self.probes {
            self.probes = false;
            self.base = median;
            self.probed_at = window.now;
        } else {
            let gradient = (1.25 * self.base / median).clamp(0.5, 2.0);
            let limit = self.limit * gradient;
            self.limit = (limit + sqrt(limit)).clamp(f64::from(PROBE), 1_000.0);
            self.low = if self.limit <= f64::from(PROBE) {
                self.low + 1
            } else {
                0
            };
            if self.low >= 5 || window.now - self.probed_at >= 60.0 {
                self.low = 0;
                return self.probe();
            }
        }
        Decision {
            settle: false,
            ..Decision::limit(self.limit as u32).after(2, 0.1)
        }
        .estimating(0.0, self.base)
    }
}
