//! Mutants of the middleware that an ordinary test must detect.

use super::Mutant;

const BODY: &str = "tower/src/body.rs";
const DECIDE: &str = "tower/src/decide.rs";
const KEY: &str = "tower/src/decide/key.rs";
const STATED: &str = "tower/src/decide/stated.rs";
const DENIAL: &str = "tower/src/denial.rs";
const HEAD: &str = "tower/src/head.rs";
const READ: &str = "tower/src/fields/read.rs";
const WRITE: &str = "tower/src/fields/write.rs";
const QUEUE: &str = "tower/src/decide/queue.rs";
const PACED: &str = "tower/src/bodies/body.rs";
const WAITS: &str = "tower/src/decide/policy/waiting.rs";
const OF_RULES: &str = "tower/src/bodies/policy.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    // A permit that is kept for good, too long, or by a limit before the one that denies.
    Mutant {
        file: BODY,
        within: "fn poll_frame(",
        text: "*this.permits = None;",
        by: "core::mem::forget(this.permits.take());",
        test: ("endings", "an_idle_connection_holds_nothing"),
    },
    Mutant {
        file: BODY,
        within: "fn poll_frame(",
        text: "|| body.is_end_stream()",
        by: "",
        test: ("leases", "the_last_frame_of_a_body_returns_the_permit"),
    },
    Mutant {
        file: DECIDE,
        within: "match self.next.decide_at(now, head, cost) {",
        text: "self.first.undo_at(now, first);",
        by: "let _ = first;",
        test: ("dotnet", "the_first_limit_that_denies_makes_the_reply"),
    },
    Mutant {
        file: DECIDE,
        within: "match self.next.decide_noting_at(now, head, cost, notes) {",
        text: "notes.forget_states(from, to);",
        by: "let _ = (from, to);",
        test: ("ietf", "a_denial_states_nothing_that_was_given_back"),
    },
    // A layer inside a nested router, or behind a middleware, reads another path than the rules.
    Mutant {
        file: HEAD,
        within: "fn target<",
        text: "extensions.get::<axum::extract::OriginalUri>()",
        by: "None::<&axum::extract::OriginalUri>",
        test: ("axum", "a_layer_inside_a_nested_router_sees_whole_paths"),
    },
    Mutant {
        file: HEAD,
        within: "fn target<",
        text: "if let Some(Target(target)) = extensions.get() {",
        by: "if let Some(Target(target)) = None::<&Target> {",
        test: (
            "axum",
            "a_uri_that_a_middleware_changes_counts_unless_it_names_the_target",
        ),
    },
    Mutant {
        file: HEAD,
        within: "fn is_rest(",
        text: "(whole.ends_with(rest) || ends_with(whole, rest))",
        by: "true",
        test: (
            "axum",
            "a_uri_that_a_middleware_changes_counts_unless_it_names_the_target",
        ),
    },
    Mutant {
        file: HEAD,
        within: "fn is_rest(",
        text: "(whole.ends_with(rest) || ends_with(whole, rest))",
        by: "whole.ends_with(rest)",
        test: (
            "axum",
            "slashes_that_a_middleware_drops_in_a_nested_router_evade_no_limit",
        ),
    },
    // The address that a service states loses to that of the connection, which may be a proxy.
    Mutant {
        file: HEAD,
        within: "fn peer_address(",
        text: "if let Some(PeerAddress(address)) = extensions.get() {",
        by: "if let Some(PeerAddress(address)) = None::<&PeerAddress> {",
        test: (
            "axum",
            "an_explicit_address_counts_instead_of_that_of_the_connection",
        ),
    },
    Mutant {
        file: DENIAL,
        within: "pub(crate) fn stored(",
        text: "PathError::Dots | PathError::Ambiguous",
        by: "PathError::TooManyComponents",
        test: (
            "axum",
            "no_spelling_of_a_path_gets_more_from_a_handler_than_its_limit",
        ),
    },
    // Queues of limiters in code: a wait without an end, one permit instead of the cost, or one
    // queue for all keys.
    Mutant {
        file: QUEUE,
        within: "fn take_or_wait<",
        text: "now.saturating_add(most)",
        by: "now.max(Timestamp::MAX - most)",
        test: ("queues", "a_request_that_waits_counts_once_in_each_limit"),
    },
    Mutant {
        file: "tower/src/decide/limiter.rs",
        within: "pub(super) const fn n(",
        text: "{ cost }",
        by: "{ 1 + 0 * cost }",
        test: ("queues", "a_request_waits_in_one_layer_after_another"),
    },
    Mutant {
        file: QUEUE,
        within: "fn limiter(&self, head",
        text: "self.queue.owned_key(&(self.key)(head))",
        by: "self.queue.owned_key(&((self.key)(head), 1).1)",
        test: ("queues", "each_layer_waits_for_its_own_key"),
    },
    // A limiter for each key: other keys, or a settlement that is lost.
    Mutant {
        file: KEY,
        within: "pub fn address(",
        text: "head.address?.to_canonical()",
        by: "head.address?",
        test: ("settings", "each_key_has_a_limiter"),
    },
    Mutant {
        file: KEY,
        within: "pub fn address(",
        text: "(address.to_bits() >> 64) as u64",
        by: "address.to_bits() as u64",
        test: ("settings", "each_key_has_a_limiter"),
    },
    Mutant {
        file: KEY,
        within: "fn settle_at(",
        text: "refund_at(now, unused,",
        by: "refund_at(now, unused.min(0),",
        test: (
            "settings",
            "a_limiter_for_each_key_settles_takes_one_permit_and_tells_when_to_retry",
        ),
    },
    Mutant {
        file: KEY,
        within: "fn settle_at(",
        text: "drop(key.try_acquire_between_at(now, 1, actual - held.n));",
        by: "",
        test: (
            "settings",
            "a_limiter_for_each_key_settles_takes_one_permit_and_tells_when_to_retry",
        ),
    },
    // A reply with headers of the request, with a retry that is too early, or in a number that a
    // client can foresee.
    Mutant {
        file: DENIAL,
        within: "pub(crate) fn response(",
        text: "headers.clear();",
        by: "",
        test: (
            "settings",
            "a_reply_has_the_headers_that_were_set_and_none_of_the_request",
        ),
    },
    Mutant {
        file: DENIAL,
        within: "pub(crate) fn response(",
        text: "seconds.saturating_add(random",
        by: "seconds.saturating_sub(random",
        test: (
            "settings",
            "jitter_is_added_and_a_function_has_the_last_word",
        ),
    },
    Mutant {
        file: DENIAL,
        within: "fn retry_seconds(retry:",
        text: ".max(1)",
        by: "",
        test: ("settings", "the_time_until_a_retry_is_at_least_a_second"),
    },
    Mutant {
        file: DENIAL,
        within: "pub(crate) fn take<L: Limiter>(",
        text: "seconds(earliest) == seconds(latest)",
        by: "true",
        test: (
            "clocks",
            "a_limiter_decides_within_the_interval_where_all_of_it_gives_the_same_reply",
        ),
    },
    Mutant {
        file: DENIAL,
        within: "pub(crate) fn take<L: Limiter>(",
        text: "!self.to_the_instant && ",
        by: "",
        test: ("clocks", "jitter_and_a_function_get_the_time_itself"),
    },
    Mutant {
        file: HEAD,
        within: "pub(crate) fn with_request<T>(",
        text: ".headers(&headers)",
        by: "",
        test: ("dotnet", "each_limit_finds_its_own_key"),
    },
    Mutant {
        file: "tower/src/forwarded.rs",
        within: "pub fn client(",
        text: ".rsplit(",
        by: ".split(",
        test: (
            "settings",
            "clients_behind_a_trusted_proxy_have_limits_of_their_own",
        ),
    },
    // Fields: a reply of a cache, a wait without a bound, a text that ends its string, a state that
    // a denial does not have.
    Mutant {
        file: READ,
        within: "pub fn read(",
        text: "!= Ok(0)",
        by: "== Ok(0)",
        test: ("fields", "a_reply_from_a_cache_states_nothing"),
    },
    Mutant {
        file: READ,
        within: "fn stated(",
        text: "number.as_secs() < EPOCH_SECONDS",
        by: "number < Duration::MAX",
        test: (
            "fields",
            "every_field_with_a_time_may_state_it_since_1970_in_any_unit",
        ),
    },
    Mutant {
        file: READ,
        within: "fn three_fields(",
        text: "first.window.or(remaining.window)",
        by: "first.window",
        test: ("fields", "permits_may_have_a_window_and_a_fraction"),
    },
    Mutant {
        file: "tower/src/client.rs",
        within: "pub fn replied(",
        text: "self.reading.believed(window)",
        by: "window",
        test: (
            "client",
            "a_server_that_states_absurd_times_is_believed_for_the_longest_time_only",
        ),
    },
    Mutant {
        file: READ,
        within: "fn members(",
        text: "members.truncate(MOST);",
        by: "",
        test: ("fields", "at_most_32_limits_are_read"),
    },
    Mutant {
        file: WRITE,
        within: "fn string(",
        text: "text.extend(['\\\\', character])",
        by: "text.push(character)",
        test: ("fields", "what_is_written_is_read"),
    },
    Mutant {
        file: STATED,
        within: "fn quota(",
        text: "Outcome::Denied { .. } => return Some(quota),",
        by: "",
        test: ("settings", "every_response_states_the_limits"),
    },
    // Headers of a rule that has none, and a rule that is not found by what the program knows.
    Mutant {
        file: STATED,
        within: "fn quota(",
        text: ".filter(|rule| rule.has_headers())",
        by: "",
        test: ("ocelot", "headers_are_disabled_for_each_route"),
    },
    Mutant {
        file: DENIAL,
        within: "pub(crate) fn response(",
        text: " && denial.reply.states_retry",
        by: "",
        test: ("ocelot", "headers_are_disabled_for_each_route"),
    },
    // The text for an unknown client lacks the wait.
    Mutant {
        file: DENIAL,
        within: "fn limit_text(",
        text: "/w{wait}\"",
        by: "/w0ms\"",
        test: ("ocelot", "a_request_without_a_client_gets_503"),
    },
    Mutant {
        file: "tower/src/decide/policy/finder.rs",
        within: "fn value(",
        text: "if name == ENDPOINT",
        by: "if name != ENDPOINT",
        test: ("dotnet", "a_route_that_names_an_unknown_rule_is_an_error"),
    },
    Mutant {
        file: HEAD,
        within: "pub(crate) fn with_request<T>(",
        text: "request.properties(&properties)",
        by: "request",
        test: (
            "settings",
            "rules_see_the_properties_and_the_tier_that_the_program_finds",
        ),
    },
    // Measurements: a lease that ends before the body, and a rule that did not decide.
    Mutant {
        file: "tower/src/future.rs",
        within: "fn poll(self: Pin<&mut Self>",
        text: "measured = extras.measured;",
        by: "let _ = (extras.measured, &mut measured);",
        test: ("metrics", "a_lease_is_active_until_the_body_has_ended"),
    },
    Mutant {
        file: "tower/src/decide/notes.rs",
        within: "pub fn measure(",
        text: "self.instruments = Some(instruments);",
        by: "self.instruments.get_or_insert(instruments);",
        test: (
            "metrics",
            "a_request_counts_once_with_the_rule_that_decided",
        ),
    },
    // Counter stores: a request that passes without an answer, a retry that is not stated, or the
    // reply of another limit.
    Mutant {
        file: "tower/src/waiting.rs",
        within: "match this.asked.failed.take() {",
        text: "if settings.passes_without_store(&error)",
        by: "if settings.passes_without_store(&error) || true",
        test: (
            "stored",
            "a_store_without_an_answer_denies_unless_requests_are_to_pass",
        ),
    },
    Mutant {
        file: WAITS,
        within: "fn end<P:",
        text: "denial.retry = retry;",
        by: "let _ = retry;",
        test: (
            "stored",
            "services_of_several_processes_share_the_limits_of_each_client",
        ),
    },
    Mutant {
        file: WAITS,
        within: "fn end<P:",
        text: "stored.is_overridden_in_store()",
        by: "false",
        test: ("stored", "responses_state_what_the_store_has_left"),
    },
    // Bodies: bytes in another order, without permits, or an end before the last of them.
    Mutant {
        file: PACED,
        within: "fn poll_frame(",
        text: "this.rest.split_to(granted as usize)",
        by: "{ let _ = granted; core::mem::take(this.rest) }",
        test: ("bodies", "bodies_pass_whole_in_order_and_at_the_rate"),
    },
    Mutant {
        file: PACED,
        within: "fn is_end_stream(",
        text: "self.rest.is_empty() &&",
        by: "",
        test: (
            "bodies",
            "the_length_of_a_body_that_has_passed_in_part_is_what_is_left",
        ),
    },
    Mutant {
        file: OF_RULES,
        within: "fn of(policy: &Policy, bytes: u32,",
        text: "None | Some(Retry::Never) => never(),",
        by: "None | Some(Retry::Never | Retry::At(_)) => never(),",
        test: (
            "bodies",
            "a_full_queue_of_a_policy_delays_bodies_and_fails_none",
        ),
    },
    Mutant {
        file: OF_RULES,
        within: "fn piece_of(",
        text: "if decision.retry() != Some(Retry::Never) =>",
        by: "if decision.retry() == Some(Retry::Never) =>",
        test: ("bodies", "a_penalty_delays_bodies_and_fails_none"),
    },
    // A key that is never there is one more value, or a denial has no reason.
    Mutant {
        file: KEY,
        within: "match (self.key)(head, &self.table) {",
        text: "None => Err(self.replies.without_key(now(), self.needs_address)),",
        by: "None => { let _ = now; let hash = self.table.hash_of(&()); Ok((self.of(hash), hash)) }",
        test: (
            "addresses",
            "a_service_that_does_not_know_its_clients_says_so_to_the_first_request",
        ),
    },
    Mutant {
        file: HEAD,
        within: "impl Fields for Headers",
        text: "self.0.get(name).map(http::HeaderValue::as_bytes)",
        by: "Some(self.0.get(name)?.to_str().ok()?.as_bytes())",
        test: (
            "addresses",
            "header_values_that_are_not_utf_8_are_keys_of_their_own",
        ),
    },
    Mutant {
        file: "tower/src/forwarded.rs",
        within: "pub(crate) fn head<",
        text: "head.address.or(self.without_address)",
        by: "head.address",
        test: (
            "addresses",
            "the_peers_of_a_unix_socket_have_the_address_that_the_program_says",
        ),
    },
    Mutant {
        file: "tower/src/waiting.rs",
        within: "let is_denied = judged.is_err();",
        text: "self.inner = self.inner.clone();",
        by: "",
        test: (
            "addresses",
            "a_denied_request_keeps_no_place_of_an_inner_concurrency_limit",
        ),
    },
    Mutant {
        file: DENIAL,
        within: "impl LimitReply",
        text: "limit: self.limit.clone(),",
        by: "limit: None,",
        test: (
            "settings",
            "a_denial_of_a_policy_has_a_reason_and_the_name_of_the_limit",
        ),
    },
    Mutant {
        file: DENIAL,
        within: "pub(crate) fn limiter(",
        text: "if !self.carried.is_empty() {",
        by: "if self.carried.len() > 9 {",
        test: (
            "settings",
            "a_denial_says_which_limiter_in_code_denied_and_why",
        ),
    },
];
