//! What a limiter does whose state is one word, wherever that word lies: for tables that hold the
//! words of many keys.
//!
//! Everything here is a function of a state and of the limiter's settings; nothing is read from the
//! limiter's own word, and nothing is written.

use crate::{Denied, Idle, Receipt, Retry, Timestamp};

/// Judges states of one word.
pub trait Judge {
    /// Whether permits come back by release, which then is a refund.
    const RELEASES: bool = false;

    /// The state of one that nobody has used, seen from `now` on.
    fn fresh(&self, now: Timestamp) -> u64;

    /// What `state` becomes when `n` permits are taken at `now`, and the receipt; with `n = 0`,
    /// `state`.
    fn grant(&self, state: u64, now: Timestamp, n: u32) -> Result<(u64, Receipt), Denied>;

    /// What `state` becomes when `n` permits of a take are given back as never taken, if they can
    /// be.
    fn refund(
        &self,
        state: u64,
        now: Timestamp,
        n: u32,
        receipt: &Receipt,
    ) -> Option<(u64, Receipt)>;

    /// The permits that could be taken.
    fn available(&self, state: u64, now: Timestamp) -> u64;

    /// Whether all permits are available.
    fn idle(&self, state: u64, now: Timestamp) -> Idle;

    /// Whether at `now` nobody who comes as late as `since`, or as the limiter's own staleness
    /// allows, could tell `state` from one that nobody has used.
    fn is_forgettable(&self, state: u64, now: Timestamp, since: Timestamp) -> bool;

    /// When to come back.
    fn retry(&self, state: u64, denied: Denied) -> Retry;

    /// The most that one request can ask for.
    fn capacity(&self) -> u64;
}
