//! The rules of a limiter whose whole state is one word, as pure functions of that word.
//!
//! Rules are settings plus functions of a state. They hold no state and write none. The owner of
//! the word calls them to compute the next state, and exchanges the word: a
//! [`WordLimiter`](word_limiter) has its own word, an [`Attached`](attached) limiter uses a word of
//! the caller's, and a [`Keyed`](crate::Keyed) table has one word per key.

pub(crate) mod any_rules;
pub(crate) mod attached;
pub(crate) mod word_limiter;

use crate::keyed::line_clock::Span;
use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::receipt::Receipt;
use crate::time::interval::Interval;
use crate::time::timestamp::Timestamp;
use crate::word::{STATE_AT, Word};

/// The rules of a limiter whose state is one word.
///
/// A list of limits, which may be of several kinds, has them as `dyn`
/// [`Rules`](crate::keyed::rule_list::sealed::Rules), without what needs `Self: Sized`.
pub trait WordRules {
    /// The word type that is wide enough for every state.
    type Word: Word
    where
        Self: Sized;

    /// The part of a request that does not depend on the state, computed before the loop over the
    /// word.
    type Request: Copy
    where
        Self: Sized;

    /// Prepares a request for `n` permits at `now`. Fails with [`Denied::ExceedsCapacity`] if no
    /// state can have `n` permits. With `n = 0` nothing is taken, and the verdict is that on a
    /// request for 1.
    fn request(&self, now: Timestamp, n: u32) -> Result<Self::Request, Denied>
    where
        Self: Sized;

    /// Decides on a request.
    fn judge(&self, state: u64, request: Self::Request) -> Verdict
    where
        Self: Sized;

    /// Prepares a request at a time that lies in `interval`: the requests at its two ends. Fails as
    /// [`request`](Self::request) does.
    #[inline(always)]
    fn requests_within(&self, interval: Interval, n: u32) -> Result<[Self::Request; 2], Denied>
    where
        Self: Sized,
    {
        Ok([
            self.request(interval.earliest(), n)?,
            self.request(interval.latest(), n)?,
        ])
    }

    /// Decides on a request at a time that lies in an interval. `ends` are the requests at its two
    /// ends. Returns the verdict if it is the same at every instant of the interval, with the same
    /// next state; otherwise `None`.
    ///
    /// Equal verdicts at both ends prove that, because verdicts change in one direction as time
    /// passes:
    ///
    /// - A state passes through three zones in this order: its limiter denies the request (`now`
    ///   is stale, or too little is left), grants it out of what is left, or grants it as of a
    ///   fresh start (the bucket is full, the window is over). Then the word wraps, and the first
    ///   zone follows again. The third zone alone is longer than an interval: an interval is no
    ///   longer than a staleness, which is at most a quarter of the range, and at least half of the
    ///   range means idle.
    /// - In the second zone the next state does not depend on the time. In the third it moves ahead
    ///   with time, or stands still.
    #[inline(always)]
    fn judge_within(&self, state: u64, [first, last]: [Self::Request; 2]) -> Option<Verdict>
    where
        Self: Sized,
    {
        match (self.judge(state, first), self.judge(state, last)) {
            (Verdict::Granted(left), Verdict::Granted(at_last)) if left == at_last => {
                Some(Verdict::Granted(left))
            }
            (Verdict::Allowed, Verdict::Allowed) => Some(Verdict::Allowed),
            (denied @ Verdict::Denied(_), Verdict::Denied(_)) => Some(denied),
            _ => None,
        }
    }

    /// The receipt of a grant at `now` that changed the state to `state`.
    fn receipt(&self, state: u64, now: Timestamp) -> Receipt;

    /// The next state if `n` permits of the grant that `receipt` covers count as never taken.
    /// `None` if they cannot be refunded.
    fn refund(&self, state: u64, now: Timestamp, n: u32, receipt: &Receipt) -> Option<u64>;

    /// The receipt for the permits that remain of a grant after a refund changed the state to
    /// `state`.
    fn rest(&self, state: u64, receipt: Receipt) -> Receipt;

    /// The largest number of permits that one request can be granted.
    fn capacity(&self) -> u64;

    /// The available permits.
    fn available(&self, state: u64, now: Timestamp) -> u64;

    /// Whether all permits are available.
    fn idle(&self, state: u64, now: Timestamp) -> Idle;

    /// When to retry.
    fn retry(&self, state: u64, denied: Denied) -> Retry;

    /// What goes with a decision that was made at `now` and left `state`.
    fn detail(&self, state: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail;
}

/// Decides on a request that takes nothing.
pub(crate) fn look<R: WordRules>(
    rules: &R,
    state: u64,
    now: Timestamp,
    n: u32,
) -> Result<(), Denied> {
    match rules.judge(state, rules.request(now, n)?) {
        Verdict::Granted(_) | Verdict::Allowed => Ok(()),
        Verdict::Denied(denied) => Err(denied),
    }
}

/// The rules of a table with one word per key, in which keys come and go.
pub trait TableRules: WordRules {
    /// Whether permits come back by time, so that a state wraps.
    #[inline(always)]
    fn wraps() -> bool
    where
        Self: Sized,
    {
        true
    }

    /// Whether permits return by release. A release is then a refund.
    #[inline(always)]
    fn releases(&self) -> bool {
        false
    }

    /// Whether a take never changes the state.
    #[inline(always)]
    fn is_unlimited(&self) -> bool {
        false
    }

    /// The state of a fresh limiter, for timestamps from `now` on.
    fn fresh(&self, now: Timestamp) -> u64;

    /// Whether `state` at `now` is indistinguishable from a fresh one, for every timestamp that is
    /// neither before `since` nor staler than the rules' own staleness allows.
    fn is_forgettable(&self, state: u64, now: Timestamp, since: Timestamp) -> bool;

    /// As [`is_forgettable`](Self::is_forgettable), in an entry with other limits, whose permits
    /// may be in use when those of this limit are refunded. No take at such a timestamp and its
    /// refund bring `state` back.
    fn is_forgettable_among(&self, state: u64, now: Timestamp, since: Timestamp) -> bool {
        self.is_forgettable(state, now, since)
    }

    /// The newest state that is forgettable at `now`, also
    /// [among](Self::is_forgettable_among) others.
    fn rested(&self, now: Timestamp, _since: Timestamp) -> u64 {
        self.fresh(now)
    }

    /// For how many nanoseconds after it was settled a state can be read. States that never wrap
    /// can always be read.
    fn readable_for(&self) -> u64 {
        u64::MAX
    }

    /// As [`is_forgettable_among`](Self::is_forgettable_among), after any time. The state was
    /// settled at `clock`, or written after it and before the state that was settled there could
    /// no longer be [read](Self::readable_for). `clock` is not after `now`.
    fn has_rested(
        &self,
        _state: u64,
        _clock: Timestamp,
        _now: Timestamp,
        _since: Timestamp,
    ) -> bool {
        false
    }

    /// As [`judge`](WordRules::judge), for a state that lies in a slot of a table, above the bits
    /// `low`. Returns the next state above the same bits. Rules that can decide without moving the
    /// state override this method.
    #[inline(always)]
    fn judge_in_slot(&self, slot: u64, low: u64, request: Self::Request) -> Verdict
    where
        Self: Sized,
    {
        match self.judge(slot >> STATE_AT, request) {
            Verdict::Granted(left) => Verdict::Granted(left << STATE_AT | low),
            verdict => verdict,
        }
    }

    /// The state under these rules of a limiter whose state under the rules `before` is `state`:
    /// permits in use stay in use. Called at `now`, which may be stale. Not called for rules that
    /// [release](Self::releases).
    fn moved(&self, _before: &Self, state: u64, _now: Timestamp) -> u64
    where
        Self: Sized,
    {
        state
    }

    /// The next state if up to `n` permits of a grant count as never taken, and how many. Other
    /// calls may have been granted permits since. The first of `times` is that of the refund, the
    /// second the latest that another call may have used. Other refunds since the grant have
    /// returned at most `others` permits.
    fn refund_among(
        &self,
        state: u64,
        (now, _): (Timestamp, Timestamp),
        n: u32,
        receipt: &Receipt,
        _others: u64,
    ) -> Option<(u64, u32)> {
        Some((self.refund(state, now, n, receipt)?, n))
    }

    /// The state after up to `n` permits are taken, as many as there are, and how many. A limit
    /// that may owe permits takes as many as its declared debt allows, and owes at most `owing`.
    fn charged(&self, state: u64, now: Timestamp, n: u32, owing: u64) -> (u64, u32)
    where
        Self: Sized,
    {
        let _ = owing;
        let most = self.available(state, now).min(n.into()) as u32;
        let request = self.request(now, most);
        match request.map(|request| self.judge(state, request)) {
            Ok(Verdict::Granted(left)) => (left, most),
            Ok(Verdict::Allowed) => (state, most),
            _ => (state, 0),
        }
    }
}

/// Whether a state in a table is at rest at `now`: as it looks, or by the time at which it was
/// settled.
pub(crate) fn has_rested<R: TableRules + ?Sized>(
    rules: &R,
    state: u64,
    settled_at: Option<Timestamp>,
    now: Timestamp,
    since: Timestamp,
) -> bool {
    match settled_at {
        None => rules.is_forgettable_among(state, now, since),
        // Rules that can be read for a moment only are not asked: the moment may be over before
        // their words are settled again.
        Some(_) if Span::of(rules.readable_for()) == Span::FOREVER => false,
        Some(settled_at) => rules.has_rested(state, settled_at, now, since),
    }
}

/// The state under the rules `to` of a limiter whose state in a settled line is `state`, for a line
/// whose clock begins at `now`. `since` is the oldest time that a call may pass there.
///
/// A limiter at rest gets the newest state at rest, as if the other line had been settled: its own
/// state may be nearly as old as the clock lets it become.
pub(crate) fn moved<R: TableRules>(
    rules: &R,
    to: &R,
    state: u64,
    (now, since): (Timestamp, Timestamp),
) -> u64 {
    if has_rested(rules, state, None, now, since) {
        to.rested(now, since)
    } else {
        to.moved(rules, state, now)
    }
}

/// Rules whose states can be converted to other settings. Their permits return by time.
pub trait Moved: TableRules {}

/// The decision on a request.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// Granted: this is the next state.
    Granted(u64),
    /// Would be granted, but takes nothing: the request is a probe, or there is no limit.
    Allowed,
    /// Denied: the state does not change.
    Denied(Denied),
}
