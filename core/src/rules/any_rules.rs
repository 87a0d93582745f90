//! The rules of a table's limit, of a kind that is known only at run time.
//!
//! No state of its own: the state is that of the rules inside.

use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::receipt::Receipt;
use crate::limiters::concurrency::ConcurrencyRules;
use crate::limiters::fixed_window::FixedWindowRules;
use crate::limiters::token_bucket::TokenBucketRules;
use crate::rules::{TableRules, Verdict, WordRules};
use crate::time::timestamp::Timestamp;
use crate::word::KeyedWord;

/// Rules of any kind that a table with one word for each key supports. For limits whose kind is
/// known only at run time, such as those in a configuration file.
///
/// [`Keyed`](crate::Keyed) takes such rules, and [`KeyedList`](crate::KeyedList) a list of them.
/// All limits decide as they do with the rules inside.
///
/// **Cost.** As the rules inside, and a branch on the kind for each decision.
///
/// ```
/// use portcullis_core::{Keyed, Timestamp};
/// use portcullis_core::keyed::{AnyRules, ConcurrencyRules, Line, Seed};
///
/// let rules = AnyRules::from(ConcurrencyRules::new(1));
/// let downloads = Keyed::new(rules, Line::for_keys(100), Seed::new());
/// let lease = downloads.key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
/// assert!(downloads.key("alice").try_acquire_at(Timestamp::ZERO, 1).is_err());
/// drop(lease);
/// assert!(downloads.key("alice").try_acquire_at(Timestamp::ZERO, 1).is_ok());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyRules {
    /// The rules of a [`TokenBucket`](crate::TokenBucket).
    TokenBucket(TokenBucketRules),
    /// The rules of a [`FixedWindow`](crate::FixedWindow).
    FixedWindow(FixedWindowRules),
    /// The rules of a [`Concurrency`](crate::Concurrency) limit.
    Concurrency(ConcurrencyRules),
}

impl From<TokenBucketRules> for AnyRules {
    fn from(rules: TokenBucketRules) -> Self {
        Self::TokenBucket(rules)
    }
}

impl From<FixedWindowRules> for AnyRules {
    fn from(rules: FixedWindowRules) -> Self {
        Self::FixedWindow(rules)
    }
}

impl From<ConcurrencyRules> for AnyRules {
    fn from(rules: ConcurrencyRules) -> Self {
        Self::Concurrency(rules)
    }
}

macro_rules! each {
    ($any:expr, $rules:ident => $do:expr) => {
        match $any {
            AnyRules::TokenBucket($rules) => $do,
            AnyRules::FixedWindow($rules) => $do,
            AnyRules::Concurrency($rules) => $do,
        }
    };
}

#[inline(always)]
fn judged<R: WordRules>(rules: &R, state: u64, (now, n): (Timestamp, u32)) -> Verdict {
    match rules.request(now, n) {
        Ok(request) => rules.judge(state, request),
        Err(denied) => Verdict::Denied(denied),
    }
}

impl WordRules for AnyRules {
    type Word = KeyedWord;
    type Request = (Timestamp, u32);

    /// Never fails: [`judge`](Self::judge) denies what no state can grant.
    #[inline(always)]
    fn request(&self, now: Timestamp, n: u32) -> Result<Self::Request, Denied> {
        Ok((now, n))
    }

    #[inline(always)]
    fn judge(&self, state: u64, request: Self::Request) -> Verdict {
        each!(self, rules => judged(rules, state, request))
    }

    #[inline(always)]
    fn receipt(&self, state: u64, now: Timestamp) -> Receipt {
        each!(self, rules => rules.receipt(state, now))
    }

    fn refund(&self, state: u64, now: Timestamp, n: u32, receipt: &Receipt) -> Option<u64> {
        each!(self, rules => rules.refund(state, now, n, receipt))
    }

    fn rest(&self, state: u64, receipt: Receipt) -> Receipt {
        each!(self, rules => rules.rest(state, receipt))
    }

    fn capacity(&self) -> u64 {
        each!(self, rules => rules.capacity())
    }

    fn available(&self, state: u64, now: Timestamp) -> u64 {
        each!(self, rules => rules.available(state, now))
    }

    fn idle(&self, state: u64, now: Timestamp) -> Idle {
        each!(self, rules => rules.idle(state, now))
    }

    fn retry(&self, state: u64, denied: Denied) -> Retry {
        each!(self, rules => rules.retry(state, denied))
    }

    fn detail(&self, state: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        each!(self, rules => rules.detail(state, now, decision))
    }
}

impl TableRules for AnyRules {
    const RELEASES: bool = true;

    #[inline(always)]
    fn releases(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    #[inline(always)]
    fn is_unlimited(&self) -> bool {
        each!(self, rules => rules.is_unlimited())
    }

    #[inline(always)]
    fn judge_in_slot(&self, slot: u64, low: u64, (now, n): Self::Request) -> Verdict {
        each!(self, rules => match rules.request(now, n) {
            Ok(request) => rules.judge_in_slot(slot, low, request),
            Err(denied) => Verdict::Denied(denied),
        })
    }

    fn fresh(&self, now: Timestamp) -> u64 {
        each!(self, rules => rules.fresh(now))
    }

    fn is_forgettable(&self, state: u64, now: Timestamp, since: Timestamp) -> bool {
        each!(self, rules => rules.is_forgettable(state, now, since))
    }

    fn is_forgettable_among(&self, state: u64, now: Timestamp, since: Timestamp) -> bool {
        each!(self, rules => rules.is_forgettable_among(state, now, since))
    }

    fn rested(&self, now: Timestamp, since: Timestamp) -> u64 {
        each!(self, rules => rules.rested(now, since))
    }

    fn readable_for(&self) -> u64 {
        each!(self, rules => rules.readable_for())
    }

    fn has_rested(&self, state: u64, clock: Timestamp, now: Timestamp, since: Timestamp) -> bool {
        each!(self, rules => rules.has_rested(state, clock, now, since))
    }

    /// Rules of another kind start without that state.
    fn moved(&self, before: &Self, state: u64, now: Timestamp) -> u64 {
        match (self, before) {
            (Self::TokenBucket(rules), Self::TokenBucket(before)) => {
                rules.moved(before, state, now)
            }
            (Self::FixedWindow(rules), Self::FixedWindow(before)) => {
                rules.moved(before, state, now)
            }
            _ => self.fresh(now),
        }
    }

    fn refund_among(
        &self,
        state: u64,
        times: (Timestamp, Timestamp),
        n: u32,
        receipt: &Receipt,
        others: u64,
    ) -> Option<(u64, u32)> {
        each!(self, rules => TableRules::refund_among(rules, state, times, n, receipt, others))
    }

    fn charged(&self, state: u64, now: Timestamp, n: u32, owing: u64) -> (u64, u32) {
        each!(self, rules => TableRules::charged(rules, state, now, n, owing))
    }
}
