//! Tests that the core's registry of limiters is complete, and that each limiter in it is wherever
//! all limiters have to be. A limiter that is missing would be left out of the suites that test all
//! limiters.

use std::collections::BTreeSet;
use std::path::Path;

use crate::files;
use crate::rust_text;
use crate::sources;

/// The names and types of the registered limiters.
const REGISTERED: &[(&str, &str)] = {
    macro_rules! named {
        ($($name:ident: $type:ty { $($_rest:tt)* })*) => {
            &[$((stringify!($name), stringify!($type)),)*]
        };
    }
    for_each_limiter!(named)
};

/// What a denial of each does, in the same order.
const DENIALS: &[&str] = {
    macro_rules! denials {
        ($($_name:ident: $_type:ty {
            on: $_on:tt,
            new: $_new:tt,
            on_board: $_board:tt,
            back: $_back:ident,
            denial: $denial:ident,
            $($_rest:tt)*
        })*) => {
            &[$(stringify!($denial),)*]
        };
    }
    for_each_limiter!(denials)
};

/// Have no state, so there is nothing to model, to explore, to break or to tune.
const STATELESS: [&str; 1] = ["unlimited"];

/// Types that implement `Limiter` around other limiters, or for a part of one.
const WRAPPERS: [&str; 10] = [
    "AllOf",
    "Attached",
    "ConcurrencyShare",
    "Counted",
    "Escalation",
    "KeyIn",
    "KeyLimiter",
    "Penalty",
    "Slice",
    "Stripe",
];

/// Returns `TokenBucket` for `portcullis_core::TokenBucket<W>`.
fn without_path(registered: &str) -> &str {
    let name = registered.split('<').next().unwrap_or_default();
    name.trim_end()
        .rsplit([':', ' '])
        .next()
        .unwrap_or_default()
}

/// Returns the types that implement `Limiter` in this source, by themselves or by a row of
/// `around_word!`, except those in its documentation.
fn implemented(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let row = line
            .strip_prefix("    [")
            .filter(|row| row.contains(" => |"));
        let (generics, name) = match row {
            Some(row) => ("", row.split_once("] ")?.1),
            None => line.strip_prefix("impl")?.split_once(" Limiter for ")?,
        };
        let end = name.find(|c: char| !c.is_alphanumeric())?;
        (generics.is_empty() || generics.ends_with('>')).then_some(&name[..end])
    })
}

#[test]
fn every_limiter_of_the_core_is_registered() {
    let mut sources = sources::of_packages(files::root()).expect("the sources");
    sources.retain(|source| source.package == "core");
    let found = sources.iter().flat_map(|source| implemented(&source.text));
    let found: BTreeSet<_> = found.collect();
    let known: BTreeSet<_> = REGISTERED
        .iter()
        .map(|(_, registered)| without_path(registered))
        .chain(WRAPPERS)
        .collect();
    let missing: Vec<_> = found.difference(&known).collect();
    assert!(
        missing.is_empty(),
        "{missing:?}: add a row to core/tests/support/registry.rs"
    );
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "{gone:?}: implement no `Limiter`");
}

#[test]
fn every_registered_limiter_has_a_source_and_a_test_of_its_name() {
    for (name, _) in REGISTERED {
        for folder in ["src/limiters", "tests"] {
            let file = files::root().join("core").join(folder).join(name);
            let file = file.with_extension("rs");
            assert!(file.is_file(), "{} is missing", file.display());
        }
    }
}

/// Returns the text of a file, or the code of all Rust files in a folder and below, without
/// comments: a name in a comment is no use of it.
fn text(place: &str) -> String {
    let read = |file: &Path| files::read(file).unwrap_or_else(|why| panic!("{why}"));
    let path = files::root().join(place);
    if path.is_file() {
        return read(&path);
    }
    let files = sources::files(&path).expect("the sources");
    let files = files.iter();
    let rust = files.filter(|file| files::has_extension(file, "rs"));
    rust.map(|file| rust_text::code_of(&read(&path.join(file))))
        .collect()
}

fn has_word(code: &str, name: &str) -> bool {
    rust_text::words(code).any(|(_, word)| word == name)
}

/// Returns the types of a source of a limiter that users need: the limiter and its builder.
fn exported<'c>(code: &'c str, kind: &str) -> Vec<&'c str> {
    let mut before = "";
    let mut names = Vec::new();
    for (at, word) in rust_text::words(code) {
        let is_public = before == "struct" && code[..at].ends_with("pub struct ");
        if is_public && (word == kind || word.ends_with("Builder")) {
            names.push(word);
        }
        before = word;
    }
    names
}

#[test]
fn every_registered_limiter_and_its_builder_are_exported() {
    let exports = rust_text::code_of(&text("core/src/limiters.rs"));
    let mut missing = Vec::new();
    for (name, registered) in REGISTERED {
        let code = rust_text::code_of(&text(&format!("core/src/limiters/{name}.rs")));
        let names = exported(&code, without_path(registered));
        assert!(!names.is_empty(), "core/src/limiters/{name}.rs: no type");
        let hidden = names.iter().filter(|kind| !has_word(&exports, kind));
        missing.extend(hidden.map(|kind| format!("export `{name}::{kind}`")));
    }
    assert!(
        missing.is_empty(),
        "core/src/limiters.rs: {}",
        missing.join(", ")
    );
}

#[test]
fn every_registered_limiter_is_modelled_explored_broken_and_documented() {
    let mutants = ["core", "explore", "loom", "orderings"];
    let mutants = mutants.map(|list| text(&format!("xtask/mutants/{list}.txt")));
    let places = ["loom-tests/tests", "explore/tests"].map(|place| (place, text(place)));
    let tables = ["docs/choosing.md", "docs/tuning.md"].map(|place| (place, text(place)));
    let orderings = text("docs/memory-ordering.md").to_lowercase();
    let mut missing = Vec::new();
    let has_state = |(name, _): &&(&str, &str)| !STATELESS.contains(name);
    for (name, registered) in REGISTERED.iter().filter(has_state) {
        let kind = without_path(registered);
        for (place, text) in &places {
            if !has_word(text, kind) {
                missing.push(format!("{place}: no `{kind}`"));
            }
        }
        for (place, text) in &tables {
            if !["`", "<"]
                .iter()
                .any(|end| text.contains(&format!("`{kind}{end}")))
            {
                missing.push(format!("{place}: no row for `{kind}`"));
            }
        }
        if !orderings.contains(&name.replace('_', " "))
            && !orderings.contains(&format!("{name}.rs"))
        {
            missing.push(format!("docs/memory-ordering.md: {name} is not named"));
        }
        let file = format!("@ core/src/limiters/{name}");
        let is_of = |line: &str| {
            line.strip_prefix(&file)
                .is_some_and(|rest| rest.starts_with(['.', '/']))
        };
        if !mutants.iter().any(|list| list.lines().any(is_of)) {
            missing.push(format!("xtask/mutants: no list breaks {name}.rs"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn the_documentation_names_every_limiter_whose_denials_act() {
    let library = text("core/src/lib.rs");
    let after = library
        .split_once("**A denial writes nothing**")
        .expect("the guarantee")
        .1;
    let paragraph = after.split("//! - **").next().unwrap_or_default();
    let acting = REGISTERED
        .iter()
        .zip(DENIALS)
        .filter(|(_, denial)| **denial == "acts");
    let mut count = 0;
    for ((_, registered), _) in acting {
        let kind = without_path(registered);
        count += 1;
        assert!(
            paragraph.contains(&format!("[`{kind}`]")),
            "core/src/lib.rs: name {kind} under \"A denial writes nothing\""
        );
    }
    assert!(count > 0, "none acts");
}

#[test]
fn only_implementations_of_the_trait_itself_are_found() {
    let source = "\
/// impl Limiter for Documented {
impl Limiter for Plain {
impl<W: Word> Limiter for OnWords<W> {
impl<L: Limiter> QueueLimiter for Other<L> {
impl<P> Limiter for Wrapped<P>
where
around_word! {
    [W: Word] AroundWord<W> => |limiter| limiter;
";
    assert_eq!(
        implemented(source).collect::<Vec<_>>(),
        ["Plain", "OnWords", "Wrapped", "AroundWord"]
    );
    assert_eq!(
        without_path("portcullis_core::TokenBucket<W>"),
        "TokenBucket"
    );
    assert_eq!(
        without_path("portcullis_core :: SlidingWindow < 8, W >"),
        "SlidingWindow"
    );
}
