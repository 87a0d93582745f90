//! A denial writes nothing. Limiters on read-only pages deny a million requests and answer all
//! queries without a fault; a grant faults.
#![cfg(unix)]

#[path = "support/limiters.rs"]
mod limiters;

use core::fmt::Debug;
use core::hint::black_box;
use core::mem::size_of;
use core::ptr;
use core::time::Duration;

use limiters::{Back, Denial, ForEach, Kind, Subject};
use portcullis_core::leases::{ClaimError, StaleId};
use portcullis_core::{
    AdjustableBucket, AllOf, Concurrency, FixedWindow, LeasePool, Limiter, LimiterExt, Rate,
    SlidingWindow, Timestamp, TokenBucket, metadata,
};

/// A value on pages of its own, which can be made read-only.
struct ReadOnly<T> {
    page: *mut T,
}

impl<T> ReadOnly<T> {
    fn new(value: T) -> Self {
        // SAFETY: the mapping is fresh and private, and written once as a `T` before it is
        // protected. Pages are aligned to more than any `T` here needs.
        unsafe {
            let page = libc::mmap(
                ptr::null_mut(),
                size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            let page = page.cast::<T>();
            page.write(value);
            assert_eq!(
                libc::mprotect(page.cast(), size_of::<T>(), libc::PROT_READ),
                0
            );
            Self { page }
        }
    }

    fn get(&self) -> &T {
        // SAFETY: written in `new`, and mapped until the drop.
        unsafe { &*self.page }
    }

    /// Runs `f` on the value in a child process; returns the signal that ended it, if any.
    fn signal_of(&self, f: impl FnOnce(&T)) -> Option<i32> {
        // SAFETY: the child calls only `f`, which takes no lock, and `_exit`.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                // Without the runtime's handler, which would print.
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                f(self.get());
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
        }
    }
}

impl<T> Drop for ReadOnly<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no value here owns anything.
        unsafe { libc::munmap(self.page.cast(), size_of::<T>()) };
    }
}

const DENIALS: u32 = 1_000_000;

/// Denies a million times at `now`, and queries the retry each time; then faults on a grant at
/// `granted`.
fn denies_without_writing<L: Limiter + Debug>(
    limiter: L,
    now: Timestamp,
    granted: Option<Timestamp>,
) {
    let limiter = ReadOnly::new(limiter);
    let denials = if cfg!(debug_assertions) {
        DENIALS / 10
    } else {
        DENIALS
    };
    for n in 0..denials {
        let denied = limiter
            .get()
            .take_at(now, black_box(n & 1))
            .expect_err("nothing left");
        black_box(limiter.get().retry(denied));
    }
    let limit = limiter.get();
    let denied = limit.take_at(now, u32::MAX).unwrap_err();
    black_box((
        limit.retry(denied),
        limit.available_at(now),
        limit.idle_at(now),
        limit.capacity(),
    ));
    black_box(metadata::names(limit, now, Some(denied)).count());
    assert!(!format!("{limit:?}").is_empty());
    if let Some(granted) = granted {
        assert!(
            limit.take_at(granted, 0).is_ok(),
            "a probe writes nothing either"
        );
        let signal = limiter.signal_of(|limit| _ = black_box(limit.take_at(granted, 1)));
        assert!(
            matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)),
            "a grant wrote nothing, so this test shows nothing: {signal:?}"
        );
    }
    assert_eq!(
        limiter.signal_of(|limit| _ = black_box(limit.take_at(now, 1))),
        None
    );
}

const SECOND: Duration = Duration::from_secs(1);

/// All limiters whose denials have no effect.
#[test]
fn every_limiter_denies_without_writing() {
    struct Denies(u32);
    impl ForEach for Denies {
        fn each<L: Subject>(&mut self, kind: Kind, new: impl Fn() -> L) {
            if kind.back == Back::always || kind.denial != Denial::writes_nothing {
                return;
            }
            let limiter = new();
            limiter.take_at(Timestamp::ZERO, 1).unwrap();
            let granted = (kind.back == Back::by_time).then_some(Timestamp::from_secs(1));
            denies_without_writing(limiter, Timestamp::from_millis(999), granted);
            self.0 += 1;
        }
    }
    let mut denies = Denies(0);
    limiters::for_each::<u64>(1, SECOND, &mut denies);
    limiters::for_each::<u32>(1, SECOND, &mut denies);
    assert!(denies.0 > 10);
}

#[test]
fn a_token_bucket_denies_without_writing() {
    let at = Timestamp::from_millis;
    let bucket = TokenBucket::new(Rate::per_second(1), 3);
    bucket.take_at(at(0), 3).unwrap();
    denies_without_writing(bucket, at(999), Some(at(1_000)));

    let narrow = TokenBucket::builder(Rate::per_second(1), 3)
        .stepwise()
        .build_on::<u32>()
        .unwrap();
    narrow.take_at(at(5_000), 3).unwrap();
    // Stale timestamps, too.
    denies_without_writing(narrow, at(4_000), Some(at(6_000)));
}

#[test]
fn an_adjustable_bucket_denies_without_writing() {
    let at = Timestamp::from_millis;
    let bucket = AdjustableBucket::new(Rate::per_second(1), 3);
    bucket.take_at(at(0), 3).unwrap();
    denies_without_writing(bucket, at(999), Some(at(1_000)));

    let builder = AdjustableBucket::builder(Rate::per_second(1), 3).debt(3);
    let narrow = builder.build_on::<u32>().unwrap();
    narrow.force_at(at(5_000), 5).unwrap();
    denies_without_writing(narrow, at(7_999), Some(at(8_000)));
}

#[test]
fn a_composition_denies_without_writing() {
    let at = Timestamp::from_millis;
    let (bucket, window) = (
        TokenBucket::new(Rate::per_second(1), 3),
        FixedWindow::new(9, SECOND),
    );
    bucket.take_at(at(0), 3).unwrap();
    let limits = ReadOnly::new((window, bucket));
    let all = AllOf::new(limits.get());
    for _ in 0..DENIALS {
        let denied = all
            .try_acquire_at(at(999), 1)
            .expect_err("nothing left in the bucket");
        assert_eq!(denied.index, 1);
        black_box(all.retry(denied));
    }
    assert_eq!(all.available_at(at(999)), 0);
    let signal = limits.signal_of(|limits| drop(AllOf::new(limits).try_acquire_at(at(1_000), 1)));
    assert!(
        matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)),
        "{signal:?}"
    );
}

#[test]
fn a_fixed_window_denies_without_writing() {
    let at = Timestamp::from_millis;
    let window = FixedWindow::new(3, SECOND);
    window.take_at(at(0), 3).unwrap();
    denies_without_writing(window, at(999), Some(at(1_000)));

    let builder = FixedWindow::builder(3, SECOND).started_by_first_request();
    let started = builder.build_on::<u32>().unwrap();
    started.take_at(at(5_500), 3).unwrap();
    denies_without_writing(started, at(6_000), Some(at(6_500)));
}

#[test]
fn a_sliding_window_denies_without_writing() {
    let at = Timestamp::from_millis;
    let window = SlidingWindow::<4>::new(3, SECOND, 4);
    window.take_at(at(0), 3).unwrap();
    // In a segment that no request has rolled to.
    denies_without_writing(window, at(999), Some(at(1_000)));

    let builder = SlidingWindow::<4>::builder(3, SECOND, 3).strict();
    let strict = builder.build_on::<u32>().unwrap();
    strict.take_at(at(0), 1).unwrap();
    strict.take_at(at(700), 2).unwrap();
    // Some permits, but too few, have left the window by then.
    denies_without_writing(strict, at(900), Some(at(1_400)));
}

#[test]
fn a_concurrency_limit_denies_without_writing() {
    let limit = Concurrency::new(3);
    let held = limit.try_acquire(3).unwrap().forget();
    assert_eq!(held, 3);
    denies_without_writing(limit, Timestamp::ZERO, None);

    let free = ReadOnly::new(Concurrency::builder(3).build_on::<u32>().unwrap());
    assert!(free.get().try_acquire(0).is_ok(), "a probe");
    let signal = free.signal_of(|limit| _ = black_box(limit.take_at(Timestamp::ZERO, 1)));
    assert!(
        matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)),
        "{signal:?}"
    );
}

#[test]
fn a_full_pool_and_a_stale_id_write_nothing() {
    let pool: LeasePool<Concurrency, 2> = LeasePool::new(Concurrency::new(3));
    let stale = pool.claim_at(Timestamp::ZERO, 1, None).unwrap();
    pool.release(stale).unwrap();
    let held = [(); 2].map(|()| pool.claim_at(Timestamp::ZERO, 1, None).unwrap());
    let pool = ReadOnly::new(pool);
    for _ in 0..DENIALS {
        assert_eq!(
            pool.get().claim_at(Timestamp::ZERO, 1, None),
            Err(ClaimError::PoolFull { slots: 2 })
        );
        assert_eq!(pool.get().release(black_box(stale)), Err(StaleId));
    }
    assert_eq!(
        (pool.get().sweep(Timestamp::MAX), pool.get().leases()),
        (0, 2)
    );
    let signal = pool.signal_of(|pool| _ = black_box(pool.release(held[0])));
    assert!(
        matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)),
        "{signal:?}"
    );
}

#[test]
fn a_pool_whose_limiter_denies_takes_a_slot_and_frees_it() {
    let pool: LeasePool<Concurrency, 2> = LeasePool::new(Concurrency::new(1));
    pool.claim_at(Timestamp::ZERO, 1, None).unwrap();
    assert!(matches!(
        pool.claim_at(Timestamp::ZERO, 1, None),
        Err(ClaimError::Denied(_))
    ));
    assert_eq!(pool.leases(), 1);
    let signal = ReadOnly::new(pool)
        .signal_of(|pool| _ = black_box(pool.claim_at(Timestamp::ZERO, 1, None)));
    assert!(
        matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)),
        "{signal:?}"
    );
}
