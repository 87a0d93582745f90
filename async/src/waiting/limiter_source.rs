//! Where a wait queue has its limiters: a single one, or one for each key of a table.
//!
//! The engine names a limiter by its key. The source returns the limiter of a key, and the shard in
//! which the waiters of the key are.

use core::fmt;
use core::ops::Deref;

use portcullis_core::keyed::{Address, TableKey};
use portcullis_core::limiter::{Back, Waiting};
use portcullis_core::queue::{Blocked, PassedOn, QueueKeys, QueueLimiter};
use portcullis_core::{Limiter, LimiterExt, Timestamp};

use crate::waiting::list_key::ListKey;
use crate::waiting::wait_list::{Shard, Shards};

/// The limiters of a wait queue.
pub trait LimiterSource {
    /// Identifies one of the limiters.
    type Key: ListKey;
    /// A pointer to one of the limiters.
    type At<'s>: Deref<Target: Limiter + Sized>
    where
        Self: 's;
    /// The wait lists of all keys.
    type Shards: Shards<Self::Key>;

    /// Whether callers can take from the limiters without going through the wait queue.
    const SHARED: bool;

    /// Whether [`pass_on`](Self::pass_on) can pass permits on.
    const PASSES_ON: bool;

    /// Whether there is a limit for all keys together.
    const HAS_TOTAL: bool = false;

    fn at(&self, key: Self::Key) -> Self::At<'_>;

    /// Returns the index of the shard that a key belongs to.
    fn shard(key: Self::Key) -> usize;

    /// Tells the limiter whether the queue has waiters.
    fn watch(&self, waits: bool);

    /// Releases permits, and returns what the limiter knows about waiters.
    fn release_watched(&self, key: Self::Key, n: u32) -> Waiting;
    /// Passes held permits on to a waiter: see [`QueueLimiter::pass_on`].
    fn pass_on(&self, key: Self::Key, n: u32) -> PassedOn;

    /// Says which limit of a key denies a request: see [`QueueKeys::blocked_by`].
    fn blocked_by(&self, key: Self::Key, now: Timestamp, n: u32) -> Blocked {
        let _ = (key, now, n);
        Blocked::No
    }

    /// Returns the weight of a key among those that wait for the limit of all keys.
    fn weight(&self, key: Self::Key) -> u32 {
        let _ = key;
        1
    }

    /// Whether a grant may have receipts (`notes`) in addition to the one that the lease holds.
    #[inline(always)]
    fn has_notes(&self) -> bool {
        false
    }

    /// Returns whether permits are held that will be released. A source with many limiters returns
    /// `false`.
    fn is_held(&self) -> bool;

    /// Returns the key of a request that waits until no permit is held. Such a request needs a key
    /// and does not use it.
    fn any_key(&self) -> Self::Key;

    /// Where the next call of `is_drained` starts to look.
    type Cursor: Copy + fmt::Debug;
    const START: Self::Cursor;

    /// Returns whether each limiter was seen with no permits held during this call.
    fn is_drained(&self, cursor: &mut Self::Cursor) -> bool;
}

/// A source with one limiter.
#[derive(Debug)]
pub struct Single<L>(pub(crate) L);

impl<L: QueueLimiter> LimiterSource for Single<L> {
    type Key = ();
    type At<'s>
        = &'s L
    where
        L: 's;
    type Shards = [Shard<()>; 1];

    const SHARED: bool = L::SHARED;
    const PASSES_ON: bool = true;

    #[inline]
    fn at(&self, (): ()) -> &L {
        &self.0
    }

    #[inline]
    fn shard((): ()) -> usize {
        0
    }

    fn watch(&self, waits: bool) {
        let _ = self.0.give_back(Back::Watch(waits));
    }

    #[inline]
    fn release_watched(&self, (): (), n: u32) -> Waiting {
        self.0.give_back(Back::Release { permits: n }).waiting
    }

    #[inline]
    fn pass_on(&self, (): (), n: u32) -> PassedOn {
        self.0.pass_on(n)
    }

    #[inline(always)]
    fn has_notes(&self) -> bool {
        !self.0.hints().one_receipt
    }

    fn is_held(&self) -> bool {
        self.0.held() > 0
    }

    fn any_key(&self) {}

    type Cursor = ();
    const START: () = ();

    fn is_drained(&self, (): &mut ()) -> bool {
        self.0.held() == 0
    }
}

/// The number of shards of a source with a limiter for each key. The queue's words have a bit for
/// each shard, and room for other bits.
const SHARDS: usize = if cfg!(portcullis_loom) {
    2
} else {
    usize::BITS as usize / 2
};

/// A source with one limiter for each key.
#[derive(Debug)]
pub struct PerKey<T>(pub(crate) T);

impl<T: QueueKeys> LimiterSource for PerKey<T> {
    type Key = Address;
    type At<'s>
        = TableKey<&'s T>
    where
        T: 's;
    type Shards = [Shard<Address>; SHARDS];

    const SHARED: bool = T::SHARED;
    const PASSES_ON: bool = false;
    const HAS_TOTAL: bool = T::HAS_TOTAL;

    #[inline]
    fn at(&self, key: Address) -> TableKey<&T> {
        TableKey::at(&self.0, key)
    }

    #[inline]
    fn shard(key: Address) -> usize {
        key.group(SHARDS)
    }

    /// Does nothing: the words of a table have no waiter bit. So each release reads the queue's
    /// `gate`.
    fn watch(&self, _: bool) {}

    fn release_watched(&self, key: Address, n: u32) -> Waiting {
        self.at(key).release(n);
        Waiting::Unknown
    }

    fn pass_on(&self, _: Address, _: u32) -> PassedOn {
        PassedOn::No
    }

    fn blocked_by(&self, key: Address, now: Timestamp, n: u32) -> Blocked {
        self.0.blocked_by(&key, now, n)
    }

    fn weight(&self, key: Address) -> u32 {
        self.0.weight(&key)
    }

    /// With a limit for all keys, a grant has a receipt of each limit.
    #[inline(always)]
    fn has_notes(&self) -> bool {
        T::HAS_TOTAL
    }

    fn is_held(&self) -> bool {
        false
    }

    fn any_key(&self) -> Address {
        TableKey::new(&self.0, &()).address()
    }

    /// The slot at which the last call found permits held.
    type Cursor = usize;
    const START: usize = 0;

    /// Looks at all slots, from the cursor on and around, and stops at the first one with permits
    /// held. So once no more permits are taken, all calls together look at each slot at most twice.
    fn is_drained(&self, cursor: &mut usize) -> bool {
        let held = self.0.next_held(*cursor).or_else(|| self.0.next_held(0));
        if let Some(slot) = held {
            *cursor = slot;
        }
        held.is_none()
    }
}
