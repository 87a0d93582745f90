//! The functions for C decide as the limiters of the core do, with each setting.
#![allow(unsafe_code, reason = "the functions take C's pointers")]

use core::ffi::c_int;
use core::mem::zeroed;
use core::ptr::null_mut;
use core::time::Duration;

use portcullis_c::*;
use portcullis_core::{
    Denied, FixedWindow, Limiter, LimiterExt, Rate, Retry, SlidingWindow, Timestamp, TokenBucket,
};

/// The times of the requests, which also go back, and their permits.
fn requests() -> impl Iterator<Item = (u64, u32)> {
    let (mut state, mut now) = (7_u64, 50_000_000_000_u64);
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    (0..2_000).map(move |_| {
        now += draw(700_000_000);
        (now - draw(300_000_000), draw(7) as u32)
    })
}

fn status<T>(taken: &Result<T, Denied>) -> c_int {
    match taken {
        Ok(_) => PC_OK,
        Err(Denied::ExceedsCapacity { .. }) => PC_TOO_MANY,
        Err(_) => PC_DENIED,
    }
}

fn time(retry: Retry) -> Option<u64> {
    match retry {
        Retry::At(at) => Some(at.as_nanos()),
        _ => None,
    }
}

/// Makes all calls on both, and compares.
macro_rules! compare {
    ($limiter:expr, $init:ident($settings:expr) -> $storage:ty, $take:ident, $look:ident, $available:ident, $retry:ident, $give_back:ident) => {{
        let limiter = $limiter;
        // SAFETY: zeros are a storage before its initialisation.
        let mut storage: $storage = unsafe { zeroed() };
        let settings = $settings;
        // SAFETY: all pointers lead to local variables.
        unsafe {
            let size = size_of_val(&storage);
            assert_eq!($init(&raw mut storage, size, &raw const settings), PC_OK);
        }
        let (mut granted, mut denied) = (0, 0);
        for (at, permits) in requests() {
            let now = Timestamp::from_nanos(at);
            // SAFETY: the same.
            unsafe {
                let looked = limiter.peek_at(now, permits);
                assert_eq!($look(&raw const storage, at, permits), status(&looked));
                let (mut number, mut when) = (0, 0);
                assert_eq!($available(&raw const storage, at, &raw mut number), PC_OK);
                assert_eq!(number, limiter.available_at(now));
                let retry = $retry(&raw const storage, at, permits, &raw mut when);
                let expected = limiter.explain_at(now, permits).retry;
                assert_eq!((retry == PC_OK).then_some(when), time(expected));

                let mut receipt: pc_receipt = zeroed();
                let taken = limiter.take_at(now, permits);
                let answer = $take(&raw const storage, at, permits, &raw mut receipt);
                assert_eq!(answer, status(&taken));
                let Ok(taken) = taken else {
                    denied += 1;
                    continue;
                };
                granted += 1;
                if permits % 3 == 2 {
                    let mut returned = 0;
                    let refund = limiter.refund_at(now, 1, taken);
                    let (receipt, back) = (&raw mut receipt, &raw mut returned);
                    assert_eq!($give_back(&raw const storage, at, 1, receipt, back), PC_OK);
                    assert_eq!(returned, refund.permits);
                    let none = null_mut();
                    let again = $give_back(&raw const storage, at, permits, receipt, none);
                    assert_eq!(again, PC_NOT_TAKEN);
                }
            }
        }
        assert!(
            granted > 100 && denied > 100,
            "{granted} granted, {denied} denied"
        );
    }};
}

const SECOND: Duration = Duration::from_secs(1);
const NANOS: u64 = 1_000_000_000;

#[test]
fn token_buckets() {
    let plain = pc_token_bucket_settings {
        permits: 3,
        stepwise: 0,
        period: NANOS,
        burst: 5,
        taken: 0,
        origin: 0,
        tick: 0,
        staleness: 0,
    };
    let builder = TokenBucket::builder(Rate::per_second(3), 5);
    let set = pc_token_bucket_settings {
        taken: 4,
        origin: 49 * NANOS,
        tick: NANOS / 10,
        staleness: 60 * NANOS,
        ..plain
    };
    let origin = Timestamp::from_secs(49);
    let of_set = builder
        .initial(1)
        .origin(origin)
        .tick(SECOND / 10)
        .staleness(60 * SECOND);
    let stepwise = pc_token_bucket_settings {
        stepwise: 1,
        ..plain
    };
    for (settings, builder) in [
        (plain, builder),
        (set, of_set),
        (stepwise, builder.stepwise()),
    ] {
        compare!(
            builder.build().unwrap(),
            pc_token_bucket_init(settings) -> pc_token_bucket,
            pc_token_bucket_take,
            pc_token_bucket_look,
            pc_token_bucket_available,
            pc_token_bucket_retry,
            pc_token_bucket_give_back
        );
    }
}

#[test]
fn fixed_windows() {
    let plain = pc_fixed_window_settings {
        limit: 5,
        window: NANOS,
        origin: 0,
        tick: 0,
        staleness: 0,
        from_first_request: 0,
    };
    let builder = FixedWindow::builder(5, SECOND);
    let origin = pc_fixed_window_settings {
        origin: NANOS / 3,
        staleness: 60 * NANOS,
        ..plain
    };
    let of_origin = builder
        .origin(Timestamp::from_nanos(NANOS / 3))
        .staleness(60 * SECOND);
    let started = pc_fixed_window_settings {
        from_first_request: 1,
        tick: NANOS / 50,
        ..plain
    };
    let of_started = builder.started_by_first_request().tick(SECOND / 50);
    for (settings, builder) in [(plain, builder), (origin, of_origin), (started, of_started)] {
        compare!(
            builder.build().unwrap(),
            pc_fixed_window_init(settings) -> pc_fixed_window,
            pc_fixed_window_take,
            pc_fixed_window_look,
            pc_fixed_window_available,
            pc_fixed_window_retry,
            pc_fixed_window_give_back
        );
    }
}

#[test]
fn sliding_windows() {
    let plain = pc_sliding_window_settings {
        limit: 5,
        window: NANOS,
        origin: 0,
        staleness: 0,
        segments: 4,
        strict: 0,
    };
    let builder = SlidingWindow::<PC_MAX_SEGMENTS>::builder(5, SECOND, 4);
    let strict = pc_sliding_window_settings {
        strict: 1,
        origin: NANOS / 3,
        staleness: 60 * NANOS,
        ..plain
    };
    let of_strict = builder
        .strict()
        .origin(Timestamp::from_nanos(NANOS / 3))
        .staleness(60 * SECOND);
    for (settings, builder) in [(plain, builder), (strict, of_strict)] {
        compare!(
            builder.build().unwrap(),
            pc_sliding_window_init(settings) -> pc_sliding_window,
            pc_sliding_window_take,
            pc_sliding_window_look,
            pc_sliding_window_available,
            pc_sliding_window_retry,
            pc_sliding_window_give_back
        );
    }
}

#[test]
fn a_slot_of_a_lease_is_that_of_the_core() {
    assert_eq!(pc_lease_slot_of(5 << 32 | 7), 7);
}
