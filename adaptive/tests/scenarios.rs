//! Every scenario of `adaptive/scenarios`, with 20 seeds: the worst counts.

use portcullis_adaptive::Knee;
use portcullis_adaptive::simulate::Scenario;
use std::sync::Mutex;
use std::thread;

const SEEDS: u64 = 20;

/// What the default controller does not reach with every seed, by the names of the files.
const MISSED: [&str; 16] = [
    "batches",
    "batches_free",
    "bimodal",
    "capacity_up",
    "critical_100",
    "critical_110",
    "latency_times_four",
    "limiters_4",
    "limiters_8",
    "on_off",
    "one_worker",
    "overload_long",
    "overload_step",
    "ramp",
    "start_high",
    "start_low",
];

fn scenarios() -> Vec<(String, Scenario)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let scenario = Scenario::parse(&std::fs::read_to_string(&path).unwrap());
            (name, scenario.unwrap())
        })
        .collect();
    all.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    all
}

#[test]
fn the_default_controller_reaches_every_range_with_every_seed() {
    let scenarios = scenarios();
    assert!(scenarios.len() > 25, "{}", scenarios.len());
    let (next, missed) = (Mutex::new(scenarios.iter()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let taken = next.lock().unwrap().next();
            let Some((name, scenario)) = taken else {
                return;
            };
            for seed in 1..=SEEDS {
                let run = scenario.run(&Knee::new(), seed);
                let misses = run.checks.iter().filter(|check| !check.misses().is_empty());
                let mut missed = missed.lock().unwrap();
                missed.extend(misses.map(|check| (name.clone(), seed, check.misses(), *check)));
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let missed = missed.into_inner().unwrap();
    let unexpected = missed
        .iter()
        .filter(|(name, ..)| !MISSED.contains(&&**name));
    let unexpected: Vec<_> = unexpected.collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

#[test]
fn a_seed_repeats_its_run() {
    let (_, scenario) = scenarios().pop().unwrap();
    let runs = [(); 2].map(|()| format!("{:?}", scenario.run(&Knee::new(), 7)));
    assert_eq!(runs[0], runs[1]);
}

#[test]
fn a_scenario_names_the_key_that_is_wrong() {
    let good = "name = \"x\"\nseconds = 1\n[[span]]\nload = 1\nworkers = 1\nservice.fixed = 1";
    assert!(Scenario::parse(good).is_ok());
    for (text, message) in [
        (
            good.replace("load = 1\n", ""),
            "`load` of `span` is missing",
        ),
        (good.replace("load", "lode"), "`load` of `span` is missing"),
        (
            format!("{good}\nworker = 2"),
            "`worker` of `span` is unknown",
        ),
        (
            good.replace("fixed = 1", "fixed = 0"),
            "`service`: times must be above 0",
        ),
        (
            good.replace("load = 1\n", "load = nan\n"),
            "`load` of `span` must be a number",
        ),
        (
            format!("{good}\n[[check]]\nfrom = 2\nto = 1"),
            "`check`: `from` must be before `to`",
        ),
    ] {
        let error = Scenario::parse(&text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
