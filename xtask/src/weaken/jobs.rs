//! Mutants of paced jobs, which an ordinary test must detect.

use super::Mutant;

const OVERLOAD: &str = "fleet/src/jobs/overload.rs";
const RUN: &str = "fleet/src/jobs/run.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    // More is released than is paid for, or at the wrong time.
    Mutant {
        file: RUN,
        within: "fn paid(",
        text: "if payment.owed == 0 {",
        by: "if payment.owed < u64::MAX {",
        test: ("cases_jobs", "overshoot"),
    },
    Mutant {
        file: RUN,
        within: "fn form<",
        text: "batch.is_empty() || cost + u64::from(operation.cost) <= worth",
        by: "true",
        test: ("jobs", "batches_are_as_large_as_allowed_paid_for_and_there"),
    },
    Mutant {
        file: RUN,
        within: "fn form<",
        text: " && (batch.is_empty() || cost < worth)",
        by: "",
        test: ("jobs", "operations_are_taken_only_when_there_is_capacity"),
    },
    Mutant {
        file: RUN,
        within: "fn form<",
        text: ".saturating_add(debt)",
        by: "",
        test: (
            "jobs",
            "what_the_service_charges_beyond_the_cost_is_paid_with_the_next_batch",
        ),
    },
    Mutant {
        file: RUN,
        within: "fn release<",
        text: " || self.overload.paused(now).is_some()",
        by: "",
        test: ("cases_jobs", "pause"),
    },
    // Capacity is lost.
    Mutant {
        file: RUN,
        within: "fn next_interval(",
        text: "full.min(Duration::from_nanos(rest))",
        by: "full.max(Duration::from_nanos(rest))",
        test: ("jobs", "a_small_burst_is_used_more_often_than_the_interval"),
    },
    Mutant {
        file: RUN,
        within: "fn pay_less(",
        text: "self.pay(wait);",
        by: "",
        test: ("jobs", "pieces_follow_a_share_that_becomes_smaller"),
    },
    // Bounds.
    Mutant {
        file: RUN,
        within: "fn release<",
        text: "self.flights.len() >= self.options.concurrency || ",
        by: "",
        test: ("jobs", "no_more_writes_run_at_once_than_allowed"),
    },
    Mutant {
        file: RUN,
        within: "fn take<",
        text: " || held >= self.options.buffer",
        by: "",
        test: ("jobs", "the_look_ahead_and_the_buffer_bound_what_is_held"),
    },
    Mutant {
        file: RUN,
        within: "fn written(",
        text: "if operation.attempt < self.options.attempts",
        by: "if operation.attempt <= self.options.attempts",
        test: (
            "jobs",
            "failures_are_tried_again_with_growing_delays_up_to_the_limit",
        ),
    },
    // An operation is acknowledged that is not written, or one is lost.
    Mutant {
        file: RUN,
        within: "fn written(",
        text: "unwrap_or_else(|| Outcome::Retry.into())",
        by: "unwrap_or_else(|| Outcome::Done.into())",
        test: (
            "jobs",
            "a_write_that_takes_too_long_is_dropped_and_tried_again",
        ),
    },
    Mutant {
        file: RUN,
        within: "fn written(",
        text: "again.push(operation);",
        by: "done.push(operation);",
        test: (
            "jobs",
            "only_the_operations_of_a_batch_that_failed_are_tried_again",
        ),
    },
    Mutant {
        file: RUN,
        within: "fn put_back(",
        text: "self.waiting.push_front(operation);",
        by: "drop(operation);",
        test: ("jobs", "operations_that_wait_are_put_back_in_a_pause"),
    },
    // The speed.
    Mutant {
        file: OVERLOAD,
        within: "fn charge(",
        text: " + u128::from(self.rest)",
        by: "",
        test: ("jobs", "at_a_lower_speed_fractions_of_permits_are_carried"),
    },
    Mutant {
        file: OVERLOAD,
        within: "fn overloaded(",
        text: "if !is_new && retry_after.is_none() {",
        by: "if false {",
        test: ("jobs", "many_replies_to_one_overload_slow_down_once"),
    },
    Mutant {
        file: OVERLOAD,
        within: "fn overloaded(",
        text: "let is_new = sent >= self.paused_until;",
        by: "let is_new = true;",
        test: ("jobs", "many_replies_to_one_overload_slow_down_once"),
    },
];
