//! Channels whose writers take permits: at a rate, by item or by size, or for as long as an item is
//! in the channel.
//!
//! [`channel`] joins a bounded channel with a queue of permits. A writer waits first for room, then
//! for the permits of its item, and then sends; so permits are never spent on an item that has no
//! place. The item carries its lease until it is received, or dropped: a [`Concurrency`] limit
//! bounds what is in the channels that share it, a rate limits the pace.
//! [`recv_leased`](Receiver::recv_leased) keeps the lease beyond that, while an item is in work.
//!
//! Any number of writers and readers; each item goes to one reader, in the order in which they were
//! sent. Readers are served in the order in which they came, and so are writers: for room, and then
//! by the queue. Any number of channels can share a queue. Either side [closes](Sender::close):
//! writers that wait then get their item back, and readers get what is there still. When all
//! readers have gone, what is there is dropped, and its permits come back.
//!
//! **Bound.** `capacity` items, with a place each, all of which are allocated at once; a writer
//! that waits for permits has its place already, so that a channel can be full and empty. And the
//! limiter's.
//!
//! **Cost.** For an item, six read-modify-writes: two each for its slot in a
//! [concurrent queue](concurrent_queue), for its place, and for the reader who takes it; what the
//! limiter takes; and a clone of the pointer to the queue, so best a `&'static` one. Writers and
//! readers wait without an allocation, and their wakers run outside of every lock.
//!
//! ```
//! use core::num::NonZero;
//! use portcullis_async::channel::{TrySendError, channel};
//! use portcullis_async::{PerItem, Queue};
//! use portcullis_core::{ManualClock, Rate, TokenBucket};
//!
//! // Two at once, and one each second.
//! static PACE: Queue<TokenBucket, ManualClock> = Queue::new(
//!     TokenBucket::new(Rate::per_second(1), 2),
//!     ManualClock::new(),
//!     100,
//! );
//!
//! let (sender, receiver) = channel(&PACE, NonZero::new(3).unwrap(), PerItem);
//! sender.try_send("first").unwrap();
//! sender.try_send("second").unwrap();
//! // There is room for it, but the bucket is empty.
//! assert!(matches!(
//!     sender.try_send("third"),
//!     Err(TrySendError::Denied { item: "third", .. })
//! ));
//! assert_eq!(receiver.try_recv(), Ok("first"));
//! ```
//!
//! # Shutting down
//!
//! Close the channel, and the queue; have the readers take what is there; and wait until every
//! lease has come back:
//!
//! ```
//! use core::num::NonZero;
//! use portcullis_async::channel::channel;
//! use portcullis_async::{PerItem, Queue};
//! use portcullis_core::{Concurrency, ManualClock};
//!
//! // Up to four jobs in the channel or in work.
//! static JOBS: Queue<Concurrency, ManualClock> =
//!     Queue::new(Concurrency::new(4), ManualClock::new(), 100);
//!
//! let (sender, receiver) = channel(&JOBS, NonZero::new(4).unwrap(), PerItem);
//! let workers: Vec<_> = (0..2)
//!     .map(|_| {
//!         let receiver = receiver.clone();
//!         std::thread::spawn(move || {
//!             futures_executor::block_on(async {
//!                 let mut done = 0;
//!                 // Until it is closed and empty.
//!                 while let Some((job, _in_work)) = receiver.recv_leased().await {
//!                     done += job;
//!                 }
//!                 done
//!             })
//!         })
//!     })
//!     .collect();
//!
//! futures_executor::block_on(async {
//!     for _ in 0..100 {
//!         sender.send(1).await.unwrap();
//!     }
//!     sender.close();
//!     assert!(sender.send(1).await.is_err());
//!     JOBS.close();
//!     JOBS.drained().await;
//! });
//! assert_eq!(
//!     workers
//!         .into_iter()
//!         .map(|worker| worker.join().unwrap())
//!         .sum::<i32>(),
//!     100
//! );
//! ```

mod error;
mod receiver;
mod sender;

use core::num::NonZero;
use core::ops::Deref;
use std::sync::Arc;

use concurrent_queue::ConcurrentQueue;
use portcullis_core::{Concurrency, Lease, Limiter, Timeless};

pub use self::error::{SendError, TryRecvError, TrySendError};
pub use self::receiver::Receiver;
pub use self::sender::{Permit, Sender};
use super::weight::Weight;
use crate::finally::Finally;
use crate::queues::acquire::Anchored;
use crate::queues::queue::Queue;

/// A channel with room for `capacity` items, of which each takes as many permits of `queue` as
/// `weight` says: [`PerItem`](crate::PerItem), or a function of the item.
///
/// `P` points to the queue: `&'static Queue`, `Arc<Queue>`, `&Queue`, or [a key's
/// place](crate::QueueKey).
///
/// # Panics
///
/// If the capacity is more than a [`Concurrency`] can count: 2^30 - 1, and 2^14 - 1 on targets
/// without 64-bit atomics.
///
/// ```
/// use core::num::NonZero;
/// use portcullis_async::Queue;
/// use portcullis_async::channel::channel;
/// use portcullis_core::{Concurrency, ManualClock};
/// use std::sync::Arc;
///
/// // Up to 1,000 bytes in the channel, in up to 100 lines.
/// let bytes: Arc<Queue<_, _>> = Arc::new(Queue::new(
///     Concurrency::new(1_000),
///     ManualClock::new(),
///     1_000,
/// ));
/// let size = |line: &String| line.len() as u32;
/// let (sender, receiver) =
///     channel(Arc::clone(&bytes), NonZero::new(100).unwrap(), size);
/// sender.try_send("x".repeat(600)).unwrap();
/// assert!(sender.try_send("x".repeat(600)).is_err());
/// assert_eq!(bytes.available(), 400);
/// receiver.try_recv().unwrap();
/// assert_eq!(bytes.available(), 1_000);
/// ```
pub fn channel<T, P, W>(
    queue: P,
    capacity: NonZero<u32>,
    weight: W,
) -> (Sender<T, P, W>, Receiver<T, P>)
where
    P: Anchored + Clone,
    W: Weight<T>,
{
    let shared = Arc::new(Shared::new(capacity.get()));
    (
        Sender::new(Arc::clone(&shared), queue, weight),
        Receiver::new(shared),
    )
}

/// What is sent: an item, and its permits.
type Leased<T, P> = (T, Lease<P>);

/// Permits that have nothing to do with time.
type Permits = Queue<Concurrency, Timeless>;

/// What both sides share.
///
/// **Invariant.** Each item in the channel has a permit of `places`, so the channel has room for an
/// item whose permit has been taken. Until the channel closes, an item leaves it only against a
/// permit of `arrived`, which is there once the item is: so who has one finds an item. Afterwards
/// items leave without one, and who has one finds an item or the end.
struct Shared<T, P: Anchored> {
    items: ConcurrentQueue<Leased<T, P>>,
    places: Permits,
    /// A permit for each item that no reader has been given.
    arrived: Arc<Permits>,
    /// Its one permit is never given back: who waits for it waits until the channel closes, without
    /// an allocation.
    end: Permits,
}

impl<T, P: Anchored> Shared<T, P> {
    fn new(capacity: u32) -> Self {
        // First, since it panics at a capacity for which there may be no memory.
        let places = Queue::new(Concurrency::new(capacity), Timeless, u64::MAX);
        Self {
            items: ConcurrentQueue::bounded(capacity as usize),
            places,
            arrived: Arc::new(all_taken(capacity)),
            end: all_taken(1),
        }
    }

    /// Puts an item into its place, unless the channel is closed, and has a reader take it.
    fn push(&self, leased: Leased<T, P>) -> Result<(), Leased<T, P>> {
        self.items
            .push(leased)
            .map_err(concurrent_queue::PushError::into_inner)?;
        self.arrived.release(1);
        Ok(())
    }

    /// Takes out an item that has arrived, or after the end one that is there still.
    fn try_receive(&self) -> Result<Leased<T, P>, TryRecvError> {
        match self.arrived.try_acquire(1) {
            Ok(claim) => self.receive(claim),
            Err(_) if self.items.is_closed() => self.receive_rest(),
            Err(_) => Err(TryRecvError::Empty),
        }
    }

    /// Takes out the item that a reader has a claim to.
    fn receive<Q>(&self, claim: Lease<Q>) -> Result<Leased<T, P>, TryRecvError>
    where
        Q: Deref<Target = Permits>,
    {
        claim.forget();
        self.receive_rest()
    }

    /// Takes out the next item: its place is free.
    fn receive_rest(&self) -> Result<Leased<T, P>, TryRecvError> {
        let leased = self.items.pop().map_err(|_| TryRecvError::Closed)?;
        self.places.release(1);
        Ok(leased)
    }

    /// Closes the channel, and refuses all requests that wait or come later, also if a waker
    /// panics. Returns whether it was open.
    fn close(&self) -> bool {
        let was_open = self.items.close();
        let _end = Finally(|| {
            self.end.close();
        });
        let _arrived = Finally(|| {
            self.arrived.close();
        });
        self.places.close();
        was_open
    }
}

/// A queue around `limit` permits that are all in use.
fn all_taken(limit: u32) -> Permits {
    let permits = Queue::new(Concurrency::new(limit), Timeless, u64::MAX);
    let taken = permits.try_acquire(limit).map(Lease::forget);
    debug_assert!(taken == Ok(limit), "it is new");
    permits
}
