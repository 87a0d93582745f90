//! Compiles each program of the README and of the guides that are one program against the manifest
//! that is printed above it, and runs those that end. Of a program with tests, it runs the tests.
//!
//! Each program is a package of its own, which lies below the target directory. It depends on the
//! libraries of this repository where the README says `../portcullis`, and on nothing that its
//! manifest does not name.

use std::path::Path;

use crate::command::{self, Check};
use crate::context::Context;
use crate::files;

/// The guides that are one program each, and what their packages are called.
const GUIDES: [(&str, &str); 3] = [
    ("guide", "docs/http.md"),
    ("crawler", "docs/crawler.md"),
    ("worker", "docs/worker.md"),
];

/// A program, and the manifest above it.
struct Program {
    title: String,
    manifest: String,
    /// The file of limits beside the program: the block `toml` after the manifest.
    limits: Option<String>,
    /// The blocks `rust`, one below the other.
    text: String,
}

impl Program {
    /// Reads the program of a section. `None` if there is none.
    fn read(title: String, section: &str) -> Result<Option<Self>, String> {
        let text: Vec<String> = blocks("rust", section).collect();
        if text.is_empty() {
            return Ok(None);
        }
        let mut settings = blocks("toml", section);
        let manifest = settings
            .next()
            .ok_or_else(|| format!("`{title}` has a program without a manifest"))?;
        Ok(Some(Self {
            title,
            manifest,
            limits: settings.next(),
            text: text.join("\n"),
        }))
    }

    /// The name of the package: the title in lower case, with hyphens.
    fn name(&self) -> String {
        let lower = self.title.to_lowercase();
        let words = lower
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty());
        format!("readme-{}", words.collect::<Vec<_>>().join("-"))
    }

    /// Whether the program ends by itself. A service does not, and a library is no program.
    fn ends(&self) -> bool {
        self.text.contains("fn main()") && !self.text.contains("serve(")
    }

    fn has_tests(&self) -> bool {
        self.text.contains("#[cfg(test)]")
    }

    /// What `cargo` does with it.
    fn command(&self) -> &'static str {
        match (self.has_tests(), self.ends()) {
            (true, _) => "test",
            (false, true) => "run",
            (false, false) => "check",
        }
    }

    fn file(&self) -> &'static str {
        if self.text.contains("fn main()") {
            "main.rs"
        } else {
            "lib.rs"
        }
    }

    /// The lines that are neither empty nor a comment.
    #[cfg(test)]
    fn lines(&self) -> usize {
        let lines = self.text.lines().map(str::trim);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .count()
    }
}

pub(crate) fn check(context: &Context) -> Check {
    let read = |file: &str| files::read(&context.root.join(file));
    let mut programs = programs(&read("README.md")?)?;
    for (name, guide) in GUIDES {
        programs.extend(Program::read(name.to_owned(), &read(guide)?)?);
    }
    let folder = context.target_dir("readme");
    write(&context.root, &folder, &programs)?;
    for program in &programs {
        // One by one: the features that another program needs must not be there.
        let mut cargo = context.cargo();
        cargo.arg(program.command());
        cargo.args(["--quiet", "--package", &program.name()]);
        cargo.arg("--manifest-path").arg(folder.join("Cargo.toml"));
        // Where the step `tests` has compiled much of what the program depends on.
        cargo.arg("--target-dir").arg(context.target_dir(""));
        command::run(&mut cargo)?;
    }
    Ok(format!("{} programs", programs.len()))
}

/// Returns the programs of a document: the blocks `rust` below a block `toml`, under a heading.
fn programs(readme: &str) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for section in readme.split("\n### ").skip(1) {
        let title = section.lines().next().unwrap_or_default().to_owned();
        programs.extend(Program::read(title, section)?);
    }
    Ok(programs)
}

/// Returns the texts of the blocks of a kind.
fn blocks<'t>(kind: &str, text: &'t str) -> impl Iterator<Item = String> + use<'t> {
    let begin = format!("```{kind}\n");
    let mut rest = text;
    core::iter::from_fn(move || {
        let (block, after) = rest.split_once(&begin)?.1.split_once("```")?;
        rest = after;
        Some(block.to_owned())
    })
}

/// Writes the packages, and a workspace around them with the versions of this repository.
fn write(root: &Path, folder: &Path, programs: &[Program]) -> Result<(), String> {
    let names: Vec<String> = programs
        .iter()
        .map(|of| format!("\"{}\"", of.name()))
        .collect();
    let workspace = format!(
        "[workspace]\nresolver = \"2\"\nmembers = [{}]\n",
        names.join(", ")
    );
    files::write(&folder.join("Cargo.toml"), &workspace)?;
    files::copy(&root.join("Cargo.lock"), &folder.join("Cargo.lock"))?;
    for program in programs {
        let name = program.name();
        let here = format!("\"{}/", root.display());
        let dependencies = program.manifest.replace("\"../portcullis/", &here);
        // Without TLS, which is minutes of C to compile. No program needs it for its code.
        let without_tls = "reqwest = { version = \"0.13\", default-features = false }";
        let dependencies = dependencies.replace("reqwest = \"0.13\"", without_tls);
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n{dependencies}"
        );
        let package = folder.join(&name);
        files::write(&package.join("Cargo.toml"), &manifest)?;
        files::write(&package.join("src").join(program.file()), &program.text)?;
        if let Some(limits) = &program.limits {
            files::write(&package.join("src/limits.toml"), limits)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_is_short_and_has_five_short_programs() {
        let readme = include_str!("../../README.md");
        assert!(readme.lines().count() <= 200, "{}", readme.lines().count());
        let programs = programs(readme).expect("each program has a manifest");
        assert_eq!(programs.len(), 5);
        for program in programs {
            assert!(
                program.lines() <= 15,
                "{}: {}",
                program.title,
                program.lines()
            );
        }
    }

    #[test]
    fn programs_are_read_with_their_manifests() {
        let text = "a\n### One, two\n```toml\nx = 1\n```\n```rust\nfn main() {}\n```\n### Words\n";
        let programs = programs(text).expect("a program");
        assert_eq!(programs.len(), 1);
        let program = &programs[0];
        assert_eq!(program.name(), "readme-one-two");
        assert_eq!(
            (program.manifest.as_str(), program.file()),
            ("x = 1\n", "main.rs")
        );
        assert!(program.ends());
        let guide =
            "```toml\nx\n```\n```toml\ny\n```\n```rust\na\n```\n```rust\n#[cfg(test)]\n```\n";
        let guide = Program::read("guide".to_owned(), guide).expect("a manifest");
        let guide = guide.expect("a program");
        assert_eq!(guide.limits.as_deref(), Some("y\n"));
        assert_eq!(
            (guide.text.as_str(), guide.command()),
            ("a\n\n#[cfg(test)]\n", "test")
        );
        let without = "### One\n```rust\nfn main() {}\n```\n";
        assert!(super::programs(&format!("a\n{without}")).is_err());
    }
}
