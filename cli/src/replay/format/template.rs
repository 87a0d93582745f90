//! Matching of a line against a template: variables, and the text between them.
//!
//! **The end of a variable.** A variable ends where the text that follows it in the format begins:
//! at the first such place that leaves a value of the variable's kind, and from which the rest of
//! the line matches too. So a list of addresses, a name with spaces or a time may contain the byte
//! at which the next text begins. A quoted variable ends at the first quote that is not preceded by
//! a backslash. A time in the common format has a fixed length. The last variable ends with the
//! line, or, if it is not free text, before a space or a tab.
//!
//! **Bound.** The first place is nearly always the right one. A line that needs more than
//! [`MOST_ENDS`] places is malformed, so no line takes more than a fixed number of steps for each
//! of its bytes.
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
    /// A list of addresses, of which the last is that of the client.
    Forwarded,
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
    /// The name of the client's user by RFC 1413, a single word.
    Ident,
    /// A decimal number that no replay needs, such as a port.
    Number,
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
            Role::Address
                | Role::Forwarded
                | Role::Time(_)
                | Role::Request
                | Role::Status
                | Role::Size
        )
    }
}

/// The number of ends of variables that are tried for one line.
const MOST_ENDS: u32 = 250;

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
    /// The path of a request line.
    Path,
    /// The path of a request target, which may contain spaces.
    PathOfTarget,
    Method,
    /// The last element of a list.
    Last,
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
    #[inline]
    pub(crate) fn read(&mut self, line: &[u8], cut: bool) -> Result<Request, Mismatch> {
        match self.read_at_first_ends(line, cut) {
            Some(request) => Ok(request),
            None => self.search(line, cut),
        }
    }

    /// Reads a line in which every variable ends at the first place. Nearly every line is such a
    /// line. Returns `None` for another one.
    fn read_at_first_ends(&mut self, line: &[u8], cut: bool) -> Option<Request> {
        let Layout { before, variables } = &self.layout;
        self.found.clear();
        if !line.starts_with(before) {
            return None;
        }
        let mut request = Request { time: 0, bytes: 0 };
        let mut at = before.len();
        for (number, variable) in variables[..self.wanted].iter().enumerate() {
            let rest = &line[at..];
            let end = match variable.first_end(rest) {
                Some(end) => end,
                None if cut => return None,
                None => rest.len(),
            };
            let goes_on = starts_with(&rest[end..], &variable.until);
            let may_end = end == rest.len() && number + 1 >= self.needed && !cut;
            if !(goes_on || may_end) || !request.take(variable, &rest[..end], &mut self.times) {
                return None;
            }
            self.found.push(at..at + end);
            if !goes_on {
                break;
            }
            at += end + variable.until.len();
        }
        Some(request)
    }

    /// Reads a line, and looks for the right end of each variable.
    #[cold]
    fn search(&mut self, line: &[u8], cut: bool) -> Result<Request, Mismatch> {
        let Layout { before, variables } = &self.layout;
        self.found.clear();
        if !line.starts_with(before) {
            return Err(Mismatch {
                at: 0,
                variable: variables.len(),
            });
        }
        let mut request = Request { time: 0, bytes: 0 };
        let mut first_mismatch = None;
        let mut ends_left = MOST_ENDS;
        // Where the next variable starts, and the first place that may be its end.
        let (mut at, mut from) = (before.len(), 0);
        while let Some(variable) = variables[..self.wanted].get(self.found.len()) {
            let number = self.found.len();
            let rest = &line[at..];
            let is_last = number + 1 >= self.needed;
            let end = Ends::new(variable, rest, from, cut, is_last).find(|&end| {
                ends_left = ends_left.saturating_sub(1);
                ends_left > 0 && request.take(variable, &rest[..end], &mut self.times)
            });
            if let Some(end) = end {
                self.found.push(at..at + end);
                at += end;
                if !starts_with(&line[at..], &variable.until) {
                    // The line has no more variables.
                    break;
                }
                at += variable.until.len();
                from = 0;
                continue;
            }
            if number >= self.needed {
                break;
            }
            let mismatch = *first_mismatch.get_or_insert_with(|| {
                let end = variable.first_end(rest);
                let end = end.filter(|&end| request.take(variable, &rest[..end], &mut self.times));
                let Some(end) = end else {
                    let variable = number;
                    return Mismatch { at, variable };
                };
                let same = rest[end..].iter().zip(&variable.until);
                Mismatch {
                    at: at + end + same.take_while(|(a, b)| a == b).count(),
                    variable: number + 1,
                }
            });
            // A variable before this one may end later.
            let Some(last) = self.found.pop().filter(|_| ends_left > 0) else {
                self.found.clear();
                return Err(mismatch);
            };
            at = last.start;
            from = last.len() + 1;
        }
        Ok(request)
    }

    /// Returns part number `part` of the key of `line`, which must be the last line that was read.
    pub(crate) fn part<'a>(&self, line: &'a [u8], part: usize) -> &'a [u8] {
        let found = self.parts[part]
            .and_then(|(variable, within)| Some((self.found.get(variable)?.clone(), within)));
        match found {
            Some((range, Within::Whole)) => present(&line[range]),
            Some((range, Within::Path)) => present(path(&line[range])),
            Some((range, Within::PathOfTarget)) => present(without_query(&line[range])),
            Some((range, Within::Method)) => present(method(&line[range])),
            Some((range, Within::Last)) => present(last(&line[range])),
            None => ABSENT,
        }
    }

    /// Returns the value of variable number `number` in `line`, which must be the last line that
    /// was read, or `None` if the line lacks it.
    pub(crate) fn value<'a>(&self, line: &'a [u8], number: usize) -> Option<&'a [u8]> {
        self.found.get(number).map(|range| &line[range.clone()])
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
            Field::Address => {
                let of_list = || Some((with(Role::Forwarded)?, Within::Last));
                with(Role::Address).map(whole).or_else(of_list)
            }
            Field::User => with(Role::User).map(whole),
            Field::Path => {
                let of_target = with(Role::Path).map(|place| (place, Within::PathOfTarget));
                of_target.or_else(|| Some((with(Role::Request)?, Within::Path)))
            }
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

impl Request {
    /// Takes what the replay needs from the value of a variable. Returns whether `text` can be a
    /// value of this variable. Inlined, because it is called for each variable of each line.
    #[inline(always)]
    fn take(&mut self, variable: &Variable, text: &[u8], times: &mut Reader) -> bool {
        let is_word = |other| {
            let ends = |&byte: &u8| byte == other || matches!(byte, b' ' | b'\t');
            !text.is_empty() && !text.iter().any(ends)
        };
        match &variable.role {
            Role::Time(form) => match times.read(text, form) {
                Some(time) => self.time = time,
                None => return false,
            },
            Role::Size => match size(text) {
                Some(bytes) => self.bytes = bytes,
                None => return false,
            },
            Role::Status => return text.len() == 3 && digits(text),
            Role::Number => return text == ABSENT || digits(text),
            // A comma separates the addresses of a list. Which of them is the client depends on the
            // proxies.
            Role::Address => return is_word(b','),
            Role::Forwarded => {}
            Role::Ident => return is_word(b' '),
            // A comma before a space is inside a list.
            _ => return !(text.ends_with(b",") && variable.until.starts_with(b" ")),
        }
        true
    }
}

impl Variable {
    /// Returns whether the variable itself tells where it ends.
    fn is_of_fixed_form(&self) -> bool {
        self.role == Role::Time(Form::Clf) || (self.quoted && self.until.first() == Some(&b'"'))
    }

    /// Returns where the variable ends in `rest`, if it has a fixed form or no text follows it.
    /// Otherwise, returns the first place where the text that follows it may begin.
    #[inline(always)]
    fn first_end(&self, rest: &[u8]) -> Option<usize> {
        if self.role == Role::Time(Form::Clf) {
            return (rest.len() >= CLF_LENGTH).then_some(CLF_LENGTH);
        }
        if self.is_of_fixed_form() {
            return closing_quote(rest);
        }
        match self.until.first() {
            Some(&stop) => find(stop, rest),
            None if matches!(self.role, Role::Address | Role::Status | Role::Size) => {
                rest.iter().position(|byte| matches!(byte, b' ' | b'\t'))
            }
            None => None,
        }
    }
}

/// The places where a variable may end, counted from its start.
struct Ends<'a> {
    variable: &'a Variable,
    /// The line from the start of the variable.
    rest: &'a [u8],
    /// The first place to look at, or `None` if no places are left.
    from: Option<usize>,
    /// Whether the line continues after `rest`.
    cut: bool,
    /// Whether the line may end after the variable.
    is_last: bool,
}

impl<'a> Ends<'a> {
    /// Creates an iterator over the places from `from` on.
    fn new(variable: &'a Variable, rest: &'a [u8], from: usize, cut: bool, is_last: bool) -> Self {
        // The other forms have a single end, which was tried before.
        let is_done = from > 0 && (variable.is_of_fixed_form() || variable.until.is_empty());
        Self {
            variable,
            rest,
            from: (!is_done).then_some(from),
            cut,
            is_last,
        }
    }

    /// Returns the only end of a variable of fixed form, or of one that no text follows.
    fn only(&self) -> Option<usize> {
        let Variable { until, .. } = self.variable;
        if self.variable.is_of_fixed_form() {
            let end = self.variable.first_end(self.rest);
            return end.filter(|&end| self.is_last || starts_with(&self.rest[end..], until));
        }
        self.first_end_or_line()
    }

    /// Returns the first end of the variable, or the end of the line, if that is known.
    fn first_end_or_line(&self) -> Option<usize> {
        let end = self.variable.first_end(self.rest);
        end.or_else(|| (!self.cut).then_some(self.rest.len()))
    }
}

impl Iterator for Ends<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let from = self.from?;
        let until = &self.variable.until;
        if self.variable.is_of_fixed_form() || until.is_empty() {
            self.from = None;
            return self.only();
        }
        let end = ends_at(until, self.rest, from);
        self.from = end.map(|end| end + 1);
        // Without the text after it, the last variable that is needed ends where that text would
        // begin.
        end.or_else(|| self.is_last.then(|| self.first_end_or_line())?)
    }
}

/// Returns where `until` begins in `rest`, at `from` or later.
fn ends_at(until: &[u8], rest: &[u8], from: usize) -> Option<usize> {
    let (&stop, after) = until.split_first()?;
    let mut from = from;
    loop {
        let end = from + find(stop, rest.get(from..)?)?;
        if starts_with(&rest[end + 1..], after) {
            return Some(end);
        }
        from = end + 1;
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
        Some(space) if request[0] != b'/' => &request[space + 1..],
        _ => request,
    };
    let end = memchr(b' ', target).filter(|_| target.len() < request.len());
    without_query(&target[..end.unwrap_or(target.len())])
}

/// Returns a request target up to its query.
fn without_query(target: &[u8]) -> &[u8] {
    &target[..memchr(b'?', target).unwrap_or(target.len())]
}

/// Returns the method of a request line, or all of a text without a space.
pub(crate) fn method(request: &[u8]) -> &[u8] {
    &request[..memchr(b' ', request).unwrap_or(request.len())]
}

/// Returns the last element of a list with commas.
fn last(list: &[u8]) -> &[u8] {
    let comma = list.iter().rposition(|&byte| byte == b',');
    list[comma.map_or(0, |comma| comma + 1)..].trim_ascii()
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
