//! The name that a misspelled one probably means.

/// Returns the known name that a misspelled one probably means: one at most a few letters apart,
/// without regard to case. `None` if there is none. For programs that have settings of their own in
/// a file of rules.
///
/// ```
/// use portcullis_policy::nearest;
/// let known = ["trusted", "wait"];
/// assert_eq!(nearest("trustd", known.into_iter()), Some("trusted"));
/// assert_eq!(nearest("colour", known.into_iter()), None);
/// ```
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let farthest = |known: &str| 1 + known.len() / 4;
    known
        // Names of very different lengths are not compared: that would take long.
        .filter(|known| name.len().abs_diff(known.len()) <= 4 * farthest(known))
        .map(|known| {
            let (name, lower) = (name.to_ascii_lowercase(), known.to_ascii_lowercase());
            (strsim::damerau_levenshtein(&name, &lower), known)
        })
        .filter(|&(distance, known)| distance <= farthest(known))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, known)| known)
}
