//! Limiters that wrap another limiter.

pub(crate) mod counted;
pub(crate) mod escalation;
pub(crate) mod penalty;
pub(crate) mod tally;
