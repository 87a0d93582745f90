use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::sync::Arc;

use portcullis_core::{Clock, Denied, Lease, Limiter};

use super::{Permits, SendError, Shared, TrySendError};
use crate::adapters::leases::{Unspent, nothing};
use crate::adapters::refused::Refused;
use crate::adapters::weight::{PerItem, Weight};
use crate::queues::acquire::{Acquire, Anchored, Queued};

/// The side of a [`channel`](super::channel) that writes. Clones write to the same channel.
///
/// ```
/// # use core::num::NonZero;
/// # use portcullis_async::channel::channel;
/// # use portcullis_async::{PerItem, Queue};
/// # use portcullis_core::{Concurrency, ManualClock};
/// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
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

/// What all writers have in common, and leave behind.
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

    /// Sends `item` now, if there is room for it, and its permits are free. What is denied has
    /// changed nothing.
    ///
    /// # Errors
    ///
    /// [`TrySendError`], which tells a full channel from a limiter that denies.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::{TrySendError, channel};
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
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

    /// Takes room, and `permits` of the limiter (0: none), now: for one item, to be sent later.
    ///
    /// # Errors
    ///
    /// As of [`try_send`](Self::try_send).
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
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

    /// Sends `item`, as soon as there is room for it and it has its permits. Dropped before it is
    /// ready, it has sent nothing, and the item is dropped: [`reserve`](Self::reserve) keeps it.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the item: when the channel is closed, also while this waits; and if the
    /// queue of permits refuses it, which is asked when there is room.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::{SendError, channel};
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
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

    /// Waits for room, and for `permits` of the limiter (0: none), whatever the item that is then
    /// sent weighs.
    ///
    /// # Errors
    ///
    /// As of [`send`](Self::send).
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(1).unwrap(), PerItem);
    /// # futures_executor::block_on(async {
    /// let permit = sender.reserve(1).await.unwrap();
    /// // Nothing to wait for any more.
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

    /// Takes what is free of a place and `n` permits, without a wait's future.
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

    /// Waits for the rest.
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

    /// Takes permits that are free.
    #[inline]
    fn permits_now(&self, n: u32) -> Result<Lease<P>, Denied> {
        let queue = self.queue.clone();
        if n == 0 {
            return Ok(nothing(queue));
        }
        let now = queue.wait_queue().clock.now();
        Lease::try_acquire_at(queue, now, n)
    }

    /// Waits for permits, until the channel closes.
    async fn permits(&self, n: u32) -> Result<Unspent<P>, SendError<()>> {
        let mut wait = pin!(Acquire::new(self.queue.clone(), n, n));
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
        // To be released by the reader: the item is there before a waker has a chance to panic.
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

    /// Closes the channel: nothing can be sent any more; what is there can be received. Says
    /// whether it was open.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send(1).unwrap();
    /// assert!(sender.close());
    /// assert!(sender.try_send(2).is_err());
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    pub fn close(&self) -> bool {
        self.writers.shared.close()
    }

    /// Whether it is closed, by either side or because nobody reads any more.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
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

/// What a writer has got without waiting.
enum Begun<'s, T, P: Anchored, W> {
    Reserved(Permit<'s, T, P, W>),
    /// A place; the limiter denies its permits.
    Denied(Lease<&'s Permits>, Denied),
    Full,
}

/// A place in a [`channel`](super::channel), and the permits for an item: from [`Sender::reserve`].
/// Dropped, it gives both back: permits that come back by time alone as far as the limiter can take
/// them, as of a [refund](Lease::refund_at).
///
/// ```
/// # use core::num::NonZero;
/// # use portcullis_async::channel::channel;
/// # use portcullis_async::{PerItem, Queue};
/// # use portcullis_core::{Concurrency, ManualClock};
/// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
/// let (sender, _receiver) = channel::<u8, _, _>(&queue, NonZero::new(1).unwrap(), PerItem);
/// let permit = futures_executor::block_on(sender.reserve(5)).unwrap();
/// assert_eq!(queue.available(), 4);
/// drop(permit);
/// assert_eq!(queue.available(), 9);
/// ```
#[must_use = "a permit gives its place back when it is dropped"]
pub struct Permit<'s, T, P: Anchored, W> {
    sender: &'s Sender<T, P, W>,
    place: Lease<&'s Permits>,
    permits: Unspent<P>,
}

impl<T, P: Anchored + Clone, W: Weight<T>> Permit<'_, T, P, W> {
    /// Sends `item`, which carries the permits from now on, whatever its own weight.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`], with the item.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::{SendError, channel};
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
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
