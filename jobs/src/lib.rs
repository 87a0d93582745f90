//! Paced jobs: operations that a program writes to a throttled service at the pace that the service
//! allows.
//!
//! [`Jobs`] takes operations from a source, which is any [`Stream`](futures_core::Stream), and
//! writes them with a function of yours. Each operation has a cost: 1 for a request, its bytes, or
//! units such as the request units of a database. The permits for it come from a
//! [`Queue`](portcullis_async::Queue) around any limiter: a limit of your own, such as the bucket
//! of a [`Pace`], or a share of a fleet.
//!
//! - **Only with capacity.** An operation is taken from the source when permits are available. So
//!   the rest stays in its durable queue, and what the runner holds is bounded.
//! - **Evenly.** Operations are released in small intervals: 100 per second as 20 each 200 ms.
//! - **Exactly.** An operation is released when all its permits are paid. One that costs more than
//!   the limiter holds at once pays in pieces. No permit and no part of one is lost or used twice.
//!   What the service charges beyond the cost is a debt, paid with the next batch.
//! - **In batches** of up to a size, and with a number of writes at once.
//! - **Again**, up to a number of attempts: what fails in a way that may pass.
//! - **Slower** while the service says that it is overloaded: see [`SlowDown`].
//! - **Acknowledged last.** An operation is acknowledged to its queue after its write has
//!   succeeded, and not before. So what a process held that is killed is delivered again: each
//!   operation is written at least once.
//!
//! Permits are waited for in the queue, as by all other requests of the queue. The runner adds no
//! limit of its own. It needs a [`Timer`](portcullis_async::Timer) for its intervals, pauses and
//! time limits. It is a future, spawns nothing, and runs on any executor.
//!
//! **Bound.** What is released in any span of time costs at most what the limiter admits in it, if
//! no batch is paid in several pieces. If some are, the cost of one of them comes in addition: of
//! the batch whose first pieces were paid before the span. A batch in pieces is a single operation
//! that costs more than is available when it is taken.
//!
//! ```
//! use core::time::Duration;
//! use futures_util::stream;
//! use portcullis_async::{Queue, ThreadTimer};
//! use portcullis_core::Rate;
//! use portcullis_jobs::{Jobs, Pace, WriteOutcome};
//!
//! // 20,000 units per second, in intervals of 20 ms.
//! let pace = Pace::new(Rate::per_second(20_000), Duration::from_millis(20));
//! let queue = Queue::new(pace.bucket()?, ThreadTimer::new(), pace.burst());
//!
//! let jobs = Jobs::new(&queue, ThreadTimer::new())
//!     .interval(pace.interval())
//!     .cost(|_record: &u32| 10)
//!     .batch(25)
//!     .concurrency(4);
//! let run = jobs.run(stream::iter(0..100), |batch| async move {
//!     // Send the batch to the service here.
//!     assert!(batch.len() <= 25);
//!     WriteOutcome::Done
//! });
//! let report = futures_executor::block_on(run);
//! assert_eq!((report.progress.written, report.progress.permits), (100, 1_000));
//! # Ok::<(), portcullis_core::SettingsError>(())
//! ```
//!
//! # Items by use
//!
//! | to | use |
//! |---|---|
//! | run jobs: their cost, batches, attempts and intervals | [`Jobs`] |
//! | choose a pace, and make its bucket | [`Pace`] |
//! | say what may be written, and know what was | [`Operation`], [`WriteOutcome`], [`Written`], [`SettledBatch`] |
//! | slow down while the service is overloaded | [`SlowDown`] |
//! | observe and steer a run | [`Handle`], [`Progress`], [`Event`], [`Report`], [`RunEnd`] |
//! | name the queues that jobs take permits from | [`Permits`] |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod jobs;
mod operation;
mod overload;
mod pace;
mod permits;
mod progress;
mod run;
mod work;

pub use jobs::Jobs;
pub use operation::{Operation, SettledBatch, WriteOutcome, Written};
pub use overload::SlowDown;
pub use pace::Pace;
pub use permits::Permits;
pub use progress::{Event, Handle, Progress, Report, RunEnd};
