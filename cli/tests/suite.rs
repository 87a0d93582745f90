//! The tests that can share a process. Those that cannot are programs of their own in `Cargo.toml`.
#![allow(
    clippy::duplicate_mod,
    reason = "the files of `support/` are modules of each file that uses them"
)]

#[path = "adapt.rs"]
mod adapt;

#[path = "check.rs"]
mod check;

#[path = "demo.rs"]
mod demo;

#[path = "export.rs"]
mod export;

#[path = "guide.rs"]
mod guide;

#[path = "pace.rs"]
mod pace;

#[path = "replay_activity.rs"]
mod replay_activity;

#[path = "replay_decisions.rs"]
mod replay_decisions;

#[path = "replay_input.rs"]
mod replay_input;

#[path = "replay_order.rs"]
mod replay_order;

#[path = "replay_page.rs"]
mod replay_page;

#[path = "replay_policy.rs"]
mod replay_policy;

#[path = "serve.rs"]
mod serve;

#[path = "shm.rs"]
mod shm;
