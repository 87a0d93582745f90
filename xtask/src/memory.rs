//! Tests that the tables of `docs/memory-ordering.md` name functions and types that are in the
//! files that the title of their section names.

use std::collections::BTreeSet;

use crate::files::root;
use crate::manifest;
use crate::rust_text;
use crate::sources::{self, Source};

const DOCUMENT: &str = "docs/memory-ordering.md";

/// The columns with names of functions.
const COLUMNS: [&str; 2] = ["function", "pairs with"];

/// Returns the words in code font.
fn in_code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the names in code font of the columns with functions, of all tables of a section.
fn named(section: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut titles: Vec<&str> = Vec::new();
    for line in section.lines() {
        let Some(row) = line.strip_prefix('|') else {
            titles.clear();
            continue;
        };
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        if titles.is_empty() {
            titles = cells;
            continue;
        }
        for (title, cell) in titles.iter().zip(cells) {
            if COLUMNS.contains(title) {
                names.extend(in_code(cell).filter(|name| is_name(name)));
            }
        }
    }
    names
}

/// Whether a word is the name of a function or a type, and not a file, a model or an ordering.
fn is_name(word: &str) -> bool {
    if ["Acquire", "Release", "AcqRel", "SeqCst", "Relaxed"].contains(&word) {
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
fn the_tables_of_orderings_name_functions_of_their_files() {
    let document = manifest::read(root(), DOCUMENT).expect("the document");
    let sources = sources::of_packages(root()).expect("the sources");
    let mut wrong = Vec::new();
    let mut count = 0;
    for section in document.split("\n## ").skip(1) {
        let (title, section) = section.split_once('\n').expect("a title");
        let files: Vec<_> = in_code(title).collect();
        let mut codes = Vec::new();
        for file in &files {
            let of = sources.iter().filter(|source| is_of(file, source));
            let before = codes.len();
            codes.extend(of.map(|source| rust_text::code_of(&source.text)));
            if codes.len() == before {
                wrong.push(format!("{title}: there is no {file}"));
            }
        }
        let names = named(section);
        count += names.len();
        for name in unknown(&names, &codes) {
            wrong.push(format!("{title}: none of these files has {name}"));
        }
    }
    assert!(wrong.is_empty(), "{DOCUMENT}:\n{}", wrong.join("\n"));
    assert!(count > 100, "{count} names");
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
