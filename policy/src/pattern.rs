//! Path patterns: components, `*` for one component, `**` for any number.
//!
//! A pattern is split at its `**` into a prefix, chunks in the middle, and a suffix:
//!
//! ```text
//! /v1/**/x/*/**/_manifests     prefix [v1]   middle [[x, *]]   suffix [_manifests]
//! ```
//!
//! It matches a path whose first components match the prefix, whose last components match the
//! suffix, without overlap, and whose components in between contain the chunks in their order.
//! Each chunk takes the first place where it fits: a later place would leave the next chunks less
//! room. So no choice is tried twice, and [`Pattern::matches`] compares at most (components of the
//! path) x (components of the longest chunk) components. It explains; the [matcher](crate::matcher)
//! decides with less.

use crate::path::{PathReading, PathRules, components};
use crate::problem::{MAX_PATTERN_COMPONENTS, Problem};

/// One component of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Any component that is not empty.
    Any,
    Literal(Box<[u8]>),
}

impl Part {
    fn matches(&self, component: &[u8]) -> bool {
        match self {
            Self::Any => !component.is_empty(),
            Self::Literal(literal) => **literal == *component,
        }
    }
}

#[cfg(any(feature = "toml", feature = "json"))]
impl Part {
    /// Whether this part matches every component that the other one does.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (own, Self::Literal(literal)) => own.matches(literal),
            (Self::Literal(_), Self::Any) => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) prefix: Vec<Part>,
    /// `None` for a pattern without `**`, which is all prefix.
    pub(crate) rest: Option<Rest>,
}

/// What follows the first `**`.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) middle: Vec<Vec<Part>>,
    pub(crate) suffix: Vec<Part>,
}

impl Pattern {
    pub(crate) fn parse(text: &str, rules: PathRules) -> Result<Self, Problem> {
        if text.contains(['?', '#']) {
            return Err(Problem::PatternWithQuery);
        }
        // Which components there are is decided here.
        let rules = rules.reading(PathReading::Literal);
        let mut chunks = vec![Vec::new()];
        for component in text.split('/').filter(|component| !component.is_empty()) {
            let chunk = chunks.last_mut().expect("there is always a chunk");
            match component {
                "." | ".." => return Err(Problem::PatternWithDots),
                "*" => chunk.push(Part::Any),
                "**" => chunks.push(Vec::new()),
                // Also of `{*rest}`.
                component if component.contains(['{', '}']) => {
                    return Err(Problem::PatternWithName);
                }
                component if component.contains('*') => return Err(Problem::PartialWildcard),
                component => {
                    let literal = rules.normalize(component).map_err(Problem::Path)?;
                    for part in components(&literal) {
                        if matches!(part, b"." | b"..") {
                            return Err(Problem::PatternWithDots);
                        }
                        chunk.push(Part::Literal(part.into()));
                    }
                }
            }
        }
        // A slash at the end is the component of `with_slash`.
        let slash =
            usize::from(text.ends_with('/') && chunks.last().is_some_and(|c| !c.is_empty()));
        if chunks.iter().map(Vec::len).sum::<usize>() + slash > MAX_PATTERN_COMPONENTS {
            return Err(Problem::DeepPattern);
        }
        let mut chunks = chunks.into_iter();
        let prefix = chunks.next().unwrap_or_default();
        let rest = chunks.next_back().map(|suffix| Rest {
            middle: chunks.filter(|chunk| !chunk.is_empty()).collect(),
            suffix,
        });
        Ok(Self { prefix, rest })
    }

    /// The pattern of the paths that end with a slash as well, if this one, of `text`, does. For
    /// readings that tell both apart.
    pub(crate) fn with_slash(&self, text: &str) -> Option<Self> {
        let mut slashed = self.clone();
        let last = match &mut slashed.rest {
            Some(rest) => &mut rest.suffix,
            None => &mut slashed.prefix,
        };
        // After `**` it makes no difference, and the root has no other spelling.
        if last.is_empty() || !text.ends_with('/') {
            return None;
        }
        last.push(Part::Literal(Box::default()));
        Some(slashed)
    }

    /// The components that the path must have at least, or exactly if the pattern has no `**`.
    pub(crate) fn min_len(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, |rest| {
            rest.suffix.len() + rest.middle.iter().map(Vec::len).sum::<usize>()
        });
        self.prefix.len() + rest
    }

    pub(crate) fn matches(&self, path: &[&[u8]]) -> bool {
        let fits = match self.rest {
            Some(_) => path.len() >= self.min_len(),
            None => path.len() == self.prefix.len(),
        };
        let starts = |parts: &[Part], path: &[&[u8]]| {
            let mut both = parts.iter().zip(path);
            both.all(|(part, component)| part.matches(component))
        };
        if !fits || !starts(&self.prefix, path) {
            return false;
        }
        let Some(rest) = &self.rest else {
            return true;
        };
        let (path, last) = path.split_at(path.len() - rest.suffix.len());
        starts(&rest.suffix, last) && self.matches_middle(path, &rest.middle)
    }

    /// Whether this pattern matches every path that the other one does. `false` if that is not
    /// known: a `**` of the other one is only in a `**` of this one.
    #[cfg(any(feature = "toml", feature = "json"))]
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let (own, other) = (self.parts(), other.parts());
        // Of the parts so far of the other one: which numbers of own parts match them.
        let mut fits = vec![false; own.len() + 1];
        fits[0] = true;
        let pass = |fits: &mut Vec<bool>| {
            for (at, part) in own.iter().enumerate() {
                fits[at + 1] |= fits[at] && part.is_none();
            }
        };
        pass(&mut fits);
        for part in &other {
            let covers = |at: usize| match (own[at], part) {
                (None, _) => fits[at],
                (Some(own), Some(part)) => fits[at] && own.covers(part),
                (Some(_), None) => false,
            };
            // A `**` goes on with itself. Any other part is used up.
            let mut next = vec![false; own.len() + 1];
            for (at, part) in own.iter().enumerate() {
                next[at + usize::from(part.is_some())] |= covers(at);
            }
            pass(&mut next);
            fits = next;
        }
        fits[own.len()]
    }

    /// The parts in their order. `None` is a `**`.
    #[cfg(any(feature = "toml", feature = "json"))]
    fn parts(&self) -> Vec<Option<&Part>> {
        let mut parts: Vec<_> = self.prefix.iter().map(Some).collect();
        if let Some(rest) = &self.rest {
            for chunk in rest.middle.iter().chain([&rest.suffix]) {
                parts.push(None);
                parts.extend(chunk.iter().map(Some));
            }
        }
        parts
    }

    /// Whether the components between prefix and suffix contain the chunks, in order.
    fn matches_middle(&self, path: &[&[u8]], middle: &[Vec<Part>]) -> bool {
        let mut path = &path[self.prefix.len()..];
        middle.iter().all(|chunk| {
            let fits = |window: &[&[u8]]| {
                let mut both = chunk.iter().zip(window);
                both.all(|(part, component)| part.matches(component))
            };
            match path.windows(chunk.len()).position(fits) {
                Some(at) => {
                    path = &path[at + chunk.len()..];
                    true
                }
                None => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "toml")]
    #[test]
    fn a_pattern_covers_another_one_if_it_matches_all_of_its_paths() {
        for (pattern, other, expected) in [
            ("/**", "/a/*/b", true),
            ("/**", "/**", true),
            ("/a/**", "/a", true),
            ("/a/**", "/a/**/b", true),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/**", false),
            ("/*", "/a/b", false),
            ("/a", "/*", false),
            ("/**/b", "/a/**/c/b", true),
            ("/**/b", "/a/**", false),
            ("/**/a/**/b", "/x/a/y/b", true),
            ("/**/a/**/b", "/x/y/b", false),
            ("/a/b", "/a/b", true),
            ("/a/b", "/a/c", false),
        ] {
            let [own, other] =
                [pattern, other].map(|text| Pattern::parse(text, PathRules::new()).unwrap());
            assert_eq!(own.covers(&other), expected, "{pattern} {other:?}");
        }
    }

    fn matches(pattern: &str, path: &str) -> bool {
        let pattern = Pattern::parse(pattern, PathRules::new()).unwrap();
        let path: Vec<_> = components(path.as_bytes()).collect();
        pattern.matches(&path)
    }

    #[test]
    fn a_star_is_one_component_and_two_stars_are_any_number() {
        for (pattern, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a", false),
            ("/a/*", "/a/b/c", false),
            ("/a/**", "/a", true),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/ab", false),
            ("**", "/", true),
            ("v1/**/_manifests", "/v1/_manifests", true),
            ("v1/**/_manifests", "/v1/a/b/_manifests", true),
            ("v1/**/_manifests", "/v1/a/_manifests/b", false),
            ("**/v2/_tags/*", "/v2/_tags/x", true),
            ("**/v2/_tags/*", "/a/v2/_tags/x", true),
            ("**/v2/_tags/*", "/a/v2/_tags", false),
            ("/**/a/**/a/**", "/a", false),
            ("/**/a/**/a/**", "/a/a", true),
            ("/a/**/a", "/a", false),
            ("/**/x/*/**/y", "/x/y", false),
            ("/**/x/*/**/y", "/x/y/y", true),
            ("/**/x/y/**/z/**", "/x/x/y/z", true),
            ("/%2A/b", "/*/b", true),
            ("/%2A/b", "/a/b", false),
            ("/%7Bid%7d", "/{id}", true),
            ("/%7Bid%7d", "/a", false),
            ("//a//", "/a", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn a_pattern_that_could_not_match_as_written_is_refused() {
        let parse = |text: &str| Pattern::parse(text, PathRules::new()).map(|_| ());
        assert_eq!(parse("/a*/b"), Err(Problem::PartialWildcard));
        assert_eq!(parse("/***"), Err(Problem::PartialWildcard));
        for named in [
            "/users/{id}",
            "/users/{id:[0-9]+}/x",
            "/a/{*rest}",
            "/a{b",
            "/}",
        ] {
            assert_eq!(parse(named), Err(Problem::PatternWithName), "{named}");
        }
        assert_eq!(parse("/a/../b"), Err(Problem::PatternWithDots));
        assert_eq!(parse("/a/%2e%2E"), Err(Problem::PatternWithDots));
        assert_eq!(parse("/a?b"), Err(Problem::PatternWithQuery));
        assert_eq!(parse(&"/a".repeat(32)), Ok(()));
        assert_eq!(parse(&"/a".repeat(33)), Err(Problem::DeepPattern));
    }
}
