//! How paths are read: what their components are, and which spellings are the same.
//!
//! A path ends at the first `?` or `#`. Its components stand between slashes. Services differ in
//! four things, of which a [`Reading`] fixes each:
//!
//! 1. Whether an encoded byte that could stand for itself, such as `%61`, is that byte. One that
//!    could not is always decoded, once. `%2F`, `%25`, `%3F` and `%23` stay encoded, in upper case:
//!    decoded they would be `/`, `%`, `?` and `#`, and mean something else. A `%` without two
//!    hexadecimal digits becomes `%25`.
//! 2. Whether a component `.` is dropped, and `..` together with the component before it.
//! 3. Whether empty components between others, as in `//`, are dropped.
//! 4. Whether those at the end are: a trailing slash.
//!
//! Most paths have none of these, and one reading. [`PathRules`] says which readings the others
//! have. A rule must not be evaded by a path that the rules and the service read differently. So
//! a search for the rules of a path tries all its readings, and refuses it if they disagree.
//!
//! With [`ignoring_case`](PathRules::ignoring_case), ASCII letters become lower-case.
//!
//! Invariant: a normalized path is its own normalization, and decoding happens once.

use core::fmt;

/// The longest path that is matched, in bytes, without its query.
pub const MAX_PATH_LEN: usize = 8_192;
/// The largest number of components of a path that is matched.
pub const MAX_COMPONENTS: usize = 256;

/// What the service does with a path that has several spellings: the setting `reading` of a policy
/// file.
///
/// The rules must read a path as the service does, whose router and handlers come after them.
/// Otherwise a client chooses a spelling that the service serves and whose rule is another one.
///
/// ```
/// use portcullis_policy::{PathReading, PathRules};
/// assert_eq!(PathRules::new(), PathRules::new().reading(PathReading::Either));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathReading {
    /// It is not known. The default, which is safe for any service.
    ///
    /// - A path with a component `.` or `..` is [denied](PathError::Dots). Browsers and most other
    ///   clients resolve such components before they send a request.
    /// - An empty component, as in `//` or at the end of `/a/`, may be dropped or not. An encoded
    ///   byte that could stand for itself, as in `/%61`, may be decoded or not. A path with one of
    ///   them has several readings. If their rules disagree, it is [denied](PathError::Ambiguous).
    #[default]
    Either,
    /// It keeps components `.` and `..`, and empty ones, as axum, tonic and hyper do. `*` does not
    /// match an empty component, and `**` does. The end of `/a/` is one, so it differs from `/a`.
    ///
    /// An encoded byte that could stand for itself may be decoded or not: the router of axum does
    /// not decode it, and the values of its parameters are decoded.
    Literal,
    /// It resolves components `.` and `..`, drops empty ones, also at the end, and decodes every
    /// byte. Every path has one reading.
    ///
    /// For a service that routes like this itself. Behind nginx it is the service that counts:
    /// nginx passes paths on as they were received, or resolved but with the slash at the end.
    Resolved,
}

/// How paths are normalized before they are matched. The same rules apply to the paths of requests
/// and to the patterns of rules.
///
/// - The path ends at the first `?` or `#`.
/// - A percent-encoded byte is decoded, once. `%2F`, `%25`, `%3F` and `%23` stay encoded. A `%`
///   without two hexadecimal digits becomes `%25`.
/// - Components `.` and `..`, and empty ones, are read as the [`PathReading`] says.
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
    reading: PathReading,
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
            reading: PathReading::Either,
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

    /// Decodes `%2F` too, to a `/` that separates components. For services that do so. Then every
    /// other encoded byte is decoded too.
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

    /// Sets what the service does with a path that has several spellings. Default
    /// [`PathReading::Either`].
    ///
    /// ```
    /// use portcullis_policy::{Conditions, Matcher, PathError, PathReading, PathRules, Request};
    ///
    /// let first = |reading, path| {
    ///     let conditions = [Conditions::new().paths(["/search/*"])];
    ///     let matcher = Matcher::new(&conditions, PathRules::new().reading(reading)).unwrap();
    ///     matcher.first(&Request::new("GET", path))
    /// };
    /// assert_eq!(first(PathReading::Literal, "/search/.."), Ok(Some(0)));
    /// assert_eq!(first(PathReading::Resolved, "/search/.."), Ok(None));
    /// assert_eq!(first(PathReading::Either, "/search/.."), Err(PathError::Dots));
    /// ```
    #[must_use]
    pub const fn reading(mut self, reading: PathReading) -> Self {
        self.reading = reading;
        self
    }

    /// Returns the normalized path: the value of the key `path`, which spellings of one resource
    /// have in common. It begins with `/`, and ends with one only if it is the root. Empty
    /// components are dropped, and `.` and `..` are resolved, unless the service is said to
    /// [keep](PathReading::Literal) them. The bytes are those of the path, decoded, so they need
    /// not be UTF-8.
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
        match self.plain(path) {
            Some(_) => Ok(f(path.as_bytes())),
            None => self.of_keys().with_copy(path.as_bytes(), f),
        }
    }

    /// The reading by which keys have a path: that in which most spellings are the same. So a key
    /// has no more permits than the path, however the service reads it.
    const fn of_keys(self) -> Reading {
        Reading {
            resolves: !matches!(self.reading, PathReading::Literal),
            ..Reading::whole(self)
        }
    }

    /// Whether keys have the same paths as by `other`.
    #[cfg(feature = "live")]
    pub(crate) fn has_keys_of(self, other: Self) -> bool {
        self.of_keys() == other.of_keys()
    }

    /// The reading of a path that has only one, and that needs no copy. `None` for others.
    #[inline]
    pub(crate) fn plain(self, path: &str) -> Option<Reading> {
        let path = path.as_bytes();
        let is_plain = path.len() <= MAX_PATH_LEN && !self.may_change(path);
        is_plain.then_some(Reading {
            copies: false,
            ..Reading::whole(self)
        })
    }

    /// Whether a path may have several readings, or a reading that differs from its bytes by more
    /// than empty components. Vectorized by the compiler, so it looks at all bytes.
    #[inline]
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "a branch would prevent vectorization"
    )]
    fn may_change(self, path: &[u8]) -> bool {
        let special = |byte| matches!(byte, b'%' | b'?' | b'#');
        let changed = |byte: u8| special(byte) | (self.ignore_case & byte.is_ascii_uppercase());
        let keeps_empty = !matches!(self.reading, PathReading::Resolved);
        let pairs = path.iter().zip(path.get(1..).unwrap_or_default());
        let begins = |byte| (byte == b'.') | (keeps_empty & (byte == b'/'));
        let dotted = pairs.fold(false, |any, (&a, &b)| any | ((a == b'/') & begins(b)));
        dotted
            | path.iter().fold(false, |any, &byte| any | changed(byte))
            | (path.first() == Some(&b'.'))
            | (keeps_empty & (path.len() > 1) & (path.last() == Some(&b'/')))
    }

    /// All readings of a path: first the one that drops and decodes the most.
    ///
    /// # Errors
    ///
    /// [`PathError::Dots`] if the path has components `.` or `..`, and it is not known what the
    /// service does with them.
    #[inline]
    pub(crate) fn readings(self, path: &str) -> Result<Readings, PathError> {
        match self.plain(path) {
            Some(plain) => Ok(Readings::one(plain)),
            None => self.several(path),
        }
    }

    #[cold]
    #[inline(never)]
    fn several(self, path: &str) -> Result<Readings, PathError> {
        let whole = Reading::whole(self);
        let found = Spelling::of(path.as_bytes(), self.split_encoded);
        let decoded = [true, !found.is_encoded];
        let (inner, trailing) = match self.reading {
            PathReading::Resolved => return Ok(Readings::one(whole)),
            PathReading::Either if found.has_dots => return Err(PathError::Dots),
            PathReading::Either => ([true, !found.has_inner], [true, !found.has_trailing]),
            PathReading::Literal => ([false; 2], [false; 2]),
        };
        let reading = |decodes, drops_inner, drops_trailing| Reading {
            decodes: decodes || self.split_encoded,
            // Here no path has components to resolve, or they are kept.
            resolves: false,
            drops_inner,
            drops_trailing,
            ..whole
        };
        let mut all = Readings::one(reading(decoded[0], inner[0], trailing[0]));
        for decodes in decoded {
            for drops_inner in inner {
                for drops_trailing in trailing {
                    all.add(reading(decodes, drops_inner, drops_trailing));
                }
            }
        }
        Ok(all)
    }
}

/// What a path has that services read differently.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
struct Spelling {
    /// Encoded bytes that could stand for themselves, or whose digits are lower-case letters; and
    /// `%` without two digits.
    is_encoded: bool,
    has_dots: bool,
    has_inner: bool,
    has_trailing: bool,
}

impl Spelling {
    fn of(path: &[u8], split_encoded: bool) -> Self {
        let mut found = Self::default();
        // The dots of the component so far, if it has nothing else.
        let mut dots = Some(0_usize);
        let mut rest = before_query(path);
        rest = rest.strip_prefix(b"/").unwrap_or(rest);
        let is_root = rest.is_empty();
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            let (byte, is_separator) = match (first, escape(after)) {
                (b'%', Some((byte, needless, after))) => {
                    rest = after;
                    found.is_encoded |= needless;
                    (byte, byte == b'/' && split_encoded)
                }
                (b'%', None) => {
                    found.is_encoded = true;
                    (b'%', false)
                }
                (byte, _) => (byte, byte == b'/'),
            };
            if is_separator {
                found.has_inner |= dots == Some(0);
                found.has_dots |= matches!(dots, Some(1 | 2));
                dots = Some(0);
            } else {
                dots = dots.filter(|_| byte == b'.').map(|dots| dots + 1);
            }
        }
        found.has_dots |= matches!(dots, Some(1 | 2));
        found.has_trailing = dots == Some(0) && !is_root;
        found
    }
}

/// The readings of one path: at least one. Of two choices in each of three things.
pub(crate) struct Readings {
    all: [Reading; 8],
    len: usize,
}

impl Readings {
    pub(crate) const fn one(reading: Reading) -> Self {
        Self {
            all: [reading; 8],
            len: 1,
        }
    }

    /// Adds a reading, unless it is there.
    fn add(&mut self, reading: Reading) {
        if self.iter().all(|known| known != reading) {
            self.all[self.len] = reading;
            self.len += 1;
        }
    }

    pub(crate) const fn are_several(&self) -> bool {
        self.len > 1
    }

    /// The one that drops and decodes the most.
    pub(crate) const fn first(&self) -> Reading {
        self.all[0]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Reading> + '_ {
        self.all[..self.len].iter().copied()
    }
}

/// One way to read a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(crate) struct Reading {
    ignore_case: bool,
    split_encoded: bool,
    /// Whether the path differs from its bytes, by more than empty components.
    copies: bool,
    /// Whether encoded bytes that could stand for themselves are decoded.
    decodes: bool,
    /// Whether `.` and `..` are resolved. Then empty components are dropped.
    resolves: bool,
    drops_inner: bool,
    drops_trailing: bool,
}

impl Reading {
    /// The reading that drops and decodes all.
    const fn whole(rules: PathRules) -> Self {
        Self {
            ignore_case: rules.ignore_case,
            split_encoded: rules.split_encoded,
            copies: true,
            decodes: true,
            resolves: true,
            drops_inner: true,
            drops_trailing: true,
        }
    }

    /// Calls `f` with the path by this reading, whose components [`components`](Self::components)
    /// returns. Does not allocate.
    #[inline]
    pub(crate) fn with<R>(self, path: &str, f: impl FnOnce(&[u8]) -> R) -> Result<R, PathError> {
        if self.copies {
            self.with_copy(path.as_bytes(), f)
        } else {
            Ok(f(path.as_bytes()))
        }
    }

    /// The components of a path by this reading.
    #[inline]
    pub(crate) fn components(self, path: &[u8]) -> impl Iterator<Item = &[u8]> {
        // A copy has the empty components that count, besides those around the slash of the root.
        let keeps_empty = !(self.drops_inner && self.drops_trailing);
        let path = match path {
            [b'/', rest @ ..] if keeps_empty => rest,
            path => path,
        };
        let keeps_empty = keeps_empty && !path.is_empty();
        path.split(|&byte| byte == b'/')
            .filter(move |component| keeps_empty || !component.is_empty())
    }

    #[cold]
    #[inline(never)]
    fn with_copy<R>(self, path: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<R, PathError> {
        let mut copy = Copy {
            bytes: [0; MAX_PATH_LEN],
            len: 0,
            component: 0,
            reading: self,
        };
        copy.push(b"/")?;
        copy.component = 1;
        let mut rest = before_query(path);
        rest = rest.strip_prefix(b"/").unwrap_or(rest);
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            let byte = match byte {
                b'/' => {
                    copy.end_component();
                    copy.push_separator()?;
                    continue;
                }
                b'%' => {
                    let Some((byte, needless, after)) = escape(after) else {
                        // A `%` alone is in no pattern.
                        copy.push(if self.decodes { b"%25" } else { b"%" })?;
                        continue;
                    };
                    let digits = &rest[..2];
                    rest = after;
                    match byte {
                        // As no decoded byte and no pattern has it.
                        _ if needless && !self.decodes => {
                            copy.push(b"%")?;
                            copy.push(digits)?;
                        }
                        b'/' if self.split_encoded => {
                            copy.end_component();
                            copy.push_separator()?;
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
        copy.end_path();
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
    reading: Reading,
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
        if self.len > self.component || !self.reading.drops_inner {
            self.push(b"/")?;
            self.component = self.len;
        }
        Ok(())
    }

    /// Resolves a last component `.` or `..`.
    fn end_component(&mut self) {
        if !self.reading.resolves {
            return;
        }
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

    /// Drops the slashes at the end, but that of the root.
    fn end_path(&mut self) {
        if self.reading.drops_trailing {
            while self.len > 1 && self.bytes[self.len - 1] == b'/' {
                self.len -= 1;
            }
        }
    }
}

/// A path up to its query.
fn before_query(path: &[u8]) -> &[u8] {
    let is_end = |byte: &u8| matches!(byte, b'?' | b'#');
    let end = path.iter().position(is_end).unwrap_or(path.len());
    &path[..end]
}

/// What follows a `%`: the byte of two digits, whether it has another spelling that clients send,
/// and the rest. `None` without two digits.
///
/// A byte that is neither a letter nor another visible character of ASCII has none, nor have `/`,
/// `%`, `?` and `#`, unless there are digits in lower case.
fn escape(after: &[u8]) -> Option<(u8, bool, &[u8])> {
    let (digits, rest) = after.split_at_checked(2)?;
    let byte = nibble(digits[0])? << 4 | nibble(digits[1])?;
    let stands_for_itself = byte.is_ascii_graphic() && !matches!(byte, b'/' | b'%' | b'?' | b'#');
    let is_lower = digits.iter().any(u8::is_ascii_lowercase);
    Some((byte, stands_for_itself || is_lower, rest))
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
    /// The path has a component `.` or `..`, and it is not known whether the service resolves it:
    /// see [`PathReading::Either`].
    Dots,
    /// The path has several readings, whose rules disagree: see [`PathReading`].
    Ambiguous,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "the path is longer than {MAX_PATH_LEN} bytes"),
            Self::TooManyComponents => {
                write!(f, "the path has more than {MAX_COMPONENTS} components")
            }
            Self::Dots => f.write_str("the path has a component `.` or `..`"),
            Self::Ambiguous => {
                f.write_str("the path can be read in several ways, which different rules are for")
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
            let rules = PathRules { ignore_case, split_encoded, ..PathRules::new() };
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
