use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// The result of a step: a short remark, or what is wrong.
pub(crate) type Check = Result<String, String>;

/// Arguments in one text, as in a shell.
pub(crate) trait Words {
    /// Adds the words of `text` as arguments.
    fn words(&mut self, text: &str) -> &mut Self;
}

impl Words for Command {
    fn words(&mut self, text: &str) -> &mut Self {
        self.args(text.split_ascii_whitespace())
    }
}

/// Runs a command, with its output on the output of this program.
pub(crate) fn run(command: &mut Command) -> Check {
    announce(command);
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(String::new()),
        Ok(status) => Err(format!("{} ended with {status}", name_of(command))),
        Err(error) => Err(format!(
            "{} could not be started: {error}",
            name_of(command)
        )),
    }
}

/// Runs `cargo test` or pytest, and counts the tests from its summaries. A run without any test is
/// a failure.
pub(crate) fn run_tests(command: &mut Command) -> Check {
    announce(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{} could not be started: {error}", name_of(command)))?;
    let mut counted = Counted::default();
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|output| BufReader::new(output).split(b'\n'))
    {
        let line = line.map_err(|error| format!("reading from the tests: {error}"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        counted.add(&line);
    }
    let status = child
        .wait()
        .map_err(|error| format!("waiting for the tests: {error}"))?;
    let Counted {
        passed,
        failed,
        apart,
        ..
    } = counted;
    match (status.success(), passed) {
        (false, _) => Err(format!(
            "{} ended with {status}: {passed} tests passed, {failed} failed",
            name_of(command)
        )),
        (true, _) if !apart.is_empty() => Err(format!(
            "the examples of {} compile one by one: together they do not compile",
            apart.join(", ")
        )),
        (true, 0) => Err("no test was run".to_owned()),
        (true, _) => Ok(format!("{passed} tests")),
    }
}

/// The counts in the summaries of `cargo test`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    passed: u64,
    failed: u64,
    /// The last library whose examples were run.
    library: String,
    /// The libraries whose examples were compiled one by one.
    apart: Vec<String>,
}

/// From this time on, in seconds, examples that were compiled one by one are worth a failure.
const LONG: f64 = 10.0;

/// The examples of a library, compiled as one program, run in a small part of the time that the
/// compiler takes. If they do not compile together, the documentation tool says nothing, and
/// compiles each alone.
const TIMES: f64 = 10.0;

impl Counted {
    /// Adds a line like `test result: ok. 3 passed; 0 failed; 0 ignored; ...`, or one like `all
    /// doctests ran in 1.20s; merged doctests compilation took 1.09s`.
    fn add(&mut self, line: &str) {
        if let Some((_, rest)) = line.split_once("all doctests ran in ") {
            let mut seconds = rest.split([' ', ';']).filter_map(|word| {
                let number = word.trim_end().strip_suffix('s')?;
                number.parse::<f64>().ok()
            });
            if let (Some(all), Some(compiled)) = (seconds.next(), seconds.next())
                && all > LONG
                && all > compiled * TIMES
            {
                self.apart.push(self.library.clone());
            }
        }
        // `test policy/src/rule.rs - rule::Rule (line 12) ... ok`
        if let Some((file, _)) = line.strip_prefix("test ").and_then(|l| l.split_once(" - ")) {
            file.split('/')
                .next()
                .unwrap_or_default()
                .clone_into(&mut self.library);
        }
        let cargo = line.split_once("test result: ").map(|(_, result)| result);
        // `=== 1 failed, 3 passed in 2.05s ===`
        let pytest = || {
            let (all, time) = line.trim_matches(['=', ' ']).split_once(" in ")?;
            let seconds = time.split(' ').next()?.strip_suffix('s')?;
            seconds.parse::<f64>().is_ok().then_some(all)
        };
        let Some(result) = cargo.or_else(pytest) else {
            return;
        };
        let number_before = |word| {
            let before = result.split_once(word)?.0.trim_end();
            before.rsplit([' ', ';', ',']).next()?.parse::<u64>().ok()
        };
        self.passed += number_before(" passed").unwrap_or(0);
        self.failed += number_before(" failed").unwrap_or(0);
    }
}

fn name_of(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let first = command.get_args().next().unwrap_or_default();
    format!("{} {}", program.display(), first.display())
}

/// Prints a command in shell notation, so that a reader can repeat it.
pub(crate) fn announce(command: &Command) {
    print!("$");
    for (name, value) in command.get_envs() {
        if let Some(value) = value.filter(|_| name != "PATH") {
            print!(" {}={:?}", name.display(), value.display().to_string());
        }
    }
    let program = Path::new(command.get_program());
    let shown = if program.starts_with("/usr/bin") {
        program
    } else {
        Path::new(program.file_name().unwrap_or_default())
    };
    print!(" {}", shown.display());
    for argument in command.get_args() {
        print!(" {}", argument.display());
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summaries_of_pytest_are_counted() {
        let mut counted = Counted::default();
        counted.add("tests/test_limits.py .....                 [ 66%]");
        counted.add("wants 3 passed in words");
        counted.add("==== 2 failed, 114 passed, 1 warning in 14.82s ====");
        assert_eq!((counted.passed, counted.failed), (114, 2));
    }

    #[test]
    fn the_summaries_of_cargo_test_add_up() {
        let mut counted = Counted::default();
        counted.add(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        );
        counted.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s");
        counted.add("test a_test_result ... ok");
        assert_eq!(
            counted,
            Counted {
                passed: 15,
                failed: 2,
                ..Counted::default()
            }
        );
    }

    #[test]
    fn examples_that_do_not_compile_as_one_program_are_noticed() {
        let mut counted = Counted::default();
        counted.add("test core/src/lib.rs - (line 8) ... ok");
        counted.add("all doctests ran in 18.50s; merged doctests compilation took 15.91s");
        counted.add("all doctests ran in 0.06s; merged doctests compilation took 0.00s");
        assert_eq!(counted.apart, [""; 0]);
        counted.add("test policy/src/conditions.rs - conditions::ConditionError (line 497) ... ok");
        counted.add("all doctests ran in 87.18s; merged doctests compilation took 0.43s");
        assert_eq!(counted.apart, ["policy"]);
    }
}
