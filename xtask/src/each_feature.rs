//! Compiles each library without features, and with each of its features alone.
//!
//! All features together hide an item that one of them uses and another one brings.

use crate::command::{self, Check};
use crate::context::Context;
use crate::manifest;
use crate::package;

pub(crate) fn check(context: &Context) -> Check {
    let (mut count, mut wrong) = (0, Vec::new());
    for package in package::published(&context.root)? {
        let features = manifest::features(&package.manifest);
        let names = features.iter().map(|(name, _)| name.as_str());
        for feature in [""].into_iter().chain(names) {
            let mut cargo = context.cargo();
            cargo.arg("check").args(context.locked());
            cargo.args(["--quiet", "--package", &package.name]);
            cargo.args(["--no-default-features", "--features", feature]);
            let target = context.target_dir("features");
            cargo.arg("--target-dir").arg(target);
            cargo.env("RUSTFLAGS", "-D warnings");
            count += 1;
            if command::run(&mut cargo).is_err() {
                wrong.push(format!("{} with [{feature}]", package.name));
            }
        }
    }
    if wrong.is_empty() {
        Ok(format!("{count} sets of features"))
    } else {
        Err(wrong.join(", "))
    }
}
