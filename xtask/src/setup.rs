//! Provides the tools that the steps need and that a fresh machine may lack.
//!
//! It tries these in order: the tool as installed, in the default toolchain or in Debian's
//! packages; for some programs, Cargo or pip; installation of Debian's packages. It never asks for
//! a password.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::book;
use crate::command::Words;
use crate::context::Context;
use crate::debian;
use crate::nightly::Nightly;
use crate::oldest_rust;
use crate::programs::{is_quiet_success, output, printed, rustc, succeeds};
use crate::servers::Server;
use crate::targets::{BOARDS, TARGETS};
use crate::wheels::Wheels;

/// A tool that a step needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Rustfmt,
    Clippy,
    /// A `core` for targets without `std`.
    BareTargets,
    /// A `core` and a linker for microcontrollers, and their emulators.
    Firmware,
    /// What builds and checks programs in C and C++ for this machine.
    CBindings,
    /// A processor whose machine code can be checked.
    X86,
    /// A compiler of the lowest Rust version of the libraries.
    OldestRust,
    /// Valgrind, and the program that runs benches under it.
    Callgrind,
    /// mdBook.
    Book,
    /// Packages of Python's registry.
    Wheels(Wheels),
    /// A server that tests start.
    Server(Server),
    /// A nightly toolchain.
    Nightly(Nightly),
}

impl Part {
    fn missing(self) -> &'static str {
        match self {
            Self::Rustfmt => "missing: rustfmt (rustup component add rustfmt)",
            Self::Clippy => "missing: Clippy (rustup component add clippy)",
            Self::BareTargets => {
                "missing: core for targets without std (rustup target add thumbv7m-none-eabi thumbv6m-none-eabi riscv32imac-unknown-none-elf \
                 x86_64-unknown-none wasm32-unknown-unknown, or Debian's rustc-web, cargo-web and rust-web-src)"
            }
            Self::Firmware => {
                "missing: QEMU (Debian's qemu-system-arm and qemu-system-misc), or core for microcontrollers (rustup target add thumbv7m-none-eabi \
                 thumbv6m-none-eabi riscv32imac-unknown-none-elf, or Debian's rustc-web, cargo-web, rust-web-src and lld-22)"
            }
            Self::CBindings => {
                "missing: a compiler of C++, Valgrind or pkg-config (Debian's g++, valgrind and pkg-config)"
            }
            Self::OldestRust => {
                "missing: the lowest Rust version of the libraries (rustup toolchain install, with `rust-version` of core/Cargo.toml, or Debian's \
                 rustc-web of that version)"
            }
            Self::Callgrind => {
                "missing: Valgrind (Debian's valgrind), or gungraun-runner (cargo install gungraun-runner, the version in Cargo.lock)"
            }
            Self::Book => "missing: mdBook (cargo install mdbook, or pip for Python 3)",
            Self::Wheels(wheels) => wheels.missing(),
            Self::Server(server) => server.missing(),
            Self::Nightly(nightly) => nightly.missing(),
            Self::X86 => "missing: an x86_64 processor; this step reads only x86_64 machine code",
        }
    }

    /// Returns Debian's packages to install for the part, or `None` if Debian has nothing for it.
    fn debian(self) -> Option<&'static [&'static str]> {
        let packages: &[_] = match self {
            Self::Rustfmt => &["rustfmt-web", "cargo-web"],
            Self::Clippy => &["rust-web-clippy", "cargo-web"],
            Self::BareTargets => &["rustc-web", "cargo-web", "rust-web-src"],
            Self::Firmware => &[
                "rustc-web",
                "cargo-web",
                "rust-web-src",
                "lld-22",
                "qemu-system-arm",
                "qemu-system-misc",
            ],
            Self::CBindings => &["g++", "valgrind", "pkg-config"],
            Self::X86 | Self::Nightly(_) => return None,
            Self::OldestRust => &[oldest_rust::LLVM],
            Self::Callgrind => &["valgrind"],
            Self::Book | Self::Wheels(_) => &["python3-pip"],
            Self::Server(server) => server.libraries(),
        };
        Some(packages)
    }
}

/// Provides `part`, or returns one line that says what is missing.
pub(crate) fn ensure(context: &Context, part: Part) -> Result<(), String> {
    let there = || is_there(context, part) || is_there_in_debian(context, part);
    let other = || match part {
        Part::Callgrind => install_runner(context),
        Part::Book => book::install(context),
        Part::Wheels(wheels) => wheels.install(context),
        _ => false,
    };
    let unpack = || match part {
        Part::OldestRust => oldest_rust::unpack(context),
        Part::Server(server) => server.unpack(context),
        Part::Book => book::install(context),
        Part::Wheels(wheels) => wheels.install(context),
        _ => true,
    };
    let debian = || part.debian().is_some_and(debian::install) && unpack();
    let install = || (other() && there()) || (debian() && there());
    if there() || install() {
        Ok(())
    } else {
        Err(part.missing().to_owned())
    }
}

/// Returns Cargo's `subcommand`, from the toolchain that has it.
pub(crate) fn component(context: &Context, subcommand: &str, part: Part) -> Command {
    if is_there(context, part) {
        let mut cargo = context.cargo();
        cargo.arg(subcommand);
        cargo
    } else {
        context.debian_component(subcommand)
    }
}

/// Returns whether the toolchain that runs this program has `part`.
pub(crate) fn is_there(context: &Context, part: Part) -> bool {
    match part {
        Part::Rustfmt => is_quiet_success(context.cargo().args(["fmt", "--version"])),
        Part::Clippy => {
            let mut cargo = context.cargo();
            cargo.arg("clippy");
            fits(cargo, &rustc())
        }
        Part::BareTargets => TARGETS.iter().all(|target| has_core(target)),
        Part::Firmware => has_emulators() && BOARDS.iter().all(|board| has_core(board.target)),
        Part::CBindings => ["cc", "c++", "valgrind", "pkg-config"]
            .iter()
            .all(|program| is_quiet_success(Command::new(program).arg("--version"))),
        Part::X86 => cfg!(target_arch = "x86_64"),
        Part::OldestRust => oldest_rust::compiler(context).is_some(),
        Part::Callgrind => {
            is_quiet_success(Command::new("valgrind").arg("--version"))
                && callgrind_runner(context).is_file()
        }
        Part::Book => book::program(context).is_some(),
        Part::Wheels(wheels) => wheels.is_there(context),
        Part::Server(server) => server.program(context).is_some(),
        Part::Nightly(nightly) => nightly.is_there(context),
    }
}

fn is_there_in_debian(context: &Context, part: Part) -> bool {
    match part {
        Part::Rustfmt => is_quiet_success(context.debian_component("fmt").arg("--version")),
        Part::Clippy => fits(
            context.debian_component("clippy"),
            Path::new("/usr/bin/rustc"),
        ),
        Part::BareTargets => {
            output("/usr/bin/rustc", &["--print", "sysroot"]).is_some_and(|root| {
                Path::new(root.trim())
                    .join("lib/rustlib/src/rust/library/core")
                    .is_dir()
            })
        }
        Part::Firmware => {
            has_emulators()
                && is_there_in_debian(context, Part::BareTargets)
                && linker_beside_debian().is_some()
        }
        Part::CBindings
        | Part::X86
        | Part::OldestRust
        | Part::Callgrind
        | Part::Book
        | Part::Wheels(_)
        | Part::Server(_)
        | Part::Nightly(_) => false,
    }
}

/// Returns whether the default toolchain has the `core` of the target.
fn has_core(target: &str) -> bool {
    let printed = output(rustc(), &["--print", "target-libdir", "--target", target]);
    printed.is_some_and(|libraries| Path::new(libraries.trim()).is_dir())
}

fn has_emulators() -> bool {
    BOARDS
        .iter()
        .all(|board| is_quiet_success(Command::new(board.emulator).arg("--version")))
}

/// Returns whether `clippy` has the same version as `rustc`. With another version it could not read
/// the compiler's output.
fn fits(mut clippy: Command, rustc: &Path) -> bool {
    let (clippy, rustc) = (
        printed(clippy.arg("--version")),
        output(rustc, &["--version"]),
    );
    // `clippy 0.1.95 (...)`, `rustc 1.95.0 (...)`
    let number = |text: &str, place| text.split([' ', '.', '\n']).nth(place).map(str::to_owned);
    clippy
        .zip(rustc)
        .is_some_and(|(clippy, rustc)| number(&clippy, 3) == number(&rustc, 2))
}

/// Returns a linker for bare targets, which Debian's compiler lacks: Debian's own, or that of the
/// default toolchain.
pub(crate) fn linker_beside_debian() -> Option<PathBuf> {
    let own = output(rustc(), &["--print", "sysroot"]).map(|root| {
        let place = format!(
            "lib/rustlib/{}-unknown-linux-gnu/bin/rust-lld",
            env::consts::ARCH
        );
        Path::new(root.trim()).join(place)
    });
    debian::lld().or(own).filter(|path| path.is_file())
}

/// Installs the program that runs benches under Callgrind, in a folder named after its version. A
/// bench accepts only its own version.
pub(crate) fn callgrind_runner(context: &Context) -> PathBuf {
    context
        .target_dir(&format!("gungraun-runner-{}", runner_version(context)))
        .join("bin/gungraun-runner")
}

/// Returns the version of the benches' library in the lock file.
fn runner_version(context: &Context) -> String {
    let lock = fs::read_to_string(context.root.join("Cargo.lock")).unwrap_or_default();
    let entry = lock
        .split_once("name = \"gungraun\"\nversion = \"")
        .map(|(_, rest)| rest);
    entry
        .and_then(|rest| rest.split('"').next())
        .unwrap_or("unknown")
        .to_owned()
}

/// Without optimisation it builds in half the time. It only starts Valgrind and adds up totals.
fn install_runner(context: &Context) -> bool {
    let runner = callgrind_runner(context);
    let root = runner.parent().and_then(Path::parent).unwrap_or(&runner);
    let mut cargo = context.cargo();
    cargo.words("install --quiet --debug --locked gungraun-runner --version");
    cargo.arg(runner_version(context)).arg("--root").arg(root);
    runner.is_file() || succeeds(&mut cargo)
}

/// Provides `servers`, and tells the tests that `cargo` runs where they are. The tests of a server
/// that is missing say so, and fail in CI.
pub(crate) fn provide_servers(context: &Context, servers: &[Server], cargo: &mut Command) {
    cargo.envs(places_of(context, servers));
}

/// Provides `servers`, and returns the variables that tell tests where they are.
fn places_of(context: &Context, servers: &[Server]) -> Vec<(&'static str, PathBuf)> {
    let place = |&server: &Server| {
        _ = ensure(context, Part::Server(server));
        let program = server.program(context)?;
        Some((server.variable(), program))
    };
    servers.iter().filter_map(place).collect()
}

/// Provides all that the tests of the workspace start, and returns the variables that tell them
/// where it is.
pub(crate) fn places_for_tests(context: &Context) -> Vec<(&'static str, PathBuf)> {
    let servers = [
        Server::Caddy,
        Server::Etcd,
        Server::Haproxy,
        Server::Nginx,
        Server::Redis,
    ];
    let mut places = places_of(context, &servers);
    if ensure(context, Part::Wheels(Wheels::Grpc)).is_ok() {
        places.extend(Wheels::Grpc.places(context));
    }
    places
}
