//! Compiles the libraries with the lowest Rust version that their manifests name.
//!
//! Clippy's `incompatible_msrv` rejects newer items of the standard library, but not newer features
//! of the language. A compiler of that version rejects both.
//!
//! The compiler is one of these: a toolchain of rustup, the default compiler, or Debian's. Debian's
//! is unpacked into the target directory instead of installed, because a machine can have only one
//! version of that package, and other steps use the newest one.
//!
//! Debian has no compiler of the version of the [`OTHERS`]. They are compiled where rustup has it;
//! elsewhere only Clippy checks them, and the remark of the step says so.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Check};
use crate::context::Context;
use crate::debian;
use crate::manifest;
use crate::programs::{printed, rustup};

/// The libraries, by folder and name.
const LIBRARIES: [(&str, &str); 2] = [("core", "portcullis-core"), ("async", "portcullis-async")];

/// The libraries with another lowest version, by folder.
const OTHERS: [&str; 8] = [
    "policy", "tower", "shm", "fleet", "jobs", "counters", "stores", "adaptive",
];

/// Features that need a newer version, because a dependency needs it.
const NEWER: [&str; 1] = ["tsc"];

/// Debian's packages of the compiler, beside the LLVM that [`LLVM`] names.
const PACKAGES: [&str; 3] = ["rustc-web", "libstd-rust-web-dev", "libstd-rust-web-*"];

/// Debian's package of the LLVM that the compiler is linked with.
pub(crate) const LLVM: &str = "libllvm19";

pub(crate) fn check(context: &Context) -> Check {
    let version = version(context)?;
    let rustc = compiler(context).ok_or(format!("there is no rustc {version}"))?;
    let mut features = Vec::new();
    for (folder, package) in LIBRARIES {
        let manifest = manifest::read(&context.root, &format!("{folder}/Cargo.toml"))?;
        let names = manifest::features(&manifest).into_iter().map(|of| of.0);
        let checked = names.filter(|name| !NEWER.contains(&name.as_str()));
        features.extend(checked.map(|name| format!("{package}/{name}")));
    }
    let features = features.join(",");
    for selection in [&["--features", &features][..], &["--no-default-features"]] {
        let mut cargo = context.cargo();
        cargo.arg("check").args(context.locked());
        for (_, package) in LIBRARIES {
            cargo.args(["--package", package]);
        }
        cargo.args(selection).arg("--target-dir");
        cargo.arg(context.target_dir("oldest-rust"));
        // The newest compiler judges what to warn about.
        cargo.env("RUSTFLAGS", "-A warnings");
        command::run(as_compiler(&mut cargo, &rustc))?;
    }
    Ok(format!("Rust {version}; {}", check_others(context)?))
}

/// Compiles the other libraries with all features, if there is a compiler of their version.
fn check_others(context: &Context) -> Check {
    let mut others: Vec<(String, &str)> = Vec::new();
    for folder in OTHERS {
        let version = manifest::lowest_rust(&context.root, &format!("{folder}/Cargo.toml"))?;
        others.push((version, folder));
    }
    let version = &others[0].0;
    if let Some((other, folder)) = others.iter().find(|(other, _)| other != version) {
        return Err(format!("{folder} needs Rust {other}, not {version}"));
    }
    let Some(rustc) = of_version(context, version) else {
        return Ok(format!("no rustc {version} for {}", OTHERS.join(", ")));
    };
    let mut cargo = context.cargo();
    cargo.arg("check").args(context.locked());
    for folder in OTHERS {
        cargo.args(["--package", &format!("portcullis-{folder}")]);
    }
    cargo.arg("--all-features").arg("--target-dir");
    cargo.arg(context.target_dir("oldest-rust"));
    cargo.env("RUSTFLAGS", "-A warnings");
    command::run(as_compiler(&mut cargo, &rustc))?;
    Ok(format!("Rust {version}"))
}

/// Returns the lowest Rust version of the libraries, such as `1.85`.
fn version(context: &Context) -> Result<String, String> {
    let [core, of_async] = LIBRARIES
        .map(|(folder, _)| manifest::lowest_rust(&context.root, &format!("{folder}/Cargo.toml")));
    let (core, of_async) = (core?, of_async?);
    if core == of_async {
        Ok(core)
    } else {
        Err(format!(
            "the libraries need Rust {core} and Rust {of_async}"
        ))
    }
}

/// Returns a compiler of the lowest version.
pub(crate) fn compiler(context: &Context) -> Option<PathBuf> {
    of_version(context, &version(context).ok()?)
}

fn of_version(context: &Context, version: &str) -> Option<PathBuf> {
    // Toolchains are named `1.85` or `1.85.0`.
    let of_rustup = [version, &format!("{version}.0")].map(|name| {
        let found = printed(rustup().args(["which", "--toolchain", name, "rustc"]));
        found.map(|path| PathBuf::from(path.trim()))
    });
    let others = [
        PathBuf::from("rustc"),
        PathBuf::from("/usr/bin/rustc"),
        unpacked(context),
    ];
    of_rustup.into_iter().flatten().chain(others).find(|rustc| {
        let mut command = Command::new(rustc);
        printed(as_compiler(command.arg("--version"), rustc))
            .is_some_and(|printed| printed.starts_with(&format!("rustc {version}.")))
    })
}

/// Returns where [`unpack`] puts the compiler.
fn unpacked(context: &Context) -> PathBuf {
    folder(context).join("usr/bin/rustc")
}

fn folder(context: &Context) -> PathBuf {
    context.target_dir("oldest-rust-debian")
}

/// Sets the environment in which Cargo runs the compiler `rustc`.
fn as_compiler<'a>(command: &'a mut Command, rustc: &Path) -> &'a mut Command {
    let libraries = rustc
        .parent()
        .and_then(Path::parent)
        .map(|root| root.join("lib"))
        .filter(|libraries| libraries.is_dir());
    if let Some(libraries) = libraries {
        let machine = libraries.join(format!("{}-linux-gnu", env::consts::ARCH));
        if let Ok(paths) = env::join_paths([libraries, machine]) {
            command.env("LD_LIBRARY_PATH", paths);
        }
    }
    command.env("RUSTC", rustc)
}

/// Unpacks Debian's packages of the compiler. The lists of packages are up to date.
pub(crate) fn unpack(context: &Context) -> bool {
    let Ok(version) = version(context) else {
        return false;
    };
    let packages =
        PACKAGES.map(|package| format!("{}={version}.*", package.replace('*', &version)));
    debian::unpack(&folder(context), &packages)
}
