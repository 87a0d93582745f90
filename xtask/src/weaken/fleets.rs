//! Mutants of the protocol of a member and of the rules of a store, which the simulation of fleets
//! or a test of the protocol must detect.

use super::Mutant;

const PROTOCOL: &str = "fleet/src/protocol.rs";
const FAIR_SHARE: &str = "fleet/src/fair_share.rs";
const ENDING: &str = "fleet/src/ending_bucket.rs";
const TABLE: &str = "fleet/src/store/memory.rs";

const SIMULATION: (&str, &str) = ("simulation", "two_thousand_random_runs");

pub(super) const MUTANTS: &[Mutant] = &[
    // What was renewed after its end is lost for an interval, or used although it is given up.
    Mutant {
        file: PROTOCOL,
        within: "fn renewed(",
        text: "if renewed == answer.renewed.len() {",
        by: "if renewed <= answer.renewed.len() {",
        test: (
            "protocol",
            "a_renewal_moves_the_end_on_unless_the_new_end_has_passed",
        ),
    },
    Mutant {
        file: PROTOCOL,
        within: "fn renewed(",
        text: " && !self.releasing.contains(&held)",
        by: "",
        test: (
            "protocol",
            "a_renewal_of_what_is_being_released_changes_nothing",
        ),
    },
    // A member of a fair pool waits for an interval before it takes what a crashed one had.
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "self.ask_at = self.now;",
        by: "",
        test: (
            "simulation",
            "the_capacity_of_a_crashed_process_is_in_use_again",
        ),
    },
    // The end of a lease: it counts from the answer; no margin; a grant that came too late; a lease
    // that is used after its end.
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "let ends = flight.ends;",
        by: "let ends = self.now.saturating_add(flight.lease - self.settings.margin);",
        test: SIMULATION,
    },
    Mutant {
        file: PROTOCOL,
        within: "fn exchange(",
        text: "self.settings.lease.saturating_sub(self.settings.margin)",
        by: "self.settings.lease",
        test: SIMULATION,
    },
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "let ends = flight.ends;",
        by: "let ends = flight.sent.saturating_add(self.settings.lease - self.settings.margin);",
        test: (
            "protocol",
            "a_lease_lasts_as_long_as_its_request_said_although_the_settings_have_changed",
        ),
    },
    Mutant {
        file: PROTOCOL,
        within: "fn take(&mut self, held",
        text: "if self.now < ends {",
        by: "if ends > Timestamp::ZERO {",
        test: (
            "protocol",
            "a_grant_that_arrives_after_its_end_is_released_and_not_used",
        ),
    },
    Mutant {
        file: PROTOCOL,
        within: "fn pass_time(",
        text: "self.used.retain(|lease| now < lease.ends);",
        by: "let _ = now;",
        test: ("protocol", "from_its_end_on_a_lease_is_not_used"),
    },
    // A grant comes with a burst.
    Mutant {
        file: ENDING,
        within: "pub fn set(",
        text: "Carry::Keep",
        by: "Carry::Reset",
        test: SIMULATION,
    },
    // A store that has forgotten leases: it grants at once; it believes the wrong claim; it grants
    // a lease again that a late claim stands for.
    Mutant {
        file: TABLE,
        within: "pub fn forget(",
        text: "self.holds_off_until = now.saturating_add(self.longest);",
        by: "self.holds_off_until = now;",
        test: SIMULATION,
    },
    Mutant {
        file: TABLE,
        within: "pub fn exchange(",
        text: "holds_off && of.fence < held.fence",
        by: "holds_off",
        test: (
            "protocol",
            "a_store_that_has_forgotten_believes_the_larger_fence_and_grants_nothing",
        ),
    },
    Mutant {
        file: TABLE,
        within: "pub fn exchange(",
        text: "if !holds_off {",
        by: "if holds_off || now >= self.holds_off_until {",
        test: (
            "protocol",
            "a_store_that_has_forgotten_believes_the_larger_fence_and_grants_nothing",
        ),
    },
    // A lease ends earlier than it was granted for.
    Mutant {
        file: TABLE,
        within: "pub fn exchange(",
        text: "before.map_or(ends, |before| before.max(ends))",
        by: "ends",
        test: (
            "protocol",
            "a_store_does_not_end_a_lease_earlier_than_it_was_granted_for",
        ),
    },
    Mutant {
        file: TABLE,
        within: "fn grant_again(",
        text: "lease.ends.max(ends)",
        by: "ends",
        test: (
            "protocol",
            "a_store_does_not_end_a_lease_earlier_than_it_was_granted_for",
        ),
    },
    // A late release ends a later lease; a release is forgotten when its answer is lost.
    Mutant {
        file: TABLE,
        within: "pub fn exchange(",
        text: "lease.member == request.member && lease.fence == held.fence",
        by: "lease.member == request.member",
        test: (
            "protocol",
            "a_late_release_or_renewal_does_not_touch_a_later_lease",
        ),
    },
    Mutant {
        file: PROTOCOL,
        within: "fn failed(",
        text: "let Some(_) = self.flight",
        by: "self.releasing.clear();\n        let Some(_) = self.flight",
        test: (
            "protocol",
            "a_release_is_repeated_until_the_store_confirms_it",
        ),
    },
    Mutant {
        file: TABLE,
        within: "fn grant_again(",
        text: "*fence += 1;",
        by: "*fence = lease.fence;",
        test: (
            "protocol",
            "a_store_grants_again_what_a_lost_answer_granted",
        ),
    },
    // Shares are fair: what waits is next; who has no demand claims nothing.
    Mutant {
        file: FAIR_SHARE,
        within: "fn key(",
        text: "i128::from(claim.served) - i128::from(turn)",
        by: "-i128::from(turn)",
        test: SIMULATION,
    },
    // Capacity is in use: a member asks again after an interval; what a lost answer granted is
    // granted again.
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "self.ask_at = flight.sent.saturating_add(interval);",
        by: "self.ask_at = flight.sent.saturating_add(interval * 3);",
        test: SIMULATION,
    },
    Mutant {
        file: TABLE,
        within: "pub fn exchange(",
        text: "self.grant_again(request, now, ends, &mut answer);",
        by: "",
        test: (
            "protocol",
            "a_store_grants_again_what_a_lost_answer_granted",
        ),
    },
    // Leases are released when the demand has fallen.
    Mutant {
        file: PROTOCOL,
        within: "fn settle_target(",
        text: "self.target = falling.most;",
        by: "self.target = falling.most.max(self.target);",
        test: ("protocol", "the_share_falls_before_a_release_is_sent"),
    },
];
