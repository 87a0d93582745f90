//! Keyed queues: one queue per key, in one table, with one clock. Most tests are for all three
//! kinds of table.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;
mod support;
#[path = "keyed_queue/total.rs"]
mod total;

use core::hash::{BuildHasher, Hasher};
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use allocations::allocations;
use portcullis_async::{
    Acquire, KeyedQueue, Next, Order, QueueClock, QueueKey, Rejected, ThreadTimer, WaitEnd, Waited,
};
use portcullis_core::keyed::{
    ConcurrencyRules, FixedWindowRules, Line, Seed, TokenBucketRules, WithTotal,
};
use portcullis_core::queue::{Keys, QueueKeys};
use portcullis_core::{
    AllOf, Clock, Concurrency, Denied, FixedWindow, Keyed, KeyedArray, KeyedList, Lease, Limiter,
    LimiterExt, ManualClock, Rate, Retry, Timestamp, TokenBucket,
};
use support::random::Random;
use support::{Hand, START, Task, now, permits, waker};

type Manual<T> = KeyedQueue<T, Hand>;
/// A queue that only `advance` drives.
type Undriven<T> = KeyedQueue<T, ManualClock>;
type Held<'q, T, C = Hand> = Lease<QueueKey<&'q KeyedQueue<T, C>>>;

/// The number of shards of the keys with waiters.
const BINS: usize = usize::BITS as usize / 2;

const fn secs(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// Tables for at least N keys, each with its limit.
trait Kind {
    type Permits: QueueKeys + Send + Sync + 'static;
    type Tokens: QueueKeys + Send + Sync + 'static;
    type Windows: QueueKeys;

    fn permits(limit: u32) -> Self::Permits;

    /// Changes the limit of all keys.
    fn set_limit(table: &Self::Permits, limit: u32);

    /// One token per second.
    fn tokens(burst: u64) -> Self::Tokens;

    /// One token per millisecond.
    fn fast() -> Self::Tokens;

    /// `limit` in each ten seconds.
    fn windows(limit: u64) -> Self::Windows;
}

const KEYS: usize = 4_000;
const WINDOW: Duration = Duration::from_secs(10);

/// One word per key.
struct Words;

impl Kind for Words {
    type Permits = Keyed<ConcurrencyRules, Box<[Line]>>;
    type Tokens = Keyed<TokenBucketRules, Box<[Line]>>;
    type Windows = Keyed<FixedWindowRules, Box<[Line]>>;

    fn permits(limit: u32) -> Self::Permits {
        Keyed::new(
            ConcurrencyRules::new(limit),
            Line::for_keys(KEYS),
            Seed::new(),
        )
    }

    fn set_limit(table: &Self::Permits, limit: u32) {
        table.rules().set_limit(limit).unwrap();
    }

    fn tokens(burst: u64) -> Self::Tokens {
        let bucket = TokenBucket::builder(Rate::per_second(1), burst)
            .rules()
            .unwrap();
        Keyed::new(bucket, Line::for_keys(KEYS), Seed::new())
    }

    fn fast() -> Self::Tokens {
        let bucket = TokenBucket::builder(Rate::per_second(1_000), 1)
            .rules()
            .unwrap();
        Keyed::new(bucket, Line::for_keys(KEYS), Seed::new())
    }

    fn windows(limit: u64) -> Self::Windows {
        let window = FixedWindow::builder(limit, WINDOW).rules().unwrap();
        Keyed::new(window, Line::for_keys(KEYS), Seed::new())
    }
}

/// Several words per key. The first limit is never the tighter one.
struct Lists;

impl Kind for Lists {
    type Permits = KeyedList<(TokenBucketRules, ConcurrencyRules), Box<[Line]>>;
    type Tokens = KeyedList<(FixedWindowRules, TokenBucketRules), Box<[Line]>>;
    type Windows = KeyedList<[FixedWindowRules; 3], Box<[Line]>>;

    fn permits(limit: u32) -> Self::Permits {
        let unlimited = TokenBucketRules::new(Rate::UNLIMITED, 1);
        let rules = (unlimited, ConcurrencyRules::new(limit));
        KeyedList::for_keys_with_hasher(rules, KEYS, Seed::new())
    }

    fn set_limit(table: &Self::Permits, limit: u32) {
        table.rules().1.set_limit(limit).unwrap();
    }

    fn tokens(burst: u64) -> Self::Tokens {
        let bucket = TokenBucket::builder(Rate::per_second(1), burst).rules();
        let window = FixedWindowRules::new(1_000_000, Duration::from_secs(86_400));
        KeyedList::for_keys_with_hasher((window, bucket.unwrap()), KEYS, Seed::new())
    }

    fn fast() -> Self::Tokens {
        let bucket = TokenBucket::builder(Rate::per_second(1_000), 1).rules();
        let window = FixedWindowRules::new(1_000_000, Duration::from_secs(86_400));
        KeyedList::for_keys_with_hasher((window, bucket.unwrap()), KEYS, Seed::new())
    }

    fn windows(limit: u64) -> Self::Windows {
        let limits = [limit + 1, limit, 2 * limit];
        let rules = limits.map(|limit| FixedWindow::builder(limit, WINDOW).rules().unwrap());
        KeyedList::for_keys_with_hasher(rules, KEYS, Seed::new())
    }
}

/// One limiter per slot.
struct Objects;

impl Kind for Objects {
    type Permits = KeyedArray<Concurrency, Box<[Concurrency]>, Box<[Line]>>;
    type Tokens = KeyedArray<TokenBucket, Box<[TokenBucket]>, Box<[Line]>>;
    type Windows = KeyedArray<FixedWindow, Box<[FixedWindow]>, Box<[Line]>>;

    fn permits(limit: u32) -> Self::Permits {
        KeyedArray::for_keys_with_hasher(|| Concurrency::new(limit), KEYS, Seed::new())
    }

    fn set_limit(table: &Self::Permits, limit: u32) {
        table.change_all(|one| one.set_limit(limit)).unwrap();
    }

    fn tokens(burst: u64) -> Self::Tokens {
        KeyedArray::for_keys_with_hasher(
            || TokenBucket::new(Rate::per_second(1), burst),
            KEYS,
            Seed::new(),
        )
    }

    fn fast() -> Self::Tokens {
        KeyedArray::for_keys_with_hasher(
            || TokenBucket::new(Rate::per_second(1_000), 1),
            KEYS,
            Seed::new(),
        )
    }

    fn windows(limit: u64) -> Self::Windows {
        KeyedArray::for_keys_with_hasher(|| FixedWindow::new(limit, WINDOW), KEYS, Seed::new())
    }
}

macro_rules! of_all_kinds {
    ($($test:ident),* $(,)?) => {
        mod words {
            $(#[test] fn $test() { super::$test::<super::Words>(); })*
        }
        mod lists {
            $(#[test] fn $test() { super::$test::<super::Lists>(); })*
        }
        mod objects {
            $(#[test] fn $test() { super::$test::<super::Objects>(); })*
        }
    };
}

of_all_kinds! {
    a_waiter_of_one_key_delays_no_other_key,
    waiters_of_one_key_are_granted_in_order_whatever_other_keys_do,
    newest_first_the_newest_waiter_of_a_key_is_granted_first,
    no_request_overtakes_its_own_key_and_all_overtake_other_keys,
    each_key_has_room_for_its_own_permits,
    waits_are_bounded_over_all_keys,
    newest_first_evicts_only_waiters_of_its_own_key,
    closing_rejects_the_waiters_of_all_keys,
    a_wait_can_be_cancelled_at_the_head_in_the_middle_and_at_the_end,
    an_unclaimed_grant_goes_to_the_next_waiter_of_the_same_key,
    an_unclaimed_token_goes_on_at_once,
    a_deadline_is_judged_by_the_queue_of_its_key,
    an_expired_deadline_lets_the_waiters_behind_it_go,
    a_deadline_ends_a_wait_for_a_release_in_time,
    many_keys_are_granted_in_the_order_of_time,
    a_waiter_for_a_window_waits_to_its_end,
    hundreds_of_keys_that_are_due_at_once_are_all_granted_at_once,
    all_keys_share_one_timer_for_the_earliest_instant,
    a_driver_drives_all_keys,
    a_changed_limit_applies_to_waiters,
    a_future_and_a_lease_may_own_the_queue,
    a_partial_wait_takes_what_is_available,
    a_lease_is_released_in_parts_and_each_part_grants,
    threads_wait_for_keys,
    a_key_of_a_queue_can_be_part_of_a_composition,
    a_hook_observes_the_waits_of_all_keys,
    a_waker_may_release_for_another_key,
    random_permits_agree_with_a_list_for_each_key,
    random_tokens_agree_with_a_count_for_each_key,
    threads_that_hand_leases_on_never_hold_more_than_the_limit,
    threads_get_the_tokens_of_each_key_by_one_timer,
    no_wait_for_a_key_allocates,
}

fn queue<T: QueueKeys>(table: T, max_permits: u64) -> Manual<T> {
    KeyedQueue::new(table, Hand::new(), max_permits)
}

fn undriven<T: QueueKeys>(table: T, max_permits: u64) -> Undriven<T> {
    KeyedQueue::new(table, ManualClock::new(), max_permits)
}

fn newest_first<T: QueueKeys>(table: T, max_permits: u64) -> Manual<T> {
    queue(table, max_permits).with_order(Order::NewestFirst)
}

fn shard(table: &impl Keys, key: u64) -> usize {
    table.locate(table.hash_of(&key)).group(BINS)
}

/// Returns N keys of one shard, and one key in another. The hash does not change, so another table
/// of the same size has them in the same places.
fn neighbours<const N: usize>(table: &impl Keys) -> ([u64; N], u64) {
    let first = shard(table, 0);
    let mut same = (0..1_000_000).filter(|&key| shard(table, key) == first);
    let keys = core::array::from_fn(|_| same.next().unwrap());
    let mut addresses: Vec<_> = Vec::new();
    for key in &keys {
        let address = table.locate(table.hash_of(key));
        assert!(!addresses.contains(&address), "two keys share");
        addresses.push(address);
    }
    (
        keys,
        (0..1_000).find(|&key| shard(table, key) != first).unwrap(),
    )
}

#[track_caller]
fn granted<F, P>(wait: Task<F>) -> Lease<P>
where
    F: Future<Output = Result<Lease<P>, Rejected>>,
    P: core::ops::Deref<Target: Limiter>,
{
    assert_eq!(wait.wakes(), 1, "is woken once");
    wait.outcome().unwrap()
}

/// A permit that is free for a key.
fn hold<T: QueueKeys, C: QueueClock>(queue: &KeyedQueue<T, C>, key: u64, n: u32) -> Held<'_, T, C> {
    now(queue.acquire(&key, n)).unwrap()
}

fn a_waiter_of_one_key_delays_no_other_key<K: Kind>() {
    let queue = queue(K::permits(1), 9);
    let ([a, b, c], far) = neighbours(&K::permits(1));
    let held = [a, b].map(|key| hold(&queue, key, 1));
    let [mut waits_a, waits_b] = [a, b].map(|key: u64| Task::waiting(queue.acquire(&key, 1)));
    for free in [c, far] {
        assert!(now(queue.acquire(&free, 1)).is_ok(), "{free}");
        assert!(queue.try_acquire(&free, 1).is_ok(), "{free}");
        let held = hold(&queue, free, 1);
        let waits = Task::waiting(queue.acquire(&free, 1));
        drop(held);
        drop(granted(waits));
    }
    let [held_a, held_b] = held;
    drop(held_b);
    drop(granted(waits_b));
    assert!(
        waits_a.is_pending(),
        "a release of another key does not help"
    );
    assert!(
        now(queue.acquire(&b, 1)).is_ok(),
        "there is no waiter for it any more"
    );
    drop(held_a);
    drop(granted(waits_a));
    assert_eq!((queue.counts().waiters, queue.counts().granted), (0, 4));
}

fn waiters_of_one_key_are_granted_in_order_whatever_other_keys_do<K: Kind>() {
    let queue = queue(K::permits(1), 100);
    let ([a, b], far) = neighbours(&K::permits(1));
    let keys = [a, b, far];
    let mut held: Vec<_> = keys.iter().map(|&key| hold(&queue, key, 1)).collect();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waits: Vec<_> = (0..5)
        .flat_map(|number| keys.map(|key| (number, key)))
        .map(|(number, key)| {
            let mut task = Task::new(queue.acquire(&key, 1));
            let order = Arc::clone(&order);
            let waker = waker(move || order.lock().unwrap().push((key, number)));
            assert!(task.poll_with(&waker).is_pending());
            (key, Some(task))
        })
        .collect();
    // In another order of the keys each time.
    for turn in 0..5 {
        for place in 0..3 {
            let key = keys[(place + turn) % 3];
            let lease = held
                .iter()
                .position(|lease| lease.limiter().id() == queue.key(&key).id());
            drop(held.swap_remove(lease.unwrap()));
            assert_eq!(
                order.lock().unwrap().pop(),
                Some((key, turn)),
                "only the first of its key"
            );
            let wait = &mut waits
                .iter_mut()
                .filter(|(of, _)| *of == key)
                .nth(turn)
                .unwrap()
                .1;
            held.push(wait.take().unwrap().outcome().unwrap());
        }
    }
    assert_eq!(queue.counts().waiters, 0);
}

fn newest_first_the_newest_waiter_of_a_key_is_granted_first<K: Kind>() {
    let queue = newest_first(K::permits(2), 9);
    let ([a, b], _) = neighbours(&K::permits(2));
    let [of_a, of_b] = [a, b].map(|key| hold(&queue, key, 2));
    let [mut old, mut older] = [a, a].map(|key: u64| Task::waiting(queue.acquire(&key, 2)));
    let mut other = Task::waiting(queue.acquire(&b, 2));
    drop(of_a);
    assert!(old.is_pending());
    let lease = granted(older);
    older = Task::waiting(queue.acquire(&a, 2));
    drop(lease);
    drop(granted(older));
    drop(granted(old));
    assert!(other.is_pending());
    drop(of_b);
    drop(granted(other));
    let held = hold(&queue, a, 1);
    let mut two = Task::waiting(queue.acquire(&a, 2));
    assert!(
        queue.try_acquire(&a, 1).is_ok() && now(queue.acquire(&a, 1)).is_ok(),
        "free permits go to a newcomer"
    );
    assert!(two.is_pending());
    drop(held);
    drop(granted(two));
}

fn no_request_overtakes_its_own_key_and_all_overtake_other_keys<K: Kind>() {
    let queue = queue(K::permits(2), 9);
    let ([a, b], far) = neighbours(&K::permits(2));
    let held = hold(&queue, a, 1);
    let two = Task::waiting(queue.acquire(&a, 2));
    for n in [0, 1, 2] {
        assert_eq!(
            queue.try_acquire(&a, n).unwrap_err(),
            Denied::Exhausted {
                now: START,
                permits: n
            }
        );
        assert!(queue.try_acquire(&b, n).is_ok() && queue.try_acquire(&far, n).is_ok());
    }
    let mut one = Task::waiting(queue.acquire(&a, 1));
    let mut none = Task::waiting(queue.acquire(&a, 0));
    drop(held);
    let lease = granted(two);
    assert!(one.is_pending() && none.is_pending());
    assert!(queue.try_acquire(&a, 1).is_err() && queue.try_acquire(&b, 2).is_ok());
    drop(lease);
    assert_eq!((granted(one).permits(), granted(none).permits()), (1, 0));
    assert!(queue.try_acquire(&a, 2).is_ok());
}

fn each_key_has_room_for_its_own_permits<K: Kind>() {
    let queue = queue(K::permits(3), 4);
    let ([a, b], far) = neighbours(&K::permits(3));
    let _held = [a, b, far].map(|key| hold(&queue, key, 3));
    let full = |permits| Rejected::QueueFull {
        permits,
        retry: Retry::OnRelease,
    };
    let mut waits = Vec::new();
    for key in [a, b, far] {
        waits.push(Task::waiting(queue.acquire(&key, 3)));
        assert_eq!(now(queue.acquire(&key, 2)).unwrap_err(), full(2));
        waits.push(Task::waiting(queue.acquire(&key, 0)));
        assert_eq!(
            now(queue.acquire(&key, 0)).unwrap_err(),
            full(0),
            "a waiter for zero permits counts as well"
        );
    }
    let counts = queue.counts();
    assert_eq!((counts.waiters, counts.permits, counts.full), (6, 9, 6));
    assert_eq!(
        now(queue.acquire(&a, 4)).unwrap_err(),
        Rejected::ExceedsCapacity {
            permits: 4,
            capacity: 3
        },
        "and not because the queue is full"
    );
    drop(waits.remove(3));
    waits.push(Task::waiting(queue.acquire(&b, 1)));
    assert_eq!(now(queue.acquire(&a, 1)).unwrap_err(), full(1));
}

fn waits_are_bounded_over_all_keys<K: Kind>() {
    let queue = queue(K::permits(1), 9).with_max_waiters(2);
    let ([a, b], far) = neighbours(&K::permits(1));
    let [of_a, _of_b, _of_far] = [a, b, far].map(|key| hold(&queue, key, 1));
    let waits_a = Task::waiting(queue.acquire(&a, 1));
    let waits_b = Task::waiting(queue.acquire(&b, 1));
    for key in [a, b, far] {
        let rejected = now(queue.acquire(&key, 1)).unwrap_err();
        assert_eq!(
            rejected,
            Rejected::QueueFull {
                permits: 1,
                retry: Retry::OnRelease
            }
        );
    }
    drop(of_a);
    let waits_far = Task::waiting(queue.acquire(&far, 1));
    assert!(now(queue.acquire(&b, 1)).is_err());
    drop(waits_b);
    let again = Task::waiting(queue.acquire(&b, 1));
    drop((waits_far, again, granted(waits_a)));
    assert_eq!(queue.counts().full, 4);
}

#[test]
fn a_request_of_the_table_ends_at_its_deadline_or_timeout() {
    let table = Keyed::for_keys(Concurrency::new(1), 10);
    let queue = KeyedQueue::new(table, Hand::new(), 9);
    let held = now(queue.acquire("alice", 1)).unwrap();
    let until = Task::waiting(queue.acquire("alice", 1).until(secs(3)));
    let mut timed = Task::waiting(queue.acquire("alice", 1).within(Duration::from_secs(5)));
    let last = Task::waiting(queue.acquire("alice", 1).within(Duration::from_secs(9)));
    assert!(now(queue.acquire("bob", 1).within(Duration::ZERO)).is_ok());
    queue.clock().set(secs(3) + Duration::from_nanos(1));
    queue.advance();
    assert!(matches!(until.outcome(), Err(Rejected::Deadline { .. })));
    assert!(timed.is_pending());
    queue
        .clock()
        .set(START + Duration::from_nanos(5_000_000_001));
    queue.advance();
    assert!(matches!(timed.outcome(), Err(Rejected::Deadline { .. })));
    drop(held);
    assert_eq!(permits(last.outcome()), Ok(1));
}

#[test]
fn without_an_option_4096_requests_can_wait_whatever_their_permits() {
    const MOST: usize = 4_096;
    let table = || Keyed::for_keys(Concurrency::new(1), 10);
    let waits = |queue: &KeyedQueue<_, Hand>| {
        let held = now(queue.acquire("alice", 1)).unwrap();
        let waits = (0..MOST).map(|_| Task::waiting(queue.acquire("alice", 1)));
        let waits: Vec<_> = waits.collect();
        let mut next = Task::new(queue.acquire("alice", 1));
        let has_room = next.is_pending();
        drop((waits, next, held));
        has_room
    };
    let queue = || KeyedQueue::new(table(), Hand::new(), u64::MAX);
    assert!(!waits(&queue()));
    assert!(waits(&queue().with_max_waiters(u32::MAX)));
}

fn newest_first_evicts_only_waiters_of_its_own_key<K: Kind>() {
    let queue = newest_first(K::permits(2), 2).with_max_waiters(5);
    let ([a, b, c], far) = neighbours(&K::permits(2));
    let held = [a, b, c, far].map(|key| hold(&queue, key, 2));
    let evicted = |permits| {
        Err(Rejected::Evicted {
            permits,
            retry: Retry::OnRelease,
        })
    };
    let mut of_b = [1, 1].map(|n| Task::waiting(queue.acquire(&b, n)));
    let [oldest, mut old] = [1, 1].map(|n| Task::waiting(queue.acquire(&a, n)));
    let new = Task::waiting(queue.acquire(&a, 1));
    assert_eq!(permits(oldest.outcome()), evicted(1));
    assert!(old.is_pending());
    let newest = Task::waiting(queue.acquire(&a, 2));
    for gone in [old, new] {
        assert_eq!(permits(gone.outcome()), evicted(1));
    }
    let mut of_far = [1, 1].map(|n| Task::waiting(queue.acquire(&far, n)));
    // All places of the table are taken. Only a waiter of the same key can be evicted.
    assert_eq!(
        now(queue.acquire(&c, 1)).unwrap_err(),
        Rejected::QueueFull {
            permits: 1,
            retry: Retry::OnRelease
        }
    );
    let last = Task::waiting(queue.acquire(&a, 1));
    assert_eq!(permits(newest.outcome()), evicted(2));
    assert!(of_b.iter_mut().chain(&mut of_far).all(Task::is_pending));
    assert_eq!(
        (
            queue.counts().evicted,
            queue.counts().full,
            queue.counts().waiters
        ),
        (4, 1, 5)
    );
    drop(held);
    assert!(
        of_b.into_iter()
            .chain(of_far)
            .chain([last])
            .all(|wait| granted(wait).permits() == 1)
    );
}

fn closing_rejects_the_waiters_of_all_keys<K: Kind>() {
    let queue = queue(K::permits(1), 100);
    let held: Vec<_> = (0..50).map(|key: u64| hold(&queue, key, 1)).collect();
    let waits: Vec<_> = (0..50)
        .flat_map(|key| [key; 2])
        .map(|key: u64| Task::waiting(queue.acquire(&key, 1)))
        .collect();
    assert!(!queue.is_closed());
    queue.close();
    assert!(queue.is_closed());
    for wait in waits {
        assert_eq!(
            (wait.wakes(), permits(wait.outcome())),
            (1, Err(Rejected::Closed { permits: 1 }))
        );
    }
    assert_eq!((queue.counts().waiters, queue.advance()), (0, Next::Idle));
    assert_eq!(
        now(queue.acquire(&99_u64, 1)).unwrap_err(),
        Rejected::Closed { permits: 1 }
    );
    let denied = queue.try_acquire(&99_u64, 1).unwrap_err();
    assert_eq!(denied, Denied::Closed { permits: 1 });
    assert_eq!(queue.key(&99_u64).retry(denied), Retry::Never);
    assert!(queue.key(&99_u64).peek_at(START, 1).is_err());
    drop(held);
    assert_eq!(
        queue.key(&7_u64).available_at(START),
        1,
        "held permits return"
    );
}

fn a_wait_can_be_cancelled_at_the_head_in_the_middle_and_at_the_end<K: Kind>() {
    let queue = queue(K::permits(3), 100);
    let ([a, b], _) = neighbours(&K::permits(3));
    let [of_a, of_b] = [a, b].map(|key| hold(&queue, key, 2));
    let [head, one, middle, other, mut end] =
        [2, 1, 3, 1, 1].map(|n| Task::waiting(queue.acquire(&a, n)));
    let mut of_other = Task::waiting(queue.acquire(&b, 2));
    drop(middle);
    assert_eq!((one.wakes(), other.wakes()), (0, 0));
    drop(head);
    let one = granted(one);
    assert_eq!(other.wakes(), 0, "all are held");
    assert!(end.is_pending() && of_other.is_pending());
    drop(end);
    assert_eq!(
        (
            queue.counts().waiters,
            queue.counts().permits,
            queue.counts().cancelled
        ),
        (2, 3, 3)
    );
    drop(other);
    drop(one);
    assert!(
        queue.try_acquire(&a, 1).is_ok(),
        "there is no waiter for it"
    );
    drop((of_a, of_b));
    drop(granted(of_other));
    assert_eq!(
        (queue.key(&a).available_at(START), queue.counts().waiters),
        (3, 0)
    );
    // A future that was not polled does not wait.
    drop(queue.acquire(&a, 1));
    assert_eq!(queue.counts().cancelled, 4);
}

fn an_unclaimed_grant_goes_to_the_next_waiter_of_the_same_key<K: Kind>() {
    let queue = queue(K::permits(1), 9);
    let ([a, b], _) = neighbours(&K::permits(1));
    let [of_a, _of_b] = [a, b].map(|key| hold(&queue, key, 1));
    let [unwanted, next] = [a, a].map(|key: u64| Task::waiting(queue.acquire(&key, 1)));
    let mut other = Task::waiting(queue.acquire(&b, 1));
    drop(of_a);
    assert_eq!((unwanted.wakes(), next.wakes()), (1, 0));
    drop(unwanted);
    assert!(other.is_pending());
    drop(granted(next));
    assert_eq!(queue.key(&a).available_at(START), 1);
}

fn an_unclaimed_token_goes_on_at_once<K: Kind>() {
    let queue = undriven(K::tokens(1), 9);
    let ([a, b], _) = neighbours(&K::tokens(1));
    drop([a, b].map(|key| hold(&queue, key, 1)));
    let [unwanted, next, mut last] =
        [a, a, a].map(|key: u64| Task::waiting(queue.acquire(&key, 1)));
    let mut other = Task::waiting(queue.acquire(&b, 1).until(secs(5)));
    queue.clock().set(secs(1));
    queue.advance();
    assert_eq!((unwanted.wakes(), next.wakes()), (1, 0));
    drop(unwanted);
    drop(granted(next));
    assert!(last.is_pending(), "there was one permit");
    assert!(other.poll().is_ready());
    assert_eq!(queue.advance(), Next::At(secs(2)));
}

fn a_deadline_is_judged_by_the_queue_of_its_key<K: Kind>() {
    let queue = queue(K::tokens(1), 9);
    let ([a, b], far) = neighbours(&K::tokens(1));
    drop([a, b, far].map(|key| hold(&queue, key, 1)));
    let _two = [a, a].map(|key: u64| Task::waiting(queue.acquire(&key, 1)));
    let until = |key: u64, at| queue.acquire(&key, 1).until(at);
    let late = |second| Rejected::Deadline {
        permits: 1,
        retry: Retry::At(secs(second)),
    };
    assert_eq!(
        now(until(a, Timestamp::from_millis(2_999))).unwrap_err(),
        late(3),
        "two waiters are before it"
    );
    assert_eq!(
        now(until(b, Timestamp::from_millis(999))).unwrap_err(),
        late(1),
        "no waiter is before it"
    );
    assert_eq!(now(until(b, START)).unwrap_err(), late(1));
    assert_eq!(queue.counts().late, 3);
    let third = Task::waiting(until(a, secs(3)));
    let first = Task::waiting(until(far, secs(1)));
    for second in 1..=3 {
        queue.clock().set(secs(second));
        queue.advance();
    }
    assert_eq!(
        (granted(third).permits(), granted(first).permits()),
        (1, 1),
        "exactly at the instant"
    );
    assert_eq!(queue.counts().late, 3);
}

fn an_expired_deadline_lets_the_waiters_behind_it_go<K: Kind>() {
    let queue = queue(K::permits(2), 9);
    let ([a, b], _) = neighbours(&K::permits(2));
    let [_of_a, _of_b] = [hold(&queue, a, 1), hold(&queue, b, 2)];
    let head = Task::waiting(queue.acquire(&a, 2).until(secs(5)));
    let behind = Task::waiting(queue.acquire(&a, 1));
    let mut other = Task::waiting(queue.acquire(&b, 1).until(secs(9)));
    assert_eq!(queue.advance(), Next::At(secs(5)));
    queue.clock().set(secs(5));
    assert_eq!(queue.advance(), Next::At(secs(9)));
    assert_eq!(
        (head.wakes(), permits(head.outcome())),
        (
            1,
            Err(Rejected::Deadline {
                permits: 2,
                retry: Retry::OnRelease
            })
        )
    );
    let _one = granted(behind);
    assert!(other.is_pending());
}

fn a_deadline_ends_a_wait_for_a_release_in_time<K: Kind>() {
    let queue = queue(K::permits(1), 9);
    let held = hold(&queue, 1, 1);
    let in_time = Task::waiting(queue.acquire(&1_u64, 1).until(secs(1)));
    let late = Task::waiting(queue.acquire(&1_u64, 1).until(secs(1)));
    queue.clock().set(secs(1));
    drop(held);
    // That instant counts.
    let lease = granted(in_time);
    queue.clock().set(secs(2));
    assert_eq!(queue.advance(), Next::Idle);
    drop(lease);
    assert!(matches!(
        late.outcome(),
        Err(Rejected::Deadline { permits: 1, .. })
    ));
}

fn many_keys_are_granted_in_the_order_of_time<K: Kind>() {
    const MANY: u64 = 300;
    let queue = undriven(K::tokens(1), 9);
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waits: Vec<_> = (0..MANY)
        .map(|turn| {
            // In an order unrelated to keys or shards.
            let key = turn * 7_919 % 1_000;
            queue.clock().set(Timestamp::from_millis(turn));
            drop(hold(&queue, key, 1));
            let mut task = Task::new(queue.acquire(&key, 1));
            let order = Arc::clone(&order);
            let waker = waker(move || order.lock().unwrap().push(turn));
            assert!(task.poll_with(&waker).is_pending());
            task
        })
        .collect();
    // One after the other.
    for turn in 0..100 {
        assert_eq!(
            queue.advance(),
            Next::At(Timestamp::from_millis(1_000 + turn))
        );
        queue.clock().set(Timestamp::from_millis(1_000 + turn));
        queue.advance();
        assert_eq!(core::mem::take(&mut *order.lock().unwrap()), [turn]);
    }
    // A hundred at once, some of which are cancelled.
    for turn in (100..200).step_by(3).rev() {
        drop(waits.remove(turn));
    }
    queue.clock().set(Timestamp::from_millis(1_199));
    assert_eq!(queue.advance(), Next::At(Timestamp::from_millis(1_200)));
    let woken = core::mem::take(&mut *order.lock().unwrap());
    assert_eq!(
        woken,
        (100..200)
            .filter(|turn| (turn - 100) % 3 != 0)
            .collect::<Vec<_>>()
    );
    queue.clock().set(secs(9));
    assert_eq!(queue.advance(), Next::Idle);
    assert_eq!(*order.lock().unwrap(), (200..MANY).collect::<Vec<_>>());
    assert!(
        waits
            .into_iter()
            .all(|wait| permits(wait.outcome()) == Ok(1))
    );
}

fn a_waiter_for_a_window_waits_to_its_end<K: Kind>() {
    let queue = undriven(K::windows(2), 9);
    let ([a, b], _) = neighbours(&K::windows(2));
    queue.clock().set(secs(3));
    drop([a, b].map(|key| hold(&queue, key, 2)));
    let of_a = [1, 1, 2].map(|n| Task::waiting(queue.acquire(&a, n)));
    let of_b = Task::waiting(queue.acquire(&b, 2));
    assert_eq!(queue.advance(), Next::At(secs(10)));
    queue.clock().set(secs(10));
    assert_eq!(queue.advance(), Next::At(secs(20)));
    drop(granted(of_b));
    assert_eq!(of_a.each_ref().map(Task::wakes), [1, 1, 0]);
    queue.clock().set(secs(20));
    assert_eq!(queue.advance(), Next::Idle);
    assert!(of_a.into_iter().all(|wait| wait.outcome().is_ok()));
}

fn hundreds_of_keys_that_are_due_at_once_are_all_granted_at_once<K: Kind>() {
    let queue = queue(K::tokens(2), 9);
    let keys = 0..500_u64;
    keys.clone().for_each(|key| drop(hold(&queue, key, 2)));
    let waits: Vec<_> = keys
        .flat_map(|key| [key; 2])
        .map(|key: u64| Task::waiting(queue.acquire(&key, 1)))
        .collect();
    queue.clock().set(secs(2));
    assert_eq!(queue.advance(), Next::Idle);
    assert!(waits.into_iter().all(|wait| granted(wait).permits() == 1));
}

fn all_keys_share_one_timer_for_the_earliest_instant<K: Kind>() {
    let queue = Arc::new(queue(K::tokens(1), 9));
    queue.attend_shared();
    let hand = queue.clock();
    let wait = |key: u64| Task::waiting(Acquire::new(QueueKey::new(Arc::clone(&queue), &key), 1));
    hand.set(secs(2));
    (0..5).for_each(|key| drop(hold(&queue, key, 1)));
    let later = wait(0);
    assert_eq!(hand.alarm(), Some(secs(3)));
    hand.set(Timestamp::from_millis(1_500));
    // At a time before the newest one, and then at the same instant.
    let same = wait(1);
    hand.set(secs(2));
    assert_eq!(hand.alarm(), Some(secs(3)));
    let [second, third] = [0, 1].map(wait);
    assert_eq!(
        hand.armed(),
        [secs(3)],
        "armed once: nothing comes before it"
    );
    drop(hold(&queue, 9, 1));
    let deadline = Task::waiting(queue.acquire(&9_u64, 1).until(secs(3)));
    hand.run(secs(4));
    assert_eq!(hand.armed(), [secs(3), secs(4)]);
    for wait in [later, same, second, third] {
        assert_eq!(granted(wait).permits(), 1);
    }
    assert_eq!(granted(deadline).permits(), 1);
    assert_eq!(queue.advance(), Next::Idle);
}

fn a_driver_drives_all_keys<K: Kind>() {
    let queue = queue(K::tokens(1), 9);
    let hand = queue.clock();
    let mut driver = Task::waiting(queue.drive());
    assert_eq!(hand.alarm(), None);
    let mut waits = Vec::new();
    for key in (0..40_u64).rev() {
        hand.jump(Timestamp::from_millis((40 - key) * 10));
        drop(hold(&queue, key, 1));
        let before = driver.wakes();
        waits.push(Task::waiting(queue.acquire(&key, 1)));
        assert_eq!(
            driver.wakes() - before,
            usize::from(key == 39),
            "woken for the earliest instant, once"
        );
        assert!(driver.is_pending());
    }
    assert_eq!(hand.alarm(), Some(Timestamp::from_millis(1_010)));
    for turn in 1..=40 {
        hand.jump(Timestamp::from_millis(1_000 + turn * 10));
        assert!(driver.is_pending());
    }
    assert!(waits.into_iter().all(|wait| granted(wait).permits() == 1));
    queue.close();
    assert!(driver.poll().is_ready());
}

fn a_changed_limit_applies_to_waiters<K: Kind>() {
    let queue = queue(K::permits(2), 100);
    let ([a, b], far) = neighbours(&K::permits(2));
    let held = [a, b, far].map(|key| hold(&queue, key, 2));
    let mut waits = [a, b, far].map(|key| [2, 1].map(|n| Task::waiting(queue.acquire(&key, n))));
    queue.change(|table| K::set_limit(table, 4));
    assert!(
        waits
            .iter()
            .all(|[two, one]| (two.wakes(), one.wakes()) == (1, 0)),
        "two more for each key"
    );
    queue.change(|table| K::set_limit(table, 1));
    assert!(waits.iter_mut().all(|[_, one]| one.is_pending()));
    let [[two_a, one_a], [two_b, one_b], [two_far, one_far]] = waits;
    drop(held);
    assert!(
        [&one_a, &one_b, &one_far]
            .iter()
            .all(|one| one.wakes() == 0),
        "two are still held"
    );
    drop([two_a, two_b, two_far].map(|two| two.outcome().unwrap()));
    let leases = [one_a, one_b, one_far].map(granted);
    // A request for more than the new limit is rejected when its turn comes.
    queue.change(|table| K::set_limit(table, 2));
    let more = Task::waiting(queue.acquire(&a, 2));
    let behind = Task::waiting(queue.acquire(&a, 1));
    queue.change(|table| K::set_limit(table, 1));
    assert_eq!(
        permits(more.outcome()),
        Err(Rejected::ExceedsCapacity {
            permits: 2,
            capacity: 1
        })
    );
    drop(leases);
    drop(granted(behind));
}

fn a_future_and_a_lease_may_own_the_queue<K: Kind>() {
    let queue = Arc::new(queue(K::permits(1), 9));
    let key = |key: u64| QueueKey::new(Arc::clone(&queue), &key);
    let held = now(Acquire::new(key(1), 1)).unwrap();
    let wait = Task::waiting(Acquire::new(key(1), 1));
    thread::spawn(move || drop(held)).join().unwrap();
    let lease = thread::spawn(move || granted(wait)).join().unwrap();
    assert!(queue.try_acquire(&1_u64, 1).is_err());
    let other = Task::waiting(Acquire::new(QueueKey::new(Arc::clone(&queue), &1_u64), 1));
    drop(queue);
    drop(lease);
    let last = granted(other);
    assert_eq!(last.limiter().available_at(START), 0);
    drop(last);
}

fn a_partial_wait_takes_what_is_available<K: Kind>() {
    let queue = queue(K::permits(5), 9);
    let held = hold(&queue, 1, 5);
    let some = Task::waiting(Acquire::new(queue.key(&1_u64), 2).up_to(9));
    let rest = Task::waiting(Acquire::new(queue.key(&1_u64), 1).up_to(3));
    drop(held);
    let some = granted(some);
    assert_eq!(some.permits(), 5, "as many as are available");
    drop(some);
    assert_eq!(granted(rest).permits(), 3);
    assert_eq!(
        permits(now(Acquire::new(queue.key(&2_u64), 1).up_to(9))),
        Ok(5)
    );
}

fn a_lease_is_released_in_parts_and_each_part_grants<K: Kind>() {
    let queue = queue(K::permits(3), 9);
    let mut held = hold(&queue, 1, 3);
    let [two, one] = [2, 1].map(|n| Task::waiting(queue.acquire(&1_u64, n)));
    drop(held.split(1));
    assert_eq!((two.wakes(), one.wakes()), (0, 0));
    drop(held.split(1));
    assert_eq!((two.wakes(), one.wakes()), (1, 0));
    drop(held);
    assert_eq!((granted(two).permits(), granted(one).permits()), (2, 1));
}

fn threads_wait_for_keys<K: Kind>() {
    let queue = queue(K::permits(1), 9);
    let ([a, b], far) = neighbours(&K::permits(1));
    let out = [a, b, far].map(|_| AtomicU32::new(0));
    thread::scope(|scope| {
        for turn in 0..6 {
            let (queue, out, key) = (&queue, &out[turn % 3], [a, b, far][turn % 3]);
            scope.spawn(move || {
                for _ in 0..200 {
                    let lease = queue.acquire(&key, 1).block().unwrap();
                    assert_eq!(out.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                    out.fetch_sub(1, Ordering::SeqCst);
                    drop(lease);
                }
            });
        }
    });
    assert_eq!(queue.counts().waiters, 0);
}

fn a_key_of_a_queue_can_be_part_of_a_composition<K: Kind>() {
    let queue = queue(K::permits(1), 9);
    let all = Concurrency::new(9);
    let alice = queue.key(&1_u64);
    let both = AllOf::new((&all, &*alice));
    let held = both.try_acquire_at(START, 1).unwrap();
    assert!(both.try_acquire_at(START, 1).is_err());
    assert_eq!(all.available(), 8, "all or nothing");
    let wait = Task::waiting(queue.acquire(&1_u64, 1));
    drop(held);
    let lease = granted(wait);
    assert!(both.try_acquire_at(START, 1).is_err());
    drop(lease);
    assert!(both.try_acquire_at(START, 1).is_ok());
    assert_eq!((alice.capacity(), alice.available_at(START)), (1, 1));
    assert_eq!(alice.id(), queue.key(&1_u64).id());
    assert_ne!(alice.id(), queue.key(&2_u64).id());
}

fn a_hook_observes_the_waits_of_all_keys<K: Kind>() {
    let told = Mutex::new(Vec::new());
    let queue: KeyedQueue<_, Hand> = KeyedQueue::new(K::permits(1), Hand::new(), 9);
    let queue = queue.with_hook(|waited: &Waited| {
        told.lock()
            .unwrap()
            .push((waited.permits, waited.time, waited.outcome));
    });
    let held = [1_u64, 2].map(|key| now(queue.acquire(&key, 1)).unwrap());
    let one = Task::waiting(queue.acquire(&1_u64, 1));
    queue.clock().set(secs(1));
    let two = Task::waiting(queue.acquire(&2_u64, 1));
    queue.clock().set(secs(3));
    drop(held);
    drop((one.outcome(), two));
    let granted = |secs| (1, Duration::from_secs(secs), WaitEnd::Granted);
    assert_eq!(
        *told.lock().unwrap(),
        [granted(3), granted(2)],
        "also of a waiter that was not polled again"
    );
}

fn a_waker_may_release_for_another_key<K: Kind>() {
    let queue = Arc::new(queue(K::permits(1), 9));
    let ([a, b], _) = neighbours(&K::permits(1));
    let own = |key: u64| QueueKey::new(Arc::clone(&queue), &key);
    let [of_a, of_b] = [a, b].map(|key| now(Acquire::new(own(key), 1)).unwrap());
    let mut wait = Task::new(Acquire::new(own(a), 1));
    let other = Task::waiting(Acquire::new(own(b), 1));
    let of_b = Mutex::new(Some(of_b));
    let releases = waker(move || drop(of_b.lock().unwrap().take()));
    assert!(wait.poll_with(&releases).is_pending());
    drop(of_a);
    assert_eq!(
        (granted(other).permits(), permits(wait.outcome())),
        (1, Ok(1))
    );
}

const STEPS: usize = if cfg!(debug_assertions) {
    30_000
} else {
    200_000
};

/// The outcome of a wait, or that it still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waits,
    Granted,
    Evicted,
    Exceeds,
}

/// The waits of one key in their order, by number, and the permits that the key has free.
#[derive(Default)]
struct Plain {
    line: VecDeque<(usize, u32)>,
    out: u32,
}

impl Plain {
    fn room(&self) -> u64 {
        self.line.iter().map(|&(_, n)| u64::from(n.max(1))).sum()
    }

    /// Grants as many as fit, from the first one on. `free` returns what is available, and `taken`
    /// takes it.
    fn serve(&mut self, limit: u32, fates: &mut HashMap<usize, Fate>) {
        while let Some(&(number, n)) = self.line.front() {
            let fate = if n.max(1) > limit {
                Fate::Exceeds
            } else if self.out + n.max(1) <= limit {
                self.out += n;
                Fate::Granted
            } else {
                return;
            };
            fates.insert(number, fate);
            self.line.pop_front();
        }
    }
}

/// Its number, its key, and the permits that it requests.
type Wait<'q, T> = (usize, u64, u32, Task<Acquire<QueueKey<&'q Undriven<T>>>>);

/// A queue of permits, and a list for each key beside it.
struct Beside<'q, T: QueueKeys> {
    queue: &'q Undriven<T>,
    order: Order,
    limit: u32,
    most: (u64, usize),
    keys: HashMap<u64, Plain>,
    fates: HashMap<usize, Fate>,
    waits: Vec<Wait<'q, T>>,
    leases: Vec<(u64, u32, Held<'q, T, ManualClock>)>,
    numbers: usize,
    /// Counts of rejected, evicted and cancelled waits.
    counts: [u64; 3],
}

impl<T: QueueKeys> Beside<'_, T> {
    fn fits(&mut self, key: u64, n: u32) -> bool {
        let waiters: usize = self.keys.values().map(|plain| plain.line.len()).sum();
        let (permits, most) = self.most;
        waiters < most && self.keys.entry(key).or_default().room() + u64::from(n.max(1)) <= permits
    }

    fn acquire(&mut self, key: u64, n: u32) {
        let mut task = Task::new(self.queue.acquire(&key, n));
        let outcome = task.poll();
        let (limit, newest_first) = (self.limit, self.order == Order::NewestFirst);
        let plain = self.keys.entry(key).or_default();
        if n.max(1) > limit {
            let Poll::Ready(Err(rejected)) = outcome else {
                panic!("more than the limit")
            };
            assert_eq!(
                rejected,
                Rejected::ExceedsCapacity {
                    permits: n,
                    capacity: limit
                }
            );
            return;
        }
        if (newest_first || plain.line.is_empty()) && plain.out + n.max(1) <= limit {
            let Poll::Ready(Ok(lease)) = outcome else {
                panic!("permits are free")
            };
            plain.out += n;
            self.leases.push((key, n, lease));
            return;
        }
        let could_fit = self.most.1 > 0 && u64::from(n.max(1)) <= self.most.0;
        while could_fit && newest_first && !self.fits(key, n) {
            let Some((number, _)) = self.keys.entry(key).or_default().line.pop_back() else {
                break;
            };
            self.fates.insert(number, Fate::Evicted);
            self.counts[1] += 1;
        }
        if !(could_fit && self.fits(key, n)) {
            let Poll::Ready(Err(rejected)) = outcome else {
                panic!("the queue is full")
            };
            assert_eq!(
                rejected,
                Rejected::QueueFull {
                    permits: n,
                    retry: Retry::OnRelease
                }
            );
            self.counts[0] += 1;
            return;
        }
        assert!(outcome.is_pending(), "must wait, and has room");
        let plain = self.keys.entry(key).or_default();
        if newest_first {
            plain.line.push_front((self.numbers, n));
        } else {
            plain.line.push_back((self.numbers, n));
        }
        self.fates.insert(self.numbers, Fate::Waits);
        self.waits.push((self.numbers, key, n, task));
        self.numbers += 1;
    }

    fn try_acquire(&mut self, key: u64, n: u32) {
        let taken = self.queue.try_acquire(&key, n);
        let plain = self.keys.entry(key).or_default();
        let may = self.order == Order::NewestFirst || plain.line.is_empty();
        assert_eq!(
            taken.is_ok(),
            may && plain.out + n.max(1) <= self.limit,
            "{key} {n}"
        );
        if let Ok(lease) = taken {
            plain.out += n;
            self.leases.push((key, n, lease));
        }
    }

    fn give_back(&mut self, key: u64, n: u32) {
        let plain = self.keys.get_mut(&key).unwrap();
        plain.out -= n;
        plain.serve(self.limit, &mut self.fates);
    }

    fn cancel(&mut self, which: usize) {
        let (number, key, n, task) = self.waits.swap_remove(which);
        drop(task);
        match self.fates.remove(&number) {
            Some(Fate::Granted) => self.give_back(key, n),
            Some(Fate::Waits) => {
                self.counts[2] += 1;
                let plain = self.keys.get_mut(&key).unwrap();
                let place = plain
                    .line
                    .iter()
                    .position(|&(one, _)| one == number)
                    .unwrap();
                plain.line.remove(place);
                if place == 0 {
                    plain.serve(self.limit, &mut self.fates);
                }
            }
            _ => {}
        }
    }

    /// Polls one wait, and compares the outcome.
    fn poll(&mut self, which: usize) {
        let (number, key, n, mut task) = self.waits.swap_remove(which);
        let (outcome, fate) = (task.poll(), self.fates[&number]);
        match (outcome, fate) {
            (Poll::Pending, Fate::Waits) => return self.waits.push((number, key, n, task)),
            (Poll::Ready(Ok(lease)), Fate::Granted) => {
                assert_eq!(lease.permits(), n);
                self.leases.push((key, n, lease));
            }
            (Poll::Ready(Err(Rejected::Evicted { permits, .. })), Fate::Evicted)
            | (Poll::Ready(Err(Rejected::ExceedsCapacity { permits, .. })), Fate::Exceeds) => {
                assert_eq!(permits, n);
            }
            (outcome, fate) => panic!("{outcome:?} instead of {fate:?}"),
        }
        self.fates.remove(&number);
    }

    fn check(&mut self) {
        let counts = self.queue.counts();
        let waiters: usize = self.keys.values().map(|plain| plain.line.len()).sum();
        let lines = self.keys.values().flat_map(|plain| &plain.line);
        let permits: u64 = lines.map(|&(_, n)| u64::from(n)).sum();
        assert_eq!(
            (counts.waiters as usize, counts.permits),
            (waiters, permits)
        );
        assert_eq!([counts.full, counts.evicted, counts.cancelled], self.counts);
        for (number, _, _, task) in &self.waits {
            assert_eq!(
                task.wakes(),
                usize::from(self.fates[number] != Fate::Waits),
                "woken once, when it is over"
            );
        }
        for (key, plain) in &self.keys {
            let free = u64::from(self.limit.saturating_sub(plain.out));
            assert_eq!(self.queue.key(key).available_at(START), free, "{key}");
        }
    }
}

fn random_permits_agree_with_a_list_for_each_key<K: Kind>() {
    for (order, seed) in [(Order::OldestFirst, 11), (Order::NewestFirst, 12)] {
        let most = (6, 25);
        let table = K::permits(3);
        let ([a, b, c, d], _) = neighbours(&table);
        let keys = [a, b, c, d, 1_001, 1_002, 1_003, 1_004];
        let queue = undriven(table, most.0)
            .with_order(order)
            .with_max_waiters(most.1 as u32);
        let mut beside = Beside {
            queue: &queue,
            order,
            limit: 3,
            most,
            keys: HashMap::new(),
            fates: HashMap::new(),
            waits: Vec::new(),
            leases: Vec::new(),
            numbers: 0,
            counts: [0; 3],
        };
        let mut random = Random(seed);
        for step in 0..STEPS {
            let key = keys[random.index(keys.len())];
            match random.index(100) {
                0..50 => beside.acquire(key, random.permits(4)),
                50..55 => beside.try_acquire(key, random.permits(4)),
                55..67 if !beside.leases.is_empty() => {
                    let (key, n, lease) =
                        beside.leases.swap_remove(random.index(beside.leases.len()));
                    drop(lease);
                    beside.give_back(key, n);
                }
                67..90 => {
                    for _ in 0..beside.waits.len().min(4) {
                        beside.poll(random.index(beside.waits.len()));
                    }
                }
                90..96 if !beside.waits.is_empty() => {
                    beside.cancel(random.index(beside.waits.len()));
                }
                96 => assert_eq!(
                    queue.advance(),
                    if beside.keys.values().all(|plain| plain.line.is_empty()) {
                        Next::Idle
                    } else {
                        Next::OnRelease
                    }
                ),
                97 => {
                    let limit = random.permits(3) + 1;
                    queue.change(|table| K::set_limit(table, limit));
                    beside.limit = limit;
                    for plain in beside.keys.values_mut() {
                        plain.serve(limit, &mut beside.fates);
                    }
                }
                _ => {}
            }
            if step % 16 == 0 {
                beside.check();
            }
        }
        // All leases are dropped, and with them all waits.
        beside.check();
        loop {
            while let Some(over) = beside.waits.iter().position(|(.., task)| task.wakes() > 0) {
                beside.poll(over);
            }
            let Some((key, n, lease)) = beside.leases.pop() else {
                break;
            };
            drop(lease);
            beside.give_back(key, n);
        }
        assert!(beside.waits.is_empty(), "a waiter waits for free permits");
        beside.check();
        let [refused, evicted, cancelled] = beside.counts;
        assert!(
            refused > 10 && cancelled > 200,
            "{refused} refused, {cancelled} cancelled"
        );
        assert_eq!(
            evicted > 500,
            order == Order::NewestFirst,
            "{evicted} evicted"
        );
    }
}

/// The tokens of a key at the second up to which they were counted, and its waiters: number,
/// tokens, and the last second at which a grant is in time. The deadline is half a second later, so
/// that nothing else is due then.
struct Tokens {
    there: u64,
    at: u64,
    line: VecDeque<(usize, u32, u64)>,
}

impl Tokens {
    const BURST: u64 = 4;
    const ROOM: u64 = 6;

    fn count(&mut self, second: u64) {
        self.there = Self::BURST.min(self.there + (second - self.at));
        self.at = second;
    }

    fn serve(&mut self, second: u64, granted: &mut Vec<usize>) {
        self.count(second);
        while let Some(&(number, n, _)) = self.line.front() {
            if self.there < n.max(1).into() {
                return;
            }
            self.there -= u64::from(n);
            granted.push(number);
            self.line.pop_front();
        }
    }

    /// The events at `second`: some waiters expire, and others are granted.
    fn pass(&mut self, second: u64, granted: &mut Vec<usize>, late: &mut Vec<usize>) {
        let (gone, left) = self
            .line
            .drain(..)
            .partition::<Vec<_>, _>(|&(.., last)| last < second);
        late.extend(gone.into_iter().map(|(number, ..)| number));
        self.line = left.into();
        self.serve(second, granted);
    }

    fn room(&self) -> u64 {
        self.line.iter().map(|&(_, n, _)| u64::from(n.max(1))).sum()
    }

    /// The second at which the first waiter is granted.
    fn due(&self) -> Option<u64> {
        self.line
            .front()
            .map(|&(_, n, _)| self.at + u64::from(n.max(1)) - self.there)
    }
}

fn random_tokens_agree_with_a_count_for_each_key<K: Kind>() {
    for (order, seed) in [(Order::OldestFirst, 21), (Order::NewestFirst, 22)] {
        let newest_first = order == Order::NewestFirst;
        let half = |second: u64| Timestamp::from_millis(second * 1_000 + 500);
        let table = K::tokens(Tokens::BURST);
        let ([a, b, c], far) = neighbours(&table);
        let keys = [a, b, c, far, 1_001, 1_002];
        // A late grant is made as of the instant at which it was due.
        let queue = undriven(table, Tokens::ROOM)
            .with_order(order)
            .with_slack(Duration::ZERO);
        let (mut second, mut settled, mut late_ones) = (0, 0, 0);
        let mut plain: HashMap<u64, Tokens> = keys
            .iter()
            .map(|&key| {
                (
                    key,
                    Tokens {
                        there: Tokens::BURST,
                        at: 0,
                        line: VecDeque::new(),
                    },
                )
            })
            .collect();
        let mut waits: HashMap<usize, Task<_>> = HashMap::new();
        let mut random = Random(seed);
        for number in 0..STEPS {
            let key = keys[random.index(keys.len())];
            let tokens = plain.get_mut(&key).unwrap();
            let (mut granted, mut late) = (Vec::new(), Vec::new());
            match random.index(10) {
                0..7 => {
                    let n = random.permits(3);
                    let last = if random.index(2) == 0 {
                        second + random.index(9) as u64
                    } else {
                        u64::MAX
                    };
                    let until = if last == u64::MAX {
                        Timestamp::MAX
                    } else {
                        half(last)
                    };
                    tokens.count(second);
                    let mut task = Task::new(queue.acquire(&key, n).until(until));
                    let outcome = task.poll();
                    if (newest_first || tokens.line.is_empty()) && tokens.there >= n.max(1).into() {
                        assert_eq!(outcome.map(permits), Poll::Ready(Ok(n)));
                        tokens.there -= u64::from(n);
                        continue;
                    }
                    // When all tokens for the waiters before it, and for itself, have come in.
                    let ahead: u64 = tokens.line.iter().map(|&(_, n, _)| u64::from(n)).sum();
                    let ahead = if newest_first { 0 } else { ahead };
                    let at = (second + ahead + u64::from(n.max(1)))
                        .saturating_sub(tokens.there)
                        .max(second);
                    let retry = Retry::At(secs(at));
                    if at > last {
                        let Poll::Ready(Err(rejected)) = outcome else {
                            panic!("comes after the deadline")
                        };
                        assert_eq!(rejected, Rejected::Deadline { permits: n, retry });
                        late_ones += 1;
                        continue;
                    }
                    while newest_first && tokens.room() + u64::from(n.max(1)) > Tokens::ROOM {
                        let (evicted, m, _) = tokens.line.pop_back().unwrap();
                        let outcome = waits.remove(&evicted).unwrap().outcome();
                        assert!(
                            matches!(outcome, Err(Rejected::Evicted { permits, .. }) if permits == m)
                        );
                    }
                    if tokens.room() + u64::from(n.max(1)) > Tokens::ROOM {
                        let Poll::Ready(Err(rejected)) = outcome else {
                            panic!("the queue is full")
                        };
                        assert_eq!(rejected, Rejected::QueueFull { permits: n, retry });
                        continue;
                    }
                    assert!(outcome.is_pending());
                    let place = if newest_first { 0 } else { tokens.line.len() };
                    tokens.line.insert(place, (number, n, last));
                    waits.insert(number, task);
                }
                7 => {
                    let Some(&(cancelled, ..)) = tokens.line.get(random.index(4)) else {
                        continue;
                    };
                    let was_head = tokens
                        .line
                        .front()
                        .is_some_and(|&(head, ..)| head == cancelled);
                    tokens.line.retain(|&(number, ..)| number != cancelled);
                    drop(waits.remove(&cancelled));
                    if was_head {
                        tokens.serve(second, &mut granted);
                    }
                }
                _ => {
                    second += random.index(2) as u64;
                    queue.clock().set(secs(second));
                    queue.advance();
                    for tokens in plain.values_mut() {
                        tokens.pass(second, &mut granted, &mut late);
                    }
                }
            }
            settled += granted.len();
            for number in granted {
                assert!(waits.remove(&number).unwrap().outcome().is_ok());
            }
            late_ones += late.len();
            for number in late {
                let outcome = waits.remove(&number).unwrap().outcome();
                assert!(matches!(outcome, Err(Rejected::Deadline { .. })));
            }
            if number % 16 == 0 {
                assert!(
                    waits.values().all(|task| task.wakes() == 0),
                    "woken, and not granted"
                );
                let counts = queue.counts();
                assert_eq!(
                    (counts.waiters as usize, counts.late as usize),
                    (waits.len(), late_ones)
                );
                let lasts = plain
                    .values()
                    .flat_map(|tokens| tokens.line.iter().map(|&(.., last)| last));
                let lasts = lasts.filter(|&last| last < u64::MAX).map(half);
                let next = plain
                    .values()
                    .filter_map(Tokens::due)
                    .map(secs)
                    .chain(lasts)
                    .min();
                assert_eq!(queue.advance(), next.map_or(Next::Idle, Next::At));
            }
        }
        assert!(
            settled > STEPS / 20 && late_ones > STEPS / 20,
            "{settled} granted, {late_ones} late"
        );
    }
}

fn threads_that_hand_leases_on_never_hold_more_than_the_limit<K: Kind>() {
    const THREADS: usize = 4;
    const LIMIT: u32 = 2;
    const ROUNDS: usize = if cfg!(debug_assertions) {
        3_000
    } else {
        30_000
    };
    let queue = Arc::new(queue(K::permits(LIMIT), 1_000));
    let ([a, b, c], far) = neighbours(&K::permits(LIMIT));
    let keys = [a, b, c, far];
    let out: Arc<[AtomicU32; 4]> = Arc::default();
    let granted = Arc::new(AtomicUsize::new(0));
    // The leases sent here are released by another thread.
    let (send, releases) =
        mpsc::sync_channel::<(usize, Lease<QueueKey<Arc<Manual<K::Permits>>>>)>(8);
    let releaser = thread::spawn({
        let out = Arc::clone(&out);
        move || {
            for (key, lease) in releases {
                out[key].fetch_sub(lease.permits(), Ordering::SeqCst);
                drop(lease);
            }
        }
    });
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (queue, out, granted, send) = (&queue, &out, &granted, send.clone());
            scope.spawn(move || {
                let mut random = Random(number as u64 + 1);
                for _ in 0..ROUNDS {
                    let key = random.index(keys.len());
                    let n = random.permits(LIMIT - 1) + 1;
                    let own = QueueKey::new(Arc::clone(queue), &keys[key]);
                    let mut wait = Box::pin(Acquire::new(own, n));
                    if random.index(3) == 0 {
                        // Cancelled, whether or not it is granted in the meantime.
                        let _ = wait
                            .as_mut()
                            .poll(&mut Context::from_waker(Waker::noop()))
                            .map(drop);
                        continue;
                    }
                    let lease = futures_executor::block_on(wait).unwrap();
                    granted.fetch_add(1, Ordering::Relaxed);
                    assert!(
                        out[key].fetch_add(n, Ordering::SeqCst) + n <= LIMIT,
                        "more than the limit are held"
                    );
                    if random.index(2) == 0 {
                        send.send((key, lease)).unwrap();
                    } else {
                        out[key].fetch_sub(n, Ordering::SeqCst);
                        drop(lease);
                    }
                }
            });
        }
    });
    drop(send);
    releaser.join().unwrap();
    assert!(granted.load(Ordering::Relaxed) > ROUNDS);
    assert_eq!((queue.counts().waiters, queue.counts().full), (0, 0));
    for key in keys {
        assert_eq!(queue.key(&key).available_at(START), LIMIT.into());
        assert!(queue.try_acquire(&key, LIMIT).is_ok());
    }
}

/// In real time: a token per millisecond, for each key.
fn threads_get_the_tokens_of_each_key_by_one_timer<K: Kind>() {
    const EACH: u64 = 60;
    const KEYS: u64 = 6;
    let queue: Arc<KeyedQueue<_, ThreadTimer>> =
        Arc::new(KeyedQueue::new(K::fast(), ThreadTimer::new(), 9));
    queue.attend_shared();
    let begin = queue.clock().now();
    thread::scope(|scope| {
        for number in 0..2 * KEYS {
            let queue = &queue;
            scope.spawn(move || {
                let mut random = Random(number + 1);
                let key = number % KEYS;
                let mut left = EACH / 2;
                while left > 0 {
                    let mut wait = Box::pin(queue.acquire(&key, 1));
                    let polled = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    let given_up = polled.is_pending() && random.index(4) == 0;
                    match polled {
                        Poll::Ready(lease) => drop(lease.unwrap()),
                        Poll::Pending if given_up => continue,
                        Poll::Pending => drop(futures_executor::block_on(wait).unwrap()),
                    }
                    left -= 1;
                }
            });
        }
    });
    let took = queue.clock().now().saturating_since(begin);
    // One token is available at first, and tokens that accrue unobserved may be granted later, up
    // to the slack.
    assert!(
        took >= Duration::from_millis(EACH - 1 - 10),
        "{took:?}: more than the rate"
    );
    assert_eq!(queue.counts().waiters, 0);
}

fn no_wait_for_a_key_allocates<K: Kind>() {
    fn poll<F: Future>(wait: &mut Pin<&mut F>) -> Poll<F::Output> {
        wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let permits: KeyedQueue<_, ManualClock> =
            KeyedQueue::new(K::permits(2), ManualClock::new(), 2).with_order(order);
        let tokens: KeyedQueue<_, ManualClock> =
            KeyedQueue::new(K::tokens(2), ManualClock::new(), 9).with_order(order);
        let count = allocations(|| {
            let mut ready = pin!(permits.acquire(&1_u64, 2));
            let Poll::Ready(Ok(held)) = poll(&mut ready) else {
                panic!("free")
            };
            assert!(
                permits.try_acquire(&1_u64, 1).is_err() && permits.try_acquire(&2_u64, 1).is_ok()
            );
            let mut waits = [
                pin!(permits.acquire(&1_u64, 1)),
                pin!(permits.acquire(&1_u64, 0)),
            ];
            assert!(waits.iter_mut().all(|wait| poll(wait).is_pending()));
            // Rejected, or evicts.
            let mut third = pin!(permits.acquire(&1_u64, 2));
            let _ = poll(&mut third);
            drop(held);
            for wait in &mut waits {
                let _ = poll(wait);
            }
            permits.change(|table| K::set_limit(table, 1));
            let mut closed = pin!(permits.acquire(&1_u64, 1));
            let _ = poll(&mut closed);
            permits.close();
            assert!(poll(&mut pin!(tokens.acquire(&1_u64, 2))).is_ready());
            let until = |key: u64| tokens.acquire(&key, 1).until(secs(2));
            let (mut one, mut two, mut late) = (pin!(until(1)), pin!(until(1)), pin!(until(1)));
            assert!(poll(&mut one).is_pending() && poll(&mut two).is_pending());
            let _ = poll(&mut late);
            tokens.clock().set(secs(2));
            tokens.advance();
            assert!(poll(&mut one).is_ready() && poll(&mut two).is_ready());
            let _ = (
                tokens.counts(),
                tokens.key(&1_u64).peek_at(secs(2), 1).is_ok(),
            );
        });
        assert_eq!(count, 0);
    }
}

/// Pairs of keys have equal hashes: half of the key decides.
#[derive(Clone, Copy)]
struct Halves(u64);

impl Hasher for Halves {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = (key / 2).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl BuildHasher for Halves {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

#[test]
fn keys_at_one_address_share_the_limit_and_the_queue() {
    let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(100), Halves(0));
    let queue = queue(table, 2);
    let held = hold(&queue, 8, 1);
    let [first, mut second] = [9, 8].map(|key: u64| Task::waiting(queue.acquire(&key, 1)));
    assert!(now(queue.acquire(&9_u64, 1)).is_err(), "the queue is full");
    assert!(queue.try_acquire(&9_u64, 1).is_err() && queue.try_acquire(&10_u64, 1).is_ok());
    drop(held);
    let lease = granted(first);
    assert!(second.is_pending());
    drop(lease);
    drop(granted(second));
}

/// One permit for each key, and a single line of slots.
fn one_line() -> Keyed<ConcurrencyRules, [Line; 1]> {
    let lines = [const { Line::new() }; 1];
    Keyed::new(ConcurrencyRules::new(1), lines, Seed::new())
}

/// Fills all slots that the key 0 can use; returns the leases of the other keys.
fn crowded<T: QueueKeys>(queue: &Manual<T>) -> Vec<Held<'_, T>> {
    let mut held = Vec::new();
    for key in 1.. {
        match queue.try_acquire(&key, 1) {
            Ok(lease) => held.push(lease),
            Err(denied) => {
                assert!(matches!(denied, Denied::Crowded { .. }));
                return held;
            }
        }
    }
    held
}

#[test]
fn a_key_without_a_slot_waits_until_one_is_free() {
    let queue = queue(one_line(), 9);
    let mut held = crowded(&queue);
    assert_eq!(held.len(), 7);
    let wait = Task::waiting(queue.acquire(&0_u64, 1));
    let mut behind = Task::waiting(queue.acquire(&0_u64, 1));
    assert_eq!(
        queue.advance(),
        Next::At(secs(1)),
        "the time is unknown, so the table is asked again"
    );
    queue.clock().set(secs(1));
    assert_eq!(queue.advance(), Next::At(secs(2)));
    drop(held.pop());
    queue.clock().set(secs(2));
    queue.advance();
    let lease = granted(wait);
    assert!(behind.is_pending(), "only the limit of its key applies");
    assert_eq!(queue.advance(), Next::OnRelease);
    drop(lease);
    drop(granted(behind));
}

/// The total has no slots, and so no time at which one is free.
#[test]
fn a_key_without_a_slot_waits_for_one_until_its_deadline_with_a_total_too() {
    let queue = queue(WithTotal::new(one_line(), Concurrency::new(100)), 9);
    let mut held = crowded(&queue);
    let wait = Task::waiting(queue.acquire(&0_u64, 1).until(secs(20)));
    let mut late = Task::waiting(queue.acquire(&0_u64, 1).until(secs(3)));
    queue.clock().set(secs(1));
    assert_eq!(queue.advance(), Next::At(secs(2)));
    drop(held.pop());
    queue.clock().set(secs(2));
    queue.advance();
    let lease = granted(wait);
    assert!(late.is_pending());
    queue.clock().set(secs(4));
    queue.advance();
    assert!(matches!(late.outcome(), Err(Rejected::Deadline { .. })));
    drop(lease);
}

#[test]
fn the_timer_asks_again_for_a_key_without_a_slot() {
    let queue = queue(one_line(), 9);
    let mut driver = Task::waiting(queue.drive());
    let mut held = crowded(&queue);
    let wait = Task::waiting(queue.acquire(&0_u64, 1));
    assert!(driver.is_pending());
    queue.clock().jump(secs(1));
    assert!(driver.is_pending());
    assert_eq!((wait.wakes(), queue.clock().alarm()), (0, Some(secs(2))));
    drop(held.pop());
    queue.clock().jump(secs(2));
    assert!(driver.is_pending());
    drop(granted(wait));
}

#[test]
fn a_key_without_a_slot_and_without_room_to_wait_gets_a_retry() {
    let queue = queue(one_line(), 0);
    let _held = crowded(&queue);
    assert_eq!(
        now(queue.acquire(&0_u64, 1)).unwrap_err(),
        Rejected::QueueFull {
            permits: 1,
            retry: Retry::After(Duration::from_secs(1))
        }
    );
}

#[test]
fn a_key_with_waiters_keeps_its_slot_whichever_keys_come() {
    let bucket = TokenBucket::builder(Rate::per_minute(1), 1)
        .rules()
        .unwrap();
    let queue = undriven(
        Keyed::new(bucket, [const { Line::new() }; 2], Seed::new()),
        9,
    );
    drop(hold(&queue, 0, 1));
    let [first, mut second] = [0, 0].map(|key: u64| Task::waiting(queue.acquire(&key, 1)));
    let mut crowded = 0;
    for (millis, key) in (0..60_000).step_by(7).zip(1_u64..) {
        queue.clock().set(Timestamp::from_millis(millis));
        crowded += usize::from(matches!(
            queue.try_acquire(&key, 1),
            Err(Denied::Crowded { .. })
        ));
        assert_eq!(queue.key(&0_u64).available_at(queue.clock().now()), 0);
    }
    assert!(crowded > 8_000);
    assert_eq!(queue.advance(), Next::At(secs(60)));
    queue.clock().set(secs(60));
    queue.advance();
    drop(granted(first));
    assert!(second.is_pending() && queue.try_acquire(&0_u64, 1).is_err());
    queue.clock().set(secs(120));
    queue.advance();
    drop(granted(second));
}

#[test]
fn a_queue_in_a_static_can_be_attended() {
    static HAND: Hand = Hand::new();
    static QUEUE: KeyedQueue<Keyed<TokenBucketRules, [Line; 8]>, &Hand> = KeyedQueue::new(
        Keyed::new(
            TokenBucketRules::new(Rate::per_second(1), 1),
            [const { Line::new() }; 8],
            Seed::new(),
        ),
        &HAND,
        9,
    );
    QUEUE.attend();
    drop(["alice", "bob"].map(|key| now(QUEUE.acquire(key, 1)).unwrap()));
    let waits = ["alice", "bob", "alice"].map(|key| Task::waiting(QUEUE.acquire(key, 1)));
    HAND.run(secs(2));
    assert!(waits.into_iter().all(|wait| granted(wait).permits() == 1));
    assert_eq!(HAND.armed(), [secs(1), secs(2)]);
}

#[test]
fn of_two_waiters_with_one_deadline_the_second_gets_what_the_first_leaves() {
    for with_another in [false, true] {
        let queue = queue(Words::permits(3), 9);
        let _held = hold(&queue, 1, 2);
        // Comes first, and is granted first.
        let _before = with_another.then(|| Task::waiting(queue.acquire(&1_u64, 2).until(secs(3))));
        let _first = Task::waiting(queue.acquire(&1_u64, 2).until(secs(5)));
        let second = Task::waiting(queue.acquire(&1_u64, 1).until(secs(5)));
        for second in [3, 5] {
            queue.clock().set(secs(second));
            queue.advance();
        }
        assert_eq!(permits(second.outcome()), Ok(1), "{with_another}");
    }
}

#[test]
fn a_denial_of_a_key_counts_the_waiters_before_it() {
    let queue = queue(Words::tokens(1), 9);
    drop(hold(&queue, 1, 1));
    let _waits = [1, 1].map(|key: u64| Task::waiting(queue.acquire(&key, 1)));
    let denied = queue.try_acquire(&1_u64, 1).unwrap_err();
    assert_eq!(queue.key(&1_u64).retry(denied), Retry::At(secs(3)));
}

#[test]
fn a_key_with_waiters_is_in_use() {
    let queue = queue(Words::tokens(1), 9);
    drop(hold(&queue, 1, 1));
    let _wait = Task::waiting(queue.acquire(&1_u64, 1));
    assert!(!queue.key(&1_u64).idle_at(secs(9)).is_idle());
    assert!(queue.key(&2_u64).idle_at(secs(9)).is_idle());
}
