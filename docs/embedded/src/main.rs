//! A limiter in a static, a clock built on `SysTick`, and a task that waits for permits.
#![no_std]
#![no_main]

use core::pin::pin;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::compiler_fence;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use cortex_m::Peripherals;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m::peripheral::{SCB, SYST};
use cortex_m_rt::{entry, exception};
use cortex_m_semihosting::debug::{self, EXIT_SUCCESS};
use cortex_m_semihosting::hprintln;
use panic_semihosting as _;
use portcullis_async::{InterruptLock, NoTimer, Queue, Rejected};
use portcullis_core::{Clock, Clocked, LimiterExt, Rate, SettingsError, Timestamp, TokenBucket};

/// 20 messages per second, and up to 5 at once.
static UPLINK: Clocked<TokenBucket, SysTickClock> =
    Clocked::new(TokenBucket::new(Rate::per_second(20), 5), SysTickClock);

/// 100 samples per second, one at a time; requests for up to 8 permits can wait.
static SAMPLES: Queue<TokenBucket, NoTimer<SysTickClock>, InterruptLock> = Queue::with_lock(
    TokenBucket::new(Rate::per_second(100), 1),
    NoTimer(SysTickClock),
    8,
    InterruptLock::new(),
);

/// Cycles per turn of `SysTick`: one millisecond at 12.5 MHz.
const TURN: u32 = 12_500;
/// Nanoseconds per cycle.
const CYCLE: u64 = 80;

/// The number of turns, which wraps after 50 days, and how many halves of its range are over. Only
/// the interrupt writes them.
static TURNS: AtomicU32 = AtomicU32::new(0);
static HALVES: AtomicU32 = AtomicU32::new(0);

#[exception]
fn SysTick() {
    let (turns, halves) = (TURNS.load(Relaxed).wrapping_add(1), HALVES.load(Relaxed));
    TURNS.store(turns, Relaxed);
    if halves & 1 != turns >> 31 {
        HALVES.store(halves + 1, Relaxed);
    }
}

/// The number of turns in 64 bits. `halves` was read before `turns`, so it may be one too low, and
/// then its parity differs from the half of `turns`.
fn in_64_bits(halves: u32, turns: u32) -> u64 {
    let halves = halves + u32::from(halves & 1 != turns >> 31);
    u64::from(halves >> 1) << 32 | u64::from(turns)
}

/// The time since the start, with the resolution of one cycle.
struct SysTickClock;

impl Clock for SysTickClock {
    fn now(&self) -> Timestamp {
        loop {
            let halves = HALVES.load(Relaxed);
            compiler_fence(SeqCst);
            let turns = TURNS.load(Relaxed);
            compiler_fence(SeqCst);
            // The counter counts down, and reads 0 at the end of a turn.
            let passed = (TURN - SYST::get_current()) % TURN;
            // Counts a turn that has ended, but whose interrupt has not run yet.
            let ended = SCB::is_pendst_pending() && passed < TURN / 2;
            compiler_fence(SeqCst);
            if TURNS.load(Relaxed) == turns {
                let turns = in_64_bits(halves, turns) + u64::from(ended);
                let cycles = turns * u64::from(TURN) + u64::from(passed);
                return Timestamp::from_nanos(cycles * CYCLE);
            }
        }
    }
}

fn start_clock(mut timer: SYST) {
    timer.set_reload(TURN - 1);
    timer.clear_current();
    timer.set_clock_source(SystClkSource::Core);
    timer.enable_interrupt();
    timer.enable_counter();
}

/// Runs one task. The interrupt of the clock ends the sleep every millisecond.
fn block_on<F: Future>(task: F) -> F::Output {
    let mut task = pin!(task);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
            return output;
        }
        // Grants the permits that have become available.
        SAMPLES.advance();
        cortex_m::asm::wfi();
    }
}

/// Acquires `count` permits, one after the other, and returns how long that took.
async fn sample(count: u32) -> Result<Duration, Rejected> {
    let start = SysTickClock.now();
    for _ in 0..count {
        let _permit = SAMPLES.acquire(1).await?;
    }
    Ok(SysTickClock.now().saturating_since(start))
}

/// Builds a limiter with settings from a console, and keeps it permanently. Runs once.
fn configured(rate: u32, burst: u64) -> Result<&'static TokenBucket, SettingsError> {
    let bucket = TokenBucket::builder(Rate::per_second(rate), burst).build()?;
    let kept = cortex_m::singleton!(: TokenBucket = bucket);
    Ok(kept.expect("the limiter is built once"))
}

#[entry]
fn main() -> ! {
    let peripherals = Peripherals::take().expect("main runs once");
    start_clock(peripherals.SYST);

    // As fast as the limit allows, for 200 ms: the burst of 5, and up to 4 that replenish.
    let end = SysTickClock.now() + Duration::from_millis(200);
    let mut sent = 0;
    while SysTickClock.now() < end {
        if UPLINK.allow(1) {
            sent += 1;
        }
    }
    hprintln!("{} messages in 200 ms", sent);
    assert!((8..=9).contains(&sent));

    // The first permit is available. Each of the others becomes available after 10 ms.
    let took = block_on(sample(4)).expect("the queue is open and has room");
    hprintln!("4 samples in {} ms", took.as_millis());
    assert!((30..=33).contains(&took.as_millis()));

    let limit = configured(5, 2).expect("settings that fit");
    assert!(limit.allow_at(SysTickClock.now(), 2));
    assert!(!limit.allow_at(SysTickClock.now(), 1));

    debug::exit(EXIT_SUCCESS);
    loop {
        cortex_m::asm::wfi();
    }
}
