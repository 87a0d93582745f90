//! A short text that can be written in a constant, where the formatting of the standard library is
//! not available. So the compiler prints the same message for invalid settings that the error
//! prints at run time.

const YEAR: u64 = 31_557_600_000_000_000;

/// A text of at most 128 bytes. What does not fit is left out.
pub(crate) struct Message {
    bytes: [u8; 128],
    len: usize,
}

impl Message {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; 128],
            len: 0,
        }
    }

    pub(crate) const fn text(mut self, text: &str) -> Self {
        let text = text.as_bytes();
        if text.len() > self.bytes.len() - self.len {
            return self;
        }
        let mut at = 0;
        while at < text.len() {
            self.bytes[self.len] = text[at];
            self.len += 1;
            at += 1;
        }
        self
    }

    pub(crate) const fn number(self, number: u64) -> Self {
        let mut place = 1;
        while number / place >= 10 {
            place *= 10;
        }
        self.digits(number, place)
    }

    /// Writes a duration exactly, in the largest unit that is not longer: `1.5 s`, `20 ms`. Adds
    /// the whole years to a duration of some years.
    pub(crate) const fn nanos(self, nanos: u64) -> Self {
        let (unit, name) = match nanos {
            1_000_000_000.. => (1_000_000_000, " s"),
            1_000_000.. => (1_000_000, " ms"),
            1_000.. => (1_000, " µs"),
            _ => (1, " ns"),
        };
        let (mut rest, mut places) = (nanos % unit, unit);
        let mut message = self.number(nanos / unit);
        if rest > 0 {
            while rest % 10 == 0 {
                rest /= 10;
                places /= 10;
            }
            message = message.text(".").digits(rest, places / 10);
        }
        message = message.text(name);
        if nanos >= 2 * YEAR {
            message.text(" (").number(nanos / YEAR).text(" years)")
        } else {
            message
        }
    }

    /// Writes the decimal digits of `number`, the first of which counts `place`.
    const fn digits(mut self, number: u64, mut place: u64) -> Self {
        while place > 0 && self.len < self.bytes.len() {
            self.bytes[self.len] = b'0' + (number / place % 10) as u8;
            self.len += 1;
            place /= 10;
        }
        self
    }

    pub(crate) const fn as_str(&self) -> &str {
        match core::str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(text) => text,
            Err(_) => "",
        }
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn durations_are_exact_in_the_largest_unit_that_fits() {
        for (nanos, text) in [
            (0, "0 ns"),
            (1, "1 ns"),
            (999, "999 ns"),
            (1_000, "1 µs"),
            (1_001, "1.001 µs"),
            (20_000_000, "20 ms"),
            (999_999_999, "999.999999 ms"),
            (1_000_000_000, "1 s"),
            (1_050_000_000, "1.05 s"),
            (1_500_000_000, "1.5 s"),
            (2_000_000_001, "2.000000001 s"),
            (86_400_000_000_000, "86400 s"),
            (u64::MAX / 2, "9223372036.854775807 s (292 years)"),
            (u64::MAX, "18446744073.709551615 s (584 years)"),
        ] {
            assert_eq!(Message::new().nanos(nanos).as_str(), text);
        }
    }

    #[test]
    fn numbers_of_any_length_are_written() {
        for number in [0, 1, 9, 10, 105, 1_000, u64::MAX] {
            let message = Message::new().number(number);
            assert_eq!(message.as_str(), number.to_string());
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let long = Message::new().text(&"x".repeat(127)).text("µ").nanos(100);
        assert_eq!(long.as_str(), "x".repeat(127) + "1");
    }
}
