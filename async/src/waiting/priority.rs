//! Priorities: which requests of a wait list are granted before others, however long these wait.
//! See `wait_list/groups.rs` for the state.
//!
//! Without the feature `shedding` all requests have one priority, and nothing is stored.

/// Whether requests can have priorities.
pub(crate) const HAS_PRIORITIES: bool = cfg!(feature = "shedding");

/// Which requests of a wait list are granted first. See
/// [`Acquire::priority`](crate::Acquire::priority).
///
/// ```
/// use portcullis_async::Priority;
/// assert!(Priority::Low < Priority::Normal && Priority::Normal < Priority::High);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// After all others: background work, and the requests of a user above a fair share.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// The place of a new waiter in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The priority of the waiter.
    pub(crate) priority: Priority,
    /// Whether it goes before those of its priority.
    pub(crate) goes_first: bool,
}

impl Place {
    /// Returns whether the waiters of the priority `other` come before it.
    #[inline(always)]
    pub(crate) fn is_behind(self, other: Priority) -> bool {
        HAS_PRIORITIES && other > self.priority || !self.goes_first && other == self.priority
    }
}
