//! A concurrency limit whose leases have numbers and deadlines.

use core::ffi::c_int;
use core::slice;

use portcullis_core::leases::{LeaseId, LeaseSlot};
use portcullis_core::{Concurrency, LeasePool, Timestamp};

use crate::status::{PC_STALE, PC_TOO_SMALL, Status};
use crate::storage::{checked, init, size, storage, stored, write};
use crate::verbs::{Named, asks};

/// The bytes of a pool of leases with 64-bit words.
pub const PC_LEASE_POOL_SIZE_64: usize = 384;
/// The bytes of a pool of leases with 32-bit words.
pub const PC_LEASE_POOL_SIZE_32: usize = 256;
const PC_LEASE_POOL_SIZE: usize = size(PC_LEASE_POOL_SIZE_64, PC_LEASE_POOL_SIZE_32);

/// The deadline of a lease without one.
pub const PC_NO_DEADLINE: u64 = u64::MAX;

/// A pool whose slots are in memory of the caller's.
type Pool = LeasePool<Concurrency, 0, &'static [LeaseSlot]>;

storage! {
    /// A pool of leases: at most `limit` permits in use at once, by at most as many holders as it
    /// has slots.
    pc_lease_pool[PC_LEASE_POOL_SIZE], align 128, mark b"PcLp", holds Pool
}

/// Memory for one lease of a pool.
#[repr(C, align(4))]
#[derive(Debug)]
pub struct pc_lease_slot {
    /// Opaque.
    pub bytes: [u8; 16],
}

const _: () = assert!(size_of::<pc_lease_slot>() == size_of::<LeaseSlot>());
const _: () = assert!(align_of::<pc_lease_slot>() == align_of::<LeaseSlot>());

/// The number of a lease. It names the lease until it is given back or swept; its slot must then be
/// used 2^30 times before the number names another one. It does not say which pool it is of.
pub type pc_lease = u64;

/// Initialises a pool of leases in the `size` bytes of `pool`, which are all zero: pass `sizeof`.
/// Its slots are in the `slots_size` bytes of `slots`, of which it uses at most 65,536 slots. The
/// limit is as for `pc_concurrency_init`.
///
/// Returns `PC_OK`, or the mistake; then the pool is as it was.
///
/// Interrupts: other calls with this pool may interrupt it, and return `PC_NOT_INITIALISED`. It
/// must not interrupt them, nor run twice at once.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type for as long as the pool is
/// used. The slots are of no other pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_lease_pool_init(
    pool: *mut pc_lease_pool,
    size: usize,
    slots: *mut pc_lease_slot,
    slots_size: usize,
    limit: u32,
) -> c_int {
    let build = || {
        checked(slots)?;
        let count = slots_size / size_of::<LeaseSlot>();
        if count == 0 {
            return Err(Status(PC_TOO_SMALL));
        }
        let limiter = Concurrency::builder(limit).build()?;
        let slots = slots.cast::<LeaseSlot>();
        for index in 0..count {
            // SAFETY: by the caller: there are so many slots, and no call uses them yet.
            unsafe { slots.add(index).write(LeaseSlot::new()) };
        }
        // SAFETY: just written; from now on they are only shared.
        let slots = unsafe { slice::from_raw_parts(slots, count) };
        Ok(LeasePool::within(limiter, slots))
    };
    // SAFETY: by the caller.
    unsafe { init(pool, size, build) }
}

/// Takes `permits` at the time `now`, until they are given back, or swept at or after `deadline`,
/// which may be `PC_NO_DEADLINE`. With 0 permits, the lease holds none.
///
/// Returns `PC_OK`, and writes the number of the lease to `lease`; or `PC_DENIED`, `PC_TOO_MANY` or
/// `PC_POOL_FULL`: then nothing has been taken.
///
/// Interrupts: may interrupt any other call with the same pool, and be interrupted by one. It waits
/// for none.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_lease_pool_take(
    pool: *const pc_lease_pool,
    now: u64,
    permits: u32,
    deadline: u64,
    lease: *mut pc_lease,
) -> c_int {
    let take = || {
        // SAFETY: by the caller.
        let pool = unsafe { stored(pool)? };
        checked(lease)?;
        let deadline = (deadline != PC_NO_DEADLINE).then(|| Timestamp::from_nanos(deadline));
        let id = pool.claim_at(Timestamp::from_nanos(now), permits, deadline)?;
        // SAFETY: by the caller.
        unsafe { write(lease, id.to_bits()) }
    };
    Status::of(take())
}

/// Gives back all permits of a lease. `returned` is where their number goes; it may be null.
///
/// Returns `PC_OK`, or `PC_STALE` if the number names no lease of this pool: then nothing has
/// changed.
///
/// Interrupts: may interrupt any other call with the same pool, and be interrupted by one, also
/// with the same lease: one of the two gets `PC_STALE`.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_lease_pool_give_back(
    pool: *const pc_lease_pool,
    lease: pc_lease,
    returned: *mut u32,
) -> c_int {
    let give_back = || {
        // SAFETY: by the caller.
        let pool = unsafe { stored(pool)? };
        if !returned.is_null() {
            checked(returned)?;
        }
        let released = pool.release(LeaseId::from_bits(lease));
        let permits = released.map_err(|_| Status(PC_STALE))?;
        if !returned.is_null() {
            // SAFETY: by the caller.
            unsafe { write(returned, permits)? };
        }
        Ok(())
    };
    Status::of(give_back())
}

/// Takes back the permits of all leases whose deadline is at or before `now`. `returned` is where
/// their number goes; it may be null. Reads all slots.
///
/// Interrupts: may interrupt any other call with the same pool, and be interrupted by one.
///
/// # Safety
///
/// Each pointer is null, misaligned, or points to memory of its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pc_lease_pool_sweep(
    pool: *const pc_lease_pool,
    now: u64,
    returned: *mut u64,
) -> c_int {
    let sweep = || {
        // SAFETY: by the caller.
        let pool = unsafe { stored(pool)? };
        if !returned.is_null() {
            checked(returned)?;
        }
        let permits = pool.sweep(Timestamp::from_nanos(now));
        if !returned.is_null() {
            // SAFETY: by the caller.
            unsafe { write(returned, permits)? };
        }
        Ok(())
    };
    Status::of(sweep())
}

/// Returns the index of a lease's slot in the memory of its pool. No two leases have the same slot
/// at the same time, so it is an index into an array of buffers.
///
/// Interrupts: may be called anywhere.
#[unsafe(no_mangle)]
pub extern "C" fn pc_lease_slot_of(lease: pc_lease) -> usize {
    LeaseId::from_bits(lease).slot()
}

/// # Safety
///
/// As for [`stored`].
#[inline(always)]
unsafe fn named(pool: *const pc_lease_pool) -> Result<Named<&'static Concurrency>, Status> {
    // SAFETY: by the caller.
    let limiter = unsafe { stored(pool)? }.limiter();
    let owner = pool.addr();
    Ok(Named { limiter, owner })
}

asks!(
    pc_lease_pool_look,
    pc_lease_pool_available,
    pc_lease_pool_retry,
    pc_lease_pool_explain,
    (pool: *const pc_lease_pool) => named(pool)
);
