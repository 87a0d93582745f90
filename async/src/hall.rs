//! Where those wait who wait for permits: what [`Queue`](crate::Queue) and
//! [`KeyedQueue`](crate::KeyedQueue) are made of.
//!
//! State: a gate word (in which bins somebody waits; closed), marks (of which bins something was
//! released), and behind a lock the lines of waits, and the agenda.
//!
//! ```text
//!   acquire ----- gate clear? ----> limiter.take ----> lease
//!      |                                 | denied
//!      v                                 v
//!   lock: raise the gate, tell the limiter,                      drop, release:  limiter.release
//!         ask it once more, enter the line                            |  gate raised?
//!      |                                                              v
//!   lock: drain: what is due, then the lines that are marked   <---  mark, try the lock
//!   unlock: mark seen? once more                           (held: its holder sees the mark)
//! ```
//!
//! Invariants:
//!
//! - The gate is raised while anybody is in a line. Whoever enters raises it and then asks the
//!   limiter; whoever releases gives back and then looks at it: one of the two sees the other. A
//!   limiter that is told of it in its own word ([`watch`](portcullis_core::QueueLimiter::watch))
//!   spares the release that look.
//! - No permit is free for a head while nobody is at the lines: whoever frees some marks, and tries
//!   the lock; who held it then looks at the marks after it has let go. So nobody waits for the
//!   lock in order to release.
//! - The permits of a wait are taken for it by whoever drains, and given back if it goes unclaimed.
//! - If anything is due ever, one of those who can see to the time is armed for it, or has been
//!   told: see [`Crew`].
//! - Whoever leaves the lines looks at the marks, also when a limiter or a clock has panicked
//!   there.
#![allow(unsafe_code)]

mod admit;
mod counts;
mod driver;
mod serve;
mod waits;

use core::cell::UnsafeCell;
use core::fmt;
use core::mem;
use core::ptr::NonNull;

use portcullis_core::{Clock, Denied, Limiter, Receipt, Receipts, Timestamp};

pub(crate) use self::admit::earliest;
pub use self::counts::QueueCounts;
pub use self::driver::Next;
pub(crate) use self::driver::{Caller, Place};
use self::waits::Taken;
pub(crate) use self::waits::Waits;
use crate::agenda::{Agenda, Due};
use crate::crew::{Crew, Told};
use crate::hook::Hook;
use crate::list::{Bin, Node, State, Wish};
use crate::lock::RawLock;
use crate::marks::Marks;
use crate::options::Options;
use crate::panics::{Panic, quietly, unless_unwinding};
use crate::source::Source;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicU32, AtomicUsize, fence};
use crate::sync::const_unless_loom;
use crate::wakes::Wakes;

/// Limiters, and those who wait for their permits, in `B` bins.
pub struct Hall<S: Source, C, R, H, const B: usize> {
    pub(crate) source: S,
    pub(crate) clock: C,
    pub(crate) hook: H,
    pub(crate) options: Options,
    /// A bit for each bin in which somebody waits, and those below.
    gate: AtomicUsize,
    /// A bit for each bin of which something may have become free since its lines were last gone
    /// through.
    marks: Marks,
    /// Those who wait, and the permits that they wait for, as far as they fit. Both change under
    /// the lock.
    waiters: AtomicU32,
    queued: AtomicU32,
    /// How often those have asked who arm the timer. Changes under the lock.
    turns: AtomicU32,
    lock: R,
    inner: UnsafeCell<Inner<S::Key, B>>,
}

// SAFETY: `inner` is reached under the lock alone.
unsafe impl<S: Source + Sync, C: Sync, R: Sync, H: Sync, const B: usize> Sync
    for Hall<S, C, R, H, B>
where
    S::Key: Send,
{
}

impl<S: Source, C, R, H, const B: usize> fmt::Debug for Hall<S, C, R, H, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hall")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What the lock guards.
struct Inner<K, const B: usize> {
    bins: [Bin<K>; B],
    /// Those who wait for everything to come back.
    drainers: Bin<K>,
    agenda: Agenda<K>,
    counts: QueueCounts,
    /// The bits that the gate is to have: a bit for each bin in which somebody waits, and
    /// `DRAINED`.
    occupied: usize,
    closed: bool,
    /// Those who see to the agenda's time by the timer, and threads that do it for as long as they
    /// wait.
    timed: Crew,
    threads: Crew,
    /// The time when the lines were gone through last.
    now: Timestamp,
    /// The place of the node that was granted last after a wait, and what was noted of that grant.
    /// (What came before it, a bucket does not take back.)
    noted: (usize, Receipts),
    random: u32,
}

/// The bins are told apart by the lower bits of the gate.
const CLOSED: usize = 1 << (usize::BITS - 1);
const DRAINED: usize = 1 << (usize::BITS - 2);
/// A mark beside those of the bins: one who was told that the time has changed could not come to
/// the lines.
const TIME: usize = 1 << (usize::BITS - 1);
/// Another one: something may be due for one who has gone.
const DUE: usize = 1 << (usize::BITS - 2);
/// Most bins that there can be.
pub(crate) const MAX_BINS: usize = if cfg!(loom) {
    2
} else {
    usize::BITS as usize / 2
};

impl<S: Source, C, R, H, const B: usize> Hall<S, C, R, H, B> {
    const_unless_loom! {
        pub(crate) const fn new(source: S, clock: C, hook: H, options: Options, lock: R) -> Self {
            const { assert!(B > 0 && B <= MAX_BINS) };
            Self {
                source,
                clock,
                hook,
                options,
                gate: AtomicUsize::new(0),
                marks: Marks::new(),
                waiters: AtomicU32::new(0),
                queued: AtomicU32::new(0),
                turns: AtomicU32::new(0),
                lock,
                inner: UnsafeCell::new(Inner::NEW),
            }
        }
    }
}

impl<S: Source, C, R, H, const B: usize> Hall<S, C, R, H, B> {
    /// The same with another hook. Nobody waits yet.
    pub(crate) fn with_hook<G>(self, hook: G) -> Hall<S, C, R, G, B> {
        let Self {
            source,
            clock,
            options,
            gate,
            marks,
            waiters,
            queued,
            turns,
            lock,
            inner,
            ..
        } = self;
        Hall {
            source,
            clock,
            hook,
            options,
            gate,
            marks,
            waiters,
            queued,
            turns,
            lock,
            inner,
        }
    }
}

impl<K: Copy + PartialEq, const B: usize> Inner<K, B> {
    const NEW: Self = Self {
        bins: [const { Bin::new() }; B],
        drainers: Bin::new(),
        agenda: Agenda::new(),
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
        timed: Crew::EMPTY,
        threads: Crew::EMPTY,
        now: Timestamp::ZERO,
        noted: (0, Receipts::NONE),
        random: 1,
    };

    /// The head of the line that a node is in.
    ///
    /// # Safety
    ///
    /// The node is in a line.
    unsafe fn head_of(&self, bin: usize, node: NonNull<Node<K>>) -> NonNull<Node<K>> {
        // SAFETY: as the caller says.
        unsafe {
            if (*node.as_ptr()).is_head {
                node
            } else {
                self.bins[bin].head((*node.as_ptr()).key).unwrap_or(node)
            }
        }
    }

    /// Puts the node on the agenda for what comes first: its deadline, or, of a head, that its
    /// limiter is asked.
    ///
    /// # Safety
    ///
    /// The node is in a line.
    unsafe fn schedule(&mut self, node: NonNull<Node<K>>) {
        // SAFETY: as the caller says.
        unsafe {
            let Node {
                is_head, ask, wish, ..
            } = &*node.as_ptr();
            let asks = *is_head && ask.at <= wish.deadline && ask.at < Timestamp::MAX;
            let due = if asks { ask.at } else { wish.deadline };
            let what = match (asks, *is_head) {
                (true, _) => Due::Ask,
                (false, true) => Due::HeadsDeadline,
                (false, false) => Due::Deadline,
            };
            self.agenda.set(node, due, what);
        }
    }

    /// When something is due next.
    fn due(&self) -> Timestamp {
        self.agenda.first().map_or(Timestamp::MAX, |(_, due)| due)
    }

    /// Has the time seen to, if something is due before the instant for which one is armed.
    fn tell(&mut self, wakes: &mut Wakes) {
        let due = self.due();
        if due == Timestamp::MAX {
            return;
        }
        for told in [
            self.timed.tell(due, self.now),
            self.threads.tell(due, self.now),
        ] {
            match told {
                Some(Told::Attendant(waker)) => wakes.tell_attendant(waker),
                Some(Told::Driver(waker)) => wakes.tell_driver(waker),
                None => {}
            }
        }
    }
}

/// Has the time seen to, also when a limiter or a clock has panicked.
struct Tell<'h, S: Source, C, R, H, const B: usize> {
    hall: &'h Hall<S, C, R, H, B>,
    wakes: &'h mut Wakes,
}

impl<S: Source, C, R, H, const B: usize> Drop for Tell<'_, S, C, R, H, B> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: under the lock still, and nobody is at the lines any more.
        let inner = unsafe { &mut *self.hall.inner.get() };
        inner.tell(self.wakes);
    }
}

/// Leaves the lines as the gate has it, also when a limiter or a clock has panicked.
struct Leave<'h, S: Source, C, R, H, const B: usize>(&'h Hall<S, C, R, H, B>);

impl<S: Source, C, R, H, const B: usize> Drop for Leave<'_, S, C, R, H, B> {
    fn drop(&mut self) {
        // SAFETY: under the lock still, and nobody is at the lines any more.
        let occupied = unsafe { (*self.0.inner.get()).occupied };
        // It changes under the lock alone.
        let empty = self.0.gate.load(Relaxed) & !CLOSED & !occupied;
        if empty != 0 {
            self.0.gate.fetch_and(!empty, Relaxed);
            if occupied == 0 {
                self.0.source.watch(false);
            }
        }
    }
}

/// Goes on with granting where a limiter, a clock or a waker has panicked: they are asked once
/// more.
struct GrantAll<'h, S: Source, C: Clock, R: RawLock, H, const B: usize>(&'h Hall<S, C, R, H, B>);

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Drop for GrantAll<'_, S, C, R, H, B> {
    fn drop(&mut self) {
        quietly(|| self.0.wake_and_grant(&mut Wakes::new()));
    }
}

/// Grants what has become free in some bins, where a limiter has panicked in giving back. It may
/// have given back by then.
struct GrantBins<'h, S: Source, C: Clock, R: RawLock, H, const B: usize>(
    &'h Hall<S, C, R, H, B>,
    usize,
);

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Drop for GrantBins<'_, S, C, R, H, B> {
    fn drop(&mut self) {
        let Self(hall, bins) = *self;
        hall.marks.leave(bins);
        drop(GrantAll(hall));
    }
}

/// Permits that are to be handed over, and are released if a clock or a limiter panics meanwhile.
struct Unreleased<'h, S: Source, C: Clock, R: RawLock, H, const B: usize> {
    hall: &'h Hall<S, C, R, H, B>,
    key: S::Key,
    n: u32,
}

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Drop for Unreleased<'_, S, C, R, H, B> {
    fn drop(&mut self) {
        self.hall.source.at(self.key).release(self.n);
        self.hall.mark(self.key);
    }
}

/// What was granted.
pub(crate) type Grant = (u32, Receipt);

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Hall<S, C, R, H, B> {
    /// Works on the lines; afterwards wakes, and grants what was released meanwhile.
    fn with<T>(&self, work: impl FnOnce(&mut Inner<S::Key, B>, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::new();
        let outcome = self.with_wakes(&mut wakes, work);
        wakes.resume();
        outcome
    }

    /// The same; a waker's panic is kept in `wakes`.
    fn with_wakes<T>(
        &self,
        wakes: &mut Wakes,
        work: impl FnOnce(&mut Inner<S::Key, B>, &mut Wakes) -> T,
    ) -> T {
        let panicking = GrantAll(self);
        let outcome = self.lock.lock(|| self.at_lines(wakes, work));
        self.wake_and_grant(wakes);
        mem::forget(panicking);
        outcome
    }

    /// The same without waiting for the lines. `None` if they are held: then whoever has them has
    /// the time seen to.
    fn with_wakes_or_mark<T>(
        &self,
        wakes: &mut Wakes,
        work: impl FnOnce(&mut Inner<S::Key, B>, &mut Wakes) -> T,
    ) -> Option<T> {
        let panicking = GrantAll(self);
        let mut work = Some(work);
        let mut attempt = || {
            self.lock
                .try_lock(|| work.take().map(|work| self.at_lines(wakes, work)))
                .flatten()
        };
        let outcome = attempt().or_else(|| {
            self.marks.leave(TIME);
            // Either the one who has the lines sees the mark, or they can be had by now.
            if self.marks.are_left::<R>() {
                attempt()
            } else {
                None
            }
        });
        if outcome.is_some() {
            self.wake_and_grant(wakes);
        }
        mem::forget(panicking);
        outcome
    }

    /// Under the lock.
    fn at_lines<T>(
        &self,
        wakes: &mut Wakes,
        work: impl FnOnce(&mut Inner<S::Key, B>, &mut Wakes) -> T,
    ) -> T {
        let _leave = Leave(self);
        let tell = Tell { hall: self, wakes };
        // SAFETY: under the lock.
        work(unsafe { &mut *self.inner.get() }, tell.wakes)
    }

    /// Wakes, and grants as long as something is marked as free, and nobody else does.
    fn wake_and_grant(&self, wakes: &mut Wakes) {
        loop {
            wakes.wake();
            if wakes.has_lost_one() {
                self.marks.leave(TIME);
            }
            if !self.marks.are_left::<R>() || !self.try_grant(None, wakes) {
                return;
            }
        }
    }

    /// Grants, unless somebody is at the lines: what is due, what is marked, and what waits for
    /// `key`.
    fn try_grant(&self, key: Option<S::Key>, wakes: &mut Wakes) -> bool {
        let granted = self
            .lock
            .try_lock(|| self.at_lines(wakes, |inner, wakes| self.drain(inner, wakes, key)));
        granted.is_some()
    }

    /// Gives back by `give`, and has the waits of a key granted what has become free. `give`
    /// returns what the limiter says of whether any wait.
    #[inline]
    pub(crate) fn give_back<T>(
        &self,
        key: S::Key,
        give: impl FnOnce(&S) -> (T, Option<bool>),
    ) -> T {
        let panicking = GrantBins(self, Self::bit(key));
        let (outcome, watched) = give(&self.source);
        mem::forget(panicking);
        if watched != Some(false) {
            self.grant(key, watched.is_some());
        }
        outcome
    }

    /// Takes of a key's limiter outside of the lines. One of several parts may have taken of some
    /// and then have given back, in a denial or a panic: a wait that asked meanwhile, and found too
    /// few, is granted.
    #[inline(always)]
    pub(crate) fn take<T>(
        &self,
        key: S::Key,
        take: impl FnOnce() -> Result<T, Denied>,
    ) -> Result<T, Denied> {
        let panicking = GrantBins(self, Self::bit(key));
        let taken = take();
        mem::forget(panicking);
        if taken.is_err() && self.source.at(key).composed().is_some() {
            self.grant(key, false);
        }
        taken
    }

    /// Changes limiters, and then has all lines gone through.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&S) -> T) -> T {
        let panicking = GrantBins(self, usize::MAX >> (usize::BITS as usize - B));
        let outcome = change(&self.source);
        mem::forget(panicking);
        self.with(|inner, wakes| {
            self.marks.leave(inner.occupied & !DRAINED);
            self.drain(inner, wakes, None);
        });
        outcome
    }

    /// Releases permits, to those who wait first of all.
    #[inline]
    pub(crate) fn release(&self, key: S::Key, n: u32)
    where
        H: Hook,
    {
        if !(self.is_waited_for(key) && self.hand_over(key, n)) {
            self.give_back(key, |source| ((), source.release_watched(key, n)));
        }
    }

    /// Hands permits over to the head of a key's line, where they are just what it wants: neither
    /// of the two then touches the limiter. `false` if nothing was done.
    fn hand_over(&self, key: S::Key, n: u32) -> bool
    where
        H: Hook,
    {
        let panicking = GrantAll(self);
        let unreleased = Unreleased { hall: self, key, n };
        let handed = self.lock.try_lock(|| {
            let leave = Leave(self);
            // SAFETY: under the lock.
            let inner = unsafe { &mut *self.inner.get() };
            let head = inner.bins[S::bin(key, B)].head(key)?;
            // SAFETY: linked, and we have the lines.
            let Wish { min, max, .. } = unsafe { (*head.as_ptr()).wish };
            if min != n || max != n || inner.closed || inner.agenda.first().is_some() {
                return None;
            }
            let others_are_free = self.source.pass_on(key, n)?;
            let now = if H::TIMES {
                self.clock.now()
            } else {
                Timestamp::ZERO
            };
            inner.counts.granted = inner.counts.granted.wrapping_add(1);
            let (waker, next) = self.take_out(inner, head);
            // SAFETY: it was linked, and is ours until it is settled.
            unsafe {
                (*head.as_ptr()).grant = Some((n, Receipt::NONE));
                (*head.as_ptr()).until = now;
                Node::settle(head, State::Granted);
            }
            if !others_are_free {
                // The gate stays raised, also if nobody waits any more: as a rule somebody will
                // again, before the next release, which lowers it.
                mem::forget(leave);
            }
            Some((waker, others_are_free && next.is_some()))
        });
        let Some(handed) = handed else {
            mem::forget((unreleased, panicking));
            return false;
        };
        let is_handed = handed.is_some();
        // What is handed to nobody is released by the caller: or here, if a waker panics before,
        // and then granted.
        let unreleased = if is_handed {
            mem::forget(unreleased);
            None
        } else {
            Some(unreleased)
        };
        if let Some((waker, goes_on)) = handed {
            if goes_on {
                self.marks.leave(Self::bit(key));
            }
            if let Some(waker) = waker {
                unless_unwinding(|| waker.wake());
            }
        }
        if self.marks.are_left::<R>() {
            self.grant_marked();
        }
        mem::forget(unreleased);
        mem::forget(panicking);
        is_handed
    }

    #[cold]
    fn grant(&self, key: S::Key, waited_for: bool) {
        let bin = Self::bit(key);
        if !waited_for {
            // Of one who enters, and then asks the limiter, and one who has given back, and then
            // looks here, at least one sees the other.
            fence(SeqCst);
            if self.gate.load(Relaxed) & (bin | DRAINED) == 0 {
                return;
            }
        }
        let mut wakes = Wakes::new();
        unless_unwinding(|| {
            let panicking = GrantAll(self);
            // Left if the lock is held, or a clock or a limiter panics.
            let mut mark = self.marks.unless_forgotten(bin);
            if self.try_grant(Some(key), &mut wakes) {
                mark.bits = 0;
            }
            drop(mark);
            self.wake_and_grant(&mut wakes);
            mem::forget(panicking);
        });
        wakes.resume();
    }

    /// Grants what is marked as free.
    #[cold]
    fn grant_marked(&self) {
        let mut wakes = Wakes::new();
        unless_unwinding(|| self.wake_and_grant(&mut wakes));
        wakes.resume();
    }

    fn bit(key: S::Key) -> usize {
        1 << S::bin(key, B)
    }

    pub(crate) fn counts(&self) -> QueueCounts {
        self.with(|inner, _| inner.counts)
    }

    /// The permits that are waited for, as far as they fit.
    pub(crate) fn queued(&self) -> u32 {
        self.queued.load(Relaxed)
    }

    pub(crate) fn close(&self) {
        let (mut wakes, mut panic) = (Wakes::new(), Panic::NONE);
        panic.keep(|| {
            self.with_wakes(&mut wakes, |inner, wakes| {
                inner.closed = true;
                self.gate.fetch_or(CLOSED, Relaxed);
                self.drain(inner, wakes, None);
            });
        });
        // All drivers come to their end, also if a clock or a limiter has panicked.
        let mut are_left = true;
        while are_left {
            // If the lock itself panics, there is no way on.
            are_left = false;
            let tell_drivers = |inner: &mut Inner<S::Key, B>, wakes: &mut Wakes| {
                loop {
                    if wakes.is_full() {
                        are_left = true;
                        break;
                    }
                    let Some(waker) = inner.timed.next_waker() else {
                        break;
                    };
                    wakes.push(Some(waker));
                }
            };
            panic.keep(|| self.with_wakes(&mut wakes, tell_drivers));
        }
        wakes.resume();
        panic.resume();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.gate.load(Relaxed) & CLOSED != 0
    }

    /// Whether somebody waits in a key's bin. (A gate that was left raised keeps nobody out: nobody
    /// waits at all then.)
    #[inline]
    pub(crate) fn is_waited_for(&self, key: S::Key) -> bool {
        self.gate.load(Relaxed) & Self::bit(key) != 0 && self.waiters.load(Relaxed) > 0
    }

    /// Leaves a mark that something was released, for whoever comes to the lines next.
    pub(crate) fn mark(&self, key: S::Key) {
        self.marks.leave(Self::bit(key));
    }

    /// The permits that stand before a newcomer, if nobody is at the lines; else none.
    pub(crate) fn seen_ahead(&self, key: S::Key) -> u64 {
        if !self.is_waited_for(key) {
            return 0;
        }
        let mut wakes = Wakes::new();
        let ahead = self
            .lock
            .try_lock(|| self.at_lines(&mut wakes, |inner, _| self.ahead(inner, key)));
        self.wake_and_grant(&mut wakes);
        wakes.resume();
        ahead.unwrap_or(0)
    }

    /// Takes for a key if nobody waits for it, and nobody has the lines at this moment: for those
    /// whose bin is not empty, and may be so because of another key.
    pub(crate) fn take_past_others(
        &self,
        key: S::Key,
        now: Timestamp,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        let mut wakes = Wakes::new();
        let panicking = GrantBins(self, Self::bit(key));
        let taken = self.lock.try_lock(|| {
            self.at_lines(&mut wakes, |inner, _| {
                let free = inner.bins[S::bin(key, B)].head(key).is_none();
                free.then(|| self.source.at(key).take_at(now, n))
            })
        });
        mem::forget(panicking);
        // To be given back if a waker panics before it is anybody's.
        let taken = taken.flatten().map(|taken| {
            taken.map(|receipt| Taken {
                hall: self,
                key,
                grant: Some((n, receipt)),
                at: now,
                node: 0,
            })
        });
        self.wake_and_grant(&mut wakes);
        wakes.resume();
        taken.map(|taken| taken.map(|taken| taken.keep().1))
    }
}
