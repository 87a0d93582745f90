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
//! Many ends are decimated: while more than about half a million end each second, one in a power of
//! two is recorded, and stands for all. The others add 1 to a count, and nothing else.
//!
//! A lease that is recorded adds 1 to the cursor. That gives it the tag of the window and its own
//! number in it, for itself alone. It then writes its sample into the slot of that number. The
//! lease with number 0 writes when the window began. The closer of a window moves the cursor to the
//! next tag in one swap, so each lease counts in one window exactly.
//!
//! Invariant: a sample that is read has the window's tag, so it was written by a lease that ended
//! in it (or 256 windows ago, by a thread that slept in between). Samples that are late, or whose
//! two halves are of two leases, change an estimate by one sample. No permit depends on them.
//!
//! Progress: whatever the times of the callers, a window that has its samples is closed or
//! restarted. A lease that could close the window restarts it in two cases. In the first, the
//! window began more than [`SKEW`] later than the lease ends: one time was wrong, or a clock was
//! set back. In the second, the window has no time of its beginning. The lease with number 0 writes
//! it, and that lease was on a thread that a `fork` left behind.

use crate::outcome::Outcome;
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use portcullis_core::Timestamp;

/// How many samples of a window are kept. More are counted.
pub(crate) const KEPT: u32 = if cfg!(portcullis_loom) { 2 } else { 256 };

/// Threads read their clock at different moments: a beginning that is ahead by less than this, in
/// nanoseconds, is waited for.
const SKEW: u64 = 1_000_000_000;
/// No window is closed before this age, in microseconds: closing one takes a few.
const SHORTEST: u32 = 500;
/// After so many leases, a beginning that was not told counts as lost.
const LOST: u32 = 256;
/// A window of so many leases is old enough: its count must not run into its tag.
const MOST: u32 = FIRST / 2;

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
#[repr(C)]
pub(crate) struct Recorder {
    cursor: AtomicU32,
    /// One less than how many ends a recorded one stands for: a power of two, less one.
    mask: AtomicU32,
    /// Counts ends while they are decimated.
    ends: AtomicU32,
    /// From how many samples on the window may be closed, and from what age, in microseconds.
    needed: AtomicU32,
    age: AtomicU32,
    /// When the window began, in nanoseconds, as two halves, and its tag once they are written.
    began: [AtomicU32; 2],
    began_tag: AtomicU32,
    /// The denials when it began.
    denied_before: AtomicU32,
    in_flight_before: AtomicU32,
    denied: AtomicU32,
    slots: [Slot; KEPT as usize],
}

/// What the lease that has ended may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    Open,
    Due,
}

/// What is due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Nothing,
    Close(Span),
    /// Give up the samples of the window with this tag, and let it begin again.
    Restart(u32),
}

/// A window that may be closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    tag: u32,
    /// The leases that were recorded.
    pub(crate) count: u32,
    /// How many leases each stands for.
    pub(crate) weight: u32,
    pub(crate) nanos: u64,
    pub(crate) denied: u32,
    pub(crate) in_flight_before: u32,
}

impl Recorder {
    pub(crate) fn new(skip: u32, needed: u32, age: u32) -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            cursor: AtomicU32::new(start(1, skip)),
            mask: zero(),
            ends: zero(),
            began: [zero(), zero()],
            began_tag: zero(),
            denied_before: zero(),
            in_flight_before: zero(),
            denied: zero(),
            needed: AtomicU32::new(needed),
            age: AtomicU32::new(age.max(SHORTEST)),
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

    /// Whether the lease that ends is one that another stands for.
    #[inline]
    pub(crate) fn leaves_out(&self) -> bool {
        let mask = self.mask.load(Relaxed);
        if mask == 0 {
            return false;
        }
        // No read-modify-write, which would cost half as much as a permit. Of two threads that
        // count at once, one count is lost: then the throughput is taken for lower, and the latency
        // by Little's law for higher, by the same factor. Their product is right.
        let ends = self.ends.load(Relaxed).wrapping_add(1);
        self.ends.store(ends, Relaxed);
        ends & mask != 0
    }

    /// Records a lease that ended at `now`, unless [`leaves_out`](Self::leaves_out) said otherwise.
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

    /// Returns what is due at `now`.
    pub(crate) fn due(&self, now: Timestamp) -> Due {
        let cursor = self.cursor.load(Acquire);
        let (tag, count) = (cursor >> TAG_AT, cursor & COUNT);
        let count = count.saturating_sub(FIRST);
        let needed = self.needed.load(Relaxed).max(2);
        if count < needed {
            return Due::Nothing;
        }
        if self.began_tag.load(Acquire) != tag {
            let is_lost = count >= needed.saturating_add(LOST);
            return if is_lost {
                Due::Restart(tag)
            } else {
                Due::Nothing
            };
        }
        let began =
            u64::from(self.began[0].load(Relaxed)) << 32 | u64::from(self.began[1].load(Relaxed));
        let now = now.as_nanos();
        if began > now.saturating_add(SKEW) {
            return Due::Restart(tag);
        }
        let nanos = now.saturating_sub(began);
        let old_enough = nanos / 1_000 >= u64::from(self.age.load(Relaxed)) || count >= MOST;
        if nanos == 0 || !old_enough {
            return Due::Nothing;
        }
        Due::Close(Span {
            tag,
            // The window begins when its first lease ends, so that lease is not counted.
            count: count - 1,
            weight: self.mask.load(Relaxed) + 1,
            nanos,
            denied: self
                .denied
                .load(Relaxed)
                .wrapping_sub(self.denied_before.load(Relaxed)),
            in_flight_before: self.in_flight_before.load(Relaxed),
        })
    }

    /// Lets the window go on until it has `needed` samples. Begins the next window instead if each
    /// sample must stand for more requests than before, or if the count is full.
    pub(crate) fn extend(&self, span: Span, needed: u32, age: u32) {
        if span.next_weight() > span.weight || span.count >= MOST - 1 {
            self.next(span, 0, needed, age);
        } else {
            self.need(needed, age);
        }
    }

    fn need(&self, needed: u32, age: u32) {
        self.age.store(age.max(SHORTEST), Relaxed);
        self.needed.store(needed.min(MOST), Relaxed);
    }

    /// Begins the next window, after `skip` leases have ended.
    pub(crate) fn next(&self, span: Span, skip: u32, needed: u32, age: u32) {
        self.need(needed, age);
        let weight = span.next_weight();
        self.mask.store(weight - 1, Relaxed);
        self.move_to(start(span.tag.wrapping_add(1), skip / weight));
    }

    /// Gives up the window with this tag, and begins one at `now`. So while callers' clocks
    /// disagree, the earliest one counts, and the next closer finds no beginning ahead of it.
    pub(crate) fn restart(&self, tag: u32, now: Timestamp, in_flight: u32) {
        let first = start(tag.wrapping_add(1), 0);
        self.begin(now, first >> TAG_AT, in_flight);
        // As if the lease with number 0 had ended.
        self.move_to(first + 1);
    }

    fn move_to(&self, cursor: u32) {
        // Release: pairs with `end`. Only a closer changes the tag. There is one, unless another
        // has slept for longer than `turn::PATIENCE`: then one window is wrong, and no permit.
        self.cursor.swap(cursor, AcqRel);
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

impl Span {
    /// How many leases each one stands for in the next window, so that about [`KEPT`] are recorded
    /// in the shortest window.
    fn next_weight(self) -> u32 {
        let shortest = u64::from(SHORTEST) * 1_000;
        let ended = u64::from(self.count) * u64::from(self.weight);
        // A window of less than `u64::MAX` ns with less than 2^40 ends.
        let in_shortest = u128::from(ended) * u128::from(shortest) / u128::from(self.nanos);
        let weight = (in_shortest / u128::from(KEPT)).clamp(1, 1 << 16) as u32;
        // Down by more than a half only, so that it rests.
        if weight < self.weight && weight > self.weight / 3 {
            self.weight
        } else {
            1 << weight.ilog2()
        }
    }
}

fn start(tag: u32, skip: u32) -> u32 {
    tag << TAG_AT | (FIRST - skip.min(FIRST - 1))
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_window_whose_first_lease_died_restarts() {
        let recorder = Recorder::new(0, 4, 0);
        let end = |millis| {
            let now = Timestamp::from_millis(millis);
            recorder.end(now, 0.001, 1, Outcome::Succeeded);
            recorder.due(now)
        };
        // It has its number, and tells nothing more.
        recorder.cursor.fetch_add(1, Relaxed);
        let dues = [(); LOST as usize + 3].map(|()| end(1));
        let (last, others) = dues.split_last().unwrap();
        assert!(others.iter().all(|due| matches!(due, Due::Nothing)));
        let Due::Restart(tag) = *last else {
            panic!("{last:?}");
        };
        recorder.restart(tag, Timestamp::from_millis(2), 1);
        let dues = [3, 4, 5].map(end);
        assert!(
            matches!(dues[2], Due::Close(Span { count: 3, .. })),
            "{dues:?}"
        );
    }

    #[test]
    fn a_window_is_closed_before_its_count_is_full() {
        let recorder = Recorder::new(0, 4, u32::MAX);
        recorder.end(Timestamp::from_millis(1), 0.001, 1, Outcome::Succeeded);
        let now = Timestamp::from_millis(2);
        recorder.cursor.fetch_add(MOST - 2, Relaxed);
        assert!(matches!(recorder.due(now), Due::Nothing));
        recorder.cursor.fetch_add(1, Relaxed);
        assert!(matches!(recorder.due(now), Due::Close(_)));
    }
}
