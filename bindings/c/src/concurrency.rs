//! A concurrency limit.

use core::ffi::c_int;

use portcullis_core::Concurrency;

use crate::storage::{init, size, storage};
use crate::verbs::{asks, named, takes};

/// The bytes of a concurrency limit with 64-bit words.
pub const PC_CONCURRENCY_SIZE_64: usize = 16;
/// The bytes of a concurrency limit with 32-bit words.
pub const PC_CONCURRENCY_SIZE_32: usize = 8;
const PC_CONCURRENCY_SIZE: usize = size(PC_CONCURRENCY_SIZE_64, PC_CONCURRENCY_SIZE_32);

storage! {
    /// A concurrency limit: at most `limit` permits in use at once. Permits return when they are
    /// given back, so `..._take` needs a receipt.
    pc_concurrency[PC_CONCURRENCY_SIZE], align 8, mark b"PcCo", holds Concurrency
}

/// Initialises a concurrency limit in the `size` bytes of `concurrency`, which are all zero: pass
/// `sizeof`. The limit is 1 to 2^30 - 1, or 2^14 - 1 with 32-bit words.
///
/// Returns `PC_OK`, or the mistake; then the storage is as it was.
///
/// Interrupts: other calls with this limit may interrupt it, and return `PC_NOT_INITIALISED`. It
/// must not interrupt them, nor run twice at once.
///
/// # Safety
///
/// `concurrency` is null, misaligned, or points to memory of that type for as long as it is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_concurrency_init(
    concurrency: *mut pc_concurrency,
    size: usize,
    limit: u32,
) -> c_int {
    // SAFETY: by the caller.
    unsafe {
        init(concurrency, size, || {
            Ok(Concurrency::builder(limit).build()?)
        })
    }
}

takes!(
    pc_concurrency_take,
    pc_concurrency_give_back,
    ByRelease,
    (concurrency: *const pc_concurrency) => named(concurrency)
);
asks!(
    pc_concurrency_look,
    pc_concurrency_available,
    pc_concurrency_retry,
    pc_concurrency_explain,
    (concurrency: *const pc_concurrency) => named(concurrency)
);
