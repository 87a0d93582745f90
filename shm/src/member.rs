//! The processes that have a concurrency limit open, as numbers, and which of them are alive.
//!
//! A member holds a lock on one byte of the file, far beyond its end: an *open file description
//! lock* (`F_OFD_SETLK`). The kernel releases it when the last process that has the description
//! dies, however it dies, and in any container. So a member is alive if another description cannot
//! have its lock. No process id is needed, which could be reused, or could be of another namespace.
//!
//! A process that forks shares its member with its child: the member dies when both have.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::process::OwnFile;

/// Where the bytes of the members are. Also where pointers have 32 bits.
const LOCKS_AT: libc::off64_t = 1 << 40;
/// The byte of the process that changes settings, as the number of a member that no process can be.
const CHANGES: usize = 1 << 20;

fn lock_of(member: usize) -> libc::flock64 {
    // SAFETY: all zeros are a valid `flock64`.
    let mut lock: libc::flock64 = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = LOCKS_AT + member.cast_signed() as libc::off64_t;
    lock.l_len = 1;
    lock
}

#[cfg(target_pointer_width = "64")]
const FCNTL: libc::c_long = libc::SYS_fcntl;
/// The call that takes offsets of 64 bits.
#[cfg(not(target_pointer_width = "64"))]
const FCNTL: libc::c_long = libc::SYS_fcntl64;

fn call(file: &File, command: c_int, lock: &mut libc::flock64) -> io::Result<()> {
    let lock = core::ptr::from_mut(lock);
    // SAFETY: the descriptor is open, and the kernel reads and writes one `flock64`. The library's
    // `fcntl` takes another one on some systems.
    match unsafe { libc::syscall(FCNTL, file.as_raw_fd(), command, lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Becomes the first member below `most` that is not alive. Returns `None` if all are.
pub(crate) fn join(file: &File, most: usize) -> io::Result<Option<usize>> {
    for member in 0..most {
        match call(file, libc::F_OFD_SETLK, &mut lock_of(member)) {
            Ok(()) => return Ok(Some(member)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(None)
}

/// Whether a member that is not this one is alive. If the kernel does not tell, it is.
pub(crate) fn is_alive(file: &File, member: usize) -> bool {
    let mut lock = lock_of(member);
    let told = call(file, libc::F_OFD_GETLK, &mut lock);
    told.is_err() || c_int::from(lock.l_type) != libc::F_UNLCK
}

/// The lock of the process that changes settings. The kernel releases it if the process dies.
#[derive(Debug)]
pub(crate) struct ChangeLock<'f> {
    own: MutexGuard<'f, OwnFile>,
}

impl<'f> ChangeLock<'f> {
    /// Takes the lock. Returns `None` if another thread or process has it.
    ///
    /// The description is that of one mapping of one process, and was opened with the mapping: a
    /// process that has dropped its privileges since could not open the file.
    pub(crate) fn take(own: io::Result<&'f Mutex<OwnFile>>) -> io::Result<Option<Self>> {
        let mut own = match own?.try_lock() {
            Ok(own) => own,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        match call(own.get()?, libc::F_OFD_SETLK, &mut lock_of(CHANGES)) {
            Ok(()) => Ok(Some(Self { own })),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl Drop for ChangeLock<'_> {
    /// A copy of the lock in a forked process releases nothing: the description is another one.
    fn drop(&mut self) {
        let mut lock = lock_of(CHANGES);
        lock.l_type = libc::F_UNLCK as libc::c_short;
        let own = self.own.get();
        let _closing_releases_it = own.and_then(|own| call(own, libc::F_OFD_SETLK, &mut lock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_a_forked_process_has_too_is_released() {
        let path = std::env::temp_dir().join(format!("portcullis-lock-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let [one, other] = [(); 2].map(|()| Mutex::new(OwnFile::of(&file).unwrap()));
        let mut lock = ChangeLock::take(Ok(&one)).unwrap().unwrap();
        assert!(ChangeLock::take(Ok(&one)).unwrap().is_none());
        assert!(ChangeLock::take(Ok(&other)).unwrap().is_none());
        // As a fork does.
        let inherited = lock.own.get().unwrap().try_clone().unwrap();
        drop(lock);
        assert!(ChangeLock::take(Ok(&other)).unwrap().is_some());
        drop(inherited);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_copy_of_a_lock_in_a_forked_process_releases_nothing() {
        let path = std::env::temp_dir().join(format!("portcullis-copy-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let [one, other] = [(); 2].map(|()| Mutex::new(OwnFile::of(&file).unwrap()));
        let mut lock = ChangeLock::take(Ok(&one)).unwrap();
        // As a fork, without its handlers: the child has the same description.
        // SAFETY: the child drops the lock, and ends.
        match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
            0 => {
                drop(lock.take());
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(0) };
            }
            child => {
                // SAFETY: the child is that of this call. Its status is not asked for.
                let ended = unsafe { libc::waitpid(child as c_int, core::ptr::null_mut(), 0) };
                assert_eq!(ended, child as c_int);
            }
        }
        assert!(ChangeLock::take(Ok(&other)).unwrap().is_none());
        drop(lock);
        assert!(ChangeLock::take(Ok(&other)).unwrap().is_some());
        std::fs::remove_file(&path).unwrap();
    }
}
