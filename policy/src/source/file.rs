//! Rules from a file that may change.
//!
//! ```text
//! content of the file      known        a file of the caller's: no change
//!                          refused      its errors have been reported: no change
//!                          another      seen for the first time: wait for the next call
//!                          seen before  read it
//! ```

use core::fmt;
use core::hash::Hasher;
use std::ffi::OsStr;
use std::hash::DefaultHasher;
use std::io;
use std::path::{Path, PathBuf};

use crate::policy::Policy;
use crate::problem::FileError;
use crate::rule::RuleError;
use crate::source::{RuleSource, Sourced};
use crate::stored::Stores;

/// A policy file, as a source of a [`LivePolicy`](crate::LivePolicy). The caller polls it with
/// [`refresh_at`](crate::LivePolicy::refresh_at), for example once a second. Needs the feature
/// `toml` or `json`, and `live`.
///
/// - **By content.** A poll reads the whole file and compares a hash of it. So it sees changes that
///   no notification tells of: of a mounted configuration map, where a link changes, or on a
///   network drive. The tag is that hash.
/// - **Not while it is written.** A change is read once two polls in a row have found the same
///   content. So a file that a program is writing is not taken for its first half. A program that
///   takes longer than the time between two polls should write another file and rename it.
/// - **Errors once.** A content that is not valid is an error of one poll. The next polls report no
///   change, until the content changes again. A file that cannot be read is an error of each poll.
///
/// A file whose name ends with `.toml` is in TOML, one with `.json` or `.jsonc` in JSON with
/// comments: see `Policy::from_toml` and `Policy::from_json`. If rules of the file have a `store`,
/// set the stores of the program by [`with_stores`](Self::with_stores).
///
/// ```no_run
/// use core::time::Duration;
/// use portcullis_core::{Clock, MonotonicClock};
/// use portcullis_policy::{FileSource, LivePolicy};
///
/// let mut file = FileSource::new("/etc/portcullis/policy.toml");
/// let live = LivePolicy::from_source(&mut file).unwrap_or_else(|error| panic!("{error}"));
/// let polled = live.clone();
/// std::thread::spawn(move || {
///     let clock = MonotonicClock::new();
///     loop {
///         std::thread::sleep(Duration::from_secs(1));
///         match polled.refresh_at(clock.now(), &mut file) {
///             Ok(None) => {}
///             Ok(Some(change)) => println!("generation {}", change.generation()),
///             Err(error) => eprintln!("{error}"),
///         }
///     }
/// });
/// ```
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    /// None: a policy takes over those of the policy before.
    stores: Stores,
    seen: Option<Seen>,
}

/// A content that is not in force.
#[derive(Debug, PartialEq)]
struct Seen {
    tag: String,
    is_refused: bool,
}

impl FileSource {
    /// The file with this path. It is read at each poll.
    ///
    /// ```
    /// # use portcullis_policy::FileSource;
    /// let file = FileSource::new("policy.toml");
    /// assert_eq!(file.path(), std::path::Path::new("policy.toml"));
    /// ```
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            stores: Stores::new(),
            seen: None,
        }
    }

    /// Sets the counter stores for the rules of the file that have a `store`. Default: none, so
    /// that a policy takes over the stores of the policy before it.
    ///
    /// A file with a rule that these stores cannot decide is refused: its `store` is none of them,
    /// or the store cannot keep one of its limits.
    ///
    /// ```no_run
    /// use portcullis_core::MonotonicClock;
    /// use portcullis_counters::MemoryCounters;
    /// use portcullis_policy::{FileSource, LivePolicy, Stores};
    /// use std::sync::Arc;
    ///
    /// let store = MemoryCounters::new(10_000, MonotonicClock::new());
    /// let stores = Stores::new().with("shared", Arc::new(store));
    /// let mut file = FileSource::new("/etc/portcullis/policy.toml").with_stores(stores);
    /// let live = LivePolicy::from_source(&mut file)?;
    /// # let _ = live;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_stores(mut self, stores: Stores) -> Self {
        self.stores = stores;
        self
    }

    /// Returns the path.
    ///
    /// ```
    /// # use portcullis_policy::FileSource;
    /// assert!(FileSource::new("a/policy.toml").path().ends_with("policy.toml"));
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file had the content that is in force when [`load`](RuleSource::load)
    /// last read it. Not while its content is refused, or new and not yet read a second time.
    ///
    /// ```
    /// # use portcullis_policy::FileSource;
    /// assert!(FileSource::new("policy.toml").is_in_force());
    /// ```
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        self.seen.is_none()
    }

    fn read(&self, content: Vec<u8>) -> Result<Policy, Problem> {
        let text = String::from_utf8(content).map_err(|_| Problem::NotText)?;
        let policy = match self.path.extension().and_then(OsStr::to_str) {
            #[cfg(feature = "toml")]
            Some("toml") => Policy::from_toml(&text),
            #[cfg(feature = "json")]
            Some("json" | "jsonc") => Policy::from_json(&text),
            _ => return Err(Problem::Format),
        }
        .map_err(Problem::Content)?;
        if self.stores.names().next().is_none() {
            return Ok(policy);
        }
        let stored = policy.with_stores(self.stores.clone());
        stored.map_err(Problem::Stores)
    }

    fn error(&self, problem: Problem) -> FileSourceError {
        FileSourceError {
            path: self.path.clone(),
            problem,
        }
    }
}

/// A tag of a content, for as long as the process runs.
fn tag_of(content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    format!("{:016x}-{}", hasher.finish(), content.len())
}

impl RuleSource for FileSource {
    type Error = FileSourceError;

    fn load(&mut self, known: Option<&str>) -> Result<Option<Sourced>, FileSourceError> {
        let content =
            std::fs::read(&self.path).map_err(|error| self.error(Problem::Read(error)))?;
        let tag = tag_of(&content);
        if known == Some(&tag) {
            self.seen = None;
            return Ok(None);
        }
        let seen = self.seen.as_ref().filter(|seen| seen.tag == tag);
        match seen {
            Some(Seen {
                is_refused: true, ..
            }) if known.is_some() => return Ok(None),
            None if known.is_some() => {
                let is_refused = false;
                self.seen = Some(Seen { tag, is_refused });
                return Ok(None);
            }
            _ => {}
        }
        match self.read(content) {
            Ok(policy) => {
                self.seen = None;
                Ok(Some(Sourced::new(policy).tagged(&tag)))
            }
            Err(problem) => {
                let is_refused = true;
                self.seen = Some(Seen { tag, is_refused });
                Err(self.error(problem))
            }
        }
    }
}

/// Why a file is no policy. Its text names each error, one on a line: those in the content with
/// their places in the file.
///
/// ```
/// use portcullis_policy::{FileSource, RuleSource};
/// let refused = FileSource::new("no/such/policy.toml").load(None).unwrap_err();
/// assert!(refused.to_string().starts_with("no/such/policy.toml: "));
/// assert!(refused.errors().is_empty());
/// ```
#[derive(Debug)]
pub struct FileSourceError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    Read(io::Error),
    NotText,
    Format,
    Content(Vec<FileError>),
    Stores(Vec<RuleError>),
}

impl FileSourceError {
    /// Returns the errors in the content, in their order. Empty if the file could not be read.
    ///
    /// ```
    /// # use portcullis_policy::{FileSource, RuleSource};
    /// let refused = FileSource::new("no/such/policy.toml").load(None).unwrap_err();
    /// assert!(refused.errors().is_empty());
    /// ```
    #[must_use]
    pub fn errors(&self) -> &[FileError] {
        match &self.problem {
            Problem::Content(errors) => errors,
            _ => &[],
        }
    }
}

/// Writes one text on a line.
fn write_lines(
    f: &mut fmt::Formatter<'_>,
    texts: impl Iterator<Item = impl fmt::Display>,
) -> fmt::Result {
    for (nth, text) in texts.enumerate() {
        let separator = if nth == 0 { "" } else { "\n" };
        write!(f, "{separator}{text}")?;
    }
    Ok(())
}

impl fmt::Display for FileSourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            Problem::Read(error) => write!(f, "{path}: {error}"),
            Problem::NotText => write!(f, "{path}: the content is not UTF-8"),
            Problem::Format => {
                let (toml, json) = (cfg!(feature = "toml"), cfg!(feature = "json"));
                let known = match (toml, json) {
                    (true, true) => ".toml, .json or .jsonc",
                    (true, false) => ".toml (.json needs the feature `json`)",
                    _ => ".json or .jsonc (.toml needs the feature `toml`)",
                };
                write!(f, "{path}: the name must end with {known}")
            }
            Problem::Content(errors) => {
                let path = path.to_string();
                write_lines(f, errors.iter().map(|error| error.in_file(&path)))
            }
            Problem::Stores(errors) => {
                write_lines(f, errors.iter().map(|error| format!("{path}: {error}")))
            }
        }
    }
}

impl core::error::Error for FileSourceError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match &self.problem {
            Problem::Read(error) => Some(error),
            _ => None,
        }
    }
}
