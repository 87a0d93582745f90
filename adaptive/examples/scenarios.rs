//! Runs scenarios with ours and with the controllers of the literature, and prints a table.
//!
//! ```text
//! cargo run --release -p portcullis-adaptive --features simulate --example scenarios -- \
//!     [--seeds 20] [--first 1] [--only knee,envoy] [--course] FILE...
//! ```
//!
//! Of each check it prints the worst of `--seeds` seeds from `--first` on. `--course` prints the
//! limit and the latency in each second of the first seed.

use core::error::Error;
use portcullis_adaptive::simulate::{Measured, Run, Scenario};
use portcullis_adaptive::{Aimd, EnvoyGradient, Gradient2, Knee, Vegas};

const CONTROLLERS: [&str; 6] = [
    "knee",
    "latency-first",
    "envoy",
    "gradient2",
    "vegas",
    "aimd",
];

fn run(scenario: &Scenario, controller: &str, seed: u64) -> Run {
    match controller {
        "knee" => scenario.run(&Knee::new(), seed),
        "latency-first" => scenario.run(&Knee::new().latency_first(), seed),
        "envoy" => scenario.run(&EnvoyGradient::new(), seed),
        "gradient2" => scenario.run(&Gradient2::new(), seed),
        "vegas" => scenario.run(&Vegas::new(), seed),
        _ => scenario.run(&Aimd::new(), seed),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut seeds, mut first) = (20, 1);
    let mut only: Vec<String> = CONTROLLERS.map(String::from).to_vec();
    let (mut course, mut files) = (false, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seeds" => seeds = arguments.next().ok_or("how many seeds?")?.parse()?,
            "--first" => first = arguments.next().ok_or("which seed?")?.parse()?,
            "--only" => {
                let names = arguments.next().ok_or("which controllers?")?;
                only = names.split(',').map(String::from).collect();
            }
            "--course" => course = true,
            file => files.push(file.to_owned()),
        }
    }
    println!("| scenario | controller | seconds | goodput | latency | admitted | limit | missed |");
    println!("|---|---|---|---|---|---|---|---|");
    for file in files {
        let scenario = Scenario::parse(&std::fs::read_to_string(&file)?)?;
        for controller in &only {
            let runs: Vec<Run> = (first..first + seeds)
                .map(|seed| run(&scenario, controller, seed))
                .collect();
            print(&scenario.name, controller, &runs);
            if course {
                for (number, second) in runs[0].course.iter().enumerate() {
                    let (milliseconds, decision) = (second.latency * 1e3, second.decision);
                    println!(
                        "{number} limit {} served {} latency {milliseconds:.1} ms, {:?}, capacity {:.0}, base {:.1} ms",
                        second.limit,
                        second.served,
                        decision.phase,
                        decision.capacity,
                        decision.base * 1e3
                    );
                }
            }
        }
    }
    Ok(())
}

fn print(scenario: &str, controller: &str, runs: &[Run]) {
    for number in 0..scenario_checks(runs) {
        let all: Vec<Measured> = runs.iter().map(|run| run.checks[number]).collect();
        let least = |of: fn(&Measured) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&Measured) -> f64| all.iter().map(of).fold(0.0, f64::max);
        let missed = all.iter().filter(|one| !one.misses().is_empty()).count();
        let check = &scenario_span(&all[0], runs);
        println!(
            "| {scenario} | {controller} | {check} | {:.1} % | {:.2} x | {:.2} % | {:.0} to {:.0} | {missed} |",
            100.0 * least(|one| one.goodput),
            most(|one| one.latency),
            100.0 * least(|one| one.admitted),
            least(|one| one.limit),
            most(|one| one.limit),
        );
    }
}

fn scenario_checks(runs: &[Run]) -> usize {
    runs.first().map_or(0, |run| run.checks.len())
}

fn scenario_span(one: &Measured, _: &[Run]) -> String {
    format!("{:.0} to {:.0}", one.check.from, one.check.to)
}
