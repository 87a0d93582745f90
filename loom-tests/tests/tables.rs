//! The models of tables by key.
#![cfg(portcullis_loom)]

#[path = "keyed.rs"]
mod keyed;

#[path = "keyed_array.rs"]
mod keyed_array;

#[path = "keyed_list.rs"]
mod keyed_list;

#[path = "moving.rs"]
mod moving;

#[path = "moving_lists.rs"]
mod moving_lists;

#[path = "settling.rs"]
mod settling;
