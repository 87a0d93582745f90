use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command;
use crate::context::Context;

/// Compiles the core's example `hot_paths` with `cargo`, into `folder`, and returns its assembly.
pub(crate) fn assembly(
    context: &Context,
    mut cargo: Command,
    folder: &Path,
    options: &[&str],
) -> Result<String, String> {
    let file = folder.join(
        options
            .last()
            .map_or_else(|| "host.s".to_owned(), |target| format!("{target}.s")),
    );
    cargo
        .arg("rustc")
        .args(context.locked())
        .args(["--release", "--package", "portcullis-core"]);
    cargo
        .args(["--example", "hot_paths", "--target-dir"])
        .arg(folder)
        .args(options);
    // With one codegen unit, each function is complete in one file.
    cargo
        .args(["--", "-C", "codegen-units=1", "--emit"])
        .arg(format!("asm={}", file.display()));
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    command::run(&mut cargo)?;
    fs::read_to_string(&file)
        .map_err(|error| format!("{}: {error}; remove {}", file.display(), folder.display()))
}
