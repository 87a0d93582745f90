//! Checks how the sources are built: where modules import from, and how large functions are.
//!
//! What breaks a rule already is in a list, and the lists may only shrink: an entry that is no
//! longer needed, or that could be smaller, is an error too. With `--bless` this step writes the
//! smaller lists; nothing is added to them but by hand.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::path::Path;

use crate::command::Check;
use crate::context::Context;
use crate::files;
use crate::imports;
use crate::manifest;
use crate::rust_text;
use crate::sources;

/// The largest number of lines of a function, from its `fn` to its closing brace.
const LINES: usize = 60;

/// The largest depth of the braces of a function, with those around its body.
const LEVELS: usize = 6;

/// The list of larger functions: file, function, lines, levels.
const FUNCTIONS: &str = "xtask/house/functions.txt";

/// The size of a function, in lines and levels.
type Size = (usize, usize);

/// The functions that are larger than allowed, by file and name.
type Functions = BTreeMap<(String, String), Size>;

pub(crate) fn check(context: &Context) -> Check {
    let root = &context.root;
    let mut wrong = imports::check(root, context.bless)?;
    let (mut found, known) = (large(root)?, listed(&manifest::read(root, FUNCTIONS)?));
    if context.bless {
        found.retain(|name, size| known.get(name).is_some_and(|known| fits(*size, *known)));
        files::write(&root.join(FUNCTIONS), &list(&found))?;
        return Ok("the lists are as short as they can be".to_owned());
    }
    wrong.extend(judged(&found, &known));
    if wrong.is_empty() {
        Ok(format!(
            "{} functions are larger than {LINES} lines or {LEVELS} levels",
            found.len()
        ))
    } else {
        Err(wrong.join("\n"))
    }
}

fn fits((lines, levels): Size, (most_lines, most_levels): Size) -> bool {
    lines <= most_lines && levels <= most_levels
}

/// Returns the functions in the sources of the workspace that are too large. Functions of one name
/// in one file count as one.
fn large(root: &Path) -> Result<Functions, String> {
    let mut found = Functions::new();
    for source in sources::of_packages(root)? {
        for function in rust_text::functions(&rust_text::code_of(&source.text)) {
            let size = (function.lines(&source.text), function.levels);
            if !fits(size, (LINES, LEVELS)) {
                let name = (source.file.clone(), function.name);
                let of = found.entry(name).or_default();
                *of = (of.0.max(size.0), of.1.max(size.1));
            }
        }
    }
    Ok(found)
}

fn listed(list: &str) -> Functions {
    let entries = list.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let name = (words.next()?.to_owned(), words.next()?.to_owned());
        let size = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((name, size))
    });
    entries.collect()
}

fn list(functions: &Functions) -> String {
    let mut list = String::new();
    for ((file, name), (lines, levels)) in functions {
        _ = writeln!(list, "{file} {name} {lines} {levels}");
    }
    list
}

/// Compares the large functions with those of the list.
fn judged(found: &Functions, known: &Functions) -> Vec<String> {
    let mut wrong = Vec::new();
    for ((file, name), size) in found {
        let most = known.get(&(file.clone(), name.clone()));
        if !fits(*size, most.copied().unwrap_or((LINES, LEVELS))) {
            let (lines, levels) = size;
            wrong.push(format!(
                "{file}: {name} has {lines} lines and {levels} levels: divide it"
            ));
        }
    }
    for (name, most) in known {
        if found
            .get(name)
            .is_none_or(|size| size != most && fits(*size, *most))
        {
            let (file, name) = name;
            wrong.push(format!(
                "{FUNCTIONS}: {file} {name} is smaller now: cargo xtask house --bless"
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(lines: usize, levels: usize) -> Functions {
        let name = ("a.rs".to_owned(), "A::f".to_owned());
        Functions::from([(name, (lines, levels))])
    }

    #[test]
    fn a_large_function_must_be_in_the_list_and_must_not_grow() {
        let known = one(70, 5);
        assert!(judged(&known, &known).is_empty());
        for (found, known) in [
            (one(71, 5), &known),
            (one(70, 6), &known),
            (one(61, 2), &Functions::new()),
            (one(9, 7), &Functions::new()),
        ] {
            let wrong = judged(&found, known);
            assert!(wrong[0].ends_with("divide it"), "{wrong:?}");
        }
    }

    #[test]
    fn the_list_of_large_functions_may_only_shrink() {
        assert_eq!(judged(&one(69, 5), &one(70, 5)).len(), 1, "shorter");
        assert_eq!(judged(&one(70, 4), &one(70, 5)).len(), 1, "flatter");
        assert_eq!(judged(&Functions::new(), &one(70, 5)).len(), 1, "gone");
    }

    #[test]
    fn a_list_is_read_as_it_is_written() {
        let functions = one(70, 5);
        assert_eq!(list(&functions), "a.rs A::f 70 5\n");
        assert_eq!(listed(&list(&functions)), functions);
    }
}
