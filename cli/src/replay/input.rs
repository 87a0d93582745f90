//! The lines of one log: from a file or standard input, plain or gzip, in constant memory.
//!
//! Lines are slices of one buffer, so reading a line copies and allocates nothing.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use memchr::memchr;

/// The number of bytes of a line that are kept. A replay needs only the start of a line, so the
/// rest is skipped.
const LONGEST: usize = 64 * 1024;

/// Room for a whole line and the start of the next one.
const BUFFER: usize = 2 * LONGEST;

/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns whether `log` is a name of standard input.
pub(crate) fn is_standard_input(log: &Path) -> bool {
    log == Path::new("-") || log == Path::new("/dev/stdin")
}

/// Returns the name of `log` for messages.
pub(crate) fn name(log: &Path) -> Cow<'_, str> {
    if is_standard_input(log) {
        "standard input".into()
    } else {
        log.to_string_lossy()
    }
}

/// A line without its end.
pub(crate) struct Line<'a> {
    /// The bytes, at most the first 64 KiB.
    pub(crate) bytes: &'a [u8],
    /// Whether the line continues after them.
    pub(crate) cut: bool,
}

/// The lines of a log, one after another in the same memory.
pub(crate) struct Lines {
    source: Box<dyn Read>,
    buffer: Box<[u8]>,
    /// The bytes that have been read but not returned: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Whether the start of the current line has been returned, so that its rest must be skipped.
    skipping: bool,
    /// Whether anything has been read.
    has_read: bool,
    /// Whether gzip has ended in the middle.
    is_truncated: bool,
}

impl Lines {
    /// Opens `log`, and detects gzip by its first bytes. Reading advances `progress`.
    pub(crate) fn open(log: &Path, progress: &ProgressBar) -> io::Result<Self> {
        if is_standard_input(log) {
            Self::new(progress.wrap_read(io::stdin()))
        } else {
            Self::new(progress.wrap_read(File::open(log)?))
        }
    }

    fn new(source: impl Read + 'static) -> io::Result<Self> {
        let mut lines = Self {
            source: decoded(source)?,
            buffer: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
            skipping: false,
            has_read: false,
            is_truncated: false,
        };
        // Two bytes identify gzip. A pipe may deliver them one by one.
        while lines.end < 2 && lines.fill()? {}
        if let [0xff, 0xfe, ..] | [0xfe, 0xff, ..] = lines.buffer[..lines.end] {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "it is UTF-16, as its byte order mark says; convert it to UTF-8 \
                 (for example: iconv -f UTF-16 -t UTF-8)",
            ));
        }
        Ok(lines)
    }

    /// Returns whether the compressed data ended in the middle.
    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Returns the next line, or `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let (length, next) = loop {
            let held = &self.buffer[self.start..self.end];
            match memchr(b'\n', held) {
                Some(length) if self.skipping => {
                    self.start += length + 1;
                    self.skipping = false;
                }
                Some(length) => break (length, length + 1),
                None if self.skipping => {
                    self.start = self.end;
                    if !self.fill()? {
                        return Ok(None);
                    }
                }
                None if held.len() > LONGEST => {
                    self.skipping = true;
                    break (held.len(), held.len());
                }
                None => {
                    if !self.fill()? {
                        let rest = self.end - self.start;
                        if rest == 0 {
                            return Ok(None);
                        }
                        break (rest, rest);
                    }
                }
            }
        };
        let line = &self.buffer[self.start..self.start + length];
        self.start += next;
        let (line, cut) = match line.get(..LONGEST) {
            Some(beginning) if length > LONGEST => (beginning, true),
            // The last line, as far as it could be read.
            _ if self.is_truncated && next == length => (line, true),
            _ => (line.strip_suffix(b"\r").unwrap_or(line), false),
        };
        // Joined logs can have a byte order mark in the middle.
        let bytes = line.strip_prefix(MARK).unwrap_or(line);
        Ok(Some(Line { bytes, cut }))
    }

    /// Reads more bytes into the buffer. Returns `false` at the end of the log.
    fn fill(&mut self) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(more) => {
                    self.end += more;
                    self.has_read = true;
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Only a decoder expects more. A download or a copy has stopped, or the server is
                // still writing: what there is, is good.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && self.has_read => {
                    self.is_truncated = true;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Compressed data that are not read: their first bytes, their name, and the program that
/// decompresses them.
const OTHER: [(&[u8], &str, &str); 3] = [
    (b"\xfd7zXZ\0", "xz", "xz"),
    (b"BZh", "bzip2", "bzip2"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd"),
];

/// Returns the plain bytes of a source that may be gzip, of one member or several.
fn decoded(mut source: impl Read + 'static) -> io::Result<Box<dyn Read>> {
    // A pipe may deliver the first byte alone.
    let mut start = Vec::new();
    source.by_ref().take(6).read_to_end(&mut start)?;
    for (magic, name, program) in OTHER {
        if start.starts_with(magic) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!(
                    "it is compressed with {name}; decompress it (for example: {program} -dc LOG | portcullis replay -)"
                ),
            ));
        }
    }
    let gzip = start.starts_with(&[0x1f, 0x8b]);
    let source = Cursor::new(start).chain(source);
    Ok(if gzip {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(
            BUFFER, source,
        )))
    } else {
        Box::new(source)
    })
}

/// Returns a progress bar for reading all `logs`, on standard error, or a counter if the length is
/// unknown. Shows nothing if standard error is not a terminal.
pub(crate) fn progress<'a>(logs: impl Iterator<Item = &'a Path>) -> ProgressBar {
    let length = logs
        .map(|log| match log.metadata() {
            Ok(metadata) if metadata.is_file() && !is_standard_input(log) => Some(metadata.len()),
            _ => None,
        })
        .sum::<Option<u64>>();
    let (bar, template) = match length {
        None => (
            ProgressBar::new_spinner(),
            "{spinner} {bytes} read, {bytes_per_sec}",
        ),
        Some(length) => (
            ProgressBar::new(length),
            "{bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go",
        ),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers a few bytes at a time, as a slow pipe does.
    struct Trickle(Cursor<Vec<u8>>, usize);

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let end = buffer.len().min(self.1);
            self.0.read(&mut buffer[..end])
        }
    }

    /// Returns the lines of `text`, which must be the same for every way of delivery.
    fn lines(text: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let read = |at_a_time| {
            let mut lines = Lines::new(Trickle(Cursor::new(text.to_vec()), at_a_time)).unwrap();
            let mut all = Vec::new();
            while let Some(line) = lines.next().unwrap() {
                all.push((line.bytes.to_vec(), line.cut));
            }
            all
        };
        let all = read(usize::MAX);
        // One byte at a time would take too long for a long line.
        assert_eq!(read(if text.len() < 1000 { 1 } else { 4093 }), all);
        all
    }

    #[test]
    fn lines_end_in_any_of_the_usual_ways() {
        let expected = ["a", "", "b", "c"].map(|line| (line.as_bytes().to_vec(), false));
        assert_eq!(lines(b"a\n\nb\r\nc"), expected);
        assert_eq!(lines(b"a\n\nb\r\nc\n"), expected);
        assert_eq!(lines(b""), []);
        assert_eq!(lines(b"\x1f"), [(vec![0x1f], false)]);
        assert_eq!(lines(b"\n"), [(vec![], false)]);
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        for length in [LONGEST + 1, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER + 7] {
            let text = [vec![b'x'; length], b"\nnext".to_vec()].concat();
            assert_eq!(
                lines(&text),
                [(vec![b'x'; LONGEST], true), (b"next".to_vec(), false)]
            );
            assert_eq!(lines(&text[..length]), [(vec![b'x'; LONGEST], true)]);
        }
        for length in [LONGEST - 1, LONGEST] {
            let text = [vec![b'x'; length], b"\nnext".to_vec()].concat();
            assert_eq!(
                lines(&text),
                [(vec![b'x'; length], false), (b"next".to_vec(), false)]
            );
        }
    }

    #[test]
    fn many_lines_pass_through_the_buffer_unchanged() {
        let text: Vec<String> = (0..60_000).map(|n| format!("line {n}")).collect();
        let read = lines(text.join("\n").as_bytes());
        assert_eq!(read.len(), text.len());
        assert!(
            read.iter()
                .zip(&text)
                .all(|((line, cut), text)| line == text.as_bytes() && !cut)
        );
    }

    #[test]
    fn a_byte_order_mark_of_utf_8_is_skipped_and_utf_16_is_rejected() {
        assert_eq!(
            lines(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n"),
            ["one", "two"].map(|line| (line.as_bytes().to_vec(), false))
        );
        for text in [&b"\xff\xfea\0\n\0"[..], b"\xfe\xff\0a\0\n"] {
            let error = Lines::new(Cursor::new(text.to_vec())).err().unwrap();
            assert!(error.to_string().contains("UTF-16"), "{error}");
        }
    }

    #[test]
    fn gzip_is_recognized_by_its_first_bytes_even_if_they_come_one_by_one() {
        use std::io::Write;
        let member = |text: &[u8]| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let two = [member(b"one\ntw"), member(b"o\n")].concat();
        assert_eq!(
            lines(&two),
            ["one", "two"].map(|line| (line.as_bytes().to_vec(), false))
        );
    }
}
