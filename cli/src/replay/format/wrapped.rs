//! Lines inside the lines of container logs.
//!
//! - CRI, as containerd and CRI-O write it: `2024-03-01T00:00:00.123456789Z stdout F LINE`.
//! - Docker's `json-file`: `{"log":"LINE\n","stream":"stdout","time":"..."}`.

use memchr::memmem;

/// Where the line of the program is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Inner {
    /// The line is that of the program.
    #[default]
    Whole,
    /// It begins at this byte.
    From(usize),
    /// It is this text.
    Text(Vec<u8>),
}

impl Inner {
    /// Returns whether a line begins as those of containers do. Nearly all others are whole.
    #[inline]
    pub(super) fn is_likely(line: &[u8]) -> bool {
        match line.get(10) {
            Some(b'T') => line[4] == b'-',
            _ => line.first() == Some(&b'{'),
        }
    }

    /// Finds the line of the program.
    pub(super) fn of(line: &[u8]) -> Self {
        match line.first() {
            Some(b'{') if line.starts_with(br#"{"log":"#) => docker(line),
            Some(b'0'..=b'9') if Self::is_likely(line) => cri(line),
            _ => Self::Whole,
        }
    }

    /// Returns the line of the program in `line`.
    #[inline]
    pub(super) fn line<'a>(&'a self, line: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Whole => line,
            Self::From(start) => line.get(*start..).unwrap_or_default(),
            Self::Text(text) => text,
        }
    }
}

#[cold]
fn docker(line: &[u8]) -> Inner {
    let object = serde_json::from_slice::<serde_json::Value>(line);
    let object = object.ok().filter(|object| object.get("stream").is_some());
    let text = object
        .as_ref()
        .and_then(|object| object.get("log")?.as_str());
    match text {
        Some(text) => Inner::Text(text.trim_end_matches(['\n', '\r']).into()),
        None => Inner::Whole,
    }
}

fn cri(line: &[u8]) -> Inner {
    const HEAD: usize = "2024-03-01T00:00:00.123456789+00:00 stderr F ".len();
    let head = &line[..line.len().min(HEAD)];
    for stream in [b" stdout ".as_slice(), b" stderr "] {
        if let Some(at) = memmem::find(head, stream) {
            let tag = at + stream.len();
            // Full, or partial: the start of a line that goes on in the next.
            if let Some([b'F' | b'P', b' ']) = line.get(tag..tag + 2) {
                return Inner::From(tag + 2);
            }
        }
    }
    Inner::Whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_program_is_found_in_that_of_the_container() {
        for (line, expected) in [
            ("2024-03-01T00:00:00.123456789Z stdout F a b", "a b"),
            ("2024-03-01T00:00:00.123456789+01:00 stderr P a", "a"),
            ("2024-03-01T00:00:00Z stdout F ", ""),
            (
                r#"{"log":"a \"b\"\n","stream":"stdout","time":"x"}"#,
                r#"a "b""#,
            ),
        ] {
            let inner = Inner::of(line.as_bytes());
            assert_eq!(inner.line(line.as_bytes()), expected.as_bytes(), "{line}");
        }
        for line in [
            "2024-03-01T00:00:00Z GET / stdout F",
            "2024-03-01T00:00:00Z stdout X a",
            r#"{"log":"a","ip":"b"}"#,
            r#"{"log":"a"#,
            "",
        ] {
            assert_eq!(Inner::of(line.as_bytes()), Inner::Whole, "{line}");
        }
    }
}
