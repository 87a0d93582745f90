//! A member with its driver: what it takes, tells and gives back, in tasks and in threads.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use portcullis_core::{Clock, MonotonicClock, Rate};
use portcullis_fleet::{
    Exchange, Fallback, LeaseError, LeaseFuture, LeaseStore, Member, MemberBuilder, MemberReport,
    MemberShare, MemberStatus, MemoryLeases, Notice, Pool, Standing,
};

/// Longer than anything takes, however busy the machine is.
const LONG: Duration = Duration::from_mins(1);

fn pool() -> Pool {
    let pool = Pool::builder("writes", Rate::per_second(500));
    pool.build().unwrap()
}

/// A store in this process that can be switched off.
struct Store {
    table: MemoryLeases<MonotonicClock>,
    is_off: AtomicBool,
    exchanges: AtomicU32,
}

impl Store {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            table: MemoryLeases::new(MonotonicClock::new()),
            is_off: AtomicBool::new(false),
            exchanges: AtomicU32::new(0),
        })
    }
}

impl LeaseStore for Store {
    fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> LeaseFuture<'a> {
        self.exchanges.fetch_add(1, SeqCst);
        if self.is_off.load(SeqCst) {
            let error = LeaseError::Unreachable("switched off".into());
            return Box::pin(core::future::ready(Err(error)));
        }
        self.table.exchange(pool, request)
    }
}

/// Builds a member, and runs its driver in a thread.
fn run(builder: MemberBuilder) -> (Member, thread::JoinHandle<()>) {
    let (member, driver) = builder.build().unwrap();
    (member, thread::spawn(|| driver.blocking_run()))
}

fn until(member: &Member, holds: impl Fn(MemberStatus) -> bool) -> MemberStatus {
    let begun = Instant::now();
    let mut status = member.status();
    while !holds(status) {
        assert!(begun.elapsed() < LONG, "{status:?}");
        status = member
            .blocking_changed(status.generation, LONG)
            .unwrap_or_else(|| member.status());
    }
    status
}

#[test]
fn it_takes_what_it_wants_and_gives_back_what_it_does_not() {
    let store = Store::new();
    let (one, driver) = run(Member::builder(pool(), Arc::clone(&store)));
    one.want(15);
    until(&one, |status| status.share.partitions == 15);
    let fences: Vec<_> = one.leases().iter().map(|held| held.fence).collect();
    assert_eq!(fences.len(), 15);
    let (other, of_other) = run(Member::builder(pool(), store));
    // 15 of 20 are taken.
    other.want_rate(250);
    until(&other, |status| status.share.partitions == 5);
    one.want(2);
    until(&one, |status| status.share.partitions == 2);
    until(&other, |status| status.share.partitions == 10);
    drop(one);
    driver.join().unwrap();
    other.want(20);
    until(&other, |status| status.share.partitions == 20);
    let limiter = other.limiter();
    drop(other);
    of_other.join().unwrap();
    let now = MonotonicClock::new().now();
    assert!(limiter.try_acquire_at(now, 1).is_err(), "it has left");
}

#[test]
fn tasks_and_threads_wait_for_a_change() {
    let (member, _driver) = run(Member::builder(pool(), Store::new()));
    let waiters: Vec<_> = (0..4)
        .map(|number| {
            let member = member.clone();
            thread::spawn(move || match number % 2 {
                0 => futures_executor::block_on(member.changed(0)),
                _ => member.blocking_changed(0, LONG).unwrap(),
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(20));
    member.want(3);
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().share.partitions, 3);
    }
}

/// Takes until nothing has been admitted for a while, then counts for a while.
fn rate(member: &Member, time: Duration) -> (u32, Duration) {
    let (limiter, clock) = (member.limiter(), MonotonicClock::new());
    let begun = Instant::now();
    let mut admitted = 0;
    while begun.elapsed() < time {
        match limiter.try_acquire_at(clock.now(), 1) {
            Ok(_) => admitted += 1,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
    (admitted, begun.elapsed())
}

#[test]
fn without_the_store_leases_last_and_then_the_fallback_is_in_force() {
    let lease = Duration::from_millis(900);
    let pool = pool()
        .to_builder()
        .lease(lease)
        .margin(Duration::from_millis(100));
    let pool = pool.reserved(50).build().unwrap();
    for (fallback, least, most) in [
        (Fallback::Reserved, 30, 50_u32),
        (Fallback::Block, 0, 0),
        (Fallback::Safe(150), 130, 200),
    ] {
        let (store, seen) = (Store::new(), Arc::new(Mutex::new(Vec::new())));
        let notices = Arc::clone(&seen);
        let builder = Member::builder(pool.clone(), Arc::clone(&store)).fallback(fallback);
        let builder = builder.observer(move |notice| {
            notices.lock().unwrap().push(match notice {
                Notice::Failed(_) => String::new(),
                other => format!("{other:?}"),
            });
        });
        let (member, driver) = run(builder);
        member.want(20);
        let ends = until(&member, |status| status.share.partitions == 20)
            .share
            .until;
        store.is_off.store(true, SeqCst);
        until(&member, |status| status.standing == Standing::Unreachable);
        let status = until(&member, |status| status.standing == Standing::Alone);
        assert_eq!(status.share, MemberShare::NONE);
        assert!(MonotonicClock::new().now() >= ends, "leases last");
        let (admitted, time) = rate(&member, Duration::from_secs(1));
        let bound = u64::from(most) * time.as_millis() as u64 / 1_000 + u64::from(most) / 10 + 1;
        assert!(
            u64::from(admitted) <= bound,
            "{fallback:?} {admitted} in {time:?}"
        );
        if time < Duration::from_millis(1_100) {
            assert!(admitted >= least / 2, "{fallback:?} {admitted} in {time:?}");
        }
        store.is_off.store(false, SeqCst);
        until(&member, |status| status.share.partitions == 20);
        assert_eq!(member.status().standing, Standing::Connected);
        drop(member);
        driver.join().unwrap();
        let seen = seen.lock().unwrap();
        let seen: Vec<_> = seen.iter().filter(|notice| !notice.is_empty()).collect();
        let place = |text: &str| {
            let found = seen.iter().position(|notice| notice.starts_with(text));
            found.unwrap_or_else(|| panic!("no {text} in {seen:?}"))
        };
        let falls = format!("FallsBack({fallback:?})");
        let order = [
            "Report(Unreachable)",
            "Report(Alone)",
            &falls,
            "Report(Reachable)",
            "Left",
        ];
        assert!(order.map(place).is_sorted(), "{seen:?}");
    }
}

#[test]
fn it_backs_off_while_the_store_is_away() {
    let store = Store::new();
    store.is_off.store(true, SeqCst);
    let (member, _driver) = run(Member::builder(pool(), Arc::clone(&store)));
    member.want(1);
    thread::sleep(Duration::from_secs(2));
    // Pauses of about 0.3, 0.6, 1.2 seconds.
    let exchanges = store.exchanges.load(SeqCst);
    assert!((1..=5).contains(&exchanges), "{exchanges}");
}

#[test]
fn it_leaves_within_a_lease_although_the_store_is_away() {
    let pool = pool()
        .to_builder()
        .lease(Duration::from_millis(500))
        .margin(Duration::from_millis(100))
        .build()
        .unwrap();
    let store = Store::new();
    let (member, driver) = run(Member::builder(pool, Arc::clone(&store)));
    member.want(4);
    until(&member, |status| status.share.partitions == 4);
    store.is_off.store(true, SeqCst);
    member.leave();
    until(&member, |status| status.standing == Standing::Left);
    driver.join().unwrap();
}

#[test]
fn a_driver_that_is_dropped_ends_the_share() {
    let (member, driver) = Member::builder(pool(), Store::new()).build().unwrap();
    member.want(20);
    let mut run = Box::pin(driver.run());
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    let begun = Instant::now();
    while member.status().share.partitions < 20 {
        assert!(run.as_mut().poll(&mut context).is_pending());
        assert!(begun.elapsed() < LONG);
    }
    thread::sleep(Duration::from_millis(50));
    let now = || MonotonicClock::new().now();
    assert!(member.limiter().try_acquire_at(now(), 1).is_ok());
    drop(run);
    assert_eq!(member.status().standing, Standing::Left);
    assert!(member.limiter().try_acquire_at(now(), 1).is_err());
}

#[test]
fn a_driver_that_is_dropped_ends_the_fallback() {
    for (fallback, reserved) in [(Fallback::Safe(1_000), false), (Fallback::Block, true)] {
        let pool = pool().to_builder().reserved(100 * u32::from(reserved));
        let store = Store::new();
        store.is_off.store(true, SeqCst);
        let builder = Member::builder(pool.build().unwrap(), store).fallback(fallback);
        let (member, driver) = run(builder);
        member.want(1);
        until(&member, |status| status.standing == Standing::Alone);
        member.leave();
        driver.join().unwrap();
        thread::sleep(Duration::from_millis(50));
        let limiter = member.limiter();
        let taken = limiter.try_acquire_at(MonotonicClock::new().now(), 1);
        assert_eq!(taken.is_ok(), reserved, "{fallback:?}");
    }
}

/// A change that names another pool must not ask the store for that one.
#[test]
fn a_change_keeps_the_name_of_the_pool() {
    struct Names(MemoryLeases<MonotonicClock>, Mutex<Vec<String>>);

    impl LeaseStore for Names {
        fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> LeaseFuture<'a> {
            self.1.lock().unwrap().push(pool.to_owned());
            self.0.exchange(pool, request)
        }
    }

    let table = MemoryLeases::new(MonotonicClock::new());
    let store = Arc::new(Names(table, Mutex::default()));
    let (member, _driver) = run(Member::builder(pool(), Arc::clone(&store)));
    let other = Pool::builder("queries", Rate::per_second(100))
        .build()
        .unwrap();
    member.change(other).unwrap();
    member.want_rate(100);
    until(&member, |status| status.share.partitions == 20);
    let names = store.1.lock().unwrap();
    assert!(names.iter().all(|name| name == "writes"), "{names:?}");
}

#[test]
fn an_observer_that_panics_ends_the_share() {
    let builder = Member::builder(pool(), Store::new()).observer(|notice| {
        assert!(
            !matches!(notice, Notice::Share(share) if share.partitions > 0),
            "on purpose"
        );
    });
    let (member, driver) = run(builder);
    member.want(20);
    let status = until(&member, |status| status.standing == Standing::Left);
    assert_eq!(status.share, MemberShare::NONE);
    assert!(driver.join().is_err());
    thread::sleep(Duration::from_millis(50));
    assert!(
        member
            .limiter()
            .try_acquire_at(MonotonicClock::new().now(), 1)
            .is_err()
    );
}

#[test]
fn other_settings_of_the_pool_are_followed() {
    let (member, _driver) = run(Member::builder(pool(), Store::new()));
    member.want(20);
    until(&member, |status| status.share.partitions == 20);
    member
        .change(pool().to_builder().partitions(8).build().unwrap())
        .unwrap();
    until(&member, |status| status.share.partitions <= 8);
}

#[test]
fn a_report_is_told_once() {
    let (store, alone) = (Store::new(), Arc::new(AtomicU32::new(0)));
    store.is_off.store(true, SeqCst);
    let count = Arc::clone(&alone);
    let builder = Member::builder(pool(), Arc::clone(&store)).observer(move |notice| {
        if matches!(notice, Notice::Report(MemberReport::Alone)) {
            count.fetch_add(1, SeqCst);
        }
    });
    let (member, _driver) = run(builder);
    member.want(1);
    until(&member, |status| status.standing == Standing::Alone);
    while store.exchanges.load(SeqCst) < 3 {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(alone.load(SeqCst), 1);
}
