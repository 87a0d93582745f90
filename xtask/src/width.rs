//! Checks the width of comments and prose. The formatter handles only code.

use std::path::Path;

use crate::command::Check;
use crate::files;
use crate::sources;

/// The largest width of a line of a comment or of prose, in columns.
const WIDTH: usize = 100;

/// Fails with the lines in comments of Rust sources and in Markdown that are too wide. Tables,
/// links and the output of programs are excepted, because they cannot be wrapped.
pub(crate) fn check(root: &Path) -> Check {
    let mut wide = Vec::new();
    let mut checked = 0;
    for file in sources::files(root).map_err(files::at(root))? {
        let is_prose = match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => false,
            Some("md") => true,
            _ => continue,
        };
        let text = files::read(&root.join(&file))?;
        checked += 1;
        let numbers = wide_lines(&text, is_prose);
        wide.extend(numbers.map(|number| format!("{}:{number}", file.display())));
    }
    if wide.is_empty() {
        Ok(format!("{checked} files in {WIDTH} columns"))
    } else {
        Err(format!("wider than {WIDTH} columns: {}", wide.join(", ")))
    }
}

/// Returns the numbers of the lines that are too wide, from 1. A Markdown block of `text` is the
/// output of a program.
fn wide_lines(text: &str, is_prose: bool) -> impl Iterator<Item = usize> {
    let mut is_output = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        if is_prose && line.starts_with("```") {
            is_output = line == "```text";
        }
        (!is_output && is_too_wide(line, is_prose)).then_some(number)
    })
}

fn is_too_wide(line: &str, is_prose: bool) -> bool {
    if line.chars().count() <= WIDTH {
        return false;
    }
    let text = line.trim_start();
    let text = match text.strip_prefix("//") {
        Some(comment) => comment.trim_start_matches(['/', '!']).trim_start(),
        None if is_prose => text,
        None => return false,
    };
    let is_table = text.starts_with('|');
    let has_link = text.contains("://");
    !is_table && !has_link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_or_a_line_of_prose_is_too_wide_from_101_columns_on() {
        let of =
            |columns: usize, start: &str| format!("{start}{}", "µ".repeat(columns - start.len()));
        for start in ["// ", "    /// ", "//! "] {
            assert!(!is_too_wide(&of(100, start), false), "{start}");
            assert!(is_too_wide(&of(101, start), false), "{start}");
        }
        assert!(
            !is_too_wide(&of(101, "let a = "), false),
            "left to the formatter"
        );
        assert!(is_too_wide(&of(101, "Words "), true));
    }

    #[test]
    fn the_output_of_a_program_may_be_wider() {
        let wide = "a ".repeat(60);
        let document = format!("{wide}\n```text\n{wide}\n```\n{wide}\n```sh\n{wide}\n```\n");
        assert_eq!(wide_lines(&document, true).collect::<Vec<_>>(), [1, 5, 7]);
    }

    #[test]
    fn tables_and_links_may_be_wider() {
        let rest = "x".repeat(100);
        assert!(!is_too_wide(&format!("/// | {rest} |"), false));
        assert!(!is_too_wide(&format!("| {rest} |"), true));
        assert!(!is_too_wide(&format!("// See https://{rest}"), false));
    }
}
