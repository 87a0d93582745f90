//! Reads the manifests of the packages.

use std::collections::BTreeSet;
use std::path::Path;

use crate::files;

/// Returns the lines of a section of a manifest.
fn section<'a>(manifest: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let head = format!("[{name}]");
    let lines = manifest.lines().skip_while(move |line| *line != head);
    lines.skip(1).take_while(|line| !line.starts_with('['))
}

/// Returns the features of a package, and whether each is on by default.
pub(crate) fn features(manifest: &str) -> BTreeSet<(String, bool)> {
    let of = |line: &str| {
        let (name, list) = line.split_once(" = [")?;
        Some((name.to_owned(), list.trim_end_matches(']').to_owned()))
    };
    let all: Vec<_> = section(manifest, "features").filter_map(of).collect();
    let by_default = all.iter().find(|(name, _)| name == "default");
    let by_default = by_default.map_or("", |(_, list)| list.as_str());
    let is_on = |name: &str| {
        by_default
            .split(", ")
            .any(|on| on.trim_matches('"') == name)
    };
    let named = all.iter().filter(|(name, _)| name != "default");
    named.map(|(name, _)| (name.clone(), is_on(name))).collect()
}

/// Returns the text of the manifest at `path` in the folder `root`.
pub(crate) fn read(root: &Path, path: &str) -> Result<String, String> {
    files::read(&root.join(path))
}

/// Returns the folders of the workspace's members.
pub(crate) fn members(root: &Path) -> Result<Vec<String>, String> {
    let manifest = read(root, "Cargo.toml")?;
    let list = manifest.split_once("\nmembers = [");
    let list = list.and_then(|(_, rest)| rest.split(']').next());
    let list = list.ok_or("Cargo.toml has no members")?;
    let names = list.split('"').skip(1).step_by(2);
    Ok(names.map(str::to_owned).collect())
}

/// Returns whether the package with a manifest is published.
pub(crate) fn is_published(manifest: &str) -> bool {
    !section(manifest, "package").any(|line| line.starts_with("publish"))
}

/// Returns the folders of the libraries, which other packages of the workspace can depend on.
///
/// # Errors
///
/// Returns an error if the manifest of the workspace cannot be read.
pub(crate) fn libraries(root: &Path) -> Result<Vec<String>, String> {
    let manifest = read(root, "Cargo.toml")?;
    let lines = manifest
        .lines()
        .filter(|line| line.starts_with("portcullis-"));
    let folder = |line: &str| {
        Some(
            line.split("path = \"")
                .nth(1)?
                .split('"')
                .next()?
                .to_owned(),
        )
    };
    Ok(lines.filter_map(folder).collect())
}

/// The members of the workspace that are no part of the product.
pub(crate) const TOOLS: [&str; 7] = [
    "benches",
    "benches/instructions",
    "docs",
    "fuzz",
    "loom-tests",
    "explore",
    "xtask",
];

/// Returns the folders of the packages of the workspace that a package depends on, on any target.
/// The explorer is left out: the core uses it only under a flag of its own.
#[cfg(test)]
pub(crate) fn own_dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_list = false;
    for line in manifest.lines() {
        if let Some(head) = line.strip_prefix('[') {
            is_list = head == "dependencies]"
                || head.starts_with("target.") && head.ends_with(".dependencies]");
        }
        let name = line.strip_prefix("portcullis-").filter(|_| is_list);
        names.extend(
            name.and_then(|name| name.split(['.', ' ']).next())
                .map(str::to_owned),
        );
    }
    names.remove("explore");
    names
}

/// Returns the lowest Rust version of the package or workspace at `path`: its own, or that of the
/// workspace in `root`.
pub(crate) fn lowest_rust(root: &Path, path: &str) -> Result<String, String> {
    let manifest = read(root, path)?;
    let own = section(&manifest, "package");
    let workspace = section(&manifest, "workspace.package");
    let mut lines = own.chain(workspace);
    let version = lines.find_map(|line| line.strip_prefix("rust-version = \""));
    match version {
        Some(version) => Ok(version.trim_end_matches('"').to_owned()),
        None if path == "Cargo.toml" => Err(format!("{path} has no rust-version")),
        None => lowest_rust(root, "Cargo.toml"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_on_packages_of_the_workspace_are_read() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\nportcullis-a.workspace = true\nlog = \"1\"\n\n[target.'cfg(unix)'.dependencies]\nportcullis-b = { path = \"../b\" }\n\n[dev-dependencies]\nportcullis-c = \"1\"\n";
        let expected = ["a", "b"].map(str::to_owned);
        assert_eq!(own_dependencies(manifest), BTreeSet::from(expected));
    }

    #[test]
    fn features_are_read_with_their_defaults() {
        let manifest = "[package]\nname = \"x\"\n\n[features]\n# Why.\ndefault = [\"std\"]\nstd = []\ntsc = [\"std\", \"dep:y\"]\n\n[dependencies]\ny = []\n";
        let expected = BTreeSet::from([("std".to_owned(), true), ("tsc".to_owned(), false)]);
        assert_eq!(features(manifest), expected);
    }
}
