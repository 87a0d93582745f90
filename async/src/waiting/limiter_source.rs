use core::fmt;

use portcullis_core::{
    Address, Denied, Key, Limiter, PassedOn, QueueKeys, QueueLimiter, Receipt, Receipts, Timestamp,
    Waiting,
};

use crate::waiting::wait_list::{Shard, Shards};

/// Where a wait queue has its limiters from.
pub trait LimiterSource {
    /// What tells them apart.
    type Key: Copy + PartialEq + Send + Sync + fmt::Debug;
    type At<'s>: Limiter
    where
        Self: 's;
    /// The wait lists of its keys.
    type Shards: Shards<Self::Key>;

    /// Whether others may take from the limiters past the wait queue.
    const SHARED: bool;

    fn at(&self, key: Self::Key) -> Self::At<'_>;

    /// The number of the shard that a key belongs to.
    fn shard(key: Self::Key) -> usize;

    /// Whether anybody waits.
    fn watch(&self, waits: bool);

    /// As the limiter's own methods.
    fn release_watched(&self, key: Self::Key, n: u32) -> Waiting;
    fn pass_on(&self, key: Self::Key, n: u32) -> PassedOn;

    /// Whether grants have notes beside a receipt; and to take and to refund with these.
    const NOTES: bool;
    fn take_noted(
        &self,
        key: Self::Key,
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied>;
    fn refund_noted(
        &self,
        key: Self::Key,
        now: Timestamp,
        n: u32,
        receipt: Receipt,
        notes: Receipts,
    );

    /// The permits that are out and will be released.
    fn held(&self) -> u64;
}

/// One limiter.
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

    #[inline]
    fn at(&self, (): ()) -> &L {
        &self.0
    }

    #[inline]
    fn shard((): ()) -> usize {
        0
    }

    fn watch(&self, waits: bool) {
        self.0.watch(waits);
    }

    #[inline]
    fn release_watched(&self, (): (), n: u32) -> Waiting {
        self.0.release_watched(n)
    }

    #[inline]
    fn pass_on(&self, (): (), n: u32) -> PassedOn {
        self.0.pass_on(n)
    }

    const NOTES: bool = L::NOTES;

    fn take_noted(
        &self,
        (): (),
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied> {
        self.0.take_noted_at(now, n, notes)
    }

    fn refund_noted(&self, (): (), now: Timestamp, n: u32, receipt: Receipt, notes: Receipts) {
        self.0.refund_noted_at(now, n, receipt, notes);
    }

    fn held(&self) -> u64 {
        self.0.held()
    }
}

/// The shards of a source by key: a bit of the queue's words for each, with room for others.
const SHARDS: usize = if cfg!(loom) {
    2
} else {
    usize::BITS as usize / 2
};

/// One limiter for each key.
#[derive(Debug)]
pub struct PerKey<T>(pub(crate) T);

impl<T: QueueKeys> LimiterSource for PerKey<T> {
    type Key = Address;
    type At<'s>
        = Key<'s, T>
    where
        T: 's;
    type Shards = [Shard<Address>; SHARDS];

    const SHARED: bool = T::SHARED;

    #[inline]
    fn at(&self, key: Address) -> Key<'_, T> {
        Key::at(&self.0, key)
    }

    #[inline]
    fn shard(key: Address) -> usize {
        key.group(SHARDS)
    }

    /// The table's words have no room for it: releases look at the gate.
    fn watch(&self, _: bool) {}

    fn release_watched(&self, key: Address, n: u32) -> Waiting {
        self.at(key).release(n);
        Waiting::Unknown
    }

    fn pass_on(&self, _: Address, _: u32) -> PassedOn {
        PassedOn::No
    }

    /// A key's limiter has room for one receipt.
    const NOTES: bool = false;

    fn take_noted(
        &self,
        key: Address,
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied> {
        notes.clear();
        self.at(key).take_at(now, n)
    }

    fn refund_noted(&self, key: Address, now: Timestamp, n: u32, receipt: Receipt, _: Receipts) {
        let _ = self.at(key).refund_at(now, n, receipt);
    }

    fn held(&self) -> u64 {
        0
    }
}
