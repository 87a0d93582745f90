//! Keyed queues with a limit for all keys together: a grant takes from both limits or from none,
//! and the keys take turns.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::VecDeque;

use portcullis_async::{Acquire, KeyedQueue, Next, Order, Oversized, QueueKey, Rejected};
use portcullis_core::keyed::{
    Address, ConcurrencyRules, Line, RandomSeed, Seed, TokenBucketRules, WithTotal,
};
use portcullis_core::{Concurrency, Keyed, KeyedList, Lease, Rate, Timestamp, TokenBucket};

use super::support::random::Random;
use super::support::{Hand, Task, now, permits};

type Table<R> = Keyed<R, Box<[Line]>, RandomSeed>;
type Places = Table<ConcurrencyRules>;
type Weights = Box<dyn Fn(&Address) -> u32 + Send + Sync>;
type Queue<L = Concurrency, T = Places> = KeyedQueue<WithTotal<T, L, Weights>, Hand>;
type Held<'q, L = Concurrency, T = Places> = Lease<QueueKey<&'q Queue<L, T>>>;

const fn millis(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn around<L, T>(table: T, total: L) -> Queue<L, T>
where
    WithTotal<T, L, Weights>: portcullis_core::queue::QueueKeys,
{
    let table = WithTotal::new(table, total).with_weights(Box::new(|_: &Address| 1_u32) as Weights);
    KeyedQueue::new(table, Hand::new(), 1_000)
}

/// `each` permits at once for each key, and `total` for all.
fn places(each: u32, total: u32) -> Queue {
    let table = Keyed::for_keys(Concurrency::new(each), 100);
    around(table, Concurrency::new(total))
}

/// The same with the weights of the keys 0, 1, ...
fn weighted<const N: usize>(each: u32, total: u32, weights: [u32; N]) -> Queue {
    let table = Keyed::for_keys(Concurrency::new(each), 100);
    let addresses = core::array::from_fn::<_, N, _>(|key| table.key(&key).address());
    let weight = move |of: &Address| {
        let key = addresses.iter().position(|address| address == of);
        key.map_or(1, |key| weights[key])
    };
    let table = WithTotal::new(table, Concurrency::new(total));
    KeyedQueue::new(
        table.with_weights(Box::new(weight) as Weights),
        Hand::new(),
        10_000,
    )
}

fn free(queue: &Queue) -> u32 {
    queue.change(|table| table.total().available())
}

/// The order in which the waits are granted, if each lease is released at once.
fn order_of_grants<'q>(
    held: Held<'q>,
    mut waits: Vec<(usize, Task<Acquire<QueueKey<&'q Queue>>>)>,
) -> Vec<usize> {
    let mut order = Vec::new();
    let mut held = Some(held);
    while let Some(lease) = held.take() {
        drop(lease);
        let granted = waits.iter().position(|(_, wait)| wait.wakes() > 0);
        if let Some(granted) = granted {
            let (key, wait) = waits.remove(granted);
            order.push(key);
            held = Some(wait.outcome().unwrap());
        }
        assert!(
            waits.iter().all(|(_, wait)| wait.wakes() == 0),
            "one permit"
        );
    }
    assert!(
        waits.is_empty(),
        "a wait sleeps though the permits are free"
    );
    order
}

#[test]
fn a_released_permit_of_the_total_goes_to_a_waiter_of_any_key() {
    let queue = places(9, 1);
    let held = now(queue.acquire("a", 1)).unwrap();
    let waits = ["b", "c", "a"].map(|key| Task::waiting(queue.acquire(key, 1)));
    drop(held);
    for wait in waits {
        assert_eq!(wait.wakes(), 1);
        drop(wait.outcome().unwrap());
    }
    assert_eq!((free(&queue), queue.counts().waiters), (1, 0));
}

#[test]
fn a_key_with_many_requests_takes_turns_with_the_others() {
    let queue = places(9, 1);
    let held = now(queue.acquire(&9_usize, 1)).unwrap();
    let mut waits = Vec::new();
    for key in [0, 0, 0, 0, 0, 0, 1, 1, 2] {
        waits.push((key, Task::waiting(queue.acquire(&key, 1))));
    }
    assert_eq!(order_of_grants(held, waits), [0, 1, 2, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn keys_are_granted_in_proportion_to_their_weights() {
    let queue = weighted(9, 1, [3, 1, 0]);
    let held = now(queue.acquire(&9_usize, 1)).unwrap();
    let mut waits = Vec::new();
    for key in [0, 1, 2] {
        for _ in 0..6 {
            waits.push((key, Task::waiting(queue.acquire(&key, 1))));
        }
    }
    let order = order_of_grants(held, waits);
    assert_eq!(order[..10], [0, 0, 0, 1, 2, 0, 0, 0, 1, 2]);
    assert_eq!(order[10..], [1, 2, 1, 2, 1, 2, 1, 2]);
}

/// Returns how many requests of each key are granted in a minute, if each always has some: at most
/// 5 per second of each key, with the given burst, and 50 per second of all.
fn granted_in_a_minute(weights: &[u32], burst: u32) -> Vec<usize> {
    let table = Keyed::for_keys_with_hasher(
        TokenBucket::new(Rate::per_second(5), burst.into()),
        weights.len(),
        Seed::new(),
    );
    let of: Vec<_> = (0..weights.len())
        .map(|key| table.key(&key).address())
        .collect();
    let each = weights.to_vec();
    let weight = move |key: &Address| each[of.iter().position(|other| other == key).unwrap()];
    let total = TokenBucket::new(Rate::per_second(50), 1);
    let queue = KeyedQueue::new(
        WithTotal::new(table, total).with_weights(weight),
        Hand::new(),
        10,
    )
    .with_slack(Duration::ZERO);
    let start = |key| {
        let wait = Task::new(queue.acquire(&key, 1));
        wait.start();
        wait
    };
    let mut waits: Vec<Vec<_>> = (0..weights.len())
        .map(|key| (0..3).map(|_| start(key)).collect())
        .collect();
    let mut granted = vec![0; weights.len()];
    loop {
        for (key, waits) in waits.iter_mut().enumerate() {
            for wait in waits {
                while let Some(lease) = wait.settled() {
                    lease.unwrap().forget();
                    granted[key] += 1;
                    *wait = start(key);
                }
            }
        }
        // A task that was polled before may drive the queue since then.
        if waits.iter().flatten().any(|wait| wait.wakes() > 0) {
            continue;
        }
        let alarm = queue.clock().alarm().expect("the total grants by time");
        if alarm > millis(60_000) {
            return granted;
        }
        queue.clock().run(alarm);
    }
}

#[test]
fn shares_are_as_the_weights_although_calls_are_slow_and_a_key_has_room_for_its_weight_alone() {
    const KEYS: usize = 15;
    // Two at once for each key, and 20 in total: 7 keys of weight 2 and 8 of weight 1.
    let queue = weighted(
        2,
        20,
        core::array::from_fn::<_, KEYS, _>(|key| 2 - key as u32 % 2),
    );
    let mut random = Random::new(3);
    let mut waits: Vec<VecDeque<_>> = (0..KEYS)
        .map(|key| (0..8).map(|_| Task::new(queue.acquire(&key, 1))).collect())
        .collect();
    waits.iter().flatten().for_each(Task::start);
    let (mut granted, mut out, mut at) = ([0_u64; KEYS], Vec::new(), 0);
    while at < 60_000 {
        for (key, waits) in waits.iter_mut().enumerate() {
            while let Some(lease) = waits.front_mut().and_then(Task::settled) {
                out.push((at + 1_300 + random.below(300), key, lease.unwrap()));
                waits.pop_front();
                waits.push_back(Task::new(queue.acquire(&key, 1)));
                waits.back_mut().unwrap().start();
                granted[key] += 1;
            }
            // The newest ones enter the line.
            waits
                .iter_mut()
                .skip(1)
                .for_each(|wait| assert!(wait.settled().is_none()));
        }
        at = out.iter().map(|(end, ..)| *end).min().unwrap();
        out.retain(|(end, ..)| *end > at);
    }
    let (heavy, light): (Vec<_>, Vec<_>) =
        granted.iter().zip(0..).partition(|(_, key)| key % 2 == 0);
    let mean =
        |of: &[(&u64, usize)]| of.iter().map(|(n, _)| **n).sum::<u64>() * 1_000 / of.len() as u64;
    let (heavy, light) = (mean(&heavy), mean(&light));
    assert!(
        heavy.abs_diff(2 * light) <= light / 10,
        "{heavy} and {light}"
    );
}

#[test]
fn a_key_with_a_larger_weight_gets_its_share_beside_a_limit_of_its_own() {
    // 30 keys: in a lap of 0.6 s the own limit of each would grant 3.
    let weights = [2, 1].repeat(15);
    for burst in 1..=3 {
        let granted = granted_in_a_minute(&weights, burst);
        let sum = |of| granted.iter().skip(of).step_by(2).sum::<usize>();
        let (heavy, light) = (sum(0), sum(1));
        assert!(
            heavy.abs_diff(2 * light) <= light / 25,
            "burst {burst}: {heavy} and {light}"
        );
        assert!(heavy + light >= 2_990, "burst {burst}: {}", heavy + light);
    }
}

#[test]
fn requests_for_many_permits_count_as_many() {
    let queue = places(9, 4);
    let held = now(queue.acquire(&9_usize, 4)).unwrap();
    let large: Vec<_> = (0..2)
        .map(|_| Task::waiting(queue.acquire(&0_usize, 4)))
        .collect();
    let small: Vec<_> = (0..8)
        .map(|_| Task::waiting(queue.acquire(&1_usize, 1)))
        .collect();
    let woken = |waits: &[Task<_>]| waits.iter().filter(|wait| wait.wakes() > 0).count();
    // In each round, either key may take one permit more: the large request is granted in the
    // fourth, after three small ones.
    drop(held);
    assert_eq!((woken(&large), woken(&small)), (0, 3));
    let mut small = small.into_iter();
    let leases: Vec<_> = small
        .by_ref()
        .take(3)
        .map(|wait| wait.outcome().unwrap())
        .collect();
    let small: Vec<_> = small.collect();
    drop(leases);
    assert_eq!((woken(&large), woken(&small)), (1, 0));
}

#[test]
fn requests_for_far_more_than_the_weights_take_few_steps_of_each_key() {
    const KEYS: u32 = 20;
    const MOST: u32 = 1 << 20;
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let count = |_: &Address| {
        ASKED.fetch_add(1, Relaxed);
        1_u32
    };
    let table = Keyed::for_keys(Concurrency::new(MOST), 100);
    let table = WithTotal::new(table, Concurrency::new(MOST));
    let weights = Box::new(count) as Weights;
    let queue = KeyedQueue::new(table.with_weights(weights), Hand::new(), 1 << 40);
    let held = now(queue.acquire(&KEYS, MOST)).unwrap();
    // Each key needs 10,000 rounds more than the next one.
    let mut waits = Vec::new();
    for key in 0..KEYS {
        let wait = Task::waiting(queue.acquire(&key, MOST - 10_000 * key));
        waits.push((key as usize, wait));
    }
    // The first two have saved the credit for their requests before the others came.
    let order: Vec<_> = [1, 0].into_iter().chain((2..KEYS as usize).rev()).collect();
    assert_eq!(order_of_grants(held, waits), order);
    // For each grant two steps of each key, which ask for its weight twice.
    let asked = ASKED.load(Relaxed);
    assert!(asked <= KEYS * KEYS * 4, "{asked}");
}

#[test]
fn a_weight_that_changes_counts_from_the_next_turn_on() {
    static WEIGHT: AtomicU32 = AtomicU32::new(1);
    let table = Keyed::for_keys(Concurrency::new(9_999), 100);
    let heavy = table.key(&1_usize).address();
    let weight = move |of: &Address| {
        if *of == heavy {
            WEIGHT.load(Relaxed)
        } else {
            1
        }
    };
    let table = WithTotal::new(table, Concurrency::new(1_000));
    let table = table.with_weights(Box::new(weight) as Weights);
    let queue = KeyedQueue::new(table, Hand::new(), 1 << 40);
    let held = now(queue.acquire(&9_usize, 1_000)).unwrap();
    let mut waits = Vec::new();
    for _ in 0..150 {
        for key in [0, 1] {
            waits.push((key, Task::waiting(queue.acquire(&key, 1_000))));
        }
    }
    WEIGHT.store(100, Relaxed);
    // The first two have been saved up for. Then a request of the light key takes 1,000 turns, and
    // one of the heavy key 10.
    let order = order_of_grants(held, waits);
    let light = order.iter().enumerate().filter(|(_, key)| **key == 0);
    let places: Vec<_> = light.map(|(place, _)| place).take(2).collect();
    assert!(
        places[0] <= 1 && (100..=104).contains(&places[1]),
        "{places:?}"
    );
}

#[test]
fn what_a_key_has_saved_for_a_request_is_lost_when_that_is_cancelled() {
    let queue = places(1_000, 100);
    let _held = now(queue.acquire(&9_usize, 99)).unwrap();
    let mut lease = Some(now(queue.acquire(&9_usize, 1)).unwrap());
    let large = Task::waiting(queue.acquire(&0_usize, 100));
    let mut waits: Vec<_> = (0..200_usize)
        .map(|nth| (nth % 2, Task::waiting(queue.acquire(&(nth % 2), 1))))
        .collect();
    let mut next = || {
        drop(lease.take());
        let granted = waits.iter().position(|(_, wait)| wait.wakes() > 0).unwrap();
        let (key, wait) = waits.remove(granted);
        lease = Some(wait.outcome().unwrap());
        key
    };
    let first: Vec<_> = (0..50).map(|_| next()).collect();
    assert!(first.iter().all(|key| *key == 1), "{first:?}");
    drop(large);
    let of_first = (0..20).filter(|_| next() == 0).count();
    assert!((9..=11).contains(&of_first), "{of_first}");
}

#[test]
fn a_request_for_many_permits_is_not_overtaken_for_ever() {
    let queue = places(9, 3);
    let mut leases: Vec<_> = (0..3)
        .map(|_| now(queue.acquire(&1_usize, 1)).unwrap())
        .collect();
    let large = Task::waiting(queue.acquire(&0_usize, 3));
    let mut small: VecDeque<_> = (0..20)
        .map(|_| Task::waiting(queue.acquire(&1_usize, 1)))
        .collect();
    let mut before = 0;
    while large.wakes() == 0 {
        drop(
            leases
                .pop()
                .expect("the large request is granted before all permits are free"),
        );
        while small.front().is_some_and(|wait| wait.wakes() > 0) {
            leases.push(small.pop_front().unwrap().outcome().unwrap());
            before += 1;
        }
    }
    // Three turns of the other key at most.
    assert!(before <= 3, "{before} small ones overtook it");
}

#[test]
fn a_partial_wait_takes_no_more_than_its_turn_while_others_wait() {
    let queue = places(9, 4);
    let held = now(queue.acquire(&9_usize, 4)).unwrap();
    let greedy = Task::waiting(Acquire::new(queue.key(&0_usize), 1).up_to(9));
    let modest = Task::waiting(queue.acquire(&1_usize, 1));
    drop(held);
    assert_eq!(permits(modest.outcome()), Ok(1));
    assert_eq!(permits(greedy.outcome()), Ok(1));
    let held = now(queue.acquire(&9_usize, 4)).unwrap();
    let alone = Task::waiting(Acquire::new(queue.key(&0_usize), 1).up_to(9));
    drop(held);
    assert_eq!(permits(alone.outcome()), Ok(4), "no other key waits");
}

#[test]
fn a_key_whose_own_limit_denies_blocks_no_other_and_takes_nothing() {
    let queue = places(1, 2);
    let own = now(queue.acquire("a", 1)).unwrap();
    let mut waits_a = Task::waiting(queue.acquire("a", 1));
    assert_eq!(free(&queue), 1, "a request that waits holds nothing");
    drop(now(queue.acquire("b", 1)).unwrap());
    let b = queue.try_acquire("b", 1).unwrap();
    let waits_c = Task::waiting(queue.acquire("c", 1));
    drop(b);
    let c = waits_c.outcome().unwrap();
    assert!(waits_a.is_pending());
    drop(own);
    let _a = waits_a.outcome().unwrap();
    drop(c);
}

#[test]
fn a_new_request_does_not_overtake_the_keys_that_wait_for_the_total() {
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let queue = weighted(9, 2, [2]).with_order(order);
        let mut held = now(queue.acquire(&9_usize, 2)).unwrap();
        // It needs both permits.
        let waits = Task::waiting(queue.acquire(&0_usize, 2));
        held.release(1).unwrap();
        assert_eq!(free(&queue), 1);
        assert!(queue.try_acquire(&1_usize, 1).is_err(), "{order:?}");
        assert!(queue.key(&1_usize).in_turn(|| Ok::<_, ()>(())).is_none());
        let mut newcomer = Task::waiting(queue.acquire(&1_usize, 1));
        drop(held);
        drop(waits.outcome().unwrap());
        assert!(!newcomer.is_pending());
    }
}

#[test]
fn in_newest_first_order_the_keys_take_turns_and_each_serves_its_newest_request() {
    let queue = places(9, 1).with_order(Order::NewestFirst);
    let held = now(queue.acquire(&9_usize, 1)).unwrap();
    let waits = [0, 0, 1, 0, 1].map(|key| (key, Task::waiting(queue.acquire(&key, 1))));
    let mut held = Some(held);
    let mut order = Vec::new();
    let mut waits: Vec<_> = waits.into_iter().enumerate().collect();
    while let Some(lease) = held.take() {
        drop(lease);
        if let Some(at) = waits.iter().position(|(_, (_, wait))| wait.wakes() > 0) {
            let (place, (_, wait)) = waits.remove(at);
            order.push(place);
            held = Some(wait.outcome().unwrap());
        }
    }
    assert_eq!(order, [3, 4, 1, 2, 0]);
}

#[test]
fn a_cancelled_front_makes_way() {
    let queue = weighted(9, 3, [3]);
    let mut held = now(queue.acquire(&9_usize, 3)).unwrap();
    let large = Task::waiting(queue.acquire(&0_usize, 3));
    let small = Task::waiting(queue.acquire(&1_usize, 1));
    held.release(1).unwrap();
    assert_eq!(small.wakes(), 0, "behind the large one");
    drop(large);
    assert_eq!(small.wakes(), 1);
    drop((small, held));
    assert_eq!((free(&queue), queue.counts().waiters), (3, 0));
}

#[test]
fn an_evicted_front_makes_way() {
    let queue = {
        let queue = weighted(9, 3, [3]).with_order(Order::NewestFirst);
        queue.set_max_permits(3);
        queue
    };
    let mut held = now(queue.acquire(&9_usize, 3)).unwrap();
    let large = Task::waiting(queue.acquire(&0_usize, 3));
    let small = Task::waiting(queue.acquire(&1_usize, 1));
    held.release(1).unwrap();
    let other = Task::waiting(queue.acquire(&2_usize, 1));
    assert_eq!(small.wakes(), 0, "behind the large one");
    let newest = Task::waiting(queue.acquire(&0_usize, 2));
    assert!(matches!(large.outcome(), Err(Rejected::Evicted { .. })));
    assert_eq!((small.wakes(), other.wakes()), (1, 0));
    drop((other, small));
    drop(held);
    drop(newest.outcome().unwrap());
    assert_eq!((free(&queue), queue.counts().waiters), (3, 0));
}

#[test]
fn the_deadline_of_a_front_makes_way() {
    let queue = weighted(9, 3, [3]);
    let mut held = now(queue.acquire(&9_usize, 3)).unwrap();
    let large = Task::waiting(Acquire::new(queue.key(&0_usize), 3).until(millis(5)));
    let small = Task::waiting(queue.acquire(&1_usize, 1));
    held.release(1).unwrap();
    assert_eq!(small.wakes(), 0);
    queue.clock().run(millis(5));
    queue.advance();
    assert!(matches!(large.outcome(), Err(Rejected::Deadline { .. })));
    assert_eq!(small.wakes(), 1);
}

#[test]
fn a_changed_total_serves_the_keys_in_turn() {
    let queue = places(9, 1);
    let held = now(queue.acquire(&9_usize, 1)).unwrap();
    let waits = [0, 0, 1, 1].map(|key| Task::waiting(queue.acquire(&key, 1)));
    let set = |limit| {
        queue
            .change(|table| table.total().set_limit(limit))
            .unwrap()
    };
    set(3);
    assert_eq!(waits.each_ref().map(Task::wakes), [1, 0, 1, 0]);
    let [first, second, third, fourth] = waits;
    let large = Task::waiting(queue.acquire(&2_usize, 3));
    set(2);
    assert!(matches!(
        large.outcome(),
        Err(Rejected::ExceedsCapacity { .. })
    ));
    drop((first, third, held));
    drop((second.outcome().unwrap(), fourth.outcome().unwrap()));
    assert_eq!(free(&queue), 2);
}

#[test]
fn a_request_that_waits_for_a_larger_total_delays_no_other_key() {
    let queue = places(9, 2).with_oversized(Oversized::Wait);
    let held = now(queue.acquire("a", 2)).unwrap();
    let large = Task::waiting(queue.acquire("b", 3));
    let small = Task::waiting(queue.acquire("c", 1));
    drop(held);
    drop(small.outcome().unwrap());
    assert_eq!(large.wakes(), 0);
    queue.change(|table| table.total().set_limit(3)).unwrap();
    assert_eq!(permits(large.outcome()), Ok(3));
}

#[test]
fn a_queue_with_a_total_closes_and_is_drained() {
    // The permits of the keys return by time, so only the total tells what is held.
    let table = Keyed::for_keys(TokenBucket::new(Rate::per_second(100), 9), 100);
    let queue: Queue<Concurrency, Table<TokenBucketRules>> = around(table, Concurrency::new(2));
    let held: Vec<_> = ["a", "b"]
        .map(|key| now(queue.acquire(key, 1)).unwrap())
        .into();
    let waits = ["a", "b", "c"].map(|key| Task::waiting(queue.acquire(key, 1)));
    let mut drained = Task::waiting(queue.drained());
    queue.close();
    for wait in waits {
        assert_eq!(
            permits(wait.outcome()),
            Err(Rejected::Closed { permits: 1 })
        );
    }
    let mut held = held.into_iter();
    drop(held.next());
    assert!(drained.is_pending());
    drop(held.next());
    assert!(!drained.is_pending());
    assert_eq!(queue.counts().waiters, 0);
}

#[test]
fn an_unclaimed_grant_returns_the_permits_of_both_limits() {
    let table = Keyed::for_keys(TokenBucket::new(Rate::per_second(1), 1), 100);
    let queue: Queue<Concurrency, Table<TokenBucketRules>> = around(table, Concurrency::new(1));
    let held = now(queue.acquire("a", 1)).unwrap();
    let first = Task::waiting(queue.acquire("b", 1));
    drop(held);
    assert_eq!(first.wakes(), 1, "granted");
    drop(first);
    // Its token and its place are back.
    let lease = queue.try_acquire("b", 1).unwrap();
    assert!(queue.try_acquire("c", 1).is_err());
    drop(lease);
    assert!(queue.try_acquire("b", 1).is_err(), "a token");
}

/// The crawler: of each of 50 hosts two pages per second and four at once, and 40 pages at once in
/// total.
#[test]
fn a_crawler_of_50_hosts_fills_all_places_and_keeps_the_rate_of_each_host_on_the_wire() {
    const HOSTS: usize = 50;
    const PAGES: usize = 30;
    let limits = (
        TokenBucket::new(Rate::per_second(2), 1),
        Concurrency::new(4),
    );
    let table = KeyedList::for_keys(limits, 1_000);
    let queue = KeyedQueue::new(
        WithTotal::new(table, Concurrency::new(40)),
        Hand::new(),
        1_000,
    )
    .with_slack(Duration::ZERO)
    .shared();
    let mut random = Random::new(7);
    let mut sent = vec![Vec::new(); HOSTS];
    let mut pages: Vec<VecDeque<_>> = (0..HOSTS)
        .map(|host| {
            (0..PAGES)
                .map(|_| Task::new(queue.acquire(&host, 1)))
                .collect()
        })
        .collect();
    for page in pages.iter_mut().flatten() {
        page.start();
    }
    // The pages under way: their ends, and their hosts.
    let mut out = Vec::new();
    let (mut at, mut busy) = (0, 0);
    loop {
        for (host, pages) in pages.iter_mut().enumerate() {
            while let Some(lease) = pages.front_mut().and_then(Task::settled) {
                pages.pop_front();
                sent[host].push(at);
                // Between 0.5 and 3 s: 40 places are too few for 50 hosts at the full rate.
                out.push((at + 500 + random.below(2_500), host, lease.unwrap()));
            }
        }
        assert!(out.len() <= 40, "{} pages at once", out.len());
        for host in 0..HOSTS {
            assert!(out.iter().filter(|(_, of, _)| *of == host).count() <= 4);
        }
        // While every host has pages left, there is work for every place.
        if pages.iter().all(|pages| pages.len() > 1) && at >= 1_000 {
            assert_eq!(out.len(), 40, "places are free at {at} ms");
        }
        let Some(end) = out.iter().map(|(end, ..)| *end).min() else {
            assert!(
                pages.iter().all(VecDeque::is_empty),
                "the queue stands still"
            );
            break;
        };
        let alarm = queue
            .clock()
            .alarm()
            .map_or(u64::MAX, |alarm| alarm.as_nanos().div_ceil(1_000_000));
        let next = end.min(alarm).max(at + 1);
        if out.len() == 40 {
            busy += next - at;
        }
        at = next;
        queue.clock().run(millis(at));
        out.retain(|(end, ..)| *end > at);
    }
    for (host, sent) in sent.iter().enumerate() {
        assert_eq!(sent.len(), PAGES);
        let gaps = sent.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.min().unwrap() >= 500, "host {host}: {sent:?}");
    }
    assert!(
        busy * 100 >= at * 80,
        "{busy} of {at} ms with all places in use"
    );
}

#[test]
fn a_total_that_is_a_rate_is_granted_by_time_and_in_turn() {
    let table = Keyed::for_keys(TokenBucket::new(Rate::per_second(1_000), 100), 100);
    let total = TokenBucket::new(Rate::per_second(100), 1);
    let queue: Queue<TokenBucket, Table<TokenBucketRules>> = around(table, total);
    drop(now(queue.acquire(&9_usize, 1)).unwrap());
    let mut waits: Vec<_> = [0, 0, 0, 1, 1, 2]
        .map(|key| (key, Task::waiting(queue.acquire(&key, 1))))
        .into();
    assert_eq!(queue.advance(), Next::At(millis(10)));
    let mut order = Vec::new();
    for at in 1..=60 {
        queue.clock().run(millis(at));
        queue.advance();
        while let Some(granted) = waits
            .iter()
            .position(|(_, wait)| wait.future().is_settled())
        {
            let (key, wait) = waits.remove(granted);
            drop(wait.outcome().unwrap());
            order.push((key, at));
        }
    }
    assert_eq!(
        order,
        [(0, 10), (1, 20), (2, 30), (0, 40), (1, 50), (0, 60)]
    );
    assert_eq!(queue.advance(), Next::Idle);
}

#[test]
fn a_late_timer_loses_no_permits_of_the_total() {
    let table = Keyed::for_keys(TokenBucket::new(Rate::per_second(1_000), 100), 100);
    let total = TokenBucket::new(Rate::per_second(1_000), 1);
    let queue: Queue<TokenBucket, Table<TokenBucketRules>> = around(table, total);
    drop(now(queue.acquire(&9_usize, 1)).unwrap());
    let waits: Vec<_> = (0..20)
        .map(|key| Task::waiting(queue.acquire(&(key % 4), 1)))
        .collect();
    // Within the slack of 10 ms.
    queue.clock().jump(millis(8));
    queue.advance();
    let granted = waits
        .iter()
        .filter(|wait| wait.future().is_settled())
        .count();
    assert_eq!(granted, 8);
}

#[test]
fn a_late_timer_loses_no_permits_of_a_key() {
    let table = Keyed::for_keys(TokenBucket::new(Rate::per_second(1_000), 1), 100);
    let queue: Queue<Concurrency, Table<TokenBucketRules>> = around(table, Concurrency::new(100));
    drop(now(queue.acquire(&0_usize, 1)).unwrap());
    let waits: Vec<_> = (0..9)
        .map(|_| Task::waiting(queue.acquire(&0_usize, 1)))
        .collect();
    queue.clock().jump(millis(6));
    queue.advance();
    let granted = waits
        .iter()
        .filter(|wait| wait.future().is_settled())
        .count();
    assert_eq!(granted, 6);
}

#[test]
fn a_head_that_leaves_while_the_timer_is_late_leaves_its_permits_to_those_behind_it() {
    macro_rules! leaves {
        ($queue:expr) => {
            let queue = $queue;
            drop(now(queue.acquire(&0_usize, 5)).unwrap());
            let head = Task::waiting(queue.acquire(&0_usize, 3));
            let next = Task::waiting(queue.acquire(&0_usize, 1).until(millis(4_000)));
            // The permits of the head were due a second before.
            queue.clock().jump(millis(4_005));
            drop(head);
            assert_eq!((next.wakes(), permits(next.outcome())), (1, Ok(1)));
        };
    }
    let rate = || TokenBucket::new(Rate::per_second(1), 5);
    let of_keys: Queue<Concurrency, Table<TokenBucketRules>> =
        around(Keyed::for_keys(rate(), 100), Concurrency::new(100));
    leaves!(of_keys);
    let of_all: Queue<TokenBucket> = around(Keyed::for_keys(Concurrency::new(9), 100), rate());
    leaves!(of_all);
}

#[test]
fn the_front_hands_the_timer_of_the_total_on() {
    let table = Keyed::for_keys(Concurrency::new(9), 100);
    let total = TokenBucket::new(Rate::per_second(1), 1);
    let queue: Queue<TokenBucket> = around(table, total);
    drop(now(queue.acquire(&9_usize, 1)).unwrap());
    let [first, second, third] = [0, 1, 2].map(|key| Task::waiting(queue.acquire(&key, 1)));
    assert_eq!(queue.advance(), Next::At(millis(1_000)));
    drop(first);
    assert_eq!(queue.advance(), Next::At(millis(1_000)));
    queue.clock().run(millis(1_000));
    queue.advance();
    assert!(second.future().is_settled() && !third.future().is_settled());
    assert_eq!(queue.advance(), Next::At(millis(2_000)));
}

/// The keys that the model knows.
const KEYS: usize = 4;

/// What a key of the round does, if its own limit has denied in the midst of its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Ready,
    Cut,
    Resumes,
}

/// The queue in a few lines of sequential code: deficit round robin, and its bound.
struct Model {
    order: Order,
    each: u64,
    total: u64,
    weights: [u32; KEYS],
    held: [u64; KEYS],
    lists: [VecDeque<(usize, u64)>; KEYS],
    ring: VecDeque<usize>,
    resuming: VecDeque<usize>,
    phases: [Phase; KEYS],
    credits: [u64; KEYS],
    /// The turns that each key has begun since it was granted a request.
    fruitless: [u64; KEYS],
    has_begun: bool,
    granted: Vec<usize>,
    /// What each key was granted since two keys have been ready together.
    since: [[[u64; KEYS]; KEYS]; KEYS],
    /// What one key had left then of a turn that was cut, before another.
    left: [[u64; KEYS]; KEYS],
    largest: u64,
}

impl Model {
    fn free(&self) -> u64 {
        self.total.saturating_sub(self.held.iter().sum())
    }

    fn own_free(&self, key: usize) -> u64 {
        self.each - self.held[key]
    }

    fn head(&self, key: usize) -> Option<(usize, u64)> {
        match self.order {
            Order::NewestFirst => self.lists[key].back().copied(),
            _ => self.lists[key].front().copied(),
        }
    }

    fn pop(&mut self, key: usize) {
        match self.order {
            Order::NewestFirst => self.lists[key].pop_back(),
            _ => self.lists[key].pop_front(),
        };
        if self.lists[key].is_empty() {
            self.leave(key);
        }
    }

    fn leave(&mut self, key: usize) {
        if let Some(place) = self.ring.iter().position(|other| *other == key) {
            self.ring.remove(place);
            self.resuming.retain(|other| *other != key);
            self.has_begun &= place > 0;
        }
    }

    fn judge(&mut self, key: usize) {
        let is_ready = self.head(key).is_some_and(|(_, n)| n <= self.own_free(key));
        if !is_ready {
            return;
        }
        if !self.ring.contains(&key) {
            self.ring.push_back(key);
            (self.phases[key], self.credits[key]) = (Phase::Ready, 0);
            self.fruitless[key] = 1;
        } else if self.phases[key] == Phase::Cut {
            self.phases[key] = Phase::Resumes;
            self.resuming.push_back(key);
        } else {
            return;
        }
        self.begin_span(key);
    }

    /// Begins a new span, in which the grants of the key are compared with those of each other.
    fn begin_span(&mut self, key: usize) {
        let left = |key: usize| match self.phases[key] {
            Phase::Resumes => self.credits[key],
            _ => 0,
        };
        let left: [u64; KEYS] = core::array::from_fn(left);
        for other in 0..KEYS {
            self.since[key][other] = [0; KEYS];
            self.since[other][key] = [0; KEYS];
            self.left[key][other] = left[key];
            self.left[other][key] = left[other];
        }
    }

    fn serve(&mut self) {
        while let Some(&key) = self.resuming.front().or(self.ring.front()) {
            let resumes = !self.resuming.is_empty();
            if !resumes && !self.has_begun {
                if self.phases[key] == Phase::Cut {
                    (self.phases[key], self.credits[key]) = (Phase::Ready, 0);
                    self.begin_span(key);
                }
                self.credits[key] += u64::from(self.weights[key]);
                self.fruitless[key] += 1;
                self.has_begun = true;
            }
            let (id, n) = self.head(key).unwrap();
            let is_alone = self.ring.len() == 1;
            let passes = !is_alone && self.credits[key] < n;
            let is_denied = n > self.own_free(key);
            if is_denied && !passes && (is_alone || self.fruitless[key] > 1) {
                self.leave(key);
            } else if is_denied || passes {
                self.phases[key] = if passes { Phase::Ready } else { Phase::Cut };
                if resumes {
                    self.resuming.pop_front();
                } else {
                    self.ring.rotate_left(1);
                    self.has_begun = false;
                }
            } else if n > self.free() {
                return;
            } else {
                self.credits[key] = self.credits[key].saturating_sub(n);
                self.fruitless[key] = 0;
                self.grant(key, id, n);
                self.pop(key);
            }
        }
    }

    fn grant(&mut self, key: usize, id: usize, n: u64) {
        self.held[key] += n;
        self.granted.push(id);
        for one in 0..KEYS {
            for other in 0..KEYS {
                self.since[one][other][key] += n;
            }
        }
        self.is_fair();
    }

    /// The bound that the documentation of the round proves.
    fn is_fair(&self) {
        let is_ready = |key: &&usize| self.phases[**key] != Phase::Cut;
        for &one in self.ring.iter().filter(is_ready) {
            for &other in self.ring.iter().filter(is_ready) {
                let share = |key: usize| self.since[one][other][key];
                let weight = |key: usize| u64::from(self.weights[key]);
                // Both sides times both weights.
                let slack = weight(one) * weight(other)
                    + (self.largest - 1) * (weight(one) + weight(other))
                    + self.left[one][other] * weight(other);
                assert!(
                    share(one) * weight(other) <= share(other) * weight(one) + slack,
                    "{one} is before {other} by more than the bound"
                );
            }
        }
    }

    fn enter(&mut self, key: usize, id: usize, n: u64) {
        let is_first = self.lists[key].is_empty() || self.order == Order::NewestFirst;
        if is_first && self.ring.is_empty() && n <= self.own_free(key).min(self.free()) {
            return self.grant(key, id, n);
        }
        self.lists[key].push_back((id, n));
        if self.head(key).is_some_and(|(head, _)| head == id) {
            self.judge(key);
        }
        self.serve();
    }

    fn cancel(&mut self, key: usize, id: usize) {
        let Some(place) = self.lists[key].iter().position(|(other, _)| *other == id) else {
            return;
        };
        let was_head = self.head(key).is_some_and(|(head, _)| head == id);
        self.lists[key].remove(place);
        if self.lists[key].is_empty() {
            self.leave(key);
        } else {
            self.bound_credit(key);
            if was_head {
                self.judge(key);
            }
        }
        self.serve();
    }

    /// A request has left without a grant. What the key has saved for it is lost, but for what the
    /// head may have saved as well.
    fn bound_credit(&mut self, key: usize) {
        if !self.ring.contains(&key) {
            return;
        }
        let (_, n) = self.head(key).unwrap();
        let is_open = self.ring.front() == Some(&key) && self.has_begun;
        let is_in_turn = is_open || self.phases[key] != Phase::Ready;
        let most = n - 1 + u64::from(self.weights[key]) * u64::from(is_in_turn);
        if self.credits[key] > most {
            self.credits[key] = most;
            self.begin_span(key);
        }
    }

    fn release(&mut self, key: usize, n: u64) {
        self.held[key] -= n;
        self.judge(key);
        self.serve();
    }
}

#[test]
fn random_requests_are_granted_in_the_order_of_a_plain_round_robin_within_its_bound() {
    for seed in 1..=300 {
        let mut random = Random::new(seed);
        let order = if random.one_in(3) {
            Order::NewestFirst
        } else {
            Order::OldestFirst
        };
        let weights: [u32; KEYS] = match random.below(3) {
            0 => [1; KEYS],
            1 => core::array::from_fn(|_| 1 + random.below(4) as u32),
            _ => [8, 1, 1, 3],
        };
        let largest = [1, 3, 6, 60][random.index(4)];
        // Often larger than the total, so that each key that waits is ready.
        let each = largest + [0, 3, 1_000][random.index(3)];
        let total = largest + random.below(6);
        let queue = weighted(each as u32, total as u32, weights).with_order(order);
        let mut model = Model {
            order,
            each,
            total,
            weights,
            held: [0; KEYS],
            lists: Default::default(),
            ring: VecDeque::new(),
            resuming: VecDeque::new(),
            phases: [Phase::Ready; KEYS],
            credits: [0; KEYS],
            fruitless: [0; KEYS],
            has_begun: false,
            granted: Vec::new(),
            since: Default::default(),
            left: Default::default(),
            largest,
        };
        let mut waits: Vec<(usize, usize, Task<_>)> = Vec::new();
        let mut leases: Vec<(usize, Held<'_>)> = Vec::new();
        let crowd = [3, 10, 40][random.index(3)];
        for id in 0..600 {
            match random.below(8) {
                0..4 if waits.len() < crowd => {
                    let (key, n) = (random.index(KEYS), 1 + random.below(largest));
                    let mut wait = Task::new(queue.acquire(&key, n as u32));
                    model.enter(key, id, n);
                    match wait.poll() {
                        core::task::Poll::Ready(lease) => {
                            assert_eq!(model.granted.pop(), Some(id), "seed {seed}, request {id}");
                            leases.push((key, lease.unwrap()));
                        }
                        core::task::Poll::Pending => waits.push((key, id, wait)),
                    }
                }
                4 if !waits.is_empty() => {
                    let (key, id, wait) = waits.swap_remove(random.index(waits.len()));
                    model.cancel(key, id);
                    drop(wait);
                }
                5..7 if !leases.is_empty() => {
                    let (key, lease) = leases.swap_remove(random.index(leases.len()));
                    model.release(key, lease.permits().into());
                    drop(lease);
                }
                7 if random.one_in(10) => {
                    model.total = largest + random.below(6);
                    let total = model.total as u32;
                    queue
                        .change(|table| table.total().set_limit(total))
                        .unwrap();
                    model.serve();
                }
                _ => {}
            }
            let mut granted = core::mem::take(&mut model.granted);
            granted.sort_unstable();
            let mut seen = Vec::new();
            waits.retain_mut(|(key, id, wait)| match wait.settled() {
                Some(lease) => {
                    seen.push(*id);
                    leases.push((*key, lease.unwrap()));
                    false
                }
                None => true,
            });
            seen.sort_unstable();
            assert_eq!(
                seen, granted,
                "seed {seed}, step {id}, {order:?}, {weights:?}; waits: {:?}, in the round: {:?}",
                model.lists, model.ring
            );
            assert_eq!(queue.counts().waiters as usize, waits.len());
            // The key of no request.
            let free = queue.key(&KEYS).available();
            assert_eq!(free, model.free().min(each));
        }
        drop((waits, leases));
        let free = queue.key(&KEYS).available();
        assert_eq!(free, model.total.min(each), "all permits are back");
    }
}

/// The key "a" has saved for a request for 100 permits, which newer ones have gone before.
#[test]
fn a_request_that_leaves_behind_others_takes_what_was_saved_for_it() {
    let table = Keyed::for_keys(Concurrency::new(10_000), 100);
    let total = TokenBucket::new(Rate::per_second(1_000), 100);
    let queue = around(table, total).with_order(Order::NewestFirst);
    now(queue.acquire("c", 100)).unwrap().forget();
    let wait = |key, n| Task::waiting(queue.acquire(key, n));
    let of_b: Vec<_> = (0..400).map(|_| wait("b", 1)).collect();
    let large = wait("a", 100);
    let run = |from, to| {
        for at in from..=to {
            queue.clock().set(millis(at));
            queue.advance();
        }
    };
    run(1, 90);
    let of_a: Vec<_> = (0..100).map(|_| wait("a", 1)).collect();
    drop(large);
    let granted =
        || [&of_a, &of_b].map(|all| all.iter().filter(|one| one.future().is_settled()).count());
    let [a, b] = granted();
    run(91, 190);
    let [a, b] = [granted()[0] - a, granted()[1] - b];
    assert!(
        (49..=51).contains(&a) && (49..=51).contains(&b),
        "{a} and {b} of 100"
    );
}
