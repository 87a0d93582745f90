//! The units of time and rate, and time in equal steps.

pub(crate) mod grid;
pub(crate) mod rate;
pub(crate) mod timestamp;
