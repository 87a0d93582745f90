//! The log as lines: from a file or standard input, plain or gzip, in constant memory.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};

/// How much of a line is kept. What a replay needs stands at the beginning, so the rest of a longer
/// one is skipped.
const LONGEST: u64 = 64 * 1024;

const BUFFER: usize = 128 * 1024;

/// The name of a log that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// What `log` is called when people are told of it.
pub(crate) fn name(log: &Path) -> Cow<'_, str> {
    if log == Path::new(STANDARD_INPUT) {
        "standard input".into()
    } else {
        log.to_string_lossy()
    }
}

/// A line without its end.
pub(crate) struct Line<'a> {
    /// The bytes, at most the first 64 KiB.
    pub(crate) bytes: &'a [u8],
    /// Whether the line goes on after them.
    pub(crate) cut: bool,
}

/// The lines of a log, one after the other in the same memory.
pub(crate) struct Lines {
    source: Box<dyn BufRead>,
    line: Vec<u8>,
    progress: ProgressBar,
}

impl Lines {
    /// Opens `log`, or standard input for `-`, and finds out by its first bytes whether it is gzip.
    pub(crate) fn open(log: &Path) -> io::Result<Self> {
        let (source, length): (Box<dyn Read>, u64) = if log == Path::new(STANDARD_INPUT) {
            (Box::new(io::stdin().lock()), 0)
        } else {
            let file = File::open(log)?;
            let length = file.metadata()?.len();
            (Box::new(file), length)
        };
        let progress = progress(length);
        let source = decoded(progress.wrap_read(source))?;
        Ok(Self {
            source,
            line: Vec::new(),
            progress,
        })
    }

    /// The next line, or `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        self.source
            .by_ref()
            .take(LONGEST)
            .read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() {
            return Ok(None);
        }
        let ended = self.line.pop_if(|&mut last| last == b'\n').is_some();
        let cut = !ended && self.line.len() as u64 == LONGEST;
        if cut {
            self.source.skip_until(b'\n')?;
        } else {
            self.line.pop_if(|&mut last| last == b'\r');
        }
        Ok(Some(Line {
            bytes: &self.line,
            cut,
        }))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// The plain bytes of a source that may be gzip, of one member or several.
fn decoded(source: impl Read + 'static) -> io::Result<Box<dyn BufRead>> {
    let mut source = BufReader::with_capacity(BUFFER, source);
    // A pipe may deliver the first byte alone.
    let mut start = Vec::new();
    source.by_ref().take(2).read_to_end(&mut start)?;
    let gzip = start == [0x1f, 0x8b];
    let source = Cursor::new(start).chain(source);
    Ok(if gzip {
        Box::new(BufReader::with_capacity(
            BUFFER,
            MultiGzDecoder::new(source),
        ))
    } else {
        Box::new(source)
    })
}

/// A bar, or without a known length a counter, on standard error; nothing if that is not a
/// terminal.
fn progress(length: u64) -> ProgressBar {
    let (bar, template) = match length {
        0 => (
            ProgressBar::new_spinner(),
            "{spinner} {bytes} read, {bytes_per_sec}",
        ),
        _ => (
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

    /// Delivers a byte at a time, as a slow pipe does.
    struct Trickle(Cursor<Vec<u8>>);

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let end = buffer.len().min(1);
            self.0.read(&mut buffer[..end])
        }
    }

    fn lines(text: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let source = decoded(Trickle(Cursor::new(text.to_vec()))).unwrap();
        let mut lines = Lines {
            source,
            line: Vec::new(),
            progress: ProgressBar::hidden(),
        };
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push((line.bytes.to_vec(), line.cut));
        }
        all
    }

    #[test]
    fn lines_end_in_any_of_the_usual_ways() {
        let expected = ["a", "", "b", "c"].map(|line| (line.as_bytes().to_vec(), false));
        assert_eq!(lines(b"a\n\nb\r\nc"), expected);
        assert_eq!(lines(b"a\n\nb\r\nc\n"), expected);
        assert_eq!(lines(b""), []);
        assert_eq!(lines(b"\x1f"), [(vec![0x1f], false)]);
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let longest = usize::try_from(LONGEST).unwrap();
        for length in [longest + 1, 3 * longest + 7] {
            let text = [vec![b'x'; length], b"\nnext".to_vec()].concat();
            assert_eq!(
                lines(&text),
                [(vec![b'x'; longest], true), (b"next".to_vec(), false)]
            );
        }
        let text = [vec![b'x'; longest - 1], b"\nnext".to_vec()].concat();
        assert_eq!(
            lines(&text),
            [(vec![b'x'; longest - 1], false), (b"next".to_vec(), false)]
        );
    }

    #[test]
    fn gzip_is_told_by_its_first_bytes_even_if_they_come_one_by_one() {
        use io::Write;
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
