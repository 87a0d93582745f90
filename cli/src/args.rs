//! The command line.

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum, ValueHint};

use crate::limit::{Limit, period};
use crate::replay::{Format, Key};

/// Rate limiting, to look at.
///
/// Portcullis is a library of lock-free rate limiters. This program shows them at work: `demo` puts
/// each of them under load and checks its bound, and has a burst wait in a queue; `replay` shows
/// what limits would have done to the requests of access logs.
#[derive(Debug, Parser)]
#[command(
    name = "portcullis",
    version,
    after_help = "Examples:
  portcullis                                    the demo
  portcullis demo --seconds 3 --threads 8
  portcullis replay access.log --limit 60/m
  portcullis replay access.log* --limit 10/s:burst=50 --limit 100/m
  portcullis replay access.log.gz --limit 100/10s --algorithm sliding-window --json
  portcullis replay access.log --limit 1000000/m --cost bytes --key global
  portcullis completions bash

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
    Replay(Box<ReplayArgs>),
    Completions(CompletionsArgs),
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

/// Replay access logs through one limit or several, and see what they would have denied.
///
/// Time is the log's. Lines are judged in the order of their times, which are sorted within a
/// horizon; memory grows with the lines of a horizon and the number of keys, not with the log.
/// Windows lie on the grid of the Unix epoch. A token bucket starts full and is refilled
/// continuously.
///
/// Several logs are judged as one: the files of a rotated set in any order, or the logs of several
/// servers. Each may be compressed with gzip. Name them, rather than joining them in a pipe: only
/// then they can be merged by time.
///
/// A malformed line is counted and skipped. In the text formats, that is one without address, time,
/// request, status and size in their places; referer and agent may be missing. Of a line that is
/// longer than 64 KiB only the beginning is looked at.
#[derive(Debug, clap::Args)]
#[command(after_help = "Formats:
  auto      each line in any of the formats below; the default
  common    `%h %l %u %t \"%r\" %>s %b`, also with referer and agent
  combined  the same
  vhost     combined, after the virtual host
  json      a JSON object in each line, with the usual names of members
  json:ROLE=MEMBER,...  others; roles: time, ip, size, user, path, host, referer, agent
  '...'     a format as nginx ($remote_addr ...) or Apache (%h ...) writes it, alone or as the whole
            directive (log_format, LogFormat)

Keys:
  ip        the address; ip/24 its network (IPv4, up to 32), ip/64 (IPv6, 33 to 128), ip/24/64 both
  global    none: all requests share one limit
  user, path, host, referer, agent
  field:NAME  what the format calls NAME: an nginx variable, a header field of Apache's %{NAME}i, a
            member of a JSON object
  ip,path   a combination: all parts have to be equal
  A request without the field has the value `-`.

Examples:
  portcullis replay access.log --limit 60/m
  portcullis replay access.log* --limit 10/s --limit 10/s:burst=50 --limit 100/m --top 20
  ssh web cat access.log | portcullis replay - --limit 10/s --burst 50
  portcullis replay access.log.gz --limit 100/10s --algorithm sliding-window --segments 10 --json
  portcullis replay access.log --limit 1000000/m --cost bytes --key ip/24/64
  portcullis replay access.log --format '$remote_addr [$msec] $status $bytes_sent $http_x_key' \\
      --key field:http_x_key,path

Exit code: 0 done, 2 the command line or the log cannot be used.")]
pub(crate) struct ReplayArgs {
    /// The logs, plain or gzip; `-` or /dev/stdin reads standard input
    #[arg(value_name = "LOG", required = true, num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) logs: Vec<PathBuf>,
    /// N permits each PERIOD: a unit, or a number and a unit, of ms, s, m, h and d. Repeated, it
    /// compares the limits in a table. One limit's own settings follow it:
    /// `10/s:algorithm=token-bucket,burst=50` or `10/s:algorithm=sliding-window,segments=10`.
    /// [default: 60/m; with `--cost bytes`, 10000000/m]
    #[arg(long = "limit", value_name = "N/PERIOD")]
    pub(crate) limits: Vec<Limit>,
    /// How limits are kept that do not say
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
    /// What requests have in common that share a limit: see below
    #[arg(long, value_name = "ip|global|...", default_value = "ip")]
    pub(crate) key: Key,
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
    /// How lines are written: see below
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub(crate) format: Format,
    /// `time`: lines are judged in the order of their times, ties in the order of the log. `log`:
    /// in the order of the log, where a line that is older than one before it counts as the newest
    /// time seen
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "time|log"
    )]
    pub(crate) order: OrderBy,
    /// How far lines may be out of order for `--order time`. A line that is later still counts as
    /// the newest time judged [default: 60s]
    #[arg(long, value_name = "PERIOD", value_parser = period)]
    pub(crate) horizon: Option<Duration>,
    /// How many of the most denied keys are shown
    #[arg(long, value_name = "N", default_value = "10")]
    pub(crate) top: usize,
    /// Print one JSON object instead of a summary for people
    #[arg(long)]
    pub(crate) json: bool,
}

impl ReplayArgs {
    /// How far lines may be out of order and are sorted, if they are.
    pub(crate) fn sorted_within(&self) -> Option<Duration> {
        match self.order {
            OrderBy::Time => Some(self.horizon.unwrap_or(Duration::from_mins(1))),
            OrderBy::Log => None,
        }
    }
}

/// Print a script that completes the arguments of this program in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  portcullis completions bash > ~/.local/share/bash-completion/completions/portcullis
  portcullis completions zsh > \"${fpath[1]}/_portcullis\"
  portcullis completions fish > ~/.config/fish/completions/portcullis.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// How a limit is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// A bucket of permits that is refilled continuously.
    #[default]
    TokenBucket,
    /// A number of permits in each window.
    FixedWindow,
    /// A number of permits in any window's worth of consecutive segments.
    SlidingWindow,
}

/// In which order lines are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderBy {
    /// That of their times.
    #[default]
    Time,
    /// That of the log.
    Log,
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

spelled_as_an_argument!(Algorithm, OrderBy, Cost);

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
