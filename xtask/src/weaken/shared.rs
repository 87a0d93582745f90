//! Mutants of limiters that processes share.

use super::Mutant;

const SHARED_FILE: &str = "shm/src/shared_file.rs";
const SHARED_LIMITER: &str = "shm/src/shared_limiter.rs";
const SHARED_TABLE: &str = "shm/src/shared_table.rs";
const SHARED_CONCURRENCY: &str = "shm/src/shared_concurrency.rs";
const MAPPING: &str = "shm/src/mapping.rs";
const MEMBER: &str = "shm/src/member.rs";
const SLOTS: &str = "shm/src/slots.rs";
const VERSIONS: &str = "shm/src/versions.rs";
const RECORDS: &str = "shm/src/shared_records.rs";
const OWNED_LOCK: &str = "shm/src/owned_lock.rs";
const PROCESS: &str = "shm/src/process.rs";
const STRIPES: &str = "shm/src/stripes.rs";
const POOL_SLOTS: &str = "shm/src/pool_slots.rs";
const DEATHS: &str = "shm/src/deaths.rs";
const SHARED_LEASE_POOL: &str = "shm/src/shared_lease_pool.rs";
const ATTACHED: &str = "core/src/rules/attached.rs";

/// Those that a test with processes must detect.
pub(super) const MUTANTS: &[Mutant] = &[
    // Two processes have two files of one name.
    Mutant {
        file: SHARED_FILE,
        within: "pub(crate) fn open(",
        text: "let linked = fs::hard_link(&new, &self.path);",
        by: "let linked = fs::copy(&new, &self.path);",
        test: (
            "processes",
            "of_processes_that_race_to_create_a_file_one_creates_it",
        ),
    },
    Mutant {
        file: SHARED_FILE,
        within: "fn find(",
        text: "return match file.try_lock() {",
        by: "return match Ok::<(), TryLockError>(()) {",
        test: (
            "processes",
            "of_processes_that_find_a_file_of_another_boot_one_replaces_it",
        ),
    },
    Mutant {
        file: SHARED_FILE,
        within: "pub fn remove(",
        text: "match file.try_lock() {",
        by: "match Ok::<(), TryLockError>(()) {",
        test: ("opening", "a_file_in_use_is_not_removed"),
    },
    // A file is used that should be refused.
    Mutant {
        file: SHARED_FILE,
        within: "fn fingerprint(",
        text: "self.kind, self.identity",
        by: "self.kind, \"\"",
        test: ("tables", "a_table_for_other_keys_or_limits_is_refused"),
    },
    Mutant {
        file: SHARED_FILE,
        within: "fn find(",
        text: "|| metadata.len() < header.size",
        by: "",
        test: (
            "opening",
            "files_that_are_no_limiter_are_refused_with_the_reason",
        ),
    },
    Mutant {
        file: SHARED_LIMITER,
        within: "pub fn limiter<L: Shareable>(",
        text: "known.settings.fingerprint == fingerprint",
        by: "known.settings.words[1..5] == words[1..5]",
        test: (
            "opening",
            "a_setting_that_the_text_does_not_name_is_refused_too",
        ),
    },
    // A decision by settings that are not in force any more counts; also one that is made on pages
    // that are not the file's.
    Mutant {
        file: SHARED_LIMITER,
        within: "fn decide<T>(",
        text: "if known.is_in_force() {",
        by: "if true {",
        test: (
            "changes",
            "a_process_with_other_settings_is_refused_or_changes_them_for_all",
        ),
    },
    Mutant {
        file: SHARED_LIMITER,
        within: "fn decide<T>(",
        text: "if known.is_in_force() {",
        by: "if true {",
        test: (
            "processes",
            "a_file_that_is_truncated_while_processes_use_it_ends_none_of_them",
        ),
    },
    // Permits that are in use are forgotten, or returned by a receipt of earlier settings.
    Mutant {
        file: SHARED_LIMITER,
        within: "pub fn limiter<L: Shareable>(",
        text: "let room = room.max(known.room);",
        by: "let room = 0;",
        test: ("changes", "a_lower_burst_takes_effect_at_once"),
    },
    Mutant {
        file: SHARED_LIMITER,
        within: "fn refund_at(&self",
        text: "if known.is_older(",
        by: "if false && known.is_older(",
        test: (
            "changes",
            "a_receipt_of_earlier_settings_is_worth_nothing_if_the_state_looks_the_same",
        ),
    },
    // A change whose process was killed stops all others.
    Mutant {
        file: SHARED_LIMITER,
        within: "fn complete<L: Shareable>(",
        text: "!= Newest::Changing(before)",
        by: "== Newest::Changing(before)",
        test: (
            "changes",
            "a_change_whose_process_was_killed_is_completed_by_others_or_never_was",
        ),
    },
    // A version is used again while a decision by it may be under way.
    Mutant {
        file: VERSIONS,
        within: "pub fn supersede(",
        text: "is_some_and(|since| since < age)",
        by: "is_some_and(|_| false)",
        test: ("changes", "settings_change_at_most_31_times_a_minute"),
    },
    // A lease of a dead process is lost, or one of a live process is taken.
    Mutant {
        file: SHARED_LEASE_POOL,
        within: "fn recover_at(",
        text: "|| is_dead() && slot.free(state)",
        by: "",
        test: (
            "pool",
            "an_id_passes_between_processes_and_the_leases_of_a_killed_one_return",
        ),
    },
    Mutant {
        file: SHARED_LEASE_POOL,
        within: "fn recover_at(",
        text: "deaths.is_dead(state.member())",
        by: "!deaths.is_dead(state.member())",
        test: (
            "pool",
            "an_id_passes_between_processes_and_the_leases_of_a_killed_one_return",
        ),
    },
    Mutant {
        file: POOL_SLOTS,
        within: "pub fn claim(",
        text: "seen.generation() + 1",
        by: "seen.generation()",
        test: ("pool", "no_more_leases_are_held_than_the_pool_has"),
    },
    // A write is half done when its process is killed, or the lock of the process is lost.
    Mutant {
        file: RECORDS,
        within: "pub fn lock(&self)",
        text: "self.copy_journal();",
        by: "",
        test: (
            "records",
            "a_write_whose_process_was_killed_after_its_instant_is_completed",
        ),
    },
    Mutant {
        file: RECORDS,
        within: "fn place(&self",
        text: "&& taken.iter().all(",
        by: "&& true | taken.iter().all(",
        test: (
            "records",
            "records_that_are_written_at_once_have_places_of_their_own",
        ),
    },
    Mutant {
        file: RECORDS,
        within: "fn begin(words",
        text: "owned_lock::inherit(words.lock(), owner)",
        by: "false",
        test: (
            "records",
            "the_lock_of_a_process_that_is_killed_is_taken_over_and_that_of_a_live_one_is_not",
        ),
    },
    // A process and one that it has forked are one: a lock has two owners, or none.
    Mutant {
        file: RECORDS,
        within: "fn has_lock(&self)",
        text: "self.session.process == Process::this()",
        by: "true",
        test: ("records", "the_lock_of_a_process_that_forks_is_its_own"),
    },
    Mutant {
        file: RECORDS,
        within: "pub fn lock(&self)",
        text: "if session.process != Process::this() {",
        by: "if false {",
        test: (
            "records",
            "processes_with_the_same_process_id_in_their_namespaces_lose_no_count",
        ),
    },
    Mutant {
        file: PROCESS,
        within: "fn word()",
        text: "libc::MADV_WIPEONFORK",
        by: "libc::MADV_NORMAL",
        test: ("records", "the_lock_of_a_process_that_forks_is_its_own"),
    },
    Mutant {
        file: PROCESS,
        within: "extern \"C\" fn in_child()",
        text: "if descriptor >= 0 && renew",
        by: "if descriptor < TAKEN && renew",
        test: (
            "records",
            "a_forked_process_that_drops_its_privileges_uses_the_records",
        ),
    },
    Mutant {
        file: PROCESS,
        within: "pub(crate) fn get(&mut self)",
        text: "renew(self.file.as_raw_fd())?;",
        by: "",
        test: ("records", "the_lock_of_a_process_that_forks_is_its_own"),
    },
    Mutant {
        file: SHARED_CONCURRENCY,
        within: "fn is_mine(&self)",
        text: "self.process == Process::this()",
        by: "true",
        test: ("concurrency", "a_lease_of_a_process_that_forks_is_its_own"),
    },
    // Two origins of time count in one file.
    Mutant {
        file: PROCESS,
        within: "pub(crate) fn clock_offset()",
        text: "if own != of_children =>",
        by: "if own > u64::MAX - of_children =>",
        test: (
            "opening",
            "processes_whose_clocks_begin_at_other_times_have_no_limit_in_common",
        ),
    },
    Mutant {
        file: PROCESS,
        within: "pub(crate) fn note(",
        text: "if is_known && !is_same {",
        by: "if is_known && is_same && !is_same {",
        test: (
            "opening",
            "records_whose_times_are_of_another_clock_are_lost",
        ),
    },
    Mutant {
        file: PROCESS,
        within: "extern \"C\" fn in_child()",
        text: "unsafe { fault::replace_lost() };",
        by: "",
        test: (
            "opening",
            "processes_whose_clocks_begin_at_other_times_have_no_limit_in_common",
        ),
    },
    // A file is not created, because of what another process of that id left.
    Mutant {
        file: SHARED_FILE,
        within: "fn write_new(",
        text: "(std::process::id(), random())",
        by: "(std::process::id(), [0; 2])",
        test: (
            "opening",
            "what_a_process_with_the_same_process_id_leaves_keeps_no_file_from_being_created",
        ),
    },
    // Contents start again after a truncation.
    Mutant {
        file: MAPPING,
        within: "pub(crate) fn is_lost(&self) -> bool {\n        // SAFETY",
        text: "| (end.load(Relaxed) != END)",
        by: "| (end.load(Relaxed) == 1)",
        test: (
            "attacks",
            "a_truncation_that_leaves_no_page_missing_is_noticed",
        ),
    },
    Mutant {
        file: SHARED_TABLE,
        within: "fn lines(&self, number",
        text: "Mapping::new(file, self.whole(), self.file.path())",
        by: "Mapping::new(file, self.whole() - (self.lines * 64 + 64) as u64, self.file.path())",
        test: (
            "attacks",
            "a_truncation_of_the_lines_that_a_change_has_added_is_noticed",
        ),
    },
    Mutant {
        file: MAPPING,
        within: "fn as_ref(&self) -> &[Line]",
        text: "if self.is_lost() || !self.is_in_force() {",
        by: "if !self.is_in_force() {",
        test: (
            "tables",
            "a_table_that_has_changed_and_whose_lines_are_truncated_denies",
        ),
    },
    // Processes disagree on the slot of a key.
    Mutant {
        file: SHARED_TABLE,
        within: "pub fn table<L, R>(",
        text: "seed: header.seed,",
        by: "seed: [header.seed[0], u64::from(std::process::id())],",
        test: (
            "processes",
            "four_processes_share_one_table_of_a_million_keys",
        ),
    },
    // A claim of a live process is abandoned.
    Mutant {
        file: SHARED_TABLE,
        within: "pub fn recover_at(",
        text: "seen.map_or(now,",
        by: "seen.map_or(Timestamp::ZERO,",
        test: (
            "tables",
            "a_slot_that_a_killed_process_was_claiming_is_recovered",
        ),
    },
    // A permit of a dead process is lost, or one of a live process is taken.
    Mutant {
        file: MEMBER,
        within: "pub(crate) fn is_alive(",
        text: "told.is_err() ||",
        by: "true || told.is_err() ||",
        test: (
            "concurrency",
            "the_permits_of_a_process_that_is_killed_return_to_the_next_request",
        ),
    },
    Mutant {
        file: MEMBER,
        within: "pub(crate) fn is_alive(",
        text: "!= libc::F_UNLCK",
        by: "== libc::F_RDLCK",
        test: (
            "processes",
            "four_processes_share_one_concurrency_limit_while_processes_are_killed",
        ),
    },
    Mutant {
        file: SHARED_CONCURRENCY,
        within: "pub fn concurrency(",
        text: "|held| held.member() == member",
        by: "|_| false",
        test: (
            "concurrency",
            "a_new_process_does_not_inherit_the_permits_of_a_dead_one",
        ),
    },
    Mutant {
        file: SLOTS,
        within: "pub fn change(",
        text: "let reach = limit.max(seen.reach() as u64);",
        by: "let reach = limit;",
        test: ("concurrency", "permits_in_use_count_under_a_lower_limit"),
    },
    Mutant {
        file: SHARED_CONCURRENCY,
        within: "fn take(",
        text: "if n != 1 || limit.reach() > permits {",
        by: "if n == 0 {",
        test: ("concurrency", "a_wait_for_several_permits_sleeps"),
    },
    // A change whose process is stopped stops all others, or is called damage.
    Mutant {
        file: SHARED_LIMITER,
        within: "pub fn limiter<L: Shareable>(",
        text: "if !complete::<L>(&versions, before) {",
        by: "if true {",
        test: (
            "changes",
            "a_change_whose_process_is_stopped_is_completed_by_others",
        ),
    },
    Mutant {
        file: SHARED_TABLE,
        within: "fn complete(&self",
        text: "!is_dead && age.is_some_and(|age| age < HELP_AFTER)",
        by: "!is_dead",
        test: (
            "tables",
            "a_change_of_a_table_whose_process_is_stopped_is_completed_by_others",
        ),
    },
    Mutant {
        file: SHARED_TABLE,
        within: "fn change(&self",
        text: "lines.all().iter().for_each(Line::close);",
        by: "",
        test: ("tables", "a_table_changes_again_after_a_minute"),
    },
    // A table that changes.
    Mutant {
        file: MAPPING,
        within: "impl AsRef<[Line]> for MappedLines {",
        text: "if self.is_lost() || !self.is_in_force() {",
        by: "if self.is_lost() {",
        test: ("tables", "a_table_changes_again_after_a_minute"),
    },
    Mutant {
        file: SHARED_CONCURRENCY,
        within: "pub fn renew(",
        text: "self.all().take(count)",
        by: "self.all()",
        test: (
            "concurrency",
            "a_permit_ends_at_its_deadline_unless_it_is_renewed",
        ),
    },
];

/// Those that a loom model must detect.
pub(super) const OF_THE_SLOTS: &[Mutant] = &[
    Mutant {
        file: SLOTS,
        within: "pub fn give_back(",
        text: "(mine.0, 0, Release, Relaxed)",
        by: "(mine.0, 0, Relaxed, Relaxed)",
        test: ("shared_slots", "a_permit_of_a_limit_of_one_guards_data"),
    },
    Mutant {
        file: SLOTS,
        within: "pub fn take(",
        text: "(word, mine.0, SeqCst, Relaxed)",
        by: "(word, mine.0, Relaxed, Relaxed)",
        test: ("shared_slots", "a_permit_of_a_limit_of_one_guards_data"),
    },
    // A limit that changes.
    Mutant {
        file: SLOTS,
        within: "pub fn has_granted(",
        text: "if self.word.load(SeqCst) != limit.0 {",
        by: "if false {",
        test: (
            "shared_slots",
            "no_more_permits_are_granted_than_a_limit_that_was_lowered",
        ),
    },
    Mutant {
        file: SLOTS,
        within: "pub fn has_granted(",
        text: "within + beyond <= permits",
        by: "true",
        test: (
            "shared_slots",
            "no_more_permits_are_granted_than_a_limit_that_was_lowered",
        ),
    },
    Mutant {
        file: SLOTS,
        within: "pub fn watch(",
        text: "fence(SeqCst);",
        by: "",
        test: (
            "shared_slots",
            "a_waiter_gets_the_permit_or_the_gate_is_opened",
        ),
    },
    Mutant {
        file: SLOTS,
        within: "pub fn open(",
        text: "fence(SeqCst);",
        by: "",
        test: (
            "shared_slots",
            "a_waiter_gets_the_permit_or_the_gate_is_opened",
        ),
    },
    Mutant {
        file: VERSIONS,
        within: "pub fn is_in_force(",
        text: "fence(Acquire);",
        by: "",
        test: ("shared_versions", "a_permit_is_granted_by_one_version"),
    },
    Mutant {
        file: ATTACHED,
        within: "pub fn move_to_at<",
        text: "fetch_add(0, AcqRel)",
        by: "fetch_add(0, Relaxed)",
        test: ("shared_versions", "a_permit_is_granted_by_one_version"),
    },
    Mutant {
        file: VERSIONS,
        within: "pub fn supersede(",
        text: "before.stamp.store(stamp(number, SUPERSEDED), Release);",
        by: "",
        test: ("shared_versions", "a_permit_is_granted_by_one_version"),
    },
    Mutant {
        file: ATTACHED,
        within: "pub fn move_to_at<",
        text: "to.place().as_ref().0.replace(instead_of, moved, Relaxed)",
        by: "to.place().as_ref().0.store(moved, Relaxed); true",
        test: (
            "shared_versions",
            "a_change_that_several_processes_complete_grants_nothing_twice",
        ),
    },
    Mutant {
        file: VERSIONS,
        within: "pub fn supersede(",
        text: "clear();",
        by: "",
        test: (
            "shared_versions",
            "a_change_that_several_processes_complete_grants_nothing_twice",
        ),
    },
    Mutant {
        file: VERSIONS,
        within: "pub fn complete(",
        text: "if self.stamp.fetch_add(0, AcqRel) != pending {",
        by: "if false {",
        test: (
            "shared_versions",
            "a_change_that_several_processes_complete_grants_nothing_twice",
        ),
    },
    Mutant {
        file: OWNED_LOCK,
        within: "pub fn release(",
        text: "word.compare_exchange(me.0, 0, Release, Relaxed)",
        by: "word.compare_exchange(me.0, 0, Relaxed, Relaxed)",
        test: ("shared_lock", "one_owner_at_a_time_has_the_lock"),
    },
    Mutant {
        file: OWNED_LOCK,
        within: "pub fn take(",
        text: "word.compare_exchange(seen, next, Acquire, Relaxed)",
        by: "word.compare_exchange(seen, next, Relaxed, Relaxed)",
        test: ("shared_lock", "one_owner_at_a_time_has_the_lock"),
    },
    Mutant {
        file: OWNED_LOCK,
        within: "pub fn take(",
        text: "|| !waiting.is_alive(Owner(owner))",
        by: "|| waiting.is_alive(Owner(owner))",
        test: ("shared_lock", "one_owner_at_a_time_has_the_lock"),
    },
    // What was true of a dead owner is taken to be true of the next one of its number.
    Mutant {
        file: OWNED_LOCK,
        within: "pub const fn new(number: usize",
        text: "generation << NUMBER_BITS",
        by: "(generation & 0) << NUMBER_BITS",
        test: (
            "shared_lock",
            "an_answer_about_an_owner_holds_for_no_later_owner_of_its_number",
        ),
    },
    Mutant {
        file: OWNED_LOCK,
        within: "pub fn inherit(",
        text: "(seen, 0, AcqRel, Relaxed)",
        by: "(seen, 0, Acquire, Relaxed)",
        test: (
            "shared_lock",
            "an_answer_about_an_owner_holds_for_no_later_owner_of_its_number",
        ),
    },
    Mutant {
        file: OWNED_LOCK,
        within: "pub fn release(",
        text: "word.compare_exchange(me.0, 0, Release, Relaxed).is_err()",
        by: "word.swap(0, Release) != me.0",
        test: (
            "shared_lock",
            "a_release_by_a_process_that_does_not_own_the_lock_changes_nothing",
        ),
    },
    Mutant {
        file: STRIPES,
        within: "fn draw(",
        text: "u64::from(room - n));",
        by: "u64::from(room));",
        test: ("shared_stripes", "permits_are_in_one_place_or_granted_once"),
    },
    Mutant {
        file: STRIPES,
        within: "fn draw(",
        text: "self.search(n).ok_or(denied)",
        by: "Err(denied)",
        test: ("shared_stripes", "the_last_permits_are_found_in_any_stripe"),
    },
    Mutant {
        file: STRIPES,
        within: "pub fn refund(",
        text: ".compare_exchange(left, back, Relaxed, Relaxed)",
        by: ".compare_exchange(stripe.word.load(Relaxed), back, Relaxed, Relaxed)",
        test: ("shared_stripes", "a_refund_returns_permits_once"),
    },
    Mutant {
        file: POOL_SLOTS,
        within: "fn exchange(",
        text: "(from.0, to.0, AcqRel, Relaxed)",
        by: "(from.0, to.0, Relaxed, Relaxed)",
        test: ("shared_pool", "a_lease_guards_data"),
    },
    Mutant {
        file: POOL_SLOTS,
        within: "pub fn claim(",
        text: "seen.stage() == HELD && self.put_to_end(seen, now)",
        by: "self.is_past(seen, now)",
        test: ("shared_pool", "a_lease_that_is_renewed_is_not_taken_over"),
    },
    // A call writes the lease that has the place after its own.
    Mutant {
        file: POOL_SLOTS,
        within: "pub fn adopt(",
        text: "seen.adoptions() + 1",
        by: "seen.adoptions()",
        test: (
            "shared_pool",
            "a_lease_that_returns_to_a_number_is_not_that_of_the_dead_process",
        ),
    },
    Mutant {
        file: POOL_SLOTS,
        within: "pub fn renew(",
        text: "before == state.end(before.millis())",
        by: "true",
        test: (
            "shared_pool",
            "a_renewal_that_comes_too_late_changes_nothing_of_the_next_lease",
        ),
    },
    Mutant {
        file: POOL_SLOTS,
        within: "fn exchange_end(",
        text: "self.end.compare_exchange(from.0, to.0, Relaxed, Relaxed)",
        by: "Ok::<u64, u64>(self.end.swap(to.0, Relaxed))",
        test: (
            "shared_pool",
            "a_renewal_that_comes_too_late_changes_nothing_of_the_next_lease",
        ),
    },
    // An answer about a member is used for the next process of its number.
    Mutant {
        file: DEATHS,
        within: "pub fn is_dead(",
        text: "*said != Some(true)",
        by: "said.is_none()",
        test: (
            "shared_slots",
            "a_process_that_gets_the_number_of_a_dead_one_keeps_its_permits",
        ),
    },
];
