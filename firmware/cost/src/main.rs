//! A program with one limiter in it, or none: the difference in size is the flash that the limiter
//! takes. The program prints how many instructions a thousand calls take.
//!
//! `cargo xtask firmware-cost` builds and runs it for each limiter in turn.
#![no_std]
#![no_main]

#[cfg(in_c)]
mod in_c;
mod subject;

use core::hint::black_box;
#[cfg(not(in_c))]
use core::panic::PanicInfo;

use crate::subject::{CAPACITY, LIMIT, acquire};
use cortex_m::Peripherals;
use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::entry;
use cortex_m_semihosting::debug::{self, EXIT_FAILURE, EXIT_SUCCESS};
use cortex_m_semihosting::hio;

/// Two ticks of the timer, with `-icount shift=0`: at 12.5 MHz, and at 16 MHz on the board with the
/// Cortex-M0.
const INSTRUCTIONS_IN_TWO_TICKS: u32 = if cfg!(target_has_atomic = "32") {
    160
} else {
    125
};

/// The largest count of the timer.
const RELOAD: u32 = 0xff_ffff;

/// The number of calls in a measurement. Each takes one permit.
const CALLS: u32 = 1_000;

/// Returns the instructions of [`CALLS`] calls, including the loop, and how many were granted. Each
/// call is for `n` permits, a microsecond after the one before it.
#[inline(never)]
fn measured(n: u32) -> (u32, u32) {
    let mut granted = 0;
    let begun = SYST::get_current();
    for call in 0..CALLS {
        // The compiler must not know the values.
        let nanos = black_box(1_000_000_000 + u64::from(call) * 1_000);
        granted += u32::from(acquire(black_box(&LIMIT), black_box(n), nanos));
    }
    let ticks = begun.wrapping_sub(SYST::get_current()) & RELOAD;
    (ticks * INSTRUCTIONS_IN_TWO_TICKS / 2, granted)
}

fn fail() -> ! {
    loop {
        debug::exit(EXIT_FAILURE);
    }
}

/// Prints a number by hand: general formatting would be most of the program.
fn print(mut number: u32) {
    let mut digits = [b' '; 11];
    let mut place = digits.len() - 1;
    loop {
        place -= 1;
        digits[place] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    if hio::hstdout()
        .and_then(|mut terminal| terminal.write_all(&digits))
        .is_err()
    {
        fail();
    }
}

#[entry]
fn main() -> ! {
    // SAFETY: nothing else uses the peripherals.
    let mut timer = unsafe { Peripherals::steal() }.SYST;
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(RELOAD);
    timer.clear_current();
    timer.enable_counter();
    subject::prepare();
    print(size_of_val(&LIMIT) as u32);
    // For the whole capacity, of which some permits are taken: denied, except with no limiter.
    for (n, expected) in [
        (1, CALLS),
        (CAPACITY, if cfg!(subject = "nothing") { CALLS } else { 0 }),
    ] {
        let (instructions, granted) = measured(n);
        if granted != expected {
            fail();
        }
        print(instructions);
    }
    debug::exit(EXIT_SUCCESS);
    fail()
}

/// The library for C has a panic handler, which calls this.
#[cfg(in_c)]
#[unsafe(no_mangle)]
extern "C" fn abort() -> ! {
    fail()
}

#[cfg(not(in_c))]
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    fail()
}
