//! A bucket in two stripes. Every access of the rest is `Relaxed`; a deposit is a release that a
//! look at all stripes acquires. Draws are of up to 2 permits here.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use portcullis_core::limiter::Receipt;
use portcullis_core::parts::Stripe;
use portcullis_core::state::Word;
use portcullis_core::{Limiter, Rate, StripedBucket, Timestamp};
use portcullis_loom::{at, explore, explore_briefly, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    two_calls_that_draw_into_one_stripe_lose_no_permit,
    a_call_takes_what_a_stripe_holds_while_another_uses_it,
    a_call_takes_what_a_stripe_holds_while_another_draws,
    two_calls_that_need_all_permits_get_them_once,
    what_was_settled_for_a_stripe_is_not_granted_to_a_stale_call,
    a_stripe_that_renews_during_a_take_is_settled,
    a_look_counts_no_permit_twice,
    a_refund_to_a_stripe_that_is_emptied_is_exact_or_nothing,
    a_refund_to_the_rest_takes_back_nothing_that_a_stripe_settled_by,
    a_request_after_a_refund_and_a_denial_finds_the_permits,
    a_request_after_a_refund_and_two_denials_finds_the_permits,
    a_request_after_two_refunds_and_a_denial_finds_the_permits,
    a_request_after_a_denial_finds_what_was_in_the_hands_of_another_call,
);

const BURST: u64 = 32;

type Bucket<W> = StripedBucket<2, W>;

/// One permit per second.
fn bucket<W: Word>() -> Arc<Bucket<W>> {
    let bucket = StripedBucket::builder(Rate::per_second(1), BURST).build_on();
    Arc::new(bucket.unwrap())
}

fn on<W: Word>(bucket: &Bucket<W>, stripe: usize, now: Timestamp, n: u32) -> u64 {
    take(&Stripe::of(bucket, stripe), now, n)
}

/// Checks that of a bucket that was full, and used at one instant only, nothing is lost but what a
/// stripe with a narrow word settles for.
fn has<W: Word>(bucket: &Bucket<W>, now: Timestamp, taken: u64) {
    let left = bucket.available_at(now);
    let lost = BURST - taken - left;
    assert!(lost <= if W::BITS == 64 { 0 } else { 1 }, "{taken}, {left}");
    assert_eq!(on(bucket, 0, now, left as u32 + 1), 0);
    assert_eq!(on(bucket, 1, now, left as u32), left);
    assert_eq!((bucket.held(), bucket.available_at(now)), (0, 0));
    assert_eq!(bucket.available_at(at(90)), BURST);
}

fn two_calls_that_draw_into_one_stripe_lose_no_permit<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let a = spawn(&limit, |limit| on(limit, 0, at(0), 1));
        let b = on(&limit, 0, at(0), 1);
        assert_eq!((join(a), b), (1, 1));
        has(&limit, at(0), 2);
    });
}

fn a_call_takes_what_a_stripe_holds_while_another_uses_it<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        assert_eq!(on(&limit, 0, at(0), 1), 1);
        assert_eq!(limit.held(), 1);
        let all = limit.available_at(at(0)) as u32;
        let a = spawn(&limit, move |limit| on(limit, 1, at(0), all));
        let b = on(&limit, 0, at(0), 1);
        let (a, b) = (join(a), b);
        assert!(a == 0 || b == 0, "the last permit is granted once");
        assert!(a + b > 0, "the one that came first is granted");
        has(&limit, at(0), 1 + a + b);
    });
}

fn a_call_takes_what_a_stripe_holds_while_another_draws<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>();
        let a = spawn(&limit, |limit| on(limit, 0, at(0), 1));
        let b = on(&limit, 1, at(0), 31);
        let a = join(a);
        has(&limit, at(0), a + b);
    });
}

fn two_calls_that_need_all_permits_get_them_once<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>();
        assert_eq!(on(&limit, 0, at(0), 1) + on(&limit, 1, at(0), 1), 2);
        let all = limit.available_at(at(0)) as u32;
        let a = spawn(&limit, move |limit| on(limit, 0, at(0), all));
        let b = on(&limit, 1, at(0), all);
        let (a, b) = (join(a), b);
        assert!(a == 0 || b == 0);
        has(&limit, at(0), 2 + a + b);
    });
}

fn what_was_settled_for_a_stripe_is_not_granted_to_a_stale_call<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>();
        // The second draw is in advance: until the end of the next span of half a second at most.
        assert_eq!(on(&limit, 0, at(1), 2), 2);
        let later = Timestamp::from_millis(1_300);
        assert_eq!(on(&limit, 0, later, 1), 1);
        assert_eq!(limit.held(), 1);
        let a = spawn(&limit, move |limit| on(limit, 0, later, 1));
        let b = on(&limit, 1, at(1), 30);
        let c = on(&limit, 1, later, 1);
        assert!(3 + join(a) + b + c <= BURST, "all count at the later time");
    });
}

fn a_stripe_that_renews_during_a_take_is_settled<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>();
        assert_eq!(on(&limit, 0, at(9), 1), 1);
        assert_eq!(limit.held(), 1);
        // A call that has stopped at 9 s takes from the rest, and the stripe takes at 10 s.
        let later = at(10);
        let a = spawn(&limit, move |limit| on(limit, 0, later, 1));
        let b = on(&limit, 1, at(9), 30);
        let a = join(a);
        let rest = limit.available_at(later);
        // At 10 s, one permit has come in.
        assert!(1 + a + b + rest <= BURST + 1, "{a}, {b}, {rest}");
    });
}

fn a_look_counts_no_permit_twice<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        assert_eq!(on(&limit, 1, at(0), 1), 1);
        let a = spawn(&limit, |limit| on(limit, 0, at(0), 1));
        turn();
        assert!(limit.available_at(at(0)) < BURST);
        assert_eq!(join(a), 1);
    });
}

fn a_refund_to_a_stripe_that_is_emptied_is_exact_or_nothing<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>();
        assert_eq!(on(&limit, 0, at(0), 1), 1);
        let receipt = Stripe::of(&*limit, 0).take_at(at(0), 1).unwrap();
        // It finds the stripe without permits, and takes out its room.
        let a = spawn(&limit, |limit| on(limit, 0, at(0), 1));
        turn();
        let back = u64::from(limit.refund_at(at(0), 1, receipt).permits);
        assert_eq!(join(a), 1);
        has(&limit, at(0), 3 - back);
    });
}

fn a_refund_to_the_rest_takes_back_nothing_that_a_stripe_settled_by<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>();
        let receipt = limit.take_at(at(1), 4).unwrap();
        let a = spawn(&limit, |limit| on(limit, 0, at(3), 1));
        turn();
        let back = u64::from(limit.refund_at(at(1), 4, receipt).permits);
        let a = join(a);
        // The stripe may take at 3 s what it holds, beside a call with an older time.
        let held = on(&limit, 0, at(3), limit.held() as u32);
        let rest = on(&limit, 1, at(1), limit.available_at(at(1)) as u32);
        let later = on(&limit, 1, at(3), limit.available_at(at(3)) as u32);
        let taken = 4 - back + a + held + rest + later;
        assert!(taken <= BURST + 2, "{taken}");
    });
}

/// Returns a bucket of which all permits are taken, the last ones with these receipts, and whose
/// stripes may learn from denials.
fn empty<W: Word, const TAKES: usize>() -> (Arc<Bucket<W>>, [Receipt; TAKES]) {
    let limit = bucket::<W>();
    let most = BURST as u32 - 8 * TAKES as u32;
    assert_eq!(on(&limit, 0, at(0), most), most.into());
    let receipts = [(); TAKES].map(|()| limit.take_at(at(0), 8).unwrap());
    assert_eq!(on(&limit, 1, at(0), 1), 0);
    (limit, receipts)
}

fn a_request_after_a_refund_and_a_denial_finds_the_permits<W: Word>() {
    explore(|| {
        let (limit, [receipt]) = empty::<W, 1>();
        let a = spawn(&limit, |limit| on(limit, 1, at(0), 1));
        let back = u64::from(limit.refund_at(at(0), 8, receipt).permits);
        let taken = join(a);
        assert_eq!(back, if taken == 0 { 8 } else { back });
        assert_eq!(on(&limit, 1, at(0), 1), back.min(1));
    });
}

fn a_request_after_a_refund_and_two_denials_finds_the_permits<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let receipt = limit.take_at(at(0), 32).unwrap();
        // The first denial says that there is something to learn.
        let a = spawn(&limit, |limit| {
            on(limit, 1, at(0), 1) + on(limit, 1, at(0), 1)
        });
        let back = limit.refund_at(at(0), 32, receipt).permits;
        assert!(join(a) == 0 || back > 0, "only what is refunded is granted");
        let left = limit.available_at(at(0));
        assert_eq!(on(&limit, 1, at(0), left as u32), left);
    });
}

fn a_request_after_two_refunds_and_a_denial_finds_the_permits<W: Word>() {
    explore_briefly(2, 3, || {
        let (limit, [first, second]) = empty::<W, 2>();
        let a = spawn(&limit, |limit| on(limit, 1, at(0), 9));
        let b = spawn(&limit, move |limit| {
            u64::from(limit.refund_at(at(0), 8, second).permits)
        });
        let back = u64::from(limit.refund_at(at(0), 8, first).permits);
        let (taken, back) = (join(a), back + join(b));
        let left = limit.available_at(at(0));
        assert_eq!(taken + left, back);
        assert_eq!(on(&limit, 1, at(0), left as u32), left);
    });
}

fn a_request_after_a_denial_finds_what_was_in_the_hands_of_another_call<W: Word>() {
    explore_briefly(2, 3, || {
        let (limit, []) = empty::<W, 0>();
        let now = at(90);
        // It draws.
        assert_eq!(on(&limit, 0, now, 1), 1);
        let all = limit.available_at(now) as u32;
        let a = spawn(&limit, move |limit| on(limit, 0, now, all + 1));
        let b = on(&limit, 1, now, all);
        assert_eq!(join(a), 0);
        let left = limit.available_at(now);
        assert_eq!(b + left, all.into());
        assert_eq!(on(&limit, 1, now, left as u32), left);
    });
}
