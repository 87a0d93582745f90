//! Refunds and charges of the limits of a key, for a caller that takes an estimate and later learns
//! the true number of permits. What a refund of a bucket is worth: see
//! [`settling`](crate::keyed::settling).
//!
//! Transitions of an entry, in addition to those of [`keyed_list`](super):
//!
//! ```text
//! refund   exchange the word of one limit, if it is still held by the key
//! charge   exchange the words of all limits that have permits, the lead last, as a take does. If a
//!          word is not held by the key any more: undo the exchanges, and look for the entry again
//! ```
//!
//! Why a claim for another key does not forget a charge:
//!
//! - A claim exchanges the lead only if the lead is still the word that it read before it found all
//!   words free. A charge exchanges the lead last, so one of the two exchanges fails.
//! - A charge that takes nothing from the lead leaves it as it is: the lead has no permits left,
//!   and may owe no more. Then it is in use, and no claim is made.
//!
//! A refund moves a word to a state in which less is in use. It does not bring back the word that a
//! claim has read. That word was free: a bucket had been full since before any instant that a call
//! may still pass, and a window had ended. A refund leaves a bucket that has been full since the
//! refund at the earliest, and a window that has not ended.

use core::hash::BuildHasher;
use core::mem;

use crate::keyed::keyed_list::KeyedList;
use crate::keyed::line::{self, Address, Found, Line, Words};
use crate::keyed::rule_list::sealed::Rules;
use crate::keyed::rule_list::{MOST, RuleList};
use crate::keyed::settling::{RefundTime, Refunds, RefundsBefore};
use crate::keyed::table::ATTEMPTS;
use crate::limiter::receipt::Receipt;
use crate::time::timestamp::Timestamp;

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> KeyedList<L, M, S> {
    /// Refunds `n` permits of a grant to the limit with index `limit` of the key at `address`.
    /// `receipt` is that of the limit: see
    /// [`try_acquire_each_noted_at`](crate::keyed::TableKey::try_acquire_each_noted_at). Returns
    /// how many permits count as never taken: all or none. The others come back by time alone.
    ///
    /// A window refunds them if it still counts the grant. A token bucket does if no other request
    /// was decided on it in the meantime: see also [`refund_counted_at`](Self::refund_counted_at).
    /// Permits of a concurrency limit return by release, so 0 of them are refunded.
    ///
    /// # Cost
    ///
    /// One compare-exchange. Lock-free.
    ///
    /// ```
    /// use portcullis_core::{KeyedList, Limiter, Rate, Timestamp};
    /// use portcullis_core::keyed::TokenBucketRules;
    ///
    /// let rules = [5, 9].map(|burst| TokenBucketRules::new(Rate::per_second(1), burst));
    /// let users = KeyedList::for_keys(rules, 100);
    /// let (alice, now) = (users.key("alice"), Timestamp::from_secs(9));
    /// let (_, [first, ..]) = alice.try_acquire_each_noted_at(now, 4)?;
    /// assert_eq!(users.refund_limit_at(alice.address(), 0, now, 3, first), 3);
    /// let left = alice.explain_each_at(now, 1).map(|detail| detail.available);
    /// assert!(left.eq([4, 5]));
    /// # Ok::<(), portcullis_core::composition::DeniedBy>(())
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "a grant is refunded once")]
    pub fn refund_limit_at(
        &self,
        address: Address,
        limit: usize,
        now: Timestamp,
        n: u32,
        receipt: Receipt,
    ) -> u32 {
        let refunded = self.update(&address, limit, now, |rules, state| {
            rules.refund(state, now, n, &receipt)
        });
        if refunded { n } else { 0 }
    }

    /// Refunds `n` permits of a grant to the limit with index `limit` of the key at `address`, as
    /// far as they are worth something. A token bucket also refunds a take that other takes have
    /// followed: see [`Keyed::refund_counted_at`](crate::Keyed::refund_counted_at), also for
    /// `time`, `refunds` and `before`. Other limits refund as
    /// [`refund_limit_at`](Self::refund_limit_at) does. Returns how many permits count as never
    /// taken.
    ///
    /// All refunds of a key and a limit by this method must be counted by the same `refunds`, and
    /// those of two limits by two of them. Refund the grants of a key by this method, or by their
    /// leases, but not some by one and some by the other.
    ///
    /// # Cost
    ///
    /// Two additions to `refunds`, one compare-exchange, and a division. Lock-free.
    ///
    /// ```
    /// use portcullis_core::{KeyedList, Rate, Timestamp};
    /// use portcullis_core::keyed::{Refunds, TokenBucketRules};
    ///
    /// let rules = [50, 100].map(|burst| TokenBucketRules::new(Rate::per_second(1), burst));
    /// let users = KeyedList::for_keys(rules, 100);
    /// let (alice, refunds, now) = (users.key("alice"), Refunds::new(), Timestamp::from_secs(9));
    /// let before = refunds.before_take();
    /// let (_, [_, second, ..]) = alice.try_acquire_each_noted_at(now, 30)?;
    /// // Another take follows.
    /// let _ = alice.try_acquire_each_at(now, 10)?;
    /// let address = alice.address();
    /// assert_eq!(users.refund_counted_at(address, 1, now, 20, second, &refunds, before), 20);
    /// let left = alice.explain_each_at(now, 1).map(|detail| detail.available);
    /// assert!(left.eq([10, 80]));
    /// # Ok::<(), portcullis_core::composition::DeniedBy>(())
    /// ```
    #[expect(
        clippy::too_many_arguments,
        clippy::needless_pass_by_value,
        reason = "those of `Keyed::refund_counted_at`, and the limit; a grant is refunded once"
    )]
    pub fn refund_counted_at(
        &self,
        address: Address,
        limit: usize,
        time: impl RefundTime,
        n: u32,
        receipt: Receipt,
        refunds: &Refunds,
        before: RefundsBefore,
    ) -> u32 {
        let mut worth = 0;
        refunds.begin(n);
        let refunded = self.update(&address, limit, time.present(), |rules, state| {
            let others = refunds.since(before, n);
            let times = time.times(self.staleness());
            let (restored, permits) = rules.refund_among(state, times, n, &receipt, others)?;
            worth = permits;
            Some(restored)
        });
        let worth = if refunded { worth } else { 0 };
        refunds.end(n, worth);
        worth
    }

    /// Takes `n` permits of each limit of the key at `address`, and of a limit with fewer permits
    /// those that it has. A token bucket also owes as many as its declared
    /// [debt](crate::builder::TokenBucketBuilder::debt) allows, and at most the number in `owing`
    /// with the index of the limit, if there is one: see [`charge_at`](crate::Keyed::charge_at).
    /// Permits of concurrency limits are not taken. Returns how many were taken of each limit, in
    /// order; `n` for a concurrency limit. Zeros follow the last limit.
    ///
    /// All are zeros if the key finds no entry.
    ///
    /// **Bound.** That of each limit. Any span of time `t` admits at most `burst + debt + rate * t`
    /// permits of a token bucket.
    ///
    /// # Cost
    ///
    /// One compare-exchange and a division for each limit. Lock-free.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_core::{KeyedList, Rate, Timestamp, TokenBucket};
    /// use portcullis_core::keyed::FixedWindowRules;
    ///
    /// let bucket = TokenBucket::builder(Rate::per_second(1), 10).debt(5).rules()?;
    /// let window = FixedWindowRules::new(20, Duration::from_secs(60));
    /// let users = KeyedList::for_keys((bucket, window), 100);
    /// let (alice, now) = (users.key("alice"), Timestamp::from_secs(9));
    /// assert_eq!(users.charge_each_at(alice.address(), now, 12, &[1])[..2], [11, 12]);
    /// assert_eq!(users.charge_each_at(alice.address(), now, 12, &[])[..2], [4, 8]);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn charge_each_at(
        &self,
        address: Address,
        now: Timestamp,
        n: u32,
        owing: &[u64],
    ) -> [u32; MOST] {
        let mut charged = [0; MOST];
        if n == 0 {
            return charged;
        }
        let mut first = 0;
        for _ in 0..ATTEMPTS {
            let width = self.width();
            match address.search(self.table.lines(), width) {
                Found::Held(entry, _) => {
                    self.settle_at(entry.at, now);
                    let words = line::words(self.table.lines(), entry.at, width);
                    if let Some(more) =
                        self.charge_in(words, address.tag(), (now, n - first), owing)
                    {
                        charged = more;
                        break;
                    }
                }
                Found::Claimed => core::hint::spin_loop(),
                // A fresh limit has a permit, so this denies only if the key finds no entry, or if
                // another call has charged the key in the meantime.
                Found::Nothing if first == 0 => {
                    if let Ok(left) = self.take_each(&address, now, 1, ()) {
                        self.release(&address, 1);
                        // A take that leaves limits fresh has taken from none, and needs no entry:
                        // none of them has a limit.
                        let has_limit = left.as_ref() != self.fresh(now).as_ref();
                        first = if has_limit { 1 } else { n };
                    }
                }
                Found::Nothing => {}
            }
            if first == n {
                break;
            }
        }
        for permits in charged.iter_mut().take(self.rules.count()) {
            *permits += first;
        }
        charged
    }

    /// Charges an entry of a key. `None`, with nothing charged, if the key does not hold it.
    fn charge_in(
        &self,
        words: Words<'_>,
        tag: u64,
        (now, n): (Timestamp, u32),
        owing: &[u64],
    ) -> Option<[u32; MOST]> {
        let mut charges = Charges {
            list: self,
            words,
            tag,
            now,
            charged: [None; MOST],
        };
        for limit in self.order() {
            let rules = self.rules.get(limit)?;
            let word = self.word(words, limit)?;
            let owing = owing.get(limit).copied().unwrap_or(u64::MAX);
            let charged = loop {
                let held = word.held_as(tag)?;
                let (left, permits) = rules.charge(held.state(), now, n, owing);
                if left == held.state() || word.change(held, left).is_ok() {
                    break (left, permits);
                }
            };
            *charges.charged.get_mut(limit)? = Some(charged);
        }
        let charged = charges
            .charged
            .map(|charged| charged.map_or(0, |(_, permits)| permits));
        mem::forget(charges);
        Some(charged)
    }

    /// Changes the state of one limit of a key with `change`, until that succeeds. Returns `false`
    /// if the permits of the limit return by release, if the key has no entry, or if `change`
    /// returns `None`.
    fn update(
        &self,
        address: &Address,
        limit: usize,
        now: Timestamp,
        mut change: impl FnMut(&dyn Rules, u64) -> Option<u64>,
    ) -> bool {
        let Some(words) = self.find_to_change(address, now) else {
            return false;
        };
        let rules = self.rules.get(limit).filter(|rules| !rules.releases());
        let (Some(rules), Some(word)) = (rules, self.word(words, limit)) else {
            return false;
        };
        while let Some(held) = word.held_as(address.tag()) {
            match change(rules, held.state()) {
                None => return false,
                Some(state) if word.change(held, state).is_ok() => return true,
                Some(_) => {}
            }
        }
        false
    }
}

/// A charge that is undone on drop, if the key has lost its entry.
struct Charges<'t, L: RuleList, M: AsRef<[Line]>, S: BuildHasher> {
    list: &'t KeyedList<L, M, S>,
    words: Words<'t>,
    tag: u64,
    now: Timestamp,
    /// For each limit, the state that the charge left in it, and the permits that it took.
    charged: [Option<(u64, u32)>; MOST],
}

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> Drop for Charges<'_, L, M, S> {
    #[cold]
    fn drop(&mut self) {
        for (limit, charged) in self.charged.into_iter().enumerate() {
            if let Some((left, permits @ 1..)) = charged {
                self.list
                    .undo_one(self.words, limit, self.tag, (self.now, permits, left));
            }
        }
    }
}
