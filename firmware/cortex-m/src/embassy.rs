//! Waits in tasks of `embassy-executor`: for permits that come in by time, with `embassy-time` on
//! the board's timer; for permits that other tasks hold; and for releases by an interrupt.

use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::task::Waker;

use cortex_m_semihosting::debug;
use critical_section::Mutex;
use embassy_executor::{Executor, Spawner};
use embassy_time::{Instant, Timer};
use embassy_time_driver::Driver;
use embassy_time_queue_utils::Queue as Alarms;
use portcullis_async::{EmbassyTimer, InterruptLock, Queue};
use portcullis_checks::Tally;
use portcullis_core::{Concurrency, Lease, Rate, TokenBucket};

use crate::{CortexM, status};

/// Counts the timer's interrupts, and checks the alarms at each.
struct Ticks {
    count: Mutex<Cell<u64>>,
    alarms: Mutex<RefCell<Alarms>>,
}

impl Driver for Ticks {
    fn now(&self) -> u64 {
        critical_section::with(|section| self.count.borrow(section).get())
    }

    fn schedule_wake(&self, at: u64, waker: &Waker) {
        critical_section::with(|section| {
            self.alarms.borrow_ref_mut(section).schedule_wake(at, waker)
        });
    }
}

embassy_time_driver::time_driver_impl!(static TICKS: Ticks = Ticks {
    count: Mutex::new(Cell::new(0)),
    alarms: Mutex::new(RefCell::new(Alarms::new())),
});

type Limited<L> = Queue<L, EmbassyTimer, InterruptLock>;

/// 1,000 per second, one at a time.
static PACE: Limited<TokenBucket> = Queue::with_lock(
    TokenBucket::new(Rate::per_second(1_000), 1),
    EmbassyTimer,
    9,
    InterruptLock::new(),
);
static WORKERS: Limited<Concurrency> =
    Queue::with_lock(Concurrency::new(1), EmbassyTimer, 9, InterruptLock::new());

/// A lease that an interrupt releases.
static HELD: Mutex<Cell<Option<Lease<&'static Limited<Concurrency>>>>> =
    Mutex::new(Cell::new(None));
static GIVEN_BACK: AtomicU32 = AtomicU32::new(0);

/// In the timer's interrupt, for tasks.
fn on_tick() {
    critical_section::with(|section| {
        let now = TICKS.count.borrow(section).get() + 1;
        TICKS.count.borrow(section).set(now);
        TICKS.alarms.borrow_ref_mut(section).next_expiration(now);
    });
    if let Some(lease) = critical_section::with(|section| HELD.borrow(section).take()) {
        drop(lease);
        add(&GIVEN_BACK, 1);
    }
}

/// Used by one task or one interrupt at a time: some targets have only loads and stores.
fn add(count: &AtomicU32, n: u32) {
    count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
}

const PACED: u32 = 3;
const WORKING: u32 = 2;
const TURNS: u32 = 5;

static FINISHED: AtomicU32 = AtomicU32::new(0);
static PACED_TURNS: AtomicU32 = AtomicU32::new(0);
static PACED_UNTIL: AtomicU32 = AtomicU32::new(0);
static AT_WORK: AtomicU32 = AtomicU32::new(0);
static TOO_MANY_AT_WORK: AtomicU32 = AtomicU32::new(0);
static WORK_TURNS: AtomicU32 = AtomicU32::new(0);
static HELD_TURNS: AtomicU32 = AtomicU32::new(0);

#[embassy_executor::task]
async fn drive() {
    PACE.drive().await;
    add(&FINISHED, 1);
}

#[embassy_executor::task(pool_size = PACED as usize)]
async fn keep_pace() {
    for _ in 0..TURNS {
        if PACE.acquire(1).await.is_ok() {
            add(&PACED_TURNS, 1);
            PACED_UNTIL.store(Instant::now().as_ticks() as u32, Relaxed);
        }
    }
    add(&FINISHED, 1);
}

#[embassy_executor::task(pool_size = WORKING as usize)]
async fn work() {
    for _ in 0..TURNS {
        let lease = WORKERS.acquire(1).await;
        add(&AT_WORK, 1);
        Timer::after_ticks(2).await;
        add(&TOO_MANY_AT_WORK, u32::from(AT_WORK.load(Relaxed) != 1));
        add(&AT_WORK, u32::MAX);
        add(&WORK_TURNS, u32::from(lease.is_ok()));
    }
    add(&FINISHED, 1);
}

/// Takes a permit that an interrupt then releases to the next waiter.
#[embassy_executor::task]
async fn hold() {
    for _ in 0..TURNS {
        if let Ok(lease) = WORKERS.acquire(1).await {
            add(&HELD_TURNS, 1);
            critical_section::with(|section| HELD.borrow(section).set(Some(lease)));
        }
    }
    add(&FINISHED, 1);
}

/// Waits for all of them, for a limited time, and ends the program.
#[embassy_executor::task]
async fn conclude(mut tally: Tally) {
    const LATEST: u64 = 1_000;
    while FINISHED.load(Relaxed) < PACED + WORKING + 1 && Instant::now().as_ticks() < LATEST {
        Timer::after_ticks(1).await;
    }
    // Released by the interrupt.
    WORKERS.drained().await;
    PACE.close();
    Timer::after_ticks(1).await;
    tally.group(&CortexM, "tasks of embassy-executor", |group| {
        let finished = FINISHED.load(Relaxed);
        group.check(
            finished == PACED + WORKING + 2,
            format_args!("{finished} tasks have finished"),
        );
        let (turns, until) = (PACED_TURNS.load(Relaxed), PACED_UNTIL.load(Relaxed));
        // The first permit is available, and each of the others comes a millisecond after the one
        // before it.
        group.check(
            turns == PACED * TURNS,
            format_args!("{turns} turns of the paced tasks"),
        );
        let fits = (140..160).contains(&until);
        group.check(
            fits,
            format_args!("14 ms were over after {until} ticks of 100 us"),
        );
        let (turns, held) = (WORK_TURNS.load(Relaxed), HELD_TURNS.load(Relaxed));
        group.check(
            turns == WORKING * TURNS && held == TURNS,
            format_args!("{turns} and {held} turns"),
        );
        let many = TOO_MANY_AT_WORK.load(Relaxed);
        group.check(many == 0, format_args!("{many} times two at work at once"));
        let given_back = GIVEN_BACK.load(Relaxed);
        group.check(
            given_back == TURNS,
            format_args!("{given_back} given back in an interrupt"),
        );
        let free = WORKERS.available();
        group.check(
            free == 1 && WORKERS.counts().waiters == 0,
            format_args!("{free} free"),
        );
    });
    debug::exit(status(tally.close(&CortexM)));
}

/// Runs the tasks, the last of which ends the program.
pub(crate) fn run(tally: Tally, ticks: u32) -> ! {
    crate::start_ticking(ticks, on_tick);
    let executor = cortex_m::singleton!(: Executor = Executor::new()).expect("there is one run");
    executor.run(|spawner: Spawner| {
        spawner.spawn(conclude(tally).expect("one of it"));
        spawner.spawn(drive().expect("one of it"));
        spawner.spawn(hold().expect("one of it"));
        for _ in 0..PACED {
            spawner.spawn(keep_pace().expect("as many as there is room for"));
        }
        for _ in 0..WORKING {
            spawner.spawn(work().expect("as many as there is room for"));
        }
    })
}
