use core::time::Duration;
use std::process::ExitCode;
use std::time::Instant;

use crate::checks::Step;
use crate::context::Context;
use crate::setup;

/// How a step ended.
enum Outcome {
    Passed(String),
    Failed(String),
    NotRun(String),
}

/// Runs `steps`, and prints one line per step and a total.
pub(crate) fn run(context: &Context, steps: &[&Step]) -> ExitCode {
    let mut outcomes = Vec::new();
    let disk = little_disk(context, steps);
    print!("{disk}");
    for step in steps {
        println!("\n=== {}: {}", step.name, step.about);
        let begun = Instant::now();
        let outcome = run_one(context, step);
        if let Outcome::Failed(why) | Outcome::NotRun(why) = &outcome {
            println!("{}: {why}", step.name);
        }
        outcomes.push((step.name, outcome, begun.elapsed()));
    }
    println!();
    let (mut passed, mut failed) = (0, 0);
    for (name, outcome, took) in &outcomes {
        let (word, remark) = match outcome {
            Outcome::Passed(remark) => ("passed", remark),
            Outcome::Failed(remark) => ("FAILED", remark),
            Outcome::NotRun(remark) => ("not run", remark),
        };
        match outcome {
            Outcome::Passed(_) => passed += 1,
            Outcome::Failed(_) => failed += 1,
            Outcome::NotRun(_) => {}
        }
        println!(
            "{}",
            format!("{name:12} {word:8} {:>6}  {remark}", seconds(*took)).trim_end()
        );
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        print!("{disk}");
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What all steps of `test` write in a fresh clone, in GB.
const DISK: u64 = 12;

/// Returns a line if the disk may be too small for many steps. Compilers do not always say so.
fn little_disk(context: &Context, steps: &[&Step]) -> String {
    let root = context.root.to_string_lossy();
    let table = setup::output("df", &["-P", "-k", &root]).unwrap_or_default();
    let kilobytes = table
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(3));
    match kilobytes.and_then(|free| free.parse::<u64>().ok()) {
        Some(free) if steps.len() > 5 && free < DISK * 1_000_000 => format!(
            "note: {} GB of disk are free; in a fresh clone, all steps write {DISK} GB\n",
            free / 1_000_000
        ),
        _ => String::new(),
    }
}

fn run_one(context: &Context, step: &Step) -> Outcome {
    if let Some(missing) = step
        .needs
        .and_then(|part| setup::ensure(context, part).err())
    {
        return if context.ci {
            Outcome::Failed(missing)
        } else {
            Outcome::NotRun(missing)
        };
    }
    match (step.run)(context) {
        Ok(remark) => Outcome::Passed(remark),
        Err(why) => Outcome::Failed(why),
    }
}

fn seconds(took: Duration) -> String {
    format!("{:.0} s", took.as_secs_f64().ceil())
}
