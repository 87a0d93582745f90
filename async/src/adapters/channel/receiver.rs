//! The receiving end of a channel.
//!
//! A receiver takes an item by a permit of `arrived`: see the invariant of `Shared`. As a stream it
//! waits for an item without a permit, so that an item is never kept for a stream that is not
//! polled. When the last receiver is dropped, the items that are left are dropped with their
//! permits.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use futures_core::stream::{FusedStream, Stream};
use pin_project_lite::pin_project;
use portcullis_core::Lease;

use super::error::TryRecvError;
use super::{Permits, Shared};
use crate::adapters::leases::item;
use crate::finally::Finally;
use crate::queues::acquire::{Acquire, Anchored};

pin_project! {
    /// The receiving half of a [`channel`](super::channel), which is also a [`Stream`] of the
    /// items. To be polled as a stream it must be pinned.
    ///
    /// Clones receive from the same channel; each item goes to one of them. When the last receiver
    /// is dropped, the channel closes and its items are dropped.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// use std::pin::pin;
    /// use futures_util::StreamExt;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send(1).unwrap();
    /// sender.try_send(2).unwrap();
    /// drop(sender);
    /// assert_eq!(futures_executor::block_on(pin!(receiver).collect::<Vec<_>>()), [1, 2]);
    /// ```
    pub struct Receiver<T, P: Anchored> {
        readers: Arc<Readers<T, P>>,
        // The stream's wait for an item. It requests no permit, so any reader can receive the item
        // before the stream is polled.
        #[pin]
        arrival: Option<Acquire<Arc<Permits>>>,
    }
}

/// The state that all receivers of a channel share. Its drop closes and empties the channel.
struct Readers<T, P: Anchored> {
    shared: Arc<Shared<T, P>>,
}

impl<T, P: Anchored> Readers<T, P> {
    fn empty(&self) {
        while let Ok(leased) = self.shared.items.pop() {
            drop(leased);
        }
    }
}

impl<T, P: Anchored> Drop for Readers<T, P> {
    fn drop(&mut self) {
        // Each guard empties the channel until no item is left. The second one continues after a
        // panic, of a waker or of an item that is dropped.
        let _rest = Finally(|| self.empty());
        let _items = Finally(|| self.empty());
        self.shared.close();
    }
}

impl<T, P: Anchored> Receiver<T, P> {
    pub(super) fn new(shared: Arc<Shared<T, P>>) -> Self {
        Self {
            readers: Arc::new(Readers { shared }),
            arrival: None,
        }
    }

    /// Receives an item, if the channel has one.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`], if the channel has no item.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::{TryRecvError, channel};
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send(1).unwrap();
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// drop(sender);
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    /// ```
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.try_recv_leased().map(item)
    }

    /// Receives an item together with its lease, if the channel has one. See
    /// [`recv_leased`](Self::recv_leased).
    ///
    /// # Errors
    ///
    /// [`TryRecvError`], if the channel has no item.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send("a job").unwrap();
    /// let (job, lease) = receiver.try_recv_leased().unwrap();
    /// assert_eq!((job, lease.permits(), queue.available()), ("a job", 1, 8));
    /// ```
    pub fn try_recv_leased(&self) -> Result<(T, Lease<P>), TryRecvError> {
        self.readers.shared.try_receive()
    }

    /// Waits for an item. Returns `None` if the channel is empty, and is closed or has no senders.
    /// If the future is dropped before it completes, it has received nothing.
    ///
    /// Readers that wait are served in the order of their calls. An item is reserved for the reader
    /// that it wakes: no other reader can take the item until that future is polled or dropped. A
    /// reader that waits as a stream has no such claim.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send(1).unwrap();
    /// drop(sender);
    /// # futures_executor::block_on(async {
    /// assert_eq!(receiver.recv().await, Some(1));
    /// assert_eq!(receiver.recv().await, None);
    /// # });
    /// ```
    pub async fn recv(&self) -> Option<T> {
        self.recv_leased().await.map(item)
    }

    /// Waits for an item, and returns it with its lease. Permits of a
    /// [`Concurrency`](portcullis_core::Concurrency) limit stay in use until the lease is dropped.
    /// So the limit bounds the items in the channel plus the items in progress.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(1), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send("a job").unwrap();
    /// # futures_executor::block_on(async {
    /// let (job, lease) = receiver.recv_leased().await.unwrap();
    /// assert!(sender.try_send("another").is_err(), "the first is in progress");
    /// drop(lease);
    /// assert!(sender.try_send("another").is_ok());
    /// # _ = job; });
    /// ```
    pub async fn recv_leased(&self) -> Option<(T, Lease<P>)> {
        let shared = &*self.readers.shared;
        // An item that is available is taken without creating the future of a wait.
        match shared.try_receive() {
            Err(TryRecvError::Empty) => {}
            received => return received.ok(),
        }
        match shared.arrived.acquire(1).await {
            Ok(claim) => shared.receive(claim).ok(),
            Err(_) => shared.receive_rest().ok(),
        }
    }

    /// Closes the channel. See [`Sender::close`](super::Sender::close).
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send(1).unwrap();
    /// assert!(receiver.close());
    /// assert!(sender.try_send(2).is_err());
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    pub fn close(&self) -> bool {
        self.readers.shared.close()
    }

    /// Returns whether the channel is closed, by either half or because all senders were dropped. A
    /// closed channel may still hold items.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel::<u8, _, _>(&queue, NonZero::new(3).unwrap(), PerItem);
    /// drop(sender);
    /// assert!(receiver.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.readers.shared.items.is_closed()
    }

    /// Returns the number of items in the channel.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel(&queue, NonZero::new(3).unwrap(), PerItem);
    /// sender.try_send(1).unwrap();
    /// assert_eq!(receiver.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.readers.shared.items.len()
    }

    /// Returns whether the channel has no items.
    ///
    /// ```
    /// # use core::num::NonZero;
    /// # use portcullis_async::channel::channel;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(9), ManualClock::new(), 9);
    /// let (sender, receiver) = channel::<u8, _, _>(&queue, NonZero::new(3).unwrap(), PerItem);
    /// assert!(receiver.is_empty());
    /// # drop(sender);
    /// ```
    pub fn is_empty(&self) -> bool {
        self.readers.shared.items.is_empty()
    }
}

impl<T, P: Anchored> Stream for Receiver<T, P> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut this = self.project();
        let shared = &*this.readers.shared;
        loop {
            match shared.try_receive() {
                Err(TryRecvError::Empty) => {}
                received => return Poll::Ready(received.ok().map(item)),
            }
            if this.arrival.is_none() {
                let arrival = Acquire::new(Arc::clone(&shared.arrived), 0);
                this.arrival.set(Some(arrival));
            }
            if let Some(arrival) = this.arrival.as_mut().as_pin_mut() {
                // Either an item has arrived, which another reader may take first, or the channel
                // has closed.
                let _ = ready!(arrival.poll(context));
            }
            this.arrival.set(None);
        }
    }
}

impl<T, P: Anchored> FusedStream for Receiver<T, P> {
    fn is_terminated(&self) -> bool {
        self.is_closed() && self.is_empty()
    }
}

impl<T, P: Anchored> Clone for Receiver<T, P> {
    fn clone(&self) -> Self {
        Self {
            readers: Arc::clone(&self.readers),
            arrival: None,
        }
    }
}

impl<T, P: Anchored> fmt::Debug for Receiver<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("items", &self.readers.shared.items.len())
            .finish_non_exhaustive()
    }
}
