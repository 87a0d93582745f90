//! The tables, computed by exact models without words or wrapping ticks, in 128 bits, one request
//! after the other; and the checks of all boards, on the host.
//!
//! With `BLESS=1` the tables are written again.

use std::cell::Cell;
use std::fmt::{self, Write};
use std::fs;

use portcullis_checks::{Board, Draws, Row, Tally, limiters};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// An ideal limiter.
trait Model {
    /// What is available, at any time not older than the newest.
    fn has(&self, at: u64) -> u64;
    fn take(&mut self, at: u64, n: u64);
    /// A request that a full limiter could grant has been denied. Returns whether that was
    /// recorded.
    fn deny(&mut self, _at: u64) -> bool {
        false
    }
    fn capacity(&self) -> u64;
    /// Interesting times between requests.
    fn grain(&self) -> u64;
}

/// A continuous bucket. The level is in parts; a permit has as many as the period has nanoseconds.
/// Time is counted in whole ticks.
struct Bucket {
    permits: u64,
    period: u64,
    burst: u64,
    tick: u64,
    level: u128,
    newest: u64,
}

impl Bucket {
    fn new(permits: u64, period: u64, burst: u64, initial: u64, tick: u64) -> Self {
        Self {
            permits,
            period,
            burst,
            tick,
            level: u128::from(initial) * u128::from(period),
            newest: 0,
        }
    }

    fn level(&self, at: u64) -> u128 {
        let passed = at / self.tick * self.tick - self.newest;
        let full = u128::from(self.burst) * u128::from(self.period);
        full.min(self.level + u128::from(passed) * u128::from(self.permits))
    }
}

impl Model for Bucket {
    fn has(&self, at: u64) -> u64 {
        (self.level(at) / u128::from(self.period)) as u64
    }

    fn take(&mut self, at: u64, n: u64) {
        self.level = self.level(at) - u128::from(n) * u128::from(self.period);
        self.newest = at / self.tick * self.tick;
    }

    fn capacity(&self) -> u64 {
        self.burst
    }

    fn grain(&self) -> u64 {
        self.period / self.permits
    }
}

/// Windows on a grid.
struct Grid {
    limit: u64,
    length: u64,
    index: u64,
    used: u64,
}

impl Model for Grid {
    fn has(&self, at: u64) -> u64 {
        if at / self.length > self.index {
            self.limit
        } else {
            self.limit - self.used
        }
    }

    fn take(&mut self, at: u64, n: u64) {
        self.used = self.limit - self.has(at) + n;
        self.index = at / self.length;
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn grain(&self) -> u64 {
        self.length / self.limit
    }
}

/// Windows that a request starts, rounded up to ticks; with a wait after one is exceeded.
struct Started {
    limit: u64,
    length: u64,
    tick: u64,
    wait: Option<u64>,
    /// The end of the window or the wait.
    end: u64,
    used: u64,
    waits: bool,
}

impl Started {
    fn ends(&self, at: u64, after: u64) -> u64 {
        (at.div_ceil(self.tick) + after.div_ceil(self.tick)) * self.tick
    }
}

impl Model for Started {
    fn has(&self, at: u64) -> u64 {
        match () {
            () if at >= self.end => self.limit,
            () if self.waits => 0,
            () => self.limit - self.used,
        }
    }

    fn take(&mut self, at: u64, n: u64) {
        if at >= self.end {
            (self.end, self.used, self.waits) = (self.ends(at, self.length), 0, false);
        }
        self.used += n;
    }

    fn deny(&mut self, at: u64) -> bool {
        if let Some(wait) = self.wait
            && !self.waits
        {
            (self.end, self.waits) = (self.ends(at, wait), true);
        }
        self.wait.is_some()
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn grain(&self) -> u64 {
        self.length / self.limit
    }
}

/// The grants of the last segments.
struct Sliding {
    limit: u64,
    length: u64,
    segments: u64,
    /// How many segments count together.
    counted: u64,
    grants: Vec<(u64, u64)>,
}

impl Sliding {
    fn segment(&self, at: u64) -> u64 {
        (u128::from(at) * u128::from(self.segments) / u128::from(self.length)) as u64
    }
}

impl Model for Sliding {
    fn has(&self, at: u64) -> u64 {
        let now = self.segment(at);
        let counted = self
            .grants
            .iter()
            .filter(|(segment, _)| segment + self.counted > now);
        self.limit - counted.map(|(_, n)| n).sum::<u64>()
    }

    fn take(&mut self, at: u64, n: u64) {
        let segment = self.segment(at);
        self.grants.push((segment, n));
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn grain(&self) -> u64 {
        self.length / self.segments
    }
}

/// Denies for a time after a denial, rounded up to milliseconds.
struct Penalty<M>(M, u64, u64);

impl<M: Model> Model for Penalty<M> {
    fn has(&self, at: u64) -> u64 {
        if at < self.2 { 0 } else { self.0.has(at) }
    }

    fn take(&mut self, at: u64, n: u64) {
        self.0.take(at, n);
    }

    fn deny(&mut self, at: u64) -> bool {
        if at >= self.2 {
            self.2 = at.next_multiple_of(MS) + self.1;
        }
        true
    }

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn grain(&self) -> u64 {
        self.0.grain()
    }
}

/// Two limiters that must both grant.
struct Both<A, B>(A, B);

impl<A: Model, B: Model> Model for Both<A, B> {
    fn has(&self, at: u64) -> u64 {
        self.0.has(at).min(self.1.has(at))
    }

    fn take(&mut self, at: u64, n: u64) {
        self.0.take(at, n);
        self.1.take(at, n);
    }

    fn capacity(&self) -> u64 {
        self.0.capacity().min(self.1.capacity())
    }

    fn grain(&self) -> u64 {
        self.0.grain()
    }
}

/// The earliest time at which `n` are available.
fn retry(model: &dyn Model, at: u64, n: u64) -> u64 {
    let (mut early, mut enough) = (at, at + 3_600 * SECOND);
    assert!(model.has(early) < n && model.has(enough) >= n);
    while enough - early > 1 {
        let middle = u64::midpoint(early, enough);
        if model.has(middle) >= n {
            enough = middle;
        } else {
            early = middle;
        }
    }
    enough
}

/// The answers to some hundred requests, among them some just before and at the retry times of
/// denials.
fn table(model: &mut dyn Model, seed: u64, from: u64) -> Vec<Row> {
    let (mut draws, mut rows, mut now, mut newest) = (Draws(seed), Vec::new(), from, from);
    let (grain, capacity) = (model.grain(), model.capacity());
    let mut retries: Option<(u64, u64)> = None;
    let mut notes_denials = false;
    while rows.len() < 70 {
        let mut n = 1 + draws.below(3);
        match (retries.take(), draws.below(16)) {
            (Some((at, wanted)), draw) if draw < 12 && at > now => {
                (now, n) = (if draw % 2 == 0 { at } else { at - 1 }, wanted);
                retries = (draw % 2 == 1).then_some((at, wanted));
            }
            (_, 0..8) => now += draws.below(2 * grain),
            (_, 8..10) => {}
            (_, 10) => now += draws.below(2 * capacity * grain),
            (_, 11) => now += draws.below(20 * capacity * grain),
            (_, 12) => n = capacity + 1 + draws.below(9),
            (_, 13) => n = 0,
            (_, 14) => n = model.has(now.max(newest)).max(1),
            _ if newest > from + grain && model.has(newest) < capacity => {
                // After the newest grant, at an earlier time: never more than that is reported.
                // (The effects of a denial at such a time are not compared.)
                if !notes_denials {
                    let has = model.has(newest) as u32;
                    rows.push(Row::Late(newest - 1 - draws.below(grain), has + 1, has));
                }
                continue;
            }
            _ => continue,
        }
        let (has, wanted) = (model.has(now), n.max(1));
        let row = |make: fn(u64, u32, u32) -> Row| make(now, n as u32, has as u32);
        rows.push(if n > capacity {
            row(Row::Never)
        } else if wanted <= has {
            if n > 0 {
                model.take(now, n);
                newest = now;
            }
            row(Row::Granted)
        } else {
            if n > 0 {
                notes_denials = model.deny(now);
            }
            let at = retry(model, now, wanted);
            retries = retries.or(Some((at, wanted)));
            Row::Denied(now, n as u32, has as u32, at)
        });
    }
    rows
}

fn tables() -> Vec<(&'static str, Vec<Row>)> {
    let bucket = |tick| Bucket::new(10, SECOND, 5, 5, tick);
    let grid = |limit| Grid {
        limit,
        length: SECOND,
        index: 0,
        used: 0,
    };
    let started = |tick, wait| Started {
        limit: 5,
        length: SECOND,
        tick,
        wait,
        end: 0,
        used: 0,
        waits: false,
    };
    let sliding = |segments, counted| Sliding {
        limit: 10,
        length: SECOND,
        segments,
        counted,
        grants: vec![],
    };
    let micro = 1_000;
    let models: Vec<Box<dyn Model>> = vec![
        Box::new(bucket(micro)),
        Box::new(Bucket::new(7, 3 * SECOND, 20, 3, MS)),
        Box::new(Bucket::new(3, SECOND, 8, 0, SECOND)),
        Box::new(bucket(MS)),
        Box::new(bucket(MS)),
        Box::new(grid(5)),
        Box::new(started(10 * MS, None)),
        Box::new(grid(5)),
        Box::new(sliding(8, 8)),
        Box::new(sliding(4, 5)),
        Box::new(started(MS, Some(1_500 * MS))),
        Box::new(bucket(micro)),
        Box::new(bucket(micro)),
        Box::new(Penalty(grid(5), 1_500 * MS, 0)),
        Box::new(Both(bucket(micro), grid(7))),
    ];
    let named = limiters::all().map(|(name, _)| name);
    assert_eq!(models.len(), named.len());
    let mut seed = 0;
    named
        .into_iter()
        .zip(models)
        .map(|(name, mut model)| {
            seed += 1;
            (name, table(&mut *model, seed, SECOND))
        })
        .collect()
}

#[test]
fn the_tables_are_the_answers_of_the_models() {
    let mut text = String::new();
    for (name, rows) in tables() {
        let has = |kind: fn(&Row) -> bool| rows.iter().filter(|row| kind(row)).count();
        assert!(has(|row| matches!(row, Row::Granted(..))) > 20, "{name}");
        assert!(has(|row| matches!(row, Row::Denied(..))) > 10, "{name}");
        writeln!(text, "    (\n        {name:?},\n        &[").unwrap();
        for row in rows {
            writeln!(text, "            {row:?},").unwrap();
        }
        writeln!(text, "        ],\n    ),").unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tables.rs");
    let committed = fs::read_to_string(path).unwrap();
    let (head, _) = committed.split_once("&[(&str, &[Row])] = &[").unwrap();
    let expected = format!("{head}&[(&str, &[Row])] = &[\n{text}];\n");
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, expected).unwrap();
    } else {
        assert!(
            committed == expected,
            "the tables are not those of the models: BLESS=1 writes them again"
        );
    }
}

/// A host has no interrupts: their handlers run when the program sleeps.
#[derive(Default)]
struct Host(Cell<Option<fn()>>);

impl Board for Host {
    fn print(&self, text: fmt::Arguments<'_>) {
        print!("{text}");
    }

    fn interrupt(&self, handler: fn()) {
        self.0.set(Some(handler));
    }

    fn sleep_until(&self, done: &dyn Fn() -> bool) {
        while !done() {
            self.0.take().expect("a handler is set before a sleep")();
        }
    }
}

#[test]
fn the_checks_of_the_boards_hold_on_the_host() {
    let (host, mut tally) = (Host::default(), Tally::default());
    portcullis_checks::run(&host, &mut tally);
    portcullis_checks::run_tables(&host, &mut tally);
    portcullis_checks::run_wrappers(&host, &mut tally);
    assert!(tally.close(&host));
}
