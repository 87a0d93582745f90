//! Rate limiting policies: which rules apply to a request.
//!
//! A [`Matcher`] is compiled from the [`Conditions`] of rules. It tells which of them a [`Request`]
//! meets, in about 100 ns for 1,000 rules, and without an allocation.
//!
//! ```
//! use portcullis_policy::{Conditions, Matcher, PathRules, Request};
//!
//! let conditions = [
//!     Conditions::new().methods(["POST"]).paths(["/login"]),
//!     Conditions::new().hosts(["*.example.com"]).paths(["/v1/*/blobs/**"]),
//! ];
//! let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
//!
//! // However the path is spelled.
//! let login = Request::new("POST", "/v1/..//%6Cogin?next=/");
//! assert_eq!(matcher.first(&login), Ok(Some(0)));
//! ```
#![forbid(unsafe_code)]

mod conditions;
mod matcher;
mod path;
mod pattern;
mod request;

pub use conditions::{ConditionError, Conditions, Mismatch, Problem};
pub use matcher::{MAX_PROPERTIES, Matcher};
pub use path::{MAX_COMPONENTS, MAX_PATH_LEN, PathError, PathRules};
pub use pattern::MAX_PATTERN_COMPONENTS;
pub use request::{Fields, Kind, Request};
