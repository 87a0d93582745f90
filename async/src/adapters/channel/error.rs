//! The errors of a channel. Each gives the item back that it concerns.

use core::fmt;

use portcullis_core::Denied;

use crate::adapters::refused::Refused;

/// Why [`Sender::send`](super::Sender::send) failed. Contains the item.
///
/// ```
/// use portcullis_async::channel::SendError;
/// assert_eq!(SendError::Closed("late").into_item(), "late");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendError<T> {
    /// The channel is closed, or all receivers were dropped.
    Closed(T),
    /// The queue of permits has rejected the item. See [`Rejected`](crate::Rejected).
    Refused(Refused<T>),
}

impl<T> SendError<T> {
    /// Returns the item.
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

    /// Replaces the item.
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

/// Omits the item, so that it need not implement [`Debug`](fmt::Debug).
impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => f.write_str("Closed(..)"),
            Self::Refused(refused) => f.debug_tuple("Refused").field(refused).finish(),
        }
    }
}

impl<T> core::error::Error for SendError<T> {}

/// Why [`Sender::try_send`](super::Sender::try_send) failed. Contains the item.
///
/// ```
/// use portcullis_async::channel::TrySendError;
/// assert_eq!(TrySendError::Full("late").into_item(), "late");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TrySendError<T> {
    /// The channel has no room, or other senders wait for room.
    Full(T),
    /// The channel is closed, or all receivers were dropped.
    Closed(T),
    /// The channel has room, but the limiter denies the permits now.
    Denied {
        /// The item.
        item: T,
        /// The answer of the limiter. [`Denied::retry`] returns when to retry.
        denied: Denied,
    },
}

impl<T> TrySendError<T> {
    /// Returns the item.
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

    /// Replaces the item.
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
            Self::Denied { denied, .. } => write!(f, "item denied: {denied}"),
        }
    }
}

/// Omits the item, so that it need not implement [`Debug`](fmt::Debug).
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

/// Why [`Receiver::try_recv`](super::Receiver::try_recv) returned no item.
///
/// ```
/// use portcullis_async::channel::TryRecvError;
/// assert_eq!(TryRecvError::Empty.to_string(), "the channel is empty");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a channel is empty for now, or for ever"
)]
pub enum TryRecvError {
    /// The channel has no item now.
    Empty,
    /// The channel is empty, and it is closed or all senders were dropped. No item will arrive.
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
