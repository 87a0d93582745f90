//! Runs steps: a few in turn, in this process; many two at a time, each in a process of its own.
//!
//! Two threads take many steps. The main lane takes those that share the main target folder, in
//! their order, and then what is left of the others. The second lane takes the others, so both end
//! at about the same time. What each step prints goes to `target/steps/NAME.log`. The main lane
//! copies it to the output at once; that of the second lane comes when all steps have ended. The
//! last lines are one table of all steps.

use core::time::Duration;
use std::collections::VecDeque;
use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::checks::Step;
use crate::context::Context;
use crate::files;
use crate::programs;
use crate::report::{self, Ended, Outcome};
use crate::setup;

/// The number of steps from which two run at a time.
const MANY: usize = 6;

/// The option of a process that runs one step of many: the file for how the step ended.
pub(crate) const PART: &str = "--part=";

/// Runs `steps`, and prints one line per step and a total.
pub(crate) fn run(context: &Context, steps: &[&Step]) -> ExitCode {
    let disk = little_disk(context, steps);
    print!("{disk}");
    let many = steps.len() >= MANY;
    let ended = if many {
        run_many(context, steps)
    } else {
        let timed = |step: &&Step| {
            let begun = Instant::now();
            let (outcome, work) = run_one(context, step);
            ended(step, outcome, begun.elapsed(), work)
        };
        steps.iter().map(timed).collect()
    };
    // What a few steps print is not far above.
    let printed = |name| fs::read(log(context, name)).ok().filter(|_| many);
    let printed = |name| printed(name).map(|text| String::from_utf8_lossy(&text).into_owned());
    print!("{}", report::summary(&ended, printed));
    if !ended.iter().any(Ended::has_failed) {
        return ExitCode::SUCCESS;
    }
    print!("{disk}");
    ExitCode::FAILURE
}

/// Runs one step of many, and writes how it ended to a file.
pub(crate) fn run_part(context: &Context, steps: &[&Step], file: &str) -> ExitCode {
    let [step] = steps else {
        eprintln!("{PART} needs one step");
        return ExitCode::from(2);
    };
    let (outcome, work) = run_one(context, step);
    match files::write(Path::new(file), &written(&outcome, work)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns how a step ended as text.
fn written(outcome: &Outcome, work: u64) -> String {
    let (word, remark) = outcome.words();
    format!("{word}\n{work}\n{remark}")
}

/// Returns how a step ended from what [`written`] returned.
fn read(text: &str) -> Option<(Outcome, u64)> {
    let mut parts = text.splitn(3, '\n');
    let (word, work, remark) = (parts.next()?, parts.next()?, parts.next()?);
    let outcome = Outcome::from_words(word, remark.to_owned())?;
    Some((outcome, work.parse().ok()?))
}

fn ended(step: &Step, outcome: Outcome, took: Duration, work: u64) -> Ended {
    Ended {
        name: step.name,
        outcome,
        took,
        work,
    }
}

/// Runs a step, and returns how it ended and its processor time in seconds.
fn run_one(context: &Context, step: &Step) -> (Outcome, u64) {
    println!("\n=== {}: {}", step.name, step.about);
    let worked = processor_seconds();
    let missing = step
        .needs
        .and_then(|part| setup::ensure(context, part).err());
    let outcome = match missing {
        Some(missing) if context.ci => Outcome::Failed(missing),
        Some(missing) => Outcome::NotRun(missing),
        None => match (step.run)(context) {
            Ok(remark) => Outcome::Passed(remark),
            Err(why) => Outcome::Failed(why),
        },
    };
    if let Outcome::Failed(why) | Outcome::NotRun(why) = &outcome {
        println!("{}: {why}", step.name);
    }
    (outcome, processor_seconds() - worked)
}

/// The steps that neither lane has taken.
struct Waiting<T> {
    main: VecDeque<T>,
    beside: VecDeque<T>,
}

/// Which steps a thread takes, and where their output goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Main,
    Second,
}

impl<T> Waiting<T> {
    fn take(&mut self, lane: Lane) -> Option<T> {
        let main = match lane {
            Lane::Main => self.main.pop_front(),
            Lane::Second => None,
        };
        main.or_else(|| self.beside.pop_front())
    }
}

fn run_many(context: &Context, steps: &[&Step]) -> Vec<Ended> {
    // One process at a time can install packages.
    for part in steps.iter().filter_map(|step| step.needs) {
        _ = setup::ensure(context, part);
    }
    _ = fs::remove_dir_all(context.target_dir(LOGS));
    let of = |beside| {
        let is_so = |step: &&&Step| step.beside == beside;
        steps.iter().filter(is_so).copied().collect()
    };
    let waiting = Mutex::new(Waiting::<&Step> {
        main: of(false),
        beside: of(true),
    });
    let take = |lane| {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.take(lane)
    };
    let run = |lane| {
        let mut all = Vec::new();
        while let Some(step) = take(lane) {
            let begun = Instant::now();
            let (outcome, work) =
                run_apart(context, step, lane).unwrap_or_else(|why| (Outcome::Failed(why), 0));
            all.push(ended(step, outcome, begun.elapsed(), work));
        }
        all
    };
    let (mut all, second) = thread::scope(|scope| {
        let second = scope.spawn(|| run(Lane::Second));
        (run(Lane::Main), second.join().unwrap_or_default())
    });
    for step in &second {
        let printed = fs::read(log(context, step.name)).unwrap_or_default();
        println!("{}", String::from_utf8_lossy(&printed));
    }
    all.extend(second);
    let place = |ended: &Ended| steps.iter().position(|step| step.name == ended.name);
    all.sort_by_key(place);
    all
}

/// The folder in `target` for what the steps print.
const LOGS: &str = "steps";

/// Returns the file for what a step prints.
fn log(context: &Context, name: &str) -> PathBuf {
    context.target_dir(LOGS).join(format!("{name}.log"))
}

/// Runs a step in a process of its own. Its output goes to a file and, in the main lane, also to
/// the output of this process.
fn run_apart(context: &Context, step: &Step, lane: Lane) -> Result<(Outcome, u64), String> {
    let file = log(context, step.name);
    files::create(&context.target_dir(LOGS))?;
    let result = file.with_extension("result");
    let output = File::create(&file).map_err(files::at(&file))?;
    let mut command = Command::new(this_program());
    command.arg(format!("{PART}{}", result.display()));
    command.args(context.flags()).arg(step.name);
    let also = output.try_clone().map_err(files::at(&file))?;
    command.stdin(Stdio::null()).stdout(output).stderr(also);
    let started = |error| format!("the step could not be started: {error}");
    let mut child = command.spawn().map_err(started)?;
    let status = match lane {
        Lane::Main => followed(&mut child, &file, &mut io::stdout()),
        Lane::Second => child.wait(),
    };
    let status = status.map_err(files::at(&file))?;
    let text = fs::read_to_string(&result).unwrap_or_default();
    read(&text).ok_or_else(|| format!("the process of the step ended with {status}"))
}

/// Returns the path of this program. Another build may replace the file while the steps run; Linux
/// finds the old one too.
fn this_program() -> PathBuf {
    let linked = PathBuf::from("/proc/self/exe");
    if linked.exists() {
        return linked;
    }
    env::current_exe().unwrap_or(linked)
}

/// Copies what a process writes to a file until the process ends. A pipe would stay open as long as
/// any program that the process has started and left behind.
fn followed(child: &mut Child, file: &Path, to: &mut impl Write) -> io::Result<ExitStatus> {
    let mut written = File::open(file)?;
    loop {
        let status = child.try_wait()?;
        let mut new = Vec::new();
        written.read_to_end(&mut new)?;
        // A closed output must not end the step.
        _ = to.write_all(&new).and_then(|()| to.flush());
        match status {
            Some(status) => return Ok(status),
            None => thread::sleep(Duration::from_millis(50)),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_step_ended_is_read_as_it_was_written() {
        let outcome = Outcome::Failed("two\nlines".to_owned());
        let text = written(&outcome, 12);
        assert_eq!(read(&text), Some((outcome, 12)));
        assert_eq!(
            read(""),
            None,
            "a process that was killed has written nothing"
        );
    }

    #[test]
    fn the_main_lane_ends_with_the_steps_that_run_beside_others() {
        let mut waiting = Waiting {
            main: [1, 2].into(),
            beside: [3, 4, 5].into(),
        };
        let mut take = |lane| waiting.take(lane);
        assert_eq!(take(Lane::Main), Some(1));
        assert_eq!(take(Lane::Second), Some(3));
        assert_eq!(take(Lane::Main), Some(2));
        assert_eq!(take(Lane::Main), Some(4));
        assert_eq!(take(Lane::Second), Some(5));
        assert_eq!([take(Lane::Main), take(Lane::Second)], [None, None]);
    }

    #[test]
    fn the_second_lane_leaves_the_main_target_folder_alone() {
        let mut waiting = Waiting {
            main: [1].into(),
            beside: [].into(),
        };
        assert_eq!(waiting.take(Lane::Second), None);
        assert_eq!(waiting.take(Lane::Main), Some(1));
    }
}
