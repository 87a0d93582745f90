use crate::math::sqrt;
use crate::recorder::{Recorder, Sample, Span};
use core::fmt;

/// What the leases that ended in a span of time told: the input of a
/// [`Controller`](crate::Controller).
///
/// A window begins when a lease ends, and closes when another one does. After a change of the limit
/// it begins only once the leases that saw the former limit have ended. It keeps the first 256
/// samples; all are counted.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Window<'a> {
    /// When it closed, in seconds since the origin of the caller's clock. It never moves back: a
    /// clock that is set back continues from here.
    pub now: f64,
    /// How long it lasted, in seconds; more than 0.
    pub seconds: f64,
    /// How many requests ended in it; at least 1.
    pub completed: u32,
    /// How many requests were denied in it.
    pub denied: u32,
    /// How many permits were in use when it closed, less those that were when it began.
    pub growth: i32,
    /// The limit that held in it.
    pub limit: u32,
    samples: Samples<'a>,
}

#[derive(Clone, Copy)]
struct Samples<'a> {
    recorder: &'a Recorder,
    span: Span,
}

impl<'a> Window<'a> {
    pub(crate) fn new(
        recorder: &'a Recorder,
        span: Span,
        now: f64,
        in_flight: u32,
        limit: u32,
    ) -> Self {
        Self {
            now,
            seconds: precise(span.nanos) / 1e9,
            completed: span.count.saturating_mul(span.weight),
            denied: span.denied,
            growth: in_flight.wrapping_sub(span.in_flight_before).cast_signed(),
            limit,
            samples: Samples { recorder, span },
        }
    }

    /// Returns the samples, in the order in which their leases ended; at most 256.
    pub fn samples(&self) -> impl Iterator<Item = Sample> + 'a {
        self.samples.recorder.samples(self.samples.span)
    }

    /// Returns how many of the requests that ended were recorded: all, up to about 500,000 each
    /// second.
    pub fn recorded(&self) -> u32 {
        self.samples.span.count
    }

    /// Returns the requests that ended, each second.
    pub fn throughput(&self) -> f64 {
        f64::from(self.completed) / self.seconds
    }

    /// Returns the requests that were made, admitted or not.
    pub fn arrived(&self) -> f64 {
        (f64::from(self.completed) + f64::from(self.growth)).max(0.0) + f64::from(self.denied)
    }

    /// Returns the share of the requests that were denied, 0 to 1.
    pub fn denied_share(&self) -> f64 {
        f64::from(self.denied) / self.arrived().max(1.0)
    }

    /// Returns the mean latency of the first `n` samples, in seconds.
    pub fn latency_of_first(&self, n: usize) -> f64 {
        mean(self.samples().take(n).map(|sample| sample.latency))
    }

    /// Returns the mean latency, in seconds.
    pub fn latency(&self) -> f64 {
        self.latency_of_first(usize::MAX)
    }

    /// Returns the mean number of permits in use, seen by the requests that arrived: those that
    /// were denied saw the limit, and those that were admitted saw, on average, what others left
    /// behind.
    pub fn in_flight(&self) -> f64 {
        let left = mean(self.samples().map(|sample| sample.left_behind.into()));
        let (served, denied) = (f64::from(self.completed), f64::from(self.denied));
        (left * served + f64::from(self.limit) * denied) / (served + denied)
    }

    /// Returns the largest number of permits in use that a sample saw.
    pub fn most_in_flight(&self) -> u32 {
        let seen = self.samples().map(|sample| sample.left_behind + 1);
        seen.max().unwrap_or(0)
    }

    /// Returns the seconds in which at least `in_flight` permits were in use, and the number of
    /// requests that ended in them.
    pub fn saturated(&self, in_flight: u32) -> (f64, f64) {
        let (mut all, mut busy, mut ended) = (0.0, 0.0, 0.0);
        for sample in self.samples() {
            all += 1.0;
            busy += f64::from(u8::from(sample.left_behind >= in_flight));
            ended += f64::from(u8::from(sample.left_behind + 1 >= in_flight));
        }
        let (served, denied) = (f64::from(self.completed), f64::from(self.denied));
        let scale = served / f64::max(all, 1.0);
        let share = (busy * scale + denied) / (served + denied);
        (share * self.seconds, ended * scale)
    }

    /// Returns the squared coefficient of variation of the latency.
    pub fn variation(&self) -> f64 {
        let mean_latency = self.latency();
        let square = mean(self.samples().map(|sample| sample.latency * sample.latency));
        (square / (mean_latency * mean_latency) - 1.0).max(0.0)
    }

    /// Returns the share of the samples whose service pushed back, 0 to 1.
    pub fn pushed_back(&self) -> f64 {
        let back = |sample: Sample| sample.outcome == crate::Outcome::PushedBack;
        mean(
            self.samples()
                .map(|sample| f64::from(u8::from(back(sample)))),
        )
    }

    /// Returns the smallest latency, in seconds.
    pub fn least_latency(&self) -> f64 {
        self.samples()
            .map(|sample| sample.latency)
            .fold(f64::INFINITY, f64::min)
    }

    /// Returns the latency that a share of `share` of the samples does not exceed, in seconds.
    ///
    /// Costs about 30 passes over the samples: there is no memory to sort them in.
    pub fn percentile(&self, share: f64) -> f64 {
        let count = self.samples().count();
        let (mut low, mut high) = (0_u32, f32::MAX.to_bits());
        // The bits of positive floating-point numbers are ordered as the numbers are.
        while low < high {
            let middle = low + (high - low) / 2;
            let bound = f64::from(f32::from_bits(middle));
            let below = self.samples().filter(|sample| sample.latency <= bound);
            if small(below.count()) >= share * small(count) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        f32::from_bits(low).into()
    }

    /// Returns the expected relative error of a mean of `n` latencies whose squared coefficient of
    /// variation is `variation`.
    pub(crate) fn error(variation: f64, n: f64) -> f64 {
        sqrt(variation / n) + 0.02
    }
}

impl fmt::Debug for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("now", &self.now)
            .field("seconds", &self.seconds)
            .field("completed", &self.completed)
            .field("denied", &self.denied)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / f64::max(count, 1.0)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a window lasts less than 2^52 ns, 52 days"
)]
pub(crate) fn precise(nanos: u64) -> f64 {
    nanos as f64
}

#[expect(clippy::cast_precision_loss, reason = "at most 256 samples")]
fn small(count: usize) -> f64 {
    count as f64
}
