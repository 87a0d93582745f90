//! A connection to a Redis server, and the calls on it.

use core::error::Error;
use core::fmt;
use core::future::Future;
use core::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig, PubSub};
use redis::{Client, Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation};

use crate::settings::{RedisDefaults, RedisSettings};

/// A connection to a Redis server, which all callers of a store share. It is made when it is first
/// used, and again when it breaks.
///
/// If it breaks, the calls on it fail. No command is sent twice: whether a command that failed has
/// run is not known. Clones are the same connection.
///
/// ```no_run
/// use core::time::Duration;
/// use portcullis_stores::{CallError, RedisConnection, RedisDefaults, RedisSettings};
///
/// # async fn example() -> Result<(), CallError> {
/// let defaults = RedisDefaults::new("shop:", Duration::from_secs(1));
/// let settings = RedisSettings::new("redis://127.0.0.1/");
/// let connection = RedisConnection::open(&settings, defaults)?;
/// let mut get = redis::cmd("GET");
/// let value: Option<String> =
///     connection.query(get.arg(format!("{}open", connection.prefix()))).await?;
/// println!("{value:?}");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisConnection {
    manager: ConnectionManager,
    client: Client,
    prefix: String,
    time_limit: Duration,
    connection_limit: Duration,
    reconnect_delay: Duration,
}

impl RedisConnection {
    /// Creates a connection. `defaults` are for the settings that are not made.
    ///
    /// # Errors
    ///
    /// [`CallError::Failed`] if the address is not valid.
    ///
    /// # Panics
    ///
    /// If called outside of a runtime of tokio.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_stores::{RedisConnection, RedisDefaults, RedisSettings};
    /// let defaults = RedisDefaults::new("shop:", Duration::from_secs(1));
    /// // The scheme is missing.
    /// assert!(RedisConnection::open(&RedisSettings::new("localhost"), defaults).is_err());
    /// ```
    pub fn open(settings: &RedisSettings, defaults: RedisDefaults) -> Result<Self, CallError> {
        let time_limit = settings.time_limit.unwrap_or(defaults.time_limit);
        let prefix = settings.prefix.as_deref().unwrap_or(defaults.prefix);
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(settings.connection_limit))
            .set_response_timeout(Some(time_limit))
            // The client doubles its pause from the shortest one on, which must not be the longer.
            .set_min_delay(settings.reconnect_delay.min(Duration::from_millis(10)))
            .set_max_delay(settings.reconnect_delay);
        let client = Client::open(settings.url.as_str())?;
        Ok(Self {
            manager: ConnectionManager::new_lazy_with_config(client.clone(), config)?,
            client,
            prefix: prefix.into(),
            time_limit,
            connection_limit: settings.connection_limit,
            reconnect_delay: settings.reconnect_delay,
        })
    }

    /// Returns the text with which all keys of the store begin.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the longest pause between two attempts to connect.
    pub const fn reconnect_delay(&self) -> Duration {
        self.reconnect_delay
    }

    /// Calls a script, within the time limit. A server that does not know the script is sent it.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn invoke<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, CallError> {
        let mut manager = self.manager.clone();
        self.within(call.invoke_async(&mut manager)).await
    }

    /// Sends a command, within the time limit.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CallError> {
        let mut manager = self.manager.clone();
        self.within(command.query_async(&mut manager)).await
    }

    /// Sends several commands in one round trip, within the time limit.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn query_all<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, CallError> {
        let mut manager = self.manager.clone();
        self.within(commands.query_async(&mut manager)).await
    }

    /// Sends a message on a channel. Waits for the connection as long as attempts to connect last,
    /// so that a message is late rather than lost.
    ///
    /// # Errors
    ///
    /// [`CallError::Failed`].
    pub async fn publish(&self, channel: &str, message: &str) -> Result<(), CallError> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg(message);
        Ok(publish.query_async(&mut self.manager.clone()).await?)
    }

    /// Opens a connection of its own that receives the messages of a channel, within the time
    /// limit of an attempt to connect. If it breaks, its stream of messages ends.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn subscribe(&self, channel: &str) -> Result<PubSub, CallError> {
        let subscribed = async {
            let mut connection = self.client.get_async_pubsub().await?;
            connection.subscribe(channel).await?;
            Ok(connection)
        };
        limited(self.connection_limit, subscribed).await
    }

    /// Waits for the server, within the time limit. The client has a limit for an answer, and
    /// another one to connect. This one is for both together.
    async fn within<T>(&self, call: impl Future<Output = RedisResult<T>>) -> Result<T, CallError> {
        limited(self.time_limit, call).await
    }
}

async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = RedisResult<T>>,
) -> Result<T, CallError> {
    let answer = tokio::time::timeout(limit, call).await;
    Ok(answer.map_err(|_| CallError::TimedOut(limit))??)
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConnection")
            .field("prefix", &self.prefix)
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}

/// Why a call has no answer, or which error the answer is. Whose fault an error is, a store
/// decides: it knows what it has asked.
///
/// ```
/// use core::time::Duration;
/// use portcullis_stores::CallError;
/// let error = CallError::TimedOut(Duration::from_millis(250));
/// assert_eq!(error.to_string(), "no answer within 250ms");
/// ```
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a call has failed, or may have been made"
)]
pub enum CallError {
    /// The server did not answer within this time. It may have done what it was asked.
    TimedOut(Duration),
    /// The connection failed, or the server answered with an error.
    Failed(RedisError),
}

impl From<RedisError> for CallError {
    fn from(error: RedisError) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(limit) => write!(f, "no answer within {limit:?}"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::TimedOut(_) => None,
            // `Display` shows the error itself, so its source is the next one.
            Self::Failed(error) => error.source(),
        }
    }
}
