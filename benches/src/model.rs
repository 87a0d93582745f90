//! What to expect on many cores: a [model](simulation) with the costs of this machine, compared
//! with measurements on one and two cores.

pub(crate) mod simulation;

use core::array;
use core::fmt::Write as _;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;
use serde::{Deserialize, Serialize};

use self::simulation::{Costs, Line, Outcome, Step, simulate};
use crate::measure::{Contest, Contestant, Expected, Plan};
use crate::row::Spread;
use crate::rows::{concurrency, slice, striped_bucket, token_bucket};

/// Numbers of cores for which the table has a column.
const COLUMNS: [usize; 4] = [2, 8, 64, 192];
/// Numbers of cores for which the chart has a point.
pub(crate) const POINTS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 192];

/// The stripes of a bucket: the largest number, since the model has up to 192 cores.
const STRIPES: usize = 64;

/// An algorithm.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    contestant: fn() -> Contestant,
    /// The program of one operation. The argument is the time beside the atomic operations, as
    /// measured on one thread.
    program: fn(f64) -> Vec<Step>,
}

/// Our algorithms and the peers'. The programs follow the sources.
pub(crate) const SUBJECTS: [Subject; 9] = [
    Subject {
        name: "floor",
        contestant: Contestant::floor,
        program: |work| vec![Read(Shared), Work(work), Exchange(Shared, 0)],
    },
    Subject {
        name: "token bucket",
        contestant: token_bucket::allow_ours,
        program: one_word,
    },
    Subject {
        name: "governor",
        contestant: token_bucket::governor_fake_clock,
        program: one_word,
    },
    Subject {
        name: "concurrency",
        contestant: concurrency::ours,
        program: |work| [one_word(work), vec![Add(Shared)]].concat(),
    },
    Subject {
        name: "tokio semaphore",
        contestant: concurrency::tokio,
        // The release locks the list of waiters, which is in the line of the permits.
        program: |work| {
            let release = [Lock(Shared), Work(work / 2.0), Add(Shared), Unlock(Shared)];
            [one_word(work / 2.0), release.to_vec()].concat()
        },
    },
    Subject {
        name: "mutex",
        contestant: token_bucket::mutex,
        program: |work| vec![Lock(Shared), Work(work), Unlock(Shared)],
    },
    Subject {
        name: "striped bucket, a draw in 64",
        contestant: striped_bucket::ours,
        program: |work| striped(work, 64),
    },
    Subject {
        name: "striped bucket, a draw in 4,096",
        contestant: striped_bucket::ours,
        program: |work| striped(work, 4_096),
    },
    Subject {
        name: "slices, a draw in 1,024",
        contestant: slice::ours,
        program: |work| {
            let draw = one_word(0.0);
            [vec![Work(work), Seldom(slice::SIZE)], draw].concat()
        },
    },
];

use Line::{Shared, Stripe};
use Step::{Add, Exchange, Lock, Read, Seldom, Unlock, Work};

/// A read, a decision, and a compare-exchange, which decides again if it fails.
fn one_word(work: f64) -> Vec<Step> {
    vec![Read(Shared), Work(work), Exchange(Shared, 1)]
}

/// The same on a stripe, and seldom on the shared line as well.
fn striped(work: f64, seldom: u32) -> Vec<Step> {
    let take = vec![
        Read(Stripe(STRIPES)),
        Work(work),
        Exchange(Stripe(STRIPES), 1),
        Seldom(seldom),
    ];
    [take, one_word(work)].concat()
}

/// What was measured on one machine, in nanoseconds.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) costs: Costs,
    /// One operation of each subject with one and two threads, as each thread sees it.
    pub(crate) nanos: Vec<[f64; 2]>,
}

impl Measured {
    /// Measures the costs and all subjects, and prints them.
    pub(crate) fn new(plan: &Plan) -> Self {
        let measure = |name, contestant: fn() -> Contestant, threads| {
            let contest = Contest {
                row: name,
                threads,
                expected: Expected::Granted,
                ours: contestant(),
                peers: vec![],
            };
            let rows = contest.hold(plan);
            let nanos = rows.first().map_or(0.0, |row| row.ours_ns);
            println!("{name:<32} {threads:>7} {nanos:>9.2}");
            nanos
        };
        let atomic = measure("add", add, 1);
        let contended = (0..5).map(|_| measure("add", add, 2));
        let contended = Spread::of(contended.collect()).median;
        // Each thread waits for the other once. Other load on the machine only makes that longer.
        let shortest = (0..5).map(|_| measure("turns", turns, 2));
        let stay = shortest.fold(f64::INFINITY, f64::min) / 2.0;
        // Two stays pass from one operation of a core to the first one of its next stay.
        let keep = (2.0 * stay / contended * atomic).clamp(atomic, stay);
        let nanos = SUBJECTS
            .iter()
            .map(|subject| [1, 2].map(|threads| measure(subject.name, subject.contestant, threads)))
            .collect();
        Self {
            costs: Costs {
                atomic,
                transfer: stay - keep,
                keep,
            },
            nanos,
        }
    }

    /// Returns the medians of several results.
    pub(crate) fn median_of(results: &[Self]) -> Self {
        let median = |number: &dyn Fn(&Self) -> f64| {
            let numbers = results.iter().map(number).collect();
            Spread::of(numbers).median
        };
        Self {
            costs: Costs {
                atomic: median(&|one| one.costs.atomic),
                transfer: median(&|one| one.costs.transfer),
                keep: median(&|one| one.costs.keep),
            },
            nanos: (0..SUBJECTS.len())
                .map(|at| [0, 1].map(|place| median(&|one| one.nanos[at][place])))
                .collect(),
        }
    }

    /// Returns what to expect of a subject.
    pub(crate) fn predict(&self, subject: usize, cores: usize) -> Outcome {
        let program = SUBJECTS[subject].program;
        let is_atomic = |step: &&Step| matches!(step, Add(_) | Exchange(..) | Lock(_) | Unlock(_));
        let always = program(0.0);
        let always = always.split(|step| matches!(step, Seldom(_))).next();
        let atomics = always.map_or(0, |steps| steps.iter().filter(is_atomic).count());
        let work = self.nanos[subject][0] - atomics as f64 * self.costs.atomic;
        let program = program(work.max(0.0));
        let seldom = program.iter().find_map(|step| match step {
            Seldom(times) => Some(u64::from(*times)),
            _ => None,
        });
        let runs = 4 * seldom.unwrap_or(500);
        simulate(self.costs, &program, cores, runs * cores as u64)
    }

    /// Returns the table of the document.
    pub(crate) fn table(&self) -> String {
        let Costs {
            atomic,
            transfer,
            keep,
        } = self.costs;
        let mut table = format!(
            "With an atomic operation of {atomic:.1} ns, a transfer of {transfer:.0} ns, and a stay \
             of {keep:.0} ns:\n\n\
             | nanoseconds for each operation | 1 core, measured | 2, measured | 2, predicted | 8 | \
             64 | 192 | transfers for each, at 64 |\n|---|---|---|---|---|---|---|---|\n"
        );
        for (at, (subject, [alone, two])) in SUBJECTS.iter().zip(&self.nanos).enumerate() {
            let predicted = COLUMNS.map(|cores| self.predict(at, cores));
            let cells = predicted.map(|outcome| rounded(outcome.nanos)).join(" | ");
            writeln!(
                table,
                "| {} | {} | {} | {cells} | {:.3} |",
                subject.name,
                rounded(*alone),
                rounded(*two),
                predicted[2].transfers
            )
            .expect("a string accepts text");
        }
        table
    }
}

/// Three digits, or a whole number.
fn rounded(nanos: f64) -> String {
    match nanos {
        ..10.0 => format!("{nanos:.2}"),
        10.0..100.0 => format!("{nanos:.1}"),
        100.0..10_000.0 => format!("{nanos:.0}"),
        _ => format!("{:.0},{:03.0}", (nanos / 1_000.0).floor(), nanos % 1_000.0),
    }
}

/// An atomic operation that always succeeds, on one word.
fn add() -> Contestant {
    let word = CachePadded::new(AtomicU64::new(0));
    Contestant::new("add", move |_, operations| {
        for _ in 0..operations {
            word.fetch_add(1, Relaxed);
        }
        operations
    })
}

/// Two threads that change one word in turn, by a compare-exchange that they repeat until it
/// succeeds.
fn turns() -> Contestant {
    let word = CachePadded::new(AtomicU64::new(0));
    let next: [_; 2] = array::from_fn(|thread| CachePadded::new(AtomicU64::new(thread as u64)));
    Contestant::new("turns", move |thread, operations| {
        let mut turn = next[thread].fetch_add(2 * operations, Relaxed);
        for _ in 0..operations {
            while word
                .compare_exchange_weak(turn, turn + 1, Relaxed, Relaxed)
                .is_err()
            {}
            turn += 2;
        }
        operations
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../../docs/many_cores.json");
    const DOCUMENT: &str = include_str!("../../docs/benchmarks.md");

    fn measured() -> Measured {
        serde_json::from_str(MEASURED).expect("what `--model --json` writes")
    }

    #[test]
    fn the_table_of_the_document_is_that_of_the_measurements() {
        let table = measured().table();
        assert!(
            DOCUMENT.contains(&table),
            "docs/benchmarks.md lacks:\n{table}"
        );
    }

    #[test]
    fn the_model_predicts_two_threads_within_a_factor_of_one_and_a_half() {
        let measured = measured();
        for (at, (subject, [alone, two])) in SUBJECTS.iter().zip(&measured.nanos).enumerate() {
            // The draws of stripes and slices come on top of the time on one thread.
            let one = measured.predict(at, 1).nanos / alone;
            assert!(
                (0.95..1.1).contains(&one),
                "{}: {one} on one core",
                subject.name
            );
            let both = measured.predict(at, 2).nanos / two;
            assert!(
                (0.66..1.5).contains(&both),
                "{}: {both} on two",
                subject.name
            );
        }
    }
}
