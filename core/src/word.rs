//! The width of a limiter's state, and the atomic cell that holds it.
//!
//! Every algorithm computes in `u64` and keeps what fits [`Word::MASK`]; on a 32-bit target the
//! compiler sees that the upper halves are never looked at, and drops them. Nothing else knows the
//! width.
//!
//! The two `unsafe` expressions below turn a `u64` into a `W` or its atomic inside a `const fn`,
//! where a trait's method cannot be called. They are sound because the trait is sealed and
//! implemented for `u32`, `u64` and a transparent wrapper of the native one of them alone,
//! [`Word::BITS`] tells those of 32 bits from those of 64 (a wrapper of 64 has more than 32), and
//! an atomic has its integer's size and bit validity.

pub(crate) mod hold;
pub(crate) mod live;
pub(crate) mod settings;
pub(crate) mod stamped;

use core::fmt;
use core::marker::PhantomData;

use crate::sync::atomic::Ordering;
use crate::sync::{atomic, const_unless_loom};

/// The widest word that the target can compare and exchange natively: `u64`, or `u32` where there
/// is nothing wider.
///
/// Portcullis never emulates a wider atomic: on a 32-bit microcontroller that would be a lock.
///
/// ```
/// use portcullis_core::{NativeWord, TokenBucket};
/// static A: TokenBucket = TokenBucket::new(portcullis_core::Rate::per_second(5), 5);
/// let _same: &TokenBucket<NativeWord> = &A;
/// ```
#[cfg(target_has_atomic = "64")]
pub type NativeWord = u64;
/// The widest word that the target can compare and exchange natively.
#[cfg(not(target_has_atomic = "64"))]
pub type NativeWord = u32;

/// A width for a limiter's state: `u32`, on targets with 64-bit atomics `u64`, and
/// [`KeyedWord`]. Sealed.
///
/// A narrower word has a nearer horizon: see the type that it parametrises, and
/// `docs/architecture.md`.
///
/// ```
/// # use portcullis_core::{Word};
/// assert_eq!(<u32 as Word>::MASK, 0xffff_ffff);
/// ```
pub trait Word: sealed::Sealed + Copy + fmt::Debug + Into<u64> + Send + Sync + 'static {
    /// Bits in the word.
    const BITS: u32;
    /// All of the word's bits set, as a `u64`.
    const MASK: u64 = u64::MAX >> (64 - Self::BITS);
}

mod sealed {
    use super::Ordering;

    /// The atomic of a word's width; values travel as `u64`.
    pub trait Sealed {
        type Atomic: Send + Sync;
        #[cfg(loom)]
        fn atomic(value: u64) -> Self::Atomic;
        fn load(cell: &Self::Atomic, order: Ordering) -> u64;
        fn store(cell: &Self::Atomic, value: u64, order: Ordering);
        fn exchange(
            cell: &Self::Atomic,
            old: u64,
            new: u64,
            ok: Ordering,
            err: Ordering,
        ) -> Result<u64, u64>;
        fn add(cell: &Self::Atomic, value: u64, order: Ordering) -> u64;
        fn sub(cell: &Self::Atomic, value: u64, order: Ordering) -> u64;
        fn or(cell: &Self::Atomic, bits: u64, order: Ordering);
        fn and_not(cell: &Self::Atomic, bits: u64, order: Ordering);
    }
}

macro_rules! word {
    ($word:ty, $bits:expr, $int:ident, $atomic:ident) => {
        impl sealed::Sealed for $word {
            type Atomic = atomic::$atomic;

            #[cfg(loom)]
            fn atomic(value: u64) -> Self::Atomic {
                atomic::$atomic::new(value as $int)
            }

            #[inline(always)]
            fn load(cell: &Self::Atomic, order: Ordering) -> u64 {
                u64::from(cell.load(order))
            }

            #[inline(always)]
            fn store(cell: &Self::Atomic, value: u64, order: Ordering) {
                cell.store(value as $int, order);
            }

            #[inline(always)]
            fn exchange(
                cell: &Self::Atomic,
                old: u64,
                new: u64,
                ok: Ordering,
                err: Ordering,
            ) -> Result<u64, u64> {
                match cell.compare_exchange_weak(old as $int, new as $int, ok, err) {
                    Ok(value) => Ok(u64::from(value)),
                    Err(value) => Err(u64::from(value)),
                }
            }

            #[inline(always)]
            fn add(cell: &Self::Atomic, value: u64, order: Ordering) -> u64 {
                u64::from(cell.fetch_add(value as $int, order))
            }

            #[inline(always)]
            fn sub(cell: &Self::Atomic, value: u64, order: Ordering) -> u64 {
                u64::from(cell.fetch_sub(value as $int, order))
            }

            fn or(cell: &Self::Atomic, bits: u64, order: Ordering) {
                cell.fetch_or(bits as $int, order);
            }

            fn and_not(cell: &Self::Atomic, bits: u64, order: Ordering) {
                cell.fetch_and(!(bits as $int), order);
            }
        }

        impl Word for $word {
            const BITS: u32 = $bits;
        }
    };
}

/// Bits of a table's entry below its state: a [`KeyedWord`] has the others.
pub(crate) const STATE_AT: u32 = if NativeWord::BITS == 64 { 21 } else { 12 };

word!(u32, u32::BITS, u32, AtomicU32);
#[cfg(target_has_atomic = "64")]
word!(u64, u64::BITS, u64, AtomicU64);
#[cfg(target_has_atomic = "64")]
word!(KeyedWord, NativeWord::BITS - STATE_AT, u64, AtomicU64);
#[cfg(not(target_has_atomic = "64"))]
word!(KeyedWord, NativeWord::BITS - STATE_AT, u32, AtomicU32);

/// What an entry of a [`Keyed`](crate::Keyed) table has for its limiter's state, beside what tells
/// its key: 43 bits, or 20 on targets without 64-bit atomics.
///
/// ```
/// # use portcullis_core::{KeyedWord, Rate, TokenBucket, Word};
/// let bucket: TokenBucket<KeyedWord> =
///     TokenBucket::builder(Rate::per_second(5), 10).build_on()?;
/// assert_eq!((KeyedWord::BITS, bucket.tick().as_micros()), (43, 1));
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct KeyedWord(NativeWord);

impl From<KeyedWord> for u64 {
    #[inline(always)]
    #[allow(clippy::useless_conversion, reason = "not of 32 bits")]
    fn from(word: KeyedWord) -> Self {
        word.0.into()
    }
}

/// `value`'s low bits as a word; the caller has made sure that the rest is zero. A setting may be
/// wider than a state: the integer holds it.
#[allow(unsafe_code, reason = "an integer of the same size")]
pub(crate) const fn narrow<W: Word>(value: u64) -> W {
    if W::BITS > 32 {
        // SAFETY: `W` is a `u64`, by the module's argument.
        unsafe { core::mem::transmute_copy::<u64, W>(&value) }
    } else {
        debug_assert!(value <= u32::MAX as u64);
        // SAFETY: `W` is `u32`, by the module's argument.
        unsafe { core::mem::transmute_copy::<u32, W>(&(value as u32)) }
    }
}

/// An atomic word. The same operations as the integer's own atomic, on `u64` values that fit the
/// word.
pub(crate) struct AtomicWord<W: Word> {
    cell: W::Atomic,
    _width: PhantomData<W>,
}

impl<W: Word> AtomicWord<W> {
    const_unless_loom! {
        #[cfg_attr(not(loom), allow(unsafe_code, reason = "an atomic of the same size"))]
        pub(crate) const fn new(value: u64) -> Self {
            #[cfg(loom)]
            let cell = W::atomic(value);
            #[cfg(not(loom))]
            let cell = if W::BITS > 32 {
                // SAFETY: `W::Atomic` is `AtomicU64`, by the module's argument.
                unsafe { core::mem::transmute_copy::<u64, W::Atomic>(&value) }
            } else {
                // SAFETY: `W::Atomic` is `AtomicU32`, by the module's argument.
                unsafe { core::mem::transmute_copy::<u32, W::Atomic>(&(value as u32)) }
            };
            Self { cell, _width: PhantomData }
        }
    }

    #[inline(always)]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        W::load(&self.cell, order)
    }

    #[inline(always)]
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        W::store(&self.cell, value, order);
    }

    #[inline(always)]
    pub(crate) fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        ok: Ordering,
        err: Ordering,
    ) -> Result<u64, u64> {
        W::exchange(&self.cell, old, new, ok, err)
    }

    #[inline(always)]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        W::add(&self.cell, value, order)
    }

    #[inline(always)]
    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        W::sub(&self.cell, value, order)
    }

    /// Sets `bits`.
    pub(crate) fn set(&self, bits: u64, order: Ordering) {
        W::or(&self.cell, bits, order);
    }

    /// Clears `bits`.
    pub(crate) fn clear(&self, bits: u64, order: Ordering) {
        W::and_not(&self.cell, bits, order);
    }
}

impl<W: Word> fmt::Debug for AtomicWord<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_way_into_a_constant_and_back() {
        static NARROW: AtomicWord<u32> = AtomicWord::new(0xdead_beef);
        static WIDE: AtomicWord<u64> = AtomicWord::new(0xdead_beef_0bad_cafe);
        assert_eq!(NARROW.load(Ordering::Relaxed), 0xdead_beef);
        assert_eq!(WIDE.load(Ordering::Relaxed), 0xdead_beef_0bad_cafe);
        assert_eq!(narrow::<u32>(7), 7);
        assert_eq!(narrow::<u64>(u64::MAX), u64::MAX);
    }
}
