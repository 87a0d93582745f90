//! The six verbs, for any limiter, and the macros that give each limiter its functions.

use core::ffi::c_int;
use core::ops::Deref;

use portcullis_core::limiter::Detail;
use portcullis_core::{Limiter, LimiterExt, Retry, Timestamp};

use crate::receipt::pc_receipt;
use crate::status::{PC_NEVER, PC_NULL, PC_OK, PC_ON_RELEASE, Status};
use crate::storage::{checked, read, write};

/// What a limiter tells about a request: written by `..._explain`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pc_detail {
    /// The permits that are available.
    pub available: u64,
    /// The most permits that can be available at once.
    pub capacity: u64,
    /// The time in which the whole capacity returns, in nanoseconds; 0 if permits do not return by
    /// time.
    pub time_to_fill: u64,
    /// When the request can be granted: a time if `retry` is `PC_OK`.
    pub retry_at: u64,
    /// When the whole capacity is available again: a time if `full` is `PC_OK`.
    pub full_at: u64,
    /// What `..._look` returns: `PC_OK`, or why the request is denied.
    pub decision: c_int,
    /// What `..._retry` returns: `PC_OK`, `PC_ON_RELEASE` or `PC_NEVER`.
    pub retry: c_int,
    /// `PC_OK`, `PC_ON_RELEASE` or `PC_NEVER`.
    pub full: c_int,
}

/// A limiter that a caller named, and what names it in receipts.
pub(crate) struct Named<L> {
    pub(crate) limiter: L,
    pub(crate) owner: usize,
}

/// How permits return.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
    ByTime,
    ByRelease,
}

/// Takes permits.
///
/// # Safety
///
/// `receipt` is null, misaligned, or points to memory of that type.
#[inline(always)]
pub(crate) unsafe fn take<L: Deref<Target: Limiter>>(
    named: Result<Named<L>, Status>,
    returns: Returns,
    now: u64,
    permits: u32,
    receipt: *mut pc_receipt,
) -> c_int {
    let take = || {
        let named = named?;
        let is_kept = !receipt.is_null();
        if is_kept {
            checked(receipt)?;
        } else if returns == Returns::ByRelease {
            // Without a receipt they could never return.
            return Err(Status(PC_NULL));
        }
        let now = Timestamp::from_nanos(now);
        let granted = named.limiter.take_at(now, permits)?;
        if is_kept {
            // SAFETY: by the caller.
            unsafe { write(receipt, pc_receipt::of(&granted, permits, named.owner))? };
        }
        Ok(())
    };
    Status::of(take())
}

/// Asks what a take would return.
#[inline(always)]
pub(crate) fn look<L: Deref<Target: Limiter>>(
    named: Result<Named<L>, Status>,
    now: u64,
    permits: u32,
) -> c_int {
    let look = || {
        named?
            .limiter
            .peek_at(Timestamp::from_nanos(now), permits)?;
        Ok(())
    };
    Status::of(look())
}

/// Gives permits back.
///
/// # Safety
///
/// `receipt` and `returned` are null, misaligned, or point to memory of their types; `receipt` to
/// what `take` wrote.
#[inline(always)]
pub(crate) unsafe fn give_back<L: Deref<Target: Limiter>>(
    named: Result<Named<L>, Status>,
    returns: Returns,
    now: u64,
    permits: u32,
    receipt: *mut pc_receipt,
    returned: *mut u32,
) -> c_int {
    let give_back = || {
        let Named { limiter, owner } = named?;
        // SAFETY: by the caller.
        let held = unsafe { read(receipt)? };
        if !returned.is_null() {
            checked(returned)?;
        }
        held.covers(permits, owner)?;
        let refund = match returns {
            Returns::ByTime => {
                limiter.refund_at(Timestamp::from_nanos(now), permits, held.receipt())
            }
            Returns::ByRelease => {
                limiter.release(permits);
                held.receipt().refunded(permits)
            }
        };
        // SAFETY: by the caller.
        unsafe { write(receipt, held.after(permits, &refund))? };
        if !returned.is_null() {
            // SAFETY: by the caller.
            unsafe { write(returned, refund.permits)? };
        }
        Ok(())
    };
    Status::of(give_back())
}

/// Reads how many permits are available.
///
/// # Safety
///
/// `available` is null, misaligned, or points to memory of that type.
#[inline(always)]
pub(crate) unsafe fn available<L: Deref<Target: Limiter>>(
    named: Result<Named<L>, Status>,
    now: u64,
    available: *mut u64,
) -> c_int {
    let read = || {
        let permits = named?.limiter.available_at(Timestamp::from_nanos(now));
        // SAFETY: by the caller.
        unsafe { write(available, permits) }
    };
    Status::of(read())
}

/// Asks when a request can be granted.
///
/// # Safety
///
/// `at` is null, misaligned, or points to memory of that type.
#[inline(always)]
pub(crate) unsafe fn retry<L: Deref<Target: Limiter>>(
    named: Result<Named<L>, Status>,
    now: u64,
    permits: u32,
    at: *mut u64,
) -> c_int {
    let retry = || {
        let limiter = named?.limiter;
        checked(at)?;
        let now = Timestamp::from_nanos(now);
        let (status, time) = match limiter.peek_at(now, permits) {
            Ok(()) => (PC_OK, now.as_nanos()),
            Err(denied) => time(now, limiter.retry(denied)),
        };
        if status != PC_OK {
            return Err(Status(status));
        }
        // SAFETY: by the caller.
        unsafe { write(at, time) }
    };
    Status::of(retry())
}

/// Asks for all that a limiter tells.
///
/// # Safety
///
/// `detail` is null, misaligned, or points to memory of that type.
#[inline(always)]
pub(crate) unsafe fn explain<L: Deref<Target: Limiter>>(
    named: Result<Named<L>, Status>,
    now: u64,
    permits: u32,
    detail: *mut pc_detail,
) -> c_int {
    let explain = || {
        let limiter = named?.limiter;
        let told = limiter.explain_at(Timestamp::from_nanos(now), permits);
        // SAFETY: by the caller.
        unsafe { write(detail, of(&told)) }
    };
    Status::of(explain())
}

/// Returns the status and the time of a retry.
fn time(now: Timestamp, retry: Retry) -> (c_int, u64) {
    match retry {
        Retry::At(at) => (PC_OK, at.as_nanos()),
        Retry::After(wait) => (PC_OK, now.saturating_add(wait).as_nanos()),
        Retry::OnRelease | Retry::OnReleaseFrom(_) => (PC_ON_RELEASE, 0),
        _ => (PC_NEVER, 0),
    }
}

fn of(told: &Detail) -> pc_detail {
    let (retry, retry_at) = time(told.now, told.retry);
    let (full, full_at) = time(told.now, told.full_again);
    let nanos = told.time_to_fill.map_or(0, |time| time.as_nanos());
    pc_detail {
        available: told.available,
        capacity: told.capacity,
        time_to_fill: u64::try_from(nanos).unwrap_or(u64::MAX),
        retry_at,
        full_at,
        decision: Status::of(told.decision.map_err(Status::from)),
        retry,
        full,
    }
}

/// Writes the functions that take permits and give them back by a receipt. The arguments in
/// parentheses name the limiter, which the expression then finds.
macro_rules! takes {
    ($take:ident, $give_back:ident, $returns:ident, ($($name:ident: $type:ty),+) => $named:expr) => {
        /// Takes `permits` at the time `now`. With 0 permits it takes nothing, and returns what a
        /// request for 1 would.
        ///
        /// `receipt` is where the receipt of the grant goes, for `..._give_back`. It may be null if
        /// the permits return by time.
        ///
        /// Returns `PC_OK` if they were granted, or why not: then nothing has been taken.
        ///
        /// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
        /// one. It waits for none.
        ///
        /// # Safety
        ///
        /// Each pointer is null, misaligned, or points to memory of its type.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $take(
            $($name: $type,)+
            now: u64,
            permits: u32,
            receipt: *mut $crate::receipt::pc_receipt,
        ) -> core::ffi::c_int {
            // SAFETY: by the caller.
            unsafe {
                $crate::verbs::take($named, $crate::verbs::Returns::$returns, now, permits, receipt)
            }
        }

        /// Gives back `permits` of the grant that `receipt` is from, at the time `now`, and reduces
        /// the receipt by them.
        ///
        /// Where permits return by time, they count as never taken as far as that cannot exceed the
        /// limit; the others return by time. `returned` is where the number of the first goes; it
        /// may be null.
        ///
        /// Returns `PC_OK`, `PC_WRONG_RECEIPT`, or `PC_NOT_TAKEN`: then nothing has changed.
        ///
        /// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
        /// one, but not with the same receipt.
        ///
        /// # Safety
        ///
        /// Each pointer is null, misaligned, or points to memory of its type.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $give_back(
            $($name: $type,)+
            now: u64,
            permits: u32,
            receipt: *mut $crate::receipt::pc_receipt,
            returned: *mut u32,
        ) -> core::ffi::c_int {
            // SAFETY: by the caller.
            unsafe {
                $crate::verbs::give_back(
                    $named,
                    $crate::verbs::Returns::$returns,
                    now,
                    permits,
                    receipt,
                    returned,
                )
            }
        }
    };
}
pub(crate) use takes;

/// Writes the functions that only ask.
macro_rules! asks {
    ($look:ident, $available:ident, $retry:ident, $explain:ident,
        ($($name:ident: $type:ty),+) => $named:expr) => {
        /// Returns what `..._take` would return, and takes nothing.
        ///
        /// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
        /// one. It writes nothing.
        ///
        /// # Safety
        ///
        /// Each pointer is null, misaligned, or points to memory of its type.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $look(
            $($name: $type,)+
            now: u64,
            permits: u32,
        ) -> core::ffi::c_int {
            // SAFETY: by the caller.
            unsafe { $crate::verbs::look($named, now, permits) }
        }

        /// Writes the number of permits that are available at the time `now` to `available`.
        ///
        /// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
        /// one. It changes nothing in the limiter.
        ///
        /// # Safety
        ///
        /// Each pointer is null, misaligned, or points to memory of its type.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $available(
            $($name: $type,)+
            now: u64,
            available: *mut u64,
        ) -> core::ffi::c_int {
            // SAFETY: by the caller.
            unsafe { $crate::verbs::available($named, now, available) }
        }

        /// Writes to `at` when a request for `permits` can be granted: `now`, or the earliest time
        /// at which it is granted if no other call takes permits.
        ///
        /// Returns `PC_OK`, or `PC_ON_RELEASE` or `PC_NEVER` if no time is known; then `at` is not
        /// written.
        ///
        /// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
        /// one. It changes nothing in the limiter. It divides.
        ///
        /// # Safety
        ///
        /// Each pointer is null, misaligned, or points to memory of its type.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $retry(
            $($name: $type,)+
            now: u64,
            permits: u32,
            at: *mut u64,
        ) -> core::ffi::c_int {
            // SAFETY: by the caller.
            unsafe { $crate::verbs::retry($named, now, permits, at) }
        }

        /// Writes to `detail` what would happen to a request for `permits` at the time `now`, and
        /// the numbers of the limiter that go with that decision. Takes nothing.
        ///
        /// Interrupts: may interrupt any other call with the same limiter, and be interrupted by
        /// one. It changes nothing in the limiter. It divides.
        ///
        /// # Safety
        ///
        /// Each pointer is null, misaligned, or points to memory of its type.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $explain(
            $($name: $type,)+
            now: u64,
            permits: u32,
            detail: *mut $crate::verbs::pc_detail,
        ) -> core::ffi::c_int {
            // SAFETY: by the caller.
            unsafe { $crate::verbs::explain($named, now, permits, detail) }
        }
    };
}
pub(crate) use asks;

/// Finds the limiter in a storage.
///
/// # Safety
///
/// As for [`stored`](crate::storage::stored).
#[inline(always)]
pub(crate) unsafe fn named<S: crate::storage::Storage>(
    storage: *const S,
) -> Result<Named<&'static S::Value>, Status> {
    // SAFETY: by the caller.
    let limiter = unsafe { crate::storage::stored(storage)? };
    Ok(Named {
        limiter,
        owner: storage.addr(),
    })
}
