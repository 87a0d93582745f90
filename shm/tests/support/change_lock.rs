//! The lock of a process that changes settings.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Takes the lock, as a process that changes the settings of the file and is stopped. Closing the
/// file releases it.
pub(crate) fn hold(path: &Path) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: all zeros are a valid `flock`.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = (1 << 40) + (1 << 20);
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and the kernel reads one `flock`.
    let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) };
    assert_eq!(locked, 0, "another process has the lock");
    file
}
