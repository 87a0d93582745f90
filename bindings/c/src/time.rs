//! Times: nanoseconds, and the ticks of a timer.

const SECOND: u64 = 1_000_000_000;

/// Returns the nanoseconds of `ticks` of a timer that counts `hertz` in a second, rounded down; at
/// most `UINT64_MAX`. With 0 hertz, returns 0. Later ticks never give an earlier time.
///
/// If a tick is a whole number of nanoseconds, multiply instead: this function divides.
///
/// Interrupts: may be called anywhere.
#[unsafe(no_mangle)]
pub extern "C" fn pc_nanos(ticks: u64, hertz: u32) -> u64 {
    let hertz = u64::from(hertz);
    let (Some(seconds), Some(rest)) = (ticks.checked_div(hertz), ticks.checked_rem(hertz)) else {
        return 0;
    };
    // Less than 2^32 ticks, times 2^30: it fits.
    let part = (rest * SECOND).checked_div(hertz).unwrap_or_default();
    seconds.saturating_mul(SECOND).saturating_add(part)
}
