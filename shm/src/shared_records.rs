//! Records of numbers by key, in a file: read and written several at a time, all or none.
//!
//! ```text
//! lock      the process that reads or writes, and how many have joined, on a line of its own
//! journal   count | count images of records: index, head, numbers
//! heads     (hash, hash, expires, length) of each record; expires 0: none
//! numbers   of each record, as many as the longest has
//! ```
//!
//! A record lies in one of two groups of 16, which the hash of its key names.
//!
//! *Write.* The owner of the lock writes the images of all records into the journal, and then their
//! count: this is the instant of the write. Then it copies the images to their places, and sets the
//! count to 0. A process that takes the lock from a dead owner finds the count, and copies them
//! again. If the count is 0, nothing was written, or all.
//!
//! Invariant: while no process owns the lock, the journal is empty or complete.
//!
//! A file with other bits, which a hostile process writes, has other records. An index or a length
//! that is too large is passed over.

use core::fmt;
use core::hash::{BuildHasher, Hasher};
use core::ops::Range;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use portcullis_core::keyed::Seed;
use portcullis_core::{Clock, MonotonicClock, Timestamp};

use crate::error::OpenError;
use crate::futex;
use crate::header::FileKind;
use crate::mapping::MappedWords;
use crate::member;
use crate::owned_lock::{self, InFile, Owner};
use crate::process::Process;
use crate::shared_file::{Contents, PATIENCE, SharedFile};
use crate::slots::MEMBERS;

/// The most records of one write.
const MOST_AT_ONCE: usize = 64;
const MOST_RECORDS: usize = 1 << 30;
/// The most numbers of a record.
const MOST_NUMBERS: usize = 128;
const GROUP: usize = 16;
const HEAD: usize = 4;

impl SharedFile {
    /// Opens the records in the file, or creates the file without records: `records` of them can
    /// exist at once, each with up to `numbers` numbers, 1 to 128.
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherSettings`] if the file has other settings, also of another kind.
    /// [`OpenError::Count`] if `records` or `numbers` is 0 or too large. [`OpenError::TooLarge`] if
    /// the file would have more than 2 GiB. [`OpenError::Members`] if 1,024 processes have it open.
    /// See [`OpenError`] for the others.
    ///
    /// # Cost
    ///
    /// The file takes 40 bytes per record and 10 for each of its numbers.
    ///
    /// ```
    /// use portcullis_core::Timestamp;
    /// use portcullis_shm::SharedFile;
    ///
    /// let file = SharedFile::named("doc-records")?;
    /// // In each process.
    /// let records = file.records(1_000, 4)?;
    /// let mut locked = records.lock()?;
    /// locked.write(&[(b"alice", &[3, 5], Timestamp::MAX)])?;
    /// assert_eq!(locked.read(b"alice").unwrap().numbers, [3, 5]);
    /// assert!(locked.read(b"bob").is_none());
    /// # drop(locked);
    /// # drop(records);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn records(&self, records: usize, numbers: usize) -> Result<SharedRecords, OpenError> {
        let counts = [
            ("records", records, MOST_RECORDS),
            ("numbers in a record", numbers, MOST_NUMBERS),
        ];
        for (what, count, most) in counts {
            if count == 0 || count > most {
                return Err(OpenError::Count { what, most });
            }
        }
        // A fifth of the places stays free, so that a new key finds one.
        let groups = (records + records / 4).div_ceil(GROUP) + 1;
        let layout = Layout { groups, numbers };
        let settings = format!("records, {records} of up to {numbers} numbers");
        let contents = Contents {
            kind: FileKind::Records,
            identity: settings.clone(),
            settings,
            first: Vec::new(),
            bytes: MappedWords::bytes(layout.words()),
        };
        let (mapping, header) = self.open(&contents)?;
        let seed = Seed::new();
        // It is new, so nothing has set it.
        let _set = seed.set(header.seed);
        let words = MappedWords::new(mapping, layout.words());
        let session = Session::begin(&words).map_err(|error| self.refused(error))?;
        Ok(SharedRecords {
            words,
            layout,
            seed,
            session: Mutex::new(session),
        })
    }

    fn refused(&self, error: RecordsError) -> OpenError {
        match error {
            RecordsError::Members { most } => OpenError::Members {
                path: self.path().to_owned(),
                most,
            },
            RecordsError::System { code } => {
                self.failed("lock a part of it", io::Error::from_raw_os_error(code))
            }
            _ => self.busy(),
        }
    }
}

/// Where the parts of the file lie, in words.
#[derive(Clone, Copy, Debug)]
struct Layout {
    groups: usize,
    numbers: usize,
}

impl Layout {
    const JOURNAL: usize = 1;

    const fn image(self) -> usize {
        1 + HEAD + self.numbers
    }

    const fn heads(self) -> usize {
        // On a line of its own.
        (Self::JOURNAL + MOST_AT_ONCE * self.image()).next_multiple_of(8)
    }

    const fn records(self) -> usize {
        self.groups.saturating_mul(GROUP)
    }

    const fn words(self) -> usize {
        let each = HEAD + self.numbers;
        self.heads()
            .saturating_add(self.records().saturating_mul(each))
    }

    /// Where the head of a record is, and where its numbers are.
    const fn places(self, index: usize) -> (usize, usize) {
        let numbers = self.heads() + self.records() * HEAD;
        (self.heads() + index * HEAD, numbers + index * self.numbers)
    }
}

/// A process that uses the records. Its lock in the mapping's own description says that it is
/// alive: a process that it forks has another description, and begins a session of its own.
#[derive(Clone, Copy, Debug)]
struct Session {
    process: Process,
    owner: Owner,
}

impl Session {
    fn begin(words: &MappedWords) -> Result<Self, RecordsError> {
        let process = Process::this();
        let mut own = lock(words.own_file().map_err(system)?);
        let joined = member::join(own.get().map_err(system)?, MEMBERS).map_err(system)?;
        let member = joined.ok_or(RecordsError::Members { most: MEMBERS })?;
        let owner = Owner::new(member, words.generation().fetch_add(1, Relaxed));
        if owned_lock::inherit(words.lock(), owner) {
            futex::wake(words.lock());
        }
        Ok(Self { process, owner })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of `map_err`")]
fn system(error: io::Error) -> RecordsError {
    RecordsError::System {
        code: error.raw_os_error().unwrap_or(0),
    }
}

/// Records of numbers by key in a file, for all processes that open it.
///
/// Created by [`SharedFile::records`]. A record is a short list of numbers, and an instant at which
/// it expires. `SharedCounters` of `portcullis-counters` keeps counters in such records. For
/// limiters, use those of this crate: they need no lock.
///
/// **All or nothing.** A [lock](Self::lock) is for all records. What is written at once is written
/// as a whole, or not at all, also if the process is killed at any instruction.
///
/// **A process that dies** with the lock leaves it to the next one that asks, at most 10 ms later.
/// One that is stopped with the lock makes others fail with [`RecordsError::Locked`] after 1 s.
///
/// **A process that forks** and its child are two processes, in any namespaces, and whatever
/// privileges the child drops: a lock that one of them has keeps out the other. A copy of a
/// [`LockedRecords`] in the child reads and writes nothing, and releases nothing. A child that is
/// made by a system call, without the handlers of `fork`, opens the file at its first lock, and
/// needs the privileges then.
///
/// **Keys** are told apart by 128 bits of their hash, with a seed that the file has. The file does
/// not contain the keys.
///
/// **Bounded.** A record that has not expired is never removed. A new key that finds no place fails
/// with [`RecordsError::Full`].
///
/// **A hostile process** that writes the file may change all records, and keep the lock. **A file
/// that is truncated** while it is used fails with [`RecordsError::Lost`].
///
/// **Cost.** Two read-modify-writes for the lock if no other process has it. A look-up reads the
/// heads of 32 records.
pub struct SharedRecords {
    words: MappedWords,
    layout: Layout,
    seed: Seed,
    session: Mutex<Session>,
}

/// Why records cannot be read or written. Nothing was written then.
///
/// ```
/// use portcullis_shm::RecordsError;
/// assert_eq!(RecordsError::Full.to_string(), "there is no room for another record");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordsError {
    /// Another process has kept the lock for a second.
    Locked,
    /// The file was truncated, or this process has a clock with another origin than its parent: see
    /// [`SharedFile`].
    Lost,
    /// There is no room for another key.
    Full,
    /// A record has too many numbers, or a write too many records.
    TooMany {
        /// The most.
        most: usize,
    },
    /// This process was forked, and 1,024 processes use the records already.
    Members {
        /// The most processes.
        most: usize,
    },
    /// This process was forked, and could not open the file for itself: a call of the operating
    /// system failed.
    System {
        /// The number of the error of the operating system.
        code: i32,
    },
}

impl fmt::Display for RecordsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked => f.write_str("another process has kept the records locked for 1 s"),
            Self::Lost => f.write_str("the file of the records was truncated"),
            Self::Full => f.write_str("there is no room for another record"),
            Self::TooMany { most } => write!(f, "more than {most} numbers or records at once"),
            Self::Members { most } => {
                write!(f, "{most} processes use the records, and no more can")
            }
            Self::System { code } => {
                let error = io::Error::from_raw_os_error(*code);
                write!(
                    f,
                    "this process could not open the records for itself: {error}"
                )
            }
        }
    }
}

impl core::error::Error for RecordsError {}

/// A record of [`SharedRecords`].
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_shm::SharedFile;
///
/// let file = SharedFile::named("doc-record")?;
/// let records = file.records(10, 1)?;
/// let mut locked = records.lock()?;
/// locked.write(&[(b"alice", &[3], Timestamp::MAX)])?;
/// let record = locked.read(b"alice").unwrap();
/// assert_eq!((record.numbers, record.expires), (vec![3], Timestamp::MAX));
/// # drop(locked);
/// # drop(records);
/// # file.remove()?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The numbers.
    pub numbers: Vec<u64>,
    /// When the record expires, by [`MonotonicClock`]. [`Timestamp::MAX`]: never.
    pub expires: Timestamp,
}

impl SharedRecords {
    /// Waits for the lock, and returns the records.
    ///
    /// # Errors
    ///
    /// [`RecordsError::Locked`] if another process keeps the lock for a second,
    /// [`RecordsError::Lost`] if the file was truncated. In a process that was forked since the
    /// last call, also [`RecordsError::Members`] and [`RecordsError::System`].
    ///
    /// ```
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-records-lock")?;
    /// let records = file.records(1_000, 4)?;
    /// assert!(records.lock()?.read(b"alice").is_none());
    /// # drop(records);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn lock(&self) -> Result<LockedRecords<'_>, RecordsError> {
        let mut session = lock(&self.session);
        if !session.process.is_this() {
            *session = Session::begin(&self.words)?;
        }
        let mut own = lock(self.words.own_file().map_err(system)?);
        let waiting = InFile {
            file: own.get().map_err(system)?,
            until: Instant::now() + PATIENCE,
        };
        if !owned_lock::take(self.words.lock(), session.owner, &waiting) {
            return Err(RecordsError::Locked);
        }
        drop(own);
        let locked = LockedRecords {
            now: MonotonicClock::new().now(),
            records: self,
            session,
        };
        // What a dead process has written as a whole.
        self.copy_journal();
        if self.words.is_lost() {
            return Err(RecordsError::Lost);
        }
        Ok(locked)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.words()[at]
    }

    /// The two hashes of a key.
    fn hashes(&self, key: &[u8]) -> [u64; 2] {
        [0, 1].map(|nth| {
            let mut hasher = self.seed.build_hasher();
            hasher.write_u8(nth);
            hasher.write(key);
            hasher.finish()
        })
    }

    /// The indices of the records in the two groups of a key.
    fn groups(&self, [hash, _]: [u64; 2]) -> [Range<usize>; 2] {
        let groups = self.layout.groups as u64;
        let one = hash % groups;
        let other = (one + 1 + (hash >> 32) % (groups - 1).max(1)) % groups;
        [one, other].map(|group| {
            let first = group as usize * GROUP;
            first..first + GROUP
        })
    }

    fn head(&self, index: usize) -> [u64; HEAD] {
        let (head, _) = self.layout.places(index);
        [0, 1, 2, 3].map(|nth| self.word(head + nth).load(Relaxed))
    }

    /// Copies the images in the journal, if it is complete, to their places.
    fn copy_journal(&self) {
        let layout = self.layout;
        let count = self.word(0).load(Acquire);
        if count == 0 {
            return;
        }
        for nth in 0..(count as usize).min(MOST_AT_ONCE) {
            let image = Layout::JOURNAL + nth * layout.image();
            let index = self.word(image).load(Relaxed) as usize;
            if index >= layout.records() {
                continue;
            }
            let (head, numbers) = layout.places(index);
            let targets = (head..head + HEAD).chain(numbers..numbers + layout.numbers);
            for (from, to) in (image + 1..).zip(targets) {
                let word = self.word(from).load(Relaxed);
                // Release: not before the count of the journal.
                self.word(to).store(word, Release);
            }
        }
        // Release: not before the copies.
        self.word(0).store(0, Release);
    }

    /// Returns whether this process has found the file truncated.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-records-lost")?;
    /// assert!(!file.records(10, 1)?.is_lost());
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn is_lost(&self) -> bool {
        self.words.is_lost()
    }
}

impl fmt::Debug for SharedRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecords")
            .field("numbers", &self.layout.numbers)
            .finish_non_exhaustive()
    }
}

/// The records while no other thread or process reads or writes them. Created by
/// [`SharedRecords::lock`]. The lock ends when this is dropped.
#[derive(Debug)]
pub struct LockedRecords<'a> {
    records: &'a SharedRecords,
    now: Timestamp,
    session: MutexGuard<'a, Session>,
}

impl LockedRecords<'_> {
    /// Returns the time at which the lock was taken, by [`MonotonicClock`].
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-records-now")?;
    /// let records = file.records(10, 1)?;
    /// let earlier = records.lock()?.now();
    /// assert!(records.lock()?.now() >= earlier);
    /// # drop(records);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the record of a key. `None` if it was never written, or has expired; and in a
    /// process that was forked since the lock was taken, which does not have it.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-records-read")?;
    /// let records = file.records(10, 1)?;
    /// let mut locked = records.lock()?;
    /// let soon = locked.now().saturating_add(Duration::from_millis(1));
    /// locked.write(&[(b"alice", &[7], soon)])?;
    /// assert_eq!(locked.read(b"alice").unwrap().numbers, [7]);
    /// drop(locked);
    /// std::thread::sleep(Duration::from_millis(2));
    /// assert!(records.lock()?.read(b"alice").is_none());
    /// # drop(records);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub fn read(&self, key: &[u8]) -> Option<Record> {
        let records = self.records;
        if !self.has_lock() {
            return None;
        }
        let index = self.find(records.hashes(key))?;
        let [.., expires, length] = records.head(index);
        let (_, numbers) = records.layout.places(index);
        let length = (length as usize).min(records.layout.numbers);
        let words = (numbers..numbers + length).map(|at| records.word(at).load(Relaxed));
        Some(Record {
            numbers: words.collect(),
            expires: Timestamp::from_nanos(expires),
        })
    }

    /// Writes records, all or none: for each a key, its numbers, and when it expires. A record that
    /// expires at or before [`now`](Self::now) is removed. Of several records with one key, the
    /// last counts.
    ///
    /// # Errors
    ///
    /// [`RecordsError::Full`] if a new key finds no place, [`RecordsError::TooMany`] for a record
    /// with more numbers than the file has room for, or for more than 64 records.
    /// [`RecordsError::Lost`] if the file was truncated. [`RecordsError::Locked`] in a process that
    /// was forked since the lock was taken, which does not have it.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_shm::{RecordsError, SharedFile};
    /// # let file = SharedFile::named("doc-records-write")?;
    /// let records = file.records(10, 2)?;
    /// let mut locked = records.lock()?;
    /// let never = Timestamp::MAX;
    /// locked.write(&[(b"alice", &[1], never), (b"bob", &[2, 3], never)])?;
    /// let long = locked.write(&[(b"alice", &[1, 2, 3], never)]);
    /// assert_eq!(long, Err(RecordsError::TooMany { most: 2 }));
    /// # drop(locked);
    /// # drop(records);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn write(&mut self, writes: &[(&[u8], &[u64], Timestamp)]) -> Result<(), RecordsError> {
        let records = self.records;
        let layout = records.layout;
        if !self.has_lock() {
            return Err(RecordsError::Locked);
        }
        if writes.len() > MOST_AT_ONCE {
            return Err(RecordsError::TooMany { most: MOST_AT_ONCE });
        }
        let mut taken = Vec::with_capacity(writes.len());
        for (nth, &(key, numbers, expires)) in writes.iter().enumerate() {
            if numbers.len() > layout.numbers {
                let most = layout.numbers;
                return Err(RecordsError::TooMany { most });
            }
            let hashes = records.hashes(key);
            let index = self.place(hashes, &taken).ok_or(RecordsError::Full)?;
            taken.push((index, hashes));
            let image = Layout::JOURNAL + nth * layout.image();
            let [hash, other] = hashes;
            let head = [
                index as u64,
                hash,
                other,
                expires.as_nanos(),
                numbers.len() as u64,
            ];
            let zeros = core::iter::repeat(&0);
            let words = head
                .iter()
                .chain(numbers.iter().chain(zeros).take(layout.numbers));
            for (at, &word) in (image..).zip(words) {
                records.word(at).store(word, Relaxed);
            }
        }
        // Release: not before the images.
        records.word(0).store(writes.len() as u64, Release);
        records.copy_journal();
        if records.is_lost() {
            return Err(RecordsError::Lost);
        }
        Ok(())
    }

    /// Whether this process took the lock: not one that it has forked since.
    fn has_lock(&self) -> bool {
        self.session.process.is_this()
    }

    fn is_alive(&self, expires: u64) -> bool {
        expires > self.now.as_nanos() || expires == u64::MAX
    }

    /// The index of the record with these hashes.
    fn find(&self, [hash, other]: [u64; 2]) -> Option<usize> {
        let mut indices = self.records.groups([hash, other]).into_iter().flatten();
        indices.find(|&index| {
            let head = self.records.head(index);
            head[..2] == [hash, other] && self.is_alive(head[2])
        })
    }

    /// The index of the record with these hashes, or of a place that is free and not `taken`.
    fn place(&self, hashes: [u64; 2], taken: &[(usize, [u64; 2])]) -> Option<usize> {
        let same = taken.iter().find(|(_, others)| *others == hashes);
        let known = same.map(|&(index, _)| index).or_else(|| self.find(hashes));
        known.or_else(|| {
            let is_free = |&index: &usize| {
                let [.., expires, _] = self.records.head(index);
                !self.is_alive(expires) && taken.iter().all(|&(other, _)| other != index)
            };
            let [one, other] = self.records.groups(hashes);
            let free = |group: &Range<usize>| group.clone().filter(is_free).count();
            // The emptier one, so that no group fills long before the others.
            let group = if free(&other) > free(&one) {
                other
            } else {
                one
            };
            group.into_iter().find(is_free)
        })
    }
}

impl Drop for LockedRecords<'_> {
    fn drop(&mut self) {
        let lock = self.records.words.lock();
        if self.has_lock() && owned_lock::release(lock, self.session.owner) {
            futex::wake(lock);
        }
    }
}
