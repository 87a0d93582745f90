//! Measured figures in documents. Each names its source in a comment, which is invisible on the
//! rendered page: `42<!-- token_bucket.allow -->`.

/// Returns the document with the figures from `source` for the names in it. Names have the form
/// `group.name`. Other comments are left alone.
///
/// # Errors
///
/// Returns an error for a name that `source` does not know, or for a comment of that form without a
/// figure before it.
pub(crate) fn filled(
    document: &str,
    source: impl Fn(&str) -> Option<u64>,
) -> Result<String, String> {
    let mut filled = String::with_capacity(document.len());
    let mut rest = document;
    while let Some((before, after)) = rest.split_once(START) {
        let (name, after) = after.split_once(END).ok_or("a comment does not end")?;
        if is_name(name) {
            let text = before.trim_end_matches(|c: char| c.is_ascii_digit() || c == ',');
            if text.len() == before.len() {
                return Err(format!("no figure before {START}{name}{END}"));
            }
            let figure = source(name).ok_or_else(|| format!("{name} is not measured"))?;
            filled.push_str(text);
            filled.push_str(&grouped(figure));
        } else {
            filled.push_str(before);
        }
        filled.extend([START, name, END]);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

const START: &str = "<!-- ";
const END: &str = " -->";

fn is_name(comment: &str) -> bool {
    let is_part = |part: &str| {
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        !part.is_empty() && part.chars().all(is_word)
    };
    comment
        .split_once('.')
        .is_some_and(|(group, name)| is_part(group) && is_part(name))
}

/// Formats with a comma before each three digits: `1,267`.
fn grouped(figure: u64) -> String {
    let digits = figure.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_figures_are_replaced() {
        let source = |name: &str| (name == "bucket.allow").then_some(1_234_567);
        let before = "| 41<!-- bucket.allow --> | 9 | <!-- from src/main.rs -->\n";
        let after = "| 1,234,567<!-- bucket.allow --> | 9 | <!-- from src/main.rs -->\n";
        assert_eq!(filled(before, source).as_deref(), Ok(after));
        assert_eq!(filled(after, source).as_deref(), Ok(after));
    }

    #[test]
    fn unknown_names_and_missing_figures_are_errors() {
        let none = |_: &str| None;
        assert!(filled("41<!-- bucket.allow -->", none).is_err());
        let known = |_: &str| Some(1);
        assert!(filled("as many<!-- bucket.allow -->", known).is_err());
        assert!(filled("41<!-- bucket.allow", known).is_err());
    }
}
