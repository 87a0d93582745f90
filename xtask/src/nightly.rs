//! Checks that need a nightly toolchain: Miri, the sanitizers and the fuzzer.
//!
//! Each runs where rustup has such a toolchain with the component. Elsewhere it is not run, and one
//! line says what is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::files;
use crate::programs;
use crate::test_programs;

/// The target of the sanitizers and the fuzzer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What a check needs of a nightly toolchain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nightly {
    Miri,
    /// Sanitizers, and the source of the standard library, which is compiled with them.
    Sanitizers,
    /// A compiler whose code libFuzzer can count, and one for C++.
    Fuzzer,
}

impl Nightly {
    pub(crate) fn missing(self) -> &'static str {
        match self {
            Self::Miri => {
                "missing: Miri (rustup toolchain install nightly --component miri,rust-src)"
            }
            Self::Sanitizers => {
                "missing: sanitizers for x86_64 Linux (rustup toolchain install nightly --component rust-src)"
            }
            Self::Fuzzer => {
                "missing: a nightly toolchain on x86_64 Linux (rustup toolchain install nightly), or a C++ compiler (Debian's g++)"
            }
        }
    }

    pub(crate) fn is_there(self, context: &Context) -> bool {
        let sysroot = || programs::printed(rustc(context).args(["--print", "sysroot"]));
        let has = |path: &str| {
            sysroot().is_some_and(|root| PathBuf::from(root.trim()).join(path).exists())
        };
        let is_target = cfg!(all(target_arch = "x86_64", target_os = "linux"));
        match self {
            Self::Miri => programs::is_quiet_success(cargo(context).args(["miri", "--version"])),
            Self::Sanitizers => is_target && has("lib/rustlib/src/rust/library/std"),
            Self::Fuzzer => {
                let compiles = || programs::is_quiet_success(Command::new("c++").arg("--version"));
                is_target && sysroot().is_some() && compiles()
            }
        }
    }
}

/// Returns a command for the program `name` of the nightly toolchain, through rustup.
fn program(context: &Context, name: &str) -> Command {
    let mut command = programs::rustup();
    command.args(["run", "nightly", name]);
    command.current_dir(&context.root);
    // The running Cargo has set them for its own toolchain.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command
}

fn cargo(context: &Context) -> Command {
    program(context, "cargo")
}

fn rustc(context: &Context) -> Command {
    program(context, "rustc")
}

/// Runs tests of the core and of the async library in Miri, with tree borrows and strict
/// provenance.
pub(crate) fn miri(context: &Context) -> Check {
    let mut all = Vec::new();
    for (folder, features, files) in MIRI {
        for (programs, modules) in programs_of(&context.root, folder, files)? {
            let mut cargo = cargo(context);
            cargo
                .words("miri test --no-fail-fast")
                .args(context.locked());
            let package = format!("portcullis-{folder}");
            cargo.args(["--package", &package, "--features", features]);
            for program in programs {
                cargo.args(["--test", &program]);
            }
            cargo.arg("--target-dir").arg(context.target_dir("miri"));
            cargo.arg("--").args(modules);
            // Some tests read a clock.
            let flags = "-Zmiri-tree-borrows -Zmiri-strict-provenance -Zmiri-disable-isolation";
            cargo.env("MIRIFLAGS", flags).env("PROPTEST_CASES", "2");
            all.push(command::run_tests(&mut cargo)?);
        }
    }
    Ok(all.join(", "))
}

/// Test programs, and the modules whose tests are run; none stands for all.
type Selection = (Vec<String>, Vec<String>);

/// Returns the test programs that the files are, and then each program of which they are modules,
/// with the names of these modules.
fn programs_of(root: &Path, folder: &str, files: &str) -> Result<Vec<Selection>, String> {
    let files: Vec<&str> = files.split(' ').collect();
    let mut own = Vec::new();
    let mut others = Vec::new();
    for program in test_programs::of(root, folder)? {
        let is_wanted = |name: &String| files.contains(&name.as_str());
        let modules = program.files.iter().filter(|name| is_wanted(name));
        let modules: Vec<_> = modules.map(|name| format!("{name}::")).collect();
        if !modules.is_empty() {
            others.push((vec![program.name], modules));
        } else if is_wanted(&program.name) {
            own.push(program.name);
        }
    }
    let found = own.len()
        + others
            .iter()
            .map(|(_, modules)| modules.len())
            .sum::<usize>();
    if found != files.len() {
        return Err(format!("{folder}/tests lacks one of {}", files.join(", ")));
    }
    if !own.is_empty() {
        others.insert(0, (own, Vec::new()));
    }
    Ok(others)
}

/// Runs the tests of the async library and of shared memory under `ThreadSanitizer` and
/// `AddressSanitizer`.
pub(crate) fn sanitize(context: &Context) -> Check {
    let mut all = Vec::new();
    for sanitizer in ["thread", "address"] {
        for (folder, features, files) in SANITIZED {
            let selections = programs_of(&context.root, folder, files)?;
            // Without programs, the tests of the library itself: names of modules would leave them
            // out.
            for (programs, modules) in [Selection::default()].into_iter().chain(selections) {
                let mut cargo = cargo(context);
                cargo.args(["test", "-Zbuild-std", "--target", TARGET, "--no-fail-fast"]);
                cargo.args(context.locked());
                let package = format!("portcullis-{folder}");
                cargo.args(["--package", &package, "--features", features]);
                if programs.is_empty() {
                    cargo.arg("--lib");
                }
                for program in programs {
                    cargo.args(["--test", &program]);
                }
                let target = context.target_dir(&format!("sanitize-{sanitizer}"));
                cargo.arg("--target-dir").arg(target);
                cargo.arg("--").args(modules);
                if sanitizer == "thread" {
                    cargo.args(["--skip", FAULTS_IN_THE_RUNTIME]);
                }
                cargo.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"));
                // Tests leak queues on purpose, which Miri is told one by one.
                cargo.env("ASAN_OPTIONS", "detect_leaks=0");
                all.push(format!("{sanitizer}: {}", command::run_tests(&mut cargo)?));
            }
        }
    }
    Ok(all.join(", "))
}

/// What the fuzzer needs in the code of a target: counters, comparisons, and `AddressSanitizer`.
const COUNTED: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions \
    -Coverflow-checks -Ccodegen-units=1";

/// The variable that sets how many seconds each target is fuzzed.
const SECONDS: &str = "PORTCULLIS_FUZZ_SECONDS";

/// Fuzzes the targets one after another, a minute each unless [`SECONDS`] says otherwise. New
/// inputs go to `target/fuzz/found`, and those that fail to `target/fuzz/failed`.
pub(crate) fn fuzz(context: &Context) -> Check {
    let folder = context.target_dir("fuzz");
    let mut build = cargo(context);
    build.arg("build").args(context.locked());
    build.words("--package portcullis-fuzz --bins --release --target");
    build.args([TARGET, "--target-dir"]).arg(&folder);
    command::run(build.env("RUSTFLAGS", COUNTED))?;
    let seconds = std::env::var(SECONDS).unwrap_or_else(|_| "60".to_owned());
    let corpora = context.root.join("fuzz/corpus");
    let entries = fs::read_dir(&corpora).map_err(files::at(&corpora))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<_> = names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name.contains(&context.only))
        .collect();
    names.sort();
    let failed = folder.join("failed");
    files::create(&failed)?;
    let mut wrong = Vec::new();
    for name in &names {
        let found = folder.join("found").join(name);
        files::create(&found)?;
        let program = folder.join(TARGET).join("release").join(name);
        let mut fuzzer = Command::new(program);
        fuzzer.arg(format!("-max_total_time={seconds}"));
        fuzzer.words("-timeout=30 -rss_limit_mb=4096 -max_len=4096");
        // To print new functions takes more time than to call them.
        fuzzer.words("-verbosity=0 -print_funcs=0 -print_final_stats=1");
        fuzzer.arg(format!("-artifact_prefix={}/{name}-", failed.display()));
        fuzzer.arg(&found).arg(corpora.join(name));
        if command::run(&mut fuzzer).is_err() {
            wrong.push(name.as_str());
        }
    }
    if wrong.is_empty() {
        Ok(format!("{} targets, {seconds} s each", names.len()))
    } else {
        let wrong = wrong.join(", ");
        Err(format!("{wrong}: the inputs are in {}", failed.display()))
    }
}

/// The tests for Miri: by folder of the package, its features, and its files. They take minutes
/// together. Files with long traces or with many threads are left out.
const MIRI: [(&str, &str, &str); 2] = [
    (
        "core",
        "std",
        "attached clock leases saved timestamp unlimited",
    ),
    (
        "async",
        "channel,shedding,stream",
        "drive edges handover hook order owned priorities",
    ),
];

/// A test that does not end under `ThreadSanitizer`. Its first access to a page that the file has
/// lost is a compare-exchange. The sanitizer's runtime makes that access itself, while it holds a
/// lock of this thread. The handler of `SIGBUS` uses atomics too, for which the runtime waits for
/// the same lock. `AddressSanitizer` runs this test.
const FAULTS_IN_THE_RUNTIME: &str = "records_whose_file_is_truncated_are_lost";

/// The tests for the sanitizers: those with threads, or with memory that processes share.
const SANITIZED: [(&str, &str, &str); 2] = [
    (
        "async",
        "channel,shedding",
        "blocking conservation channel edges handover order unwinding",
    ),
    ("shm", "", "attacks concurrency pool records stripes tables"),
];

#[test]
fn the_tests_for_miri_and_the_sanitizers_exist() {
    let root = files::root();
    let programs_of = |folder, files| programs_of(root, folder, files);
    for (folder, features, files) in MIRI.into_iter().chain(SANITIZED) {
        programs_of(folder, files).expect(folder);
        for file in files.split(' ') {
            let path = test_programs::path_of(root, folder, file);
            let text = fs::read_to_string(root.join(path)).expect(file);
            let needed = text.split_once("#![cfg(feature = \"");
            let needed = needed.and_then(|(_, rest)| rest.split('"').next());
            let has = |needed| features.split(',').any(|feature| feature == needed);
            assert!(needed.is_none_or(has), "{folder}/tests/{file}: {needed:?}");
        }
    }
    let all = programs_of("core", "clock leases saved").expect("core");
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    let expected = [
        (names(&["clock"]), names(&[])),
        (names(&["suite"]), names(&["leases::", "saved::"])),
    ];
    assert_eq!(all, expected);
    assert!(programs_of("core", "clock lease").is_err());
}
