//! The benches of this package count the instructions of hot paths: `limiters`, `waits` and
//! `adapters`. `cargo xtask bench-check` runs them.
