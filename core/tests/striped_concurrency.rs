//! A concurrency limit in stripes: the plain limit's decisions, wherever permits lie.

#[path = "support/allocations.rs"]
mod allocations;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/soak.rs"]
mod soak;

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;
use std::collections::VecDeque;
use std::sync::{Barrier, Mutex};

use allocations::allocations;
use draws::Draws;
use portcullis_core::builder::Setting;
use portcullis_core::limiter::{Back, Idle, Receipt, Waiting};
use portcullis_core::parts::Stripe;
use portcullis_core::queue::{PassedOn, QueueLimiter};
use portcullis_core::state::{NativeWord, Word};
use portcullis_core::{
    AllOf, Concurrency, Denied, Lease, Limiter, LimiterExt, Retry, SettingsError,
    StripedConcurrency, Timestamp,
};
use soak::rounds;

const NOW: Timestamp = Timestamp::ZERO;

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

fn take<L: Limiter + ?Sized>(limiter: &L, n: u32) -> u32 {
    limiter.take_at(NOW, n).map_or(0, |_| n)
}

fn striped<const N: usize, W: Word>(limit: u32) -> StripedConcurrency<N, W> {
    StripedConcurrency::builder(limit).build_on().unwrap()
}

// Decisions.

/// Returns the most permits that stripes held, and the number of denials.
fn decides_as_a_plain_limit<const N: usize, W: Word>(limit: u32, seed: u64) -> (u64, u32) {
    let striped = striped::<N, W>(limit);
    let plain = Concurrency::builder(limit).build_on::<u64>().unwrap();
    let mut draws = seeded(seed);
    let (mut out, mut denials, mut held) = (VecDeque::new(), 0, 0);
    for _ in 0..20_000 {
        let on = Stripe::of(&striped, draws.below(N as u64) as usize);
        match draws.below(8) {
            0..4 => {
                let n = match draws.below(16) {
                    0 => draws.magnitude(2 * u64::from(limit)),
                    1..4 => draws.magnitude(u64::from(limit) / 4),
                    _ => draws.within(0, 2),
                } as u32;
                assert_eq!(on.explain_at(NOW, n), plain.explain_at(NOW, n));
                let taken = on.take_at(NOW, n);
                assert_eq!(taken, plain.take_at(NOW, n), "{n} of {striped:?}");
                match taken {
                    Ok(_) if n > 0 => out.push_back(n),
                    Ok(_) => {}
                    Err(denied) => {
                        denials += 1;
                        assert_eq!(denied.retry(&on), denied.retry(&plain));
                        let all = matches!(denied, Denied::Exhausted { .. });
                        assert!(!all || striped.held() == 0, "a denial closes all stripes");
                    }
                }
            }
            4..7 => {
                let newest = draws.once_in(2);
                if let Some(n) = if newest {
                    out.pop_back()
                } else {
                    out.pop_front()
                } {
                    let back = draws.within(0, n.into()) as u32;
                    if draws.once_in(2) {
                        let refund = on.refund_at(NOW, back, Receipt::NONE);
                        assert_eq!(refund.permits, back);
                    } else {
                        on.release(back);
                    }
                    Limiter::release(&plain, back);
                    if back < n {
                        out.push_back(n - back);
                    }
                }
            }
            _ => match draws.below(8) {
                // This one takes back what stripes hold.
                0 => assert_eq!(striped.in_use(), plain.in_use()),
                1 => assert_eq!(striped.idle_at(NOW), plain.idle_at(NOW)),
                _ => {}
            },
        }
        assert_eq!(striped.available(), plain.available());
        held = held.max(striped.held());
    }
    (held, denials)
}

#[test]
fn it_decides_as_a_concurrency_limit_if_no_calls_overlap() {
    fn check<const N: usize, W: Word>(limit: u32) -> u64 {
        let (held, denials) = decides_as_a_plain_limit::<N, W>(limit, limit.into());
        assert!(denials > 10, "{denials}");
        held
    }
    for limit in [1, 2, 7, 31, 100] {
        assert_eq!(check::<8, u64>(limit), 0, "scarce");
        assert_eq!(check::<8, u32>(limit), 0);
    }
    for limit in [256, 257, 1_000, 70_000, 4_194_303] {
        assert!(check::<8, u64>(limit) > 0);
        assert_eq!(check::<8, u32>(limit), 0);
    }
    for limit in [40, 100, 1_000] {
        assert!(check::<1, u64>(limit) > 0);
        assert!(limit == 40 || check::<2, u64>(limit) > 0);
    }
    assert!(check::<64, u64>(10_000) > 0);
}

#[test]
fn a_large_request_takes_back_what_all_stripes_hold() {
    let limit = striped::<4, u64>(1_000);
    for stripe in 0..4 {
        assert_eq!(take(&Stripe::of(&limit, stripe), 1), 1);
    }
    assert!(limit.held() > 100);
    assert_eq!(take(&Stripe::of(&limit, 2), 997), 0);
    assert_eq!(take(&Stripe::of(&limit, 2), 996), 996);
    assert_eq!((limit.available(), limit.held()), (0, 0));
}

#[test]
fn a_probe_takes_nothing_and_answers_as_for_one_permit() {
    fn check<W: Word>() {
        let limit = striped::<2, W>(500);
        assert!(limit.take_at(NOW, 0).is_ok());
        assert_eq!(limit.available(), 500);
        assert_eq!(take(&limit, 400), 400);
        assert_eq!(take(&Stripe::of(&limit, 1), 100), 100);
        assert!(limit.take_at(NOW, 0).is_err());
        limit.release(1);
        assert!(Stripe::of(&limit, 1).take_at(NOW, 0).is_ok());
        assert_eq!(limit.available(), 1);
    }
    on_both!(check);
}

// Where permits lie.

#[test]
fn where_permits_are_scarce_stripes_hold_none() {
    let limit: StripedConcurrency = StripedConcurrency::new(255);
    let leases: Vec<_> = (0..255)
        .map(|i| Stripe::of(&limit, i).take_at(NOW, 1))
        .collect();
    assert!(leases.iter().all(Result::is_ok));
    for i in 0..255 {
        Stripe::of(&limit, i).release(1);
        assert_eq!(limit.held(), 0);
    }
    // Stripes that hold permits of a larger limit are closed by a denial.
    let limit: StripedConcurrency = StripedConcurrency::new(10_000);
    assert_eq!(take(&limit, 1), 1);
    assert!(limit.held() > 0);
    assert_eq!(take(&limit, 9_999) + take(&limit, 1), 9_999);
    Stripe::of(&limit, 0).release(200);
    assert_eq!((limit.held(), limit.available()), (0, 200));
}

#[test]
fn a_lease_returns_to_the_stripe_of_the_thread_that_drops_it() {
    let limit: StripedConcurrency<2> = StripedConcurrency::new(8_000);
    let (one, other) = (Stripe::of(&limit, 0), Stripe::of(&limit, 1));
    // Both stripes draw.
    let lease = one.try_acquire_at(NOW, 10).unwrap();
    assert_eq!(take(&other, 1), 1);
    let held = limit.held();
    drop(lease);
    assert_eq!(limit.held(), held + 10);
    let lease = one.try_acquire_at(NOW, 10).unwrap();
    lease.forget();
    other.release(10);
    assert_eq!(limit.held(), held + 10);
    assert_eq!(limit.available(), 7_999);
}

#[test]
fn a_draw_is_a_part_of_what_the_rest_has_left_up_to_4096() {
    for (limit, held) in [(64, 0), (65, 8), (8_001, 1_000), (40_000, 4_096)] {
        let limit = striped::<2, u64>(limit);
        assert_eq!(take(&limit, 1), 1);
        assert_eq!(limit.held(), held);
    }
    // An eighth of what the rest has left by then.
    let limit = striped::<2, u64>(4_001);
    for (n, held) in [(1, 500), (500, 0), (1, 3_499 / 8), (437, 0), (1, 3_061 / 8)] {
        assert_eq!(take(&limit, n), n);
        assert_eq!(limit.held(), held);
    }
    // A request for more than a draw is taken from the rest.
    assert_eq!((take(&limit, 1_000), limit.held()), (1_000, 3_061 / 8));
}

#[test]
fn a_stripe_that_only_gets_permits_returns_them_to_the_rest() {
    fn most<const N: usize>(limit: u32) -> u64 {
        let limit = striped::<N, u64>(limit);
        let mut most = 0;
        for _ in 0..100_000 {
            assert_eq!(take(&Stripe::of(&limit, 0), 3), 3);
            Stripe::of(&limit, 1).release(3);
            most = most.max(limit.held());
        }
        assert_eq!(limit.in_use(), 0);
        most
    }
    let of_a_large_limit = most::<2>(1_000_000);
    assert!((16_384..16_384 + 4_097).contains(&of_a_large_limit));
    let of_a_small_limit = most::<2>(1_000);
    assert!(
        (240..=375).contains(&of_a_small_limit),
        "{of_a_small_limit}"
    );
}

#[test]
fn a_stripe_keeps_half_of_its_part_of_the_limit_and_no_permit_more() {
    let limit = striped::<2, u64>(1_000);
    let one = Stripe::of(&limit, 1);
    // A request for more than a draw is taken from the rest.
    assert_eq!((take(&one, 300), limit.held()), (300, 0));
    assert_eq!((take(&one, 1), limit.held()), (1, 699 / 8));
    one.release(250 - 87);
    assert_eq!(limit.held(), 250);
    one.release(1);
    assert_eq!((limit.held(), limit.available()), (0, 863));
    // A release of more than that returns to the rest, and leaves the stripe open.
    assert_eq!((take(&one, 1), limit.held()), (1, 862 / 8));
    assert_eq!((take(&one, 251), limit.held()), (251, 107));
    one.release(251);
    assert_eq!((limit.held(), limit.available()), (107, 862));
}

#[test]
fn a_look_that_finds_enough_leaves_the_stripes_open() {
    let limit = striped::<2, u64>(1_000);
    let one = Stripe::of(&limit, 1);
    assert_eq!(take(&one, 1), 1);
    let held = limit.held();
    assert!(held > 0 && one.peek_at(NOW, 999).is_ok());
    assert_eq!(limit.held(), held);
}

/// The words that stripes share, as they are printed.
#[derive(Debug, PartialEq)]
struct Shared {
    rest: u64,
    closing: u64,
}

fn shared<const N: usize>(limit: &StripedConcurrency<N>) -> Shared {
    let all = format!("{limit:?}");
    let field = |name: &str| {
        let from = &all[all.rfind(name).unwrap() + name.len()..];
        let digits = from.trim_start_matches("0x");
        let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap();
        u64::from_str_radix(&digits[..end], 16).unwrap()
    };
    Shared {
        rest: field(" rest: "),
        closing: field(" closing: "),
    }
}

/// Returns at most how often a call exchanged the shared words: a move takes two, with which the
/// call may take or release; and two count a call that closes stripes.
fn writes(before: &Shared, after: &Shared) -> u64 {
    let moves = |of: &Shared| of.rest >> 11 & 0x7fff_ffff;
    match moves(after).wrapping_sub(moves(before)) & 0x7fff_ffff {
        0 => u64::from(before != after),
        1 => 3,
        more => 2 * more + 3,
    }
}

#[test]
fn where_permits_abound_the_shared_word_is_written_once_in_at_least_64_permits() {
    const N: usize = 8;
    type On = fn(u64, &mut Draws<'_>) -> u64;
    let one: On = |_, _| 3;
    let turns: On = |i, _| i;
    let first: On = |i, _| i % 4;
    let last: On = |i, _| 4 + i % 4;
    let random: On = |_, draws| draws.below(8);
    let patterns: [(&str, u64, On, On); 7] = [
        ("on one stripe", 0, one, one),
        ("on one stripe, 5,000 held", 5_000, one, one),
        ("in turn", 0, turns, turns),
        ("in turn, 5,000 held", 5_000, turns, turns),
        ("taken on some, released on others", 100, first, last),
        ("taken on one, released in turn", 900, one, turns),
        ("at random", 3_000, random, random),
    ];
    for (name, depth, takes, releases) in patterns {
        let limit: StripedConcurrency<N> = StripedConcurrency::new(1 << 19);
        let mut draws = seeded(depth);
        let (mut written, n) = (0, 100_000);
        for i in 0..n {
            let before = shared(&limit);
            let stripe = takes(i, &mut draws) as usize;
            assert_eq!(take(&Stripe::of(&limit, stripe), 1), 1);
            let between = shared(&limit);
            written += writes(&before, &between);
            if i >= depth {
                let stripe = releases(i, &mut draws) as usize;
                Stripe::of(&limit, stripe).release(1);
                written += writes(&between, &shared(&limit));
            }
        }
        println!("{name}: {written} of {n}");
        assert!((1..=n / 64).contains(&written), "{name}");
    }
}

/// Releases permits. Returns whether a request waits for them.
fn released(limit: &impl Limiter, permits: u32) -> Waiting {
    limit.give_back(Back::Release { permits }).waiting
}

#[test]
fn while_requests_wait_in_a_queue_stripes_hold_none() {
    let limit: StripedConcurrency<2> = StripedConcurrency::new(10_000);
    let (one, other) = (Stripe::of(&limit, 0), Stripe::of(&limit, 1));
    assert_eq!(take(&one, 5) + take(&other, 5), 10);
    assert!(limit.held() > 2_000);
    let _ = limit.give_back(Back::Watch(true));
    assert_eq!(limit.held(), 0);
    assert_eq!(take(&one, 5) + take(&other, 5), 10);
    one.release(5);
    assert_eq!(released(&limit, 5), Waiting::Yes);
    assert_eq!((limit.held(), LimiterExt::held(&limit)), (0, 10));
    assert_eq!(limit.pass_on(1), PassedOn::OthersAreFree);
    assert_eq!(take(&one, 9_990), 9_990);
    assert_eq!(limit.pass_on(1), PassedOn::NoneAreFree);
    let _ = limit.give_back(Back::Watch(false));
    assert_eq!(released(&limit, 9_990), Waiting::No);
    assert_eq!(take(&other, 1), 1);
    assert!(limit.held() > 1_000);
    assert_eq!(released(&limit, 1), Waiting::No);
}

// Compositions, threads, and settings.

#[test]
fn a_composition_that_names_a_limit_by_two_stripes_takes_the_sum() {
    let limit: StripedConcurrency<2> = StripedConcurrency::new(1_000);
    let both = AllOf::new((Stripe::of(&limit, 0), Stripe::of(&limit, 1)));
    assert!(both.try_acquire_at(NOW, 501).is_err());
    let all = both.try_acquire_at(NOW, 500).unwrap();
    assert_eq!(limit.available(), 0);
    drop(all);
    assert_eq!(limit.in_use(), 0);
}

#[test]
fn a_composition_that_is_denied_by_another_limit_takes_nothing() {
    let limit: StripedConcurrency<2> = StripedConcurrency::new(1_000);
    let other = Concurrency::new(1);
    let both = AllOf::new((&limit, &other));
    let lease = both.try_acquire_at(NOW, 1).unwrap();
    assert!(both.try_acquire_at(NOW, 1).is_err());
    assert_eq!(limit.available(), 999);
    drop(lease);
    assert_eq!((limit.idle_at(NOW), other.available()), (Idle::Now, 1));
}

/// Threads that take and release on random stripes. Each holds at most `most`.
fn race<const N: usize, W: Word>(limit: u32, most: [u32; 4], round: u64) -> u32 {
    let striped = striped::<N, W>(limit);
    let (in_use, denials) = (AtomicU32::new(0), AtomicU32::new(0));
    let start = Barrier::new(most.len());
    let work = |thread: u64, most: u32| {
        let (mut draws, mut out) = (seeded(16 * round + thread), VecDeque::<u32>::new());
        start.wait();
        for _ in 0..if cfg!(debug_assertions) {
            20_000
        } else {
            100_000
        } {
            // Others run while this one has permits, also on one processor.
            if draws.once_in(256) {
                std::thread::yield_now();
            }
            let on = Stripe::of(&striped, draws.below(N as u64) as usize);
            let n = draws.one_of(&[1, 1, 1, 2, most / 3 + 1]);
            if out.iter().sum::<u32>() + n <= most {
                if take(&on, n) == n {
                    let before = in_use.fetch_add(n, SeqCst);
                    assert!(before + n <= limit, "{before} + {n} of {limit}");
                    out.push_back(n);
                } else {
                    denials.fetch_add(1, SeqCst);
                }
            } else if let Some(n) = out.pop_front() {
                in_use.fetch_sub(n, SeqCst);
                on.release(n);
            }
        }
        for n in out {
            in_use.fetch_sub(n, SeqCst);
            striped.release(n);
        }
    };
    std::thread::scope(|scope| {
        for (thread, most) in (0..).zip(most) {
            scope.spawn(move || work(thread, most));
        }
    });
    assert_eq!((striped.available(), striped.in_use()), (limit, 0), "lost");
    denials.into_inner()
}

#[test]
fn threads_never_have_more_in_use_than_the_limit_and_lose_nothing() {
    fn check<W: Word>() {
        let mut denials = 0;
        for round in 0..3 {
            denials += race::<2, W>(100, [90; 4], round);
            denials += race::<4, W>(700, [600, 500, 500, 400], round);
            denials += race::<1, W>(40, [30; 4], round);
        }
        assert!(denials > 100, "{denials}");
    }
    on_both!(check);
}

/// Threads release leases of each other, whole and in part.
fn release_on_other_threads<const N: usize>(limit: u32, seed: u64) -> u32 {
    let striped: StripedConcurrency<N> = StripedConcurrency::new(limit);
    let (in_use, denials) = (AtomicU32::new(0), AtomicU32::new(0));
    let leases = Mutex::new(Vec::<Lease<&StripedConcurrency<N>>>::new());
    let work = |seed: u64| {
        let mut draws = seeded(seed);
        for _ in 0..if cfg!(debug_assertions) {
            2_000
        } else {
            20_000
        } {
            if draws.once_in(2) {
                let n = draws.one_of(&[1, 1, 2, 3, limit / 7 + 1, limit / 2 + 1]);
                match striped.try_acquire(n) {
                    Ok(lease) => {
                        let before = in_use.fetch_add(n, SeqCst);
                        assert!(before + n <= limit, "{before} + {n} of {limit}");
                        leases.lock().unwrap().push(lease);
                    }
                    Err(_) => {
                        denials.fetch_add(1, SeqCst);
                    }
                }
            } else {
                let mut all = leases.lock().unwrap();
                let which = draws.below(all.len().max(1) as u64) as usize;
                let one = (which < all.len()).then(|| all.swap_remove(which));
                drop(all);
                if let Some(mut lease) = one {
                    let part = draws.within(1, lease.permits().into()) as u32;
                    in_use.fetch_sub(part, SeqCst);
                    lease.release(part).unwrap();
                    if lease.permits() > 0 {
                        leases.lock().unwrap().push(lease);
                    }
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
    let leases = leases.into_inner().unwrap();
    let left: u32 = leases.iter().map(Lease::permits).sum();
    assert_eq!(
        (striped.in_use(), striped.available()),
        (left, limit - left)
    );
    assert!(striped.try_acquire(limit - left + 1).is_err());
    drop(leases);
    assert!(striped.try_acquire(limit).is_ok(), "lost");
    denials.into_inner()
}

#[test]
fn threads_that_release_leases_of_each_other_lose_and_gain_no_permit() {
    let mut denials = 0;
    for seed in 0..3 {
        denials += release_on_other_threads::<1>(40, seed);
        denials += release_on_other_threads::<2>(65, seed);
        denials += release_on_other_threads::<8>(5_000, seed);
        denials += release_on_other_threads::<64>(3_000, seed);
        let most = StripedConcurrency::<4>::max_limit();
        denials += release_on_other_threads::<4>(most, seed);
    }
    assert!(denials > 100, "{denials}");
}

#[test]
#[ignore = "takes minutes; cargo xtask soak runs it"]
fn soak() {
    for round in rounds("striped concurrency on threads") {
        race::<2, u64>(100, [90; 4], round);
        race::<4, u64>(700, [600, 500, 500, 400], round);
        race::<1, u64>(40, [30; 4], round);
        race::<2, u32>(100, [90; 4], round);
        assert_eq!(race::<4, u64>(200, [97, 1, 100, 2], round), 0);
    }
    for round in rounds("striped concurrency beside a plain limit") {
        let mut draws = seeded(round);
        let limit = draws.within(1, StripedConcurrency::<4>::max_limit().into());
        let limit = draws.magnitude(limit).max(1) as u32;
        decides_as_a_plain_limit::<4, u64>(limit, round);
        decides_as_a_plain_limit::<2, u32>(limit, round);
    }
}

#[test]
fn threads_that_together_want_no_more_than_the_limit_are_never_denied() {
    fn check<W: Word>() {
        for round in 0..3 {
            assert_eq!(race::<2, W>(100, [25; 4], round), 0);
            assert_eq!(race::<4, W>(200, [97, 1, 100, 2], round), 0);
            assert_eq!(race::<1, W>(40, [10; 4], round), 0);
        }
    }
    on_both!(check);
}

#[test]
fn each_thread_uses_a_stripe_of_its_own() {
    if !cfg!(feature = "std") {
        return;
    }
    let limit: StripedConcurrency<64> = StripedConcurrency::new(1 << 20);
    let draws: Vec<_> = (0..4)
        .map(|_| {
            std::thread::scope(|scope| {
                let worked = || {
                    let before = limit.held();
                    drop(limit.try_acquire(1).unwrap());
                    drop(limit.try_acquire(1).unwrap());
                    limit.held() - before
                };
                scope.spawn(worked).join().unwrap()
            })
        })
        .collect();
    assert_eq!(draws.len(), 4);
    assert!(draws.iter().all(|&held| held > 4_000), "{draws:?}");
}

#[test]
fn a_limit_of_0_and_one_that_the_word_does_not_count_are_refused() {
    fn check<W: Word>() {
        let build = |limit| StripedConcurrency::builder(limit).build_on::<2, W>();
        let setting = Setting::Limit;
        assert_eq!(build(0).unwrap_err(), SettingsError::Zero { setting });
        let max = StripedConcurrency::<2, W>::max_limit();
        assert_eq!(build(max).unwrap().available(), max);
        let refused = SettingsError::TooLarge {
            setting,
            max: max.into(),
        };
        assert_eq!(build(max + 1).unwrap_err(), refused);
        assert_eq!(
            build(5).unwrap().take_at(NOW, 6),
            Err(Denied::ExceedsCapacity {
                permits: 6,
                capacity: 5
            })
        );
    }
    on_both!(check);
    assert_eq!(
        Denied::Exhausted {
            now: NOW,
            permits: 1
        }
        .retry(&striped::<2, NativeWord>(1)),
        Retry::OnRelease
    );
}

#[test]
fn stripes_do_not_allocate() {
    fn calls<W: Word>() {
        let limit = striped::<2, W>(1_000);
        for n in [0, 1, 3, 7, 90, 900, 2_000] {
            for limiter in [&Stripe::of(&limit, 1) as &dyn Limiter, &limit] {
                let _ = limiter.explain_at(NOW, n);
                if let Ok(mut lease) = limiter.try_acquire_at(NOW, n) {
                    let _ = lease.refund_at(NOW, n / 2);
                }
                let _ = (limiter.capacity(), limiter.idle_at(NOW), limiter.id());
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
