//! A clock by `SysTick`, whose 24 bits an interrupt makes 64.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::compiler_fence;

use cortex_m::peripheral::{SCB, SYST};
use portcullis_checks::Tally;
use portcullis_core::{Clock, Timestamp};

use crate::CortexM;

/// Nanoseconds in `PER` cycles of the processor.
const NANOS: u64 = 80;
const PER: u64 = 1;
/// The cycles in a turn of the counter. 24 bits allow up to 2^24.
const TURN: u32 = 1 << 10;

/// Written only by the interrupt. It wraps after decades.
static TURNS: AtomicU32 = AtomicU32::new(0);

struct SysTickClock;

impl Clock for SysTickClock {
    fn now(&self) -> Timestamp {
        loop {
            let turns = TURNS.load(Relaxed);
            compiler_fence(SeqCst);
            // The counter counts down, and shows 0 at the end of a turn.
            let passed = (TURN - SYST::get_current()) % TURN;
            // A turn has ended, and its interrupt has to wait for this one.
            let ended = SCB::is_pendst_pending() && passed < TURN / 2;
            compiler_fence(SeqCst);
            if TURNS.load(Relaxed) == turns {
                let cycles =
                    (u64::from(turns) + u64::from(ended)) * u64::from(TURN) + u64::from(passed);
                return Timestamp::from_nanos(cycles * NANOS / PER);
            }
        }
    }
}

fn on_turn() {
    TURNS.store(TURNS.load(Relaxed) + 1, Relaxed);
}

/// Reads the clock many times per turn, for many turns; each time with and without interrupts.
pub(crate) fn check(tally: &mut Tally) {
    tally.group(&CortexM, "time by SysTick", |group| {
        crate::start_ticking(TURN, on_turn);
        let mut before = SysTickClock.now();
        let (mut readings, mut pending) = (0u32, 0u32);
        while TURNS.load(Relaxed) < 200 {
            let now = if readings.is_multiple_of(3) {
                cortex_m::interrupt::free(|_| {
                    let first = SysTickClock.now();
                    cortex_m::asm::delay(readings % 500);
                    let second = SysTickClock.now();
                    group.check(
                        first <= second,
                        format_args!("{first} before {second}, without interrupts"),
                    );
                    pending += u32::from(SCB::is_pendst_pending());
                    second
                })
            } else {
                SysTickClock.now()
            };
            let turn = Timestamp::from_nanos(u64::from(TURN) * NANOS / PER);
            let fits = before <= now && now.as_nanos() - before.as_nanos() < turn.as_nanos();
            group.check(fits, format_args!("{before}, then {now}"));
            before = now;
            readings += 1;
        }
        let turns = before.as_nanos() * PER / NANOS / u64::from(TURN);
        group.check(
            (199..=201).contains(&turns),
            format_args!("{turns} turns of 200"),
        );
        group.check(
            pending > 5,
            format_args!("{pending} of {readings} readings while a turn's end is pending"),
        );
    });
}
