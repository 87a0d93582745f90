//! The models of memory that processes share, or that belongs to a program in C.
#![cfg(portcullis_loom)]

#[path = "c_storage.rs"]
mod c_storage;

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
