//! The checks of held permits, wrappers and waits by key on a Cortex-M0: QEMU's microbit.
#![no_std]
#![no_main]

use cortex_m_rt::{ExceptionFrame, entry, exception};
use portable_atomic as _;

#[entry]
fn main() -> ! {
    portcullis_cortex_m::run_wrappers()
}

#[exception]
unsafe fn HardFault(frame: &ExceptionFrame) -> ! {
    panic!("{frame:?}")
}
