//! Mutants of counter stores, which an ordinary test must detect.

use super::Mutant;

const MEMORY: &str = "policy/src/counters/memory.rs";
const QUOTA: &str = "policy/src/counters/quota.rs";

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
];
