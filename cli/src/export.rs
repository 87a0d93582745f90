//! `portcullis export`: the rules of a file in the configuration of a server, as far as it can say
//! them.
//!
//! ```text
//! Policy ---> Plan: for each rule, in order, whether the server can say its conditions and limits
//!               |
//!               +---> nginx, haproxy or envoy: the text
//!               +---> what is left out: the rule, its line, the reason
//! ```
//!
//! **Invariant.** A request is decided by the same rules as in the file, up to rules that are left
//! out; and no limit that is written admits more than its bound in the file.
//!
//! - A rule whose *conditions* cannot be said is left out: the rules after it decide its requests.
//! - A rule whose *limits* cannot be said keeps its place: it decides its requests, without a
//!   limit.

mod envoy;
mod haproxy;
mod nginx;
mod plan;

use std::io::{self, Write};
use std::process::ExitCode;

use self::plan::{Plan, Unsaid, first_periods};
use crate::args::{ExportArgs, Target};
use crate::failure::Failure;
use crate::policy_file::PolicyFile;
use crate::text::{counted, visible};

/// The end of a line that limits what `portcullis-serve` limits too.
const ALSO: &str = " # also in portcullis-serve";

/// What denials lack that those of the library and of `portcullis-serve` have.
const NO_RETRY: &str =
    "# A denial has no `Retry-After`: this server does not know when to ask again.";

/// What to do with such lines.
const TWICE: &str = "\
# If this server also asks portcullis-serve with the same file, remove each line that ends with
# `also in portcullis-serve`: otherwise a request takes from two limits. Keep the other lines: they
# are for limits at once, which portcullis-serve leaves out.
";

/// The exit code if something cannot be said.
const NOT_ALL: u8 = 3;

/// Writes the rules of a file for a server on standard output. Prints what cannot be said on
/// standard error, each with its line.
///
/// # Errors
///
/// [`Failure::Refused`] if the file cannot be read, [`Failure::Output`] if the result cannot be
/// written.
pub(crate) fn run(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let file = PolicyFile::read(&args.files, args.policy_format)?;
    let policy = match file.policy() {
        Ok(policy) => policy,
        Err(errors) => {
            eprintln!("portcullis: {}", file.report(&errors));
            return Ok(ExitCode::FAILURE);
        }
    };
    let plan = match args.to {
        Target::Nginx => Plan::new(&policy, &nginx::Nginx),
        Target::Haproxy => Plan::new(&policy, &haproxy::Haproxy),
        Target::Envoy => Plan::new(&policy, &envoy::Envoy),
    };
    let first = first_periods(&plan);
    let (text, unsaid) = match args.to {
        Target::Nginx => nginx::write(plan),
        Target::Haproxy => haproxy::write(plan),
        Target::Envoy => envoy::write(plan),
    };
    let mut out = io::stdout().lock();
    if args.to != Target::Envoy {
        writeln!(out, "# Written by `portcullis export`.\n{NO_RETRY}")?;
        for Unsaid { rule, reason } in &unsaid {
            let rule = visible(rule.as_bytes());
            writeln!(out, "# Not said here: {rule}: {reason}")?;
        }
        for note in first {
            writeln!(out, "# {note}")?;
        }
        if text.contains(ALSO) {
            out.write_all(TWICE.as_bytes())?;
        }
    }
    out.write_all(text.as_bytes())?;
    out.flush()?;
    for Unsaid { rule, reason } in &unsaid {
        match policy.message_at(rule, &format!("{}: {reason}", visible(rule.as_bytes()))) {
            Some(message) => file.warn(&[message]),
            None => eprintln!("warning: rule {}: {reason}\n", visible(rule.as_bytes())),
        }
    }
    if unsaid.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let count = counted(unsaid.len() as u64, ("thing", "things"));
    eprintln!("portcullis: {}: {count} not said", file.name());
    Ok(ExitCode::from(NOT_ALL))
}
