//! The rows, one file for each type of ours.

mod all_of;
mod concurrency;
pub(crate) mod growth;
mod lease_pool;
mod token_bucket;
mod windows;

use crate::measure::Contest;

pub(crate) fn all() -> Vec<Contest> {
    [token_bucket::rows(), windows::rows(), concurrency::rows(), lease_pool::rows(), all_of::rows()]
        .into_iter()
        .flatten()
        .collect()
}
