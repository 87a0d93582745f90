use core::fmt;

/// What the checks need of what they run on.
pub trait Board {
    /// Writes to the terminal.
    fn print(&self, text: fmt::Arguments<'_>);

    /// Has `handler` run in an interrupt, once, some time from now.
    fn interrupt(&self, handler: fn());

    /// Sleeps until `done`, which interrupts change.
    fn sleep_until(&self, done: &dyn Fn() -> bool);
}
