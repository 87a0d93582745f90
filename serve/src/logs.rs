//! Events as lines of text or JSON, on the standard error.

use std::io;

use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
use tracing::Level;
use tracing_subscriber::fmt;

use crate::args::LogForm;

/// Writes the events of this program, and of the decisions of policies, from now on. Decisions that
/// allow are not written.
pub(crate) fn start(form: LogForm) {
    let lines = fmt().with_max_level(Level::INFO).with_writer(io::stderr);
    match form {
        LogForm::Text => lines.with_ansi(false).init(),
        LogForm::Json => lines.json().flatten_event(true).init(),
        LogForm::Off => {}
    }
}

/// Keeps events that a client can cause from filling the log: 10 at once, and 1 a second.
pub(crate) struct Seldom {
    limit: TokenBucket,
    clock: MonotonicClock,
}

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self {
            limit: TokenBucket::new(Rate::per_second(1), 10),
            clock: MonotonicClock::new(),
        }
    }

    /// Whether one more event may be written.
    pub(crate) fn may_write(&self) -> bool {
        self.limit.try_acquire_at(self.clock.now(), 1).is_ok()
    }
}
