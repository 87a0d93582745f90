//! What happens when a file is truncated while processes have it mapped.
//!
//! An access to a page that the file no longer has raises `SIGBUS`, which ends the process. So the
//! first mapping of a process installs a handler, as libwayland does for the memory of its clients
//! (`wl_shm_buffer_begin_access`). For an address in one of our mappings it marks the mapping as
//! *lost*, and maps pages of zeros over all of it. The access is then repeated, and succeeds. A
//! lost mapping is private to the process: its owner checks [`Entry::is_lost`] after each grant,
//! and denies. Every other fault goes to the handler that was there before.
//!
//! ```text
//! registry: 256 entries of two words
//!   range   page | pages    0: free; 1: taken, not yet in use   bits 63..19 and 18..0
//!   lost    0 or 1          1 from before the pages are replaced
//! ```
//!
//! Invariant: a range that is not 0 or 1 is mapped, and is ours. `publish` comes after `mmap`, and
//! `withdraw` before `munmap`. Page and number are one word, so the handler reads a range that
//! existed at one instant. An access to a mapping comes from its owner, who keeps the entry, so the
//! handler finds the entry of every fault in a mapping.
//!
//! The handler runs at any instruction of a thread that accesses a mapping. It uses atomics and the
//! calls `mmap`, `sigaction` and `raise`: it takes no lock and allocates nothing. `errno` is as
//! before when it returns.
//!
//! A program that installs a handler of its own for `SIGBUS` later must call ours for addresses
//! that it does not know. Otherwise a truncated file ends the process.
//!
//! Addresses pass through integers: that of a mapping in the registry, and that of the handler
//! before in a `sigaction`. Memory is accessed, replaced or called at both. So they are exposed
//! where they become integers, and taken back with the exposed provenance.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::mem::{self, MaybeUninit};
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, fence};
use std::io;
use std::sync::Mutex;

/// The most mappings of a process.
pub(crate) const MOST: usize = 256;
/// The unit of addresses and lengths. No system has smaller pages.
const UNIT: usize = 4096;
const LENGTH_BITS: u32 = 19;
/// The most bytes of a mapping.
pub(crate) const MOST_BYTES: usize = ((1 << LENGTH_BITS) - 1) * UNIT;

const FREE: u64 = 0;
const TAKEN: u64 = 1;

/// An entry of the registry.
#[derive(Debug)]
pub(crate) struct Entry {
    range: AtomicU64,
    lost: AtomicBool,
}

static REGISTRY: [Entry; MOST] = [const {
    Entry {
        range: AtomicU64::new(FREE),
        lost: AtomicBool::new(false),
    }
}; MOST];

impl Entry {
    /// Takes a free entry.
    pub(crate) fn take() -> Option<&'static Self> {
        let take = |entry: &&Self| {
            let taken = entry.range.compare_exchange(FREE, TAKEN, Acquire, Relaxed);
            taken.is_ok()
        };
        let entry = REGISTRY.iter().find(take)?;
        entry.lost.store(false, Relaxed);
        Some(entry)
    }

    /// Makes a mapping known to the handler.
    pub(crate) fn publish(&self, address: *const c_void, bytes: usize) {
        let (page, pages) = (address.expose_provenance() / UNIT, bytes.div_ceil(UNIT));
        // Release: the entry's `lost` is false before a handler can set it.
        self.range
            .store((page as u64) << LENGTH_BITS | pages as u64, Release);
    }

    /// Gives the entry back. No thread accesses the mapping any more.
    pub(crate) fn withdraw(&self) {
        self.range.store(FREE, Release);
    }

    /// Whether pages of the file were missing at an access before. Call it after the access.
    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        // Acquire: not before the access. If the access was to a page that the handler of another
        // thread has replaced, the handler stored `lost` before that.
        fence(Acquire);
        self.lost.load(Relaxed)
    }

    fn contains(range: u64, address: usize) -> bool {
        let (page, pages) = (range >> LENGTH_BITS, range & ((1 << LENGTH_BITS) - 1));
        ((address / UNIT) as u64).wrapping_sub(page) < pages
    }
}

/// The handler that was there before: null before ours is installed, and then constant.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Installs the handler, once for the process.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut is_installed = INSTALLED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if *is_installed {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer asks for the present action, which is written to `before`.
    check(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) })?;
    // SAFETY: `sigaction` has written it; all zeros are valid besides.
    let before = Box::leak(Box::new(unsafe { before.assume_init() }));
    BEFORE.store(before, SeqCst);
    // SAFETY: all zeros are a valid `sigaction`: a mask without signals.
    let mut ours: libc::sigaction = unsafe { mem::zeroed() };
    ours.sa_sigaction = (handle as *const ()).expose_provenance();
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `handle` has the signature that `SA_SIGINFO` asks for, and does only what is allowed
    // in a signal handler: see the head of this file.
    check(unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) })?;
    *is_installed = true;
    Ok(())
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `info`.
    let code = unsafe { (*info).si_code };
    // SAFETY: as above. A signal that a process sent has no address, and is not replaced below.
    let address = unsafe { (*info).si_addr() };
    // SAFETY: `errno` of this thread is always a valid place.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let number = unsafe { *errno };
    if code != libc::BUS_ADRERR || !replaced(address.addr()) {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno = number };
}

/// Replaces the mapping that contains `address`, if it is ours.
fn replaced(address: usize) -> bool {
    let entries = REGISTRY.iter();
    let mut found = entries.map(|entry| (entry, entry.range.load(Acquire)));
    let found = found.find(|&(_, range)| Entry::contains(range, address));
    // SAFETY: by the invariant the range is ours and mapped, and its owner keeps it while this
    // thread accesses it.
    found.is_some_and(|(entry, range)| unsafe { lose(entry, range) })
}

/// Gives up all mappings: each is lost.
pub(crate) fn lose_all() {
    for entry in &REGISTRY {
        entry.lost.store(true, SeqCst);
    }
}

/// Replaces the pages of all mappings that are lost.
///
/// # Safety
///
/// No other thread drops a mapping meanwhile.
pub(crate) unsafe fn replace_lost() {
    for entry in &REGISTRY {
        let range = entry.range.load(Acquire);
        if range != FREE && range != TAKEN && entry.lost.load(Relaxed) {
            // SAFETY: by the invariant the range is ours and mapped; it stays so, as the caller
            // knows.
            let _kept_if_it_fails = unsafe { lose(entry, range) };
        }
    }
}

/// Marks an entry as lost, and replaces its pages by zeros. Returns whether the kernel did.
///
/// # Safety
///
/// The range is that of the entry, and stays mapped.
unsafe fn lose(entry: &Entry, range: u64) -> bool {
    let page = ((range >> LENGTH_BITS) as usize) * UNIT;
    let bytes = ((range & ((1 << LENGTH_BITS) - 1)) as usize) * UNIT;
    entry.lost.store(true, SeqCst);
    // SAFETY: the caller's. References into the range are to atomics, for which zeros are valid.
    // `publish` has exposed the address.
    let zeros = unsafe {
        libc::mmap(
            ptr::with_exposed_provenance_mut(page),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    zeros != libc::MAP_FAILED
}

/// Calls the handler that was there before.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: it was stored before this handler was installed, and is never freed.
    let before = unsafe { BEFORE.load(SeqCst).as_ref() };
    let Some(before) = before else { return };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // Once the handler has returned, the default action ends the process.
            // SAFETY: all zeros are a valid `sigaction` with the default action.
            let default: libc::sigaction = unsafe { mem::zeroed() };
            // SAFETY: `default` is valid.
            unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
            // SAFETY: raises a signal that is blocked until the handler returns.
            unsafe { libc::raise(signal) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            let handler = ptr::with_exposed_provenance::<()>(handler);
            // SAFETY: with `SA_SIGINFO`, the handler has this signature. Its address was exposed by
            // the cast that made it a number.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            let handler = ptr::with_exposed_provenance::<()>(handler);
            // SAFETY: without `SA_SIGINFO`, the handler has this signature. Its address was exposed
            // as above.
            let handler: extern "C" fn(c_int) = unsafe { mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_its_bytes_and_no_others() {
        let range = 10 << LENGTH_BITS | 3;
        let inside = |address| Entry::contains(range, address);
        assert!(inside(10 * UNIT) && inside(13 * UNIT - 1));
        assert!(!inside(10 * UNIT - 1) && !inside(13 * UNIT) && !inside(0));
        assert!((0..4).all(|page| !Entry::contains(FREE, page * UNIT)));
        // An entry that is taken is page 0, which no process maps.
        assert!(!Entry::contains(TAKEN, UNIT));
    }
}
