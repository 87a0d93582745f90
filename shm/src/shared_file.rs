//! Files under a name, created and joined by any number of processes.
//!
//! ```text
//! missing --- link(a complete file) ---> ready
//! ready of another boot --- rename(a complete file), under the lock ---> ready
//! ready --- remove, under the lock ---> missing
//! ```
//!
//! *Create.* A process writes a complete file under a name of its own, and publishes it with
//! `link`, which fails if the name exists. So of several processes one wins, without a lock, and
//! the others open its file. A process that dies before leaves a file `.NAME.PID-N.new`, which no
//! process opens.
//!
//! *Join.* A process opens the file, checks a copy of its header, and takes a shared lock (`flock`)
//! for as long as it has the file mapped. Then it checks that the name still refers to this file.
//!
//! *Replace, remove.* Only the holder of the exclusive lock of the file to which the name refers
//! changes the name. So no file that a process uses loses its name, and of several processes that
//! find a file of another boot, one replaces it. The kernel releases the locks of a process that
//! dies.
//!
//! Invariant: all processes that have a file of one name open, and that opened it by this library,
//! have the same file open.

use core::hash::{BuildHasher, Hasher};
use core::time::Duration;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::hash::RandomState;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Instant, SystemTime};

use portcullis_core::{Clock, MonotonicClock};

use crate::error::OpenError;
use crate::header::{BOOT_ID, FileKind, HEADER, Header, MAGIC, TimeBase, fnv};
use crate::mapping::{END, END_BYTES, Mapping};
use crate::process::{self, ClockOffset, Process};

/// The folder of files that have a name. It is in memory, and all users can create files there.
pub(crate) const FOLDER: &str = "/dev/shm";
pub(crate) const PREFIX: &str = "portcullis.";
/// For how long other processes may change the name or hold the lock.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// For how long a process that opens a file waits for others: a second. When it has passed, the
/// process looks at the file once more. So what counts is what others do, and not how slow this
/// process is.
#[derive(Debug)]
pub(crate) struct Patience {
    until: Instant,
    is_over: bool,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            until: Instant::now() + PATIENCE,
            is_over: false,
        }
    }

    /// Returns that the file is busy, if the caller must not look at it again.
    pub(crate) fn look_again(&mut self, file: &SharedFile) -> Result<(), OpenError> {
        let is_over = Instant::now() > self.until;
        if core::mem::replace(&mut self.is_over, is_over) {
            return Err(file.busy());
        }
        Ok(())
    }

    /// Waits for a moment, or returns that the file is busy.
    pub(crate) fn wait(&mut self, file: &SharedFile) -> Result<(), OpenError> {
        self.look_again(file)?;
        thread::sleep(Duration::from_micros(100));
        Ok(())
    }
}

/// A file that processes share, and how it is created.
///
/// The file is created when the first process opens a limiter in it: see
/// [`limiter`](Self::limiter). Later processes join. The file stays until it is
/// [removed](Self::remove) or the machine restarts.
///
/// **Who may use it.** The file is created with mode 0600: for processes of this user. Set
/// [`mode`](Self::mode) for others. A process that can write the file can grant itself and others
/// any number of permits, or deny all of them. It cannot do more: no contents of the file cause
/// undefined behavior, a panic or an endless loop in other processes.
///
/// **Time.** All limiters in files count the time of `CLOCK_MONOTONIC`, which all processes of a
/// machine share. It starts again when the machine does. If a file on a disk is from before that,
/// the first process that opens it replaces it by a new one: the limiter starts again, as the
/// processes themselves do. In containers with a time namespace the clock may have another origin;
/// opening a file from a process with another origin fails. So does opening a file in a process
/// that has created a time namespace for its children (`unshare` with `CLONE_NEWTIME`): the kernel
/// does not tell where the clock of this process begins then. A child that `fork` creates in it
/// loses what it has inherited, if its clock begins at another time: all requests are denied, as of
/// a file that was truncated. A process must not change its own time namespace (`setns`) while it
/// has a file open, nor create a child in another one without the handlers of `fork`.
///
/// **Forks.** A process id does not matter: processes are told apart in any namespaces. What a
/// process has opened works after it has dropped its privileges, and in children that it creates
/// with `fork` and that drop theirs. Each limiter, table, concurrency limit and store of records
/// keeps two descriptors.
///
/// **A file that is truncated**, also if it grows again, is lost for the processes that have it
/// open, and is refused as damaged when it is opened.
///
/// **Other settings.** A process whose settings differ from those in the file is refused, and the
/// error names both. With [`changing`](Self::changing), it changes those of a limiter, a table or a
/// concurrency limit instead. To change those of other contents, or the number of keys of a table,
/// stop the processes, or use another name.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_shm::{OpenError, SharedFile};
///
/// let file = SharedFile::named("doc-shared-file")?;
/// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
/// let refused = file.limiter(TokenBucket::new(Rate::per_second(500), 20)).unwrap_err();
/// assert!(matches!(refused, OpenError::OtherSettings { .. }));
/// drop(bucket);
/// file.remove()?;
/// # Ok::<(), OpenError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "the file is created when a limiter is opened"]
pub struct SharedFile {
    path: PathBuf,
    mode: u32,
    any_owner: bool,
    pub(crate) changing: bool,
}

/// What a process expects in the file, or creates.
pub(crate) struct Contents {
    pub(crate) kind: FileKind,
    /// The settings, for people.
    pub(crate) settings: String,
    /// What a process must expect in order to use the file.
    pub(crate) identity: String,
    /// The words at the start; all others are 0.
    pub(crate) first: Vec<u64>,
    /// The bytes of all words, without the one at the end.
    pub(crate) bytes: u64,
}

/// What a process found under the name.
enum Found {
    Ready(Mapping, Header),
    Missing,
    /// A file of another boot.
    Stale(File),
    /// Another process is changing the name, or has the lock.
    Busy,
}

impl SharedFile {
    /// Returns the file with this name: `/dev/shm/portcullis.NAME`.
    ///
    /// # Errors
    ///
    /// [`OpenError::Name`] if `name` is not made of 1 to 200 letters and digits of ASCII, `.`, `-`
    /// and `_`, or begins with a `.`.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// let file = SharedFile::named("api.v1")?;
    /// assert_eq!(file.path().to_str(), Some("/dev/shm/portcullis.api.v1"));
    /// assert!(SharedFile::named("../etc").is_err());
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn named(name: &str) -> Result<Self, OpenError> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if name.is_empty()
            || name.len() > 200
            || name.starts_with('.')
            || !name.bytes().all(is_valid)
        {
            return Err(OpenError::Name {
                name: name.to_owned(),
            });
        }
        Ok(Self::at(Path::new(FOLDER).join(format!("{PREFIX}{name}"))))
    }

    /// Returns the file at a path. Its folder must exist. The file is not reached through a
    /// symbolic link.
    ///
    /// The file may be on a disk. The kernel then writes its pages to the disk from time to time,
    /// which costs no decision anything. A folder in memory is better.
    ///
    /// ```
    /// # use portcullis_shm::SharedFile;
    /// let file = SharedFile::at("/run/api/limit");
    /// assert!(file.path().is_absolute());
    /// ```
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            mode: 0o600,
            any_owner: false,
            changing: false,
        }
    }

    /// Sets the permissions of the file if this process creates it: 0o000 to 0o777, whatever the
    /// process's `umask` is. Default: 0o600.
    ///
    /// A process needs permission to read and to write the file.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// // For all processes of a group.
    /// let file = SharedFile::named("api")?.mode(0o660);
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o777;
        self
    }

    /// Also opens a file of another user. Default: only those of this user and of root.
    ///
    /// All users can create files in `/dev/shm`. So another user can create the file first, with
    /// permissions for all, and then control its limiter.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// let file = SharedFile::named("api")?.mode(0o660).any_owner();
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn any_owner(mut self) -> Self {
        self.any_owner = true;
        self
    }

    /// Changes the settings if the file has others, while processes use it. Default: a process with
    /// other settings is refused.
    ///
    /// All processes that have the file open follow: their next decision is by the new settings.
    /// See [`limiter`](Self::limiter), [`table`](Self::table) and
    /// [`concurrency`](Self::concurrency). Has no effect on other contents.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// let file = SharedFile::named("doc-changing")?;
    /// let bucket = |burst| TokenBucket::new(Rate::per_minute(1), burst);
    /// let old = file.limiter(bucket(20))?;
    /// assert!(old.try_acquire(5).is_ok());
    ///
    /// let new = file.clone().changing().limiter(bucket(30))?;
    /// assert!(new.try_acquire(26).is_err(), "25 remain");
    /// assert!(old.try_acquire(25).is_ok(), "also in a process that was there before");
    /// # drop((old, new));
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn changing(mut self) -> Self {
        self.changing = true;
        self
    }

    /// Returns the path of the file.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// assert!(SharedFile::named("api")?.path().ends_with("portcullis.api"));
    /// # Ok::<(), OpenError>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, if no process uses it.
    ///
    /// # Errors
    ///
    /// [`OpenError::Busy`] if a process has a limiter of the file open: two groups of processes
    /// would otherwise have a limit each. [`OpenError::Foreign`] if it is a file of another
    /// program. [`OpenError::System`] if there is no such file, or if the operating system refuses.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// let file = SharedFile::named("doc-remove")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert!(matches!(file.remove(), Err(OpenError::Busy { .. })));
    /// drop(bucket);
    /// file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn remove(&self) -> Result<(), OpenError> {
        let mut patience = Patience::new();
        loop {
            let file = self
                .open_file(true)
                .map_err(|error| self.failed("open it", error))?;
            if !self.is_ours(&file) {
                let path = self.path.clone();
                return Err(OpenError::Foreign { path });
            }
            match file.try_lock() {
                Ok(()) if self.is_named(&file)? => break self.remove_path(&self.path),
                // Another process has replaced the file.
                Ok(()) => patience.look_again(self)?,
                Err(TryLockError::Error(error)) => return Err(self.failed("lock it", error)),
                Err(TryLockError::WouldBlock) => return Err(self.busy()),
            }
        }
    }

    /// Opens the file, or creates it.
    pub(crate) fn open(&self, wanted: &Contents) -> Result<(Mapping, Header), OpenError> {
        Mapping::check_size(wanted.size())?;
        let base = TimeBase::of_this_process()?;
        let mut patience = Patience::new();
        loop {
            match self.find(wanted, &base)? {
                Found::Ready(mapping, header) => return Ok((mapping, header)),
                Found::Missing => {
                    let (new, _file) = self.write_new(wanted, &base)?;
                    let linked = fs::hard_link(&new, &self.path);
                    self.remove_path(&new)?;
                    match linked {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                            return Err(self.failed("publish it", error));
                        }
                        _ => {}
                    }
                }
                Found::Stale(stale) => {
                    if self.is_named(&stale)? {
                        let (new, _file) = self.write_new(wanted, &base)?;
                        let renamed = fs::rename(&new, &self.path);
                        renamed.map_err(|error| self.failed("replace it", error))?;
                    }
                }
                Found::Busy => thread::sleep(Duration::from_millis(1)),
            }
            patience.look_again(self)?;
        }
    }

    fn find(&self, wanted: &Contents, base: &TimeBase) -> Result<Found, OpenError> {
        let file = match self.open_file(true) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Missing),
            Err(error) => return Err(self.failed("open it", error)),
        };
        let header = self.header(&file)?;
        if header.base.boot != base.boot {
            return match file.try_lock() {
                Ok(()) => Ok(Found::Stale(file)),
                Err(TryLockError::WouldBlock) => Ok(Found::Busy),
                Err(TryLockError::Error(error)) => Err(self.failed("lock it", error)),
            };
        }
        let path = || self.path.clone();
        if header.base.offset != base.offset {
            return Err(OpenError::TimeNamespace { path: path() });
        }
        let is_same = header.kind == wanted.kind && header.fingerprint == wanted.fingerprint();
        if !is_same {
            return Err(OpenError::OtherSettings {
                path: path(),
                found: header.settings,
                wanted: wanted.settings.clone(),
            });
        }
        let metadata = file.metadata();
        let metadata = metadata.map_err(|error| self.failed("read its size", error))?;
        if header.size != wanted.size() || metadata.len() < header.size {
            let what = "it has another size than its contents need";
            return Err(OpenError::Damaged { path: path(), what });
        }
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Found::Busy),
            Err(TryLockError::Error(error)) => return Err(self.failed("lock it", error)),
        }
        if !self.is_named(&file)? {
            return Ok(Found::Busy);
        }
        let mapping = Mapping::new(file, header.size, &self.path)?;
        if mapping.is_lost() {
            let what = "a part of it is missing: it was truncated";
            return Err(OpenError::Damaged { path: path(), what });
        }
        // Stripes and pools are used without locks of this process alone.
        let mapping = match header.kind {
            FileKind::Stripes | FileKind::LeasePool => mapping,
            _ => {
                let owned = mapping.with_own_file();
                owned.map_err(|error| self.failed("open it again", error))?
            }
        };
        Ok(Found::Ready(mapping, header))
    }

    /// Whether the file was created by this library, as far as its first bytes or its name tell.
    fn is_ours(&self, file: &File) -> bool {
        let mut start = [0; MAGIC.len()];
        let is_read = file.read_exact_at(&mut start, 0).is_ok();
        let name = self
            .path
            .to_str()
            .and_then(|path| path.strip_prefix(FOLDER));
        let is_named = name.is_some_and(|name| {
            name.strip_prefix('/')
                .is_some_and(|name| name.starts_with(PREFIX))
        });
        is_named || is_read && start == *MAGIC
    }

    /// Opens the file under the name.
    pub(crate) fn open_file(&self, write: bool) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.path)
    }

    /// Reads the header of a file, and checks whose it is.
    pub(crate) fn header(&self, file: &File) -> Result<Header, OpenError> {
        let path = || self.path.clone();
        let metadata = file.metadata();
        let metadata = metadata.map_err(|error| self.failed("read its owner", error))?;
        if !metadata.is_file() {
            return Err(OpenError::Foreign { path: path() });
        }
        let me = fs::metadata("/proc/self").map_err(|error| self.failed("find my user", error))?;
        let owner = metadata.uid();
        if !self.any_owner && owner != me.uid() && owner != 0 {
            return Err(OpenError::Owner {
                path: path(),
                owner,
            });
        }
        let mut page = [0; HEADER];
        match file.read_exact_at(&mut page, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let what = "it is shorter than a header";
                return Err(OpenError::Damaged { path: path(), what });
            }
            Err(error) => return Err(self.failed("read its header", error)),
        }
        Header::decode(&page).map_err(|unreadable| unreadable.of(&self.path))
    }

    /// Writes a complete file under a name of its own.
    fn write_new(&self, wanted: &Contents, base: &TimeBase) -> Result<(PathBuf, File), OpenError> {
        let name = self.path.file_name().ok_or_else(|| OpenError::Name {
            name: self.path.display().to_string(),
        })?;
        // Processes of other namespaces, and processes before this one, may have had its id.
        let (pid, [number, _]) = (std::process::id(), random());
        let new = format!(".{}.{pid}-{number}{NEW}", name.to_string_lossy());
        let new = self.path.with_file_name(new);
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            // Says that the process is alive. Joining processes take the same lock.
            file.lock_shared()?;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let header = Header {
                kind: wanted.kind,
                size: wanted.size(),
                fingerprint: wanted.fingerprint(),
                seed: random(),
                base: base.clone(),
                created: now.map_or(0, |now| now.as_secs()),
                creator: pid,
                settings: wanted.settings.clone(),
            };
            file.write_all(&header.encode())?;
            for word in &wanted.first {
                file.write_all(&word.to_ne_bytes())?;
            }
            // Zeros are written, so that no page is missing later.
            let mut left = wanted.bytes - 8 * wanted.first.len() as u64;
            let zeros = [0; 1 << 14];
            while left > 0 {
                let part = left.min(zeros.len() as u64) as usize;
                file.write_all(&zeros[..part])?;
                left -= part as u64;
            }
            file.write_all(&END.to_ne_bytes())?;
            file.set_permissions(Permissions::from_mode(self.mode))?;
            Ok(file)
        };
        write().map(|file| (new.clone(), file)).map_err(|error| {
            let _nothing_to_remove = fs::remove_file(&new);
            self.failed("create it", error)
        })
    }

    /// Whether the name still refers to `file`.
    fn is_named(&self, file: &File) -> Result<bool, OpenError> {
        let mine = file
            .metadata()
            .map_err(|error| self.failed("look at it", error))?;
        match fs::symlink_metadata(&self.path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (mine.dev(), mine.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.failed("look at it", error)),
        }
    }

    fn remove_path(&self, path: &Path) -> Result<(), OpenError> {
        fs::remove_file(path).map_err(|error| self.failed("remove it", error))
    }

    pub(crate) fn failed(&self, tried: &'static str, error: io::Error) -> OpenError {
        OpenError::System {
            path: self.path.clone(),
            tried,
            error,
        }
    }

    pub(crate) fn busy(&self) -> OpenError {
        OpenError::Busy {
            path: self.path.clone(),
        }
    }
}

impl Contents {
    fn size(&self) -> u64 {
        self.bytes.saturating_add(HEADER as u64 + END_BYTES)
    }

    fn fingerprint(&self) -> u64 {
        fnv(format!("{:?} {}", self.kind, self.identity).as_bytes())
    }
}

impl TimeBase {
    /// The clock of this process.
    pub(crate) fn of_this_process() -> Result<Self, OpenError> {
        let told = process::clock_offset();
        let offset = match told {
            ClockOffset::Known(offset) => offset,
            ClockOffset::OfChildren => return Err(OpenError::TimeUnshared),
            ClockOffset::Untold => [0; 2],
        };
        // Before a mapping counts from it.
        process::note(told);
        Process::this();
        let boot = Self::this_boot()?;
        Ok(Self { boot, offset })
    }

    /// The id of this boot.
    pub(crate) fn this_boot() -> Result<[u8; BOOT_ID], OpenError> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        let text = fs::read_to_string(BOOT).map_err(|error| OpenError::System {
            path: BOOT.into(),
            tried: "read it",
            error,
        })?;
        let mut boot = [0; BOOT_ID];
        for (to, from) in boot.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        Ok(boot)
    }
}

/// The end of the names of files that are not finished.
const NEW: &str = ".new";

/// The name that a file should get, if its present name says that it is not finished.
pub(crate) fn name_of_new(name: &str) -> Option<&OsStr> {
    let (name, number) = name
        .strip_prefix('.')?
        .strip_suffix(NEW)?
        .rsplit_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (pid, number) = number.split_once('-')?;
    (is_number(pid) && is_number(number)).then_some(OsStr::new(name))
}

/// Two numbers that no other call returns, in no process: also not in one that was forked, whose
/// `RandomState` is a copy.
fn random() -> [u64; 2] {
    let random = RandomState::new();
    let now = MonotonicClock::new().now().as_nanos();
    [0, 1].map(|nth| {
        let mut hasher = random.build_hasher();
        hasher.write_u8(nth);
        hasher.write_u64(now);
        hasher.write_u32(std::process::id());
        hasher.finish()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_in_the_folder() {
        for name in ["a", "api.v1", "A-b_9", &"x".repeat(200)] {
            assert!(SharedFile::named(name).is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            ".a",
            "a/b",
            "a b",
            "ä",
            "a\0",
            &"x".repeat(201),
        ] {
            assert!(
                matches!(SharedFile::named(name), Err(OpenError::Name { .. })),
                "{name}"
            );
        }
    }
}
