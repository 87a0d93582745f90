//! The subjects of the library for C: an initialisation, whose settings the compiler does not
//! know, and the call that takes permits.
#![allow(
    clippy::wildcard_imports,
    dead_code,
    unused_imports,
    reason = "each needs some of it"
)]

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::hint::black_box;
use core::mem::MaybeUninit;
use core::ptr::null_mut;

use portcullis_c::*;

use crate::subject::CAPACITY;

const SECOND: u64 = 1_000_000_000;

const BUCKET: pc_token_bucket_settings = pc_token_bucket_settings {
    permits: 1_000,
    stepwise: 0,
    period: SECOND,
    burst: CAPACITY as u64,
    taken: 0,
    origin: 0,
    tick: 0,
    staleness: 0,
};

const FIXED: pc_fixed_window_settings = pc_fixed_window_settings {
    limit: CAPACITY as u64,
    window: 2 * SECOND,
    origin: 0,
    tick: 0,
    staleness: 0,
    from_first_request: 0,
};

const SLIDING: pc_sliding_window_settings = pc_sliding_window_settings {
    limit: CAPACITY as u64,
    window: 2 * SECOND,
    origin: 0,
    staleness: 0,
    segments: 8,
    strict: 0,
};

/// Memory for a limiter, all zero.
pub(crate) struct Zeroed<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: the program has one context.
unsafe impl<T> Sync for Zeroed<T> {}

impl<T> Zeroed<T> {
    const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::zeroed()))
    }

    const fn get(&self) -> *mut T {
        self.0.get().cast()
    }
}

/// A limiter and its slots or lines.
#[repr(C)]
pub(crate) struct With<T, M>(T, M);

/// Stores a limiter as `$type`. `$init` and `$take` return a status.
macro_rules! subject {
    ($subject:literal: $type:ty, |$place:ident| $init:expr, |$n:ident, $now:ident| $take:expr) => {
        #[cfg(subject = $subject)]
        pub(crate) static LIMIT: Zeroed<$type> = Zeroed::new();

        #[cfg(subject = $subject)]
        #[inline(never)]
        pub(crate) extern "C" fn acquire(
            limit: &'static Zeroed<$type>,
            $n: u32,
            $now: u64,
        ) -> bool {
            let $place = limit.get();
            // SAFETY: the pointers lead to memory of their types.
            let status: c_int = unsafe { $take };
            status == PC_OK
        }

        #[cfg(subject = $subject)]
        pub(crate) fn prepare() {
            let $place = black_box(&LIMIT).get();
            // SAFETY: the pointers lead to memory of their types, which nothing else uses.
            let status: c_int = unsafe { $init };
            // If it fails, no permits are granted, and the program fails.
            black_box(status);
        }
    };
}

subject!("c-token-bucket": pc_token_bucket,
    |bucket| pc_token_bucket_init(bucket, size_of_val(&*bucket), black_box(&BUCKET)),
    |n, now| pc_token_bucket_take(bucket, now, n, null_mut()));
subject!("c-fixed-window": pc_fixed_window,
    |window| pc_fixed_window_init(window, size_of_val(&*window), black_box(&FIXED)),
    |n, now| pc_fixed_window_take(window, now, n, null_mut()));
subject!("c-sliding-window": pc_sliding_window,
    |window| pc_sliding_window_init(window, size_of_val(&*window), black_box(&SLIDING)),
    |n, now| pc_sliding_window_take(window, now, n, null_mut()));

/// Takes from a concurrency limit. Called twice, but in the program once.
#[inline(never)]
unsafe fn take(limit: *const pc_concurrency, n: u32, receipt: &mut pc_receipt) -> c_int {
    // SAFETY: by the caller.
    unsafe { pc_concurrency_take(limit, 0, n, receipt) }
}

const NO_RECEIPT: pc_receipt = pc_receipt {
    note: 0,
    time: 0,
    owner: 0,
    permits: 0,
};

subject!("c-concurrency": pc_concurrency,
|limit| {
    pc_concurrency_init(limit, size_of_val(&*limit), black_box(CAPACITY));
    // Taken permanently.
    take(limit, 1, &mut NO_RECEIPT)
},
|n, _now| {
    let mut receipt = NO_RECEIPT;
    match take(limit, n, &mut receipt) {
        PC_OK => pc_concurrency_give_back(limit, 0, n, &raw mut receipt, null_mut()),
        denied => denied,
    }
});

/// Claims a lease. Called twice, but in the program once.
#[inline(never)]
unsafe fn claim(pool: *const pc_lease_pool, n: u32, lease: &mut pc_lease) -> c_int {
    // SAFETY: by the caller.
    unsafe { pc_lease_pool_take(pool, 0, n, PC_NO_DEADLINE, lease) }
}

subject!("c-lease-pool": With<pc_lease_pool, [pc_lease_slot; 4]>,
|both| {
    let (pool, slots) = (&raw mut (*both).0, &raw mut (*both).1);
    let (size, of_slots) = (size_of_val(&*pool), size_of_val(&*slots));
    pc_lease_pool_init(pool, size, slots.cast(), of_slots, black_box(CAPACITY));
    // Taken permanently.
    claim(pool, 1, &mut 0)
},
|n, _now| {
    let (pool, mut lease) = (&raw const (*both).0, 0);
    match claim(pool, n, &mut lease) {
        PC_OK => pc_lease_pool_give_back(pool, lease, null_mut()),
        denied => denied,
    }
});

const KEY: [u8; 4] = [10, 0, 0, 1];

subject!("c-bucket-table": With<pc_bucket_table, [pc_line; 8]>,
|both| {
    let (table, lines) = (&raw mut (*both).0, &raw mut (*both).1);
    let (size, of_lines) = (size_of_val(&*table), size_of_val(&*lines));
    pc_bucket_table_init(table, size, lines.cast(), of_lines, black_box(&BUCKET), 1, 2)
},
|n, now| {
    let (table, key) = (&raw const (*both).0, black_box(&KEY));
    pc_bucket_table_take(table, key.as_ptr().cast(), key.len(), now, n, null_mut())
});
subject!("c-window-table": With<pc_window_table, [pc_line; 8]>,
|both| {
    let (table, lines) = (&raw mut (*both).0, &raw mut (*both).1);
    let (size, of_lines) = (size_of_val(&*table), size_of_val(&*lines));
    pc_window_table_init(table, size, lines.cast(), of_lines, black_box(&FIXED), 1, 2)
},
|n, now| {
    let (table, key) = (&raw const (*both).0, black_box(&KEY));
    pc_window_table_take(table, key.as_ptr().cast(), key.len(), now, n, null_mut())
});
