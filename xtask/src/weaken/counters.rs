//! Mutants of counter stores, which an ordinary test must detect.

use super::Mutant;

const COUNTERS: &str = "policy/src/counters.rs";
const CACHED: &str = "policy/src/counters/cached.rs";
const GUARDED: &str = "policy/src/counters/guarded.rs";
const LIMIT: &str = "policy/src/counters/limit.rs";
const MEMORY: &str = "policy/src/counters/memory.rs";
const POLICY: &str = "policy/src/policy.rs";
const QUOTA: &str = "policy/src/counters/quota.rs";
const REDIS: &str = "policy/src/counters/redis.rs";

const STORED: &str = "policy/src/stored.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    // A write undoes another one, or spends permits of long ago.
    Mutant {
        file: MEMORY,
        within: "fn write(&self, read_at",
        text: " || !all.quotas(&ids, now).iter().eq(before)",
        by: " || before.count() == usize::MAX",
        test: (
            "counters",
            "a_race_ends_in_another_attempt_and_never_in_a_permit_too_many",
        ),
    },
    Mutant {
        file: MEMORY,
        within: "fn write(&self, read_at",
        text: "now.saturating_since(read_at) > MAX_AGE || ",
        by: "",
        test: ("counters", "a_write_whose_read_is_too_old_writes_nothing"),
    },
    // The memory of a store grows, or an entry is forgotten.
    Mutant {
        file: MEMORY,
        within: "fn make_room(",
        text: "return Err(StoreError::Full);",
        by: "",
        test: (
            "counters",
            "a_full_store_refuses_new_ids_and_forgets_no_other",
        ),
    },
    Mutant {
        file: MEMORY,
        within: "fn purge(",
        text: "self.entries.remove(&id);",
        by: "",
        test: ("counters", "ids_that_have_expired_take_no_memory_for_long"),
    },
    // The arithmetic grants too many, or tells a wrong instant.
    Mutant {
        file: QUOTA,
        within: "fn state(&self",
        text: "counts[((passed + 1) % segments) as usize] = 0;",
        by: "counts[(passed % segments) as usize] = 0;",
        test: ("counters", "decisions_are_those_of_a_list_of_all_grants"),
    },
    Mutant {
        file: QUOTA,
        within: "fn instant_of(",
        text: "(burst - n) * permit",
        by: "(burst - n + 1) * permit",
        test: (
            "counters",
            "a_denied_request_succeeds_at_the_instant_it_was_told_and_not_before",
        ),
    },
    // Permits that were taken ahead are granted too late.
    Mutant {
        file: LIMIT,
        within: "fn ahead(",
        text: "burst: burst - kept",
        by: "burst",
        test: (
            "cached",
            "permits_that_are_held_while_the_store_fills_up_are_part_of_the_burst",
        ),
    },
    Mutant {
        file: CACHED,
        within: "fn granted(",
        text: "entry.hold.min(left)",
        by: "entry.hold.max(left)",
        test: ("cached", "caches_together_never_exceed_a_limit"),
    },
    Mutant {
        file: CACHED,
        within: "fn begin(",
        text: "if entry.until <= now {",
        by: "if entry.until < Timestamp::ZERO {",
        test: ("cached", "permits_that_are_not_used_lapse"),
    },
    Mutant {
        file: CACHED,
        within: "fn begin(",
        text: "self.shared.clock.now() >= until",
        by: "now >= until",
        test: (
            "cached",
            "a_thread_that_is_stopped_in_a_decision_grants_nothing_that_has_lapsed",
        ),
    },
    // An instance that was idle forgets what it is told.
    Mutant {
        file: CACHED,
        within: "fn receive(",
        text: "now.saturating_add(self.hold)",
        by: "sent.saturating_add(self.hold).min(now)",
        test: (
            "cached",
            "an_instance_that_has_been_idle_keeps_a_denial_that_it_is_told",
        ),
    },
    // Permits that another block has, or that the store has counted, are granted twice.
    Mutant {
        file: CACHED,
        within: "fn undo(",
        text: "if entry.until == part.until {",
        by: "if entry.until >= part.until {",
        test: (
            "cached",
            "a_request_that_waits_long_returns_nothing_to_another_block",
        ),
    },
    Mutant {
        file: CACHED,
        within: "fn begin(",
        text: "entry.block -= part.held;",
        by: "entry.block -= part.held / 2;",
        test: ("cached", "caches_together_never_exceed_a_limit"),
    },
    // What a store that is down decides is kept as if the store had.
    Mutant {
        file: CACHED,
        within: "fn granted(",
        text: "decision.origin == Origin::Store",
        by: "decision.origin != Origin::Cache",
        test: (
            "cached",
            "what_a_guarded_store_decides_by_itself_is_not_kept",
        ),
    },
    // A store that is down is asked by all, or too early; a share is not a part.
    Mutant {
        file: GUARDED,
        within: "fn call(",
        text: "*is_probed = true;",
        by: "*is_probed = false;",
        test: ("guarded", "one_request_at_a_time_probes"),
    },
    Mutant {
        file: GUARDED,
        within: "fn call(",
        text: "now < *probe_at",
        by: "now.saturating_add(Duration::from_nanos(1)) < *probe_at",
        test: (
            "guarded",
            "a_failed_store_is_not_asked_until_a_pause_is_over_and_every_transition_is_reported",
        ),
    },
    Mutant {
        file: LIMIT,
        within: "fn share(",
        text: "count: of(count)?",
        by: "count",
        test: ("guarded", "a_share_is_a_part_of_each_limit"),
    },
    // An error of one request or of one rule counts as an outage, or as the end of one.
    Mutant {
        file: COUNTERS,
        within: "pub const fn fault(",
        text: "Self::Refused(_) | Self::MixedLimits => Fault::Rule,",
        by: "Self::Refused(_) | Self::MixedLimits => Fault::Store,",
        test: ("guarded", "an_error_of_one_request_opens_no_other_limit"),
    },
    Mutant {
        file: GUARDED,
        within: "async fn concluded(",
        text: "Fault::Request | Fault::Id => {",
        by: "Fault::Request | Fault::Id | Fault::Rule => {",
        test: ("guarded", "an_error_of_one_request_opens_no_other_limit"),
    },
    Mutant {
        file: GUARDED,
        within: "fn note<",
        text: "Some((_, Fault::Rule)) => {}",
        by: "Some((_, Fault::Rule)) => has_answered = true,",
        test: (
            "guarded",
            "an_error_of_a_rule_neither_begins_an_outage_nor_ends_one",
        ),
    },
    Mutant {
        file: REDIS,
        within: "fn failed(error: &RedisError)",
        text: "StoreError::Refused(text)",
        by: "StoreError::Unavailable(text)",
        test: (
            "redis",
            "an_error_that_the_server_gives_to_one_request_opens_no_other_limit",
        ),
    },
    Mutant {
        file: REDIS,
        within: "fn failed(error: &RedisError)",
        text: "StoreError::Contended",
        by: "StoreError::Unavailable(text)",
        test: (
            "redis",
            "a_script_that_is_forgotten_all_the_time_is_no_outage",
        ),
    },
    Mutant {
        file: REDIS,
        within: "fn failed(error: &RedisError)",
        text: "SERVES_NOBODY.into_iter().any(is)",
        by: "is(\"LOADING\")",
        test: ("redis", "a_server_that_serves_nobody_is_unavailable"),
    },
    Mutant {
        file: REDIS,
        within: "pub async fn eviction(",
        text: "most != \"0\" && ",
        by: "",
        test: (
            "redis",
            "a_server_that_forgets_when_its_memory_is_full_says_so",
        ),
    },
    Mutant {
        file: "policy/src/counters/shared.rs",
        within: "fn supports(",
        text: "segments > most.into()",
        by: "segments > u64::MAX - u64::from(most)",
        test: (
            "shared",
            "a_limit_that_the_file_has_no_room_for_is_refused_and_opens_no_other",
        ),
    },
    Mutant {
        file: STORED,
        within: "pub(crate) fn check<'r>(",
        text: "if let Ok(Err(error)) = supported {",
        by: "if let Some(Err(error)) = supported.ok().filter(|_| name.is_empty()) {",
        test: (
            "shared",
            "a_limit_that_the_file_has_no_room_for_is_refused_and_opens_no_other",
        ),
    },
    // Two keys or two limits share a state, or a rule with a store decides without it.
    Mutant {
        file: STORED,
        within: "fn new(policy: &Policy, rule: usize",
        text: "format!(\"{prefix}{index}\")",
        by: "format!(\"{prefix}{}\", index / 2)",
        test: (
            "stored",
            "policies_with_one_store_share_the_limits_of_each_key",
        ),
    },
    Mutant {
        file: "policy/src/queue/stored.rs",
        within: "pub fn ask<P:",
        text: "decision.change(|decision| answers.complete(decision));",
        by: "decision.change(|_| {});",
        test: (
            "stored",
            "what_a_request_asks_is_what_decide_stored_at_asks",
        ),
    },
    Mutant {
        file: STORED,
        within: "fn spell(",
        text: " | b'@' =>",
        by: " | b'@' | b'%' | b'|' | b'{' | b'}' =>",
        test: ("stored", "keys_are_apart_and_a_long_one_is_denied"),
    },
    Mutant {
        file: STORED,
        within: "pub(crate) fn find(",
        text: "if text.0.len() > MAX_STORED_KEY_LEN {",
        by: "if text.0.is_empty() {",
        test: ("stored", "keys_are_apart_and_a_long_one_is_denied"),
    },
    Mutant {
        file: POLICY,
        within: "pub(crate) fn judge_by(",
        text: "Ok(_) => Verdict::Stored,",
        by: "Ok(_) => Verdict::Granted(None),",
        test: ("stored", "without_its_store_a_rule_denies"),
    },
];
