//! Sleeping until a word of a mapping changes, also by another process. The calls of the operating
//! system that the standard library does not offer for other processes.
#![allow(unsafe_code)]

use core::ffi::c_long;
use core::ptr;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

/// The time that the call takes: words of the system, also where a library's `timespec` is wider.
#[repr(C)]
struct Time {
    seconds: c_long,
    nanos: c_long,
}

/// Sleeps until [`wake`] is called for the word, if the word is `seen`; at most for `time`. May
/// return earlier.
pub(crate) fn sleep(word: &AtomicU32, seen: u32, time: Duration) {
    let time = Time {
        seconds: c_long::try_from(time.as_secs().min(1 << 30)).unwrap_or(c_long::MAX),
        nanos: time.subsec_nanos().cast_signed().into(),
    };
    // SAFETY: the word and the time are valid for the duration of the call. The kernel reads both,
    // and writes neither. The operation is not private: it finds waiters of other processes.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            ptr::from_ref(word),
            libc::FUTEX_WAIT,
            seen,
            &raw const time,
        )
    };
}

/// Wakes all that sleep on the word, in all processes.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word is valid for the duration of the call, and is not accessed.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            ptr::from_ref(word),
            libc::FUTEX_WAKE,
            i32::MAX,
        )
    };
}
