//! What the tables of the guides in `docs/coming-from/` list as equivalents, completed to programs,
//! so that it compiles. A test of `xtask` looks for each cell in these files: `Type::method(..)`
//! may be written as a call of the method.
#![cfg(all(
    feature = "stream",
    feature = "tokio",
    feature = "async-io",
    feature = "embassy-time"
))]
#![allow(
    dead_code,
    clippy::pedantic,
    clippy::nursery,
    clippy::all,
    reason = "the functions are only compiled"
)]

mod governor;
mod tokio_semaphore;

#[test]
fn a_guide_for_each_module_exists() {
    for guide in ["governor", "tokio-semaphore"] {
        let path = format!(
            "{}/../docs/coming-from/{guide}.md",
            env!("CARGO_MANIFEST_DIR")
        );
        assert!(std::path::Path::new(&path).exists(), "{path}");
    }
}
