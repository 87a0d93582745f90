//! One line of an access log, in the common or the combined log format of Apache and nginx:
//!
//! ```text
//! address ident user [17/May/2015:10:05:03 +0200] "GET / HTTP/1.1" 200 5120 "referer" "agent"
//! ```
//!
//! Strict about the places of what is needed, and blind to what follows the size. Bytes, not text:
//! a request may hold anything.

use jiff::fmt::strtime::BrokenDownTime;

/// What a replay needs to know of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// The first word of the line: an address, or a host's name.
    pub(crate) address: &'a [u8],
    /// Seconds since the Unix epoch.
    pub(crate) time: u64,
    /// The size of the reply; 0 for `-`.
    pub(crate) bytes: u64,
}

/// The request of a line without its end, or `None` if the line is malformed. `cut` says that the
/// line goes on.
pub(crate) fn parse(line: &[u8], cut: bool) -> Option<Request<'_>> {
    let mut rest = line;
    let address = word(&mut rest)?;
    let _ident = word(&mut rest)?;
    let _user = word(&mut rest)?;
    let (time, rest) = rest.strip_prefix(b"[")?.split_at_checked(TIME.len())?;
    let mut rest = after_quoted(rest.strip_prefix(b"] \"")?)?.strip_prefix(b" ")?;
    let status = word(&mut rest)?;
    if status.len() != 3 || !digits(status) {
        return None;
    }
    let size = match rest.iter().position(|&b| b == b' ') {
        Some(end) => &rest[..end],
        None if cut => return None,
        None => rest,
    };
    let bytes = if size == b"-" { 0 } else { number(size)? };
    Some(Request {
        address,
        time: seconds(time)?,
        bytes,
    })
}

/// A time as the formats write it.
const TIME: &[u8] = b"17/May/2015:10:05:03 +0200";

/// The last second of which the nanoseconds since the Unix epoch fit 64 bits, in the year 2554.
const LAST: u64 = u64::MAX / 1_000_000_000;

fn seconds(time: &[u8]) -> Option<u64> {
    let time = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", time)
        .ok()?
        .to_timestamp()
        .ok()?;
    u64::try_from(time.as_second())
        .ok()
        .filter(|&seconds| seconds <= LAST)
}

/// The bytes up to the next space, which is skipped; at least one.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest
        .iter()
        .position(|&b| b == b' ')
        .filter(|&end| end > 0)?;
    let word = &rest[..end];
    *rest = &rest[end + 1..];
    Some(word)
}

/// What follows the closing quote. A quote after a backslash does not close.
fn after_quoted(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let special = rest.iter().position(|&b| b == b'"' || b == b'\\')?;
        let skipped = if rest[special] == b'"' { 1 } else { 2 };
        let after = rest.get(special + skipped..)?;
        if skipped == 1 {
            return Some(after);
        }
        rest = after;
    }
}

fn digits(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

fn number(text: &[u8]) -> Option<u64> {
    if digits(text) {
        str::from_utf8(text).ok()?.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(line: &[u8]) -> Option<Request<'_>> {
        parse(line, false)
    }

    const COMMON: &[u8] = br#"10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5120"#;

    #[test]
    fn the_common_and_the_combined_format_are_read() {
        let expected = Request {
            address: b"10.0.0.1",
            time: 1_431_857_103,
            bytes: 5_120,
        };
        assert_eq!(whole(COMMON).as_ref(), Some(&expected));
        let combined = [COMMON, br#" "http://example.org/" "Agent [1] \"x\"""#].concat();
        assert_eq!(whole(&combined).as_ref(), Some(&expected));
        let named = br#"2001:db8::1 id frank [17/May/2015:10:05:03 +0000] "-" 408 -"#;
        assert_eq!(
            whole(named),
            Some(Request {
                address: b"2001:db8::1",
                bytes: 0,
                ..expected
            })
        );
    }

    #[test]
    fn a_local_time_is_an_instant() {
        let at = |zone: &str| {
            let line = format!("a - - [17/May/2015:10:05:03 {zone}] \"\" 200 1");
            whole(line.as_bytes()).map(|request| request.time)
        };
        assert_eq!(at("+0200"), Some(1_431_857_103 - 7_200));
        assert_eq!(at("-0530"), Some(1_431_857_103 + 19_800));
    }

    #[test]
    fn a_request_may_hold_quotes_backslashes_and_any_byte() {
        for request in [
            &br#"GET /\"x\" 200 9"#[..],
            br"GET /\\",
            b"\x16\x03\x01\xff\x00",
            b"",
            b"GET /[x] y",
        ] {
            let line = [
                b"a - - [17/May/2015:10:05:03 +0000] \"",
                request,
                b"\" 404 7",
            ]
            .concat();
            assert_eq!(
                whole(&line).map(|request| request.bytes),
                Some(7),
                "{}",
                request.escape_ascii()
            );
        }
    }

    #[test]
    fn a_line_that_lacks_something_in_its_place_is_malformed() {
        let lines: [&[u8]; 24] = [
            b"",
            b" ",
            b"10.0.0.1",
            br#" - - [17/May/2015:10:05:03 +0000] "GET /" 200 1"#,
            br#"a - [17/May/2015:10:05:03 +0000] "GET /" 200 1"#,
            br#"host:80 a - - [17/May/2015:10:05:03 +0000] "GET /" 200 1"#,
            br#"a - - 17/May/2015:10:05:03 +0000 "GET /" 200 1"#,
            br#"a - - [17/May/2015:10:05:03] "GET /" 200 1"#,
            br#"a - - [32/May/2015:10:05:03 +0000] "GET /" 200 1"#,
            br#"a - - [29/Feb/2015:10:05:03 +0000] "GET /" 200 1"#,
            br#"a - - [17/Mai/2015:10:05:03 +0000] "GET /" 200 1"#,
            br#"a - - [17/May/2015:24:05:03 +0000] "GET /" 200 1"#,
            br#"a - - [17/May/1969:10:05:03 +0000] "GET /" 200 1"#,
            br#"a - - [17/May/2555:10:05:03 +0000] "GET /" 200 1"#,
            br"a - - [17/May/2015:10:05:03 +0000] GET / 200 1",
            br#"a - - [17/May/2015:10:05:03 +0000] "GET / 200 1"#,
            br#"a - - [17/May/2015:10:05:03 +0000] "GET \"#,
            br#"a - - [17/May/2015:10:05:03 +0000] "GET /" 20 1"#,
            br#"a - - [17/May/2015:10:05:03 +0000] "GET /" - 1"#,
            br#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200"#,
            br#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200 "#,
            br#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200 1x"#,
            br#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200 +1"#,
            br#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200 99999999999999999999"#,
        ];
        for line in lines {
            assert_eq!(whole(line), None, "{}", line.escape_ascii());
        }
        for end in 0..COMMON.len() - 4 {
            assert_eq!(
                whole(&COMMON[..end]),
                None,
                "{}",
                COMMON[..end].escape_ascii()
            );
        }
    }

    #[test]
    fn a_size_that_is_cut_off_is_not_taken_for_a_smaller_one() {
        assert_eq!(parse(COMMON, true), None);
        let more = [COMMON, b" \"http://exam"].concat();
        assert_eq!(parse(&more, true).map(|request| request.bytes), Some(5_120));
    }
}
