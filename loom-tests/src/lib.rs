//! Loom models of every atomic algorithm of `portcullis-core` and `portcullis-async`, one file in
//! `tests` for each primitive.
//!
//! They run where loom takes the place of the atomics, and are empty everywhere else:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p portcullis-loom --release
//! ```
//!
//! Each model is explored exhaustively up to `PREEMPTIONS` pre-emptions, or as many as
//! `LOOM_MAX_PREEMPTIONS` says; those that would take a minute for it up to fewer, unless
//! `PORTCULLIS_THOROUGH` is set. What each one is there to show, and what loom cannot show, stands
//! in `docs/memory-ordering.md`.
#![cfg(loom)]

pub mod queue;

use core::hash::Hasher;
use core::sync::atomic::AtomicUsize as Count;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread::JoinHandle;
use portcullis_core::{Limiter, Timestamp};

/// How often a thread may be stopped where it could have gone on, by default.
pub const PREEMPTIONS: usize = 3;

loom::lazy_static! {
    static ref TURN: AtomicUsize = AtomicUsize::new(0);
}

/// Runs `model` in every interleaving, and prints how many there were.
pub fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_within(PREEMPTIONS, model);
}

/// The same with fewer pre-emptions, where nobody asks for a thorough run.
pub fn explore_briefly(
    preemptions: usize,
    thorough: usize,
    model: impl Fn() + Send + Sync + 'static,
) {
    let is_thorough = std::env::var_os("PORTCULLIS_THOROUGH").is_some();
    explore_within(if is_thorough { thorough } else { preemptions }, model);
}

/// The same with other pre-emptions by default, for a model that has too many interleavings.
pub fn explore_within(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let executions = std::sync::Arc::new(Count::new(0));
    let counted = std::sync::Arc::clone(&executions);
    let mut builder = loom::model::Builder::new();
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

/// Has loom try each order of this call and those that other threads make, and orders no memory.
///
/// Of an atomic, loom remembers the last access alone: if one thread has loaded it, and another one
/// loads and then changes it, loom forgets that the change could have come before the first load.
/// So each call that a model makes begins with an exchange on a word of no meaning.
pub fn turn() {
    TURN.fetch_add(1, Relaxed);
}

/// Runs `work` on what is shared, in a thread of its own.
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

/// What a thread has come to.
pub fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap()
}

/// Takes `n` permits for good; returns how many that were: `n`, or 0 if it was denied.
pub fn take(limiter: &impl Limiter, now: Timestamp, n: u32) -> u64 {
    turn();
    limiter.take_at(now, n).map_or(0, |_| n.into())
}

/// `seconds` after the origin.
pub const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// Data that is not atomic. Loom fails a model in which an access is not ordered against another
/// thread's write, whatever the values are, so that it is a witness to the order that the atomics
/// make.
#[derive(Debug)]
pub struct Witness(loom::cell::UnsafeCell<()>);

impl Witness {
    /// Data that nobody has accessed yet.
    #[expect(
        clippy::new_without_default,
        reason = "a model says when its data comes into being"
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

/// Hashes a number to itself, so that a model says where in a table its keys lie.
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

/// A test of each model for each width of the word, in the modules `wide` and `narrow`.
#[macro_export]
macro_rules! on_both_widths {
    ($($model:ident),* $(,)?) => {
        mod wide { $(#[test] fn $model() { super::$model::<u64>(); })* }
        mod narrow { $(#[test] fn $model() { super::$model::<u32>(); })* }
    };
}
