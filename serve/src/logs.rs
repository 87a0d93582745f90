//! Events as lines of text or JSON, on the standard error.

use std::io;

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
