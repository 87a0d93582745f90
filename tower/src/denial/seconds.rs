//! Numbers of seconds as values of headers.

use http::HeaderValue;

/// Values below this one are made without an allocation: 2 h 46 min.
const PREPARED: usize = 10_000;

/// The digits of all numbers below `PREPARED`, four for each.
static DIGITS: [[u8; 4]; PREPARED] = digits();

#[allow(
    clippy::large_stack_arrays,
    reason = "it is on the stack of the compiler only"
)]
const fn digits() -> [[u8; 4]; PREPARED] {
    let mut digits = [[b'0'; 4]; PREPARED];
    let mut n = 0;
    while n < PREPARED {
        let (mut rest, mut at) = (n, 4);
        while rest > 0 {
            at -= 1;
            digits[n][at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        n += 1;
    }
    digits
}

/// A number as the value of a header.
///
/// # Cost
///
/// Below 10,000 it does not allocate.
pub(crate) fn value(n: u64) -> HeaderValue {
    let prepared = usize::try_from(n).ok().filter(|&n| n < PREPARED);
    let text = prepared.and_then(|n| {
        let skipped = match n {
            0..10 => 3,
            10..100 => 2,
            100..1_000 => 1,
            _ => 0,
        };
        str::from_utf8(&DIGITS[n][skipped..]).ok()
    });
    match text {
        Some(text) => HeaderValue::from_static(text),
        None => HeaderValue::from(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_number() {
        for n in (0..10_100).chain([u64::MAX]) {
            assert_eq!(value(n).to_str().unwrap(), n.to_string());
        }
    }
}
