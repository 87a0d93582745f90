//! The hand-written files of the workspace.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::files;
use crate::manifest;

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

/// Makes the folder `to` a copy of all sources below `from`.
///
/// # Errors
///
/// Returns an error if a file cannot be read or written.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    files::remove(to)?;
    for file in files(from).map_err(files::at(from))? {
        files::copy(&from.join(&file), &to.join(&file))?;
    }
    Ok(())
}

/// A source of a package.
pub(crate) struct Source {
    /// The folder of the package.
    pub(crate) package: String,
    /// The path from the root of the workspace.
    pub(crate) file: String,
    /// The path of the module, from the root of the crate.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
}

/// Returns all Rust sources of the workspace in `root`, without tests, examples and benches, in
/// the order of their paths.
///
/// # Errors
///
/// Returns an error if a source or the manifest of the workspace cannot be read.
pub(crate) fn of_packages(root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for package in manifest::members(root)? {
        let base = Path::new(&package).join("src");
        let files = files(&root.join(&base)).unwrap_or_default();
        let files = files.into_iter();
        for file in files.filter(|file| files::has_extension(file, "rs")) {
            let path = file.with_extension("");
            let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
            let mut module: Vec<_> = parts.collect();
            if module == ["lib"] || module == ["main"] {
                module.clear();
            }
            let file = base.join(file).display().to_string();
            sources.push(Source {
                package: package.clone(),
                text: manifest::read(root, &file)?,
                file,
                module,
            });
        }
    }
    sources.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(sources)
}

/// Returns the flag of others that a line asks for: a name by which other crates switch, too, when
/// a user sets it for code of his own.
#[cfg(test)]
fn flag_of_others(line: &str) -> Option<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let asks = line.contains("cfg(") || line.contains("cfg!(") || line.contains("--cfg");
    let mut words = line.split(|c| !is_part(c));
    words.find(|word| asks && ["loom", "explore", "notes"].contains(word))
}

#[test]
fn the_flags_of_the_models_have_names_of_their_own() {
    for file in files(files::root()).expect("the workspace") {
        let name = file.to_string_lossy();
        let is_source = name.ends_with(".rs") || name.ends_with(".toml");
        // Comments, and the dependency itself, may name loom.
        if !is_source || name == "xtask/src/sources.rs" {
            continue;
        }
        let text = files::read(&files::root().join(&file)).unwrap_or_default();
        for line in text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            assert_eq!(flag_of_others(line), None, "{name}: {line}");
        }
    }
    assert_eq!(flag_of_others("#[cfg(all(test, not(loom)))]"), Some("loom"));
    assert_eq!(flag_of_others("#[cfg(portcullis_loom)]"), None);
}
