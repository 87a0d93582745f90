//! The crate's only foreign calls: they read clocks that the standard library does not offer, and
//! count cores without its files and allocations.
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

/// Returns the number of cores that the first thread of the process may use. 1 if the system does
/// not tell. Allocates nothing, and may be called in a signal handler.
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub(crate) fn cores() -> usize {
    // Miri lacks the call.
    if cfg!(miri) {
        return 1;
    }
    // SAFETY: a set of bits, all of which may be 0.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: `set` is a valid set of that size to write to, for the duration of the call.
    let failed = unsafe {
        libc::sched_getaffinity(libc::getpid(), size_of::<libc::cpu_set_t>(), &raw mut set)
    };
    if failed != 0 {
        return 1;
    }
    // SAFETY: the system has written the set.
    unsafe { libc::CPU_COUNT(&set) }.unsigned_abs() as usize
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
