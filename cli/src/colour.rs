//! Whether output has colours, and which.

use std::env;
use std::ffi::OsString;
use std::io::IsTerminal;

/// Returns whether text for `stream` has colours: if it is a terminal, or if `CLICOLOR_FORCE` is
/// set to anything but `0`. Never if `NO_COLOR` is set to anything but the empty text.
pub(crate) fn is_for(stream: &impl IsTerminal) -> bool {
    decide(stream.is_terminal(), |name| env::var_os(name))
}

fn decide(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_set = |name, off: &str| variable(name).is_some_and(|value| value != off);
    let has_colours = is_terminal && variable("TERM").is_none_or(|kind| kind != "dumb");
    !is_set("NO_COLOR", "") && (has_colours || is_set("CLICOLOR_FORCE", "0"))
}

/// A way to show text on a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Bold,
    Good,
    Bad,
    Faint,
}

/// Puts text into colours, or leaves it as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Painter {
    pub(crate) is_on: bool,
}

impl Painter {
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Bold => "1",
            Style::Good => "32",
            Style::Bad => "1;31",
            Style::Faint => "2",
        };
        if self.is_on {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_the_environment_says_otherwise() {
        for (is_terminal, variables, expected) in [
            (true, &[][..], true),
            (false, &[], false),
            (true, &[("NO_COLOR", "1")], false),
            (true, &[("NO_COLOR", "")], true),
            (true, &[("TERM", "dumb")], false),
            (false, &[("CLICOLOR_FORCE", "1")], true),
            (false, &[("CLICOLOR_FORCE", "0")], false),
            (true, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let decided = decide(is_terminal, variable);
            assert_eq!(decided, expected, "{is_terminal} {variables:?}");
        }
    }

    #[test]
    fn paint_without_colours_leaves_text_as_it_is() {
        let [on, off] = [true, false].map(|is_on| Painter { is_on }.paint(Style::Good, "held"));
        assert_eq!([on.as_str(), &off], ["\x1b[32mheld\x1b[0m", "held"]);
    }
}
