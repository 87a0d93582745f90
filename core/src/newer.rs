//! Functions that the standard library has only in later versions than the lowest Rust version.

/// Marks the branch that calls it as unlikely. `core::hint::cold_path` since Rust 1.95.
#[cold]
#[inline]
pub(crate) const fn cold_path() {}

/// Returns the integer of the same bits. `u64::cast_signed` since Rust 1.87.
#[allow(clippy::cast_possible_wrap, reason = "the same bits")]
pub(crate) const fn signed(bits: u64) -> i64 {
    bits as i64
}

/// Returns the integer of the same bits. `u128::cast_signed` since Rust 1.87.
#[allow(clippy::cast_possible_wrap, reason = "the same bits")]
pub(crate) const fn signed_wide(bits: u128) -> i128 {
    bits as i128
}

/// Returns the low 64 bits. `i128::cast_unsigned` since Rust 1.87.
#[allow(clippy::cast_sign_loss, reason = "the same bits")]
pub(crate) const fn low_bits(value: i128) -> u64 {
    value as u64
}

/// Shifts `bits` to the right by `by`; 0 if no bit is left. `u64::unbounded_shr` since Rust 1.87.
#[inline(always)]
pub(crate) const fn unbounded_shr(bits: u64, by: u32) -> u64 {
    if by < u64::BITS { bits >> by } else { 0 }
}

/// Returns `yes` if `condition` holds, otherwise `no`, without a branch.
/// `core::hint::select_unpredictable` since Rust 1.88.
#[inline(always)]
pub(crate) const fn select_unpredictable(condition: bool, yes: u64, no: u64) -> u64 {
    let all_or_none = (condition as u64).wrapping_neg();
    no ^ ((no ^ yes) & all_or_none)
}
