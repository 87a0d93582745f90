//! The tests that can share a process. Those that cannot are programs of their own in `Cargo.toml`.
#![allow(
    clippy::duplicate_mod,
    reason = "the files of `support/` are modules of each file that uses them"
)]

#[path = "cases.rs"]
mod cases;

#[path = "jobs.rs"]
mod jobs;

#[path = "random.rs"]
mod random;

#[path = "story.rs"]
mod story;
