//! Templates of paths: text and placeholders in braces.

/// A pattern for the paths of a route.
pub(super) struct Upstream {
    pub(super) pattern: String,
    /// `/{placeholder}`, to which Ocelot gives the lowest priority.
    pub(super) is_catch_all: bool,
    pub(super) warnings: Vec<&'static str>,
}

/// Whether a component of a template is a placeholder, has one, or has none.
#[derive(PartialEq, Eq)]
enum Component {
    Placeholder,
    Mixed,
    Literal,
}

impl Component {
    fn of(text: &str) -> Self {
        match (text.find('{'), text.find('}')) {
            (Some(0), Some(end)) if end + 1 == text.len() => Self::Placeholder,
            (Some(_), _) => Self::Mixed,
            (None, _) => Self::Literal,
        }
    }
}

/// Checks the braces of a template. Returns its path and its query.
pub(super) fn split_template(template: &str) -> Result<(&str, Option<&str>), &'static str> {
    let mut is_open = false;
    for byte in template.bytes() {
        match (byte, is_open) {
            (b'{', false) => is_open = true,
            (b'}', true) => is_open = false,
            (b'{' | b'/', true) => return Err("has a `{` without its `}`"),
            (b'}', false) => return Err("has a `}` without its `{`"),
            _ => {}
        }
    }
    if is_open {
        return Err("has a `{` without its `}`");
    }
    if !template.starts_with('/') {
        return Err("does not begin with `/`");
    }
    Ok(match template.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (template, None),
    })
}

/// Text of a template as text of a pattern.
pub(super) fn literal(text: &str) -> String {
    text.replace('*', "%2A").replace('#', "%23")
}

pub(super) fn upstream_pattern(template: &str) -> Result<Upstream, &'static str> {
    let (path, query) = split_template(template)?;
    let mut upstream = Upstream {
        pattern: String::new(),
        is_catch_all: false,
        warnings: Vec::new(),
    };
    let mut components = path
        .split('/')
        .skip(1)
        .filter(|component| !component.is_empty());
    let mut count = 0;
    let mut next = components.next();
    while let Some(component) = next {
        next = components.next();
        count += 1;
        // No `/` follows, so that the placeholder takes the rest of the path.
        let takes_the_rest = next.is_none() && query.is_none() && !path.ends_with('/');
        let pattern = match (Component::of(component), takes_the_rest) {
            (Component::Literal, _) => &literal(component),
            (Component::Placeholder, true) => {
                upstream.is_catch_all = count == 1;
                "**"
            }
            (Component::Placeholder | Component::Mixed, false) => "*",
            // With an empty placeholder, the component and its `/` may be missing.
            (Component::Mixed, true) if component.starts_with('{') => "**",
            (Component::Mixed, true) => "*/**",
        };
        if Component::of(component) == Component::Mixed {
            upstream.warnings.push(
                "a placeholder is a part of a component: the rule is for paths with any text \
                 in that component",
            );
        }
        upstream.pattern.push('/');
        upstream.pattern.push_str(pattern);
    }
    if upstream.pattern.is_empty() {
        upstream.pattern.push('/');
    }
    if query.is_some_and(|query| Component::of(query) != Component::Placeholder) {
        let warning = "the query does not count: the rule is for requests with any query";
        upstream.warnings.push(warning);
    }
    Ok(upstream)
}

/// The pattern of a rule in `GlobalRateLimitRules`, for the downstream templates of routes. Without
/// a placeholder, a pattern is a prefix, of whole components. Otherwise it is a template: a
/// placeholder matches one component, and at the end of the pattern any number of them.
pub(super) struct GroupPattern {
    parts: Vec<String>,
    is_prefix: bool,
}

fn path_components(template: &str) -> impl Iterator<Item = &str> {
    let path = template.split('?').next().unwrap_or_default();
    path.split('/').filter(|component| !component.is_empty())
}

impl GroupPattern {
    pub(super) fn new(pattern: &str) -> Self {
        let path = pattern.split('?').next().unwrap_or_default();
        let mut parts: Vec<String> = path_components(pattern).map(str::to_owned).collect();
        let is_prefix = match parts.last() {
            Some(last) if Component::of(last) == Component::Placeholder && !path.ends_with('/') => {
                parts.pop();
                true
            }
            _ => !path.contains('{'),
        };
        Self { parts, is_prefix }
    }

    pub(super) fn matches(&self, downstream: &str, is_case_sensitive: bool) -> bool {
        let are_equal =
            |a: &str, b: &str| a == b || !is_case_sensitive && a.eq_ignore_ascii_case(b);
        let matches = |part: &str, component: &str| match (part.find('{'), part.rfind('}')) {
            (Some(start), Some(end)) => {
                let (before, after) = (&part[..start], &part[end + 1..]);
                let ends = component.get(..start).zip(
                    component
                        .len()
                        .checked_sub(after.len())
                        .and_then(|at| component.get(at..)),
                );
                component.len() >= before.len() + after.len()
                    && ends.is_some_and(|(first, last)| {
                        are_equal(first, before) && are_equal(last, after)
                    })
            }
            _ => are_equal(part, component),
        };
        let mut rest = path_components(downstream);
        self.parts.iter().all(|part| {
            rest.next()
                .is_some_and(|component| matches(part, component))
        }) && (self.is_prefix || rest.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_a_global_rule_is_a_template_or_a_prefix() {
        for (pattern, downstream, expected) in [
            ("/api/users/", "/api/users/{id}", true),
            ("/api/users/", "/api/users", true),
            ("/api/users", "/api/users/{id}/orders?x={y}", true),
            ("/api/users", "/api/users2", false),
            ("/api/users", "/API/Users", true),
            ("/", "/{everything}", true),
            ("/api/{any}", "/api", true),
            ("/api/{any}", "/api/a/b", true),
            ("/api/{any}", "/ap", false),
            ("/api/{v}/users", "/api/v1/users", true),
            ("/api/{v}/users", "/api/{version}/users", true),
            ("/api/{v}/users", "/api/v1/users/{id}", false),
            ("/api/{v}/users/", "/api/v1/users", true),
            ("/api/{v}/", "/api/v1/users", false),
            ("/api/v{v}/users", "/api/v1/users", true),
            ("/api/v{v}/users", "/api/1/users", false),
            ("/api/{v}-{w}-x/users", "/api/1-2-x/users", true),
            ("/api/ab{v}b", "/api/ab", false),
            ("/api/é{v}", "/api/aé", false),
        ] {
            assert_eq!(
                GroupPattern::new(pattern).matches(downstream, false),
                expected,
                "{pattern} {downstream}"
            );
        }
        assert!(!GroupPattern::new("/api").matches("/API", true));
    }
}
