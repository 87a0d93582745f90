//! Checks of limiters and queues that run on any board, and on the host.
//!
//! A [`Board`] has a terminal, a timer whose interrupt runs a function, and sleep. [`Preempting`]
//! is a board whose timer can be set to an instruction. [`run`] makes all checks on a board; its
//! result is for the exit status.
#![no_std]

#[cfg(test)]
extern crate std;

#[macro_use]
#[path = "../../../core/tests/support/registry.rs"]
mod registry;

mod board;
mod draws;
mod executor;
mod keyed;
mod keyed_list;
mod keyed_queue;
pub mod limiters;
mod permits;
mod preempt;
mod queue;
mod saved;
mod tables;
mod tally;
mod wrappers;

pub use board::Board;
pub use draws::Draws;
pub use preempt::Preempting;
pub use tables::{Row, TABLES};
pub use tally::Tally;

/// Makes all checks that need only a board, prints a line for each group, and returns the result.
pub fn run(board: &dyn Board, tally: &mut Tally) {
    tally.group(board, "limiters against oracle tables", limiters::check);
    tally.group(board, "waits that an interrupt ends", |tally| {
        queue::check(board, tally);
    });
}

/// Makes the checks of held permits, of saved states, of wrappers and compositions, and of waits by
/// key. They are separate, because one program with all checks would exceed the memory of the
/// boards.
pub fn run_wrappers(board: &dyn Board, tally: &mut Tally) {
    tally.group(board, "permits that return by release", permits::check);
    tally.group(
        board,
        "states that are kept while memory is lost",
        saved::check,
    );
    tally.group(board, "wrappers, compositions and changes", wrappers::check);
    tally.group(board, "waits by key that an interrupt ends", |tally| {
        keyed_queue::check(board, tally);
    });
}

/// Makes the checks of keyed tables. They are separate for the same reason.
pub fn run_tables(board: &dyn Board, tally: &mut Tally) {
    tally.group(board, "tables by key against models", keyed::check);
    tally.group(
        board,
        "tables with several limits for each key against models",
        keyed_list::check,
    );
}

/// Interrupts calls at each of their instructions, and prints how many points there were.
pub fn preempt(board: &dyn Preempting, tally: &mut Tally) {
    tally.group(board, "calls interrupted at each instruction", |tally| {
        preempt::sweep(board, tally);
    });
}
