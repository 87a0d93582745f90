//! Keyed queues: a release of one key reaches the waiters of that key, even if another thread holds
//! the lock for another key.
//!
//! Under loom there are two shards. The keys are their own hashes, so that each model decides which
//! keys share a shard.
#![cfg(portcullis_loom)]

use core::hash::BuildHasherDefault;
use core::task::Waker;
use std::sync::Arc;
use std::task::Wake;

use portcullis_async::{Acquire, Drained, KeyedQueue, QueueKey};
use portcullis_core::keyed::{Address, ConcurrencyRules, Line, WithTotal};
use portcullis_core::{Concurrency, Keyed, Lease, Limiter, Timeless};
use portcullis_loom::queue::{
    Drain, Lock, Task, Woken, beside, beside_of, has_no_waiters, leave_all, list_ends_well,
};
use portcullis_loom::{
    Itself, PREEMPTIONS, at, explore, explore_briefly, explore_long, join, turn,
};

type Table = Keyed<ConcurrencyRules, Vec<Line>, BuildHasherDefault<Itself>>;
type Queues = KeyedQueue<Table, Timeless, Lock>;
type Pointer = QueueKey<Arc<Queues>>;
type Wait = Task<Pointer>;

const A: u64 = 1;
/// In the same shard as `A`.
const NEAR: u64 = 3;
/// In the other shard.
const FAR: u64 = 6;

/// Creates a table of two slots.
fn table(each: u32) -> Table {
    let table: Table = Keyed::new(
        ConcurrencyRules::new(each),
        vec![Line::new()],
        BuildHasherDefault::default(),
    );
    let shard = |key: u64| table.key(&key).address().group(2);
    assert!(shard(A) == shard(NEAR) && shard(A) != shard(FAR));
    table
}

/// Creates queues with one permit for each key.
fn queues() -> Arc<Queues> {
    Arc::new(KeyedQueue::with_lock(table(1), Timeless, 9, Lock::new()))
}

fn pointer(queue: &Arc<Queues>, key: u64) -> Pointer {
    QueueKey::new(Arc::clone(queue), &key)
}

fn hold(queue: &Arc<Queues>, key: u64) -> Lease<Pointer> {
    Lease::try_acquire_at(pointer(queue, key), at(0), 1).unwrap()
}

/// Creates a task that waits for the permit of a key, and polls it.
fn wait(queue: &Arc<Queues>, key: u64) -> Wait {
    unpolled(queue, key).started()
}

fn unpolled(queue: &Arc<Queues>, key: u64) -> Wait {
    Task::of(Acquire::new(pointer(queue, key), 1), 1)
}

/// Checks the end of a model for each key and the tasks of that key, as `ends_well` of one queue
/// does.
fn ends_well<const N: usize>(queue: &Arc<Queues>, limit: u64, lines: [(u64, Vec<&mut Wait>); N]) {
    let mut waiters = 0;
    let mut all = Vec::new();
    let keys = lines.each_ref().map(|(key, _)| *key);
    let free = |key: u64| pointer(queue, key).available_at(at(0));
    for (key, line) in lines {
        let (waiting, tasks) = list_ends_well(|| free(key), limit, line);
        waiters += waiting;
        all.extend(tasks);
    }
    assert_eq!(queue.counts().waiters, waiters);
    leave_all(all);
    has_no_waiters(queue.counts());
    assert!(
        keys.iter().all(|&key| free(key) == limit),
        "after all tasks were dropped"
    );
}

/// Runs a model once with two keys of one shard, and once with two keys of different shards.
fn near_and_far(model: fn(u64)) {
    explore(move || model(NEAR));
    explore(move || model(FAR));
}

fn near_and_far_briefly(preemptions: usize, thorough: usize, model: fn(u64)) {
    explore_briefly(preemptions, thorough, move || model(NEAR));
    explore_briefly(preemptions, thorough, move || model(FAR));
}

#[test]
fn a_request_queued_during_a_release_of_its_key_is_granted() {
    explore(|| {
        let queue = queues();
        let held = hold(&queue, A);
        let release = beside(move || drop(held));
        let mut mine = wait(&queue, A);
        join(release);
        assert!(mine.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [(A, vec![&mut mine])]);
    });
}

#[test]
fn a_request_queued_during_a_release_is_granted_although_another_key_has_a_waiter() {
    near_and_far(|other| {
        let queue = queues();
        let (held, others) = (hold(&queue, A), hold(&queue, other));
        // The waiter bit is set already, and yet the limiter must be asked.
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
fn a_release_of_one_key_during_a_request_for_another_reaches_its_own_waiter() {
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
fn releases_of_two_keys_during_an_advance_are_both_granted() {
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
                "waits although its permits are free"
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
fn a_cancellation_during_a_release_of_another_key_leaves_the_permit_to_that_key() {
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
fn a_take_past_the_waiters_of_another_key_grants_concurrent_releases() {
    explore(|| {
        let queue = queues();
        let held = hold(&queue, A);
        let mut mine = wait(&queue, A);
        let release = beside(move || drop(held));
        turn();
        let past = Lease::try_acquire_at(pointer(&queue, NEAR), at(0), 1);
        join(release);
        assert!(mine.is_served(), "waits although its permits are free");
        // The take may be denied without need, if another thread holds the lock.
        let free = pointer(&queue, NEAR).available_at(at(0));
        assert_eq!(free + u64::from(past.is_ok()), 1);
        drop(past);
        ends_well(&queue, 1, [(A, vec![&mut mine]), (NEAR, vec![])]);
    });
}

#[test]
fn a_take_during_a_release_does_not_overtake_a_waiter_of_the_same_key() {
    explore(|| {
        let queue = queues();
        let held = hold(&queue, A);
        let mut mine = wait(&queue, A);
        let release = beside(move || drop(held));
        turn();
        let past = Lease::try_acquire_at(pointer(&queue, A), at(0), 1);
        assert!(past.is_err(), "the waiter comes first, or has the permit");
        join(release);
        ends_well(&queue, 1, [(A, vec![&mut mine])]);
    });
}

#[test]
fn waiters_of_two_keys_are_granted_after_a_limit_increase() {
    near_and_far(|other| {
        let queue = queues();
        let (held, others) = (hold(&queue, A), hold(&queue, other));
        let mut mine = wait(&queue, A);
        let change = beside_of(&queue, |queue| {
            queue.change(|table| table.rules().set_limit(2))
        });
        let mut theirs = wait(&queue, other);
        assert_eq!(join(change), Ok(1));
        assert!(
            mine.is_served() && theirs.is_served(),
            "waits although its permits are free"
        );
        drop((held, others));
        ends_well(
            &queue,
            2,
            [(A, vec![&mut mine]), (other, vec![&mut theirs])],
        );
    });
}

/// Releases a permit of another key when it is woken.
struct Releases(std::sync::Mutex<Option<Lease<Pointer>>>, Arc<Woken>);

impl Wake for Releases {
    fn wake(self: Arc<Self>) {
        let lease = self.0.lock().unwrap().take();
        drop(lease);
        Arc::clone(&self.1).wake();
    }
}

#[test]
fn a_permit_released_by_a_waker_of_another_key_is_granted() {
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
            "waits although its permits are free"
        );
        ends_well(
            &queue,
            1,
            [(A, vec![&mut mine]), (other, vec![&mut theirs])],
        );
    });
}

#[test]
fn waiters_of_two_keys_are_rejected_by_a_close() {
    near_and_far(|other| {
        let queue = queues();
        let (held, others) = (hold(&queue, A), hold(&queue, other));
        let mut mine = wait(&queue, A);
        let close = beside_of(&queue, |queue| queue.close());
        let mut theirs = wait(&queue, other);
        join(close);
        assert!(
            mine.is_served() && theirs.is_served(),
            "a closed queue has no waiters"
        );
        drop((held, others));
        ends_well(
            &queue,
            1,
            [(A, vec![&mut mine]), (other, vec![&mut theirs])],
        );
    });
}

#[test]
fn a_drain_that_begins_while_the_last_permits_of_two_keys_are_released_ends() {
    near_and_far(|other| {
        let queue = queues();
        let held = [A, other].map(|key| hold(&queue, key));
        let releases = held.map(|held| beside(move || drop(held)));
        let (mut drain, over) = Drain::polled(Drained::new(Arc::clone(&queue)));
        let _ = releases.map(join);
        assert!(over || drain.is_over(), "waits although no permit is held");
    });
}

#[test]
fn a_drain_does_not_end_before_a_permit_that_is_held() {
    near_and_far(|other| {
        let queue = queues();
        let [mine, theirs] = [A, other].map(|key| hold(&queue, key));
        let (mut drain, over) = Drain::polled(Drained::new(Arc::clone(&queue)));
        let release = beside(move || drop(theirs));
        assert!(!over && !drain.is_over());
        join(release);
        assert!(!drain.is_over());
        drop(mine);
        assert!(drain.is_over());
    });
}

/// Queues whose keys have a limit together.
mod total {
    use super::*;

    type Weights = fn(&Address) -> u32;
    type Totals = KeyedQueue<WithTotal<Table, Concurrency, Weights>, Timeless, Lock>;
    type Key = QueueKey<Arc<Totals>>;

    /// Creates queues with `each` permits for each key, and one permit for all. A key may take two
    /// permits in a turn.
    fn queues(each: u32) -> Arc<Totals> {
        let table = WithTotal::new(super::table(each), Concurrency::new(1));
        let table = table.with_weights((|_| 2) as Weights);
        Arc::new(KeyedQueue::with_lock(table, Timeless, 9, Lock::new()))
    }

    fn pointer(queue: &Arc<Totals>, key: u64) -> Key {
        QueueKey::new(Arc::clone(queue), &key)
    }

    fn hold(queue: &Arc<Totals>, key: u64) -> Lease<Key> {
        Lease::try_acquire_at(pointer(queue, key), at(0), 1).unwrap()
    }

    fn wait(queue: &Arc<Totals>, key: u64) -> Task<Key> {
        Task::of(Acquire::new(pointer(queue, key), 1), 1).started()
    }

    /// Drops all tasks. Then all permits are back.
    fn ends_well(queue: &Arc<Totals>, tasks: Vec<&mut Task<Key>>) {
        leave_all(tasks);
        has_no_waiters(queue.counts());
        for key in [A, NEAR, FAR] {
            assert_eq!(pointer(queue, key).available_at(at(0)), 1);
        }
    }

    #[test]
    fn a_request_of_one_key_queued_during_a_release_of_another_is_granted() {
        near_and_far(|other| {
            let queue = queues(1);
            let held = hold(&queue, other);
            let release = beside(move || drop(held));
            let mut mine = wait(&queue, A);
            join(release);
            assert!(mine.is_served(), "waits although the total is free");
            ends_well(&queue, vec![&mut mine]);
        });
    }

    #[test]
    fn a_release_during_a_request_of_a_third_key_reaches_the_key_whose_turn_it_is() {
        near_and_far(|other| {
            let queue = queues(1);
            let held = hold(&queue, A);
            let mut first = wait(&queue, other);
            let release = beside(move || drop(held));
            // It waits for its own limit or for the total, as it comes.
            let mut second = wait(&queue, A);
            join(release);
            assert!(first.is_served(), "waits although the total is free");
            assert!(!second.is_served(), "more than the total");
            first.outcome = None;
            assert!(second.is_served(), "waits although the total is free");
            ends_well(&queue, vec![&mut first, &mut second]);
        });
    }

    #[test]
    fn a_cancelled_front_leaves_the_permit_of_a_release_to_the_next_key() {
        near_and_far_briefly(2, 3, |other| {
            let queue = queues(1);
            let held = hold(&queue, A);
            let front = wait(&queue, other);
            let mut next = wait(&queue, if other == FAR { NEAR } else { FAR });
            let release = beside(move || drop(held));
            front.leave();
            join(release);
            assert!(next.is_served(), "waits although the total is free");
            ends_well(&queue, vec![&mut next]);
        });
    }

    #[test]
    fn a_release_during_a_request_of_a_third_key_resumes_the_turn_of_its_key() {
        explore_long(PREEMPTIONS, || {
            let queue = queues(1);
            let held = hold(&queue, FAR);
            let mut first = wait(&queue, A);
            let mut second = wait(&queue, A);
            let mut other = wait(&queue, NEAR);
            drop(held);
            // Its own limit denies the second request in the midst of the turn.
            assert!(first.is_served());
            let held = first.outcome.take();
            let release = beside(move || drop(held));
            let mut third = wait(&queue, FAR);
            join(release);
            assert!(second.is_served(), "comes before the next turn");
            assert!(!other.is_served() && !third.is_served());
            ends_well(&queue, vec![&mut second, &mut other, &mut third]);
        });
    }

    #[test]
    fn a_drain_that_begins_while_the_last_permit_of_the_total_is_released_ends() {
        explore(|| {
            let queue = queues(1);
            let held = hold(&queue, A);
            let release = beside(move || drop(held));
            let (mut drain, over) = Drain::polled(Drained::new(Arc::clone(&queue)));
            join(release);
            assert!(over || drain.is_over(), "waits although no permit is held");
        });
    }
}
