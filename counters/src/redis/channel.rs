//! Messages between instances over Redis publish and subscribe.
//!
//! ```text
//! publish ---> queue ---> task: PUBLISH                   task: SUBSCRIBE ---> all receivers
//!              (bounded)  errors are dropped              connects again after a pause
//! ```

use core::fmt;
use core::future::poll_fn;
use core::hash::BuildHasher;
use core::pin::Pin;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};

use futures_core::Stream;
use portcullis_stores::{RedisConnection, RedisSettings};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::connect::open;
use crate::error::StoreError;
use crate::sync::SyncChannel;

/// How many messages wait to be sent. Further ones are dropped.
const QUEUE: usize = 1_024;

type Receive = Box<dyn Fn(&str) -> bool + Send + Sync>;
type Receivers = Arc<Mutex<Vec<Receive>>>;

/// A [`SyncChannel`] over publish and subscribe of a Redis server. Needs the feature `redis`, and a
/// runtime of tokio, on which two tasks run until the channel is dropped.
///
/// All channels with the same prefix are one, `PREFIX` and `sync`. Messages are lost while there is
/// no connection: instances then ask the store more often, and nothing else changes. A connection
/// that breaks is made again after a pause of up to
/// [`reconnect_delay`](RedisSettings::reconnect_delay), shorter by a random part of up to one half.
///
/// ```no_run
/// use portcullis_core::MonotonicClock;
/// use portcullis_counters::{
///     CacheSettings, CachedStore, RedisChannel, RedisSettings, RedisCounters,
/// };
/// use std::sync::Arc;
///
/// # async fn example() -> Result<(), Box<dyn core::error::Error>> {
/// let settings = RedisSettings::new("redis://127.0.0.1/");
/// let store = RedisCounters::new(&settings)?;
/// let store = CachedStore::new(store, MonotonicClock::new(), CacheSettings::new())
///     .with_channel(Arc::new(RedisChannel::new(&settings)?));
/// # let _ = store;
/// # Ok(()) }
/// ```
pub struct RedisChannel {
    queue: mpsc::Sender<Box<str>>,
    receivers: Receivers,
    tasks: [JoinHandle<()>; 2],
}

impl RedisChannel {
    /// Creates a channel. It connects in the background.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the address is not valid.
    ///
    /// # Panics
    ///
    /// If called outside of a runtime of tokio.
    ///
    /// ```
    /// # use portcullis_counters::{RedisChannel, RedisSettings, StoreError};
    /// let channel = RedisChannel::new(&RedisSettings::new("localhost"));
    /// assert!(matches!(channel, Err(StoreError::Unavailable(_))));
    /// ```
    pub fn new(settings: &RedisSettings) -> Result<Self, StoreError> {
        let connection = open(settings)?;
        let name: Arc<str> = format!("{}sync", connection.prefix()).into();
        let receivers = Receivers::default();
        let (queue, messages) = mpsc::channel(QUEUE);
        let listener = listen(
            connection.clone(),
            Arc::clone(&name),
            Arc::clone(&receivers),
        );
        Ok(Self {
            queue,
            receivers,
            tasks: [
                tokio::spawn(send(connection, name, messages)),
                tokio::spawn(listener),
            ],
        })
    }
}

/// Sends messages until the channel is dropped.
async fn send(connection: RedisConnection, name: Arc<str>, mut messages: mpsc::Receiver<Box<str>>) {
    while let Some(message) = messages.recv().await {
        // A message that is lost costs only calls.
        let _sent = connection.publish(&name, &message).await;
    }
}

/// Passes messages on until the task ends.
async fn listen(connection: RedisConnection, name: Arc<str>, receivers: Receivers) {
    let jitter = RandomState::new();
    let delay = connection.reconnect_delay();
    for attempt in 0_u64.. {
        if let Ok(subscribed) = connection.subscribe(&name).await {
            let mut messages = subscribed.into_on_message();
            while let Some(message) = poll_fn(|cx| Pin::new(&mut messages).poll_next(cx)).await {
                if let Ok(text) = message.get_payload::<String>() {
                    let mut all = receivers.lock().unwrap_or_else(PoisonError::into_inner);
                    all.retain(|receive| receive(&text));
                }
            }
        }
        // Instances that lost the same server do not all come back at the same moment.
        let random = jitter.hash_one(attempt) as u32;
        let shorter = (delay / 2).mul_f64(f64::from(random) / f64::from(u32::MAX));
        tokio::time::sleep(delay.saturating_sub(shorter)).await;
    }
}

impl SyncChannel for RedisChannel {
    fn publish(&self, message: &str) {
        let _is_full = self.queue.try_send(message.into());
    }

    fn subscribe(&self, receive: Box<dyn Fn(&str) -> bool + Send + Sync>) {
        let all = self.receivers.lock();
        all.unwrap_or_else(PoisonError::into_inner).push(receive);
    }
}

impl Drop for RedisChannel {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for RedisChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisChannel").finish_non_exhaustive()
    }
}
