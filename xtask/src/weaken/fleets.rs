//! Mutants of the protocol of a member and of the rules of a store, which the simulation of fleets
//! must detect.

use super::Mutant;

const PROTOCOL: &str = "fleet/src/protocol.rs";
const FAIR_SHARE: &str = "fleet/src/fair_share.rs";
const LIMITER: &str = "fleet/src/share_limiter.rs";
const TABLE: &str = "fleet/src/store/memory.rs";

const SIMULATION: (&str, &str) = ("simulation", "two_thousand_random_runs");

pub(super) const MUTANTS: &[Mutant] = &[
    // The end of a lease: it counts from the answer; no margin; a grant that came too late; a lease
    // that is used after its end.
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "let ends = flight.sent.saturating_add(lasts);",
        by: "let ends = self.now.saturating_add(lasts);",
        test: SIMULATION,
    },
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "self.settings.lease.saturating_sub(self.settings.margin)",
        by: "self.settings.lease",
        test: SIMULATION,
    },
    Mutant {
        file: PROTOCOL,
        within: "fn answered(",
        text: "if self.now < ends {",
        by: "if !ends.saturating_since(Timestamp::ZERO).is_zero() {",
        test: SIMULATION,
    },
    Mutant {
        file: PROTOCOL,
        within: "fn pass_time(",
        text: "self.used.retain(|lease| now < lease.ends);",
        by: "let _ = now;",
        test: SIMULATION,
    },
    // A grant comes with a burst.
    Mutant {
        file: LIMITER,
        within: "fn set(",
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
        test: SIMULATION,
    },
    // Leases are released when the demand has fallen.
    Mutant {
        file: PROTOCOL,
        within: "fn settle_target(",
        text: "self.target = falling.most;",
        by: "self.target = falling.most.max(self.target);",
        test: SIMULATION,
    },
];
