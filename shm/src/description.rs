//! What a file says about itself, for people.

use core::time::Duration;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::OpenError;
pub use crate::header::FileKind;
use crate::header::{HEADER, TimeBase};
use crate::shared_file::{FOLDER, PREFIX, SharedFile, name_of_new};
use crate::{shared_concurrency, shared_limiter, shared_table};

/// What a [`SharedFile`] says about itself: the result of [`SharedFile::describe`].
///
/// The settings of contents that do not [change](SharedFile::changing) are the text that the
/// creator of the file wrote. No process decides by it.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_shm::{FileKind, SharedFile};
///
/// let file = SharedFile::named("doc-description")?;
/// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
/// let description = file.describe()?;
/// assert_eq!(description.kind, FileKind::Limiter);
/// assert!(description.settings.starts_with("token bucket"));
/// assert!(description.is_in_use);
/// # drop(bucket);
/// # file.remove()?;
/// # Ok::<(), portcullis_shm::OpenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// What the file contains.
    pub kind: FileKind,
    /// The settings in force, as text.
    pub settings: String,
    /// The size of the file, in bytes.
    pub bytes: u64,
    /// The permissions of the file, such as 0o600.
    pub mode: u32,
    /// The number of the user to whom the file belongs.
    pub owner: u32,
    /// When the file was created.
    pub created: SystemTime,
    /// The process that created the file, by its number in its own namespace.
    pub creator: u32,
    /// Whether a process has the file open.
    pub is_in_use: bool,
    /// Whether the file is from before the last start of the machine. It is replaced when it is
    /// opened.
    pub is_of_another_boot: bool,
}

impl SharedFile {
    /// Returns what the file says about itself. Needs the permission to read the file.
    ///
    /// # Errors
    ///
    /// [`OpenError::System`] if there is no such file, or if it cannot be read;
    /// [`OpenError::Foreign`], [`OpenError::Version`] or [`OpenError::Damaged`] if it has no
    /// header that this library can read. Files of other users are described too.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// let file = SharedFile::named("doc-no-such-file")?;
    /// assert!(matches!(file.describe(), Err(OpenError::System { .. })));
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn describe(&self) -> Result<Description, OpenError> {
        let failed = |error| self.failed("open it", error);
        let file = self.open_file(false).map_err(failed)?;
        let header = self.clone().any_owner().header(&file)?;
        let metadata = file.metadata().map_err(failed)?;
        let is_in_use = match file.try_lock() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(error)) => return Err(self.failed("lock it", error)),
        };
        let settings = match header.kind {
            FileKind::Limiter => self.settings_in_force(&file, shared_limiter::described_in)?,
            FileKind::Table => {
                // Before the settings, the text says for how many keys.
                let keys = header.settings.split_once(':').map(|(keys, _)| keys);
                let limiter = self.settings_in_force(&file, shared_table::described_in)?;
                keys.zip(limiter)
                    .map(|(keys, limiter)| format!("{keys}: {limiter}"))
            }
            FileKind::Concurrency => {
                self.settings_in_force(&file, shared_concurrency::described_in)?
            }
            _ => None,
        };
        Ok(Description {
            kind: header.kind,
            settings: settings.unwrap_or(header.settings),
            bytes: metadata.len(),
            mode: metadata.permissions().mode() & 0o777,
            owner: metadata.uid(),
            created: SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_secs(header.created))
                .unwrap_or(SystemTime::UNIX_EPOCH),
            creator: header.creator,
            is_in_use,
            is_of_another_boot: header.base.boot != TimeBase::this_boot()?,
        })
    }

    /// The settings in the words of a file, which may have changed since it was created.
    fn settings_in_force(
        &self,
        file: &File,
        described_in: fn(&[u64]) -> Option<String>,
    ) -> Result<Option<String>, OpenError> {
        let mut bytes = [0; 4096];
        match file.read_exact_at(&mut bytes, HEADER as u64) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(self.failed("read its settings", error)),
        }
        let words = bytes.as_chunks().0.iter();
        let words: Vec<_> = words.map(|&word| u64::from_ne_bytes(word)).collect();
        Ok(described_in(&words))
    }

    /// Returns all files that have a [name](Self::named), in the order of their names.
    ///
    /// # Errors
    ///
    /// An error of the operating system if `/dev/shm` cannot be read.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// let file = SharedFile::named("doc-all")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// let all = SharedFile::all().unwrap();
    /// assert!(all.iter().any(|each| each.path() == file.path()));
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn all() -> io::Result<Vec<Self>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(FOLDER)? {
            let entry = entry?;
            let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
            // A folder has a name of its user's choice.
            if is_named && entry.file_type()?.is_file() {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths.into_iter().map(Self::at).collect())
    }

    /// Removes what processes left that died while they created this file. Returns how many files
    /// were removed. They cost memory, and do no harm.
    ///
    /// # Errors
    ///
    /// An error of the operating system if the folder cannot be read, or a file cannot be removed.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// let file = SharedFile::named("doc-unfinished")?;
    /// assert_eq!(file.remove_unfinished().unwrap(), 0);
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn remove_unfinished(&self) -> io::Result<usize> {
        let mut removed = 0;
        for path in self.unfinished()? {
            let unfinished = Self::at(&path).open_file(false);
            // The lock says that its process is alive.
            let is_left = unfinished.is_ok_and(|file| file.try_lock().is_ok());
            if is_left {
                fs::remove_file(path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn unfinished(&self) -> io::Result<Vec<PathBuf>> {
        let folder = self.path().parent().unwrap_or(Path::new("."));
        let entries = fs::read_dir(folder)?.flatten();
        let is_new = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy());
            name.is_some_and(|name| name_of_new(&name) == self.path().file_name())
        };
        Ok(entries.map(|entry| entry.path()).filter(is_new).collect())
    }
}
