//! The calls on a limiter.

use portcullis_core::Timestamp;
use portcullis_core::state::Carry;

/// A call on a limiter. Grants are stored in slots and refunded from them. A call on an empty slot
/// does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Take {
        now: u64,
        n: u32,
        slot: u8,
    },
    /// Plans a take, and then takes as planned.
    Planned {
        now: u64,
        n: u32,
        slot: u8,
    },
    Peek {
        now: u64,
        n: u32,
    },
    Available {
        now: u64,
    },
    Idle {
        now: u64,
    },
    Retry {
        now: u64,
        n: u32,
    },
    /// Refunds permits of the slot, which were not used.
    Refund {
        now: u64,
        n: u32,
        slot: u8,
    },
    /// Releases permits of the slot, which were used.
    Release {
        n: u32,
        slot: u8,
    },
    /// Takes from a composition whose second limit denies after all.
    Rollback {
        now: u64,
        n: u32,
    },
    Force {
        now: u64,
        n: u32,
    },
    Reserve {
        now: u64,
        n: u32,
        wait: u64,
        slot: u8,
    },
    Cancel {
        now: u64,
        slot: u8,
    },
    /// Changes the settings to one of the subject's sets.
    Adjust {
        now: u64,
        to: u8,
        carry: Carry,
    },
    /// Notes the time, as a call does before it takes, changes or denies.
    Note {
        now: u64,
    },
    /// Changes the limit to one of the subject's limits.
    SetLimit {
        to: u8,
    },
    /// Cuts a slice into the slot.
    Cut {
        now: u64,
        n: u32,
        slot: u8,
    },
    /// Takes from the slot's slice.
    Draw {
        now: u64,
        n: u32,
        slot: u8,
    },
    /// Drops the slot's slice.
    Uncut {
        slot: u8,
    },
    Claim {
        now: u64,
        n: u32,
        wait: u64,
        slot: u8,
    },
    /// Releases the slot's lease.
    End {
        slot: u8,
    },
    Sweep {
        now: u64,
    },
    /// Takes by another key, which may take over the slot of the first key.
    Other {
        now: u64,
        n: u32,
        key: u8,
    },
}

impl Op {
    pub(crate) fn now(&self) -> Option<u64> {
        match *self {
            Self::Take { now, .. }
            | Self::Planned { now, .. }
            | Self::Peek { now, .. }
            | Self::Available { now }
            | Self::Idle { now }
            | Self::Retry { now, .. }
            | Self::Refund { now, .. }
            | Self::Rollback { now, .. }
            | Self::Force { now, .. }
            | Self::Reserve { now, .. }
            | Self::Cancel { now, .. }
            | Self::Adjust { now, .. }
            | Self::Note { now }
            | Self::Cut { now, .. }
            | Self::Draw { now, .. }
            | Self::Claim { now, .. }
            | Self::Sweep { now }
            | Self::Other { now, .. } => Some(now),
            Self::Release { .. }
            | Self::SetLimit { .. }
            | Self::Uncut { .. }
            | Self::End { .. } => None,
        }
    }
}

impl Op {
    /// Returns the same call at another time.
    pub(crate) fn at(&self, change: impl FnOnce(u64) -> u64) -> Self {
        let mut op = *self;
        match &mut op {
            Self::Take { now, .. }
            | Self::Planned { now, .. }
            | Self::Peek { now, .. }
            | Self::Available { now }
            | Self::Idle { now }
            | Self::Retry { now, .. }
            | Self::Refund { now, .. }
            | Self::Rollback { now, .. }
            | Self::Force { now, .. }
            | Self::Reserve { now, .. }
            | Self::Cancel { now, .. }
            | Self::Adjust { now, .. }
            | Self::Note { now }
            | Self::Cut { now, .. }
            | Self::Draw { now, .. }
            | Self::Claim { now, .. }
            | Self::Sweep { now }
            | Self::Other { now, .. } => *now = change(*now),
            Self::Release { .. }
            | Self::SetLimit { .. }
            | Self::Uncut { .. }
            | Self::End { .. } => {}
        }
        op
    }
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Take,
    Planned,
    Look,
    Refund,
    Release,
    Rollback,
    Force,
    Reserve,
    Cancel,
    Adjust,
    SetLimit,
    Cut,
    Draw,
    Uncut,
    Claim,
    End,
    Sweep,
    Other,
}

/// A sequence of calls, repeated `times` times. Only a single call that is not repeated can be
/// pre-empted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) ops: [Option<Op>; 3],
    pub(crate) times: u32,
    /// The distance between the times of consecutive repetitions.
    pub(crate) step: u64,
}

impl Call {
    pub(crate) fn one(op: Op) -> Self {
        Self {
            ops: [Some(op), None, None],
            times: 1,
            step: 0,
        }
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = &Op> {
        self.ops.iter().flatten()
    }

    /// Returns all steps, over all repetitions.
    pub(crate) fn steps(&self) -> impl Iterator<Item = Op> {
        (0..self.times).flat_map(|time| {
            let later = u64::from(time) * self.step;
            self.ops().map(move |op| op.at(|now| now + later))
        })
    }

    /// Returns the newest time of the call.
    pub(crate) fn newest(&self) -> u64 {
        let last = self.ops().filter_map(Op::now).max().unwrap_or(0);
        last + u64::from(self.times - 1) * self.step
    }

    /// Returns the same call with plain takes instead of planned takes.
    pub(crate) fn at_once(&self) -> Self {
        let at_once = |op| match op {
            Op::Planned { now, n, slot } => Op::Take { now, n, slot },
            other => other,
        };
        Self {
            ops: self.ops.map(|op| op.map(at_once)),
            ..*self
        }
    }

    pub(crate) fn is_one(&self) -> bool {
        self.times == 1 && self.ops[1].is_none()
    }
}

/// The outcome of one or several calls, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The number of permits granted.
    pub(crate) granted: u64,
    /// The number of permits refunded or released.
    pub(crate) back: u64,
    /// The result of a read. More is better for the caller.
    pub(crate) told: u64,
    /// Whether the call may have changed anything.
    pub(crate) acted: bool,
    /// Whether permits may have been taken and refunded. Then a stale timestamp may find the newer
    /// time.
    pub(crate) rolled_back: bool,
}

impl Outcome {
    pub(crate) const NOTHING: Self = Self {
        granted: 0,
        back: 0,
        told: 0,
        acted: false,
        rolled_back: false,
    };

    pub(crate) fn granted(n: u32) -> Self {
        Self {
            granted: n.into(),
            acted: n > 0,
            ..Self::NOTHING
        }
    }

    pub(crate) fn back(n: u64) -> Self {
        Self {
            back: n,
            acted: n > 0,
            ..Self::NOTHING
        }
    }

    pub(crate) fn told(told: u64) -> Self {
        Self {
            told,
            ..Self::NOTHING
        }
    }

    pub(crate) fn and(self, next: Self) -> Self {
        Self {
            granted: self.granted + next.granted,
            back: self.back + next.back,
            told: next.told,
            acted: self.acted || next.acted,
            rolled_back: self.rolled_back || next.rolled_back,
        }
    }
}

pub(crate) fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// Which steps of a call had an effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    first: u64,
    more: Vec<u64>,
    steps: usize,
}

impl Log {
    pub(crate) const fn new() -> Self {
        Self {
            first: 0,
            more: Vec::new(),
            steps: 0,
        }
    }

    pub(crate) fn push(&mut self, acted: bool) {
        let (word, bit) = (self.steps / 64, self.steps % 64);
        self.steps += 1;
        if word == 0 {
            self.first |= u64::from(acted) << bit;
        } else {
            if bit == 0 {
                self.more.push(0);
            }
            self.more[word - 1] |= u64::from(acted) << bit;
        }
    }

    pub(crate) fn has(&self, step: usize) -> bool {
        let word = if step < 64 {
            self.first
        } else {
            self.more[step / 64 - 1]
        };
        word >> (step % 64) & 1 == 1
    }

    pub(crate) fn has_all(&self) -> bool {
        (0..self.steps).all(|step| self.has(step))
    }
}
