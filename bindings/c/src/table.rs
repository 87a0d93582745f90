//! Tables with a limiter for each key, in memory of the caller's.

use core::ffi::{c_int, c_void};
use core::slice;

use portcullis_core::Keyed;
use portcullis_core::keyed::{
    FixedWindowRules, KeyedRules, Line, Seed, TableKey, TokenBucketRules,
};

use crate::fixed_window::pc_fixed_window_settings;
use crate::status::{PC_BAD_KEY, PC_NULL, PC_TOO_SMALL, Status};
use crate::storage::{Storage, checked, init, read, size, storage, stored};
use crate::token_bucket::pc_token_bucket_settings;
use crate::verbs::{Named, asks, takes};

/// The bytes of a table of token buckets with 64-bit words.
pub const PC_BUCKET_TABLE_SIZE_64: usize = 160;
/// The bytes of a table of token buckets with 32-bit words.
pub const PC_BUCKET_TABLE_SIZE_32: usize = 128;
const PC_BUCKET_TABLE_SIZE: usize = size(PC_BUCKET_TABLE_SIZE_64, PC_BUCKET_TABLE_SIZE_32);
/// The bytes of a table of fixed windows with 64-bit words.
pub const PC_WINDOW_TABLE_SIZE_64: usize = 160;
/// The bytes of a table of fixed windows with 32-bit words.
pub const PC_WINDOW_TABLE_SIZE_32: usize = 128;
const PC_WINDOW_TABLE_SIZE: usize = size(PC_WINDOW_TABLE_SIZE_64, PC_WINDOW_TABLE_SIZE_32);

/// Lines that are in memory of the caller's.
type Table<R> = Keyed<R, &'static [Line], Seed>;

storage! {
    /// A table with a token bucket for each key.
    pc_bucket_table[PC_BUCKET_TABLE_SIZE], align 8, mark b"PcBt", holds Table<TokenBucketRules>
}

storage! {
    /// A table with a fixed window for each key.
    pc_window_table[PC_WINDOW_TABLE_SIZE], align 8, mark b"PcWt", holds Table<FixedWindowRules>
}

/// Memory for the keys of a table: 7 keys with 64-bit words, 14 with 32-bit words. A table needs
/// more memory than that: with 43 bytes for each key that is in use at once, 1 new key in 1,000,000
/// finds no slot; with 16 bytes, 1 in 70.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct pc_line {
    /// Opaque.
    pub bytes: [u8; 64],
}

const _: () = assert!(size_of::<pc_line>().is_multiple_of(size_of::<Line>()));
const _: () = assert!(align_of::<pc_line>() >= align_of::<Line>());

/// Puts a table into a storage, with the rules that `rules` returns.
///
/// # Safety
///
/// As for [`init`]; and `lines` is null, misaligned, or points to `lines_size` bytes for as long as
/// the table is used, which no other table uses.
unsafe fn init_table<S, R>(
    storage: *mut S,
    size: usize,
    lines: *mut pc_line,
    lines_size: usize,
    seed: [u64; 2],
    rules: impl FnOnce() -> Result<R, Status>,
) -> c_int
where
    S: Storage<Value = Table<R>>,
    R: KeyedRules,
{
    let build = || {
        checked(lines)?;
        let count = lines_size / size_of::<pc_line>() * (size_of::<pc_line>() / size_of::<Line>());
        if count == 0 {
            return Err(Status(PC_TOO_SMALL));
        }
        let rules = rules()?;
        let lines = lines.cast::<Line>();
        for index in 0..count {
            // SAFETY: by the caller: there are so many lines, and no call uses them yet.
            unsafe { lines.add(index).write(Line::new()) };
        }
        // SAFETY: just written; from now on they are only shared.
        let lines = unsafe { slice::from_raw_parts(lines, count) };
        let table = Keyed::new(rules, lines, Seed::new());
        // A new seed is not fixed.
        _ = table.seed().set(seed);
        Ok(table)
    };
    // SAFETY: by the caller.
    unsafe { init(storage, size, build) }
}

/// Finds the limiter of a key.
///
/// # Safety
///
/// As for [`stored`]; and `key` is null or points to `length` bytes.
#[inline(always)]
unsafe fn named<S, R>(
    storage: *const S,
    key: *const c_void,
    length: usize,
) -> Result<Named<TableKey<&'static Table<R>>>, Status>
where
    S: Storage<Value = Table<R>>,
    R: KeyedRules + 'static,
{
    // SAFETY: by the caller.
    let table = unsafe { stored(storage)? };
    if key.is_null() {
        return Err(Status(PC_NULL));
    }
    if length > isize::MAX.unsigned_abs() {
        return Err(Status(PC_BAD_KEY));
    }
    // SAFETY: checked, and by the caller.
    let key = unsafe { slice::from_raw_parts(key.cast::<u8>(), length) };
    let limiter = table.key(key);
    let owner = storage.addr() ^ limiter.address().group(usize::MAX);
    Ok(Named { limiter, owner })
}

/// Initialises a table of token buckets in the `size` bytes of `table`, which are all zero: pass
/// `sizeof`. Its keys are in the `lines_size` bytes of `lines`. The two numbers of the seed should
/// be random: who knows them can choose keys that fill all slots of another key.
///
/// Returns `PC_OK`, or the mistake; then the table is as it was.
///
/// Interrupts: other calls with this table may interrupt it, and return `PC_NOT_INITIALISED`. It
/// must not interrupt them, nor run twice at once.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type, `table` and `lines` for as
/// long as the table is used. The lines are of no other table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_bucket_table_init(
    table: *mut pc_bucket_table,
    size: usize,
    lines: *mut pc_line,
    lines_size: usize,
    settings: *const pc_token_bucket_settings,
    seed: u64,
    more_seed: u64,
) -> c_int {
    // SAFETY: by the caller.
    unsafe {
        init_table(table, size, lines, lines_size, [seed, more_seed], || {
            Ok(read(settings)?.builder()?.rules()?)
        })
    }
}

takes!(
    pc_bucket_table_take,
    pc_bucket_table_give_back,
    ByTime,
    (table: *const pc_bucket_table, key: *const c_void, length: usize) => named(table, key, length)
);
asks!(
    pc_bucket_table_look,
    pc_bucket_table_available,
    pc_bucket_table_retry,
    pc_bucket_table_explain,
    (table: *const pc_bucket_table, key: *const c_void, length: usize) => named(table, key, length)
);

/// Initialises a table of fixed windows in the `size` bytes of `table`, which are all zero: pass
/// `sizeof`. Its keys are in the `lines_size` bytes of `lines`. The two numbers of the seed should
/// be random: who knows them can choose keys that fill all slots of another key.
///
/// Returns `PC_OK`, or the mistake; then the table is as it was.
///
/// Interrupts: other calls with this table may interrupt it, and return `PC_NOT_INITIALISED`. It
/// must not interrupt them, nor run twice at once.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type, `table` and `lines` for as
/// long as the table is used. The lines are of no other table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_window_table_init(
    table: *mut pc_window_table,
    size: usize,
    lines: *mut pc_line,
    lines_size: usize,
    settings: *const pc_fixed_window_settings,
    seed: u64,
    more_seed: u64,
) -> c_int {
    // SAFETY: by the caller.
    unsafe {
        init_table(table, size, lines, lines_size, [seed, more_seed], || {
            Ok(read(settings)?.builder().rules()?)
        })
    }
}

takes!(
    pc_window_table_take,
    pc_window_table_give_back,
    ByTime,
    (table: *const pc_window_table, key: *const c_void, length: usize) => named(table, key, length)
);
asks!(
    pc_window_table_look,
    pc_window_table_available,
    pc_window_table_retry,
    pc_window_table_explain,
    (table: *const pc_window_table, key: *const c_void, length: usize) => named(table, key, length)
);
