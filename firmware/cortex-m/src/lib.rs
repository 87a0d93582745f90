//! What the Cortex-M boards have in common: semihosting for a terminal, `SysTick` for a timer.
#![no_std]

use core::cell::Cell;
use core::fmt;

use cortex_m::peripheral::syst::SystClkSource;
use cortex_m::peripheral::{Peripherals, SYST};
use cortex_m_semihosting::debug::{self, EXIT_FAILURE, EXIT_SUCCESS};
use cortex_m_semihosting::hprint;
use critical_section::Mutex;
use panic_semihosting as _;
use portcullis_checks::{Board, Tally};

/// What the next tick runs.
static HANDLER: Mutex<Cell<Option<fn()>>> = Mutex::new(Cell::new(None));

/// A processor with a terminal.
struct CortexM;

impl Board for CortexM {
    fn print(&self, text: fmt::Arguments<'_>) {
        hprint!("{}", text);
    }

    fn interrupt(&self, handler: fn()) {
        critical_section::with(|section| HANDLER.borrow(section).set(Some(handler)));
        start_timer(100);
    }

    fn sleep_until(&self, done: &dyn Fn() -> bool) {
        // An interrupt that comes between the look and the sleep ends the sleep, being pending.
        while !critical_section::with(|_| {
            let is_done = done();
            if !is_done {
                cortex_m::asm::wfi();
            }
            is_done
        }) {}
    }
}

fn start_timer(ticks: u32) {
    // SAFETY: nothing but this module uses the timer, and its handler only once it has been started here.
    let mut timer = unsafe { Peripherals::steal() }.SYST;
    timer.disable_counter();
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(ticks);
    timer.clear_current();
    timer.enable_interrupt();
    timer.enable_counter();
}

/// The timer's interrupt: for `SysTick`.
pub fn on_tick() {
    // SAFETY: the counter has run out, and is started only by whom this interrupts.
    unsafe { (*SYST::PTR).csr.write(0) };
    if let Some(handler) = critical_section::with(|section| HANDLER.borrow(section).take()) {
        handler();
    }
}

/// Makes all checks, and ends with a status.
pub fn run() -> ! {
    let mut tally = Tally::default();
    portcullis_checks::run(&CortexM, &mut tally);
    debug::exit(if tally.close(&CortexM) { EXIT_SUCCESS } else { EXIT_FAILURE });
    unreachable!("the emulator has ended")
}
