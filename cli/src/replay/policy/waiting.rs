//! The lines that wait to be judged by a policy: what the rules read of each.
//!
//! A line is kept from the moment it is read until it is judged. Its memory is then reused. So
//! memory is bounded by the lines of one horizon, and by the length of what the rules read.

use portcullis_policy::{Fields, Policy, Request};

use crate::replay::key::{ABSENT, Field, Numbering, address, split};

/// The indices of the fields that every policy may read. Headers and properties follow.
const METHOD: usize = 0;
const PATH: usize = 1;
const HOST: usize = 2;
const ADDRESS: usize = 3;
const FIRST_NAME: usize = 4;

/// The fields of a line that the rules of a policy read.
#[derive(Debug)]
pub(crate) struct Wanted {
    headers: Vec<String>,
    properties: Vec<String>,
}

impl Wanted {
    pub(crate) fn new(policy: &Policy) -> Self {
        let owned = |names: Vec<&str>| names.into_iter().map(Into::into).collect();
        Self {
            headers: owned(policy.header_names()),
            properties: owned(policy.property_names()),
        }
    }

    /// Returns the fields of the format, in the order of their indices.
    pub(crate) fn fields(&self) -> Vec<Field> {
        let mut fields = vec![Field::Method, Field::Path, Field::Host, Field::Address];
        let header = |name: &String| match &*name.to_ascii_lowercase() {
            "host" => Field::Host,
            "referer" => Field::Referer,
            "user-agent" => Field::Agent,
            // What a proxy sets to the address of its client, if its log has no other.
            "x-real-ip" => Field::ProxiedAddress,
            _ => Field::Header(name.clone()),
        };
        let property = |name: &String| match &*name.to_ascii_lowercase() {
            "user" => Field::User,
            _ => Field::Named(name.clone()),
        };
        fields.extend(self.headers.iter().map(header));
        fields.extend(self.properties.iter().map(property));
        fields
    }

    /// Returns the name of each field, as a rule spells it.
    fn names(&self) -> impl Iterator<Item = String> {
        let known = ["method", "path", "host", "address"];
        let headers = self.headers.iter().map(|name| format!("header:{name}"));
        let properties = self
            .properties
            .iter()
            .map(|name| format!("property:{name}"));
        known
            .map(String::from)
            .into_iter()
            .chain(headers)
            .chain(properties)
    }
}

/// The lines that wait, each with a number that is reused.
#[derive(Debug)]
pub(crate) struct Waiting {
    wanted: Wanted,
    lines: Vec<Line>,
    /// The numbers of lines that have been judged.
    free: Vec<u32>,
    /// For each field, whether any line had it.
    seen: Vec<bool>,
    /// The number of lines whose address is not an IP address.
    without_address: u64,
}

#[derive(Debug, Default)]
struct Line {
    /// The fields, one after another.
    text: String,
    ends: Vec<usize>,
}

impl Line {
    /// Returns a field, or `None` if the line lacks it.
    fn field(&self, index: usize) -> Option<&str> {
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        let text = &self.text[start..self.ends[index]];
        (text.as_bytes() != ABSENT).then_some(text)
    }
}

/// Fields of a line by their names in the policy.
struct Named<'a> {
    line: &'a Line,
    names: &'a [String],
    first: usize,
}

impl Fields for Named<'_> {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        let mut names = self.names.iter();
        let place = names.position(|known| known.eq_ignore_ascii_case(name))?;
        Some(self.line.field(self.first + place)?.as_bytes())
    }
}

impl Waiting {
    pub(crate) fn new(wanted: Wanted) -> Self {
        let fields = wanted.fields().len();
        Self {
            wanted,
            lines: Vec::new(),
            free: Vec::new(),
            seen: vec![false; fields],
            without_address: 0,
        }
    }

    /// Calls `judge` with the request in a line, and forgets the line.
    pub(crate) fn take(&mut self, number: u32, judge: impl FnOnce(&Request<'_>)) {
        let line = &self.lines[number as usize];
        let Wanted {
            headers,
            properties,
        } = &self.wanted;
        let (in_path, path) = split(line.field(PATH).unwrap_or_default());
        let host = line.field(HOST).unwrap_or(in_path);
        let headers = Named {
            line,
            names: headers,
            first: FIRST_NAME,
        };
        let properties = Named {
            line,
            names: properties,
            first: FIRST_NAME + headers.names.len(),
        };
        let mut request = Request::new(line.field(METHOD).unwrap_or_default(), path)
            .host(host)
            .headers(&headers)
            .properties(&properties);
        match line.field(ADDRESS).and_then(address) {
            Some(address) => request = request.address(address),
            None => self.without_address += 1,
        }
        judge(&request);
        self.free.push(number);
    }

    /// Returns the number of lines judged whose address is missing or not an IP address.
    pub(crate) fn without_address(&self) -> u64 {
        self.without_address
    }

    /// Returns the fields that rules read and that no line had.
    pub(crate) fn never_seen(&self) -> Vec<String> {
        let names = self.wanted.names().zip(&self.seen).skip(FIRST_NAME);
        names
            .filter(|(_, seen)| !**seen)
            .map(|(name, _)| name)
            .collect()
    }
}

impl Numbering for Waiting {
    fn number<'a>(&mut self, part: impl Fn(usize) -> &'a [u8]) -> Option<u32> {
        let number = if let Some(number) = self.free.pop() {
            number
        } else {
            self.lines.push(Line::default());
            u32::try_from(self.lines.len() - 1).ok()?
        };
        let Line { text, ends } = &mut self.lines[number as usize];
        text.clear();
        ends.clear();
        for (index, seen) in self.seen.iter_mut().enumerate() {
            let field = part(index);
            *seen |= field != ABSENT;
            text.push_str(&String::from_utf8_lossy(field));
            ends.push(text.len());
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_judged_line_is_reused() {
        let policy = Policy::new([]).unwrap();
        let mut waiting = Waiting::new(Wanted::new(&policy));
        let line = |number: u8| {
            move |field| {
                if field == 1 {
                    [b"/a", b"/b"][usize::from(number)]
                } else {
                    b"GET".as_slice()
                }
            }
        };
        assert_eq!(waiting.number(line(0)), Some(0));
        assert_eq!(waiting.number(line(1)), Some(1));
        waiting.take(0, |request| {
            assert_eq!((request.method, request.path), ("GET", "/a"));
        });
        assert_eq!(waiting.number(line(1)), Some(0));
        waiting.take(0, |request| assert_eq!(request.path, "/b"));
        assert_eq!((waiting.lines.len(), waiting.without_address()), (2, 2));
    }
}
