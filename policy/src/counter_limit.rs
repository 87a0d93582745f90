//! The limits of a policy whose state a counter store keeps.
//!
//! A store knows nothing of policies, so what a [`Limit`] has that a store cannot keep is refused
//! here.

use portcullis_counters::{CounterLimit, CounterLimitError};

use crate::limit::{Algorithm, Limit, MAX_SEGMENTS};

// What is valid in this process is not refused for its number of segments by a store.
const _: () = assert!(MAX_SEGMENTS == portcullis_counters::MAX_SEGMENTS);

/// Converts the count, the period, the algorithm and the burst of a limit.
///
/// # Errors
///
/// [`CounterLimitError`] if the limit is of another kind, or too large.
///
/// ```
/// use portcullis_counters::{CounterLimit, CounterLimitError};
/// use portcullis_policy::Limit;
///
/// let limit: Limit = "100/1m".parse()?;
/// assert_eq!(CounterLimit::try_from(&limit)?.capacity(), 100);
/// let at_once = CounterLimit::try_from(&Limit::at_once(3));
/// assert_eq!(at_once, Err(CounterLimitError::AtOnce));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
impl TryFrom<&Limit> for CounterLimit {
    type Error = CounterLimitError;

    fn try_from(limit: &Limit) -> Result<Self, CounterLimitError> {
        let period = limit.period().ok_or(CounterLimitError::AtOnce)?;
        // The checks of the limit itself, such as for a burst of a window. What a store does not
        // have is said first: it is the reason that the user has to know.
        let checked = limit.compile();
        if limit.has_debt() {
            return Err(CounterLimitError::Unsupported("debt"));
        }
        if limit.has_initial() {
            // A store forgets a limit when all its permits have returned.
            return Err(CounterLimitError::Unsupported("initial"));
        }
        if limit.is_stepwise() {
            return Err(CounterLimitError::Unsupported("refill"));
        }
        if limit.is_strict() {
            return Err(CounterLimitError::Strict);
        }
        if limit.queue_limit() > 0 {
            return Err(CounterLimitError::Unsupported("queue"));
        }
        checked.map_err(|problem| CounterLimitError::Invalid(problem.to_string()))?;
        let (count, burst) = (limit.count(), limit.capacity());
        match limit.algorithm() {
            Algorithm::TokenBucket => Self::token_bucket(count, period, burst),
            Algorithm::FixedWindow => Self::windows(count, period, 1),
            Algorithm::SlidingWindow { segments } => Self::windows(count, period, segments),
            Algorithm::WindowFromRequest => {
                Err(CounterLimitError::Unsupported("window-from-request"))
            }
        }
    }
}
