//! Runs a contest: the floor, ours and each peer in turn, repeatedly.

use core::cell::LazyCell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Barrier;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use crate::row::{Row, Spread};

/// The amount of measurement.
pub(crate) struct Plan {
    /// The number of runs of each contestant. With an odd number, one run is the median.
    runs: usize,
    /// The target duration of one run.
    run: Duration,
}

impl Plan {
    pub(crate) const FULL: Self = Self {
        runs: 15,
        run: Duration::from_millis(40),
    };
    pub(crate) const QUICK: Self = Self {
        runs: 5,
        run: Duration::from_millis(15),
    };
    /// Runs that are shorter than the time for which a thread has its core, on a machine with other
    /// load.
    pub(crate) const SHORT: Self = Self {
        runs: 151,
        run: Duration::from_millis(2),
    };
}

/// One implementation of the operation of a row.
pub(crate) struct Contestant {
    name: &'static str,
    /// Creates the contestant when the contest begins; it is dropped with the contest.
    ready: LazyCell<Ready, Box<dyn FnOnce() -> Ready>>,
    /// What is measured beside it, and subtracted: the operation without the limiter.
    base: Option<Box<Self>>,
}

/// A prepared contestant.
pub(crate) struct Ready {
    /// Performs a number of operations on thread number `.0`, and returns how many of them were
    /// granted.
    run: Box<dyn Fn(usize, u64) -> u64 + Sync>,
    note: Option<String>,
}

impl Ready {
    pub(crate) fn new(run: impl Fn(usize, u64) -> u64 + Sync + 'static) -> Self {
        Self {
            run: Box::new(run),
            note: None,
        }
    }

    /// Reports another number of grants.
    pub(crate) fn counting(self, count: fn(u64) -> u64) -> Self {
        let Self { run, note } = self;
        Self {
            run: Box::new(move |thread, operations| count(run(thread, operations))),
            note,
        }
    }

    /// Adds a remark for the report.
    pub(crate) fn noting(self, note: String) -> Self {
        Self {
            note: Some(note),
            ..self
        }
    }
}

impl Contestant {
    pub(crate) fn new(
        name: &'static str,
        run: impl Fn(usize, u64) -> u64 + Sync + 'static,
    ) -> Self {
        Self::prepared(name, || Ready::new(run))
    }

    /// A contestant whose set-up is deferred, because it takes time or memory.
    pub(crate) fn prepared(name: &'static str, prepare: impl FnOnce() -> Ready + 'static) -> Self {
        Self {
            name,
            ready: LazyCell::new(Box::new(prepare)),
            base: None,
        }
    }

    /// Returns the same contestant, of which the time is that beyond the time of `base`.
    pub(crate) fn beyond(self, base: Self) -> Self {
        Self {
            base: Some(Box::new(base)),
            ..self
        }
    }

    /// Returns the same contestant with another name.
    pub(crate) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// The floor: a load and a compare-exchange. No limiter that decides by one word can be faster.
    pub(crate) fn floor() -> Self {
        let word = CachePadded::new(AtomicU64::new(0));
        Self::new("floor", move |_, operations| {
            for _ in 0..operations {
                let mut value = word.load(Relaxed);
                while let Err(newer) =
                    word.compare_exchange_weak(value, value + 1, Relaxed, Relaxed)
                {
                    value = newer;
                }
            }
            operations
        })
    }
}

/// The required outcome of each operation. Otherwise the row would measure something else.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Expected {
    Granted,
    Denied,
    /// A limit under attack grants what comes in.
    Either,
}

/// A row: one operation, with our implementation and the peers'.
pub(crate) struct Contest {
    pub(crate) row: &'static str,
    pub(crate) threads: usize,
    pub(crate) expected: Expected,
    pub(crate) ours: Contestant,
    pub(crate) peers: Vec<Contestant>,
}

impl Contest {
    /// Measures, and returns one comparison per peer, or one without a peer.
    pub(crate) fn hold(self, plan: &Plan) -> Vec<Row> {
        let floor = Contestant::floor();
        let contestants: Vec<(&Contestant, Expected)> = [(&floor, Expected::Granted)]
            .into_iter()
            .chain(
                [&self.ours]
                    .into_iter()
                    .chain(&self.peers)
                    .map(|contestant| (contestant, self.expected)),
            )
            .collect();
        for (contestant, _) in &contestants {
            LazyCell::force(&contestant.ready);
            if let Some(base) = &contestant.base {
                LazyCell::force(&base.ready);
            }
        }
        // Determines the number of operations that fill one run. The first measurement warms up and
        // does not count.
        let operations: Vec<u64> = contestants
            .iter()
            .map(|(contestant, expected)| {
                let mut operations = 1_000;
                loop {
                    let taken = self.time(contestant, operations, *expected);
                    if taken * 4 > plan.run {
                        let scale = plan.run.as_secs_f64() / taken.as_secs_f64();
                        break ((operations as f64 * scale) as u64).max(1);
                    }
                    operations *= 4;
                }
            })
            .collect();
        let mut nanos = vec![Vec::with_capacity(plan.runs); contestants.len()];
        for _ in 0..plan.runs {
            for (((contestant, expected), &operations), nanos) in
                contestants.iter().zip(&operations).zip(&mut nanos)
            {
                let taken = self.time(contestant, operations, *expected);
                let mut taken = taken.as_nanos() as f64;
                if let Some(base) = &contestant.base {
                    let of_base = self.time(base, operations, Expected::Granted);
                    taken -= of_base.as_nanos() as f64;
                }
                nanos.push(taken / operations as f64);
            }
        }
        let spread: Vec<Spread> = nanos.into_iter().map(Spread::of).collect();
        let row = |peer: Option<(&Contestant, &Spread)>| {
            let of_peer = peer.and_then(|(peer, _)| Some((peer.name, peer.ready.note.as_ref()?)));
            let note = match (&self.ours.ready.note, of_peer) {
                (Some(ours), Some((name, theirs))) => Some(format!("{ours}; {name}: {theirs}")),
                (ours, _) => ours.clone(),
            };
            Row::new(
                (self.row, self.threads),
                &spread[0],
                &spread[1],
                peer.map(|(peer, spread)| (peer.name, spread)),
                plan.runs,
                note,
            )
        };
        if self.peers.is_empty() {
            return vec![row(None)];
        }
        self.peers
            .iter()
            .zip(&spread[2..])
            .map(|compared| row(Some(compared)))
            .collect()
    }

    /// Returns the time that `operations` per thread take, from the moment at which all threads
    /// have started.
    fn time(&self, contestant: &Contestant, operations: u64, expected: Expected) -> Duration {
        let &Self { row, threads, .. } = self;
        let (name, run) = (contestant.name, &contestant.ready.run);
        let check = |granted: u64| {
            let wanted = match expected {
                Expected::Granted => operations,
                Expected::Denied => 0,
                Expected::Either => return,
            };
            assert_eq!(granted, wanted, "{name} of {row} granted a wrong number");
        };
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let barrier = Barrier::new(threads);
        let work = |thread: usize| {
            if let Some(core) = cores.get(thread) {
                core_affinity::set_for_current(*core);
            }
            barrier.wait();
            let start = Instant::now();
            let granted = run(thread, operations);
            let taken = start.elapsed();
            check(granted);
            taken
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads)
                .map(|thread| scope.spawn(move || work(thread)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a contestant's check failed"))
                .max()
        })
        .unwrap_or_default()
    }
}
