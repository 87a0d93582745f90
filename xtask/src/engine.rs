//! Tests that one file of the wait queue takes permits: the rules of when a take may be denied, and
//! who is served after it, hold only for takes that pass through it.

use crate::files;
use crate::rust_text;
use crate::sources::{self, Source};

/// The folder of the engine behind the queues.
const ENGINE: &str = "async/src/waiting";

/// The file that takes permits.
const TAKES: &str = "async/src/waiting/wait_queue/ask.rs";

/// The methods by which permits of a limiter are taken.
const METHODS: [&str; 11] = [
    "allow_at",
    "decide",
    "drain_at",
    "put_to",
    "take_at",
    "take_at_then",
    "take_explained_at",
    "take_within",
    "try_acquire_at",
    "try_acquire_between_at",
    "try_acquire_explained_at",
];

/// Returns the calls in a source that take permits, with their lines.
fn takes(source: &str) -> Vec<String> {
    let code = rust_text::without_tests(&rust_text::code_of(source));
    let words: Vec<_> = rust_text::words(&code).collect();
    let mut found = Vec::new();
    for of in words.windows(2) {
        let [(_, before), (at, word)] = of else {
            continue;
        };
        // A call of a method, or a path to it. Code that makes an `Ask` asks a limiter itself.
        let is_taken = [".", ":"].contains(before) && METHODS.contains(word);
        if is_taken || *word == "Ask" {
            found.push(format!("{}: {word}", code[..*at].lines().count()));
        }
    }
    found
}

#[test]
fn only_one_file_of_the_engine_takes_permits() {
    let mut sources = sources::of_packages(files::root()).expect("the sources");
    sources.retain(|source| source.file.starts_with(ENGINE));
    let is_other = |source: &&Source| source.file != TAKES;
    let wrong = sources.iter().filter(is_other).flat_map(|source| {
        let calls = takes(&source.text).into_iter();
        calls.map(|call| format!("{}:{call}", source.file))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(
        wrong.is_empty(),
        "these take permits outside {TAKES}, which is to take them: {wrong:#?}"
    );
    let own = sources.iter().find(|source| source.file == TAKES);
    let own = own.map_or_else(Vec::new, |source| takes(&source.text));
    assert!(!own.is_empty(), "{TAKES} takes no permits");
}

#[test]
fn the_methods_that_take_permits_are_those_of_the_core() {
    let text = ["core/src/limiter.rs", "core/src/limiter/ask.rs"]
        .map(|file| files::read(&files::root().join(file)).expect("a source"));
    let code = rust_text::code_of(&text.concat());
    for method in METHODS {
        assert!(
            code.contains(&format!("fn {method}(")) || code.contains(&format!("fn {method}<")),
            "the core has no {method}"
        );
    }
}

#[test]
fn calls_that_take_permits_are_found() {
    let source = "\
// source.take_at(now, 0)
fn take_at() { self.source.at(key).take_at(now, 0); Limiter::decide(&limiter, of) }
fn f() { limiter.decide(Ask::new(now, 1, How::Attempt)) }
#[cfg(test)]
mod tests { fn g() { limiter.take_at(now, 1) } }
";
    assert_eq!(
        takes(source),
        ["2: take_at", "2: decide", "3: decide", "3: Ask"]
    );
}
