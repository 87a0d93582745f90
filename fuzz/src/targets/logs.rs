//! Formats and lines of access logs, as `portcullis replay` reads them.

use crate::replay::format::{Format, Reader};
use crate::replay::key::{Key, address, split};

/// A format in the first line, a key in the second, and lines of a log in the rest.
pub fn log_formats(data: &[u8]) {
    let mut lines = data.splitn(3, |byte| *byte == b'\n');
    let mut line = || str::from_utf8(lines.next().unwrap_or_default());
    if let (Ok(format), Ok(key)) = (line(), line())
        && let (Ok(format), Ok(key)) = (format.parse::<Format>(), key.parse::<Key>())
    {
        read(&format, &key, lines.next().unwrap_or_default());
    }
}

/// Lines of a log in any of the usual formats.
pub fn log_lines(data: &[u8]) {
    let every = "ip/24,user,path,host,referer,agent,field:a";
    for (format, key) in [("auto", "ip"), ("json", every), ("combined", "path,user")] {
        let (Ok(format), Ok(key)) = (format.parse(), key.parse()) else {
            panic!("{format} and {key} are valid");
        };
        read(&format, &key, data);
    }
    if let Ok(text) = str::from_utf8(data) {
        let _ = address(text);
        let (host, path) = split(text);
        assert!(text.contains(host) && text.contains(path));
    }
}

fn read(format: &Format, key: &Key, log: &[u8]) {
    for charged in [false, true] {
        let Ok(mut reader) = Reader::new(format, key, charged) else {
            continue;
        };
        for line in log.split(|byte| *byte == b'\n') {
            for cut in [false, true] {
                if reader.read(line, cut).is_some() {
                    for part in 0..key.parts.len() {
                        assert!(reader.part(line, part).len() <= 8 * line.len() + 64);
                    }
                }
            }
            if reader.read(line, false).is_none() {
                assert!(reader.expected(line).contains("expected"));
            }
        }
    }
}
