//! The loop of a runner, as one future.
//!
//! ```text
//!   source ---> waiting ---> paying ---> in flight ---> settling ---> over
//!                 ^   ^                      |
//!                 |   +--- overloaded -------+
//!                 +------- delayed <-- retry +
//! ```
//!
//! - *waiting*: operations that were taken from the source, or put back. The source is asked only
//!   while permits are available, except for the look-ahead.
//! - *paying*: one batch, whose permits the runner waits for in the queue, in pieces that the
//!   limiter can grant. It has a slot already.
//! - *in flight*, *settling*: batches whose write runs, and then their acknowledgement. Each has a
//!   slot until its acknowledgement is over. There are as many slots as writes at once.
//!
//! Invariants:
//!
//! - A batch is written only when all its permits are paid, and at the moment when the last of them
//!   is. So what is written was admitted by the limiter, and not earlier than it is sent.
//! - An operation is handed to the acknowledgement as written only after a write that has said so.
//! - Each operation is in one place. At most `buffer` operations are in *waiting*, *paying* and
//!   *delayed* when the source is asked for another.

use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures_core::Stream;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use portcullis_async::{Rejected, Timer};
use portcullis_core::Timestamp;

use crate::operation::{Operation, SettledBatch, WriteOutcome, Written};
use crate::overload::Overload;
use crate::permits::Permits;
use crate::progress::{Event, Progress, Report, RunEnd, Shared, Wish};
use crate::work::{Done, Task, Work};

/// How often the loop goes round in one poll. Then it lets other tasks run.
const ROUNDS: usize = 256;

/// How often the runner looks whether the limit has become smaller, while it waits for permits.
const LOOK: Duration = Duration::from_millis(100);

/// The shortest time between two requests, if the queue rejects them.
const SHORTEST: Duration = Duration::from_millis(1);

/// The settings of a runner, each under the name of the method of [`Jobs`](crate::Jobs) that sets
/// it.
pub(crate) struct Options<'q> {
    pub(crate) batch: usize,
    pub(crate) concurrency: usize,
    pub(crate) attempts: u32,
    pub(crate) back_off: (Duration, Duration),
    pub(crate) buffer: usize,
    pub(crate) look_ahead: usize,
    pub(crate) interval: Duration,
    pub(crate) longest: Duration,
    pub(crate) total_cost: Option<u64>,
    pub(crate) observer: Option<Observer<'q>>,
}

/// The function that is called for each event.
pub(crate) type Observer<'q> = Box<dyn Fn(&Event) + Send + Sync + 'q>;

/// A batch that waits for its permits. It is what the diagram calls *paying*.
struct Payment<T, H> {
    batch: Vec<Operation<T>>,
    cost: u64,
    /// The permits for the batch: its cost at the present speed, and `debt`.
    permits: u64,
    /// The older debt that the batch pays. It is owed again if the batch is put back.
    debt: u64,
    /// The part of `permits` that is still to be taken, the present piece included.
    owed: u64,
    /// The permits of the piece that the runner waits for.
    piece: u32,
    /// The pieces that are paid.
    held: Vec<H>,
}

/// A batch that has a slot: its write runs, or its acknowledgement.
struct Flight<T, H> {
    batch: Vec<Operation<T>>,
    cost: u64,
    sent: Timestamp,
    deadline: Timestamp,
    abort: AbortHandle,
    /// Permits that return by release stay in use until the write is over.
    held: Vec<H>,
}

/// A run: the state of the loop. `P` is the queue of permits, `C` the timer, `T` the type of an
/// item, and `K` what to do with it.
pub(crate) struct Run<'q, P: Permits + 'q, C, T, K: Work<T>> {
    permits: &'q P,
    timer: C,
    work: K,
    options: Options<'q>,
    overload: Overload,
    shared: Arc<Shared>,
    waiting: VecDeque<Operation<T>>,
    /// Operations that are tried again later, by that time and then by age.
    delayed: BTreeMap<(Timestamp, u64), Operation<T>>,
    paying: Option<Payment<T, P::Held<'q>>>,
    /// The batches that have a slot, by its number.
    flights: BTreeMap<u64, Flight<T, P::Held<'q>>>,
    tasks: FuturesUnordered<Task<K::Write, K::Acknowledge>>,
    /// When the task of a slot has taken too long.
    deadlines: BTreeSet<(Timestamp, u64)>,
    /// The number of the next slot, or of the next operation that is delayed.
    number: u64,
    /// What the service has charged beyond the costs, and is not paid yet.
    debt: u64,
    /// The most permits that one request can be granted, as far as the queue has said so.
    most: u32,
    source_over: bool,
    /// Why the run ends although its source has not ended: nothing is released from then on.
    early: Option<RunEnd>,
    /// Whether the last poll was in a pause, so that its end is told.
    was_paused: bool,
    /// Nothing is released before this time: until the next interval, or because the queue has
    /// rejected a request.
    next: Timestamp,
    /// When to look whether the limit is still as large as the piece that is waited for.
    look: Timestamp,
    /// Whether anything was released since `next`.
    released: bool,
    /// The first release: the origin of the intervals.
    origin: Option<Timestamp>,
    progress: Progress,
    /// The operations that were taken from the source, and their cost, for the estimate.
    taken: u64,
    taken_cost: u64,
    given_up_cost: u64,
}

impl<'q, P: Permits + 'q, C: Timer, T, K: Work<T>> Run<'q, P, C, T, K> {
    pub(crate) fn new(
        permits: &'q P,
        timer: C,
        work: K,
        options: Options<'q>,
        overload: Overload,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            permits,
            timer,
            work,
            options,
            overload,
            shared,
            waiting: VecDeque::new(),
            delayed: BTreeMap::new(),
            paying: None,
            flights: BTreeMap::new(),
            tasks: FuturesUnordered::new(),
            deadlines: BTreeSet::new(),
            number: 0,
            debt: 0,
            most: u32::MAX,
            source_over: false,
            early: None,
            was_paused: false,
            next: Timestamp::ZERO,
            look: Timestamp::ZERO,
            released: false,
            origin: None,
            progress: Progress::default(),
            taken: 0,
            taken_cost: 0,
            given_up_cost: 0,
        }
    }

    /// Goes round until nothing moves, and then sets the timer.
    ///
    /// `source` and `wait` are pinned by the caller, so that the run itself can move.
    pub(crate) fn poll<S: Stream<Item = T>>(
        &mut self,
        context: &mut Context<'_>,
        mut source: Pin<&mut S>,
        mut wait: Pin<&mut Option<P::Wait<'q>>>,
    ) -> Poll<Report> {
        self.shared.register(context.waker());
        for _ in 0..ROUNDS {
            let now = self.timer.now();
            self.obey(now);
            let mut moved = self.collect(now, context);
            moved |= self.expire(now);
            moved |= self.release(now, context, source.as_mut(), wait.as_mut());
            if let Some(ended) = self.ended() {
                self.publish(now, source.as_ref().size_hint());
                self.tell(&Event::Finished);
                return Poll::Ready(Report {
                    ended,
                    progress: self.progress,
                });
            }
            if moved {
                continue;
            }
            self.publish(now, source.as_ref().size_hint());
            let Some(at) = self.alarm(now) else {
                return Poll::Pending;
            };
            if self.timer.wake_at(at, context.waker()).is_pending() {
                return Poll::Pending;
            }
        }
        self.publish(self.timer.now(), source.size_hint());
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Does what the handles ask for.
    fn obey(&mut self, now: Timestamp) {
        let (pause, stop) = {
            let mut state = self.shared.state();
            (state.pause.take(), state.stop)
        };
        if stop {
            self.early.get_or_insert(RunEnd::Stopped);
        }
        let paused = pause.and_then(|Wish { time }| self.overload.pause(now, time));
        self.tell_pause(paused);
        let paused = self.overload.paused(now).is_some();
        if self.was_paused && !paused {
            self.tell(&Event::Resumed);
        }
        self.was_paused = paused;
    }

    /// Takes the results of the tasks that are over. Returns whether there were any.
    fn collect(&mut self, now: Timestamp, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Poll::Ready(Some(done)) = Pin::new(&mut self.tasks).poll_next(context) {
            moved = true;
            match done {
                Done::Written(slot, written) => self.written(now, slot, written),
                Done::Acknowledged(slot, is_acknowledged) => {
                    let flight = self.vacate(slot).filter(|_| !is_acknowledged);
                    if let Some(flight) = flight {
                        let operations = flight.batch.len();
                        self.progress.unacknowledged += operations as u64;
                        self.tell(&Event::Unacknowledged { operations });
                    }
                }
            }
        }
        moved
    }

    /// Removes a batch from its slot. `None` if it is not there any more.
    fn vacate(&mut self, slot: u64) -> Option<Flight<T, P::Held<'q>>> {
        let flight = self.flights.remove(&slot)?;
        self.deadlines.remove(&(flight.deadline, slot));
        Some(flight)
    }

    /// Counts a write that is over: the batch is not in flight any more, and owes what the service
    /// has charged beyond its cost.
    fn written(&mut self, now: Timestamp, slot: u64, written: Option<Written>) {
        let Some(flight) = self.vacate(slot) else {
            return;
        };
        let Flight {
            batch,
            cost,
            sent,
            held,
            ..
        } = flight;
        // Before anything of the user's runs: another request may wait for these permits.
        drop(held);
        self.progress.in_flight -= batch.len() as u64;
        self.progress.needs -= cost;
        if written.is_none() {
            self.progress.timeouts += 1;
            let operations = batch.len();
            self.tell(&Event::TimedOut { operations });
        }
        let written = written.unwrap_or_else(|| WriteOutcome::Retry.into());
        // What a batch was charged less than its cost does not come back: the limiter cannot know
        // that the service has not counted it.
        let beyond = written.charged.saturating_sub(cost);
        self.debt = self.debt.saturating_add(beyond);
        self.sort(now, sent, batch, &written);
    }

    /// Puts the operations of a batch that was sent at `sent` where their outcomes say.
    fn sort(
        &mut self,
        now: Timestamp,
        sent: Timestamp,
        batch: Vec<Operation<T>>,
        written: &Written,
    ) {
        let mut done = Vec::new();
        let mut given_up = Vec::new();
        let mut again = Vec::new();
        let mut overloaded = None;
        let mut retried = 0;
        for (index, operation) in batch.into_iter().enumerate() {
            let outcome = written.outcome(index);
            if let WriteOutcome::Overloaded { retry_after } = outcome {
                // One batch is one reply of the service, so its longest time counts.
                overloaded = overloaded.max(Some(retry_after));
            }
            match outcome {
                WriteOutcome::Done => done.push(operation),
                WriteOutcome::Retry | WriteOutcome::Overloaded { .. }
                    if operation.attempt < self.options.attempts =>
                {
                    retried += 1;
                    self.progress.needs += u64::from(operation.cost);
                    if outcome == WriteOutcome::Retry {
                        self.delay(now, operation);
                    } else {
                        again.push(operation);
                    }
                }
                _ => given_up.push(operation),
            }
        }
        // Those that an overload has stopped keep their places before those that were not tried.
        for operation in again.into_iter().rev() {
            self.waiting.push_front(operation);
        }
        if retried > 0 {
            self.progress.retries += retried as u64;
            self.tell(&Event::Retrying {
                operations: retried,
            });
        }
        if let Some(retry_after) = overloaded {
            self.progress.overloads += 1;
            let paused = self.overload.overloaded(now, sent, retry_after);
            self.tell_pause(paused);
        }
        self.settle(now, done, given_up);
    }

    /// Puts an operation aside for its next attempt.
    fn delay(&mut self, now: Timestamp, operation: Operation<T>) {
        let (first, most) = self.options.back_off;
        let doublings = operation.attempt.saturating_sub(1).min(31);
        let time = first.saturating_mul(1 << doublings).min(most);
        let number = self.number();
        self.delayed
            .insert((now.saturating_add(time), number), operation);
    }

    /// Returns a number that no slot and no delayed operation has had.
    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Hands operations that are over to the acknowledgement, in a slot.
    fn settle(&mut self, now: Timestamp, written: Vec<Operation<T>>, given_up: Vec<Operation<T>>) {
        let cost = |operations: &[Operation<T>]| -> u64 {
            operations
                .iter()
                .map(|operation| u64::from(operation.cost))
                .sum()
        };
        if !written.is_empty() {
            let (operations, cost) = (written.len(), cost(&written));
            self.progress.written += operations as u64;
            self.progress.written_cost += cost;
            self.tell(&Event::Written { operations, cost });
        }
        if !given_up.is_empty() {
            let operations = given_up.len();
            self.progress.given_up += operations as u64;
            self.given_up_cost += cost(&given_up);
            self.tell(&Event::GivenUp { operations });
        }
        let batch: Vec<_> = written.iter().chain(&given_up).cloned().collect();
        if batch.is_empty() {
            // All of them are tried again, and the slot is free.
            return;
        }
        let settled = SettledBatch { written, given_up };
        let (abort, registration) = AbortHandle::new_pair();
        let acknowledge = Abortable::new(self.work.acknowledge(settled), registration);
        let slot = self.occupy(now, batch, 0, Vec::new(), abort);
        self.tasks.push(Task::Acknowledge { slot, acknowledge });
    }

    /// Gives a batch a slot, from `now` on for the longest time that a task may take.
    fn occupy(
        &mut self,
        now: Timestamp,
        batch: Vec<Operation<T>>,
        cost: u64,
        held: Vec<P::Held<'q>>,
        abort: AbortHandle,
    ) -> u64 {
        let slot = self.number();
        let deadline = now.saturating_add(self.options.longest);
        self.deadlines.insert((deadline, slot));
        let flight = Flight {
            batch,
            cost,
            sent: now,
            deadline,
            abort,
            held,
        };
        self.flights.insert(slot, flight);
        slot
    }

    /// Cancels the tasks that have taken too long. Returns whether there were any.
    fn expire(&mut self, now: Timestamp) -> bool {
        let mut moved = false;
        while let Some(&(deadline, slot)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            // The batch keeps its slot: `collect` sees the end of the task, and vacates it.
            if let Some(flight) = self.flights.get(&slot) {
                flight.abort.abort();
                moved = true;
            }
        }
        moved
    }

    /// Puts the operations back whose delay is over.
    fn resume_delayed(&mut self, now: Timestamp) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let operation = entry.remove();
            // It has waited for longer than those that were not tried.
            self.waiting.push_front(operation);
        }
    }

    /// Takes one step towards the next release. Returns whether anything moved.
    fn release<S: Stream<Item = T>>(
        &mut self,
        now: Timestamp,
        context: &mut Context<'_>,
        mut source: Pin<&mut S>,
        mut wait: Pin<&mut Option<P::Wait<'q>>>,
    ) -> bool {
        self.resume_delayed(now);
        if self.early.is_some() || self.overload.paused(now).is_some() {
            // Permits that were taken before a pause are worth nothing after it.
            wait.set(None);
            self.put_back();
            if self.early.is_none() {
                self.look_ahead(context, source);
            }
            return false;
        }
        self.look_ahead(context, source.as_mut());
        if self.paying.is_none() {
            if self.flights.len() >= self.options.concurrency || self.next > now {
                return false;
            }
            // A source that knows its end need not be asked, which takes capacity.
            self.source_over |= source.size_hint().1 == Some(0);
            if self.source_over && self.waiting.is_empty() {
                wait.set(None);
                return false;
            }
        }
        if let Some(waits) = wait.as_mut().as_pin_mut() {
            let Poll::Ready(outcome) = waits.poll(context) else {
                return self.pay_less(now, wait);
            };
            wait.set(None);
            match outcome {
                Ok(held) if self.paying.is_some() => return self.paid(now, held, wait),
                Ok(_) => {
                    // This was the turn of the runner. If another caller was faster, the runner
                    // takes an operation all the same, and waits with it, so that it never starves.
                    let available = self.permits.available().max(1);
                    return self.form(now, available, context, source, wait);
                }
                Err(rejected) => {
                    self.rejected(now, rejected);
                    return true;
                }
            }
        } else if self.paying.is_some() {
            self.pay(wait);
            return true;
        }
        // No wait is needed while permits are there. So a source with nothing to do costs none.
        let available = self.permits.available();
        if available > 0 {
            return self.form(now, available, context, source, wait);
        }
        self.await_permits(now, wait);
        true
    }

    /// Waits for permits, of which there are none.
    fn await_permits(&mut self, now: Timestamp, mut wait: Pin<&mut Option<P::Wait<'q>>>) {
        if self.released {
            // All permits are used: those of the next interval are released together.
            self.released = false;
            self.next = self.next_interval(now);
        } else {
            // An interval without a permit: the queue says when there is one, in its order.
            wait.set(Some(self.permits.wait(0)));
        }
    }

    /// Returns when to look for permits again, after all have been used: at the next interval, or
    /// when the limiter is full, because it would gain nothing from then on.
    fn next_interval(&self, now: Timestamp) -> Timestamp {
        let interval = u64::try_from(self.options.interval.as_nanos()).unwrap_or(u64::MAX);
        let (Some(full), Some(origin)) = (self.permits.full_in(), self.origin) else {
            // They return by release, at any time.
            return now;
        };
        if interval == 0 {
            return now;
        }
        let passed = u64::try_from(now.saturating_since(origin).as_nanos()).unwrap_or(u64::MAX);
        let rest = interval - passed % interval;
        now.saturating_add(full.min(Duration::from_nanos(rest)))
    }

    /// Forms a batch of what the available permits pay for, and at least one operation.
    fn form<S: Stream<Item = T>>(
        &mut self,
        now: Timestamp,
        available: u64,
        context: &mut Context<'_>,
        mut source: Pin<&mut S>,
        wait: Pin<&mut Option<P::Wait<'q>>>,
    ) -> bool {
        let worth = self
            .overload
            .worth(now, available.saturating_sub(self.debt));
        let (mut batch, mut cost) = (Vec::new(), 0);
        while batch.len() < self.options.batch && (batch.is_empty() || cost < worth) {
            if self.waiting.is_empty() && !self.take(context, source.as_mut()) {
                break;
            }
            // The first operation goes in any case. It pays in pieces if it costs more than is
            // there.
            let more = |operation: &Operation<T>| {
                batch.is_empty() || cost + u64::from(operation.cost) <= worth
            };
            if !self.waiting.front().is_some_and(more) {
                break;
            }
            let Some(operation) = self.waiting.pop_front() else {
                break;
            };
            cost += u64::from(operation.cost);
            batch.push(operation);
        }
        if batch.is_empty() {
            return false;
        }
        let debt = core::mem::take(&mut self.debt);
        let permits = self.overload.charge(now, cost).saturating_add(debt);
        let payment = Payment {
            batch,
            cost,
            permits,
            debt,
            owed: permits,
            piece: 0,
            held: Vec::new(),
        };
        if permits == 0 {
            self.start(now, payment);
        } else {
            self.paying = Some(payment);
            self.pay(wait);
        }
        true
    }

    /// Takes an operation from the source, if there is room. Returns whether there was one.
    fn take<S: Stream<Item = T>>(
        &mut self,
        context: &mut Context<'_>,
        source: Pin<&mut S>,
    ) -> bool {
        let held = self.waiting.len() + self.delayed.len();
        if self.source_over || held >= self.options.buffer {
            return false;
        }
        match source.poll_next(context) {
            Poll::Pending => false,
            Poll::Ready(None) => {
                self.source_over = true;
                false
            }
            Poll::Ready(Some(item)) => {
                let cost = self.work.cost(&item);
                self.taken += 1;
                self.taken_cost += u64::from(cost);
                self.progress.needs += u64::from(cost);
                self.waiting.push_back(Operation::new(item, cost));
                true
            }
        }
    }

    /// Takes operations from the source before there are permits for them.
    fn look_ahead<S: Stream<Item = T>>(
        &mut self,
        context: &mut Context<'_>,
        mut source: Pin<&mut S>,
    ) {
        while self.waiting.len() < self.options.look_ahead && self.take(context, source.as_mut()) {}
    }

    /// Waits for the next piece of the permits of the batch.
    fn pay(&mut self, mut wait: Pin<&mut Option<P::Wait<'q>>>) {
        let most = self.permits.capacity().clamp(1, self.most.into());
        if let Some(payment) = &mut self.paying {
            // At most `most`, which fits.
            payment.piece = u32::try_from(payment.owed.min(most)).unwrap_or(u32::MAX);
            wait.set(Some(self.permits.wait(payment.piece)));
        }
    }

    /// Waits for a smaller piece if the limit has become smaller than the present one. Returns
    /// whether it has.
    fn pay_less(&mut self, now: Timestamp, wait: Pin<&mut Option<P::Wait<'q>>>) -> bool {
        let Some(payment) = self.paying.as_ref().filter(|_| self.look <= now) else {
            return false;
        };
        self.look = now.saturating_add(LOOK);
        let is_too_large = u64::from(payment.piece) > self.permits.capacity().max(1);
        if is_too_large {
            self.pay(wait);
        }
        is_too_large
    }

    /// Counts a piece that was granted, and starts the batch if it was the last one.
    fn paid(
        &mut self,
        now: Timestamp,
        held: P::Held<'q>,
        wait: Pin<&mut Option<P::Wait<'q>>>,
    ) -> bool {
        let Some(mut payment) = self.paying.take() else {
            return false;
        };
        payment.owed -= u64::from(payment.piece);
        payment.held.push(held);
        if payment.owed == 0 {
            self.start(now, payment);
        } else if self.permits.holds() {
            // The limiter is a limit on concurrency, and the batch costs more than all of it.
            // Its pieces return only by release, so the batch would wait for its own: given up.
            drop(payment.held);
            self.debt = self.debt.saturating_add(payment.debt);
            self.progress.needs -= payment.cost;
            self.settle(now, Vec::new(), payment.batch);
        } else {
            self.paying = Some(payment);
            self.pay(wait);
        }
        true
    }

    /// Puts the batch that is not paid back to where it came from.
    fn put_back(&mut self) {
        if let Some(payment) = self.paying.take() {
            self.debt = self.debt.saturating_add(payment.debt);
            for operation in payment.batch.into_iter().rev() {
                self.waiting.push_front(operation);
            }
        }
    }

    /// Reacts to a queue that does not let the runner wait.
    fn rejected(&mut self, now: Timestamp, rejected: Rejected) {
        self.put_back();
        match rejected {
            Rejected::Closed { .. } => self.early = Some(RunEnd::Closed),
            Rejected::ExceedsCapacity { capacity, .. } if (1..self.most).contains(&capacity) => {
                // The limit is lower than it was when the piece was formed: smaller pieces.
                self.most = capacity;
            }
            _ => {
                // The queue is full, or another request took the place of this one.
                let pause = self.options.interval.max(SHORTEST);
                self.next = now.saturating_add(pause);
            }
        }
    }

    /// Starts the write of a batch that is paid.
    fn start(&mut self, now: Timestamp, payment: Payment<T, P::Held<'q>>) {
        let Payment {
            mut batch,
            cost,
            permits,
            held,
            ..
        } = payment;
        for operation in &mut batch {
            operation.attempt += 1;
        }
        let operations = batch.len();
        self.progress.sends += operations as u64;
        self.progress.in_flight += operations as u64;
        self.progress.permits += permits;
        self.released = true;
        self.origin.get_or_insert(now);
        self.tell(&Event::Released {
            operations,
            cost,
            permits,
        });
        let (abort, registration) = AbortHandle::new_pair();
        let write = Abortable::new(self.work.write(batch.clone()), registration);
        let slot = self.occupy(now, batch, cost, held, abort);
        self.tasks.push(Task::Write { slot, write });
    }

    /// Returns why the run is over, if it is: nothing is held any more, or nothing is in flight
    /// after an early end.
    fn ended(&self) -> Option<RunEnd> {
        let holds = self.paying.is_some() || !self.waiting.is_empty() || !self.delayed.is_empty();
        let finished = (self.source_over && !holds).then_some(RunEnd::Finished);
        self.early.or(finished).filter(|_| self.flights.is_empty())
    }

    /// Returns the next time at which something is to do.
    fn alarm(&self, now: Timestamp) -> Option<Timestamp> {
        let deadline = self.deadlines.first().map(|&(at, _)| at);
        let delayed = self.delayed.first_key_value().map(|(&(at, _), _)| at);
        let paused = self.overload.paused(now);
        // Nothing tells the runner that a limit has become smaller, so it looks.
        let look = self.paying.is_some().then_some(self.look);
        let all = [deadline, delayed, paused, look, Some(self.next)];
        all.into_iter().flatten().filter(|&at| at > now).min()
    }

    /// Shows the handles the present counts. `size` is what the source says of its length.
    fn publish(&mut self, now: Timestamp, size: (usize, Option<usize>)) {
        let paying = self
            .paying
            .as_ref()
            .map_or(0, |payment| payment.batch.len());
        let waiting = self.waiting.len() + self.delayed.len() + paying;
        self.progress.waiting = waiting as u64;
        self.progress.speed = self.overload.speed_at(now);
        self.progress.paused = self.overload.paused(now).is_some();
        let elapsed = self.origin.map(|origin| now.saturating_since(origin));
        self.progress.elapsed = elapsed.unwrap_or_default();
        self.progress.time_left = self
            .cost_left(size)
            .and_then(|cost| self.progress.estimate(cost));
        self.shared.state().progress = self.progress;
    }

    /// Returns the cost of what is not over, if it is known.
    fn cost_left(&self, (least, most): (usize, Option<usize>)) -> Option<u64> {
        if let Some(total) = self.options.total_cost {
            let over = self.progress.written_cost + self.given_up_cost;
            return Some(total.saturating_sub(over).max(self.progress.needs));
        }
        if self.source_over {
            return Some(self.progress.needs);
        }
        // The rest of the source costs what its operations have cost on average so far.
        let exact = most.filter(|&most| most == least)?;
        let mean = u128::from(self.taken_cost) * exact as u128;
        let rest = mean.checked_div(self.taken.into())?;
        let rest = u64::try_from(rest).unwrap_or(u64::MAX);
        Some(self.progress.needs.saturating_add(rest))
    }

    /// Tells the observer of a pause that begins or becomes longer.
    fn tell_pause(&self, pause: Option<Duration>) {
        if let Some(time) = pause {
            self.tell(&Event::Paused { time });
        }
    }

    /// Tells the observer of an event.
    fn tell(&self, event: &Event) {
        if let Some(observer) = &self.options.observer {
            observer(event);
        }
    }
}
