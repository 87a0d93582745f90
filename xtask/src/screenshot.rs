//! Makes the picture of the demo in the README from the demo's own output.
//!
//! The output has codes of colours, as on a terminal. Each line becomes an element `text`, each run
//! of one style an element `tspan` at its column. A test of the program compares the picture with a
//! run of the demo, in all that does not depend on times.

use core::fmt::Write as _;

use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::files;

/// The picture, from the root.
const PICTURE: &str = "docs/demo.svg";

/// The command that the picture shows.
const COMMAND: &str = "portcullis demo";

/// The measures of a character and the border, in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
const BORDER: f64 = 16.0;

/// The columns of the terminal.
const COLUMNS: usize = 80;

/// The codes of the demo's colours, and the classes of the picture.
const CLASSES: [(&str, &str); 4] = [("1", "b"), ("2", "f"), ("32", "g"), ("1;31", "r")];

const STYLE: &str = "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;\
                     fill:#d6dae0;white-space:pre}.b{font-weight:bold;fill:#fff}\
                     .f{fill:#69717c}.g{fill:#6fce7c}.r{font-weight:bold;fill:#ff7b72}";

pub(crate) fn write(context: &Context) -> Check {
    let mut cargo = context.cargo();
    cargo.words("run --quiet --release --package portcullis-cli -- demo");
    cargo.env("CLICOLOR_FORCE", "1");
    cargo.env_remove("NO_COLOR");
    command::announce(&cargo);
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("the demo ended with {}:\n{text}", output.status));
    }
    files::write(&context.root.join(PICTURE), &picture(&text))?;
    Ok(format!("{PICTURE} is written"))
}

/// Returns the picture of a terminal with `output`.
#[expect(clippy::cast_precision_loss, reason = "columns and lines are few")]
fn picture(output: &str) -> String {
    let prompt = format!("\x1b[2m$\x1b[0m {COMMAND}");
    let lines: Vec<&str> = [prompt.as_str()]
        .into_iter()
        .chain(output.lines())
        .collect();
    let width = (COLUMNS as f64).mul_add(WIDTH, 2.0 * BORDER);
    let height = (lines.len() as f64).mul_add(HEIGHT, 2.0 * BORDER);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"The output of {COMMAND}\">\n<style>{STYLE}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#16191d\"/>\n"
    );
    for (index, line) in lines.iter().enumerate() {
        let y = (index as f64 + 0.8).mul_add(HEIGHT, BORDER);
        let _ = write!(svg, "<text y=\"{y:.1}\">");
        let mut column = 0;
        for (class, text) in runs(line) {
            let x = (column as f64).mul_add(WIDTH, BORDER);
            let class = class.map_or(String::new(), |class| format!(" class=\"{class}\""));
            let _ = write!(svg, "<tspan x=\"{x:.1}\"{class}>{}</tspan>", escaped(text));
            column += text.chars().count();
        }
        svg.push_str("</text>\n");
    }
    svg + "</svg>\n"
}

/// Returns the runs of one style in a line, with the class of each.
fn runs(line: &str) -> Vec<(Option<&'static str>, &str)> {
    let mut parts = line.split("\x1b[");
    let mut runs = vec![(None, parts.next().unwrap_or_default())];
    for part in parts {
        let (code, text) = part.split_once('m').unwrap_or(("", part));
        let class = CLASSES.iter().find(|(of, _)| *of == code);
        runs.push((class.map(|(_, class)| *class), text));
    }
    runs.retain(|(_, text)| !text.is_empty());
    runs
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_divided_into_runs_of_one_style() {
        assert_eq!(
            runs("5 of 5  \x1b[32mheld\x1b[0m and \x1b[1;31mBROKEN\x1b[0m"),
            [
                (None, "5 of 5  "),
                (Some("g"), "held"),
                (None, " and "),
                (Some("r"), "BROKEN")
            ]
        );
    }

    #[test]
    fn each_line_of_the_output_is_a_line_of_the_picture() {
        let picture = picture("a < b\n\n\x1b[1mlimiter\x1b[0m\n");
        let lines: Vec<_> = picture
            .lines()
            .filter(|line| line.starts_with("<text"))
            .collect();
        assert_eq!(lines.len(), 4, "{picture}");
        assert!(lines[1].contains(">a &lt; b</tspan>"), "{picture}");
        assert!(lines[3].contains("class=\"b\">limiter<"), "{picture}");
    }
}
