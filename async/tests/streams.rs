//! Streams and sinks whose items wait for permits: what comes through, when, and what is polled in
//! the meantime.
#![cfg(feature = "stream")]

mod support;

use core::cell::RefCell;
use core::error::Error;
use core::fmt;
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use futures_sink::Sink;
use futures_util::{SinkExt, Stream, StreamExt, stream};
use portcullis_async::stream::{LeasedStream, LimitedSink, LimitedStream, SinkError};
use portcullis_async::{KeyedQueue, Order, PerItem, QueueKey, Refused, Rejected, Waited};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Clock, Concurrency, Keyed, Rate, Retry, Timestamp, TokenBucket, Unlimited};
use support::{Hand, Manual, Task, available, newest_first, now, permits, queue, waker};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// One per 100 ms, and `burst` at once.
fn ten_per_second(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_second(10), burst)
}

/// Sets the clock, and advances the queue.
fn advance<L: QueueLimiter>(queue: &Manual<L>, to: Timestamp) {
    queue.clock().set(to);
    queue.advance();
}

/// A stream or a sink, and the waker that it is polled with.
struct Polled<S> {
    it: Pin<Box<S>>,
    wakes: Arc<AtomicUsize>,
    waker: Waker,
}

impl<S> Polled<S> {
    fn new(it: S) -> Self {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wakes);
        let waker = waker(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        Self {
            it: Box::pin(it),
            wakes,
            waker,
        }
    }

    fn poll<T>(&mut self, poll: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> T) -> T {
        poll(self.it.as_mut(), &mut Context::from_waker(&self.waker))
    }

    fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }
}

impl<S: Stream> Polled<S> {
    fn next(&mut self) -> Poll<Option<S::Item>> {
        self.poll(S::poll_next)
    }

    #[track_caller]
    fn waits(&mut self) {
        assert!(self.next().is_pending(), "must wait");
    }
}

impl<S> Polled<S> {
    fn ready<T>(&mut self) -> Poll<Result<(), S::Error>>
    where
        S: Sink<T>,
    {
        self.poll(S::poll_ready)
    }

    fn start<T>(&mut self, item: T) -> Result<(), S::Error>
    where
        S: Sink<T>,
    {
        self.it.as_mut().start_send(item)
    }

    fn flush<T>(&mut self) -> Poll<Result<(), S::Error>>
    where
        S: Sink<T>,
    {
        self.poll(S::poll_flush)
    }

    fn close<T>(&mut self) -> Poll<Result<(), S::Error>>
    where
        S: Sink<T>,
    {
        self.poll(S::poll_close)
    }
}

/// An available item.
fn item<T>(item: T) -> Poll<Option<Result<T, Refused<T>>>> {
    Poll::Ready(Some(Ok(item)))
}

fn refused<T>(item: T, rejected: Rejected) -> Poll<Option<Result<T, Refused<T>>>> {
    Poll::Ready(Some(Err(Refused { item, rejected })))
}

/// What a stream of the tests does at a poll.
#[derive(Clone, Copy)]
enum Step {
    Item(u32),
    Pending,
    Panic,
}

/// A scripted stream, which counts its polls.
struct Source {
    steps: VecDeque<Step>,
    polls: Rc<RefCell<usize>>,
}

fn source(steps: &[Step]) -> (Source, Rc<RefCell<usize>>) {
    let polls = Rc::default();
    (
        Source {
            steps: steps.iter().copied().collect(),
            polls: Rc::clone(&polls),
        },
        polls,
    )
}

impl Stream for Source {
    type Item = u32;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
        *self.polls.borrow_mut() += 1;
        match self.steps.pop_front() {
            Some(Step::Item(item)) => Poll::Ready(Some(item)),
            Some(Step::Pending) => Poll::Pending,
            Some(Step::Panic) => panic!("the inner stream"),
            None => Poll::Ready(None),
        }
    }
}

/// All items of a stream that nothing else delays, and their times. It is polled only when it was
/// woken.
fn arrivals<S: Stream>(
    stream: S,
    now: impl Fn() -> Timestamp,
    next: impl Fn() -> Option<Timestamp>,
) -> Vec<(S::Item, u64)> {
    let mut stream = Polled::new(stream);
    let (mut come, mut woken) = (Vec::new(), 0);
    loop {
        match stream.next() {
            Poll::Ready(None) => return come,
            Poll::Ready(Some(item)) => come.push((item, now().as_nanos() / 1_000_000)),
            Poll::Pending => {
                while stream.wakes() == woken {
                    next().expect("a waiter waits for time");
                }
                assert_eq!(stream.wakes(), woken + 1, "one wake-up per grant");
                woken += 1;
            }
        }
    }
}

/// Advances the clock to the next grant.
fn tick<L: QueueLimiter>(queue: &Manual<L>) -> Option<Timestamp> {
    let portcullis_async::Next::At(at) = queue.advance() else {
        return None;
    };
    advance(queue, at);
    Some(at)
}

mod at_a_rate {
    use super::*;

    #[test]
    fn items_come_one_by_one_at_the_rate_of_permits() {
        let queue = queue(ten_per_second(2), 9);
        let stream = LimitedStream::new(stream::iter(0..5), &queue, PerItem);
        let come = arrivals(stream, || queue.clock().now(), || tick(&queue));
        let expected = [(0, 0), (1, 0), (2, 100), (3, 200), (4, 300)];
        assert_eq!(come, expected.map(|(item, at)| (Ok(item), at)));
    }

    #[test]
    fn each_item_waits_for_as_many_permits_as_it_weighs() {
        let queue = queue(ten_per_second(5), 9);
        let words = ["five5", "four", "", "two", "1"];
        let stream =
            LimitedStream::new(stream::iter(words), &queue, |word: &&str| word.len() as u32);
        let come = arrivals(stream, || queue.clock().now(), || tick(&queue));
        let expected = [
            ("five5", 0),
            ("four", 400),
            ("", 400),
            ("two", 700),
            ("1", 800),
        ];
        assert_eq!(come, expected.map(|(item, at)| (Ok(item), at)));
    }

    #[test]
    fn any_pointer_to_the_queue_works() {
        static QUEUE: LazyLock<Manual<TokenBucket>> = LazyLock::new(|| queue(ten_per_second(1), 9));
        let expected = [0, 100, 200].map(|at| (Ok(at / 100), at));
        let items = || stream::iter(0..3_u64);
        let owned = queue(ten_per_second(1), 9);
        let borrowed = LimitedStream::new(items(), &owned, PerItem);
        assert_eq!(
            arrivals(borrowed, || owned.clock().now(), || tick(&owned)),
            expected
        );
        let shared = Arc::new(queue(ten_per_second(1), 9));
        let owning = LimitedStream::new(items(), Arc::clone(&shared), PerItem);
        assert_eq!(
            arrivals(owning, || shared.clock().now(), || tick(&shared)),
            expected
        );
        let at_rest: &'static Manual<TokenBucket> = &QUEUE;
        let for_ever = LimitedStream::new(items(), at_rest, PerItem);
        assert_eq!(
            arrivals(for_ever, || at_rest.clock().now(), || tick(at_rest)),
            expected
        );
    }

    #[test]
    fn each_key_has_its_own_limit() {
        let bucket = TokenBucket::builder(Rate::per_second(10), 1)
            .rules()
            .unwrap();
        let table = Keyed::new(bucket, Line::for_keys(100), Seed::new());
        let queue = Arc::new(KeyedQueue::new(table, Hand::new(), 9));
        queue.attend_shared();
        let of = |key| {
            Polled::new(LimitedStream::new(
                stream::iter(0..2),
                queue.key(key),
                PerItem,
            ))
        };
        let [mut alice, mut bob] = [of("alice"), of("bob")];
        let mut shared = Polled::new(LimitedStream::new(
            stream::iter(0..2),
            QueueKey::new(Arc::clone(&queue), "alice"),
            PerItem,
        ));
        assert_eq!((alice.next(), bob.next()), (item(0), item(0)));
        alice.waits();
        shared.waits();
        queue.clock().run(ms(100));
        assert_eq!((alice.wakes(), shared.wakes()), (1, 0), "one queue");
        assert_eq!((alice.next(), bob.next()), (item(1), item(1)));
        queue.clock().set(ms(200));
        queue.advance();
        assert_eq!(shared.next(), item(0));
    }

    #[test]
    fn several_streams_on_one_queue_take_turns() {
        let queue = queue(ten_per_second(1), 9);
        let _held = queue.try_acquire(1).unwrap();
        let mut streams = [0, 10, 20]
            .map(|from| Polled::new(LimitedStream::new(stream::iter(from..), &queue, PerItem)));
        let mut come = Vec::new();
        for at in 0..9 {
            for stream in &mut streams {
                if let Poll::Ready(Some(item)) = stream.next() {
                    come.push(item.unwrap());
                    stream.waits();
                }
            }
            advance(&queue, ms(100 * (at + 1)));
        }
        assert_eq!(come, [0, 10, 20, 1, 11, 21, 2, 12]);
    }

    #[test]
    fn an_attended_queue_wakes_by_its_timer() {
        let queue = Arc::new(queue(ten_per_second(1), 9));
        queue.attend_shared();
        let stream = LimitedStream::new(stream::iter(0..3), Arc::clone(&queue), PerItem);
        let next = || {
            let at = queue.clock().alarm()?;
            queue.clock().run(at);
            Some(at)
        };
        let come = arrivals(stream, || queue.clock().now(), next);
        assert_eq!(come, [(Ok(0), 0), (Ok(1), 100), (Ok(2), 200)]);
    }

    #[test]
    fn without_a_limit_all_items_come_at_once() {
        let queue = queue(Unlimited, 0);
        let all: Vec<_> =
            now(LimitedStream::new(stream::iter(0..1_000), &queue, PerItem).collect());
        assert!(all.into_iter().map(Result::unwrap).eq(0..1_000));
    }
}

mod weights {
    use super::*;

    #[test]
    fn an_item_of_weight_zero_passes_whatever_the_limiter_says() {
        let queue = queue(Concurrency::new(1), 0);
        let _held = queue.try_acquire(1).unwrap();
        let mut stream = Polled::new(LimitedStream::new(stream::iter(0..3), &queue, |_: &u32| 0));
        assert_eq!(stream.next(), item(0));
        queue.close();
        assert_eq!(stream.next(), item(1));
        assert_eq!(queue.counts().full, 0);
    }

    #[test]
    fn an_item_of_weight_zero_overtakes_waiters() {
        let queue = queue(Concurrency::new(1), 9);
        let _held = queue.try_acquire(1).unwrap();
        let mut waiting = Task::waiting(queue.acquire(1));
        let mut stream = Polled::new(LeasedStream::new(
            stream::iter([0]),
            &queue,
            |weight: &u32| *weight,
        ));
        let Poll::Ready(Some(Ok((0, lease)))) = stream.next() else {
            panic!("passes")
        };
        assert_eq!(lease.permits(), 0);
        drop(lease);
        assert!(waiting.is_pending(), "and returns nothing");
        assert_eq!(
            (available(&queue), queue.change(Concurrency::in_use)),
            (0, 1)
        );
    }

    #[test]
    fn each_item_is_weighed_once() {
        let queue = queue(Concurrency::new(1), 9);
        let held = queue.try_acquire(1).unwrap();
        let weighed = RefCell::new(Vec::new());
        let weight = |item: &u32| {
            weighed.borrow_mut().push(*item);
            1
        };
        let mut stream = Polled::new(LimitedStream::new(stream::iter(0..2), &queue, weight));
        stream.waits();
        stream.waits();
        drop(held);
        assert_eq!((stream.next(), stream.next()), (item(0), item(1)));
        assert_eq!(*weighed.borrow(), [0, 1]);
    }
}

mod refusals {
    use super::*;

    const fn full(retry: Retry) -> Rejected {
        Rejected::QueueFull { permits: 1, retry }
    }

    #[test]
    fn an_item_that_is_too_heavy_is_returned_and_the_next_one_passes() {
        let queue = queue(ten_per_second(3), 9);
        let mut stream = Polled::new(LimitedStream::new(
            stream::iter([1, 4, 2]),
            &queue,
            |n: &u32| *n,
        ));
        assert_eq!(stream.next(), item(1));
        assert_eq!(
            stream.next(),
            refused(
                4,
                Rejected::ExceedsCapacity {
                    permits: 4,
                    capacity: 3
                }
            )
        );
        assert_eq!((stream.next(), stream.next()), (item(2), Poll::Ready(None)));
    }

    #[test]
    fn a_full_queue_returns_each_item_until_it_has_room() {
        let queue = queue(ten_per_second(1), 0);
        let mut stream = Polled::new(LimitedStream::new(stream::iter(0..4), &queue, PerItem));
        assert_eq!(stream.next(), item(0));
        assert_eq!(stream.next(), refused(1, full(Retry::At(ms(100)))));
        assert_eq!(stream.next(), refused(2, full(Retry::At(ms(100)))));
        queue.clock().set(ms(100));
        assert_eq!((stream.next(), stream.next()), (item(3), Poll::Ready(None)));
        assert_eq!((stream.wakes(), queue.counts().full), (0, 2));
    }

    #[test]
    fn a_queue_that_closes_returns_waiting_and_later_items() {
        let queue = queue(ten_per_second(1), 9);
        let mut stream = Polled::new(LimitedStream::new(stream::iter(0..4), &queue, |n: &u32| {
            u32::from(*n != 3)
        }));
        assert_eq!(stream.next(), item(0));
        stream.waits();
        queue.close();
        assert_eq!(stream.wakes(), 1);
        let closed = Rejected::Closed { permits: 1 };
        assert_eq!(
            (stream.next(), stream.next()),
            (refused(1, closed), refused(2, closed))
        );
        assert_eq!((stream.next(), stream.next()), (item(3), Poll::Ready(None)));
        assert_eq!(stream.wakes(), 1);
    }

    #[test]
    fn an_evicted_item_is_returned() {
        let queue = newest_first(ten_per_second(1), 1);
        let mut stream = Polled::new(LimitedStream::new(stream::iter(0..3), &queue, PerItem));
        assert_eq!(stream.next(), item(0));
        stream.waits();
        let newer = Task::waiting(queue.acquire(1));
        assert_eq!(stream.wakes(), 1);
        assert_eq!(
            stream.next(),
            refused(
                1,
                Rejected::Evicted {
                    permits: 1,
                    retry: Retry::At(ms(100))
                }
            )
        );
        drop(newer);
        stream.waits();
        advance(&queue, ms(100));
        assert_eq!(stream.next(), item(2));
    }

    #[test]
    fn a_limit_lowered_below_a_waiting_item_returns_it() {
        let queue = queue(Concurrency::new(4), 9);
        let _held = queue.try_acquire(2).unwrap();
        let mut stream = Polled::new(LimitedStream::new(
            stream::iter([3, 1]),
            &queue,
            |n: &u32| *n,
        ));
        stream.waits();
        queue.change(|limit| limit.set_limit(2)).unwrap();
        assert_eq!(stream.wakes(), 1);
        assert_eq!(
            stream.next(),
            refused(
                3,
                Rejected::ExceedsCapacity {
                    permits: 3,
                    capacity: 2
                }
            )
        );
        stream.waits();
    }

    #[test]
    fn errors_say_what_failed_and_why() {
        let refused = Refused {
            item: 7,
            rejected: Rejected::Closed { permits: 1 },
        };
        assert_eq!(refused.to_string(), "item rejected: queue closed");
        assert!(refused.source().is_none());
        let error = SinkError::<_, Broken>::Refused(refused);
        assert_eq!(error.to_string(), "item rejected: queue closed");
        assert!(error.source().is_none());
        let debug = "Refused(Refused { rejected: Closed { permits: 1 }, .. })";
        assert_eq!(format!("{error:?}"), debug, "whatever the item is");
        assert_eq!(
            SinkError::<u32, _>::Sink(Broken("ready")).to_string(),
            "broken: ready"
        );
    }
}

mod leases {
    use super::*;

    #[test]
    fn leases_bound_the_items_in_progress() {
        let queue = queue(Concurrency::new(3), 9);
        let mut stream = Polled::new(LeasedStream::new(stream::iter(0..100), &queue, PerItem));
        let mut work = VecDeque::new();
        for expected in 0..100 {
            if work.len() == 3 {
                let wakes = stream.wakes();
                stream.waits();
                assert_eq!(queue.change(Concurrency::in_use), 3);
                work.pop_front();
                assert_eq!(stream.wakes(), wakes + 1);
            }
            let Poll::Ready(Some(Ok((item, lease)))) = stream.next() else {
                panic!("there is room")
            };
            assert_eq!((item, lease.permits()), (expected, 1));
            work.push_back(lease);
        }
        assert!(matches!(stream.next(), Poll::Ready(None)));
        drop(work);
        assert_eq!(available(&queue), 3);
    }

    #[test]
    fn leases_hold_the_weight_of_their_items() {
        let queue = queue(Concurrency::new(5), 9);
        let mut stream = Polled::new(LeasedStream::new(
            stream::iter([3, 2, 4]),
            &queue,
            |n: &u32| *n,
        ));
        let mut next = || match stream.next() {
            Poll::Ready(Some(Ok((_, lease)))) => Some(lease),
            _ => None,
        };
        let (three, two) = (next().unwrap(), next().unwrap());
        assert_eq!((three.permits(), two.permits()), (3, 2));
        drop(three);
        assert!(next().is_none(), "3 of 4");
        drop(two);
        assert_eq!(next().unwrap().permits(), 4);
    }

    #[test]
    fn leases_outlive_their_stream_and_own_their_queue() {
        let queue = Arc::new(queue(Concurrency::new(1), 9));
        let mut stream = Polled::new(LeasedStream::new(
            stream::iter([0]),
            Arc::clone(&queue),
            PerItem,
        ));
        let Poll::Ready(Some(Ok((0, lease)))) = stream.next() else {
            panic!("a permit is free")
        };
        drop(stream);
        assert_eq!((available(&queue), Arc::strong_count(&queue)), (0, 2));
        drop(lease);
        assert_eq!((available(&queue), Arc::strong_count(&queue)), (1, 1));
    }

    #[test]
    fn a_limited_stream_returns_its_permits_as_the_item_comes_out() {
        let queue = queue(Concurrency::new(1), 0);
        let all: Vec<_> = now(LimitedStream::new(stream::iter(0..9), &queue, PerItem).collect());
        assert!(all.into_iter().map(Result::unwrap).eq(0..9));
        assert_eq!(available(&queue), 1);
    }
}

mod items {
    use super::*;

    #[test]
    fn nothing_is_polled_while_an_item_waits_and_the_task_is_woken_once() {
        let queue = queue(ten_per_second(1), 9);
        let (inner, polls) = source(&[0, 1, 2].map(Step::Item));
        let mut stream = Polled::new(LimitedStream::new(inner, &queue, PerItem));
        assert_eq!((stream.next(), *polls.borrow()), (item(0), 1));
        for grant in 1..=2 {
            for time in 0..10 {
                stream.waits();
                advance(&queue, ms(100 * (grant as u64 - 1) + 10 * time));
                assert_eq!((*polls.borrow(), stream.wakes()), (1 + grant, grant - 1));
            }
            advance(&queue, ms(100 * grant as u64));
            assert_eq!(
                (*polls.borrow(), stream.wakes()),
                (1 + grant, grant),
                "by the grant only"
            );
            assert_eq!(
                (stream.next(), *polls.borrow()),
                (item(grant as u32), 1 + grant)
            );
        }
        advance(&queue, ms(900));
        assert_eq!(
            (stream.next(), *polls.borrow(), stream.wakes()),
            (Poll::Ready(None), 4, 2)
        );
    }

    #[test]
    fn no_permit_is_asked_for_before_there_is_an_item() {
        let queue = queue(ten_per_second(1), 9);
        let (inner, polls) = source(&[Step::Pending, Step::Pending, Step::Item(7)]);
        let mut stream = Polled::new(LimitedStream::new(inner, &queue, PerItem));
        stream.waits();
        stream.waits();
        assert_eq!(
            (available(&queue), queue.counts().waiters, *polls.borrow()),
            (1, 0, 2)
        );
        assert_eq!((stream.next(), available(&queue)), (item(7), 0));
    }

    #[test]
    fn the_latest_waker_is_woken() {
        let queue = queue(ten_per_second(1), 9);
        let mut stream = Polled::new(LimitedStream::new(stream::iter(0..2), &queue, PerItem));
        assert_eq!(stream.next(), item(0));
        stream.waits();
        let old = core::mem::replace(&mut stream.waker, Waker::noop().clone());
        stream.waits();
        stream.waker = old;
        advance(&queue, ms(100));
        assert_eq!(stream.wakes(), 0);
        assert_eq!(stream.next(), item(1));
    }

    #[test]
    fn a_stream_dropped_while_an_item_waits_leaves_the_queue() {
        let queue = queue(ten_per_second(1), 2);
        let item = Rc::new(());
        let mut stream = Polled::new(LimitedStream::new(
            stream::iter([(); 2].map(|()| Rc::clone(&item))),
            &queue,
            PerItem,
        ));
        assert!(stream.next().is_ready());
        stream.waits();
        let behind = Task::waiting(queue.acquire(1));
        drop(stream);
        assert_eq!((queue.counts().waiters, Rc::strong_count(&item)), (1, 1));
        advance(&queue, ms(100));
        assert_eq!(permits(behind.outcome()), Ok(1));
    }

    #[test]
    fn a_stream_dropped_with_an_unclaimed_grant_passes_it_on() {
        let queue = queue(Concurrency::new(1), 9);
        let held = queue.try_acquire(1).unwrap();
        let mut stream = Polled::new(LeasedStream::new(stream::iter([0]), &queue, PerItem));
        stream.waits();
        let behind = Task::waiting(queue.acquire(1));
        drop(held);
        assert_eq!((stream.wakes(), behind.wakes()), (1, 0));
        drop(stream);
        assert_eq!(behind.wakes(), 1);
        drop(behind);
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn the_size_hint_counts_the_waiting_item() {
        let queue = queue(Concurrency::new(1), 9);
        let _held = queue.try_acquire(1).unwrap();
        let mut limited = Polled::new(LimitedStream::new(stream::iter(0..3), &queue, PerItem));
        let mut leased = Polled::new(LeasedStream::new(stream::iter(0..3), &queue, PerItem));
        assert_eq!(
            (limited.it.size_hint(), leased.it.size_hint()),
            ((3, Some(3)), (3, Some(3)))
        );
        limited.waits();
        leased.waits();
        assert_eq!(
            (limited.it.size_hint(), leased.it.size_hint()),
            ((3, Some(3)), (3, Some(3)))
        );
        assert_eq!(limited.it.get_ref().size_hint(), (2, Some(2)));
        queue.close();
        assert!(limited.next().is_ready() && leased.next().is_ready());
        assert_eq!(
            (limited.it.size_hint(), leased.it.size_hint()),
            ((2, Some(2)), (2, Some(2)))
        );
    }

    #[test]
    fn a_size_hint_beyond_usize_saturates() {
        struct Endless;
        impl Stream for Endless {
            type Item = u32;

            fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
                Poll::Ready(Some(1))
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                (usize::MAX, Some(usize::MAX))
            }
        }
        let queue = queue(Concurrency::new(1), 9);
        let _held = queue.try_acquire(1).unwrap();
        let mut stream = Polled::new(LimitedStream::new(Endless, &queue, PerItem));
        assert_eq!(stream.it.size_hint(), (usize::MAX, Some(usize::MAX)));
        stream.waits();
        assert_eq!(stream.it.size_hint(), (usize::MAX, None));
    }

    #[test]
    fn a_stream_that_panics_costs_no_permits_and_may_go_on() {
        let queue = queue(Concurrency::new(1), 9);
        let (inner, _) = source(&[Step::Item(0), Step::Panic, Step::Item(1)]);
        let mut stream = Polled::new(LeasedStream::new(inner, &queue, PerItem));
        assert!(stream.next().is_ready());
        assert!(catch_unwind(AssertUnwindSafe(|| stream.next())).is_err());
        assert_eq!((available(&queue), queue.counts().waiters), (1, 0));
        assert!(matches!(stream.next(), Poll::Ready(Some(Ok((1, _))))));
    }

    #[test]
    fn a_waker_that_panics_costs_no_permits() {
        let queue = queue(Concurrency::new(1), 9);
        let held = queue.try_acquire(1).unwrap();
        let mut stream = Polled::new(LeasedStream::new(stream::iter([0]), &queue, PerItem));
        stream.waker = waker(|| panic!("a waker"));
        stream.waits();
        assert!(
            catch_unwind(AssertUnwindSafe(|| drop(held))).is_err(),
            "the releaser gets the panic"
        );
        let Poll::Ready(Some(Ok((0, lease)))) = stream.next() else {
            panic!("the item is granted")
        };
        drop((lease, stream));
        assert_eq!((available(&queue), queue.counts().waiters), (1, 0));
    }

    #[test]
    fn a_hook_that_panics_costs_neither_the_item_nor_permits() {
        let loud = AtomicBool::new(true);
        let hook = move |_: &Waited| assert!(!loud.swap(false, Ordering::Relaxed), "a hook");
        let queue = queue(Concurrency::new(1), 9).with_hook(hook);
        let held = queue.try_acquire(1).unwrap();
        let mut stream = Polled::new(LeasedStream::new(stream::iter([0]), &queue, PerItem));
        stream.waits();
        drop(held);
        assert!(catch_unwind(AssertUnwindSafe(|| stream.next())).is_err());
        assert!(matches!(stream.next(), Poll::Ready(Some(Ok((0, _))))));
        assert_eq!((queue.available(), queue.counts().waiters), (1, 0));
    }

    #[test]
    fn adapters_can_be_sent_if_their_parts_can() {
        fn is_send<T: Send>(_: &T) {}
        let queue = Arc::new(queue(Concurrency::new(1), 9));
        is_send(&LimitedStream::new(
            stream::iter(0..1),
            Arc::clone(&queue),
            PerItem,
        ));
        is_send(&LeasedStream::new(
            stream::iter(0..1),
            Arc::clone(&queue),
            PerItem,
        ));
        is_send(&LimitedSink::<_, _, _, u8>::new(Vec::new(), queue, PerItem));
    }

    #[test]
    fn debug_shows_the_inner_stream() {
        let queue = queue(Concurrency::new(1), 9);
        let debug = |it: &dyn fmt::Debug| format!("{it:?}");
        let limited = debug(&LimitedStream::new(stream::iter([5]), &queue, PerItem));
        assert!(
            limited.starts_with("LimitedStream { stream: Iter"),
            "{limited}"
        );
        let leased = debug(&LeasedStream::new(stream::iter([5]), &queue, PerItem));
        assert!(
            leased.starts_with("LeasedStream { stream: Iter"),
            "{leased}"
        );
        let sink = debug(&LimitedSink::<_, _, _, u8>::new(
            Vec::<u8>::new(),
            &queue,
            PerItem,
        ));
        assert_eq!(sink, "LimitedSink { sink: [], .. }");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Broken(&'static str);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken: {}", self.0)
    }
}

impl Error for Broken {}

/// The calls of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Ready,
    Item(u32),
    Flush,
    Close,
}

/// What it answers, instead of success.
#[derive(Clone, Copy)]
enum Answer {
    Well,
    Pending,
    Fails(&'static str),
    Panics,
}

/// Records its calls, and gives scripted answers, call by call.
#[derive(Clone, Default)]
struct Out(Rc<RefCell<(Vec<Call>, VecDeque<Answer>)>>);

impl Out {
    fn answers(&self, answers: &[Answer]) {
        self.0.borrow_mut().1.extend(answers);
    }

    /// Returns the calls since the last time.
    fn calls(&self) -> Vec<Call> {
        core::mem::take(&mut self.0.borrow_mut().0)
    }

    fn answer(&self, call: Call) -> Poll<Result<(), Broken>> {
        let answer = {
            let mut this = self.0.borrow_mut();
            this.0.push(call);
            this.1.pop_front()
        };
        match answer {
            None | Some(Answer::Well) => Poll::Ready(Ok(())),
            Some(Answer::Pending) => Poll::Pending,
            Some(Answer::Fails(why)) => Poll::Ready(Err(Broken(why))),
            Some(Answer::Panics) => panic!("the inner sink"),
        }
    }
}

impl Sink<u32> for Out {
    type Error = Broken;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.answer(Call::Ready)
    }

    fn start_send(self: Pin<&mut Self>, item: u32) -> Result<(), Broken> {
        match self.answer(Call::Item(item)) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => unreachable!("it has returned ready"),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.answer(Call::Flush)
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.answer(Call::Close)
    }
}

mod sinks {
    use super::*;

    type Limited<'q, L> = Polled<LimitedSink<Out, &'q Manual<L>, fn(&u32) -> u32, u32>>;
    type Outcome = Poll<Result<(), SinkError<u32, Broken>>>;

    const DONE: Outcome = Poll::Ready(Ok(()));

    fn failed(why: &'static str) -> Outcome {
        Poll::Ready(Err(SinkError::Sink(Broken(why))))
    }

    fn refused(item: u32, rejected: Rejected) -> Outcome {
        Poll::Ready(Err(SinkError::Refused(Refused { item, rejected })))
    }

    /// Each item is its own weight.
    fn limited<L: QueueLimiter>(queue: &Manual<L>) -> (Limited<'_, L>, Out) {
        let out = Out::default();
        (
            Polled::new(LimitedSink::new(out.clone(), queue, |item| *item)),
            out,
        )
    }

    const POLLS: [Call; 3] = [Call::Ready, Call::Flush, Call::Close];

    fn ask<L: QueueLimiter>(sink: &mut Limited<'_, L>, call: Call) -> Outcome {
        match call {
            Call::Ready => sink.ready(),
            Call::Flush => sink.flush(),
            Call::Close => sink.close(),
            Call::Item(_) => unreachable!("no call that polls"),
        }
    }

    #[test]
    fn items_go_on_at_the_rate_of_permits() {
        let queue = queue(ten_per_second(2), 9);
        let sink = LimitedSink::new(Vec::new(), &queue, |item: &u32| *item);
        let mut sink = Box::pin(sink);
        let mut went = Vec::new();
        for item in [2, 1, 0, 2, 1] {
            let mut send = Task::new(sink.send(item));
            if send.is_pending() {
                tick(&queue).unwrap();
                assert_eq!((send.wakes(), send.poll()), (1, Poll::Ready(Ok(()))));
            }
            drop(send);
            went.push((item, queue.clock().now().as_nanos() / 1_000_000));
        }
        assert_eq!(went, [(2, 0), (1, 100), (0, 100), (2, 300), (1, 400)]);
        assert_eq!(*sink.get_ref(), [2, 1, 0, 2, 1]);
    }

    #[test]
    fn any_pointer_to_the_queue_works() {
        static QUEUE: LazyLock<Manual> = LazyLock::new(|| queue(Concurrency::new(1), 0));
        let shared = Arc::new(queue(Concurrency::new(1), 0));
        let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(100), Seed::new());
        let keyed = KeyedQueue::new(table, Hand::new(), 0);
        let items = || stream::iter((0..3).map(Ok));
        let mut kept = [const { Vec::new() }; 3];
        now(items().forward(LimitedSink::new(&mut kept[0], &*QUEUE, PerItem))).unwrap();
        now(items().forward(LimitedSink::new(&mut kept[1], Arc::clone(&shared), PerItem))).unwrap();
        now(items().forward(LimitedSink::new(&mut kept[2], keyed.key("alice"), PerItem))).unwrap();
        assert!(kept.iter().all(|items| *items == [0, 1, 2]));
        assert_eq!(
            (available(&QUEUE), available(&shared)),
            (1, 1),
            "returned as items go on"
        );
    }

    #[test]
    fn no_permits_are_spent_while_the_inner_sink_is_not_ready() {
        let queue = queue(ten_per_second(1), 9);
        let (mut sink, out) = limited(&queue);
        out.answers(&[Answer::Pending; 3]);
        for _ in 0..3 {
            assert!(sink.ready().is_pending());
        }
        assert_eq!((available(&queue), queue.counts().waiters), (1, 0));
        assert_eq!(sink.ready(), DONE);
        assert_eq!((sink.start(1), out.calls()), (Ok(()), vec![Call::Ready; 4]));
        assert_eq!(
            available(&queue),
            1,
            "also not before the next call that polls"
        );
        out.answers(&[Answer::Well, Answer::Well, Answer::Pending]);
        assert!(sink.ready().is_pending(), "for the next one");
        assert_eq!(
            (available(&queue), out.calls()),
            (0, vec![Call::Ready, Call::Item(1), Call::Ready])
        );
    }

    #[test]
    fn if_the_inner_sink_is_no_longer_ready_the_item_keeps_or_returns_its_permits() {
        for dropped in [false, true] {
            let queue = queue(ten_per_second(1), 9);
            let (mut sink, out) = limited(&queue);
            assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
            out.answers(&[Answer::Pending, Answer::Fails("ready"), Answer::Pending]);
            assert!(sink.flush().is_pending());
            assert_eq!((available(&queue), sink.flush()), (0, failed("ready")));
            assert!(sink.flush().is_pending());
            if dropped {
                drop(sink);
                assert_eq!(available(&queue), 1);
                continue;
            }
            assert_eq!((sink.flush(), available(&queue)), (DONE, 0));
            assert_eq!(out.calls()[4..], [Call::Ready, Call::Item(1), Call::Flush]);
        }
    }

    #[test]
    fn a_failed_flush_is_reported_and_the_waiting_item_waits_on() {
        let queue = queue(ten_per_second(1), 9);
        let (mut sink, out) = limited(&queue);
        let _held = queue.try_acquire(1).unwrap();
        assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
        out.answers(&[Answer::Fails("flush")]);
        assert_eq!(sink.flush(), failed("flush"));
        assert_eq!(queue.counts().waiters, 1);
        advance(&queue, ms(100));
        assert_eq!((sink.wakes(), sink.flush()), (1, DONE));
        assert!(out.calls().contains(&Call::Item(1)));
    }

    #[test]
    fn while_an_item_waits_the_earlier_ones_are_flushed_and_the_task_is_woken_once() {
        let queue = queue(ten_per_second(1), 9);
        let (mut sink, out) = limited(&queue);
        for item in 0..3_usize {
            assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
            out.calls();
            for time in 0..10 * u64::from(item > 0) {
                assert!(ask(&mut sink, POLLS[time as usize % 3]).is_pending());
                advance(&queue, ms(100 * (item as u64 - 1) + 10 * time));
                assert_eq!((out.calls(), sink.wakes()), (vec![Call::Flush], item - 1));
            }
            advance(&queue, ms(100 * item as u64));
            assert_eq!(
                (out.calls(), sink.wakes()),
                (vec![], item),
                "by the grant only"
            );
        }
        assert_eq!(sink.flush(), DONE);
        assert_eq!(
            (out.calls(), sink.wakes()),
            (vec![Call::Ready, Call::Item(1), Call::Flush], 2)
        );
    }

    #[test]
    fn a_flush_and_a_close_send_the_waiting_item_first() {
        for call in [Call::Flush, Call::Close] {
            let queue = queue(ten_per_second(1), 9);
            let (mut sink, out) = limited(&queue);
            let _held = queue.try_acquire(1).unwrap();
            assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
            assert!(ask(&mut sink, call).is_pending());
            advance(&queue, ms(100));
            out.answers(&[Answer::Well, Answer::Well, Answer::Pending]);
            assert!(ask(&mut sink, call).is_pending(), "within");
            assert_eq!(ask(&mut sink, call), DONE);
            assert_eq!(
                out.calls(),
                [
                    Call::Ready,
                    Call::Flush,
                    Call::Ready,
                    Call::Item(1),
                    call,
                    call
                ]
            );
        }
    }

    #[test]
    fn without_a_waiting_item_a_flush_and_a_close_pass_through() {
        let queue = queue(Concurrency::new(1), 0);
        let _held = queue.try_acquire(1).unwrap();
        queue.close();
        let (mut sink, out) = limited(&queue);
        assert_eq!(
            (sink.ready(), sink.flush(), sink.close()),
            (DONE, DONE, DONE)
        );
        assert_eq!(out.calls(), [Call::Ready, Call::Flush, Call::Close]);
        assert_eq!(queue.counts().full, 0);
    }

    #[test]
    fn an_item_of_weight_zero_passes_whatever_the_limiter_says() {
        let queue = queue(Concurrency::new(1), 0);
        let _held = queue.try_acquire(1).unwrap();
        queue.close();
        let (mut sink, out) = limited(&queue);
        assert_eq!(
            (sink.ready(), sink.start(0), sink.flush()),
            (DONE, Ok(()), DONE)
        );
        assert_eq!(
            out.calls(),
            [Call::Ready, Call::Ready, Call::Item(0), Call::Flush]
        );
    }

    #[test]
    fn a_rejected_item_is_returned_once_and_the_next_one_passes() {
        let queue = queue(ten_per_second(2), 0);
        let (mut sink, out) = limited(&queue);
        for call in POLLS {
            assert_eq!((sink.ready(), sink.start(3)), (DONE, Ok(())));
            let no = refused(
                3,
                Rejected::ExceedsCapacity {
                    permits: 3,
                    capacity: 2,
                },
            );
            if call == Call::Ready {
                // The error is returned once the next item is safe, or there is none.
                assert_eq!((sink.ready(), sink.flush()), (DONE, no));
            } else {
                assert_eq!(ask(&mut sink, call), no);
            }
            assert_eq!(
                out.calls(),
                [Call::Ready],
                "and nothing is closed or flushed"
            );
        }
        assert_eq!(
            (sink.ready(), sink.start(2), sink.ready(), sink.start(2)),
            (DONE, Ok(()), DONE, Ok(()))
        );
        let full = Rejected::QueueFull {
            permits: 2,
            retry: Retry::At(ms(200)),
        };
        assert_eq!(sink.flush(), refused(2, full));
        assert_eq!(sink.flush(), DONE);
        assert_eq!(
            out.calls(),
            [
                Call::Ready,
                Call::Ready,
                Call::Item(2),
                Call::Ready,
                Call::Flush
            ]
        );
    }

    #[test]
    fn a_queue_that_closes_returns_waiting_and_later_items() {
        let queue = queue(ten_per_second(1), 9);
        let (mut sink, out) = limited(&queue);
        let _held = queue.try_acquire(1).unwrap();
        assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
        assert!(sink.flush().is_pending());
        queue.close();
        assert_eq!(sink.wakes(), 1);
        assert_eq!(sink.flush(), refused(1, Rejected::Closed { permits: 1 }));
        assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
        assert_eq!(
            (sink.ready(), sink.close()),
            (DONE, refused(1, Rejected::Closed { permits: 1 }))
        );
        assert_eq!((sink.close(), sink.wakes()), (DONE, 1));
        assert_eq!(
            out.calls(),
            [Call::Ready, Call::Flush, Call::Ready, Call::Close]
        );
    }

    /// A caller that starts items without a flush between them hands over each of them once it has
    /// started.
    #[test]
    fn a_rejected_item_loses_no_other_one() {
        let queue = queue(ten_per_second(2), 0);
        let mut sink = core::pin::pin!(LimitedSink::new(Vec::new(), &queue, |item: &u32| *item));
        let mut refused = Vec::new();
        let mut note = |outcome: Result<(), SinkError<u32, core::convert::Infallible>>| {
            if let Err(SinkError::Refused(Refused { item, .. })) = outcome {
                refused.push(item);
            }
        };
        for item in [1, 3, 4, 1, 5] {
            note(now(sink.feed(item)));
        }
        note(now(sink.flush()));
        note(now(sink.flush()));
        assert_eq!(
            (&sink.get_ref()[..], &refused[..]),
            (&[1, 1][..], &[3, 4, 5][..])
        );
    }

    #[test]
    fn an_evicted_item_is_returned() {
        let queue = queue(ten_per_second(1), 1).with_order(Order::NewestFirst);
        let (mut sink, _) = limited(&queue);
        let _held = queue.try_acquire(1).unwrap();
        assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
        assert!(sink.flush().is_pending());
        let _newer = Task::waiting(queue.acquire(1));
        let Poll::Ready(Err(SinkError::Refused(back))) = sink.flush() else {
            panic!("the item is rejected")
        };
        assert!(matches!(
            back,
            Refused {
                item: 1,
                rejected: Rejected::Evicted { .. }
            }
        ));
    }

    #[test]
    fn errors_of_the_inner_sink_pass_through() {
        let queue = queue(Concurrency::new(1), 0);
        let (mut sink, out) = limited(&queue);
        out.answers(&[Answer::Fails("ready")]);
        assert_eq!(sink.ready(), failed("ready"));
        out.answers(&[Answer::Well, Answer::Well, Answer::Fails("item")]);
        assert_eq!(
            (sink.ready(), sink.start(1), sink.flush()),
            (DONE, Ok(()), failed("item"))
        );
        assert_eq!(available(&queue), 1);
        out.answers(&[Answer::Fails("flush"), Answer::Fails("close")]);
        assert_eq!(
            (sink.flush(), sink.close()),
            (failed("flush"), failed("close"))
        );
        out.calls();
        assert_eq!(
            (sink.ready(), sink.start(1), sink.close()),
            (DONE, Ok(()), DONE)
        );
        assert_eq!(
            out.calls(),
            [Call::Ready, Call::Ready, Call::Item(1), Call::Close]
        );
    }

    #[test]
    fn one_item_waits_at_a_time() {
        let queue = queue(ten_per_second(1), 9);
        let (mut sink, out) = limited(&queue);
        let _held = queue.try_acquire(1).unwrap();
        assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
        assert!(sink.ready().is_pending());
        assert!(
            catch_unwind(AssertUnwindSafe(|| sink.start(7))).is_err(),
            "it has not been ready yet"
        );
        advance(&queue, ms(100));
        assert_eq!(sink.flush(), DONE);
        assert_eq!(
            out.calls()[2..],
            [Call::Ready, Call::Item(1), Call::Flush],
            "the first one still waits"
        );
    }

    #[test]
    fn a_sink_that_panics_costs_no_permits() {
        let queue = queue(Concurrency::new(3), 9);
        for before in 0..4 {
            let (mut sink, out) = limited(&queue);
            out.answers(&[Answer::Well; 4][..before]);
            out.answers(&[Answer::Panics]);
            let ends = catch_unwind(AssertUnwindSafe(|| {
                _ = sink.ready();
                sink.start(3).unwrap();
                _ = sink.flush();
            }));
            assert!(ends.is_err());
            assert_eq!(sink.flush(), DONE, "it continues");
            assert_eq!((available(&queue), queue.counts().waiters), (3, 0));
            let went = before > 0;
            assert_eq!(out.calls().contains(&Call::Item(3)), went);
        }
    }

    #[test]
    fn a_waker_that_panics_costs_no_permits() {
        let queue = queue(Concurrency::new(1), 9);
        let held = queue.try_acquire(1).unwrap();
        let (mut sink, out) = limited(&queue);
        sink.waker = waker(|| panic!("a waker"));
        assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
        assert!(sink.flush().is_pending());
        assert!(
            catch_unwind(AssertUnwindSafe(|| drop(held))).is_err(),
            "the releaser gets the panic"
        );
        assert_eq!((sink.flush(), out.calls().len()), (DONE, 5));
        assert_eq!((available(&queue), queue.counts().waiters), (1, 0));
    }

    #[test]
    fn a_sink_dropped_while_an_item_waits_leaves_the_queue_and_its_grant() {
        let queue = queue(Concurrency::new(1), 9);
        for granted in [false, true] {
            let mut held = Some(queue.try_acquire(1).unwrap());
            let (mut sink, out) = limited(&queue);
            assert_eq!((sink.ready(), sink.start(1)), (DONE, Ok(())));
            assert!(sink.flush().is_pending());
            let behind = Task::waiting(queue.acquire(1));
            held.take_if(|_| granted);
            assert_eq!((sink.wakes(), behind.wakes()), (usize::from(granted), 0));
            drop((sink, held));
            assert_eq!(
                (behind.wakes(), out.calls()),
                (1, vec![Call::Ready, Call::Flush])
            );
            assert_eq!(permits(behind.outcome()), Ok(1));
        }
        assert_eq!((available(&queue), queue.counts().waiters), (1, 0));
    }

    #[test]
    fn a_whole_stream_goes_through_in_order() {
        let queue = Arc::new(queue(ten_per_second(3), 9));
        queue.attend_shared();
        let mut kept = Vec::new();
        let weight = |item: &u32| item % 4;
        let out = LimitedSink::new(&mut kept, Arc::clone(&queue), weight);
        let mut all = Task::new(stream::iter((0..50).map(Ok)).forward(out));
        let mut polls = 1;
        while all.is_pending() {
            let at = queue.clock().alarm().expect("the wait is for time");
            queue.clock().run(at);
            assert_eq!(all.wakes(), polls);
            polls += 1;
        }
        drop(all);
        assert!(kept.into_iter().eq(0..50));
        // 73 permits, 3 of which were available.
        assert_eq!(queue.clock().now(), ms(7_000));
    }
}

/// An inner object that is both a stream and a sink.
mod both {
    use super::*;

    impl Stream for Out {
        type Item = u32;

        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
            Poll::Ready(Some(7))
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            (3, None)
        }
    }

    /// A queue that grants nothing.
    fn shut() -> Manual {
        let queue = queue(Concurrency::new(1), 0);
        queue.close();
        queue
    }

    #[test]
    fn a_limited_stream_passes_its_input_through_unchanged() {
        fn passes<S: Stream + Sink<u32, Error = Broken>>(stream: S, out: &Out) {
            let mut stream = Polled::new(stream);
            out.answers(&[Answer::Pending]);
            assert!(stream.ready().is_pending());
            assert_eq!(
                (stream.ready(), stream.start(1)),
                (Poll::Ready(Ok(())), Ok(()))
            );
            out.answers(&[Answer::Fails("flush"), Answer::Fails("close")]);
            assert_eq!(stream.flush(), Poll::Ready(Err(Broken("flush"))));
            assert_eq!(stream.close(), Poll::Ready(Err(Broken("close"))));
            assert_eq!(
                out.calls(),
                [
                    Call::Ready,
                    Call::Ready,
                    Call::Item(1),
                    Call::Flush,
                    Call::Close
                ]
            );
        }
        let (queue, out) = (shut(), Out::default());
        passes(LimitedStream::new(out.clone(), &queue, PerItem), &out);
        passes(LeasedStream::new(out.clone(), &queue, PerItem), &out);
        assert_eq!(queue.counts().full, 0);
    }

    #[test]
    fn a_limited_sink_passes_its_output_through_unchanged() {
        let queue = shut();
        let mut sink = Polled::new(LimitedSink::<_, _, _, u32>::new(
            Out::default(),
            &queue,
            PerItem,
        ));
        assert_eq!(
            (sink.next(), sink.it.size_hint()),
            (Poll::Ready(Some(7)), (3, None))
        );
    }

    #[test]
    fn the_inner_object_can_be_reached() {
        let (queue, out) = (shut(), Out::default());
        let mut context = Context::from_waker(Waker::noop());
        let mut limited = Box::pin(LimitedStream::new(out.clone(), &queue, PerItem));
        assert_eq!(
            limited.as_mut().get_pin_mut().poll_next(&mut context),
            Poll::Ready(Some(7))
        );
        let mut leased = Box::pin(LeasedStream::new(out.clone(), &queue, PerItem));
        assert_eq!(
            leased.as_mut().get_pin_mut().poll_next(&mut context),
            Poll::Ready(Some(7))
        );
        let mut sink = Box::pin(LimitedSink::<_, _, _, u32>::new(
            out.clone(),
            &queue,
            PerItem,
        ));
        sink.as_mut().get_pin_mut().start_send(9).unwrap();
        assert_eq!(out.calls(), [Call::Item(9)]);
    }
}
