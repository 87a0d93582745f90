//! The width of a limiter's state, and the atomic cell that holds it.
//!
//! Every algorithm computes in `u64` and keeps the bits in [`Word::MASK`]. On a 32-bit target the
//! compiler sees that the upper halves are unused and drops them. No other module depends on the
//! width.
//!
//! The `unsafe` expressions below turn a `u64` into a `W` or its atomic inside a `const fn`, which
//! cannot call a trait method. They are sound for three reasons:
//!
//! - The trait is sealed. It is implemented only for `u32`, `u64` and [`KeyedWord`], a transparent
//!   wrapper of [`NativeWord`].
//! - [`Word::BITS`] tells a 32-bit word from a 64-bit word: a wrapper of a `u64` has more than 32
//!   bits.
//! - An atomic has the size and the bit validity of its integer.

pub(crate) mod builder;
pub(crate) mod hold;
pub(crate) mod live;
pub(crate) mod settings;
pub(crate) mod stamped;

use core::fmt;
use core::marker::PhantomData;

use crate::sync::atomic::Ordering;
use crate::sync::{atomic, const_unless_loom};

/// The widest word that the target can compare-exchange natively: `u64`, or `u32` on targets
/// without 64-bit atomics.
///
/// Portcullis never emulates a wider atomic: on a 32-bit microcontroller that would take a lock.
///
/// ```
/// use portcullis_core::TokenBucket;
/// use portcullis_core::state::NativeWord;
/// static A: TokenBucket = TokenBucket::new(portcullis_core::Rate::per_second(5), 5);
/// let _same: &TokenBucket<NativeWord> = &A;
/// ```
#[cfg(target_has_atomic = "64")]
pub type NativeWord = u64;
/// The widest word that the target can compare-exchange natively.
#[cfg(not(target_has_atomic = "64"))]
pub type NativeWord = u32;

/// The width of a limiter's state: `u32`, `u64` on targets with 64-bit atomics, or [`KeyedWord`].
/// Sealed.
///
/// A narrower word has a shorter horizon: see the type that takes the word as its parameter, and
/// `docs/architecture.md`.
///
/// ```
/// # use portcullis_core::state::Word;
/// assert_eq!(<u32 as Word>::MASK, 0xffff_ffff);
/// ```
pub trait Word: sealed::Sealed + Copy + fmt::Debug + Into<u64> + Send + Sync + 'static {
    /// The number of bits in the word.
    const BITS: u32;
    /// All bits of the word set, as a `u64`.
    const MASK: u64 = u64::MAX >> (64 - Self::BITS);
    /// Whether the word is a part of a table's slot.
    #[doc(hidden)]
    const IN_A_TABLE: bool;
}

mod sealed {
    use super::Ordering;

    /// The atomic of a word. Values are passed as `u64`.
    pub trait Sealed {
        type Atomic: Send + Sync;
        #[cfg(portcullis_loom)]
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
    ($word:ty, $bits:expr, $int:ident, $atomic:ident, $in_a_table:expr) => {
        impl sealed::Sealed for $word {
            type Atomic = atomic::$atomic;

            #[cfg(portcullis_loom)]
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
            const IN_A_TABLE: bool = $in_a_table;
        }
    };
}

/// The bits of a table's slot below its state. A [`KeyedWord`] has the other bits.
pub(crate) const STATE_AT: u32 = if NativeWord::BITS == 64 { 21 } else { 12 };

word!(u32, u32::BITS, u32, AtomicU32, false);
#[cfg(target_has_atomic = "64")]
word!(u64, u64::BITS, u64, AtomicU64, false);
#[cfg(target_has_atomic = "64")]
word!(KeyedWord, NativeWord::BITS - STATE_AT, u64, AtomicU64, true);
#[cfg(not(target_has_atomic = "64"))]
word!(KeyedWord, NativeWord::BITS - STATE_AT, u32, AtomicU32, true);

/// The bits of a slot in a [`Keyed`](crate::Keyed) table that hold the limiter's state: 43 bits, or
/// 20 on targets without 64-bit atomics. The other bits hold the key's tag.
///
/// ```
/// # use portcullis_core::{Rate, TokenBucket};
/// # use portcullis_core::state::{KeyedWord, Word};
/// let bucket: TokenBucket<KeyedWord> =
///     TokenBucket::builder(Rate::per_second(5), 10).build_on()?;
/// assert_eq!((KeyedWord::BITS, bucket.timing().tick.as_micros()), (43, 1));
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct KeyedWord(NativeWord);

impl From<KeyedWord> for u64 {
    #[inline(always)]
    #[allow(clippy::useless_conversion, reason = "32-bit targets need it")]
    fn from(word: KeyedWord) -> Self {
        word.0.into()
    }
}

/// The low bits of `value` as a word. The caller ensures that the other bits are zero. A setting
/// may be wider than a state: the integer behind the word holds it.
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

/// Where the word of a limiter is.
pub(crate) trait Place<W: Word> {
    fn word(&self) -> &AtomicWord<W>;
}

/// The word itself: the limiter contains it.
impl<W: Word> Place<W> for AtomicWord<W> {
    #[inline(always)]
    fn word(&self) -> &Self {
        self
    }
}

/// An atomic word, with the operations of the integer's atomic. Values are `u64`s that fit the
/// word.
#[repr(transparent)]
pub(crate) struct AtomicWord<W: Word> {
    cell: W::Atomic,
    _width: PhantomData<W>,
}

impl<W: Word> AtomicWord<W> {
    const_unless_loom! {
        #[cfg_attr(not(portcullis_loom), allow(unsafe_code, reason = "an atomic of the same size"))]
        pub(crate) const fn new(value: u64) -> Self {
            #[cfg(portcullis_loom)]
            let cell = W::atomic(value);
            #[cfg(not(portcullis_loom))]
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

    /// Exchanges the word if it is `old`. Returns whether it did; it does not fail spuriously.
    pub(crate) fn replace(&self, old: u64, new: u64, ok: Ordering) -> bool {
        loop {
            match self.compare_exchange_weak(old, new, ok, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) if newer != old => return false,
                Err(_) => {}
            }
        }
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

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_through_a_constant() {
        static NARROW: AtomicWord<u32> = AtomicWord::new(0xdead_beef);
        static WIDE: AtomicWord<u64> = AtomicWord::new(0xdead_beef_0bad_cafe);
        assert_eq!(NARROW.load(Ordering::Relaxed), 0xdead_beef);
        assert_eq!(WIDE.load(Ordering::Relaxed), 0xdead_beef_0bad_cafe);
        assert_eq!(narrow::<u32>(7), 7);
        assert_eq!(narrow::<u64>(u64::MAX), u64::MAX);
    }
}
