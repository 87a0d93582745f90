//! Checks the libraries with other versions of their dependencies than those in `Cargo.lock`.
//!
//! | step | versions | what runs |
//! |---|---|---|
//! | `oldest-versions` | the lowest that each manifest allows | the libraries compile with all features |
//! | `newest-versions` | the newest that each manifest allows, whatever Rust version they need | the tests of all packages except the core |
//!
//! Each works in a copy of the sources with a lock file of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::files;
use crate::manifest;
#[cfg(test)]
use crate::package;
use crate::setup;
use crate::sources;

/// Compiles the published packages with the lowest versions of their dependencies. The dependencies
/// of dependencies are the newest, because their lowest versions are not ours to choose.
pub(crate) fn oldest(context: &Context) -> Check {
    let tree = copied(context, "oldest-versions")?;
    // What only tests need must not raise a version.
    for member in manifest::members(&tree)? {
        let path = format!("{member}/Cargo.toml");
        let kept = without_tests(&manifest::read(&tree, &path)?);
        files::write(&tree.join(path), &kept)?;
    }
    let mut update = cargo(context, &tree);
    // Only the choice of versions needs a flag of nightly compilers.
    update.args(["update", "-Zdirect-minimal-versions"]);
    command::run(update.env("RUSTC_BOOTSTRAP", "1"))?;
    let mut check = cargo(context, &tree);
    check.words("check --locked --workspace --all-features");
    command::run(check.arg("--target-dir").arg(tree.with_file_name("build")))?;
    Ok(String::new())
}

/// Runs the tests with the newest versions that the manifests allow.
pub(crate) fn newest(context: &Context) -> Check {
    let tree = copied(context, "newest-versions")?;
    let mut update = cargo(context, &tree);
    update.env("CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS", "allow");
    command::run(update.arg("update"))?;
    let mut test = cargo(context, &tree);
    test.words("test --locked --no-fail-fast --workspace --all-features");
    test.words("--exclude portcullis-core");
    test.envs(setup::places_for_tests(context));
    command::run_tests(test.arg("--target-dir").arg(tree.with_file_name("build")))
}

/// Copies the sources into a folder below `target`, as a workspace of the published packages alone:
/// what tools need must not decide on a version.
fn copied(context: &Context, name: &str) -> Result<PathBuf, String> {
    let tree = context.target_dir(name).join("tree");
    sources::copy(&context.root, &tree)?;
    let workspace = manifest::read(&tree, "Cargo.toml")?;
    let kept = without(&workspace, &unpublished(&tree)?);
    files::write(&tree.join("Cargo.toml"), &kept)?;
    Ok(tree)
}

/// Returns the members of the workspace that are not published.
fn unpublished(root: &Path) -> Result<Vec<String>, String> {
    let mut members = Vec::new();
    for member in manifest::members(root)? {
        let manifest = manifest::read(root, &format!("{member}/Cargo.toml"))?;
        if !manifest::is_published(&manifest) {
            members.push(member);
        }
    }
    Ok(members)
}

/// Returns the manifest of a workspace without some of its members.
fn without(workspace: &str, members: &[String]) -> String {
    let without = |all: String, member: &String| all.replace(&format!(", \"{member}\""), "");
    members.iter().fold(workspace.to_owned(), without)
}

/// Returns a manifest without the dependencies of tests.
fn without_tests(manifest: &str) -> String {
    let mut is_test = false;
    let mut kept = String::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_test = line.ends_with("dev-dependencies]");
        }
        if !is_test {
            kept.extend([line, "\n"]);
        }
    }
    kept
}

fn cargo(context: &Context, tree: &Path) -> Command {
    let mut cargo = context.cargo();
    cargo.current_dir(tree);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dependencies_of_tests_are_left_out() {
        let manifest = "[dependencies]\na = \"1\"\n\n[dev-dependencies]\nb = [\n    \"x\",\n]\n\n[target.'cfg(unix)'.dev-dependencies]\nc = \"1\"\n\n[lints]\nworkspace = true\n";
        let expected = "[dependencies]\na = \"1\"\n\n[lints]\nworkspace = true\n";
        assert_eq!(without_tests(manifest), expected);
    }

    #[test]
    fn the_members_of_a_copy_are_the_published_packages() {
        let workspace = manifest::read(files::root(), "Cargo.toml").unwrap();
        let kept = without(&workspace, &unpublished(files::root()).unwrap());
        let members = kept.lines().find(|line| line.starts_with("members = "));
        let members = members.unwrap();
        let published = package::published(files::root()).unwrap();
        assert_eq!(
            members.matches('"').count(),
            2 * published.len(),
            "{members}"
        );
    }
}
