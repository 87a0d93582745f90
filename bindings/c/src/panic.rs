//! What happens if a defect makes the library panic. The library for C is built with `panic =
//! "abort"`; elsewhere, as in tests, `std` has a handler.

use core::panic::PanicInfo;

unsafe extern "C" {
    /// The function of C's standard library. Firmware without that library defines it.
    safe fn abort() -> !;
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    abort()
}
