//! Reads lists of mutants.
//!
//! ```text
//! @ core/src/word/live.rs
//! # A comment.
//! fn change( ! live wide::a_change_is_seen
//! - the text to remove ~> the text to put in its place
//! - a text to remove
//! fn load(
//! - a text ~> another one ! live wide::a_load_is_whole
//! - a text to remove ! live wide::a_load_sees_the_last_change
//! ```
//!
//! | line | says |
//! |---|---|
//! | `@` | the file of the mutants that follow |
//! | `FN ! FILE NAME` | the function that they change, and the test that must fail: its file, its name |
//! | `FN` | the function, if its mutants have tests of their own |
//! | `-` | one mutant, and ` ! FILE NAME` after it if the line of the function has no test |

/// One deliberate break, and the test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mutant {
    /// The file, relative to the root of the workspace.
    pub(super) file: &'static str,
    /// The first words of the function that is changed, up to its end; in Lua, of the block. They
    /// must occur once in the file.
    pub(super) within: &'static str,
    /// The text to replace. It must occur once in the function. White space does not matter. Write
    /// no comma before a closing bracket, also where the source has one.
    pub(super) text: &'static str,
    pub(super) by: &'static str,
    /// The file of a test, and its name.
    pub(super) test: (&'static str, &'static str),
}

/// Reads a list.
///
/// # Errors
///
/// Returns the first line that is none of the forms above, or that comes before what it needs.
pub(super) fn read(list: &'static str) -> Result<Vec<Mutant>, String> {
    let (mut file, mut place) = (None, None);
    // The line of a function that has no mutant yet.
    let mut open = None;
    let mut mutants = Vec::new();
    for line in list.lines() {
        let malformed = || format!("not a line of a list of mutants: {line}");
        if line.starts_with('#') {
        } else if let Some(change) = line.strip_prefix("- ") {
            let (within, of_all): (_, Option<_>) = place.ok_or_else(malformed)?;
            let (change, own) = with_test(change);
            // One of the two names the test.
            if own.is_some() == of_all.is_some() {
                return Err(malformed());
            }
            let (text, by) = change.split_once(" ~> ").unwrap_or((change, ""));
            mutants.push(Mutant {
                file: file.ok_or_else(malformed)?,
                within,
                text,
                by,
                test: own.or(of_all).ok_or_else(malformed)?,
            });
            open = None;
        } else if line.is_empty() || open.is_some() {
            return Err(malformed());
        } else if let Some(path) = line.strip_prefix("@ ") {
            (file, place) = (Some(path), None);
        } else {
            (place, open) = (Some(with_test(line)), Some(line));
        }
    }
    match open {
        Some(line) => Err(format!("a function without mutants: {line}")),
        None => Ok(mutants),
    }
}

/// Splits a line into what is before the test, and the test: its file, and its name.
fn with_test(line: &str) -> (&str, Option<(&str, &str)>) {
    let parts = line.rsplit_once(" ! ");
    let named = parts.and_then(|(before, test)| Some((before, test.split_once(' ')?)));
    named.map_or((line, None), |(before, test)| (before, Some(test)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_with_the_file_and_the_place_of_each_mutant() {
        let list = "# Why.\n@ a.rs\nfn f( ! t one\n- x ~> y\n- z\nfn g(\n- x ~> y ! t two::three\n- z ! t one";
        let mutant = |within, text, by, test| Mutant {
            file: "a.rs",
            within,
            text,
            by,
            test: ("t", test),
        };
        let expected = vec![
            mutant("fn f(", "x", "y", "one"),
            mutant("fn f(", "z", "", "one"),
            mutant("fn g(", "x", "y", "two::three"),
            mutant("fn g(", "z", "", "one"),
        ];
        assert_eq!(read(list), Ok(expected));
    }

    #[test]
    fn a_line_without_its_file_or_place_is_rejected() {
        for list in [
            "- x ~> y",
            "@ a.rs\n- x",
            "fn f( ! t one\n- x",
            "@ a.rs\nfn f(\n- x",
            "@ a.rs\nfn f( ! t one",
            "@ a.rs\nfn f( ! t one\nfn g( ! t one\n- x",
            "@ a.rs\nfn f( ! t one\n- x ! t two",
            "@ a.rs\nfn f( ! t one\n- x\n\n- y",
            "+ x",
        ] {
            assert!(read(list).is_err(), "{list}");
        }
    }
}
