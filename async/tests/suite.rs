//! The tests that can share a process. Those that cannot are programs of their own in `Cargo.toml`.
#![allow(
    clippy::duplicate_mod,
    reason = "the files of `support/` are modules of each file that uses them"
)]

#[path = "adapters_conservation.rs"]
mod adapters_conservation;

#[path = "attend.rs"]
mod attend;

#[path = "blocking.rs"]
mod blocking;

#[path = "by_address.rs"]
mod by_address;

#[path = "cases_dotnet.rs"]
mod cases_dotnet;

#[path = "cases_world.rs"]
mod cases_world;

#[path = "channel.rs"]
mod channel;

#[path = "channel_conservation.rs"]
mod channel_conservation;

#[path = "coming_from/main.rs"]
mod coming_from;

#[path = "composition.rs"]
mod composition;

#[path = "conservation.rs"]
mod conservation;

#[path = "corners.rs"]
mod corners;

#[path = "counts.rs"]
mod counts;

#[path = "deadlines.rs"]
mod deadlines;

#[path = "drained.rs"]
mod drained;

#[path = "drive.rs"]
mod drive;

#[path = "drivers.rs"]
mod drivers;

#[path = "edges.rs"]
mod edges;

#[path = "explained.rs"]
mod explained;

#[path = "first_wait.rs"]
mod first_wait;

#[path = "given_back.rs"]
mod given_back;

#[path = "handover.rs"]
mod handover;

#[path = "hook.rs"]
mod hook;

#[path = "interval.rs"]
mod interval;

#[path = "io.rs"]
mod io;

#[path = "keyed_queue.rs"]
mod keyed_queue;

#[path = "order.rs"]
mod order;

#[path = "outcomes.rs"]
mod outcomes;

#[path = "oversized.rs"]
mod oversized;

#[path = "owned.rs"]
mod owned;

#[path = "pause.rs"]
mod pause;

#[path = "priorities.rs"]
mod priorities;

#[path = "queue.rs"]
mod queue;

#[path = "retry.rs"]
mod retry;

#[path = "room.rs"]
mod room;

#[path = "shedding.rs"]
mod shedding;

#[path = "slack.rs"]
mod slack;

#[path = "streams.rs"]
mod streams;

#[path = "ticks.rs"]
mod ticks;

#[path = "time.rs"]
mod time;

#[path = "unclaimed.rs"]
mod unclaimed;

#[path = "unwinding.rs"]
mod unwinding;

#[path = "wakers.rs"]
mod wakers;

#[path = "worker.rs"]
mod worker;
