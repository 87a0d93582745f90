//! What the wait queue asks of a limiter. No other file of the engine takes permits from one.
//!
//! An *attempt* is a take whose denial is not final: the request waits, and the limiter is asked
//! again. A limiter that counts requests learns of the outcome by `not_granted` and `cancelled`.
//!
//! Outside the lock, permits that an attempt took and gave back, or left behind in a panic, may be
//! those that a waiter was denied. So the key's waiters are served again after such an attempt.

use core::cell::Cell;
use core::mem;

use portcullis_core::composition::Receipts;
use portcullis_core::limiter::{Answer, Ask, Back, Detail, How, NotGranted, Receipt, Tell};
use portcullis_core::metadata::PENALIZED_UNTIL;
use portcullis_core::{Clock, Denied, Limiter, Retry, Timestamp};

use super::taken::Taken;
use super::{Grant, WaitQueue};
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::options::Oversized;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::rejected::Rejected;
use crate::waiting::wait_list::Request;
use crate::waiting::wake_batch::WakeBatch;

/// When a limiter is to decide.
#[derive(Clone, Copy)]
pub(super) enum When {
    /// As of this instant.
    At(Timestamp),
    /// At the clock's time. The precise time is read only if it matters.
    Now,
}

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Takes for a new request outside the lock, unless another request comes first. If it returns
    /// `None`, `enqueue` finds out why.
    #[inline(always)]
    pub(crate) fn take_free(&self, key: Key<Q>, request: Request) -> Option<Grant> {
        if self.is_closed() || self.may_be_behind(key) {
            return None;
        }
        let panicking = self.grant_on_unwind(Self::bit(key));
        let when = if request.max > request.min {
            When::At(self.clock.now())
        } else {
            When::Now
        };
        let taken = self.attempt(key, request, when, None);
        mem::forget(panicking);
        match (taken, when) {
            (Ok(grant), When::Now) => Some(grant),
            // Of a range, the larger part may have been denied before the smaller one was granted.
            (Ok(grant), When::At(at)) => {
                // Returned if the clock, a limiter or a waker panics.
                let taken = Taken {
                    wait_queue: self,
                    key,
                    grant: Some(grant),
                    at,
                    waiter: 0,
                };
                self.serve_after_denial(key);
                Some(taken.keep())
            }
            (Err(_), _) => {
                self.serve_after_denial(key);
                None
            }
        }
    }

    /// Attempts to take as many permits for a request as are available, from its minimum to its
    /// maximum. The receipts of the grant go into `notes`, if the source has any.
    #[inline(always)]
    pub(super) fn attempt(
        &self,
        key: Key<Q>,
        request: Request,
        when: When,
        mut notes: Option<&mut Receipts>,
    ) -> Result<Grant, Denied> {
        let Request { min, max, .. } = request;
        let limiter = self.source.at(key);
        if max > min {
            let available = limiter.available_at(self.time(when));
            let most = u32::try_from(available).unwrap_or(u32::MAX).clamp(min, max);
            if most > min {
                let notes = notes.as_deref_mut();
                if let Ok(receipt) = self.attempt_once(&*limiter, most, when, notes) {
                    return Ok((most, receipt));
                }
            }
        }
        let receipt = self.attempt_once(&*limiter, min, when, notes)?;
        Ok((min, receipt))
    }

    /// Attempts to take `n` permits. Not a closure: one that is called twice is not inlined, and
    /// then decides at run time which kind of request it makes.
    #[inline(always)]
    fn attempt_once<L: Limiter>(
        &self,
        limiter: &L,
        n: u32,
        when: When,
        notes: Option<&mut Receipts>,
    ) -> Result<Receipt, Denied> {
        let within = match when {
            When::Now if limiter.hints().decides_within => self.clock.interval(),
            _ => None,
        };
        if let Some(interval) = within {
            let answer = limiter.decide(Ask::new(interval, n, How::Attempt));
            if !matches!(answer, Answer::TimeMatters) {
                return answer.taken(interval.earliest(), n);
            }
        }
        // The interval is read first, so that the time is never before it.
        let now = self.time(when);
        let ask = Ask::new(now, n, How::Attempt);
        let answer = match notes {
            Some(notes) => {
                notes.clear();
                limiter.decide(ask.telling(Tell::Receipts(notes)))
            }
            None => limiter.decide(ask),
        };
        answer.taken(now, n)
    }

    /// Returns the time of a decision. The clock is read if the caller has not.
    #[inline(always)]
    fn time(&self, when: When) -> Timestamp {
        match when {
            When::At(now) => now,
            When::Now => self.clock.now(),
        }
    }

    /// Runs a final take of a key's permits outside the lock.
    #[inline(always)]
    pub(crate) fn take_outside_lock<T, E>(
        &self,
        key: Key<Q>,
        take: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let panicking = self.grant_on_unwind(Self::bit(key));
        let taken = take();
        mem::forget(panicking);
        if taken.is_err() {
            self.serve_after_denial(key);
        }
        taken
    }

    /// Puts a request to a key's limiter, as `take_outside_lock` does.
    #[inline(always)]
    pub(crate) fn decide(&self, key: Key<Q>, ask: Ask<'_>) -> Answer {
        let panicking = self.grant_on_unwind(Self::bit(key));
        let answer = self.source.at(key).decide(ask);
        mem::forget(panicking);
        if !matches!(answer, Answer::Granted(_)) {
            self.serve_after_denial(key);
        }
        answer
    }

    /// Serves the waiters of a key again after a denial outside the lock, if the limiter is a
    /// composition. It may have taken from some of its limits and refunded those permits; a request
    /// that was denied in the meantime for lack of them must be served.
    #[inline(always)]
    fn serve_after_denial(&self, key: Key<Q>) {
        if !self.source.at(key).hints().one_receipt {
            self.grant_returned(key, false);
        }
    }

    /// Takes for a key if no request is ahead and the lock is free. Meant for a key whose shard has
    /// waiters, which may be those of other keys.
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
                let head = lists.head(key);
                let comes_first = self.comes_first(lists, head);
                comes_first.then(|| self.source.at(key).take_at(now, n))
            })
        });
        mem::forget(panicking);
        // Returned if a waker panics before the grant is handed out.
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

    /// Returns whether a request that was denied needs more permits than its limiter can ever have.
    /// A penalty, for example, denies it before the limiter says so.
    #[inline(always)]
    pub(super) fn is_oversized(&self, key: Key<Q>, denied: Denied, min: u32) -> bool {
        match denied {
            Denied::ExceedsCapacity { .. } => true,
            Denied::Exhausted { .. } => false,
            _ => u64::from(min.max(1)) > self.source.at(key).capacity(),
        }
    }

    /// Returns whether a waiting request is to be rejected because it is oversized.
    #[inline(always)]
    pub(super) fn rejects(&self, key: Key<Q>, denied: Denied, min: u32) -> bool {
        self.options.oversized == Oversized::Reject && self.is_oversized(key, denied, min)
    }

    /// Informs a key's limiter that a request has ended without a grant.
    #[inline(always)]
    pub(crate) fn not_granted(&self, key: Key<Q>, now: Timestamp, n: u32, why: NotGranted) {
        let permits = n;
        let back = Back::NotGranted { now, permits, why };
        let _ = self.source.at(key).give_back(back);
    }

    /// Informs a key's limiter that a request was cancelled while it waited.
    #[inline(always)]
    pub(super) fn cancelled(&self, key: Key<Q>, n: u32) {
        let back = Back::Cancelled { permits: n };
        let _ = self.source.at(key).give_back(back);
    }
}

/// Tells what goes with a denial by a queue: what its limiter has told, or what `look` tells of it,
/// and when the queue says to retry.
pub(crate) fn tell_denial(
    seen: &Cell<Option<Detail>>,
    denied: Denied,
    retry: Retry,
    look: impl FnOnce() -> Detail,
) {
    let mut detail = seen.get().unwrap_or_else(look);
    (detail.decision, detail.retry) = (Err(denied), retry);
    seen.set(Some(detail));
}

/// Returns the earliest instant at which a request for `permits` can be granted if `ahead` permits
/// are queued before it.
pub(crate) fn earliest<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    ahead: u64,
    permits: u32,
) -> Retry {
    match limiter.peek_at(now, permits) {
        Ok(()) | Err(Denied::Exhausted { .. }) => {}
        // The requests queued before it get the same answer.
        Err(denied) => return limiter.retry(denied),
    }
    if ahead > 0 {
        let all = ahead.saturating_add(permits.max(1).into());
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let retry = limiter.retry(Denied::Exhausted { now, permits: all });
        // This limiter does not answer for more permits than its capacity.
        if retry != Retry::Never {
            return retry;
        }
    }
    limiter.retry(Denied::Exhausted { now, permits })
}

/// Returns whether a request that can be tried again at `retry`, by an answer of `now`, misses its
/// deadline. A request that is larger than the capacity waits for a larger one. Permits may be
/// released at any time, but not before the limits by time grant.
pub(super) fn is_too_late<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    retry: Retry,
    deadline: Timestamp,
    is_oversized: bool,
) -> bool {
    match retry {
        Retry::At(at) | Retry::OnReleaseFrom(at) => at > deadline,
        Retry::Never if !is_oversized => true,
        // A penalty lasts until its end, whatever is released or changed before.
        _ => is_penalized_beyond(limiter, now, deadline),
    }
}

/// Returns whether a penalty is in force until after `deadline`. Of several, the limiter tells the
/// first, so the others are asked as of its end. It is not asked as of the deadline, which may be
/// so late that the word of a penalty has wrapped.
fn is_penalized_beyond<L: Limiter + ?Sized>(
    limiter: &L,
    mut now: Timestamp,
    deadline: Timestamp,
) -> bool {
    for _ in 0..PENALTIES {
        match PENALIZED_UNTIL.of_granted(limiter, now) {
            Some(until) if until > deadline => return true,
            Some(until) if until > now => now = until,
            _ => break,
        }
    }
    false
}

/// How many penalties of one limiter are asked for their ends.
const PENALTIES: u32 = 8;

/// Returns the error of a request for more permits than the limiter can ever grant.
pub(super) fn exceeds<L: Limiter>(limiter: &L, permits: u32) -> Rejected {
    let capacity = u32::try_from(limiter.capacity()).unwrap_or(u32::MAX);
    Rejected::ExceedsCapacity { permits, capacity }
}
