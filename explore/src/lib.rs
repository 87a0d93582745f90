//! Pre-empts the core's calls, and checks the results. All of it is in the tests.
//!
//! Under `cfg(portcullis_explore)`, which only these tests set, the core has atomics that can be
//! pre-empted. What follows is how the tests plan that.

#[cfg(portcullis_explore)]
pub use portcullis_core::explore::{Plan, atomic, run, steps, whole};
