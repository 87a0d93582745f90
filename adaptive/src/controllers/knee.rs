//! The controller of Portcullis: the knee of Little's law.
//!
//! The fewest requests in flight that keep a service busy are `knee = capacity x base`: its
//! throughput when saturated, times its latency without a queue. The limit is `knee x (1 +
//! headroom)`. Both factors are means, each taken in a phase in which it can be measured:
//!
//! ```text
//!              +--------------------- denies: limit = knee x (1 + headroom) ----+
//!              v                                                                |
//! Starting -> Free <---- nothing denied ----> Measuring ----- now and then ---> Lowered
//!                                              |   ^                            (0.85 knee: base)
//!                                   a cut by a quarter
//!                                              v   |
//!                                            Comparing
//! ```
//!
//! - **Measuring**: the capacity is what is served each second while at least 0.9 knee are in
//!   flight.
//! - **Lowered**: with 0.85 knee in flight, nothing queues, and the base is the mean in flight
//!   divided by the throughput. If the knee was too high, the base is measured as `0.85 knee /
//!   capacity`, so the next knee is 15 % lower. If the limit was below the true knee, the
//!   throughput was `limit / base`, so the next limit is higher by the headroom. The fixed point is
//!   the true knee, whatever was believed before. Lowered phases become rare as the base becomes
//!   certain.
//! - **Comparing**: after a cut, either the latency falls (it was a queue) or the throughput does
//!   (the base was too low): the slope of Little's law tells which.
//! - **Free**: while nothing is denied, the limit is twice what was in flight, and at most five
//!   times what the base explains. It is never cut, and nothing is denied to learn something.
//!
//! Invariant: once it has denied, the limit is at most `rise` times the limit that the *lowest
//! base* gives, with the capacity that was measured while the base was near it. The lowest base is
//! that since the service was last seen idle; it rises only then. So limiters that share a service,
//! each of which takes the queue of the others for the service's own latency, cannot drive one
//! another up without end. While free, the limit is at most five times what the lowest base
//! explains, or 16.

use crate::controller::{Controller, Decision, Phase};
use crate::controllers::estimate::{Estimate, Measured};
use crate::math::{ceil, exp, floor, ln};
use crate::window::Window;
use core::time::Duration;

/// Samples of a window of the phases Free and Measuring, at the usual variation.
const SAMPLES: f64 = 30.0;
/// Samples of a window of the phases Lowered and Comparing.
const FEW_SAMPLES: f64 = 60.0;
/// The usual squared coefficient of variation. A service of more needs more samples.
const VARIATION: f64 = 0.5;
/// The memories of the means, in samples.
const CAPACITY_MEMORY: f64 = 900.0;
const BASE_MEMORY: f64 = 600.0;
const LOAD_MEMORY: f64 = 400.0;
/// The limit of a lowered phase, as a share of the knee; and while the base is not verified.
const LOWERED: f64 = 0.85;
const LOWERED_FRESH: f64 = 0.5;
/// At most so many durations of a lowered phase lie between two.
const SPACING: f64 = 40.0;
/// A phase of so many times its usual length had a pause in it.
const STOOD_STILL: f64 = 64.0;
/// In flight from this share of the knee on, the service counts as saturated.
const SATURATED: f64 = 0.9;
/// A cut to less than this share is compared.
const CUT: f64 = 0.75;
/// No more than this is cut at once.
const STEP: f64 = 0.5;
/// Above this share of denials, phases are lowered; below `FREE_BELOW`, the limit is free.
const LOWERED_ABOVE: f64 = 0.03;
const FREE_BELOW: f64 = 0.01;
/// While free: the limit is `ROOM` times what was in flight, at most `WIDE` times what the base
/// explains, and at least `LEAST_FREE`.
const ROOM: f64 = 2.0;
const WIDE: f64 = 5.0;
const LEAST_FREE: f64 = 16.0;
/// Up to so many times its lowest, the base counts as the service's own.
const TRUSTED: f64 = 1.5;
/// Below this share of the capacity the service counts as idle.
const IDLE: f64 = 0.4;

/// The knee of Little's law: the default controller.
///
/// It estimates the throughput of the saturated service, and its latency without a queue, in
/// turns. Their product is the knee: the fewest requests in flight that keep the service busy. The
/// limit is the knee and some headroom: a quarter, and more near the capacity, up to two knees. It
/// denies nothing to learn while nothing is overloaded.
///
/// [`Explanation::phase`](crate::Explanation::phase) tells its phase:
///
/// - [`Free`](Phase::Free), while nothing is denied: the limit leaves room, twice what was in
///   flight, and at most five times what the latency explains, or 16. It is never cut. So what
///   waits before the limit without being denied, such as in a queue, is no demand to it, and the
///   limit rises until nothing waits.
/// - [`Measuring`](Phase::Measuring), from a denial on: the throughput is measured, and the limit
///   follows the knee.
/// - [`Lowered`](Phase::Lowered), now and then while requests are denied: the limit is 0.85 knees,
///   or half a knee, so that nothing queues, and the latency is measured. It becomes rare as the
///   latency becomes certain.
/// - [`Comparing`](Phase::Comparing), after a cut by a quarter: either the latency falls, so it was
///   that of a queue, or the throughput does, so the cut was too deep.
#[derive(Clone, Copy, Debug)]
pub struct Knee {
    headroom: f64,
    slots: f64,
    rise: f64,
    most_base: f64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    limit: f64,
    capacity: Estimate,
    base: Estimate,
    /// The lowest base, and the samples behind it.
    lowest: f64,
    lowest_weight: f64,
    /// The capacity when the base was last near its lowest; 0 if it never was.
    peak: f64,
    load: Estimate,
    variation: f64,
    windows: f64,
    denied: f64,
    most: f64,
    /// Averages of about a second: the throughput, and the requests admitted.
    served: f64,
    admitted: f64,
    free: bool,
    free_windows: u32,
    /// Whether the base was not verified since it changed.
    fresh: bool,
    spacing: f64,
    lowered_at: f64,
    lowered_for: f64,
    began: f64,
    knee_at_cut: f64,
    /// What a comparison compares with.
    before: Point,
    highest: Point,
    start: Start,
}

/// The requests in flight, the throughput, and when.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    in_flight: f64,
    throughput: f64,
    at: f64,
}

/// The slow start: the first base, and the throughput of the window before.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    base: f64,
    throughput: f64,
}

impl Knee {
    /// Creates the controller with its default settings.
    pub const fn new() -> Self {
        Self {
            headroom: 0.25,
            slots: 2.0,
            rise: 2.2,
            most_base: f64::INFINITY,
            state: State::new(),
        }
    }

    /// Prefers latency to throughput where both cannot be had: with few workers, and near the
    /// capacity. The queue is then at most as long as the service is wide.
    #[must_use]
    pub const fn latency_first(self) -> Self {
        Self { slots: 1.0, ..self }
    }

    /// Sets how far the base may rise above the lowest that was measured since the service was last
    /// idle. The default is 2.2. This bounds the limit where several limiters share a service. A
    /// service whose latency without a queue grows by more, in the middle of an overload, is used
    /// less than it could be until its load falls.
    #[must_use]
    pub const fn rise(self, factor: f64) -> Self {
        Self {
            rise: factor,
            ..self
        }
    }

    /// Sets the latency without a queue that cannot be right: the base is never believed to be
    /// above it.
    #[must_use]
    pub const fn most_base(self, latency: Duration) -> Self {
        Self {
            most_base: latency.as_secs_f64(),
            ..self
        }
    }
}

impl Default for Knee {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    const fn new() -> Self {
        const NONE: Estimate = Estimate::NONE;
        const NOWHERE: Point = Point {
            in_flight: 0.0,
            throughput: 0.0,
            at: 0.0,
        };
        Self {
            phase: Phase::Starting,
            limit: 0.0,
            capacity: NONE,
            base: NONE,
            lowest: 0.0,
            lowest_weight: 0.0,
            peak: 0.0,
            load: NONE,
            variation: 0.0,
            windows: 0.0,
            denied: 0.0,
            most: 0.0,
            served: 0.0,
            admitted: 0.0,
            free: true,
            free_windows: 0,
            fresh: true,
            spacing: 1.0,
            lowered_at: 0.0,
            lowered_for: 0.0,
            began: 0.0,
            knee_at_cut: 0.0,
            before: NOWHERE,
            highest: NOWHERE,
            start: Start {
                base: 0.0,
                throughput: 0.0,
            },
        }
    }

    fn knee(&self) -> f64 {
        self.capacity.value * self.base.value
    }

    /// How long the phase took that ends with this window, and `more` seconds. One in which the
    /// service or the clock stood still took as long as others: else the next would come after as
    /// many hours.
    fn took(&self, seen: Seen<'_>, more: f64) -> f64 {
        let took = seen.window.now - self.began + more;
        let usual = seen.samples / self.capacity.value + self.base.value;
        if took > STOOD_STILL * usual {
            usual
        } else {
            took
        }
    }

    /// How many samples a window needs, as a multiple of the usual number.
    fn noise(&self, most: f64) -> f64 {
        (self.variation.max(0.25) / VARIATION).clamp(1.0, most)
    }

    /// From how many requests in flight on the service counts as saturated.
    fn saturated_from(&self, limit: u32) -> u32 {
        let by_limit = ceil(SATURATED * f64::from(limit));
        let by_knee = floor(SATURATED * self.knee());
        let from = if self.capacity.known() {
            by_limit.min(by_knee)
        } else {
            by_limit
        };
        from.max(1.0) as u32
    }

    fn measure_variation(&mut self, window: &Window<'_>) {
        let variation = window.variation();
        self.windows += 1.0;
        if self.windows <= 1.0 {
            self.variation = variation.max(0.3);
        } else {
            self.variation += (1.0 / self.windows).max(0.1) * (variation - self.variation);
        }
    }

    fn error(&self, samples: f64) -> f64 {
        Window::error(self.variation.max(0.25), samples)
    }
}

/// A window and what every phase takes from it.
#[derive(Clone, Copy, Debug)]
struct Seen<'a> {
    window: &'a Window<'a>,
    samples: f64,
    throughput: f64,
    in_flight: f64,
    /// By Little's law.
    latency: f64,
}

impl Knee {
    fn lowered(&mut self, seen: Seen<'_>) {
        let memory = BASE_MEMORY * self.state.variation.max(0.25);
        let state = &mut self.state;
        let (latency, samples) = (seen.latency, seen.samples);
        let error = state.error(samples);
        if state.fresh && latency < state.base.value * exp(-1.5 * error) {
            state.fresh = latency < 0.8 * state.base.value;
            state.base.set(latency, samples);
        } else if state.base.add(seen.measured(latency, error), memory, true) {
            state.fresh = true;
        } else if latency > state.base.value * 0.999 {
            state.fresh = false;
        }
        let certain = SPACING * state.base.weight / memory;
        state.spacing = if state.fresh || state.base.surprised() {
            1.0
        } else {
            certain.clamp(1.0, SPACING)
        };
        state.lowered_for = state.took(seen, seen.window.latency());
        state.lowered_at = seen.window.now;
        self.follow_lowest(samples);
        let state = &mut self.state;
        // Verified: the capacity is that of this base.
        let verified = !state.fresh && !state.base.surprised();
        if verified && state.base.value <= TRUSTED * state.lowest {
            state.peak = state.capacity.value;
        }
    }

    /// The slope of the latency over the requests in flight tells what the limit that was cut had
    /// been: near 1, the cut removed a queue; near 0, it removed work.
    fn compare(&mut self, seen: Seen<'_>) {
        let state = &mut self.state;
        let (before, window) = (state.before, seen.window);
        let cut = ln(seen.in_flight / before.in_flight);
        if cut < -0.15 {
            let slope = 1.0 - ln(seen.throughput / before.throughput) / cut;
            // Below -0.7 the service itself has changed meanwhile.
            if slope > -0.7 && slope < 0.5 && seen.latency > state.base.value {
                let base = seen.latency.min(5.0 * state.base.value);
                state.base.set(base, seen.samples);
                if before.throughput > state.capacity.value {
                    state.capacity.set(before.throughput, SAMPLES);
                }
                state.fresh = true;
                state.spacing = 1.0;
                state.lowered_for = 1.5 * state.took(seen, 0.0);
                state.lowered_at = window.now;
                self.follow_lowest(0.0);
            }
        }
    }

    /// Follows the lowest base. Call it after each change of the base, with the samples behind it.
    fn follow_lowest(&mut self, samples: f64) {
        let state = &mut self.state;
        state.base.value = state.base.value.min(self.most_base);
        let settled = BASE_MEMORY * state.variation.max(0.25);
        state.lowest_weight = (state.lowest_weight + samples).min(settled);
        if state.lowest == 0.0 || state.base.value < state.lowest {
            state.lowest = state.base.value;
        } else if state.lowest_weight < settled {
            // Young: one sample too low would bound it for ever.
            let share = samples / state.lowest_weight.max(1.0);
            state.lowest += share * (state.base.value - state.lowest);
        }
    }

    /// The highest limit that the lowest base allows. It depends on nothing that is measured while
    /// the base is high, so the limit can neither run away nor starve.
    fn bound(&self, headroom: f64) -> f64 {
        let state = &self.state;
        if state.peak == 0.0 {
            return f64::INFINITY;
        }
        let knee = state.peak * state.lowest;
        (knee * self.rise * (1.0 + self.headroom)).max(knee * (1.0 + headroom))
    }

    /// The share of the knee that is added to it. A queue is worth its latency only near the
    /// capacity: there up to two knees, and a quarter under a clear overload. (The loss of a
    /// service with room for `k` waiting requests falls with `load^-k`, so `k` is a multiple of `1
    /// / ln(load)`.)
    fn headroom(&self) -> f64 {
        let load = (self.state.load.value / self.state.capacity.value).max(1.000_1);
        let slots = self.slots / (ln(load) + 0.05);
        let most = if self.slots < 2.0 { 1.0 } else { 2.0 };
        (slots / self.state.knee().max(0.5))
            .min(most)
            .max(self.headroom)
    }

    /// A window of the phases Free and Measuring. Returns whether the limit follows the knee.
    fn measured(&mut self, seen: Seen<'_>) -> bool {
        let window = seen.window;
        let (busy, ended) = window.saturated(self.state.saturated_from(window.limit));
        self.follow(seen);
        let state = &mut self.state;
        let binds = window.denied > 0 && busy >= 0.15 * window.seconds && ended >= 5.0;
        let (rate, samples) = if binds {
            (ended / busy, ended)
        } else {
            (seen.throughput, seen.samples)
        };
        let error = state.error(samples);
        if binds {
            if state.free && state.free_windows >= 5 {
                // What was learned while free is a beginning.
                state.capacity.weight = state.capacity.weight.min(samples);
                let most = 0.2 * BASE_MEMORY * state.variation.max(0.25);
                state.base.weight = state.base.weight.min(most);
                state.spacing = 0.2 * SPACING;
            }
            state.free_windows = 0;
        } else {
            state.free_windows = state.free_windows.saturating_add(1);
        }
        if binds || !state.capacity.known() || rate > state.capacity.value {
            let memory = CAPACITY_MEMORY * state.variation.max(0.25);
            let measured = Measured {
                value: rate,
                samples,
                error,
            };
            state.capacity.add(measured, memory, true);
        }
        let usual = ln(rate / state.capacity.value).abs() < 2.0 * error;
        let throughput = if usual { state.capacity.value } else { rate };
        state.before = Point {
            in_flight: seen.in_flight,
            throughput,
            at: window.now,
        };
        if !binds {
            self.roam(seen);
        }
        binds
    }

    /// Follows the load.
    fn follow(&mut self, seen: Seen<'_>) {
        let (window, state) = (seen.window, &mut self.state);
        let kept = |time: f64| exp(-window.seconds / time);
        state.most = f64::from(window.most_in_flight()).max(state.most * kept(10.0));
        state.denied += (1.0 - kept(2.0)) * (window.denied_share() - state.denied);
        let arrived = window.arrived();
        if arrived > 0.0 {
            let measured = Measured {
                value: arrived / window.seconds,
                samples: arrived,
                error: 1.0 / crate::math::sqrt(arrived),
            };
            state.load.add(measured, LOAD_MEMORY, true);
        }
        let admitted = (arrived - f64::from(window.denied)) / window.seconds;
        let share = if state.windows <= 1.0 {
            1.0
        } else {
            1.0 - kept(1.0)
        };
        state.served += share * (seen.throughput - state.served);
        state.admitted += share * (admitted - state.admitted);
    }

    /// Nothing binds: learns the base if the service is idle, and leaves room.
    fn roam(&mut self, seen: Seen<'_>) {
        let window = seen.window;
        let state = &mut self.state;
        let memory = BASE_MEMORY * state.variation.max(0.25);
        let measured = seen.measured(window.latency(), state.error(seen.samples));
        let idle =
            state.served <= IDLE * state.capacity.value && state.served >= 0.95 * state.admitted;
        if idle {
            state.base.add(measured, memory, false);
            // Nothing queues, so the latency is the service's own.
            state.lowest = state.base.value;
            state.lowest_weight = memory;
        } else {
            state.base.fall_to(measured);
            self.follow_lowest(0.0);
        }
        let state = &mut self.state;
        if state.denied < FREE_BELOW {
            let explained = WIDE * state.served.max(seen.throughput) * state.lowest;
            let room = (ROOM * state.most).min(explained).max(LEAST_FREE);
            state.limit = room.max(state.limit + 0.1 * (room - state.limit));
        }
    }

    /// Sets the limit to the knee and its headroom, and chooses the next phase.
    fn set_limit(&mut self, now: f64, old: f64) {
        let headroom = self.headroom();
        let state = &mut self.state;
        if state.base.value <= TRUSTED * state.lowest {
            state.peak = state.peak.max(state.capacity.value);
        }
        let wanted = (self.state.knee() * (1.0 + headroom)).min(self.bound(headroom));
        let state = &mut self.state;
        state.limit = wanted.max(STEP * old).max(1.0);
        let limit = ceil(state.limit);
        let before = state.before;
        // The highest recent point notices many small cuts.
        let old_point = state.highest;
        if old_point.in_flight <= 0.0
            || limit >= 0.92 * old_point.in_flight
            || now - old_point.at > 10.0
        {
            state.highest = before;
        }
        let fell = state.free || state.knee() < 0.8 * state.knee_at_cut;
        state.phase = Phase::Measuring;
        if limit < CUT * old && fell {
            self.begin(Phase::Comparing, now);
        } else if limit < CUT * state.highest.in_flight {
            state.before = state.highest;
            self.begin(Phase::Comparing, now);
        } else if state.denied > LOWERED_ABOVE
            && now - state.lowered_at >= state.spacing * state.lowered_for
        {
            let share = if state.fresh { LOWERED_FRESH } else { LOWERED };
            let lowered = floor(share * state.knee()).max(1.0);
            if lowered < limit {
                self.begin(Phase::Lowered, now);
            } else {
                state.lowered_at = now;
            }
        }
        let state = &mut self.state;
        state.free = false;
        state.knee_at_cut = state.knee();
    }

    fn begin(&mut self, phase: Phase, now: f64) {
        self.state.phase = phase;
        self.state.began = now;
        if phase == Phase::Comparing {
            self.state.highest = Point::default();
        }
    }

    /// The slow start. While requests are denied, the limit doubles, until the throughput no longer
    /// grows with it. Returns what the window still lacks, if anything.
    fn start(&mut self, seen: Seen<'_>) -> Option<Decision> {
        let (window, state) = (seen.window, &mut self.state);
        let limit = f64::from(window.limit);
        if window.denied > 0 && seen.in_flight >= 0.6 * limit {
            let grew = seen.throughput > 1.35 * state.start.throughput;
            if grew {
                // The service had room, so this is its latency without a queue, or nearly.
                state.start.throughput = seen.throughput;
                state.start.base = seen.latency;
                state.limit = 2.0 * limit;
                let samples = (2.0 * state.limit).clamp(8.0, FEW_SAMPLES);
                return Some(Decision::limit(state.limit as u32).after(samples as u32, 0.0));
            }
        } else if window.seconds < 1.0 || seen.samples < FEW_SAMPLES * state.noise(3.0) {
            let samples = if window.denied > 0 {
                SAMPLES
            } else {
                FEW_SAMPLES * state.noise(3.0)
            };
            return Some(
                Decision::limit(window.limit)
                    .after(samples as u32, 1.0)
                    .waiting(),
            );
        }
        if state.start.base == 0.0 {
            state.start.base = window.latency_of_first(FEW_SAMPLES as usize);
        }
        let base = state.start.base;
        state.base.set(base, 0.25 * FEW_SAMPLES);
        state.phase = Phase::Free;
        state.limit = limit;
        None
    }
}

impl Seen<'_> {
    fn measured(self, value: f64, error: f64) -> Measured {
        Measured {
            value,
            samples: self.samples,
            error,
        }
    }
}

impl Controller for Knee {
    fn begin(&mut self, initial: u32) -> Decision {
        self.state.limit = initial.into();
        // Few at a low limit, of which each doubling takes one window. Many at once end the
        // shortest first, so there a window of less than a second misleads.
        let seconds = if initial < 8 { 0.0 } else { 1.0 };
        Decision::limit(initial).after(initial.saturating_mul(2).clamp(8, 60), seconds)
    }

    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let samples = f64::from(window.recorded());
        let throughput = window.throughput();
        let in_flight = window.in_flight().max(0.1);
        let seen = Seen {
            window,
            samples,
            throughput,
            in_flight,
            latency: in_flight / throughput,
        };
        // By Little's law, a latency is over once as many requests have ended as are in flight. So
        // latencies that are no such thing (the machine was suspended) keep no window open.
        let is_full = samples >= 4.0 * in_flight.max(FEW_SAMPLES);
        if window.seconds < 0.7 * window.latency() && !is_full {
            // Less than a latency long: it says more about when requests came than about service.
            let seconds = (0.7 * window.latency()).min(8.0 * window.seconds);
            return Decision::limit(window.limit)
                .after(window.recorded() + 2, seconds)
                .waiting();
        }
        if self.state.phase == Phase::Starting
            && let Some(waits) = self.start(seen)
        {
            return waits;
        }
        self.state.measure_variation(window);
        let old = f64::from(window.limit);
        let now = window.now;
        match self.state.phase {
            Phase::Lowered => {
                self.lowered(seen);
                let headroom = self.headroom();
                self.state.limit = (self.state.knee() * (1.0 + headroom)).min(self.bound(headroom));
                self.state.limit = self.state.limit.max(STEP * old).max(1.0);
                self.state.phase = Phase::Measuring;
            }
            Phase::Comparing => {
                self.compare(seen);
                self.state.before.in_flight = in_flight;
                self.set_limit(now, old);
            }
            _ => {
                if self.measured(seen) {
                    self.set_limit(now, old);
                } else if self.state.denied < FREE_BELOW {
                    self.state.free = true;
                    self.state.phase = Phase::Free;
                }
            }
        }
        self.next()
    }
}

impl Knee {
    fn next(&self) -> Decision {
        let state = &self.state;
        let lowered = state.phase == Phase::Lowered;
        let share = if state.fresh { LOWERED_FRESH } else { LOWERED };
        let limit = if lowered {
            floor(share * state.knee())
        } else {
            ceil(state.limit)
        };
        let samples = match state.phase {
            Phase::Lowered | Phase::Comparing => FEW_SAMPLES * state.noise(3.0),
            _ => SAMPLES * state.noise(6.0),
        };
        Decision::limit(limit.clamp(1.0, 1e9) as u32)
            .after(samples as u32, 0.0)
            .in_phase(state.phase)
            .estimating(state.capacity.value, state.base.value)
    }
}
