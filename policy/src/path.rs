//! Normalization of paths: one spelling for every path that means the same resource.
//!
//! The rules, in the order in which they apply:
//!
//! 1. The path ends at the first `?` or `#`.
//! 2. A percent-encoded byte is decoded, once. `%2F`, `%25`, `%3F` and `%23` stay encoded, in upper
//!    case: decoded they would be `/`, `%`, `?` and `#`, and mean something else. A `%` without two
//!    hexadecimal digits becomes `%25`.
//! 3. A component `.` is dropped. A component `..` is dropped together with the component before
//!    it; at the root, alone.
//! 4. Empty components are dropped, so `//` is `/`, and a trailing slash does not matter.
//! 5. With [`ignoring_case`](PathRules::ignoring_case), ASCII letters become lower-case.
//!
//! Invariant: a normalized path is its own normalization. So no path has two spellings that match
//! different rules, and decoding happens once.

use core::fmt;

/// The longest path that is matched, in bytes, without its query.
pub const MAX_PATH_LEN: usize = 8_192;
/// The largest number of components of a path that is matched.
pub const MAX_COMPONENTS: usize = 256;

/// How paths are normalized before they are matched. The same rules apply to the paths of requests
/// and to the patterns of rules.
///
/// - The path ends at the first `?` or `#`.
/// - A percent-encoded byte is decoded, once. `%2F`, `%25`, `%3F` and `%23` stay encoded. A `%`
///   without two hexadecimal digits becomes `%25`.
/// - Components `.` and `..` are resolved. Above the root, `..` is dropped.
/// - Empty components are dropped, so `//` and a trailing slash do not matter.
/// - Upper and lower case differ, unless [`ignoring_case`](Self::ignoring_case) is set.
///
/// ```
/// use portcullis_policy::PathRules;
///
/// let rules = PathRules::new();
/// assert_eq!(rules.normalize("/a/./b//%63/../%64/?q=1")?, b"/a/b/d");
/// assert_eq!(rules.normalize("/a%2fb")?, b"/a%2Fb");
/// # Ok::<(), portcullis_policy::PathError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    ignore_case: bool,
    split_encoded: bool,
}

impl PathRules {
    /// The rules as described above, by which upper and lower case differ.
    ///
    /// ```
    /// # use portcullis_policy::PathRules;
    /// assert_ne!(PathRules::new().normalize("/A"), PathRules::new().normalize("/a"));
    /// ```
    pub const fn new() -> Self {
        Self {
            ignore_case: false,
            split_encoded: false,
        }
    }

    /// Converts ASCII letters to lower case. For services that do not distinguish them.
    ///
    /// ```
    /// # use portcullis_policy::PathRules;
    /// assert_eq!(PathRules::new().ignoring_case().normalize("/Users")?, b"/users");
    /// # Ok::<(), portcullis_policy::PathError>(())
    /// ```
    #[must_use]
    pub const fn ignoring_case(mut self) -> Self {
        self.ignore_case = true;
        self
    }

    /// Decodes `%2F` too, to a `/` that separates components. For services that do so.
    ///
    /// ```
    /// # use portcullis_policy::PathRules;
    /// assert_eq!(PathRules::new().decoding_slashes().normalize("/a%2Fb")?, b"/a/b");
    /// # Ok::<(), portcullis_policy::PathError>(())
    /// ```
    #[must_use]
    pub const fn decoding_slashes(mut self) -> Self {
        self.split_encoded = true;
        self
    }

    /// Returns the normalized path. It begins with `/`, and ends with one only if it is the root.
    /// The bytes are those of the path, decoded, so they need not be UTF-8.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path is longer than [`MAX_PATH_LEN`], or has more components than
    /// [`MAX_COMPONENTS`].
    ///
    /// # Cost
    ///
    /// Linear in the length of the path. Allocates the result; a match does not.
    ///
    /// ```
    /// # use portcullis_policy::PathRules;
    /// assert_eq!(PathRules::new().normalize("")?, b"/");
    /// # Ok::<(), portcullis_policy::PathError>(())
    /// ```
    pub fn normalize(&self, path: &str) -> Result<Vec<u8>, PathError> {
        self.with(path, |path| {
            let mut normalized = Vec::with_capacity(path.len());
            for component in components(path) {
                normalized.push(b'/');
                normalized.extend(component);
            }
            if normalized.is_empty() {
                normalized.push(b'/');
            }
            normalized
        })
        .and_then(|path| match components(&path).count() {
            0..=MAX_COMPONENTS => Ok(path),
            _ => Err(PathError::TooManyComponents),
        })
    }

    /// Calls `f` with the normalized path, except that it may contain empty components. Does not
    /// allocate. A path that is normalized already is not copied.
    #[inline]
    pub(crate) fn with<R>(self, path: &str, f: impl FnOnce(&[u8]) -> R) -> Result<R, PathError> {
        let path = path.as_bytes();
        if path.len() <= MAX_PATH_LEN && !self.may_change(path) {
            Ok(f(path))
        } else {
            self.with_copy(path, f)
        }
    }

    /// Whether normalization may change more than empty components. Vectorized by the compiler, so
    /// it looks at all bytes.
    #[inline]
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "a branch would prevent vectorization"
    )]
    fn may_change(self, path: &[u8]) -> bool {
        let special = |byte| matches!(byte, b'%' | b'?' | b'#');
        let changed = |byte: u8| special(byte) | (self.ignore_case & byte.is_ascii_uppercase());
        let pairs = path.iter().zip(path.get(1..).unwrap_or_default());
        let dotted = pairs.fold(false, |any, (&a, &b)| any | ((a == b'/') & (b == b'.')));
        dotted
            | path.iter().fold(false, |any, &byte| any | changed(byte))
            | (path.first() == Some(&b'.'))
    }

    #[cold]
    #[inline(never)]
    fn with_copy<R>(self, path: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<R, PathError> {
        let is_end = |byte: &u8| matches!(byte, b'?' | b'#');
        let end = path.iter().position(is_end).unwrap_or(path.len());
        let mut copy = Copy {
            bytes: [0; MAX_PATH_LEN],
            len: 0,
            component: 0,
        };
        copy.push(b"/")?;
        copy.component = 1;
        let mut rest = &path[..end];
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            let byte = match byte {
                b'/' => {
                    copy.end_component();
                    copy.push_separator()?;
                    continue;
                }
                b'%' => {
                    let decoded = after.split_at_checked(2).and_then(|(hex, after)| {
                        Some((nibble(hex[0])? << 4 | nibble(hex[1])?, after))
                    });
                    let Some((byte, after)) = decoded else {
                        copy.push(b"%25")?;
                        continue;
                    };
                    rest = after;
                    match byte {
                        b'/' if self.split_encoded => {
                            copy.end_component();
                            copy.push_separator()?;
                            continue;
                        }
                        b'/' => copy.push(b"%2F")?,
                        b'%' => copy.push(b"%25")?,
                        b'?' => copy.push(b"%3F")?,
                        b'#' => copy.push(b"%23")?,
                        byte => copy.push(&[self.fold(byte)])?,
                    }
                    continue;
                }
                byte => byte,
            };
            copy.push(&[self.fold(byte)])?;
        }
        copy.end_component();
        Ok(f(&copy.bytes[..copy.len]))
    }

    const fn fold(self, byte: u8) -> u8 {
        if self.ignore_case {
            byte.to_ascii_lowercase()
        } else {
            byte
        }
    }
}

/// A path that is being normalized: complete components, each followed by `/`, and the bytes of
/// one that may still turn out to be `.` or `..`.
struct Copy {
    bytes: [u8; MAX_PATH_LEN],
    len: usize,
    /// Where the last component begins.
    component: usize,
}

impl Copy {
    fn push(&mut self, bytes: &[u8]) -> Result<(), PathError> {
        let end = self.len + bytes.len();
        let room = self.bytes.get_mut(self.len..end);
        room.ok_or(PathError::TooLong)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    fn push_separator(&mut self) -> Result<(), PathError> {
        if self.len > self.component {
            self.push(b"/")?;
            self.component = self.len;
        }
        Ok(())
    }

    /// Resolves a last component `.` or `..`.
    fn end_component(&mut self) {
        match &self.bytes[self.component..self.len] {
            b"." => self.len = self.component,
            b".." => {
                let before = &self.bytes[..self.component.saturating_sub(1)];
                let slash = before.iter().rposition(|&byte| byte == b'/');
                self.component = slash.map_or(1, |slash| slash + 1);
                self.len = self.component;
            }
            _ => {}
        }
    }
}

const fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// The components of a path, without the empty ones.
#[inline]
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
        .filter(|component| !component.is_empty())
}

/// Why a path cannot be matched. Deny such a request: which rules it is for is unknown.
///
/// ```
/// use portcullis_policy::{MAX_PATH_LEN, PathError, PathRules};
/// let long = "/a".repeat(MAX_PATH_LEN);
/// assert_eq!(PathRules::new().normalize(&long), Err(PathError::TooLong));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathError {
    /// The path has more than [`MAX_PATH_LEN`] bytes.
    TooLong,
    /// The path has more than [`MAX_COMPONENTS`] components.
    TooManyComponents,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "the path is longer than {MAX_PATH_LEN} bytes"),
            Self::TooManyComponents => {
                write!(f, "the path has more than {MAX_COMPONENTS} components")
            }
        }
    }
}

impl core::error::Error for PathError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normalized(path: &str) -> String {
        String::from_utf8(PathRules::new().normalize(path).unwrap()).unwrap()
    }

    #[test]
    fn a_path_has_one_spelling() {
        for (path, expected) in [
            ("", "/"),
            ("/", "/"),
            ("a/b", "/a/b"),
            ("//a///b/", "/a/b"),
            ("/a/./b/.", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a"),
            ("/../../a", "/a"),
            ("..", "/"),
            ("../a", "/a"),
            ("./a", "/a"),
            ("/a/b/../../../c", "/c"),
            ("/a//../b", "/b"),
            ("/%61%2e/%2E%2e/b", "/b"),
            ("/%2e/a", "/a"),
            ("/a%2fb%2F", "/a%2Fb%2F"),
            ("/100%25", "/100%25"),
            ("/%2541", "/%2541"),
            ("/%%341", "/%2541"),
            ("/50%", "/50%25"),
            ("/%zz", "/%25zz"),
            ("/a?b=/../c", "/a"),
            ("/a#b", "/a"),
            ("/a%3Fb%23", "/a%3Fb%23"),
            ("/.hidden/...", "/.hidden/..."),
            ("/caf%C3%A9", "/café"),
        ] {
            assert_eq!(normalized(path), expected, "{path}");
        }
    }

    #[test]
    fn the_longest_paths_are_accepted_and_longer_ones_are_not() {
        let rules = PathRules::new();
        let plain = format!("/{}", "a".repeat(MAX_PATH_LEN - 1));
        assert_eq!(rules.normalize(&plain).unwrap().len(), MAX_PATH_LEN);
        assert_eq!(
            rules.normalize(&format!("{plain}a")),
            Err(PathError::TooLong)
        );
        // The query does not count.
        assert!(rules.normalize(&format!("{plain}?{plain}")).is_ok());
        // A percent sign that is not an escape grows.
        let growing = "%".repeat(MAX_PATH_LEN / 3 + 1);
        assert_eq!(rules.normalize(&growing), Err(PathError::TooLong));
        let deep = "/a".repeat(MAX_COMPONENTS);
        assert!(rules.normalize(&deep).is_ok());
        let deeper = rules.normalize(&format!("{deep}/a"));
        assert_eq!(deeper, Err(PathError::TooManyComponents));
    }

    /// Resolves components in a list, after decoding each one: another way to the same result.
    fn resolved(path: &str, rules: PathRules) -> Vec<u8> {
        let path = path.split(['?', '#']).next().unwrap();
        let path = if rules.split_encoded {
            path.replace("%2F", "/").replace("%2f", "/")
        } else {
            path.to_owned()
        };
        let mut stack: Vec<Vec<u8>> = Vec::new();
        for component in path.split('/') {
            let mut decoded = Vec::new();
            let mut bytes = component.bytes().collect::<std::collections::VecDeque<_>>();
            while let Some(byte) = bytes.pop_front() {
                let digits = bytes.iter().take(2).copied().collect::<Vec<_>>();
                let digits = String::from_utf8_lossy(&digits).into_owned();
                let is_hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
                if byte == b'%' && is_hex {
                    bytes.drain(..2);
                    match u8::from_str_radix(&digits, 16).unwrap() {
                        b @ (b'/' | b'%' | b'?' | b'#') => {
                            decoded.extend(format!("%{b:02X}").bytes());
                        }
                        b if rules.ignore_case => decoded.push(b.to_ascii_lowercase()),
                        b => decoded.push(b),
                    }
                } else if byte == b'%' {
                    decoded.extend(b"%25");
                } else if rules.ignore_case {
                    decoded.push(byte.to_ascii_lowercase());
                } else {
                    decoded.push(byte);
                }
            }
            match &decoded[..] {
                b"" | b"." => {}
                b".." => {
                    stack.pop();
                }
                _ => stack.push(decoded),
            }
        }
        let path = stack.into_iter().flat_map(|c| [b"/".to_vec(), c].concat());
        let path: Vec<u8> = path.collect();
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn normalization_agrees_with_another_way_and_is_its_own_fixed_point(
            path in "([a-bA.%/?#]|%2[eEfF5]|%3f|%2525|%4|\\.\\.|/){0,24}",
            ignore_case: bool,
            split_encoded: bool,
        ) {
            let rules = PathRules { ignore_case, split_encoded };
            let once = rules.normalize(&path).unwrap();
            let expected = resolved(&path, rules);
            prop_assert_eq!(String::from_utf8_lossy(&once), String::from_utf8_lossy(&expected));
            // Decoded bytes need not be UTF-8, and then they are no path.
            if let Ok(once) = String::from_utf8(once) {
                prop_assert_eq!(rules.normalize(&once).unwrap(), once.as_bytes());
            }
        }
    }
}
