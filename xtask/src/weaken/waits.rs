//! Mutants of requests that wait for limits, which an ordinary test must detect.

use super::Mutant;

const WAITS: &str = "policy/src/store/waits.rs";
const STORE: &str = "policy/src/store.rs";
const POLICY: &str = "policy/src/policy.rs";
const QUEUE: &str = "policy/src/queue.rs";
const BLOCKING: &str = "policy/src/queue/blocking.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    // A permit that returns is not granted to a waiting request, or only later.
    Mutant {
        file: STORE,
        within: "pub(crate) fn release(",
        text: "if self.queue().is_some() {",
        by: "if false {",
        test: ("queues", "a_released_permit_goes_to_the_oldest_request"),
    },
    Mutant {
        file: STORE,
        within: "pub(crate) fn give_back(",
        text: "self.serve(at);",
        by: "",
        test: ("queues", "a_settlement_grants_what_it_returns"),
    },
    Mutant {
        file: WAITS,
        within: "fn limiter_at(",
        text: "self.unheard.iter().all(|token| token.strong_count() == 0)",
        by: "true",
        test: (
            "queues",
            "a_permit_of_a_policy_without_a_queue_is_found_when_it_returns",
        ),
    },
    // A grant stays taken, or is returned while it is used.
    Mutant {
        file: WAITS,
        within: "fn refund_at(",
        text: "table.key(*at).refund_at(now, n, receipt)",
        by: "{ let _ = table; receipt.refunded(0) }",
        test: (
            "queues",
            "a_grant_that_is_not_claimed_goes_to_the_next_request",
        ),
    },
    Mutant {
        file: QUEUE,
        within: "fn end_of_wait<",
        text: "lease.forget();",
        by: "drop(lease);",
        test: (
            "queues",
            "a_grant_that_is_not_claimed_goes_to_the_next_request",
        ),
    },
    // A request overtakes another one; a limit without a queue makes requests wait.
    Mutant {
        file: WAITS,
        within: "pub(crate) fn in_turn(",
        text: "queue.in_turn(take).unwrap_or_else(",
        by: "Some(take()).unwrap_or_else(",
        test: ("queues", "no_method_overtakes_a_request_that_waits"),
    },
    Mutant {
        file: WAITS,
        within: "fn may_wait(",
        text: "others.try_for_each(|limit| {",
        by: "others.by_ref().take(0).try_for_each(|limit| {",
        test: (
            "queues",
            "a_limit_without_a_queue_denies_at_once_and_also_while_a_request_waits",
        ),
    },
    Mutant {
        file: WAITS,
        within: "fn peek(",
        text: "if self.has_ended(at, limit) {",
        by: "if false {",
        test: (
            "queues",
            "those_who_wait_for_a_limit_go_on_when_limits_that_share_its_table_come_and_go",
        ),
    },
    Mutant {
        file: WAITS,
        within: "pub(crate) fn create_queue(",
        text: "queue.with_max_waiters(MAX_WAITING)",
        by: "queue.with_max_waiters(u32::MAX)",
        test: ("queues", "many_keys_wait_apart_and_in_bounded_number"),
    },
    // A thread does not wait as long as it may.
    Mutant {
        file: BLOCKING,
        within: "pub fn block(",
        text: "wait.block()",
        by: "wait.until(since).block()",
        test: (
            "queues",
            "threads::threads_and_tasks_are_granted_in_one_order",
        ),
    },
    // A task that is not polled stops all other waits.
    Mutant {
        file: WAITS,
        within: "pub(crate) fn create_queue(",
        text: "queue.shared()",
        by: "Arc::new(queue)",
        test: (
            "queues",
            "driving::a_request_that_is_woken_and_never_polled_again_delays_no_other",
        ),
    },
    // A wait starts a penalty, a denial starts none, or a penalty does not deny.
    Mutant {
        file: WAITS,
        within: "fn attempt(",
        text: "self.take_noted(at, now, n, false, &last)",
        by: "self.take_noted(at, now, n, true, &last)",
        test: (
            "queues",
            "a_denial_after_or_without_a_wait_starts_the_penalty_and_a_wait_does_not",
        ),
    },
    Mutant {
        file: POLICY,
        within: "pub(crate) fn deny_after_wait(",
        text: "store.penalize(at, now);",
        by: "let _ = (store, at);",
        test: (
            "queues",
            "a_denial_after_or_without_a_wait_starts_the_penalty_and_a_wait_does_not",
        ),
    },
    Mutant {
        file: WAITS,
        within: "pub(crate) fn take_or_wait(",
        text: "return Err(Turned::Denied(penalty));",
        by: "let _ = penalty;",
        test: (
            "queues",
            "a_denial_after_or_without_a_wait_starts_the_penalty_and_a_wait_does_not",
        ),
    },
    // Waiting requests are lost in a change, or wait where none is served.
    Mutant {
        file: WAITS,
        within: "pub(crate) fn hand_over_queue(",
        text: "queue.change(|table| table.0.store.store(Arc::new(to.share())));",
        by: "",
        test: ("queues", "a_raised_limit_grants_at_once_to_those_who_wait"),
    },
    Mutant {
        file: WAITS,
        within: "pub(crate) fn hand_over_queue(",
        text: "queue.set_max_permits(to.waits.permits);",
        by: "",
        test: ("queues", "those_who_wait_stay_if_the_queue_gets_smaller"),
    },
    Mutant {
        file: WAITS,
        within: "pub(crate) fn hand_over_queue(",
        text: "queue.close()",
        by: "()",
        test: (
            "queues",
            "those_who_cannot_go_on_waiting_are_decided_at_once",
        ),
    },
    Mutant {
        file: WAITS,
        within: "pub(crate) fn follow_queue(",
        text: "self.at_once_lines() == old.at_once_lines()",
        by: "true",
        test: (
            "queues",
            "those_who_cannot_go_on_waiting_are_decided_at_once",
        ),
    },
    // A queue that waits for a task that is not polled; bytes that are denied.
    Mutant {
        file: WAITS,
        within: "pub(crate) fn create_queue(",
        text: "queue.shared()",
        by: "Arc::new(queue)",
        test: (
            "queues",
            "bytes::a_task_that_is_not_polled_keeps_no_other_one_waiting",
        ),
    },
    Mutant {
        file: QUEUE,
        within: "pub(crate) fn queued(",
        text: "Kind::Ingress | Kind::Egress",
        by: "Kind::Ingress",
        test: (
            "queues",
            "bytes::bytes_wait_for_limits_without_a_queue_and_requests_do_not",
        ),
    },
    Mutant {
        file: QUEUE,
        within: "pub(crate) fn follow_timers(",
        text: "if self.timers.is_default() && !before.timers.is_default() {",
        by: "if false {",
        test: ("queues", "a_new_policy_takes_over_the_timers"),
    },
];
