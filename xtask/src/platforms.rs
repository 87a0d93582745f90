//! Compiles the libraries for other systems, whose standard library the toolchain has.

use std::path::Path;

use crate::command::{self, Check};
use crate::context::Context;
use crate::programs;
use crate::targets::WASM;

/// The systems that are compiled for.
const SYSTEMS: [&str; 9] = [
    "aarch64-unknown-linux-gnu",
    "i686-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-linux-android",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-gnu",
    "x86_64-unknown-freebsd",
    "x86_64-unknown-netbsd",
    "x86_64-unknown-illumos",
];

/// The libraries. Elsewhere than on Linux, `portcullis-shm` is empty.
const LIBRARIES: [&str; 7] = ["core", "async", "policy", "tower", "fleet", "jobs", "shm"];

/// Features without a server, and without types of a web framework.
const FEATURES: &str = "portcullis-core/std,portcullis-async/channel,portcullis-async/stream,\
    portcullis-async/tokio,portcullis-async/async-io,portcullis-async/futures-io,\
    portcullis-policy/json,portcullis-policy/toml,portcullis-policy/queue,portcullis-policy/wait,\
    portcullis-tower/queue,portcullis-tower/fields,portcullis-tower/bodies,portcullis-tower/client";

/// Compiles for each system whose standard library is there, and names the others.
pub(crate) fn check(context: &Context) -> Check {
    let (mut compiled, mut missing) = (Vec::new(), Vec::new());
    for target in SYSTEMS {
        if !has_std(target) {
            missing.push(target);
            continue;
        }
        let mut cargo = libraries(context, target, &LIBRARIES);
        command::run(cargo.args(["--features", FEATURES]))?;
        compiled.push(target);
    }
    if has_std(WASM) {
        let without_std = &["core", "async"];
        command::run(libraries(context, WASM, without_std).arg("--no-default-features"))?;
        compiled.push(WASM);
    } else {
        missing.push(WASM);
    }
    let (compiled, missing) = (compiled.join(", "), missing.join(" "));
    match (&*compiled, &*missing) {
        ("", missing) => Err(format!("missing: rustup target add {missing}")),
        (compiled, "") => Ok(compiled.to_owned()),
        (compiled, missing) => Ok(format!("{compiled}; missing: rustup target add {missing}")),
    }
}

fn libraries(context: &Context, target: &str, folders: &[&str]) -> std::process::Command {
    let mut cargo = context.cargo();
    cargo.arg("check").args(context.locked());
    cargo.args(["--target", target, "--target-dir"]);
    cargo.arg(context.target_dir("platforms"));
    for folder in folders {
        cargo.args(["--package", &format!("portcullis-{folder}")]);
    }
    cargo
}

/// Returns whether the default toolchain has the standard library of the target.
fn has_std(target: &str) -> bool {
    let printed = programs::output(
        programs::rustc(),
        &["--print", "target-libdir", "--target", target],
    );
    printed.is_some_and(|libraries| Path::new(libraries.trim()).is_dir())
}
