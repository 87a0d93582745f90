//! Matching of a line against a template: variables, and the text between them.
//!
//! **The end of a variable.** A variable ends at the first byte of the text that follows it, and
//! that text must then match in full. A quoted variable ends at the first quote that is not
//! preceded by a backslash. A time in the common format has a fixed length. The last variable ends
//! with the line, or, if it is not free text, before a space.
//!
//! **Required variables.** A line must match up to the last variable that the replay needs. The
//! rest is read only for parts of the key: a line that does not match there lacks those parts.
//! Lines are bytes, not text, because a request may contain any byte.

use core::ops::Range;

use memchr::{memchr, memchr2};

use crate::replay::key::{ABSENT, Field};
use crate::replay::time::{CLF_LENGTH, Form, Reader};

/// The role of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Address,
    User,
    Time(Form),
    /// The request line: method, path and protocol.
    Request,
    Method,
    Path,
    Host,
    Referer,
    Agent,
    Status,
    /// The size of the reply in bytes.
    Size,
    Other,
}

/// A variable of a template.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) role: Role,
    /// The name in the format.
    pub(crate) name: String,
    /// The text between this variable and the next.
    pub(crate) until: Vec<u8>,
    /// Whether the variable is in quotes.
    quoted: bool,
}

impl Variable {
    /// Creates a variable that follows the text `before`, with no text after it yet.
    pub(crate) fn new(role: Role, name: &str, before: &[u8]) -> Self {
        Self {
            role,
            name: name.into(),
            until: Vec::new(),
            quoted: before.last() == Some(&b'"'),
        }
    }

    /// Returns whether a line must have this variable for any key.
    fn is_needed(&self) -> bool {
        matches!(
            self.role,
            Role::Address | Role::Time(_) | Role::Request | Role::Status | Role::Size
        )
    }
}

/// A format of lines, as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The text before the first variable.
    pub(crate) before: Vec<u8>,
    pub(crate) variables: Vec<Variable>,
}

/// A layout, together with the variables that a replay needs.
#[derive(Debug)]
pub(crate) struct Template {
    layout: Layout,
    /// The number of variables that a line must have, and the number of variables to look for.
    needed: usize,
    wanted: usize,
    /// The variable of each part of the key, and what of that variable the part is.
    parts: Vec<Option<(usize, Within)>>,
    /// The ranges of the variables in the last line, up to the first that is missing.
    found: Vec<Range<usize>>,
    times: Reader,
}

/// What of a variable a part of the key is.
#[derive(Clone, Copy, Debug)]
enum Within {
    Whole,
    Path,
    Method,
}

/// The contents of a line that a replay needs, besides the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Milliseconds since the Unix epoch.
    pub(crate) time: u64,
    /// The size of the reply; 0 for `-`, or if the format has no size.
    pub(crate) bytes: u64,
}

/// The place where a line does not match the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// The number of bytes that match.
    pub(crate) at: usize,
    /// The index of the variable that was not found. The number of variables means the text before
    /// the first.
    pub(crate) variable: usize,
}

impl Template {
    /// Creates a template that looks for `fields` in lines of `layout`. Fields that the layout does
    /// not have are absent from all lines. If `optional` is set, fields after the last variable
    /// that every key needs may be absent from a line.
    pub(crate) fn new(layout: Layout, fields: &[Field], optional: bool) -> Self {
        let parts: Vec<_> = fields.iter().map(|field| layout.find(field)).collect();
        let variables = &layout.variables;
        let always = variables.iter().rposition(Variable::is_needed);
        let always = always.map_or(0, |last| last + 1);
        let of_key = parts.iter().flatten().map(|&(place, _)| place + 1).max();
        let wanted = always.max(of_key.unwrap_or(0));
        Self {
            needed: if optional { always } else { wanted },
            wanted,
            parts,
            found: Vec::with_capacity(variables.len()),
            times: Reader::default(),
            layout,
        }
    }

    /// Returns whether lines have part number `part` of the key.
    pub(crate) fn has(&self, part: usize) -> bool {
        self.parts[part].is_some()
    }

    /// Reads a line without its end. `cut` means that the line continues after `line`.
    ///
    /// # Errors
    ///
    /// [`Mismatch`] if the line is malformed.
    pub(crate) fn read(&mut self, line: &[u8], cut: bool) -> Result<Request, Mismatch> {
        let Layout { before, variables } = &self.layout;
        self.found.clear();
        let (mut time, mut bytes) = (0, 0);
        if !line.starts_with(before) {
            return Err(Mismatch {
                at: 0,
                variable: variables.len(),
            });
        }
        let mut at = before.len();
        for (number, variable) in variables[..self.wanted].iter().enumerate() {
            let rest = &line[at..];
            let is_last = number + 1 >= self.needed;
            let read = end(variable, rest, cut, is_last).and_then(|end| {
                let text = &rest[..end];
                match &variable.role {
                    Role::Time(form) => time = self.times.read(text, form)?,
                    Role::Size => bytes = size(text)?,
                    Role::Status if text.len() != 3 || !digits(text) => return None,
                    Role::Address if text.is_empty() => return None,
                    _ => {}
                }
                Some(end)
            });
            let Some(end) = read else {
                if number >= self.needed {
                    break;
                }
                let variable = number;
                return Err(Mismatch { at, variable });
            };
            self.found.push(at..at + end);
            at += end;
            if starts_with(&line[at..], &variable.until) {
                at += variable.until.len();
            } else if number + 1 < self.needed {
                let same = line[at..].iter().zip(&variable.until);
                let at = at + same.take_while(|(a, b)| a == b).count();
                let variable = number + 1;
                return Err(Mismatch { at, variable });
            } else {
                break;
            }
        }
        Ok(Request { time, bytes })
    }

    /// Returns part number `part` of the key of `line`, which must be the last line that was read.
    pub(crate) fn part<'a>(&self, line: &'a [u8], part: usize) -> &'a [u8] {
        let found = self.parts[part]
            .and_then(|(variable, within)| Some((self.found.get(variable)?.clone(), within)));
        match found {
            Some((range, Within::Whole)) => present(&line[range]),
            Some((range, Within::Path)) => present(path(&line[range])),
            Some((range, Within::Method)) => present(method(&line[range])),
            None => ABSENT,
        }
    }

    /// Returns the layout.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl Layout {
    /// Returns the variable that contains `field`, and what of it `field` is.
    fn find(&self, field: &Field) -> Option<(usize, Within)> {
        let with = |role: Role| {
            let mut variables = self.variables.iter();
            variables.position(|variable| variable.role == role)
        };
        let named = |is_name: &dyn Fn(&str) -> bool| {
            let mut variables = self.variables.iter();
            variables.position(|variable| is_name(&variable.name))
        };
        let whole = |place| (place, Within::Whole);
        match field {
            Field::Address => with(Role::Address).map(whole),
            Field::User => with(Role::User).map(whole),
            Field::Path => with(Role::Path)
                .or(with(Role::Request))
                .map(|place| (place, Within::Path)),
            Field::Method => with(Role::Method)
                .or(with(Role::Request))
                .map(|place| (place, Within::Method)),
            Field::Host => with(Role::Host).map(whole),
            Field::Referer => with(Role::Referer).map(whole),
            Field::Agent => with(Role::Agent).map(whole),
            Field::ProxiedAddress => self
                .find(&Field::Header("X-Real-IP".into()))
                .or_else(|| self.find(&Field::Address)),
            Field::Header(name) => {
                let nginx = in_nginx(name);
                let is_name = |text: &str| {
                    text.eq_ignore_ascii_case(name) || text.eq_ignore_ascii_case(&nginx)
                };
                named(&is_name).map(whole)
            }
            Field::Named(name) => named(&|text| text.eq_ignore_ascii_case(name)).map(whole),
        }
    }
}

/// Returns where `variable`, which starts at the start of `rest`, ends. After the last variable
/// that is needed, the line may end. Returns `None` if the variable does not end, or is cut off.
fn end(variable: &Variable, rest: &[u8], cut: bool, is_last: bool) -> Option<usize> {
    if variable.role == Role::Time(Form::Clf) {
        return (rest.len() >= CLF_LENGTH).then_some(CLF_LENGTH);
    }
    if variable.quoted && variable.until.first() == Some(&b'"') {
        return closing_quote(rest);
    }
    let found = match variable.until.first() {
        Some(&stop) => find(stop, rest),
        None if matches!(variable.role, Role::Address | Role::Status | Role::Size) => {
            find(b' ', rest)
        }
        None => None,
    };
    match found {
        Some(end) => Some(end),
        None if cut || !(is_last || variable.until.is_empty()) => None,
        None => Some(rest.len()),
    }
}

/// Finds `stop`. Most variables are short: a loop is faster than a call of `memchr`.
fn find(stop: u8, text: &[u8]) -> Option<usize> {
    const NEAR: usize = 16;
    let (near, far) = text.split_at(text.len().min(NEAR));
    let found = near.iter().position(|&b| b == stop);
    found.or_else(|| Some(NEAR + memchr(stop, far)?))
}

/// Returns whether `text` starts with `short`. A loop is faster than a call for short texts.
fn starts_with(text: &[u8], short: &[u8]) -> bool {
    text.len() >= short.len() && text.iter().zip(short).all(|(a, b)| a == b)
}

/// Finds the closing quote. A quote after a backslash does not close.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let special = at + memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[special] == b'"' {
            return Some(special);
        }
        at = special + 2;
    }
}

/// Returns the path of a request line or of a request target, without the query.
pub(crate) fn path(request: &[u8]) -> &[u8] {
    let target = match memchr(b' ', request) {
        Some(space) => &request[space + 1..],
        None => request,
    };
    let end = target.iter().position(|&b| b == b' ' || b == b'?');
    &target[..end.unwrap_or(target.len())]
}

/// Returns the method of a request line, or all of a text without a space.
pub(crate) fn method(request: &[u8]) -> &[u8] {
    &request[..memchr(b' ', request).unwrap_or(request.len())]
}

/// Returns the name of nginx's variable for a header field.
pub(super) fn in_nginx(header: &str) -> String {
    format!("http_{}", header.to_ascii_lowercase().replace('-', "_"))
}

/// Returns `text`, or [`ABSENT`] if it is empty.
pub(crate) fn present(text: &[u8]) -> &[u8] {
    if text.is_empty() { ABSENT } else { text }
}

/// Parses a size.
pub(crate) fn size(text: &[u8]) -> Option<u64> {
    if text == b"-" {
        return Some(0);
    }
    if !digits(text) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    text.iter().try_fold(0, add)
}

fn digits(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}
