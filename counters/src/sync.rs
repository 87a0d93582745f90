//! Messages between instances that share a counter store.

/// A channel between instances that share a counter store, for
/// [`CachedStore::with_channel`](crate::CachedStore::with_channel). The library sends short texts,
/// which only the library interprets.
///
/// `RedisChannel` (feature `redis`) is one over publish and subscribe. An implementation may lose,
/// repeat, delay and reorder messages: a message never lets a limit be exceeded, and a late one
/// denies nothing.
///
/// ```
/// use std::sync::Mutex;
/// use portcullis_counters::SyncChannel;
///
/// /// Between stores in one process.
/// #[derive(Default)]
/// struct Local(Mutex<Vec<Box<dyn Fn(&str) -> bool + Send + Sync>>>);
///
/// impl SyncChannel for Local {
///     fn publish(&self, message: &str) {
///         self.0.lock().unwrap().retain(|receive| receive(message));
///     }
///     fn subscribe(&self, receive: Box<dyn Fn(&str) -> bool + Send + Sync>) {
///         self.0.lock().unwrap().push(receive);
///     }
/// }
/// let channel = Local::default();
/// channel.subscribe(Box::new(|message| message == "hello"));
/// channel.publish("hello");
/// ```
pub trait SyncChannel: Send + Sync {
    /// Sends a message to the other instances. Returns at once: if there is no room for the
    /// message, it is dropped. The sender may receive it too.
    fn publish(&self, message: &str);

    /// Calls `receive` with each message from now on, until it returns `false`. It does not block.
    fn subscribe(&self, receive: Box<dyn Fn(&str) -> bool + Send + Sync>);
}
