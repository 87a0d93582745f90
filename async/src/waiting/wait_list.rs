//! Waits, and the wait lists in which they stand: one for each key.
//!
//! A waiter lies in the future that waits, which is pinned, and is taken out before it goes. All
//! its fields but `state` belong to the holder of the lock, while it is linked; once it is settled,
//! which the last write to it says, they belong to the future.
//!
//! ```text
//!   Idle --enter--> Waiting --settle--> Granted, Evicted, Exceeds, Late, Closed, Cancelled
//! ```
//!
//! The waits of one key are a ring in the order in which they are served: after the head comes the
//! next one, before it the last one. The heads of a [`Shard`] are a list. So all that happens to a
//! list is done in a few steps, and only to find a key's head takes a walk over the heads of its
//! shard.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::marker::PhantomPinned;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::{Receipt, Timestamp};

use crate::finally::Finally;
use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::waiting::timer_heap::{HeapLinks, HeapNode};

/// Where a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Not in a list, and has never been, or not since it was removed.
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
    /// By their numbers.
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
pub(crate) struct Request {
    /// The fewest permits that it takes, for which it has a place in the queue.
    pub(crate) min: u32,
    /// The most that it takes.
    pub(crate) max: u32,
    /// Until when; [`Timestamp::MAX`] if for ever.
    pub(crate) deadline: Timestamp,
}

impl Request {
    /// The permits that it has a place for: also one that takes none stands somewhere.
    #[inline]
    pub(crate) fn room(self) -> u64 {
        self.min.max(1).into()
    }
}

/// When a limiter is to be asked for the head of a list again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextTry {
    /// [`Timestamp::MAX`] if time does not help.
    pub(crate) at: Timestamp,
    /// Whether it will grant as of then, whenever it is asked; else nobody knows, and it is asked
    /// as of the time when it is.
    pub(crate) exact: bool,
}

impl NextTry {
    pub(crate) const ON_RELEASE: Self = Self {
        at: Timestamp::MAX,
        exact: false,
    };
}

/// A list: what its head knows of it.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// The permits that those in it wait for, and how many of them wait for none.
    permits: u64,
    free: u64,
}

impl Line {
    const EMPTY: Self = Self {
        permits: 0,
        free: 0,
    };

    #[inline(always)]
    fn add(&mut self, request: Request) {
        self.permits += u64::from(request.min);
        if request.min == 0 {
            self.free += 1;
        }
    }

    #[inline(always)]
    fn subtract(&mut self, request: Request) {
        self.permits -= u64::from(request.min);
        if request.min == 0 {
            self.free -= 1;
        }
    }

    /// The room that they take.
    #[inline(always)]
    const fn room(self) -> u64 {
        self.permits + self.free
    }
}

/// One wait.
#[derive(Debug)]
pub(crate) struct Waiter<K> {
    state: AtomicU8,
    pub(crate) key: K,
    pub(crate) request: Request,
    /// Whose turn is before and after: in a ring.
    before: Option<NonNull<Self>>,
    after: Option<NonNull<Self>>,
    pub(crate) is_head: bool,
    /// There while it is a head.
    lead: MaybeUninit<Lead<K>>,
    timer: HeapLinks<Self>,
    waker: Option<Waker>,
    /// When it came, and when it was settled.
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    /// What it was granted.
    pub(crate) grant: Option<(u32, Receipt)>,
    _pinned: PhantomPinned,
}

/// Who comes before and after.
type Neighbours<K> = (Option<NonNull<Waiter<K>>>, Option<NonNull<Waiter<K>>>);

/// What only a head has.
#[derive(Debug)]
pub(crate) struct Lead<K> {
    line: Line,
    pub(crate) next_try: NextTry,
    /// Its neighbours in the shard.
    heads: Neighbours<K>,
}

/// What a timer is for. At one instant in this order: a head may be granted, or make way for those
/// behind it, before these are too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The limiter is asked again.
    Retry,
    /// The deadline of a head.
    HeadDeadline,
    /// The deadline of another wait.
    Deadline,
}

// SAFETY: a field of the waiter.
unsafe impl<K> HeapNode for Waiter<K> {
    type Priority = (Timestamp, Event);

    #[inline(always)]
    fn links(waiter: NonNull<Self>) -> NonNull<HeapLinks<Self>> {
        // SAFETY: within the waiter, which is valid while it is in a heap or enters one.
        unsafe { NonNull::new_unchecked(&raw mut (*waiter.as_ptr()).timer) }
    }
}

// SAFETY: links lead to waiters that go from thread to thread with this one, under the lock; wakers
// can be sent.
unsafe impl<K: Send> Send for Waiter<K> {}

impl<K> Waiter<K> {
    /// A place for a wait with this request. Only that is there yet.
    #[inline(always)]
    pub(crate) const fn place(request: Request) -> MaybeUninit<Self> {
        let mut waiter = MaybeUninit::<Self>::uninit();
        // SAFETY: within the place.
        unsafe { (&raw mut (*waiter.as_mut_ptr()).request).write(request) };
        waiter
    }

    /// Fills the rest of a place. The waiter has its waker before it enters a list: neither is that
    /// cloned under the lock, nor does it move.
    ///
    /// # Safety
    ///
    /// A place that `place` has made, and that nobody else refers to.
    #[inline(always)]
    pub(crate) unsafe fn fill(waiter: NonNull<Self>, key: K, waker: Waker) {
        let waiter = waiter.as_ptr();
        // SAFETY: as the caller says; nothing that is overwritten has to be dropped.
        unsafe {
            (&raw mut (*waiter).state).write(AtomicU8::new(State::Idle as u8));
            (&raw mut (*waiter).key).write(key);
            (&raw mut (*waiter).before).write(None);
            (&raw mut (*waiter).after).write(None);
            (&raw mut (*waiter).is_head).write(false);
            (&raw mut (*waiter).timer).write(HeapLinks::UNLINKED);
            (&raw mut (*waiter).waker).write(Some(waker));
            (&raw mut (*waiter).since).write(Timestamp::ZERO);
            (&raw mut (*waiter).until).write(Timestamp::ZERO);
            (&raw mut (*waiter).grant).write(None);
        }
    }

    /// What a head has.
    ///
    /// # Safety
    ///
    /// The waiter is valid. What is read there has been written since it became a head.
    #[inline(always)]
    pub(crate) const unsafe fn lead(waiter: NonNull<Self>) -> *mut Lead<K> {
        // SAFETY: within the waiter; no reference to it is made.
        unsafe { (&raw mut (*waiter.as_ptr()).lead).cast() }
    }

    /// When the limiter of a head is to be asked again; `None` of another waiter.
    ///
    /// # Safety
    ///
    /// The waiter is in a list, and that is ours.
    #[inline(always)]
    pub(crate) unsafe fn next_try(waiter: NonNull<Self>) -> Option<NextTry> {
        // SAFETY: as the caller says; and the lead of a head is there.
        unsafe {
            (*waiter.as_ptr())
                .is_head
                .then(|| (*Self::lead(waiter)).next_try)
        }
    }

    /// Where a waiter is. Settled, all that whoever settled it did comes before.
    ///
    /// # Safety
    ///
    /// The waiter is valid. Others may be at its other fields.
    #[inline]
    pub(crate) unsafe fn state(waiter: NonNull<Self>) -> State {
        // SAFETY: as the caller says; no reference to the whole waiter is made. Acquire: pairs with
        // `settle`.
        let state = unsafe { (*waiter.as_ptr()).state.load(Acquire) };
        // As many as there are, so that nothing can be out of bounds.
        State::ALL[usize::from(state) % State::ALL.len()]
    }

    /// What a waiter was granted, if it was, and is over then.
    ///
    /// # Safety
    ///
    /// The waiter was put into a list, and has not been asked what it was granted since it was
    /// settled.
    #[inline(always)]
    pub(crate) unsafe fn claim(waiter: NonNull<Self>) -> Option<(u32, Receipt)> {
        // SAFETY: valid, as the caller says; and, settled, the caller's.
        unsafe {
            if Self::state(waiter) == State::Granted {
                (*waiter.as_ptr()).grant.take()
            } else {
                None
            }
        }
    }

    /// Says what has become of a waiter, to the future that has it from now on.
    ///
    /// # Safety
    ///
    /// The waiter is in no list any more, and has been since it waited. Afterwards it may be gone
    /// at any moment.
    pub(crate) unsafe fn settle(waiter: NonNull<Self>, outcome: State) {
        // SAFETY: as the caller says. Release: pairs with `state`; nothing of the waiter is touched
        // after it.
        unsafe { (*waiter.as_ptr()).state.store(outcome as u8, Release) };
    }

    /// A waiter that has its waker, and has not been to the lists. If it does not enter one, its
    /// waker is dropped with this, outside of the lock: that runs code of the caller's.
    ///
    /// # Safety
    ///
    /// The waiter is valid for as long as this is there, and idle or in a list, or has been in one.
    #[inline(always)]
    pub(crate) unsafe fn newcomer(waiter: NonNull<Self>) -> Finally<impl FnMut()> {
        // SAFETY: the waiter is valid, as the caller says. An idle one has never been in a list, so
        // no other code refers to it.
        Finally(move || unsafe {
            if Self::state(waiter) == State::Idle {
                drop(Self::rewake(waiter, None));
            }
        })
    }

    /// Has a waiter woken by another waker, or by none, and returns the one before.
    ///
    /// # Safety
    ///
    /// The waiter is in a list, and that is ours; or it is in none, and ours.
    pub(crate) unsafe fn rewake(waiter: NonNull<Self>, waker: Option<Waker>) -> Option<Waker> {
        // SAFETY: as the caller says.
        unsafe { core::mem::replace(&mut (*waiter.as_ptr()).waker, waker) }
    }
}

/// The place of a wait in its future: of a waiter, once that has been to the lists.
///
/// The state of the waiter says whether it is in a list. The place knows only whether there is a
/// waiter, and notes that before the waiter can enter a list: whatever unwinds there, the drop of
/// the future reads the state.
pub(crate) struct WaiterSlot<K> {
    /// Whether the waiter has been filled; else only its request is there.
    is_filled: bool,
    waiter: UnsafeCell<MaybeUninit<Waiter<K>>>,
}

impl<K> WaiterSlot<K> {
    #[inline(always)]
    pub(crate) const fn new(request: Request) -> Self {
        Self {
            is_filled: false,
            waiter: UnsafeCell::new(Waiter::place(request)),
        }
    }

    #[inline(always)]
    pub(crate) const fn is_filled(&self) -> bool {
        self.is_filled
    }

    /// The waiter, as far as it is there.
    #[inline(always)]
    pub(crate) fn waiter(&self) -> NonNull<Waiter<K>> {
        NonNull::from(&self.waiter).cast()
    }

    /// What it asks for; for one that is not in a list.
    #[inline(always)]
    pub(crate) const fn request_mut(&mut self) -> &mut Request {
        // SAFETY: the request is there, and the caller's alone.
        unsafe { &mut (*self.waiter.get_mut().as_mut_ptr()).request }
    }

    /// Fills the place, for a waiter that goes to the lists: until it has left them, the place is
    /// neither moved nor dropped.
    #[inline(always)]
    pub(crate) fn fill(&mut self, key: K, waker: Waker) -> NonNull<Waiter<K>> {
        let waiter = self.waiter();
        // SAFETY: the caller's alone, and what was there before has left its list, and keeps
        // nothing.
        unsafe { Waiter::fill(waiter, key, waker) };
        self.is_filled = true;
        waiter
    }

    /// The waiter, if there is one: it is to leave the wait lists, and is forgotten here.
    pub(crate) fn take(&mut self) -> Option<NonNull<Waiter<K>>> {
        core::mem::take(&mut self.is_filled).then(|| self.waiter())
    }
}

/// The waker of a waiter that was taken out, and who is the head of its list in its place, if it
/// was that.
pub(crate) type Removed<K> = (Option<Waker>, Option<NonNull<Waiter<K>>>);

/// Wait lists that share a shard, one for each key.
#[derive(Debug)]
pub struct Shard<K> {
    first: Option<NonNull<Waiter<K>>>,
}

// SAFETY: waiters are handed from thread to thread with the wait lists, under their lock; wakers
// can be sent.
unsafe impl<K: Send> Send for Shard<K> {}

/// All shards of a queue: an array of them.
pub trait Shards<K>: AsRef<[Shard<K>]> + AsMut<[Shard<K>]> {
    const COUNT: usize;
    const EMPTY: Self;
}

impl<K: Copy + PartialEq, const N: usize> Shards<K> for [Shard<K>; N] {
    const COUNT: usize = N;
    const EMPTY: Self = [const { Shard::new() }; N];
}

/// Whoever comes stands at this end of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Head,
    Tail,
}

impl<K: Copy + PartialEq> Shard<K> {
    pub(crate) const fn new() -> Self {
        Self { first: None }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The heads of its wait lists.
    pub(crate) fn heads(&self) -> Heads<K> {
        Heads { next: self.first }
    }

    /// The head of a key's list.
    pub(crate) fn head(&self, key: K) -> Option<NonNull<Waiter<K>>> {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        self.heads()
            .find(|head| unsafe { (*head.as_ptr()).key == key })
    }

    /// The permits that the list of `head` waits for.
    pub(crate) fn permits(head: Option<NonNull<Waiter<K>>>) -> u64 {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        head.map_or(0, |head| unsafe { (*Waiter::lead(head)).line.permits })
    }

    /// The room that the list of `head` takes.
    pub(crate) fn room(head: Option<NonNull<Waiter<K>>>) -> u64 {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        head.map_or(0, |head| unsafe { (*Waiter::lead(head)).line.room() })
    }

    /// The last one of the list of `head`, which may be the head.
    pub(crate) fn last(head: NonNull<Waiter<K>>) -> NonNull<Waiter<K>> {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        unsafe { (*head.as_ptr()).before }.unwrap_or(head)
    }

    /// Puts a waiter into the list of its key, of which `head` is the head.
    ///
    /// # Safety
    ///
    /// The waiter is idle and has its waker. No other code refers to it. It does not move until it
    /// is settled or removed.
    #[inline]
    pub(crate) unsafe fn enter(
        &mut self,
        waiter: NonNull<Waiter<K>>,
        head: Option<NonNull<Waiter<K>>>,
        end: End,
    ) {
        let new = waiter.as_ptr();
        // SAFETY: it is ours alone, by the caller; its neighbours are linked.
        unsafe {
            let (last, next) = match head {
                Some(head) => (Self::last(head), head),
                None => (waiter, waiter),
            };
            (*new).before = Some(last);
            (*new).after = Some(next);
            (*last.as_ptr()).after = Some(waiter);
            (*next.as_ptr()).before = Some(waiter);
            let request = (*new).request;
            match head {
                Some(head) if end == End::Tail => (*Waiter::lead(head)).line.add(request),
                Some(head) => {
                    self.replace_head(head, Some(waiter));
                    (*Waiter::lead(waiter)).line.add(request);
                }
                None => {
                    (*new).is_head = true;
                    let mut line = Line::EMPTY;
                    line.add(request);
                    Waiter::lead(waiter).write(Lead {
                        line,
                        next_try: NextTry::ON_RELEASE,
                        heads: (None, self.first),
                    });
                    if let Some(first) = self.first {
                        (*Waiter::lead(first)).heads.0 = Some(waiter);
                    }
                    self.first = Some(waiter);
                }
            }
            (*new).state.store(State::Waiting as u8, Relaxed);
        }
    }

    /// Puts `waiter` in a head's place, or nothing.
    fn replace_head(&mut self, head: NonNull<Waiter<K>>, waiter: Option<NonNull<Waiter<K>>>) {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        unsafe {
            let old = head.as_ptr();
            let Lead { line, heads, .. } = Waiter::lead(head).read();
            let (before, after) = heads;
            (*old).is_head = false;
            if let Some(waiter) = waiter {
                let new = waiter.as_ptr();
                (*new).is_head = true;
                Waiter::lead(waiter).write(Lead {
                    line,
                    next_try: NextTry::ON_RELEASE,
                    heads,
                });
            }
            match before {
                Some(before) => (*Waiter::lead(before)).heads.1 = waiter.or(after),
                None => self.first = waiter.or(after),
            }
            if let Some(after) = after {
                (*Waiter::lead(after)).heads.0 = waiter.or(before);
            }
        }
    }

    /// Takes a waiter out: still waiting, but in no list. Returns its waker, and who is the head of
    /// its list in its place, if it was that.
    ///
    /// # Safety
    ///
    /// The waiter is in a list of this shard, and `head` is the head of that list, or the waiter is
    /// the head itself.
    #[inline]
    pub(crate) unsafe fn remove(
        &mut self,
        waiter: NonNull<Waiter<K>>,
        head: NonNull<Waiter<K>>,
    ) -> Removed<K> {
        let old = waiter.as_ptr();
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        unsafe {
            let request = (*old).request;
            (*Waiter::lead(head)).line.subtract(request);
            let next = (*old).after.filter(|next| *next != waiter);
            if let (Some(before), Some(after)) = ((*old).before, (*old).after) {
                (*before.as_ptr()).after = Some(after);
                (*after.as_ptr()).before = Some(before);
            }
            let was_head = (*old).is_head;
            if was_head {
                self.replace_head(waiter, next);
            }
            // The waker moves out here. No code reads the waker of a removed waiter.
            let waker = (&raw const (*old).waker).read();
            (waker, next.filter(|_| was_head))
        }
    }
}

/// The heads of a shard: from [`Shard::heads`]. The one that was returned last may be taken out
/// meanwhile, with all of its list.
pub(crate) struct Heads<K> {
    next: Option<NonNull<Waiter<K>>>,
}

impl<K> Iterator for Heads<K> {
    type Item = NonNull<Waiter<K>>;

    fn next(&mut self) -> Option<Self::Item> {
        let head = self.next?;
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        self.next = unsafe { (*Waiter::lead(head)).heads.1 };
        Some(head)
    }
}
