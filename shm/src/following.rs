//! How a process follows changes of settings: the versions that it knows, and the newest of them.

use core::time::Duration;
use std::sync::Mutex;
use std::time::Instant;

use crate::latest::Latest;
use crate::mapping::MappedVersions;
use crate::versions::{self, Newest};

/// So many changes a process follows at once, and one more in each [`FOLLOW_EVERY`]. It keeps the
/// settings of each, so a hostile process must not make it follow too many.
const FOLLOW_AT_ONCE: u64 = 4_096;
const FOLLOW_EVERY: Duration = Duration::from_secs(10);
/// How often a process looks for the end of a change before it completes it.
const LOOKS: usize = 200;

/// A version of the settings, as a process knows it.
pub(crate) trait Version {
    fn number(&self) -> u64;
    fn is_in_force(&self) -> bool;
}

/// Why no version decides.
#[derive(Debug)]
pub(crate) enum Undecided {
    /// The settings are changing, or change too often.
    Changing,
    /// The file is truncated or damaged.
    Closed,
}

/// The versions that a process knows.
#[derive(Debug)]
pub(crate) struct Following<K> {
    known: Latest<K>,
    /// How many changes were followed, and since when they are counted.
    followed: Mutex<(u64, Instant)>,
}

impl<K: Version> Following<K> {
    pub(crate) fn new(known: K) -> Self {
        Self {
            known: Latest::new(known),
            followed: Mutex::new((0, Instant::now())),
        }
    }

    /// The newest version that the process knows.
    #[inline(always)]
    pub(crate) fn get(&self) -> &K {
        self.known.get()
    }

    /// Returns the version in force. `read` reads the version with a number, and returns `None` if
    /// it is not in force any more, or if its settings are damaged. `complete` completes the change
    /// from the version with a number, or leaves it to others.
    pub(crate) fn follow(
        &self,
        versions: &MappedVersions,
        read: impl Fn(u64) -> Option<K>,
        complete: impl Fn(u64),
    ) -> Result<&K, Undecided> {
        for look in 0..=LOOKS + 1 {
            match versions::newest(versions.all()) {
                Newest::InForce(number) => return self.know(versions, number, read),
                Newest::Changing(before) if look == LOOKS => complete(before),
                Newest::Changing(_) => core::hint::spin_loop(),
                Newest::Damaged => return Err(Undecided::Closed),
            }
        }
        Err(Undecided::Changing)
    }

    /// Returns the version with a number, which is in force.
    fn know(
        &self,
        versions: &MappedVersions,
        number: u64,
        read: impl Fn(u64) -> Option<K>,
    ) -> Result<&K, Undecided> {
        let known = self.get();
        if known.number() == number {
            return Ok(known);
        }
        // Another thread of this process is reading it.
        let mut followed = self.followed.try_lock().map_err(|_| Undecided::Changing)?;
        let (count, since) = &mut *followed;
        let in_time = since.elapsed().as_nanos() / FOLLOW_EVERY.as_nanos();
        if u128::from(*count) >= u128::from(FOLLOW_AT_ONCE) + in_time {
            return Err(Undecided::Changing);
        }
        let known = self.get();
        if known.number() == number {
            return Ok(known);
        }
        let known = read(number).ok_or_else(|| match versions::newest(versions.all()) {
            Newest::InForce(newest) if newest == number => Undecided::Closed,
            _ => Undecided::Changing,
        })?;
        *count += 1;
        Ok(self.known.push(known))
    }
}
