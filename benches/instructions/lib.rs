//! The benches of this package count the instructions of hot paths: `limiters`, `waits`,
//! `adapters` and `policies`. `cargo xtask bench-check` runs them.
