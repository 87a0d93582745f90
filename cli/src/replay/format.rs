//! The formats of logs: `--format`, and reading lines of a format.
//!
//! | module | what is in it |
//! |---|---|
//! | [`template`] | a line of text against a template |
//! | [`layout`] | templates as nginx and Apache write them |
//! | [`json`] | a line that is a JSON object |
//!
//! Every text format is a template, including the built-in ones. `auto` tries the built-in formats
//! on each line, starting with the format of the previous line. No line matches two of them: only
//! JSON begins with a brace, and [`has_virtual_host`] tells the other two apart.

mod json;
mod layout;
mod template;

use core::fmt::Write;
use core::net::IpAddr;
use core::str::FromStr;

use self::json::{Json, Members};
use self::template::{Layout, Mismatch, Role, Template};
use super::key::{Field, Key};

pub(crate) use self::template::Request;

/// The value of `--format`.
#[derive(Clone, Debug)]
pub(crate) enum Format {
    /// Any of the following formats except the last.
    Auto,
    /// The common format, and the combined one, which extends it.
    Common,
    /// The combined format after a virtual host.
    WithHost,
    /// A JSON object in each line.
    Json(Members),
    /// A format from the configuration of a server.
    Own(Layout),
}

const COMBINED: &str = r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#;

const EXPECTED: &str = "expected auto, common, combined, vhost, json, json:ROLE=MEMBER,..., or a \
                        format as nginx ($remote_addr ...) or Apache (%h ...) writes it";

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "common" | "combined" => Self::Common,
            "vhost" => Self::WithHost,
            "json" => Self::Json(Members::default()),
            _ => match text.strip_prefix("json:") {
                Some(members) => Self::Json(members.parse()?),
                None if text.contains(['$', '%']) => Self::Own(layout::parse(text)?),
                None => return Err(EXPECTED.into()),
            },
        })
    }
}

/// Reads the lines of a log in one format or several.
#[derive(Debug)]
pub(crate) struct Reader {
    choices: Vec<Choice>,
    /// The index of the format that read the last line.
    last: usize,
}

#[derive(Debug)]
enum Choice {
    Template(Template),
    /// A built-in format, and whether its lines begin with a virtual host.
    BuiltIn(Template, bool),
    Json(Json),
}

impl Reader {
    /// Creates a reader of lines in `format`, which extracts the parts of `key`, and the size if it
    /// is `charged`.
    ///
    /// # Errors
    ///
    /// Returns what is missing in the format.
    pub(crate) fn new(format: &Format, key: &Key, charged: bool) -> Result<Self, String> {
        let fields: Vec<_> = key.parts.iter().map(|part| part.field.clone()).collect();
        let size = charged.then_some("--cost bytes");
        let reader = Self::of_fields(format, &fields, size, true)?;
        if let [Choice::Template(template) | Choice::BuiltIn(template, _)] = &*reader.choices {
            for (number, part) in key.parts.iter().enumerate() {
                if !template.has(number) {
                    return Err(format!("--key {}: the format has no such field", part.name));
                }
            }
        }
        Ok(reader)
    }

    /// Creates a reader of lines in `format`, which extracts `fields`. Fields that the format does
    /// not have are absent. `size` is what needs the size, if anything does.
    ///
    /// # Errors
    ///
    /// Returns what is missing in the format.
    pub(crate) fn of_fields(
        format: &Format,
        fields: &[Field],
        size: Option<&str>,
        needs_address: bool,
    ) -> Result<Self, String> {
        let combined = || layout::parse(COMBINED);
        let with_host = || layout::parse(&format!("%v {COMBINED}"));
        let built_in =
            |layout, with_host| Choice::BuiltIn(Template::new(layout, fields, true), with_host);
        let json = |members: &Members| {
            Choice::Json(Json::new(members, fields, size.is_some(), needs_address))
        };
        let choices = match format {
            Format::Auto => vec![
                built_in(combined()?, false),
                built_in(with_host()?, true),
                json(&Members::default()),
            ],
            Format::Common => vec![built_in(combined()?, false)],
            Format::WithHost => vec![built_in(with_host()?, true)],
            Format::Json(members) => vec![json(members)],
            Format::Own(layout) => {
                let has = |role| {
                    layout
                        .variables
                        .iter()
                        .any(|variable| role == variable.role)
                };
                let has_time =
                    |variable: &template::Variable| matches!(variable.role, Role::Time(_));
                if !layout.variables.iter().any(has_time) {
                    return Err(
                        "--format: the format has no time, for example $time_local, \
                                $msec or %t"
                            .into(),
                    );
                }
                if let Some(needs) = size
                    && !has(Role::Size)
                {
                    return Err(format!(
                        "{needs}: the format has no size, for example $body_bytes_sent or %b"
                    ));
                }
                vec![Choice::Template(Template::new(
                    layout.clone(),
                    fields,
                    false,
                ))]
            }
        };
        Ok(Self { choices, last: 0 })
    }

    /// Reads a line without its end. Returns `None` if it is malformed. `cut` means that the line
    /// continues after `line`.
    pub(crate) fn read(&mut self, line: &[u8], cut: bool) -> Option<Request> {
        if let Some(request) = self.choices[self.last].read(line, cut) {
            return Some(request);
        }
        for (number, choice) in self.choices.iter_mut().enumerate() {
            if number != self.last
                && let Some(request) = choice.read(line, cut)
            {
                self.last = number;
                return Some(request);
            }
        }
        None
    }

    /// Returns part number `part` of the key of `line`, which must be the last line that was read.
    pub(crate) fn part<'a>(&'a self, line: &'a [u8], part: usize) -> &'a [u8] {
        match &self.choices[self.last] {
            Choice::Template(template) | Choice::BuiltIn(template, _) => template.part(line, part),
            Choice::Json(json) => json.part(part),
        }
    }

    /// Describes the expected form of `line`, which is malformed. Returns several lines of text.
    pub(crate) fn expected(&mut self, line: &[u8]) -> String {
        let mut text = String::new();
        for choice in &mut self.choices {
            let _ = match choice {
                Choice::Template(template) | Choice::BuiltIn(template, _) => {
                    let mismatch = template.read(line, false).err();
                    describe(&mut text, template.layout(), mismatch)
                }
                Choice::Json(json) => write!(text, "\n  expected: {}", json.expected(line)),
            };
        }
        text
    }
}

impl Choice {
    fn read(&mut self, line: &[u8], cut: bool) -> Option<Request> {
        match self {
            Self::Template(template) => template.read(line, cut).ok(),
            Self::BuiltIn(template, with_host) => {
                let request = template.read(line, cut).ok()?;
                // The words before the time: address, ident and user, after the host if there is
                // one. Only a user may contain spaces.
                let word = |number| template.value(line, number).unwrap_or_default();
                let user = word(2 + usize::from(*with_host));
                let four = *with_host || user.contains(&b' ');
                let is_other = four && has_virtual_host(word(0), word(1)) != Some(*with_host);
                (!is_other).then_some(request)
            }
            Self::Json(json) => json.read(line),
        }
    }
}

/// Returns whether a line that begins with the words `first` and `second`, with at least two more
/// before its time, has a virtual host. If not, the name of its user has spaces. Returns `None` for
/// a line of another format, such as one with a port in second place.
///
/// An address in first place is the client if the second word, its ident, is no address. A `-` in
/// second place is an ident, because a line with a virtual host has the client there.
fn has_virtual_host(first: &[u8], second: &[u8]) -> Option<bool> {
    let is_address = |word| str::from_utf8(word).is_ok_and(|word| word.parse::<IpAddr>().is_ok());
    if first.ends_with(b",") || second.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(second != b"-" && (is_address(second) || !is_address(first)))
}

/// Writes the expected form of a line of `layout`, and where the line differs.
fn describe(text: &mut String, layout: &Layout, mismatch: Option<Mismatch>) -> core::fmt::Result {
    write!(text, "\n  expected: {}", layout::shown(layout))?;
    let Some(Mismatch { at, variable }) = mismatch else {
        return Ok(());
    };
    let name = match layout.variables.get(variable) {
        Some(variable) => layout::noun(&variable.role, &variable.name),
        None => layout.before.escape_ascii().to_string(),
    };
    write!(text, "\n            not found at column {}: {name}", at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time, size and key of a line, or `None` if it is malformed.
    fn read(format: &str, key: &str, line: &str) -> Option<(u64, u64, Vec<String>)> {
        let key: Key = key.parse().unwrap();
        let format = format.parse::<Format>().unwrap();
        let mut reader = Reader::new(&format, &key, true).unwrap();
        let request = reader.read(line.as_bytes(), false)?;
        let part = |number| {
            let part = reader.part(line.as_bytes(), number);
            String::from_utf8_lossy(part).into_owned()
        };
        let parts = (0..key.parts.len()).map(part).collect();
        Some((request.time, request.bytes, parts))
    }

    fn reads(format: &str, key: &str, line: &str, expected: &[&str]) {
        let expected = expected.iter().map(|&part| part.into()).collect();
        assert_eq!(
            read(format, key, line),
            Some((1_431_857_103_000, 5_120, expected)),
            "{format} {line}"
        );
    }

    const COMMON: &str = r#"10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5120"#;
    const LINE: &str = r#"10.0.0.1 - frank [17/May/2015:10:05:03 +0000] "GET /a/b?c=d HTTP/1.1" 200 5120 "http://example.org/" "Agent [1] \"x\"""#;

    #[test]
    fn the_common_and_the_combined_format_are_read() {
        for format in ["auto", "common", "combined"] {
            reads(format, "ip", COMMON, &["10.0.0.1"]);
            reads(format, "ip", LINE, &["10.0.0.1"]);
            let all = "path,user,agent,referer";
            let of_line = ["/a/b", "frank", r#"Agent [1] \"x\""#, "http://example.org/"];
            reads(format, all, LINE, &of_line);
            reads(format, all, COMMON, &["/", "-", "-", "-"]);
        }
        let size = |line: &str| read("auto", "global", line).map(|(_, bytes, _)| bytes);
        let none = r#"2001:db8::1 id frank [17/May/2015:10:05:03 +0000] "-" 408 -"#;
        assert_eq!(size(none), Some(0));
    }

    #[test]
    fn a_virtual_host_may_come_first() {
        for host in ["example.org:443", "example.org"] {
            let line = format!("{host} {LINE}");
            reads("auto", "host,ip", &line, &[host, "10.0.0.1"]);
            reads(
                "vhost",
                "ip,agent",
                &line,
                &["10.0.0.1", r#"Agent [1] \"x\""#],
            );
            assert_eq!(read("common", "ip", &line), None);
        }
        assert_eq!(read("vhost", "ip", LINE), None);
        reads("auto", "host", LINE, &["-"]);
    }

    #[test]
    fn a_name_with_spaces_is_not_taken_for_a_virtual_host_nor_a_proxy_for_the_client() {
        let line = |start: &str| {
            format!(r#"{start} [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5120"#)
        };
        for (start, host, address, user) in [
            ("192.0.2.1 - john smith", "-", "192.0.2.1", "john smith"),
            ("192.0.2.1 - a b c", "-", "192.0.2.1", "a b c"),
            ("2001:db8::1 id a b", "-", "2001:db8::1", "a b"),
            (
                "client.example - john smith",
                "-",
                "client.example",
                "john smith",
            ),
            (
                "a.example 192.0.2.1 - john smith",
                "a.example",
                "192.0.2.1",
                "john smith",
            ),
            (
                "192.0.2.9 192.0.2.1 - frank",
                "192.0.2.9",
                "192.0.2.1",
                "frank",
            ),
            (
                "192.0.2.9:443 192.0.2.1 - -",
                "192.0.2.9:443",
                "192.0.2.1",
                "-",
            ),
            (
                "a.example:80 client.example - -",
                "a.example:80",
                "client.example",
                "-",
            ),
        ] {
            let expected = [host, address, user];
            reads("auto", "host,ip,user", &line(start), &expected);
            let (own, other) = if host == "-" {
                ("common", "vhost")
            } else {
                ("vhost", "common")
            };
            reads(own, "ip,user", &line(start), &expected[1..]);
            assert_eq!(read(other, "ip", &line(start)), None, "{start}");
        }
        for start in [
            "192.0.2.4, 10.0.0.1 - -",
            "192.0.2.6, 10.0.0.2, 10.0.0.1 - -",
            "a.example 192.0.2.6, 10.0.0.2 - -",
            "192.0.2.1 80 10.0.0.1 - -",
        ] {
            assert_eq!(read("auto", "ip", &line(start)), None, "{start}");
        }
    }

    #[test]
    fn a_value_may_contain_the_byte_at_which_the_next_text_begins() {
        let apache = r#"%h %{X-Forwarded-For}i %u %t "%r" %>s %b"#;
        reads(
            apache,
            "ip,field:x-forwarded-for,user",
            r#"127.0.0.1 192.0.2.67, 198.51.100.49 - [17/May/2015:10:05:03 +0000] "GET /" 302 5120"#,
            &["127.0.0.1", "192.0.2.67, 198.51.100.49", "-"],
        );
        reads(
            r"%{X-Forwarded-For}i %h %l %u %t %b",
            "field:x-forwarded-for,ip,user",
            "192.0.2.67, 198.51.100.49 127.0.0.1 - john [x] smith [17/May/2015:10:05:03 +0000] 5120",
            &["192.0.2.67, 198.51.100.49", "127.0.0.1", "john [x] smith"],
        );
        reads(
            "$remote_addr:$remote_port $msec $bytes_sent",
            "ip",
            "2001:db8::1:4711 1431857103.000 5120",
            &["2001:db8::1"],
        );
        reads(
            "$msec $bytes_sent $uri (x) $status",
            "path",
            "1431857103.000 5120 /a (b) c (x) 200",
            &["/a (b) c"],
        );
    }

    #[test]
    fn a_line_that_needs_too_many_attempts_is_malformed() {
        let format = "$http_a $http_b $http_c $msec $bytes_sent";
        let with = |words: usize| format!("{}1431857103.000 5120", "x ".repeat(words));
        assert!(read(format, "global", &with(20)).is_some());
        assert_eq!(read(format, "global", &with(30_000)), None);
    }

    #[test]
    fn a_time_may_be_written_in_several_parts() {
        for (format, time) in [
            (
                "%{%d/%b/%Y:%H:%M:%S}t.%{msec_frac}t",
                "17/May/2015:10:05:03.250",
            ),
            (
                "%{%d/%b/%Y:%H:%M:%S}t.%{usec_frac}t",
                "17/May/2015:10:05:03.250999",
            ),
            (
                "%{begin:%F %T}t.%{begin:msec_frac}t",
                "2015-05-17 10:05:03.250",
            ),
            ("%{sec}t.%{msec_frac}t", "1431857103.250"),
            (
                "%{%Y-%m-%d}t %{%T}t,%{msec_frac}t",
                "2015-05-17 10:05:03,250",
            ),
            (
                "%{%T}t of %{%d.%m.%Y}t %{sec}t.%{usec_frac}t",
                "10:05:02 of 17.05.2015 1431857103.25",
            ),
            ("%{sec}t %{%FT%T.%f}t", "1431857102 2015-05-17T10:05:03.25"),
            ("%{%Y-%m-%d\\t%T.%f}t", "2015-05-17\t10:05:03.25"),
            ("%{%Y-%m-%d%t%T.%f}t", "2015-05-17\t10:05:03.25"),
            ("%t%{msec_frac}t", "[17/May/2015:10:05:03 +0000]250"),
        ] {
            let read = read(&format!("%h {format} %b"), "ip", &format!("a {time} 5120"));
            let expected = (1_431_857_103_250, 5_120, vec!["a".into()]);
            assert_eq!(read, Some(expected), "{format}");
        }
    }

    #[test]
    fn formats_are_read_as_nginx_writes_them() {
        let combined = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
        let directive = r#"log_format  main  '$remote_addr - $remote_user [$time_local] "$request" '
            '$status $body_bytes_sent "$http_referer" '
            '"$http_user_agent"';
            access_log '/var/log/nginx/access.log' main;"#;
        for format in [combined, directive] {
            reads(format, "ip,user,path", LINE, &["10.0.0.1", "frank", "/a/b"]);
            reads(format, "field:http_referer", LINE, &["http://example.org/"]);
            assert_eq!(read(format, "agent", COMMON), None, "the agent is needed");
            reads(format, "ip", COMMON, &["10.0.0.1"]);
        }
        reads(
            "$msec|${request_method} $request_uri|$bytes_sent|$http_x_forwarded_for|$remote_addr",
            "path,field:http_x_forwarded_for,ip",
            "1431857103.000|GET /x?y|5120|a, b|10.0.0.1",
            &["/x", "a, b", "10.0.0.1"],
        );
        reads(
            "$time_iso8601 $remote_addr $uri$is_args$args $body_bytes_sent $http_user_agent",
            "path,agent",
            "2015-05-17T12:05:03+02:00 10.0.0.1 /x?y 5120 Agent [1]",
            &["/x", "Agent [1]"],
        );
    }

    #[test]
    fn formats_are_read_as_apache_writes_them() {
        let plain = r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-agent}i""#;
        let escaped = plain.replace('"', "\\\"");
        let directive = format!("LogFormat \"{escaped}\" combined");
        for format in [plain, &escaped, &directive] {
            reads(format, "ip,user,path", LINE, &["10.0.0.1", "frank", "/a/b"]);
            reads(format, "field:Referer", LINE, &["http://example.org/"]);
        }
        reads(
            "%{%Y-%m-%d %H:%M:%S}t\\t%a %U%q %m %!404{X-Key}i %% %O %D",
            "path,field:x-key,ip",
            "2015-05-17 10:05:03\t10.0.0.1 /x?y GET key % 5120 77",
            &["/x", "key", "10.0.0.1"],
        );
        reads("%{usec}t %B", "global", "1431857103000000 5120", &[]);
        reads(
            "[%{%d/%b/%Y:%H:%M:%S %z}t] %b",
            "global",
            "[17/May/2015:10:05:03 +0000] 5120",
            &[],
        );
    }

    #[test]
    fn invalid_formats_are_rejected() {
        let new = |format: &str, key: &str| {
            let format = format.parse::<Format>()?;
            Reader::new(&format, &key.parse()?, true).map(|_| ())
        };
        for (format, key, reason) in [
            ("clf", "ip", "expected auto"),
            ("$", "ip", "$ without a name"),
            ("%", "ip", "% without a letter"),
            ("${time_local", "ip", "lacks a }"),
            ("%{Referer", "ip", "lacks a }"),
            ("log_format main '$msec", "ip", "lacks a closing '"),
            ("log_format main $msec;", "ip", "no format in quotes"),
            ("100 %%", "ip", "no variables"),
            (
                "$remote_addr$status",
                "ip",
                "nothing separates remote_addr and status",
            ),
            ("$remote_addr", "ip", "has no time"),
            ("$time_local $remote_addr", "ip", "has no size"),
            (
                "$time_local $bytes_sent",
                "ip",
                "--key ip: the format has no such field",
            ),
            ("common", "host", "--key host: the format has no such field"),
            (
                "common",
                "field:x",
                "--key field:x: the format has no such field",
            ),
            ("json:when=t", "ip", "expected json:ROLE=MEMBER"),
            (
                "%{%F %T}t %h %{msec_frac}t %b",
                "ip",
                "%{msec_frac}t in the format does not follow a time",
            ),
        ] {
            let error = new(format, key).unwrap_err();
            assert!(error.contains(reason), "{format}: {error}");
        }
    }

    #[test]
    fn json_is_read_by_the_usual_names_and_by_others() {
        for (format, line) in [
            (
                "auto",
                r#"{"time":"2015-05-17T10:05:03Z","remote_addr":"10.0.0.1","request":"GET /a/b?c HTTP/1.1","status":200,"body_bytes_sent":5120}"#,
            ),
            (
                "json",
                r#" {"x":[{"y":1}],"ts":1431857103.0,"request":{"remote_ip":"10.0.0.1","uri":"/a/b?c","z":{}},"size":5120}"#,
            ),
            (
                "json",
                r#"{"time_local":"17/May/2015:10:05:03 +0000","client.ip":"10.0.0.1","url":"\u002fa/b","bytes":"5120"}"#,
            ),
            (
                "json:time=t.at,ip=who,size=n,path=p",
                r#"{"t":{"at":1431857103000},"who":["10.0.0.1","x"],"time":7,"n":5120,"p":"/a/b"}"#,
            ),
            (
                "auto",
                r#"{"time":5,"@timestamp":"2015-05-17T10:05:03Z","ip":"-","remote_addr":"10.0.0.1","uri":"/a/b","bytes":5120}"#,
            ),
        ] {
            reads(format, "path,ip", line, &["/a/b", "10.0.0.1"]);
        }
        let line = r#"{"ts":1431857103,"size":5120,"ip":"a","tenant":{"id":17,"name":null}}"#;
        reads(
            "auto",
            "field:tenant.id,field:tenant.name,user",
            line,
            &["17", "-", "-"],
        );
        for line in [
            r#"{"ts":1431857103,"size":5120}"#,
            r#"{"ts":1431857103,"ip":"a"}"#,
            r#"{"ts":null,"size":5120,"ip":"a"}"#,
            r#"{"ts":1431857103,"size":-5,"ip":"a"}"#,
            r#"{"ts":1431857103,"size":5120,"ip":""}"#,
            r#"{"ts":1431857103,"size":5120,"ip":"a"} x"#,
            r#"{"ts":1431857103,"size":5120,"ip":"a""#,
            r#"[{"ts":1431857103,"size":5120,"ip":"a"}]"#,
        ] {
            assert_eq!(read("json", "ip", line), None, "{line}");
        }
    }

    #[test]
    fn a_request_may_hold_quotes_backslashes_and_any_byte() {
        for request in [
            r#"GET /\"x\" 200 9"#,
            r"GET /\\",
            "\u{16}\u{3}\0",
            "",
            "GET /[x] y",
        ] {
            let line = format!(r#"a - - [17/May/2015:10:05:03 +0000] "{request}" 200 5120"#);
            reads("auto", "ip", &line, &["a"]);
        }
    }

    #[test]
    fn a_line_with_a_missing_field_is_malformed() {
        let lines = [
            "",
            " ",
            "10.0.0.1",
            r#" - - [17/May/2015:10:05:03 +0000] "GET /" 200 1"#,
            r#"a - [17/May/2015:10:05:03 +0000] "GET /" 200 1"#,
            r#"h 80 a - - [17/May/2015:10:05:03 +0000] "GET /" 200 1"#,
            r#"a - - 17/May/2015:10:05:03 +0000 "GET /" 200 1"#,
            r#"a - - [17/May/2015:10:05:03] "GET /" 200 1"#,
            r#"a - - [32/May/2015:10:05:03 +0000] "GET /" 200 1"#,
            r#"a - - [29/Feb/2015:10:05:03 +0000] "GET /" 200 1"#,
            r#"a - - [17/Mai/2015:10:05:03 +0000] "GET /" 200 1"#,
            r#"a - - [17/May/2015:24:05:03 +0000] "GET /" 200 1"#,
            r#"a - - [17/May/1969:10:05:03 +0000] "GET /" 200 1"#,
            r#"a - - [17/May/2555:10:05:03 +0000] "GET /" 200 1"#,
            r"a - - [17/May/2015:10:05:03 +0000] GET / 200 1",
            r#"a - - [17/May/2015:10:05:03 +0000] "GET / 200 1"#,
            r#"a - - [17/May/2015:10:05:03 +0000] "GET \"#,
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /" 20 1"#,
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /" - 1"#,
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200"#,
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200 "#,
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200 1x"#,
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200 +1"#,
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /" 200 99999999999999999999"#,
            "{}",
            "{",
        ];
        for line in lines {
            assert_eq!(read("auto", "ip", line), None, "{line}");
        }
        for end in 0..COMMON.len() - 4 {
            assert_eq!(
                read("auto", "ip", &COMMON[..end]),
                None,
                "{}",
                &COMMON[..end]
            );
        }
    }

    #[test]
    fn a_truncated_size_is_not_read_as_a_smaller_one() {
        let key: Key = "ip".parse().unwrap();
        let mut reader = Reader::new(&Format::Auto, &key, true).unwrap();
        assert_eq!(reader.read(COMMON.as_bytes(), true), None);
        let more = format!("{COMMON} \"http://exam");
        let request = reader.read(more.as_bytes(), true);
        assert_eq!(request.map(|request| request.bytes), Some(5_120));
    }

    #[test]
    fn the_error_of_a_malformed_line_shows_what_is_missing() {
        let mut reader = Reader::new(&Format::Auto, &"ip".parse().unwrap(), false).unwrap();
        let text = reader.expected(br#"10.0.0.1 - - [17/May/2015:10:05:03] "GET /" 200 1"#);
        for expected in [
            "expected: ADDRESS IDENT USER [17/May/2015:10:05:03 +0200] \"REQUEST\" STATUS SIZE",
            "not found at column 15: TIME",
            "JSON",
        ] {
            assert!(text.contains(expected), "{expected} is missing in {text}");
        }
    }
}
