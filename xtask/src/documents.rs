//! Tests that the documents agree with the manifests and the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::checks::{STEPS, TASKS};
use crate::sources;

fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("a folder above").to_owned()
}

fn read(file: &str) -> String {
    let path = root().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn ends_in(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|found| found == extension)
}

/// Returns all Markdown files, relative to the root.
fn documents() -> Vec<String> {
    let files = sources::files(&root()).expect("the workspace");
    let documents = files.iter().filter(|file| ends_in(file, "md"));
    documents.map(|file| file.display().to_string()).collect()
}

/// Returns the lines of a section of a manifest.
fn section<'a>(manifest: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let head = format!("[{name}]");
    let lines = manifest.lines().skip_while(move |line| *line != head);
    lines.skip(1).take_while(|line| !line.starts_with('['))
}

/// Returns the features of a package, and whether each is on by default.
fn features(manifest: &str) -> BTreeSet<(String, bool)> {
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

/// Returns the rows `` | `package` | `feature` | yes | ... | `` of a document for one package.
fn listed(document: &str, package: &str) -> BTreeSet<(String, bool)> {
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, of, name, by_default, ..] = cells[..] else {
            return None;
        };
        let name = name.strip_prefix('`')?.strip_suffix('`')?;
        let is_on = match by_default {
            "yes" => true,
            "no" => false,
            _ => return None,
        };
        (of.trim_matches('`') == package).then(|| (name.to_owned(), is_on))
    };
    document.lines().filter_map(row).collect()
}

#[test]
fn the_readme_names_every_feature_and_whether_it_is_on_by_default() {
    let readme = read("README.md");
    for (folder, package) in [("core", "portcullis-core"), ("async", "portcullis-async")] {
        let has = features(&read(&format!("{folder}/Cargo.toml")));
        let says = listed(&readme, package);
        assert!(!has.is_empty(), "{package} has no features");
        let missing: Vec<_> = has.difference(&says).collect();
        assert!(
            missing.is_empty(),
            "README.md lacks {package}'s {missing:?}"
        );
        let wrong: Vec<_> = says.difference(&has).collect();
        assert!(wrong.is_empty(), "README.md invents {package}'s {wrong:?}");
    }
}

#[test]
fn the_readme_links_every_document() {
    let readme = read("README.md");
    for document in documents() {
        let is_linked = document == "README.md" || readme.contains(&format!("]({document})"));
        assert!(is_linked, "README.md does not link {document}");
    }
}

#[test]
fn contributors_find_every_task_and_step() {
    let document = read("CONTRIBUTING.md");
    let tasks = TASKS.iter().map(|task| task.name);
    for name in tasks.chain(STEPS.iter().map(|step| step.name)) {
        let row = format!("| `{name}` | ");
        assert!(
            document.contains(&row),
            "CONTRIBUTING.md lacks the row {row}"
        );
    }
}

/// Returns the lowest Rust version of a package: its own, or that of the workspace.
fn lowest_rust(manifest: &str) -> String {
    let manifest = read(manifest);
    let own = section(&manifest, "package");
    let workspace = section(&manifest, "workspace.package");
    let mut lines = own.chain(workspace);
    let version = lines.find_map(|line| line.strip_prefix("rust-version = \""));
    version.map_or_else(
        || lowest_rust("Cargo.toml"),
        |version| version.trim_end_matches('"').to_owned(),
    )
}

#[test]
fn the_documents_name_the_lowest_rust() {
    let (workspace, core) = (lowest_rust("Cargo.toml"), lowest_rust("core/Cargo.toml"));
    assert_eq!(lowest_rust("async/Cargo.toml"), core);
    assert_eq!(lowest_rust("firmware/Cargo.toml"), workspace);
    let says = |document: &str, version: &str| {
        let words = format!("Rust {version}");
        assert!(
            read(document).contains(&words),
            "{document} lacks {words:?}"
        );
    };
    says("README.md", &workspace);
    says("CONTRIBUTING.md", &workspace);
    says("README.md", &core);
    says("CHANGELOG.md", &core);
}

/// A fenced block: the number and the kind of its first line, its source file, and its text.
struct Block {
    line: usize,
    kind: String,
    source: Option<String>,
    text: String,
}

/// Returns the fenced blocks of a document. A comment `<!-- from path -->` before a block names its
/// source file.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_open, mut source) = (false, None);
    for (index, line) in document.lines().enumerate() {
        match (line.strip_prefix("```"), is_open) {
            (Some(kind), false) => {
                blocks.push(Block {
                    line: index + 1,
                    kind: kind.to_owned(),
                    source: source.take(),
                    text: String::new(),
                });
                is_open = true;
            }
            (Some(_), true) => is_open = false,
            (None, true) => {
                if let Some(block) = blocks.last_mut() {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
            }
            (None, false) => {
                let from = line.strip_prefix("<!-- from ");
                source = from
                    .and_then(|from| from.strip_suffix(" -->"))
                    .map(str::to_owned);
            }
        }
    }
    blocks
}

/// Rust in a document is compiled, either as a documentation test or in its source file.
#[test]
fn every_block_of_rust_is_compiled() {
    let library = read("async/src/lib.rs");
    for document in documents() {
        let is_tested = library.contains(&format!("include_str!(\"../../{document}\")"));
        for block in blocks(&read(&document)) {
            let mut kinds = block.kind.split(',');
            let is_rust = block.kind.is_empty() || kinds.any(|kind| kind == "rust");
            let is_compiled = match &block.source {
                Some(source) => ends_in(Path::new(source), "rs"),
                None => is_tested && kinds.all(|kind| kind != "ignore"),
            };
            assert!(
                !is_rust || is_compiled,
                "{document}:{}: name the file that it is from, or include the document in \
                 async/src/lib.rs",
                block.line
            );
        }
    }
}

#[test]
fn a_block_from_a_file_agrees_with_the_file() {
    let mut compared = 0;
    for document in documents() {
        for block in blocks(&read(&document)) {
            let Some(source) = block.source else { continue };
            compared += 1;
            assert!(
                read(&source).contains(&block.text),
                "{document}:{}: differs from {source}",
                block.line
            );
        }
    }
    assert!(compared > 0, "nothing was compared");
}

#[test]
fn features_and_rows_are_read() {
    let manifest = "[package]\nname = \"x\"\n\n[features]\n# Why.\ndefault = [\"std\"]\nstd = []\ntsc = [\"std\", \"dep:y\"]\n\n[dependencies]\ny = []\n";
    let expected = BTreeSet::from([("std".to_owned(), true), ("tsc".to_owned(), false)]);
    assert_eq!(features(manifest), expected);
    let rows = "| `x` | `std` | yes | a |\n| `x` | `tsc` | no | b |\n| `z` | `other` | no | c |\n";
    assert_eq!(listed(rows, "x"), expected);
}

#[test]
fn blocks_are_read_with_their_sources() {
    let text = "Words\n\n```rust\nlet a = 1;\n```\n<!-- from a/b.rs -->\n```toml\nb = 2\n```\n";
    let blocks = blocks(text);
    let seen: Vec<_> = blocks
        .iter()
        .map(|block| {
            (
                block.line,
                block.kind.as_str(),
                block.source.as_deref(),
                block.text.as_str(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (3, "rust", None, "let a = 1;\n"),
            (7, "toml", Some("a/b.rs"), "b = 2\n")
        ]
    );
}
