use std::collections::BTreeSet;
use std::process::Command;

use crate::bench_check;
use crate::book;
use crate::command::{self, Check};
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
use crate::readme;
use crate::resolved;
use crate::screenshot;
use crate::semver;
use crate::servers::Server;
use crate::setup::{self, Part};
use crate::test_programs;
use crate::weaken;
use crate::width;

/// A group of steps with a name.
pub(crate) struct Task {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) steps: &'static [&'static str],
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

pub(crate) const TASKS: &[Task] = &[
    Task {
        name: "quick",
        about: "for use while you work: under 2 minutes on 2 cores, once built",
        steps: &["fmt", "house", "quick-clippy", "quick-tests", "quick-loom"],
    },
    Task {
        name: "test",
        about: "all checks that a change must pass: all steps except those of quick and those for a release",
        steps: &[
            "fmt",
            "house",
            "clippy",
            "oldest-rust",
            "package",
            "doc",
            "tests",
            "examples",
            "core-tests",
            "doc-tests",
            "readme",
            "book",
            "loom",
            "explore",
            "hot-paths",
            "no-std",
            "firmware",
            "embedded",
            "firmware-cost",
            "bench-check",
        ],
    },
    Task {
        name: "lint",
        about: "fmt, house, clippy, oldest-rust and doc",
        steps: &["fmt", "house", "clippy", "oldest-rust", "doc"],
    },
    Task {
        name: "release-check",
        about: "for a release: the steps of test, those that compare features, versions and platforms, then weaken and soak",
        steps: &[
            "fmt",
            "house",
            "clippy",
            "oldest-rust",
            "package",
            "doc",
            "tests",
            "examples",
            "core-tests",
            "doc-tests",
            "readme",
            "book",
            "loom",
            "explore",
            "hot-paths",
            "no-std",
            "firmware",
            "embedded",
            "firmware-cost",
            "bench-check",
            "semver",
            "each-feature",
            "oldest-versions",
            "newest-versions",
            "platforms",
            "weaken",
            "soak",
        ],
    },
];

pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        about: "the code is formatted, and comments and prose fit into 100 columns",
        needs: Some(Part::Rustfmt),
        beside: false,
        run: fmt,
    },
    Step {
        name: "house",
        about: "modules import from those that define a name, in no circle; functions have at most 60 lines and 6 levels",
        needs: None,
        beside: false,
        run: house::check,
    },
    Step {
        name: "clippy",
        about: "no warning from Clippy, with all features and with none",
        needs: Some(Part::Clippy),
        beside: false,
        run: clippy,
    },
    Step {
        name: "quick-clippy",
        about: "no warning from Clippy in the libraries, with all features",
        needs: Some(Part::Clippy),
        beside: false,
        run: quick_clippy,
    },
    Step {
        name: "quick-tests",
        about: "the tests of the libraries and of xtask, except those that are slow without optimisation",
        needs: None,
        beside: false,
        run: quick_tests,
    },
    Step {
        name: "quick-loom",
        about: "a few loom models: of a token bucket, a concurrency limit and a queue",
        needs: None,
        beside: false,
        run: quick_loom,
    },
    Step {
        name: "oldest-rust",
        about: "the libraries compile with the lowest Rust version",
        needs: Some(Part::OldestRust),
        beside: false,
        run: oldest_rust::check,
    },
    Step {
        name: "package",
        about: "a dry run of publishing packs the libraries, and the packages compile against each other",
        needs: None,
        beside: false,
        run: package::check,
    },
    Step {
        name: "doc",
        about: "the documentation builds without a warning, with all features and with the default ones",
        needs: None,
        beside: false,
        run: doc,
    },
    Step {
        name: "tests",
        about: "the tests of all packages except the core",
        needs: None,
        beside: false,
        run: tests,
    },
    Step {
        name: "examples",
        about: "the examples that end run; the step tests starts the others",
        needs: None,
        beside: false,
        run: examples::check,
    },
    Step {
        name: "core-tests",
        about: "the core's tests and examples, optimised, with overflow checks",
        needs: None,
        beside: false,
        run: core_tests,
    },
    Step {
        name: "doc-tests",
        about: "the examples in the documentation",
        needs: None,
        beside: false,
        run: doc_tests,
    },
    Step {
        name: "readme",
        about: "each program of the README compiles against the manifest above it, and runs",
        needs: None,
        beside: false,
        run: readme::check,
    },
    Step {
        name: "book",
        about: "the book of all documents builds without a warning, and each of its links leads somewhere",
        needs: Some(Part::Book),
        beside: false,
        run: book::check,
    },
    Step {
        name: "loom",
        about: "the models of every atomic algorithm, in loom",
        needs: None,
        beside: false,
        run: loom,
    },
    Step {
        name: "explore",
        about: "the core pre-empted at every atomic access and at every instruction, and late refunds, compared with every order and with exact arithmetic; every run of processes that share memory, die and are replaced",
        needs: None,
        beside: false,
        run: explore,
    },
    Step {
        name: "hot-paths",
        about: "the machine code of the hot paths: number of atomic writes, no division, call or panic",
        needs: Some(Part::X86),
        beside: true,
        run: hot_paths::check,
    },
    Step {
        name: "no-std",
        about: "the core and the queue compile for targets without std, with native atomics only",
        needs: Some(Part::BareTargets),
        beside: true,
        run: no_std::check,
    },
    Step {
        name: "firmware",
        about: "limiters and queues on emulated microcontrollers: Cortex-M3, Cortex-M0 and RISC-V",
        needs: Some(Part::Firmware),
        beside: true,
        run: firmware::check,
    },
    Step {
        name: "embedded",
        about: "the program in docs/embedded.md runs on an emulated Cortex-M3",
        needs: Some(Part::Firmware),
        beside: true,
        run: firmware::check_documented,
    },
    Step {
        name: "firmware-cost",
        about: "flash, RAM and instructions on a Cortex-M3, compared with the budget and the baseline",
        needs: Some(Part::Firmware),
        beside: true,
        run: firmware_cost::check,
    },
    Step {
        name: "bench-check",
        about: "no hot path takes over 2 % more instructions than its baseline, with the same compiler",
        needs: Some(Part::Callgrind),
        beside: true,
        run: bench_check::check,
    },
    Step {
        name: "semver",
        about: "the interfaces of the libraries, compared with those of the last release",
        needs: None,
        beside: false,
        run: semver::check,
    },
    Step {
        name: "each-feature",
        about: "each library compiles without features, and with each feature alone, without a warning",
        needs: None,
        beside: false,
        run: each_feature::check,
    },
    Step {
        name: "oldest-versions",
        about: "the libraries compile with the lowest versions of dependencies that they allow",
        needs: None,
        beside: false,
        run: resolved::oldest,
    },
    Step {
        name: "newest-versions",
        about: "the tests of all packages except the core, with the newest versions of dependencies",
        needs: None,
        beside: false,
        run: resolved::newest,
    },
    Step {
        name: "platforms",
        about: "the libraries compile for other systems whose standard library is there",
        needs: None,
        beside: false,
        run: platforms::check,
    },
    Step {
        name: "miri",
        about: "tests of the core and the async library in Miri: tree borrows, strict provenance",
        needs: Some(Part::Nightly(Nightly::Miri)),
        beside: false,
        run: nightly::miri,
    },
    Step {
        name: "sanitize",
        about: "tests of the async library and of shared memory under ThreadSanitizer and AddressSanitizer",
        needs: Some(Part::Nightly(Nightly::Sanitizers)),
        beside: false,
        run: nightly::sanitize,
    },
    Step {
        name: "fuzz",
        about: "each fuzz target for a minute, or PORTCULLIS_FUZZ_SECONDS",
        needs: Some(Part::Nightly(Nightly::Fuzzer)),
        beside: false,
        run: nightly::fuzz,
    },
    Step {
        name: "screenshot",
        about: "writes docs/demo.svg, the picture of the demo in the README, from the demo's output",
        needs: None,
        beside: false,
        run: screenshot::write,
    },
    Step {
        name: "weaken",
        about: "each ordering and guarantee is weakened in turn, and a model or test must fail",
        needs: None,
        beside: false,
        run: weaken,
    },
    Step {
        name: "soak",
        about: "the property tests with 10^9 operations, and the stress tests for minutes; 10,000 waits for 10 s on every runtime; the longest loom models with more pre-emptions; 10^8 pre-empted calls, and random traces for half an hour; longer searches of the algorithms in shared memory and of small fleets; a million random paths, files of policies, and sequences of decisions; a policy that changes twice a second for a minute; 10 million forged keys; a million random header fields; an HTTP service under load, beside nginx; 100,000 simulated fleets",
        needs: None,
        beside: false,
        run: soak,
    },
];

fn fmt(context: &Context) -> Check {
    // The workspace, and the packages for other targets.
    for folder in ["", "firmware", "docs/embedded"] {
        let mut cargo = setup::component(context, "fmt", Part::Rustfmt);
        cargo.current_dir(context.root.join(folder));
        command::run(cargo.args(["--all", "--check"]))?;
    }
    width::check(&context.root)
}

fn clippy(context: &Context) -> Check {
    // Tests may use items that are newer than the lowest Rust version of the libraries.
    let all = ["--workspace", "--all-targets", "--all-features"];
    lint(context, &all, &["-A", "clippy::incompatible_msrv"])?;
    quick_clippy(context)?;
    lint(context, &["--package", "portcullis-core"], &[])?;
    lint(context, &["--package", "portcullis-async"], &[])?;
    lint(context, &["--package", "portcullis-policy"], &[])?;
    lint(context, &["--package", "portcullis-tower"], &[])?;
    let others = [
        "portcullis-tower",
        "portcullis-shm",
        "portcullis-fleet",
        "portcullis-jobs",
        "portcullis-counters",
        "portcullis-stores",
    ];
    let others = others.map(|package| ["--package", package]);
    let others = [others.as_flattened(), &["--all-features"]].concat();
    lint(context, &others, &["-D", "clippy::incompatible_msrv"])?;
    let firmware = ["--manifest-path", "firmware/Cargo.toml", "--all-targets"];
    lint(context, &firmware, &[])
}

/// Checks the libraries alone. Here Clippy also enforces `rust-version`: with `incompatible_msrv`,
/// no newer item of the standard library may be used.
fn quick_clippy(context: &Context) -> Check {
    let libraries = [
        "--package",
        "portcullis-core",
        "--package",
        "portcullis-async",
        "--package",
        "portcullis-policy",
    ];
    let selection = [&libraries[..], &["--all-features"]].concat();
    lint(context, &selection, &["-D", "clippy::incompatible_msrv"])
}

fn lint(context: &Context, selection: &[&str], levels: &[&str]) -> Check {
    let mut cargo = setup::component(context, "clippy", Part::Clippy);
    cargo
        .arg("--keep-going")
        .args(context.locked())
        .args(selection);
    command::run(cargo.args(["--", "-D", "warnings"]).args(levels))
}

/// Documents everything with all features, as docs.rs does, and each library with the default
/// features, as those who build the documentation of their own program do.
fn doc(context: &Context) -> Check {
    document(context, &["--workspace", "--all-features"])?;
    for folder in manifest::libraries(&context.root)? {
        // One by one: another library must not enable features.
        document(context, &["--package", &format!("portcullis-{folder}")])?;
    }
    Ok(String::new())
}

fn document(context: &Context, selection: &[&str]) -> Check {
    let mut cargo = context.cargo();
    cargo
        .args(["doc", "--keep-going", "--no-deps"])
        .args(context.locked())
        .args(selection);
    command::run(cargo.env("RUSTDOCFLAGS", "-D warnings"))
}

fn tests(context: &Context) -> Check {
    let mut cargo = context.cargo_test();
    cargo.args([
        "--workspace",
        "--exclude",
        "portcullis-core",
        "--exclude",
        "portcullis-explore",
    ]);
    setup::provide_servers(
        context,
        &[Server::Etcd, Server::Nginx, Server::Redis],
        &mut cargo,
    );
    command::run_tests(cargo.arg("--all-features"))
}

/// Test files that take many seconds without optimisation, or that run in real time.
const SLOW: [&str; 9] = [
    "io_rate",
    "named_twice",
    "random_driver",
    "reservations",
    "retry_behind",
    "signal",
    "sliced_bucket",
    "striped_bucket",
    "striped_concurrency",
];

/// Runs the tests without optimisation: faster to compile after each change, slower to run.
fn quick_tests(context: &Context) -> Check {
    let (mut programs, mut files) = (BTreeSet::new(), Vec::new());
    for folder in ["core", "async", "policy"] {
        for program in test_programs::of(&context.root, folder)? {
            programs.insert(program.name);
            files.extend(program.files);
        }
    }
    let mut cargo = context.cargo_test();
    for package in [
        "portcullis-core",
        "portcullis-async",
        "portcullis-policy",
        "xtask",
    ] {
        cargo.args(["--package", package]);
    }
    cargo.args(["--all-features", "--lib", "--bins"]);
    for program in programs
        .iter()
        .filter(|name| !SLOW.contains(&name.as_str()))
    {
        cargo.args(["--test", program]);
    }
    cargo.arg("--");
    for file in files.iter().filter(|name| SLOW.contains(&name.as_str())) {
        cargo.args(["--skip", &format!("{file}::")]);
    }
    command::run_tests(&mut cargo)
}

/// The property tests need optimised code to be fast, and overflow checks for the arithmetic. The
/// profile `checked` in `.cargo/config.toml` has both.
fn core_tests(context: &Context) -> Check {
    let mut cargo = context.cargo_test();
    cargo.args([
        "--profile",
        "checked",
        "--package",
        "portcullis-core",
        "--all-features",
    ]);
    command::run_tests(cargo.args(["--lib", "--tests", "--examples"]))
}

fn doc_tests(context: &Context) -> Check {
    let mut cargo = context.cargo_test();
    command::run_tests(cargo.args(["--doc", "--package", "portcullis-core", "--all-features"]))
}

fn loom(context: &Context) -> Check {
    command::run_tests(&mut models(context))
}

fn quick_loom(context: &Context) -> Check {
    let mut cargo = models(context);
    for file in ["token_bucket", "concurrency", "queue"] {
        cargo.args(["--test", file]);
    }
    command::run_tests(cargo.env("LOOM_MAX_PREEMPTIONS", "2"))
}

fn models(context: &Context) -> Command {
    let mut cargo = context.cargo_test();
    cargo
        .args(["--release", "--package", "portcullis-loom", "--target-dir"])
        .arg(context.target_dir("loom"));
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
    let mut cargo = context.cargo_test();
    cargo.args([
        "--profile",
        "checked",
        "--package",
        "portcullis-explore",
        "--test",
        "every_access",
        "--test",
        "keyed_list",
        "--test",
        "shared_memory",
        "--test",
        "striped_bucket",
        "--test",
        "striped_concurrency",
    ]);
    cargo.arg("--target-dir").arg(context.target_dir("explore"));
    cargo.env("RUSTFLAGS", "--cfg portcullis_explore");
    cargo
}

/// Explores the core as it is. A hidden call records a time as a take does that is eventually
/// denied.
fn traces(context: &Context) -> Command {
    let mut cargo = context.cargo_test();
    cargo.args(["--profile", "checked", "--package", "portcullis-explore"]);
    cargo.args(["--test", "late_refunds", "--test", "every_instruction"]);
    cargo.arg("--target-dir").arg(context.target_dir("notes"));
    cargo.env("RUSTFLAGS", "--cfg portcullis_notes");
    cargo
}

fn weaken(context: &Context) -> Check {
    let servers = setup::places_of(context, &[Server::Etcd, Server::Redis]);
    weaken::run(&context.root, &context.only, &servers)?;
    Ok(String::new())
}

fn soak(context: &Context) -> Check {
    let mut cargo = context.cargo_test();
    cargo.args([
        "--release",
        "--package",
        "portcullis-core",
        "--package",
        "portcullis-async",
    ]);
    cargo.args(["--all-features", "--lib", "--tests"]);
    let tests = command::run_tests(cargo.args(["--", "--ignored", "--nocapture"]))?;
    let models = command::run_tests(models(context).env("PORTCULLIS_THOROUGH", "1"))?;
    let ignored = ["--", "--ignored", "--nocapture"];
    let accesses = command::run_tests(explorer(context).args(ignored))?;
    let traces = command::run_tests(traces(context).args(ignored))?;
    let mut policies = context.cargo_test();
    policies.args(["--release", "--package", "portcullis-policy"]);
    policies.args(["--all-features", "--lib", "--tests"]);
    policies.env("PROPTEST_CASES", "1000000");
    // Two changes of a policy a second.
    policies.env("PORTCULLIS_SOAK_SECONDS", "60");
    let policies = command::run_tests(&mut policies)?;
    let mut counters = context.cargo_test();
    counters.args(["--release", "--package", "portcullis-counters"]);
    counters.args(["--all-features", "--lib", "--tests"]);
    counters.env("PROPTEST_CASES", "1000000");
    // A server that is paused and killed.
    counters.env("PORTCULLIS_SOAK_SECONDS", "60");
    setup::provide_servers(context, &[Server::Redis], &mut counters);
    let counters = command::run_tests(&mut counters)?;
    let mut http = context.cargo_test();
    http.args(["--release", "--package", "portcullis-tower"]);
    http.args(["--all-features", "--tests"]);
    http.env("PORTCULLIS_SOAK_CASES", "1000000");
    setup::provide_servers(context, &[Server::Nginx], &mut http);
    // One at a time, because some of them measure.
    http.args(["--", "--include-ignored", "--nocapture", "--test-threads=1"]);
    let http = command::run_tests(&mut http)?;
    let mut shared = context.cargo_test();
    shared.args(["--release", "--package", "portcullis-shm", "--tests"]);
    let shared = command::run_tests(shared.args(ignored))?;
    let mut stores = context.cargo_test();
    stores.args(["--release", "--package", "portcullis-counters"]);
    stores.args(["--features", "shm", "--test", "shared"]);
    let stores = command::run_tests(stores.args(ignored))?;
    let mut fleets = context.cargo_test();
    fleets.args(["--profile", "checked", "--package", "portcullis-fleet"]);
    fleets.args(["--test", "simulation"]);
    let fleets = command::run_tests(fleets.args(ignored))?;
    Ok(format!(
        "{tests}; {models}; {accesses}; {traces}; {policies}; {counters}; {http}; {shared}; {stores}; {fleets}"
    ))
}
