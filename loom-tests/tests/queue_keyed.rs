//! Queues by key: what is released of one key reaches those who wait for it, whoever has the lines
//! for whatever other key.
//!
//! Under loom there are two shards. The keys are their own hashes, so that each model says which of
//! them share one.
#![cfg(loom)]

use core::hash::BuildHasherDefault;
use core::task::Waker;
use std::sync::Arc;
use std::task::Wake;

use portcullis_async::{Acquire, KeyedQueue, QueueKey};
use portcullis_core::{ConcurrencyRules, Keyed, Lease, Limiter, Line};
use portcullis_loom::queue::{
    Lock, Still, Task, Woken, beside, beside_of, leave_all, lines_end_well, nobody_waits,
};
use portcullis_loom::{Itself, at, explore, explore_briefly, join, turn};

type Table = Keyed<ConcurrencyRules, Vec<Line>, BuildHasherDefault<Itself>>;
type Lines = KeyedQueue<Table, Still, Lock>;
type Pointer = QueueKey<Arc<Lines>>;
type Wait = Task<Pointer>;

const A: u64 = 1;
/// In the same shard as `A`.
const NEAR: u64 = 3;
/// In the other one.
const FAR: u64 = 6;

/// Queues around a table of two entries, of one permit for each key.
fn queues() -> Arc<Lines> {
    let table: Table = Keyed::new(
        ConcurrencyRules::new(1),
        vec![Line::new()],
        BuildHasherDefault::default(),
    );
    let shard = |key: u64| table.key(&key).address().group(2);
    assert!(shard(A) == shard(NEAR) && shard(A) != shard(FAR));
    Arc::new(KeyedQueue::with_lock(table, Still, 9, Lock::new()))
}

fn pointer(queue: &Arc<Lines>, key: u64) -> Pointer {
    QueueKey::new(Arc::clone(queue), &key)
}

fn hold(queue: &Arc<Lines>, key: u64) -> Lease<Pointer> {
    Lease::try_acquire_at(pointer(queue, key), at(0), 1).unwrap()
}

/// A wait for the permit of a key that has been polled.
fn wait(queue: &Arc<Lines>, key: u64) -> Wait {
    unpolled(queue, key).started()
}

fn unpolled(queue: &Arc<Lines>, key: u64) -> Wait {
    Task::of(Acquire::new(pointer(queue, key), 1, 1), 1)
}

/// How it ends, once nobody else runs, for each key and those who are at its permits: as in one
/// queue.
fn ends_well<const N: usize>(queue: &Arc<Lines>, limit: u64, lines: [(u64, Vec<&mut Wait>); N]) {
    let mut waiters = 0;
    let mut all = Vec::new();
    let keys = lines.each_ref().map(|(key, _)| *key);
    let free = |key: u64| pointer(queue, key).available_at(at(0));
    for (key, line) in lines {
        let (waiting, tasks) = lines_end_well(|| free(key), limit, line);
        waiters += waiting;
        all.extend(tasks);
    }
    assert_eq!(queue.counts().waiters, waiters);
    leave_all(all);
    nobody_waits(queue.counts());
    assert!(
        keys.iter().all(|&key| free(key) == limit),
        "when all are gone"
    );
}

/// Runs a model once with two keys in one shard, and once with two in two.
fn near_and_far(model: fn(u64)) {
    explore(move || model(NEAR));
    explore(move || model(FAR));
}

#[test]
fn a_wait_that_begins_beside_a_release_of_its_key_is_granted() {
    explore(|| {
        let queue = queues();
        let held = hold(&queue, A);
        let release = beside(move || drop(held));
        let mut mine = wait(&queue, A);
        join(release);
        assert!(mine.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [(A, vec![&mut mine])]);
    });
}

#[test]
fn a_wait_that_begins_beside_a_release_where_another_key_is_waited_for_is_granted() {
    near_and_far(|other| {
        let queue = queues();
        let (held, others) = (hold(&queue, A), hold(&queue, other));
        // The gate is raised already, and the limiter asked all the same.
        let mut before = wait(&queue, other);
        let release = beside(move || drop(held));
        let mut mine = wait(&queue, A);
        join(release);
        assert!(mine.is_served() && !before.is_served());
        drop(others);
        ends_well(
            &queue,
            1,
            [(A, vec![&mut mine]), (other, vec![&mut before])],
        );
    });
}

#[test]
fn a_release_of_one_key_beside_a_wait_for_another_reaches_its_own() {
    near_and_far(|other| {
        let queue = queues();
        let (held, others) = (hold(&queue, A), hold(&queue, other));
        let mut mine = wait(&queue, A);
        let release = beside(move || drop(held));
        let mut theirs = wait(&queue, other);
        join(release);
        assert!(mine.is_served() && !theirs.is_served());
        drop(others);
        ends_well(
            &queue,
            1,
            [(A, vec![&mut mine]), (other, vec![&mut theirs])],
        );
    });
}

#[test]
fn releases_of_two_keys_that_find_the_lines_held_are_both_granted_by_who_holds_them() {
    let model = |other: u64| {
        move || {
            let queue = queues();
            let (held, others) = (hold(&queue, A), hold(&queue, other));
            let (mut mine, mut theirs) = (wait(&queue, A), wait(&queue, other));
            let release = beside(move || drop(held));
            let other_release = beside(move || drop(others));
            turn();
            queue.advance();
            join(release);
            join(other_release);
            assert!(
                mine.is_served() && theirs.is_served(),
                "sleeps though its permits are free"
            );
            ends_well(
                &queue,
                1,
                [(A, vec![&mut mine]), (other, vec![&mut theirs])],
            );
        }
    };
    explore_briefly(1, 2, model(NEAR));
    explore_briefly(1, 2, model(FAR));
}

#[test]
fn one_who_gives_up_beside_a_release_of_another_key_leaves_that_to_its_own() {
    near_and_far(|other| {
        let queue = queues();
        let (held, others) = (hold(&queue, A), hold(&queue, other));
        let (mut mine, theirs) = (wait(&queue, A), wait(&queue, other));
        let mut next = wait(&queue, other);
        let release = beside(move || drop(held));
        theirs.leave();
        join(release);
        assert!(mine.is_served() && !next.is_served());
        drop(others);
        ends_well(&queue, 1, [(A, vec![&mut mine]), (other, vec![&mut next])]);
    });
}

#[test]
fn a_take_past_those_who_wait_for_another_key_grants_what_is_released_meanwhile() {
    explore(|| {
        let queue = queues();
        let held = hold(&queue, A);
        let mut mine = wait(&queue, A);
        let release = beside(move || drop(held));
        turn();
        let past = Lease::try_acquire_at(pointer(&queue, NEAR), at(0), 1);
        join(release);
        assert!(mine.is_served(), "sleeps though its permits are free");
        // Denied needlessly, if somebody was at the lines.
        let free = pointer(&queue, NEAR).available_at(at(0));
        assert_eq!(free + u64::from(past.is_ok()), 1);
        drop(past);
        ends_well(&queue, 1, [(A, vec![&mut mine]), (NEAR, vec![])]);
    });
}

#[test]
fn a_take_beside_a_release_does_not_get_past_one_who_waits_for_the_same_key() {
    explore(|| {
        let queue = queues();
        let held = hold(&queue, A);
        let mut mine = wait(&queue, A);
        let release = beside(move || drop(held));
        turn();
        let past = Lease::try_acquire_at(pointer(&queue, A), at(0), 1);
        assert!(past.is_err(), "one waits, or has the permit");
        join(release);
        ends_well(&queue, 1, [(A, vec![&mut mine])]);
    });
}

#[test]
fn waits_for_two_keys_beside_a_higher_limit_are_granted() {
    near_and_far(|other| {
        let queue = queues();
        let (held, others) = (hold(&queue, A), hold(&queue, other));
        let mut mine = wait(&queue, A);
        let change = beside_of(&queue, |queue| {
            queue.change(|table| table.rules()[0].set_limit(2))
        });
        let mut theirs = wait(&queue, other);
        assert_eq!(join(change), Ok(1));
        assert!(
            mine.is_served() && theirs.is_served(),
            "sleeps though its permits are free"
        );
        drop((held, others));
        ends_well(
            &queue,
            2,
            [(A, vec![&mut mine]), (other, vec![&mut theirs])],
        );
    });
}

/// Gives back the permit of another key when it is woken.
struct Releases(std::sync::Mutex<Option<Lease<Pointer>>>, Arc<Woken>);

impl Wake for Releases {
    fn wake(self: Arc<Self>) {
        let lease = self.0.lock().unwrap().take();
        drop(lease);
        Arc::clone(&self.1).wake();
    }
}

#[test]
fn a_permit_that_a_waker_of_another_key_gives_back_is_granted() {
    near_and_far(|other| {
        let queue = queues();
        let (held, inner) = (hold(&queue, A), hold(&queue, other));
        let mut mine = unpolled(&queue, A);
        let lease = std::sync::Mutex::new(Some(inner));
        mine.poll_with(&Waker::from(Arc::new(Releases(
            lease,
            Arc::clone(&mine.woken),
        ))));
        let release = beside(move || drop(held));
        let mut theirs = wait(&queue, other);
        join(release);
        assert!(
            mine.is_served() && theirs.is_served(),
            "sleeps though its permits are free"
        );
        ends_well(
            &queue,
            1,
            [(A, vec![&mut mine]), (other, vec![&mut theirs])],
        );
    });
}

#[test]
fn waits_for_two_keys_beside_a_close_are_told() {
    near_and_far(|other| {
        let queue = queues();
        let (held, others) = (hold(&queue, A), hold(&queue, other));
        let mut mine = wait(&queue, A);
        let close = beside_of(&queue, |queue| queue.close());
        let mut theirs = wait(&queue, other);
        join(close);
        assert!(
            mine.is_served() && theirs.is_served(),
            "nobody waits for what is closed"
        );
        drop((held, others));
        ends_well(
            &queue,
            1,
            [(A, vec![&mut mine]), (other, vec![&mut theirs])],
        );
    });
}
