//! Takes that tell of each limit: what it has left, or the receipt of its permits.

use core::array;
use core::cell::Cell;
use core::hash::BuildHasher;
use core::ops::Deref;

use crate::all_of::DeniedBy;
use crate::keyed::key::TableKey;
use crate::keyed::keyed_list::KeyedList;
use crate::keyed::line::{Address, Line};
use crate::keyed::rule_list::{MOST, RuleList};
use crate::leases::lease::Lease;
use crate::limiter::detail::Detail;
use crate::limiter::receipt::Receipt;
use crate::time::timestamp::Timestamp;

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> KeyedList<L, M, S> {
    fn take_each_detailed(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
    ) -> (Result<(), DeniedBy>, [Option<Detail>; MOST]) {
        let seen = Cell::new(None);
        match self.take_each(address, now, n, &seen) {
            Ok(left) => {
                let detail = |limit: usize| {
                    let state = *left.as_ref().get(limit)?;
                    Some(self.rules.get(limit)?.detail(state, now, Ok(())))
                };
                (Ok(()), array::from_fn(detail))
            }
            Err(by) => {
                let told = self.told_of(address, now, Err(by), seen.get());
                let detail = |limit: usize| {
                    if limit == told.index {
                        Some(told.detail)
                    } else {
                        self.explain_nth(address, limit, now, n)
                    }
                };
                (Err(by), array::from_fn(detail))
            }
        }
    }

    fn take_each_noted(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
    ) -> Result<[Receipt; MOST], DeniedBy> {
        let left = self.take_each(address, now, n, ())?;
        Ok(array::from_fn(|limit| {
            let rules = self.rules.get(limit);
            match (rules, left.as_ref().get(limit)) {
                (Some(rules), Some(&state)) if n > 0 => rules.receipt(state, now),
                _ => Receipt::NONE,
            }
        }))
    }
}

impl<L, M, S, P> TableKey<P>
where
    L: RuleList,
    M: AsRef<[Line]>,
    S: BuildHasher,
    P: Deref<Target = KeyedList<L, M, S>>,
{
    /// Takes permits as [`try_acquire_each_at`](Self::try_acquire_each_at) does, without a lease
    /// and without a receipt. Permits of concurrency limits return by
    /// [`release`](crate::Limiter::release); the others return by time alone.
    ///
    /// # Errors
    ///
    /// Those of `try_acquire_each_at`.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Limiter, Timestamp};
    /// # use portcullis_core::keyed::ConcurrencyRules;
    /// let users = KeyedList::for_keys([5, 3].map(ConcurrencyRules::new), 100);
    /// let alice = users.key("alice");
    /// alice.take_each_at(Timestamp::ZERO, 2)?;
    /// assert_eq!(alice.available_at(Timestamp::ZERO), 1);
    /// alice.release(2);
    /// assert_eq!(alice.available_at(Timestamp::ZERO), 3);
    /// # Ok::<(), portcullis_core::composition::DeniedBy>(())
    /// ```
    #[inline]
    pub fn take_each_at(&self, now: Timestamp, n: u32) -> Result<(), DeniedBy> {
        let (table, address) = self.place();
        match table.take_each(address, now, n, ()) {
            Ok(_) => Ok(()),
            Err(by) => Err(by),
        }
    }

    /// Takes permits as [`try_acquire_each_at`](Self::try_acquire_each_at) does, and returns what
    /// each limit saw, in their order. `None` follows the last one.
    ///
    /// The numbers of a grant are those of the words that the take left. Of a denial, those of the
    /// limit that denied are of this decision. The other limits are asked after it.
    ///
    /// # Errors
    ///
    /// The first result is one of the errors of `try_acquire_each_at`.
    ///
    /// # Cost
    ///
    /// That of a take, and some divisions for each limit.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Timestamp};
    /// # use portcullis_core::keyed::ConcurrencyRules;
    /// let rules = [ConcurrencyRules::new(7), ConcurrencyRules::new(5)];
    /// let users = KeyedList::for_keys(rules, 100);
    /// let (lease, details) = users.key("alice").try_acquire_each_detailed_at(Timestamp::ZERO, 4);
    /// assert!(lease.is_ok());
    /// assert!(details.iter().flatten().map(|detail| detail.available).eq([3, 1]));
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_each_detailed_at(
        self,
        now: Timestamp,
        n: u32,
    ) -> (Result<Lease<Self>, DeniedBy>, [Option<Detail>; MOST]) {
        let (table, address) = self.place();
        let (taken, details) = table.take_each_detailed(address, now, n);
        let lease = taken.map(|()| Lease::from_grant(self, n, Receipt::NONE));
        (lease, details)
    }

    /// Takes permits as [`try_acquire_each_at`](Self::try_acquire_each_at) does, and returns the
    /// receipt of each limit, in their order, for
    /// [`refund_limit_at`](crate::KeyedList::refund_limit_at). The receipts after the last limit
    /// have no meaning.
    ///
    /// # Errors
    ///
    /// Those of `try_acquire_each_at`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{KeyedList, Limiter, Timestamp};
    /// # use portcullis_core::keyed::FixedWindowRules;
    /// let rules = [5, 9].map(|limit| FixedWindowRules::new(limit, Duration::from_secs(60)));
    /// let users = KeyedList::for_keys(rules, 100);
    /// let (alice, now) = (users.key("alice"), Timestamp::from_secs(9));
    /// let (_, [first, second, ..]) = alice.try_acquire_each_noted_at(now, 4)?;
    /// let address = alice.address();
    /// assert_eq!(users.refund_limit_at(address, 0, now, 3, first), 3);
    /// assert_eq!(users.refund_limit_at(address, 1, now, 3, second), 3);
    /// assert_eq!(alice.available_at(now), 4);
    /// # Ok::<(), portcullis_core::composition::DeniedBy>(())
    /// ```
    pub fn try_acquire_each_noted_at(
        self,
        now: Timestamp,
        n: u32,
    ) -> Result<(Lease<Self>, [Receipt; MOST]), DeniedBy> {
        let (table, address) = self.place();
        let receipts = table.take_each_noted(address, now, n)?;
        Ok((Lease::from_grant(self, n, Receipt::NONE), receipts))
    }

    /// Returns what the limit with index `limit` of the key would answer, or `None` if there is no
    /// such limit. Writes nothing. For a key of a [`KeyedList`].
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Timestamp};
    /// # use portcullis_core::keyed::ConcurrencyRules;
    /// let rules = [ConcurrencyRules::new(7), ConcurrencyRules::new(5)];
    /// let users = KeyedList::for_keys(rules, 100);
    /// let second = users.key("alice").explain_limit_at(1, Timestamp::ZERO, 6).unwrap();
    /// assert!(!second.is_allowed());
    /// ```
    pub fn explain_limit_at(&self, limit: usize, now: Timestamp, n: u32) -> Option<Detail> {
        let (table, address) = self.place();
        table.explain_nth(address, limit, now, n)
    }
}
