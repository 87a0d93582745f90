//! What leases tell, until a window is closed.
//!
//! State: a cursor, and a ring of samples.
//!
//! ```text
//! cursor   31         24 23                    0
//!         +-------------+-----------------------+
//!         | window's tag|  count                |
//!         +-------------+-----------------------+
//!          count - FIRST is the number of the next sample; below FIRST, samples are skipped
//! sample   latency, f32 of seconds;   tag | outcome | in flight after it (22 bits)
//! ```
//!
//! A lease that ends adds 1 to the cursor. That gives it the tag of the window and its own number
//! in it, for itself alone. It then writes its sample into the slot of that number. The lease with
//! number 0 writes when the window began. The closer of a window moves the cursor to the next tag
//! in one swap, so each lease counts in one window exactly.
//!
//! Invariant: a sample that is read has the window's tag, so it was written by a lease that ended
//! in it (or 256 windows ago, by a thread that slept in between). Samples that are late, or whose
//! two halves are of two leases, change an estimate by one sample. No permit depends on them.

use crate::outcome::Outcome;
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use portcullis_core::Timestamp;

/// How many samples of a window are kept. More are counted.
pub(crate) const KEPT: u32 = if cfg!(portcullis_loom) { 2 } else { 256 };

const TAG_AT: u32 = 24;
const COUNT: u32 = (1 << TAG_AT) - 1;
const FIRST: u32 = 1 << 23;
const OUTCOME_AT: u32 = 22;
const IN_FLIGHT: u32 = (1 << OUTCOME_AT) - 1;

/// One request, as a controller sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sample {
    /// How long its permits were held, in seconds.
    pub latency: f64,
    /// How many permits were in use when it had returned its own.
    pub left_behind: u32,
    /// How it ended.
    pub outcome: Outcome,
}

#[derive(Debug)]
struct Slot {
    latency: AtomicU32,
    rest: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    cursor: AtomicU32,
    /// When the window began, in nanoseconds, as two halves, and its tag once they are written.
    began: [AtomicU32; 2],
    began_tag: AtomicU32,
    /// The denials when it began.
    denied_before: AtomicU32,
    in_flight_before: AtomicU32,
    denied: AtomicU32,
    /// From how many samples on the window may be closed, and from what age, in microseconds.
    needed: AtomicU32,
    age: AtomicU32,
    slots: [Slot; KEPT as usize],
}

/// What the lease that has ended may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    Open,
    Due,
}

/// A window that may be closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    tag: u32,
    pub(crate) count: u32,
    pub(crate) nanos: u64,
    pub(crate) denied: u32,
    pub(crate) in_flight_before: u32,
}

impl Recorder {
    pub(crate) fn new(skip: u32, needed: u32, age: u32) -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            cursor: AtomicU32::new(start(1, skip)),
            began: [zero(), zero()],
            began_tag: zero(),
            denied_before: zero(),
            in_flight_before: zero(),
            denied: zero(),
            needed: AtomicU32::new(needed),
            age: AtomicU32::new(age),
            slots: core::array::from_fn(|_| Slot {
                latency: zero(),
                rest: zero(),
            }),
        }
    }

    /// Counts a request that was denied, or would have been.
    #[inline]
    pub(crate) fn deny(&self) {
        // Relaxed: a count, of which a window that misses the newest is not wrong.
        self.denied.fetch_add(1, Relaxed);
    }

    /// Records a lease that ended at `now`.
    #[inline]
    pub(crate) fn end(
        &self,
        now: Timestamp,
        latency: f32,
        in_flight: u32,
        outcome: Outcome,
    ) -> Recorded {
        // Acquire: pairs with `close`, so that `needed` and `age` are those of this window.
        let cursor = self.cursor.fetch_add(1, Acquire);
        let (tag, count) = (cursor >> TAG_AT, cursor & COUNT);
        let Some(number) = count.checked_sub(FIRST) else {
            return Recorded::Open;
        };
        if let Some(slot) = self.slots.get(number as usize) {
            slot.latency.store(latency.to_bits(), Relaxed);
            let rest = tag << TAG_AT | outcome.bits() << OUTCOME_AT | in_flight.min(IN_FLIGHT);
            // Release: pairs with `samples`, which reads the latency after it.
            slot.rest.store(rest, Release);
        }
        if number == 0 {
            self.begin(now, tag, in_flight);
        }
        if number + 1 >= self.needed.load(Relaxed) {
            Recorded::Due
        } else {
            Recorded::Open
        }
    }

    /// Counts a lease that ended and tells nothing.
    #[inline]
    pub(crate) fn pass(&self) {
        if self.cursor.load(Relaxed) & COUNT < FIRST {
            self.cursor.fetch_add(1, Relaxed);
        }
    }

    fn begin(&self, now: Timestamp, tag: u32, in_flight: u32) {
        let nanos = now.as_nanos();
        self.began[0].store((nanos >> 32) as u32, Relaxed);
        self.began[1].store(nanos as u32, Relaxed);
        self.denied_before.store(self.denied.load(Relaxed), Relaxed);
        self.in_flight_before.store(in_flight, Relaxed);
        // Release: pairs with `due`, which reads the others after it.
        self.began_tag.store(tag, Release);
    }

    /// Returns the window if it is old enough to be closed at `now`.
    pub(crate) fn due(&self, now: Timestamp) -> Option<Span> {
        let cursor = self.cursor.load(Acquire);
        let (tag, count) = (cursor >> TAG_AT, (cursor & COUNT).checked_sub(FIRST)?);
        if self.began_tag.load(Acquire) != tag || count < self.needed.load(Relaxed).max(2) {
            return None;
        }
        let began =
            u64::from(self.began[0].load(Relaxed)) << 32 | u64::from(self.began[1].load(Relaxed));
        let nanos = now
            .as_nanos()
            .checked_sub(began)
            .filter(|nanos| *nanos > 0)?;
        let old_enough = nanos / 1_000 >= u64::from(self.age.load(Relaxed));
        old_enough.then(|| Span {
            tag,
            // The window begins when its first lease ends, so that lease is not counted.
            count: count - 1,
            nanos,
            denied: self
                .denied
                .load(Relaxed)
                .wrapping_sub(self.denied_before.load(Relaxed)),
            in_flight_before: self.in_flight_before.load(Relaxed),
        })
    }

    /// Lets the window go on until it has `needed` samples.
    pub(crate) fn extend(&self, needed: u32, age: u32) {
        self.age.store(age, Relaxed);
        self.needed.store(needed.min(FIRST / 2), Relaxed);
    }

    /// Begins the next window, after `skip` leases have ended.
    pub(crate) fn next(&self, span: Span, skip: u32, needed: u32, age: u32) {
        self.extend(needed, age);
        // Release: pairs with `end`. Only a closer changes the tag. There is one, unless another
        // has slept for longer than `turn::PATIENCE`: then one window is wrong, and no permit.
        self.cursor
            .swap(start(span.tag.wrapping_add(1), skip), AcqRel);
    }

    /// Returns the samples of the window, in the order in which their leases ended.
    pub(crate) fn samples(&self, span: Span) -> impl Iterator<Item = Sample> + '_ {
        let kept = &self.slots[..(span.count + 1).min(KEPT) as usize];
        kept.iter().filter_map(move |slot| {
            let rest = slot.rest.load(Acquire);
            (rest >> TAG_AT == span.tag).then(|| Sample {
                latency: f32::from_bits(slot.latency.load(Relaxed)).into(),
                left_behind: rest & IN_FLIGHT,
                outcome: Outcome::of_bits(rest >> OUTCOME_AT & 3),
            })
        })
    }
}

fn start(tag: u32, skip: u32) -> u32 {
    tag << TAG_AT | (FIRST - skip.min(FIRST - 1))
}
