//! The settings of a connection.

use core::fmt;
use core::time::Duration;

/// Which Redis server a store is on, and how long the store waits for it.
///
/// A setting that is not made has the default of the kind of store that gets the settings: see the
/// documentation of the store.
///
/// ```
/// use core::time::Duration;
/// use portcullis_stores::RedisSettings;
/// let settings = RedisSettings::new("redis://127.0.0.1/")
///     .prefix("shop:")
///     .time_limit(Duration::from_millis(50));
/// assert!(format!("{settings:?}").contains("50ms"));
/// ```
#[derive(Clone)]
pub struct RedisSettings {
    pub(crate) url: String,
    pub(crate) prefix: Option<String>,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) connection_limit: Duration,
    pub(crate) reconnect_delay: Duration,
}

impl RedisSettings {
    /// Creates the default settings for a server: its address, such as `redis://127.0.0.1/`.
    ///
    /// ```
    /// # use portcullis_stores::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/");
    /// ```
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            prefix: None,
            time_limit: None,
            connection_limit: Duration::from_secs(1),
            reconnect_delay: Duration::from_millis(100),
        }
    }

    /// Sets the text with which all keys begin. Stores with different prefixes are apart. The
    /// default depends on the store.
    ///
    /// ```
    /// # use portcullis_stores::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/").prefix("shop:");
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets how long a call waits for the server at most, for a connection included. The default
    /// depends on the store.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_stores::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/").time_limit(Duration::from_millis(50));
    /// ```
    #[must_use]
    pub const fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Sets how long an attempt to connect takes at most. Default 1 s.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_stores::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/").connection_limit(Duration::from_secs(2));
    /// ```
    #[must_use]
    pub const fn connection_limit(mut self, limit: Duration) -> Self {
        self.connection_limit = limit;
        self
    }

    /// Sets the longest pause between two attempts to connect. Default 100 ms.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_stores::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/").reconnect_delay(Duration::from_secs(1));
    /// ```
    #[must_use]
    pub const fn reconnect_delay(mut self, delay: Duration) -> Self {
        self.reconnect_delay = delay;
        self
    }
}

impl fmt::Debug for RedisSettings {
    /// Leaves out the address, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("prefix", &self.prefix)
            .field("time_limit", &self.time_limit)
            .field("connection_limit", &self.connection_limit)
            .field("reconnect_delay", &self.reconnect_delay)
            .finish_non_exhaustive()
    }
}

/// What a kind of store does where its [`RedisSettings`] say nothing.
///
/// ```
/// use core::time::Duration;
/// use portcullis_stores::RedisDefaults;
/// let defaults = RedisDefaults::new("shop:", Duration::from_secs(1));
/// assert_eq!(defaults.prefix, "shop:");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisDefaults {
    /// The text with which all keys begin. Stores of different kinds have different ones, so that
    /// they can be on one server.
    pub prefix: &'static str,
    /// How long a call waits for the server at most.
    pub time_limit: Duration,
}

impl RedisDefaults {
    /// Creates defaults: the text with which keys begin, and how long a call waits at most.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_stores::RedisDefaults;
    /// let defaults = RedisDefaults::new("shop:", Duration::from_secs(1));
    /// assert_eq!(defaults.time_limit, Duration::from_secs(1));
    /// ```
    pub const fn new(prefix: &'static str, time_limit: Duration) -> Self {
        Self { prefix, time_limit }
    }
}
