//! The state of a rule: for each limit a table with a word or a limiter for each key.
//!
//! All tables of a rule have the same hasher and the same number of lines. So the address of a key
//! is the same in each of them: a decision hashes the key once.
//!
//! A penalty is a window of one permit that the first denial opens and takes from. While it is
//! open, the key is denied.

use core::array;
use core::time::Duration;
use std::hash::RandomState;

use portcullis_core::{
    Address, AllOf, Composable, ConcurrencyRules, CooldownWindow, Denied, DeniedBy, Detail,
    FixedWindow, FixedWindowRules, Idle, Key, Keyed, KeyedArray, KeyedRules, Limiter, LimiterId,
    Line, Receipt, Refund, Retry, SettingsError, SlidingWindow, Timestamp, TokenBucketRules,
    metadata::Metadata,
};

use crate::key::KeyOf;
use crate::limit::{Compiled, MAX_SEGMENTS};
use crate::rule::MAX_LIMITS;

type Lines = Box<[Line]>;
type Words<R> = Keyed<R, Lines, RandomState>;
type Limiters<L> = KeyedArray<L, Box<[L]>, Lines, RandomState>;
type Sliding = SlidingWindow<{ MAX_SEGMENTS as usize }>;

/// The state of one limit.
enum Table {
    Bucket(Words<TokenBucketRules>),
    Window(Words<FixedWindowRules>),
    AtOnce(Words<ConcurrencyRules>),
    Cooldown(Limiters<CooldownWindow>),
    /// Boxed because it contains a limiter, which is large.
    Sliding(Box<Limiters<Sliding>>),
}

/// The limiter of one key in a table.
enum KeyLimit<'t> {
    Bucket(Key<&'t Words<TokenBucketRules>>),
    Window(Key<&'t Words<FixedWindowRules>>),
    AtOnce(Key<&'t Words<ConcurrencyRules>>),
    Cooldown(Key<&'t Limiters<CooldownWindow>>),
    Sliding(Key<&'t Limiters<Sliding>>),
}

macro_rules! each {
    ($limit:expr, $key:ident => $do:expr) => {
        match $limit {
            KeyLimit::Bucket($key) => $do,
            KeyLimit::Window($key) => $do,
            KeyLimit::AtOnce($key) => $do,
            KeyLimit::Cooldown($key) => $do,
            KeyLimit::Sliding($key) => $do,
        }
    };
}

impl Limiter for KeyLimit<'_> {
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        each!(self, key => key.take_at(now, n))
    }
    #[inline]
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        each!(self, key => key.peek_at(now, n))
    }
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        each!(self, key => key.refund_at(now, n, receipt))
    }
    fn release(&self, n: u32) {
        each!(self, key => key.release(n));
    }
    fn available_at(&self, now: Timestamp) -> u64 {
        each!(self, key => key.available_at(now))
    }
    fn capacity(&self) -> u64 {
        each!(self, key => key.capacity())
    }
    #[inline]
    fn id(&self) -> Option<LimiterId> {
        each!(self, key => key.id())
    }
    #[inline]
    fn as_composable(&self) -> Option<&dyn Composable> {
        each!(self, key => key.as_composable())
    }
    fn idle_at(&self, now: Timestamp) -> Idle {
        each!(self, key => key.idle_at(now))
    }
    fn retry(&self, denied: Denied) -> Retry {
        each!(self, key => key.retry(denied))
    }
    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        each!(self, key => key.metadata(now, denied, offers));
    }
}

impl Table {
    fn new(limit: Compiled, lines: &dyn Fn() -> Lines, hasher: &RandomState) -> Self {
        let hasher = hasher.clone();
        match limit {
            Compiled::Bucket(rules) => Self::Bucket(Keyed::new(rules, lines(), hasher)),
            Compiled::Window(rules) => Self::Window(Keyed::new(rules, lines(), hasher)),
            Compiled::AtOnce(rules) => Self::AtOnce(Keyed::new(rules, lines(), hasher)),
            Compiled::Cooldown {
                count,
                period,
                wait,
            } => Self::Cooldown(limiters(lines(), hasher, || {
                CooldownWindow::new(count, period, Some(wait))
            })),
            Compiled::Sliding {
                count,
                period,
                segments,
            } => Self::Sliding(Box::new(limiters(lines(), hasher, || {
                Sliding::new(count, period, segments)
            }))),
        }
    }

    #[inline]
    fn key(&self, at: Address) -> KeyLimit<'_> {
        match self {
            Self::Bucket(table) => KeyLimit::Bucket(Key::at(table, at)),
            Self::Window(table) => KeyLimit::Window(Key::at(table, at)),
            Self::AtOnce(table) => KeyLimit::AtOnce(Key::at(table, at)),
            Self::Cooldown(table) => KeyLimit::Cooldown(Key::at(table, at)),
            Self::Sliding(table) => KeyLimit::Sliding(Key::at(table, at)),
        }
    }

    #[inline]
    fn locate(&self, key: &KeyOf<'_>) -> Address {
        match self {
            Self::Bucket(table) => table.key(key).address(),
            Self::Window(table) => table.key(key).address(),
            Self::AtOnce(table) => table.key(key).address(),
            Self::Cooldown(table) => table.key(key).address(),
            Self::Sliding(table) => table.key(key).address(),
        }
    }
}

/// A table of limiters: eight for each line.
fn limiters<L>(lines: Lines, hasher: RandomState, limiter: impl Fn() -> L) -> Limiters<L> {
    let limiters = (0..8 * lines.len()).map(|_| limiter()).collect();
    KeyedArray::new(limiter(), limiters, lines, hasher)
}

pub(crate) struct Store {
    tables: Box<[Table]>,
    penalty: Option<Words<FixedWindowRules>>,
    /// Whether permits return by release.
    releases: bool,
}

/// Why a store denies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreDenied {
    /// `None` for the penalty.
    pub(crate) limit: Option<usize>,
    pub(crate) denied: Denied,
}

impl Store {
    /// Tables for `keys` keys, or for the one key that all requests share.
    pub(crate) fn new(
        limits: Vec<Compiled>,
        penalty: Option<FixedWindowRules>,
        keys: Option<usize>,
    ) -> Self {
        let lines = || match keys {
            Some(keys) => Line::for_keys(keys),
            None => [Line::new()].into(),
        };
        let hasher = RandomState::new();
        let releases = limits
            .iter()
            .any(|limit| matches!(limit, Compiled::AtOnce(_)));
        Self {
            tables: limits
                .into_iter()
                .map(|limit| Table::new(limit, &lines, &hasher))
                .collect(),
            penalty: penalty.map(|rules| words(rules, lines(), hasher)),
            releases,
        }
    }

    /// Where the state of a key is. `None` if the rule has no limits.
    #[inline]
    pub(crate) fn locate(&self, key: &KeyOf<'_>) -> Option<Address> {
        self.tables.first().map(|table| table.locate(key))
    }

    /// Takes `n` permits from each limit, or from none.
    #[inline]
    pub(crate) fn take(&self, at: Address, now: Timestamp, n: u32) -> Result<(), StoreDenied> {
        if let Some(penalty) = &self.penalty
            && let Some(denied) = penalized(penalty, at, now, n)
        {
            return Err(StoreDenied {
                limit: None,
                denied,
            });
        }
        let taken = match self.tables.len() {
            0 => Ok(()),
            1 => {
                let taken = self.tables[0].key(at).take_at(now, n);
                taken.map(drop).map_err(|denied| (0, denied))
            }
            2 => self.take_all::<2>(at, now, n),
            3 => self.take_all::<3>(at, now, n),
            4 => self.take_all::<4>(at, now, n),
            5 => self.take_all::<5>(at, now, n),
            6 => self.take_all::<6>(at, now, n),
            7 => self.take_all::<7>(at, now, n),
            _ => self.take_all::<MAX_LIMITS>(at, now, n),
        };
        taken.map_err(|(limit, denied)| {
            // A request for more than a limit can ever grant, or one that finds no slot, is no use
            // beyond the limit.
            if let (Some(penalty), Denied::Exhausted { .. }) = (&self.penalty, denied) {
                // Denied if another request has opened the window already.
                let _ = Key::at(penalty, at).take_at(now, 1);
            }
            StoreDenied {
                limit: Some(limit),
                denied,
            }
        })
    }

    fn take_all<const N: usize>(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
    ) -> Result<(), (usize, Denied)> {
        let limits: [_; N] = array::from_fn(|limit| self.tables[limit].key(at));
        match AllOf::new(limits).into_lease_at(now, n) {
            Ok(lease) => {
                lease.forget();
                Ok(())
            }
            Err(DeniedBy { index, denied, .. }) => Err((index, denied)),
        }
    }

    /// Whether permits return by release.
    pub(crate) fn releases(&self) -> bool {
        self.releases
    }

    /// Returns permits that return by release. Called once for each grant.
    #[inline]
    pub(crate) fn release(&self, at: Address, n: u32) {
        if self.releases {
            for table in &self.tables {
                if let KeyLimit::AtOnce(key) = table.key(at) {
                    key.release(n);
                }
            }
        }
    }

    /// When the key is allowed again, after a denial.
    pub(crate) fn retry(&self, at: Address, by: StoreDenied) -> Retry {
        let limits = self.tables.iter().map(|table| table.key(at));
        match (by.denied, &self.penalty) {
            (Denied::Penalized { now, .. }, Some(penalty)) => {
                Key::at(penalty, at).retry(Denied::Exhausted { now, permits: 1 })
            }
            // All limits must have the permits.
            (Denied::Exhausted { now, permits }, penalty) => {
                let mut all = limits.fold(Retry::At(now), |all, limit| {
                    all.longer(limit.explain_at(now, permits).retry, now)
                });
                if let Some(penalty) = penalty {
                    let denied = Denied::Exhausted { now, permits: 1 };
                    all = all.longer(Key::at(penalty, at).retry(denied), now);
                }
                all
            }
            (denied, _) => by.limit.map_or(Retry::Never, |limit| {
                self.tables[limit].key(at).retry(denied)
            }),
        }
    }

    /// What one limit has left.
    pub(crate) fn detail(&self, at: Address, limit: usize, now: Timestamp, n: u32) -> Detail {
        self.tables[limit].key(at).explain_at(now, n)
    }

    /// When a limit has all its permits back, if no more are taken.
    pub(crate) fn full_at(&self, at: Address, limit: usize, now: Timestamp) -> Retry {
        let limit = self.tables[limit].key(at);
        let capacity = u32::try_from(limit.capacity()).unwrap_or(u32::MAX);
        limit.explain_at(now, capacity).retry
    }

    /// Whether a penalty is in force.
    pub(crate) fn is_penalized(&self, at: Address, now: Timestamp) -> bool {
        let penalty = self.penalty.as_ref();
        penalty.is_some_and(|penalty| penalized(penalty, at, now, 1).is_some())
    }
}

fn words<R: KeyedRules>(rules: R, lines: Lines, hasher: RandomState) -> Words<R> {
    Keyed::new(rules, lines, hasher)
}

/// The rules of a penalty of this length.
pub(crate) fn penalty_rules(length: Duration) -> Result<FixedWindowRules, SettingsError> {
    FixedWindow::builder(1, length)
        .started_by_first_request()
        .rules()
}

/// A penalty that finds no slot is not in force.
#[inline]
fn penalized(
    penalty: &Words<FixedWindowRules>,
    at: Address,
    now: Timestamp,
    n: u32,
) -> Option<Denied> {
    match Key::at(penalty, at).peek_at(now, 1) {
        Err(Denied::Exhausted { .. }) => Some(Denied::Penalized { now, permits: n }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Key as RuleKey, Limit, PathRules, Request};

    /// A decision hashes a key once, for all tables.
    #[test]
    fn a_key_has_the_same_address_in_all_tables_of_a_rule() {
        let limit = |algorithm| Limit::per(5, Duration::from_secs(1)).algorithm_of(algorithm);
        let limits = [
            limit(Algorithm::TokenBucket),
            limit(Algorithm::FixedWindow),
            limit(Algorithm::WindowFromRequest).wait(Duration::from_secs(2)),
            limit(Algorithm::SlidingWindow { segments: 3 }),
            Limit::at_once(5),
        ];
        let compiled = limits
            .iter()
            .map(|limit| limit.compile().unwrap())
            .collect();
        let penalty = penalty_rules(Duration::from_secs(5)).unwrap();
        let store = Store::new(compiled, Some(penalty), Some(1_000));
        let key = RuleKey::path();
        for path in ["/a", "/b", "/c"] {
            let request = Request::new("GET", path);
            let key = KeyOf::new(&key, &request, PathRules::new());
            let at = store.locate(&key).unwrap();
            for table in &store.tables {
                assert_eq!(table.locate(&key), at);
            }
            assert_eq!(store.penalty.as_ref().unwrap().key(&key).address(), at);
        }
    }
}
