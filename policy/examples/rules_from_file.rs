//! Puts the rules of a file in force, or prints all its errors.

use portcullis_core::{Clock, MonotonicClock};
use portcullis_policy::{Policy, Request};

fn main() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/service.toml");
    let text = std::fs::read_to_string(path).expect("the file can be read");
    let policy = match Policy::from_toml(&text) {
        Ok(policy) => policy,
        Err(errors) => {
            for error in errors {
                eprintln!("{}", error.in_file("service.toml"));
            }
            return;
        }
    };
    let request = Request::new("GET", "/items").address("192.0.2.7".parse().unwrap());
    let decision = policy.decide_at(MonotonicClock::new().now(), &request);
    println!("allowed: {}", decision.is_allowed());
}
