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

pub(crate) fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}
