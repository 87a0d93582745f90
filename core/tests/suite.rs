//! The tests that can share a process. Those that cannot are programs of their own in `Cargo.toml`.
#![allow(
    clippy::duplicate_mod,
    reason = "the files of `support/` are modules of each file that uses them"
)]

#[path = "added.rs"]
mod added;

#[path = "adjustable_bucket.rs"]
mod adjustable_bucket;

#[path = "adjustable_window.rs"]
mod adjustable_window;

#[path = "all_of.rs"]
mod all_of;

#[path = "all_of_retry.rs"]
mod all_of_retry;

#[path = "any_rest.rs"]
mod any_rest;

#[path = "any_settings.rs"]
mod any_settings;

#[path = "at_rest.rs"]
mod at_rest;

#[path = "attached.rs"]
mod attached;

#[path = "cases_bucket4j.rs"]
mod cases_bucket4j;

#[path = "cases_compositions.rs"]
mod cases_compositions;

#[path = "cases_control.rs"]
mod cases_control;

#[path = "cases_dotnet.rs"]
mod cases_dotnet;

#[path = "cases_dotnet_replenishing.rs"]
mod cases_dotnet_replenishing;

#[path = "cases_keyed.rs"]
mod cases_keyed;

#[path = "cases_world.rs"]
mod cases_world;

#[path = "concurrency.rs"]
mod concurrency;

#[path = "concurrency_shares.rs"]
mod concurrency_shares;

#[path = "cooldown_window.rs"]
mod cooldown_window;

#[path = "counted.rs"]
mod counted;

#[path = "counts.rs"]
mod counts;

#[path = "damaged_lines.rs"]
mod damaged_lines;

#[path = "effective_rate.rs"]
mod effective_rate;

#[path = "escalation.rs"]
mod escalation;

#[path = "explained.rs"]
mod explained;

#[path = "fixed_window.rs"]
mod fixed_window;

#[path = "given_back_late.rs"]
mod given_back_late;

#[path = "interval.rs"]
mod interval;

#[path = "invariants.rs"]
mod invariants;

#[path = "keyed.rs"]
mod keyed;

#[path = "keyed_array.rs"]
mod keyed_array;

#[path = "keyed_list.rs"]
mod keyed_list;

#[path = "late.rs"]
mod late;

#[path = "lease_pool.rs"]
mod lease_pool;

#[path = "leases.rs"]
mod leases;

#[path = "metadata.rs"]
mod metadata;

#[path = "moving.rs"]
mod moving;

#[path = "moving_lists.rs"]
mod moving_lists;

#[path = "named_twice.rs"]
mod named_twice;

#[path = "oracle.rs"]
mod oracle;

#[path = "owing.rs"]
mod owing;

#[path = "penalty.rs"]
mod penalty;

#[path = "read_back.rs"]
mod read_back;

#[path = "read_only.rs"]
mod read_only;

#[path = "refunds.rs"]
mod refunds;

#[path = "reservations.rs"]
mod reservations;

#[path = "retry_behind.rs"]
mod retry_behind;

#[path = "saved.rs"]
mod saved;

#[path = "settings.rs"]
mod settings;

#[path = "settling.rs"]
mod settling;

#[path = "settling_lists.rs"]
mod settling_lists;

#[path = "sliding_window.rs"]
mod sliding_window;

#[path = "sometimes.rs"]
mod sometimes;

#[path = "threads.rs"]
mod threads;

#[path = "timestamp.rs"]
mod timestamp;

#[path = "token_bucket.rs"]
mod token_bucket;

#[path = "types.rs"]
mod types;

#[path = "unlimited.rs"]
mod unlimited;

#[path = "warming_bucket.rs"]
mod warming_bucket;

#[path = "wrapped.rs"]
mod wrapped;
