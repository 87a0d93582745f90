//! State: one word, `used`: the position up to which the permits gained so far are used up.
//!
//! ```text
//! a lattice that wraps in the word: 1 tick = gain units, 1 permit = cost units, gain / cost = rate
//!
//!        used                  position = ticks(now) * gain
//!   ------|------------------------|------>        available = (position - used) / cost
//!         |<---- at most full ---->|               full      = burst * cost
//! ```
//!
//! Invariant: unless the bucket is in debt, `used` is at most the position of the newest `now`. A
//! take of `n` permits at `now` adds `n * cost` to `used`, or to the position of `now` minus `full`
//! if `used` is further back. A take that may owe does the same, and needs only that `used` is not
//! ahead of the position before it, and at most the declared debt ahead after it.
//!
//! The distance from `used` to the position, wrapped in the word, decides every request. It falls
//! into one of three zones:
//!
//! ```text
//! 0 ........... full | full+1 ............... behind-1 | behind ............. 2^bits-1
//!  the distance is   |  idle for longer than the time  |  `now` is older than the newest,
//!  available         |  to fill: full                  |  or in debt: nothing available
//! ```
//!
//! This takes one multiplication and no rounding: `gain` and `cost` are the configured rate in
//! lowest terms. So the bucket agrees with a continuous bucket in rational arithmetic on every
//! decision. A stepwise bucket is the same lattice with a tick as long as the period.

use core::time::Duration;

use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::receipt::Receipt;
use crate::limiters::bucket_settings::BucketSettings;
use crate::limiters::lattice::{Lattice, Terms, used_after, used_after_in_table};
use crate::limiters::token_bucket::TokenBucket;
use crate::newer::cold_path;
use crate::rules::{Moved, TableRules, Verdict, WordRules};
use crate::time::grid::Grid;
use crate::time::rate::Rate;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::settings::{SettingsError, gcd};
use crate::word::{KeyedWord, NativeWord, STATE_AT, Word, narrow};

/// The rules of a [`TokenBucket`], without its state word.
///
/// A [`Keyed`](crate::Keyed) table applies the rules to one word per key. Rules alone hold no
/// permits.
///
/// Created by [`new`](Self::new), or with all settings by
/// [`TokenBucketBuilder::rules`](crate::builder::TokenBucketBuilder::rules). The default word is
/// [`KeyedWord`]: the bits that a table's slot has for a state.
///
/// ```
/// use portcullis_core::{Keyed, Rate, Timestamp};
/// use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
///
/// static USERS: Keyed<TokenBucketRules, [Line; 64]> = Keyed::new(
///     TokenBucketRules::new(Rate::per_second(10), 2),
///     [const { Line::new() }; 64],
///     Seed::new(),
/// );
///
/// let now = Timestamp::from_secs(9);
/// assert!(USERS.key("alice").try_acquire_at(now, 2).is_ok());
/// assert!(USERS.key("alice").try_acquire_at(now, 1).is_err());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokenBucketRules<W: Word = KeyedWord> {
    gain: W,
    cost: W,
    full: W,
    debt: W,
    behind: W,
    burst: W,
    ticks: Grid,
}

impl TokenBucketRules {
    /// Returns the rules of buckets that gain permits at `rate` and hold at most `burst` permits
    /// (at least 1).
    ///
    /// # Panics
    ///
    /// If [`TokenBucketBuilder::rules`](crate::builder::TokenBucketBuilder::rules) would return an
    /// error. In a constant or a static, this is a compile error.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_core::keyed::TokenBucketRules;
    /// const RULES: TokenBucketRules = TokenBucketRules::new(Rate::per_second(10), 2);
    /// assert_eq!(RULES.burst(), 2);
    /// ```
    #[must_use]
    pub const fn new(rate: Rate, burst: u64) -> Self {
        match TokenBucket::builder(rate, burst).rules() {
            Ok(rules) => rules,
            Err(error) => error.refuse(),
        }
    }
}

impl<W: Word> TokenBucketRules<W> {
    /// Rules on a lattice that fits the word.
    pub(super) const fn on(lattice: &Lattice, ticks: Grid) -> Self {
        Self {
            gain: narrow(lattice.gain),
            cost: narrow(lattice.cost),
            full: narrow(lattice.full),
            debt: narrow(lattice.debt),
            behind: narrow(lattice.behind),
            burst: narrow(lattice.burst),
            ticks,
        }
    }

    /// Returns the time in which an empty bucket fills, in whole ticks, rounded up; `None` if it
    /// never does, because the rate is zero. Divides.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// # use portcullis_core::keyed::TokenBucketRules;
    /// let rules: TokenBucketRules = TokenBucketRules::new(Rate::per_second(10), 3);
    /// assert_eq!(rules.time_to_fill(), Some(Duration::from_millis(300)));
    /// ```
    pub fn time_to_fill(&self) -> Option<Duration> {
        self.lattice().time_to_fill(&self.ticks)
    }

    /// Returns the rate at which a bucket gains permits. See [`TokenBucket::rate`].
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_core::keyed::TokenBucketRules;
    /// let rules = TokenBucketRules::new(Rate::per_second(5), 10);
    /// assert_eq!(rules.rate(), Rate::per_second(5));
    /// ```
    pub fn rate(&self) -> Rate {
        self.lattice().rate(self.ticks.step())
    }

    /// Returns the most permits that a bucket holds. At an unlimited rate, this is the most that
    /// the word can count.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_core::keyed::TokenBucketRules;
    /// assert_eq!(TokenBucketRules::new(Rate::per_second(5), 10).burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.burst.into()
    }

    /// Returns the most permits that a bucket may owe: see
    /// [`TokenBucketBuilder::debt`](crate::builder::TokenBucketBuilder::debt).
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// let rules = TokenBucket::builder(Rate::per_second(5), 10).debt(3).rules()?;
    /// assert_eq!(rules.debt(), 3);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn debt(&self) -> u64 {
        self.most_owed()
    }

    /// Returns how a limiter with these rules counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, TokenBucket};
    /// let rules = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .tick(Duration::from_millis(1))
    ///     .rules()?;
    /// assert_eq!(rules.timing().tick, Duration::from_millis(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn timing(&self) -> Timing {
        let staleness = self.span(self.lattice().staleness());
        Timing::on(&self.ticks, staleness, self.span(W::MASK))
    }

    /// The rules with the same settings in a table's slot. A tick or a staleness that is the
    /// default of this word was not set, so the slot's default replaces it.
    pub(super) fn in_a_table(&self) -> Result<TokenBucketRules, SettingsError> {
        const LONGEST: Duration = Duration::from_nanos(u64::MAX / 2);
        let (own, step) = (self.lattice(), self.ticks.step());
        let tick = Some(Duration::from_nanos(step));
        let mut terms = Terms {
            debt: own.debt.checked_div(own.cost).unwrap_or(0),
            ..BucketSettings::new(self.exact_rate(), own.burst).terms
        };
        let as_by_default = Terms { tick, ..terms }.lattice(W::BITS);
        if !matches!(as_by_default, Ok((lattice, _)) if lattice.behind == own.behind) {
            // Rounded up to whole ticks, it may exceed the longest staleness.
            terms.staleness = Some(self.timing().staleness.min(LONGEST));
        }
        if !matches!(terms.lattice(W::BITS), Ok((_, default)) if default == step) {
            terms.tick = tick;
        }
        let (lattice, step) = terms.lattice(KeyedWord::BITS)?;
        Ok(TokenBucketRules::on(
            &lattice,
            Grid::new(self.ticks.origin(), step),
        ))
    }

    /// The configured rate, per second if a second has a whole number of permits.
    fn exact_rate(&self) -> Rate {
        const SECOND: u128 = 1_000_000_000;
        let (gain, cost): (u64, u64) = (self.gain.into(), self.cost.into());
        if cost == 0 {
            return Rate::UNLIMITED;
        }
        let period = u128::from(cost) * u128::from(self.ticks.step());
        let divisor = u128::from(gcd(period, gain));
        let (permits, period) = (u128::from(gain) / divisor, period / divisor);
        // A divisor of the numbers that the rate was built from, which are a `u32` and a `u64`.
        let in_lowest_terms = Rate::new(permits as u32, Duration::from_nanos(period as u64));
        match u32::try_from(permits * (SECOND / period)) {
            Ok(permits) if SECOND % period == 0 => Rate::per_second(permits),
            _ => in_lowest_terms,
        }
    }

    /// The time in which the position moves by `units`.
    fn span(&self, units: u64) -> Duration {
        match units.checked_div(self.gain.into()) {
            Some(ticks) => saturating_duration(u128::from(ticks) * u128::from(self.ticks.step())),
            None => Duration::MAX,
        }
    }

    #[inline(always)]
    fn lattice(&self) -> Lattice {
        Lattice {
            gain: self.gain.into(),
            cost: self.cost.into(),
            full: self.full.into(),
            debt: self.debt.into(),
            behind: self.behind.into(),
            burst: self.burst.into(),
            mask: W::MASK,
        }
    }

    #[inline(always)]
    fn position(&self, now: Timestamp) -> u64 {
        self.lattice().position(self.ticks.index(now))
    }

    /// As [`judge`](WordRules::judge), but may leave up to the declared debt.
    pub(super) fn force(&self, used: u64, now: Timestamp, n: u32) -> Verdict {
        let lattice = self.lattice();
        let most = lattice.burst.saturating_add(lattice.most_owed());
        if u64::from(n) > most {
            return Verdict::Denied(Denied::exceeding(n, most));
        }
        if n == 0 || lattice.is_unlimited() {
            return Verdict::Allowed;
        }
        match lattice.forced(self.position(now), used, n) {
            Some((left, _)) => Verdict::Granted(left),
            None => Verdict::Denied(Denied::Exhausted { now, permits: n }),
        }
    }

    /// The most permits that a bucket may owe.
    pub(super) fn most_owed(&self) -> u64 {
        self.lattice().most_owed()
    }

    /// The permits owed at `now`, rounded up to whole ones.
    pub(super) fn owed(&self, used: u64, now: Timestamp) -> u64 {
        let lattice = self.lattice();
        // No take is due at a whole tick, so nothing is rounded up to one.
        lattice
            .owed(self.position(now), used)
            .min(lattice.most_owed())
    }

    /// The units of `n` permits, if a take that may leave a debt can be granted so many. A request
    /// for no permits is judged as one for 1.
    pub(super) fn price_with_debt(&self, n: u32) -> Result<u64, Denied> {
        let lattice = self.lattice();
        u64::from(n.max(1))
            .checked_mul(lattice.cost)
            .filter(|&price| price <= lattice.full + lattice.debt)
            .ok_or_else(|| self.exceeding_with_debt(n))
    }

    /// The denial of more permits than burst and debt together. Divides, so it is kept apart.
    #[cold]
    #[inline(never)]
    fn exceeding_with_debt(&self, n: u32) -> Denied {
        let lattice = self.lattice();
        let debt = lattice.debt.checked_div(lattice.cost).unwrap_or(0);
        Denied::exceeding(n, lattice.burst.saturating_add(debt))
    }

    /// As [`judge`](WordRules::judge), but if nothing is owed, may leave up to the declared debt.
    #[inline(always)]
    pub(super) fn owe(&self, used: u64, now: Timestamp, n: u32, price: u64) -> Verdict {
        match self.lattice().owing(self.position(now), used, price) {
            None => Verdict::Denied(Denied::Exhausted { now, permits: n }),
            Some(left) if n > 0 && price > 0 => Verdict::Granted(left),
            Some(_) => Verdict::Allowed,
        }
    }

    /// As [`retry`](WordRules::retry), for a take that may leave a debt.
    pub(super) fn retry_owing(&self, used: u64, denied: Denied) -> Retry {
        self.lattice().retry_owing(&self.ticks, used, denied)
    }

    /// The state after `n` permits of a grant are refunded, as far as they are worth something, and
    /// how many are: see [`settling`](crate::keyed::settling). `now` is the time of the refund, and
    /// `latest` the latest `now` that another call may have used. Other refunds since the grant
    /// have returned at most `others` permits.
    //
    // Inlined, so that a settlement does not pay for the refunds by a clock, which are seldom.
    #[inline(always)]
    pub(crate) fn refund_among(
        &self,
        used: u64,
        (now, latest): (Timestamp, Timestamp),
        n: u32,
        receipt: &Receipt,
        others: u64,
    ) -> Option<(u64, u32)> {
        let lattice = self.lattice();
        if lattice.is_unlimited() {
            return Some((used, n));
        }
        if others == 0 {
            if let Some(restored) = self.refund(used, now, n, receipt) {
                return Some((restored, n));
            }
        }
        let (tick, taken_in) = (
            self.ticks.index(latest),
            self.ticks.index(Timestamp::from_nanos(receipt.time())),
        );
        if lattice.is_outlived(taken_in, tick) {
            return None;
        }
        let level = lattice.position(taken_in).wrapping_sub(receipt.note()) & lattice.mask;
        let passed = u128::from(tick.saturating_sub(taken_in)) * u128::from(lattice.gain);
        let others = u128::from(others) * u128::from(lattice.cost);
        let lack = u128::from(lattice.full).saturating_sub(passed + u128::from(level) + others);
        let worth = (lack as u64 / lattice.cost).min(n.into()) as u32;
        (worth > 0).then(|| {
            let position = self.position(now);
            (lattice.restored(position, used, worth), worth)
        })
    }

    /// The state after up to `n` permits are taken, as many as the declared debt allows if no more
    /// than `owing` are owed, and how many.
    pub(crate) fn charged(&self, used: u64, now: Timestamp, n: u32, owing: u64) -> (u64, u32) {
        let lattice = self.lattice();
        let balance = lattice.balance(self.position(now), used);
        let debt = lattice.debt.min(owing.saturating_mul(lattice.cost));
        let room = balance.available + debt.saturating_sub(balance.owed);
        let Some(most) = room.checked_div(lattice.cost) else {
            return (used, n);
        };
        let permits = most.min(n.into()) as u32;
        let price = u64::from(permits) * lattice.cost;
        (balance.from.wrapping_add(price) & lattice.mask, permits)
    }

    /// Turns any number into a state that such a bucket could have written.
    pub(super) fn fitting(&self, word: u64) -> u64 {
        // An unlimited bucket has only one state.
        if self.lattice().is_unlimited() {
            0
        } else {
            word & W::MASK
        }
    }
}

/// A request, and the values computed from it that do not depend on the state.
#[derive(Clone, Copy, Debug)]
pub struct BucketRequest {
    now: Timestamp,
    n: u32,
    position: u64,
    /// 0 for a probe, or at an unlimited rate.
    price: u64,
}

impl<W: Word> WordRules for TokenBucketRules<W> {
    type Word = W;
    type Request = BucketRequest;

    #[inline(always)]
    fn request(&self, now: Timestamp, n: u32) -> Result<BucketRequest, Denied> {
        if u64::from(n) > self.burst() {
            return Err(Denied::exceeding(n, self.burst()));
        }
        let price = u64::from(n) * self.cost.into();
        Ok(BucketRequest {
            now,
            n,
            price,
            position: self.position(now),
        })
    }

    #[inline(always)]
    fn judge(&self, used: u64, request: BucketRequest) -> Verdict {
        let BucketRequest {
            now,
            n,
            position,
            price,
        } = request;
        let denied = Verdict::Denied(Denied::Exhausted { now, permits: n });
        if price == 0 {
            cold_path();
            let enough = self.lattice().judge(position, used) >= self.cost.into();
            return if enough { Verdict::Allowed } else { denied };
        }
        let (full, behind) = (self.full.into(), || self.behind.into());
        let left = if W::IN_A_TABLE {
            used_after_in_table(position, used, price, full, W::MASK, behind())
        } else {
            used_after(position, used, price, full, W::MASK, behind)
        };
        match left {
            Some(left) => Verdict::Granted(left),
            None => denied,
        }
    }

    #[inline(always)]
    fn receipt(&self, left: u64, now: Timestamp) -> Receipt {
        Receipt::dated(left, now.as_nanos())
    }

    /// Refunds all `n` permits if the bucket is as the take left it; otherwise none.
    #[inline]
    fn refund(&self, used: u64, now: Timestamp, n: u32, receipt: &Receipt) -> Option<u64> {
        let (lattice, tick) = (self.lattice(), self.ticks.index(now));
        let taken_in = self.ticks.index(Timestamp::from_nanos(receipt.time()));
        if used != receipt.note() || lattice.is_outlived(taken_in, tick) {
            return None;
        }
        Some(lattice.restored(lattice.position(tick), used, n))
    }

    #[inline(always)]
    fn rest(&self, left: u64, receipt: Receipt) -> Receipt {
        Receipt::dated(left, receipt.time())
    }

    fn capacity(&self) -> u64 {
        self.burst()
    }

    fn available(&self, used: u64, now: Timestamp) -> u64 {
        self.lattice().available(self.position(now), used)
    }

    fn idle(&self, used: u64, now: Timestamp) -> Idle {
        self.lattice().idle(&self.ticks, used, now)
    }

    fn retry(&self, used: u64, denied: Denied) -> Retry {
        self.lattice().retry(&self.ticks, used, denied)
    }

    fn detail(&self, used: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        self.lattice().detail(&self.ticks, used, now, decision)
    }
}

impl<W: Word> TableRules for TokenBucketRules<W> {
    #[inline(always)]
    fn is_unlimited(&self) -> bool {
        self.lattice().is_unlimited()
    }

    /// Moves the settings to the place of the state in the slot, which does not wait for the state.
    #[inline(always)]
    fn judge_in_slot(&self, slot: u64, low: u64, request: BucketRequest) -> Verdict {
        let BucketRequest {
            now,
            n,
            position,
            price,
        } = request;
        if price == 0 {
            cold_path();
            return self.judge(slot >> STATE_AT, request);
        }
        let placed = |units: u64| units << STATE_AT;
        let left = used_after_in_table(
            placed(position) | low,
            slot,
            placed(price),
            placed(self.full.into()),
            NativeWord::MASK,
            placed(self.behind.into()),
        );
        match left {
            Some(left) => Verdict::Granted(left),
            None => Verdict::Denied(Denied::Exhausted { now, permits: n }),
        }
    }

    fn fresh(&self, now: Timestamp) -> u64 {
        self.position(now).wrapping_sub(self.full.into()) & W::MASK
    }

    fn is_forgettable(&self, used: u64, now: Timestamp, since: Timestamp) -> bool {
        let lattice = self.lattice();
        lattice.is_full_since(&self.ticks, used, now, since, 0)
    }

    /// If the bucket is just full at a take, the take begins at `used`, and its refund ends there.
    /// If it has been full for longer, both are ahead of `used`.
    fn is_forgettable_among(&self, used: u64, now: Timestamp, since: Timestamp) -> bool {
        let lattice = self.lattice();
        lattice.is_full_since(&self.ticks, used, now, since, 1)
    }

    #[inline(always)]
    fn rested(&self, now: Timestamp, since: Timestamp) -> u64 {
        let lattice = self.lattice();
        if lattice.is_unlimited() {
            return self.fresh(now);
        }
        let beyond = lattice.passed(&self.ticks, now, since).saturating_add(1);
        self.fresh(now).wrapping_sub(beyond) & W::MASK
    }

    fn readable_for(&self) -> u64 {
        self.lattice().readable_for(&self.ticks)
    }

    fn has_rested(&self, used: u64, clock: Timestamp, now: Timestamp, since: Timestamp) -> bool {
        let lattice = self.lattice();
        lattice.has_rested(&self.ticks, used, clock, (now, since))
    }

    fn moved(&self, before: &Self, used: u64, now: Timestamp) -> u64 {
        let (old, new) = (before.lattice(), self.lattice());
        if old.is_unlimited() || new.is_unlimited() {
            return self.fresh(now);
        }
        let tick = before.ticks.index(now);
        let balance = old.balance(old.position(tick), used);
        if balance.available == old.full {
            // A key whose bucket is full may be forgotten, too. Either way it has all permits, also
            // in the middle of a long tick of the new bucket.
            return self.fresh(now);
        }
        // A bucket that owes more than it may was written at a newer time: at the first tick at
        // which it owes only the debt, or later. Or the move before has rounded up what it owes.
        let ahead = balance.owed.saturating_sub(old.debt);
        let ticks = ahead.div_ceil(old.gain.max(1));
        let all_in_use = u128::from(old.full - balance.available) + u128::from(balance.owed);
        let (settled, in_use) = match before.ticks.start(tick.saturating_add(ticks)) {
            // The last of these ticks may bring more than what is ahead.
            Some(settled) => {
                let gained = u128::from(ticks) * u128::from(old.gain);
                (settled, all_in_use.saturating_sub(gained))
            }
            None => (Timestamp::MAX, all_in_use - u128::from(ahead)),
        };
        let later = self.begun(before, in_use, settled, now);
        if ahead == 0 {
            return later;
        }
        // The one that grants less.
        let sooner = self.begun(before, all_in_use, now, now);
        let position = new.position(self.ticks.index(now));
        let ahead = |used: u64| used.wrapping_sub(position).wrapping_add(new.full) & W::MASK;
        if ahead(later) > ahead(sooner) {
            later
        } else {
            sooner
        }
    }

    fn refund_among(
        &self,
        used: u64,
        times: (Timestamp, Timestamp),
        n: u32,
        receipt: &Receipt,
        others: u64,
    ) -> Option<(u64, u32)> {
        Self::refund_among(self, used, times, n, receipt, others)
    }

    fn charged(&self, used: u64, now: Timestamp, n: u32, owing: u64) -> (u64, u32) {
        Self::charged(self, used, now, n, owing)
    }
}

impl<W: Word> TokenBucketRules<W> {
    /// The state of a bucket of which `in_use` units of the rules `before` are in use or owed at
    /// `settled`.
    fn begun(&self, before: &Self, in_use: u128, settled: Timestamp, now: Timestamp) -> u64 {
        let (old, new) = (before.lattice(), self.lattice());
        // What exceeds the debt is forgotten.
        let most = new.full + new.debt;
        let in_use = (in_use * u128::from(new.cost)).min(u128::from(most) * u128::from(old.cost));
        // What was replenished before `settled` is settled, and the new rate counts from then on.
        // `settled` may be inside a tick: then the new bucket has this much less at the beginning
        // of the tick.
        let (tick, into) = self.ticks.split(settled);
        let passed = u128::from(into) * u128::from(new.gain);
        // Only the sum is rounded up. It is often a whole number when its parts are not: if the
        // rate stays, and one tick divides the other, a bucket loses nothing by further moves.
        let step = self.ticks.step();
        let missing = sum_rounded_up((in_use, old.cost), (passed, step));
        // So far beyond the debt that a word could not tell it from an idle bucket: cut.
        let most = most.saturating_add(new.staleness() / 2);
        let ungained = self.ungained(before, settled, now);
        let missing = missing.max(missing.saturating_add(ungained).min(most));
        let from = new.position(tick).wrapping_sub(new.full);
        from.wrapping_add(missing) & W::MASK
    }

    /// The units that buckets with these rules would gain from `since` to `now`, and those with the
    /// rules `before` did not. 0 if the rate before was no lower.
    fn ungained(&self, before: &Self, since: Timestamp, now: Timestamp) -> u64 {
        let (old, new) = (before.lattice(), self.lattice());
        let passed = u128::from(now.as_nanos().saturating_sub(since.as_nanos()));
        let rate = |of: &Lattice, other: &Self| {
            let other = (u128::from(other.lattice().cost), other.ticks.step());
            product(u128::from(of.gain) * other.0, other.1)
        };
        if passed == 0 || rate(&new, before) <= rate(&old, self) {
            return 0;
        }
        let (gain, cost) = (u128::from(old.gain), u128::from(new.cost));
        // At most what a tick brings: `since` is the beginning of a tick of the old bucket.
        let gained = passed * gain / u128::from(before.ticks.step());
        let gained = gained * cost / u128::from(old.cost.max(1));
        let gains = (passed * u128::from(new.gain)).div_ceil(u128::from(self.ticks.step()));
        u64::try_from(gains.saturating_sub(gained)).unwrap_or(u64::MAX)
    }
}

impl<W: Word> Moved for TokenBucketRules<W> {}

/// Returns a product of 192 bits: its upper bits, and the lowest 64.
#[allow(clippy::cast_possible_truncation, reason = "the halves of the number")]
fn product(a: u128, b: u64) -> (u128, u64) {
    let low = u128::from(a as u64) * u128::from(b);
    ((a >> 64) * u128::from(b) + (low >> 64), low as u64)
}

/// Returns the sum of two quotients, rounded up: wrapping, like the positions of a lattice.
#[allow(clippy::cast_possible_truncation, reason = "positions wrap")]
fn sum_rounded_up((a, by_a): (u128, u64), (b, by_b): (u128, u64)) -> u64 {
    let (by_a, by_b) = (u128::from(by_a.max(1)), u128::from(by_b.max(1)));
    // Each rest is less than its divisor, of which one has at most 63 bits: no overflow.
    let rests = (a % by_a) * by_b + (b % by_b) * by_a;
    (a / by_a + b / by_b + rests.div_ceil(by_a * by_b)) as u64
}
