//! The engine of [`Queue`](crate::Queue) and [`KeyedQueue`](crate::KeyedQueue): limiters, and the
//! requests that wait for their permits.
//!
//! State: the *gate*, a word with a bit for each shard in which a request waits; *pending
//! releases*, a word with a bit for each shard of which permits may have come back; and, behind a
//! lock, the wait lists of each shard, a heap of timers, and the drivers of the queue's time.
//!
//! ```text
//!   acquire ----- gate clear? ----> limiter.take ----> lease
//!      |                                 | denied
//!      v                                 v
//!   lock: raise the gate, tell the limiter,                      drop, release:  limiter.release
//!         ask it once more, enter the wait list                       |  gate raised?
//!      |                                                              v
//!   lock: grant what is due, then what was released    <---      note it, try the lock
//!   unlock: anything noted? once more                         (held: its holder sees the note)
//! ```
//!
//! Invariants:
//!
//! - The gate is raised while a request is in a wait list. A request that enters raises the gate
//!   and then asks the limiter. A release gives back and then reads the gate. One of the two sees
//!   the other. A limiter that keeps in its own word that requests wait
//!   ([`watch`](portcullis_core::QueueLimiter::watch)) spares the release that read.
//! - While the lock is free, no permit is free that the head of a wait list could take. A release
//!   notes what it gave back and tries the lock. The holder of the lock reads the notes after it
//!   has unlocked. So no release waits for the lock.
//! - The holder of the lock takes permits on behalf of a request. If the request is dropped before
//!   it claims them, they are given back.
//! - If anything is due at any time, a driver has its timer set for that, or has been woken: see
//!   [`Drivers`].
//! - The notes are read after each critical section, also if a limiter or a clock panics in it.
#![allow(unsafe_code)]

mod admit;
mod counts;
mod driver;
mod serve;
mod taken;
mod waits;

use core::fmt;
use core::mem;
use core::ptr::NonNull;
use core::task::Waker;

use portcullis_core::{
    Clock, Composable, Denied, Limiter, PassedOn, Receipt, Receipts, Timestamp, Waiting,
};

pub(crate) use self::admit::earliest;
pub use self::counts::QueueCounts;
pub use self::driver::Next;
pub(crate) use self::driver::{Caller, Place};
use self::taken::Taken;
use crate::finally::Finally;
use crate::lock::mutex::Mutex;
use crate::queues::hook::Hook;
use crate::queues::options::Options;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, fence};
use crate::sync::const_unless_loom;
use crate::waiting::drivers::{Drivers, Told};
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::panics::{Panic, quietly, unless_unwinding};
use crate::waiting::pending_releases::PendingReleases;
use crate::waiting::queue_config::{Key, QueueConfig, QueueTypes};
use crate::waiting::timer_heap::TimerHeap;
use crate::waiting::wait_list::{Event, Request, Shard, Shards, State, WaitLists, Waiter};
use crate::waiting::wake_batch::WakeBatch;

/// Limiters, and the requests that wait for their permits.
pub struct WaitQueue<Q: QueueTypes> {
    pub(crate) source: Q::Source,
    pub(crate) clock: Q::Clock,
    pub(crate) hook: Q::Hook,
    pub(crate) options: Options,
    /// A bit for each shard in which a request waits, and those below.
    gate: AtomicUsize,
    /// A bit for each shard of which permits may have come back since its wait lists were served.
    pending: PendingReleases,
    /// Whether a request waits, and the permits that are waited for, saturated. Both change under
    /// the lock.
    has_waiters: AtomicBool,
    queued: AtomicU32,
    /// How often drivers have asked that set the timer. Changes under the lock.
    turns: AtomicU32,
    lists: Mutex<Q::Lock, Lists<Q::Source>>,
}

impl<Q: QueueTypes> fmt::Debug for WaitQueue<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What the lock guards.
struct Lists<S: LimiterSource> {
    waits: WaitLists<S::Key, S::Shards>,
    timers: TimerHeap<Waiter<S::Key>>,
    counts: QueueCounts,
    /// The bits that the gate is to have: one for each shard in which a request waits, and
    /// `DRAINED`.
    occupied: usize,
    closed: bool,
    /// The drivers that use the timer, and the threads that drive for as long as they wait.
    timed: Drivers,
    threads: Drivers,
    /// When the wait lists were served last.
    now: Timestamp,
    /// The address of the waiter that was granted last, and the receipts of that grant. (A bucket
    /// takes nothing back that came before it.)
    noted: (usize, Receipts),
    random: u32,
}

/// Bits of the gate beside those of the shards.
const CLOSED: usize = 1 << (usize::BITS - 1);
const DRAINED: usize = 1 << (usize::BITS - 2);
/// A note beside those of the shards: a driver that was woken could not take the lock.
const TIME: usize = 1 << (usize::BITS - 1);
/// Another one: something may be due of which a driver that has left was in charge.
const DUE: usize = 1 << (usize::BITS - 2);
impl<Q: QueueTypes> WaitQueue<Q> {
    /// How many shards it has.
    const SHARDS: usize = <<Q::Source as LimiterSource>::Shards as Shards<Key<Q>>>::COUNT;

    const_unless_loom! {
        pub(crate) const fn new(
            source: Q::Source,
            clock: Q::Clock,
            hook: Q::Hook,
            options: Options,
            lock: Q::Lock,
        ) -> Self {
            // The others are those above.
            const { assert!(Self::SHARDS > 0 && Self::SHARDS <= usize::BITS as usize - 2) };
            Self {
                source,
                clock,
                hook,
                options,
                gate: AtomicUsize::new(0),
                pending: PendingReleases::new(),
                has_waiters: AtomicBool::new(false),
                queued: AtomicU32::new(0),
                turns: AtomicU32::new(0),
                lists: Mutex::new(lock, Lists::NEW),
            }
        }
    }
}

impl<Q: QueueTypes> WaitQueue<Q> {
    /// What a critical section ends with: a driver is told of the next timer, and the gate is
    /// lowered where no wait is left. `batch` takes the waker of the driver.
    #[inline(always)]
    fn leave_lists<'b>(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: impl FnOnce() -> &'b mut WakeBatch,
    ) {
        if !lists.timers.is_empty() {
            lists.tell(batch());
        }
        self.lower_gate(lists);
    }

    /// Lowers the gate where no wait is left. It changes under the lock alone.
    #[inline(always)]
    fn lower_gate(&self, lists: &Lists<Q::Source>) {
        let empty = self.gate.load(Relaxed) & !CLOSED & !lists.occupied;
        if empty != 0 {
            self.gate.fetch_and(!empty, Relaxed);
            if lists.occupied == 0 {
                self.source.watch(false);
            }
        }
    }

    /// The same with another hook. No request waits yet.
    pub(crate) fn with_hook<G>(self, hook: G::Hook) -> WaitQueue<G>
    where
        G: QueueTypes<Source = Q::Source, Clock = Q::Clock, Lock = Q::Lock>,
    {
        let Self {
            source,
            clock,
            options,
            gate,
            pending,
            has_waiters,
            queued,
            turns,
            lists,
            ..
        } = self;
        WaitQueue {
            source,
            clock,
            hook,
            options,
            gate,
            pending,
            has_waiters,
            queued,
            turns,
            lists,
        }
    }
}

impl<S: LimiterSource> Lists<S> {
    const NEW: Self = Self {
        waits: WaitLists::EMPTY,
        timers: TimerHeap::new(),
        counts: QueueCounts {
            waiters: 0,
            permits: 0,
            granted: 0,
            refused: 0,
            evicted: 0,
            cancelled: 0,
            late: 0,
        },
        occupied: 0,
        closed: false,
        timed: Drivers::EMPTY,
        threads: Drivers::EMPTY,
        now: Timestamp::ZERO,
        noted: (0, Receipts::NONE),
        random: 1,
    };

    /// The wait lists of a key's shard.
    #[inline(always)]
    fn shard(&mut self, key: S::Key) -> &mut Shard<S::Key> {
        &mut self.waits.shards.as_mut()[S::shard(key)]
    }

    /// The head of a key's list.
    #[inline(always)]
    fn head(&self, key: S::Key) -> Option<NonNull<Waiter<S::Key>>> {
        self.waits.shards.as_ref()[S::shard(key)].head(key)
    }

    /// The permits that a key's list waits for.
    fn permits(&self, key: S::Key) -> u64 {
        let shard = &self.waits.shards.as_ref()[S::shard(key)];
        shard.permits(shard.head(key))
    }

    /// The room that a key's list takes.
    fn room(&self, key: S::Key) -> u64 {
        let shard = &self.waits.shards.as_ref()[S::shard(key)];
        shard.room(shard.head(key))
    }

    /// The head of the list that a waiter is in.
    ///
    /// # Safety
    ///
    /// The waiter is in a list.
    unsafe fn head_of(&mut self, waiter: NonNull<Waiter<S::Key>>) -> NonNull<Waiter<S::Key>> {
        // SAFETY: as the caller says.
        unsafe {
            if self.waits.get(waiter).is_head() {
                waiter
            } else {
                self.head(Waiter::asks(waiter).0).unwrap_or(waiter)
            }
        }
    }

    /// Sets the waiter's timer for what comes first: its deadline, or, of a head, that its
    /// limiter is asked.
    ///
    /// # Safety
    ///
    /// The waiter is in a list.
    unsafe fn schedule(&mut self, waiter: NonNull<Waiter<S::Key>>) {
        // SAFETY: as the caller says.
        unsafe {
            let (_, Request { deadline, .. }) = Waiter::asks(waiter);
            let next_try = self.waits.get(waiter).next_try();
            let asked = next_try.filter(|try_| try_.at <= deadline && try_.at < Timestamp::MAX);
            let due = asked.map_or(deadline, |try_| try_.at);
            let what = match (asked, next_try) {
                (Some(_), _) => Event::Retry,
                (None, Some(_)) => Event::HeadDeadline,
                (None, None) => Event::Deadline,
            };
            self.timers
                .set(waiter, (due < Timestamp::MAX).then_some((due, what)));
        }
    }

    /// When something is due next.
    fn due(&self) -> Timestamp {
        self.timers
            .first()
            .map_or(Timestamp::MAX, |(_, (due, _))| due)
    }

    /// Wakes a driver, if something is due before the instant for which a timer is set.
    #[cold]
    fn tell(&mut self, batch: &mut WakeBatch) {
        let due = self.due();
        for told in [
            self.timed.tell(due, self.now),
            self.threads.tell(due, self.now),
        ] {
            match told {
                Some(Told::Attendant(waker)) => batch.tell_attendant(waker),
                Some(Told::Driver(waker)) => batch.tell_driver(waker),
                None => {}
            }
        }
    }
}

/// Work on the wait lists. Whatever panics in it, they are left as they have to be.
struct CriticalSection<'q, Q: QueueTypes> {
    wait_queue: &'q WaitQueue<Q>,
    lists: &'q mut Lists<Q::Source>,
    /// Takes the waker of the driver.
    batch: &'q mut WakeBatch,
}

impl<Q: QueueTypes> Drop for CriticalSection<'_, Q> {
    #[inline]
    fn drop(&mut self) {
        self.wait_queue.leave_lists(self.lists, || &mut *self.batch);
    }
}

/// What a hand-over has come to.
struct Handed {
    waker: Option<Waker>,
    /// Whether other permits are free, and a wait is left that they may be for.
    goes_on: bool,
}

/// What was granted.
pub(crate) type Grant = (u32, Receipt);

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Grants what is pending, and what is free in some shards, if a limiter, a clock or a waker
    /// panics. To be forgotten where nothing has.
    #[inline(always)]
    fn grant_on_unwind(&self, shards: usize) -> Finally<impl FnMut()> {
        Finally(move || self.grant_after_panic(shards))
    }

    /// A limiter that has panicked in giving back may have given back by then. It is asked once
    /// more.
    #[cold]
    #[inline(never)]
    fn grant_after_panic(&self, shards: usize) {
        self.pending.add(shards);
        quietly(|| self.wake_and_grant(&mut WakeBatch::new()));
    }

    /// Works on the wait lists under the lock. Then wakes, and grants what was released meanwhile.
    fn with<T>(&self, work: impl FnOnce(&mut Lists<Q::Source>, &mut WakeBatch) -> T) -> T {
        let mut batch = WakeBatch::new();
        let outcome = self.with_batch(&mut batch, work);
        batch.resume();
        outcome
    }

    /// Works on the wait lists under the lock, as `with` does. The work calls no limiter, clock or
    /// waker, so it cannot panic.
    #[inline]
    fn with_lists<T>(&self, work: impl FnOnce(&mut Lists<Q::Source>) -> T) -> T {
        let mut batch = None;
        let outcome = self.lists.lock(|lists| {
            let outcome = work(lists);
            self.leave_lists(lists, || batch.insert(WakeBatch::new()));
            outcome
        });
        self.wake_and_grant_some(&mut batch);
        outcome
    }

    /// Wakes, if there is anybody to wake, and grants what was released while the lock was held.
    #[inline(always)]
    fn wake_and_grant_some(&self, batch: &mut Option<WakeBatch>) {
        if batch.as_ref().is_some_and(WakeBatch::are_left) || self.pending.is_any::<Q::Lock>() {
            self.grant_pending(batch.get_or_insert_with(WakeBatch::new));
        }
    }

    /// As `with`; a waker's panic is kept in `batch`.
    fn with_batch<T>(
        &self,
        batch: &mut WakeBatch,
        work: impl FnOnce(&mut Lists<Q::Source>, &mut WakeBatch) -> T,
    ) -> T {
        let panicking = self.grant_on_unwind(0);
        let outcome = self
            .lists
            .lock(|lists| self.critical_section(lists, batch, work));
        self.wake_and_grant(batch);
        mem::forget(panicking);
        outcome
    }

    /// The same without waiting for the lock. `None` if it is held: then its holder wakes a driver.
    fn try_with_batch<T>(
        &self,
        batch: &mut WakeBatch,
        work: impl FnOnce(&mut Lists<Q::Source>, &mut WakeBatch) -> T,
    ) -> Option<T> {
        let panicking = self.grant_on_unwind(0);
        let mut work = Some(work);
        let mut attempt = || {
            self.lists
                .try_lock(|lists| {
                    work.take()
                        .map(|work| self.critical_section(lists, batch, work))
                })
                .flatten()
        };
        let outcome = attempt().or_else(|| {
            self.pending.add(TIME);
            // Either the holder of the lock sees the note, or the lock is free by now.
            if self.pending.is_any::<Q::Lock>() {
                attempt()
            } else {
                None
            }
        });
        if outcome.is_some() {
            self.wake_and_grant(batch);
        }
        mem::forget(panicking);
        outcome
    }

    /// Under the lock.
    fn critical_section<T>(
        &self,
        lists: &mut Lists<Q::Source>,
        batch: &mut WakeBatch,
        work: impl FnOnce(&mut Lists<Q::Source>, &mut WakeBatch) -> T,
    ) -> T {
        let wait_queue = self;
        let section = CriticalSection {
            wait_queue,
            lists,
            batch,
        };
        work(section.lists, section.batch)
    }

    /// Wakes, and grants as long as something is pending and the lock is free.
    fn wake_and_grant(&self, batch: &mut WakeBatch) {
        loop {
            batch.wake();
            if batch.has_lost_one() {
                self.pending.add(TIME);
            }
            if !self.pending.is_any::<Q::Lock>() || !self.try_grant(None, batch) {
                return;
            }
        }
    }

    /// Grants what is due, what is pending, and what waits for `key`, unless the lock is held.
    fn try_grant(&self, key: Option<Key<Q>>, batch: &mut WakeBatch) -> bool {
        let drain = |lists: &mut _, batch: &mut _| self.drain(lists, batch, key);
        let granted = self
            .lists
            .try_lock(|lists| self.critical_section(lists, batch, drain));
        granted.is_some()
    }

    /// Gives permits back by `give`, and grants them to the requests that wait for the key. `give`
    /// returns whether the limiter knows that requests wait.
    #[inline]
    pub(crate) fn give_back<T>(
        &self,
        key: Key<Q>,
        give: impl FnOnce(&Q::Source) -> (T, Waiting),
    ) -> T {
        let panicking = self.grant_on_unwind(Self::bit(key));
        let (outcome, waiting) = give(&self.source);
        mem::forget(panicking);
        if waiting != Waiting::No {
            self.grant(key, waiting == Waiting::Yes);
        }
        outcome
    }

    /// Takes from a key's limiter without the lock. A composition may take from some of its limits
    /// and give back again, when it denies or panics. A request that found too few permits
    /// meanwhile is granted.
    #[inline(always)]
    pub(crate) fn take<T>(
        &self,
        key: Key<Q>,
        take: impl FnOnce() -> Result<T, Denied>,
    ) -> Result<T, Denied> {
        let panicking = self.grant_on_unwind(Self::bit(key));
        let taken = take();
        mem::forget(panicking);
        if taken.is_err() && self.is_composed(key) {
            self.grant(key, false);
        }
        taken
    }

    /// Whether a key's limiter may take from some of its limits and give back again.
    #[inline(always)]
    fn is_composed(&self, key: Key<Q>) -> bool {
        let limiter = self.source.at(key);
        limiter.as_composable().is_some_and(Composable::is_composed)
    }

    /// Changes limiters, and then serves all wait lists.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&Q::Source) -> T) -> T {
        let panicking = self.grant_on_unwind(usize::MAX >> (usize::BITS as usize - Self::SHARDS));
        let outcome = change(&self.source);
        mem::forget(panicking);
        self.with(|lists, batch| {
            self.pending.add(lists.occupied & !DRAINED);
            self.drain(lists, batch, None);
        });
        outcome
    }

    /// Releases permits: to the requests that wait, before any others.
    #[inline]
    pub(crate) fn release(&self, key: Key<Q>, n: u32) {
        if !(self.is_waited_for(key) && self.hand_over(key, n)) {
            self.give_back(key, |source| ((), source.release_watched(key, n)));
        }
    }

    /// Hands permits over to the head of a key's wait list, if they are just what it wants. Neither
    /// of the two then touches the limiter. `false` if nothing was done.
    fn hand_over(&self, key: Key<Q>, n: u32) -> bool {
        let panicking = self.grant_on_unwind(0);
        // Released if a clock or a limiter panics before they are handed over.
        let unreleased = Finally(|| {
            self.source.at(key).release(n);
            self.note_release(key);
        });
        let handed = self.lists.try_lock(|lists| {
            let handed = self.hand_to_head(lists, key, n);
            // After a hand-over the gate stays raised, even if no request waits any more. Usually
            // another request waits soon; otherwise the next release lowers the gate. A raised gate
            // alone refuses no request.
            if handed.is_none() {
                self.lower_gate(lists);
            }
            handed
        });
        let Some(handed) = handed else {
            mem::forget((unreleased, panicking));
            return false;
        };
        let is_handed = handed.is_some();
        // What is not handed over is released by the caller; or here, if a waker panics before, and
        // is then granted.
        let unreleased = if is_handed {
            mem::forget(unreleased);
            None
        } else {
            Some(unreleased)
        };
        if let Some(handed) = handed {
            if handed.goes_on {
                self.pending.add(Self::bit(key));
            }
            if let Some(waker) = handed.waker {
                unless_unwinding(|| waker.wake());
            }
        }
        if self.pending.is_any::<Q::Lock>() {
            self.grant_pending(&mut WakeBatch::new());
        }
        mem::forget(unreleased);
        mem::forget(panicking);
        is_handed
    }

    /// Settles the head of a key's list with `n` permits as they are, if that is what it wants, and
    /// nothing else is to be looked at.
    #[inline(always)]
    fn hand_to_head(&self, lists: &mut Lists<Q::Source>, key: Key<Q>, n: u32) -> Option<Handed> {
        let head = lists.head(key)?;
        // SAFETY: linked, and we hold the lock.
        let (_, Request { min, max, .. }) = unsafe { Waiter::asks(head) };
        if min != n || max != n || lists.closed || !lists.timers.is_empty() {
            return None;
        }
        let others_are_free = match self.source.pass_on(key, n) {
            PassedOn::No => return None,
            PassedOn::NoneAreFree => false,
            PassedOn::OthersAreFree => true,
        };
        let now = Q::Hook::TIMES.then(|| self.clock.now());
        lists.counts.granted = lists.counts.granted.wrapping_add(1);
        let (waker, next) = self.remove_from(lists, head, head);
        let grant = Some((n, Receipt::NONE));
        // SAFETY: it has been taken out.
        unsafe { lists.waits.settle(head, State::Granted, grant, now) };
        let goes_on = others_are_free && next.is_some();
        Some(Handed { waker, goes_on })
    }

    #[cold]
    fn grant(&self, key: Key<Q>, waited_for: bool) {
        let shard = Self::bit(key);
        if !waited_for {
            // A request enters and then asks the limiter. This call has given back, and then reads
            // the gate. At least one of the two sees the other.
            fence(SeqCst);
            if self.gate.load(Relaxed) & (shard | DRAINED) == 0 {
                return;
            }
        }
        let mut batch = WakeBatch::new();
        unless_unwinding(|| {
            let panicking = self.grant_on_unwind(0);
            // Left if the lock is held, or a clock or a limiter panics.
            let mut mark = self.pending.restore_on_drop(shard);
            if self.try_grant(Some(key), &mut batch) {
                mark.bits = 0;
            }
            drop(mark);
            self.wake_and_grant(&mut batch);
            mem::forget(panicking);
        });
        batch.resume();
    }

    /// Wakes, and grants what is pending.
    #[cold]
    fn grant_pending(&self, batch: &mut WakeBatch) {
        unless_unwinding(|| {
            let panicking = self.grant_on_unwind(0);
            self.wake_and_grant(batch);
            mem::forget(panicking);
        });
        batch.resume();
    }

    fn bit(key: Key<Q>) -> usize {
        1 << Q::Source::shard(key)
    }

    pub(crate) fn counts(&self) -> QueueCounts {
        self.with_lists(|lists| lists.counts)
    }

    /// The permits that are waited for, saturated.
    pub(crate) fn queued(&self) -> u32 {
        self.queued.load(Relaxed)
    }

    pub(crate) fn close(&self) {
        let (mut batch, mut panic) = (WakeBatch::new(), Panic::NONE);
        panic.keep(|| {
            self.with_batch(&mut batch, |lists, batch| {
                lists.closed = true;
                self.gate.fetch_or(CLOSED, Relaxed);
                self.drain(lists, batch, None);
            });
        });
        // All drivers come to their end, also if a clock or a limiter has panicked.
        let mut are_left = true;
        while are_left {
            // If the lock itself panics, there is no way on.
            are_left = false;
            let tell_drivers = |lists: &mut Lists<Q::Source>, batch: &mut WakeBatch| {
                loop {
                    if batch.is_full() {
                        are_left = true;
                        break;
                    }
                    let Some(waker) = lists.timed.next_waker() else {
                        break;
                    };
                    batch.push(Some(waker));
                }
            };
            panic.keep(|| self.with_batch(&mut batch, tell_drivers));
        }
        batch.resume();
        panic.resume();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.gate.load(Relaxed) & CLOSED != 0
    }

    /// Whether a request waits in a key's shard. (A gate that was left raised refuses no request:
    /// then none waits at all.)
    #[inline]
    pub(crate) fn is_waited_for(&self, key: Key<Q>) -> bool {
        self.gate.load(Relaxed) & Self::bit(key) != 0 && self.has_waiters.load(Relaxed)
    }

    /// Notes that permits of a key came back, for the next holder of the lock.
    pub(crate) fn note_release(&self, key: Key<Q>) {
        self.pending.add(Self::bit(key));
    }

    /// The permits that wait before a new request, if the lock is free; else none.
    pub(crate) fn seen_ahead(&self, key: Key<Q>) -> u64 {
        if !self.is_waited_for(key) {
            return 0;
        }
        let mut batch = WakeBatch::new();
        let ahead = |lists: &mut _, _: &mut _| self.ahead(lists, key);
        let ahead = self
            .lists
            .try_lock(|lists| self.critical_section(lists, &mut batch, ahead));
        self.wake_and_grant(&mut batch);
        batch.resume();
        ahead.unwrap_or(0)
    }

    /// Takes for a key if no request waits for it and the lock is free: for a key whose shard is
    /// not empty, which may be because of another key.
    pub(crate) fn take_past_others(
        &self,
        key: Key<Q>,
        now: Timestamp,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        let mut batch = WakeBatch::new();
        let panicking = self.grant_on_unwind(Self::bit(key));
        let taken = self.lists.try_lock(|lists| {
            self.critical_section(lists, &mut batch, |lists, _| {
                let free = lists.head(key).is_none();
                free.then(|| self.source.at(key).take_at(now, n))
            })
        });
        mem::forget(panicking);
        // To be given back if a waker panics before it is handed out.
        let taken = taken.flatten().map(|taken| {
            taken.map(|receipt| Taken {
                wait_queue: self,
                key,
                grant: Some((n, receipt)),
                at: now,
                waiter: 0,
            })
        });
        self.wake_and_grant(&mut batch);
        batch.resume();
        taken.map(|taken| taken.map(|taken| taken.keep().1))
    }
}
