//! A limiter and what is out of it, which can be copied as it is.

use core::cell::Cell;
use core::mem::{ManuallyDrop, needs_drop};
use core::ops::Deref;
use core::ptr;

use portcullis_core::{AllOf, Denied, Limiter, Plan, Receipt, Retry, Timestamp};

use super::op::{Call, Log, Op, Outcome, Verb, at};

/// How many grants can be kept: the last ones by takes that are to be given back, and the very last
/// by others.
pub(crate) const SLOTS: usize = 14;

/// What limiters state of themselves, as far as the calls are chosen by it; in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// In which about a permit comes back.
    pub(crate) grain: u64,
    /// In which all permits come back, whatever is owed, under any of the settings.
    pub(crate) reach: u64,
    /// How late a `now` may be.
    pub(crate) staleness: u64,
    /// How late a change may be.
    pub(crate) late_change: u64,
    /// The shortest one under any of the settings, and the longest one.
    pub(crate) horizon: u64,
    pub(crate) longest_horizon: u64,
    /// The most permits at once.
    pub(crate) burst: u64,
    pub(crate) tick: u64,
    pub(crate) origin: u64,
}

/// A limiter with random settings, plain data all over, so that its bytes can be copied.
pub(crate) trait Subject: Sized + 'static {
    /// What a slot may hold beside a receipt.
    type Extra: 'static;

    const NAME: &'static str;
    /// What it can do, the more often the likelier.
    const VERBS: &'static [Verb];
    /// Whether a denial may write: a wait, a penalty, a count.
    const DENIALS_ACT: bool = false;
    /// Whether a take may note the newer time and be denied then.
    const ROLLS: bool = false;
    /// How many limits it is, each of which is judged alone.
    const PARTS: usize = 1;
    /// Whether permits come back by release.
    const HOLDS: bool = false;

    /// One with random settings, unless they do not fit.
    fn random(draws: &mut super::draws::Draws<'_>) -> Option<(Self, Facts)>;

    /// What the common calls are made on.
    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T;

    /// The limits in it, each judged alone.
    fn parts(&self, work: &mut dyn FnMut(&dyn Limiter)) {
        self.with(|limiter| work(limiter));
    }

    /// From now on, calls are made on that limit alone.
    fn only(&self, _: usize) {}

    /// Whether it may be set so that nothing comes back.
    fn may_stand_still(&self) -> bool {
        false
    }

    /// Whether a composition takes of the same limit twice, and does not know.
    fn takes_twice(&self) -> bool {
        false
    }

    /// The calls that not every limiter has.
    fn special(_: &World<Self>, _: &Op) -> Outcome {
        Outcome::NOTHING
    }

    /// What a slot's content has in itself, beside what is granted.
    fn kept(_: &Self::Extra) -> u64 {
        0
    }

    /// Ends what a slot holds.
    fn finish(_: &World<Self>, _: Self::Extra) {}

    /// The settings, for a trace.
    fn describe(&self) -> String;
}

/// What a slot holds.
pub(crate) enum Slot<X> {
    Empty,
    Taken { n: u32, receipt: Receipt },
    Extra(ManuallyDrop<X>),
}

pub(crate) struct World<S: Subject> {
    pub(crate) subject: S,
    pub(crate) slots: [Cell<Slot<S::Extra>>; SLOTS],
}

thread_local! {
    static CURRENT: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// A pointer to the limiter of the world that is at work, whichever copy that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current<L>(core::marker::PhantomData<L>);

impl<L> Current<L> {
    pub(crate) fn new() -> Self {
        Self(core::marker::PhantomData)
    }

    /// Makes `limiter` the current one; it must stay where it is while others are used.
    pub(crate) fn set(limiter: &L) {
        CURRENT.set(ptr::from_ref(limiter).cast());
    }
}

impl<L> Deref for Current<L> {
    type Target = L;

    fn deref(&self) -> &L {
        // SAFETY: set by `set` before each use, to a limiter of this type that is borrowed there.
        unsafe { &*CURRENT.get().cast::<L>() }
    }
}

impl<S: Subject> World<S> {
    pub(crate) fn new(subject: S) -> Self {
        Self {
            subject,
            slots: [const { Cell::new(Slot::Empty) }; SLOTS],
        }
    }

    /// A copy, bit by bit.
    pub(crate) fn fork(&self) -> Self {
        const { assert!(!needs_drop::<S>()) };
        // SAFETY: subjects are plain data without a drop; what slots hold is not dropped either,
        // and points to no place (see `Current`).
        unsafe { ptr::read(self) }
    }

    /// What a slot holds, which is then empty.
    pub(crate) fn take(&self, slot: u8) -> Slot<S::Extra> {
        self.slots[usize::from(slot)].replace(Slot::Empty)
    }

    pub(crate) fn put(&self, slot: u8, content: Slot<S::Extra>) {
        self.slots[usize::from(slot)].set(content);
    }

    /// The extra in a slot, taken out of it.
    pub(crate) fn extra(&self, slot: u8) -> Option<S::Extra> {
        match self.take(slot) {
            Slot::Extra(extra) => Some(ManuallyDrop::into_inner(extra)),
            other => {
                self.put(slot, other);
                None
            }
        }
    }

    pub(crate) fn put_extra(&self, slot: u8, extra: S::Extra) {
        self.put(slot, Slot::Extra(ManuallyDrop::new(extra)));
    }

    /// Whether what a slot holds would be lost if something else took its place.
    fn is_needed(&self, slot: u8) -> bool {
        let content = self.take(slot);
        let needed = match content {
            Slot::Empty => false,
            Slot::Taken { .. } => S::HOLDS,
            Slot::Extra(_) => true,
        };
        self.put(slot, content);
        needed
    }

    /// What slots have in themselves.
    pub(crate) fn kept(&self) -> u64 {
        let kept = |slot: &Cell<Slot<S::Extra>>| {
            let content = slot.replace(Slot::Empty);
            let kept = if let Slot::Extra(extra) = &content {
                S::kept(extra)
            } else {
                0
            };
            slot.set(content);
            kept
        };
        self.slots.iter().map(kept).sum()
    }

    /// Gives back all that comes back by being given back.
    pub(crate) fn finish(&self) {
        for slot in 0..SLOTS as u8 {
            match self.take(slot) {
                Slot::Taken { n, .. } if S::HOLDS => {
                    self.subject.with(|limiter| limiter.release(n));
                }
                Slot::Extra(extra) => S::finish(self, ManuallyDrop::into_inner(extra)),
                Slot::Taken { .. } | Slot::Empty => {}
            }
        }
    }

    /// The whole call, and which of its steps did something, or were no more than a look.
    pub(crate) fn call(&self, call: &Call) -> (Outcome, Log) {
        let (mut outcome, mut log) = (Outcome::NOTHING, Log::default());
        for op in call.steps() {
            let next = self.perform(&op);
            log.push(next.acted || next.told > 0 || next.rolled_back);
            outcome = outcome.and(next);
        }
        (outcome, log)
    }

    /// The steps of the call that count, no take, look or change before `lift`.
    pub(crate) fn call_again(
        &self,
        call: &Call,
        counts: impl Fn(usize) -> bool,
        lift: u64,
    ) -> Outcome {
        let mut outcome = Outcome::NOTHING;
        for (_, op) in call.steps().enumerate().filter(|(step, _)| counts(*step)) {
            let mut op = op;
            if let Op::Take { now, .. }
            | Op::Planned { now, .. }
            | Op::Other { now, .. }
            | Op::Peek { now, .. }
            | Op::Adjust { now, .. }
            | Op::Available { now } = &mut op
            {
                *now = lift.max(*now);
            }
            outcome = outcome.and(self.perform(&op));
        }
        outcome
    }

    pub(crate) fn perform(&self, op: &Op) -> Outcome {
        let taken = |slot, n, taken: Result<Receipt, Denied>| match taken {
            Ok(receipt) => {
                if n > 0 {
                    self.put(slot, Slot::Taken { n, receipt });
                }
                Outcome::granted(n)
            }
            Err(_) => Outcome::NOTHING,
        };
        match *op {
            Op::Take { slot, .. }
            | Op::Planned { slot, .. }
            | Op::Reserve { slot, .. }
            | Op::Cut { slot, .. }
            | Op::Claim { slot, .. }
                if self.is_needed(slot) =>
            {
                Outcome::NOTHING
            }
            Op::Take { now, n, slot } => taken(
                slot,
                n,
                self.subject.with(|limiter| limiter.take_at(at(now), n)),
            ),
            Op::Planned { now, n, slot } => {
                let outcome = self.subject.with(|limiter| {
                    let Some(composable) = limiter.as_composable() else {
                        limiter.peek_at(at(now), n)?;
                        return limiter.take_at(at(now), n);
                    };
                    let plan = composable.plan_at(at(now), n)?;
                    composable.take_as_planned_at(at(now), n, plan)
                });
                taken(slot, n, outcome)
            }
            Op::Peek { now, n } => Outcome::told(
                self.subject
                    .with(|limiter| limiter.peek_at(at(now), n))
                    .is_ok()
                    .into(),
            ),
            Op::Available { now } => {
                Outcome::told(self.subject.with(|limiter| limiter.available_at(at(now))))
            }
            Op::Idle { now } => {
                let _ = self.subject.with(|limiter| limiter.idle_at(at(now)));
                Outcome::NOTHING
            }
            Op::Retry { now, n } => {
                let denied = Denied::Exhausted {
                    now: at(now),
                    permits: n,
                };
                let _ = self.subject.with(|limiter| limiter.retry(denied));
                Outcome::NOTHING
            }
            Op::Refund { now, n, slot } => match self.take(slot) {
                Slot::Taken { n: held, receipt } => {
                    let n = n.min(held);
                    let refund = self
                        .subject
                        .with(|limiter| limiter.refund_at(at(now), n, receipt));
                    if held > n {
                        self.put(
                            slot,
                            Slot::Taken {
                                n: held - n,
                                receipt: refund.rest,
                            },
                        );
                    }
                    Outcome::back(refund.permits.into())
                }
                other => {
                    self.put(slot, other);
                    Outcome::NOTHING
                }
            },
            Op::Release { n, slot } => match self.take(slot) {
                Slot::Taken { n: held, receipt } => {
                    let n = n.min(held);
                    self.subject.with(|limiter| limiter.release(n));
                    if held > n {
                        self.put(
                            slot,
                            Slot::Taken {
                                n: held - n,
                                receipt,
                            },
                        );
                    }
                    if S::HOLDS {
                        Outcome::back(n.into())
                    } else {
                        Outcome::NOTHING
                    }
                }
                other => {
                    self.put(slot, other);
                    Outcome::NOTHING
                }
            },
            Op::Rollback { now, n } => {
                let refused = self.subject.with(|limiter| {
                    AllOf::new((limiter, Fickle))
                        .try_acquire_at(at(now), n)
                        .is_err()
                });
                assert!(refused || n == 0, "the second limit denies");
                Outcome {
                    rolled_back: true,
                    ..Outcome::NOTHING
                }
            }
            _ => S::special(self, op),
        }
    }
}

/// Says that it would grant, and denies.
struct Fickle;

impl Limiter for Fickle {
    fn take_at(&self, now: Timestamp, permits: u32) -> Result<Receipt, Denied> {
        Err(Denied::Refused { now, permits })
    }

    fn peek_at(&self, _: Timestamp, _: u32) -> Result<(), Denied> {
        Ok(())
    }

    fn available_at(&self, _: Timestamp) -> u64 {
        u64::MAX
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::Never
    }
}
