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

/// The methods that ask the rules inside the same.
macro_rules! pass_on {
    ($($(#[$inline:meta])? fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)+) => {$(
        $(#[$inline])?
        fn $name(&self, $($argument: $type),*) -> $result {
            each!(self, rules => rules.$name($($argument),*))
        }
    )+};
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

    pass_on! {
        #[inline(always)]
        fn receipt(state: u64, now: Timestamp) -> Receipt;
        fn refund(state: u64, now: Timestamp, n: u32, receipt: &Receipt) -> Option<u64>;
        fn rest(state: u64, receipt: Receipt) -> Receipt;
        fn capacity() -> u64;
        fn available(state: u64, now: Timestamp) -> u64;
        fn idle(state: u64, now: Timestamp) -> Idle;
        fn retry(state: u64, denied: Denied) -> Retry;
        fn detail(state: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail;
    }
}

impl TableRules for AnyRules {
    #[inline(always)]
    fn releases(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    #[inline(always)]
    fn judge_in_slot(&self, slot: u64, low: u64, (now, n): Self::Request) -> Verdict {
        each!(self, rules => match rules.request(now, n) {
            Ok(request) => rules.judge_in_slot(slot, low, request),
            Err(denied) => Verdict::Denied(denied),
        })
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

    pass_on! {
        #[inline(always)]
        fn is_unlimited() -> bool;
        fn fresh(now: Timestamp) -> u64;
        fn is_forgettable(state: u64, now: Timestamp, since: Timestamp) -> bool;
        fn is_forgettable_among(state: u64, now: Timestamp, since: Timestamp) -> bool;
        fn rested(now: Timestamp, since: Timestamp) -> u64;
        fn readable_for() -> u64;
        fn has_rested(state: u64, clock: Timestamp, now: Timestamp, since: Timestamp) -> bool;
        fn refund_among(
            state: u64,
            times: (Timestamp, Timestamp),
            n: u32,
            receipt: &Receipt,
            others: u64,
        ) -> Option<(u64, u32)>;
        fn charged(state: u64, now: Timestamp, n: u32, owing: u64) -> (u64, u32);
    }
}
