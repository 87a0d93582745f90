//! The folders of baselines, one file for each compiler.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files;

/// Returns the baseline of the newest compiler in `folder`.
///
/// # Errors
///
/// Returns an error if the folder cannot be read or is empty.
pub(crate) fn newest(folder: &Path) -> Result<PathBuf, String> {
    let files = fs::read_dir(folder).map_err(files::at(folder))?;
    let files = files.flatten().map(|file| file.path());
    let last = files.max_by_key(|file| numbers(&file.to_string_lossy()));
    last.ok_or_else(|| format!("{}: no baseline; --bless writes one", folder.display()))
}

/// Returns the numbers in `name`, which order versions: as text, 1.100 would come before 1.95.
fn numbers(name: &str) -> Vec<u64> {
    let parts = name.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_compiler_has_the_highest_version() {
        let name = |version: &str| format!("baseline/rustc-{version}-x86_64-unknown-linux-gnu.txt");
        let newest = ["1.95.0", "1.100.0", "1.99.1", "1.9.0"].map(name);
        let newest = newest.iter().max_by_key(|name| numbers(name));
        assert_eq!(newest, Some(&name("1.100.0")));
    }
}
