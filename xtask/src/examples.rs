//! Runs the examples that end by themselves. Tests start the others.

use std::process::Command;

use crate::command::{self, Check, Words};
use crate::context::Context;

/// The examples that end, with their packages. The order is that of their guides.
const ENDING: &[(&str, &[&str])] = &[
    ("core", &["hello", "per_key", "own_limiter"]),
    ("async", &["tokio", "smol", "threads", "crawler"]),
    ("tower", &["worker"]),
    ("policy", &["rules_from_file"]),
    ("shm", &["two_processes"]),
    ("adaptive", &["scenarios"]),
];

pub(crate) fn check(context: &Context) -> Check {
    // As the step `tests` builds them, so that there is little to build after it.
    let mut cargo = context.cargo();
    cargo.arg("build").args(context.locked());
    let all = "--workspace --exclude portcullis-explore --all-features --examples";
    command::run(cargo.words(all))?;
    let mut count = 0;
    for (folder, names) in ENDING {
        for name in *names {
            let mut example = Command::new(context.target_dir("debug/examples").join(name));
            command::run(example.current_dir(context.root.join(folder)))?;
            count += 1;
        }
    }
    Ok(format!("{count} examples"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::files;
    use crate::manifest;

    /// The example that is no program: `cargo xtask hot-paths` reads its machine code.
    const LIBRARY: &str = "core/examples/hot_paths.rs";

    /// Returns the examples in the workspace, as `folder/examples/name.rs`.
    fn all(root: &Path) -> Vec<String> {
        let folders = manifest::members(root).expect("the workspace");
        let examples = folders
            .into_iter()
            .filter(|folder| folder != "docs")
            .flat_map(|folder| {
                let entries = fs::read_dir(root.join(&folder).join("examples"));
                let names = entries.into_iter().flatten().flatten();
                let names = names.filter_map(|entry| entry.file_name().into_string().ok());
                let names: Vec<_> = names
                    .filter(|name| files::has_extension(Path::new(name), "rs"))
                    .collect();
                names
                    .into_iter()
                    .map(move |name| format!("{folder}/examples/{name}"))
            });
        let mut examples: Vec<_> = examples.collect();
        examples.sort();
        examples
    }

    /// Returns whether a test program of the package has the example as a module.
    fn is_started_by_a_test(root: &Path, example: &str) -> bool {
        let (folder, name) = example.split_once("/examples/").expect("an example");
        let module = format!("#[path = \"../examples/{name}\"]\n");
        let tests = fs::read_dir(root.join(folder).join("tests"));
        let mut files = tests
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        files.any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(&module)))
    }

    #[test]
    fn every_example_is_run() {
        let root = files::root();
        let path = |(folder, names): &(&str, &[&str])| {
            let paths = names
                .iter()
                .map(|name| format!("{folder}/examples/{name}.rs"));
            paths.collect::<Vec<_>>()
        };
        let ending: Vec<_> = ENDING.iter().flat_map(path).collect();
        let examples = all(root);
        for example in &ending {
            assert!(examples.contains(example), "there is no {example}");
        }
        assert!(examples.len() > 12, "{examples:?}");
        for example in examples.iter().filter(|example| *example != LIBRARY) {
            assert!(
                ending.contains(example) || is_started_by_a_test(root, example),
                "{example}: name it in xtask/src/examples.rs, or start it in a test"
            );
        }
    }

    #[test]
    fn the_first_examples_are_the_programs_of_the_readme() {
        let readme = include_str!("../../README.md");
        let blocks = readme.split("```rust\n").skip(1);
        let programs: Vec<_> = blocks
            .filter_map(|block| block.split("```").next())
            .collect();
        for (program, (file, example)) in programs.iter().zip([
            (
                "core/examples/hello.rs",
                include_str!("../../core/examples/hello.rs"),
            ),
            (
                "core/examples/per_key.rs",
                include_str!("../../core/examples/per_key.rs"),
            ),
            (
                "async/examples/tokio.rs",
                include_str!("../../async/examples/tokio.rs"),
            ),
        ]) {
            // The README has longer lines, for fewer of them.
            let is_copied = without_blanks(example).ends_with(&without_blanks(program));
            assert!(
                is_copied,
                "{file}: differs from README.md, copy this:\n{program}"
            );
        }
    }

    fn without_blanks(text: &str) -> String {
        let text: String = text.split_whitespace().collect();
        text.replace(",)", ")").replace(",}", "}")
    }
}
