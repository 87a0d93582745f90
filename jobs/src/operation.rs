//! Operations and what becomes of them: what the functions of a user get, and what they return.
//!
//! ```text
//! Operation ---> write ---> WriteOutcome of each, or Written for the batch
//!     ^                         |
//!     +-------- again ----------+---> SettledBatch ---> acknowledgement
//! ```

use core::fmt;
use core::ops::Deref;
use core::time::Duration;
use std::sync::Arc;

/// An operation that a runner has taken from its source: the item, its cost, and how often it has
/// been tried. Dereferences to the item.
///
/// Clones share the item.
///
/// ```
/// use portcullis_jobs::Operation;
/// let operation = Operation::new("a record", 10);
/// assert_eq!((operation.len(), operation.cost(), operation.attempt()), (8, 10, 0));
/// ```
pub struct Operation<T> {
    /// Shared with the runner, which keeps the operation while a write has a clone of it.
    pub(crate) item: Arc<T>,
    pub(crate) cost: u32,
    pub(crate) attempt: u32,
}

impl<T> Operation<T> {
    /// Creates an operation that has not been tried. The runner creates its operations itself; this
    /// is for tests of the functions that it calls.
    ///
    /// ```
    /// # use portcullis_jobs::Operation;
    /// assert_eq!(*Operation::new(7, 1), 7);
    /// ```
    pub fn new(item: T, cost: u32) -> Self {
        Self {
            item: Arc::new(item),
            cost,
            attempt: 0,
        }
    }

    /// Returns the item.
    ///
    /// ```
    /// # use portcullis_jobs::Operation;
    /// assert_eq!(Operation::new("a record", 1).item(), &"a record");
    /// ```
    pub fn item(&self) -> &T {
        &self.item
    }

    /// Returns the cost, in permits.
    ///
    /// ```
    /// # use portcullis_jobs::Operation;
    /// assert_eq!(Operation::new("a record", 10).cost(), 10);
    /// ```
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// Returns how often the operation has been released, this time included: 1 in the first write.
    ///
    /// ```
    /// # use portcullis_jobs::Operation;
    /// assert_eq!(Operation::new("a record", 10).attempt(), 0);
    /// ```
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl<T> Clone for Operation<T> {
    fn clone(&self) -> Self {
        Self {
            item: Arc::clone(&self.item),
            ..*self
        }
    }
}

impl<T> Deref for Operation<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T: fmt::Debug> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("item", &self.item)
            .field("cost", &self.cost)
            .field("attempt", &self.attempt)
            .finish()
    }
}

/// What became of an operation.
///
/// ```
/// use core::time::Duration;
/// use portcullis_jobs::WriteOutcome;
///
/// let second = Duration::from_secs(1);
/// assert_eq!(WriteOutcome::of_status(201, None), WriteOutcome::Done);
/// let overloaded = WriteOutcome::of_status(429, Some(second));
/// assert_eq!(overloaded, WriteOutcome::Overloaded { retry_after: Some(second) });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteOutcome {
    /// It is written, durably: it can be acknowledged to its queue.
    Done,
    /// It failed in a way that may pass. The runner tries it again, after a delay, up to the limit
    /// of attempts.
    Retry,
    /// The service was overloaded and did not write it. The runner [slows
    /// down](crate::SlowDown) and tries the operation again, up to the limit of attempts.
    Overloaded {
        /// The time that the service asks to wait for.
        retry_after: Option<Duration>,
    },
    /// It can never succeed. The runner gives it up.
    Refused,
}

impl WriteOutcome {
    /// Returns the outcome that an HTTP status means. `retry_after` is the time in the field
    /// `Retry-After`, if the reply has one.
    ///
    /// | status | outcome |
    /// |---|---|
    /// | 200 to 299 | `Done` |
    /// | 429; 503 with `Retry-After` | `Overloaded` |
    /// | 408, 425, and 500 to 599 | `Retry` |
    /// | all others | `Refused` |
    ///
    /// ```
    /// # use portcullis_jobs::WriteOutcome;
    /// assert_eq!(WriteOutcome::of_status(503, None), WriteOutcome::Retry);
    /// assert_eq!(WriteOutcome::of_status(404, None), WriteOutcome::Refused);
    /// ```
    pub const fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        match (status, retry_after) {
            (200..=299, _) => Self::Done,
            (429, _) | (503, Some(_)) => Self::Overloaded { retry_after },
            (408 | 425 | 500..=599, _) => Self::Retry,
            _ => Self::Refused,
        }
    }
}

/// What became of a batch: the result of a write.
///
/// An [`WriteOutcome`] converts into one for the whole batch.
///
/// ```
/// use portcullis_jobs::{WriteOutcome, Written};
/// // The service has written two of three operations, and has charged 25 units.
/// let each = [WriteOutcome::Done, WriteOutcome::Retry, WriteOutcome::Done];
/// let written = Written::each(each).charged(25);
/// # let _ = written;
/// let all = Written::from(WriteOutcome::Done);
/// # let _ = all;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The outcome of operations that have none in `each`.
    pub(crate) all: WriteOutcome,
    pub(crate) each: Vec<WriteOutcome>,
    pub(crate) charged: u64,
}

impl Written {
    /// Creates the result of a batch whose operations had these outcomes, in the order of the
    /// batch. Operations without an outcome are [tried again](WriteOutcome::Retry), and outcomes
    /// without an operation are ignored.
    ///
    /// ```
    /// # use portcullis_jobs::{WriteOutcome, Written};
    /// let written = Written::each([WriteOutcome::Done, WriteOutcome::Refused]);
    /// # let _ = written;
    /// ```
    pub fn each(outcomes: impl IntoIterator<Item = WriteOutcome>) -> Self {
        Self {
            all: WriteOutcome::Retry,
            each: outcomes.into_iter().collect(),
            charged: 0,
        }
    }

    /// States what the service has charged for the batch, in permits, if it says so. What exceeds
    /// the costs of the operations is a debt: the runner pays it together with the next batch. What
    /// falls short is not returned.
    ///
    /// ```
    /// # use portcullis_jobs::{WriteOutcome, Written};
    /// let dear = Written::from(WriteOutcome::Done).charged(1_200);
    /// # let _ = dear;
    /// ```
    #[must_use]
    pub fn charged(mut self, permits: u64) -> Self {
        self.charged = permits;
        self
    }

    /// Returns the outcome of the operation at `index` in the batch.
    pub(crate) fn outcome(&self, index: usize) -> WriteOutcome {
        self.each.get(index).copied().unwrap_or(self.all)
    }
}

impl From<WriteOutcome> for Written {
    fn from(outcome: WriteOutcome) -> Self {
        Self {
            all: outcome,
            each: Vec::new(),
            charged: 0,
        }
    }
}

/// Operations that are over: what a runner hands to the function that acknowledges them.
///
/// ```
/// use portcullis_jobs::SettledBatch;
/// async fn acknowledge(settled: SettledBatch<u32>) -> Result<(), std::io::Error> {
///     for id in &settled.written {
///         println!("remove {} from the queue", **id);
///     }
///     for id in &settled.given_up {
///         println!("move {} to the dead letters, or leave it in the queue", **id);
///     }
///     Ok(())
/// }
/// # let _ = acknowledge;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SettledBatch<T> {
    /// The operations that are [written](WriteOutcome::Done).
    pub written: Vec<Operation<T>>,
    /// The operations that are given up: [refused](WriteOutcome::Refused), tried too often, or too
    /// costly for the limiter. They are not written. Acknowledge them only if they shall not be
    /// delivered again.
    pub given_up: Vec<Operation<T>>,
}
