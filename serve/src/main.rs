//! The program `portcullis-serve`: proxies ask it whether a request may pass.
//!
//! ```text
//! nginx, HAProxy, Traefik, Caddy           Envoy
//!        |  a check: a request that         |  descriptors of a request
//!        |  describes another one           |
//!        v                                  v
//! server ---> check ---> original,        envoy: the request that the question is about
//!                |
//!                +-----> the layer of portcullis-tower, by the policy in force
//!                |            |
//!                |            +---> counts, logs: each decision
//!                v
//!        2xx, or a denial in the form that the proxy understands
//! ```
//!
//! It decides nothing by itself: the decision, its status and its header fields are those of the
//! layer, and the rules are those of the policy file.
//!
//! | module | what is in it |
//! |---|---|
//! | [`args`] | the command line |
//! | [`settings`] | the settings of this program in the policy file |
//! | [`stores`] | the counter stores that these settings describe |
//! | [`original`] | from a check to the request that it is about |
//! | [`check`] | answers checks |
//! | [`described`] | what is known of a request besides its head |
//! | [`envoy`] | Envoy's rate limit service: its messages, and the requests that they are about |
//! | [`counts`] | counts of what was decided and answered |
//! | [`exposition`] | the counts as text for Prometheus |
//! | [`admin`] | what operators ask: readiness, metrics and the page |
//! | [`page`] | who is throttled, and what would happen to a request, as HTML |
//! | [`server`] | connections, and their bounds |
//! | [`reload`] | reads the policy file again |
//! | [`run`] | from the start of the program to its end |
//! | [`logs`] | events as lines of text or JSON |
//! | [`seldom`] | a limit on events that clients cause |

mod admin;
mod args;
mod check;
mod counts;
mod described;
mod envoy;
mod exposition;
mod logs;
mod original;
mod page;
mod reload;
mod run;
mod seldom;
mod server;
mod settings;
mod stores;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    logs::start(args.log);
    match run::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("portcullis-serve: {error}");
            ExitCode::from(2)
        }
    }
}
