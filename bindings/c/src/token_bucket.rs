//! A token bucket.

use core::ffi::c_int;
use core::time::Duration;

use portcullis_core::builder::TokenBucketBuilder;
use portcullis_core::{Rate, Timestamp, TokenBucket};

use crate::status::{PC_BAD_PERMITS, PC_BAD_TAKEN, Status};
use crate::storage::{init, read, size, storage, stored, write};
use crate::verbs::{asks, named, takes};

/// The bytes of a token bucket with 64-bit words.
pub const PC_TOKEN_BUCKET_SIZE_64: usize = 88;
/// The bytes of a token bucket with 32-bit words.
pub const PC_TOKEN_BUCKET_SIZE_32: usize = 64;
const PC_TOKEN_BUCKET_SIZE: usize = size(PC_TOKEN_BUCKET_SIZE_64, PC_TOKEN_BUCKET_SIZE_32);

storage! {
    /// A token bucket: in any span of time `t`, at most `burst + permits / period * t` permits.
    pc_token_bucket[PC_TOKEN_BUCKET_SIZE], align 8, mark b"PcTb", holds TokenBucket
}

/// The settings of a token bucket. Those that are 0 have their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pc_token_bucket_settings {
    /// The rate: `permits`, at least 1, return in each `period`, evenly.
    pub permits: u32,
    /// Not 0: all permits of a period return at its end.
    pub stepwise: u32,
    /// The period of the rate, in nanoseconds: 1 ns to 292 years.
    pub period: u64,
    /// The permits that the bucket can hold, at least 1.
    pub burst: u64,
    /// The permits that are missing at the origin; 0: it starts full. A bucket in a table starts
    /// full.
    pub taken: u64,
    /// The time at which the bucket starts, in nanoseconds.
    pub origin: u64,
    /// The unit in which it counts time, in nanoseconds; 0: chosen.
    pub tick: u64,
    /// How much older than the newest time another one may be, in nanoseconds, at least a second;
    /// 0: chosen.
    pub staleness: u64,
}

impl pc_token_bucket_settings {
    pub(crate) fn builder(&self) -> Result<TokenBucketBuilder, Status> {
        if self.permits == 0 {
            // Forgotten, most likely: such a bucket would grant its burst, and then nothing.
            return Err(Status(PC_BAD_PERMITS));
        }
        let rate = Rate::new(self.permits, Duration::from_nanos(self.period));
        let mut builder = TokenBucket::builder(rate, self.burst);
        if self.taken > 0 {
            let initial = self.burst.checked_sub(self.taken);
            builder = builder.initial(initial.ok_or(Status(PC_BAD_TAKEN))?);
        }
        if self.stepwise != 0 {
            builder = builder.stepwise();
        }
        if self.tick > 0 {
            builder = builder.tick(Duration::from_nanos(self.tick));
        }
        if self.staleness > 0 {
            builder = builder.staleness(Duration::from_nanos(self.staleness));
        }
        Ok(builder.origin(Timestamp::from_nanos(self.origin)))
    }
}

/// Initialises a token bucket in the `size` bytes of `bucket`, which are all zero: pass `sizeof`.
///
/// Returns `PC_OK`, or the mistake; then the storage is as it was.
///
/// Interrupts: other calls with this bucket may interrupt it, and return `PC_NOT_INITIALISED`. It
/// must not interrupt them, nor run twice at once.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type, `bucket` for as long as it is
/// used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_token_bucket_init(
    bucket: *mut pc_token_bucket,
    size: usize,
    settings: *const pc_token_bucket_settings,
) -> c_int {
    // SAFETY: by the caller.
    unsafe { init(bucket, size, || Ok(read(settings)?.builder()?.build()?)) }
}

/// Initialises a token bucket as `pc_token_bucket_init` does, and restores the state that
/// `pc_token_bucket_state` wrote for a bucket with the same settings. The times must count from the
/// same origin as those of the saved bucket.
///
/// Any number is a state. With a damaged one, or one of other settings, the bucket may grant fewer
/// permits at first, or more, but no more than a full one.
///
/// Returns `PC_OK`, or the mistake; then the storage is as it was.
///
/// Interrupts: as `pc_token_bucket_init`.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type, `bucket` for as long as it is
/// used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_token_bucket_restore(
    bucket: *mut pc_token_bucket,
    size: usize,
    settings: *const pc_token_bucket_settings,
    state: u64,
) -> c_int {
    // SAFETY: by the caller.
    unsafe {
        init(bucket, size, || {
            Ok(read(settings)?.builder()?.build()?.with_state(state))
        })
    }
}

/// Writes the state of a token bucket to `state`, to be saved for `pc_token_bucket_restore`. With
/// 32-bit words it has 32 bits.
///
/// Interrupts: may interrupt any other call with the same limiter, and be interrupted by one. A
/// permit that is taken later is not in the state.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_token_bucket_state(
    bucket: *const pc_token_bucket,
    state: *mut u64,
) -> c_int {
    // SAFETY: by the caller.
    Status::of(unsafe { stored(bucket).and_then(|bucket| write(state, bucket.state())) })
}

takes!(
    pc_token_bucket_take,
    pc_token_bucket_give_back,
    ByTime,
    (bucket: *const pc_token_bucket) => named(bucket)
);
asks!(
    pc_token_bucket_look,
    pc_token_bucket_available,
    pc_token_bucket_retry,
    pc_token_bucket_explain,
    (bucket: *const pc_token_bucket) => named(bucket)
);
