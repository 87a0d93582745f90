//! Lists of rules, for the limits that each key of a table has. No state.

use self::sealed::{List, Rules};
use crate::all_of::DeniedBy;
use crate::keyed::KeyedRules;
use crate::limiter::receipt::Receipt;
use crate::rules::any_rules::AnyRules;
use crate::rules::has_rested;
use crate::rules::{TableRules, Verdict};
use crate::time::interval::Interval;
use crate::time::timestamp::Timestamp;
use crate::word::settings::{Setting, SettingsError};

/// The most limits that a key of a [`KeyedList`](crate::KeyedList) can have: the words of a cache
/// line.
pub(crate) const MOST: usize = 8;

/// The limits that each key of a [`KeyedList`](crate::KeyedList) has: tuples and arrays of 1 to 8
/// [rules](KeyedRules), and [`RulesAtRunTime`]. Sealed.
///
/// ```
/// use portcullis_core::Rate;
/// use portcullis_core::keyed::{ConcurrencyRules, RuleList, TokenBucketRules};
/// fn is_list(_: &impl RuleList) {}
/// is_list(&(TokenBucketRules::new(Rate::per_second(5), 10), ConcurrencyRules::new(2)));
/// is_list(&[ConcurrencyRules::new(5), ConcurrencyRules::new(2)]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of the rules of a `KeyedList` table",
    label = "expected a tuple or an array of 1 to 8 of `TokenBucketRules`, `FixedWindowRules`, `ConcurrencyRules` and `AnyRules`, or a `RulesAtRunTime`",
    note = "convert limiters with `limiters.into_rule_list()?`, or write `KeyedList::for_keys(limiters, keys)`",
    note = "for limiters of any other type, use a `KeyedArray` of `AllOf`"
)]
pub trait RuleList: List {}

impl<L: List> RuleList for L {}

pub(crate) mod sealed {
    use super::{BEST, DeniedBy, Interval, Receipt, TableRules, Timestamp, Verdict};

    /// A list of rules, and what it needs of a decision.
    pub trait List {
        /// The states of all limits, in order.
        type States: Copy + AsRef<[u64]> + AsMut<[u64]>;
        const NO_STATES: Self::States;
        /// Whether permits of a limit come back by time, so that its states wrap.
        fn wraps() -> bool;
        /// Whether keys can move to a table with another number of limits.
        const CAN_MOVE: bool = false;

        /// The number of limits, 1 to 8.
        fn count(&self) -> usize;

        /// The rules of the limit with index `limit`.
        fn get(&self, limit: usize) -> Option<&dyn Rules>;

        /// The methods of [`Rules`] that a take calls, for the limit with index `limit`. Without a
        /// virtual call, so that the code of a take contains none.
        fn leads(&self, limit: usize) -> u8;
        fn judge_one(&self, limit: usize, state: u64, now: Timestamp, n: u32) -> Verdict;
        fn undo(&self, limit: usize, state: u64, now: Timestamp, n: u32, left: u64) -> Option<u64>;
        fn fresh(&self, limit: usize, now: Timestamp) -> u64;
        fn is_forgettable(
            &self,
            limit: usize,
            state: u64,
            now: Timestamp,
            since: Timestamp,
        ) -> bool;

        /// See `rules::has_rested`, and the methods of `TableRules` of the same names.
        fn has_rested(
            &self,
            limit: usize,
            state: u64,
            settled_at: Option<Timestamp>,
            now: Timestamp,
            since: Timestamp,
        ) -> bool;
        fn rested(&self, limit: usize, now: Timestamp, since: Timestamp) -> u64;
        fn readable_for(&self, limit: usize) -> u64;

        /// Whether the first limit leads: see [`leads`](Rules::leads).
        fn is_led_by_first(&self) -> bool;

        /// Whether permits of a limit come back by release.
        fn releases(&self) -> bool;

        /// Decides on a request, for states that lie in slots, above the bits `low`. Returns the
        /// slots that a grant leaves, or the first denial. A request that takes nothing leaves the
        /// slots as they are.
        fn judge(
            &self,
            slots: Self::States,
            low: u64,
            now: Timestamp,
            n: u32,
        ) -> Result<Self::States, DeniedBy>;

        /// As [`judge`](Self::judge), at a time that lies in `interval`. `None` if it matters where
        /// to a limit, up to the first that denies.
        fn judge_within(
            &self,
            states: Self::States,
            interval: Interval,
            n: u32,
        ) -> Option<Result<Self::States, DeniedBy>>;

        /// The receipt of a grant at `now` that left `states`. Its note is the sum of the notes of
        /// all limits.
        fn receipt(&self, states: Self::States, now: Timestamp) -> Receipt;
    }

    /// The rules of one limit, of any kind.
    pub trait Rules: TableRules {
        /// How well the limit can lead: the most if only a take can change its state to one that is
        /// not idle, and no release changes it back. Next come limits whose permits are released,
        /// and last those that never change.
        #[inline(always)]
        fn leads(&self) -> u8 {
            if self.releases() {
                1
            } else if self.is_unlimited() {
                0
            } else {
                BEST
            }
        }

        /// Decides on a request for `n` permits at `now`.
        fn judge_at(&self, state: u64, now: Timestamp, n: u32) -> Verdict;

        /// The state without the take at `now` that left `left`.
        fn undo(&self, state: u64, now: Timestamp, n: u32, left: u64) -> Option<u64> {
            self.refund(state, now, n, &self.receipt(left, now))
        }

        /// The note in the receipt of a grant that left `state`.
        fn note(&self, state: u64) -> u64 {
            self.receipt(state, Timestamp::ZERO).note()
        }

        /// The state after up to `n` permits are taken, and how many: a limit owes at most `owing`
        /// then. All of them, and the same state, for limits whose permits are released.
        fn charge(&self, state: u64, now: Timestamp, n: u32, owing: u64) -> (u64, u32);
    }
}

/// The rank of limits that lead best.
const BEST: u8 = 2;

impl<R: KeyedRules> Rules for R {
    fn judge_at(&self, state: u64, now: Timestamp, n: u32) -> Verdict {
        match self.request(now, n) {
            Ok(request) => self.judge(state, request),
            Err(denied) => Verdict::Denied(denied),
        }
    }

    fn charge(&self, state: u64, now: Timestamp, n: u32, owing: u64) -> (u64, u32) {
        if self.releases() {
            return (state, n);
        }
        self.charged(state, now, n, owing)
    }
}

/// The slot that a grant by the limit with index `index` leaves.
#[inline(always)]
fn left_by<R: KeyedRules>(
    rules: &R,
    index: usize,
    (slot, low): (u64, u64),
    now: Timestamp,
    n: u32,
) -> Result<u64, DeniedBy> {
    let verdict = match rules.request(now, n) {
        Ok(request) => rules.judge_in_slot(slot, low, request),
        Err(denied) => Verdict::Denied(denied),
    };
    left_after(verdict, index, slot, n)
}

/// The state that a grant leaves at a time that lies in `interval`. `None` if it matters where.
#[inline(always)]
fn left_within<R: KeyedRules>(
    rules: &R,
    index: usize,
    state: u64,
    interval: Interval,
    n: u32,
) -> Option<Result<u64, DeniedBy>> {
    let verdict = match rules.requests_within(interval, n) {
        Ok(ends) => rules.judge_within(state, ends)?,
        Err(denied) => Verdict::Denied(denied),
    };
    Some(left_after(verdict, index, state, n))
}

#[inline(always)]
fn left_after(verdict: Verdict, index: usize, before: u64, n: u32) -> Result<u64, DeniedBy> {
    match verdict {
        Verdict::Granted(left) => Ok(left),
        Verdict::Allowed => Ok(before),
        Verdict::Denied(denied) => Err(DeniedBy {
            index,
            permits: n,
            denied,
        }),
    }
}

/// The receipt of a grant at `now` that left a state in each limit.
#[inline(always)]
fn receipt_of<'r, R: KeyedRules + 'r>(
    left: impl Iterator<Item = (&'r R, u64)>,
    now: Timestamp,
) -> Receipt {
    left.map(|(rules, left)| rules.receipt(left, now))
        .fold(Receipt::NONE, |all, one| with(&all, &one))
}

/// The receipt of a grant by two limits. The time is 0 if neither of them needs it.
#[inline(always)]
const fn with(one: &Receipt, other: &Receipt) -> Receipt {
    Receipt::dated(
        one.note().wrapping_add(other.note()),
        one.time() | other.time(),
    )
}

/// The methods for one limit. `$of` evaluates an expression with the rules of that limit. If there
/// is no such limit, it returns the default.
macro_rules! for_one_limit {
    ($of:ident $($places:tt)*) => {
        #[inline]
        fn leads(&self, limit: usize) -> u8 {
            $of!([$($places)*] self, limit, 0, rules => rules.leads())
        }

        #[inline]
        fn judge_one(&self, limit: usize, state: u64, now: Timestamp, n: u32) -> Verdict {
            $of!(
                [$($places)*] self, limit, Verdict::Allowed,
                rules => rules.judge_at(state, now, n)
            )
        }

        #[inline]
        fn undo(&self, limit: usize, state: u64, now: Timestamp, n: u32, left: u64) -> Option<u64> {
            $of!(
                [$($places)*] self, limit, None,
                rules => rules.undo(state, now, n, left)
            )
        }

        #[inline]
        fn fresh(&self, limit: usize, now: Timestamp) -> u64 {
            $of!([$($places)*] self, limit, 0, rules => rules.fresh(now))
        }

        #[inline]
        fn is_forgettable(
            &self,
            limit: usize,
            state: u64,
            now: Timestamp,
            since: Timestamp,
        ) -> bool {
            $of!(
                [$($places)*] self, limit, true,
                rules => rules.is_forgettable_among(state, now, since)
            )
        }

        #[inline]
        fn has_rested(
            &self,
            limit: usize,
            state: u64,
            settled_at: Option<Timestamp>,
            now: Timestamp,
            since: Timestamp,
        ) -> bool {
            $of!(
                [$($places)*] self, limit, false,
                rules => has_rested(rules, state, settled_at, now, since)
            )
        }

        #[inline]
        fn rested(&self, limit: usize, now: Timestamp, since: Timestamp) -> u64 {
            $of!(
                [$($places)*] self, limit, 0,
                rules => rules.rested(now, since)
            )
        }

        #[inline]
        fn readable_for(&self, limit: usize) -> u64 {
            $of!(
                [$($places)*] self, limit, u64::MAX,
                rules => rules.readable_for()
            )
        }
    };
}

macro_rules! of_slice {
    ([] $list:ident, $limit:ident, $default:expr, $rules:ident => $do:expr) => {
        match $list.as_slice().get($limit) {
            Some($rules) => $do,
            None => $default,
        }
    };
}

macro_rules! of_options {
    ([] $list:ident, $limit:ident, $default:expr, $rules:ident => $do:expr) => {
        match $list.rules.get($limit) {
            Some(Some($rules)) => $do,
            _ => $default,
        }
    };
}

macro_rules! of_tuple {
    ([$($index:tt)+] $list:ident, $limit:ident, $default:expr, $rules:ident => $do:expr) => {
        match $limit {
            $($index => {
                let $rules = &$list.$index;
                $do
            })+
            _ => $default,
        }
    };
}

macro_rules! tuple {
    ($count:literal: $($index:tt $rules:ident $slot:ident),+) => {
        impl<$($rules: KeyedRules),+> List for ($($rules,)+) {
            type States = [u64; $count];
            const NO_STATES: Self::States = [0; $count];

            #[inline(always)]
            fn wraps() -> bool {
                $($rules::wraps())||+
            }

            #[inline(always)]
            fn count(&self) -> usize {
                $count
            }

            #[inline]
            fn get(&self, limit: usize) -> Option<&dyn Rules> {
                match limit {
                    $($index => Some(&self.$index),)+
                    _ => None,
                }
            }

            for_one_limit!(of_tuple $($index)+);

            #[inline(always)]
            fn is_led_by_first(&self) -> bool {
                self.0.leads() == BEST
            }

            #[inline(always)]
            fn releases(&self) -> bool {
                $(self.$index.releases())||+
            }

            #[inline(always)]
            fn judge(
                &self,
                [$($slot),+]: Self::States,
                low: u64,
                now: Timestamp,
                n: u32,
            ) -> Result<Self::States, DeniedBy> {
                Ok([$(left_by(&self.$index, $index, ($slot, low), now, n)?),+])
            }

            #[inline(always)]
            fn judge_within(
                &self,
                [$($slot),+]: Self::States,
                interval: Interval,
                n: u32,
            ) -> Option<Result<Self::States, DeniedBy>> {
                Some(Ok([$(match left_within(&self.$index, $index, $slot, interval, n)? {
                    Ok(left) => left,
                    Err(by) => return Some(Err(by)),
                }),+]))
            }

            #[inline(always)]
            fn receipt(&self, [$($slot),+]: Self::States, now: Timestamp) -> Receipt {
                let receipt = Receipt::NONE;
                $(let receipt = with(&receipt, &self.$index.receipt($slot, now));)+
                receipt
            }
        }
    };
}

tuple!(1: 0 A a);
tuple!(2: 0 A a, 1 B b);
tuple!(3: 0 A a, 1 B b, 2 C c);
tuple!(4: 0 A a, 1 B b, 2 C c, 3 D d);
tuple!(5: 0 A a, 1 B b, 2 C c, 3 D d, 4 E e);
tuple!(6: 0 A a, 1 B b, 2 C c, 3 D d, 4 E e, 5 F f);
tuple!(7: 0 A a, 1 B b, 2 C c, 3 D d, 4 E e, 5 F f, 6 G g);
tuple!(8: 0 A a, 1 B b, 2 C c, 3 D d, 4 E e, 5 F f, 6 G g, 7 H h);

impl<R: KeyedRules, const N: usize> List for [R; N] {
    type States = [u64; N];
    const NO_STATES: [u64; N] = {
        assert!(N >= 1 && N <= MOST, "a key has 1 to 8 limits");
        [0; N]
    };

    #[inline(always)]
    fn wraps() -> bool {
        R::wraps()
    }

    #[inline(always)]
    fn count(&self) -> usize {
        N
    }

    #[inline]
    fn get(&self, limit: usize) -> Option<&dyn Rules> {
        self.as_slice().get(limit).map(|rules| rules as &dyn Rules)
    }

    for_one_limit!(of_slice);

    #[inline(always)]
    fn is_led_by_first(&self) -> bool {
        self.first().is_some_and(|rules| rules.leads() == BEST)
    }

    #[inline(always)]
    fn releases(&self) -> bool {
        self.iter().any(TableRules::releases)
    }

    #[inline(always)]
    fn judge(
        &self,
        mut slots: [u64; N],
        low: u64,
        now: Timestamp,
        n: u32,
    ) -> Result<[u64; N], DeniedBy> {
        for (index, (rules, slot)) in self.iter().zip(&mut slots).enumerate() {
            *slot = left_by(rules, index, (*slot, low), now, n)?;
        }
        Ok(slots)
    }

    #[inline(always)]
    fn judge_within(
        &self,
        mut states: [u64; N],
        interval: Interval,
        n: u32,
    ) -> Option<Result<[u64; N], DeniedBy>> {
        for (index, (rules, state)) in self.iter().zip(&mut states).enumerate() {
            *state = match left_within(rules, index, *state, interval, n)? {
                Ok(left) => left,
                Err(by) => return Some(Err(by)),
            };
        }
        Some(Ok(states))
    }

    #[inline(always)]
    fn receipt(&self, states: [u64; N], now: Timestamp) -> Receipt {
        receipt_of(self.iter().zip(states), now)
    }
}

/// A list of 1 to 8 rules of any kinds that is built at run time, for example from a configuration
/// file. All such lists have one type.
///
/// ```
/// use portcullis_core::{KeyedList, Rate, Timestamp};
/// use portcullis_core::keyed::{AnyRules, ConcurrencyRules, RulesAtRunTime, TokenBucketRules};
///
/// // As read from a file: 10 per second, 100 per minute, 2 at once.
/// let rules: Vec<AnyRules> = vec![
///     TokenBucketRules::new(Rate::per_second(10), 10).into(),
///     TokenBucketRules::new(Rate::per_minute(100), 100).into(),
///     ConcurrencyRules::new(2).into(),
/// ];
/// let users = KeyedList::for_keys(RulesAtRunTime::new(rules)?, 1_000);
/// let denied = users.key("alice").try_acquire_each_at(Timestamp::ZERO, 3).unwrap_err();
/// assert_eq!(denied.index, 2);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Debug)]
pub struct RulesAtRunTime {
    /// No rules follow a `None`.
    rules: [Option<AnyRules>; MOST],
    count: usize,
}

impl RulesAtRunTime {
    /// Creates a list of `rules`, in their order.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] about [`Setting::Limits`] if there are no rules, or more than 8.
    ///
    /// ```
    /// # use portcullis_core::SettingsError;
    /// # use portcullis_core::builder::Setting;
    /// # use portcullis_core::keyed::{AnyRules, ConcurrencyRules, RulesAtRunTime};
    /// let rules = |count| (0..count).map(|_| AnyRules::from(ConcurrencyRules::new(1)));
    /// assert!(RulesAtRunTime::new(rules(8)).is_ok());
    /// assert_eq!(
    ///     RulesAtRunTime::new(rules(9)).unwrap_err(),
    ///     SettingsError::TooLarge { setting: Setting::Limits, max: 8 }
    /// );
    /// ```
    pub fn new(rules: impl IntoIterator<Item = AnyRules>) -> Result<Self, SettingsError> {
        let mut list = Self {
            rules: [const { None }; MOST],
            count: 0,
        };
        for rules in rules {
            let Some(place) = list.rules.get_mut(list.count) else {
                return Err(SettingsError::TooLarge {
                    setting: Setting::Limits,
                    max: MOST as u64,
                });
            };
            *place = Some(rules);
            list.count += 1;
        }
        if list.count == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Limits,
            });
        }
        Ok(list)
    }

    pub(crate) fn nth(&self, limit: usize) -> Option<&AnyRules> {
        self.rules.get(limit)?.as_ref()
    }

    /// Returns the rules, in order.
    ///
    /// ```
    /// # use portcullis_core::keyed::{AnyRules, ConcurrencyRules, RulesAtRunTime};
    /// let list = RulesAtRunTime::new([ConcurrencyRules::new(1).into()])?;
    /// assert!(matches!(list.iter().next(), Some(AnyRules::Concurrency(_))));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &AnyRules> {
        self.rules.iter().flatten()
    }
}

impl List for RulesAtRunTime {
    type States = [u64; MOST];
    const NO_STATES: [u64; MOST] = [0; MOST];

    #[inline(always)]
    fn wraps() -> bool {
        true
    }
    const CAN_MOVE: bool = true;

    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }

    fn get(&self, limit: usize) -> Option<&dyn Rules> {
        let rules = self.rules.get(limit)?.as_ref()?;
        Some(rules)
    }

    for_one_limit!(of_options);

    fn is_led_by_first(&self) -> bool {
        self.iter()
            .next()
            .is_some_and(|rules| rules.leads() == BEST)
    }

    fn releases(&self) -> bool {
        self.iter().any(TableRules::releases)
    }

    fn judge(
        &self,
        mut slots: [u64; MOST],
        low: u64,
        now: Timestamp,
        n: u32,
    ) -> Result<[u64; MOST], DeniedBy> {
        for (index, (rules, slot)) in self.iter().zip(&mut slots).enumerate() {
            *slot = left_by(rules, index, (*slot, low), now, n)?;
        }
        Ok(slots)
    }

    fn judge_within(
        &self,
        mut states: [u64; MOST],
        interval: Interval,
        n: u32,
    ) -> Option<Result<[u64; MOST], DeniedBy>> {
        for (index, (rules, state)) in self.iter().zip(&mut states).enumerate() {
            *state = match left_within(rules, index, *state, interval, n)? {
                Ok(left) => left,
                Err(by) => return Some(Err(by)),
            };
        }
        Some(Ok(states))
    }

    fn receipt(&self, states: [u64; MOST], now: Timestamp) -> Receipt {
        receipt_of(self.iter().zip(states), now)
    }
}
