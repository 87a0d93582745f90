//! The threads that hammer a limiter, and their records.

use core::hint;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::thread;

use portcullis_core::{Clock, Concurrency, LeasePool, MonotonicClock, Timestamp};

use super::bound::Record;

/// The number of threads, and the length of a trial.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hammer {
    /// The number of threads that ask at the same time.
    pub(crate) threads: u8,
    /// The time for which each limiter is asked.
    pub(crate) length: Duration,
}

/// The counts of all threads so far, for the display.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Requests that were admitted.
    pub(crate) admitted: AtomicU64,
    /// Requests that were denied.
    pub(crate) denied: AtomicU64,
    /// The duration in nanoseconds, set when all threads are done.
    pub(crate) elapsed: AtomicU64,
}

/// The number of requests that a thread makes before it yields: there may be more threads than
/// cores.
const BATCH: u32 = 256;

/// How stale the timestamps of one of the threads are: 10 ms.
const LATE: Timestamp = Timestamp::from_millis(10);

/// The most grants that a thread records. A limiter that grants more is broken, and these records
/// are enough to show it.
const MOST_RECORDS: usize = 1_000_000;

/// The state of one thread.
struct Thread<'a, R> {
    clock: &'a MonotonicClock,
    end: Timestamp,
    progress: &'a Progress,
    records: Vec<R>,
}

impl Hammer {
    /// Runs `work` on every thread, with the thread's number, and returns all their records.
    fn run<R: Send>(
        &self,
        clock: MonotonicClock,
        progress: &Progress,
        work: impl Fn(&mut Thread<'_, R>, u8) + Sync,
    ) -> Vec<R> {
        let start = clock.now();
        let end = start.saturating_add(self.length);
        let work = &work;
        let records = thread::scope(|scope| {
            let spawn = |number| {
                scope.spawn(move || {
                    let mut thread = Thread {
                        clock: &clock,
                        end,
                        progress,
                        records: Vec::new(),
                    };
                    work(&mut thread, number);
                    thread.records
                })
            };
            let threads: Vec<_> = (0..self.threads).map(spawn).collect();
            // A panic in a thread is a defect of the program and must not be hidden.
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        let elapsed = clock.now().as_nanos() - start.as_nanos();
        progress.elapsed.store(elapsed, Ordering::Relaxed);
        records
    }

    /// Calls `ask` for one permit at a time, of `N` keys in turn, with the key and the thread's
    /// `now`. Returns for each key the grants, with the instants that enclose the time at which
    /// each counts.
    pub(crate) fn admissions<const N: usize>(
        &self,
        progress: &Progress,
        ask: impl Fn(usize, Timestamp) -> bool + Sync,
    ) -> [Vec<Record>; N] {
        let clock = MonotonicClock::new();
        let newest = [const { AtomicU64::new(0) }; N];
        let granted = self.run(clock, progress, |thread, number| {
            let mut turn = usize::from(number);
            thread.until_the_end(|thread| {
                turn = turn.wrapping_add(1);
                let (key, newest) = (turn % N, &newest[turn % N]);
                // Acquire: pairs with the release below. Every published time was written to the
                // limiter before the request below.
                let written = newest.load(Ordering::Acquire);
                let mut now = clock.now();
                if number == 1 {
                    now = Timestamp::ZERO.saturating_add(now.saturating_since(LATE));
                }
                let admitted = ask(key, now);
                if admitted {
                    let to = clock.now().as_nanos();
                    newest.fetch_max(now.as_nanos(), Ordering::Release);
                    let from = now.as_nanos().max(written);
                    let permits = 1;
                    thread.records.push((key, Record { from, to, permits }));
                }
                admitted
            });
        });
        let mut records = [const { Vec::new() }; N];
        for (key, record) in granted {
            records[key].push(record);
        }
        records
    }

    /// Calls `ask` for one permit at a time, with the time, and records nothing.
    pub(crate) fn requests(&self, progress: &Progress, ask: impl Fn(Timestamp) -> bool + Sync) {
        let clock = MonotonicClock::new();
        self.run::<()>(clock, progress, |thread, _| {
            thread.until_the_end(|_| ask(clock.now()));
        });
    }

    /// Takes leases of one to three permits, and holds each for a moment. Records the time for
    /// which each lease was certainly held.
    pub(crate) fn leases(&self, limiter: &Concurrency, progress: &Progress) -> Vec<Record> {
        let clock = MonotonicClock::new();
        self.run(clock, progress, |thread, number| {
            let mut turn = u32::from(number);
            thread.until_the_end(|thread| {
                turn = turn.wrapping_add(1);
                let permits = 1 + turn % 3;
                let Ok(lease) = limiter.try_acquire(permits) else {
                    return false;
                };
                let from = clock.now().as_nanos();
                hold(turn);
                let to = clock.now().as_nanos();
                drop(lease);
                thread.records.push(Record { from, to, permits });
                true
            });
        })
    }

    /// Claims leases of one to three permits with a deadline. Some are released in time, some late,
    /// and some never. Each thread sweeps when it is denied. Records the time for which each lease
    /// was certainly held.
    pub(crate) fn claims<const N: usize>(
        &self,
        pool: &LeasePool<Concurrency, N>,
        progress: &Progress,
    ) -> Vec<Record> {
        let clock = MonotonicClock::new();
        self.run(clock, progress, |thread, number| {
            let mut turn = u32::from(number);
            thread.until_the_end(|thread| {
                turn = turn.wrapping_add(1);
                let permits = 1 + turn % 3;
                let deadline = clock.now().saturating_add(DEADLINE);
                let Ok(id) = pool.claim_at(clock.now(), permits, Some(deadline)) else {
                    pool.sweep(clock.now());
                    return false;
                };
                let from = clock.now().as_nanos();
                let to = if turn % 16 == 5 {
                    // The holder never releases: its permits cannot be reclaimed before the
                    // deadline.
                    deadline.as_nanos()
                } else {
                    hold(turn);
                    while turn % 16 == 11 && clock.now() <= deadline {
                        thread::yield_now();
                    }
                    let to = clock.now();
                    let released = pool.release(id);
                    let to = released.map_or(to.min(deadline), |_| to);
                    to.as_nanos()
                };
                thread.records.push(Record { from, to, permits });
                true
            });
        })
    }
}

/// The deadline after which a sweep reclaims the permits of a holder that died.
const DEADLINE: Duration = Duration::from_micros(200);

/// Spins for some microseconds, and sometimes yields to other threads.
fn hold(turn: u32) {
    for _ in 0..turn % 8 * 100 {
        hint::spin_loop();
    }
    if turn.is_multiple_of(4) {
        thread::yield_now();
    }
}

impl<R> Thread<'_, R> {
    /// Asks until the time is up. `ask` returns whether it was granted.
    fn until_the_end(&mut self, mut ask: impl FnMut(&mut Self) -> bool) {
        while self.clock.now() < self.end && self.records.len() < MOST_RECORDS {
            let admitted = (0..BATCH).map(|_| u64::from(ask(self))).sum();
            self.progress
                .admitted
                .fetch_add(admitted, Ordering::Relaxed);
            self.progress
                .denied
                .fetch_add(u64::from(BATCH) - admitted, Ordering::Relaxed);
            thread::yield_now();
        }
    }
}
