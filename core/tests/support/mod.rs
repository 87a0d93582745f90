//! What the property tests compare the limiters with: models in unbounded rational arithmetic, and
//! traces of random operations at arbitrary times.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod bucket;
pub(crate) mod concurrency;
pub(crate) mod draws;
pub(crate) mod fixed;
pub(crate) mod model;
pub(crate) mod oracle;
pub(crate) mod sliding;
pub(crate) mod soak;
pub(crate) mod trace;
pub(crate) mod warming;
