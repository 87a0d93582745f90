//! The connection of stores to a Redis server: one place for its settings, its time limits and its
//! errors.
//!
//! The counter stores of `portcullis-counters` and the stores of leases of `portcullis-fleet` are
//! on it. They re-export [`RedisSettings`], which is all that their users need. The rest is for who
//! writes another store on a Redis server.
//!
//! A store knows its keys, its scripts, and what an answer of the server means. A connection knows
//! none of this: it connects, waits no longer than it may, and connects again.
//!
//! # Items by use
//!
//! | to | use |
//! |---|---|
//! | say which server, and how long to wait for it | [`RedisSettings`] |
//! | say what a kind of store does where its settings say nothing | [`RedisDefaults`] |
//! | call the server | [`RedisConnection`], [`CallError`] |
#![forbid(unsafe_code)]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod connection;
mod settings;

pub use connection::{CallError, RedisConnection};
pub use settings::{RedisDefaults, RedisSettings};
