//! The program `portcullis`: a demonstration of the limiters in real time, and a replay of access
//! logs.
//!
//! | module | what is in it |
//! |---|---|
//! | [`args`] | the command line |
//! | [`demo`] | threads hammer each limiter, a burst waits in a queue, and every bound is checked |
//! | [`replay`] | reads access logs line by line, and judges each request at the log's time |
//! | [`completions`] | scripts that complete the arguments in a shell |
//! | [`failure`] | errors that stop the program, and their exit code |
//! | [`text`] | formatting of numbers |

mod args;
mod completions;
mod demo;
mod failure;
mod limit;
mod replay;
mod text;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let outcome = match Args::parse().command.unwrap_or_default() {
        Command::Demo(args) => demo::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Completions(args) => completions::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
