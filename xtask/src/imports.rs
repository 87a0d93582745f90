//! Checks which modules a module imports from.
//!
//! A name is imported from the module that defines it, and not from the root of the crate: so a
//! reader of a module sees what it builds on, and the arrows between modules point one way. Modules
//! do not import from each other in a circle, except for the circles that [`CIRCLES`] lists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::files;
use crate::manifest;
use crate::rust_text::{self, is_part, words};
use crate::sources;

/// The list of known circles, which may only shrink: a line for each, with its crate and its
/// modules.
const CIRCLES: &str = "xtask/house/circles.txt";

/// A circle: the folder of its crate, and its modules.
type Circle = (String, BTreeSet<String>);

/// Returns what is wrong with the imports of the workspace in `root`. Writes a shorter list of
/// circles, if `bless` says so.
///
/// # Errors
///
/// Returns an error if a source or the list cannot be read.
pub(crate) fn check(root: &Path, bless: bool) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    let mut circles = Vec::new();
    let mut crates: BTreeMap<String, Modules> = BTreeMap::new();
    for source in sources::of_packages(root)? {
        let module = Module::new(source.file, &source.module, &source.text);
        let of = crates.entry(source.package).or_default();
        of.0.insert(source.module, module);
    }
    for (folder, of) in crates {
        wrong.extend(of.imports_from_the_root());
        let names = of.circles().into_iter();
        circles.extend(names.map(|names| (folder.clone(), names)));
    }
    let known = listed(&manifest::read(root, CIRCLES)?);
    if bless {
        circles.retain(|circle| is_covered(circle, &known));
        let lines: String = circles.iter().map(line).collect();
        files::write(&root.join(CIRCLES), &lines)?;
    } else {
        wrong.extend(judged(&circles, &known));
    }
    Ok(wrong)
}

/// Returns the line of a circle in the list.
fn line((folder, names): &Circle) -> String {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    format!("{folder}: {}\n", names.join(" "))
}

/// Reads the list of circles.
fn listed(list: &str) -> Vec<Circle> {
    let circle = |line: &str| {
        let (folder, names) = line.split_once(": ")?;
        Some((
            folder.to_owned(),
            names.split(' ').map(str::to_owned).collect(),
        ))
    };
    list.lines().filter_map(circle).collect()
}

/// Returns whether the modules of `circle` are among those of one circle in `list`.
fn is_covered((folder, names): &Circle, list: &[Circle]) -> bool {
    let mut of = list.iter().filter(|(other, _)| other == folder);
    of.any(|(_, others)| names.is_subset(others))
}

/// Compares the circles with those of the list.
fn judged(found: &[Circle], known: &[Circle]) -> Vec<String> {
    let new = found.iter().filter(|circle| !is_covered(circle, known));
    let new = new.map(|(folder, names)| format!("{folder}: modules import in a circle: {names:?}"));
    let opened = known.iter().filter(|circle| !is_covered(circle, found));
    let opened = opened.map(|(folder, names)| {
        format!("{CIRCLES}: {folder} has a smaller circle: cargo xtask house --bless: {names:?}")
    });
    new.chain(opened).collect()
}

/// A module: where it is, what it imports, and what it defines.
struct Module {
    file: String,
    /// The imported paths, from the root of the crate, without `crate`. The path of a glob ends
    /// in `*`.
    imports: Vec<Vec<String>>,
    defines: BTreeSet<String>,
}

/// The modules of a crate, by their paths.
#[derive(Default)]
struct Modules(BTreeMap<Vec<String>, Module>);

impl Modules {
    fn imports_from_the_root(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (path, module) in &self.0 {
            for import in &module.imports {
                let [name] = &import[..] else { continue };
                let is_module = self.0.contains_key(&import[..]);
                let is_of_the_root = self
                    .0
                    .get(&[][..])
                    .is_some_and(|of| of.defines.contains(name));
                if path.is_empty() || is_module || is_of_the_root {
                    continue;
                }
                let defines = |of: &(&Vec<String>, &Module)| of.1.defines.contains(name);
                let known = self
                    .0
                    .iter()
                    .find(defines)
                    .map(|(module, _)| module.join("::"));
                let known = known.map_or_else(String::new, |of| format!(", `crate::{of}`"));
                found.push(format!(
                    "{}: import `{name}` from the module that defines it{known}, not from the root",
                    module.file
                ));
            }
        }
        found
    }

    /// Returns the path of the module that defines the name at the end of `path`.
    fn definition(&self, path: &[String]) -> Vec<String> {
        self.followed(path, 0).unwrap_or_else(|| self.module(path))
    }

    /// Returns the path of the innermost module in `path`.
    fn module(&self, path: &[String]) -> Vec<String> {
        let mut lengths = (0..=path.len()).rev();
        let length = lengths.find(|&length| self.0.contains_key(&path[..length]));
        path[..length.unwrap_or(0)].to_vec()
    }

    /// Follows `pub use` up to the module that defines the name.
    fn followed(&self, path: &[String], depth: usize) -> Option<Vec<String>> {
        let at = self.module(path);
        let Some(name) = path.get(at.len()) else {
            return Some(at);
        };
        let module = self.0.get(&at)?;
        if module.defines.contains(name) || name == "*" || depth > 8 {
            return Some(at);
        }
        module.imports.iter().find_map(|import| {
            let (last, of) = import.split_last()?;
            if last == name && import != path {
                self.followed(import, depth + 1)
            } else if last == "*" && self.0.contains_key(of) {
                let path = [of, core::slice::from_ref(name)].concat();
                self.followed(&path, depth + 1)
            } else {
                None
            }
        })
    }

    /// Returns the sets of modules that import from each other.
    fn circles(&self) -> BTreeSet<BTreeSet<String>> {
        let all = self.0.keys().filter(|path| !path.is_empty());
        let arrows: BTreeMap<_, _> = all.map(|path| (path.clone(), self.arrows(path))).collect();
        let reached: BTreeMap<_, _> = arrows
            .keys()
            .map(|path| (path, reached(&arrows, path)))
            .collect();
        let circles = reached.iter().map(|(path, others)| {
            let both = others.iter().filter(|other| {
                let back = reached.get(other);
                back.is_some_and(|of| of.contains(*path))
            });
            both.map(|path| path.join("/")).collect()
        });
        circles
            .filter(|circle: &BTreeSet<_>| circle.len() > 1)
            .collect()
    }

    /// Returns the modules that the one at `path` imports from. What it re-exports from its own
    /// folder is not what it builds on.
    fn arrows(&self, path: &[String]) -> BTreeSet<Vec<String>> {
        let imports = self.0.get(path).into_iter().flat_map(|of| &of.imports);
        let from = imports.map(|import| self.definition(import));
        from.filter(|of| !of.is_empty() && !of.starts_with(path))
            .collect()
    }
}

/// Returns the modules to which arrows lead from the one at `path`.
fn reached(
    arrows: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
    path: &[String],
) -> BTreeSet<Vec<String>> {
    let mut reached = BTreeSet::new();
    let mut next = vec![path.to_vec()];
    while let Some(path) = next.pop() {
        for of in arrows.get(&path).into_iter().flatten() {
            if reached.insert(of.clone()) {
                next.push(of.clone());
            }
        }
    }
    reached
}

impl Module {
    fn new(file: String, path: &[String], text: &str) -> Self {
        let code = rust_text::without_tests(&rust_text::code_of(text));
        let mut imports = Vec::new();
        for (at, declaration) in declarations(&code) {
            // Only paths from the place of the declaration need the modules around it.
            let around = if declaration.trim_start().starts_with("crate") {
                Vec::new()
            } else {
                modules_around(&code, at)
            };
            let place = [path, &around].concat();
            for leaf in leaves(declaration) {
                imports.extend(from_the_root(&place, &leaf));
            }
        }
        Self {
            file,
            imports,
            defines: defined(&code),
        }
    }
}

/// Returns where each declaration with `use` is in `code`, and what follows the `use`.
fn declarations(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.match_indices("use ").filter_map(|(at, _)| {
        let is_word = at == 0 || !is_part(code.as_bytes()[at - 1]);
        // A bound such as `use<'a>` has no space.
        let declaration = code[at + 4..].split(';').next()?;
        is_word.then_some((at, declaration))
    })
}

/// Returns the names of the modules in the file whose braces are around the position `at`.
fn modules_around(code: &str, at: usize) -> Vec<String> {
    let mut open: Vec<Option<String>> = Vec::new();
    let (mut module, mut is_name) = (None, false);
    for (_, word) in words(&code[..at]) {
        match word {
            "{" => open.push(module.take()),
            "}" => _ = open.pop(),
            ";" => module = None,
            _ if is_name => module = Some(word.to_owned()),
            _ => {}
        }
        is_name = word == "mod";
    }
    open.into_iter().flatten().collect()
}

/// Returns the paths of the names in a tree of imports, with the original names.
fn leaves(tree: &str) -> Vec<Vec<String>> {
    let (mut found, mut stack) = (Vec::new(), Vec::new());
    let mut path: Vec<String> = Vec::new();
    let mut is_alias = false;
    let end = |path: &[String], start: usize, found: &mut Vec<Vec<String>>| {
        if path.len() > start {
            found.push(path.to_vec());
        }
    };
    for (_, word) in words(tree) {
        let start = stack.last().copied().unwrap_or(0);
        match word {
            "{" => stack.push(path.len()),
            "," => {
                end(&path, start, &mut found);
                path.truncate(start);
                is_alias = false;
            }
            "}" => {
                end(&path, start, &mut found);
                stack.pop();
                // The group is no leaf itself.
                path.truncate(stack.last().copied().unwrap_or(0));
                is_alias = false;
            }
            ":" => {}
            "as" => is_alias = true,
            "self" if start > 0 && path.len() == start => {
                found.push(path.clone());
                is_alias = true;
            }
            _ if is_alias => {}
            _ => path.push(word.to_owned()),
        }
    }
    end(&path, 0, &mut found);
    found
}

/// Returns an imported path from the root of the crate, unless it is of another crate. `path` is
/// that of the module with the import.
fn from_the_root(path: &[String], import: &[String]) -> Option<Vec<String>> {
    let (first, rest) = import.split_first()?;
    let ups = import.iter().take_while(|part| *part == "super").count();
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([path, rest].concat()),
        "super" => Some([path.get(..path.len().checked_sub(ups)?)?, &import[ups..]].concat()),
        // A child, if it is in this crate.
        _ => Some([path, import].concat()),
    }
}

/// Returns the names that `code` defines.
fn defined(code: &str) -> BTreeSet<String> {
    const KINDS: [&str; 9] = [
        "struct",
        "enum",
        "union",
        "trait",
        "type",
        "fn",
        "const",
        "static",
        "macro_rules",
    ];
    let mut names = BTreeSet::new();
    let mut is_name = false;
    for (_, word) in words(code) {
        if is_name && word == "!" {
            continue;
        }
        if is_name {
            names.insert(word.to_owned());
        }
        is_name = KINDS.contains(&word);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let of = files.iter().map(|(path, text)| {
            let path: Vec<_> = path.split_terminator('/').map(str::to_owned).collect();
            let module = Module::new(path.join("/"), &path, text);
            (path, module)
        });
        Modules(of.collect())
    }

    #[test]
    fn the_tree_of_an_import_has_each_of_its_names() {
        let paths: Vec<_> = leaves("crate::{a::{self, b as c, d::{E, F,}}, g::*}, ")
            .iter()
            .map(|path| path.join("::"))
            .collect();
        let expected = [
            "crate::a",
            "crate::a::b",
            "crate::a::d::E",
            "crate::a::d::F",
        ];
        assert_eq!(paths, [&expected[..], &["crate::g::*"]].concat());
    }

    #[test]
    fn an_import_from_the_root_is_found() {
        let of = modules(&[
            ("", "mod a; mod b; pub use b::{C, D};"),
            (
                "a",
                "use crate::{C, b::D, b}; use crate::b::C; mod in_file { use crate::D; }",
            ),
            (
                "b",
                "pub struct C; pub struct D; #[cfg(test)] mod tests { use crate::C; }",
            ),
        ]);
        let message = |name| {
            format!(
                "a: import `{name}` from the module that defines it, `crate::b`, not from the root"
            )
        };
        assert_eq!(of.imports_from_the_root(), ["C", "D"].map(message));
    }

    #[test]
    fn a_circle_through_the_root_or_a_folder_is_found() {
        let of = modules(&[
            ("", "pub use b::*;"),
            ("a", "use crate::B;"),
            ("b", "mod c; pub use c::B;"),
            ("b/c", "use super::d::D; pub enum B {}"),
            ("b/d", "use crate::a; pub struct D;"),
            ("e", "use crate::a;"),
        ]);
        let circle = ["a", "b/c", "b/d"].map(str::to_owned);
        assert_eq!(of.circles(), BTreeSet::from([BTreeSet::from(circle)]));
    }

    #[test]
    fn the_list_of_circles_may_only_shrink() {
        let known = listed("x: a b c\n");
        let wrong = |found: &str| judged(&listed(found), &known).len();
        assert_eq!(wrong("x: a b c\n"), 0);
        assert_eq!(wrong("x: a b d\n"), 2, "another one");
        assert_eq!(wrong("x: a b\n"), 1, "a smaller one");
        assert_eq!(wrong("y: a b c\n"), 2, "of another crate");
        assert_eq!(wrong(""), 1, "none");
    }

    #[test]
    fn a_list_of_circles_is_read_as_it_is_written() {
        let list = "x: a b c\ny: d e\n";
        assert_eq!(listed(list).iter().map(line).collect::<String>(), list);
    }
}
