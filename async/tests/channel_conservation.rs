//! Nothing is lost in a channel, whatever is cancelled, closed, dropped, or panics: no item, no
//! place, no permit, no wake-up.
//!
//! Random steps beside a plain model, which predicts after each step where everything is, which
//! task is woken, and how often; and threads that do the same for a second.
#![cfg(feature = "channel")]

mod support;

use core::future::{Future, poll_fn};
use core::num::NonZero;
use core::panic::AssertUnwindSafe;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll};
use core::time::Duration;
use std::collections::{HashSet, VecDeque};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use portcullis_async::channel::{Receiver, SendError, Sender, TryRecvError, TrySendError, channel};
use portcullis_async::{Queue, Refused, Rejected, Weight};
use portcullis_core::{Concurrency, Denied, Lease, ManualClock, Rate, Timestamp, TokenBucket};
use support::random::Random;

/// An item to send.
#[derive(Debug)]
struct Item {
    writer: usize,
    number: u64,
    weight: u32,
    /// Panics in its drop, unless another panic is under way.
    loud: bool,
    here: Arc<AtomicU64>,
}

impl Item {
    fn new(writer: usize, number: u64, weight: u32, loud: bool, here: &Arc<AtomicU64>) -> Self {
        here.fetch_add(1, Ordering::Relaxed);
        Self {
            writer,
            number,
            weight,
            loud,
            here: Arc::clone(here),
        }
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.here.fetch_sub(1, Ordering::Relaxed);
        if self.loud && !thread::panicking() {
            resume_unwind(Box::new("on purpose"));
        }
    }
}

/// Weighs what the item says; [`u32::MAX`] panics.
#[derive(Clone, Copy)]
struct Says;

impl Weight<Item> for Says {
    fn permits(&self, item: &Item) -> u32 {
        if item.weight == u32::MAX {
            resume_unwind(Box::new("on purpose"));
        }
        item.weight
    }
}

/// Returns the result of `work`; or `None` after an intended panic.
fn caught<T>(f: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(outcome) => Some(outcome),
        Err(panic)
            if panic.is::<&str>() && *panic.downcast_ref::<&str>().unwrap() == "on purpose" =>
        {
            None
        }
        Err(panic) => resume_unwind(panic),
    }
}

mod model {
    use super::*;
    use support::{Hand, Task, available};

    type Shared = Arc<Queue<Concurrency, Hand>>;
    type Write = core::pin::Pin<Box<dyn Future<Output = Result<(), SendError<Item>>>>>;
    /// The result of a receive, together with its receiver: if the receiver panicked in its drop
    /// within the future, the result would be lost.
    type Read = core::pin::Pin<
        Box<dyn Future<Output = (Option<(Item, Lease<Shared>)>, Receiver<Item, Shared>)>>,
    >;

    const LIMIT: u32 = 5;

    /// The stage of a sender.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum At {
        Start,
        Room,
        HasPlace,
        Permits,
        HasPermits,
        /// Has reserved, and not sent yet.
        Reserved,
    }

    struct Writer {
        at: At,
        number: u64,
        weight: u32,
        wakes: usize,
        reserves: bool,
        go: Arc<AtomicBool>,
        /// Whether its waker panics.
        loud: bool,
        task: Task<Write>,
    }

    struct Reader {
        number: u64,
        /// Whether it has a claim to an item.
        claims: bool,
        wakes: usize,
        task: Task<Read>,
    }

    struct Model {
        capacity: usize,
        free: usize,
        permits: u32,
        closed: bool,
        sender: Option<Sender<Item, Shared, Says>>,
        receiver: Option<Receiver<Item, Shared>>,
        queue: Shared,
        items: VecDeque<(u64, u32)>,
        writers: Vec<Writer>,
        readers: Vec<Reader>,
        /// The waiting senders, by number.
        room: VecDeque<u64>,
        line: VecDeque<u64>,
        reads: VecDeque<u64>,
        /// Items without a claim of a receiver.
        unclaimed: usize,
        leases: Vec<Lease<Shared>>,
        here: Arc<AtomicU64>,
        next: u64,
        random: Random,
        panicked: u64,
    }

    impl Model {
        fn new(seed: u64) -> Self {
            let mut random = Random::new(seed);
            let capacity = 1 + random.index(4);
            let queue = Arc::new(support::queue(Concurrency::new(LIMIT), u64::MAX));
            let places = NonZero::new(capacity as u32).unwrap();
            let (sender, receiver) = channel(Arc::clone(&queue), places, Says);
            Self {
                capacity,
                free: capacity,
                permits: LIMIT,
                closed: false,
                sender: Some(sender),
                receiver: Some(receiver),
                queue,
                items: VecDeque::new(),
                writers: Vec::new(),
                readers: Vec::new(),
                room: VecDeque::new(),
                line: VecDeque::new(),
                reads: VecDeque::new(),
                unclaimed: 0,
                leases: Vec::new(),
                here: Arc::default(),
                next: 0,
                random,
                panicked: 0,
            }
        }

        fn writer(&mut self, number: u64) -> &mut Writer {
            self.writers
                .iter_mut()
                .find(|writer| writer.number == number)
                .expect("the sender waits")
        }

        fn wake(&mut self, number: u64, at: At) {
            let writer = self.writer(number);
            writer.wakes += 1;
            writer.at = at;
        }

        /// A place is free: the first waiter gets it.
        fn place_back(&mut self) {
            match self.room.pop_front() {
                Some(number) => self.wake(number, At::HasPlace),
                None => self.free += 1,
            }
        }

        fn permits_back(&mut self, n: u32) {
            self.permits += n;
            while let Some(&number) = self.line.front() {
                let weight = self.writer(number).weight;
                if weight > self.permits {
                    break;
                }
                self.permits -= weight;
                self.line.pop_front();
                self.wake(number, At::HasPermits);
            }
        }

        fn arrives(&mut self, item: (u64, u32)) {
            self.items.push_back(item);
            self.claim_back();
        }

        /// An item is unclaimed: the receiver that came first gets a claim to it.
        fn claim_back(&mut self) {
            match self.reads.pop_front() {
                Some(number) => {
                    let reader = self.reader(number);
                    reader.claims = true;
                    reader.wakes += 1;
                }
                None => self.unclaimed += 1,
            }
        }

        fn reader(&mut self, number: u64) -> &mut Reader {
            self.readers
                .iter_mut()
                .find(|reader| reader.number == number)
                .expect("the receiver waits")
        }

        fn received(&mut self) -> (u64, u32) {
            let item = self.items.pop_front().expect("there is an item");
            self.place_back();
            item
        }

        fn end(&mut self) {
            if core::mem::replace(&mut self.closed, true) {
                return;
            }
            self.room.clear();
            while let Some(number) = self.reads.pop_front() {
                self.reader(number).wakes += 1;
            }
            for writer in &mut self.writers {
                writer.wakes +=
                    usize::from(matches!(writer.at, At::Room | At::Permits | At::HasPermits));
            }
        }

        /// The last handle of a side ends it.
        fn sides(&mut self) {
            if self.sender.is_none() && self.writers.is_empty() {
                self.end();
            }
            if self.receiver.is_none() && self.readers.is_empty() {
                self.end();
                while let Some((_, weight)) = self.items.pop_front() {
                    self.permits_back(weight);
                }
            }
        }

        /// Returns what a sender held when it left.
        fn leaves(&mut self, writer: &Writer) {
            match writer.at {
                At::Start => (),
                At::Room => self.room.retain(|number| *number != writer.number),
                At::HasPlace => self.place_back(),
                At::Permits => {
                    self.line.retain(|number| *number != writer.number);
                    self.place_back();
                    self.permits_back(0);
                }
                At::HasPermits | At::Reserved => {
                    self.place_back();
                    self.permits_back(writer.weight);
                }
            }
        }

        fn item(&mut self) -> Item {
            self.next += 1;
            let loud = self.random.one_in(40);
            let weight = if self.random.one_in(30) {
                LIMIT + 1
            } else {
                self.random.index(4) as u32
            };
            Item::new(0, self.next, weight, loud, &self.here)
        }

        fn start(&mut self) {
            let Some(sender) = self.sender.clone() else {
                return;
            };
            let (item, reserves) = (self.item(), self.random.one_in(3));
            let (number, weight) = (item.number, item.weight);
            let go = Arc::new(AtomicBool::new(false));
            let gone = Arc::clone(&go);
            let task: Write = Box::pin(async move {
                if !reserves {
                    return sender.send(item).await;
                }
                let permit = match sender.reserve(weight).await {
                    Ok(permit) => permit,
                    Err(SendError::Closed(())) => return Err(SendError::Closed(item)),
                    Err(SendError::Refused(Refused { rejected, .. })) => {
                        return Err(SendError::Refused(Refused { item, rejected }));
                    }
                    Err(other) => unreachable!("the model has no {other:?}"),
                };
                let gone = || {
                    if gone.load(Ordering::Relaxed) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                };
                poll_fn(|_| gone()).await;
                permit.send(item)
            });
            // One at a time: two panics at once would abort the test.
            let loud = self.writers.iter().all(|writer| !writer.loud) && self.random.one_in(10);
            let at = At::Start;
            let task = Task::new(task);
            self.writers.push(Writer {
                at,
                number,
                weight,
                wakes: 0,
                reserves,
                go,
                loud,
                task,
            });
            self.poll(self.writers.len() - 1);
        }

        /// The outcome of a polled sender: pending, sent, or an error.
        fn expect(&mut self, place: usize) -> Option<Result<(), SendError<()>>> {
            let Writer {
                at,
                number,
                weight,
                reserves,
                ref go,
                ..
            } = self.writers[place];
            let go = go.load(Ordering::Relaxed);
            let mut at = at;
            if matches!(at, At::Start | At::Room) && self.closed {
                self.writers[place].at = At::Start;
                return Some(Err(SendError::Closed(())));
            }
            if at == At::Room {
                return None;
            }
            if at == At::Start {
                if self.free == 0 {
                    self.writers[place].at = At::Room;
                    self.room.push_back(number);
                    return None;
                }
                self.free -= 1;
                at = At::HasPlace;
            }
            if at == At::HasPlace {
                if weight > LIMIT {
                    self.writers[place].at = At::HasPlace;
                    let rejected = Rejected::ExceedsCapacity {
                        permits: weight,
                        capacity: LIMIT,
                    };
                    return Some(Err(SendError::Refused(Refused { item: (), rejected })));
                }
                if weight == 0 || self.line.is_empty() && weight <= self.permits {
                    self.permits -= weight;
                    at = At::HasPermits;
                } else {
                    self.line.push_back(number);
                    at = At::Permits;
                }
            }
            self.writers[place].at = at;
            match at {
                At::Permits if self.closed => return Some(Err(SendError::Closed(()))),
                At::Permits => return None,
                _ => (),
            }
            self.writers[place].at = At::Reserved;
            if reserves && !go {
                return None;
            }
            Some(if self.closed {
                Err(SendError::Closed(()))
            } else {
                Ok(())
            })
        }

        fn poll(&mut self, place: usize) {
            let expected = self.expect(place);
            let writer = &mut self.writers[place];
            let outcome = caught(|| {
                if writer.loud {
                    let wakes = support::waker(|| {
                        if !thread::panicking() {
                            resume_unwind(Box::new("on purpose"));
                        }
                    });
                    writer.task.poll_with(&wakes)
                } else {
                    writer.task.poll()
                }
            });
            let Some(outcome) = outcome else {
                // The waker that panicked belongs to the waiter that got the returned permits.
                assert!(expected.is_some_and(|expected| expected.is_err()));
                self.panicked += 1;
                return self.cancel(place);
            };
            let outcome = match (outcome, expected) {
                (Poll::Pending, None) => return,
                (Poll::Ready(outcome), Some(expected)) => {
                    let (outcome, item) = match outcome {
                        Ok(()) => (Ok(()), None),
                        Err(SendError::Closed(item)) => (Err(SendError::Closed(())), Some(item)),
                        Err(SendError::Refused(Refused { item, rejected })) => (
                            Err(SendError::Refused(Refused { item: (), rejected })),
                            Some(item),
                        ),
                        Err(other) => unreachable!("the model has no {other:?}"),
                    };
                    assert_eq!(outcome, expected);
                    assert!(
                        item.as_ref()
                            .is_none_or(|item| item.number == self.writers[place].number)
                    );
                    self.panicked += u64::from(caught(|| drop(item)).is_none());
                    outcome
                }
                (outcome, expected) => {
                    panic!(
                        "{:?} is {outcome:?} instead of {expected:?}",
                        self.writers[place].at
                    )
                }
            };
            let writer = self.writers.swap_remove(place);
            match outcome {
                Ok(()) => self.arrives((writer.number, writer.weight)),
                Err(_) => self.leaves(&writer),
            }
            self.panicked += u64::from(caught(|| drop(writer.task)).is_none());
            self.sides();
        }

        fn cancel(&mut self, place: usize) {
            let writer = self.writers.swap_remove(place);
            self.leaves(&writer);
            self.panicked += u64::from(caught(|| drop(writer.task)).is_none());
            self.sides();
        }

        fn try_send(&mut self) {
            let Some(sender) = self.sender.clone() else {
                return;
            };
            let mut item = self.item();
            if self.random.one_in(30) {
                item.weight = u32::MAX;
                self.panicked += 1;
                assert!(caught(|| drop(sender.try_send(item))).is_none());
                return;
            }
            let (number, weight) = (item.number, item.weight);
            let outcome = sender.try_send(item);
            let sent = if self.closed {
                matches!(outcome, Err(TrySendError::Closed(_)))
            } else if self.free == 0 {
                matches!(outcome, Err(TrySendError::Full(_)))
            } else if weight > 0 && (!self.line.is_empty() || weight > self.permits) {
                let denied = match outcome {
                    Err(TrySendError::Denied { denied, .. }) => Some(denied),
                    _ => None,
                };
                denied.is_some_and(|denied| {
                    weight <= LIMIT || matches!(denied, Denied::ExceedsCapacity { .. })
                }) || weight > LIMIT && denied.is_some()
            } else {
                assert!(outcome.is_ok(), "{outcome:?}");
                self.free -= 1;
                self.permits -= weight;
                self.arrives((number, weight));
                return;
            };
            assert!(sent, "{outcome:?}");
            self.panicked += u64::from(caught(|| drop(outcome)).is_none());
        }

        /// An item that is received at once, or the error.
        fn try_recv(&mut self) {
            let Some(receiver) = self.receiver.clone() else {
                return;
            };
            let there = self.closed || self.unclaimed > 0;
            let expected = self.items.front().copied().filter(|_| there);
            if expected.is_some() && !self.closed {
                self.unclaimed -= 1;
            }
            match caught(|| receiver.try_recv()) {
                Some(Ok(item)) => {
                    assert_eq!(Some((item.number, item.weight)), expected);
                    self.panicked += u64::from(caught(|| drop(item)).is_none());
                }
                Some(Err(why)) => {
                    let told = if self.closed {
                        TryRecvError::Closed
                    } else {
                        TryRecvError::Empty
                    };
                    return assert_eq!((expected, why), (None, told));
                }
                // A sender's waker panicked: the item is gone.
                None => self.panicked += 1,
            }
            let (_, weight) = self.received();
            self.permits_back(weight);
        }

        fn read(&mut self, place: usize) {
            let Reader { number, claims, .. } = self.readers[place];
            let waits = self.reads.contains(&number);
            let finds = !waits && !claims && !self.closed && self.unclaimed > 0;
            if finds {
                self.unclaimed -= 1;
            }
            match caught(|| self.readers[place].task.poll()) {
                Some(Poll::Pending) => {
                    assert!(!claims && !finds && !self.closed);
                    if !waits {
                        self.reads.push_back(number);
                    }
                    return;
                }
                Some(Poll::Ready((read, receiver))) => {
                    match read {
                        Some((item, lease)) => {
                            assert!(claims || finds || self.closed);
                            assert_eq!(self.received(), (item.number, lease.permits()));
                            self.leases.push(lease);
                            self.panicked += u64::from(caught(|| drop(item)).is_none());
                        }
                        None => assert!(self.items.is_empty() && self.closed),
                    }
                    self.panicked += u64::from(caught(|| drop(receiver)).is_none());
                }
                None => {
                    self.panicked += 1;
                    let (_, weight) = self.received();
                    self.permits_back(weight);
                }
            }
            self.readers[place].claims = false;
            self.forget_reader(place);
        }

        fn forget_reader(&mut self, place: usize) {
            let reader = self.readers.swap_remove(place);
            self.reads.retain(|number| *number != reader.number);
            if reader.claims {
                self.claim_back();
            }
            self.panicked += u64::from(caught(|| drop(reader)).is_none());
            self.sides();
        }

        fn start_reading(&mut self) {
            let Some(receiver) = self.receiver.clone() else {
                return;
            };
            let read: Read = Box::pin(async move {
                let read = receiver.recv_leased().await;
                (read, receiver)
            });
            self.next += 1;
            self.readers.push(Reader {
                number: self.next,
                claims: false,
                wakes: 0,
                task: Task::new(read),
            });
            self.read(self.readers.len() - 1);
        }

        fn step(&mut self) {
            let place = self.random.index(self.writers.len().max(1));
            let reader = self.random.index(self.readers.len().max(1));
            match self.random.index(400) {
                0..90 => self.start(),
                90..170 if !self.writers.is_empty() => {
                    // Sends at last.
                    self.writers[place].go.store(true, Ordering::Relaxed);
                    self.poll(place);
                }
                170..200 if !self.writers.is_empty() => self.cancel(place),
                200..240 => self.try_send(),
                240..290 => self.try_recv(),
                290..320 => self.start_reading(),
                320..350 if !self.readers.is_empty() => self.read(reader),
                350..365 if !self.readers.is_empty() => self.forget_reader(reader),
                365..394 if !self.leases.is_empty() => {
                    let place = self.random.index(self.leases.len());
                    let lease = self.leases.swap_remove(place);
                    let weight = lease.permits();
                    self.panicked += u64::from(caught(|| drop(lease)).is_none());
                    self.permits_back(weight);
                }
                394 | 395 => {
                    let by_writer = self.random.one_in(2);
                    let was_open = match (&self.sender, &self.receiver) {
                        (Some(sender), _) if by_writer => caught(|| sender.close()),
                        (_, Some(receiver)) => caught(|| receiver.close()),
                        _ => return,
                    };
                    assert!(was_open.is_none_or(|was_open| was_open != self.closed));
                    self.panicked += u64::from(was_open.is_none());
                    self.end();
                }
                396 => {
                    let receiver = self.receiver.take();
                    self.panicked += u64::from(caught(|| drop(receiver)).is_none());
                    self.sides();
                }
                397 => {
                    let sender = self.sender.take();
                    self.panicked += u64::from(caught(|| drop(sender)).is_none());
                    self.sides();
                }
                _ => {
                    self.queue.advance();
                }
            }
        }

        fn check(&self) {
            assert_eq!(available(&self.queue), self.permits.into(), "permits");
            assert_eq!(self.queue.counts().waiters as usize, self.line.len());
            for writer in self.writers.iter().filter(|writer| !writer.loud) {
                assert_eq!(writer.task.wakes(), writer.wakes, "{:?}", writer.at);
            }
            let here = self.items.len() + self.writers.len();
            assert_eq!(self.here.load(Ordering::Relaxed), here as u64, "items");
            if let Some(receiver) = &self.receiver {
                assert_eq!(receiver.len(), self.items.len());
            }
            for reader in &self.readers {
                assert_eq!(reader.task.wakes(), reader.wakes, "a reader");
            }
            let claims = self.readers.iter().filter(|reader| reader.claims).count();
            assert!(self.closed || self.unclaimed + claims == self.items.len());
            assert!(self.closed || self.unclaimed == 0 || self.reads.is_empty());
            let held: u32 = self.leases.iter().map(Lease::permits).sum::<u32>()
                + self.items.iter().map(|(_, weight)| weight).sum::<u32>()
                + self
                    .writers
                    .iter()
                    .filter(|writer| matches!(writer.at, At::HasPermits | At::Reserved))
                    .map(|writer| writer.weight)
                    .sum::<u32>();
            assert_eq!(held + self.permits, LIMIT);
            let has_place = |writer: &&Writer| !matches!(writer.at, At::Start | At::Room);
            let taken = self.items.len() + self.writers.iter().filter(has_place).count();
            assert!(self.closed || taken + self.free == self.capacity);
        }

        /// Drops all handles; then the initial state must be restored.
        fn all_go(mut self) -> u64 {
            while !self.writers.is_empty() {
                self.cancel(0);
                self.check();
            }
            while !self.readers.is_empty() {
                self.forget_reader(0);
                self.check();
            }
            if self.receiver.is_some() {
                while !self.items.is_empty() {
                    self.try_recv();
                    self.check();
                }
            }
            self.leases.clear();
            assert_eq!(available(&self.queue), LIMIT.into());
            if let (Some(sender), Some(_), false) = (&self.sender, &self.receiver, self.closed) {
                let nothing = || Item::new(0, 0, 0, false, &self.here);
                for _ in 0..self.capacity {
                    assert!(sender.try_send(nothing()).is_ok(), "no place may be lost");
                }
                assert!(matches!(
                    sender.try_send(nothing()),
                    Err(TrySendError::Full(_))
                ));
            }
            drop((self.sender, self.receiver));
            assert_eq!(
                (
                    self.here.load(Ordering::Relaxed),
                    Arc::strong_count(&self.queue)
                ),
                (0, 1)
            );
            self.panicked
        }
    }

    #[test]
    fn every_sender_and_item_is_where_the_model_says_and_is_woken_as_often() {
        let mut panicked = 0;
        for seed in 1..if cfg!(debug_assertions) {
            1_500
        } else {
            10_000
        } {
            let mut model = Model::new(seed);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                for _ in 0..200 {
                    model.step();
                    model.check();
                }
                model.all_go()
            }));
            panicked += outcome.unwrap_or_else(|panic| {
                eprintln!("seed {seed}");
                resume_unwind(panic)
            });
        }
        assert!(panicked > 1_000, "too few panics: {panicked}");
    }

    /// By any time, a rate has let through no more than it allows, whatever is cancelled, and no
    /// sender waits for available tokens.
    #[test]
    fn a_rate_lets_through_what_it_allows_with_cancelled_senders() {
        const BURST: u64 = 3;
        for seed in 1..if cfg!(debug_assertions) { 300 } else { 2_000 } {
            let mut random = Random::new(seed);
            let queue = support::queue(TokenBucket::new(Rate::per_second(1), BURST), 99);
            let places = NonZero::new(1 + random.index(4) as u32).unwrap();
            let (sender, receiver) = channel(&queue, places, |n: &u64| 1 + (*n % 2) as u32);
            let (mut writers, mut received) = (Vec::new(), 0);
            let (mut sent, mut seconds) = (0_u64, 0_u64);
            for number in 0..150 {
                match random.index(10) {
                    0..4 => {
                        let mut task = Task::new(sender.send(number));
                        match task.poll() {
                            Poll::Ready(outcome) => {
                                outcome.unwrap();
                                sent += 1 + number % 2;
                            }
                            Poll::Pending => writers.push((number, task)),
                        }
                    }
                    4 if !writers.is_empty() => {
                        let place = random.index(writers.len());
                        drop(writers.remove(place));
                    }
                    5..8 => received += u32::from(receiver.try_recv().is_ok()),
                    _ => {
                        seconds += random.index(3) as u64;
                        queue.clock().set(Timestamp::from_secs(seconds));
                        queue.advance();
                    }
                }
                writers.retain_mut(|(number, task)| {
                    let waits = task.is_pending();
                    sent += if waits { 0 } else { 1 + *number % 2 };
                    waits
                });
                assert!(sent <= BURST + seconds, "{seed}: {sent} by {seconds} s");
                let waiting = queue.counts().waiters;
                assert!(
                    waiting == 0 || available(&queue) < 2,
                    "{seed}: tokens are available"
                );
                let full = receiver.len() + waiting as usize >= places.get() as usize;
                assert!(
                    full || writers.len() <= waiting as usize,
                    "{seed}: there is room"
                );
            }
            // All are sent in the end, as items are received.
            while !writers.is_empty() {
                seconds += 1;
                queue.clock().set(Timestamp::from_secs(seconds));
                queue.advance();
                writers.retain_mut(|(_, task)| task.is_pending());
                received += u32::from(receiver.try_recv().is_ok());
                assert!(seconds < 5_000, "{seed}: asleep");
            }
            assert!(received > 0);
        }
    }
}

mod threads {
    use super::*;

    type Shared = Arc<Queue<Concurrency, ManualClock>>;

    const LIMIT: u32 = 6;
    const WRITERS: usize = 2;
    const READERS: usize = 2;

    /// What a round has observed.
    #[derive(Default)]
    struct Seen {
        /// For each sender, (sender, number), each at most once.
        read: Mutex<HashSet<(usize, u64)>>,
        sent: AtomicU64,
        refused: AtomicU64,
        given_up: AtomicU64,
        panicked: AtomicU64,
        /// Permits held by receivers.
        in_work: AtomicU64,
    }

    impl Seen {
        fn caught<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
            let outcome = caught(f);
            self.panicked
                .fetch_add(u64::from(outcome.is_none()), Ordering::Relaxed);
            outcome
        }
    }

    /// Polls until the future is ready, or the polls are used up. Its waker may panic after it has
    /// woken.
    fn run<T>(future: impl Future<Output = T>, polls: usize, loud: bool) -> Option<T> {
        let mut future = pin!(future);
        let mut polled = 0;
        futures_executor::block_on(poll_fn(|context| {
            polled += 1;
            let outcome = if loud {
                let inner = context.waker().clone();
                let waker = support::waker(move || {
                    inner.wake_by_ref();
                    if !thread::panicking() {
                        resume_unwind(Box::new("on purpose"));
                    }
                });
                future.as_mut().poll(&mut Context::from_waker(&waker))
            } else {
                future.as_mut().poll(context)
            };
            match outcome {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending if polled >= polls => Poll::Ready(None),
                Poll::Pending => {
                    if polls != usize::MAX {
                        // To cancel soon, in any case.
                        context.waker().wake_by_ref();
                        thread::yield_now();
                    }
                    Poll::Pending
                }
            }
        }))
    }

    fn write(
        sender: &Sender<Item, Shared, Says>,
        seen: &Seen,
        here: &Arc<AtomicU64>,
        writer: usize,
        random: &mut Random,
    ) {
        let mut to_close = if random.one_in(3) {
            random.index(100)
        } else {
            usize::MAX
        };
        for number in 0..100 {
            let weight = match random.index(60) {
                0 => LIMIT + 1,
                1 => u32::MAX,
                _ => random.index(4) as u32,
            };
            let item = Item::new(writer, number, weight, random.one_in(30), here);
            let (polls, loud) = (
                if random.one_in(3) {
                    1 + random.index(3)
                } else {
                    usize::MAX
                },
                random.one_in(8),
            );
            let outcome = seen.caught(|| match random.index(4) {
                0 => sender
                    .try_send(item)
                    .map_err(|error| drop(error.into_item()))
                    .is_ok(),
                1 => {
                    let weight = weight.min(LIMIT);
                    let permit = run(sender.reserve(weight), polls, loud);
                    seen.given_up
                        .fetch_add(u64::from(permit.is_none()), Ordering::Relaxed);
                    match permit {
                        Some(Ok(permit)) if !random.one_in(4) => permit
                            .send(item)
                            .map_err(|error| drop(error.into_item()))
                            .is_ok(),
                        _ => false,
                    }
                }
                _ => match run(sender.send(item), polls, loud) {
                    Some(Ok(())) => true,
                    Some(Err(error)) => {
                        drop(error.into_item());
                        false
                    }
                    None => {
                        seen.given_up.fetch_add(1, Ordering::Relaxed);
                        false
                    }
                },
            });
            match outcome {
                Some(true) => seen.sent.fetch_add(1, Ordering::Relaxed),
                _ => seen.refused.fetch_add(1, Ordering::Relaxed),
            };
            if to_close == 0 {
                let _ = seen.caught(|| sender.close());
            }
            to_close = to_close.wrapping_sub(1);
        }
    }

    fn read(receiver: Receiver<Item, Shared>, seen: &Seen, random: &mut Random) {
        let mut last = [None; WRITERS];
        let mut got = |item: &Item, lease: Option<&Lease<Shared>>| {
            assert!(lease.is_none_or(|lease| item.weight.min(LIMIT) == lease.permits()));
            assert!(
                last[item.writer] < Some(item.number),
                "in the order of its sender"
            );
            last[item.writer] = Some(item.number);
            assert!(
                seen.read.lock().unwrap().insert((item.writer, item.number)),
                "received twice"
            );
        };
        let leaves_after = if random.one_in(4) {
            random.index(50)
        } else {
            usize::MAX
        };
        for _ in 0..leaves_after {
            let polls = if random.one_in(4) {
                1 + random.index(3)
            } else {
                usize::MAX
            };
            let closed = seen.caught(|| match random.index(3) {
                0 => match receiver.try_recv() {
                    Ok(item) => {
                        got(&item, None);
                        false
                    }
                    Err(why) => why == TryRecvError::Closed,
                },
                1 => match run(receiver.recv(), polls, false) {
                    Some(Some(item)) => {
                        got(&item, None);
                        false
                    }
                    outcome => outcome.is_some(),
                },
                _ => match run(receiver.recv_leased(), polls, false) {
                    Some(Some((item, lease))) => {
                        got(&item, Some(&lease));
                        let n = u64::from(lease.permits());
                        assert!(seen.in_work.fetch_add(n, Ordering::SeqCst) + n <= LIMIT.into());
                        if random.one_in(4) {
                            thread::yield_now();
                        }
                        seen.in_work.fetch_sub(n, Ordering::SeqCst);
                        false
                    }
                    outcome => outcome.is_some(),
                },
            });
            if closed == Some(true) {
                break;
            }
            if random.one_in(300) {
                let _ = seen.caught(|| receiver.close());
            }
        }
        let _ = seen.caught(|| drop(receiver));
    }

    /// A channel, and threads that send to it and receive from it, until both sides are dropped.
    fn round(queue: &Shared, seed: u64) -> Seen {
        let mut random = Random::new(seed);
        let (seen, here) = (Seen::default(), Arc::default());
        let places = NonZero::new(1 + random.index(5) as u32).unwrap();
        let (sender, receiver) = channel(Arc::clone(queue), places, Says);
        let outside = run(
            portcullis_async::Acquire::new(Arc::clone(queue), 1),
            usize::MAX,
            false,
        );
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (sender, seen, here) = (sender.clone(), &seen, &here);
                let mut random = Random::new(seed * 8 + writer as u64);
                scope.spawn(move || {
                    write(&sender, seen, here, writer, &mut random);
                    let _ = seen.caught(|| drop(sender));
                });
            }
            for reader in 0..READERS {
                let (receiver, seen) = (receiver.clone(), &seen);
                let mut random = Random::new(seed * 8 + (WRITERS + reader) as u64);
                scope.spawn(move || read(receiver, seen, &mut random));
            }
            drop(sender);
            let _ = seen.caught(|| drop(receiver));
            // Another waiter of the queue, which leaves it.
            let _ = seen.caught(|| drop(outside));
        });
        assert_eq!(here.load(Ordering::Relaxed), 0, "each item is dropped");
        assert_eq!(
            (queue.counts().waiters, queue.available()),
            (0, LIMIT.into())
        );
        seen
    }

    fn stress(time: Duration) {
        let (done, ended) = mpsc::channel();
        let seed = Arc::new(AtomicU64::new(0));
        let now_at = Arc::clone(&seed);
        let runs = thread::spawn(move || {
            let queue: Shared = Arc::new(Queue::new(
                Concurrency::new(LIMIT),
                ManualClock::new(),
                u64::MAX,
            ));
            let start = Instant::now();
            let (mut sent, mut given_up, mut panicked, mut refused) = (0, 0, 0, 0);
            while start.elapsed() < time {
                let seen = round(&queue, now_at.fetch_add(1, Ordering::Relaxed) + 1);
                let read = seen.read.into_inner().unwrap().len() as u64;
                assert!(read <= WRITERS as u64 * 100);
                sent += seen.sent.into_inner();
                given_up += seen.given_up.into_inner();
                panicked += seen.panicked.into_inner();
                refused += seen.refused.into_inner();
            }
            assert!(
                sent > 0 && given_up > 0 && panicked > 0 && refused > 0,
                "too few events"
            );
            println!("{sent} sent, {refused} not, {given_up} given up, {panicked} panicked");
            let _ = done.send(());
        });
        // A thread that has panicked drops `done`.
        let ended = ended.recv_timeout(time + Duration::from_mins(1));
        let round = seed.load(Ordering::Relaxed);
        assert_ne!(
            ended,
            Err(mpsc::RecvTimeoutError::Timeout),
            "asleep in round {round}"
        );
        runs.join().expect("a thread failed");
    }

    #[test]
    fn nothing_is_lost_among_threads() {
        stress(Duration::from_secs(1));
    }

    #[test]
    #[ignore = "takes ten seconds; cargo xtask soak runs it"]
    fn soak() {
        stress(Duration::from_secs(10));
    }
}
