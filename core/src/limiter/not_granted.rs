//! The two reasons that counters tell apart. A queue says one of them when a wait ends without a
//! grant.

use crate::limiter::denied::Denied;

/// Why a request was not granted, in two groups. All counts use them: see
/// [`Counts`](crate::counts::Counts).
///
/// ```
/// # use portcullis_core::Concurrency;
/// # use portcullis_core::limiter::NotGranted;
/// let limit = Concurrency::new(2);
/// let _held = limit.try_acquire(2)?;
/// let denied = limit.try_acquire(1).unwrap_err();
/// assert_eq!(NotGranted::from(denied), NotGranted::Denied);
/// let denied = limit.try_acquire(3).unwrap_err();
/// assert_eq!(NotGranted::from(denied), NotGranted::Refused);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NotGranted {
    /// The limiter had too few permits in time:
    ///
    /// - [`Denied::Exhausted`]: fewer permits were available than requested;
    /// - [`Denied::Crowded`]: the key had no slot, and so no permits;
    /// - `Rejected::Deadline` and `Rejected::Shed` of a queue: not enough permits came before the
    ///   deadline, or within the time that the queue lets a request wait.
    Denied,
    /// Any other reason:
    ///
    /// - [`Denied::ExceedsCapacity`]: the limiter can never hold so many permits;
    /// - [`Denied::Penalized`]: a penalty was in force;
    /// - [`Denied::Refused`]: the limiter decides by something other than permits;
    /// - [`Denied::Closed`]: the limiter is closed;
    /// - `Rejected::QueueFull` and `Rejected::Evicted` of a queue: the queue had no room.
    Refused,
}

impl From<Denied> for NotGranted {
    #[inline]
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Exhausted { .. } | Denied::Crowded { .. } => Self::Denied,
            Denied::ExceedsCapacity { .. }
            | Denied::Penalized { .. }
            | Denied::Refused { .. }
            | Denied::Closed { .. } => Self::Refused,
        }
    }
}
