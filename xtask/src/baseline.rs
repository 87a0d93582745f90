//! The folders of baselines, one file for each compiler.

use core::str::FromStr;
use std::collections::BTreeMap;
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

/// Reads a baseline: in each line a name and numbers, separated by blanks.
pub(crate) fn parse<T: FromStr, const N: usize>(text: &str) -> Option<BTreeMap<String, [T; N]>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?.to_owned();
        let numbers: Option<Vec<T>> = fields.map(|field| field.parse().ok()).collect();
        Some((name, numbers?.try_into().ok()?))
    };
    lines.map(row).collect()
}

/// Returns the rows that are only on one side, and what `growth` says of the others: their name,
/// before and now.
pub(crate) fn compare<T>(
    baseline: &BTreeMap<String, T>,
    now: &BTreeMap<String, T>,
    growth: impl Fn(&str, &T, &T) -> Vec<String>,
) -> Vec<String> {
    let each = now.iter().flat_map(|(name, now)| match baseline.get(name) {
        Some(before) => growth(name, before, now),
        None => vec![format!("{name} is not in the baseline")],
    });
    let gone = baseline.keys().filter(|name| !now.contains_key(*name));
    each.chain(gone.map(|name| format!("{name} is gone")))
        .collect()
}

/// Returns the message of a step that finds `wrong`.
pub(crate) fn refused(wrong: &[String]) -> String {
    let wrong = wrong.join("; ");
    format!("{wrong}; if that is meant, --bless writes a new baseline")
}

/// Returns the message of a step that cannot read the baseline in `file`.
pub(crate) fn damaged(file: &Path) -> String {
    format!("{} is damaged: bless it again", file.display())
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
