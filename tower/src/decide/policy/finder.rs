//! What a policy is asked about besides the head of a request.

use core::error::Error;
use core::fmt;
use std::sync::Arc;

use portcullis_policy::{Fields, Policy};

use crate::head::RequestHead;

type Property = dyn for<'r> Fn(&RequestHead<'r>, &str) -> Option<&'r str> + Send + Sync;
type Tier = dyn for<'r> Fn(&RequestHead<'r>) -> &'r str + Send + Sync;

/// The property of a request that names its endpoint.
const ENDPOINT: &str = "endpoint";

/// Finds what only the program knows of a request: its properties, and the service tier of its
/// client.
#[derive(Clone, Default)]
pub(crate) struct Finder {
    pub(super) property: Option<Arc<Property>>,
    pub(super) tier: Option<Arc<Tier>>,
    pub(super) endpoint: Option<Arc<str>>,
}

/// The properties of a request.
pub(crate) struct Found<'a, 'r> {
    head: &'a RequestHead<'r>,
    finder: &'a Finder,
}

impl Finder {
    pub(crate) fn properties<'a, 'r>(&'a self, head: &'a RequestHead<'r>) -> Found<'a, 'r> {
        Found { head, finder: self }
    }

    pub(crate) fn tier<'r>(&self, head: &RequestHead<'r>) -> &'r str {
        self.tier.as_ref().map_or("", |tier| tier(head))
    }
}

impl Fields for Found<'_, '_> {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.value(name).map(str::as_bytes)
    }

    // The text is known to be UTF-8.
    fn value(&self, name: &str) -> Option<&str> {
        match &self.finder.endpoint {
            Some(endpoint) if name == ENDPOINT => Some(endpoint),
            _ => (self.finder.property.as_ref()?)(self.head, name),
        }
    }
}

/// No rule of the policy is for this endpoint.
///
/// ```
/// use portcullis_policy::Policy;
/// use portcullis_tower::ByPolicy;
///
/// let unknown = ByPolicy::new(Policy::new([]).unwrap()).endpoint("uploads").unwrap_err();
/// assert_eq!(
///     unknown.to_string(),
///     "no rule has the condition `endpoint = \"uploads\"` in its properties"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEndpoint(pub(super) Box<str>);

impl UnknownEndpoint {
    /// An error if no rule of a policy is for an endpoint.
    pub(super) fn check(policy: &Policy, endpoint: &str) -> Result<(), Self> {
        let mut rules = policy.rules();
        if rules.any(|rule| rule.needs_property(ENDPOINT, endpoint)) {
            Ok(())
        } else {
            Err(Self(endpoint.into()))
        }
    }
}

impl fmt::Display for UnknownEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0;
        write!(
            f,
            "no rule has the condition `{ENDPOINT} = {name:?}` in its properties"
        )
    }
}

impl Error for UnknownEndpoint {}
