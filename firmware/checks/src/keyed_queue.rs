//! Waits by key, without a heap: a waiter of one key does not delay those of another.

use core::cell::RefCell;
use core::pin::pin;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::task::Context;

use critical_section::Mutex;
use portcullis_async::{InterruptLock, KeyedQueue, Next, NoTimer, QueueKey};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed, TokenBucketRules};
use portcullis_core::{Clock, Keyed, Lease, Limiter, Rate, Timestamp};

use crate::Board;
use crate::executor::{block_on, waker};
use crate::tally::Group;

/// Milliseconds, which the interrupts count.
struct Millis(AtomicU32);

impl Clock for &Millis {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Relaxed).into())
    }
}

type Waited<L> = KeyedQueue<Keyed<L, [Line; 1]>, NoTimer<&'static Millis>, InterruptLock>;

static MILLIS: Millis = Millis(AtomicU32::new(5_000));
static WORKERS: Waited<ConcurrencyRules> = KeyedQueue::with_lock(
    Keyed::new(ConcurrencyRules::new(2), [Line::new()], Seed::new()),
    NoTimer(&MILLIS),
    9,
    InterruptLock::new(),
);
static PACE: Waited<TokenBucketRules> = KeyedQueue::with_lock(
    Keyed::new(
        TokenBucketRules::new(Rate::per_second(10), 1),
        [Line::new()],
        Seed::new(),
    ),
    NoTimer(&MILLIS),
    9,
    InterruptLock::new(),
);

/// The keys.
const ONE: u32 = 1;
const OTHER: u32 = 2;

type Held = Lease<QueueKey<&'static Waited<ConcurrencyRules>>>;

/// Held until an interrupt releases it.
static HELD: Mutex<RefCell<Option<Held>>> = Mutex::new(RefCell::new(None));

fn hold(lease: Option<Held>) {
    critical_section::with(|section| HELD.replace(section, lease));
}

/// In an interrupt: releases, which grants and wakes.
fn release() {
    let lease = critical_section::with(|section| HELD.take(section));
    drop(lease);
}

/// In an interrupt: 100 ms have passed, and each key has a token again.
fn tick() {
    MILLIS.0.store(MILLIS.0.load(Relaxed) + 100, Relaxed);
    PACE.advance();
}

pub(crate) fn check(board: &dyn Board, group: &mut Group<'_>) {
    releases_end_waits(board, group);
    time_ends_waits(board, group);
}

fn releases_end_waits(board: &dyn Board, group: &mut Group<'_>) {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    let (held, other) = (WORKERS.try_acquire(&ONE, 2), WORKERS.try_acquire(&OTHER, 2));
    group.check(
        held.is_ok() && other.is_ok(),
        format_args!("all of two keys: {held:?}, {other:?}"),
    );
    let mut first = pin!(WORKERS.acquire(&ONE, 2));
    let mut second = pin!(WORKERS.acquire(&OTHER, 1));
    let mut third = pin!(WORKERS.acquire(&OTHER, 1));
    group.check(
        first.as_mut().poll(&mut context).is_pending(),
        format_args!("nothing is free"),
    );
    group.check(
        second.as_mut().poll(&mut context).is_pending(),
        format_args!("nothing is free"),
    );
    group.check(
        third.as_mut().poll(&mut context).is_pending(),
        format_args!("nothing is free"),
    );
    let waiters = WORKERS.counts().waiters;
    group.check(waiters == 3, format_args!("{waiters} wait"));

    hold(other.ok());
    board.interrupt(release);
    let (lease, slept) = block_on(board, second);
    group.check(
        lease.is_ok() && slept > 0,
        format_args!("the other key's, which was released: {lease:?}"),
    );
    let (last, slept) = block_on(board, third);
    group.check(
        last.is_ok() && slept == 0,
        format_args!("there was enough for both: {last:?}"),
    );
    group.check(
        first.as_mut().poll(&mut context).is_pending(),
        format_args!("not its key's"),
    );
    let denied = WORKERS.try_acquire(&OTHER, 1).is_err();
    group.check(denied, format_args!("the other key has all"));

    hold(held.ok());
    board.interrupt(release);
    let (own, slept) = block_on(board, first);
    group.check(own.is_ok() && slept > 0, format_args!("released: {own:?}"));
    drop((own, lease, last));
    for key in [ONE, OTHER] {
        let free = WORKERS.key(&key).available_at((&MILLIS).now());
        group.check(free == 2, format_args!("{free} of {key} are back"));
    }
    let live = WORKERS.change(|table| table.statistics_at(Timestamp::ZERO).live);
    group.check(
        live == 0 && WORKERS.counts().waiters == 0,
        format_args!("{live} slots in use"),
    );
}

fn time_ends_waits(board: &dyn Board, group: &mut Group<'_>) {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    for key in [ONE, OTHER] {
        let taken = PACE.try_acquire(&key, 1).is_ok();
        group.check(taken, format_args!("the key {key} has one"));
    }
    for turn in 1..=3 {
        let (mut first, mut second) = (pin!(PACE.acquire(&ONE, 1)), pin!(PACE.acquire(&OTHER, 1)));
        group.check(
            first.as_mut().poll(&mut context).is_pending(),
            format_args!("turn {turn}: too soon"),
        );
        group.check(
            second.as_mut().poll(&mut context).is_pending(),
            format_args!("turn {turn}: too soon"),
        );
        let next = PACE.advance();
        let due = Timestamp::from_millis(5_000 + 100 * turn);
        group.check(next == Next::At(due), format_args!("turn {turn}: {next:?}"));
        board.interrupt(tick);
        let ((first, slept), (second, _)) = (block_on(board, first), block_on(board, second));
        group.check(
            first.is_ok() && second.is_ok() && slept > 0,
            format_args!("turn {turn}: {first:?}, {second:?}"),
        );
    }
}
