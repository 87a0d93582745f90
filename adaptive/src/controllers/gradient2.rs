use crate::controller::{Controller, Decision};
use crate::window::Window;

/// Gradient2: compares the latency with its own long average.
///
/// Source: `Gradient2Limit` of Netflix's concurrency-limits, with its defaults (a tolerance of 1.5,
/// a queue of 4, smoothing by 0.2, 600 windows of memory), behind its `WindowedLimit`: windows of
/// at least 10 samples and 1 s. Its average follows a queue that lasts, so the limit drifts up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gradient2 {
    limit: f64,
    long: f64,
    windows: f64,
}

impl Gradient2 {
    /// Creates the controller with its default settings.
    pub const fn new() -> Self {
        Self {
            limit: 0.0,
            long: 0.0,
            windows: 0.0,
        }
    }
}

impl Controller for Gradient2 {
    fn begin(&mut self, initial: u32) -> Decision {
        self.limit = initial.into();
        Decision::limit(initial).after(10, 1.0)
    }

    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let short = window.latency();
        self.windows += 1.0;
        let share = if self.windows <= 10.0 {
            1.0 / self.windows
        } else {
            2.0 / 601.0
        };
        self.long += share * (short - self.long);
        if self.long / short > 2.0 {
            self.long *= 0.95;
        }
        if f64::from(window.most_in_flight()) >= self.limit / 2.0 {
            let gradient = (1.5 * self.long / short).clamp(0.5, 1.0);
            let wanted = self.limit * gradient + 4.0;
            self.limit = (0.8 * self.limit + 0.2 * wanted).clamp(20.0, 200.0);
        }
        Decision {
            settle: false,
            ..Decision::limit(self.limit as u32).after(10, 1.0)
        }
        .estimating(0.0, self.long)
    }
}
