//! Requests that wait for the limits of a rule.
//!
//! The requests of a key wait in one list, for all limits of the rule. The table of the queue is a
//! second [`Store`] on the same state. So the queue takes for a request as the rule itself does:
//! from all limits or from none. A request that waits holds nothing.
//!
//! ```text
//!  acquire ---> does a request of the key wait? -- yes -------------+
//!                   | no                                            v
//!                   v                                        +-------------+   time, a release
//!             take from all limits --- a limit with a ------>|  the queue  |---> take again, for
//!                   |                  queue denies          +-------------+     the first one
//!                   +--- another limit denies: denied
//! ```
//!
//! - **Order.** Each take of the rule, also one that does not wait, goes through
//!   [`QueueKey::in_turn`]. So none overtakes the oldest request of its key.
//! - **Releases.** A decision releases its permits to the tables of its own store, and then has the
//!   queue serve its key. All releases of permits at once go this way, except those of decisions by
//!   a policy of before, which had no queue or another one. The queue cannot hear of those: while a
//!   policy of before exists, it asks again every [`UNHEARD`].
//! - **Time.** The queue drives itself by its timer ([`KeyedQueue::shared`]). So a request that is
//!   woken and not polled delays no other one, of its key or of another key, except for the permits
//!   at once that it was granted.
//! - **Penalties.** An attempt for a request that waits starts no penalty. Its denial does.

use core::cell::Cell;
use core::hash::Hash;
use core::time::Duration;
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, Guard};
use portcullis_async::{KeyedQueue, Order, QueueKey};
use portcullis_core::keyed::{Address, KeyHash, TableKey};
use portcullis_core::limiter::{Answer, Ask, Back, Hints, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::queue::{Keys, QueueKeys};
use portcullis_core::{Denied, Limiter, Retry, Timestamp};

use super::tell::{Held, Tell};
use super::{Store, StoreDenied, Table, closed_to, penalized};
use crate::limit::{Limit, QueueOrder};
use crate::timers::{MAX_WAITING, QueueTimer};

/// How often a queue asks limits whose permits may have been released without its knowledge.
const UNHEARD: Duration = Duration::from_millis(100);

/// A wait list for each key of a rule.
pub(crate) type RuleQueue = KeyedQueue<QueuedLimits, QueueTimer>;

/// The queue of a store.
#[derive(Default)]
pub(crate) struct Waits {
    /// A bit for each limit whose permits a request can wait for.
    limits: u32,
    /// For how many permits of a key requests can wait.
    permits: u64,
    queue: Option<Arc<RuleQueue>>,
    /// Stores whose releases the same queue hears of, or none, have it in common.
    hears: Arc<()>,
    /// The `hears` of policies of before whose releases the queue does not hear of.
    unheard: Vec<Weak<()>>,
}

/// The settings of a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Settings {
    limits: u32,
    permits: u64,
    order: QueueOrder,
}

impl Settings {
    /// `None` if no request waits.
    fn of(limits: &[Limit]) -> Option<Self> {
        let queues = limits.iter().enumerate();
        let queues = queues.filter(|(_, limit)| limit.queue_limit() > 0);
        queues.fold(None, |all: Option<Self>, (index, limit)| {
            let all = all.unwrap_or(Self {
                limits: 0,
                permits: u64::MAX,
                order: limit.order(),
            });
            Some(Self {
                limits: all.limits | 1 << index,
                permits: all.permits.min(limit.queue_limit()),
                ..all
            })
        })
    }
}

/// The table of a queue: the limits of the rule. A change of the policy replaces them.
pub(crate) struct QueuedLimits {
    store: ArcSwap<Store>,
    unheard: Vec<Weak<()>>,
}

impl Keys for QueuedLimits {
    type Limiter<'t> = QueuedKey;

    fn limiter_at<'t>(&'t self, at: &'t Address) -> QueuedKey {
        QueuedKey {
            store: self.store.load(),
            at: *at,
            hears_all: self.unheard.iter().all(|token| token.strong_count() == 0),
        }
    }

    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        KeyHash::new(&self.store.load().hasher, key)
    }

    fn locate(&self, hash: KeyHash) -> Address {
        let at = self.store.load().locate_hashed(hash);
        at.expect("a rule with a queue has a limit")
    }
}

impl QueueKeys for QueuedLimits {
    const SHARED: bool = false;

    fn next_held(&self, from: usize) -> Option<usize> {
        let store = self.store.load();
        let held = |table: &Table| match table {
            Table::AtOnce(table) => table.next_held(from),
            _ => None,
        };
        store.tables.iter().filter_map(held).min()
    }
}

/// All limits of one key, for a request that waits.
pub(crate) struct QueuedKey {
    store: Guard<Arc<Store>>,
    at: Address,
    /// Whether the queue hears of all releases.
    hears_all: bool,
}

impl Limiter for QueuedKey {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            self.look(now, n).into()
        } else {
            self.take(now, n).into()
        }
    }

    /// Refunds what cannot make a limit exceed its bound. Of several limits, only permits at once.
    fn give_back(&self, back: Back<'_>) -> Returned {
        let Self { store, at, .. } = self;
        let (now, n, receipt) = match back {
            Back::Release { permits } => {
                store.release_to_tables(*at, permits);
                return Returned::NOTHING;
            }
            Back::Refund {
                now,
                permits,
                receipt,
                ..
            } => (now, permits, receipt),
            _ => return Returned::NOTHING,
        };
        let refund = match &*store.tables {
            // Settlements count their refunds.
            [Table::Bucket(_)] if !store.refunds[0].is_empty() => receipt.refunded(0),
            [table] if store.seats.len() == 1 => table.key(*at).refund_at(now, n, receipt),
            _ => {
                store.release_to_tables(*at, n);
                receipt.refunded(0)
            }
        };
        refund.into()
    }

    fn read(&self, read: Read<'_>) -> Reading {
        let Self { store, at, .. } = self;
        let available = |limit| store.detail(*at, limit, read.now(), 0).available;
        let capacity = |table: &Table| table.key(*at).capacity();
        Reading {
            available: (0..store.seats.len()).map(available).min().unwrap_or(0),
            capacity: store.tables.iter().map(capacity).min().unwrap_or(0),
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        let limit = Some(0);
        match self.store.retry(self.at, StoreDenied { limit, denied }) {
            Retry::OnRelease | Retry::OnReleaseFrom(_) if !self.hears_all => Retry::After(UNHEARD),
            retry => retry,
        }
    }

    fn hints(&self) -> Hints {
        if self.store.seats.len() == 1 {
            Hints::ONE_RECEIPT
        } else {
            Hints::NONE
        }
    }
}

impl QueuedKey {
    /// A denial by a limit without a queue is final: the request must not wait for that limit.
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let Self { store, at, .. } = self;
        store.attempt(*at, now, n).map_err(|by| match by.denied {
            // A slot, or the end of the penalty, comes with time.
            Denied::Crowded { .. } | Denied::Penalized { .. } => by.denied,
            _ if store.may_wait(*at, now, n, by).is_ok() => by.denied,
            _ => closed_to(n),
        })
    }

    fn look(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        let Self { store, at, .. } = self;
        store.look(*at, now, n).map_err(|by| by.denied)
    }
}

impl Store {
    /// The queue of this store, in which requests wait.
    pub(crate) fn queue(&self) -> Option<&RuleQueue> {
        self.waits.queue.as_deref()
    }

    /// A pointer to the queue of this store.
    pub(crate) fn shared_queue(&self) -> Option<&Arc<RuleQueue>> {
        self.waits.queue.as_ref()
    }

    /// The queue of a key, in which no request overtakes another one. `None` if no request waits.
    fn queue_of(&self, at: Address) -> Option<QueueKey<&RuleQueue>> {
        // A queue is closed after a change. The requests that waited in it were denied.
        let queue = self.queue().filter(|queue| !queue.is_closed())?;
        Some(QueueKey::at(queue, at))
    }

    /// The permits for which requests of a key wait.
    pub(crate) fn queued(&self, at: Address) -> u64 {
        self.queue_of(at).map_or(0, |queue| queue.queued())
    }

    /// Creates the queue for these limits, in which no request waits yet.
    pub(crate) fn create_queue(&mut self, limits: &[Limit], timer: impl FnOnce() -> QueueTimer) {
        let Some(settings) = Settings::of(limits) else {
            self.waits.queue = None;
            return;
        };
        (self.waits.limits, self.waits.permits) = (settings.limits, settings.permits);
        let table = QueuedLimits {
            store: ArcSwap::from_pointee(self.share()),
            unheard: self.waits.unheard.clone(),
        };
        let queue = KeyedQueue::new(table, timer(), settings.permits);
        let queue = queue.with_max_waiters(MAX_WAITING);
        let queue = queue.with_order(match settings.order {
            QueueOrder::OldestFirst => Order::OldestFirst,
            QueueOrder::NewestFirst => Order::NewestFirst,
        });
        self.waits.queue = Some(queue.shared());
    }

    /// What the second store of the queue knows of it.
    pub(super) fn shared_waits(&self) -> Waits {
        Waits {
            limits: self.waits.limits,
            ..Waits::default()
        }
    }

    /// Takes by `take` if no request of the key waits. Otherwise the request is denied.
    pub(crate) fn in_turn(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        take: impl FnOnce() -> Result<(), StoreDenied>,
    ) -> Result<(), StoreDenied> {
        let Some(queue) = self.queue_of(at) else {
            return take();
        };
        // Before the queue, so that the denial says that the penalty denies, whoever waits.
        if let Some(penalty) = self.penalty_at(at, now, n) {
            return Err(penalty);
        }
        queue.in_turn(take).unwrap_or_else(|| {
            self.penalize(at, now);
            Err(self.behind_others(now, n))
        })
    }

    /// Takes `n` permits from each limit, or from none, for a request that can wait, and notes in
    /// `held` what is needed to return them. After a denial it sets whether the request can: then
    /// the denial is the one to report if it does not.
    #[inline(never)]
    pub(super) fn take_or_wait(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        can_wait: &mut bool,
        held: Option<&mut Held>,
    ) -> Result<(), StoreDenied> {
        let Some(queue) = self.queue_of(at) else {
            return match held {
                Some(held) => self.take_held(at, now, n, true, held),
                None => self.take(at, now, n),
            };
        };
        if let Some(penalty) = self.penalty_at(at, now, n) {
            return Err(penalty);
        }
        let take = || match held {
            Some(held) => self.take_held(at, now, n, false, held),
            None => self.attempt(at, now, n).map(|_| ()),
        };
        let by = match queue.in_turn(take) {
            Some(Ok(())) => return Ok(()),
            Some(Err(by)) => self.may_wait(at, now, n, by).map(|()| by),
            None => Ok(self.behind_others(now, n)),
        };
        *can_wait = by.is_ok();
        Err(by.unwrap_or_else(|by| {
            self.penalize_after(at, now, by);
            by
        }))
    }

    /// Takes `n` permits from each limit, or from none, for a request that has waited and waits no
    /// more.
    pub(crate) fn take_after_wait(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
    ) -> Result<(), StoreDenied> {
        let Err(by) = self.attempt(at, now, n) else {
            return Ok(());
        };
        // A limit without a queue is the reason, if one denies.
        let by = self.may_wait(at, now, n, by).err().unwrap_or(by);
        self.penalize_after(at, now, by);
        Err(by)
    }

    /// Has the queue serve a key whose permits were returned.
    #[inline(never)]
    pub(super) fn serve(&self, at: Address) {
        if let Some(queue) = self.queue_of(at) {
            queue.serve();
        }
    }

    /// The denial by the penalty, if it is in force.
    fn penalty_at(&self, at: Address, now: Timestamp, n: u32) -> Option<StoreDenied> {
        let denied = penalized(self.penalty.as_ref()?, at, now, n)?;
        Some(StoreDenied {
            limit: None,
            denied,
        })
    }

    /// Starts the penalty, after a request was denied for lack of permits.
    pub(crate) fn penalize(&self, at: Address, now: Timestamp) {
        if let Some(penalty) = &self.penalty {
            // Denied if another request has opened the window already.
            let _ = TableKey::at(penalty, at).take_at(now, 1);
        }
    }

    pub(crate) fn penalize_after(&self, at: Address, now: Timestamp, by: StoreDenied) {
        if let Denied::Exhausted { .. } = by.denied {
            self.penalize(at, now);
        }
    }

    /// Takes as [`take`](Self::take) does. A denial starts no penalty. The receipt is that of the
    /// limit if there is only one.
    fn attempt(&self, at: Address, now: Timestamp, n: u32) -> Result<Receipt, StoreDenied> {
        let last = Cell::new(None);
        let (taken, is_told) = self.take_and_tell(at, now, n, false, Tell::LastReceipt(&last));
        taken?;
        // A receipt of one limit of several would return permits to that one alone.
        let is_single = self.seats.len() == 1;
        let receipt = last.take().filter(|_| is_told && is_single);
        Ok(receipt.unwrap_or(Receipt::NONE))
    }

    /// The denial of a request that is not to wait, because another limit would deny it at the end
    /// anyway. `None` if no limit would, or if it could wait for that one as well.
    pub(crate) fn denies_a_wait(&self, at: Address, now: Timestamp, n: u32) -> Option<StoreDenied> {
        let by = self.look(at, now, n).err()?;
        self.may_wait(at, now, n, by).err()
    }

    /// Whether a request that a limit denied can wait. If it cannot, returns by which limit it is
    /// denied.
    fn may_wait(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        by: StoreDenied,
    ) -> Result<(), StoreDenied> {
        let has_queue = |limit: usize| self.waits.limits & 1 << limit != 0;
        match by {
            StoreDenied {
                limit: Some(limit),
                denied: Denied::Exhausted { .. },
            } if has_queue(limit) => {}
            _ => return Err(by),
        }
        // A request must not wait for one limit while another would deny it at the end anyway.
        let mut others = (0..self.seats.len()).filter(|&limit| !has_queue(limit));
        others.try_for_each(|limit| {
            let denied = self.peek(at, limit, now, n);
            denied.map_err(|denied| StoreDenied {
                limit: Some(limit),
                denied,
            })
        })
    }

    /// The denial of a request because others wait before it.
    fn behind_others(&self, now: Timestamp, permits: u32) -> StoreDenied {
        StoreDenied {
            limit: Some(self.waits.limits.trailing_zeros() as usize),
            denied: Denied::Exhausted { now, permits },
        }
    }

    /// Goes on with the queue of `old`, the store before, whose limits were `before`. If the queue
    /// cannot go on, creates one for the limits `now`.
    pub(crate) fn follow_queue(
        &mut self,
        old: &Self,
        (before, now): (&[Limit], &[Limit]),
        timer: impl FnOnce() -> QueueTimer,
    ) {
        let (was, is) = (Settings::of(before), Settings::of(now));
        let goes_on = match (was, is) {
            (None, None) => true,
            (Some(was), Some(is)) => {
                was.order == is.order && self.at_once_lines() == old.at_once_lines()
            }
            _ => false,
        };
        // Only what the limits say: whether the queue goes on is decided below.
        self.waits = Waits {
            limits: is.map_or(0, |settings| settings.limits),
            permits: is.map_or(0, |settings| settings.permits),
            ..Waits::default()
        };
        self.waits.unheard.clone_from(&old.waits.unheard);
        if goes_on {
            self.waits.hears = Arc::clone(&old.waits.hears);
            self.waits.queue.clone_from(&old.waits.queue);
            return;
        }
        // Decisions by the policy of before release to the same words, and serve the old queue
        // only.
        if self.releases {
            let unheard = &mut self.waits.unheard;
            unheard.retain(|token| token.strong_count() > 0);
            unheard.push(Arc::downgrade(&old.waits.hears));
        }
        self.create_queue(now, timer);
    }

    /// Where the permits at once are, in an order that does not depend on that of the limits.
    fn at_once_lines(&self) -> Vec<usize> {
        let lines = self.tables.iter().filter_map(|table| match table {
            Table::AtOnce(table) => Some(Arc::as_ptr(table.lines()).addr()),
            _ => None,
        });
        let mut lines: Vec<usize> = lines.collect();
        lines.sort_unstable();
        lines
    }

    /// Hands the waiting requests over to the store `to`, which [follows](Self::follow_queue) this
    /// one. If they cannot wait there, or there is none, denies them.
    pub(crate) fn hand_over_queue(&self, to: Option<&Self>) {
        let Some(queue) = &self.waits.queue else {
            return;
        };
        let next = to.and_then(|to| Some((to, to.waits.queue.as_ref()?)));
        match next {
            Some((to, next)) if Arc::ptr_eq(queue, next) => {
                queue.set_max_permits(to.waits.permits);
                queue.change(|table| table.store.store(Arc::new(to.share())));
            }
            // Its requests are decided at once, by the limits that they waited for.
            _ => queue.close(),
        }
    }
}
