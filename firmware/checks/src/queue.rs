//! Waits without a heap: queues in statics, under a critical section; one task that sleeps; and an
//! interrupt that releases, grants and wakes.

use core::cell::RefCell;
use core::pin::pin;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll};

use critical_section::Mutex;
use portcullis_async::{InterruptLock, Next, NoTimer, Queue, Rejected};
use portcullis_core::{Clock, Concurrency, Lease, Rate, Timestamp, TokenBucket};

use crate::Board;
use crate::executor::{block_on, waker};
use crate::tally::Group;

/// Milliseconds, which the interrupts count.
struct Millis(AtomicU32);

impl Millis {
    /// Only interrupts count, and they do not interrupt one another.
    fn count(&self, millis: u32) {
        self.0.store(self.0.load(Relaxed) + millis, Relaxed);
    }
}

impl Clock for &Millis {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Relaxed).into())
    }
}

type Limited<L> = Queue<L, NoTimer<&'static Millis>, InterruptLock>;

static MILLIS: Millis = Millis(AtomicU32::new(0));
static WORKERS: Limited<Concurrency> = Queue::with_lock(
    Concurrency::new(2),
    NoTimer(&MILLIS),
    9,
    InterruptLock::new(),
);
static PACE: Limited<TokenBucket> = Queue::with_lock(
    TokenBucket::new(Rate::per_second(10), 1),
    NoTimer(&MILLIS),
    9,
    InterruptLock::new(),
);

/// Held until an interrupt releases it.
static HELD: Mutex<RefCell<Option<Lease<&'static Limited<Concurrency>>>>> =
    Mutex::new(RefCell::new(None));

fn hold(lease: Option<Lease<&'static Limited<Concurrency>>>) {
    critical_section::with(|section| HELD.replace(section, lease));
}

/// In an interrupt: releases, which grants and wakes.
fn release() {
    let lease = critical_section::with(|section| HELD.take(section));
    drop(lease);
}

/// In an interrupt: releases, and leaves the rest to a call of `advance`.
fn release_later() {
    if let Some(lease) = critical_section::with(|section| HELD.take(section)) {
        Queue::release_later(lease);
    }
    WORKERS.advance();
}

/// In an interrupt: 100 ms have passed, and a token has come in.
fn tick() {
    MILLIS.count(100);
    PACE.advance();
}

/// In an interrupt: waits behind the task, releases, and cancels.
fn give_up() {
    let waker = waker();
    let mut wait = pin!(WORKERS.acquire(1));
    if wait
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending()
        && WORKERS.counts().waiters == 2
    {
        release();
    }
}

pub(crate) fn check(board: &dyn Board, group: &mut Group<'_>) {
    for (what, handler) in [
        ("released", release as fn()),
        ("released later", release_later),
        ("given up", give_up),
    ] {
        an_interrupt_ends_a_wait(board, group, what, handler);
    }
    two_wait_in_turn(board, group);
    time_ends_a_wait(board, group);
    refusals(group);
}

fn an_interrupt_ends_a_wait(board: &dyn Board, group: &mut Group<'_>, what: &str, handler: fn()) {
    hold(WORKERS.try_acquire(2).ok());
    board.interrupt(handler);
    let (lease, slept) = block_on(board, pin!(WORKERS.acquire(2)));
    let permits = lease.as_ref().map(Lease::permits);
    group.check(
        permits == Ok(2),
        format_args!("{what} in an interrupt: {permits:?}"),
    );
    group.check(
        slept > 0,
        format_args!("{what} in an interrupt: no task slept"),
    );
    group.check(
        WORKERS.available() == 0,
        format_args!("{what}: {} are free", WORKERS.available()),
    );
    drop(lease);
    group.check(
        WORKERS.available() == 2,
        format_args!("{what}: {} are back", WORKERS.available()),
    );
}

fn two_wait_in_turn(board: &dyn Board, group: &mut Group<'_>) {
    hold(WORKERS.try_acquire(2).ok());
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    let mut first = pin!(WORKERS.acquire(2));
    group.check(
        first.as_mut().poll(&mut context).is_pending(),
        format_args!("nothing is free"),
    );
    {
        let mut cancelled = pin!(WORKERS.acquire(1));
        group.check(
            cancelled.as_mut().poll(&mut context).is_pending(),
            format_args!("nothing is free"),
        );
    }
    let mut second = pin!(WORKERS.acquire(1));
    group.check(
        second.as_mut().poll(&mut context).is_pending(),
        format_args!("nothing is free"),
    );
    let counts = WORKERS.counts();
    group.check(
        (counts.waiters, counts.permits) == (2, 3),
        format_args!("one of three has given up: {counts:?}"),
    );

    board.interrupt(release);
    let (lease, _) = block_on(board, first);
    group.check(
        second.as_mut().poll(&mut context).is_pending(),
        format_args!("the first has all"),
    );
    hold(lease.ok());
    board.interrupt(release);
    let (lease, slept) = block_on(board, second);
    group.check(
        lease.is_ok() && slept > 0,
        format_args!("the second's turn: {lease:?}"),
    );
    group.check(
        WORKERS.available() == 1,
        format_args!("{} are free", WORKERS.available()),
    );
}

fn time_ends_a_wait(board: &dyn Board, group: &mut Group<'_>) {
    group.check(PACE.try_acquire(1).is_ok(), format_args!("a full bucket"));
    for turn in 1..=3 {
        let mut wait = pin!(PACE.acquire(1));
        let waker = waker();
        let pending = wait
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending();
        group.check(pending, format_args!("turn {turn}: nothing has come in"));
        let next = PACE.advance();
        let due = Timestamp::from_millis(100 * turn);
        group.check(next == Next::At(due), format_args!("turn {turn}: {next:?}"));
        board.interrupt(tick);
        let (lease, slept) = block_on(board, wait);
        group.check(
            lease.is_ok() && slept > 0,
            format_args!("turn {turn}: {lease:?}"),
        );
        group.check(
            (&MILLIS).now() == due,
            format_args!("turn {turn}: at {}", (&MILLIS).now()),
        );
    }
}

fn refusals(group: &mut Group<'_>) {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    let mut refused = |n| match pin!(WORKERS.acquire(n)).poll(&mut context) {
        Poll::Ready(Err(rejected)) => Some(rejected),
        Poll::Ready(Ok(_)) | Poll::Pending => None,
    };
    let rejected = refused(3);
    let expected = Some(Rejected::ExceedsCapacity {
        permits: 3,
        capacity: 2,
    });
    group.check(
        rejected == expected,
        format_args!("more than there can be: {rejected:?}"),
    );
    WORKERS.close();
    let rejected = refused(1);
    group.check(
        rejected == Some(Rejected::Closed { permits: 1 }),
        format_args!("closed: {rejected:?}"),
    );
    let counts = WORKERS.counts();
    group.check(
        counts.waiters == 0 && WORKERS.available() == 2,
        format_args!("all are gone: {counts:?}"),
    );
}
