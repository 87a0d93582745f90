//! Times in logs. All are converted to milliseconds since the Unix epoch; finer digits are dropped.

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::TimeZone;
use portcullis_core::Timestamp;

/// The notation of a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `17/May/2015:10:05:03 +0200`, as in the common format.
    Clf,
    /// ISO 8601: `2015-05-17T10:05:03.250+02:00`. Without an offset it is UTC.
    Iso,
    /// A number in this unit, since the Unix epoch.
    Number(Unit),
    /// A time in a `strftime` notation.
    Custom(String),
    /// Any but the last. The size of a number determines its unit.
    Any,
}

/// The unit of a time that is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Seconds, possibly with a fraction.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
}

/// The length of a time in the common format.
pub(crate) const CLF_LENGTH: usize = b"17/May/2015:10:05:03 +0200".len();

/// The last millisecond whose nanoseconds since the Unix epoch fit into 64 bits, in the year 2554.
const LAST: u64 = u64::MAX / 1_000_000;

/// Reads times.
///
/// It caches the last day, because most lines have the same day as the previous line. Only the time
/// of day is left to parse.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    day: [u8; 12],
    zone: [u8; 6],
    /// The start of that day, in seconds since the Unix epoch.
    midnight: i64,
}

impl Reader {
    /// Parses `text` in `form`. Returns `None` if it is not a time, or not in the years 1970 to
    /// 2554.
    pub(crate) fn read(&mut self, text: &[u8], form: &Form) -> Option<u64> {
        match form {
            Form::Clf => self.clf(text.try_into().ok()?),
            Form::Iso => iso(text),
            Form::Number(unit) => number(text, Some(*unit)),
            Form::Custom(format) => custom(format.as_bytes(), text),
            Form::Any if text.get(2) == Some(&b'/') => self.clf(text.try_into().ok()?),
            Form::Any if text.get(4) == Some(&b'-') => iso(text),
            Form::Any => number(text, None),
        }
    }

    fn clf(&mut self, text: &[u8; CLF_LENGTH]) -> Option<u64> {
        let two = |at: usize, below: u32| {
            let (tens, ones) = (text[at].wrapping_sub(b'0'), text[at + 1].wrapping_sub(b'0'));
            let value = u32::from(tens) * 10 + u32::from(ones);
            (tens < 10 && ones < 10 && value < below).then_some(value)
        };
        if text[14] != b':' || text[17] != b':' {
            return None;
        }
        let in_the_day = two(12, 24)? * 3_600 + two(15, 60)? * 60 + two(18, 60)?;
        if text.first_chunk() != Some(&self.day) || text.last_chunk() != Some(&self.zone) {
            let start = *b"00:00:00";
            let mut first = *text;
            first[12..20].copy_from_slice(&start);
            let first = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", first).ok()?;
            self.midnight = first.to_timestamp().ok()?.as_second();
            self.day.copy_from_slice(&text[..12]);
            self.zone.copy_from_slice(&text[20..]);
        }
        millis((self.midnight + i64::from(in_the_day)).checked_mul(1_000)?)
    }
}

/// Converts a time of a log for a limiter.
pub(crate) fn timestamp(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis.saturating_mul(1_000_000))
}

fn iso(text: &[u8]) -> Option<u64> {
    const PARSER: DateTimeParser = DateTimeParser::new();
    if let Ok(timestamp) = PARSER.parse_timestamp(text) {
        return millis(timestamp.as_millisecond());
    }
    utc(PARSER.parse_datetime(text).ok()?)
}

fn custom(format: &[u8], text: &[u8]) -> Option<u64> {
    let time = BrokenDownTime::parse(format, text).ok()?;
    match time.to_timestamp() {
        Ok(timestamp) => millis(timestamp.as_millisecond()),
        Err(_) => utc(time.to_datetime().ok()?),
    }
}

fn utc(time: DateTime) -> Option<u64> {
    let timestamp = time.to_zoned(TimeZone::UTC).ok()?.timestamp();
    millis(timestamp.as_millisecond())
}

/// Parses a decimal number, possibly with a fraction, in `unit`. Without a unit, uses the unit in
/// which the number lies between the years 1973 and 5138.
fn number(text: &[u8], unit: Option<Unit>) -> Option<u64> {
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    let (whole, fraction) = match text.iter().position(|&b| b == b'.') {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = str::from_utf8(whole).ok()?.parse().ok()?;
    let unit = unit.unwrap_or(match whole {
        0..100_000_000_000 => Unit::Seconds,
        100_000_000_000..100_000_000_000_000 => Unit::Millis,
        100_000_000_000_000..100_000_000_000_000_000 => Unit::Micros,
        _ => Unit::Nanos,
    });
    let millis = match unit {
        Unit::Seconds => {
            let mut places = fraction.iter().map(|&digit| u64::from(digit - b'0'));
            let millis = (0..3).fold(0, |sum, _| sum * 10 + places.next().unwrap_or(0));
            whole.checked_mul(1_000)?.checked_add(millis)?
        }
        Unit::Millis => whole,
        Unit::Micros => whole / 1_000,
        Unit::Nanos => whole / 1_000_000,
    };
    (millis <= LAST).then_some(millis)
}

fn millis(millis: i64) -> Option<u64> {
    u64::try_from(millis).ok().filter(|&millis| millis <= LAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, form: &Form) -> Option<u64> {
        Reader::default().read(text.as_bytes(), form)
    }

    const AT: u64 = 1_431_857_103_000;

    #[test]
    fn a_local_time_of_the_common_format_is_an_instant() {
        let at = |zone: &str| read(&format!("17/May/2015:10:05:03 {zone}"), &Form::Clf);
        assert_eq!(at("+0000"), Some(AT));
        assert_eq!(at("+0200"), Some(AT - 7_200_000));
        assert_eq!(at("-0530"), Some(AT + 19_800_000));
    }

    #[test]
    fn the_cached_day_does_not_change_the_result() {
        let mut reader = Reader::default();
        for day in ["01/Jan/1970", "17/May/2015", "29/Feb/2024", "17/May/2015"] {
            for zone in ["+0000", "-0330", "+1400", "+0000"] {
                for time in [
                    "00:00:00", "23:59:59", "14:00:01", "24:00:00", "00:60:00", "1 :00:00",
                ] {
                    let text = format!("{day}:{time} {zone}");
                    let whole = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", &text)
                        .ok()
                        .and_then(|time| millis(time.to_timestamp().ok()?.as_millisecond()));
                    assert_eq!(reader.read(text.as_bytes(), &Form::Clf), whole, "{text}");
                }
            }
        }
        for text in [
            "32/May/2015:10:05:03 +0000",
            "17/Mai/2015:10:05:03 +0000",
            "x",
        ] {
            assert_eq!(reader.read(text.as_bytes(), &Form::Clf), None, "{text}");
        }
    }

    #[test]
    fn all_notations_of_a_time_give_the_same_result() {
        for text in [
            "2015-05-17T10:05:03Z",
            "2015-05-17T12:05:03+02:00",
            "2015-05-17T12:05:03+0200",
            "2015-05-17 10:05:03",
            "2015-05-17T10:05:03",
            "1431857103",
            "1431857103.000",
            "1431857103000",
            "1431857103000000",
            "1431857103000000000",
            "17/May/2015:10:05:03 +0000",
        ] {
            assert_eq!(read(text, &Form::Any), Some(AT), "{text}");
        }
        let custom = Form::Custom("%Y%m%d-%H%M%S".into());
        assert_eq!(read("20150517-100503", &custom), Some(AT));
        assert_eq!(read("1431857103000", &Form::Number(Unit::Millis)), Some(AT));
    }

    #[test]
    fn fractions_are_kept_to_the_millisecond() {
        for text in [
            "2015-05-17T10:05:03.0259Z",
            "1431857103.0259",
            "1431857103.025",
            "1431857103025",
            "1431857103025999",
        ] {
            assert_eq!(read(text, &Form::Any), Some(AT + 25), "{text}");
        }
        assert_eq!(read("1431857103.5", &Form::Any), Some(AT + 500));
    }

    #[test]
    fn invalid_times_are_none() {
        for text in [
            "",
            "-",
            "x",
            ".5",
            "-1",
            "1e9",
            "1.2.3",
            "2015-05-17",
            "2015-13-17T10:05:03Z",
            "1969-05-17T10:05:03Z",
            "2555-05-17T10:05:03Z",
            "17/May/2555:10:05:03 +0000",
            "99999999999999999999",
        ] {
            let read = read(text, &Form::Any);
            // A date alone means the start of the day.
            let expected = (text == "2015-05-17").then_some(1_431_820_800_000);
            assert_eq!(read, expected, "{text:?}");
        }
    }
}
