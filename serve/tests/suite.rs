//! The program, asked as proxies ask it.
#![allow(
    clippy::duplicate_mod,
    reason = "the files of `support/` are modules of each file that uses them"
)]

#[path = "bounds.rs"]
mod bounds;

#[path = "caddy.rs"]
mod caddy;

#[path = "checks.rs"]
mod checks;

#[path = "envoy.rs"]
mod envoy;

#[path = "floods.rs"]
mod floods;

#[path = "haproxy.rs"]
mod haproxy;

#[path = "metrics.rs"]
mod metrics;

#[path = "nginx.rs"]
mod nginx;

#[path = "other_proxies.rs"]
mod other_proxies;

#[path = "reload.rs"]
mod reload;

#[path = "stop.rs"]
mod stop;

#[path = "stores.rs"]
mod stores;
