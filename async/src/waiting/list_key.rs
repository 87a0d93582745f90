//! What identifies a wait list, and what a waiter and a queue store for the limit of all keys: see
//! [`round`](crate::waiting::round).
//!
//! A queue of one list has no such limit, and no memory for it.

use core::fmt;

use portcullis_core::Timestamp;
use portcullis_core::keyed::Address;

use crate::waiting::next_try::NextTry;
use crate::waiting::ring::{Ring, RingLinks};

/// Identifies a wait list. `W` is the waiter of a list. Only lists with an address can have a limit
/// for all keys, and memory for it.
pub trait ListKey: Copy + PartialEq + Send + Sync + fmt::Debug {
    /// What a waiter stores of its key's turn.
    type Turn<W>: Slot<Turn<W>>;
    /// What a queue stores of its round.
    type Round<W>: Slot<Round<W>>;
}

impl ListKey for () {
    type Turn<W> = ();
    type Round<W> = ();
}

impl ListKey for Address {
    type Turn<W> = Option<Turn<W>>;
    type Round<W> = Option<Round<W>>;
}

/// A place for a value, or for none.
pub trait Slot<T> {
    const EMPTY: Self;

    fn get(&mut self) -> Option<&mut T>;

    fn set(&mut self, value: Option<T>);
}

impl<T> Slot<T> for () {
    const EMPTY: Self = ();

    #[inline(always)]
    fn get(&mut self) -> Option<&mut T> {
        None
    }

    #[inline(always)]
    fn set(&mut self, _: Option<T>) {}
}

impl<T> Slot<T> for Option<T> {
    const EMPTY: Self = None;

    #[inline(always)]
    fn get(&mut self) -> Option<&mut T> {
        self.as_mut()
    }

    #[inline(always)]
    fn set(&mut self, value: Option<T>) {
        *self = value;
    }
}

/// The ring of the heads whose keys wait for the limit of all keys.
#[derive(Debug)]
pub(crate) enum InRound {}

/// The ring of the heads whose keys resume a turn that was cut.
#[derive(Debug)]
pub(crate) enum Resuming {}

/// The turn of a key, in the head of its list.
#[derive(Debug)]
pub struct Turn<W> {
    pub(crate) links: RingLinks<W>,
    /// The place among the keys that resume, if the phase is that.
    pub(crate) resuming: RingLinks<W>,
    /// The permits that the key may still take in this turn.
    pub(crate) credit: u64,
    /// Since when the key's own limit grants the head's request.
    pub(crate) since: Timestamp,
    pub(crate) phase: Phase,
    /// The turns that the key has begun since it was granted a request, 2 at most.
    pub(crate) fruitless: u8,
    /// The weight of the key in its last turn; 0 if it has begun none.
    pub(crate) weight: u32,
    /// The count of skipped rounds at the begin of its last turn, or when it joined.
    pub(crate) skipped: u32,
}

/// What a key of the round does with its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It takes its turn when it is at the front.
    Ready,
    /// Its own limit has denied in the midst of a turn, and has not granted since.
    Cut,
    /// Its own limit grants again: it takes the rest of that turn.
    Resumes,
}

/// The keys of the round, at least one.
#[derive(Debug)]
pub struct Round<W> {
    pub(crate) ring: Ring<W, InRound>,
    pub(crate) resuming: Ring<W, Resuming>,
    /// Whether the front key of `ring` has begun its turn.
    pub(crate) is_open: bool,
    /// When to ask the total again. Exact and in the past if the total has not denied.
    pub(crate) next: NextTry,
    /// The number of keys in `ring`.
    pub(crate) keys: u32,
    /// The number of rounds that were skipped, wrapping.
    pub(crate) skipped: u32,
    pub(crate) passes: Passes,
}

/// The keys that have passed their turns, one after the other, since the ring has changed in
/// another way.
#[derive(Debug)]
pub(crate) struct Passes {
    pub(crate) count: u32,
    /// After how many more turns the first of them has the credit for its request.
    pub(crate) turns: u32,
}

impl Passes {
    pub(crate) const NONE: Self = Self {
        count: 0,
        turns: MOST_TURNS,
    };
}

/// So many rounds are skipped at most, because no key may miss as many as wrap their count.
const MOST_TURNS: u32 = 1 << 30;
