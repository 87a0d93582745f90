//! Blocked threads: two threads that repeatedly want one permit.

use core::hint::{black_box, spin_loop};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, LazyLock, Mutex};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use portcullis_async::Queue;
use portcullis_core::{Concurrency, Timeless};

use crate::measure::{Contest, Contestant, Expected, Ready};

pub(crate) fn rows() -> Vec<Contest> {
    let row = |row, come: Come| Contest {
        row,
        threads: 2,
        expected: Expected::Granted,
        ours: ours(come),
        peers: vec![mutex_and_condvar(come)],
    };
    vec![
        row("blocking.handoff", Come::InTurn),
        row("blocking.contended", Come::AtOnce),
    ]
}

/// When a thread that has released the permit requests it again.
#[derive(Clone, Copy, PartialEq)]
enum Come {
    /// After the other thread has it: every request waits, and every grant is a hand-off.
    InTurn,
    /// Immediately: without a strict queue, the thread may take the permit again.
    AtOnce,
}

fn ours(come: Come) -> Contestant {
    let queue = CachePadded::new(Queue::new(Concurrency::new(1), Timeless, u64::MAX));
    contending("portcullis", come, move |work| {
        queue.blocking_acquire(1).map(|_lease| work()).is_ok()
    })
}

/// A straightforward implementation with the standard library.
fn mutex_and_condvar(come: Come) -> Contestant {
    let permits = CachePadded::new(Mutex::new(1_u32));
    let returned = Condvar::new();
    contending("std-mutex-condvar", come, move |work| {
        let mut free = permits.lock().unwrap();
        while *free == 0 {
            free = returned.wait(free).unwrap();
        }
        *free -= 1;
        drop(free);
        work();
        *permits.lock().unwrap() += 1;
        returned.notify_one();
        true
    })
}

/// Threads that hold the permit for about 100 ns each time. `with_permit` calls its argument while
/// it holds the permit, and returns whether it got the permit.
fn contending(
    name: &'static str,
    come: Come,
    with_permit: impl Fn(&dyn Fn()) -> bool + Sync + 'static,
) -> Contestant {
    Contestant::prepared(name, move || {
        let hold = *HOLD;
        let holder = CachePadded::new(AtomicUsize::new(usize::MAX));
        Ready::new(move |thread, operations| {
            let mut granted = 0;
            for left in (0..operations).rev() {
                granted += u64::from(with_permit(&|| {
                    holder.store(thread, Relaxed);
                    spin(hold);
                }));
                // After its last operation the other thread no longer requests the permit.
                while come == Come::InTurn && left > 0 && holder.load(Relaxed) == thread {
                    spin_loop();
                }
            }
            granted
        })
    })
}

/// Returns the number of rounds of `spin` that take about 100 ns.
static HOLD: LazyLock<u64> = LazyLock::new(|| {
    const ROUNDS: u64 = 1 << 16;
    let taken = (0..16).map(|_| {
        let start = Instant::now();
        spin(ROUNDS);
        start.elapsed()
    });
    // The fastest measurement was disturbed the least.
    let nanos = taken
        .min()
        .map_or(1, |taken| taken.as_nanos() as u64)
        .max(1);
    (ROUNDS * 100 / nanos).max(1)
});

fn spin(rounds: u64) {
    for round in 0..rounds {
        black_box(round);
    }
}
