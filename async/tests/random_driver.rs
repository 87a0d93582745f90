//! A random driver of the queues: steps of one thread, drawn from a seed, on an exact virtual time.
//! The invariants are checked after each step.
//!
//! The thread plays several contexts. The clock, the limiter and the lock admit other contexts at
//! the moments at which another thread or an interrupt could come. Wakers use the queue. Wakers,
//! limiters, hooks, clocks and timers panic. The guarantees of a queue are compared with the
//! reports of its limiters, with exact arithmetic over every window, and with an account of all
//! leases.
//!
//! A failure names the run that shows it. Environment variables, read at run time:
//!
//! - `PORTCULLIS_RANDOM=kind:seed`: only that run, with all of its events;
//! - `PORTCULLIS_RANDOM_WITHOUT=name,...`: without some of the operations, by the names in
//!   `world.rs`;
//! - `PORTCULLIS_RANDOM_SURVEY=1`: continues after a failure, and counts the failures of each kind;
//! - `PORTCULLIS_RANDOM_STEPS=n`: the number of steps of the soak.
//!
//! Under `AddressSanitizer`:
//!
//! ```text
//! RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 cargo test \
//!     -p portcullis-async --features shedding --test random_driver \
//!     --target x86_64-unknown-linux-gnu
//! ```

#[path = "random_driver/chance.rs"]
mod chance;
#[path = "random_driver/fairness.rs"]
mod fairness;
#[path = "random_driver/parts.rs"]
mod parts;
#[path = "random_driver/subject.rs"]
mod subject;
#[path = "random_driver/world.rs"]
mod world;

use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Once;
use std::thread;

use portcullis_core::AllOf;
use subject::{Bucket, Line1, Lines, Permits, Plain, Rates, Tallied, Window, WithinTotal};
use world::{Config, Seen, run};

type Run = fn(Config) -> Result<Seen, String>;

/// The queues that are driven, by name.
const KINDS: [(&str, Run); 13] = [
    ("permits", |config| run(Line1::<Plain>::new, config)),
    ("bucket", |config| run(Line1::<Bucket>::new, config)),
    ("window", |config| run(Line1::<Window>::new, config)),
    ("bucket-and-permits", |config| {
        run(Line1::<AllOf<(Bucket, Plain)>>::new, config)
    }),
    ("permits-and-window", |config| {
        run(Line1::<AllOf<(Plain, Window)>>::new, config)
    }),
    ("two-buckets", |config| {
        run(Line1::<AllOf<(Bucket, Bucket)>>::new, config)
    }),
    ("permits-by-key", |config| {
        run(Lines::<Permits>::new, config)
    }),
    ("rates-by-key", |config| run(Lines::<Rates>::new, config)),
    ("counted-permits", |config| {
        run(Line1::<Tallied<Plain>>::new, config)
    }),
    ("counted-bucket", |config| {
        run(Line1::<Tallied<Bucket>>::new, config)
    }),
    ("counted-bucket-and-permits", |config| {
        run(Line1::<Tallied<AllOf<(Bucket, Plain)>>>::new, config)
    }),
    ("permits-by-key-and-total", |config| {
        run(WithinTotal::<Plain>::new, config)
    }),
    ("permits-by-key-and-total-rate", |config| {
        run(WithinTotal::<Bucket>::new, config)
    }),
];

thread_local! {
    /// The command that repeats the current run.
    static CURRENT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes a panic that was not injected name the run, also one that aborts the program.
fn name_runs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            _ = CURRENT.try_with(|current| eprintln!("in the run {}", current.borrow()));
        }));
    });
}

fn one_run(kind: usize, seed: u64) -> Result<Seen, String> {
    let (name, run) = KINDS[kind];
    name_runs();
    chance::seed(seed ^ (kind as u64) << 56);
    CURRENT.with_borrow_mut(|current| *current = format!("PORTCULLIS_RANDOM={name}:{seed}"));
    let mut config = Config::draw();
    if asked_for().is_some() {
        config.shows = usize::MAX;
    }
    run(config).map_err(|what| {
        format!(
            "{what}once more: PORTCULLIS_RANDOM={name}:{seed} cargo test -p portcullis-async \
             --test random_driver"
        )
    })
}

/// The kind and the seed of the single run that is requested.
fn asked_for() -> Option<(String, u64)> {
    let asked = std::env::var("PORTCULLIS_RANDOM").ok()?;
    let (kind, seed) = asked.split_once(':').expect("kind:seed");
    Some((kind.into(), seed.parse().expect("the seed is a number")))
}

/// Failures of one kind: the count, and the first one's seed and number of steps before it.
type Failures = BTreeMap<String, (u64, u64, u64)>;

/// Drives at least `steps` steps of one kind; each run has a seed of its own, from `first` on.
fn drive(kind: usize, steps: u64, first: u64) -> Seen {
    let (name, _) = KINDS[kind];
    if let Some((asked, seed)) = asked_for() {
        if asked != name {
            return Seen::default();
        }
        return one_run(kind, seed).unwrap_or_else(|what| panic!("{what}"));
    }
    let surveys = std::env::var_os("PORTCULLIS_RANDOM_SURVEY").is_some();
    let (mut seen, mut failures) = (Seen::default(), Failures::new());
    let mut seed = first;
    while seen.steps < steps {
        match one_run(kind, seed) {
            Ok(run) => seen.add(run),
            Err(what) => {
                assert!(surveys, "after {} steps: {what}", seen.steps);
                // The same failure, except for its numbers.
                let line = what.lines().next().unwrap_or_default();
                let line = line.replace(|char: char| char.is_ascii_digit(), "");
                let (times, ..) = failures.entry(line).or_insert((0, seed, seen.steps));
                *times += 1;
                seen.steps += 1;
            }
        }
        seed += 1;
    }
    for (what, (times, seed, steps)) in &failures {
        println!("{name}: {times} x {what}: first after {steps} steps, seed {seed}");
    }
    seen
}

/// The steps of an ordinary test run, over all kinds.
const STEPS: u64 = 1_000_000;

fn drive_all(kinds: &[&str]) {
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        if kinds.contains(name) {
            println!("{name}: {:?}", drive(kind, STEPS / KINDS.len() as u64, 0));
        }
    }
}

#[test]
fn queues_around_permits() {
    drive_all(&["permits", "permits-by-key"]);
}

#[test]
fn queues_of_keys_with_a_total() {
    drive_all(&["permits-by-key-and-total", "permits-by-key-and-total-rate"]);
}

#[test]
fn queues_around_rates() {
    drive_all(&["bucket", "window"]);
}

#[test]
fn queues_around_permits_and_rates() {
    drive_all(&["bucket-and-permits", "permits-and-window"]);
}

#[test]
fn queues_around_several_rates() {
    drive_all(&["two-buckets", "rates-by-key"]);
}

#[test]
fn queues_around_counted_limits() {
    drive_all(&[
        "counted-permits",
        "counted-bucket",
        "counted-bucket-and-permits",
    ]);
}

/// The number of shares of each kind, so that all threads are busy until the end.
const SHARES: u64 = 8;

/// Other seeds than those of the tests.
const SOAKED: u64 = 1 << 32;

#[test]
#[ignore = "takes minutes: for soak"]
fn soak() {
    let steps = std::env::var("PORTCULLIS_RANDOM_STEPS").ok();
    let steps = steps.map_or(100_000_000, |steps| {
        steps.parse().expect("the steps are a number")
    });
    let next = AtomicU64::new(0);
    let shares = SHARES * KINDS.len() as u64;
    let seen = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = [Seen::default(); KINDS.len()];
                    loop {
                        let share = next.fetch_add(1, Ordering::Relaxed);
                        if share >= shares {
                            return seen;
                        }
                        let kind = share as usize % KINDS.len();
                        seen[kind].add(drive(kind, steps / shares, SOAKED * (1 + share)));
                    }
                })
            })
            .collect();
        let mut all = [Seen::default(); KINDS.len()];
        for thread in threads {
            let seen = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (all, seen) in all.iter_mut().zip(seen) {
                all.add(seen);
            }
        }
        all
    });
    for ((name, _), seen) in KINDS.iter().zip(seen) {
        println!("{name}: {seen:?}");
    }
}
