//! Packs the libraries as they are published, and compiles the packages.
//!
//! After a dry run of `cargo publish`, which alone would compile each package with its default
//! features, the packages are unpacked side by side into a workspace, in which each takes the place
//! of the published one. There they compile with all features, and so do the tests that they
//! contain.

use core::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::files;
use crate::manifest;

/// The files that each package must have.
const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// The fields that each manifest must have.
const FIELDS: [&str; 6] = [
    "description",
    "readme",
    "keywords",
    "categories",
    "license",
    "rust-version",
];

pub(crate) fn check(context: &Context) -> Check {
    let packages = published(&context.root)?;
    let folder = context.target_dir("package-check");
    // What an earlier run has packed would be compiled too.
    files::remove(&folder)?;
    files::create(&folder)?;
    // A dry run does not say where it leaves the packages.
    for pack in ["publish --dry-run", "package"] {
        let mut cargo = context.cargo();
        cargo.words(pack).words("--no-verify --allow-dirty --quiet");
        for package in &packages {
            cargo.args(["--package", &package.name]);
        }
        cargo.arg("--target-dir").arg(&folder);
        command::run(&mut cargo)?;
    }

    let mut workspace =
        "[workspace]\nresolver = \"3\"\nmembers = [\"*-*.*.*\"]\n\n[patch.crates-io]\n".to_owned();
    for Package { name, version, .. } in &packages {
        let file = folder.join(format!("package/{name}-{version}.crate"));
        let mut tar = Command::new("tar");
        // Cargo knows a file that has changed by its time, and packed files have none of their own.
        tar.words("--extract --touch --gzip --file").arg(file);
        command::run(tar.arg("--directory").arg(&folder))?;
        let unpacked = folder.join(format!("{name}-{version}"));
        let faults = faults(&unpacked);
        if !faults.is_empty() {
            return Err(format!("{name}: {}", faults.join("; ")));
        }
        let _ = writeln!(workspace, "{name} = {{ path = \"{name}-{version}\" }}");
    }
    files::write(&folder.join("Cargo.toml"), &workspace)?;
    // With the versions that the other checks use.
    files::copy(&context.root.join("Cargo.lock"), &folder.join("Cargo.lock"))?;
    let mut cargo = context.cargo();
    cargo.current_dir(&folder);
    cargo.words("check --workspace --all-features --all-targets --target-dir");
    // Where the other steps have checked what the packages depend on.
    command::run(cargo.arg(context.target_dir("")))?;
    let names: Vec<_> = packages.iter().map(|package| &*package.name).collect();
    Ok(names.join(", "))
}

/// A package that is published.
pub(crate) struct Package {
    pub(crate) name: String,
    version: String,
    pub(crate) manifest: String,
}

impl Package {
    /// Returns whether the package depends on `other`, also for its tests.
    fn needs(&self, other: &Self) -> bool {
        let rest = |line: &'_ str| line.strip_prefix(&*other.name).map(str::to_owned);
        let mut rests = self.manifest.lines().filter_map(rest);
        self.name != other.name && rests.any(|rest| rest.starts_with(['.', ' ']))
    }
}

/// Returns the packages of the workspace that are published, each after those that it depends on.
pub(crate) fn published(root: &Path) -> Result<Vec<Package>, String> {
    let workspace = manifest::read(root, "Cargo.toml")?;
    let field = |manifest: &str, name: &str| {
        let value = manifest
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} = \"")));
        value.map(|value| value.trim_end_matches('"').to_owned())
    };
    let version = field(&workspace, "version").ok_or("Cargo.toml has no version")?;
    let mut packages = Vec::new();
    for member in manifest::members(root)? {
        let manifest = manifest::read(root, &format!("{member}/Cargo.toml"))?;
        if manifest::is_published(&manifest) {
            packages.push(Package {
                name: field(&manifest, "name").ok_or(format!("{member} has no name"))?,
                version: field(&manifest, "version").unwrap_or_else(|| version.clone()),
                manifest,
            });
        }
    }
    if packages.is_empty() {
        return Err("no package is published".to_owned());
    }
    in_order(packages)
}

/// Returns the packages, each after those that it depends on.
fn in_order(mut packages: Vec<Package>) -> Result<Vec<Package>, String> {
    let mut ordered = Vec::new();
    while !packages.is_empty() {
        let is_next = |one: &Package| !packages.iter().any(|other| one.needs(other));
        let Some(next) = packages.iter().position(is_next) else {
            let names: Vec<_> = packages.iter().map(|package| &*package.name).collect();
            return Err(format!("a circle among {}", names.join(", ")));
        };
        ordered.push(packages.remove(next));
    }
    Ok(ordered)
}

/// Returns what an unpacked package lacks.
fn faults(unpacked: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for file in FILES {
        let length = fs::metadata(unpacked.join(file)).map_or(0, |found| found.len());
        if length == 0 {
            faults.push(format!("no {file}"));
        }
    }
    let manifest = fs::read_to_string(unpacked.join("Cargo.toml")).unwrap_or_default();
    for field in FIELDS {
        let start = format!("{field} = ");
        if !manifest.lines().any(|line| line.starts_with(&start)) {
            faults.push(format!("no {field}"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_and_the_program_are_published_and_the_tools_are_not() {
        let packages = published(files::root()).unwrap();
        let names: Vec<_> = packages.iter().map(|package| &*package.name).collect();
        for name in ["core", "async", "policy", "tower", "shm", "fleet", "cli"] {
            assert!(names.contains(&&*format!("portcullis-{name}")), "{name}");
        }
        for name in ["bench", "docs", "fuzz"] {
            assert!(!names.contains(&&*format!("portcullis-{name}")), "{name}");
        }
        assert!(!names.contains(&"xtask"));
    }

    #[test]
    fn each_package_comes_after_those_that_it_depends_on() {
        let package = |name: &str, manifest: &str| Package {
            name: name.to_owned(),
            version: String::new(),
            manifest: format!("name = \"{name}\"\n{manifest}"),
        };
        let names = |packages: Vec<Package>| {
            let names = packages.into_iter().map(|package| package.name);
            names.collect::<Vec<_>>().join(" ")
        };
        let a = || package("a", "[dev-dependencies]\nc.workspace = true\n");
        let b = || package("b", "[dependencies]\na = { path = \"../a\" }\n");
        let ordered = in_order(vec![a(), b(), package("c", "ab = []\n")]);
        assert_eq!(ordered.map(names), Ok("c a b".to_owned()));
        let circle = in_order(vec![a(), b(), package("c", "b.workspace = true\n")]);
        assert_eq!(circle.map(names), Err("a circle among a, b, c".to_owned()));
        let ours = published(files::root()).map(names).unwrap();
        let at = |name: &str| ours.find(&format!("portcullis-{name}")).unwrap();
        assert!(
            at("stores") < at("counters") && at("counters") < at("policy"),
            "{ours}"
        );
    }

    #[test]
    fn what_a_package_lacks_is_named() {
        let faults = faults(Path::new("there is no such folder"));
        assert_eq!(faults.len(), FILES.len() + FIELDS.len());
        assert!(faults.contains(&"no README.md".to_owned()), "{faults:?}");
    }

    /// A package of a path alone, without a version, cannot be depended on by a published one.
    #[test]
    fn each_library_of_the_workspace_has_a_version_beside_its_path() {
        let manifest = manifest::read(files::root(), "Cargo.toml").unwrap();
        let version = "version = \"";
        let own = manifest
            .lines()
            .find(|line| line.starts_with(version))
            .unwrap();
        let libraries = manifest.lines().filter(|line| line.contains("{ path = "));
        let mut count = 0;
        for library in libraries {
            assert!(library.contains(own), "{library}");
            count += 1;
        }
        assert!(count >= 6, "{count}");
    }
}
