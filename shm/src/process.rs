//! Which process this is, what its clock counts from, and open files that are its own.
//!
//! A process id does not tell processes apart: each namespace has a process 1. A descriptor does
//! not either: a process that forks and its child share the open file description, and the locks
//! that it has. So this module gives each process a number, and each process descriptions of its
//! own.
//!
//! ```text
//! word     number     0: a process that has not begun. On a page that the kernel wipes at a fork
//! files    descriptor | number     of the process that opened the description
//! ```
//!
//! *Begin.* A process that finds the word 0 takes the next number. `NEXT` is copied at a fork, so a
//! process has another number than all that it descends from, which are all whose memory it has.
//! Before that, it compares the offset of its clock with that of the process that it was forked
//! from: if they differ, all mappings that it has inherited are lost (`fault.rs`).
//!
//! *Renew.* A description that another process opened is replaced, in its place, by a new one of
//! the same file. After `fork`, a handler does this at once, while the child has the privileges
//! with which its parent opened the file. A child that was made without the handlers of `fork` does
//! it when it uses the description.
//!
//! Invariant: what [`OwnFile::get`] returns is a description that this process alone has opened.
//! Processes that it forks have it too until their handler has run.
//!
//! The handler runs in a child that may be a copy of a program with many threads: it makes system
//! calls, takes no lock and allocates nothing.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use crate::fault;

/// The number of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

/// The word with the number: null before the first use.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Process {
    /// This process.
    #[inline]
    pub(crate) fn this() -> Self {
        // SAFETY: it is null, or a word that is never unmapped.
        let word = unsafe { WORD.load(Acquire).as_ref() };
        match word.map_or(0, |word| word.load(Acquire)) {
            0 => Self::begin(),
            number => Self(number),
        }
    }

    /// Whether this process is it: not one that it has forked since.
    #[inline]
    pub(crate) fn is_this(self) -> bool {
        self == Self::this()
    }

    #[cold]
    fn begin() -> Self {
        let word = word();
        note(clock_offset());
        let number = NEXT.fetch_add(1, Relaxed);
        // Another thread may have been first. Release: the mappings are lost before, if they are.
        let begun = word.compare_exchange(0, number, AcqRel, Acquire);
        Self(begun.map_or_else(|other| other, |_| number))
    }
}

/// Creates the word, once for a program.
fn word() -> &'static AtomicU64 {
    static ORDINARY: AtomicU64 = AtomicU64::new(0);
    // SAFETY: it is null, or a word that is never unmapped.
    if let Some(word) = unsafe { WORD.load(Acquire).as_ref() } {
        return word;
    }
    let bytes = size_of::<AtomicU64>();
    // SAFETY: the kernel chooses the address, so the call changes no other mapping.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let new = if page == libc::MAP_FAILED {
        ptr::from_ref(&ORDINARY).cast_mut()
    } else {
        // A kernel older than 4.14 refuses. Then the handler sets the word to 0.
        // SAFETY: the page is that of the call above.
        let _refused = unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) };
        page.cast()
    };
    // Before the word can be used. If two threads are here, there are two handlers, which is one
    // too many, and does no harm. An error leaves the child to renew when it uses a file.
    // SAFETY: the handler does what is allowed in the child of a fork: see the head of this file.
    let _no_memory = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    let first = WORD.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire);
    // SAFETY: a page, which is never unmapped, or a static. All bits are valid.
    unsafe { &*first.map_or_else(|other| other, |_| new) }
}

/// The handler of `fork` in the child.
extern "C" fn in_child() {
    // SAFETY: it is null, or a word that is never unmapped.
    if let Some(word) = unsafe { WORD.load(Acquire).as_ref() } {
        word.store(0, Relaxed);
    }
    let me = Process::this();
    // SAFETY: a child has one thread when it begins.
    unsafe { fault::replace_lost() };
    for place in &PLACES {
        let descriptor = place.descriptor.load(Acquire);
        // If it fails, as without a free descriptor, the first use tries again.
        if descriptor >= 0 && renew(descriptor).is_ok() {
            place.process.store(me.0, Relaxed);
        }
    }
}

/// Where the monotonic clock of a process begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockOffset {
    /// The offset of its time namespace, in seconds and nanoseconds.
    Known([i64; 2]),
    /// The process has created a time namespace for its children: what the kernel tells is theirs.
    OfChildren,
    /// There is no `/proc`, through which offsets are set too.
    Untold,
}

/// Returns where the clock of this process begins.
pub(crate) fn clock_offset() -> ClockOffset {
    let namespace = |path| fs::metadata(path).map(|namespace| namespace.ino());
    let own = namespace("/proc/self/ns/time");
    let of_children = namespace("/proc/self/ns/time_for_children");
    match (own, of_children) {
        (Ok(own), Ok(of_children)) if own != of_children => return ClockOffset::OfChildren,
        (Ok(_), Ok(_)) => {}
        _ if fs::metadata("/proc/self").is_err() => return ClockOffset::Untold,
        // A kernel without time namespaces.
        _ => return ClockOffset::Known([0; 2]),
    }
    let mut text = [0; 512];
    let read = File::open("/proc/self/timens_offsets").and_then(|mut file| file.read(&mut text));
    let text = read.ok().and_then(|length| text.get(..length));
    let text = text.and_then(|text| str::from_utf8(text).ok());
    text.map_or(ClockOffset::Untold, |text| {
        ClockOffset::Known(monotonic_offset(text))
    })
}

/// The offset of `CLOCK_MONOTONIC`, in a text with lines such as `monotonic 0 0`.
fn monotonic_offset(offsets: &str) -> [i64; 2] {
    let parsed = offsets.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_clock = words.next()? == "monotonic";
        let numbers = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        is_clock.then_some(numbers)
    });
    parsed.unwrap_or_default()
}

/// Gives up all mappings if the clock of this process has another origin than that which its
/// mappings count from.
pub(crate) fn note(offset: ClockOffset) {
    static IS_KNOWN: AtomicBool = AtomicBool::new(false);
    static OFFSET: [AtomicI64; 2] = [AtomicI64::new(0), AtomicI64::new(0)];
    let before = OFFSET.each_ref().map(|part| part.load(Relaxed));
    let is_known = IS_KNOWN.load(Acquire);
    let is_same = match offset {
        ClockOffset::Known(now) => now == before,
        // The parent's, as far as it can be known.
        ClockOffset::Untold => return,
        ClockOffset::OfChildren => false,
    };
    if is_known && !is_same {
        fault::lose_all();
    }
    if let ClockOffset::Known(now) = offset {
        for (to, from) in OFFSET.iter().zip(now) {
            to.store(from, Relaxed);
        }
        IS_KNOWN.store(true, Release);
    }
}

/// What the handler knows of an [`OwnFile`].
#[derive(Debug)]
struct Place {
    descriptor: AtomicI32,
    process: AtomicU64,
}

const FREE: c_int = -1;
const TAKEN: c_int = -2;

/// A mapping has at most one.
static PLACES: [Place; fault::MOST] = [const {
    Place {
        descriptor: AtomicI32::new(FREE),
        process: AtomicU64::new(0),
    }
}; fault::MOST];

/// A second description of an open file, which no other process uses: also not a process that this
/// one forks, whatever privileges it drops.
#[derive(Debug)]
pub(crate) struct OwnFile {
    file: File,
    place: &'static Place,
}

impl OwnFile {
    /// Opens the file of a descriptor once more.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let me = Process::this();
        let file = open_again(file.as_raw_fd())?;
        let take = |place: &&Place| {
            let taken = &place.descriptor;
            taken
                .compare_exchange(FREE, TAKEN, Acquire, Relaxed)
                .is_ok()
        };
        let place = PLACES.iter().find(take);
        let place = place.ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?;
        place.process.store(me.0, Relaxed);
        place.descriptor.store(file.as_raw_fd(), Release);
        Ok(Self { file, place })
    }

    /// Returns the description of this process. It holds no lock if the process has been forked
    /// since the last call.
    ///
    /// # Errors
    ///
    /// If the process was forked without handlers, and cannot open the file.
    pub(crate) fn get(&mut self) -> io::Result<&File> {
        let me = Process::this();
        if self.place.process.load(Relaxed) != me.0 {
            renew(self.file.as_raw_fd())?;
            self.place.process.store(me.0, Relaxed);
        }
        Ok(&self.file)
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // The file closes after that.
        self.place.descriptor.store(FREE, Release);
    }
}

fn open_again(descriptor: c_int) -> io::Result<File> {
    let mut path = [0; 32];
    let mut rest = &mut path[..];
    write!(rest, "/proc/self/fd/{descriptor}")?;
    let left = rest.len();
    let path = OsStr::from_bytes(&path[..path.len() - left]);
    File::options().read(true).write(true).open(path)
}

/// Replaces the description of a descriptor by a new one of the same file.
fn renew(descriptor: c_int) -> io::Result<()> {
    let new = open_again(descriptor)?;
    // SAFETY: both are open. The descriptor belongs to an `OwnFile`, and its file stays the same.
    match unsafe { libc::dup3(new.as_raw_fd(), descriptor, libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_the_monotonic_clock_is_read() {
        let text = "monotonic           -5         7\nboottime            1         2\n";
        assert_eq!(monotonic_offset(text), [-5, 7]);
        assert_eq!(monotonic_offset(""), [0, 0]);
        assert_eq!(monotonic_offset("boottime 1 2\n"), [0, 0]);
    }

    #[test]
    fn a_process_keeps_its_number() {
        let threads = [(); 4].map(|()| std::thread::spawn(Process::this));
        assert!(threads.map(|thread| thread.join().unwrap()) == [Process::this(); 4]);
    }
}
