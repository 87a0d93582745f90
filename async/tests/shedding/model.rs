//! A reference model: plain lists of requests, limiters of their own, and the rule of the shedding.
//! It predicts the outcome of each request, the instant of each, and all counts, exactly.

use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{
    Acquire, KeyedQueue, Next, Order, Queue, QueueCounts, QueueKey, Rejected, Shedding,
};
use portcullis_core::keyed::{ConcurrencyRules, Line as Slots, RandomSeed};
use portcullis_core::metadata::PENALIZED_UNTIL;
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    Concurrency, Denied, FixedWindow, Keyed, Lease, Limiter, ManualClock, Penalty, Rate, Retry,
    Timestamp, TokenBucket,
};

use super::support::Task;
use super::support::random::Random;

const MILLI: u64 = 1_000_000;

/// The most permits of a request.
const MOST: u32 = 4;

/// A lease of any queue.
trait Held {
    fn permits(&self) -> u32;
    fn forget(self: Box<Self>);
}

impl<P: Deref<Target: Limiter>> Held for Lease<P> {
    fn permits(&self) -> u32 {
        self.permits()
    }

    fn forget(self: Box<Self>) {
        (*self).forget();
    }
}

type Wait = Pin<Box<dyn Future<Output = Result<Box<dyn Held>, Rejected>>>>;

/// A queue of one list or of several.
trait Subject {
    fn acquire(&self, key: usize, min: u32, max: u32, until: u64) -> Wait;
    fn tries(&self, key: usize, n: u32) -> Result<Box<dyn Held>, Denied>;
    fn clock(&self) -> &ManualClock;
    fn advance(&self) -> Next;
    fn counts(&self) -> QueueCounts;
    fn available(&self, key: usize) -> u64;
    /// Sets the limit of each key, if that is possible.
    fn set_limit(&self, limit: u32);
    fn close(&self);
}

impl<L: Adjusts> Subject for Arc<Queue<L, ManualClock>> {
    fn acquire(&self, _: usize, min: u32, max: u32, until: u64) -> Wait {
        let wait = Acquire::new(Arc::clone(self), min).up_to(max);
        let wait = wait.until(Timestamp::from_nanos(until));
        Box::pin(async move { Ok(Box::new(wait.await?) as Box<dyn Held>) })
    }

    fn tries(&self, _: usize, n: u32) -> Result<Box<dyn Held>, Denied> {
        Ok(Box::new(self.try_acquire_owned(n)?))
    }

    fn clock(&self) -> &ManualClock {
        (**self).clock()
    }

    fn advance(&self) -> Next {
        (**self).advance()
    }

    fn counts(&self) -> QueueCounts {
        (**self).counts()
    }

    fn available(&self, _: usize) -> u64 {
        (**self).available()
    }

    fn set_limit(&self, limit: u32) {
        let now = portcullis_core::Clock::now((**self).clock());
        self.change(|limiter| limiter.adjust(now, limit));
    }

    fn close(&self) {
        (**self).close();
    }
}

type Table = Keyed<ConcurrencyRules, Box<[Slots]>, RandomSeed>;

impl Subject for Arc<KeyedQueue<Table, ManualClock>> {
    fn acquire(&self, key: usize, min: u32, max: u32, until: u64) -> Wait {
        let wait = Acquire::new(QueueKey::new(Arc::clone(self), &key), min).up_to(max);
        let wait = wait.until(Timestamp::from_nanos(until));
        Box::pin(async move { Ok(Box::new(wait.await?) as Box<dyn Held>) })
    }

    fn tries(&self, key: usize, n: u32) -> Result<Box<dyn Held>, Denied> {
        Ok(Box::new(self.owned_key(&key).try_acquire(n)?))
    }

    fn clock(&self) -> &ManualClock {
        (**self).clock()
    }

    fn advance(&self) -> Next {
        (**self).advance()
    }

    fn counts(&self) -> QueueCounts {
        (**self).counts()
    }

    fn available(&self, key: usize) -> u64 {
        self.key(&key).available()
    }

    fn set_limit(&self, limit: u32) {
        self.change(|table| table.rules().set_limit(limit)).unwrap();
    }

    fn close(&self) {
        (**self).close();
    }
}

/// A limiter that the queue and the model have each one of.
trait Adjusts: QueueLimiter + Send + Sync + 'static {
    /// Whether permits return by time.
    const BY_TIME: bool;

    fn adjust(&self, now: Timestamp, limit: u32) {
        _ = (now, limit);
    }
}

impl Adjusts for Concurrency {
    const BY_TIME: bool = false;

    fn adjust(&self, _: Timestamp, limit: u32) {
        self.set_limit(limit).unwrap();
    }
}

/// A pause instead of another limit.
impl Adjusts for Penalty<Concurrency> {
    const BY_TIME: bool = false;

    fn adjust(&self, now: Timestamp, limit: u32) {
        let wait = Duration::from_millis(5) * limit;
        self.penalize_at(now, now.saturating_add(wait));
    }
}

impl Adjusts for TokenBucket {
    const BY_TIME: bool = true;
}

impl Adjusts for FixedWindow {
    const BY_TIME: bool = true;
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
struct Options {
    order: Order,
    shedding: Option<Shedding>,
    max_permits: u64,
    max_waiters: u32,
}

/// A request that waits.
struct Waiter {
    min: u32,
    max: u32,
    deadline: u64,
    sheds: bool,
    /// Set as soon as it is known that it waits.
    task: Option<Task<Wait>>,
}

/// The requests of one key, in the order in which they are served, and the key's limiter.
struct Line<L> {
    limiter: L,
    waits: Vec<Waiter>,
    since: u64,
    /// When the limiter is asked again for the first one.
    next_try: u64,
}

impl<L> Line<L> {
    fn permits(&self) -> u64 {
        self.waits.iter().map(|wait| u64::from(wait.min)).sum()
    }

    fn room(&self) -> u64 {
        self.waits.iter().map(|wait| room(wait.min)).sum()
    }
}

fn room(n: u32) -> u64 {
    n.max(1).into()
}

/// What becomes of a new request that is not rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    Granted(u32),
    /// It waits at this place of its line.
    Waits(usize),
}

/// How a wait ends. What to retry is computed when it is claimed.
#[derive(Clone, Copy)]
enum End {
    Granted(u32),
    Evicted,
    Late,
    Shed,
    Closed,
}

struct Model<L> {
    options: Options,
    lines: Vec<Line<L>>,
    counts: QueueCounts,
    is_closed: bool,
    /// The number of requests that a change has ended before their deadlines.
    hopeless: u64,
    /// The requests that have ended in this step.
    ended: Vec<(usize, Waiter, End)>,
}

impl<L: Adjusts> Model<L> {
    /// Whether the waits of a line are longer than the interval without a break.
    fn is_overloaded(&self, key: usize, now: u64) -> bool {
        let interval = self.options.shedding.unwrap_or_default().interval();
        let line = &self.lines[key];
        !line.waits.is_empty() && u128::from(now - line.since) > interval.as_nanos()
    }

    fn goes_first(&self, key: usize, now: u64) -> bool {
        match self.options.order {
            Order::OldestFirst => false,
            Order::NewestFirst => true,
            Order::NewestWhileOverloaded => self.is_overloaded(key, now),
            order => unreachable!("the model has no {order:?}"),
        }
    }

    /// When a request can be granted behind `ahead` permits.
    fn retry(&self, key: usize, now: u64, n: u32) -> Retry {
        let limiter = &self.lines[key].limiter;
        let ahead = if self.goes_first(key, now) {
            0
        } else {
            self.lines[key].permits()
        };
        let now = Timestamp::from_nanos(now);
        match limiter.peek_at(now, n) {
            Ok(()) | Err(Denied::Exhausted { .. }) => {}
            Err(denied) => return limiter.retry(denied),
        }
        let answer = |permits| limiter.retry(Denied::Exhausted { now, permits });
        let all = answer(ahead as u32 + n.max(1));
        if ahead > 0 && all != Retry::Never {
            all
        } else {
            answer(n)
        }
    }

    /// Takes as many permits as there are, from `min` to `max`.
    fn take(&self, key: usize, now: u64, min: u32, max: u32) -> Result<u32, Denied> {
        let (limiter, now) = (&self.lines[key].limiter, Timestamp::from_nanos(now));
        let n = limiter.available_at(now).clamp(min.into(), max.into()) as u32;
        limiter.take_at(now, n).map(|_| n)
    }

    /// Ends a wait.
    fn end(&mut self, key: usize, place: usize, end: End) {
        let wait = self.lines[key].waits.remove(place);
        self.counts.waiters -= 1;
        self.counts.permits -= u64::from(wait.min);
        match end {
            End::Granted(_) => self.counts.granted += 1,
            End::Evicted => self.counts.evicted += 1,
            End::Late => self.counts.late += 1,
            End::Shed => self.counts.shed += 1,
            End::Closed => self.counts.closed += 1,
        }
        self.ended.push((key, wait, end));
    }

    /// Grants to the first waits of a line while their permits are available.
    fn serve(&mut self, key: usize, now: u64) {
        while let Some(first) = self.lines[key].waits.first() {
            let (min, max) = (first.min, first.max);
            match self.take(key, now, min, max) {
                Ok(n) => self.end(key, 0, End::Granted(n)),
                Err(denied) => {
                    self.lines[key].next_try = instant(self.lines[key].limiter.retry(denied));
                    return;
                }
            }
        }
    }

    /// The next instant at which something is due, if there is any.
    fn due(&self) -> u64 {
        let lines = self.lines.iter().filter(|line| !line.waits.is_empty());
        lines
            .flat_map(|line| {
                let deadlines = line.waits.iter().map(|wait| wait.deadline);
                deadlines.chain([line.next_try])
            })
            .min()
            .unwrap_or(u64::MAX)
    }

    fn next(&self) -> Next {
        match self.due() {
            u64::MAX if self.counts.waiters == 0 => Next::Idle,
            u64::MAX => Next::OnRelease,
            due => Next::At(Timestamp::from_nanos(due)),
        }
    }

    /// Does what is due at `now`: grants first, then ends the waits that are late. A first one that
    /// ends makes way for the next.
    fn instant(&mut self, now: u64) {
        for key in 0..self.lines.len() {
            let late = |wait: &Waiter| wait.deadline == now;
            let ends = |wait: &Waiter| if wait.sheds { End::Shed } else { End::Late };
            let is_due = |line: &Line<L>| line.next_try == now || line.waits.iter().any(late);
            if !is_due(&self.lines[key]) {
                continue;
            }
            if self.lines[key].next_try == now {
                self.serve(key, now);
            }
            while let Some(first) = self.lines[key].waits.first().filter(|wait| late(wait)) {
                let end = ends(first);
                self.end(key, 0, end);
                self.serve(key, now);
            }
            while let Some(place) = self.lines[key].waits.iter().position(late) {
                let end = ends(&self.lines[key].waits[place]);
                self.end(key, place, end);
            }
        }
    }

    /// Ends the waits that would be too late by themselves.
    fn end_hopeless(&mut self, now: u64) {
        let at = Timestamp::from_nanos(now);
        for Line { limiter, waits, .. } in &mut self.lines {
            for wait in waits {
                let Err(denied) = limiter.peek_at(at, wait.min) else {
                    continue;
                };
                if is_late(limiter, now, limiter.retry(denied), wait.deadline) {
                    wait.deadline = now;
                    self.hopeless += 1;
                }
            }
        }
        self.instant(now);
    }

    /// Predicts what becomes of a new request.
    fn enter(
        &mut self,
        key: usize,
        now: u64,
        (min, max, own): (u32, u32, u64),
    ) -> Result<Entered, Rejected> {
        let permits = min;
        if self.is_closed {
            self.counts.closed += 1;
            return Err(Rejected::Closed { permits });
        }
        let is_first = self.lines[key].waits.is_empty() || self.goes_first(key, now);
        let asked = is_first.then(|| self.take(key, now, min, max));
        if let Some(Ok(n)) = asked {
            return Ok(Entered::Granted(n));
        }
        let capacity = self.lines[key].limiter.capacity();
        if room(min) > capacity {
            self.counts.oversized += 1;
            let capacity = capacity as u32;
            return Err(Rejected::ExceedsCapacity { permits, capacity });
        }
        let is_overloaded = self.is_overloaded(key, now);
        let bound = self.options.shedding.map_or(u64::MAX, |rule| {
            let wait = if is_overloaded {
                rule.target()
            } else {
                rule.interval()
            };
            now + wait.as_nanos() as u64
        });
        let (deadline, sheds) = (bound.min(own), bound < own);
        let retry = self.retry(key, now, min);
        let is_late = is_late(&self.lines[key].limiter, now, retry, deadline);
        if is_late || deadline <= now {
            return Err(if sheds {
                self.counts.shed += 1;
                Rejected::Shed { permits, retry }
            } else {
                self.counts.late += 1;
                Rejected::Deadline { permits, retry }
            });
        }
        let goes_first = self.goes_first(key, now);
        let since = match self.lines[key].waits.first() {
            Some(_) => self.lines[key].since,
            None => now,
        };
        if !self.make_room(key, min, goes_first) {
            self.counts.full += 1;
            let retry = self.retry(key, now, min);
            return Err(Rejected::QueueFull { permits, retry });
        }
        let line = &mut self.lines[key];
        let place = if goes_first { 0 } else { line.waits.len() };
        line.since = since;
        if place == 0 {
            let denied = asked.and_then(Result::err).expect("the first one asks");
            line.next_try = instant(line.limiter.retry(denied));
        }
        line.waits.insert(
            place,
            Waiter {
                min,
                max,
                deadline,
                sheds,
                task: None,
            },
        );
        self.counts.waiters += 1;
        self.counts.permits += u64::from(min);
        Ok(Entered::Waits(place))
    }

    /// Evicts the last waits until a new request fits. Returns whether it does.
    fn make_room(&mut self, key: usize, min: u32, goes_first: bool) -> bool {
        let Options {
            max_permits,
            max_waiters,
            ..
        } = self.options;
        loop {
            let line = &self.lines[key];
            let fits = self.counts.waiters < max_waiters
                && u128::from(line.room()) + u128::from(room(min)) <= u128::from(max_permits);
            let could = max_waiters > 0 && room(min) <= max_permits;
            if fits || !could || !goes_first || line.waits.is_empty() {
                return fits;
            }
            self.end(key, line.waits.len() - 1, End::Evicted);
        }
    }
}

/// Whether the permits come after the deadline.
fn is_late<L: Limiter>(limiter: &L, now: u64, retry: Retry, deadline: u64) -> bool {
    let now = Timestamp::from_nanos(now);
    let at = Timestamp::from_nanos(deadline);
    at < Timestamp::MAX
        && match retry {
            Retry::At(free) => free > at,
            Retry::Never => true,
            _ => PENALIZED_UNTIL
                .of_granted(limiter, now)
                .is_some_and(|until| until > at),
        }
}

/// The instant of an answer, if it has one.
fn instant(retry: Retry) -> u64 {
    match retry {
        Retry::At(at) => at.as_nanos(),
        _ => u64::MAX,
    }
}

/// A run: the queue and its model.
struct Run<S, L> {
    subject: S,
    model: Model<L>,
    held: Vec<(usize, Box<dyn Held>)>,
    /// Named in failures.
    name: String,
    seen: Seen,
}

/// How many requests ended in each way, over several runs.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    granted: u64,
    shed_at_once: u64,
    hopeless: u64,
    counts: QueueCounts,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.shed_at_once += other.shed_at_once;
        self.hopeless += other.hopeless;
        let (all, one) = (&mut self.counts, other.counts);
        all.granted += one.granted;
        all.evicted += one.evicted;
        all.full += one.full;
        all.late += one.late;
        all.shed += one.shed;
        all.oversized += one.oversized;
    }
}

impl<S: Subject, L: Adjusts> Run<S, L> {
    fn now(&self) -> u64 {
        portcullis_core::Clock::now(self.subject.clock()).as_nanos()
    }

    fn enter(&mut self, random: &mut Random) {
        let (now, key) = (self.now(), random.index(self.model.lines.len()));
        // A request for none is told of a bucket that it waits for none.
        let least = u32::from(L::BY_TIME);
        let min = random.permits(MOST).max(least);
        let max = if random.one_in(4) {
            min + random.permits(4)
        } else {
            min
        };
        let until = if random.one_in(3) {
            now + [0, 3, 17, 40, 400][random.index(5)] * MILLI + random.below(3)
        } else {
            u64::MAX
        };
        let mut task = Task::new(self.subject.acquire(key, min, max, until));
        let expected = self.model.enter(key, now, (min, max, until));
        let name = &self.name;
        match task.poll() {
            Poll::Pending => {
                let Ok(Entered::Waits(place)) = expected else {
                    panic!("{name}: a request waits instead of {expected:?}");
                };
                self.model.lines[key].waits[place].task = Some(task);
            }
            Poll::Ready(Ok(lease)) => {
                assert_eq!(expected, Ok(Entered::Granted(lease.permits())), "{name}");
                self.seen.granted += 1;
                self.held.push((key, lease));
            }
            Poll::Ready(Err(rejected)) => {
                assert_eq!(expected, Err(rejected), "{name}");
                let is_shed = matches!(rejected, Rejected::Shed { .. });
                self.seen.shed_at_once += u64::from(is_shed);
            }
        }
    }

    fn tries(&mut self, random: &mut Random) {
        let (now, key) = (self.now(), random.index(self.model.lines.len()));
        let permits = random.permits(4).max(1);
        let at = Timestamp::from_nanos(now);
        let line = &self.model.lines[key];
        let expected = if self.model.is_closed {
            Err(Denied::Closed { permits })
        } else if !line.waits.is_empty() && self.model.options.order != Order::NewestFirst {
            Err(Denied::Exhausted { now: at, permits })
        } else {
            line.limiter.take_at(at, permits).map(|_| permits)
        };
        let taken = self.subject.tries(key, permits);
        let seen = taken
            .as_ref()
            .map(|lease| lease.permits())
            .map_err(|denied| *denied);
        assert_eq!(seen, expected, "{}", self.name);
        self.held.extend(taken.ok().map(|lease| (key, lease)));
    }

    fn release(&mut self, random: &mut Random) {
        if self.held.is_empty() {
            return;
        }
        let (key, lease) = self.held.swap_remove(random.index(self.held.len()));
        if L::BY_TIME {
            lease.forget();
            return;
        }
        let n = lease.permits();
        drop(lease);
        self.model.lines[key].limiter.release(n);
        let now = self.now();
        self.model.serve(key, now);
    }

    fn cancel(&mut self, random: &mut Random) {
        let (now, key) = (self.now(), random.index(self.model.lines.len()));
        let waits = &mut self.model.lines[key].waits;
        if waits.is_empty() {
            return;
        }
        let place = random.index(waits.len());
        let wait = waits.remove(place);
        drop(wait.task);
        self.model.counts.waiters -= 1;
        self.model.counts.permits -= u64::from(wait.min);
        self.model.counts.cancelled += 1;
        if place == 0 {
            self.model.serve(key, now);
        }
    }

    fn change(&mut self, random: &mut Random) {
        // No request is larger, so that none that waits is larger than the limit.
        let (now, limit) = (self.now(), MOST + random.permits(4));
        self.subject.set_limit(limit);
        for key in 0..self.model.lines.len() {
            let at = Timestamp::from_nanos(now);
            self.model.lines[key].limiter.adjust(at, limit);
            self.model.serve(key, now);
        }
        self.model.end_hopeless(now);
    }

    fn close(&mut self) {
        self.subject.close();
        self.model.is_closed = true;
        for key in 0..self.model.lines.len() {
            while !self.model.lines[key].waits.is_empty() {
                self.model.end(key, 0, End::Closed);
            }
        }
    }

    /// Lets the time pass, and calls the queue at each instant that it names.
    fn pass(&mut self, time: u64) {
        let to = self.now() + time;
        while self.model.due() <= to {
            let due = self.model.due();
            self.subject.clock().set(Timestamp::from_nanos(due));
            self.subject.advance();
            self.model.instant(due);
            self.agrees();
        }
        self.subject.clock().set(Timestamp::from_nanos(to));
    }

    /// Claims what has ended, and compares everything that can be observed.
    fn agrees(&mut self) {
        let now = self.now();
        let name = &self.name;
        for (key, wait, end) in core::mem::take(&mut self.model.ended) {
            let (permits, mut task) = (wait.min, wait.task.expect("it was polled"));
            let retry = self.model.retry(key, now, permits);
            let expected = match end {
                End::Granted(n) => Ok(n),
                End::Evicted => Err(Rejected::Evicted { permits, retry }),
                End::Late => Err(Rejected::Deadline { permits, retry }),
                End::Shed => Err(Rejected::Shed { permits, retry }),
                End::Closed => Err(Rejected::Closed { permits }),
            };
            let Some(outcome) = task.settled() else {
                panic!("{name}: a request waits instead of {expected:?}, at {now}");
            };
            let seen = outcome
                .as_ref()
                .map(|lease| lease.permits())
                .map_err(|why| *why);
            assert_eq!(seen, expected, "{name}, at {now}");
            self.held.extend(outcome.ok().map(|lease| (key, lease)));
        }
        for (key, line) in self.model.lines.iter().enumerate() {
            let waits = line.waits.iter().filter_map(|wait| wait.task.as_ref());
            assert_eq!(waits.map(Task::wakes).sum::<usize>(), 0, "{name}, at {now}");
            let free = line.limiter.available_at(Timestamp::from_nanos(now));
            assert_eq!(self.subject.available(key), free, "{name}, at {now}");
        }
        assert_eq!(self.subject.counts(), self.model.counts, "{name}, at {now}");
        assert_eq!(
            self.subject.advance(),
            self.model.next(),
            "{name}, at {now}"
        );
    }

    fn run(mut self, random: &mut Random, steps: u64) -> Seen {
        for _ in 0..steps {
            match random.below(20) {
                0..8 => self.enter(random),
                8..11 => self.release(random),
                11 => self.cancel(random),
                12 => self.tries(random),
                13 if random.one_in(6) => self.change(random),
                14 if random.one_in(100) => self.close(),
                _ => {
                    let time = [1, MILLI, 4 * MILLI, 30 * MILLI][random.index(4)];
                    self.pass(1 + random.below(time));
                }
            }
            self.agrees();
        }
        let all = u64::from(self.model.counts.waiters);
        self.close();
        self.agrees();
        assert!(self.model.counts.closed >= all);
        self.seen.counts = self.model.counts;
        self.seen.hopeless = self.model.hopeless;
        self.seen
    }
}

fn draw(random: &mut Random, order: Order) -> Options {
    let target = Duration::from_millis([0, 2, 5, 15][random.index(4)]);
    let interval = Duration::from_millis([0, 5, 20, 100][random.index(4)].max(random.below(2)));
    let shedding = Shedding::controlled_delay(target, interval);
    Options {
        order,
        shedding: (!random.one_in(5)).then_some(shedding),
        max_permits: [u64::MAX, 30, 12, 4][random.index(4)],
        max_waiters: [u32::MAX, 20, 6, 2][random.index(4)],
    }
}

fn run<S: Subject, L: Adjusts>(
    subject: S,
    lines: usize,
    limiter: impl Fn() -> L,
    (options, name, steps): (Options, String, u64),
    random: &mut Random,
) -> Seen {
    let line = |_| Line {
        limiter: limiter(),
        waits: Vec::new(),
        since: 0,
        next_try: u64::MAX,
    };
    let run = Run {
        subject,
        model: Model {
            options,
            lines: (0..lines).map(line).collect(),
            counts: QueueCounts::default(),
            is_closed: false,
            hopeless: 0,
            ended: Vec::new(),
        },
        held: Vec::new(),
        name,
        seen: Seen::default(),
    };
    run.run(random, steps)
}

fn of_one_list<L: Adjusts>(
    limiter: impl Fn() -> L,
    about: (Options, String, u64),
    random: &mut Random,
) -> Seen {
    let options = about.0;
    let queue = Queue::new(limiter(), ManualClock::new(), options.max_permits)
        .with_order(options.order)
        .with_max_waiters(options.max_waiters);
    let queue = match options.shedding {
        Some(shedding) => queue.with_shedding(shedding),
        None => queue,
    };
    run(Arc::new(queue), 1, limiter, about, random)
}

fn of_each_key(limit: u32, about: (Options, String, u64), random: &mut Random) -> Seen {
    let options = about.0;
    let table = Keyed::for_keys(Concurrency::new(limit), 1_000);
    let queue = KeyedQueue::new(table, ManualClock::new(), options.max_permits)
        .with_order(options.order)
        .with_max_waiters(options.max_waiters);
    let queue = match options.shedding {
        Some(shedding) => queue.with_shedding(shedding),
        None => queue,
    };
    run(
        Arc::new(queue),
        3,
        || Concurrency::new(limit),
        about,
        random,
    )
}

/// Runs each kind of queue with many seeds.
fn predicts(order: Order) -> Seen {
    let runs = if cfg!(debug_assertions) { 150 } else { 1_500 };
    let mut all = Seen::default();
    for seed in 0..runs {
        let mut random = Random::new(seed);
        let options = draw(&mut random, order);
        let limit = 1 + random.permits(5);
        let about = |kind: &str| (options, format!("{kind}, seed {seed}, {options:?}"), 400);
        let random = &mut random;
        all.add(of_one_list(
            || Concurrency::new(limit),
            about("permits"),
            random,
        ));
        let rate = Rate::new(1 + random.permits(6), Duration::from_millis(20));
        let bucket = || TokenBucket::new(rate, limit.into());
        all.add(of_one_list(bucket, about("bucket"), random));
        let period = Duration::from_millis(5 + random.below(30));
        let window = || FixedWindow::new(limit.into(), period);
        all.add(of_one_list(window, about("window"), random));
        all.add(of_each_key(limit, about("keys"), random));
        let pause = Penalty::builder(Duration::from_secs(60)).started_by_hand();
        let pause = pause.build().unwrap();
        let paused = || pause.around(Concurrency::new(limit));
        all.add(of_one_list(paused, about("pause"), random));
    }
    println!("{order:?}: {all:?}");
    all
}

/// The runs come to each outcome, and often.
fn are_all_seen(seen: Seen, evicts: bool) {
    let Seen {
        granted,
        shed_at_once,
        hopeless,
        counts,
    } = seen;
    let waited = counts.shed - shed_at_once;
    for count in [
        granted,
        shed_at_once,
        waited,
        hopeless,
        counts.granted,
        counts.late,
        counts.full,
    ] {
        assert!(count > 100, "{seen:?}");
    }
    assert_eq!(counts.evicted > 0, evicts, "{seen:?}");
}

#[test]
fn predicts_each_outcome_of_a_queue_that_serves_the_oldest_request_first() {
    are_all_seen(predicts(Order::OldestFirst), false);
}

#[test]
fn predicts_each_outcome_of_a_queue_that_serves_the_newest_request_first() {
    are_all_seen(predicts(Order::NewestFirst), true);
}

#[test]
fn predicts_each_outcome_of_a_queue_that_serves_the_newest_request_first_while_overloaded() {
    are_all_seen(predicts(Order::NewestWhileOverloaded), true);
}
