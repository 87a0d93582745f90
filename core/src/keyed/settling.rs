//! Refunds and charges of a table's token buckets, for a caller that takes an estimate and later
//! learns the true number of permits.
//!
//! [`Limiter::refund_at`](crate::Limiter::refund_at) of a token bucket refunds the last take only.
//! Here a take can be refunded that other takes have followed. What such a refund is worth follows
//! from this rule: for every instant `s`, the permits that were taken before `s` and are refunded
//! after it are no more than the bucket lacked at `s`. Otherwise the bucket would have been full
//! without them at some instant, and they would have been lost.
//!
//! ```text
//!        used                          P(now)
//!   ------|------------------------------|------>      level  = P(now) - used, at most full
//!         |<- level ->|<----- lack ----->|             lack   = full - level
//!                                                      passed = P(latest) - used after the take
//! worth of a refund = full - passed - what other refunds have returned since the take
//! ```
//!
//! After the take the bucket lacked `full - (P(take) - used)`. Since then time has brought at most
//! `P(latest) - P(take)`, and refunds what they returned. Takes made the lack larger. So the bucket
//! has lacked at least the worth at every instant since, after the other refunds were subtracted.
//! That is the rule for this refund and all those before it.
//!
//! `latest` is an instant such that no call before the refund has used a later `now`: the time of
//! the refund plus the table's staleness. Or, if all calls use one clock, what that clock says
//! after the refund has loaded the word: a call whose word was loaded read the clock before.
//!
//! The word of a bucket has no room for a count of the refunds, so the caller keeps one:
//!
//! ```text
//! begun    permits of refunds that have begun      added to before the exchange of the word
//! done     permits of refunds that are done        added to after it
//! ```
//!
//! A refund that is worth less than it asked for subtracts the rest from `begun` after its
//! exchange.
//!
//! A take reads `done` before it takes. A refund reads `begun` after each load of the word. So the
//! difference covers every refund between the two exchanges of the word, and more.

use core::hash::BuildHasher;
use core::ops::ControlFlow;
use core::time::Duration;

use crate::clock::Clock;
use crate::keyed::Keyed;
use crate::keyed::line::{Address, Found, Line, Width};
use crate::keyed::table::ATTEMPTS;
use crate::limiter::receipt::{Receipt, Refund};
use crate::limiters::token_bucket::TokenBucketRules;
use crate::rules::TableRules;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::fence;
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::word::{AtomicWord, NativeWord, Word};

/// Counts the refunds of a group of keys, for [`Keyed::refund_counted_at`].
///
/// All refunds of a key by that method must be counted by the same `Refunds`. Several keys may
/// share one: then each of their refunds may be worth less. [`Address::group`] assigns keys to
/// groups.
///
/// ```
/// use portcullis_core::keyed::Refunds;
/// static REFUNDS: [Refunds; 64] = [const { Refunds::new() }; 64];
/// ```
#[derive(Debug)]
pub struct Refunds {
    begun: AtomicWord<NativeWord>,
    done: AtomicWord<NativeWord>,
}

/// What [`Refunds`] had counted before a take.
///
/// ```
/// use portcullis_core::keyed::{Refunds, RefundsBefore};
/// let before: RefundsBefore = Refunds::new().before_take();
/// # let _ = before;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefundsBefore(u64);

impl Refunds {
    const_unless_loom! {
        /// Creates a count of no refunds.
        ///
        /// ```
        /// # use portcullis_core::keyed::Refunds;
        /// static REFUNDS: Refunds = Refunds::new();
        /// ```
        pub const fn new() -> Self {
            Self { begun: AtomicWord::new(0), done: AtomicWord::new(0) }
        }
    }

    /// Returns what is counted before a take that [`Keyed::refund_counted_at`] may refund. Call it
    /// before the take.
    ///
    /// # Cost
    ///
    /// A load.
    ///
    /// ```
    /// # use portcullis_core::keyed::Refunds;
    /// let refunds = Refunds::new();
    /// assert_eq!(refunds.before_take(), refunds.before_take());
    /// ```
    #[inline]
    pub fn before_take(&self) -> RefundsBefore {
        // Acquire: pairs with the addition in `end`. A refund that is in the count is in the word
        // that the take reads.
        RefundsBefore(self.done.load(Acquire))
    }

    pub(super) fn begin(&self, permits: u32) {
        // Relaxed: the exchange of the word publishes it.
        self.begun.fetch_add(permits.into(), Relaxed);
    }

    /// Ends a refund that has begun for `permits` permits and was worth `worth` of them.
    pub(super) fn end(&self, permits: u32, worth: u32) {
        self.begun.fetch_sub((permits - worth).into(), Relaxed);
        // Release: pairs with `before_take`.
        self.done.fetch_add(worth.into(), Release);
    }

    /// The permits of all refunds that may have been made since, except `own`.
    pub(super) fn since(&self, before: RefundsBefore, own: u32) -> u64 {
        // Pairs with the exchange of another refund, if the caller has loaded its word or a later
        // one: that refund began before the exchange.
        fence(Acquire);
        let begun = self.begun.load(Relaxed);
        begun.wrapping_sub(before.0).wrapping_sub(own.into()) & NativeWord::MASK
    }
}

impl Default for Refunds {
    fn default() -> Self {
        Self::new()
    }
}

/// The time of a refund by [`Keyed::refund_counted_at`]: a [`Timestamp`], or a reference to the
/// [`Clock`] that all calls on the table use. The trait is sealed.
///
/// It decides how much time counts as passed since the grant, and so what the refund is worth:
///
/// - At a `Timestamp`, the table's [staleness](Keyed::staleness) counts as well. Other calls may
///   have used a `now` that is later by as much.
/// - By a clock, only the time counts that has passed. No call may have used a `now` that was later
///   than the time of the clock at that moment. So a bucket that fills within the staleness
///   refunds, too.
///
/// ```
/// use portcullis_core::{Keyed, Limiter, ManualClock, Rate, Timestamp, TokenBucket};
/// use portcullis_core::keyed::Refunds;
///
/// let (clock, refunds) = (ManualClock::new(), Refunds::new());
/// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(20), 20), 1_000);
/// let alice = users.key("alice");
/// let grant = || {
///     let before = refunds.before_take();
///     let receipt = alice.take_at(Timestamp::ZERO, 8).unwrap();
///     (receipt, before)
/// };
/// let [(one, before_one), (two, before_two)] = [grant(), grant()];
/// let address = alice.address();
/// // The bucket would have filled in the staleness of a second.
/// let refund = users.refund_counted_at(address, Timestamp::ZERO, 5, one, &refunds, before_one);
/// assert_eq!(refund.permits, 0);
/// let refund = users.refund_counted_at(address, &clock, 5, two, &refunds, before_two);
/// assert_eq!(refund.permits, 5);
/// ```
pub trait RefundTime: Copy + sealed::Sealed {
    /// Returns the time of the refund.
    ///
    /// ```
    /// # use portcullis_core::{ManualClock, Timestamp};
    /// # use portcullis_core::keyed::RefundTime;
    /// assert_eq!((&ManualClock::new()).present(), Timestamp::ZERO);
    /// assert_eq!(Timestamp::MAX.present(), Timestamp::MAX);
    /// ```
    fn present(self) -> Timestamp;
}

pub(crate) mod sealed {
    use core::time::Duration;

    use crate::time::timestamp::Timestamp;

    pub trait Sealed {
        /// Returns the time of the refund, and an instant that is no earlier than any `now` that
        /// was used before. Called after each load of the word.
        fn times(self, staleness: Duration) -> (Timestamp, Timestamp);
    }
}

impl RefundTime for Timestamp {
    #[inline(always)]
    fn present(self) -> Timestamp {
        self
    }
}

impl sealed::Sealed for Timestamp {
    #[inline(always)]
    fn times(self, staleness: Duration) -> (Timestamp, Timestamp) {
        (self, self + staleness)
    }
}

impl<C: Clock + ?Sized> RefundTime for &C {
    fn present(self) -> Timestamp {
        self.now()
    }
}

impl<C: Clock + ?Sized> sealed::Sealed for &C {
    fn times(self, _: Duration) -> (Timestamp, Timestamp) {
        let now = self.now();
        (now, now)
    }
}

impl<M: AsRef<[Line]>, S: BuildHasher> Keyed<TokenBucketRules, M, S> {
    /// Refunds `n` permits of a grant to the key at `address`, as far as they are worth something:
    /// also if other takes have followed the grant. `receipt` is that of the grant, and `before`
    /// what `refunds` had counted [before](Refunds::before_take) it.
    ///
    /// The refund is worth all `n` permits if the bucket is as the grant left it, and nothing was
    /// refunded in the meantime. Otherwise it is worth at most what the bucket has lacked all the
    /// time since: the burst, less the permits that were left after the grant, those that came back
    /// by time since, and those of other refunds. In doubt it is worth less, never more. The other
    /// permits come back by time alone. [`RefundTime`] says how much time counts: `time` is a
    /// [`Timestamp`], or `&clock`.
    ///
    /// So a bucket can refund permits that were held for less time than it needs to fill. Choose a
    /// burst accordingly.
    ///
    /// **Bound.** That of the bucket, for the permits that were taken and not refunded, and for
    /// timestamps that are older than the newest one by at most the table's staleness.
    ///
    /// # Cost
    ///
    /// Two additions to `refunds`, one compare-exchange, and a division; a clock is read for each
    /// exchange that is tried. Lock-free.
    ///
    /// ```
    /// use portcullis_core::{Keyed, Limiter, Rate, Timestamp, TokenBucket};
    /// use portcullis_core::keyed::Refunds;
    ///
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(1), 100), 1_000);
    /// let (alice, refunds, now) = (users.key("alice"), Refunds::new(), Timestamp::from_secs(9));
    /// let before = refunds.before_take();
    /// let receipt = alice.take_at(now, 30)?;
    /// // Another take follows.
    /// alice.take_at(now, 50)?;
    /// let refund = users.refund_counted_at(alice.address(), now, 20, receipt, &refunds, before);
    /// assert_eq!((refund.permits, alice.available_at(now)), (20, 40));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn refund_counted_at(
        &self,
        address: Address,
        time: impl RefundTime,
        n: u32,
        receipt: Receipt,
        refunds: &Refunds,
        before: RefundsBefore,
    ) -> Refund {
        let rules = &self.rules;
        let mut worth = 0;
        refunds.begin(n);
        let refunded = self.update(&address, Some(time.present()), |used| {
            let others = refunds.since(before, n);
            let times = time.times(self.staleness());
            let (restored, permits) = rules.refund_among(used, times, n, &receipt, others)?;
            worth = permits;
            Some(restored)
        });
        let worth = if refunded { worth } else { 0 };
        refunds.end(n, worth);
        receipt.refunded(worth)
    }

    /// Takes `n` permits of the key at `address`, and owes those that it does not have: as many as
    /// the declared [debt](crate::builder::TokenBucketBuilder::debt) allows, and `owing` at most.
    /// Returns how many were taken. No take is granted before they are replenished.
    ///
    /// Pass `u64::MAX` as `owing` to use the whole debt. A smaller number leaves a part of the debt
    /// to keys that [move](Self::move_to) to this table from one with a larger burst.
    ///
    /// It returns 0 if the key finds no slot.
    ///
    /// **Bound.** Any span of time `t` admits at most `burst + owing + rate * t` permits, if each
    /// charge passes `owing`, and at most `burst + debt + rate * t` in any case.
    ///
    /// # Cost
    ///
    /// One compare-exchange and a division. Lock-free.
    ///
    /// ```
    /// use portcullis_core::{Keyed, Limiter, Rate, Timestamp, TokenBucket};
    /// use portcullis_core::keyed::{Line, RandomSeed};
    ///
    /// let rules = TokenBucket::builder(Rate::per_second(1), 10).debt(5).rules()?;
    /// let users = Keyed::new(rules, Line::for_keys(1_000), RandomSeed::new());
    /// let (alice, now) = (users.key("alice"), Timestamp::from_secs(9));
    /// assert_eq!(users.charge_at(alice.address(), now, 12, 1), 11);
    /// assert_eq!(users.charge_at(alice.address(), now, 12, u64::MAX), 4);
    /// assert_eq!(alice.available_at(Timestamp::from_secs(15)), 1);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn charge_at(&self, address: Address, now: Timestamp, n: u32, owing: u64) -> u32 {
        let rules = &self.rules;
        for _ in 0..ATTEMPTS {
            match self.charge_once(&address, rules, now, (n, owing)) {
                ControlFlow::Break(charged) => return charged,
                ControlFlow::Continue(()) => core::hint::spin_loop(),
            }
        }
        0
    }

    /// Continues if another call claims a slot for the same key.
    fn charge_once(
        &self,
        address: &Address,
        rules: &TokenBucketRules,
        now: Timestamp,
        (n, owing): (u32, u64),
    ) -> ControlFlow<u32> {
        match address.find(self.table.lines(), Width::ONE) {
            Found::Held(..) => {
                let mut charged = None;
                let changed = self.update(address, Some(now), |used| {
                    let (left, permits) = rules.charged(used, now, n, owing);
                    charged = Some(permits);
                    (permits > 0).then_some(left)
                });
                match charged {
                    Some(permits) if changed => ControlFlow::Break(permits),
                    Some(0) => ControlFlow::Break(0),
                    // The key has lost its slot.
                    _ => ControlFlow::Continue(()),
                }
            }
            Found::Claimed => ControlFlow::Continue(()),
            Found::Nothing => {
                let (left, permits) = rules.charged(rules.fresh(now), now, n, owing);
                if permits == 0 {
                    return ControlFlow::Break(0);
                }
                let settle = |at| self.settle_at(at, now);
                let is_free = |_, held| self.is_free(held, now);
                match self
                    .table
                    .claim(address, Width::ONE, now, n, settle, is_free)
                {
                    Ok(Some((claimed, _))) => {
                        if claimed.hold(left) {
                            ControlFlow::Break(permits)
                        } else {
                            ControlFlow::Continue(())
                        }
                    }
                    Ok(None) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(0),
                }
            }
        }
    }
}
