//! The arithmetic in 128 bits that the builders need. A 32-bit processor has no instruction and no
//! library function for it, so the compiler would write it out at each place: a division in some
//! 400 bytes. Here it is in a program once.

/// Returns `a / b`. `b` is not 0.
#[cfg(target_pointer_width = "64")]
#[inline]
pub(crate) const fn quotient(a: u128, b: u128) -> u128 {
    a / b
}

/// Returns `a / b`. `b` is not 0.
#[cfg(not(target_pointer_width = "64"))]
#[inline(never)]
pub(crate) const fn quotient(a: u128, b: u128) -> u128 {
    bit_by_bit(a, b)
}

/// Returns `a / b`, in a quarter of the code that the compiler writes for a 32-bit processor. 0 if
/// `b` is 0.
#[cfg(any(test, not(target_pointer_width = "64")))]
#[inline(always)]
const fn bit_by_bit(mut a: u128, b: u128) -> u128 {
    debug_assert!(b > 0);
    if b > a || b == 0 {
        return 0;
    }
    let (mut part, mut left) = (b, 0);
    while part <= a >> 1 {
        part <<= 1;
        left += 1;
    }
    let mut quotient = 0;
    loop {
        quotient <<= 1;
        if part <= a {
            a -= part;
            quotient |= 1;
        }
        if left == 0 {
            return quotient;
        }
        part >>= 1;
        left -= 1;
    }
}

/// Returns `a * b`.
#[cfg_attr(not(target_pointer_width = "64"), inline(never))]
pub(crate) const fn product(a: u64, b: u64) -> u128 {
    a as u128 * b as u128
}

/// Returns the greatest common divisor. If one number is 0, this is the other; `a` then has 64
/// bits.
#[cfg_attr(not(target_pointer_width = "64"), inline(never))]
pub(crate) const fn gcd(a: u128, mut b: u64) -> u64 {
    if b == 0 {
        return a as u64;
    }
    // The rest is less than `b`, so its lower 64 bits are all of it.
    let times = quotient(a, b as u128) as u64;
    let mut rest = (a as u64).wrapping_sub(times.wrapping_mul(b));
    while rest > 0 {
        (b, rest) = (rest, b % rest);
    }
    b
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    /// Numbers around each power of two, and some between them.
    fn numbers() -> impl Iterator<Item = u128> + Clone {
        (0..128).flat_map(|bits| {
            let power = 1 << bits;
            [power - 1, power, power + power / 3, power | power >> 1 | 5]
        })
    }

    #[test]
    fn a_quotient_found_bit_by_bit_is_that_of_the_division() {
        let ends = [u128::MAX - 1, u128::MAX];
        for a in numbers().chain(ends) {
            for b in numbers().chain(ends).filter(|&b| b > 0) {
                assert_eq!(bit_by_bit(a, b), a / b, "{a} by {b}");
            }
        }
    }

    #[test]
    fn a_common_divisor_is_the_greatest() {
        fn greatest(a: u128, b: u128) -> u128 {
            if a == 0 { b } else { greatest(b % a, a) }
        }
        for a in numbers() {
            for b in numbers().filter_map(|b| u64::try_from(b).ok()) {
                if b > 0 || u64::try_from(a).is_ok() {
                    assert_eq!(u128::from(gcd(a, b)), greatest(a, b.into()), "{a} and {b}");
                }
            }
        }
        assert_eq!(gcd(12 << 70, 18), 6);
    }
}
