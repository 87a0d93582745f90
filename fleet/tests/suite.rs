//! The tests that can share a process. Those that cannot are programs of their own in `Cargo.toml`.
#![allow(
    clippy::duplicate_mod,
    reason = "the files of `support/` are modules of each file that uses them"
)]

#[path = "cases_shares.rs"]
mod cases_shares;

#[path = "member.rs"]
mod member;

#[path = "protocol.rs"]
mod protocol;

#[path = "settings.rs"]
mod settings;

#[path = "share_limiter.rs"]
mod share_limiter;

#[cfg(all(feature = "etcd", feature = "redis"))]
#[path = "stores.rs"]
mod stores;
