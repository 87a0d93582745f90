//! An access that raises `SIGBUS`.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Maps a page of an empty file, and reads it.
pub(crate) fn beyond_the_end(file: &File) {
    // SAFETY: the kernel chooses the address, so the call changes no other mapping.
    let page = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the page is mapped. The file has no such byte, so the read raises a signal.
    unsafe { page.cast::<u8>().read_volatile() };
}
