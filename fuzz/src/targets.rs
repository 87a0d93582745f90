//! The targets.

mod files;
mod headers;
mod ids;
mod logs;
mod proxies;
mod requests;
mod shared;

pub use files::{ats, ocelot, ocelot_folder, policy_json, policy_toml};
pub use headers::{forwarded, limit_fields};
pub use ids::lease_ids;
pub use logs::{log_formats, log_lines};
pub use proxies::{checks, descriptors};
pub use requests::{limits, requests};
pub use shared::shared_files;

/// A target.
#[derive(Debug)]
pub struct Target {
    /// The name of its function, its program and its corpus.
    pub name: &'static str,
    /// Reads any bytes, and panics if a promise is broken.
    pub run: fn(&[u8]),
    /// How many mutations the tests replay: at most about 4 s without optimisation.
    pub cases: usize,
}

macro_rules! targets {
    ($($name:ident: $cases:expr,)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(
            Target { name: stringify!($name), run: $name, cases: $cases },
        )*];
    };
}

targets! {
    policy_toml: 2_000,
    policy_json: 2_000,
    ocelot: 2_000,
    ocelot_folder: 2_000,
    ats: 5_000,
    limits: 20_000,
    requests: 10_000,
    log_formats: 20_000,
    log_lines: 10_000,
    limit_fields: 20_000,
    forwarded: 20_000,
    checks: 5_000,
    descriptors: 10_000,
    shared_files: 300,
    lease_ids: 20_000,
}
