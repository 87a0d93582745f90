//! Shows that the checks can fail. Weakens a library in one place at a time, and expects a named
//! loom model or test to fail. [`mutants`] reads the places; [`orderings`] finds those of memory
//! orderings in the sources.

mod mutants;
pub(crate) mod orderings;

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Instant;

use self::mutants::Mutant;
use self::orderings::{Tests, Weakening};
use crate::command::Words;
use crate::files;
use crate::manifest::{self, TOOLS};
use crate::programs;
use crate::sources;

/// A list of mutants, and how to run the tests that must fail.
struct Suite {
    /// The name of the list, by which [`orderings`] finds the settings.
    name: &'static str,
    /// The list, in the format that [`mutants`] describes.
    list: &'static str,
    /// Arguments of `cargo test`.
    arguments: &'static str,
    rustflags: &'static str,
}

const fn suite(name: &'static str, list: &'static str, arguments: &'static str) -> Suite {
    Suite {
        name,
        list,
        arguments,
        rustflags: "",
    }
}

impl Suite {
    const fn with(mut self, rustflags: &'static str) -> Self {
        self.rustflags = rustflags;
        self
    }
}

/// The tests that notice weakened orderings.
const ORDERINGS: &str = include_str!("../mutants/orderings.txt");

/// One deliberate break, and the tests of which one must fail.
struct Break {
    file: String,
    change: Change,
    tests: Vec<(&'static Suite, Tests)>,
}

/// What is broken.
enum Change {
    Text(Mutant),
    Ordering(Weakening),
}

impl Break {
    /// Returns `source` with the one change.
    fn apply(&self, source: &str) -> Result<String, String> {
        match &self.change {
            Change::Text(mutant) => mutate(source, mutant),
            Change::Ordering(weakening) => Ok(weakening.apply(source)),
        }
    }

    fn describe(&self) -> String {
        match &self.change {
            Change::Text(mutant) => {
                format!("{} -> {}", one_line(mutant.text), one_line(mutant.by))
            }
            Change::Ordering(weakening) => weakening.name(),
        }
    }
}

/// Returns the breaks of the workspace in `root` that have one part of `only`, which commas divide,
/// in their path and description.
fn chosen(root: &Path, only: &str) -> Result<Vec<Break>, String> {
    let mut all = Vec::new();
    for suite in &SUITES {
        all.extend(of_texts(suite)?);
    }
    all.extend(of_orderings(root)?);
    all.retain(|broken| {
        let place = format!("{} {}", broken.file, broken.describe());
        only.split(',').any(|part| place.contains(part))
    });
    Ok(all)
}

/// Returns the breaks of a list of mutants.
fn of_texts(suite: &'static Suite) -> Result<Vec<Break>, String> {
    let mutants = mutants::read(suite.list)
        .map_err(|why| format!("xtask/mutants/{}.txt: {why}", suite.name))?;
    let breaks = mutants.into_iter().map(|mutant| {
        let (program, name) = mutant.test;
        let tests = Tests {
            list: suite.name.to_owned(),
            program: program.to_owned(),
            names: vec![name.to_owned()],
        };
        Break {
            file: mutant.file.to_owned(),
            change: Change::Text(mutant),
            tests: vec![(suite, tests)],
        }
    });
    Ok(breaks.collect())
}

/// Returns the breaks of the orderings in the sources.
fn of_orderings(root: &Path) -> Result<Vec<Break>, String> {
    let mut all = Vec::new();
    let mut sources = sources::of_packages(root)?;
    sources.retain(|source| !TOOLS.contains(&source.package.as_str()));
    let assigned = orderings::assigned(&sources, ORDERINGS)
        .map_err(|why| format!("xtask/mutants/orderings.txt:\n{why}"))?;
    for (weakening, tests) in assigned {
        let with_suite = |tests: Tests| {
            let suite = SUITES.iter().find(|suite| suite.name == tests.list);
            let suite = suite.ok_or_else(|| format!("no list is called {}", tests.list))?;
            Ok((suite, tests))
        };
        all.push(Break {
            file: weakening.file.clone(),
            tests: tests
                .into_iter()
                .map(with_suite)
                .collect::<Result<_, String>>()?,
            change: Change::Ordering(weakening),
        });
    }
    Ok(all)
}

static SUITES: [Suite; 14] = [
    suite(
        "core",
        include_str!("../mutants/core.txt"),
        "--profile light --package portcullis-core --all-features",
    ),
    suite(
        "explore",
        include_str!("../mutants/explore.txt"),
        "--profile checked --package portcullis-explore",
    )
    .with("--cfg portcullis_explore"),
    suite(
        "async",
        include_str!("../mutants/async.txt"),
        "--package portcullis-async --all-features",
    ),
    suite(
        "counters",
        include_str!("../mutants/counters.txt"),
        "--package portcullis-counters --all-features",
    ),
    suite(
        "policy",
        include_str!("../mutants/policy.txt"),
        "--package portcullis-policy --all-features",
    ),
    suite(
        "cli",
        include_str!("../mutants/cli.txt"),
        "--package portcullis-cli",
    ),
    suite(
        "shm",
        include_str!("../mutants/shm.txt"),
        "--package portcullis-shm",
    ),
    suite(
        "tower",
        include_str!("../mutants/tower.txt"),
        "--package portcullis-tower --all-features",
    ),
    suite(
        "serve",
        include_str!("../mutants/serve.txt"),
        "--package portcullis-serve",
    ),
    suite(
        "fleet",
        include_str!("../mutants/fleet.txt"),
        "--package portcullis-fleet --all-features",
    ),
    suite(
        "jobs",
        include_str!("../mutants/jobs.txt"),
        "--package portcullis-jobs",
    ),
    suite(
        "adaptive",
        include_str!("../mutants/adaptive.txt"),
        "--package portcullis-adaptive",
    ),
    suite(
        "fuzz",
        include_str!("../mutants/fuzz.txt"),
        "--package portcullis-fuzz",
    ),
    suite(
        "loom",
        include_str!("../mutants/loom.txt"),
        "--profile models --package portcullis-loom",
    )
    .with("--cfg portcullis_loom"),
];

/// The time limit for a test, and for its build: a weakened queue may lose a wake-up and never end.
const LIMIT: &str = "600";

/// Tries the mutants of the workspace in `root` that have a part of `only` in their path and
/// description, in a copy under `target`. `servers` are the variables that tell tests where servers
/// are.
///
/// # Errors
///
/// Returns an error if a test passes that should fail, if the text of a mutant does not occur
/// exactly once, if a test fails on the unchanged sources, if there is no such mutant, or if a
/// list cannot be read.
pub(crate) fn run(
    root: &Path,
    only: &str,
    servers: &[(&'static str, PathBuf)],
) -> Result<(), String> {
    let benches = BENCHES.map(|name| Bench {
        place: root.join("target/weaken").join(name),
        servers: servers.to_vec(),
    });
    let all = chosen(root, only)?;
    if all.is_empty() {
        return Err(format!(
            "no mutant has {only:?} in its path and description"
        ));
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for bench in &benches {
        bench.set_up(root)?;
    }
    benches[0].try_untouched(&all)?;
    // Each model uses one thread. Two at once take little longer than one.
    thread::scope(|scope| {
        for bench in &benches {
            scope.spawn(|| {
                while let Some(broken) = all.get(next.fetch_add(1, Relaxed)) {
                    let start = Instant::now();
                    let outcome = bench.try_break(broken);
                    failed.fetch_add(usize::from(outcome.is_err()), Relaxed);
                    report(broken, &outcome, start.elapsed());
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{} passed, {failed} failed", all.len() - failed);
    if failed == 0 {
        Ok(())
    } else {
        Err(format!("{failed} weakened places were not noticed"))
    }
}

fn report(broken: &Break, outcome: &Result<String, String>, took: Duration) {
    let (mark, what) = match outcome {
        Ok(what) => ("noticed", what),
        Err(why) => ("FAILED", why),
    };
    let programs: Vec<_> = broken.tests.iter().map(|(_, of)| shown(of)).collect();
    println!(
        "{mark}: {}: {}, {} s\n         {}: {what}",
        broken.file,
        broken.describe(),
        took.as_secs(),
        programs.join("; "),
    );
}

fn shown(tests: &Tests) -> String {
    format!("{} {}", tests.program, tests.names.join(" "))
}

/// A place where mutants are tried, one at a time.
const BENCHES: [&str; 2] = ["left", "right"];

/// Whether models are explored with as many pre-emptions as in `soak`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thorough {
    Yes,
    No,
}

/// A copy of the workspace, and the target directory of its mutants.
struct Bench {
    place: PathBuf,
    servers: Vec<(&'static str, PathBuf)>,
}

impl Bench {
    fn tree(&self) -> PathBuf {
        self.place.join("tree")
    }

    /// Copies the workspace in `root`. In the copy each file of tests is a program, as Cargo makes
    /// it: a mutant rebuilds the tests that must notice, and no others.
    fn set_up(&self, root: &Path) -> Result<(), String> {
        let tree = self.tree();
        sources::copy(root, &tree)?;
        for package in manifest::members(&tree)? {
            let path = format!("{package}/Cargo.toml");
            let text = manifest::read(&tree, &path)?.replace("autotests = false\n", "");
            files::write(&tree.join(path), &text)?;
        }
        Ok(())
    }

    /// Runs the tests of all breaks on the unchanged sources.
    fn try_untouched(&self, all: &[Break]) -> Result<(), String> {
        for suite in &SUITES {
            let tests = || {
                let all = all.iter().flat_map(|broken| &broken.tests);
                all.filter(|(of, _)| of.name == suite.name)
                    .map(|(_, of)| of)
            };
            for program in tests().map(|of| &*of.program).collect::<BTreeSet<_>>() {
                let of = || tests().filter(|of| of.program == program);
                let mut names: BTreeSet<_> = of().flat_map(|of| &of.names).cloned().collect();
                // All of them, because one break needs all.
                if of().any(|of| of.names.is_empty()) {
                    names.clear();
                }
                let tests = Tests {
                    list: suite.name.to_owned(),
                    program: program.to_owned(),
                    names: names.into_iter().collect(),
                };
                self.build(suite, program)?;
                let ran = self.run(suite, &tests, Thorough::No)?;
                let text = text_of(&ran);
                if !ran.status.success() {
                    println!("{text}");
                    return Err(format!(
                        "a test of {program} fails on the sources as they are"
                    ));
                }
                let count = tests.names.len();
                if count > 0 && !text.contains(&format!("{count} passed")) {
                    return Err(format!(
                        "{program} has no test of one of these names: {tests:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Tries one break, and restores the file. Returns the message of the test that failed, or why
    /// the result is in doubt.
    fn try_break(&self, broken: &Break) -> Result<String, String> {
        let path = self.tree().join(&broken.file);
        let original = files::read(&path)?;
        files::write(&path, &broken.apply(&original)?)?;
        let mut outcome = Err("there is no test".to_owned());
        for (suite, tests) in &broken.tests {
            outcome = self.expect_failure(suite, tests);
            if outcome.is_ok() {
                break;
            }
        }
        files::write(&path, &original)?;
        outcome
    }

    fn expect_failure(&self, suite: &Suite, tests: &Tests) -> Result<String, String> {
        self.build(suite, &tests.program)?;
        let ran = self.run(suite, tests, Thorough::Yes)?;
        let text = text_of(&ran);
        if ran.status.success() {
            Err(if text.contains(" 0 passed") {
                "there is no such test"
            } else {
                "passes"
            }
            .to_owned())
        } else if text.contains("exceeded maximum number of branches") {
            Err(format!("does not end, and prints nothing:\n{text}"))
        } else if text.contains("\nrunning ") && text.contains("(signal: ") {
            Ok("it ends the program".to_owned())
        } else if ran.status.code() == Some(TIMED_OUT) {
            Ok("it does not come to its end".to_owned())
        } else {
            // The message of the first panic is on the line after its location. (Loom may panic
            // again, and abort.)
            let message = text
                .lines()
                .skip_while(|line| !line.contains("panicked at"))
                .nth(1);
            message
                .map(str::to_owned)
                .ok_or_else(|| format!("does not run:\n{text}"))
        }
    }

    /// Runs tests.
    fn run(&self, suite: &Suite, tests: &Tests, thorough: Thorough) -> Result<Output, String> {
        let start = ["--test", &tests.program, "--", "--exact"].into_iter();
        let names = tests.names.iter().map(String::as_str);
        let arguments: Vec<_> = start.chain(names).collect();
        self.cargo(suite, &arguments, thorough)
    }

    /// Builds the tests in `file`, so that their time limit does not include the build.
    fn build(&self, suite: &Suite, file: &str) -> Result<(), String> {
        let built = self.cargo(suite, &["--no-run", "--test", file], Thorough::No)?;
        if built.status.success() {
            Ok(())
        } else {
            Err(format!("does not build:\n{}", text_of(&built)))
        }
    }

    fn cargo(
        &self,
        suite: &Suite,
        arguments: &[&str],
        thorough: Thorough,
    ) -> Result<Output, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let flags = match suite.rustflags {
            "" => std::env::var("RUSTFLAGS").unwrap_or_default(),
            flags => flags.to_owned(),
        };
        let mut command = Command::new("timeout");
        if thorough == Thorough::Yes {
            command.env("PORTCULLIS_THOROUGH", "1");
        }
        command
            .arg(LIMIT)
            .arg(cargo)
            .arg("test")
            .words(suite.arguments)
            .args(arguments)
            .current_dir(self.tree())
            .env("PATH", programs::path())
            .env("CARGO_TARGET_DIR", self.place.join("build"))
            .env("RUSTFLAGS", flags)
            .envs(self.servers.iter().cloned())
            .env("RUST_BACKTRACE", "0")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("LOOM_MAX_PREEMPTIONS")
            .output()
            .map_err(|error| format!("cargo: {error}"))
    }
}

/// The exit code of `timeout`.
const TIMED_OUT: i32 = 124;

/// Returns `source` with the one change.
fn mutate(source: &str, mutant: &Mutant) -> Result<String, String> {
    let start = only(source, mutant.within)?.start;
    // A function in an `impl` is indented by four spaces.
    let is_lua = Path::new(mutant.file)
        .extension()
        .is_some_and(|kind| kind == "lua");
    let end = if is_lua {
        "\nend\n"
    } else if source[..start].ends_with(' ') {
        "\n    }\n"
    } else {
        "\n}\n"
    };
    let length = source[start..].find(end).ok_or("the function has no end")?;
    let at = only(&source[start..start + length], mutant.text)?;
    let (before, after) = (&source[..start + at.start], &source[start + at.end..]);
    Ok([before, mutant.by, after].concat())
}

/// Returns the range of `text` in `source`, if it occurs exactly once. Line breaks and indentation
/// are ignored.
fn only(source: &str, text: &str) -> Result<Range<usize>, String> {
    let (source, text) = (laid_out(source), laid_out(text));
    let is_text = |place: &&[(usize, char)]| place.iter().zip(&text).all(|(a, b)| a.1 == b.1);
    let mut places = source.windows(text.len().max(1)).filter(is_text);
    match (places.next(), places.next()) {
        (Some([(start, _), .., (end, last)]), None) => Ok(*start..end + last.len_utf8()),
        (Some([(start, only)]), None) => Ok(*start..start + only.len_utf8()),
        (Some(_), Some(_)) => Err(format!("{:?} occurs more than once", spelled(&text))),
        _ => Err(format!("{:?} does not occur", spelled(&text))),
    }
}

/// Returns the characters of a source that formatting does not change, with their positions: no
/// white space, and no comma before a closing bracket.
fn laid_out(source: &str) -> Vec<(usize, char)> {
    let mut characters: Vec<(usize, char)> = Vec::with_capacity(source.len());
    for (at, character) in source
        .char_indices()
        .filter(|(_, character)| !character.is_whitespace())
    {
        if matches!(character, ')' | ']' | '}')
            && characters.last().is_some_and(|last| last.1 == ',')
        {
            characters.pop();
        }
        characters.push((at, character));
    }
    characters
}

fn spelled(characters: &[(usize, char)]) -> String {
    characters.iter().map(|(_, character)| character).collect()
}

fn text_of(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() {
        "(nothing)".to_owned()
    } else {
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rust_text;

    const SOURCE: &str =
        "    fn one() {\n        a(b);\n    }\n\n    fn two() {\n        b(b);\n    }\n";

    fn mutant(within: &'static str, text: &'static str) -> Mutant {
        Mutant {
            file: "",
            within,
            text,
            by: "c",
            test: ("", ""),
        }
    }

    #[test]
    fn only_the_named_place_is_changed() {
        let mutated = mutate(SOURCE, &mutant("fn one(", "a"));
        assert_eq!(mutated, Ok(SOURCE.replace('a', "c")));
    }

    /// Returns the folder of the package whose tests a suite runs.
    fn package(suite: &Suite) -> &'static str {
        let (_, name) = suite.arguments.split_once("--package portcullis-").unwrap();
        match name.split(' ').next().unwrap_or_default() {
            "loom" => "loom-tests",
            name => name,
        }
    }

    /// Returns the code of a program of tests: its file, and all that it has as modules.
    fn code_of_program(package: &str, program: &str) -> Result<String, String> {
        let folder = files::root().join(package).join("tests");
        let mut code = String::new();
        let inside = folder.join(program);
        let mut files = match inside.join("main.rs") {
            main if main.is_file() => vec![(main, inside)],
            _ => vec![(inside.with_extension("rs"), folder)],
        };
        // The macros of a package, which make a test of each word, are in its library.
        let library = files::root().join(package).join("src/lib.rs");
        if let Ok(text) = files::read(&library) {
            code += &rust_text::code_of(&text);
        }
        while let Some((file, folder)) = files.pop() {
            let text = files::read(&file)?;
            code += &rust_text::code_of(&text);
            let mut path = None;
            for line in text.lines().map(str::trim) {
                if let Some(named) = line.strip_prefix("#[path = \"") {
                    path = named.strip_suffix("\"]");
                } else if let Some((_, name)) = line.split_once("mod ")
                    && let Some(name) = name.strip_suffix(';')
                {
                    let beside = file.parent().unwrap_or(&folder);
                    let places = match path.take() {
                        Some(path) => vec![beside.join(path)],
                        None => [".rs", "/mod.rs"]
                            .map(|end| folder.join(format!("{name}{end}")))
                            .to_vec(),
                    };
                    let found = places.into_iter().filter(|place| place.is_file());
                    files.extend(found.map(|place| {
                        let inside = if place.ends_with("mod.rs") {
                            place.parent().map(Path::to_owned)
                        } else {
                            Some(place.with_extension(""))
                        };
                        (place, inside.unwrap_or_default())
                    }));
                }
            }
        }
        Ok(code)
    }

    /// Returns what is wrong with the names of tests: the program that is missing, and the
    /// functions and modules that its code does not have.
    fn unknown(tests: &Tests, package: &str) -> Vec<String> {
        let code = match code_of_program(package, &tests.program) {
            Ok(code) => code,
            Err(why) => return vec![why],
        };
        let words: BTreeSet<_> = rust_text::words(&code).map(|(_, word)| word).collect();
        let names = tests.names.iter();
        let unknown = names.filter(|name| name.split("::").any(|part| !words.contains(part)));
        let program = &tests.program;
        unknown
            .map(|name| format!("{package}/tests/{program}.rs has no test {name}"))
            .collect()
    }

    /// Returns all breaks, and all reasons why some could not be found.
    fn all() -> (Vec<Break>, Vec<String>) {
        let (mut breaks, mut wrong) = (Vec::new(), Vec::new());
        let texts = SUITES.iter().map(of_texts);
        for found in texts.chain([of_orderings(files::root())]) {
            match found {
                Ok(found) => breaks.extend(found),
                Err(why) => wrong.push(why),
            }
        }
        (breaks, wrong)
    }

    #[test]
    fn the_text_of_every_mutant_occurs_once_and_every_ordering_has_a_test() {
        let (breaks, mut wrong) = all();
        wrong.extend(breaks.iter().filter_map(|broken| {
            let source = files::read(&files::root().join(&broken.file));
            let why = source.and_then(|source| broken.apply(&source)).err()?;
            Some(format!("{}, {}: {why}", broken.file, broken.describe()))
        }));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn the_tests_that_must_notice_are_in_their_programs() {
        let (breaks, _) = all();
        let mut programs: BTreeMap<(&str, String), BTreeSet<String>> = BTreeMap::new();
        for (suite, tests) in breaks.iter().flat_map(|broken| &broken.tests) {
            let program = (package(suite), tests.program.clone());
            let names = programs.entry(program).or_default();
            names.extend(tests.names.iter().cloned());
        }
        let wrong = programs
            .into_iter()
            .flat_map(|((package, program), names)| {
                let tests = Tests {
                    list: String::new(),
                    program,
                    names: names.into_iter().collect(),
                };
                unknown(&tests, package)
            });
        let wrong: Vec<_> = wrong.collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn a_test_that_is_in_no_source_of_its_program_is_found() {
        let tests = |program: &str, name: &str| Tests {
            list: String::new(),
            program: program.to_owned(),
            names: vec![name.to_owned()],
        };
        let is_known = |program, name| unknown(&tests(program, name), "async").is_empty();
        assert!(is_known(
            "keyed_queue",
            "total::a_cancelled_front_makes_way"
        ));
        assert!(!is_known("keyed_queue", "total::no_such_test"));
        assert!(!is_known(
            "keyed_queue",
            "no_such::a_cancelled_front_makes_way"
        ));
        assert!(!is_known("no_such_program", "a_cancelled_front_makes_way"));
    }

    #[test]
    fn a_text_that_does_not_occur_once_is_rejected() {
        assert!(mutate(SOURCE, &mutant("fn two(", "b")).is_err(), "twice");
        assert!(
            mutate(SOURCE, &mutant("fn two(", "a")).is_err(),
            "in another function"
        );
        assert!(
            mutate(SOURCE, &mutant("fn ", "a")).is_err(),
            "in which function?"
        );
    }
}
