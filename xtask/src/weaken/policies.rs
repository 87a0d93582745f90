//! Mutants of the policies that an ordinary test must detect.

use super::Mutant;

const MOVES: &str = "policy/src/store/moves.rs";
const STORE: &str = "policy/src/store.rs";
const POLICY: &str = "policy/src/policy.rs";
const HOLD: &str = "policy/src/hold.rs";
const OVERRIDES: &str = "policy/src/overrides.rs";
const MATCHER: &str = "policy/src/matcher.rs";
const PATH: &str = "policy/src/path.rs";
const DOCUMENT: &str = "policy/src/document.rs";
const CONDITIONS: &str = "policy/src/conditions.rs";
const OCELOT: &str = "policy/src/foreign/ocelot.rs";
const LIMIT: &str = "policy/src/limit.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    // An explained decision tells of a later state; a retry that ends before the penalty does.
    Mutant {
        file: STORE,
        within: "fn take_explained_at(",
        text: "each!(self, key => key.take_explained_at(now, n))",
        by: "(self.take_at(now, n), self.explain_at(now, n))",
        test: ("explained", "threads_are_told_of_their_own_decisions"),
    },
    Mutant {
        file: STORE,
        within: "fn after_penalty(",
        text: "retry.longer(Key::at(penalty, at).retry(denied), now)",
        by: "retry",
        test: ("explained", "a_penalty_and_the_limits_decide_when_to_retry"),
    },
    // Times of an `ocelot.json` that Ocelot refuses, or reads as another time.
    Mutant {
        file: "policy/src/foreign/ocelot/options.rs",
        within: "fn period(&mut self, table",
        text: "!span.has_unit && level != Level::Global",
        by: "!span.has_unit && level == Level::Global",
        test: (
            "ocelot",
            "a_limit_and_a_period_that_are_not_valid_are_errors_of_their_own",
        ),
    },
    Mutant {
        file: "policy/src/foreign/ocelot/values.rs",
        within: "pub(super) fn time_span(",
        text: "\"ms\" | \"\" => 1_000_000,",
        by: "\"ms\" => 1_000_000,\n\"\" => 1_000_000_000,",
        test: ("ocelot", "a_wait_is_read_as_ocelot_reads_it"),
    },
    // A setting that no request can meet is accepted.
    Mutant {
        file: CONDITIONS,
        within: "fn method_problem(",
        text: "if !is_token(method) {",
        by: "if false {",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    Mutant {
        file: CONDITIONS,
        within: "fn method_problem(",
        text: "let is_case = method.eq_ignore_ascii_case(known);",
        by: "let is_case = false;",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    Mutant {
        file: CONDITIONS,
        within: "fn method_problem(",
        text: "is_case || is_longer",
        by: "is_case",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    Mutant {
        file: CONDITIONS,
        within: "pub(crate) fn parse_network(",
        text: "text.split_once('/')?.0.parse::<IpAddr>().ok()?;",
        by: "",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    Mutant {
        file: CONDITIONS,
        within: "fn parse(text: &str) -> Option<Self>",
        text: "if last.bytes().all(|byte| byte.is_ascii_digit()) {",
        by: "if false {",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    Mutant {
        file: CONDITIONS,
        within: "fn parse(text: &str) -> Option<Self>",
        text: "(1..=63).contains(&label.len())",
        by: "!label.is_empty()",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    Mutant {
        file: CONDITIONS,
        within: "for path in &self.paths {",
        text: "_ if path.contains(\"://\")",
        by: "_ if false",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    Mutant {
        file: POLICY,
        within: "fn check_headers(",
        text: "refuse(\"key\", text);",
        by: "let _ = text;",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    Mutant {
        file: POLICY,
        within: "fn check_headers(",
        text: "refuse(\"exempt_headers\", text);",
        by: "let _ = text;",
        test: (
            "files",
            "settings_that_no_request_can_meet_are_refused_in_their_place",
        ),
    },
    // A misspelled name loses a limit, or one that concerns none is refused. Files of Ocelot that
    // are old, or split, are read as others.
    Mutant {
        file: OCELOT,
        within: "fn known_or_ignored(",
        text: "if settings.limiting.contains(&nearest)",
        by: "if settings.known.contains(&nearest)",
        test: (
            "ocelot",
            "a_name_that_resembles_one_that_concerns_no_limit_is_a_warning",
        ),
    },
    Mutant {
        file: OCELOT,
        within: "fn known_or_ignored(",
        text: "if settings.limiting.contains(&nearest)",
        by: "if settings.of.is_empty()",
        test: (
            "ocelot",
            "a_name_that_resembles_one_that_concerns_no_limit_is_a_warning",
        ),
    },
    Mutant {
        file: OCELOT,
        within: "fn known_or_ignored(",
        text: "self.old_name.get_or_insert(name.span);",
        by: "",
        test: ("ocelot", "the_routes_of_the_oldest_files_are_read"),
    },
    Mutant {
        file: OCELOT,
        within: "fn files(",
        text: "for name in [\"Routes\", \"ReRoutes\"] {",
        by: "for name in [\"Routes\"] {",
        test: ("ocelot", "the_routes_of_the_oldest_files_are_read"),
    },
    Mutant {
        file: OCELOT,
        within: "pub fn from_ocelot_files(",
        text: "has_global: is_only || name.eq_ignore_ascii_case(GLOBAL_FILE),",
        by: "has_global: true,",
        test: ("ocelot", "several_files_are_merged_as_ocelot_merges_them"),
    },
    Mutant {
        file: OCELOT,
        within: "pub fn from_ocelot_files(",
        text: "has_global: is_only || name.eq_ignore_ascii_case(GLOBAL_FILE),",
        by: "has_global: name.eq_ignore_ascii_case(GLOBAL_FILE),",
        test: ("ocelot", "several_files_are_merged_as_ocelot_merges_them"),
    },
    Mutant {
        file: OCELOT,
        within: "pub fn from_ocelot_files(",
        text: "is_merged: !is_only && name.eq_ignore_ascii_case(MERGED_FILE),",
        by: "is_merged: false,",
        test: ("ocelot", "several_files_are_merged_as_ocelot_merges_them"),
    },
    Mutant {
        file: "policy/src/foreign/ocelot/options.rs",
        within: "fn status(&mut self",
        text: "self.warn(value.span, message);",
        by: "let _ = message;",
        test: (
            "ocelot",
            "a_status_that_http_does_not_have_is_replaced_with_a_warning",
        ),
    },
    Mutant {
        file: DOCUMENT,
        within: "fn located(",
        text: "(begun, at, line, column) = (first, after_mark(first), 1, 1);",
        by: "(begun, at) = (first, after_mark(first));",
        test: (
            "ocelot",
            "an_error_in_one_of_several_files_is_reported_where_it_is",
        ),
    },
    // A file that was cut off lifts all limits.
    Mutant {
        file: "policy/src/file.rs",
        within: "fn file(&mut self, file: &Table<'t>)",
        text: "self.reader.refuse(",
        by: "let _ = (",
        test: ("files", "a_file_without_rules_is_refused_unless_it_says_so"),
    },
    // A limit with initial permits starts with all of them, again at a change, or not at the
    // change; its table is that of other limits.
    Mutant {
        file: STORE,
        within: "fn before_take(",
        text: "self.begin(at, now);",
        by: "",
        test: (
            "initial",
            "the_limits_start_with_their_initial_permits_at_the_first_decision",
        ),
    },
    Mutant {
        file: STORE,
        within: "fn seats(",
        text: " && !has_start(starts, limit)",
        by: "",
        test: (
            "initial",
            "a_limit_that_starts_beside_others_in_their_table_takes_only_its_own_permits",
        ),
    },
    Mutant {
        file: MOVES,
        within: "pub(crate) fn followed_by(",
        text: "Some(pair) => self.starts.get(pair.before)?.clone(),",
        by: "Some(_) => Start::of(limit),",
        test: ("initial", "a_limit_that_goes_on_does_not_start_again"),
    },
    Mutant {
        file: MOVES,
        within: "pub(crate) fn hand_over(",
        text: "self.begin(at, now);",
        by: "",
        test: ("initial", "a_limit_without_a_decision_starts_at_the_change"),
    },
    // An override has no effect, or shares the state of the rule, or names no key or a key twice.
    Mutant {
        file: OVERRIDES,
        within: "pub(crate) fn locate(",
        text: "instead: Some(index),",
        by: "instead: None,",
        test: (
            "overrides",
            "a_key_has_the_limits_of_its_override_and_the_others_those_of_the_rule",
        ),
    },
    Mutant {
        file: POLICY,
        within: "pub(crate) fn store_at(",
        text: "|this| &this.store",
        by: "|_| &self.store",
        test: (
            "overrides",
            "an_override_has_a_state_and_a_penalty_of_its_own",
        ),
    },
    Mutant {
        file: OVERRIDES,
        within: "pub(crate) fn check(",
        text: "Ok(hash) if !seen.insert(hash) => {",
        by: "Ok(hash) if !seen.insert(hash) && index == usize::MAX => {",
        test: (
            "overrides",
            "overrides_are_checked_when_the_rule_is_put_in_force",
        ),
    },
    Mutant {
        file: "policy/src/key.rs",
        within: "pub(crate) fn with_values<T>(",
        text: "if key.is_complete() {",
        by: "if key.is_complete() || !values.is_empty() {",
        test: (
            "overrides",
            "overrides_are_checked_when_the_rule_is_put_in_force",
        ),
    },
    // A name may be set twice; errors are shown in the wrong column.
    Mutant {
        file: DOCUMENT,
        within: "fn add(&mut self, reader: &mut Reader<'t>",
        text: "if self.seen.insert(key) {",
        by: "if self.seen.insert(key) || self.seen.len() > 1 {",
        test: (
            "files",
            "a_setting_that_is_set_twice_is_an_error_and_the_rest_is_checked",
        ),
    },
    Mutant {
        file: DOCUMENT,
        within: "fn located(",
        text: "'\\n' => (line + 1, 1),",
        by: "'\\n' => (line + 1, column),",
        test: ("files", "all_errors_are_reported_where_they_are"),
    },
    // A row lacks the names above a host, or the networks that go on; a file is too large.
    Mutant {
        file: MATCHER,
        within: "let mut row = |host: &str",
        text: "for &entry in above.flatten().chain(own) {",
        by: "for &entry in own {",
        test: ("matching", "the_matcher_decides_as_a_naive_one"),
    },
    Mutant {
        file: MATCHER,
        within: "for range in ends.chunk_by(",
        text: "if counts[entry] == 0 {",
        by: "if counts[entry] <= 1 {",
        test: ("matching", "the_matcher_decides_as_a_naive_one"),
    },
    Mutant {
        file: MATCHER,
        within: "pub fn new(",
        text: "if pairs > MAX_PAIRS {",
        by: "if pairs > usize::MAX - 1 {",
        test: ("damaged_files", "no_file_of_rules_is_slow_to_read"),
    },
    // A path that the service reads in another way than the rules, by each of the ways to do so.
    Mutant {
        file: PATH,
        within: "fn several(",
        text: "PathReading::Either if found.has_dots",
        by: "PathReading::Either if false && found.has_dots",
        test: (
            "matching",
            "no_service_serves_a_path_past_the_limits_of_its_rule",
        ),
    },
    Mutant {
        file: PATH,
        within: "fn several(",
        text: "let decoded = [true, !found.is_encoded];",
        by: "let decoded = [true, true];",
        test: (
            "matching",
            "no_service_serves_a_path_past_the_limits_of_its_rule",
        ),
    },
    Mutant {
        file: PATH,
        within: "fn several(",
        text: "([true, !found.has_inner], [true, !found.has_trailing])",
        by: "([true, true], [true, !found.has_trailing])",
        test: (
            "matching",
            "no_service_serves_a_path_past_the_limits_of_its_rule",
        ),
    },
    Mutant {
        file: PATH,
        within: "fn several(",
        text: "([true, !found.has_inner], [true, !found.has_trailing])",
        by: "([true, !found.has_inner], [true, true])",
        test: (
            "matching",
            "no_service_serves_a_path_past_the_limits_of_its_rule",
        ),
    },
    Mutant {
        file: PATH,
        within: "fn may_change(",
        text: "let keeps_empty = !matches!(self.reading, PathReading::Resolved);",
        by: "let keeps_empty = false;",
        test: (
            "matching",
            "no_service_serves_a_path_past_the_limits_of_its_rule",
        ),
    },
    Mutant {
        file: MATCHER,
        within: "fn depths(",
        text: "Some(Part::Any) => false,",
        by: "Some(Part::Any) => true,",
        test: (
            "matching",
            "no_service_serves_a_path_past_the_limits_of_its_rule",
        ),
    },
    Mutant {
        file: POLICY,
        within: "fn agreed(",
        text: "(None, Some(_)) => (agreed, limiting) = (reading, rule),",
        by: "(None, Some(_)) => limiting = rule,",
        test: (
            "matching",
            "no_service_serves_a_path_past_the_limits_of_its_rule",
        ),
    },
    Mutant {
        file: POLICY,
        within: "fn agreed(",
        text: "if one != other => return Err(PathError::Ambiguous),",
        by: "if one != other => {}",
        test: (
            "matching",
            "no_service_serves_a_path_past_the_limits_of_its_rule",
        ),
    },
    Mutant {
        file: POLICY,
        within: "fn limiting(",
        text: "Err(Unasked::Exempt | Unasked::NoLimits) => {}",
        by: "Err(Unasked::Exempt | Unasked::NoLimits) => limiting = Some(rule),",
        test: (
            "matching",
            "a_path_with_several_readings_takes_from_the_only_rule_that_limits_it_or_is_denied",
        ),
    },
    Mutant {
        file: POLICY,
        within: "fn visit_activity<",
        text: "mem::replace(known, true)",
        by: "mem::replace(known, false)",
        test: (
            "matching",
            "activity_counts_for_the_rules_of_all_readings_once",
        ),
    },
    // `HEAD` escapes the rules and the limits of `GET`.
    Mutant {
        file: "policy/src/conditions.rs",
        within: "fn with_head(",
        text: "if has(\"GET\")",
        by: "if !has(\"GET\")",
        test: (
            "matching",
            "head_counts_as_get_unless_a_rule_before_is_for_head",
        ),
    },
    Mutant {
        file: "policy/src/key.rs",
        within: "pub(crate) fn of<",
        text: "\"HEAD\" => \"GET\",",
        by: "\"HEAD\" => \"HEAD\",",
        test: (
            "matching",
            "head_counts_as_get_unless_a_rule_before_is_for_head",
        ),
    },
    // The chunks between several `**` have an order.
    Mutant {
        file: MATCHER,
        within: "fn is_in(",
        text: "(state << 1 | start) & parts",
        by: "(state << 1 | 1) & parts",
        test: ("matching", "the_matcher_decides_as_a_naive_one"),
    },
    Mutant {
        file: LIMIT,
        within: "pub(crate) fn compile(",
        text: "bucket.stepwise()",
        by: "bucket",
        test: (
            "decisions",
            "a_stepwise_bucket_gets_the_permits_of_a_period_at_its_end",
        ),
    },
    // A hold that has ended returns permits; permits at once are returned by the settlement and by
    // the drop; a bucket refunds only its last take, or is not charged beyond what it has; what one
    // limit could not count is not reported.
    Mutant {
        file: HOLD,
        within: "pub(crate) fn settle(",
        text: "is_some_and(|ends| now <= ends)",
        by: "is_some()",
        test: (
            "holds",
            "a_hold_that_has_ended_counts_its_estimate_and_still_charges_an_excess",
        ),
    },
    Mutant {
        file: STORE,
        within: "pub(crate) fn give_back(",
        text: "if let Table::AtOnce(_) = table {",
        by: "if let (Table::AtOnce(_), 0) = (table, n) {",
        test: (
            "holds",
            "what_was_not_used_is_returned_to_every_limit_in_any_order",
        ),
    },
    Mutant {
        file: STORE,
        within: "pub(crate) fn give_back(",
        text: "table.refund_counted_at(at, now, n, receipt, refunds, *before)",
        by: "{ let _ = (refunds, before); Key::at(table, at).refund_at(now, n, receipt) }",
        test: ("holds", "an_override_settles_with_its_own_limits"),
    },
    Mutant {
        file: STORE,
        within: "fn charge_key(",
        text: "table.charge_at(at, now, n, debt)",
        by: "{ let _ = (table, debt); 0 }",
        test: ("holds", "an_override_settles_with_its_own_limits"),
    },
    Mutant {
        file: STORE,
        within: "pub(crate) fn charge(",
        text: "least = least.min(charged);",
        by: "least = charged;",
        test: (
            "several_limits",
            "several_limits_settle_as_a_policy_for_each_would",
        ),
    },
    // Several limits: another one than the first that denies is named; a bucket refunds only its
    // last take; the memory is that of a word for each.
    Mutant {
        file: STORE,
        within: "fn first_denied(",
        text: "before.find_map(denies).unwrap_or(by)",
        by: "before.find_map(denies).filter(|_| false).unwrap_or(by)",
        test: (
            "several_limits",
            "the_first_limit_of_the_rule_that_denies_is_named",
        ),
    },
    Mutant {
        file: STORE,
        within: "pub(crate) fn give_back(",
        text: "table.refund_counted_at(at, nth, now, n, receipt, refunds, *before)",
        by: "{ let _ = (refunds, before); table.refund_limit_at(at, nth, now, n, receipt) }",
        test: (
            "several_limits",
            "several_limits_settle_as_a_policy_for_each_would",
        ),
    },
    Mutant {
        file: STORE,
        within: "fn first_denied(",
        text: "if self.has_ended(at, limit) {",
        by: "if false {",
        test: (
            "live",
            "a_limit_that_has_ended_denies_no_more_and_is_not_named",
        ),
    },
    Mutant {
        file: LIMIT,
        within: "pub(crate) fn all_bytes_per_key(",
        text: "each.sum::<usize>() + spare_words(limits) * bytes_per_key(0)",
        by: "each.sum::<usize>() + spare_words(limits) * 0",
        test: (
            "several_limits",
            "the_memory_of_limits_that_share_an_entry_counts_for_the_bound_of_a_rule",
        ),
    },
    Mutant {
        file: LIMIT,
        within: "pub(crate) fn all_bytes(",
        text: "each.fold(spare, usize::saturating_add)",
        by: "each.fold(spare * 0, usize::saturating_add)",
        test: (
            "several_limits",
            "the_memory_of_limits_that_share_an_entry_counts_for_the_bound_of_a_rule",
        ),
    },
    // Limits in another order share a table with those before; a limit that a policy does not have
    // denies its decisions.
    Mutant {
        file: MOVES,
        within: "fn words_for(",
        text: "pair.is_same && self.seats[pair.before].nth == nth",
        by: "pair.is_same && self.seats[pair.before].nth <= nth + 8",
        test: (
            "live",
            "limits_that_share_a_table_keep_what_was_taken_when_their_number_and_order_change",
        ),
    },
    Mutant {
        file: MOVES,
        within: "fn take_moved(",
        text: "self.ids.iter().position(|own| own == id)",
        by: "self.ids.iter().position(|own| own == id).or(Some(0))",
        test: (
            "live",
            "limits_that_share_a_table_keep_what_was_taken_when_their_number_and_order_change",
        ),
    },
    // A policy that is replaced: what was taken is forgotten, or counts in the wrong table.
    Mutant {
        file: MOVES,
        within: "pub(super) fn may_have_moved(",
        text: "matches!(by.denied, Denied::Crowded { .. })",
        by: "false",
        test: ("live", "a_decision_by_an_older_policy_counts_in_the_newest"),
    },
    Mutant {
        file: MOVES,
        within: "fn move_to(",
        text: "while move_some() > 0 {",
        by: "while false {",
        test: (
            "live",
            "what_was_taken_stays_taken_and_a_raised_limit_counts_at_once",
        ),
    },
    Mutant {
        file: MOVES,
        within: "fn bucket_after(",
        text: "limit.bucket_owing(owed, old.tick())",
        by: "limit.bucket_owing(owed - owed, old.tick())",
        test: (
            "live",
            "what_was_taken_stays_taken_and_a_raised_limit_counts_at_once",
        ),
    },
    Mutant {
        file: MOVES,
        within: "fn window_after(",
        text: "if most <= rules.max_limit() || old.max_limit() <= rules.limit() {",
        by: "if most > 0 {",
        test: (
            "live",
            "what_was_taken_stays_taken_and_a_raised_limit_counts_at_once",
        ),
    },
    Mutant {
        file: MOVES,
        within: "fn hand_table_over(",
        text: "from.change_all(|window| window.set_limit(limit))",
        by: "from.change_all(|window| window.set_limit(window.limit()))",
        test: (
            "live",
            "what_was_taken_stays_taken_and_a_raised_limit_counts_at_once",
        ),
    },
    Mutant {
        file: MOVES,
        within: "fn hand_table_over(",
        text: "new.go_on_from(old, now)",
        by: "new.go_on_from(new, now)",
        test: ("live", "a_limit_with_a_wait_keeps_its_count_and_its_wait"),
    },
    Mutant {
        file: "core/src/limiters/cooldown_window.rs",
        within: "pub fn go_on_from(",
        text: "instant(end).min(last)",
        by: "instant(end)",
        test: (
            "live",
            "a_limit_that_is_lowered_and_raised_again_grants_nothing_twice",
        ),
    },
    // An override for a value that no request has.
    Mutant {
        file: "policy/src/key.rs",
        within: "pub(crate) fn with_values<",
        text: "if let Some(problem) = part.refuses(value) {",
        by: "if let Some(problem) = None::<&str> {",
        test: (
            "overrides",
            "overrides_are_checked_when_the_rule_is_put_in_force",
        ),
    },
    // A change forgets what is taken: a key that is overridden begins anew, or an override that was
    // removed ends at once. A limit of 0 is asked like another one. A full penalty is not in force.
    Mutant {
        file: "policy/src/overrides.rs",
        within: "pub(crate) fn hand_over(",
        text: "store.copy_key(from, from_rule, now);",
        by: "let _ = from;",
        test: (
            "live",
            "an_override_that_is_added_and_removed_in_turn_grants_nothing_twice",
        ),
    },
    Mutant {
        file: "policy/src/overrides.rs",
        within: "pub(crate) fn follow(",
        text: "if rule.is_empty()",
        by: "if !rule.is_empty()",
        test: (
            "live",
            "an_override_that_is_added_and_removed_in_turn_grants_nothing_twice",
        ),
    },
    Mutant {
        file: MOVES,
        within: "fn carry_sliding(",
        text: "while taken > 0 {",
        by: "while taken > u64::MAX - 1 {",
        test: (
            "live",
            "a_limit_that_is_lowered_and_raised_again_grants_nothing_twice",
        ),
    },
    Mutant {
        file: STORE,
        within: "fn before_take(",
        text: "if self.closed != 0 {",
        by: "if self.closed > 1 << 20 {",
        test: ("decisions", "a_limit_of_0_denies_every_request_for_ever"),
    },
    Mutant {
        file: STORE,
        within: "fn penalized(",
        text: "Err(Denied::Crowded { .. }) => Some(Denied::Crowded { now, permits: n }),",
        by: "Err(Denied::Crowded { .. }) => None,",
        test: ("decisions", "a_penalty_without_room_denies_and_says_so"),
    },
    Mutant {
        file: MOVES,
        within: "fn pairs(",
        text: "for kinship in 0..=3 {",
        by: "for kinship in [3, 2, 1, 0] {",
        test: ("live", "limits_are_paired_by_what_they_have_in_common"),
    },
    Mutant {
        file: "policy/src/follow.rs",
        within: "fn follow(&mut self, old: &Self",
        text: "!rule.key.is_same(&before.key) ||",
        by: "",
        test: ("live", "a_rule_with_another_key_starts_again"),
    },
    Mutant {
        file: "policy/src/follow.rs",
        within: "fn follow(&mut self, old: &Self",
        text: "self.activity.clone_from(&old.activity);",
        by: "",
        test: ("live", "activity_is_kept_if_no_threshold_changes"),
    },
    Mutant {
        file: "policy/src/follow.rs",
        within: "fn follow(&mut self, old: &Self",
        text: "if self.rule.thresholds == old.rule.thresholds {",
        by: "if self.rule.thresholds.len() == old.rule.thresholds.len() {",
        test: ("live", "activity_is_kept_if_no_threshold_changes"),
    },
    Mutant {
        file: MOVES,
        within: "let mut builder = FixedWindow::builder(rules.limit(), period)",
        text: ".tick(tick_of(period))",
        by: "",
        test: (
            "live",
            "a_window_with_a_lower_count_does_not_open_again_while_its_key_is_not_used",
        ),
    },
    Mutant {
        file: "policy/src/overrides.rs",
        within: "pub(crate) fn follow(",
        text: "this.at = this.store.locate_shared();",
        by: "",
        test: ("live", "an_override_keeps_its_state"),
    },
    // Content that has not changed, or that is still being written, is put in force.
    Mutant {
        file: "policy/src/live.rs",
        within: "pub fn refresh_at<",
        text: "tag.is_none() || tag.as_deref() != known",
        by: "tag.is_none() || known.is_some()",
        test: ("live", "a_refused_set_of_rules_leaves_the_policy_in_force"),
    },
    Mutant {
        file: "policy/src/source/file.rs",
        within: "fn load(",
        text: "None if known.is_some() => {",
        by: "None if known.is_none() => {",
        test: (
            "live",
            "a_file_is_read_when_two_polls_find_the_same_new_content",
        ),
    },
    Mutant {
        file: "policy/src/live.rs",
        within: "fn replace(",
        text: "self.shared.changed.notify(usize::MAX);",
        by: "",
        test: ("live", "no_change_is_missed_by_those_who_wait"),
    },
    // A settlement after a change charges the state before it, or returns what it did not note.
    Mutant {
        file: STORE,
        within: "pub(crate) fn charge(",
        text: "Some(moved) => charged + moved.table.charge_key(at, now, n - charged),",
        by: "Some(_) => charged,",
        test: (
            "live",
            "a_hold_that_began_before_a_change_is_settled_after_it",
        ),
    },
    Mutant {
        file: STORE,
        within: "pub(crate) fn give_back(",
        text: "(_, _, None) => 0",
        by: "(_, _, None) => n",
        test: (
            "live",
            "a_hold_that_began_before_a_change_is_settled_after_it",
        ),
    },
    // All clients of a program that does not know their addresses share a limit; header values of
    // any bytes pass for others; a wait starts that another limit should have.
    Mutant {
        file: POLICY,
        within: "match rule.on_missing {",
        text: "OnMissing::NeedAddress if !key.lacks_address()",
        by: "OnMissing::NeedAddress if key.is_complete() || key.lacks_address()",
        test: (
            "decisions",
            "a_missing_address_is_shared_only_if_the_rule_says_so",
        ),
    },
    Mutant {
        file: "policy/src/key.rs",
        within: "Part::Text(text) => match text.of(self.request) {",
        text: "text.iter().any(|&byte| byte >= WITH_LENGTH)",
        by: "text.is_empty()",
        test: (
            "decisions",
            "header_values_of_any_bytes_are_keys_of_their_own",
        ),
    },
    Mutant {
        file: "policy/src/thresholds.rs",
        within: "let mut is_counted = true;",
        text: "at.is_some_and(",
        by: "at.is_none_or(",
        test: (
            "thresholds",
            "a_report_without_an_address_is_counted_only_if_the_rule_shares_it",
        ),
    },
    Mutant {
        file: STORE,
        within: "let table_at = |place: usize| match self.shared_table() {",
        text: "place.checked_sub(1).unwrap_or(shared)",
        by: "{ let _ = shared; place }",
        test: (
            "decisions",
            "a_denial_starts_the_wait_of_the_first_limit_that_denies_and_of_no_other",
        ),
    },
    Mutant {
        file: STORE,
        within: "let denies = |limit| {",
        text: "let KeyLimit::Cooldown(window) = key",
        by: "let (KeyLimit::Cooldown(window), 0) = (key, n)",
        test: (
            "decisions",
            "a_denial_starts_the_wait_of_the_first_limit_that_denies_and_of_no_other",
        ),
    },
];
