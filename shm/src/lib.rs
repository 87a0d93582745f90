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
//! id is compared. Their clocks must have one origin: see [`SharedFile`]. Their programs must
//! have one pointer width: a 32-bit and a 64-bit program share no file.
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

// Under loom and the explorer, the algorithms that need a model are all there is.
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
#[expect(unreachable_pub, reason = "the models use it")]
mod deaths;
#[cfg(any(portcullis_loom, portcullis_explore))]
pub mod deaths;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod description;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod error;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod fault;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod following;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod futex;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
#[expect(unreachable_pub, reason = "the models use it")]
mod granted_slots;
#[cfg(any(portcullis_loom, portcullis_explore))]
pub mod granted_slots;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod header;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod latest;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod mapping;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod member;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
#[expect(unreachable_pub, reason = "the models use it")]
mod owned_lock;
#[cfg(any(portcullis_loom, portcullis_explore))]
pub mod owned_lock;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
#[expect(unreachable_pub, reason = "the models use it")]
mod pool_slots;
#[cfg(any(portcullis_loom, portcullis_explore))]
pub mod pool_slots;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod process;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod shared_concurrency;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod shared_file;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod shared_key;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod shared_lease_pool;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod shared_limiter;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod shared_records;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod shared_stripes;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
mod shared_table;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
#[expect(unreachable_pub, reason = "the models use it")]
mod slots;
#[cfg(any(portcullis_loom, portcullis_explore))]
pub mod slots;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
#[expect(unreachable_pub, reason = "the models use it")]
mod stripes;
#[cfg(any(portcullis_loom, portcullis_explore))]
pub mod stripes;
mod sync;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
#[expect(unreachable_pub, reason = "the models use it")]
mod versions;
#[cfg(any(portcullis_loom, portcullis_explore))]
pub mod versions;

#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use description::{Description, FileKind};
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use error::OpenError;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use mapping::MappedLines;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use shared_concurrency::{Ended, SharedConcurrency, SharedLease};
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use shared_file::SharedFile;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use shared_key::SharedKey;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use shared_lease_pool::SharedLeasePool;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use shared_limiter::{Shareable, SharedLimiter};
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use shared_records::{LockedRecords, Record, RecordsError, SharedRecords};
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use shared_stripes::SharedStripes;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub use shared_table::{SharedKeyed, SharedTable};
