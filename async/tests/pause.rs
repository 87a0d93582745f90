//! A pause of a queue, of all keys, or of one key. No request is granted before the end of the
//! pause. A request whose deadline comes before the end fails at once.

mod support;

use core::time::Duration;

use portcullis_async::{Acquire, KeyedQueue, Oversized, Queue, QueueKey, Rejected};
use portcullis_core::keyed::{Address, Line, RandomSeed, WithTotal};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::state::Carry;
use portcullis_core::{
    AdjustableBucket, AllOf, Clock, Concurrency, Denied, Keyed, KeyedArray, Lease, Limiter,
    ManualClock, Penalty, Rate, Retry, Timestamp, TokenBucket,
};
use support::random::Random;
use support::{Hand, SECOND, START, Task, now, permits};

const fn s(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn paused<L>(limiter: L) -> Penalty<L> {
    let pause = Penalty::builder(3_600 * SECOND).started_by_hand();
    pause.build().unwrap().around(limiter)
}

fn pause<L: QueueLimiter>(queue: &Queue<Penalty<L>, ManualClock>, until: u64) -> Timestamp {
    let now = queue.clock().now();
    queue.change(|limit| limit.penalize_at(now, s(until)))
}

fn late(retry: Retry) -> Result<u32, Rejected> {
    Err(Rejected::Deadline { permits: 1, retry })
}

#[test]
fn permits_that_are_released_in_a_pause_are_granted_at_its_end() {
    for released in [5, 20] {
        let rate = TokenBucket::new(Rate::per_second(1), 10);
        let limits = AllOf::new((rate, Concurrency::new(1)));
        let queue = Queue::new(paused(limits), ManualClock::new(), 9);
        let held = now(queue.acquire(1)).unwrap();
        let [first, mut second] = [(); 2].map(|()| Task::waiting(queue.acquire(1)));
        queue.clock().set(s(5));
        assert_eq!(pause(&queue, 30), s(30));
        queue.clock().set(s(released));
        drop(held);
        for at in [s(released), Timestamp::from_nanos(29_999_999_999)] {
            queue.clock().set(at);
            queue.advance();
            assert_eq!((first.wakes(), second.is_pending()), (0, true), "at {at:?}");
            assert!(matches!(
                queue.try_acquire(1),
                Err(Denied::Exhausted { .. })
            ));
        }
        queue.clock().set(s(30));
        queue.advance();
        drop(first.outcome().unwrap());
        drop(second.outcome().unwrap());
    }
}

#[test]
fn permits_are_not_handed_over_in_a_pause() {
    let queue = Queue::new(paused(Concurrency::new(1)), ManualClock::new(), 9);
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    _ = pause(&queue, 30);
    drop(held);
    assert_eq!(wait.wakes(), 0);
    queue.clock().set(s(30));
    queue.advance();
    assert!(wait.outcome().is_ok());
}

#[test]
fn requests_whose_deadlines_come_before_the_end_of_a_pause_end_at_once() {
    let queue = Queue::new(paused(Concurrency::new(1)), ManualClock::new(), 99);
    let held = now(queue.acquire(1)).unwrap();
    let until = [29, 30, 31, 10].map(s);
    let [a, b, c, d] = until.map(|at| Task::waiting(queue.acquire(1).until(at)));
    let e = Task::waiting(queue.acquire(1));
    _ = pause(&queue, 30);
    let wakes = [&a, &b, &c, &d].map(Task::wakes);
    assert_eq!((wakes, e.wakes()), ([1, 0, 0, 1], 0));
    let counts = queue.counts();
    assert_eq!((counts.late, counts.waiters, counts.permits), (2, 3, 3));
    // A permit is held, too.
    for left in [a, d] {
        assert_eq!(permits(left.outcome()), late(Retry::OnReleaseFrom(s(30))));
    }
    let new = now(queue.acquire(1).until(s(29)));
    assert_eq!(permits(new), late(Retry::OnReleaseFrom(s(30))));
    drop(held);
    let new = now(queue.acquire(1).until(s(29)));
    assert_eq!(permits(new), late(Retry::At(s(30))));
    // A pardon comes too late for them, and not for the others.
    queue.change(Penalty::pardon);
    for granted in [b, c] {
        assert_eq!(permits(granted.outcome()), Ok(1));
    }
    assert_eq!(permits(e.outcome()), Ok(1));
}

/// A pause denies first, and so hides that a request is too large.
#[test]
fn a_limit_that_is_lowered_in_a_pause_rejects_what_exceeds_it_at_once() {
    let limit = paused(AdjustableBucket::new(Rate::per_second(1_000), 4));
    let queue = Queue::new(limit, Hand::new(), 99);
    _ = queue.change(|limit| limit.penalize_at(START, s(30)));
    let large = Task::waiting(queue.acquire(4));
    let mut small = Task::waiting(queue.acquire(1));
    let lower = |bucket: &AdjustableBucket| {
        bucket.adjust_at(START, Rate::per_second(1_000), 1, Carry::Keep)
    };
    queue.change(|limit| lower(limit.limiter())).unwrap();
    let exceeds = Err(Rejected::ExceedsCapacity {
        permits: 4,
        capacity: 1,
    });
    assert_eq!(permits(large.outcome()), exceeds);
    assert!(small.is_pending());
    queue.clock().run(s(30));
    assert_eq!(permits(small.outcome()), Ok(1));
}

#[test]
fn a_request_that_is_larger_than_a_paused_total_delays_no_other_key() {
    let rate = paused(TokenBucket::new(Rate::per_second(1_000), 9));
    let total = AllOf::new((rate, Concurrency::new(1)));
    let each = Keyed::for_keys(Concurrency::new(9), 100);
    let hosts = WithTotal::new(each, total).with_weights(|_: &Address| 5_u32);
    let queue = KeyedQueue::new(hosts, Hand::new(), 99).with_oversized(Oversized::Wait);
    _ = queue.change(|hosts| hosts.total().limits().0.penalize_at(START, s(30)));
    let mut large = Task::waiting(queue.acquire("a", 2));
    let mut small = Task::waiting(queue.acquire("b", 1));
    queue.clock().run(s(30));
    // One of the two drives the queue.
    assert!(large.is_pending());
    _ = small.poll().map(|lease| assert_eq!(permits(lease), Ok(1)));
    assert_eq!(queue.counts().granted, 1);
}

#[test]
fn all_of_many_requests_end_in_one_call() {
    let queue = Queue::new(paused(Concurrency::new(1)), ManualClock::new(), 9_999);
    let _held = now(queue.acquire(1)).unwrap();
    let waits: Vec<_> = (0..500)
        .map(|n| Task::waiting(queue.acquire(1).until(s(20 + n % 20))))
        .collect();
    _ = pause(&queue, 30);
    // Each wait that is dropped serves the queue, too.
    let wakes: Vec<_> = waits.iter().map(Task::wakes).collect();
    let late: Vec<_> = (0..500).map(|n| usize::from(n % 20 < 10)).collect();
    assert_eq!(wakes, late);
    assert_eq!(queue.counts().late, 250);
}

#[test]
fn a_request_that_ends_makes_way_for_those_behind_it() {
    // Two permits are free, and the head asks for three.
    let bucket = AdjustableBucket::new(Rate::per_second(1), 3);
    let queue = Queue::new(bucket, ManualClock::new(), 99);
    let _ = now(queue.acquire(3)).unwrap();
    let head = Task::waiting(queue.acquire(3).until(s(3)));
    let [one, other] = [(); 2].map(|()| Task::waiting(queue.acquire(1).until(s(5))));
    queue.clock().set(s(2));
    queue.advance();
    assert_eq!(one.wakes() + other.wakes(), 0);
    let slow = Rate::new(1, 10 * SECOND);
    queue
        .change(|bucket| bucket.adjust_at(s(2), slow, 3, Carry::Keep))
        .unwrap();
    assert!(matches!(head.outcome(), Err(Rejected::Deadline { .. })));
    assert!(one.outcome().is_ok() && other.outcome().is_ok());
}

#[test]
fn a_request_that_could_be_in_time_by_itself_goes_on_waiting() {
    // The request before it may leave.
    let bucket = AdjustableBucket::new(Rate::per_second(1), 9);
    let queue = Queue::new(bucket, ManualClock::new(), 99);
    let _ = now(queue.acquire(9)).unwrap();
    let first = Task::waiting(queue.acquire(1));
    let second = Task::waiting(queue.acquire(1).until(s(15)));
    let third = Task::waiting(queue.acquire(1).until(s(9)));
    let slow = Rate::new(1, 10 * SECOND);
    queue
        .change(|bucket| bucket.adjust_at(START, slow, 9, Carry::Keep))
        .unwrap();
    assert_eq!((second.wakes(), third.wakes()), (0, 1));
    drop(first);
    queue.clock().set(s(10));
    queue.advance();
    assert!(second.outcome().is_ok());
}

#[cfg(feature = "shedding")]
#[test]
fn a_request_that_would_be_shed_before_the_end_of_a_pause_is_shed_at_once() {
    let shedding = portcullis_async::Shedding::controlled_delay(SECOND, 5 * SECOND);
    let queue = Queue::new(paused(Concurrency::new(1)), ManualClock::new(), 99);
    let queue = queue.with_shedding(shedding);
    let _held = now(queue.acquire(1)).unwrap();
    let sheds = Task::waiting(queue.acquire(1));
    _ = pause(&queue, 30);
    assert!(matches!(sheds.outcome(), Err(Rejected::Shed { .. })));
    assert_eq!((queue.counts().shed, queue.counts().late), (1, 0));
}

#[test]
fn a_deadline_far_beyond_a_pause_is_waited_for_where_its_word_wraps() {
    // 2^32 us are 4,295 s.
    let pause = Penalty::builder(60 * SECOND).tick(Duration::from_micros(1));
    let pause = pause.started_by_hand().build_on::<u32>().unwrap();
    for within in [100, 2_000, 4_300, 4_330, 9_000, 1 << 33].map(Duration::from_secs) {
        let queue = Queue::new(pause.around(Concurrency::new(1)), ManualClock::new(), 9)
            .with_oversized(Oversized::Wait);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1).within(within));
        queue.change(|limit| limit.penalize_at(START, s(40)));
        let other = Task::waiting(queue.acquire(1).within(within));
        // It waits for a larger limit. No other answer tells when the pause ends.
        let _larger = Task::waiting(queue.acquire(2).within(within));
        assert_eq!(wait.wakes(), 0, "{within:?}");
        drop(held);
        queue.clock().set(s(40));
        queue.advance();
        assert_eq!(permits(wait.outcome()), Ok(1));
        assert_eq!(permits(other.outcome()), Ok(1));
    }
}

#[test]
fn the_longer_of_two_pauses_counts_while_a_permit_is_held() {
    for longer in [30, 50] {
        let limits = AllOf::new((paused(Concurrency::new(1)), paused(Concurrency::new(9))));
        let queue = Queue::new(limits, ManualClock::new(), 9);
        let _held = now(queue.acquire(1)).unwrap();
        let [a, b] = [45, 55].map(|at| Task::waiting(queue.acquire(1).until(s(at))));
        queue.change(|limits| {
            limits.limits().0.penalize_at(START, s(80 - longer));
            limits.limits().1.penalize_at(START, s(longer));
        });
        assert_eq!((a.wakes(), b.wakes()), (1, 0));
    }
}

#[test]
fn a_request_that_waits_for_a_larger_limit_ends_with_the_others() {
    let queue = Queue::new(paused(Concurrency::new(2)), ManualClock::new(), 9);
    let queue = queue.with_oversized(Oversized::Wait);
    let [a, b] = [20, 40].map(|at| Task::waiting(queue.acquire(3).until(s(at))));
    _ = pause(&queue, 30);
    assert_eq!((a.wakes(), b.wakes()), (1, 0));
    assert!(now(queue.acquire(3).until(s(20))).is_err());
}

#[test]
fn a_change_after_which_all_requests_can_be_in_time_ends_none() {
    let queue = Queue::new(paused(Concurrency::new(1)), ManualClock::new(), 99);
    let held = now(queue.acquire(1)).unwrap();
    let waits = [1, 2, 3].map(|at| Task::waiting(queue.acquire(1).until(s(at))));
    queue.change(|_| ());
    _ = pause(&queue, 1);
    assert!(waits.iter().all(|wait| wait.wakes() == 0));
    queue.clock().set(s(1));
    drop(held);
    assert_eq!(waits.map(|wait| permits(wait.outcome())), [Ok(1); 3]);
}

type Host = Penalty<AllOf<(TokenBucket, Concurrency)>>;
type Hosts = KeyedArray<Host, Box<[Host]>, Box<[Line]>, RandomSeed>;
type Crawler = KeyedQueue<WithTotal<Hosts, Penalty<Concurrency>>, ManualClock>;

/// Of each host two per second and two at once, and three at once in total.
fn crawler() -> Crawler {
    let host = || {
        let rate = TokenBucket::new(Rate::per_second(2), 1);
        paused(AllOf::new((rate, Concurrency::new(2))))
    };
    let hosts = KeyedArray::for_keys(host, 100);
    let hosts = WithTotal::new(hosts, paused(Concurrency::new(3)));
    KeyedQueue::new(hosts, ManualClock::new(), 100).with_slack(Duration::ZERO)
}

fn pause_host(queue: &Crawler, host: &str, until: u64) {
    let now = queue.clock().now();
    let paused = queue.change(|hosts| {
        hosts
            .table()
            .change_key_at(now, host, |host| host.penalize_at(now, s(until)))
    });
    assert_eq!(paused, Ok(s(until)));
}

type Page<'q> = Task<Acquire<QueueKey<&'q Crawler>>>;

fn fetched(page: Page<'_>) -> Lease<QueueKey<&Crawler>> {
    page.outcome().unwrap()
}

#[test]
fn a_paused_key_waits_and_holds_no_place_of_the_others() {
    let queue = crawler();
    let [a, b] = ["a", "b"].map(|host| now(queue.acquire(host, 1)).unwrap());
    let [of_a, of_b] = ["a", "b"].map(|host| Task::waiting(queue.acquire(host, 1)));
    let hurried = Task::waiting(queue.acquire("a", 1).within(9 * SECOND));
    pause_host(&queue, "a", 10);
    assert!(matches!(hurried.outcome(), Err(Rejected::Deadline { .. })));
    queue.clock().set(Timestamp::from_millis(500));
    queue.advance();
    assert_eq!((of_a.wakes(), of_b.wakes()), (0, 1));
    let b = [b, fetched(of_b)];
    drop(a);
    // The places that `a` has left are used.
    let [c, d] = ["c", "d"].map(|host| Task::new(queue.acquire(host, 1)));
    drop(fetched(c));
    drop(fetched(d));
    drop(b);
    queue.clock().set(s(10));
    queue.advance();
    drop(fetched(of_a));
}

#[test]
fn a_key_that_has_sent_nothing_can_be_paused() {
    let queue = crawler();
    pause_host(&queue, "a", 10);
    assert!(matches!(
        queue.try_acquire("a", 1),
        Err(Denied::Penalized { .. })
    ));
    let mut wait = Task::waiting(queue.acquire("a", 1));
    assert!(now(queue.acquire("a", 1).until(s(9))).is_err());
    queue.clock().set(Timestamp::from_millis(9_999));
    queue.advance();
    assert!(wait.is_pending());
    queue.clock().set(s(10));
    queue.advance();
    drop(fetched(wait));
}

#[test]
fn a_pause_of_the_total_is_one_of_all_keys() {
    let queue = crawler();
    let held = ["a", "b", "c"].map(|host| now(queue.acquire(host, 1)).unwrap());
    let waits = ["a", "d", "e"].map(|host| Task::waiting(queue.acquire(host, 1)));
    let hurried = ["d", "f"].map(|host| Task::waiting(queue.acquire(host, 1).until(s(9))));
    let paused = queue.change(|hosts| hosts.total().penalize_at(START, s(10)));
    assert_eq!(paused, s(10));
    for hurried in hurried {
        assert!(matches!(hurried.outcome(), Err(Rejected::Deadline { .. })));
    }
    drop(held);
    queue.clock().set(s(9));
    queue.advance();
    assert!(waits.iter().all(|wait| wait.wakes() == 0));
    queue.clock().set(s(10));
    queue.advance();
    assert!(waits.iter().all(|wait| wait.wakes() == 1));
    for wait in waits {
        drop(fetched(wait));
    }
}

/// A page that waits: its deadline in milliseconds, if it has one.
struct Waits<'q> {
    page: Task<Acquire<QueueKey<&'q Crawler50>>>,
    until: u64,
}

type Crawler50 = KeyedQueue<WithTotal<Hosts, Concurrency>, Hand>;

/// What the world saw of a host: when pages were sent to it, and until when it is left alone.
#[derive(Default)]
struct Seen {
    sent: Vec<u64>,
    alone_until: u64,
    late: u64,
}

/// Of each of 50 hosts two pages per second and four at once, and 40 pages at once in total. One
/// reply of six asks to be left alone for 1 to 8 s. Returns the number of requests that ended
/// before their deadlines.
fn crawl(seed: u64, closes_at: u64) -> u64 {
    const HOSTS: usize = 50;
    let host = || {
        let rate = TokenBucket::new(Rate::per_second(2), 1);
        paused(AllOf::new((rate, Concurrency::new(4))))
    };
    let hosts = WithTotal::new(KeyedArray::for_keys(host, 1_000), Concurrency::new(40));
    let queue = KeyedQueue::new(hosts, Hand::new(), 1_000).with_slack(Duration::ZERO);
    let queue: &'static Crawler50 = support::leaked(Box::new(queue));
    queue.attend();
    let mut random = Random::new(seed);
    let millis = Timestamp::from_millis;
    let new = |host: usize, until: u64| {
        let page = match until {
            u64::MAX => Task::new(queue.acquire(&host, 1)),
            _ => Task::new(queue.acquire(&host, 1).until(millis(until))),
        };
        page.start();
        Waits { page, until }
    };
    let mut waits: Vec<Vec<Waits<'_>>> = (0..HOSTS)
        .map(|host| {
            let until = |random: &mut Random| {
                if random.one_in(4) {
                    1_000 + random.below(30_000)
                } else {
                    u64::MAX
                }
            };
            (0..20).map(|_| new(host, until(&mut random))).collect()
        })
        .collect();
    let mut seen: Vec<_> = (0..HOSTS).map(|_| Seen::default()).collect();
    // The pages under way: their ends, and their hosts.
    let mut out = Vec::new();
    let (mut at, mut early, mut ended) = (0, 0, 0);
    while !(out.is_empty() && waits.iter().all(Vec::is_empty)) {
        if at >= closes_at && !queue.is_closed() {
            queue.close();
        }
        for (host, (waits, seen)) in waits.iter_mut().zip(&mut seen).enumerate() {
            let mut ahead = 0;
            waits.retain_mut(|Waits { page, until }| match page.settled() {
                None => {
                    ahead += 1;
                    true
                }
                Some(Ok(lease)) => {
                    assert!(at >= seen.alone_until, "host {host} is to be left alone");
                    assert!(seen.sent.last().is_none_or(|last| at - last >= 500));
                    seen.sent.push(at);
                    out.push((at + 500 + random.below(2_500), host, lease));
                    false
                }
                Some(Err(Rejected::Deadline { .. })) => {
                    early += u64::from(at < *until);
                    // At the start all wait in one line. Later, a pause judges each by itself.
                    let ahead = if at == 0 { ahead } else { 0 };
                    let sent = seen.sent.last().map(|last| last + 500);
                    let by_rate = sent.unwrap_or(0) + 500 * ahead;
                    assert!(
                        at >= *until || *until < seen.alone_until.max(by_rate),
                        "host {host} at {at}"
                    );
                    seen.late += 1;
                    false
                }
                Some(Err(Rejected::Closed { .. })) => {
                    ended += 1;
                    false
                }
                Some(Err(other)) => panic!("{other}"),
            });
            assert!(
                waits
                    .iter()
                    .all(|wait| wait.until >= seen.alone_until.max(at))
            );
            assert!(out.iter().filter(|(_, of, _)| *of == host).count() <= 4);
        }
        // What was granted at this instant was granted before the replies of this instant.
        let replies: Vec<_> = out.extract_if(.., |(end, ..)| *end <= at).collect();
        let has_replies = !replies.is_empty();
        for (_, host, lease) in replies {
            if random.one_in(6) {
                let until = at + 1_000 * (1 + random.below(8));
                let now = millis(at);
                let pause = |limit: &Host| limit.penalize_at(now, millis(until));
                let ends = queue.change(|hosts| hosts.table().change_key_at(now, &host, pause));
                seen[host].alone_until = seen[host].alone_until.max(until);
                assert_eq!(ends, Ok(millis(seen[host].alone_until)));
                // It is asked for again.
                if !queue.is_closed() {
                    waits[host].push(new(host, u64::MAX));
                }
            }
            drop(lease);
        }
        if has_replies {
            continue;
        }
        assert!(out.len() <= 40 && (!queue.is_closed() || waits.iter().all(Vec::is_empty)));
        // A place is free only if no page that waits could have it.
        for host in (0..HOSTS).filter(|&host| out.len() < 40 && !waits[host].is_empty()) {
            let own = queue.change(|hosts| hosts.table().key(&host).available_at(millis(at)));
            assert_eq!(
                own, 0,
                "a page of host {host} waits beside a free place at {at}"
            );
        }
        let alarm = queue.clock().alarm();
        let alarm = alarm.map_or(u64::MAX, |alarm| alarm.as_nanos().div_ceil(1_000_000));
        let reply = out.iter().map(|(end, ..)| *end).min().unwrap_or(u64::MAX);
        let next = reply.min(alarm).min(closes_at.max(at + 1)).max(at + 1);
        assert!(next < u64::MAX, "the queue stands still");
        at = next;
        queue.clock().run(millis(at));
    }
    assert_eq!((now(queue.drained()), queue.counts().waiters), ((), 0));
    let counts = queue.counts();
    let late: u64 = seen.iter().map(|host| host.late).sum();
    assert_eq!((counts.late, counts.closed), (late, ended));
    early
}

#[test]
fn a_crawler_of_50_hosts_leaves_each_alone_as_asked_and_fills_all_places() {
    let early: u64 = (0..3).map(|seed| crawl(seed, u64::MAX)).sum();
    assert!(early > 20, "{early} requests have ended early");
}

#[test]
fn a_crawler_that_closes_amid_pauses_ends_all_waits_and_is_drained() {
    for seed in 0..5 {
        _ = crawl(seed, 7_000 + seed * 1_000);
    }
}
