//! The sending end of a channel.
//!
//! A send takes a place, then the permits of the item, and then puts the item into its place. A
//! [`Permit`] holds both. Dropping it, or a send before it has put its item, returns both.

use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::sync::Arc;

use portcullis_core::{Denied, Lease, Limiter};

use super::error::{SendError, TrySendError};
use super::{Permits, Shared};
use crate::adapters::leases::{Unspent, nothing};
use crate::adapters::refused::Refused;
use crate::adapters::weight::{PerItem, Weight};
use crate::queues::acquire::{Acquire, Anchored, try_acquire};

/// The sending half of a [`channel`](super::channel). Clones send to the same channel.
///
/// ```
/// # use core::num::NonZero;
/// # use portcullis_async::channel::channel;
/// # use portcullis_async::{PerItem, Queue};
/// # use portcullis_core::{Concurrency, ManualClock};
/// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
/// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
/// let other = sender.clone();
/// futures_executor::block_on(async {
///     sender.send("from one").await?;
///     other.send("from another").await?;
///     assert_eq!(receiver.recv().await, Some("from one"));
///     assert_eq!(receiver.recv().await, Some("from another"));
///     Ok::<(), portcullis_async::channel::SendError<&str>>(())
/// }).unwrap();
/// ```
pub struct Sender<T, P: Anchored, W = PerItem> {
    writers: Arc<Writers<T, P>>,
    queue: P,
    weight: W,
}

/// The state that all senders of a channel share. Its drop closes the channel.
struct Writers<T, P: Anchored> {
    shared: Arc<Shared<T, P>>,
}

impl<T, P: Anchored> Drop for Writers<T, P> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<T, P: Anchored + Clone, W: Weight<T>> Sender<T, P, W> {
    pub(super) fn new(shared: Arc<Shared<T, P>>, queue: P, weight: W) -> Self {
        Self {
            writers: Arc::new(Writers { shared }),
            queue,
            weight,
        }
    }

    /// Sends `item` immediately, if the channel has room and the permits are available. A denial
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// [`TrySendError`], with the item. It tells a full or closed channel from a limiter that
    /// denies.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::{TrySendError, channel};
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, _receiver) = channel(&queue, NonZero::new(1).unwrap(), PerItem);
    /// assert_eq!(sender.try_send(1), Ok(()));
    /// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    /// ```
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        match self.try_reserve(self.weight.permits(&item)) {
            Ok(permit) => self.put(permit, item).map_err(TrySendError::Closed),
            Err(error) => Err(error.with(item)),
        }
    }

    /// Reserves room and takes `permits` of the limiter immediately, for one item to be sent later.
    /// With 0 `permits`, the limiter is not asked.
    ///
    /// # Errors
    ///
    /// The same as for [`try_send`](Self::try_send).
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(1).unwrap(), PerItem);
    /// let permit = sender.try_reserve(1).unwrap();
    /// permit.send("made for the place").unwrap();
    /// # drop(receiver);
    /// ```
    pub fn try_reserve(&self, permits: u32) -> Result<Permit<'_, T, P, W>, TrySendError<()>> {
        match self.begin(permits) {
            Begun::Reserved(permit) => Ok(permit),
            Begun::Denied(_place, denied) => Err(TrySendError::Denied { item: (), denied }),
            Begun::Full if self.is_closed() => Err(TrySendError::Closed(())),
            Begun::Full => Err(TrySendError::Full(())),
        }
    }

    /// Sends `item` once the channel has room and the permits are granted. If the future is dropped
    /// before it completes, nothing has been sent, and the item is dropped. To keep the item, use
    /// [`reserve`](Self::reserve).
    ///
    /// # Errors
    ///
    /// [`SendError`], with the item: if the channel is closed, also while this call waits; or if
    /// the queue of permits rejects the request. The queue is asked once the channel has room.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::{SendError, channel};
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(1).unwrap(), PerItem);
    /// drop(receiver);
    /// assert_eq!(futures_executor::block_on(sender.send(1)), Err(SendError::Closed(1)));
    /// ```
    pub async fn send(&self, item: T) -> Result<(), SendError<T>> {
        let permits = self.weight.permits(&item);
        let reserved = match self.begin(permits) {
            Begun::Reserved(permit) => Ok(permit),
            begun => self.finish(begun, permits).await,
        };
        match reserved {
            Ok(permit) => permit.send(item),
            Err(error) => Err(error.with(item)),
        }
    }

    /// Waits for room and for `permits` of the limiter. With 0 `permits`, the limiter is not asked.
    /// The weight of the item that is then sent does not matter.
    ///
    /// # Errors
    ///
    /// The same as for [`send`](Self::send).
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(1).unwrap(), PerItem);
    /// # futures_executor::block_on(async {
    /// let permit = sender.reserve(1).await.unwrap();
    /// // Sending does not wait.
    /// permit.send("made for the place").unwrap();
    /// # });
    /// # drop(receiver);
    /// ```
    pub async fn reserve(&self, permits: u32) -> Result<Permit<'_, T, P, W>, SendError<()>> {
        match self.begin(permits) {
            Begun::Reserved(permit) => Ok(permit),
            begun => self.finish(begun, permits).await,
        }
    }

    /// Takes a place and `n` permits as far as they are available, without creating the future of a
    /// wait.
    #[inline]
    fn begin(&self, n: u32) -> Begun<'_, T, P, W> {
        let Ok(place) = self.writers.shared.places.try_acquire(1) else {
            return Begun::Full;
        };
        match self.permits_now(n) {
            Ok(lease) => Begun::Reserved(Permit {
                sender: self,
                place,
                permits: Unspent::new(lease),
            }),
            Err(denied) => Begun::Denied(place, denied),
        }
    }

    /// Waits for the place and the permits that `begin` did not get.
    async fn finish<'s>(
        &'s self,
        begun: Begun<'s, T, P, W>,
        n: u32,
    ) -> Result<Permit<'s, T, P, W>, SendError<()>> {
        let (place, permits) = match begun {
            Begun::Reserved(permit) => return Ok(permit),
            Begun::Denied(place, _) => (place, None),
            Begun::Full => {
                let place = self.writers.shared.places.acquire(1).await;
                let place = place.map_err(|_| SendError::Closed(()))?;
                (place, self.permits_now(n).ok())
            }
        };
        let permits = match permits {
            Some(lease) => Unspent::new(lease),
            None => self.permits(n).await?,
        };
        Ok(Permit {
            sender: self,
            place,
            permits,
        })
    }

    /// Takes `n` permits if they are available.
    #[inline]
    fn permits_now(&self, n: u32) -> Result<Lease<P>, Denied> {
        let queue = self.queue.clone();
        if n == 0 {
            return Ok(nothing(queue));
        }
        try_acquire(queue, n)
    }

    /// Waits for `n` permits, or until the channel closes.
    async fn permits(&self, n: u32) -> Result<Unspent<P>, SendError<()>> {
        let mut wait = pin!(Acquire::new(self.queue.clone(), n));
        let mut end = pin!(self.writers.shared.end.acquire(1));
        poll_fn(|context| {
            if let Poll::Ready(outcome) = wait.as_mut().poll(context) {
                let refused = |rejected| SendError::Refused(Refused { item: (), rejected });
                return Poll::Ready(outcome.map(Unspent::new).map_err(refused));
            }
            end.as_mut()
                .poll(context)
                .map(|_| Err(SendError::Closed(())))
        })
        .await
    }

    /// Puts an item into its place, unless the channel is closed.
    fn put(&self, permit: Permit<'_, T, P, W>, item: T) -> Result<(), T> {
        // The reader that takes the item releases its place. The place is forgotten here, because
        // the item is in the channel before a waker can panic.
        let place = permit.place.forget();
        let shared = &self.writers.shared;
        shared
            .push((item, permit.permits.into_lease()))
            .map_err(|(item, lease)| {
                shared.places.release(place);
                drop(Unspent::new(lease));
                item
            })
    }

    /// Closes the channel: no item can be sent any more; items in the channel can still be
    /// received. Returns whether the channel was open.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send(1).unwrap();
    /// assert!(sender.close());
    /// assert!(sender.try_send(2).is_err());
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    pub fn close(&self) -> bool {
        self.writers.shared.close()
    }

    /// Returns whether the channel is closed, by either half or because all receivers were dropped.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel::<u8, _, _>(&queue, NonZero::new(3).unwrap(), PerItem);
    /// drop(receiver);
    /// assert!(sender.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.writers.shared.items.is_closed()
    }
}

impl<T, P: Anchored + Clone, W: Clone> Clone for Sender<T, P, W> {
    fn clone(&self) -> Self {
        Self {
            writers: Arc::clone(&self.writers),
            queue: self.queue.clone(),
            weight: self.weight.clone(),
        }
    }
}

impl<T, P: Anchored, W> fmt::Debug for Sender<T, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("items", &self.writers.shared.items.len())
            .finish_non_exhaustive()
    }
}

/// The outcome of an attempt to reserve without waiting.
enum Begun<'s, T, P: Anchored, W> {
    Reserved(Permit<'s, T, P, W>),
    /// A place was free, but the limiter denies the permits.
    Denied(Lease<&'s Permits>, Denied),
    Full,
}

/// A place in a [`channel`](super::channel), and the permits for one item. See [`Sender::reserve`].
///
/// Dropping it returns the place and the permits. Permits that are only replenished by time are
/// returned as far as the limiter accepts a [refund](Lease::refund_at).
///
/// ```
/// # use core::num::NonZero;
/// # use portcullis_async::channel::channel;
/// # use portcullis_async::{PerItem, Queue};
/// # use portcullis_core::{Concurrency, ManualClock};
/// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
/// let (sender, _receiver) = channel::<u8, _, _>(&queue, NonZero::new(1).unwrap(), PerItem);
/// let permit = futures_executor::block_on(sender.reserve(5)).unwrap();
/// assert_eq!(queue.available(), 4);
/// drop(permit);
/// assert_eq!(queue.available(), 9);
/// ```
#[must_use = "dropping a `Permit` returns its place and its permits"]
pub struct Permit<'s, T, P: Anchored, W> {
    sender: &'s Sender<T, P, W>,
    place: Lease<&'s Permits>,
    permits: Unspent<P>,
}

impl<T, P: Anchored + Clone, W: Weight<T>> Permit<'_, T, P, W> {
    /// Sends `item` with the reserved permits, whatever the weight of the item is.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`], with the item, if the channel is closed.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::{SendError, channel};
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(1).unwrap(), PerItem);
    /// let permit = futures_executor::block_on(sender.reserve(1)).unwrap();
    /// receiver.close();
    /// assert_eq!(permit.send(7), Err(SendError::Closed(7)));
    /// ```
    pub fn send(self, item: T) -> Result<(), SendError<T>> {
        self.sender.put(self, item).map_err(SendError::Closed)
    }
}

impl<T, P: Anchored, W> fmt::Debug for Permit<'_, T, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("permits", &self.permits.left())
            .finish_non_exhaustive()
    }
}
