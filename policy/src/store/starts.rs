//! Limits that start with fewer permits than they can hold.
//!
//! A table has no such state: a key that it does not know has all permits. So before the first
//! decision of a store takes its own permits, it takes those that a limit starts without. The store
//! has one key, whose state no other key replaces, so this happens once.
//!
//! ```text
//! decision --- begun? --- yes -------------------------------> take n
//!                |                                               ^
//!                +--- no ---> take burst - initial of the limit -+
//! ```
//!
//! Such a limit has a table of its own, so that permits can be taken from it alone. A limit that
//! goes on after a change of the policy has the [`Start`] of the limit before, also if its settings
//! have other initial permits. The change begins all limits of the old policy before it moves their
//! state, so a limit whose state has moved has begun.

use std::sync::{Arc, OnceLock};

use portcullis_core::Timestamp;
use portcullis_core::keyed::Address;
use portcullis_core::limiter::Detail;

use super::{Store, Table};
use crate::limit::Limit;

/// The start of a limit.
pub(super) struct Start {
    limit: Limit,
    begun: OnceLock<()>,
}

/// For each limit, how it starts. Empty if all start with all permits.
pub(super) type Starts = Box<[Option<Arc<Start>>]>;

impl Start {
    /// `None` if the limit starts with all permits.
    pub(super) fn of(limit: &Limit) -> Option<Arc<Self>> {
        let start = || Self {
            limit: limit.clone(),
            begun: OnceLock::new(),
        };
        (limit.missing() > 0).then(|| Arc::new(start()))
    }

    /// The starts of all limits, in their order.
    pub(super) fn all(starts: impl Iterator<Item = Option<Arc<Self>>>) -> Starts {
        let starts: Starts = starts.collect();
        if starts.iter().all(Option::is_none) {
            return Starts::default();
        }
        starts
    }
}

impl Store {
    /// Begins the limits of the key that have not begun.
    #[inline(never)]
    pub(super) fn begin(&self, at: Address, now: Timestamp) {
        for (start, seat) in self.starts.iter().zip(&self.seats) {
            if let Some(start) = start
                && let Table::Bucket(table) = &self.tables[seat.table]
            {
                start.begun.get_or_init(|| {
                    table.charge_at(at, now, start.limit.missing(), 0);
                });
            }
        }
    }

    /// The detail of a limit that has not begun: that of a limit which begins at `now`. `None` if
    /// it has begun.
    pub(super) fn detail_before(&self, limit: usize, now: Timestamp, n: u32) -> Option<Detail> {
        let start = self.starts.get(limit)?.as_ref()?;
        if start.begun.get().is_some() {
            return None;
        }
        let limits = core::slice::from_ref(&start.limit);
        let compiled = vec![start.limit.compile().ok()?];
        let fresh = Self::new((compiled, limits), None, None, false);
        let at = fresh.locate_shared()?;
        fresh.begin(at, now);
        Some(fresh.detail(at, 0, now, n))
    }
}
