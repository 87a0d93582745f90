//! The models of shared memory.
#![cfg(portcullis_loom)]

#[path = "shared_lock.rs"]
mod shared_lock;

#[path = "shared_pool.rs"]
mod shared_pool;

#[path = "shared_slots.rs"]
mod shared_slots;

#[path = "shared_stripes.rs"]
mod shared_stripes;

#[path = "shared_versions.rs"]
mod shared_versions;
