//! The arguments of `replay`.

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};

use super::format::Format;
use super::key::Key;
use super::policy::recommend::{Share, ShareOf};
use crate::limit::{Algorithm, Limit, period};
use crate::policy_file::PolicyFormat;
use crate::text::spelled;

/// Replays access logs through one or more limits, and shows what they would have denied.
///
/// Time is the log's time. Lines are judged in the order of their times, sorted within a horizon.
/// Memory grows with the lines of one horizon and with the number of keys, not with the length of
/// the log. Windows lie on the grid of the Unix epoch. A token bucket starts full and is refilled
/// continuously.
///
/// Several logs are judged as one: the files of a rotated set in any order, or the logs of several
/// servers. Each may be compressed with gzip. Name the logs rather than joining them in a pipe, so
/// that they can be merged by time.
///
/// Malformed lines are counted and skipped. In the text formats, a line is malformed if it lacks
/// address, time, request, status or size in its place; referer and agent are optional. Only the
/// first 64 KiB of a line are read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Formats:
  auto      each line in any of the formats below that are no configuration; the default
  common    `%h %l %u %t \"%r\" %>s %b`, also with referer and agent
  combined  the same
  vhost     combined, after the virtual host
  json      one JSON object per line, with the usual member names
  haproxy, envoy, alb, w3c (iis, cloudfront)  each as the server writes it by default
  traefik, caddy, google, azure, cloudflare   names for combined or json
  ingress-nginx  combined, with its further fields
  json:ROLE=MEMBER,...  other names; roles: time, ip, size, user, path, host, referer, agent
  '...'     a format in the notation of nginx ($remote_addr ...) or Apache (%h ...), alone or as
            the whole directive (log_format, LogFormat)

Keys:
  ip        the address; ip/24 its network (IPv4, up to 32), ip/64 (IPv6, 33 to 128), ip/24/64 both
  global    no key: all requests share one limit
  user, path, host, referer, agent
  field:NAME  a field of the format: an nginx variable, a header field of Apache's %{NAME}i, a
            member of a JSON object
  ip,path   a combination: all parts must be equal
  A request without the field has the value `-`.

Examples:
  portcullis replay access.log --limit 60/m
  portcullis replay access.log* --limit 10/s --limit 10/s:burst=50 --limit 100/m --top 20
  ssh web cat access.log | portcullis replay - --limit 10/s --burst 50
  portcullis replay access.log.gz --limit 100/10s --algorithm sliding-window --segments 10 --json
  portcullis replay access.log --limit 1000000/m --cost bytes --key ip/24/64
  portcullis replay access.log --format '$remote_addr [$msec] $status $bytes_sent $http_x_key' \\
      --key field:http_x_key,path
  portcullis replay access.log --policy policy.toml
  portcullis replay access.log --policy policy.toml --recommend 1% --html report.html

Exit code: 0 success, 2 the command line or a log cannot be used.")]
pub(crate) struct ReplayArgs {
    /// The logs, plain or gzip; `-` or /dev/stdin reads standard input
    #[arg(value_name = "LOG", required = true, num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) logs: Vec<PathBuf>,
    /// N permits per PERIOD. A period is a unit, or a number and a unit, of ms, s, m, h and d.
    /// Repeat the option to compare several limits in a table. Settings of one limit follow it:
    /// `10/s:algorithm=token-bucket,burst=50` or `10/s:algorithm=sliding-window,segments=10`.
    /// [default: 60/m; with `--cost bytes`, 10000000/m]
    #[arg(long = "limit", value_name = "N/PERIOD")]
    pub(crate) limits: Vec<Limit>,
    /// Replay the rules of a policy file instead of limits. Its format follows from its extension.
    /// A folder has the files of Ocelot
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with_all = ["limits", "algorithm", "burst", "segments", "key", "cost"]
    )]
    pub(crate) policy: Option<PathBuf>,
    /// The format of the policy file, if its extension does not tell
    #[arg(long, value_enum, requires = "policy")]
    pub(crate) policy_format: Option<PolicyFormat>,
    /// With `--policy`: propose for each rule the smallest limits that deny at most this share of
    /// its keys, such as `1%` or `0.05%`. Keys that look like abuse are listed and do not count.
    /// Reads the logs several times
    #[arg(long, value_name = "SHARE", requires = "policy")]
    pub(crate) recommend: Option<Share>,
    /// What the share of `--recommend` is a share of: the keys of which a request is denied, or the
    /// requests
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "keys|requests",
        requires = "recommend"
    )]
    pub(crate) recommend_by: ShareOf,
    /// With `--recommend` and `--html`: count also the keys that look like abuse
    #[arg(long)]
    pub(crate) all_keys: bool,
    /// The algorithm of limits that do not set one
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "token-bucket|fixed-window|sliding-window"
    )]
    pub(crate) algorithm: Algorithm,
    /// The most permits that a token bucket holds [default: N]
    #[arg(long, value_name = "N")]
    pub(crate) burst: Option<u64>,
    /// The segments of a sliding window, up to 1024 [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) segments: Option<u32>,
    /// The key: requests with the same key share a limit, see below
    #[arg(long, value_name = "ip|global|...", default_value = "ip")]
    pub(crate) key: Key,
    /// The cost of a request: one permit, or one permit per byte of the reply. A reply of size `-`
    /// or 0 costs nothing and passes
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "one|bytes"
    )]
    pub(crate) cost: Cost,
    /// The format of the lines, see below
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub(crate) format: Format,
    /// `time`: judge lines in the order of their times; lines with equal times stay in the order of
    /// the log. `log`: judge lines in the order of the log; a line that is older than an earlier
    /// one counts at the newest time seen
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "time|log"
    )]
    pub(crate) order: OrderBy,
    /// How far lines may be out of order with `--order time`. A line that is later than this counts
    /// at the newest time judged [default: 60s]
    #[arg(long, value_name = "PERIOD", value_parser = period)]
    pub(crate) horizon: Option<Duration>,
    /// The number of most denied keys to show
    #[arg(long, value_name = "N", default_value = "10")]
    pub(crate) top: usize,
    /// Print one JSON object instead of a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the result also as a page, which needs nothing else: decisions over time, the busiest
    /// keys, and what keys need. Memory then also grows with the number of keys
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
}

impl ReplayArgs {
    /// Returns how far lines may be out of order to be sorted, or `None` if lines are not sorted.
    pub(crate) fn sorted_within(&self) -> Option<Duration> {
        match self.order {
            OrderBy::Time => Some(self.horizon.unwrap_or(Duration::from_mins(1))),
            OrderBy::Log => None,
        }
    }
}

/// The order in which lines are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderBy {
    /// The order of their times.
    #[default]
    Time,
    /// The order of the log.
    Log,
}

/// The cost of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cost {
    /// One permit.
    #[default]
    One,
    /// One permit per byte of the reply.
    Bytes,
}

impl fmt::Display for OrderBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spelled(self, f)
    }
}

impl fmt::Display for ShareOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spelled(self, f)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spelled(self, f)
    }
}
