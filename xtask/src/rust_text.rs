//! Reads Rust sources as text: without comments and strings, with the functions that they have.
//!
//! It needs no compiler and no parser of Rust, so the checks that use it run at once. It assumes
//! formatted sources that compile.

use core::ops::Range;

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The name, after the type of the `impl` or the trait that the function is in, if any:
    /// `Claim::drop`.
    pub(crate) name: String,
    /// From the `fn` to the end of the body.
    pub(crate) range: Range<usize>,
    /// How deep the braces in it are nested. A body without braces has one level.
    pub(crate) levels: usize,
}

impl Function {
    /// Returns the number of lines from the `fn` to the end of the body.
    pub(crate) fn lines(&self, source: &str) -> usize {
        source[self.range.clone()].lines().count()
    }
}

/// Returns `source` with spaces in place of comments, of the contents of strings, and of
/// characters. Positions and lines stay the same.
pub(crate) fn code_of(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &source[at..];
        let (from, to) = if rest.starts_with("//") {
            (at, at + rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (at, at + length_of_comment(rest))
        } else if let Some(length) = length_of_raw_string(bytes, at) {
            (at, at + length)
        } else if rest.starts_with('"') {
            (at + 1, at + length_of_string(rest) - 1)
        } else if let Some(length) = length_of_character(rest) {
            (at, at + length)
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        for byte in &mut code[from..to] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = to.max(at + 1) + usize::from(rest.starts_with('"'));
    }
    String::from_utf8(code).expect("whole characters were replaced")
}

fn length_of_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// Returns the length of a string, with its quotes.
fn length_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of the raw string at `at`, if there is one.
fn length_of_raw_string(source: &[u8], at: usize) -> Option<usize> {
    if at > 0 && is_part(source[at - 1]) {
        return None;
    }
    let text = &source[at..];
    let start = text.strip_prefix(b"b").unwrap_or(text);
    let start = start.strip_prefix(b"r")?;
    let hashes = start.iter().take_while(|byte| **byte == b'#').count();
    let inside = start[hashes..].strip_prefix(b"\"")?;
    let end = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let length = inside
        .windows(end.len())
        .position(|window| window == end)
        .unwrap_or(inside.len() - end.len());
    Some(text.len() - inside.len() + length + end.len())
}

/// Returns the length of the character literal at the start of `text`, if there is one: a lifetime
/// has no second quote.
fn length_of_character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    if inside.starts_with('\\') {
        // The character after the backslash may be a quote.
        return inside[2..].find('\'').map(|end| end + 4);
    }
    let first = inside.chars().next()?;
    let rest = &inside[first.len_utf8()..];
    rest.starts_with('\'').then(|| first.len_utf8() + 2)
}

/// Whether a byte can be in an identifier.
pub(crate) fn is_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the words of `code` with their positions: identifiers, and single other characters.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let rest = &code[at..];
        let start = at + rest.find(|c: char| !c.is_whitespace())?;
        let rest = &code[start..];
        let part = rest.bytes().take_while(|byte| is_part(*byte)).count();
        let length = match part {
            0 => rest.chars().next().map_or(1, char::len_utf8),
            length => length,
        };
        at = start + length;
        Some((start, &code[start..at]))
    })
}

/// An item whose brace has not been seen yet, and where it begins.
enum Head {
    /// A function of this name.
    Fn(String, usize),
    Impl(usize),
    Trait(usize),
}

/// An open brace.
struct Open {
    /// The type or trait of the functions in it.
    owner: Option<String>,
    /// The function whose body it is. The end is not known yet.
    function: Option<Function>,
    /// The depth of parentheses around it.
    parentheses: usize,
}

/// The braces around a position.
#[derive(Default)]
struct Braces {
    open: Vec<Open>,
    head: Option<Head>,
    parentheses: usize,
}

impl Braces {
    /// Enters a brace at the position `at`.
    fn enter(&mut self, code: &str, at: usize) {
        let head = self.head.take_if(|_| self.parentheses == 0);
        let (owner, function) = match head {
            Some(Head::Fn(name, start)) => {
                let (range, levels) = (start..at, 1);
                (
                    None,
                    Some(Function {
                        name,
                        range,
                        levels,
                    }),
                )
            }
            Some(Head::Impl(start)) => (owner_of("impl", &code[start..at]), None),
            Some(Head::Trait(start)) => (owner_of("trait", &code[start..at]), None),
            None => (None, None),
        };
        let innermost = self.open.iter().rposition(|open| open.function.is_some());
        if let Some(at) = innermost {
            let levels = self.open.len() - at + 1;
            let function = self.open[at].function.iter_mut();
            function.for_each(|of| of.levels = of.levels.max(levels));
        }
        let parentheses = core::mem::take(&mut self.parentheses);
        self.open.push(Open {
            owner,
            function,
            parentheses,
        });
    }

    /// Leaves the innermost brace. Returns the function that ends there.
    fn leave(&mut self, at: usize) -> Option<Function> {
        let closed = self.open.pop()?;
        self.parentheses = closed.parentheses;
        closed.function.map(|function| Function {
            range: function.range.start..at + 1,
            ..function
        })
    }

    /// Returns the name of a function, after that of its type.
    fn name_of(&self, function: &str) -> String {
        let owner = self.open.last().and_then(|open| open.owner.as_deref());
        owner.map_or_else(
            || function.to_owned(),
            |owner| format!("{owner}::{function}"),
        )
    }
}

/// Returns the functions of `code`, which is from [`code_of`], in the order of their ends.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let mut braces = Braces::default();
    let (mut before, mut before_at) = ("", 0);
    for (at, word) in words(code) {
        let is_item = braces.head.is_none() && braces.parentheses == 0;
        match word {
            "impl" if is_item => braces.head = Some(Head::Impl(at)),
            "trait" if is_item => braces.head = Some(Head::Trait(at)),
            "(" | "[" => braces.parentheses += 1,
            ")" | "]" => braces.parentheses = braces.parentheses.saturating_sub(1),
            ";" if braces.parentheses == 0 => braces.head = None,
            "{" => braces.enter(code, at),
            "}" => found.extend(braces.leave(at)),
            _ if before == "fn" && is_part(word.as_bytes()[0]) => {
                braces.head = Some(Head::Fn(braces.name_of(word), before_at));
            }
            _ => {}
        }
        (before, before_at) = (word, at);
    }
    found
}

/// Returns the type of the head of an `impl`, or the name of a trait, without path and generics.
fn owner_of(kind: &str, head: &str) -> Option<String> {
    let head = head.strip_prefix(kind)?;
    let (mut depth, mut before) = (0, "");
    let mut name = None;
    for (_, word) in words(head) {
        match word {
            "<" => depth += 1,
            // Not that of an arrow.
            ">" if before != "-" => depth -= 1,
            "for" if depth == 0 => name = None,
            "where" if depth == 0 => break,
            // Bounds of a trait. A path has two colons in a row.
            ":" if depth == 0 && kind == "trait" => break,
            _ if depth == 0 && is_part(word.as_bytes()[0]) && !["dyn", "mut"].contains(&word) => {
                name = Some(word);
            }
            _ => {}
        }
        before = word;
    }
    name.map(str::to_owned)
}

/// Returns `code` with spaces in place of the items that only tests have.
pub(crate) fn without_tests(code: &str) -> String {
    const ONLY_IN_TESTS: [&str; 2] = ["#[cfg(test)]", "#[cfg(all(test,"];
    let mut kept = code.as_bytes().to_vec();
    let mut from = 0;
    let next = |from| {
        let starts = ONLY_IN_TESTS
            .iter()
            .filter_map(|start| code[from..].find(start));
        starts.min()
    };
    while let Some(start) = next(from) {
        let start = from + start;
        let end = start + length_of_item(&code[start..]);
        for byte in &mut kept[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        from = end;
    }
    String::from_utf8(kept).expect("whole characters were replaced")
}

/// Returns the length of an item, up to its closing brace or its semicolon.
fn length_of_item(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, word) in words(code) {
        match word {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if word == "}" && depth == 0 {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_blank() {
        let source = "a /* b /* c */ */ \"d\\\"e\" 'f' '\\'' &'g h // i\nr#\"j\"k\"# b\"l\" µ";
        let code = code_of(source);
        let seen: Vec<_> = words(&code).map(|(_, word)| word).collect();
        assert_eq!(code.len(), source.len());
        assert_eq!(
            seen,
            ["a", "\"", "\"", "&", "'", "g", "h", "b", "\"", "\"", "µ"]
        );
    }

    #[test]
    fn functions_are_found_with_their_types_and_levels() {
        let source = "\
fn free() { if a { b(|| { c }) } }
impl<L: Fn() -> u8> a::Trait for B<'_, L>
where
    L: C,
{
    fn one(&self) -> impl D { fn two() {} }
}
trait E: F { fn three(); fn four() {} }
static G: fn(u8) = h;
";
        let found: Vec<_> = functions(&code_of(source))
            .into_iter()
            .map(|function| {
                (
                    function.name.clone(),
                    function.levels,
                    function.lines(source),
                )
            })
            .collect();
        let expected = [
            ("free", 3, 1),
            ("two", 1, 1),
            ("B::one", 2, 1),
            ("E::four", 1, 1),
        ]
        .map(|(name, levels, lines)| (name.to_owned(), levels, lines));
        assert_eq!(found, expected);
    }

    #[test]
    fn items_of_tests_are_left_out() {
        let code = "a;\n#[cfg(test)]\nmod tests {\n    b { }\n}\nc;\n#[cfg(test)]\nuse d;\ne";
        let kept = without_tests(code);
        let seen: Vec<_> = words(&kept).map(|(_, word)| word).collect();
        assert_eq!(seen, ["a", ";", "c", ";", "e"]);
        assert_eq!(kept.lines().count(), code.lines().count());
    }
}
