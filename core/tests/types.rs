//! Every type can be built in a constant, can be shared between threads, and is as small as
//! documented.

#[macro_use]
#[path = "support/limiters.rs"]
mod limiters;

use core::time::Duration;

use limiters::{ForEach, Kind, Subject};

use portcullis_core::keyed::Line;
use portcullis_core::leases::LeaseId;
use portcullis_core::parts::Slice;
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, Clocked, Concurrency, CooldownWindow, Counted, Denied,
    FixedWindow, LeasePool, ManualClock, Penalty, Rate, Retry, SettingsError, SlicedBucket,
    SlidingWindow, StripedBucket, StripedConcurrency, Timestamp, TokenBucket, Unlimited,
    WarmingBucket,
};

const SECOND: Duration = Duration::from_secs(1);

static BUCKET: TokenBucket = TokenBucket::new(Rate::per_second(5), 5);
static WINDOW: FixedWindow = FixedWindow::new(5, SECOND);
static SEGMENTS: SlidingWindow<4> = SlidingWindow::new(5, SECOND, 4);
static PERMITS: Concurrency = Concurrency::new(5);
static NONE: Unlimited = Unlimited::new();
static COUNTED: Counted<TokenBucket> = Counted::new(TokenBucket::new(Rate::per_second(5), 5));
static POOL: LeasePool<Concurrency, 4> = LeasePool::new(Concurrency::new(5));
static CLOCK: ManualClock = ManualClock::new();
static CLOCKED: Clocked<FixedWindow, &ManualClock> =
    Clocked::new(FixedWindow::new(5, SECOND), &CLOCK);

/// Takes the value out of a builder's result in a constant.
macro_rules! constant {
    ($built:expr) => {
        match $built {
            Ok(built) => built,
            Err(_) => panic!("refused"),
        }
    };
}

static NARROW_BUCKET: TokenBucket<u32> = constant!(
    TokenBucket::builder(Rate::per_second(5), 5)
        .stepwise()
        .initial(1)
        .build_on()
);
static NARROW_WINDOW: FixedWindow<u32> = constant!(
    FixedWindow::builder(5, SECOND)
        .started_by_first_request()
        .build_on()
);
static NARROW_SEGMENTS: SlidingWindow<4, u32> = constant!(
    SlidingWindow::builder(5, SECOND, 3)
        .strict()
        .origin(Timestamp::from_secs(1))
        .build_on()
);
static NARROW_PERMITS: Concurrency<u32> = constant!(Concurrency::builder(5).build_on());

/// One limiter of each type of the registry, on both words, in a constant.
macro_rules! constants_of_all {
    ($($name:ident: $type:ty { $($_rest:tt)* })*) => {$(
        const _: () = {
            #[allow(dead_code, reason = "there is a limiter without a word")]
            type W = u64;
            static _WIDE: $type = constant!(limiters::new::$name::<W>(5, SECOND));
        };
        const _: () = {
            #[allow(dead_code, reason = "there is a limiter without a word")]
            type W = u32;
            static _NARROW: $type = constant!(limiters::new::$name::<W>(5, SECOND));
        };
    )*};
}

for_each_limiter!(constants_of_all);

#[test]
fn live_in_statics() {
    let now = Timestamp::from_secs(1);
    assert_eq!(
        (BUCKET.available_at(now), NARROW_BUCKET.available_at(now)),
        (5, 5)
    );
    assert_eq!(
        (WINDOW.available_at(now), NARROW_WINDOW.available_at(now)),
        (5, 5)
    );
    assert_eq!(
        (
            SEGMENTS.available_at(now),
            NARROW_SEGMENTS.available_at(now)
        ),
        (5, 5)
    );
    assert_eq!((PERMITS.available(), NARROW_PERMITS.available()), (5, 5));
    assert!(NONE.try_acquire_at(now, 5).is_ok() && COUNTED.try_acquire_at(now, 5).is_ok());
    assert_eq!((POOL.leases(), CLOCKED.available()), (0, 5));
}

#[test]
fn are_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    struct Shared;
    impl ForEach for Shared {
        fn each<L: Subject>(&mut self, _: Kind, _: impl Fn() -> L) {
            shared::<L>();
        }
    }
    limiters::for_each::<u64>(5, SECOND, &mut Shared);
    limiters::for_each::<u32>(5, SECOND, &mut Shared);
    shared::<Counted<TokenBucket>>();
    shared::<LeasePool<Concurrency, 4>>();
    shared::<Clocked<TokenBucket, ManualClock>>();
    shared::<portcullis_core::Lease<&'static Concurrency>>();
    shared::<portcullis_core::metadata::Name<std::rc::Rc<()>>>();
}

#[test]
fn are_small() {
    assert_eq!(
        [
            size_of::<Denied>(),
            size_of::<Retry>(),
            size_of::<SettingsError>()
        ],
        [16; 3]
    );
    assert_eq!((size_of::<LeaseId>(), size_of::<Timestamp>()), (8, 8));
    assert!(size_of::<TokenBucket<u64>>() <= 80 && size_of::<TokenBucket<u32>>() <= 56);
    assert!(size_of::<FixedWindow<u64>>() <= 80 && size_of::<FixedWindow<u32>>() <= 56);
    let ring = size_of::<SlidingWindow<16>>() - size_of::<SlidingWindow<8>>();
    assert_eq!(ring, 8 * 8, "one word per segment");
    assert!(size_of::<SlidingWindow<8>>() <= 192);
    assert_eq!(
        (size_of::<Concurrency<u64>>(), size_of::<Concurrency<u32>>()),
        (8, 4),
        "one word"
    );
    assert_eq!(size_of::<Unlimited>(), 0);
    assert!(size_of::<SlicedBucket<u64>>() <= 96 && size_of::<Slice<&SlicedBucket>>() <= 32);
    assert_eq!(
        (size_of::<Line>(), align_of::<Line>()),
        (64, 64),
        "eight keys in a cache line"
    );
    let slot =
        (size_of::<LeasePool<Unlimited, 1024>>() - size_of::<LeasePool<Unlimited, 512>>()) / 512;
    assert_eq!(slot, 16);
}

/// The sizes depend on the alignment of cache lines: 128 bytes on x86-64.
#[test]
#[cfg(target_arch = "x86_64")]
fn tuning_lists_the_bytes_of_each_limiter() {
    const TUNING: &str = include_str!("../../docs/tuning.md");
    let sizes = [
        ("`TokenBucket`", size_of::<TokenBucket>()),
        ("`TokenBucket<u32>`", size_of::<TokenBucket<u32>>()),
        ("`AdjustableBucket`", size_of::<AdjustableBucket>()),
        ("`FixedWindow`", size_of::<FixedWindow>()),
        ("`FixedWindow<u32>`", size_of::<FixedWindow<u32>>()),
        ("`AdjustableWindow`", size_of::<AdjustableWindow>()),
        ("`WarmingBucket`", size_of::<WarmingBucket>()),
        ("`WarmingBucket<u32>`", size_of::<WarmingBucket<u32>>()),
        ("`CooldownWindow`", size_of::<CooldownWindow>()),
        ("`SlidingWindow<8>`", size_of::<SlidingWindow<8>>()),
        (
            "`SlidingWindow<8, u32>`",
            size_of::<SlidingWindow<8, u32>>(),
        ),
        (
            "`Concurrency`, acquire and release",
            size_of::<Concurrency>(),
        ),
        ("`Concurrency<u32>`", size_of::<Concurrency<u32>>()),
        (
            "`LeasePool<Concurrency, 16>`, claim and release",
            size_of::<LeasePool<Concurrency, 16>>(),
        ),
        ("`Counted<TokenBucket>`", size_of::<Counted<TokenBucket>>()),
        ("`Penalty<TokenBucket>`", size_of::<Penalty<TokenBucket>>()),
    ];
    for (name, size) in sizes {
        let row = TUNING
            .lines()
            .find(|line| line.starts_with(&format!("| {name} |")) && line.contains("<!-- "))
            .unwrap_or_else(|| panic!("no row of {name}"));
        let bytes = row.split('|').nth(2).map(str::trim);
        assert_eq!(bytes, Some(&*size.to_string()), "{name}");
    }
    let slice = (size_of::<Slice<&SlicedBucket>>(), size_of::<SlicedBucket>());
    assert_eq!(slice, (32, 96));
    assert!(TUNING.contains("| `Slice` of a `SlicedBucket` | 32, plus 96 |"));
    let stripe = size_of::<StripedBucket<16>>() - size_of::<StripedBucket<8>>();
    let permits = size_of::<StripedConcurrency<16>>() - size_of::<StripedConcurrency<8>>();
    assert_eq!(
        (stripe, permits),
        (8 * 128, 8 * 128),
        "128 bytes per stripe"
    );
    let choosing = include_str!("../../docs/choosing.md");
    let says = format!(
        "a `TokenBucket` has {} bytes, and a `Concurrency` limit has {}.",
        size_of::<TokenBucket>(),
        size_of::<Concurrency>()
    );
    assert!(choosing.contains(&says), "docs/choosing.md lacks: {says}");
}
