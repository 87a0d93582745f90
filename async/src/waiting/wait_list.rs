//! Waits, and the wait lists in which they stand: one for each key.
//!
//! A waiter lies in the future that waits, which is pinned, and is taken out before it goes. Its
//! key and its request do not change while it is linked. What does change belongs to the holder of
//! the lock while it is linked, who reaches it by [`WaitLists::get`]. Once it is settled, which the
//! last write to it says, it belongs to the future, which reaches it by [`Waiter::own`].
//!
//! ```text
//!   Idle --enter--> Waiting --settle--> Granted, Evicted, Exceeds, Late, Closed, Cancelled
//! ```
//!
//! The waits of one key are a [ring](crate::waiting::ring) in the order in which they are served,
//! and so are the heads of a [`Shard`]. So all that happens to a
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
use crate::sync::cell;
use crate::waiting::ring::{Ring, RingLinks, RingNode};
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
pub(crate) struct Waiter<K> {
    state: AtomicU8,
    pub(crate) key: K,
    pub(crate) request: Request,
    timer: UnsafeCell<HeapLinks<Self>>,
    /// Behind the lock while it is linked.
    locked: cell::UnsafeCell<Locked<K>>,
    _pinned: PhantomPinned,
}

/// What belongs to the holder of the lock while a waiter is linked, and to its future before and
/// after.
pub(crate) struct Locked<K> {
    /// Whose turn is before and after.
    turn: RingLinks<Waiter<K>>,
    /// There while it is a head.
    lead: Option<Lead<K>>,
    waker: Option<Waker>,
    /// When it came, and when it was settled.
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    /// What it was granted.
    pub(crate) grant: Option<(u32, Receipt)>,
}

/// What only a head has.
struct Lead<K> {
    line: Line,
    next_try: NextTry,
    /// Its neighbours in the shard.
    heads: RingLinks<Waiter<K>>,
}

impl<K> Lead<K> {
    const EMPTY: Self = Self {
        line: Line::EMPTY,
        next_try: NextTry::ON_RELEASE,
        heads: RingLinks::UNLINKED,
    };
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
        unsafe { NonNull::new_unchecked((*waiter.as_ptr()).timer.get()) }
    }
}

/// The ring of all who wait for a key, and that of the heads in a shard.
enum Turns {}
enum Heads {}

// SAFETY: a field of the waiter.
unsafe impl<K> RingNode<Turns> for Waiter<K> {
    #[inline(always)]
    fn links(waiter: NonNull<Self>) -> NonNull<RingLinks<Self>> {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        unsafe { NonNull::from(&mut Self::locked(waiter).turn) }
    }
}

// SAFETY: a field of the waiter, there while it is a head.
unsafe impl<K> RingNode<Heads> for Waiter<K> {
    #[inline(always)]
    fn links(head: NonNull<Self>) -> NonNull<RingLinks<Self>> {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        unsafe { NonNull::from(&mut Self::lead(head).heads) }
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
            (&raw mut (*waiter).timer).write(UnsafeCell::new(HeapLinks::UNLINKED));
            (&raw mut (*waiter).locked).write(cell::UnsafeCell::new(Locked {
                turn: RingLinks::UNLINKED,
                lead: None,
                waker: Some(waker),
                since: Timestamp::ZERO,
                until: Timestamp::ZERO,
                grant: None,
            }));
        }
    }

    /// What is locked while the waiter is linked.
    ///
    /// # Safety
    ///
    /// The waiter is filled, this part of it is the caller's, and no other reference to that is in
    /// use.
    #[inline(always)]
    unsafe fn locked<'w>(waiter: NonNull<Self>) -> &'w mut Locked<K> {
        // SAFETY: as the caller says.
        unsafe { (*waiter.as_ptr()).locked.with_mut(|locked| &mut *locked) }
    }

    /// What a head has.
    ///
    /// # Safety
    ///
    /// As of `locked`; and the waiter is a head.
    #[inline(always)]
    unsafe fn lead<'w>(head: NonNull<Self>) -> &'w mut Lead<K> {
        // SAFETY: as the caller says.
        unsafe { Self::locked(head).lead.as_mut().unwrap_unchecked() }
    }

    /// What is locked, of a waiter that is in no list.
    ///
    /// # Safety
    ///
    /// The waiter is idle or settled, and so the caller's. No other reference that this has
    /// returned is in use.
    #[inline(always)]
    pub(crate) unsafe fn own<'w>(waiter: NonNull<Self>) -> &'w mut Locked<K> {
        // SAFETY: as the caller says.
        unsafe { Self::locked(waiter) }
    }

    /// Its key, and what it asks for.
    ///
    /// # Safety
    ///
    /// The waiter is filled.
    #[inline(always)]
    pub(crate) const unsafe fn asks(waiter: NonNull<Self>) -> (K, Request)
    where
        K: Copy,
    {
        // SAFETY: as the caller says; neither changes before it is filled anew.
        unsafe { ((*waiter.as_ptr()).key, (*waiter.as_ptr()).request) }
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
                Self::own(waiter).grant.take()
            } else {
                None
            }
        }
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
                drop(Self::own(waiter).rewake(None));
            }
        })
    }
}

impl<K> Locked<K> {
    /// When the limiter of a head is to be asked again; `None` of another waiter.
    #[inline(always)]
    pub(crate) fn next_try(&self) -> Option<NextTry> {
        self.lead.as_ref().map(|lead| lead.next_try)
    }

    /// Notes when the limiter is to be asked again, if it is a head.
    #[inline(always)]
    pub(crate) const fn set_next_try(&mut self, next_try: NextTry) {
        if let Some(lead) = &mut self.lead {
            lead.next_try = next_try;
        }
    }

    #[inline(always)]
    pub(crate) const fn is_head(&self) -> bool {
        self.lead.is_some()
    }

    /// Has it woken by another waker, or by none, and returns the one before.
    pub(crate) const fn rewake(&mut self, waker: Option<Waker>) -> Option<Waker> {
        core::mem::replace(&mut self.waker, waker)
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
    heads: Ring<Waiter<K>, Heads>,
}

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

/// All wait lists of a queue, which stand behind its lock: whoever has a reference to them holds
/// that. They are the one way to what is locked of the waiters in them.
pub(crate) struct WaitLists<K, H> {
    pub(crate) shards: H,
    /// The waits for all permits to come back.
    pub(crate) drainers: Shard<K>,
}

impl<K: Copy + PartialEq, H: Shards<K>> WaitLists<K, H> {
    pub(crate) const EMPTY: Self = Self {
        shards: H::EMPTY,
        drainers: Shard::new(),
    };

    /// What is locked of a waiter.
    ///
    /// # Safety
    ///
    /// The waiter is in one of these lists, or has been taken out of one and is not settled.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "it stands for the lock")]
    pub(crate) unsafe fn get(&mut self, waiter: NonNull<Waiter<K>>) -> &mut Locked<K> {
        // SAFETY: as the caller says; and the lists are borrowed for as long.
        unsafe { Waiter::locked(waiter) }
    }

    /// Says what has become of a waiter, to the future that has it from now on.
    ///
    /// # Safety
    ///
    /// The waiter has been taken out of one of these lists. Afterwards it may be gone at any
    /// moment.
    #[inline(always)]
    pub(crate) unsafe fn settle(
        &mut self,
        waiter: NonNull<Waiter<K>>,
        outcome: State,
        grant: Option<(u32, Receipt)>,
        until: Option<Timestamp>,
    ) {
        // SAFETY: as the caller says.
        unsafe {
            let locked = self.get(waiter);
            locked.grant = grant;
            if let Some(until) = until {
                locked.until = until;
            }
            // Release: pairs with `state`; nothing of the waiter is touched after it.
            (*waiter.as_ptr()).state.store(outcome as u8, Release);
        }
    }
}

impl<K: Copy + PartialEq> Shard<K> {
    pub(crate) const fn new() -> Self {
        Self { heads: Ring::EMPTY }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// The heads of its wait lists. The one that was returned last may be taken out meanwhile, with
    /// all of its list.
    pub(crate) fn heads(&self) -> impl Iterator<Item = NonNull<Waiter<K>>> + use<K> {
        self.heads.iter()
    }

    /// The head of a key's list.
    pub(crate) fn head(&self, key: K) -> Option<NonNull<Waiter<K>>> {
        // SAFETY: linked waiters are valid.
        self.heads()
            .find(|head| unsafe { Waiter::asks(*head).0 == key })
    }

    /// What a head knows of its list.
    #[expect(clippy::unused_self, reason = "it stands for the lock")]
    #[inline(always)]
    fn line(&self, head: Option<NonNull<Waiter<K>>>) -> Line {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        head.map_or(Line::EMPTY, |head| unsafe { Waiter::lead(head).line })
    }

    /// The permits that the list of `head` waits for.
    pub(crate) fn permits(&self, head: Option<NonNull<Waiter<K>>>) -> u64 {
        self.line(head).permits
    }

    /// The room that the list of `head` takes.
    #[inline(always)]
    pub(crate) fn room(&self, head: Option<NonNull<Waiter<K>>>) -> u64 {
        self.line(head).room()
    }

    /// The last one of the list of `head`, which may be the head.
    #[expect(clippy::unused_self, reason = "it stands for the lock")]
    pub(crate) fn last(&self, head: NonNull<Waiter<K>>) -> NonNull<Waiter<K>> {
        turns(Some(head)).last().unwrap_or(head)
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
        // SAFETY: it is ours alone, by the caller; its neighbours are linked.
        unsafe {
            turns(head).push_back(waiter);
            let head = match head {
                Some(head) if end == End::Tail => head,
                Some(head) => {
                    self.replace_head(head, waiter);
                    waiter
                }
                None => {
                    Waiter::locked(waiter).lead = Some(Lead::EMPTY);
                    self.heads.push_front(waiter);
                    waiter
                }
            };
            Waiter::lead(head).line.add(Waiter::asks(waiter).1);
            (*waiter.as_ptr())
                .state
                .store(State::Waiting as u8, Relaxed);
        }
    }

    /// Makes `waiter` the head of a list in the place of `head`.
    ///
    /// # Safety
    ///
    /// Both are in that list.
    unsafe fn replace_head(&mut self, head: NonNull<Waiter<K>>, waiter: NonNull<Waiter<K>>) {
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        unsafe {
            let Lead { line, .. } = *Waiter::lead(head);
            Waiter::locked(waiter).lead = Some(Lead {
                line,
                ..Lead::EMPTY
            });
            self.heads.replace(head, waiter);
            Waiter::locked(head).lead = None;
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
        // SAFETY: linked waiters are valid, and belong to the holder of the lock.
        unsafe {
            Waiter::lead(head).line.subtract(Waiter::asks(waiter).1);
            let next = turns(Some(head)).remove(waiter).filter(|_| waiter == head);
            if let Some(next) = next {
                self.replace_head(waiter, next);
            } else if waiter == head {
                self.heads.remove(waiter);
                Waiter::locked(waiter).lead = None;
            }
            (Waiter::locked(waiter).waker.take(), next)
        }
    }
}

/// The list of a head.
#[inline(always)]
const fn turns<K>(head: Option<NonNull<Waiter<K>>>) -> Ring<Waiter<K>, Turns> {
    Ring::from(head)
}
