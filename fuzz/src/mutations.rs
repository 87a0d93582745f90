//! Mutations of inputs from a seed: the same ones on every machine.

/// Pseudo-random numbers (xorshift64*).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator. The same seed returns the same numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the next number.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub const fn below(&mut self, end: usize) -> usize {
        if end == 0 {
            0
        } else {
            (self.next() >> 11) as usize % end
        }
    }
}

/// Pieces with a meaning in one of the formats.
const PIECES: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\"",
    b"'",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"=",
    b":",
    b",",
    b";",
    b"/",
    b"%",
    b"$",
    b"*",
    b"-",
    b"-1",
    b"0",
    b"1.5",
    b"1e999",
    b"18446744073709551616",
    b"9223372036854775807",
    b"4294967296",
    b"999999999999999999999999",
    b"\xff",
    b"\xc3\xa9",
    b"\xef\xbb\xbf",
    b"\\ud800",
    b"//",
    b"/*",
    b"*/",
    b"%2f",
    b"%",
    b"..",
    b"null",
    b"true",
    b"\"\"\"",
    b"[[rules]]\n",
    b"limits = ",
    b"5/m",
    b"1/0s",
    b"99999999999d",
    b"\"Limit\":",
    b"\"Period\":",
    b"{0}{1,5}{{",
    b"{everything}",
    b"00:00:10",
    b"::ffff:1.2.3.4",
    b"[::1]:80",
    b"for=",
    b"q=1;w=1",
    b"?1",
    b"@1",
    b"1970-01-01T00:00:00Z",
    b"+9999",
    b"%{%s}t",
    b"$msec",
];

/// The most bytes that a mutation returns.
const LONGEST: usize = 4096;

/// Returns `input` with one to four changes: flipped bits, other bytes, pieces that have a meaning,
/// ranges that are removed, repeated, or taken from `other`.
pub fn mutated(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let length = random.below(16).min(bytes.len() - at);
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next().to_le_bytes()[0],
            2 => {
                let piece = PIECES[random.below(PIECES.len())];
                bytes.splice(at..at + length, piece.iter().copied());
            }
            3 => {
                let piece = PIECES[random.below(PIECES.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
            4 => {
                bytes.drain(at..at + length);
            }
            5 => {
                let range = bytes[at..at + length].to_vec();
                for _ in 0..random.below(8) {
                    bytes.splice(at..at, range.iter().copied());
                }
            }
            _ => {
                let from = random.below(other.len());
                let range = &other[from..(from + random.below(64)).min(other.len())];
                bytes.splice(at..at + length, range.iter().copied());
            }
        }
    }
    bytes.truncate(LONGEST);
    bytes
}
