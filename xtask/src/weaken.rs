//! Shows that the checks can fail. Weakens a library in one place at a time, and expects a named
//! loom model or test to fail. [`mutants`] reads the places.

mod mutants;

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use self::mutants::Mutant;
use crate::sources;

/// A list of mutants, and how to run the tests that must fail.
struct Suite {
    /// The list, in the format that [`mutants`] describes.
    list: &'static str,
    /// Arguments of `cargo test`.
    arguments: &'static [&'static str],
    rustflags: &'static str,
}

impl Suite {
    /// Returns the mutants of files with `only` in their path.
    fn chosen(&self, only: &str) -> Result<Vec<Mutant>, String> {
        let mut all = mutants::read(self.list)?;
        all.retain(|mutant| mutant.file.contains(only));
        Ok(all)
    }
}

const SUITES: [Suite; 11] = [
    Suite {
        list: include_str!("../mutants/core.txt"),
        arguments: &[
            "--profile",
            "checked",
            "--package",
            "portcullis-core",
            "--all-features",
        ],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/explore.txt"),
        arguments: &["--profile", "checked", "--package", "portcullis-explore"],
        rustflags: "--cfg portcullis_explore",
    },
    Suite {
        list: include_str!("../mutants/async.txt"),
        arguments: &["--package", "portcullis-async", "--all-features"],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/counters.txt"),
        arguments: &["--package", "portcullis-counters", "--all-features"],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/policy.txt"),
        arguments: &["--package", "portcullis-policy", "--all-features"],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/cli.txt"),
        arguments: &["--package", "portcullis-cli"],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/shm.txt"),
        arguments: &["--package", "portcullis-shm"],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/tower.txt"),
        arguments: &["--package", "portcullis-tower", "--all-features"],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/fleet.txt"),
        arguments: &["--package", "portcullis-fleet", "--all-features"],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/jobs.txt"),
        arguments: &["--package", "portcullis-jobs"],
        rustflags: "",
    },
    Suite {
        list: include_str!("../mutants/loom.txt"),
        arguments: &["--release", "--package", "portcullis-loom"],
        rustflags: "--cfg portcullis_loom",
    },
];

/// The time limit for a test, and for its build: a weakened queue may lose a wake-up and never end.
const LIMIT: &str = "600";

/// Tries the mutants of the workspace in `root` whose file has `only` in its path, in a copy under
/// `target`. `servers` are the variables that tell tests where servers are.
///
/// # Errors
///
/// Returns an error if a test passes that should fail, if the text of a mutant does not occur
/// exactly once, if a test fails on the unchanged sources, if no mutant is in such a file, or if a
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
    let mut all = Vec::new();
    for suite in &SUITES {
        all.extend(
            suite
                .chosen(only)?
                .into_iter()
                .map(|mutant| (suite, mutant)),
        );
    }
    if all.is_empty() {
        return Err(format!("no mutant is in a file with {only:?} in its path"));
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for bench in &benches {
        bench.set_up(root)?;
    }
    for suite in &SUITES {
        benches[0].try_untouched(suite, &suite.chosen(only)?)?;
    }
    // Each model uses one thread. Two at once take little longer than one.
    thread::scope(|scope| {
        for bench in &benches {
            scope.spawn(|| {
                while let Some((suite, mutant)) = all.get(next.fetch_add(1, Relaxed)) {
                    let outcome = bench.try_mutant(suite, mutant);
                    failed.fetch_add(usize::from(outcome.is_err()), Relaxed);
                    report(mutant, &outcome);
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

fn report(mutant: &Mutant, outcome: &Result<String, String>) {
    let (mark, what) = match outcome {
        Ok(what) => ("noticed", what),
        Err(why) => ("FAILED", why),
    };
    let (file, name) = mutant.test;
    let change = format!("{} -> {}", one_line(mutant.text), one_line(mutant.by));
    println!(
        "{mark}: {}: {change}\n         {file} {name}: {what}",
        mutant.file
    );
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

    /// Copies the workspace in `root`.
    fn set_up(&self, root: &Path) -> Result<(), String> {
        let tree = self.tree();
        if tree.exists() {
            fs::remove_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
        }
        copy(root, &tree)
            .map_err(|error| format!("copying the workspace to {}: {error}", tree.display()))
    }

    /// Runs the named tests on the unchanged sources.
    fn try_untouched(&self, suite: &Suite, mutants: &[Mutant]) -> Result<(), String> {
        let tests = || mutants.iter().map(|mutant| mutant.test);
        for file in tests().map(|(file, _)| file).collect::<BTreeSet<_>>() {
            let names = tests()
                .filter(|(other, _)| *other == file)
                .map(|(_, name)| name);
            let names: BTreeSet<_> = names.collect();
            let arguments: Vec<_> = ["--test", file, "--", "--exact"]
                .into_iter()
                .chain(names.clone())
                .collect();
            self.build(suite, file)?;
            let ran = self.cargo(suite, &arguments, Thorough::No)?;
            let text = text_of(&ran);
            if !ran.status.success() {
                println!("{text}");
                return Err(format!("a test of {file} fails on the sources as they are"));
            }
            if !text.contains(&format!("{} passed", names.len())) {
                return Err(format!(
                    "{file} has no test of one of these names: {names:?}"
                ));
            }
        }
        Ok(())
    }

    /// Tries one mutant, and restores the file. Returns the message of the test that failed, or why
    /// the result is in doubt.
    fn try_mutant(&self, suite: &Suite, mutant: &Mutant) -> Result<String, String> {
        let path = self.tree().join(mutant.file);
        let original =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mutated = mutate(&original, mutant)?;
        let write =
            |text| fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()));
        write(&mutated)?;
        let outcome = self.expect_failure(suite, mutant.test);
        write(&original)?;
        outcome
    }

    fn expect_failure(&self, suite: &Suite, (file, name): (&str, &str)) -> Result<String, String> {
        self.build(suite, file)?;
        let ran = self.cargo(
            suite,
            &["--test", file, "--", "--exact", name],
            Thorough::Yes,
        )?;
        let text = text_of(&ran);
        if ran.status.success() {
            Err(if text.contains("1 passed") {
                "passes"
            } else {
                "there is no such test"
            }
            .to_owned())
        } else if text.contains("exceeded maximum number of branches") {
            Err(format!("does not end, and prints nothing:\n{text}"))
        } else if text.contains("running 1 test") && text.contains("(signal: ") {
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
            .args(suite.arguments)
            .args(arguments)
            .current_dir(self.tree())
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

/// Copies all sources.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    for file in sources::files(from)? {
        let to = to.join(&file);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(from.join(&file), to)?;
    }
    Ok(())
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
    use super::*;

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

    #[test]
    fn the_text_of_every_mutant_occurs_once() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let wrong: Vec<_> = SUITES
            .iter()
            .flat_map(|suite| suite.chosen("").unwrap())
            .filter_map(|mutant| {
                let source = fs::read_to_string(sources.join(mutant.file)).unwrap();
                let why = mutate(&source, &mutant).err()?;
                Some(format!("{}, {}: {why}", mutant.file, mutant.within))
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
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
