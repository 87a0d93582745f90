//! The waiting engine: wait lists, timers, drivers and wakers, and the wait queue that joins them
//! under one lock.

pub(crate) mod drivers;
pub(crate) mod hook;
pub(crate) mod limiter_source;
pub(crate) mod list_key;
pub(crate) mod next_try;
pub(crate) mod options;
pub(crate) mod panics;
pub(crate) mod pending_releases;
#[cfg_attr(
    not(feature = "shedding"),
    expect(
        dead_code,
        unreachable_pub,
        reason = "the interface is exported with the feature"
    )
)]
pub(crate) mod priority;
pub(crate) mod queue_clock;
pub(crate) mod queue_config;
pub(crate) mod rejected;
pub(crate) mod ring;
pub(crate) mod round;
#[cfg_attr(
    not(feature = "shedding"),
    expect(
        dead_code,
        unreachable_pub,
        reason = "the interface is exported with the feature"
    )
)]
pub(crate) mod shedding;
pub(crate) mod timer;
pub(crate) mod timer_heap;
pub(crate) mod wait_list;
pub(crate) mod wait_queue;
pub(crate) mod wake_batch;
