use std::collections::BTreeSet;
use std::process::Command;

use crate::bench_check;
use crate::book;
use crate::c_bindings;
use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::each_feature;
use crate::examples;
use crate::firmware;
use crate::firmware_cost;
use crate::hot_paths;
use crate::house;
use crate::manifest;
use crate::nightly::{self, Nightly};
use crate::no_std;
use crate::oldest_rust;
use crate::package;
use crate::platforms;
use crate::python;
use crate::readme;
use crate::resolved;
use crate::screenshot;
use crate::semver;
use crate::servers::Server;
use crate::setup::{self, Part};
use crate::test_programs;
use crate::weaken;
use crate::wheels::Wheels;
use crate::width;

/// A group of steps with a name.
pub(crate) struct Task {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The names of steps, and of tasks whose steps are among them, with blanks between them.
    pub(crate) steps: &'static str,
}

/// One check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The tools that the step needs beside Cargo, the compiler and a C linker.
    pub(crate) needs: Option<Part>,
    /// Whether the step may run beside the other steps of a long task: it writes to target folders
    /// of its own, and other load does not change what it measures.
    pub(crate) beside: bool,
    pub(crate) run: fn(&Context) -> Check,
}

const fn step(name: &'static str, about: &'static str, run: fn(&Context) -> Check) -> Step {
    Step {
        name,
        about,
        needs: None,
        beside: false,
        run,
    }
}

impl Step {
    const fn needs(mut self, part: Part) -> Self {
        self.needs = Some(part);
        self
    }

    const fn beside(mut self) -> Self {
        self.beside = true;
        self
    }
}

pub(crate) const TASKS: &[Task] = &[
    Task {
        name: "quick",
        about: "for use while you work: under 2 minutes on 2 cores, once built",
        steps: "fmt house quick-clippy quick-tests quick-loom",
    },
    Task {
        name: "test",
        about: "all checks that a change must pass: not the steps for a release, and not those \
            whose names begin with quick",
        steps: "lint package tests examples core-tests doc-tests readme book loom explore bench-check \
                hot-paths no-std firmware embedded firmware-cost c-bindings python",
    },
    Task {
        name: "lint",
        about: "fmt, house, clippy, oldest-rust and doc",
        steps: "fmt house clippy oldest-rust doc",
    },
    Task {
        name: "release-check",
        about: "for a release: the steps of test, those that compare features, versions \
            and platforms, then weaken and soak",
        steps: "test semver each-feature oldest-versions newest-versions platforms proxies \
            python-wheel weaken soak",
    },
];

pub(crate) const STEPS: &[Step] = &[
    step(
        "fmt",
        "the code is formatted, and comments and prose fit into 100 columns",
        fmt,
    )
    .needs(Part::Rustfmt),
    step(
        "house",
        "modules import from those that define a name, in no circle; functions have \
            at most 60 lines and 6 levels",
        house::check,
    ),
    step(
        "clippy",
        "no warning from Clippy, with all features and with none",
        clippy,
    )
    .needs(Part::Clippy),
    step(
        "quick-clippy",
        "no warning from Clippy in the libraries, with all features",
        quick_clippy,
    )
    .needs(Part::Clippy),
    step(
        "quick-tests",
        "the tests of the libraries and of xtask, except those that are slow \
            without optimisation",
        quick_tests,
    ),
    step(
        "quick-loom",
        "a few loom models: of a token bucket, a concurrency limit and a queue",
        quick_loom,
    ),
    step(
        "oldest-rust",
        "the libraries compile with the lowest Rust version",
        oldest_rust::check,
    )
    .needs(Part::OldestRust),
    step(
        "package",
        "a dry run of publishing packs the libraries, and the packages compile \
            against each other",
        package::check,
    ),
    step(
        "doc",
        "the documentation builds without a warning, with all features and with the \
            default ones",
        doc,
    ),
    step("tests", "the tests of all packages except the core", tests),
    step(
        "examples",
        "the examples that end run; the step tests starts the others",
        examples::check,
    ),
    step(
        "core-tests",
        "the core's tests and examples, optimised, with overflow checks",
        core_tests,
    )
    .beside(),
    step("doc-tests", "the examples in the documentation", doc_tests),
    step(
        "readme",
        "each program of the README and of three guides compiles against its manifest, and runs",
        readme::check,
    ),
    step(
        "book",
        "the book of all documents builds without a warning, and each of its links \
            leads somewhere",
        book::check,
    )
    .needs(Part::Book),
    step(
        "loom",
        "the models of every atomic algorithm, in loom",
        loom,
    )
    .beside(),
    step(
        "explore",
        "the core pre-empted at every atomic access and at every instruction, and \
            late refunds, compared with every order and with exact arithmetic; every \
            run of processes that share memory, die and are replaced",
        explore,
    )
    .beside(),
    step(
        "bench-check",
        "no hot path takes over 2 % more instructions than its baseline, with the \
            same compiler",
        bench_check::check,
    )
    .needs(Part::Callgrind)
    .beside(),
    step(
        "hot-paths",
        "the machine code of the hot paths: number of atomic writes, no division, \
            call or panic",
        hot_paths::check,
    )
    .needs(Part::X86)
    .beside(),
    step(
        "no-std",
        "the core, the queue and the functions for C compile for targets without std, with native \
            atomics where there are any",
        no_std::check,
    )
    .needs(Part::BareTargets)
    .beside(),
    step(
        "firmware",
        "limiters and queues on emulated microcontrollers: Cortex-M3, Cortex-M0 and \
            RISC-V",
        firmware::check,
    )
    .needs(Part::Firmware)
    .beside(),
    step(
        "embedded",
        "the programs in docs/embedded.md run on an emulated Cortex-M3 and Cortex-M0, and the \
            tests of the second on the host",
        firmware::check_documented,
    )
    .needs(Part::Firmware)
    .beside(),
    step(
        "firmware-cost",
        "flash, RAM and instructions on a Cortex-M3 and a Cortex-M0, compared with the budget and \
            the baseline",
        firmware_cost::check,
    )
    .needs(Part::Firmware)
    .beside(),
    step(
        "c-bindings",
        "the header for C is that of the sources; programs in C and C++ call the library, under \
            Valgrind",
        c_bindings::check,
    )
    .needs(Part::CBindings),
    step(
        "python",
        "the tests of the bindings for Python, under gunicorn too, and their types",
        python::check,
    )
    .needs(Part::Wheels(Wheels::Python)),
    step(
        "semver",
        "the interfaces of the libraries, compared with those of the last release",
        semver::check,
    ),
    step(
        "each-feature",
        "each library compiles without features, and with each feature alone, \
            without a warning",
        each_feature::check,
    ),
    step(
        "oldest-versions",
        "the libraries compile with the lowest versions of dependencies that they \
            allow",
        resolved::oldest,
    ),
    step(
        "newest-versions",
        "the tests of all packages except the core, with the newest versions of \
            dependencies",
        resolved::newest,
    ),
    step(
        "platforms",
        "the libraries compile for other systems whose standard library is there",
        platforms::check,
    ),
    step(
        "proxies",
        "a real Envoy and a real Traefik enforce what portcullis-serve decides, and Envoy what \
            portcullis export writes",
        proxies,
    )
    .needs(Part::Wheels(Wheels::Proxies)),
    step(
        "python-wheel",
        "a wheel for Python is built from its source distribution, installed and imported",
        python::wheel,
    )
    .needs(Part::Wheels(Wheels::Python)),
    step(
        "miri",
        "tests of the core and the async library in Miri: tree borrows, strict \
            provenance",
        nightly::miri,
    )
    .needs(Part::Nightly(Nightly::Miri)),
    step(
        "sanitize",
        "tests of the async library and of shared memory under ThreadSanitizer and \
            AddressSanitizer",
        nightly::sanitize,
    )
    .needs(Part::Nightly(Nightly::Sanitizers)),
    step(
        "fuzz",
        "each fuzz target for a minute, or PORTCULLIS_FUZZ_SECONDS",
        nightly::fuzz,
    )
    .needs(Part::Nightly(Nightly::Fuzzer)),
    step(
        "screenshot",
        "writes docs/demo.svg, the picture of the demo in the README, from the \
            demo's output",
        screenshot::write,
    ),
    step(
        "weaken",
        "each ordering and guarantee is weakened in turn, and a model or test must \
            fail",
        weaken,
    ),
    step(
        "soak",
        "the property tests with 10^9 operations, and the stress tests for minutes; \
            10,000 waits for 10 s on every runtime; the longest loom models with more \
            pre-emptions; 10^8 pre-empted calls, and random traces for half an hour; \
            longer searches of the algorithms in shared memory and of small fleets; a \
            million random paths, files of policies, and sequences of decisions; a \
            policy that changes twice a second for a minute; 10 million forged keys; a \
            million random header fields; an HTTP service under load, beside nginx; \
            100,000 simulated fleets",
        soak,
    ),
];

fn fmt(context: &Context) -> Check {
    // The workspace, and the packages for other targets.
    let formatted = ["", "firmware", "docs/embedded", "docs/embedded-m0"].map(|folder| {
        let mut cargo = setup::component(context, "fmt", Part::Rustfmt);
        cargo.current_dir(context.root.join(folder));
        let formatted = command::run(cargo.words("--all --check"));
        formatted.map_err(|why| format!("{why}: run `cargo fmt --all`"))
    });
    together(formatted.into_iter().chain([width::check(&context.root)]))
}

/// Returns the result of the last of several checks, or what all of them found wrong.
fn together(checks: impl IntoIterator<Item = Check>) -> Check {
    let (mut last, mut wrong) = (String::new(), Vec::new());
    for check in checks {
        match check {
            Ok(what) => last = what,
            Err(why) => wrong.push(why),
        }
    }
    if wrong.is_empty() {
        Ok(last)
    } else {
        Err(wrong.join("\n"))
    }
}

/// Makes Clippy reject what is newer than the lowest Rust version of a package.
const LOWEST: &str = "-D clippy::incompatible_msrv";

fn clippy(context: &Context) -> Check {
    // Tests may use items that are newer than the lowest Rust version of the libraries.
    let all = "--workspace --all-targets --all-features";
    lint(context, all, "-A clippy::incompatible_msrv")?;
    quick_clippy(context)?;
    for package in ["core", "async", "policy", "tower"] {
        lint(context, &format!("--package portcullis-{package}"), "")?;
    }
    let others = "--package portcullis-tower --package portcullis-shm --package portcullis-fleet \
                  --package portcullis-jobs --package portcullis-counters \
                  --package portcullis-stores --package portcullis-c \
                  --package portcullis-python --all-features";
    lint(context, others, LOWEST)?;
    lint(
        context,
        "--manifest-path firmware/Cargo.toml --all-targets",
        "",
    )
}

/// Checks the libraries alone. Here Clippy also enforces `rust-version`: with `incompatible_msrv`,
/// no newer item of the standard library may be used.
fn quick_clippy(context: &Context) -> Check {
    let libraries = "--package portcullis-core --package portcullis-async \
                     --package portcullis-policy --all-features";
    lint(context, libraries, LOWEST)
}

fn lint(context: &Context, selection: &str, levels: &str) -> Check {
    let mut cargo = setup::component(context, "clippy", Part::Clippy);
    cargo.arg("--keep-going").args(context.locked());
    command::run(cargo.words(selection).words("-- -D warnings").words(levels))
}

/// Documents everything with all features, as docs.rs does, and each library with the default
/// features, as those who build the documentation of their own program do.
fn doc(context: &Context) -> Check {
    document(context, "--workspace --all-features")?;
    for folder in manifest::libraries(&context.root)? {
        // One by one: another library must not enable features.
        document(context, &format!("--package portcullis-{folder}"))?;
    }
    Ok(String::new())
}

fn document(context: &Context, selection: &str) -> Check {
    let mut cargo = context.cargo();
    cargo
        .words("doc --keep-going --no-deps")
        .args(context.locked());
    command::run(cargo.words(selection).env("RUSTDOCFLAGS", "-D warnings"))
}

fn tests(context: &Context) -> Check {
    let all = "--workspace --exclude portcullis-core --exclude portcullis-explore --all-features";
    let mut cargo = context.cargo_test(all);
    cargo.envs(setup::places_for_tests(context));
    command::run_tests(&mut cargo)
}

/// Test files that take many seconds without optimisation, or that run in real time.
const SLOW: &str = "interval io_rate keyed_list late named_twice penalty random_driver reservations \
                    retry_behind signal sliced_bucket striped_bucket striped_concurrency";

/// Runs the tests without optimisation: faster to compile after each change, slower to run.
fn quick_tests(context: &Context) -> Check {
    let (mut programs, mut files) = (BTreeSet::new(), Vec::new());
    for folder in ["core", "async", "policy"] {
        for program in test_programs::of(&context.root, folder)? {
            programs.insert(program.name);
            files.extend(program.files);
        }
    }
    let is_slow = |name: &String| SLOW.split(' ').any(|slow| slow == name);
    let mut cargo = context.cargo_test(
        "--package portcullis-core --package portcullis-async --package portcullis-policy \
         --package xtask --all-features --lib --bins",
    );
    for program in programs.iter().filter(|name| !is_slow(name)) {
        cargo.args(["--test", program]);
    }
    cargo.arg("--");
    for file in files.iter().filter(|name| is_slow(name)) {
        cargo.args(["--skip", &format!("{file}::")]);
    }
    command::run_tests(&mut cargo)
}

/// The property tests need optimised code to be fast, and overflow checks for the arithmetic. The
/// profile `light` in `.cargo/config.toml` has both, and compiles in less than half the time of
/// `checked`.
fn core_tests(context: &Context) -> Check {
    command::run_tests(&mut context.cargo_test(
        "--profile light --package portcullis-core --all-features --lib --tests --examples",
    ))
}

fn doc_tests(context: &Context) -> Check {
    let core = "--doc --package portcullis-core --all-features";
    command::run_tests(&mut context.cargo_test(core))
}

fn loom(context: &Context) -> Check {
    command::run_tests(&mut models(context))
}

fn quick_loom(context: &Context) -> Check {
    let mut cargo = models(context);
    cargo.words("--test token_bucket --test concurrency --test queue");
    command::run_tests(cargo.env("LOOM_MAX_PREEMPTIONS", "2"))
}

fn models(context: &Context) -> Command {
    let mut cargo = context.cargo_test("--profile models --package portcullis-loom --target-dir");
    cargo.arg(context.target_dir("loom"));
    cargo.env("RUSTFLAGS", "--cfg portcullis_loom");
    cargo
}

fn explore(context: &Context) -> Check {
    let accesses = command::run_tests(&mut explorer(context))?;
    let traces = command::run_tests(&mut traces(context))?;
    Ok(format!(
        "{accesses} by accesses, {traces} by instructions and traces"
    ))
}

/// Explores the core with a pre-emption at every atomic access.
fn explorer(context: &Context) -> Command {
    let tests = "--test every_access --test keyed_list --test shared_memory \
                 --test striped_bucket --test striped_concurrency";
    let flag = "--cfg portcullis_explore";
    exploring(context, tests, "explore", flag)
}

/// Explores the core as it is. A hidden call records a time as a take does that is eventually
/// denied.
fn traces(context: &Context) -> Command {
    let tests = "--test late_refunds --test every_instruction";
    let flag = "--cfg portcullis_notes";
    exploring(context, tests, "notes", flag)
}

fn exploring(context: &Context, tests: &str, folder: &str, flag: &str) -> Command {
    let mut cargo = context.cargo_test("--profile checked --package portcullis-explore");
    cargo.words(tests);
    cargo.arg("--target-dir").arg(context.target_dir(folder));
    cargo.env("RUSTFLAGS", flag);
    cargo
}

fn weaken(context: &Context) -> Check {
    let places = setup::places_for_tests(context);
    weaken::run(&context.root, &context.only, &places)?;
    Ok(String::new())
}

fn proxies(context: &Context) -> Check {
    let packages = "--package portcullis-serve --package portcullis-cli --test suite";
    let mut test = context.cargo_test(packages);
    test.words("-- --ignored other_proxies envoy_decides");
    test.envs(Wheels::Proxies.places(context));
    command::run_tests(&mut test)
}

fn soak(context: &Context) -> Check {
    let test = |arguments| context.cargo_test(arguments);
    let ignored = |mut cargo: Command| {
        cargo.words("-- --ignored --nocapture");
        cargo
    };
    let cases = ("PROPTEST_CASES", "1000000");
    // Two changes of a policy a second; a server that is paused and killed.
    let seconds = ("PORTCULLIS_SOAK_SECONDS", "60");
    let mut policies = test("--release --package portcullis-policy --all-features --lib --tests");
    policies.envs([cases, seconds]);
    let mut counters = test("--release --package portcullis-counters --all-features --lib --tests");
    counters.envs([cases, seconds]);
    setup::provide_servers(context, &[Server::Redis], &mut counters);
    // One at a time, because some of them measure.
    let mut http = test(
        "--release --package portcullis-tower --all-features --tests \
         -- --include-ignored --nocapture --test-threads=1",
    );
    http.env("PORTCULLIS_SOAK_CASES", "1000000");
    setup::provide_servers(context, &[Server::Nginx], &mut http);
    let mut served = test("--release --package portcullis-serve --test load");
    served.words("-- --include-ignored --nocapture --test-threads=1");
    served.env("PORTCULLIS_SOAK_CASES", "10000000");
    setup::provide_servers(context, &[Server::Nginx], &mut served);
    let mut thorough = models(context);
    thorough.env("PORTCULLIS_THOROUGH", "1");
    let mut runs = [
        ignored(test(
            "--release --package portcullis-core --package portcullis-async --all-features --lib --tests",
        )),
        thorough,
        ignored(explorer(context)),
        ignored(traces(context)),
        policies,
        counters,
        http,
        served,
        ignored(test("--release --package portcullis-shm --tests")),
        ignored(test(
            "--release --package portcullis-counters --features shm --test shared",
        )),
        ignored(test(
            "--profile checked --package portcullis-fleet --test simulation",
        )),
    ];
    let counts: Result<Vec<_>, _> = runs.iter_mut().map(command::run_tests).collect();
    Ok(counts?.join("; "))
}

#[test]
fn checks_together_tell_all_that_is_wrong() {
    let fine = || Ok("fine".to_owned());
    let wrong = |why: &str| Err(why.to_owned());
    assert_eq!(together([Ok(String::new()), fine()]), fine());
    assert_eq!(together([wrong("a"), fine(), wrong("b")]), wrong("a\nb"));
}
