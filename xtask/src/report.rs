//! How steps ended: one table, one total, and what the steps that failed printed.

use core::fmt::Write;
use core::time::Duration;

/// How a step ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed(String),
    Failed(String),
    NotRun(String),
}

impl Outcome {
    /// Returns a word for the table, and the remark.
    pub(crate) fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Passed(remark) => ("passed", remark),
            Self::Failed(remark) => ("FAILED", remark),
            Self::NotRun(remark) => ("not run", remark),
        }
    }

    /// Returns the outcome with these [words](Self::words).
    pub(crate) fn from_words(word: &str, remark: String) -> Option<Self> {
        Some(match word {
            "passed" => Self::Passed(remark),
            "FAILED" => Self::Failed(remark),
            "not run" => Self::NotRun(remark),
            _ => return None,
        })
    }
}

/// A step that has ended.
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// Processor time, in seconds.
    pub(crate) work: u64,
}

impl Ended {
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }
}

/// Returns the table of all steps and a total. Then, for each step that failed, an excerpt of what
/// it printed, and the names of these steps: the end of a log says what is wrong.
pub(crate) fn summary(steps: &[Ended], printed: impl Fn(&'static str) -> Option<String>) -> String {
    let mut text = String::from("\n");
    for Ended {
        name,
        outcome,
        took,
        work,
    } in steps
    {
        let (word, remark) = outcome.words();
        let took = format!("{:.0} s", took.as_secs_f64().ceil());
        let mut lines = remark.lines();
        let mut remark = lines.next().unwrap_or_default().to_owned();
        let more = lines.count();
        if more > 0 {
            _ = write!(remark, " (and {more} lines more)");
        }
        let line = format!("{name:15} {word:8} {took:>6} {work:>6} s of work  {remark}");
        text.extend([line.trim_end(), "\n"]);
    }
    let is_passed = |step: &&Ended| matches!(step.outcome, Outcome::Passed(_));
    let passed = steps.iter().filter(is_passed).count();
    let failed: Vec<_> = steps.iter().filter(|step| step.has_failed()).collect();
    let work: u64 = steps.iter().map(|step| step.work).sum();
    _ = writeln!(
        text,
        "{passed} passed, {} failed, {work} s of work",
        failed.len()
    );
    let mut has_excerpt = false;
    for step in &failed {
        if let Some(printed) = printed(step.name) {
            let (_, why) = step.outcome.words();
            _ = write!(
                text,
                "\n=== {} FAILED: {why}\n{}",
                step.name,
                excerpt(&printed)
            );
            has_excerpt = true;
        }
    }
    if has_excerpt {
        let names: Vec<_> = failed.iter().map(|step| step.name).collect();
        _ = writeln!(text, "\nfailed: {}", names.join(", "));
    }
    text
}

/// The number of lines of an excerpt.
const LINES: usize = 40;

/// The number of lines at the end of what a step printed that an excerpt always has.
const LAST: usize = 12;

/// Returns the lines that say what is wrong, and the last ones. Tests that pass can print much
/// after those that failed.
fn excerpt(printed: &str) -> String {
    let lines: Vec<_> = printed.lines().collect();
    let last = lines.len().saturating_sub(LAST);
    let mut chosen: Vec<usize> = (0..last).filter(|&at| tells(&lines, at)).collect();
    // Of too many, the first are the causes of others, and the last name the tests.
    if let Some(surplus @ 1..) = chosen.len().checked_sub(LINES - LAST) {
        let first = (LINES - LAST) / 2;
        chosen.drain(first..first + surplus);
    }
    chosen.extend(last..lines.len());
    let mut text = String::new();
    let mut next = 0;
    for at in chosen {
        if at > next {
            text.push_str("...\n");
        }
        text.extend([lines[at], "\n"]);
        next = at + 1;
    }
    text
}

/// Whether a line, or one just before it, begins an error message.
fn tells(lines: &[&str], at: usize) -> bool {
    // The message of a panic, and the place of an error of the compiler, are below.
    let followed = |line: &&str| {
        let begins = |word: &&str| line.starts_with(word);
        line.contains("panicked at ") || ["error", "warning", "Diff in "].iter().any(begins)
    };
    lines[at].ends_with("FAILED") || lines[at.saturating_sub(2)..=at].iter().any(followed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(name: &'static str, outcome: Outcome, work: u64) -> Ended {
        Ended {
            name,
            outcome,
            took: Duration::from_secs(2),
            work,
        }
    }

    #[test]
    fn a_run_ends_with_one_total_and_what_failed() {
        let steps = [
            ended("fmt", Outcome::Passed(String::new()), 1),
            ended("tests", Outcome::Failed("1 failed".to_owned()), 20),
            ended("loom", Outcome::Passed("7 tests".to_owned()), 300),
            ended("book", Outcome::NotRun("missing: mdBook".to_owned()), 0),
        ];
        let printed = |name| (name == "tests").then(|| "test a ... FAILED\n".to_owned());
        let expected = "
fmt             passed      2 s      1 s of work
tests           FAILED      2 s     20 s of work  1 failed
loom            passed      2 s    300 s of work  7 tests
book            not run     2 s      0 s of work  missing: mdBook
2 passed, 1 failed, 321 s of work

=== tests FAILED: 1 failed
test a ... FAILED

failed: tests
";
        assert_eq!(summary(&steps, printed), expected);
    }

    #[test]
    fn a_run_without_failures_ends_with_its_total() {
        let steps = [ended("fmt", Outcome::Passed(String::new()), 1)];
        let all = summary(&steps, |_| Some("never shown".to_owned()));
        assert_eq!(all.lines().last(), Some("1 passed, 0 failed, 1 s of work"));
    }

    #[test]
    fn an_excerpt_has_the_panic_and_the_failed_test_before_many_that_passed() {
        let passed = "test b ... ok\n".repeat(1_000);
        let printed = format!(
            "test a ... FAILED\n{passed}thread 'a' panicked at tests/a.rs:1:2:\nleft: 1\nright: 2\n{passed}"
        );
        let shown = excerpt(&printed);
        let begin = "test a ... FAILED\n...\nthread 'a' panicked at tests/a.rs:1:2:\nleft: 1\nright: 2\n...\ntest b ... ok\n";
        assert!(shown.starts_with(begin), "{shown}");
        assert_eq!(shown.matches("test b").count(), LAST);
    }

    #[test]
    fn an_excerpt_is_short_and_has_the_first_and_the_last_errors() {
        let errors: Vec<_> = (0..500).map(|i| format!("error: {i}")).collect();
        let shown = excerpt(&errors.join("\n"));
        assert_eq!(shown.matches("error").count(), LINES);
        assert!(shown.starts_with("error: 0\n"), "{shown}");
        assert!(shown.ends_with("error: 499\n"), "{shown}");
    }

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        for outcome in [Outcome::Passed, Outcome::Failed, Outcome::NotRun] {
            let outcome = outcome("why".to_owned());
            let (word, remark) = outcome.words();
            assert_eq!(Outcome::from_words(word, remark.to_owned()), Some(outcome));
        }
        assert_eq!(Outcome::from_words("", String::new()), None);
    }
}
