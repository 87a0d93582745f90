//! A connection to a Redis server, and the calls on it.

use core::error::Error;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::task::Poll;
use core::time::Duration;
use std::sync::{Arc, PoisonError, RwLock};

use redis::aio::{ConnectionManager, ConnectionManagerConfig, PubSub};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError,
    RedisResult, ScriptInvocation,
};

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
    link: Arc<Link>,
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
        let manager = ConnectionManager::new_lazy_with_config(client.clone(), config.clone())?;
        let link = Link {
            client,
            config,
            attempt: RwLock::new(Attempt { manager, number: 0 }),
            is_up: AtomicBool::new(false),
            is_trying: AtomicBool::new(false),
        };
        Ok(Self {
            link: Arc::new(link),
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
        let Attempt {
            mut manager,
            number,
        } = self.link.attempt();
        self.within(number, call.invoke_async(&mut manager)).await
    }

    /// Sends a command, within the time limit.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CallError> {
        let Attempt {
            mut manager,
            number,
        } = self.link.attempt();
        self.within(number, command.query_async(&mut manager)).await
    }

    /// Sends several commands in one round trip, within the time limit.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn query_all<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, CallError> {
        let Attempt {
            mut manager,
            number,
        } = self.link.attempt();
        self.within(number, commands.query_async(&mut manager))
            .await
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
        let Attempt {
            mut manager,
            number,
        } = self.link.attempt();
        let published: RedisResult<()> = publish.query_async(&mut manager).await;
        if published.as_ref().is_err_and(RedisError::is_io_error) {
            self.link.renew(number);
        }
        Ok(published?)
    }

    /// Opens a connection of its own that receives the messages of a channel, within the time
    /// limit of an attempt to connect. If it breaks, its stream of messages ends.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn subscribe(&self, channel: &str) -> Result<PubSub, CallError> {
        let subscribed = async {
            let mut connection = self.link.client.get_async_pubsub().await?;
            connection.subscribe(channel).await?;
            Ok(connection)
        };
        limited(self.connection_limit, subscribed).await
    }

    /// Waits for the server, within the time limit. The client has a limit for an answer, and
    /// another one to connect. This one is for both together.
    /// `number` is that of the attempt with which it is called.
    async fn within<T>(
        &self,
        number: u64,
        call: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, CallError> {
        let call = limited(self.time_limit, call);
        if self.link.is_up.load(Relaxed) {
            let answer = call.await;
            if let Err(CallError::Failed(error)) = &answer
                && error.is_io_error()
            {
                self.link.renew(number);
            }
            return answer;
        }
        // The client tries again without a word until the time is up. So what is wrong is found out
        // beside the call, once it has taken half of its time.
        let mut tried = None;
        let answer = {
            let try_once = self
                .link
                .try_once(self.time_limit / 2, self.connection_limit);
            let (mut call, mut try_once) = (pin!(call), pin!(try_once));
            poll_fn(|task| {
                if tried.is_none()
                    && let Poll::Ready(is) = try_once.as_mut().poll(task)
                {
                    tried = Some(is);
                }
                call.as_mut().poll(task)
            })
            .await
        };
        self.link.note(number, answer, tried)
    }
}

/// The connection of all clones.
struct Link {
    client: Client,
    config: ConnectionManagerConfig,
    attempt: RwLock<Attempt>,
    /// Whether a call was answered since the last one that found the connection broken.
    is_up: AtomicBool,
    /// Whether a call finds out why there is no connection.
    is_trying: AtomicBool,
}

/// What connects, and again when the connection breaks.
///
/// When its attempts have failed, it keeps their error for the next call, however late that is. The
/// server may be back by then. So after each failure, another one begins.
#[derive(Clone)]
struct Attempt {
    manager: ConnectionManager,
    /// Those that were before it.
    number: u64,
}

/// Clears a flag when it is dropped.
struct Clears<'f>(&'f AtomicBool);

impl Drop for Clears<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

impl Link {
    fn attempt(&self) -> Attempt {
        let attempt = self.attempt.read();
        attempt.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connects once, after a pause, and hangs up. Waits without end while another call does so.
    async fn try_once(&self, pause: Duration, limit: Duration) -> RedisResult<()> {
        tokio::time::sleep(pause).await;
        if self.is_trying.swap(true, Relaxed) {
            return core::future::pending().await;
        }
        let _clears = Clears(&self.is_trying);
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit));
        let connect = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        connect.await.map(drop)
    }

    /// Notes the answer to a call that had no connection at first, and returns it. Where there is
    /// none, and `tried` says why, the error says so.
    fn note<T>(
        &self,
        number: u64,
        answer: Result<T, CallError>,
        tried: Option<RedisResult<()>>,
    ) -> Result<T, CallError> {
        let error = match answer {
            Ok(value) => {
                self.is_up.store(true, Relaxed);
                return Ok(value);
            }
            Err(error) => error,
        };
        let error = match (tried, error) {
            (Some(Ok(())), error) => {
                self.is_up.store(true, Relaxed);
                return Err(error);
            }
            (Some(Err(why)), _) => why,
            (None, CallError::Failed(error)) if is_of_connecting(&error) => error,
            (None, error) => return Err(error),
        };
        self.renew(number);
        Err(CallError::Unconnected {
            address: self.client.get_connection_info().addr().to_string(),
            error,
        })
    }

    /// Begins with another connection, after the attempt with this number has failed. Once, for
    /// however many calls that have used it.
    fn renew(&self, number: u64) {
        let attempt = self.attempt.write();
        let mut attempt = attempt.unwrap_or_else(PoisonError::into_inner);
        if attempt.number != number {
            return;
        }
        let (client, config) = (self.client.clone(), self.config.clone());
        if let Ok(manager) = ConnectionManager::new_lazy_with_config(client, config) {
            let number = number + 1;
            *attempt = Attempt { manager, number };
        }
        self.is_up.store(false, Relaxed);
    }
}

/// Whether an error is that of an attempt to connect, and not the answer to a call.
fn is_of_connecting(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Io | ErrorKind::AuthenticationFailed
    )
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
    /// There is no connection to the server.
    Unconnected {
        /// The host and the port, or the path, without a name and a password.
        address: String,
        /// Why not: the connection is refused, the host is not known, the password is wrong.
        error: RedisError,
    },
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
            Self::Unconnected { address, error } => {
                write!(f, "no connection to {address}: {error}")
            }
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::TimedOut(_) => None,
            // `Display` shows the error itself, so its source is the next one.
            Self::Failed(error) | Self::Unconnected { error, .. } => error.source(),
        }
    }
}
