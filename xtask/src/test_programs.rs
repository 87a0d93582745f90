//! The test programs of a package, and the files that they consist of.
//!
//! Each program is linked with all that the package depends on, so most files are modules of one
//! program:
//!
//! ```text
//! #[path = "token_bucket.rs"]
//! mod token_bucket;
//! ```
//!
//! With the path, a file finds its own modules as if it were a program, so it can be one again.

use std::fs;
use std::path::Path;

use crate::files;
use crate::manifest;

/// A program of tests.
pub(crate) struct TestProgram {
    pub(crate) name: String,
    /// The names of the files that are its modules.
    pub(crate) files: Vec<String>,
}

/// Returns the test programs of the package in `folder`: those of its manifest, or each file, if
/// Cargo looks for them.
///
/// # Errors
///
/// Returns an error if a file cannot be read.
pub(crate) fn of(root: &Path, folder: &str) -> Result<Vec<TestProgram>, String> {
    let manifest = manifest::read(root, &format!("{folder}/Cargo.toml"))?;
    let names = if manifest.contains("\nautotests = false\n") {
        listed(&manifest)
    } else {
        files(root, folder)?
    };
    let program = |name: String| {
        let file = path_of(root, folder, &name);
        let text = manifest::read(root, &file)?;
        let files = modules(&text);
        Ok(TestProgram { name, files })
    };
    names.into_iter().map(program).collect()
}

/// Returns the names of the test programs in a manifest.
fn listed(manifest: &str) -> Vec<String> {
    let sections = manifest.split("[[test]]\n").skip(1);
    let name = |section: &str| {
        let (_, name) = section.split_once("name = \"")?;
        Some(name.split('"').next()?.to_owned())
    };
    sections.filter_map(name).collect()
}

/// Returns the path of a file of tests, which may be the `main.rs` of a folder.
pub(crate) fn path_of(root: &Path, folder: &str, name: &str) -> String {
    let path = format!("{folder}/tests/{name}.rs");
    if root.join(&path).exists() {
        return path;
    }
    format!("{folder}/tests/{name}/main.rs")
}

/// Returns the names of the files with tests of a package, and of the folders with a `main.rs`.
fn files(root: &Path, folder: &str) -> Result<Vec<String>, String> {
    let folder = root.join(folder).join("tests");
    let entries = fs::read_dir(&folder).map_err(files::at(&folder))?;
    let files = entries.flatten().map(|entry| entry.path());
    let sources =
        files.filter(|file| files::has_extension(file, "rs") || file.join("main.rs").exists());
    let mut names: Vec<_> = sources
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// Returns the files that a program has as modules.
fn modules(program: &str) -> Vec<String> {
    let file = |line: &str| {
        let name = line.strip_prefix("#[path = \"")?.strip_suffix(".rs\"]")?;
        let name = name.strip_suffix("/main").unwrap_or(name);
        let is_beside = !name.contains('/');
        is_beside.then(|| name.to_owned())
    };
    program.lines().filter_map(file).collect()
}

#[test]
fn every_file_of_tests_is_run_once() {
    let root = files::root();
    for folder in manifest::members(root).expect("the workspace") {
        if !root.join(&folder).join("tests").is_dir() {
            continue;
        }
        let programs = of(root, &folder).expect("the programs");
        let names = programs.iter().map(|program| &program.name);
        let run = names.chain(programs.iter().flat_map(|of| &of.files));
        let run: Vec<_> = run.map(String::as_str).collect();
        let files = files(root, &folder).expect("the files");
        let files: Vec<_> = files.iter().map(String::as_str).collect();
        if let Some(why) = files::difference(&files, &run) {
            panic!("{folder}/tests: a file is a program in Cargo.toml or a module of one; {why}");
        }
    }
}

#[test]
fn programs_and_their_files_are_read() {
    let manifest =
        "[package]\n\n[[test]]\nname = \"a\"\nharness = false\n\n[[test]]\nname = \"b\"\n";
    assert_eq!(listed(manifest), ["a", "b"]);
    let program = "#[cfg(unix)]\n#[path = \"c.rs\"]\nmod c;\n#[path = \"support/d.rs\"]\nmod d;\n\
                   #[path = \"e/main.rs\"]\nmod e;\n";
    assert_eq!(modules(program), ["c", "e"]);
}
