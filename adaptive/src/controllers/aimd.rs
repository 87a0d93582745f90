use crate::controller::{Controller, Decision, Phase};
use crate::window::Window;

/// Additive increase, multiplicative decrease: adds 1 while the limit is in use, and takes a tenth
/// away when the service pushes back or is slower than its time-out.
///
/// Source: Chiu and Jain 1989; `AIMDLimit` of Netflix's concurrency-limits, with its defaults: 0.9
/// and 5 s. It finds the limit only of services that push back.
#[derive(Clone, Copy, Debug)]
pub struct Aimd {
    backoff: f64,
    timeout: f64,
}

impl Aimd {
    /// Creates the controller with its default settings.
    pub const fn new() -> Self {
        Self {
            backoff: 0.9,
            timeout: 5.0,
        }
    }
}

impl Default for Aimd {
    fn default() -> Self {
        Self::new()
    }
}

impl Controller for Aimd {
    fn begin(&mut self, initial: u32) -> Decision {
        Decision::limit(initial).after(10, 0.0)
    }

    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let limit = window.limit;
        let dropped = window.pushed_back() > 0.0 || window.latency() > self.timeout;
        let next = if dropped {
            (f64::from(limit) * self.backoff) as u32
        } else if window.most_in_flight().saturating_mul(2) >= limit {
            limit + 1
        } else {
            limit
        };
        Decision {
            settle: false,
            ..Decision::limit(next).after(10, 0.0)
        }
        .in_phase(Phase::Measuring)
    }
}
