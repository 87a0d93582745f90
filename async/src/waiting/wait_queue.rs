//! The wait-queue engine behind [`Queue`](crate::Queue) and [`KeyedQueue`](crate::KeyedQueue):
//! limiters, and the requests that wait for their permits.
//!
//! State:
//!
//! - `gate`: a word with a *waiter bit* for each shard that has waiters. Setting a bit raises the
//!   gate of its shard, clearing it lowers the gate. Under a limit for all keys, one more bit says
//!   that keys wait for their turn.
//! - `pending`: the *pending releases*, a word with a bit for each shard to which permits may have
//!   been returned, and one for the limit for all keys.
//! - Behind a lock: the wait lists of each shard, a heap of timers, and the drivers of the queue.
//!
//! ```text
//!   acquire ----- gate clear? ----> limiter.decide --> lease
//!      |                                 | denied
//!      v                                 v
//!   lock: set the waiter bit, tell the limiter,           drop, release
//!         ask it once more, enter the wait list             |  waiter bit set, and lock free?
//!      |                                                    |     lock: the head of the list gets
//!      |                                                    |     the permits (hand-over), end
//!      |                                                    v  otherwise
//!      |                                                  limiter.give_back
//!      |                                                    |  waiter bit set?
//!      |                                                    v
//!   lock: grant what is due, then what was released  <--- try the lock; if it is held, set the
//!   unlock: a pending bit set? repeat                     pending bit, and try once more
//! ```
//!
//! A hand-over is the usual release while requests wait: the head asks for as many permits as are
//! released, and gets them. The limiter's count does not change.
//!
//! Invariants:
//!
//! - **Waiter bits.** The waiter bit of a shard is set while a list of the shard has waiters. A
//!   request sets the bit and then asks the limiter. A release returns its permits and then reads
//!   the bit. At least one of the two observes the other. A limiter that keeps a waiter bit in its
//!   own word ([`Back::Watch`]) spares the release this read.
//! - **Pending releases.** While the lock is free and no release is in progress, no released permit
//!   is left that the head of a wait list could take. A release that finds the lock held sets the
//!   pending bit of its shard and then tries the lock again. The holder of the lock reads the
//!   pending bits after unlocking, also if a limiter or a clock panicked in the critical section.
//!   So a release never waits for the lock.
//! - **Grants.** The holder of the lock takes permits on behalf of a waiter. If the request is
//!   dropped before it claims them, they are returned.
//! - **Timers.** If anything is due at any time, a driver has its timer set for that instant or an
//!   earlier one, or has been woken. See [`Drivers`].
#![allow(unsafe_code)]

mod admit;
pub(crate) mod ask;
pub(crate) mod counts;
pub(crate) mod driver;
mod judge_again;
mod serve;
mod taken;
mod total;
mod waits;

use core::fmt;
use core::mem;
use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;

use portcullis_core::composition::Receipts;
use portcullis_core::limiter::{Receipt, Waiting};
use portcullis_core::queue::PassedOn;
use portcullis_core::{Clock, Limiter, Timestamp};

use self::counts::QueueCounts;
use crate::finally::Finally;
use crate::forks::Noted;
use crate::lock::mutex::Mutex;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, fence};
use crate::sync::const_unless_loom;
use crate::waiting::drivers::{Drivers, Member, Told};
use crate::waiting::hook::Hook;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::list_key::ListKey;
use crate::waiting::options::{Options, Order};
use crate::waiting::panics::{Panic, quietly, unless_unwinding};
use crate::waiting::pending_releases::PendingReleases;
use crate::waiting::priority::Place;
use crate::waiting::queue_config::{Key, QueueConfig, QueueTypes};
use crate::waiting::timer_heap::TimerHeap;
use crate::waiting::wait_list::{Event, Line, Request, Shard, Shards, State, WaitLists, Waiter};
use crate::waiting::wake_batch::WakeBatch;

/// A wait queue: limiters, and the requests that wait for their permits.
pub struct WaitQueue<Q: QueueTypes> {
    pub(crate) source: Q::Source,
    pub(crate) clock: Q::Clock,
    pub(crate) hook: Q::Hook,
    pub(crate) options: Options,
    /// The waiter bits, one for each shard, and the bits `CLOSED`, `DRAINED` and `ROUND`.
    gate: AtomicUsize,
    /// A bit for each shard to which permits may have been returned since its wait lists were last
    /// served, and the bits `TIME`, `DUE` and `ROUND`.
    pending: PendingReleases,
    /// Whether any request waits. Written inside the lock only.
    has_waiters: AtomicBool,
    /// The number of permits that waiters request, saturated. Written inside the lock only.
    queued: AtomicU32,
    /// The number of times a driver that sets the timer has called `next`, wrapping. Written inside
    /// the lock only.
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

/// The owner of a wait queue, or the queue of one of its keys. Sealed.
///
/// # Safety
///
/// As long as a pointer to `self` exists, `wait_queue` always returns the same wait queue, also
/// after the pointer has been moved.
#[doc(hidden)]
pub unsafe trait HasWaitQueue {
    #[allow(private_bounds, reason = "sealed")]
    type Config: QueueConfig;

    fn wait_queue(&self) -> &WaitQueue<Self::Config>;
}

/// The data that the lock guards.
struct Lists<S: LimiterSource> {
    waits: WaitLists<S::Key, S::Shards>,
    timers: TimerHeap<Waiter<S::Key>>,
    counts: QueueCounts,
    /// The bits that `gate` must have: one for each shard with waiters, and `DRAINED` while
    /// requests wait for all permits.
    occupied: usize,
    closed: bool,
    /// The drivers that use the timer, and the blocked threads that drive while they wait.
    timed: Drivers,
    threads: Drivers,
    /// The process in which the drivers were told last.
    told_in: Noted,
    /// When the wait lists were last served.
    now: Timestamp,
    /// The address of the last waiter that was granted, and the receipts of that grant. Older
    /// receipts are not kept: a bucket takes back only its last grant.
    noted: (usize, Receipts),
    random: u32,
    cursor: S::Cursor,
    /// How many permits the waiters of a key may request.
    max_permits: u64,
}

/// Bits of `gate` besides those of the shards.
const CLOSED: usize = 1 << (usize::BITS - 1);
const DRAINED: usize = 1 << (usize::BITS - 2);
/// A bit of `gate` and of `pending`: keys wait for the limit of all keys; permits of that limit may
/// have been returned.
const ROUND: usize = 1 << (usize::BITS - 3);
/// A bit of `pending` besides those of the shards: a driver was woken and could not take the lock.
const TIME: usize = 1 << (usize::BITS - 1);
/// Another bit of `pending`: a driver in charge has left, and something it was to handle may be
/// due.
const DUE: usize = 1 << (usize::BITS - 2);

impl<Q: QueueTypes> WaitQueue<Q> {
    /// The number of shards.
    const SHARDS: usize = <<Q::Source as LimiterSource>::Shards as Shards<Key<Q>>>::COUNT;

    const_unless_loom! {
        pub(crate) const fn new(
            source: Q::Source,
            clock: Q::Clock,
            hook: Q::Hook,
            options: Options,
            max_permits: u64,
            lock: Q::Lock,
        ) -> Self {
            // `gate` and `pending` use three more bits each.
            const { assert!(Self::SHARDS > 0 && Self::SHARDS <= usize::BITS as usize - 3) };
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
                lists: Mutex::new(lock, Lists::new(max_permits)),
            }
        }
    }
}

impl<Q: QueueTypes> WaitQueue<Q> {
    /// Ends a critical section: tells a driver about the next timer, and clears the waiter bits of
    /// empty shards. The driver's waker goes into `batch`.
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

    /// Clears the waiter bits of empty shards. The bits change inside the lock only.
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

    /// Returns the queue with another hook. To be called before any request waits.
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
    const fn new(max_permits: u64) -> Self {
        Self {
            waits: WaitLists::EMPTY,
            timers: TimerHeap::new(),
            counts: QueueCounts {
                waiters: 0,
                permits: 0,
                granted: 0,
                full: 0,
                evicted: 0,
                cancelled: 0,
                late: 0,
                #[cfg(feature = "shedding")]
                shed: 0,
                closed: 0,
                oversized: 0,
            },
            occupied: 0,
            closed: false,
            timed: Drivers::EMPTY,
            threads: Drivers::EMPTY,
            told_in: Noted::NEW,
            now: Timestamp::ZERO,
            noted: (0, Receipts::NONE),
            random: 1,
            cursor: S::START,
            max_permits,
        }
    }

    /// Returns the shard of a key.
    #[inline(always)]
    fn shard(&mut self, key: S::Key) -> &mut Shard<S::Key> {
        &mut self.waits.shards.as_mut()[S::shard(key)]
    }

    /// Returns the head of a key's list.
    #[inline(always)]
    fn head(&self, key: S::Key) -> Option<NonNull<Waiter<S::Key>>> {
        self.waits.shards.as_ref()[S::shard(key)].head(key)
    }

    /// Returns what the waiters of a key's list request.
    fn line(&self, key: S::Key) -> Line {
        let shard = &self.waits.shards.as_ref()[S::shard(key)];
        shard.line(shard.head(key))
    }

    /// Returns what the waiters request that come before a new one in a key's list.
    fn before(&self, key: S::Key, place: Place) -> Line {
        let shard = &self.waits.shards.as_ref()[S::shard(key)];
        shard.before(shard.head(key), place)
    }

    /// Returns since when a key's list has had waiters, if it has any.
    fn since(&self, key: S::Key) -> Option<Timestamp> {
        let shard = &self.waits.shards.as_ref()[S::shard(key)];
        shard.head(key).map(|head| shard.since(head))
    }

    /// Returns the head of the list that a waiter is in.
    ///
    /// # Safety
    ///
    /// The waiter is in a list.
    unsafe fn head_of(&mut self, waiter: NonNull<Waiter<S::Key>>) -> NonNull<Waiter<S::Key>> {
        // SAFETY: the waiter is in a list, as the caller guarantees, so it is filled and its locked
        // fields belong to the lock, which `self` proves to be held.
        unsafe {
            if self.waits.get(waiter).is_head() {
                waiter
            } else {
                self.head(Waiter::asks(waiter).0).unwrap_or(waiter)
            }
        }
    }

    /// Sets the waiter's timer for the earlier of its deadline and, for a head, the time to ask its
    /// limiter again, which `delay` may move as far as the deadline.
    ///
    /// # Safety
    ///
    /// The waiter is in a list.
    unsafe fn schedule(&mut self, waiter: NonNull<Waiter<S::Key>>, delay: Duration) {
        // SAFETY: the waiter is in a list, as the caller guarantees, so it is filled and its locked
        // fields belong to the lock, which `self` proves to be held. A waiter's timer is unset
        // before it leaves its list, so the heap holds only valid nodes.
        unsafe {
            let (_, Request { mut deadline, .. }) = Waiter::asks(waiter);
            let locked = self.waits.get(waiter);
            let next_try = locked.next_try();
            if locked.is_hopeless {
                deadline = deadline.min(self.now);
            }
            let asked = next_try.filter(|try_| try_.at <= deadline && try_.at < Timestamp::MAX);
            let due = asked.map_or(deadline, |try_| try_.at.saturating_add(delay).min(deadline));
            let what = match (asked, next_try) {
                (Some(_), _) => Event::Retry,
                (None, Some(_)) => Event::HeadDeadline,
                (None, None) => Event::Deadline,
            };
            self.set_timer(waiter, (due < Timestamp::MAX).then_some((due, what)));
        }
    }

    /// Sets a waiter's timer, or removes it. A waiter without a timer is not in charge: only for
    /// those with one is it known when they leave.
    ///
    /// # Safety
    ///
    /// The waiter is in a list.
    #[inline(always)]
    unsafe fn set_timer(
        &mut self,
        waiter: NonNull<Waiter<S::Key>>,
        timer: Option<(Timestamp, Event)>,
    ) {
        // SAFETY: the waiter is in a list, as the caller guarantees.
        if unsafe { self.timers.set(waiter, timer) } {
            self.timed
                .open_if_in_charge(Member::Waiter(waiter.addr().get()));
        }
    }

    /// Returns when the next timer is due.
    fn due(&self) -> Timestamp {
        self.timers
            .first()
            .map_or(Timestamp::MAX, |(_, (due, _))| due)
    }

    /// Wakes a driver if something is due before the instant for which its timer is set.
    #[cold]
    fn tell(&mut self, batch: &mut WakeBatch) {
        if self.told_in.is_forked() {
            // The drivers in charge set their alarms in the parent.
            self.timed.open();
            self.threads.open();
        }
        let due = self.due();
        let Self {
            waits,
            timers,
            timed,
            threads,
            ..
        } = self;
        for told in [
            timed.tell(due, self.now, || next_driver(waits, timers)),
            threads.tell(due, self.now, || None),
        ] {
            match told {
                Some(Told::Attendant(waker)) => batch.tell_attendant(waker),
                Some(Told::Driver(waker)) => batch.tell_driver(waker),
                None => {}
            }
        }
    }
}

/// Chooses the waiter whose future is to drive the queue, and takes its waker: the waiter whose
/// timer comes first. If its waker was lost in a panic, another waiter that has a timer.
///
/// If the first timer is that of a blocked thread, the threads drive: `None`.
fn next_driver<K: ListKey, H: Shards<K>>(
    waits: &mut WaitLists<K, H>,
    timers: &TimerHeap<Waiter<K>>,
) -> Option<(usize, Waker)> {
    let (first, _) = timers.first()?;
    // SAFETY: a waiter in the heap is in a wait list, and this call holds the lock.
    let locked = unsafe { waits.get(first) };
    if !locked.can_drive() {
        return None;
    }
    if let Some(waker) = locked.rewake(None) {
        return Some((first.addr().get(), waker));
    }
    for shard in 0..H::COUNT {
        for head in waits.shards.as_ref()[shard].heads() {
            for waiter in waits.shards.as_ref()[shard].list(head) {
                // SAFETY: the waiter is in a wait list, and this call holds the lock.
                let (locked, has_timer) = unsafe { (waits.get(waiter), timers.contains(waiter)) };
                if has_timer && locked.can_drive() {
                    if let Some(waker) = locked.rewake(None) {
                        return Some((waiter.addr().get(), waker));
                    }
                }
            }
        }
    }
    None
}

/// A critical section on the wait lists. Its drop ends the section properly, even if a panic
/// unwinds.
struct CriticalSection<'q, Q: QueueTypes> {
    wait_queue: &'q WaitQueue<Q>,
    lists: &'q mut Lists<Q::Source>,
    /// Receives the waker of the driver.
    batch: &'q mut WakeBatch,
}

impl<Q: QueueTypes> Drop for CriticalSection<'_, Q> {
    #[inline]
    fn drop(&mut self) {
        self.wait_queue.leave_lists(self.lists, || &mut *self.batch);
    }
}

/// The outcome of a hand-over.
struct Handed {
    waker: Option<Waker>,
    /// Whether more permits are free and waiters are left that may get them.
    goes_on: bool,
}

/// A grant: its permits and its receipt.
pub(crate) type Grant = (u32, Receipt);

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Returns a guard for code that may panic in a limiter, a clock or a waker. If the code
    /// panics, the drop of the guard grants what is pending and what is free in `shards`. If it
    /// does not, the caller forgets the guard.
    #[inline(always)]
    fn grant_on_unwind(&self, shards: usize) -> Finally<impl FnMut()> {
        Finally(move || self.grant_after_panic(shards))
    }

    /// Serves `shards` again: a limiter that panicked in a release may have released the permits
    /// before it panicked.
    #[cold]
    #[inline(never)]
    fn grant_after_panic(&self, shards: usize) {
        self.pending.add(shards);
        quietly(|| self.wake_and_grant(&mut WakeBatch::new()));
    }

    /// Runs `work` on the wait lists inside the lock. Then runs the wakers, and grants what was
    /// released in the meantime.
    fn with<T>(&self, work: impl FnOnce(&mut Lists<Q::Source>, &mut WakeBatch) -> T) -> T {
        let mut batch = WakeBatch::new();
        let outcome = self.with_batch(&mut batch, work);
        batch.resume();
        outcome
    }

    /// Runs `work` as `with` does, for `work` that calls no limiter, clock or waker and so cannot
    /// panic.
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

    /// Runs the wakers if there are any, and grants what was released while the lock was held.
    #[inline(always)]
    fn wake_and_grant_some(&self, batch: &mut Option<WakeBatch>) {
        if batch.as_ref().is_some_and(WakeBatch::are_left) || self.pending.is_any::<Q::Lock>() {
            self.grant_pending(batch.get_or_insert_with(WakeBatch::new));
        }
    }

    /// Runs `work` as `with` does, and keeps the panic of a waker in `batch`.
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

    /// Runs `work` as `with_batch` does, and does not wait for the lock. Returns `None` if the lock
    /// is held; its holder then wakes a driver.
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
            // The bit is set before the lock is tried again: either the holder of the lock reads
            // the bit, or the lock is free now.
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

    /// Runs `work` as a critical section. The caller holds the lock.
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

    /// Runs the wakers, and grants for as long as a pending bit is set and the lock is free.
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

    /// Grants what is due, what is pending, and the waiters of `key`. Returns `false` if the lock
    /// is held.
    fn try_grant(&self, key: Option<Key<Q>>, batch: &mut WakeBatch) -> bool {
        let work = |lists: &mut _, batch: &mut _| self.grant_due(lists, batch, key);
        let granted = self
            .lists
            .try_lock(|lists| self.critical_section(lists, batch, work));
        granted.is_some()
    }

    /// Returns permits by `give`, and grants them to the waiters of the key. `give` also returns
    /// what the limiter knows about waiters.
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
            self.grant_returned(key, waiting == Waiting::Yes);
        }
        outcome
    }

    /// Changes limiters, and then serves all wait lists, and ends the requests whose deadlines can
    /// no longer be met.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&Q::Source) -> T) -> T {
        let shards = usize::MAX >> (usize::BITS as usize - Self::SHARDS);
        let panicking = self.grant_on_unwind(shards | Self::ROUND_BIT);
        let outcome = change(&self.source);
        mem::forget(panicking);
        self.with(|lists, batch| {
            self.pending.add(lists.occupied & !DRAINED);
            self.grant_due(lists, batch, None);
            self.end_hopeless(lists, batch);
        });
        outcome
    }

    /// Releases permits, to waiters first.
    #[inline]
    pub(crate) fn release(&self, key: Key<Q>, n: u32) {
        if !(Q::Source::PASSES_ON && self.is_waited_for(key) && self.hand_over(key, n)) {
            self.give_back(key, |source| ((), source.release_watched(key, n)));
        }
    }

    /// Hands `n` permits directly to the head of a key's wait list, if it requests exactly `n`. The
    /// limiter's count does not change. Returns `false` if nothing was done.
    fn hand_over(&self, key: Key<Q>, n: u32) -> bool {
        let panicking = self.grant_on_unwind(0);
        // Releases the permits if a clock or a limiter panics before they are handed over.
        let unreleased = Finally(|| {
            self.source.at(key).release(n);
            self.note_release(key);
        });
        let handed = self.lists.try_lock(|lists| {
            let handed = self.hand_to_head(lists, key, n);
            // After a hand-over the waiter bit stays set, even if no waiter is left: usually
            // another request waits soon, and otherwise the next release clears the bit. The bit
            // alone makes no request wait, because `has_waiters` is read as well.
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
        // If nothing was handed over, the caller releases the permits. If a waker panics before
        // that, this guard releases them.
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

    /// Settles the head of a key's list with the `n` released permits, if it requests exactly `n`,
    /// the queue is open and no timers are set.
    #[inline(always)]
    fn hand_to_head(&self, lists: &mut Lists<Q::Source>, key: Key<Q>, n: u32) -> Option<Handed> {
        let head = lists.head(key)?;
        // SAFETY: the head is linked, so it is valid and its request does not change.
        let (_, Request { min, max, .. }) = unsafe { Waiter::asks(head) };
        if min != n || max != n || lists.closed || !lists.timers.is_empty() {
            return None;
        }
        // If the clock panics, nothing has been passed on.
        let now = Q::Hook::TIMES.then(|| self.clock.now());
        let others_are_free = match self.source.pass_on(key, n) {
            PassedOn::No => return None,
            PassedOn::NoneAreFree => false,
            PassedOn::OthersAreFree => true,
        };
        lists.counts.granted = lists.counts.granted.wrapping_add(1);
        let (waker, next) = self.remove_from(lists, head, head);
        let grant = Some((n, Receipt::NONE));
        // SAFETY: the waiter has just been removed from its list and is not settled yet.
        unsafe { lists.waits.settle(head, State::Granted, grant, now) };
        let goes_on = others_are_free && next.is_some();
        Some(Handed { waker, goes_on })
    }

    /// Grants to the waiters of a key, after permits of it were returned. `waited_for` says that
    /// there are waiters; otherwise the waiter bit tells, and without one nothing is done. If the
    /// lock is held, its holder grants: it finds the pending bit, or has left when the lock is
    /// tried once more.
    #[cold]
    fn grant_returned(&self, key: Key<Q>, waited_for: bool) {
        let shard = Self::bit(key);
        if !waited_for {
            // A new request sets the waiter bit and then asks the limiter. This call has returned
            // the permits and now reads the bit. The fences on both sides ensure that at least one
            // observes the other.
            fence(SeqCst);
            if self.gate.load(Relaxed) & (shard | DRAINED) == 0 {
                return;
            }
        }
        let mut batch = WakeBatch::new();
        unless_unwinding(|| {
            let panicking = self.grant_on_unwind(0);
            // The guard leaves the bit set if the lock is held, or if a clock or a limiter panics.
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

    /// Runs the wakers, and grants what is pending.
    #[cold]
    fn grant_pending(&self, batch: &mut WakeBatch) {
        unless_unwinding(|| {
            let panicking = self.grant_on_unwind(0);
            self.wake_and_grant(batch);
            mem::forget(panicking);
        });
        batch.resume();
    }

    /// Returns the bits of a key in `gate` and `pending`: that of its shard, and if there is a
    /// limit for all keys, that of the round. A request of the key sets them before it asks the
    /// limiter, and a release of the key reads them after it has returned permits.
    fn bit(key: Key<Q>) -> usize {
        1 << Q::Source::shard(key) | Self::ROUND_BIT
    }

    /// The bit of the round; 0 if there is no limit for all keys.
    const ROUND_BIT: usize = if Q::Source::HAS_TOTAL { ROUND } else { 0 };

    pub(crate) fn counts(&self) -> QueueCounts {
        self.with_lists(|lists| lists.counts)
    }

    pub(crate) fn set_max_permits(&self, permits: u64) {
        self.with_lists(|lists| lists.max_permits = permits);
    }

    /// Returns the number of permits that the waiters of a key request.
    pub(crate) fn queued_for(&self, key: Key<Q>) -> u64 {
        if !self.is_waited_for(key) {
            return 0;
        }
        self.with_lists(|lists| lists.line(key).permits())
    }

    /// Returns the number of permits that waiters request, saturated.
    pub(crate) fn queued(&self) -> u32 {
        self.queued.load(Relaxed)
    }

    pub(crate) fn close(&self) {
        let (mut batch, mut panic) = (WakeBatch::new(), Panic::NONE);
        panic.keep(|| {
            self.with_batch(&mut batch, |lists, batch| {
                lists.closed = true;
                self.gate.fetch_or(CLOSED, Relaxed);
                self.grant_due(lists, batch, None);
            });
        });
        // All drivers must end, also if a clock or a limiter panicked.
        let mut are_left = true;
        while are_left {
            // Set again inside the lock. If the lock itself panics, the loop ends.
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

    /// Returns whether requests may be ahead of a new one: those of its key, except in newest-first
    /// order; in any order those that wait for the limit of all keys.
    #[inline(always)]
    pub(crate) fn may_be_behind(&self, key: Key<Q>) -> bool {
        if self.options.order == Order::NewestFirst {
            Q::Source::HAS_TOTAL
                && self.gate.load(Relaxed) & ROUND != 0
                && self.has_waiters.load(Relaxed)
        } else {
            // Whether the list is overloaded is known inside the lock only.
            self.is_waited_for(key)
        }
    }

    /// Returns whether no request is ahead of a try, whose list has the head `head`. A request that
    /// may wait comes first in an overloaded list as well, and by its priority: see `comes_next`.
    #[inline(always)]
    fn comes_first(
        &self,
        lists: &mut Lists<Q::Source>,
        head: Option<NonNull<Waiter<Key<Q>>>>,
    ) -> bool {
        let is_first = self.options.order == Order::NewestFirst || head.is_none();
        is_first && (!Q::Source::HAS_TOTAL || lists.waits.is_round_empty())
    }

    /// Returns whether a request waits in a key's shard, or for the limit of all keys.
    /// `has_waiters` is read as well, because a hand-over leaves the waiter bit set.
    #[inline]
    pub(crate) fn is_waited_for(&self, key: Key<Q>) -> bool {
        self.gate.load(Relaxed) & Self::bit(key) != 0 && self.has_waiters.load(Relaxed)
    }

    /// Sets the pending bit of a key's shard, for the next holder of the lock.
    pub(crate) fn note_release(&self, key: Key<Q>) {
        self.pending.add(Self::bit(key));
    }

    /// Returns the number of permits queued before a try; 0 if the lock is held.
    pub(crate) fn seen_ahead(&self, key: Key<Q>) -> u64 {
        if !self.is_waited_for(key) {
            return 0;
        }
        let mut batch = WakeBatch::new();
        let ahead = |lists: &mut Lists<Q::Source>, _: &mut _| {
            if self.options.order == Order::NewestFirst {
                0
            } else {
                lists.line(key).permits()
            }
        };
        let ahead = self
            .lists
            .try_lock(|lists| self.critical_section(lists, &mut batch, ahead));
        self.wake_and_grant(&mut batch);
        batch.resume();
        ahead.unwrap_or(0)
    }

    /// Returns whether no request is ahead of a new one. Returns `false` if the lock is held. Meant
    /// for a key whose shard has waiters, which may be those of other keys.
    pub(crate) fn is_free(&self, key: Key<Q>) -> bool {
        let mut batch = WakeBatch::new();
        let is_free = |lists: &mut Lists<Q::Source>, _: &mut _| {
            let head = lists.head(key);
            self.comes_first(lists, head)
        };
        let is_free = self
            .lists
            .try_lock(|lists| self.critical_section(lists, &mut batch, is_free));
        self.wake_and_grant(&mut batch);
        batch.resume();
        is_free.unwrap_or(false)
    }
}
