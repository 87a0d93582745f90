//! A program with one limiter in it, or nothing: what it is larger by is what the limiter takes in
//! flash. It says how many instructions a thousand calls take.
//!
//! `cargo xtask firmware-cost` builds and runs it for each limiter in turn.
#![no_std]
#![no_main]

mod subject;

use core::hint::black_box;
use core::panic::PanicInfo;

use crate::subject::{CAPACITY, LIMIT, acquire};
use cortex_m::Peripherals;
use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::entry;
use cortex_m_semihosting::debug::{self, EXIT_FAILURE, EXIT_SUCCESS};
use cortex_m_semihosting::hio;

/// A tick of the timer, with `-icount shift=0`.
const INSTRUCTIONS_IN_TICK: u32 = 80;

/// As far as the timer counts.
const RELOAD: u32 = 0xff_ffff;

/// Calls in a measurement. As many permits are taken.
const CALLS: u32 = 1_000;

/// Instructions of so many calls, each for `n` permits and a microsecond after the one before it,
/// and of what calls them; and how many were granted.
#[inline(never)]
fn measured(n: u32) -> (u32, u32) {
    let mut granted = 0;
    let begun = SYST::get_current();
    for call in 0..CALLS {
        // The compiler knows none of it.
        let nanos = black_box(1_000_000_000 + u64::from(call) * 1_000);
        granted += u32::from(acquire(black_box(&LIMIT), black_box(n), nanos));
    }
    let ticks = begun.wrapping_sub(SYST::get_current()) & RELOAD;
    (ticks * INSTRUCTIONS_IN_TICK, granted)
}

fn fail() -> ! {
    loop {
        debug::exit(EXIT_FAILURE);
    }
}

/// A number as it is: what formats all kinds of things would be most of the program.
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
    // SAFETY: the only ones who use it.
    let mut timer = unsafe { Peripherals::steal() }.SYST;
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(RELOAD);
    timer.clear_current();
    timer.enable_counter();
    subject::prepare();
    print(size_of_val(&LIMIT) as u32);
    // As many as there are, of which some have been taken: denied, but by nothing.
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

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    fail()
}
