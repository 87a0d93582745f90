//! A concurrency limit and what finds it.
//!
//! State: the limiter's word (`Concurrency`), which alone decides; a
//! [`Recorder`](crate::recorder), which leases write when they end; the controller, in
//! [`Turns`](crate::turn). Transitions:
//!
//! - a *request* is decided by the word. A denial adds 1 to a count;
//! - an *end* returns the permits to the word, then adds 1 to the recorder's cursor, and leaves a
//!   sample;
//! - a *close*: the end that finds the window due claims the controller, asks it for a limit, sets
//!   the limit, and begins the next window. Who does not get the claim goes its way.
//!
//! Invariant: the word's limit lies between the floor and the ceiling at every moment, whatever a
//! controller returns, and the word grants nothing beyond it. So no race in the recorder, no
//! panic of a controller and no thread that dies in a close admits one request too many.

use crate::controller::{Controller, Decision, Phase};
use crate::controllers::knee::Knee;
use crate::outcome::Outcome;
use crate::recorder::{Due, Recorded, Recorder};
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::Relaxed;
use crate::turn::{Turn, Turns};
use crate::window::{Window, precise};
use core::fmt;
use core::ops::Deref;
use portcullis_core::builder::Setting;
use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::{Concurrency, Denied, Limiter, Retry, SettingsError, Timestamp};

/// A concurrency limit that finds itself: a [`Concurrency`] whose limit a [`Controller`] sets, from
/// how long permits were held, and how requests ended.
///
/// **Bound.** No request is admitted that leaves more permits in use than the limit at that moment.
/// The limit is never above the ceiling and never below the floor.
///
/// **Cost.** A request costs what it costs a [`Concurrency`] limit. A denial adds 1 to a count. The
/// end of a request adds 1 to another count, and writes a sample; while more than about 500,000 end
/// each second, only one in so many does. One in about 30 ends, and at most one each 0.5 ms, closes
/// a window, which takes some microseconds. Nothing locks, waits or allocates.
///
/// **Time** is an argument, in any unit that the caller's clock counts as nanoseconds.
///
/// ```
/// use core::time::Duration;
/// use portcullis_adaptive::{Adaptive, Outcome};
/// use portcullis_core::Timestamp;
///
/// let limit = Adaptive::builder(20).floor(2).ceiling(500).build()?;
///
/// let mut now = Timestamp::from_secs(1);
/// let held = limit.try_acquire_at(now, 1)?;
/// now = now.saturating_add(Duration::from_millis(5)); // The request is served.
/// held.end_at(now, Outcome::Succeeded);
///
/// assert_eq!(limit.limiter().in_use(), 0);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Adaptive<C = Knee> {
    limiter: Concurrency,
    recorder: Recorder,
    controller: Turns<Timed<C>>,
    told: Told,
    floor: u32,
    ceiling: u32,
    enforces: bool,
}

/// A controller, and its time.
#[derive(Clone, Copy, Debug)]
struct Timed<C> {
    controller: C,
    clock: Steady,
}

/// A clock that never moves back, whatever the callers' clock does: a step of that clock counts as
/// no time if it is backward, and once if it is forward.
#[derive(Clone, Copy, Debug)]
struct Steady {
    seconds: f64,
    last: Option<u64>,
}

impl Steady {
    fn at(&mut self, now: Timestamp) -> f64 {
        let now = now.as_nanos();
        let since = self.last.replace(now).unwrap_or(0);
        self.seconds += precise(now.saturating_sub(since)) / 1e9;
        self.seconds
    }
}

/// What was decided last. Numbers that are read together may be of two decisions.
#[derive(Debug)]
struct Told {
    limit: AtomicU32,
    phase: AtomicU32,
    capacity: AtomicU32,
    base: AtomicU32,
    windows: AtomicU32,
}

/// The last decision of an [`Adaptive`] limit: for logs, metrics and pages.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The limit that the controller found, between the floor and the ceiling.
    pub limit: u32,
    /// The permits in use.
    pub in_use: u32,
    /// The step of the controller.
    pub phase: Phase,
    /// The throughput at which the service is saturated: requests each second, 0 if not known.
    pub capacity: f32,
    /// The latency without a queue in seconds, 0 if not known.
    pub base: f32,
    /// How many windows were closed; wraps.
    pub windows: u32,
}

impl Adaptive {
    /// Returns a builder for a limit that begins with `initial` permits.
    pub fn builder(initial: u32) -> AdaptiveBuilder {
        AdaptiveBuilder {
            initial,
            floor: 1,
            ceiling: 1_000.max(initial),
            enforces: true,
            controller: Knee::new(),
        }
    }
}

impl<C: Controller> Adaptive<C> {
    /// Takes `n` permits at `now`. Call [`Held::end_at`] when the request has ended.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the permits in use and `n` would exceed the limit.
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Held<&Self, C>, Denied> {
        Held::try_acquire_at(self, now, n)
    }

    /// Returns the limit that holds now. In shadow mode, the one that would hold.
    pub fn limit(&self) -> u32 {
        self.told.limit.load(Relaxed)
    }

    /// Returns the limiter inside.
    pub fn limiter(&self) -> &Concurrency {
        &self.limiter
    }

    /// Returns the last decision of the controller.
    pub fn explain(&self) -> Explanation {
        let told = &self.told;
        Explanation {
            limit: told.limit.load(Relaxed),
            in_use: self.limiter.in_use(),
            phase: phase_of(told.phase.load(Relaxed)),
            capacity: f32::from_bits(told.capacity.load(Relaxed)),
            base: f32::from_bits(told.base.load(Relaxed)),
            windows: told.windows.load(Relaxed),
        }
    }

    /// Decides on a request for `n` permits. The caller ends it with [`end`](Self::end).
    #[inline]
    pub(crate) fn take(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        if !self.enforces && self.limiter.in_use().saturating_add(n) > self.limit() {
            self.recorder.deny();
        }
        let taken = self.limiter.take_at(now, n);
        if taken.is_err() {
            self.recorder.deny();
        }
        taken.map(|_| ())
    }

    /// Records a request that has returned its permits, or has `own` of them still.
    #[inline]
    pub(crate) fn record(&self, since: Timestamp, now: Timestamp, own: u32, outcome: Outcome) {
        if self.recorder.leaves_out() {
            return;
        }
        // An end before its beginning: the clock was set back, and how long it took is not known.
        if outcome == Outcome::Ignored || now < since {
            self.recorder.pass();
            return;
        }
        let latency = now.saturating_since(since).as_secs_f32();
        let in_flight = self.limiter.in_use().saturating_sub(own);
        if self.recorder.end(now, latency, in_flight, outcome) == Recorded::Due {
            self.close(now);
        }
    }

    /// Closes the window, if it is due and no other thread is about to.
    #[cold]
    fn close(&self, now: Timestamp) {
        if matches!(self.recorder.due(now), Due::Nothing) {
            return;
        }
        let seconds = now.as_nanos() / 1_000_000_000;
        let Some(turn) = self.controller.claim(seconds as u32) else {
            return;
        };
        self.decide(now, turn);
    }

    fn decide(&self, now: Timestamp, mut turn: Turn<'_, Timed<C>>) {
        let in_flight = self.limiter.in_use();
        // Another thread may have closed the window before the claim.
        let span = match self.recorder.due(now) {
            Due::Nothing => return,
            Due::Restart(tag) => return self.recorder.restart(tag, now, in_flight),
            Due::Close(span) => span,
        };
        let old = self.limit();
        let decision = turn.change(|timed| {
            let clock = timed.clock.at(now);
            let window = Window::new(&self.recorder, span, clock, in_flight, old);
            let mut next = timed.controller.clone();
            let decision = next.decide(&window);
            timed.controller = next;
            decision
        });
        let age = micros(decision.seconds);
        if decision.wait {
            self.recorder.extend(span, decision.samples, age);
            return;
        }
        let limit = decision.limit.clamp(self.floor, self.ceiling);
        // Not compared with what was told: a closer may have died in between.
        if self.enforces && limit != self.limiter.limit() {
            // Refused only above the ceiling, which fits.
            let _ = self.limiter.set_limit(limit);
        }
        self.tell(limit, &decision);
        let skip = if decision.settle {
            settling(old, limit, self.limiter.in_use())
        } else {
            0
        };
        self.recorder.next(span, skip, decision.samples, age);
    }

    fn tell(&self, limit: u32, decision: &Decision) {
        let told = &self.told;
        told.limit.store(limit, Relaxed);
        told.phase.store(decision.phase as u32, Relaxed);
        told.capacity
            .store((decision.capacity as f32).to_bits(), Relaxed);
        told.base.store((decision.base as f32).to_bits(), Relaxed);
        told.windows.fetch_add(1, Relaxed);
    }
}

/// Returns how many requests must end until those that come have seen the new limit only. A change
/// of less than 8 % is none. After a cut, nothing is admitted until the permits in use fit the
/// limit: as many ends as they are too many. Then each request in flight saw the former queue.
fn settling(old: u32, new: u32, in_flight: u32) -> u32 {
    let (few, many) = (old.min(new), old.max(new));
    if u64::from(many - few) * 25 <= u64::from(many) * 2 {
        return 0;
    }
    let drain = if new < old {
        in_flight.saturating_sub(new)
    } else {
        0
    };
    drain + few.min(in_flight)
}

fn micros(seconds: f64) -> u32 {
    // Saturates.
    (seconds * 1e6) as u32
}

fn phase_of(number: u32) -> Phase {
    match number {
        0 => Phase::Starting,
        1 => Phase::Free,
        2 => Phase::Measuring,
        3 => Phase::Lowered,
        _ => Phase::Comparing,
    }
}

/// It is the limiter inside. What is taken through this interface, and not by
/// [`try_acquire_at`](Adaptive::try_acquire_at), counts in the limit and tells the controller
/// nothing.
impl<C: Controller> Limiter for Adaptive<C> {
    #[inline]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let counts = ask.is_final() && !ask.is_look();
        let answer = self.limiter.decide(ask);
        if counts && matches!(answer, Answer::Denied(_)) {
            self.recorder.deny();
        }
        answer
    }

    #[inline]
    fn give_back(&self, back: Back<'_>) -> Returned {
        if let Back::Release { .. } = back {
            self.recorder.pass();
        }
        self.limiter.give_back(back)
    }

    fn read(&self, read: Read<'_>) -> Reading {
        self.limiter.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        Limiter::retry(&self.limiter, denied)
    }
}

impl<C> fmt::Debug for Adaptive<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptive")
            .field("limiter", &self.limiter)
            .field("told", &self.told)
            .finish_non_exhaustive()
    }
}

/// Builds an [`Adaptive`] limit. Created by [`Adaptive::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct AdaptiveBuilder<C = Knee> {
    initial: u32,
    floor: u32,
    ceiling: u32,
    enforces: bool,
    controller: C,
}

impl<C: Controller> AdaptiveBuilder<C> {
    /// Sets the lowest limit, at least 1. The default is 1.
    pub const fn floor(mut self, floor: u32) -> Self {
        self.floor = floor;
        self
    }

    /// Sets the highest limit. The default is 1,000, or the initial limit if that is more.
    pub const fn ceiling(mut self, ceiling: u32) -> Self {
        self.ceiling = ceiling;
        self
    }

    /// Computes and reports the limit, and denies only above the ceiling.
    pub const fn shadow(mut self) -> Self {
        self.enforces = false;
        self
    }

    /// Sets the controller. The default is [`Knee`].
    pub fn controller<D: Controller>(self, controller: D) -> AdaptiveBuilder<D> {
        AdaptiveBuilder {
            initial: self.initial,
            floor: self.floor,
            ceiling: self.ceiling,
            enforces: self.enforces,
            controller,
        }
    }

    /// Builds the limit.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the floor is 0, or the ceiling is below the floor or above
    /// [`Concurrency::max_limit`].
    pub fn build(mut self) -> Result<Adaptive<C>, SettingsError> {
        if self.floor == 0 {
            let setting = Setting::Limit;
            return Err(SettingsError::Zero { setting });
        }
        if self.floor > self.ceiling {
            return Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max: self.ceiling.into(),
            });
        }
        let _ceiling_fits = Concurrency::builder(self.ceiling).build()?;
        let clock = Steady {
            seconds: 0.0,
            last: None,
        };
        let second = Timed {
            controller: self.controller.clone(),
            clock,
        };
        let first = self.controller.begin(self.initial);
        let limit = first.limit.clamp(self.floor, self.ceiling);
        let held = if self.enforces { limit } else { self.ceiling };
        Ok(Adaptive {
            limiter: Concurrency::builder(held).build()?,
            recorder: Recorder::new(limit.min(20), first.samples, micros(first.seconds)),
            controller: Turns::new(
                Timed {
                    controller: self.controller,
                    clock,
                },
                second,
            ),
            told: Told {
                limit: AtomicU32::new(limit),
                phase: AtomicU32::new(Phase::Starting as u32),
                capacity: AtomicU32::new(0),
                base: AtomicU32::new(0),
                windows: AtomicU32::new(0),
            },
            floor: self.floor,
            ceiling: self.ceiling,
            enforces: self.enforces,
        })
    }
}

/// Permits of an [`Adaptive`] limit that a request holds, and since when.
///
/// [`end_at`](Self::end_at) returns them and tells how the request ended. A drop returns them as
/// [`Outcome::Ignored`]: a request that was cancelled, or that panicked, teaches nothing.
///
/// `P` points to the limit: `&Adaptive`, `Arc<Adaptive>` or any other `Deref`.
#[must_use = "a dropped lease returns its permits and tells nothing"]
pub struct Held<P, C = crate::Knee>
where
    P: Deref<Target = Adaptive<C>>,
    C: Controller,
{
    limit: P,
    since: Timestamp,
    permits: u32,
    told: bool,
}

impl<P, C> Held<P, C>
where
    P: Deref<Target = Adaptive<C>>,
    C: Controller,
{
    /// Takes `n` permits of `limit` at `now`, as [`Adaptive::try_acquire_at`] does, and keeps the
    /// pointer: for example an `Arc`.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then the pointer is dropped.
    #[inline]
    pub fn try_acquire_at(limit: P, now: Timestamp, n: u32) -> Result<Self, Denied> {
        limit.take(now, n).map(|()| Self {
            limit,
            since: now,
            permits: n,
            told: false,
        })
    }

    /// Returns the permits at `now`, and tells how the request ended, unless
    /// [`tell_at`](Self::tell_at) has.
    #[inline]
    pub fn end_at(mut self, now: Timestamp, outcome: Outcome) {
        self.end(now, outcome);
    }

    /// Tells at `now` how the request ended, and keeps the permits: for a service whose answer is
    /// known before its work is done, such as the head of a response. Only the first call tells.
    #[inline]
    pub fn tell_at(&mut self, now: Timestamp, outcome: Outcome) {
        if !core::mem::replace(&mut self.told, true) {
            self.limit.record(self.since, now, self.permits, outcome);
        }
    }

    #[inline]
    fn end(&mut self, now: Timestamp, outcome: Outcome) {
        let permits = core::mem::take(&mut self.permits);
        if permits > 0 {
            self.limit.limiter.release(permits);
            self.tell_at(now, outcome);
        }
    }

    /// Returns the number of permits.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns when the permits were taken.
    pub fn since(&self) -> Timestamp {
        self.since
    }
}

impl<P, C> Drop for Held<P, C>
where
    P: Deref<Target = Adaptive<C>>,
    C: Controller,
{
    #[inline]
    fn drop(&mut self) {
        self.end(self.since, Outcome::Ignored);
    }
}

impl<P, C> fmt::Debug for Held<P, C>
where
    P: Deref<Target = Adaptive<C>>,
    C: Controller,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("permits", &self.permits)
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}
