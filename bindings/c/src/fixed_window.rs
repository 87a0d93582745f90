//! A fixed window.

use core::ffi::c_int;
use core::time::Duration;

use portcullis_core::builder::FixedWindowBuilder;
use portcullis_core::{FixedWindow, Timestamp};

use crate::storage::{init, read, size, storage};
use crate::verbs::{asks, named, takes};

/// The bytes of a fixed window with 64-bit words.
pub const PC_FIXED_WINDOW_SIZE_64: usize = 88;
/// The bytes of a fixed window with 32-bit words.
pub const PC_FIXED_WINDOW_SIZE_32: usize = 64;
const PC_FIXED_WINDOW_SIZE: usize = size(PC_FIXED_WINDOW_SIZE_64, PC_FIXED_WINDOW_SIZE_32);

storage! {
    /// A fixed window: at most `limit` permits in each window.
    pc_fixed_window[PC_FIXED_WINDOW_SIZE], align 8, mark b"PcFw", holds FixedWindow
}

/// The settings of a fixed window. Those that are 0 have their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pc_fixed_window_settings {
    /// The permits in each window, at least 1.
    pub limit: u64,
    /// The length of a window, in nanoseconds: 1 ns to 292 years.
    pub window: u64,
    /// The time from which windows are counted, in nanoseconds.
    pub origin: u64,
    /// The unit in which it counts time, in nanoseconds, if the first request starts a window; 0:
    /// chosen.
    pub tick: u64,
    /// How much older than the newest time another one may be, in nanoseconds, at least a second;
    /// 0: chosen.
    pub staleness: u64,
    /// Not 0: the first request after a window starts the next one.
    pub from_first_request: u32,
}

impl pc_fixed_window_settings {
    pub(crate) fn builder(&self) -> FixedWindowBuilder {
        let mut builder = FixedWindow::builder(self.limit, Duration::from_nanos(self.window));
        if self.from_first_request != 0 {
            builder = builder.started_by_first_request();
        }
        if self.tick > 0 {
            builder = builder.tick(Duration::from_nanos(self.tick));
        }
        if self.staleness > 0 {
            builder = builder.staleness(Duration::from_nanos(self.staleness));
        }
        builder.origin(Timestamp::from_nanos(self.origin))
    }
}

/// Initialises a fixed window in the `size` bytes of `window`, which are all zero: pass `sizeof`.
///
/// Returns `PC_OK`, or the mistake; then the storage is as it was.
///
/// Interrupts: other calls with this window may interrupt it, and return `PC_NOT_INITIALISED`. It
/// must not interrupt them, nor run twice at once.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type, `window` for as long as it is
/// used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_fixed_window_init(
    window: *mut pc_fixed_window,
    size: usize,
    settings: *const pc_fixed_window_settings,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { init(window, size, || Ok(read(settings)?.builder().build()?)) }
}

takes!(
    pc_fixed_window_take,
    pc_fixed_window_give_back,
    ByTime,
    (window: *const pc_fixed_window) => named(window)
);
asks!(
    pc_fixed_window_look,
    pc_fixed_window_available,
    pc_fixed_window_retry,
    pc_fixed_window_explain,
    (window: *const pc_fixed_window) => named(window)
);
