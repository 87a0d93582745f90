//! Many processes share one throttled service, without a process in charge.
//!
//! A service admits so many requests a second, from all of its clients together. Here the clients
//! are processes that do not talk to each other. They have a store in common, such as etcd or
//! Redis, and use all of the service's capacity, and no more than the bound in `docs/fleet.md`.
//!
//! The capacity is cut into **partitions**: 500 requests a second into 20 times 25. A process takes
//! leases on as many partitions as its demand needs. A lease is exclusive and ends by itself, so
//! what a process held that is killed returns.
//!
//! # Items by use
//!
//! | to | use |
//! |---|---|
//! | describe a capacity, its partitions and its leases | [`Pool`], [`PoolBuilder`], [`PoolError`] |
//! | keep the leases in this process, for one process and for tests | [`MemoryLeases`] |
//! | keep the leases in etcd | `EtcdLeases`, `EtcdSettings` |
//! | keep the leases on a Redis server | `RedisLeases`, `RedisSettings` |
//! | keep the leases elsewhere | [`LeaseStore`], [`LeaseFuture`], [`LeaseError`] |
//! | know what a store is asked, and what it answers | [`Exchange`], [`ExchangeAnswer`], [`PartitionLease`], [`Claim`], [`Heard`], [`MemberId`] |
//! | know by which rules a store decides | [`LeaseTable`] |
//! | be a member: say what is needed, and learn what there is | [`Member`], [`MemberBuilder`], [`Driver`], [`MemberStatus`], [`Standing`], [`Notice`] |
//! | limit requests by the share of a member | [`ShareLimiter`], [`Fallback`] |
//! | run a member by hand, as a driver or a simulation does | [`Protocol`], [`ProtocolEvent`], [`Actions`], [`MemberShare`], [`MemberReport`] |
//! | know the fair shares of all members | [`FairShares`] |
//! | write to the service at the pace it allows | `portcullis-jobs`, with a queue around the limiter of a [`Member`] |
//!
//! # Features
//!
//! - `etcd`: `EtcdLeases`;
//! - `redis`: `RedisLeases`.
//!
//! Both need a runtime of tokio.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

// Under loom, the algorithm that needs a model is all there is.
#[cfg(not(portcullis_loom))]
#[expect(unreachable_pub, reason = "loom's models use it")]
mod ending_bucket;
#[cfg(portcullis_loom)]
pub mod ending_bucket;
#[cfg(not(portcullis_loom))]
mod fair_share;
#[cfg(not(portcullis_loom))]
mod member;
#[cfg(not(portcullis_loom))]
mod pool;
#[cfg(not(portcullis_loom))]
mod protocol;
#[cfg(not(portcullis_loom))]
mod share_limiter;
#[cfg(not(portcullis_loom))]
mod store;
mod sync;

#[cfg(not(portcullis_loom))]
pub use fair_share::FairShares;
#[cfg(not(portcullis_loom))]
pub use member::{Driver, Member, MemberBuilder, MemberStatus, Notice, Standing};
#[cfg(not(portcullis_loom))]
pub use pool::{MOST_PARTITIONS, Pool, PoolBuilder, PoolError};
#[cfg(all(feature = "redis", not(portcullis_loom)))]
pub use portcullis_stores::RedisSettings;
#[cfg(not(portcullis_loom))]
pub use protocol::{Actions, MemberReport, MemberShare, Protocol, ProtocolEvent};
#[cfg(not(portcullis_loom))]
pub use share_limiter::{Fallback, ShareLimiter};
#[cfg(all(feature = "etcd", not(portcullis_loom)))]
pub use store::etcd::{EtcdLeases, EtcdSettings};
#[cfg(not(portcullis_loom))]
pub use store::memory::{LeaseTable, MemoryLeases};
#[cfg(all(feature = "redis", not(portcullis_loom)))]
pub use store::redis::RedisLeases;
#[cfg(not(portcullis_loom))]
pub use store::{
    Claim, Exchange, ExchangeAnswer, Heard, LeaseError, LeaseFuture, LeaseStore, MemberId,
    PartitionLease,
};
