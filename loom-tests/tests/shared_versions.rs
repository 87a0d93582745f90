//! Settings that change while processes decide: each permit is granted by one version of them.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use portcullis_core::keyed::TokenBucketRules;
use portcullis_core::state::{Attached, Detach, StateWord};
use portcullis_core::{Limiter, Rate, Timestamp, TokenBucket};
use portcullis_loom::{explore, explore_briefly, join, spawn, turn};
use portcullis_shm::versions::{self, Newest, Settings, Version, WORDS};

const NOW: Timestamp = Timestamp::from_secs(9);

struct Shared {
    /// The versions 2 and 1.
    versions: [Version; 2],
}

/// A bucket of one permit, which never returns.
fn rules() -> TokenBucketRules<u64> {
    TokenBucket::new(Rate::ZERO, 1).detach().0
}

fn shared() -> Arc<Shared> {
    let (_, word) = TokenBucket::new(Rate::ZERO, 1).detach();
    Arc::new(Shared {
        versions: Version::pair(word.get()),
    })
}

/// Takes a permit by a version that is known to be in force. `None` if it is not any more.
fn take_by(shared: &Shared, number: u64) -> Option<u64> {
    let version = versions::numbered(&shared.versions, number);
    turn();
    let taken = Attached::new(rules(), version).take_at(NOW, 1);
    let granted = taken.map_or(0, |_| 1);
    version.is_in_force(number).then_some(granted)
}

/// Takes a permit, as a process does that knows version 1.
fn take(shared: &Shared) -> u64 {
    if let Some(granted) = take_by(shared, 1) {
        return granted;
    }
    take_by_newest(shared)
}

/// Takes a permit, as a process does that knows no version.
fn take_by_newest(shared: &Shared) -> u64 {
    match versions::newest(&shared.versions) {
        Newest::InForce(number) => take_by(shared, number).unwrap_or(0),
        _ => 0,
    }
}

const SETTINGS: Settings = Settings {
    words: [7; WORDS],
    fingerprint: 7,
    room: 7,
};

fn supersede(shared: &Shared) {
    let [next, before] = &shared.versions;
    let (rules, word) = TokenBucket::new(Rate::ZERO, 1).detach();
    let (unused, to) = (Attached::new(rules, &word), Attached::new(rules, next));
    let state: &StateWord = next.as_ref();
    let clear = || assert!(unused.move_to_at(NOW, &to, state.get()));
    assert!(next.supersede(before, 1, &SETTINGS, (9_000, 1), clear));
}

/// Completes the change, if it is pending.
fn complete(shared: &Shared) {
    turn();
    let [next, before] = &shared.versions;
    let (from, to) = (Attached::new(rules(), before), Attached::new(rules(), next));
    next.complete(1, |instead_of| {
        from.move_to_at(NOW, &to, instead_of);
    });
}

/// Moves the state, as a process does that is killed before it puts the version in force.
fn complete_and_die(shared: &Shared) {
    let [next, before] = &shared.versions;
    let (from, to) = (Attached::new(rules(), before), Attached::new(rules(), next));
    let state: &StateWord = next.as_ref();
    from.move_to_at(NOW, &to, state.get());
}

#[test]
fn a_permit_is_granted_by_one_version() {
    explore_briefly(2, 3, || {
        let shared = shared();
        let a = spawn(&shared, take);
        let b = spawn(&shared, take);
        supersede(&shared);
        complete(&shared);
        assert!(join(a) + join(b) + take_by_newest(&shared) <= 1);
    });
}

#[test]
fn a_change_that_is_completed_after_a_death_grants_nothing_twice() {
    explore_briefly(2, 3, || {
        let shared = shared();
        let a = spawn(&shared, take);
        let b = spawn(&shared, |shared| {
            // The process that changes the settings dies, and this one has its lock.
            supersede(shared);
            complete_and_die(shared);
            complete(shared);
        });
        let c = take(&shared);
        join(b);
        assert!(join(a) + c + take_by_newest(&shared) <= 1);
    });
}

#[test]
fn a_change_that_several_processes_complete_grants_nothing_twice() {
    explore_briefly(2, 3, || {
        let shared = shared();
        supersede(&shared);
        // The process that began the change is stopped, at any instruction.
        let stopped = spawn(&shared, complete);
        complete(&shared);
        // By the new version, while the stopped process goes on.
        let a = take_by_newest(&shared);
        join(stopped);
        assert_eq!(a + take_by_newest(&shared), 1, "and none is lost");
    });
}

#[test]
fn a_permit_that_was_granted_before_a_change_is_not_granted_by_one_that_completes_it_late() {
    explore_briefly(2, 3, || {
        let shared = shared();
        let a = spawn(&shared, take);
        let b = spawn(&shared, |shared| {
            supersede(shared);
            complete(shared);
        });
        turn();
        // As a process that finds no version in force.
        if versions::newest(&shared.versions) == Newest::Changing(1) {
            complete(&shared);
        }
        let c = take_by_newest(&shared);
        join(b);
        assert!(join(a) + c + take_by_newest(&shared) <= 1);
    });
}

#[test]
fn a_process_that_sees_a_version_in_force_reads_its_settings() {
    explore(|| {
        let shared = shared();
        let a = spawn(&shared, |shared| {
            if versions::newest(&shared.versions) == Newest::InForce(2) {
                assert_eq!(shared.versions[0].settings(), SETTINGS);
            }
        });
        supersede(&shared);
        complete(&shared);
        join(a);
        assert_eq!(versions::newest(&shared.versions), Newest::InForce(2));
    });
}
