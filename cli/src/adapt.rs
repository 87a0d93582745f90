//! The command `adapt`: what adaptive concurrency limits would do.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use portcullis_adaptive::simulate::{Log, Measured, Run, Scenario};
use portcullis_adaptive::{Aimd, EnvoyGradient, Gradient2, Knee, Vegas};

use crate::args::{AdaptArgs, ControllerName};
use crate::failure::Failure;

/// Does something with the controller of a name, which is of a type of its own.
macro_rules! with_controller {
    ($name:expr, |$controller:ident| $work:expr) => {
        match $name {
            ControllerName::Knee => with_controller!(Knee::new(), $controller, $work),
            ControllerName::LatencyFirst => {
                with_controller!(Knee::new().latency_first(), $controller, $work)
            }
            ControllerName::Envoy => with_controller!(EnvoyGradient::new(), $controller, $work),
            ControllerName::Gradient2 => with_controller!(Gradient2::new(), $controller, $work),
            ControllerName::Vegas => with_controller!(Vegas::new(), $controller, $work),
            ControllerName::Aimd => with_controller!(Aimd::new(), $controller, $work),
        }
    };
    ($new:expr, $controller:ident, $work:expr) => {{
        let $controller = &$new;
        $work
    }};
}

pub(crate) fn run(args: &AdaptArgs) -> Result<ExitCode, Failure> {
    let mut out = io::stdout().lock();
    for file in &args.files {
        let text = read(file)?;
        let refused = |error| Failure::Refused(format!("{}: {error}", file.display()));
        if args.log {
            let log = Log::parse(&text).map_err(refused)?;
            show_log(&mut out, args, &log)?;
        } else {
            let scenario = Scenario::parse(&text).map_err(refused)?;
            show_scenario(&mut out, args, &scenario)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<String, Failure> {
    let text = if file == Path::new("-") {
        io::read_to_string(io::stdin())
    } else {
        fs::read_to_string(file)
    };
    text.map_err(|error| Failure::Refused(format!("{}: {error}", file.display())))
}

fn name(of: ControllerName) -> String {
    let value = clap::ValueEnum::to_possible_value(&of);
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn show_scenario(
    out: &mut impl Write,
    args: &AdaptArgs,
    scenario: &Scenario,
) -> Result<(), Failure> {
    writeln!(out, "{}: the worst of {} runs", scenario.name, args.seeds)?;
    writeln!(
        out,
        "{:<14} {:>14} {:>9} {:>9} {:>9} {:>15} {:>7}",
        "controller", "seconds", "goodput", "latency", "admitted", "limit", "missed"
    )?;
    for &controller in &args.controllers {
        let runs: Vec<Run> = (args.first..args.first.saturating_add(args.seeds))
            .map(|seed| with_controller!(controller, |one| scenario.run(one, seed)))
            .collect();
        for number in 0..scenario.checks.len() {
            let all: Vec<_> = runs.iter().map(|run| run.checks[number]).collect();
            show_check(out, controller, &all)?;
        }
    }
    writeln!(out)?;
    Ok(())
}

fn show_check(
    out: &mut impl Write,
    controller: ControllerName,
    all: &[Measured],
) -> Result<(), Failure> {
    let least = |of: fn(&Measured) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&Measured) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let missed = all.iter().filter(|one| !one.misses().is_empty()).count();
    let check = all[0].check;
    writeln!(
        out,
        "{:<14} {:>14} {:>7.1} % {:>7.2} x {:>7.2} % {:>15} {missed:>7}",
        name(controller),
        format!("{:.0} to {:.0}", check.from, check.to),
        100.0 * least(|one| one.goodput),
        most(|one| one.latency),
        100.0 * least(|one| one.admitted),
        format!(
            "{:.0} to {:.0}",
            least(|one| one.limit),
            most(|one| one.limit)
        ),
    )?;
    Ok(())
}

fn show_log(out: &mut impl Write, args: &AdaptArgs, log: &Log) -> Result<(), Failure> {
    if log.requests.is_empty() {
        return Err(Failure::Refused("the log has no requests".into()));
    }
    writeln!(
        out,
        "{:<14} {:>6} {:>15} {:>9} {:>12} {:>10}",
        "controller", "limit", "from to", "over", "capacity", "base"
    )?;
    let mut most = 0;
    for &controller in &args.controllers {
        let found = with_controller!(controller, |one| log.run(one, args.initial));
        let last = found.last;
        most = found.most_in_flight;
        let known = |value: f32, text: String| if value > 0.0 { text } else { "-".into() };
        writeln!(
            out,
            "{:<14} {:>6} {:>15} {:>7.2} % {:>12} {:>10}",
            name(controller),
            last.limit,
            format!("{} to {}", found.lowest, found.highest),
            100.0 * found.over,
            known(last.capacity, format!("{:.1}/s", last.capacity)),
            known(last.base, format!("{:.1} ms", last.base * 1e3)),
        )?;
    }
    writeln!(
        out,
        "{} requests, at most {most} at once. \"over\": the share of them that began over the limit.",
        log.requests.len()
    )?;
    Ok(())
}
