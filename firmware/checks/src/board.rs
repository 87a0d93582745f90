use core::fmt;

/// What the checks need from their host or board.
pub trait Board {
    /// Writes to the terminal.
    fn print(&self, text: fmt::Arguments<'_>);

    /// Runs `handler` in an interrupt, once, some time from now.
    fn interrupt(&self, handler: fn());

    /// Sleeps until `done`, which interrupts change.
    fn sleep_until(&self, done: &dyn Fn() -> bool);
}
