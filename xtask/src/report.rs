use core::time::Duration;
use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use crate::checks::Step;
use crate::context::Context;
use crate::programs;
use crate::setup;

/// How a step ended.
enum Outcome {
    Passed(String),
    Failed(String),
    NotRun(String),
}

/// The number of steps from which two run at a time.
const MANY: usize = 6;

/// The variable with which a process runs its steps in turn.
const BESIDE: &str = "PORTCULLIS_BESIDE";

/// Runs `steps`, and prints one line per step and a total. Of many steps, those that run beside
/// others have a process of their own.
pub(crate) fn run(context: &Context, steps: &[&Step]) -> ExitCode {
    let (beside, here): (Vec<&Step>, Vec<_>) = steps.iter().partition(|step| step.beside);
    let divided = steps.len() >= MANY && env::var_os(BESIDE).is_none();
    if !divided || beside.is_empty() || here.is_empty() {
        return run_in_turn(context, steps);
    }
    // One process at a time can install packages.
    for part in beside.iter().filter_map(|step| step.needs) {
        _ = setup::ensure(context, part);
    }
    match Beside::start(context, &beside) {
        Ok(beside) => {
            let own = run_in_turn(context, &here);
            if beside.end() { own } else { ExitCode::FAILURE }
        }
        Err(_) => run_in_turn(context, steps),
    }
}

/// Steps that run in a process of their own. Their output goes to a file.
struct Beside {
    process: Child,
    output: PathBuf,
}

impl Beside {
    fn start(context: &Context, steps: &[&Step]) -> std::io::Result<Self> {
        let output = context.target_dir("beside.log");
        output.parent().map_or(Ok(()), fs::create_dir_all)?;
        let file = File::create(&output)?;
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        println!(
            "beside the other steps, with the output at the end: {}",
            names.join(", ")
        );
        let mut command = Command::new(env::current_exe()?);
        // The variable keeps the process from dividing its steps again.
        command.args(names).env(BESIDE, "1").stdin(Stdio::null());
        command.stdout(file.try_clone()?).stderr(file);
        let process = command.spawn()?;
        Ok(Self { process, output })
    }

    /// Waits for the process, prints its output, and returns whether all steps passed.
    fn end(mut self) -> bool {
        let passed = self.process.wait().is_ok_and(|status| status.success());
        let printed = fs::read(&self.output).unwrap_or_default();
        println!("\n{}", String::from_utf8_lossy(&printed));
        passed
    }
}

fn run_in_turn(context: &Context, steps: &[&Step]) -> ExitCode {
    let mut outcomes = Vec::new();
    let disk = little_disk(context, steps);
    print!("{disk}");
    for step in steps {
        println!("\n=== {}: {}", step.name, step.about);
        let (begun, worked) = (Instant::now(), processor_seconds());
        let outcome = run_one(context, step);
        if let Outcome::Failed(why) | Outcome::NotRun(why) = &outcome {
            println!("{}: {why}", step.name);
        }
        let work = processor_seconds() - worked;
        outcomes.push((step.name, outcome, begun.elapsed(), work));
    }
    println!();
    let (mut passed, mut failed) = (0, 0);
    for (name, outcome, took, work) in &outcomes {
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
        let took = seconds(*took);
        let line = format!("{name:12} {word:8} {took:>6} {work:>6} s of work  {remark}");
        println!("{}", line.trim_end());
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
    let table = programs::output("df", &["-P", "-k", &root]).unwrap_or_default();
    let kilobytes = table
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(3));
    match kilobytes.and_then(|free| free.parse::<u64>().ok()) {
        Some(free) if steps.len() >= MANY && free < DISK * 1_000_000 => format!(
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

/// Returns the processor time of this process and of all programs that it has waited for, in
/// seconds. Unlike the time that a step takes, it hardly depends on what else the machine does. 0
/// where the system does not say it.
fn processor_seconds() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program is in parentheses, and may have blanks.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let times = fields.split_whitespace().skip(11).take(4);
    // Linux counts in hundredths of a second for programs, whatever its own clock is.
    times
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum::<u64>()
        / 100
}

fn seconds(took: Duration) -> String {
    format!("{:.0} s", took.as_secs_f64().ceil())
}
