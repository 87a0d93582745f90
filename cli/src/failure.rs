//! The errors that stop the program.

use core::fmt;
use std::io;
use std::process::ExitCode;

/// An error, with the text for the user.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request cannot be carried out: a setting is invalid, or a log cannot be read.
    Refused(String),
    /// The result could not be written.
    Output(io::Error),
}

impl Failure {
    /// Prints the error and returns the exit code: 2, or 0 if the reader of the output has closed
    /// it.
    pub(crate) fn report(&self) -> ExitCode {
        if let Self::Output(error) = self
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            return ExitCode::SUCCESS;
        }
        eprintln!("portcullis: {self}");
        ExitCode::from(2)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) => f.write_str(reason),
            Self::Output(error) => write!(f, "cannot write the result: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
