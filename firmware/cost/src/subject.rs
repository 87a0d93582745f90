//! What is measured, chosen by name: a limiter on 32-bit words in a static, and a call that takes
//! permits and returns whether it was granted them.
#![allow(
    clippy::wildcard_imports,
    dead_code,
    unused_imports,
    reason = "each needs some of it"
)]

#[macro_use]
#[path = "../../../core/tests/support/registry.rs"]
mod registry;

use core::time::Duration;

use portcullis_core::*;

/// The permits of each limiter.
pub(crate) const CAPACITY: u32 = 2_000;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
/// The time in which all permits return.
const TWO_SECONDS: Duration = Duration::from_secs(2);

/// A limiter, and the call, which is not inlined. Before the first call, some permits may have to
/// be taken permanently.
macro_rules! subject {
    ($subject:literal: $type:ty = $limiter:expr, |$limit:ident, $n:ident, $now:ident| $granted:expr $(, $prepare:expr)?) => {
        #[cfg(subject = $subject)]
        pub(crate) use self::chosen::{LIMIT, acquire, prepare};
        #[cfg(subject = $subject)]
        mod chosen {
            use super::*;

            pub(crate) static LIMIT: $type = $limiter;

            #[inline(never)]
            pub(crate) extern "C" fn acquire($limit: &'static $type, $n: u32, nanos: u64) -> bool {
                let $now = Timestamp::from_nanos(nanos);
                $granted
            }

            pub(crate) fn prepare() {
                $(_ = $prepare;)?
            }
        }
    };
}

/// Unwraps in a constant, where a method cannot be called.
macro_rules! built {
    ($builder:expr) => {
        match $builder {
            Ok(limiter) => limiter,
            Err(_) => panic!("does not fit 32 bits"),
        }
    };
}

const fn bucket() -> TokenBucket<u32> {
    built!(TokenBucket::builder(Rate::per_second(1_000), CAPACITY as u64).build_on())
}

/// If permits return by release, one is taken permanently.
macro_rules! registered {
    (by_time, $subject:literal: $type:ty = $limiter:expr) => {
        subject!($subject: $type = $limiter, |limit, n, now| Lease::try_acquire_at(limit, now, n).is_ok());
    };
    (by_release, $subject:literal: $type:ty = $limiter:expr) => {
        subject!($subject: $type = $limiter, |limit, n, now| Lease::try_acquire_at(limit, now, n).is_ok(),
            LIMIT.take_at(Timestamp::ZERO, 1));
    };
}

/// The word of the limiters.
type W = u32;

macro_rules! subjects {
    ($($_limiter:ident: $type:ty {
        on: $_on:tt,
        new: $_new:tt,
        on_board: (|$limit:ident, $time:ident| $new:expr),
        back: $back:ident,
        denial: $_denial:ident,
        refunds: $_refunds:tt,
        saves: $_saves:tt,
        hot_path: $_path:tt,
        counted: $_counted:tt,
        cost: [$($subject:literal)?],
    })*) => {$($(
        registered!($back, $subject: $type = {
            const fn new($limit: u64, $time: Duration) -> Result<$type, SettingsError> {
                $new
            }
            built!(new(CAPACITY as u64, TWO_SECONDS))
        });
    )?)*};
}

for_each_limiter!(subjects);

subject!("token-bucket-retry": TokenBucket<u32> = bucket(), |limit, n, now| match limit.try_acquire_at(now, n) {
    Ok(_) => true,
    Err(denied) => core::hint::black_box(denied.retry(limit)) == Retry::At(now),
});
// Also builds the bucket, with settings that are known only at run time.
subject!("token-bucket-build": TokenBucket<u32> = bucket(), |_limit, n, now| {
    let (rate, burst) = core::hint::black_box((1_000, u64::from(CAPACITY)));
    let builder = TokenBucket::builder(Rate::per_second(rate), burst);
    let built = builder.origin(now).initial(1).build_on::<u32>();
    built.is_ok_and(|bucket| bucket.try_acquire_at(now, n).is_ok())
});
subject!("keyed": Keyed<keyed::TokenBucketRules, [keyed::Line; 16]> = {
        let rules = built!(TokenBucket::builder(Rate::per_second(1_000), CAPACITY as u64).rules());
        Keyed::new(rules, [const { keyed::Line::new() }; 16], keyed::Seed::new())
    },
    |limit, n, now| limit.key(core::hint::black_box(&[10, 0, 0, 1])).try_acquire_at(now, n).is_ok());
subject!("counted-bucket": Counted<TokenBucket<u32>> = Counted::new(bucket()),
    |limit, n, now| limit.try_acquire_at(now, n).is_ok());
subject!("penalised-bucket": Penalty<TokenBucket<u32>, u32> =
    built!(Penalty::builder(SECOND).tick(MILLI).build_on()).around(bucket()),
    |limit, n, now| limit.try_acquire_at(now, n).is_ok());
subject!("all-of-3": AllOf<[TokenBucket<u32>; 3]> = AllOf::new([bucket(), bucket(), bucket()]),
    |limit, n, now| limit.try_acquire_at(now, n).is_ok());
subject!("lease-pool": LeasePool<Concurrency, 16> = LeasePool::new(Concurrency::new(CAPACITY)),
    |limit, n, now| limit.claim_at(now, n, None).is_ok_and(|id| limit.release(id).is_ok()),
    LIMIT.claim_at(Timestamp::ZERO, 1, None));

// Free permits are taken at once and released; otherwise the request waits and is cancelled.
subject!("queue": portcullis_async::Queue<Concurrency, Timeless, portcullis_async::InterruptLock> =
    portcullis_async::Queue::with_lock(Concurrency::new(CAPACITY), Timeless, CAPACITY as u64, portcullis_async::InterruptLock::new()),
    |limit, n, _now| {
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        core::pin::pin!(limit.acquire(n)).poll(&mut context).is_ready()
    },
    LIMIT.try_acquire(1).map(Lease::forget));

#[cfg(in_c)]
pub(crate) use crate::in_c::{LIMIT, acquire, prepare};

/// No limiter: two instructions.
#[cfg(subject = "nothing")]
mod chosen {
    pub(crate) static LIMIT: () = ();

    #[unsafe(naked)]
    pub(crate) extern "C" fn acquire(_limit: &'static (), _n: u32, _nanos: u64) -> bool {
        core::arch::naked_asm!("movs r0, #1", "bx lr")
    }

    pub(crate) fn prepare() {}
}

#[cfg(subject = "nothing")]
pub(crate) use self::chosen::{LIMIT, acquire, prepare};
