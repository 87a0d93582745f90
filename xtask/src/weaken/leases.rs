//! Mutants of the stores of leases, the driver of a member and its limiter, which an ordinary test
//! must detect.

use super::Mutant;

const ENDING: &str = "fleet/src/ending_bucket.rs";
const LIMITER: &str = "fleet/src/share_limiter.rs";
const MEMBER: &str = "fleet/src/member.rs";
const ETCD: &str = "fleet/src/store/etcd.rs";
const REDIS: &str = "fleet/src/store/redis/exchange.lua";

const BACK: (&str, &str) = (
    "stores",
    "a_server_that_was_not_in_charge_grants_nothing_that_the_other_one_has_leased",
);
const LONGEST: (&str, &str) = (
    "stores",
    "a_long_lease_that_has_ended_makes_no_later_restart_longer",
);

pub(super) const MUTANTS: &[Mutant] = &[
    // The limiter uses a lease after its end, or permits that no lease stands for.
    Mutant {
        file: ENDING,
        within: "pub fn take_at(",
        text: "now.as_nanos() >= seen & !LIFE",
        by: "seen & !LIFE == CLOSED",
        test: ("share_limiter", "from_its_end_on_a_share_admits_nothing"),
    },
    Mutant {
        file: ENDING,
        within: "pub fn set(",
        text: "now.as_nanos() >= end",
        by: "end == CLOSED",
        test: (
            "share_limiter",
            "what_a_share_gains_after_its_end_is_not_admitted_later",
        ),
    },
    Mutant {
        file: ENDING,
        within: "const STALENESS",
        text: "Duration::from_mins(10)",
        by: "Duration::from_secs(5)",
        test: (
            "share_limiter",
            "a_timestamp_from_before_a_long_stop_takes_nothing_that_was_not_there",
        ),
    },
    Mutant {
        file: ENDING,
        within: "pub fn set(",
        text: "Carry::Keep",
        by: "Carry::Additive",
        test: (
            "share_limiter",
            "a_lease_takes_its_burst_along_when_it_ends",
        ),
    },
    Mutant {
        file: LIMITER,
        within: "fn retry(",
        text: "at.as_nanos() < until && ",
        by: "",
        test: (
            "share_limiter",
            "a_request_waits_for_a_share_that_is_large_enough",
        ),
    },
    Mutant {
        file: LIMITER,
        within: "fn denied(",
        text: "if permits > capacity",
        by: "if permits > capacity.min(self.bucket.bucket().burst() as u32)",
        test: (
            "share_limiter",
            "a_request_waits_for_a_share_that_is_large_enough",
        ),
    },
    // The driver: another fallback; a driver that is gone leaves its share in use.
    Mutant {
        file: MEMBER,
        within: "fn on(",
        text: "if follows && is_alone {",
        by: "if follows && is_alone && self.fallback == Fallback::Block {",
        test: (
            "member",
            "without_the_store_leases_last_and_then_the_fallback_is_in_force",
        ),
    },
    Mutant {
        file: MEMBER,
        within: "impl<T: Timer> Drop for Driver<T> {",
        text: "self.shared.limiter.follow_at(self.timer.now(), Share::NONE);",
        by: "let _ = self.timer.now();",
        test: ("member", "a_driver_that_is_dropped_ends_the_share"),
    },
    Mutant {
        file: MEMBER,
        within: "impl<T: Timer> Drop for Driver<T> {",
        text: "self.shared.limiter.follow_at(self.timer.now(), Share::NONE);",
        by: "if locked(&self.shared.known).status.share != Share::NONE { self.shared.limiter.follow_at(self.timer.now(), Share::NONE); }",
        test: ("member", "a_driver_that_is_dropped_ends_the_fallback"),
    },
    Mutant {
        file: MEMBER,
        within: "pub fn change(",
        text: "pool.named(known.pool.name())",
        by: "pool",
        test: ("member", "a_change_keeps_the_name_of_the_pool"),
    },
    // etcd: a request that was given up changes something; a leader that was replaced; whose lease
    // it is; the keys of another pool.
    Mutant {
        file: ETCD,
        within: "async fn change(",
        text: "\"compare\": [{ \"key\": member, \"target\": \"MOD\", \"mod_revision\": known.written.to_string() }],",
        by: "\"compare\": [],",
        test: (
            "stores",
            "a_release_that_was_given_up_does_not_end_a_lease_that_was_granted_again",
        ),
    },
    Mutant {
        file: ETCD,
        within: "async fn attempt(",
        text: "if read.term != begun.term {",
        by: "if read.term < begun.term {",
        test: (
            "stores",
            "a_lease_that_a_former_leader_began_does_not_count",
        ),
    },
    Mutant {
        file: ETCD,
        within: "async fn change(",
        text: ", { \"key\": key, \"target\": \"VALUE\", \"value\": name }",
        by: "",
        test: ("stores", "a_stale_fence_renews_and_releases_nothing"),
    },
    Mutant {
        file: ETCD,
        within: "fn answer(",
        text: "renewed.filter(|held| ours.contains(held)).collect()",
        by: "renewed.collect()",
        test: ("stores", "a_stale_fence_renews_and_releases_nothing"),
    },
    Mutant {
        file: ETCD,
        within: "fn new(prefix: &str, pool: &str) -> Self {",
        text: "\"{prefix}{}:{pool}/\", pool.len()",
        by: "\"{prefix}{pool}/\"",
        test: ("stores", "pools_are_apart_whatever_their_names"),
    },
    // etcd: a lease that is too short, since the pool was changed.
    Mutant {
        file: ETCD,
        within: "async fn begin(",
        text: "lasts >= seconds",
        by: "lasts > 0",
        test: (
            "stores",
            "a_lease_that_begins_again_with_another_length_lasts_for_the_longer_one",
        ),
    },
    Mutant {
        file: ETCD,
        within: "const fn is_empty(",
        text: "self.moves.is_empty() && ",
        by: "",
        test: (
            "stores",
            "all_leases_of_a_member_begin_again_with_a_longer_length",
        ),
    },
    Mutant {
        file: REDIS,
        within: "for _ = 1, ARGV[7] do",
        text: "math.max(ours and one.ends or 0, now + lease)",
        by: "now + lease",
        test: (
            "stores",
            "a_lease_that_begins_again_with_another_length_lasts_for_the_longer_one",
        ),
    },
    Mutant {
        file: REDIS,
        within: "-- What the member has but does not name",
        text: "hold_off == 0 and one.member",
        by: "one.member",
        test: (
            "stores",
            "a_server_that_may_remember_too_much_grants_nothing_again",
        ),
    },
    // Redis: a request that was given up changes something; a server that may have forgotten leases
    // grants them; whose lease it is.
    Mutant {
        file: REDIS,
        within: "if known and",
        text: "known.number >= number",
        by: "known.number > number + 1",
        test: (
            "stores",
            "a_release_that_was_given_up_does_not_end_a_lease_that_was_granted_again",
        ),
    },
    Mutant {
        file: REDIS,
        within: "for _ = 1, ARGV[9] do",
        text: "hold_off == 0 and ",
        by: "",
        test: ("stores", "after_a_restart_no_partition_is_leased_twice"),
    },
    Mutant {
        file: REDIS,
        within: "if facts.run ~= run",
        text: "facts.run ~= run or ",
        by: "",
        test: (
            "stores",
            "a_pool_that_another_run_of_the_server_has_written_is_leased_after_one_lease_time",
        ),
    },
    Mutant {
        file: REDIS,
        within: "if facts.run ~= run",
        text: "or since > now ",
        by: "",
        test: (
            "stores",
            "a_server_whose_clock_was_set_back_holds_off_for_one_lease_time",
        ),
    },
    Mutant {
        file: REDIS,
        within: "if heard ~= 0 and",
        text: "heard ~= server and",
        by: "heard == server and",
        test: BACK,
    },
    Mutant {
        file: REDIS,
        within: "if heard ~= 0 and",
        text: "ago < longest and ",
        by: "",
        test: BACK,
    },
    Mutant {
        file: REDIS,
        within: "if lease >= longest or",
        text: " or now >= ends_by",
        by: "",
        test: LONGEST,
    },
    Mutant {
        file: REDIS,
        within: "if lease >= longest or",
        text: "math.max(shorter, lease)",
        by: "lease",
        test: LONGEST,
    },
    Mutant {
        file: REDIS,
        within: "for _ = 1, ARGV[7] do",
        text: " and one.fence == of",
        by: "",
        test: ("stores", "a_stale_fence_renews_and_releases_nothing"),
    },
    Mutant {
        file: REDIS,
        within: "for _ = 1, ARGV[7] do",
        text: "one.fence < of",
        by: "one.fence > 0",
        test: ("stores", "while_a_server_holds_off_the_larger_fence_counts"),
    },
    Mutant {
        file: REDIS,
        within: "for _ = 1, ARGV[7] do",
        text: "one and one.over",
        by: "false",
        test: (
            "stores",
            "a_lease_that_has_ended_is_not_renewed_although_no_one_else_has_it",
        ),
    },
    Mutant {
        file: REDIS,
        within: "for _ = 1, ARGV[8] do",
        text: "one.member == member and ",
        by: "",
        test: ("stores", "a_stale_fence_renews_and_releases_nothing"),
    },
];

/// Those of the bucket of a share, which a model must detect.
pub(super) const OF_THE_ENDING_BUCKET: &[Mutant] = &[
    Mutant {
        file: ENDING,
        within: "pub fn take_at(",
        text: "if (self.until.load(Relaxed) ^ seen) & LIFE != 0 {",
        by: "if (self.until.load(Relaxed) ^ seen) & LIFE > LIFE {",
        test: (
            "ending_bucket",
            "a_take_after_the_end_takes_nothing_although_a_share_begins",
        ),
    },
    Mutant {
        file: ENDING,
        within: "pub fn set(",
        text: "self.until.store(CLOSED | life, Relaxed);",
        by: "",
        test: (
            "ending_bucket",
            "a_take_after_the_end_takes_nothing_although_a_share_begins",
        ),
    },
    Mutant {
        file: ENDING,
        within: "pub fn set(",
        text: "if is_over || until < end {",
        by: "if is_over {",
        test: (
            "ending_bucket",
            "a_take_after_an_end_that_has_moved_back_takes_nothing_new",
        ),
    },
    Mutant {
        file: ENDING,
        within: "pub fn set(",
        text: "if is_over || until < end {",
        by: "if until != end {",
        test: ("ending_bucket", "a_renewal_denies_no_take"),
    },
    Mutant {
        file: ENDING,
        within: "pub fn set(",
        text: "self.until.store(until | life, Release);",
        by: "self.until.store(until | life, Relaxed);",
        test: (
            "ending_bucket",
            "what_a_share_gained_is_gone_when_the_next_one_begins",
        ),
    },
];
