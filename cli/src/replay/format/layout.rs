//! Parsing of layouts in the notation of nginx and Apache:
//! `$remote_addr - $remote_user [$time_local] ...`, `%h %l %u %t ...`, also as the whole directive
//! (`log_format`, `LogFormat`).

use core::fmt::Write;
use std::borrow::Cow;

use super::template::{Layout, Role, Variable};
use crate::replay::time::{Form, Unit};

/// Parses a layout.
///
/// # Errors
///
/// Returns what is wrong with `text`.
pub(super) fn parse(text: &str) -> Result<Layout, String> {
    let text = text.trim();
    if let Some(directive) = text.strip_prefix("log_format") {
        return nginx(&strings(directive)?);
    }
    if let Some(directive) = text.strip_prefix("LogFormat") {
        return apache(&strings(directive)?);
    }
    if text.starts_with('\'') {
        return nginx(&strings(text)?);
    }
    if text.contains('%') && !text.contains('$') {
        apache(text)
    } else {
        nginx(text)
    }
}

/// Returns the quoted strings in a directive, joined. Ignores the other words, and everything after
/// the end of the directive.
fn strings(directive: &str) -> Result<String, String> {
    let mut joined = String::new();
    let mut rest = directive;
    while let Some(start) = rest.find(['\'', '"']) {
        if rest[..start].contains(';') {
            break;
        }
        let quote = &rest[start..=start];
        let mut chars = rest[start + 1..].char_indices();
        let mut end = None;
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    // An escaped quote is part of the string. Any other escape belongs to the
                    // format.
                    Some((_, c)) if c.to_string() == quote => joined.push(c),
                    Some((_, c)) => joined.extend(['\\', c]),
                    None => {}
                },
                c if c.to_string() == quote => {
                    end = Some(start + 1 + at + 1);
                    break;
                }
                c => joined.push(c),
            }
        }
        let end = end.ok_or_else(|| format!("the directive lacks a closing {quote}"))?;
        rest = &rest[end..];
    }
    if joined.is_empty() {
        return Err("the directive has no format in quotes".into());
    }
    Ok(joined)
}

fn nginx(text: &str) -> Result<Layout, String> {
    let mut layout = Building::default();
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        layout.text(&rest.as_bytes()[..start]);
        let after = &rest[start + 1..];
        let name = if let Some(inner) = after.strip_prefix('{') {
            let (name, _) = inner
                .split_once('}')
                .ok_or("the format lacks a } after ${")?;
            name
        } else {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &after[..end.unwrap_or(after.len())]
        };
        if name.is_empty() {
            return Err("the format has a $ without a name after it".into());
        }
        layout.variable(nginx_role(name), name)?;
        let braces = if after.starts_with('{') { 2 } else { 0 };
        rest = &after[name.len() + braces..];
    }
    layout.text(rest.as_bytes());
    layout.done()
}

fn nginx_role(name: &str) -> Role {
    match name {
        "remote_addr" => Role::Address,
        "remote_user" => Role::User,
        "time_local" => Role::Time(Form::Clf),
        "time_iso8601" => Role::Time(Form::Iso),
        "msec" => Role::Time(Form::Number(Unit::Seconds)),
        "request" => Role::Request,
        "request_method" => Role::Method,
        "request_uri" | "uri" | "document_uri" => Role::Path,
        "host" | "http_host" | "server_name" => Role::Host,
        "http_referer" => Role::Referer,
        "http_user_agent" => Role::Agent,
        "status" => Role::Status,
        "body_bytes_sent" | "bytes_sent" => Role::Size,
        "remote_port"
        | "server_port"
        | "connection"
        | "connection_requests"
        | "request_length"
        | "pid" => Role::Number,
        _ => Role::Other,
    }
}

fn apache(text: &str) -> Result<Layout, String> {
    let mut layout = Building::default();
    let mut rest = text;
    while let Some(start) = rest.find(['%', '\\']) {
        layout.text(&rest.as_bytes()[..start]);
        let escape = rest.as_bytes()[start] == b'\\';
        let after = &rest[start + 1..];
        let mut chars = after.chars();
        if escape {
            let escaped = chars.next().ok_or("the format ends with a backslash")?;
            let meant = match escaped {
                't' => '\t',
                'n' => '\n',
                other => other,
            };
            layout.text(meant.encode_utf8(&mut [0; 4]).as_bytes());
            rest = chars.as_str();
            continue;
        }
        // Skips the modifiers that select the first or last request, and the status codes.
        let directive =
            after.trim_start_matches(|c: char| "<>!,".contains(c) || c.is_ascii_digit());
        let (argument, directive) = match directive.strip_prefix('{') {
            Some(inner) => {
                let (argument, directive) = inner
                    .split_once('}')
                    .ok_or("the format lacks a } after %{")?;
                (Some(argument), directive)
            }
            None => (None, directive),
        };
        let length = if directive.starts_with('^') { 3 } else { 1 };
        let (letter, after) = directive
            .split_at_checked(length)
            .ok_or("the format has a % without a letter after it")?;
        rest = after;
        match (letter, argument) {
            ("%", None) => layout.text(b"%"),
            ("t", None) => {
                layout.text(b"[");
                layout.variable(Role::Time(Form::Clf), "t")?;
                layout.text(b"]");
            }
            (_, argument) => {
                let name = argument.unwrap_or(letter);
                layout.variable(apache_role(letter, argument), name)?;
            }
        }
    }
    layout.text(rest.as_bytes());
    layout.done()
}

fn apache_role(letter: &str, argument: Option<&str>) -> Role {
    let header = argument.map(str::to_ascii_lowercase);
    match (letter, header.as_deref()) {
        ("h" | "a", _) => Role::Address,
        ("l", None) => Role::Ident,
        ("u", None) => Role::User,
        ("r", None) => Role::Request,
        ("m", None) => Role::Method,
        ("U", None) => Role::Path,
        ("v" | "V", None) | ("i", Some("host")) => Role::Host,
        ("s", None) => Role::Status,
        ("b" | "B" | "O", None) => Role::Size,
        ("i", Some("referer")) => Role::Referer,
        ("i", Some("user-agent")) => Role::Agent,
        ("p" | "P" | "k" | "D", _) => Role::Number,
        ("t", Some(_)) => apache_time(argument.unwrap_or_default()),
        _ => Role::Other,
    }
}

fn apache_time(argument: &str) -> Role {
    let format = ["begin:", "end:"]
        .into_iter()
        .find_map(|prefix| argument.strip_prefix(prefix));
    Role::Time(match format.unwrap_or(argument) {
        "sec" => Form::Number(Unit::Seconds),
        "msec" => Form::Number(Unit::Millis),
        "usec" => Form::Number(Unit::Micros),
        "msec_frac" | "usec_frac" => Form::Custom(FRACTION.into()),
        CLF => Form::Clf,
        format => Form::Custom(format.replace("\\t", "\t")),
    })
}

/// The notation of the common format for `strftime`.
const CLF: &str = "%d/%b/%Y:%H:%M:%S %z";

/// The fraction of a second, for `strftime`.
const FRACTION: &str = "%f";

/// Returns the notation of a time that two variables tell, with the text `between` them, or `None`
/// if each of them is a time of its own.
fn joined(first: &Form, between: &[u8], second: &Form) -> Option<Form> {
    let Form::Custom(second) = second else {
        return None;
    };
    let first = match first {
        // A number with a decimal point is a number of seconds.
        Form::Number(Unit::Seconds) if second == FRACTION && between == b"." => {
            return Some(Form::Number(Unit::Seconds));
        }
        Form::Clf => CLF,
        Form::Custom(first) => first,
        _ => return None,
    };
    // Whether a notation has a date, a time of day.
    let has = |format: &str, letters: &[u8]| {
        let mut pairs = format.as_bytes().windows(2);
        pairs.any(|pair| pair[0] == b'%' && letters.contains(&pair[1]))
    };
    let has_date = |format| has(format, b"cdDeFjs");
    let has_time = |format| has(format, b"cHIklRrsTX");
    let is_rest = match second.as_str() {
        FRACTION => has_time(first),
        second => {
            has_date(first) != has_date(second)
                && has_time(first) != has_time(second)
                && has_date(first) != has_time(first)
        }
    };
    let between = str::from_utf8(between).ok()?.replace('%', "%%");
    is_rest.then(|| Form::Custom(format!("{first}{between}{second}")))
}

/// A layout under construction.
#[derive(Default)]
struct Building {
    before: Vec<u8>,
    variables: Vec<Variable>,
}

impl Building {
    fn text(&mut self, text: &[u8]) {
        match self.variables.last_mut() {
            Some(last) => last.until.extend_from_slice(text),
            None => self.before.extend_from_slice(text),
        }
    }

    /// Adds a variable. The end of a variable is recognized by the text after it. So if there is no
    /// text between two variables and the second is not needed, they are read as one: `%U%q`,
    /// `$uri$is_args$args`. A time in two variables is read as one, too: `%{%F}t %{%T}t`,
    /// `%{%FT%T}t.%{msec_frac}t`.
    fn variable(&mut self, role: Role, name: &str) -> Result<(), String> {
        if let Role::Time(second) = &role {
            if let Some(last) = self.variables.last_mut()
                && let Role::Time(first) = &last.role
                && let Some(form) = joined(first, &last.until, second)
            {
                last.role = Role::Time(form);
                last.until.clear();
                return Ok(());
            }
            if *second == Form::Custom(FRACTION.into()) {
                return Err(format!(
                    "%{{{name}}}t in the format does not follow a time without a fraction"
                ));
            }
        }
        let before = match self.variables.last() {
            Some(last) if last.until.is_empty() && last.role != Role::Time(Form::Clf) => {
                if matches!(role, Role::Number | Role::Other | Role::Method) {
                    return Ok(());
                }
                return Err(format!(
                    "nothing separates {} and {name} in the format: where one ends and the other \
                     begins cannot be known",
                    last.name
                ));
            }
            Some(last) => &last.until,
            None => &self.before,
        };
        let variable = Variable::new(role, name, before);
        self.variables.push(variable);
        Ok(())
    }

    fn done(self) -> Result<Layout, String> {
        if self.variables.is_empty() {
            return Err("the format has no variables".into());
        }
        Ok(Layout {
            before: self.before,
            variables: self.variables,
        })
    }
}

/// Returns a layout in a readable form.
pub(super) fn shown(layout: &Layout) -> String {
    let mut text = String::from_utf8_lossy(&layout.before).into_owned();
    for variable in &layout.variables {
        let noun = match &variable.role {
            Role::Time(Form::Clf) => "17/May/2015:10:05:03 +0200".into(),
            role => noun(role, &variable.name),
        };
        let until = String::from_utf8_lossy(&variable.until);
        let _ = write!(text, "{noun}{until}");
    }
    text
}

/// Returns the readable name of a variable.
pub(super) fn noun(role: &Role, name: &str) -> String {
    let noun: Cow<'_, str> = match role {
        Role::Address | Role::Forwarded => "ADDRESS".into(),
        Role::User => "USER".into(),
        Role::Time(_) => "TIME".into(),
        Role::Request => "REQUEST".into(),
        Role::Method => "METHOD".into(),
        Role::Path => "PATH".into(),
        Role::Host => "HOST".into(),
        Role::Referer => "REFERER".into(),
        Role::Agent => "AGENT".into(),
        Role::Status => "STATUS".into(),
        Role::Size => "SIZE".into(),
        Role::Ident => "IDENT".into(),
        Role::Number | Role::Other => name.to_ascii_uppercase().into(),
    };
    noun.into_owned()
}
