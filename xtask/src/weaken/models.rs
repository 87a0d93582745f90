//! Mutants that a loom model must detect.

use super::Mutant;

const WORD_LIMITER: &str = "core/src/rules/word_limiter.rs";
const TOKEN_BUCKET: &str = "core/src/limiters/token_bucket/rules.rs";
const SHARES: &str = "core/src/limiters/concurrency_shares.rs";
const WARMING_BUCKET: &str = "core/src/limiters/warming_bucket/rules.rs";
const LATTICE: &str = "core/src/limiters/lattice.rs";
const FIXED_WINDOW: &str = "core/src/limiters/fixed_window/rules.rs";
const SLICED_BUCKET: &str = "core/src/limiters/sliced_bucket.rs";
const SLICE: &str = "core/src/limiters/slice.rs";
const STRIPED_BUCKET: &str = "core/src/limiters/striped_bucket.rs";
const STRIPED_CONCURRENCY: &str = "core/src/limiters/striped_concurrency.rs";
const LINE: &str = "core/src/keyed/line.rs";
const KEYED: &str = "core/src/keyed.rs";
const KEYED_LIST: &str = "core/src/keyed/keyed_list.rs";
const RULE_LIST: &str = "core/src/keyed/rule_list.rs";
const KEYED_ARRAY: &str = "core/src/keyed/keyed_array.rs";
const WAIT_QUEUE: &str = "async/src/waiting/wait_queue.rs";
const ADMIT: &str = "async/src/waiting/wait_queue/admit.rs";
const SERVE: &str = "async/src/waiting/wait_queue/serve.rs";
const TAKEN: &str = "async/src/waiting/wait_queue/taken.rs";
const WAITS: &str = "async/src/waiting/wait_queue/waits.rs";
const DRIVER: &str = "async/src/waiting/wait_queue/driver.rs";
const PENDING_RELEASES: &str = "async/src/waiting/pending_releases.rs";
const WAIT_LIST: &str = "async/src/waiting/wait_list.rs";
const DRIVE: &str = "async/src/driving/drive.rs";
const DRIVERS: &str = "async/src/waiting/drivers.rs";
const QUEUE: &str = "async/src/queues/queue.rs";
const KEYED_QUEUE: &str = "async/src/queues/keyed_queue.rs";
const SEED: &str = "core/src/keyed/seed.rs";
const SLIDING_WINDOW: &str = "core/src/limiters/sliding_window.rs";
const CONCURRENCY: &str = "core/src/limiters/concurrency.rs";
const LEASE_POOL: &str = "core/src/leases/lease_pool.rs";
const LIVE: &str = "core/src/word/live.rs";

/// Every ordering above `Relaxed` that loom distinguishes from a weaker one, weakened. Also, for
/// each algorithm, omitted checks and broken transitions.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        file: SHARES,
        within: "fn take<O: Observer>(",
        text: ".compare_exchange_weak(state, taken, Acquire, Relaxed)",
        by: ".compare_exchange_weak(state, taken, Relaxed, Relaxed)",
        test: (
            "concurrency_shares",
            "wide::a_permit_guards_data_across_shares",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn give_back(&self",
        text: "Release)",
        by: "Relaxed)",
        test: (
            "concurrency_shares",
            "wide::a_permit_guards_data_across_shares",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "count.max(guaranteed.into())",
        by: "count",
        test: (
            "concurrency_shares",
            "wide::a_guarantee_is_granted_whatever_others_borrow_at_the_same_time",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "limit.saturating_sub(kept + own).min(need - own)",
        by: "need - own",
        test: (
            "concurrency_shares",
            "wide::racing_borrowers_never_exceed_the_limit",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "K > 2 && kept + need > limit",
        by: "false",
        test: (
            "concurrency_shares",
            "wide::a_share_that_lent_nothing_has_its_guarantee_while_another_returns",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn see_all<",
        text: "needs += need;",
        by: "needs += if has_returned { count } else { need };",
        test: (
            "concurrency_shares",
            "wide::a_share_that_returns_gets_what_is_released_before_any_borrower",
        ),
    },
    Mutant {
        file: SHARES,
        within: "fn recall(&self",
        text: ".compare_exchange_weak(state, aged, Relaxed, Relaxed)",
        by: ".compare_exchange_weak(state, state, Relaxed, Relaxed)",
        test: (
            "concurrency_shares",
            "wide::a_recalled_guarantee_is_not_lent_again",
        ),
    },
    Mutant {
        file: WARMING_BUCKET,
        within: "fn settle(&self",
        text: "distance >= self.behind.into()",
        by: "distance > self.mask()",
        test: (
            "warming_bucket",
            "wide::a_stale_timestamp_finds_no_more_and_cools_nothing",
        ),
    },
    Mutant {
        file: WORD_LIMITER,
        within: "fn exchange<T>(",
        text: "Err(newer) => state = newer",
        by: "Err(_) => return outcome",
        test: (
            "token_bucket",
            "wide::racing_takes_share_the_burst_and_never_exceed_it",
        ),
    },
    Mutant {
        file: WORD_LIMITER,
        within: "fn exchange<T>(",
        text: "Err(newer) => state = newer",
        by: "Err(_) => return outcome",
        test: (
            "token_bucket",
            "wide::of_two_requests_that_may_owe_one_owes_and_the_other_is_denied",
        ),
    },
    Mutant {
        file: "core/src/sometimes.rs",
        within: "pub fn is_due_at(",
        text: "Err(newer) => state = newer",
        by: "Err(_) => return is_due",
        test: ("sometimes", "wide::of_racing_calls_every_second_one_is_due"),
    },
    Mutant {
        file: "core/src/sometimes.rs",
        within: "fn counted(",
        text: "is_over || started.layout.ahead(until, end).is_some()",
        by: "is_over || is_due",
        test: (
            "sometimes",
            "wide::a_stale_call_during_a_newer_one_does_not_move_the_end_back",
        ),
    },
    Mutant {
        file: LATTICE,
        within: "fn used_after(",
        text: "distance >= behind()",
        by: "false && behind() > 0",
        test: (
            "token_bucket",
            "wide::a_stale_timestamp_finds_no_more_than_the_newest",
        ),
    },
    Mutant {
        file: LATTICE,
        within: "fn used_after(",
        text: "distance >= behind()",
        by: "distance >= mask / 2 && behind() > 0",
        test: (
            "token_bucket",
            "wide::racing_takes_find_a_bucket_full_after_most_of_a_horizon_idle",
        ),
    },
    Mutant {
        file: LATTICE,
        within: "fn used_after(",
        text: "position.wrapping_sub(full)\n",
        by: "used\n",
        test: (
            "token_bucket",
            "wide::a_bucket_replenishes_from_the_newest_of_two_racing_timestamps",
        ),
    },
    Mutant {
        file: WORD_LIMITER,
        within: "fn exchange<T>(",
        text: "Err(newer) => state = newer",
        by: "Err(_) => return outcome",
        test: (
            "fixed_window",
            "wide::racing_takes_share_the_limit_and_never_exceed_it",
        ),
    },
    Mutant {
        file: FIXED_WINDOW,
        within: "fn judge(&self",
        text: "other < limit - wanted",
        by: "other < limit",
        test: (
            "fixed_window",
            "wide::racing_takes_share_the_limit_and_never_exceed_it",
        ),
    },
    Mutant {
        file: FIXED_WINDOW,
        within: "fn elsewhere(",
        text: "if count + wanted > layout.limit()",
        by: "if false && count > 0",
        test: ("fixed_window", "wide::two_first_requests_start_one_window"),
    },
    Mutant {
        file: FIXED_WINDOW,
        within: "fn elsewhere(",
        text: "(_, None) => Some(begun)",
        by: "(_, None) => Some(begun + layout.split(state).0)",
        test: (
            "fixed_window",
            "wide::racers_into_a_new_window_share_its_limit",
        ),
    },
    Mutant {
        file: "core/src/word/stamped.rs",
        within: "fn ahead(&self",
        text: "distance < self.behind.into()",
        by: "true",
        test: (
            "fixed_window",
            "wide::a_stale_timestamp_counts_in_the_newest_window",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "let mut state = self.state.load(Acquire)",
        by: "let mut state = self.state.load(Relaxed)",
        test: (
            "sliding_window",
            "wide::a_request_denied_by_a_take_sees_the_roll_before_it",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "let mut state = self.state.load(Acquire)",
        by: "let mut state = self.state.load(Relaxed)",
        test: (
            "sliding_window",
            "wide::a_denial_during_a_roll_changes_nothing",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "self.roll(epoch);\n                    state = self.state.load(Acquire)",
        by: "self.roll(epoch);\n                    state = self.state.load(Relaxed)",
        test: (
            "sliding_window",
            "wide::a_request_denied_after_its_own_roll_sees_the_roll_before_it",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "self.roll(decides);\n                state = self.state.load(Acquire)",
        by: "self.roll(decides);\n                state = self.state.load(Relaxed)",
        test: (
            "sliding_window",
            "a_request_denied_after_a_whole_horizon_sees_the_roll_before_it",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "Relaxed, Acquire)",
        by: "Relaxed, Relaxed)",
        test: (
            "sliding_window",
            "wide::a_request_denied_after_a_lost_exchange_sees_the_roll_before_it",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "fetch_add(wanted, Release)",
        by: "fetch_add(wanted, Relaxed)",
        test: (
            "sliding_window",
            "wide::a_request_granted_returned_permits_sees_the_take_they_came_from",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn roll(&self",
        text: "target, Acquire, Relaxed)",
        by: "target, Relaxed, Relaxed)",
        test: (
            "sliding_window",
            "wide::a_request_granted_returned_permits_sees_the_take_they_came_from",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn pay(&self",
        text: "rolled, Release, Relaxed)",
        by: "rolled, Relaxed, Relaxed)",
        test: (
            "sliding_window",
            "wide::available_permits_are_never_returned_twice",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn within(&self",
        text: "self.state.load(Acquire)",
        by: "self.state.load(Relaxed)",
        test: (
            "sliding_window",
            "wide::available_permits_are_never_returned_twice",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn due(&self",
        text: "self.state.load(Acquire)",
        by: "self.state.load(Relaxed)",
        test: (
            "sliding_window",
            "wide::a_retry_is_never_earlier_than_every_state_allows",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "Err(newer) => state = newer",
        by: "Err(_) => return Ok(Receipt::NONE)",
        test: (
            "sliding_window",
            "wide::racing_takes_share_the_limit_and_never_exceed_it",
        ),
    },
    // The caller's epoch selects the slot, instead of the deciding epoch.
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "epoch.wrapping_add_signed(-passed)",
        by: "epoch",
        test: (
            "sliding_window",
            "wide::a_stale_timestamp_counts_in_the_newest_segment",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn take<O: Observer>(",
        text: "&& self.outdated(",
        by: "&& false && self.outdated(",
        test: (
            "sliding_window",
            "a_take_after_a_whole_horizon_counts_in_its_own_segment",
        ),
    },
    // A roll re-tags only the newest slot.
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn roll(&self",
        text: "self.targets(epoch)",
        by: "self.targets(epoch).filter(|&(_, target)| target == self.layout.stamp(epoch))",
        test: (
            "sliding_window",
            "wide::expired_permits_are_returned_after_any_race",
        ),
    },
    // Both of two rolls return the count that one of them has re-tagged.
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn roll(&self",
        text: "Err(newer) => seen = newer",
        by: "Err(_) => { owed += count; break; }",
        test: (
            "sliding_window",
            "wide::racing_rolls_to_one_epoch_return_expired_permits_once",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn pay(&self",
        text: "{ stamp } else { at }",
        by: "{ stamp } else { stamp }",
        test: (
            "sliding_window",
            "wide::a_roll_to_an_older_epoch_does_not_move_the_state_back",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn pay(&self",
        text: "total.saturating_sub(owed)",
        by: "total",
        test: (
            "sliding_window",
            "wide::expired_permits_are_returned_after_any_race",
        ),
    },
    // A refund leaves the total before it leaves its slot.
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn pay(&self",
        text: "rolled, Release, Relaxed)",
        by: "rolled, Relaxed, Relaxed)",
        test: (
            "refunds",
            "wide::refunded_permits_are_never_counted_as_expired_too",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn take<O: Observer>(",
        text: "Acquire, Relaxed)",
        by: "Relaxed, Relaxed)",
        test: (
            "concurrency",
            "wide::a_permit_of_a_limit_of_one_guards_data",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn give_back(&self",
        text: "AVAILABLE_AT, Release)",
        by: "AVAILABLE_AT, Relaxed)",
        test: (
            "concurrency",
            "wide::a_taker_of_all_permits_sees_what_every_former_holder_wrote",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn take<O: Observer>(",
        text: "Err(newer) => state = newer",
        by: "Err(_) => return Ok(Receipt::NONE)",
        test: (
            "concurrency",
            "wide::racing_takes_share_the_limit_and_never_exceed_it",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn resize(&self",
        text: "Err(newer) => state = newer",
        by: "Err(_) => return Ok(old)",
        test: (
            "concurrency",
            "wide::two_concurrent_resizes_apply_in_sequence_and_keep_held_permits",
        ),
    },
    // A lower limit forgets the permits in use.
    Mutant {
        file: CONCURRENCY,
        within: "fn resize(&self",
        text: "i64::from(available) - i64::from(old) + i64::from(limit)",
        by: "i64::from(available).min(limit.into())",
        test: (
            "concurrency",
            "wide::a_take_during_a_limit_decrease_is_judged_by_one_of_the_two_limits",
        ),
    },
    // The waiter bit of the word is not set, not cleared, overwritten by another change, or not
    // read.
    Mutant {
        file: CONCURRENCY,
        within: "fn watch(&self",
        text: "self.state.set(WAITED, Relaxed);",
        by: "",
        test: (
            "concurrency",
            "wide::a_waiter_bit_set_during_a_release_is_observed_or_the_permit_is",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn watch(&self",
        text: "self.state.clear(WAITED, Relaxed);",
        by: "",
        test: (
            "concurrency",
            "wide::a_waiter_bit_cleared_during_a_resize_stays_clear",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn watch(&self",
        text: "self.state.set(WAITED, Relaxed);",
        by: "self.state.store(self.state.load(Relaxed) | WAITED, Relaxed);",
        test: (
            "concurrency",
            "wide::a_waiter_bit_survives_a_resize_and_a_take",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn watch(&self",
        text: "self.state.clear(WAITED, Relaxed);",
        by: "self.state.store(self.state.load(Relaxed) & !WAITED, Relaxed);",
        test: (
            "concurrency",
            "wide::a_waiter_bit_cleared_during_a_resize_stays_clear",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn resize(&self",
        text: " | state & WAITED",
        by: "",
        test: (
            "concurrency",
            "wide::a_waiter_bit_survives_a_resize_and_a_take",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn resize(&self",
        text: "| state & WAITED",
        by: "| WAITED",
        test: (
            "concurrency",
            "wide::a_waiter_bit_cleared_during_a_resize_stays_clear",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn give_back(&self",
        text: "before & WAITED != 0",
        by: "before & WAITED > WAITED",
        test: ("queue", "a_request_queued_during_a_release_is_granted"),
    },
    // A permit is handed over although more permits are out than the limit allows; or further
    // permits are free, which is not reported.
    Mutant {
        file: CONCURRENCY,
        within: "fn pass_on(&self",
        text: "_ => PassedOn::No",
        by: "_ => PassedOn::NoneAreFree",
        test: (
            "queue_handover",
            "a_permit_released_above_a_lowered_limit_is_not_handed_over",
        ),
    },
    Mutant {
        file: CONCURRENCY,
        within: "fn pass_on(&self",
        text: "1.. => PassedOn::OthersAreFree",
        by: "1.. => PassedOn::NoneAreFree",
        test: (
            "queue_handover",
            "a_hand_over_of_two_permits_leaves_a_free_one_to_the_next_waiter",
        ),
    },
    Mutant {
        file: LEASE_POOL,
        within: "pub fn claim_at(",
        text: "stage, Release)",
        by: "stage, Relaxed)",
        test: (
            "lease_pool",
            "a_sweep_sees_the_deadline_and_permits_of_the_lease_it_sees",
        ),
    },
    Mutant {
        file: LEASE_POOL,
        within: "pub fn release(&self",
        text: "state.load(Acquire)",
        by: "state.load(Relaxed)",
        test: (
            "lease_pool",
            "a_release_returns_the_claimed_permits_even_if_the_id_was_sent_without_ordering",
        ),
    },
    Mutant {
        file: LEASE_POOL,
        within: "pub fn sweep(&self",
        text: "state.load(Acquire)",
        by: "state.load(Relaxed)",
        test: (
            "lease_pool",
            "a_sweep_sees_the_deadline_and_permits_of_the_lease_it_sees",
        ),
    },
    Mutant {
        file: LEASE_POOL,
        within: "fn reserve(&self) -> Option<u32>",
        text: "BUSY, Acquire, Relaxed)",
        by: "BUSY, Relaxed, Relaxed)",
        test: (
            "lease_pool",
            "the_next_user_of_a_slot_sees_all_writes_of_the_last_one",
        ),
    },
    Mutant {
        file: LEASE_POOL,
        within: "fn end(&self",
        text: "free, Release, Relaxed)",
        by: "free, Relaxed, Relaxed)",
        test: (
            "lease_pool",
            "the_next_user_of_a_slot_sees_all_writes_of_the_last_one",
        ),
    },
    Mutant {
        file: LEASE_POOL,
        within: "impl Drop for FreeOnDrop",
        text: "FREE, Release)",
        by: "FREE, Relaxed)",
        test: (
            "lease_pool",
            "the_next_user_of_a_slot_sees_the_last_user_despite_a_denied_claim_between",
        ),
    },
    // Two owners of one slot.
    Mutant {
        file: LEASE_POOL,
        within: "fn reserve(&self) -> Option<u32>",
        text: ".is_ok()",
        by: ".is_ok() | true",
        test: ("lease_pool", "two_claims_on_the_last_slot_make_one_lease"),
    },
    // Any id ends a lease.
    Mutant {
        file: LEASE_POOL,
        within: "fn end(&self",
        text: ".ok()?",
        by: ".ok()",
        test: ("lease_pool", "two_releases_of_one_id_return_permits_once"),
    },
    Mutant {
        file: LEASE_POOL,
        within: "fn end(&self",
        text: ".ok()?",
        by: ".ok()",
        test: ("lease_pool", "a_release_and_a_sweep_return_permits_once"),
    },
    // The next lease in the slot has the same id.
    Mutant {
        file: LEASE_POOL,
        within: "fn end(&self",
        text: ".wrapping_add(NEXT)",
        by: "",
        test: (
            "lease_pool",
            "a_stale_id_never_ends_the_current_lease_of_its_slot",
        ),
    },
    Mutant {
        file: LEASE_POOL,
        within: "pub fn sweep(&self",
        text: "== DUE",
        by: ">= HELD",
        test: (
            "lease_pool",
            "a_new_lease_without_a_deadline_is_not_swept_by_the_deadline_of_an_old_one",
        ),
    },
    // A sweep takes whichever lease is in the slot now.
    Mutant {
        file: LEASE_POOL,
        within: "pub fn sweep(&self",
        text: "self.end(slot, index, state, permits)",
        by: "self.end(slot, index, slot.state.load(Acquire), permits)",
        test: (
            "lease_pool",
            "a_new_lease_is_not_swept_by_the_deadline_of_an_old_one",
        ),
    },
    // A denied claim keeps its slot.
    Mutant {
        file: LEASE_POOL,
        within: "impl Drop for FreeOnDrop",
        text: "| FREE",
        by: "| BUSY",
        test: (
            "lease_pool",
            "claims_share_the_limit_and_a_denied_claim_leaves_its_slot_free",
        ),
    },
    Mutant {
        file: "core/src/wrappers/counted.rs",
        within: "fn release(&self",
        text: "self.tally().returned(n);\n        self.limiter.release(n);",
        by: "self.limiter.release(n);\n        self.tally().returned(n);",
        test: ("counted", "held_permits_never_exceed_the_limit"),
    },
    // An explained take tells of a later state than that of its own decision.
    Mutant {
        file: "core/src/limiter/detail.rs",
        within: "fn observe(self, detail: impl FnOnce() -> T) {",
        text: "self.set(Some(detail()));",
        by: "let _ = detail;",
        test: (
            "explained",
            "wide::no_two_grants_of_a_concurrency_limit_tell_the_same_remainder",
        ),
    },
    Mutant {
        file: "core/src/all_of.rs",
        within: "fn detail(",
        text: "seen.detail.is_allowed()",
        by: "false",
        test: (
            "explained",
            "no_two_grants_of_a_composition_tell_the_same_remainder_of_a_limit",
        ),
    },
    Mutant {
        file: "core/src/wrappers/tally.rs",
        within: "fn add(&self, n: u32)",
        text: "self.permits.fetch_add(n.into(), Relaxed);",
        by: "let sum = self.permits.load(Relaxed);\n        self.permits.store(sum.wrapping_add(n.into()), Relaxed);",
        test: ("counted", "limiters_that_share_a_tally_lose_no_count"),
    },
    Mutant {
        file: "core/src/wrappers/counted.rs",
        within: "fn pass_on(",
        text: "self.tally().passed_on(n);",
        by: "let _ = n;",
        test: (
            "queue_counts",
            "a_request_that_is_granted_while_it_is_cancelled_is_counted_once",
        ),
    },
    Mutant {
        file: WAITS,
        within: "unsafe fn give_up(",
        text: "return unsafe { self.disclaim(waiter, true) };",
        by: "return unsafe {\n                self.cancelled(Waiter::asks(waiter).0, 1);\n                self.disclaim(waiter, true)\n            };",
        test: (
            "queue_counts",
            "a_request_that_is_granted_while_it_is_cancelled_is_counted_once",
        ),
    },
    Mutant {
        file: ADMIT,
        within: "unsafe fn admit(",
        text: "|n| attempt(&limiter, now, n)",
        by: "|n| limiter.take_at(now, n)",
        test: ("queue_counts", "attempts_beside_a_release_are_no_denials"),
    },
    Mutant {
        file: "core/src/clock.rs",
        within: "pub fn advance(&self",
        text: "self.0.fetch_add(by, Relaxed)",
        by: "{ let old = self.0.load(Relaxed); self.0.store(old + by, Relaxed); old }",
        test: (
            "manual_clock",
            "steps_of_several_threads_add_up_and_time_never_goes_back",
        ),
    },
    // Live settings.
    Mutant {
        file: "core/src/limiters/adjustable_bucket.rs",
        within: "fn refill(",
        text: "let position = lattice.position(newest);",
        by: "let position = lattice.position(tick);",
        test: (
            "adjustable_bucket",
            "wide::a_stale_addition_during_a_newer_take_leaves_no_more_than_a_full_bucket",
        ),
    },
    Mutant {
        file: LIVE,
        within: "fn load(&self",
        text: "self.word.load(Acquire)",
        by: "self.word.load(Relaxed)",
        test: (
            "adjustable_bucket",
            "wide::an_available_permit_is_granted_during_a_change",
        ),
    },
    Mutant {
        file: LIVE,
        within: "fn exchange(&self",
        text: "next & W::MASK, Release, Acquire)",
        by: "next & W::MASK, Relaxed, Acquire)",
        test: (
            "adjustable_bucket",
            "wide::a_stale_change_during_a_newer_take_applies_at_the_newest_time",
        ),
    },
    Mutant {
        file: LIVE,
        within: "fn exchange(&self",
        text: "next & W::MASK, Release, Acquire)",
        by: "next & W::MASK, Release, Relaxed)",
        test: (
            "adjustable_bucket",
            "wide::an_available_permit_is_granted_during_a_change",
        ),
    },
    Mutant {
        file: LIVE,
        within: "fn confirm(&self",
        text: "fence(Acquire);",
        by: "",
        test: (
            "adjustable_bucket",
            "wide::an_available_permit_is_granted_during_two_changes",
        ),
    },
    Mutant {
        file: LIVE,
        within: "fn change<T>(",
        text: "cell.store(setting, Release)",
        by: "cell.store(setting, Relaxed)",
        test: (
            "adjustable_bucket",
            "wide::an_available_permit_is_granted_during_two_changes",
        ),
    },
    Mutant {
        file: LIVE,
        within: "fn change<T>(",
        text: "next, AcqRel, Relaxed)",
        by: "next, Acquire, Relaxed)",
        test: (
            "adjustable_bucket",
            "wide::an_available_permit_is_granted_during_a_change",
        ),
    },
    Mutant {
        file: LIVE,
        within: "fn claim(&self",
        text: "(0, 1, Acquire, Relaxed)",
        by: "(0, 1, Relaxed, Relaxed)",
        test: (
            "adjustable_bucket",
            "wide::a_change_reads_the_settings_that_the_previous_change_wrote",
        ),
    },
    Mutant {
        file: LIVE,
        within: "Drop for Claim<'_, N, W> {",
        text: "store(0, Release)",
        by: "store(0, Relaxed)",
        test: (
            "adjustable_bucket",
            "wide::a_change_reads_the_settings_that_the_previous_change_wrote",
        ),
    },
    // The time of a grant is noted only after other threads can see the grant.
    Mutant {
        file: LIVE,
        within: "fn change<T>(",
        text: "let newest = self.newest_for_change(tick, late)?;",
        by: "let newest = tick;",
        test: (
            "adjustable_bucket",
            "wide::a_stale_change_during_a_newer_take_applies_at_the_newest_time",
        ),
    },
    Mutant {
        file: "core/src/limiters/adjustable_window.rs",
        within: "fn change(",
        text: "if earliest == latest { latest } else { newest }",
        by: "{ let _ = latest; tick }",
        test: (
            "adjustable_window",
            "wide::a_stale_change_during_a_newer_take_adds_nothing_at_the_newest_time",
        ),
    },
    // A late change treats the newest time as that of a grant, although it may have been denied.
    Mutant {
        file: LIVE,
        within: "fn change<T>(",
        text: "if is_certain { newest } else { tick }",
        by: "newest",
        test: (
            "adjustable_bucket",
            "wide::a_stale_change_during_a_newer_denied_take_adds_nothing",
        ),
    },
    // Two calls subtract at once.
    Mutant {
        file: LIVE,
        within: "fn claim(&self",
        text: "if held == 1 {",
        by: "if held == 1 { return Some(Claim(self)); }\n            if held == 1 {",
        test: (
            "adjustable_bucket",
            "wide::a_refund_during_another_refund_and_a_newer_take_exceeds_no_bound",
        ),
    },
    // Refunds.
    Mutant {
        file: WORD_LIMITER,
        within: "fn refund(",
        text: "None => receipt.refunded(0)",
        by: "None => receipt.refunded(n)",
        test: (
            "refunds",
            "wide::a_bucket_accepts_a_refund_during_a_take_exactly_or_not_at_all",
        ),
    },
    Mutant {
        file: TOKEN_BUCKET,
        within: "fn refund(",
        text: "used != receipt.note()",
        by: "false",
        test: (
            "refunds",
            "wide::a_replenished_bucket_accepts_no_refund_beyond_its_burst",
        ),
    },
    Mutant {
        file: SLIDING_WINDOW,
        within: "fn undo(&self",
        text: "self.pay(n.into(), epoch);",
        by: "",
        test: (
            "refunds",
            "wide::a_sliding_window_accepts_a_refund_during_a_take",
        ),
    },
    // Slices.
    Mutant {
        file: SLICED_BUCKET,
        within: "fn cut(&self",
        text: "Err(newer) => word = newer",
        by: "Err(_) => return Ok(Share { size: k, have: k, until: self.end_of(held), draws: 0 })",
        test: (
            "slices",
            "wide::a_cut_during_takes_shares_the_burst_with_them",
        ),
    },
    Mutant {
        file: SLICED_BUCKET,
        within: "fn cut(&self",
        text: "after.balance(after.position(held), taken).from",
        by: "taken",
        test: (
            "slices",
            "wide::a_slice_cut_in_advance_and_dropped_during_a_take_adds_no_permits",
        ),
    },
    Mutant {
        file: SLICED_BUCKET,
        within: "fn draw(&self",
        text: "Err(newer) => word = newer",
        by: "Err(_) => return Ok(after)",
        test: (
            "slices",
            "wide::two_slices_that_draw_concurrently_share_the_rest",
        ),
    },
    Mutant {
        file: SLICED_BUCKET,
        within: "fn draw(&self",
        text: "rest.balance(rest.position(held), taken).from",
        by: "taken",
        test: (
            "slices",
            "wide::a_slice_settled_in_advance_and_dropped_during_a_take_adds_no_permits",
        ),
    },
    Mutant {
        file: SLICED_BUCKET,
        within: "fn give_back(&self",
        text: "self.word.fetch_sub((units << self.low).wrapping_add(share.size.into()), Relaxed)",
        by: "self.word.store(self.word.load(Relaxed).wrapping_sub((units << self.low).wrapping_add(share.size.into())), Relaxed)",
        test: (
            "slices",
            "wide::a_drop_during_a_cut_keeps_the_permits_of_the_other_slice",
        ),
    },
    // A slice relies on permits that are refunded.
    Mutant {
        file: SLICED_BUCKET,
        within: "fn undo(&self",
        text: "self.sliced_in(left) > 0",
        by: "false",
        test: (
            "slices",
            "wide::a_slice_settled_by_a_take_stays_settled_when_the_take_is_refunded",
        ),
    },
    // Slices take the last permit of the rest.
    Mutant {
        file: SLICE,
        within: "Source for Concurrency<W> {",
        text: "k.saturating_add(1)",
        by: "k",
        test: (
            "slices",
            "wide::slices_of_a_limit_leave_one_permit_for_direct_takes",
        ),
    },
    // Stripes.
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn take(&self, index",
        text: "Err(newer) => word = newer",
        by: "Err(_) => return Ok(Self::receipt(index & (N - 1), word, now))",
        test: (
            "striped_bucket",
            "wide::a_call_takes_what_a_stripe_holds_while_another_uses_it",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn take_slowly(",
        text: "if exchanged.is_ok() {",
        by: "if exchanged.is_ok() || true {",
        test: (
            "striped_bucket",
            "wide::two_calls_that_draw_into_one_stripe_lose_no_permit",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn take_slowly(",
        text: "self.put_back(hand);\n                return Err",
        by: "return Err",
        test: (
            "striped_bucket",
            "wide::two_calls_that_need_all_permits_get_them_once",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn take_out(",
        text: "Err(newer) => word = newer",
        by: "Err(_) => return allotment",
        test: (
            "striped_bucket",
            "wide::two_calls_that_need_all_permits_get_them_once",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn deposit(",
        text: "Err(newer) => word = newer",
        by: "Err(_) => return Self::receipt(index, next, now)",
        test: (
            "striped_bucket",
            "wide::two_calls_that_draw_into_one_stripe_lose_no_permit",
        ),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn deposit(",
        text: "compare_exchange_weak(word, next, Release, Relaxed)",
        by: "compare_exchange_weak(word, next, Relaxed, Relaxed)",
        test: ("striped_bucket", "wide::a_look_counts_no_permit_twice"),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn look(&self",
        text: "load(Acquire)",
        by: "load(Relaxed)",
        test: ("striped_bucket", "wide::a_look_counts_no_permit_twice"),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn look(&self",
        text: "if again == word",
        by: "if true",
        test: ("striped_bucket", "wide::a_look_counts_no_permit_twice"),
    },
    Mutant {
        file: STRIPED_BUCKET,
        within: "fn undo(",
        text: "Err(newer) => word = newer",
        by: "Err(_) => return receipt.refunded(back as u32)",
        test: (
            "striped_bucket",
            "wide::a_refund_to_a_stripe_that_is_emptied_is_exact_or_nothing",
        ),
    },
    // Keys that are handed over to another table, by processes that may be killed or stopped.
    Mutant {
        file: LINE,
        within: "pub(crate) fn hand_over(",
        text: "to.word.replace(CLOSED, handed, Relaxed);",
        by: "to.word.store(handed, Relaxed);",
        test: (
            "moving",
            "a_hand_over_that_goes_on_after_another_one_changes_nothing",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn hand_over(",
        text: "let handed = thawed(last).map_or(0,",
        by: "let handed = Held::of(word).map_or(0,",
        test: (
            "moving",
            "a_hand_over_that_goes_on_after_another_one_changes_nothing",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn hold(",
        text: "Claims::Revocable => self.end(held),",
        by: "Claims::Revocable => { self.entry.word.store(held, Release); true }",
        test: (
            "moving",
            "a_grant_during_a_hand_over_is_in_what_is_handed_over",
        ),
    },
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "|| claimed.claims == Claims::Revocable && self.is_frozen_at_zero(lines, width)",
        by: "",
        test: (
            "moving",
            "a_key_that_has_nothing_left_is_granted_nothing_while_it_is_handed_over",
        ),
    },
    // Keys that move to another table.
    Mutant {
        file: LINE,
        within: "pub(crate) fn move_to(",
        text: "AcqRel, Relaxed)",
        by: "Release, Relaxed)",
        test: ("moving", "a_move_sees_how_a_use_changed_the_limiter"),
    },
    Mutant {
        file: "core/src/keyed/moving.rs",
        within: "let move_slot =",
        text: "from.move_to(into, has_users,",
        by: "from.move_to(into, |_| false,",
        test: ("moving", "a_move_sees_how_a_use_changed_the_limiter"),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn move_to(",
        text: "AcqRel, Relaxed)",
        by: "Acquire, Relaxed)",
        test: (
            "moving",
            "a_key_finds_its_claim_in_the_table_that_it_has_moved_to",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn move_to(",
        text: "to.word.store(held.tag(), Relaxed);",
        by: "",
        test: (
            "moving",
            "a_key_finds_its_claim_in_the_table_that_it_has_moved_to",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn move_to(",
        text: "word & TAG | CLOSED",
        by: "CLOSED",
        test: ("moving", "permits_taken_during_a_move_stay_taken"),
    },
    // An entry of several limits moves: the words after its lead stay open to refunds and charges.
    Mutant {
        file: "core/src/keyed/keyed_list/moving.rs",
        within: "fn convert<",
        text: "and_then(Entry::close)?",
        by: "and_then(Entry::held)?",
        test: (
            "moving_lists",
            "a_charge_during_a_move_counts_in_one_of_the_tables",
        ),
    },
    // A charge of some limits counts, although another key has claimed the entry.
    Mutant {
        file: "core/src/keyed/keyed_list/settling.rs",
        within: "fn charge_in(",
        text: "let held = word.held_as(tag)?;",
        by: "let Some(held) = word.held_as(tag) else { break (0, 0) };",
        test: (
            "moving_lists",
            "a_charge_is_not_forgotten_when_another_key_claims_the_entry",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn settled(",
        text: "load(Acquire)",
        by: "load(Relaxed)",
        test: (
            "striped_concurrency",
            "a_call_that_fills_a_stripe_and_one_that_closes_it_lose_no_permit",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn finish(",
        text: "stripe.load(Acquire)",
        by: "stripe.load(Relaxed)",
        test: (
            "striped_concurrency",
            "a_call_that_fills_a_stripe_and_one_that_closes_it_lose_no_permit",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn finish(",
        text: "compare_exchange_weak(word, made, AcqRel, Relaxed)",
        by: "compare_exchange_weak(word, made, Acquire, Relaxed)",
        test: (
            "striped_concurrency",
            "a_call_that_fills_a_stripe_and_one_that_closes_it_lose_no_permit",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn finish(",
        text: "compare_exchange_weak(word, made, AcqRel, Relaxed)",
        by: "compare_exchange_weak(word, made, Release, Relaxed)",
        test: (
            "striped_concurrency",
            "a_permit_guards_data_if_its_stripe_is_closed_as_it_was_before",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn finish(",
        text: "compare_exchange_weak(rest, next, Release, Relaxed)",
        by: "compare_exchange_weak(rest, next, Relaxed, Relaxed)",
        test: (
            "striped_concurrency",
            "a_call_that_fills_a_stripe_and_one_that_closes_it_lose_no_permit",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn finish(",
        text: "if self.shared.rest.load(Relaxed) != rest {",
        by: "if false {",
        test: (
            "striped_concurrency",
            "a_call_that_fills_a_stripe_and_one_that_closes_it_lose_no_permit",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn take(&self, index",
        text: "word - u64::from(n), Acquire, Relaxed)",
        by: "word - u64::from(n), Relaxed, Relaxed)",
        test: (
            "striped_concurrency",
            "a_permit_guards_data_within_a_stripe",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn take_slowly(",
        text: "compare_exchange_weak(word, left, Acquire, Relaxed)",
        by: "compare_exchange_weak(word, left, Relaxed, Relaxed)",
        test: (
            "striped_concurrency",
            "a_permit_guards_data_within_a_stripe",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn take_slowly(",
        text: "compare_exchange_weak(rest, next, Acquire, Relaxed)",
        by: "compare_exchange_weak(rest, next, Relaxed, Relaxed)",
        test: (
            "striped_concurrency",
            "a_permit_guards_data_within_the_rest",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn give_back(",
        text: "word + u64::from(n), Release, Relaxed)",
        by: "word + u64::from(n), Relaxed, Relaxed)",
        test: (
            "striped_concurrency",
            "a_permit_guards_data_within_a_stripe",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn give_back_slowly(",
        text: "compare_exchange_weak(rest, next, Release, Relaxed)",
        by: "compare_exchange_weak(rest, next, Relaxed, Relaxed)",
        test: (
            "striped_concurrency",
            "a_permit_guards_data_through_a_move_that_a_third_thread_makes",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn give_back_slowly(",
        text: "Some(rest & WATCHED != 0)",
        by: "Some(false)",
        test: (
            "striped_concurrency",
            "a_request_queued_during_a_release_to_a_stripe_is_granted",
        ),
    },
    Mutant {
        file: STRIPED_CONCURRENCY,
        within: "fn watch(",
        text: "self.taken_back();",
        by: "",
        test: (
            "striped_concurrency",
            "a_waiter_bit_set_during_a_release_to_a_stripe_is_observed_or_the_permit_is",
        ),
    },
    // The keyed table.
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "fence(SeqCst);",
        by: "",
        test: (
            "keyed",
            "two_first_takes_that_prefer_different_lines_share_one_slot",
        ),
    },
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "fence(SeqCst);",
        by: "fence(AcqRel);",
        test: (
            "keyed",
            "two_first_takes_that_prefer_different_lines_share_one_slot",
        ),
    },
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "load(Acquire)",
        by: "load(Relaxed)",
        test: (
            "keyed",
            "a_later_take_sees_what_the_last_holder_wrote_although_the_slot_is_vacant",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn change(",
        text: "AcqRel, Relaxed)",
        by: "Release, Relaxed)",
        test: (
            "keyed",
            "a_release_finds_the_slot_that_its_key_has_moved_to",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn change(",
        text: "AcqRel, Relaxed)",
        by: "Release, Relaxed)",
        test: ("keyed", "a_permit_of_a_key_guards_data"),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn change(",
        text: "AcqRel, Relaxed)",
        by: "Acquire, Relaxed)",
        test: (
            "keyed",
            "a_take_of_a_refunded_permit_sees_what_its_holder_wrote",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn hold(",
        text: "Release);",
        by: "Relaxed);",
        test: (
            "keyed",
            "a_release_finds_the_slot_that_another_thread_has_moved_its_key_to",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn hold(",
        text: "Release);",
        by: "Relaxed);",
        test: (
            "keyed",
            "two_concurrent_takes_see_what_the_last_holder_of_both_permits_wrote",
        ),
    },
    // Two slots for one key.
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "let is_raced = other.is_break()",
        by: "let is_raced = false && other.is_break()",
        test: ("keyed", "two_first_takes_of_a_key_share_one_slot"),
    },
    // The second line, or the first, is not read again.
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "if entry.at != claimed.entry.at",
        by: "if entry.at / PLACES == self.first && entry.at != claimed.entry.at",
        test: (
            "keyed",
            "two_first_takes_that_prefer_different_lines_share_one_slot",
        ),
    },
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "if entry.at != claimed.entry.at",
        by: "if entry.at / PLACES != self.first && entry.at != claimed.entry.at",
        test: ("keyed", "two_first_takes_of_a_key_share_one_slot"),
    },
    // A concurrent claim, or a held slot, is not seen.
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "& TAG == self.tag",
        by: "& (HELD | TAG) == (HELD | self.tag)",
        test: (
            "keyed",
            "two_first_takes_that_find_different_slots_free_share_one",
        ),
    },
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "& TAG == self.tag",
        by: "& (HELD | TAG) == self.tag",
        test: ("keyed", "two_first_takes_of_a_key_share_one_slot"),
    },
    // A slot stays claimed permanently.
    Mutant {
        file: LINE,
        within: "fn confirm<",
        text: "claimed.withdraw();",
        by: "let _ = claimed;",
        test: (
            "keyed",
            "a_withdrawn_claim_leaves_room_and_takes_nothing_from_the_key_it_replaced",
        ),
    },
    // A key takes from the slot of the key that has replaced it.
    Mutant {
        file: LINE,
        within: "pub(crate) fn change(",
        text: ".filter(|held| held.tag() == from.tag())",
        by: "",
        test: ("keyed", "held_permits_keep_their_slot"),
    },
    // A failed exchange is treated as a grant.
    Mutant {
        file: LINE,
        within: "pub(crate) fn change(",
        text: "Err(newer) =>",
        by: "Err(newer) if newer == 0 => Ok(()),\n            Err(newer) =>",
        test: (
            "keyed",
            "a_sweep_during_two_takes_neither_loses_nor_adds_a_permit",
        ),
    },
    // A sweep removes a slot that is in use.
    Mutant {
        file: LINE,
        within: "pub(crate) fn vacate_if(",
        text: "let exchanged = self.word.compare_exchange_weak(from.0, 0, Relaxed, Relaxed);",
        by: "let exchanged = { let _ = from; self.word.store(0, Relaxed); Ok::<u64, u64>(0) };",
        test: ("keyed", "a_sweep_during_a_take_keeps_permits_in_use"),
    },
    // Two keys claim one slot.
    Mutant {
        file: LINE,
        within: "pub(crate) fn claim<",
        text: "match entry.word.compare_exchange_weak(word, self.tag, Relaxed, Acquire) {",
        by: "match { entry.word.store(self.tag, Release); Ok::<u64, u64>(word) } {",
        test: ("keyed", "two_keys_that_claim_the_last_slot_do_not_share_it"),
    },
    // A call takes from a slot that is only claimed.
    Mutant {
        file: LINE,
        within: "const fn of(word",
        text: "if word & HELD == 0 { None } else { Some(Self(word)) }",
        by: "if word == 0 { None } else { Some(Self(word)) }",
        test: (
            "keyed",
            "two_first_takes_that_prefer_different_lines_share_one_slot",
        ),
    },
    Mutant {
        file: KEYED,
        within: "fn take_observed<O: Observer>(",
        text: "entry.change(held, left).is_ok()",
        by: "{ let _ = entry.change(held, left); true }",
        test: (
            "keyed",
            "an_idle_slot_stays_with_its_key_or_goes_to_another_key",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn vacate_if(",
        text: "&& vacate(held)",
        by: "&& vacate(self.held().unwrap_or(held))",
        test: ("keyed", "a_sweep_during_a_take_keeps_permits_in_use"),
    },
    // Several limits for each key: a concurrency limit leads, whose word comes back to a value that
    // a claim has read.
    Mutant {
        file: RULE_LIST,
        within: "fn leads(&self) -> u8 { if",
        text: "{ 1 } else if",
        by: "{ BEST } else if",
        test: ("keyed_list", "a_bucket_leads_also_if_it_comes_second"),
    },
    // A denied take keeps what it has taken.
    Mutant {
        file: KEYED_LIST,
        within: "fn undo(&self, progress",
        text: ".take(progress.taken)",
        by: ".take(progress.taken.min(0))",
        test: (
            "keyed_list",
            "takes_for_the_last_permit_of_the_lead_give_the_others_back",
        ),
    },
    // A word passes to another key while a permit is out of it.
    Mutant {
        file: LINE,
        within: "pub(crate) fn seize(",
        text: "while is_free(Held::of(word)) {",
        by: "while is_free(Held::of(word)) || true {",
        test: (
            "keyed_list",
            "a_word_with_a_permit_in_flight_passes_to_no_other_key",
        ),
    },
    // The lead is exchanged first.
    Mutant {
        file: KEYED_LIST,
        within: "fn take_at_once<",
        text: "let nth = count - 1 - taken;",
        by: "let nth = taken;",
        test: ("keyed_list", "takes_of_one_key_take_all_limits_or_none"),
    },
    // A take charges a word that belongs to another key.
    Mutant {
        file: KEYED_LIST,
        within: "fn slots_after(",
        text: "(foreign == 0)",
        by: "(foreign == 0 || tag > 0)",
        test: ("keyed_list", "a_sweep_during_a_take_loses_no_charge"),
    },
    // The holder of a permit does not see what its last holder wrote.
    Mutant {
        file: LINE,
        within: "pub(crate) fn exchange(",
        text: "AcqRel",
        by: "Relaxed",
        test: ("keyed_list", "a_permit_of_a_key_guards_data"),
    },
    // An entry is free if its lead is.
    Mutant {
        file: KEYED_LIST,
        within: "fn is_free(&self",
        text: "self.word(words, limit).and_then(Entry::held)",
        by: "None",
        test: ("keyed_list", "a_sweep_during_a_take_loses_no_charge"),
    },
    // A sweep vacates the lead before the other words.
    Mutant {
        file: LINE,
        within: "pub(crate) fn claim_if(",
        text: "held.tag()",
        by: "0",
        test: (
            "keyed_list",
            "a_key_that_takes_during_a_sweep_keeps_its_entry",
        ),
    },
    // Two seeds.
    Mutant {
        file: SEED,
        within: "fn fix(",
        text: "if self.parts[at].compare_exchange_weak(0, part, Relaxed, Relaxed).is_ok() {",
        by: "if { self.parts[at].store(part, Relaxed); true } {",
        test: ("keyed", "all_hashes_use_one_seed"),
    },
    Mutant {
        file: SEED,
        within: "pub fn set(",
        text: "mine &= ",
        by: "mine = ",
        test: ("keyed", "at_most_one_of_two_threads_sets_the_seed"),
    },
    // The keyed array.
    Mutant {
        file: LINE,
        within: "pub(crate) fn add(",
        text: "Release);",
        by: "Relaxed);",
        test: ("keyed_array", "a_claim_sees_how_a_use_changed_the_limiter"),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn claim<",
        text: "entry.word.load(Acquire)",
        by: "entry.word.load(Relaxed)",
        test: ("keyed_array", "a_claim_sees_how_a_use_changed_the_limiter"),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn claim<",
        text: "Relaxed, Acquire)",
        by: "Relaxed, Relaxed)",
        test: (
            "keyed_array",
            "a_claim_that_was_overtaken_sees_how_a_use_changed_the_limiter",
        ),
    },
    Mutant {
        file: LINE,
        within: "pub(crate) fn held(",
        text: "load(Acquire)",
        by: "load(Relaxed)",
        test: ("keyed_array", "a_sweep_sees_how_a_use_changed_the_limiter"),
    },
    Mutant {
        file: KEYED_ARRAY,
        within: "const USED: u64",
        text: "(1 << (TIME_AT + TIME_BITS)) - 1",
        by: "(1 << 43) - 1",
        test: (
            "keyed_array",
            "a_use_that_does_not_change_the_noted_time_keeps_its_slot",
        ),
    },
    Mutant {
        file: KEYED_ARRAY,
        within: "fn is_free(",
        text: "held.state() & USERS == 0",
        by: "true",
        test: (
            "keyed_array",
            "a_release_during_a_claim_returns_permits_to_its_own_key",
        ),
    },
    // The wait queue: a release and a new waiter.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn grant(&self",
        text: "fence(SeqCst);",
        by: "",
        test: (
            "queue_limits",
            "a_request_queued_during_a_release_of_a_limiter_without_a_waiter_bit_is_granted",
        ),
    },
    Mutant {
        file: ADMIT,
        within: "fn raise(&self",
        text: "fence(SeqCst);",
        by: "",
        test: (
            "queue_limits",
            "a_request_queued_during_a_release_of_a_limiter_without_a_waiter_bit_is_granted",
        ),
    },
    Mutant {
        file: ADMIT,
        within: "fn raise(&self",
        text: "self.gate.fetch_or(bit, Relaxed);",
        by: "",
        test: (
            "queue_limits",
            "a_request_queued_during_a_release_of_a_limiter_without_a_waiter_bit_is_granted",
        ),
    },
    Mutant {
        file: ADMIT,
        within: "fn raise(&self",
        text: "self.source.watch(true);",
        by: "",
        test: ("queue", "a_request_queued_during_a_release_is_granted"),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn give_back<T>(",
        text: "waiting != Waiting::No",
        by: "waiting == Waiting::Unknown",
        test: ("queue", "a_request_queued_during_a_release_is_granted"),
    },
    // The limiter is not asked again; or it is asked although there are earlier waiters.
    Mutant {
        file: ADMIT,
        within: "fn admit(",
        text: "self.options.order == Order::NewestFirst || head.is_none()",
        by: "false",
        test: ("queue", "a_request_queued_during_a_release_is_granted"),
    },
    Mutant {
        file: ADMIT,
        within: "fn admit(",
        text: "self.options.order == Order::NewestFirst || head.is_none()",
        by: "true",
        test: (
            "queue",
            "a_request_that_comes_after_a_waiter_is_not_granted_before_it",
        ),
    },
    // The waiter bit is cleared although there are waiters, or the limiter is told so; or it is not
    // told.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn lower_gate(&self",
        text: "!CLOSED & !lists.occupied",
        by: "!CLOSED",
        test: (
            "queue_limits",
            "a_request_queued_during_a_release_of_a_limiter_without_a_waiter_bit_is_granted",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn lower_gate(&self",
        text: "if lists.occupied == 0 {",
        by: "if true {",
        test: ("queue_limits", "a_drain_waits_for_new_requests_too"),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn lower_gate(&self",
        text: "self.source.watch(false);",
        by: "",
        test: ("queue", "a_request_queued_during_a_release_is_granted"),
    },
    // New requests overtake waiters.
    Mutant {
        file: QUEUE,
        within: "fn pass(&self",
        text: "self.wait_queue.is_waited_for(())",
        by: "false",
        test: (
            "queue",
            "a_request_that_comes_after_a_waiter_is_not_granted_before_it",
        ),
    },
    Mutant {
        file: WAITS,
        within: "fn try_now(&self, key: Key<Q>",
        text: "self.is_waited_for(key)",
        by: "false",
        test: (
            "queue",
            "a_request_that_comes_after_a_waiter_is_not_granted_before_it",
        ),
    },
    Mutant {
        file: KEYED_QUEUE,
        within: "fn take_with(",
        text: "!wait_queue.is_waited_for(self.address)",
        by: "true",
        test: (
            "queue_keyed",
            "a_take_during_a_release_does_not_overtake_a_waiter_of_the_same_key",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn take_past_others(",
        text: "lists.head(key).is_none()",
        by: "lists.head(key).is_none() || true",
        test: (
            "queue_keyed",
            "a_take_during_a_release_does_not_overtake_a_waiter_of_the_same_key",
        ),
    },
    Mutant {
        file: KEYED_QUEUE,
        within: "pub fn serve(",
        text: "Waiting::Unknown",
        by: "Waiting::No",
        test: (
            "queue_by_address",
            "a_request_queued_during_a_release_outside_the_queue_is_served",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "pub(crate) fn is_free(",
        text: "self.wake_and_grant(&mut batch);",
        by: "",
        test: (
            "queue_by_address",
            "a_take_in_turn_for_another_key_leaves_no_permit_behind",
        ),
    },
    Mutant {
        file: KEYED_QUEUE,
        within: "pub fn in_turn<",
        text: "|| wait_queue.is_free(key)",
        by: "|| true",
        test: (
            "queue_by_address",
            "a_take_in_turn_during_the_end_of_a_wait_is_granted_or_overtakes_none",
        ),
    },
    // A pending release, and the holder that unlocks.
    Mutant {
        file: PENDING_RELEASES,
        within: "fn is_any<",
        text: "fence(SeqCst);",
        by: "",
        test: ("queue", "a_release_during_an_advance_is_granted"),
    },
    Mutant {
        file: PENDING_RELEASES,
        within: "fn add(&self",
        text: "SeqCst",
        by: "crate::sync::atomic::Ordering::Acquire",
        test: (
            "queue_limits",
            "a_permit_released_for_later_during_a_request_is_granted_by_the_next_call",
        ),
    },
    Mutant {
        file: PENDING_RELEASES,
        within: "fn take(&self",
        text: "swap(0, SeqCst)",
        by: "swap(0, crate::sync::atomic::Ordering::Release)",
        test: (
            "queue",
            "two_unclaimed_grants_cancelled_concurrently_are_returned",
        ),
    },
    // A pending-release bit is set without a read-modify-write.
    Mutant {
        file: PENDING_RELEASES,
        within: "fn add(&self",
        text: "self.0.fetch_or(bits, SeqCst);",
        by: "self.0.store(self.0.load(Relaxed) | bits, SeqCst);",
        test: ("queue", "a_release_during_a_full_batch_is_granted"),
    },
    Mutant {
        file: PENDING_RELEASES,
        within: "fn take(&self",
        text: "self.0.swap(0, SeqCst)",
        by: "{ let bits = self.0.load(SeqCst); self.0.store(0, SeqCst); bits }",
        test: ("queue", "a_release_during_a_full_batch_is_granted"),
    },
    // No pending-release bit, or that of another shard.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn grant(&self",
        text: "self.pending.restore_on_drop(shard)",
        by: "self.pending.restore_on_drop(0)",
        test: (
            "queue",
            "a_permit_granted_to_a_cancelled_head_goes_to_the_next_waiter",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn grant(&self",
        text: "self.pending.restore_on_drop(shard)",
        by: "self.pending.restore_on_drop(1)",
        test: (
            "queue_keyed",
            "a_release_of_one_key_during_a_request_for_another_reaches_its_own_waiter",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn grant(&self",
        text: "Some(key)",
        by: "None",
        test: (
            "queue",
            "a_permit_granted_to_a_cancelled_head_goes_to_the_next_waiter",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn note_release(&self",
        text: "self.pending.add(Self::bit(key));",
        by: "let _ = key;",
        test: (
            "queue_limits",
            "a_permit_released_for_later_during_a_request_is_granted_by_the_next_call",
        ),
    },
    Mutant {
        file: WAITS,
        within: "unsafe fn give_up(&self, waiter: NonNull<Waiter<Key<Q>>>)",
        text: "if next.is_some() {",
        by: "if false {",
        test: (
            "queue",
            "two_concurrent_cancellations_make_way_for_the_third_waiter",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn change<T>(",
        text: "lists.occupied & !DRAINED",
        by: "lists.occupied & 1",
        test: (
            "queue_keyed",
            "waiters_of_two_keys_are_granted_after_a_limit_increase",
        ),
    },
    // A pending-release bit is lost in a panic, or with a full batch.
    Mutant {
        file: PENDING_RELEASES,
        within: "Drop for RestoreOnDrop<",
        text: "if self.bits != 0",
        by: "if false",
        test: ("queue", "a_close_during_a_release_loses_no_permit"),
    },
    Mutant {
        file: SERVE,
        within: "fn drain(&self",
        text: "pending.bits |= key.map_or(1, Self::bit);",
        by: "",
        test: (
            "queue_time",
            "a_release_while_deadlines_pass_reaches_the_waiter_behind_them",
        ),
    },
    Mutant {
        file: SERVE,
        within: "fn drain(&self",
        text: "|due| due <= now) {\n            pending.bits |= 1;",
        by: "|due| due <= now) {",
        test: ("queue", "a_release_during_a_full_batch_is_granted"),
    },
    Mutant {
        file: SERVE,
        within: "fn drain(&self",
        text: "lists.waits.shards.as_ref()[shard].heads().next() { if batch.is_full() { pending.bits |= 1;",
        by: "lists.waits.shards.as_ref()[shard].heads().next() { if batch.is_full() {",
        test: ("queue", "a_waiter_cancelled_during_a_close_is_removed_once"),
    },
    Mutant {
        file: SERVE,
        within: "fn drain(&self",
        text: "lists.waits.drainers.heads().next() { if batch.is_full() { pending.bits |= 1;",
        by: "lists.waits.drainers.heads().next() { if batch.is_full() {",
        test: (
            "queue_limits",
            "a_drain_ends_although_another_one_is_cancelled",
        ),
    },
    // The pending-release bits are not read after unlocking.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn with_batch<T>(",
        text: "self.wake_and_grant(batch);",
        by: "batch.wake();",
        test: ("queue", "a_close_during_a_release_loses_no_permit"),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn with_lists<T>(",
        text: "self.wake_and_grant_some(&mut batch);",
        by: "",
        test: ("queue", "a_release_during_a_read_of_the_counts_is_granted"),
    },
    Mutant {
        file: WAITS,
        within: "unsafe fn enqueue(&self, waiter: NonNull<Waiter<Key<Q>>>",
        text: "self.wake_and_grant_some(&mut batch);",
        by: "",
        test: ("queue", "a_request_queued_during_a_release_is_granted"),
    },
    Mutant {
        file: WAITS,
        within: "unsafe fn enqueue(&self, waiter: NonNull<Waiter<Key<Q>>>",
        text: "self.wake_and_grant_some(&mut batch);",
        by: "",
        test: (
            "queue",
            "a_release_during_a_new_request_is_granted_to_the_waiter",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn wake_and_grant(&self",
        text: "!self.try_grant(None, batch)",
        by: "{ self.try_grant(None, batch); batch.wake(); true }",
        test: (
            "queue",
            "a_waiter_that_becomes_the_head_during_a_release_and_is_polled_is_granted",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn take_past_others(",
        text: "self.wake_and_grant(&mut batch);",
        by: "batch.wake();",
        test: (
            "queue_keyed",
            "a_take_past_the_waiters_of_another_key_grants_concurrent_releases",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn grant_after_panic(",
        text: "quietly(|| self.wake_and_grant(&mut WakeBatch::new()));",
        by: "",
        test: (
            "queue_limits",
            "a_waker_that_panics_during_a_release_keeps_no_waiter_from_its_permit",
        ),
    },
    // A hand-over: the same; further permits are free, which is not reported; or the waiter bit
    // stays set.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn hand_over(&self",
        text: "if self.pending.is_any::<Q::Lock>() {",
        by: "if false {",
        test: (
            "queue_handover",
            "two_concurrent_releases_are_handed_to_two_waiters",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn hand_over(&self",
        text: "if handed.goes_on {",
        by: "if false && handed.goes_on {",
        test: (
            "queue_handover",
            "a_hand_over_of_two_permits_leaves_a_free_one_to_the_next_waiter",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn hand_over(&self",
        text: "let panicking = self.grant_on_unwind(0);",
        by: "let panicking = ();",
        test: (
            "queue_limits",
            "a_waker_that_panics_during_a_release_keeps_no_waiter_from_its_permit",
        ),
    },
    // It hands over permits that no waiter wants, or none.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn hand_to_head(&self",
        text: "min != n || max != n || ",
        by: "min > max || ",
        test: (
            "queue_handover",
            "one_permit_is_not_handed_to_a_request_for_two",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn hand_over(&self",
        text: "let is_handed = handed.is_some();",
        by: "let is_handed = true;",
        test: (
            "queue_handover",
            "one_permit_is_not_handed_to_a_request_for_two",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn hand_over(&self",
        text: "return false;",
        by: "return true;",
        test: (
            "queue_handover",
            "two_concurrent_releases_are_handed_to_two_waiters",
        ),
    },
    // The state of a wait that was read before the lock was taken.
    Mutant {
        file: WAITS,
        within: "unsafe fn give_up(&self, waiter: NonNull<Waiter<Key<Q>>>)",
        text: "if Waiter::state(waiter) != State::Waiting {",
        by: "if false {",
        test: (
            "queue",
            "a_permit_that_was_granted_and_not_claimed_guards_data",
        ),
    },
    Mutant {
        file: WAITS,
        within: "unsafe fn outcome(&self, waiter: NonNull<Waiter<Key<Q>>>",
        text: "let waits = Waiter::state(waiter) == State::Waiting;",
        by: "let waits = true;",
        test: ("queue", "a_permit_that_is_handed_over_guards_data"),
    },
    // A grant that is never claimed.
    Mutant {
        file: TAKEN,
        within: "fn refund(",
        text: "((), Waiting::Unknown)",
        by: "((), Waiting::No)",
        test: (
            "queue",
            "two_unclaimed_grants_cancelled_concurrently_are_returned",
        ),
    },
    // Callers that wait for all permits to return are forgotten, or woken too early.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn grant(&self",
        text: "(shard | DRAINED)",
        by: "shard",
        test: (
            "queue_limits",
            "a_drain_of_a_limiter_without_a_waiter_bit_ends",
        ),
    },
    Mutant {
        file: WAITS,
        within: "unsafe fn enqueue_drained(&self, waiter: NonNull<Waiter<Key<Q>>>",
        text: "            self.raise(DRAINED);\n            if self.is_drained(lists) {\n                return false;\n            }",
        by: "            if self.is_drained(lists) {\n                return false;\n            }\n            self.raise(DRAINED);",
        test: (
            "queue_limits",
            "a_drain_that_begins_during_the_last_release_ends",
        ),
    },
    Mutant {
        file: WAITS,
        within: "unsafe fn enqueue_drained(&self, waiter: NonNull<Waiter<Key<Q>>>",
        text: "lists.occupied |= DRAINED;",
        by: "",
        test: (
            "queue_limits",
            "a_drain_that_begins_during_the_last_release_ends",
        ),
    },
    Mutant {
        file: SERVE,
        within: "fn drain(&self",
        text: " && self.is_drained(lists)",
        by: "",
        test: (
            "queue_limits",
            "a_drain_ended_by_a_third_thread_sees_what_the_holder_wrote",
        ),
    },
    Mutant {
        file: SERVE,
        within: "fn is_drained(&self",
        text: "fence(Acquire);",
        by: "",
        test: (
            "queue_limits",
            "a_drain_with_a_sequential_lock_sees_what_the_holder_wrote",
        ),
    },
    // A close wakes no waiter, or takes free permits; an evicted waiter is not woken.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn close(&self",
        text: "self.drain(lists, batch, None);",
        by: "",
        test: ("queue", "a_request_during_a_close_is_rejected"),
    },
    Mutant {
        file: SERVE,
        within: "fn drain(&self",
        text: "self.settle(lists, batch, head, State::Closed, None, now);",
        by: "let key = unsafe { (*head.as_ptr()).key };\n                    let _ = self.source.at(key).take_at(now, 1);\n                    self.settle(lists, batch, head, State::Closed, None, now);",
        test: ("queue", "a_close_during_a_release_loses_no_permit"),
    },
    Mutant {
        file: SERVE,
        within: "fn settle(",
        text: "batch.push(waker);",
        by: "if outcome != State::Evicted {\n            batch.push(waker);\n        }",
        test: (
            "queue",
            "a_waiter_evicted_during_a_release_gets_no_permit_and_the_newest_gets_it",
        ),
    },
    // The timer stays armed for an earlier instant.
    Mutant {
        file: DRIVER,
        within: "fn turns(&self",
        text: "load(SeqCst)",
        by: "load(Relaxed)",
        test: (
            "queue_time",
            "a_timer_that_fires_during_the_cancellation_of_the_head_is_armed_for_the_next",
        ),
    },
    Mutant {
        file: DRIVER,
        within: "fn next(&self",
        text: "fetch_add(1, SeqCst)",
        by: "fetch_add(1, Relaxed)",
        test: (
            "queue_time",
            "a_timer_that_fires_during_the_cancellation_of_the_head_is_armed_for_the_next",
        ),
    },
    Mutant {
        file: DRIVE,
        within: "unsafe fn arm(",
        text: "self.turns() == look.turn",
        by: "true",
        test: (
            "queue_time",
            "a_timer_that_fires_during_a_new_head_is_armed_for_it",
        ),
    },
    Mutant {
        file: DRIVE,
        within: "unsafe fn arm(",
        text: "self.turns() == look.turn",
        by: "true",
        test: (
            "queue_time",
            "a_driver_replaced_during_a_request_leaves_the_timer_armed",
        ),
    },
    // Drivers: one is not notified; or one leaves or unwinds, and no other is notified.
    Mutant {
        file: WAIT_QUEUE,
        within: "fn tell(&mut self, batch",
        text: "batch.tell_driver(waker)",
        by: "drop(waker)",
        test: (
            "queue_time",
            "a_driver_learns_of_a_request_queued_during_its_poll",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn tell(&mut self, batch",
        text: "batch.tell_attendant(waker)",
        by: "drop(waker)",
        test: (
            "queue_time",
            "two_concurrent_requests_leave_the_timer_armed_for_the_earlier_one",
        ),
    },
    Mutant {
        file: DRIVERS,
        within: "pub(crate) unsafe fn leave(",
        text: "self.open();",
        by: "",
        test: (
            "queue_time",
            "a_driver_that_leaves_during_a_request_has_the_other_one_woken",
        ),
    },
    Mutant {
        file: DRIVERS,
        within: "pub(crate) fn attend(",
        text: "self.open();",
        by: "",
        test: (
            "queue_time",
            "a_queue_that_attends_itself_during_the_poll_of_a_driver_is_armed",
        ),
    },
    Mutant {
        file: DRIVER,
        within: "pub(crate) fn disarm(",
        text: "batch.tell_driver(waker)",
        by: "drop(waker)",
        test: (
            "queue_time",
            "a_driver_that_unwinds_during_a_request_has_the_other_one_woken",
        ),
    },
    Mutant {
        file: DRIVE,
        within: "unsafe fn see_to(",
        text: "let unarmed = Finally(|| self.disarm(caller));",
        by: "let unarmed = ();",
        test: (
            "queue_time",
            "a_driver_that_unwinds_during_a_request_has_the_other_one_woken",
        ),
    },
    Mutant {
        file: DRIVE,
        within: "unsafe fn see_to(",
        text: "arm().or_else(arm)",
        by: "arm()",
        test: (
            "queue_time",
            "an_alarm_that_fails_once_during_a_request_is_set_again",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn try_with_batch<T>(",
        text: "self.pending.add(TIME);",
        by: "",
        test: (
            "queue_time",
            "a_timer_that_fires_while_the_lock_is_held_is_armed",
        ),
    },
    Mutant {
        file: SERVE,
        within: "fn drain(&self",
        text: "lists.timed.open();",
        by: "",
        test: (
            "queue_time",
            "a_timer_that_fires_while_the_lock_is_held_is_armed",
        ),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn close(&self",
        text: "batch.push(Some(waker));",
        by: "drop(waker);",
        test: ("queue_time", "a_driver_polled_during_a_close_ends"),
    },
    Mutant {
        file: WAIT_QUEUE,
        within: "fn wake_and_grant(&self",
        text: "self.pending.add(TIME);",
        by: "",
        test: (
            "queue_time",
            "a_driver_whose_waker_panics_during_a_request_has_the_other_one_woken",
        ),
    },
    Mutant {
        file: SERVE,
        within: "Drop for RetryOnUnwind<",
        text: "self.lists.schedule(self.head, Duration::ZERO);",
        by: "",
        test: (
            "queue_time",
            "a_limiter_that_panics_during_a_release_is_asked_again_later",
        ),
    },
    // An expired deadline does not let the next waiter proceed.
    Mutant {
        file: SERVE,
        within: "fn run_timers(",
        text: "self.serve(lists, batch, next, as_of, now);",
        by: "let _ = next;",
        test: (
            "queue_time",
            "a_deadline_that_passes_during_a_release_makes_way_for_the_next_waiter",
        ),
    },
    // Writes before a grant.
    Mutant {
        file: WAIT_LIST,
        within: "unsafe fn state(",
        text: "load(Acquire)",
        by: "load(Relaxed)",
        test: ("queue", "a_permit_that_is_handed_over_guards_data"),
    },
    Mutant {
        file: WAIT_LIST,
        within: "unsafe fn settle(",
        text: "Release)",
        by: "Relaxed)",
        test: (
            "queue",
            "a_permit_that_is_handed_over_by_a_third_thread_guards_data",
        ),
    },
    // Compositions: permits that were taken before a denial stay taken.
    Mutant {
        file: "core/src/all_of.rs",
        within: "fn take<L: Limiter + ?Sized>(",
        text: "rest()?;",
        by: "let failed = rest(); if failed.is_err() { mem::forget(undo); return failed; }",
        test: (
            "all_of",
            "wide::opposite_orders_of_concurrency_limits_never_share_a_permit_nor_leak_one",
        ),
    },
    Mutant {
        file: "core/src/all_of.rs",
        within: "fn take_composed(",
        text: "                false",
        by: "                true",
        test: (
            "all_of",
            "wide::compositions_in_compositions_take_all_or_none_and_lose_none",
        ),
    },
    Mutant {
        file: "core/src/word/stamped.rs",
        within: "fn is_past(&self",
        text: "distance != 0 && distance < self.late.into()",
        by: "distance != 0",
        test: (
            "sliding_window",
            "wide::racing_rolls_to_two_epochs_return_expired_permits_once",
        ),
    },
    // A refund does not count the refund whose word it finds, or does not announce itself.
    Mutant {
        file: "core/src/keyed/settling.rs",
        within: "fn since(&self",
        text: "fence(Acquire);",
        by: "",
        test: (
            "settling",
            "a_refund_counts_the_refunds_whose_word_it_finds",
        ),
    },
    Mutant {
        file: "core/src/keyed/settling.rs",
        within: "pub fn refund_counted_at(",
        text: "refunds.begin(n);",
        by: "",
        test: (
            "settling",
            "concurrent_refunds_and_takes_lose_no_permit_and_gain_none",
        ),
    },
];
