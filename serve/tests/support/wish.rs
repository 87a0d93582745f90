//! Recorded requests, and what was decided by "10 per second for each API key, 5 logins a minute
//! for each address, and 100 at once for the whole service": see [`RULES`].
//!
//! The requests of a second came at once, one after another, so there is never more than one at
//! once. In `LOG` a line is a request, with the status of its reply, its API key, and the rule that
//! has denied it.

#![allow(dead_code, reason = "each test uses a part")]

/// The one file.
pub(crate) const RULES: &str = include_str!("../../../policy/examples/together.toml");

pub(crate) const LOG: &str = include_str!("wish.log");

/// The format of `LOG`, in the words of nginx.
pub(crate) const FORMAT: &str =
    "$remote_addr [$time_local] \"$request\" $status \"$http_x_api_key\" \"$rule\"";

/// A request of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wished {
    pub(crate) client: &'static str,
    pub(crate) second: u64,
    /// The method and the target.
    pub(crate) line: &'static str,
    pub(crate) status: u16,
    pub(crate) key: Option<&'static str>,
    /// The rule that denies it.
    pub(crate) denied_by: Option<&'static str>,
}

fn some(text: &'static str) -> Option<&'static str> {
    (text != "-").then_some(text)
}

pub(crate) fn wished() -> Vec<Wished> {
    let request = |line: &'static str| {
        let parts: Vec<_> = line.split('"').collect();
        let (client, time) = parts[0].split_once(' ').expect("a client and a time");
        Wished {
            client,
            second: time[19..21].parse().expect("a second"),
            line: parts[1].strip_suffix(" HTTP/1.1").expect("a request"),
            status: parts[2].trim().parse().expect("a status"),
            key: some(parts[3]),
            denied_by: some(parts[5]),
        }
    };
    LOG.lines().map(request).collect()
}
