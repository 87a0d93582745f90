//! Reading of lines that are JSON objects.
//!
//! The name of a member is the path to it, joined with dots. `request.remote_ip` is the member
//! `remote_ip` of the object `request`, or a member with that whole name. Only members that the
//! replay needs are kept. Of an array, the first element counts.

use core::fmt;
use core::fmt::Write;
use core::ops::Range;
use core::str::FromStr;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::template::{Request, in_nginx, method, path, present, size};
use crate::replay::key::{ABSENT, Field};
use crate::replay::time::{Form, Reader};

/// Members with other names than usual: pairs of role and member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members(Vec<(String, String)>);

/// The roles of members, and the usual names for each role, the most specific name first.
const USUAL: [(&str, &str); 9] = [
    (
        "time",
        "@timestamp timestamp time time_iso8601 time_local msec ts StartUTC start_time \
         EdgeStartTimestamp timeStamp date",
    ),
    (
        "ip",
        "remote_addr remote_ip client_ip clientip ip ClientHost request.remote_ip \
         request.client_ip client.ip client.address source.ip httpRequest.remoteIp ClientIP \
         properties.clientIP properties.clientIp downstream_remote_address x_forwarded_for client",
    ),
    (
        "size",
        "body_bytes_sent bytes_sent size bytes response_size response_bytes \
         DownstreamContentSize http.response.body.bytes httpRequest.responseSize \
         EdgeResponseBytes properties.sentBytes properties.responseBytes",
    ),
    (
        "user",
        "remote_user user user_id user.name ClientUsername auth",
    ),
    (
        "method",
        "method request_method request.method http.request.method RequestMethod \
         httpRequest.requestMethod ClientRequestMethod properties.httpMethod request",
    ),
    (
        "path",
        "path request_uri uri request.uri url url.path RequestPath httpRequest.requestUrl \
         ClientRequestURI properties.requestUri request",
    ),
    (
        "host",
        "host http_host server_name vhost request.host RequestHost url.domain \
         ClientRequestHost authority :authority properties.hostName properties.host",
    ),
    (
        "referer",
        "http_referer referer referrer request.headers.Referer http.request.referrer \
         httpRequest.referer request_Referer ClientRequestReferer properties.referer",
    ),
    (
        "agent",
        "http_user_agent user_agent agent request.headers.User-Agent user_agent.original \
         httpRequest.userAgent request_User-Agent ClientRequestUserAgent properties.userAgent \
         user-agent",
    ),
];

const EXPECTED: &str = "expected json:ROLE=MEMBER,... with the roles time, ip, size, user, method, \
                        path, host, referer and agent";

impl FromStr for Members {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut members = Vec::new();
        for pair in text.split(',') {
            let known = |role: &str| USUAL.iter().any(|(name, _)| *name == role);
            let (role, member) = pair.split_once('=').unwrap_or_default();
            if !known(role) || member.is_empty() {
                return Err(EXPECTED.into());
            }
            members.push((role.into(), member.into()));
        }
        Ok(Self(members))
    }
}

impl Members {
    /// Returns the names that the member for `role` may have, in order of preference.
    fn names(&self, role: &str) -> Vec<String> {
        if let Some((_, member)) = self.0.iter().find(|(name, _)| name == role) {
            return vec![member.clone()];
        }
        let usual = USUAL.iter().find(|(name, _)| *name == role);
        let names = usual.map_or("", |(_, names)| names);
        names.split(' ').map(Into::into).collect()
    }

    fn names_of(&self, field: &Field) -> Vec<String> {
        match field {
            Field::Address => self.names("ip"),
            Field::User => self.names("user"),
            Field::Path => self.names("path"),
            Field::Host => self.names("host"),
            Field::Referer => self.names("referer"),
            Field::Agent => self.names("agent"),
            Field::Method => self.names("method"),
            Field::ProxiedAddress => {
                let mut names = self.names_of(&Field::Header("X-Real-IP".into()));
                names.extend(self.names("ip"));
                names
            }
            Field::Header(name) => {
                // Upper and lower case are equal in the name of a header.
                let lower = name.to_ascii_lowercase();
                let spellings = if lower == *name {
                    vec![lower]
                } else {
                    vec![name.clone(), lower]
                };
                let names = spellings.iter().flat_map(|name| {
                    [
                        format!("request.headers.{name}"),
                        format!("http.request.headers.{name}"),
                        format!("headers.{name}"),
                        format!("request_{name}"),
                        name.clone(),
                    ]
                });
                names.chain([in_nginx(name)]).collect()
            }
            Field::Named(name) => vec![name.clone()],
        }
    }
}

/// Reads lines that are JSON objects.
#[derive(Debug)]
pub(crate) struct Json {
    found: Found,
    /// The fields of the key. They follow the time and the size in the list of values.
    fields: Vec<Field>,
    needs_size: bool,
    needs_address: bool,
    times: Reader,
}

/// The indices of the values to look for.
const TIME: usize = 0;
const SIZE: usize = 1;
const KEY: usize = 2;

/// The values that are read from a line.
#[derive(Debug, Default)]
struct Found {
    /// The names of each value, in order of preference.
    names: Vec<Vec<String>>,
    /// The values as text: their ranges in `text`, and the index of the name under which each was
    /// found.
    values: Vec<Option<(usize, Range<usize>)>>,
    text: String,
    /// The path to the current member.
    path: String,
}

impl Json {
    /// Creates a reader that looks for `fields`, and for the size if `needs_size` is set. A line
    /// without the size, or without an address that is needed, is malformed.
    pub(crate) fn new(
        members: &Members,
        fields: &[Field],
        needs_size: bool,
        needs_address: bool,
    ) -> Self {
        let size = needs_size.then(|| members.names("size"));
        let mut names = vec![members.names("time"), size.unwrap_or_default()];
        names.extend(fields.iter().map(|field| members.names_of(field)));
        Self {
            found: Found {
                names,
                ..Found::default()
            },
            fields: fields.to_vec(),
            needs_size,
            needs_address,
            times: Reader::default(),
        }
    }

    /// Reads a line. Returns `None` if it is malformed: if it is not an object, or if it lacks the
    /// time, or an address or size that is needed.
    pub(crate) fn read(&mut self, line: &[u8]) -> Option<Request> {
        if line.trim_ascii_start().first() != Some(&b'{') {
            return None;
        }
        let found = &mut self.found;
        found.text.clear();
        found.path.clear();
        found.values.clear();
        found.values.resize(found.names.len(), None);
        let mut json = serde_json::Deserializer::from_slice(line);
        Value(found).deserialize(&mut json).ok()?;
        json.end().ok()?;
        let time = self.times.read(self.found.value(TIME)?, &Form::Any)?;
        let bytes = if self.needs_size {
            size(self.found.value(SIZE)?)?
        } else {
            0
        };
        for (place, field) in self.fields.iter().enumerate() {
            let is_needed = self.needs_address && *field == Field::Address;
            if is_needed && self.found.value(KEY + place)?.is_empty() {
                return None;
            }
        }
        Some(Request { time, bytes })
    }

    /// Returns part number `part` of the key of the last line that was read.
    pub(crate) fn part(&self, part: usize) -> &[u8] {
        match (self.found.value(KEY + part), &self.fields[part]) {
            (Some(value), Field::Path) => present(path(value)),
            (Some(value), Field::Method) => present(method(value)),
            (Some(value), _) => present(value),
            (None, _) => ABSENT,
        }
    }

    /// Describes the expected form of a line, and what is wrong with `line`, which is malformed.
    pub(crate) fn expected(&mut self, line: &[u8]) -> String {
        let mut text = String::from("a JSON object");
        let mut looked_for = vec![("a time", TIME)];
        if self.needs_size {
            looked_for.push(("a size", SIZE));
        }
        if let Some(place) = self
            .fields
            .iter()
            .position(|field| self.needs_address && *field == Field::Address)
        {
            looked_for.push(("an address", KEY + place));
        }
        let is_object = line.trim_ascii_start().starts_with(b"{");
        let _ = self.read(line);
        for (number, (what, value)) in looked_for.into_iter().enumerate() {
            let and = if number == 0 { " with" } else { " and" };
            let names = self.found.names[value].join(" or ");
            let _ = write!(text, "{and} {what} ({names})");
            if is_object {
                let _ = match self.found.value(value) {
                    Some(value) => write!(
                        text,
                        ", which is {:?} here",
                        value.escape_ascii().to_string()
                    ),
                    None => write!(text, ", which is absent here"),
                };
            }
        }
        text
    }
}

impl Found {
    fn value(&self, number: usize) -> Option<&[u8]> {
        let (_, range) = self.values[number].as_ref()?;
        Some(&self.text.as_bytes()[range.clone()])
    }

    /// Keeps `value`, which is at the current path, for every value that is looked for there.
    fn keep(&mut self, value: impl fmt::Display) {
        let mut kept = None;
        for (names, found) in self.names.iter().zip(&mut self.values) {
            let Some(rank) = names.iter().position(|name| *name == self.path) else {
                continue;
            };
            if found.as_ref().is_some_and(|&(best, _)| best <= rank) {
                continue;
            }
            let range = kept.get_or_insert_with(|| {
                let start = self.text.len();
                let _ = write!(self.text, "{value}");
                start..self.text.len()
            });
            *found = Some((rank, range.clone()));
        }
    }

    /// Returns whether a value is looked for at the current path or below it.
    fn leads_on(&self) -> bool {
        let leads_on = |name: &String| match name.strip_prefix(&*self.path) {
            Some(rest) => rest.is_empty() || rest.starts_with('.'),
            None => false,
        };
        self.names.iter().flatten().any(leads_on)
    }
}

/// Visits the value at the current path.
struct Value<'a>(&'a mut Found);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.0.keep(value);
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.0.keep(value);
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.0.keep(value);
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.0.keep(value);
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.0.keep(value);
        Ok(())
    }

    /// `null` counts as absent.
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let _ = elements.next_element_seed(Value(self.0))?;
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let found = self.0;
        let length = found.path.len();
        while members.next_key_seed(Name(found))?.is_some() {
            if found.leads_on() {
                members.next_value_seed(Value(found))?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
            found.path.truncate(length);
        }
        Ok(())
    }
}

/// Visits the name of a member, and appends it to the path.
struct Name<'a>(&'a mut Found);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<(), E> {
        if !self.0.path.is_empty() {
            self.0.path.push('.');
        }
        self.0.path.push_str(name);
        Ok(())
    }
}
