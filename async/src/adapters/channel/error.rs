use core::fmt;

use portcullis_core::Denied;

use crate::adapters::refused::Refused;

/// Why an item was not sent, by one who was ready to wait. The item comes back.
///
/// ```
/// use portcullis_async::channel::SendError;
/// assert_eq!(SendError::Closed("late").into_item(), "late");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum SendError<T> {
    /// The channel is closed, or nobody reads any more.
    Closed(T),
    /// The queue of permits has refused the item: see [`Rejected`](crate::Rejected).
    Refused(Refused<T>),
}

impl<T> SendError<T> {
    /// The item.
    ///
    /// ```
    /// # use portcullis_async::channel::SendError;
    /// assert_eq!(SendError::Closed(7).into_item(), 7);
    /// ```
    pub fn into_item(self) -> T {
        match self {
            Self::Closed(item) | Self::Refused(Refused { item, .. }) => item,
        }
    }

    /// With another item.
    pub(super) fn with<U>(self, item: U) -> SendError<U> {
        match self {
            Self::Closed(_) => SendError::Closed(item),
            Self::Refused(Refused { rejected, .. }) => {
                SendError::Refused(Refused { item, rejected })
            }
        }
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => f.write_str("the channel is closed"),
            Self::Refused(refused) => refused.fmt(f),
        }
    }
}

/// Without the item, which may be anything.
impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => f.write_str("Closed(..)"),
            Self::Refused(refused) => f.debug_tuple("Refused").field(refused).finish(),
        }
    }
}

impl<T> core::error::Error for SendError<T> {}

/// Why an item was not sent at once. The item comes back.
///
/// ```
/// use portcullis_async::channel::TrySendError;
/// assert_eq!(TrySendError::Full("late").into_item(), "late");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrySendError<T> {
    /// The channel has no room, or others wait for it.
    Full(T),
    /// The channel is closed, or nobody reads any more.
    Closed(T),
    /// There is room, but the limiter does not allow the item now.
    Denied {
        /// What was to be sent.
        item: T,
        /// What the limiter says; [`Denied::retry`] of the queue says when to come back.
        denied: Denied,
    },
}

impl<T> TrySendError<T> {
    /// The item.
    ///
    /// ```
    /// # use portcullis_async::channel::TrySendError;
    /// assert_eq!(TrySendError::Closed(7).into_item(), 7);
    /// ```
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item) | Self::Closed(item) | Self::Denied { item, .. } => item,
        }
    }

    /// With another item.
    pub(super) fn with<U>(self, item: U) -> TrySendError<U> {
        match self {
            Self::Full(_) => TrySendError::Full(item),
            Self::Closed(_) => TrySendError::Closed(item),
            Self::Denied { denied, .. } => TrySendError::Denied { item, denied },
        }
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("the channel is full"),
            Self::Closed(_) => f.write_str("the channel is closed"),
            Self::Denied { denied, .. } => write!(f, "an item is denied: {denied}"),
        }
    }
}

/// Without the item, which may be anything.
impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("Full(..)"),
            Self::Closed(_) => f.write_str("Closed(..)"),
            Self::Denied { denied, .. } => f
                .debug_struct("Denied")
                .field("denied", denied)
                .finish_non_exhaustive(),
        }
    }
}

impl<T> core::error::Error for TrySendError<T> {}

/// Why no item was received.
///
/// ```
/// use portcullis_async::channel::TryRecvError;
/// assert_eq!(TryRecvError::Empty.to_string(), "the channel is empty");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TryRecvError {
    /// There is none now.
    Empty,
    /// There is none, and there will be none: the channel is closed, or nobody writes any more.
    Closed,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the channel is empty",
            Self::Closed => "the channel is empty and closed",
        })
    }
}

impl core::error::Error for TryRecvError {}
