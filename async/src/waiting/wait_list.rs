//! Waiters, and the wait lists that they are in: one list for each key.
//!
//! A waiter is stored in its pinned future, which unlinks it before it is dropped. Invariants:
//!
//! - **Linked.** A linked waiter (one that is in a list) is valid and does not move, because its
//!   future unlinks it before the future is dropped. Its `key` and `request` do not change, so any
//!   thread can read them.
//! - **Locked.** Only the holder of the lock accesses the `locked` and `timer` fields of a linked
//!   waiter. [`WaitLists::get`] returns the locked fields.
//! - **Settled.** Settling a waiter unlinks it and then stores its state, which is the last write
//!   inside the lock. From then on the waiter belongs to its future, which accesses the locked
//!   fields by [`Waiter::own`]. So does an idle waiter, which has never been linked.
//!
//! ```text
//!   Idle --enter--> Waiting --settle--> Granted, Evicted, Exceeds, Late, Closed, Cancelled
//! ```
//!
//! The waiters of one key are a [ring](crate::waiting::ring), in the order in which they are
//! served. The heads of the lists in a [`Shard`] are another ring. So each operation on a list
//! takes a few steps, except finding the head of a key's list, which walks the heads of its shard.
#![allow(unsafe_code)]

mod groups;

use self::groups::Group;
pub(crate) use self::groups::is_outranking;

use core::cell::UnsafeCell;
use core::marker::PhantomPinned;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::Timestamp;
use portcullis_core::limiter::{NotGranted, Receipt};

use crate::finally::Finally;
use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::cell;
use crate::waiting::list_key::{InRound, ListKey, Resuming, Slot};
use crate::waiting::next_try::NextTry;
use crate::waiting::options::Terms;
use crate::waiting::priority::Priority;
use crate::waiting::ring::{Ring, RingLinks, RingNode};
use crate::waiting::shedding::Stored;
use crate::waiting::timer_heap::{HeapLinks, HeapNode};

/// The state of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Has not been in a list since it was filled.
    Idle,
    Waiting,
    Granted,
    Evicted,
    /// The request exceeds what the limiter can hold now.
    Exceeds,
    /// The deadline has passed.
    Late,
    Closed,
    /// The future was dropped.
    Cancelled,
}

impl State {
    /// The states by their numbers.
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

    /// Returns why a request that the queue settled with this state was not granted.
    #[inline(always)]
    pub(crate) const fn not_granted(self) -> Option<NotGranted> {
        match self {
            Self::Late => Some(NotGranted::Denied),
            Self::Evicted | Self::Exceeds | Self::Closed => Some(NotGranted::Refused),
            Self::Idle | Self::Waiting | Self::Granted | Self::Cancelled => None,
        }
    }
}

/// A request for permits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The smallest number of permits to grant. The queue's bound counts this number.
    pub(crate) min: u32,
    /// The largest number of permits to grant.
    pub(crate) max: u32,
    /// The deadline; [`Timestamp::MAX`] if there is none. When the request enters a list, it
    /// becomes the bound of the queue's shedding if that is earlier.
    pub(crate) deadline: Timestamp,
}

impl Request {
    /// Returns the number of permits that the request counts for in the queue's bound: at least
    /// one, also if the request is for none.
    #[inline]
    pub(crate) fn room(self) -> u64 {
        self.min.max(1).into()
    }
}

/// What the waiters of a list, or of one of its groups, request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Their permits, and the number of waiters that request none.
    permits: u64,
    free: u64,
}

impl Line {
    pub(crate) const EMPTY: Self = Self {
        permits: 0,
        free: 0,
    };

    /// Returns what both request together.
    const fn with(self, other: Self) -> Self {
        Self {
            permits: self.permits + other.permits,
            free: self.free + other.free,
        }
    }

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

    /// Returns the number of permits that they request.
    pub(crate) const fn permits(self) -> u64 {
        self.permits
    }

    /// Returns the number of permits that they count for in the queue's bound.
    #[inline(always)]
    pub(crate) const fn room(self) -> u64 {
        self.permits + self.free
    }
}

/// A queued request.
pub(crate) struct Waiter<K: ListKey> {
    state: AtomicU8,
    priority: Stored<Priority>,
    pub(crate) key: K,
    pub(crate) request: Request,
    timer: UnsafeCell<HeapLinks<Self>>,
    /// Accessed only by the holder of the lock while the waiter is linked.
    locked: cell::UnsafeCell<Locked<K>>,
    _pinned: PhantomPinned,
}

/// The fields of a waiter that belong to the holder of the lock while the waiter is linked, and to
/// its future otherwise.
pub(crate) struct Locked<K: ListKey> {
    /// The neighbours in the list of the key.
    turn: RingLinks<Waiter<K>>,
    /// `Some` while the waiter is a head.
    lead: Option<Lead<K>>,
    /// Set while the waiter is the head of a key that waits for the limit of all keys.
    pub(crate) round: K::Turn<Waiter<K>>,
    waker: Option<Waker>,
    /// Whether the waiter's future can drive the queue.
    can_drive: bool,
    /// Whether the permits come after the deadline, by a change of the limiter.
    pub(crate) is_hopeless: bool,
    /// Whether the deadline is the bound of the queue's shedding, and not that of the request.
    sheds: Stored<bool>,
    /// Since when the list has had waiters. Set only by a queue that asks: see `shedding.rs`.
    list_since: Stored<Timestamp>,
    /// `Some` for the first waiter of a group in a mixed list: see `priority.rs`.
    group: Stored<Option<Group<K>>>,
    /// When the waiter was queued, and when it was settled.
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    /// The permits that were granted, and their receipt.
    pub(crate) grant: Option<(u32, Receipt)>,
}

/// The fields that only a head has.
struct Lead<K: ListKey> {
    line: Line,
    next_try: NextTry,
    /// The neighbours among the heads of the shard.
    heads: RingLinks<Waiter<K>>,
}

impl<K: ListKey> Lead<K> {
    const EMPTY: Self = Self {
        line: Line::EMPTY,
        next_try: NextTry::ON_RELEASE,
        heads: RingLinks::UNLINKED,
    };
}

/// What a timer is for. At equal instants the events run in this order: the head is granted, or
/// makes way for the waiters behind it, before their deadlines are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// Asks the limiter again.
    Retry,
    /// The deadline of a head.
    HeadDeadline,
    /// The deadline of another waiter.
    Deadline,
}

// SAFETY: `timer` is a field of the waiter, so it is at the same place each time.
unsafe impl<K: ListKey> HeapNode for Waiter<K> {
    type Priority = (Timestamp, Event);

    #[inline(always)]
    fn links(waiter: NonNull<Self>) -> NonNull<HeapLinks<Self>> {
        // SAFETY: the pointer is within the waiter, so it is not null. The waiter is valid while it
        // is in a heap or enters one, which is when the heap calls this.
        unsafe { NonNull::new_unchecked((*waiter.as_ptr()).timer.get()) }
    }
}

/// The ring of the waiters of one key, and the ring of the heads in one shard.
enum Turns {}
enum Heads {}

// SAFETY: `turn` is a field of the waiter, so it is at the same place each time.
unsafe impl<K: ListKey> RingNode<Turns> for Waiter<K> {
    #[inline(always)]
    fn links(waiter: NonNull<Self>) -> NonNull<RingLinks<Self>> {
        // SAFETY: a ring calls this only for waiters that are linked or being linked. By the
        // invariants **Linked** and **Locked** they are valid, and their locked fields belong to
        // the holder of the lock.
        unsafe { NonNull::from(&mut Self::locked(waiter).turn) }
    }
}

// SAFETY: `heads` is within the field `lead`, which is set before the waiter enters the ring of
// heads and cleared after it has left, and is not moved in between.
unsafe impl<K: ListKey> RingNode<Heads> for Waiter<K> {
    #[inline(always)]
    fn links(head: NonNull<Self>) -> NonNull<RingLinks<Self>> {
        // SAFETY: the ring of heads calls this only for heads. By the invariants **Linked** and
        // **Locked** they are valid, and their locked fields belong to the holder of the lock.
        unsafe { NonNull::from(&mut Self::lead(head).heads) }
    }
}

// SAFETY: `links` is within the field `round`, which is set before the waiter enters the ring of
// ready keys and cleared after it has left, and is not moved in between.
unsafe impl<K: ListKey> RingNode<InRound> for Waiter<K> {
    #[inline(always)]
    fn links(head: NonNull<Self>) -> NonNull<RingLinks<Self>> {
        // SAFETY: the ring of ready keys calls this only for heads that have a turn. By the
        // invariants **Linked** and **Locked** they are valid, and their locked fields belong to
        // the holder of the lock.
        unsafe { NonNull::from(&mut Self::locked(head).round.get().unwrap_unchecked().links) }
    }
}

// SAFETY: as above, for the ring of the keys that resume, which is a part of the ready keys.
unsafe impl<K: ListKey> RingNode<Resuming> for Waiter<K> {
    #[inline(always)]
    fn links(head: NonNull<Self>) -> NonNull<RingLinks<Self>> {
        // SAFETY: as above.
        unsafe { NonNull::from(&mut Self::locked(head).round.get().unwrap_unchecked().resuming) }
    }
}

// SAFETY: links point to waiters that are accessed only inside the lock (invariant **Locked**), so
// by one thread at a time. `K` and `Waker` are `Send`.
unsafe impl<K: ListKey> Send for Waiter<K> {}

impl<K: ListKey> Waiter<K> {
    /// Returns storage for a waiter. Only its request and its priority are initialised.
    #[inline(always)]
    pub(crate) const fn place(request: Request) -> MaybeUninit<Self> {
        let mut waiter = MaybeUninit::<Self>::uninit();
        // SAFETY: the pointer is within `waiter`, which is valid for writes.
        unsafe {
            (&raw mut (*waiter.as_mut_ptr()).request).write(request);
            (&raw mut (*waiter.as_mut_ptr()).priority).write(Stored::new(Priority::Normal));
        }
        waiter
    }

    /// Initialises the other fields. The waiter gets its waker before it enters a list, so that no
    /// waker is cloned and none is moved inside the lock.
    ///
    /// # Safety
    ///
    /// `waiter` points to storage from `place`. No other reference to it is in use.
    #[inline(always)]
    pub(crate) unsafe fn fill(waiter: NonNull<Self>, key: K, waker: Waker, can_drive: bool) {
        let waiter = waiter.as_ptr();
        // SAFETY: the storage is valid and not shared, as the caller guarantees. Overwritten fields
        // need no drop: the waker of a previous waiter was taken when it was removed, and no other
        // field has a destructor.
        unsafe {
            (&raw mut (*waiter).state).write(AtomicU8::new(State::Idle as u8));
            (&raw mut (*waiter).key).write(key);
            (&raw mut (*waiter).timer).write(UnsafeCell::new(HeapLinks::UNLINKED));
            (&raw mut (*waiter).locked).write(cell::UnsafeCell::new(Locked {
                turn: RingLinks::UNLINKED,
                lead: None,
                round: K::Turn::<Self>::EMPTY,
                waker: Some(waker),
                can_drive,
                is_hopeless: false,
                sheds: Stored::new(false),
                list_since: Stored::new(Timestamp::ZERO),
                group: Stored::new(None),
                since: Timestamp::ZERO,
                until: Timestamp::ZERO,
                grant: None,
            }));
        }
    }

    /// Returns the locked fields.
    ///
    /// # Safety
    ///
    /// The waiter is filled, its locked fields belong to the caller, and no other reference to them
    /// is in use.
    #[inline(always)]
    unsafe fn locked<'w>(waiter: NonNull<Self>) -> &'w mut Locked<K> {
        // SAFETY: the waiter is filled and the caller has exclusive access to this field.
        unsafe { (*waiter.as_ptr()).locked.with_mut(|locked| &mut *locked) }
    }

    /// Returns the fields of a head.
    ///
    /// # Safety
    ///
    /// The contract is that of `locked`. The waiter is a head.
    #[inline(always)]
    unsafe fn lead<'w>(head: NonNull<Self>) -> &'w mut Lead<K> {
        // SAFETY: the caller has exclusive access to the locked fields. A head has `lead`.
        unsafe { Self::locked(head).lead.as_mut().unwrap_unchecked() }
    }

    /// Returns the locked fields of a waiter that is in no list.
    ///
    /// # Safety
    ///
    /// The waiter is idle or settled, so it belongs to the caller (invariant **Settled**). No other
    /// reference that this method returned is in use.
    #[inline(always)]
    pub(crate) unsafe fn own<'w>(waiter: NonNull<Self>) -> &'w mut Locked<K> {
        // SAFETY: the waiter is filled and belongs to the caller, so its locked fields do.
        unsafe { Self::locked(waiter) }
    }

    /// Sets the terms on which the waiter enters a list.
    ///
    /// # Safety
    ///
    /// The waiter is idle, so it belongs to the caller. No reference to it is in use.
    pub(crate) unsafe fn set_terms(waiter: NonNull<Self>, terms: &Terms) {
        // SAFETY: the waiter is filled and belongs to the caller.
        unsafe {
            (&raw mut (*waiter.as_ptr()).request.deadline).write(terms.deadline);
            let own = Self::own(waiter);
            own.sheds = Stored::new(terms.sheds);
            own.list_since = Stored::new(terms.since);
        }
    }

    /// Returns the key and the request.
    ///
    /// # Safety
    ///
    /// The waiter is filled.
    #[inline(always)]
    pub(crate) const unsafe fn asks(waiter: NonNull<Self>) -> (K, Request) {
        // SAFETY: the waiter is filled, as the caller guarantees. `key` and `request` do not change
        // until it is filled again.
        unsafe { ((*waiter.as_ptr()).key, (*waiter.as_ptr()).request) }
    }

    /// Returns the priority.
    ///
    /// # Safety
    ///
    /// The waiter is filled.
    #[inline(always)]
    pub(crate) const unsafe fn priority(waiter: NonNull<Self>) -> Priority {
        // SAFETY: the waiter is filled, as the caller guarantees. The priority does not change
        // until it is filled again.
        unsafe { (*waiter.as_ptr()).priority }.or(Priority::Normal)
    }

    /// Returns the state. If it is a settled state, everything that was written to the waiter
    /// before it was settled is visible.
    ///
    /// # Safety
    ///
    /// The waiter is valid. The holder of the lock may access its other fields.
    #[inline]
    pub(crate) unsafe fn state(waiter: NonNull<Self>) -> State {
        // SAFETY: the waiter is valid, as the caller guarantees. No reference to the whole waiter
        // is created, so other fields can be written concurrently. Acquire: pairs with the store in
        // `settle`.
        let state = unsafe { (*waiter.as_ptr()).state.load(Acquire) };
        // The remainder keeps the index in bounds without a panic.
        State::ALL[usize::from(state) % State::ALL.len()]
    }

    /// Returns the grant, if the waiter is granted. This ends the wait.
    ///
    /// # Safety
    ///
    /// The waiter was put into a list, and its grant has not been taken since it was settled.
    #[inline(always)]
    pub(crate) unsafe fn claim(waiter: NonNull<Self>) -> Option<(u32, Receipt)> {
        // SAFETY: the waiter is valid, as the caller guarantees. In the state `Granted` it is
        // settled, so it belongs to the caller (invariant **Settled**).
        unsafe {
            if Self::state(waiter) == State::Granted {
                Self::own(waiter).grant.take()
            } else {
                None
            }
        }
    }

    /// Returns a guard for a waiter that has its waker and has not entered a list. If the waiter
    /// does not enter one, the guard drops its waker, outside the lock: the drop of a waker runs
    /// foreign code.
    ///
    /// # Safety
    ///
    /// The waiter is valid for as long as the guard exists. It is idle, in a list, or has been in
    /// one.
    #[inline(always)]
    pub(crate) unsafe fn newcomer(waiter: NonNull<Self>) -> Finally<impl FnMut()> {
        // SAFETY: the waiter is valid, as the caller guarantees. An idle waiter has never been in a
        // list, so it belongs to its future, which has exclusive access to it.
        Finally(move || unsafe {
            if Self::state(waiter) == State::Idle {
                drop(Self::own(waiter).rewake(None));
            }
        })
    }
}

impl<K: ListKey> Locked<K> {
    /// Returns when to ask the limiter of a head again; `None` for other waiters.
    #[inline(always)]
    pub(crate) fn next_try(&self) -> Option<NextTry> {
        self.lead.as_ref().map(|lead| lead.next_try)
    }

    /// Sets when to ask the limiter again, if the waiter is a head.
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

    /// Returns whether the waiter's future can drive the queue.
    pub(crate) const fn can_drive(&self) -> bool {
        self.can_drive
    }

    /// Returns whether the deadline is the bound of the queue's shedding.
    pub(crate) const fn sheds(&self) -> bool {
        self.sheds.or(false)
    }

    /// Replaces the waker, or removes it. Returns the previous one.
    pub(crate) const fn rewake(&mut self, waker: Option<Waker>) -> Option<Waker> {
        core::mem::replace(&mut self.waker, waker)
    }
}

/// Storage for a waiter in its future.
///
/// The state of the waiter tells whether it is in a list. The slot only knows whether the waiter is
/// filled, and notes this before the waiter can enter a list. So if entering unwinds, the drop of
/// the future still reads the state and unlinks the waiter.
pub(crate) struct WaiterSlot<K: ListKey> {
    /// Whether the waiter is filled. If not, only its request and its priority are initialised.
    is_filled: bool,
    waiter: UnsafeCell<MaybeUninit<Waiter<K>>>,
}

impl<K: ListKey> WaiterSlot<K> {
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

    /// Returns the waiter. If it is not filled, only its request and its priority are initialised.
    #[inline(always)]
    pub(crate) fn waiter(&self) -> NonNull<Waiter<K>> {
        NonNull::from(&self.waiter).cast()
    }

    /// Returns the request.
    #[cfg(all(feature = "std", not(portcullis_loom)))]
    pub(crate) fn request(&self) -> Request {
        // SAFETY: the request is initialised in `new`. It does not change while the waiter is in a
        // list, and otherwise only through `&mut self`.
        unsafe { (*self.waiter().as_ptr()).request }
    }

    /// Returns the request of a waiter that is not in a list.
    #[inline(always)]
    pub(crate) const fn request_mut(&mut self) -> &mut Request {
        // SAFETY: the request is initialised in `new`. `&mut self` and the waiter being in no list
        // give exclusive access to it.
        unsafe { &mut (*self.waiter.get_mut().as_mut_ptr()).request }
    }

    /// Sets the priority of a waiter that is not in a list.
    #[cfg(feature = "shedding")]
    pub(crate) const fn set_priority(&mut self, priority: Priority) {
        // SAFETY: the priority is initialised in `new`. `&mut self` and the waiter being in no list
        // give exclusive access to it.
        unsafe { (*self.waiter.get_mut().as_mut_ptr()).priority = Stored::new(priority) };
    }

    /// Fills the waiter so that it can enter a list. The slot must not be moved or dropped until
    /// the waiter has left the lists.
    #[inline(always)]
    pub(crate) fn fill(&mut self, key: K, waker: Waker, can_drive: bool) -> NonNull<Waiter<K>> {
        let waiter = self.waiter();
        // SAFETY: `waiter` points into `self`, whose storage comes from `place`. `&mut self` gives
        // exclusive access: a previous waiter has left its list, and its waker was taken.
        unsafe { Waiter::fill(waiter, key, waker, can_drive) };
        self.is_filled = true;
        waiter
    }

    /// Returns the waiter if it is filled, and marks the slot as not filled. The caller then has
    /// the waiter leave the wait lists.
    pub(crate) fn take(&mut self) -> Option<NonNull<Waiter<K>>> {
        core::mem::take(&mut self.is_filled).then(|| self.waiter())
    }
}

/// The waker of a removed waiter, and the new head of its list if the waiter was the head.
pub(crate) type Removed<K> = (Option<Waker>, Option<NonNull<Waiter<K>>>);

/// The wait lists of one shard, one list for each key.
#[derive(Debug)]
pub struct Shard<K: ListKey> {
    heads: Ring<Waiter<K>, Heads>,
}

/// The shards of a queue, as an array.
pub trait Shards<K: ListKey>: AsRef<[Shard<K>]> + AsMut<[Shard<K>]> {
    const COUNT: usize;
    const EMPTY: Self;
}

impl<K: ListKey, const N: usize> Shards<K> for [Shard<K>; N] {
    const COUNT: usize = N;
    const EMPTY: Self = [const { Shard::new() }; N];
}

/// Where a new waiter enters a list.
#[derive(Debug)]
pub(crate) enum At<K: ListKey> {
    Head,
    After(NonNull<Waiter<K>>),
    Tail,
}

/// All wait lists of a queue. They are inside the lock: a reference to them proves that its owner
/// holds the lock. Only through them can the locked fields of a linked waiter be accessed.
pub(crate) struct WaitLists<K: ListKey, H> {
    pub(crate) shards: H,
    /// The waiters for all permits to be returned.
    pub(crate) drainers: Shard<K>,
    /// The keys that wait for the limit of all keys.
    pub(crate) round: K::Round<Waiter<K>>,
}

impl<K: ListKey, H: Shards<K>> WaitLists<K, H> {
    pub(crate) const EMPTY: Self = Self {
        shards: H::EMPTY,
        drainers: Shard::new(),
        round: K::Round::<Waiter<K>>::EMPTY,
    };

    /// Returns the locked fields of a waiter.
    ///
    /// # Safety
    ///
    /// The waiter is in one of these lists, or has been removed from one and is not settled.
    #[inline(always)]
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the lock is held"
    )]
    pub(crate) unsafe fn get(&mut self, waiter: NonNull<Waiter<K>>) -> &mut Locked<K> {
        // SAFETY: the waiter is linked or not yet settled, so its locked fields belong to the
        // holder of the lock (invariant **Locked**), which the borrow of the lists proves. The same
        // borrow prevents a second reference.
        unsafe { Waiter::locked(waiter) }
    }

    /// Stores the outcome of a waiter. From then on the waiter belongs to its future.
    ///
    /// # Safety
    ///
    /// The waiter has been removed from one of these lists. It may be dropped at any time after the
    /// call.
    #[inline(always)]
    pub(crate) unsafe fn settle(
        &mut self,
        waiter: NonNull<Waiter<K>>,
        outcome: State,
        grant: Option<(u32, Receipt)>,
        until: Option<Timestamp>,
    ) {
        // SAFETY: the waiter is removed and not settled, so it is valid and its locked fields
        // belong to the holder of the lock. The store of the state is the last access (invariant
        // **Settled**).
        unsafe {
            let locked = self.get(waiter);
            locked.grant = grant;
            if let Some(until) = until {
                locked.until = until;
            }
            // Release: pairs with the load in `state`. The waiter must not be accessed after this
            // store, since its future may drop it.
            (*waiter.as_ptr()).state.store(outcome as u8, Release);
        }
    }
}

impl<K: ListKey> Shard<K> {
    pub(crate) const fn new() -> Self {
        Self { heads: Ring::EMPTY }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Returns the heads of the wait lists. The caller may remove the head that was returned last,
    /// together with its list, during the iteration.
    pub(crate) fn heads(&self) -> impl Iterator<Item = NonNull<Waiter<K>>> + use<K> {
        self.heads.iter()
    }

    /// Returns the head of a key's list.
    pub(crate) fn head(&self, key: K) -> Option<NonNull<Waiter<K>>> {
        // SAFETY: heads are linked, so they are valid, and their keys do not change (invariant
        // **Linked**).
        self.heads()
            .find(|head| unsafe { Waiter::asks(*head).0 == key })
    }

    /// Returns what a head stores about its list.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the lock is held"
    )]
    #[inline(always)]
    pub(crate) fn line(&self, head: Option<NonNull<Waiter<K>>>) -> Line {
        // SAFETY: heads are linked, so they are valid, and their locked fields belong to the holder
        // of the lock (invariants **Linked** and **Locked**).
        head.map_or(Line::EMPTY, |head| unsafe { Waiter::lead(head).line })
    }

    /// Returns since when the list of `head` has had waiters.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the lock is held"
    )]
    pub(crate) fn since(&self, head: NonNull<Waiter<K>>) -> Timestamp {
        // SAFETY: heads are linked, so they are valid, and their locked fields belong to the holder
        // of the lock (invariants **Linked** and **Locked**).
        unsafe { Waiter::locked(head) }
            .list_since
            .or(Timestamp::ZERO)
    }

    /// Returns the waiters of the list of `head`, from the head on.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the lock is held"
    )]
    pub(crate) fn list(
        &self,
        head: NonNull<Waiter<K>>,
    ) -> impl Iterator<Item = NonNull<Waiter<K>>> + use<K> {
        turns(Some(head)).iter()
    }

    /// Returns the last waiter of the list of `head`; this may be the head.
    #[expect(
        clippy::unused_self,
        reason = "the receiver proves that the lock is held"
    )]
    pub(crate) fn last(&self, head: NonNull<Waiter<K>>) -> NonNull<Waiter<K>> {
        turns(Some(head)).last().unwrap_or(head)
    }

    /// Puts a waiter into the list of its key, whose head is `head`.
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
        at: At<K>,
    ) {
        // SAFETY: the waiter is idle, so the caller has exclusive access to it. Its neighbours are
        // linked, so they are valid and their locked fields belong to the holder of the lock.
        unsafe {
            if let Some(head) = head.filter(|&head| self.has_groups(head, waiter)) {
                self.join_group(waiter, head, &at);
            }
            match at {
                At::Head | At::Tail => turns(head).push_back(waiter),
                At::After(before) => turns(head).insert_after(waiter, before),
            }
            let head = match (head, at) {
                (Some(head), At::Tail | At::After(_)) => head,
                (Some(head), At::Head) => {
                    self.replace_head(head, waiter);
                    waiter
                }
                (None, _) => {
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

    /// Makes `waiter` the head of a list instead of `head`. It takes over when to ask again, and
    /// has no timer for it yet.
    ///
    /// # Safety
    ///
    /// Both are in that list.
    unsafe fn replace_head(&mut self, head: NonNull<Waiter<K>>, waiter: NonNull<Waiter<K>>) {
        // SAFETY: both waiters are linked, so they are valid, and their locked fields belong to the
        // holder of the lock (invariants **Linked** and **Locked**).
        unsafe {
            let Lead { line, next_try, .. } = *Waiter::lead(head);
            Waiter::locked(waiter).lead = Some(Lead {
                line,
                next_try,
                heads: RingLinks::UNLINKED,
            });
            self.heads.replace(head, waiter);
            Waiter::locked(head).lead = None;
        }
    }

    /// Removes a waiter from its list. Its state is still `Waiting`. Returns its waker, and the new
    /// head of the list if the waiter was the head.
    ///
    /// # Safety
    ///
    /// The waiter is in a list of this shard, and `head` is the head of that list, which may be the
    /// waiter itself.
    #[inline]
    pub(crate) unsafe fn remove(
        &mut self,
        waiter: NonNull<Waiter<K>>,
        head: NonNull<Waiter<K>>,
    ) -> Removed<K> {
        // SAFETY: the waiter and its neighbours are linked, so they are valid, and their locked
        // fields belong to the holder of the lock (invariants **Linked** and **Locked**).
        unsafe {
            Waiter::lead(head).line.subtract(Waiter::asks(waiter).1);
            let is_mixed = self.group(head).is_some();
            if is_mixed {
                self.leave_group(waiter, head);
            }
            let next = turns(Some(head)).remove(waiter).filter(|_| waiter == head);
            if let Some(next) = next {
                self.replace_head(waiter, next);
            } else if waiter == head {
                self.heads.remove(waiter);
                Waiter::locked(waiter).lead = None;
            }
            if is_mixed {
                self.forget_single_group(next.unwrap_or(head));
            }
            (Waiter::locked(waiter).waker.take(), next)
        }
    }
}

/// Returns the list of a head as a ring.
#[inline(always)]
const fn turns<K: ListKey>(head: Option<NonNull<Waiter<K>>>) -> Ring<Waiter<K>, Turns> {
    Ring::from(head)
}
