//! The kinds of rules that a log can be judged by, and how each of them is asked.

use portcullis_policy::{Kind, Policy, Request, Rule};

/// The kinds of rules that a log can be judged by, in the order in which they are asked. A log does
/// not tell the size of requests, so rules for [`Kind::Ingress`] are not asked.
pub(crate) const KINDS: [Kind; 4] = [Kind::Request, Kind::Burst, Kind::Concurrency, Kind::Egress];

/// Asks about one line once for each of `kinds`, until `ask` denies it. Returns whether none did.
pub(crate) fn ask_each(
    kinds: &[Kind],
    request: &Request<'_>,
    bytes: u64,
    mut ask: impl FnMut(&Request<'_>) -> bool,
) -> bool {
    kinds.iter().all(|&kind| {
        let cost = match kind {
            Kind::Egress => u32::try_from(bytes).unwrap_or(u32::MAX),
            _ => 1,
        };
        // A cost of 0 would be a probe. Here it is a reply that costs nothing.
        cost == 0 || ask(&request.kind(kind).cost(cost))
    })
}

/// The kinds of the rules of a policy that a log can be judged by.
pub(crate) fn kinds_of(policy: &Policy) -> Vec<Kind> {
    let is_asked = |kind: &Kind| policy.rules_of(*kind).any(Rule::is_enabled);
    KINDS.into_iter().filter(is_asked).collect()
}
