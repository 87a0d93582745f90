use std::path::Path;
use std::process::Command;

use crate::command::{self, Words};
use crate::context::Context;
use crate::files;

/// Compiles the core's example `hot_paths` with `cargo`, into `folder`, and returns its assembly.
pub(crate) fn assembly(
    context: &Context,
    mut cargo: Command,
    folder: &Path,
    options: &[&str],
) -> Result<String, String> {
    let file = folder.join(format!("{}.s", options.last().unwrap_or(&"host")));
    cargo.arg("rustc").args(context.locked());
    cargo.words("--release --package portcullis-core --example hot_paths --target-dir");
    cargo.arg(folder).args(options);
    // With one codegen unit, each function is complete in one file.
    cargo.words("-- -C codegen-units=1 --emit");
    cargo.arg(format!("asm={}", file.display()));
    files::create(folder)?;
    command::run(&mut cargo)?;
    files::read(&file).map_err(|error| format!("{error}; remove {}", folder.display()))
}
