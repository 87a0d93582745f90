//! What can be wrong with a condition, found in a pattern or in the conditions as a whole, and the
//! bounds that it names.

use core::fmt;

use crate::path::PathError;

/// The largest number of components of a pattern, without its `**`.
pub const MAX_PATTERN_COMPONENTS: usize = 32;

/// The largest number of properties that all conditions of a matcher can name.
pub const MAX_PROPERTIES: usize = 16;

/// What is wrong with a condition.
///
/// ```
/// use portcullis_policy::{Conditions, Matcher, PathRules, Problem};
/// let conditions = [Conditions::new().paths(["/a*"])];
/// let errors = Matcher::new(&conditions, PathRules::new()).unwrap_err();
/// assert_eq!(errors[0].problem, Problem::PartialWildcard);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The text is empty.
    Empty,
    /// A property is listed without values.
    NoValues,
    /// Rules name more than [`MAX_PROPERTIES`](MAX_PROPERTIES) properties.
    TooManyProperties,
    /// The conditions take too much memory. The value is the number of patterns and values.
    TooLarge,
    /// A pattern contains `?` or `#`: a path ends before them.
    PatternWithQuery,
    /// A method is not a token of HTTP.
    Method,
    /// A method resembles this one. Methods are case-sensitive.
    Misspelled(&'static str),
    /// A pattern is a whole URL.
    PatternWithScheme,
    /// A pattern contains a component `.` or `..`: a normalized path has none.
    PatternWithDots,
    /// A pattern contains `{` or `}`: routers name a component so, and patterns do not.
    PatternWithName,
    /// A `*` is a part of a component.
    PartialWildcard,
    /// A pattern has more than [`MAX_PATTERN_COMPONENTS`] components.
    DeepPattern,
    /// A component of a pattern cannot be normalized.
    Path(PathError),
    /// The text is neither a name of a host nor an address.
    HostName,
    /// The text is not a network.
    Network,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("must not be empty"),
            Self::NoValues => f.write_str("needs at least one value"),
            Self::TooManyProperties => write!(
                f,
                "is one property too many: all rules together can name {MAX_PROPERTIES}"
            ),
            Self::TooLarge => f.write_str(
                "need too much memory: list fewer of them, or divide the rules among policies",
            ),
            Self::PatternWithQuery => {
                f.write_str("contains `?` or `#`, where a path ends: write %3F or %23 for the character")
            }
            Self::Method => f.write_str("is not a method, such as `GET`: write letters only"),
            Self::Misspelled(method) => {
                write!(f, "is a method that no service knows: write `{method}` (methods are case-sensitive)")
            }
            Self::PatternWithScheme => f.write_str(
                "is a URL, and a path begins after the host: write the path only, such as `/items/**`, and the host in `hosts`",
            ),
            Self::PatternWithDots => {
                f.write_str("contains a component `.` or `..`, which no normalized path has")
            }
            Self::PatternWithName => f.write_str(
                "contains `{` or `}`, and a pattern has no names: write `*` for a component such as `{id}`, `**` for any number of them, and %7B or %7D for the character",
            ),
            Self::PartialWildcard => f.write_str(
                "has a `*` within a component: a wildcard is a whole component, `*` or `**`; write %2A for the character",
            ),
            Self::DeepPattern => {
                write!(f, "has more than {MAX_PATTERN_COMPONENTS} components")
            }
            Self::Path(error) => error.fmt(f),
            Self::HostName => f.write_str(
                "is neither a name of a host, such as `api.example.com` or `*.example.com`, nor an address: write it without scheme, port and blanks",
            ),
            Self::Network => {
                f.write_str("is not a network, such as `10.0.0.0/8` or `2001:db8::/32`")
            }
        }
    }
}

/// An error in a file.
///
/// ```
/// use portcullis_policy::Policy;
/// let text = "[[rules]]\nname = 'a'\nlimits = ['5/m', '5/year']\n";
/// let error = &Policy::from_toml(text).unwrap_err()[0];
/// assert_eq!((error.line, error.column), (3, 18));
/// assert_eq!(&text[error.bytes.clone()], "'5/year'");
/// assert!(error.message.starts_with("limits: `5/year` is not a rate: "));
/// ```
#[cfg(any(feature = "toml", feature = "json"))]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileError {
    /// The name of the file, if it was read together with others.
    pub file: Option<std::sync::Arc<str>>,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The bytes of the text that the error is about. May be empty.
    pub bytes: core::ops::Range<usize>,
    /// The setting, its value, and what is allowed.
    pub message: String,
}

#[cfg(any(feature = "toml", feature = "json"))]
impl FileError {
    /// Displays the error with the name of its file, in the form that editors understand. An error
    /// that has a [name](Self::file) is displayed with that one.
    ///
    /// ```
    /// # use portcullis_policy::Policy;
    /// let errors = Policy::from_toml("rules = 1").unwrap_err();
    /// let text = errors[0].in_file("policy.toml").to_string();
    /// assert_eq!(text, "policy.toml:1:9: rules: expected an array of tables, not an integer");
    /// ```
    pub fn in_file(&self, name: &str) -> impl fmt::Display {
        match self.file {
            Some(_) => self.to_string(),
            None => format!("{name}:{self}"),
        }
    }
}

#[cfg(any(feature = "toml", feature = "json"))]
impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}:")?;
        }
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

#[cfg(any(feature = "toml", feature = "json"))]
impl core::error::Error for FileError {}

/// What a policy knows of the file that its rules are from.
#[cfg(any(feature = "toml", feature = "json"))]
#[derive(Clone, Default)]
pub(crate) struct OfFile {
    pub(crate) warnings: Vec<FileError>,
    /// Where each rule is; the message is the name of the rule.
    pub(crate) places: Vec<FileError>,
}
