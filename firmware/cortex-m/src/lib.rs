//! What the Cortex-M boards have in common: semihosting as the terminal, `SysTick` as the timer.
#![no_std]

mod embassy;
mod systick;

use core::arch::{asm, naked_asm};
use core::cell::Cell;
use core::fmt;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use cortex_m::peripheral::syst::SystClkSource;
use cortex_m::peripheral::{Peripherals, SYST};
use cortex_m_semihosting::debug::{self, EXIT_FAILURE, EXIT_SUCCESS, ExitStatus};
use cortex_m_semihosting::hprint;
use critical_section::Mutex;
use panic_semihosting as _;
use portcullis_checks::{Board, Preempting, Tally};

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
        // An interrupt between the check and the sleep is pending, so it ends the sleep.
        while !critical_section::with(|_| {
            let is_done = done();
            if !is_done {
                cortex_m::asm::wfi();
            }
            is_done
        }) {}
    }
}

impl Preempting for CortexM {
    fn preempt(&self, sooner: u32, work: &mut dyn FnMut(), handler: fn()) -> usize {
        critical_section::with(|section| HANDLER.borrow(section).set(Some(handler)));
        CAME_AT.store(0, Relaxed);
        start_timer(300);
        wait(sooner);
        work();
        loop {
            match CAME_AT.load(Relaxed) {
                0 => {}
                address => return address as usize,
            }
        }
    }
}

/// Waits for `instructions + 4` instructions.
#[inline(always)]
fn wait(instructions: u32) {
    // SAFETY: uses registers only.
    unsafe {
        asm!(
            "lsrs {n}, {n}, #1",
            // One more, if it is odd.
            "bcc 2f",
            "nop",
            "2:",
            "cmp {n}, #0",
            "beq 4f",
            "3:",
            "subs {n}, {n}, #1",
            "bne 3b",
            "4:",
            n = inout(reg) instructions => _,
            options(nomem, nostack),
        );
    }
}

/// Runs `handler` after `ticks` of the processor's ticks, and repeatedly.
fn start_ticking(ticks: u32, handler: fn()) {
    critical_section::with(|section| REPEATED.borrow(section).set(Some(handler)));
    start_timer(ticks - 1);
}

/// What each tick runs.
static REPEATED: Mutex<Cell<Option<fn()>>> = Mutex::new(Cell::new(None));

fn start_timer(ticks: u32) {
    // SAFETY: only this module uses the timer, and its handler only after it has been started here.
    let mut timer = unsafe { Peripherals::steal() }.SYST;
    timer.disable_counter();
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(ticks);
    timer.clear_current();
    timer.enable_interrupt();
    timer.enable_counter();
}

/// The address at which the timer's interrupt came. Only loads and stores: some targets have no
/// other atomic operations.
static CAME_AT: AtomicU32 = AtomicU32::new(0);

/// The timer's interrupt. At its beginning the stack shows what was interrupted.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn SysTick() {
    naked_asm!("mov r0, sp", "ldr r1, ={on_tick}", "bx r1", on_tick = sym on_tick)
}

/// # Safety
///
/// `frame` must be the frame that an exception makes.
unsafe extern "C" fn on_tick(frame: *const u32) {
    if let Some(repeated) = critical_section::with(|section| REPEATED.borrow(section).get()) {
        return repeated();
    }
    // SAFETY: the counter has run out, and only the interrupted context starts it.
    unsafe { (*SYST::PTR).csr.write(0) };
    if let Some(handler) = critical_section::with(|section| HANDLER.borrow(section).take()) {
        handler();
    }
    // SAFETY: its seventh word is the address to return to.
    CAME_AT.store(unsafe { *frame.add(6) }, Relaxed);
}

/// The place at which the stack would reach the statics.
struct StackEnd;

impl StackEnd {
    const UNTOUCHED: u32 = 0x5afe_57ac;

    fn word() -> *mut u32 {
        unsafe extern "C" {
            static mut __sheap: u32;
        }
        &raw mut __sheap
    }

    fn mark() {
        // SAFETY: a linker symbol behind all statics; there is no heap.
        unsafe { Self::word().write_volatile(Self::UNTOUCHED) };
    }

    fn is_untouched() -> bool {
        // SAFETY: the same.
        unsafe { Self::word().read_volatile() == Self::UNTOUCHED }
    }
}

fn status(succeeds: bool) -> ExitStatus {
    if succeeds { EXIT_SUCCESS } else { EXIT_FAILURE }
}

/// Makes all checks except those of the other programs, on a processor of `hertz`, and exits with a
/// status.
pub fn run(hertz: u32) -> ! {
    StackEnd::mark();
    let mut tally = Tally::default();
    portcullis_checks::run(&CortexM, &mut tally);
    check_stack(&mut tally);
    embassy::run(tally, hertz / embassy_time_driver::TICK_HZ as u32)
}

/// Makes the checks of keyed tables, and exits with a status.
pub fn run_tables() -> ! {
    end_with(|tally| {
        portcullis_checks::run_tables(&CortexM, tally);
        systick::check(tally);
    })
}

/// Makes the checks of held permits, wrappers and waits by key, and exits with a status.
pub fn run_wrappers() -> ! {
    end_with(|tally| portcullis_checks::run_wrappers(&CortexM, tally))
}

/// Interrupts calls at each of their instructions, and exits with a status.
pub fn run_preempted() -> ! {
    end_with(|tally| portcullis_checks::preempt(&CortexM, tally))
}

fn end_with(checks: impl FnOnce(&mut Tally)) -> ! {
    StackEnd::mark();
    let mut tally = Tally::default();
    checks(&mut tally);
    check_stack(&mut tally);
    debug::exit(status(tally.close(&CortexM)));
    loop {
        cortex_m::asm::wfi();
    }
}

fn check_stack(tally: &mut Tally) {
    tally.group(&CortexM, "the stack is large enough", |group| {
        group.check(
            StackEnd::is_untouched(),
            format_args!("it has reached the statics"),
        );
    });
}
