//! The checks of held permits, wrappers and waits by key on a Cortex-M3: QEMU's lm3s6965evb.
#![no_std]
#![no_main]

use cortex_m_rt::{ExceptionFrame, entry, exception};

#[entry]
fn main() -> ! {
    portcullis_cortex_m::run_wrappers()
}

#[exception]
unsafe fn HardFault(frame: &ExceptionFrame) -> ! {
    panic!("{frame:?}")
}
