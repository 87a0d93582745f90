//! Takes and releases in a signal handler, on the limiter that the interrupted code is using.
//! Bounds hold, no permit is lost, and no call waits for the interrupted one.
//!
//! There is one thread and one timer, without the test harness, whose other threads would get the
//! signals. Time is a counter that both contexts advance, so that the interrupted call may have a
//! stale `now`.

#[cfg(not(unix))]
fn main() {}

#[cfg(unix)]
fn main() {
    let asked = |what: &str| std::env::args().any(|argument| argument == what);
    if asked("--list") || asked("--ignored") {
        return;
    }
    interrupted::run();
}

#[cfg(unix)]
mod interrupted {
    use core::hint::black_box;
    use core::ptr;
    use core::sync::atomic::Ordering::{Relaxed, SeqCst};
    use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, compiler_fence};
    use core::time::Duration;
    use std::time::Instant;

    use portcullis_core::keyed::{ConcurrencyRules, Line, Seed, TokenBucketRules};
    use portcullis_core::leases::LeaseId;
    use portcullis_core::parts::Stripe;
    use portcullis_core::state::{Carry, ChangeError, Word};
    use portcullis_core::{
        AdjustableBucket, AllOf, Concurrency, FixedWindow, KeyedList, LeasePool, Limiter, Rate,
        SlidingWindow, StripedBucket, StripedConcurrency, Timestamp, TokenBucket,
    };

    /// An object that two contexts use at once, and its invariant.
    trait Subject: Sync {
        fn name(&self) -> &'static str;
        /// What the main thread does repeatedly.
        fn work(&self);
        /// What the signal handler does.
        fn interrupt(&self);
        /// Panics if a bound was exceeded, or a permit lost, once both contexts are done.
        fn check(&self);
    }

    static NOW: AtomicU64 = AtomicU64::new(0);
    /// Whether the main thread is in a call of the subject.
    static INSIDE: AtomicBool = AtomicBool::new(false);
    static SIGNALS: AtomicU64 = AtomicU64::new(0);
    static LANDED: AtomicU64 = AtomicU64::new(0);
    static CURRENT: AtomicUsize = AtomicUsize::new(0);

    /// A call that the signals should interrupt.
    fn call<T>(f: impl FnOnce() -> T) -> T {
        INSIDE.store(true, Relaxed);
        compiler_fence(SeqCst);
        let result = black_box(f());
        compiler_fence(SeqCst);
        INSIDE.store(false, Relaxed);
        result
    }

    extern "C" fn on_alarm(_: libc::c_int) {
        SIGNALS.fetch_add(1, Relaxed);
        LANDED.fetch_add(INSIDE.load(Relaxed).into(), Relaxed);
        SUBJECTS[CURRENT.load(Relaxed)].interrupt();
    }

    /// A limiter whose permits return by time, and how many it may grant up to a time.
    struct Replenishing<L> {
        name: &'static str,
        limiter: L,
        bound: fn(u64) -> u64,
        granted: AtomicU64,
    }

    impl<L: Limiter + Sync> Replenishing<L> {
        fn take(&self, n: u32) {
            let now = Timestamp::from_nanos(NOW.fetch_add(1, Relaxed));
            if self.limiter.take_at(now, n).is_ok() {
                self.granted.fetch_add(n.into(), Relaxed);
            }
        }
    }

    impl<L: Limiter + Sync> Subject for Replenishing<L> {
        fn name(&self) -> &'static str {
            self.name
        }

        fn work(&self) {
            call(|| self.take(1));
        }

        fn interrupt(&self) {
            for n in [3, 1, 2] {
                self.take(n);
            }
        }

        fn check(&self) {
            let (granted, bound) = (
                self.granted.load(Relaxed),
                (self.bound)(NOW.load(Relaxed) - 1),
            );
            assert!(
                granted <= bound,
                "{}: {granted} granted, {bound} at most",
                self.name
            );
            // Permits are requested all the time, so that one too many would show.
            assert!(
                granted + granted / 50 + 100 >= bound,
                "{}: {granted} granted of {bound}",
                self.name
            );
        }
    }

    const LIMIT: u32 = 4;

    struct Permits<W: Word> {
        name: &'static str,
        limiter: Concurrency<W>,
        /// What the handler holds from one signal to the next.
        held: AtomicU32,
    }

    impl<W: Word> Subject for Permits<W> {
        fn name(&self) -> &'static str {
            self.name
        }

        fn work(&self) {
            let lease = call(|| self.limiter.try_acquire(2));
            assert!(self.limiter.in_use() <= LIMIT, "{}", self.name);
            call(|| drop(lease));
        }

        fn interrupt(&self) {
            let held = self.held.load(Relaxed);
            if held > 0 {
                self.held.store(0, Relaxed);
                self.limiter.release(held);
            } else if let Ok(lease) = self.limiter.try_acquire(3) {
                self.held.store(lease.forget(), Relaxed);
            }
            assert!(self.limiter.in_use() <= LIMIT, "{}", self.name);
        }

        fn check(&self) {
            assert_eq!(
                self.limiter.in_use(),
                self.held.load(Relaxed),
                "{}: permits were lost",
                self.name
            );
        }
    }

    struct Pool {
        leases: LeasePool<Concurrency, 3>,
        claimed: AtomicU64,
        returned: AtomicU64,
        /// The id that the handler holds from one signal to the next.
        held: AtomicU64,
    }

    impl Pool {
        fn claim(&self, n: u32, deadline: Option<u64>) -> Option<LeaseId> {
            let now = NOW.fetch_add(1, Relaxed);
            let deadline = deadline.map(|after| Timestamp::from_nanos(now + after));
            let id = self
                .leases
                .claim_at(Timestamp::from_nanos(now), n, deadline)
                .ok()?;
            self.claimed.fetch_add(n.into(), Relaxed);
            Some(id)
        }

        fn release(&self, id: LeaseId) {
            if let Ok(n) = self.leases.release(id) {
                self.returned.fetch_add(n.into(), Relaxed);
                assert!(self.leases.release(id).is_err(), "released twice");
            }
        }

        fn sweep(&self, now: u64) {
            self.returned
                .fetch_add(self.leases.sweep(Timestamp::from_nanos(now)), Relaxed);
        }
    }

    const NONE: u64 = u64::MAX;

    impl Subject for Pool {
        fn name(&self) -> &'static str {
            "lease pool"
        }

        fn work(&self) {
            let id = call(|| self.claim(1, None));
            // A holder that never releases.
            call(|| self.claim(1, Some(10)));
            assert!(self.leases.limiter().in_use() <= LIMIT);
            if let Some(id) = id {
                call(|| self.release(id));
            }
            call(|| self.sweep(NOW.load(Relaxed)));
        }

        fn interrupt(&self) {
            let held = self.held.swap(NONE, Relaxed);
            if held != NONE {
                self.release(LeaseId::from_bits(held));
            }
            self.sweep(NOW.load(Relaxed));
            if let Some(id) = self.claim(2, Some(1_000)) {
                self.held.store(id.to_bits(), Relaxed);
            }
            assert!(self.leases.limiter().in_use() <= LIMIT);
        }

        fn check(&self) {
            self.sweep(u64::MAX - 1);
            let (claimed, returned) = (self.claimed.load(Relaxed), self.returned.load(Relaxed));
            assert_eq!(
                (self.leases.leases(), self.leases.limiter().in_use()),
                (0, 0),
                "permits were lost"
            );
            assert_eq!(claimed, returned, "permits were lost");
        }
    }

    /// A bucket whose settings the main thread and the handler both change, each in the middle of
    /// the other's calls.
    struct Adjusted {
        bucket: AdjustableBucket,
        granted: AtomicU64,
        /// Changes by the handler in the middle of a change by the main thread.
        busy: AtomicU64,
    }

    impl Adjusted {
        fn now() -> Timestamp {
            Timestamp::from_nanos(NOW.fetch_add(1, Relaxed))
        }

        fn take(&self) {
            if self.bucket.try_acquire_at(Self::now(), 1).is_ok() {
                self.granted.fetch_add(1, Relaxed);
            }
        }

        /// Changes the burst, at the same rate.
        fn adjust(&self, burst: u64) {
            match self
                .bucket
                .adjust_at(Self::now(), BUCKET, burst, Carry::Keep)
            {
                Ok(()) => {}
                Err(ChangeError::Busy) => _ = self.busy.fetch_add(1, Relaxed),
                Err(error) => panic!("{error}"),
            }
        }
    }

    impl Subject for Adjusted {
        fn name(&self) -> &'static str {
            "adjustable bucket"
        }

        fn work(&self) {
            call(|| self.take());
            call(|| self.adjust(3));
            let reserved = self
                .bucket
                .reserve_at(Self::now(), 1, Duration::from_nanos(5));
            if let Ok(reserved) = reserved {
                let permits = reserved.permits();
                let back = call(|| reserved.cancel_at(Self::now()));
                // Permits that are not refunded count as used.
                self.granted.fetch_add((permits - back).into(), Relaxed);
            }
        }

        fn interrupt(&self) {
            self.take();
            self.adjust(5);
            self.take();
        }

        fn check(&self) {
            let (granted, bound) = (self.granted.load(Relaxed), by_rate(NOW.load(Relaxed) + 10));
            assert!(granted <= bound, "{granted} granted, {bound} at most");
            // Changes to the smaller burst lose what does not fit.
            assert!(4 * granted + 100 >= bound, "{granted} granted of {bound}");
            assert!(
                self.busy.load(Relaxed) > 0,
                "no change was interrupted by another one"
            );
        }
    }

    /// Two limits in one composition, used by the main thread and the handler in opposite orders.
    struct Pair {
        first: Concurrency,
        second: Concurrency,
    }

    impl Subject for Pair {
        fn name(&self) -> &'static str {
            "two limits as one"
        }

        fn work(&self) {
            let limits = AllOf::new((&self.first, &self.second));
            let lease = call(|| limits.try_acquire_at(Timestamp::ZERO, 2));
            call(|| drop(lease));
        }

        fn interrupt(&self) {
            let lease = AllOf::new((&self.second, &self.first)).into_lease_at(Timestamp::ZERO, 1);
            assert!(self.first.in_use() <= 2 && self.second.in_use() <= 2);
            drop(lease);
        }

        fn check(&self) {
            assert_eq!(
                (self.first.in_use(), self.second.in_use()),
                (0, 0),
                "permits were lost"
            );
        }
    }

    /// Two tables with two limits for each key. In the second one, entries pass from key to key all
    /// the time, because its limits are idle as soon as their permits are back.
    struct Lists {
        rates: KeyedList<(TokenBucketRules, ConcurrencyRules), [Line; 2]>,
        permits: KeyedList<[ConcurrencyRules; 2], [Line; 2]>,
        granted: AtomicU64,
        next: AtomicU32,
    }

    impl Lists {
        /// Takes from key 0, which both contexts use, and from a key that changes. Holds the
        /// permits of the second table while `inside` runs.
        fn take(&self, n: u32, inside: impl FnOnce()) {
            let now = Timestamp::from_nanos(NOW.fetch_add(1, Relaxed));
            if let Ok(_lease) = self.rates.key(&0_u32).try_acquire_each_at(now, n) {
                self.granted.fetch_add(n.into(), Relaxed);
            }
            let other = self.next.fetch_add(1, Relaxed) % 40;
            let leases = [0, other].map(|key| self.permits.key(&key).try_acquire_at(now, n));
            inside();
            drop(leases);
        }
    }

    impl Subject for Lists {
        fn name(&self) -> &'static str {
            "lists of limits by key"
        }

        fn work(&self) {
            call(|| self.take(1, || ()));
        }

        fn interrupt(&self) {
            self.take(1, || self.take(2, || ()));
        }

        fn check(&self) {
            let bound = 5 + NOW.load(Relaxed) / 1_000;
            let granted = self.granted.load(Relaxed);
            assert!(granted <= bound, "{granted} granted, {bound} at most");
            assert!(granted > bound / 4, "{granted} granted of {bound}");
            let statistics = self.permits.statistics_at(Timestamp::MAX);
            assert!(
                statistics.replaced > 1_000,
                "no entry passed to another key"
            );
            assert_eq!(statistics.live, 0, "permits were lost");
            let at_once = self
                .rates
                .key(&0_u32)
                .explain_each_at(Timestamp::ZERO, 1)
                .nth(1);
            assert_eq!(at_once.map(|detail| detail.available), Some(LIMIT.into()));
        }
    }

    /// Two striped limiters. Both contexts use all stripes, in turn, so that each draws, takes what
    /// another stripe holds, and gives back to another one, in the middle of the same by the other
    /// context.
    struct Stripes {
        bucket: StripedBucket<4>,
        permits: StripedConcurrency<4>,
        granted: AtomicU64,
        /// The permits that both contexts hold.
        out: AtomicU32,
        /// What the handler holds from one signal to the next.
        held: AtomicU32,
        next: AtomicUsize,
    }

    const STRIPED: u32 = 300;
    const STRIPED_BURST: u64 = 7_000;

    impl Stripes {
        fn next(&self) -> usize {
            self.next.fetch_add(1, Relaxed)
        }

        fn take_from_bucket(&self, n: u32) -> bool {
            let now = Timestamp::from_nanos(NOW.fetch_add(1, Relaxed));
            let stripe = Stripe::of(&self.bucket, self.next());
            let granted = stripe.take_at(now, n).is_ok();
            if granted {
                self.granted.fetch_add(n.into(), Relaxed);
            }
            granted
        }

        /// Takes all permits of the bucket, and lets it fill again.
        fn drain_bucket(&self) {
            for n in [500, 50, 5, 1] {
                while self.take_from_bucket(n) {}
            }
            let granted = self.granted.load(Relaxed);
            let bound = STRIPED_BURST / 2 + NOW.load(Relaxed) * 7 / 10;
            assert!(granted <= bound, "{granted} granted, {bound} at most");
            // None is lost, so that one too many would show. The bucket counts whole ticks.
            let tick = self.bucket.timing().tick.as_nanos() as u64;
            assert!(
                granted + tick * 7 / 10 + 10 > bound,
                "{granted} granted of {bound}"
            );
            // It never fills: then some permits would not come in.
            NOW.fetch_add(STRIPED_BURST, Relaxed);
        }

        fn take(&self, n: u32) -> u32 {
            let stripe = Stripe::of(&self.permits, self.next());
            if stripe.take_at(Timestamp::ZERO, n).is_err() {
                return 0;
            }
            let out = n + self.out.fetch_add(n, Relaxed);
            assert!(out <= STRIPED, "{out} permits are out");
            n
        }

        fn release(&self, n: u32) {
            if n > 0 {
                self.out.fetch_sub(n, Relaxed);
                Stripe::of(&self.permits, self.next()).release(n);
            }
        }
    }

    impl Subject for Stripes {
        fn name(&self) -> &'static str {
            "stripes"
        }

        fn work(&self) {
            if self.next().is_multiple_of(1_024) {
                self.drain_bucket();
            }
            call(|| self.take_from_bucket(3));
            let taken = call(|| self.take(3));
            call(|| self.release(taken));
        }

        fn interrupt(&self) {
            for n in [5, 500, 1] {
                self.take_from_bucket(n);
            }
            // All that is left, which other stripes hold.
            let held = self.held.swap(0, Relaxed);
            let mut taken = self.take(100);
            while let more @ 1.. = self.take(7) {
                taken += more;
            }
            self.release(taken);
            self.release(held);
            self.held.store(self.take(60), Relaxed);
        }

        fn check(&self) {
            let held = self.held.load(Relaxed);
            assert_eq!(self.out.load(Relaxed), held);
            assert_eq!(self.permits.in_use(), held, "permits were lost");
            assert!(self.permits.try_acquire(STRIPED - held).is_ok());
            assert!(self.permits.try_acquire(STRIPED - held + 1).is_err());
        }
    }

    const fn replenishing<L>(
        name: &'static str,
        limiter: L,
        bound: fn(u64) -> u64,
    ) -> Replenishing<L> {
        Replenishing {
            name,
            limiter,
            bound,
            granted: AtomicU64::new(0),
        }
    }

    const BUCKET: Rate = Rate::new(7, Duration::from_nanos(10));
    const WINDOW: u64 = 1_000;

    fn by_rate(now: u64) -> u64 {
        5 + now * 7 / 10
    }

    fn by_window(now: u64) -> u64 {
        u64::from(LIMIT) * (now / WINDOW + 1)
    }

    static BUCKET_64: Replenishing<TokenBucket> = replenishing(
        "token bucket, 64 bits",
        TokenBucket::new(BUCKET, 5),
        by_rate,
    );
    static FIXED_64: Replenishing<FixedWindow> = replenishing(
        "fixed window, 64 bits",
        FixedWindow::new(LIMIT as u64, Duration::from_nanos(WINDOW)),
        by_window,
    );
    static SLIDING_64: Replenishing<SlidingWindow<4>> = replenishing(
        "sliding window, 64 bits",
        SlidingWindow::new(LIMIT as u64, Duration::from_nanos(WINDOW), 4),
        by_window,
    );
    static BUCKET_32: Replenishing<TokenBucket<u32>> = replenishing(
        "token bucket, 32 bits",
        match TokenBucket::builder(Rate::new(1, Duration::from_nanos(2)), 5)
            .tick(Duration::from_nanos(1))
            .build_on()
        {
            Ok(bucket) => bucket,
            Err(_) => panic!("settings must fit"),
        },
        |now| 5 + now / 2,
    );
    static FIXED_32: Replenishing<FixedWindow<u32>> = replenishing(
        "fixed window, 32 bits",
        match FixedWindow::builder(LIMIT as u64, Duration::from_nanos(WINDOW)).build_on() {
            Ok(window) => window,
            Err(_) => panic!("settings must fit"),
        },
        by_window,
    );
    static SLIDING_32: Replenishing<SlidingWindow<4, u32>> = replenishing(
        "sliding window, 32 bits",
        match SlidingWindow::builder(LIMIT as u64, Duration::from_nanos(WINDOW), 4).build_on() {
            Ok(window) => window,
            Err(_) => panic!("settings must fit"),
        },
        by_window,
    );
    static PERMITS_32: Permits<u32> = Permits {
        name: "concurrency, 32 bits",
        limiter: match Concurrency::builder(LIMIT).build_on() {
            Ok(limit) => limit,
            Err(_) => panic!("settings must fit"),
        },
        held: AtomicU32::new(0),
    };
    static PERMITS_64: Permits<u64> = Permits {
        name: "concurrency, 64 bits",
        limiter: Concurrency::new(LIMIT),
        held: AtomicU32::new(0),
    };
    static POOL: Pool = Pool {
        leases: LeasePool::new(Concurrency::new(LIMIT)),
        claimed: AtomicU64::new(0),
        returned: AtomicU64::new(0),
        held: AtomicU64::new(NONE),
    };

    static ADJUSTED: Adjusted = Adjusted {
        bucket: match AdjustableBucket::builder(BUCKET, 5)
            .tick(Duration::from_nanos(1))
            .debt(9)
            .build()
        {
            Ok(bucket) => bucket,
            Err(_) => panic!("settings must fit"),
        },
        granted: AtomicU64::new(0),
        busy: AtomicU64::new(0),
    };
    static PAIR: Pair = Pair {
        first: Concurrency::new(2),
        second: Concurrency::new(2),
    };

    static LISTS: Lists = Lists {
        rates: KeyedList::new(
            (
                TokenBucketRules::new(Rate::new(1, Duration::from_micros(1)), 5),
                ConcurrencyRules::new(LIMIT),
            ),
            [const { Line::new() }; 2],
            Seed::new(),
        ),
        permits: KeyedList::new(
            [ConcurrencyRules::new(4), ConcurrencyRules::new(3)],
            [const { Line::new() }; 2],
            Seed::new(),
        ),
        granted: AtomicU64::new(0),
        next: AtomicU32::new(0),
    };

    static STRIPES: Stripes = Stripes {
        bucket: match StripedBucket::builder(BUCKET, STRIPED_BURST)
            .initial(STRIPED_BURST / 2)
            .build()
        {
            Ok(bucket) => bucket,
            Err(_) => panic!("settings must fit"),
        },
        permits: StripedConcurrency::new(STRIPED),
        granted: AtomicU64::new(0),
        out: AtomicU32::new(0),
        held: AtomicU32::new(0),
        next: AtomicUsize::new(0),
    };

    static SUBJECTS: [&dyn Subject; 13] = [
        &BUCKET_64,
        &BUCKET_32,
        &FIXED_64,
        &FIXED_32,
        &SLIDING_64,
        &SLIDING_32,
        &PERMITS_64,
        &PERMITS_32,
        &POOL,
        &ADJUSTED,
        &PAIR,
        &LISTS,
        &STRIPES,
    ];

    /// Sends the process a SIGALRM every `micros` microseconds; with 0, stops.
    fn alarm_every(micros: libc::suseconds_t) {
        let interval = libc::timeval {
            tv_sec: 0,
            tv_usec: micros,
        };
        let timer = libc::itimerval {
            it_interval: interval,
            it_value: interval,
        };
        // SAFETY: `timer` is valid for the call.
        let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
        assert_eq!(set, 0);
    }

    pub(crate) fn run() {
        // SAFETY: the handler only does atomic operations. It also panics if a check fails, which
        // ends the test in any case.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_alarm as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(
                libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()),
                0
            );
        }
        println!("\nrunning {} tests", SUBJECTS.len());
        for (index, subject) in SUBJECTS.iter().enumerate() {
            CURRENT.store(index, Relaxed);
            NOW.store(0, Relaxed);
            SIGNALS.store(0, Relaxed);
            LANDED.store(0, Relaxed);
            let begin = Instant::now();
            // Longer than a signal takes on a slow virtual machine: otherwise the next signal is
            // pending when one returns, and the program makes no progress.
            alarm_every(100);
            while begin.elapsed() < Duration::from_millis(300)
                || LANDED.load(Relaxed) < 1_000 && begin.elapsed() < Duration::from_secs(5)
            {
                for _ in 0..1_000 {
                    subject.work();
                }
            }
            alarm_every(0);
            let (signals, landed) = (SIGNALS.load(Relaxed), LANDED.load(Relaxed));
            subject.check();
            assert!(
                landed > 0,
                "{}: none of {signals} signals landed inside a call",
                subject.name()
            );
            println!(
                "test {} ... ok ({landed} of {signals} signals landed inside a call)",
                subject.name()
            );
        }
        println!(
            "\ntest result: ok. {} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            SUBJECTS.len()
        );
    }
}
