//! Keeps the stacks of loom's threads for the next execution.
//!
//! In each execution, loom maps a new stack for each thread, and unmaps it at the end. The system
//! calls, and the faults at the first access to each page, take longer than the models themselves.
//! Loom has no setting for this. So this module defines `mmap` and `munmap` in the programs of the
//! models, in place of those of the C library: memory that is mapped as a stack stays mapped, with
//! its guard page, and becomes the next stack. All else goes to the operating system.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::OnceLock;

/// How long all kept stacks are: as long as the first that was mapped.
static LENGTH: OnceLock<usize> = OnceLock::new();

/// Room for the threads of the models that run at once. Any more stacks are not kept.
static STACKS: [Stack; 64] = [const { Stack::none() }; 64];

struct Stack {
    /// Null at first. Once it is an address, neither it nor the mapping changes.
    address: AtomicPtr<c_void>,
    /// Whether the memory belongs to a caller of `mmap`. Also true without an address.
    is_used: AtomicBool,
}

impl Stack {
    const fn none() -> Self {
        Self {
            address: AtomicPtr::new(ptr::null_mut()),
            is_used: AtomicBool::new(true),
        }
    }

    fn take(&self) -> bool {
        !self.is_used.load(Relaxed) && !self.is_used.swap(true, Acquire)
    }

    fn keep(&self, address: *mut c_void) -> bool {
        let none = ptr::null_mut();
        let kept = self
            .address
            .compare_exchange(none, address, Relaxed, Relaxed);
        kept.is_ok()
    }
}

// SAFETY: no other function of the program has this name, and it does what `mmap` does, except that
// a stack is not zeroed. Who maps a stack does not read what it has not written.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    hint: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let is_stack = flags & libc::MAP_STACK != 0 && *LENGTH.get_or_init(|| length) == length;
    if is_stack && let Some(stack) = STACKS.iter().find(|stack| stack.take()) {
        return stack.address.load(Relaxed);
    }
    // SAFETY: the caller answers for the arguments. On 64 bits this is the C library's `mmap`.
    let address = unsafe { libc::mmap64(hint, length, protection, flags, file, offset) };
    if is_stack && address != libc::MAP_FAILED {
        STACKS.iter().any(|stack| stack.keep(address));
    }
    address
}

// SAFETY: no other function of the program has this name, and it does what `munmap` does, except
// that a kept stack stays mapped. The caller has no more use for it, so the next one can have it.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, length: usize) -> c_int {
    let kept = |stack: &&Stack| stack.address.load(Relaxed) == address;
    if let Some(stack) = STACKS.iter().find(kept) {
        stack.is_used.store(false, Release);
        return 0;
    }
    // SAFETY: the caller answers for the arguments.
    let result = unsafe { libc::syscall(libc::SYS_munmap, address, length) };
    if result == 0 { 0 } else { -1 }
}
