//! What is known of a request besides its head: an extension of the requests that Envoy asks about.
//! The layer finds there what rules ask for. A request without it has no properties and no tier,
//! and costs one permit.

use portcullis_tower::RequestHead;

/// What a descriptor of Envoy says of a request.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    /// Names and values.
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) tier: String,
    pub(crate) cost: u32,
}

fn of<'r>(head: &RequestHead<'r>) -> Option<&'r Described> {
    head.extensions.get()
}

/// The property of a request. Of several with a name, the first one counts.
pub(crate) fn property<'r>(head: &RequestHead<'r>, name: &str) -> Option<&'r str> {
    let mut all = of(head)?.properties.iter();
    let (_, value) = all.find(|(key, _)| key == name)?;
    Some(value)
}

/// The tier of a request.
pub(crate) fn tier<'r>(head: &RequestHead<'r>) -> &'r str {
    of(head).map_or("", |described| &described.tier)
}

/// The permits that a request takes.
pub(crate) fn cost(head: &RequestHead<'_>) -> u32 {
    of(head).map_or(1, |described| described.cost)
}
