//! The rows, one file per type.

mod all_of;
mod blocking;
mod channel;
pub(crate) mod concurrency;
mod contended;
pub(crate) mod cores;
pub(crate) mod growth;
mod http;
mod keyed;
mod lease_pool;
mod policy;
mod shared;
pub(crate) mod slice;
pub(crate) mod striped_bucket;
mod striped_concurrency;
pub(crate) mod token_bucket;
mod waiting;
mod windows;

use crate::measure::Contest;

/// Returns all rows. With `quick`, leaves out those that take long to set up.
pub(crate) fn all(quick: bool) -> Vec<Contest> {
    [
        token_bucket::rows(),
        windows::rows(),
        concurrency::rows(),
        lease_pool::rows(),
        shared::rows(),
        all_of::rows(),
        slice::rows(),
        striped_bucket::rows(),
        striped_concurrency::rows(),
        keyed::rows(quick),
        waiting::rows(),
        blocking::rows(),
        channel::rows(),
        policy::rows(),
        http::rows(),
        contended::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
