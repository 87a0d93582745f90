//! Loom models of every atomic algorithm of `portcullis-core` and `portcullis-async`, one file in
//! `tests` for each primitive.
//!
//! The models run only under `cfg(portcullis_loom)`, where loom replaces the atomics; otherwise the
//! files are empty:
//!
//! ```text
//! RUSTFLAGS="--cfg portcullis_loom" cargo test -p portcullis-loom --profile models
//! ```
//!
//! Each model is explored exhaustively up to a bound of pre-emptions: `PREEMPTIONS`, or the value
//! of `LOOM_MAX_PREEMPTIONS`. Models that would take a minute with this bound use a lower one,
//! unless `PORTCULLIS_THOROUGH` is set. `docs/memory-ordering.md` states what each model shows, and
//! what loom cannot show.
#![cfg(portcullis_loom)]

pub mod queue;
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod stacks;

use core::hash::Hasher;
use core::sync::atomic::AtomicUsize as Count;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread::JoinHandle;
use portcullis_core::{Limiter, Timestamp};

/// The default bound: how often a thread may be pre-empted where it could have continued.
pub const PREEMPTIONS: usize = 3;

loom::lazy_static! {
    static ref TURN: AtomicUsize = AtomicUsize::new(0);
}

/// Runs `model` in every interleaving, and prints the number of interleavings.
pub fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_within(PREEMPTIONS, model);
}

/// Runs `model` as `explore` does, with `preemptions` as the bound, or `thorough` in a thorough
/// run.
pub fn explore_briefly(
    preemptions: usize,
    thorough: usize,
    model: impl Fn() + Send + Sync + 'static,
) {
    let is_thorough = std::env::var_os("PORTCULLIS_THOROUGH").is_some();
    explore_within(if is_thorough { thorough } else { preemptions }, model);
}

/// Runs `model` as `explore` does, with `preemptions` as the default bound. For a model that has
/// too many interleavings.
pub fn explore_within(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    check(loom::model::Builder::new(), preemptions, model);
}

/// Runs `model` as `explore_within` does, with room for four times as many steps in an execution.
/// For a model that needs many before its threads begin.
pub fn explore_long(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches *= 4;
    check(builder, preemptions, model);
}

fn check(
    mut builder: loom::model::Builder,
    preemptions: usize,
    model: impl Fn() + Send + Sync + 'static,
) {
    let executions = std::sync::Arc::new(Count::new(0));
    let counted = std::sync::Arc::clone(&executions);
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        turn();
        model();
    });
    let test = std::thread::current();
    println!(
        "{}: {} executions",
        test.name().unwrap_or("model"),
        executions.load(Relaxed)
    );
}

/// Makes loom try each order of the following call and the calls of other threads. It does not
/// order memory.
///
/// For each atomic, loom remembers only the last access. If one thread has loaded it, and another
/// thread loads and then changes it, loom forgets that the change could have come before the first
/// load. So each call in a model begins with a read-modify-write of an otherwise unused word.
pub fn turn() {
    TURN.fetch_add(1, Relaxed);
}

/// Runs `work` on shared data in a new thread.
pub fn spawn<S: 'static, T: 'static>(
    shared: &Arc<S>,
    work: impl FnOnce(&S) -> T + 'static,
) -> JoinHandle<T> {
    let shared = Arc::clone(shared);
    loom::thread::spawn(move || {
        turn();
        work(&shared)
    })
}

/// Waits for a thread and returns its result.
pub fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap()
}

/// Takes `n` permits permanently. Returns the number of permits taken: `n`, or 0 after a denial.
pub fn take(limiter: &impl Limiter, now: Timestamp, n: u32) -> u64 {
    turn();
    limiter.take_at(now, n).map_or(0, |_| n.into())
}

/// Returns the timestamp `seconds` after the origin.
pub const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// Data that is not atomic. Loom fails a model in which an access is not ordered against another
/// thread's write, whatever the values are. So a witness checks the order that the atomics
/// establish.
#[derive(Debug)]
pub struct Witness(loom::cell::UnsafeCell<()>);

impl Witness {
    /// Creates a witness that has not been accessed.
    #[expect(
        clippy::new_without_default,
        reason = "a model decides when its data is created"
    )]
    pub fn new() -> Self {
        Self(loom::cell::UnsafeCell::new(()))
    }

    /// Writes the data.
    pub fn write(&self) {
        self.0.with_mut(|_| ());
    }

    /// Reads the data.
    pub fn read(&self) {
        self.0.with(|_| ());
    }
}

/// Hashes a number to itself, so that a model decides where in a table its keys are.
#[derive(Debug, Default)]
pub struct Itself(u64);

impl Hasher for Itself {
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are numbers");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Defines a test of each model for each width of the word, in the modules `wide` and `narrow`.
#[macro_export]
macro_rules! on_both_widths {
    ($($model:ident),* $(,)?) => {
        mod wide { $(#[test] fn $model() { super::$model::<u64>(); })* }
        mod narrow { $(#[test] fn $model() { super::$model::<u32>(); })* }
    };
}
