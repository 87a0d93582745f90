//! Mutants of what is reported of policies: statistics, and replays of logs.

use super::Mutant;

const FREQUENT: &str = "policy/src/frequent.rs";
const STATISTICS: &str = "policy/src/statistics.rs";
const THRESHOLDS: &str = "policy/src/thresholds.rs";
const DECISION_LOG: &str = "policy/src/decision_log.rs";
const METRICS: &str = "policy/src/metrics.rs";
const REPLAY: &str = "cli/src/replay/policy.rs";
const RECOMMEND: &str = "cli/src/replay/policy/recommend.rs";
const WAITING: &str = "cli/src/replay/policy/waiting.rs";
const TEMPLATE: &str = "cli/src/replay/format/template.rs";

const WITHIN_ERROR: (&str, &str) = (
    "statistics",
    "with_more_keys_than_room_every_count_is_within_its_error",
);
const OF_DECISIONS: (&str, &str) = (
    "statistics",
    "the_counts_of_rules_and_keys_are_those_of_the_decisions",
);

const OF_REPORTS: (&str, &str) = (
    "thresholds",
    "decisions_are_in_force_as_a_list_of_all_reports_says",
);
const BY_CONDITIONS: (&str, &str) = (
    "thresholds",
    "rules_with_thresholds_count_by_their_conditions_and_decide_nothing",
);

const MEASURED: (&str, &str) = (
    "metrics",
    "requests_leases_and_waits_are_measured_for_each_rule",
);

pub(super) const OF_THE_POLICY: &[Mutant] = &[
    // A key that takes the entry of another does not take its count, or is not named by its hash;
    // the counts are not sorted.
    Mutant {
        file: FREQUENT,
        within: "pub(crate) fn count(",
        text: "error + 1",
        by: "1",
        test: WITHIN_ERROR,
    },
    Mutant {
        file: FREQUENT,
        within: "pub(crate) fn count(",
        text: "self.places.remove(&before.hash);",
        by: "",
        test: WITHIN_ERROR,
    },
    Mutant {
        file: FREQUENT,
        within: "pub(crate) fn count(",
        text: "self.entries.swap(place, first);",
        by: "let first = place;",
        test: WITHIN_ERROR,
    },
    Mutant {
        file: FREQUENT,
        within: "pub(crate) fn most_without_entry(",
        text: "Some(last) if self.entries.len() == self.capacity => last.count,",
        by: "",
        test: WITHIN_ERROR,
    },
    // Keys of different rules count as one; the shards are not added up; a shadow rule is not
    // reported.
    Mutant {
        file: STATISTICS,
        within: "fn count_answer(",
        text: "(answer.index, self.key_of(key, request))",
        by: "(0, self.key_of(key, request))",
        test: OF_DECISIONS,
    },
    Mutant {
        file: STATISTICS,
        within: "fn merged(",
        text: "entry.count += again.count;",
        by: "",
        test: ("statistics", "no_count_of_several_threads_is_lost"),
    },
    Mutant {
        file: STATISTICS,
        within: "fn count_answer(",
        text: "denied: Denied::Crowded { .. },",
        by: "denied: Denied::Penalized { .. },",
        test: OF_DECISIONS,
    },
    // A report beyond the window is not counted, or a hold does not begin, begins too late, or
    // counts for the window of another threshold; a full table puts every decision in force; a rule
    // with thresholds only decides.
    Mutant {
        file: THRESHOLDS,
        within: "fn report(",
        text: "let _ = window.take_at(now, rest);",
        by: "",
        test: (
            "thresholds",
            "more_activity_than_a_window_counts_reaches_every_threshold",
        ),
    },
    Mutant {
        file: THRESHOLDS,
        within: "fn report(",
        text: "sum >= level.value",
        by: "sum > level.value",
        test: OF_REPORTS,
    },
    Mutant {
        file: THRESHOLDS,
        within: "fn report(",
        text: ".filter(|level| level.window == index)",
        by: ".filter(|_| index < 9)",
        test: OF_REPORTS,
    },
    Mutant {
        file: THRESHOLDS,
        within: "fn level(",
        text: "sum >= level.value",
        by: "sum > level.value",
        test: OF_REPORTS,
    },
    Mutant {
        file: THRESHOLDS,
        within: "fn level(",
        text: "matches!(taken, Err(Denied::Exhausted { .. }))",
        by: "taken.is_err()",
        test: (
            "thresholds",
            "a_report_without_room_for_its_key_is_not_counted",
        ),
    },
    Mutant {
        file: "policy/src/policy.rs",
        within: "fn unless_it_counts(",
        text: "self.only_counts()",
        by: "false",
        test: BY_CONDITIONS,
    },
    Mutant {
        file: "policy/src/policy.rs",
        within: "fn visit_activity<",
        text: "&& !active.exempts(request)",
        by: "",
        test: BY_CONDITIONS,
    },
    // A penalty or a hold that is over comes back when its word wraps.
    Mutant {
        file: "policy/src/limit.rs",
        within: "pub(crate) fn compile(&self)",
        text: ".tick(tick_of(period))",
        by: "",
        test: (
            "decisions",
            "a_window_does_not_open_again_while_its_key_is_not_used",
        ),
    },
    Mutant {
        file: "policy/src/store.rs",
        within: "pub(crate) fn hold_rules(",
        text: ".tick(tick_of(length))",
        by: "",
        test: (
            "decisions",
            "a_penalty_does_not_come_back_while_its_key_is_not_used",
        ),
    },
    // Events of denials are not limited, or those that no subscriber wants use up the limit, or
    // those that were left out are counted twice; a lease or a wait does not end, or counts for
    // another rule.
    Mutant {
        file: DECISION_LOG,
        within: "fn may_write(",
        text: "self.denials.try_acquire_at(now, 1).is_err()",
        by: "self.denials.available_at(now) == 0",
        test: (
            "decision_log",
            "events_of_denials_are_limited_and_those_left_out_are_counted",
        ),
    },
    Mutant {
        file: DECISION_LOG,
        within: "fn may_write(",
        text: "self.left_out.swap(0, Relaxed)",
        by: "self.left_out.load(Relaxed)",
        test: (
            "decision_log",
            "events_of_denials_are_limited_and_those_left_out_are_counted",
        ),
    },
    Mutant {
        file: DECISION_LOG,
        within: "pub fn record_at(",
        text: "tracing::enabled!(target: TARGET, Level::WARN) &&",
        by: "",
        test: (
            "decision_log",
            "events_that_no_subscriber_wants_use_up_no_limit",
        ),
    },
    Mutant {
        file: METRICS,
        within: "fn of(&self",
        text: "self.rules.get(index)",
        by: "self.rules.get(index + 1)",
        test: MEASURED,
    },
    Mutant {
        file: METRICS,
        within: "pub fn decided_at(",
        text: "is_allowed.then(|| self.clone())",
        by: "Some(self.clone())",
        test: MEASURED,
    },
    Mutant {
        file: METRICS,
        within: "pub fn end(",
        text: "result == QueueResult::Canceled",
        by: "result != QueueResult::Canceled",
        test: MEASURED,
    },
];

const LOGINS: (&str, &str) = (
    "replay_policy",
    "logins_and_downloads_are_decided_as_the_model_decides",
);
const CLIENTS: (&str, &str) = (
    "replay_policy",
    "keys_exempt_clients_and_penalties_are_decided_as_the_model_decides",
);
const BYTES: (&str, &str) = (
    "replay_policy",
    "bytes_and_shadow_rules_are_decided_as_the_model_decides",
);
const RECOMMENDED: (&str, &str) = (
    "replay_policy",
    "recommended_limits_are_the_smallest_with_the_wanted_share_of_denials",
);

const FOUR_KINDS: (&str, &str) = (
    "replay_decisions",
    "logs_of_four_kinds_of_servers_are_judged_as_the_requests_that_they_record",
);

const SPACES: (&str, &str) = (
    "replay_input",
    "a_name_with_spaces_does_not_change_whose_request_it_is",
);

pub(super) const OF_THE_PROGRAM: &[Mutant] = &[
    // Time goes back; a request lacks its method, host or user; a kind is asked after a denial; a
    // reply of no bytes is asked; a line that waits is overwritten.
    Mutant {
        file: "cli/src/replay/judge.rs",
        within: "pub(crate) fn advance(",
        text: "let now = newest.max(time);",
        by: "let now = time;",
        test: LOGINS,
    },
    Mutant {
        file: WAITING,
        within: "pub(crate) fn take(",
        text: "line.field(METHOD).unwrap_or_default()",
        by: "\"GET\"",
        test: LOGINS,
    },
    Mutant {
        file: WAITING,
        within: "pub(crate) fn take(",
        text: ".host(host)",
        by: "",
        test: CLIENTS,
    },
    Mutant {
        file: WAITING,
        within: "pub(crate) fn fields(",
        text: "\"user\" => Field::User,",
        by: "",
        test: CLIENTS,
    },
    Mutant {
        file: WAITING,
        within: "fn number<'a>(",
        text: "self.free.pop()",
        by: "(!self.lines.is_empty()).then_some(0)",
        test: LOGINS,
    },
    Mutant {
        file: REPLAY,
        within: "fn decide(",
        text: "if !is_allowed { break; }",
        by: "",
        test: BYTES,
    },
    Mutant {
        file: REPLAY,
        within: "fn decide(",
        text: "if cost == 0 { continue; }",
        by: "",
        test: BYTES,
    },
    Mutant {
        file: TEMPLATE,
        within: "fn find(&self, field: &Field)",
        text: ".or_else(|| self.find(&Field::Address))",
        by: "",
        test: (
            "replay_policy",
            "the_header_of_a_proxy_is_the_address_if_the_log_has_no_other",
        ),
    },
    // A value ends at the first byte of the text after it; a list is cut; a port, a fraction or a
    // spelling makes a key of its own; a name with spaces is a virtual host.
    Mutant {
        file: TEMPLATE,
        within: "fn ends_at(",
        text: "if starts_with(&rest[end + 1..], after) {",
        by: "if true {",
        test: FOUR_KINDS,
    },
    Mutant {
        file: TEMPLATE,
        within: "fn search(",
        text: "from = last.len() + 1;",
        by: "from = usize::MAX;",
        test: FOUR_KINDS,
    },
    Mutant {
        file: TEMPLATE,
        within: "fn take(&mut self, variable",
        text: "return is_word(b',')",
        by: "return is_word(b' ')",
        test: SPACES,
    },
    Mutant {
        file: "cli/src/replay/key.rs",
        within: "fn value<'a>(&self, text",
        text: "(Field::Address, None) if text.contains(&b':') => network(text, (32, 128)),",
        by: "",
        test: FOUR_KINDS,
    },
    Mutant {
        file: WAITING,
        within: "pub(crate) fn take(",
        text: ".and_then(address)",
        by: ".and_then(|text| text.parse().ok())",
        test: FOUR_KINDS,
    },
    Mutant {
        file: "cli/src/replay/format/layout.rs",
        within: "fn joined(",
        text: "FRACTION => has_time(first),",
        by: "FRACTION => false,",
        test: FOUR_KINDS,
    },
    Mutant {
        file: "cli/src/replay/format.rs",
        within: "fn has_virtual_host(",
        text: "second != b\"-\" && ",
        by: "",
        test: SPACES,
    },
    // The search ends too early, or looks at one side only.
    Mutant {
        file: RECOMMEND,
        within: "fn learn(",
        text: "high - self.low > 1",
        by: "high - self.low > 2",
        test: RECOMMENDED,
    },
    Mutant {
        file: RECOMMEND,
        within: "fn learn(",
        text: "None => count.checked_mul(2),",
        by: "None => None,",
        test: RECOMMENDED,
    },
    Mutant {
        file: RECOMMEND,
        within: "fn new(counts: &RuleCounts",
        text: "+ counts.penalized",
        by: "",
        test: RECOMMENDED,
    },
    // A folder with the parts of a configuration is read without them.
    Mutant {
        file: "cli/src/policy_file.rs",
        within: "fn files_in(",
        text: "if parts.is_empty() {",
        by: "if !parts.is_empty() {",
        test: (
            "check",
            "the_files_of_a_folder_are_merged_as_ocelot_merges_them",
        ),
    },
];
