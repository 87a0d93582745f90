//! A token bucket in stripes: the plain bucket's bound and permits, wherever they lie.

#[path = "support/account.rs"]
mod account;

#[path = "support/allocations.rs"]
mod allocations;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/permits.rs"]
mod permits;
#[path = "support/soak.rs"]
mod soak;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::sync::Mutex;

use account::Account;
use allocations::allocations;
use draws::Draws;
use permits::permits;
use portcullis_core::builder::Setting;
use portcullis_core::limiter::Receipt;
use portcullis_core::parts::Stripe;
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Denied, Limiter, LimiterExt, Rate, Retry, SettingsError, StripedBucket, Timestamp,
    TokenBucket,
};
use soak::rounds;

const SECOND: Duration = Duration::from_secs(1);

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const fn ns(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn seeded(seed: u64) -> Draws<'static> {
    Draws::Seeded {
        state: seed,
        steps: 0,
    }
}

/// Runs `$check` on both words.
macro_rules! on_both {
    ($check:ident) => {
        $check::<u64>();
        $check::<u32>();
    };
}

fn take<L: Limiter + ?Sized>(limiter: &L, now: Timestamp, n: u32) -> u32 {
    limiter.take_at(now, n).map_or(0, |_| n)
}

fn bucket<const N: usize, W: Word>(rate: Rate, burst: u64) -> StripedBucket<N, W> {
    StripedBucket::builder(rate, burst).build_on().unwrap()
}

/// Returns `burst` if `taken` is what is granted of a full bucket at one instant. Stripes with a
/// 32-bit word settle until the end of a span, in which a 64th comes in.
fn spared<W: Word>(taken: u64, burst: u64) -> u64 {
    if W::BITS == 32 && (burst - burst / 60..=burst).contains(&taken) {
        burst
    } else {
        taken
    }
}

// Scarce permits.

#[test]
fn where_permits_are_scarce_it_decides_as_a_token_bucket_does() {
    fn check<W: Word>(rate: Rate, burst: u64) {
        let striped = bucket::<8, W>(rate, burst);
        let plain = TokenBucket::builder(rate, burst)
            .tick(striped.timing().tick)
            .build_on::<W>()
            .unwrap();
        let mut draws = seeded(burst);
        let (mut clock, mut denials) = (0, 0);
        for _ in 0..5_000 {
            clock += draws.magnitude(3_000_000_000);
            let now = ns(clock - draws.magnitude(clock.min(1_000_000_000)));
            let n = draws.within(0, burst + 1) as u32;
            let stripe = Stripe::of(&striped, draws.below(8) as usize);
            assert_eq!(stripe.peek_at(now, n), plain.peek_at(now, n));
            let (one, other) = (stripe.take_at(now, n), plain.take_at(now, n));
            assert_eq!(one.as_ref().err(), other.as_ref().err());
            match (one, other) {
                (Ok(one), Ok(other)) if draws.once_in(3) && n > 0 => {
                    assert_eq!(
                        striped.refund_at(now, n, one).permits,
                        plain.refund_at(now, n, other).permits
                    );
                }
                (Err(denied), _) => {
                    denials += 1;
                    assert_eq!(denied.retry(&stripe), denied.retry(&plain));
                }
                _ => {}
            }
            assert_eq!(striped.available_at(now), plain.available_at(now));
            assert_eq!(striped.idle_at(now), plain.idle_at(now));
            assert_eq!(striped.held(), 0, "stripes hold nothing");
        }
        assert!(denials > 100);
    }
    for (rate, burst) in [
        (Rate::per_second(5), 10),
        (Rate::per_second(5), 1),
        (Rate::per_minute(7), 3),
        (Rate::per_second(97), 255),
        (Rate::ZERO, 4),
    ] {
        check::<u64>(rate, burst);
        check::<u32>(rate, burst);
    }
}

#[test]
fn a_bucket_that_is_drained_holds_nothing_in_stripes_and_decides_as_a_token_bucket_does() {
    fn check<W: Word>() {
        // Full, it draws; from the first denial on it is a plain bucket.
        let rate = Rate::per_second(5);
        let striped = bucket::<8, W>(rate, 2_000);
        let mut taken = 0;
        for i in (0..8).cycle() {
            match take(&Stripe::of(&striped, i), at(0), 1) {
                0 => break,
                n => taken += u64::from(n),
            }
        }
        assert_eq!((spared::<W>(taken, 2_000), striped.held()), (2_000, 0));
        if W::BITS == 32 {
            // What comes in until the end of the span is settled.
            return;
        }
        let plain = TokenBucket::builder(rate, 2_000)
            .initial(0)
            .tick(striped.timing().tick)
            .build_on::<W>()
            .unwrap();
        let (mut draws, mut clock) = (seeded(7), 0);
        for _ in 0..5_000 {
            clock += draws.magnitude(2_000_000_000);
            let (now, n) = (ns(clock), draws.within(0, 30) as u32);
            let stripe = Stripe::of(&striped, draws.below(8) as usize);
            let (one, other) = (stripe.take_at(now, n), plain.take_at(now, n));
            assert_eq!(one.as_ref().err(), other.as_ref().err());
            if let Err(denied) = one {
                assert_eq!(denied.retry(&striped), denied.retry(&plain));
            }
            assert_eq!(striped.available_at(now), plain.available_at(now));
        }
    }
    on_both!(check);
}

// The bound.

/// A take that may be refunded.
struct Taken {
    n: u32,
    receipt: Receipt,
    instant: u64,
}

/// A random trace on one bucket, in which every grant is accounted for.
struct Trace<'a, const N: usize, W: Word> {
    bucket: &'a StripedBucket<N, W>,
    account: Account,
    taken: Vec<Taken>,
    /// The newest `now` of a call that was granted.
    newest: u64,
    seen: u64,
    clock: u64,
    recent: [u64; 3],
    story: Vec<String>,
    fewer: u64,
}

impl<const N: usize, W: Word> Trace<'_, N, W> {
    /// Draws the time of a call, current or stale.
    fn now(&mut self, draws: &mut Draws<'_>) -> u64 {
        let years = 20 * 365 * 86_400 * 1_000_000_000;
        let per_permit = u64::try_from(self.account.period / self.account.permits).unwrap() + 1;
        let full = per_permit * self.bucket.burst();
        let stale = nanos(self.bucket.timing().staleness).min(years);
        let horizon = nanos(self.bucket.timing().horizon).min(years);
        self.clock += match draws.below(12) {
            0 => draws.magnitude(2 * full),
            1 if draws.once_in(3) => draws.within(1, 2) * horizon - draws.magnitude(horizon / 64),
            1 if draws.once_in(3) => draws.magnitude(horizon / 2),
            // About the last instant until which a stripe has settled.
            2..=4 => draws.magnitude(full / 8),
            5 => draws.magnitude(4 * per_permit),
            _ => 0,
        };
        let late = match draws.below(8) {
            0 => draws.magnitude(stale),
            1 => draws.magnitude(stale.min(full)),
            // The time of a recent call.
            2 | 3 => {
                self.clock
                    - draws
                        .one_of(&self.recent)
                        .clamp(self.clock.saturating_sub(stale), self.clock)
            }
            _ => 0,
        };
        let now = self
            .clock
            .saturating_sub(late)
            .max(self.seen.saturating_sub(stale));
        self.recent[draws.below(3) as usize] = now;
        self.seen = self.seen.max(now);
        now
    }

    fn take(&mut self, index: usize, now: u64, n: u32) {
        let stripe = Stripe::of(self.bucket, index);
        self.story
            .push(format!("take {n} at {now} on {index}: {:?}", self.bucket));
        let before = permits(self.bucket);
        let peeked = stripe.peek_at(ns(now), n);
        let available = self.told(&stripe, now);
        let taken = stripe.take_at(ns(now), n);
        assert_eq!(
            peeked,
            taken.as_ref().map(|_| ()).map_err(|denied| *denied),
            "{:#?}",
            self.story
        );
        match taken {
            Ok(receipt) => {
                self.newest = self.newest.max(now);
                let instant = self.newest;
                self.account.add(instant, n.into());
                self.taken.push(Taken {
                    n,
                    receipt,
                    instant,
                });
            }
            Err(denied) => {
                assert!(available < u64::from(n), "{:#?}", self.story);
                assert_eq!(before, permits(self.bucket), "{:#?}", self.story);
                self.denied(&stripe, denied);
            }
        }
    }

    /// Returns what a stripe tells, which is the most that it grants in one request.
    fn told(&self, stripe: &Stripe<'_, StripedBucket<N, W>>, now: u64) -> u64 {
        let available = stripe.available_at(ns(now));
        let context = || format!("{available} at {now} of {:#?}", self.story);
        assert!(available <= self.bucket.burst(), "{}", context());
        let most = u32::try_from(available).unwrap();
        let grants = |n| stripe.peek_at(ns(now), n).is_ok();
        assert!(most == 0 || grants(most), "{}", context());
        assert!(!grants(most + 1), "{}", context());
        for n in [most, most + 1] {
            let detail = stripe.explain_at(ns(now), n);
            let told = (detail.available, detail.decision);
            assert_eq!(
                told,
                (available, stripe.peek_at(ns(now), n)),
                "{}",
                context()
            );
        }
        available
    }

    fn step(&mut self, draws: &mut Draws<'_>) {
        let now = self.now(draws);
        let index = draws.below(N as u64) as usize;
        let burst = self.bucket.burst();
        match draws.below(10) {
            0 => {
                let greedy = self.bucket.available_at(ns(now)).clamp(1, burst);
                self.take(index, now, greedy as u32);
            }
            1 => self.take(index, now, draws.within(1, burst) as u32),
            2 if !self.taken.is_empty() => {
                let which = draws.below(self.taken.len() as u64) as usize;
                let Taken {
                    n,
                    receipt,
                    instant,
                } = self.taken.swap_remove(which);
                let part = draws.within(1, n.into()) as u32;
                let refund = self.bucket.refund_at(ns(now), part, receipt);
                self.story
                    .push(format!("refund {} of {n} at {now}", refund.permits));
                self.account.add(instant, -i128::from(refund.permits));
                self.fewer += u64::from(refund.permits);
                // A second refund of the same take.
                if let Some(n) = n.checked_sub(part).filter(|&n| n > 0) {
                    self.taken.push(Taken {
                        n,
                        receipt: refund.rest,
                        instant,
                    });
                }
            }
            3 => {
                // All, from all stripes: what comes in after that is all that there is.
                for index in 0..N {
                    let left = self.bucket.available_at(ns(now));
                    if left > 0 {
                        self.take(index, now, left.min(burst) as u32);
                    }
                }
            }
            // As many as a stripe draws, one by one.
            4 | 5 => {
                for _ in 0..draws.within(1, 70) {
                    self.take(index, now, 1);
                }
            }
            _ => self.take(index, now, draws.within(1, 9).min(burst) as u32),
        }
    }

    /// Checks that a retry is exact to the nanosecond.
    fn denied<L: Limiter>(&self, limiter: &L, denied: Denied) {
        if let (Denied::Exhausted { permits, .. }, Retry::At(then)) =
            (denied, limiter.retry(denied))
        {
            let earlier = ns(then.as_nanos() - 1);
            let story = || format!("{then}: {:#?}", self.story);
            assert!(limiter.peek_at(then, permits).is_ok(), "at {}", story());
            assert!(
                limiter.peek_at(earlier, permits).is_err(),
                "before {}",
                story()
            );
        }
    }

    /// No permit is lost: the bucket is full after the time in which it fills and in which a
    /// wrapped word counts as stale.
    fn end(self) -> i128 {
        let full = u64::try_from(self.account.period / self.account.permits).unwrap() + 1;
        let full = full * self.bucket.burst();
        let later = self.clock.max(self.seen) + 2 * full + 2 * self.account.tick;
        let stale = nanos(self.bucket.timing().staleness).min(1 << 60);
        let full_at = |now: u64| {
            self.bucket.idle_at(ns(now)).is_idle()
                && self.bucket.available_at(ns(now)) == self.bucket.burst()
        };
        assert!(
            full_at(later) || full_at(later + stale + full),
            "{:#?}",
            self.story
        );
        self.account.check(&|| format!("{:#?}", self.story))
    }
}

/// Runs `count` traces from the seed `first` on.
fn traces<const N: usize, W: Word>(rate: Rate, burst: u64, first: u64, count: u64) {
    let (mut fullest, mut period, mut drew, mut refunded) = (i128::MIN, 1, 0, 0);
    for seed in first..first + count {
        let bucket = bucket::<N, W>(rate, burst);
        let mut draws = seeded(seed);
        let mut trace = Trace {
            bucket: &bucket,
            account: Account::new(rate, burst, bucket.timing().tick),
            taken: Vec::new(),
            newest: 0,
            seen: 0,
            clock: 0,
            recent: [0; 3],
            story: Vec::new(),
            fewer: 0,
        };
        period = trace.account.period;
        // A clock ends after 584 years.
        for _ in 0..60 {
            if trace.clock < u64::MAX / 4 {
                trace.step(&mut draws);
                drew += u64::from(bucket.held() > 0);
            }
        }
        refunded += trace.fewer;
        fullest = fullest.max(trace.end());
    }
    println!(
        "{rate:?}, burst {burst}, {N} stripes, {} bits: fullest window {} over the rate; \
         permits in stripes after {drew} of {} steps; {refunded} refunded",
        W::BITS,
        fullest / period,
        count * 60,
    );
    assert!(
        20 * fullest > 19 * i128::from(burst) * period && drew > count && refunded > count,
        "too few requests for a meaningful result"
    );
}

#[test]
fn no_window_holds_more_than_the_burst_and_the_rate_wherever_permits_lie() {
    all_traces(0, if cfg!(debug_assertions) { 40 } else { 600 });
}

#[test]
#[ignore = "takes minutes; cargo xtask soak runs it"]
fn soak() {
    for round in rounds("traces of striped buckets, 13,200 each") {
        all_traces(round << 20, 600);
    }
}

fn all_traces(first: u64, count: u64) {
    traces::<2, u64>(Rate::per_second(999_999_937), 1 << 20, first, count);
    for (permits, period) in [
        (1, Duration::from_hours(1)),
        (1_000, SECOND),
        (7, Duration::from_micros(10)),
    ] {
        for burst in [80, 300, 10_000] {
            let rate = Rate::new(permits, period);
            traces::<2, u64>(rate, burst, first, count);
            traces::<1, u64>(rate, burst, first, count);
        }
    }
    for burst in [80, 300, 2_000] {
        traces::<2, u32>(Rate::per_second(100), burst, first, count);
        traces::<1, u32>(Rate::per_second(1_000), burst, first, count);
    }
}

#[test]
fn a_stale_take_from_the_rest_gets_nothing_that_came_in_before_a_take_from_a_stripe() {
    fn check<W: Word>() {
        // A stripe draws, and has settled until some instant. A call with an older time takes all
        // that it can after the stripe's permits were taken at that instant, and so does a newer.
        for step in 1..2_000 {
            let builder = StripedBucket::builder(Rate::per_second(1_000), 1_000);
            let bucket: StripedBucket<2, W> = builder.staleness(2 * SECOND).build_on().unwrap();
            let (one, other) = (Stripe::of(&bucket, 0), Stripe::of(&bucket, 1));
            let start = 5_000;
            assert_eq!(take(&one, at(start), 1), 1);
            assert_eq!(take(&one, at(start + 1), 1), 1);
            let now = at(start + step);
            let held = bucket.held();
            let mut taken = 0;
            while bucket.held() == held - u64::from(taken) && held > u64::from(taken) {
                taken += take(&one, now, 1);
            }
            for now in [at(start), now] {
                let rest = other.available_at(now) as u32;
                taken += take(&other, now, rest);
            }
            assert!(taken <= 1_000, "{taken} after {step} ms");
        }
    }
    on_both!(check);
}

#[test]
fn at_a_stale_time_a_bucket_tells_what_the_stripe_of_this_thread_grants() {
    fn check<W: Word>(late: u64) {
        let (start, end) = (at(5_000), at(5_000 + late));
        let mut others = 0;
        for other in 0..2 {
            let bucket = bucket::<2, W>(Rate::per_second(1_000), 1_000);
            assert_eq!(take(&bucket, start, 3), 3);
            assert_eq!(bucket.held(), 61);
            // Another stripe takes all of the rest, also what came in later. The rest has no room
            // for what was drawn.
            let other = Stripe::of(&bucket, other);
            let rest = other.available_at(end) - 64;
            assert_eq!(u64::from(take(&other, end, rest as u32)), rest);
            if bucket.held() == 0 {
                // It is the stripe of this thread, and has returned what it held.
                continue;
            }
            others += 1;
            assert_eq!((other.available_at(start), take(&other, start, 1)), (0, 0));
            let detail = bucket.explain_at(start, 61);
            assert_eq!((detail.available, detail.is_allowed()), (61, true));
            assert_eq!(bucket.available_at(start), 61);
            assert_eq!(take(&bucket, start, 62), 0);
            assert_eq!(take(&bucket, start, 61), 61);
            assert_eq!(bucket.available_at(start), 0);
        }
        assert_eq!(others, 1);
    }
    for late in [70, 400, 900] {
        check::<u64>(late);
        check::<u32>(late);
    }
}

#[test]
fn after_nearly_a_horizon_without_a_call_a_take_decides_as_a_query_before_it() {
    // From some instant on, `now` looks stale to the rest: a little earlier for a rest to which the
    // stripes have returned their permits.
    for (rate, burst) in [(100, 80), (1_000, 80), (100, 300)] {
        let start = |index| {
            let bucket = bucket::<2, u32>(Rate::per_second(rate), burst);
            assert_eq!(take(&Stripe::of(&bucket, index), at(0), 1), 1);
            assert!(bucket.held() > 0);
            bucket
        };
        let of_permits = |n: u64| 1_000_000_000 / u64::from(rate) * n;
        let first = start(0);
        let stale = nanos(first.timing().horizon) - nanos(first.timing().staleness);
        let (mut granted, mut denied) = (0, 0);
        for part in 0..8 * burst {
            let now = ns(stale + of_permits(burst) - of_permits(part) / 2);
            for n in [1, first.held(), burst / 2, burst - 5, burst - 1, burst] {
                for (drawn, asked) in [(0, 0), (1, 0)] {
                    let bucket = start(drawn);
                    let stripe = Stripe::of(&bucket, asked);
                    let available = bucket.available_at(now);
                    let peeked = stripe.peek_at(now, n as u32).is_ok();
                    let taken = stripe.take_at(now, n as u32).is_ok();
                    let context = format!("{n} of {available} at {now}, burst {burst}");
                    let fits = n <= available;
                    assert_eq!((peeked, taken), (fits, fits), "{context}");
                    granted += u32::from(taken);
                    denied += u32::from(!taken);
                }
            }
        }
        assert!(
            granted.min(denied) > 100,
            "{granted} granted, {denied} denied"
        );
    }
}

// Nothing is lost, and no stripe starves.

#[test]
fn at_one_instant_exactly_the_burst_is_granted_from_any_stripes() {
    fn check<W: Word>() {
        for (seed, burst) in [(0, 256), (1, 300), (2, 5_000), (3, 70_000)] {
            let mut draws = seeded(seed);
            // A bucket that was not used at first draws for that instant only.
            let now = at(draws.within(0, 3) * 3_000);
            let bucket = bucket::<8, W>(Rate::per_second(100), burst);
            let mut taken = 0;
            while bucket.available_at(now) > 0 {
                let n = draws.one_of(&[1, 1, 1, 2, 7, 100]);
                let n = n.min(bucket.available_at(now)) as u32;
                assert_eq!(
                    take(&Stripe::of(&bucket, draws.below(8) as usize), now, n),
                    n
                );
                taken += u64::from(n);
                if W::BITS == 64 {
                    assert_eq!(bucket.available_at(now), burst - taken);
                }
            }
            assert_eq!((spared::<W>(taken, burst), bucket.held()), (burst, 0));
        }
    }
    on_both!(check);
}

#[test]
fn a_large_request_takes_back_what_all_stripes_hold() {
    fn check<W: Word>() {
        let bucket = bucket::<8, W>(Rate::per_second(10), 5_000);
        for i in 0..8 {
            assert_eq!(take(&Stripe::of(&bucket, i), at(0), 1), 1);
        }
        assert_eq!(bucket.held(), 8 * 63);
        let stripe = Stripe::of(&bucket, 3);
        let all = bucket.available_at(at(0));
        assert_eq!(spared::<W>(8 + all, 5_000), 5_000);
        let (n, more) = (all as u32, all as u32 + 1);
        assert!(matches!(
            stripe.take_at(at(0), more),
            Err(Denied::Exhausted { .. })
        ));
        assert_eq!(bucket.held(), 8 * 63, "a denial changes nothing");
        assert_eq!(take(&stripe, at(0), n), n);
        assert_eq!((bucket.held(), bucket.available_at(at(0))), (0, 0));
    }
    on_both!(check);
}

#[test]
fn under_saturated_demand_the_rate_is_admitted_and_no_stripe_starves() {
    fn check<W: Word>() {
        let bucket = bucket::<8, W>(Rate::per_second(1_000_000), 100_000);
        let (mut taken, mut requests) = ([0_u64; 8], seeded(1));
        let (start, end) = (1_000_000_u64, 2_000_000);
        for micros in start..end {
            // Twice the rate, in runs of random lengths.
            let i = requests.below(8) as usize;
            for _ in 0..2 {
                taken[i] += u64::from(take(
                    &Stripe::of(&bucket, i),
                    Timestamp::from_micros(micros),
                    1,
                ));
            }
        }
        let total: u64 = taken.iter().sum();
        println!("{taken:?}");
        assert!(total >= 99 * (end - start + 100_000) / 100, "{total}");
        assert!(taken.iter().all(|&n| n > total / 16), "{taken:?}");
    }
    on_both!(check);
}

// Draws.

/// Takes `n` permits, one at a time, and returns how many of the calls wrote the rest's word.
fn written<const N: usize, W: Word>(
    bucket: &StripedBucket<N, W>,
    n: u64,
    mut place: impl FnMut(u64) -> (u64, Timestamp),
) -> u64 {
    let rest = || {
        let all = format!("{bucket:?}");
        all[all.find("rest:").unwrap()..].to_owned()
    };
    (0..n)
        .filter(|&i| {
            let (stripe, now) = place(i);
            let before = rest();
            assert_eq!(take(&Stripe::of(bucket, stripe as usize % N), now, 1), 1);
            before != rest()
        })
        .count() as u64
}

#[test]
fn where_permits_abound_the_shared_word_is_written_once_in_at_least_64_permits() {
    fn check<const N: usize, W: Word>(burst: u64, n: u64) {
        // A permit comes in each 100 µs.
        let full = || bucket::<N, W>(Rate::per_second(10_000), burst);
        let now = |permits: u64| Timestamp::from_micros(900_000 + 100 * permits);
        for (name, written) in [
            ("at one instant", written(&full(), n, |i| (i, now(0)))),
            ("at the rate", written(&full(), n, |i| (i, now(i)))),
            (
                "at 3 times the rate",
                written(&full(), n, |i| (i, now(i / 3))),
            ),
            ("at a third", written(&full(), n, |i| (3 * i, now(3 * i)))),
            ("on one stripe", written(&full(), n, |i| (0, now(i)))),
        ] {
            println!("{} bits, {N} stripes, {name}: {written} of {n}", W::BITS);
            assert!((1..=n / 64).contains(&written), "{name}");
        }
    }
    check::<8, u64>(1 << 17, 60_000);
    check::<2, u32>(1 << 14, 12_000);
}

#[test]
fn draws_grow_while_a_stripe_uses_them_up_and_shrink_if_it_does_not() {
    let bucket: StripedBucket = StripedBucket::new(Rate::per_second(1_000), 1 << 20);
    let held_after = |n: u64, now: Timestamp| {
        for _ in 0..n {
            assert_eq!(take(&Stripe::of(&bucket, 0), now, 1), 1);
        }
        bucket.held()
    };
    let mut size = 64;
    while size < 4_096 {
        assert_eq!(held_after(1, at(0)), size - 1);
        assert_eq!(held_after(size - 1, at(0)), 0);
        size *= 2;
    }
    assert_eq!(held_after(1, at(0)), 4_095);
    assert_eq!(held_after(4_096, at(0)), 4_095, "the largest");
    // The fill time is 1,049 s. After a span, there is a draw though permits are left.
    for (i, size) in [2_048, 1_024, 512, 256, 128, 64, 64]
        .into_iter()
        .enumerate()
    {
        assert_eq!(held_after(1, at(100_000 * (i as u64 + 1))), size - 1);
    }
}

// Refunds.

#[test]
fn a_take_is_refunded_to_its_stripe_except_for_the_first_permit_of_a_draw() {
    fn check<W: Word>() {
        let bucket = bucket::<2, W>(Rate::per_second(1), 1_000);
        let stripe = Stripe::of(&bucket, 1);
        let first = stripe.take_at(at(0), 1).unwrap();
        let second = stripe.take_at(at(0), 5).unwrap();
        let third = stripe.take_at(at(0), 7).unwrap();
        let left = bucket.available_at(at(0));
        assert_eq!(spared::<W>(left + 13, 1_000), 1_000);
        // In any order, and by any handle.
        assert_eq!(bucket.refund_at(at(0), 5, second).permits, 5);
        assert_eq!(stripe.refund_at(at(0), 7, third).permits, 7);
        assert_eq!(stripe.refund_at(at(0), 1, first).permits, 0);
        assert_eq!(bucket.available_at(at(0)), left + 12);
    }
    on_both!(check);
}

#[test]
fn a_take_is_not_refunded_to_a_stripe_that_has_another_allotment() {
    fn check<W: Word>() {
        let bucket = bucket::<2, W>(Rate::per_second(1), 1_000);
        let stripe = Stripe::of(&bucket, 1);
        let _first = stripe.take_at(at(0), 1).unwrap();
        let second = stripe.take_at(at(0), 5).unwrap();
        // The other stripe takes back what this one holds, which then draws again.
        assert_eq!(take(&Stripe::of(&bucket, 0), at(0), 950), 950);
        assert_eq!(
            take(&stripe, at(900_000), 1) + take(&stripe, at(900_000), 9),
            10
        );
        assert!(bucket.held() > 0);
        assert_eq!(stripe.refund_at(at(900_000), 5, second).permits, 0);
    }
    on_both!(check);
}

#[test]
fn a_receipt_does_not_become_valid_again_however_many_allotments_its_stripe_has_had() {
    /// Returns what is granted at one instant, if at the end a take is refunded after which the
    /// stripe has had so many other allotments, in so many horizons.
    fn granted<W: Word>(others: u64, horizons: u32) -> u32 {
        let burst = 80_u32;
        let bucket = bucket::<2, W>(Rate::per_second(100_000), burst.into());
        let [one, other] = [0, 1].map(|index| Stripe::of(&bucket, index));
        let (mut now, mut last) = (at(0), 0);
        let gap = 900_000.max(nanos(bucket.timing().horizon * horizons) / others + 1);
        assert_eq!(take(&one, now, 1), 1);
        let n = bucket.held() as u32;
        let early = one.take_at(now, n).unwrap();
        for _ in 0..others {
            // The bucket is full again. The stripe returns what it has, and draws.
            now = ns(now.as_nanos() + gap);
            last = bucket.held() as u32 + 1;
            assert_eq!(take(&one, now, last), last);
        }
        let held = bucket.held() as u32;
        assert_eq!(take(&one, now, held), held);
        let rest = bucket.available_at(now) as u32;
        assert_eq!(take(&other, now, rest), rest);
        let at_once = last + held + rest;
        assert_eq!(spared::<W>(at_once.into(), burst.into()), burst.into());
        assert!(one.refund_at(now, n, early).permits <= n);
        at_once + take(&one, now, bucket.available_at(now) as u32)
    }
    for bits in [12, 16, 18, 20, 22] {
        assert!(granted::<u64>(1 << bits, 0) <= 80, "64 bits, 2^{bits}");
    }
    // Generations of a narrow word repeat. The word of the rest does, too, in a horizon.
    for (times, horizons) in [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2)] {
        let granted = granted::<u32>(times << 19, horizons);
        assert!(granted <= 80, "{times} * 2^19 in {horizons} horizons");
    }
}

#[test]
fn a_take_from_the_rest_is_refunded_unless_stripes_hold_permits_or_another_has_come_since() {
    fn check<W: Word>() {
        let bucket = bucket::<2, W>(Rate::per_second(1), 1_000);
        let (one, other) = (Stripe::of(&bucket, 0), Stripe::of(&bucket, 1));
        let large = other.take_at(at(0), 600).unwrap();
        assert_eq!(other.refund_at(at(0), 600, large).permits, 600);
        let large = other.take_at(at(0), 600).unwrap();
        assert_eq!(take(&other, at(0), 400), 400);
        assert_eq!(other.refund_at(at(0), 600, large).permits, 0);
        assert_eq!(take(&one, at(1_000_000), 1), 1);
        assert!(bucket.held() > 0);
        let large = other.take_at(at(1_000_000), 600).unwrap();
        assert_eq!(other.refund_at(at(1_000_000), 600, large).permits, 0);
    }
    on_both!(check);
}

#[test]
fn a_take_is_not_refunded_to_the_rest_once_a_stripe_has_settled_because_of_it() {
    fn check<W: Word>() {
        let bucket = bucket::<1, W>(Rate::per_second(1), 100);
        // Everything returns that can: the take that a stripe's draw has found the rest settled
        // by, the draw, and what was drawn.
        let large = bucket.take_at(at(100_000), 40).unwrap();
        let drawn = bucket.take_at(at(100_000), 1).unwrap();
        assert!(bucket.held() > 0);
        assert_eq!(bucket.refund_at(at(100_000), 1, drawn).permits, 0);
        let rest = bucket.available_at(at(100_000)) as u32;
        let all = bucket.take_at(at(100_000), rest).unwrap();
        assert_eq!(bucket.held(), 0);
        assert!(bucket.refund_at(at(100_000), rest, all).permits == rest);
        assert_eq!(bucket.refund_at(at(100_000), 40, large).permits, 0);
    }
    on_both!(check);
}

// Denials.

/// Returns until when a stripe has learned that requests are denied. The state is told by `Debug`
/// alone.
fn learned<const N: usize>(bucket: &StripedBucket<N>, stripe: usize) -> u64 {
    let state = format!("{bucket:?}");
    let word = state.split("denied: 0x").nth(stripe + 1).unwrap();
    let word = word.split(' ').next().unwrap();
    u64::from_str_radix(word, 16).unwrap()
}

#[test]
fn a_denial_is_learned_until_the_permits_come_in_and_on_its_stripe_only() {
    for burst in [10, 2_000] {
        let bucket: StripedBucket<4> = bucket(Rate::per_second(10), burst);
        let stripe = Stripe::of(&bucket, 1);
        assert_eq!(take(&stripe, at(0), burst as u32), burst as u32);
        // The first denial of the bucket says that there is something to learn.
        assert_eq!((take(&stripe, at(0), 1), learned(&bucket, 1)), (0, 0));
        assert_eq!(take(&stripe, at(0), 1), 0);
        let until = learned(&bucket, 1);
        assert!((99_999_968..=100_000_000).contains(&until), "{until}");
        assert_eq!(learned(&bucket, 0) + learned(&bucket, 2), 0);
        // Requests for more stay denied by it, and one at the instant itself is granted.
        assert_eq!(take(&stripe, at(99), 5), 0);
        assert_eq!(learned(&bucket, 1), until);
        assert_eq!(take(&stripe, ns(100_000_000), 1), 1);
    }
}

#[test]
fn what_is_learned_of_a_large_request_does_not_deny_a_smaller_one() {
    let bucket: StripedBucket<2> = bucket(Rate::per_second(1), 10);
    let stripe = Stripe::of(&bucket, 0);
    assert_eq!(take(&stripe, at(0), 7), 7);
    for _ in 0..3 {
        // Learned of 4 permits and more.
        assert_eq!(take(&stripe, at(0), 5), 0);
    }
    assert_eq!(learned(&bucket, 0) & 31, 2);
    assert_eq!(take(&stripe, at(0), 2), 2);
    assert_eq!(take(&stripe, at(0), 1), 1);
    let denied = stripe.take_at(at(0), 11).unwrap_err();
    assert_eq!(denied.retry(&stripe), Retry::Never, "more than the burst");
}

#[test]
fn permits_that_are_refunded_are_found_by_all_stripes() {
    let bucket: StripedBucket<4> = bucket(Rate::per_second(1), 10);
    let taken = bucket.take_at(at(0), 10).unwrap();
    for stripe in (0..4).chain(0..4) {
        assert_eq!(take(&Stripe::of(&bucket, stripe), at(0), 1), 0);
    }
    assert!((0..4).all(|stripe| learned(&bucket, stripe) > 0));
    assert_eq!(bucket.refund_at(at(0), 10, taken).permits, 10);
    for stripe in 0..4 {
        assert_eq!(take(&Stripe::of(&bucket, stripe), at(0), 2), 2);
    }
}

#[test]
fn a_clock_that_is_set_back_is_not_denied_by_what_was_learned() {
    let bucket: StripedBucket<2> = bucket(Rate::per_second(1), 10);
    let stripe = Stripe::of(&bucket, 0);
    let late = Timestamp::from_secs(1 << 33);
    assert_eq!(take(&stripe, late, 10), 10);
    for _ in 0..2 {
        assert_eq!(take(&stripe, late, 1), 0);
    }
    assert!(learned(&bucket, 0) > 0);
    // Longer ago than the word can tell, a plain bucket looks full.
    let plain = TokenBucket::builder(Rate::per_second(1), 10)
        .build()
        .unwrap();
    assert_eq!(take(&plain, late, 10), 10);
    for secs in [1, 1 << 20, 1 << 30, 1 << 32] {
        let now = Timestamp::from_secs(secs);
        assert_eq!(take(&stripe, now, 1), take(&plain, now, 1), "{secs} s");
    }
}

// Compositions, threads, and settings.

#[test]
fn a_composition_that_names_a_bucket_by_two_stripes_takes_the_sum() {
    let bucket: StripedBucket<2> = StripedBucket::new(Rate::per_second(1), 10);
    let both = AllOf::new((Stripe::of(&bucket, 0), Stripe::of(&bucket, 1)));
    assert!(both.try_acquire_at(at(0), 6).is_err());
    assert!(both.try_acquire_at(at(0), 5).is_ok());
    assert_eq!(bucket.available_at(at(0)), 0);
}

#[test]
fn threads_get_the_burst_together_at_one_instant() {
    fn check<W: Word>() {
        const BURST: u64 = 40_000;
        for round in 0..if cfg!(debug_assertions) { 5 } else { 50 } {
            let bucket = bucket::<2, W>(Rate::per_second(1), BURST);
            let work = |seed: u64| {
                let (mut draws, mut taken) = (seeded(seed), 0);
                loop {
                    let n = draws.one_of(&[1, 1, 1, 3, 70]);
                    let got = take(&bucket, at(0), n);
                    taken += u64::from(got);
                    if got == 0 && n == 1 {
                        return taken;
                    }
                }
            };
            let taken = std::thread::scope(|scope| {
                let others = [1, 2, 3].map(|i| scope.spawn(move || work(4 * round + i)));
                let own = work(4 * round);
                others
                    .into_iter()
                    .map(|other| other.join().unwrap())
                    .sum::<u64>()
                    + own
            });
            // A call may be denied because of permits that another one moves. They are still there.
            let left = bucket.available_at(at(0));
            assert_eq!(spared::<W>(taken + left, BURST), BURST);
            assert_eq!(take(&bucket, at(0), left as u32 + 1), 0);
            assert_eq!(u64::from(take(&bucket, at(0), left as u32)), left);
        }
    }
    on_both!(check);
}

/// Threads take on random stripes, and refund what any of them took, in parts and in any order. At
/// one instant, what is out and what is left are the burst.
fn refund_on_other_threads<const N: usize>(burst: u64, start: Timestamp, seed: u64) -> u64 {
    let builder = StripedBucket::builder(Rate::new(1, Duration::from_hours(24)), burst);
    let bucket: StripedBucket<N> = builder.origin(start).build().unwrap();
    // Wraps while a refund is counted before its take.
    let (out, refunded) = (AtomicU64::new(0), AtomicU64::new(0));
    let receipts = Mutex::new(Vec::<(u32, Receipt)>::new());
    let work = |seed: u64| {
        let mut draws = seeded(seed);
        for _ in 0..if cfg!(debug_assertions) {
            2_000
        } else {
            20_000
        } {
            let on = Stripe::of(&bucket, draws.below(N as u64) as usize);
            let one = {
                let mut all = receipts.lock().unwrap();
                let is_refund = draws.once_in(3) && !all.is_empty();
                let which = draws.below(all.len().max(1) as u64) as usize;
                is_refund.then(|| all.swap_remove(which))
            };
            if let Some((n, receipt)) = one {
                let part = draws.within(1, n.into()) as u32;
                let refund = on.refund_at(start, part, receipt);
                out.fetch_sub(refund.permits.into(), SeqCst);
                refunded.fetch_add(refund.permits.into(), SeqCst);
                if part < n {
                    receipts.lock().unwrap().push((n - part, refund.rest));
                }
            } else {
                let n = draws.one_of(&[1, 1, 1, 2, 9, 70, burst / 5 + 1]) as u32;
                if let Ok(receipt) = on.take_at(start, n) {
                    out.fetch_add(n.into(), SeqCst);
                    receipts.lock().unwrap().push((n, receipt));
                }
            }
            if draws.once_in(100) {
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || work(4 * seed + thread));
        }
    });
    let left = bucket.available_at(start);
    assert_eq!(out.into_inner(), burst - left, "{bucket:?}");
    let take = |i: u64| take(&Stripe::of(&bucket, i as usize % N), start, 1);
    assert!((0..left).all(|i| take(i) == 1) && (0..N as u64).all(|i| take(i) == 0));
    refunded.into_inner()
}

#[test]
fn threads_that_refund_what_others_took_lose_and_gain_no_permit() {
    let mut refunded = 0;
    // Also where the nanoseconds since the origin of time have no more room.
    for (seed, nanos) in (0..).zip([0, 1 << 50, 1 << 63, u64::MAX - 5]) {
        for burst in [64, 300, 10_000] {
            refunded += refund_on_other_threads::<1>(burst, ns(nanos), seed);
            refunded += refund_on_other_threads::<2>(burst, ns(nanos), seed);
            refunded += refund_on_other_threads::<8>(burst, ns(nanos), seed);
        }
    }
    println!("{refunded} refunded");
    assert!(refunded > 1_000, "{refunded}");
}

#[test]
fn threads_stay_within_the_bound_over_every_window() {
    fn check<W: Word>() {
        const BURST: u64 = 256;
        const UNTIL: u64 = 3_000;
        for seed in 0..if cfg!(debug_assertions) { 4 } else { 12 } {
            // One and a half per microsecond.
            let rate = Rate::new(3, Duration::from_micros(2));
            let builder = StripedBucket::builder(rate, BURST).tick(Duration::from_micros(1));
            let bucket = builder.build_on::<2, W>().unwrap();
            let (clock, begun) = (AtomicU64::new(0), AtomicU64::new(0));
            let work = |seed: u64| {
                let (mut draws, mut spans, mut held) = (seeded(seed), Vec::new(), 0_u64);
                for calls in 0_u64.. {
                    let tick = if calls.is_multiple_of(64) {
                        clock.fetch_add(1, SeqCst)
                    } else {
                        clock.load(SeqCst)
                    };
                    if tick > UNTIL {
                        break;
                    }
                    begun.fetch_max(tick, SeqCst);
                    let n = draws.one_of(&[1, 1, 1, 2, 9]);
                    let now = Timestamp::from_micros(tick);
                    if take(&Stripe::of(&bucket, draws.below(2) as usize), now, n) > 0 {
                        // It counts at some instant between.
                        spans.push((tick, begun.load(SeqCst), u64::from(n)));
                    }
                    held += u64::from(bucket.held() > 0);
                    if draws.once_in(512) {
                        std::thread::yield_now();
                    }
                }
                (spans, held)
            };
            let (mut spans, held) = std::thread::scope(|scope| {
                let other = scope.spawn(|| work(2 * seed));
                let (mut spans, held) = work(2 * seed + 1);
                let (others, more) = other.join().unwrap();
                spans.extend(others);
                (spans, held + more)
            });
            // Each window certainly holds what begins and ends in it.
            spans.sort_unstable_by_key(|&(_, last, _)| last);
            let mut fullest = 0;
            for from in 0..=UNTIL {
                let mut sum = 0;
                for &(first, last, n) in &spans {
                    if first >= from {
                        sum += n;
                        let over = (2 * sum).saturating_sub(3 * (last - from));
                        fullest = fullest.max(over);
                        assert!(
                            over <= 2 * BURST,
                            "{sum} from {from} to {last}, seed {seed}"
                        );
                    }
                }
            }
            println!(
                "{} bits: fullest {} of {BURST}, {held}",
                W::BITS,
                fullest / 2
            );
            assert!(
                fullest > BURST && held > 0,
                "too few requests for a meaningful result"
            );
            let later = Timestamp::from_micros(UNTIL + 1_000);
            assert_eq!(bucket.available_at(later), BURST);
        }
    }
    on_both!(check);
}

#[test]
fn settings_that_fit_a_token_bucket_fit_and_others_are_refused_alike() {
    fn check<W: Word>() {
        let mut draws = seeded(3);
        let (mut built, mut lends) = (0, 0);
        for _ in 0..3_000 {
            let period = Duration::from_nanos(draws.magnitude(1 << 50) + 1);
            let rate = Rate::new(draws.magnitude(u64::from(u32::MAX)) as u32, period);
            let burst = draws.magnitude(1 << 40);
            let striped = StripedBucket::builder(rate, burst).build_on::<8, W>();
            let plain = TokenBucket::builder(rate, burst).build_on::<W>();
            match (striped, plain) {
                (Ok(striped), Ok(plain)) => {
                    built += 1;
                    assert_eq!((striped.burst(), striped.rate()), (burst, plain.rate()));
                    assert!(striped.timing().staleness >= SECOND);
                    assert_eq!(striped.available_at(at(0)), burst);
                    let _ = striped.take_at(at(0), 1);
                    lends += u64::from(striped.held() > 0);
                }
                (striped, plain) => assert_eq!(striped.err(), plain.err()),
            }
        }
        println!("{} bits: {built} built, {lends} lend", W::BITS);
        assert!(built > 100 && lends > 20);
    }
    on_both!(check);
    let settings = StripedBucket::builder(Rate::per_second(1), 9).initial(10);
    let refused = SettingsError::TooLarge {
        setting: Setting::Initial,
        max: 9,
    };
    assert_eq!(settings.build::<2>().unwrap_err(), refused);
}

#[test]
fn a_bucket_whose_tick_brings_a_large_part_of_the_burst_holds_nothing_in_stripes() {
    for (periods, lends) in [(100, true), (5, false)] {
        let settings = StripedBucket::builder(Rate::per_second(1_000), 1_000 * periods);
        let bucket: StripedBucket<2> = settings.stepwise().build().unwrap();
        assert_eq!(take(&bucket, at(0), 1), 1);
        assert_eq!(bucket.held() > 0, lends);
        assert_eq!(bucket.available_at(at(0)), 1_000 * periods - 1);
    }
}

#[test]
fn a_bucket_without_refill_and_an_unlimited_one_grant_what_they_have() {
    fn check<W: Word>() {
        let none = bucket::<2, W>(Rate::ZERO, 1_000);
        for now in [at(0), Timestamp::MAX, at(7)] {
            assert_eq!(take(&Stripe::of(&none, 0), now, 100), 100);
            assert_eq!(take(&Stripe::of(&none, 1), now, 1), 1);
        }
        assert_eq!(take(&none, Timestamp::MAX, 697), 697);
        assert_eq!(
            none.take_at(at(9), 1).unwrap_err().retry(&none),
            Retry::Never
        );
        let unlimited = bucket::<2, W>(Rate::UNLIMITED, 1_000);
        for n in [0, 1, 1_000_000] {
            assert!(unlimited.take_at(at(0), n).is_ok());
        }
        assert_eq!(
            (unlimited.available_at(at(0)), unlimited.held()),
            (u64::MAX, 0)
        );
    }
    on_both!(check);
}

#[test]
fn stripes_do_not_allocate() {
    fn calls<W: Word>() {
        let bucket = bucket::<2, W>(Rate::per_second(100), 1_000);
        for now in [0, 5_000, 90_000].map(at) {
            for n in [0, 1, 3, 7, 90, 900, 2_000] {
                for limiter in [&Stripe::of(&bucket, 1) as &dyn Limiter, &bucket] {
                    let _ = limiter.explain_at(now, n);
                    if let Ok(mut lease) = limiter.try_acquire_at(now, n) {
                        let _ = lease.refund_at(now, n / 2);
                    }
                    let _ = (limiter.capacity(), limiter.idle_at(now), limiter.id());
                }
            }
        }
    }
    assert_eq!(
        allocations(|| drop(core::hint::black_box(Box::new(1)))),
        1,
        "the counter works"
    );
    let allocated = allocations(|| {
        on_both!(calls);
    });
    assert_eq!(allocated, 0);
}
