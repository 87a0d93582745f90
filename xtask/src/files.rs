//! Reads and writes files, with their paths in the errors.

use std::fs;
use std::io;
use std::path::Path;

/// Returns the root of the workspace.
pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Returns a closure that adds `path` to an error.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(at(path))
}

/// Writes a file, in a folder that need not be there.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    path.parent().map_or(Ok(()), create)?;
    fs::write(path, text).map_err(at(path))
}

/// Copies a file, into a folder that need not be there.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    to.parent().map_or(Ok(()), create)?;
    fs::copy(from, to).map(drop).map_err(at(from))
}

/// Creates a folder, unless it is there.
pub(crate) fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(at(folder))
}

/// Removes a folder with all that is in it, if it is there.
pub(crate) fn remove(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(at(folder))?;
    }
    Ok(())
}

/// Compares two lists of names, whatever their order. Returns what the second one lacks and what it
/// has too much, or `None` if they have the same names.
#[cfg(test)]
pub(crate) fn difference(needed: &[&str], there: &[&str]) -> Option<String> {
    let without = |all: &[&str], others: &[&str]| {
        let mut rest: Vec<_> = all.iter().map(|name| (*name).to_owned()).collect();
        for other in others {
            if let Some(at) = rest.iter().position(|name| name == other) {
                rest.swap_remove(at);
            }
        }
        rest.sort();
        rest
    };
    let lists = [
        ("missing", without(needed, there)),
        ("too much", without(there, needed)),
    ];
    let told = lists.iter().filter(|(_, names)| !names.is_empty());
    let told: Vec<_> = told
        .map(|(what, names)| format!("{what}: {}", names.join(", ")))
        .collect();
    (!told.is_empty()).then(|| told.join("; "))
}

pub(crate) fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

#[test]
fn a_difference_names_what_is_missing_and_what_is_too_much() {
    assert_eq!(difference(&["a", "b"], &["b", "a"]), None);
    let why = difference(&["a", "b", "c"], &["d", "b", "b"]);
    assert_eq!(why.as_deref(), Some("missing: a, c; too much: b, d"));
}
