use core::fmt;

use crate::Board;

/// The largest number of failures printed for a group.
const TOLD: u32 = 5;

/// Counts the checks.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u32,
    failed: u32,
}

/// The failures of a group.
pub struct Group<'b> {
    board: &'b dyn Board,
    tally: Tally,
}

impl Group<'_> {
    /// Counts a check, and prints it if it failed.
    pub fn check(&mut self, holds: bool, what: fmt::Arguments<'_>) {
        if holds {
            self.tally.passed += 1;
            return;
        }
        self.tally.failed += 1;
        if self.tally.failed <= TOLD {
            self.board.print(format_args!("failed: {what}\n"));
        }
    }
}

impl Tally {
    /// Runs checks, and prints how many there were.
    pub fn group(&mut self, board: &dyn Board, name: &str, checks: impl FnOnce(&mut Group<'_>)) {
        let mut group = Group {
            board,
            tally: Self::default(),
        };
        checks(&mut group);
        let Self { passed, failed } = group.tally;
        board.print(format_args!("{name}: {passed} passed, {failed} failed\n"));
        self.passed += passed;
        self.failed += failed;
    }

    /// Prints how many there were in all. Returns whether there was at least one, and none failed.
    pub fn close(&self, board: &dyn Board) -> bool {
        board.print(format_args!(
            "{} passed, {} failed\n",
            self.passed, self.failed
        ));
        self.failed == 0 && self.passed > 0
    }
}
