//! Reads lists of mutants.
//!
//! ```text
//! # A comment.
//! @ core/src/word/live.rs
//! fn change( ! live wide::a_change_is_seen
//! - the text to remove ~> the text to put in its place
//! - a text to remove
//! ```
//!
//! | line | says |
//! |---|---|
//! | `@` | the file of the mutants that follow |
//! | `... ! FILE NAME` | the function that they change, and the test that must fail: its file, its name |
//! | `-` | one mutant |

/// One deliberate break, and the test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mutant {
    /// The file, relative to the root of the workspace.
    pub(super) file: &'static str,
    /// The first words of the function that is changed, up to its end; in Lua, of the block. They
    /// must occur once in the file.
    pub(super) within: &'static str,
    /// The text to replace. It must occur once in the function. White space does not matter.
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
    let mut mutants = Vec::new();
    for line in list.lines() {
        let malformed = || format!("not a line of a list of mutants: {line}");
        if line.is_empty() || line.starts_with('#') {
        } else if let Some(path) = line.strip_prefix("@ ") {
            (file, place) = (Some(path), None);
        } else if let Some(change) = line.strip_prefix("- ") {
            let (text, by) = change.split_once(" ~> ").unwrap_or((change, ""));
            let (within, test) = place.ok_or_else(malformed)?;
            mutants.push(Mutant {
                file: file.ok_or_else(malformed)?,
                within,
                text,
                by,
                test,
            });
        } else {
            let (within, test) = line.split_once(" ! ").ok_or_else(malformed)?;
            place = Some((within, test.split_once(' ').ok_or_else(malformed)?));
        }
    }
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_with_the_file_and_the_place_of_each_mutant() {
        let list =
            "# Why.\n@ a.rs\nfn f( ! t one\n- x ~> y\n- z\n\nfn g( ! t two::three\n- x ~> y\n";
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
        ];
        assert_eq!(read(list), Ok(expected));
    }

    #[test]
    fn a_line_without_its_file_or_place_is_rejected() {
        for list in [
            "- x ~> y",
            "@ a.rs\n- x",
            "fn f( ! t one\n- x",
            "@ a.rs\nfn f(",
            "+ x",
        ] {
            assert!(read(list).is_err(), "{list}");
        }
    }
}
