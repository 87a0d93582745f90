//! Replays the corpora, and mutations of them, on any toolchain.

use std::fs;
use std::path::Path;

use portcullis_fuzz::mutations::{Random, mutated};
use portcullis_fuzz::targets::{TARGETS, Target};

/// Returns the inputs of a target, in the order of their names.
fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|_| panic!("no {}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let input = |file: &std::path::PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read(file).unwrap())
    };
    files.iter().map(input).collect()
}

/// Prints an input when the target has panicked.
struct Shown<'a>(&'a str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} failed on \"{}\"", self.0, self.1.escape_ascii());
        }
    }
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let inputs = corpus(target);
    assert!(inputs.len() >= 3, "{name}: {} inputs", inputs.len());
    for (_, input) in &inputs {
        let _shown = Shown(name, input);
        (target.run)(input);
    }
    // `PORTCULLIS_FUZZ_CASES` sets how many mutations of all inputs together are tried.
    let cases = std::env::var("PORTCULLIS_FUZZ_CASES");
    let cases = cases.map_or(target.cases, |cases| cases.parse().unwrap());
    let mut random = Random::new(1);
    for case in 0..cases {
        let (_, input) = &inputs[case % inputs.len()];
        let (_, other) = &inputs[random.below(inputs.len())];
        let input = mutated(input, other, &mut random);
        let _shown = Shown(name, &input);
        (target.run)(&input);
    }
}

macro_rules! replays {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            replay(stringify!($name));
        }
    )*

    #[test]
    fn every_target_has_a_replay_a_program_and_a_corpus() {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names, [$(stringify!($name)),*]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let names_in = |folder: &str| {
            let entries = fs::read_dir(root.join(folder)).unwrap();
            let files = entries.map(|entry| entry.unwrap().path());
            let mut names: Vec<_> = files
                .map(|file| file.file_stem().unwrap().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        let mut sorted = names;
        sorted.sort_unstable();
        assert_eq!(names_in("corpus"), sorted);
        assert_eq!(names_in("fuzz_targets"), sorted);
    }};
}

replays! {
    policy_toml,
    policy_json,
    ocelot,
    ocelot_folder,
    ats,
    limits,
    requests,
    log_formats,
    log_lines,
    limit_fields,
    forwarded,
    checks,
    descriptors,
    shared_files,
    lease_ids,
}

#[test]
fn mutations_are_the_same_from_the_same_seed() {
    let all = |seed| {
        let mut random = Random::new(seed);
        let one = |_| mutated(b"one input", b"and another", &mut random);
        (0..100).map(one).collect::<Vec<_>>()
    };
    assert_eq!(all(7), all(7));
    assert_ne!(all(7), all(8));
}
