//! Tests that the map of the code, `docs/architecture.md`, is that of the sources: each file has a
//! row, and the arrows between packages are those of the manifests.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::root;
use crate::manifest::{self, TOOLS};
use crate::sources;

const MAP: &str = "docs/architecture.md";

fn map() -> String {
    manifest::read(root(), MAP).expect("the map")
}

/// Returns the packages in the order of the map, each with those to which its arrows lead: lines
/// `name  what it is  -> a, b` in the first block of text.
fn arrows(map: &str) -> Vec<(&str, BTreeSet<String>)> {
    let block = map.split("```text\n").nth(1);
    let block = block.and_then(|rest| rest.split("```").next());
    let arrow = |line: &'_ str| {
        let (_, to) = line.split_once(" -> ").unwrap_or((line, ""));
        let to = to.split(", ").filter(|name| !name.is_empty());
        to.map(|name| name.trim().to_owned()).collect()
    };
    let lines = block.unwrap_or_default().lines();
    lines
        .filter_map(|line| Some((line.split(' ').next()?, arrow(line))))
        .collect()
}

/// Returns the files that the section of `folder` names in its first column, with the folders.
fn listed<'a>(map: &'a str, folder: &str) -> Option<Vec<&'a str>> {
    let (_, section) = map.split_once(&format!("(`{folder}/src`)\n"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let cells = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    Some(names.collect())
}

/// Returns whether a name of the map is that of `file`: the file itself, a folder around it, or a
/// pattern with `<name>` in it.
fn is_of(name: &str, file: &str) -> bool {
    match name.split_once("<name>") {
        Some((start, end)) => {
            let middle = file
                .strip_prefix(start)
                .and_then(|rest| rest.strip_suffix(end));
            middle.is_some_and(|middle| !middle.is_empty() && !middle.contains('/'))
        }
        None if name.ends_with('/') => file.starts_with(name),
        None => file == name,
    }
}

/// Returns the files of each package that the map must name, from its folder of sources.
fn files() -> BTreeMap<String, Vec<String>> {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources::of_packages(root()).expect("the sources") {
        let is_test = source.module.last().is_some_and(|name| name == "tests");
        let start = format!("{}/src/", source.package);
        let file = source.file.trim_start_matches(&start).to_owned();
        if !TOOLS.contains(&source.package.as_str()) && !is_test && file != "lib.rs" {
            files.entry(source.package).or_default().push(file);
        }
    }
    files
}

#[test]
fn every_file_has_one_row_in_the_map() {
    let map = map();
    for (package, files) in files() {
        let Some(names) = listed(&map, &package) else {
            panic!("{MAP} has no section whose title ends with (`{package}/src`)");
        };
        let is_named = |file: &&String| names.iter().any(|name| is_of(name, file));
        let missing: Vec<_> = files.iter().filter(|file| !is_named(file)).collect();
        assert!(
            missing.is_empty(),
            "{MAP}: no row for {missing:?} of {package}/src"
        );
        let is_twice = |file: &&String| names.iter().filter(|name| name == file).count() > 1;
        let twice: Vec<_> = files.iter().filter(is_twice).collect();
        assert!(
            twice.is_empty(),
            "{MAP}: two rows for {twice:?} of {package}/src"
        );
        let is_there = |name: &&str| files.iter().any(|file| is_of(name, file));
        // Scripts have rows too.
        let is_rust = |name: &&str| name.ends_with('/') || name.rsplit('.').next() == Some("rs");
        let gone: Vec<_> = names
            .iter()
            .filter(|name| is_rust(name) && !is_there(name))
            .collect();
        assert!(gone.is_empty(), "{MAP}: {package}/src has no {gone:?}");
    }
}

#[test]
fn the_arrows_of_the_map_are_those_of_the_manifests() {
    let map = map();
    let drawn = arrows(&map);
    let members = manifest::members(root()).expect("the workspace");
    let product: BTreeSet<_> = members.iter().map(String::as_str).collect();
    let product = &product - &BTreeSet::from(TOOLS);
    let names: BTreeSet<_> = drawn.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, product, "the packages in {MAP}");
    for (at, (name, to)) in drawn.iter().enumerate() {
        let manifest = manifest::read(root(), &format!("{name}/Cargo.toml")).expect("a manifest");
        let dependencies = manifest::own_dependencies(&manifest);
        assert_eq!(*to, dependencies, "the arrows of {name} in {MAP}");
        for other in to {
            let below = drawn[at..].iter().any(|(below, _)| below == other);
            assert!(below, "{MAP}: {name} is not above {other}");
        }
    }
}

#[test]
fn arrows_and_rows_are_read() {
    let map =
        "\n```text\na  what -> b, c\nb\n```\n## D (`a/src`)\n| `x.rs`, `y/` | `z.rs` |\n## E\n";
    let to = ["b", "c"].map(str::to_owned);
    assert_eq!(
        arrows(map),
        [("a", BTreeSet::from(to)), ("b", BTreeSet::new())]
    );
    assert_eq!(listed(map, "a"), Some(vec!["x.rs", "y/"]));
    assert_eq!(listed(map, "b"), None);
    assert!(is_of("y/", "y/z.rs") && is_of("<name>/z.rs", "y/z.rs"));
    assert!(!is_of("<name>.rs", "y/z.rs") && !is_of("y.rs", "y/z.rs"));
}
