//! Channels whose senders wait for room, and then for permits: which sender is granted, in which
//! order, and what is returned.
#![cfg(feature = "channel")]

mod support;

use core::cell::Cell;
use core::num::NonZero;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_executor::LocalPool;
use futures_util::StreamExt;
use futures_util::stream::FusedStream;
use futures_util::task::LocalSpawnExt;
use portcullis_async::channel::{
    Permit, Receiver, SendError, Sender, TryRecvError, TrySendError, channel,
};
use portcullis_async::{
    Acquire, KeyedQueue, Next, Order, PerItem, Queue, QueueKey, Refused, Rejected, ThreadTimer,
};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    Concurrency, Denied, Keyed, Limiter, ManualClock, Rate, Retry, Timestamp, TokenBucket,
};
use support::{Hand, Manual, START, Task, available, now, queue, waker};

const fn places(n: u32) -> NonZero<u32> {
    NonZero::new(n).unwrap()
}

const fn secs(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A bucket of one token per second, full at first.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_second(1), burst)
}

/// For tests of the room only.
fn plenty() -> Manual {
    queue(Concurrency::new(PLENTY), 1_000)
}

const PLENTY: u32 = 1_000;

type Weigh = fn(&u32) -> u32;

type Numbers<'q, L> = (
    Sender<u32, &'q Manual<L>, Weigh>,
    Receiver<u32, &'q Manual<L>>,
);

/// Each number is its own weight.
fn numbers<L: QueueLimiter>(queue: &Manual<L>, capacity: u32) -> Numbers<'_, L> {
    channel(queue, places(capacity), |n| *n)
}

/// Once the channel is empty and has no senders: checks that all permits and all places are free.
#[track_caller]
fn all_is_back(
    sender: &Sender<u32, &Manual, Weigh>,
    receiver: &Receiver<u32, &Manual>,
    queue: &Manual,
    (capacity, permits): (u32, u64),
) {
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    assert_eq!((available(queue), queue.counts().waiters), (permits, 0));
    for _ in 0..capacity {
        assert_eq!(sender.try_send(0), Ok(()), "no place may be lost");
    }
    assert_eq!(
        sender.try_send(0),
        Err(TrySendError::Full(0)),
        "no place may be added"
    );
    for _ in 0..capacity {
        assert_eq!(receiver.try_recv(), Ok(0));
    }
}

/// Counts the existing items of its kind.
struct Item(Arc<()>);

/// Runs `f`, which must panic.
#[track_caller]
fn panics<T>(f: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(f)).is_err(), "has to panic");
}

/// A waker that panics, unless another panic is under way.
fn panics_when_woken() -> Waker {
    waker(|| assert!(std::thread::panicking(), "on purpose"))
}

const fn closed(permits: u32) -> Rejected {
    Rejected::Closed { permits }
}

fn refused<T>(item: T, rejected: Rejected) -> Result<(), SendError<T>> {
    Err(SendError::Refused(Refused { item, rejected }))
}

#[test]
fn channels_and_their_futures_can_be_shared_and_sent() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>(_: &T) {}
    fn cloned<T: Clone>() {}
    fn of<W: Send + Sync + 'static>() {
        shared::<Sender<Cell<u8>, Arc<Manual>, W>>();
        shared::<Sender<Cell<u8>, &'static Manual<TokenBucket>, W>>();
        shared::<Permit<'static, u8, Arc<Manual>, W>>();
    }
    of::<PerItem>();
    of::<fn(&u8) -> u32>();
    shared::<Receiver<Cell<u8>, Arc<Manual>>>();
    shared::<Receiver<Cell<u8>, &'static Manual<TokenBucket>>>();
    shared::<SendError<u8>>();
    shared::<TrySendError<u8>>();
    let queue = plenty();
    let (sender, receiver) = channel(&queue, places(1), PerItem);
    // Values that can be sent but not shared.
    sent(&sender.send(Cell::new(1)));
    sent(&sender.reserve(1));
    sent(&receiver.recv());
    sent(&receiver.recv_leased());
    cloned::<Receiver<Item, &Manual>>();
    cloned::<Sender<Item, &Manual>>();
}

mod at_once {
    use super::*;

    #[test]
    fn a_full_channel_a_denial_and_a_closed_channel_are_distinct_errors() {
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = channel(&queue, places(2), PerItem);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(sender.try_send('a'), Ok(()));
        let elsewhere = queue.try_acquire(1).unwrap();
        let denied = Denied::Exhausted {
            now: START,
            permits: 1,
        };
        assert_eq!(
            sender.try_send('b'),
            Err(TrySendError::Denied { item: 'b', denied })
        );
        assert_eq!(denied.retry(&queue), Retry::OnRelease);
        drop(elsewhere);
        assert_eq!(sender.try_send('b'), Ok(()));
        // There are no permits either: the error is about the room.
        assert_eq!(
            (sender.try_send('c'), available(&queue)),
            (Err(TrySendError::Full('c')), 0)
        );
        sender.close();
        assert_eq!(sender.try_send('c'), Err(TrySendError::Closed('c')));
        assert_eq!(
            [receiver.try_recv(), receiver.try_recv()],
            [Ok('a'), Ok('b')]
        );
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(
            sender.try_send('c'),
            Err(TrySendError::Closed('c')),
            "also if there is room"
        );
        assert_eq!(available(&queue), 2);
    }

    #[test]
    fn a_denied_send_takes_no_place_and_a_full_channel_takes_no_permits() {
        let queue = queue(Concurrency::new(3), 99);
        let (sender, receiver) = numbers(&queue, 2);
        for _ in 0..5 {
            assert!(matches!(
                sender.try_send(4),
                Err(TrySendError::Denied { item: 4, .. })
            ));
        }
        assert_eq!([sender.try_send(1), sender.try_send(1)], [Ok(()), Ok(())]);
        for _ in 0..5 {
            assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
        }
        assert_eq!(available(&queue), 1);
        assert_eq!([receiver.try_recv(), receiver.try_recv()], [Ok(1), Ok(1)]);
        all_is_back(&sender, &receiver, &queue, (2, 3));
    }

    #[test]
    fn no_try_overtakes_waiters_for_room_or_permits() {
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = numbers(&queue, 2);
        assert_eq!([sender.try_send(1), sender.try_send(1)], [Ok(()), Ok(())]);
        let waits = Task::waiting(sender.send(2));
        assert_eq!(receiver.try_recv(), Ok(1));
        // The free place belongs to the waiter.
        assert_eq!(
            (waits.wakes(), sender.try_send(1)),
            (1, Err(TrySendError::Full(1)))
        );
        let mut waits = waits;
        assert!(waits.is_pending(), "one permit is free, and it needs two");
        assert_eq!(receiver.try_recv(), Ok(1));
        assert_eq!(waits.outcome(), Ok(()));
        let _other = Task::waiting(sender.send(1));
        assert_eq!(
            sender.try_send(0),
            Err(TrySendError::Full(0)),
            "has a place, and waits for permits"
        );
    }

    #[test]
    fn a_limiter_with_other_waiters_denies() {
        let queue = queue(Concurrency::new(3), 99);
        let (sender, _receiver) = numbers(&queue, 9);
        assert_eq!(sender.try_send(2), Ok(()));
        let _waits = Task::waiting(sender.send(2));
        assert!(matches!(
            sender.try_send(1),
            Err(TrySendError::Denied { item: 1, .. })
        ));
        assert_eq!(
            (available(&queue), sender.try_send(0)),
            (1, Ok(())),
            "an item of weight zero passes"
        );
    }

    #[test]
    fn a_rate_denies_with_a_retry() {
        let queue = queue(bucket(1), 99);
        let (sender, _receiver) = channel(&queue, places(9), PerItem);
        assert_eq!(sender.try_send(1), Ok(()));
        let Err(TrySendError::Denied { item: 2, denied }) = sender.try_send(2) else {
            panic!("empty")
        };
        assert_eq!(denied.retry(&queue), Retry::At(secs(1)));
        queue.clock().set(secs(1));
        assert_eq!(sender.try_send(2), Ok(()));
    }

    #[test]
    fn a_closed_queue_of_permits_denies_permanently_and_the_channel_stays_open() {
        let queue = queue(Concurrency::new(3), 99);
        let (sender, receiver) = numbers(&queue, 2);
        assert_eq!(sender.try_send(1), Ok(()));
        queue.close();
        let Err(TrySendError::Denied { item: 1, denied }) = sender.try_send(1) else {
            panic!("closed")
        };
        assert_eq!(
            (denied.retry(&queue), sender.is_closed()),
            (Retry::Never, false)
        );
        assert_eq!((sender.try_send(0), receiver.try_recv()), (Ok(()), Ok(1)));
        assert_eq!((receiver.try_recv(), available(&queue)), (Ok(0), 3));
    }

    #[test]
    fn any_capacity_is_exact() {
        let queue = plenty();
        for capacity in [1, 2, 3, 7, 8, 100] {
            let (sender, receiver) = numbers(&queue, capacity);
            for _ in 0..3 {
                all_is_back(&sender, &receiver, &queue, (capacity, PLENTY.into()));
            }
        }
    }
}

#[test]
#[should_panic = "limit must be at most"]
fn a_capacity_that_is_too_large_panics() {
    // Before anything is allocated.
    let queue = plenty();
    drop(channel::<u8, _, _>(&queue, NonZero::<u32>::MAX, PerItem));
}

mod waits {
    use super::*;

    #[test]
    fn a_send_waits_for_room_first_and_takes_no_permits_in_the_meantime() {
        let queue = queue(Concurrency::new(3), 99);
        let (sender, receiver) = numbers(&queue, 1);
        assert_eq!(now(sender.send(1)), Ok(()));
        let mut second = Task::waiting(sender.send(3));
        assert_eq!(
            (available(&queue), queue.counts().waiters),
            (2, 0),
            "does not queue for them either"
        );
        let elsewhere = queue.try_acquire(2).unwrap();
        assert_eq!(now(receiver.recv()), Some(1));
        assert!(second.is_pending());
        assert_eq!((available(&queue), queue.counts().waiters), (1, 1));
        drop(elsewhere);
        assert_eq!(second.outcome(), Ok(()));
        assert_eq!((available(&queue), now(receiver.recv())), (0, Some(3)));
        all_is_back(&sender, &receiver, &queue, (1, 3));
    }

    #[test]
    fn a_sender_is_woken_once_for_its_place_and_once_for_its_permits() {
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = numbers(&queue, 2);
        for _ in 0..2 {
            assert_eq!(now(sender.send(0)), Ok(()));
        }
        let mut elsewhere = queue.try_acquire(2).unwrap();
        let mut writer = Task::waiting(sender.send(2));
        let mut behind = Task::waiting(sender.send(1));
        let beside = queue.try_acquire(0);
        drop(beside);
        assert_eq!(writer.wakes(), 0);
        assert_eq!(receiver.try_recv(), Ok(0));
        assert_eq!((writer.wakes(), behind.wakes()), (1, 0));
        assert!(writer.is_pending());
        // Other events: to the room, to some of the permits.
        assert_eq!(receiver.try_recv(), Ok(0));
        assert!(behind.is_pending());
        elsewhere.release(1).unwrap();
        drop(Task::waiting(sender.send(1)));
        assert_eq!((writer.wakes(), behind.wakes()), (1, 1));
        drop(elsewhere);
        assert_eq!((writer.wakes(), behind.wakes()), (2, 1));
        assert_eq!(writer.poll(), Poll::Ready(Ok(())));
        assert_eq!(receiver.try_recv(), Ok(2));
        assert_eq!((writer.wakes(), behind.wakes()), (2, 2));
        assert_eq!(behind.outcome(), Ok(()));
    }

    #[test]
    fn a_send_polled_without_progress_waits_on_and_is_woken_once() {
        let queue = queue(Concurrency::new(1), 99);
        let (sender, receiver) = numbers(&queue, 1);
        let mut reader = Task::waiting(receiver.recv());
        let held = queue.try_acquire(1).unwrap();
        let mut writer = Task::waiting(sender.send(1));
        for _ in 0..9 {
            assert!(writer.is_pending() && reader.is_pending());
        }
        assert_eq!(
            (writer.wakes(), reader.wakes(), queue.counts().waiters),
            (0, 0, 1)
        );
        drop(held);
        assert_eq!(writer.poll(), Poll::Ready(Ok(())));
        assert_eq!((writer.wakes(), reader.wakes()), (1, 1));
        assert_eq!(reader.outcome(), Some(1));
    }

    #[test]
    fn a_send_moves_to_another_task_with_its_waker_at_each_stage() {
        let queue = queue(Concurrency::new(1), 99);
        let (sender, receiver) = numbers(&queue, 1);
        assert_eq!(now(sender.send(1)), Ok(()));
        let mut writer = Task::waiting(sender.send(1));
        let woken = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&woken);
        let other = waker(move || {
            counting.fetch_add(1, Ordering::Relaxed);
        });
        assert!(writer.poll_with(&other).is_pending());
        let held = Task::waiting(queue.acquire(1));
        assert_eq!(receiver.try_recv(), Ok(1));
        assert_eq!((writer.wakes(), woken.load(Ordering::Relaxed)), (0, 1));
        assert!(writer.is_pending() && writer.poll_with(&other).is_pending());
        drop(held);
        assert_eq!((writer.wakes(), woken.load(Ordering::Relaxed)), (0, 2));
        // And for the end of the channel.
        let elsewhere = queue.try_acquire(1);
        assert_eq!(
            (elsewhere.is_err(), writer.poll()),
            (true, Poll::Ready(Ok(())))
        );
        let second = queue.acquire(1);
        let (sender, receiver) = numbers(&queue, 1);
        let mut writer = Task::waiting(sender.send(1));
        assert!(writer.poll_with(&other).is_pending());
        receiver.close();
        assert_eq!((writer.wakes(), woken.load(Ordering::Relaxed)), (0, 3));
        drop(second);
    }

    #[test]
    fn senders_are_served_in_their_order() {
        let queue = queue(Concurrency::new(3), 99);
        let (sender, receiver) = numbers(&queue, 3);
        let other = sender.clone();
        assert_eq!(now(sender.send(3)), Ok(()));
        // The first two have places; the others wait for room.
        let mut writers: Vec<_> = [2, 1, 3, 1, 1]
            .iter()
            .enumerate()
            .map(|(number, n)| {
                Task::waiting(if number % 2 == 0 { &sender } else { &other }.send(*n))
            })
            .collect();
        let mut received = Vec::new();
        while let Ok(item) = receiver.try_recv() {
            received.push(item);
            // Polled from the last to the first: the places stay with their waiters.
            writers.reverse();
            writers.retain_mut(|writer| writer.is_pending());
            writers.reverse();
        }
        assert!(writers.is_empty());
        // Senders that got both at the same moment send when their task runs: the pairs that fit at
        // once, last to first.
        assert_eq!(received, [3, 1, 2, 3, 1, 1]);
    }

    #[test]
    fn each_sender_is_woken_in_turn_and_no_other_with_it() {
        let queue = plenty();
        let (sender, receiver) = channel(&queue, places(1), PerItem);
        assert_eq!(now(sender.send(0)), Ok(()));
        let mut writers: Vec<_> = (1..6)
            .map(|number| Task::waiting(sender.send(number)))
            .collect();
        for number in 1..6 {
            assert_eq!(now(receiver.recv()), Some(number - 1));
            let wakes: Vec<_> = writers.iter().map(Task::wakes).collect();
            assert_eq!(wakes.iter().sum::<usize>(), 1, "{wakes:?}");
            assert_eq!((wakes[0], writers.remove(0).outcome()), (1, Ok(())));
        }
    }

    #[test]
    fn a_place_can_be_reserved_for_an_item_made_later() {
        let queue = queue(Concurrency::new(5), 99);
        let (sender, receiver) = numbers(&queue, 1);
        let permit = now(sender.reserve(3)).unwrap();
        assert_eq!(
            (available(&queue), sender.try_send(1)),
            (2, Err(TrySendError::Full(1)))
        );
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        // The permit covers the reserved weight, whatever the item weighs.
        assert_eq!((permit.send(100), available(&queue)), (Ok(()), 2));
        let (item, lease) = now(receiver.recv_leased()).unwrap();
        assert_eq!((item, lease.permits()), (100, 3));
        drop(lease);
        let permit = now(sender.reserve(5)).unwrap();
        let mut second = Task::waiting(sender.reserve(0));
        drop(permit);
        assert_eq!((second.wakes(), available(&queue)), (1, 5));
        assert!(
            matches!(second.poll(), Poll::Ready(Ok(_))),
            "and drops that item, too"
        );
        all_is_back(&sender, &receiver, &queue, (1, 5));
    }

    #[test]
    fn an_unused_place_refunds_what_a_rate_accepts() {
        let queue = queue(bucket(3), 99);
        let (sender, receiver) = numbers(&queue, 1);
        let permit = sender.try_reserve(2).unwrap();
        assert_eq!(
            (available(&queue), sender.try_reserve(0).unwrap_err()),
            (1, TrySendError::Full(()))
        );
        drop(permit);
        assert_eq!(available(&queue), 3);
        let permit = now(sender.reserve(2)).unwrap();
        receiver.close();
        assert_eq!(
            (permit.send(2), available(&queue)),
            (Err(SendError::Closed(2)), 3)
        );
        assert_eq!(sender.try_reserve(0).unwrap_err(), TrySendError::Closed(()));
    }

    #[test]
    fn a_place_can_be_taken_at_once() {
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = numbers(&queue, 2);
        let permit = sender.try_reserve(2).unwrap();
        let denied = Denied::Exhausted {
            now: START,
            permits: 1,
        };
        assert_eq!(
            sender.try_reserve(1).unwrap_err(),
            TrySendError::Denied { item: (), denied }
        );
        let nothing = sender.try_reserve(0).unwrap();
        assert_eq!((permit.send(7), nothing.send(8)), (Ok(()), Ok(())));
        let (item, lease) = receiver.try_recv_leased().unwrap();
        assert_eq!((item, lease.permits(), available(&queue)), (7, 2, 0));
        drop(lease);
        assert_eq!(
            receiver
                .try_recv_leased()
                .map(|(item, lease)| (item, lease.permits())),
            Ok((8, 0))
        );
        all_is_back(&sender, &receiver, &queue, (2, 2));
    }

    #[test]
    fn an_executor_polls_a_sender_only_as_often_as_it_waits() {
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = channel(&queue, places(2), PerItem);
        let (sender, receiver) = (Rc::new(sender), Rc::new(receiver));
        let (wrote, read) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        // No task outlives the pool, and the pool does not outlive the queue.
        let mut pool = LocalPool::new();
        pool.run_until(async {
            let write = async {
                for item in 0..100 {
                    sender.send(item).await.unwrap();
                }
                sender.close();
            };
            let read_all = async {
                let mut next = 0;
                while let Some(item) = receiver.recv().await {
                    assert_eq!(item, next);
                    next += 1;
                }
            };
            futures_util::join!(counted(write, &wrote), counted(read_all, &read));
        });
        // Both are one task, and each part wakes the other; two items at a time.
        assert!(
            wrote.get() <= 102 && read.get() <= 102,
            "{} {}",
            wrote.get(),
            read.get()
        );
    }

    async fn counted<F: Future>(future: F, polls: &Cell<usize>) -> F::Output {
        let mut future = core::pin::pin!(future);
        core::future::poll_fn(|context| {
            polls.set(polls.get() + 1);
            future.as_mut().poll(context)
        })
        .await
    }

    #[test]
    fn tasks_on_a_pool_are_polled_once_for_each_wait_by_the_clock() {
        const ITEMS: usize = 20;
        let rate = TokenBucket::new(Rate::per_second(500), 1);
        let queue = Arc::new(Queue::new(rate, ThreadTimer::new(), 99));
        queue.attend_shared();
        let (sender, receiver) = channel(queue, places(3), PerItem);
        let (wrote, read) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let mut pool = LocalPool::new();
        let (counts, start) = ((Rc::clone(&wrote), Rc::clone(&read)), Instant::now());
        pool.spawner()
            .spawn_local(async move {
                let send_all = async {
                    for item in 0..ITEMS {
                        sender.send(item).await.unwrap();
                    }
                };
                counted(send_all, &counts.0).await;
            })
            .unwrap();
        pool.spawner()
            .spawn_local(async move {
                let collect = counted(receiver.collect::<Vec<_>>(), &counts.1);
                assert_eq!(collect.await, (0..ITEMS).collect::<Vec<_>>());
            })
            .unwrap();
        pool.run();
        assert!(start.elapsed().as_millis() >= 2 * (ITEMS as u128 - 1));
        assert!(
            wrote.get() <= ITEMS + 1 && read.get() <= ITEMS + 2,
            "{} {}",
            wrote.get(),
            read.get()
        );
        assert!(wrote.get() >= ITEMS / 4, "the sender must wait");
    }
}

mod reads {
    use super::*;

    #[test]
    fn an_item_holds_its_permits_until_it_is_received() {
        let queue = queue(Concurrency::new(9), 99);
        let (sender, receiver) = numbers(&queue, 5);
        for n in [1, 2, 3] {
            assert_eq!(now(sender.send(n)), Ok(()));
        }
        assert_eq!(
            (available(&queue), receiver.len(), receiver.is_empty()),
            (3, 3, false)
        );
        assert_eq!((receiver.try_recv(), available(&queue)), (Ok(1), 4));
        assert_eq!((now(receiver.recv()), available(&queue)), (Some(2), 6));
        let mut stream = Box::pin(receiver.clone());
        assert_eq!((now(stream.next()), available(&queue)), (Some(3), 9));
        assert_eq!((receiver.len(), receiver.is_empty()), (0, true));
        drop(stream);
        all_is_back(&sender, &receiver, &queue, (5, 9));
    }

    #[test]
    fn a_lease_can_outlive_its_items_place_in_the_channel() {
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = numbers(&queue, 1);
        assert_eq!(now(sender.send(2)), Ok(()));
        let (item, lease) = now(receiver.recv_leased()).unwrap();
        assert_eq!((item, lease.permits(), available(&queue)), (2, 2, 0));
        let next = Task::waiting(sender.send(1));
        assert_eq!(
            queue.counts().waiters,
            1,
            "it has a place, and waits for permits"
        );
        drop(lease);
        assert_eq!(next.outcome(), Ok(()));
        assert_eq!(now(receiver.recv_leased()).unwrap().1.permits(), 1);
        assert_eq!(now(sender.send(0)), Ok(()));
        assert_eq!(now(receiver.recv_leased()).unwrap().1.permits(), 0);
        all_is_back(&sender, &receiver, &queue, (1, 2));
    }

    #[test]
    fn an_item_wakes_one_receiver_once() {
        let queue = plenty();
        let (sender, receiver) = channel(&queue, places(5), PerItem);
        let readers: Vec<_> = (0..3).map(|_| Task::waiting(receiver.recv())).collect();
        for (item, wakes) in [[1, 0, 0], [1, 1, 0], [1, 1, 1]].into_iter().enumerate() {
            assert_eq!(sender.try_send(item), Ok(()));
            assert_eq!(readers.iter().map(Task::wakes).collect::<Vec<_>>(), wakes);
        }
        assert!(
            readers
                .into_iter()
                .map(Task::outcome)
                .eq([Some(0), Some(1), Some(2)])
        );
        let reader = Task::waiting(receiver.recv());
        let mut readers = Box::pin(receiver.clone());
        let mut stream = Task::waiting(readers.next());
        assert_eq!(
            (sender.try_send(3), receiver.try_recv()),
            (Ok(()), Err(TryRecvError::Empty)),
            "the item belongs to the waiting receiver"
        );
        assert_eq!((reader.wakes(), reader.outcome()), (1, Some(3)));
        for other in 0..3 {
            // A stream has no claim to an item until it is polled.
            assert_eq!(
                (sender.try_send(other), receiver.try_recv()),
                (Ok(()), Ok(other))
            );
            assert_eq!(
                (stream.wakes(), stream.is_pending(), stream.is_pending()),
                (other + 1, true, true)
            );
        }
    }

    #[test]
    fn a_stream_is_woken_once_for_an_item_and_ends_without_senders() {
        let queue = queue(Concurrency::new(1), 99);
        let (sender, receiver) = channel(&queue, places(5), PerItem);
        let mut all = Task::waiting(receiver.collect::<Vec<_>>());
        for item in 1..4 {
            assert_eq!(sender.try_send(item), Ok(()));
            assert_eq!((all.wakes(), available(&queue)), (item, 0));
            assert!(all.is_pending());
            assert_eq!(available(&queue), 1);
        }
        drop(sender);
        assert_eq!((all.wakes(), all.outcome()), (4, vec![1, 2, 3]));
    }

    #[test]
    fn each_item_is_received_once_in_the_order_of_its_sender() {
        const EACH: u32 = 500;
        let queue = Queue::new(Concurrency::new(3), ManualClock::new(), 99);
        let (sender, receiver) = channel(&queue, places(2), PerItem);
        let read = std::thread::scope(|scope| {
            for writer in 0..3 {
                let sender = sender.clone();
                scope.spawn(move || {
                    for number in 0..EACH {
                        futures_executor::block_on(sender.send((writer, number))).unwrap();
                    }
                });
            }
            drop(sender);
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    let receiver = receiver.clone();
                    scope.spawn(move || futures_executor::block_on(receiver.collect::<Vec<_>>()))
                })
                .collect();
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap())
                .collect::<Vec<_>>()
        });
        for items in &read {
            for writer in 0..3 {
                assert!(items.iter().filter(|item| item.0 == writer).is_sorted());
            }
        }
        let mut all = read.concat();
        all.sort_unstable();
        let sent = (0..3).flat_map(|writer| (0..EACH).map(move |number| (writer, number)));
        assert!(all.into_iter().eq(sent), "each item once");
        assert_eq!(queue.available(), 3);
    }

    #[test]
    fn only_the_last_receiver_drops_the_items_of_the_channel() {
        let queue = queue(Concurrency::new(9), 99);
        let here = Arc::new(());
        let (sender, receiver) = channel(&queue, places(3), |_: &Item| 2);
        let other = receiver.clone();
        for _ in 0..3 {
            assert!(now(sender.send(Item(Arc::clone(&here)))).is_ok());
        }
        let mut writer = Task::waiting(sender.send(Item(Arc::clone(&here))));
        drop(receiver);
        assert_eq!(
            (
                available(&queue),
                Arc::strong_count(&here),
                sender.is_closed()
            ),
            (3, 5, false)
        );
        assert!(writer.is_pending());
        drop(other);
        assert_eq!(
            (
                available(&queue),
                Arc::strong_count(&here),
                sender.is_closed()
            ),
            (9, 2, true)
        );
        assert_eq!(writer.wakes(), 1);
        let Err(SendError::Closed(item)) = writer.outcome() else {
            panic!("the channel has no receiver")
        };
        assert_eq!(Arc::strong_count(&item.0), 2);
        assert!(matches!(
            sender.try_send(item),
            Err(TrySendError::Closed(_))
        ));
        assert!(!sender.close(), "it is closed already");
    }

    #[test]
    fn without_senders_receivers_take_the_rest_and_then_see_the_end() {
        let queue = plenty();
        let (sender, receiver) = channel(&queue, places(3), PerItem);
        let other = sender.clone();
        assert_eq!([sender.try_send(1), other.try_send(2)], [Ok(()), Ok(())]);
        drop(sender);
        assert_eq!((receiver.try_recv(), receiver.is_closed()), (Ok(1), false));
        drop(other);
        assert_eq!(
            (receiver.is_closed(), receiver.is_terminated()),
            (true, false)
        );
        assert_eq!(
            (now(receiver.recv()), receiver.is_terminated()),
            (Some(2), true)
        );
        assert_eq!(
            (now(receiver.recv()), receiver.try_recv()),
            (None, Err(TryRecvError::Closed))
        );
        assert!(now(receiver.recv_leased()).is_none());
        assert!(!receiver.close());
    }
}

mod weighs {
    use super::*;

    #[test]
    fn an_items_weight_can_be_its_size() {
        let queue = queue(Concurrency::new(10), 99);
        let size = |line: &String| u32::try_from(line.len()).unwrap();
        let (sender, receiver) = channel(&queue, places(9), size);
        assert_eq!(sender.try_send("seven..".to_owned()), Ok(()));
        assert_eq!(available(&queue), 3);
        assert!(matches!(
            sender.try_send("four".to_owned()),
            Err(TrySendError::Denied { .. })
        ));
        let four = Task::waiting(sender.send("four".to_owned()));
        assert_eq!(receiver.try_recv().as_deref(), Ok("seven.."));
        assert_eq!((four.outcome(), available(&queue)), (Ok(()), 6));
    }

    #[test]
    fn an_item_of_weight_zero_passes_whatever_the_limiter_says() {
        let queue = queue(Concurrency::new(1), 99);
        let (sender, receiver) = numbers(&queue, 2);
        let _held = queue.try_acquire(1).unwrap();
        let mut waits = Task::waiting(sender.send(1));
        assert_eq!(
            (now(sender.send(0)), now(receiver.recv())),
            (Ok(()), Some(0))
        );
        assert_eq!(
            (sender.try_send(0), now(receiver.recv())),
            (Ok(()), Some(0))
        );
        now(sender.reserve(0)).unwrap().send(0).unwrap();
        assert_eq!((waits.wakes(), waits.is_pending()), (0, true));
        queue.close();
        assert_eq!(waits.outcome(), refused(1, closed(1)));
        assert_eq!(
            (
                now(receiver.recv()),
                now(sender.send(0)),
                now(receiver.recv())
            ),
            (Some(0), Ok(()), Some(0))
        );
        // But it needs room.
        assert_eq!([sender.try_send(0), sender.try_send(0)], [Ok(()), Ok(())]);
        let _waits = Task::waiting(sender.send(0));
    }

    #[test]
    fn an_item_heavier_than_the_capacity_is_rejected_and_returned() {
        let queue = queue(Concurrency::new(3), 99);
        let (sender, receiver) = numbers(&queue, 1);
        let exceeds = Rejected::ExceedsCapacity {
            permits: 4,
            capacity: 3,
        };
        assert_eq!(now(sender.send(4)), refused(4, exceeds));
        assert_eq!(
            now(sender.reserve(4)).unwrap_err(),
            refused((), exceeds).unwrap_err()
        );
        let denied = Denied::ExceedsCapacity {
            permits: 4,
            capacity: 3,
        };
        assert_eq!(
            sender.try_send(4),
            Err(TrySendError::Denied { item: 4, denied })
        );
        assert_eq!(
            sender.try_send(u32::MAX).map_err(TrySendError::into_item),
            Err(u32::MAX)
        );
        all_is_back(&sender, &receiver, &queue, (1, 3));
        // Also if it had to wait for room first.
        assert_eq!(sender.try_send(3), Ok(()));
        let waits = Task::waiting(sender.send(4));
        assert_eq!(receiver.try_recv(), Ok(3));
        assert_eq!(waits.outcome(), refused(4, exceeds));
        all_is_back(&sender, &receiver, &queue, (1, 3));
    }

    #[test]
    fn an_item_is_weighed_once() {
        let weighed = Cell::new(0);
        let queue = queue(Concurrency::new(1), 99);
        let (sender, receiver) = channel(&queue, places(1), |_: &u8| {
            weighed.set(weighed.get() + 1);
            1
        });
        assert_eq!(sender.try_send(1), Ok(()));
        let mut waits = Task::waiting(sender.send(2));
        assert!(waits.is_pending());
        let held = Task::waiting(queue.acquire(1));
        assert_eq!(receiver.try_recv(), Ok(1));
        assert!(waits.is_pending());
        drop(held);
        assert_eq!(
            (waits.outcome(), receiver.try_recv(), weighed.get()),
            (Ok(()), Ok(2), 2)
        );
    }
}

mod closes {
    use super::*;

    /// One sender waits for room and one for permits; the channel holds an item of 1 permit of 2.
    fn both_are_rejected(
        close: impl FnOnce(&Sender<u32, &Manual, Weigh>, &Receiver<u32, &Manual>),
    ) {
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = numbers(&queue, 2);
        assert_eq!(now(sender.send(1)), Ok(()));
        let mut reserves = Task::waiting(sender.reserve(2));
        let mut for_room = Task::waiting(sender.send(7));
        let mut reserves_room = Task::waiting(sender.reserve(2));
        let idle = Task::new(sender.send(9));
        close(&sender, &receiver);
        assert_eq!(
            (reserves.wakes(), for_room.wakes(), reserves_room.wakes()),
            (1, 1, 1)
        );
        assert!(matches!(
            reserves.poll(),
            Poll::Ready(Err(SendError::Closed(())))
        ));
        assert!(matches!(
            reserves_room.poll(),
            Poll::Ready(Err(SendError::Closed(())))
        ));
        assert_eq!(for_room.poll(), Poll::Ready(Err(SendError::Closed(7))));
        assert_eq!(idle.outcome(), Err(SendError::Closed(9)));
        assert_eq!(
            queue.counts().waiters,
            0,
            "the waiters have left that queue"
        );
        assert_eq!(
            (sender.is_closed(), sender.try_send(0)),
            (true, Err(TrySendError::Closed(0)))
        );
        assert_eq!(now(sender.send(0)), Err(SendError::Closed(0)));
        assert_eq!((available(&queue), now(receiver.recv())), (1, Some(1)));
        assert_eq!((available(&queue), now(receiver.recv())), (2, None));
        assert!(!sender.close() && !receiver.close());
        assert!(queue.try_acquire(2).is_ok(), "the queue of permits is open");
    }

    #[test]
    fn a_sender_that_closes_ends_waits_for_room_and_for_permits() {
        both_are_rejected(|sender, _| assert!(sender.clone().close()));
    }

    #[test]
    fn a_receiver_that_closes_ends_waits_for_room_and_for_permits() {
        both_are_rejected(|_, receiver| assert!(receiver.clone().close()));
    }

    #[test]
    fn the_item_of_a_send_that_waits_for_permits_is_returned() {
        let queue = queue(bucket(1), 99);
        let (sender, receiver) = numbers(&queue, 5);
        assert_eq!(sender.try_send(1), Ok(()));
        let mut waits: Vec<_> = (0..3).map(|_| Task::waiting(sender.send(1))).collect();
        sender.close();
        assert!(waits.iter().all(|wait| wait.wakes() == 1));
        assert!(
            waits
                .drain(..)
                .all(|wait| wait.outcome() == Err(SendError::Closed(1)))
        );
        assert_eq!((queue.counts().waiters, queue.advance()), (0, Next::Idle));
        assert_eq!(
            (receiver.try_recv(), receiver.try_recv()),
            (Ok(1), Err(TryRecvError::Closed))
        );
        queue.clock().set(secs(1));
        assert_eq!(available(&queue), 1, "nothing is taken for them");
    }

    #[test]
    fn a_send_granted_before_the_end_but_polled_after_it_returns_everything() {
        let queue = queue(Concurrency::new(1), 99);
        let (sender, receiver) = numbers(&queue, 1);
        let held = queue.try_acquire(1).unwrap();
        let writer = Task::waiting(sender.send(1));
        drop(held);
        sender.close();
        assert_eq!((writer.wakes(), available(&queue)), (2, 0));
        assert_eq!(
            (writer.outcome(), available(&queue)),
            (Err(SendError::Closed(1)), 1)
        );
        // The same with a place.
        let (sender, other) = numbers(&queue, 1);
        assert_eq!(now(sender.send(0)), Ok(()));
        let writer = Task::waiting(sender.send(1));
        assert_eq!(other.try_recv(), Ok(0));
        other.close();
        assert_eq!(
            (writer.outcome(), available(&queue)),
            (Err(SendError::Closed(1)), 1)
        );
        // And with both.
        let (sender, third) = numbers(&queue, 1);
        let permit = now(sender.reserve(1)).unwrap();
        third.close();
        assert_eq!(
            (permit.send(1), available(&queue)),
            (Err(SendError::Closed(1)), 1)
        );
        assert_eq!(
            [&receiver, &other, &third].map(Receiver::try_recv),
            [Err(TryRecvError::Closed); 3]
        );
    }

    #[test]
    fn the_end_of_one_channel_is_not_the_end_of_another() {
        let queue = queue(Concurrency::new(1), 99);
        let (one, _one) = numbers(&queue, 1);
        let (two, _two) = numbers(&queue, 1);
        let held = queue.try_acquire(1).unwrap();
        let (first, second) = (Task::waiting(one.send(1)), Task::waiting(two.send(1)));
        one.close();
        assert_eq!(
            (first.outcome(), second.wakes()),
            (Err(SendError::Closed(1)), 0)
        );
        drop(held);
        assert_eq!(second.outcome(), Ok(()));
    }

    #[test]
    fn waiting_receivers_see_the_end() {
        let queue = plenty();
        let (sender, receiver) = channel::<u8, _, _>(&queue, places(1), PerItem);
        let (one, two) = (
            Task::waiting(receiver.recv()),
            Task::waiting(receiver.recv_leased()),
        );
        let stream = Task::waiting(receiver.clone().collect::<Vec<_>>());
        sender.close();
        assert_eq!((one.wakes(), two.wakes(), stream.wakes()), (1, 1, 1));
        assert_eq!(
            (one.outcome(), two.outcome().is_none(), stream.outcome()),
            (None, true, vec![])
        );
    }

    #[test]
    fn a_closed_or_full_queue_of_permits_rejects_and_the_channel_goes_on() {
        let queue = queue(Concurrency::new(1), 1);
        let (sender, receiver) = numbers(&queue, 3);
        assert_eq!(now(sender.send(1)), Ok(()));
        let waits = Task::waiting(sender.send(1));
        let full = Rejected::QueueFull {
            permits: 1,
            retry: Retry::OnRelease,
        };
        assert_eq!(now(sender.send(1)), refused(1, full));
        queue.close();
        assert_eq!((waits.wakes(), waits.outcome()), (1, refused(1, closed(1))));
        assert_eq!(now(sender.send(1)), refused(1, closed(1)));
        assert!(!sender.is_closed());
        assert_eq!(
            (
                now(sender.send(0)),
                now(receiver.recv()),
                now(receiver.recv())
            ),
            (Ok(()), Some(1), Some(0))
        );
        all_is_back(&sender, &receiver, &queue, (3, 1));
    }

    #[test]
    fn newest_first_the_sender_that_waited_longest_makes_room_in_the_queue() {
        let queue = queue(Concurrency::new(1), 1).with_order(Order::NewestFirst);
        let (sender, receiver) = numbers(&queue, 3);
        let held = queue.try_acquire(1).unwrap();
        let old = Task::waiting(sender.send(1));
        let new = Task::waiting(sender.send(1));
        let evicted = Rejected::Evicted {
            permits: 1,
            retry: Retry::OnRelease,
        };
        assert_eq!((old.wakes(), old.outcome()), (1, refused(1, evicted)));
        drop(held);
        assert_eq!((new.outcome(), receiver.try_recv()), (Ok(()), Ok(1)));
        all_is_back(&sender, &receiver, &queue, (3, 1));
    }

    #[test]
    fn after_drained_all_permits_are_back() {
        let queue = queue(Concurrency::new(3), 99);
        let (sender, receiver) = numbers(&queue, 3);
        for _ in 0..2 {
            assert_eq!(now(sender.send(1)), Ok(()));
        }
        sender.close();
        queue.close();
        let mut drained = Task::waiting(queue.drained());
        let (_, lease) = now(receiver.recv_leased()).unwrap();
        assert!(drained.is_pending());
        drop(receiver);
        assert!(drained.is_pending(), "one lease is still held");
        drop(lease);
        assert_eq!(drained.wakes(), 1);
        drained.outcome();
    }
}

mod limits {
    use super::*;

    #[test]
    fn one_limit_bounds_the_items_of_all_channels_that_share_it() {
        let queue = queue(Concurrency::new(3), 99);
        let (fast, read_fast) = channel(&queue, places(9), PerItem);
        let (slow, read_slow) = channel(&queue, places(9), PerItem);
        assert_eq!(
            [fast.try_send(1), slow.try_send(1), slow.try_send(2)],
            [Ok(()), Ok(()), Ok(())]
        );
        let (mut third, mut second) = (Task::waiting(slow.send(3)), Task::waiting(fast.send(2)));
        assert_eq!(read_fast.len() + read_slow.len(), 3);
        // The permits that one channel returns go to the other in its turn.
        assert_eq!(read_fast.try_recv(), Ok(1));
        assert_eq!((third.wakes(), second.wakes()), (1, 0));
        assert_eq!(
            (third.poll(), second.is_pending()),
            (Poll::Ready(Ok(())), true)
        );
        let (_, in_work) = now(read_slow.recv_leased()).unwrap();
        assert!(second.is_pending());
        drop(in_work);
        assert_eq!(second.outcome(), Ok(()));
        drop((read_fast, read_slow));
        assert_eq!(available(&queue), 3);
    }

    #[test]
    fn a_rate_paces_the_senders() {
        let queue = queue(bucket(2), 99);
        let (sender, receiver) = channel(&queue, places(9), PerItem);
        let mut write = Task::waiting(async {
            for item in 0..6 {
                sender.send(item).await.unwrap();
            }
        });
        assert_eq!([receiver.try_recv(), receiver.try_recv()], [Ok(0), Ok(1)]);
        for (second, item) in (1..=4).zip(2..) {
            queue
                .clock()
                .set(Timestamp::from_nanos(secs(second).as_nanos() - 1));
            assert_eq!(queue.advance(), Next::At(secs(second)));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            queue.clock().set(secs(second));
            queue.advance();
            assert_eq!(write.wakes(), second as usize);
            assert_eq!(write.is_pending(), second < 4);
            assert_eq!(
                (receiver.try_recv(), receiver.try_recv()),
                (Ok(item), Err(TryRecvError::Empty))
            );
        }
        assert_eq!((queue.advance(), queue.counts().waiters), (Next::Idle, 0));
    }

    #[test]
    fn a_rate_is_not_delayed_by_items_that_are_not_received() {
        let queue = queue(bucket(1), 99);
        let (sender, receiver) = channel(&queue, places(2), PerItem);
        assert_eq!(sender.try_send(1), Ok(()));
        queue.clock().set(secs(1));
        assert_eq!(sender.try_send(2), Ok(()));
        // Full. The tokens of the third item come in in the meantime, and belong to no item until
        // it has a place.
        let mut waits = Task::waiting(sender.send(3));
        queue.clock().set(secs(9));
        assert_eq!((queue.advance(), available(&queue)), (Next::Idle, 1));
        assert!(waits.is_pending());
        assert_eq!((receiver.try_recv(), available(&queue)), (Ok(1), 1));
        assert_eq!((waits.outcome(), available(&queue)), (Ok(()), 0));
    }

    #[test]
    fn an_attended_queue_needs_no_advance() {
        let queue = Arc::new(queue(bucket(1), 99));
        queue.attend_shared();
        let (sender, receiver) = channel(Arc::clone(&queue), places(9), PerItem);
        let mut write = Task::waiting(async {
            for item in 0..3 {
                sender.send(item).await.unwrap();
            }
        });
        for second in 1..3 {
            queue.clock().run(secs(second));
            assert_eq!(
                (write.wakes() as u64, write.is_pending()),
                (second, second < 2)
            );
        }
        assert_eq!(receiver.len(), 3);
    }
}

mod cancelled {
    use super::*;

    /// A send that is cancelled after `before` leaves nothing behind, and the next one gets what it
    /// had.
    fn leaves_nothing(
        stage: &str,
        before: impl FnOnce(&mut dyn FnMut() -> bool, &mut dyn FnMut()),
    ) {
        let _ = stage;
        let queue = queue(Concurrency::new(1), 99);
        let (here, woken) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
        let (sender, receiver) = channel(&queue, places(1), |_: &Item| 1);
        let item = || Item(Arc::clone(&here));
        assert!(now(sender.send(item())).is_ok());
        let mut writer = Task::new(sender.send(item()));
        let mut lease = None;
        before(&mut || writer.is_pending(), &mut || match lease.take() {
            None => lease = Some(now(receiver.recv_leased()).unwrap().1),
            some => drop(some),
        });
        let next = Task::new(sender.send(item()));
        drop(writer);
        assert_eq!(
            Arc::strong_count(&here),
            2 + receiver.len(),
            "{stage}: the item is gone"
        );
        let mut next = next;
        let mut polled = next.is_pending();
        while polled && woken.fetch_add(1, Ordering::Relaxed) < 9 {
            drop(lease.take());
            drop(receiver.try_recv());
            polled = next.is_pending();
        }
        assert!(!polled, "{stage}");
        drop((next, receiver));
        assert_eq!(
            (Arc::strong_count(&here), available(&queue)),
            (1, 1),
            "{stage}"
        );
        assert_eq!(queue.counts().waiters, 0);
    }

    #[test]
    fn a_sender_can_cancel_at_any_stage() {
        leaves_nothing("not polled", |_, _| ());
        leaves_nothing("waits for room", |poll, _| assert!(poll()));
        leaves_nothing("has a place, and has not seen it", |poll, receive| {
            assert!(poll());
            receive();
        });
        leaves_nothing("waits for permits", |poll, receive| {
            assert!(poll());
            receive();
            assert!(poll());
        });
        leaves_nothing("has permits, and has not seen them", |poll, receive| {
            assert!(poll());
            receive();
            assert!(poll());
            receive();
        });
        leaves_nothing("is done", |poll, receive| {
            assert!(poll());
            receive();
            receive();
            assert!(!poll());
        });
    }

    #[test]
    fn the_next_sender_is_woken_for_what_a_cancelled_one_had() {
        let queue = queue(Concurrency::new(1), 99);
        let (sender, receiver) = numbers(&queue, 2);
        assert_eq!([now(sender.send(1)), now(sender.send(0))], [Ok(()), Ok(())]);
        let mut writers: Vec<_> = (0..3).map(|_| Task::waiting(sender.send(1))).collect();
        assert_eq!(receiver.try_recv(), Ok(1));
        // Its place goes to the next sender, with the permits not taken yet.
        drop(writers.remove(0));
        assert_eq!((writers[0].wakes(), writers[1].wakes()), (1, 0));
        let held = queue.try_acquire(1).unwrap();
        assert!(writers[0].is_pending());
        assert_eq!(receiver.try_recv(), Ok(0));
        assert!(writers[1].is_pending());
        assert_eq!((writers[1].wakes(), queue.counts().waiters), (1, 2));
        drop(held);
        assert_eq!((writers[0].wakes(), writers[1].wakes()), (2, 1));
        // And now its permits.
        drop(writers.remove(0));
        assert_eq!(writers[0].wakes(), 2);
        assert_eq!(writers.remove(0).outcome(), Ok(()));
        assert_eq!(receiver.try_recv(), Ok(1));
        all_is_back(&sender, &receiver, &queue, (2, 1));
    }

    #[test]
    fn tokens_granted_to_a_sender_that_was_not_polled_go_to_the_next() {
        let queue = Arc::new(queue(bucket(1), 99));
        queue.attend_shared();
        let (sender, _receiver) = numbers(&queue, 5);
        assert_eq!(sender.try_send(1), Ok(()));
        let (first, second) = (Task::waiting(sender.send(1)), Task::waiting(sender.send(1)));
        queue.clock().run(secs(1));
        assert_eq!((first.wakes(), second.wakes()), (1, 0));
        drop(first);
        assert_eq!(second.wakes(), 1);
        assert_eq!(second.outcome(), Ok(()));
    }

    #[test]
    fn a_cancelled_receiver_has_received_nothing_and_the_next_is_woken() {
        let queue = queue(Concurrency::new(9), 99);
        let (sender, receiver) = numbers(&queue, 5);
        drop(Task::new(receiver.recv()));
        drop(Task::waiting(receiver.recv()));
        let (first, second) = (
            Task::waiting(receiver.recv()),
            Task::waiting(receiver.recv_leased()),
        );
        assert_eq!(sender.try_send(3), Ok(()));
        assert_eq!((first.wakes(), second.wakes()), (1, 0));
        drop(first);
        assert_eq!(
            (second.wakes(), receiver.len(), available(&queue)),
            (1, 1, 6)
        );
        drop(second);
        assert_eq!(receiver.try_recv(), Ok(3));
        all_is_back(&sender, &receiver, &queue, (5, 9));
    }
}

mod panicking {
    use super::*;

    /// Panics in its drop, if `is` says so.
    struct Loud {
        is: bool,
        _one_more: Item,
    }

    impl Drop for Loud {
        fn drop(&mut self) {
            assert!(!self.is || std::thread::panicking(), "on purpose");
        }
    }

    #[test]
    fn a_weight_that_panics_takes_nothing() {
        let queue = queue(Concurrency::new(3), 99);
        let weigh: Weigh = |n| if *n == 9 { panic!("on purpose") } else { *n };
        let (sender, receiver) = channel(&queue, places(2), weigh);
        panics(|| sender.try_send(9));
        panics(|| now(sender.send(9)));
        all_is_back(&sender, &receiver, &queue, (2, 3));
    }

    #[test]
    fn an_item_that_panics_in_its_drop_loses_nothing_else() {
        let queue = queue(Concurrency::new(3), 99);
        let here = Arc::new(());
        let (sender, receiver) = channel(&queue, places(3), |_: &Loud| 1);
        let item = |is| Loud {
            is,
            _one_more: Item(Arc::clone(&here)),
        };
        assert!(sender.try_send(item(true)).is_ok());
        panics(|| drop(receiver.try_recv()));
        assert_eq!(available(&queue), 3);
        for is in [false, true, false] {
            assert!(sender.try_send(item(is)).is_ok());
        }
        assert!(
            matches!(sender.try_send(item(false)), Err(TrySendError::Full(_))),
            "three places"
        );
        let waits = Task::waiting(sender.send(item(false)));
        panics(|| drop(receiver));
        assert_eq!(
            (available(&queue), Arc::strong_count(&here)),
            (3, 2),
            "the others are gone nevertheless"
        );
        assert!(matches!(waits.outcome(), Err(SendError::Closed(_))));
    }

    #[test]
    fn a_cancelled_sender_whose_item_panics_leaves_its_place() {
        for stage in 0..4 {
            let queue = queue(Concurrency::new(1), 99);
            let (sender, receiver) = channel(&queue, places(1), |_: &Loud| 1);
            let item = |is| Loud {
                is,
                _one_more: Item(Arc::default()),
            };
            assert!(sender.try_send(item(false)).is_ok());
            let mut waits = Task::waiting(sender.send(item(true)));
            let mut lease = (stage > 0).then(|| now(receiver.recv_leased()).unwrap());
            assert!(stage < 2 || waits.is_pending());
            if stage == 3 {
                lease = None;
            }
            panics(|| drop(waits));
            drop((lease, receiver.try_recv()));
            assert_eq!(
                (queue.counts().waiters, available(&queue)),
                (0, 1),
                "{stage}"
            );
            assert!(
                sender.try_send(item(false)).is_ok(),
                "{stage}: no place may be lost"
            );
        }
    }

    /// A sender whose waker panics waits for room, or for permits; others wait behind it.
    fn wakes_loudly<T>(capacity: u32, then: impl FnOnce(&Receiver<u32, &Manual>) -> T) {
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = numbers(&queue, capacity);
        assert_eq!(now(sender.send(2)), Ok(()));
        let mut loud = Task::new(sender.send(1));
        assert!(loud.poll_with(&panics_when_woken()).is_pending());
        let mut behind = Task::waiting(sender.send(1));
        panics(|| then(&receiver));
        assert_eq!(receiver.len(), 0);
        assert_eq!(loud.poll(), Poll::Ready(Ok(())));
        if capacity == 1 {
            assert!(behind.is_pending());
            assert_eq!(receiver.try_recv(), Ok(1));
        }
        assert_eq!((behind.wakes(), behind.outcome()), (1, Ok(())));
        while receiver.try_recv().is_ok() {}
        all_is_back(&sender, &receiver, &queue, (capacity, 2));
    }

    #[test]
    fn a_sender_whose_waker_panics_keeps_no_other_from_places_and_permits() {
        for capacity in [1, 3] {
            wakes_loudly(capacity, |receiver| receiver.try_recv().is_ok());
            wakes_loudly(capacity, |receiver| now(receiver.recv()));
            wakes_loudly(capacity, |receiver| now(receiver.recv_leased()).is_some());
            wakes_loudly(capacity, |receiver| now(Box::pin(receiver.clone()).next()));
        }
    }

    #[test]
    fn an_item_that_is_received_as_a_waker_panics_is_dropped() {
        let here = Arc::new(());
        for capacity in [1, 2] {
            let queue = queue(Concurrency::new(1), 99);
            let (sender, receiver) = channel(&queue, places(capacity), |_: &Item| 1);
            assert!(sender.try_send(Item(Arc::clone(&here))).is_ok());
            let mut loud = Task::new(sender.send(Item(Arc::clone(&here))));
            assert!(loud.poll_with(&panics_when_woken()).is_pending());
            panics(|| drop(receiver.try_recv()));
            drop(loud);
            assert_eq!((Arc::strong_count(&here), available(&queue)), (1, 1));
        }
    }

    #[test]
    fn a_receiver_whose_waker_panics_leaves_the_channel_its_places() {
        let queue = queue(Concurrency::new(3), 99);
        let (sender, receiver) = numbers(&queue, 2);
        let mut reader = Task::new(receiver.recv());
        assert!(reader.poll_with(&panics_when_woken()).is_pending());
        panics(|| sender.try_send(1));
        // The item was sent: the panic is on the other side.
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        drop(reader);
        assert_eq!((receiver.try_recv(), available(&queue)), (Ok(1), 3));
        all_is_back(&sender, &receiver, &queue, (2, 3));
    }

    #[test]
    fn a_waker_that_panics_at_the_end_hides_the_end_from_no_waiter() {
        for loud_waits_for_room in [true, false] {
            let queue = queue(Concurrency::new(2), 99);
            let (sender, receiver) = numbers(&queue, 2);
            assert_eq!(now(sender.send(1)), Ok(()));
            let panics_when_woken = panics_when_woken();
            let (mut for_permits, mut for_room) =
                (Task::new(sender.send(2)), Task::new(sender.send(3)));
            if loud_waits_for_room {
                assert!(for_permits.is_pending());
                assert!(for_room.poll_with(&panics_when_woken).is_pending());
            } else {
                assert!(for_permits.poll_with(&panics_when_woken).is_pending());
                assert!(for_room.is_pending());
            }
            panics(|| sender.close());
            assert_eq!(
                for_permits.wakes() + for_room.wakes(),
                1,
                "the other sender: {loud_waits_for_room}"
            );
            assert_eq!(for_permits.outcome(), Err(SendError::Closed(2)));
            assert_eq!(for_room.outcome(), Err(SendError::Closed(3)));
            assert_eq!(
                (receiver.try_recv(), receiver.try_recv()),
                (Ok(1), Err(TryRecvError::Closed))
            );
            assert_eq!(available(&queue), 2);
        }
    }

    #[test]
    fn a_receiver_whose_waker_panics_at_the_end_hides_it_from_no_sender() {
        let queue = queue(Concurrency::new(1), 99);
        let (sender, receiver) = numbers(&queue, 1);
        let mut reader = Task::new(receiver.recv());
        assert!(reader.poll_with(&panics_when_woken()).is_pending());
        reader.leak();
        let held = queue.try_acquire(1).unwrap();
        let (for_permits, for_room) =
            (Task::waiting(sender.send(1)), Task::waiting(sender.send(0)));
        panics(|| sender.close());
        assert_eq!((for_permits.wakes(), for_room.wakes()), (1, 1));
        assert_eq!(for_permits.outcome(), Err(SendError::Closed(1)));
        assert_eq!(for_room.outcome(), Err(SendError::Closed(0)));
        drop(held);
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn the_last_receiver_drops_the_items_even_if_a_waker_panics() {
        let here = Arc::new(());
        let queue = queue(Concurrency::new(2), 99);
        let (sender, receiver) = channel(&queue, places(2), |_: &Item| 1);
        for _ in 0..2 {
            assert!(sender.try_send(Item(Arc::clone(&here))).is_ok());
        }
        let mut loud = Task::new(sender.send(Item(Arc::clone(&here))));
        assert!(loud.poll_with(&panics_when_woken()).is_pending());
        panics(|| drop(receiver));
        assert_eq!(
            (available(&queue), Arc::strong_count(&here)),
            (2, 2),
            "the permits are back"
        );
        assert!(matches!(loud.outcome(), Err(SendError::Closed(_))));
    }
}

mod pointers {
    use super::*;

    static FOR_EVER: Queue<Concurrency, ManualClock> =
        Queue::new(Concurrency::new(1), ManualClock::new(), 9);

    #[test]
    fn to_a_static_queue() {
        let (sender, receiver) = channel(&FOR_EVER, places(2), PerItem);
        let thread = std::thread::spawn(move || {
            futures_executor::block_on(async {
                for item in 0..50 {
                    sender.send(item).await.unwrap();
                }
            });
        });
        assert!(futures_executor::block_on_stream(Box::pin(receiver)).eq(0..50));
        thread.join().unwrap();
        assert_eq!(FOR_EVER.available(), 1);
    }

    #[test]
    fn to_a_shared_queue_that_items_keep() {
        let queue = Arc::new(queue(Concurrency::new(2), 99));
        let (sender, receiver) = channel(Arc::clone(&queue), places(3), PerItem);
        now(sender.send('a')).unwrap();
        now(sender.send('b')).unwrap();
        let waits = Task::waiting(sender.send('c'));
        drop(waits);
        drop(sender);
        assert_eq!(Arc::strong_count(&queue), 3, "held by the items only");
        let (_, lease) = now(receiver.recv_leased()).unwrap();
        drop(receiver);
        assert_eq!((Arc::strong_count(&queue), available(&queue)), (2, 1));
        drop(lease);
        assert_eq!((Arc::strong_count(&queue), available(&queue)), (1, 2));
    }

    #[test]
    fn to_the_place_of_a_key() {
        let table = || Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
        let queue = KeyedQueue::new(table(), Hand::new(), 99);
        let (alice, from_alice) = channel(queue.key("alice"), places(2), PerItem);
        let (bob, from_bob) = channel(queue.key("bob"), places(2), PerItem);
        assert_eq!((alice.try_send(1), bob.try_send(2)), (Ok(()), Ok(())));
        let mut waits = Task::waiting(alice.send(3));
        assert!(matches!(
            bob.try_send(4),
            Err(TrySendError::Denied { item: 4, .. })
        ));
        assert_eq!(from_bob.try_recv(), Ok(2));
        assert!(waits.is_pending(), "waits for its own key");
        assert_eq!(from_alice.try_recv(), Ok(1));
        assert_eq!((waits.wakes(), waits.outcome()), (1, Ok(())));
        drop(from_alice);
        assert_eq!(queue.key("alice").available_at(START), 1);
        // The channel owns the table.
        let queue = Arc::new(KeyedQueue::new(table(), Hand::new(), 99));
        let (alice, from_alice) = channel(
            QueueKey::new(Arc::clone(&queue), "alice"),
            places(2),
            PerItem,
        );
        assert_eq!(alice.try_send(1), Ok(()));
        let waits = Task::waiting(alice.send(2));
        assert_eq!(from_alice.try_recv(), Ok(1));
        assert_eq!((waits.outcome(), from_alice.try_recv()), (Ok(()), Ok(2)));
        drop((alice, from_alice));
        assert_eq!(Arc::strong_count(&queue), 1);
    }

    #[test]
    fn other_waiters_are_in_the_same_queue() {
        let queue = Arc::new(queue(Concurrency::new(1), 99));
        let (sender, receiver) = channel(Arc::clone(&queue), places(9), PerItem);
        now(sender.send(1)).unwrap();
        let mut other = Task::waiting(Acquire::new(Arc::clone(&queue), 1));
        let behind = Task::waiting(sender.send(2));
        assert_eq!(receiver.try_recv(), Ok(1));
        assert_eq!((other.wakes(), behind.wakes()), (1, 0));
        drop(other.poll());
        assert_eq!(behind.outcome(), Ok(()));
    }
}

mod says {
    use super::*;

    #[test]
    fn errors_say_why_and_return_the_item() {
        let denied = Denied::Exhausted {
            now: START,
            permits: 1,
        };
        let rejected = closed(1);
        let refused = Refused { item: 3, rejected };
        assert_eq!(
            [
                TrySendError::Full(1),
                TrySendError::Closed(2),
                TrySendError::Denied { item: 3, denied }
            ]
            .map(TrySendError::into_item),
            [1, 2, 3]
        );
        assert_eq!(
            [SendError::Closed(2), SendError::Refused(refused)].map(SendError::into_item),
            [2, 3]
        );
        assert_eq!(TrySendError::Full(1).to_string(), "the channel is full");
        assert_eq!(
            TrySendError::Closed(1).to_string(),
            SendError::Closed(1).to_string()
        );
        assert_eq!(
            TrySendError::Denied { item: 3, denied }.to_string(),
            format!("item denied: {denied}")
        );
        assert_eq!(SendError::Refused(refused).to_string(), refused.to_string());
        assert_eq!(refused.to_string(), format!("item rejected: {rejected}"));
        assert_ne!(
            TryRecvError::Empty.to_string(),
            TryRecvError::Closed.to_string()
        );
    }

    #[test]
    fn errors_of_items_without_debug() {
        fn errors<E: core::error::Error>(error: &E, shown: &str) {
            assert!(format!("{error:?}").starts_with(shown), "{error:?}");
        }
        let item = || Item(Arc::default());
        errors(&SendError::Closed(item()), "Closed");
        let refused = || Refused {
            item: item(),
            rejected: closed(1),
        };
        errors(&refused(), "Refused { rejected: Closed { permits: 1 }");
        errors(
            &SendError::Refused(refused()),
            "Refused(Refused { rejected: Closed { permits: 1 }",
        );
        errors(&TrySendError::Full(item()), "Full");
        errors(&TrySendError::Closed(item()), "Closed");
        let denied = Denied::Exhausted {
            now: START,
            permits: 1,
        };
        errors(
            &TrySendError::Denied {
                item: item(),
                denied,
            },
            "Denied { denied: Exhausted",
        );
    }

    #[test]
    fn debug_shows_the_numbers() {
        let queue = plenty();
        let (sender, receiver) = numbers(&queue, 3);
        let permit = now(sender.reserve(5)).unwrap();
        assert_eq!(format!("{permit:?}"), "Permit { permits: 5, .. }");
        permit.send(1).unwrap();
        assert_eq!(
            format!("{sender:?} {receiver:?}"),
            "Sender { items: 1, .. } Receiver { items: 1, .. }"
        );
    }
}
