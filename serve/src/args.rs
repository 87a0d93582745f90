//! The command line.

use core::net::SocketAddr;
use core::time::Duration;
use std::path::PathBuf;

use clap::{Parser, ValueEnum, ValueHint};
use portcullis_policy::parse_period;

/// Answers proxies whether a request may pass, by the rules of a policy file.
///
/// Proxies ask at the path `/check/NAME`: nginx, haproxy, traefik or caddy. Only proxies of the
/// networks in `serve.trusted` of the file may ask. The guide for each proxy is docs/operators.md
/// of the repository.
#[derive(Debug, Parser)]
#[command(
    name = "portcullis-serve",
    version,
    args_override_self = true,
    after_help = "Examples:
  portcullis-serve policy.toml
  portcullis-serve policy.toml --listen 10.0.0.5:8787 --log json
  portcullis-serve policy.toml --shadow
  portcullis-serve policy.toml --check

The file is read again when it changes, and at once on SIGHUP. A file that is not valid is reported,
and changes nothing. SIGTERM lets the checks that are under way end.

Exit code: 0 it was asked to stop, or the file is valid, 2 the command line, the file or an address cannot be used."
)]
pub(crate) struct Args {
    /// The policy file: its name ends with .toml, .json or .jsonc
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Says whether the file is valid, with its table `serve`, and what is doubtful in it. Listens
    /// nowhere
    #[arg(long)]
    pub(crate) check: bool,
    /// With --check: what is doubtful in the file is an error
    #[arg(long, requires = "check")]
    pub(crate) deny_warnings: bool,
    /// Where proxies ask
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8787")]
    pub(crate) listen: SocketAddr,
    /// Where Envoy asks, by gRPC without TLS. Default: nowhere
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<SocketAddr>,
    /// Where operators ask: the page at /, /metrics and /ready
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8788")]
    pub(crate) admin: SocketAddr,
    /// Lets every request pass, and only counts and logs what the rules decide
    #[arg(long)]
    pub(crate) shadow: bool,
    /// The most connections of proxies at once. More wait until one ends
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connections: u16,
    /// How often the file is looked at. A change is in force after two looks
    #[arg(long, value_name = "PERIOD", default_value = "1s", value_parser = period)]
    pub(crate) poll: Duration,
    /// How long after SIGTERM proxies are still answered, while /ready says 503
    #[arg(long, value_name = "PERIOD", default_value = "0s", value_parser = period_or_none)]
    pub(crate) drain: Duration,
    /// The form of the log, which goes to the standard error
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub(crate) log: LogForm,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    Text,
    Json,
    Off,
}

fn period(text: &str) -> Result<Duration, String> {
    parse_period(text).map_err(|error| error.to_string())
}

fn period_or_none(text: &str) -> Result<Duration, String> {
    if text == "0s" {
        return Ok(Duration::ZERO);
    }
    period(text)
}
