//! The part of `core::sync::atomic` that the core uses.

use core::sync::atomic as plain;
pub use core::sync::atomic::Ordering;

use super::steps::{self, Made};
use super::{access, fails};

/// Makes an access: of the process on this thread, or after it was counted.
#[inline]
fn made(make: impl FnOnce() -> Made) -> Made {
    steps::made(make).unwrap_or_else(|make| {
        access();
        make()
    })
}

/// A fence that counts as an access, but not of a process that is run in steps: its accesses are in
/// one order anyway. See `core::sync::atomic::fence`.
pub fn fence(order: Ordering) {
    access();
    plain::fence(order);
}

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        /// The type of this name in `core::sync::atomic`, with the same layout. Each access is
        /// counted.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(plain::$name);

        #[allow(
            clippy::missing_errors_doc,
            missing_docs,
            clippy::cast_lossless,
            clippy::unnecessary_cast,
            reason = "the same as in `core::sync::atomic`, for each width"
        )]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(plain::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $int {
                made(|| (self.0.load(order) as u64, true)).0 as $int
            }

            pub fn store(&self, value: $int, order: Ordering) {
                made(|| {
                    self.0.store(value, order);
                    (0, true)
                });
            }

            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                made(|| (self.0.swap(value, order) as u64, true)).0 as $int
            }

            pub fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                ok: Ordering,
                err: Ordering,
            ) -> Result<$int, $int> {
                match made(|| match self.0.compare_exchange(old, new, ok, err) {
                    Ok(value) => (value as u64, true),
                    Err(value) => (value as u64, false),
                }) {
                    (value, true) => Ok(value as $int),
                    (value, false) => Err(value as $int),
                }
            }

            pub fn compare_exchange_weak(
                &self,
                old: $int,
                new: $int,
                ok: Ordering,
                err: Ordering,
            ) -> Result<$int, $int> {
                let made = made(|| {
                    if fails() {
                        (self.0.load(err) as u64, false)
                    } else {
                        match self.0.compare_exchange(old, new, ok, err) {
                            Ok(value) => (value as u64, true),
                            Err(value) => (value as u64, false),
                        }
                    }
                });
                match made {
                    (value, true) => Ok(value as $int),
                    (value, false) => Err(value as $int),
                }
            }

            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                made(|| (self.0.fetch_add(value, order) as u64, true)).0 as $int
            }

            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                made(|| (self.0.fetch_sub(value, order) as u64, true)).0 as $int
            }

            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                made(|| (self.0.fetch_or(value, order) as u64, true)).0 as $int
            }

            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                made(|| (self.0.fetch_and(value, order) as u64, true)).0 as $int
            }

            pub fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                made(|| (self.0.fetch_max(value, order) as u64, true)).0 as $int
            }

            pub fn get_mut(&mut self) -> &mut $int {
                self.0.get_mut()
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
