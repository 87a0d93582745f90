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
//! # Choosing
//!
//! | to share | open | it is |
//! |---|---|---|
//! | a token bucket or a fixed window | [`SharedFile::limiter`] | a [`SharedLimiter`] |
//! | one of these for each key, such as a user or an address | [`SharedFile::table`] | a [`SharedTable`] |
//!
//! # Guarantees
//!
//! - **One limit.** All processes that open a name have the same file, with the same settings. A
//!   process with others is refused: [`OpenError::OtherSettings`] names both.
//! - **Created without a race.** A file appears under its name when it is complete.
//! - **A process may be killed at any instruction.** No lock is taken after a file is opened, and a
//!   decision is one atomic write.
//! - **No file is trusted.** A process keeps its settings in its own memory. The file has nothing
//!   but atomic words, of which any bits are valid. A file that is damaged, or that a hostile
//!   process writes, causes wrong decisions at worst.
//! - **A truncated file ends no process.** The first file that a process opens installs a handler
//!   for `SIGBUS`. It handles only the addresses of these files, and calls the handler that was
//!   there before for all others. A program that installs a handler of its own later must call this
//!   one.
//!
//! # Containers
//!
//! Containers that share a folder share the limiters in its files. Those with their own `/dev/shm`
//! need a common folder: [`SharedFile::at`].
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod error;
mod fault;
mod header;
mod mapping;
mod shared_file;
mod shared_limiter;
mod shared_table;

pub use error::OpenError;
pub use mapping::MappedLines;
pub use shared_file::SharedFile;
pub use shared_limiter::{Shareable, SharedLimiter};
pub use shared_table::{SharedKeyed, SharedTable};
