//! The program `portcullis`: a demonstration of the limiters in real time, a replay of access logs,
//! and a check of files of rules.
//!
//! | module | what is in it |
//! |---|---|
//! | [`args`] | the command line |
//! | [`adapt`] | what adaptive concurrency limits do in scenarios, and would have found in logs |
//! | [`demo`] | threads hammer each limiter, a burst waits in a queue, and every bound is checked |
//! | [`replay`] | reads access logs line by line, and judges each request at the log's time |
//! | [`check`] | whether the rules of a file are valid, and which of them a request matches |
//! | [`export`] | the rules of a file in the configuration of nginx, HAProxy or Envoy |
//! | [`policy_file`] | files of rules: their formats, and how their errors are shown |
//! | `shm` | limiters in memory that processes share: lists, shows and removes them |
//! | [`serve`] | the program `portcullis-serve`, found and run |
//! | [`pace`] | lines, released at a rate |
//! | [`colour`] | whether output has colours |
//! | [`completions`] | scripts that complete the arguments in a shell |
//! | [`failure`] | errors that stop the program, and their exit code |
//! | [`text`] | formatting of numbers |

mod adapt;
mod args;
mod check;
mod colour;
mod completions;
mod demo;
mod export;
mod failure;
mod limit;
mod pace;
mod policy_file;
mod replay;
mod serve;
#[cfg(target_os = "linux")]
mod shm;
mod text;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let outcome = match Args::parse().command.unwrap_or_default() {
        Command::Demo(args) => demo::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Check(args) => check::run(&args),
        #[cfg(target_os = "linux")]
        Command::Shm(args) => shm::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Pace(args) => pace::run(&args),
        Command::Adapt(args) => adapt::run(&args),
        Command::Completions(args) => completions::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
