//! Holes in files.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Gives the pages of a part of the file back. They read as zeros.
pub(crate) fn hole(file: &File, at: u64, bytes: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // Of 32 bits on some systems.
    let (at, bytes) = (at.try_into().unwrap(), bytes.try_into().unwrap());
    // SAFETY: the descriptor is open. The call changes the file, and no memory of this process
    // besides mappings of the file, which consist of atomics.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, at, bytes) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
