//! Queued waits for the permits of any Portcullis limiter: without `std`, without an allocation, on
//! any executor.
//!
//! A [`Queue`] owns a limiter. [`Queue::acquire`] waits for permits in a future, which holds the
//! wait itself; [`Queue::blocking_acquire`] in a thread. Both stand in one queue, oldest or newest
//! first, with limits in permits and in waits. What is refused gets a [`Rejected`], never a panic.
//!
//! A release grants to those who wait, and never waits for another thread or an interrupted context
//! to do so. Permits that come back by time are granted by the queue itself, if its clock is a
//! [`Timer`] ([`Queue::attend`], [`Queue::attend_shared`]), by a task that runs [`Queue::drive`],
//! or by whoever calls [`Queue::advance`]; a thread that waits sees to it itself.
//!
//! A [`KeyedQueue`] is the same around a table of limiters by key: a list for each key.
//!
//! # Features
//!
//! - `std` (by default): [`ThreadLock`], [`ThreadTimer`], waits of threads, and all that
//!   `portcullis-core` has with `std`;
//! - `critical-section`: `InterruptLock`, for targets without threads;
//! - `portable-atomic`: for targets without compare-exchange, as the feature of `portcullis-core`,
//!   which says what is lost;
//! - `defmt`: errors and outcomes can be logged by it;
//! - `tokio`, `async-io`, `embassy-time`: timers of these;
//! - `channel`: [limited channels](channel);
//! - `stream`: [`LimitedStream`], [`LeasedStream`] and [`LimitedSink`];
//! - `futures-io`, `tokio`: [`LimitedRead`] and [`LimitedWrite`], for the traits of these.
#![no_std]
#![deny(unsafe_code)]

#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(not(loom))]
mod adapters;
mod driving;
mod finally;
mod lock;
mod queues;
mod sync;
mod waiting;

#[cfg(all(feature = "channel", not(loom)))]
pub use adapters::channel;
#[cfg(all(feature = "stream", not(loom)))]
pub use adapters::{LeasedStream, LimitedSink, LimitedStream, SinkError};
#[cfg(all(any(feature = "futures-io", feature = "tokio"), not(loom)))]
pub use adapters::{LimitedRead, LimitedWrite};
#[cfg(all(any(feature = "channel", feature = "stream"), not(loom)))]
pub use adapters::{PerItem, Refused, Weight};
pub use driving::drive::Drive;
#[cfg(feature = "async-io")]
pub use driving::timer::AsyncIoTimer;
#[cfg(feature = "embassy-time")]
pub use driving::timer::EmbassyTimer;
#[cfg(all(feature = "std", not(loom)))]
pub use driving::timer::ThreadTimer;
pub use driving::timer::Timer;
#[cfg(feature = "tokio")]
pub use driving::timer::TokioTimer;
#[cfg(feature = "critical-section")]
pub use lock::InterruptLock;
pub use lock::RawLock;
#[cfg(all(feature = "std", not(loom)))]
pub use lock::ThreadLock;
pub use queues::acquire::Acquire;
pub use queues::drained::Drained;
pub use queues::hook::{Hook, Outcome, Waited};
pub use queues::keyed_queue::{KeyedQueue, QueueKey, QueueKeyLimiter};
pub use queues::options::Order;
pub use queues::queue::{DefaultLock, Queue};
pub use queues::rejected::Rejected;
pub use waiting::wait_queue::{Next, QueueCounts};

/// The examples in the README and in the guides are tests as well.
#[cfg(all(
    doctest,
    feature = "std",
    feature = "critical-section",
    feature = "embassy-time"
))]
mod documents {
    macro_rules! documents {
        ($($name:ident: $text:expr,)*) => {$(
            #[doc = $text]
            struct $name;
        )*};
    }

    documents! {
        Readme: include_str!("../../README.md"),
        Embedded: include_str!("../../docs/embedded.md"),
        FromBucket4j: include_str!("../../docs/coming-from/bucket4j.md"),
        FromClipperhouse: include_str!("../../docs/coming-from/clipperhouse.md"),
        FromGovernor: include_str!("../../docs/coming-from/governor.md"),
        FromGuava: include_str!("../../docs/coming-from/guava.md"),
        FromSentinel: include_str!("../../docs/coming-from/sentinel.md"),
        FromTokio: include_str!("../../docs/coming-from/tokio-semaphore.md"),
        FromXTimeRate: include_str!("../../docs/coming-from/x-time-rate.md"),
    }
}
