//! The command line.

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::limit::Limit;

/// Rate limiting, to look at.
///
/// Portcullis is a library of lock-free rate limiters. This program shows them at work: `demo` puts
/// each of them under load and checks its bound, and has a burst wait in a queue; `replay` tells
/// what a limit would have done to the requests of an access log.
#[derive(Debug, Parser)]
#[command(
    name = "portcullis",
    version,
    after_help = "Examples:
  portcullis                                    the demo
  portcullis demo --seconds 3 --threads 8
  portcullis replay access.log --limit 60/m
  zcat access.log.*.gz | portcullis replay - --limit 10/s --burst 50
  portcullis replay access.log.gz --limit 100/10s --algorithm sliding-window --json
  portcullis replay access.log --limit 1000000/m --cost bytes --key global

Exit code: 0 done, 1 a limiter broke its bound (demo), 2 the command line or the log cannot be used."
)]
pub(crate) struct Args {
    /// What to do; without a command, the demo.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What the program can do. What each command is about stands at its arguments: said here, it would
/// take the place of all of that.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),
    Replay(ReplayArgs),
}

impl Default for Command {
    fn default() -> Self {
        Self::Demo(DemoArgs {
            seconds: Duration::from_secs(1),
            threads: 4,
            rate: 5,
        })
    }
}

/// Let threads hammer each limiter in real time, and a burst wait in a queue, and check every
/// bound.
///
/// One limiter after the other is asked as fast as the threads can, one of which lives 10 ms in the
/// past. Every admission is recorded with the instant that it counts at; then every span of time
/// between two of them is held against the limiter's bound. (For leases: how many permits were held
/// at once.) The table at the end says "held" or "BROKEN".
///
/// Then 30 requests come at once to a queue of 25 in front of a token bucket of 5 permits, which
/// gets 5 each second. A timeline shows each of them as it waits and is served, and how many wait.
/// All have to be served, in their order, the last one after 5 s, within 3 %.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 every bound held, 1 one was broken.")]
pub(crate) struct DemoArgs {
    /// How long each limiter is hammered, in seconds: 0.05 to 5
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// How many threads hammer it: 2 to 64
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) threads: u8,
    /// How many permits each second the queue's token bucket gets: 1 to 100
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rate: u32,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=5.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number from 0.05 to 5".into()),
    }
}

/// Replay an access log through a limit, and see what it would have denied.
///
/// Reads the common and the combined log format of Apache and nginx, also compressed with gzip.
/// Time is the log's: a line that is older than one before it counts as the newest time seen.
/// Windows lie on the grid of the Unix epoch; a token bucket starts full and is refilled
/// continuously.
///
/// A line without address, time, request, status and size in their places is malformed: it is
/// counted and skipped. Of a line that is longer than 64 KiB only the beginning is looked at.
/// Memory does not grow with the log, only with the number of addresses in it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  portcullis replay access.log --limit 60/m
  zcat access.log.*.gz | portcullis replay - --limit 10/s --burst 50
  portcullis replay access.log.gz --limit 100/10s --algorithm sliding-window --segments 10 --json
  portcullis replay access.log --limit 1000000/m --cost bytes --key global

Exit code: 0 done, 2 the command line or the log cannot be used.")]
pub(crate) struct ReplayArgs {
    /// The log, plain or gzip; `-` reads standard input
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    /// N permits each PERIOD: a unit, or a number and a unit, of ms, s, m, h and d. [default: 60/m;
    /// with `--cost bytes`, 10000000/m]
    #[arg(long, value_name = "N/PERIOD")]
    pub(crate) limit: Option<Limit>,
    /// How the limit is kept
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "token-bucket|fixed-window|sliding-window"
    )]
    pub(crate) algorithm: Algorithm,
    /// The permits that a token bucket holds at most [default: N]
    #[arg(long, value_name = "N")]
    pub(crate) burst: Option<u64>,
    /// The segments of a sliding window, up to 1024 [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) segments: Option<u32>,
    /// Whether each address has a limit of its own, or all share one
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "ip|global"
    )]
    pub(crate) key: KeyBy,
    /// What a request costs: one permit, or one for each byte of the reply. A reply of size `-` or
    /// 0 costs nothing and passes
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "one|bytes"
    )]
    pub(crate) cost: Cost,
    /// Print one JSON object instead of a summary for people
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a limit is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// A bucket of permits that is refilled continuously.
    #[default]
    TokenBucket,
    /// So many permits in each window.
    FixedWindow,
    /// So many permits in any window's worth of consecutive segments.
    SlidingWindow,
}

/// Who shares a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyBy {
    /// The requests of one address.
    #[default]
    Ip,
    /// All requests.
    Global,
}

/// What a request costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cost {
    /// One permit.
    #[default]
    One,
    /// As many permits as the reply has bytes.
    Bytes,
}

/// Shows a value as the command line spells it.
macro_rules! spelled_as_an_argument {
    ($($choice:ty),*) => {$(
        impl fmt::Display for $choice {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
            }
        }
    )*};
}

spelled_as_an_argument!(Algorithm, KeyBy, Cost);

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_a_command_the_demo_runs_as_it_does_by_default() {
        let bare = Args::parse_from(["portcullis"]).command.unwrap_or_default();
        let named = Args::parse_from(["portcullis", "demo"]).command.unwrap();
        let (Command::Demo(bare), Command::Demo(named)) = (bare, named) else {
            panic!("not the demo")
        };
        assert_eq!(
            (bare.seconds, bare.threads, bare.rate),
            (named.seconds, named.threads, named.rate)
        );
    }
}
