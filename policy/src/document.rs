//! A file as one tree of values, whatever its format, and errors that point into it.
//!
//! TOML and JSON with comments become the same [`Value`]s. Each value, and each name in a table,
//! has the [`Span`] of its bytes in the text. The reader of a format walks the tree with the
//! methods of [`Reader`]. They check types, look for unknown names, and note each error with its
//! span. No error ends the walk, so all errors of a file are reported at once.
//!
//! A reader also notes where each setting of a rule is in the text. So an error that a [`Policy`]
//! finds later points to its setting too.
//!
//! - **A name that is set twice** in one table is an error. The first value counts.
//! - **Depth.** Values are nested at most [`MAX_DEPTH`] deep, so no file exhausts the stack.
//! - **Cost.** Time and memory grow with the length of the text, times the logarithm of it.

#[cfg(feature = "json")]
mod json;
#[cfg(feature = "toml")]
mod toml;

use core::fmt;
use core::ops::Range;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::judge::{Doubt, judge};
use crate::nearest::nearest;
#[cfg(feature = "json")]
use crate::path::PathRules;
use crate::policy::Policy;
#[cfg(feature = "json")]
use crate::policy::plan::{check, fit};
use crate::problem::{FileError, OfFile};
use crate::rule::{Rule, RuleError};
#[cfg(feature = "json")]
use crate::settings::DEFAULT_TABLE_BYTES;
use crate::settings::PolicySettings;

/// The deepest nesting of arrays and tables in a file.
pub(crate) const MAX_DEPTH: usize = 64;

/// The longest piece of a file that a message repeats, in characters.
const MAX_SHOWN: usize = 60;

/// The bytes of a piece of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
}

/// A text and its span: a name in a table, or a string.
#[derive(Clone, Debug)]
pub(crate) struct Text<'t> {
    pub(crate) text: Cow<'t, str>,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) struct Value<'t> {
    pub(crate) node: Node<'t>,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum Node<'t> {
    Null,
    Boolean(bool),
    /// `None` if the number does not fit.
    Integer(Option<i128>),
    Float,
    Text(Cow<'t, str>),
    #[cfg(feature = "toml")]
    Date,
    Array(Vec<Value<'t>>),
    Table(Table<'t>),
}

impl<'t> Value<'t> {
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_array(&self) -> Option<&[Value<'t>]> {
        match &self.node {
            Node::Array(values) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn as_table(&self) -> Option<&Table<'t>> {
        match &self.node {
            Node::Table(table) => Some(table),
            _ => None,
        }
    }
}

/// How names are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Exact,
    /// Without regard to ASCII case, as .NET reads the names in its files.
    #[cfg(feature = "json")]
    AnyCase,
}

impl Names {
    fn are_equal(self, a: &str, b: &str) -> bool {
        match self {
            Self::Exact => a == b,
            #[cfg(feature = "json")]
            Self::AnyCase => a.eq_ignore_ascii_case(b),
        }
    }
}

/// Values by name, in the order of the text.
#[derive(Debug)]
pub(crate) struct Table<'t> {
    entries: Vec<(Text<'t>, Value<'t>)>,
    names: Names,
}

impl<'t> Table<'t> {
    pub(crate) fn get(&self, name: &str) -> Option<&Value<'t>> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|(known, _)| self.names.are_equal(&known.text, name));
        entry.map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Text<'t>, &Value<'t>)> {
        self.entries.iter().map(|(name, value)| (name, value))
    }
}

/// What a format calls a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) a_table: &'static str,
    pub(crate) tables: &'static str,
}

/// Returns the words of a list of names.
pub(crate) fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split_ascii_whitespace()
}

/// Reads the values of one file, and notes its errors.
pub(crate) struct Reader<'t> {
    text: &'t str,
    /// Where each file begins in the text, and its name. Empty if there is one file without a name.
    files: Vec<(usize, Arc<str>)>,
    pub(crate) words: Words,
    errors: Vec<(Span, String)>,
    places: HashMap<Place, Span>,
    rules: HashMap<Box<str>, RuleNumber>,
}

/// Stands for the name of a rule, which may be long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RuleNumber(usize);

/// A setting of a rule, or one of its values.
#[derive(PartialEq, Eq, Hash)]
struct Place {
    rule: RuleNumber,
    setting: String,
    value: Option<String>,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str, words: Words) -> Self {
        Self {
            text,
            files: Vec::new(),
            words,
            errors: Vec::new(),
            places: HashMap::new(),
            rules: HashMap::new(),
        }
    }

    /// The piece of the text.
    #[cfg(feature = "json")]
    pub(crate) fn source(&self, span: Span) -> &'t str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    /// Notes an error.
    pub(crate) fn refuse(&mut self, span: Span, message: impl Into<String>) {
        self.errors.push((span, message.into()));
    }

    /// Notes that a value has another type.
    pub(crate) fn expected(&mut self, value: &Value<'_>, setting: &str, expected: &str) {
        let is = match value.node {
            Node::Null => "null",
            Node::Boolean(_) => "a boolean",
            Node::Integer(_) => "an integer",
            Node::Float => "a float",
            Node::Text(_) => "a string",
            #[cfg(feature = "toml")]
            Node::Date => "a date",
            Node::Array(_) => "an array",
            Node::Table(_) => self.words.a_table,
        };
        let message = format!("{setting}: expected {expected}, not {is}");
        self.refuse(value.span, message);
    }

    /// Notes that a value is not valid. The message has the setting, the value and the problem.
    pub(crate) fn invalid(&mut self, value: &Value<'_>, setting: &str, problem: impl fmt::Display) {
        let source = self.text.get(value.span.start..value.span.end);
        let source = value.as_text().or(source).unwrap_or_default();
        let message = format!("{setting}: `{}` {problem}", shown(source));
        self.refuse(value.span, message);
    }

    /// Notes the names of a table that are not among the words of `known`.
    pub(crate) fn known(&mut self, table: &Table<'_>, of: &str, known: &str) {
        self.known_or(table, of, known, |_| None);
    }

    /// As [`known`](Self::known). `elsewhere` returns what to do about a name that belongs in
    /// another place.
    pub(crate) fn known_or(
        &mut self,
        table: &Table<'_>,
        of: &str,
        known: &str,
        elsewhere: impl Fn(&str) -> Option<&'static str>,
    ) {
        for (name, _) in table.iter() {
            let is_known = |known: &str| table.names.are_equal(known, &name.text);
            if !words(known).any(is_known) {
                let all = || words(known).collect::<Vec<_>>().join(", ");
                let hint = match (elsewhere(&name.text), nearest(&name.text, words(known))) {
                    (Some(hint), _) => hint.into(),
                    (None, Some(nearest)) => format!("did you mean {nearest}?"),
                    (None, None) => format!("expected one of {}", all()),
                };
                let name_shown = shown(&name.text);
                let message = format!("{name_shown} is not a setting of {of}: {hint}");
                self.refuse(name.span, message);
            }
        }
    }

    /// How many errors were noted so far.
    pub(crate) fn noted(&self) -> usize {
        self.errors.len()
    }

    /// The settings of a table that have errors which were noted `since`: their values could not be
    /// read, or their names are misspelt. Such a setting counts as present, so that one mistake is
    /// one error.
    pub(crate) fn unread<'k>(
        &self,
        table: &Table<'_>,
        known: &'k str,
        since: usize,
    ) -> Vec<&'k str> {
        let errors = &self.errors[since..];
        let has_error = |outer: Span| {
            let is_within = |inner: &Span| outer.start <= inner.start && inner.end <= outer.end;
            errors.iter().any(|(span, _)| is_within(span))
        };
        let unread = |(name, value): (&Text<'_>, &Value<'_>)| {
            let of_name = words(known).find(|known| table.names.are_equal(known, &name.text));
            match of_name {
                Some(setting) => has_error(value.span).then_some(setting),
                None => nearest(&name.text, words(known)),
            }
        };
        if errors.is_empty() {
            return Vec::new();
        }
        table.iter().filter_map(unread).collect()
    }

    pub(crate) fn table<'v>(
        &mut self,
        value: &'v Value<'t>,
        setting: &str,
    ) -> Option<&'v Table<'t>> {
        let table = value.as_table();
        if table.is_none() {
            self.expected(value, setting, self.words.a_table);
        }
        table
    }

    /// The values of an array. Without one, `expected` says what it should contain.
    pub(crate) fn array<'v>(
        &mut self,
        value: &'v Value<'t>,
        setting: &str,
        expected: &str,
    ) -> &'v [Value<'t>] {
        value.as_array().unwrap_or_else(|| {
            self.expected(value, setting, expected);
            &[]
        })
    }

    pub(crate) fn boolean(&mut self, value: &Value<'_>, setting: &str) -> Option<bool> {
        if let Node::Boolean(boolean) = value.node {
            return Some(boolean);
        }
        self.expected(value, setting, "true or false");
        None
    }

    /// A string.
    pub(crate) fn text<'v>(&mut self, value: &'v Value<'_>, setting: &str) -> Option<&'v str> {
        let text = value.as_text();
        if text.is_none() {
            self.expected(value, setting, "a string");
        }
        text
    }

    /// A whole number from 0 to `max`.
    pub(crate) fn number(&mut self, value: &Value<'_>, setting: &str, max: u64) -> Option<u64> {
        let Node::Integer(integer) = value.node else {
            self.expected(value, setting, "a whole number");
            return None;
        };
        let number = integer.and_then(|integer| u64::try_from(integer).ok());
        let number = number.filter(|&number| number <= max);
        if number.is_none() {
            self.invalid(value, setting, format_args!("is not from 0 to {max}"));
        }
        number
    }

    /// One of several names, and what it means.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        value: &Value<'_>,
        setting: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let text = self.text(value, setting)?;
        let chosen = choices.iter().find(|(name, _)| *name == text);
        if chosen.is_none() {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            let problem = match nearest(text, names.iter().copied()) {
                Some(nearest) => format!("is not known: did you mean `{nearest}`?"),
                None => format!("is not known: expected one of {}", names.join(", ")),
            };
            self.invalid(value, setting, problem);
        }
        chosen.map(|(_, choice)| *choice)
    }

    /// The strings of an array.
    pub(crate) fn texts<'v>(
        &mut self,
        value: &'v Value<'t>,
        setting: &str,
    ) -> Vec<(&'v str, Span)> {
        let values = self.array(value, setting, "an array of strings");
        let text = |value: &'v Value<'_>| Some((self.text(value, setting)?, value.span));
        values.iter().filter_map(text).collect()
    }

    /// The number of the rules with this name.
    pub(crate) fn rule(&mut self, name: &str) -> RuleNumber {
        let next = RuleNumber(self.rules.len());
        *self.rules.entry(name.into()).or_insert(next)
    }

    /// Notes where a setting of a rule is, or one of its values. Of several places, the last one of
    /// a setting counts, and the first one of a value.
    pub(crate) fn note(
        &mut self,
        rule: RuleNumber,
        setting: &str,
        value: Option<&str>,
        span: Span,
    ) {
        let has_value = value.is_some();
        let place = Place {
            rule,
            setting: setting.to_owned(),
            value: value.map(str::to_owned),
        };
        let known = self.places.entry(place).or_insert(span);
        if !has_value {
            *known = span;
        }
    }

    /// Where the setting is that an error is about: the value, else the setting, else the name of
    /// the rule.
    fn place_of(&self, rule: Option<RuleNumber>, error: &RuleError) -> Span {
        let find = |setting: &str, value: Option<&str>| {
            let place = Place {
                rule: rule?,
                setting: setting.to_owned(),
                value: value.map(str::to_owned),
            };
            self.places.get(&place).copied()
        };
        find(&error.setting, error.value.as_deref())
            .or_else(|| find(&error.setting, None))
            .or_else(|| find("name", None))
            .unwrap_or(Span { start: 0, end: 0 })
    }

    /// Puts the rules of the file in force, if neither the reader nor the policy finds an error.
    pub(crate) fn into_policy(
        mut self,
        rules: Vec<Rule>,
        settings: PolicySettings,
    ) -> Result<Policy, Vec<FileError>> {
        if !self.errors.is_empty() {
            // A rule of which something could not be read has no state.
            let errors = Policy::refused(rules, settings);
            self.refuse_rules(errors);
            return Err(self.into_errors());
        }
        match Policy::with_settings(rules, settings) {
            Ok(mut policy) => {
                policy.of_file = OfFile {
                    warnings: self.doubts(&policy),
                    places: self.places_of(&policy),
                };
                Ok(policy)
            }
            Err(errors) => {
                self.refuse_rules(errors);
                Err(self.into_errors())
            }
        }
    }

    /// Checks rules of the file that are in the order of their priority. Creates no tables. If the
    /// default settings have no room for them, that is one more warning. Returns the warnings, in
    /// the order of the text.
    #[cfg(feature = "json")]
    pub(crate) fn checked(
        mut self,
        rules: &[Rule],
        path_rules: PathRules,
        mut warnings: Vec<(Span, String)>,
    ) -> Result<Vec<FileError>, Vec<FileError>> {
        match check(rules, path_rules) {
            Ok((plans, _)) => {
                if let Err(error) = fit(&plans, DEFAULT_TABLE_BYTES) {
                    let rule = self.rules.get(&*error.rule).copied();
                    warnings.push((self.place_of(rule, &error), error.problem));
                }
            }
            Err(errors) => self.refuse_rules(errors),
        }
        if self.errors.is_empty() {
            Ok(located(self.text, &self.files, warnings))
        } else {
            Err(self.into_errors())
        }
    }

    /// Where each rule is. The message is its name.
    fn places_of(&self, policy: &Policy) -> Vec<FileError> {
        let place = |rule: &Rule| {
            let error = RuleError {
                rule: Arc::clone(&rule.name),
                setting: "name".into(),
                value: None,
                problem: String::new(),
            };
            let number = self.rules.get(rule.name()).copied();
            (self.place_of(number, &error), rule.name().to_owned())
        };
        let places = policy.rules().map(place).collect();
        located(self.text, &self.files, places)
    }

    /// What a reader of the file may have meant otherwise, each at its setting.
    fn doubts(&self, policy: &Policy) -> Vec<FileError> {
        let place = |rule: &Arc<str>, setting: &str| {
            self.place_of(
                self.rules.get(&**rule).copied(),
                &RuleError {
                    rule: Arc::clone(rule),
                    setting: setting.into(),
                    value: None,
                    problem: String::new(),
                },
            )
        };
        let message = |doubt: Doubt| {
            let other = doubt.other.as_ref().map(|(other, then)| {
                let start = place(other, "name").start;
                let line = 1 + self.text[..start].matches('\n').count();
                format!(" (line {line}){then}")
            });
            let other = other.unwrap_or_default();
            let Doubt {
                setting, problem, ..
            } = &doubt;
            (
                place(&doubt.rule, setting),
                format!("{setting}: {problem}{other}"),
            )
        };
        let doubts = judge(policy.rules(), policy.path_rules());
        let messages = doubts.into_iter().map(message).collect();
        located(self.text, &self.files, messages)
    }

    /// Notes the errors that a policy has found, each at its setting.
    fn refuse_rules(&mut self, errors: Vec<RuleError>) {
        // Errors of one rule have its name in common, which is looked up once for all of them.
        let mut last: Option<(Arc<str>, Option<RuleNumber>)> = None;
        for error in errors {
            let rule = match &last {
                Some((name, rule)) if Arc::ptr_eq(name, &error.rule) => *rule,
                _ => self.rules.get(&*error.rule).copied(),
            };
            last = Some((Arc::clone(&error.rule), rule));
            let span = self.place_of(rule, &error);
            let message = match &error.value {
                Some(value) => {
                    format!("{}: `{}` {}", error.setting, shown(value), error.problem)
                }
                None => format!("{}: {}", error.setting, error.problem),
            };
            self.refuse(span, message);
        }
    }

    /// The errors, in the order of the text.
    pub(crate) fn into_errors(self) -> Vec<FileError> {
        located(self.text, &self.files, self.errors)
    }
}

/// Messages with their places in a text, in its order. Counts the lines in one pass.
fn located(
    text: &str,
    files: &[(usize, Arc<str>)],
    mut messages: Vec<(Span, String)>,
) -> Vec<FileError> {
    messages.sort_by_key(|(span, _)| span.start);
    // A mark at the beginning takes no column.
    let after_mark = |start: usize| text.len() - without_mark(&text[start..]).len();
    let (mut at, mut line, mut column) = (after_mark(0), 1, 1);
    let mut begun = 0;
    let errors = messages.into_iter().map(|(span, message)| {
        let file = files.partition_point(|(start, _)| *start <= span.start);
        let file = file.checked_sub(1).map(|index| &files[index]);
        let first = file.map_or(0, |(start, _)| *start);
        if first > begun {
            (begun, at, line, column) = (first, after_mark(first), 1, 1);
        }
        let start = text.floor_char_boundary(span.start).max(at);
        for character in text[at..start].chars() {
            (line, column) = match character {
                '\n' => (line + 1, 1),
                _ => (line, column + 1),
            };
        }
        at = start;
        FileError {
            file: file.map(|(_, name)| Arc::clone(name)),
            line,
            column,
            bytes: start - first..text.ceil_char_boundary(span.end).max(start) - first,
            message,
        }
    });
    errors.collect()
}

/// The text without the mark that some programs write at the beginning of a file.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// A piece of a file for a message: in one line, and not long.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == MAX_SHOWN {
            shown.push('…');
            break;
        }
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Builds a table. A name that is set twice is refused.
struct TableBuilder<'t> {
    table: Table<'t>,
    seen: HashSet<Cow<'t, str>>,
}

impl<'t> TableBuilder<'t> {
    fn new(names: Names) -> Self {
        Self {
            table: Table {
                entries: Vec::new(),
                names,
            },
            seen: HashSet::new(),
        }
    }

    fn add(&mut self, reader: &mut Reader<'t>, name: Text<'t>, value: Value<'t>) {
        let key = match self.table.names {
            Names::Exact => name.text.clone(),
            #[cfg(feature = "json")]
            Names::AnyCase => name.text.to_ascii_lowercase().into(),
        };
        if self.seen.insert(key) {
            self.table.entries.push((name, value));
        } else {
            reader.refuse(name.span, set_twice(&name.text));
        }
    }
}

fn set_twice(name: &str) -> String {
    format!("{} is set twice", shown(name))
}

fn too_deep() -> String {
    format!("arrays and tables are nested more than {MAX_DEPTH} deep")
}

#[cfg(all(test, feature = "toml", feature = "json"))]
mod tests {
    use core::fmt::Write;

    use super::*;

    fn json(text: &str) -> Vec<String> {
        let (reader, table) = Reader::json(text, Names::Exact);
        let errors = reader.into_errors();
        assert_eq!(table.is_none(), !errors.is_empty(), "{errors:?}");
        errors.iter().map(ToString::to_string).collect()
    }

    /// A table in one line, with the text of each value as the file spells it.
    fn outline(text: &str, table: &Table<'_>) -> String {
        fn value(outline: &mut String, text: &str, of: &Value<'_>) {
            match &of.node {
                Node::Array(values) => {
                    for each in values {
                        value(outline, text, each);
                    }
                }
                Node::Table(inner) => entries(outline, text, inner),
                Node::Text(inner) => write!(outline, "`{inner}` ").unwrap(),
                _ => write!(outline, "{} ", &text[of.span.start..of.span.end]).unwrap(),
            }
        }
        fn entries(outline: &mut String, text: &str, table: &Table<'_>) {
            for (name, of) in table.iter() {
                write!(outline, "{}=", name.text).unwrap();
                value(outline, text, of);
            }
        }
        let mut outline = String::new();
        entries(&mut outline, text, table);
        outline
    }

    #[test]
    fn both_formats_become_the_same_tree_in_the_order_of_the_text() {
        let toml = "z = 1\na = [true, -2, 1.5]\nt = { n = 'x\\y' }\n[s]\nc = \"\\u00e9\"\n";
        let json = "\u{feff}// one\n{\"z\": 1, \"a\": [true, -2, 1.5,], /* two */ \
                    \"t\": {\"n\": \"x\\\\y\"}, \"s\": {\"c\": \"\\u00e9\"}}";
        let outline_of = |text: &str, (reader, table): (Reader<'_>, Option<Table<'_>>)| {
            assert!(reader.errors.is_empty(), "{:?}", reader.errors);
            outline(text, &table.unwrap())
        };
        let expected = "z=1 a=true -2 1.5 t=n=`x\\y` s=c=`é` ";
        assert_eq!(outline_of(toml, Reader::toml(toml)), expected);
        assert_eq!(outline_of(json, Reader::json(json, Names::Exact)), expected);
    }

    #[test]
    fn text_that_is_not_json_is_refused_with_its_place() {
        for (text, expected) in [
            ("", "1:1: the file is empty: expected an object"),
            (
                "\u{feff}[]",
                "1:1: the file: expected an object, not an array",
            ),
            ("{} {}", "1:4: expected the end of the file"),
            ("{\n'a': 1}", "2:1: single-quoted strings are not allowed"),
            ("{,}", "1:2: expected a name in double quotes, or `}`"),
            ("{a: 1}", "1:2: expected a name in double quotes"),
            ("{\"a\": [1", "1:7: unterminated array"),
            ("{\n\"é\": \"x", "2:6: unterminated string literal"),
            (
                "{\"a\": \"\t\"}",
                "1:8: a string contains a control character: write an escape, such as \\n",
            ),
            ("{\"a\": 1 \"b\": 2}", "1:8: expected comma"),
            ("{\"a\": [1 2]}", "1:9: expected comma"),
            ("{\"a\": [1,,2]}", "1:10: unexpected comma"),
            ("{\"a\": 0x1}", "1:7: hexadecimal numbers are not allowed"),
            ("{\"a\": +1}", "1:7: unary plus on numbers is not allowed"),
            ("{} /*", "1:4: unterminated comment block"),
        ] {
            assert_eq!(json(text), [expected], "{text}");
        }
    }

    #[test]
    fn names_are_compared_as_the_reader_asks() {
        let text = "{\"Limit\": 1, \"limit\": 2, \"limit\": 3}";
        let (reader, table) = Reader::json(text, Names::Exact);
        assert_eq!(outline(text, &table.unwrap()), "Limit=1 limit=2 ");
        let errors = reader.into_errors();
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].to_string(), "1:26: limit is set twice");

        let (mut reader, table) = Reader::json(text, Names::AnyCase);
        let table = table.unwrap();
        assert_eq!(
            table.get("LIMIT").unwrap().span,
            Span { start: 10, end: 11 }
        );
        reader.known(&table, "a route", "LIMIT");
        assert_eq!(reader.into_errors().len(), 2, "both others are set twice");
    }

    #[test]
    fn deep_nesting_is_refused() {
        let nested = |open: &str, depth: usize, close: &str| {
            format!("{}{}", open.repeat(depth), close.repeat(depth))
        };
        let deepest = MAX_DEPTH - 1;
        for (depth, is_refused) in [(deepest, false), (deepest + 1, true), (100_000, true)] {
            let arrays = nested("[", depth, "]");
            let text = format!("{{\"a\": {arrays}}}");
            let (reader, table) = Reader::json(&text, Names::Exact);
            assert_eq!(
                (table.is_none(), reader.errors.len()),
                (is_refused, usize::from(is_refused))
            );
            let text = format!("a = {arrays}");
            let (reader, table) = Reader::toml(&text);
            assert_eq!(table.is_none(), is_refused);
            assert_eq!(reader.errors.is_empty(), !is_refused);
        }
    }

    #[test]
    fn a_message_repeats_a_long_value_in_part_and_in_one_line() {
        assert_eq!(shown("a\nb\u{7f}é"), "a\\nb\\u{7f}é");
        let long = shown(&"é".repeat(1_000));
        assert_eq!(long.chars().count(), MAX_SHOWN + 1);
        assert!(nearest(&"limits".repeat(100_000), ["limits"].into_iter()).is_none());
        assert_eq!(
            nearest("LIMIT", ["rules", "limits"].into_iter()),
            Some("limits")
        );
    }
}
