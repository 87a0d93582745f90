//! The functions of real numbers that `core` lacks. They are the same on every target, so a
//! simulation repeats to the bit. Their relative error is below 1e-12, far below that of any
//! measurement.

/// Returns the natural logarithm of `x`, which must be a positive normal number.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff).cast_signed() - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    // The mantissa in [sqrt(1/2), sqrt(2)), where the series converges fast.
    let (mantissa, exponent) = if mantissa > core::f64::consts::SQRT_2 {
        (mantissa / 2.0, exponent + 1)
    } else {
        (mantissa, exponent)
    };
    // ln(m) = 2 atanh((m - 1) / (m + 1)).
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let mut sum = 0.0;
    for k in (0..11).rev() {
        sum = sum * square + 1.0 / f64::from(2 * k + 1);
    }
    2.0 * t * sum + whole(exponent) * core::f64::consts::LN_2
}

/// Returns e to the power of `x`. Saturates at the ends of the range of normal numbers.
pub(crate) fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let power = floor(x / core::f64::consts::LN_2 + 0.5);
    let rest = x - power * core::f64::consts::LN_2;
    let mut sum = 1.0;
    for k in (1..14).rev() {
        sum = 1.0 + sum * rest / f64::from(k);
    }
    let scale = f64::from_bits(((power as i64 + 1023).cast_unsigned()) << 52);
    sum * scale
}

/// Returns the square root of `x`, or 0 if `x` is not positive.
pub(crate) fn sqrt(x: f64) -> f64 {
    if x > 0.0 { exp(0.5 * ln(x)) } else { 0.0 }
}

/// Returns the largest whole number that is at most `x`. `x` must fit 64 bits.
pub(crate) fn floor(x: f64) -> f64 {
    let cut = whole(x as i64);
    if cut > x { cut - 1.0 } else { cut }
}

/// Returns the smallest whole number that is at least `x`. `x` must fit 64 bits.
pub(crate) fn ceil(x: f64) -> f64 {
    -floor(-x)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "exponents, and counts below 2^52"
)]
fn whole(x: i64) -> f64 {
    x as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_agree_with_those_of_the_standard_library() {
        let mut x = 1e-12_f64;
        while x < 1e12 {
            assert!(
                (ln(x) - x.ln()).abs() <= 1e-12 * x.ln().abs().max(1.0),
                "ln {x}"
            );
            assert!((sqrt(x) / x.sqrt() - 1.0).abs() < 1e-12, "sqrt {x}");
            let y = x.ln();
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-12, "exp {y}");
            x *= 1.37;
        }
        for x in [-2.5, -2.0, -0.1, 0.0, 0.1, 2.0, 2.5] {
            assert_eq!(floor(x).to_bits(), f64::floor(x).to_bits(), "{x}");
            assert!((ceil(x) - f64::ceil(x)).abs() < 0.5, "{x}");
        }
    }
}
