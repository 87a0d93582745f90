//! The command line.

use core::net::IpAddr;
use core::num::NonZero;
use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum, ValueHint};
use portcullis_policy::Kind;

use crate::limit::{Limit, period};
use crate::policy_file::PolicyFormat;
use crate::replay::args::ReplayArgs;

/// Rate limiting: a demonstration, a replay of access logs, and a check of rules.
///
/// Portcullis is a library of lock-free rate limiters. This program demonstrates them: `demo` puts
/// each limiter under load, checks its bound, and lets a burst wait in a queue; `replay` shows what
/// limits would have done to the requests of access logs; `check` checks a file of rules; `export`
/// writes rules for nginx, HAProxy or Envoy; `serve` enforces them for proxies; `pace` releases
/// lines at a rate; `adapt` shows what limits would find that find themselves.
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
  portcullis check policy.toml
  portcullis check policy.toml --request 'POST /login' --address 192.0.2.7
  portcullis replay access.log --policy policy.toml --recommend 1%
  portcullis export policy.toml --to nginx
  portcullis serve policy.toml --listen 127.0.0.1:8787
  portcullis shm ls
  portcullis pace 100/s < urls.txt | xargs -n 1 curl
  portcullis adapt scenario.toml
  portcullis completions bash

Exit code: 0 success, 1 a limiter broke its bound (demo) or rules are not valid (check), 2 the
command line or a file cannot be used."
)]
pub(crate) struct Args {
    /// The command to run. Without one, the demo runs.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The commands. Each is documented at its arguments: documentation here would replace theirs in
/// the help text.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),
    Replay(Box<ReplayArgs>),
    Check(Box<CheckArgs>),
    #[cfg(target_os = "linux")]
    Shm(ShmArgs),
    Export(ExportArgs),
    Serve(ServeArgs),
    Pace(PaceArgs),
    Adapt(AdaptArgs),
    Completions(CompletionsArgs),
}

impl Default for Command {
    fn default() -> Self {
        Self::Demo(DemoArgs {
            seconds: Duration::from_millis(500),
            threads: 4,
            rate: 5,
        })
    }
}

/// Hammers each limiter in real time, lets a burst wait in a queue, and checks every bound.
///
/// The threads ask one limiter after another as fast as they can. One thread passes timestamps that
/// are 10 ms stale. Every grant is recorded with the instant at which it counts. Then every span of
/// time between two grants is checked against the limiter's bound. (For leases: the number of
/// permits that were held at once.) The table at the end shows "held" or "BROKEN".
///
/// The last row is a naive token bucket, for comparison. It breaks its bound, because it believes
/// every timestamp. It does not count for the exit code.
///
/// Then 30 requests arrive at once at a queue of 25, in front of a token bucket with a burst of 5
/// and a rate of 5 per second. A timeline shows each request while it waits and when it is served,
/// and how many are waiting. All of them must be served, in order, the last one after 5 s, within 3
/// %.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 every bound held, 1 a bound was broken.")]
pub(crate) struct DemoArgs {
    /// The time for which each limiter is hammered, in seconds: 0.05 to 5
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// The number of threads: 2 to 64
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) threads: u8,
    /// The rate of the queue's token bucket, in permits per second: 1 to 100
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rate: u32,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=5.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number from 0.05 to 5".into()),
    }
}

/// Checks a file of rules, and shows which rules a request matches.
///
/// All errors of the file are shown at once, each with its line. If the rules are valid and a
/// request is given, it is decided as the service decides it: once for each kind that has rules,
/// until one denies. The rules are listed in the order in which they are asked: whether each one
/// matches, why not, its key, and what its limits have left if no permit was taken before.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  portcullis check policy.toml
  portcullis check policy.json --request 'POST /login' --address 192.0.2.7
  portcullis check policy.toml --request 'PUT /v1/a/blobs/b' --host eu.example.com \\
      --header 'X-Tenant: t1' --property region=eu --cost 3
  portcullis check gateway/configuration/

Exit code: 0 the rules are valid, 1 they are not, 2 the command line or the file cannot be used.")]
pub(crate) struct CheckArgs {
    /// The file; `-` reads standard input. Of Ocelot several files, or a folder: its ocelot.*.json
    /// are merged, or else its ocelot.json is read
    #[arg(value_name = "FILE", required = true, num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub(crate) files: Vec<PathBuf>,
    /// The format of the file [default: `ocelot` for ocelot.json, `ats` for ats.json, otherwise by
    /// the extension]
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT")]
    pub(crate) policy_format: Option<PolicyFormat>,
    /// Fail if there is a warning, for example of a rule that is never asked
    #[arg(long)]
    pub(crate) deny_warnings: bool,
    /// A request: its method and its path
    #[arg(long, value_name = "METHOD PATH", value_parser = method_and_path)]
    pub(crate) request: Option<(String, String)>,
    /// What else is known of the request.
    #[command(flatten)]
    pub(crate) about: RequestArgs,
}

/// What finds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ControllerName {
    /// The knee of Little's law: the default of portcullis-adaptive.
    Knee,
    /// The same, which prefers latency to throughput.
    LatencyFirst,
    /// Envoy's gradient.
    Envoy,
    /// Netflix's Gradient2.
    Gradient2,
    /// TCP Vegas.
    Vegas,
    /// Additive increase, multiplicative decrease.
    Aimd,
}

/// Shows what concurrency limits would do that find themselves.
///
/// A scenario describes a service and its load. Each controller runs before it, in virtual time,
/// with several seeds. Of each span of time that the scenario checks, the worst run is shown: the
/// least goodput (of the capacity), the highest mean latency (times the latency without a queue),
/// the least share of the requests admitted, the limits, and how many runs missed what the scenario
/// asks for.
///
/// With `--log`, the files are logs of requests that were served: on each line a start and a
/// duration in seconds, and a status. Each controller watches them and denies nothing. Shown are
/// its last limit, the lowest and the highest one after the first quarter of the log, how many
/// requests began over it, and what it takes for the capacity of the service and for its latency
/// without a queue. While the log has a queue, that latency includes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  portcullis adapt overload.toml
  portcullis adapt overload.toml --controllers knee,envoy --seeds 100
  awk '{print $1, $2, $3}' requests.txt | portcullis adapt --log -

Exit code: 0 success, 2 the command line or a file cannot be used.")]
pub(crate) struct AdaptArgs {
    /// The scenarios, or the logs; `-` reads standard input
    #[arg(value_name = "FILE", required = true, num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// The files are logs
    #[arg(long)]
    pub(crate) log: bool,
    /// What finds the limits
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "NAME,...",
        default_value = "knee,latency-first,envoy,gradient2,vegas,aimd"
    )]
    pub(crate) controllers: Vec<ControllerName>,
    /// How many runs of each scenario: 1 to 1000
    #[arg(long, value_name = "N", default_value = "5", conflicts_with = "log", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    /// The seed of the first run
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "log")]
    pub(crate) first: u64,
    /// The limit to begin with, for a log; a scenario has its own
    #[arg(long, value_name = "N", default_value = "20", requires = "log", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) initial: u32,
}

/// The server whose configuration is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// A file that the block `http` of nginx includes.
    Nginx,
    /// A file for HAProxy, beside your own.
    Haproxy,
    /// A local rate limit filter of Envoy, in JSON.
    Envoy,
}

/// Writes rules in the configuration of nginx, HAProxy or Envoy, as far as it can say them.
///
/// The configuration is written on standard output. What the server cannot say is printed on
/// standard error, with the line of the rule and the reason.
///
/// nginx: maps and limits of requests and connections, to include in the block http. HAProxy: stick
/// tables and rules that deny, to load before your own file. Envoy: a local rate limit filter, and
/// the rate limits for a virtual host, in JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  portcullis export policy.toml --to nginx > /etc/nginx/portcullis.conf
  portcullis export policy.toml --to haproxy > /etc/haproxy/portcullis.cfg
  portcullis export policy.toml --to envoy > filter.json

Exit code: 0 all was said, 3 something cannot be said, 1 the rules are not valid, 2 the command line
or the file cannot be used.")]
pub(crate) struct ExportArgs {
    /// The file, as for `check`
    #[arg(value_name = "FILE", required = true, num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub(crate) files: Vec<PathBuf>,
    /// The server
    #[arg(long, value_enum, value_name = "SERVER")]
    pub(crate) to: Target,
    /// The format of the file [default: as for `check`]
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT")]
    pub(crate) policy_format: Option<PolicyFormat>,
}

/// What is known of a request besides its method and its path.
#[derive(Debug, clap::Args)]
pub(crate) struct RequestArgs {
    /// The host that the request is for
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        requires = "request"
    )]
    pub(crate) host: String,
    /// The address of the client
    #[arg(long, value_name = "ADDRESS", requires = "request")]
    pub(crate) address: Option<IpAddr>,
    /// A header field; repeat the option for more
    #[arg(
        long = "header",
        value_name = "NAME: VALUE",
        value_parser = header,
        requires = "request"
    )]
    pub(crate) headers: Vec<(String, String)>,
    /// The service tier of the client
    #[arg(
        long,
        value_name = "TIER",
        default_value = "",
        hide_default_value = true,
        requires = "request"
    )]
    pub(crate) tier: String,
    /// Another property; repeat the option for more
    #[arg(
        long = "property",
        value_name = "NAME=VALUE",
        value_parser = property,
        requires = "request"
    )]
    pub(crate) properties: Vec<(String, String)>,
    /// What is limited [default: each kind that has rules, until one denies]
    #[arg(
        long,
        value_parser = kind,
        value_name = "request|ingress|egress|burst|concurrency",
        requires = "request"
    )]
    pub(crate) kind: Option<Kind>,
    /// The number of permits that the request takes
    #[arg(long, value_name = "N", default_value = "1", requires = "request")]
    pub(crate) cost: u32,
}

/// The two texts around the first separator, without white space around them.
fn pair(text: &str, separator: char) -> Option<(String, String)> {
    let (name, value) = text.split_once(separator)?;
    let (name, value) = (name.trim(), value.trim());
    (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
}

fn method_and_path(text: &str) -> Result<(String, String), &'static str> {
    pair(text.trim(), ' ').ok_or("expected a method and a path, for example 'GET /v1/items'")
}

fn header(text: &str) -> Result<(String, String), &'static str> {
    pair(text, ':').ok_or("expected a name and a value, for example 'X-Api-Key: k1'")
}

fn property(text: &str) -> Result<(String, String), &'static str> {
    pair(text, '=').ok_or("expected a name and a value, for example region=eu")
}

fn kind(text: &str) -> Result<Kind, &'static str> {
    Ok(match text {
        "request" => Kind::Request,
        "ingress" => Kind::Ingress,
        "egress" => Kind::Egress,
        "burst" => Kind::Burst,
        "concurrency" => Kind::Concurrency,
        _ => return Err("expected request, ingress, egress, burst or concurrency"),
    })
}

/// Lists, shows and removes limiters in memory that processes share.
///
/// These are the files that processes open with the library `portcullis-shm`. NAME is the name of a
/// file in /dev/shm, or the path of a file, with a `/`.
#[cfg(target_os = "linux")]
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  portcullis shm ls
  portcullis shm show api
  portcullis shm rm api /run/app/limit

Exit code: 0 success, 2 a file cannot be read or removed.")]
pub(crate) struct ShmArgs {
    /// What to do
    #[command(subcommand)]
    pub(crate) command: ShmCommand,
}

#[cfg(target_os = "linux")]
#[derive(Debug, Subcommand)]
pub(crate) enum ShmCommand {
    /// Lists the files that have a name: name, kind, bytes, mode, user, state, settings
    Ls,
    /// Shows the kind and the settings of a file, who created it and whether processes use it; not
    /// the permits that are left
    Show {
        /// The name or the path
        name: String,
    },
    /// Removes files that no process uses
    Rm {
        /// The names or the paths
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Enforces a file of rules for proxies: runs the program `portcullis-serve`.
///
/// That program is a package of its own. It is looked for beside this program, and then in PATH.
/// All arguments are its own, also `--help`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct ServeArgs {
    /// The arguments of `portcullis-serve`
    #[arg(
        value_name = "ARGUMENTS",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_hint = ValueHint::FilePath
    )]
    pub(crate) arguments: Vec<OsString>,
}

/// Releases lines at a rate: those of the standard input, or of a command.
///
/// Lines are read when the rate allows them, and written unchanged, in order. They are released
/// evenly in small intervals: 100/s as 10 each 100 ms. At a rate below one in an interval, each
/// line has its own time, without drift.
///
/// In any time t, at most RATE * t is released, and what RATE allows in one interval. A line that
/// costs more than that is released when its whole cost has been saved up.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  portcullis pace 100/s < urls.txt | xargs -n 1 curl
  portcullis pace 1000000/s --cost bytes < backup.sql | psql
  portcullis pace 20000/s --cost field:2 < records.txt
  portcullis pace 5/s -- tail -f events.log

Exit code: 0 all lines were released, 2 a line or the command line cannot be used, otherwise that of
the command.")]
pub(crate) struct PaceArgs {
    /// The rate: N/PERIOD, for example 100/s or 5/10s
    #[arg(value_name = "RATE")]
    pub(crate) rate: Limit,
    /// The interval of releases
    #[arg(long, value_name = "PERIOD", default_value = "100ms", value_parser = period)]
    pub(crate) interval: Duration,
    /// The cost of a line: one, bytes (its end included), or field:N, the whole number in its Nth
    /// field; fields are separated by white space
    #[arg(long, value_name = "COST", default_value = "one", value_parser = line_cost)]
    pub(crate) cost: LineCost,
    /// Wait for the first interval too, instead of releasing what it allows at once
    #[arg(long)]
    pub(crate) empty: bool,
    /// A command whose lines are released, with its arguments, after `--`
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<String>,
}

/// What a line costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineCost {
    One,
    Bytes,
    /// The number in this field; the first one is 1.
    Field(NonZero<usize>),
}

fn line_cost(text: &str) -> Result<LineCost, String> {
    let field = || {
        text.strip_prefix("field:")?
            .parse()
            .ok()
            .map(LineCost::Field)
    };
    match text {
        "one" => Ok(LineCost::One),
        "bytes" => Ok(LineCost::Bytes),
        _ => field().ok_or_else(|| "expected one, bytes or field:N".into()),
    }
}

/// Prints a script that completes the arguments of this program in a shell.
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_a_command_the_demo_runs_with_its_defaults() {
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
