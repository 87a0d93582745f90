//! A service of so many workers with one queue, and the limits before it, as events in virtual
//! time.

use crate::adaptive::{Adaptive, Explanation, Held};
use crate::controller::Controller;
use crate::outcome::Outcome;
use crate::simulate::random::Random;
use crate::simulate::scenario::{Check, Scenario, Span};
use core::cmp::Reverse;
use portcullis_core::Timestamp;
use std::collections::{BinaryHeap, VecDeque};

/// What one run of a scenario measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The checks of the scenario.
    pub checks: Vec<Measured>,
    /// What happened in each second.
    pub course: Vec<Second>,
}

/// What happened in a second.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Second {
    /// The limit at its end, all limiters together.
    pub limit: u32,
    /// How many requests ended.
    pub served: f64,
    /// Their mean latency, in seconds.
    pub latency: f64,
    /// The last decision of the first limiter.
    pub decision: Explanation,
}

/// What was measured for one check.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Measured {
    /// The check.
    pub check: Check,
    /// The share of the capacity that was served, for the service times that were drawn.
    pub goodput: f64,
    /// The mean latency, as a multiple of the one without a queue.
    pub latency: f64,
    /// The share of the requests that was admitted.
    pub admitted: f64,
    /// The mean limit, all limiters together.
    pub limit: f64,
    /// By how much it differs from that of the check before, as a share.
    pub drift: f64,
}

impl Measured {
    /// Returns the names of the ranges that were missed.
    pub fn misses(&self) -> Vec<&'static str> {
        let check = &self.check;
        let ranges = [
            (
                "goodput",
                check.goodput.is_some_and(|least| self.goodput < least),
            ),
            (
                "latency",
                check.latency.is_some_and(|most| self.latency > most),
            ),
            (
                "admitted",
                check.admitted.is_some_and(|least| self.admitted < least),
            ),
            (
                "limit",
                check
                    .limit
                    .is_some_and(|[low, high]| !(low..=high).contains(&self.limit)),
            ),
            (
                "drift",
                check.drift.is_some_and(|most| self.drift.abs() > most),
            ),
        ];
        let missed = ranges.into_iter().filter(|(_, missed)| *missed);
        missed.map(|(name, _)| name).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    /// A worker is done with a request, which may take time elsewhere.
    Served(usize),
    Ended(usize),
}

/// Nanoseconds, so that events have an order.
type Instant = u64;

const SECOND: f64 = 1e9;
const CEILING: u32 = 100_000;
/// The simulation begins at one second, so that no time is 0.
const ORIGIN: f64 = 1.0;

#[derive(Clone, Copy, Default)]
struct Sums {
    arrived: f64,
    admitted: f64,
    served: f64,
    latency: f64,
    limit: f64,
    work: f64,
    works: f64,
}

struct Request<'a, C: Controller> {
    held: Held<&'a Adaptive<C>, C>,
    limiter: usize,
    since: f64,
}

struct World<'a, C: Controller> {
    limits: &'a [Adaptive<C>],
    /// The requests in flight of each limit, as the service sees them.
    in_flight: Vec<u32>,
    spans: &'a [Span],
    checks: &'a [Check],
    sums: Vec<Sums>,
    random: Random,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    sequence: u64,
    requests: Vec<Option<Request<'a, C>>>,
    unused: Vec<usize>,
    queue: VecDeque<usize>,
    busy: u32,
    course: Vec<Second>,
    recent: (f64, f64),
    seconds: f64,
}

impl Scenario {
    /// Runs the scenario with `controller` in each of its limits. The same `seed` gives the same
    /// run.
    ///
    /// # Panics
    ///
    /// If the initial limit exceeds what a limit can be, or a request is admitted over the limit.
    pub fn run<C: Controller>(&self, controller: &C, seed: u64) -> Run {
        let mut random = Random::new(seed);
        let shift = random.share() * self.phase;
        let spans = shifted(&self.spans, |span, first| {
            span.from += if first { 0.0 } else { shift };
        });
        let checks = shifted(&self.checks, |check, _| {
            check.from += shift;
            check.to += shift;
        });
        let limits: Vec<_> = (0..self.limiters)
            .map(|_| {
                let builder = Adaptive::builder(self.initial).ceiling(CEILING);
                builder.controller(controller.clone()).build()
            })
            .collect::<Result<_, _>>()
            .expect("the initial limit fits");
        let mut world = World {
            limits: &limits,
            in_flight: vec![0; limits.len()],
            spans: &spans,
            checks: &checks,
            sums: vec![Sums::default(); checks.len()],
            random,
            events: BinaryHeap::new(),
            sequence: 0,
            requests: Vec::new(),
            unused: Vec::new(),
            queue: VecDeque::new(),
            busy: 0,
            course: Vec::new(),
            recent: (0.0, 0.0),
            seconds: self.seconds + shift,
        };
        world.run();
        Run {
            checks: world.measured(),
            course: world.course,
        }
    }
}

fn shifted<T: Copy>(all: &[T], shift: impl Fn(&mut T, bool)) -> Vec<T> {
    let mut all = all.to_vec();
    for (at, one) in all.iter_mut().enumerate() {
        shift(one, at == 0);
    }
    all
}

impl<C: Controller> World<'_, C> {
    fn run(&mut self) {
        self.schedule(0.0, Event::Arrival);
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            let now = at as f64 / SECOND - ORIGIN;
            if now > self.seconds {
                break;
            }
            while (self.course.len() as f64) < now {
                let (ended, latency) = core::mem::take(&mut self.recent);
                self.course.push(Second {
                    limit: self.limit(),
                    served: ended,
                    latency: latency / ended.max(1.0),
                    decision: self.limits[0].explain(),
                });
            }
            let span = self.span(now);
            match event {
                Event::Arrival => self.arrive(now, span),
                Event::Served(request) => {
                    self.busy -= 1;
                    let slow = span.slow_share > 0.0 && self.random.share() < span.slow_share;
                    let more = span.extra + if slow { span.slow } else { 0.0 };
                    self.schedule(now + more, Event::Ended(request));
                }
                Event::Ended(request) => self.end(now, span, request),
            }
            self.serve(now, span);
        }
    }

    fn schedule(&mut self, at: f64, event: Event) {
        self.sequence += 1;
        let at = ((at + ORIGIN) * SECOND) as Instant;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn span(&self, now: f64) -> Span {
        let begun = self.spans.iter().rev().find(|span| span.from <= now);
        *begun.unwrap_or(&self.spans[0])
    }

    fn limit(&self) -> u32 {
        self.limits.iter().map(Adaptive::limit).sum()
    }

    fn sum(&mut self, now: f64, add: impl Fn(&mut Sums)) {
        for (check, sums) in self.checks.iter().zip(&mut self.sums) {
            if (check.from..check.to).contains(&now) {
                add(sums);
            }
        }
    }

    fn load(&self, now: f64, span: Span) -> (f64, f64) {
        let next = self.spans.iter().find(|other| other.from > span.from);
        let end = next.map_or(self.seconds, |next| next.from);
        let share = ((now - span.from) / (end - span.from).max(1e-9)).clamp(0.0, 1.0);
        (span.load + share * (span.load_to - span.load), end)
    }

    fn arrive(&mut self, now: f64, span: Span) {
        let (load, end) = self.load(now, span);
        let gap = self.random.exponential(f64::from(span.batch) / load);
        // The next span has its own load. A microsecond later, so that rounding does not lead back.
        let next = (now + gap).min(end.max(now) + 1e-6);
        self.schedule(next, Event::Arrival);
        for _ in 0..span.batch {
            let limits = self.limits;
            let chosen = (self.random.share() * limits.len() as f64) as usize;
            let at = instant(now, span);
            let limit = f64::from(self.limit());
            let held = limits[chosen].try_acquire_at(at, 1);
            let admitted = f64::from(u8::from(held.is_ok()));
            self.sum(now, |sums| {
                sums.arrived += 1.0;
                sums.limit += limit;
                sums.admitted += admitted;
            });
            if let Ok(held) = held {
                self.in_flight[chosen] += 1;
                let (most, limit) = (self.in_flight[chosen], limits[chosen].limit());
                assert!(most <= limit && limit <= CEILING, "{most} of {limit}");
                let request = self.keep(Request {
                    held,
                    limiter: chosen,
                    since: now,
                });
                self.queue.push_back(request);
            }
        }
    }
}

fn instant(now: f64, span: Span) -> Timestamp {
    Timestamp::from_nanos(((now + ORIGIN + span.clock) * SECOND) as u64)
}

impl<'a, C: Controller> World<'a, C> {
    fn keep(&mut self, request: Request<'a, C>) -> usize {
        if let Some(place) = self.unused.pop() {
            self.requests[place] = Some(request);
            return place;
        }
        self.requests.push(Some(request));
        self.requests.len() - 1
    }

    fn end(&mut self, now: f64, span: Span, place: usize) {
        let Some(request) = self.requests[place].take() else {
            return;
        };
        self.unused.push(place);
        self.in_flight[request.limiter] -= 1;
        let latency = now - request.since;
        request.held.end_at(instant(now, span), Outcome::Succeeded);
        self.recent.0 += 1.0;
        self.recent.1 += latency;
        self.sum(now, |sums| {
            sums.served += 1.0;
            sums.latency += latency;
        });
    }

    fn serve(&mut self, now: f64, span: Span) {
        while self.busy < span.workers {
            let Some(request) = self.queue.pop_front() else {
                return;
            };
            self.busy += 1;
            let work = self.random.time(span.service);
            self.sum(now, |sums| {
                sums.work += work;
                sums.works += 1.0;
            });
            self.schedule(span.end_of(now, work), Event::Served(request));
        }
    }

    fn measured(&self) -> Vec<Measured> {
        let mut before = 0.0;
        let all = self.checks.iter().zip(&self.sums);
        all.map(|(check, sums)| {
            let span = self.span(check.from);
            let rate = sums.served / (check.to - check.from);
            let drawn = sums.work / sums.works.max(1.0) / span.service.mean();
            let limit = sums.limit / sums.arrived.max(1.0);
            let drift = if before > 0.0 {
                limit / before - 1.0
            } else {
                0.0
            };
            before = limit;
            Measured {
                check: *check,
                goodput: rate / span.capacity() * drawn,
                latency: sums.latency / sums.served.max(1.0) / span.base(),
                admitted: sums.admitted / sums.arrived.max(1.0),
                limit,
                drift,
            }
        })
        .collect()
    }
}
