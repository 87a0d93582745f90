//! The rows, one file for each type of ours.

mod concurrency;
pub(crate) mod growth;
mod lease_pool;
mod token_bucket;
mod windows;

use crate::measure::Contest;

pub(crate) fn all() -> Vec<Contest> {
    [token_bucket::rows(), windows::rows(), concurrency::rows(), lease_pool::rows()]
        .into_iter()
        .flatten()
        .collect()
}
