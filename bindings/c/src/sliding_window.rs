//! A sliding window.

use core::ffi::c_int;
use core::time::Duration;

use portcullis_core::builder::SlidingWindowBuilder;
use portcullis_core::{SlidingWindow, Timestamp};

use crate::storage::{init, read, size, storage};
use crate::verbs::{asks, named, takes};

/// The most segments of a sliding window.
pub const PC_MAX_SEGMENTS: usize = 12;
/// The bytes of a sliding window with 64-bit words.
pub const PC_SLIDING_WINDOW_SIZE_64: usize = 216;
/// The bytes of a sliding window with 32-bit words.
pub const PC_SLIDING_WINDOW_SIZE_32: usize = 144;
const PC_SLIDING_WINDOW_SIZE: usize = size(PC_SLIDING_WINDOW_SIZE_64, PC_SLIDING_WINDOW_SIZE_32);

storage! {
    /// A sliding window: at most `limit` permits in any `segments` successive segments.
    pc_sliding_window[PC_SLIDING_WINDOW_SIZE], align 8, mark b"PcSw",
    holds SlidingWindow<PC_MAX_SEGMENTS>
}

/// The settings of a sliding window. Those that are 0 have their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pc_sliding_window_settings {
    /// The permits in a window, at least 1.
    pub limit: u64,
    /// The length of a window, in nanoseconds: 1 ns to 292 years.
    pub window: u64,
    /// The time from which segments are counted, in nanoseconds.
    pub origin: u64,
    /// How much older than the newest time another one may be, in nanoseconds, at least a second;
    /// 0: chosen.
    pub staleness: u64,
    /// The number of segments in a window: 1 to `PC_MAX_SEGMENTS`.
    pub segments: u32,
    /// Not 0: the limit holds in any span of time as long as the window. A permit then returns one
    /// segment later.
    pub strict: u32,
}

impl pc_sliding_window_settings {
    fn builder(&self) -> SlidingWindowBuilder<PC_MAX_SEGMENTS> {
        let window = Duration::from_nanos(self.window);
        let mut builder = SlidingWindow::builder(self.limit, window, self.segments);
        if self.strict != 0 {
            builder = builder.strict();
        }
        if self.staleness > 0 {
            builder = builder.staleness(Duration::from_nanos(self.staleness));
        }
        builder.origin(Timestamp::from_nanos(self.origin))
    }
}

/// Initialises a sliding window in the `size` bytes of `window`, which are all zero: pass `sizeof`.
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
pub unsafe extern "C" fn pc_sliding_window_init(
    window: *mut pc_sliding_window,
    size: usize,
    settings: *const pc_sliding_window_settings,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { init(window, size, || Ok(read(settings)?.builder().build()?)) }
}

takes!(
    pc_sliding_window_take,
    pc_sliding_window_give_back,
    ByTime,
    (window: *const pc_sliding_window) => named(window)
);
asks!(
    pc_sliding_window_look,
    pc_sliding_window_available,
    pc_sliding_window_retry,
    pc_sliding_window_explain,
    (window: *const pc_sliding_window) => named(window)
);
