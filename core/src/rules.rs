//! The rules of a limiter of one word, apart from the word.
//!
//! Rules are settings, and functions of a state: they hold no state and write none. Who holds the
//! word asks them what it becomes, and exchanges it: a [`WordLimiter`](word_limiter) its own
//! word, a [`Keyed`](crate::Keyed) table the words of many keys.

pub(crate) mod word_limiter;

use crate::{Denied, Idle, Receipt, Retry, Timestamp, Word};

/// The rules of a limiter whose state is one word.
pub trait WordRules {
    /// The word that states fit.
    type Word: Word;

    /// What of a request does not depend on the state: worked out before the loop over the word.
    type Request: Copy;

    /// A request for `n` permits at `now`; [`Denied::ExceedsCapacity`] where no state has so many.
    /// With `n = 0` nothing is taken, and the answer is that to a request for 1.
    fn request(&self, now: Timestamp, n: u32) -> Result<Self::Request, Denied>;

    /// What becomes of a request.
    fn judge(&self, state: u64, request: Self::Request) -> Verdict;

    /// The receipt of a grant at `now` that has left `state`.
    fn receipt(&self, state: u64, now: Timestamp) -> Receipt;

    /// What `state` becomes when `n` permits of the grant that `receipt` is for count as never
    /// taken. `None` if they cannot be given back.
    fn refund(&self, state: u64, now: Timestamp, n: u32, receipt: &Receipt) -> Option<u64>;

    /// The receipt of the permits that are left of a grant, once a refund has left `state`.
    fn rest(&self, state: u64, receipt: Receipt) -> Receipt;

    /// The permits that could be taken.
    fn available(&self, state: u64, now: Timestamp) -> u64;

    /// Whether all permits are available.
    fn idle(&self, state: u64, now: Timestamp) -> Idle;

    /// When to come back.
    fn retry(&self, state: u64, denied: Denied) -> Retry;
}

/// Rules for the words of many keys, which come and go.
pub trait TableRules: WordRules {
    /// Whether permits come back by release, which then is a refund.
    const RELEASES: bool = false;

    /// The state of one that nobody has used, seen from `now` on.
    fn fresh(&self, now: Timestamp) -> u64;

    /// Whether at `now` nobody who comes as late as `since`, or as the rules' own staleness allows,
    /// could tell `state` from one that nobody has used.
    fn is_forgettable(&self, state: u64, now: Timestamp, since: Timestamp) -> bool;

    /// The most that one request can ask for.
    fn capacity(&self) -> u64;
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// Granted, and the state becomes this.
    Granted(u64),
    /// Would be granted, but there is nothing to take: a probe, or there is no limit.
    Allowed,
    /// Denied, and nothing changes.
    Denied(Denied),
}
