//! The crate's only foreign calls, which read clocks that the standard library does not offer.
#![allow(unsafe_code)]

use libc::{clockid_t, timespec};

/// Returns the time of a clock of the operating system, in nanoseconds since its origin. Returns 0
/// if the system does not have the clock.
#[inline]
pub(super) fn read(clock: clockid_t) -> u64 {
    let mut time = ZERO;
    // SAFETY: `time` is a valid `timespec` to write to, for the duration of the call.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    debug_assert_eq!(failed, 0, "the system lacks clock {clock}");
    nanos(time)
}

/// Returns the resolution of a clock of the operating system, in nanoseconds. Returns 0 if the
/// system does not have the clock.
pub(super) fn resolution(clock: clockid_t) -> u64 {
    // Miri lacks the call. A tick of most kernels.
    if cfg!(miri) {
        return 4_000_000;
    }
    let mut time = ZERO;
    // SAFETY: `time` is a valid `timespec` to write to, for the duration of the call.
    let _failed = unsafe { libc::clock_getres(clock, &raw mut time) };
    nanos(time)
}

const ZERO: timespec = timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

#[inline]
// Neither value is negative. On 32-bit systems they are narrower than 64 bits.
#[allow(clippy::cast_sign_loss)]
const fn nanos(time: timespec) -> u64 {
    let (secs, nanos) = (time.tv_sec as u64, time.tv_nsec as u64);
    secs.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}
