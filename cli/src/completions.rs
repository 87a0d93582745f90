//! `portcullis completions`: scripts that complete its arguments in a shell.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs};
use crate::failure::Failure;

/// Prints the script for a shell.
///
/// # Errors
///
/// [`Failure::Output`] if the script cannot be written.
pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "portcullis", &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
