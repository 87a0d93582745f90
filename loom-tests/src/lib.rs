//! Loom models of every atomic algorithm.
