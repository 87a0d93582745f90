//! Waits for the permits of any Portcullis limiter: without `std`, without allocation, on any
//! executor.
//!
//! A [`Queue`] owns a limiter. [`Queue::acquire`](Queue#method.acquire) returns a future that waits
//! for permits; the future itself stores the waiter. [`Queue::blocking_acquire`] blocks a thread.
//! Futures and threads wait in the same queue, which serves the oldest or the newest request first,
//! or the newest only during an overload, and limits both the queued permits and the number of
//! waiters. It can also limit the time that requests wait (`with_shedding`), and serve some before
//! others (`Acquire::priority`). A request that cannot be granted fails with a [`Rejected`]; it
//! does not panic.
//!
//! A release grants permits to the waiters. It never waits for another thread or for a context that
//! it has pre-empted. Permits that replenish by time are granted by one of these drivers:
//!
//! - the queue itself, if it was created by [`Queue::shared`] or after [`Queue::attend`], or a task
//!   that runs [`Queue::drive`];
//! - otherwise a task that waits in the queue, if the queue's clock is a [`Timer`]. If that task is
//!   not polled, the other tasks wait for it;
//! - a thread that is blocked in the queue;
//! - a caller of [`Queue::advance`].
//!
//! [`Queue::new`](Queue#method.new) takes a limiter, a clock and the room for waiting requests.
//! Methods named `with_...` set options, and accept every value: [`with_order`](Queue::with_order),
//! [`with_max_waiters`](Queue::with_max_waiters) and others.
//!
//! A [`KeyedQueue`] does the same for a table of limiters, with a separate wait list for each key.
//!
//! # Items by use
//!
//! | to | items |
//! |---|---|
//! | wait | [`Queue`], [`Acquire`], [`Priority`], [`Rejected`], [`Drained`] |
//! | wait by key | [`KeyedQueue`], [`QueueKey`], [`QueueKeyLimiter`] |
//! | set up, drive and close a queue | [`LimiterQueue`], [`Order`], [`Oversized`], [`Shedding`] |
//! | wake waits at their time | [`ThreadTimer`], [`TokioTimer`], [`AsyncIoTimer`], `EmbassyTimer`; [`NoTimer`], [`Next`]; [`Drive`]; [`Timer`], [`ReentrantTimer`], [`QueueClock`] and [`DeadlineClock`] for your own |
//! | observe a queue | [`QueueCounts`], [`Hook`], [`Waited`], [`WaitEnd`], [`LimiterView`] |
//! | choose a lock | [`DefaultLock`], [`ThreadLock`], `InterruptLock`; [`RawLock`] for your own |
//! | limit channels, streams and I/O | [`channel`], [`stream`], [`io`]; [`Refused`] |
//! | set the permits of an item | [`Weight`], [`PerItem`] |
//!
//! # Features
//!
//! - `std` (default): [`ThreadLock`], [`ThreadTimer`], `Queue::new` and `KeyedQueue::new`; requests
//!   that own their queue, such as `acquire_owned`; `shared` and `attend_shared`; blocking waits;
//!   and the feature `std` of `portcullis-core`;
//! - `critical-section`: `InterruptLock`, for targets without threads;
//! - `portable-atomic`: for targets without compare-exchange; the documentation of
//!   `portcullis-core` lists the restrictions;
//! - `defmt`: `defmt::Format` for errors and outcomes;
//! - `shedding`: `with_shedding`, which bounds the time that requests wait,
//!   `Order::NewestWhileOverloaded`, and `Acquire::priority`;
//! - `tokio`, `async-io`, `embassy-time`: a timer for each of these;
//! - `channel`: limited channels, in the module [`channel`];
//! - `stream`: limited streams and sinks, and methods that limit them, in the module [`stream`];
//! - `futures-io`, `tokio`: limited readers and writers, for the traits of these crates, in the
//!   module [`io`].
//!
// Where an item is missing, its links lead to the features.
#![cfg_attr(
    not(feature = "std"),
    doc = "[`ThreadLock`]: crate#features\n[`ThreadTimer`]: crate#features"
)]
#![cfg_attr(not(feature = "tokio"), doc = "[`TokioTimer`]: crate#features")]
#![cfg_attr(not(feature = "async-io"), doc = "[`AsyncIoTimer`]: crate#features")]
#![cfg_attr(
    not(feature = "shedding"),
    doc = "[`Priority`]: crate#features\n[`Shedding`]: crate#features"
)]
#![cfg_attr(not(feature = "channel"), doc = "[`channel`]: crate#features")]
#![cfg_attr(not(feature = "stream"), doc = "[`stream`]: crate#features")]
#![cfg_attr(
    not(any(feature = "futures-io", feature = "tokio")),
    doc = "[`io`]: crate#features"
)]
#![cfg_attr(
    not(any(feature = "channel", feature = "stream")),
    doc = "[`Weight`]: crate#features\n[`PerItem`]: crate#features\n[`Refused`]: crate#features"
)]
#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(portcullis_loom))))]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(not(portcullis_loom))]
mod adapters;
mod driving;
mod finally;
mod forks;
#[cfg(all(any(feature = "futures-io", feature = "tokio"), not(portcullis_loom)))]
pub mod io;
mod lock;
mod queues;
#[cfg(all(feature = "stream", not(portcullis_loom)))]
pub mod stream;
mod sync;
mod waiting;

#[cfg(all(feature = "channel", not(portcullis_loom)))]
pub use adapters::channel;
#[cfg(all(any(feature = "channel", feature = "stream"), not(portcullis_loom)))]
pub use adapters::refused::Refused;
#[cfg(all(any(feature = "channel", feature = "stream"), not(portcullis_loom)))]
pub use adapters::weight::{PerItem, Weight};
pub use driving::drive::Drive;
#[cfg(feature = "async-io")]
pub use driving::timer::async_io::AsyncIoTimer;
#[cfg(feature = "embassy-time")]
pub use driving::timer::embassy::EmbassyTimer;
#[cfg(all(feature = "std", not(portcullis_loom)))]
pub use driving::timer::thread::ThreadTimer;
#[cfg(feature = "tokio")]
pub use driving::timer::tokio::TokioTimer;
#[cfg(feature = "critical-section")]
pub use lock::InterruptLock;
#[cfg(all(feature = "std", not(portcullis_loom)))]
pub use lock::ThreadLock;
pub use lock::{DefaultLock, RawLock};
pub use queues::acquire::Acquire;
pub use queues::drained::Drained;
pub use queues::keyed_queue::{KeyedQueue, QueueKey, QueueKeyLimiter};
pub use queues::limiter_queue::LimiterQueue;
pub use queues::limiter_view::LimiterView;
pub use queues::queue::Queue;
pub use waiting::hook::{Hook, WaitEnd, Waited};
pub use waiting::options::{Order, Oversized};
#[cfg(feature = "shedding")]
pub use waiting::priority::Priority;
pub use waiting::queue_clock::{DeadlineClock, NoTimer, QueueClock};
pub use waiting::rejected::Rejected;
#[cfg(feature = "shedding")]
pub use waiting::shedding::Shedding;
pub use waiting::timer::{ReentrantTimer, Timer};
pub use waiting::wait_queue::counts::QueueCounts;
pub use waiting::wait_queue::driver::Next;
