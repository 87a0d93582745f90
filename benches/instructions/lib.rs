//! Instructions of hot paths are counted in the benches of this package: `limiters`, `waits` and
//! `adapters`. `cargo xtask bench-check` runs them.
