//! The beacon on a Cortex-M0: QEMU's micro:bit.
#![no_std]
#![no_main]

use core::time::Duration;

use beacon_logic::{Beacon, WideCounter};
use cortex_m::Peripherals;
use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::entry;
use cortex_m_semihosting::debug::{self, EXIT_SUCCESS};
use cortex_m_semihosting::hprintln;
use panic_semihosting as _;
use portcullis_core::Clock;

static BEACON: Beacon = Beacon::at_rest();

/// `SysTick` has 24 bits, which wrap after 1.05 s at 16 MHz.
static CLOCK: WideCounter<24, 16_000_000> = WideCounter::new(counted_up);

const WHOLE: u32 = 0xff_ffff;

/// `SysTick` counts down.
fn counted_up() -> u32 {
    WHOLE - SYST::get_current()
}

#[entry]
fn main() -> ! {
    let mut timer = Peripherals::take().expect("main runs once").SYST;
    timer.set_reload(WHOLE);
    timer.clear_current();
    timer.set_clock_source(SystClkSource::Core);
    timer.enable_counter();

    // Three at once, and one after a second. The loop reads the counter far more often than once
    // per wrap. Its first count is anywhere: the origin of the time does not matter.
    let end = CLOCK.now() + Duration::from_millis(1_500);
    let mut sent = 0;
    while CLOCK.now() < end {
        sent += u32::from(BEACON.may_send(CLOCK.now()));
    }
    hprintln!("{} messages in 1.5 s", sent);
    assert_eq!(sent, 4);

    debug::exit(EXIT_SUCCESS);
    loop {
        cortex_m::asm::wfi();
    }
}
