//! Granting, under the lock.
#![allow(unsafe_code)]

use core::mem;
use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;

use portcullis_core::{Clock, Denied, Limiter, Receipt, Receipts, Retry, Timestamp};

use super::{DRAINED, Grant, Hall, Inner, TIME};
use crate::agenda::Due;
use crate::list::{Ask, Bin, Node, State, TakenOut, Wish};
use crate::lock::RawLock;
use crate::marks::Marks;
use crate::options::Order;
use crate::source::Source;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};
use crate::sync::atomic::fence;
use crate::wakes::Wakes;

impl<S: Source, C: Clock, R: RawLock, H, const B: usize> Hall<S, C, R, H, B> {
    /// Settles all who can be: what is due, in the order of time, and then the lines of which
    /// something was released: that of `key`, and those in the bins that are marked.
    pub(super) fn drain(
        &self,
        inner: &mut Inner<S::Key, B>,
        wakes: &mut Wakes,
        key: Option<S::Key>,
    ) {
        // Before the limiters are asked, so that what comes after is marked anew.
        let mut marks = self.marks.take();
        if marks.bits & TIME != 0 {
            inner.timed.open();
        }
        if inner.occupied == 0 {
            marks.bits = 0;
            return;
        }
        let now = self.clock.now();
        inner.now = now;
        if inner.closed {
            for bin in 0..B {
                while let Some(head) = inner.bins[bin].heads().next() {
                    if wakes.is_full() {
                        marks.bits |= 1;
                        return;
                    }
                    self.settle(inner, wakes, head, State::Closed, None, now);
                }
            }
        }
        // The deadlines of this very instant after what was released.
        if !self.keep_agenda(inner, wakes, now, |due| due < now) {
            marks.bits |= key.map_or(1, Self::bit);
            return;
        }
        if let Some(key) = key
            && let Some(head) = inner.bins[S::bin(key, B)].head(key)
        {
            self.serve(inner, wakes, head, now, now);
        }
        while marks.bits != 0 {
            let heads = inner
                .bins
                .get(marks.bits.trailing_zeros() as usize)
                .map(Bin::heads);
            for head in heads.into_iter().flatten() {
                if wakes.is_full() {
                    return;
                }
                self.serve(inner, wakes, head, now, now);
            }
            marks.bits &= marks.bits - 1;
        }
        if !self.keep_agenda(inner, wakes, now, |due| due <= now) {
            marks.bits |= 1;
            return;
        }
        if !inner.drainers.is_empty() && self.is_drained() {
            while let Some(head) = inner.drainers.heads().next() {
                if wakes.is_full() {
                    marks.bits |= 1;
                    return;
                }
                Self::settle_drainer(inner, wakes, head, now);
            }
        }
    }

    /// Attends to what `is_due`, in the order of time; `false` if there is no room for more wakers
    /// before that is done.
    pub(super) fn keep_agenda(
        &self,
        inner: &mut Inner<S::Key, B>,
        wakes: &mut Wakes,
        now: Timestamp,
        is_due: impl Fn(Timestamp) -> bool,
    ) -> bool {
        while let Some((node, due)) = inner.agenda.first()
            && is_due(due)
        {
            if wakes.is_full() {
                return false;
            }
            // SAFETY: on the agenda, and so in a line, and we have the lines.
            let (is_head, ask) = unsafe { ((*node.as_ptr()).is_head, (*node.as_ptr()).ask) };
            let as_of = due.max(self.earliest_as_of(now));
            if is_head && ask.at == due {
                self.serve(inner, wakes, node, if ask.exact { as_of } else { now }, now);
            } else {
                inner.counts.late = inner.counts.late.wrapping_add(1);
                if let Some(next) = self.settle(inner, wakes, node, State::Late, None, now) {
                    self.serve(inner, wakes, next, as_of, now);
                }
            }
        }
        true
    }

    /// How long ago something may have been due, to be granted as of then. Not where newcomers, or
    /// others, take past those who wait: they may have done so since, by more than a limiter stands
    /// if the clock has gone back. Where they do not, what is due comes from the limiter's state as
    /// it still is.
    fn earliest_as_of(&self, now: Timestamp) -> Timestamp {
        let slack = match self.options.order {
            _ if S::SHARED => 0,
            Order::OldestFirst => u64::try_from(self.options.slack.as_nanos()).unwrap_or(u64::MAX),
            Order::NewestFirst => 0,
        };
        Timestamp::from_nanos(now.as_nanos().saturating_sub(slack))
    }

    /// Grants a line from its head on, as of `at`, and as of what its limiter says from there to
    /// `now`: what was due is granted as if it had been granted in time, so that a timer that is
    /// late costs no permits. A head that has to wait is on the agenda afterwards.
    pub(super) fn serve(
        &self,
        inner: &mut Inner<S::Key, B>,
        wakes: &mut Wakes,
        head: NonNull<Node<S::Key>>,
        mut at: Timestamp,
        now: Timestamp,
    ) {
        // SAFETY: linked, and we have the lines.
        let key = unsafe { (*head.as_ptr()).key };
        let limiter = self.source.at(key);
        let mut unserved = Unserved {
            marks: &self.marks,
            bit: Self::bit(key),
            inner,
            head,
            now,
        };
        loop {
            let (inner, head) = (&mut *unserved.inner, unserved.head);
            // SAFETY: the same.
            let Wish { deadline, .. } = unsafe { (*head.as_ptr()).wish };
            let taken = if wakes.is_full() || deadline < at {
                None
            } else {
                Some(self.take_for(inner, head, at))
            };
            let settled = match taken {
                Some(Ok(grant)) => {
                    inner.counts.granted = inner.counts.granted.wrapping_add(1);
                    self.settle(inner, wakes, head, State::Granted, Some(grant), now)
                }
                Some(Err(Denied::ExceedsCapacity { .. })) => {
                    self.settle(inner, wakes, head, State::Exceeds, None, now)
                }
                denied => {
                    let ask = match denied {
                        Some(Err(denied)) => self.ask(inner, &limiter, denied, at, now),
                        // The rest when these have been woken, and the deadline when the agenda
                        // comes to it.
                        _ => Ask { at, exact: true },
                    };
                    if ask.exact && ask.at <= now && ask.at > at {
                        at = ask.at.max(self.earliest_as_of(now));
                        continue;
                    }
                    // SAFETY: the same.
                    unsafe {
                        (*head.as_ptr()).ask = ask;
                        inner.schedule(head);
                    }
                    break;
                }
            };
            match settled {
                Some(next) => unserved.head = next,
                None => break,
            }
        }
        mem::forget(unserved);
    }

    /// Takes for a head.
    fn take_for(
        &self,
        inner: &mut Inner<S::Key, B>,
        head: NonNull<Node<S::Key>>,
        at: Timestamp,
    ) -> Result<Grant, Denied> {
        // SAFETY: linked, and we have the lines.
        let Node {
            key,
            wish: Wish { min, max, .. },
            ..
        } = unsafe { &*head.as_ptr() };
        let limiter = self.source.at(*key);
        if !S::NOTES {
            return take(
                *min,
                *max,
                || limiter.available_at(at),
                |n| limiter.take_at(at, n),
            );
        }
        let mut notes = Receipts::NONE;
        let noted = |n| self.source.take_noted(*key, at, n, &mut notes);
        let grant = take(*min, *max, || limiter.available_at(at), noted)?;
        if grant.0 > 0 {
            inner.noted = (head.addr().get(), notes);
        }
        Ok(grant)
    }

    /// When a limiter that has denied as of `at` is to be asked again: later than that.
    pub(super) fn ask(
        &self,
        inner: &mut Inner<S::Key, B>,
        limiter: &S::At<'_>,
        denied: Denied,
        at: Timestamp,
        now: Timestamp,
    ) -> Ask {
        match limiter.retry(denied) {
            Retry::At(later) if later > at => Ask {
                at: later,
                exact: true,
            },
            // It has changed meanwhile, or is of two minds.
            Retry::At(_) if at < now => Ask {
                at: now,
                exact: true,
            },
            Retry::At(_) => Ask {
                at: now.saturating_add(AGAIN),
                exact: false,
            },
            Retry::After(wait) => {
                let wait = if wait.is_zero() { AGAIN } else { wait };
                let wait = wait.saturating_add(inner.random(self.options.jitter, now));
                Ask {
                    at: now.saturating_add(wait),
                    exact: false,
                }
            }
            _ => Ask::ON_RELEASE,
        }
    }

    /// Takes a node out of its line with an outcome. Returns who is the head of the line in its
    /// place, if it was that.
    pub(super) fn settle(
        &self,
        inner: &mut Inner<S::Key, B>,
        wakes: &mut Wakes,
        node: NonNull<Node<S::Key>>,
        outcome: State,
        grant: Option<Grant>,
        now: Timestamp,
    ) -> Option<NonNull<Node<S::Key>>> {
        let (waker, next) = self.take_out(inner, node);
        wakes.push(waker);
        // SAFETY: it was linked, and is ours until it is settled.
        unsafe {
            (*node.as_ptr()).grant = grant;
            (*node.as_ptr()).until = now;
            Node::settle(node, outcome);
        }
        next
    }

    /// Takes a node out of its line; as `Bin::take_out`.
    pub(super) fn take_out(
        &self,
        inner: &mut Inner<S::Key, B>,
        node: NonNull<Node<S::Key>>,
    ) -> TakenOut<S::Key> {
        // SAFETY: linked, and we have the lines.
        unsafe {
            let Node { key, wish, .. } = &*node.as_ptr();
            let (bin, wish) = (S::bin(*key, B), *wish);
            inner.agenda.set(node, Timestamp::MAX, Due::Ask);
            inner.counts.waiters -= 1;
            inner.counts.permits -= u64::from(wish.min);
            self.mirror(inner);
            let head = inner.head_of(bin, node);
            let taken = inner.bins[bin].take_out(node, head);
            if inner.bins[bin].is_empty() {
                inner.occupied &= !(1 << bin);
            }
            taken
        }
    }

    pub(super) fn mirror(&self, inner: &Inner<S::Key, B>) {
        self.waiters.store(inner.counts.waiters, Relaxed);
        self.queued.store(
            u32::try_from(inner.counts.permits).unwrap_or(u32::MAX),
            Relaxed,
        );
    }

    pub(super) fn settle_drainer(
        inner: &mut Inner<S::Key, B>,
        wakes: &mut Wakes,
        node: NonNull<Node<S::Key>>,
        now: Timestamp,
    ) {
        wakes.push(Self::take_drainer_out(inner, node));
        // SAFETY: it was linked, and is ours until it is settled.
        unsafe {
            (*node.as_ptr()).until = now;
            Node::settle(node, State::Granted);
        }
    }

    pub(super) fn take_drainer_out(
        inner: &mut Inner<S::Key, B>,
        node: NonNull<Node<S::Key>>,
    ) -> Option<Waker> {
        // SAFETY: linked, and we have the lines.
        let waker = unsafe {
            let head = inner.drainers.heads().next().unwrap_or(node);
            inner.drainers.take_out(node, head).0
        };
        if inner.drainers.is_empty() {
            inner.occupied &= !DRAINED;
        }
        waker
    }

    /// Whether nothing is held; all that was done before it came back is seen then.
    pub(super) fn is_drained(&self) -> bool {
        let drained = self.source.held() == 0;
        fence(Acquire);
        drained
    }
}

/// A line whose limiter may panic before the head is on the agenda. If it does, the limiter is
/// asked again by the one who leaves the lines, and when some time has passed.
struct Unserved<'s, K: Copy + PartialEq, const B: usize> {
    marks: &'s Marks,
    bit: usize,
    inner: &'s mut Inner<K, B>,
    head: NonNull<Node<K>>,
    now: Timestamp,
}

impl<K: Copy + PartialEq, const B: usize> Drop for Unserved<'_, K, B> {
    fn drop(&mut self) {
        self.marks.leave(self.bit);
        // SAFETY: linked, and we have the lines.
        unsafe {
            (*self.head.as_ptr()).ask = Ask {
                at: self.now.saturating_add(AFTER_PANIC),
                exact: false,
            };
            self.inner.schedule(self.head);
        }
    }
}

impl<K, const B: usize> Inner<K, B> {
    /// A time from 0 to `most`. What it is drawn from is stirred by the time and the place
    /// (xorshift; Marsaglia, 2003): enough for those who are not to come all at once.
    pub(super) fn random(&mut self, most: Duration, now: Timestamp) -> Duration {
        let place = core::ptr::from_ref(self).addr();
        let mut random = self.random.wrapping_add(now.as_nanos() as u32) ^ place as u32 | 1;
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        self.random = random;
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(((u128::from(most) * u128::from(random)) >> 32) as u64)
    }
}

/// When to ask a limiter again that does not know itself.
const AGAIN: Duration = Duration::from_millis(1);

/// When to ask a limiter again that has panicked.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// Takes as many as there are, `min` to `max`.
#[inline(always)]
pub(super) fn take(
    min: u32,
    max: u32,
    available: impl FnOnce() -> u64,
    mut take: impl FnMut(u32) -> Result<Receipt, Denied>,
) -> Result<Grant, Denied> {
    if max > min {
        let most = u32::try_from(available())
            .unwrap_or(u32::MAX)
            .clamp(min, max);
        if most > min
            && let Ok(receipt) = take(most)
        {
            return Ok((most, receipt));
        }
    }
    take(min).map(|receipt| (min, receipt))
}
