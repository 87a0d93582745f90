//! Rate limiters in memory that all processes of a host share, without a server. Linux.
//!
//! Each worker of a prefork server that has a limiter of its own multiplies the limit by the number
//! of workers. The limiters of `portcullis-core` decide by one atomic word. Here that word lies in
//! a file that all processes map, so they have one limit, at the cost of one in a process.
//!
//! ```
//! use portcullis_core::{Rate, TokenBucket};
//! use portcullis_shm::SharedFile;
//!
//! // In each process.
//! let file = SharedFile::named("doc-api")?;
//! let limit = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
//! match limit.try_acquire(1) {
//!     Ok(_) => println!("go"),
//!     Err(denied) => println!("{denied}"),
//! }
//! # drop(limit);
//! # file.remove()?;
//! # Ok::<(), portcullis_shm::OpenError>(())
//! ```
//!
//! Run `shm/examples/two_processes.rs` in two terminals to see it. `shm/examples/prefork.rs` is an
//! HTTP server whose worker processes share a limit.
//!
//! # Choosing
//!
//! | to share | open | it is |
//! |---|---|---|
//! | a token bucket or a fixed window | [`SharedFile::limiter`] | a [`SharedLimiter`] |
//! | a token bucket that many cores use | [`SharedFile::striped`] | a [`SharedStripes`] |
//! | a token bucket or a fixed window for each key | [`SharedFile::table`] | a [`SharedTable`] |
//! | a concurrency limit | [`SharedFile::concurrency`] | a [`SharedConcurrency`] |
//! | leases that ids name | [`SharedFile::lease_pool`] | a [`SharedLeasePool`] |
//! | counters and numbers by key | [`SharedFile::records`] | [`SharedRecords`] |
//!
//! # Guarantees
//!
//! - **One limit.** All processes that open a name have the same file, with the same settings. A
//!   process with others is refused: [`OpenError::OtherSettings`] names both. Or it
//!   [changes](SharedFile::changing) the settings of a limiter, a table or a concurrency limit, and
//!   all processes follow.
//! - **Created without a race.** A file appears under its name when it is complete.
//! - **A process may be killed at any instruction.** A decision is one atomic write, and takes no
//!   lock.
//! - **No file is trusted.** The file has nothing but atomic words, of which any bits are valid. A
//!   process keeps its settings in its own memory, and checks new ones as a builder does. A file
//!   that is damaged, or that a hostile process writes, causes wrong decisions at worst.
//! - **A truncated file ends no process.** The first file that a process opens installs a handler
//!   for `SIGBUS`. It handles only the addresses of these files, and calls the handler that was
//!   there before for all others. A program that installs a handler of its own later must call this
//!   one.
//!
//! # Containers
//!
//! Containers that share a folder share the limiters in its files. Those with their own `/dev/shm`
//! need a common folder: [`SharedFile::at`]. Their namespaces of processes may differ: no process
//! id is compared. Their clocks must have one origin: see [`SharedFile`].
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

// Under loom, the algorithms that need a model are all there is.
#[cfg(not(portcullis_loom))]
#[expect(unreachable_pub, reason = "loom's models use it")]
mod deaths;
#[cfg(portcullis_loom)]
pub mod deaths;
#[cfg(not(portcullis_loom))]
mod description;
#[cfg(not(portcullis_loom))]
mod error;
#[cfg(not(portcullis_loom))]
mod fault;
#[cfg(not(portcullis_loom))]
mod following;
#[cfg(not(portcullis_loom))]
mod futex;
#[cfg(not(portcullis_loom))]
mod header;
#[cfg(not(portcullis_loom))]
mod latest;
#[cfg(not(portcullis_loom))]
mod mapping;
#[cfg(not(portcullis_loom))]
mod member;
#[cfg(not(portcullis_loom))]
#[expect(unreachable_pub, reason = "loom's models use it")]
mod owned_lock;
#[cfg(portcullis_loom)]
pub mod owned_lock;
#[cfg(not(portcullis_loom))]
#[expect(unreachable_pub, reason = "loom's models use it")]
mod pool_slots;
#[cfg(portcullis_loom)]
pub mod pool_slots;
#[cfg(not(portcullis_loom))]
mod process;
#[cfg(not(portcullis_loom))]
mod shared_concurrency;
#[cfg(not(portcullis_loom))]
mod shared_file;
#[cfg(not(portcullis_loom))]
mod shared_lease_pool;
#[cfg(not(portcullis_loom))]
mod shared_limiter;
#[cfg(not(portcullis_loom))]
mod shared_records;
#[cfg(not(portcullis_loom))]
mod shared_stripes;
#[cfg(not(portcullis_loom))]
mod shared_table;
#[cfg(not(portcullis_loom))]
#[expect(unreachable_pub, reason = "loom's models use it")]
mod slots;
#[cfg(portcullis_loom)]
pub mod slots;
#[cfg(not(portcullis_loom))]
#[expect(unreachable_pub, reason = "loom's models use it")]
mod stripes;
#[cfg(portcullis_loom)]
pub mod stripes;
mod sync;
#[cfg(not(portcullis_loom))]
#[expect(unreachable_pub, reason = "loom's models use it")]
mod versions;
#[cfg(portcullis_loom)]
pub mod versions;

#[cfg(not(portcullis_loom))]
pub use description::{Description, FileKind};
#[cfg(not(portcullis_loom))]
pub use error::OpenError;
#[cfg(not(portcullis_loom))]
pub use mapping::MappedLines;
#[cfg(not(portcullis_loom))]
pub use shared_concurrency::{Ended, SharedConcurrency, SharedLease};
#[cfg(not(portcullis_loom))]
pub use shared_file::SharedFile;
#[cfg(not(portcullis_loom))]
pub use shared_lease_pool::SharedLeasePool;
#[cfg(not(portcullis_loom))]
pub use shared_limiter::{Shareable, SharedLimiter};
#[cfg(not(portcullis_loom))]
pub use shared_records::{LockedRecords, Record, RecordsError, SharedRecords};
#[cfg(not(portcullis_loom))]
pub use shared_stripes::SharedStripes;
#[cfg(not(portcullis_loom))]
pub use shared_table::{SharedKeyed, SharedTable};
