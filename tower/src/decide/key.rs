//! Requests judged by a limiter for each key, in code.

use core::net::IpAddr;

use portcullis_core::keyed::{
    FixedWindowRules, IntoRules, KeyHash, KeyedRules, Line, RandomSeed, TableKey, TokenBucketRules,
};
use portcullis_core::limiter::{Receipt, Refund};
use portcullis_core::queue::Keys;
use portcullis_core::{Clock, Keyed, Limiter, LimiterExt, Timestamp};

use super::Decide;
use super::question::{Question, Taking};
use crate::denial::{Denial, DenialSettings, Replies};
use crate::head::RequestHead;

/// A table that has a limiter for each key.
pub type KeyTable<R> = Keyed<R, Box<[Line]>, RandomSeed>;

/// Judges requests by a limiter for each key, such as each address. A request takes one permit, or
/// [its cost](Self::by_cost). The permits return by time.
///
/// This is the least that a limit per client costs: there are no rules to match. For several limits
/// per client, or for other limits on some paths, use [`ByPolicy`](crate::ByPolicy).
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_tower::{ByKey, RateLimitLayer};
///
/// // 10 per second for each address, and up to 100 at once; 10,000 addresses can be in use.
/// let bucket = TokenBucket::new(Rate::per_second(10), 100);
/// let layer = RateLimitLayer::new(ByKey::address(bucket, 10_000));
/// # let _ = layer;
/// ```
pub struct ByKey<R, F> {
    table: KeyTable<R>,
    key: F,
    /// Whether the key is the address of the client.
    needs_address: bool,
    by_cost: bool,
    name: Option<Box<str>>,
    replies: Replies,
}

/// The rules of limiters whose permits return by time. Sealed.
pub trait RulesByTime: KeyedRules + Send + Sync + 'static + sealed::ByTime {}

mod sealed {
    use portcullis_core::keyed::{FixedWindowRules, TokenBucketRules};

    pub trait ByTime {}

    impl ByTime for TokenBucketRules {}
    impl ByTime for FixedWindowRules {}
}

impl RulesByTime for TokenBucketRules {}
impl RulesByTime for FixedWindowRules {}

/// Finds the key of a request: the address of the client.
pub type AddressKey<R> = fn(&RequestHead<'_>, &KeyTable<R>) -> Option<KeyHash>;

impl<R: RulesByTime> ByKey<R, AddressKey<R>> {
    /// Judges by a limiter for each address of a client, with room for `keys` addresses. Of an IPv6
    /// address the first 64 bits count, because a client has all addresses with them.
    ///
    /// A request without an address is denied with the status 500, because the program is not set
    /// up: see [`PeerAddress`](crate::PeerAddress).
    ///
    /// # Panics
    ///
    /// If the settings of the limiter do not fit a table.
    pub fn address(limiter: impl IntoRules<Rules = R>, keys: usize) -> Self {
        let key: AddressKey<R> = |head, table| {
            Some(match head.address?.to_canonical() {
                IpAddr::V4(address) => table.hash_of(&address.to_bits()),
                IpAddr::V6(address) => {
                    let network = (address.to_bits() >> 64) as u64;
                    table.hash_of(&network)
                }
            })
        };
        Self {
            needs_address: true,
            ..Self::new(limiter, keys, key)
        }
    }
}

impl<R, F> ByKey<R, F>
where
    R: RulesByTime,
    F: Fn(&RequestHead<'_>, &KeyTable<R>) -> Option<KeyHash> + Send + Sync + 'static,
{
    /// Judges by a limiter for each key, with room for `keys` keys. A function returns the hash of
    /// the key of a request, by [`Keys::hash_of`]. Requests for which it returns `None` are denied
    /// as [unidentified](crate::DenialSettings::unidentified). To let them share one limiter,
    /// return the hash of a value that no other request has.
    ///
    /// # Panics
    ///
    /// If the settings of the limiter do not fit a table.
    ///
    /// ```
    /// use portcullis_core::{Rate, TokenBucket};
    /// use portcullis_core::queue::Keys;
    /// use portcullis_tower::{ByKey, RateLimitLayer};
    ///
    /// let bucket = TokenBucket::new(Rate::per_second(10), 100);
    /// let layer = RateLimitLayer::new(ByKey::new(bucket, 10_000, |head, table| {
    ///     Some(table.hash_of(head.headers.get("x-user")?.as_bytes()))
    /// }));
    /// # let _ = layer;
    /// ```
    pub fn new(limiter: impl IntoRules<Rules = R>, keys: usize, key: F) -> Self {
        Self {
            table: Keyed::for_keys(limiter, keys),
            key,
            needs_address: false,
            by_cost: false,
            name: None,
            replies: Replies::default(),
        }
    }

    /// Sets a name, which denials have: see [`Denial::limit`].
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Takes the [cost](crate::RateLimitLayerBuilder::cost) of a request instead of one permit, and
    /// [settles](crate::RateLimitLayerBuilder::settling) it.
    #[must_use]
    pub fn by_cost(mut self) -> Self {
        self.by_cost = true;
        self
    }

    #[inline]
    fn limiter(
        &self,
        now: impl FnOnce() -> Timestamp,
        head: &RequestHead<'_>,
    ) -> Result<(TableKey<&KeyTable<R>>, KeyHash), Denial> {
        match (self.key)(head, &self.table) {
            Some(hash) => Ok((self.table.key_hashed(hash), hash)),
            None => Err(self.replies.without_key(now(), self.needs_address)),
        }
    }

    fn n(&self, cost: u32) -> u32 {
        if self.by_cost { cost } else { 1 }
    }
}

/// The permits of a key, which can be returned.
#[derive(Debug)]
pub struct HeldByKey {
    hash: KeyHash,
    n: u32,
    receipt: Receipt,
}

/// Nothing is kept while a request is in progress: permits return by time.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value")]
pub enum Nothing {}

impl<R, F> Decide for ByKey<R, F>
where
    R: RulesByTime,
    F: Fn(&RequestHead<'_>, &KeyTable<R>) -> Option<KeyHash> + Send + Sync + 'static,
{
    type Held = HeldByKey;
    type Permits = Nothing;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.replies = Replies::of_limiter(settings, self.name.as_deref());
    }

    #[inline]
    fn decide<C: Clock>(&self, question: Question<'_, C>) -> Result<Option<HeldByKey>, Denial> {
        let Question { clock, head, .. } = question;
        let ((key, hash), n) = (self.limiter(|| clock.now(), head)?, self.n(question.cost));
        let receipt = self.replies.take(&key, clock, n)?;
        Ok(match question.taking {
            // They return by time.
            Taking::ForGood => None,
            Taking::Returnable => Some(HeldByKey { hash, n, receipt }),
        })
    }

    fn undo_at(&self, now: Timestamp, held: HeldByKey) {
        let _: Refund = self
            .table
            .key_hashed(held.hash)
            .refund_at(now, held.n, held.receipt);
    }

    fn settle_at(&self, now: Timestamp, held: HeldByKey, actual: u32) -> Option<Nothing> {
        if self.by_cost {
            let key = self.table.key_hashed(held.hash);
            if let Some(unused) = held.n.checked_sub(actual) {
                let _: Refund = key.refund_at(now, unused, held.receipt);
            } else {
                // As many of them as there are. They return by time, so the lease is not kept.
                drop(key.try_acquire_between_at(now, 1, actual - held.n));
            }
        }
        None
    }

    fn keep(&self, _: HeldByKey) -> Option<Nothing> {
        None
    }
}

shows!([R, F] ByKey<R, F>, "ByKey");
