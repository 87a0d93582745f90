//! A limiter together with its outstanding grants, which can be copied bit by bit.

use core::cell::Cell;
use core::mem::{ManuallyDrop, needs_drop};
use core::ops::Deref;
use core::ptr;

use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::{AllOf, Denied, Limiter, LimiterExt, Retry, Timestamp};

use super::op::{Call, Log, Op, Outcome, Verb, at};

/// The number of slots for grants. The last slots are for takes that are refunded immediately, and
/// the very last one is for other takes.
pub(crate) const SLOTS: usize = 14;

/// Properties that limiters state, as far as the choice of calls depends on them, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The approximate time in which one permit is replenished.
    pub(crate) grain: u64,
    /// The time in which all permits are replenished, including any debt, under any of the
    /// settings.
    pub(crate) reach: u64,
    /// The staleness of a timestamp.
    pub(crate) staleness: u64,
    /// The staleness of a change of settings.
    pub(crate) late_change: u64,
    /// The shortest horizon under any of the settings, and the longest one.
    pub(crate) horizon: u64,
    pub(crate) longest_horizon: u64,
    /// The largest number of permits at once.
    pub(crate) burst: u64,
    pub(crate) tick: u64,
    pub(crate) origin: u64,
}

/// A limiter with random settings. It is plain data, so its bytes can be copied.
pub(crate) trait Subject: Sized + 'static {
    /// The content of a slot other than a receipt.
    type Extra: 'static;

    const NAME: &'static str;
    /// The calls it supports. A verb that is listed more often is chosen more often.
    const VERBS: &'static [Verb];
    /// Whether a denial may write: a wait, a penalty, a count.
    const DENIALS_ACT: bool = false;
    /// Whether a take that is denied may still write its newer time.
    const ROLLS: bool = false;
    /// The number of limits in the subject. Each is judged alone.
    const PARTS: usize = 1;
    /// Whether permits are returned by release.
    const HOLDS: bool = false;

    /// Creates a subject with random settings, or `None` if the settings do not fit.
    fn random(draws: &mut super::draws::Draws<'_>) -> Option<(Self, Facts)>;

    /// Calls `work` with the limiter that the common calls use.
    fn with<T>(&self, work: impl FnOnce(&dyn Limiter) -> T) -> T;

    /// Calls `work` with each limit, to be judged alone.
    fn parts(&self, work: &mut dyn FnMut(&dyn Limiter)) {
        self.with(|limiter| work(limiter));
    }

    /// Restricts later calls to the limit with this index.
    fn only(&self, _: usize) {}

    /// Returns whether settings may be such that no permit is replenished.
    fn may_stand_still(&self) -> bool {
        false
    }

    /// Returns whether a composition takes from the same limit twice without detecting it.
    fn takes_twice(&self) -> bool {
        false
    }

    /// Makes a call that not every limiter supports.
    fn special(_: &World<Self>, _: &Op) -> Outcome {
        Outcome::NOTHING
    }

    /// Returns the number of permits that a slot's content holds in addition to granted ones.
    fn kept(_: &Self::Extra) -> u64 {
        0
    }

    /// Releases what a slot holds.
    fn finish(_: &World<Self>, _: Self::Extra) {}

    /// Returns the settings, for a report.
    fn describe(&self) -> String;
}

/// The content of a slot.
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

/// A pointer to the limiter of the current world, of whichever copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current<L>(core::marker::PhantomData<L>);

impl<L> Current<L> {
    pub(crate) fn new() -> Self {
        Self(core::marker::PhantomData)
    }

    /// Makes `limiter` the current one. It must not move while it is used.
    pub(crate) fn set(limiter: &L) {
        CURRENT.set(ptr::from_ref(limiter).cast());
    }
}

impl<L> Deref for Current<L> {
    type Target = L;

    fn deref(&self) -> &L {
        // SAFETY: `set` is called before each use, with a limiter of this type that is still
        // borrowed at its call site.
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

    /// Copies the world bit by bit.
    pub(crate) fn fork(&self) -> Self {
        const { assert!(!needs_drop::<S>()) };
        // SAFETY: subjects are plain data without a destructor. The contents of slots are in
        // `ManuallyDrop` or have none. Nothing points into the world, because slices and leases use
        // `Current`. So both copies are valid.
        unsafe { ptr::read(self) }
    }

    /// Takes the content of a slot, which is empty afterwards.
    pub(crate) fn take(&self, slot: u8) -> Slot<S::Extra> {
        self.slots[usize::from(slot)].replace(Slot::Empty)
    }

    pub(crate) fn put(&self, slot: u8, content: Slot<S::Extra>) {
        self.slots[usize::from(slot)].set(content);
    }

    /// Takes the extra out of a slot.
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

    /// Returns whether replacing the content of a slot would lose permits.
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

    /// Returns the number of permits that slots hold in addition to granted ones.
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

    /// Returns all permits that are returned by release.
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

    /// Makes all steps of a call. Returns the outcome, and which steps had an effect or returned a
    /// result.
    pub(crate) fn call(&self, call: &Call) -> (Outcome, Log) {
        let (mut outcome, mut log) = (Outcome::NOTHING, Log::default());
        for op in call.steps() {
            let next = self.perform(&op);
            log.push(next.acted || next.told > 0 || next.rolled_back);
            outcome = outcome.and(next);
        }
        (outcome, log)
    }

    /// Makes the steps of a call that `counts` selects. Takes, reads and changes are no earlier
    /// than `lift`.
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
                    let now = at(now);
                    let plan = limiter.decide(Ask::look(now, n)).planned(now, n)?;
                    let take = Ask::take(now, n).as_planned(plan);
                    limiter.decide(take).taken(now, n)
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
                assert!(refused || n == 0, "the second limit always denies");
                Outcome {
                    rolled_back: true,
                    ..Outcome::NOTHING
                }
            }
            _ => S::special(self, op),
        }
    }
}

/// A limit that says it would grant, and then denies.
struct Fickle;

impl Limiter for Fickle {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, permits) = (ask.now(), ask.permits());
        if ask.is_look() {
            return Answer::from(Ok(()));
        }
        Answer::Denied(Denied::Refused { now, permits })
    }

    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: u64::MAX,
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::Never
    }
}
