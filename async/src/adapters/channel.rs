//! Channels whose senders take permits: at a rate, by item or by size, or for as long as an item is
//! in the channel.
//!
//! [`channel`] combines a bounded channel with a queue of permits. A sender first waits for room,
//! then for the permits of its item, and then sends. So no permits are spent on an item that has no
//! place. The item carries its lease until it is received or dropped. So a [`Concurrency`] limit
//! bounds the items in all channels that share it, and a rate limits their pace.
//! [`recv_leased`](Receiver::recv_leased) returns the lease with the item, which keeps its permits
//! in use while the item is in progress.
//!
//! - A channel has any number of senders and receivers. Items are received in the order in which
//!   they were sent, each by one receiver.
//! - Receivers are served in the order of their calls. So are senders, for room and then by the
//!   queue.
//! - Any number of channels can share a queue.
//! - Either half can [close](Sender::close) the channel. Senders that wait get their item back;
//!   receivers get the remaining items. When all receivers have been dropped, the remaining items
//!   are dropped and their permits are returned.
//!
//! **Bound.** The channel holds at most `capacity` items. A sender that waits for permits already
//! occupies a place, so a channel can be full and have no items. The limiter's bound applies as
//! well.
//!
//! **Memory.** All places are allocated when the channel is created.
//!
//! **Cost.** Six read-modify-writes per item: two each for its slot in a [concurrent
//! queue](concurrent_queue), for its place, and for the receiver that takes it. In addition, the
//! take from the limiter, and a clone of the pointer to the queue, which is cheapest if it is
//! `&'static`. Senders and receivers wait without allocating, and their wakers run outside all
//! locks.
//!
//! ```
//! use core::num::NonZero;
//! use portcullis_async::channel::{TrySendError, channel};
//! use portcullis_async::{PerItem, Queue};
//! use portcullis_core::{ManualClock, Rate, TokenBucket};
//!
//! // A burst of 2 permits, and 1 permit per second.
//! static PACE: Queue<TokenBucket, ManualClock> = Queue::new(
//!     TokenBucket::new(Rate::per_second(1), 2),
//!     ManualClock::new(),
//!     100,
//! );
//!
//! let (sender, receiver) = channel(&PACE, NonZero::new(3).unwrap(), PerItem);
//! sender.try_send("first").unwrap();
//! sender.try_send("second").unwrap();
//! // The channel has room, but the bucket is empty.
//! assert!(matches!(
//!     sender.try_send("third"),
//!     Err(TrySendError::Denied { item: "third", .. })
//! ));
//! assert_eq!(receiver.try_recv(), Ok("first"));
//! ```
//!
//! # Shutting down
//!
//! Close the channel and the queue, let the receivers take the remaining items, and wait until all
//! leases have been returned:
//!
//! ```
//! use core::num::NonZero;
//! use portcullis_async::channel::channel;
//! use portcullis_async::{PerItem, Queue};
//! use portcullis_core::{Concurrency, ManualClock};
//!
//! // At most 4 jobs in the channel or in progress.
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
//!                 // Until the channel is closed and empty.
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

/// Creates a channel with room for `capacity` items. Each item takes as many permits of `queue` as
/// `weight` returns: [`PerItem`](crate::PerItem), or a function of the item.
///
/// `P` points to the queue: `&'static Queue`, `Arc<Queue>`, `&Queue`, or a
/// [`QueueKey`](crate::QueueKey).
///
/// # Panics
///
/// Panics if `capacity` is greater than the maximum of a [`Concurrency`]: 2^30 - 1, or 2^14 - 1 on
/// targets without 64-bit atomics.
///
/// ```
/// use core::num::NonZero;
/// use portcullis_async::Queue;
/// use portcullis_async::channel::channel;
/// use portcullis_core::{Concurrency, ManualClock};
/// use std::sync::Arc;
///
/// // Up to 1,000 bytes in the channel, in up to 100 lines.
/// let bytes = Arc::new(Queue::new(
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

/// An item in the channel: the item and its permits.
type Leased<T, P> = (T, Lease<P>);

/// A queue whose permits do not depend on time.
type Permits = Queue<Concurrency, Timeless>;

/// The state that both halves share.
///
/// **Invariant.** Each item in the channel holds a permit of `places`, so there is room for an item
/// whose permit was taken. While the channel is open, a reader takes an item only with a permit of
/// `arrived`, which is released after the item was pushed. So a reader with a permit finds an item.
/// After the channel has closed, readers also take items without a permit. Then a reader with a
/// permit finds an item or the end of the channel.
struct Shared<T, P: Anchored> {
    items: ConcurrentQueue<Leased<T, P>>,
    places: Permits,
    /// A permit for each item that is not assigned to a reader.
    arrived: Arc<Permits>,
    /// Its one permit is never released. So a request waits here, without allocating, until the
    /// channel closes.
    end: Permits,
}

impl<T, P: Anchored> Shared<T, P> {
    fn new(capacity: u32) -> Self {
        // `Queue::new` comes first: it panics if the capacity is too large, before memory is
        // allocated for the items.
        let places = Queue::new(Concurrency::new(capacity), Timeless, u64::MAX);
        Self {
            items: ConcurrentQueue::bounded(capacity as usize),
            places,
            arrived: Arc::new(all_taken(capacity)),
            end: all_taken(1),
        }
    }

    /// Puts an item into its place and assigns it to a reader, unless the channel is closed.
    fn push(&self, leased: Leased<T, P>) -> Result<(), Leased<T, P>> {
        self.items
            .push(leased)
            .map_err(concurrent_queue::PushError::into_inner)?;
        self.arrived.release(1);
        Ok(())
    }

    /// Takes an item that has arrived, or one of the remaining items after the channel has closed.
    fn try_receive(&self) -> Result<Leased<T, P>, TryRecvError> {
        match self.arrived.try_acquire(1) {
            Ok(claim) => self.receive(claim),
            Err(_) if self.items.is_closed() => self.receive_rest(),
            Err(_) => Err(TryRecvError::Empty),
        }
    }

    /// Takes the item that a reader has a permit of `arrived` for.
    fn receive<Q>(&self, claim: Lease<Q>) -> Result<Leased<T, P>, TryRecvError>
    where
        Q: Deref<Target = Permits>,
    {
        claim.forget();
        self.receive_rest()
    }

    /// Takes the next item and releases its place.
    fn receive_rest(&self) -> Result<Leased<T, P>, TryRecvError> {
        let leased = self.items.pop().map_err(|_| TryRecvError::Closed)?;
        self.places.release(1);
        Ok(leased)
    }

    /// Closes the channel and rejects all waiting and future requests, even if a waker panics.
    /// Returns whether the channel was open.
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

/// Returns a queue with `limit` permits, all of which are in use.
fn all_taken(limit: u32) -> Permits {
    let permits = Queue::new(Concurrency::new(limit), Timeless, u64::MAX);
    let taken = permits.try_acquire(limit).map(Lease::forget);
    debug_assert!(taken == Ok(limit), "all permits of a new limiter are free");
    permits
}
