//! Mutants of the protocol of a member and of the rules of a store, which the simulation of fleets
//! or a test of the protocol must detect.

use super::Mutant;

const PROTOCOL: &str = "fleet/src/protocol.rs";
const FAIR_SHARE: &str = "fleet/src/fair_share.rs";
const ENDING: &str = "fleet/src/ending_bucket.rs";
const TABLE: &str = "fleet/src/store/memory.rs";

const SIMULATION: (&str, &str) = ("simulation", "two_thousand_random_runs");

const BACK: (&str, &str) = (
    "simulation",
    "a_server_that_members_leave_and_come_back_to_leases_nothing_twice",
);
const LONGEST: (&str, &str) = (
    "protocol",
    "a_store_holds_off_for_the_longest_lease_that_may_last_and_no_longer",
);

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
        text: "self.hold_off(now);",
        by: "let _ = now;",
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
        by: "if holds_off || until.is_none() {",
        test: (
            "protocol",
            "a_store_that_has_forgotten_believes_the_larger_fence_and_grants_nothing",
        ),
    },
    // A store that was not in charge: it takes no notice, or is not told; it holds off each time
    // that it hears of the same; a member is silent for longer than a third of a lease.
    Mutant {
        file: TABLE,
        within: "fn is_elsewhere(",
        text: "is_other && ",
        by: "is_other && now == Timestamp::ZERO && ",
        test: BACK,
    },
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "self.heard = Some((answer.server, flight.sent));",
        by: "self.heard = self.heard.or(Some((answer.server, flight.sent)));",
        test: BACK,
    },
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "remaining.min(self.settings.lease / 3)",
        by: "remaining.min(self.settings.lease)",
        test: BACK,
    },
    Mutant {
        file: TABLE,
        within: "fn is_elsewhere(",
        text: " && !is_covered",
        by: " && (!is_covered || is_covered)",
        test: (
            "protocol",
            "a_store_that_was_not_in_charge_grants_nothing_until_all_leases_of_the_other_one_have_ended",
        ),
    },
    Mutant {
        file: TABLE,
        within: "fn is_elsewhere(",
        text: " && heard.ago < self.longest.length",
        by: "",
        test: (
            "protocol",
            "a_store_that_was_not_in_charge_grants_nothing_until_all_leases_of_the_other_one_have_ended",
        ),
    },
    Mutant {
        file: PROTOCOL,
        within: "fn heard(&self)",
        text: "ago.saturating_sub(fast)",
        by: "ago.saturating_sub(fast * 0)",
        test: (
            "protocol",
            "a_member_tells_each_store_which_one_has_answered_last",
        ),
    },
    // A store holds off for a lease that has ended, or not for one that lasts.
    Mutant {
        file: TABLE,
        within: "fn ask(&mut self",
        text: " || now >= self.until",
        by: "",
        test: LONGEST,
    },
    Mutant {
        file: TABLE,
        within: "fn ask(&mut self",
        text: "self.next = self.next.max(lease);",
        by: "self.next = lease;",
        test: LONGEST,
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
