//! Mutants that an ordinary test or the explorer must detect.

use super::Mutant;

const LIVE: &str = "core/src/word/live.rs";
const SHARES: &str = "core/src/limiters/concurrency_shares.rs";
const WARMING_BUCKET: &str = "core/src/limiters/warming_bucket/rules.rs";
const STRIPED_BUCKET: &str = "core/src/limiters/striped_bucket.rs";
const STRIPED_CONCURRENCY: &str = "core/src/limiters/striped_concurrency.rs";
const CHANNEL: &str = "async/src/adapters/channel.rs";
const BLOCKING: &str = "async/src/driving/blocking.rs";
const DRIVERS: &str = "async/src/waiting/drivers.rs";
const DRIVE: &str = "async/src/driving/drive.rs";
const DRIVER: &str = "async/src/waiting/wait_queue/driver.rs";
const WAIT_QUEUE: &str = "async/src/waiting/wait_queue.rs";
const ADMIT: &str = "async/src/waiting/wait_queue/admit.rs";
const LIMITER_SOURCE: &str = "async/src/waiting/limiter_source.rs";
const SERVE: &str = "async/src/waiting/wait_queue/serve.rs";
const KEYED_QUEUE: &str = "async/src/queues/keyed_queue.rs";
const QUEUE: &str = "async/src/queues/queue.rs";
const TAKEN: &str = "async/src/waiting/wait_queue/taken.rs";
const WAITS: &str = "async/src/waiting/wait_queue/waits.rs";

pub(super) const OF_THE_CORE: &[Mutant] = &[
    // Lists of limits: a receipt of a grant that others have followed; states that have wrapped; a
    // refund keeps the permits of concurrency limits; a decision depends on the time.
    Mutant {
        file: "core/src/keyed/keyed_list/refunding.rs",
        within: "fn is_as_left(",
        text: "sum == receipt.note() &&",
        by: "",
        test: (
            "keyed_list",
            "a_refund_returns_the_permits_of_all_limits_or_only_those_that_are_released",
        ),
    },
    Mutant {
        file: "core/src/keyed/keyed_list/refunding.rs",
        within: "fn is_as_left(",
        text: "&& ahead <= KeyedWord::MASK",
        by: "",
        test: ("keyed_list", "states_that_wrap_do_not_validate_a_receipt"),
    },
    Mutant {
        file: "core/src/keyed/keyed_list/refunding.rs",
        within: "pub(super) fn refund_each(",
        text: "if is_whole || rules.releases() {",
        by: "if is_whole {",
        test: (
            "keyed_list",
            "a_refund_returns_the_permits_of_all_limits_or_only_those_that_are_released",
        ),
    },
    Mutant {
        file: "core/src/keyed/rule_list.rs",
        within: "fn left_within<",
        text: "Ok(ends) => rules.judge_within(state, ends)?",
        by: "Ok([first, _]) => WordRules::judge(rules, state, first)",
        test: ("interval", "so_it_does_for_a_key_with_several_limits"),
    },
    // A decision within an interval: the state that it leaves, or a denial at its end, depends on
    // the time; a receipt is taken for younger than it is; the interval ends in another segment;
    // a key of a table; a coarse time that is later than the precise one.
    Mutant {
        file: "core/src/rules.rs",
        within: "fn judge_within(",
        text: "if left == at_last =>",
        by: "if left == at_last || left != at_last =>",
        test: (
            "interval",
            "a_clock_with_an_interval_decides_as_the_precise_clock_for_every_limiter",
        ),
    },
    Mutant {
        file: "core/src/rules.rs",
        within: "fn judge_within(",
        text: "(denied @ Verdict::Denied(_), Verdict::Denied(_))",
        by: "(denied @ Verdict::Denied(_), _)",
        test: (
            "interval",
            "a_clock_with_an_interval_decides_as_the_precise_clock_for_every_limiter",
        ),
    },
    Mutant {
        file: "core/src/rules.rs",
        within: "fn judge_within(",
        text: "(Verdict::Allowed, Verdict::Allowed)",
        by: "(_, Verdict::Allowed)",
        test: (
            "interval",
            "a_clock_with_an_interval_decides_as_the_precise_clock_for_every_limiter",
        ),
    },
    Mutant {
        file: "core/src/rules/word_limiter.rs",
        within: "pub(crate) fn take_within(",
        text: "self.outcome(interval.earliest(), verdict)",
        by: "self.outcome(interval.latest(), verdict)",
        test: (
            "interval",
            "a_clock_with_an_interval_decides_as_the_precise_clock_for_every_limiter",
        ),
    },
    Mutant {
        file: "core/src/limiters/sliding_window.rs",
        within: "fn take_within(",
        text: "(self.epoch(now) == self.epoch(interval.latest()))",
        by: "(self.epoch(now) <= self.epoch(interval.latest()))",
        test: (
            "interval",
            "a_clock_with_an_interval_decides_as_the_precise_clock_for_every_limiter",
        ),
    },
    Mutant {
        file: "core/src/keyed.rs",
        within: "fn take_within(",
        text: "rules.requests_within(interval, n)",
        by: "rules.request(interval.earliest(), n).map(|request| [request; 2])",
        test: ("interval", "so_it_does_for_a_key_of_a_table"),
    },
    // A look within an interval says less than the take decides.
    Mutant {
        file: "core/src/limiters/striped_concurrency.rs",
        within: "fn peek_within(",
        text: "Some(self.look_for(interval.earliest(), n))",
        by: "(interval.earliest() == interval.latest()).then(|| self.look_for(interval.earliest(), n))",
        test: (
            "interval",
            "a_clock_with_an_interval_decides_as_the_precise_clock_for_every_limiter",
        ),
    },
    // A composition decides although the time matters to one of its limits, or to one of a
    // composition in it.
    Mutant {
        file: "core/src/all_of.rs",
        within: "fn grant_within(",
        text: "(!undecided.get()).then_some(granted)",
        by: "Some(granted)",
        test: ("interval", "so_it_does_for_compositions"),
    },
    Mutant {
        file: "core/src/all_of/as_limiter.rs",
        within: "fn take_within(",
        text: "self.receipt_within(interval, n, true)",
        by: "self.receipt_within(interval, n, false)",
        test: ("interval", "so_it_does_for_compositions"),
    },
    Mutant {
        file: "core/src/all_of.rs",
        within: "fn decides_within<",
        text: "limiter.decides_within() && as_composed(limiter).is_none()",
        by: "limiter.decides_within()",
        test: ("interval", "some_compositions_do_not_read_an_interval"),
    },
    Mutant {
        file: "core/src/clock.rs",
        within: "fn decide(&self",
        text: "at(self.clock.now())",
        by: "at(self.clock.interval().map_or_else(|| self.clock.now(), |interval| interval.latest()))",
        test: (
            "interval",
            "a_clock_with_an_interval_decides_as_the_precise_clock_for_every_limiter",
        ),
    },
    Mutant {
        file: "core/src/clock/monotonic.rs",
        within: "fn interval(&self",
        text: "let earliest = system::read(libc::CLOCK_MONOTONIC_COARSE);",
        by: "let earliest = system::read(libc::CLOCK_MONOTONIC_COARSE) + u64::from(length);",
        test: (
            "clock",
            "the_interval_of_a_monotonic_clock_contains_the_time",
        ),
    },
    // A refund that is late, or with a stale timestamp.
    Mutant {
        file: "core/src/limiters/lattice.rs",
        within: "pub(crate) fn restored(",
        text: "self.balance(position, used).from",
        by: "{ let _ = position; used }",
        test: (
            "late",
            "a_late_request_after_a_refund_finds_no_more_than_the_newest_time_leaves",
        ),
    },
    Mutant {
        file: "core/src/limiters/lattice.rs",
        within: "pub(crate) fn is_outlived(",
        text: "passed >= u128::from(self.behind - self.full)",
        by: "passed > u128::MAX - 1",
        test: (
            "given_back_late",
            "a_receipt_that_is_a_horizon_old_is_worth_nothing",
        ),
    },
    // An explained grant tells of the state before it.
    Mutant {
        file: "core/src/rules/word_limiter.rs",
        within: "pub(crate) fn take_explained(",
        text: "(left, Ok(rules.receipt(left, now)))",
        by: "(state, Ok(rules.receipt(left, now)))",
        test: ("explained", "each_limiter_tells_what_its_decision_left"),
    },
    // An explained take tells of a bucket that is full too early.
    Mutant {
        file: "core/src/limiters/lattice.rs",
        within: "pub(crate) fn detail(",
        text: "self.retry_for(ticks, used, now, self.full)",
        by: "self.retry_for(ticks, used, now, self.full.saturating_sub(1))",
        test: (
            "token_bucket",
            "a_token_bucket_decides_as_rational_arithmetic_does",
        ),
    },
    // A bucket that owes permits lets another request owe more.
    Mutant {
        file: "core/src/limiters/lattice.rs",
        within: "pub(crate) fn owing(",
        text: "(balance.owed == 0 && owed <= self.debt)",
        by: "(balance.owed.saturating_add(owed) <= self.debt)",
        test: (
            "owing",
            "wide::the_requests_that_follow_wait_until_nothing_is_owed",
        ),
    },
    // A refund from before an addition returns permits that were added.
    Mutant {
        file: "core/src/limiters/adjustable_bucket.rs",
        within: "fn refill(",
        text: "match claim.begin_era(word, used) {",
        by: "match Some(self.live.exchange(word, word & !Self::USED | used & Self::USED)) {",
        test: (
            "added",
            "wide::a_refund_after_the_refill_of_an_addition_was_lost_returns_nothing",
        ),
    },
    // An era begins at an instant at which all numbers have been in use.
    Mutant {
        file: LIVE,
        within: "fn begun_at(",
        text: "=> Live::<N, W>::NUMBERS,",
        by: "=> 0,",
        test: (
            "added",
            "wide::additions_at_one_instant_are_limited_by_the_word_and_work_again_later",
        ),
    },
    // The rounds of a `Sometimes` begin where the first calls end, not at a multiple.
    Mutant {
        file: "core/src/sometimes.rs",
        within: "pub const fn build_on<W: Word>",
        text: "first.next_multiple_of(every as u64)",
        by: "first",
        test: (
            "sometimes",
            "wide::the_examples_of_x_time_rate_are_due_as_there",
        ),
    },
    // A share lends its guarantee while it is in use, or to a stale timestamp.
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "count == 0 && age == LENDS",
        by: "age == LENDS",
        test: (
            "concurrency_shares",
            "shares_count_and_lend_as_plain_counters_do",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "distance >= Self::EPOCHS - STALE",
        by: "distance >= Self::EPOCHS",
        test: (
            "concurrency_shares",
            "shares_count_and_lend_as_plain_counters_do",
        ),
    },
    // A share that has returned keeps what a share needs that lent nothing, or never lends again.
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "kept += if has_returned { count } else { need };",
        by: "kept += need;",
        test: (
            "concurrency_shares",
            "a_share_that_lent_nothing_has_its_guarantee_when_another_returns",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "has_returned && !is_lent",
        by: "has_returned",
        test: (
            "concurrency_shares",
            "shares_count_and_lend_as_plain_counters_do",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "if has_returned { 0 } else { age } + passed",
        by: "age + passed",
        test: (
            "concurrency_shares",
            "a_share_that_has_returned_lends_again",
        ),
    },
    // A time that is staler than the staleness resets a narrow bucket as if it were a wrap later.
    Mutant {
        file: LIVE,
        within: "fn newest_for_change(",
        text: "told.saturating_sub(tick) > late",
        by: "false",
        test: (
            "adjustable_bucket",
            "on_32_bits_a_change_an_addition_and_a_reset_that_are_too_stale_are_refused",
        ),
    },
    // A bucket that warms up: a short pause does not cool it, a cold one admits too much, a refund
    // warms it or loses its time.
    Mutant {
        file: WARMING_BUCKET,
        within: "fn chill(&self",
        text: "(scaled + ((1 << shift) - 1)) >> shift",
        by: "scaled >> shift",
        test: (
            "warming_bucket",
            "a_warming_bucket_decides_as_unbounded_arithmetic_does",
        ),
    },
    Mutant {
        file: WARMING_BUCKET,
        within: "fn extra(&self",
        text: "(scaled + self.rounding) >>",
        by: "scaled >>",
        test: (
            "warming_bucket",
            "a_cold_bucket_keeps_to_the_line_of_its_warm_up",
        ),
    },
    Mutant {
        file: WARMING_BUCKET,
        within: "fn refund(&self",
        text: "self.join(full_at.wrapping_sub(price), before)",
        by: "self.join(full_at.wrapping_sub(price), coldness)",
        test: ("warming_bucket", "refunds_in_a_row_do_not_warm_a_bucket"),
    },
    Mutant {
        file: WARMING_BUCKET,
        within: "fn refund(&self",
        text: "let (_, parts) = self.settle(restored, self.position(now));",
        by: "let parts = self.split(restored);",
        test: (
            "warming_bucket",
            "a_late_request_after_a_refund_finds_no_more_than_the_newest_time_leaves",
        ),
    },
    // A reset of a window leaves the whole limit.
    Mutant {
        file: "core/src/limiters/adjustable_window.rs",
        within: "fn change(",
        text: "count.max(new.limit.saturating_sub(left))",
        by: "{ let _ = left; count }",
        test: (
            "adjustable_window",
            "a_reset_leaves_what_it_says_and_earlier_refunds_return_nothing",
        ),
    },
    // A change treats a window as one to come, although the word has wrapped.
    Mutant {
        file: "core/src/limiters/adjustable_window.rs",
        within: "fn carried(",
        text: "Some(on) if on.ahead > most => Some(On {",
        by: "Some(on) if on.ahead > u64::MAX - 1 => Some(On {",
        test: (
            "adjustable_window",
            "changes_gain_nothing_where_the_word_has_wrapped",
        ),
    },
    // A table gives a stale timestamp a full bucket, or an idle bucket more than its burst.
    Mutant {
        file: "core/src/limiters/lattice.rs",
        within: "pub(crate) fn used_after_in_table(",
        text: "distance >= behind",
        by: "distance > behind.max(mask)",
        test: (
            "keyed",
            "each_key_decides_as_its_own_limiter_while_the_table_has_room",
        ),
    },
    Mutant {
        file: "core/src/limiters/lattice.rs",
        within: "let available = select_unpredictable(distance",
        text: "select_unpredictable(distance <= full, distance, full)",
        by: "distance",
        test: (
            "keyed",
            "each_key_decides_as_its_own_limiter_while_the_table_has_room",
        ),
    },
    // A take from a slot forgets whose slot it is.
    Mutant {
        file: "core/src/limiters/token_bucket/rules.rs",
        within: "fn moved(",
        text: "if balance.available == old.full {",
        by: "if balance.available > old.full {",
        test: (
            "moving",
            "a_full_bucket_stays_full_in_the_middle_of_a_long_tick",
        ),
    },
    Mutant {
        file: "core/src/limiters/token_bucket/rules.rs",
        within: "fn judge_in_slot(",
        text: "placed(position) | low,",
        by: "placed(position),",
        test: ("keyed_list", "tuples_and_arrays_decide_as_plain_limiters"),
    },
    Mutant {
        file: "core/src/rules.rs",
        within: "fn judge_in_slot(",
        text: "left << STATE_AT | low",
        by: "left << STATE_AT | low & 1",
        test: ("keyed_list", "tuples_and_arrays_decide_as_plain_limiters"),
    },
    // A key takes from the slot of a key with another tag.
    Mutant {
        file: "core/src/keyed/line.rs",
        within: "fn find_in(",
        text: "(held.0 & (HELD | TAG) == wanted).then_some",
        by: "(held.0 & HELD != 0).then_some",
        test: (
            "keyed",
            "keys_with_one_tag_share_one_limit_or_have_separate_limits",
        ),
    },
    // The hash has fewer rounds, or the limit is no part of it.
    Mutant {
        file: "core/src/keyed/seeded_hasher.rs",
        within: "fn finish(&self) -> u64 { let mut words",
        text: "for _ in 0..3 {",
        by: "for _ in 0..2 {",
        test: ("keyed", "a_seed_hashes_as_sip_hash_1_3_does"),
    },
    Mutant {
        file: "core/src/keyed/line.rs",
        within: "pub(crate) const fn new(hash: u64",
        text: "hash.wrapping_mul(MIX.wrapping_add(2 * limit as u64))",
        by: "hash",
        test: ("keyed", "a_table_carries_256_limits"),
    },
    // A table forgets a key whose denials are counted.
    Mutant {
        file: "core/src/wrappers/penalty.rs",
        within: "fn idle_at(&self",
        text: "Some(spared) => spared.idle(self.denials.load(Relaxed), now, inner),",
        by: "Some(_) => inner,",
        test: (
            "keyed_array",
            "denials_and_penalties_are_not_forgotten_while_no_permit_is_out",
        ),
    },
    // A change treats the time of an old grant as one to come.
    Mutant {
        file: LIVE,
        within: "fn is_confirmed(&self",
        text: "&& (W::BITS == 64 || self.turn.load(Relaxed) == unbounded_shr(newest, W::BITS))",
        by: "",
        test: (
            "adjustable_bucket",
            "a_change_gains_nothing_by_a_newest_time_that_lies_a_turn_of_the_word_behind",
        ),
    },
    // Stripes: settling, refunds, and permits that lie in other stripes.
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn trade(",
        text: "self.rest.pack(settled.from, lent + draw)",
        by: "self.rest.pack(used, lent + draw)",
        test: (
            "striped_bucket",
            "a_stale_take_from_the_rest_gets_nothing_that_came_in_before_a_take_from_a_stripe",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn take(&self, index",
        text: "<= stripe.until.load(Relaxed)",
        by: "<= stripe.until.load(Relaxed).max(u64::MAX)",
        test: (
            "striped_bucket",
            "a_stale_take_from_the_rest_gets_nothing_that_came_in_before_a_take_from_a_stripe",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn undo(",
        text: "size.saturating_sub(have + 1)",
        by: "size - have",
        test: (
            "striped_bucket",
            "a_take_is_not_refunded_to_the_rest_once_a_stripe_has_settled_because_of_it",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn undo(",
        text: "!is_the_same || back == 0",
        by: "back == 0",
        test: (
            "striped_bucket",
            "a_take_is_not_refunded_to_a_stripe_that_has_another_allotment",
        ),
    },
    // Generations repeat, and so does the word that tells.
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn may_have_repeated(",
        text: "ahead >> (W::BITS - Self::ALLOTMENT_BITS - 1) >= full.cost",
        by: "ahead == u64::MAX",
        test: (
            "striped_bucket",
            "a_receipt_does_not_become_valid_again_however_many_allotments_its_stripe_has_had",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn may_have_repeated(",
        text: "full.is_outlived(taken_in, self.rest.ticks.index(now))",
        by: "now < Timestamp::ZERO",
        test: (
            "striped_bucket",
            "a_receipt_does_not_become_valid_again_however_many_allotments_its_stripe_has_had",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn take_out(",
        text: "Self::generation(word) + 1",
        by: "Self::generation(word)",
        test: (
            "striped_bucket",
            "a_take_is_not_refunded_to_a_stripe_that_has_another_allotment",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn take_slowly(",
        text: "self.trade(index, word, hand.and(held), now, n, 0).is_none()",
        by: "self.trade(index, word, hand, now, n, 0).is_none()",
        test: (
            "striped_bucket",
            "a_large_request_takes_back_what_all_stripes_hold",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn until(",
        text: "(nanos | (span - 1)).saturating_add(span)",
        by: "nanos | (unit - 1)",
        test: (
            "striped_bucket",
            "where_permits_abound_the_shared_word_is_written_once_in_at_least_64_permits",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn is_drawn_on(",
        text: "&& rest & WATCHED == 0",
        by: "",
        test: (
            "striped_concurrency",
            "while_requests_wait_in_a_queue_stripes_hold_none",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn take_slowly(",
        text: "!any_open(rest)",
        by: "true",
        test: (
            "striped_concurrency",
            "it_decides_as_a_concurrency_limit_if_no_calls_overlap",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn give_back_slowly(",
        text: "Self::begun(back, Move::Close, index, word)",
        by: "back",
        test: (
            "striped_concurrency",
            "where_permits_abound_the_shared_word_is_written_once_in_at_least_64_permits",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn give_back_slowly(",
        text: "Self::begun(back, Move::Open, index, word)",
        by: "back",
        test: (
            "striped_concurrency",
            "where_permits_abound_the_shared_word_is_written_once_in_at_least_64_permits",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn draw(rest",
        text: "PARTS * N as u64",
        by: "1",
        test: (
            "striped_concurrency",
            "a_draw_is_a_part_of_what_the_rest_has_left_up_to_4096",
        ),
    },
    // A key without a slot counts as refused.
    Mutant {
        file: "core/src/limiter/not_granted.rs",
        within: "fn from(denied: Denied)",
        text: "Denied::Exhausted { .. } | Denied::Crowded { .. } => Self::Denied,\n            Denied::ExceedsCapacity { .. }",
        by: "Denied::Exhausted { .. } => Self::Denied,\n            Denied::Crowded { .. } | Denied::ExceedsCapacity { .. }",
        test: ("counts", "counts_of_a_table_are_those_of_all_its_keys"),
    },
    // Refunded permits of a counted table stay held.
    Mutant {
        file: "core/src/wrappers/counted/keyed.rs",
        within: "fn refund(",
        text: "self.tally().returned(n);",
        by: "let _ = n;",
        test: ("counts", "counts_of_a_table_are_those_of_all_its_keys"),
    },
    // A refund among other takes ignores other refunds, what was left after its take, or calls with
    // a later time; it takes an equal word for the one that its take left; a charge exceeds the
    // debt.
    Mutant {
        file: "core/src/limiters/token_bucket/rules.rs",
        within: "pub(crate) fn refund_among(",
        text: "passed + u128::from(level) + others",
        by: "passed + u128::from(level)",
        test: (
            "settling",
            "no_refund_and_no_charge_lets_more_pass_than_burst_debt_and_rate",
        ),
    },
    Mutant {
        file: "core/src/limiters/token_bucket/rules.rs",
        within: "pub(crate) fn refund_among(",
        text: "passed + u128::from(level) + others",
        by: "passed + others",
        test: (
            "settling",
            "no_refund_and_no_charge_lets_more_pass_than_burst_debt_and_rate",
        ),
    },
    Mutant {
        file: "core/src/limiters/token_bucket/rules.rs",
        within: "pub(crate) fn refund_among(",
        text: "if others == 0 {",
        by: "if others < u64::MAX {",
        test: (
            "settling",
            "no_refund_and_no_charge_lets_more_pass_than_burst_debt_and_rate",
        ),
    },
    Mutant {
        file: "core/src/keyed/settling.rs",
        within: "pub fn refund_counted_at(",
        text: "let latest = now + self.staleness();",
        by: "let latest = now;",
        test: (
            "settling",
            "no_refund_and_no_charge_lets_more_pass_than_burst_debt_and_rate",
        ),
    },
    Mutant {
        file: "core/src/limiters/token_bucket/rules.rs",
        within: "pub(crate) fn charged(",
        text: "lattice.debt.saturating_sub(balance.owed)",
        by: "lattice.debt",
        test: (
            "settling",
            "no_refund_and_no_charge_lets_more_pass_than_burst_debt_and_rate",
        ),
    },
    // Of several limits: the first permit of a charge counts twice; permits at once are refunded; a
    // limit that goes on begins anew.
    Mutant {
        file: "core/src/keyed/keyed_list/settling.rs",
        within: "pub fn charge_each_at(",
        text: "n - first)",
        by: "n)",
        test: (
            "settling_lists",
            "a_charge_takes_from_each_limit_what_it_has_and_owes_what_the_debt_allows",
        ),
    },
    Mutant {
        file: "core/src/keyed/keyed_list/settling.rs",
        within: "fn update(",
        text: ".filter(|rules| !rules.releases())",
        by: "",
        test: (
            "settling_lists",
            "permits_at_once_are_neither_refunded_nor_charged",
        ),
    },
    Mutant {
        file: "core/src/keyed/keyed_list/moving.rs",
        within: "fn convert<",
        text: "let state = *states.get(old)?;",
        by: "let state = *states.get(old + limit)?;",
        test: (
            "moving_lists",
            "limits_in_another_order_and_of_another_number_keep_what_was_taken",
        ),
    },
];

/// Mutants that the explorer of every atomic access detects.
pub(super) const EXPLORED: &[Mutant] = &[
    // A change that wraps the counter does not see a call that counts itself in.
    Mutant {
        file: LIVE,
        within: "pub(crate) fn count_in(",
        text: "quarter.fetch_add(1, Relaxed);",
        by: "",
        test: (
            "every_access",
            "a_grant_during_changes_that_wrap_the_count_decides_by_its_settings",
        ),
    },
    // A value that was computed with the settings of one era is written in another.
    Mutant {
        file: LIVE,
        within: "fn next_set(&self",
        text: "upper.wrapping_add(Live::<N, W>::SET)",
        by: "(upper ^ Live::<N, W>::SET)",
        test: (
            "every_access",
            "a_grant_during_changes_that_wrap_the_count_decides_by_its_settings",
        ),
    },
    // A slot with an epoch from before the wrap is counted.
    Mutant {
        file: "core/src/limiters/sliding_window.rs",
        within: "fn take<O: Observer>(",
        text: "decides >= self.layout.first_ambiguous()",
        by: "decides > self.layout.range()",
        test: (
            "every_access",
            "a_grant_counts_in_its_own_segment_just_before_epochs_wrap",
        ),
    },
    // A change treats the time of another change as that of a grant, although there was none.
    Mutant {
        file: LIVE,
        within: "fn change<T>(",
        text: "if is_certain {\n                    self.confirm_newest(newest, newest);\n                }",
        by: "self.confirm_newest(newest, newest);",
        test: (
            "every_access",
            "two_changes_during_a_denied_take_add_nothing",
        ),
    },
    // A change counts at the time of a take that may still be denied. Random calls detect it too.
    Mutant {
        file: LIVE,
        within: "fn change<T>(",
        text: "if is_certain { newest } else { tick }",
        by: "newest",
        test: ("every_access", "adjustable_bucket_64"),
    },
    // A stripe takes until an instant for which a refunded take had settled the rest.
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn renew(",
        text: " || self.rest.sliced_in(word) == 0",
        by: "",
        test: (
            "striped_bucket",
            "a_stripe_does_not_renew_by_a_word_that_a_refund_and_a_draw_have_replaced",
        ),
    },
    // A stripe takes until an instant for which a failed exchange should have settled.
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn renew(",
        text: ".is_ok();",
        by: ".is_ok() || true;",
        test: (
            "striped_bucket",
            "calls_that_pre_empt_each_other_grant_what_a_plain_bucket_does_64",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn renew(",
        text: "let settled = rest.balance(position, balance.from).from;",
        by: "let settled = balance.from;",
        test: (
            "striped_bucket",
            "calls_that_pre_empt_each_other_grant_what_a_plain_bucket_does_64",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn take_slowly(",
        text: "if taken.is_ok() {",
        by: "if taken.is_ok() || true {",
        test: (
            "striped_bucket",
            "calls_that_pre_empt_each_other_grant_what_a_plain_bucket_does_64",
        ),
    },
    // Calls open stripes faster than another one closes them.
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn is_drawn_on(",
        text: "self.shared.closing.load(Relaxed) == 0",
        by: "true",
        test: (
            "striped_concurrency",
            "no_stripe_draws_while_a_call_closes_all_of_them",
        ),
    },
    // A move is made twice.
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn finish(",
        text: "if parity(word) == underway.parity {",
        by: "if true {",
        test: (
            "striped_concurrency",
            "calls_that_pre_empt_each_other_decide_as_a_plain_limit_2",
        ),
    },
    // The rest is as it was 2^25 moves before.
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "const MOVES_MASK",
        text: "saturating_sub(MOVES_AT)",
        by: "saturating_sub(MOVES_AT + 6)",
        test: (
            "striped_concurrency",
            "a_call_that_stops_during_2_25_moves_gains_and_loses_nothing",
        ),
    },
    // A denial does not look whether stripes are open.
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn close_one(",
        text: "if is_open(word) {",
        by: "if is_open(word) && rest == 0 {",
        test: (
            "striped_concurrency",
            "calls_that_pre_empt_each_other_decide_as_a_plain_limit_2",
        ),
    },
    // A refund of a take that began where the bucket was just full brings back its state.
    Mutant {
        file: "core/src/limiters/token_bucket/rules.rs",
        within: "fn is_forgettable_among(",
        text: "now, since, 1)",
        by: "now, since, 0)",
        test: (
            "keyed_list",
            "a_key_whose_rate_is_refunded_keeps_its_entry_while_a_permit_is_in_use",
        ),
    },
    // What a closed stripe had is lost.
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn finish(",
        text: "moved - OPEN",
        by: "moved - OPEN - have(moved)",
        test: (
            "striped_concurrency",
            "calls_that_pre_empt_each_other_decide_as_a_plain_limit_2",
        ),
    },
    // The rest is as it was before a move.
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn begun(",
        text: "(rest >> MOVES_AT).wrapping_add(1)",
        by: "(rest >> MOVES_AT)",
        test: (
            "striped_concurrency",
            "calls_that_pre_empt_each_other_decide_as_a_plain_limit_2",
        ),
    },
];

pub(super) const OF_THE_QUEUE: &[Mutant] = &[
    // A request within an interval overtakes those that wait, or is told to retry as of the
    // interval's start; a clock in `NoTimer` loses its interval.
    Mutant {
        file: QUEUE,
        within: "fn take_within(",
        text: "Err(_) => None",
        by: "Err(denied) => Some(Err(denied))",
        test: ("interval", "queues_decide_as_with_the_precise_time"),
    },
    Mutant {
        file: QUEUE,
        within: "fn take_within(",
        text: "Err(_) => None",
        by: "Err(_) => self.wait_queue.take_within((), interval, n)",
        test: ("interval", "queues_decide_as_with_the_precise_time"),
    },
    Mutant {
        file: KEYED_QUEUE,
        within: "fn take_within(",
        text: "!wait_queue.is_waited_for(self.address)",
        by: "!wait_queue.is_closed()",
        test: (
            "interval",
            "a_queue_of_each_key_reads_the_precise_time_only_when_it_matters",
        ),
    },
    Mutant {
        file: "async/src/driving/queue_clock.rs",
        within: "fn interval(&self)",
        text: "self.0.interval()",
        by: "self.0.interval().filter(|_| false)",
        test: ("interval", "queues_decide_as_with_the_precise_time"),
    },
    // Drivers.
    Mutant {
        file: DRIVERS,
        within: "pub(crate) unsafe fn leave(",
        text: "self.open();",
        by: "",
        test: ("drivers", "when_a_driver_leaves_the_next_one_is_woken"),
    },
    Mutant {
        file: DRIVERS,
        within: "pub(crate) fn attend(",
        text: "self.open();",
        by: "",
        test: (
            "drivers",
            "a_new_attendant_takes_over_the_instant_of_a_driver",
        ),
    },
    Mutant {
        file: DRIVER,
        within: "unsafe fn come(",
        text: "!self.timed.is_attended() || ",
        by: "true || ",
        test: ("drivers", "a_driver_beside_an_attendant_takes_nothing_over"),
    },
    Mutant {
        file: DRIVER,
        within: "unsafe fn come(",
        text: " || self.timed.is_in_charge(Member::Driver(member))",
        by: "",
        test: (
            "given_back",
            "beside_a_queue_that_cannot_arm_its_timer_a_driver_drives",
        ),
    },
    Mutant {
        file: DRIVE,
        within: "unsafe fn see_to(",
        text: "arm().or_else(arm)",
        by: "arm()",
        test: ("unwinding", "time::goes_on_after_an_alarm_that_fails_once"),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "pub(crate) fn close(",
        text: "are_left = true;\n                        break;",
        by: "break;",
        test: (
            "given_back",
            "a_close_in_which_the_clock_panics_wakes_all_drivers",
        ),
    },
    // Blocked threads.
    Mutant {
        file: BLOCKING,
        within: "pub fn block(mut self)",
        text: "_ => deadline",
        by: "_ => Timestamp::MAX",
        test: (
            "corners",
            "a_thread_ends_at_its_own_deadline_whatever_its_driver_does",
        ),
    },
    Mutant {
        file: BLOCKING,
        within: "fn drop(&mut self)",
        text: "self.member.as_mut().leave(queue.wait_queue());",
        by: "let _ = queue;",
        test: (
            "unwinding",
            "threads::when_a_driving_thread_unwinds_the_next_one_drives",
        ),
    },
    // Timers.
    Mutant {
        file: "async/src/driving/timer/thread.rs",
        within: "fn run(board: &Board)",
        text: "quietly(|| waker.wake());",
        by: "waker.wake();",
        test: (
            "unwinding",
            "time::of_each_timer::a_thread_shared_with_other_queues",
        ),
    },
    Mutant {
        file: "async/src/driving/timer/thread.rs",
        within: "fn drop(&mut self)",
        text: "locked(&board().alarms).forget(alarm)",
        by: "locked(&board().alarms).place(alarm)",
        test: ("corners", "a_dropped_timer_of_the_thread_keeps_no_waker"),
    },
    // A child of the process has no thread, and no alarm of its parent; a queue relies on one.
    Mutant {
        file: "async/src/driving/timer/thread.rs",
        within: "fn board()",
        text: ".filter(|board| board.forks == forks)",
        by: "",
        test: (
            "corners",
            "forked::a_queue_that_the_child_creates_grants_there",
        ),
    },
    Mutant {
        file: "async/src/driving/timer/thread.rs",
        within: "fn place(&self, alarm: &Alarm)",
        text: " && alarm.board.load(Relaxed) == self.forks",
        by: "",
        test: (
            "corners",
            "forked::queues_of_the_parent_have_an_alarm_each_in_the_child",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn tell(&mut self",
        text: "self.timed.open();",
        by: "",
        test: (
            "corners",
            "forked::an_alarm_of_the_parent_hides_none_of_the_child",
        ),
    },
    // A wrapper that forgets the receipts of a composition in it.
    Mutant {
        file: "core/src/wrappers/penalty.rs",
        within: "impl<L: QueueLimiter, W: Word> QueueLimiter for Penalty<L, W>",
        text: "const NOTES: bool = L::NOTES;",
        by: "const NOTES: bool = false;",
        test: ("unclaimed", "of_limits_within_a_wrapper_comes_back_too"),
    },
    Mutant {
        file: "core/src/wrappers/escalation.rs",
        within: "impl<L: QueueLimiter, D, const N: usize, W: Word> QueueLimiter for Escalation<L, D, N, W>",
        text: "const NOTES: bool = L::NOTES;",
        by: "const NOTES: bool = false;",
        test: ("unclaimed", "of_limits_within_a_wrapper_comes_back_too"),
    },
    Mutant {
        file: QUEUE,
        within: "QueueLimiter for Queue<L, C, R, H>",
        text: "const NOTES: bool = L::NOTES;",
        by: "const NOTES: bool = false;",
        test: ("unclaimed", "of_limits_within_a_wrapper_comes_back_too"),
    },
    // A runtime has ended, or does not run; its clock was paused.
    Mutant {
        file: "async/src/driving/timer/tokio.rs",
        within: "impl Drop for Task",
        text: "self.0.watch(&mut set, at);",
        by: "let _ = at;",
        test: (
            "corners",
            "runtimes_that_do_not_run::a_runtime_that_shuts_down_hands_its_alarm_over",
        ),
    },
    Mutant {
        file: "async/src/driving/timer/tokio.rs",
        within: "impl Drop for Task",
        text: "set.runtime = Runs::Ended;",
        by: "",
        test: (
            "corners",
            "runtimes_that_do_not_run::a_timeout_ends_after_the_runtime_has_shut_down",
        ),
    },
    Mutant {
        file: "async/src/driving/timer/tokio.rs",
        within: "fn watch(&self",
        text: "Runs::Yes => GRACE,",
        by: "Runs::Yes => return,",
        test: (
            "corners",
            "runtimes_that_do_not_run::a_queue_grants_if_nobody_runs_its_runtime",
        ),
    },
    Mutant {
        file: "async/src/driving/timer/tokio.rs",
        within: "fn look(&self)",
        text: "self.watch(&mut set, at);",
        by: "let _ = at;",
        test: (
            "corners",
            "runtimes_that_do_not_run::an_alarm_that_is_set_again_is_watched",
        ),
    },
    Mutant {
        file: "async/src/driving/timer/tokio.rs",
        within: "fn time_of(",
        text: "first.is_none() && !is_paused()",
        by: "true",
        test: (
            "corners",
            "runtimes_that_do_not_run::with_a_paused_clock_windows_begin_alike_in_each_run",
        ),
    },
    Mutant {
        file: "async/src/driving/timer/tokio.rs",
        within: "impl Drop for TokioTimer",
        text: "set.over = true;",
        by: "",
        test: (
            "corners",
            "a_dropped_timer_of_a_runtime_keeps_no_waker_and_no_task",
        ),
    },
    // A queue that closes.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn hand_to_head(&self",
        text: " || lists.closed || ",
        by: " || ",
        test: ("corners", "while_a_queue_closes_no_waiter_is_granted"),
    },
    Mutant {
        file: ADMIT,
        within: "pub(super) unsafe fn admit(",
        text: "&& !lists.closed",
        by: "",
        test: ("corners", "while_a_queue_closes_no_request_is_admitted"),
    },
    // A partial take that finds fewer permits than it was told.
    Mutant {
        file: SERVE,
        within: "pub(super) fn take(",
        text: "if let Ok(receipt) = take(most) {\n                return Ok((most, receipt));\n            }",
        by: "return take(most).map(|receipt| (most, receipt));",
        test: (
            "corners",
            "a_partial_request_takes_the_minimum_if_the_limiter_grants_less_than_it_reports",
        ),
    },
    // The next waiters are not granted.
    Mutant {
        file: WAITS,
        within: "unsafe fn give_up(&self, waiter: NonNull<Waiter<Key<Q>>>)",
        text: "if next.is_some() {",
        by: "if false {",
        test: ("corners", "a_cancelled_head_makes_way_for_waiters_that_fit"),
    },
    Mutant {
        file: KEYED_QUEUE,
        within: "fn refund_at(",
        text: "Waiting::Unknown",
        by: "Waiting::No",
        test: (
            "corners",
            "permits_refunded_to_a_key_go_to_the_next_waiter_of_that_key",
        ),
    },
    // They are not granted after a panic.
    Mutant {
        file: WAIT_QUEUE,
        within: "pub(crate) fn give_back<T>(",
        text: "let panicking = self.grant_on_unwind(Self::bit(key));",
        by: "let panicking = ();",
        test: (
            "given_back",
            "permits_released_by_a_limiter_that_then_panics_are_granted",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "pub(crate) fn change<T>(",
        text: "let panicking = self.grant_on_unwind(usize::MAX >> (usize::BITS as usize - Self::SHARDS));",
        by: "let panicking = ();",
        test: (
            "given_back",
            "permits_freed_by_a_change_that_then_panics_are_granted",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn grant(&self",
        text: "self.pending.restore_on_drop(shard)",
        by: "self.pending.restore_on_drop(0)",
        test: (
            "given_back",
            "a_release_in_which_the_clock_panics_is_granted",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "pub(crate) fn take<T, E>(",
        text: "let panicking = self.grant_on_unwind(Self::bit(key));",
        by: "let panicking = ();",
        test: ("random_driver", "queues_around_permits_and_rates"),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "pub(crate) fn take<T, E>(",
        text: "taken.is_err() && ",
        by: "false && ",
        test: (
            "given_back",
            "a_waiter_that_came_while_a_composition_was_denied_is_granted",
        ),
    },
    Mutant {
        file: TAKEN,
        within: "fn give_back(&mut self)",
        text: "wait_queue.lists.lock(|lists| {",
        by: "wait_queue.with(|lists, _| {",
        test: (
            "given_back",
            "a_refund_of_a_composition_comes_before_pending_releases",
        ),
    },
    // State that is lost in a panic.
    Mutant {
        file: WAITS,
        within: "pub(crate) unsafe fn enqueue(",
        text: "drop(newcomer);",
        by: "",
        test: (
            "given_back",
            "a_permit_comes_back_if_the_waker_of_its_wait_panics_in_its_drop",
        ),
    },
    Mutant {
        file: ADMIT,
        within: "pub(super) unsafe fn enter(",
        text: "Waiter::own(waiter).since = self.clock.now();",
        by: "let waker = Waiter::own(waiter).rewake(None);\n                Waiter::own(waiter).since = self.clock.now();\n                Waiter::own(waiter).rewake(waker);",
        test: (
            "given_back",
            "a_waker_is_dropped_outside_the_lock_even_if_the_clock_panics",
        ),
    },
    Mutant {
        file: QUEUE,
        within: "fn drop(&mut self)",
        text: "lease.forget();",
        by: "core::mem::forget(lease);",
        test: (
            "given_back",
            "a_lease_that_is_released_later_leaves_no_pointer_if_the_limiter_panics",
        ),
    },
    // A first waiter whose limiter panics is asked again only after some time.
    Mutant {
        file: SERVE,
        within: "fn serve(",
        text: "bit: Self::bit(key),",
        by: "bit: 0,",
        test: ("random_driver", "queues_around_several_rates"),
    },
    // A channel: items, places, and the two ends.
    Mutant {
        file: CHANNEL,
        within: "fn receive<Q>(",
        text: "claim.forget();",
        by: "drop(claim);",
        test: (
            "channel_conservation",
            "model::every_sender_and_item_is_where_the_model_says_and_is_woken_as_often",
        ),
    },
    Mutant {
        file: CHANNEL,
        within: "fn try_receive(",
        text: "Err(_) if self.items.is_closed() => self.receive_rest(),",
        by: "",
        test: (
            "channel_conservation",
            "model::every_sender_and_item_is_where_the_model_says_and_is_woken_as_often",
        ),
    },
    Mutant {
        file: CHANNEL,
        within: "fn push(",
        text: "self.arrived.release(1);",
        by: "",
        test: (
            "channel_conservation",
            "model::every_sender_and_item_is_where_the_model_says_and_is_woken_as_often",
        ),
    },
    Mutant {
        file: CHANNEL,
        within: "fn receive_rest(",
        text: "self.places.release(1);",
        by: "",
        test: (
            "channel_conservation",
            "model::every_sender_and_item_is_where_the_model_says_and_is_woken_as_often",
        ),
    },
    Mutant {
        file: CHANNEL,
        within: "fn close(",
        text: "self.arrived.close();",
        by: "",
        test: (
            "channel_conservation",
            "model::every_sender_and_item_is_where_the_model_says_and_is_woken_as_often",
        ),
    },
    Mutant {
        file: CHANNEL,
        within: "fn close(",
        text: "self.places.close();",
        by: "",
        test: (
            "channel_conservation",
            "model::every_sender_and_item_is_where_the_model_says_and_is_woken_as_often",
        ),
    },
    // A task that waits drives a queue that has no other driver.
    Mutant {
        file: WAIT_QUEUE,
        within: "unsafe fn set_timer(",
        text: "Member::Waiter(waiter.addr().get())",
        by: "Member::Waiter(0)",
        test: ("first_wait", "a_wait_that_is_dropped_passes_the_timer_on"),
    },
    Mutant {
        file: ADMIT,
        within: "unsafe fn admit_asked(",
        text: "*drives = true;",
        by: "",
        test: (
            "first_wait",
            "the_first_wait_arms_the_timer_within_its_poll",
        ),
    },
    Mutant {
        file: WAITS,
        within: "pub(crate) unsafe fn outcome(",
        text: "*drives = lists.is_driven_by(waiter);",
        by: "",
        test: ("first_wait", "a_wait_that_is_dropped_passes_the_timer_on"),
    },
    // A jitter delays a grant, but not past its deadline, and loses no permits.
    Mutant {
        file: WAIT_QUEUE,
        within: "unsafe fn schedule(",
        text: ".saturating_add(delay).min(deadline)",
        by: ".saturating_add(delay)",
        test: (
            "slack",
            "asked_again::jitter_delays_a_grant_no_further_than_its_deadline",
        ),
    },
    Mutant {
        file: ADMIT,
        within: "unsafe fn wait_or_refuse(",
        text: ".filter(|&head| !lists.waits.get(head).is_head())",
        by: "",
        test: (
            "slack",
            "asked_again::jitter_is_the_same_when_more_requests_arrive",
        ),
    },
    Mutant {
        file: SERVE,
        within: "fn run_timers(",
        text: "exact => next_try.at.max(earliest)",
        by: "exact => due.max(earliest)",
        test: (
            "slack",
            "asked_again::jitter_delays_grants_that_are_due_at_an_instant_and_keeps_their_rate",
        ),
    },
    // A table is drained once all its slots have been seen with no permits held.
    Mutant {
        file: LIMITER_SOURCE,
        within: "fn is_drained(&self, cursor: &mut usize",
        text: ".or_else(|| self.0.next_held(0))",
        by: "",
        test: (
            "drained",
            "drained_of_a_table_ends_when_the_last_lease_of_all_keys_is_released",
        ),
    },
    // A waiter is rejected, or an attempt is made, and the counts are wrong.
    Mutant {
        file: SERVE,
        within: "pub(super) fn settle(",
        text: "self.not_granted(key, now, min, why);",
        by: "let _ = (key, min, why);",
        test: ("random_driver", "queues_around_counted_limits"),
    },
    Mutant {
        file: SERVE,
        within: "fn take_for(",
        text: "|n| attempt(&limiter, at, n)",
        by: "|n| limiter.take_at(at, n)",
        test: ("random_driver", "queues_around_counted_limits"),
    },
    Mutant {
        file: ADMIT,
        within: "fn reject(",
        text: "self.not_granted(key, now, rejected.permits(), rejected.into());",
        by: "let _ = (key, now);",
        test: ("random_driver", "queues_around_counted_limits"),
    },
    Mutant {
        file: WAITS,
        within: "fn try_now(",
        text: "Clocked::new(&limiter, &self.clock).attempt(n)",
        by: "Clocked::new(&limiter, &self.clock).take(n)",
        test: ("counts", "a_wait_is_one_grant_and_no_denial"),
    },
    Mutant {
        file: "core/src/wrappers/counted.rs",
        within: "fn attempt_within(",
        text: "self.count_grant(n, decision)",
        by: "self.count(n, decision)",
        test: (
            "interval",
            "a_request_that_waits_after_a_denial_within_an_interval_is_counted_once",
        ),
    },
    Mutant {
        file: "core/src/wrappers/counted/keyed.rs",
        within: "fn attempt_within(",
        text: "self.count_grant(n, decision)",
        by: "self.count(n, decision)",
        test: (
            "interval",
            "a_request_that_waits_after_a_denial_within_an_interval_is_counted_once",
        ),
    },
    Mutant {
        file: QUEUE,
        within: "fn take_within(",
        text: "self.wait_queue.not_granted((), now, n, closed.into());",
        by: "",
        test: (
            "interval",
            "a_request_that_waits_after_a_denial_within_an_interval_is_counted_once",
        ),
    },
    Mutant {
        file: KEYED_QUEUE,
        within: "fn take_within(",
        text: "wait_queue.not_granted(self.address, interval.earliest(), n, closed.into());",
        by: "",
        test: (
            "interval",
            "a_request_that_waits_after_a_denial_within_an_interval_is_counted_once",
        ),
    },
    Mutant {
        file: QUEUE,
        within: "fn take_with(",
        text: "self.wait_queue.not_granted((), now, n, denied.into());",
        by: "",
        test: (
            "counts",
            "tries_count_the_same_around_a_queue_and_within_it",
        ),
    },
    Mutant {
        file: KEYED_QUEUE,
        within: "fn take_with(",
        text: "wait_queue.not_granted(self.address, now, n, denied.into());",
        by: "",
        test: ("random_driver", "queues_around_permits"),
    },
    // Wrappers react to the outcome of a request, not to the attempts of the queue.
    Mutant {
        file: "core/src/wrappers/penalty.rs",
        within: "fn attempt_at(",
        text: "self.judge_attempt(",
        by: "self.judge(",
        test: (
            "outcomes",
            "attempts_for_a_request_that_is_granted_start_no_penalty",
        ),
    },
    Mutant {
        file: "core/src/wrappers/penalty.rs",
        within: "fn not_granted(",
        text: " && !self.is_on_at(now)",
        by: "",
        test: (
            "outcomes",
            "denials_during_a_penalty_do_not_count_for_the_next_one",
        ),
    },
    Mutant {
        file: "core/src/wrappers/escalation.rs",
        within: "fn not_granted(",
        text: "why == NotGranted::Denied",
        by: "why != NotGranted::Denied",
        test: (
            "outcomes",
            "a_denied_attempt_starts_no_hold_and_a_late_request_does",
        ),
    },
    Mutant {
        file: "core/src/all_of/as_limiter.rs",
        within: "fn attempt_then(",
        text: "self.grant_then(now, n, Attempt, rest)",
        by: "self.grant_then(now, n, (), rest)",
        test: (
            "counts",
            "attempts_are_not_counted_within_a_composition_of_compositions_either",
        ),
    },
];
