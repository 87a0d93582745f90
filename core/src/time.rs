//! The units of time and rate, intervals, and time in equal steps.

pub(crate) mod grid;
pub(crate) mod interval;
pub(crate) mod rate;
pub(crate) mod timestamp;
pub(crate) mod timing;
