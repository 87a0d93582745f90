//! The key of a request in a form that people can read.

use core::fmt;
use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use foldhash::quality::FixedState;

use super::{Key, Part, Text};
use crate::conditions::host_name;
use crate::path::PathRules;
use crate::path::components;
use crate::request::Request;

/// The values of the parts of a [`Key`] in one request: the result of
/// [`Policy::key_values`](crate::Policy::key_values).
///
/// Displays the value of a key of one part, and `name=value` for each part of a longer key, with a
/// space between them. The text is as long as the request makes it, and may contain any character
/// that the request contains.
///
/// # Cost
///
/// Allocates nothing. Normalizes the path each time that it is displayed.
///
/// ```
/// use portcullis_policy::{Key, Policy, Request, Rule};
///
/// let rule = Rule::new("clients").key(Key::address_prefix(24, 64).and(Key::header("X-Tenant")));
/// let policy = Policy::new([rule.limit("10/s".parse()?)]).unwrap();
/// let request = Request::new("GET", "/").address("192.0.2.7".parse().unwrap());
/// let rule = policy.rule("clients").unwrap();
/// let values = policy.key_values(rule, &request);
/// assert_eq!(values.to_string(), "address/24/64=192.0.2.0/24 header:X-Tenant=-");
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
#[derive(Clone, Copy)]
pub struct KeyValues<'k> {
    key: &'k Key,
    request: &'k Request<'k>,
    path_rules: PathRules,
}

impl<'k> KeyValues<'k> {
    pub(crate) fn new(key: &'k Key, request: &'k Request<'k>, path_rules: PathRules) -> Self {
        Self {
            key,
            request,
            path_rules,
        }
    }

    /// Returns the parts in the order of the key. None if all requests share the limits.
    ///
    /// ```
    /// # use portcullis_policy::{Key, Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("a").key(Key::method().and(Key::path()))]).unwrap();
    /// let request = Request::new("GET", "/a//b");
    /// let values = policy.key_values(policy.rule("a").unwrap(), &request);
    /// let texts: Vec<_> = values.iter().map(|part| format!("{}: {part}", part.name())).collect();
    /// assert_eq!(texts, ["method: GET", "path: /a/b"]);
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = KeyValue<'k>> + use<'k> {
        let Self {
            key,
            request,
            path_rules,
        } = *self;
        key.parts.iter().map(move |part| KeyValue {
            part,
            request,
            path_rules,
        })
    }
}

impl fmt::Display for KeyValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_named = self.key.parts.len() > 1;
        for (index, part) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            if is_named {
                write!(f, "{}=", part.name())?;
            }
            part.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for KeyValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self
            .iter()
            .map(|part| (part.name().to_string(), part.to_string()));
        f.debug_map().entries(texts).finish()
    }
}

/// The value of one part of a [`Key`] in one request. Displays the value, or `-` if the request
/// does not have this part.
///
/// An address is displayed with the length of its prefix, unless the whole address counts. What a
/// function writes is displayed as 16 hexadecimal digits: a hash of it, which is the same in each
/// run of the program.
///
/// ```
/// use portcullis_policy::{Key, Policy, Request, Rule};
/// let policy = Policy::new([Rule::new("a").key(Key::address())]).unwrap();
/// let request = Request::new("GET", "/").address("2001:db8::7".parse().unwrap());
/// let values = policy.key_values(policy.rule("a").unwrap(), &request);
/// assert_eq!(values.iter().next().unwrap().to_string(), "2001:db8::/64");
/// ```
#[derive(Clone, Copy)]
pub struct KeyValue<'k> {
    part: &'k Part,
    request: &'k Request<'k>,
    path_rules: PathRules,
}

impl KeyValue<'_> {
    /// Returns the name of the part, as a policy file spells it: `address`, `address/24/56`,
    /// `path`, `host`, `method`, `tier`, `header:NAME`, `header:A|B` or `property:NAME`. That of a
    /// function is `function`.
    ///
    /// ```
    /// # use portcullis_policy::{Key, Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("a").key(Key::property("region"))]).unwrap();
    /// let request = Request::new("GET", "/");
    /// let values = policy.key_values(policy.rule("a").unwrap(), &request);
    /// assert_eq!(values.iter().next().unwrap().name().to_string(), "property:region");
    /// ```
    pub fn name(&self) -> impl fmt::Display {
        Name(self.part)
    }
}

struct Name<'k>(&'k Part);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Part::Address { v4: 32, v6: 64 } => f.write_str("address"),
            Part::Address { v4, v6 } => write!(f, "address/{v4}/{v6}"),
            Part::Path => f.write_str("path"),
            Part::Host => f.write_str("host"),
            Part::Text(Text::Method) => f.write_str("method"),
            Part::Text(Text::Tier) => f.write_str("tier"),
            Part::Text(Text::Header(name)) => write!(f, "header:{name}"),
            Part::Text(Text::FirstHeader(names)) => write!(f, "header:{}", names.join("|")),
            Part::Text(Text::Property(name)) => write!(f, "property:{name}"),
            Part::Function(_) => f.write_str("function"),
        }
    }
}

const MISSING: &str = "-";

impl fmt::Display for KeyValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Address { v4, v6 } => match self.request.address.map(|a| a.to_canonical()) {
                Some(IpAddr::V4(address)) => {
                    let mask = u32::MAX.checked_shl(32 - u32::from(*v4)).unwrap_or(0);
                    Ipv4Addr::from_bits(address.to_bits() & mask).fmt(f)?;
                    prefix(*v4, 32, f)
                }
                Some(IpAddr::V6(address)) => {
                    let mask = u128::MAX.checked_shl(128 - u32::from(*v6)).unwrap_or(0);
                    Ipv6Addr::from_bits(address.to_bits() & mask).fmt(f)?;
                    prefix(*v6, 128, f)
                }
                None => f.write_str(MISSING),
            },
            Part::Path => {
                let written = self.path_rules.with(self.request.path, |path| {
                    let mut all = components(path).peekable();
                    if all.peek().is_none() {
                        f.write_str("/")?;
                    }
                    all.try_for_each(|component| {
                        f.write_str("/")?;
                        lossy(component, f)
                    })
                });
                written.unwrap_or_else(|_| f.write_str(MISSING))
            }
            Part::Host => match host_name(self.request.host) {
                "" => f.write_str(MISSING),
                host => host
                    .chars()
                    .try_for_each(|c| fmt::Write::write_char(f, c.to_ascii_lowercase())),
            },
            Part::Text(text) => match text.key_of(self.request) {
                Some(text) => lossy(text, f),
                None => f.write_str(MISSING),
            },
            Part::Function(function) => {
                let mut hasher = FixedState::default().build_hasher();
                if function(self.request, &mut hasher) {
                    write!(f, "{:016x}", hasher.finish())
                } else {
                    f.write_str(MISSING)
                }
            }
        }
    }
}

impl fmt::Debug for KeyValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={self}", self.name())
    }
}

fn prefix(length: u8, whole: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if length < whole {
        write!(f, "/{length}")?;
    }
    Ok(())
}

/// Writes bytes as text, with a replacement character for each invalid part.
fn lossy(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.utf8_chunks().try_for_each(|chunk| {
        f.write_str(chunk.valid())?;
        if !chunk.invalid().is_empty() {
            fmt::Write::write_char(f, char::REPLACEMENT_CHARACTER)?;
        }
        Ok(())
    })
}
