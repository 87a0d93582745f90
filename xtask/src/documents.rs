//! Tests that the documents agree with the manifests and the sources.

use std::collections::BTreeSet;
use std::path::Path;

use crate::book::SUMMARY;
use crate::checks::{STEPS, TASKS};
use crate::files::{self, has_extension, root};
use crate::manifest;
use crate::sources;

fn read(file: &str) -> String {
    files::read(&root().join(file)).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns all Markdown files, relative to the root.
fn documents() -> Vec<String> {
    let files = sources::files(root()).expect("the workspace");
    let documents = files.iter().filter(|file| has_extension(file, "md"));
    documents.map(|file| file.display().to_string()).collect()
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
fn the_list_of_features_names_every_feature_and_whether_it_is_on_by_default() {
    let features = read("docs/features.md");
    for (folder, package) in [
        ("core", "portcullis-core"),
        ("async", "portcullis-async"),
        ("adaptive", "portcullis-adaptive"),
        ("counters", "portcullis-counters"),
        ("policy", "portcullis-policy"),
        ("tower", "portcullis-tower"),
    ] {
        let has = manifest::features(&read(&format!("{folder}/Cargo.toml")));
        let says = listed(&features, package);
        assert!(!has.is_empty(), "{package} has no features");
        let missing: Vec<_> = has.difference(&says).collect();
        assert!(
            missing.is_empty(),
            "docs/features.md lacks {package}'s {missing:?}"
        );
        let wrong: Vec<_> = says.difference(&has).collect();
        assert!(
            wrong.is_empty(),
            "docs/features.md invents {package}'s {wrong:?}"
        );
    }
}

#[test]
fn the_readme_links_every_document() {
    let readme = read("README.md");
    for document in documents() {
        let is_linked = ["README.md", SUMMARY].contains(&&*document)
            || readme.contains(&format!("]({document})"));
        assert!(is_linked, "README.md does not link {document}");
    }
}

#[test]
fn every_link_within_the_project_leads_to_a_file() {
    let mut followed = 0;
    for document in documents() {
        let folder = root().join(&document);
        let folder = folder.parent().expect("a folder");
        let text = read(&document);
        let targets = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for target in targets {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains(':') || file.contains([' ', '`', '\n']) {
                continue;
            }
            followed += 1;
            assert!(
                folder.join(file).exists(),
                "{document}: {target} leads nowhere"
            );
        }
    }
    assert!(followed > 100, "{followed}");
}

/// Returns the documentation of the item in line `item`.
fn documentation(lines: &[&str], item: usize) -> String {
    let above = lines[..item].iter().rev();
    let is_head = |line: &&&str| !line.is_empty() && !["}", "};"].contains(*line);
    let docs = above
        .take_while(is_head)
        .filter(|line| line.starts_with("///"));
    docs.copied().collect()
}

/// The text of the files that name the public items of a library: its root, and the public modules
/// of it.
fn named(src: &Path) -> String {
    let mut names = files::read(&src.join("lib.rs")).unwrap_or_default();
    let head = names.clone();
    let lines: Vec<_> = head.lines().collect();
    for pair in lines.windows(2) {
        let name = pair[1].strip_prefix("pub mod ");
        // Some modules are public under the flags of the models only.
        let name = name.filter(|_| !pair[0].contains("portcullis_"));
        let Some(name) = name.and_then(|name| name.strip_suffix(';')) else {
            continue;
        };
        let module = files::read(&src.join(name).with_extension("rs"));
        let module = module.unwrap_or_default();
        for one in module.split(';') {
            names += one.split_once("pub use ").map_or("", |(_, uses)| uses);
        }
        for line in module.lines() {
            let name = line.strip_prefix("pub trait ").unwrap_or_default();
            names += name.split([':', '<', ' ']).next().unwrap_or_default();
            names.push(' ');
        }
    }
    names
}

/// A method without a default may be added to a sealed trait, and a trait that users implement has
/// a contract: so each says which it is.
#[test]
fn every_public_trait_says_whether_users_implement_it() {
    let (mut silent, mut count) = (Vec::new(), 0);
    let sources = sources::of_packages(root()).expect("the sources");
    for source in sources {
        let head = named(&root().join(&source.package).join("src"));
        let lines: Vec<_> = source.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let name = line.strip_prefix("pub trait ");
            let name = name.or_else(|| line.strip_prefix("pub unsafe trait "));
            let Some(name) = name.and_then(|rest| rest.split([':', '<', ' ']).next()) else {
                continue;
            };
            // The others are reachable only as bounds.
            let is_named = |part: &str| part == name;
            if !head.split(|c: char| !c.is_alphanumeric()).any(is_named) {
                continue;
            }
            count += 1;
            let docs = documentation(&lines, at);
            if !["Sealed", "sealed", "mplement"]
                .iter()
                .any(|word| docs.contains(word))
            {
                silent.push(format!("{}: {name}", source.file));
            }
        }
    }
    assert!(count > 30, "{count}");
    assert_eq!(silent, [""; 0], "say `Sealed.`, or when to implement it");
}

#[test]
fn each_file_of_the_queue_with_a_mutant_has_a_row() {
    let document = read("CONTRIBUTING.md");
    let (_, section) = document.split_once("## How to change the queue").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mutants = read("xtask/mutants/async.txt");
    let files = mutants
        .lines()
        .filter_map(|line| line.strip_prefix("@ async/src/"));
    let files = files.filter(|file| !file.starts_with("adapters/"));
    let has_row = |file: &str| {
        let name = file.rsplit('/').next().unwrap_or_default();
        let folders = ["queues/", "driving/timer/"];
        let folder = folders.iter().find(|folder| file.starts_with(*folder));
        section.contains(&format!("/{name}`"))
            || section.contains(&format!("`{name}`"))
            || folder.is_some_and(|folder| section.contains(&format!("`async/src/{folder}`")))
    };
    let missing: Vec<_> = files.filter(|file| !has_row(file)).collect();
    assert_eq!(missing, [""; 0], "CONTRIBUTING.md, How to change the queue");
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

#[test]
fn the_documents_name_the_lowest_rust() {
    let of = |manifest| manifest::lowest_rust(root(), manifest).expect("a version");
    let (workspace, core) = (of("Cargo.toml"), of("core/Cargo.toml"));
    assert_eq!(of("async/Cargo.toml"), core);
    assert_eq!(of("firmware/Cargo.toml"), workspace);
    let others = of("policy/Cargo.toml");
    for manifest in ["fleet/Cargo.toml", "shm/Cargo.toml", "tower/Cargo.toml"] {
        assert_eq!(of(manifest), others, "{manifest}");
    }
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
    says("README.md", &others);
    says("CONTRIBUTING.md", &others);
    says("CHANGELOG.md", &core);
}

/// docs.rs sets `docsrs`. Its documentation then shows which feature each item needs.
#[test]
fn the_documentation_of_every_library_shows_the_features_of_its_items() {
    let folders = manifest::libraries(root()).expect("the workspace");
    assert!(folders.len() >= 9, "{folders:?}");
    for folder in folders {
        let root = format!("{folder}/src/lib.rs");
        assert!(
            read(&root).contains("\n#![cfg_attr(docsrs, feature(doc_cfg)"),
            "{root}: no `doc_cfg`"
        );
        let manifest = format!("{folder}/Cargo.toml");
        assert!(
            read(&manifest).contains("[package.metadata.docs.rs]\nall-features = true\n"),
            "{manifest}: docs.rs shows only the default features"
        );
    }
}

/// Returns the names that the `pub use` of a source file re-exports.
fn exported(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for item in source.split("pub use ").skip(1) {
        let path = item.split(';').next().unwrap_or_default();
        let last = path.rsplit("::").next().unwrap_or_default();
        let list = path.split_once('{').map_or(last, |(_, list)| list);
        let each = list.trim_end_matches('}').split(',').map(str::trim);
        names.extend(each.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    names
}

#[test]
fn the_documentation_of_a_crate_names_every_item_of_its_root() {
    for (root, others) in [
        ("core/src/lib.rs", &["core/src/limiters.rs"][..]),
        ("async/src/lib.rs", &[]),
    ] {
        let source = read(root);
        let lines = source.lines().filter(|line| line.starts_with("//!"));
        let text: String = lines.collect();
        let items = source.lines().filter(|line| !line.starts_with("//!"));
        let items: Vec<_> = items.collect();
        let mut names = exported(&items.join("\n"));
        names.extend(others.iter().flat_map(|file| exported(&read(file))));
        assert!(names.len() > 20, "{root}: {names:?}");
        names.retain(|name| name != "*" && !name.ends_with("Builder"));
        names.retain(|name| !text.contains(&format!("`{name}`")));
        assert!(names.is_empty(), "{root}: add {names:?} to its tables");
    }
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

/// Rust in a document is compiled: as a documentation test, in its source file, or, in the README,
/// by the step `readme`.
#[test]
fn every_block_of_rust_is_compiled() {
    let compiled = read("docs/lib.rs");
    for document in documents() {
        let from_docs = match document.strip_prefix("docs/") {
            Some(name) => name.to_owned(),
            None => format!("../{document}"),
        };
        let included = format!("include_str!(\"{from_docs}\")");
        let is_tested = document == "README.md" || compiled.contains(&included);
        for block in blocks(&read(&document)) {
            let mut kinds = block.kind.split(',');
            let is_rust = block.kind.is_empty() || kinds.any(|kind| kind == "rust");
            let is_compiled = match &block.source {
                Some(source) => has_extension(Path::new(source), "rs"),
                None => is_tested && kinds.all(|kind| kind != "ignore"),
            };
            assert!(
                !is_rust || is_compiled,
                "{document}:{}: name the file that it is from, or include the document in docs/lib.rs",
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

/// A name of a test is longer than any other name that the document marks as code.
#[test]
fn the_tests_that_a_proof_names_exist() {
    const LEAST: usize = 25;
    let files = sources::files(root()).expect("the workspace");
    let is_test = |file: &Path| {
        let of = ["core/tests", "loom-tests/tests", "explore/tests"];
        has_extension(file, "rs") && of.iter().any(|folder| file.starts_with(folder))
    };
    let tests = files.iter().filter(|file| is_test(file));
    let tests: String = tests
        .map(|file| read(&file.display().to_string()))
        .collect();
    let proofs = read("docs/proofs.md");
    let names = proofs.split('`').skip(1).step_by(2);
    let is_name = |name: &&str| name.len() >= LEAST && !name.contains(['/', ' ']);
    let mut named = 0;
    for name in names.filter(is_name) {
        let is_there = ["(", "<"]
            .iter()
            .any(|end| tests.contains(&format!("fn {name}{end}")));
        assert!(is_there, "docs/proofs.md names {name}, which is no test");
        named += 1;
    }
    assert!(named > 30, "{named}");
}

#[test]
fn rows_of_features_are_read() {
    let rows = "| `x` | `std` | yes | a |\n| `x` | `tsc` | no | b |\n| `z` | `other` | no | c |\n";
    let expected = BTreeSet::from([("std".to_owned(), true), ("tsc".to_owned(), false)]);
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
