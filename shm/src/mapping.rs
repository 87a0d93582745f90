//! A file in memory: the only place, besides `fault.rs`, that knows its address.
//!
//! The pages are `MAP_SHARED`: other processes, also hostile ones, write them at any time. So
//! nothing in them is read or written except through atomics, for which any bits are valid. All
//! references that this module returns are to types that consist of atomics and nothing else:
//! [`StateWord`], [`Version`], [`Stripe`],
//! [`Slot`](pool_slots::Slot), [`Limits`], [`Line`], [`AtomicU32`], [`AtomicU64`].
//!
//! Soundness: the address and the length are those of one `mmap`, which lasts until the drop of the
//! [`Mapping`]. The references borrow the mapping. The offset and the number of items are checked
//! against the length, and alignments against the page. Rust's memory model knows no other process;
//! its atomics compile to instructions on memory, which other processes' instructions interleave
//! with, as other threads' would. If the file is truncated, `fault.rs` maps pages of zeros at the
//! same address.
//!
//! *The end.* The last word of a mapping is [`END`], which the creator of the file writes. A file
//! that is truncated loses it, wherever it is cut, and does not have it again when it grows. So a
//! truncation is noticed that leaves no page missing: within the last page, or undone before an
//! access. A mapping without it is lost, as one with a missing page.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use portcullis_core::keyed::Line;
use portcullis_core::state::StateWord;

use crate::error::OpenError;
use crate::fault::{self, Entry};
use crate::header::HEADER;
use crate::pool_slots;
use crate::process::OwnFile;
use crate::slots::Limits;
use crate::stripes::Stripe;
use crate::versions::{self, Version};

/// The last word of a mapping. No byte of it is 0.
pub(crate) const END: u64 = u64::from_ne_bytes(*b"the end.");
/// The bytes of the end, before which nothing of the contents lies.
pub(crate) const END_BYTES: u64 = size_of::<AtomicU64>() as u64;

/// The pages of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: *mut c_void,
    bytes: usize,
    end: *const AtomicU64,
    entry: &'static Entry,
    /// Keeps the shared lock, which says that the file is in use. The processes that this one forks
    /// have the same description.
    file: File,
    own: Option<Mutex<OwnFile>>,
}

// SAFETY: nothing in the mapping is accessed except through atomics, and the address is valid in
// all threads.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of a file, which must have as many.
    pub(crate) fn new(file: File, bytes: u64, path: &Path) -> Result<Self, OpenError> {
        let bytes = Self::check_size(bytes)?;
        let failed = |error| OpenError::System {
            path: path.to_owned(),
            tried: "map it",
            error,
        };
        fault::install().map_err(failed)?;
        let entry = Entry::take().ok_or(OpenError::TooMany { most: fault::MOST })?;
        // SAFETY: the kernel chooses the address, so the call changes no other mapping.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            entry.withdraw();
            return Err(failed(io::Error::last_os_error()));
        }
        entry.publish(address, bytes);
        let mut mapping = Self {
            address,
            bytes,
            end: ptr::null(),
            entry,
            file,
            own: None,
        };
        mapping.end = mapping.part(bytes - END_BYTES as usize, 1).as_ptr();
        Ok(mapping)
    }

    /// Opens the file once more, for locks that this process has alone.
    pub(crate) fn with_own_file(mut self) -> io::Result<Self> {
        self.own = Some(Mutex::new(OwnFile::of(&self.file)?));
        Ok(self)
    }

    /// The description that [`with_own_file`](Self::with_own_file) has opened.
    pub(crate) fn own_file(&self) -> io::Result<&Mutex<OwnFile>> {
        self.own.as_ref().ok_or(io::ErrorKind::Unsupported.into())
    }

    /// Checks that a mapping can have as many bytes.
    pub(crate) fn check_size(bytes: u64) -> Result<usize, OpenError> {
        let least = HEADER + END_BYTES as usize;
        let fits = |&bytes: &usize| {
            bytes > least && bytes <= fault::MOST_BYTES && bytes.is_multiple_of(size_of::<u64>())
        };
        let bytes = usize::try_from(bytes).ok().filter(fits);
        bytes.ok_or(OpenError::TooLarge {
            most: fault::MOST_BYTES as u64,
        })
    }

    /// Whether the file was truncated at an access before, or the clock has another origin.
    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        // SAFETY: it is in the mapping, and an atomic.
        let end = unsafe { &*self.end };
        // Relaxed: the fence in `Entry::is_lost` comes first, and it is not before the access.
        self.entry.is_lost() | (end.load(Relaxed) != END)
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// `count` items, `after` bytes after the start of the words.
    fn items<T>(&self, after: usize, count: usize) -> &[T] {
        self.part(HEADER + after, count)
    }

    /// `count` items, `from` bytes after the start of the mapping.
    fn part<T>(&self, from: usize, count: usize) -> &[T] {
        let room = self.bytes - from;
        assert!(
            size_of::<T>() > 0
                && from.is_multiple_of(align_of::<T>())
                && count <= room / size_of::<T>(),
            "the mapping is smaller than its contents"
        );
        // SAFETY: the items are in the mapping, which is page-aligned and lasts as long as `self`.
        // The callers below choose types that consist of atomics, so any bits are valid, and other
        // processes may write them.
        unsafe { core::slice::from_raw_parts(self.address.byte_add(from).cast(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.entry.withdraw();
        // SAFETY: it is the mapping of `new`, and no reference into it is left.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

/// The versions of a [`SharedLimiter`](crate::SharedLimiter), in a file.
#[derive(Clone, Debug)]
pub(crate) struct MappedVersions {
    versions: *const [Version; VERSIONS],
    mapping: Arc<Mapping>,
}

/// The number of versions in a file.
pub(crate) const VERSIONS: usize = versions::MOST;

// SAFETY: `versions` are in the mapping, which can be sent and shared.
unsafe impl Send for MappedVersions {}
// SAFETY: as above.
unsafe impl Sync for MappedVersions {}

impl MappedVersions {
    pub(crate) fn new(mapping: Mapping) -> Self {
        let versions = mapping.items(0, 1).as_ptr();
        let mapping = Arc::new(mapping);
        Self { versions, mapping }
    }

    /// The mapping.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(crate) fn all(&self) -> &[Version] {
        // SAFETY: the mapping lasts as long as `self`, and has the versions, which consist of
        // atomics.
        unsafe { &*self.versions }
    }

    /// The version at the start of the mapping.
    pub(crate) fn first(&self) -> &Version {
        &self.all()[0]
    }

    /// The version with a number.
    pub(crate) fn numbered(&self, number: u64) -> MappedVersion {
        MappedVersion {
            version: versions::numbered(self.all(), number),
            mapping: Arc::clone(&self.mapping),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    pub(crate) fn file(&self) -> &File {
        self.mapping.file()
    }

    pub(crate) fn own_file(&self) -> io::Result<&Mutex<OwnFile>> {
        self.mapping.own_file()
    }
}

/// One of the [`MappedVersions`].
#[derive(Debug)]
pub(crate) struct MappedVersion {
    version: *const Version,
    #[expect(dead_code, reason = "`version` lies in it")]
    mapping: Arc<Mapping>,
}

// SAFETY: `version` is in the mapping, which can be sent and shared.
unsafe impl Send for MappedVersion {}
// SAFETY: as above.
unsafe impl Sync for MappedVersion {}

impl MappedVersion {
    #[inline(always)]
    pub(crate) fn get(&self) -> &Version {
        // SAFETY: the mapping lasts as long as `self`, and has the version, which consists of
        // atomics.
        unsafe { &*self.version }
    }
}

impl AsRef<StateWord> for MappedVersion {
    #[inline(always)]
    fn as_ref(&self) -> &StateWord {
        self.get().as_ref()
    }
}

/// The lines of a [`SharedTable`](crate::SharedTable), in a file, under one version of its
/// settings.
#[derive(Debug)]
pub struct MappedLines {
    lines: *const [Line],
    version: MappedVersion,
    number: u64,
    mapping: Arc<Mapping>,
}

// SAFETY: `lines` are in the mapping, which can be sent and shared.
unsafe impl Send for MappedLines {}
// SAFETY: as above.
unsafe impl Sync for MappedLines {}

impl MappedLines {
    /// `count` lines, `after` bytes after the start of the words, which count as long as the
    /// version with a number is in force.
    pub(crate) fn new(
        mapping: Arc<Mapping>,
        (after, count): (usize, usize),
        (version, number): (MappedVersion, u64),
    ) -> Self {
        Self {
            lines: ptr::from_ref(mapping.items(after, count)),
            version,
            number,
            mapping,
        }
    }

    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    #[inline(always)]
    pub(crate) fn is_in_force(&self) -> bool {
        self.version.get().is_in_force(self.number)
    }

    /// The lines, also if their version is not in force.
    pub(crate) fn all(&self) -> &[Line] {
        // SAFETY: the mapping lasts as long as `self`, and has the lines. A `Line` consists of
        // atomics.
        unsafe { &*self.lines }
    }
}

/// The lines of the file. If it was found truncated, or if other settings are in force, a line
/// whose slots no key can use.
impl AsRef<[Line]> for MappedLines {
    #[inline(always)]
    fn as_ref(&self) -> &[Line] {
        static NONE: [Line; 1] = [Line::closed()];
        if self.is_lost() || !self.is_in_force() {
            return &NONE;
        }
        self.all()
    }
}

/// The slots of a [`SharedConcurrency`](crate::SharedConcurrency) limit, in a file.
#[derive(Debug)]
pub(crate) struct MappedSlots {
    slots: *const [AtomicU64],
    /// A line of its own before the slots: the gate, the number of processes that joined, and the
    /// limit.
    shared: *const [AtomicU32; 2],
    limits: *const Limits,
    mapping: Mapping,
}

// SAFETY: the pointers are into the mapping, which can be sent and shared.
unsafe impl Send for MappedSlots {}
// SAFETY: as above.
unsafe impl Sync for MappedSlots {}

impl MappedSlots {
    const LIMITS_AT: usize = size_of::<[AtomicU32; 2]>();
    const SLOTS_AT: usize = 64;

    /// The bytes that `count` slots need.
    pub(crate) fn bytes(count: usize) -> u64 {
        (Self::SLOTS_AT + count * size_of::<AtomicU64>()) as u64
    }

    pub(crate) fn new(mapping: Mapping, count: usize) -> Self {
        Self {
            slots: ptr::from_ref(mapping.items(Self::SLOTS_AT, count)),
            shared: mapping.items(0, 1).as_ptr(),
            limits: mapping.items(Self::LIMITS_AT, 1).as_ptr(),
            mapping,
        }
    }

    #[inline(always)]
    pub(crate) fn slots(&self) -> &[AtomicU64] {
        // SAFETY: the mapping lasts as long as `self`, and has these atomics.
        unsafe { &*self.slots }
    }

    fn shared(&self) -> &[AtomicU32; 2] {
        // SAFETY: as above.
        unsafe { &*self.shared }
    }

    #[inline(always)]
    pub(crate) fn limits(&self) -> &Limits {
        // SAFETY: as above. `Limits` consist of atomics.
        unsafe { &*self.limits }
    }

    pub(crate) fn gate(&self) -> &AtomicU32 {
        &self.shared()[0]
    }

    pub(crate) fn generation(&self) -> &AtomicU32 {
        &self.shared()[1]
    }

    pub(crate) fn file(&self) -> &File {
        self.mapping.file()
    }

    pub(crate) fn own_file(&self) -> io::Result<&Mutex<OwnFile>> {
        self.mapping.own_file()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}

/// The words of [`SharedRecords`](crate::SharedRecords), in a file, after a line with their lock
/// and the number of processes that joined.
#[derive(Debug)]
pub(crate) struct MappedWords {
    words: *const [AtomicU64],
    shared: *const [AtomicU32; 2],
    mapping: Mapping,
}

// SAFETY: the pointers are into the mapping, which can be sent and shared.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    const WORDS_AT: usize = 64;

    /// The bytes that `count` words need.
    pub(crate) fn bytes(count: usize) -> u64 {
        (count as u64)
            .saturating_mul(size_of::<AtomicU64>() as u64)
            .saturating_add(Self::WORDS_AT as u64)
    }

    pub(crate) fn new(mapping: Mapping, count: usize) -> Self {
        Self {
            words: ptr::from_ref(mapping.items(Self::WORDS_AT, count)),
            shared: mapping.items(0, 1).as_ptr(),
            mapping,
        }
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping lasts as long as `self`, and has these atomics.
        unsafe { &*self.words }
    }

    fn shared(&self) -> &[AtomicU32; 2] {
        // SAFETY: as above.
        unsafe { &*self.shared }
    }

    pub(crate) fn lock(&self) -> &AtomicU32 {
        &self.shared()[0]
    }

    pub(crate) fn generation(&self) -> &AtomicU32 {
        &self.shared()[1]
    }

    pub(crate) fn own_file(&self) -> io::Result<&Mutex<OwnFile>> {
        self.mapping.own_file()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}

/// The number of stripes in a file.
pub(crate) const STRIPES: usize = 8;

/// The rest and the stripes of [`SharedStripes`](crate::SharedStripes), in a file: a word on lines
/// of its own, and the stripes.
#[derive(Debug)]
pub(crate) struct MappedRest {
    word: *const StateWord,
    stripes: *const [Stripe; STRIPES],
    mapping: Mapping,
}

// SAFETY: the pointers are into the mapping, which can be sent and shared.
unsafe impl Send for MappedRest {}
// SAFETY: as above.
unsafe impl Sync for MappedRest {}

impl MappedRest {
    /// With the end, a page.
    pub(crate) const BYTES: u64 = 4096 - END_BYTES;

    pub(crate) fn new(mapping: Mapping) -> Self {
        Self {
            word: mapping.items(0, 1).as_ptr(),
            stripes: mapping.items(size_of::<Stripe>(), 1).as_ptr(),
            mapping,
        }
    }

    #[inline(always)]
    pub(crate) fn stripes(&self) -> &[Stripe] {
        // SAFETY: the mapping lasts as long as `self`, and has the stripes. A `Stripe` is an atomic
        // and padding, which nothing accesses.
        unsafe { &*self.stripes }
    }

    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}

impl AsRef<StateWord> for MappedRest {
    #[inline(always)]
    fn as_ref(&self) -> &StateWord {
        // SAFETY: the mapping lasts as long as `self`, and has the word. A `StateWord` is an
        // atomic.
        unsafe { &*self.word }
    }
}

/// The slots of a [`SharedLeasePool`](crate::SharedLeasePool), in a file.
#[derive(Debug)]
pub(crate) struct MappedPool {
    slots: *const [pool_slots::Slot],
    mapping: Mapping,
}

// SAFETY: `slots` are in the mapping, which can be sent and shared.
unsafe impl Send for MappedPool {}
// SAFETY: as above.
unsafe impl Sync for MappedPool {}

impl MappedPool {
    /// The bytes that `count` slots need.
    pub(crate) fn bytes(count: usize) -> u64 {
        (count * size_of::<pool_slots::Slot>()) as u64
    }

    pub(crate) fn new(mapping: Mapping, count: usize) -> Self {
        let slots = ptr::from_ref(mapping.items(0, count));
        Self { slots, mapping }
    }

    #[inline(always)]
    pub(crate) fn slots(&self) -> &[pool_slots::Slot] {
        // SAFETY: the mapping lasts as long as `self`, and has the slots, which consist of atomics.
        unsafe { &*self.slots }
    }

    pub(crate) fn file(&self) -> &File {
        self.mapping.file()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}
