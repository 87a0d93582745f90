//! Controllers, ours and those of the literature.

pub(crate) mod aimd;
pub(crate) mod envoy;
pub(crate) mod estimate;
pub(crate) mod gradient2;
pub(crate) mod knee;
pub(crate) mod vegas;
