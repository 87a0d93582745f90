//! The part of `core::sync::atomic` that the core uses.

use core::sync::atomic as plain;
pub use core::sync::atomic::Ordering;

use super::{access, fails};

/// A fence that counts as an access. See `core::sync::atomic::fence`.
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
            reason = "the same as in `core::sync::atomic`"
        )]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(plain::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $int {
                access();
                self.0.load(order)
            }

            pub fn store(&self, value: $int, order: Ordering) {
                access();
                self.0.store(value, order);
            }

            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                access();
                self.0.swap(value, order)
            }

            pub fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                ok: Ordering,
                err: Ordering,
            ) -> Result<$int, $int> {
                access();
                self.0.compare_exchange(old, new, ok, err)
            }

            pub fn compare_exchange_weak(
                &self,
                old: $int,
                new: $int,
                ok: Ordering,
                err: Ordering,
            ) -> Result<$int, $int> {
                access();
                if fails() {
                    Err(self.0.load(err))
                } else {
                    self.0.compare_exchange(old, new, ok, err)
                }
            }

            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                access();
                self.0.fetch_add(value, order)
            }

            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                access();
                self.0.fetch_sub(value, order)
            }

            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                access();
                self.0.fetch_or(value, order)
            }

            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                access();
                self.0.fetch_and(value, order)
            }

            pub fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                access();
                self.0.fetch_max(value, order)
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
