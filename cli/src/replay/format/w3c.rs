//! Reading of lines whose columns a line `#Fields` before them names: the extended log format of
//! the W3C, as IIS and `CloudFront` write it.
//!
//! **State.** The columns of each line `#Fields` that was read, and which of them are in force. A
//! reader of several logs selects those of the log of the next line. Values are separated by tabs
//! if the line has one, otherwise by spaces. Times are in UTC.

use core::ops::Range;

use super::template::{Request, path, present, size};
use crate::replay::key::{ABSENT, Field};
use crate::replay::time::{Form, Reader};

/// The lines that are no requests.
const DIRECTIVES: [&[u8]; 7] = [
    b"#Fields:",
    b"#Version:",
    b"#Software:",
    b"#Date:",
    b"#Start-Date:",
    b"#End-Date:",
    b"#Remark:",
];

/// Reads lines in columns.
#[derive(Debug)]
pub(super) struct W3c {
    fields: Vec<Field>,
    needs_size: bool,
    needs_address: bool,
    layouts: Vec<Columns>,
    /// The index of the columns in force.
    selected: Option<usize>,
    /// The values of the last line.
    found: Vec<Range<usize>>,
    /// Date and time of the last line.
    moment: Vec<u8>,
    times: Reader,
}

/// The places of what a replay needs.
#[derive(Debug, PartialEq, Eq)]
struct Columns {
    names: Vec<String>,
    date: Option<usize>,
    time: Option<usize>,
    size: Option<usize>,
    parts: Vec<Option<usize>>,
}

impl W3c {
    /// Creates a reader that looks for `fields`, and for the size if `needs_size` is set.
    pub(super) fn new(fields: &[Field], needs_size: bool, needs_address: bool) -> Self {
        Self {
            fields: fields.to_vec(),
            needs_size,
            needs_address,
            layouts: Vec::new(),
            selected: None,
            found: Vec::new(),
            moment: Vec::new(),
            times: Reader::default(),
        }
    }

    /// Returns whether `line` is a directive. Puts the columns of `#Fields` in force.
    pub(super) fn directive(&mut self, line: &[u8]) -> bool {
        if let Some(names) = line.strip_prefix(DIRECTIVES[0]) {
            let names = String::from_utf8_lossy(names);
            let names: Vec<String> = names.split_whitespace().map(Into::into).collect();
            let known = self.layouts.iter();
            let known = known.enumerate().find(|(_, known)| known.names == names);
            self.selected = Some(if let Some((index, _)) = known {
                index
            } else {
                self.layouts.push(Columns::new(names, &self.fields));
                self.layouts.len() - 1
            });
            return true;
        }
        DIRECTIVES.iter().any(|name| line.starts_with(name))
    }

    /// Returns the index of the columns in force.
    pub(super) fn selected(&self) -> Option<usize> {
        self.selected
    }

    /// Puts columns in force that were in force before.
    pub(super) fn select(&mut self, columns: Option<usize>) {
        self.selected = columns;
    }

    fn columns(&self) -> Option<&Columns> {
        self.layouts.get(self.selected?)
    }

    /// Reads a line. Returns `None` if it has not as many values as there are columns, or lacks the
    /// time, or an address or a size that is needed.
    pub(super) fn read(&mut self, line: &[u8], cut: bool) -> Option<Request> {
        let columns = self.layouts.get(self.selected?)?;
        self.found.clear();
        let separator = if line.contains(&b'\t') { b'\t' } else { b' ' };
        let mut start = 0;
        for value in line.split(|&byte| byte == separator) {
            self.found.push(start..start + value.len());
            start += value.len() + 1;
        }
        if self.found.len() != columns.names.len() || cut {
            return None;
        }
        let value = |column: Option<usize>| Some(&line[self.found.get(column?)?.clone()]);
        self.moment.clear();
        self.moment.extend_from_slice(value(columns.date)?);
        self.moment.push(b'T');
        self.moment.extend_from_slice(value(columns.time)?);
        let time = self.times.read(&self.moment, &Form::Iso)?;
        let bytes = if self.needs_size {
            size(value(columns.size)?)?
        } else {
            0
        };
        for (field, column) in self.fields.iter().zip(&columns.parts) {
            if self.needs_address && *field == Field::Address && value(*column)?.is_empty() {
                return None;
            }
        }
        Some(Request { time, bytes })
    }

    /// Returns part number `part` of the key of `line`, which must be the last line that was read.
    pub(super) fn part<'a>(&self, line: &'a [u8], part: usize) -> &'a [u8] {
        let columns = self.columns();
        let column = columns.and_then(|columns| columns.parts.get(part).copied()?);
        let range = column.and_then(|column| self.found.get(column));
        let Some(value) = range.and_then(|range| line.get(range.clone())) else {
            return ABSENT;
        };
        match self.fields[part] {
            Field::Path => present(path(value)),
            _ => present(value),
        }
    }

    /// Describes the expected form of a line.
    pub(super) fn expected(&self) -> String {
        match self.columns() {
            Some(columns) => format!("the columns {}", columns.names.join(" ")),
            None => "a line #Fields that names the columns date, time, c-ip, ...".into(),
        }
    }

    /// Returns whether any columns are known.
    pub(super) fn has_columns(&self) -> bool {
        self.selected.is_some()
    }
}

impl Columns {
    fn new(names: Vec<String>, fields: &[Field]) -> Self {
        let column = |wanted: &str| {
            let mut names = names.iter();
            names.position(|name| name.eq_ignore_ascii_case(wanted))
        };
        let first = |wanted: &[&str]| wanted.iter().find_map(|name| column(name));
        let header = |name: &str| first(&[&format!("cs({name})"), name]);
        let part = |field: &Field| match field {
            Field::Address => first(&["c-ip"]),
            Field::ProxiedAddress => header("X-Real-IP").or(first(&["c-ip"])),
            Field::User => first(&["cs-username"]),
            Field::Method => first(&["cs-method"]),
            Field::Path => first(&["cs-uri-stem", "cs-uri"]),
            // What the client asked CloudFront for.
            Field::Host => first(&["x-host-header", "cs-host", "cs(Host)"]),
            Field::Referer => header("Referer"),
            Field::Agent => header("User-Agent"),
            Field::Header(name) | Field::Named(name) => header(name),
        };
        Self {
            date: column("date"),
            time: column("time"),
            size: column("sc-bytes"),
            parts: fields.iter().map(part).collect(),
            names,
        }
    }
}
