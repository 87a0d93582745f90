//! Derives mutants from the memory orderings in the sources: each is weakened in turn, and each
//! fence is also removed.
//!
//! Weakening one step is enough: a test that notices it also notices weaker orderings. The steps
//! are:
//!
//! | ordering | of | becomes, in turn |
//! |---|---|---|
//! | `SeqCst`, `AcqRel` | a read-modify-write | `Acquire`; `Release` |
//! | `SeqCst` | a load or a store | `Relaxed` |
//! | `Acquire`, `Release` | any access | `Relaxed` |
//! | `SeqCst` | a fence | `AcqRel`; no fence |
//! | any other | a fence | no fence |
//!
//! The models execute a `SeqCst` access as an acquire and a release, so no mutant keeps those.
//!
//! A list says which tests notice, and which orderings none notices:
//!
//! ```text
//! # A comment.
//! @ core/src/word/live.rs
//! Live::load ! loom adjustable_bucket wide::a_change_is_seen wide::another_model
//! * ! loom adjustable_bucket
//! Inside::drop: fetch_sub Release ~ the modification order of the word gives the same order
//! ```
//!
//! | line | says |
//! |---|---|
//! | `@` | the file of the lines that follow |
//! | `FN ! LIST PROGRAM NAMES` | the tests for that function: the list of mutants whose settings they run with, their program, and their names; without names, the whole program |
//! | `* ! ...` | the same for the functions of the file without a line of their own |
//! | `FN: ACCESS ~ REASON` | an access whose weakening no test notices, and why it stays as it is |
//!
//! `FN: ACCESS > ORDERING ~ REASON` says so of one of two weakenings. `#2` after an access is the
//! second such access of the function. Of several lines with tests for one function, the tests of
//! the next line run if those of the line before pass.

use core::ops::Range;
use std::collections::BTreeSet;

use crate::rust_text::{self, is_part, words};
use crate::sources::Source;

/// Tests that notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tests {
    /// The list of mutants whose settings they run with.
    pub(super) list: String,
    pub(super) program: String,
    /// Their names, or none for all of the program.
    pub(super) names: Vec<String>,
}

/// A place in the sources with an ordering, and the ordering that takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Weakening {
    pub(super) file: String,
    /// The function, after its type: `Claim::drop`.
    pub(super) function: String,
    /// What is weakened, as a list of mutants names it: `load Acquire`, and `#2` for the second
    /// such access in the function.
    pub(super) access: String,
    /// The weaker ordering, or nothing for no fence.
    pub(super) by: &'static str,
    /// What is replaced.
    pub(super) range: Range<usize>,
}

impl Weakening {
    /// Returns `source` with the weaker ordering.
    pub(super) fn apply(&self, source: &str) -> String {
        let (before, after) = (&source[..self.range.start], &source[self.range.end..]);
        // The file may not import the name of the weaker one. Those of the models are the same.
        let path = match self.by {
            "" => "",
            _ if before.ends_with("::") => "",
            _ => "core::sync::atomic::Ordering::",
        };
        [before, path, self.by, after].concat()
    }

    /// Returns the weakening as a list names it.
    pub(super) fn name(&self) -> String {
        let by = if self.by.is_empty() { "none" } else { self.by };
        format!("{}: {} > {by}", self.function, self.access)
    }
}

/// A line of the list, with its file.
struct Line<'a> {
    file: &'a str,
    /// What is before the `!` or the `~`.
    place: &'a str,
    /// The tests that notice, or none if the weakening is accepted.
    tests: Option<Tests>,
}

fn lines(list: &str) -> Result<Vec<Line<'_>>, String> {
    let mut file = None;
    let mut lines = Vec::new();
    for line in list.lines() {
        let malformed = || format!("not a line of the list of orderings: {line}");
        if line.starts_with('#') {
        } else if let Some(path) = line.strip_prefix("@ ") {
            file = Some(path);
        } else if let Some((place, tests)) = line.split_once(" ! ") {
            let mut words = tests.split(' ').map(str::to_owned);
            let (list, program) = words.next().zip(words.next()).ok_or_else(malformed)?;
            lines.push(Line {
                file: file.ok_or_else(malformed)?,
                place,
                tests: Some(Tests {
                    list,
                    program,
                    names: words.collect(),
                }),
            });
        } else {
            let (place, reason) = line.split_once(" ~ ").ok_or_else(malformed)?;
            if reason.len() < 10 || !place.contains(": ") {
                return Err(malformed());
            }
            lines.push(Line {
                file: file.ok_or_else(malformed)?,
                place,
                tests: None,
            });
        }
    }
    Ok(lines)
}

/// Returns the weakenings of `sources` with the tests that `list` names for each, without those
/// that it accepts.
///
/// # Errors
///
/// Returns the weakenings without tests and without a reason, and the lines of the list that
/// belong to no weakening.
pub(super) fn assigned(
    sources: &[Source],
    list: &str,
) -> Result<Vec<(Weakening, Vec<Tests>)>, String> {
    let lines = lines(list)?;
    let mut used = BTreeSet::new();
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for weakening in sources.iter().flat_map(of) {
        let of_file = || {
            let all = lines.iter().enumerate();
            all.filter(|(_, line)| line.file == weakening.file)
        };
        let name = weakening.name();
        let short = name.split(" > ").next().unwrap_or_default();
        let is_accepted =
            |line: &Line| line.tests.is_none() && [&*name, short].contains(&line.place);
        if let Some((at, _)) = of_file().find(|(_, line)| is_accepted(line)) {
            used.insert(at);
            continue;
        }
        let with_tests = |place: &str| -> Vec<_> {
            let of_place = of_file().filter(|(_, line)| line.place == place);
            of_place
                .filter_map(|(at, line)| Some((at, line.tests.clone()?)))
                .collect()
        };
        let mut tests = with_tests(&weakening.function);
        if tests.is_empty() {
            tests = with_tests("*");
        }
        if tests.is_empty() {
            wrong.push(format!("{}: {name}: no test notices this", weakening.file));
        }
        used.extend(tests.iter().map(|(at, _)| *at));
        found.push((weakening, tests.into_iter().map(|(_, of)| of).collect()));
    }
    for (at, line) in lines.iter().enumerate() {
        if !used.contains(&at) {
            wrong.push(format!(
                "{}: {}: there is no such access",
                line.file, line.place
            ));
        }
    }
    if wrong.is_empty() {
        Ok(found)
    } else {
        Err(wrong.join("\n"))
    }
}

const ORDERINGS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// Returns the weakenings of a source, in the order of their places.
pub(super) fn of(source: &Source) -> Vec<Weakening> {
    let code = rust_text::without_tests(&rust_text::code_of(&source.text));
    let functions = rust_text::functions(&code);
    let mut found: Vec<Weakening> = Vec::new();
    let mut seen: Vec<(String, String)> = Vec::new();
    for (at, ordering, call) in places(&code) {
        let around = functions.iter().filter(|of| of.range.contains(&at));
        let function = around.min_by_key(|of| of.range.len());
        let function = function.map_or_else(String::new, |of| of.name.clone());
        let method = &code[call.clone()];
        let mut access = format!("{method} {ordering}");
        let same = (function.clone(), access.clone());
        let before = seen.iter().filter(|of| **of == same).count();
        seen.push(same);
        if before > 0 {
            access = format!("{access}#{}", before + 1);
        }
        for &by in weaker(method, ordering) {
            let range = match by {
                "" => statement(&code, call.clone()),
                _ => at..at + ordering.len(),
            };
            found.push(Weakening {
                file: source.file.clone(),
                function: function.clone(),
                access: access.clone(),
                by,
                range,
            });
        }
    }
    found
}

/// Returns what takes the place of an ordering in a call of `method`.
fn weaker(method: &str, ordering: &str) -> &'static [&'static str] {
    match (method, ordering) {
        ("fence", "SeqCst") => &["AcqRel", ""],
        ("fence", _) => &[""],
        ("load" | "store", _) | (_, "Acquire" | "Release") => &["Relaxed"],
        _ => &["Acquire", "Release"],
    }
}

/// Returns where orderings above `Relaxed` are arguments of calls, with the names of the methods.
pub(crate) fn places(code: &str) -> Vec<(usize, &str, Range<usize>)> {
    let mut found = Vec::new();
    let words: Vec<_> = words(code).collect();
    // For each open bracket, the name before it.
    let mut open: Vec<Option<Range<usize>>> = Vec::new();
    for (index, &(at, word)) in words.iter().enumerate() {
        let before = |by: usize| index.checked_sub(by).map_or("", |index| words[index].1);
        match word {
            "(" => {
                let is_call = is_part(before(1).bytes().next().unwrap_or_default());
                let is_call = is_call && before(2) != "fn";
                open.push(is_call.then(|| {
                    let start = words[index - 1].0;
                    start..start + before(1).len()
                }));
            }
            "[" | "{" => open.push(None),
            ")" | "]" | "}" => _ = open.pop(),
            _ if ORDERINGS.contains(&word) => {
                let is_end = words
                    .get(index + 1)
                    .is_some_and(|(_, next)| [")", ","].contains(next));
                let is_type = before(1) == ":" && before(2) != ":";
                if let Some(Some(call)) = open.last()
                    && is_end
                    && !is_type
                {
                    found.push((at, word, call.clone()));
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns the range of the statement with the call of `fence`: from the path before the name to
/// the semicolon.
fn statement(code: &str, call: Range<usize>) -> Range<usize> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let start = code[..call.start].trim_end_matches(is_path).len();
    let end = code[call.end..]
        .find(';')
        .map_or(call.end, |end| call.end + end + 1);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
use core::sync::atomic::Ordering::{Acquire, Release, SeqCst};
impl A {
    fn f(&self, wait: Acquire) -> u32 {
        self.0.store(1, Release); // Release
        if self.b.load(Acquire) + self.c.load(Ordering::Acquire) > 0 {
            atomic::fence(SeqCst);
        }
        self.b.compare_exchange(0, self.c.load(Relaxed), SeqCst, Acquire)
    }
}
#[cfg(test)]
mod tests { fn g() { h.load(Acquire) } }
";

    fn source() -> Source {
        Source {
            package: "a".to_owned(),
            file: "a.rs".to_owned(),
            module: Vec::new(),
            text: SOURCE.to_owned(),
        }
    }

    #[test]
    fn each_ordering_is_weakened_by_one_step() {
        let names: Vec<_> = of(&source()).iter().map(Weakening::name).collect();
        let expected = [
            "store Release > Relaxed",
            "load Acquire > Relaxed",
            "load Acquire#2 > Relaxed",
            "fence SeqCst > AcqRel",
            "fence SeqCst > none",
            "compare_exchange SeqCst > Acquire",
            "compare_exchange SeqCst > Release",
            "compare_exchange Acquire > Relaxed",
        ];
        assert_eq!(names, expected.map(|name| format!("A::f: {name}")));
    }

    #[test]
    fn a_weakening_changes_one_place_and_imports_nothing() {
        let all = of(&source());
        let weakened = |at: usize| all[at].apply(SOURCE);
        let path = "core::sync::atomic::Ordering::Relaxed";
        let store = format!("store(1, {path})");
        assert_eq!(weakened(0), SOURCE.replace("store(1, Release)", &store));
        let load = SOURCE.replace("load(Ordering::Acquire)", "load(Ordering::Relaxed)");
        assert_eq!(weakened(2), load);
        assert_eq!(weakened(4), SOURCE.replace("atomic::fence(SeqCst);", ""));
    }

    #[test]
    fn every_weakening_needs_a_test_or_a_reason() {
        let assigned = |list: &str| assigned(&[source()], list);
        let all = assigned("@ a.rs\n* ! loom one\nA::f ! loom two x y\nA::f ! core three\n");
        assert!(all.is_err_and(|why| why == "a.rs: *: there is no such access"));
        let all = assigned("@ a.rs\nA::f ! loom two x y\nA::f ! core three\n").unwrap();
        let tests = |list: &str, program: &str, names: &[&str]| Tests {
            list: list.to_owned(),
            program: program.to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let expected = vec![
            tests("loom", "two", &["x", "y"]),
            tests("core", "three", &[]),
        ];
        assert_eq!((all.len(), &all[0].1), (8, &expected));
        assert!(assigned("").is_err_and(|why| why.lines().count() == 8));
    }

    #[test]
    fn an_accepted_weakening_is_left_out() {
        let list = "@ a.rs\nA::f ! loom two\nA::f: fence SeqCst > AcqRel ~ the loads acquire\n\
                    A::f: load Acquire#2 ~ nothing is read after it\n";
        let all = assigned(&[source()], list).unwrap();
        let names: Vec<_> = all.iter().map(|(weakening, _)| weakening.name()).collect();
        assert_eq!(names.len(), 6, "{names:?}");
        assert!(
            lines("@ a.rs\nA::f: load Acquire ~ so\n").is_err(),
            "no reason"
        );
        assert!(lines("A::f ! loom two\n").is_err(), "no file");
    }
}
