//! Waits, and the lines in which they stand: one for each key.
//!
//! A node lies in the future that waits, which is pinned, and is taken out before it goes. All its
//! fields but `state` belong to whoever has the lines, while it is linked; once it is settled,
//! which the last write to it says, they belong to the future.
//!
//! ```text
//!   Idle --enter--> Waiting --settle--> Granted, Evicted, Exceeds, Late, Closed, Cancelled
//! ```
//!
//! The waits of one key are a ring in the order in which they are served: after the head comes the
//! next one, before it the last one. The heads of a [`Bin`] are a list. So all that happens to a
//! line is done in a few steps, and only to find a key's head takes a walk over the heads of its
//! bin.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::marker::PhantomPinned;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::{Receipt, Timestamp};

use crate::agenda::Place;
use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Where a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Not in a line, and has never been, or not since it was removed.
    Idle,
    Waiting,
    Granted,
    Evicted,
    /// It asks for more than the limiter can hold by now.
    Exceeds,
    /// Its deadline is over.
    Late,
    Closed,
    /// It has given up.
    Cancelled,
}

impl State {
    const ALL: [Self; 8] = [
        Self::Idle,
        Self::Waiting,
        Self::Granted,
        Self::Evicted,
        Self::Exceeds,
        Self::Late,
        Self::Closed,
        Self::Cancelled,
    ];
}

/// What a wait wants.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The fewest permits that it takes, for which it has a place in the queue.
    pub(crate) min: u32,
    /// The most that it takes.
    pub(crate) max: u32,
    /// Until when; [`Timestamp::MAX`] if for ever.
    pub(crate) deadline: Timestamp,
}

impl Wish {
    /// The permits that it has a place for: also one that takes none stands somewhere.
    #[inline]
    pub(crate) fn room(self) -> u64 {
        self.min.max(1).into()
    }
}

/// When a limiter is to be asked for the head of a line again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// [`Timestamp::MAX`] if time does not help.
    pub(crate) at: Timestamp,
    /// Whether it will grant as of then, whenever it is asked; else nobody knows, and it is asked
    /// as of the time when it is.
    pub(crate) exact: bool,
}

impl Ask {
    pub(crate) const ON_RELEASE: Self = Self {
        at: Timestamp::MAX,
        exact: false,
    };
}

/// A line: what its head knows of it.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// The permits that those in it wait for, and the room that they take.
    permits: u64,
    room: u64,
}

impl Line {
    fn add(&mut self, wish: Wish) {
        self.permits += u64::from(wish.min);
        self.room += wish.room();
    }
}

/// One wait.
#[derive(Debug)]
pub struct Node<K> {
    state: AtomicU8,
    pub(crate) key: K,
    pub(crate) wish: Wish,
    /// Whose turn is before and after: in a ring.
    before: Option<NonNull<Self>>,
    after: Option<NonNull<Self>>,
    /// Of a head, its neighbours in the bin.
    heads: (Option<NonNull<Self>>, Option<NonNull<Self>>),
    pub(crate) is_head: bool,
    line: Line,
    /// Of a head.
    pub(crate) ask: Ask,
    pub(crate) place: Place<Self>,
    waker: Option<Waker>,
    /// When it came, and when it was settled.
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    /// What it was granted.
    pub(crate) grant: Option<(u32, Receipt)>,
    _pinned: PhantomPinned,
}

impl<K> Node<K> {
    /// A place for a wait with this wish. Only that is there yet.
    #[inline(always)]
    pub(crate) const fn place(wish: Wish) -> MaybeUninit<Self> {
        let mut node = MaybeUninit::<Self>::uninit();
        // SAFETY: within the place.
        unsafe { (&raw mut (*node.as_mut_ptr()).wish).write(wish) };
        node
    }

    /// Fills the rest of a place.
    ///
    /// # Safety
    ///
    /// A place that `place` has made, and that nobody else refers to.
    #[inline(always)]
    pub(crate) unsafe fn fill(node: NonNull<Self>, key: K) {
        let node = node.as_ptr();
        // SAFETY: as the caller says; nothing that is overwritten has to be dropped.
        unsafe {
            (&raw mut (*node).state).write(AtomicU8::new(State::Idle as u8));
            (&raw mut (*node).key).write(key);
            (&raw mut (*node).before).write(None);
            (&raw mut (*node).after).write(None);
            (&raw mut (*node).heads).write((None, None));
            (&raw mut (*node).is_head).write(false);
            (&raw mut (*node).line).write(Line {
                permits: 0,
                room: 0,
            });
            (&raw mut (*node).ask).write(Ask::ON_RELEASE);
            (&raw mut (*node).place).write(Place::OUT);
            (&raw mut (*node).waker).write(None);
            (&raw mut (*node).since).write(Timestamp::ZERO);
            (&raw mut (*node).until).write(Timestamp::ZERO);
            (&raw mut (*node).grant).write(None);
        }
    }

    /// Where a node is. Settled, all that whoever settled it did comes before.
    ///
    /// # Safety
    ///
    /// The node is valid. Others may be at its other fields.
    pub(crate) unsafe fn state(node: NonNull<Self>) -> State {
        // SAFETY: as the caller says; no reference to the whole node is made. Acquire: pairs with
        // `settle`.
        State::ALL[usize::from(unsafe { (*node.as_ptr()).state.load(Acquire) })]
    }

    /// Says what has become of a node, to the future that has it from now on.
    ///
    /// # Safety
    ///
    /// The node is in no line any more, and has been since it waited. Afterwards it may be gone at
    /// any moment.
    pub(crate) unsafe fn settle(node: NonNull<Self>, outcome: State) {
        // SAFETY: as the caller says. Release: pairs with `state`; nothing of the node is touched
        // after it.
        unsafe { (*node.as_ptr()).state.store(outcome as u8, Release) };
    }

    /// Has a node woken by another waker, or by none, and returns the one before.
    ///
    /// # Safety
    ///
    /// The node is in a line, and that is ours.
    pub(crate) unsafe fn rewake(node: NonNull<Self>, waker: Option<Waker>) -> Option<Waker> {
        // SAFETY: as the caller says.
        unsafe { core::mem::replace(&mut (*node.as_ptr()).waker, waker) }
    }
}

/// The place of a wait in its future: of a node, once that has been to the lines.
///
/// The state of the node says whether it is in a line. The place knows only whether there is a
/// node, and notes that before the node can enter a line: whatever unwinds there, the drop of the
/// future reads the state.
pub(crate) struct Slot<K> {
    /// Whether the node has been filled; else only its wish is there.
    is_filled: bool,
    node: UnsafeCell<MaybeUninit<Node<K>>>,
}

impl<K> Slot<K> {
    #[inline(always)]
    pub(crate) const fn new(wish: Wish) -> Self {
        Self {
            is_filled: false,
            node: UnsafeCell::new(Node::place(wish)),
        }
    }

    #[inline(always)]
    pub(crate) const fn is_filled(&self) -> bool {
        self.is_filled
    }

    /// The node, as far as it is there.
    #[inline(always)]
    pub(crate) fn node(&self) -> NonNull<Node<K>> {
        NonNull::from(&self.node).cast()
    }

    /// What it wishes; for one that is not in a line.
    #[inline(always)]
    pub(crate) const fn wish_mut(&mut self) -> &mut Wish {
        // SAFETY: the wish is there, and the caller's alone.
        unsafe { &mut (*self.node.get_mut().as_mut_ptr()).wish }
    }

    /// Fills the place, for a node that goes to the lines: until it has left them, the place is
    /// neither moved nor dropped.
    pub(crate) fn fill(&mut self, key: K) -> NonNull<Node<K>> {
        let node = self.node();
        // SAFETY: the caller's alone, and what was there before has left the lines, and keeps
        // nothing.
        unsafe { Node::fill(node, key) };
        self.is_filled = true;
        node
    }

    /// The node, if there is one: it is to leave the lines, and is forgotten here.
    pub(crate) fn take(&mut self) -> Option<NonNull<Node<K>>> {
        core::mem::take(&mut self.is_filled).then(|| self.node())
    }
}

/// The waker of a node that was taken out, and who is the head of its line in its place, if it was
/// that.
pub(crate) type TakenOut<K> = (Option<Waker>, Option<NonNull<Node<K>>>);

/// Lines, each with a key of its own.
#[derive(Debug)]
pub(crate) struct Bin<K> {
    first: Option<NonNull<Node<K>>>,
}

// SAFETY: nodes are handed from thread to thread with the lines, under their lock; wakers can be
// sent.
unsafe impl<K: Send> Send for Bin<K> {}

/// Whoever comes stands at this end of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Head,
    Tail,
}

impl<K: Copy + PartialEq> Bin<K> {
    pub(crate) const fn new() -> Self {
        Self { first: None }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The heads of its lines.
    pub(crate) fn heads(&self) -> Heads<K> {
        Heads { next: self.first }
    }

    /// The head of a key's line.
    pub(crate) fn head(&self, key: K) -> Option<NonNull<Node<K>>> {
        // SAFETY: linked nodes are valid, and belong to whoever has the lines.
        self.heads()
            .find(|head| unsafe { (*head.as_ptr()).key == key })
    }

    /// The permits that the line of `head` waits for.
    pub(crate) fn permits(head: Option<NonNull<Node<K>>>) -> u64 {
        // SAFETY: linked nodes are valid, and belong to whoever has the lines.
        head.map_or(0, |head| unsafe { (*head.as_ptr()).line.permits })
    }

    /// The room that the line of `head` takes.
    pub(crate) fn room(head: Option<NonNull<Node<K>>>) -> u64 {
        // SAFETY: linked nodes are valid, and belong to whoever has the lines.
        head.map_or(0, |head| unsafe { (*head.as_ptr()).line.room })
    }

    /// The last one of the line of `head`, which may be the head.
    pub(crate) fn last(head: NonNull<Node<K>>) -> NonNull<Node<K>> {
        // SAFETY: linked nodes are valid, and belong to whoever has the lines.
        unsafe { (*head.as_ptr()).before }.unwrap_or(head)
    }

    /// Puts a node into the line of its key, of which `head` is the head.
    ///
    /// # Safety
    ///
    /// The node is idle, nobody else refers to it, and it stays where it is until it is settled or
    /// removed.
    #[inline]
    pub(crate) unsafe fn enter(
        &mut self,
        node: NonNull<Node<K>>,
        head: Option<NonNull<Node<K>>>,
        end: End,
        waker: Waker,
    ) {
        let new = node.as_ptr();
        // SAFETY: it is ours alone, by the caller; its neighbours are linked.
        unsafe {
            (*new).waker = Some(waker);
            let (last, next) = match head {
                Some(head) => (Self::last(head), head),
                None => (node, node),
            };
            (*new).before = Some(last);
            (*new).after = Some(next);
            (*last.as_ptr()).after = Some(node);
            (*next.as_ptr()).before = Some(node);
            let wish = (*new).wish;
            match head {
                Some(head) if end == End::Tail => (*head.as_ptr()).line.add(wish),
                Some(head) => {
                    self.replace_head(head, Some(node));
                    (*new).line.add(wish);
                }
                None => {
                    (*new).is_head = true;
                    (*new).line = Line::default();
                    (*new).line.add(wish);
                    (*new).heads = (None, self.first);
                    if let Some(first) = self.first {
                        (*first.as_ptr()).heads.0 = Some(node);
                    }
                    self.first = Some(node);
                }
            }
            (*new).state.store(State::Waiting as u8, Relaxed);
        }
    }

    /// Puts `node` in a head's place, or nothing.
    fn replace_head(&mut self, head: NonNull<Node<K>>, node: Option<NonNull<Node<K>>>) {
        // SAFETY: linked nodes are valid, and belong to whoever has the lines.
        unsafe {
            let old = head.as_ptr();
            let (before, after) = (*old).heads;
            (*old).is_head = false;
            if let Some(node) = node {
                let new = node.as_ptr();
                (*new).is_head = true;
                (*new).line = (*old).line;
                (*new).heads = (before, after);
                (*new).ask = Ask::ON_RELEASE;
            }
            match before {
                Some(before) => (*before.as_ptr()).heads.1 = node.or(after),
                None => self.first = node.or(after),
            }
            if let Some(after) = after {
                (*after.as_ptr()).heads.0 = node.or(before);
            }
        }
    }

    /// Takes a node out: still waiting, but in no line. Returns its waker, and who is the head of
    /// its line in its place, if it was that.
    ///
    /// # Safety
    ///
    /// The node is in a line of this bin, and `head` is the head of that line, or the node is the
    /// head itself.
    #[inline]
    pub(crate) unsafe fn take_out(
        &mut self,
        node: NonNull<Node<K>>,
        head: NonNull<Node<K>>,
    ) -> TakenOut<K> {
        let old = node.as_ptr();
        // SAFETY: linked nodes are valid, and belong to whoever has the lines.
        unsafe {
            let wish = (*old).wish;
            (*head.as_ptr()).line.permits -= u64::from(wish.min);
            (*head.as_ptr()).line.room -= wish.room();
            let next = (*old).after.filter(|next| *next != node);
            if let (Some(before), Some(after)) = ((*old).before, (*old).after) {
                (*before.as_ptr()).after = Some(after);
                (*after.as_ptr()).before = Some(before);
            }
            let was_head = (*old).is_head;
            if was_head {
                self.replace_head(node, next);
            }
            ((*old).waker.take(), next.filter(|_| was_head))
        }
    }
}

/// The heads of a bin: from [`Bin::heads`]. The one that was returned last may be taken out
/// meanwhile, with all of its line.
pub(crate) struct Heads<K> {
    next: Option<NonNull<Node<K>>>,
}

impl<K> Iterator for Heads<K> {
    type Item = NonNull<Node<K>>;

    fn next(&mut self) -> Option<Self::Item> {
        let head = self.next?;
        // SAFETY: linked nodes are valid, and belong to whoever has the lines.
        self.next = unsafe { (*head.as_ptr()).heads.1 };
        Some(head)
    }
}
