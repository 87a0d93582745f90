//! The project's tasks. `cargo xtask --help` lists them.
//!
//! A task is a list of steps. Each step can also be run by its own name. The remaining steps run
//! after a failure, so that one run shows everything that is wrong.

#[macro_use]
#[path = "../../core/tests/support/registry.rs"]
mod registry;

mod asm;
mod baseline;
mod bench_check;
mod book;
mod c_bindings;
mod checks;
mod command;
mod context;
mod debian;
#[cfg(test)]
mod documents;
mod each_feature;
#[cfg(test)]
mod engine;
mod examples;
mod figures;
mod files;
mod firmware;
mod firmware_cost;
#[cfg(test)]
mod guides;
mod hot_paths;
mod house;
mod imports;
#[cfg(test)]
mod limiters;
mod listing;
mod manifest;
#[cfg(test)]
mod map;
#[cfg(test)]
mod memory;
mod nightly;
mod no_std;
mod oldest_rust;
mod package;
mod platforms;
mod programs;
mod python;
mod readme;
mod report;
mod resolved;
mod runner;
mod rust_text;
mod screenshot;
mod semver;
mod servers;
mod setup;
mod sources;
mod targets;
mod test_programs;
mod weaken;
mod wheels;
mod width;

use std::process::ExitCode;

use crate::checks::{STEPS, Step, TASKS};
use crate::context::{BLESS, Context, ONLY};
use crate::runner::PART;

fn main() -> ExitCode {
    let (flags, names): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|name| name == BLESS || name.starts_with(ONLY) || name.starts_with(PART));
    let bless = flags.iter().any(|flag| flag == BLESS);
    let value = |option: &str| flags.iter().find_map(|flag| flag.strip_prefix(option));
    if names.is_empty() || names.iter().any(|name| name == "--help" || name == "-h") {
        print_help();
        return ExitCode::SUCCESS;
    }
    match chosen(&names) {
        Ok(steps) => {
            let context = Context::new(bless, value(ONLY).unwrap_or_default().to_owned());
            match value(PART) {
                Some(file) => runner::run_part(&context, &steps, file),
                None => runner::run(&context, &steps),
            }
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

/// Returns the steps of `names`, each once, in the order of [`STEPS`].
fn chosen(names: &[String]) -> Result<Vec<&'static Step>, String> {
    let mut wanted = Vec::new();
    for name in names {
        wanted.extend(steps_of(name).ok_or_else(|| {
            format!("no task or step is called {name:?}; cargo xtask --help lists them")
        })?);
    }
    let is_wanted = |step: &&Step| wanted.contains(&step.name);
    Ok(STEPS.iter().filter(is_wanted).collect())
}

/// Returns the names of the steps of a task, or the name of a step.
fn steps_of(name: &str) -> Option<Vec<&'static str>> {
    if let Some(task) = TASKS.iter().find(|task| task.name == name) {
        let steps = task.steps.split_ascii_whitespace().map(steps_of);
        return Some(steps.collect::<Option<Vec<_>>>()?.concat());
    }
    let step = STEPS.iter().find(|step| step.name == name)?;
    Some(vec![step.name])
}

fn print_help() {
    println!("cargo xtask TASK...\n\nTasks:");
    for task in TASKS {
        println!("  {:14} {}", task.name, task.about);
    }
    println!("\nSteps, each of which can be run as a task:");
    for step in STEPS {
        println!("  {:14} {}", step.name, step.about);
    }
    println!(
        "\n{BLESS} makes bench-check and firmware-cost write new baselines, and house shorter lists."
    );
    println!(
        "{ONLY}TEXT makes weaken try only the mutants with TEXT in their path and description; commas divide several."
    );
    println!(
        "\nWhat a step needs and the machine lacks is installed if that can be done without a password.\n\
         Otherwise the step is not run; with CI set in the environment, that is a failure."
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_names_steps_that_exist() {
        for task in TASKS {
            let names = steps_of(task.name).expect(task.name);
            let steps = chosen(&[task.name.to_owned()]).unwrap();
            assert_eq!(steps.len(), names.len(), "{}", task.name);
        }
    }

    #[test]
    fn a_release_needs_every_step_that_a_change_needs() {
        let release = steps_of("release-check").unwrap();
        for step in steps_of("test").unwrap() {
            assert!(release.contains(&step), "{step}");
        }
    }

    #[test]
    fn a_step_named_twice_runs_once() {
        let names = ["lint", "fmt"].map(String::from);
        let steps: Vec<_> = chosen(&names)
            .unwrap()
            .iter()
            .map(|step| step.name)
            .collect();
        assert_eq!(steps, ["fmt", "house", "clippy", "oldest-rust", "doc"]);
    }

    #[test]
    fn an_unknown_name_is_rejected() {
        assert!(chosen(&["tests-of-time".to_owned()]).is_err());
    }
}
