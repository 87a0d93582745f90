//! `--key`: which requests share a limit. Assigns a number to each key that occurs.

use core::fmt::Write;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use std::borrow::Cow;
use std::collections::HashMap;

use portcullis_policy::PathRules;

/// The value of `--key`: requests share a limit if all parts are equal. Without parts, all requests
/// share one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) parts: Vec<Part>,
    /// The text of the argument.
    pub(crate) text: String,
}

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) field: Field,
    /// The prefix lengths for IPv4 and IPv6, if the key is a network.
    prefix: Option<(u8, u8)>,
    /// The text of the part.
    pub(crate) name: String,
}

/// The fields that a key can consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// The address of the client.
    Address,
    /// The authenticated user.
    User,
    /// The path of the request, without its query.
    Path,
    /// The virtual host.
    Host,
    /// The header field `Referer`.
    Referer,
    /// The header field `User-Agent`.
    Agent,
    /// The method of the request.
    Method,
    /// The header field with this name.
    Header(String),
    /// The header field `X-Real-IP`, or else the address of the client.
    ProxiedAddress,
    /// The field with this name in the format.
    Named(String),
}

const EXPECTED: &str = "expected `global`, or one or more of ip, ip/PREFIX, user, path, host, \
                        referer, agent and field:NAME, with commas between them";

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = match text {
            "global" => Vec::new(),
            _ => text.split(',').map(part).collect::<Result<_, _>>()?,
        };
        Ok(Self {
            parts,
            text: text.into(),
        })
    }
}

impl Part {
    /// Returns the value that counts of `text`, which is the part in a line.
    #[inline]
    fn value<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        match (&self.field, self.prefix) {
            (Field::Address, Some(lengths)) => network(text, lengths),
            // The address alone. Without a colon it is an IPv4 address, which has one spelling, or
            // a name.
            (Field::Address, None) if text.contains(&b':') => network(text, (32, 128)),
            (Field::Path, _) => path(text),
            _ => Cow::Borrowed(text),
        }
    }
}

fn part(name: &str) -> Result<Part, String> {
    let (field, prefix) = match name {
        "ip" => (Field::Address, None),
        "user" => (Field::User, None),
        "path" => (Field::Path, None),
        "host" => (Field::Host, None),
        "referer" => (Field::Referer, None),
        "agent" => (Field::Agent, None),
        _ => match (name.strip_prefix("field:"), name.strip_prefix("ip/")) {
            (Some(named), _) if !named.is_empty() => (Field::Named(named.into()), None),
            (_, Some(lengths)) => (Field::Address, Some(prefix(lengths)?)),
            _ => return Err(EXPECTED.into()),
        },
    };
    Ok(Part {
        field,
        prefix,
        name: name.into(),
    })
}

/// Parses prefix lengths. `24` is for IPv4 and `64` for IPv6; addresses of the other kind count
/// whole. `24/64` is for both.
fn prefix(lengths: &str) -> Result<(u8, u8), String> {
    const EXPECTED: &str = "expected ip/24 (IPv4, up to 32), ip/64 (IPv6, 33 to 128) or ip/24/64 \
                            (both)";
    let number = |text: &str, most| match text.parse::<u8>() {
        Ok(bits) if bits <= most && text.bytes().all(|b| b.is_ascii_digit()) => Ok(bits),
        _ => Err(EXPECTED),
    };
    Ok(match lengths.split_once('/') {
        Some((v4, v6)) => (number(v4, 32)?, number(v6, 128)?),
        None => match number(lengths, 128)? {
            bits @ ..=32 => (bits, 128),
            bits => (32, bits),
        },
    })
}

/// The value of a part that a request does not have, as in a log.
pub(crate) const ABSENT: &[u8] = b"-";

/// Assigns a number to a line.
pub(crate) trait Numbering {
    /// Returns the number of the line with these parts; `part` takes the index of a part. Returns
    /// `None` if a `u32` cannot count them.
    fn number<'a>(&mut self, part: impl Fn(usize) -> &'a [u8]) -> Option<u32>;
}

/// Assigns numbers to keys, from 0 in the order in which they occur.
#[derive(Debug)]
pub(crate) struct Keys {
    key: Key,
    numbers: HashMap<Box<[u8]>, u32>,
    scratch: Vec<u8>,
}

impl Keys {
    /// Creates an empty set of keys.
    pub(crate) fn new(key: Key) -> Self {
        Self {
            key,
            numbers: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Returns the number of keys that have occurred.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the noun for a key, in the singular and the plural.
    pub(crate) fn noun(&self) -> (&'static str, &'static str) {
        match &*self.key.parts {
            [part] => match (&part.field, part.prefix) {
                (Field::Address, None) => ("address", "addresses"),
                (Field::Address, Some(_)) => ("network", "networks"),
                (Field::User, _) => ("user", "users"),
                (Field::Path, _) => ("path", "paths"),
                (Field::Host, _) => ("host", "hosts"),
                (Field::Referer, _) => ("referer", "referers"),
                (Field::Agent, _) => ("agent", "agents"),
                (Field::Method | Field::Header(_) | Field::ProxiedAddress | Field::Named(_), _) => {
                    ("key", "keys")
                }
            },
            _ => ("key", "keys"),
        }
    }

    /// Returns the value of `--key`.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Returns each key: its number, and its bytes for [`parts_of`](Self::parts_of).
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.numbers
            .iter()
            .map(|(bytes, &number)| (number, &**bytes))
    }

    /// Returns the parts of a key, in the order of `--key`.
    pub(crate) fn parts_of<'a>(&self, mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
        if self.key.parts.len() < 2 {
            return self.key.parts.iter().map(|_| bytes).collect();
        }
        let mut parts = Vec::new();
        while let Some((length, rest)) = bytes.split_first_chunk() {
            let (part, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            parts.push(part);
            bytes = rest;
        }
        parts
    }
}

impl Numbering for Keys {
    /// Returns the number of the key with these parts.
    fn number<'a>(&mut self, parts: impl Fn(usize) -> &'a [u8]) -> Option<u32> {
        if let [part] = &*self.key.parts {
            return number(&mut self.numbers, &part.value(parts(0)));
        }
        self.scratch.clear();
        for (place, part) in self.key.parts.iter().enumerate() {
            let text = part.value(parts(place));
            // The lengths ensure that keys with different parts have different bytes.
            if self.key.parts.len() > 1 {
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                self.scratch.extend_from_slice(&length.to_le_bytes());
            }
            self.scratch.extend_from_slice(&text);
        }
        number(&mut self.numbers, &self.scratch)
    }
}

fn number(numbers: &mut HashMap<Box<[u8]>, u32>, key: &[u8]) -> Option<u32> {
    if let Some(&number) = numbers.get(key) {
        return Some(number);
    }
    let number = u32::try_from(numbers.len()).ok()?;
    numbers.insert(key.into(), number);
    Some(number)
}

/// Reads the address of a client: with or without a port, an IPv6 address also in brackets and
/// with a zone. Returns `None` for a name. An IPv4 address in the form of an IPv6 address
/// (`::ffff:192.0.2.1`) is returned as IPv4.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let without_zone = |text: &str| match text.split_once('%') {
        Some((address, _zone)) => IpAddr::V6(address.parse().ok()?).into(),
        None => text.parse().ok(),
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let address = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if port.is_empty() || port.strip_prefix(':').is_some_and(is_port) => {
            without_zone(address).filter(IpAddr::is_ipv6)
        }
        Some(_) => None,
        None => without_zone(text).or_else(|| {
            let (address, _) = text.rsplit_once(':').filter(|(_, port)| is_port(port))?;
            Some(IpAddr::V4(address.parse().ok()?))
        }),
    };
    address.map(|address: IpAddr| address.to_canonical())
}

/// Returns the path of a request target in the spelling in which policies count it. What is no path
/// is returned as it is.
fn path(target: &[u8]) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(target);
    let (host, path) = split(&text);
    if host.is_empty() && !path.starts_with('/') {
        return Cow::Borrowed(target);
    }
    let normalized = PathRules::new().normalize(path);
    normalized.map_or(Cow::Borrowed(target), Cow::Owned)
}

/// Returns the network of an address. A client that is logged by its name counts by its name.
fn network(text: &[u8], (v4, v6): (u8, u8)) -> Cow<'_, [u8]> {
    let parsed = str::from_utf8(text).ok().and_then(address);
    let name = text;
    let mut text = String::new();
    match parsed {
        None => return Cow::Borrowed(name),
        Some(IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(v4)).unwrap_or(0);
            let network = Ipv4Addr::from_bits(address.to_bits() & mask);
            let _ = write!(text, "{network}");
            if v4 < 32 {
                let _ = write!(text, "/{v4}");
            }
        }
        Some(IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6)).unwrap_or(0);
            let network = Ipv6Addr::from_bits(address.to_bits() & mask);
            let _ = write!(text, "{network}");
            if v6 < 128 {
                let _ = write!(text, "/{v6}");
            }
        }
    }
    Cow::Owned(text.into_bytes())
}

/// Splits the target of a request into the host and the path. Only a target that is a whole URL has
/// a host.
pub(crate) fn split(target: &str) -> (&str, &str) {
    for scheme in ["http://", "https://"] {
        if let Some((start, rest)) = target.split_at_checked(scheme.len())
            && start.eq_ignore_ascii_case(scheme)
        {
            return rest.split_at(rest.find('/').unwrap_or(rest.len()));
        }
    }
    ("", target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(prefix: &str, address: &str) -> String {
        let key: Key = format!("ip/{prefix}").parse().unwrap();
        let bits = key.parts[0].prefix.unwrap();
        String::from_utf8(network(address.as_bytes(), bits).into_owned()).unwrap()
    }

    #[test]
    fn an_address_is_cut_to_the_prefix_length_for_its_kind() {
        assert_eq!(of("24", "192.0.2.77"), "192.0.2.0/24");
        assert_eq!(of("24", "2001:db8::7"), "2001:db8::7");
        assert_eq!(of("64", "192.0.2.77"), "192.0.2.77");
        assert_eq!(of("64", "2001:db8:0:1:ffff::7"), "2001:db8:0:1::/64");
        assert_eq!(of("16/48", "192.0.2.77"), "192.0.0.0/16");
        assert_eq!(of("16/48", "2001:db8:1:2::"), "2001:db8:1::/48");
        assert_eq!(of("0/0", "192.0.2.77"), "0.0.0.0/0");
        assert_eq!(of("0/0", "2001:db8::7"), "::/0");
        assert_eq!(of("32/128", "2001:0db8::0007"), "2001:db8::7");
        assert_eq!(of("24", "::ffff:192.0.2.77"), "192.0.2.0/24");
        assert_eq!(of("24", "example.org"), "example.org");
    }

    #[test]
    fn a_target_that_is_a_url_has_a_host() {
        assert_eq!(split("/a/b"), ("", "/a/b"));
        assert_eq!(split("http://a.example/b/c"), ("a.example", "/b/c"));
        assert_eq!(split("HTTPS://a.example:80"), ("a.example:80", ""));
        assert_eq!(split("https:/a"), ("", "https:/a"));
    }

    #[test]
    fn a_path_is_one_key_in_all_its_spellings() {
        let mut keys = Keys::new("path".parse().unwrap());
        let mut number = |text: &'static str| keys.number(|_| text.as_bytes()).unwrap();
        for path in ["/a/b", "/a/b/", "//a/b", "/%61/b", "http://x.example/a/b"] {
            assert_eq!(number(path), 0, "{path}");
        }
        for path in ["/", "http://x.example"] {
            assert_eq!(number(path), 1, "{path}");
        }
        for (place, path) in ["/A/b", "-", "*", "/a%2Fb"].into_iter().enumerate() {
            assert_eq!(number(path) as usize, 2 + place, "{path}");
        }
    }

    #[test]
    fn an_address_is_one_key_in_all_its_spellings() {
        let mut keys = Keys::new("ip".parse().unwrap());
        let mut number = |text: &'static str| keys.number(|_| text.as_bytes()).unwrap();
        for spelling in [
            "192.0.2.1",
            "192.0.2.1:4001",
            "::ffff:192.0.2.1",
            "[::ffff:192.0.2.1]:1",
        ] {
            assert_eq!(number(spelling), 0, "{spelling}");
        }
        for spelling in [
            "2001:db8::1",
            "2001:DB8:0::1",
            "[2001:db8::1]",
            "[2001:db8::1]:443",
            "2001:db8::1%3",
            "[2001:db8::1%eth0]:443",
        ] {
            assert_eq!(number(spelling), 1, "{spelling}");
        }
        for (place, name) in [
            "client.example",
            "client.example:80",
            "unix:",
            "-",
            "192.0.2.1:",
            "192.0.2.1:x",
            "[192.0.2.1]",
            "[2001:db8::1]443",
            "192.0.2.1%1",
            "192.0.2.256",
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(number(name) as usize, 2 + place, "{name}");
        }
    }

    #[test]
    fn invalid_keys_are_rejected() {
        for key in [
            "",
            "ips",
            "ip,",
            ",ip",
            "ip/",
            "ip/129",
            "ip/33/64",
            "ip/24/129",
            "ip/+24",
            "ip/x",
            "global,ip",
            "field:",
            "User",
            "ip/1/2/3",
        ] {
            let error = key.parse::<Key>().unwrap_err();
            assert!(error.starts_with("expected "), "{key}: {error}");
        }
    }

    #[test]
    fn keys_of_several_parts_are_equal_only_if_all_parts_are() {
        let mut keys = Keys::new("ip,path".parse().unwrap());
        let mut number = |parts: [&'static str; 2]| keys.number(|place| parts[place].as_bytes());
        assert_eq!(number(["a", "bc"]), Some(0));
        assert_eq!(number(["ab", "c"]), Some(1));
        assert_eq!(number(["abc", ""]), Some(2));
        assert_eq!(number(["a", "bc"]), Some(0));
        let (_, bytes) = keys.iter().find(|&(number, _)| number == 1).unwrap();
        assert_eq!(keys.parts_of(bytes), [b"ab".as_slice(), b"c"]);
    }

    #[test]
    fn all_requests_share_the_global_key() {
        let mut keys = Keys::new("global".parse().unwrap());
        assert_eq!(
            (keys.number(|_| b"x"), keys.number(|_| b"y")),
            (Some(0), Some(0))
        );
    }
}
