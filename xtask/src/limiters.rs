//! Tests that the core's registry of limiters is complete. A limiter that is missing would be left
//! out of the suites that test all limiters.

use std::collections::BTreeSet;

use crate::files;
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
