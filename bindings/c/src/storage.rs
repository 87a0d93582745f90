//! The storage of a limiter in the caller's memory: its mark, and the checks of every pointer.
//!
//! Invariant: while the mark is that of a type, the limiter of that type is behind it. `init`
//! writes the mark last, and nothing removes it but the caller, who sets the storage to zero.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;

use crate::mark::Mark;
use crate::status::{
    PC_INITIALISED, PC_MISALIGNED, PC_NOT_INITIALISED, PC_NULL, PC_TOO_SMALL, Status,
};

/// Returns the size of a storage on this target, of those for 64-bit and for 32-bit words.
pub(crate) const fn size(of_64: usize, of_32: usize) -> usize {
    if cfg!(target_has_atomic = "64") {
        of_64
    } else {
        of_32
    }
}

/// A storage type of the header.
///
/// # Safety
///
/// The type is at least as large and as aligned as [`Stored<Self::Value>`](Stored), and all its
/// bytes may have any value: [`fits`] checks the first part.
pub(crate) unsafe trait Storage: Sized {
    /// The limiter in it.
    type Value: Sync + 'static;
    /// The mark of the type: never 0.
    const MARK: u32;
}

/// What is in a storage.
#[repr(C)]
pub(crate) struct Stored<T> {
    mark: Mark,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// Stops the compilation if a storage type is too small, or less aligned than what it holds.
pub(crate) const fn fits<S: Storage>() {
    assert!(
        size_of::<S>() >= size_of::<Stored<S::Value>>(),
        "the storage is too small"
    );
    assert!(
        align_of::<S>() >= align_of::<Stored<S::Value>>(),
        "the storage is too little aligned"
    );
    assert!(S::MARK != 0, "the mark is that of no limiter");
}

/// Returns the mark with four letters.
pub(crate) const fn mark(letters: [u8; 4]) -> u32 {
    u32::from_le_bytes(letters)
}

/// Declares a storage type: opaque bytes, with the alignment given.
macro_rules! storage {
    ($(#[$meta:meta])* $name:ident[$size:ident], align $align:literal, mark $mark:literal, holds $value:ty) => {
        $(#[$meta])*
        #[repr(C, align($align))]
        pub struct $name {
            /// Opaque. All zero before `..._init`.
            pub bytes: [u8; $size],
        }

        // SAFETY: compared in `fits`; an array of bytes.
        unsafe impl $crate::storage::Storage for $name {
            type Value = $value;
            const MARK: u32 = $crate::storage::mark(*$mark);
        }

        const _: () = $crate::storage::fits::<$name>();

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use storage;

/// Checks a pointer of the caller's.
#[inline(always)]
pub(crate) fn checked<T>(pointer: *const T) -> Result<(), Status> {
    if pointer.is_null() {
        return Err(Status(PC_NULL));
    }
    if !pointer.is_aligned() {
        return Err(Status(PC_MISALIGNED));
    }
    Ok(())
}

/// Returns the limiter in a storage.
///
/// # Safety
///
/// `storage` is null, misaligned, or points to memory of that type for the whole program, in which
/// only this package has written since it was zero.
#[inline(always)]
pub(crate) unsafe fn stored<S: Storage>(storage: *const S) -> Result<&'static S::Value, Status> {
    checked(storage)?;
    // SAFETY: by the caller, and by the contract of `Storage`: any bytes are a `Stored`.
    let stored = unsafe { &*storage.cast::<Stored<S::Value>>() };
    if !stored.mark.is(S::MARK) {
        return Err(Status(PC_NOT_INITIALISED));
    }
    // SAFETY: the mark says that the limiter is there. From then on it is only shared.
    Ok(unsafe { (*stored.value.get()).assume_init_ref() })
}

/// Puts the limiter that `build` returns into a storage of `size` bytes.
///
/// # Safety
///
/// As for [`stored`], and no other call uses the storage as long as this one runs, except one that
/// interrupts it or sees it not initialised.
pub(crate) unsafe fn init<S: Storage>(
    storage: *mut S,
    size: usize,
    build: impl FnOnce() -> Result<S::Value, Status>,
) -> c_int {
    let init = || {
        checked(storage)?;
        if size < size_of::<S>() {
            return Err(Status(PC_TOO_SMALL));
        }
        // SAFETY: as in `stored`.
        let stored = unsafe { &*storage.cast::<Stored<S::Value>>() };
        // Of another type too: it is in use, or the memory was never zero.
        if stored.mark.is_there() {
            return Err(Status(PC_INITIALISED));
        }
        let value = build()?;
        // SAFETY: no other call reads the limiter before the mark, and none writes it.
        unsafe { (*stored.value.get()).write(value) };
        stored.mark.set(S::MARK);
        Ok(())
    };
    Status::of(init())
}

/// Writes a result.
///
/// # Safety
///
/// `place` is null, misaligned, or points to memory of that type.
#[inline(always)]
pub(crate) unsafe fn write<T>(place: *mut T, value: T) -> Result<(), Status> {
    checked(place)?;
    // SAFETY: checked, and by the caller.
    unsafe { place.write(value) };
    Ok(())
}

/// Reads what the caller has written, such as settings.
///
/// # Safety
///
/// `place` is null, misaligned, or points to a value of that type.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(place: *const T) -> Result<T, Status> {
    checked(place)?;
    // SAFETY: checked, and by the caller.
    Ok(unsafe { place.read() })
}
