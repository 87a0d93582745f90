//! The versions of a limiter's settings, one of which is in force.
//!
//! ```text
//! version   state | stamp | changed | fingerprint | room | settings      128 bytes
//! stamp     number << 2 | stage                                    0: never used
//!
//! 0, superseded --settings--> pending --state--> in force --------> superseded
//! ```
//!
//! The version with a number lies at that number modulo the number of versions. Each has a state
//! word of its own, which only its settings give a meaning.
//!
//! *Decide.* A process decides by the version that it knows, by one exchange of its state. Then it
//! looks at the stamp. If the version is not in force any more, the decision does not count.
//!
//! *Change*, from number `n` to `n + 1`, under a lock:
//!
//! 1. makes the state of `n + 1` that of an unused limiter, writes its settings, and stamps it as
//!    pending;
//! 2. stamps `n` as superseded;
//! 3. reads the state of `n` by a read-modify-write, and exchanges that of `n + 1` for it,
//!    converted;
//! 4. stamps `n + 1` as in force.
//!
//! *Complete.* Steps 3 and 4 need no lock: any process that finds no version in force does them,
//! and several may at once. Each reads the state of `n + 1`, then finds by a read-modify-write of
//! the stamp that the version is still pending, and then exchanges the state that it has read.
//!
//! Invariant: a decision that counts is in the state that step 3 reads, or was made after step 4.
//! An exchange that comes before step 3 in the order of the state word is in what that step reads.
//! One that comes after it sees step 2, because that step's read-modify-write releases.
//!
//! Invariant: once a decision by `n + 1` has changed its state, step 3 does not. A process that
//! does step 3 has read the state before step 4, because its look at the stamp comes before step 4
//! in the order of the stamp. So it has read the unused state, or what another process has moved. A
//! state in which more is in use is never one of these again, unless refunds undo all that was
//! granted.
//!
//! A process may be killed or stopped between any two steps. Before step 2 nothing has happened.
//! After it, another process completes the change: no decision counts in between, and those that do
//! not count can only have made the state of `n` fuller. A process that is stopped before step 3
//! keeps the lock: the settings do not change again before it goes on or is dead.
//!
//! A version is used again after as many changes as there are versions, and not within a minute. So
//! a process that stops in the middle of a decision, or of completing a change, for less than a
//! minute does not meet the state of later settings.

use portcullis_core::state::StateWord;

use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, fence};

/// The number of words for settings.
pub const WORDS: usize = 11;

/// A version, as it lies in a file: atomic words and nothing else.
#[derive(Debug)]
#[repr(C)]
pub struct Version {
    state: StateWord,
    stamp: AtomicU64,
    /// When the version was superseded, in milliseconds.
    changed: AtomicU64,
    fingerprint: AtomicU64,
    room: AtomicU64,
    settings: [AtomicU64; WORDS],
}

/// The state is the place of a limiter's word.
impl AsRef<StateWord> for Version {
    #[inline(always)]
    fn as_ref(&self) -> &StateWord {
        &self.state
    }
}

const STAGE_BITS: u32 = 2;
const PENDING: u64 = 1;
const IN_FORCE: u64 = 2;
const SUPERSEDED: u64 = 3;

const fn stamp(number: u64, stage: u64) -> u64 {
    number << STAGE_BITS | stage
}

/// The settings of a limiter as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What they mean is up to the kind of limiter.
    pub words: [u64; WORDS],
    /// The fingerprint of the rules that they give.
    pub fingerprint: u64,
    /// How many permits the state can count as in use: those of the settings before may be more
    /// than these settings grant. 0 in a new file.
    pub room: u64,
}

/// The words of a version that is in force and has the number 1, for a new file. All other versions
/// are 0.
pub fn first(state: u64, settings: &Settings) -> Vec<u64> {
    let mut words = vec![0; PER_VERSION];
    words.extend([
        state,
        stamp(1, IN_FORCE),
        0,
        settings.fingerprint,
        settings.room,
    ]);
    words.extend(settings.words);
    words
}

/// The most versions.
pub const MOST: usize = 32;

/// The words of a version.
const PER_VERSION: usize = 5 + WORDS;

/// Which version decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newest {
    /// The version with this number.
    InForce(u64),
    /// None. A process is changing from the version with this number to the next one, or was killed
    /// while it did. 0: the versions change faster than they can be looked at.
    Changing(u64),
    /// None: the stamps are those of no change.
    Damaged,
}

/// Returns which version decides, by a look at all stamps.
pub fn newest(versions: &[Version]) -> Newest {
    let look = || {
        let mut stamps = [0; MOST];
        for (stamp, version) in stamps.iter_mut().zip(versions) {
            *stamp = version.stamp.load(Acquire);
        }
        stamps
    };
    let of = |stamps: &[u64; MOST]| {
        let stamps = stamps.get(..versions.len()).unwrap_or(stamps);
        newest_of(&stamps.iter().copied())
    };
    let mut stamps = look();
    for _ in 0..LOOKS {
        let newest = of(&stamps);
        if newest != Newest::Damaged {
            return newest;
        }
        // A change during the look may have left stamps of two moments. They only grow, so stamps
        // that two looks see alike were there at one moment.
        let again = look();
        if again == stamps {
            return Newest::Damaged;
        }
        stamps = again;
    }
    Newest::Changing(0)
}

/// How often the stamps are looked at while they change.
const LOOKS: usize = if cfg!(any(portcullis_loom, portcullis_explore)) {
    2
} else {
    64
};

fn newest_of(stamps: &(impl ExactSizeIterator<Item = u64> + Clone)) -> Newest {
    let count = stamps.len() as u64;
    let of_stage = |stage| {
        let numbers = stamps.clone().zip(0..).filter_map(move |(stamp, index)| {
            let number = stamp >> STAGE_BITS;
            let is_one = stamp & ((1 << STAGE_BITS) - 1) == stage && number % count == index;
            is_one.then_some(number)
        });
        numbers.max()
    };
    match (of_stage(IN_FORCE), of_stage(SUPERSEDED), of_stage(PENDING)) {
        (Some(number), _, _) => Newest::InForce(number),
        (None, Some(before), Some(next)) if before + 1 == next => Newest::Changing(before),
        _ => Newest::Damaged,
    }
}

/// Returns the settings in force in the words of all versions.
pub fn settings_in(words: &[u64]) -> Option<Settings> {
    let versions = words.chunks_exact(PER_VERSION);
    let stamps = versions.clone().map(|version| version[1]);
    let (Newest::InForce(number) | Newest::Changing(number)) = newest_of(&stamps) else {
        return None;
    };
    let count = versions.len() as u64;
    let version = versions.clone().nth((number % count) as usize)?;
    let mut settings = [0; WORDS];
    settings.copy_from_slice(&version[5..]);
    Some(Settings {
        words: settings,
        fingerprint: version[3],
        room: version[4],
    })
}

/// Returns the version with a number.
pub fn numbered(versions: &[Version], number: u64) -> &Version {
    &versions[(number % versions.len() as u64) as usize]
}

impl Version {
    /// Whether this version is the one with a number, and in force. Call it after the exchange of a
    /// decision.
    #[inline(always)]
    pub fn is_in_force(&self, number: u64) -> bool {
        // Acquire: pairs with the read-modify-write of `Attached::move_to_at`. A decision that
        // changed the state after that sees here that the version is superseded.
        fence(Acquire);
        self.stamp.load(Relaxed) == stamp(number, IN_FORCE)
    }

    /// Returns the settings, which another process may be writing at this moment.
    pub fn settings(&self) -> Settings {
        Settings {
            words: self.settings.each_ref().map(|word| word.load(Relaxed)),
            fingerprint: self.fingerprint.load(Relaxed),
            room: self.room.load(Relaxed),
        }
    }

    /// Steps 1 and 2 of a change to this version from `before`, which is in force and has the
    /// number `number`. The caller has the lock. `millis` is the present time. `clear` makes the
    /// state that of an unused limiter. Returns `false`, and changes nothing, if this version was
    /// superseded less than `age` milliseconds ago.
    pub fn supersede(
        &self,
        before: &Self,
        number: u64,
        settings: &Settings,
        (millis, age): (u64, u64),
        clear: impl FnOnce(),
    ) -> bool {
        if self.age(millis).is_some_and(|since| since < age) {
            return false;
        }
        // Not the stamp of another number while the state and the settings are written.
        self.stamp.store(0, Relaxed);
        clear();
        for (word, setting) in self.settings.iter().zip(settings.words) {
            word.store(setting, Release);
        }
        self.fingerprint.store(settings.fingerprint, Release);
        self.room.store(settings.room, Release);
        // Release: pairs with the loads of `newest`, after which a process reads the settings.
        self.stamp.store(stamp(number + 1, PENDING), Release);
        before.changed.store(millis, Relaxed);
        // Release: the process that completes the change reads the settings.
        before.stamp.store(stamp(number, SUPERSEDED), Release);
        true
    }

    /// How many milliseconds ago this version was superseded. `None` if it was not, or if the time
    /// is one of a damaged file.
    pub fn age(&self, millis: u64) -> Option<u64> {
        let is_superseded = self.stamp.load(Relaxed) & ((1 << STAGE_BITS) - 1) == SUPERSEDED;
        let age = millis.checked_sub(self.changed.load(Relaxed));
        age.filter(|_| is_superseded)
    }

    /// Steps 3 and 4 of a change to this version from number `number`, if it is pending. Any
    /// process may do them that has seen that the version before is superseded. `move_state` moves
    /// the state of that version to this one, instead of the bits that it is passed, by
    /// [`Attached::move_to_at`](portcullis_core::state::Attached::move_to_at).
    pub fn complete(&self, number: u64, move_state: impl FnOnce(u64)) {
        let (pending, in_force) = (stamp(number + 1, PENDING), stamp(number + 1, IN_FORCE));
        let instead_of = self.state.get();
        // Acquire and release: a decision by this version has acquired the exchange below,
        // which reads from this write. So the state was read before any decision.
        if self.stamp.fetch_add(0, AcqRel) != pending {
            return;
        }
        move_state(instead_of);
        // Release: pairs with the loads of `newest`. A process that decides by this version meets
        // the state. Acquire: as above.
        let _others_have = self
            .stamp
            .compare_exchange(pending, in_force, AcqRel, Relaxed);
    }

    /// A version that is in force and has the number 1, and one that was never used.
    #[cfg(any(portcullis_loom, portcullis_explore))]
    pub fn pair(state: u64) -> [Self; 2] {
        [(0, 0), (state, stamp(1, IN_FORCE))].map(|(state, stamp)| Self {
            state: StateWord::new(state),
            stamp: AtomicU64::new(stamp),
            changed: AtomicU64::new(0),
            fingerprint: AtomicU64::new(0),
            room: AtomicU64::new(0),
            settings: core::array::from_fn(|_| AtomicU64::new(0)),
        })
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_128_bytes_of_which_the_first_are_the_state() {
        assert_eq!(size_of::<Version>(), 8 * PER_VERSION);
        assert_eq!(core::mem::offset_of!(Version, state), 0);
        assert_eq!(core::mem::offset_of!(Version, stamp), 8);
        assert_eq!(core::mem::offset_of!(Version, fingerprint), 24);
    }

    #[test]
    fn the_newest_version_in_force_decides() {
        let newest = |stamps: &[u64]| newest_of(&stamps.iter().copied());
        assert_eq!(newest(&[0, stamp(1, IN_FORCE)]), Newest::InForce(1));
        let both = [stamp(2, IN_FORCE), stamp(1, IN_FORCE)];
        assert_eq!(newest(&both), Newest::InForce(2));
        let between = [stamp(2, PENDING), stamp(1, SUPERSEDED)];
        assert_eq!(newest(&between), Newest::Changing(1));
        let before = [stamp(2, PENDING), stamp(1, IN_FORCE)];
        assert_eq!(newest(&before), Newest::InForce(1));
    }

    #[test]
    fn a_look_during_changes_finds_no_damage() {
        let version = |stamp| Version {
            state: StateWord::new(0),
            stamp: AtomicU64::new(stamp),
            changed: AtomicU64::new(0),
            fingerprint: AtomicU64::new(0),
            room: AtomicU64::new(0),
            settings: [const { AtomicU64::new(0) }; WORDS],
        };
        let versions = [0, stamp(1, IN_FORCE), 0, 0].map(version);
        let settings = Settings {
            words: [0; WORDS],
            fingerprint: 0,
            room: 0,
        };
        let is_over = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1.. {
                    let (before, next) =
                        (numbered(&versions, number), numbered(&versions, number + 1));
                    assert!(next.supersede(before, number, &settings, (0, 0), || ()));
                    next.complete(number, |_| ());
                    if is_over.load(Relaxed) {
                        break;
                    }
                }
            });
            let mut damaged = 0;
            let begun = std::time::Instant::now();
            while begun.elapsed().as_millis() < 1_500 {
                damaged += u32::from(newest(&versions) == Newest::Damaged);
            }
            is_over.store(true, Relaxed);
            assert_eq!(damaged, 0);
        });
    }

    #[test]
    fn stamps_of_no_change_are_damaged() {
        let newest = |stamps: &[u64]| newest_of(&stamps.iter().copied());
        assert_eq!(newest(&[0, 0]), Newest::Damaged);
        assert_eq!(
            newest(&[stamp(1, IN_FORCE), 0]),
            Newest::Damaged,
            "elsewhere"
        );
        let gap = [stamp(4, PENDING), stamp(1, SUPERSEDED)];
        assert_eq!(newest(&gap), Newest::Damaged);
        let last = [u64::MAX, u64::MAX];
        assert_eq!(newest(&last), Newest::Damaged);
        assert_eq!(newest(&[]), Newest::Damaged);
    }
}
