//! The formats of logs: `--format`, and reading lines of a format.
//!
//! | module | what is in it |
//! |---|---|
//! | [`template`] | a line of text against a template |
//! | [`layout`] | templates as nginx and Apache write them |
//! | [`json`] | a line that is a JSON object |
//! | [`w3c`] | a line whose columns a line `#Fields` names |
//! | [`wrapped`] | a line inside that of a container |
//!
//! Every other text format is a template, including the built-in ones. `auto` tries the built-in
//! formats on each line, starting with the format of the previous line. No line matches two of
//! them: only JSON begins with a brace, [`has_virtual_host`] tells the common formats apart, the
//! times of the others have another notation, and columns are looked for only after `#Fields`.

mod json;
mod layout;
mod template;
mod w3c;
mod wrapped;

use core::net::IpAddr;
use core::str::FromStr;

use memchr::memchr_iter;

use self::json::{Json, Members};
use self::template::{Layout, Mismatch, Role, Template};
use self::w3c::W3c;
use self::wrapped::Inner;
use super::key::{Field, Key};

pub(crate) use self::template::Request;

/// The value of `--format`.
#[derive(Clone, Debug)]
pub(crate) enum Format {
    /// Each line in any of these formats.
    BuiltIn(&'static [BuiltIn]),
    /// A JSON object in each line, with these members.
    Json(Members),
    /// A format from the configuration of a server.
    Own(Layout),
}

/// The formats that are known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltIn {
    /// The common format, and the combined one, which extends it.
    Combined,
    /// The combined format after a virtual host.
    WithHost,
    /// The combined format of the ingress controller of nginx, with its other fields.
    IngressNginx,
    /// `option httplog` of `HAProxy`, also with the head of syslog.
    HaProxy,
    /// The default format of Envoy.
    Envoy,
    /// The log of an application load balancer of AWS.
    Alb,
    /// Columns, as IIS and `CloudFront` write them.
    Columns,
    /// A JSON object, with the usual members.
    Json,
}

/// The formats of `auto`.
const AUTO: [BuiltIn; 7] = [
    BuiltIn::Combined,
    BuiltIn::WithHost,
    BuiltIn::Json,
    BuiltIn::HaProxy,
    BuiltIn::Envoy,
    BuiltIn::Alb,
    BuiltIn::Columns,
];

/// The names of formats. A name of several is the name of a server that can write each.
const NAMES: [(&str, &[BuiltIn]); 17] = [
    ("auto", &AUTO),
    ("common", &[BuiltIn::Combined]),
    ("combined", &[BuiltIn::Combined]),
    ("vhost", &[BuiltIn::WithHost]),
    ("json", &[BuiltIn::Json]),
    ("haproxy", &[BuiltIn::HaProxy]),
    ("envoy", &[BuiltIn::Envoy, BuiltIn::Json]),
    ("alb", &[BuiltIn::Alb]),
    ("cloudfront", &[BuiltIn::Columns]),
    ("iis", &[BuiltIn::Columns]),
    ("w3c", &[BuiltIn::Columns]),
    ("traefik", &[BuiltIn::Combined, BuiltIn::Json]),
    ("caddy", &[BuiltIn::Combined, BuiltIn::Json]),
    ("ingress-nginx", &[BuiltIn::IngressNginx]),
    ("google", &[BuiltIn::Json]),
    ("azure", &[BuiltIn::Json]),
    ("cloudflare", &[BuiltIn::Json]),
];

const COMBINED: &str = r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#;

/// A status may be -1. Captured header fields may stand before the request.
const HAPROXY: &str = r#"%h:%{client_port}p [%{%d/%b/%Y:%H:%M:%S}t.%{msec_frac}t] %{frontend}n %{backend}n/%{server}n %{timers}n %{status_code}n %B %{request_cookie}n %{response_cookie}n %{termination}n %{connections}n %{queues}n "%r""#;

/// A status may be 0.
const ENVOY: &str = r#"[$time_iso8601] "$request" $response_code $response_flags $bytes_received $bytes_sent $duration $service_time "$http_x_forwarded_for" "$http_user_agent" "$request_id" "$host" "$upstream_host""#;

const ALB: &str = r#"$type $time_iso8601 $elb $remote_addr:$client_port $target $request_time $target_time $response_time $elb_status_code $target_status_code $received_bytes $bytes_sent "$request" "$http_user_agent" $ssl_cipher $ssl_protocol $target_group_arn "$trace_id" "$host""#;

const INGRESS_NGINX: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id"#;

impl BuiltIn {
    /// Returns the name, for messages.
    fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::WithHost => "vhost",
            Self::IngressNginx => "ingress-nginx",
            Self::HaProxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Alb => "alb",
            Self::Columns => "w3c",
            Self::Json => "json",
        }
    }

    /// Returns the layout of a template.
    fn layout(self) -> Result<Layout, String> {
        let mut layout = layout::parse(match self {
            Self::WithHost => return layout::parse(&format!("%v {COMBINED}")),
            Self::IngressNginx => INGRESS_NGINX,
            Self::HaProxy => HAPROXY,
            Self::Envoy => ENVOY,
            Self::Alb => ALB,
            Self::Combined | Self::Columns | Self::Json => COMBINED,
        })?;
        if self == Self::Envoy {
            let mut variables = layout.variables.iter_mut();
            if let Some(list) = variables.find(|variable| variable.name == "http_x_forwarded_for") {
                list.role = Role::Forwarded;
            }
        }
        Ok(layout)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, formats)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(Self::BuiltIn(formats));
        }
        match text.strip_prefix("json:") {
            Some(members) => Ok(Self::Json(members.parse()?)),
            None if text.contains(['$', '%']) => Ok(Self::Own(layout::parse(text)?)),
            None => {
                let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
                Err(format!(
                    "expected {}, json:ROLE=MEMBER,..., or a format as nginx ($remote_addr ...) \
                     or Apache (%h ...) writes it",
                    names.join(", ")
                ))
            }
        }
    }
}

/// Reads the lines of a log in one format or several.
#[derive(Debug)]
pub(crate) struct Reader {
    choices: Vec<Choice>,
    /// The index of the format that read the last line.
    last: usize,
    /// The index of the format with columns, if there is one.
    columns: Option<usize>,
    /// The columns in force.
    selected: Option<usize>,
    /// Where the last line of the program is in the last line.
    inner: Inner,
}

#[derive(Debug)]
enum Choice {
    Template(Template),
    /// A built-in format in which lines of another one can look right.
    BuiltIn(BuiltIn, Template),
    /// A format whose lines may have the head of syslog, and where the last line began.
    AfterHead(Template, usize),
    Columns(W3c),
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
        if let [
            Choice::Template(template)
            | Choice::BuiltIn(_, template)
            | Choice::AfterHead(template, _),
        ] = &*reader.choices
        {
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
        let json = |members: &Members| {
            Choice::Json(Json::new(members, fields, size.is_some(), needs_address))
        };
        let choices = match format {
            Format::BuiltIn(formats) => {
                let choice = |&format: &BuiltIn| {
                    let template = || -> Result<Template, String> {
                        Ok(Template::new(format.layout()?, fields, true))
                    };
                    Ok(match format {
                        BuiltIn::Json => json(&Members::default()),
                        BuiltIn::Columns => {
                            Choice::Columns(W3c::new(fields, size.is_some(), needs_address))
                        }
                        BuiltIn::HaProxy => Choice::AfterHead(template()?, 0),
                        format => Choice::BuiltIn(format, template()?),
                    })
                };
                formats.iter().map(choice).collect::<Result<_, String>>()?
            }
            Format::Json(members) => vec![json(members)],
            Format::Own(layout) => {
                has_what_is_needed(layout, size)?;
                let template = Template::new(layout.clone(), fields, false);
                vec![Choice::Template(template)]
            }
        };
        let has_columns = |choice: &Choice| matches!(choice, Choice::Columns(_));
        Ok(Self {
            columns: choices.iter().position(has_columns),
            choices,
            last: 0,
            selected: None,
            inner: Inner::Whole,
        })
    }

    /// Reads a line without its end. Returns `None` if it is malformed. `cut` means that the line
    /// continues after `line`.
    pub(crate) fn read(&mut self, line: &[u8], cut: bool) -> Option<Request> {
        if Inner::is_likely(line) || self.inner != Inner::Whole {
            self.inner = Inner::of(line);
        }
        let line = self.inner.line(line);
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
        let line = self.inner.line(line);
        match &self.choices[self.last] {
            Choice::Template(template) | Choice::BuiltIn(_, template) => template.part(line, part),
            Choice::AfterHead(template, start) => {
                template.part(line.get(*start..).unwrap_or_default(), part)
            }
            Choice::Columns(columns) => columns.part(line, part),
            Choice::Json(json) => json.part(part),
        }
    }

    /// Returns whether a line that is malformed is a directive of the format with columns, and puts
    /// it in force.
    pub(crate) fn directive(&mut self, line: &[u8]) -> bool {
        let inner = Inner::of(line);
        let line = inner.line(line);
        let Some(columns) = self.columns_mut() else {
            return false;
        };
        let is_directive = columns.directive(line);
        self.selected = columns.selected();
        is_directive
    }

    /// Returns the number of the columns in force.
    pub(crate) fn selected_columns(&self) -> Option<usize> {
        self.selected
    }

    /// Puts columns in force, by their number.
    #[inline]
    pub(crate) fn select_columns(&mut self, number: Option<usize>) {
        if self.selected != number
            && let Some(columns) = self.columns_mut()
        {
            columns.select(number);
            self.selected = number;
        }
    }

    fn columns_mut(&mut self) -> Option<&mut W3c> {
        match self.choices.get_mut(self.columns?)? {
            Choice::Columns(columns) => Some(columns),
            _ => None,
        }
    }

    /// Describes the format that is closest to `line`, which is malformed, and what of it `line`
    /// lacks. Returns one line of text.
    pub(crate) fn expected(&mut self, line: &[u8]) -> String {
        let inner = Inner::of(line);
        let line = inner.line(line);
        let mut closest: Option<(usize, String)> = None;
        for choice in &mut self.choices {
            let found = choice.expected(line);
            if closest.as_ref().is_none_or(|(most, _)| found.0 > *most) {
                closest = Some(found);
            }
        }
        closest.map_or_else(String::new, |(_, text)| text)
    }
}

/// Checks that a format of the user has a time, and a size if anything needs it.
fn has_what_is_needed(layout: &Layout, size: Option<&str>) -> Result<(), String> {
    let mut roles = layout.variables.iter().map(|variable| &variable.role);
    if !roles.any(|role| matches!(role, Role::Time(_))) {
        let reason = "--format: the format has no time, for example $time_local, $msec or %t";
        return Err(reason.into());
    }
    let mut roles = layout.variables.iter().map(|variable| &variable.role);
    match size {
        Some(needs) if !roles.any(|role| *role == Role::Size) => Err(format!(
            "{needs}: the format has no size, for example $body_bytes_sent or %b"
        )),
        _ => Ok(()),
    }
}

impl Choice {
    fn read(&mut self, line: &[u8], cut: bool) -> Option<Request> {
        match self {
            Self::Template(template) => template.read(line, cut).ok(),
            Self::BuiltIn(format, template) => {
                let request = template.read(line, cut).ok()?;
                let with_host = match format {
                    BuiltIn::Combined => false,
                    BuiltIn::WithHost => true,
                    _ => return Some(request),
                };
                // The words before the time: address, ident and user, after the host if there is
                // one. Only a user may contain spaces.
                let word = |number| template.value(line, number).unwrap_or_default();
                let user = word(2 + usize::from(with_host));
                let four = with_host || user.contains(&b' ');
                let is_other = four && has_virtual_host(word(0), word(1)) != Some(with_host);
                (!is_other).then_some(request)
            }
            Self::AfterHead(template, start) => {
                *start = after_head(line)?;
                template.read(&line[*start..], cut).ok()
            }
            Self::Columns(columns) => columns.read(line, cut),
            Self::Json(json) => json.read(line),
        }
    }

    /// Describes the expected form of `line`, and how much of it matches.
    fn expected(&mut self, line: &[u8]) -> (usize, String) {
        match self {
            Self::Template(template) => {
                let mismatch = template.read(line, false).err();
                described("that of --format", template.layout(), mismatch, 0)
            }
            Self::BuiltIn(format, template) => {
                let mismatch = template.read(line, false).err();
                let found = described(format.name(), template.layout(), mismatch, 0);
                let mut words = line.split(|&byte| byte == b' ');
                let mut word = || words.next().unwrap_or_default();
                // The address of a client would be taken for a host.
                match format {
                    BuiltIn::WithHost if has_virtual_host(word(), word()) != Some(true) => {
                        (0, found.1)
                    }
                    _ => found,
                }
            }
            Self::AfterHead(template, start) => {
                *start = after_head(line).unwrap_or(0);
                let mismatch = template.read(&line[*start..], false).err();
                let name = BuiltIn::HaProxy.name();
                described(name, template.layout(), mismatch, *start)
            }
            Self::Columns(columns) => {
                let matched = if columns.has_columns() { line.len() } else { 0 };
                (matched, format!("w3c, expected {}", columns.expected()))
            }
            Self::Json(json) => {
                let is_object = line.trim_ascii_start().starts_with(b"{");
                let matched = if is_object { line.len() } else { 0 };
                (matched, format!("json, expected {}", json.expected(line)))
            }
        }
    }
}

/// Returns where a line of `HAProxy` begins after the head of syslog: at the word before a time
/// such as ` [06/Feb/2009:12:14:14.655]`.
fn after_head(line: &[u8]) -> Option<usize> {
    let is_time = |at: &usize| {
        let is_free = at.checked_sub(1).and_then(|before| line.get(before)) == Some(&b' ');
        is_free && line.get(at + 3) == Some(&b'/') && line.get(at + 7) == Some(&b'/')
    };
    let time = memchr_iter(b'[', line).find(is_time)?;
    let word = line[..time - 1].iter().rposition(|&byte| byte == b' ');
    Some(word.map_or(0, |space| space + 1))
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

/// Returns how many bytes of a line match, with the expected form of a line of `layout`, and where
/// the line differs. The line began at `start`.
fn described(
    name: &str,
    layout: &Layout,
    mismatch: Option<Mismatch>,
    start: usize,
) -> (usize, String) {
    let mut text = format!("{name}, expected as {}", layout::shown(layout));
    let Some(Mismatch { at, variable }) = mismatch else {
        return (start, text);
    };
    let missing = match layout.variables.get(variable) {
        Some(variable) => layout::noun(&variable.role, &variable.name),
        None => layout.before.escape_ascii().to_string(),
    };
    let column = start + at + 1;
    text = format!("{text}: {missing} not found at column {column}");
    (start + at, text)
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

    /// A line of each server, at 2015-05-17 10:05:03 UTC, with 5,120 bytes: the name of its format,
    /// and the values of the key `ip,path,host,agent`.
    const OF_SERVERS: [(&str, &str, [&str; 4]); 12] = [
        (
            "haproxy",
            r#"10.0.1.2:33317 [17/May/2015:10:05:03.000] http-in static/srv1 10/0/30/69/109 200 5120 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /a/b?c HTTP/1.1""#,
            ["10.0.1.2", "/a/b", "-", "-"],
        ),
        (
            "haproxy",
            r#"May 17 12:05:03 lb haproxy[14389]: 2001:db8::1:33317 [17/May/2015:10:05:03.000] http-in~ b/<NOSRV> -1/-1/-1/-1/0 -1 5120 - - CR-- 1/1/1/1/0 0/0 "GET /a/b HTTP/1.1" 0/0"#,
            ["2001:db8::1", "/a/b", "-", "-"],
        ),
        (
            "envoy",
            r#"[2015-05-17T10:05:03.000Z] "POST /a/b HTTP/2" 204 - 154 5120 226 100 "10.0.35.28, 192.0.2.1" "nsq2http" "cc21d9b0" "locations" "tcp://10.0.2.1:80""#,
            ["192.0.2.1", "/a/b", "locations", "nsq2http"],
        ),
        (
            "envoy",
            r#"{"start_time":"2015-05-17T10:05:03.000Z","method":"GET","path":"/a/b?c","response_code":200,"bytes_sent":5120,"downstream_remote_address":"192.0.2.1:5000","authority":"a.example","user_agent":"curl"}"#,
            ["192.0.2.1", "/a/b", "a.example", "curl"],
        ),
        (
            "alb",
            r#"https 2015-05-17T10:05:03.000000Z app/lb/50dc 192.0.2.1:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 5120 "GET https://a.example:443/a/b?c HTTP/1.1" "curl/7.46.0" ECDHE TLSv1.2 arn:aws "Root=1-5" "a.example" "arn" 0"#,
            [
                "192.0.2.1",
                "https://a.example:443/a/b",
                "a.example",
                "curl/7.46.0",
            ],
        ),
        (
            "ingress-nginx",
            r#"192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a/b HTTP/1.1" 200 5120 "-" "curl" 414 0.002 [default-a-80] [] 10.0.0.5:8080 5120 0.002 200 f8b1"#,
            ["192.0.2.1", "/a/b", "", "curl"],
        ),
        (
            "traefik",
            r#"192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a/b HTTP/1.1" 200 5120 "-" "curl" 7 "web@docker" "http://10.0.0.2" 3ms"#,
            ["192.0.2.1", "/a/b", "", "curl"],
        ),
        (
            "traefik",
            r#"{"ClientAddr":"192.0.2.1:9","ClientHost":"192.0.2.1","DownstreamContentSize":5120,"RequestHost":"a.example","RequestMethod":"GET","RequestPath":"/a/b","StartUTC":"2015-05-17T10:05:03Z","request_User-Agent":"curl"}"#,
            ["192.0.2.1", "/a/b", "a.example", "curl"],
        ),
        (
            "caddy",
            r#"{"level":"info","ts":1431857103.0,"logger":"http.log.access","request":{"remote_ip":"192.0.2.1","method":"GET","host":"a.example","uri":"/a/b?c","headers":{"User-Agent":["curl"]}},"size":5120,"status":200}"#,
            ["192.0.2.1", "/a/b", "a.example", "curl"],
        ),
        (
            "google",
            r#"{"timestamp":"2015-05-17T10:05:03Z","httpRequest":{"requestMethod":"GET","requestUrl":"/a/b","responseSize":"5120","remoteIp":"192.0.2.1","userAgent":"curl"}}"#,
            ["192.0.2.1", "/a/b", "-", "curl"],
        ),
        (
            "azure",
            r#"{"time":"2015-05-17T10:05:03Z","category":"ApplicationGatewayAccessLog","properties":{"clientIP":"192.0.2.1","httpMethod":"GET","requestUri":"/a/b","sentBytes":5120,"host":"a.example","userAgent":"curl"}}"#,
            ["192.0.2.1", "/a/b", "a.example", "curl"],
        ),
        (
            "cloudflare",
            r#"{"ClientIP":"192.0.2.1","ClientRequestHost":"a.example","ClientRequestMethod":"GET","ClientRequestURI":"/a/b?c","ClientRequestUserAgent":"curl","EdgeResponseBytes":5120,"EdgeStartTimestamp":1431857103000000000}"#,
            ["192.0.2.1", "/a/b", "a.example", "curl"],
        ),
    ];

    #[test]
    fn the_formats_of_servers_are_read_by_name_and_without() {
        for (name, line, values) in OF_SERVERS {
            let of_auto = read("auto", "ip,path,host,agent", line);
            for (key, expected) in ["ip", "path", "host", "agent"].iter().zip(values) {
                // A format without such a field refuses the key.
                let is_in_format = !(expected.is_empty()
                    || (name == "haproxy" && ["host", "agent"].contains(key)));
                let (_, _, parts) = of_auto.as_ref().unwrap_or_else(|| panic!("{name}: {line}"));
                let place = ["ip", "path", "host", "agent"]
                    .iter()
                    .position(|k| k == key);
                let part = parts[place.unwrap()].rsplit_once(':');
                let without_port = part.filter(|_| *key == "ip" && !expected.contains("::"));
                let found = without_port.map_or(&*parts[place.unwrap()], |(address, _)| address);
                if !expected.is_empty() {
                    assert_eq!(found, expected, "{key} of {name}: {line}");
                }
                if is_in_format {
                    let own = read(name, key, line);
                    assert_eq!(own.map(|(time, bytes, _)| (time, bytes)), Some((AT, 5_120)));
                }
            }
        }
    }

    const AT: u64 = 1_431_857_103_000;

    #[test]
    fn the_line_fields_names_the_columns_of_the_lines_after_it() {
        let key: Key = "ip,path,host,agent,user".parse().unwrap();
        for (name, fields, line, values) in [
            (
                "iis",
                "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username \
                 c-ip cs(User-Agent) cs(Referer) sc-status sc-bytes",
                "2015-05-17 10:05:03 10.0.0.1 GET /a/b c=d 443 frank 192.0.2.1 Mozilla/5.0+(X) - \
                 200 5120",
                ["192.0.2.1", "/a/b", "-", "Mozilla/5.0+(X)", "frank"],
            ),
            (
                "cloudfront",
                "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem \
                 sc-status cs(Referer) cs(User-Agent) cs-uri-query x-host-header",
                "2015-05-17\t10:05:03\tCDG50-P2\t5120\t192.0.2.1\tGET\td1.cloudfront.net\t/a/b\t\
                 200\t-\tcurl/8%200\t-\ta.example",
                ["192.0.2.1", "/a/b", "a.example", "curl/8%200", "-"],
            ),
        ] {
            for format in ["auto", "w3c", name] {
                let mut reader = Reader::new(&format.parse().unwrap(), &key, true).unwrap();
                assert_eq!(reader.read(line.as_bytes(), false), None, "no columns yet");
                assert!(reader.directive(b"#Version: 1.0"));
                assert!(!reader.directive(b"# a comment"));
                assert!(reader.directive(fields.as_bytes()));
                let request = reader.read(line.as_bytes(), false).unwrap();
                assert_eq!((request.time, request.bytes), (AT, 5_120));
                let parts = (0..5).map(|part| reader.part(line.as_bytes(), part));
                assert!(parts.eq(values.map(str::as_bytes)), "{format}");
                // The columns of another log.
                let first = reader.selected_columns();
                assert!(reader.directive(b"#Fields: time date c-ip sc-bytes"));
                let other = b"10:05:03 2015-05-17 192.0.2.7 1";
                assert!(reader.read(other, false).is_some());
                assert_eq!(reader.part(other, 0), b"192.0.2.7");
                assert_eq!(reader.read(line.as_bytes(), false), None);
                reader.select_columns(first);
                assert!(reader.read(line.as_bytes(), false).is_some());
            }
        }
        let mut own = Reader::new(&"combined".parse().unwrap(), &key_of_address(), true).unwrap();
        assert!(
            !own.directive(b"#Fields: date time"),
            "a malformed line of another format"
        );
    }

    fn key_of_address() -> Key {
        "ip".parse().unwrap()
    }

    #[test]
    fn lines_of_containers_are_read_as_those_of_the_program() {
        let cri = format!("2024-03-01T00:00:00.123456789Z stdout F {LINE}");
        reads("auto", "ip,user", &cri, &["10.0.0.1", "frank"]);
        reads("combined", "path", &cri, &["/a/b"]);
        let docker = serde_json::json!({
            "log": format!("{LINE}\n"), "stream": "stdout", "time": "2024-03-01T00:00:00Z",
        });
        let docker = docker.to_string();
        assert!(docker.starts_with("{\"log\":"));
        reads(
            "auto",
            "ip,agent",
            &docker,
            &["10.0.0.1", r#"Agent [1] \"x\""#],
        );
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
        let mut reader = Reader::new(&"auto".parse().unwrap(), &key, true).unwrap();
        assert_eq!(reader.read(COMMON.as_bytes(), true), None);
        let more = format!("{COMMON} \"http://exam");
        let request = reader.read(more.as_bytes(), true);
        assert_eq!(request.map(|request| request.bytes), Some(5_120));
    }

    #[test]
    fn the_error_of_a_malformed_line_shows_what_is_missing() {
        let mut reader =
            Reader::new(&"auto".parse().unwrap(), &"ip".parse().unwrap(), false).unwrap();
        let text = reader.expected(br#"10.0.0.1 - - [17/May/2015:10:05:03] "GET /" 200 1"#);
        for expected in [
            "combined, expected as ADDRESS IDENT USER [17/May/2015:10:05:03 +0200] \"REQUEST\"",
            ": TIME not found at column 15",
        ] {
            assert!(text.contains(expected), "{expected} is missing in {text}");
        }
    }
}
