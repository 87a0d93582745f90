//! Tests that the tables of `docs/memory-ordering.md` name functions and types that are in the
//! files that the title of their section names, and that a row and its functions have the same
//! orderings:
//!
//! - each ordering of a row is in the text of one of its functions;
//! - each ordering above `Relaxed` of a function that a row names is in one of its rows.
//!
//! A name after "for" is that of a caller, whose text has the ordering elsewhere. It may be in any
//! file of the same packages.

use core::ops::Range;
use std::collections::BTreeSet;

use crate::files::root;
use crate::manifest;
use crate::rust_text;
use crate::sources::{self, Source};
use crate::weaken::orderings;

const DOCUMENT: &str = "docs/memory-ordering.md";

const ORDERINGS: [&str; 5] = ["Acquire", "Release", "AcqRel", "SeqCst", "Relaxed"];

/// The columns with names of functions.
const COLUMNS: [&str; 2] = ["function", "pairs with"];

/// Returns the words in code font.
fn in_code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the rows of all tables of a section: each cell with the title of its column.
fn rows(section: &str) -> Vec<Vec<(&str, &str)>> {
    let mut rows = Vec::new();
    let mut titles: Vec<&str> = Vec::new();
    for line in section.lines() {
        let Some(row) = line.strip_prefix('|') else {
            titles.clear();
            continue;
        };
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        if titles.is_empty() {
            titles = cells;
        } else {
            rows.push(titles.iter().copied().zip(cells).collect());
        }
    }
    rows
}

/// Returns the names in code font of the columns with functions, of all tables of a section.
fn named(section: &str) -> Vec<&str> {
    let cells = rows(section).into_iter().flatten();
    let cells = cells.filter(|(title, _)| COLUMNS.contains(title));
    let words = cells.flat_map(|(_, cell)| in_code(cell));
    words.filter(|name| is_name(name)).collect()
}

/// Returns those of the names that are callers: the names after "for".
fn callers(section: &str) -> Vec<&str> {
    let cells = rows(section).into_iter().flatten();
    let cells = cells.filter(|(title, _)| *title == "function");
    let words = cells.filter_map(|(_, cell)| Some(in_code(cell.split_once(", for ")?.1)));
    words.flatten().filter(|name| is_name(name)).collect()
}

/// What a row says of the orderings of functions.
struct Says<'t> {
    functions: Vec<&'t str>,
    orderings: Vec<&'t str>,
}

/// Returns what the rows of a section say, without those that name no function or no ordering.
fn said(section: &str) -> Vec<Says<'_>> {
    let rows = rows(section).into_iter().map(|row| {
        let cell = |of: &str| row.iter().find(|(title, _)| *title == of);
        let cell = |of| cell(of).map_or("", |(_, cell)| *cell);
        let functions = cell("function").split(", for ").next().unwrap_or_default();
        Says {
            functions: in_code(functions).filter(|name| is_name(name)).collect(),
            orderings: in_code(cell("ordering"))
                .filter(|word| ORDERINGS.contains(word))
                .collect(),
        }
    });
    rows.filter(|says| !says.functions.is_empty() && !says.orderings.is_empty())
        .collect()
}

/// Whether a row that says `name` is about this function: the name is that of the function, with
/// its type or without, or that of its type.
fn is_about(name: &str, function: &str) -> bool {
    let (kind, bare) = function.split_once("::").unwrap_or_default();
    [function, kind, bare].contains(&name)
}

/// Returns the functions and macros of a code, with their places.
fn parts(code: &str) -> Vec<(String, Range<usize>)> {
    let functions = rust_text::functions(code).into_iter();
    let mut parts: Vec<_> = functions.map(|of| (of.name, of.range)).collect();
    for (at, _) in code.match_indices("macro_rules! ") {
        // The bracket that closes it begins a line.
        let end = code[at..].find("\n}").map_or(code.len(), |end| at + end);
        let name = rust_text::words(&code[at..]).nth(2);
        parts.extend(name.map(|(_, name)| (name.to_owned(), at..end)));
    }
    parts
}

/// Returns what the rows of a section say otherwise than the code of its files.
fn differing(says: &[Says<'_>], codes: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<_> = codes.iter().map(|code| (code, parts(code))).collect();
    for Says {
        functions,
        orderings,
    } in says
    {
        let mut present = BTreeSet::new();
        for (code, parts) in &parts {
            let of_row = |name: &str| functions.iter().any(|of| is_about(of, name));
            for (_, range) in parts.iter().filter(|(name, _)| of_row(name)) {
                present.extend(rust_text::words(&code[range.clone()]).map(|(_, word)| word));
            }
        }
        let absent = orderings.iter().filter(|of| !present.contains(**of));
        let functions = functions.join(", ");
        wrong.extend(absent.map(|of| format!("no access of {functions} is {of}")));
    }
    for (code, parts) in &parts {
        for (at, ordering, _) in orderings::places(code) {
            let around = parts.iter().filter(|(_, range)| range.contains(&at));
            let Some((name, _)) = around.min_by_key(|(_, range)| range.len()) else {
                continue;
            };
            let of_name = |of: &&Says<'_>| of.functions.iter().any(|of| is_about(of, name));
            let mut rows = says.iter().filter(of_name).peekable();
            if rows.peek().is_some() && !rows.any(|of| of.orderings.contains(&ordering)) {
                wrong.push(format!(
                    "no row says that an access of {name} is {ordering}"
                ));
            }
        }
    }
    wrong
}

/// Whether a word is the name of a function or a type, and not a file, a model or an ordering.
fn is_name(word: &str) -> bool {
    if ORDERINGS.contains(&word) {
        return false;
    }
    let is_path = word
        .bytes()
        .all(|byte| rust_text::is_part(byte) || byte == b':');
    let is_model = word.contains("::") && word.starts_with(|c: char| c.is_lowercase());
    is_path && !is_model
}

/// Whether a title names a source: by the end of its path, or by a folder around it. A short path
/// is one in the core or in the asynchronous library.
fn is_of(title: &str, source: &Source) -> bool {
    let file = &source.file;
    let is_short = ["core", "async"].contains(&&*source.package);
    match title.strip_suffix('/') {
        Some(folder) => is_short && file.contains(&format!("/{folder}/")),
        None => file == title || is_short && file.ends_with(&format!("/{title}")),
    }
}

/// Returns the names that are those of no function, type or macro in the code.
fn unknown<'n>(names: &[&'n str], codes: &[String]) -> Vec<&'n str> {
    let (mut known, mut before) = (BTreeSet::new(), ["", ""]);
    for code in codes {
        known.extend(rust_text::functions(code).into_iter().map(|of| of.name));
        for (_, word) in rust_text::words(code) {
            let is_macro = before == ["macro_rules", "!"];
            if is_macro || ["fn", "struct", "enum", "trait"].contains(&before[1]) {
                known.insert(word.to_owned());
            }
            before = [before[1], word];
        }
    }
    let names = names.iter().copied();
    names.filter(|name| !known.contains(*name)).collect()
}

#[test]
fn the_tables_of_orderings_are_those_of_the_functions_of_their_files() {
    let document = manifest::read(root(), DOCUMENT).expect("the document");
    let sources = sources::of_packages(root()).expect("the sources");
    let mut wrong = Vec::new();
    let (mut count, mut rows) = (0, 0);
    for section in document.split("\n## ").skip(1) {
        let (title, section) = section.split_once('\n').expect("a title");
        let files: Vec<_> = in_code(title).collect();
        let (mut codes, mut packages) = (Vec::new(), BTreeSet::new());
        let code = |source: &Source| rust_text::without_tests(&rust_text::code_of(&source.text));
        for file in &files {
            let of = sources.iter().filter(|source| is_of(file, source));
            packages.extend(of.clone().map(|source| &source.package));
            let before = codes.len();
            codes.extend(of.map(code));
            if codes.len() == before {
                wrong.push(format!("{title}: there is no {file}"));
            }
        }
        let names = named(section);
        count += names.len();
        let callers = callers(section);
        let unknown_here = unknown(&names, &codes);
        let (callers, others): (Vec<_>, Vec<_>) = unknown_here
            .into_iter()
            .partition(|name| callers.contains(name));
        let none_has = others
            .iter()
            .map(|name| format!("{title}: none of these files has {name}"));
        wrong.extend(none_has);
        if !callers.is_empty() {
            let of = sources
                .iter()
                .filter(|source| packages.contains(&source.package));
            let codes: Vec<_> = of.map(code).collect();
            let unknown = unknown(&callers, &codes).into_iter();
            wrong.extend(unknown.map(|name| format!("{title}: nothing has {name}")));
        }
        let says = said(section);
        rows += says.len();
        let differing = differing(&says, &codes).into_iter();
        wrong.extend(differing.map(|what| format!("{title}: {what}")));
    }
    assert!(wrong.is_empty(), "{DOCUMENT}:\n{}", wrong.join("\n"));
    assert!(count > 100 && rows > 100, "{count} names, {rows} rows");
}

#[test]
fn names_are_read_and_looked_up() {
    let section = "\
words `a`

| | function | access | pairs with |
|---|---|---|---|
| A | `A::f`, `g` of `b.rs` | `load` | `m::a_model`, `H` |
";
    let names = named(section);
    assert_eq!(names, ["A::f", "g", "H"]);
    let codes = ["impl A { fn f() {} }", "macro_rules! g {}"].map(str::to_owned);
    assert_eq!(unknown(&names, &codes), ["H"]);
    assert_eq!(unknown(&["B::f", "f"], &codes), ["B::f"]);
}

#[test]
fn callers_are_the_names_after_for() {
    let section = "\
| function | access | pairs with |
|---|---|---|
| `f`, `g`, for `h` and `A::i` of `b.rs` | `load` | `J`, for `k` |
";
    assert_eq!(callers(section), ["h", "A::i"]);
}

#[test]
fn a_row_and_its_functions_have_the_same_orderings() {
    let section = "
| function | access | ordering |
|---|---|---|
| `f`, for `h` | load, store | `Acquire`; `Relaxed` |
| `A::g`, `m` | exchange | `AcqRel` |
";
    let code = "
macro_rules! m {
    ($a:ident) => {
        $a.swap(1, AcqRel)
    };
}
impl A {
    fn f(&self) { self.a.load(Acquire); self.a.store(1, Relaxed) }
    fn g(&self) { self.a.swap(1, AcqRel) }
    fn h(&self) { self.b.load(SeqCst) }
}
impl B { fn g(&self) { self.a.swap(1, SeqCst) } }
";
    let differing = |from: &str, to: &str| {
        assert!(code.contains(from));
        self::differing(&said(section), &[code.replace(from, to)])
    };
    assert_eq!(differing("A", "A"), [""; 0]);
    let one = [
        "no access of f is Acquire",
        "no row says that an access of A::f is SeqCst",
    ];
    assert_eq!(differing("load(Acquire)", "load(SeqCst)"), one);
    assert_eq!(
        differing("load(Acquire)", "load(Relaxed)"),
        ["no access of f is Acquire"]
    );
    let stronger = ["no row says that an access of A::g is SeqCst"];
    let g = "fn g(&self) { self.a.swap(1, AcqRel) }";
    assert_eq!(differing(g, &g.replace("AcqRel", "SeqCst")), stronger);
}
