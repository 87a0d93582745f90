//! `portcullis serve`: it finds the program `portcullis-serve`, and becomes it.
#![cfg(unix)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{portcullis, text};

/// Runs `serve` of the program at `own`, with `path` as the only directory of `PATH`. Returns its
/// process too.
fn serve(own: &Path, path: &Path) -> (u32, Output) {
    let mut command = Command::new(own);
    // The program that is found is a shell in these tests: it says its process and its arguments.
    command
        .args(["serve", "-c", "echo $$ $@; exit 7"])
        .args(["sh", "rules.toml", "--check", "--help", "-V"])
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    (child.id(), child.wait_with_output().unwrap())
}

#[test]
fn the_program_beside_this_one_is_run_and_otherwise_the_one_in_path() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-is-found");
    let _ = fs::remove_dir_all(&folder);
    let path = folder.join("path");
    fs::create_dir_all(&path).unwrap();
    // A link in a folder of its own: beside the program may be a real `portcullis-serve`.
    let own = folder.join("portcullis");
    fs::hard_link(portcullis(&[]).get_program(), &own).unwrap();

    let (_, output) = serve(&own, &path);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains("cargo install --locked --path serve"),
        "{error}"
    );

    symlink("/bin/sh", path.join("portcullis-serve")).unwrap();
    let (process, output) = serve(&own, &path);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        format!("{process} rules.toml --check --help -V\n"),
        "the process stays, and all arguments are passed on"
    );

    symlink("/bin/false", folder.join("portcullis-serve")).unwrap();
    let (_, output) = serve(&own, &path);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    fs::remove_dir_all(&folder).unwrap();
}
