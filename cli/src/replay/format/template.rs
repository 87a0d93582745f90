//! A line of text against a template: variables, and the text between them.
//!
//! **Where a variable ends.** At the first byte of the text that follows it; that text must then
//! stand there in full. In quotes it ends at the first quote that no backslash precedes. A time in
//! the common format has a fixed length. The last variable ends with the line; if it is not a free
//! text, then also before a space.
//!
//! **What is needed.** Everything up to the last variable that the replay cannot do without. What
//! follows is not looked at, unless the key has a part there: a line that is different from there
//! on lacks that part. Bytes, not text: a request may hold anything.

use core::ops::Range;

use memchr::{memchr, memchr2};

use crate::replay::key::{ABSENT, Field};
use crate::replay::time::{CLF_LENGTH, Form, Reader};

/// What a variable is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Address,
    User,
    Time(Form),
    /// The request line: method, path and protocol.
    Request,
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
    /// What the format calls it.
    pub(crate) name: String,
    /// The text between it and the next.
    pub(crate) until: Vec<u8>,
    /// Whether it stands in quotes.
    quoted: bool,
}

impl Variable {
    /// A variable with nothing behind it yet, after `before`.
    pub(crate) fn new(role: Role, name: &str, before: &[u8]) -> Self {
        Self {
            role,
            name: name.into(),
            until: Vec::new(),
            quoted: before.last() == Some(&b'"'),
        }
    }

    /// Whether a line must have it, whatever the key.
    fn is_needed(&self) -> bool {
        matches!(
            self.role,
            Role::Address | Role::Time(_) | Role::Request | Role::Status | Role::Size
        )
    }
}

/// A format of lines, as it is written.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The text before the first variable.
    pub(crate) before: Vec<u8>,
    pub(crate) variables: Vec<Variable>,
}

/// A layout together with what a replay wants to know.
#[derive(Debug)]
pub(crate) struct Template {
    layout: Layout,
    /// How many variables a line must have, and how many are looked for.
    needed: usize,
    wanted: usize,
    /// The variable of each part of the key, and whether the part is the path in it.
    parts: Vec<Option<(usize, bool)>>,
    /// Where the variables of the last line are, as far as it has them.
    found: Vec<Range<usize>>,
    times: Reader,
}

/// What a replay needs to know of a line besides its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Milliseconds since the Unix epoch.
    pub(crate) time: u64,
    /// The size of the reply; 0 for `-`, and if the format has none.
    pub(crate) bytes: u64,
}

/// Where a line is not what the template says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// How many bytes of the line are as they should be.
    pub(crate) at: usize,
    /// The number of the variable that is not there; the number of variables for the text before
    /// the first.
    pub(crate) variable: usize,
}

impl Template {
    /// Looks for what `fields` name in lines of `layout`. Those that the layout does not have are
    /// absent from all lines; if `optional`, then also those that stand behind what is needed for
    /// any key may be absent from a line.
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

    /// Whether lines have part number `part` of the key.
    pub(crate) fn has(&self, part: usize) -> bool {
        self.parts[part].is_some()
    }

    /// Reads a line without its end. `cut` says that the line goes on.
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

    /// Part number `part` of the key of `line`, which is the last that was read.
    pub(crate) fn part<'a>(&self, line: &'a [u8], part: usize) -> &'a [u8] {
        let found = self.parts[part]
            .and_then(|(variable, path)| Some((self.found.get(variable)?.clone(), path)));
        match found {
            Some((range, false)) => present(&line[range]),
            Some((range, true)) => present(path(&line[range])),
            None => ABSENT,
        }
    }

    /// The layout, as people write it.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl Layout {
    /// The variable that `field` is in, and whether it is the path of that.
    fn find(&self, field: &Field) -> Option<(usize, bool)> {
        let with = |role: Role| {
            let mut variables = self.variables.iter();
            variables.position(|variable| variable.role == role)
        };
        let whole = |place| (place, false);
        match field {
            Field::Address => with(Role::Address).map(whole),
            Field::User => with(Role::User).map(whole),
            Field::Path => with(Role::Path)
                .or(with(Role::Request))
                .map(|place| (place, true)),
            Field::Host => with(Role::Host).map(whole),
            Field::Referer => with(Role::Referer).map(whole),
            Field::Agent => with(Role::Agent).map(whole),
            Field::Named(name) => {
                let mut variables = self.variables.iter();
                let place = variables.position(|var| var.name.eq_ignore_ascii_case(name));
                place.map(whole)
            }
        }
    }
}

/// Where `variable` ends that begins at the beginning of `rest`. After the last one that is needed,
/// the line may end. `None` if the variable does not end, or is cut off.
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

/// Where `stop` is. Most variables are short, and a call would take longer than to look.
fn find(stop: u8, text: &[u8]) -> Option<usize> {
    const NEAR: usize = 16;
    let (near, far) = text.split_at(text.len().min(NEAR));
    let found = near.iter().position(|&b| b == stop);
    found.or_else(|| Some(NEAR + memchr(stop, far)?))
}

/// Whether `text` starts with `short`, for which a call would take longer than to look.
fn starts_with(text: &[u8], short: &[u8]) -> bool {
    text.len() >= short.len() && text.iter().zip(short).all(|(a, b)| a == b)
}

/// Where the quote is that closes. One after a backslash does not.
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

/// The path of a request line, or of the target of one, without the query.
pub(crate) fn path(request: &[u8]) -> &[u8] {
    let target = match memchr(b' ', request) {
        Some(space) => &request[space + 1..],
        None => request,
    };
    let end = target.iter().position(|&b| b == b' ' || b == b'?');
    &target[..end.unwrap_or(target.len())]
}

/// `text`, or what stands for it if it is empty.
pub(crate) fn present(text: &[u8]) -> &[u8] {
    if text.is_empty() { ABSENT } else { text }
}

/// A size as logs write it.
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
