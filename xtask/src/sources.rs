//! The hand-written files of the workspace.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Returns all sources below `root`, relative to it: everything except build products and hidden
/// files. Cargo's settings are included.
pub(crate) fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let name = entry.file_name();
            let hidden = name.to_string_lossy().starts_with('.') && name != ".cargo";
            if hidden || name == "target" {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(folder.join(&name));
            } else if kind.is_file() {
                files.push(folder.join(&name));
            }
        }
    }
    Ok(files)
}
