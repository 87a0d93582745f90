//! Why a shared limiter could not be opened.

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};

use portcullis_core::SettingsError;

/// Why a shared limiter was not opened. Nothing in the file has changed then.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_shm::{OpenError, SharedFile};
///
/// let refused = SharedFile::named("a/b").unwrap_err();
/// assert!(matches!(refused, OpenError::Name { .. }));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A name is not made of 1 to 200 letters, digits, `.`, `-` and `_`, or begins with a `.`.
    Name {
        /// The name.
        name: String,
    },
    /// A call of the operating system failed.
    System {
        /// The file.
        path: PathBuf,
        /// What was tried, such as "create".
        tried: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file has other settings than this process.
    OtherSettings {
        /// The file.
        path: PathBuf,
        /// The settings in the file.
        found: String,
        /// The settings of this process.
        wanted: String,
    },
    /// The file is not one of this library.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file has another layout: it was created by another version of this library.
    Version {
        /// The file.
        path: PathBuf,
        /// The version of its layout.
        found: u32,
        /// The version that this library can use.
        known: u32,
    },
    /// A program with another pointer width or byte order created the file. So a 32-bit program and
    /// a 64-bit program cannot share a limit.
    Platform {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, as the end of a sentence.
        what: &'static str,
    },
    /// The file belongs to another user, who can change what is in it.
    Owner {
        /// The file.
        path: PathBuf,
        /// The number of the user to whom it belongs.
        owner: u32,
    },
    /// The file was created in another time namespace, where `CLOCK_MONOTONIC` has another origin.
    TimeNamespace {
        /// The file.
        path: PathBuf,
    },
    /// This process has created a time namespace for its children (`CLONE_NEWTIME`), and the kernel
    /// tells where their `CLOCK_MONOTONIC` begins, not where that of this process does.
    TimeUnshared,
    /// Another process is replacing the file, or keeps it locked.
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The settings cannot change once more within a minute.
    Changes {
        /// The file.
        path: PathBuf,
        /// The most changes within a minute.
        most: usize,
    },
    /// Too many processes have the concurrency limit open.
    Members {
        /// The file.
        path: PathBuf,
        /// The most processes.
        most: usize,
    },
    /// The process has too many mappings open.
    TooMany {
        /// The most mappings that a process can have open.
        most: usize,
    },
    /// The contents need more memory than a mapping can have.
    TooLarge {
        /// The most bytes of a mapping.
        most: u64,
    },
    /// A number of records, or of numbers in a record, is 0 or too large.
    Count {
        /// What it is the number of.
        what: &'static str,
        /// The most.
        most: usize,
    },
    /// The settings do not fit a shared limiter.
    Settings(SettingsError),
}

impl OpenError {
    fn path(&self) -> Option<&Path> {
        match self {
            Self::System { path, .. }
            | Self::OtherSettings { path, .. }
            | Self::Foreign { path }
            | Self::Version { path, .. }
            | Self::Platform { path }
            | Self::Damaged { path, .. }
            | Self::Owner { path, .. }
            | Self::TimeNamespace { path }
            | Self::Busy { path }
            | Self::Changes { path, .. }
            | Self::Members { path, .. } => Some(path),
            _ => None,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path() {
            write!(f, "{}: ", path.display())?;
        }
        match self {
            Self::Name { name } => write!(
                f,
                "the name {name:?} must be 1 to 200 letters, digits, '.', '-' and '_', and not \
                 begin with '.'"
            ),
            Self::System { tried, error, .. } => write!(f, "could not {tried}: {error}"),
            Self::OtherSettings { found, wanted, .. } if found == wanted => write!(
                f,
                "differs from ({wanted}) in a setting that is not named, such as the origin, or \
                 was created by another version of this library"
            ),
            Self::OtherSettings { found, wanted, .. } => {
                write!(f, "has the settings ({found}), not ({wanted})")
            }
            Self::Foreign { .. } => f.write_str("is not a file of shared limiters"),
            Self::Version { found, known, .. } => write!(
                f,
                "has layout version {found}, and this library has version {known}"
            ),
            Self::Platform { .. } => {
                f.write_str("a program with another pointer width or byte order created it")
            }
            Self::Damaged { what, .. } => write!(f, "is damaged: {what}"),
            Self::Owner { owner, .. } => write!(
                f,
                "belongs to user {owner}, who is neither this user nor root; `any_owner` allows it"
            ),
            Self::TimeNamespace { .. } => {
                f.write_str("is from a time namespace whose CLOCK_MONOTONIC has another origin")
            }
            Self::TimeUnshared => f.write_str(
                "the origin of CLOCK_MONOTONIC is unknown in a process that has created a time \
                 namespace for its children: open the file in a child, or before",
            ),
            Self::Busy { .. } => f.write_str("another process keeps it locked"),
            Self::Changes { most, .. } => write!(
                f,
                "its settings have changed {most} times within a minute, and cannot change more \
                 often"
            ),
            Self::Members { most, .. } => {
                write!(f, "{most} processes have it open, and no more can")
            }
            Self::TooMany { most } => write!(
                f,
                "this process has {most} shared limiters open, and can have no more"
            ),
            Self::TooLarge { most } => write!(f, "the contents need more than {most} bytes"),
            Self::Count { what, most } => write!(f, "the number of {what} must be 1 to {most}"),
            Self::Settings(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::System { error, .. } => Some(error),
            Self::Settings(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SettingsError> for OpenError {
    fn from(error: SettingsError) -> Self {
        Self::Settings(error)
    }
}
